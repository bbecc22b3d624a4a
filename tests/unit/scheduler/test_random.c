/*
 * Random graphs with views, writers, states and pins: many devices and slots against one device.
 *
 * Each seed makes one graph. It runs a few times on a single CPU device with one slot, node by
 * node, and the same inputs go through fleets of unlike devices with several slots, nodes joined
 * where the devices like, all runs in flight together. Every
 * output of every run, and the states, must have the same bits. HR_SEED=N runs one seed, and
 * HR_SEEDS=N as many.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/scheduler/graphs.h"

enum {
        FULL = 32,
        HALF = FULL / 2,
        NODES = 40,
        RUNS = 8,
        LEAVES = 8,
        OUTPUTS_MOST = LEAVES + NODES
};
enum { INPUT_A, INPUT_B, CONST_A, CONST_B, WEIGHT_A, WEIGHT_B, STATE_A, STATE_B };

struct dice {
        uint64_t state;
};

static uint32_t roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

struct tangle {
        struct hr_graph *graph;
        uint32_t roll_pins[LEAVES + NODES]; /* a pin is this modulo the number of devices + 1 */
        uint32_t homes[LEAVES];             /* likewise */
};

static const hr_leaf_kind leaf_kinds[LEAVES] = {HR_LEAF_INPUT,    HR_LEAF_INPUT,  HR_LEAF_CONSTANT,
                                                HR_LEAF_CONSTANT, HR_LEAF_WEIGHT, HR_LEAF_WEIGHT,
                                                HR_LEAF_STATE,    HR_LEAF_STATE};

static uint32_t root_of(struct hr_build *build, uint32_t id) {
        uint32_t base = hr_build_tensor(build, id)->view_base;

        return base == HR_TENSOR_NONE ? id : base;
}

static bool is_writable(struct hr_build *build, uint32_t id) {
        uint32_t root = root_of(build, id);

        return root >= LEAVES || leaf_kinds[root] == HR_LEAF_INPUT ||
               leaf_kinds[root] == HR_LEAF_STATE;
}

static uint32_t add_half(struct hr_build *build, struct dice *dice, uint32_t source) {
        uint64_t offset = roll(dice, 2) * HALF * sizeof(float);
        uint32_t root = root_of(build, source);
        uint64_t start = hr_build_tensor(build, source)->view_offset;
        uint32_t id = hr_build_node(build, HR_OP_VIEW, HR_TYPE_F32, HALF, 1, 1, 1, 1, &source);
        struct hr_tensor *view = hr_build_tensor(build, id);

        view->params[0] = (int32_t) offset;
        view->view_base = root;
        view->view_offset = start + offset;
        return id;
}

static uint32_t add_binary(struct hr_build *build, struct dice *dice, uint32_t a, uint32_t b) {
        static const uint32_t ops[] = {HR_OP_ADD, HR_OP_SUB, HR_OP_MUL};
        uint32_t sources[2] = {a, b}, root = root_of(build, a);
        bool in_place = roll(dice, 4) == 0 && is_writable(build, a);
        uint64_t offset = hr_build_tensor(build, a)->view_offset;
        int64_t width = hr_build_tensor(build, a)->ne[0];
        uint32_t op = ops[roll(dice, 8) % 3];
        uint32_t id = hr_build_node(build, op, HR_TYPE_F32, width, 1, 1, 1, 2, sources);

        if (in_place) {
                hr_build_tensor(build, id)->view_base = root;
                hr_build_tensor(build, id)->view_offset = offset;
        }
        return id;
}

