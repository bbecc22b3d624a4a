/*
 * FLASH_ATTN_EXT query by query, key by key.
 *
 * A row is one query of one head. Its keys are visited in order; those that the mask hides are left
 * out. Scores of a block of keys come first, since they do not depend on each other; then the
 * running maximum says by what each value is weighed, and by what the total is multiplied where a
 * new maximum appears; then the values are added, one after the other. With f16 values the total is
 * rounded to f16 after each of them, as ggml keeps it, else it is f32. Q is rounded to K's partner
 * type.
 *
 * A work item is some rows of one head of keys, which go over its keys together: each row's chain
 * of operations is the one that it would have alone. Where rows are few and keys are many, each row
 * is cut into parts of PART_KEYS keys, which are joined in order. Whether it is, follows from the
 * shapes alone; how many rows an item has, which does not show in results, from the threads, too.
 *
 * Scratch: totals of all parts (shared), then for each thread a struct memory.
 */
#include "backends/cpu/matrix/flash_attn.h"

#include "backends/cpu/matrix/half.h"

#define ROWS 12         /* of an item at most */
#define ROWS_FEW 4      /* for which keys are read where they are, where that is better, */
#define ROWS_OF_TILE 3  /* else from here on they are packed */
#define PART_KEYS 512   /* a multiple of KEYS */
#define PARTS_FROM 1024 /* keys from which on they are cut into parts, */
#define PARTS_QUERIES 8 /* with fewer queries than this */
#define AHEAD 32        /* keys by which memory is asked for before it is needed */
#define WAITING_BYTES (UINT64_C(448) << 10) /* of keys, and as many of values, that may wait */
#define PARTS_MANY 2    /* parts of a thread, from which on it takes them with all heads */
#define ITEMS_MANY 8    /* items of a thread that leave none waiting for another */

/* What all items share. */
struct plan {
        const struct cpu_call *call;
        const struct hr_operand *q, *k, *v, *mask, *sinks;
        float scale, cap;
        bool is_float;  /* keys are no blocks */
        int64_t share;  /* heads that share a head of keys and one of values */
        int64_t groups; /* of such heads, in all batches */
        int64_t rows;   /* of a group: share * queries */
        int64_t parts;
        int64_t chunks;       /* of rows that a group is cut into */
        uint64_t part_floats; /* of a row's part: total, sum, maximum */
        uint64_t parts_bytes;
        uint64_t column_bytes, row_bytes, total_bytes, tile_bytes, value_bytes, thread_bytes;
};

/* The keys of a block that are not hidden. */
struct seen {
        const uint8_t *mask; /* of the block */
        uint32_t count;
        uint32_t key[KEYS];
        float bias[KEYS]; /* what the mask says of each */
};

struct row {
        int64_t query, head;
        float slope, sum, maximum;
        float *values;   /* the query */
        uint8_t *column; /* the same in the partner type of blocks */
        float *total;
        const struct seen *seen; /* its own, or that of a row with the same mask */
        struct seen own;
        float score[KEYS], weight[KEYS], factor[KEYS];
};

/* A thread's own memory. */
struct memory {
        struct row row[ROWS];
        int64_t fetched; /* the part whose keys were asked for with those of all heads; -1: none */
        uint64_t key_bytes, value_bytes; /* of a row of keys or values: what is asked for ahead */
        uint8_t *tile;
        float *values; /* [KEYS][DV], of blocks */
};

/* Some rows of a group: those of an item. */
struct item {
        int64_t batch, first_row; /* of the group */
        int64_t number;           /* of its first row among all */
        int64_t part;
        uint32_t rows;
};

static struct plan plan_of(const struct hr_step *step, const struct cpu_dot *dot) {
        struct plan p = {.q = &step->sources[0],
                         .k = &step->sources[1],
                         .v = &step->sources[2],
                         .mask = cpu_source_is_present(step, 3) ? &step->sources[3] : NULL,
                         .sinks = cpu_source_is_present(step, 4) ? &step->sources[4] : NULL,
                         .scale = hr_param_f32(step->params, 0),
                         .cap = hr_param_f32(step->params, 2)};
        const int64_t heads = p.q->ne[2], queries = p.q->ne[1];
        const struct cpu_tile *tile = dot->key_tile[p.k->type];
        uint64_t size = (uint64_t) p.k->ne[0], rows;

