/*
 * Chains of element-wise nodes, perhaps with a norm before them, as one launch. Which nodes they
 * are is core/chains.h's, with this backend's operators.
 */
#pragma once

#include "backends/cuda/ops.h"

/* hr_device_ops.optimize. */
void cuda_optimize(const struct hr_device *device, const struct hr_split_view *view,
                   uint32_t *order, bool *joined);
/* Can the step and the step->joined ones after it be one launch? */
bool cuda_chain_supports(const struct hr_step *step);
/* Writes it down. All of them are supported, and none is empty. */
void cuda_chain_prepare(const struct hr_step *step, struct cuda_builder *builder);
