/*
 * Submit, Run and their replies. Run is on the path of every evaluation: it costs one nanopb decode
 * into a struct of a few words and, only when outputs are named, one copy into the arena; and one
 * reply.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

static hr_status submit_check(const headrace_v1_Submit *wire, struct hr_diag *diag) {
        if (wire->digest.size != 0 && wire->digest.size != HR_WIRE_DIGEST_BYTES)
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "a digest has %u bytes, not %u",
                                      wire->digest.size, HR_WIRE_DIGEST_BYTES);
        if (wire->rules > _headrace_v1_Rules_MAX)
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "no such set of rules: %d",
                                      (int) wire->rules);
        return HR_OK;
}

hr_status hr_wire_submit_decode(struct hr_wire_span message, struct hr_arena *arena,
                                struct hr_diag *diag, struct hr_wire_submit *ret_submit) {
        struct hr_codec_list weights = {.arena = arena};
        struct hr_codec_list states = {.arena = arena};
        struct hr_codec_list taps = {.arena = arena};
        struct hr_codec_list pins = {.arena = arena};
        struct hr_codec_list planned = {.arena = arena};
        headrace_v1_Submit wire = headrace_v1_Submit_init_zero;
        const char *traceparent = NULL;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.weights = hr_codec_list_fixed64(&weights);
        wire.states = hr_codec_list_fixed64(&states);
        wire.taps = hr_codec_list_fixed32(&taps);
        wire.pins = hr_codec_list_rules(&pins);
        wire.planned = hr_codec_list_rules(&planned);
        status = hr_codec_decode(message, headrace_v1_Submit_fields, &wire, diag);
        status = hr_codec_list_check(&weights, status, diag);
        status = hr_codec_list_check(&states, status, diag);
        status = hr_codec_list_check(&taps, status, diag);
        status = hr_codec_list_check(&pins, status, diag);
        HR_TRY(hr_codec_list_check(&planned, status, diag));
        HR_TRY(submit_check(&wire, diag));
        HR_TRY(hr_codec_text_check(wire.traceparent, sizeof wire.traceparent, "traceparent", diag));
        HR_TRY(hr_codec_text_keep(wire.traceparent, arena, diag, &traceparent));
        *ret_submit = (struct hr_wire_submit){
                .digest_bytes = wire.digest.size,
                .graph_bytes = wire.graph_bytes,
                .weights = weights.items,
                .states = states.items,
                .weight_count = weights.count,
                .state_count = states.count,
                .pins = pins.items,
                .pin_count = pins.count,
                .planned = planned.items,
                .planned_count = planned.count,
                .rules = (uint32_t) wire.rules,
                .n_copies = wire.n_copies,
                .op_offload = wire.op_offload,
                .strict = wire.strict,
                .dry_run = wire.dry_run,
                .fresh = wire.fresh,
                .realloc_fail = wire.realloc_fail,
                .taps = taps.items,
                .tap_count = taps.count,
                .debug = wire.debug,
                .traceparent = traceparent,
        };
        memcpy(ret_submit->digest, wire.digest.bytes, wire.digest.size);
        return HR_OK;
}

static bool pin_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_rule *rule = (const struct hr_wire_rule *) data + index;
        headrace_v1_Pin wire = headrace_v1_Pin_init_zero;

        hr_codec_text_copy(wire.pattern, sizeof wire.pattern, rule->pattern);
        hr_codec_text_copy(wire.device, sizeof wire.device, rule->device);
        return pb_encode_submessage(stream, headrace_v1_Pin_fields, &wire);
}

/* Hands the submit to `put` as the generated struct. */
static bool submit_fill(const struct hr_wire_submit *submit,
                        bool (*put)(void *arg, const headrace_v1_Submit *wire), void *arg) {
        struct hr_codec_numbers weights = {submit->weights, submit->weight_count, 8};
        struct hr_codec_numbers states = {submit->states, submit->state_count, 8};
        struct hr_codec_numbers taps = {submit->taps, submit->tap_count, 4};
        struct hr_codec_items pins = {
                .data = submit->pins,
                .count = submit->pin_count,
                .encode = pin_put,
        };
        struct hr_codec_items planned = {
                .data = submit->planned,
                .count = submit->planned_count,
                .encode = hr_codec_rule_put,
        };
        headrace_v1_Submit wire = {
                .graph_bytes = submit->graph_bytes,
                .weights = hr_codec_put_numbers(&weights),
                .states = hr_codec_put_numbers(&states),
                .taps = hr_codec_put_numbers(&taps),
                .pins = hr_codec_put_items(&pins),
                .planned = hr_codec_put_items(&planned),
                .rules = (headrace_v1_Rules) submit->rules,
                .n_copies = submit->n_copies,
                .op_offload = submit->op_offload,
                .strict = submit->strict,
                .dry_run = submit->dry_run,
                .fresh = submit->fresh,
                .debug = submit->debug,
                .realloc_fail = submit->realloc_fail,
        };

        HR_ASSERT(submit->digest_bytes <= HR_WIRE_DIGEST_BYTES);
        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, submit->traceparent);
        wire.digest.size = (pb_size_t) submit->digest_bytes;
        memcpy(wire.digest.bytes, submit->digest, submit->digest_bytes);
        return put(arg, &wire);
}

