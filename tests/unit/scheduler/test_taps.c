/*
 * Observed runs on real devices: every tap shows what its node and those before it have made of the
 * tensor, and nothing else changes.
 *
 * Random graphs with views and writers are run on fleets of unlike devices with 1, 2 and 4 slots,
 * some runs observed and some not, and a plain interpreter computes what each tap, output and state
 * must be. The last run is stopped at a tap. HR_SEED=N runs one seed.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/scheduler/graphs.h"

enum { FULL = 32, HALF = FULL / 2, NODES = 30, RUNS = 9, LEAVES = 5, TENSORS = LEAVES + NODES };
enum { INPUT_A, INPUT_B, WEIGHT, STATE_A, STATE_B };

static const hr_leaf_kind leaf_kinds[LEAVES] = {HR_LEAF_INPUT, HR_LEAF_INPUT, HR_LEAF_WEIGHT,
                                                HR_LEAF_STATE, HR_LEAF_STATE};

struct dice {
        uint64_t state;
};

static uint32_t roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

/* ---- Graphs
 * ------------------------------------------------------------------------------------ */

struct scene {
        struct hr_graph *graph;
        uint32_t taps[NODES], tap_count;
        uint32_t pins[TENSORS]; /* modulo the number of devices, plus one; 0 = none */
        uint32_t homes[LEAVES];
};

static uint32_t root_in(struct hr_build *build, uint32_t id) {
        uint32_t base = hr_build_tensor(build, id)->view_base;

        return base == HR_TENSOR_NONE ? id : base;
}

static void add_view(struct hr_build *build, struct dice *dice, uint32_t source) {
        uint64_t offset = roll(dice, 2) * HALF * sizeof(float);
        uint64_t start = hr_build_tensor(build, source)->view_offset;
        uint32_t root = root_in(build, source);
        uint32_t id = hr_build_node(build, HR_OP_VIEW, HR_TYPE_F32, HALF, 1, 1, 1, 1, &source);
        struct hr_tensor *view = hr_build_tensor(build, id);

        view->params[0] = (int32_t) offset;
        view->view_base = root;
        view->view_offset = start + offset;
}

static void add_node(struct hr_build *build, struct dice *dice, uint32_t a, uint32_t b) {
        static const uint32_t ops[] = {HR_OP_ADD, HR_OP_SUB, HR_OP_MUL};
        uint32_t sources[2] = {a, b}, root = root_in(build, a);
        uint64_t offset = hr_build_tensor(build, a)->view_offset;
        int64_t width = hr_build_tensor(build, a)->ne[0];
        bool in_place = roll(dice, 4) == 0 && root != WEIGHT && root != root_in(build, b);
        uint32_t id = hr_build_node(build, ops[roll(dice, 3)], HR_TYPE_F32, width, 1, 1, 1, 2,
                                    sources);

        if (in_place) {
                hr_build_tensor(build, id)->view_base = root;
                hr_build_tensor(build, id)->view_offset = offset;
        }
}

static void scene_init(struct scene *scene, struct dice *dice) {
        struct hr_build *build = hr_build_new();
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_diag diag = {0};

        memset(scene, 0, sizeof *scene);
        for (uint32_t i = 0; i < LEAVES; ++i)
                (void) hr_build_leaf(build, leaf_kinds[i], HR_TYPE_F32,
                                     (const char *[]){"a", "b", "w", "s", "t"}[i], FULL, 1, 1, 1);
        for (uint32_t count = LEAVES; count < TENSORS; ++count) {
                uint32_t a = roll(dice, 2) ? count - 1 : roll(dice, count), b = roll(dice, count);
                int64_t width = hr_build_tensor(build, a)->ne[0];

                if (width == FULL && roll(dice, 5) == 0) {
                        add_view(build, dice, a);
                        continue;
                }
                for (uint32_t k = 0; hr_build_tensor(build, b)->ne[0] != width; ++k)
                        b = k < count ? (b + 1) % count : a;
                add_node(build, dice, a, b);
        }
        for (uint32_t i = 0; i < TENSORS; ++i) {
                scene->pins[i] = i >= LEAVES && roll(dice, 2) ? 1 + roll(dice, 12) : 0;
                if (i + 1 == TENSORS || roll(dice, 9) == 0)
                        hr_build_tensor(build, i)->flags |= HR_TENSOR_OUTPUT;
                if (i >= LEAVES && roll(dice, 3) == 0)
                        scene->taps[scene->tap_count++] = i;
        }
        for (uint32_t i = 0; i < LEAVES; ++i)
                scene->homes[i] = roll(dice, 12);
        scene->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(scene->graph, &limits, &diag), &diag);
}

/* ---- What must come out
 * ------------------------------------------------------------------------ */

