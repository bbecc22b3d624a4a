/*
 * Proves the order inside splits: that what a device made of it computes what the graph says.
 *
 *   once     each split computes each of its nodes that compute something, and no other
 *   order    each node reads, and each writer overwrites, the version that it does in the graph's
 * own order: as many writes into the root have happened before it joined   a result without memory
 * is a source of the step after it, by itself and not through a view, and of nothing else; it is no
 * output over     the result of a joined pass meets what the pass reads only where both have the
 * same address and layout. (Of a single node the kernel knows what it may write over.)
 *
 * Nothing here knows of queues: verify.c proves that what is computed in this order finds its
 * bytes.
 */
#include "scheduler/plan.h"

#include <string.h>

struct order {
        const struct hr_plan *plan;
        const struct hr_plan_input *in;
        const struct hr_graph *graph;
        struct hr_diag *diag;
        struct hr_arena arena;
        bool *computed;    /* per node */
        uint32_t *version; /* per root: writes so far */
        uint32_t *seen;    /* per source as in plan->source_start, then per node: version it
                            * means */
        bool *gone;        /* per tensor: joined away */
};

static hr_status wrong(const struct order *order, uint32_t node, const char *what) {
        return hr_fail_reason(order->diag, HR_E_INTERNAL, "ORDER", "node %u %s", node, what);
}

static bool is_step(const struct order *order, uint32_t node) {
        const struct hr_tensor *t = &order->graph->tensors[order->plan->leaf_count + node];

        return t->op != HR_OP_NONE && !hr_op_is_view(t->op) && !hr_tensor_is_empty(t);
}

static bool is_joined(const struct order *order, uint32_t step) {
        return order->plan->joined && order->plan->joined[step];
}

/* ---- Once --------------------------------------------------------------------------------------
 */

static hr_status check_once(struct order *order) {
        const struct hr_plan *plan = order->plan;

        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];
                uint32_t end = split->step_first + split->step_count, wanted = 0;

                for (uint32_t k = split->step_first; k < end; ++k) {
                        uint32_t node = plan->steps[k];

                        if (node < split->start || node >= split->end || !is_step(order, node))
                                return wrong(order, node, "does not belong to the split");
                        if (order->computed[node])
                                return wrong(order, node, "is computed twice");
                        order->computed[node] = true;
                }
                for (uint32_t node = split->start; node < split->end; ++node)
                        wanted += is_step(order, node);
                if (wanted != split->step_count)
                        return wrong(order, split->start, "starts a split that leaves one out");
                if (end > split->step_first && is_joined(order, end - 1))
                        return wrong(order, plan->steps[end - 1], "is joined with another split");
        }
        return HR_OK;
}

/* ---- Order -------------------------------------------------------------------------------------
 */

/* Notes, or compares, the versions that the node reads and overwrites; then it has written one. */
static hr_status visit(struct order *order, uint32_t node, bool compare) {
        const struct hr_plan *plan = order->plan;
        uint32_t id = plan->leaf_count + node, root = plan->root[id];
        const struct hr_tensor *t = &order->graph->tensors[id];
        uint32_t *seen = order->seen + plan->source_start[node];
        uint32_t *overwritten = order->seen + plan->source_start[plan->node_count] + node;

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = order->graph->sources[t->source_first + i];

                if (source == HR_TENSOR_NONE)
                        continue;
                if (compare && seen[i] != order->version[plan->root[source]])
                        return wrong(order, node, "is computed too early or too late");
                seen[i] = order->version[plan->root[source]];
        }
        if (compare && *overwritten != order->version[root])
                return wrong(order, node, "writes too early or too late");
        *overwritten = order->version[root]++;
        return HR_OK;
}

static hr_status check_order(struct order *order) {
        const struct hr_plan *plan = order->plan;

        for (uint32_t node = 0; node < plan->node_count; ++node) {
                if (order->computed[node])
                        HR_TRY(visit(order, node, false));
        }
        memset(order->version, 0, plan->tensor_count * sizeof *order->version);
        for (uint32_t k = 0; k < plan->step_count; ++k)
                HR_TRY(visit(order, plan->steps[k], true));
        return HR_OK;
}

/* ---- Joined ------------------------------------------------------------------------------------
 */

static hr_status check_joined(struct order *order) {
        const struct hr_plan *plan = order->plan;

        for (uint32_t k = 0; k < plan->step_count; ++k) {
                uint32_t id = plan->leaf_count + plan->steps[k];

                if (!is_joined(order, k))
                        continue;
                if (plan->root[id] != id || plan->place[id].where != HR_WHERE_NONE ||
                    order->in->tensor_buffer[id] != HR_NO_BUFFER)
                        return wrong(order, plan->steps[k], "is joined and has memory");
                order->gone[id] = true;
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                uint32_t root = plan->root[plan->copies[c].tensor];

                if (order->gone[root])
                        return wrong(order, root - plan->leaf_count, "is joined and copied");
        }
        for (uint32_t i = 0; i < order->graph->output_count; ++i) {
                uint32_t root = plan->root[order->graph->outputs[i]];

                if (order->gone[root])
                        return wrong(order, root - plan->leaf_count, "is joined and an output");
        }
        return HR_OK;
}

