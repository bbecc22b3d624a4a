/*
 * The form of a record:
 *
 *   magic version tensors devices name-length names-length contents image digest
 *   name | device names, padded | per tensor: name length, type, home, 4 extents | tensor names
 *   SHA-256 of all before
 *
 * The size follows from the counts and has to be exactly that of the memory.
 */
#include "daemon/keep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "hr-kept\n"
#define MAGIC_BYTES 8U
#define HEADER_BYTES (MAGIC_BYTES + 4 * sizeof(uint32_t) + 3 * sizeof(uint64_t) + HR_DIGEST_BYTES)
#define TENSOR_BYTES (3 * sizeof(uint32_t) + HR_DIMS * sizeof(uint64_t))
#define DEVICE_BYTES ((uint64_t) HR_DEVICE_NAME_BYTES_MAX + 1)

#define PREFIX_CONTENTS "headrace-weights-"
#define PREFIX_RECORD "headrace-set-"

static void put_u32(uint8_t **at, uint32_t value) {
        for (unsigned i = 0; i < 4; i++)
                *(*at)++ = (uint8_t) (value >> (8 * i));
}

static void put_u64(uint8_t **at, uint64_t value) {
        put_u32(at, (uint32_t) value);
        put_u32(at, (uint32_t) (value >> 32));
}

static void put_bytes(uint8_t **at, const void *bytes, size_t size) {
        memcpy(*at, bytes, size);
        *at += size;
}

static uint32_t take_u32(const uint8_t **at) {
        uint32_t value = 0;

        for (unsigned i = 0; i < 4; i++)
                value |= (uint32_t) * (*at)++ << (8 * i);
        return value;
}

static uint64_t take_u64(const uint8_t **at) {
        const uint64_t low = take_u32(at);

        return low | (uint64_t) take_u32(at) << 32;
}

/* Of a record with such counts; false when that is more than one may have. */
static bool record_size(uint64_t tensors, uint64_t devices, uint64_t name_bytes,
                        uint64_t names_bytes, uint64_t *ret_size) {
        uint64_t size = HEADER_BYTES + HR_DIGEST_BYTES, part;

        if (!hr_mul_u64(tensors, TENSOR_BYTES, &part) || !hr_add_u64(size, part, &size) ||
            !hr_mul_u64(devices, DEVICE_BYTES, &part) || !hr_add_u64(size, part, &size) ||
            !hr_add_u64(size, name_bytes, &size) || !hr_add_u64(size, names_bytes, &size) ||
            size > HR_KEEP_RECORD_BYTES_MAX)
                return false;
        *ret_size = size;
        return true;
}