static float start_value(uint32_t leaf, uint32_t at) {
        return (float) ((leaf * 37 + at * 11) % 97) / 64.0F - 0.5F;
}

struct meaning {
        float memory[TENSORS][FULL]; /* of roots; those of states stay from run to run */
        float taps[NODES][FULL];
        float outputs[TENSORS][FULL];
};

static float *data_of(struct meaning *meaning, const struct hr_graph *graph, uint32_t id) {
        const struct hr_tensor *t = &graph->tensors[id];
        uint32_t root = t->view_base == HR_TENSOR_NONE ? id : t->view_base;

        return meaning->memory[root] + (t->view_offset / sizeof(float));
}

static void interpret(struct meaning *meaning, const struct scene *scene, uint32_t run) {
        const struct hr_graph *graph = scene->graph;
        uint32_t tap = 0;

        for (uint32_t i = 0; i < LEAVES; ++i) {
                for (uint32_t k = 0; k < FULL && (i < STATE_A || run == 0); ++k)
                        meaning->memory[i][k] = start_value(i < WEIGHT ? i + run : i, k);
        }
        for (uint32_t id = LEAVES; id < TENSORS; ++id) {
                const struct hr_tensor *t = &graph->tensors[id];

                if (!hr_op_is_view(t->op)) {
                        const float *a = data_of(meaning, graph, hr_graph_source(graph, t, 0));
                        const float *b = data_of(meaning, graph, hr_graph_source(graph, t, 1));
                        float *r = data_of(meaning, graph, id);

                        for (int64_t k = 0; k < t->ne[0]; ++k)
                                r[k] = t->op == HR_OP_ADD   ? a[k] + b[k]
                                       : t->op == HR_OP_SUB ? a[k] - b[k]
                                                            : a[k] * b[k];
                }
                if (tap < scene->tap_count && scene->taps[tap] == id)
                        memcpy(meaning->taps[tap++], data_of(meaning, graph, id),
                               (size_t) t->ne[0] * sizeof(float));
        }
        for (uint32_t o = 0; o < graph->output_count; ++o)
                memcpy(meaning->outputs[o], data_of(meaning, graph, graph->outputs[o]),
                       hr_tensor_bytes(&graph->tensors[graph->outputs[o]]));
}

/* ---- Runs
 * -------------------------------------------------------------------------------------- */

struct watcher {
        struct ride ride;
        struct meaning meaning;
        struct hr_run_output outputs[TENSORS];
        float in[2][FULL], out[TENSORS][FULL], shown[FULL];
        bool waits;
};

/* Thread: a device's. */
static void watcher_at_tap(struct hr_run *run, void *arg) {
        struct watcher *watcher = HR_CONTAINER_OF((struct ride *) arg, struct watcher, ride);

        HR_EXPECT(run == &watcher->ride.run);
        pthread_mutex_lock(&watcher->ride.lock);
        HR_EXPECT(!watcher->waits && !watcher->ride.over);
        watcher->waits = true;
        pthread_cond_signal(&watcher->ride.over_cond);
        pthread_mutex_unlock(&watcher->ride.lock);
}

/* True: the run waits at a tap. */
static bool wait_for_tap(struct watcher *watcher) {
        bool waits;

        pthread_mutex_lock(&watcher->ride.lock);
        while (!watcher->waits && !watcher->ride.over)
                pthread_cond_wait(&watcher->ride.over_cond, &watcher->ride.lock);
        waits = watcher->waits;
        watcher->waits = false;
        pthread_mutex_unlock(&watcher->ride.lock);
        return waits;
}

static void start(struct watcher *watcher, const struct scene *scene, struct hr_pipeline *pipeline,
                  uint32_t run, bool observed, struct rig *rig) {
        const struct hr_graph *graph = scene->graph;
        struct ride *ride = &watcher->ride;

        ride_init(ride);
        for (uint32_t i = 0; i < 2; ++i) {
                for (uint32_t k = 0; k < FULL; ++k)
                        watcher->in[i][k] = start_value(i + run, k);
                ride->inputs[i] = (struct hr_run_input){.data = watcher->in[i],
                                                        .bytes = sizeof watcher->in[i]};
        }
        for (uint32_t o = 0; o < graph->output_count; ++o)
                watcher->outputs[o] = (struct hr_run_output){
                        .tensor = graph->outputs[o],
                        .data = watcher->out[o],
                        .bytes = hr_tensor_bytes(&graph->tensors[graph->outputs[o]])};
        ride->run.outputs = watcher->outputs;
        ride->run.output_count = graph->output_count;
        watcher->waits = false;
        if (observed) {
                ride->run.at_tap = watcher_at_tap;
                ride->run.tap_data = watcher->shown;
        }
        HR_EXPECT_OK(ride_start(ride, pipeline, &rig->diag), &rig->diag);
}

