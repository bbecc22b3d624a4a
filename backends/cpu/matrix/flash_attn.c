/*
 * FLASH_ATTN_EXT: softmax(scale * Q K + mask) V without the matrix of scores in memory.
 *
 * Which of two ways a step takes follows from its shapes and types, as in ggml, and so do all bits
 * of its result:
 *
 *   tiles  64 queries or more, keys and values both f16 or both f32 (this file)
 *   walk   everything else: query by query, key by key (flash_attn_walk.c)
 *
 * Tiles. A work item is one key head of one batch and a block of queries with all heads that share
 * that key head (its columns). It walks the keys in blocks: tiles of keys times the columns give
 * scores, then the running maximum, the exponentials and the weighted sum of values, all in f32, Q
 * not rounded. Blocks that the mask hides from every column are skipped, K and V unread.
 *
 * A row with every key hidden and no sink gives zeros. Nothing depends on the number of threads.
 *
 * Scratch: for each thread, see struct work.
 */
#include "backends/cpu/matrix/flash_attn.h"

#define COLUMNS 32       /* aimed at per item */
#define TILED_QUERIES 64 /* from here on */

struct attention {
        const struct hr_operand *q, *k, *v, *mask, *sinks, *out;
        const struct cpu_tile *tile;
        float scale, cap, bias_max;
        int64_t size, value_size, keys, queries, heads, batches;
        int64_t share; /* query heads per key head */
        int64_t query_block, columns, query_blocks, items;
        uint64_t part_floats; /* of one column: DV values, then sum and maximum */
        uint64_t column_bytes;
        uint64_t columns_bytes, tile_bytes, score_bytes, total_bytes, value_bytes, mask_bytes,
                row_bytes, thread_bytes;
};

/* A thread's own memory. */
struct work {
        uint8_t *columns; /* quantised queries */
        uint8_t *tile;
        float *scores; /* [columns][KEYS] */
        float *total;  /* [columns][part_floats] */
        float *values; /* [KEYS][DV] */
        float *mask;   /* [columns][KEYS] */
        float *rows;   /* [CPU_WIDTH_MAX][D], then an output block */
};

static void attention_bytes(struct attention *a) {
        uint64_t columns = (uint64_t) a->columns, size = (uint64_t) a->size;

        a->part_floats = (uint64_t) a->value_size + 2;
        a->column_bytes = cpu_column_bytes(a->tile, a->size);
        a->columns_bytes = cpu_round_up(cpu_times(columns, a->column_bytes));
        a->tile_bytes = cpu_round_up(cpu_tile_bytes(a->tile, CPU_LANES_MAX, a->size));
        a->score_bytes = cpu_round_up(cpu_times(columns, KEYS * sizeof(float)));
        a->total_bytes = cpu_round_up(cpu_times(columns, a->part_floats * sizeof(float)));
        a->value_bytes = cpu_round_up(cpu_times((uint64_t) a->value_size, KEYS * sizeof(float)));
        a->mask_bytes = a->score_bytes;
        a->row_bytes = cpu_round_up(cpu_times(size, CPU_WIDTH_MAX * sizeof(float))) +
                       CPU_WIDTH_MAX * CPU_LANES_MAX * sizeof(float);
        a->thread_bytes = cpu_plus(cpu_plus(cpu_plus(a->columns_bytes, a->tile_bytes),
                                            cpu_plus(a->score_bytes, a->total_bytes)),
                                   cpu_plus(cpu_plus(a->value_bytes, a->mask_bytes), a->row_bytes));
}

static struct attention attention_of(const struct hr_step *step, const struct cpu_dot *dot) {
        struct attention a = {.q = &step->sources[0],
                              .k = &step->sources[1],
                              .v = &step->sources[2],
                              .mask = cpu_source_is_present(step, 3) ? &step->sources[3] : NULL,
                              .sinks = cpu_source_is_present(step, 4) ? &step->sources[4] : NULL,
                              .out = &step->result};

