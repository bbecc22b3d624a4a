/* Which products the BLAS device takes, and blocks of a product against the definition. */
#include "backends/blas/backend.h"
#include "backends/blas/gemm.h"
#include "tests/build.h"
#include "tests/harness.h"

/* Conversions of the test's own: the device's come with its configuration. */
static void f16_to_f32(const void *row, float *ret_values, int64_t count) {
        const uint16_t *in = row;

        for (int64_t i = 0; i < count; i++) {
                uint32_t bits = (uint32_t) (in[i] & 0x8000) << 16;

                if (in[i] & 0x7fff)
                        bits |= ((uint32_t) (in[i] & 0x7fff) << 13) + (112U << 23);
                memcpy(&ret_values[i], &bits, sizeof bits);
        }
}

static void bf16_to_f32(const void *row, float *ret_values, int64_t count) {
        const uint16_t *in = row;

        for (int64_t i = 0; i < count; i++) {
                uint32_t bits = (uint32_t) in[i] << 16;

                memcpy(&ret_values[i], &bits, sizeof bits);
        }
}

#define Q8_0_ELEMENTS 32
#define Q8_0_BYTES 34

static void q8_0_to_f32(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (int64_t i = 0; i < count; i += Q8_0_ELEMENTS, block += Q8_0_BYTES) {
                float scale;

                f16_to_f32(block, &scale, 1);
                for (int64_t j = 0; j < Q8_0_ELEMENTS; j++)
                        ret_values[i + j] = scale * (float) (int8_t) block[2 + j];
        }
}

static const hr_dequantize_fn to_f32[HR_TYPE_LIMIT] = {
        [HR_TYPE_F16] = f16_to_f32,
        [HR_TYPE_BF16] = bf16_to_f32,
        [HR_TYPE_Q8_0] = q8_0_to_f32,
};

struct shape {
        uint32_t type;
        int64_t k, m, n, a2, a3, b2, b3;
};

static struct hr_operand dense(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
        struct hr_tensor tensor = { .type = type, .ne = { ne0, ne1, ne2, ne3 } };
        struct hr_operand operand = { .type = type };

        HR_EXPECT(hr_tensor_set_contiguous(&tensor, NULL) == HR_OK);
        memcpy(operand.ne, tensor.ne, sizeof operand.ne);
        memcpy(operand.nb, tensor.nb, sizeof operand.nb);
        operand.room = hr_tensor_bytes(&tensor);
        return operand;
}

static struct hr_step product(const struct shape *shape, struct hr_operand sources[2]) {
        sources[0] = dense(shape->type, shape->k, shape->m, shape->a2, shape->a3);
        sources[1] = dense(HR_TYPE_F32, shape->k, shape->n, shape->b2, shape->b3);
        return (struct hr_step) { .op = HR_OP_MUL_MAT,
                                  .result = dense(HR_TYPE_F32, shape->m, shape->n, shape->b2,
                                                  shape->b3),
                                  .source_count = 2,
                                  .sources = sources };
}

/* Small integers: exact in all four types and in every order of summation. */
static float value_at(int64_t i, uint32_t seed) {
        return (float) ((i * 7 + seed) % 9 - 4);
}

static void fill(struct hr_operand *operand, uint32_t seed) {
        int64_t count = operand->ne[0] * operand->ne[1] * operand->ne[2] * operand->ne[3];

        operand->data = malloc((size_t) operand->room);
        HR_EXPECT(operand->data);
        for (int64_t i = 0; i < count; i++) {
                float value = value_at(i, seed);
                uint32_t bits;
                uint16_t half;

                memcpy(&bits, &value, sizeof bits);
                if (operand->type == HR_TYPE_F32) {
                        memcpy((uint8_t *) operand->data + 4 * i, &bits, sizeof bits);
                        continue;
                }
                if (operand->type == HR_TYPE_Q8_0) {
                        uint8_t *block = (uint8_t *) operand->data + i / Q8_0_ELEMENTS * Q8_0_BYTES;

                        block[0] = 0x00; /* scale 1, as f16 */
                        block[1] = 0x3c;
                        block[2 + i % Q8_0_ELEMENTS] = (uint8_t) (int8_t) value;
                        continue;
                }
                half = (uint16_t) (bits >> 16);
                if (operand->type == HR_TYPE_F16)
                        half = value == 0 ? 0
                                          : (uint16_t) ((bits >> 16 & 0x8000) |
                                                        (((bits & 0x7fffffff) >> 13) -
                                                         (112 << 10)));
                memcpy((uint8_t *) operand->data + 2 * i, &half, sizeof half);
        }
}

