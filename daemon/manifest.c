/*
 * The table of tensors behind weight sets, GGUF files and states.
 *
 * Made in three steps: reserve (all memory at once), add per tensor, seal. The names lie in one
 * block, each with a terminator that is not part of it. Invariants of a sealed manifest: names are
 * unique and well formed; bytes is exactly what type and extents say; offset + bytes and
 * total_bytes do not wrap.
 */
#include "daemon/manifest.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN_NAME_BYTES 80 /* of a name in an error's words */

static int shown_bytes(uint64_t name_bytes) {
        return (int) HR_MIN(name_bytes, SHOWN_NAME_BYTES);
}

/* Length of the UTF-8 sequence at `bytes`, 0 when it is malformed, overlong, a surrogate or a
 * control character. */
static uint32_t utf8_length(const uint8_t *bytes, uint64_t remaining) {
        static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
        uint32_t first = bytes[0], length, point;

        if (first < 0x80)
                return first >= 0x20 && first != 0x7f ? 1 : 0;
        length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 0;
        if (length == 0 || length > remaining || first > 0xf4)
                return 0;
        point = first & (0x7fU >> length);
        for (uint32_t i = 1; i < length; i++) {
                if ((bytes[i] & 0xc0) != 0x80)
                        return 0;
                point = point << 6 | (bytes[i] & 0x3fU);
        }
        if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000))
                return 0;
        return point < 0xa0 ? 0 : length;
}

static bool name_is_valid(const char *name, uint64_t name_bytes) {
        const uint8_t *bytes = (const uint8_t *) name;
        uint64_t position = 0;

        if (name_bytes == 0 || name_bytes > HR_TENSOR_NAME_BYTES_MAX)
                return false;
        while (position < name_bytes) {
                uint32_t length = utf8_length(bytes + position, name_bytes - position);

                if (length == 0)
                        return false;
                position += length;
        }
        return true;
}

hr_status hr_manifest_reserve(uint32_t tensor_count, uint64_t name_bytes, struct hr_diag *diag,
                              struct hr_manifest **ret_manifest) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *manifest = calloc(1, sizeof *manifest);
        uint64_t storage;

        if (!hr_add_u64(name_bytes, (uint64_t) tensor_count + 1, &storage))
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "names of %" PRIu64 " bytes",
                                      name_bytes);
        if (manifest) {
                manifest->tensors = calloc((size_t) tensor_count + 1, sizeof *manifest->tensors);
                manifest->by_name = calloc((size_t) tensor_count + 1, sizeof *manifest->by_name);
                manifest->names = malloc(storage);
        }
        if (!manifest || !manifest->tensors || !manifest->by_name || !manifest->names)
                return hr_fail(diag, HR_E_EXHAUSTED, "table of %u tensors", tensor_count);
        *ret_manifest = HR_STEAL(manifest);
        return HR_OK;
}

struct hr_manifest *hr_manifest_free(struct hr_manifest *manifest) {
        if (manifest) {
                free(manifest->tensors);
                free(manifest->by_name);
                free(manifest->names);
                free(manifest);
        }
        return NULL;
}

