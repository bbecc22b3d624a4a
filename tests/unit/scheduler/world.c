/* Planning inputs from made-up facts. See world.h. */
#include "tests/unit/scheduler/world.h"

#include <stdlib.h>
#include <string.h>

void world_init(struct world *world, struct hr_graph *graph, uint32_t gpus, bool blas) {
        uint32_t tensors = hr_graph_tensor_count(graph), words;
        uint32_t devices = gpus + blas + 1;

        memset(world, 0, sizeof *world);
        HR_EXPECT(devices <= WORLD_DEVICES);
        words = hr_bit_words(devices);
        world->graph = graph;
        world->supports = calloc((size_t) tensors * words + 1, sizeof(uint64_t));
        world->offload = calloc((size_t) tensors * words + 1, sizeof(uint64_t));
        world->tensor_buffer = calloc(tensors + 1, sizeof(uint32_t));
        world->pins = calloc(tensors + 1, sizeof(int32_t));
        HR_EXPECT(world->supports && world->offload && world->tensor_buffer && world->pins);
        for (uint32_t d = 0; d < devices; ++d) {
                bool gpu = d < gpus;

                world->devices[d].type = gpu               ? HR_DEVICE_GPU
                                         : d < devices - 1 ? HR_DEVICE_ACCEL
                                                           : HR_DEVICE_CPU;
                world->devices[d].kind = gpu ? d + 1 : 0;
                hr_bit_set(world->reads[0] + (size_t) d * hr_bit_words(gpus + 1),
                           world->devices[d].kind);
        }
        for (uint32_t k = 0; k <= gpus; ++k)
                world->kinds[k] = (struct hr_plan_kind){.host = k == 0, .alignment = 64};
        for (uint32_t i = 0; i < tensors; ++i) {
                world->tensor_buffer[i] = HR_NO_BUFFER;
                world->pins[i] = HR_NO_PIN;
                for (uint32_t d = 0; d < devices; ++d)
                        hr_bit_set(world->supports + (size_t) i * words, d);
        }
        world->in = (struct hr_plan_input){.graph = graph,
                                           .device_count = devices,
                                           .kind_count = gpus + 1,
                                           .devices = world->devices,
                                           .kinds = world->kinds,
                                           .buffers = world->buffers,
                                           .reads = world->reads[0],
                                           .tensor_buffer = world->tensor_buffer,
                                           .pins = world->pins,
                                           .supports = world->supports,
                                           .offload = world->offload,
                                           .options = {.n_copies = 1}};
}

uint32_t world_buffer(struct world *world, uint32_t kind, hr_buffer_usage usage) {
        HR_EXPECT(world->in.buffer_count < WORLD_BUFFERS);
        world->buffers[world->in.buffer_count] = (struct hr_plan_buffer){kind, usage};
        return world->in.buffer_count++;
}

void world_deny(struct world *world, uint32_t tensor, uint32_t device) {
        world->supports[(size_t) tensor * hr_bit_words(world->in.device_count) + device / 64] &=
                ~((uint64_t) 1 << (device % 64));
}

void world_ask(struct world *world, uint32_t tensor, uint32_t device) {
        hr_bit_set(world->offload + (size_t) tensor * hr_bit_words(world->in.device_count), device);
}

const struct hr_plan *world_plan(struct world *world, hr_rules rules) {
        world->plan = hr_plan_unref(world->plan);
        world->in.options.rules = rules;
        HR_EXPECT_OK(hr_plan_make(&world->in, &world->diag, &world->plan), &world->diag);
        return world->plan;
}

void world_deinit(struct world *world) {
        hr_plan_unref(world->plan);
        hr_graph_unref(world->graph);
        free(world->supports);
        free(world->offload);
        free(world->tensor_buffer);
        free(world->pins);
}