/* What a step reads that a pass keeps to itself must be the result of the step before it. */
static hr_status check_sources(const struct order *order, uint32_t step) {
        const struct hr_plan *plan = order->plan;
        uint32_t node = plan->steps[step];
        const struct hr_tensor *t = &order->graph->tensors[plan->leaf_count + node];
        uint32_t before = step && is_joined(order, step - 1)
                                  ? plan->leaf_count + plan->steps[step - 1]
                                  : HR_TENSOR_NONE;
        bool found = before == HR_TENSOR_NONE;

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = order->graph->sources[t->source_first + i];

                if (source == HR_TENSOR_NONE || !order->gone[plan->root[source]])
                        continue;
                if (source != before)
                        return wrong(order, node, "reads what another pass keeps to itself");
                found = true;
        }
        return found ? HR_OK : wrong(order, node, "is joined with what it does not read");
}

/* ---- Over --------------------------------------------------------------------------------------
 */

struct region {
        struct hr_place place;
        uint64_t bytes;
        const struct hr_tensor *tensor;
};

static struct region region_of(const struct order *order, uint32_t tensor, uint32_t copy) {
        const struct hr_plan *plan = order->plan;
        struct region region = {.place = plan->place[plan->root[tensor]],
                                .bytes = plan->span[tensor],
                                .tensor = &order->graph->tensors[tensor]};

        if (copy == HR_NO_COPY) {
                region.place.offset += plan->root_offset[tensor];
        } else {
                region.place = plan->copies[copy].place;
                region.bytes = plan->copies[copy].bytes;
        }
        return region;
}

static bool same_layout(const struct hr_tensor *a, const struct hr_tensor *b) {
        return a->type == b->type && memcmp(a->ne, b->ne, sizeof a->ne) == 0 &&
               memcmp(a->nb, b->nb, sizeof a->nb) == 0;
}

/* Two states of one writable buffer may be the same memory for all that a plan knows. */
static bool may_meet(const struct order *order, const struct region *a, const struct region *b) {
        const uint32_t *buffer = order->in->tensor_buffer;

        if (a->place.where != b->place.where || a->place.where == HR_WHERE_NONE || a->bytes == 0 ||
            b->bytes == 0)
                return false;
        if (a->place.where == HR_WHERE_HOME && a->place.index != b->place.index)
                return buffer[a->place.index] == buffer[b->place.index];
        return a->place.index == b->place.index && a->place.offset < b->place.offset + b->bytes &&
               b->place.offset < a->place.offset + a->bytes;
}

static hr_status check_over(const struct order *order, uint32_t first, uint32_t last) {
        const struct hr_plan *plan = order->plan;
        uint32_t writer = plan->steps[last];
        struct region result =
                region_of(order, plan->leaf_count + writer,
                          plan->result_copy ? plan->result_copy[writer] : HR_NO_COPY);

        for (uint32_t k = first; k <= last; ++k) {
                uint32_t node = plan->steps[k];
                const struct hr_tensor *t = &order->graph->tensors[plan->leaf_count + node];

                for (uint32_t i = 0; i < t->source_count; ++i) {
                        uint32_t source = order->graph->sources[t->source_first + i];
                        struct region region;

                        if (source == HR_TENSOR_NONE)
                                continue;
                        region = region_of(order, source,
                                           plan->source_copy[plan->source_start[node] + i]);
                        if (may_meet(order, &result, &region) &&
                            (result.place.index != region.place.index ||
                             result.place.offset != region.place.offset ||
                             !same_layout(result.tensor, region.tensor)))
                                return wrong(order, writer, "writes over what its pass reads");
                }
        }
        return HR_OK;
}

static hr_status check_passes(const struct order *order) {
        const struct hr_plan *plan = order->plan;

        for (uint32_t first = 0, last; first < plan->step_count; first = last + 1) {
                for (last = first; is_joined(order, last); ++last)
                        ;
                for (uint32_t k = first; k <= last; ++k)
                        HR_TRY(check_sources(order, k));
                if (last > first)
                        HR_TRY(check_over(order, first, last));
        }
        return HR_OK;
}

static void *take(struct order *order, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&order->arena, total, 16) : NULL;
}

/* The graph's own order. */
static bool is_in_order(const struct hr_plan *plan) {
        uint32_t steps_back = 0; /* the loop has no way out, so that it takes several at once */

        for (uint32_t k = 1; k < plan->step_count; ++k)
                steps_back += plan->steps[k] <= plan->steps[k - 1];
        return steps_back == 0;
}

static hr_status prove(struct order *order) {
        const struct hr_plan *plan = order->plan;

        order->computed = take(order, plan->node_count, sizeof(bool));
        order->version = take(order, plan->tensor_count, sizeof(uint32_t));
        order->seen =
                take(order, (uint64_t) plan->source_start[plan->node_count] + plan->node_count,
                     sizeof(uint32_t));
        order->gone = take(order, plan->tensor_count, sizeof(bool));
        if (!order->computed || !order->version || !order->seen || !order->gone)
                return hr_fail(order->diag, HR_E_EXHAUSTED, "memory for the proof of a plan");
        HR_TRY(check_once(order));
        if (!is_in_order(plan))
                HR_TRY(check_order(order));
        HR_TRY(check_joined(order));
        return check_passes(order);
}

hr_status hr_plan_verify_steps(const struct hr_plan *plan, const struct hr_plan_input *input,
                               struct hr_diag *diag) {
        struct order order = {.plan = plan, .in = input, .graph = input->graph, .diag = diag};
        hr_status status;

        if (!plan->joined && is_in_order(plan))
                return HR_OK;
        hr_arena_init(&order.arena, 0);
        status = prove(&order);
        hr_arena_deinit(&order.arena);
        return status;
}
