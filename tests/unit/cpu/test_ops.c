/*
 * Ops of this folder through the device: the same bits for every team and instruction set, writing
 * in place, broadcasts and permuted sources against plain definitions, empty tensors.
 */
#include <math.h>

#include "tests/unit/cpu/op_rig.h"

/* A graph of one node: leaves first. */
struct op_case {
        const char *name;
        uint32_t op, type, source_count;
        struct {
                uint32_t type;
                int64_t ne[4];
        } sources[3];
        int64_t ne[4];
        int32_t params[HR_OP_PARAM_WORDS];
};

/* Parameters are words: floats by bit pattern. */
enum {
        F_1_7 = 0x3fd9999a,
        F_0_3 = 0x3e99999a,
        F_1E_5 = 0x3727c5ac,
        F_1E_6 = 0x358637bd,
        F_0_5 = 0x3f000000,
        F_8 = 0x41000000,
        F_10000 = 0x461c4000,
        F_1 = 0x3f800000,
        F_32 = 0x42000000,
        F_1E6 = 0x49742400,
        F_0_25 = 0x3e800000,
        F_2 = 0x40000000,
};
#define F32 HR_TYPE_F32
#define F16 HR_TYPE_F16
#define BF16 HR_TYPE_BF16
#define I32 HR_TYPE_I32

