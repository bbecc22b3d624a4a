/*
 * Reserve: several Submits in one message, and what came of them.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

static bool take_submit(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        struct hr_wire_span message = {.size = stream->bytes_left};
        struct hr_wire_submit *submit;
        struct hr_diag diag = {0};
        uint8_t *bytes = hr_arena_alloc(list->arena, message.size, 1);

        (void) field;
        submit = hr_codec_list_extend(list, 1, sizeof *submit);
        if (!bytes || !submit) {
                list->exhausted = true;
                return hr_codec_refuse(stream, "too many graphs");
        }
        memset(submit, 0, sizeof *submit);
        (void) pb_read(stream, bytes, message.size); /* so many are left */
        message.data = bytes;
        if (hr_wire_submit_decode(message, list->arena, &diag, submit) != HR_OK) {
                list->exhausted = diag.status == HR_E_EXHAUSTED;
                return hr_codec_refuse(stream, "arguments of a graph");
        }
        return true;
}

hr_status hr_wire_reserve_decode(struct hr_wire_span message, struct hr_arena *arena,
                                 struct hr_diag *diag, struct hr_wire_reserve *ret_reserve) {
        struct hr_codec_list graphs = {.arena = arena};
        headrace_v1_Reserve wire = headrace_v1_Reserve_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.graphs = (pb_callback_t){.funcs.decode = take_submit, .arg = &graphs};
        status = hr_codec_decode(message, headrace_v1_Reserve_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&graphs, status, diag));
        *ret_reserve = (struct hr_wire_reserve){
                .graphs = graphs.items,
                .graph_count = graphs.count,
                .body_bytes = wire.body_bytes,
        };
        return HR_OK;
}

static bool submit_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        return hr_codec_submit_put(stream, (const struct hr_wire_submit *) data + index);
}

hr_status hr_wire_reserve_encode(const struct hr_wire_reserve *reserve, uint8_t *buffer,
                                 size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items graphs = {
                .data = reserve->graphs,
                .count = reserve->graph_count,
                .encode = submit_put,
        };
        const headrace_v1_Reserve wire = {
                .graphs = hr_codec_put_items(&graphs),
                .body_bytes = reserve->body_bytes,
        };

        return hr_codec_encode(headrace_v1_Reserve_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

static bool graph_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_reserved_graph *graph =
                (const struct hr_wire_reserved_graph *) data + index;
        headrace_v1_ReservedGraph wire = {
                .split_count = graph->split_count,
                .n_copies = graph->n_copies,
                .pipelined = graph->pipelined,
                .copied_bytes = graph->copied_bytes,
                .fallback_nodes = graph->fallback_nodes,
        };

        wire.digest.size = HR_WIRE_DIGEST_BYTES;
        memcpy(wire.digest.bytes, graph->digest, HR_WIRE_DIGEST_BYTES);
        hr_codec_text_copy(wire.origin, sizeof wire.origin, graph->origin);
        hr_codec_text_copy(wire.copies_reason, sizeof wire.copies_reason, graph->copies_reason);
        return pb_encode_submessage(stream, headrace_v1_ReservedGraph_fields, &wire);
}

hr_status hr_wire_reserve_reply_encode(const struct hr_wire_reserve_reply *reply, uint8_t *buffer,
                                       size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items devices = {
                .data = reply->devices,
                .count = reply->device_count,
                .encode = hr_codec_device_bytes_put,
        };
        struct hr_codec_items graphs = {
                .data = reply->graphs,
                .count = reply->graph_count,
                .encode = graph_put,
        };
        const headrace_v1_ReserveReply wire = {
                .handle = reply->handle,
                .devices = hr_codec_put_items(&devices),
                .graphs = hr_codec_put_items(&graphs),
                .reallocs = reply->reallocs,
        };

        return hr_codec_encode(headrace_v1_ReserveReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}