        p.is_float = tile->is_float;
        p.share = p.k->ne[2] == p.v->ne[2] && p.k->ne[2] > 0 ? heads / p.k->ne[2] : 1;
        p.groups = p.share > 0 ? heads / p.share * p.q->ne[3] : 0;
        p.rows = p.share * queries;
        p.parts = p.k->ne[1] >= PARTS_FROM && queries < PARTS_QUERIES
                          ? (p.k->ne[1] + PART_KEYS - 1) / PART_KEYS
                          : 1;
        p.part_floats = (uint64_t) p.v->ne[0] + 2;
        rows = cpu_times((uint64_t) p.groups, (uint64_t) p.rows);
        if (p.parts > 1)
                p.parts_bytes = cpu_round_up(cpu_times(cpu_times(rows, (uint64_t) p.parts),
                                                       p.part_floats * sizeof(float)));
        p.column_bytes = p.is_float ? 0 : cpu_round_up(cpu_column_bytes(tile, p.k->ne[0]));
        p.row_bytes = cpu_round_up(cpu_times(size, sizeof(float)));
        p.total_bytes = cpu_round_up(cpu_times((uint64_t) p.v->ne[0], sizeof(float)));
        p.tile_bytes =
                p.is_float ? cpu_round_up(cpu_tile_bytes(tile, CPU_LANES_MAX, p.k->ne[0])) : 0;
        if (p.v->type != HR_TYPE_F16 && p.v->type != HR_TYPE_F32)
                p.value_bytes = cpu_times(p.total_bytes, KEYS);
        p.thread_bytes = cpu_plus(cpu_plus(p.column_bytes, p.row_bytes), p.total_bytes);
        p.thread_bytes =
                cpu_plus(cpu_times(p.thread_bytes, ROWS), cpu_round_up(sizeof(struct memory)));
        p.thread_bytes = cpu_plus(p.thread_bytes, cpu_plus(p.tile_bytes, p.value_bytes));
        return p;
}

uint64_t cpu_attention_walk_scratch(const struct hr_step *step, uint32_t threads) {
        struct plan plan = plan_of(step, cpu_any_dot());

        return cpu_plus(plan.parts_bytes, cpu_times(plan.thread_bytes, threads));
}

static struct memory *memory_at(const struct plan *p, uint8_t *own) {
        struct memory *memory = (struct memory *) (void *) own;

        own += cpu_round_up(sizeof *memory);
        for (int i = 0; i < ROWS; i++) {
                memory->row[i].values = (float *) (void *) own;
                memory->row[i].column = own += p->row_bytes;
                memory->row[i].total = (float *) (void *) (own += p->column_bytes);
                own += p->total_bytes;
        }
        memory->tile = own;
        memory->values = (float *) (void *) (own + p->tile_bytes);
        return memory;
}

/* Rows of an item: many share the keys, and still every thread has its share of items. */
static int64_t chunks_of(const struct plan *p, uint32_t threads) {
        int64_t chunks = (p->rows + ROWS - 1) / ROWS;

        while (chunks < p->rows && chunks * p->groups * p->parts < ITEMS_MANY * (int64_t) threads &&
               chunks * p->groups * p->parts % threads != 0)
                chunks++;
        return chunks;
}

static void prepare_query(const struct plan *p, struct row *row, int64_t batch) {
        const struct cpu_dot *dot = p->call->dot;
        const uint8_t *at = cpu_at(p->q, row->query, row->head, batch);
        const float *values =
                cpu_float_row(dot, p->q->type, at, p->q->nb[0], p->q->ne[0], row->values);

        if (!p->is_float) {
                dot->key_tile[p->k->type]->columns(&values, 1, p->q->ne[0], row->column);
                return;
        }
        for (int64_t i = 0; i < p->q->ne[0]; i++) {
                float x = values[i];

                if (p->k->type == HR_TYPE_F16)
                        x = cpu_half_to_float(cpu_float_to_half(x));
                else if (p->k->type == HR_TYPE_BF16)
                        x = cpu_bf16_to_float(cpu_float_to_bf16(x));
                row->values[i] = x;
        }
}