static const struct op_case cases[] = {
        { "add", HR_OP_ADD, F32, 2, { { F32, { 67, 5, 3, 2 } }, { F32, { 67, 5, 3, 2 } } },
          { 67, 5, 3, 2 }, { 0 } },
        { "add long", HR_OP_ADD, F32, 2, { { F32, { 5000, 3, 1, 1 } }, { F32, { 5000, 1, 1, 1 } } },
          { 5000, 3, 1, 1 }, { 0 } },
        { "mul f16 by f32 rows", HR_OP_MUL, F16, 2,
          { { F16, { 30, 6, 2, 2 } }, { F32, { 15, 3, 1, 2 } } }, { 30, 6, 2, 2 }, { 0 } },
        { "div by scalar", HR_OP_DIV, BF16, 2, { { BF16, { 3000, 2, 1, 1 } }, { F32, { 1, 1, 1,
          1 } } },
          { 3000, 2, 1, 1 }, { 0 } },
        { "add_id", HR_OP_ADD_ID, F32, 3,
          { { F32, { 40, 3, 5, 1 } }, { F32, { 40, 4, 1, 1 } }, { I32, { 3, 5, 1, 1 } } },
          { 40, 3, 5, 1 }, { 0 } },
        { "scale", HR_OP_SCALE, F32, 1, { { F32, { 3333, 2, 1, 1 } } }, { 3333, 2, 1, 1 },
          { F_1_7, F_0_3 } },
        { "silu", HR_OP_UNARY, F16, 1, { { F16, { 1025, 3, 1, 1 } } }, { 1025, 3, 1, 1 },
          { HR_UNARY_SILU } },
        { "gelu", HR_OP_UNARY, F32, 1, { { F32, { 1025, 3, 1, 1 } } }, { 1025, 3, 1, 1 },
          { HR_UNARY_GELU } },
        { "swiglu halves", HR_OP_GLU, F32, 1, { { F32, { 2052, 3, 1, 1 } } }, { 1026, 3, 1, 1 },
          { HR_GLU_SWIGLU, 1 } },
        { "geglu", HR_OP_GLU, F32, 2, { { F32, { 1536, 4, 1, 1 } }, { F32, { 1536, 4, 1, 1 } } },
          { 1536, 4, 1, 1 }, { HR_GLU_GEGLU } },
        { "rms_norm", HR_OP_RMS_NORM, F32, 1, { { F32, { 577, 7, 2, 1 } } }, { 577, 7, 2, 1 },
          { F_1E_5 } },
        { "norm", HR_OP_NORM, F32, 1, { { F32, { 33, 7, 2, 1 } } }, { 33, 7, 2, 1 }, { F_1E_5 } },
        { "group_norm", HR_OP_GROUP_NORM, F32, 1, { { F32, { 9, 5, 10, 2 } } }, { 9, 5, 10, 2 },
          { 4, F_1E_6 } },
        { "soft_max", HR_OP_SOFT_MAX, F32, 2, { { F32, { 131, 5, 4, 2 } }, { F16, { 131, 8, 1,
          1 } } },
          { 131, 5, 4, 2 }, { F_0_5, F_8 } },
        { "rope", HR_OP_ROPE, F32, 2, { { F32, { 64, 3, 9, 1 } }, { I32, { 9, 1, 1, 1 } } },
          { 64, 3, 9, 1 }, { 0, 64, 2, 0, 0, F_10000, F_1, 0, F_1, F_32, F_1 } },
        { "rope of f16 heads", HR_OP_ROPE, F16, 3,
          { { F16, { 80, 2, 5, 2 } }, { I32, { 5, 1, 1, 1 } }, { F32, { 32, 1, 1, 1 } } },
          { 80, 2, 5, 2 },
          { 0, 64, 0, 0, 4096, F_1E6, F_0_25, F_1, F_1, F_32, F_1 } },
        { "concat", HR_OP_CONCAT, F32, 2, { { F32, { 7, 5, 3, 2 } }, { F32, { 7, 5, 4, 2 } } },
          { 7, 5, 7, 2 }, { 2 } },
        { "repeat", HR_OP_REPEAT, F16, 1, { { F16, { 7, 1, 3, 1 } } }, { 21, 4, 6, 2 }, { 0 } },
        { "sum", HR_OP_SUM, F32, 1, { { F32, { 1000, 5, 2, 1 } } }, { 1, 1, 1, 1 }, { 0 } },
        { "sum_rows", HR_OP_SUM_ROWS, F32, 1, { { F32, { 1000, 5, 2, 1 } } }, { 1, 5, 2, 1 },
          { 0 } },
        { "cumsum", HR_OP_CUMSUM, F32, 1, { { F32, { 1100, 5, 1, 1 } } }, { 1100, 5, 1, 1 },
          { 0 } },
        { "argmax", HR_OP_ARGMAX, I32, 1, { { F32, { 3000, 9, 1, 1 } } }, { 9, 1, 1, 1 }, { 0 } },
        { "argsort", HR_OP_ARGSORT, I32, 1, { { F32, { 333, 9, 1, 1 } } }, { 333, 9, 1, 1 },
          { 1 } },
        { "argsort_f16", HR_OP_ARGSORT, I32, 1, { { F16, { 1333, 9, 1, 1 } } }, { 1333, 9, 1, 1 },
          { 0 } },
        { "top_k", HR_OP_TOP_K, I32, 1, { { F32, { 333, 9, 1, 1 } } }, { 40, 9, 1, 1 }, { 0 } },
        { "top_k_bf16", HR_OP_TOP_K, I32, 1, { { BF16, { 1333, 9, 1, 1 } } }, { 40, 9, 1, 1 },
          { 0 } },
        { "pad", HR_OP_PAD, F32, 1, { { F32, { 5, 4, 3, 2 } } }, { 8, 5, 5, 2 },
          { 1, 2, 0, 1, 2, 0, 0, 0, 1 } },
        { "roll", HR_OP_ROLL, F32, 1, { { F32, { 5, 4, 3, 2 } } }, { 5, 4, 3, 2 }, { -7, 2, 1,
          0 } },
        { "diag_mask_inf", HR_OP_DIAG_MASK_INF, F32, 1, { { F32, { 9, 5, 3, 1 } } }, { 9, 5, 3, 1 },
          { 2 } },
        { "diag_mask_zero_f16", HR_OP_DIAG_MASK_ZERO, F16, 1, { { F16, { 1300, 5, 3, 1 } } },
          { 1300, 5, 3, 1 }, { 1020 } },
        { "repeat_back", HR_OP_REPEAT_BACK, F32, 1, { { F32, { 2200, 4, 3, 1 } } },
          { 1100, 2, 3, 1 }, { 0 } },
};

static struct hr_graph *case_graph(const struct op_case *item, uint32_t *ret_out) {
        struct hr_build *build = hr_build_new();
        uint32_t sources[3];

