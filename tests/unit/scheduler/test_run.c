/*
 * Plans bound and run on real CPU devices: slots, lanes, states, outputs of every origin, failures.
 */
#include "tests/unit/scheduler/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define WIDTH 64

static void fill(float *values, float value) {
        for (int i = 0; i < WIDTH; ++i)
                values[i] = value;
}

static bool all_equal(const float *values, float value) {
        for (int i = 0; i < WIDTH; ++i) {
                if (values[i] != value)
                        return false;
        }
        return true;
}

/* (x + 1) on one device, times 2 on the next, and so on around the devices; the last is the output.
 */
static struct hr_graph *chain_graph(struct sketch *sketch, uint32_t length, uint32_t devices,
                                    uint32_t *ret_output) {
        uint32_t x, one, two, at;

        sketch_init(sketch, WIDTH);
        x = sketch_leaf(sketch, HR_LEAF_INPUT, "x");
        one = sketch_constant(sketch, 1);
        two = sketch_constant(sketch, 2);
        at = x;
        for (uint32_t i = 0; i < length; ++i)
                at = sketch_node(sketch, i % 2 ? HR_OP_SUB : HR_OP_ADD, at, i % 2 ? two : one,
                                 (int32_t) (i * devices / length));
        at = sketch_node(sketch, HR_OP_MUL, at, two, (int32_t) devices - 1);
        sketch_output(sketch, at);
        *ret_output = at;
        return sketch_finish(sketch);
}

static float chain_value(float x, uint32_t length) {
        for (uint32_t i = 0; i < length; ++i)
                x += i % 2 ? -2.0F : 1.0F;
        return x * 2;
}

/* Sends 0, 1, 2, ... as fast as slots allow; every answer is checked. */
static void echo(struct hr_pipeline *pipeline, uint32_t output, uint32_t length, uint32_t count) {
        uint32_t slots = hr_pipeline_copies(pipeline);
        struct ride *rides = calloc(slots, sizeof *rides);
        float(*in)[WIDTH] = calloc(slots, sizeof *in), (*out)[WIDTH] = calloc(slots, sizeof *out);
        struct hr_diag diag = {0};

        HR_EXPECT(rides && in && out);
        for (uint32_t s = 0; s < slots; ++s) {
                ride_init(&rides[s]);
                rides[s].inputs[0] = (struct hr_run_input){.data = in[s], .bytes = sizeof in[s]};
                rides[s].outputs[0] = (struct hr_run_output){
                        .tensor = output, .data = out[s], .bytes = sizeof out[s]};
                rides[s].run.output_count = 1;
        }
        for (uint32_t n = 0; n < count + slots; ++n) {
                struct ride *ride = &rides[n % slots];

                if (n >= slots) {
                        HR_EXPECT_EQ(ride_wait(ride), HR_OK);
                        HR_EXPECT_EQ(ride->run.sequence, n - slots);
                        HR_EXPECT(all_equal(out[n % slots],
                                            chain_value((float) (n - slots), length)));
                }
                if (n >= count)
                        continue;
                HR_EXPECT(hr_pipeline_has_slot(pipeline));
                fill(in[n % slots], (float) n);
                HR_EXPECT_OK(ride_start(ride, pipeline, &diag), &diag);
                HR_EXPECT_EQ(ride->run.slot, n % slots);
        }
        for (uint32_t s = 0; s < slots; ++s)
                ride_deinit(&rides[s]);
        free(rides);
        free(in);
        free(out);
}

static void echo_on(const struct rig_device *devices, uint32_t count, uint32_t length,
                    uint32_t runs) {
        static const uint32_t copies[] = {1, 2, 3, 4, 8};
        struct rig rig;

        rig_init(&rig, devices, count);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(copies); ++i) {
                struct sketch sketch;
                uint32_t output;
                struct hr_graph *graph = chain_graph(&sketch, length, count, &output);
                uint64_t before = hr_graph_hash(graph);
                struct hr_pipeline *pipeline =
                        rig_pipeline(&rig, graph, sketch.pins, NULL, copies[i], NULL, 0);

                HR_EXPECT_EQ(hr_pipeline_copies(pipeline), copies[i]);
                echo(pipeline, output, length, runs);
                hr_pipeline_free(pipeline);
                HR_EXPECT(hr_graph_hash(graph) == before);
                hr_graph_unref(graph);
                sketch_deinit(&sketch);
        }
        rig_deinit(&rig);
}

