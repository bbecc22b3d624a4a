/*
 * The only crossing between the loop and the engine.
 *
 *   loop: post --push--> in --+                       +--> out --pop--> done() on the loop
 *                             +--> step, by whoever --+
 *   device: finished -> ended +    holds the turn
 *
 * `in` and `ended` are queues from many to one; the one is the holder of the turn. `out` has the
 * loop as its only consumer. Who wants a step raises `demand` and tries the turn; if it is taken,
 * the holder compares `demand` after it has given the turn and steps again. So no request for a
 * step is lost and the loop never waits.
 *
 * Waking. The engine's thread sleeps on a condition; whoever leaves it something to do clears
 * `asleep` and signals. The loop is woken through wake_loop() unless it says that it is awake. Both
 * are flags written before and read after the queues (sequentially consistent), so one side always
 * sees the other.
 *
 * Invariants: a job is in at most one list; its phase only grows; its end is posted once; a lane is
 * in `lanes` exactly while it is not empty; a started run holds its states' counters until it is
 * finished. A lane lies in a session that the loop may free as soon as it has seen the end of the
 * session's last job: ends are posted when the step no longer touches lanes.
 */
#include "daemon/engine.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/thread.h"

struct hr_engine {
        const struct hr_config *config;
        struct hr_fleet *fleet;
        struct hr_weights_store *store;
        struct hr_plan_cache *plan_cache;
        void (*wake_loop)(void *arg);
        void *wake_arg;
        struct hr_thread thread;
        /* The turn. */
        pthread_mutex_t turn;
        atomic_uint demand;
        /* Crossings. */
        struct hr_mpsc in, ended, out;
        atomic_bool bell; /* something is in `ended` */
        atomic_bool loop_awake;
        atomic_uint out_count;
        atomic_bool cancels_lanes; /* some job in a lane has been told to stop */
        atomic_bool cancels_work;
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

void hr_lane_init(struct hr_lane *lane) {
        memset(lane, 0, sizeof *lane);
        hr_list_init(&lane->waiting);
        hr_list_init(&lane->running);
}

/* ---- waking ---------------------------------------------------------------------------------- */

static void engine_wake(struct hr_engine *engine) {
        if (!atomic_exchange(&engine->asleep, false))
                return;
        (void) pthread_mutex_lock(&engine->sleep_lock);
        (void) pthread_cond_signal(&engine->sleep_condition);
        (void) pthread_mutex_unlock(&engine->sleep_lock);
}

/* The first who finds it asleep wakes it; until it says that it sleeps again it is awake. */
static void loop_wake(struct hr_engine *engine) {
        if (!atomic_load(&engine->loop_awake) && !atomic_exchange(&engine->loop_awake, true))
                engine->wake_loop(engine->wake_arg);
}

static void store_wake(void *arg) {
        struct hr_engine *engine = arg;

        atomic_store(&engine->store_wanted, true);
        engine_wake(engine);
}

/* ---- ends ------------------------------------------------------------------------------------ */

static void job_post_end(struct hr_engine *engine, struct hr_job *job) {
        HR_ASSERT(job->phase != HR_JOB_ENDED && job->phase != HR_JOB_IDLE);
        HR_ASSERT(!hr_list_is_linked(&job->place));
        job->phase = HR_JOB_ENDED;
        job->ended_ns = hr_clock_now_ns();
        hr_mpsc_push(&engine->out, &job->link);
        atomic_fetch_add(&engine->out_count, 1);
        loop_wake(engine);
}

void hr_engine_job_end(struct hr_job *job) {
        hr_list_remove(&job->place);
        job_post_end(job->engine, job);
}

void hr_engine_job_keep(struct hr_job *job) {
        hr_list_append(&job->engine->kept, &job->place);
}

static void job_fail(struct hr_job *job, hr_status status, const char *reason) {
        hr_diag_clear(&job->diag);
        job->status = hr_fail_reason(&job->diag, status, reason, "%s",
                                     status == HR_E_DEADLINE ? "the deadline passed before the end"
                                                             : "cancelled");
}

/* True when a job that has not started must not: told to stop, or too late. */
static bool job_is_stopped(struct hr_job *job) {
        int stop = atomic_load(&job->stop);

        if (stop != HR_OK) {
                job_fail(job, (hr_status) stop, NULL);
                return true;
        }
        if (job->deadline_ns && hr_clock_now_ns() >= job->deadline_ns) {
                job_fail(job, HR_E_DEADLINE, NULL);
                return true;
        }
        return false;
}

/* ---- lanes (under the turn) ------------------------------------------------------------------ */

static struct hr_job *place_job(struct hr_list *place) {
        return HR_CONTAINER_OF(place, struct hr_job, place);
}

static struct hr_run_job *run_job(struct hr_job *job) {
        HR_ASSERT(job->kind == HR_JOB_RUN);
        return HR_CONTAINER_OF(job, struct hr_run_job, job);
}

static struct hr_transfer_job *transfer_job(struct hr_job *job) {
        HR_ASSERT(job->kind == HR_JOB_TRANSFER);
        return HR_CONTAINER_OF(job, struct hr_transfer_job, job);
}

/* Thread: any; a device has finished the job. */
static void job_device_done(struct hr_job *job) {
        struct hr_engine *engine = job->engine;

        hr_mpsc_push(&engine->ended, &job->link);
        atomic_store(&engine->bell, true);
        loop_wake(engine);
}

static void run_done(struct hr_run *run, void *arg) {
        (void) run;
        job_device_done(arg);
}

static void transfer_done(struct hr_state_transfer *transfer, void *arg) {
        (void) transfer;
        job_device_done(arg);
}

/* Thread: any. The job is told apart from one that has ended by is_at_tap. */
static void run_at_tap(struct hr_run *run, void *arg) {
        struct hr_job *job = arg;

        HR_CONTAINER_OF(run, struct hr_run_job, run)->is_at_tap = true;
        job_device_done(job);
}

typedef enum start_result { START_OK, START_WAIT, START_ENDED } start_result;

/* The job has ended; it is handed back at the end of the step. */
static void job_leave(struct hr_engine *engine, struct hr_job *job) {
        if (job->kind == HR_JOB_RUN) {
                struct hr_run_job *run = run_job(job);

                run->over = true;
                hr_admission_forget(&run->ticket);
                if (run->chain && job->status != HR_OK)
                        run->chain->failed = true;
        }
        hr_list_append(&engine->ending, &job->place);
}

/* What the run's chain says of it. */
static start_result chain_look(struct hr_job *job) {
        const struct hr_run_job *run = run_job(job);

        if (!run->chain)
                return START_OK;
        if (run->chain->failed) {
                job_fail(job, HR_E_CANCELLED, NULL);
                return START_ENDED;
        }
        for (uint32_t i = 0; i < run->need_count; i++)
                if (!run->needs[i]->over)
                        return START_WAIT;
        return START_OK;
}

/* To the devices, which have been asked. */
static start_result run_hand_over(struct hr_run_job *run) {
        struct hr_bound *bound = run->bound;
        hr_status status;

        run->run.done = run_done;
        run->run.arg = &run->job;
        run->run.at_tap = run->at_tap ? run_at_tap : NULL;
        run->is_at_tap = false;
        status = hr_run_start(bound->pipeline, &run->run, &run->job.diag);
        if (status == HR_E_UNAVAILABLE) {
                hr_diag_clear(&run->job.diag);
                return START_WAIT;
        }
        if (status != HR_OK) {
                run->job.status = status;
                return START_ENDED;
        }
        for (uint32_t i = 0; i < bound->state_count; i++)
                bound->states[i]->runs++;
        return START_OK;
}

/* Whether what the run itself needs is there: those that feed it, its states, a slot. */
static start_result run_look(struct hr_engine *engine, struct hr_job *job) {
        const struct hr_bound *bound = run_job(job)->bound;
        start_result look = chain_look(job);

        if (look != START_OK)
                return look;
        for (uint32_t i = 0; i < bound->state_count; i++)
                if (bound->states[i]->transfers > 0)
                        return START_WAIT;
        if (!hr_pipeline_has_slot(bound->pipeline)) {
                engine->stats.waits++;
                return START_WAIT;
        }
        return START_OK;
}

static start_result run_start(struct hr_engine *engine, struct hr_job *job) {
        struct hr_run_job *run = run_job(job);
        start_result result = run_look(engine, job);

        if (result != START_OK) {
                hr_admission_forget(&run->ticket);
                return result;
        }
        /* An observed run may wait for its client: it takes nobody's turn. */
        if (run->at_tap)
                return run_hand_over(run);
        if (!hr_admission_ask(&engine->admission, &run->ticket, run->bound->pipeline)) {
                engine->stats.turn_waits++;
                return START_WAIT;
        }
        result = run_hand_over(run);
        if (result != START_OK)
                (void) hr_admission_leave(&engine->admission, &run->ticket);
        return result;
}

static start_result transfer_start(struct hr_job *job) {
        struct hr_transfer_job *transfer = transfer_job(job);
        struct hr_state *state = transfer->transfer.state;
        hr_status status;

        if (state->runs > 0)
                return START_WAIT;
        transfer->transfer.done = transfer_done;
        transfer->transfer.arg = job;
        status = transfer->is_write ? hr_state_write(&transfer->transfer, &job->diag)
                                    : hr_state_read(&transfer->transfer, &job->diag);
        if (status != HR_OK) {
                job->status = status;
                return START_ENDED;
        }
        state->transfers++;
        return START_OK;
}

static start_result job_start(struct hr_engine *engine, struct hr_job *job) {
        if (job_is_stopped(job))
                return START_ENDED;
        switch (job->kind) {
        case HR_JOB_RUN:
                return run_start(engine, job);
        case HR_JOB_TRANSFER:
                return transfer_start(job);
        case HR_JOB_SYNC:
                return hr_list_is_empty(&job->lane->running) ? START_ENDED : START_WAIT;
        case HR_JOB_WORK:
                break;
        }
        HR_ASSERT(false);
        return START_ENDED;
}

/* Starts what can start, in order. */
static void lane_advance(struct hr_engine *engine, struct hr_lane *lane) {
        while (!hr_list_is_empty(&lane->waiting) && !lane->is_observed) {
                struct hr_job *job = place_job(lane->waiting.next);
                start_result result = job_start(engine, job);

                if (result == START_WAIT)
                        return;
                hr_list_remove(&job->place);
                if (result == START_ENDED) {
                        job_leave(engine, job);
                        continue;
                }
                engine->stats.jobs++;
                job->phase = HR_JOB_RUNNING;
                job->started_ns = hr_clock_now_ns();
                hr_list_append(&lane->running, &job->place);
                lane->is_observed = job->kind == HR_JOB_RUN && run_job(job)->at_tap;
                /* Told to stop between the look above and the start. */
                if (job->kind == HR_JOB_RUN && atomic_load(&job->stop) != HR_OK)
                        hr_run_cancel(&run_job(job)->run, (hr_status) atomic_load(&job->stop),
                                      NULL);
        }
        if (hr_list_is_empty(&lane->running))
                hr_list_remove(&lane->link);
}

/* Runs that devices have room for again. */
static void admission_serve(struct hr_engine *engine) {
        struct hr_ticket *ticket;

        while ((ticket = hr_admission_next(&engine->admission))) {
                lane_advance(engine, HR_CONTAINER_OF(ticket, struct hr_run_job, ticket)->job.lane);
                if (hr_list_is_linked(&ticket->link))
                        return;
        }
}

static void lanes_advance(struct hr_engine *engine) {
        HR_LIST_FOR_EACH(link, &engine->lanes)
                lane_advance(engine, HR_CONTAINER_OF(link, struct hr_lane, link));
}

static void job_finish(struct hr_engine *engine, struct hr_job *job) {
        struct hr_lane *lane = job->lane;
        bool held = hr_fleet_holds(engine->fleet);

        HR_ASSERT(job->phase == HR_JOB_RUNNING);
        hr_list_remove(&job->place);
        if (job->kind == HR_JOB_RUN) {
                struct hr_run_job *run = run_job(job);

                for (uint32_t i = 0; i < run->bound->state_count; i++)
                        run->bound->states[i]->runs--;
                hr_run_finish(&run->run);
                (void) hr_admission_leave(&engine->admission, &run->ticket);
                run->moves = hr_pipeline_moves(run->bound->pipeline);
                lane->is_observed = lane->is_observed && !run->at_tap;
                if (hr_pipeline_wants_move(run->bound->pipeline) &&
                    !hr_list_is_linked(&run->bound->settling)) {
                        hr_list_append(&engine->settling, &run->bound->settling);
                        engine_wake(engine);
                }
                job->status = run->run.outcome.diag.status;
                if (job->status != HR_OK)
                        job->diag = run->run.outcome.diag;
        } else {
                struct hr_transfer_job *transfer = transfer_job(job);

                transfer->transfer.state->transfers--;
                job->status = transfer->transfer.outcome.diag.status;
                if (job->status != HR_OK)
                        job->diag = transfer->transfer.outcome.diag;
        }
        job_leave(engine, job);
        if (job->status == HR_E_DEVICE_LOST)
                engine_wake(engine);
        if (held && !hr_fleet_holds(engine->fleet))
                lanes_advance(engine);
        else
                lane_advance(engine, lane);
}

static void job_resume(struct hr_job *job) {
        int stop = atomic_load(&job->stop);

        job->phase = HR_JOB_RUNNING;
        if (stop != HR_OK)
                hr_run_cancel(&run_job(job)->run, (hr_status) stop, NULL);
        hr_run_resume(&run_job(job)->run);
}

/* A run waits at a tap: the loop tells the client, unless there is nothing to wait for. */
static void job_tapped(struct hr_engine *engine, struct hr_job *job) {
        struct hr_run_job *run = run_job(job);

        run->is_at_tap = false;
        if (atomic_load(&job->stop) != HR_OK || hr_outcome_failed(&run->run.outcome)) {
                job_resume(job);
                return;
        }
        job->phase = HR_JOB_AT_TAP;
        hr_mpsc_push(&engine->out, &job->link);
        atomic_fetch_add(&engine->out_count, 1);
        loop_wake(engine);
}

/* Jobs in lanes that have been told to stop: waiting ones end, running ones are cancelled. */
static void lanes_stop_jobs(struct hr_engine *engine) {
        HR_LIST_FOR_EACH(lane_link, &engine->lanes) {
                struct hr_lane *lane = HR_CONTAINER_OF(lane_link, struct hr_lane, link);

                HR_LIST_FOR_EACH(place, &lane->running) {
                        struct hr_job *job = place_job(place);
                        int stop = atomic_load(&job->stop);

                        if (stop != HR_OK && job->kind == HR_JOB_RUN)
                                hr_run_cancel(&run_job(job)->run, (hr_status) stop, NULL);
                }
                HR_LIST_FOR_EACH(waiting, &lane->waiting) {
                        struct hr_job *job = place_job(waiting);

                        if (atomic_load(&job->stop) == HR_OK)
                                continue;
                        hr_list_remove(&job->place);
                        (void) job_is_stopped(job);
                        job_leave(engine, job);
                }
                lane_advance(engine, lane);
        }
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void job_enter(struct hr_engine *engine, struct hr_job *job) {
        if (job->phase == HR_JOB_AT_TAP) {
                job_resume(job);
                return;
        }
        if (job->kind == HR_JOB_WORK) {
                hr_list_append(&engine->work, &job->place);
                engine_wake(engine);
                return;
        }
        hr_list_append(&job->lane->waiting, &job->place);
        if (!hr_list_is_linked(&job->lane->link))
                hr_list_append(&engine->lanes, &job->lane->link);
        /* Behind others that wait it waits as well; the look is cheap but a start is not. */
        if (job->lane->waiting.next == &job->place)
                lane_advance(engine, job->lane);
}

/* Serves everything that has come in. Under the turn. */
static void engine_step(struct hr_engine *engine) {
        struct hr_mpsc_link *link;
        struct hr_list *place;

        atomic_store(&engine->bell, false);
        while ((link = hr_mpsc_pop(&engine->ended))) {
                struct hr_job *job = HR_CONTAINER_OF(link, struct hr_job, link);

                if (job->kind == HR_JOB_RUN && run_job(job)->is_at_tap)
                        job_tapped(engine, job);
                else
                        job_finish(engine, job);
        }
        while ((link = hr_mpsc_pop(&engine->in)))
                job_enter(engine, HR_CONTAINER_OF(link, struct hr_job, link));
        if (atomic_exchange(&engine->cancels_lanes, false))
                lanes_stop_jobs(engine);
        admission_serve(engine);
        while ((place = hr_list_pop(&engine->ending)))
                job_post_end(engine, place_job(place));
}

/* Gives the turn up and takes it again while somebody asked for a step in the meantime. */
static void turn_serve_and_give(struct hr_engine *engine) {
        for (;;) {
                unsigned seen = atomic_load(&engine->demand);

                engine_step(engine);
                (void) pthread_mutex_unlock(&engine->turn);
                if (atomic_load(&engine->demand) == seen)
                        return;
                if (pthread_mutex_trylock(&engine->turn) != 0)
                        return; /* its holder sees the demand */
        }
}

/* Asks for a step, by this thread if the turn is free. */
static void engine_enter(struct hr_engine *engine) {
        (void) atomic_fetch_add(&engine->demand, 1);
        if (pthread_mutex_trylock(&engine->turn) == 0)
                turn_serve_and_give(engine);
}

void hr_engine_turn_take(struct hr_engine *engine) {
        (void) pthread_mutex_lock(&engine->turn);
}

void hr_engine_turn_give(struct hr_engine *engine) {
        turn_serve_and_give(engine);
}

/* ---- the loop's side ------------------------------------------------------------------------- */

void hr_engine_post(struct hr_engine *engine, struct hr_job *job) {
        HR_ASSERT(job->phase == HR_JOB_IDLE);
        HR_ASSERT(job->done && (job->kind == HR_JOB_WORK ? !!job->work : !!job->lane));
        job->engine = engine;
        job->phase = HR_JOB_POSTED;
        job->status = HR_OK;
        hr_diag_clear(&job->diag);
        job->posted_ns = hr_clock_now_ns();
        job->started_ns = job->ended_ns = 0;
        job->is_with_loop = false;
        atomic_store(&job->stop, HR_OK);
        hr_mpsc_push(&engine->in, &job->link);
        engine_enter(engine);
}

void hr_engine_cancel(struct hr_engine *engine, struct hr_job *job, hr_status status) {
        int none = HR_OK;

        HR_ASSERT(status != HR_OK);
        if (!atomic_compare_exchange_strong(&job->stop, &none, (int) status))
                return;
        if (job->kind == HR_JOB_WORK) {
                atomic_store(&engine->cancels_work, true);
                engine_wake(engine);
                return;
        }
        atomic_store(&engine->cancels_lanes, true);
        if (job->is_with_loop)
                hr_engine_resume(engine, job);
        else
                engine_enter(engine);
}

void hr_engine_resume(struct hr_engine *engine, struct hr_job *job) {
        if (!job->is_with_loop)
                return;
        job->is_with_loop = false;
        hr_mpsc_push(&engine->in, &job->link);
        engine_enter(engine);
}

/* A run waits at a tap; one that has been told to stop meanwhile does not. */
static void job_show(struct hr_engine *engine, struct hr_job *job) {
        job->is_with_loop = true;
        if (atomic_load(&job->stop) != HR_OK)
                hr_engine_resume(engine, job);
        else
                run_job(job)->at_tap(job);
}

bool hr_engine_has_news(struct hr_engine *engine) {
        return atomic_load(&engine->out_count) > 0 || atomic_load(&engine->bell);
}

void hr_engine_loop_awake(struct hr_engine *engine, bool awake) {
        atomic_store(&engine->loop_awake, awake);
}

bool hr_engine_poll(struct hr_engine *engine) {
        struct hr_mpsc_link *link;
        bool any = false;

        /* Cleared before the try: if somebody else has the turn, he serves the demand, and the loop
         * must not take the bell for news again and again meanwhile. */
        if (atomic_exchange(&engine->bell, false))
                engine_enter(engine);
        if (atomic_load(&engine->out_count) == 0)
                return false;
        while ((link = hr_mpsc_pop(&engine->out))) {
                struct hr_job *job = HR_CONTAINER_OF(link, struct hr_job, link);

                atomic_fetch_sub(&engine->out_count, 1);
                if (job->phase == HR_JOB_AT_TAP) {
                        job_show(engine, job);
                        any = true;
                        continue;
                }
                HR_ASSERT(job->phase == HR_JOB_ENDED);
                job->phase = HR_JOB_IDLE;
                atomic_store(&job->stop, HR_OK);
                job->done(job);
                any = true;
        }
        return any;
}

/* ---- the engine's thread --------------------------------------------------------------------- */

static struct hr_job *work_take(struct hr_engine *engine) {
        struct hr_list *place;

        hr_engine_turn_take(engine);
        place = hr_list_pop(&engine->work);
        if (place)
                engine->stats.jobs++;
        hr_engine_turn_give(engine);
        return place ? place_job(place) : NULL;
}

static void work_do(struct hr_job *job) {
        if (job_is_stopped(job)) {
                if (job->cancel)
                        job->cancel(job);
                else
                        hr_engine_job_end(job);
                return;
        }
        job->phase = HR_JOB_RUNNING;
        job->started_ns = hr_clock_now_ns();
        job->work(job);
}

/* Work that ends later and has been told to stop. Jobs still in `work` are looked at when they are
 * taken. */
static void kept_stop_jobs(struct hr_engine *engine) {
        HR_LIST_FOR_EACH(place, &engine->kept) {
                struct hr_job *job = place_job(place);
                int stop = atomic_load(&job->stop);

                if (stop == HR_OK || !job->cancel)
                        continue;
                job_fail(job, (hr_status) stop, NULL);
                job->cancel(job);
        }
}

void hr_bound_forget(struct hr_bound *bound) {
        hr_list_remove(&bound->settling);
}

/* Pipelines leave memory that has been replaced as soon as no run of theirs is in flight. */
static bool settle_one(struct hr_engine *engine) {
        struct hr_list *link;

        hr_engine_turn_take(engine);
        link = hr_list_pop(&engine->settling);
        if (link) {
                struct hr_bound *bound = HR_CONTAINER_OF(link, struct hr_bound, settling);

                (void) hr_workspace_settle(hr_pipeline_workspace(bound->pipeline));
        }
        hr_engine_turn_give(engine);
        return link;
}

/* Between two pieces of work, so that no planning is under way. */
static bool retire_lost(struct hr_engine *engine) {
        uint32_t count;

        if (!hr_fleet_has_losses(engine->fleet))
                return false;
        hr_engine_turn_take(engine);
        count = hr_fleet_retire(engine->fleet);
        hr_engine_turn_give(engine);
        hr_log(HR_LOG_ERROR, "engine", "%u of %u devices lost and retired, epoch=%llu", count,
               hr_fleet_device_count(engine->fleet),
               (unsigned long long) hr_fleet_epoch(engine->fleet));
        return true;
}

/* True when it did anything. */
static bool engine_round(struct hr_engine *engine) {
        struct hr_job *job;
        bool any = false;

        if (atomic_exchange(&engine->cancels_work, false))
                kept_stop_jobs(engine);
        job = work_take(engine);
        if (job) {
                work_do(job);
                any = true;
        }
        any = settle_one(engine) || any;
        any = retire_lost(engine) || any;
        if (atomic_exchange(&engine->store_wanted, false)) {
                hr_engine_turn_take(engine);
                if (hr_weights_store_step(engine->store))
                        atomic_store(&engine->store_wanted, true);
                hr_engine_turn_give(engine);
                any = true;
        }
        return any;
}

static bool engine_has_work(struct hr_engine *engine) {
        bool any;

        hr_engine_turn_take(engine);
        any = !hr_list_is_empty(&engine->work) || !hr_list_is_empty(&engine->settling);
        hr_engine_turn_give(engine);
        return any || hr_fleet_has_losses(engine->fleet) || atomic_load(&engine->store_wanted) ||
               atomic_load(&engine->cancels_work) || atomic_load(&engine->stopping);
}

static void engine_sleep(struct hr_engine *engine) {
        atomic_store(&engine->asleep, true);
        if (engine_has_work(engine)) {
                atomic_store(&engine->asleep, false);
                return;
        }
        (void) pthread_mutex_lock(&engine->sleep_lock);
        while (atomic_load(&engine->asleep))
                (void) pthread_cond_wait(&engine->sleep_condition, &engine->sleep_lock);
        (void) pthread_mutex_unlock(&engine->sleep_lock);
}

static void engine_main(void *arg) {
        struct hr_engine *engine = arg;

        for (;;) {
                if (engine_round(engine))
                        continue;
                if (atomic_load(&engine->stopping))
                        return;
                engine_sleep(engine);
        }
}

/* ---- life ------------------------------------------------------------------------------------ */

HR_DEFINE_CLEANUP(struct hr_engine *, hr_engine_freep, hr_engine_free)

hr_status hr_engine_new(const struct hr_engine_config *config, struct hr_diag *diag,
                        struct hr_engine **ret_engine) {
        HR_CLEANUP(hr_engine_freep) struct hr_engine *engine = calloc(1, sizeof *engine);
        struct hr_weights_store_config store_config;

        if (!engine)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the engine");
        engine->config = config->config;
        engine->fleet = config->fleet;
        engine->wake_loop = config->wake_loop;
        engine->wake_arg = config->arg;
        (void) pthread_mutex_init(&engine->turn, NULL);
        (void) pthread_mutex_init(&engine->sleep_lock, NULL);
        (void) pthread_cond_init(&engine->sleep_condition, NULL);
        hr_mpsc_init(&engine->in);
        hr_mpsc_init(&engine->ended);
        hr_mpsc_init(&engine->out);
        hr_list_init(&engine->lanes);
        hr_list_init(&engine->work);
        hr_list_init(&engine->settling);
        hr_list_init(&engine->ending);
        hr_list_init(&engine->kept);
        store_config = (struct hr_weights_store_config){
                .fleet = config->fleet,
                .bytes_max = config->config->limits.weights_bytes,
                .resident_bytes_max = config->config->limits.resident_bytes,
                .wake = store_wake,
                .arg = engine,
        };
        HR_TRY(hr_admission_init(&engine->admission, hr_fleet_device_count(config->fleet),
                                 (uint32_t) config->config->limits.device_runs, diag));
        HR_TRY(hr_plan_cache_new(config->config->plan_cache_bytes, diag, &engine->plan_cache));
        HR_TRY(hr_weights_store_new(&store_config, diag, &engine->store));
        HR_TRY(hr_thread_start(&engine->thread, "hr-engine", engine_main, engine, diag));
        *ret_engine = HR_STEAL(engine);
        return HR_OK;
}

void hr_engine_stop(struct hr_engine *engine) {
        if (!engine)
                return;
        atomic_store(&engine->stopping, true);
        engine_wake(engine);
        hr_thread_join(&engine->thread);
        HR_ASSERT(hr_list_is_empty(&engine->lanes));
        HR_ASSERT(hr_list_is_empty(&engine->work));
        if (engine->store)
                engine->store = hr_weights_store_free(engine->store);
        if (engine->plan_cache)
                engine->plan_cache = hr_plan_cache_free(engine->plan_cache);
}

struct hr_engine *hr_engine_free(struct hr_engine *engine) {
        if (!engine)
                return NULL;
        hr_engine_stop(engine);
        hr_admission_deinit(&engine->admission);
        (void) pthread_cond_destroy(&engine->sleep_condition);
        (void) pthread_mutex_destroy(&engine->sleep_lock);
        (void) pthread_mutex_destroy(&engine->turn);
        free(engine);
        return NULL;
}

struct hr_fleet *hr_engine_fleet(struct hr_engine *engine) {
        return engine->fleet;
}

struct hr_weights_store *hr_engine_store(struct hr_engine *engine) {
        return engine->store;
}

struct hr_plan_cache *hr_engine_plan_cache(struct hr_engine *engine) {
        return engine->plan_cache;
}

struct hr_engine_stats hr_engine_stats(struct hr_engine *engine) {
        struct hr_engine_stats stats;

        hr_engine_turn_take(engine);
        stats = engine->stats;
        hr_engine_turn_give(engine);
        return stats;
}