        for (uint32_t i = 0; i < item->source_count; i++)
                sources[i] = hr_build_leaf(build, HR_LEAF_INPUT, item->sources[i].type, "x",
                                           item->sources[i].ne[0], item->sources[i].ne[1],
                                           item->sources[i].ne[2], item->sources[i].ne[3]);
        *ret_out = hr_build_node(build, item->op, item->type, item->ne[0], item->ne[1],
                                 item->ne[2], item->ne[3], item->source_count, sources);
        memcpy(hr_build_tensor(build, *ret_out)->params, item->params, sizeof item->params);
        return hr_build_finish(build);
}

HR_TEST_LIMIT(every_team_and_instruction_set_gives_the_same_bits, 60) {
        static const uint32_t threads[] = { 1, 2, 3, 5 };
        uint32_t set_count;
        const char *const *sets = rig_sets(&set_count);

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                uint32_t out;
                struct hr_graph *graph = case_graph(&cases[i], &out);
                uint8_t *first = NULL;

                for (uint32_t set = 0; set < set_count; set++)
                        for (size_t t = 0; t < HR_ARRAY_LENGTH(threads); t++) {
                                struct hr_device *device = rig_device(sets[set], threads[t]);
                                uint64_t bytes;
                                uint8_t *result = rig_run(device, graph, out, 7, 4, &bytes, NULL);

                                if (first && memcmp(first, result, (size_t) bytes) != 0)
                                        hr_test_fail(__FILE__, __LINE__, "%s: %s, %u threads",
                                                     cases[i].name, sets[set], threads[t]);
                                if (first)
                                        free(result);
                                else
                                        first = result;
                                device = hr_device_unref(device);
                        }
                free(first);
                graph = hr_graph_unref(graph);
        }
}

/* The node over its source 0: the same bits as beside it. */
HR_TEST(in_place_gives_the_same_bits) {
        struct hr_device *device = rig_device("auto", 3);
        uint32_t tried = 0;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct op_case *item = &cases[i];
                uint32_t out, over_out;
                struct hr_graph *graph, *over;
                uint8_t *beside, *in_place;
                uint64_t bytes, over_bytes;

                if (hr_op_info(item->op)->kind != HR_OP_KIND_INPLACE)
                        continue;
                graph = case_graph(item, &out);
                over = case_graph(item, &over_out);
                over->tensors[over_out].view_base = 0;
                beside = rig_run(device, graph, out, 3, 4, &bytes, NULL);
                in_place = rig_run(device, over, over_out, 3, 4, &over_bytes, NULL);
                HR_EXPECT_EQ(bytes, over_bytes);
                if (memcmp(beside, in_place, (size_t) bytes) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s", item->name);
                free(beside);
                free(in_place);
                graph = hr_graph_unref(graph);
                over = hr_graph_unref(over);
                tried++;
        }
        HR_EXPECT(tried >= 12);
        device = hr_device_unref(device);
}

/* PERMUTE, then an op on the permuted source, equals CONT of the permuted source, then the op. */
static void permuted_equals_dense(uint32_t op, const int32_t *params, const int64_t *ne,
                                  const char *name) {
        struct hr_device *device = rig_device("auto", 2);
        uint8_t *results[2];
        uint64_t bytes;

        for (int is_dense = 0; is_dense < 2; is_dense++) {
                struct hr_build *build = hr_build_new();
                uint32_t leaf = hr_build_leaf(build, HR_LEAF_INPUT, F32, "x", 6, 33, 4, 2);
                uint32_t source = hr_build_node(build, HR_OP_TRANSPOSE, F32, 33, 6, 4, 2, 1, &leaf);
                struct hr_tensor *view = hr_build_tensor(build, source);
                struct hr_graph *graph;
                uint32_t out;

                view->view_base = leaf;
                view->nb[0] = 24;
                view->nb[1] = 4;
                view->nb[2] = 24 * 33;
                view->nb[3] = 24 * 33 * 4;
                if (is_dense)
                        source = hr_build_node(build, HR_OP_CONT, F32, 33, 6, 4, 2, 1, &source);
                out = hr_build_node(build, op, F32, ne[0], ne[1], ne[2], ne[3], 1, &source);
                memcpy(hr_build_tensor(build, out)->params, params,
                       HR_OP_PARAM_WORDS * sizeof *params);
                graph = hr_build_finish(build);
                results[is_dense] = rig_run(device, graph, out, 11, 4, &bytes, NULL);
                graph = hr_graph_unref(graph);
        }
        if (memcmp(results[0], results[1], (size_t) bytes) != 0)
                hr_test_fail(__FILE__, __LINE__, "%s", name);
        free(results[0]);
        free(results[1]);
        device = hr_device_unref(device);
}

