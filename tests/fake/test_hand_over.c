/*
 * When a run that waits is handed to its device: the engine on the virtual clock, with one
 * simulated device. This file is the loop's thread, which takes LATENCY_NS to wake up.
 */
#include "daemon/engine.h"

#include "core/clock.h"
#include "tests/fake/studio.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define NEVER UINT64_MAX
#define LATENCY_NS (60 * US)
#define TICK_NS (10 * US)
#define LONG_NS (5 * MS)
#define SHORT_NS (20 * US)

enum { RUNS = 8 };

/* The clock of the engine; this takes the place of the one in core. */
static struct hr_fake_world *clock_world;

uint64_t hr_clock_now_ns(void) {
        return clock_world ? hr_fake_now_ns(clock_world) : 0;
}

static uint64_t long_ns; /* that a sum takes; a product is short */

static uint64_t cost(void *arg, const struct hr_steps *steps, uint32_t first, uint32_t count) {
        uint64_t ns = 0;

        (void) arg;
        for (uint32_t i = first; i < first + count; i++)
                ns += steps->steps[i].op == HR_OP_ADD ? long_ns : SHORT_NS;
        return ns;
}

/* One session of a principal of its own, with a graph of one node. */
struct client {
        struct scene scene;
        struct hr_bound bound;
        struct hr_lane lane;
        struct hr_share principal, session;
};

struct run {
        struct hr_run_job job;
        struct hr_run_input input;
        bool over;
};

struct office {
        struct studio studio;
        struct hr_config config;
        struct hr_engine *engine;
        struct client hog, small;
        uint64_t woken_ns, wake_at_ns;
};

static void wake_loop(void *arg) {
        ((struct office *) arg)->woken_ns = hr_clock_now_ns();
}

static void wake_loop_at(void *arg, uint64_t at_ns) {
        ((struct office *) arg)->wake_at_ns = at_ns;
}

static void client_open(struct office *office, struct client *client, bool is_long,
                        uint32_t n_copies) {
        struct hr_diag diag = {0};
        uint32_t x, op = is_long ? HR_OP_ADD : HR_OP_MUL;

        scene_init(&client->scene, 4);
        x = scene_leaf(&client->scene, HR_LEAF_INPUT, "x");
        scene_output(&client->scene, scene_node(&client->scene, op, x, x, HR_NO_PIN));
        scene_finish(&client->scene);
        hr_engine_turn_take(office->engine);
        client->bound.pipeline =
                studio_pipeline(&office->studio, &client->scene, NULL, NULL, 0, n_copies);
        hr_engine_turn_give(office->engine);
        HR_EXPECT_EQ(hr_pipeline_copies(client->bound.pipeline), n_copies);
        hr_lane_init(&client->lane);
        HR_EXPECT_OK(hr_share_init(&client->principal, hr_engine_share(office->engine),
                                   HR_SHARE_WEIGHT, 1, &diag),
                     &diag);
        HR_EXPECT_OK(hr_share_init(&client->session, &client->principal, HR_SHARE_WEIGHT, 1, &diag),
                     &diag);
}

static void client_close(struct office *office, struct client *client) {
        hr_engine_turn_take(office->engine);
        client->bound.pipeline = hr_pipeline_free(client->bound.pipeline);
        hr_engine_turn_give(office->engine);
        hr_share_deinit(&client->session);
        hr_share_deinit(&client->principal);
        scene_deinit(&client->scene);
}

