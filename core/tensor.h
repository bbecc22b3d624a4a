/*
 * One tensor: type, extents, strides, and, for a node, its op.
 *
 * ne[0] is the fastest dimension (as in GGUF and ggml); nb[i] is the distance in bytes between
 * neighbours of dimension i. For block types nb[0] is the bytes of one block. All four dimensions
 * are always present; absent ones are 1. An extent of 0 is legal and means no elements.
 */
#pragma once

#include "core/op.h"
#include "core/status.h"
#include "core/type.h"

#define HR_DIMS 4
#define HR_OP_PARAM_WORDS 16
#define HR_TENSOR_NONE UINT32_MAX /* an absent optional source; "no view base" */

/* Bits of hr_tensor.flags; 1, 2 and 4 are the wire's. */
#define HR_TENSOR_INPUT 1U  /* filled by each run */
#define HR_TENSOR_OUTPUT 2U /* may be read back after a run; its memory is not reused before that */
#define HR_TENSOR_PARAM 4U

typedef enum hr_leaf_kind {
        HR_LEAF_NOT = 0,      /* a node */
        HR_LEAF_WEIGHT = 1,   /* read-only, of a weight set, found by the leaf's name */
        HR_LEAF_STATE = 2,    /* writable, of a session's state, found by the leaf's name */
        HR_LEAF_INPUT = 3,    /* carried by each run */
        HR_LEAF_CONSTANT = 4, /* its bytes are part of the graph */
} hr_leaf_kind;

struct hr_tensor {
        uint32_t op;           /* hr_op; NONE for a leaf */
        uint32_t type;         /* hr_type */
        uint32_t flags;
        uint32_t leaf_kind;    /* hr_leaf_kind */
        uint32_t source_first; /* into hr_graph.sources: the sum of all earlier source_counts, also
                                * for leaves and nodes without sources */
        uint32_t source_count;
        uint32_t view_base;    /* tensor whose memory this one is a window on: always the root of
                                * the chain, never itself a view; HR_TENSOR_NONE = own memory */
        uint32_t reserved;
        uint64_t view_offset;  /* bytes from the start of view_base */
        int64_t ne[HR_DIMS];
        uint64_t nb[HR_DIMS];
        int32_t params[HR_OP_PARAM_WORDS]; /* floats by bit pattern; unused words are 0 */
};

/* Fills nb for a contiguous tensor. HR_E_INVALID (reason DTYPE, BLOCK or SIZE) when the type is
 * unknown, ne[0] is no multiple of the block, an extent is negative or a product does not fit, that
 * of the extents other than 0 included: so the product of any extents of one tensor fits. */
HR_NODISCARD hr_status hr_tensor_set_contiguous(struct hr_tensor *tensor, struct hr_diag *diag);

/* Bytes from the first to one past the last byte touched: the strided span. 0 if it has no
 * elements. HR_E_INVALID when it does not fit. */
HR_NODISCARD hr_status hr_tensor_span(const struct hr_tensor *tensor, struct hr_diag *diag,
                                      uint64_t *ret_bytes);
/* The same for a tensor that has been validated (asserts). */
uint64_t hr_tensor_bytes(const struct hr_tensor *tensor);

int64_t hr_tensor_elements(const struct hr_tensor *tensor); /* validated tensors only */
int64_t hr_tensor_rows(const struct hr_tensor *tensor);     /* ne1 * ne2 * ne3 */
bool hr_tensor_is_contiguous(const struct hr_tensor *tensor);
/* Dimension 0 dense and the rows of dimensions 1.. at any stride. */
bool hr_tensor_rows_are_contiguous(const struct hr_tensor *tensor);
bool hr_tensor_same_shape(const struct hr_tensor *a, const struct hr_tensor *b);
/* Each extent of `whole` is a multiple of the extent of `part`: part broadcasts to whole. */
bool hr_tensor_repeats(const struct hr_tensor *part, const struct hr_tensor *whole);
static inline bool hr_tensor_is_empty(const struct hr_tensor *tensor) {
        return !tensor->ne[0] || !tensor->ne[1] || !tensor->ne[2] || !tensor->ne[3];
}

/* hr_tensor_span() without words: false when it fails. Planning brings every tensor of a graph
 * here: no divisions where there are no blocks. */
static inline bool hr_tensor_find_span(const struct hr_tensor *tensor, uint64_t *ret_bytes) {
        const struct hr_type_info *info = hr_type_info(tensor->type);
        uint64_t span = 0, step;

        if (!info)
                return false;
        if (!hr_tensor_is_empty(tensor)) {
                span = info->block_bytes;
                for (int i = 0; i < HR_DIMS; i++) {
                        int64_t count = tensor->ne[i];

                        if (i == 0 && info->block_elements != 1)
                                count /= info->block_elements;
                        if (count == 1)
                                continue;
                        if (count < 1 ||
                            __builtin_mul_overflow((uint64_t) count - 1, tensor->nb[i], &step) ||
                            __builtin_add_overflow(span, step, &span))
                                return false;
                }
        }
        *ret_bytes = span;
        return span <= INT64_MAX;
}

/* Parameter word as float. */
float hr_param_f32(const int32_t *params, uint32_t word);
/* Words 0-1 as a 64-bit number (VIEW's offset). */
uint64_t hr_param_u64(const int32_t *params, uint32_t word);
