/*
 * Products with many columns. A block makes CUDA_TILE_ROWS x CUDA_TILE_COLUMNS results, K_BYTES of
 * each row and column at a time in shared memory; eight warps share the results out, 32 x 32 each,
 * and multiply on the matrix units. Which columns a tile has, products.cuh tells: MUL_MAT_ID's are
 * gathered by expert.
 *
 * There are two stages of shared memory: while the warps multiply what lies in one, the next bytes
 * are on their way into the other, what needs no change by copies that nobody waits for. A warp
 * that has brought its part multiplies at once; all meet once a stage.
 *
 * Blocks: weights as signed bytes with the scales of units, columns as round_columns makes them,
 * sums of 32 (or 16, for types whose scales change there) in integers. F16 and BF16: columns are
 * rounded to the weights' type. F32 has no such unit that keeps its digits: plain_tile adds up
 * products of f32.
 */
#include "backends/cuda/kernels/products.cuh"

#define K_BYTES 64
#define STRIDE 20 /* words: four more than the bytes need keep rows out of each other's banks */
#define ROWS CUDA_TILE_ROWS
#define COLUMNS CUDA_TILE_COLUMNS

/* ---- Who makes what -------------------------------------------------------------------------- */

struct warp_place {
        int row, column; /* of the warp's results in the tile */
        int line, pair;  /* of the lane: row l / 4, columns 2 (l % 4) and the next */
        bool is_idle;    /* the tile ends before */
};

DEVICE warp_place place_of_warp(int64_t rows_left, int columns) {
        int warp = (int) (threadIdx.x / WARP), lane = (int) (threadIdx.x % WARP);
        warp_place place;

        place.row = warp / 2 * 32;
        place.column = warp % 2 * 32;
        place.line = lane / 4;
        place.pair = lane % 4;
        place.is_idle = place.row >= rows_left || place.column >= columns;
        return place;
}

/* sums[i][j]: rows 16 i of the warp's, columns 8 j, as the matrix unit spreads them. */
typedef float tile_sums[2][4][4];

DEVICE void write_sums(const cuda_product_args &args, const tile_columns &tile, int64_t row,
                       warp_place place, const tile_sums &sums) {
        for (int j = 0; j < 4; j++)
                for (int c = 0; c < 2; c++) {
                        int column = place.column + 8 * j + 2 * place.pair + c;
                        float *to;

                        if (column >= tile.count)
                                continue;
                        to = result_column(args, tile_column(tile, column));
                        for (int i = 0; i < 2; i++)
                                for (int r = 0; r < 2; r++) {
                                        int64_t at = row + place.row + 16 * i + 8 * r + place.line;

                                        if (at < args.out.ne[0])
                                                to[at] = sums[i][j][2 * r + c];
                                }
                }
}

/* Fragments of the warp's rows and columns: words `at` of each row. */
DEVICE void load_rows(const uint32_t (*from)[STRIDE], warp_place place, int i, int at,
                      uint32_t *ret) {
        const uint32_t *first = from[place.row + 16 * i + place.line] + at + place.pair;
        const uint32_t *second = first + 8 * STRIDE;

        ret[0] = first[0];
        ret[1] = second[0];
        ret[2] = first[4];
        ret[3] = second[4];
}

DEVICE void load_columns(const uint32_t (*from)[STRIDE], warp_place place, int j, int at,
                         uint32_t *ret) {
        const uint32_t *words = from[place.column + 8 * j + place.line] + at + place.pair;

        ret[0] = words[0];
        ret[1] = words[4];
}

/* Eight words of a stage, of a row that begins at sixteen bytes. */
DEVICE void copy32(uint32_t *to, const byte *from) {
        copy_begin((piece *) to, from);
        copy_begin((piece *) to + 1, from + 16);
}

DEVICE void clear32(uint32_t *to) {
        for (int j = 0; j < 8; j++)
                to[j] = 0;
}