HR_TEST(permuted_sources_are_read_in_order) {
        static const struct {
                uint32_t op;
                int32_t params[HR_OP_PARAM_WORDS];
                const char *name;
        } ops[] = {
                { HR_OP_UNARY, { HR_UNARY_TANH }, "tanh" },
                { HR_OP_SCALE, { F_2, F_1 }, "scale" },
                { HR_OP_SQRT, { 0 }, "sqrt" },
                { HR_OP_NORM, { F_1E_5 }, "norm" },
                { HR_OP_CUMSUM, { 0 }, "cumsum" },
                { HR_OP_ROLL, { 3, -1, 2, 1 }, "roll" },
                { HR_OP_GROUP_NORM, { 2, F_1E_5 }, "group_norm" },
                { HR_OP_DIAG_MASK_INF, { 5 }, "diag_mask_inf" },
                { HR_OP_REPEAT_BACK, { 0 }, "repeat_back" },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(ops); i++) {
                const int64_t whole[4] = { 33, 6, 4, 2 }, tile[4] = { 11, 2, 4, 1 };

                permuted_equals_dense(ops[i].op, ops[i].params,
                                      ops[i].op == HR_OP_REPEAT_BACK ? tile : whole, ops[i].name);
        }
}

HR_TEST(empty_tensors_are_computed_to_nothing) {
        struct hr_device *device = rig_device("auto", 2);

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct op_case item = cases[i];
                struct hr_graph *graph;
                uint64_t bytes;
                uint32_t out;

                if (item.op != HR_OP_ADD && item.op != HR_OP_UNARY && item.op != HR_OP_RMS_NORM &&
                    item.op != HR_OP_SOFT_MAX && item.op != HR_OP_REPEAT)
                        continue;
                for (uint32_t source = 0; source < item.source_count; source++)
                        if (item.sources[source].ne[1] > 1)
                                item.sources[source].ne[1] = 0;
                if (item.sources[0].ne[1] != 0)
                        continue;
                item.ne[1] = 0;
                graph = case_graph(&item, &out);
                free(rig_run(device, graph, out, 1, 4, &bytes, NULL));
                HR_EXPECT_EQ(bytes, 0);
                graph = hr_graph_unref(graph);
        }
        device = hr_device_unref(device);
}

/* A tensor of no bytes may have more rows than anyone can walk over. */
HR_TEST(rows_without_elements_take_no_time) {
        static const int64_t many[4] = { 0, INT64_C(1) << 30, INT64_C(1) << 30, 1 };
        static const struct op_case made[] = {
                { "sum", HR_OP_SUM, F32, 1, { { F32, { 0 } } }, { 1, 1, 1, 1 }, { 0 } },
                { "repeat_back", HR_OP_REPEAT_BACK, F32, 1, { { F32, { 0 } } }, { 1, 1, 1, 1 },
                  { 0 } },
                { "count_equal", HR_OP_COUNT_EQUAL, HR_TYPE_I64, 2, { { I32, { 0 } }, { I32,
                  { 0 } } },
                  { 1, 1, 1, 1 }, { 0 } },
        };
        struct hr_device *device = rig_device("auto", 2);

        for (size_t i = 0; i < HR_ARRAY_LENGTH(made); i++) {
                struct op_case item = made[i];
                struct hr_graph *graph;
                uint64_t bytes;
                uint32_t out;
                uint8_t *result;

                for (uint32_t source = 0; source < item.source_count; source++)
                        memcpy(item.sources[source].ne, many, sizeof many);
                graph = case_graph(&item, &out);
                result = rig_run(device, graph, out, 1, 4, &bytes, NULL);
                for (uint64_t b = 0; b < bytes; b++)
                        HR_EXPECT_EQ(result[b], 0);
                free(result);
                graph = hr_graph_unref(graph);
        }
        device = hr_device_unref(device);
}

