/*
 * What kernels are given: one struct each, by value. Shared by the host (C) and the kernels (CUDA
 * C++, and C++ on the processor), so plain types only; device addresses are 64-bit numbers here.
 */
#pragma once

#include <stdalign.h>
#include <stdint.h>

/* Threads of a block, for all kernels. */
#define CUDA_THREADS 256
/* Elements of a row that one block of an element-wise kernel takes at a time. */
#define CUDA_CHUNK 1024

/* Elements of a row that can be sorted, and of one whose keys lie in shared memory. */
#define CUDA_SORT_MAX 16384
#define CUDA_SORT_NEAR 1024

struct cuda_tensor {
        uint64_t data;
        int64_t ne[4], nb[4];
        uint32_t type;
        uint32_t is_present;
};

/* UNARY and the other functions of one element. `op` is the graph's; `function` of UNARY. */
struct cuda_map_args {
        struct cuda_tensor out, in;
        uint32_t op;
        int32_t function;
        float p[4];
};

/* ADD SUB MUL DIV ADD1: b repeats over a. */
struct cuda_binary_args {
        struct cuda_tensor out, a, b;
        uint32_t op;
};

/* Nodes of a chain, without the one that leads it. */
#define CUDA_CHAIN_MAX 5

/* One of them: a function of the value so far, or of it and `other`, which repeats. Its result is
 * rounded to `type`. */
struct cuda_link {
        struct cuda_tensor other;
        uint32_t op, type;
        int32_t function;
        uint32_t other_first; /* other op value, not value op other */
        float p[4];
};

/* `op` leads: NORM, RMS_NORM or L2_NORM of rows; anything else for none. */
struct cuda_chain_args {
        struct cuda_tensor out, in;
        struct cuda_link links[CUDA_CHAIN_MAX];
        uint32_t count, op;
        float eps, unused;
};

/* gate may be a's other half: then both firsts say where in the row. */
struct cuda_glu_args {
        struct cuda_tensor out, a, gate;
        int64_t a_first, gate_first;
        int32_t function;
        float alpha, limit;
};

/* Logical element i of in to logical element i of out; types may differ. */
struct cuda_copy_args {
        struct cuda_tensor out, in;
        int64_t units; /* of `unit` elements, which go together */
        uint32_t unit;
};

/* A bad index writes `step` + 1 into `fault` and its row is left out. */
struct cuda_rows_args {
        struct cuda_tensor out, in, ids;
        uint64_t fault;
        uint64_t step;
};

/* Rows to blocks: with ids as SET_ROWS, without in logical order. An addend repeats over them. */
struct cuda_encode_args {
        struct cuda_rows_args rows;
        struct cuda_tensor addend;
};

struct cuda_add_id_args {
        struct cuda_tensor out, a, b, ids;
        uint64_t fault;
        uint64_t step;
};

struct cuda_sort_args {
        struct cuda_tensor out, in;
        uint64_t is_descending;
};

/* Also of SUM_ROWS and MEAN. */
struct cuda_norm_args {
        struct cuda_tensor out, in;
        uint32_t op;
        float eps;
};

/* Groups of channels (dimension 2), the last perhaps shorter. */
struct cuda_group_norm_args {
        struct cuda_tensor out, in;
        int64_t groups;
        float eps, unused;
};

/* Elements made from where they lie; `other` is OUT_PROD's, both others ADD_REL_POS's. */
struct cuda_shape_args {
        struct cuda_tensor out, in, other, third;
        int32_t params[16];
        uint32_t op;
        float start, step;
        uint32_t unused;
};

struct cuda_soft_max_args {
        struct cuda_tensor out, in, mask, sinks;
        float scale, max_bias;
        float slope_base, slope_half;
        int64_t slope_power; /* the largest power of two up to the number of heads */
};

struct cuda_rope_args {
        struct cuda_tensor out, in, positions, factors;
        int64_t dims, pairs, offset;
        int64_t sections[4];
        int32_t mode;
        float freq_scale, ext_factor, magnitude, theta_scale, ramp_low, ramp_high, direction;
};

/* Columns that a kernel for few columns takes at once, and for many. */
#define CUDA_STREAM_COLUMNS 8
#define CUDA_TILE_COLUMNS 64
/* Rows of the kernels for many columns. */
#define CUDA_TILE_ROWS 128
#define CUDA_FLOAT_ROWS 64

