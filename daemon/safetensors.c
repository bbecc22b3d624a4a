/*
 * From events of a JSON parser to a manifest.
 *
 *   { "name": { "dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24] }, ...
 *     "__metadata__": { "key": "value", ... } }
 *
 * Each event is compared with the place it comes at; one that does not belong there ends the parse.
 * So nesting is bounded by the shape of a header, and what is kept per tensor is one entry and its
 * name. Entries are sorted by their places when all are there.
 */
#include "daemon/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <yajl/yajl_parse.h>

#define LENGTH_BYTES 8U
#define SUFFIX ".safetensors"
#define METADATA "__metadata__"
#define SHOWN_BYTES 60U

enum place { BEFORE, ROOT, METADATA_OPEN, IN_METADATA, TENSOR_OPEN, IN_TENSOR, AFTER };
enum member { NO_MEMBER, DTYPE, SHAPE, OFFSETS, MEMBER_COUNT };

static const char *const member_names[MEMBER_COUNT] = {NULL, "dtype", "shape", "data_offsets"};

struct entry {
        uint64_t name_at;
        uint32_t name_bytes, type;
        int64_t ne[HR_DIMS];
        uint64_t begin, end;
};

struct parser {
        const struct hr_safetensors_limits *limits;
        struct hr_diag *diag;
        yajl_handle json;
        enum place place;
        enum member member; /* whose value is due, or whose list is open */
        bool list_is_open, has_metadata;
        bool seen[MEMBER_COUNT];
        uint64_t numbers[HR_DIMS];
        uint32_t number_count;
        struct entry *entries;
        uint64_t count, capacity;
        char *names;
        uint64_t names_bytes, names_capacity;
        uint64_t metadata_count;
};

/* The first refusal counts; 0 tells the JSON parser to stop. */
static int refuse(struct parser *parser, const char *what) {
        (void) hr_fail_reason(parser->diag, HR_E_INVALID, "SAFETENSORS",
                              "at byte %zu of the header: %s",
                              yajl_get_bytes_consumed(parser->json), what);
        return 0;
}

static int no_memory(struct parser *parser) {
        (void) hr_fail(parser->diag, HR_E_EXHAUSTED, "table of %" PRIu64 " tensors", parser->count);
        return 0;
}

/* ---- growing lists --------------------------------------------------------------------------- */

static bool reserve(void **items, uint64_t *capacity, uint64_t wanted, size_t item_bytes) {
        uint64_t grown = *capacity ? *capacity : 64, bytes;
        void *moved;

        if (wanted <= *capacity)
                return true;
        while (grown < wanted)
                grown *= 2;
        if (!hr_mul_u64(grown, item_bytes, &bytes))
                return false;
        moved = realloc(*items, bytes);
        if (!moved)
                return false;
        *items = moved;
        *capacity = grown;
        return true;
}

