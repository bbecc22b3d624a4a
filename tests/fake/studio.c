/* See studio.h. */
#include "tests/fake/studio.h"

void studio_init(struct studio *studio, uint32_t count, const struct hr_fake_config *config) {
        memset(studio, 0, sizeof *studio);
        HR_EXPECT_OK(hr_fake_world_new(false, &studio->diag, &studio->world), &studio->diag);
        studio->devices = calloc(count, sizeof *studio->devices);
        HR_EXPECT(studio->devices);
        for (uint32_t d = 0; d < count; ++d) {
                struct hr_fake_config each = *config;
                char name[16];

                (void) snprintf(name, sizeof name, "d%u", d);
                each.name = name;
                each.host = config->host && d > 0;
                each.type = d + 1 < count ? HR_DEVICE_GPU : HR_DEVICE_CPU;
                HR_EXPECT_OK(hr_fake_device_new(studio->world, &each, &studio->diag,
                                                &studio->devices[d]),
                             &studio->diag);
        }
        studio->device_count = count;
        HR_EXPECT_OK(hr_fleet_new(studio->devices, count, &studio->diag, &studio->fleet),
                     &studio->diag);
}

void studio_deinit(struct studio *studio) {
        hr_fleet_free(studio->fleet);
        for (uint32_t d = 0; d < studio->device_count; ++d)
                hr_device_unref(studio->devices[d]);
        free(studio->devices);
        hr_fake_world_unref(studio->world);
}

void dice_init(struct dice *dice, uint64_t seed) {
        dice->state = UINT64_C(0x9e3779b97f4a7c15) * (seed + 1);
        for (int i = 0; i < 8; ++i)
                (void) dice_roll(dice, 2);
}

uint32_t dice_roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

uint64_t studio_seed(void) {
        const char *given = getenv("HR_SEED");
        uint64_t seed = given ? strtoull(given, NULL, 10) : 1;

        printf("HR_SEED=%" PRIu64 "\n", seed);
        return seed;
}

/* ---- Graphs ------------------------------------------------------------------------------------
 */

void scene_init(struct scene *scene, int64_t width) {
        *scene = (struct scene){.build = hr_build_new(), .width = width};
}

static uint32_t scene_count(struct scene *scene, uint32_t id, int32_t pin) {
        HR_EXPECT_EQ(id, scene->tensor_count);
        if ((scene->tensor_count & (scene->tensor_count - 1)) == 0) {
                size_t room = scene->tensor_count ? scene->tensor_count * 2U : 2;

                scene->pins = realloc(scene->pins, room * sizeof *scene->pins);
                HR_EXPECT(scene->pins);
        }
        scene->pins[scene->tensor_count++] = pin;
        return id;
}

uint32_t scene_leaf(struct scene *scene, hr_leaf_kind kind, const char *name) {
        return scene_count(
                scene, hr_build_leaf(scene->build, kind, HR_TYPE_F32, name, scene->width, 1, 1, 1),
                HR_NO_PIN);
}

uint32_t scene_node(struct scene *scene, uint32_t op, uint32_t a, uint32_t b, int32_t pin) {
        uint32_t sources[2] = {a, b};

        return scene_count(
                scene,
                hr_build_node(scene->build, op, HR_TYPE_F32, scene->width, 1, 1, 1, 2, sources),
                pin);
}

uint32_t scene_in_place(struct scene *scene, uint32_t op, uint32_t a, uint32_t b, int32_t pin) {
        uint32_t id = scene_node(scene, op, a, b, pin);

        hr_build_tensor(scene->build, id)->view_base = a;
        return id;
}

void scene_output(struct scene *scene, uint32_t tensor) {
        hr_build_tensor(scene->build, tensor)->flags |= HR_TENSOR_OUTPUT;
}

void scene_finish(struct scene *scene) {
        struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 40};
        struct hr_diag diag = {0};

        scene->graph = hr_build_finish(scene->build);
        scene->build = NULL;
        HR_EXPECT_OK(hr_graph_validate(scene->graph, &limits, &diag), &diag);
}

