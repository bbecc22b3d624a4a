/*
 * Planning inputs from made-up facts: a graph and devices that exist only on paper.
 */
#pragma once

#include "scheduler/plan.h"
#include "tests/harness.h"

#define WORLD_DEVICES 80
#define WORLD_BUFFERS 16

/* GPUs of one kind each, optionally an accelerator on host memory, and a CPU at the end. Kind 0 is
 * host memory. */
struct world {
        struct hr_plan_input in;
        struct hr_plan_device devices[WORLD_DEVICES];
        struct hr_plan_kind kinds[WORLD_DEVICES];
        struct hr_plan_buffer buffers[WORLD_BUFFERS];
        uint64_t reads[WORLD_DEVICES][2];
        uint64_t *supports, *offload;
        uint32_t *tensor_buffer;
        int32_t *pins;
        struct hr_graph *graph;
        struct hr_diag diag;
        struct hr_plan *plan;
};

/* Takes over the reference to the graph. Every device supports everything, one slot. */
void world_init(struct world *world, struct hr_graph *graph, uint32_t gpus, bool blas);
uint32_t world_buffer(struct world *world, uint32_t kind, hr_buffer_usage usage);
/* The device does not support the tensor's op. */
void world_deny(struct world *world, uint32_t tensor, uint32_t device);
/* The device asks to take the tensor over. */
void world_ask(struct world *world, uint32_t tensor, uint32_t device);
/* A new plan in place of the one before. */
const struct hr_plan *world_plan(struct world *world, hr_rules rules);
void world_deinit(struct world *world);
