/*
 * Hello and its reply, device tables, errors and GoAway.
 *
 * Errors are built from a diag and always fit: the words are cut at a character, bytes that are no
 * UTF-8 are replaced, so that a protobuf library at the other end never refuses an error message.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

hr_status hr_wire_hello_decode(struct hr_wire_span message, struct hr_diag *diag,
                               struct hr_wire_hello *ret_hello) {
        headrace_v1_Hello wire = headrace_v1_Hello_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Hello_fields, &wire, diag));
        HR_TRY(hr_codec_text_check(wire.client_name, sizeof wire.client_name, "client_name", diag));
        HR_TRY(hr_codec_text_check(wire.session_name, sizeof wire.session_name, "session_name",
                                   diag));
        for (uint32_t i = 0; i < wire.features_count; i++)
                HR_TRY(hr_codec_text_check(wire.features[i], sizeof wire.features[i], "features",
                                           diag));
        _Static_assert(sizeof wire.features == sizeof ret_hello->features, "one cap");
        ret_hello->protocol_min = wire.protocol_min;
        ret_hello->protocol_max = wire.protocol_max;
        ret_hello->feature_count = wire.features_count;
        memcpy(ret_hello->features, wire.features, sizeof wire.features);
        memcpy(ret_hello->client_name, wire.client_name, sizeof wire.client_name);
        memcpy(ret_hello->session_name, wire.session_name, sizeof wire.session_name);
        ret_hello->credentials_bytes = wire.credentials.size;
        memcpy(ret_hello->credentials, wire.credentials.bytes, wire.credentials.size);
        ret_hello->resume_token_bytes = wire.resume_token.size;
        memcpy(ret_hello->resume_token, wire.resume_token.bytes, wire.resume_token.size);
        return HR_OK;
}

hr_status hr_wire_hello_encode(const struct hr_wire_hello *hello, uint8_t *buffer, size_t capacity,
                               struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Hello wire = headrace_v1_Hello_init_zero;

        HR_ASSERT(hello->feature_count <= HR_WIRE_FEATURES_MAX);
        wire.protocol_min = hello->protocol_min;
        wire.protocol_max = hello->protocol_max;
        wire.features_count = (pb_size_t) hello->feature_count;
        memcpy(wire.features, hello->features, sizeof wire.features);
        hr_codec_text_copy(wire.client_name, sizeof wire.client_name, hello->client_name);
        hr_codec_text_copy(wire.session_name, sizeof wire.session_name, hello->session_name);
        wire.credentials.size = (pb_size_t) hello->credentials_bytes;
        memcpy(wire.credentials.bytes, hello->credentials, hello->credentials_bytes);
        wire.resume_token.size = (pb_size_t) hello->resume_token_bytes;
        memcpy(wire.resume_token.bytes, hello->resume_token, hello->resume_token_bytes);
        return hr_codec_encode(headrace_v1_Hello_fields, &wire, buffer, capacity, diag, ret_bytes);
}

static bool device_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_device *device = (const struct hr_wire_device *) data + index;
        headrace_v1_DeviceInfo wire = {
                .memory_free = device->memory_free,
                .memory_total = device->memory_total,
                .memory_used = device->memory_used,
                .threads = device->threads,
        };

        hr_codec_text_copy(wire.name, sizeof wire.name, device->name);
        hr_codec_text_copy(wire.description, sizeof wire.description, device->description);
        hr_codec_text_copy(wire.type, sizeof wire.type, device->type);
        hr_codec_text_copy(wire.memory_kind, sizeof wire.memory_kind, device->memory_kind);
        return pb_encode_submessage(stream, headrace_v1_DeviceInfo_fields, &wire);
}

/* The two structs have the same fields under the same names. */
#define LIMITS_COPY(to, from)                                                                      \
        do {                                                                                       \
                (to)->message_bytes_max = (from)->message_bytes_max;                               \
                (to)->body_bytes_max = (from)->body_bytes_max;                                     \
                (to)->graph_nodes_max = (from)->graph_nodes_max;                                   \
                (to)->graph_bytes_max = (from)->graph_bytes_max;                                   \
                (to)->tensor_bytes_max = (from)->tensor_bytes_max;                                 \
                (to)->session_graphs_max = (from)->session_graphs_max;                             \
                (to)->session_runs_max = (from)->session_runs_max;                                 \
                (to)->session_state_bytes_max = (from)->session_state_bytes_max;                   \
                (to)->upload_bytes_max = (from)->upload_bytes_max;                                 \
                (to)->output_queue_bytes_max = (from)->output_queue_bytes_max;                     \
                (to)->run_bytes_max = (from)->run_bytes_max;                                       \
                (to)->copies_max = (from)->copies_max;                                             \
                (to)->session_states_max = (from)->session_states_max;                             \
                (to)->session_weights_max = (from)->session_weights_max;                           \
                (to)->session_uploads_max = (from)->session_uploads_max;                           \
                (to)->session_buffer_bytes_max = (from)->session_buffer_bytes_max;                 \
                (to)->session_device_bytes_max = (from)->session_device_bytes_max;                 \
                (to)->connection_requests_max = (from)->connection_requests_max;                   \
                (to)->principal_sessions_max = (from)->principal_sessions_max;                     \
                (to)->principal_connections_max = (from)->principal_connections_max;               \
                (to)->principal_weights_max = (from)->principal_weights_max;                       \
                (to)->principal_states_max = (from)->principal_states_max;                         \
                (to)->principal_graphs_max = (from)->principal_graphs_max;                         \
                (to)->principal_reservations_max = (from)->principal_reservations_max;             \
                (to)->principal_runs_max = (from)->principal_runs_max;                             \
                (to)->principal_uploads_max = (from)->principal_uploads_max;                       \
                (to)->principal_state_bytes_max = (from)->principal_state_bytes_max;               \
                (to)->principal_buffer_bytes_max = (from)->principal_buffer_bytes_max;             \
                (to)->principal_weight_bytes_max = (from)->principal_weight_bytes_max;             \
                (to)->principal_device_bytes_max = (from)->principal_device_bytes_max;             \
                (to)->principal_output_bytes_max = (from)->principal_output_bytes_max;             \
                (to)->principal_upload_bytes_max = (from)->principal_upload_bytes_max;             \
                (to)->principal_descriptors_max = (from)->principal_descriptors_max;               \
                (to)->session_regions_max = (from)->session_regions_max;                           \
                (to)->principal_regions_max = (from)->principal_regions_max;                       \
                (to)->taps_max = (from)->taps_max;                                                 \
                (to)->pins_max = (from)->pins_max;                                                 \
                (to)->weights_bytes_max = (from)->weights_bytes_max;                               \
                (to)->weights_tensors_max = (from)->weights_tensors_max;                           \
                (to)->metadata_bytes_max = (from)->metadata_bytes_max;                             \
                (to)->manifest_bytes_max = (from)->manifest_bytes_max;                             \
                (to)->placement_rules_max = (from)->placement_rules_max;                           \
                (to)->state_tensors_max = (from)->state_tensors_max;                               \
                (to)->principal_misses_max = (from)->principal_misses_max;                         \
                (to)->principal_cancels_max = (from)->principal_cancels_max;                       \
                (to)->session_plan_bytes_max = (from)->session_plan_bytes_max;                     \
                (to)->principal_plan_bytes_max = (from)->principal_plan_bytes_max;                 \
                (to)->session_grace_ms = (from)->session_grace_ms;                                 \
        } while (0)

