/*
 * What each command reads and writes, and whether it means what lies there.
 */
#include "scheduler/verify_priv.h"

/* What nobody writes, most weights, can be read at any time by who reaches it. */
static inline bool is_constant_in_reach(const struct prover *prover, const struct hr_place *place) {
        const struct hr_plan_input *in = prover->in;
        uint32_t buffer;

        if (place->where != HR_WHERE_HOME)
                return false;
        buffer = in->tensor_buffer[place->index];
        return prover->buffers[buffer].constant &&
               hr_bit_get(prover->reach, in->buffers[buffer].kind);
}

static inline hr_status read_root(struct prover *prover, uint32_t tensor) {
        const struct hr_plan *plan = prover->plan;
        uint32_t root = plan->root[tensor];
        const struct holder *holder = &prover->holders[root];
        struct hr_place place;

        if (HR_UNLIKELY(holder->landed != holder->meant))
                return prover_wrong(prover, "STALE", "reads before a result has been carried back",
                                    root);
        if (is_constant_in_reach(prover, &plan->place[root]))
                return HR_OK;
        place = hr_plan_tensor_place(plan, tensor);
        if (HR_LIKELY(prover_read_own(prover, &place, plan->span[tensor], root)))
                return HR_OK;
        return prover_check_read(prover, &place, plan->span[tensor], root);
}

static hr_status read_copy(struct prover *prover, uint32_t copy) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_copy *c = &plan->copies[copy];
        uint32_t holds = plan->tensor_count + copy;

        if (c->bytes == 0)
                return HR_OK; /* of an empty tensor: nothing is copied */
        if (prover->holders[holds].landed != prover->holders[plan->root[c->tensor]].meant)
                return prover_wrong(prover, "STALE", "uses a copy made before a write", holds);
        if (HR_UNLIKELY(c->method == HR_COPY_EXPERTS) && !prover->filled[copy])
                return prover_wrong(prover, "HAZARD", "uses experts before they are copied",
                                    plan->tensor_count + copy);
        return prover_check_read(prover, &c->place, c->bytes, holds);
}

/* A result that a joined pass keeps to itself: it is computed and nobody else can want it. */
static void keep_to_itself(struct prover *prover, uint32_t node) {
        struct holder *holder = &prover->holders[prover->graph->leaf_count + node];

        holder->landed = ++holder->meant;
}

/* The node computes on a copy, which is carried back later. */
static hr_status write_copy(struct prover *prover, uint32_t copy, uint32_t root) {
        const struct hr_plan_copy *c = &prover->plan->copies[copy];
        uint32_t holds = prover->plan->tensor_count + copy;

        if (prover->holders[holds].landed != prover->holders[root].meant)
                return prover_wrong(prover, "STALE", "writes into a copy made before a write",
                                    root);
        prover->holders[holds].landed = ++prover->holders[root].meant;
        return prover_check_write(prover, &c->place, c->bytes, holds, false);
}

static inline hr_status write_result(struct prover *prover, uint32_t node, uint32_t id) {
        const struct hr_plan *plan = prover->plan;
        uint32_t root = plan->root[id];
        struct holder *holder = &prover->holders[root];
        struct hr_place place = hr_plan_tensor_place(plan, id);

        if (plan->result_copy && plan->result_copy[node] != HR_NO_COPY)
                return write_copy(prover, plan->result_copy[node], root);
        if (HR_UNLIKELY(holder->landed != holder->meant))
                return prover_wrong(prover, "STALE", "writes before a result has been carried back",
                                    root);
        ++holder->meant;
        ++holder->landed;
        if (root == id && plan->span[id] && prover_is_settled(prover, &place, true))
                return prover_fresh_block(prover, &place, plan->span[id], root);
        return prover_check_write(prover, &place, plan->span[id], root, root == id);
}

/* `inside`: the result of the step before it, which has no memory. */
static hr_status prove_node(struct prover *prover, uint32_t node, uint32_t inside) {
        const struct hr_plan *plan = prover->plan;
        uint32_t id = prover->graph->leaf_count + node;
        const struct hr_tensor *tensor = &prover->graph->tensors[id];
        const uint32_t *sources = prover->graph->sources + tensor->source_first;
        const uint32_t *copies = plan->source_copy + plan->source_start[node];

        for (uint32_t i = 0, count = tensor->source_count; i < count; ++i) {
                uint32_t source = sources[i];

                if (source == HR_TENSOR_NONE || source == id || source == inside)
                        continue;
                if (HR_UNLIKELY(copies[i] != HR_NO_COPY))
                        HR_TRY(read_copy(prover, copies[i]));
                else
                        HR_TRY(read_root(prover, source));
        }
        return HR_OK;
}

/* All of a joined pass is read before its result is written. */
static inline hr_status prove_step(struct prover *prover, uint32_t step) {
        const struct hr_plan *plan = prover->plan;
        uint32_t node = plan->steps[step], id = prover->graph->leaf_count + node;
        uint32_t inside = plan->joined && step && plan->joined[step - 1]
                                  ? prover->graph->leaf_count + plan->steps[step - 1]
                                  : HR_TENSOR_NONE;

        HR_TRY(prove_node(prover, node, inside));
        if (!plan->joined || !plan->joined[step])
                return write_result(prover, node, id);
        keep_to_itself(prover, node);
        return HR_OK;
}

/* Splits of view ops only have no command. */
void prover_skip_empty_splits(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        while (prover->next_split < plan->split_count &&
               plan->splits[prover->next_split].step_count == 0)
                ++prover->next_split;
}

