/*
 * What the upload queues do for a split (uploads.c says which copies travel so).
 *
 * An upload queue stands outside of every lane. Its commands wait for events of their device's
 * lane: the end of the split that used their memory last, the end of the split that made their ids,
 * and, with several slots, the end of the lane in the run before. The split waits for one event
 * behind all of its uploads, so whatever comes after the split in its lane, or after the end of the
 * lane, comes after them too.
 */
#include "scheduler/tape_priv.h"

static hr_status emit_on_queue(struct writer *writer, hr_command_code code, uint32_t device,
                               uint32_t index) {
        return hr_tape_emit(
                writer, (struct hr_command){
                                .code = code, .upload = true, .device = device, .index = index});
}

/* Past the end of the split, as the device's lane comes to it. */
static hr_status wait_for_split(struct writer *writer, uint32_t device, uint32_t split) {
        struct upload_end *end = &writer->upload_ends[device];

        if (split == HR_NO_INDEX || split < end->seen)
                return HR_OK;
        end->seen = split + 1;
        return emit_on_queue(writer, HR_COMMAND_WAIT, device,
                             hr_tape_wanted_event(writer, split, writer->plan->lane[device]));
}

/* Past all that the lane has done for the current split so far. */
static hr_status wait_for_now(struct writer *writer, uint32_t device) {
        uint32_t event = writer->event_count++;

        HR_TRY(hr_tape_go_to(writer, device));
        HR_TRY(hr_tape_emit_event(writer, HR_COMMAND_RECORD, device, event));
        return emit_on_queue(writer, HR_COMMAND_WAIT, device, event);
}

static hr_status open_queue(struct writer *writer, uint32_t device) {
        struct hr_plan *plan = writer->plan;

        if (plan->uploads[device])
                return HR_OK;
        plan->uploads[device] = true;
        if (plan->n_copies == 1)
                return HR_OK;
        return emit_on_queue(writer, HR_COMMAND_WAIT, device, hr_tape_lane_end(plan->lane[device]));
}

static hr_status wait_for_ids(struct writer *writer, const struct hr_plan_copy *copy) {
        const struct hr_expert_group *group = &writer->plan->groups[copy->group];

        if (copy->member > 0)
                return HR_OK; /* behind the first in the same queue */
        if (group->ids_split == HR_NO_INDEX)
                return wait_for_now(writer, copy->device);
        return wait_for_split(writer, copy->device, group->ids_split);
}

static hr_status emit_upload(struct writer *writer, uint32_t index) {
        const struct hr_plan *plan = writer->plan;
        const struct hr_plan_copy *copy = &plan->copies[index];
        bool experts = copy->method == HR_COPY_EXPERTS;

        HR_TRY(open_queue(writer, copy->device));
        HR_TRY(wait_for_split(writer, copy->device, copy->ready_after));
        if (experts)
                HR_TRY(wait_for_ids(writer, copy));
        writer->upload_ends[copy->device].is_open = true;
        return hr_tape_emit(writer,
                            (struct hr_command){
                                    .code = experts ? HR_COMMAND_COPY_EXPERTS : HR_COMMAND_WRITE,
                                    .upload = true,
                                    .device = copy->device,
                                    .index = experts ? index : 0,
                                    .bytes = copy->bytes,
                                    .from = hr_plan_tensor_place(plan, copy->tensor),
                                    .from_holds = plan->root[copy->tensor],
                                    .to = copy->place,
                                    .to_holds = plan->tensor_count + index,
                            });
}

hr_status hr_tape_uploads(struct writer *writer, const struct hr_plan_split *split) {
        const struct hr_plan *plan = writer->plan;
        const uint32_t *inputs = plan->inputs + split->input_first;
        struct upload_end *end;

        if (!writer->upload_ends)
                return HR_OK;
        for (uint32_t i = 0; i < split->input_count; ++i) {
                if (plan->copies[inputs[i]].is_upload && plan->copies[inputs[i]].bytes)
                        HR_TRY(emit_upload(writer, inputs[i]));
        }
        end = &writer->upload_ends[split->device];
        if (!end->is_open)
                return HR_OK;
        end->is_open = false;
        end->event = writer->event_count++;
        HR_TRY(emit_on_queue(writer, HR_COMMAND_RECORD, split->device, end->event));
        HR_TRY(hr_tape_go_to(writer, split->device));
        return hr_tape_emit_event(writer, HR_COMMAND_WAIT, split->device, end->event);
}

hr_status hr_tape_end_uploads(struct writer *writer) {
        const struct hr_plan *plan = writer->plan;

        for (uint32_t d = 0; d < plan->device_count; ++d) {
                if (plan->uploads[d])
                        HR_TRY(emit_on_queue(writer, HR_COMMAND_NOTIFY, d,
                                             writer->upload_ends[d].event));
        }
        return HR_OK;
}

hr_status hr_tape_init_uploads(struct writer *writer) {
        const struct hr_plan *plan = writer->plan;
        bool any = false;

        for (uint32_t c = 0; c < plan->copy_count && !any; ++c)
                any = plan->copies[c].is_upload;
        if (!any)
                return HR_OK;
        writer->upload_ends =
                planner_scratch(writer->planner, plan->device_count, sizeof *writer->upload_ends);
        return writer->upload_ends ? HR_OK : planner_out_of_memory(writer->planner);
}
