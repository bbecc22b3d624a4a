/*
 * Data that a kernel uses as an index: whatever they hold, a run ends with RANGE at its node, and
 * nothing outside an operand is touched. Every op of core/op.def that has such data is in the
 * table; ROPE's positions are numbers that angles are made of, and any of them will do.
 */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "tests/unit/cpu/op_rig.h"

#define IDS 6 /* of every case, in memory order */

struct index_case {
        uint32_t op;
        uint32_t type;     /* of the rows that are found, or written into */
        uint32_t id_type;
        int64_t row;       /* their elements */
        int64_t limit;     /* ids are below it */
        const char *words; /* that name the index */
};

static const struct index_case cases[] = {
        { HR_OP_GET_ROWS, HR_TYPE_F32, HR_TYPE_I32, 8, 5, "row id" },
        { HR_OP_GET_ROWS, HR_TYPE_F16, HR_TYPE_I32, 8, 5, "row id" },
        { HR_OP_GET_ROWS, HR_TYPE_BF16, HR_TYPE_I32, 8, 5, "row id" },
        { HR_OP_GET_ROWS, HR_TYPE_I32, HR_TYPE_I32, 8, 5, "row id" },
        { HR_OP_GET_ROWS, HR_TYPE_Q4_0, HR_TYPE_I32, 32, 5, "row id" },
        { HR_OP_GET_ROWS, HR_TYPE_Q6_K, HR_TYPE_I32, 256, 5, "row id" },
        { HR_OP_SET_ROWS, HR_TYPE_F32, HR_TYPE_I32, 8, 7, "row id" },
        { HR_OP_SET_ROWS, HR_TYPE_F32, HR_TYPE_I64, 8, 7, "row id" },
        { HR_OP_SET_ROWS, HR_TYPE_F16, HR_TYPE_I64, 8, 7, "row id" },
        { HR_OP_SET_ROWS, HR_TYPE_Q8_0, HR_TYPE_I64, 32, 7, "row id" },
        { HR_OP_ADD_ID, HR_TYPE_F32, HR_TYPE_I32, 8, 4, "id" },
        { HR_OP_MUL_MAT_ID, HR_TYPE_F32, HR_TYPE_I32, 32, 4, "expert id" },
        { HR_OP_MUL_MAT_ID, HR_TYPE_BF16, HR_TYPE_I32, 32, 4, "expert id" },
        { HR_OP_MUL_MAT_ID, HR_TYPE_Q4_0, HR_TYPE_I32, 32, 4, "expert id" },
        { HR_OP_MUL_MAT_ID, HR_TYPE_Q4_K, HR_TYPE_I32, 256, 4, "expert id" },
        { HR_OP_SSM_SCAN, HR_TYPE_F32, HR_TYPE_I32, 16, 7, "state id" },
};

/* Values that are no index below a limit, for all limits of the table. 2^32 is one when half of it
 * is left out. */
static const int64_t never[] = { -1,       INT_MIN,   INT_MAX,           -5,
                                 1 << 30,  INT64_MIN, INT64_MAX,         INT64_C(1) << 32,
                                 (INT64_C(1) << 32) + 1, -(INT64_C(1) << 32) };

static uint32_t leaf_of(struct hr_build *build, uint32_t type, int64_t ne0, int64_t ne1,
                        int64_t ne2, int64_t ne3) {
        const struct hr_type_info *info = hr_type_info(type);
        const bool is_float = type == HR_TYPE_F32 || type == HR_TYPE_F16 || type == HR_TYPE_BF16;
        const uint64_t bytes = (uint64_t) (ne0 / info->block_elements * ne1 * ne2 * ne3) *
                               info->block_bytes;
        uint32_t leaf = hr_build_leaf(build, is_float ? HR_LEAF_INPUT : HR_LEAF_CONSTANT, type,
                                      "leaf", ne0, ne1, ne2, ne3);
        void *zeros;

        if (is_float)
                return leaf;
        zeros = calloc(1, bytes);
        HR_EXPECT(zeros);
        hr_build_constant(build, leaf, zeros, bytes);
        free(zeros);
        return leaf;
}

