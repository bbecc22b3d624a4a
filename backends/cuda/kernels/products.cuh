/*
 * Which columns a block of a product takes. Columns of the result are numbered through: with
 * MUL_MAT_ID, column u of token t is u + t * out.ne[1], and the experts' columns lie together in a
 * list that group_experts makes.
 */
#pragma once

#include "backends/cuda/kernels/blocks.cuh"
#include "backends/cuda/kernels/warp.cuh"

#define TILE_COLUMNS CUDA_TILE_COLUMNS

/* Some columns that go through the same matrix. */
struct tile_columns {
        const byte *a;        /* row 0 of the matrix */
        const int32_t *list;  /* NULL: columns first, first + 1 ... */
        int64_t first;
        int count;
};

DEVICE int64_t tile_column(const tile_columns &tile, int i) {
        return tile.list ? tile.list[i] : tile.first + i;
}

/* The column of b that column `column` of the result is made of, numbered through as well. */
DEVICE int64_t column_of_b(const cuda_product_args &args, int64_t column) {
        int64_t token;

        if (!args.ids.is_present || args.b.ne[1] == args.out.ne[1])
                return column;
        token = quotient(column, args.out.ne[1]);
        return remainder(column - token * args.out.ne[1], args.b.ne[1]) + token * args.b.ne[1];
}

/* Bytes of a column that round_columns makes: whole groups of units. */
DEVICE int64_t column_bytes(bool is_large, int64_t k) {
        int64_t group = is_large ? CUDA_ROUNDED_LARGE : CUDA_ROUNDED;

        return (k + group - 1) / group * group;
}

/* Where sixteen of them lie: half h of unit u. */
DEVICE int64_t piece_of_unit(bool is_large, int64_t u, int h) {
        int shift = is_large ? 1 : 0, v = (int) (u & ((WARP << shift) - 1)), which = v & shift;

        return 2 * (u - v) + (2 * which + h) * WARP + (v >> shift ^ which);
}

/* What column i of the tile is multiplied with. */
DEVICE const byte *column_at(const cuda_product_args &args, const tile_columns &tile, int i) {
        int64_t column = column_of_b(args, tile_column(tile, i));

        return row_at(args.b, index_of_row(args.b, column));
}

DEVICE const byte *plane_of_a(const cuda_product_args &args, int64_t i2, int64_t i3) {
        return row_of(args.a, 0, quotient(i2, quotient(args.b.ne[2], args.a.ne[2])),
                      quotient(i3, quotient(args.b.ne[3], args.a.ne[3])));
}

DEVICE int64_t column_tiles(const cuda_product_args &args) {
        return args.ids.is_present ? args.groups
                                   : (args.out.ne[1] + TILE_COLUMNS - 1) / TILE_COLUMNS *
                                             args.out.ne[2] * args.out.ne[3];
}

/* Tile `t` of the columns. False: there is none. */
DEVICE bool tile_find(const cuda_product_args &args, int64_t t, tile_columns *ret_tile) {
        int64_t per_plane, plane, left;

        if (args.ids.is_present) {
                const struct cuda_group *group =
                        (const struct cuda_group *) (uintptr_t) args.group + t;

                if (group->count == 0)
                        return false;
                ret_tile->a = row_of(args.a, 0, group->expert, 0);
                ret_tile->list = (const int32_t *) (uintptr_t) args.list + group->first;
                ret_tile->first = 0;
                ret_tile->count = group->count;
                return true;
        }
        per_plane = (args.out.ne[1] + TILE_COLUMNS - 1) / TILE_COLUMNS;
        plane = quotient(t, per_plane);
        left = args.out.ne[1] - (t - plane * per_plane) * TILE_COLUMNS;
        ret_tile->a = plane_of_a(args, remainder(plane, args.out.ne[2]),
                                 quotient(plane, args.out.ne[2]));
        ret_tile->list = NULL;
        ret_tile->first = plane * args.out.ne[1] + (t - plane * per_plane) * TILE_COLUMNS;
        ret_tile->count = (int) (left < TILE_COLUMNS ? left : TILE_COLUMNS);
        return true;
}

DEVICE float *result_column(const cuda_product_args &args, int64_t column) {
        return (float *) row_at(args.out, index_of_row(args.out, column));
}

/* ---- Few columns: a warp takes a row and up to CUDA_STREAM_COLUMNS of them ------------------- */

struct few_columns {
        const byte *a;        /* row of the matrix */
        int64_t row, column;  /* of the result; the first column */
        int columns;
};

DEVICE int few_step(const cuda_product_args &args) {
        return args.ids.is_present ? 1 : CUDA_STREAM_COLUMNS;
}

/* Items of a block of threads. */
DEVICE int64_t few_count(const cuda_product_args &args) {
        return (args.out.ne[0] + WARPS - 1) / WARPS *
               ((args.out.ne[1] + few_step(args) - 1) / few_step(args)) * args.out.ne[2] *
               args.out.ne[3];
}

/* What this warp has of item i. False: nothing. */
DEVICE bool few_find_anywhere(const cuda_product_args &args, int64_t i, few_columns *ret_item) {
        int64_t rows = (args.out.ne[0] + WARPS - 1) / WARPS, group = quotient(i, rows);
        int64_t per_plane = (args.out.ne[1] + few_step(args) - 1) / few_step(args);
        int64_t plane = quotient(group, per_plane);
        int64_t u = (group - plane * per_plane) * few_step(args), left = args.out.ne[1] - u;

        ret_item->row = (i - group * rows) * WARPS + threadIdx.x / WARP;
        ret_item->column = plane * args.out.ne[1] + u;
        ret_item->columns = (int) (left < few_step(args) ? left : few_step(args));
        if (args.ids.is_present) {
                int32_t id = *(const int32_t *) (row_of(args.ids, plane, 0, 0) +
                                                 u * args.ids.nb[0]);

                if (id < 0 || id >= args.a.ne[2]) {
                        fault_at(args.fault, args.step);
                        return false;
                }
                ret_item->a = row_of(args.a, 0, id, 0);
        } else {
                ret_item->a = plane_of_a(args, remainder(plane, args.out.ne[2]),
                                         quotient(plane, args.out.ne[2]));
        }
        ret_item->a += ret_item->row * args.a.nb[1];
        return ret_item->row < args.out.ne[0];
}

/* The same where one matrix has few columns, which is what a token has: without divisions. */
DEVICE bool few_find_plainly(const cuda_product_args &args, int64_t i, few_columns *ret_item) {
        ret_item->row = i * WARPS + threadIdx.x / WARP;
        ret_item->column = 0;
        ret_item->columns = (int) args.out.ne[1];
        ret_item->a = row_of(args.a, ret_item->row, 0, 0);
        return ret_item->row < args.out.ne[0];
}

DEVICE bool few_find(const cuda_product_args &args, int64_t i, few_columns *ret_item) {
        if (!args.ids.is_present && args.out.ne[2] * args.out.ne[3] == 1 &&
            args.out.ne[1] <= CUDA_STREAM_COLUMNS)
                return few_find_plainly(args, i, ret_item);
        return few_find_anywhere(args, i, ret_item);
}