        a.tile = dot->key_tile[HR_TYPE_F32];
        memcpy(&a.scale, &step->params[0], sizeof a.scale);
        memcpy(&a.bias_max, &step->params[1], sizeof a.bias_max);
        memcpy(&a.cap, &step->params[2], sizeof a.cap);
        a.size = a.q->ne[0];
        a.value_size = a.v->ne[0];
        a.queries = a.q->ne[1];
        a.heads = a.q->ne[2];
        a.batches = a.q->ne[3];
        a.keys = a.k->ne[1];
        a.share = a.k->ne[2] > 0 ? a.heads / a.k->ne[2] : 1;
        a.query_block = HR_MAX(COLUMNS / HR_MAX(a.share, 1), 1);
        a.query_block = HR_MIN(a.query_block, HR_MAX(a.queries, 1));
        a.columns = a.query_block * a.share;
        a.query_blocks = (a.queries + a.query_block - 1) / a.query_block;
        a.items = a.query_blocks * a.k->ne[2] * a.batches;
        attention_bytes(&a);
        return a;
}

/* What an item works on. Column c is head `head + c % share` of query `query + c / share`. */
struct item {
        int64_t batch, key_head, head, query, queries, columns;
};

static struct item item_of(const struct attention *a, int64_t index) {
        struct item item;

        item.query = index % a->query_blocks * a->query_block;
        item.key_head = index / a->query_blocks % a->k->ne[2];
        item.batch = index / a->query_blocks / a->k->ne[2];
        item.head = item.key_head * a->share;
        item.queries = HR_MIN(a->query_block, a->queries - item.query);
        item.columns = item.queries * a->share;
        return item;
}

static void prepare_queries(const struct cpu_call *call, const struct attention *a,
                            const struct item *item, const struct work *work) {
        uint32_t width;

        for (int64_t first = 0; first < item->columns; first += width) {
                const float *values[CPU_WIDTH_MAX];

                width = cpu_group_width(call->dot->width, first, item->columns);
                for (uint32_t c = 0; c < width; c++) {
                        int64_t column = first + c;
                        const uint8_t *row = cpu_at(a->q, item->query + column / a->share,
                                                    item->head + column % a->share, item->batch);

                        values[c] = cpu_float_row(call->dot, a->q->type, row, a->q->nb[0], a->size,
                                                  work->rows + a->size * c);
                }
                a->tile->columns(values, width, a->size,
                                 work->columns + a->column_bytes * (uint64_t) first);
        }
}

/* The mask of a block of keys as f32, one row per column (per query when heads share it).
 * Returns false when it hides every key from every column. */
static bool read_mask(const struct cpu_call *call, const struct attention *a,
                      const struct item *item, int64_t key, uint32_t keys, float *ret_mask) {
        bool per_head = a->mask->ne[2] > 1, any = false;
        int64_t rows = per_head ? item->columns : item->queries;

        for (int64_t r = 0; r < rows; r++) {
                int64_t query = item->query + (per_head ? r / a->share : r);
                int64_t head = item->head + (per_head ? r % a->share : 0);
                const uint8_t *at = cpu_at(a->mask, query, head % a->mask->ne[2],
                                           item->batch % a->mask->ne[3]) +
                                    (uint64_t) key * sizeof(uint16_t);

                call->dot->dequantize[HR_TYPE_F16](at, ret_mask + r * KEYS, keys);
                for (uint32_t i = 0; i < keys && !any; i++)
                        any = ret_mask[r * KEYS + i] != -INFINITY;
        }
        return any;
}

/* scores[columns][KEYS] of a block of keys. */
static void multiply_keys(const struct cpu_call *call, const struct attention *a,
                          const struct item *item, int64_t key, uint32_t keys,
                          const struct work *work) {
        float *block = work->rows + (size_t) CPU_WIDTH_MAX * (size_t) a->size;
        int64_t k3 = item->batch / (a->batches / a->k->ne[3]);
        uint32_t lanes = call->dot->lanes, width;

        for (uint32_t at = 0; at < keys; at += lanes) {
                uint32_t rows = HR_MIN(lanes, keys - at);

                call->dot->key_tile[a->k->type]->pack(cpu_at(a->k, key + at, item->key_head, k3),
                                                  a->k->nb[1], rows, a->size, work->tile);
                for (int64_t first = 0; first < item->columns; first += width) {
                        width = cpu_group_width(call->dot->width, first, item->columns);
                        a->tile->dot(work->tile, work->columns + a->column_bytes * (uint64_t) first,
                                     width, a->size, block);
                        for (uint32_t c = 0; c < width; c++)
                                memcpy(work->scores + (first + c) * KEYS + at, block + lanes * c,
                                       lanes * sizeof(float));
                }
        }
}

