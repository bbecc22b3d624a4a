/* The crossing: order of lanes, slots, transfers, cancellation, deadlines, ends exactly once. */
#include "daemon/engine.h"

#include <sched.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/thread.h"
#include "tests/build.h"
#include "tests/harness.h"

#define RUNS 64

struct fixture {
        struct hr_config config;
        struct hr_device *device;
        struct hr_fleet *fleet;
        struct hr_engine *engine;
        struct hr_graph *graph;
        struct hr_plan *plan;
        struct hr_bound bound;
        struct hr_lane lane;
        atomic_uint wakes;
        unsigned done;
        unsigned order[RUNS * 4];
};

static struct fixture *fixture_of; /* done() has no other way to it */

static void wake_loop(void *arg) {
        struct fixture *fixture = arg;

        atomic_fetch_add(&fixture->wakes, 1);
}

static void wake_loop_at(void *arg, uint64_t at_ns) {
        (void) at_ns; /* whoever polls all the time need not be told */
        wake_loop(arg);
}

/* delay_us makes each run last that long, so that others wait. */
static void fixture_open(struct fixture *fixture, uint32_t delay_us) {
        struct hr_backend_config backend = {.backend = "cpu",
                                            .name = "cpu0",
                                            .threads = 1,
                                            .isa = "auto",
                                            .delay_us = delay_us};
        struct hr_engine_config config = {.config = &fixture->config,
                                          .wake_loop = wake_loop,
                                          .wake_loop_at = wake_loop_at,
                                          .arg = fixture};
        struct hr_diag diag = {0};

        memset(fixture, 0, sizeof *fixture);
        fixture_of = fixture;
        HR_EXPECT_OK(hr_config_init(&fixture->config, &diag), &diag);
        HR_EXPECT_OK(hr_config_finish(&fixture->config, &diag), &diag);
        HR_EXPECT_OK(hr_backend_device_new(&backend, &diag, &fixture->device), &diag);
        HR_EXPECT_OK(hr_fleet_new(&fixture->device, 1, &diag, &fixture->fleet), &diag);
        config.fleet = fixture->fleet;
        HR_EXPECT_OK(hr_engine_new(&config, &diag, &fixture->engine), &diag);
        hr_lane_init(&fixture->lane);
}

/* y = 3 x, of four floats; observed runs show y. */
static void fixture_bind(struct fixture *fixture) {
        struct hr_build *build = hr_build_new();
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 1, 1, 1);
        uint32_t y = hr_build_node(build, HR_OP_SCALE, HR_TYPE_F32, 4, 1, 1, 1, 1, &x);
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_leaf_home homes[1] = {{0}};
        struct hr_plan_request plan_request = {.fleet = fixture->fleet, .homes = homes};
        struct hr_pipeline_request request = {.fleet = fixture->fleet, .homes = homes};
        struct hr_diag diag = {0};

        hr_build_tensor(build, x)->flags |= HR_TENSOR_INPUT;
        hr_build_tensor(build, y)->flags |= HR_TENSOR_OUTPUT;
        hr_build_param_f32(build, y, 0, 3);
        fixture->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(fixture->graph, &limits, &diag), &diag);
        plan_request.graph = fixture->graph;
        plan_request.taps = &y;
        plan_request.tap_count = 1;
        HR_EXPECT_OK(hr_plan_new(&plan_request, &diag, &fixture->plan), &diag);
        request.plan = fixture->plan;
        request.graph = fixture->graph;
        hr_engine_turn_take(fixture->engine);
        HR_EXPECT_OK(hr_pipeline_new(&request, &diag, &fixture->bound.pipeline), &diag);
        hr_engine_turn_give(fixture->engine);
}

static void fixture_close(struct fixture *fixture) {
        if (fixture->bound.pipeline) {
                hr_engine_turn_take(fixture->engine);
                fixture->bound.pipeline = hr_pipeline_free(fixture->bound.pipeline);
                hr_engine_turn_give(fixture->engine);
        }
        fixture->plan = hr_plan_unref(fixture->plan);
        fixture->graph = hr_graph_unref(fixture->graph);
        hr_engine_stop(fixture->engine);
        fixture->fleet = hr_fleet_free(fixture->fleet);
        fixture->engine = hr_engine_free(fixture->engine);
        fixture->device = hr_device_unref(fixture->device);
        hr_config_deinit(&fixture->config);
}

