/*
 * Inference, private to core: from the sources and parameters of a node, what its type, shape and
 * memory must be. One function per op, in a table by op (infer.c). Each checks the preconditions
 * that hold for every device; what only some devices can do is for hr_device_ops.supports_op.
 */
#pragma once

#include "core/graph.h"

#define HR_INFER_SOURCES_MAX 10

struct hr_infer {
        const struct hr_graph *graph;
        uint32_t id;
        const struct hr_tensor *node;                            /* as declared */
        const struct hr_tensor *sources[HR_INFER_SOURCES_MAX];   /* NULL = absent */
        uint32_t source_ids[HR_INFER_SOURCES_MAX];
        struct hr_diag *diag;
        /* Answers. */
        uint32_t type;
        int64_t ne[HR_DIMS];
        uint32_t params_used; /* words that may be other than 0 */
        bool is_view;         /* then the memory is view_base's, from view_offset on, with nb */
        uint32_t view_base;
        uint64_t view_offset;
        bool has_strides;     /* own memory, without gaps, but with nb instead of dense strides */
        uint64_t nb[HR_DIMS];
};

typedef hr_status (*hr_infer_fn)(struct hr_infer *infer);

/* The function of an op: every op of op.def that a node can have is there. NULL for other
 * numbers. */
hr_infer_fn hr_infer_lookup(uint32_t op);

/* Records a failure with the node and returns HR_E_INVALID. */
HR_PRINTF(3, 4)
hr_status hr_infer_refuse(struct hr_infer *infer, const char *reason, const char *format, ...);

#define HR_INFER_NEED(condition, reason, ...)                                                      \
        do {                                                                                       \
                if (HR_UNLIKELY(!(condition)))                                                     \
                        return hr_infer_refuse(infer, reason, __VA_ARGS__);                        \
        } while (0)

static inline void hr_infer_shape(struct hr_infer *infer, uint32_t type, int64_t ne0, int64_t ne1,
                                  int64_t ne2, int64_t ne3) {
        infer->type = type;
        infer->ne[0] = ne0;
        infer->ne[1] = ne1;
        infer->ne[2] = ne2;
        infer->ne[3] = ne3;
}

static inline void hr_infer_like(struct hr_infer *infer, const struct hr_tensor *source) {
        hr_infer_shape(infer, source->type, source->ne[0], source->ne[1], source->ne[2],
                       source->ne[3]);
}

/* The answer is a window on the memory of source `position`, at `offset` bytes from its start. */
void hr_infer_view_of(struct hr_infer *infer, uint32_t position, uint64_t offset,
                      const uint64_t nb[HR_DIMS]);

static inline bool hr_infer_is_real(uint32_t type) {
        return type == HR_TYPE_F32 || type == HR_TYPE_F16 || type == HR_TYPE_BF16;
}

/* Parameter as a float; refused when it is NaN or infinite. */
hr_status hr_infer_finite(struct hr_infer *infer, uint32_t word, const char *name);

/* Refuses a source of another type, or whose dimension 0 has gaps. */
hr_status hr_infer_need_type(struct hr_infer *infer, uint32_t position, hr_type type);
hr_status hr_infer_need_dense_rows(struct hr_infer *infer, uint32_t position);
/* Of factors that are not all extents of one tensor (whose product fits); refused when it does not
 * fit 63 bits. */
hr_status hr_infer_product(struct hr_infer *infer, const int64_t *factors, int count,
                           int64_t *ret_product);

/* Strides of a contiguous tensor; refused as hr_tensor_set_contiguous() does. */
hr_status hr_infer_dense(struct hr_infer *infer, struct hr_tensor *tensor);