/* The values of the block; rows whose weight is zero for all columns are zeros, unread. */
static void read_values(const struct cpu_call *call, const struct attention *a,
                        const struct item *item, int64_t key, uint32_t keys,
                        const struct work *work) {
        int64_t v3 = item->batch / (a->batches / a->v->ne[3]);
        int64_t v2 = item->head / (a->heads / a->v->ne[2]);
        const uint8_t *base = cpu_at(a->v, key, v2, v3);
        uint64_t row_bytes =
                a->v->nb[0] * (uint64_t) a->value_size / hr_type_info(a->v->type)->block_elements;
        uint32_t unused = 0;
        float used[KEYS] = {0};

        for (int64_t c = 0; c < item->columns; c++)
                for (uint32_t i = 0; i < keys; i++) /* not one of them is negative */
                        used[i] += work->scores[c * KEYS + i];
        for (uint32_t i = 0; i < keys; i++)
                unused += used[i] == 0;
        if (unused == 0 && a->v->nb[1] == row_bytes) {
                call->dot->dequantize[a->v->type](base, work->values, a->value_size * keys);
                return;
        }
        for (uint32_t i = 0; i < keys; i++) {
                float *to = work->values + (int64_t) i * a->value_size;

                if (used[i] == 0)
                        memset(to, 0, (size_t) a->value_size * sizeof(float));
                else
                        call->dot->dequantize[a->v->type](base + a->v->nb[1] * i, to,
                                                          a->value_size);
        }
}

/* Scores to weights, with the running maximum and sum of each column. */
static void weigh_scores(const struct cpu_call *call, const struct attention *a,
                         const struct item *item, uint32_t keys, const struct work *work) {
        for (int64_t c = 0; c < item->columns; c++) {
                float *scores = work->scores + c * KEYS,
                      *total = work->total + c * (int64_t) a->part_floats;
                float *sum = total + a->value_size, *maximum = sum + 1, block;
                const float *mask = NULL;

                if (a->mask)
                        mask = work->mask + (a->mask->ne[2] > 1 ? c : c / a->share) * KEYS;
                block = call->dot->score_row(scores, mask, keys, a->scale, a->cap,
                                             cpu_head_slope(a->bias_max, a->heads,
                                                            item->head + c % a->share));
                if (block > *maximum) {
                        float factor = *maximum == -INFINITY ? 0 : expf(*maximum - block);

                        call->dot->scale_row(total, (uint32_t) a->value_size + 1, factor);
                        *maximum = block;
                }
                if (*maximum == -INFINITY) /* nothing seen yet */
                        memset(scores, 0, keys * sizeof(float));
                else
                        *sum = (float) ((double) *sum +
                                        call->dot->exp_row(scores, keys, *maximum));
        }
}

/* All keys of an item into work->total. */
static void attend(const struct cpu_call *call, const struct attention *a, const struct item *item,
                   const struct work *work) {
        for (int64_t c = 0; c < item->columns; c++) {
                float *total = work->total + c * (int64_t) a->part_floats;

                memset(total, 0, (size_t) (a->value_size + 1) * sizeof(float));
                total[a->value_size + 1] = -INFINITY;
        }
        prepare_queries(call, a, item, work);
        for (int64_t key = 0; key < a->keys; key += KEYS) {
                uint32_t keys = (uint32_t) HR_MIN((int64_t) KEYS, a->keys - key);

                if (a->mask && !read_mask(call, a, item, key, keys, work->mask))
                        continue;
                multiply_keys(call, a, item, key, keys, work);
                weigh_scores(call, a, item, keys, work);
                read_values(call, a, item, key, keys, work);
                call->dot->weigh_rows(work->scores, KEYS, (uint32_t) item->columns, work->values,
                                      keys, (uint32_t) a->value_size, work->total, a->part_floats);
        }
}

static void tiles_run(const struct cpu_call *call) {
        const struct attention a = attention_of(call->step, call->dot);
        uint8_t *own = call->scratch + a.thread_bytes * call->thread;
        struct work work;
        uint32_t index;

        work.columns = own;
        work.tile = own += a.columns_bytes;
        work.scores = (float *) (void *) (own += a.tile_bytes);
        work.total = (float *) (void *) (own += a.score_bytes);
        work.values = (float *) (void *) (own += a.total_bytes);
        work.mask = (float *) (void *) (own += a.value_bytes);
        work.rows = (float *) (void *) (own + a.mask_bytes);
        if (a.items > UINT32_MAX || a.items == 0)
                return; /* more than any memory has results for; or none */
        while ((index = cpu_next_item(call, (uint32_t) a.items)) < (uint32_t) a.items) {
                struct item item = item_of(&a, index);

                attend(call, &a, &item, &work);
                for (int64_t c = 0; c < item.columns; c++) {
                        float *total = work.total + c * (int64_t) a.part_floats;
                        int64_t head = item.head + c % a.share;

                        cpu_finish_attention(call, a.sinks, head, total, total[a.value_size],
                                             total[a.value_size + 1],
                                             cpu_at(a.out, head, item.query + c / a.share,
                                                    item.batch));
                }
        }
}

