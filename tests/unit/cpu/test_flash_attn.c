/* FLASH_ATTN_EXT as a kernel, against softmax in double. */
#include <math.h>
#include <string.h>

#include "backends/cpu/matrix/half.h"
#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

struct layout {
        uint32_t k_type, v_type;
        int64_t size, value_size, queries, keys, heads, key_heads, batches;
        float bias_max, cap;
        bool mask, mask_per_head, sinks, permuted;
};

struct attention_case {
        struct hr_operand sources[5];
        int32_t params[HR_OP_PARAM_WORDS];
        struct hr_step step;
};

static void put(int32_t *params, int word, float value) {
        memcpy(&params[word], &value, sizeof value);
}

static void build(struct attention_case *c, const struct layout *l) {
        struct hr_operand absent = {.type = HR_OPERAND_ABSENT};

        memset(c, 0, sizeof *c);
        put(c->params, 0, 1.0f / sqrtf((float) l->size));
        put(c->params, 1, l->bias_max);
        put(c->params, 2, l->cap);
        if (l->permuted) {
                c->sources[0] = case_swap(
                        case_operand(HR_TYPE_F32, l->size, l->heads, l->queries, l->batches), 1, 2);
                c->sources[1] = case_swap(
                        case_operand(l->k_type, l->size, l->key_heads, l->keys, l->batches), 1, 2);
                c->sources[2] = case_swap(
                        case_operand(l->v_type, l->value_size, l->key_heads, l->keys, l->batches),
                        1, 2);
        } else {
                c->sources[0] =
                        case_operand(HR_TYPE_F32, l->size, l->queries, l->heads, l->batches);
                c->sources[1] = case_operand(l->k_type, l->size, l->keys, l->key_heads, l->batches);
                c->sources[2] =
                        case_operand(l->v_type, l->value_size, l->keys, l->key_heads, l->batches);
        }
        c->sources[3] = l->mask ? case_operand(HR_TYPE_F16, l->keys, l->queries + 3,
                                               l->mask_per_head ? l->heads : 1, 1)
                                : absent;
        c->sources[4] = l->sinks ? case_operand(HR_TYPE_F32, l->heads, 1, 1, 1) : absent;
        c->step = (struct hr_step){.op = HR_OP_FLASH_ATTN_EXT,
                                   .params = c->params,
                                   .source_count = 5,
                                   .sources = c->sources};
}

static void hide(struct attention_case *c, int64_t key, int64_t query) {
        const struct hr_operand *mask = &c->sources[3];

        for (int64_t h = 0; h < mask->ne[2]; h++) {
                uint16_t hidden = 0xfc00;

                memcpy((uint8_t *) mask->data + (uint64_t) key * 2 +
                               (uint64_t) query * mask->nb[1] + (uint64_t) h * mask->nb[2],
                       &hidden, sizeof hidden);
        }
}

static double slope(const struct layout *l, int64_t head) {
        double base = pow(2, floor(log2((double) l->heads)));

        if (l->bias_max == 0)
                return 1;
        return head < base ? pow(2, -l->bias_max / base * (double) (head + 1))
                           : pow(2, -l->bias_max / 2 / base * (2 * ((double) head - base) + 1));
}

/* One output row in double. */
static void expected_row(const struct attention_case *c, const struct layout *l, int64_t b,
                         int64_t h, int64_t n, double *ret_row) {
        const struct hr_operand *s = c->sources;
        double *scores = calloc((size_t) l->keys, sizeof *scores), top = -INFINITY, sum = 0;
        int64_t kh = h / (l->heads / l->key_heads);
        float scale;

        memcpy(&scale, c->params, sizeof scale);
        for (int64_t i = 0; i < l->keys; i++) {
                double mask = l->mask ? case_value(&s[3], i, n, l->mask_per_head ? h : 0, 0) : 0;

                if (mask == -INFINITY) { /* whatever the key holds */
                        scores[i] = -INFINITY;
                        continue;
                }
                for (int64_t d = 0; d < l->size; d++)
                        scores[i] += case_value(&s[0], d, n, h, b) * case_value(&s[1], d, i, kh, b);
                scores[i] *= scale;
                if (l->cap != 0)
                        scores[i] = l->cap * tanh(scores[i] / l->cap);
                scores[i] += slope(l, h) * mask;
                top = fmax(top, scores[i]);
        }
        if (l->sinks) {
                top = fmax(top, case_value(&s[4], h, 0, 0, 0));
                sum = exp(case_value(&s[4], h, 0, 0, 0) - top);
        }
        for (int64_t d = 0; d < l->value_size; d++)
                ret_row[d] = 0;
        for (int64_t i = 0; i < l->keys && top > -INFINITY; i++) {
                double weight = exp(scores[i] - top);

                sum += weight;
                for (int64_t d = 0; d < l->value_size && weight > 0; d++)
                        ret_row[d] += weight * case_value(&s[2], d, i, kh, b);
        }
        for (int64_t d = 0; d < l->value_size && sum > 0; d++)
                ret_row[d] /= sum;
        free(scores);
}

