/*
 * MUL_MAT: weights [k, m] times activations [k, n], over broadcast batches, to f32 [m, n].
 *
 * Block types: the activations are quantised to the weights' partner type once, into shared
 * scratch, as column groups (dot.h). Then the team takes row tiles: a tile is unpacked once and
 * multiplied with one block of columns after the other. A single column needs no tile: its rows are
 * unpacked in registers, at memory bandwidth. Float types: rows are multiplied in place;
 * activations are rounded to the weights' type as the partner rule says.
 *
 * Invariant: how work is cut (threads, column blocks, group widths) never shows in a result's bits.
 *
 * Scratch: columns of all batches (shared), then for each thread a tile and rows.
 * With one column in all, each thread prepares a copy of its own and nobody waits.
 */
#include "backends/cpu/matrix/share.h"

/* Bytes of prepared columns that a row tile is multiplied with before the next ones. */
#define COLUMN_BLOCK_BYTES (INT64_C(384) << 10)
/* Rows of a tile of floats: more where a block of columns is used by all of them. */
#define FLOAT_TILE_ROWS 16
#define FLOAT_TILE_ROWS_MANY 64
/* Columns of their blocks. Results of a block are added up side by side, then stored: columns of a
 * result are often apart by a power of two, where they drive each other out of the caches. */
#define FLOAT_BLOCK_COLUMNS 96
#define FLOAT_BLOCK_BYTES (FLOAT_BLOCK_COLUMNS * FLOAT_TILE_ROWS_MANY * sizeof(float))
/* From so many columns on. */
#define FLOAT_COLUMNS_MANY 9
/* Tiles that a thread has of them at least, where there are rows enough. */
#define TILES_OF_THREAD 6
/* Bytes of a column that are multiplied with all rows of a tile before the next ones. */
#define FLOAT_CHUNK_BYTES (CPU_FLOAT_CHUNK * sizeof(float))
/* Columns that are apart by a multiple of this compete for a few places of the caches: from
 * FLOAT_COLUMNS_APART on they are copied, and lie apart by something else. */
#define CACHE_PERIOD 4096
#define FLOAT_COLUMNS_APART 4
#define FLOAT_COLUMN_GAP 64

/* Products that are worth another thread: below, handing over takes longer than it saves. */
#define WORK_OF_THREAD (UINT64_C(192) << 10)

struct product {
        const struct hr_operand *a, *b, *out;
        const struct cpu_tile *tile;
        uint32_t lanes, width;
        int64_t k, m, n, batches;
        bool in_place;         /* float: the activations are read where they are */
        uint64_t column_bytes; /* of a prepared column */
        uint64_t shared_bytes, tile_bytes, row_bytes, thread_bytes;
};

static bool mul_mat_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];

        return cpu_is_matrix(a) && cpu_any_dot()->tile[a->type] &&
               cpu_has_float_rows(&step->sources[1]) && step->result.type == HR_TYPE_F32 &&
               step->result.nb[0] == sizeof(float);
}

static struct product product_of(const struct hr_step *step, const struct cpu_dot *dot) {
        struct product p = {.a = &step->sources[0], .b = &step->sources[1], .out = &step->result};
        uint64_t k = (uint64_t) p.a->ne[0], columns;
        uint32_t lanes = CPU_LANES_MAX;

        p.tile = dot->tile[p.a->type];
        p.lanes = dot->lanes;
        p.width = dot->width;
        p.k = p.a->ne[0];
        p.m = p.a->ne[1];
        p.n = p.b->ne[1];
        p.batches = p.b->ne[2] * p.b->ne[3];
        p.in_place = p.a->type == HR_TYPE_F32 && p.b->type == HR_TYPE_F32 &&
                     p.b->nb[0] == sizeof(float) &&
                     (p.n < FLOAT_COLUMNS_APART || p.b->nb[1] % CACHE_PERIOD != 0);
        p.column_bytes = cpu_column_bytes(p.tile, p.k);
        if (p.tile->is_float && p.n >= FLOAT_COLUMNS_APART)
                p.column_bytes = cpu_plus(p.column_bytes, FLOAT_COLUMN_GAP);
        columns = cpu_times(p.n > 0 ? (uint64_t) p.n : 0, (uint64_t) p.batches);
        p.shared_bytes = p.in_place ? 0 : cpu_round_up(cpu_times(columns, p.column_bytes));
        /* float: room for the rows that float_dot widens, and for a block of results */
        p.tile_bytes = cpu_round_up(p.tile->is_float
                                            ? CPU_FLOAT_SPARE * sizeof(float) + FLOAT_BLOCK_BYTES
                                            : cpu_tile_bytes(p.tile, lanes, p.k));
        p.row_bytes = cpu_round_up(cpu_times(k, CPU_WIDTH_MAX * sizeof(float)));
        p.thread_bytes = cpu_plus(p.tile_bytes, p.row_bytes);
        if (p.n * p.batches == 1 && !p.in_place) { /* each thread has its own column */
                p.thread_bytes = cpu_plus(p.thread_bytes, p.shared_bytes);
                p.shared_bytes = 0;
        }
        return p;
}

