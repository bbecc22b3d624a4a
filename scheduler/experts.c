/*
 * Experts: which weights of mixtures travel by the expert, and how much of them a device keeps.
 *
 * A MUL_MAT_ID whose weight lies in host memory that its device does not read needs a copy of the
 * experts that the ids name, and of no others. Weights that are chosen by the same ids on the same
 * device (gate, up and down of a layer) form a group: the ids are read once, by the command of the
 * first member, after they have been computed; that is why a split starts between the two. The ids
 * count as other ids once something has written into them.
 *
 * A weight that is also used in another way has an ordinary copy beside the one of its experts.
 *
 * Places. Within expert_bytes (of the options, of the device) a group keeps as many experts as fit:
 * all of them where the sum allows it, else at least what one run can use. Where even that is too
 * much for all groups together, none keeps anything: the memory is what one run needs while it
 * needs it, and layers share it like that of any other copy.
 */
#include "scheduler/plan.h"

static uint32_t ids_root(const struct hr_planner *planner, uint32_t tensor) {
        return planner->plan->root[planner_source(planner, tensor, 2)];
}

static const struct hr_tensor *tensor_of(const struct hr_planner *planner, uint32_t id) {
        return &planner->graph->tensors[id];
}

static uint64_t expert_bytes(const struct hr_tensor *weight) {
        uint64_t row = 0;

        if (weight->ne[1] == 0 || !hr_type_row_bytes(weight->type, weight->ne[0], &row))
                return 0;
        return (uint64_t) (weight->ne[1] - 1) * weight->nb[1] + row;
}

bool hr_experts_wanted(const struct hr_planner *planner, uint32_t tensor, uint32_t device) {
        const struct hr_plan_input *in = planner->in;
        const struct hr_tensor *t = tensor_of(planner, tensor), *weight;
        uint32_t root, buffer;

        if (!planner->headrace || t->op != HR_OP_MUL_MAT_ID || t->source_count != 3 ||
            !in->devices[device].experts || planner_source(planner, tensor, 0) == HR_TENSOR_NONE ||
            planner_source(planner, tensor, 2) == HR_TENSOR_NONE)
                return false;
        weight = tensor_of(planner, planner_source(planner, tensor, 0));
        root = planner->plan->root[planner_source(planner, tensor, 0)];
        buffer = in->tensor_buffer[root];
        return buffer != HR_NO_BUFFER && in->buffers[buffer].usage == HR_USAGE_WEIGHTS &&
               in->kinds[in->buffers[buffer].kind].host && !planner->written[root] &&
               weight->ne[2] > 0 && weight->ne[2] < UINT32_MAX && weight->ne[3] == 1 &&
               expert_bytes(weight) > 0 && weight->nb[2] >= expert_bytes(weight);
}

uint32_t hr_experts_find(const struct hr_planner *planner, uint32_t tensor, uint32_t device) {
        const struct hr_plan *plan = planner->plan;
        uint32_t ids = planner_source(planner, tensor, 2);
        uint32_t version = planner->last_write[ids_root(planner, tensor)];
        int64_t experts = tensor_of(planner, planner_source(planner, tensor, 0))->ne[2];

        if (!planner->group_head)
                return HR_NO_INDEX;
        for (uint32_t g = planner->group_head[ids]; g != HR_NO_INDEX; g = plan->groups[g].next) {
                const struct hr_expert_group *group = &plan->groups[g];

                if (group->device == device && group->version == version &&
                    group->experts == experts)
                        return g;
        }
        return HR_NO_INDEX;
}

static hr_status group_room(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        uint32_t wanted = planner->group_capacity ? planner->group_capacity * 2 : 16;
        struct hr_expert_group *larger;

        if (!planner->group_head) {
                planner->group_head =
                        planner_scratch(planner, plan->tensor_count, sizeof(uint32_t));
                if (!planner->group_head)
                        return planner_out_of_memory(planner);
                for (uint32_t i = 0; i < plan->tensor_count; ++i)
                        planner->group_head[i] = HR_NO_INDEX;
        }
        if (plan->group_count < planner->group_capacity)
                return HR_OK;
        larger = planner_keep(planner, wanted, sizeof *larger);
        if (!larger)
                return planner_out_of_memory(planner);
        for (uint32_t g = 0; g < plan->group_count; ++g)
                larger[g] = plan->groups[g];
        plan->groups = larger;
        planner->group_capacity = wanted;
        return HR_OK;
}