HR_TEST_LIMIT(echo_one_device, 60) {
        echo_on((struct rig_device[]){{.isolated = true}}, 1, 5, 300);
}

HR_TEST_LIMIT(echo_two_isolated, 60) {
        echo_on((struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2, 8, 300);
}

HR_TEST_LIMIT(echo_four_isolated_with_delays, 120) {
        echo_on((struct rig_device[]){{.isolated = true, .delay_us = 100},
                                      {.isolated = true, .delay_us = 300},
                                      {.isolated = true},
                                      {.isolated = true, .delay_us = 200}},
                4, 16, 100);
}

HR_TEST_LIMIT(echo_shared_memory, 60) {
        echo_on((struct rig_device[]){{.delay_us = 50}, {.delay_us = 0}}, 2, 8, 200);
}

HR_TEST_LIMIT(echo_mixed_memory, 60) {
        echo_on((struct rig_device[]){{.delay_us = 20}, {.isolated = true}, {.delay_us = 0}}, 3, 12,
                200);
}

HR_TEST_LIMIT(echo_opaque_with_random_delays, 120) {
        echo_on((struct rig_device[]){{.opaque = true, .delay_us = 200},
                                      {.opaque = true, .delay_us = 300},
                                      {.isolated = true, .delay_us = 50}},
                3, 12, 150);
        echo_on((struct rig_device[]){{.opaque = true, .delay_us = 300}, {.delay_us = 50}}, 2, 6,
                150);
}

/* Two stages that sleep 5 ms each: with two slots they sleep at the same time. */
HR_TEST_LIMIT(two_slots_overlap, 60) {
        enum { RUNS = 30 };
        struct rig rig;
        uint64_t took[3] = {0};

        rig_init(&rig,
                 (struct rig_device[]){{.isolated = true, .delay_us = 5000},
                                       {.isolated = true, .delay_us = 5000}},
                 2);
        for (uint32_t n = 1; n <= 2; ++n) {
                struct sketch sketch;
                uint32_t output;
                struct hr_graph *graph = chain_graph(&sketch, 8, 2, &output);
                struct hr_pipeline *pipeline =
                        rig_pipeline(&rig, graph, sketch.pins, NULL, n, NULL, 0);
                uint64_t start = hr_clock_now_ns();

                echo(pipeline, output, 8, RUNS);
                took[n] = hr_clock_now_ns() - start;
                hr_pipeline_free(pipeline);
                hr_graph_unref(graph);
                sketch_deinit(&sketch);
        }
        printf("%d runs: %.1f ms with one slot, %.1f ms with two\n", RUNS, (double) took[1] / 1e6,
               (double) took[2] / 1e6);
        HR_EXPECT(took[2] * 4 < took[1] * 3);
        rig_deinit(&rig);
}

/* Values go back and forth between two devices in every step of the chain. */
static void alternate(const struct rig_device *devices, uint32_t length, uint32_t n_copies,
                      uint32_t runs) {
        struct rig rig;
        struct sketch sketch;
        uint32_t x, one, two, at;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;

        rig_init(&rig, devices, 2);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        one = sketch_constant(&sketch, 1);
        two = sketch_constant(&sketch, 2);
        at = x;
        for (uint32_t i = 0; i < length; ++i)
                at = sketch_node(&sketch, i % 2 ? HR_OP_SUB : HR_OP_ADD, at, i % 2 ? two : one,
                                 (int32_t) (i % 2));
        at = sketch_node(&sketch, HR_OP_MUL, at, two, 1);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, n_copies, NULL, 0);
        echo(pipeline, at, length, runs);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

HR_TEST_LIMIT(alternating_splits, 60) {
        for (uint32_t n = 1; n <= 4; ++n) {
                alternate((struct rig_device[]){{.isolated = true}, {.isolated = true}}, 40, n, 50);
                alternate((struct rig_device[]){{0}, {0}}, 40, n, 50);
                alternate((struct rig_device[]){{.opaque = true, .delay_us = 100}, {0}}, 40, n, 20);
        }
}

HR_TEST_LIMIT(alternating_splits_5000, 120) {
        alternate((struct rig_device[]){{.isolated = true}, {.isolated = true}}, 5000, 2, 4);
        alternate((struct rig_device[]){{.isolated = true}, {.isolated = true}}, 5000, 1, 2);
}

/* ---- States ------------------------------------------------------------------------------------
 */

struct state {
        struct hr_buffer *buffer;
        struct hr_leaf_home home;
        struct hr_state_use use;
};

static void state_init(struct rig *rig, struct state *state, uint32_t device) {
        memset(state, 0, sizeof *state);
        HR_EXPECT_OK(hr_buffer_new(rig->devices[device], WIDTH * sizeof(float), HR_USAGE_ANY,
                                   &rig->diag, &state->buffer),
                     &rig->diag);
        state->home.buffer = state->buffer;
}

/* total += x in the state, then total * 2 on `reader`. */
static struct hr_graph *sum_graph(struct sketch *sketch, int32_t writer, int32_t reader,
                                  uint32_t *ret_output) {
        uint32_t total, x, two, added;

        sketch_init(sketch, WIDTH);
        total = sketch_leaf(sketch, HR_LEAF_STATE, "total");
        x = sketch_leaf(sketch, HR_LEAF_INPUT, "x");
        two = sketch_constant(sketch, 2);
        added = sketch_in_place(sketch, HR_OP_ADD, total, total, x, writer);
        *ret_output = sketch_node(sketch, HR_OP_MUL, added, two, reader);
        sketch_output(sketch, *ret_output);
        return sketch_finish(sketch);
}

/* Runs of several pipelines over one state, in turn, several in flight. */
static void sum_over(struct rig *rig, struct hr_pipeline **pipelines, const uint32_t *outputs,
                     uint32_t pipeline_count, uint32_t count) {
        enum { IN_FLIGHT = 4 };
        struct ride rides[IN_FLIGHT];
        float in[IN_FLIGHT][WIDTH], out[IN_FLIGHT][WIDTH], sum = 0, expected[IN_FLIGHT] = {0};

        for (int i = 0; i < IN_FLIGHT; ++i)
                ride_init(&rides[i]);
        for (uint32_t n = 0; n < count + IN_FLIGHT; ++n) {
                uint32_t at = n % IN_FLIGHT, p = n % pipeline_count;
                struct ride *ride = &rides[at];

                if (n >= IN_FLIGHT) {
                        HR_EXPECT_EQ(ride_wait(ride), HR_OK);
                        HR_EXPECT(all_equal(out[at], expected[at]));
                }
                if (n >= count)
                        continue;
                fill(in[at], (float) n);
                sum += (float) n;
                expected[at] = sum * 2;
                ride->inputs[0] = (struct hr_run_input){.data = in[at], .bytes = sizeof in[at]};
                ride->outputs[0] = (struct hr_run_output){
                        .tensor = outputs[p], .data = out[at], .bytes = sizeof out[at]};
                ride->run.output_count = 1;
                HR_EXPECT_OK(ride_start(ride, pipelines[p], &rig->diag), &rig->diag);
        }
        for (int i = 0; i < IN_FLIGHT; ++i)
                ride_deinit(&rides[i]);
}

static void sum_with(const struct rig_device *devices, uint32_t state_device, int32_t writer,
                     int32_t reader) {
        struct rig rig;
        struct state state;
        struct sketch sketch;
        uint32_t output;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct hr_leaf_home homes[3] = {{0}};
        struct hr_state_use *uses[1] = {&state.use};

        rig_init(&rig, devices, 2);
        state_init(&rig, &state, state_device);
        graph = sum_graph(&sketch, writer, reader, &output);
        homes[0] = state.home;
        pipeline = rig_pipeline(&rig, graph, sketch.pins, homes, 4, uses, 1);
        sum_over(&rig, &pipeline, &output, 1, 200);
        hr_pipeline_free(pipeline);
        HR_EXPECT(state.use.pipeline == NULL);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        hr_buffer_unref(state.buffer);
        rig_deinit(&rig);
}

HR_TEST(state_read_elsewhere) {
        sum_with((struct rig_device[]){{.isolated = true}, {.isolated = true, .delay_us = 100}}, 0,
                 HR_NO_PIN, 1);
}

HR_TEST(state_in_shared_memory) {
        sum_with((struct rig_device[]){{.delay_us = 100}, {.delay_us = 0}}, 0, 0, 1);
        sum_with((struct rig_device[]){{.delay_us = 0}, {.delay_us = 100}}, 1, 1, 0);
}

/* The writer is pinned to a device that cannot reach the state: its result is carried back. */
HR_TEST(writer_pinned_elsewhere) {
        sum_with((struct rig_device[]){{.isolated = true, .delay_us = 50}, {.isolated = true}}, 0,
                 1, 0);
        sum_with((struct rig_device[]){{.isolated = true}, {.isolated = true, .delay_us = 50}}, 1,
                 0, 0);
}

HR_TEST_LIMIT(state_behind_staging, 60) {
        const struct rig_device devices[] = {{.opaque = true, .delay_us = 200}, {.isolated = true}};

        sum_with(devices, 0, HR_NO_PIN, 1);
        sum_with(devices, 0, 1, 0);
        sum_with(devices, 1, 0, 1);
        sum_with(devices, 1, HR_NO_PIN, 0);
}

/* A read-only tensor in plain host memory, read by a device that cannot reach it. */
HR_TEST(weight_in_host_memory) {
        for (int opaque = 0; opaque < 2; ++opaque) {
                struct rig rig;
                struct sketch sketch;
                struct hr_graph *graph;
                struct hr_pipeline *pipeline;
                struct hr_buffer *weight = NULL;
                struct hr_leaf_home homes[2] = {{0}};
                struct ride ride;
                float in[WIDTH], out[WIDTH];
                uint32_t x, w, y;

                rig_init(&rig, (struct rig_device[]){{.isolated = !opaque, .opaque = opaque}, {0}},
                         2);
                HR_EXPECT_OK(hr_buffer_new(rig.devices[1], WIDTH * sizeof(float), HR_USAGE_WEIGHTS,
                                           &rig.diag, &weight),
                             &rig.diag);
                fill(weight->host_base, 7);
                sketch_init(&sketch, WIDTH);
                x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
                w = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "w");
                y = sketch_node(&sketch, HR_OP_ADD, x, w, 0);
                y = sketch_node(&sketch, HR_OP_MUL, y, w, 0);
                sketch_output(&sketch, y);
                graph = sketch_finish(&sketch);
                homes[w].buffer = weight;
                pipeline = rig_pipeline(&rig, graph, sketch.pins, homes, 2, NULL, 0);
                ride_init(&ride);
                fill(in, 5);
                ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in};
                ride.outputs[0] =
                        (struct hr_run_output){.tensor = y, .data = out, .bytes = sizeof out};
                ride.run.output_count = 1;
                for (int i = 0; i < 5; ++i) {
                        HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                        HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
                        HR_EXPECT(all_equal(out, 84));
                }
                ride_deinit(&ride);
                hr_pipeline_free(pipeline);
                hr_graph_unref(graph);
                sketch_deinit(&sketch);
                hr_buffer_unref(weight);
                rig_deinit(&rig);
        }
}

