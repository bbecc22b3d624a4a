/* Each case builds a graph that is right but for one thing, and names status, reason and place. */
#include "core/graph.h"
#include "core/infer.h"
#include "core/op.h"
#include "tests/build.h"
#include "tests/harness.h"

#include <math.h>

#define SOURCES(...) (const uint32_t[]) { __VA_ARGS__ }

static const struct hr_graph_limits limits = { .tensor_bytes_max = UINT64_C(1) << 40 };

/* Frees the graph. */
static void expect(struct hr_graph *graph, hr_status status, const char *reason, int place) {
        struct hr_diag diag = { 0 };
        hr_status silent = hr_graph_validate(graph, &limits, NULL), got;

        graph->frozen = false;
        got = hr_graph_validate(graph, &limits, &diag);
        HR_EXPECT_EQ(got, silent);
        if (got != status || (status && strcmp(hr_diag_reason(&diag), reason) != 0))
                hr_test_fail(__FILE__, __LINE__, "got %s %s \"%s\", expected %s %s",
                             hr_status_name(got), diag.status ? hr_diag_reason(&diag) : "",
                             diag.words, hr_status_name(status), reason);
        HR_EXPECT_EQ(graph->frozen, status == HR_OK);
        if (status && place >= 0)
                HR_EXPECT_EQ(diag.has_node ? diag.node : diag.tensor, place);
        if (status) { /* the first failure counts, wherever the next one is */
                const struct hr_diag first = diag;

                HR_EXPECT_EQ(hr_graph_validate(graph, &limits, &diag), status);
                HR_EXPECT(memcmp(&first, &diag, sizeof diag) == 0);
        }
        hr_graph_unref(graph);
}

/* Two inputs a[4,3] b[4,2] and whatever the case adds. */
static struct hr_build *start(void) {
        struct hr_build *build = hr_build_new();

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "a", 4, 3, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "b", 4, 2, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", 4, 3, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "ids", 2, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_Q4_0, "q", 64, 2, 1, 1);
        return build;
}

enum { A, B, S, IDS, Q, N0, N1 };

static struct hr_graph *one(uint32_t op, uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2,
                            int64_t ne3, uint32_t count, const uint32_t *sources) {
        struct hr_build *build = start();

        (void) hr_build_node(build, op, type, ne0, ne1, ne2, ne3, count, sources);
        return hr_build_finish(build);
}

HR_TEST(validate_accepts_and_lists_ends) {
        struct hr_build *build = start();
        struct hr_diag diag = { 0 };
        struct hr_graph *graph;

        (void) hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 2, 3, 1, 1, 2, SOURCES(B, A));
        hr_build_tensor(build, N0)->flags = HR_TENSOR_OUTPUT;
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &diag), &diag);
        HR_EXPECT_EQ(graph->input_count, 2);
        HR_EXPECT_EQ(graph->inputs[1], IDS);
        HR_EXPECT_EQ(graph->output_count, 1);
        HR_EXPECT_EQ(graph->outputs[0], N0);
        hr_graph_unref(graph);
}

HR_TEST(validate_arity_and_sources) {
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "ARITY", 0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 3, SOURCES(A, A, A)), HR_E_INVALID, "ARITY",
               0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, HR_TENSOR_NONE)),
               HR_E_INVALID, "ARITY", 0);
        /* A cycle can only be written as a source that does not come before the node. */
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, N0)), HR_E_INVALID, "SOURCE",
               0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, N1)), HR_E_INVALID, "SOURCE",
               0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, 1000000)), HR_E_INVALID,
               "SOURCE", 0);
        expect(one(HR_OP_NONE, HR_TYPE_F32, 4, 3, 1, 1, 0, NULL), HR_E_INVALID, "OP", 0);
        expect(one(9, HR_TYPE_F32, 4, 3, 1, 1, 0, NULL), HR_E_INVALID, "OP", 0);
        expect(one(UINT32_MAX, HR_TYPE_F32, 4, 3, 1, 1, 0, NULL), HR_E_INVALID, "OP", 0);
}

