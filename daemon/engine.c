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
 * Invariants: a job is in at most one list; its phase only grows; its end is posted once. A lane
 * lies in a session that the loop may free as soon as it has seen the end of the session's last
 * job: ends are posted when the step no longer touches lanes.
 */
#include "daemon/engine_priv.h"

#include "core/clock.h"

/* ---- waking ---------------------------------------------------------------------------------- */

void hr_engine_wake(struct hr_engine *engine) {
        if (!atomic_exchange(&engine->asleep, false))
                return;
        (void) pthread_mutex_lock(&engine->sleep_lock);
        (void) pthread_cond_signal(&engine->sleep_condition);
        (void) pthread_mutex_unlock(&engine->sleep_lock);
}

/* The first who finds it asleep wakes it; until it says that it sleeps again it is awake. */
void hr_engine_wake_loop(struct hr_engine *engine) {
        if (!atomic_load(&engine->loop_awake) && !atomic_exchange(&engine->loop_awake, true))
                engine->wake_loop(engine->wake_arg);
}

/* ---- ends ------------------------------------------------------------------------------------ */

void hr_job_post_end(struct hr_engine *engine, struct hr_job *job) {
        HR_ASSERT(job->phase != HR_JOB_ENDED && job->phase != HR_JOB_IDLE);
        HR_ASSERT(!hr_list_is_linked(&job->place));
        job->phase = HR_JOB_ENDED;
        job->ended_ns = hr_clock_now_ns();
        hr_mpsc_push(&engine->out, &job->link);
        atomic_fetch_add(&engine->out_count, 1);
        hr_engine_wake_loop(engine);
}

void hr_engine_job_end(struct hr_job *job) {
        hr_list_remove(&job->place);
        hr_job_post_end(job->engine, job);
}

void hr_engine_job_keep(struct hr_job *job) {
        hr_list_append(&job->engine->kept, &job->place);
}

void hr_job_fail(struct hr_job *job, hr_status status, const char *reason) {
        hr_diag_clear(&job->diag);
        job->status = hr_fail_reason(&job->diag, status, reason, "%s",
                                     status == HR_E_DEADLINE ? "the deadline passed before the end"
                                                             : "cancelled");
}

/* A job that never started, and how long it has waited for that. */
static void job_fail_unstarted(struct hr_job *job, hr_status status) {
        hr_job_fail(job, status, NULL);
        if (status != HR_E_DEADLINE)
                return;
        job->diag.field = "queue_ns";
        job->diag.limit = job->deadline_ns - HR_MIN(job->posted_ns, job->deadline_ns);
        job->diag.actual = hr_clock_now_ns() - job->posted_ns;
}

bool hr_job_is_stopped(struct hr_job *job) {
        int stop = atomic_load(&job->stop);

        if (stop != HR_OK) {
                job_fail_unstarted(job, (hr_status) stop);
                return true;
        }
        if (job->deadline_ns && hr_clock_now_ns() >= job->deadline_ns) {
                job_fail_unstarted(job, HR_E_DEADLINE);
                return true;
        }
        return false;
}

/* ---- the turn -------------------------------------------------------------------------------- */

static void job_enter(struct hr_engine *engine, struct hr_job *job) {
        if (job->phase == HR_JOB_AT_TAP) {
                hr_job_resume(job);
                return;
        }
        if (job->kind == HR_JOB_WORK) {
                hr_list_append(&engine->work, &job->place);
                hr_engine_wake(engine);
                return;
        }
        hr_list_append(&job->lane->waiting, &job->place);
        if (!hr_list_is_linked(&job->lane->link))
                hr_list_append(&engine->lanes, &job->lane->link);
        /* Behind others that wait it waits as well; the look is cheap but a start is not. */
        if (job->lane->waiting.next == &job->place)
                hr_lane_advance(engine, job->lane);
}

/* When the next run goes to its device though nothing has come in. */
static void due_set(struct hr_engine *engine) {
        const struct hr_admission *admission = &engine->admission;
        uint64_t due_ns = UINT64_MAX;

        if (!hr_list_is_empty(&admission->waiting))
                due_ns = hr_admission_due_ns(admission, hr_clock_now_ns());
        if (due_ns == atomic_load(&engine->due_ns))
                return;
        atomic_store(&engine->due_ns, due_ns);
        if (due_ns != UINT64_MAX)
                engine->wake_loop_at(engine->wake_arg, due_ns);
}

static bool is_due(uint64_t due_ns) {
        return due_ns != UINT64_MAX && hr_clock_now_ns() >= due_ns;
}

/* True once for each time that comes: meanwhile another may have been set. */
static bool due_take(struct hr_engine *engine) {
        uint_fast64_t due_ns = atomic_load(&engine->due_ns);

        return is_due(due_ns) &&
               atomic_compare_exchange_strong(&engine->due_ns, &due_ns, UINT64_MAX);
}

/* A look costs less than an exchange, and the flags are raised seldom. */
static bool flag_take(atomic_bool *flag) {
        return atomic_load(flag) && atomic_exchange(flag, false);
}

/* Serves everything that has come in. Under the turn. */
static void engine_step(struct hr_engine *engine) {
        struct hr_mpsc_link *link;
        struct hr_list *place;

        if (atomic_load(&engine->bell))
                atomic_store(&engine->bell, false);
        while ((link = hr_mpsc_pop(&engine->ended))) {
                struct hr_job *job = HR_CONTAINER_OF(link, struct hr_job, link);

                if (job->kind == HR_JOB_RUN && run_job(job)->is_at_tap)
                        hr_job_tapped(engine, job);
                else
                        hr_lane_job_ended(engine, job);
        }
        while ((link = hr_mpsc_pop(&engine->in)))
                job_enter(engine, HR_CONTAINER_OF(link, struct hr_job, link));
        if (flag_take(&engine->cancels_lanes))
                hr_lanes_stop_jobs(engine);
        if (flag_take(&engine->releases))
                hr_lanes_advance(engine);
        hr_lanes_serve(engine);
        due_set(engine);
        while ((place = hr_list_pop(&engine->ending)))
                hr_job_post_end(engine, place_job(place));
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
                hr_engine_wake(engine);
                return;
        }
        atomic_store(&engine->cancels_lanes, true);
        if (job->is_with_loop)
                hr_engine_resume(engine, job);
        else
                engine_enter(engine);
}

void hr_engine_release(struct hr_engine *engine, struct hr_transfer_job *transfers,
                       uint32_t count) {
        for (uint32_t i = 0; i < count; i++)
                atomic_store(&transfers[i].is_held, false);
        atomic_store(&engine->releases, true);
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
        return atomic_load(&engine->out_count) > 0 || atomic_load(&engine->bell) ||
               is_due(atomic_load(&engine->due_ns));
}

void hr_engine_loop_awake(struct hr_engine *engine, bool awake) {
        atomic_store(&engine->loop_awake, awake);
}

bool hr_engine_poll(struct hr_engine *engine) {
        struct hr_mpsc_link *link;
        bool any = false;

        /* Cleared before the try: if somebody else has the turn, he serves the demand, and the loop
         * must not take the bell for news again and again meanwhile. So with what is due. */
        if (flag_take(&engine->bell) || due_take(engine))
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

/* ---- what there is --------------------------------------------------------------------------- */

struct hr_share *hr_engine_share(struct hr_engine *engine) {
        return &engine->admission.top;
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
