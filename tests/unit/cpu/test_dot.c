/* Tiles: every instruction set against plain sums in double, every width against every other. */
#include <math.h>
#include <string.h>

#include "backends/cpu/matrix/half.h"
#include "tests/harness.h"
#include "tests/unit/cpu/kernel_case.h"

static const uint32_t types[] = {HR_TYPE_Q4_0,    HR_TYPE_Q4_1,   HR_TYPE_Q5_0,   HR_TYPE_Q5_1,
                                 HR_TYPE_Q8_0,    HR_TYPE_Q2_K,   HR_TYPE_Q3_K,   HR_TYPE_Q4_K,
                                 HR_TYPE_Q5_K,    HR_TYPE_Q6_K,   HR_TYPE_IQ4_NL, HR_TYPE_F32,
                                 HR_TYPE_F16,     HR_TYPE_BF16,   HR_TYPE_IQ1_S,  HR_TYPE_IQ1_M,
                                 HR_TYPE_IQ2_XXS, HR_TYPE_IQ2_XS, HR_TYPE_IQ2_S,  HR_TYPE_IQ3_XXS,
                                 HR_TYPE_IQ3_S,   HR_TYPE_IQ4_XS, HR_TYPE_TQ1_0,  HR_TYPE_TQ2_0,
                                 HR_TYPE_MXFP4,   HR_TYPE_NVFP4,  HR_TYPE_Q1_0,   HR_TYPE_Q2_0};

static void *zeroed(uint64_t bytes) {
        void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);

        HR_EXPECT(memory != NULL);
        memset(memory, 0, (bytes + 127) / 64 * 64);
        return memory;
}

/* What an activation becomes in the partner type of `type`, as ggml rounds it; sum: the factor of
 * the minimum per group of 32 or 16. In double throughout. */
static void partner_column(uint32_t type, const float *x, int64_t k, double *ret_values,
                           double *ret_sums) {
        int partner = cpu_partner_type(type);
        int64_t block = partner == HR_TYPE_Q8_K ? 256 : 32;

        for (int64_t b = 0; b < k / block; b++) {
                float extreme = 0, d, inverse;
                int sum = 0;

                for (int64_t i = 0; i < block; i++)
                        if (fabsf(x[b * block + i]) > fabsf(extreme))
                                extreme = x[b * block + i];
                inverse = extreme == 0              ? 0
                          : partner == HR_TYPE_Q8_K ? -127.0f / extreme
                                                    : 127.0f / fabsf(extreme);
                d = extreme == 0              ? 0
                    : partner == HR_TYPE_Q8_K ? 1.0f / inverse
                                              : fabsf(extreme) / 127.0f;
                for (int64_t i = 0; i < block; i++) {
                        int q = (int) nearbyintf(x[b * block + i] * inverse);

                        sum += q;
                        ret_values[b * block + i] =
                                q * (double) (partner == HR_TYPE_Q8_K
                                                      ? d
                                                      : cpu_half_to_float(cpu_float_to_half(d)));
                }
                if (partner != HR_TYPE_Q8_K)
                        ret_sums[b] = cpu_half_to_float(cpu_float_to_half(d * (float) sum));
        }
}

/* The product that ggml's rules define, in double. */
static double reference(const struct hr_operand *w, int64_t row, const float *x) {
        int64_t k = w->ne[0];
        double *weights = zeroed((uint64_t) k * sizeof *weights);
        double *a = zeroed((uint64_t) k * sizeof *a), *sums = zeroed((uint64_t) k * sizeof *sums);
        double result = 0;
        bool minima = w->type == HR_TYPE_Q4_1 || w->type == HR_TYPE_Q5_1;

        if (hr_type_info(w->type)->is_block)
                partner_column(w->type, x, k, a, sums);
        case_row(w, row, 0, 0, weights);
        for (int64_t i = 0; i < k; i++) {
                double weight = weights[i];

                if (w->type == HR_TYPE_F16)
                        a[i] = cpu_half_to_float(cpu_float_to_half(x[i]));
                else if (w->type == HR_TYPE_BF16)
                        a[i] = cpu_bf16_to_float(cpu_float_to_bf16(x[i]));
                else if (w->type == HR_TYPE_F32)
                        a[i] = x[i];
                if (minima) { /* the minimum goes with the stored sum, not with each element */
                        const uint8_t *block = (const uint8_t *) w->data +
                                               (uint64_t) row * w->nb[1] +
                                               (uint64_t) (i / 32) * w->nb[0];
                        double m = cpu_read_half(block + 2);

                        weight -= m;
                        if (i % 32 == 0)
                                result += m * sums[i / 32];
                }
                result += weight * a[i];
        }
        free(weights);
        free(a);
        free(sums);
        return result;
}