hr_status hr_manifest_add(struct hr_manifest *manifest, const char *name, uint64_t name_bytes,
                          uint32_t type, const int64_t ne[HR_DIMS], uint64_t offset,
                          struct hr_diag *diag) {
        struct hr_manifest_tensor *entry = &manifest->tensors[manifest->tensor_count];
        struct hr_tensor tensor = {.type = type};
        struct hr_diag inner = {0};
        hr_status status;
        uint64_t end = 0;
        char *copy;

        if (!name_is_valid(name, name_bytes))
                return hr_fail_reason(diag, HR_E_INVALID, "NAME",
                                      "name of tensor %u (%" PRIu64 " bytes) is not 1 to %d bytes "
                                      "of printable UTF-8",
                                      manifest->tensor_count, name_bytes, HR_TENSOR_NAME_BYTES_MAX);
        memcpy(tensor.ne, ne, sizeof tensor.ne);
        status = hr_tensor_set_contiguous(&tensor, &inner);
        if (status == HR_OK)
                status = hr_tensor_span(&tensor, &inner, &entry->bytes);
        if (status == HR_OK && !hr_add_u64(offset, entry->bytes, &end))
                status = hr_fail_reason(&inner, HR_E_INVALID, "SIZE", "its end does not fit");
        if (status != HR_OK)
                return hr_fail_reason(diag, status, hr_diag_reason(&inner), "tensor '%.*s': %.120s",
                                      shown_bytes(name_bytes), name, inner.words);
        copy = manifest->names + manifest->name_bytes + manifest->tensor_count;
        memcpy(copy, name, name_bytes);
        copy[name_bytes] = '\0';
        entry->name = copy;
        entry->name_bytes = (uint32_t) name_bytes;
        entry->type = type;
        memcpy(entry->ne, ne, sizeof entry->ne);
        entry->offset = offset;
        manifest->name_bytes += name_bytes;
        manifest->total_bytes = HR_MAX(manifest->total_bytes, end);
        manifest->tensor_count++;
        return HR_OK;
}

static int name_compare(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
        int order = memcmp(a, b, HR_MIN(a_bytes, b_bytes));

        return order ? order : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int entry_compare(const void *a, const void *b, void *arg) {
        const struct hr_manifest *manifest = arg;
        const struct hr_manifest_tensor *first = &manifest->tensors[*(const uint32_t *) a];
        const struct hr_manifest_tensor *second = &manifest->tensors[*(const uint32_t *) b];

        return name_compare(first->name, first->name_bytes, second->name, second->name_bytes);
}

hr_status hr_manifest_seal(struct hr_manifest *manifest, struct hr_diag *diag) {
        const uint32_t count = manifest->tensor_count;

        for (uint32_t i = 0; i < count; i++)
                manifest->by_name[i] = i;
        qsort_r(manifest->by_name, count, sizeof *manifest->by_name, entry_compare, manifest);
        for (uint32_t i = 1; i < count; i++) {
                const struct hr_manifest_tensor *entry = &manifest->tensors[manifest->by_name[i]];

                if (entry_compare(&manifest->by_name[i - 1], &manifest->by_name[i], manifest) == 0)
                        return hr_fail_reason(diag, HR_E_INVALID, "NAME",
                                              "two tensors are named "
                                              "'%.*s'",
                                              shown_bytes(entry->name_bytes), entry->name);
        }
        return HR_OK;
}

static hr_status columns_check(const struct hr_manifest_columns *columns,
                               const struct hr_manifest_limits *limits, struct hr_diag *diag) {
        uint64_t name_bytes = 0;

        if (columns->tensor_count == 0)
                return hr_fail_reason(diag, HR_E_INVALID, "MANIFEST", "no tensor in the manifest");
        if (columns->tensor_count > limits->tensors_max) {
                if (diag && diag->status == HR_OK) {
                        diag->limit = limits->tensors_max;
                        diag->actual = columns->tensor_count;
                }
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "TENSORS",
                                      "%u tensors, at most %" PRIu64, columns->tensor_count,
                                      limits->tensors_max);
        }
        for (uint32_t i = 0; i < columns->tensor_count; i++)
                name_bytes += columns->name_lengths[i]; /* 2^32 terms below 2^32 */
        if (name_bytes != columns->names_bytes)
                return hr_fail_reason(diag, HR_E_INVALID, "MANIFEST",
                                      "name lengths add up to %" PRIu64
                                      " bytes, names have %" PRIu64,
                                      name_bytes, columns->names_bytes);
        return HR_OK;
}

static hr_status fail_over_limit(struct hr_diag *diag, const char *reason, const char *what,
                                 uint64_t actual, uint64_t limit) {
        if (diag && diag->status == HR_OK) {
                diag->limit = limit;
                diag->actual = actual;
        }
        return hr_fail_reason(diag, HR_E_EXHAUSTED, reason,
                              "%s has %" PRIu64 " bytes, at most %" PRIu64, what, actual, limit);
}

