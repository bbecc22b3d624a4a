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
#include "scheduler/plan.h"

#include <string.h>

struct wanted_event {
        uint32_t lane, event, next;
};

struct writer {
        struct hr_planner *planner;
        struct hr_plan *plan;
        struct hr_command *commands;
        uint32_t count, capacity;
        uint32_t event_count, next_tap;
        uint32_t *current;     /* per lane: device that runs it now */
        uint32_t *wanted_head; /* per split: events to record at its end */
        struct wanted_event *wanted;
        uint32_t wanted_count;
        bool *is_pending; /* per lane: it copied for the current split */
        /* With one slot: what each lane knows to be over of each other, to leave out waits whose
         * order is there already. NULL with several slots, where no such wait arises. */
        uint32_t *known; /* lanes x lanes, in commands that touch memory */
        uint32_t **
                snapshots; /* per event: what its lane knew when it was recorded, itself included */
        uint32_t snapshot_capacity;
};

static uint32_t *known_of(const struct writer *writer, uint32_t lane) {
        return writer->known + (size_t) lane * writer->plan->lane_count;
}

static hr_status emit(struct writer *writer, struct hr_command command) {
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
        writer->commands[writer->count++] = command;
        if (writer->known && command.code >= HR_COMMAND_INPUT &&
            command.code <= HR_COMMAND_READ_BACK) {
                uint32_t lane = writer->plan->lane[command.device];

                ++known_of(writer, lane)[lane];
        }
        return HR_OK;
}