/* As the whole of a stream. */
static bool submit_put_plain(void *arg, const headrace_v1_Submit *wire) {
        return pb_encode(arg, headrace_v1_Submit_fields, wire);
}

static bool submit_put_within(void *arg, const headrace_v1_Submit *wire) {
        return pb_encode_submessage(arg, headrace_v1_Submit_fields, wire);
}

bool hr_codec_submit_put(pb_ostream_t *stream, const struct hr_wire_submit *submit) {
        return submit_fill(submit, submit_put_within, stream);
}

hr_status hr_wire_submit_encode(const struct hr_wire_submit *submit, uint8_t *buffer,
                                size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = pb_ostream_from_buffer(buffer, capacity);

        if (!submit_fill(submit, submit_put_plain, &stream))
                return hr_codec_too_long(capacity, diag);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}

bool hr_codec_device_bytes_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_device_bytes *device =
                (const struct hr_wire_device_bytes *) data + index;
        headrace_v1_DeviceBytes wire = {
                .compute_bytes = device->compute_bytes,
                .splits = device->splits,
                .weights_bytes = device->weights_bytes,
                .state_bytes = device->state_bytes,
                .copies_bytes = device->copies_bytes,
                .scratch_bytes = device->scratch_bytes,
        };

        hr_codec_text_copy(wire.device, sizeof wire.device, device->device);
        return pb_encode_submessage(stream, headrace_v1_DeviceBytes_fields, &wire);
}

hr_status hr_wire_submit_reply_encode(const struct hr_wire_submit_reply *reply, uint8_t *buffer,
                                      size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items devices = {
                .data = reply->devices,
                .count = reply->device_count,
                .encode = hr_codec_device_bytes_put,
        };
        headrace_v1_SubmitReply wire = {
                .handle = reply->handle,
                .first_different = reply->first_different,
                .split_count = reply->split_count,
                .n_copies = reply->n_copies,
                .copied_bytes = reply->copied_bytes,
                .staging_bytes = reply->staging_bytes,
                .tap_bytes = reply->tap_bytes,
                .debug_bytes = reply->debug_bytes,
                .devices = hr_codec_put_items(&devices),
                .input_count = reply->input_count,
                .output_count = reply->output_count,
                .fallback_nodes = reply->fallback_nodes,
                .reallocs = reply->reallocs,
                .reserved = reply->reserved,
        };

        wire.digest.size = HR_WIRE_DIGEST_BYTES;
        memcpy(wire.digest.bytes, reply->digest, HR_WIRE_DIGEST_BYTES);
        hr_codec_text_copy(wire.origin, sizeof wire.origin, reply->origin);
        hr_codec_text_copy(wire.copies_reason, sizeof wire.copies_reason, reply->copies_reason);
        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, reply->traceparent);
        hr_codec_text_copy(wire.uploads, sizeof wire.uploads, reply->uploads);
        if (reply->realloc) {
                wire.has_realloc = true;
                wire.realloc.tensor = reply->realloc->tensor;
                wire.realloc.old_bytes = reply->realloc->old_bytes;
                wire.realloc.new_bytes = reply->realloc->new_bytes;
                hr_codec_text_copy(wire.realloc.device, sizeof wire.realloc.device,
                                   reply->realloc->device);
                hr_codec_text_copy(wire.realloc.name, sizeof wire.realloc.name,
                                   reply->realloc->name);
        }
        return hr_codec_encode(headrace_v1_SubmitReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_submit_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                      struct hr_wire_submit_reply *ret_reply) {
        headrace_v1_SubmitReply wire = headrace_v1_SubmitReply_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_SubmitReply_fields, &wire, diag));
        *ret_reply = (struct hr_wire_submit_reply){
                .handle = wire.handle,
                .first_different = wire.first_different,
                .split_count = wire.split_count,
                .n_copies = wire.n_copies,
                .copied_bytes = wire.copied_bytes,
                .staging_bytes = wire.staging_bytes,
                .tap_bytes = wire.tap_bytes,
                .debug_bytes = wire.debug_bytes,
                .input_count = wire.input_count,
                .output_count = wire.output_count,
                .fallback_nodes = wire.fallback_nodes,
                .reallocs = wire.reallocs,
                .reserved = wire.reserved,
        };
        memcpy(ret_reply->digest, wire.digest.bytes, wire.digest.size);
        return HR_OK;
}

