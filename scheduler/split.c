/*
 * Pass 5: cuts the nodes into splits and lists what has to be copied where.
 *
 * Nodes are taken in order. View ops never open a split and keep their sources. Sources are asked
 * in order of position, so the inputs of a split have a defined order. A copy is made once per
 * tensor and device for the whole graph: the first split that needs it lists it, later ones use it.
 *
 * rules = headrace adds two things that a correct result needs: a copy made before a write into the
 * tensor's memory is not used after the write, and a node that cannot reach the memory it writes
 * into computes on a copy that is carried back right after its split. The copies of one tensor form
 * a chain, newest first.
 */
#include "scheduler/plan.h"

#include <string.h>

/* ggml's first capacity of an input list; a full list ends a split and grows by doubling. */
#define GGML_INPUTS_FIRST 30

struct cutter {
        struct hr_planner *planner;
        struct hr_plan *plan;
        struct hr_plan_split *splits;
        uint32_t split_capacity;
        uint32_t copy_capacity, input_capacity;
        uint32_t full_at; /* inputs at which the current split's list is full, ggml's counting */
        bool cut_after;   /* the current split ends here whatever follows */
        bool has_node;    /* the current split holds a node that is no view */
        struct hr_plan_split *split; /* the current one */
};

/* Makes room for one more element in an array of the scratch arena. */
static hr_status grow(struct hr_planner *planner, void **array, uint32_t count, uint32_t *capacity,
                      size_t bytes) {
        uint32_t wanted = *capacity ? *capacity : 32;
        void *larger;

        if (count < *capacity)
                return HR_OK;
        if (*capacity > UINT32_MAX / 2)
                return planner_out_of_memory(planner);
        wanted = *capacity ? *capacity * 2 : 32;
        larger = planner_scratch_raw(planner, wanted, bytes);
        if (!larger)
                return planner_out_of_memory(planner);
        if (count)
                memcpy(larger, *array, count * bytes);
        *array = larger;
        *capacity = wanted;
        return HR_OK;
}

static struct hr_plan_split *current(struct cutter *cutter) {
        return cutter->split;
}

static hr_status open_split(struct cutter *cutter, uint32_t device, uint32_t node,
                            hr_split_reason reason) {
        struct hr_plan *plan = cutter->plan;

        HR_TRY(grow(cutter->planner, (void **) &cutter->splits, plan->split_count,
                    &cutter->split_capacity, sizeof *cutter->splits));
        if (plan->split_count)
                cutter->splits[plan->split_count - 1].end = node;
        cutter->split = &cutter->splits[plan->split_count++];
        *cutter->split = (struct hr_plan_split){
                .device = device,
                .start = node,
                .reason = reason,
                .input_first = plan->input_count,
                .step_first = plan->step_count,
                .write_back = HR_NO_COPY,
        };
        cutter->full_at = GGML_INPUTS_FIRST;
        cutter->cut_after = cutter->has_node = false;
        return HR_OK;
}

/* Labelled for another device, or in memory of another kind. */
static bool needs_far_copy(const struct hr_planner *planner, uint32_t tensor, uint32_t device) {
        bool own_label = planner->plan->device[tensor] == (int32_t) device, by_label, by_memory;
        int64_t kind;

        if (!planner->headrace)
                return !own_label && !planner_could_read(planner, tensor, device);
        kind = planner_root_kind(planner, planner->plan->root[tensor]);
        by_label = !own_label && !planner_could_read(planner, tensor, device);
        by_memory = kind >= 0 && !planner_reads(planner, device, (uint32_t) kind);
        if (by_memory != by_label)
                planner_note(planner, HR_RULE_REACH, tensor);
        return by_memory;
}

/* Labelled for the device and in memory of its kind, as most sources are. */
static inline bool is_near(const struct hr_planner *planner, uint32_t tensor, uint32_t root,
                           uint32_t device) {
        const int32_t *label = planner->plan->device;
        uint32_t buffer;

        if (label[tensor] != (int32_t) device)
                return false;
        buffer = planner->in->tensor_buffer[root];
        return buffer == HR_NO_BUFFER ? label[root] == (int32_t) device
                                      : planner->in->buffers[buffer].kind ==
                                                planner->in->devices[device].kind;
}

