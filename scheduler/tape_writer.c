/*
 * Writes commands: which queue a lane is on, which events there are, and what a lane knows to be
 * over, so that waits whose order is there already are left out.
 */
#include "scheduler/tape_priv.h"

#include <string.h>

static uint32_t *known_of(const struct writer *writer, uint32_t lane) {
        return writer->known + (size_t) lane * writer->plan->lane_count;
}

static hr_status append(struct writer *writer, const struct hr_command *command) {
        if (writer->count == writer->capacity) {
                uint32_t wanted = writer->capacity ? writer->capacity * 2 : 64;
                struct hr_command *larger =
                        planner_scratch(writer->planner, wanted, sizeof *larger);

                if (!larger)
                        return planner_out_of_memory(writer->planner);
                if (writer->count)
                        memcpy(larger, writer->commands, writer->count * sizeof *larger);
                writer->commands = larger;
                writer->capacity = wanted;
        }
        writer->commands[writer->count++] = *command;
        return HR_OK;
}

/* ---- Gates -------------------------------------------------------------------------------------
 */

/* Before the first command of a lane, or of an upload queue, that touches passing memory of a kind,
 * its queue waits for the pipeline that used that memory last. The rest of the lane follows. */
static hr_status emit_gate(struct writer *writer, const struct hr_command *command, uint32_t kind) {
        bool *touches = hr_plan_touches(writer->plan, command);

        if (touches[kind] || hr_plan_passing_bytes(writer->plan, kind) == 0)
                return HR_OK;
        touches[kind] = true;
        return append(writer, &(struct hr_command){.code = HR_COMMAND_GATE,
                                                   .upload = command->upload,
                                                   .device = command->device,
                                                   .kind = kind});
}

/* What a computation touches, whatever it is, lies in pools of its lane; so do the ids of experts.
 */
static hr_status emit_gates(struct writer *writer, const struct hr_command *command) {
        const struct hr_plan *plan = writer->plan;
        bool computes =
                command->code == HR_COMMAND_COMPUTE || command->code == HR_COMMAND_COPY_EXPERTS;

        if (hr_plan_passes(plan, &command->from))
                HR_TRY(emit_gate(writer, command, command->from.index));
        if (hr_plan_passes(plan, &command->to))
                HR_TRY(emit_gate(writer, command, command->to.index));
        for (uint32_t k = 0; computes && k < plan->kind_count; ++k) {
                if (plan->pool_lane[k] == plan->lane[command->device])
                        HR_TRY(emit_gate(writer, command, k));
        }
        return HR_OK;
}

hr_status hr_tape_emit(struct writer *writer, struct hr_command command) {
        bool touches = command.code >= HR_COMMAND_INPUT && command.code <= HR_COMMAND_READ_BACK;

        if (touches)
                HR_TRY(emit_gates(writer, &command));
        HR_TRY(append(writer, &command));
        if (writer->known && touches && !command.upload) {
                uint32_t lane = writer->plan->lane[command.device];

                ++known_of(writer, lane)[lane];
        }
        return HR_OK;
}

hr_status hr_tape_emit_event(struct writer *writer, hr_command_code code, uint32_t device,
                             uint32_t event) {
        return hr_tape_emit(writer,
                            (struct hr_command){.code = code, .device = device, .index = event});
}

static hr_status snapshot_room(struct writer *writer, uint32_t event) {
        uint32_t wanted = HR_MAX(writer->snapshot_capacity, 64U);
        uint32_t **larger;

        if (event < writer->snapshot_capacity)
                return HR_OK;
        while (wanted <= event)
                wanted *= 2;
        larger = planner_scratch(writer->planner, wanted, sizeof *larger);
        if (!larger)
                return planner_out_of_memory(writer->planner);
        if (writer->snapshot_capacity)
                memcpy(larger, writer->snapshots, writer->snapshot_capacity * sizeof *larger);
        writer->snapshots = larger;
        writer->snapshot_capacity = wanted;
        return HR_OK;
}

hr_status hr_tape_record(struct writer *writer, uint32_t device, uint32_t event) {
        uint32_t lane = writer->plan->lane[device], lanes = writer->plan->lane_count;

        if (writer->known) {
                uint32_t *snapshot = planner_scratch(writer->planner, lanes, sizeof *snapshot);

                HR_TRY(snapshot_room(writer, event));
                if (!snapshot)
                        return planner_out_of_memory(writer->planner);
                memcpy(snapshot, known_of(writer, lane), lanes * sizeof *snapshot);
                writer->snapshots[event] = snapshot;
        }
        return hr_tape_emit_event(writer, HR_COMMAND_RECORD, device, event);
}

/* Waits for an event of another lane unless the lane is known to be past it. */
hr_status hr_tape_wait(struct writer *writer, uint32_t device, uint32_t event,
                       uint32_t event_lane) {
        uint32_t lane = writer->plan->lane[device];

        if (writer->known) {
                const uint32_t *snapshot = writer->snapshots[event];
                uint32_t *known = known_of(writer, lane);

                if (known[event_lane] >= snapshot[event_lane])
                        return HR_OK;
                for (uint32_t l = 0; l < writer->plan->lane_count; ++l)
                        known[l] = HR_MAX(known[l], snapshot[l]);
        }
        return hr_tape_emit_event(writer, HR_COMMAND_WAIT, device, event);
}