HR_TEST(state_shared_by_pipelines) {
        struct rig rig;
        struct state state;
        struct hr_graph *graphs[3];
        struct hr_pipeline *pipelines[3];
        struct sketch sketches[3];
        uint32_t outputs[3];
        struct hr_leaf_home homes[3] = {{0}};
        struct hr_state_use *uses[1] = {&state.use};
        static const int32_t pins[3][2] = {{0, 1}, {1, 0}, {0, 0}};

        rig_init(&rig, (struct rig_device[]){{.delay_us = 100}, {.delay_us = 30}}, 2);
        state_init(&rig, &state, 0);
        homes[0] = state.home;
        for (int i = 0; i < 3; ++i) {
                graphs[i] = sum_graph(&sketches[i], pins[i][0], pins[i][1], &outputs[i]);
                pipelines[i] = rig_pipeline(&rig, graphs[i], sketches[i].pins, homes, 2, uses, 1);
        }
        sum_over(&rig, pipelines, outputs, 3, 200);
        for (int i = 0; i < 3; ++i) {
                hr_pipeline_free(pipelines[i]);
                hr_graph_unref(graphs[i]);
                sketch_deinit(&sketches[i]);
        }
        hr_buffer_unref(state.buffer);
        rig_deinit(&rig);
}

/* ---- Outputs of every origin -------------------------------------------------------------------
 */

