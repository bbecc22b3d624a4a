/* What tensors are called, of which type and shape, as the daemon is told: manifests, names, rules.
 */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

/* The public and the wire's rules have the same members. */
const struct hr_wire_rule *hr_client_rules(const struct headrace_rule *rules) {
        _Static_assert(sizeof(struct hr_wire_rule) == sizeof(struct headrace_rule) &&
                               offsetof(struct hr_wire_rule, device) ==
                                       offsetof(struct headrace_rule, device),
                       "one layout");
        return (const struct hr_wire_rule *) (const void *) rules;
}

enum headrace_status hr_client_check_name(const char *name, size_t capacity,
                                          struct headrace_error *error) {
        return name && strlen(name) < capacity
                       ? HEADRACE_OK
                       : hr_client_fail(error, HEADRACE_INVALID, "NAME",
                                        "a name or path of more than %zu bytes, or none",
                                        capacity - 1);
}

void hr_manifest_deinit(struct hr_manifest *manifest) {
        free(manifest->bytes);
        free(manifest->tensor_bytes);
}

static enum headrace_status manifest_columns(const struct headrace_tensor *tensors, size_t count,
                                             struct headrace_error *error, uint32_t *types,
                                             uint32_t *lengths, int64_t *ne,
                                             struct hr_manifest *manifest) {
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
                if (!hr_align_up_u64(bytes, HR_MANIFEST_PADDING, &padded) ||
                    !hr_add_u64(manifest->total_bytes, padded, &manifest->total_bytes))
                        return hr_client_fail(error, HEADRACE_INVALID, "SIZE",
                                              "more bytes than can be counted");
        }
        return HEADRACE_OK;
}

static enum headrace_status manifest_encode(const struct hr_wire_manifest *columns,
                                            struct headrace_error *error,
                                            struct hr_manifest *manifest) {
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

enum headrace_status hr_manifest_init(struct hr_manifest *manifest,
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

enum headrace_status hr_manifest_add_digests(struct hr_manifest *manifest, const uint8_t *leaves,
                                             size_t bytes, struct headrace_error *error) {
        const struct hr_wire_manifest columns = {.leaf_digests_bytes = bytes,
                                                 .leaf_digests = leaves};
        struct hr_diag diag = {0};
        size_t more = 0;
        uint8_t *grown;

        if (hr_wire_manifest_encode(&columns, NULL, 0, &diag, &more) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        grown = realloc(manifest->bytes, manifest->size + more + 1);
        if (!grown)
                return hr_client_fail_memory(error);
        manifest->bytes = grown;
        if (hr_wire_manifest_encode(&columns, grown + manifest->size, more, &diag, &more) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        manifest->size += more;
        return HEADRACE_OK;
}