static hr_status emit_event(struct writer *writer, hr_command_code code, uint32_t device,
                            uint32_t event) {
        return emit(writer, (struct hr_command){.code = code, .device = device, .index = event});
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

static hr_status emit_record(struct writer *writer, uint32_t device, uint32_t event) {
        uint32_t lane = writer->plan->lane[device], lanes = writer->plan->lane_count;

        if (writer->known) {
                uint32_t *snapshot = planner_scratch(writer->planner, lanes, sizeof *snapshot);

                HR_TRY(snapshot_room(writer, event));
                if (!snapshot)
                        return planner_out_of_memory(writer->planner);
                memcpy(snapshot, known_of(writer, lane), lanes * sizeof *snapshot);
                writer->snapshots[event] = snapshot;
        }
        return emit_event(writer, HR_COMMAND_RECORD, device, event);
}

/* Waits for an event of another lane unless the lane is known to be past it. */
static hr_status emit_wait(struct writer *writer, uint32_t device, uint32_t event,
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
        return emit_event(writer, HR_COMMAND_WAIT, device, event);
}

/* The number of a lane's end is known only when all slot events are; until then it is counted from
 * the top. */
static uint32_t lane_end(uint32_t lane) {
        return UINT32_MAX - 1 - lane;
}

/* The next command of the device's lane goes to the device's queue. */
static hr_status go_to(struct writer *writer, uint32_t device) {
        uint32_t lane = writer->plan->lane[device], event;

        HR_ASSERT(lane != HR_NO_INDEX);
        if (writer->current[lane] == device)
                return HR_OK;
        if (writer->current[lane] == HR_NO_INDEX) {
                writer->plan->tape.lane_first[lane] = device;
                HR_TRY(emit_event(writer, HR_COMMAND_WAIT, device, lane_end(lane)));
        } else {
                event = writer->event_count++;
                HR_TRY(emit_event(writer, HR_COMMAND_RECORD, writer->current[lane], event));
                HR_TRY(emit_event(writer, HR_COMMAND_WAIT, device, event));
        }
        writer->current[lane] = device;
        return HR_OK;
}

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

static struct hr_place tensor_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

/* Bytes of an input leaf, or of a view of one, to where the device reads them. */
static hr_status emit_input(struct writer *writer, uint32_t device, uint32_t tensor,
                            struct hr_place to, uint32_t to_holds) {
        uint32_t leaf = writer->plan->root[tensor];

        if (writer->plan->span[tensor] == 0 || to.where == HR_WHERE_NONE ||
            writer->planner->graph->tensors[leaf].leaf_kind == HR_LEAF_CONSTANT)
                return HR_OK;
        HR_TRY(go_to(writer, device));
        return emit(writer, (struct hr_command){
                                    .code = HR_COMMAND_INPUT,
                                    .device = device,
                                    .index = input_index(writer, leaf),
                                    .bytes = writer->plan->span[tensor],
                                    .from = {.offset = writer->plan->root_offset[tensor]},
                                    .to = to,
                                    .to_holds = to_holds,
                            });
}

static hr_status emit_leaves(struct writer *writer, uint32_t split) {
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
static hr_status emit_own_writes(struct writer *writer, const struct hr_plan_split *split) {
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

                if (copy->method != HR_COPY_HOST_WEIGHT || copy->bytes == 0)
                        continue;
                HR_TRY(go_to(writer, copy->device));
                HR_TRY(emit(writer, (struct hr_command){
                                            .code = HR_COMMAND_WRITE,
                                            .device = copy->device,
                                            .bytes = copy->bytes,
                                            .from = tensor_place(plan, copy->tensor),
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

/* The event that the split's end records for a lane, or HR_NO_INDEX. */
static uint32_t find_wanted(const struct writer *writer, uint32_t split, uint32_t lane) {
        for (uint32_t w = writer->wanted_head[split]; w != HR_NO_INDEX;
             w = writer->wanted[w].next) {
                if (writer->wanted[w].lane == lane)
                        return writer->wanted[w].event;
        }
        return HR_NO_INDEX;
}

static bool waits_for_memory(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        return copy->method == HR_COPY_DIRECT && copy->ready_after != HR_NO_INDEX &&
               plan->lane[copy->source_device] != plan->lane[copy->device];
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
                .from = tensor_place(plan, copy->tensor),
                .from_holds = plan->root[copy->tensor],
                .to = staged ? staging_place(copy) : copy->place,
                .to_holds = copy_holds(plan, index),
        };

        HR_TRY(go_to(writer, source));
        if (waits_for_memory(plan, copy))
                HR_TRY(emit_wait(writer, source,
                                 find_wanted(writer, copy->ready_after, plan->lane[copy->device]),
                                 plan->lane[copy->device]));
        HR_TRY(emit(writer, command));
        if (plan->lane[source] != plan->lane[copy->device])
                writer->is_pending[plan->lane[source]] = true;
        return HR_OK;
}

/* Copies by other queues, then the reader's waits for them, then the second half of staged ones. */
static hr_status emit_copies(struct writer *writer, const struct hr_plan_split *split) {
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
                HR_TRY(emit_record(writer, writer->current[lane], event));
                HR_TRY(go_to(writer, copy->device));
                HR_TRY(emit_wait(writer, copy->device, event, lane));
        }
        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method != HR_COPY_STAGED || copy->bytes == 0)
                        continue;
                HR_TRY(go_to(writer, copy->device));
                HR_TRY(emit(writer, (struct hr_command){
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
static hr_status emit_experts(struct writer *writer, const struct hr_plan_split *split) {
        struct hr_plan *plan = writer->plan;
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[inputs[i]];

                if (copy->method != HR_COPY_EXPERTS || copy->bytes == 0)
                        continue;
                HR_TRY(go_to(writer, copy->device));
                HR_TRY(emit(writer, (struct hr_command){
                                            .code = HR_COMMAND_COPY_EXPERTS,
                                            .device = copy->device,
                                            .index = inputs[i],
                                            .bytes = copy->bytes,
                                            .from = tensor_place(plan, copy->tensor),
                                            .from_holds = plan->root[copy->tensor],
                                            .to = copy->place,
                                            .to_holds = copy_holds(plan, inputs[i]),
                                    }));
        }
        return HR_OK;
}

static hr_status emit_write_back(struct writer *writer, uint32_t index) {
        struct hr_plan *plan = writer->plan;
        const struct hr_plan_copy *copy = &plan->copies[index];
        struct hr_command command = {
                .code = HR_COMMAND_COPY,
                .device = copy->device,
                .kind = (uint32_t) planner_root_kind(writer->planner, plan->root[copy->tensor]),
                .bytes = copy->bytes,
                .from = copy->place,
                .from_holds = copy_holds(plan, index),
                .to = tensor_place(plan, copy->tensor),
                .to_holds = plan->root[copy->tensor],
        };

        if (copy->bytes == 0)
                return HR_OK;
        HR_TRY(go_to(writer, copy->device));
        if (!copy->back_staged)
                return emit(writer, command);
        command.code = HR_COMMAND_READ;
        command.to = staging_place(copy);
        command.to_holds = command.from_holds;
        HR_TRY(emit(writer, command));
        HR_TRY(go_to(writer, copy->home_device));
        command.code = HR_COMMAND_WRITE;
        command.device = copy->home_device;
        command.from = command.to;
        command.to = tensor_place(plan, copy->tensor);
        command.to_holds = plan->root[copy->tensor];
        return emit(writer, command);
}

static uint32_t output_device(const struct writer *writer, uint32_t root) {
        const struct hr_plan_input *in = writer->planner->in;
        uint32_t buffer = in->tensor_buffer[root], reader = HR_NO_INDEX;

        if (buffer == HR_NO_BUFFER)
                return planner_root_device(writer->planner, root);
        for (uint32_t d = 0; d < in->device_count; ++d) {
                if (in->devices[d].kind == in->buffers[buffer].kind)
                        return d;
                if (reader == HR_NO_INDEX &&
                    planner_reads(writer->planner, d, in->buffers[buffer].kind))
                        reader = d;
        }
        return reader;
}

static hr_status emit_tap(struct writer *writer, uint32_t index) {
        const struct hr_plan *plan = writer->plan;
        uint32_t tensor = plan->taps[index].tensor;
        uint32_t device = output_device(writer, plan->root[tensor]);

        HR_TRY(go_to(writer, device));
        return emit(writer, (struct hr_command){.code = HR_COMMAND_TAP,
                                                .device = device,
                                                .index = index,
                                                .bytes = plan->span[tensor],
                                                .from = tensor_place(plan, tensor),
                                                .from_holds = plan->root[tensor]});
}

static hr_status emit_range(struct writer *writer, uint32_t s, uint32_t first, uint32_t end) {
        uint32_t device = writer->plan->splits[s].device;

        if (first == end)
                return HR_OK;
        HR_TRY(go_to(writer, device));
        return emit(writer, (struct hr_command){.code = HR_COMMAND_COMPUTE,
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
                HR_TRY(emit_write_back(writer, split->write_back));
        for (; writer->next_tap < plan->tap_count && plan->taps[writer->next_tap].split == s;
             ++writer->next_tap)
                HR_TRY(emit_tap(writer, writer->next_tap));
        return HR_OK;
}

static hr_status emit_split(struct writer *writer, uint32_t s) {
        struct hr_plan *plan = writer->plan;
        const struct hr_plan_split *split = &plan->splits[s];

        HR_TRY(emit_leaves(writer, s));
        HR_TRY(emit_own_writes(writer, split));
        HR_TRY(emit_copies(writer, split));
        HR_TRY(emit_experts(writer, split));
        HR_TRY(emit_ranges(writer, s));
        for (uint32_t w = writer->wanted_head[s]; w != HR_NO_INDEX; w = writer->wanted[w].next)
                HR_TRY(emit_record(writer, writer->current[writer->wanted[w].lane],
                                   writer->wanted[w].event));
        return HR_OK;
}

static hr_status emit_epilogue(struct writer *writer) {
        struct hr_plan *plan = writer->plan;
        const struct hr_graph *graph = writer->planner->graph;

        HR_TRY(emit_leaves(writer, plan->split_count));
        for (uint32_t i = 0; i < graph->output_count; ++i) {
                uint32_t tensor = graph->outputs[i];
                struct hr_place place = tensor_place(plan, tensor);
                uint32_t device = output_device(writer, plan->root[tensor]);

                if (plan->span[tensor] == 0 || place.where == HR_WHERE_NONE ||
                    device == HR_NO_INDEX)
                        continue;
                HR_TRY(go_to(writer, device));
                HR_TRY(emit(writer, (struct hr_command){.code = HR_COMMAND_READ_BACK,
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
                HR_TRY(emit_event(writer, HR_COMMAND_RECORD, device, lane_end(lane)));
                HR_TRY(emit_event(writer, HR_COMMAND_NOTIFY, device, lane));
        }
        return HR_OK;
}

/* Which splits have to record an event for copies that arrive later in memory they used. */
static hr_status find_wanted_events(struct writer *writer) {
        struct hr_plan *plan = writer->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                uint32_t lane = plan->lane[copy->device];

                if (!waits_for_memory(plan, copy) || copy->bytes == 0 ||
                    find_wanted(writer, copy->ready_after, lane) != HR_NO_INDEX)
                        continue;
                writer->wanted[writer->wanted_count] =
                        (struct wanted_event){.lane = lane,
                                              .event = writer->event_count++,
                                              .next = writer->wanted_head[copy->ready_after]};
                writer->wanted_head[copy->ready_after] = writer->wanted_count++;
        }
        return HR_OK;
}

static hr_status writer_init(struct writer *writer) {
        struct hr_planner *planner = writer->planner;
        struct hr_plan *plan = writer->plan;

        writer->current = planner_scratch(planner, plan->lane_count, sizeof(uint32_t));
        writer->wanted_head = planner_scratch(planner, plan->split_count, sizeof(uint32_t));
        writer->wanted = planner_scratch(planner, plan->copy_count, sizeof *writer->wanted);
        writer->is_pending = planner_scratch(planner, plan->lane_count, sizeof(bool));
        plan->tape.lane_first = planner_keep(planner, plan->lane_count, sizeof(uint32_t));
        plan->tape.lane_last = planner_keep(planner, plan->lane_count, sizeof(uint32_t));
        if (!writer->current || !writer->wanted_head || !writer->wanted || !writer->is_pending ||
            !plan->tape.lane_first || !plan->tape.lane_last)
                return planner_out_of_memory(planner);
        if (plan->n_copies == 1) {
                writer->known = planner_scratch(planner, plan->lane_count,
                                                plan->lane_count * sizeof(uint32_t));
                if (!writer->known)
                        return planner_out_of_memory(planner);
        }
        memset(writer->current, 0xff, plan->lane_count * sizeof(uint32_t));
        memset(writer->wanted_head, 0xff, plan->split_count * sizeof(uint32_t));
        memset(plan->tape.lane_first, 0xff, plan->lane_count * sizeof(uint32_t));
        return HR_OK;
}

static bool is_lane_end(const struct writer *writer, const struct hr_command *command) {
        return (command->code == HR_COMMAND_WAIT || command->code == HR_COMMAND_RECORD) &&
               command->index >= writer->event_count;
}

/* A wait for a lane's previous run, where the queue or the single slot gives that order anyway. */
static bool is_idle_wait(const struct writer *writer, const struct hr_command *command) {
        const struct hr_plan *plan = writer->plan;
        uint32_t lane = UINT32_MAX - 1 - command->index;

        return command->code == HR_COMMAND_WAIT && is_lane_end(writer, command) &&
               (plan->n_copies == 1 || plan->tape.lane_last[lane] == plan->tape.lane_first[lane]);
}

/* Numbers the events that somebody waits for, and the ends of the lanes after them; drops the rest.
 */
static hr_status keep_commands(struct writer *writer) {
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
                }
                kept[count++] = command;
        }
        plan->tape.commands = kept;
        plan->tape.count = count;
        plan->tape.slot_event_count = events;
        return HR_OK;
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

        HR_TRY(writer_init(&writer));
        HR_TRY(find_wanted_events(&writer));
        for (uint32_t s = 0; s < planner->plan->split_count; ++s)
                HR_TRY(emit_split(&writer, s));
        HR_TRY(emit_epilogue(&writer));
        HR_TRY(keep_commands(&writer));
        count_copied_bytes(planner->plan);
        return HR_OK;
}