static void tangle_init(struct tangle *tangle, struct dice *dice) {
        struct hr_build *build = hr_build_new();
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_diag diag = {0};
        uint32_t count;

        for (uint32_t i = 0; i < LEAVES; ++i) {
                char name[8];
                float values[FULL];

                snprintf(name, sizeof name, "l%u", i);
                (void) hr_build_leaf(build, leaf_kinds[i], HR_TYPE_F32, name, FULL, 1, 1, 1);
                for (int k = 0; k < FULL; ++k)
                        values[k] = (float) roll(dice, 100) / 128.0F;
                if (leaf_kinds[i] == HR_LEAF_CONSTANT)
                        hr_build_constant(build, i, values, sizeof values);
        }
        for (count = LEAVES; count < LEAVES + NODES; ++count) {
                uint32_t a = roll(dice, count), b = roll(dice, count);
                int64_t width = hr_build_tensor(build, a)->ne[0];

                if (width == FULL && roll(dice, 5) == 0) {
                        (void) add_half(build, dice, a);
                        continue;
                }
                for (uint32_t k = 0; hr_build_tensor(build, b)->ne[0] != width; ++k)
                        b = k < count ? (b + 1) % count : a;
                (void) add_binary(build, dice, a, b);
        }
        for (uint32_t i = 0; i < count; ++i) {
                tangle->roll_pins[i] = roll(dice, 2) ? roll(dice, 840) : UINT32_MAX;
                if (i + 1 == count || roll(dice, 6) == 0)
                        hr_build_tensor(build, i)->flags |= HR_TENSOR_OUTPUT;
        }
        for (uint32_t i = 0; i < LEAVES; ++i)
                tangle->homes[i] = roll(dice, 840);
        tangle->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(tangle->graph, &limits, &diag), &diag);
}

/* What a fleet made of the runs. */
struct harvest {
        float outputs[RUNS][OUTPUTS_MOST][FULL];
        float states[2][FULL];
};

static float start_value(uint32_t leaf, int at) {
        return (float) ((leaf * 37 + (uint32_t) at * 11) % 97) / 64.0F - 0.5F;
}

static void make_homes(struct rig *rig, const struct tangle *tangle, uint32_t devices,
                       struct hr_leaf_home *homes) {
        for (uint32_t i = WEIGHT_A; i <= STATE_B; ++i) {
                float *values;

                HR_EXPECT_OK(hr_buffer_new(rig->devices[tangle->homes[i] % devices],
                                           FULL * sizeof(float),
                                           leaf_kinds[i] == HR_LEAF_STATE ? HR_USAGE_ANY
                                                                          : HR_USAGE_WEIGHTS,
                                           &rig->diag, &homes[i].buffer),
                             &rig->diag);
                values = homes[i].buffer->host_base;
                for (int k = 0; k < FULL; ++k)
                        values[k] = start_value(i, k);
        }
}

static void prepare(struct ride *ride, const struct hr_graph *graph, float in[2][FULL],
                    struct hr_run_output *outputs, float (*out)[FULL], uint32_t run) {
        ride_init(ride);
        for (uint32_t i = 0; i < 2; ++i) {
                for (int k = 0; k < FULL; ++k)
                        in[i][k] = start_value(i + run, k);
                ride->inputs[i] = (struct hr_run_input){.data = in[i], .bytes = sizeof in[i]};
        }
        for (uint32_t i = 0; i < graph->output_count; ++i)
                outputs[i] = (struct hr_run_output){
                        .tensor = graph->outputs[i],
                        .data = out[i],
                        .bytes = hr_tensor_bytes(&graph->tensors[graph->outputs[i]])};
        ride->run.outputs = outputs;
        ride->run.output_count = graph->output_count;
}

static void run_all(struct rig *rig, struct hr_pipeline *pipeline, const struct hr_graph *graph,
                    struct harvest *harvest) {
        static struct ride rides[RUNS];
        static float in[RUNS][2][FULL];
        static struct hr_run_output outputs[RUNS][OUTPUTS_MOST];
        uint32_t slots = hr_pipeline_copies(pipeline);

        memset(harvest, 0, sizeof *harvest);
        for (uint32_t n = 0; n < RUNS + slots; ++n) {
                if (n >= slots && n - slots < RUNS) {
                        HR_EXPECT_EQ(ride_wait(&rides[n - slots]), HR_OK);
                        ride_deinit(&rides[n - slots]);
                }
                if (n >= RUNS)
                        continue;
                prepare(&rides[n], graph, in[n], outputs[n], harvest->outputs[n], n);
                HR_EXPECT_OK(ride_start(&rides[n], pipeline, &rig->diag), &rig->diag);
        }
}

