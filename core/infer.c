/* The table from op to inference, and what the inference functions share. */
#include "core/infer.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const hr_infer_fn infer_table[HR_OP_LIMIT] = {
        [HR_OP_VIEW] = hr_infer_view,
        [HR_OP_RESHAPE] = hr_infer_reshape,
        [HR_OP_PERMUTE] = hr_infer_permute,
        [HR_OP_TRANSPOSE] = hr_infer_transpose,
        [HR_OP_DUP] = hr_infer_dup,
        [HR_OP_CONT] = hr_infer_cont,
        [HR_OP_CPY] = hr_infer_cpy,
        [HR_OP_GET_ROWS] = hr_infer_get_rows,
        [HR_OP_SET_ROWS] = hr_infer_set_rows,
        [HR_OP_CONCAT] = hr_infer_concat,
        [HR_OP_REPEAT] = hr_infer_repeat,
        [HR_OP_REPEAT_BACK] = hr_infer_repeat_back,
        [HR_OP_SET] = hr_infer_window,
        [HR_OP_ACC] = hr_infer_window,
        [HR_OP_ADD] = hr_infer_binary,
        [HR_OP_SUB] = hr_infer_binary,
        [HR_OP_MUL] = hr_infer_binary,
        [HR_OP_DIV] = hr_infer_binary,
        [HR_OP_ADD1] = hr_infer_add1,
        [HR_OP_ADD_ID] = hr_infer_add_id,
        [HR_OP_SCALE] = hr_infer_scale,
        [HR_OP_CLAMP] = hr_infer_clamp,
        [HR_OP_SQR] = hr_infer_map,
        [HR_OP_SQRT] = hr_infer_map,
        [HR_OP_LOG] = hr_infer_map,
        [HR_OP_SIN] = hr_infer_map,
        [HR_OP_COS] = hr_infer_map,
        [HR_OP_LEAKY_RELU] = hr_infer_leaky_relu,
        [HR_OP_FILL] = hr_infer_fill,
        [HR_OP_UNARY] = hr_infer_unary,
        [HR_OP_GLU] = hr_infer_glu,
        [HR_OP_SUM] = hr_infer_sum,
        [HR_OP_SUM_ROWS] = hr_infer_sum_rows,
        [HR_OP_MEAN] = hr_infer_sum_rows,
        [HR_OP_CUMSUM] = hr_infer_cumsum,
        [HR_OP_ARGMAX] = hr_infer_argmax,
        [HR_OP_ARGSORT] = hr_infer_argsort,
        [HR_OP_TOP_K] = hr_infer_top_k,
        [HR_OP_COUNT_EQUAL] = hr_infer_count_equal,
        [HR_OP_NORM] = hr_infer_norm,
        [HR_OP_RMS_NORM] = hr_infer_norm,
        [HR_OP_L2_NORM] = hr_infer_norm,
        [HR_OP_GROUP_NORM] = hr_infer_group_norm,
        [HR_OP_MUL_MAT] = hr_infer_mul_mat,
        [HR_OP_MUL_MAT_ID] = hr_infer_mul_mat_id,
        [HR_OP_OUT_PROD] = hr_infer_out_prod,
        [HR_OP_SOFT_MAX] = hr_infer_soft_max,
        [HR_OP_ROPE] = hr_infer_rope,
        [HR_OP_ROPE_BACK] = hr_infer_rope,
        [HR_OP_FLASH_ATTN_EXT] = hr_infer_flash_attn,
        [HR_OP_DIAG_MASK_INF] = hr_infer_diag_mask,
        [HR_OP_DIAG_MASK_ZERO] = hr_infer_diag_mask,
        [HR_OP_DIAG] = hr_infer_diag,
        [HR_OP_TRI] = hr_infer_tri,
        [HR_OP_ARANGE] = hr_infer_arange,
        [HR_OP_TIMESTEP_EMBEDDING] = hr_infer_timestep_embedding,
        [HR_OP_PAD] = hr_infer_pad,
        [HR_OP_PAD_REFLECT_1D] = hr_infer_pad_reflect,
        [HR_OP_ROLL] = hr_infer_roll,
        [HR_OP_IM2COL] = hr_infer_im2col,
        [HR_OP_IM2COL_3D] = hr_infer_im2col_3d,
        [HR_OP_CONV_2D] = hr_infer_conv_2d,
        [HR_OP_CONV_2D_DW] = hr_infer_conv_2d_dw,
        [HR_OP_CONV_3D] = hr_infer_conv_3d,
        [HR_OP_CONV_TRANSPOSE_1D] = hr_infer_conv_transpose_1d,
        [HR_OP_CONV_TRANSPOSE_2D] = hr_infer_conv_transpose_2d,
        [HR_OP_COL2IM_1D] = hr_infer_col2im_1d,
        [HR_OP_POOL_1D] = hr_infer_pool_1d,
        [HR_OP_POOL_2D] = hr_infer_pool_2d,
        [HR_OP_UPSCALE] = hr_infer_upscale,
        [HR_OP_WIN_PART] = hr_infer_win_part,
        [HR_OP_WIN_UNPART] = hr_infer_win_unpart,
        [HR_OP_GET_REL_POS] = hr_infer_get_rel_pos,
        [HR_OP_ADD_REL_POS] = hr_infer_add_rel_pos,
        [HR_OP_SSM_CONV] = hr_infer_ssm_conv,
        [HR_OP_SSM_SCAN] = hr_infer_ssm_scan,
        [HR_OP_RWKV_WKV6] = hr_infer_rwkv_wkv6,
        [HR_OP_RWKV_WKV7] = hr_infer_rwkv_wkv7,
        [HR_OP_GATED_LINEAR_ATTN] = hr_infer_gated_linear_attn,
        [HR_OP_GATED_DELTA_NET] = hr_infer_gated_delta_net,
        [HR_OP_SOLVE_TRI] = hr_infer_solve_tri,
        [HR_OP_LIGHTNING_INDEXER] = hr_infer_lightning_indexer,
        [HR_OP_DSV4_HC_COMB] = hr_infer_dsv4_hc_comb,
        [HR_OP_DSV4_HC_PRE] = hr_infer_dsv4_hc_pre,
        [HR_OP_DSV4_HC_POST] = hr_infer_dsv4_hc_post,
};

