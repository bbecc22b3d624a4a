/*
 * Which nodes of a split become one chain (ops_chain.c): those of core/chains.h, with this
 * backend's element-wise operators, and norms that may come first.
 */
#include <string.h>

#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"
#include "core/chains.h"

static bool is_link(const struct hr_tensor *t) {
        return (cpu_map_find(t->op) || cpu_binary_find(&cpu_vec_portable, t->op)) &&
               cpu_is_float(t->type);
}

static bool is_norm(const struct hr_tensor *t) {
        return cpu_is_norm(t->op);
}

static bool repeats(const struct hr_graph *graph, const struct hr_tensor *t, uint32_t source) {
        uint32_t id = hr_graph_source(graph, t, source);

        return id != HR_TENSOR_NONE && memcmp(graph->tensors[id].ne, t->ne, sizeof t->ne) != 0;
}

/* The second pass of NORM works in the result's row: nobody else may have anything there. */
static bool norm_may_lead(const struct hr_graph *graph, const struct hr_tensor *norm,
                          const struct hr_tensor *reader) {
        uint32_t source = hr_graph_source(graph, norm, 0);

        if (graph->tensors[source].nb[0] != sizeof(float))
                return false;
        if (norm->op != HR_OP_NORM)
                return true;
        return reader->type == HR_TYPE_F32 && reader->nb[0] == sizeof(float) &&
               (reader->source_count == 1 || repeats(graph, reader, 1));
}

static const struct hr_chain_rules rules = {
        .most = CPU_CHAIN_MAX,
        .links = is_link,
        .leads = is_norm,
        .may_lead = norm_may_lead,
};

void cpu_optimize(const struct hr_device *device, const struct hr_split_view *view,
                  uint32_t *order, bool *joined) {
        hr_chains_join(view, &rules, order, joined);
}
