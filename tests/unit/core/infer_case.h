/* A node over fresh leaves, and what validation must say to it. */
#pragma once

#include "core/graph.h"
#include "tests/build.h"
#include "tests/harness.h"

struct infer_shape {
        uint32_t type;
        int64_t ne[HR_DIMS]; /* ne[0] < 0 ends a list of sources */
};

#define F32(...) { HR_TYPE_F32, { __VA_ARGS__ } }
#define F16(...) { HR_TYPE_F16, { __VA_ARGS__ } }
#define BF16(...) { HR_TYPE_BF16, { __VA_ARGS__ } }
#define I32(...) { HR_TYPE_I32, { __VA_ARGS__ } }
#define Q8_0(...) { HR_TYPE_Q8_0, { __VA_ARGS__ } }

struct infer_case {
        uint32_t op, source_count;
        struct infer_shape result;
        struct infer_shape sources[7];
        int32_t params[HR_OP_PARAM_WORDS];
        const char *reason; /* NULL = valid */
};

static inline void infer_case_run(const struct infer_case *test, size_t index) {
        const struct hr_graph_limits limits = { .tensor_bytes_max = UINT64_C(1) << 40 };
        struct hr_build *build = hr_build_new();
        struct hr_diag diag = { 0 };
        struct hr_graph *graph;
        uint32_t ids[7], node;
        hr_status status;

        for (uint32_t i = 0; i < test->source_count; i++) {
                const struct infer_shape *shape = &test->sources[i];

                ids[i] = hr_build_leaf(build, HR_LEAF_INPUT, shape->type, "leaf", shape->ne[0],
                                       shape->ne[1], shape->ne[2], shape->ne[3]);
        }
        node = hr_build_node(build, test->op, test->result.type, test->result.ne[0],
                             test->result.ne[1], test->result.ne[2], test->result.ne[3],
                             test->source_count, ids);
        memcpy(hr_build_tensor(build, node)->params, test->params, sizeof test->params);
        graph = hr_build_finish(build);
        status = hr_graph_validate(graph, &limits, &diag);
        if (status != (test->reason ? HR_E_INVALID : HR_OK) ||
            (test->reason && (strcmp(hr_diag_reason(&diag), test->reason) != 0 || !diag.has_node ||
                              !strstr(diag.words, hr_op_name(test->op)))))
                hr_test_fail(__FILE__, __LINE__, "case %zu, %s: got %s %s \"%s\", expected %s",
                             index, hr_op_name(test->op), hr_status_name(status),
                             diag.status ? hr_diag_reason(&diag) : "", diag.words,
                             test->reason ? test->reason : "OK");
        hr_graph_unref(graph);
}