hr_status hr_experts_add(struct hr_planner *planner, uint32_t tensor, uint32_t device,
                         uint32_t *ret_group) {
        struct hr_plan *plan = planner->plan;
        uint32_t ids = planner_source(planner, tensor, 2);
        const struct hr_tensor *t = tensor_of(planner, ids);
        int64_t experts = tensor_of(planner, planner_source(planner, tensor, 0))->ne[2];
        uint64_t count = (uint64_t) experts;

        HR_TRY(group_room(planner));
        if (t->ne[0] < experts && t->ne[1] < experts)
                count = HR_MIN(count, (uint64_t) t->ne[0] * (uint64_t) t->ne[1]);
        else if (t->ne[0] == 0 || t->ne[1] == 0)
                count = 0;
        plan->groups[plan->group_count] = (struct hr_expert_group){
                .device = device,
                .ids = ids,
                .version = planner->last_write[ids_root(planner, tensor)],
                .experts = (uint32_t) experts,
                .ids_copy = HR_NO_COPY,
                .node = tensor - planner->graph->leaf_count,
                .next = planner->group_head[ids],
                .most = (uint32_t) count,
        };
        planner->group_head[ids] = plan->group_count;
        *ret_group = plan->group_count++;
        return HR_OK;
}

/* ---- Sizes -------------------------------------------------------------------------------------
 */

/* What the experts of a device's groups take. */
struct budget {
        uint64_t all, most; /* with all experts, with those that one run can use */
        uint32_t groups;
};

static hr_status too_large(struct hr_planner *planner) {
        return hr_fail(planner->diag, HR_E_EXHAUSTED, "experts do not fit 64 bits");
}

/* Bytes of an expert and of its place for every member, and of a place per group. */
static hr_status measure(struct hr_planner *planner, uint64_t *place_bytes) {
        struct hr_plan *plan = planner->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];
                const struct hr_tensor *weight = tensor_of(planner, copy->tensor);
                uint32_t pad;

                if (copy->group == HR_NO_INDEX)
                        continue;
                pad = planner->in->devices[copy->device].expert_pad;
                copy->expert_bytes = expert_bytes(weight);
                copy->expert_stride = weight->nb[2];
                if (pad && (!hr_add_u64(copy->expert_bytes, pad, &copy->expert_stride) ||
                            !hr_align_up_u64(copy->expert_stride, 64, &copy->expert_stride)))
                        return too_large(planner);
                if (!hr_add_u64(place_bytes[copy->group], copy->expert_stride,
                                &place_bytes[copy->group]))
                        return too_large(planner);
        }
        return HR_OK;
}

static hr_status add_up(struct hr_planner *planner, const uint64_t *place_bytes,
                        struct budget *budgets) {
        const struct hr_plan *plan = planner->plan;

        for (uint32_t g = 0; g < plan->group_count; ++g) {
                const struct hr_expert_group *group = &plan->groups[g];
                struct budget *budget = &budgets[group->device];
                uint64_t all, most;

                if (!hr_mul_u64(group->experts, place_bytes[g], &all) ||
                    !hr_mul_u64(group->most, place_bytes[g], &most) ||
                    !hr_add_u64(budget->all, all, &budget->all) ||
                    !hr_add_u64(budget->most, most, &budget->most))
                        return too_large(planner);
                ++budget->groups;
        }
        return HR_OK;
}

/* The smaller of what the device is given and what the plan may take; 0 = neither is limited. */
static uint64_t experts_limit(const struct hr_planner *planner, uint32_t device) {
        const uint64_t given = planner->in->devices[device].expert_bytes;
        const uint64_t option = planner->plan->options.expert_bytes;

        return given && option ? HR_MIN(given, option) : HR_MAX(given, option);
}

static void choose_places(struct hr_expert_group *group, const struct budget *budget,
                          uint64_t limit, uint64_t place_bytes) {
        uint64_t extra;

        group->resident = limit == 0 || budget->most <= limit;
        group->places = group->most;
        if (limit == 0 || budget->all <= limit) {
                group->places = group->experts;
        } else if (group->resident && place_bytes) {
                extra = (limit - budget->most) / budget->groups / place_bytes;
                group->places += (uint32_t) HR_MIN(extra, group->experts - group->most);
        }
        if (group->most == 0) /* no ids: nothing is ever copied */
                group->places = 0;
}

hr_status hr_experts_size(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        uint64_t *place_bytes = planner_scratch(planner, plan->group_count, sizeof *place_bytes);
        struct budget *budgets = planner_scratch(planner, plan->device_count, sizeof *budgets);

        if (plan->group_count == 0)
                return HR_OK;
        if (!place_bytes || !budgets)
                return planner_out_of_memory(planner);
        HR_TRY(measure(planner, place_bytes));
        HR_TRY(add_up(planner, place_bytes, budgets));
        for (uint32_t g = 0; g < plan->group_count; ++g)
                choose_places(&plan->groups[g], &budgets[plan->groups[g].device],
                              experts_limit(planner, plan->groups[g].device), place_bytes[g]);
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->group == HR_NO_INDEX)
                        continue;
                copy->bytes = plan->groups[copy->group].places * copy->expert_stride;
                plan->expert_bytes += plan->groups[copy->group].most * copy->expert_bytes;
        }
        return HR_OK;
}
