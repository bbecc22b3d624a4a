/* See plot.h. */
#include "tests/fake/plot.h"

static uint32_t node(struct plot *plot, uint32_t op, uint32_t a, uint32_t b, int32_t pin) {
        uint32_t sources[2] = {a, b};
        uint32_t id = hr_build_node(plot->build, op, HR_TYPE_F32, PLOT_WIDTH, 1, 1, 1, 2, sources);

        plot->pins[id] = pin;
        return id;
}

static void plot_graph(struct plot *plot) {
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        struct hr_build *build = plot->build = hr_build_new();
        float ten[PLOT_WIDTH];
        int32_t last = (int32_t) plot->studio.device_count - 1;
        uint32_t a, b, mixture[2];

        plot->x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", PLOT_WIDTH, 1, 1, 1);
        plot->ids = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "ids", PLOT_USED, 1, 1, 1);
        plot->ten = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "", PLOT_WIDTH, 1, 1, 1);
        plot->w = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "w", PLOT_WIDTH, 1, 1, 1);
        plot->s = hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", PLOT_WIDTH, 1, 1, 1);
        plot->up = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "up", PLOT_WIDTH, PLOT_WIDTH,
                                 PLOT_EXPERTS, 1);
        plot->gate = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "gate", PLOT_WIDTH,
                                   PLOT_WIDTH, PLOT_EXPERTS, 1);
        for (int i = 0; i < PLOT_WIDTH; ++i)
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

                mixture[m] = hr_build_node(build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, PLOT_WIDTH,
                                           PLOT_USED, 1, 1, 3, sources);
                plot->pins[mixture[m]] = 0;
        }
        plot->mixed = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, PLOT_WIDTH, PLOT_USED, 1, 1, 2,
                                    mixture);
        plot->pins[plot->mixed] = 0;
        plot->read = node(plot, HR_OP_ADD, plot->sum, plot->ten, last);
        hr_build_tensor(build, plot->mixed)->flags |= HR_TENSOR_OUTPUT;
        hr_build_tensor(build, plot->read)->flags |= HR_TENSOR_OUTPUT;
        plot->taps[0] = b;
        plot->taps[1] = plot->mixed;
        plot->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(plot->graph, &limits, &plot->studio.diag),
                     &plot->studio.diag);
}