static inline bool needs_copy(const struct hr_planner *planner, uint32_t tensor, uint32_t device) {
        return !is_near(planner, tensor, planner->plan->root[tensor], device) &&
               needs_far_copy(planner, tensor, device);
}

/* The usable copy of the tensor for the device, or HR_NO_COPY. One of experts serves its group
 * alone. */
static uint32_t find_copy(const struct hr_planner *planner, uint32_t tensor, uint32_t device,
                          uint32_t group) {
        const struct hr_plan *plan = planner->plan;
        uint32_t version = planner->version[plan->root[tensor]];

        for (uint32_t c = planner->copy_head[tensor]; c != HR_NO_COPY; c = plan->copies[c].next) {
                if (plan->copies[c].device != device ||
                    (plan->copies[c].group != HR_NO_INDEX && plan->copies[c].group != group))
                        continue;
                if (planner->headrace && plan->copies[c].version != version) {
                        planner_note(planner, HR_RULE_FRESH_COPY, tensor);
                        return HR_NO_COPY;
                }
                return c;
        }
        return HR_NO_COPY;
}

static hr_status add_copy(struct cutter *cutter, uint32_t tensor, uint32_t device,
                          uint32_t *ret_copy) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        struct hr_plan_split *split = current(cutter);

        HR_TRY(grow(planner, (void **) &plan->copies, plan->copy_count, &cutter->copy_capacity,
                    sizeof *plan->copies));
        HR_TRY(grow(planner, (void **) &plan->inputs, plan->input_count, &cutter->input_capacity,
                    sizeof *plan->inputs));
        plan->copies[plan->copy_count] = (struct hr_plan_copy){
                .tensor = tensor,
                .device = device,
                .split = plan->split_count - 1,
                .next = planner->copy_head[tensor],
                .version = planner->version[plan->root[tensor]],
                .source_device = HR_NO_INDEX,
                .ready_after = HR_NO_INDEX,
                .group = HR_NO_INDEX,
                .bytes = plan->span[tensor],
        };
        planner->copy_head[tensor] = plan->copy_count;
        if (split->input_count == cutter->full_at) {
                cutter->full_at *= 2;
                if (planner->headrace && split->input_count == GGML_INPUTS_FIRST)
                        planner_note(planner, HR_RULE_NO_CUT, tensor);
        }
        plan->inputs[plan->input_count++] = plan->copy_count;
        ++split->input_count;
        *ret_copy = plan->copy_count++;
        return HR_OK;
}

/* Must the node open a split although it runs on the current split's device? */
static bool must_cut(struct cutter *cutter, uint32_t tensor, hr_split_reason *ret_reason) {
        struct hr_planner *planner = cutter->planner;
        const struct hr_plan_input *in = planner->in;
        const struct hr_plan_split *split = current(cutter);
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        const uint32_t *sources = planner->graph->sources + t->source_first;
        bool full = !planner->headrace && split->input_count >= cutter->full_at;
        const int32_t *label = cutter->plan->device;

        if (cutter->cut_after) {
                *ret_reason = HR_SPLIT_WRITE_BACK;
                return true;
        }
        if (split->input_count == 0)
                return false;
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = sources[i], buffer;

                if (source == HR_TENSOR_NONE ||
                    label[source] == (int32_t) split->device ||
                    planner_could_read(planner, source, split->device))
                        continue;
                buffer = in->tensor_buffer[source];
                if (buffer != HR_NO_BUFFER && in->buffers[buffer].usage == HR_USAGE_WEIGHTS) {
                        *ret_reason = HR_SPLIT_WEIGHT;
                        return true;
                }
                if (full && find_copy(planner, source, split->device, HR_NO_INDEX) == HR_NO_COPY) {
                        *ret_reason = HR_SPLIT_INPUTS;
                        return true;
                }
        }
        return false;
}