static int tensor_add(struct parser *parser, const unsigned char *name, size_t bytes) {
        void *entries = parser->entries, *names = parser->names;
        bool fits;

        if (parser->count >= parser->limits->tensors_max) {
                (void) hr_fail_reason(parser->diag, HR_E_EXHAUSTED, "TENSORS",
                                      "more than %" PRIu64 " tensors", parser->limits->tensors_max);
                return 0;
        }
        fits = reserve(&entries, &parser->capacity, parser->count + 1, sizeof *parser->entries);
        parser->entries = entries;
        if (fits)
                fits = reserve(&names, &parser->names_capacity, parser->names_bytes + bytes + 1, 1);
        parser->names = names;
        if (!fits)
                return no_memory(parser);
        parser->entries[parser->count++] =
                (struct entry){.name_at = parser->names_bytes, .name_bytes = (uint32_t) bytes};
        memcpy(parser->names + parser->names_bytes, name, bytes);
        parser->names_bytes += bytes;
        return 1;
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool text_is(const unsigned char *text, size_t bytes, const char *wanted) {
        return bytes == strlen(wanted) && memcmp(text, wanted, bytes) == 0;
}

static int on_start_map(void *arg) {
        struct parser *parser = arg;

        switch (parser->place) {
        case BEFORE:
                parser->place = ROOT;
                return 1;
        case METADATA_OPEN:
                parser->place = IN_METADATA;
                return 1;
        case TENSOR_OPEN:
                parser->place = IN_TENSOR;
                return 1;
        default:
                return refuse(parser, "an object that does not belong here");
        }
}

static int on_end_map(void *arg) {
        struct parser *parser = arg;

        if (parser->place == IN_TENSOR)
                for (int member = DTYPE; member < MEMBER_COUNT; member++)
                        if (!parser->seen[member])
                                return refuse(parser, "a tensor lacks a dtype, shape or "
                                                      "data_offsets");
        parser->place = parser->place == ROOT ? AFTER : ROOT;
        return 1;
}

static int member_key(struct parser *parser, const unsigned char *key, size_t bytes) {
        for (int member = DTYPE; member < MEMBER_COUNT; member++) {
                if (!text_is(key, bytes, member_names[member]))
                        continue;
                if (parser->seen[member])
                        return refuse(parser, "a member twice");
                parser->seen[member] = true;
                parser->member = (enum member) member;
                return 1;
        }
        return refuse(parser, "an unknown member of a tensor");
}

static int on_map_key(void *arg, const unsigned char *key, size_t bytes) {
        struct parser *parser = arg;

        if (parser->place == IN_TENSOR)
                return member_key(parser, key, bytes);
        if (parser->place == IN_METADATA) {
                if (++parser->metadata_count > parser->limits->metadata_count_max) {
                        (void) hr_fail_reason(parser->diag, HR_E_EXHAUSTED, "METADATA",
                                              "more than %" PRIu64 " pairs of metadata",
                                              parser->limits->metadata_count_max);
                        return 0;
                }
                return 1;
        }
        HR_ASSERT(parser->place == ROOT);
        if (text_is(key, bytes, METADATA)) {
                if (parser->has_metadata)
                        return refuse(parser, METADATA " twice");
                parser->has_metadata = true;
                parser->place = METADATA_OPEN;
                return 1;
        }
        if (bytes == 0 || bytes > HR_TENSOR_NAME_BYTES_MAX) {
                (void) hr_fail_reason(parser->diag, HR_E_INVALID, "NAME",
                                      "a tensor's name has %zu bytes, not 1 to %d", bytes,
                                      HR_TENSOR_NAME_BYTES_MAX);
                return 0;
        }
        parser->place = TENSOR_OPEN;
        memset(parser->seen, 0, sizeof parser->seen);
        parser->member = NO_MEMBER;
        return tensor_add(parser, key, bytes);
}

static int dtype_set(struct parser *parser, const unsigned char *text, size_t bytes) {
        static const struct {
                const char *name;
                uint32_t type;
        } types[] = {{"F32", HR_TYPE_F32}, {"F16", HR_TYPE_F16}, {"BF16", HR_TYPE_BF16},
                     {"I8", HR_TYPE_I8},   {"I16", HR_TYPE_I16}, {"I32", HR_TYPE_I32},
                     {"I64", HR_TYPE_I64}, {"F64", HR_TYPE_F64}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++)
                if (text_is(text, bytes, types[i].name)) {
                        parser->entries[parser->count - 1].type = types[i].type;
                        parser->member = NO_MEMBER;
                        return 1;
                }
        (void) hr_fail_reason(parser->diag, HR_E_INVALID, "DTYPE",
                              "dtype '%.*s' is none of F32 F16 BF16 F64 I8 I16 I32 I64",
                              (int) HR_MIN(bytes, (size_t) 16), (const char *) text);
        return 0;
}

static int on_string(void *arg, const unsigned char *text, size_t bytes) {
        struct parser *parser = arg;

        if (parser->place == IN_METADATA)
                return 1;
        if (parser->place == IN_TENSOR && parser->member == DTYPE)
                return dtype_set(parser, text, bytes);
        return refuse(parser, "a string that does not belong here");
}

/* Decimal digits and nothing else. */
static bool number_parse(const char *text, size_t bytes, uint64_t *ret_number) {
        uint64_t number = 0;

        for (size_t i = 0; i < bytes; i++) {
                if (text[i] < '0' || text[i] > '9' || !hr_mul_u64(number, 10, &number) ||
                    !hr_add_u64(number, (uint64_t) (text[i] - '0'), &number))
                        return false;
        }
        *ret_number = number;
        return bytes > 0;
}

static int on_number(void *arg, const char *text, size_t bytes) {
        struct parser *parser = arg;
        const uint32_t most = parser->member == SHAPE ? HR_DIMS : 2;

        if (!parser->list_is_open)
                return refuse(parser, "a number that does not belong here");
        if (parser->number_count == most) {
                (void) hr_fail_reason(parser->diag, HR_E_INVALID,
                                      parser->member == SHAPE ? "SHAPE" : "SAFETENSORS",
                                      "a tensor with more than %u %s", most,
                                      parser->member == SHAPE ? "dimensions" : "offsets");
                return 0;
        }
        if (!number_parse(text, bytes, &parser->numbers[parser->number_count++]))
                return refuse(parser, "no number of bytes or elements");
        return 1;
}

static int on_start_array(void *arg) {
        struct parser *parser = arg;

        if (parser->place != IN_TENSOR || parser->list_is_open ||
            (parser->member != SHAPE && parser->member != OFFSETS))
                return refuse(parser, "a list that does not belong here");
        parser->list_is_open = true;
        parser->number_count = 0;
        return 1;
}

/* The last dimension of a shape is the dense one: ours is the first. */
static int on_end_array(void *arg) {
        struct parser *parser = arg;
        struct entry *entry = &parser->entries[parser->count - 1];
        const uint32_t count = parser->number_count;

        parser->list_is_open = false;
        if (parser->member == OFFSETS) {
                if (count != 2)
                        return refuse(parser, "data_offsets are two");
                entry->begin = parser->numbers[0];
                entry->end = parser->numbers[1];
        }
        for (uint32_t i = 0; parser->member == SHAPE && i < HR_DIMS; i++) {
                const uint64_t extent = i < count ? parser->numbers[count - 1 - i] : 1;

                if (extent > INT64_MAX)
                        return refuse(parser, "no number of elements");
                entry->ne[i] = (int64_t) extent;
        }
        parser->member = NO_MEMBER;
        return 1;
}

static int on_null(void *arg) {
        return refuse(arg, "null");
}

static int on_boolean(void *arg, int value) {
        (void) value;
        return refuse(arg, "true or false");
}

static const yajl_callbacks callbacks = {
        .yajl_null = on_null,
        .yajl_boolean = on_boolean,
        .yajl_number = on_number,
        .yajl_string = on_string,
        .yajl_start_map = on_start_map,
        .yajl_map_key = on_map_key,
        .yajl_end_map = on_end_map,
        .yajl_start_array = on_start_array,
        .yajl_end_array = on_end_array,
};

static hr_status header_parse(struct parser *parser, const uint8_t *text, size_t bytes) {
        yajl_status status;

        parser->json = yajl_alloc(&callbacks, NULL, parser);
        if (!parser->json)
                return hr_fail(parser->diag, HR_E_EXHAUSTED, "no memory for a parser");
        status = yajl_parse(parser->json, text, bytes);
        if (status == yajl_status_ok)
                status = yajl_complete_parse(parser->json);
        if (status != yajl_status_ok)
                (void) refuse(parser, "no JSON"); /* unless a callback has said more */
        yajl_free(parser->json);
        return status == yajl_status_ok ? HR_OK : parser->diag->status;
}

/* ---- the table ------------------------------------------------------------------------------- */

static int entry_compare(const void *a, const void *b) {
        const struct entry *left = a, *right = b;

        if (left->begin != right->begin)
                return left->begin < right->begin ? -1 : 1;
        if (left->end != right->end)
                return left->end < right->end ? -1 : 1;
        return left->name_at < right->name_at ? -1 : 1; /* those of nothing: as they came */
}

static hr_status entry_take(const struct parser *parser, const struct entry *entry,
                            uint64_t data_bytes, struct hr_safetensors *file) {
        const char *name = parser->names + entry->name_at;
        const int shown = (int) HR_MIN(entry->name_bytes, SHOWN_BYTES);
        const struct hr_manifest_tensor *tensor;

        if (entry->begin > entry->end || entry->end > data_bytes)
                return hr_fail_reason(parser->diag, HR_E_INVALID, "SIZE",
                                      "tensor '%.*s' lies at %" PRIu64 " to %" PRIu64 " of %" PRIu64
                                      " bytes",
                                      shown, name, entry->begin, entry->end, data_bytes);
        tensor = &file->tensors->tensors[file->tensors->tensor_count];
        HR_TRY(hr_manifest_add(file->tensors, name, entry->name_bytes, entry->type, entry->ne,
                               file->data_offset + entry->begin, parser->diag));
        if (tensor->bytes != entry->end - entry->begin)
                return hr_fail_reason(parser->diag, HR_E_INVALID, "SIZE",
                                      "tensor '%.*s' has %" PRIu64 " bytes, its place %" PRIu64,
                                      shown, name, tensor->bytes, entry->end - entry->begin);
        if (tensor->bytes > parser->limits->tensor_bytes_max)
                return hr_fail_reason(parser->diag, HR_E_EXHAUSTED, "TENSOR_BYTES",
                                      "a tensor has %" PRIu64 " bytes, at most %" PRIu64,
                                      tensor->bytes, parser->limits->tensor_bytes_max);
        if (tensor->bytes > 0 && tensor->offset % hr_type_info(tensor->type)->block_bytes != 0)
                file->is_aligned = false;
        return HR_OK;
}

static hr_status table_make(struct parser *parser, uint64_t data_bytes,
                            struct hr_safetensors *file) {
        uint64_t end = 0;

        if (parser->count == 0)
                return hr_fail_reason(parser->diag, HR_E_INVALID, "SAFETENSORS", "no tensors");
        qsort(parser->entries, parser->count, sizeof *parser->entries, entry_compare);
        HR_TRY(hr_manifest_reserve((uint32_t) parser->count, parser->names_bytes, parser->diag,
                                   &file->tensors));
        for (uint64_t i = 0; i < parser->count; i++) {
                const struct entry *entry = &parser->entries[i];

                if (entry->begin != end)
                        return hr_fail_reason(parser->diag, HR_E_INVALID, "SAFETENSORS",
                                              "tensors %s at byte %" PRIu64 " of the contents",
                                              entry->begin < end ? "overlap" : "leave a gap",
                                              entry->begin);
                HR_TRY(entry_take(parser, entry, data_bytes, file));
                end = entry->end;
        }
        if (end != data_bytes)
                return hr_fail_reason(parser->diag, HR_E_INVALID, "SAFETENSORS",
                                      "tensors end at byte %" PRIu64 " of %" PRIu64
                                      " of the contents",
                                      end, data_bytes);
        return hr_manifest_seal(file->tensors, parser->diag);
}

static hr_status header_find(const uint8_t *bytes, uint64_t size,
                             const struct hr_safetensors_limits *limits, struct hr_diag *diag,
                             uint64_t *ret_header_bytes) {
        uint64_t header_bytes = 0;

        if (size < LENGTH_BYTES)
                return hr_fail_reason(diag, HR_E_INVALID, "SAFETENSORS",
                                      "a file of %" PRIu64 " bytes", size);
        for (uint32_t i = 0; i < LENGTH_BYTES; i++)
                header_bytes |= (uint64_t) bytes[i] << (8 * i);
        if (header_bytes > size - LENGTH_BYTES)
                return hr_fail_reason(diag, HR_E_INVALID, "SAFETENSORS",
                                      "a header of %" PRIu64 " bytes, %" PRIu64 " remain",
                                      header_bytes, size - LENGTH_BYTES);
        if (header_bytes > limits->header_bytes_max)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "METADATA",
                                      "a header of %" PRIu64 " bytes, at most %" PRIu64,
                                      header_bytes, limits->header_bytes_max);
        if (header_bytes == 0 || bytes[LENGTH_BYTES] != '{')
                return hr_fail_reason(diag, HR_E_INVALID, "SAFETENSORS",
                                      "the header does not begin with {");
        *ret_header_bytes = header_bytes;
        return HR_OK;
}