/* One tile. WAY has a stage, brings a step's part of it, and multiplies fragments of it. */
template <typename WAY>
DEVICE void tile_make(const cuda_product_args &args, const tile_columns &tile, int64_t row,
                      int64_t steps, typename WAY::stage *stages) {
        warp_place place = place_of_warp(args.out.ne[0] - row, tile.count);
        const WAY way(args, tile, row);
        tile_sums sums = {};

        way.bring(args, tile, 0, &stages[0]);
        copy_group();
        for (int64_t step = 0; step < steps; step++) {
                const typename WAY::stage &stage = stages[step % 2];

                copy_wait<0>();
                __syncthreads(); /* the step is here, and nobody needs the one before it */
                if (step + 1 < steps)
                        way.bring(args, tile, step + 1, &stages[(step + 1) % 2]);
                copy_group();
                for (int n = 0; n < 2 && !place.is_idle; n++) {
                        uint32_t a[2][4], b[2];

                        for (int i = 0; i < 2; i++)
                                load_rows(stage.a, place, i, 8 * n, a[i]);
                        for (int j = 0; j < 4; j++) {
                                load_columns(stage.b, place, j, 8 * n, b);
                                for (int i = 0; i < 2; i++)
                                        way.multiply(stage, place, n, i, j, a[i], b, sums[i][j]);
                        }
                }
        }
        __syncthreads();
        if (!place.is_idle)
                write_sums(args, tile, row, place, sums);
}

/* All tiles of a block; a step takes `elements`. */
template <typename WAY>
DEVICE void tiles(const cuda_product_args &args, int64_t elements, typename WAY::stage *stages) {
        int64_t row_tiles = (args.out.ne[0] + ROWS - 1) / ROWS;
        int64_t steps = (args.a.ne[0] + elements - 1) / elements;

        for (int64_t i = blockIdx.x; i < row_tiles * column_tiles(args); i += gridDim.x) {
                int64_t t = quotient(i, row_tiles);
                tile_columns tile;

                if (tile_find(args, t, &tile))
                        tile_make<WAY>(args, tile, (i - t * row_tiles) * ROWS, steps, stages);
        }
}

/* ---- Blocks ---------------------------------------------------------------------------------- */

struct alignas(16) block_stage {
        uint32_t a[ROWS][STRIDE], b[COLUMNS][STRIDE];
        float scale[2][ROWS][2], offset[2][ROWS][2]; /* by unit, row, half */
        struct cuda_activation with[2][COLUMNS];
};

/* Unit `threadIdx.x % 2` of the two of each row; zeros beyond the ends. */
DEVICE void stage_weights(const cuda_product_args &args, const tile_columns &tile, int64_t row,
                          int64_t first_unit, block_stage *to) {
        int r = (int) (threadIdx.x / 2), n = (int) (threadIdx.x % 2);
        unit u = {};

        if (row + r < args.a.ne[1] && 32 * (first_unit + n) < args.a.ne[0])
                unpack_inline(args.a.type, tile.a + (row + r) * args.a.nb[1], first_unit + n, &u);
        for (int j = 0; j < 8; j++)
                to->a[r][8 * n + j] = u.q[j];
        for (int h = 0; h < 2; h++) {
                to->scale[n][r][h] = u.scale[h];
                to->offset[n][r][h] = u.offset[h];
        }
}

