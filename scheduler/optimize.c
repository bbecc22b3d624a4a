/*
 * The order inside splits: devices may move nodes about and join some into one pass.
 *
 * It runs when the splits are cut and before anything has a place, so that memory, tape and proof
 * are made for what is really computed. A device sees one split at a time, and of every node who
 * needs its result. What it answers is taken over as it is: verify_steps.c finds out whether it
 * holds.
 *
 * Time is counted in nodes. The n-th step of a split takes the turn of its n-th node in the graph's
 * order, whichever node it computes; all of a joined pass happens at the turn of its last node. So
 * the list of uses stays in the order of time, and what does not know of passes need not.
 */
#include "scheduler/plan.h"

#include <string.h>

#define MANY UINT32_MAX

struct optimizer {
        struct hr_planner *planner;
        struct hr_plan *plan;
        uint32_t *reader;  /* per tensor (roots): 1 + the node that reads it; 0 none; MANY */
        uint32_t *step_of; /* per node: into plan->steps */
        /* Of one split, long enough for all. */
        uint32_t *reader_place, *order, *nodes;
        bool *joined;
        bool changed;
};

/* ---- Who reads what ----------------------------------------------------------------------------
 */

static void find_readers(struct optimizer *optimizer) {
        const struct hr_planner *planner = optimizer->planner;
        const struct hr_plan *plan = optimizer->plan;
        const struct hr_graph *graph = planner->graph;
        uint32_t *reader = optimizer->reader;

        for (uint32_t u = 0; u < planner->use_count; ++u) {
                struct hr_plan_use use = planner->uses[u];

                if (use.holder < plan->tensor_count && use.holder != plan->leaf_count + use.node)
                        reader[use.holder] = reader[use.holder] ? MANY : use.node + 1;
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c)
                reader[plan->root[plan->copies[c].tensor]] = MANY;
        for (uint32_t i = 0; i < graph->output_count; ++i)
                reader[plan->root[graph->outputs[i]]] = MANY;
        for (uint32_t i = 0; i < plan->tap_count; ++i)
                reader[plan->root[plan->taps[i].tensor]] = MANY;
}

/* Does the node take the tensor itself, not a window on it? */
static bool names_source(const struct hr_planner *planner, uint32_t node, uint32_t tensor) {
        uint32_t id = planner->graph->leaf_count + node;

        for (uint32_t i = 0; i < planner_tensor(planner, id)->source_count; ++i) {
                if (planner_source(planner, id, i) == tensor)
                        return true;
        }
        return false;
}

/* Place of the only reader of the node's result in the range that starts at step `first`. */
static uint32_t find_reader(const struct optimizer *optimizer, uint32_t node, uint32_t first,
                            uint32_t count) {
        uint32_t id = optimizer->plan->leaf_count + node, reader = optimizer->reader[id], step;

        if (reader == 0 || reader == MANY || planner_writes_given(optimizer->planner, id))
                return HR_NO_READER;
        step = optimizer->step_of[reader - 1];
        if (step < first || step >= first + count ||
            !names_source(optimizer->planner, reader - 1, id))
                return HR_NO_READER;
        return step - first;
}

/* ---- One range of nodes ------------------------------------------------------------------------
 */

static hr_status take_answer(struct optimizer *optimizer, uint32_t first, uint32_t count) {
        struct hr_planner *planner = optimizer->planner;
        struct hr_plan *plan = optimizer->plan;
        bool changed = false;

        for (uint32_t k = 0; k < count; ++k)
                changed = changed || optimizer->order[k] != k || optimizer->joined[k];
        if (!changed)
                return HR_OK;
        if (!plan->joined) {
                plan->joined = planner_keep(planner, plan->step_count, sizeof(bool));
                if (!plan->joined)
                        return planner_out_of_memory(planner);
        }
        optimizer->changed = true;
        memcpy(optimizer->nodes, plan->steps + first, count * sizeof *plan->steps);
        for (uint32_t k = 0; k < count; ++k) {
                uint32_t place = optimizer->order[k];

                if (place >= count)
                        return hr_fail_reason(planner->diag, HR_E_INTERNAL, "ORDER",
                                              "a device names node %u of %u", place, count);
                plan->steps[first + k] = optimizer->nodes[place];
                plan->joined[first + k] = optimizer->joined[k] && k + 1 < count;
        }
        return HR_OK;
}

static hr_status optimize_range(struct optimizer *optimizer, uint32_t device, uint32_t first,
                                uint32_t count) {
        const struct hr_planner *planner = optimizer->planner;
        struct hr_split_view view = {
                .graph = planner->graph,
                .nodes = optimizer->plan->steps + first,
                .node_count = count,
                .reader = optimizer->reader_place,
        };

        if (count < 2)
                return HR_OK;
        for (uint32_t k = 0; k < count; ++k)
                optimizer->reader_place[k] =
                        find_reader(optimizer, optimizer->plan->steps[first + k], first, count);
        hr_device_optimize(hr_fleet_device(planner->in->fleet, device), &view, optimizer->order,
                           optimizer->joined);
        return take_answer(optimizer, first, count);
}