HR_TEST(validate_lies_about_shapes_and_types) {
        expect(one(HR_OP_MUL_MAT, HR_TYPE_F32, 2, 4, 1, 1, 2, SOURCES(B, A)), HR_E_INVALID, "SHAPE",
               0);
        expect(one(HR_OP_MUL_MAT, HR_TYPE_F16, 2, 3, 1, 1, 2, SOURCES(B, A)), HR_E_INVALID, "DTYPE",
               0);
        expect(one(HR_OP_MUL_MAT, HR_TYPE_F32, 2, 3, 1, 1, 2, SOURCES(Q, A)), HR_E_INVALID, "SHAPE",
               0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, B)), HR_E_INVALID, "SHAPE", 0);
        expect(one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, IDS)), HR_E_INVALID, "DTYPE",
               0);
        expect(one(HR_OP_GET_ROWS, HR_TYPE_F32, 4, 2, 1, 1, 2, SOURCES(A, B)), HR_E_INVALID,
               "DTYPE", 0);
        expect(one(HR_OP_ARGSORT, HR_TYPE_F32, 4, 3, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "DTYPE",
               0);
        expect(one(HR_OP_TOP_K, HR_TYPE_I32, 5, 3, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "SHAPE", 0);
        expect(one(HR_OP_TOP_K, HR_TYPE_I32, -1, 3, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "SIZE", -1);
        expect(one(HR_OP_CONT, HR_TYPE_F32, 4, 4, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "SHAPE", 0);
        expect(one(HR_OP_REPEAT, HR_TYPE_F32, 6, 3, 1, 1, 1, SOURCES(A)), HR_E_INVALID, "SHAPE", 0);
        expect(one(HR_OP_GET_ROWS, HR_TYPE_F32, 64, 2, 1, 1, 2, SOURCES(Q, IDS)), HR_OK, "", -1);
}

HR_TEST(validate_types_and_blocks) {
        static const uint32_t bad_types[] = { 4, 5, 31, 36, 43, 255, UINT32_MAX };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad_types); i++) {
                struct hr_build *build = start();

                hr_build_tensor(build, B)->type = bad_types[i];
                expect(hr_build_finish(build), HR_E_INVALID, "DTYPE", B);
        }
        for (int64_t extent = 1; extent < 32; extent += 10) {
                struct hr_build *build = start();

                hr_build_tensor(build, Q)->ne[0] = 64 + extent;
                expect(hr_build_finish(build), HR_E_INVALID, "BLOCK", Q);
        }
}

HR_TEST(validate_sizes) {
        struct hr_build *build = start();

        hr_build_tensor(build, A)->ne[3] = INT64_MAX;
        expect(hr_build_finish(build), HR_E_INVALID, "SIZE", A);
        build = start();
        (void) hr_build_node(build, HR_OP_REPEAT, HR_TYPE_F32, 4, (int64_t) 3 << 40, 1, 1, 1,
                             SOURCES(A));
        expect(hr_build_finish(build), HR_E_EXHAUSTED, "TENSOR_BYTES", N0);
        build = start();
        (void) hr_build_node(build, HR_OP_REPEAT, HR_TYPE_F32, 4, (int64_t) 3 << 40,
                             (int64_t) 1 << 40, 1, 1, SOURCES(A));
        expect(hr_build_finish(build), HR_E_INVALID, "SIZE", N0);
        /* Extents of which one is 0 still must not wrap on the way. */
        expect(one(HR_OP_ADD, HR_TYPE_F32, 0, 3, 1, 1, 2, SOURCES(A, A)), HR_E_INVALID, "SHAPE", 0);
}

HR_TEST(validate_views_stay_inside) {
        static const struct {
                uint64_t offset;
                int64_t ne0, ne1;
                uint64_t nb1;
                hr_status status;
                const char *reason;
        } views[] = {
                { 0, 4, 3, 16, HR_OK, "" },
                { 16, 4, 2, 16, HR_OK, "" },
                { 4, 2, 3, 16, HR_OK, "" },
                { 0, 4, 4, 16, HR_E_INVALID, "VIEW" },
                { 32, 4, 2, 16, HR_E_INVALID, "VIEW" },
                { 2, 2, 3, 16, HR_E_INVALID, "VIEW" },
                { 0, 2, 3, 18, HR_E_INVALID, "STRIDE" },
                { 0, 4, 3, UINT64_MAX - 15, HR_E_INVALID, "SIZE" },
                { UINT64_MAX - 3, 4, 1, 16, HR_E_INVALID, "VIEW" },
                { 48, 0, 3, 16, HR_OK, "" },
                { 64, 0, 3, 16, HR_E_INVALID, "VIEW" },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(views); i++) {
                struct hr_build *build = start();
                struct hr_tensor *view;
                uint32_t id = hr_build_node(build, HR_OP_VIEW, HR_TYPE_F32, views[i].ne0,
                                            views[i].ne1, 1, 1, 1, SOURCES(A));

                view = hr_build_tensor(build, id);
                view->view_base = A;
                view->view_offset = views[i].offset;
                memcpy(view->params, &views[i].offset, sizeof views[i].offset);
                view->nb[1] = views[i].nb1;
                view->nb[2] = view->nb[3] = views[i].nb1 * (uint64_t) views[i].ne1;
                expect(hr_build_finish(build), views[i].status, views[i].reason, -1);
        }
}

HR_TEST(validate_views_name_their_root) {
        struct hr_build *build = start();
        struct hr_tensor *view;
        uint32_t first = hr_build_node(build, HR_OP_RESHAPE, HR_TYPE_F32, 12, 1, 1, 1, 1,
                                       SOURCES(A));
        uint32_t second;

        hr_build_tensor(build, first)->view_base = A;
        second = hr_build_node(build, HR_OP_RESHAPE, HR_TYPE_F32, 2, 6, 1, 1, 1, SOURCES(first));
        view = hr_build_tensor(build, second);
        view->view_base = first; /* the root is A */
        expect(hr_build_finish(build), HR_E_INVALID, "VIEW", 1);
        /* A plain op cannot claim somebody's memory. */
        build = start();
        (void) hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 3, 3, 1, 1, 2, SOURCES(A, A));
        hr_build_tensor(build, N0)->view_base = S;
        expect(hr_build_finish(build), HR_E_INVALID, "VIEW", 0);
}

