/*
 * What the files of the engine share: engine.c (crossings, the turn, the loop's side), lanes.c
 * (which job of a session starts next) and engine_thread.c (work, and the engine's life).
 */
#pragma once

#include "daemon/engine.h"

#include "core/thread.h"

struct hr_engine {
        const struct hr_config *config;
        struct hr_fleet *fleet;
        struct hr_weights_store *store;
        struct hr_plan_cache *plan_cache;
        void (*wake_loop)(void *arg);
        void (*wake_loop_at)(void *arg, uint64_t at_ns);
        void *wake_arg;
        struct hr_thread thread;
        /* The turn. */
        pthread_mutex_t turn;
        atomic_uint demand;
        /* Crossings. */
        struct hr_mpsc in, ended, out;
        atomic_bool bell; /* something is in `ended` */
        atomic_bool loop_awake;
        atomic_uint_fast64_t due_ns; /* when a step is due without anybody's asking for it */
        atomic_uint out_count;
        atomic_bool cancels_lanes; /* some job in a lane has been told to stop */
        atomic_bool cancels_work;
        atomic_bool releases; /* held jobs may start */
        /* Under the turn. */
        struct hr_list lanes;
        struct hr_admission admission;
        struct hr_list work;
        struct hr_list settling; /* bound graphs that hold memory which has been replaced */
        struct hr_list ending; /* handed back at the end of the step: until then their lanes live */
        struct hr_engine_stats stats;
        /* The engine thread's. */
        struct hr_list kept;
        atomic_bool store_wanted;
        atomic_bool stopping;
        /* Its sleep. */
        pthread_mutex_t sleep_lock;
        pthread_cond_t sleep_condition;
        atomic_bool asleep;
};

static inline struct hr_job *place_job(struct hr_list *place) {
        return HR_CONTAINER_OF(place, struct hr_job, place);
}

static inline struct hr_run_job *run_job(struct hr_job *job) {
        HR_ASSERT(job->kind == HR_JOB_RUN);
        return HR_CONTAINER_OF(job, struct hr_run_job, job);
}

/* Whoever sleeps is woken. Thread: any. */
void hr_engine_wake(struct hr_engine *engine);
void hr_engine_wake_loop(struct hr_engine *engine);

/* Hands the job back; it is in no list. */
void hr_job_post_end(struct hr_engine *engine, struct hr_job *job);
/* Status and words of a job that has been told to stop, or is too late. */
void hr_job_fail(struct hr_job *job, hr_status status, const char *reason);
/* True when a job that has not started must not: told to stop, or too late. It has failed then. */
bool hr_job_is_stopped(struct hr_job *job);

/* Of lanes.c, all under the turn. Jobs that end are handed back at the end of the step. */
/* Starts what can start, in order. */
void hr_lane_advance(struct hr_engine *engine, struct hr_lane *lane);
/* Of all lanes. */
void hr_lanes_advance(struct hr_engine *engine);
/* Starts runs that devices have room for again. */
void hr_lanes_serve(struct hr_engine *engine);
/* Jobs that have been told to stop: waiting ones end, running ones are cancelled. */
void hr_lanes_stop_jobs(struct hr_engine *engine);
/* A device has done with the job. */
void hr_lane_job_ended(struct hr_engine *engine, struct hr_job *job);
/* A run waits at a tap: the loop tells the client, unless there is nothing to wait for. */
void hr_job_tapped(struct hr_engine *engine, struct hr_job *job);
/* The client's word is there. */
void hr_job_resume(struct hr_job *job);