/* A split is cut at its taps. */
static hr_status optimize_split(struct optimizer *optimizer, uint32_t s, uint32_t *next_tap) {
        const struct hr_plan *plan = optimizer->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        uint32_t first = split->step_first;

        for (; *next_tap < plan->tap_count && plan->taps[*next_tap].split == s; ++*next_tap) {
                uint32_t end = plan->taps[*next_tap].step;

                HR_TRY(optimize_range(optimizer, split->device, first, end - first));
                first = end;
        }
        return optimize_range(optimizer, split->device, first,
                              split->step_first + split->step_count - first);
}

/* ---- Uses in the order of time -----------------------------------------------------------------
 */

/* The uses of one node, at the turn of another. What a pass keeps to itself is none. */
static void list_uses(struct optimizer *optimizer, const uint32_t *first_use, uint32_t step,
                      uint32_t turn, struct hr_plan_use *uses, uint32_t *count) {
        const struct hr_planner *planner = optimizer->planner;
        const struct hr_plan *plan = optimizer->plan;
        uint32_t node = plan->steps[step], id = plan->leaf_count + node;
        uint32_t before = step && plan->joined[step - 1] ? plan->leaf_count + plan->steps[step - 1]
                                                         : HR_TENSOR_NONE;

        for (uint32_t u = first_use[node]; u < first_use[node + 1]; ++u) {
                uint32_t holder = planner->uses[u].holder;

                if (holder == before || (holder == id && plan->joined[step]))
                        continue;
                uses[(*count)++] = (struct hr_plan_use){.holder = holder, .node = turn};
        }
}

static hr_status rewrite_uses(struct optimizer *optimizer) {
        struct hr_planner *planner = optimizer->planner;
        struct hr_plan *plan = optimizer->plan;
        uint32_t *first_use =
                planner_scratch(planner, (uint64_t) plan->node_count + 1, sizeof *first_use);
        struct hr_plan_use *uses = planner_scratch(planner, planner->use_count, sizeof *uses);
        uint32_t count = 0, next = 0;

        if (!first_use || !uses)
                return planner_out_of_memory(planner);
        for (uint32_t node = 0; node <= plan->node_count; ++node) {
                while (next < planner->use_count && planner->uses[next].node < node)
                        ++next;
                first_use[node] = next;
        }
        for (uint32_t first = 0, last; first < plan->step_count; first = last + 1) {
                for (last = first; plan->joined[last]; ++last)
                        ;
                for (uint32_t k = first; k <= last; ++k)
                        list_uses(optimizer, first_use, k, planner->step_time[last], uses, &count);
        }
        planner->uses = uses;
        planner->use_count = count;
        return HR_OK;
}

static hr_status optimizer_init(struct optimizer *optimizer) {
        struct hr_planner *planner = optimizer->planner;
        const struct hr_plan *plan = optimizer->plan;
        uint64_t steps = plan->step_count;

        optimizer->reader = planner_scratch(planner, plan->tensor_count, sizeof(uint32_t));
        optimizer->step_of = planner_scratch(planner, plan->node_count, sizeof(uint32_t));
        optimizer->reader_place = planner_scratch(planner, steps, sizeof(uint32_t));
        optimizer->order = planner_scratch(planner, steps, sizeof(uint32_t));
        optimizer->nodes = planner_scratch(planner, steps, sizeof(uint32_t));
        optimizer->joined = planner_scratch(planner, steps, sizeof(bool));
        planner->step_time = planner_scratch(planner, steps, sizeof(uint32_t));
        if (!optimizer->reader || !optimizer->step_of || !optimizer->reader_place ||
            !optimizer->order || !optimizer->nodes || !optimizer->joined || !planner->step_time)
                return planner_out_of_memory(planner);
        if (steps)
                memcpy(planner->step_time, plan->steps, steps * sizeof(uint32_t));
        for (uint32_t k = 0; k < plan->step_count; ++k)
                optimizer->step_of[plan->steps[k]] = k;
        return HR_OK;
}

hr_status hr_plan_optimize(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        struct optimizer optimizer = {.planner = planner, .plan = plan};
        uint32_t next_tap = 0;

        if (!planner->headrace || !plan->options.optimize || !planner->in->fleet)
                return HR_OK;
        HR_TRY(optimizer_init(&optimizer));
        find_readers(&optimizer);
        for (uint32_t s = 0; s < plan->split_count; ++s)
                HR_TRY(optimize_split(&optimizer, s, &next_tap));
        return optimizer.changed ? rewrite_uses(&optimizer) : HR_OK;
}
