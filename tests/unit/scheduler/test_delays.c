/*
 * Runs under random delays in every queue: two, three and four isolated devices, 1 to 8 slots, one
 * pipeline for all runs or a new one every few runs. Outputs have the bits of one device without
 * delays, and every sequence number comes back once and in order.
 *
 * The graph of the comparison sends values back and forth, uses some on several devices, and
 * carries a state from run to run. HR_SEED=N replays one seed, HEADRACE_FULL=1 runs many.
 */
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"
#include "tests/unit/scheduler/delays.h"

enum { WIDTH = 64, RUNS = 18, PER_PIPELINE = 5, SLOTS_MOST = 8 };

struct web {
        struct sketch sketch;
        struct hr_graph *graph;
        uint32_t weight, state, echo, mix;
};

/* What runs give, by sequence number. */
struct catch {
        float echo[RUNS][WIDTH], mix[RUNS][WIDTH], state[WIDTH];
};

static void web_init(struct web *web, uint32_t devices) {
        struct sketch *sketch = &web->sketch;
        int32_t first = 0, middle = (int32_t) (devices > 1), last = (int32_t) devices - 1;
        int32_t third = devices > 2 ? 2 : 0;
        uint32_t x, half, one, a, b, c, d;

        sketch_init(sketch, WIDTH);
        x = sketch_leaf(sketch, HR_LEAF_INPUT, "x");
        web->weight = sketch_leaf(sketch, HR_LEAF_WEIGHT, "w");
        web->state = sketch_leaf(sketch, HR_LEAF_STATE, "s");
        half = sketch_constant(sketch, 0.5F);
        one = sketch_constant(sketch, 1);
        a = sketch_node(sketch, HR_OP_ADD, x, web->weight, first);
        b = sketch_node(sketch, HR_OP_MUL, a, half, middle);
        c = sketch_node(sketch, HR_OP_ADD, b, web->state, last);
        d = sketch_node(sketch, HR_OP_SUB, c, a, first);
        d = sketch_node(sketch, HR_OP_MUL, d, b, third);
        d = sketch_in_place(sketch, HR_OP_MUL, d, d, half, third);
        a = sketch_in_place(sketch, HR_OP_MUL, web->state, web->state, half, last);
        a = sketch_in_place(sketch, HR_OP_ADD, a, web->state, b, last);
        d = sketch_node(sketch, HR_OP_ADD, d, a, middle);
        web->mix = sketch_node(sketch, HR_OP_ADD, d, c, first);
        b = sketch_node(sketch, HR_OP_ADD, x, one, first);
        for (int32_t i = 1; i < (int32_t) devices; ++i)
                b = sketch_node(sketch, i % 2 ? HR_OP_SUB : HR_OP_ADD, b, one, i);
        web->echo = sketch_node(sketch, devices % 2 ? HR_OP_SUB : HR_OP_ADD, b, one, last);
        if (devices % 2 == 0)
                web->echo = sketch_node(sketch, HR_OP_SUB, web->echo, one, first);
        sketch_output(sketch, web->mix);
        sketch_output(sketch, web->echo);
        web->graph = sketch_finish(sketch);
}