HR_TEST(validate_in_place_needs_source_0_and_a_writable_base) {
        struct hr_build *build = start();

        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(S, A));
        hr_build_tensor(build, N0)->view_base = S;
        expect(hr_build_finish(build), HR_OK, "", -1);
        build = start();
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, S));
        hr_build_tensor(build, N0)->view_base = S;
        expect(hr_build_finish(build), HR_E_INVALID, "VIEW", 0);
        build = start();
        (void) hr_build_node(build, HR_OP_UNARY, HR_TYPE_F32, 4, 2, 1, 1, 1, SOURCES(B));
        hr_build_tensor(build, N0)->view_base = B;
        expect(hr_build_finish(build), HR_E_INVALID, "ALIAS", 0);
}

static struct hr_graph *set_rows(uint32_t target, int64_t values, int64_t rows) {
        struct hr_build *build = hr_build_new();

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "v", 4, values, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I64, "i", 2, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F16, "s", 4, rows, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F16, "w", 4, rows, 1, 1);
        (void) hr_build_node(build, HR_OP_SET_ROWS, HR_TYPE_F16, 4, rows, 1, 1, 3,
                             SOURCES(0, 1, target));
        hr_build_tensor(build, 4)->view_base = target;
        return hr_build_finish(build);
}

HR_TEST(validate_writers) {
        expect(set_rows(2, 2, 8), HR_OK, "", -1);
        expect(set_rows(2, 3, 8), HR_E_INVALID, "SHAPE", 0);
        expect(set_rows(3, 2, 8), HR_E_INVALID, "ALIAS", 0);
}