/* Keys `key` .. of a block that the rows see; rows with one mask look at it once. */
static uint32_t find_seen(const struct plan *p, struct memory *memory, const struct item *item,
                          int64_t key, uint32_t keys) {
        uint32_t most = 0;

        for (uint32_t r = 0; r < item->rows; r++) {
                struct row *row = &memory->row[r];
                struct seen *own = &row->own;
                float mask[KEYS] = {0};

                row->seen = own;
                own->mask = NULL;
                if (p->mask)
                        own->mask = cpu_at(p->mask, row->query, row->head % p->mask->ne[2],
                                           item->batch % p->mask->ne[3]) +
                                    (uint64_t) key * sizeof(uint16_t);
                if (r > 0 && own->mask == row[-1].seen->mask) {
                        row->seen = row[-1].seen;
                        continue;
                }
                if (p->mask)
                        p->call->dot->dequantize[HR_TYPE_F16](own->mask, mask, keys);
                own->count = 0;
                for (uint32_t i = 0; i < keys; i++) {
                        own->key[own->count] = i;
                        own->bias[own->count] = mask[i];
                        own->count += mask[i] != -INFINITY;
                }
                most = HR_MAX(most, own->count);
        }
        return most;
}

static uint64_t bytes_of_row(const struct hr_operand *operand) {
        const struct hr_type_info *info = hr_type_info(operand->type);

        return (uint64_t) operand->ne[0] / info->block_elements * info->block_bytes;
}

/* Bytes of each row from head `head` on that are asked for ahead. All heads of a key lie side by
 * side: the first item of a part asks for those of the heads after it, too, so that memory is read
 * in a line; they wait in the second-level cache for the items that follow. */
static uint64_t bytes_ahead(const struct plan *p, const struct hr_operand *operand, int64_t head,
                            bool is_first) {
        /* None at all is as one. */
        const uint64_t keys =
                (uint64_t) HR_MAX(HR_MIN(operand->ne[1], (int64_t) PARTS_FROM), 1);
        const uint64_t heads = (uint64_t) (operand->ne[2] - head), own = bytes_of_row(operand);

        if (!is_first || p->q->ne[1] >= PARTS_QUERIES || operand->nb[1] > WAITING_BYTES / keys ||
            operand->nb[2] > operand->nb[1] / heads)
                return own;
        return HR_MAX(own, operand->nb[2] * heads);
}

/* Asks for rows ahead of their use. */
static void prefetch_rows(const uint8_t *base, uint64_t stride, uint64_t bytes, uint32_t count) {
        for (uint32_t i = 0; i < count; i++)
                for (uint64_t at = 0; at < bytes; at += 64)
                        __builtin_prefetch(base + stride * i + at, 0, 3);
}

static void score_row(const struct plan *p, struct row *row, const uint8_t *keys, uint32_t count) {
        const struct cpu_dot *dot = p->call->dot;
        float out[CPU_LANES_MAX];

        if (p->is_float) {
                dot->score_keys(p->k->type, keys, p->k->nb[1], count, row->values, p->k->ne[0],
                                row->score);
                return;
        }
        for (uint32_t at = 0; at < count; at += dot->lanes) {
                uint32_t rows = HR_MIN(dot->lanes, count - at);

                dot->key_tile[p->k->type]->dot_rows(keys + p->k->nb[1] * at, p->k->nb[1], rows,
                                                p->k->ne[0], row->column, out);
                memcpy(row->score + at, out, rows * sizeof out[0]);
        }
}

