/* The kernels of this folder, one getter per op; those of matrix/ are in kernel.h. */
#pragma once

#include "backends/cpu/kernel.h"
#include "backends/cpu/vec.h"

/* ops_binary.c */
extern const struct cpu_kernel cpu_kernel_binary, cpu_kernel_add_id;
/* ops_unary.c */
extern const struct cpu_kernel cpu_kernel_unary, cpu_kernel_math, cpu_kernel_scale,
        cpu_kernel_clamp, cpu_kernel_leaky_relu, cpu_kernel_fill;
/* ops_glu.c */
extern const struct cpu_kernel cpu_kernel_glu;
/* ops_norm.c */
extern const struct cpu_kernel cpu_kernel_norm, cpu_kernel_group_norm;
/* ops_softmax.c */
extern const struct cpu_kernel cpu_kernel_soft_max, cpu_kernel_diag_mask;
/* ops_rope.c */
extern const struct cpu_kernel cpu_kernel_rope;
/* ops_reduce.c */
extern const struct cpu_kernel cpu_kernel_sum, cpu_kernel_row_sum, cpu_kernel_cumsum,
        cpu_kernel_argmax, cpu_kernel_count_equal;
/* ops_sort.c */
extern const struct cpu_kernel cpu_kernel_argsort, cpu_kernel_top_k;
/* ops_layout.c */
extern const struct cpu_kernel cpu_kernel_concat, cpu_kernel_repeat, cpu_kernel_repeat_back,
        cpu_kernel_set;
/* ops_pad.c */
extern const struct cpu_kernel cpu_kernel_pad, cpu_kernel_pad_reflect_1d, cpu_kernel_roll;
/* ops_make.c */
extern const struct cpu_kernel cpu_kernel_arange, cpu_kernel_diag, cpu_kernel_tri,
        cpu_kernel_timestep_embedding;

/* ops_conv.c */
extern const struct cpu_kernel cpu_kernel_im2col, cpu_kernel_conv;
/* ops_conv_dw.c */
extern const struct cpu_kernel cpu_kernel_conv_dw;
/* ops_conv_transpose.c */
extern const struct cpu_kernel cpu_kernel_conv_transpose, cpu_kernel_col2im_1d;
/* ops_pool.c */
extern const struct cpu_kernel cpu_kernel_pool, cpu_kernel_upscale;
/* ops_window.c */
extern const struct cpu_kernel cpu_kernel_win_part, cpu_kernel_win_unpart, cpu_kernel_get_rel_pos,
        cpu_kernel_add_rel_pos;
/* ops_ssm.c */
extern const struct cpu_kernel cpu_kernel_ssm_conv, cpu_kernel_ssm_scan;
/* ops_linear_attn.c */
extern const struct cpu_kernel cpu_kernel_wkv, cpu_kernel_gated_delta_net;
/* ops_solve.c */
extern const struct cpu_kernel cpu_kernel_out_prod, cpu_kernel_solve_tri;
/* ops_indexer.c */
extern const struct cpu_kernel cpu_kernel_lightning_indexer, cpu_kernel_dsv4_hc_comb,
        cpu_kernel_dsv4_hc_pre, cpu_kernel_dsv4_hc_post;

/* ---- Chains: nodes that share one pass ------------------------------------------------------- */

#define CPU_CHAIN_MAX 8U /* nodes of one */

/* ops_chain.c; its step is the first of 1 + joined. */
extern const struct cpu_kernel cpu_kernel_chain;
/* NORM, RMS_NORM or L2_NORM. */
bool cpu_is_norm(uint32_t op);
/* optimize.c: hr_device_ops.optimize */
void cpu_optimize(const struct hr_device *device, const struct hr_split_view *view,
                  uint32_t *order, bool *joined);

/* What a node of one source does to n elements, with the parameters of call->step; out may be in.
 * NULL for other ops. ops_unary.c */
typedef void (*cpu_map_fn)(const struct cpu_call *call, int64_t n, float *out, const float *in);
cpu_map_fn cpu_map_find(uint32_t op);
/* The same for two sources. ops_binary.c */
cpu_vec_binary_fn cpu_binary_find(const struct cpu_vec *vec, uint32_t op);
/* Elements first .. first + n - 1 of a row that repeats with the period of `operand`, in
 * `buffer`. */
const float *cpu_load_repeated(const struct cpu_vec *vec, const struct hr_operand *operand,
                               const uint8_t *row, int64_t first, int64_t n, float *buffer);
/* What the elements of a row are multiplied by. NORM leaves the row less its mean in `out`, and
 * that is what is multiplied; the others only read `in`. ops_norm.c */
float cpu_norm_factor(const struct cpu_call *call, int64_t n, float *out, const float *in);

/* The kernel of an op, or NULL. table.c */
const struct cpu_kernel *cpu_kernel_find(uint32_t op);
