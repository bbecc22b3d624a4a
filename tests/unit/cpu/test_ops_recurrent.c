/* Recurrences and their companions, against their definitions in double. */
#include "tests/unit/cpu/ops_check.h"

#include <math.h>
#include <string.h>

#define PARAM_F32(value) ((union { float f; int32_t i; }) { .f = (value) }).i

/* ---- State space models ---------------------------------------------------------------------- */

static double ssm_conv(const struct hr_step *step, int64_t channel, int64_t t, int64_t sequence,
                       int64_t i3) {
        double sum = 0;

        for (int64_t k = 0; k < step->sources[1].ne[0]; k++)
                sum += case_value(&step->sources[0], t + k, channel, sequence, 0) *
                       case_value(&step->sources[1], k, channel, 0, 0);
        return sum;
}

HR_TEST(ssm_conv_result) {
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 11, 37, 3, 1),
                case_operand(HR_TYPE_F32, 4, 37, 1, 1),
        };
        struct hr_step step = ops_step(HR_OP_SSM_CONV, NULL, 2, sources,
                                       case_result(HR_TYPE_F32, 37, 8, 3, 1));

        ops_check(&cpu_kernel_ssm_conv, &step, ssm_conv, 1e-12);
        case_free_all();
}

/* state[N,D,H,S] x[D,H,T,B] dt A B C ids. The definition recomputes everything for each element. */
static double ssm_scan(const struct hr_step *step, int64_t index, int64_t i1, int64_t i2,
                       int64_t i3) {
        const struct hr_operand *s = step->sources;
        int64_t n = s[0].ne[0], rows = s[0].ne[1], heads = s[0].ne[2];
        int64_t tokens = s[1].ne[2], sequences = s[1].ne[3];
        int64_t outputs = rows * heads * tokens * sequences, last, element = -1;
        double y = 0, wanted = 0;
        int64_t row, head, sequence;

        if (index < outputs) {
                row = index % rows;
                head = index / rows % heads;
                last = index / rows / heads % tokens;
                sequence = index / rows / heads / tokens;
        } else {
                index -= outputs;
                element = index % n;
                row = index / n % rows;
                head = index / n / rows % heads;
                sequence = index / n / rows / heads % sequences;
                last = tokens - 1 - index / n / rows / heads / sequences;
                if (last < 0)
                        return 0;
        }
        for (int64_t e = 0; e < n; e++) {
                double state = case_value(&s[0], e, row, head,
                                          (int64_t) case_value(&s[6], sequence, 0, 0, 0));
                int64_t group = head / (heads / s[4].ne[1]);

                for (int64_t t = 0; t <= last; t++) {
                        double dt = log1p(exp(case_value(&s[2], head, t, sequence, 0)));
                        double a = case_value(&s[3], s[3].ne[0] == 1 ? 0 : e, head, 0, 0);

                        state = state * exp(dt * a) + case_value(&s[1], row, head, t, sequence) *
                                                              dt *
                                                              case_value(&s[4], e, group, t,
                                                                         sequence);
                }
                y += state * case_value(&s[5], e, group, last, sequence);
                if (e == element)
                        wanted = state;
        }
        return element >= 0 ? wanted : y;
}

static void scan_sources(int64_t decay, struct hr_operand *ret_sources) {
        ret_sources[0] = case_operand(HR_TYPE_F32, 19, 3, 6, 4);
        ret_sources[1] = case_operand(HR_TYPE_F32, 3, 6, 5, 2);
        ret_sources[2] = case_operand(HR_TYPE_F32, 6, 5, 2, 1);
        ret_sources[3] = case_operand(HR_TYPE_F32, decay, 6, 1, 1);
        ret_sources[4] = case_operand(HR_TYPE_F32, 19, 2, 5, 2);
        ret_sources[5] = case_operand(HR_TYPE_F32, 19, 2, 5, 2);
        ret_sources[6] = case_operand(HR_TYPE_I32, 2, 1, 1, 1);
        memcpy(ret_sources[6].data, (const int32_t[]) { 3, 0 }, 8);
}