/* Totals that are kept in f16, as those of f16 values are below 64 queries, lose this much. */
#define HALF_TOTAL_LIMIT 1e-5

static void check(struct attention_case *c, const struct layout *l, double limit) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        double *row = calloc((size_t) l->value_size, sizeof *row);

        if (l->v_type == HR_TYPE_F16 && l->queries < 64)
                limit = HR_MAX(limit, HALF_TOTAL_LIMIT);
        for (uint32_t s = 0; s < sets; s++) {
                struct case_error error = {0};
                struct hr_operand first = {0};

                for (uint32_t threads = 1; threads <= 3; threads++) {
                        c->step.result = case_result(HR_TYPE_F32, l->value_size, l->heads,
                                                     l->queries, l->batches);
                        HR_EXPECT_EQ(case_run(&cpu_kernel_flash_attn, &c->step, dots[s], threads),
                                     0);
                        case_check_bands(&c->step.result);
                        if (threads == 1)
                                first = c->step.result;
                        HR_EXPECT(memcmp(first.data, c->step.result.data, first.room) == 0);
                }
                for (int64_t b = 0; b < l->batches; b++)
                        for (int64_t n = 0; n < l->queries; n++)
                                for (int64_t h = 0; h < l->heads; h++) {
                                        expected_row(c, l, b, h, n, row);
                                        for (int64_t d = 0; d < l->value_size; d++)
                                                case_compare(&error, row[d],
                                                             case_value(&first, d, h, n, b));
                                }
                if (!(case_nmse(&error) <= limit))
                        hr_test_fail(__FILE__, __LINE__, "%s %s/%s: nmse %g", dots[s]->name,
                                     hr_type_name(l->k_type), hr_type_name(l->v_type),
                                     case_nmse(&error));
        }
        free(row);
        case_free_all();
}

static void check_layout(struct layout l, double limit) {
        struct attention_case c;

        build(&c, &l);
        if (l.mask) /* causal, and a block that nobody sees */
                for (int64_t n = 0; n < l.queries; n++)
                        for (int64_t i = 0; i < l.keys; i++)
                                if (i > l.keys - l.queries + n || (i >= 64 && i < 128))
                                        hide(&c, i, n);
        check(&c, &l, limit);
}

HR_TEST_LIMIT(attention_of_every_type, 120) {
        static const struct {
                uint32_t k, v;
                double limit;
        } pairs[] = {{HR_TYPE_F32, HR_TYPE_F32, 1e-11},     {HR_TYPE_F16, HR_TYPE_F16, 1e-6},
                     {HR_TYPE_BF16, HR_TYPE_BF16, 1e-5},    {HR_TYPE_F32, HR_TYPE_F16, 1e-11},
                     {HR_TYPE_Q8_0, HR_TYPE_Q8_0, 1e-4},    {HR_TYPE_Q8_0, HR_TYPE_Q4_0, 1e-4},
                     {HR_TYPE_Q4_1, HR_TYPE_Q4_1, 1e-4},    {HR_TYPE_Q5_0, HR_TYPE_Q5_1, 1e-4},
                     {HR_TYPE_IQ4_NL, HR_TYPE_IQ4_NL, 1e-4}};

        for (size_t t = 0; t < HR_ARRAY_LENGTH(pairs); t++) {
                check_layout((struct layout){pairs[t].k, pairs[t].v, 64, 64, 3, 75, 2, 2, 1,
                                             .mask = true},
                             pairs[t].limit);
                check_layout((struct layout){pairs[t].k, pairs[t].v, 64, 32, 1, 33, 6, 2, 2,
                                             .permuted = true, .sinks = true},
                             pairs[t].limit);
        }
}

