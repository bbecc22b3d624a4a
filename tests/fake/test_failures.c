/*
 * Every call and every command fails once: while pipelines are made, and while they run.
 *
 * The graph has all that a pipeline can have to give back: a GPU and one or two devices on host
 * memory (a lane of two queues), copies both ways, a constant, a state, a weight in the GPU's
 * memory, and two weights of a mixture in host memory of which the used experts travel. All values are small integers, so that plain arithmetic gives the
 * exact results. The sanitizers look for what is not given back.
 */
#include "tests/fake/studio.h"

enum { WIDTH = 8, EXPERTS = 4, USED = 2, RUNS = 6, FORMS = 12 };

struct plot {
        struct studio studio;
        uint64_t last_ns; /* that the last device takes for a step */
        struct hr_build *build;
        struct hr_graph *graph;
        int32_t pins[32];
        struct hr_leaf_home homes[8];
        struct hr_state_use use, *uses[1];
        uint32_t x, ids, ten, w, s, up, gate, sum, mixed, read;
};

static uint32_t node(struct plot *plot, uint32_t op, uint32_t a, uint32_t b, int32_t pin) {
        uint32_t sources[2] = {a, b};
        uint32_t id = hr_build_node(plot->build, op, HR_TYPE_F32, WIDTH, 1, 1, 1, 2, sources);

        plot->pins[id] = pin;
        return id;
}

static void plot_graph(struct plot *plot) {
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_build *build = plot->build = hr_build_new();
        float ten[WIDTH];
        int32_t last = (int32_t) plot->studio.device_count - 1;
        uint32_t a, b, mixture[2];

        plot->x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", WIDTH, 1, 1, 1);
        plot->ids = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "ids", USED, 1, 1, 1);
        plot->ten = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "", WIDTH, 1, 1, 1);
        plot->w = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "w", WIDTH, 1, 1, 1);
        plot->s = hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", WIDTH, 1, 1, 1);
        plot->up = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "up", WIDTH, WIDTH, EXPERTS, 1);
        plot->gate =
                hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "gate", WIDTH, WIDTH, EXPERTS, 1);
        for (int i = 0; i < WIDTH; ++i)
                ten[i] = 10;
        hr_build_constant(build, plot->ten, ten, sizeof ten);
        memset(plot->pins, 0xff, sizeof plot->pins);
        a = node(plot, HR_OP_ADD, plot->x, plot->w, 0);
        a = node(plot, HR_OP_ADD, a, plot->ten, 0);
        b = node(plot, HR_OP_ADD, a, plot->x, 1);
        plot->sum = node(plot, HR_OP_ADD, plot->s, b, 1);
        hr_build_tensor(build, plot->sum)->view_base = plot->s;
        for (int m = 0; m < 2; ++m) {
                uint32_t sources[3] = {m ? plot->gate : plot->up, b, plot->ids};

                mixture[m] = hr_build_node(build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, WIDTH, USED, 1, 1,
                                           3, sources);
                plot->pins[mixture[m]] = 0;
        }
        plot->mixed = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, WIDTH, USED, 1, 1, 2, mixture);
        plot->pins[plot->mixed] = 0;
        plot->read = node(plot, HR_OP_ADD, plot->sum, plot->ten, last);
        hr_build_tensor(build, plot->mixed)->flags |= HR_TENSOR_OUTPUT;
        hr_build_tensor(build, plot->read)->flags |= HR_TENSOR_OUTPUT;
        plot->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(plot->graph, &limits, &plot->studio.diag),
                     &plot->studio.diag);
}

/* Element (k, row) of an expert: 1 at one row per column, so products stay small. */
static float element(uint32_t m, int64_t expert, int64_t row, int64_t k) {
        return (float) ((k + row + expert) % WIDTH == 0 ? 1 + expert + (int64_t) m : 0);
}

static float *home(struct plot *plot, uint32_t leaf, uint32_t device, hr_buffer_usage usage) {
        uint64_t bytes = hr_tensor_bytes(&plot->graph->tensors[leaf]);

        HR_EXPECT_OK(hr_buffer_new(plot->studio.devices[device], bytes, usage, &plot->studio.diag,
                                   &plot->homes[leaf].buffer),
                     &plot->studio.diag);
        return plot->homes[leaf].buffer->host_base;
}