HR_TEST_LIMIT(ssm_scan_result, 60) {
        /* One decay per element; one per head with fewer and with more snapshots than tokens. */
        static const struct { int64_t decay; int32_t snapshots; } cases[] = {
                { 19, 1 }, { 1, 1 }, { 1, 3 }, { 1, 8 }
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const int32_t params[16] = { cases[i].snapshots };
                struct hr_operand sources[7];
                struct hr_step step;

                scan_sources(cases[i].decay, sources);
                step = ops_step(HR_OP_SSM_SCAN, params, 7, sources,
                                case_result(HR_TYPE_F32, 180 + 684 * params[0], 1, 1, 1));
                ops_check(&cpu_kernel_ssm_scan, &step, ssm_scan, 1e-12);
                case_free_all();
        }
}

/* Snapshots of nothing cost nothing, however many are asked for. */
HR_TEST_LIMIT(ssm_scan_without_states, 60) {
        const int32_t params[16] = { INT32_MAX };
        struct hr_operand sources[7];
        struct hr_step step;

        sources[0] = case_operand(HR_TYPE_F32, 0, 1, 4096, 1);
        sources[1] = case_operand(HR_TYPE_F32, 1, 4096, 1, 1);
        sources[2] = case_operand(HR_TYPE_F32, 4096, 1, 1, 1);
        sources[3] = case_operand(HR_TYPE_F32, 1, 4096, 1, 1);
        sources[4] = sources[5] = case_operand(HR_TYPE_F32, 0, 1, 1, 1);
        sources[6] = case_operand(HR_TYPE_I32, 1, 1, 1, 1);
        memset(sources[6].data, 0, sizeof(int32_t));
        step = ops_step(HR_OP_SSM_SCAN, params, 7, sources,
                        case_result(HR_TYPE_F32, 4096, 1, 1, 1));
        HR_EXPECT_EQ(ops_run(&cpu_kernel_ssm_scan, &step, "auto", 2), 0);
        for (int64_t i = 0; i < 4096; i++)
                HR_EXPECT(case_value(&step.result, i, 0, 0, 0) == 0);
        case_free_all();
}

HR_TEST(ssm_scan_refuses_state_ids) {
        static const int32_t params[16] = { 1 }, bad[] = { -1, 4, INT32_MAX, INT32_MIN };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++) {
                struct hr_operand sources[7];
                struct hr_step step;

                scan_sources(1, sources);
                memcpy((int32_t *) sources[6].data + 1, &bad[i], sizeof bad[i]);
                step = ops_step(HR_OP_SSM_SCAN, params, 7, sources,
                                case_result(HR_TYPE_F32, 180 + 684, 1, 1, 1));
                HR_EXPECT(ops_run(&cpu_kernel_ssm_scan, &step, "auto", 3) > 0);
                case_check_bands(&step.result);
                case_free_all();
        }
}

/* ---- Linear attention ------------------------------------------------------------------------ */

#define SIZE 21
#define HEADS 3

/* state[row][column] of one head. */
struct head {
        double state[SIZE][SIZE], out[SIZE];
};

static double at(const struct hr_step *step, int source, int64_t i, int64_t head, int64_t token) {
        return case_value(&step->sources[source], i, head, token, 0);
}

static void wkv6(const struct hr_step *step, struct head *h, int64_t head, int64_t t) {
        for (int j = 0; j < SIZE; j++) {
                h->out[j] = 0;
                for (int i = 0; i < SIZE; i++) {
                        double kv = at(step, 0, i, head, t) * at(step, 1, j, head, t);

                        h->out[j] += at(step, 2, i, head, t) *
                                     (h->state[i][j] + at(step, 3, i, head, 0) * kv);
                        h->state[i][j] = at(step, 4, i, head, t) * h->state[i][j] + kv;
                }
        }
}

