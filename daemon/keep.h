/*
 * What outlives the process: records of weight sets, and the names under which a service manager
 * holds them.
 *
 * The manager keeps descriptors while the daemon is not there (sd_notify FDSTORE) and passes them
 * to the next one. Of each set it has two: the contents, a sealed memfd named by their digest,
 * which sets of the same contents share; and a record, a sealed memfd too, that says what the set
 * is: name, tensors, places, digest and sizes. A record is named by, and ends with, its own
 * SHA-256.
 *
 * A record is read as if it came from a stranger: each count and size in it is checked, tensors go
 * through hr_manifest_new(). Integers are little-endian.
 */
#pragma once

#include "daemon/config.h"
#include "daemon/digest.h"
#include "daemon/manifest.h"

#define HR_KEEP_VERSION 1U
#define HR_KEEP_SET_NAME_BYTES_MAX 255
#define HR_KEEP_RECORD_BYTES_MAX (UINT64_C(1) << 30)
#define HR_KEEP_DEVICES_MAX 65536U
/* Of descriptors at the manager, with the terminator. */
#define HR_KEEP_NAME_BYTES 96

/* Zeroed is valid to deinit. */
struct hr_keep_record {
        char name[HR_KEEP_SET_NAME_BYTES_MAX + 1];
        uint8_t digest[HR_DIGEST_BYTES]; /* of the contents */
        uint64_t contents_bytes;         /* that the digest is of */
        uint64_t image_bytes;            /* of the memfd that are mapped: no fewer */
        struct hr_manifest *manifest;
        char (*devices)[HR_DEVICE_NAME_BYTES_MAX + 1];
        uint32_t device_count;
        uint32_t *homes; /* per tensor: index in devices */
};

void hr_keep_record_deinit(struct hr_keep_record *record);

/* Bytes to be freed by the caller. HR_E_EXHAUSTED. Thread: any. */
HR_NODISCARD hr_status hr_keep_encode(const struct hr_keep_record *record, struct hr_diag *diag,
                                      uint8_t **ret_bytes, size_t *ret_size);
/* HR_E_INVALID (another format or version, cut, changed, or tensors that are none), HR_E_EXHAUSTED
 * over a limit or without memory. Thread: any. */
HR_NODISCARD hr_status hr_keep_decode(const uint8_t *bytes, size_t size,
                                      const struct hr_manifest_limits *limits, struct hr_diag *diag,
                                      struct hr_keep_record *ret_record);

typedef enum hr_keep_kind {
        HR_KEEP_CONTENTS, /* digest: of the contents */
        HR_KEEP_RECORD,   /* digest: of the record */
        HR_KEEP_UNKNOWN,  /* begins as ours do, and is none */
        HR_KEEP_FOREIGN,
} hr_keep_kind;

void hr_keep_name(hr_keep_kind kind, const uint8_t digest[HR_DIGEST_BYTES],
                  char ret_name[HR_KEEP_NAME_BYTES]);
hr_keep_kind hr_keep_name_read(const char *name, uint8_t ret_digest[HR_DIGEST_BYTES]);