/* Goes from tap to tap; stops at the one with number `stop_at`. Returns how many it saw. */
static uint32_t observe(struct watcher *watcher, const struct scene *scene, uint32_t stop_at,
                        const char *what) {
        struct hr_run *run = &watcher->ride.run;
        uint32_t seen = 0;

        while (wait_for_tap(watcher)) {
                const struct hr_tensor *t = &scene->graph->tensors[scene->taps[run->tap]];

                HR_EXPECT_EQ(run->tap, seen);
                if (memcmp(watcher->shown, watcher->meaning.taps[seen],
                           (size_t) t->ne[0] * sizeof(float)) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s: tap %u (tensor %u) differs", what,
                                     seen, scene->taps[seen]);
                if (seen++ == stop_at)
                        hr_run_cancel(run, HR_E_CANCELLED, "TAP_STOP");
                memset(watcher->shown, 0xff, sizeof watcher->shown);
                hr_run_resume(run);
        }
        return seen;
}

static void finish(struct watcher *watcher, const struct scene *scene, const char *what) {
        HR_EXPECT_EQ(ride_wait(&watcher->ride), HR_OK);
        for (uint32_t o = 0; o < scene->graph->output_count; ++o) {
                if (memcmp(watcher->out[o], watcher->meaning.outputs[o],
                           watcher->outputs[o].bytes) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s: output %u (tensor %u) differs", what,
                                     o, scene->graph->outputs[o]);
        }
        ride_deinit(&watcher->ride);
}

/* States that a node up to the tap writes into. */
static uint32_t written_before(const struct scene *scene, uint32_t tap) {
        uint32_t set = 0;

        for (uint32_t id = LEAVES; id <= scene->taps[tap]; ++id) {
                const struct hr_tensor *t = &scene->graph->tensors[id];

                if (!hr_op_is_view(t->op) && (t->view_base == STATE_A || t->view_base == STATE_B))
                        set |= 1U << t->view_base;
        }
        return set;
}

static void stop_one(struct watcher *watcher, const struct scene *scene, uint32_t stop_at,
                     const char *what) {
        struct hr_run *run = &watcher->ride.run;
        uint32_t leaves[LEAVES], count, set = 0;

        for (uint32_t seen = 0; wait_for_tap(watcher); ++seen) {
                if (seen == stop_at) {
                        count = hr_run_written_states(run, leaves, LEAVES);
                        for (uint32_t i = 0; i < count; ++i)
                                set |= 1U << leaves[i];
                        HR_EXPECT_EQ(set, written_before(scene, stop_at));
                        hr_run_cancel(run, HR_E_CANCELLED, "TAP_STOP");
                }
                HR_EXPECT(seen <= stop_at);
                hr_run_resume(run);
        }
        if (ride_wait(&watcher->ride) != HR_E_CANCELLED)
                hr_test_fail(__FILE__, __LINE__, "%s: a stopped run is not cancelled", what);
        HR_EXPECT_STREQ(run->outcome.diag.reason, "TAP_STOP");
        ride_deinit(&watcher->ride);
}

static void run_all(struct rig *rig, struct hr_pipeline *pipeline, const struct scene *scene,
                    const char *what) {
        static struct watcher watchers[RUNS + 1];
        static struct meaning meaning;
        uint32_t slots = hr_pipeline_copies(pipeline), done = 0;

        for (uint32_t n = 0; n <= RUNS; ++n) {
                bool observed = n % 3 == 1 || n == RUNS;

                while (n - done >= slots)
                        finish(&watchers[done++], scene, what);
                interpret(&meaning, scene, n);
                watchers[n].meaning = meaning;
                start(&watchers[n], scene, pipeline, n, observed, rig);
                if (n == RUNS)
                        break;
                if (observed)
                        HR_EXPECT_EQ(observe(&watchers[n], scene, UINT32_MAX, what),
                                     scene->tap_count);
        }
        stop_one(&watchers[RUNS], scene, scene->tap_count / 2, what);
        while (done < RUNS)
                finish(&watchers[done++], scene, what);
}

