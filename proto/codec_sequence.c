/*
 * Sequence: steps with feeds, and what came of them.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

/* ---- decoding -------------------------------------------------------------------------------- */

static bool take_feed(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        headrace_v1_Feed wire = headrace_v1_Feed_init_zero;
        struct hr_wire_feed *feed;

        (void) field;
        if (!pb_decode(stream, headrace_v1_Feed_fields, &wire))
                return false;
        feed = hr_codec_list_extend(list, 1, sizeof *feed);
        if (!feed)
                return hr_codec_refuse(stream, "too many feeds");
        *feed = (struct hr_wire_feed){wire.input, wire.step, wire.output};
        return true;
}

static bool take_step(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        struct hr_codec_list outputs = {.arena = list->arena}, feeds = {.arena = list->arena};
        headrace_v1_Step wire = headrace_v1_Step_init_zero;
        struct hr_wire_step *step;

        (void) field;
        wire.outputs = hr_codec_list_fixed32(&outputs);
        wire.feeds = (pb_callback_t){.funcs.decode = take_feed, .arg = &feeds};
        if (!pb_decode(stream, headrace_v1_Step_fields, &wire)) {
                list->exhausted |= outputs.exhausted | feeds.exhausted;
                return false;
        }
        step = hr_codec_list_extend(list, 1, sizeof *step);
        if (!step)
                return hr_codec_refuse(stream, "too many steps");
        *step = (struct hr_wire_step){
                .handle = wire.handle,
                .outputs = outputs.items,
                .output_count = outputs.count,
                .no_outputs = wire.no_outputs,
                .feeds = feeds.items,
                .feed_count = feeds.count,
        };
        return true;
}

hr_status hr_wire_sequence_decode(struct hr_wire_span message, struct hr_arena *arena,
                                  struct hr_diag *diag, struct hr_wire_sequence *ret_sequence) {
        struct hr_codec_list steps = {.arena = arena};
        headrace_v1_Sequence wire = headrace_v1_Sequence_init_zero;
        const char *traceparent = NULL;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.steps = (pb_callback_t){.funcs.decode = take_step, .arg = &steps};
        status = hr_codec_decode(message, headrace_v1_Sequence_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&steps, status, diag));
        HR_TRY(hr_codec_text_check(wire.traceparent, sizeof wire.traceparent, "traceparent", diag));
        HR_TRY(hr_codec_text_keep(wire.traceparent, arena, diag, &traceparent));
        *ret_sequence = (struct hr_wire_sequence){
                .steps = steps.items,
                .step_count = steps.count,
                .input_bytes = wire.input_bytes,
                .each = wire.each,
                .priority = wire.priority,
                .input_region = wire.input_region,
                .input_offset = wire.input_offset,
                .output_region = wire.output_region,
                .output_offset = wire.output_offset,
                .traceparent = traceparent,
        };
        return HR_OK;
}

/* ---- encoding -------------------------------------------------------------------------------- */

static bool feed_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_feed *feed = (const struct hr_wire_feed *) data + index;
        const headrace_v1_Feed wire = {
                .input = feed->input, .step = feed->step, .output = feed->output};

        return pb_encode_submessage(stream, headrace_v1_Feed_fields, &wire);
}

static bool step_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_step *step = (const struct hr_wire_step *) data + index;
        struct hr_codec_numbers outputs = {step->outputs, step->output_count, 4};
        struct hr_codec_items feeds = {
                .data = step->feeds, .count = step->feed_count, .encode = feed_put};
        const headrace_v1_Step wire = {
                .handle = step->handle,
                .outputs = hr_codec_put_numbers(&outputs),
                .no_outputs = step->no_outputs,
                .feeds = hr_codec_put_items(&feeds),
        };

        return pb_encode_submessage(stream, headrace_v1_Step_fields, &wire);
}

hr_status hr_wire_sequence_encode(const struct hr_wire_sequence *sequence, uint8_t *buffer,
                                  size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items steps = {
                .data = sequence->steps, .count = sequence->step_count, .encode = step_put};
        headrace_v1_Sequence wire = {
                .steps = hr_codec_put_items(&steps),
                .input_bytes = sequence->input_bytes,
                .each = sequence->each,
                .priority = sequence->priority,
                .input_region = sequence->input_region,
                .input_offset = sequence->input_offset,
                .output_region = sequence->output_region,
                .output_offset = sequence->output_offset,
        };

        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, sequence->traceparent);
        return hr_codec_encode(headrace_v1_Sequence_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

static bool step_reply_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_step_reply *step = (const struct hr_wire_step_reply *) data + index;
        struct hr_codec_numbers outputs = {step->output_bytes, step->output_count, 8};
        const headrace_v1_StepReply wire = {
                .output_bytes = hr_codec_put_numbers(&outputs),
                .run_ns = step->run_ns,
                .slot = step->slot,
                .sequence = step->sequence,
        };

        return pb_encode_submessage(stream, headrace_v1_StepReply_fields, &wire);
}

hr_status hr_wire_sequence_reply_encode(const struct hr_wire_sequence_reply *reply, uint8_t *buffer,
                                        size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items items = {
                .data = reply->steps, .count = reply->step_count, .encode = step_reply_put};
        headrace_v1_SequenceReply wire = {
                .steps = hr_codec_put_items(&items),
                .queue_ns = reply->queue_ns,
        };

        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, reply->traceparent);
        return hr_codec_encode(headrace_v1_SequenceReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}
