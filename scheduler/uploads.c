/*
 * Uploads: what comes from host memory while its device computes.
 *
 * A device that says so has a second queue. Weights in read-only host memory, and used experts,
 * then travel by it: a copy waits for the memory that it takes, the split that needs it waits for
 * the copy, and whatever the device computes between the two happens meanwhile. So layer N + 1
 * arrives while layer N is computed, in the same run.
 *
 * Memory. A copy that takes over what the split before it gives back cannot arrive before that
 * split's end. It is therefore placed one split of its lane earlier: two splits' worth of weights
 * are there at a time, and no more. Where that does not fit, the plan is made again without.
 *
 * Experts can travel when their ids are known. The members of a group lie in several splits, as a
 * rule one each (gate, up, down), so the later ones arrive while the earlier ones are computed; the
 * first arrives early only where its ids are made further up, as by routers that run ahead. A group
 * in which nothing can be early stays with the queue that computes, which needs no events.
 *
 * What only one of them could do at a time is left alone: a copy into the first split that computes
 * anything has nothing to hide behind.
 */
#include "scheduler/plan.h"

/* The split with the node; splits are ordered. */
static uint32_t split_of(const struct hr_plan *plan, uint32_t node) {
        uint32_t low = 0, high = plan->split_count;

        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (plan->splits[middle].start <= node)
                        low = middle;
                else
                        high = middle;
        }
        return low;
}

/* Per split: the one of its lane before it that computes something, or HR_NO_INDEX. `last` has room
 * for one number per lane. */
static void find_splits_before(const struct hr_plan *plan, uint32_t *last, uint32_t *ret_before) {
        for (uint32_t l = 0; l < plan->lane_count; ++l)
                last[l] = HR_NO_INDEX;
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                uint32_t lane = plan->lane[plan->splits[s].device];

                ret_before[s] = lane == HR_NO_INDEX ? HR_NO_INDEX : last[lane];
                if (lane != HR_NO_INDEX && plan->splits[s].step_count)
                        last[lane] = s;
        }
}

/* After which split the ids of a group can be read; HR_NO_INDEX: not before the first member's. */
static uint32_t ids_split(const struct hr_plan *plan, const struct hr_expert_group *group,
                          uint32_t first_split) {
        uint32_t split = HR_NO_INDEX;

        if (group->ids_copy != HR_NO_COPY)
                split = plan->copies[group->ids_copy].split;
        else if (group->version)
                split = split_of(plan, group->version - 1);
        return split < first_split ? split : HR_NO_INDEX;
}

/* Could the copy arrive while a split is computed that does not have to come before it? */
static bool is_early(const struct hr_plan *plan, const struct hr_plan_copy *copy,
                     const uint32_t *before) {
        const struct hr_expert_group *group;
        uint32_t previous = before[copy->split];

        if (previous == HR_NO_INDEX)
                return false;
        if (copy->group == HR_NO_INDEX)
                return true;
        group = &plan->groups[copy->group];
        if (copy->split > split_of(plan, group->node))
                return true;
        return group->ids_split != HR_NO_INDEX && group->ids_split < previous;
}

static void choose_groups(struct hr_plan *plan, const uint32_t *before) {
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_EXPERTS && copy->member == 0)
                        plan->groups[copy->group].ids_split =
                                ids_split(plan, &plan->groups[copy->group], copy->split);
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_EXPERTS && is_early(plan, copy, before))
                        plan->groups[copy->group].is_upload = true;
        }
}

static bool may_upload(const struct hr_planner *planner, const struct hr_plan_copy *copy) {
        return planner->in->devices[copy->device].uploads &&
               (copy->method == HR_COPY_HOST_WEIGHT || copy->method == HR_COPY_EXPERTS);
}

static void choose_copies(struct hr_planner *planner, const uint32_t *before) {
        struct hr_plan *plan = planner->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];
                bool early = is_early(plan, copy, before);

                if (!may_upload(planner, copy))
                        continue;
                copy->is_upload = copy->method == HR_COPY_EXPERTS
                                          ? plan->groups[copy->group].is_upload
                                          : early;
                if (copy->is_upload && early)
                        copy->placed_at = before[copy->split];
        }
}

static const char *find_arrival(const struct hr_plan *plan) {
        const char *arrival = "";

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->is_upload)
                        return "early";
                if (copy->method == HR_COPY_HOST_WEIGHT || copy->method == HR_COPY_EXPERTS)
                        arrival = plan->options.serial_uploads ? "memory" : "in turn";
        }
        return arrival;
}

hr_status hr_plan_uploads(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        uint32_t *before, *last;
        bool any = false;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                plan->copies[c].placed_at = plan->copies[c].split;
                any = any || may_upload(planner, &plan->copies[c]);
        }
        plan->arrival = find_arrival(plan);
        if (!any || !planner->headrace || plan->options.serial_uploads)
                return HR_OK;
        before = planner_scratch_raw(planner, plan->split_count, sizeof *before);
        last = planner_scratch_raw(planner, plan->lane_count, sizeof *last);
        if (!before || !last)
                return planner_out_of_memory(planner);
        find_splits_before(plan, last, before);
        choose_groups(plan, before);
        choose_copies(planner, before);
        plan->arrival = find_arrival(plan);
        return HR_OK;
}