/* rules = ggml with several copies: an INPUT that a node uses is kept once per slot. */
static void keep_graph_input(struct hr_planner *planner, uint32_t tensor) {
        struct hr_plan *plan = planner->plan;

        if (!(planner_tensor(planner, tensor)->flags & HR_TENSOR_INPUT) ||
            planner->in->options.n_copies <= 1 || plan->cause[tensor] == HR_CAUSE_COPIES)
                return;
        plan->cause[tensor] = HR_CAUSE_COPIES;
        plan->graph_inputs[plan->graph_input_count++] = tensor;
}

static void add_use(struct hr_planner *planner, uint32_t node, uint32_t holder) {
        planner->uses[planner->use_count++] = (struct hr_plan_use){.holder = holder, .node = node};
}

/* The copy of the weight of a node that is given its used experts alone. */
static hr_status list_experts(struct cutter *cutter, uint32_t id, uint32_t *ret_copy) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t weight = planner_source(planner, id, 0), device = current(cutter)->device;
        uint32_t group = hr_experts_find(planner, id, device);

        *ret_copy = find_copy(planner, weight, device, group);
        if (*ret_copy != HR_NO_COPY)
                return HR_OK;
        if (group == HR_NO_INDEX)
                HR_TRY(hr_experts_add(planner, id, device, &group));
        HR_TRY(add_copy(cutter, weight, device, ret_copy));
        plan->copies[*ret_copy].group = group;
        plan->copies[*ret_copy].member = plan->groups[group].member_count++;
        return HR_OK;
}

/* Are ids that choose experts made in the current split? They are read before a split starts. */
static bool ids_are_late(struct cutter *cutter, uint32_t id) {
        struct hr_planner *planner = cutter->planner;
        uint32_t device = current(cutter)->device;

        return planner_tensor(planner, id)->op == HR_OP_MUL_MAT_ID &&
               hr_experts_wanted(planner, id, device) &&
               needs_copy(planner, planner_source(planner, id, 0), device) &&
               hr_experts_find(planner, id, device) == HR_NO_INDEX &&
               planner->last_write[cutter->plan->root[planner_source(planner, id, 2)]] >
                       current(cutter)->start;
}

/* Notes the uses of a node of the current split's device that reads near tensors alone, which no
 * rule of cuts or copies has a say in: the common case in one loop. False, with nothing done: it is
 * not such a node. */
static inline bool list_near(struct cutter *cutter, const struct hr_plan_tensor *t, uint32_t node) {
        struct hr_planner *planner = cutter->planner;
        const uint32_t *sources = planner->graph->sources + t->source_first;
        const uint32_t *roots = planner->plan->root;
        struct hr_plan_use *use = planner->uses + planner->use_count;
        uint32_t device = cutter->split->device;

        if (!planner->headrace)
                return false;
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = sources[i];

                if (source == HR_TENSOR_NONE)
                        continue;
                if (!is_near(planner, source, roots[source], device))
                        return false;
                *use++ = (struct hr_plan_use){.holder = roots[source], .node = node};
        }
        if (t->flags & HR_PLAN_IS_STEP)
                planner->use_count = (uint32_t) (use - planner->uses);
        return true;
}

static hr_status list_inputs(struct cutter *cutter, uint32_t node) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t id = planner->graph->leaf_count + node, device = current(cutter)->device;
        const struct hr_plan_tensor *t = planner_tensor(planner, id);
        const uint32_t *sources = planner->graph->sources + t->source_first;
        uint32_t *copies = plan->source_copy + plan->source_start[node];
        struct hr_plan_use *use = planner->uses + planner->use_count;
        bool is_step = t->flags & HR_PLAN_IS_STEP;
        uint32_t groups = plan->group_count;

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = sources[i], copy, holder;

                if (source == HR_TENSOR_NONE)
                        continue;
                if (!planner->headrace)
                        keep_graph_input(planner, source);
                holder = plan->root[source];
                if (needs_copy(planner, source, device)) {
                        copy = find_copy(planner, source, device, HR_NO_INDEX);
                        if (copy == HR_NO_COPY && i == 0 && hr_experts_wanted(planner, id, device))
                                HR_TRY(list_experts(cutter, id, &copy));
                        if (copy == HR_NO_COPY)
                                HR_TRY(add_copy(cutter, source, device, &copy));
                        copies[i] = copy;
                        holder = plan->tensor_count + copy;
                }
                if (is_step)
                        *use++ = (struct hr_plan_use){.holder = holder, .node = node};
        }
        planner->use_count = (uint32_t) (use - planner->uses);
        if (plan->group_count > groups)
                plan->groups[groups].ids_copy = copies[2];
        return HR_OK;
}