HR_TEST(validate_parameters) {
        static const struct {
                uint32_t op, word;
                float value;
        } bad[] = {
                {HR_OP_RMS_NORM, 0, NAN},        {HR_OP_RMS_NORM, 0, -1}, {HR_OP_NORM, 0, INFINITY},
                {HR_OP_RMS_NORM, 1, 1},          {HR_OP_SCALE, 0, NAN},   {HR_OP_SQR, 0, 1},
                {HR_OP_LEAKY_RELU, 0, INFINITY}, {HR_OP_CLAMP, 0, 1},     {HR_OP_SOFT_MAX, 1, 8},
                {HR_OP_SOFT_MAX, 0, NAN},
        };
        static const struct {
                uint32_t op, word;
                int32_t value;
        } bad_words[] = {
                { HR_OP_UNARY, 0, -1 },     { HR_OP_UNARY, 0, HR_UNARY_COUNT },
                { HR_OP_ARGSORT, 0, 2 },    { HR_OP_UNARY, 1, 1 },
                { HR_OP_GLU, 0, 6 },        { HR_OP_GLU, 1, 2 },
                { HR_OP_DIAG_MASK_INF, 0, -1 }, { HR_OP_GROUP_NORM, 0, 0 },
                { HR_OP_GROUP_NORM, 0, -3 },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++) {
                struct hr_build *build = start();

                (void) hr_build_node(build, bad[i].op, HR_TYPE_F32, 4, 3, 1, 1, 1, SOURCES(A));
                hr_build_param_f32(build, N0, bad[i].word, bad[i].value);
                expect(hr_build_finish(build), HR_E_INVALID, "PARAM", 0);
        }
        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad_words); i++) {
                struct hr_build *build = start();

                (void) hr_build_node(build, bad_words[i].op, HR_TYPE_F32, 4, 3, 1, 1, 1,
                                     SOURCES(A));
                hr_build_tensor(build, N0)->params[bad_words[i].word] = bad_words[i].value;
                expect(hr_build_finish(build), HR_E_INVALID, "PARAM", 0);
        }
}

HR_TEST(validate_rope) {
        static const struct {
                uint32_t word;
                int32_t value;
                hr_status status;
        } words[] = {
                { 1, 4, HR_OK },         { 1, 3, HR_E_INVALID },  { 1, 6, HR_E_INVALID },
                { 1, 0, HR_E_INVALID },  { 1, -2, HR_E_INVALID }, { 2, 1, HR_E_INVALID },
                { 2, 2, HR_OK },         { 2, 8, HR_E_INVALID },  { 15, 2, HR_E_INVALID },
                { 15, -1, HR_E_INVALID }, { 0, 1, HR_E_INVALID }, { 4, -1, HR_E_INVALID },
                { 5, 0, HR_E_INVALID },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(words); i++) {
                struct hr_build *build = hr_build_new();
                struct hr_graph *graph;
                struct hr_diag diag = { 0 };

                (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 2, 3, 1);
                (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "p", 3, 1, 1, 1);
                (void) hr_build_node(build, HR_OP_ROPE, HR_TYPE_F32, 4, 2, 3, 1, 2, SOURCES(0, 1));
                hr_build_tensor(build, 2)->params[1] = 4;
                hr_build_param_f32(build, 2, 5, 10000.0F);
                hr_build_tensor(build, 2)->params[words[i].word] = words[i].value;
                graph = hr_build_finish(build);
                if (hr_graph_validate(graph, &limits, &diag) != words[i].status)
                        hr_test_fail(__FILE__, __LINE__, "case %zu: %s", i, diag.words);
                hr_graph_unref(graph);
        }
}

HR_TEST(validate_leaves) {
        static const struct {
                uint32_t kind, flags;
                const char *reason;
        } leaves[] = {
                { 0, 0, "LEAF" },
                { 5, 0, "LEAF" },
                { HR_LEAF_WEIGHT, HR_TENSOR_INPUT, "FLAG" },
                { HR_LEAF_INPUT, 64, "FLAG" },
                { HR_LEAF_CONSTANT, 0, "SIZE" },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(leaves); i++) {
                struct hr_build *build = start();

                hr_build_tensor(build, A)->leaf_kind = leaves[i].kind;
                hr_build_tensor(build, A)->flags = leaves[i].flags;
                expect(hr_build_finish(build), HR_E_INVALID, leaves[i].reason, A);
        }
        struct hr_build *build = start();

        hr_build_tensor(build, A)->nb[3] = 7; /* hidden behind an extent of 1 */
        expect(hr_build_finish(build), HR_E_INVALID, "LEAF", A);
        build = hr_build_new();
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", 4, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "t", 4, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", 4, 1, 1, 1);
        expect(hr_build_finish(build), HR_E_INVALID, "NAME", 2);
        build = hr_build_new();
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "", 4, 1, 1, 1);
        expect(hr_build_finish(build), HR_E_INVALID, "NAME", 0);
}

