/* The scheduler tests' rig. See graphs.h. */
#include "tests/unit/scheduler/graphs.h"

#include <stdlib.h>
#include <string.h>

#include "backends/cpu/backend.h"
#include "scheduler/exec.h"

void rig_init(struct rig *rig, const struct rig_device *devices, uint32_t count) {
        memset(rig, 0, sizeof *rig);
        HR_EXPECT(count <= RIG_DEVICES);
        for (uint32_t i = 0; i < count; ++i) {
                char name[16];
                struct hr_cpu_config config = {.name = name,
                                               .threads = 1,
                                               .isolated = devices[i].isolated,
                                               .memory_cap = devices[i].memory_cap,
                                               .deny_ops = devices[i].deny_ops,
                                               .delay_us = devices[i].delay_us};

                snprintf(name, sizeof name, "d%u", i);
                if (devices[i].opaque) {
                        rig->devices[i] = opaque_device_new(name, devices[i].delay_us, i);
                        continue;
                }
                HR_EXPECT_OK(hr_cpu_device_new(&config, &rig->diag, &rig->devices[i]), &rig->diag);
        }
        HR_EXPECT_OK(hr_fleet_new(rig->devices, count, &rig->diag, &rig->fleet), &rig->diag);
}

void rig_deinit(struct rig *rig) {
        rig->fleet = hr_fleet_free(rig->fleet);
        for (uint32_t i = 0; i < RIG_DEVICES; ++i)
                rig->devices[i] = hr_device_unref(rig->devices[i]);
}

void sketch_init(struct sketch *sketch, int64_t width) {
        *sketch = (struct sketch){.build = hr_build_new(), .width = width};
}

static uint32_t sketch_count(struct sketch *sketch, uint32_t id, int32_t pin) {
        HR_EXPECT_EQ(id, sketch->tensor_count);
        if ((sketch->tensor_count & (sketch->tensor_count - 1)) == 0) {
                size_t room = sketch->tensor_count ? sketch->tensor_count * 2 : 2;

                sketch->pins = realloc(sketch->pins, room * sizeof *sketch->pins);
                HR_EXPECT(sketch->pins);
        }
        sketch->pins[sketch->tensor_count++] = pin;
        return id;
}

uint32_t sketch_leaf(struct sketch *sketch, hr_leaf_kind kind, const char *name) {
        return sketch_count(
                sketch,
                hr_build_leaf(sketch->build, kind, HR_TYPE_F32, name, sketch->width, 1, 1, 1),
                HR_NO_PIN);
}

uint32_t sketch_constant(struct sketch *sketch, float value) {
        uint32_t id = sketch_leaf(sketch, HR_LEAF_CONSTANT, "");
        float *values = calloc((size_t) sketch->width, sizeof *values);

        HR_EXPECT(values);
        for (int64_t i = 0; i < sketch->width; ++i)
                values[i] = value;
        hr_build_constant(sketch->build, id, values, (uint64_t) sketch->width * sizeof *values);
        free(values);
        return id;
}

uint32_t sketch_node(struct sketch *sketch, uint32_t op, uint32_t a, uint32_t b, int32_t pin) {
        uint32_t sources[2] = {a, b};

        return sketch_count(sketch,
                            hr_build_node(sketch->build, op, HR_TYPE_F32, sketch->width, 1, 1, 1,
                                          b == HR_TENSOR_NONE ? 1 : 2, sources),
                            pin);
}

uint32_t sketch_in_place(struct sketch *sketch, uint32_t op, uint32_t a, uint32_t base, uint32_t b,
                         int32_t pin) {
        uint32_t id = sketch_node(sketch, op, a, b, pin);

        hr_build_tensor(sketch->build, id)->view_base = base;
        return id;
}

void sketch_output(struct sketch *sketch, uint32_t tensor) {
        hr_build_tensor(sketch->build, tensor)->flags |= HR_TENSOR_OUTPUT;
}

struct hr_graph *sketch_finish(struct sketch *sketch) {
        struct hr_graph *graph = hr_build_finish(sketch->build);
        struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 40};
        struct hr_diag diag = {0};

        sketch->build = NULL;
        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &diag), &diag);
        return graph;
}

void sketch_deinit(struct sketch *sketch) {
        free(sketch->pins);
        sketch->pins = NULL;
}

static void ride_done(struct hr_run *run, void *arg) {
        struct ride *ride = arg;

        HR_EXPECT(run == &ride->run);
        pthread_mutex_lock(&ride->lock);
        ride->over = true;
        ++ride->done_count;
        pthread_cond_signal(&ride->over_cond);
        pthread_mutex_unlock(&ride->lock);
}