static struct hr_pipeline *pipeline_of(struct rig *rig, const struct scene *scene,
                                       const struct hr_leaf_home *homes, const int32_t *pins,
                                       uint32_t n_copies, struct hr_state_use **states) {
        struct hr_plan_request request = {.graph = scene->graph,
                                          .fleet = rig->fleet,
                                          .homes = homes,
                                          .pins = pins,
                                          .taps = scene->taps,
                                          .tap_count = scene->tap_count,
                                          .options = {.n_copies = n_copies, .optimize = true}};
        struct hr_pipeline_request bind = {.graph = scene->graph,
                                           .fleet = rig->fleet,
                                           .homes = homes,
                                           .states = states,
                                           .state_count = 2};
        struct hr_pipeline *pipeline = NULL;
        struct hr_plan *plan = NULL;

        HR_EXPECT_OK(hr_plan_new(&request, &rig->diag, &plan), &rig->diag);
        HR_EXPECT_EQ(hr_plan_summary(plan).tap_count, scene->tap_count);
        bind.plan = plan;
        HR_EXPECT_OK(hr_pipeline_new(&bind, &rig->diag, &pipeline), &rig->diag);
        hr_plan_unref(plan);
        return pipeline;
}

static void run_on(const struct scene *scene, const struct rig_device *devices, uint32_t count,
                   uint32_t n_copies, const char *what) {
        struct hr_leaf_home homes[LEAVES] = {{0}};
        struct hr_state_use uses[2] = {{0}}, *states[2] = {&uses[0], &uses[1]};
        struct hr_pipeline *pipeline;
        int32_t pins[TENSORS];
        struct rig rig;

        rig_init(&rig, devices, count);
        for (uint32_t i = WEIGHT; i < LEAVES; ++i) {
                float *values;

                HR_EXPECT_OK(hr_buffer_new(rig.devices[scene->homes[i] % count],
                                           FULL * sizeof(float),
                                           i == WEIGHT ? HR_USAGE_WEIGHTS : HR_USAGE_ANY, &rig.diag,
                                           &homes[i].buffer),
                             &rig.diag);
                values = homes[i].buffer->host_base;
                for (uint32_t k = 0; k < FULL; ++k)
                        values[k] = start_value(i, k);
        }
        for (uint32_t i = 0; i < TENSORS; ++i)
                pins[i] = scene->pins[i] ? (int32_t) (scene->pins[i] % count) : HR_NO_PIN;
        pipeline = pipeline_of(&rig, scene, homes, pins, n_copies, states);
        run_all(&rig, pipeline, scene, what);
        hr_pipeline_free(pipeline);
        for (uint32_t i = WEIGHT; i < LEAVES; ++i)
                hr_buffer_unref(homes[i].buffer);
        rig_deinit(&rig);
}

static void one_seed(uint32_t seed) {
        static const struct rig_device fleets[][3] = {
                {{0}},
                {{.isolated = true}, {.isolated = true}, {0}},
                {{.opaque = true, .delay_us = 40}, {.isolated = true}, {0}},
                {{.delay_us = 10}, {0}, {.isolated = true}},
        };
        static const uint32_t copies[] = {1, 2, 4};
        struct dice dice = {UINT64_C(0x9e3779b97f4a7c15) * (seed + 1)};
        struct scene scene;

        for (int i = 0; i < 8; ++i)
                (void) roll(&dice, 2);
        scene_init(&scene, &dice);
        for (uint32_t c = 0; c < HR_ARRAY_LENGTH(copies) && scene.tap_count; ++c) {
                uint32_t f = roll(&dice, HR_ARRAY_LENGTH(fleets));
                char what[64];

                snprintf(what, sizeof what, "seed %u, fleet %u, %u slots", seed, f, copies[c]);
                run_on(&scene, fleets[f], f ? 3 : 1, copies[c], what);
        }
        hr_graph_unref(scene.graph);
}

HR_TEST_LIMIT(taps_show_what_has_been_computed, 240) {
        const char *only = getenv("HR_SEED");

        if (only) {
                one_seed((uint32_t) strtoul(only, NULL, 10));
                return;
        }
        for (uint32_t seed = 0; seed < 100; ++seed)
                one_seed(seed);
}

/* ---- Requests that make no sense
 * --------------------------------------------------------------- */

HR_TEST(taps_are_nodes_in_order) {
        static const struct rig_device one[] = {{0}};
        static const uint32_t bad[][2] = {{0, 3}, {2, 2}, {3, 2}, {2, 9}};
        struct sketch sketch;
        struct rig rig;
        struct hr_graph *graph;
        uint32_t x;

        rig_init(&rig, one, 1);
        sketch_init(&sketch, 8);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < 3; ++i)
                x = sketch_node(&sketch, HR_OP_SQR, x, HR_TENSOR_NONE, HR_NO_PIN);
        sketch_output(&sketch, x);
        graph = sketch_finish(&sketch);
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(bad); ++i) {
                struct hr_plan_request request = {
                        .graph = graph, .fleet = rig.fleet, .taps = bad[i], .tap_count = 2};
                struct hr_plan *plan = NULL;
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(hr_plan_new(&request, &diag, &plan), HR_E_INVALID);
                HR_EXPECT_STREQ(diag.reason, "TAP");
        }
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}