static void web_deinit(struct web *web) {
        hr_graph_unref(web->graph);
        sketch_deinit(&web->sketch);
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

/* The numbers of runs in the order in which they ended. */
struct ends {
        atomic_uint count;
        uint32_t numbers[4096];
        hr_run_done_fn done; /* of a ride */
};

static struct ends ends;

/* `sequence` counts per pipeline; the number of a run is what its input says. */
static void note_end(struct hr_run *run, void *arg) {
        uint32_t at = atomic_fetch_add(&ends.count, 1);

        HR_EXPECT(at < HR_ARRAY_LENGTH(ends.numbers));
        ends.numbers[at] = (uint32_t) * (const float *) run->inputs[0].data;
        ends.done(run, arg);
}

/* Before the first run starts. */
static void ends_init(void) {
        struct ride ride;

        ride_init(&ride);
        ends.done = ride.run.done;
        ride_deinit(&ride);
        atomic_store(&ends.count, 0);
}

static void ends_check(uint32_t count) {
        HR_EXPECT_EQ(atomic_load(&ends.count), count);
        for (uint32_t i = 0; i < count; ++i)
                HR_EXPECT_EQ(ends.numbers[i], i);
}

static void shoot(struct ride *ride, const struct web *web, struct hr_pipeline *pipeline, float *in,
                  uint32_t number, struct catch *got) {
        struct hr_diag diag = {0};

        ride_init(ride);
        for (int i = 0; i < WIDTH; ++i)
                in[i] = (float) number;
        ride->inputs[0] = (struct hr_run_input){.data = in, .bytes = WIDTH * sizeof(float)};
        ride->outputs[0] = (struct hr_run_output){
                .tensor = web->echo, .data = got->echo[number], .bytes = WIDTH * sizeof(float)};
        ride->outputs[1] = (struct hr_run_output){
                .tensor = web->mix, .data = got->mix[number], .bytes = WIDTH * sizeof(float)};
        ride->run.output_count = 2;
        ride->run.done = note_end;
        HR_EXPECT_OK(ride_start(ride, pipeline, &diag), &diag);
}

/* The runs of one seed: in flight are as many as there are slots, over pipelines that change every
 * few runs unless one serves all. */
static void run_web(struct rig *rig, const struct web *web, const struct hr_leaf_home *homes,
                    uint32_t n_copies, bool reuse, struct catch *got) {
        static struct ride rides[RUNS];
        static float in[RUNS][WIDTH];
        struct hr_pipeline *pipelines[RUNS] = {NULL}, *pipeline = NULL;
        struct hr_state_use use = {0}, *states[1] = {&use};
        uint32_t taken_back = 0;

        memset(got, 0, sizeof *got);
        ends_init();
        for (uint32_t n = 0; n < RUNS; ++n) {
                if (!pipeline || (!reuse && n % PER_PIPELINE == 0)) {
                        pipeline = rig_pipeline(rig, web->graph, web->sketch.pins, homes, n_copies,
                                                states, 1);
                        pipelines[n] = pipeline;
                        HR_EXPECT_EQ(hr_pipeline_copies(pipeline), n_copies);
                }
                while (!hr_pipeline_has_slot(pipeline)) {
                        HR_EXPECT_EQ(ride_wait(&rides[taken_back]), HR_OK);
                        ride_deinit(&rides[taken_back++]);
                }
                shoot(&rides[n], web, pipeline, in[n], n, got);
        }
        for (; taken_back < RUNS; ++taken_back) {
                HR_EXPECT_EQ(ride_wait(&rides[taken_back]), HR_OK);
                ride_deinit(&rides[taken_back]);
        }
        for (uint32_t n = 0; n < RUNS; ++n)
                hr_pipeline_free(pipelines[n]);
        if (reuse)
                ends_check(RUNS);
        HR_EXPECT_EQ(atomic_load(&ends.count), RUNS);
}

static struct hr_buffer *home_new(struct rig *rig, uint32_t device, hr_buffer_usage usage,
                                  float value) {
        struct hr_buffer *buffer = NULL;

        HR_EXPECT_OK(hr_buffer_new(rig->devices[device], WIDTH * sizeof(float), usage, &rig->diag,
                                   &buffer),
                     &rig->diag);
        for (int i = 0; i < WIDTH; ++i)
                ((float *) buffer->host_base)[i] = value + (float) i / 16;
        return buffer;
}

static void catch_web(const struct web *web, uint32_t devices, uint64_t seed, uint32_t us_most,
                      uint32_t n_copies, bool reuse, struct catch *got) {
        const struct rig_device isolated[4] = {
                {.isolated = true}, {.isolated = true}, {.isolated = true}, {.isolated = true}};
        struct hr_leaf_home homes[8] = {{0}};
        struct rig rig;

        rig_init(&rig, isolated, devices);
        if (us_most)
                rig_delay(&rig, seed, us_most, 3);
        homes[web->weight].buffer = home_new(&rig, devices / 2, HR_USAGE_WEIGHTS, 0.25F);
        homes[web->state].buffer = home_new(&rig, devices - 1, HR_USAGE_ANY, -1);
        run_web(&rig, web, homes, n_copies, reuse, got);
        memcpy(got->state, homes[web->state].buffer->host_base, sizeof got->state);
        hr_buffer_unref(homes[web->weight].buffer);
        hr_buffer_unref(homes[web->state].buffer);
        HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).device_waits, 0);
        rig_deinit(&rig);
}

static void one_seed(uint64_t seed) {
        static const uint32_t slots[] = {1, 2, 3, 4, 8};
        static struct catch expected, got;
        struct dice dice;

        dice_init(&dice, seed);
        for (uint32_t devices = 2; devices <= 4; ++devices) {
                struct web web, single;

                web_init(&web, devices);
                /* The same values: what differs are pins, and how the echo comes about. */
                web_init(&single, 1);
                catch_web(&single, 1, 0, 0, 1, true, &expected);
                web_deinit(&single);
                for (uint32_t i = 0; i < 2 * HR_ARRAY_LENGTH(slots); ++i) {
                        uint32_t us_most = 20 + dice_roll(&dice, 400);
                        bool reuse = i % 2;

                        catch_web(&web, devices, seed * 100 + i, us_most, slots[i / 2], reuse,
                                  &got);
                        if (memcmp(&got, &expected, sizeof got) == 0)
                                continue;
                        hr_test_fail(__FILE__, __LINE__,
                                     "HR_SEED=%llu: %u devices, %u slots, %s: bits differ",
                                     (unsigned long long) seed, devices, slots[i / 2],
                                     reuse ? "one pipeline" : "many pipelines");
                }
                web_deinit(&web);
        }
}

