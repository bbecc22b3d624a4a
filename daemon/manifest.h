/*
 * A manifest: the tensors of a weight set, of a GGUF file or of a state: names, types, shapes and
 * where each lies in the contents. Names are unique, 1 to HR_TENSOR_NAME_BYTES_MAX bytes of UTF-8
 * without control characters. Every byte count in it has been checked: offset + bytes never wraps.
 *
 * Immutable once made; one owner. Look-up is a binary search over an index sorted by name, so that
 * no choice of names makes it slow.
 */
#pragma once

#include "core/graph.h"

#define HR_TENSOR_NAME_BYTES_MAX 255
#define HR_MANIFEST_PADDING 64 /* tensors of an upload start at multiples of it */

struct hr_manifest_tensor {
        const char *name;    /* inside the manifest; NUL-terminated for convenience */
        uint32_t name_bytes; /* without the terminator */
        uint32_t type;       /* hr_type */
        int64_t ne[HR_DIMS];
        uint64_t bytes;      /* of its contiguous contents */
        uint64_t offset;     /* from the start of the contents (upload, file, state) */
};

struct hr_manifest {
        uint32_t tensor_count;
        uint64_t name_bytes;                /* sum of the names' lengths */
        uint64_t total_bytes;               /* one past the last byte of any tensor, padded */
        struct hr_manifest_tensor *tensors;
        uint32_t *by_name;                  /* tensor indices in order of name */
        char *names;                        /* storage of the names */
};

/* Columns as they come over the wire; see message Manifest. */
struct hr_manifest_columns {
        uint32_t tensor_count;
        const uint32_t *name_lengths; /* tensor_count */
        const char *names;
        uint64_t names_bytes;         /* must equal the sum of the lengths */
        const uint32_t *types;        /* tensor_count */
        const int64_t *ne;            /* 4 * tensor_count */
};

struct hr_manifest_limits {
        uint64_t tensors_max;
        uint64_t tensor_bytes_max; /* of one tensor */
        uint64_t total_bytes_max;
};

/* Builds a manifest whose tensors follow each other, each at a multiple of HR_MANIFEST_PADDING.
 * HR_E_INVALID (reason NAME, DTYPE, BLOCK, SHAPE, SIZE or MANIFEST; words name the tensor),
 * HR_E_EXHAUSTED over a limit or without memory. No tensor at all is HR_E_INVALID. Thread: any. */
HR_NODISCARD hr_status hr_manifest_new(const struct hr_manifest_columns *columns,
                                       const struct hr_manifest_limits *limits,
                                       struct hr_diag *diag, struct hr_manifest **ret_manifest);
struct hr_manifest *hr_manifest_free(struct hr_manifest *manifest);
HR_DEFINE_CLEANUP(struct hr_manifest *, hr_manifest_freep, hr_manifest_free)

/* Index of the tensor of that name, or -1. Thread: any. */
int64_t hr_manifest_find(const struct hr_manifest *manifest, const char *name, size_t name_bytes);
/* Same tensors with the same names, types and shapes at the same offsets. */
bool hr_manifest_equal(const struct hr_manifest *a, const struct hr_manifest *b);

/* Does `tensor` of the manifest fit leaf `leaf` of the graph (same type and extents)? HR_E_INVALID
 * (reason LEAF, tensor = leaf) with words that give both. */
HR_NODISCARD hr_status hr_manifest_check_leaf(const struct hr_manifest *manifest, uint32_t tensor,
                                              const struct hr_graph *graph, uint32_t leaf,
                                              struct hr_diag *diag);

/* The steps from which hr_manifest_new is made; file readers use them. Room for exactly that many
 * tensors and name bytes; then add each; then seal (sorts, refuses duplicate names). */
HR_NODISCARD hr_status hr_manifest_reserve(uint32_t tensor_count, uint64_t name_bytes,
                                           struct hr_diag *diag, struct hr_manifest **ret_manifest);
/* Checks name, type and extents, computes bytes. `offset` is taken as it is, but offset + bytes
 * must not wrap. */
HR_NODISCARD hr_status hr_manifest_add(struct hr_manifest *manifest, const char *name,
                                       uint64_t name_bytes, uint32_t type,
                                       const int64_t ne[HR_DIMS], uint64_t offset,
                                       struct hr_diag *diag);
HR_NODISCARD hr_status hr_manifest_seal(struct hr_manifest *manifest, struct hr_diag *diag);
