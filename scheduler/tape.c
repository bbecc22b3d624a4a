/*
 * The tape: every command of a run, in the order in which it is submitted.
 *
 * Inside a lane the tape changes queues only through a record and a wait, so the commands of a lane
 * happen in plan order. Between lanes there are copies: the queue of the source memory copies,
 * records an event, and the reader's queue waits for it before it computes. With one slot a copy
 * may arrive in memory that the reader's lane used earlier in the run; the split that used it then
 * records an event and the copy waits for it. With several slots copies have memory of their own,
 * and a slot is used again only after its run is done, so nothing has to be waited for.
 *
 * From run to run a lane goes on where it ended: if another queue starts it, that queue waits for
 * the event at the end of the lane's previous run. A wait means the latest record submitted so far,
 * so a run can wait for its predecessor on the very event that it records itself later.
 */
#include "scheduler/tape_priv.h"

static hr_status emit_tap(struct writer *writer, uint32_t index) {
        const struct hr_plan *plan = writer->plan;
        uint32_t tensor = plan->taps[index].tensor;
        uint32_t device = writer->planner->tap_reader[index];

        HR_TRY(hr_tape_go_to(writer, device));
        return hr_tape_emit(writer, (struct hr_command){.code = HR_COMMAND_TAP,
                                                        .device = device,
                                                        .index = index,
                                                        .bytes = plan->span[tensor],
                                                        .from = hr_plan_tensor_place(plan, tensor),
                                                        .from_holds = plan->root[tensor]});
}

static hr_status emit_range(struct writer *writer, uint32_t s, uint32_t first, uint32_t end) {
        uint32_t device = writer->plan->splits[s].device;

        if (first == end)
                return HR_OK;
        HR_TRY(hr_tape_go_to(writer, device));
        return hr_tape_emit(writer, (struct hr_command){.code = HR_COMMAND_COMPUTE,
                                                        .device = device,
                                                        .index = s,
                                                        .first = first,
                                                        .count = end - first});
}

/* The split's steps up to each tap, then the tap; those at its end when its result is back. */
static hr_status emit_ranges(struct writer *writer, uint32_t s) {
        const struct hr_plan *plan = writer->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        uint32_t first = 0;

        for (; writer->next_tap < plan->tap_count && plan->taps[writer->next_tap].split == s;
             ++writer->next_tap) {
                uint32_t end = plan->taps[writer->next_tap].step - split->step_first;

                if (end == split->step_count)
                        break;
                HR_TRY(emit_range(writer, s, first, end));
                HR_TRY(emit_tap(writer, writer->next_tap));
                first = end;
        }
        HR_TRY(emit_range(writer, s, first, split->step_count));
        if (split->write_back != HR_NO_COPY)
                HR_TRY(hr_tape_write_back(writer, split->write_back));
        for (; writer->next_tap < plan->tap_count && plan->taps[writer->next_tap].split == s;
             ++writer->next_tap)
                HR_TRY(emit_tap(writer, writer->next_tap));
        return HR_OK;
}

static hr_status emit_split(struct writer *writer, uint32_t s) {
        struct hr_plan *plan = writer->plan;
        const struct hr_plan_split *split = &plan->splits[s];

        HR_TRY(hr_tape_leaves(writer, s));
        HR_TRY(hr_tape_own_writes(writer, split));
        HR_TRY(hr_tape_copies(writer, split));
        HR_TRY(hr_tape_uploads(writer, split));
        HR_TRY(hr_tape_experts(writer, split));
        HR_TRY(emit_ranges(writer, s));
        for (uint32_t w = writer->wanted_head[s]; w != HR_NO_INDEX; w = writer->wanted[w].next)
                HR_TRY(hr_tape_record(writer, writer->current[writer->wanted[w].lane],
                                      writer->wanted[w].event));
        return HR_OK;
}

static hr_status emit_epilogue(struct writer *writer) {
        struct hr_plan *plan = writer->plan;
        const struct hr_graph *graph = writer->planner->graph;

        HR_TRY(hr_tape_leaves(writer, plan->split_count));
        for (uint32_t i = 0; i < graph->output_count; ++i) {
                uint32_t tensor = graph->outputs[i];
                struct hr_place place = hr_plan_tensor_place(plan, tensor);
                uint32_t device = writer->planner->output_reader[i];

                if (plan->span[tensor] == 0 || place.where == HR_WHERE_NONE ||
                    device == HR_NO_INDEX)
                        continue;
                HR_TRY(hr_tape_go_to(writer, device));
                HR_TRY(hr_tape_emit(writer, (struct hr_command){.code = HR_COMMAND_READ_BACK,
                                                                .device = device,
                                                                .index = i,
                                                                .bytes = plan->span[tensor],
                                                                .from = place,
                                                                .from_holds = plan->root[tensor]}));
        }
        for (uint32_t lane = 0; lane < plan->lane_count; ++lane) {
                uint32_t device = writer->current[lane];

                plan->tape.lane_last[lane] = device;
                if (device == HR_NO_INDEX)
                        continue;
                HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_RECORD, device,
                                          hr_tape_lane_end(lane)));
                HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_NOTIFY, device, lane));
        }
        return hr_tape_end_uploads(writer);
}

static void count_copied_bytes(struct hr_plan *plan) {
        plan->copied_bytes = plan->expert_bytes;
        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                const struct hr_command *command = &plan->tape.commands[i];

                if (command->code == HR_COMMAND_COPY || command->code == HR_COMMAND_READ ||
                    (command->code == HR_COMMAND_WRITE && command->from.where == HR_WHERE_HOME))
                        plan->copied_bytes += command->bytes;
        }
}

hr_status hr_plan_tape(struct hr_planner *planner) {
        struct writer writer = {.planner = planner, .plan = planner->plan};

        HR_TRY(hr_tape_writer_init(&writer));
        hr_tape_find_wanted_events(&writer);
        for (uint32_t s = 0; s < planner->plan->split_count; ++s)
                HR_TRY(emit_split(&writer, s));
        HR_TRY(emit_epilogue(&writer));
        HR_TRY(hr_tape_keep_commands(&writer));
        count_copied_bytes(planner->plan);
        return HR_OK;
}