bool hr_safetensors_path(const char *path) {
        const size_t bytes = strlen(path), suffix = strlen(SUFFIX);

        return bytes > suffix && memcmp(path + bytes - suffix, SUFFIX, suffix) == 0;
}

hr_status hr_safetensors_parse(const uint8_t *bytes, uint64_t size,
                               const struct hr_safetensors_limits *limits, struct hr_diag *diag,
                               struct hr_safetensors *ret_file) {
        struct hr_diag local = {0};
        struct parser parser = {.limits = limits, .diag = diag ? diag : &local};
        struct hr_safetensors file = {.is_aligned = true};
        uint64_t header_bytes = 0;
        hr_status status;

        HR_TRY(header_find(bytes, size, limits, diag, &header_bytes));
        file.data_offset = LENGTH_BYTES + header_bytes;
        status = header_parse(&parser, bytes + LENGTH_BYTES, (size_t) header_bytes);
        if (status == HR_OK)
                status = table_make(&parser, size - file.data_offset, &file);
        file.metadata_count = parser.metadata_count;
        free(parser.entries);
        free(parser.names);
        if (status != HR_OK) {
                hr_safetensors_deinit(&file);
                return status;
        }
        *ret_file = file;
        return HR_OK;
}

void hr_safetensors_deinit(struct hr_safetensors *file) {
        file->tensors = hr_manifest_free(file->tensors);
}