static void harvest_on(const struct tangle *tangle, const struct rig_device *devices,
                       uint32_t count, uint32_t n_copies, bool optimize,
                       struct harvest *harvest) {
        struct rig rig;
        struct hr_leaf_home homes[LEAVES] = {{0}};
        int32_t pins[LEAVES + NODES];
        struct hr_state_use uses[2] = {{0}}, *states[2] = {&uses[0], &uses[1]};
        uint64_t before = hr_graph_hash(tangle->graph);
        struct hr_pipeline *pipeline;

        rig_init(&rig, devices, count);
        rig.optimize = optimize;
        make_homes(&rig, tangle, count, homes);
        for (uint32_t i = 0; i < LEAVES + NODES; ++i)
                pins[i] = tangle->roll_pins[i] == UINT32_MAX || i < LEAVES
                                  ? HR_NO_PIN
                                  : (int32_t) (tangle->roll_pins[i] % count);
        pipeline = rig_pipeline(&rig, tangle->graph, pins, homes, n_copies, states, 2);
        run_all(&rig, pipeline, tangle->graph, harvest);
        hr_pipeline_free(pipeline);
        HR_EXPECT(hr_graph_hash(tangle->graph) == before);
        memcpy(harvest->states[0], homes[STATE_A].buffer->host_base, sizeof harvest->states[0]);
        memcpy(harvest->states[1], homes[STATE_B].buffer->host_base, sizeof harvest->states[1]);
        for (uint32_t i = WEIGHT_A; i <= STATE_B; ++i)
                hr_buffer_unref(homes[i].buffer);
        rig_deinit(&rig);
}

static void one_seed(uint32_t seed) {
        static const struct rig_device single[] = {{0}};
        static const struct rig_device fleets[][4] = {
                {{.isolated = true}, {.isolated = true}, {.isolated = true}, {0}},
                {{.opaque = true, .delay_us = 60}, {.isolated = true}, {.opaque = true}, {0}},
                {{.delay_us = 20}, {.isolated = true}, {0}, {.delay_us = 10}},
                {{.opaque = true, .delay_us = 30}, {.delay_us = 10}, {0}, {.isolated = true}},
        };
        static struct harvest expected, got;
        struct dice dice = {UINT64_C(0x9e3779b97f4a7c15) * (seed + 1)};
        struct tangle tangle;

        tangle_init(&tangle, &dice);
        harvest_on(&tangle, single, 1, 1, false, &expected);
        for (uint32_t n = 0; n <= 4; ++n) {
                uint32_t f = roll(&dice, HR_ARRAY_LENGTH(fleets));

                if (n == 0)
                        harvest_on(&tangle, single, 1, 1, true, &got);
                else
                        harvest_on(&tangle, fleets[f], 4, n, true, &got);
                for (uint32_t run = 0; run < RUNS; ++run) {
                        for (uint32_t o = 0; o < tangle.graph->output_count; ++o) {
                                if (memcmp(got.outputs[run][o], expected.outputs[run][o],
                                           sizeof got.outputs[run][o]) != 0)
                                        hr_test_fail(__FILE__, __LINE__,
                                                     "seed %u, fleet %u, %u slots: run %u, output "
                                                     "%u (tensor %u) differs",
                                                     seed, f, n, run, o, tangle.graph->outputs[o]);
                        }
                }
                if (memcmp(got.states, expected.states, sizeof got.states) != 0)
                        hr_test_fail(__FILE__, __LINE__,
                                     "seed %u, fleet %u, %u slots: state differs", seed, f, n);
        }
        hr_graph_unref(tangle.graph);
}

HR_TEST_LIMIT(many_devices_equal_one, 240) {
        const char *only = getenv("HR_SEED"), *most = getenv("HR_SEEDS");
        uint32_t count = most ? (uint32_t) strtoul(most, NULL, 10) : 100;

        if (only) {
                one_seed((uint32_t) strtoul(only, NULL, 10));
                return;
        }
        for (uint32_t seed = 0; seed < count; ++seed)
                one_seed(seed);
}