DEVICE void stage_bytes(const cuda_product_args &args, const tile_columns &tile, int64_t first_unit,
                        block_stage *to) {
        int c = (int) (threadIdx.x / 2), n = (int) (threadIdx.x % 2);
        struct cuda_activation with = { 0, { 0, 0 } };
        bool is_large = block_size(args.a.type) == 256;

        if (c >= COLUMNS)
                return;
        if (c < tile.count && 32 * (first_unit + n) < args.a.ne[0]) {
                int64_t k = args.a.ne[0], at = column_of_b(args, tile_column(tile, c));
                const byte *column = (const byte *) (uintptr_t) args.bytes +
                                     at * column_bytes(is_large, k);

                for (int h = 0; h < 2; h++)
                        copy_begin((piece *) &to->b[c][8 * n] + h,
                                   column + 16 * piece_of_unit(is_large, first_unit + n, h));
                with = ((const struct cuda_activation *) (uintptr_t)
                                args.scales)[at * (k / 32) + first_unit + n];
        } else {
                clear32(&to->b[c][8 * n]);
        }
        to->with[n][c] = with;
}

/* The products of a unit for 16 rows and 8 columns, with their scales. */
template <bool BY_HALVES>
DEVICE void multiply_stage(const block_stage &stage, warp_place place, int n, int i, int j,
                           const uint32_t *a, const uint32_t *b, float *sums) {
        int dots[2][4] = {};

        if (BY_HALVES) {
                multiply_bytes16(dots[0], a, b[0]);
                multiply_bytes16(dots[1], a + 2, b[1]);
        } else {
                multiply_bytes32(dots[0], a, b);
        }
        for (int c = 0; c < 4; c++) {
                int row = place.row + 16 * i + place.line + 8 * (c / 2);
                const float *scale = stage.scale[n][row], *offset = stage.offset[n][row];
                struct cuda_activation with =
                        stage.with[n][place.column + 8 * j + 2 * place.pair + c % 2];
                float sum;

                if (BY_HALVES)
                        sum = scale[0] * (float) dots[0][c] + scale[1] * (float) dots[1][c] +
                              offset[0] * (float) with.sum[0] + offset[1] * (float) with.sum[1];
                else
                        sum = scale[0] * (float) dots[0][c] +
                              offset[0] * (float) (with.sum[0] + with.sum[1]);
                sums[c] += sum * with.scale;
        }
}

template <bool BY_HALVES> struct block_way {
        typedef block_stage stage;
        int64_t row;

        METHOD block_way(const cuda_product_args &, const tile_columns &, int64_t row_)
            : row(row_) {}

        METHOD void bring(const cuda_product_args &args, const tile_columns &tile, int64_t step,
                          stage *to) const {
                stage_bytes(args, tile, 2 * step, to);
                stage_weights(args, tile, row, 2 * step, to);
        }

        METHOD void multiply(const stage &from, warp_place place, int n, int i, int j,
                             const uint32_t *a, const uint32_t *b, float *sums) const {
                multiply_stage<BY_HALVES>(from, place, n, i, j, a, b, sums);
        }
};

/* One scale for 32 elements. */
KERNEL(block_tiles_whole, struct cuda_product_args) {
        SHARED block_stage stages[2];

        tiles<block_way<false>>(args, K_BYTES, stages);
}

/* One for 16. */
KERNEL(block_tiles_halves, struct cuda_product_args) {
        SHARED block_stage stages[2];

        tiles<block_way<true>>(args, K_BYTES, stages);
}

/* ---- F16 and BF16 ---------------------------------------------------------------------------- */

struct alignas(16) half_stage {
        uint32_t a[ROWS][STRIDE], b[COLUMNS][STRIDE];
};

/* Sixteen halves of a row, from element k on; zeros beyond its end. */
DEVICE void stage_halves(const byte *row, int64_t k, int64_t end, uint32_t *to) {
        const uint16_t *from = (const uint16_t *) row + k;

        if (k + 16 <= end && (uintptr_t) from % 16 == 0) {
                copy32(to, (const byte *) from);
                return;
        }
        for (int j = 0; j < 8; j++) {
                uint32_t low = k + 2 * j < end ? from[2 * j] : 0;
                uint32_t high = k + 2 * j + 1 < end ? from[2 * j + 1] : 0;

                to[j] = low | high << 16;
        }
}