/* 540 runs per seed. */
HR_TEST_LIMIT(bits_are_those_of_one_device, 280) {
        const char *only = getenv("HR_SEED");
        uint64_t first = only ? strtoull(only, NULL, 10) : 1;
        uint64_t count = only ? 1 : getenv("HEADRACE_FULL") ? 12 : 3;

        printf("seeds %llu to %llu\n", (unsigned long long) first,
               (unsigned long long) (first + count - 1));
        for (uint64_t seed = first; seed < first + count; ++seed)
                one_seed(seed);
}

/* ---- Echo --------------------------------------------------------------------------------------
 */

static void echo(struct rig *rig, uint32_t devices, uint32_t n_copies, uint32_t count) {
        struct ride *rides = calloc(n_copies, sizeof *rides);
        float(*in)[WIDTH] = calloc(n_copies, sizeof *in);
        float(*out)[WIDTH] = calloc(n_copies, sizeof *out);
        struct sketch sketch;
        struct hr_pipeline *pipeline;
        struct hr_graph *graph;
        uint32_t at, zero, started = 0;

        sketch_init(&sketch, WIDTH);
        at = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        zero = sketch_constant(&sketch, 0);
        for (uint32_t d = 0; d < devices; ++d)
                at = sketch_node(&sketch, HR_OP_ADD, at, zero, (int32_t) d);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        pipeline = rig_pipeline(rig, graph, sketch.pins, NULL, n_copies, NULL, 0);
        ends_init();
        for (uint32_t n = 0; n < count; ++n) {
                for (; started < count && hr_pipeline_has_slot(pipeline); ++started) {
                        struct ride *ride = &rides[started % n_copies];
                        float *values = in[started % n_copies];

                        ride_init(ride);
                        for (int i = 0; i < WIDTH; ++i)
                                values[i] = (float) started;
                        ride->inputs[0] = (struct hr_run_input){values, sizeof in[0]};
                        ride->outputs[0] = (struct hr_run_output){
                                .tensor = at, .data = out[started % n_copies], sizeof out[0]};
                        ride->run.output_count = 1;
                        ride->run.done = note_end;
                        HR_EXPECT_OK(ride_start(ride, pipeline, &rig->diag), &rig->diag);
                        HR_EXPECT_EQ(ride->run.sequence, started);
                }
                HR_EXPECT_EQ(ride_wait(&rides[n % n_copies]), HR_OK);
                HR_EXPECT_EQ(rides[n % n_copies].run.sequence, n);
                for (int i = 0; i < WIDTH; ++i)
                        HR_EXPECT_EQ(out[n % n_copies][i], n);
                ride_deinit(&rides[n % n_copies]);
        }
        ends_check(count);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        free(rides);
        free(in);
        free(out);
}

HR_TEST_LIMIT(echo_returns_every_number_once_in_order, 280) {
        static const uint32_t slots[] = {1, 2, 3, 4, 8, 16};
        const struct rig_device isolated[4] = {
                {.isolated = true}, {.isolated = true}, {.isolated = true}, {.isolated = true}};
        bool full = getenv("HEADRACE_FULL");
        const char *only = getenv("HR_SEED");
        uint64_t seed = only ? strtoull(only, NULL, 10) : 1;

        printf("seed %llu\n", (unsigned long long) seed);
        for (uint32_t devices = 2; devices <= 4; ++devices) {
                struct rig rig;

                rig_init(&rig, isolated, devices);
                rig_delay(&rig, seed, 100, 4);
                for (size_t i = 0; i < HR_ARRAY_LENGTH(slots); ++i)
                        echo(&rig, devices, slots[i], full ? 1500 : 60);
                HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).device_waits, 0);
                rig_deinit(&rig);
        }
}

/* As many devices as a rig has, one after the other, and as many slots as a plan decides on. */
HR_TEST_LIMIT(echo_through_sixty_four_devices, 120) {
        struct rig_device isolated[RIG_DEVICES];
        struct rig rig;

        for (uint32_t d = 0; d < RIG_DEVICES; ++d)
                isolated[d] = (struct rig_device){.isolated = true};
        rig_init(&rig, isolated, RIG_DEVICES);
        rig_delay(&rig, 1, 50, 8);
        echo(&rig, RIG_DEVICES, 16, getenv("HEADRACE_FULL") ? 1000 : 50);
        HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).device_waits, 0);
        rig_deinit(&rig);
}

/* However long its devices take, a run is started without waiting for any. */
HR_TEST(starting_waits_for_no_device) {
        const struct rig_device isolated[2] = {{.isolated = true, .delay_us = 20000},
                                               {.isolated = true, .delay_us = 20000}};
        struct rig rig;

        rig_init(&rig, isolated, 2);
        echo(&rig, 2, 3, 12);
        HR_EXPECT(hr_fleet_exec_stats(rig.fleet).longest_start_ns > 0);
        HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).device_waits, 0);
        rig_deinit(&rig);
}
