/*
 * Lifetimes, in plan order: node i happens at time 2i + 1, and the copies into a split at twice its
 * first node.
 */
#include "scheduler/place_priv.h"

/* Uses come in the order of time. A split copies at its start. */
static void use_split(struct placer *placer, uint32_t s, uint32_t *next) {
        struct hr_plan *plan = placer->plan;
        const struct hr_planner *planner = placer->planner;
        const struct hr_plan_split *split = &plan->splits[s];
        uint32_t u = *next;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy =
                        &plan->copies[plan->inputs[split->input_first + i]];
                struct life *life = &placer->lives[plan->root[copy->tensor]];

                if (copy->source_device == HR_NO_INDEX)
                        continue;
                life->last_use = 2 * (int64_t) split->start;
                life->first_split = HR_MIN(life->first_split, s);
        }
        for (; u < planner->use_count && planner->uses[u].node < split->end; ++u) {
                const struct hr_plan_use use = planner->uses[u];
                struct life *life = &placer->lives[use.holder];

                life->last_use = node_time(use.node);
                if (use.holder < plan->leaf_count && life->first_split == HR_NO_INDEX)
                        life->first_split = s;
        }
        *next = u;
}

static void use_taps(struct placer *placer) {
        for (uint32_t i = 0; i < placer->plan->tap_count; ++i) {
                struct hr_plan_use use = placer->planner->tap_uses[i];
                struct life *life = &placer->lives[use.holder];

                life->last_use = use.node == HR_NO_INDEX
                                         ? FOREVER
                                         : HR_MAX(life->last_use, node_time(use.node));
                life->first_split = HR_MIN(life->first_split, placer->plan->taps[i].split);
        }
}

/* Which leaves take a place in which split's prologue; leaves that only an output names come last.
 */
static void chain_leaves(struct placer *placer) {
        const struct hr_graph *graph = placer->planner->graph;
        struct hr_plan *plan = placer->plan;

        for (uint32_t i = graph->leaf_count; i-- > 0;) {
                uint32_t split = HR_MIN(placer->lives[i].first_split, plan->split_count);

                if (!placer->planner->direct[i])
                        continue;
                placer->leaf_next[i] = placer->leaf_head[split];
                placer->leaf_head[split] = i;
        }
}

void hr_place_lives(struct placer *placer) {
        struct hr_plan *plan = placer->plan;
        uint32_t next = 0;

        for (uint32_t i = 0; i < plan->tensor_count + plan->copy_count; ++i)
                placer->lives[i] = (struct life){
                        .last_use = -1, .first_split = HR_NO_INDEX, .block = HR_NO_INDEX};
        for (uint32_t s = 0; s < plan->split_count; ++s)
                use_split(placer, s, &next);
        use_taps(placer);
        for (uint32_t i = placer->planner->outputs_first; i < placer->planner->outputs_end; ++i) {
                if (planner_tensor(placer->planner, i)->flags & HR_TENSOR_OUTPUT)
                        placer->lives[plan->root[i]].last_use = FOREVER;
        }
        chain_leaves(placer);
}
