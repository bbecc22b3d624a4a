/*
 * The engine: where planning and submission happen, and the only crossing between the loop and the
 * rest. A request crosses as a job: hr_engine_post() hands it over, its done() hands it back.
 *
 * Kinds of jobs
 *   WORK      a function that may take long: planning, binding, loading. On the engine's thread, in
 *             the order posted, one at a time, without the turn.
 *   RUN       one evaluation of a bound graph.
 *   TRANSFER  a read or write of a state from outside, or a copy of it.
 *   SYNC      ends when everything before it in its lane has ended.
 *
 * Lanes. RUN, TRANSFER and SYNC belong to the lane of their session and start in the order posted:
 * a run starts when its slot is free and no transfer of a state it uses is under way; a transfer
 * when no run that uses the state is in flight; nothing while a run that is observed has not ended:
 * its tape is submitted in parts, and what a session runs may share memory. What cannot start holds
 * up its own lane and no other.
 *
 * The turn. Queues, pipelines and lanes belong to whoever holds the turn (a mutex). The engine's
 * thread takes it for bounded portions. The loop only ever tries: when the turn is free, the loop
 * does the few microseconds of work that start or finish a run itself, and no thread has to be
 * woken; when it is not, the holder sees the demand before it goes on. So a small run crosses no
 * thread but the device's.
 *
 * A job has exactly one end. After hr_engine_post() the loop does not touch it, except through
 * hr_engine_cancel(); after its end has been posted the engine does not.
 */
#pragma once

#include "core/list.h"
#include "core/mpsc.h"
#include "daemon/admission.h"
#include "daemon/config.h"
#include "daemon/state.h"
#include "daemon/weights.h"

struct hr_engine;
struct hr_image;
struct hr_inherited;
struct hr_job;
typedef void (*hr_job_fn)(struct hr_job *job);

/* The queue of one session. Zeroed, then hr_lane_init(). */
struct hr_lane {
        struct hr_list waiting; /* jobs in order */
        struct hr_list running; /* jobs handed to devices */
        struct hr_list link;    /* in the engine's list of lanes that are not empty */
        bool blocked_by_sync;
        bool is_observed; /* a run that is observed has been started: nothing else is until its
                           * end */
};
void hr_lane_init(struct hr_lane *lane);

typedef enum hr_job_kind {
        HR_JOB_WORK,
        HR_JOB_RUN,
        HR_JOB_TRANSFER,
        HR_JOB_SYNC,
} hr_job_kind;

typedef enum hr_job_phase {
        HR_JOB_IDLE,    /* the loop's */
        HR_JOB_POSTED,  /* on its way or waiting */
        HR_JOB_RUNNING, /* its work is being done or a device has it */
        HR_JOB_AT_TAP,  /* a run that waits for hr_engine_resume() */
        HR_JOB_ENDED,   /* on its way back */
} hr_job_phase;

struct hr_job {
        /* Set by the caller before the post. */
        hr_job_kind kind;
        hr_job_fn work;   /* WORK. Thread: engine. Ends the job, or leaves it to end later */
        hr_job_fn cancel; /* WORK that has been told to stop, before or after its work: must end the
                           * job. Thread: engine. NULL: ends by itself */
        hr_job_fn done;   /* thread: loop */
        void *arg;        /* the caller's */
        struct hr_lane *lane; /* all but WORK */
        uint64_t deadline_ns; /* 0 = none */
        /* Result. */
        hr_status status;
        struct hr_diag diag;
        /* Private. */
        struct hr_engine *engine;
        struct hr_mpsc_link link;
        struct hr_list place;
        hr_job_phase phase;
        atomic_int stop; /* hr_status of a cancellation; HR_OK = none */
        bool is_with_loop; /* the loop's: at_tap() has been called, hr_engine_resume() not */
        uint64_t posted_ns, started_ns, ended_ns;
};

/* A graph bound to a pipeline, as far as starting runs is concerned. */
struct hr_bound {
        struct hr_pipeline *pipeline;
        struct hr_state **states; /* each distinct one, referenced */
        uint32_t state_count;
        struct hr_image **images; /* mapped files behind its weights, referenced; ends with NULL */
        /* Private: what a run takes of its devices, by the latest ones; how far they are from
         * it. */
        uint64_t cost_ns, spread_ns;
        struct hr_list
                settling; /* private: in the engine's list while its workspace is to settle */
};
/* Before the pipeline is freed. Under the turn. */
void hr_bound_forget(struct hr_bound *bound);

/* Runs that belong together: none of them starts once one has failed. The engine's from the first
 * post to the last end. */
struct hr_chain {
        bool failed;
};