/* A read of the state on the last device is as slow as told, everything else is quick. */
static uint64_t cost(void *arg, const struct hr_steps *steps, uint32_t first, uint32_t count) {
        const struct plot *plot = arg;
        bool reads = false;

        for (uint32_t i = first; i < first + count; ++i)
                reads = reads || steps->steps[i].node + plot->graph->leaf_count == plot->read;
        return reads ? plot->last_ns : 1000 * (uint64_t) count;
}

/* Forms 0 to 3: two or three devices, copies through the host or direct; the others: the same, calls take
 * time and the last device is slow, so that a run may be under way while the next is submitted. */
static void plot_init(struct plot *plot, uint32_t form) {
        uint32_t devices = 2 + form / 2 % 2;
        struct hr_fake_config config = {.host = true,
                                        .peer = form % 2,
                                        .experts = true,
                                        .compute_ns = cost,
                                        .arg = plot,
                                        .command_ns = 10};
        float *values;

        memset(plot, 0, sizeof *plot);
        plot->last_ns = form < 4 ? 1000 : 3000 * (form - 3);
        studio_init(&plot->studio, devices, &config);
        plot_graph(plot);
        values = home(plot, plot->w, 0, HR_USAGE_WEIGHTS);
        for (int i = 0; i < WIDTH; ++i)
                values[i] = (float) i;
        (void) home(plot, plot->s, 1, HR_USAGE_ANY);
        for (uint32_t m = 0; m < 2; ++m) {
                values = home(plot, m ? plot->gate : plot->up, 1, HR_USAGE_WEIGHTS);
                for (int64_t i = 0; i < EXPERTS * WIDTH * WIDTH; ++i)
                        values[i] = element(m, i / (WIDTH * WIDTH), i / WIDTH % WIDTH, i % WIDTH);
        }
        plot->uses[0] = &plot->use;
        hr_fake_submit_ns(plot->studio.world, form < 4 ? 0 : 200);
}

static void plot_deinit(struct plot *plot) {
        for (int i = 0; i < 8; ++i)
                hr_buffer_unref(plot->homes[i].buffer);
        hr_graph_unref(plot->graph);
        for (uint32_t d = 0; d < plot->studio.device_count; ++d)
                HR_EXPECT_EQ(atomic_load(&plot->studio.devices[d]->used_bytes), 0);
        studio_deinit(&plot->studio);
}

