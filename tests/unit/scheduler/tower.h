/*
 * Layers whose weights lie in host memory that the devices do not read. See tower_init().
 */
#pragma once

#include "tests/unit/scheduler/graphs.h"

enum { TOWER_K = 16, TOWER_EXPERTS = 16, TOWER_TOKENS = 2, TOWER_LAYERS_MOST = 12 };
enum { TOWER_EXPERT_BYTES = TOWER_K * TOWER_K * 4, TOWER_FLOATS = TOWER_K * TOWER_TOKENS };

struct tower {
        struct hr_graph *graph;
        uint32_t layers, out;
        uint32_t weights[TOWER_LAYERS_MOST]; /* leaves */
        uint32_t tensor_count;
        int32_t pins[128];
};

/* One letter per layer: d multiplies by a row; m applies the expert that the layer's own input
 * chooses; e the one that the first layer's input chooses, known before any layer is computed.
 * Layer i is pinned to device i mod devices. */
void tower_init(struct tower *tower, const char *kinds, uint32_t devices);
void tower_deinit(struct tower *tower);
uint64_t tower_weight_bytes(const struct tower *tower, uint32_t layer);

/* The weights in memory of the device, with values; homes has room for every leaf. */
struct tower_home {
        struct hr_buffer *buffers[TOWER_LAYERS_MOST];
        struct hr_leaf_home homes[TOWER_LAYERS_MOST + 1];
};
void tower_home_init(struct tower_home *home, const struct tower *tower, struct hr_device *device);
void tower_home_deinit(struct tower_home *home);
