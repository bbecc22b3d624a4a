/*
 * Places that are not given back within a run: those in every slot, and what stays from run to run.
 */
#include "scheduler/place_priv.h"

#include <string.h>

/* A place in every slot, or, where `once`, a shared one that is never given back. */
hr_status hr_place_forever(struct placer *placer, uint32_t device, uint64_t bytes, bool once,
                           struct hr_place *ret_place) {
        uint32_t kind;
        struct pool *pool = pool_of(placer, device, &kind);
        int64_t stamp;

        if (bytes == 0)
                return HR_OK;
        HR_TRY(aligned(placer, pool, bytes, &bytes));
        *ret_place =
                (struct hr_place){.where = once ? HR_WHERE_SHARED : HR_WHERE_SLOT, .index = kind};
        if (once) {
                HR_TRY(hr_pool_take(placer, pool, bytes, &ret_place->offset, &stamp));
                if (placer->blocks)
                        (void) place_begin(placer, kind, ret_place->offset, bytes, true);
                return HR_OK;
        }
        ret_place->offset = pool->slot_end;
        if (!hr_add_u64(pool->slot_end, bytes, &pool->slot_end))
                return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                               "compute memory does not fit 64 bits");
        return HR_OK;
}

/* What stays from run to run has its place before anything else: experts, and the ids as places,
 * which nothing but the device's queue writes and reads. */
hr_status hr_place_experts(struct placer *placer) {
        struct hr_plan *plan = placer->plan;

        for (uint32_t g = 0; g < plan->group_count; ++g) {
                struct hr_expert_group *group = &plan->groups[g];
                const struct hr_tensor *ids = &placer->planner->graph->tensors[group->ids];
                uint64_t count, bytes;

                if (group->places == group->experts)
                        continue;
                if (!hr_mul_u64((uint64_t) ids->ne[0], (uint64_t) ids->ne[1], &count) ||
                    !hr_mul_u64(count, sizeof(int32_t), &bytes))
                        return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                                       "compute memory does not fit 64 bits");
                HR_TRY(hr_place_forever(placer, group->device, bytes, true, &group->translated));
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_EXPERTS && plan->groups[copy->group].resident)
                        HR_TRY(hr_place_forever(placer, copy->device, copy->bytes, true,
                                                &copy->place));
        }
        return HR_OK;
}

/* Constants and their copies: written once, before any run, and kept. */
hr_status hr_place_constants(struct placer *placer) {
        const struct hr_graph *graph = placer->planner->graph;
        struct hr_plan *plan = placer->plan;

        for (uint32_t i = 0; i < graph->leaf_count; ++i) {
                if (planner_tensor(placer->planner, i)->leaf_kind == HR_LEAF_CONSTANT &&
                    placer->planner->direct[i])
                        HR_TRY(hr_place_forever(placer, planner_root_device(placer->planner, i),
                                                plan->span[i], true, &plan->place[i]));
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_CONSTANT)
                        HR_TRY(hr_place_forever(placer, copy->device, copy->bytes, true,
                                                &copy->place));
        }
        return HR_OK;
}

void hr_place_homes(struct placer *placer) {
        const struct hr_plan_input *in = placer->planner->in;
        struct hr_plan *plan = placer->plan;

        /* All bits zero: NONE. */
        memset(plan->place, 0, plan->tensor_count * sizeof *plan->place);
        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                if (in->tensor_buffer[i] != HR_NO_BUFFER && plan->root[i] == i && plan->span[i] > 0)
                        plan->place[i] = (struct hr_place){.where = HR_WHERE_HOME, .index = i};
        }
}