static void poll_until(struct fixture *fixture, unsigned done) {
        uint64_t end_ns = hr_clock_now_ns() + 15 * HR_NS_PER_S;

        while (fixture->done < done) {
                (void) hr_engine_poll(fixture->engine);
                HR_EXPECT(hr_clock_now_ns() < end_ns);
                (void) sched_yield();
        }
        HR_EXPECT_EQ(fixture->done, done);
}

/* ---- runs ------------------------------------------------------------------------------------ */

struct run {
        struct hr_run_job job;
        struct hr_run_input input;
        struct hr_run_output output;
        float x[4], y[4];
        unsigned number;
};

static void run_done(struct hr_job *job) {
        struct run *run = job->arg;

        fixture_of->order[fixture_of->done++] = run->number;
}

static void run_prepare(struct fixture *fixture, struct run *run, unsigned number) {
        *run = (struct run){.number = number, .x = {(float) number, 1, 2, 3}};
        run->input = (struct hr_run_input){run->x, sizeof run->x};
        run->output = (struct hr_run_output){1, run->y, sizeof run->y};
        run->job.bound = &fixture->bound;
        run->job.run.inputs = &run->input;
        run->job.run.outputs = &run->output;
        run->job.run.output_count = 1;
        run->job.job.kind = HR_JOB_RUN;
        run->job.job.lane = &fixture->lane;
        run->job.job.done = run_done;
        run->job.job.arg = run;
}

HR_TEST(runs_end_in_order_and_right) {
        static struct fixture fixture;
        static struct run runs[RUNS];

        fixture_open(&fixture, 0);
        fixture_bind(&fixture);
        for (unsigned i = 0; i < RUNS; i++) {
                run_prepare(&fixture, &runs[i], i);
                hr_engine_post(fixture.engine, &runs[i].job.job);
        }
        poll_until(&fixture, RUNS);
        for (unsigned i = 0; i < RUNS; i++) {
                HR_EXPECT_EQ(fixture.order[i], i);
                HR_EXPECT_EQ(runs[i].job.job.status, HR_OK);
                HR_EXPECT(runs[i].y[0] == 3 * (float) i && runs[i].y[3] == 9);
                HR_EXPECT(runs[i].job.job.started_ns >= runs[i].job.job.posted_ns);
        }
        HR_EXPECT(hr_engine_stats(fixture.engine).jobs >= RUNS);
        fixture_close(&fixture);
}

/* ---- observed runs --------------------------------------------------------------------------- */

struct observed {
        struct run run;
        float shown[4];
        unsigned taps;
};

static void observed_at_tap(struct hr_job *job) {
        ++((struct observed *) job->arg)->taps;
}

static void observed_prepare(struct fixture *fixture, struct observed *observed, unsigned number) {
        run_prepare(fixture, &observed->run, number);
        observed->taps = 0;
        observed->run.job.at_tap = observed_at_tap;
        observed->run.job.run.tap_data = observed->shown;
}

static void poll_until_tap(struct fixture *fixture, const struct observed *observed) {
        uint64_t end_ns = hr_clock_now_ns() + 15 * HR_NS_PER_S;

        while (observed->taps == 0) {
                (void) hr_engine_poll(fixture->engine);
                HR_EXPECT(hr_clock_now_ns() < end_ns);
        }
        HR_EXPECT_EQ(observed->taps, 1);
}

