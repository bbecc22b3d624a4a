/*
 * Lanes: which job of a session starts next, and what its end sets free.
 *
 * Everything here happens under the turn, except what a device's thread calls when it has done with
 * a job. What cannot start holds up its own lane and no other.
 *
 * Invariants: a lane is in the engine's list exactly while it is not empty; a started run holds its
 * states' counters until it is finished.
 */
#include "daemon/engine_priv.h"

#include <string.h>

#include "core/clock.h"
#include "daemon/image.h"

void hr_lane_init(struct hr_lane *lane) {
        memset(lane, 0, sizeof *lane);
        hr_list_init(&lane->waiting);
        hr_list_init(&lane->running);
}

static struct hr_transfer_job *transfer_job(struct hr_job *job) {
        HR_ASSERT(job->kind == HR_JOB_TRANSFER);
        return HR_CONTAINER_OF(job, struct hr_transfer_job, job);
}

/* ---- from devices ---------------------------------------------------------------------------- */

/* Thread: any; a device has finished the job. */
static void job_device_done(struct hr_job *job) {
        struct hr_engine *engine = job->engine;

        hr_mpsc_push(&engine->ended, &job->link);
        atomic_store(&engine->bell, true);
        hr_engine_wake_loop(engine);
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

/* ---- starts ---------------------------------------------------------------------------------- */

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
                hr_job_fail(job, HR_E_CANCELLED, NULL);
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
        /* An observed run may wait for its client: it comes in its turn, but takes nobody's room.
         */
        run->ticket.waits_for_somebody = run->at_tap;
        run->ticket.cost_ns = run->bound->cost_ns;
        run->ticket.spread_ns = run->bound->spread_ns;
        if (!hr_admission_ask(&engine->admission, &run->ticket, run->bound->pipeline,
                              hr_clock_now_ns())) {
                engine->stats.turn_waits++;
                return START_WAIT;
        }
        result = run_hand_over(run);
        if (result != START_OK)
                (void) hr_admission_leave(&engine->admission, &run->ticket, 0, 0, NULL);
        return result;
}