static uint32_t ids_of(struct hr_build *build, uint32_t type, int64_t ne0, int64_t ne1,
                       const int64_t ids[IDS]) {
        uint32_t leaf = hr_build_leaf(build, HR_LEAF_CONSTANT, type, "ids", ne0, ne1, 1, 1);
        int32_t narrow[IDS];

        for (int i = 0; i < IDS; i++)
                narrow[i] = (int32_t) ids[i];
        if (type == HR_TYPE_I64)
                hr_build_constant(build, leaf, ids, IDS * sizeof ids[0]);
        else
                hr_build_constant(build, leaf, narrow, sizeof narrow);
        return leaf;
}

static uint32_t scan_of(struct hr_build *build, const int64_t *ids) {
        uint32_t sources[7] = { leaf_of(build, HR_TYPE_F32, 16, 4, 6, 7),
                                leaf_of(build, HR_TYPE_F32, 4, 6, 8, IDS),
                                leaf_of(build, HR_TYPE_F32, 6, 8, IDS, 1),
                                leaf_of(build, HR_TYPE_F32, 1, 6, 1, 1),
                                leaf_of(build, HR_TYPE_F32, 16, 2, 8, IDS),
                                leaf_of(build, HR_TYPE_F32, 16, 2, 8, IDS),
                                ids_of(build, HR_TYPE_I32, IDS, 1, ids) };
        uint32_t node = hr_build_node(build, HR_OP_SSM_SCAN, HR_TYPE_F32,
                                      4 * 6 * 8 * IDS + 16 * 4 * 6 * IDS, 1, 1, 1, 7, sources);

        hr_build_tensor(build, node)->params[0] = 1;
        return node;
}

static uint32_t set_rows_of(struct hr_build *build, const struct index_case *c,
                            const int64_t *ids) {
        uint32_t sources[3] = { leaf_of(build, HR_TYPE_F32, c->row, IDS, 1, 1),
                                ids_of(build, c->id_type, IDS, 1, ids), 0 };
        uint32_t base, node;

        /* a node that is written into, so that it need not be a leaf of a type without contents */
        base = leaf_of(build, HR_TYPE_F32, c->row, c->limit, 1, 1);
        sources[2] = hr_build_node(build, HR_OP_CPY, c->type, c->row, c->limit, 1, 1, 1, &base);
        node = hr_build_node(build, HR_OP_SET_ROWS, c->type, c->row, c->limit, 1, 1, 3, sources);
        hr_build_tensor(build, node)->view_base = sources[2];
        return node;
}

static struct hr_graph *graph_of(const struct index_case *c, const int64_t *ids,
                                 uint32_t *ret_node) {
        struct hr_build *build = hr_build_new();
        uint32_t sources[3];

        switch (c->op) {
        case HR_OP_GET_ROWS:
                sources[0] = leaf_of(build, c->type, c->row, c->limit, 1, 1);
                sources[1] = ids_of(build, c->id_type, IDS, 1, ids);
                *ret_node = hr_build_node(build, c->op,
                                          c->type == HR_TYPE_I32 ? HR_TYPE_I32 : HR_TYPE_F32,
                                          c->row, IDS, 1, 1, 2, sources);
                break;
        case HR_OP_SET_ROWS:
                *ret_node = set_rows_of(build, c, ids);
                break;
        case HR_OP_ADD_ID:
                sources[0] = leaf_of(build, HR_TYPE_F32, c->row, 3, 2, 1);
                sources[1] = leaf_of(build, HR_TYPE_F32, c->row, c->limit, 1, 1);
                sources[2] = ids_of(build, c->id_type, 3, 2, ids);
                *ret_node = hr_build_node(build, c->op, HR_TYPE_F32, c->row, 3, 2, 1, 3, sources);
                break;
        case HR_OP_MUL_MAT_ID:
                sources[0] = leaf_of(build, c->type, c->row, 20, c->limit, 1);
                sources[1] = leaf_of(build, HR_TYPE_F32, c->row, 1, 3, 1);
                sources[2] = ids_of(build, c->id_type, 2, 3, ids);
                *ret_node = hr_build_node(build, c->op, HR_TYPE_F32, 20, 2, 3, 1, 3, sources);
                break;
        default:
                *ret_node = scan_of(build, ids);
        }
        return hr_build_finish(build);
}

