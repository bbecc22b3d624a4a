/*
 * Matrix products: out[m, n] = a[k, m] b[k, n], the weights a in floats or blocks, all sums in
 * f32.
 *
 * product_vector is for few columns: a warp takes a row of a and up to VECTOR_COLUMNS columns, so
 * that each weight is read once. It also serves MUL_MAT_ID, column by column, where the ids say
 * which matrix a column goes through. product_tile is for many: a block makes TILE x TILE results
 * from pieces of a and b in shared memory, each thread 4 x 4 of them.
 */
#include "backends/cuda/kernels/common.cuh"

#define VECTOR_COLUMNS 8
#define VECTOR_STEP (8 * WARP) /* elements of k that a warp takes at a time */
#define TILE 64
#define TILE_STEP 32
#define TILE_ROW (TILE + 1) /* keeps threads out of each other's banks */

template <uint32_t TYPE> DEVICE float weight(const byte *row, int64_t i) {
        return row_element(row, TYPE, i);
}

/* Element j of the 8 that a lane takes from `base` on: neighbours for blocks, whose scale they
 * share; a warp apart for floats, so that a warp reads whole lines. */
template <uint32_t TYPE> DEVICE int64_t lane_element(int64_t base, int j) {
        int lane = (int) (threadIdx.x % WARP);

        return block_size(TYPE) > 1 ? base + 8 * lane + j : base + WARP * j + lane;
}

struct vector_item {
        const byte *a;              /* row of weights */
        const byte *b;              /* first column */
        byte *out;                  /* its result */
        int columns;
};

template <uint32_t TYPE> DEVICE void vector_row(const cuda_product_args &args, vector_item item) {
        float sums[VECTOR_COLUMNS] = {};
        int b_bytes = args.b.type == HR_TYPE_F32 ? 4 : 2;

        for (int64_t base = 0; base < args.a.ne[0]; base += VECTOR_STEP) {
                float w[8];

                for (int j = 0; j < 8; j++) {
                        int64_t i = lane_element<TYPE>(base, j);

                        w[j] = i < args.a.ne[0] ? weight<TYPE>(item.a, i) : 0.0f;
                }
                for (int c = 0; c < VECTOR_COLUMNS; c++)
                        for (int j = 0; j < 8 && c < item.columns; j++) {
                                int64_t i = lane_element<TYPE>(base, j);

                                if (i < args.a.ne[0])
                                        sums[c] += w[j] * load_float(item.b + c * args.b.nb[1] +
                                                                             i * b_bytes,
                                                                     args.b.type);
                        }
        }
        for (int c = 0; c < VECTOR_COLUMNS; c++) {
                float sum = warp_sum(sums[c]);

                if (threadIdx.x % WARP == 0 && c < item.columns)
                        *(float *) (item.out + c * args.out.nb[1]) = sum;
        }
}

/* Column `column` of plane (i2, i3). False: nothing to compute. */
DEVICE bool vector_find(const cuda_product_args &args, int64_t row, int64_t column, int64_t i2,
                        int64_t i3, vector_item *ret_item) {
        if (args.ids.is_present) {
                int32_t id = *(const int32_t *) (row_of(args.ids, i2, 0, 0) +
                                                 column * args.ids.nb[0]);

                if (id < 0 || id >= args.a.ne[2]) {
                        fault_at(args.fault, args.step);
                        return false;
                }
                ret_item->a = row_of(args.a, row, id, 0);
                ret_item->b = row_of(args.b, column % args.b.ne[1], i2, 0);
                ret_item->columns = 1;
        } else {
                ret_item->a = row_of(args.a, row, i2 / (args.b.ne[2] / args.a.ne[2]),
                                     i3 / (args.b.ne[3] / args.a.ne[3]));
                ret_item->b = row_of(args.b, column, i2, i3);
                ret_item->columns = (int) (args.out.ne[1] - column < VECTOR_COLUMNS
                                                   ? args.out.ne[1] - column
                                                   : VECTOR_COLUMNS);
        }
        ret_item->out = row_of(args.out, column, i2, i3) + 4 * row;
        return true;
}

DEVICE void vector_dispatch(const cuda_product_args &args, vector_item item) {
        switch (args.a.type) {
        case HR_TYPE_F32: vector_row<HR_TYPE_F32>(args, item); break;
        case HR_TYPE_F16: vector_row<HR_TYPE_F16>(args, item); break;
        case HR_TYPE_BF16: vector_row<HR_TYPE_BF16>(args, item); break;
        case HR_TYPE_Q4_0: vector_row<HR_TYPE_Q4_0>(args, item); break;
        case HR_TYPE_Q4_1: vector_row<HR_TYPE_Q4_1>(args, item); break;
        case HR_TYPE_Q5_0: vector_row<HR_TYPE_Q5_0>(args, item); break;
        case HR_TYPE_Q5_1: vector_row<HR_TYPE_Q5_1>(args, item); break;
        case HR_TYPE_Q4_K: vector_row<HR_TYPE_Q4_K>(args, item); break;
        case HR_TYPE_Q5_K: vector_row<HR_TYPE_Q5_K>(args, item); break;
        case HR_TYPE_Q6_K: vector_row<HR_TYPE_Q6_K>(args, item); break;
        default: vector_row<HR_TYPE_Q8_0>(args, item); break;
        }
}