/* One thing about a leaf that only a node may have, or nobody. */
HR_TEST(validate_leaves_that_are_more) {
        static const struct {
                uint32_t op, sources, view_base;
                uint64_t view_offset;
                int32_t param;
                uint32_t reserved;
                const char *reason;
        } leaves[] = {
                { .op = HR_OP_ADD, .view_base = HR_TENSOR_NONE, .reason = "LEAF" },
                { .sources = 1, .view_base = HR_TENSOR_NONE, .reason = "LEAF" },
                { .view_base = B, .reason = "LEAF" },
                { .view_base = HR_TENSOR_NONE, .view_offset = 4, .reason = "LEAF" },
                { .view_base = HR_TENSOR_NONE, .param = 1, .reason = "PARAM" },
                { .view_base = HR_TENSOR_NONE, .reserved = 1, .reason = "COLUMN" },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(leaves); i++) {
                struct hr_graph *graph = one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, A));
                struct hr_tensor *leaf = &graph->tensors[A];

                leaf->op = leaves[i].op;
                leaf->source_count = leaves[i].sources;
                leaf->view_base = leaves[i].view_base;
                leaf->view_offset = leaves[i].view_offset;
                leaf->params[HR_OP_PARAM_WORDS - 1] = leaves[i].param;
                leaf->reserved = leaves[i].reserved;
                expect(graph, HR_E_INVALID, leaves[i].reason, A);
        }
}

/* Lists of sources that are not those of the nodes, one after the other. */
HR_TEST(validate_source_lists) {
        struct hr_graph *graph = one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, A));

        graph->tensors[N0].source_first = 1;
        expect(graph, HR_E_INVALID, "COLUMN", N0);
        graph = one(HR_OP_ADD, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, A));
        graph->tensors[N0].source_count = 3;
        expect(graph, HR_E_INVALID, "COLUMN", N0);
        graph = one(HR_OP_SQR, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, A));
        graph->tensors[N0].source_count = 1;
        expect(graph, HR_E_INVALID, "COLUMN", -1);
        graph = one(HR_OP_SQR, HR_TYPE_F32, 4, 3, 1, 1, 1, SOURCES(A));
        graph->extra_count = 1;
        HR_EXPECT_EQ(hr_graph_validate(graph, &limits, NULL), HR_E_INVALID);
        graph->extra_count = 0;
        expect(graph, HR_OK, "", -1);
        /* An optional source may be absent. */
        expect(one(HR_OP_SOFT_MAX, HR_TYPE_F32, 4, 3, 1, 1, 2, SOURCES(A, HR_TENSOR_NONE)), HR_OK,
               "", -1);
}

/* Many states of names of several lengths, of which two are the same, or none. */
HR_TEST(validate_names_of_many_states) {
        for (int twice = 0; twice < 2; twice++) {
                struct hr_build *build = hr_build_new();
                char name[16];

                for (int i = 0; i < 200; i++) {
                        (void) snprintf(name, sizeof name, "s%d", twice && i == 150 ? 7 : i * 37);
                        if (twice && i == 7)
                                (void) snprintf(name, sizeof name, "s7");
                        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, name, 4, 1, 1, 1);
                }
                expect(hr_build_finish(build), twice ? HR_E_INVALID : HR_OK, "NAME",
                       twice ? 150 : -1);
        }
}