static void check_tile(const struct cpu_dot *dot, const struct cpu_tile *tile, uint32_t type,
                       uint32_t rows, int64_t k) {
        struct hr_operand w = case_operand(type, k, rows, 1, 1);
        struct hr_operand x = case_operand(HR_TYPE_F32, k, dot->width, 1, 1);
        uint64_t column_bytes = cpu_column_bytes(tile, k);
        uint8_t *packed = zeroed(cpu_tile_bytes(tile, dot->lanes, k));
        float *single = zeroed(dot->lanes * dot->width * sizeof *single);
        float *out = zeroed(dot->lanes * dot->width * sizeof *out);
        struct case_error error = {0};
        const float *values[16];

        for (uint32_t c = 0; c < dot->width; c++) /* some larger, some all zero */
                for (int64_t i = 0; i < k; i++)
                        ((float *) x.data)[c * k + i] *= c == 1 ? 0 : (float) (1 + i / 64 % 3 * 10);
        tile->pack(w.data, w.nb[1], rows, k, packed);
        for (uint32_t c = 0; c < dot->width; c++) {
                uint8_t *column = case_memory(column_bytes);

                values[c] = (const float *) x.data + c * k;
                tile->columns(&values[c], 1, k, column);
                tile->dot(packed, column, 1, k, single + dot->lanes * c);
                if (!tile->dot_rows)
                        continue;
                tile->dot_rows(w.data, w.nb[1], rows, k, column, out);
                HR_EXPECT(memcmp(out, single + dot->lanes * c, rows * sizeof *out) == 0);
        }
        for (uint32_t width = 2; width <= dot->width; width += width == 4 ? 4 : 1) {
                uint8_t *columns = case_memory(column_bytes * width);

                tile->columns(values, width, k, columns);
                tile->dot(packed, columns, width, k, out);
                for (uint32_t c = 0; c < width; c++)
                        HR_EXPECT(memcmp(out + dot->lanes * c, single + dot->lanes * c,
                                         rows * sizeof *out) == 0);
        }
        for (uint32_t c = 0; c < dot->width; c++)
                for (uint32_t r = 0; r < rows; r++)
                        case_compare(&error, reference(&w, r, values[c]),
                                     single[dot->lanes * c + r]);
        if (!(case_nmse(&error) <= 2e-12))
                hr_test_fail(__FILE__, __LINE__, "%s %s rows %u k %lld: nmse %g", dot->name,
                             hr_type_name(type), rows, (long long) k, case_nmse(&error));
        free(packed);
        free(single);
        free(out);
        case_free_all();
}

static void check_sizes(const struct cpu_dot *dot, const struct cpu_tile *tile, uint32_t type) {
        int64_t block = hr_type_info(type)->block_elements;

        /* small blocks: whole stretches of them, and what is left */
        for (int64_t blocks = 1; blocks <= (block == 32 ? 19 : 7); blocks += blocks < 9 ? 1 : 5)
                for (uint32_t rows = 1; rows <= dot->lanes; rows += 3)
                        check_tile(dot, tile, type, rows,
                                   block > 1 ? block * blocks : blocks * 5 + 1);
}

HR_TEST_LIMIT(tiles_match_the_rules, 120) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);

        for (uint32_t s = 0; s < sets; s++)
                for (size_t t = 0; t < HR_ARRAY_LENGTH(types); t++) {
                        const struct cpu_tile *weights = dots[s]->tile[types[t]];
                        const struct cpu_tile *keys = dots[s]->key_tile[types[t]];

                        check_sizes(dots[s], weights, types[t]);
                        if (keys != weights)
                                check_sizes(dots[s], keys, types[t]);
                }
}