/* The next command of the device's lane goes to the device's queue. */
hr_status hr_tape_go_to(struct writer *writer, uint32_t device) {
        uint32_t lane = writer->plan->lane[device], event;

        HR_ASSERT(lane != HR_NO_INDEX);
        if (writer->current[lane] == device)
                return HR_OK;
        if (writer->current[lane] == HR_NO_INDEX) {
                writer->plan->tape.lane_first[lane] = device;
                HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_WAIT, device, hr_tape_lane_end(lane)));
        } else {
                event = writer->event_count++;
                HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_RECORD, writer->current[lane], event));
                HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_WAIT, device, event));
        }
        writer->current[lane] = device;
        return HR_OK;
}

hr_status hr_tape_writer_init(struct writer *writer) {
        struct hr_planner *planner = writer->planner;
        struct hr_plan *plan = writer->plan;

        writer->current = planner_scratch(planner, plan->lane_count, sizeof(uint32_t));
        writer->wanted_head = planner_scratch(planner, plan->split_count, sizeof(uint32_t));
        writer->wanted = planner_scratch(planner, (uint64_t) plan->copy_count + plan->group_count,
                                         sizeof *writer->wanted);
        writer->is_pending = planner_scratch(planner, plan->lane_count, sizeof(bool));
        plan->tape.lane_first = planner_keep(planner, plan->lane_count, sizeof(uint32_t));
        plan->tape.lane_last = planner_keep(planner, plan->lane_count, sizeof(uint32_t));
        plan->touches = planner_keep(planner, (uint64_t) plan->lane_count + plan->device_count,
                                     plan->kind_count * sizeof(bool));
        if (!plan->touches || !writer->current || !writer->wanted_head || !writer->wanted ||
            !writer->is_pending || !plan->tape.lane_first || !plan->tape.lane_last)
                return planner_out_of_memory(planner);
        if (plan->n_copies == 1) {
                writer->known = planner_scratch(planner, plan->lane_count,
                                                plan->lane_count * sizeof(uint32_t));
                if (!writer->known)
                        return planner_out_of_memory(planner);
        }
        HR_TRY(hr_tape_init_uploads(writer));
        memset(writer->current, 0xff, plan->lane_count * sizeof(uint32_t));
        memset(writer->wanted_head, 0xff, plan->split_count * sizeof(uint32_t));
        memset(plan->tape.lane_first, 0xff, plan->lane_count * sizeof(uint32_t));
        return HR_OK;
}

/* ---- Which commands stay ---------------------------------------------------------------------
 */

static bool is_lane_end(const struct writer *writer, const struct hr_command *command) {
        return (command->code == HR_COMMAND_WAIT || command->code == HR_COMMAND_RECORD) &&
               command->index >= writer->event_count;
}

/* A wait for a lane's previous run, where the queue or the single slot gives that order anyway. */
static bool is_idle_wait(const struct writer *writer, const struct hr_command *command) {
        const struct hr_plan *plan = writer->plan;
        uint32_t lane = UINT32_MAX - 1 - command->index;

        return command->code == HR_COMMAND_WAIT && !command->upload &&
               is_lane_end(writer, command) &&
               (plan->n_copies == 1 || plan->tape.lane_last[lane] == plan->tape.lane_first[lane]);
}

/* Numbers the events that somebody waits for, and the ends of the lanes after them; drops the rest.
 */
hr_status hr_tape_keep_commands(struct writer *writer) {
        struct hr_plan *plan = writer->plan;
        struct hr_command *kept = planner_keep(writer->planner, writer->count, sizeof *kept);
        uint32_t *number = planner_scratch(writer->planner, writer->event_count, sizeof *number);
        uint32_t events = 0, count = 0;

        if (!kept || !number)
                return planner_out_of_memory(writer->planner);
        for (uint32_t i = 0; i < writer->count; ++i) {
                const struct hr_command *command = &writer->commands[i];

                if (command->code == HR_COMMAND_WAIT && !is_lane_end(writer, command) &&
                    !number[command->index])
                        number[command->index] = ++events;
        }
        for (uint32_t i = 0; i < writer->count; ++i) {
                struct hr_command command = writer->commands[i];

                if (is_idle_wait(writer, &command))
                        continue;
                if (is_lane_end(writer, &command))
                        command.index = events + (UINT32_MAX - 1 - command.index);
                else if (command.code == HR_COMMAND_WAIT || command.code == HR_COMMAND_RECORD) {
                        if (!number[command.index])
                                continue;
                        command.index = number[command.index] - 1;
                } else if (command.code == HR_COMMAND_NOTIFY && command.upload)
                        command.index = number[command.index] - 1;
                kept[count++] = command;
        }
        plan->tape.commands = kept;
        plan->tape.count = count;
        plan->tape.slot_event_count = events;
        return HR_OK;
}