static uint64_t mul_mat_scratch(const struct hr_step *step, uint32_t threads) {
        struct product p = product_of(step, cpu_any_dot());

        return cpu_plus(p.shared_bytes, cpu_times(p.thread_bytes, threads));
}

static uint32_t mul_mat_threads_max(const struct hr_step *step) {
        struct product p = product_of(step, cpu_any_dot());
        uint64_t work = cpu_times(cpu_times((uint64_t) p.k, (uint64_t) p.m),
                                  cpu_times((uint64_t) p.n, (uint64_t) p.batches));
        uint64_t threads = 1 + work / WORK_OF_THREAD;

        return threads > UINT32_MAX ? UINT32_MAX : (uint32_t) threads;
}

/* Column `column` (0 .. n * batches) of the activations as contiguous f32. */
static const float *activation_column(const struct cpu_dot *dot, const struct product *p,
                                      int64_t column, float *spare) {
        int64_t batch = column / p->n;
        const uint8_t *at = cpu_at(p->b, column % p->n, batch % p->b->ne[2], batch / p->b->ne[2]);

        return cpu_float_row(dot, p->b->type, at, p->b->nb[0], p->k, spare);
}

/* Prepares the column group that starts at `first` (of all batches' columns). Returns its width. */
static uint32_t prepare_group(const struct cpu_dot *dot, const struct product *p, int64_t first,
                              uint8_t *columns, float *rows) {
        int64_t in_batch = first % p->n;
        uint32_t width = cpu_group_width(p->width, in_batch, p->n);
        const float *values[CPU_WIDTH_MAX];

        for (uint32_t c = 0; c < width; c++)
                values[c] = activation_column(dot, p, first + c, rows + p->k * c);
        if (!p->tile->is_float) {
                p->tile->columns(values, width, p->k, columns + p->column_bytes * (uint64_t) first);
                return width;
        }
        for (uint32_t c = 0; c < width; c++) /* one by one: rounded, not interleaved */
                dot->float_column(p->a->type, values[c], p->k,
                                  columns + p->column_bytes * (uint64_t) (first + c));
        return width;
}

/* Rows [row, row + rows) times columns [first, end) of one batch, block types. packed: the tile
 * holds these rows already. */
static void multiply_tile(const struct product *p, const uint8_t *base, uint32_t rows,
                          const uint8_t *columns, int64_t first, int64_t end, bool packed,
                          uint8_t *tile, uint8_t *out) {
        float block[CPU_WIDTH_MAX * CPU_LANES_MAX] __attribute__((aligned(64)));

        if (p->n == 1) {
                p->tile->dot_rows(base, p->a->nb[1], rows, p->k, columns, block);
                memcpy(out, block, rows * sizeof(float));
                return;
        }
        if (!packed)
                p->tile->pack(base, p->a->nb[1], rows, p->k, tile);
        while (first < end) {
                uint32_t width = cpu_group_width(p->width, first, p->n);

                p->tile->dot(tile, columns + p->column_bytes * (uint64_t) first, width, p->k,
                             block);
                for (uint32_t c = 0; c < width; c++)
                        memcpy(out + p->out->nb[1] * (uint64_t) (first + c), block + p->lanes * c,
                               rows * sizeof(float));
                first += width;
        }
}

static void multiply_float(const struct cpu_call *call, const struct product *p,
                           const uint8_t *base, uint32_t rows, const uint8_t *columns,
                           int64_t first, int64_t end, uint8_t *spare, uint8_t *out) {
        const uint64_t stride = p->in_place ? p->b->nb[1] : p->column_bytes;
        const bool many = p->n >= FLOAT_COLUMNS_MANY;
        float *block = (float *) (void *) spare + CPU_FLOAT_SPARE;
        float *to = many ? block : (float *) (void *) (out + p->out->nb[1] * (uint64_t) first);

        call->dot->float_dot(p->a->type, base, p->a->nb[1], rows,
                             columns + stride * (uint64_t) first, stride, (uint32_t) (end - first),
                             p->k, (float *) (void *) spare, to,
                             many ? FLOAT_TILE_ROWS_MANY : p->out->nb[1] / sizeof(float));
        for (int64_t c = first; many && c < end; c++, block += FLOAT_TILE_ROWS_MANY)
                memcpy(out + p->out->nb[1] * (uint64_t) c, block, rows * sizeof(float));
}

