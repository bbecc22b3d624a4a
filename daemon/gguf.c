/*
 * A reader of GGUF tables of contents that expects an adversary.
 *
 * Everything goes through a cursor over the range: take() hands out a pointer only when that many
 * bytes remain. Counts are first compared with what the remaining bytes could hold at the smallest
 * record, so memory is bounded by the file's own size (and by the limits, which count first).
 * Metadata is walked, not stored: only its keys are remembered until duplicates have been ruled
 * out, and the alignment is read. Arrays of arrays are refused, so the walk does not recurse.
 *
 * A file: magic, version, tensor count, key count | keys and values | tensor infos | padding |
 * contents.
 */
#include "daemon/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GGUF_VERSION_MIN 2
#define GGUF_VERSION_MAX 3
#define GGUF_ALIGNMENT_DEFAULT 32
#define GGUF_ALIGNMENT_MIN 8U
#define GGUF_ALIGNMENT_MAX (1U << 20)
#define GGUF_KEY_BYTES_MAX 65535
#define GGUF_KEY_RECORD_MIN (8 + 1 + 4 + 1)        /* length, one byte of key, type, value */
#define GGUF_TENSOR_RECORD_MIN (8 + 1 + 4 + 4 + 8) /* length, name, dimensions, type, offset */

enum gguf_value {
        GGUF_U8,
        GGUF_I8,
        GGUF_U16,
        GGUF_I16,
        GGUF_U32,
        GGUF_I32,
        GGUF_F32,
        GGUF_BOOL,
        GGUF_STRING,
        GGUF_ARRAY,
        GGUF_U64,
        GGUF_I64,
        GGUF_F64,
        GGUF_VALUE_COUNT
};