/* A node over memory that is, or is not, where its op puts it. */
HR_TEST(validate_memory_of_nodes) {
        static const struct {
                uint32_t op, source, type, base;
                uint64_t offset;
                int64_t ne0, ne1;
                uint64_t nb1; /* 0: as it is */
                hr_status status;
                const char *reason;
        } nodes[] = {
                { HR_OP_SQR, S, HR_TYPE_F32, S, 0, 4, 3, 0, HR_OK, "" },
                { HR_OP_SQR, S, HR_TYPE_F32, S, 4, 4, 3, 0, HR_E_INVALID, "VIEW" },
                { HR_OP_SQR, S, HR_TYPE_F32, A, 0, 4, 3, 0, HR_E_INVALID, "VIEW" },
                { HR_OP_SQR, S, HR_TYPE_F32, S, 0, 4, 3, 20, HR_E_INVALID, "VIEW" },
                { HR_OP_SQR, S, HR_TYPE_F32, HR_TENSOR_NONE, 4, 4, 3, 0, HR_E_INVALID, "VIEW" },
                { HR_OP_SQR, S, HR_TYPE_F32, HR_TENSOR_NONE, 0, 4, 3, 20, HR_E_INVALID, "STRIDE" },
                { HR_OP_RESHAPE, A, HR_TYPE_F32, A, 0, 6, 2, 0, HR_OK, "" },
                { HR_OP_RESHAPE, A, HR_TYPE_F32, A, 4, 6, 2, 0, HR_E_INVALID, "VIEW" },
                { HR_OP_RESHAPE, A, HR_TYPE_F32, B, 0, 6, 2, 0, HR_E_INVALID, "VIEW" },
                { HR_OP_RESHAPE, A, HR_TYPE_F32, A, 0, 6, 2, 32, HR_E_INVALID, "STRIDE" },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(nodes); i++) {
                struct hr_graph *graph = one(nodes[i].op, nodes[i].type, nodes[i].ne0,
                                             nodes[i].ne1, 1, 1, 1, SOURCES(nodes[i].source));
                struct hr_tensor *node = &graph->tensors[N0];

                node->view_base = nodes[i].base;
                node->view_offset = nodes[i].offset;
                if (nodes[i].nb1)
                        node->nb[1] = nodes[i].nb1;
                expect(graph, nodes[i].status, nodes[i].reason, nodes[i].status ? 0 : -1);
        }
}

/* In place over a view: at its offset within the root. */
HR_TEST(validate_in_place_over_a_view) {
        for (int wrong = 0; wrong < 5; wrong++) {
                struct hr_build *build = start();
                struct hr_tensor *node;
                uint64_t offset = 16;
                uint32_t view = hr_build_node(build, HR_OP_VIEW, HR_TYPE_F32, 4, 2, 1, 1, 1,
                                              SOURCES(S));

                node = hr_build_tensor(build, view);
                node->view_base = S;
                node->view_offset = offset;
                memcpy(node->params, &offset, sizeof offset);
                (void) hr_build_node(build, HR_OP_SQR, HR_TYPE_F32, 4, 2, 1, 1, 1, SOURCES(view));
                node = hr_build_tensor(build, N1);
                node->view_base = wrong == 1 ? A : S;
                node->view_offset = wrong == 2 ? 0 : offset;
                if (wrong == 3)
                        node->nb[1] = 32;
                if (wrong == 4)
                        node->leaf_kind = HR_LEAF_INPUT;
                expect(hr_build_finish(build), wrong ? HR_E_INVALID : HR_OK,
                       wrong == 4 ? "LEAF" : "VIEW", wrong ? 1 : -1);
        }
}

/* A view of a view whose end does not fit 64 bits. */
HR_TEST(validate_views_that_wrap) {
        struct hr_build *build = start();
        const uint64_t offsets[] = { 16, INT64_MAX - 3 };
        uint32_t source = S;
        struct hr_tensor *view;

        for (int i = 0; i < 2; i++) {
                source = hr_build_node(build, HR_OP_VIEW, HR_TYPE_F32, 1, 2, 1, 1, 1,
                                       SOURCES(source));
                view = hr_build_tensor(build, source);
                view->view_base = S;
                view->view_offset = offsets[0] + (i ? offsets[1] : 0);
                memcpy(view->params, &offsets[i], sizeof offsets[i]);
                view->nb[1] = i ? INT64_MAX - 7 : 16;
                view->nb[2] = view->nb[3] = 16;
        }
        expect(hr_build_finish(build), HR_E_INVALID, "VIEW", 1);
}