/* The node that fails is the last one: its number follows from how many there are. */
static void expect(struct hr_device *device, const struct index_case *c, const int64_t *ids,
                   bool is_bad) {
        struct hr_diag outcome = { 0 };
        uint32_t node;
        struct hr_graph *graph = graph_of(c, ids, &node);
        uint64_t bytes;

        free(rig_run(device, graph, node, 1, 1, &bytes, &outcome));
        if (is_bad ? outcome.status != HR_E_RANGE ||
                             strcmp(hr_diag_reason(&outcome), "INDEX_VALUE") != 0 ||
                             !outcome.has_node || outcome.node != node - graph->leaf_count ||
                             !strstr(outcome.words, hr_op_name(c->op)) ||
                             !strstr(outcome.words, c->words)
                   : outcome.status != HR_OK)
                hr_test_fail(__FILE__, __LINE__, "%s of %s: %s %s \"%s\"", hr_op_name(c->op),
                             hr_type_name(c->type), hr_status_name(outcome.status),
                             outcome.status ? hr_diag_reason(&outcome) : "", outcome.words);
        graph = hr_graph_unref(graph);
}

/* Each bad value at the first and the last place; and the device goes on as if nothing had been. */
static void check_case(struct hr_device *device, const struct index_case *c) {
        const int64_t good[IDS] = { 0, c->limit - 1, 1, 2, 3, 0 };

        expect(device, c, good, false);
        for (size_t v = 0; v <= HR_ARRAY_LENGTH(never); v++)
                for (int place = 0; place < IDS; place += IDS - 1) {
                        const int64_t value = v < HR_ARRAY_LENGTH(never) ? never[v] : c->limit;
                        int64_t ids[IDS];

                        if (c->id_type == HR_TYPE_I32 && (value < INT_MIN || value > INT_MAX))
                                continue;
                        memcpy(ids, good, sizeof ids);
                        ids[place] = value;
                        expect(device, c, ids, true);
                }
        expect(device, c, good, false);
}

HR_TEST_LIMIT(bad_indices_end_their_run, 120) {
        uint32_t count;
        const char *const *sets = rig_sets(&count);

        for (uint32_t s = 0; s < count; s++)
                for (uint32_t threads = 1; threads <= 3; threads += 2) {
                        struct hr_device *device = rig_device(sets[s], threads);

                        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                                check_case(device, &cases[i]);
                        device = hr_device_unref(device);
                }
}

HR_TEST(any_position_is_an_angle) {
        struct hr_device *device = rig_device("portable", 2);
        struct hr_build *build = hr_build_new();
        const int32_t positions[4] = { INT_MIN, INT_MAX, -1, 0 };
        uint32_t sources[2], node;
        struct hr_graph *graph;
        uint64_t bytes;
        float *values;

        sources[0] = leaf_of(build, HR_TYPE_F32, 8, 2, 4, 1);
        sources[1] = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_I32, "positions", 4, 1, 1, 1);
        hr_build_constant(build, sources[1], positions, sizeof positions);
        node = hr_build_node(build, HR_OP_ROPE, HR_TYPE_F32, 8, 2, 4, 1, 2, sources);
        hr_build_tensor(build, node)->params[1] = 8;
        hr_build_param_f32(build, node, 5, 10000.0f);
        hr_build_param_f32(build, node, 6, 1.0f);
        hr_build_param_f32(build, node, 8, 1.0f);
        graph = hr_build_finish(build);
        values = (float *) (void *) rig_run(device, graph, node, 1, 1, &bytes, NULL);
        for (uint64_t i = 0; i < bytes / sizeof *values; i++)
                HR_EXPECT(isfinite(values[i]) && fabsf(values[i]) < 4);
        free(values);
        graph = hr_graph_unref(graph);
        device = hr_device_unref(device);
}
