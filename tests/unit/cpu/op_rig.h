/* Runs a small graph on a CPU device, through program and queue, on data that depend on a seed. */
#pragma once

#include "backends/cpu/backend.h"
#include "tests/build.h"
#include "tests/harness.h"

/* "portable" and what else this processor has; count in *ret_count. */
const char *const *rig_sets(uint32_t *ret_count);
/* A device with that instruction set whose whole team takes part in every step. */
struct hr_device *rig_device(const char *isa, uint32_t threads);

/* Validates the graph, fills its leaves (floats in [-2, 2), integers in [0, index_limit), constants
 * by their bytes) and computes all its nodes. Returns the bytes of tensor `out`, in memory order;
 * the caller frees. *ret_outcome is what became of the run; NULL expects success. */
uint8_t *rig_run(struct hr_device *device, struct hr_graph *graph, uint32_t out, uint32_t seed,
                 int32_t index_limit, uint64_t *ret_bytes, struct hr_diag *ret_outcome);
