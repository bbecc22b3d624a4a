/*
 * What arrives in a split before it computes, and what is carried back after it.
 */
#include "scheduler/tape_priv.h"

static uint32_t input_index(const struct writer *writer, uint32_t leaf) {
        const struct hr_graph *graph = writer->planner->graph;
        uint32_t low = 0, high = graph->input_count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (graph->inputs[middle] < leaf)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* Bytes of an input leaf, or of a view of one, to where the device reads them. */
static hr_status emit_input(struct writer *writer, uint32_t device, uint32_t tensor,
                            struct hr_place to, uint32_t to_holds) {
        uint32_t leaf = writer->plan->root[tensor];

        if (writer->plan->span[tensor] == 0 || to.where == HR_WHERE_NONE ||
            writer->planner->graph->tensors[leaf].leaf_kind == HR_LEAF_CONSTANT)
                return HR_OK;
        HR_TRY(hr_tape_go_to(writer, device));
        return hr_tape_emit(writer, (struct hr_command){
                                            .code = HR_COMMAND_INPUT,
                                            .device = device,
                                            .index = input_index(writer, leaf),
                                            .bytes = writer->plan->span[tensor],
                                            .from = {.offset = writer->plan->root_offset[tensor]},
                                            .to = to,
                                            .to_holds = to_holds,
                                    });
}

hr_status hr_tape_leaves(struct writer *writer, uint32_t split) {
        for (uint32_t leaf = writer->planner->leaf_head[split]; leaf != HR_NO_INDEX;
             leaf = writer->planner->leaf_next[leaf])
                HR_TRY(emit_input(writer, planner_root_device(writer->planner, leaf), leaf,
                                  writer->plan->place[leaf], leaf));
        return HR_OK;
}

/* How the verifier calls what a copy's place holds. */
static uint32_t copy_holds(const struct hr_plan *plan, uint32_t copy) {
        return plan->tensor_count + copy;
}

/* What the reader's own queue writes: run inputs first, they are the client's. */
hr_status hr_tape_own_writes(struct writer *writer, const struct hr_plan_split *split) {
        struct hr_plan *plan = writer->plan;
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method == HR_COPY_INPUT)
                        HR_TRY(emit_input(writer, copy->device, copy->tensor, copy->place,
                                          copy_holds(plan, inputs[i])));
        }
        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method != HR_COPY_HOST_WEIGHT || copy->is_upload || copy->bytes == 0)
                        continue;
                HR_TRY(hr_tape_go_to(writer, copy->device));
                HR_TRY(hr_tape_emit(writer,
                                    (struct hr_command){
                                            .code = HR_COMMAND_WRITE,
                                            .device = copy->device,
                                            .bytes = copy->bytes,
                                            .from = hr_plan_tensor_place(plan, copy->tensor),
                                            .from_holds = plan->root[copy->tensor],
                                            .to = copy->place,
                                            .to_holds = copy_holds(plan, inputs[i]),
                                    }));
        }
        return HR_OK;
}

static struct hr_place staging_place(const struct hr_plan_copy *copy) {
        return (struct hr_place){.where = HR_WHERE_STAGING, .offset = copy->staging_offset};
}

uint32_t hr_tape_wanted_event(const struct writer *writer, uint32_t split, uint32_t lane) {
        for (uint32_t w = writer->wanted_head[split]; w != HR_NO_INDEX;
             w = writer->wanted[w].next) {
                if (writer->wanted[w].lane == lane)
                        return writer->wanted[w].event;
        }
        return HR_NO_INDEX;
}

static bool waits_for_memory(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        if (copy->ready_after == HR_NO_INDEX || copy->bytes == 0)
                return false;
        return copy->is_upload || (copy->method == HR_COPY_DIRECT &&
                                   plan->lane[copy->source_device] != plan->lane[copy->device]);
}

static hr_status emit_copy(struct writer *writer, uint32_t index) {
        struct hr_plan *plan = writer->plan;
        const struct hr_plan_copy *copy = &plan->copies[index];
        uint32_t source = copy->source_device;
        bool staged = copy->method == HR_COPY_STAGED;
        struct hr_command command = {
                .code = staged ? HR_COMMAND_READ : HR_COMMAND_COPY,
                .device = source,
                .kind = writer->planner->in->devices[copy->device].kind,
                .bytes = copy->bytes,
                .from = hr_plan_tensor_place(plan, copy->tensor),
                .from_holds = plan->root[copy->tensor],
                .to = staged ? staging_place(copy) : copy->place,
                .to_holds = copy_holds(plan, index),
        };

        HR_TRY(hr_tape_go_to(writer, source));
        if (waits_for_memory(plan, copy))
                HR_TRY(hr_tape_wait(
                        writer, source,
                        hr_tape_wanted_event(writer, copy->ready_after, plan->lane[copy->device]),
                        plan->lane[copy->device]));
        HR_TRY(hr_tape_emit(writer, command));
        if (plan->lane[source] != plan->lane[copy->device])
                writer->is_pending[plan->lane[source]] = true;
        return HR_OK;
}