/* Prepares the columns; returns where they are. */
static const uint8_t *prepare_columns(const struct cpu_call *call, const struct product *p,
                                      uint8_t *own) {
        float *rows = (float *) (void *) (own + p->tile_bytes);
        uint8_t *columns = call->scratch;
        int64_t count = p->n * p->batches, first, end;

        if (p->in_place)
                return NULL;
        if (count == 1) {
                columns = own + p->thread_bytes - cpu_round_up(p->column_bytes);
                prepare_group(call->dot, p, 0, columns, rows);
                return columns;
        }
        cpu_share(call, count, 1, &first, &end);
        for (int64_t i = 0; i < count;) { /* a group belongs to whom its start does */
                uint32_t width = cpu_group_width(p->width, i % p->n, p->n);

                if (i >= first && i < end)
                        prepare_group(call->dot, p, i, columns, rows);
                i += width;
        }
        cpu_barrier(call);
        return columns;
}

/* Columns that a tile of rows is multiplied with before the next ones. */
static int64_t columns_of_block(const struct product *p) {
        uint64_t bytes = p->tile->is_float ? HR_MIN(p->column_bytes, FLOAT_CHUNK_BYTES)
                                           : p->column_bytes;
        int64_t columns = p->k > 0 ? COLUMN_BLOCK_BYTES / (int64_t) bytes : p->n;

        if (p->tile->is_float)
                columns = HR_MIN(columns, FLOAT_BLOCK_COLUMNS);
        return HR_MAX(columns, 24) / 24 * 24; /* a multiple of widths 8 and 6 */
}

/* Rows of a tile: of floats as many as leave every thread its share. */
static int64_t rows_of_tile(const struct product *p, int64_t blocks, uint32_t threads) {
        int64_t rows = FLOAT_TILE_ROWS_MANY;

        if (!p->tile->is_float)
                return p->lanes;
        while (rows > FLOAT_TILE_ROWS &&
               (p->n < FLOAT_COLUMNS_MANY ||
                p->m * p->batches * blocks < rows * TILES_OF_THREAD * threads))
                rows /= 2;
        return rows;
}

static void mul_mat_run(const struct cpu_call *call) {
        const struct product p = product_of(call->step, call->dot);
        uint8_t *own = call->scratch + p.shared_bytes + p.thread_bytes * call->thread;
        int64_t step_rows, tiles, block_columns, blocks, first, end, packed = -1;
        const uint8_t *columns;
        uint32_t taken = 0;

        if (p.m == 0 || p.n == 0 || p.batches == 0)
                return;
        columns = prepare_columns(call, &p, own);
        block_columns = columns_of_block(&p);
        blocks = (p.n + block_columns - 1) / block_columns;
        step_rows = rows_of_tile(&p, blocks, call->threads);
        tiles = (p.m + step_rows - 1) / step_rows;
        while (cpu_next_range(call, p.batches * tiles * blocks, &taken, &first, &end))
                for (; first < end; first++) {
                        int64_t tile = first / blocks, batch = tile / tiles;
                        int64_t row = tile % tiles * step_rows;
                        int64_t from = first % blocks * block_columns;
                        int64_t to = HR_MIN(from + block_columns, p.n);
                        int64_t b2 = batch % p.b->ne[2], b3 = batch / p.b->ne[2];
                        uint32_t count = (uint32_t) HR_MIN(step_rows, p.m - row);
                        const uint8_t *base = cpu_at(p.a, row, b2 / (p.b->ne[2] / p.a->ne[2]),
                                                     b3 / (p.b->ne[3] / p.a->ne[3]));
                        const uint8_t *of_batch =
                                p.in_place ? cpu_at(p.b, 0, b2, b3)
                                           : columns + p.column_bytes * (uint64_t) (batch * p.n);
                        uint8_t *out = cpu_at(p.out, 0, b2, b3) + (uint64_t) row * sizeof(float);

                        if (p.tile->is_float)
                                multiply_float(call, &p, base, count, of_batch, from, to, own, out);
                        else
                                multiply_tile(&p, base, count, of_batch, from, to, packed == tile,
                                              own, out);
                        packed = tile;
                }
}

const struct cpu_kernel cpu_kernel_mul_mat = {
        .supports = mul_mat_supports,
        .scratch = mul_mat_scratch,
        .threads_max = mul_mat_threads_max,
        .run = mul_mat_run,
};