static start_result transfer_start(struct hr_job *job) {
        struct hr_transfer_job *transfer = transfer_job(job);
        struct hr_state *state = transfer->transfer.state;
        hr_status status;

        if (atomic_load(&transfer->is_held) || state->runs > 0)
                return START_WAIT;
        transfer->transfer.done = transfer_done;
        transfer->transfer.arg = job;
        if (transfer->transfer.into)
                status = hr_state_copy(&transfer->transfer, &job->diag);
        else
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
        if (hr_job_is_stopped(job))
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
void hr_lane_advance(struct hr_engine *engine, struct hr_lane *lane) {
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
                job->started_ns = job->kind == HR_JOB_RUN ? run_job(job)->run.started_ns
                                                          : hr_clock_now_ns();
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
void hr_lanes_serve(struct hr_engine *engine) {
        struct hr_admission *admission = &engine->admission;
        struct hr_ticket *ticket;

        while (!hr_list_is_empty(&admission->waiting)) {
                ticket = hr_admission_next(admission, hr_clock_now_ns());
                if (!ticket)
                        return;
                hr_lane_advance(engine,
                                HR_CONTAINER_OF(ticket, struct hr_run_job, ticket)->job.lane);
                if (hr_list_is_linked(&ticket->link))
                        return;
        }
}

void hr_lanes_advance(struct hr_engine *engine) {
        HR_LIST_FOR_EACH(link, &engine->lanes)
        hr_lane_advance(engine, HR_CONTAINER_OF(link, struct hr_lane, link));
}

/* ---- ends ------------------------------------------------------------------------------------ */

/* The devices are free of the run; what it took is what the next one is expected to take. */
static void run_leave(struct hr_engine *engine, struct hr_run_job *run) {
        struct hr_bound *bound = run->bound;
        uint64_t cost_ns = 0;

        if (!hr_admission_leave(&engine->admission, &run->ticket, run->run.started_ns,
                                run->run.ended_ns, &cost_ns) ||
            hr_outcome_failed(&run->run.outcome))
                return;
        if (bound->cost_ns == 0) {
                bound->cost_ns = cost_ns;
                return;
        }
        bound->spread_ns = (3 * bound->spread_ns + HR_MAX(cost_ns, bound->cost_ns) -
                            HR_MIN(cost_ns, bound->cost_ns)) /
                           4;
        bound->cost_ns = (3 * bound->cost_ns + cost_ns) / 4;
}

/* What was computed from a file that has become shorter counts for nothing. */
static hr_status check_images(const struct hr_bound *bound, struct hr_diag *diag) {
        for (struct hr_image **image = bound->images; image && *image; image++)
                if (hr_image_check(*image))
                        return hr_fail_reason(diag, HR_E_DATA_LOSS, "FILE",
                                              "a model file has become shorter");
        return HR_OK;
}

void hr_lane_job_ended(struct hr_engine *engine, struct hr_job *job) {
        struct hr_lane *lane = job->lane;
        const struct hr_pipeline *pipeline =
                job->kind == HR_JOB_RUN ? run_job(job)->bound->pipeline : NULL;
        bool held = pipeline && hr_pipeline_is_held(pipeline);

        HR_ASSERT(job->phase == HR_JOB_RUNNING);
        hr_list_remove(&job->place);
        if (job->kind == HR_JOB_RUN) {
                struct hr_run_job *run = run_job(job);

                for (uint32_t i = 0; i < run->bound->state_count; i++)
                        run->bound->states[i]->runs--;
                hr_run_finish(&run->run);
                run_leave(engine, run);
                run->moves = hr_pipeline_moves(run->bound->pipeline);
                lane->is_observed = lane->is_observed && !run->at_tap;
                if (hr_pipeline_wants_move(run->bound->pipeline) &&
                    !hr_list_is_linked(&run->bound->settling)) {
                        hr_list_append(&engine->settling, &run->bound->settling);
                        hr_engine_wake(engine);
                }
                job->status = run->run.outcome.diag.status;
                if (job->status != HR_OK)
                        job->diag = run->run.outcome.diag;
                else
                        job->status = check_images(run->bound, &job->diag);
        } else {
                struct hr_transfer_job *transfer = transfer_job(job);

                transfer->transfer.state->transfers--;
                job->status = transfer->transfer.outcome.diag.status;
                if (job->status != HR_OK)
                        job->diag = transfer->transfer.outcome.diag;
        }
        job_leave(engine, job);
        if (job->status == HR_E_DEVICE_LOST)
                hr_engine_wake(engine);
        if (held && !hr_pipeline_is_held(pipeline))
                hr_lanes_advance(engine);
        else
                hr_lane_advance(engine, lane);
}

void hr_job_resume(struct hr_job *job) {
        int stop = atomic_load(&job->stop);

        job->phase = HR_JOB_RUNNING;
        if (stop != HR_OK)
                hr_run_cancel(&run_job(job)->run, (hr_status) stop, NULL);
        hr_run_resume(&run_job(job)->run);
}

/* A run waits at a tap: the loop tells the client, unless there is nothing to wait for. */
void hr_job_tapped(struct hr_engine *engine, struct hr_job *job) {
        struct hr_run_job *run = run_job(job);

        run->is_at_tap = false;
        if (atomic_load(&job->stop) != HR_OK || hr_outcome_failed(&run->run.outcome)) {
                hr_job_resume(job);
                return;
        }
        job->phase = HR_JOB_AT_TAP;
        hr_mpsc_push(&engine->out, &job->link);
        atomic_fetch_add(&engine->out_count, 1);
        hr_engine_wake_loop(engine);
}

/* Jobs in lanes that have been told to stop: waiting ones end, running ones are cancelled. */
void hr_lanes_stop_jobs(struct hr_engine *engine) {
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
                        (void) hr_job_is_stopped(job);
                        job_leave(engine, job);
                }
                hr_lane_advance(engine, lane);
        }
}