/* Runs before it are over or under way, those behind it wait; other lanes do not. */
HR_TEST(an_observed_run_holds_its_lane) {
        static struct fixture fixture;
        static struct observed observed;
        static struct run before, behind, elsewhere;
        struct hr_lane other;

        fixture_open(&fixture, 0);
        fixture_bind(&fixture);
        hr_lane_init(&other);
        run_prepare(&fixture, &before, 0);
        observed_prepare(&fixture, &observed, 1);
        run_prepare(&fixture, &behind, 2);
        hr_engine_post(fixture.engine, &before.job.job);
        hr_engine_post(fixture.engine, &observed.run.job.job);
        hr_engine_post(fixture.engine, &behind.job.job);
        poll_until_tap(&fixture, &observed);
        HR_EXPECT_EQ(observed.shown[0], 3.0F);
        HR_EXPECT_EQ(fixture.done, 1);
        HR_EXPECT_EQ(behind.job.job.started_ns, 0);
        elsewhere = (struct run){0}; /* a sync in a lane of its own ends at once */
        elsewhere.number = 3;
        elsewhere.job.job.kind = HR_JOB_SYNC;
        elsewhere.job.job.lane = &other;
        elsewhere.job.job.done = run_done;
        elsewhere.job.job.arg = &elsewhere;
        hr_engine_post(fixture.engine, &elsewhere.job.job);
        poll_until(&fixture, 2);
        hr_engine_resume(fixture.engine, &observed.run.job.job);
        poll_until(&fixture, 4);
        HR_EXPECT(fixture.order[0] == 0 && fixture.order[1] == 3 && fixture.order[2] == 1 &&
                  fixture.order[3] == 2);
        HR_EXPECT_EQ(observed.run.job.job.status, HR_OK);
        HR_EXPECT_EQ(observed.run.y[0], 3.0F);
        HR_EXPECT_EQ(behind.y[0], 6.0F);
        fixture_close(&fixture);
}

/* Cancelled while it waits, on its way to the loop, or before it has started. */
HR_TEST(a_run_at_a_tap_is_cancelled) {
        static struct fixture fixture;
        static struct observed observed;

        fixture_open(&fixture, 0);
        fixture_bind(&fixture);
        for (unsigned i = 0; i < 30; i++) {
                observed_prepare(&fixture, &observed, i);
                hr_engine_post(fixture.engine, &observed.run.job.job);
                if (i % 3 == 0)
                        poll_until_tap(&fixture, &observed);
                else if (i % 3 == 1)
                        (void) sched_yield();
                hr_engine_cancel(fixture.engine, &observed.run.job.job, HR_E_CANCELLED);
                poll_until(&fixture, i + 1);
                HR_EXPECT_EQ(observed.run.job.job.status, HR_E_CANCELLED);
                HR_EXPECT_EQ(observed.taps, i % 3 == 0 ? 1 : 0);
        }
        fixture_close(&fixture);
}

/* ---- early ends ------------------------------------------------------------------------------ */

HR_TEST(waiting_runs_are_cancelled_at_once) {
        static struct fixture fixture;
        static struct run runs[8];
        unsigned cancelled = 0;

        fixture_open(&fixture, 100000);
        fixture_bind(&fixture);
        for (unsigned i = 0; i < 8; i++) {
                run_prepare(&fixture, &runs[i], i);
                hr_engine_post(fixture.engine, &runs[i].job.job);
        }
        for (unsigned i = 1; i < 8; i++)
                hr_engine_cancel(fixture.engine, &runs[i].job.job, HR_E_CANCELLED);
        hr_engine_cancel(fixture.engine, &runs[3].job.job, HR_E_DEADLINE); /* the first call wins */
        poll_until(&fixture, 8);
        for (unsigned i = 1; i < 8; i++)
                cancelled += runs[i].job.job.status == HR_E_CANCELLED;
        HR_EXPECT_EQ(runs[0].job.job.status, HR_OK);
        HR_EXPECT_EQ(cancelled, 7);
        HR_EXPECT_EQ(runs[7].job.run.sequence, 0); /* it never started */
        HR_EXPECT_EQ(runs[7].job.job.started_ns, 0);
        fixture_close(&fixture);
}