static void gla(const struct hr_step *step, struct head *h, int64_t head, int64_t t) {
        for (int j = 0; j < SIZE; j++) {
                h->out[j] = 0;
                for (int i = 0; i < SIZE; i++) {
                        h->state[i][j] = at(step, 3, i, head, t) * h->state[i][j] +
                                         at(step, 0, i, head, t) * at(step, 1, j, head, t);
                        h->out[j] += (double) hr_param_f32(step->params, 0) *
                                     at(step, 2, i, head, t) * h->state[i][j];
                }
        }
}

static void wkv7(const struct hr_step *step, struct head *h, int64_t head, int64_t t) {
        for (int i = 0; i < SIZE; i++) {
                double removed = 0;

                for (int j = 0; j < SIZE; j++)
                        removed += h->state[i][j] * at(step, 4, j, head, t);
                h->out[i] = 0;
                for (int j = 0; j < SIZE; j++) {
                        h->state[i][j] = h->state[i][j] * at(step, 1, j, head, t) +
                                         at(step, 3, i, head, t) * at(step, 2, j, head, t) +
                                         removed * at(step, 5, j, head, t);
                        h->out[i] += h->state[i][j] * at(step, 0, j, head, t);
                }
        }
}

/* Heads that wkv_head() has made, until a case forgets them. */
static struct known {
        bool is_known;
        int64_t sequence, last;
        struct head head;
} known_heads[HEADS];

/* A head of a sequence after token `last`. The elements of a row ask for the same few. */
static const struct head *wkv_head(const struct hr_step *step, int64_t head, int64_t sequence,
                                   int64_t first, int64_t last) {
        const struct hr_operand *state = &step->sources[step->source_count - 1];
        struct known *known = &known_heads[head];
        struct head *h = &known->head;

        if (known->is_known && known->sequence == sequence && known->last == last)
                return h;
        known->is_known = true;
        known->sequence = sequence;
        known->last = last;
        for (int i = 0; i < SIZE; i++)
                for (int j = 0; j < SIZE; j++)
                        h->state[i][j] = case_value(state, (head * SIZE + i) * SIZE + j, sequence,
                                                    0, 0);
        for (int64_t t = first; t <= last; t++) {
                if (step->op == HR_OP_RWKV_WKV6)
                        wkv6(step, h, head, t);
                else if (step->op == HR_OP_RWKV_WKV7)
                        wkv7(step, h, head, t);
                else
                        gla(step, h, head, t);
        }
        return h;
}

static double wkv(const struct hr_step *step, int64_t column, int64_t row, int64_t i2,
                  int64_t i3) {
        const struct hr_operand *state = &step->sources[step->source_count - 1];
        int64_t tokens = step->sources[0].ne[2], each = tokens / state->ne[1];
        bool is_output = row < tokens;
        int64_t flat = (row - tokens) * SIZE * HEADS + column; /* of the states */
        int64_t head = is_output ? column / SIZE : flat / SIZE / SIZE % HEADS;
        int64_t sequence = is_output ? row / each : flat / SIZE / SIZE / HEADS;
        const struct head *h = wkv_head(step, head, sequence, sequence * each,
                                        is_output ? row : (sequence + 1) * each - 1);

        return is_output ? h->out[column % SIZE] : h->state[flat / SIZE % SIZE][flat % SIZE];
}

HR_TEST_LIMIT(linear_attention, 120) {
        static const struct { uint32_t op, sources; } cases[] = {
                { HR_OP_RWKV_WKV6, 6 }, { HR_OP_RWKV_WKV7, 7 }, { HR_OP_GATED_LINEAR_ATTN, 5 }
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const int32_t params[16] = { PARAM_F32(0.3f) };
                struct hr_operand sources[7];
                struct hr_step step;

                for (uint32_t j = 0; j + 1 < cases[i].sources; j++)
                        sources[j] = case_operand(HR_TYPE_F32, SIZE, HEADS, 4, 1);
                if (cases[i].op == HR_OP_RWKV_WKV6)
                        sources[3] = case_operand(HR_TYPE_F32, SIZE, HEADS, 1, 1);
                sources[cases[i].sources - 1] =
                        case_operand(HR_TYPE_F32, SIZE * SIZE * HEADS, 2, 1, 1);
                step = ops_step(cases[i].op, params, cases[i].sources, sources,
                                case_result(HR_TYPE_F32, SIZE * HEADS, 4 + 2 * SIZE, 1, 1));
                memset(known_heads, 0, sizeof known_heads);
                ops_check(&cpu_kernel_wkv, &step, wkv, 1e-11);
                case_free_all();
        }
}

