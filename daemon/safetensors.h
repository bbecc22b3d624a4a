/*
 * Safetensors files read from a range of bytes: eight bytes of length, a header in JSON, contents.
 *
 * The reader trusts nothing. JSON is parsed as a stream, so memory grows with the tensors and not
 * with what a header can be made to look like; anything but the one shape that a header has is
 * refused where it begins. Tensors cover the contents without gap or overlap, names are unique,
 * extents and types give exactly the bytes that the offsets say. Types: F32 F16 BF16 F64 I8
 * I16 I32 I64. `__metadata__` is checked and not kept. It reads the header only, never the
 * contents.
 */
#pragma once

#include "daemon/manifest.h"

struct hr_safetensors_limits {
        uint64_t header_bytes_max;
        uint64_t metadata_count_max; /* pairs of __metadata__ */
        uint64_t tensors_max;
        uint64_t tensor_bytes_max;
};

/* A table of contents. Zeroed is valid to deinit. Holds no pointer into the range. */
struct hr_safetensors {
        uint64_t data_offset; /* where the tensors' contents begin */
        uint64_t metadata_count;
        bool is_aligned;             /* every tensor lies at a multiple of its element's size */
        struct hr_manifest *tensors; /* in the order of their places; offsets count from the file's
                                      * start; owned */
};

/* True for a path that is read as such a file: it ends with .safetensors. */
bool hr_safetensors_path(const char *path);
/* HR_E_INVALID (reason SAFETENSORS, or DTYPE, SHAPE, SIZE, NAME for a tensor) with words that say
 * what and where; HR_E_EXHAUSTED over a limit or without memory. Thread: any. */
HR_NODISCARD hr_status hr_safetensors_parse(const uint8_t *bytes, uint64_t size,
                                            const struct hr_safetensors_limits *limits,
                                            struct hr_diag *diag, struct hr_safetensors *ret_file);
void hr_safetensors_deinit(struct hr_safetensors *file);
