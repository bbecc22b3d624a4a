/*
 * FLASH_ATTN_EXT query by query, key by key, and what both ways end with.
 *
 * A work item is one query of one head. Its keys are visited in order; those that the mask hides
 * are left out. Scores of a block of keys come first, since they do not depend on each other; then
 * the running maximum says by what each value is weighed, and by what the total is multiplied where
 * a new maximum appears; then the values are added, one after the other. With f16 values the total
 * is rounded to f16 after each of them, as ggml keeps it, else it is f32. Q is rounded to K's
 * partner type.
 *
 * Scratch of a thread: struct walk_memory.
 */
#include "backends/cpu/matrix/flash_attn.h"

#include "backends/cpu/matrix/half.h"

float cpu_head_slope(float bias_max, int64_t heads, int64_t head) {
        int64_t power = 1;
        float exponent;

        if (bias_max <= 0)
                return 1.0f;
        while (power * 2 <= heads)
                power *= 2;
        exponent = head < power ? -bias_max / (float) power * (float) (head + 1)
                                : -bias_max / 2.0f / (float) power *
                                          (float) (2 * (head - power) + 1);
        return powf(2.0f, exponent);
}

void cpu_finish_attention(const struct cpu_call *call, const struct hr_operand *sinks,
                          int64_t head, float *total, float sum, float maximum, uint8_t *out) {
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

/* Where a thread's memory lies in its scratch. */
struct walk_memory {
        uint64_t column_bytes, row_bytes, total_bytes, value_bytes;
};

static struct walk_memory walk_memory_of(const struct hr_step *step, const struct cpu_dot *dot) {
        const struct hr_operand *k = &step->sources[1], *v = &step->sources[2];
        struct walk_memory memory = {
                .column_bytes = cpu_round_up(cpu_column_bytes(dot->tile[k->type], k->ne[0])),
                .row_bytes = cpu_round_up(cpu_times((uint64_t) k->ne[0], sizeof(float))),
                .total_bytes = cpu_round_up(cpu_times((uint64_t) v->ne[0], sizeof(float))),
        };

        if (v->type != HR_TYPE_F16 && v->type != HR_TYPE_F32)
                memory.value_bytes = cpu_times(memory.total_bytes, KEYS);
        return memory;
}

uint64_t cpu_attention_walk_scratch(const struct hr_step *step) {
        struct walk_memory memory = walk_memory_of(step, cpu_any_dot());

        return cpu_plus(cpu_plus(memory.column_bytes, memory.row_bytes),
                        cpu_plus(memory.total_bytes, memory.value_bytes));
}

struct walk {
        const struct cpu_call *call;
        const struct hr_operand *q, *k, *v, *mask;
        float scale, cap, slope;
        bool is_float; /* keys are multiplied in place */
        int64_t query, head, batch;
        uint8_t *column; /* the query in K's partner type */
        float *row, *total, *values;
        float sum, maximum;
};

static void prepare_query(struct walk *walk) {
        const struct cpu_dot *dot = walk->call->dot;
        int64_t size = walk->q->ne[0];
        const uint8_t *at = cpu_at(walk->q, walk->query, walk->head, walk->batch);
        const float *row = cpu_float_row(dot, walk->q->type, at, walk->q->nb[0], size, walk->row);

        if (!walk->is_float) {
                dot->tile[walk->k->type]->columns(&row, 1, size, walk->column);
                return;
        }
        for (int64_t i = 0; i < size; i++) {
                float x = row[i];

                if (walk->k->type == HR_TYPE_F16)
                        x = cpu_half_to_float(cpu_float_to_half(x));
                else if (walk->k->type == HR_TYPE_BF16)
                        x = cpu_bf16_to_float(cpu_float_to_bf16(x));
                walk->row[i] = x;
        }
}

static void score_block(const struct walk *walk, int64_t key, uint32_t keys, float *ret_scores) {
        const struct hr_operand *k = walk->k;
        const struct cpu_dot *dot = walk->call->dot;
        int64_t k2 = walk->head / (walk->q->ne[2] / k->ne[2]);
        int64_t k3 = walk->batch / (walk->q->ne[3] / k->ne[3]);
        const uint8_t *base = cpu_at(k, key, k2, k3);
        float out[CPU_LANES_MAX];

        if (walk->is_float) {
                dot->score_keys(k->type, base, k->nb[1], keys, walk->row, k->ne[0], ret_scores);
                return;
        }
        for (uint32_t at = 0; at < keys; at += dot->lanes) {
                uint32_t rows = HR_MIN(dot->lanes, keys - at);

                dot->tile[k->type]->dot_rows(base + k->nb[1] * at, k->nb[1], rows, k->ne[0],
                                             walk->column, out);
                memcpy(ret_scores + at, out, rows * sizeof out[0]);
        }
}

/* The keys of a block that are not hidden, and what the mask adds to their scores. */
static uint32_t visible_keys(const struct walk *walk, int64_t key, uint32_t keys,
                             uint32_t *ret_visible, float *ret_bias) {
        float mask[KEYS] = { 0 };
        uint32_t count = 0;

        if (walk->mask) {
                const uint8_t *at = cpu_at(walk->mask, walk->query, walk->head % walk->mask->ne[2],
                                           walk->batch % walk->mask->ne[3]);

                walk->call->dot->dequantize[HR_TYPE_F16](at + (uint64_t) key * sizeof(uint16_t),
                                                         mask, keys);
        }
        for (uint32_t i = 0; i < keys; i++) {
                if (mask[i] == -INFINITY)
                        continue;
                ret_visible[count] = i;
                ret_bias[count++] = walk->slope * mask[i];
        }
        return count;
}

static void add_values(struct walk *walk, int64_t key, const uint32_t *visible, uint32_t count,
                       const float *weight, const float *factor) {
        const struct hr_operand *v = walk->v;
        const struct cpu_dot *dot = walk->call->dot;
        int64_t v2 = walk->head / (walk->q->ne[2] / v->ne[2]);
        int64_t v3 = walk->batch / (walk->q->ne[3] / v->ne[3]);
        const uint8_t *base = cpu_at(v, key, v2, v3);
        struct cpu_key_walk steps = { .values = base,
                                  .stride = v->nb[1],
                                  .count = count,
                                  .key = visible,
                                  .weight = weight,
                                  .factor = factor };

        if (v->type != HR_TYPE_F16 && v->type != HR_TYPE_F32) {
                for (uint32_t i = 0; i < count; i++)
                        dot->dequantize[v->type](base + v->nb[1] * visible[i],
                                                 walk->values + v->ne[0] * visible[i], v->ne[0]);
                steps.values = (const uint8_t *) walk->values;
                steps.stride = (uint64_t) v->ne[0] * sizeof(float);
        }
        dot->walk_values(&steps, v->type == HR_TYPE_F16, (uint32_t) v->ne[0], walk->total);
}

static void walk_keys(struct walk *walk, int64_t key, uint32_t keys) {
        float score[KEYS], bias[KEYS], weight[KEYS], factor[KEYS];
        uint32_t visible[KEYS], count = visible_keys(walk, key, keys, visible, bias);

        if (count == 0)
                return;
        score_block(walk, key, keys, score);
        for (uint32_t i = 0; i < count; i++) {
                float s = score[visible[i]] * walk->scale;

                if (walk->cap != 0)
                        s = walk->cap * tanhf(s);
                if (walk->mask)
                        s += bias[i];
                factor[i] = weight[i] = 1.0f;
                if (s > walk->maximum) {
                        factor[i] = expf(walk->maximum - s);
                        walk->maximum = s;
                } else if (s != -INFINITY) {
                        weight[i] = expf(s - walk->maximum);
                } else {
                        weight[i] = 0; /* of a value that only overflow has hidden */
                }
                walk->sum = fmaf(walk->sum, factor[i], weight[i]);
        }
        add_values(walk, key, visible, count, weight, factor);
}

static void walk_item(struct walk *walk, const struct hr_operand *sinks, int64_t item) {
        const struct hr_operand *q = walk->q, *out = &walk->call->step->result;

        walk->query = item % q->ne[1];
        walk->head = item / q->ne[1] % q->ne[2];
        walk->batch = item / q->ne[1] / q->ne[2];
        walk->slope = cpu_head_slope(hr_param_f32(walk->call->step->params, 1), q->ne[2],
                                     walk->head);
        walk->sum = 0;
        walk->maximum = -INFINITY;
        memset(walk->total, 0, (size_t) out->ne[0] * sizeof(float));
        prepare_query(walk);
        for (int64_t key = 0; key < walk->k->ne[1]; key += KEYS)
                walk_keys(walk, key, (uint32_t) HR_MIN((int64_t) KEYS, walk->k->ne[1] - key));
        cpu_finish_attention(walk->call, sinks, walk->head, walk->total, walk->sum, walk->maximum,
                             cpu_at(out, walk->head, walk->query, walk->batch));
}

void cpu_attention_walk(const struct cpu_call *call) {
        const struct hr_step *step = call->step;
        struct walk_memory memory = walk_memory_of(step, call->dot);
        uint8_t *own = call->scratch + cpu_attention_walk_scratch(step) * call->thread;
        struct walk walk = { .call = call,
                             .q = &step->sources[0],
                             .k = &step->sources[1],
                             .v = &step->sources[2],
                             .mask = cpu_source_is_present(step, 3) ? &step->sources[3] : NULL,
                             .scale = hr_param_f32(step->params, 0),
                             .cap = hr_param_f32(step->params, 2) };
        const struct hr_operand *sinks = cpu_source_is_present(step, 4) ? &step->sources[4] : NULL;
        int64_t items = walk.q->ne[1] * walk.q->ne[2] * walk.q->ne[3], first, end;

        walk.is_float = call->dot->tile[walk.k->type]->is_float;
        walk.column = own;
        walk.row = (float *) (void *) (own += memory.column_bytes);
        walk.total = (float *) (void *) (own += memory.row_bytes);
        walk.values = (float *) (void *) (own + memory.total_bytes);
        if (walk.cap != 0)
                walk.scale /= walk.cap;
        if (items == 0)
                return;
        while (cpu_next_range(call, items, &first, &end))
                for (; first < end; first++)
                        walk_item(&walk, sinks, first);
}