#define DELTA_HEADS 4

static double delta(const struct hr_step *step, int64_t column, int64_t row, int64_t i2,
                    int64_t i3) {
        const struct hr_operand *s = step->sources;
        int64_t tokens = s[2].ne[2], sequences = s[2].ne[3];
        bool is_output = row < tokens * sequences;
        int64_t flat = (row - tokens * sequences) * SIZE * DELTA_HEADS + column;
        int64_t item = flat / SIZE / SIZE; /* (snapshot, sequence, head) */
        int64_t head = is_output ? column / SIZE : item % DELTA_HEADS;
        int64_t sequence = is_output ? row / tokens : item / DELTA_HEADS % sequences;
        int64_t last = is_output ? row % tokens : tokens - 1 - item / DELTA_HEADS / sequences;
        int64_t i = is_output ? column % SIZE : flat / SIZE % SIZE;
        int64_t q_sequence = sequence * s[0].ne[3] / sequences;
        int64_t k_sequence = sequence * s[1].ne[3] / sequences;
        double state[SIZE], out = 0;

        if (last < 0)
                return 0;
        /* Rows do not meet each other. */
        for (int j = 0; j < SIZE; j++)
                state[j] = case_value(&s[5], j, i, head, sequence);
        for (int64_t t = 0; t <= last; t++) {
                double removed = 0, change;

                for (int j = 0; j < SIZE; j++) {
                        state[j] *= exp(case_value(&s[3], s[3].ne[0] == 1 ? 0 : j, head, t,
                                                   sequence));
                        removed += state[j] *
                                   case_value(&s[1], j, head % s[1].ne[1], t, k_sequence);
                }
                change = (case_value(&s[2], i, head, t, sequence) - removed) *
                         case_value(&s[4], 0, head, t, sequence);
                out = 0;
                for (int j = 0; j < SIZE; j++) {
                        state[j] += change * case_value(&s[1], j, head % s[1].ne[1], t, k_sequence);
                        out += state[j] * case_value(&s[0], j, head % s[0].ne[1], t, q_sequence);
                }
        }
        return is_output ? out / sqrt(SIZE) : state[flat % SIZE];
}

HR_TEST_LIMIT(gated_delta_net, 120) {
        for (int32_t snapshots = 1; snapshots <= 5; snapshots += 2) {
                const int32_t params[16] = { snapshots };
                struct hr_operand sources[] = {
                        case_operand(HR_TYPE_F32, SIZE, 2, 3, 1),
                        case_swap(case_operand(HR_TYPE_F32, SIZE, 3, 2, 2), 1, 2),
                        case_swap(case_operand(HR_TYPE_F32, SIZE, 3, DELTA_HEADS, 2), 1, 2),
                        case_operand(HR_TYPE_F32, snapshots == 1 ? 1 : SIZE, DELTA_HEADS, 3, 2),
                        case_operand(HR_TYPE_F32, 1, DELTA_HEADS, 3, 2),
                        case_operand(HR_TYPE_F32, SIZE, SIZE, DELTA_HEADS, 2),
                };
                struct hr_step step =
                        ops_step(HR_OP_GATED_DELTA_NET, params, 6, sources,
                                 case_result(HR_TYPE_F32, SIZE * DELTA_HEADS,
                                             6 + 2 * SIZE * snapshots, 1, 1));

                ops_check(&cpu_kernel_gated_delta_net, &step, delta, 1e-11);
                case_free_all();
        }
}