HR_TEST(validate_constants_are_not_written) {
        struct hr_build *build = hr_build_new();

        (void) hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "c", 2, 1, 1, 1);
        hr_build_constant(build, 0, "12345678", 8);
        (void) hr_build_node(build, HR_OP_SQR, HR_TYPE_F32, 2, 1, 1, 1, 1, SOURCES(0));
        hr_build_tensor(build, 1)->view_base = 0;
        expect(hr_build_finish(build), HR_E_INVALID, "ALIAS", 0);
}

HR_TEST(every_op_of_a_node_has_its_inference) {
        for (uint32_t op = 0; op < HR_OP_LIMIT + 3; op++)
                HR_EXPECT_EQ(hr_infer_lookup(op) != NULL, hr_op_info(op) && op != HR_OP_NONE);
}

/* What is left open is filled in; what cannot be is refused as by validation. */
HR_TEST(infer_fills_in_or_refuses) {
        static const struct {
                uint32_t op, sources[2], source_count;
                int64_t ne[HR_DIMS]; /* as far as the op leaves them open */
                hr_status status;
                const char *reason;
                uint32_t base;
        } nodes[] = {
                { HR_OP_MUL_MAT, { B, A }, 2, { 0 }, HR_OK, "", HR_TENSOR_NONE },
                { HR_OP_RESHAPE, { A }, 1, { 6, 2, 1, 1 }, HR_OK, "", A },
                { HR_OP_NONE, { A }, 1, { 0 }, HR_E_INVALID, "OP", 0 },
                { HR_OP_ADD, { A }, 1, { 0 }, HR_E_INVALID, "ARITY", 0 },
                { HR_OP_MUL_MAT, { A, Q }, 2, { 0 }, HR_E_INVALID, "SHAPE", 0 },
                { HR_OP_REPEAT, { A }, 1, { 4, (int64_t) 3 << 60, 1, 1 }, HR_E_INVALID, "SIZE", 0 },
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(nodes); i++) {
                struct hr_build *build = start();
                struct hr_diag diag = { 0 };
                struct hr_graph *graph;
                struct hr_tensor *node;

                (void) hr_build_node(build, nodes[i].op, HR_TYPE_F32, 4, 3, 1, 1,
                                     nodes[i].source_count, nodes[i].sources);
                graph = hr_build_finish(build);
                node = &graph->tensors[N0];
                memcpy(node->ne, nodes[i].ne, sizeof node->ne);
                HR_EXPECT_EQ(hr_graph_infer(graph, N0, &diag), nodes[i].status);
                if (nodes[i].status) {
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), nodes[i].reason);
                        hr_graph_unref(graph);
                        continue;
                }
                HR_EXPECT_EQ(node->view_base, nodes[i].base);
                expect(graph, HR_OK, "", -1); /* what it has filled in is what validation demands */
        }
}