static void expect_product(const struct shape *shape) {
        struct hr_operand sources[2];
        struct hr_step step = product(shape, sources);
        float *scratch, *out;

        HR_EXPECT(blas_gemm_supports(&step, to_f32, 1));
        fill(&sources[0], 1);
        fill(&sources[1], 5);
        step.result.data = malloc((size_t) step.result.room);
        scratch = malloc((size_t) blas_gemm_scratch(&step) + 1);
        HR_EXPECT(step.result.data && scratch);
        for (uint32_t block = 0; block < blas_gemm_blocks(&step); block++)
                blas_gemm_block(&step, to_f32, block, scratch);
        out = step.result.data;
        for (int64_t i3 = 0; i3 < shape->b3; i3++)
                for (int64_t i2 = 0; i2 < shape->b2; i2++)
                        for (int64_t n = 0; n < shape->n; n++)
                                for (int64_t m = 0; m < shape->m; m++) {
                                        int64_t a2 = i2 / (shape->b2 / shape->a2);
                                        int64_t a3 = i3 / (shape->b3 / shape->a3);
                                        int64_t a =
                                                ((a3 * shape->a2 + a2) * shape->m + m) * shape->k;
                                        int64_t b =
                                                ((i3 * shape->b2 + i2) * shape->n + n) * shape->k;
                                        float sum = 0;

                                        for (int64_t k = 0; k < shape->k; k++)
                                                sum += value_at(a + k, 1) * value_at(b + k, 5);
                                        HR_EXPECT(*out == sum);
                                        out++;
                                }
        free(sources[0].data);
        free(sources[1].data);
        free(step.result.data);
        free(scratch);
}

HR_TEST(blocks_make_the_product) {
        static const struct shape shapes[] = {
                { HR_TYPE_F32, 1, 1, 1, 1, 1, 1, 1 },    { HR_TYPE_F32, 17, 33, 5, 1, 1, 1, 1 },
                { HR_TYPE_F32, 64, 700, 40, 1, 1, 1, 1 }, { HR_TYPE_F16, 48, 300, 33, 1, 1, 1, 1 },
                { HR_TYPE_BF16, 40, 90, 7, 1, 1, 1, 1 },  { HR_TYPE_F32, 8, 40, 6, 2, 3, 4, 6 },
                { HR_TYPE_F16, 8, 40, 6, 2, 1, 2, 3 },    { HR_TYPE_F16, 16, 5000, 2, 1, 1, 1, 1 },
                { HR_TYPE_Q8_0, 96, 300, 33, 1, 1, 1, 1 }, { HR_TYPE_Q8_0, 32, 40, 6, 2, 3, 4, 6 },
        };

        blas_gemm_init();
        for (size_t i = 0; i < HR_ARRAY_LENGTH(shapes); i++)
                expect_product(&shapes[i]);
}

HR_TEST(other_products_are_left_to_others) {
        static const struct shape good = { HR_TYPE_F32, 64, 64, 40, 1, 1, 1, 1 };
        struct shape shape = good;
        struct hr_operand sources[2];
        struct hr_step step = product(&good, sources);

        HR_EXPECT(blas_gemm_supports(&step, to_f32, 40));
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 41));
        step.op = HR_OP_ADD;
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 1));
        shape.type = HR_TYPE_Q4_0; /* no conversion */
        step = product(&shape, sources);
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 1));
        step = product(&good, sources);
        sources[1].nb[1] += 4; /* columns with gaps */
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 1));
        step = product(&good, sources);
        sources[0].nb[1] -= 4; /* weight rows that overlap */
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 1));
        step = product(&good, sources);
        sources[0].nb[1] += 4; /* weight rows with gaps are fine */
        HR_EXPECT(blas_gemm_supports(&step, to_f32, 1));
        shape = good;
        shape.n = 0;
        step = product(&shape, sources);
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 0));
        shape = good;
        shape.m = INT64_C(1) << 32;
        step = product(&shape, sources);
        HR_EXPECT(!blas_gemm_supports(&step, to_f32, 1));
}

/* Does a device take a product of 64 x 64 weights of that type with n columns? */
static bool takes(const struct hr_device *device, uint32_t type, int64_t n) {
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, type, "a", 64, 64, 1, 1);
        uint32_t b = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "b", 64, n, 1, 1);
        uint32_t c = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 64, n, 1, 1, 2,
                                   (uint32_t[2]) { a, b });
        struct hr_graph *graph = hr_build_finish(build);
        bool answer = hr_device_supports_op(device, graph, c);

        graph = hr_graph_unref(graph);
        return answer;
}

HR_TEST(the_device_takes_batches_only) {
        struct hr_blas_config config = { .name = "blas", .threads = 1, .to_f32 = to_f32 };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_blas_device_new(&config, &diag, &device), &diag);
        for (int64_t n = 1; n <= 1100; n += n < 8 ? 1 : 3) {
                HR_EXPECT_EQ(takes(device, HR_TYPE_F32, n), n >= 1024);
                HR_EXPECT_EQ(takes(device, HR_TYPE_F16, n), n >= 1024);
                HR_EXPECT(!takes(device, HR_TYPE_BF16, n));
                HR_EXPECT(!takes(device, HR_TYPE_Q8_0, n));
        }
        device = hr_device_unref(device);
        config.batch_min = 5; /* told to: bf16 and blocks, too */
        HR_EXPECT_OK(hr_blas_device_new(&config, &diag, &device), &diag);
        for (int64_t n = 1; n <= 8; n++) {
                HR_EXPECT_EQ(takes(device, HR_TYPE_F32, n), n >= 5);
                HR_EXPECT_EQ(takes(device, HR_TYPE_BF16, n), n >= 5);
                HR_EXPECT_EQ(takes(device, HR_TYPE_Q8_0, n), n >= 5);
                HR_EXPECT(!takes(device, HR_TYPE_Q4_0, n)); /* nothing converts it */
        }
        device = hr_device_unref(device);
}