/* ---- Products, substitution, the indexer ----------------------------------------------------- */

static double out_prod(const struct hr_step *step, int64_t m, int64_t n, int64_t i2, int64_t i3) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];
        double sum = 0;

        for (int64_t k = 0; k < a->ne[1]; k++)
                sum += case_value(a, m, k, i2 / (b->ne[2] / a->ne[2]), i3 / (b->ne[3] / a->ne[3])) *
                       case_value(b, n, k, i2, i3);
        return sum;
}

HR_TEST(out_prod_result) {
        static const uint32_t types[] = { HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16, HR_TYPE_Q4_0,
                                          HR_TYPE_Q6_K };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++) {
                struct hr_operand sources[] = {
                        case_operand(types[i], 256, 5, 2, 1),
                        case_swap(case_operand(HR_TYPE_F32, 5, 7, 4, 3), 0, 1),
                };
                struct hr_step step = ops_step(HR_OP_OUT_PROD, NULL, 2, sources,
                                               case_result(HR_TYPE_F32, 256, 7, 4, 3));

                ops_check(&cpu_kernel_out_prod, &step, out_prod, 1e-12);
                case_free_all();
        }
}

/* What the solution solves: a x, to compare with b. */
HR_TEST(solve_tri_result) {
        struct hr_operand a = case_operand(HR_TYPE_F32, 23, 23, 2, 2);
        struct hr_operand sources[] = { a, case_operand(HR_TYPE_F32, 150, 23, 2, 2) };
        const void *first = NULL;

        /* What lies above the diagonal is not looked at. */
        for (int64_t i = 0; i < 23 * 23 * 4; i++)
                if (i % 23 == i / 23 % 23)
                        ((float *) a.data)[i] = 5.0f;
                else if (i % 23 > i / 23 % 23)
                        ((float *) a.data)[i] = NAN;
        for (uint32_t threads = 1; threads <= 4; threads++) {
                struct hr_step step = ops_step(HR_OP_SOLVE_TRI, NULL, 2, sources,
                                               case_result(HR_TYPE_F32, 150, 23, 2, 2));
                struct case_error error = { 0 };

                HR_EXPECT_EQ(ops_run(&cpu_kernel_solve_tri, &step, "auto",
                                      threads), 0);
                case_check_bands(&step.result);
                for (int64_t i = 0; i < 150 * 23 * 4; i++) {
                        int64_t column = i % 150, row = i / 150 % 23, i2 = i / 150 / 23;
                        double sum = 0;

                        for (int64_t k = 0; k <= row; k++)
                                sum += case_value(&a, k, row, i2 % 2, i2 / 2) *
                                       case_value(&step.result, column, k, i2 % 2, i2 / 2);
                        case_compare(&error, case_value(&sources[1], column, row, i2 % 2, i2 / 2),
                                     sum);
                }
                HR_EXPECT(case_nmse(&error) < 1e-12);
                if (first)
                        HR_EXPECT(memcmp(first, step.result.data, step.result.room) == 0);
                first = step.result.data;
        }
        case_free_all();
}

static double indexer(const struct hr_step *step, int64_t key, int64_t token, int64_t i2,
                      int64_t sequence) {
        const struct hr_operand *s = step->sources;
        double score = case_value(&s[3], key, token, 0, sequence % s[3].ne[3]);

        for (int64_t head = 0; head < s[0].ne[1]; head++) {
                double product = 0;

                for (int64_t i = 0; i < s[0].ne[0]; i++)
                        product += case_value(&s[0], i, head, token, sequence) *
                                   case_value(&s[1], i, 0, key, sequence);
                score += fmax(product, 0) * case_value(&s[2], head, token, 0, sequence);
        }
        return score;
}