HR_TEST(running_runs_end_once_when_cancelled) {
        static struct fixture fixture;
        static struct run run;

        fixture_open(&fixture, 50000);
        fixture_bind(&fixture);
        for (unsigned round = 0; round < 5; round++) {
                fixture.done = 0;
                run_prepare(&fixture, &run, round);
                hr_engine_post(fixture.engine, &run.job.job);
                hr_engine_cancel(fixture.engine, &run.job.job, HR_E_CANCELLED);
                hr_engine_cancel(fixture.engine, &run.job.job, HR_E_CANCELLED);
                poll_until(&fixture, 1);
                HR_EXPECT_EQ(run.job.job.status, HR_E_CANCELLED);
        }
        /* The slot is free again. */
        fixture.done = 0;
        run_prepare(&fixture, &run, 5);
        hr_engine_post(fixture.engine, &run.job.job);
        poll_until(&fixture, 1);
        HR_EXPECT_EQ(run.job.job.status, HR_OK);
        HR_EXPECT(run.y[0] == 15);
        fixture_close(&fixture);
}

/* x of each run of a chain is y of the one before: 3, 9, 27... */
HR_TEST(a_chain_feeds_from_run_to_run) {
        static struct run runs[6];
        static struct hr_run_job *needs[6];
        struct hr_chain chain = {0};
        struct fixture fixture;

        fixture_open(&fixture, 1000);
        fixture_bind(&fixture);
        for (unsigned i = 0; i < 6; i++) {
                run_prepare(&fixture, &runs[i], i);
                runs[i].job.chain = &chain;
                if (i == 0)
                        continue;
                runs[i].input.data = runs[i - 1].y;
                needs[i] = &runs[i - 1].job;
                runs[i].job.needs = &needs[i];
                runs[i].job.need_count = 1;
        }
        for (unsigned i = 0; i < 6; i++)
                hr_engine_post(fixture.engine, &runs[i].job.job);
        poll_until(&fixture, 6);
        for (unsigned i = 0; i < 6; i++) {
                HR_EXPECT_EQ(runs[i].job.job.status, HR_OK);
                HR_EXPECT_EQ(fixture.order[i], i);
        }
        HR_EXPECT_EQ(runs[5].y[1], 729);
        fixture_close(&fixture);
}

/* After a failure nothing of the chain starts; what is of no chain does. */
HR_TEST(a_chain_ends_with_its_first_failure) {
        static struct run runs[5];
        struct hr_chain chain = {0};
        struct fixture fixture;

        fixture_open(&fixture, 1000);
        fixture_bind(&fixture);
        for (unsigned i = 0; i < 5; i++) {
                run_prepare(&fixture, &runs[i], i);
                if (i < 4)
                        runs[i].job.chain = &chain;
        }
        runs[1].input.bytes = 3;
        for (unsigned i = 0; i < 5; i++)
                hr_engine_post(fixture.engine, &runs[i].job.job);
        poll_until(&fixture, 5);
        HR_EXPECT_EQ(runs[0].job.job.status, HR_OK);
        HR_EXPECT_EQ(runs[1].job.job.status, HR_E_INVALID);
        HR_EXPECT_EQ(runs[2].job.job.status, HR_E_CANCELLED);
        HR_EXPECT_EQ(runs[3].job.job.status, HR_E_CANCELLED);
        HR_EXPECT_EQ(runs[4].job.job.status, HR_OK);
        HR_EXPECT_EQ(hr_fleet_exec_stats(fixture.fleet).runs_started, 2);
        fixture_close(&fixture);
}

HR_TEST(a_run_past_its_deadline_never_starts) {
        static struct fixture fixture;
        static struct run runs[2];

        fixture_open(&fixture, 60000);
        fixture_bind(&fixture);
        run_prepare(&fixture, &runs[0], 0);
        run_prepare(&fixture, &runs[1], 1);
        runs[1].job.job.deadline_ns = hr_clock_now_ns() + 5 * HR_NS_PER_MS;
        hr_engine_post(fixture.engine, &runs[0].job.job);
        hr_engine_post(fixture.engine, &runs[1].job.job);
        poll_until(&fixture, 2);
        HR_EXPECT_EQ(runs[0].job.job.status, HR_OK);
        HR_EXPECT_EQ(runs[1].job.job.status, HR_E_DEADLINE);
        HR_EXPECT_EQ(runs[1].job.job.started_ns, 0);
        fixture_close(&fixture);
}