/* llama.cpp has an order of its own for weights that it interleaves, and only for those. */
HR_TEST(weights_are_added_up_as_by_llama_cpp) {
        static const uint32_t whole[] = {HR_TYPE_Q4_0, HR_TYPE_IQ4_NL, HR_TYPE_MXFP4};
        static const uint32_t dwords[] = {HR_TYPE_Q4_1, HR_TYPE_Q5_0, HR_TYPE_Q5_1, HR_TYPE_Q8_0};
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);

        for (uint32_t s = 0; s < sets; s++) {
                const struct cpu_dot *dot = dots[s], *fast = cpu_dot_fast(dot);

                for (size_t t = 0; t < HR_ARRAY_LENGTH(whole); t++) {
                        HR_EXPECT(dot->tile[whole[t]] == fast->tile[whole[t]]);
                        HR_EXPECT(dot->key_tile[whole[t]] != fast->key_tile[whole[t]]);
                }
                for (size_t t = 0; t < HR_ARRAY_LENGTH(dwords); t++) {
                        HR_EXPECT(dot->tile[dwords[t]] != fast->tile[dwords[t]]);
                        HR_EXPECT(dot->tile[dwords[t]] == dot->key_tile[dwords[t]]);
                }
        }
}

static void check_exact(const struct cpu_dot *dot, const struct cpu_tile *tile, uint32_t type,
                        int round) {
        enum { K = 32 * 19 };
        uint32_t lanes = dot->lanes;
        struct hr_operand w = case_operand(type, K, lanes, 1, 1);
        uint8_t *column = case_memory(cpu_column_bytes(tile, K));
        float x[K], out[16];
        const float *values = x;

        for (uint64_t at = 0; at < w.room; at += w.nb[0])
                cpu_write_half((uint8_t *) w.data + at, 1.0f);
        if (round == 0) /* extremes: -128 of Q8_0 included */
                for (uint64_t at = 0; at < w.room; at += w.nb[0])
                        memset((uint8_t *) w.data + at + 2, 0x80, w.nb[0] - 2);
        for (int i = 0; i < K; i++)
                x[i] = round < 2     ? -127.0f
                       : i % 32 == 0 ? 127.0f
                                     : floorf(case_uniform() * 127);
        tile->columns(&values, 1, K, column);
        tile->dot_rows(w.data, w.nb[1], lanes, K, column, out);
        for (uint32_t r = 0; r < lanes; r++) {
                double sum = 0;

                for (int i = 0; i < K; i++)
                        sum += x[i] * case_value(&w, i, r, 0, 0);
                HR_EXPECT(out[r] == (float) sum);
        }
}

/* With scales of one and whole activations every product is a whole number: exact everywhere. */
HR_TEST_LIMIT(integer_parts_are_exact, 120) {
        static const uint32_t exact[] = {HR_TYPE_Q4_0, HR_TYPE_Q5_0, HR_TYPE_Q8_0, HR_TYPE_IQ4_NL};
        uint32_t sets;
        const struct cpu_dot *const *dots = case_product_sets(&sets);

        for (uint32_t s = 0; s < sets; s++)
                for (size_t t = 0; t < HR_ARRAY_LENGTH(exact); t++)
                        for (int round = 0; round < 20; round++) {
                                check_exact(dots[s], dots[s]->tile[exact[t]], exact[t], round);
                                check_exact(dots[s], dots[s]->key_tile[exact[t]], exact[t], round);
                        }
        case_free_all();
}

/* To values that the type can hold, so that float_column() has nothing to round. */
static void round_to(uint32_t type, float *values, int64_t count) {
        for (int64_t i = 0; i < count; i++)
                if (type == HR_TYPE_F16)
                        values[i] = cpu_half_to_float(cpu_float_to_half(values[i]));
                else if (type == HR_TYPE_BF16)
                        values[i] = cpu_bf16_to_float(cpu_float_to_bf16(values[i]));
}