hr_status hr_wire_hello_reply_encode(const struct hr_wire_hello_reply *reply, uint8_t *buffer,
                                     size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items items = {
                .data = reply->devices,
                .count = reply->device_count,
                .encode = device_put,
        };
        headrace_v1_HelloReply wire = headrace_v1_HelloReply_init_zero;

        HR_ASSERT(reply->feature_count <= HR_WIRE_FEATURES_MAX);
        HR_ASSERT(reply->session_token_bytes <= HR_WIRE_TOKEN_BYTES_MAX);
        wire.protocol = reply->protocol;
        wire.features_count = (pb_size_t) reply->feature_count;
        memcpy(wire.features, reply->features, sizeof wire.features);
        hr_codec_text_copy(wire.daemon_version, sizeof wire.daemon_version, reply->daemon_version);
        memcpy(wire.boot_id, reply->boot_id, sizeof wire.boot_id);
        wire.session_token.size = (pb_size_t) reply->session_token_bytes;
        memcpy(wire.session_token.bytes, reply->session_token, reply->session_token_bytes);
        wire.epoch = reply->epoch;
        wire.has_limits = true;
        LIMITS_COPY(&wire.limits, &reply->limits);
        wire.devices = hr_codec_put_items(&items);
        return hr_codec_encode(headrace_v1_HelloReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

static bool device_count(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        uint32_t *count = *arg;

        (void) field;
        ++*count;
        return pb_read(stream, NULL, stream->bytes_left);
}

hr_status hr_wire_hello_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                     struct hr_wire_hello_reply *ret_reply) {
        headrace_v1_HelloReply wire = headrace_v1_HelloReply_init_zero;
        uint32_t devices = 0;

        wire.devices = (pb_callback_t){.funcs.decode = device_count, .arg = &devices};
        HR_TRY(hr_codec_decode(message, headrace_v1_HelloReply_fields, &wire, diag));
        HR_TRY(hr_codec_text_check(wire.daemon_version, sizeof wire.daemon_version,
                                   "daemon_version", diag));
        *ret_reply = (struct hr_wire_hello_reply){.protocol = wire.protocol, .epoch = wire.epoch};
        ret_reply->feature_count = wire.features_count;
        memcpy(ret_reply->features, wire.features, sizeof wire.features);
        memcpy(ret_reply->daemon_version, wire.daemon_version, sizeof wire.daemon_version);
        memcpy(ret_reply->boot_id, wire.boot_id, sizeof wire.boot_id);
        ret_reply->session_token_bytes = wire.session_token.size;
        memcpy(ret_reply->session_token, wire.session_token.bytes, wire.session_token.size);
        LIMITS_COPY(&ret_reply->limits, &wire.limits);
        ret_reply->device_count = devices;
        return HR_OK;
}

hr_status hr_wire_devices_reply_encode(uint64_t epoch, const struct hr_wire_device *devices,
                                       uint32_t device_total, uint8_t *buffer, size_t capacity,
                                       struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items items = {
                .data = devices,
                .count = device_total,
                .encode = device_put,
        };
        headrace_v1_DevicesReply wire = {
                .epoch = epoch,
                .devices = hr_codec_put_items(&items),
        };

        return hr_codec_encode(headrace_v1_DevicesReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

static void error_fill(headrace_v1_Error *wire, const struct hr_diag *failure) {
        HR_ASSERT(failure->status != HR_OK);
        wire->code = hr_status_grpc_code(failure->status);
        hr_codec_text_copy(wire->reason, sizeof wire->reason, hr_diag_reason(failure));
        hr_codec_text_copy(wire->words, sizeof wire->words, failure->words);
        wire->has_node = failure->has_node;
        wire->node = failure->has_node ? failure->node : 0;
        wire->has_tensor = failure->has_tensor;
        wire->tensor = failure->has_tensor ? failure->tensor : 0;
        wire->has_step = failure->has_step;
        wire->step = failure->has_step ? failure->step : 0;
        hr_codec_text_copy(wire->field, sizeof wire->field, failure->field);
        wire->limit = failure->limit;
        wire->actual = failure->actual;
        wire->retry_after_ms = failure->retry_after_ms;
}

hr_status hr_wire_error_encode(const struct hr_diag *failure,
                               const struct hr_wire_error_more *more, uint8_t *buffer,
                               size_t capacity, size_t *ret_bytes) {
        headrace_v1_Error wire = headrace_v1_Error_init_zero;
        const size_t room =
                capacity > HR_WIRE_ERROR_BYTES_MAX ? capacity - HR_WIRE_ERROR_BYTES_MAX : 0;
        struct hr_codec_numbers numbers = {.width = 4};

        error_fill(&wire, failure);
        if (more && more->digest) {
                wire.digest.size = HR_WIRE_DIGEST_BYTES;
                memcpy(wire.digest.bytes, more->digest, HR_WIRE_DIGEST_BYTES);
        }
        if (more && more->written_count > 0) {
                numbers.data = more->written;
                numbers.count = (uint32_t) HR_MIN((size_t) more->written_count, room / 4);
                wire.written = hr_codec_put_numbers(&numbers);
        }
        if (more)
                hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, more->traceparent);
        return hr_codec_encode(headrace_v1_Error_fields, &wire, buffer, capacity, NULL, ret_bytes);
}

/* Of the leaves that an error names, as many as a caller has room for; the others are counted. */
struct written {
        uint32_t count, left_out;
        uint32_t ids[HR_WIRE_ERROR_WRITTEN_MAX];
};

static bool take_written(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct written *written = *arg;
        const size_t named = stream->bytes_left / sizeof(uint32_t);
        const size_t kept = HR_MIN(named, (size_t) HR_WIRE_ERROR_WRITTEN_MAX - written->count);

        (void) field;
        if (stream->bytes_left % sizeof(uint32_t) != 0)
                return hr_codec_refuse(stream, "length of a list");
        if (!pb_read(stream, (pb_byte_t *) (written->ids + written->count),
                     kept * sizeof(uint32_t)))
                return false;
        written->count += (uint32_t) kept;
        written->left_out += (uint32_t) (named - kept);
        return pb_read(stream, NULL, (named - kept) * sizeof(uint32_t));
}

hr_status hr_wire_error_decode(struct hr_wire_span message, struct hr_diag *diag,
                               struct hr_wire_error *ret_error) {
        headrace_v1_Error wire = headrace_v1_Error_init_zero;
        struct written written = {0};

        wire.written = (pb_callback_t){.funcs.decode = take_written, .arg = &written};
        HR_TRY(hr_codec_decode(message, headrace_v1_Error_fields, &wire, diag));
        HR_TRY(hr_codec_text_check(wire.reason, sizeof wire.reason, "reason", diag));
        HR_TRY(hr_codec_text_check(wire.words, sizeof wire.words, "words", diag));
        HR_TRY(hr_codec_text_check(wire.field, sizeof wire.field, "field", diag));
        HR_TRY(hr_codec_text_check(wire.traceparent, sizeof wire.traceparent, "traceparent", diag));
        *ret_error = (struct hr_wire_error){
                .code = wire.code,
                .has_node = wire.has_node,
                .has_tensor = wire.has_tensor,
                .node = wire.node,
                .tensor = wire.tensor,
                .has_step = wire.has_step,
                .step = wire.step,
                .limit = wire.limit,
                .actual = wire.actual,
                .retry_after_ms = wire.retry_after_ms,
                .digest_bytes = wire.digest.size,
                .written_count = written.count,
                .written_left_out = written.left_out,
        };
        memcpy(ret_error->written, written.ids, sizeof written.ids);
        memcpy(ret_error->reason, wire.reason, sizeof wire.reason);
        memcpy(ret_error->words, wire.words, sizeof wire.words);
        memcpy(ret_error->field, wire.field, sizeof wire.field);
        memcpy(ret_error->traceparent, wire.traceparent, sizeof wire.traceparent);
        memcpy(ret_error->digest, wire.digest.bytes, wire.digest.size);
        return HR_OK;
}

hr_status hr_wire_go_away_encode(const char *reason, uint32_t retry_after_ms, uint8_t *buffer,
                                 size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_GoAway wire = {.retry_after_ms = retry_after_ms};

        hr_codec_text_copy(wire.reason, sizeof wire.reason, reason);
        return hr_codec_encode(headrace_v1_GoAway_fields, &wire, buffer, capacity, diag, ret_bytes);
}

hr_status hr_wire_progress_encode(const struct hr_wire_progress *progress, uint8_t *buffer,
                                  size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_Progress wire = {
                .done_bytes = progress->done_bytes,
                .total_bytes = progress->total_bytes,
        };

        hr_codec_text_copy(wire.phase, sizeof wire.phase, progress->phase);
        return hr_codec_encode(headrace_v1_Progress_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_progress_decode(struct hr_wire_span message, struct hr_diag *diag,
                                  struct hr_wire_progress *ret_progress) {
        headrace_v1_Progress wire = headrace_v1_Progress_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_Progress_fields, &wire, diag));
        *ret_progress = (struct hr_wire_progress){
                .done_bytes = wire.done_bytes,
                .total_bytes = wire.total_bytes,
        };
        return HR_OK;
}