/* ---- sync and work --------------------------------------------------------------------------- */

static void mark_done(struct hr_job *job) {
        fixture_of->order[fixture_of->done++] = (unsigned) (uintptr_t) job->arg;
}

HR_TEST(sync_ends_after_everything_before_it) {
        static struct fixture fixture;
        static struct run runs[4];
        static struct hr_job sync;

        fixture_open(&fixture, 10000);
        fixture_bind(&fixture);
        sync = (struct hr_job){.kind = HR_JOB_SYNC,
                               .lane = &fixture.lane,
                               .done = mark_done,
                               .arg = (void *) (uintptr_t) 100};
        for (unsigned i = 0; i < 4; i++) {
                run_prepare(&fixture, &runs[i], i);
                hr_engine_post(fixture.engine, &runs[i].job.job);
                if (i == 2)
                        hr_engine_post(fixture.engine, &sync);
        }
        poll_until(&fixture, 5);
        HR_EXPECT_EQ(fixture.order[3], 100);
        HR_EXPECT_EQ(fixture.order[4], 3);
        fixture.done = 0; /* with nothing before it, at once */
        hr_engine_post(fixture.engine, &sync);
        poll_until(&fixture, 1);
        fixture_close(&fixture);
}

static atomic_uint work_calls, cancel_calls;

static void work_short(struct hr_job *job) {
        atomic_fetch_add(&work_calls, 1);
        job->status = HR_OK;
        hr_engine_job_end(job);
}

static void work_kept(struct hr_job *job) {
        atomic_fetch_add(&work_calls, 1);
        hr_engine_job_keep(job);
}

static void kept_cancel(struct hr_job *job) {
        atomic_fetch_add(&cancel_calls, 1);
        hr_engine_job_end(job);
}

HR_TEST(work_runs_in_order_on_the_engines_thread) {
        static struct fixture fixture;
        static struct hr_job jobs[100];

        fixture_open(&fixture, 0);
        atomic_store(&work_calls, 0);
        for (unsigned i = 0; i < 100; i++) {
                jobs[i] = (struct hr_job){
                        .work = work_short, .done = mark_done, .arg = (void *) (uintptr_t) i};
                hr_engine_post(fixture.engine, &jobs[i]);
        }
        poll_until(&fixture, 100);
        for (unsigned i = 0; i < 100; i++)
                HR_EXPECT_EQ(fixture.order[i], i);
        HR_EXPECT_EQ(atomic_load(&work_calls), 100);
        HR_EXPECT(atomic_load(&fixture.wakes) > 0); /* the loop never said that it is awake */
        fixture_close(&fixture);
}

HR_TEST(kept_work_ends_when_it_is_cancelled) {
        static struct fixture fixture;
        static struct hr_job job;

        fixture_open(&fixture, 0);
        for (unsigned round = 0; round < 20; round++) {
                atomic_store(&work_calls, 0);
                atomic_store(&cancel_calls, 0);
                fixture.done = 0;
                job = (struct hr_job){.work = work_kept, .cancel = kept_cancel, .done = mark_done};
                hr_engine_post(fixture.engine, &job);
                while (round % 2 && atomic_load(&work_calls) == 0)
                        (void) sched_yield();
                hr_engine_cancel(fixture.engine, &job, HR_E_CANCELLED);
                poll_until(&fixture, 1);
                HR_EXPECT_EQ(job.status, HR_E_CANCELLED);
                HR_EXPECT_EQ(atomic_load(&cancel_calls), 1);
        }
        fixture_close(&fixture);
}

HR_TEST(an_awake_loop_is_not_woken) {
        static struct fixture fixture;
        static struct hr_job job;

        fixture_open(&fixture, 0);
        hr_engine_loop_awake(fixture.engine, true);
        job = (struct hr_job){.work = work_short, .done = mark_done};
        hr_engine_post(fixture.engine, &job);
        while (!hr_engine_has_news(fixture.engine))
                (void) sched_yield();
        poll_until(&fixture, 1);
        HR_EXPECT_EQ(atomic_load(&fixture.wakes), 0);
        fixture_close(&fixture);
}