static void office_open(struct office *office, uint32_t n_copies, uint32_t device_runs) {
        const struct hr_fake_config device = {.sizes_only = true, .compute_ns = cost};
        struct hr_engine_config config = {.config = &office->config,
                                          .wake_loop = wake_loop,
                                          .wake_loop_at = wake_loop_at,
                                          .arg = office};
        struct hr_diag diag = {0};

        *office = (struct office){.woken_ns = NEVER, .wake_at_ns = NEVER};
        long_ns = LONG_NS;
        studio_init(&office->studio, 1, &device);
        clock_world = office->studio.world;
        HR_EXPECT_OK(hr_config_init(&office->config, &diag), &diag);
        office->config.limits.device_runs = device_runs;
        HR_EXPECT_OK(hr_config_finish(&office->config, &diag), &diag);
        config.fleet = office->studio.fleet;
        HR_EXPECT_OK(hr_engine_new(&config, &diag, &office->engine), &diag);
        client_open(office, &office->hog, true, n_copies);
        client_open(office, &office->small, false, 1);
}

static void office_close(struct office *office) {
        client_close(office, &office->small);
        client_close(office, &office->hog);
        hr_engine_stop(office->engine);
        clock_world = NULL;
        studio_deinit(&office->studio);
        office->engine = hr_engine_free(office->engine);
        hr_config_deinit(&office->config);
}

/* The engine's own thread, which has nothing to do here but to look for that, may have the turn and
 * be asked to serve: it does before the clock goes on. */
static void turn_wait(struct office *office) {
        hr_engine_turn_take(office->engine);
        hr_engine_turn_give(office->engine);
}

static void run_over(struct hr_job *job) {
        ((struct run *) job->arg)->over = true;
}

static void run_post(struct office *office, struct client *client, struct run *run) {
        static float memory[4];

        *run = (struct run){0};
        run->input = (struct hr_run_input){memory, sizeof memory};
        run->job.bound = &client->bound;
        run->job.ticket.share = &client->session;
        run->job.run.inputs = &run->input;
        run->job.job.kind = HR_JOB_RUN;
        run->job.job.lane = &client->lane;
        run->job.job.done = run_over;
        run->job.job.arg = run;
        hr_engine_post(office->engine, &run->job.job);
        turn_wait(office);
}

/* The loop's thread is awake for no time. */
static void loop_turn(struct office *office) {
        office->woken_ns = NEVER;
        hr_engine_loop_awake(office->engine, true);
        while (hr_engine_poll(office->engine)) {
        }
        turn_wait(office);
        while (hr_engine_poll(office->engine)) {
        }
        hr_engine_loop_awake(office->engine, false);
}

static bool has_come(uint64_t at_ns) {
        return at_ns != NEVER && hr_clock_now_ns() >= at_ns + LATENCY_NS;
}

static void pass_until(struct office *office, uint64_t until_ns) {
        while (hr_clock_now_ns() < until_ns) {
                hr_fake_run_until(office->studio.world, hr_clock_now_ns() + TICK_NS);
                if (has_come(office->wake_at_ns)) {
                        office->wake_at_ns = NEVER;
                        loop_turn(office);
                }
                if (has_come(office->woken_ns))
                        loop_turn(office);
        }
}

static uint64_t started(const struct run *run) {
        return run->job.run.started_ns;
}

static uint64_t ended(const struct run *run) {
        HR_EXPECT(run->over && run->job.job.status == HR_OK);
        return run->job.run.ended_ns;
}

/* ---- the stream of one ----------------------------------------------------------------------- */

/* From the second run on, whose length is known, the next one is on the device before it ends: it
 * goes at the expected end less the lead, and none stands still between two. */
HR_TEST(the_next_run_is_there_when_one_ends) {
        static const uint32_t slots[] = {2, 3, 8};
        static struct office office;
        static struct run runs[RUNS];

        for (size_t s = 0; s < HR_ARRAY_LENGTH(slots); s++) {
                office_open(&office, slots[s], 8);
                for (int i = 0; i < RUNS; i++)
                        run_post(&office, &office.hog, &runs[i]);
                pass_until(&office, (RUNS + 2) * LONG_NS);
                HR_EXPECT_EQ(ended(&runs[0]), LONG_NS);
                HR_EXPECT_EQ(started(&runs[1]), LONG_NS + LATENCY_NS);
                HR_EXPECT_EQ(ended(&runs[1]), 2 * LONG_NS + LATENCY_NS);
                for (int i = 2; i < RUNS; i++) {
                        HR_EXPECT_EQ(started(&runs[i]),
                                     ended(&runs[i - 1]) - HR_LEAD_NS + LATENCY_NS);
                        HR_EXPECT_EQ(ended(&runs[i]), ended(&runs[i - 1]) + LONG_NS);
                }
                office_close(&office);
        }
}

