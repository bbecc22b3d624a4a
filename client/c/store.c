/* Weight sets and states. */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

#define PADDING 64U /* of each tensor in an upload */

/* ---- rules and manifests --------------------------------------------------------------------- */

/* The public and the wire's rules have the same members. */
static const struct hr_wire_rule *rules_of(const struct headrace_rule *rules) {
        _Static_assert(sizeof(struct hr_wire_rule) == sizeof(struct headrace_rule) &&
                               offsetof(struct hr_wire_rule, device) ==
                                       offsetof(struct headrace_rule, device),
                       "one layout");
        return (const struct hr_wire_rule *) (const void *) rules;
}

/* Names, types and shapes of tensors, as they are told to the daemon. */
struct manifest {
        uint8_t *bytes; /* owned */
        size_t size;
        uint64_t *tensor_bytes; /* of each; owned */
        uint64_t total_bytes;   /* padded */
};

static void manifest_deinit(struct manifest *manifest) {
        free(manifest->bytes);
        free(manifest->tensor_bytes);
}

static enum headrace_status manifest_columns(const struct headrace_tensor *tensors, size_t count,
                                             struct headrace_error *error, uint32_t *types,
                                             uint32_t *lengths, int64_t *ne,
                                             struct manifest *manifest) {
        for (size_t i = 0; i < count; i++) {
                struct hr_tensor tensor = {0};
                struct hr_diag diag = {0};
                uint64_t bytes = 0, padded;
                int type = tensors[i].type ? hr_type_from_name(tensors[i].type) : -1;

                if (!tensors[i].name || strlen(tensors[i].name) > UINT32_MAX || type < 0)
                        return hr_client_fail(error, HEADRACE_INVALID, "MANIFEST",
                                              "tensor %zu has no name or no type that is known", i);
                tensor.type = types[i] = (uint32_t) type;
                memcpy(tensor.ne, tensors[i].ne, sizeof tensor.ne);
                memcpy(ne + i * HR_DIMS, tensors[i].ne, sizeof tensor.ne);
                lengths[i] = (uint32_t) strlen(tensors[i].name);
                if (hr_tensor_set_contiguous(&tensor, &diag) != HR_OK ||
                    hr_tensor_span(&tensor, &diag, &bytes) != HR_OK)
                        return hr_client_fail_diag(error, &diag);
                manifest->tensor_bytes[i] = bytes;
                if (!hr_align_up_u64(bytes, PADDING, &padded) ||
                    !hr_add_u64(manifest->total_bytes, padded, &manifest->total_bytes))
                        return hr_client_fail(error, HEADRACE_INVALID, "SIZE",
                                              "more bytes than can be counted");
        }
        return HEADRACE_OK;
}