static hr_status run_decode(struct hr_wire_span message, struct hr_arena *arena,
                            struct hr_diag *diag, struct hr_wire_run *ret_run) {
        struct hr_codec_list outputs = {.arena = arena};
        headrace_v1_Run wire = headrace_v1_Run_init_zero;
        const char *traceparent = NULL;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.outputs = hr_codec_list_fixed32(&outputs);
        status = hr_codec_decode(message, headrace_v1_Run_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&outputs, status, diag));
        HR_TRY(hr_codec_text_check(wire.traceparent, sizeof wire.traceparent, "traceparent", diag));
        HR_TRY(hr_codec_text_keep(wire.traceparent, arena, diag, &traceparent));
        *ret_run = (struct hr_wire_run){
                .handle = wire.handle,
                .outputs = outputs.items,
                .output_count = outputs.count,
                .no_outputs = wire.no_outputs,
                .input_bytes = wire.input_bytes,
                .priority = wire.priority,
                .observe = wire.observe,
                .trace = wire.trace,
                .input_region = wire.input_region,
                .input_offset = wire.input_offset,
                .output_region = wire.output_region,
                .output_offset = wire.output_offset,
                .traceparent = traceparent,
        };
        return HR_OK;
}

hr_status hr_wire_run_decode(struct hr_wire_span message, struct hr_arena *arena,
                             struct hr_diag *diag, struct hr_wire_run *ret_run) {
        return hr_codec_run_plain(message, arena, ret_run)
                       ? HR_OK
                       : run_decode(message, arena, diag, ret_run);
}

hr_status hr_wire_run_encode(const struct hr_wire_run *run, uint8_t *buffer, size_t capacity,
                             struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_numbers outputs = {run->outputs, run->output_count, 4};
        headrace_v1_Run wire = {
                .handle = run->handle,
                .outputs = hr_codec_put_numbers(&outputs),
                .no_outputs = run->no_outputs,
                .input_bytes = run->input_bytes,
                .priority = run->priority,
                .observe = run->observe,
                .trace = run->trace,
                .input_region = run->input_region,
                .input_offset = run->input_offset,
                .output_region = run->output_region,
                .output_offset = run->output_offset,
        };

        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, run->traceparent);
        return hr_codec_encode(headrace_v1_Run_fields, &wire, buffer, capacity, diag, ret_bytes);
}

/* Every run has a reply, so this one is written field by field: nanopb's own walk over the fields,
 * most of which are absent, takes longer than all else that is done to a reply. */
static bool put_number(pb_ostream_t *stream, uint32_t tag, uint64_t value) {
        return value == 0 ||
               (pb_encode_tag(stream, PB_WT_VARINT, tag) && pb_encode_varint(stream, value));
}

static bool put_text(pb_ostream_t *stream, uint32_t tag, const char *text) {
        return text[0] == '\0' ||
               (pb_encode_tag(stream, PB_WT_STRING, tag) &&
                pb_encode_string(stream, (const pb_byte_t *) text, strlen(text)));
}

static bool put_experts(pb_ostream_t *stream, const struct hr_wire_run_reply *reply) {
        headrace_v1_ExpertUse wire = {
                .hits = reply->expert_hits,
                .misses = reply->expert_misses,
                .copies = reply->expert_copies,
                .bytes = reply->expert_bytes,
        };

        return (!reply->expert_hits && !reply->expert_misses) ||
               (pb_encode_tag(stream, PB_WT_STRING, headrace_v1_RunReply_experts_tag) &&
                pb_encode_submessage(stream, headrace_v1_ExpertUse_fields, &wire));
}

static bool put_run_reply(pb_ostream_t *stream, const struct hr_wire_run_reply *reply) {
        char traceparent[sizeof((headrace_v1_RunReply *) 0)->traceparent];
        size_t bytes = (size_t) reply->output_count * sizeof reply->output_bytes[0];

        hr_codec_text_copy(traceparent, sizeof traceparent, reply->traceparent);
        return (bytes == 0 ||
                (pb_encode_tag(stream, PB_WT_STRING, headrace_v1_RunReply_output_bytes_tag) &&
                 pb_encode_string(stream, (const pb_byte_t *) reply->output_bytes, bytes))) &&
               put_number(stream, headrace_v1_RunReply_queue_ns_tag, reply->queue_ns) &&
               put_number(stream, headrace_v1_RunReply_run_ns_tag, reply->run_ns) &&
               put_number(stream, headrace_v1_RunReply_slot_tag, reply->slot) &&
               put_number(stream, headrace_v1_RunReply_taps_tag, reply->taps) &&
               put_number(stream, headrace_v1_RunReply_tap_ns_tag, reply->tap_ns) &&
               put_number(stream, headrace_v1_RunReply_trace_bytes_tag, reply->trace_bytes) &&
               put_experts(stream, reply) &&
               put_number(stream, headrace_v1_RunReply_copied_bytes_tag, reply->copied_bytes) &&
               put_number(stream, headrace_v1_RunReply_moves_tag, reply->moves) &&
               put_number(stream, headrace_v1_RunReply_sequence_tag, reply->sequence) &&
               put_text(stream, headrace_v1_RunReply_traceparent_tag, traceparent);
}