/* The copy that a writer without reach computes on. */
static hr_status list_write_back(struct cutter *cutter, uint32_t node) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t copy;

        if (!plan->result_copy) {
                plan->result_copy =
                        planner_keep(planner, planner->graph->node_count, sizeof(uint32_t));
                if (!plan->result_copy)
                        return planner_out_of_memory(planner);
                memset(plan->result_copy, 0xff, planner->graph->node_count * sizeof(uint32_t));
        }
        HR_TRY(add_copy(cutter, planner->graph->leaf_count + node, current(cutter)->device, &copy));
        plan->copies[copy].write_back = true;
        /* What later readers need is in the base's memory; this copy serves nobody else. */
        planner->copy_head[plan->copies[copy].tensor] = plan->copies[copy].next;
        plan->result_copy[node] = copy;
        current(cutter)->write_back = copy;
        cutter->cut_after = true;
        return HR_OK;
}

/* Opens the splits that the node asks for, and lists what it reads. */
static hr_status list_far(struct cutter *cutter, uint32_t node, bool carried) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t id = planner->graph->leaf_count + node;
        hr_split_reason reason = HR_SPLIT_DEVICE;

        if (plan->device[id] != (int32_t) current(cutter)->device || must_cut(cutter, id, &reason))
                HR_TRY(open_split(cutter, (uint32_t) plan->device[id], node, reason));
        else if (carried && cutter->has_node)
                HR_TRY(open_split(cutter, (uint32_t) plan->device[id], node, HR_SPLIT_WRITE_BACK));
        if (ids_are_late(cutter, id)) {
                HR_TRY(open_split(cutter, (uint32_t) plan->device[id], node, HR_SPLIT_EXPERTS));
                planner_note(planner, HR_RULE_EXPERTS, id);
        }
        HR_TRY(list_inputs(cutter, node));
        if (carried) {
                HR_TRY(list_write_back(cutter, node));
                add_use(planner, node, plan->tensor_count + plan->result_copy[node]);
        }
        return HR_OK;
}

static hr_status take_node(struct cutter *cutter, uint32_t node) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t id = planner->graph->leaf_count + node;
        const struct hr_plan_tensor *t = planner_tensor(planner, id);
        bool carried = planner->write_back && planner->write_back[node];
        uint32_t root = plan->root[id];

        if (carried || cutter->cut_after || plan->device[id] != (int32_t) cutter->split->device ||
            !list_near(cutter, t, node))
                HR_TRY(list_far(cutter, node, carried));
        cutter->has_node = true;
        if (t->flags & HR_PLAN_IS_STEP) {
                add_use(planner, node, root);
                plan->steps[plan->step_count++] = node;
                ++current(cutter)->step_count;
        }
        if (t->flags & HR_PLAN_WRITES_GIVEN)
                ++planner->version[root];
        planner->last_write[root] = node + 1;
        return HR_OK;
}

/* A buffer of weights is one object to whoever orders what happens to it: a node that writes into
 * one of them writes into all. */
static void write_weights(struct hr_planner *planner, uint32_t root) {
        const struct hr_plan_input *in = planner->in;
        uint32_t buffer = in->tensor_buffer[root];

        if (buffer == HR_NO_BUFFER || in->buffers[buffer].usage != HR_USAGE_WEIGHTS)
                return;
        for (uint32_t i = 0; i < planner->plan->tensor_count; ++i)
                planner->written[i] = planner->written[i] || in->tensor_buffer[i] == buffer;
}

