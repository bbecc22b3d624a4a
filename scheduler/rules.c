/*
 * The rules of rules = headrace: where and why the decisions differ from ggml's.
 *
 * Each is one function with one reason, counts itself in the plan when it changed something, and is
 * never consulted under rules = ggml. What a rule needs to know about the devices it takes from the
 * planning input, so a plan stays a pure function.
 */
#include "scheduler/plan.h"

#include <string.h>

/* Multiply-adds per moved byte from which carrying a host weight to a device is worth it. With f32
 * weights it is a batch of 32 rows, with f16 16. */
#define OFFLOAD_WORK_PER_BYTE 8.0

const char *hr_rule_name(hr_rule rule) {
        static const char *const names[HR_RULE_COUNT] = {
                [HR_RULE_PINS] = "pins",
                [HR_RULE_NO_CUT] = "no-cut",
                [HR_RULE_OFFLOAD] = "offload",
                [HR_RULE_WRITER] = "writer",
                [HR_RULE_WRITE_BACK] = "write-back",
                [HR_RULE_VIEW_LEAF] = "view-leaf",
                [HR_RULE_IDLE_DEVICE] = "idle-device",
                [HR_RULE_REACH] = "reach",
                [HR_RULE_FRESH_COPY] = "fresh-copy",
                [HR_RULE_LABEL] = "label",
                [HR_RULE_EXPERTS] = "experts",
        };

        HR_ASSERT(rule < HR_RULE_COUNT);
        return names[rule];
}

/* A pin is never overridden, so one that cannot be obeyed is an error of the request. */
hr_status hr_rule_pins_check(struct hr_planner *planner) {
        for (uint32_t i = 0; i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i;

                if (!planner_pinned(planner, id) || planner_is_view(planner, id) ||
                    planner_supports(planner, (uint32_t) planner->in->pins[id], id))
                        continue;
                hr_fail_reason(planner->diag, HR_E_UNSUPPORTED, "PIN",
                               "node %u (%s) is pinned to device %d, which does not support it", i,
                               hr_op_name(hr_graph_node(planner->graph, i)->op),
                               planner->in->pins[id]);
                if (planner->diag) {
                        planner->diag->has_node = true;
                        planner->diag->node = i;
                }
                return HR_E_UNSUPPORTED;
        }
        return HR_OK;
}

static double node_work(const struct hr_planner *planner, uint32_t tensor) {
        const struct hr_tensor *t = &planner->graph->tensors[tensor];
        uint32_t first = planner_source(planner, tensor, 0);
        double work = 1;

        for (int i = 0; i < HR_DIMS; ++i)
                work *= (double) t->ne[i];
        if ((t->op == HR_OP_MUL_MAT || t->op == HR_OP_MUL_MAT_ID || t->op == HR_OP_OUT_PROD) &&
            first != HR_TENSOR_NONE)
                work *= (double) planner->graph->tensors[first].ne[0];
        return work;
}

/* Bytes of the sources, the weight apart, that are known to lie where `device` cannot reach. */
static uint64_t far_bytes(const struct hr_planner *planner, uint32_t tensor, uint32_t weight,
                          uint32_t device) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = planner_source(planner, tensor, i);
                int64_t kind;

                if (source == HR_TENSOR_NONE || source == weight || source == tensor)
                        continue;
                kind = planner_root_kind(planner, planner->plan->root[source]);
                if (kind >= 0 && !planner_reads(planner, device, (uint32_t) kind))
                        bytes += planner->plan->span[source];
        }
        return bytes;
}

/* Among the devices that ask, the one that moves the fewest bytes; none where the computation is
 * small beside the weight that would have to travel. */
int64_t hr_rule_offload(struct hr_planner *planner, uint32_t tensor, uint32_t weight,
                        int64_t plain) {
        const struct hr_plan_input *in = planner->in;
        int64_t best = -1;
        uint64_t best_bytes = 0;

        for (uint32_t d = 0; d < in->device_count; ++d) {
                uint64_t bytes;

                if (in->kinds[in->devices[d].kind].host || !planner_supports(planner, d, tensor) ||
                    !planner_wants_offload(planner, d, tensor))
                        continue;
                bytes = far_bytes(planner, tensor, weight, d);
                if (best < 0 || bytes < best_bytes) {
                        best = d;
                        best_bytes = bytes;
                }
        }
        if (best >= 0 && node_work(planner, tensor) <
                                 OFFLOAD_WORK_PER_BYTE * (double) planner->plan->span[weight])
                best = -1;
        if (best != plain)
                planner_note(planner, HR_RULE_OFFLOAD, tensor);
        return best;
}

/* A node that writes into a view runs where the base's memory is reachable; where no such device
 * can run it, or a pin forbids, its result is carried back. */