/* Bytes of a scalar; 0 for string and array. */
static const uint8_t value_bytes[GGUF_VALUE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

struct cursor {
        const uint8_t *bytes;
        uint64_t size, position;
        struct hr_diag *diag;
};

struct key {
        const char *text;
        uint64_t bytes;
};

HR_PRINTF(2, 3)
static hr_status fail_at(struct cursor *cursor, const char *format, ...) {
        char words[HR_DIAG_WORDS_BYTES - 32];
        va_list args;

        va_start(args, format);
        vsnprintf(words, sizeof words, format, args);
        va_end(args);
        return hr_fail_reason(cursor->diag, HR_E_INVALID, "GGUF", "at byte %" PRIu64 ": %s",
                              cursor->position, words);
}

static uint64_t cursor_remaining(const struct cursor *cursor) {
        return cursor->size - cursor->position;
}

static hr_status cursor_take(struct cursor *cursor, uint64_t bytes, const char *what,
                             const uint8_t **ret_bytes) {
        if (bytes > cursor_remaining(cursor))
                return fail_at(cursor, "%s of %" PRIu64 " bytes, %" PRIu64 " remain", what, bytes,
                               cursor_remaining(cursor));
        *ret_bytes = cursor->bytes + cursor->position;
        cursor->position += bytes;
        return HR_OK;
}

static uint32_t load_u32(const uint8_t *bytes) {
        return (uint32_t) bytes[0] | (uint32_t) bytes[1] << 8 | (uint32_t) bytes[2] << 16 |
               (uint32_t) bytes[3] << 24;
}

static uint64_t load_u64(const uint8_t *bytes) {
        return load_u32(bytes) | (uint64_t) load_u32(bytes + 4) << 32;
}

static hr_status cursor_u32(struct cursor *cursor, const char *what, uint32_t *ret_value) {
        const uint8_t *bytes = NULL;

        HR_TRY(cursor_take(cursor, 4, what, &bytes));
        *ret_value = load_u32(bytes);
        return HR_OK;
}

static hr_status cursor_u64(struct cursor *cursor, const char *what, uint64_t *ret_value) {
        const uint8_t *bytes = NULL;

        HR_TRY(cursor_take(cursor, 8, what, &bytes));
        *ret_value = load_u64(bytes);
        return HR_OK;
}

static hr_status cursor_string(struct cursor *cursor, const char *what, struct key *ret_string) {
        const uint8_t *bytes = NULL;
        uint64_t length;

        HR_TRY(cursor_u64(cursor, what, &length));
        HR_TRY(cursor_take(cursor, length, what, &bytes));
        *ret_string = (struct key){.text = (const char *) bytes, .bytes = length};
        return HR_OK;
}

static hr_status skip_array(struct cursor *cursor) {
        const uint8_t *bytes = NULL;
        struct key string;
        uint64_t count, size;
        uint32_t type;

        HR_TRY(cursor_u32(cursor, "type of an array", &type));
        HR_TRY(cursor_u64(cursor, "length of an array", &count));
        if (type >= GGUF_VALUE_COUNT || type == GGUF_ARRAY)
                return fail_at(cursor, "array of values of type %" PRIu32, type);
        if (type != GGUF_STRING) {
                if (!hr_mul_u64(count, value_bytes[type], &size))
                        return fail_at(cursor, "array of %" PRIu64 " values", count);
                return cursor_take(cursor, size, "array", &bytes);
        }
        if (count > cursor_remaining(cursor) / 8)
                return fail_at(cursor, "array of %" PRIu64 " strings, %" PRIu64 " bytes remain",
                               count, cursor_remaining(cursor));
        for (uint64_t i = 0; i < count; i++)
                HR_TRY(cursor_string(cursor, "string in an array", &string));
        return HR_OK;
}

static hr_status skip_value(struct cursor *cursor, uint32_t type) {
        const uint8_t *bytes = NULL;
        struct key string;

        if (type >= GGUF_VALUE_COUNT)
                return fail_at(cursor, "value of unknown type %" PRIu32, type);
        if (type == GGUF_ARRAY)
                return skip_array(cursor);
        if (type == GGUF_STRING)
                return cursor_string(cursor, "string", &string);
        HR_TRY(cursor_take(cursor, value_bytes[type], "value", &bytes));
        if (type == GGUF_BOOL && *bytes > 1)
                return fail_at(cursor, "boolean with value %u", *bytes);
        return HR_OK;
}

static bool key_is(const struct key *key, const char *text) {
        return key->bytes == strlen(text) && memcmp(key->text, text, key->bytes) == 0;
}

static hr_status read_alignment(struct cursor *cursor, uint32_t type, struct hr_gguf *gguf) {
        uint32_t alignment;

        if (type != GGUF_U32)
                return fail_at(cursor, "general.alignment is not a 32-bit unsigned number");
        HR_TRY(cursor_u32(cursor, "general.alignment", &alignment));
        if (alignment < GGUF_ALIGNMENT_MIN || alignment > GGUF_ALIGNMENT_MAX ||
            (alignment & (alignment - 1)) != 0)
                return fail_at(cursor, "general.alignment is %" PRIu32, alignment);
        gguf->alignment = alignment;
        return HR_OK;
}

static hr_status read_key_value(struct cursor *cursor, struct hr_gguf *gguf, struct key *ret_key) {
        uint32_t type;

        HR_TRY(cursor_string(cursor, "key", ret_key));
        if (ret_key->bytes == 0 || ret_key->bytes > GGUF_KEY_BYTES_MAX ||
            memchr(ret_key->text, 0, ret_key->bytes))
                return fail_at(cursor, "key of %" PRIu64 " bytes, or with a zero byte in it",
                               ret_key->bytes);
        HR_TRY(cursor_u32(cursor, "type of a value", &type));
        if (key_is(ret_key, "general.alignment"))
                return read_alignment(cursor, type, gguf);
        return skip_value(cursor, type);
}

static int key_compare(const void *a, const void *b) {
        const struct key *first = a, *second = b;
        int order = memcmp(first->text, second->text, HR_MIN(first->bytes, second->bytes));

        return order ? order : (first->bytes > second->bytes) - (first->bytes < second->bytes);
}

static hr_status check_unique_keys(struct cursor *cursor, struct key *keys, uint64_t count) {
        qsort(keys, count, sizeof *keys, key_compare);
        for (uint64_t i = 1; i < count; i++)
                if (key_compare(&keys[i - 1], &keys[i]) == 0)
                        return fail_at(cursor, "key '%.*s' occurs twice",
                                       (int) HR_MIN(keys[i].bytes, 80), keys[i].text);
        return HR_OK;
}

static void free_keys(struct key **keys) {
        free(*keys);
}

static hr_status read_metadata(struct cursor *cursor, const struct hr_gguf_limits *limits,
                               struct hr_gguf *gguf) {
        HR_CLEANUP(free_keys) struct key *keys = NULL;
        const uint64_t count = gguf->metadata_count;

        if (count > cursor_remaining(cursor) / GGUF_KEY_RECORD_MIN)
                return fail_at(cursor, "%" PRIu64 " keys, %" PRIu64 " bytes remain", count,
                               cursor_remaining(cursor));
        if (count > limits->metadata_count_max)
                return hr_fail_reason(cursor->diag, HR_E_EXHAUSTED, "METADATA",
                                      "%" PRIu64 " metadata keys, at most %" PRIu64, count,
                                      limits->metadata_count_max);
        keys = calloc(count + 1, sizeof *keys);
        if (!keys)
                return hr_fail(cursor->diag, HR_E_EXHAUSTED, "%" PRIu64 " metadata keys", count);
        gguf->metadata_offset = cursor->position;
        for (uint64_t i = 0; i < count; i++)
                HR_TRY(read_key_value(cursor, gguf, &keys[i]));
        gguf->metadata_bytes = cursor->position - gguf->metadata_offset;
        if (gguf->metadata_bytes > limits->metadata_bytes_max)
                return hr_fail_reason(cursor->diag, HR_E_EXHAUSTED, "METADATA",
                                      "metadata has %" PRIu64 " bytes, at most %" PRIu64,
                                      gguf->metadata_bytes, limits->metadata_bytes_max);
        return check_unique_keys(cursor, keys, count);
}

/* A tensor's record as it stands in the file. */
struct tensor_info {
        struct key name;
        uint32_t type;
        int64_t ne[HR_DIMS];
        uint64_t offset; /* from data_offset */
};

static hr_status read_tensor_info(struct cursor *cursor, struct tensor_info *ret_info) {
        uint32_t dims;

        HR_TRY(cursor_string(cursor, "name of a tensor", &ret_info->name));
        HR_TRY(cursor_u32(cursor, "dimensions of a tensor", &dims));
        if (dims > HR_DIMS)
                return fail_at(cursor, "tensor with %" PRIu32 " dimensions", dims);
        for (uint32_t i = 0; i < HR_DIMS; i++) {
                uint64_t extent = 1;

                if (i < dims)
                        HR_TRY(cursor_u64(cursor, "extent", &extent));
                if (extent > INT64_MAX)
                        return fail_at(cursor, "extent of %" PRIu64, extent);
                ret_info->ne[i] = (int64_t) extent;
        }
        HR_TRY(cursor_u32(cursor, "type of a tensor", &ret_info->type));
        return cursor_u64(cursor, "offset of a tensor", &ret_info->offset);
}

/* First walk over the tensor infos: bytes of all names, and where the contents begin. */
static hr_status measure_tensors(struct cursor *cursor, uint64_t count, struct hr_gguf *gguf,
                                 uint64_t *ret_name_bytes) {
        struct tensor_info info;
        uint64_t name_bytes = 0;

        for (uint64_t i = 0; i < count; i++) {
                HR_TRY(read_tensor_info(cursor, &info));
                name_bytes += info.name.bytes; /* all inside the range: cannot wrap */
        }
        if (!hr_align_up_u64(cursor->position, gguf->alignment, &gguf->data_offset))
                return fail_at(cursor, "no place for the contents");
        *ret_name_bytes = name_bytes;
        return HR_OK;
}

/* Checks where a tensor lies: aligned, behind its predecessor, inside the range. */
static hr_status check_extent(struct cursor *cursor, const struct hr_gguf *gguf,
                              const struct hr_manifest_tensor *tensor, uint64_t previous_end) {
        const int shown = (int) HR_MIN(tensor->name_bytes, 80U);

        if ((tensor->offset - gguf->data_offset) % gguf->alignment != 0)
                return fail_at(cursor, "tensor '%.*s' is not aligned to %" PRIu32, shown,
                               tensor->name, gguf->alignment);
        if (tensor->offset < previous_end)
                return fail_at(cursor, "tensor '%.*s' overlaps or precedes its predecessor", shown,
                               tensor->name);
        if (tensor->bytes > 0 && tensor->offset + tensor->bytes > cursor->size)
                return fail_at(cursor, "tensor '%.*s' ends at %" PRIu64 ", the file at %" PRIu64,
                               shown, tensor->name, tensor->offset + tensor->bytes, cursor->size);
        return HR_OK;
}

static hr_status read_tensors(struct cursor *cursor, uint64_t count,
                              const struct hr_gguf_limits *limits, struct hr_gguf *gguf) {
        const uint64_t start = cursor->position;
        uint64_t name_bytes = 0, previous_end;

        if (count > cursor_remaining(cursor) / GGUF_TENSOR_RECORD_MIN)
                return fail_at(cursor, "%" PRIu64 " tensors, %" PRIu64 " bytes remain", count,
                               cursor_remaining(cursor));
        if (count > limits->tensors_max || count > UINT32_MAX - 1)
                return hr_fail_reason(cursor->diag, HR_E_EXHAUSTED, "TENSORS",
                                      "%" PRIu64 " tensors, at most %" PRIu64, count,
                                      limits->tensors_max);
        HR_TRY(measure_tensors(cursor, count, gguf, &name_bytes));
        HR_TRY(hr_manifest_reserve((uint32_t) count, name_bytes, cursor->diag, &gguf->tensors));
        cursor->position = start;
        previous_end = gguf->data_offset;
        for (uint64_t i = 0; i < count; i++) {
                const struct hr_manifest_tensor *tensor = &gguf->tensors->tensors[i];
                struct tensor_info info;
                uint64_t offset;

                HR_TRY(read_tensor_info(cursor, &info));
                if (!hr_add_u64(gguf->data_offset, info.offset, &offset))
                        return fail_at(cursor, "tensor offset of %" PRIu64, info.offset);
                HR_TRY(hr_manifest_add(gguf->tensors, info.name.text, info.name.bytes, info.type,
                                       info.ne, offset, cursor->diag));
                HR_TRY(check_extent(cursor, gguf, tensor, previous_end));
                if (tensor->bytes > limits->tensor_bytes_max)
                        return hr_fail_reason(cursor->diag, HR_E_EXHAUSTED, "TENSOR_BYTES",
                                              "a tensor has %" PRIu64 " bytes, at most %" PRIu64,
                                              tensor->bytes, limits->tensor_bytes_max);
                previous_end = tensor->offset + tensor->bytes;
        }
        return hr_manifest_seal(gguf->tensors, cursor->diag);
}

static hr_status read_header(struct cursor *cursor, struct hr_gguf *gguf, uint64_t *ret_tensors) {
        const uint8_t *magic = NULL;

        HR_TRY(cursor_take(cursor, 4, "magic", &magic));
        if (memcmp(magic, "GGUF", 4) != 0)
                return fail_at(cursor, "not a GGUF file");
        HR_TRY(cursor_u32(cursor, "version", &gguf->version));
        if (gguf->version < GGUF_VERSION_MIN || gguf->version > GGUF_VERSION_MAX)
                return fail_at(cursor, "version %" PRIu32 " (%s), readable are %d to %d",
                               gguf->version,
                               (gguf->version & 0xffff) == 0 ? "big-endian file" : "unknown",
                               GGUF_VERSION_MIN, GGUF_VERSION_MAX);
        HR_TRY(cursor_u64(cursor, "tensor count", ret_tensors));
        return cursor_u64(cursor, "key count", &gguf->metadata_count);
}

static hr_status parse(struct cursor *cursor, const struct hr_gguf_limits *limits,
                       struct hr_gguf *gguf) {
        uint64_t tensor_count;

        HR_TRY(read_header(cursor, gguf, &tensor_count));
        HR_TRY(read_metadata(cursor, limits, gguf));
        return read_tensors(cursor, tensor_count, limits, gguf);
}

hr_status hr_gguf_parse(const uint8_t *bytes, uint64_t size, const struct hr_gguf_limits *limits,
                        struct hr_diag *diag, struct hr_gguf *ret_gguf) {
        struct cursor cursor = {.bytes = bytes, .size = size, .diag = diag};
        struct hr_gguf gguf = {.alignment = GGUF_ALIGNMENT_DEFAULT};
        hr_status status = parse(&cursor, limits, &gguf);

        if (status != HR_OK) {
                hr_gguf_deinit(&gguf);
                return status;
        }
        *ret_gguf = gguf;
        return HR_OK;
}

void hr_gguf_deinit(struct hr_gguf *gguf) {
        gguf->tensors = hr_manifest_free(gguf->tensors);
}