/* float_dot: any rows, any columns, any length; same bits however the columns are taken. */
HR_TEST_LIMIT(float_rows, 120) {
        static const uint32_t floats[] = {HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16};
        static const int64_t lengths[] = {0, 1, 3, 16, 31, 100, 1024, 1500, 2049};
        enum { ROWS = 7, COLUMNS = 13 };
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);
        float *spare = zeroed(CPU_FLOAT_SPARE * sizeof *spare);

        for (uint32_t s = 0; s < sets; s++)
                for (size_t t = 0; t < HR_ARRAY_LENGTH(floats); t++)
                        for (size_t l = 0; l < HR_ARRAY_LENGTH(lengths); l++) {
                                int64_t k = lengths[l];
                                struct hr_operand w = case_operand(floats[t], k, ROWS, 1, 1);
                                struct hr_operand x = case_operand(HR_TYPE_F32, k, COLUMNS, 1, 1);
                                struct case_error error = {0};
                                float all[COLUMNS][ROWS], one[ROWS];

                                uint64_t stride = (uint64_t) k * 4 + 64;
                                uint8_t *columns = zeroed(stride * COLUMNS);

                                round_to(floats[t], x.data, k * COLUMNS);
                                for (int c = 0; c < COLUMNS; c++) {
                                        const float *column = (const float *) x.data + c * k;

                                        dots[s]->float_column(floats[t], column, k,
                                                              columns + stride * (uint64_t) c);
                                }
                                dots[s]->float_dot(floats[t], w.data, w.nb[1], ROWS, columns,
                                                   stride, COLUMNS, k, spare, all[0], ROWS);
                                for (int c = 0; c < COLUMNS; c++) {
                                        const float *column = (const float *) x.data + c * k;

                                        dots[s]->float_dot(floats[t], w.data, w.nb[1], ROWS,
                                                           columns + stride * (uint64_t) c, stride,
                                                           1, k, spare, one, ROWS);
                                        HR_EXPECT(memcmp(one, all[c], sizeof one) == 0);
                                        for (int r = 0; r < ROWS; r++) {
                                                double sum = 0;

                                                for (int64_t i = 0; i < k; i++)
                                                        sum += (double) column[i] *
                                                               case_value(&w, i, r, 0, 0);
                                                case_compare(&error, sum, one[r]);
                                        }
                                }
                                free(columns);
                                HR_EXPECT(case_nmse(&error) <= 1e-12);
                                case_free_all();
                        }
        free(spare);
}

HR_TEST_LIMIT(attention_pieces, 120) {
        uint32_t sets;
        const struct cpu_dot *const *dots = case_sets(&sets);

        for (uint32_t s = 0; s < sets; s++)
                for (uint32_t n = 1; n < 70; n++) {
                        float *x = case_memory(n * sizeof *x),
                              *mask = case_memory(n * sizeof *mask);
                        double sum = 0, expected = -INFINITY;
                        float largest, total;

                        for (uint32_t i = 0; i < n; i++) {
                                x[i] = case_uniform() * 20;
                                mask[i] = i % 5 == 4 ? -INFINITY : case_uniform();
                        }
                        for (uint32_t i = 0; i < n; i++)
                                expected =
                                        fmax(expected, 30 * tanh(0.5 / 30 * x[i]) + 2.0 * mask[i]);
                        largest = dots[s]->score_row(x, mask, n, 0.5f, 30.0f, 2.0f);
                        HR_EXPECT(fabs(largest - expected) < 1e-4);
                        for (uint32_t i = 0; i < n; i++) {
                                HR_EXPECT((mask[i] == -INFINITY) == (x[i] == -INFINITY));
                                sum += exp((double) x[i] - largest);
                        }
                        total = dots[s]->exp_row(x, n, largest);
                        HR_EXPECT(fabs(total - sum) < 1e-6 * sum);
                        for (uint32_t i = 4; i < n; i += 5)
                                HR_EXPECT(x[i] == 0);
                        case_free_all();
                }
}