void scene_deinit(struct scene *scene) {
        hr_graph_unref(scene->graph);
        free(scene->pins);
}

/* ---- Plans and runs ----------------------------------------------------------------------------
 */

struct hr_plan *studio_plan(struct studio *studio, const struct scene *scene,
                            const struct hr_leaf_home *homes, uint32_t n_copies) {
        struct hr_plan_request request = {.graph = scene->graph,
                                          .fleet = studio->fleet,
                                          .homes = homes,
                                          .pins = scene->pins,
                                          .options = {.n_copies = n_copies,
                                                      .serial_uploads = studio->serial_uploads}};
        struct hr_plan *plan = NULL;

        HR_EXPECT_OK(hr_plan_new(&request, &studio->diag, &plan), &studio->diag);
        return plan;
}

struct hr_pipeline *studio_pipeline(struct studio *studio, const struct scene *scene,
                                    const struct hr_leaf_home *homes, struct hr_state_use **states,
                                    uint32_t state_count, uint32_t n_copies) {
        struct hr_plan *plan = studio_plan(studio, scene, homes, n_copies);
        struct hr_pipeline_request request = {.plan = plan,
                                              .graph = scene->graph,
                                              .fleet = studio->fleet,
                                              .homes = homes,
                                              .states = states,
                                              .state_count = state_count};
        struct hr_pipeline *pipeline = NULL;

        HR_EXPECT_OK(hr_pipeline_new(&request, &studio->diag, &pipeline), &studio->diag);
        hr_plan_unref(plan);
        return pipeline;
}

static void take_done(struct hr_run *run, void *arg) {
        struct take *take = arg;

        HR_EXPECT(run == &take->run);
        ++take->done_count;
        take->done_ns = hr_fake_now_ns(take->world);
}

void take_init(struct take *take, struct studio *studio) {
        memset(take, 0, sizeof *take);
        take->world = studio->world;
        take->run.inputs = take->inputs;
        take->run.outputs = take->outputs;
        take->run.done = take_done;
        take->run.arg = take;
}

hr_status take_wait(struct take *take) {
        while (take->done_count == 0)
                HR_EXPECT(hr_fake_step(take->world));
        HR_EXPECT_EQ(take->done_count, 1);
        hr_run_finish(&take->run);
        return take->run.outcome.diag.status;
}

void studio_stream(struct studio *studio, struct hr_pipeline *pipeline, const struct scene *scene,
                   uint32_t count, uint32_t in_flight, uint64_t *ends_ns) {
        uint32_t slots = in_flight ? HR_MIN(in_flight, hr_pipeline_copies(pipeline))
                                   : hr_pipeline_copies(pipeline);
        struct take *takes = calloc(slots, sizeof *takes);
        uint64_t bytes = (uint64_t) scene->width * sizeof(float);
        void *memory = aligned_alloc(64, (size_t) (bytes + 63) / 64 * 64);
        uint64_t start_ns = hr_fake_now_ns(studio->world);
        uint32_t started = 0;

        HR_EXPECT(takes && memory);
        memset(memory, 0, (size_t) bytes);
        for (uint32_t ended = 0; ended < count; ++ended) {
                for (; started < count && started - ended < slots; ++started) {
                        struct take *take = &takes[started % slots];

                        HR_EXPECT(hr_pipeline_has_slot(pipeline));
                        take_init(take, studio);
                        for (uint32_t i = 0; i < scene->graph->input_count; ++i)
                                take->inputs[i] = (struct hr_run_input){memory, bytes};
                        HR_EXPECT_OK(hr_run_start(pipeline, &take->run, &studio->diag),
                                     &studio->diag);
                }
                HR_EXPECT_OK(take_wait(&takes[ended % slots]),
                             &takes[ended % slots].run.outcome.diag);
                ends_ns[ended] = takes[ended % slots].done_ns - start_ns;
        }
        free(memory);
        free(takes);
}