static hr_status prove_compute(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_command *command = prover->command;
        const struct hr_plan_split *split = &plan->splits[command->index];
        uint32_t count = prover->observed ? command->count : split->step_count;

        if (!prover->observed && command->first > 0)
                return HR_OK; /* done with the first range */
        prover_skip_empty_splits(prover);
        if (command->index != prover->next_split || command->first != prover->next_step ||
            count == 0 || count > split->step_count - prover->next_step)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "command %u computes split %u out of order",
                                      command_index(prover), command->index);
        for (uint32_t k = 0; k < count; ++k)
                HR_TRY(prove_step(prover, split->step_first + command->first + k));
        prover->next_step += count;
        if (plan->joined && plan->joined[split->step_first + prover->next_step - 1])
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "command %u ends inside a pass", command_index(prover));
        if (prover->next_step == split->step_count) {
                prover->next_step = 0;
                ++prover->next_split;
        }
        return HR_OK;
}

/* Shows what its node and those before it have made of the tensor. */
static hr_status prove_tap(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_tap *tap = &plan->taps[command->index];
        struct hr_place place = hr_plan_tensor_place(plan, tap->tensor);
        uint32_t root = plan->root[tap->tensor];

        if (!prover->observed)
                return HR_OK;
        if (command->index != prover->next_tap++ || command->bytes != plan->span[tap->tensor] ||
            place.where != command->from.where || place.offset != command->from.offset ||
            prover->holders[root].meant != prover->tap_version[command->index])
                return prover_wrong(prover, "ORDER",
                                    "shows a tap too early, too late or from elsewhere",
                                    tap->tensor);
        return read_root(prover, tap->tensor);
}

/* The run's bytes arrive in a leaf's own memory, before anything has written there, or in a copy.
 */
static hr_status prove_input(struct prover *prover) {
        const struct hr_command *command = prover->command;
        uint32_t tensors = prover->plan->tensor_count, holds = command->to_holds;
        uint32_t root =
                prover->plan->root[holds < tensors ? holds
                                                   : prover->plan->copies[holds - tensors].tensor];

        if (holds >= tensors)
                prover->holders[holds].landed = 0;
        else if (prover->holders[root].meant != 0)
                return prover_wrong(prover, "STALE", "an input arrives after a write into it",
                                    holds);
        if (prover->graph->input_count && prover->graph->inputs[command->index] != root)
                return prover_wrong(prover, "ORDER", "takes the bytes of another input", holds);
        return prover_check_write(prover, &command->to, command->bytes, holds, true);
}

/* Some experts arrive in places that others keep. */
static bool fills_places(const struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        return prover->command->code == HR_COMMAND_COPY_EXPERTS &&
               plan->groups[plan->copies[prover->command->index].group].resident;
}

/* A command that moves bytes: into a copy, out of one back into its root, or through staging. */
static hr_status prove_move(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        uint32_t tensors = plan->tensor_count;
        bool back = command->from_holds >= tensors && command->to_holds < tensors;

        HR_TRY(prover_check_read(prover, &command->from, command->bytes, command->from_holds));
        if (command->from_holds < tensors && command->to_holds >= tensors) {
                uint32_t copy = command->to_holds - tensors;
                struct hr_place source = hr_plan_tensor_place(plan, plan->copies[copy].tensor);

                if (source.where != command->from.where || source.offset != command->from.offset)
                        return prover_wrong(prover, "ORDER", "copies from elsewhere",
                                            command->to_holds);
                prover->holders[command->to_holds].landed =
                        prover->holders[command->from_holds].landed;
        }
        if (back && prover->holders[command->from_holds].landed !=
                            ++prover->holders[command->to_holds].landed)
                return prover_wrong(prover, "STALE", "carries back what is not computed",
                                    command->to_holds);
        return prover_check_write(prover, &command->to, command->bytes, command->to_holds,
                                  !back && !fills_places(prover));
}

/* The first of a group reads the ids; what it decides holds for the others in the same run. */
static hr_status prove_experts(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_copy *copy = &plan->copies[prover->command->index];
        const struct hr_expert_group *group = &plan->groups[copy->group];

        if (copy->member == 0 && group->ids_copy != HR_NO_COPY)
                HR_TRY(read_copy(prover, group->ids_copy));
        else if (copy->member == 0)
                HR_TRY(read_root(prover, group->ids));
        else if (!prover->scanned[copy->group])
                return prover_wrong(prover, "ORDER", "copies experts before their ids are read",
                                    prover->command->to_holds);
        prover->scanned[copy->group] = prover->filled[prover->command->index] = true;
        return prove_move(prover);
}

static hr_status prove_read_back(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        uint32_t tensor = prover->graph->outputs[command->index];
        struct hr_place place = hr_plan_tensor_place(plan, tensor);

        prover_skip_empty_splits(prover);
        if (prover->next_split < plan->split_count || command->bytes != plan->span[tensor] ||
            place.where != command->from.where || place.offset != command->from.offset)
                return prover_wrong(prover, "ORDER", "reads an output too early or from elsewhere",
                                    tensor);
        return read_root(prover, tensor);
}

hr_status prover_prove_access(struct prover *prover) {
        switch (prover->command->code) {
        case HR_COMMAND_INPUT:
                return prove_input(prover);
        case HR_COMMAND_WRITE:
        case HR_COMMAND_READ:
        case HR_COMMAND_COPY:
                return prove_move(prover);
        case HR_COMMAND_COPY_EXPERTS:
                return prove_experts(prover);
        case HR_COMMAND_COMPUTE:
                return prove_compute(prover);
        case HR_COMMAND_TAP:
                return prove_tap(prover);
        case HR_COMMAND_READ_BACK:
                return prove_read_back(prover);
        case HR_COMMAND_WAIT:
        case HR_COMMAND_RECORD:
        case HR_COMMAND_GATE:
        case HR_COMMAND_NOTIFY:
                break;
        }
        return HR_OK;
}
