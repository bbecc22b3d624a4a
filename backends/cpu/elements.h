/*
 * How kernels walk tensors: row addresses, chunks of a row, and float rows of any float type and
 * stride through a small buffer of f32.
 *
 * A chunk is at most CPU_CHUNK elements of one row. Chunks are cut the same way whatever the team,
 * so results do not depend on it.
 */
#pragma once

#include "backends/cpu/kernel.h"
#include "backends/cpu/vec.h"

#define CPU_CHUNK 1024

/* Elements, rows and emptiness of an operand, as the functions of core/tensor.h; but rows without
 * elements do not count, of which a tensor of no bytes may have more than anyone can walk over. */
int64_t cpu_elements(const struct hr_operand *operand);
int64_t cpu_rows(const struct hr_operand *operand);
bool cpu_is_empty(const struct hr_operand *operand);
bool cpu_is_absent(const struct hr_operand *operand);
/* As validation has it: without elements, too, wherever they do not lie. */
bool cpu_is_contiguous(const struct hr_operand *operand);
/* Dimension 0 has no gaps, or no elements. */
bool cpu_has_dense_rows(const struct hr_operand *operand);
bool cpu_same_shape(const struct hr_operand *a, const struct hr_operand *b);
bool cpu_same_strides(const struct hr_operand *a, const struct hr_operand *b);
/* Every extent of `part` divides that of `whole`. */
bool cpu_repeats(const struct hr_operand *part, const struct hr_operand *whole);
/* f32, f16 or bf16. */
bool cpu_is_float(uint32_t type);
/* Bytes of an element (of a block for block types); the type is known to exist. */
uint32_t cpu_element_bytes(uint32_t type);
uint32_t cpu_block_elements(uint32_t type);

static inline uint8_t *cpu_row(const struct hr_operand *operand, int64_t i1, int64_t i2,
                               int64_t i3) {
        return (uint8_t *) operand->data + (uint64_t) i1 * operand->nb[1] +
               (uint64_t) i2 * operand->nb[2] + (uint64_t) i3 * operand->nb[3];
}

/* Row number -> the three outer indices. */
struct cpu_index {
        int64_t i1, i2, i3;
};

static inline struct cpu_index cpu_index_of_row(const struct hr_operand *operand, int64_t row) {
        int64_t plane = operand->ne[1] * operand->ne[2];
        struct cpu_index index;

        index.i3 = row / plane;
        row -= index.i3 * plane;
        index.i2 = row / operand->ne[1];
        index.i1 = row - index.i2 * operand->ne[1];
        return index;
}

static inline uint8_t *cpu_row_at(const struct hr_operand *operand, struct cpu_index index) {
        return cpu_row(operand, index.i1, index.i2, index.i3);
}

/* The row of a broadcast operand: indices modulo its extents. */
static inline uint8_t *cpu_row_modulo(const struct hr_operand *operand, struct cpu_index index) {
        return cpu_row(operand, index.i1 % operand->ne[1], index.i2 % operand->ne[2],
                       index.i3 % operand->ne[3]);
}

/* n <= CPU_CHUNK elements from `first` of a row as f32: in place where they lie so, else converted
 * into buffer (room for n). */
const float *cpu_load(const struct cpu_vec *vec, const struct hr_operand *operand,
                      const uint8_t *row, int64_t first, int64_t n, float *buffer);
/* Where a kernel writes n elements for cpu_store: the row itself or buffer. */
float *cpu_target(const struct hr_operand *operand, uint8_t *row, int64_t first, float *buffer);
/* Brings what was written to cpu_target() into the row. A no-op where that was the row. */
void cpu_store(const struct cpu_vec *vec, const struct hr_operand *operand, uint8_t *row,
               int64_t first, int64_t n, const float *values);

/* The chunks of a result; `is_flat` takes all its elements as one row. */
struct cpu_walk {
        const struct hr_operand *result;
        int64_t row_elements, chunks_per_row, chunk, end;
};

struct cpu_piece {
        struct cpu_index index; /* of the row; zeros when flat */
        int64_t first, n;       /* elements of the row */
};

/* This thread's chunks. */
struct cpu_walk cpu_walk_start(const struct cpu_call *call, bool is_flat);
bool cpu_walk_next(struct cpu_walk *walk, struct cpu_piece *ret_piece);

/* Threads worth waking for the result's elements, each of which costs about `ns_times_16` / 16
 * ns. */
uint32_t cpu_threads_for(int64_t elements, uint32_t ns_times_16);