/* infer_shape.c */
hr_status hr_infer_view(struct hr_infer *infer);
hr_status hr_infer_reshape(struct hr_infer *infer);
hr_status hr_infer_permute(struct hr_infer *infer);
hr_status hr_infer_transpose(struct hr_infer *infer);
hr_status hr_infer_dup(struct hr_infer *infer);
hr_status hr_infer_cont(struct hr_infer *infer);
hr_status hr_infer_cpy(struct hr_infer *infer);
hr_status hr_infer_get_rows(struct hr_infer *infer);
hr_status hr_infer_set_rows(struct hr_infer *infer);
hr_status hr_infer_concat(struct hr_infer *infer);
hr_status hr_infer_repeat(struct hr_infer *infer);
hr_status hr_infer_repeat_back(struct hr_infer *infer);
hr_status hr_infer_window(struct hr_infer *infer); /* SET, ACC */
hr_status hr_infer_pad(struct hr_infer *infer);
hr_status hr_infer_pad_reflect(struct hr_infer *infer);
hr_status hr_infer_roll(struct hr_infer *infer);
hr_status hr_infer_diag(struct hr_infer *infer);
hr_status hr_infer_tri(struct hr_infer *infer);
hr_status hr_infer_arange(struct hr_infer *infer);
/* infer_math.c */
hr_status hr_infer_binary(struct hr_infer *infer);
hr_status hr_infer_add1(struct hr_infer *infer);
hr_status hr_infer_add_id(struct hr_infer *infer);
hr_status hr_infer_scale(struct hr_infer *infer);
hr_status hr_infer_clamp(struct hr_infer *infer);
hr_status hr_infer_map(struct hr_infer *infer); /* SQR SQRT LOG SIN COS: no parameters */
hr_status hr_infer_leaky_relu(struct hr_infer *infer);
hr_status hr_infer_fill(struct hr_infer *infer);
hr_status hr_infer_unary(struct hr_infer *infer);
hr_status hr_infer_glu(struct hr_infer *infer);
hr_status hr_infer_sum(struct hr_infer *infer);
hr_status hr_infer_sum_rows(struct hr_infer *infer); /* SUM_ROWS, MEAN */
hr_status hr_infer_cumsum(struct hr_infer *infer);
hr_status hr_infer_argmax(struct hr_infer *infer);
hr_status hr_infer_argsort(struct hr_infer *infer);
hr_status hr_infer_top_k(struct hr_infer *infer);
hr_status hr_infer_count_equal(struct hr_infer *infer);
hr_status hr_infer_norm(struct hr_infer *infer); /* NORM RMS_NORM L2_NORM */
hr_status hr_infer_group_norm(struct hr_infer *infer);
hr_status hr_infer_diag_mask(struct hr_infer *infer);
hr_status hr_infer_timestep_embedding(struct hr_infer *infer);
/* infer_matrix.c */
hr_status hr_infer_mul_mat(struct hr_infer *infer);
hr_status hr_infer_mul_mat_id(struct hr_infer *infer);
hr_status hr_infer_out_prod(struct hr_infer *infer);
hr_status hr_infer_soft_max(struct hr_infer *infer);
hr_status hr_infer_rope(struct hr_infer *infer);
hr_status hr_infer_flash_attn(struct hr_infer *infer);
/* infer_conv.c */
hr_status hr_infer_im2col(struct hr_infer *infer);
hr_status hr_infer_im2col_3d(struct hr_infer *infer);
hr_status hr_infer_conv_2d(struct hr_infer *infer);
hr_status hr_infer_conv_2d_dw(struct hr_infer *infer);
hr_status hr_infer_conv_3d(struct hr_infer *infer);
hr_status hr_infer_conv_transpose_1d(struct hr_infer *infer);
hr_status hr_infer_conv_transpose_2d(struct hr_infer *infer);
hr_status hr_infer_col2im_1d(struct hr_infer *infer);
hr_status hr_infer_pool_1d(struct hr_infer *infer);
hr_status hr_infer_pool_2d(struct hr_infer *infer);
hr_status hr_infer_upscale(struct hr_infer *infer);
/* infer_window.c */
hr_status hr_infer_win_part(struct hr_infer *infer);
hr_status hr_infer_win_unpart(struct hr_infer *infer);
hr_status hr_infer_get_rel_pos(struct hr_infer *infer);
hr_status hr_infer_add_rel_pos(struct hr_infer *infer);
/* infer_recurrent.c */
hr_status hr_infer_ssm_conv(struct hr_infer *infer);
hr_status hr_infer_ssm_scan(struct hr_infer *infer);
hr_status hr_infer_rwkv_wkv6(struct hr_infer *infer);
hr_status hr_infer_rwkv_wkv7(struct hr_infer *infer);
hr_status hr_infer_gated_linear_attn(struct hr_infer *infer);
hr_status hr_infer_gated_delta_net(struct hr_infer *infer);
hr_status hr_infer_solve_tri(struct hr_infer *infer);
hr_status hr_infer_lightning_indexer(struct hr_infer *infer);
hr_status hr_infer_dsv4_hc_comb(struct hr_infer *infer);
hr_status hr_infer_dsv4_hc_pre(struct hr_infer *infer);
hr_status hr_infer_dsv4_hc_post(struct hr_infer *infer);