hr_status hr_wire_run_reply_encode(const struct hr_wire_run_reply *reply, uint8_t *buffer,
                                   size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        pb_ostream_t stream = buffer ? pb_ostream_from_buffer(buffer, capacity)
                                     : (pb_ostream_t) PB_OSTREAM_SIZING;

        if (!put_run_reply(&stream, reply))
                return hr_codec_too_long(capacity, diag);
        *ret_bytes = stream.bytes_written;
        return HR_OK;
}

hr_status hr_wire_run_reply_decode(struct hr_wire_span message, struct hr_arena *arena,
                                   struct hr_diag *diag, struct hr_wire_run_reply *ret_reply) {
        struct hr_codec_list outputs = {.arena = arena};
        headrace_v1_RunReply wire = headrace_v1_RunReply_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.output_bytes = hr_codec_list_fixed64(&outputs);
        status = hr_codec_decode(message, headrace_v1_RunReply_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&outputs, status, diag));
        *ret_reply = (struct hr_wire_run_reply){
                .output_bytes = outputs.items,
                .output_count = outputs.count,
                .queue_ns = wire.queue_ns,
                .run_ns = wire.run_ns,
                .slot = wire.slot,
                .sequence = wire.sequence,
                .taps = wire.taps,
                .tap_ns = wire.tap_ns,
                .trace_bytes = wire.trace_bytes,
                .copied_bytes = wire.copied_bytes,
                .expert_hits = wire.experts.hits,
                .expert_misses = wire.experts.misses,
                .expert_copies = wire.experts.copies,
                .expert_bytes = wire.experts.bytes,
                .moves = wire.moves,
        };
        return HR_OK;
}

/* ---- taps ------------------------------------------------------------------------------------ */

hr_status hr_wire_tap_push_encode(const struct hr_wire_tap_push *push, uint8_t *buffer,
                                  size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_TapPush wire = {
                .tap = push->tap, .tensor = push->tensor, .bytes = push->bytes};

        return hr_codec_encode(headrace_v1_TapPush_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_tap_push_decode(struct hr_wire_span message, struct hr_diag *diag,
                                  struct hr_wire_tap_push *ret_push) {
        headrace_v1_TapPush wire = headrace_v1_TapPush_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_TapPush_fields, &wire, diag));
        *ret_push = (struct hr_wire_tap_push){wire.tap, wire.tensor, wire.bytes};
        return HR_OK;
}

hr_status hr_wire_tap_decode(struct hr_wire_span message, struct hr_diag *diag,
                             struct hr_wire_tap *ret_tap) {
        headrace_v1_Tap wire = headrace_v1_Tap_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Tap_fields, &wire, diag));
        *ret_tap = (struct hr_wire_tap){wire.run, wire.tap, wire.stop};
        return HR_OK;
}

hr_status hr_wire_tap_encode(const struct hr_wire_tap *tap, uint8_t *buffer, size_t capacity,
                             struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Tap wire = {.run = tap->run, .tap = tap->tap, .stop = tap->stop};

        return hr_codec_encode(headrace_v1_Tap_fields, &wire, buffer, capacity, diag, ret_bytes);
}

/* ---- what the daemon remembers --------------------------------------------------------------- */

hr_status hr_wire_trace_ask_decode(struct hr_wire_span message, struct hr_diag *diag,
                                   struct hr_wire_trace_ask *ret_ask) {
        headrace_v1_TraceAsk wire = headrace_v1_TraceAsk_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_TraceAsk_fields, &wire, diag));
        *ret_ask = (struct hr_wire_trace_ask){wire.latest_ms, wire.spans_max, wire.own};
        return HR_OK;
}

hr_status hr_wire_trace_ask_encode(const struct hr_wire_trace_ask *ask, uint8_t *buffer,
                                   size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_TraceAsk wire = {
                .latest_ms = ask->latest_ms,
                .spans_max = ask->spans_max,
                .own = ask->own,
        };

        return hr_codec_encode(headrace_v1_TraceAsk_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}