template <bool IS_BF16> DEVICE uint32_t narrow(float value) {
        return IS_BF16 ? float_to_bf16(value) : float_to_half(value);
}

/* The same of a row of f32. */
template <bool IS_BF16>
DEVICE void stage_floats(const byte *row, int64_t k, int64_t end, uint32_t *to) {
        const float *from = (const float *) row + k;
        float x[16];

        if (k + 16 <= end && (uintptr_t) from % 16 == 0) {
                for (int i = 0; i < 16; i++) {
                        piece p = ((const piece *) from)[i / 4];

                        x[i] = bits_float(p.word[i % 4]);
                }
        } else {
                for (int i = 0; i < 16; i++)
                        x[i] = k + i < end ? from[i] : 0.0f;
        }
        for (int j = 0; j < 8; j++)
                to[j] = narrow<IS_BF16>(x[2 * j]) | narrow<IS_BF16>(x[2 * j + 1]) << 16;
}

template <bool IS_BF16> struct half_way {
        typedef half_stage stage;
        const byte *own, *column; /* of this thread; NULL beyond the ends */

        METHOD half_way(const cuda_product_args &args, const tile_columns &tile, int64_t row)
            : own(NULL), column(NULL) {
                int r = (int) (threadIdx.x / 2);

                if (row + r < args.a.ne[1])
                        own = tile.a + (row + r) * args.a.nb[1];
                if (r < tile.count)
                        column = column_at(args, tile, r);
        }

        METHOD void bring(const cuda_product_args &args, const tile_columns &, int64_t step,
                          stage *to) const {
                int r = (int) (threadIdx.x / 2), h = (int) (threadIdx.x % 2);
                int64_t k = step * (K_BYTES / 2) + 16 * h, end = args.a.ne[0];

                stage_halves(own, k, own ? end : 0, to->a[r] + 8 * h);
                if (r >= COLUMNS)
                        return;
                if (args.b.type == HR_TYPE_F32)
                        stage_floats<IS_BF16>(column, k, column ? end : 0, to->b[r] + 8 * h);
                else
                        stage_halves(column, k, column ? end : 0, to->b[r] + 8 * h);
        }

        METHOD void multiply(const stage &, warp_place, int, int, int, const uint32_t *a,
                             const uint32_t *b, float *sums) const {
                if (IS_BF16)
                        multiply_bf16(sums, a, b);
                else
                        multiply_f16(sums, a, b);
        }
};

KERNEL(half_tiles_f16, struct cuda_product_args) {
        SHARED half_stage stages[2];

        tiles<half_way<false>>(args, K_BYTES / 2, stages);
}

KERNEL(half_tiles_bf16, struct cuda_product_args) {
        SHARED half_stage stages[2];

        tiles<half_way<true>>(args, K_BYTES / 2, stages);
}

/* ---- Other floats: 4 x 4 results a thread ---------------------------------------------------- */

#define PLAIN_ROWS CUDA_FLOAT_ROWS
#define PLAIN_STEP 32

/* [element][row]: a row more than is used keeps threads out of each other's banks. */
typedef float plain_stage[PLAIN_STEP][PLAIN_ROWS + 1];

/* Eight elements of a row or column from k on. */
DEVICE void stage_plain(const byte *row, uint32_t type, int64_t k, int64_t end, int place, int at,
                        plain_stage &to) {
        int bytes = type == HR_TYPE_F32 ? 4 : 2;

        for (int j = 0; j < 8; j++)
                to[at + j][place] =
                        row && k + j < end ? load_float(row + (k + j) * bytes, type) : 0.0f;
}