KERNEL(product_vector, struct cuda_product_args) {
        int64_t group = args.ids.is_present ? 1 : VECTOR_COLUMNS;
        int64_t row_groups = (args.out.ne[0] + WARPS - 1) / WARPS;
        int64_t column_groups = (args.out.ne[1] + group - 1) / group;
        int64_t items = row_groups * column_groups * args.out.ne[2] * args.out.ne[3];

        for (int64_t i = blockIdx.x; i < items; i += gridDim.x) {
                int64_t row = i % row_groups * WARPS + threadIdx.x / WARP;
                int64_t column = i / row_groups % column_groups * group;
                int64_t plane = i / row_groups / column_groups;
                vector_item item;

                if (row < args.out.ne[0] &&
                    vector_find(args, row, column, plane % args.out.ne[2], plane / args.out.ne[2],
                                &item))
                        vector_dispatch(args, item);
        }
}

/* ---- Tiles ----------------------------------------------------------------------------------- */

typedef float tile_piece[TILE_ROW];

/* TILE rows of TILE_STEP elements, turned so that rows lie next to each other; zeros beyond the
 * ends. */
template <uint32_t TYPE>
DEVICE void tile_load(const cuda_tensor &t, int64_t i2, int64_t i3, int64_t first, int64_t from,
                      tile_piece *to) {
        int row = (int) (threadIdx.x / 4), k = (int) (threadIdx.x % 4) * 8;
        const byte *at = row_of(t, first + row, i2, i3);

        for (int j = 0; j < 8; j++, k++)
                to[k][row] = first + row < t.ne[1] && from + k < t.ne[0]
                                     ? weight<TYPE>(at, from + k)
                                     : 0.0f;
}

/* Weights. */
DEVICE void tile_weights(const cuda_tensor &t, int64_t i2, int64_t i3, int64_t first, int64_t from,
                         tile_piece *to) {
        switch (t.type) {
        case HR_TYPE_F32: tile_load<HR_TYPE_F32>(t, i2, i3, first, from, to); break;
        case HR_TYPE_F16: tile_load<HR_TYPE_F16>(t, i2, i3, first, from, to); break;
        case HR_TYPE_BF16: tile_load<HR_TYPE_BF16>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q4_0: tile_load<HR_TYPE_Q4_0>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q4_1: tile_load<HR_TYPE_Q4_1>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q5_0: tile_load<HR_TYPE_Q5_0>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q5_1: tile_load<HR_TYPE_Q5_1>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q4_K: tile_load<HR_TYPE_Q4_K>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q5_K: tile_load<HR_TYPE_Q5_K>(t, i2, i3, first, from, to); break;
        case HR_TYPE_Q6_K: tile_load<HR_TYPE_Q6_K>(t, i2, i3, first, from, to); break;
        default: tile_load<HR_TYPE_Q8_0>(t, i2, i3, first, from, to); break;
        }
}

/* Columns are floats. */
DEVICE void tile_columns(const cuda_tensor &t, int64_t i2, int64_t i3, int64_t first, int64_t from,
                         tile_piece *to) {
        switch (t.type) {
        case HR_TYPE_F32: tile_load<HR_TYPE_F32>(t, i2, i3, first, from, to); break;
        case HR_TYPE_F16: tile_load<HR_TYPE_F16>(t, i2, i3, first, from, to); break;
        default: tile_load<HR_TYPE_BF16>(t, i2, i3, first, from, to); break;
        }
}

KERNEL(product_tile, struct cuda_product_args) {
        SHARED tile_piece a[TILE_STEP], b[TILE_STEP];
        int64_t row_tiles = (args.out.ne[0] + TILE - 1) / TILE;
        int64_t column_tiles = (args.out.ne[1] + TILE - 1) / TILE;
        int64_t tiles = row_tiles * column_tiles * args.out.ne[2] * args.out.ne[3];
        int x = (int) (threadIdx.x % 16) * 4, y = (int) (threadIdx.x / 16) * 4;

        for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                int64_t row = tile % row_tiles * TILE, column = tile / row_tiles % column_tiles * TILE;
                int64_t plane = tile / row_tiles / column_tiles;
                int64_t i2 = plane % args.out.ne[2], i3 = plane / args.out.ne[2];
                float sums[4][4] = {};

                for (int64_t k = 0; k < args.a.ne[0]; k += TILE_STEP) {
                        tile_weights(args.a, i2 / (args.b.ne[2] / args.a.ne[2]),
                                     i3 / (args.b.ne[3] / args.a.ne[3]), row, k, a);
                        tile_columns(args.b, i2, i3, column, k, b);
                        __syncthreads();
                        for (int j = 0; j < TILE_STEP; j++)
                                for (int c = 0; c < 4; c++)
                                        for (int r = 0; r < 4; r++)
                                                sums[c][r] += a[j][x + r] * b[j][y + c];
                        __syncthreads();
                }
                for (int c = 0; c < 4; c++)
                        for (int r = 0; r < 4; r++)
                                if (row + x + r < args.out.ne[0] && column + y + c < args.out.ne[1])
                                        *(float *) (row_of(args.out, column + y + c, i2, i3) +
                                                    4 * (row + x + r)) = sums[c][r];
        }
}