struct hr_run_job {
        struct hr_job job;
        struct hr_bound *bound;
        struct hr_ticket ticket; /* its priority and share are the caller's */
        /* Of a chain, set by the caller: jobs of the same lane, posted before, that must have ended
         * before this one starts. */
        struct hr_chain *chain;
        struct hr_run_job *const *needs;
        uint32_t need_count;
        bool over;         /* private; false when posted */
        struct hr_run run; /* inputs, outputs, output_count set by the caller */
        uint64_t moves;    /* of the pipeline, when the run had ended */
        /* Of a run that is observed, whose tap_data the caller has set: it waits at run.tap.
         * Thread: loop. From then on hr_engine_resume() lets it go on; NULL = not observed. */
        hr_job_fn at_tap;
        bool is_at_tap; /* private: on its way from a device */
};

struct hr_transfer_job {
        struct hr_job job;
        bool is_write;
        /* Set before the post: it takes its place in the lane, and starts after
         * hr_engine_release(). */
        atomic_bool is_held;
        struct hr_state_transfer
                transfer; /* state, tensor, offset, bytes, host set by the caller */
};

struct hr_engine_config {
        const struct hr_config *config;
        struct hr_fleet *fleet;
        struct hr_inherited *inherited; /* the store takes its sets out of it; NULL = none */
        /* Tells the loop that hr_engine_poll() would find something. Thread: any. */
        void (*wake_loop)(void *arg);
        /* From that time on it would find something as well; the latest word counts. Thread:
         * any. */
        void (*wake_loop_at)(void *arg, uint64_t at_ns);
        void *arg;
};

struct hr_engine_stats {
        uint64_t jobs, jobs_on_loop; /* started; of these RUN, TRANSFER, SYNC started by the loop */
        uint64_t waits;              /* starts that found no slot */
        uint64_t turn_waits;         /* ... that found their devices busy with other runs */
        uint64_t lag_max_ns;         /* the longest that work has waited for the engine's thread */
};

HR_NODISCARD hr_status hr_engine_new(const struct hr_engine_config *config, struct hr_diag *diag,
                                     struct hr_engine **ret_engine);
/* After the last job has been handed back: ends the thread, frees store and plan cache. A device's
 * thread may still be on its way out of a notification, so the fleet is freed next and the engine
 * after it. NULL is a no-op. */
void hr_engine_stop(struct hr_engine *engine);
/* Stops if that has not been done. Returns NULL. */
struct hr_engine *hr_engine_free(struct hr_engine *engine);

/* Thread: loop. */
void hr_engine_post(struct hr_engine *engine, struct hr_job *job);
/* Asks a posted job to end early with HR_E_CANCELLED or HR_E_DEADLINE. Waiting ones end at once,
 * running ones at the next split. The first call wins; harmless once the job has ended. Thread:
 * loop, before the job's done(). */
void hr_engine_cancel(struct hr_engine *engine, struct hr_job *job, hr_status status);
/* Lets transfers start that are held; all that they need is there. Those that have ended are none.
 * Thread: loop. */
void hr_engine_release(struct hr_engine *engine, struct hr_transfer_job *transfers, uint32_t count);
/* Lets a run that waits at a tap go on; told to stop meanwhile (hr_run_cancel(), or cancelled
 * here), it goes to its end. Thread: loop, after at_tap(). */
void hr_engine_resume(struct hr_engine *engine, struct hr_job *job);
/* Serves what devices have finished and calls done() of jobs that have ended. True when there was
 * anything. Thread: loop. */
bool hr_engine_poll(struct hr_engine *engine);
/* True when hr_engine_poll() would find something. Thread: loop. */
bool hr_engine_has_news(struct hr_engine *engine);
/* While true, nobody calls wake_loop: the loop looks by itself. Thread: loop. */
void hr_engine_loop_awake(struct hr_engine *engine, bool awake);

/* Thread: engine (inside work). Ends a job of kind WORK; status and diag are set in it. */
void hr_engine_job_end(struct hr_job *job);
/* A WORK job that ends later is kept where its cancel() can be found until hr_engine_job_end(). */
void hr_engine_job_keep(struct hr_job *job);
/* Thread: engine. Whoever touches a queue, pipeline or a state's memory holds the turn. */
void hr_engine_turn_take(struct hr_engine *engine);
void hr_engine_turn_give(struct hr_engine *engine);

/* The devices as a whole, of which principals have shares. Any thread may take its address. */
struct hr_share *hr_engine_share(struct hr_engine *engine);
struct hr_fleet *hr_engine_fleet(struct hr_engine *engine);
/* Thread: engine, except for what the store says of others. */
struct hr_weights_store *hr_engine_store(struct hr_engine *engine);
struct hr_plan_cache *hr_engine_plan_cache(struct hr_engine *engine); /* thread: engine */
struct hr_engine_stats hr_engine_stats(struct hr_engine *engine);