/* The scores of a block; those of a row that sees none of its keys may be left out. */
static void score_block(const struct plan *p, struct memory *memory, uint32_t rows,
                        const uint8_t *keys, uint32_t count) {
        const struct cpu_dot *dot = p->call->dot;
        const uint64_t stride = sizeof(struct row) / sizeof(float);
        const float *query[ROWS];

        if (!p->is_float || p->k->ne[0] % 64 != 0 || count % dot->lanes || p->k->ne[0] == 0 ||
            (rows < ROWS_OF_TILE && !dot->score_few)) {
                for (uint32_t r = 0; r < rows; r++)
                        if (memory->row[r].seen->count > 0)
                                score_row(p, &memory->row[r], keys, count);
                return;
        }
        for (uint32_t r = 0; r < rows; r++)
                query[r] = memory->row[r].values;
        for (uint32_t at = 0; at < count; at += dot->lanes) {
                const uint8_t *some = keys + p->k->nb[1] * at;
                float *to = memory->row[0].score + at;

                prefetch_rows(some + p->k->nb[1] * AHEAD, p->k->nb[1], memory->key_bytes,
                              dot->lanes);
                if (dot->score_few && rows <= ROWS_FEW) {
                        dot->score_few(p->k->type, some, p->k->nb[1], query, rows, p->k->ne[0], to,
                                       stride);
                        continue;
                }
                dot->key_tile[p->k->type]->pack(some, p->k->nb[1], dot->lanes, p->k->ne[0],
                                            memory->tile);
                dot->score_tile(memory->tile, query, rows, p->k->ne[0], to, stride);
        }
}

/* Scores of visible keys: scaled, capped, and with what the mask adds. Returns whether one is above
 * the running maximum. */
static bool scale_scores(const struct plan *p, const struct row *row, uint32_t keys, float *s) {
        const struct seen *seen = row->seen;
        const float maximum = row->maximum;
        uint32_t above = 0;

        if (seen->count == keys)
                for (uint32_t i = 0; i < keys; i++)
                        s[i] = row->score[i] * p->scale;
        else
                for (uint32_t i = 0; i < seen->count; i++)
                        s[i] = row->score[seen->key[i]] * p->scale;
        for (uint32_t i = 0; i < seen->count && p->cap != 0; i++)
                s[i] = p->cap * tanhf(s[i]);
        for (uint32_t i = 0; i < seen->count && p->mask; i++)
                s[i] += row->slope * seen->bias[i];
        for (uint32_t i = 0; i < seen->count; i++)
                above |= s[i] > maximum;
        return above != 0;
}

/* Scores to weights, with the running maximum and sum. Weights of -inf are 0: of a value that only
 * overflow has hidden. */
static void weigh_scores(const struct plan *p, struct row *row, uint32_t keys) {
        float s[KEYS], maximum = row->maximum, sum = row->sum;
        const uint32_t count = row->seen->count;
        const bool is_above = scale_scores(p, row, keys, s);

        for (uint32_t i = 0; i < count; i++)
                row->factor[i] = row->weight[i] = 1.0f;
        for (uint32_t i = 0; i < count && !is_above; i++) {
                row->weight[i] = s[i] != -INFINITY ? expf(s[i] - maximum) : 0;
                sum = sum + row->weight[i];
        }
        for (uint32_t i = 0; i < count && is_above; i++) {
                if (s[i] > maximum) {
                        row->factor[i] = expf(maximum - s[i]);
                        maximum = s[i];
                        sum = fmaf(sum, row->factor[i], 1.0f);
                } else {
                        row->weight[i] = s[i] != -INFINITY ? expf(s[i] - maximum) : 0;
                        sum = sum + row->weight[i];
                }
        }
        row->maximum = maximum;
        row->sum = sum;
}

/* The values of a block to the totals of rows that see all of its keys, four at a time. */
static void add_values_together(const struct plan *p, struct memory *memory, uint32_t rows,
                                const uint8_t *values, uint64_t stride, uint32_t count) {
        struct cpu_key_rows walk = {.values = values,
                                    .stride = stride,
                                    .ahead_bytes = memory->value_bytes,
                                    .count = count};

        for (uint32_t r = 0; r < rows; r++) {
                struct row *row = &memory->row[r];

                if (row->seen->count == count) {
                        walk.weight[walk.rows] = row->weight;
                        walk.factor[walk.rows] = row->factor;
                        walk.total[walk.rows++] = row->total;
                }
                if (walk.rows == 4 || (r + 1 == rows && walk.rows > 0)) {
                        p->call->dot->walk_rows(&walk, p->v->type == HR_TYPE_F16,
                                                (uint32_t) p->v->ne[0]);
                        walk.rows = 0;
                }
        }
}