hr_infer_fn hr_infer_lookup(uint32_t op) {
        return op < HR_OP_LIMIT ? infer_table[op] : NULL;
}

hr_status hr_infer_refuse(struct hr_infer *infer, const char *reason, const char *format, ...) {
        char words[HR_DIAG_WORDS_BYTES - 64];
        va_list args;

        va_start(args, format);
        (void) vsnprintf(words, sizeof words, format, args);
        va_end(args);
        if (infer->diag && infer->diag->status == HR_OK) {
                infer->diag->has_node = true;
                infer->diag->node = infer->id - infer->graph->leaf_count;
        }
        if (!hr_op_info(infer->node->op))
                return hr_fail_reason(infer->diag, HR_E_INVALID, reason, "%s", words);
        return hr_fail_reason(infer->diag, HR_E_INVALID, reason, "%s: %s",
                              hr_op_name(infer->node->op), words);
}

void hr_infer_view_of(struct hr_infer *infer, uint32_t position, uint64_t offset,
                      const uint64_t nb[HR_DIMS]) {
        const struct hr_tensor *source = infer->sources[position];
        bool is_root = source->view_base == HR_TENSOR_NONE;

        infer->is_view = true;
        infer->view_base = is_root ? infer->source_ids[position] : source->view_base;
        infer->view_offset = offset;
        memcpy(infer->nb, nb, sizeof infer->nb);
}

hr_status hr_infer_finite(struct hr_infer *infer, uint32_t word, const char *name) {
        HR_INFER_NEED(isfinite(hr_param_f32(infer->node->params, word)), "PARAM",
                      "%s is not finite", name);
        return HR_OK;
}

hr_status hr_infer_need_type(struct hr_infer *infer, uint32_t position, hr_type type) {
        HR_INFER_NEED(infer->sources[position]->type == type, "DTYPE",
                      "source %" PRIu32 " is %s, not %s", position,
                      hr_type_name(infer->sources[position]->type), hr_type_name(type));
        return HR_OK;
}

hr_status hr_infer_need_dense_rows(struct hr_infer *infer, uint32_t position) {
        HR_INFER_NEED(hr_tensor_rows_are_contiguous(infer->sources[position]), "STRIDE",
                      "rows of source %" PRIu32 " are not dense", position);
        return HR_OK;
}

hr_status hr_infer_dense(struct hr_infer *infer, struct hr_tensor *tensor) {
        struct hr_diag own = { 0 };

        HR_INFER_NEED(hr_tensor_set_contiguous(tensor, &own) == HR_OK, own.reason, "%s", own.words);
        return HR_OK;
}

hr_status hr_infer_product(struct hr_infer *infer, const int64_t *factors, int count,
                           int64_t *ret_product) {
        int64_t result = 1;

        for (int i = 0; i < count; i++)
                HR_INFER_NEED(!__builtin_mul_overflow(result, factors[i], &result), "SIZE",
                              "an extent does not fit 63 bits");
        *ret_product = result;
        return HR_OK;
}