HR_TEST_LIMIT(shapes_and_options, 120) {
        struct layout base = {HR_TYPE_F32, HR_TYPE_F32, 40, 24, 5, 200, 6, 3, 1, .mask = true};

        for (int i = 0; i < 32; i++) {
                struct layout l = base;

                l.bias_max = i & 1 ? 8 : 0;
                l.cap = i & 2 ? 5 : 0;
                l.sinks = i & 4;
                l.mask_per_head = i & 8;
                l.permuted = i & 16;
                check_layout(l, 1e-11);
        }
        check_layout((struct layout){HR_TYPE_F32, HR_TYPE_F32, 1, 1, 1, 1, 1, 1, 1}, 1e-11);
        check_layout(
                (struct layout){HR_TYPE_F32, HR_TYPE_F32, 37, 50, 70, 131, 9, 3, 2, .mask = true},
                1e-11);
}

/* One query and many keys: cut into chunks, joined in order. */
HR_TEST_LIMIT(many_keys, 120) {
        check_layout(
                (struct layout){HR_TYPE_F32, HR_TYPE_F32, 16, 16, 1, 1700, 3, 1, 1, .mask = true},
                1e-11);
        check_layout(
                (struct layout){HR_TYPE_F32, HR_TYPE_F32, 16, 16, 2, 1025, 4, 2, 1, .sinks = true},
                1e-11);
}

HR_TEST_LIMIT(rows_without_keys, 120) {
        for (int sinks = 0; sinks < 2; sinks++)
                for (int64_t keys = 40; keys <= 1200; keys += 1160) {
                        struct layout l = {HR_TYPE_F32,  HR_TYPE_F32,   16, 16, 3, keys, 2, 1, 1,
                                           .mask = true, .sinks = sinks};
                        struct attention_case c;

                        build(&c, &l);
                        for (int64_t i = 0; i < keys; i++)
                                hide(&c, i, 1);
                        check(&c, &l, 1e-11); /* expected_row gives zeros */
                }
}

/* A cache that nothing was written into yet: zeros, whichever way is taken. */
HR_TEST(no_keys_at_all) {
        static const uint32_t types[] = {HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_Q8_0};
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);

        for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++)
                for (int64_t queries = 1; queries <= 70; queries += 69) {
                        struct layout l = {types[t], types[t], 32, 32, queries, 0, 4, 2, 1};
                        struct attention_case c;

                        build(&c, &l);
                        for (uint32_t s = 0; s < sets; s++) {
                                c.step.result = case_result(HR_TYPE_F32, 32, 4, queries, 1);
                                HR_EXPECT_EQ(case_run(&cpu_kernel_flash_attn, &c.step, dots[s], 2),
                                             0);
                                for (int64_t i = 0; i < 32 * 4 * queries; i++)
                                        HR_EXPECT(((float *) c.step.result.data)[i] == 0);
                        }
                        case_free_all();
                }
}

/* What hidden keys and values hold does not matter, not even NaN. */
HR_TEST(hidden_garbage) {
        struct layout l = {HR_TYPE_F32, HR_TYPE_F32, 16, 16, 3, 100, 2, 1, 1, .mask = true};
        struct attention_case c;

        build(&c, &l);
        for (int64_t i = 90; i < 100; i++) {
                for (int64_t n = 0; n < 3; n++)
                        hide(&c, i, n);
                for (int64_t d = 0; d < 16; d++)
                        ((float *) c.sources[1].data)[i * 16 + d] =
                                ((float *) c.sources[2].data)[i * 16 + d] = NAN;
        }
        check(&c, &l, 1e-11);
}

HR_TEST(unsupported_attention) {
        struct layout l = {HR_TYPE_F16, HR_TYPE_F16, 32, 32, 1, 8, 1, 1, 1};
        struct attention_case c;

        build(&c, &l);
        c.step.result = case_result(HR_TYPE_F32, 32, 1, 1, 1);
        HR_EXPECT(cpu_kernel_flash_attn.supports(&c.step));
        c.sources[1].type = HR_TYPE_I16;
        HR_EXPECT(!cpu_kernel_flash_attn.supports(&c.step));
        c.sources[1].type = HR_TYPE_F16;
        c.sources[3] = case_operand(HR_TYPE_F32, 8, 1, 1, 1);
        HR_EXPECT(!cpu_kernel_flash_attn.supports(&c.step));
}