HR_TEST(outputs_of_every_origin) {
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct ride ride;
        struct hr_buffer *weight = NULL;
        struct hr_leaf_home homes[4] = {{0}};
        uint32_t x, w, c, unused, sum;
        float in[2][WIDTH], out[5][WIDTH];

        rig_init(&rig, (struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2);
        HR_EXPECT_OK(hr_buffer_new(rig.devices[1], WIDTH * sizeof(float), HR_USAGE_WEIGHTS,
                                   &rig.diag, &weight),
                     &rig.diag);
        fill(weight->host_base, 7);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        w = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "w");
        c = sketch_constant(&sketch, 3);
        unused = sketch_leaf(&sketch, HR_LEAF_INPUT, "unused");
        sum = sketch_node(&sketch, HR_OP_ADD, x, w, 0);
        sketch_output(&sketch, x);
        sketch_output(&sketch, w);
        sketch_output(&sketch, c);
        sketch_output(&sketch, unused);
        sketch_output(&sketch, sum);
        homes[w].buffer = weight;
        graph = sketch_finish(&sketch);
        for (uint32_t n = 1; n <= 3; ++n) {
                const uint32_t ids[5] = {unused, sum, x, w, c};
                const float expected[5] = {11, 12, 5, 7, 3};

                pipeline = rig_pipeline(&rig, graph, sketch.pins, homes, n, NULL, 0);
                ride_init(&ride);
                fill(in[0], 5);
                fill(in[1], 11);
                for (int i = 0; i < 2; ++i)
                        ride.inputs[i] =
                                (struct hr_run_input){.data = in[i], .bytes = sizeof in[i]};
                for (int i = 0; i < 5; ++i)
                        ride.outputs[i] = (struct hr_run_output){
                                .tensor = ids[i], .data = out[i], .bytes = sizeof out[i]};
                for (ride.run.output_count = 0; ride.run.output_count <= 5;
                     ++ride.run.output_count) {
                        memset(out, 0, sizeof out);
                        HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                        HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
                        for (uint32_t i = 0; i < 5; ++i)
                                HR_EXPECT(all_equal(out[i],
                                                    i < ride.run.output_count ? expected[i] : 0));
                }
                ride_deinit(&ride);
                hr_pipeline_free(pipeline);
        }
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        hr_buffer_unref(weight);
        rig_deinit(&rig);
}