/* Copies by other queues, then the reader's waits for them, then the second half of staged ones. */
hr_status hr_tape_copies(struct writer *writer, const struct hr_plan_split *split) {
        struct hr_plan *plan = writer->plan;
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->source_device != HR_NO_INDEX && copy->bytes)
                        HR_TRY(emit_copy(writer, inputs[i]));
        }
        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];
                uint32_t event, lane = copy->source_device == HR_NO_INDEX
                                               ? HR_NO_INDEX
                                               : plan->lane[copy->source_device];

                if (lane == HR_NO_INDEX || !writer->is_pending[lane])
                        continue;
                writer->is_pending[lane] = false;
                event = writer->event_count++;
                /* Where the lane is now, after all its copies. */
                HR_TRY(hr_tape_record(writer, writer->current[lane], event));
                HR_TRY(hr_tape_go_to(writer, copy->device));
                HR_TRY(hr_tape_wait(writer, copy->device, event, lane));
        }
        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method != HR_COPY_STAGED || copy->bytes == 0)
                        continue;
                HR_TRY(hr_tape_go_to(writer, copy->device));
                HR_TRY(hr_tape_emit(writer, (struct hr_command){
                                                    .code = HR_COMMAND_WRITE,
                                                    .device = copy->device,
                                                    .bytes = copy->bytes,
                                                    .from = staging_place(copy),
                                                    .from_holds = copy_holds(plan, inputs[i]),
                                                    .to = copy->place,
                                                    .to_holds = copy_holds(plan, inputs[i]),
                                            }));
        }
        return HR_OK;
}

/* The used experts, once the ids are where the device reads them. */
hr_status hr_tape_experts(struct writer *writer, const struct hr_plan_split *split) {
        struct hr_plan *plan = writer->plan;
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method != HR_COPY_EXPERTS || copy->is_upload || copy->bytes == 0)
                        continue;
                HR_TRY(hr_tape_go_to(writer, copy->device));
                HR_TRY(hr_tape_emit(writer,
                                    (struct hr_command){
                                            .code = HR_COMMAND_COPY_EXPERTS,
                                            .device = copy->device,
                                            .index = inputs[i],
                                            .bytes = copy->bytes,
                                            .from = hr_plan_tensor_place(plan, copy->tensor),
                                            .from_holds = plan->root[copy->tensor],
                                            .to = copy->place,
                                            .to_holds = copy_holds(plan, inputs[i]),
                                    }));
        }
        return HR_OK;
}

hr_status hr_tape_write_back(struct writer *writer, uint32_t index) {
        struct hr_plan *plan = writer->plan;
        const struct hr_plan_copy *copy = &plan->copies[index];
        struct hr_command command = {
                .code = HR_COMMAND_COPY,
                .device = copy->device,
                .kind = (uint32_t) planner_root_kind(writer->planner, plan->root[copy->tensor]),
                .bytes = copy->bytes,
                .from = copy->place,
                .from_holds = copy_holds(plan, index),
                .to = hr_plan_tensor_place(plan, copy->tensor),
                .to_holds = plan->root[copy->tensor],
        };

        if (copy->bytes == 0)
                return HR_OK;
        HR_TRY(hr_tape_go_to(writer, copy->device));
        if (!copy->back_staged)
                return hr_tape_emit(writer, command);
        command.code = HR_COMMAND_READ;
        command.to = staging_place(copy);
        command.to_holds = command.from_holds;
        HR_TRY(hr_tape_emit(writer, command));
        HR_TRY(hr_tape_go_to(writer, copy->home_device));
        command.code = HR_COMMAND_WRITE;
        command.device = copy->home_device;
        command.from = command.to;
        command.to = hr_plan_tensor_place(plan, copy->tensor);
        command.to_holds = plan->root[copy->tensor];
        return hr_tape_emit(writer, command);
}

/* Which splits have to record an event for copies that arrive later in memory they used. */
static void want_event(struct writer *writer, uint32_t split, uint32_t lane) {
        if (hr_tape_wanted_event(writer, split, lane) != HR_NO_INDEX)
                return;
        writer->wanted[writer->wanted_count] = (struct wanted_event){
                .lane = lane, .event = writer->event_count++, .next = writer->wanted_head[split]};
        writer->wanted_head[split] = writer->wanted_count++;
}

void hr_tape_find_wanted_events(struct writer *writer) {
        const struct hr_plan *plan = writer->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (waits_for_memory(plan, copy))
                        want_event(writer, copy->ready_after, plan->lane[copy->device]);
        }
        for (uint32_t g = 0; g < plan->group_count; ++g) {
                const struct hr_expert_group *group = &plan->groups[g];

                if (group->is_upload && group->ids_split != HR_NO_INDEX)
                        want_event(writer, group->ids_split, plan->lane[group->device]);
        }
}