/* Element (k, row) of an expert: 1 at one row per column, so products stay small. */
static float element(uint32_t m, int64_t expert, int64_t row, int64_t k) {
        return (float) ((k + row + expert) % PLOT_WIDTH == 0 ? 1 + expert + (int64_t) m : 0);
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

void plot_init(struct plot *plot, uint32_t form) {
        uint32_t devices = 2 + form / 2 % 2;
        struct hr_fake_config config = {.host = true,
                                        .peer = form % 2,
                                        .experts = true,
                                        .uploads = form % 3 != 0,
                                        .compute_ns = cost,
                                        .arg = plot,
                                        .command_ns = 10};
        float *values;

        memset(plot, 0, sizeof *plot);
        plot->last_ns = form < 4 ? 1000 : 3000 * (form - 3);
        studio_init(&plot->studio, devices, &config);
        plot_graph(plot);
        values = home(plot, plot->w, 0, HR_USAGE_WEIGHTS);
        for (int i = 0; i < PLOT_WIDTH; ++i)
                values[i] = (float) i;
        (void) home(plot, plot->s, 1, HR_USAGE_ANY);
        for (uint32_t m = 0; m < 2; ++m) {
                values = home(plot, m ? plot->gate : plot->up, 1, HR_USAGE_WEIGHTS);
                for (int64_t i = 0; i < PLOT_EXPERTS * PLOT_WIDTH * PLOT_WIDTH; ++i)
                        values[i] = element(m, i / (PLOT_WIDTH * PLOT_WIDTH),
                                            i / PLOT_WIDTH % PLOT_WIDTH, i % PLOT_WIDTH);
        }
        plot->uses[0] = &plot->use;
        hr_fake_submit_ns(plot->studio.world, form < 4 ? 0 : 200);
}

void plot_deinit(struct plot *plot) {
        for (int i = 0; i < 8; ++i)
                hr_buffer_unref(plot->homes[i].buffer);
        hr_graph_unref(plot->graph);
        for (uint32_t d = 0; d < plot->studio.device_count; ++d)
                HR_EXPECT_EQ(atomic_load(&plot->studio.devices[d]->used_bytes), 0);
        studio_deinit(&plot->studio);
}

hr_status plot_pipeline(struct plot *plot, uint32_t n_copies, struct hr_workspace *workspace,
                        struct hr_diag *diag, struct hr_pipeline **ret_pipeline) {
        struct hr_plan_request request = {.graph = plot->graph,
                                          .fleet = plot->studio.fleet,
                                          .homes = plot->homes,
                                          .pins = plot->pins,
                                          .options = {.n_copies = n_copies}};
        struct hr_pipeline_request bind = {.graph = plot->graph,
                                           .fleet = plot->studio.fleet,
                                           .homes = plot->homes,
                                           .states = plot->uses,
                                           .state_count = 1,
                                           .workspace = workspace};
        struct hr_plan *plan = NULL;
        hr_status status;

        if (plot->mode == PLOT_OBSERVED) {
                request.taps = plot->taps;
                request.tap_count = 2;
        }
        HR_EXPECT_OK(hr_plan_new(&request, diag, &plan), diag);
        bind.plan = plan;
        status = hr_pipeline_new(&bind, diag, ret_pipeline);
        hr_plan_unref(plan);
        return status;
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

static void shot_at_tap(struct hr_run *run, void *arg) {
        struct shot *shot = HR_CONTAINER_OF((struct take *) arg, struct shot, take);

        HR_EXPECT(run == &shot->take.run);
        ++shot->at_tap;
}

void shoot(struct plot *plot, struct hr_pipeline *pipeline, uint32_t number, struct shot *shot) {
        struct hr_diag diag = {0};

        memset(shot, 0, sizeof *shot);
        take_init(&shot->take, &plot->studio);
        for (int i = 0; i < PLOT_WIDTH; ++i)
                shot->x[i] = (float) (number + (uint32_t) i % 3);
        for (uint32_t u = 0; u < PLOT_USED; ++u)
                shot->ids[u] = (int32_t) ((number + u * 3) % PLOT_EXPERTS);
        shot->take.inputs[0] = (struct hr_run_input){shot->x, sizeof shot->x};
        shot->take.inputs[1] = (struct hr_run_input){shot->ids, sizeof shot->ids};
        shot->take.outputs[0] =
                (struct hr_run_output){plot->mixed, shot->mixed, sizeof shot->mixed};
        shot->take.outputs[1] = (struct hr_run_output){plot->read, shot->read, sizeof shot->read};
        shot->take.run.output_count = 2;
        if (plot->mode == PLOT_TRACED) {
                HR_EXPECT(hr_pipeline_command_count(pipeline) <= PLOT_COMMANDS);
                shot->take.run.trace = shot->trace;
        }
        if (plot->mode == PLOT_OBSERVED) {
                shot->take.run.at_tap = shot_at_tap;
                shot->take.run.tap_data = shot->tap;
        }
        shot->started = hr_run_start(pipeline, &shot->take.run, &diag);
}

hr_status shot_wait(struct shot *shot) {
        while (shot->take.done_count == 0) {
                if (shot->at_tap > shot->taps_seen) {
                        ++shot->taps_seen;
                        hr_run_resume(&shot->take.run);
                        continue;
                }
                HR_EXPECT(hr_fake_step(shot->take.world));
        }
        HR_EXPECT_EQ(shot->at_tap, shot->taps_seen);
        shot->ended = take_wait(&shot->take);
        return shot->ended;
}

void volley(struct plot *plot, struct hr_pipeline *const *pipelines, uint32_t pipeline_count,
            uint32_t first, struct shot *shots) {
        uint32_t started = 0;

        for (uint32_t ended = 0; ended < PLOT_RUNS; ++ended) {
                /* An observed run is alone. */
                while (started < PLOT_RUNS && (plot->mode != PLOT_OBSERVED || started == ended) &&
                       hr_pipeline_has_slot(pipelines[started % pipeline_count])) {
                        shoot(plot, pipelines[started % pipeline_count], first + started,
                              &shots[started]);
                        HR_EXPECT_EQ(shots[started++].started, HR_OK);
                }
                HR_EXPECT(ended < started);
                (void) shot_wait(&shots[ended]);
        }
        hr_fake_run(plot->studio.world);
        for (uint32_t i = 0; i < PLOT_RUNS; ++i)
                HR_EXPECT_EQ(shots[i].take.done_count, 1);
}

/* What the graph says, in plain arithmetic: what depends on the run's input alone, ... */
void expect_mixed(const struct shot *shot) {
        float b[PLOT_WIDTH];

        for (int i = 0; i < PLOT_WIDTH; ++i)
                b[i] = shot->x[i] + (float) i + 10 + shot->x[i];
        for (uint32_t u = 0; u < PLOT_USED; ++u) {
                for (int64_t row = 0; row < PLOT_WIDTH; ++row) {
                        float sum = 0;

                        for (int64_t k = 0; k < PLOT_WIDTH; ++k)
                                sum += (element(0, shot->ids[u], row, k) +
                                        element(1, shot->ids[u], row, k)) *
                                       b[k];
                        HR_EXPECT_EQ(shot->mixed[u][row], sum);
                }
        }
}

/* ... and what depends on the state, too, which is as it was before. */
static void expect_shot(const struct shot *shot, float state[PLOT_WIDTH]) {
        for (int i = 0; i < PLOT_WIDTH; ++i) {
                state[i] += shot->x[i] + (float) i + 10 + shot->x[i];
                HR_EXPECT_EQ(shot->read[i], state[i] + 10);
        }
        expect_mixed(shot);
}

void expect_all_right(struct plot *plot, struct hr_pipeline *const *pipelines,
                      uint32_t pipeline_count, uint32_t first) {
        static struct shot shots[PLOT_RUNS];
        float state[PLOT_WIDTH] = {0};

        memset(plot->homes[plot->s].buffer->host_base, 0, sizeof state);
        volley(plot, pipelines, pipeline_count, first, shots);
        for (uint32_t i = 0; i < PLOT_RUNS; ++i) {
                HR_EXPECT_OK(shots[i].ended, &shots[i].take.run.outcome.diag);
                HR_EXPECT_EQ(shots[i].taps_seen, plot->mode == PLOT_OBSERVED ? 2 : 0);
                expect_shot(&shots[i], state);
        }
        HR_EXPECT(memcmp(plot->homes[plot->s].buffer->host_base, state, sizeof state) == 0);
}