HR_TEST(soft_max_rows_sum_to_one_and_masked_rows_are_nan) {
        struct hr_build *build = hr_build_new();
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, F32, "x", 50, 2, 1, 1);
        uint32_t mask = hr_build_leaf(build, HR_LEAF_CONSTANT, F32, "m", 50, 2, 1, 1);
        uint32_t out = hr_build_node(build, HR_OP_SOFT_MAX, F32, 50, 2, 1, 1, 2,
                                     (uint32_t[2]) { x, mask });
        struct hr_device *device = rig_device("auto", 1);
        float content[100], *result;
        struct hr_graph *graph;
        uint64_t bytes;
        double sum = 0;

        for (int i = 0; i < 100; i++)
                content[i] = i < 50 ? 0.0f : -INFINITY;
        hr_build_constant(build, mask, content, sizeof content);
        hr_build_param_f32(build, out, 0, 3.0f);
        graph = hr_build_finish(build);
        result = (float *) (void *) rig_run(device, graph, out, 5, 1, &bytes, NULL);
        for (int i = 0; i < 50; i++) {
                HR_EXPECT(result[i] > 0);
                sum += (double) result[i];
                HR_EXPECT(isnan(result[50 + i]));
        }
        HR_EXPECT(fabs(sum - 1) < 1e-6);
        free(result);
        graph = hr_graph_unref(graph);
        device = hr_device_unref(device);
}

/* Equal values keep their order, NaN comes last, -0 equals 0: in every float type. */
HR_TEST(sorting_is_a_total_order) {
        static const float f32[8] = { 1.0f, NAN, -0.0f, 0.0f, INFINITY, -INFINITY, 1.0f, -2.0f };
        static const uint16_t f16[8] = { 0x3c00, 0x7e00, 0x8000, 0, 0x7c00, 0xfc00, 0x3c00,
                                         0xc000 };
        static const uint16_t bf16[8] = { 0x3f80, 0x7fc0, 0x8000, 0, 0x7f80, 0xff80, 0x3f80,
                                          0xc000 };
        static const struct {
                uint32_t type;
                const void *values;
                uint64_t bytes;
        } kinds[] = { { F32, f32, sizeof f32 }, { F16, f16, sizeof f16 },
                      { BF16, bf16, sizeof bf16 } };
        static const int32_t ascending[8] = { 5, 7, 2, 3, 0, 6, 4, 1 };
        static const int32_t descending[8] = { 4, 0, 6, 2, 3, 7, 5, 1 };
        struct hr_device *device = rig_device("auto", 1);

        for (int32_t i = 0; i < 9; i++) {
                struct hr_build *build = hr_build_new();
                uint32_t x = hr_build_leaf(build, HR_LEAF_CONSTANT, kinds[i / 3].type, "x", 8, 1,
                                           1, 1);
                int32_t order = i % 3;
                uint32_t op = order == 2 ? HR_OP_TOP_K : HR_OP_ARGSORT;
                int64_t count = order == 2 ? 5 : 8;
                uint32_t out = hr_build_node(build, op, I32, count, 1, 1, 1, 1, &x);
                struct hr_graph *graph;
                uint64_t bytes;
                uint8_t *result;

                hr_build_constant(build, x, kinds[i / 3].values, kinds[i / 3].bytes);
                if (order < 2)
                        hr_build_tensor(build, out)->params[0] = order;
                graph = hr_build_finish(build);
                result = rig_run(device, graph, out, 1, 1, &bytes, NULL);
                HR_EXPECT(memcmp(result, order ? descending : ascending,
                                 (size_t) count * sizeof(int32_t)) == 0);
                free(result);
                graph = hr_graph_unref(graph);
        }
        device = hr_device_unref(device);
}

