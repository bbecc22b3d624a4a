/*
 * Which nodes of a split become one chain. See chains.h.
 *
 * A node joins its only reader when both are element-wise on the same shape, or the first is of
 * another form that may lead. It then is computed when its reader is: everything between the two
 * must leave alone what it reads, and unless they are neighbours it must not keep more memory alive
 * than its result would take. A reader goes on with one of its sources only; where several would
 * do, with the one computed last.
 */
#include "core/chains.h"

#include <string.h>

#define DISTANCE_MAX 64U          /* nodes between one and its reader, at most */
/* In `order` while it is made: by place, some node has joined it; by position, joined. */
#define MARK (1U << 31)
#define NOWHERE UINT32_MAX

struct chains {
        const struct hr_split_view *view;
        const struct hr_chain_rules *rules;
        bool *joined;    /* per place in view->nodes: computed when its reader is */
        uint32_t *order; /* per place: itself, with MARK when a node has joined it */
};

static const struct hr_tensor *tensor_at(const struct chains *chains, uint32_t place) {
        const struct hr_graph *graph = chains->view->graph;

        return &graph->tensors[graph->leaf_count + chains->view->nodes[place]];
}

/* Place of the node that makes the tensor, or NOWHERE. */
static uint32_t place_of(const struct chains *chains, uint32_t tensor) {
        const struct hr_split_view *view = chains->view;
        uint32_t low = 0, high = view->node_count, node;

        if (tensor == HR_TENSOR_NONE || tensor < view->graph->leaf_count)
                return NOWHERE;
        node = tensor - view->graph->leaf_count;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (view->nodes[middle] < node)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < view->node_count && view->nodes[low] == node ? low : NOWHERE;
}

/* The node that has joined this one, or NOWHERE, whatever `order` says. */
static uint32_t search_before(const struct chains *chains, uint32_t place) {
        const struct hr_tensor *t = tensor_at(chains, place);

        for (uint32_t i = 0; i < t->source_count; i++) {
                uint32_t source = place_of(chains, hr_graph_source(chains->view->graph, t, i));

                if (source != NOWHERE && chains->joined[source] &&
                    chains->view->reader[source] == place)
                        return source;
        }
        return NOWHERE;
}

/* The same, at once where there is none. */
static uint32_t before(const struct chains *chains, uint32_t place) {
        return chains->order[place] & MARK ? search_before(chains, place) : NOWHERE;
}

static uint32_t length(const struct chains *chains, uint32_t place) {
        uint32_t count = 0;

        for (; place != NOWHERE; place = before(chains, place))
                count++;
        return count;
}

/* ---- Forms ----------------------------------------------------------------------------------- */

static bool same_shape(const struct hr_tensor *a, const struct hr_tensor *b) {
        return memcmp(a->ne, b->ne, sizeof a->ne) == 0;
}

/* The first node of the chain that ends here. */
static uint32_t head_of(const struct chains *chains, uint32_t place) {
        uint32_t source;

        while ((source = before(chains, place)) != NOWHERE)
                place = source;
        return place;
}

