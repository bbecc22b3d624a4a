/*
 * The graph's operators as kernel launches. `supports` is a pure function of types, shapes, strides
 * and parameters; `prepare` writes down the launches of a step that has addresses. Private to this
 * room.
 */
#pragma once

#include "backends/cuda/kernels/args.h"
#include "backends/cuda/kernels/kernels.h"
#include "core/device.h"

/* Where prepare() puts launches. */
struct cuda_builder;

/* What a device is told about its ways of computing. */
struct cuda_options {
        int64_t batch_min; /* columns from which weights in blocks go to the library */
};

#define CUDA_BATCH_MIN 128

struct cuda_op {
        uint32_t op;
        bool may_fault; /* uses values as indices */
        bool (*supports)(const struct hr_step *step);
        void (*prepare)(const struct hr_step *step, struct cuda_builder *builder);
        /* Bytes that the step needs besides its tensors, or NULL: none. A function of types and
         * shapes. */
        uint64_t (*scratch)(const struct hr_step *step, const struct cuda_options *options);
};

extern const struct cuda_op cuda_ops_elements[], cuda_ops_rows[], cuda_ops_norm[],
        cuda_ops_product[], cuda_ops_attention[], cuda_ops_shape[], cuda_ops_window[],
        cuda_ops_recurrent[], cuda_ops_mixing[]; /* each ends with op NONE */

/* The operator of a step if it is supported, or NULL. */
const struct cuda_op *cuda_op_find(const struct hr_step *step);

/* ---- For prepare() --------------------------------------------------------------------------- */

/* One launch with `items` pieces of work that blocks take in turn. What fails is remembered. */
void cuda_builder_launch(struct cuda_builder *builder, enum cuda_kernel kernel, uint64_t items,
                         const void *argument, uint32_t argument_bytes);
struct cuda_matmul_spec;
/* A product by the library of products, which is there. False: it has no way for it. */
bool cuda_builder_matmul(struct cuda_builder *builder, const struct cuda_matmul_spec *spec);
/* Where the GPU writes a bad index, and what. */
uint64_t cuda_builder_fault(const struct cuda_builder *builder);
uint64_t cuda_builder_step(const struct cuda_builder *builder);
const struct cuda_options *cuda_builder_options(const struct cuda_builder *builder);
/* As cuda_builder_launch() for what a step makes of a source in its scratch, at places that nothing
 * else of the step uses. No launch if the step just before has made the same of the same, for what
 * has several products mostly has them one after the other. */
void cuda_builder_make(struct cuda_builder *builder, enum cuda_kernel kernel, uint64_t items,
                       const void *argument, uint32_t argument_bytes);
/* The step's scratch, aligned to 256. Steps have the same, one after the other. */
uint64_t cuda_builder_scratch(const struct cuda_builder *builder);

struct cuda_tensor cuda_tensor_of(const struct hr_operand *operand);
/* The same for kernels that walk over all rows: one without elements may have any number, and has
 * none here. */
struct cuda_tensor cuda_walked_of(const struct hr_operand *operand);
/* Source `position`, or one that is not present. */
struct cuda_tensor cuda_source_of(const struct hr_step *step, uint32_t position);
/* Joins dimensions that lie one behind the other in all `count` tensors. */
void cuda_join(struct cuda_tensor *const *tensors, uint32_t count);

/* Copies elements in logical order; any types that copy_supports() of CPY takes. */
void cuda_copy_launch(struct cuda_builder *builder, struct cuda_tensor out, struct cuda_tensor in);
/* ADD to blocks. */
bool cuda_add_supports(const struct hr_step *step);
void cuda_add_prepare(const struct hr_step *step, struct cuda_builder *builder);

/* ---- For supports() -------------------------------------------------------------------------- */

bool cuda_has(const struct hr_step *step, uint32_t position);
bool cuda_is_float(const struct hr_operand *operand);   /* f32, f16, bf16 */
bool cuda_is_block(const struct hr_operand *operand);   /* a block type that weights have */
bool cuda_is_encoded(const struct hr_operand *operand); /* one of those that kernels also write */
bool cuda_is_dense(const struct hr_operand *operand);   /* dimension 0 without gaps */
bool cuda_is_contiguous(const struct hr_operand *operand);
bool cuda_is_empty(const struct hr_operand *operand); /* no elements; rows perhaps in any number */
bool cuda_same_shape(const struct hr_operand *a, const struct hr_operand *b);
bool cuda_repeats(const struct hr_operand *part, const struct hr_operand *whole);
int64_t cuda_rows(const struct hr_operand *operand);
/* Alignment that kernels rely on for elements of the type: 1, 2, 4 or 8. */
uint32_t cuda_type_alignment(uint32_t type);