static hr_status plot_pipeline(struct plot *plot, uint32_t n_copies, struct hr_diag *diag,
                               struct hr_pipeline **ret_pipeline) {
        struct hr_plan_request request = {.graph = plot->graph,
                                          .fleet = plot->studio.fleet,
                                          .homes = plot->homes,
                                          .pins = plot->pins,
                                          .options = {.n_copies = n_copies}};
        struct hr_pipeline_request bind = {.graph = plot->graph,
                                           .fleet = plot->studio.fleet,
                                           .homes = plot->homes,
                                           .states = plot->uses,
                                           .state_count = 1};
        struct hr_plan *plan = NULL;
        hr_status status;

        HR_EXPECT_OK(hr_plan_new(&request, diag, &plan), diag);
        bind.plan = plan;
        status = hr_pipeline_new(&bind, diag, ret_pipeline);
        hr_plan_unref(plan);
        return status;
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

struct shot {
        struct take take;
        float x[WIDTH], mixed[USED][WIDTH], read[WIDTH];
        int32_t ids[USED];
        hr_status started, ended;
};

static void shoot(struct plot *plot, struct hr_pipeline *pipeline, uint32_t number,
                  struct shot *shot) {
        struct hr_diag diag = {0};

        take_init(&shot->take, &plot->studio);
        for (int i = 0; i < WIDTH; ++i)
                shot->x[i] = (float) (number + (uint32_t) i % 3);
        for (uint32_t u = 0; u < USED; ++u)
                shot->ids[u] = (int32_t) ((number + u * 3) % EXPERTS);
        memset(shot->mixed, 0, sizeof shot->mixed);
        memset(shot->read, 0, sizeof shot->read);
        shot->take.inputs[0] = (struct hr_run_input){shot->x, sizeof shot->x};
        shot->take.inputs[1] = (struct hr_run_input){shot->ids, sizeof shot->ids};
        shot->take.outputs[0] =
                (struct hr_run_output){plot->mixed, shot->mixed, sizeof shot->mixed};
        shot->take.outputs[1] = (struct hr_run_output){plot->read, shot->read, sizeof shot->read};
        shot->take.run.output_count = 2;
        shot->started = hr_run_start(pipeline, &shot->take.run, &diag);
}

/* Runs one after the other, as many in flight as there are slots. */
static void volley(struct plot *plot, struct hr_pipeline *pipeline, uint32_t first,
                   struct shot *shots, uint32_t count) {
        uint32_t started = 0;

        for (uint32_t ended = 0; ended < count; ++ended) {
                for (; started < count && hr_pipeline_has_slot(pipeline); ++started) {
                        shoot(plot, pipeline, first + started, &shots[started]);
                        HR_EXPECT_EQ(shots[started].started, HR_OK);
                }
                HR_EXPECT(ended < started);
                shots[ended].ended = take_wait(&shots[ended].take);
        }
        hr_fake_run(plot->studio.world);
        for (uint32_t i = 0; i < count; ++i)
                HR_EXPECT_EQ(shots[i].take.done_count, 1);
}

/* What the graph says, in plain arithmetic: what depends on the run's input alone, ... */
static void expect_mixed(const struct shot *shot) {
        float b[WIDTH];

        for (int i = 0; i < WIDTH; ++i)
                b[i] = shot->x[i] + (float) i + 10 + shot->x[i];
        for (uint32_t u = 0; u < USED; ++u) {
                for (int64_t row = 0; row < WIDTH; ++row) {
                        float sum = 0;

                        for (int64_t k = 0; k < WIDTH; ++k)
                                sum += (element(0, shot->ids[u], row, k) +
                                        element(1, shot->ids[u], row, k)) *
                                       b[k];
                        HR_EXPECT_EQ(shot->mixed[u][row], sum);
                }
        }
}

/* ... and what depends on the state, too, which is as it was before. */
static void expect_shot(const struct shot *shot, float state[WIDTH]) {
        for (int i = 0; i < WIDTH; ++i) {
                state[i] += shot->x[i] + (float) i + 10 + shot->x[i];
                HR_EXPECT_EQ(shot->read[i], state[i] + 10);
        }
        expect_mixed(shot);
}

/* A state begins anew: what a failed run has left in it is nobody's promise. */
static void expect_all_right(struct plot *plot, struct hr_pipeline *pipeline, uint32_t first) {
        static struct shot shots[RUNS];
        float state[WIDTH] = {0};

        memset(plot->homes[plot->s].buffer->host_base, 0, sizeof state);
        volley(plot, pipeline, first, shots, RUNS);
        for (uint32_t i = 0; i < RUNS; ++i) {
                HR_EXPECT_OK(shots[i].ended, &shots[i].take.run.outcome.diag);
                expect_shot(&shots[i], state);
        }
        HR_EXPECT(memcmp(plot->homes[plot->s].buffer->host_base, state, sizeof state) == 0);
}

HR_TEST(the_graph_computes_what_it_says) {
        for (uint32_t n = 0; n <= 4; ++n) {
                for (uint32_t form = 0; form < FORMS; ++form) {
                        struct hr_pipeline *pipeline = NULL;
                        struct hr_diag diag = {0};
                        struct plot plot;

                        plot_init(&plot, form);
                        HR_EXPECT_OK(plot_pipeline(&plot, n, &diag, &pipeline), &diag);
                        expect_all_right(&plot, pipeline, 1);
                        expect_all_right(&plot, pipeline, 100);
                        hr_pipeline_free(pipeline);
                        plot_deinit(&plot);
                }
        }
}

/* ---- Failing calls -----------------------------------------------------------------------------
 */

/* Making a pipeline fails with the status of the call, or makes do with less; never is anything
 * left over, and the next attempt succeeds. Returns false when call n was not reached. */
static bool make_with_failure(uint64_t n, hr_status failure, bool all_later, uint32_t n_copies,
                              uint32_t form) {
        struct hr_pipeline *pipeline = NULL;
        struct hr_diag diag = {0};
        struct plot plot;
        hr_status status;
        uint64_t before[2], calls;

        plot_init(&plot, form);
        for (uint32_t d = 0; d < 2; ++d)
                before[d] = atomic_load(&plot.studio.devices[d]->used_bytes);
        calls = hr_fake_calls(plot.studio.world);
        hr_fake_fail_call(plot.studio.world, n, failure, all_later);
        status = plot_pipeline(&plot, n_copies, &diag, &pipeline);
        calls = hr_fake_calls(plot.studio.world) - calls;
        hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
        if (status != HR_OK) {
                HR_EXPECT_EQ(status, failure);
                HR_EXPECT_EQ(hr_status_scope(status), hr_status_scope(failure));
                HR_EXPECT_EQ(diag.status, failure);
                HR_EXPECT(diag.words[0]);
                HR_EXPECT(!pipeline);
                HR_EXPECT(calls >= n);
        } else {
                HR_EXPECT(calls < n || failure == HR_E_EXHAUSTED);
                expect_all_right(&plot, pipeline, 1);
        }
        pipeline = hr_pipeline_free(pipeline);
        for (uint32_t d = 0; d < 2; ++d)
                HR_EXPECT_EQ(atomic_load(&plot.studio.devices[d]->used_bytes), before[d]);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(plot_pipeline(&plot, n_copies, &diag, &pipeline), &diag);
        expect_all_right(&plot, pipeline, 7);
        hr_pipeline_free(pipeline);
        plot_deinit(&plot);
        return calls >= n;
}

HR_TEST_LIMIT(every_call_fails_once_while_a_pipeline_is_made, 60) {
        static const hr_status failures[] = {HR_E_EXHAUSTED, HR_E_INTERNAL, HR_E_UNAVAILABLE};
        uint64_t most = 0;

        for (size_t f = 0; f < HR_ARRAY_LENGTH(failures); ++f) {
                for (uint32_t n_copies = 1; n_copies <= 3; n_copies += 2) {
                        for (int all_later = 0; all_later < 2; ++all_later) {
                                uint64_t n = 1;

                                while (make_with_failure(n, failures[f], all_later, n_copies,
                                                         n_copies))
                                        HR_EXPECT(++n < 1000);
                                most = HR_MAX(most, n);
                        }
                }
        }
        printf("up to %" PRIu64 " calls failed\n", most - 1);
        HR_EXPECT(most > 10);
}

/* One call fails while six runs go by. Those that it does not concern are right, the others fail
 * with its status, each ends once, and so do six more that are all right. */
static bool run_with_failure(uint64_t n, hr_status failure, bool is_command, uint32_t n_copies,
                             uint32_t form) {
        static struct shot shots[RUNS];
        struct hr_pipeline *pipeline = NULL;
        struct hr_diag diag = {0};
        struct plot plot;
        uint64_t reached;
        uint32_t failed = 0;

        plot_init(&plot, form);
        HR_EXPECT_OK(plot_pipeline(&plot, n_copies, &diag, &pipeline), &diag);
        hr_fake_run(plot.studio.world);
        reached = is_command ? hr_fake_commands(plot.studio.world)
                             : hr_fake_calls(plot.studio.world);
        if (is_command)
                hr_fake_fail_command(plot.studio.world, n, failure);
        else
                hr_fake_fail_call(plot.studio.world, n, failure, false);
        volley(&plot, pipeline, 1, shots, RUNS);
        reached = (is_command ? hr_fake_commands(plot.studio.world)
                              : hr_fake_calls(plot.studio.world)) -
                  reached;
        hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
        hr_fake_fail_command(plot.studio.world, 0, HR_OK);
        for (uint32_t i = 0; i < RUNS; ++i) {
                if (shots[i].ended == HR_OK) {
                        expect_mixed(&shots[i]);
                        continue;
                }
                ++failed;
                HR_EXPECT_EQ(shots[i].ended, failure);
                HR_EXPECT_STREQ(shots[i].take.run.outcome.diag.reason, "SCRIPTED");
        }
        HR_EXPECT_EQ(failed, reached >= n ? 1 : 0);
        expect_all_right(&plot, pipeline, 20);
        hr_pipeline_free(pipeline);
        plot_deinit(&plot);
        return reached >= n;
}

static void fail_all_runs(bool is_command) {
        static const hr_status failures[] = {HR_E_EXHAUSTED, HR_E_INTERNAL, HR_E_UNAVAILABLE};
        uint64_t most = 0;

        for (uint32_t n_copies = 1; n_copies <= 3; ++n_copies) {
                for (uint32_t form = 0; form < FORMS; ++form) {
                        uint64_t n = 1;

                        while (run_with_failure(n, failures[n % 3], is_command, n_copies, form))
                                HR_EXPECT(++n < 2000);
                        most = HR_MAX(most, n);
                }
        }
        printf("up to %" PRIu64 " %s failed\n", most - 1, is_command ? "commands" : "calls");
        HR_EXPECT(most > 50);
}

HR_TEST_LIMIT(every_call_fails_once_while_it_runs, 120) {
        fail_all_runs(false);
}

HR_TEST_LIMIT(every_command_fails_once, 120) {
        fail_all_runs(true);
}

/* Constants that do not arrive fail every run of that pipeline, and no other's. */
HR_TEST(lost_constants_fail_the_runs_of_their_pipeline) {
        struct hr_pipeline *pipeline = NULL, *other = NULL;
        struct hr_diag diag = {0};
        struct shot shot;
        struct plot plot;

        plot_init(&plot, 1);
        hr_fake_fail_command(plot.studio.world, 1, HR_E_INTERNAL);
        HR_EXPECT_OK(plot_pipeline(&plot, 2, &diag, &pipeline), &diag);
        for (uint32_t i = 0; i < 3; ++i) {
                shoot(&plot, pipeline, i, &shot);
                HR_EXPECT_EQ(shot.started, HR_OK);
                HR_EXPECT_EQ(take_wait(&shot.take), HR_E_INTERNAL);
                HR_EXPECT_EQ(shot.take.done_count, 1);
        }
        HR_EXPECT_OK(plot_pipeline(&plot, 2, &diag, &other), &diag);
        expect_all_right(&plot, other, 1);
        hr_pipeline_free(other);
        hr_pipeline_free(pipeline);
        plot_deinit(&plot);
}

/* An edge that is missing lets no run start until those in flight are over. */
HR_TEST(a_missing_edge_holds_later_runs) {
        uint32_t held = 0;

        for (uint64_t n = 1; n < 40; ++n) {
                struct hr_pipeline *pipeline = NULL;
                struct hr_diag diag = {0};
                struct shot shots[2];
                struct plot plot;

                plot_init(&plot, 2);
                HR_EXPECT_OK(plot_pipeline(&plot, 2, &diag, &pipeline), &diag);
                hr_fake_run(plot.studio.world);
                hr_fake_fail_call(plot.studio.world, n, HR_E_EXHAUSTED, false);
                shoot(&plot, pipeline, 1, &shots[0]);
                hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
                HR_EXPECT_EQ(shots[0].started, HR_OK);
                HR_EXPECT_EQ(hr_pipeline_has_slot(pipeline), !hr_fleet_holds(plot.studio.fleet));
                shoot(&plot, pipeline, 2, &shots[1]);
                if (hr_fleet_holds(plot.studio.fleet)) {
                        HR_EXPECT_EQ(shots[1].started, HR_E_UNAVAILABLE);
                        ++held;
                } else {
                        HR_EXPECT_EQ(shots[1].started, HR_OK);
                        HR_EXPECT_EQ(take_wait(&shots[1].take), HR_OK);
                }
                (void) take_wait(&shots[0].take);
                HR_EXPECT(!hr_fleet_holds(plot.studio.fleet));
                expect_all_right(&plot, pipeline, 5);
                hr_pipeline_free(pipeline);
                plot_deinit(&plot);
        }
        printf("%u calls were edges\n", held);
        HR_EXPECT(held >= 4);
}
