/* Weight sets and states. */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

/* ---- weights --------------------------------------------------------------------------------- */

/* Sends a request and reads the set that the reply describes, which `load` finds again. */
static enum headrace_status ask_set(struct headrace_client *client,
                                    const struct hr_request *request, struct hr_wire_span load,
                                    int64_t timeout_ms,
                                    struct headrace_error *error, struct headrace_set *ret_set) {
        struct hr_wire_set_info set;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        bool already;
        enum headrace_status status =
                hr_client_call(client, request, hr_client_deadline_of(client, timeout_ms),
                                error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_set_reply_decode(answer.message, request->kind == HR_FRAME_WEIGHTS_LOAD, &diag,
                                     &set, &already) == HR_OK)
                *ret_set = (struct headrace_set){
                        hr_client_remember_set(client, &set, load.data, load.size), set.tensors,
                        set.bytes, already};
        else
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        return status;
}

enum headrace_status hr_client_check_share(enum headrace_share share,
                                           struct headrace_error *error) {
        if (share == HEADRACE_SHARE_ALL || share == HEADRACE_SHARE_PRINCIPAL)
                return HEADRACE_OK;
        return hr_client_fail(error, HEADRACE_INVALID, "SHARE", "there is no share %d",
                              (int) share);
}

enum headrace_status headrace_load_shared(struct headrace_client *client, const char *path,
                                          const char *name, const struct headrace_rule *rules,
                                          size_t rule_count, enum headrace_share share,
                                          int64_t timeout_ms, struct headrace_error *error,
                                          struct headrace_set *ret_set) {
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_WEIGHTS_LOAD, .message = message};
        struct hr_wire_weights_load load = {.rules = hr_client_rules(rules),
                                            .rule_count = (uint32_t) rule_count,
                                            .is_own = share == HEADRACE_SHARE_PRINCIPAL};
        struct hr_diag diag = {0};
        enum headrace_status status = hr_client_check_share(share, error);

        if (status == HEADRACE_OK)
                status = hr_client_check_name(path, sizeof load.path, error);
        if (status == HEADRACE_OK && name)
                status = hr_client_check_name(name, sizeof load.name, error);
        if (status != HEADRACE_OK)
                return status;
        memcpy(load.path, path, strlen(path));
        if (name)
                memcpy(load.name, name, strlen(name));
        if (hr_wire_weights_load_encode(&load, message, sizeof message, &diag,
                                        &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        return ask_set(client, &request,
                       (struct hr_wire_span){message, request.message_bytes}, timeout_ms, error,
                       ret_set);
}

enum headrace_status headrace_load(struct headrace_client *client, const char *path,
                                   const char *name, const struct headrace_rule *rules,
                                   size_t rule_count, int64_t timeout_ms,
                                   struct headrace_error *error, struct headrace_set *ret_set) {
        return headrace_load_shared(client, path, name, rules, rule_count, HEADRACE_SHARE_ALL,
                                    timeout_ms, error, ret_set);
}

enum headrace_status headrace_drop(struct headrace_client *client, uint64_t set, int64_t timeout_ms,
                                   struct headrace_error *error) {
        enum headrace_status status =
                hr_client_simple(client, HR_FRAME_WEIGHTS_DROP, hr_client_set_number(client, set),
                                 timeout_ms, error);

        if (status == HEADRACE_OK || status == HEADRACE_NOT_FOUND)
                hr_client_forget_set(client, set);
        return status;
}

/* ---- states ---------------------------------------------------------------------------------- */

enum headrace_status headrace_state_alloc(struct headrace_client *client,
                                          const struct headrace_tensor *tensors,
                                          size_t tensor_count, const struct headrace_rule *rules,
                                          size_t rule_count, int64_t timeout_ms,
                                          struct headrace_error *error, uint64_t *ret_state) {
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_STATE_ALLOC, .message = message};
        struct hr_wire_state_alloc alloc = {.rules = hr_client_rules(rules),
                                            .rule_count = (uint32_t) rule_count};
        struct hr_manifest manifest = {0};
        struct hr_diag diag = {0};
        struct iovec part;
        enum headrace_status status = hr_manifest_init(&manifest, tensors, tensor_count, error);

        if (status == HEADRACE_OK) {
                part = (struct iovec){manifest.bytes, manifest.size};
                request.parts = &part;
                request.part_count = 1;
                alloc.manifest_bytes =
                        manifest.size > hr_client_body_max(client) ? manifest.size : 0;
                if (hr_wire_state_alloc_encode(&alloc, message, sizeof message, &diag,
                                               &request.message_bytes) == HR_OK)
                        status =
                                hr_client_ask_state(client, &request, timeout_ms, error, ret_state);
                else
                        status = hr_client_fail_diag(error, &diag);
        }
        hr_manifest_deinit(&manifest);
        return status;
}

/* Sends or receives part of a state: `part`, unless that is memory that the daemon has, too. */
static enum headrace_status range_over(struct headrace_client *client, struct hr_channel *channel,
                                       uint8_t kind, struct hr_wire_state_range *range,
                                       const struct iovec *part, int64_t deadline_ns,
                                       struct headrace_error *error) {
        const bool is_read = kind == HR_FRAME_STATE_READ;
        uint8_t message[64];
        struct hr_request request = {.kind = kind, .message = message};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status =
                hr_client_region(client, channel, part, 1, deadline_ns, error, &range->region,
                                 &range->region_offset);

        if (status != HEADRACE_OK)
                return status;
        if (!range->region && is_read) {
                request.into = part;
                request.into_count = 1;
        } else if (!range->region) {
                request.parts = part;
                request.part_count = 1;
        }
        if (hr_wire_state_range_encode(range, message, sizeof message, &diag,
                                       &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_call(channel, &request, deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (request.into && answer.body_bytes != range->bytes)
                status = hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                        "%llu bytes of %llu",
                                        (unsigned long long) answer.body_bytes,
                                        (unsigned long long) range->bytes);
        hr_call_free(call);
        return status;
}

static enum headrace_status state_range(struct headrace_client *client, uint8_t kind,
                                        struct hr_wire_state_range range, void *memory,
                                        int64_t timeout_ms, struct headrace_error *error) {
        const struct iovec part = {memory, range.bytes};
        struct hr_channel *channel = hr_client_channel(client);
        enum headrace_status status =
                range_over(client, channel, kind, &range, &part,
                           hr_client_deadline_of(client, timeout_ms), error);

        hr_channel_unref(channel);
        return status;
}

enum headrace_status headrace_state_read(struct headrace_client *client, uint64_t state,
                                         uint32_t tensor, uint64_t offset, void *buffer,
                                         uint64_t bytes, int64_t timeout_ms,
                                         struct headrace_error *error) {
        return state_range(client, HR_FRAME_STATE_READ,
                           (struct hr_wire_state_range){state, offset, bytes, tensor, 0, 0}, buffer,
                           timeout_ms, error);
}

enum headrace_status headrace_state_write(struct headrace_client *client, uint64_t state,
                                          uint32_t tensor, uint64_t offset, const void *data,
                                          uint64_t bytes, int64_t timeout_ms,
                                          struct headrace_error *error) {
        return state_range(client, HR_FRAME_STATE_WRITE,
                           (struct hr_wire_state_range){state, offset, bytes, tensor, 0, 0},
                           (void *) (uintptr_t) data, timeout_ms, error);
}

enum headrace_status headrace_state_free(struct headrace_client *client, uint64_t state,
                                         int64_t timeout_ms, struct headrace_error *error) {
        return hr_client_simple(client, HR_FRAME_STATE_FREE, state, timeout_ms, error);
}