static enum headrace_status manifest_encode(const struct hr_wire_manifest *columns,
                                            struct headrace_error *error,
                                            struct manifest *manifest) {
        struct hr_diag diag = {0};

        if (hr_wire_manifest_encode(columns, NULL, 0, &diag, &manifest->size) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        manifest->bytes = malloc(manifest->size + 1);
        if (!manifest->bytes)
                return hr_client_fail_memory(error);
        if (hr_wire_manifest_encode(columns, manifest->bytes, manifest->size, &diag,
                                    &manifest->size) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        return HEADRACE_OK;
}

/* Fills a zeroed manifest; the caller deinits it in any case. */
static enum headrace_status manifest_init(struct manifest *manifest,
                                          const struct headrace_tensor *tensors, size_t count,
                                          struct headrace_error *error) {
        uint32_t *types = calloc(count + 1, sizeof *types);
        uint32_t *lengths = calloc(count + 1, sizeof *lengths);
        int64_t *ne = calloc(count + 1, HR_DIMS * sizeof *ne);
        struct hr_wire_manifest columns = {(uint32_t) count, lengths, NULL, 0, types, ne};
        enum headrace_status status;
        char *names = NULL;

        manifest->tensor_bytes = calloc(count + 1, sizeof *manifest->tensor_bytes);
        if (count > UINT32_MAX || !types || !lengths || !ne || !manifest->tensor_bytes) {
                status = hr_client_fail_memory(error);
                goto out;
        }
        status = manifest_columns(tensors, count, error, types, lengths, ne, manifest);
        if (status != HEADRACE_OK)
                goto out;
        for (size_t i = 0; i < count; i++)
                columns.names_bytes += lengths[i];
        names = malloc(columns.names_bytes + 1);
        if (!names) {
                status = hr_client_fail_memory(error);
                goto out;
        }
        columns.names = names;
        for (size_t i = 0, at = 0; i < count; at += lengths[i], i++)
                memcpy(names + at, tensors[i].name, lengths[i]);
        status = manifest_encode(&columns, error, manifest);
out:
        free(types);
        free(lengths);
        free(ne);
        free(names);
        return status;
}

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

static enum headrace_status check_name(const char *name, size_t capacity,
                                       struct headrace_error *error) {
        return name && strlen(name) < capacity
                       ? HEADRACE_OK
                       : hr_client_fail(error, HEADRACE_INVALID, "NAME",
                                        "a name or path of more than %zu bytes, or none",
                                        capacity - 1);
}

enum headrace_status headrace_load(struct headrace_client *client, const char *path,
                                   const char *name, const struct headrace_rule *rules,
                                   size_t rule_count, int64_t timeout_ms,
                                   struct headrace_error *error, struct headrace_set *ret_set) {
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_WEIGHTS_LOAD, .message = message};
        struct hr_wire_weights_load load = {.rules = rules_of(rules),
                                            .rule_count = (uint32_t) rule_count};
        struct hr_diag diag = {0};
        enum headrace_status status = check_name(path, sizeof load.path, error);

        if (status == HEADRACE_OK && name)
                status = check_name(name, sizeof load.name, error);
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

/* The manifest, then each tensor and what pads it. */
static enum headrace_status upload(struct headrace_client *client,
                                   const struct headrace_tensor *tensors, size_t count,
                                   const struct manifest *manifest,
                                   const struct hr_wire_weights_put *put, int64_t timeout_ms,
                                   struct headrace_error *error, struct headrace_set *ret_set) {
        static const uint8_t zeros[PADDING];
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX], load[HR_WIRE_SET_NAME_BYTES + 16];
        struct hr_wire_weights_load by_name = {0};
        size_t load_bytes = 0;
        struct iovec *parts = calloc(1 + count * 2, sizeof *parts);
        struct hr_request request = {.kind = HR_FRAME_WEIGHTS_PUT, .message = message,
                                     .parts = parts, .first_parts = 1};
        struct hr_diag diag = {0};
        enum headrace_status status;

        if (!parts)
                return hr_client_fail_memory(error);
        parts[request.part_count++] = (struct iovec){manifest->bytes, manifest->size};
        for (size_t i = 0; i < count; i++) {
                uint64_t bytes = manifest->tensor_bytes[i];

                parts[request.part_count++] =
                        (struct iovec){(void *) (uintptr_t) tensors[i].data, bytes};
                if (bytes % PADDING)
                        parts[request.part_count++] = (struct iovec){
                                (void *) (uintptr_t) zeros, PADDING - bytes % PADDING};
        }
        memcpy(by_name.name, put->name, sizeof by_name.name);
        if (hr_wire_weights_put_encode(put, message, sizeof message, &diag,
                                       &request.message_bytes) == HR_OK &&
            hr_wire_weights_load_encode(&by_name, load, sizeof load, &diag, &load_bytes) == HR_OK)
                status = ask_set(client, &request, (struct hr_wire_span){load, load_bytes},
                                 timeout_ms, error, ret_set);
        else
                status = hr_client_fail_diag(error, &diag);
        free(parts);
        return status;
}

enum headrace_status headrace_put(struct headrace_client *client, const char *name,
                                  const struct headrace_tensor *tensors, size_t tensor_count,
                                  const struct headrace_rule *rules, size_t rule_count,
                                  int64_t timeout_ms, struct headrace_error *error,
                                  struct headrace_set *ret_set) {
        struct hr_wire_weights_put put = {.rules = rules_of(rules),
                                          .rule_count = (uint32_t) rule_count};
        struct manifest manifest = {0};
        enum headrace_status status = check_name(name, sizeof put.name, error);

        for (size_t i = 0; i < tensor_count && status == HEADRACE_OK; i++)
                if (!tensors[i].data)
                        status = hr_client_fail(error, HEADRACE_INVALID, "MANIFEST",
                                                "tensor %zu has no data", i);
        if (status == HEADRACE_OK)
                status = manifest_init(&manifest, tensors, tensor_count, error);
        if (status == HEADRACE_OK) {
                memcpy(put.name, name, strlen(name));
                put.total_bytes = manifest.total_bytes;
                put.manifest_bytes =
                        manifest.size > hr_client_body_max(client) ? manifest.size : 0;
                status = upload(client, tensors, tensor_count, &manifest, &put, timeout_ms, error,
                                ret_set);
        }
        manifest_deinit(&manifest);
        return status;
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
        struct hr_wire_state_alloc alloc = {.rules = rules_of(rules),
                                            .rule_count = (uint32_t) rule_count};
        struct manifest manifest = {0};
        struct hr_diag diag = {0};
        struct iovec part;
        enum headrace_status status = manifest_init(&manifest, tensors, tensor_count, error);

        if (status == HEADRACE_OK) {
                part = (struct iovec){manifest.bytes, manifest.size};
                request.parts = &part;
                request.part_count = 1;
                alloc.manifest_bytes =
                        manifest.size > hr_client_body_max(client) ? manifest.size : 0;
                if (hr_wire_state_alloc_encode(&alloc, message, sizeof message, &diag,
                                               &request.message_bytes) == HR_OK)
                        status = hr_client_ask_state(client, &request, timeout_ms, error, ret_state);
                else
                        status = hr_client_fail_diag(error, &diag);
        }
        manifest_deinit(&manifest);
        return status;
}

static enum headrace_status state_range(struct headrace_client *client, uint8_t kind,
                                        const struct hr_wire_state_range *range,
                                        const struct iovec *out, const struct iovec *into,
                                        int64_t timeout_ms, struct headrace_error *error) {
        uint8_t message[64];
        struct hr_request request = {.kind = kind,
                                     .message = message,
                                     .parts = out,
                                     .part_count = out ? 1 : 0,
                                     .into = into,
                                     .into_count = into ? 1 : 0};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        if (hr_wire_state_range_encode(range, message, sizeof message, &diag,
                                       &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_client_call(client, &request,
                                 hr_client_deadline_of(client, timeout_ms), error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (into && answer.body_bytes != range->bytes)
                status = hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                        "%llu bytes of %llu",
                                        (unsigned long long) answer.body_bytes,
                                        (unsigned long long) range->bytes);
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_state_read(struct headrace_client *client, uint64_t state,
                                         uint32_t tensor, uint64_t offset, void *buffer,
                                         uint64_t bytes, int64_t timeout_ms,
                                         struct headrace_error *error) {
        const struct iovec into = {buffer, bytes};

        return state_range(client, HR_FRAME_STATE_READ,
                           &(struct hr_wire_state_range){state, offset, bytes, tensor}, NULL, &into,
                           timeout_ms, error);
}

enum headrace_status headrace_state_write(struct headrace_client *client, uint64_t state,
                                          uint32_t tensor, uint64_t offset, const void *data,
                                          uint64_t bytes, int64_t timeout_ms,
                                          struct headrace_error *error) {
        const struct iovec out = {(void *) (uintptr_t) data, bytes};

        return state_range(client, HR_FRAME_STATE_WRITE,
                           &(struct hr_wire_state_range){state, offset, bytes, tensor}, &out, NULL,
                           timeout_ms, error);
}

enum headrace_status headrace_state_free(struct headrace_client *client, uint64_t state,
                                         int64_t timeout_ms, struct headrace_error *error) {
        return hr_client_simple(client, HR_FRAME_STATE_FREE, state, timeout_ms, error);
}