HR_TEST(graph_without_nodes) {
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct ride ride;
        float in[WIDTH], out[WIDTH] = {0};
        uint32_t x;

        rig_init(&rig, (struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        sketch_output(&sketch, x);
        graph = sketch_finish(&sketch);
        pipeline = rig_pipeline(&rig, graph, NULL, NULL, 0, NULL, 0);
        ride_init(&ride);
        fill(in, 9);
        ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in};
        ride.outputs[0] = (struct hr_run_output){.tensor = x, .data = out, .bytes = sizeof out};
        ride.run.output_count = 1;
        HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
        HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
        HR_EXPECT(all_equal(out, 9));
        ride_deinit(&ride);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* Nothing to do at all: done is called nevertheless. */
HR_TEST(graph_without_anything) {
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct ride ride;

        rig_init(&rig, (struct rig_device[]){{.isolated = true}}, 1);
        sketch_init(&sketch, WIDTH);
        (void) sketch_constant(&sketch, 1);
        graph = sketch_finish(&sketch);
        pipeline = rig_pipeline(&rig, graph, NULL, NULL, 0, NULL, 0);
        ride_init(&ride);
        HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
        HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
        ride_deinit(&ride);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* ---- Failures ----------------------------------------------------------------------------------
 */

HR_TEST(cancel_and_late_cancel) {
        struct rig rig;
        struct sketch sketch;
        uint32_t output;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct ride ride;
        float in[WIDTH], out[WIDTH];

        rig_init(&rig,
                 (struct rig_device[]){{.isolated = true, .delay_us = 3000},
                                       {.isolated = true, .delay_us = 3000}},
                 2);
        graph = chain_graph(&sketch, 8, 2, &output);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 2, NULL, 0);
        ride_init(&ride);
        fill(in, 4);
        ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in};
        ride.outputs[0] =
                (struct hr_run_output){.tensor = output, .data = out, .bytes = sizeof out};
        ride.run.output_count = 1;
        for (int i = 0; i < 10; ++i) {
                HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                hr_run_cancel(&ride.run, HR_E_CANCELLED, "CLIENT");
                hr_run_cancel(&ride.run, HR_E_DEADLINE, NULL);
                HR_EXPECT_EQ(ride_wait(&ride), HR_E_CANCELLED);
                HR_EXPECT_STREQ(hr_diag_reason(&ride.run.outcome.diag), "CLIENT");
                HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
                hr_run_cancel(&ride.run, HR_E_CANCELLED, NULL);
                HR_EXPECT_EQ(ride.run.outcome.diag.status, HR_OK);
                HR_EXPECT(all_equal(out, chain_value(4, 8)));
        }
        HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).runs_cancelled, 10);
        HR_EXPECT_EQ(hr_fleet_exec_stats(rig.fleet).runs_ok, 10);
        ride_deinit(&ride);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