void hr_keep_record_deinit(struct hr_keep_record *record) {
        record->manifest = hr_manifest_free(record->manifest);
        free(record->devices);
        free(record->homes);
        record->devices = NULL;
        record->homes = NULL;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void put_tensors(uint8_t **at, const struct hr_keep_record *record) {
        const struct hr_manifest *manifest = record->manifest;

        for (uint32_t i = 0; i < manifest->tensor_count; i++) {
                const struct hr_manifest_tensor *tensor = &manifest->tensors[i];

                put_u32(at, tensor->name_bytes);
                put_u32(at, tensor->type);
                put_u32(at, record->homes[i]);
                for (unsigned k = 0; k < HR_DIMS; k++)
                        put_u64(at, (uint64_t) tensor->ne[k]);
        }
        for (uint32_t i = 0; i < manifest->tensor_count; i++)
                put_bytes(at, manifest->tensors[i].name, manifest->tensors[i].name_bytes);
}

hr_status hr_keep_encode(const struct hr_keep_record *record, struct hr_diag *diag,
                         uint8_t **ret_bytes, size_t *ret_size) {
        const struct hr_manifest *manifest = record->manifest;
        const size_t name_bytes = strlen(record->name);
        uint64_t size = 0;
        uint8_t *bytes, *at;
        hr_status status;

        bytes = record_size(manifest->tensor_count, record->device_count, name_bytes,
                            manifest->name_bytes, &size)
                        ? malloc(size)
                        : NULL;
        if (!bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "record of a set of %u tensors",
                               manifest->tensor_count);
        at = bytes;
        put_bytes(&at, MAGIC, MAGIC_BYTES);
        put_u32(&at, HR_KEEP_VERSION);
        put_u32(&at, manifest->tensor_count);
        put_u32(&at, record->device_count);
        put_u32(&at, (uint32_t) name_bytes);
        put_u64(&at, manifest->name_bytes);
        put_u64(&at, record->contents_bytes);
        put_u64(&at, record->image_bytes);
        put_bytes(&at, record->digest, HR_DIGEST_BYTES);
        put_bytes(&at, record->name, name_bytes);
        put_bytes(&at, record->devices, record->device_count * DEVICE_BYTES);
        put_tensors(&at, record);
        HR_ASSERT((uint64_t) (at - bytes) == size - HR_DIGEST_BYTES);
        status = hr_sha256(bytes, size - HR_DIGEST_BYTES, diag, at);
        if (status != HR_OK) {
                free(bytes);
                return status;
        }
        *ret_bytes = bytes;
        *ret_size = size;
        return HR_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

static hr_status bad(struct hr_diag *diag, const char *what) {
        return hr_fail(diag, HR_E_INVALID, "record of a weight set: %s", what);
}

struct counts {
        uint32_t tensors, devices, name_bytes;
        uint64_t names_bytes;
};

static hr_status take_header(const uint8_t **at, size_t size, struct hr_diag *diag,
                             struct hr_keep_record *record, struct counts *ret_counts) {
        uint8_t digest[HR_DIGEST_BYTES];
        uint64_t wanted = 0;
        uint32_t version;

        if (size < HEADER_BYTES + HR_DIGEST_BYTES || memcmp(*at, MAGIC, MAGIC_BYTES) != 0)
                return bad(diag, "another format");
        HR_TRY(hr_sha256(*at, size - HR_DIGEST_BYTES, diag, digest));
        if (!hr_digest_equal(digest, *at + size - HR_DIGEST_BYTES))
                return bad(diag, "cut or changed");
        *at += MAGIC_BYTES;
        version = take_u32(at);
        if (version != HR_KEEP_VERSION)
                return hr_fail(diag, HR_E_INVALID,
                               "record of a weight set: version %u, known is %u", version,
                               HR_KEEP_VERSION);
        ret_counts->tensors = take_u32(at);
        ret_counts->devices = take_u32(at);
        ret_counts->name_bytes = take_u32(at);
        ret_counts->names_bytes = take_u64(at);
        record->contents_bytes = take_u64(at);
        record->image_bytes = take_u64(at);
        memcpy(record->digest, *at, HR_DIGEST_BYTES);
        *at += HR_DIGEST_BYTES;
        if (!record_size(ret_counts->tensors, ret_counts->devices, ret_counts->name_bytes,
                         ret_counts->names_bytes, &wanted) ||
            wanted != size)
                return bad(diag, "its counts do not make its size");
        if (ret_counts->devices == 0 || ret_counts->devices > HR_KEEP_DEVICES_MAX)
                return bad(diag, "no devices, or too many");
        return HR_OK;
}

static hr_status take_names(const uint8_t **at, const struct counts *counts, struct hr_diag *diag,
                            struct hr_keep_record *record) {
        if (counts->name_bytes == 0 || counts->name_bytes > HR_KEEP_SET_NAME_BYTES_MAX ||
            memchr(*at, '\0', counts->name_bytes))
                return bad(diag, "its name is none");
        memcpy(record->name, *at, counts->name_bytes);
        record->name[counts->name_bytes] = '\0';
        *at += counts->name_bytes;
        record->device_count = counts->devices;
        record->devices = malloc(counts->devices * DEVICE_BYTES);
        if (!record->devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "names of %u devices", counts->devices);
        memcpy(record->devices, *at, counts->devices * DEVICE_BYTES);
        *at += counts->devices * DEVICE_BYTES;
        for (uint32_t i = 0; i < counts->devices; i++)
                if (!memchr(record->devices[i], '\0', DEVICE_BYTES))
                        return bad(diag, "a device's name is none");
        return HR_OK;
}

static hr_status take_tensors(const uint8_t **at, const struct counts *counts,
                              const struct hr_manifest_limits *limits, struct hr_diag *diag,
                              struct hr_keep_record *record) {
        const size_t count = counts->tensors;
        uint32_t *lengths = malloc(count * sizeof *lengths + 1);
        uint32_t *types = malloc(count * sizeof *types + 1);
        int64_t *ne = malloc(count * sizeof(int64_t[HR_DIMS]) + 1);
        hr_status status = HR_OK;

        record->homes = malloc(count * sizeof *record->homes + 1);
        if (!lengths || !types || !ne || !record->homes)
                status = hr_fail(diag, HR_E_EXHAUSTED, "table of %zu tensors", count);
        for (size_t i = 0; status == HR_OK && i < count; i++) {
                lengths[i] = take_u32(at);
                types[i] = take_u32(at);
                record->homes[i] = take_u32(at);
                for (unsigned k = 0; k < HR_DIMS; k++)
                        ne[i * HR_DIMS + k] = (int64_t) take_u64(at);
                if (record->homes[i] >= record->device_count)
                        status = bad(diag, "a tensor without a device");
        }
        if (status == HR_OK)
                status = hr_manifest_new(
                        &(struct hr_manifest_columns){counts->tensors, lengths, (const char *) *at,
                                                      counts->names_bytes, types, ne},
                        limits, diag, &record->manifest);
        free(lengths);
        free(types);
        free(ne);
        return status;
}

static hr_status check_sizes(const struct hr_keep_record *record, struct hr_diag *diag) {
        const struct hr_manifest *manifest = record->manifest;
        const struct hr_manifest_tensor *last = &manifest->tensors[manifest->tensor_count - 1];
        const uint64_t least = last->offset + last->bytes;

        if (record->contents_bytes != manifest->total_bytes && record->contents_bytes != least)
                return bad(diag, "its contents are not its tensors'");
        if (record->image_bytes < record->contents_bytes || record->image_bytes == 0)
                return bad(diag, "it has less memory than contents");
        return HR_OK;
}

hr_status hr_keep_decode(const uint8_t *bytes, size_t size, const struct hr_manifest_limits *limits,
                         struct hr_diag *diag, struct hr_keep_record *ret_record) {
        struct hr_keep_record record = {0};
        struct counts counts = {0};
        const uint8_t *at = bytes;
        hr_status status;

        status = take_header(&at, size, diag, &record, &counts);
        if (status == HR_OK)
                status = take_names(&at, &counts, diag, &record);
        if (status == HR_OK)
                status = take_tensors(&at, &counts, limits, diag, &record);
        if (status == HR_OK)
                status = check_sizes(&record, diag);
        if (status != HR_OK) {
                hr_keep_record_deinit(&record);
                return status;
        }
        *ret_record = record;
        return HR_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

void hr_keep_name(hr_keep_kind kind, const uint8_t digest[HR_DIGEST_BYTES],
                  char ret_name[HR_KEEP_NAME_BYTES]) {
        char hex[HR_DIGEST_HEX_BYTES];

        HR_ASSERT(kind == HR_KEEP_CONTENTS || kind == HR_KEEP_RECORD);
        hr_digest_hex(digest, hex);
        (void) snprintf(ret_name, HR_KEEP_NAME_BYTES, "%s%s",
                        kind == HR_KEEP_CONTENTS ? PREFIX_CONTENTS : PREFIX_RECORD, hex);
}

hr_keep_kind hr_keep_name_read(const char *name, uint8_t ret_digest[HR_DIGEST_BYTES]) {
        static const struct {
                const char *prefix;
                hr_keep_kind kind;
        } kinds[] = {{PREFIX_CONTENTS, HR_KEEP_CONTENTS}, {PREFIX_RECORD, HR_KEEP_RECORD}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(kinds); i++) {
                const size_t bytes = strlen(kinds[i].prefix);

                if (strncmp(name, kinds[i].prefix, bytes) == 0)
                        return hr_digest_read(name + bytes, strlen(name + bytes), ret_digest)
                                       ? kinds[i].kind
                                       : HR_KEEP_UNKNOWN;
        }
        return HR_KEEP_FOREIGN;
}