/* X(type): those that have a kernel for few columns of their own. */
#define CUDA_STREAM_TYPES(X)                                                                       \
        X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) \
        X(Q6_K) X(IQ4_XS)

/* Of 32 elements of a column as bytes: value = scale * byte; the sums of the halves' bytes. */
struct cuda_activation {
        alignas(8) float scale; /* all of it is loaded at once */
        int16_t sum[2];
};

/* Elements whose bytes lie together: 32 units of 32, and 64. Columns are filled up to such. */
#define CUDA_ROUNDED 1024
#define CUDA_ROUNDED_LARGE 2048

/* Rows of floats to bytes: as q8_0, or with one scale for 256, as q8_K. `bytes` has ne[0] bytes a
 * row, in whole groups, `scales` a cuda_activation for each 32 elements, a unit.
 *
 * A warp that takes a unit each lane loads bytes one behind the other: of 32 units there lie the
 * first sixteen bytes of each together, and then the second. As q8_K a lane takes two neighbouring
 * units: of 64 there lie the first and the second sixteen of those that are even, then of those
 * that are odd; of the latter each two change places, so that a lane that takes units 0 and 2 of
 * four, or 1 and 3, meets no other in a bank. */
struct cuda_round_args {
        struct cuda_tensor in;
        uint64_t bytes, scales;
        uint64_t is_large;
};

/* Rows of floats to rows of f16 or bf16. */
struct cuda_narrow_args {
        struct cuda_tensor in;
        uint64_t halves;
        uint64_t type;
};

/* Rows first .. first + rows - 1 of a matrix of blocks to rows of bf16 without gaps. */
struct cuda_expand_args {
        struct cuda_tensor in;
        uint64_t halves;
        int64_t first, rows;
};

/* Columns of one expert, in `list`. */
struct cuda_group {
        int32_t expert, first, count, unused;
};

/* out[m, n] = a[k, m] b[k, n] for each (i2, i3) of b. With ids (MUL_MAT_ID): column n of token t
 * goes through expert ids[n, t]. */
struct cuda_product_args {
        struct cuda_tensor out, a, b, ids;
        uint64_t fault;
        uint64_t step;
        uint64_t bytes, scales; /* b as round_columns gives it; 0 where b is read itself */
        uint64_t group, list;   /* `groups` cuda_group and the columns that they name */
        int64_t groups;
};

/* Writes groups of at most CUDA_TILE_COLUMNS columns; those that are left over have no columns. */
struct cuda_group_args {
        struct cuda_tensor ids;
        uint64_t fault;
        uint64_t step;
        uint64_t group, list, counts; /* counts: an int32 for each expert */
        int64_t groups, experts;
};

/* A window on a volume of three axes, with channels and a batch; what lies between elements in
 * bytes. */
struct cuda_window_args {
        struct cuda_tensor out, filters, in;
        int64_t extent[3], places[3], kernel[3], stride[3], pad[3], dilation[3], nb[3];
        int64_t channels, channel_nb, batch, batch_nb;
        int64_t count; /* filters, or channels of a transposed result */
        int64_t tap_nb, out_nb, in_nb; /* of transposed filters: rows, and both kinds of channels */
        uint64_t is_deep; /* filters have three axes, and channels times filters */
};

/* What each source is, the kernels say. */
struct cuda_recurrent_args {
        struct cuda_tensor out, sources[7];
        uint64_t fault;
        uint64_t step;
        int64_t snapshots;
        uint32_t op;
        float scale;
};

/* SOLVE_TRI, LIGHTNING_INDEXER, DSV4_HC_*: the last two of COMB. */
struct cuda_mixing_args {
        struct cuda_tensor out, sources[4];
        int64_t iterations;
        float epsilon, unused;
};

/* Elements of keys and values, and rows of a tile, that the matrix units take. */
#define CUDA_ATTENTION_SIZE 128
#define CUDA_ATTENTION_ROWS 128

struct cuda_attention_args {
        struct cuda_tensor out, q, k, v, mask, sinks;
        uint64_t parts; /* of the splits: for each and each query of each head v.ne[0] + 2 floats */
        int64_t splits;
        float scale, max_bias, cap;
        float slope_base, slope_half;
        int64_t slope_power;
};