static void add_values(const struct plan *p, struct memory *memory, uint32_t rows,
                       const uint8_t *base, uint32_t count) {
        const struct cpu_dot *dot = p->call->dot;
        const bool together = p->v->ne[0] % dot->lanes == 0;
        uint64_t stride = p->v->nb[1];

        if (p->v->type != HR_TYPE_F16 && p->v->type != HR_TYPE_F32) {
                for (uint32_t i = 0; i < count; i++)
                        dot->dequantize[p->v->type](base + stride * i,
                                                    memory->values + p->v->ne[0] * i, p->v->ne[0]);
                base = (const uint8_t *) memory->values;
                memory->value_bytes = 0;
                stride = (uint64_t) p->v->ne[0] * sizeof(float);
        }
        if (together)
                add_values_together(p, memory, rows, base, stride, count);
        for (uint32_t r = 0; r < rows; r++) {
                struct row *row = &memory->row[r];
                struct cpu_key_walk steps = {.values = base,
                                             .stride = stride,
                                             .count = row->seen->count,
                                             .key = row->seen->key,
                                             .weight = row->weight,
                                             .factor = row->factor};

                if (steps.count > 0 && !(together && steps.count == count))
                        dot->walk_values(&steps, p->v->type == HR_TYPE_F16, (uint32_t) p->v->ne[0],
                                         row->total);
        }
}

static struct item item_of(const struct plan *p, int64_t index) {
        int64_t chunk = index % p->chunks, group = index / p->chunks % p->groups;
        int64_t part = index / p->chunks / p->groups; /* all heads of a key lie side by side */
        int64_t first = p->rows * chunk / p->chunks, end = p->rows * (chunk + 1) / p->chunks;

        return (struct item){.batch = group / (p->groups / p->q->ne[3]),
                             .first_row = first,
                             .number = group * p->rows + first,
                             .part = part,
                             .rows = (uint32_t) (end - first)};
}

static void start_rows(const struct plan *p, const struct item *item, struct memory *memory) {
        int64_t group = item->number / p->rows % (p->groups / p->q->ne[3]);

        for (uint32_t r = 0; r < item->rows; r++) {
                struct row *row = &memory->row[r];

                row->query = (item->first_row + r) / p->share;
                row->head = group * p->share + (item->first_row + r) % p->share;
                row->slope = cpu_head_slope(hr_param_f32(p->call->step->params, 1), p->q->ne[2],
                                            row->head);
                row->sum = 0;
                row->maximum = -INFINITY;
                memset(row->total, 0, (size_t) p->v->ne[0] * sizeof(float));
                prepare_query(p, row, item->batch);
        }
}

static void walk_item(const struct plan *p, const struct item *item, struct memory *memory) {
        int64_t key = p->parts > 1 ? item->part * PART_KEYS : 0;
        int64_t end = p->parts > 1 ? HR_MIN(key + PART_KEYS, p->k->ne[1]) : p->k->ne[1];
        const int64_t head = memory->row[0].head;
        const int64_t k2 = head / (p->q->ne[2] / p->k->ne[2]);
        const int64_t k3 = item->batch / (p->q->ne[3] / p->k->ne[3]);
        const int64_t v2 = head / (p->q->ne[2] / p->v->ne[2]);
        const int64_t v3 = item->batch / (p->q->ne[3] / p->v->ne[3]);
        const int64_t part = item->batch * p->parts + item->part;

        memory->key_bytes = bytes_ahead(p, p->k, k2, memory->fetched != part);
        memory->value_bytes = bytes_ahead(p, p->v, v2, memory->fetched != part);
        memory->fetched = part;
        for (; key < end; key += KEYS) {
                const uint32_t count = (uint32_t) HR_MIN((int64_t) KEYS, end - key);

                if (!find_seen(p, memory, item, key, count))
                        continue;
                score_block(p, memory, item->rows, cpu_at(p->k, key, k2, k3), count);
                for (uint32_t r = 0; r < item->rows; r++)
                        weigh_scores(p, &memory->row[r], count);
                add_values(p, memory, item->rows, cpu_at(p->v, key, v2, v3), count);
        }
}