/* Types, extents and strides of inference's own making. */
HR_TEST(infer_lays_out_or_refuses) {
        static const int64_t wide = (int64_t) 1 << 40;
        struct hr_build *build = hr_build_new();
        struct hr_diag diag = { 0 };
        struct hr_graph *graph;
        uint32_t image, product;
        struct hr_tensor *node;

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "wide", 1, wide, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "kernel", 3, 3, 1, 8);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "image", 8, 5, 5, 1);
        product = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 1, 1, 1, 1, 2, SOURCES(0, 0));
        image = hr_build_node(build, HR_OP_PERMUTE, HR_TYPE_F32, 5, 5, 8, 1, 1, SOURCES(2));
        memcpy(hr_build_tensor(build, image)->params, (const int32_t[]) { 2, 0, 1, 3 }, 16);
        (void) hr_build_node(build, HR_OP_CONV_2D_DW, HR_TYPE_F32, 1, 1, 1, 1, 2,
                             SOURCES(1, image));
        node = hr_build_tensor(build, image + 1);
        memcpy(node->params, (const int32_t[]) { 1, 1, 0, 0, 1, 1 }, 24);
        graph = hr_build_finish(build);
        HR_EXPECT_EQ(hr_graph_infer(graph, product, &diag), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "SIZE");
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_graph_infer(graph, image, &diag), &diag);
        HR_EXPECT_EQ(graph->tensors[image].nb[2], 4);
        HR_EXPECT_OK(hr_graph_infer(graph, image + 1, &diag), &diag);
        node = &graph->tensors[image + 1]; /* [3,3,8,1] with the channels next to each other */
        HR_EXPECT(node->ne[0] == 3 && node->ne[1] == 3 && node->ne[2] == 8);
        HR_EXPECT(node->nb[2] == 4 && node->nb[0] == 32 && node->nb[1] == 96);
        hr_graph_unref(graph);
}

HR_TEST(validate_empty_graphs_and_tensors) {
        struct hr_build *build = hr_build_new();

        expect(hr_build_finish(build), HR_OK, "", -1);
        build = hr_build_new();
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 0, 3, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "w", 0, 2, 0, 1);
        (void) hr_build_node(build, HR_OP_UNARY, HR_TYPE_F32, 0, 3, 1, 1, 1, SOURCES(0));
        (void) hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 2, 3, 1, 1, 2, SOURCES(1, 0));
        expect(hr_build_finish(build), HR_E_INVALID, "SHAPE", 1); /* 1 is no multiple of 0 */
}

static uint64_t random_next(void) {
        static uint64_t state = 88172645463325252ULL;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
}

/* Every op with random sources, shapes, types and parameters: no crash, and a verdict. */
HR_TEST_LIMIT(validate_survives_random_graphs, 60) {
        unsigned accepted = 0;

        for (int round = 0; round < 200000; round++) {
                static const int64_t extents[] = { 0, 1, 2, 3, 4, 32, 64, 256, -1, INT64_MAX };
                struct hr_build *build = hr_build_new();
                uint32_t op = (uint32_t) (random_next() % HR_OP_LIMIT), sources[5];
                uint32_t count = (uint32_t) (random_next() % 5), id;
                struct hr_graph *graph;
                struct hr_diag diag = { 0 };
                int64_t ne[HR_DIMS];

                for (int leaf = 0; leaf < 4; leaf++)
                        (void) hr_build_leaf(build, HR_LEAF_INPUT,
                                             random_next() % 3 ? HR_TYPE_F32 : random_next() % 43,
                                             "x", extents[random_next() % 8],
                                             extents[random_next() % 5],
                                             random_next() % 3 ? 1 : extents[random_next() % 5], 1);
                for (uint32_t i = 0; i < count; i++)
                        sources[i] = (uint32_t) (random_next() % 5);
                for (int i = 0; i < HR_DIMS; i++)
                        ne[i] = random_next() % 8 ? hr_build_tensor(build, 0)->ne[i]
                                           : extents[random_next() % HR_ARRAY_LENGTH(extents)];
                id = hr_build_node(build, op, random_next() % 4 ? HR_TYPE_F32 : random_next() % 44,
                                   ne[0], ne[1], ne[2], ne[3], count, sources);
                if (random_next() % 4 == 0)
                        for (int word = 0; word < (int) (random_next() % 16); word++)
                                hr_build_tensor(build, id)->params[word] =
                                        random_next() % 2 ? (int32_t) (random_next() % 4)
                                                          : (int32_t) random_next();
                if (random_next() % 3 == 0)
                        hr_build_tensor(build, id)->view_base = (uint32_t) (random_next() % 4);
                graph = hr_build_finish(build);
                accepted += hr_graph_validate(graph, &limits, &diag) == HR_OK;
                HR_EXPECT_EQ(diag.status == HR_OK, graph->frozen);
                hr_graph_unref(graph);
        }
        HR_EXPECT(accepted > 100); /* or the rounds test refusal alone */
}