/* However wrong the estimate is, the second next waits for the end of the one on the device. */
HR_TEST(one_long_run_is_ahead_and_no_more) {
        static const uint64_t lengths[] = {60 * MS, 1 * MS, 30 * MS};
        static struct office office;
        static struct run runs[RUNS * 3];
        int count = 0;

        office_open(&office, 8, 8);
        for (size_t l = 0; l < HR_ARRAY_LENGTH(lengths); l++) {
                const int first = count;

                long_ns = lengths[l];
                for (; count < first + RUNS; count++)
                        run_post(&office, &office.hog, &runs[count]);
                while (!runs[count - 1].over)
                        pass_until(&office, hr_clock_now_ns() + MS);
        }
        for (int i = 2; i < count; i++)
                HR_EXPECT(started(&runs[i]) >= ended(&runs[i - 2]));
        office_close(&office);
}

HR_TEST(one_at_a_time_where_that_is_asked_for) {
        static struct office office;
        static struct run runs[RUNS];

        office_open(&office, 4, 1);
        for (int i = 0; i < RUNS; i++)
                run_post(&office, &office.hog, &runs[i]);
        pass_until(&office, (RUNS + 2) * LONG_NS);
        for (int i = 1; i < RUNS; i++)
                HR_EXPECT_EQ(started(&runs[i]), ended(&runs[i - 1]) + LATENCY_NS);
        office_close(&office);
}

/* ---- somebody else --------------------------------------------------------------------------- */

/* Who comes before the next long run has been handed over goes before it; who comes just after that
 * waits for it, and so for the lead and one long run. */
HR_TEST(who_comes_before_the_hand_over_goes_first) {
        static struct office office;
        static struct run hog[RUNS], early, late;
        uint64_t hand_over_ns;

        office_open(&office, 2, 8);
        for (int i = 0; i < RUNS; i++)
                run_post(&office, &office.hog, &hog[i]);
        pass_until(&office, LONG_NS + 2 * LATENCY_NS);
        hand_over_ns = started(&hog[1]) + LONG_NS - HR_LEAD_NS;
        pass_until(&office, hand_over_ns - TICK_NS);
        run_post(&office, &office.small, &early);
        pass_until(&office, (RUNS - 4) * LONG_NS);
        HR_EXPECT_EQ(started(&early), hand_over_ns + LATENCY_NS);
        HR_EXPECT_EQ(ended(&early), ended(&hog[1]) + SHORT_NS);
        HR_EXPECT_EQ(started(&hog[2]), ended(&hog[1]) + LATENCY_NS); /* both ends are seen then */

        while (!hog[4].over)
                pass_until(&office, hr_clock_now_ns() + TICK_NS);
        hand_over_ns = ended(&hog[4]) + LONG_NS - HR_LEAD_NS;
        pass_until(&office, hand_over_ns + LATENCY_NS);
        run_post(&office, &office.small, &late);
        pass_until(&office, (RUNS + 2) * LONG_NS);
        HR_EXPECT_EQ(started(&hog[6]), hand_over_ns + LATENCY_NS);
        HR_EXPECT_EQ(ended(&late), ended(&hog[6]) + SHORT_NS);
        HR_EXPECT_EQ(ended(&late), hand_over_ns + HR_LEAD_NS + LONG_NS + SHORT_NS);
        HR_EXPECT(started(&hog[7]) > started(&late));
        office_close(&office);
}