static hr_status prepare(struct cutter *cutter) {
        struct hr_planner *planner = cutter->planner;
        struct hr_plan *plan = cutter->plan;
        uint32_t nodes = planner->graph->node_count, total = 0;

        plan->source_start = planner_keep_raw(planner, (uint64_t) nodes + 1, sizeof(uint32_t));
        planner->version = planner_scratch(planner, plan->tensor_count, sizeof(uint32_t));
        planner->written = planner_scratch(planner, plan->tensor_count, sizeof(bool));
        planner->copy_head = planner_scratch_raw(planner, plan->tensor_count, sizeof(uint32_t));
        planner->last_write = planner_scratch(planner, plan->tensor_count, sizeof(uint32_t));
        if (!plan->source_start || !planner->version || !planner->copy_head || !planner->written ||
            !planner->last_write)
                return planner_out_of_memory(planner);
        for (uint32_t i = 0; i < nodes; ++i) {
                const struct hr_plan_tensor *t = planner_tensor(planner, plan->leaf_count + i);
                uint32_t root = plan->root[plan->leaf_count + i];

                plan->source_start[i] = total;
                if (t->flags & HR_PLAN_IS_VIEW)
                        continue;
                if ((t->flags & HR_PLAN_WRITES_GIVEN) && !planner->written[root]) {
                        planner->written[root] = true;
                        write_weights(planner, root);
                }
                total += t->source_count;
        }
        plan->source_start[nodes] = total;
        plan->source_copy = planner_keep_raw(planner, total, sizeof(uint32_t));
        plan->steps = planner_keep_raw(planner, nodes, sizeof(uint32_t));
        /* Of each node the sources, the result, and a copy that is carried back. */
        planner->uses = planner_scratch_raw(planner, (uint64_t) total + 2 * (uint64_t) nodes,
                                            sizeof *planner->uses);
        if (!plan->source_copy || !plan->steps || !planner->uses)
                return planner_out_of_memory(planner);
        memset(plan->source_copy, 0xff, total * sizeof(uint32_t));
        memset(planner->copy_head, 0xff, plan->tensor_count * sizeof(uint32_t));
        if (!planner->headrace && planner->in->options.n_copies > 1) {
                plan->graph_inputs = planner_keep(planner, plan->tensor_count, sizeof(uint32_t));
                if (!plan->graph_inputs)
                        return planner_out_of_memory(planner);
        }
        return HR_OK;
}

static hr_status keep_array(struct hr_planner *planner, void **array, size_t bytes) {
        void *kept = planner_keep_raw(planner, 1, bytes);

        if (!kept)
                return planner_out_of_memory(planner);
        if (bytes)
                memcpy(kept, *array, bytes);
        *array = kept;
        return HR_OK;
}

static hr_status keep(struct cutter *cutter) {
        struct hr_plan *plan = cutter->plan;

        plan->splits = cutter->splits;
        HR_TRY(keep_array(cutter->planner, (void **) &plan->splits,
                          plan->split_count * sizeof *plan->splits));
        HR_TRY(keep_array(cutter->planner, (void **) &plan->copies,
                          plan->copy_count * sizeof *plan->copies));
        return keep_array(cutter->planner, (void **) &plan->inputs,
                          plan->input_count * sizeof *plan->inputs);
}

hr_status hr_plan_split(struct hr_planner *planner) {
        struct cutter cutter = {.planner = planner, .plan = planner->plan};
        const struct hr_graph *graph = planner->graph;
        uint32_t first = 0, node = 0;

        HR_TRY(prepare(&cutter));
        while (node < graph->node_count && planner_is_view(planner, graph->leaf_count + node))
                ++node;
        if (node < graph->node_count) {
                first = (uint32_t) planner->plan->device[graph->leaf_count + node];
        } else if (planner->headrace && planner->in->device_count > 1) {
                first = planner->in->device_count - 1; /* computes nothing, whatever is before it */
                planner->plan->rule_count[HR_RULE_IDLE_DEVICE] = 1;
        }
        HR_TRY(open_split(&cutter, first, 0, HR_SPLIT_FIRST));
        for (; node < graph->node_count; ++node) {
                if (!planner_is_view(planner, graph->leaf_count + node))
                        HR_TRY(take_node(&cutter, node));
        }
        current(&cutter)->end = graph->node_count;
        HR_TRY(keep(&cutter));
        for (uint32_t s = 0; s < planner->plan->split_count; ++s)
                planner->plan->device_splits[planner->plan->splits[s].device] +=
                        planner->plan->splits[s].step_count > 0;
        return HR_OK;
}