static bool forms_fit(const struct chains *chains, uint32_t place, uint32_t reader) {
        const struct hr_tensor *t = tensor_at(chains, place), *r = tensor_at(chains, reader);
        uint32_t head = head_of(chains, place);

        if (!same_shape(t, r) || !(chains->rules->links(t) || chains->rules->leads(t)))
                return false;
        return !chains->rules->leads(tensor_at(chains, head)) ||
               chains->rules->may_lead(chains->view->graph, tensor_at(chains, head), r);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static uint32_t root_of(const struct hr_graph *graph, uint32_t tensor) {
        uint32_t base = graph->tensors[tensor].view_base;

        return base == HR_TENSOR_NONE ? tensor : base;
}

static bool is_state(const struct hr_graph *graph, uint32_t tensor) {
        return tensor < graph->leaf_count && graph->tensors[tensor].leaf_kind == HR_LEAF_STATE;
}

/* States may share memory; everything else has its own. */
static bool may_share(const struct hr_graph *graph, uint32_t a, uint32_t b) {
        return a == b || (is_state(graph, a) && is_state(graph, b));
}

/* Does the chain that ends at `place` read memory of the root? */
static bool chain_reads(const struct chains *chains, uint32_t place, uint32_t root) {
        const struct hr_graph *graph = chains->view->graph;

        for (; place != NOWHERE; place = before(chains, place)) {
                const struct hr_tensor *t = tensor_at(chains, place);

                for (uint32_t i = 0; i < t->source_count; i++) {
                        uint32_t source = hr_graph_source(graph, t, i);

                        if (source != HR_TENSOR_NONE &&
                            may_share(graph, root_of(graph, source), root))
                                return true;
                }
        }
        return false;
}

/* Bytes of what runs compute and the chain keeps alive until its end. */
static uint64_t kept_bytes(const struct chains *chains, uint32_t place) {
        const struct hr_graph *graph = chains->view->graph;
        uint64_t bytes = 0;

        for (uint32_t inside; place != NOWHERE; place = inside) {
                const struct hr_tensor *t = tensor_at(chains, place);

                inside = before(chains, place);
                for (uint32_t i = 0; i < t->source_count; i++) {
                        uint32_t source = hr_graph_source(graph, t, i);

                        if (source == HR_TENSOR_NONE ||
                            (inside != NOWHERE && place_of(chains, source) == inside))
                                continue;
                        if (root_of(graph, source) >= graph->leaf_count ||
                            graph->tensors[root_of(graph, source)].leaf_kind == HR_LEAF_INPUT)
                                bytes += hr_tensor_bytes(&graph->tensors[source]);
                }
        }
        return bytes;
}

/* Nothing between the two, nor the reader's own result, may touch what the chain reads. */
static bool memory_allows(const struct chains *chains, uint32_t place, uint32_t reader) {
        if (reader - place > DISTANCE_MAX)
                return false;
        for (uint32_t k = place + 1; k <= reader; k++) {
                const struct hr_tensor *t = tensor_at(chains, k);

                if (t->view_base != HR_TENSOR_NONE && chain_reads(chains, place, t->view_base))
                        return false;
        }
        return reader == place + 1 ||
               kept_bytes(chains, place) <= hr_tensor_bytes(tensor_at(chains, place));
}

/* ---- Choosing -------------------------------------------------------------------------------- */

static void join_one(const struct chains *chains, uint32_t reader) {
        const struct hr_tensor *t = tensor_at(chains, reader);
        uint32_t best = NOWHERE;

        if (!chains->rules->links(t))
                return;
        for (uint32_t i = 0; i < t->source_count; i++) {
                uint32_t place = place_of(chains, hr_graph_source(chains->view->graph, t, i));

                if (place == NOWHERE || chains->view->reader[place] != reader ||
                    (best != NOWHERE && place < best))
                        continue;
                if (length(chains, place) < chains->rules->most &&
                    forms_fit(chains, place, reader) && memory_allows(chains, place, reader))
                        best = place;
        }
        if (best == NOWHERE)
                return;
        chains->joined[best] = true;
        chains->order[reader] |= MARK;
}

/* Each chain where its last node was. At most as many positions are filled as places have been
 * looked at, so the mark of a place is still there when its turn comes. */
static void lay_out(const struct chains *chains) {
        uint32_t chain[HR_CHAIN_MOST], count = 0;

        for (uint32_t k = 0; k < chains->view->node_count; k++) {
                bool is_long = chains->order[k] & MARK;
                uint32_t links = 0, place = k;

                if (chains->joined[k])
                        continue;
                for (; place != NOWHERE; place = is_long ? search_before(chains, place) : NOWHERE)
                        chain[links++] = place;
                while (links-- > 1)
                        chains->order[count++] = chain[links] | MARK;
                chains->order[count++] = k;
        }
        for (uint32_t k = 0; k < chains->view->node_count; k++) {
                chains->joined[k] = chains->order[k] & MARK;
                chains->order[k] &= ~MARK;
        }
}

void hr_chains_join(const struct hr_split_view *view, const struct hr_chain_rules *rules,
                    uint32_t *order, bool *joined) {
        struct chains chains = {.view = view, .rules = rules, .joined = joined, .order = order};

        HR_ASSERT(rules->most <= HR_CHAIN_MOST);
        if (view->node_count >= MARK)
                return;
        for (uint32_t k = 0; k < view->node_count; k++)
                join_one(&chains, k);
        lay_out(&chains);
}
