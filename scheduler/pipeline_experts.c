/*
 * A pipeline's caches of experts: one per group of the plan.
 */
#include "scheduler/pipeline_priv.h"

static hr_status fill_cache(struct hr_pipeline *pipeline, uint32_t g, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_expert_group *group = &plan->groups[g];
        const struct hr_tensor *ids = &pipeline->graph->tensors[group->ids];
        struct hr_expert_cache *cache = &pipeline->expert_caches[g];

        *cache = (struct hr_expert_cache){
                .node = group->node,
                .experts = group->experts,
                .places = group->places,
                .resident = group->resident,
                .ne = {ids->ne[0], ids->ne[1]},
                .nb = {ids->nb[0], ids->nb[1]},
                .translated = hr_pipeline_address(pipeline, &group->translated, 0, false),
                .weights = hr_pipeline_take(pipeline, group->member_count, sizeof *cache->weights),
                .weight_count = group->member_count,
                .place_of = hr_pipeline_take(pipeline, group->experts, sizeof(uint32_t)),
                .expert_at = hr_pipeline_take(pipeline, group->places, sizeof(uint32_t)),
                .used_at = hr_pipeline_take(pipeline, group->experts, sizeof(uint64_t)),
                .uses = hr_pipeline_take(pipeline, group->experts, sizeof *cache->uses),
                .missing = hr_pipeline_take(pipeline, group->experts, sizeof(uint32_t)),
        };
        return cache->weights && cache->place_of && cache->expert_at && cache->used_at &&
                               cache->uses && cache->missing
                       ? HR_OK
                       : hr_pipeline_out_of_memory(diag);
}

/* Where experts come from and go to. */
void hr_pipeline_aim_caches(struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                struct hr_place from = hr_plan_tensor_place(plan, copy->tensor);

                if (copy->group == HR_NO_INDEX)
                        continue;
                pipeline->expert_caches[copy->group].weights[copy->member] =
                        (struct hr_expert_weight){
                                .home = pipeline->homes[plan->root[copy->tensor]].buffer,
                                .from = hr_pipeline_address(pipeline, &from, 0, true),
                                .to = hr_pipeline_address(pipeline, &copy->place, 0, false),
                                .from_stride = pipeline->graph->tensors[copy->tensor].nb[2],
                                .to_stride = copy->expert_stride,
                                .bytes = copy->expert_bytes,
                        };
        }
}

/* Uses of a weight are counted where it lies, for all pipelines. Windows on weights have none. */
static hr_status share_usages(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                const struct hr_leaf_home *home;

                if (copy->group == HR_NO_INDEX || copy->member != 0 ||
                    plan->root[copy->tensor] != copy->tensor)
                        continue;
                home = &pipeline->homes[copy->tensor];
                HR_TRY(hr_buffer_expert_usage(home->buffer, home->offset,
                                              plan->groups[copy->group].experts, diag,
                                              &pipeline->expert_caches[copy->group].usage));
        }
        return HR_OK;
}

hr_status hr_pipeline_make_caches(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->expert_caches =
                hr_pipeline_take(pipeline, plan->group_count, sizeof(struct hr_expert_cache));
        if (!pipeline->expert_caches)
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t g = 0; g < plan->group_count; ++g)
                HR_TRY(fill_cache(pipeline, g, diag));
        hr_pipeline_aim_caches(pipeline);
        return share_usages(pipeline, diag);
}

/* The node sees the places instead of the experts, and ids that name places. */
void hr_pipeline_use_places(const struct hr_pipeline *pipeline, const struct hr_plan_copy *copy,
                            struct hr_operand *sources) {
        const struct hr_expert_group *group = &pipeline->plan->groups[copy->group];
        struct hr_operand *weight = &sources[0], *ids = &sources[2];

        weight->ne[2] = group->places;
        weight->nb[2] = copy->expert_stride;
        weight->nb[3] = copy->bytes;
        if (group->translated.where == HR_WHERE_NONE)
                return;
        ids->data = hr_pipeline_address(pipeline, &group->translated, 0, false);
        ids->nb[0] = sizeof(int32_t);
        ids->nb[1] = ids->nb[0] * (uint64_t) ids->ne[0];
        ids->nb[2] = ids->nb[3] = ids->nb[1] * (uint64_t) ids->ne[1];
        ids->room = ids->nb[3];
}

uint64_t hr_pipeline_expert_bytes(const struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;
        uint64_t bytes = 0;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->group != HR_NO_INDEX && plan->groups[copy->group].resident)
                        bytes += copy->expert_stride * plan->groups[copy->group].places;
        }
        return bytes;
}