hr_status hr_rule_writer(struct hr_planner *planner, uint32_t tensor) {
        struct hr_plan *plan = planner->plan;
        uint32_t root = plan->root[tensor];
        int64_t kind = planner_root_kind(planner, root), target = -1;

        planner->late_writers = planner->late_writers || kind < 0;
        if (kind < 0 || planner_reads(planner, (uint32_t) plan->device[tensor], (uint32_t) kind))
                return HR_OK;
        if (!planner_pinned(planner, tensor)) {
                int32_t base = plan->device[root];

                if (base >= 0 && planner_reads(planner, (uint32_t) base, (uint32_t) kind) &&
                    planner_supports(planner, (uint32_t) base, tensor))
                        target = base;
                for (uint32_t d = 0; d < planner->in->device_count && target < 0; ++d) {
                        if (planner_reads(planner, d, (uint32_t) kind) &&
                            planner_supports(planner, d, tensor))
                                target = d;
                }
        }
        if (target >= 0) {
                plan->device[tensor] = (int32_t) target;
                plan->cause[tensor] = HR_CAUSE_RULE_WRITER;
                planner_note(planner, HR_RULE_WRITER, tensor);
                return HR_OK;
        }
        if (!planner->write_back) {
                planner->write_back =
                        planner_scratch(planner, planner->graph->node_count + 1, sizeof(bool));
                if (!planner->write_back)
                        return planner_out_of_memory(planner);
        }
        planner->write_back[tensor - planner->graph->leaf_count] = true;
        planner_note(planner, HR_RULE_WRITE_BACK, tensor);
        return HR_OK;
}

/* A leaf that only views touch gets no device from the passes. */
void hr_rule_view_leaves(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        int32_t lowest = 0; /* nodes have devices */

        for (uint32_t i = 0; i < planner->graph->leaf_count; ++i)
                lowest = HR_MIN(lowest, plan->device[i]);
        if (lowest >= 0)
                return;
        for (uint32_t i = 0; i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i, root;

                if (planner_tensor(planner, id)->view_base == HR_TENSOR_NONE)
                        continue;
                root = plan->root[id];
                if (root == id || plan->device[root] >= 0)
                        continue;
                plan->device[root] = plan->device[id];
                plan->cause[root] = HR_CAUSE_RULE_VIEW;
                planner_note(planner, HR_RULE_VIEW_LEAF, root);
        }
}

bool hr_rule_idle_devices(struct hr_planner *planner, uint64_t *ret_idle) {
        const struct hr_plan *plan = planner->plan;
        uint32_t count = planner->graph->leaf_count + planner->graph->node_count;
        uint64_t *busy = planner_scratch(planner, plan->words, sizeof *busy);
        uint32_t word = 0;
        bool found = false;

        memset(ret_idle, 0, plan->words * sizeof *ret_idle);
        if (!busy)
                return false;
        for (uint32_t id = planner->graph->leaf_count; id < count; ++id) {
                if (!planner_is_view(planner, id))
                        hr_bit_set(busy, (uint32_t) plan->device[id]);
        }
        hr_bit_set(busy, planner->in->device_count - 1);
        while (word < plan->words && (planner->allowed[word] & ~busy[word]) == 0)
                ++word;
        if (word == plan->words) /* all of them have nodes */
                return false;
        for (uint32_t id = 0; id < count; ++id) {
                int32_t device = plan->device[id];

                if (device < 0 || hr_bit_get(busy, (uint32_t) device) ||
                    !hr_bit_get(planner->allowed, (uint32_t) device))
                        continue;
                hr_bit_set(ret_idle, (uint32_t) device);
                found = true;
        }
        return found;
}

/* A node that ended on the last device because the device of one of its sources cannot run it. */
static bool is_fallback(const struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_input *in = planner->in;
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        const struct hr_plan *plan = planner->plan;
        uint32_t last = in->device_count - 1;

        if ((uint32_t) plan->device[tensor] != last || (t->flags & HR_PLAN_IS_VIEW) ||
            planner_pinned(planner, tensor))
                return false;
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = planner_source(planner, tensor, i);
                int32_t device;

                if (source == HR_TENSOR_NONE || source == tensor)
                        continue;
                device = plan->device[plan->root[source]];
                if (device >= 0 && (uint32_t) device != last &&
                    !planner_reads(planner, last, in->devices[device].kind) &&
                    !planner_supports(planner, (uint32_t) device, tensor))
                        return true;
        }
        return false;
}

hr_status hr_rule_strict(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        const int32_t *device = plan->device, last = (int32_t) planner->in->device_count - 1;

        for (uint32_t i = 0; i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i;

                if (device[id] != last || !is_fallback(planner, id))
                        continue;
                ++plan->fallback_nodes;
                plan->notes[id] |= HR_NOTE_FALLBACK;
                if (!planner->in->options.strict)
                        continue;
                hr_fail_reason(planner->diag, HR_E_PRECONDITION, "FALLBACK",
                               "node %u (%s) falls back to the last device", i,
                               hr_op_name(hr_graph_node(planner->graph, i)->op));
                if (planner->diag) {
                        planner->diag->has_node = true;
                        planner->diag->node = i;
                }
                return HR_E_PRECONDITION;
        }
        return HR_OK;
}