DEVICE void plain_tile(const cuda_product_args &args, const tile_columns &tile, int64_t row,
                       plain_stage &a, plain_stage &b) {
        int x = (int) (threadIdx.x % 16) * 4, y = (int) (threadIdx.x / 16) * 4;
        int r = (int) (threadIdx.x / 4), at = (int) (threadIdx.x % 4) * 8;
        const byte *own = row + r < args.a.ne[1] ? tile.a + (row + r) * args.a.nb[1] : NULL;
        const byte *column = NULL;
        float sums[4][4] = {};

        if (r < tile.count)
                column = column_at(args, tile, r);
        for (int64_t k = 0; k < args.a.ne[0]; k += PLAIN_STEP) {
                stage_plain(own, args.a.type, k + at, args.a.ne[0], r, at, a);
                stage_plain(column, args.b.type, k + at, args.a.ne[0], r, at, b);
                __syncthreads();
                for (int j = 0; j < PLAIN_STEP; j++)
                        for (int c = 0; c < 4; c++)
                                for (int i = 0; i < 4; i++)
                                        sums[c][i] += a[j][x + i] * b[j][y + c];
                __syncthreads();
        }
        for (int c = 0; c < 4 && y + c < tile.count; c++) {
                float *to = result_column(args, tile_column(tile, y + c));

                for (int i = 0; i < 4; i++)
                        if (row + x + i < args.out.ne[0])
                                to[row + x + i] = sums[c][i];
        }
}

KERNEL(plain_tiles, struct cuda_product_args) {
        SHARED plain_stage a, b;
        int64_t row_tiles = (args.out.ne[0] + PLAIN_ROWS - 1) / PLAIN_ROWS;

        for (int64_t i = blockIdx.x; i < row_tiles * column_tiles(args); i += gridDim.x) {
                int64_t t = quotient(i, row_tiles);
                tile_columns tile;

                if (tile_find(args, t, &tile))
                        plain_tile(args, tile, (i - t * row_tiles) * PLAIN_ROWS, a, b);
        }
}

/* ---- Experts --------------------------------------------------------------------------------- */

DEVICE int32_t expert_of(const cuda_group_args &args, int64_t i) {
        int64_t token = quotient(i, args.ids.ne[0]);

        return *(const int32_t *) (row_of(args.ids, token, 0, 0) +
                                   (i - token * args.ids.ne[0]) * args.ids.nb[0]);
}

/* Thread 0: where each expert's columns begin, and the groups. */
DEVICE void groups_write(const cuda_group_args &args, int32_t *counts) {
        struct cuda_group *group = (struct cuda_group *) (uintptr_t) args.group;
        int32_t first = 0;
        int64_t used = 0;

        for (int64_t e = 0; e < args.experts; e++) {
                int32_t count = counts[e];

                for (int32_t i = 0; i < count; i += TILE_COLUMNS) {
                        group[used].expert = (int32_t) e;
                        group[used].first = first + i;
                        group[used++].count = count - i < TILE_COLUMNS ? count - i : TILE_COLUMNS;
                }
                counts[e] = first;
                first += count;
        }
        for (; used < args.groups; used++)
                group[used].count = 0;
}

/* One block. Columns of bad ids are left out. */
KERNEL(group_experts, struct cuda_group_args) {
        int32_t *counts = (int32_t *) (uintptr_t) args.counts;
        int32_t *list = (int32_t *) (uintptr_t) args.list;
        int64_t pairs = args.ids.ne[0] * args.ids.ne[1];

        for (int64_t e = threadIdx.x; e < args.experts; e += CUDA_THREADS)
                counts[e] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < pairs; i += CUDA_THREADS) {
                int32_t id = expert_of(args, i);

                if (id >= 0 && id < args.experts)
                        (void) add_atomic(&counts[id], 1);
                else
                        fault_at(args.fault, args.step);
        }
        __syncthreads();
        if (threadIdx.x == 0)
                groups_write(args, counts);
        __syncthreads();
        for (int64_t i = threadIdx.x; i < pairs; i += CUDA_THREADS) {
                int32_t id = expert_of(args, i);

                if (id >= 0 && id < args.experts)
                        list[add_atomic(&counts[id], 1)] = (int32_t) i;
        }
}