HR_TEST(refused_starts_leave_the_slot_free) {
        struct rig rig;
        struct sketch sketch;
        uint32_t output;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct ride ride, second;
        float in[WIDTH], out[WIDTH];
        struct hr_diag diag = {0};

        rig_init(&rig, (struct rig_device[]){{.isolated = true, .delay_us = 5000}}, 1);
        graph = chain_graph(&sketch, 3, 1, &output);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 1, NULL, 0);
        ride_init(&ride);
        ride_init(&second);
        ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in - 1};
        HR_EXPECT_EQ(ride_start(&ride, pipeline, &diag), HR_E_INVALID);
        HR_EXPECT_STREQ(diag.reason, "SIZE");
        ride.inputs[0].bytes = sizeof in;
        ride.outputs[0] = (struct hr_run_output){.tensor = 0, .data = out, .bytes = sizeof out};
        ride.run.output_count = 1;
        HR_EXPECT_EQ(ride_start(&ride, pipeline, NULL), HR_E_INVALID);
        ride.outputs[0].tensor = output;
        ride.outputs[1] = ride.outputs[0];
        ride.run.output_count = 2;
        HR_EXPECT_EQ(ride_start(&ride, pipeline, NULL), HR_E_INVALID);
        ride.run.output_count = 1;
        fill(in, 1);
        HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
        second.inputs[0] = ride.inputs[0];
        HR_EXPECT(!hr_pipeline_has_slot(pipeline));
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(ride_start(&second, pipeline, &diag), HR_E_UNAVAILABLE);
        HR_EXPECT_STREQ(diag.reason, "SLOT");
        HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
        HR_EXPECT(all_equal(out, chain_value(1, 3)));
        ride_deinit(&ride);
        ride_deinit(&second);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* An index outside its table fails that run and no other. */
HR_TEST(bad_index_fails_one_run) {
        struct rig rig;
        struct hr_build *build = hr_build_new();
        uint32_t table, ids, rows, two;
        struct hr_graph *graph;
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_pipeline *pipeline;
        struct ride ride;
        float in[4 * WIDTH], out[WIDTH];
        int32_t id = 2;
        int32_t pins[5] = {HR_NO_PIN, HR_NO_PIN, HR_NO_PIN, 0, 1};

        rig_init(&rig, (struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2);
        table = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "t", WIDTH, 4, 1, 1);
        ids = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "i", 1, 1, 1, 1);
        two = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "", 1, 1, 1, 1);
        hr_build_constant(build, two, &(float){2}, sizeof(float));
        rows = hr_build_node(build, HR_OP_GET_ROWS, HR_TYPE_F32, WIDTH, 1, 1, 1, 2,
                             (uint32_t[]){table, ids});
        rows = hr_build_node(build, HR_OP_MUL, HR_TYPE_F32, WIDTH, 1, 1, 1, 2,
                             (uint32_t[]){rows, two});
        hr_build_tensor(build, rows)->flags |= HR_TENSOR_OUTPUT;
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &rig.diag), &rig.diag);
        pipeline = rig_pipeline(&rig, graph, pins, NULL, 2, NULL, 0);
        ride_init(&ride);
        for (int i = 0; i < 4 * WIDTH; ++i)
                in[i] = (float) (i / WIDTH);
        ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in};
        ride.inputs[1] = (struct hr_run_input){.data = &id, .bytes = sizeof id};
        ride.outputs[0] = (struct hr_run_output){.tensor = rows, .data = out, .bytes = sizeof out};
        ride.run.output_count = 1;
        for (int i = 0; i < 6; ++i) {
                id = i % 2 ? 99 : 2;
                HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                HR_EXPECT_EQ(ride_wait(&ride), i % 2 ? HR_E_RANGE : HR_OK);
                if (i % 2 == 0)
                        HR_EXPECT(all_equal(out, 4));
                else
                        HR_EXPECT_EQ(ride.run.outcome.diag.node, 0);
        }
        ride_deinit(&ride);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        rig_deinit(&rig);
}