void ride_init(struct ride *ride) {
        memset(ride, 0, sizeof *ride);
        pthread_mutex_init(&ride->lock, NULL);
        pthread_cond_init(&ride->over_cond, NULL);
        ride->run.inputs = ride->inputs;
        ride->run.outputs = ride->outputs;
        ride->run.done = ride_done;
        ride->run.arg = ride;
}

void ride_deinit(struct ride *ride) {
        pthread_mutex_destroy(&ride->lock);
        pthread_cond_destroy(&ride->over_cond);
}

hr_status ride_start(struct ride *ride, struct hr_pipeline *pipeline, struct hr_diag *diag) {
        ride->over = false;
        ride->done_count = 0;
        return hr_run_start(pipeline, &ride->run, diag);
}

hr_status ride_wait(struct ride *ride) {
        pthread_mutex_lock(&ride->lock);
        while (!ride->over)
                pthread_cond_wait(&ride->over_cond, &ride->lock);
        pthread_mutex_unlock(&ride->lock);
        HR_EXPECT_EQ(ride->done_count, 1);
        hr_run_finish(&ride->run);
        return ride->run.outcome.diag.status;
}

/* An address in shared memory of some kind: the command's lane must have passed that gate. */
static void check_address(const struct hr_pipeline *pipeline, uint32_t at, const void *address) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_command *commands = plan->tape.commands;
        const bool *touches = hr_plan_touches(plan, &commands[at]);

        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                const struct hr_block *block = pipeline->blocks[k];
                const uint8_t *base = block ? block->buffer->base : NULL;
                bool passed = false;

                if (!block || (const uint8_t *) address < base ||
                    (const uint8_t *) address >= base + block->buffer->bytes)
                        continue;
                HR_EXPECT(touches[k]);
                for (uint32_t g = 0; g < at; ++g)
                        passed = passed || (commands[g].code == HR_COMMAND_GATE &&
                                            commands[g].kind == k &&
                                            hr_plan_touches(plan, &commands[g]) == touches);
                HR_EXPECT(passed);
        }
}

/* Every address that the pipeline's commands use, whatever the tape says of it. */
static void check_gates(const struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t c = 0; c < plan->tape.count; ++c) {
                for (uint32_t s = 0; s < pipeline->slot_count; ++s) {
                        const struct hr_bound_command *command = &pipeline->slots[s].commands[c];
                        const struct hr_steps *steps =
                                command->program ? command->program->steps : NULL;

                        check_address(pipeline, c, command->from);
                        check_address(pipeline, c, command->to);
                        for (uint32_t i = 0; steps && i < steps->count; ++i) {
                                const struct hr_step *step = &steps->steps[i];

                                check_address(pipeline, c, step->result.data);
                                for (uint32_t o = 0; o < step->source_count; ++o)
                                        check_address(pipeline, c, step->sources[o].data);
                        }
                }
        }
}

struct hr_pipeline *rig_pipeline(struct rig *rig, struct hr_graph *graph, const int32_t *pins,
                                 const struct hr_leaf_home *homes, uint32_t n_copies,
                                 struct hr_state_use **states, uint32_t state_count) {
        struct hr_plan_request request = {.graph = graph,
                                          .fleet = rig->fleet,
                                          .homes = homes,
                                          .pins = pins,
                                          .options = {.n_copies = n_copies,
                                                      .optimize = rig->optimize}};
        struct hr_plan *plan = NULL;
        struct hr_pipeline *pipeline = NULL;
        struct hr_pipeline_request bind = {.graph = graph,
                                           .fleet = rig->fleet,
                                           .homes = homes,
                                           .states = states,
                                           .state_count = state_count};

        HR_EXPECT_OK(hr_plan_new(&request, &rig->diag, &plan), &rig->diag);
        bind.plan = plan;
        HR_EXPECT_OK(hr_pipeline_new(&bind, &rig->diag, &pipeline), &rig->diag);
        for (uint32_t d = 0; d < hr_fleet_device_count(rig->fleet); ++d) {
                struct hr_plan_summary summary = hr_plan_summary(plan);

                /* What was predicted is what is held, unless memory forced fewer slots. */
                if (hr_pipeline_copies(pipeline) == summary.n_copies)
                        HR_EXPECT_EQ(hr_pipeline_bytes(pipeline, d),
                                     summary.compute_bytes[d] + summary.scratch_bytes[d]);
        }
        check_gates(pipeline);
        hr_plan_unref(plan);
        return pipeline;
}