HR_TEST(lightning_indexer_result) {
        static const uint32_t types[] = { HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_Q8_0 };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++) {
                struct hr_operand sources[] = {
                        case_operand(HR_TYPE_F32, 64, 5, 3, 4),
                        case_operand(types[i], 64, 1, 71, 4),
                        case_operand(HR_TYPE_F32, 5, 3, 1, 4),
                        case_operand(HR_TYPE_F16, 71, 3, 1, 2),
                };
                struct hr_step step = ops_step(HR_OP_LIGHTNING_INDEXER, NULL, 4, sources,
                                               case_result(HR_TYPE_F32, 71, 3, 1, 4));

                ops_check(&cpu_kernel_lightning_indexer, &step, indexer, 1e-12);
                case_free_all();
        }
}

/* ---- Hyper-connections ----------------------------------------------------------------------- */

/* Rows and columns of the mixing matrix add up to 1 after enough iterations. */
HR_TEST(dsv4_hc_comb_is_doubly_stochastic) {
        const int32_t params[16] = { PARAM_F32(1e-6f), 200 };
        struct hr_operand sources[] = {
                case_operand(HR_TYPE_F32, 24, 9, 1, 1),
                case_operand(HR_TYPE_F32, 3, 1, 1, 1),
                case_operand(HR_TYPE_F32, 24, 1, 1, 1),
        };
        struct hr_step step = ops_step(HR_OP_DSV4_HC_COMB, params, 3, sources,
                                       case_result(HR_TYPE_F32, 4, 4, 9, 1));

        HR_EXPECT_EQ(ops_run(&cpu_kernel_dsv4_hc_comb, &step, "auto", 2), 0);
        case_check_bands(&step.result);
        for (int64_t token = 0; token < 9; token++)
                for (int64_t i = 0; i < 4; i++) {
                        double row = 0, column = 0;

                        for (int64_t j = 0; j < 4; j++) {
                                row += case_value(&step.result, j, i, token, 0);
                                column += case_value(&step.result, i, j, token, 0);
                        }
                        HR_EXPECT(fabs(row - 1) < 1e-4 && fabs(column - 1) < 1e-4);
                }
        case_free_all();
}

static double hc_pre(const struct hr_step *step, int64_t i, int64_t token, int64_t i2,
                     int64_t i3) {
        double sum = 0;

        for (int64_t s = 0; s < step->sources[0].ne[1]; s++)
                sum += case_value(&step->sources[0], i, s, token, 0) *
                       case_value(&step->sources[1], s, token, 0, 0);
        return sum;
}

static double hc_post(const struct hr_step *step, int64_t i, int64_t stream, int64_t token,
                      int64_t i3) {
        const struct hr_operand *s = step->sources;
        double sum = case_value(&s[0], i, token, 0, 0) * case_value(&s[2], stream, token, 0, 0);

        for (int64_t other = 0; other < s[1].ne[1]; other++)
                sum += case_value(&s[1], i, other, token, 0) *
                       case_value(&s[3], stream, other, token, 0);
        return sum;
}

HR_TEST(dsv4_hc_pre_and_post) {
        struct hr_operand pre[] = {
                case_operand(HR_TYPE_F32, 1500, 4, 3, 1),
                case_operand(HR_TYPE_F32, 4, 3, 1, 1),
        };
        struct hr_operand post[] = {
                case_operand(HR_TYPE_F32, 1500, 3, 1, 1),
                case_operand(HR_TYPE_F32, 1500, 4, 3, 1),
                case_operand(HR_TYPE_F32, 4, 3, 1, 1),
                case_operand(HR_TYPE_F32, 4, 4, 3, 1),
        };
        struct hr_step step = ops_step(HR_OP_DSV4_HC_PRE, NULL, 2, pre,
                                       case_result(HR_TYPE_F32, 1500, 3, 1, 1));

        ops_check(&cpu_kernel_dsv4_hc_pre, &step, hc_pre, 1e-12);
        step = ops_step(HR_OP_DSV4_HC_POST, NULL, 4, post,
                        case_result(HR_TYPE_F32, 1500, 4, 3, 1));
        ops_check(&cpu_kernel_dsv4_hc_post, &step, hc_post, 1e-12);
        case_free_all();
}