static uint8_t *result_of(const struct plan *p, int64_t head, int64_t query, int64_t batch) {
        return cpu_at(&p->call->step->result, head, query, batch);
}

/* Results, or what is to be joined. */
static void store_rows(const struct plan *p, const struct item *item, struct memory *memory) {
        float *parts = (float *) (void *) p->call->scratch;

        for (uint32_t r = 0; r < item->rows; r++) {
                struct row *row = &memory->row[r];
                float *to;

                if (p->parts == 1) {
                        cpu_finish_attention(p->call, p->sinks, row->head, row->total, row->sum,
                                             row->maximum,
                                             result_of(p, row->head, row->query, item->batch));
                        continue;
                }
                to = parts +
                     (uint64_t) ((item->number + r) * p->parts + item->part) * p->part_floats;
                memcpy(to, row->total, (size_t) p->v->ne[0] * sizeof(float));
                to[p->v->ne[0]] = row->sum;
                to[p->v->ne[0] + 1] = row->maximum;
        }
}

/* All parts of a row, in order, into its first one; and its result. */
static void join_row(const struct plan *p, int64_t number) {
        const int64_t size = p->v->ne[0], per_batch = p->groups / p->q->ne[3];
        const int64_t group = number / p->rows, row = number % p->rows;
        const int64_t head = group % per_batch * p->share + row % p->share;
        float *total = (float *) (void *) p->call->scratch +
                       (uint64_t) (number * p->parts) * p->part_floats;
        float maximum = -INFINITY, sum = 0;

        for (int64_t i = 0; i < p->parts; i++)
                maximum = HR_MAX(maximum, total[(uint64_t) i * p->part_floats + size + 1]);
        for (int64_t i = 0; i < p->parts; i++) {
                float *part = total + (uint64_t) i * p->part_floats, own = part[size + 1];
                float factor = own == -INFINITY ? 0 : expf(own - maximum);

                sum += part[size] * factor;
                for (int64_t d = 0; d < size; d++)
                        total[d] = i == 0 ? part[d] * factor : total[d] + part[d] * factor;
        }
        cpu_finish_attention(p->call, p->sinks, head, total, sum, maximum,
                             result_of(p, head, row / p->share, group / per_batch));
}

/* Items that a thread takes at once: where there are parts enough, those of all heads of one, whose
 * keys lie side by side. */
static int64_t items_together(const struct plan *p, uint32_t threads) {
        return p->chunks == 1 && p->parts >= PARTS_MANY * (int64_t) threads
                       ? p->groups / p->q->ne[3]
                       : 1;
}

void cpu_attention_walk(const struct cpu_call *call) {
        struct plan plan = plan_of(call->step, call->dot);
        struct memory *memory = memory_at(&plan, call->scratch + plan.parts_bytes +
                                                         plan.thread_bytes * call->thread);
        int64_t rows = plan.groups * plan.rows, items, together, first, end;
        int64_t index;

        plan.call = call;
        memory->fetched = -1;
        if (plan.cap != 0)
                plan.scale /= plan.cap;
        if (rows == 0)
                return;
        plan.chunks = chunks_of(&plan, call->threads);
        items = plan.groups * plan.chunks * plan.parts;
        if (items > UINT32_MAX)
                return; /* more than any memory has results for */
        together = items_together(&plan, call->threads);
        while ((index = cpu_next_item(call, (uint32_t) (items / together))) < items / together)
                for (int64_t i = 0; i < together; i++) {
                        struct item item = item_of(&plan, index * together + i);

                        start_rows(&plan, &item, memory);
                        walk_item(&plan, &item, memory);
                        store_rows(&plan, &item, memory);
                }
        if (plan.parts == 1)
                return;
        cpu_barrier(call);
        cpu_share(call, rows, 1, &first, &end);
        for (; first < end; first++)
                join_row(&plan, first);
}