/* Activations of f16 or bf16 are multiplied as if they had been f32 with the same values. */
HR_TEST(products_take_every_type_of_activations) {
        static const uint32_t types[] = { F16, BF16 }, weights[] = { F32, F16, BF16,
                HR_TYPE_Q8_0, HR_TYPE_Q4_0 };
        struct hr_device *device = rig_device("auto", 3);

        for (uint32_t i = 0; i < 2 * 2 * HR_ARRAY_LENGTH(weights); i++) {
                const uint32_t type = types[i % 2];
                const uint32_t op = i / 2 % 2 ? HR_OP_MUL_MAT_ID : HR_OP_MUL_MAT;
                const int64_t experts = op == HR_OP_MUL_MAT_ID ? 4 : 1;
                uint8_t *results[2];
                uint64_t bytes;

                for (int is_f32 = 0; is_f32 < 2; is_f32++) {
                        struct hr_build *build = hr_build_new();
                        uint32_t ids[3], out;
                        struct hr_graph *graph;

                        ids[0] = hr_build_leaf(build, HR_LEAF_INPUT, F32, "a", 256, 9, experts,
                                               1);
                        ids[1] = hr_build_leaf(build, HR_LEAF_INPUT, type, "b", 256, 2, 5, 1);
                        ids[2] = hr_build_leaf(build, HR_LEAF_INPUT, I32, "ids", 2, 5, 1, 1);
                        ids[0] = hr_build_node(build, HR_OP_CPY, weights[i / 4], 256, 9, experts,
                                               1, 1, &ids[0]);
                        if (is_f32)
                                ids[1] = hr_build_node(build, HR_OP_CPY, F32, 256, 2, 5, 1, 1,
                                                       &ids[1]);
                        out = hr_build_node(build, op, F32, 9, 2, 5, 1,
                                            op == HR_OP_MUL_MAT_ID ? 3 : 2, ids);
                        graph = hr_build_finish(build);
                        results[is_f32] = rig_run(device, graph, out, 5, 4, &bytes, NULL);
                        graph = hr_graph_unref(graph);
                }
                if (memcmp(results[0], results[1], (size_t) bytes) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s of %s", hr_op_name(op),
                                     hr_type_name(type));
                free(results[0]);
                free(results[1]);
        }
        device = hr_device_unref(device);
}

/* Masks of 16-bit floats: -infinity or 0 behind the diagonal, all else as it was. */
HR_TEST(masks_of_small_floats) {
        static const struct {
                uint32_t type;
                uint16_t minus_infinity;
        } kinds[] = { { F16, 0xfc00 }, { BF16, 0xff80 } };
        struct hr_device *device = rig_device("auto", 2);

        for (int i = 0; i < 4; i++) {
                const bool is_zero = i / 2;
                struct hr_build *build = hr_build_new();
                uint16_t values[3][4];
                uint32_t x, out;
                struct hr_graph *graph;
                uint64_t bytes;
                uint16_t *result;

                for (int j = 0; j < 12; j++)
                        values[j / 4][j % 4] = (uint16_t) (0x3c00 + j);
                x = hr_build_leaf(build, HR_LEAF_CONSTANT, kinds[i % 2].type, "x", 4, 3, 1, 1);
                hr_build_constant(build, x, values, sizeof values);
                out = hr_build_node(build, is_zero ? HR_OP_DIAG_MASK_ZERO : HR_OP_DIAG_MASK_INF,
                                    kinds[i % 2].type, 4, 3, 1, 1, 1, &x);
                hr_build_tensor(build, out)->params[0] = 1;
                graph = hr_build_finish(build);
                result = (uint16_t *) (void *) rig_run(device, graph, out, 1, 1, &bytes, NULL);
                for (int j = 0; j < 12; j++)
                        HR_EXPECT_EQ(result[j], j % 4 <= j / 4 + 1 ? values[j / 4][j % 4]
                                                : is_zero ? 0 : kinds[i % 2].minus_infinity);
                free(result);
                graph = hr_graph_unref(graph);
        }
        device = hr_device_unref(device);
}