hr_status hr_manifest_new(const struct hr_manifest_columns *columns,
                          const struct hr_manifest_limits *limits, struct hr_diag *diag,
                          struct hr_manifest **ret_manifest) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *manifest = NULL;
        const char *name = columns->names;

        HR_TRY(columns_check(columns, limits, diag));
        HR_TRY(hr_manifest_reserve(columns->tensor_count, columns->names_bytes, diag, &manifest));
        for (uint32_t i = 0; i < columns->tensor_count; i++) {
                const uint64_t offset = manifest->total_bytes;
                uint64_t bytes;

                HR_TRY(hr_manifest_add(manifest, name, columns->name_lengths[i], columns->types[i],
                                       columns->ne + (size_t) HR_DIMS * i, offset, diag));
                bytes = manifest->tensors[i].bytes;
                if (bytes > limits->tensor_bytes_max)
                        return fail_over_limit(diag, "TENSOR_BYTES", manifest->tensors[i].name,
                                               bytes, limits->tensor_bytes_max);
                if (!hr_align_up_u64(manifest->total_bytes, HR_MANIFEST_PADDING,
                                     &manifest->total_bytes))
                        return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "sizes do not add up");
                name += columns->name_lengths[i];
        }
        if (manifest->total_bytes > limits->total_bytes_max)
                return fail_over_limit(diag, "TOTAL_BYTES", "the manifest", manifest->total_bytes,
                                       limits->total_bytes_max);
        HR_TRY(hr_manifest_seal(manifest, diag));
        *ret_manifest = HR_STEAL(manifest);
        return HR_OK;
}

int64_t hr_manifest_find(const struct hr_manifest *manifest, const char *name, size_t name_bytes) {
        uint32_t low = 0, high = manifest->tensor_count;

        while (low < high) {
                const uint32_t middle = low + (high - low) / 2;
                const uint32_t index = manifest->by_name[middle];
                const struct hr_manifest_tensor *entry = &manifest->tensors[index];
                const int order = name_compare(name, name_bytes, entry->name, entry->name_bytes);

                if (order == 0)
                        return index;
                if (order < 0)
                        high = middle;
                else
                        low = middle + 1;
        }
        return -1;
}

bool hr_manifest_equal(const struct hr_manifest *a, const struct hr_manifest *b) {
        if (a->tensor_count != b->tensor_count || a->name_bytes != b->name_bytes)
                return false;
        for (uint32_t i = 0; i < a->tensor_count; i++) {
                const struct hr_manifest_tensor *x = &a->tensors[i], *y = &b->tensors[i];

                if (x->type != y->type || x->offset != y->offset ||
                    memcmp(x->ne, y->ne, sizeof x->ne) != 0 ||
                    name_compare(x->name, x->name_bytes, y->name, y->name_bytes) != 0)
                        return false;
        }
        return true;
}

hr_status hr_manifest_check_leaf(const struct hr_manifest *manifest, uint32_t tensor,
                                 const struct hr_graph *graph, uint32_t leaf,
                                 struct hr_diag *diag) {
        const struct hr_manifest_tensor *entry = &manifest->tensors[tensor];
        const struct hr_tensor *wanted = &graph->tensors[leaf];

        HR_ASSERT(tensor < manifest->tensor_count && leaf < graph->leaf_count);
        if (wanted->type == entry->type && memcmp(wanted->ne, entry->ne, sizeof entry->ne) == 0)
                return HR_OK;
        if (diag && diag->status == HR_OK) {
                diag->has_tensor = true;
                diag->tensor = leaf;
        }
        return hr_fail_reason(
                diag, HR_E_INVALID, "LEAF",
                "leaf '%.*s' is %s [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                "], the stored tensor is %s [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "]",
                shown_bytes(entry->name_bytes), entry->name, hr_type_name(wanted->type),
                wanted->ne[0], wanted->ne[1], wanted->ne[2], wanted->ne[3],
                hr_type_name(entry->type), entry->ne[0], entry->ne[1], entry->ne[2], entry->ne[3]);
}
