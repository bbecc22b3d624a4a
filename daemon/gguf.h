/*
 * GGUF files (versions 2 and 3, little-endian) read from a range of bytes.
 *
 * The reader trusts nothing: every count is compared with what the remaining bytes could hold
 * before anything is allocated, all arithmetic is checked, there is no recursion (arrays of arrays
 * are refused), keys and tensor names are unique, tensors lie in order, aligned, without overlap,
 * inside the range. It reads header, metadata and tensor table only, never the tensors' contents.
 */
#pragma once

#include "daemon/manifest.h"

struct hr_gguf_limits {
        uint64_t metadata_bytes_max; /* of all key-values together */
        uint64_t metadata_count_max; /* keys */
        uint64_t tensors_max;
        uint64_t tensor_bytes_max;
};

/* A table of contents. Zeroed is valid to deinit. Holds no pointer into the range. */
struct hr_gguf {
        uint32_t version;
        uint32_t alignment;       /* of tensors in the file; 32 unless it says otherwise */
        uint64_t metadata_count;
        uint64_t metadata_offset; /* of the first key-value, from the file's start */
        uint64_t metadata_bytes;  /* of all key-values as they stand in the file */
        uint64_t data_offset;     /* where the tensors' contents begin */
        struct hr_manifest *tensors; /* offsets count from the file's start; owned */
};

/* HR_E_INVALID (reason GGUF, or DTYPE, BLOCK, SHAPE, SIZE, NAME for a tensor) with words that say
 * what and where; HR_E_EXHAUSTED over a limit or without memory. Thread: any. */
HR_NODISCARD hr_status hr_gguf_parse(const uint8_t *bytes, uint64_t size,
                                     const struct hr_gguf_limits *limits, struct hr_diag *diag,
                                     struct hr_gguf *ret_gguf);
void hr_gguf_deinit(struct hr_gguf *gguf);