/* ---- What both ways share ------------------------------------------------------------------- */

float cpu_head_slope(float bias_max, int64_t heads, int64_t head) {
        int64_t power = 1;
        float exponent;

        if (bias_max <= 0)
                return 1.0f;
        while (power * 2 <= heads)
                power *= 2;
        exponent = head < power
                           ? -bias_max / (float) power * (float) (head + 1)
                           : -bias_max / 2.0f / (float) power * (float) (2 * (head - power) + 1);
        return powf(2.0f, exponent);
}

void cpu_finish_attention(const struct cpu_call *call, const struct hr_operand *sinks, int64_t head,
                          float *total, float sum, float maximum, uint8_t *out) {
        uint32_t size = (uint32_t) call->step->result.ne[0];

        if (sinks) {
                float sink;

                memcpy(&sink, (uint8_t *) sinks->data + (uint64_t) head * sinks->nb[0],
                       sizeof sink);
                if (sink > maximum) {
                        float factor = maximum == -INFINITY ? 0 : expf(maximum - sink);

                        call->dot->scale_row(total, size, factor);
                        sum = sum * factor + 1.0f;
                } else {
                        sum += expf(sink - maximum);
                }
        }
        call->dot->scale_row(total, size, sum == 0 ? 0 : 1.0f / sum);
        memcpy(out, total, (size_t) size * sizeof(float));
}

/* ---- Which way ------------------------------------------------------------------------------- */

static bool is_tiled(const struct hr_step *step) {
        uint32_t k = step->sources[1].type;

        return step->sources[0].ne[1] >= TILED_QUERIES && k == step->sources[2].type &&
               (k == HR_TYPE_F16 || k == HR_TYPE_F32);
}

static bool attention_supports(const struct hr_step *step) {
        const struct hr_operand *k = &step->sources[1], *v = &step->sources[2];
        const struct hr_type_info *k_info = hr_type_info(k->type), *v_info = hr_type_info(v->type);
        const struct cpu_dot *dot = cpu_any_dot();

        if (!k_info || !v_info || !dot->key_tile[k->type] || !dot->dequantize[v->type])
                return false;
        if (k->nb[0] != k_info->block_bytes || v->nb[0] != v_info->block_bytes)
                return false;
        if (cpu_source_is_present(step, 3) &&
            (step->sources[3].type != HR_TYPE_F16 || step->sources[3].nb[0] != sizeof(uint16_t)))
                return false;
        if (cpu_source_is_present(step, 4) && step->sources[4].type != HR_TYPE_F32)
                return false;
        return step->sources[0].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               step->result.nb[0] == sizeof(float);
}

static uint64_t attention_scratch(const struct hr_step *step, uint32_t threads) {
        if (!is_tiled(step))
                return cpu_attention_walk_scratch(step, threads);
        return cpu_times(attention_of(step, cpu_any_dot()).thread_bytes, threads);
}

static uint32_t attention_threads_max(const struct hr_step *step) {
        struct attention a = attention_of(step, cpu_any_dot());
        uint64_t work = cpu_times(
                cpu_times((uint64_t) a.keys, (uint64_t) (a.size + a.value_size)),
                cpu_times((uint64_t) a.queries, (uint64_t) a.heads * (uint64_t) a.batches));
        uint64_t threads = 1 + work / (UINT64_C(48) << 10);

        return threads > UINT32_MAX ? UINT32_MAX : (uint32_t) threads;
}

static void attention_run(const struct cpu_call *call) {
        if (is_tiled(call->step))
                tiles_run(call);
        else
                cpu_attention_walk(call);
}

const struct cpu_kernel cpu_kernel_flash_attn = {
        .supports = attention_supports,
        .scratch = attention_scratch,
        .threads_max = attention_threads_max,
        .run = attention_run,
};