/* ---- Sizes -------------------------------------------------------------------------------------
 */

/* 10 000 values from one device enter one split of another. */
HR_TEST_LIMIT(ten_thousand_inputs_in_a_split, 120) {
        enum { COUNT = 10000 };
        struct rig rig;
        struct sketch sketch;
        uint32_t x, one, *values = calloc(COUNT, sizeof *values), at;
        struct hr_graph *graph;

        HR_EXPECT(values);
        rig_init(&rig, (struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        one = sketch_constant(&sketch, 1);
        for (int i = 0; i < COUNT; ++i)
                values[i] = sketch_node(&sketch, HR_OP_ADD, x, one, 0);
        at = values[0];
        for (int i = 1; i < COUNT; ++i)
                at = sketch_node(&sketch, HR_OP_ADD, at, values[i], 1);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        for (uint32_t n = 1; n <= 2; ++n) {
                struct hr_pipeline *pipeline =
                        rig_pipeline(&rig, graph, sketch.pins, NULL, n, NULL, 0);
                struct ride ride;
                float in[WIDTH], out[WIDTH];

                ride_init(&ride);
                fill(in, 1);
                ride.inputs[0] = (struct hr_run_input){.data = in, .bytes = sizeof in};
                ride.outputs[0] =
                        (struct hr_run_output){.tensor = at, .data = out, .bytes = sizeof out};
                ride.run.output_count = 1;
                HR_EXPECT_OK(ride_start(&ride, pipeline, &rig.diag), &rig.diag);
                HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
                HR_EXPECT(all_equal(out, 2 * COUNT));
                ride_deinit(&ride);
                hr_pipeline_free(pipeline);
        }
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        free(values);
        rig_deinit(&rig);
}

/* Not even one slot of a plan for many fits: another plan for one slot does, with the same splits.
 */
HR_TEST(copies_degrade_to_a_plan_for_one_slot) {
        const struct rig_device devices[] = {{.isolated = true, .memory_cap = 3000},
                                             {.isolated = true}};
        struct rig rig;
        struct sketch sketch;
        uint32_t one, at;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;

        rig_init(&rig, devices, 2);
        sketch_init(&sketch, WIDTH);
        at = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        one = sketch_constant(&sketch, 1);
        for (uint32_t i = 0; i < 40; ++i)
                at = sketch_node(&sketch, i % 4 < 2 ? HR_OP_ADD : HR_OP_SUB, at, one,
                                 (int32_t) (i % 2));
        at = sketch_node(&sketch, HR_OP_ADD, at, at, 1);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 4, NULL, 0);
        HR_EXPECT_EQ(hr_pipeline_copies(pipeline), 1);
        HR_EXPECT(hr_pipeline_bytes(pipeline, 0) <= 3000);
        echo(pipeline, at, 0, 50);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* Memory for one slot only: the pipeline is made with fewer, with the same results. */
HR_TEST(copies_degrade_when_memory_is_short) {
        struct rig rig;
        struct sketch sketch;
        uint32_t output;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;

        rig_init(&rig,
                 (struct rig_device[]){{.isolated = true}, {.isolated = true, .memory_cap = 2048}},
                 2);
        graph = chain_graph(&sketch, 8, 2, &output);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 16, NULL, 0);
        HR_EXPECT(hr_pipeline_copies(pipeline) < 16);
        HR_EXPECT(hr_pipeline_bytes(pipeline, 1) <= 2048);
        echo(pipeline, output, 8, 50);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}
