/*
 * Passes 1 to 4: a device for every tensor, with the rule that chose it.
 *
 * Each pass is one function that reads the input and the assignment so far and goes over the
 * tensors in graph order once per sweep, so the whole is linear. -1 is "open". The order of the
 * tests inside a pass decides ties and is part of what is specified; do not reorder them.
 *
 * rules = ggml follows the recorded behaviour to the letter. What rules = headrace does otherwise
 * sits behind planner->headrace and calls a function of rules.c.
 */
#include "scheduler/plan.h"

#include <string.h>

static void assign(struct hr_planner *planner, uint32_t tensor, int64_t device, unsigned cause) {
        planner->plan->device[tensor] = (int32_t) device;
        planner->plan->cause[tensor] = (uint16_t) cause;
}

/* Lowest device that reads the tensor's memory and supports `op`'s operator; -1 without either. */
static int64_t home_of(const struct hr_planner *planner, uint32_t tensor, uint32_t op) {
        uint32_t buffer = planner_buffer(planner, tensor), words = planner->plan->words;
        const uint64_t *readers;

        if (buffer == HR_NO_BUFFER)
                return -1;
        readers = planner->readers + (size_t) planner->in->buffers[buffer].kind * words;
        for (uint32_t w = 0; w < words; ++w) {
                for (uint64_t rest = readers[w]; rest; rest &= rest - 1) {
                        uint32_t device = w * 64 + (uint32_t) __builtin_ctzll(rest);

                        if (planner_supports(planner, device, op))
                                return device;
                }
        }
        return -1;
}

static int64_t first_reader(const struct hr_planner *planner, uint32_t buffer) {
        for (uint32_t d = 0; d < planner->in->device_count; ++d) {
                if (hr_bit_get(planner->allowed, d) &&
                    planner_reads(planner, d, planner->in->buffers[buffer].kind))
                        return d;
        }
        return -1;
}

/* A tensor in memory that no device both reads and supports. */
static hr_status homeless(struct hr_planner *planner, uint32_t tensor, uint32_t buffer) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        int64_t reader = planner->headrace ? first_reader(planner, buffer) : -1;

        if (reader >= 0 && (t->op == HR_OP_NONE || (t->flags & HR_PLAN_IS_VIEW))) {
                planner_note(planner, HR_RULE_LABEL, tensor);
                assign(planner, tensor, reader, HR_CAUSE_MEMORY);
                return HR_OK;
        }
        /* A writer stays open: hr_rule_writer() finds a way to its base later. */
        if (planner->headrace && planner_writes_given(planner, tensor))
                return HR_OK;
        hr_fail_reason(planner->diag, HR_E_UNSUPPORTED, "OP",
                       "tensor %u lies in memory that no device both reaches and can run %s on",
                       tensor, hr_op_name(planner->graph->tensors[tensor].op));
        if (planner->diag) {
                planner->diag->has_tensor = true;
                planner->diag->tensor = tensor;
        }
        return HR_E_UNSUPPORTED;
}

/* First higher-priority device that supports the node and asks for it. */
static int64_t offload_target(struct hr_planner *planner, uint32_t tensor, uint32_t weight,
                              int64_t home) {
        const struct hr_plan_input *in = planner->in;
        uint32_t kind = in->buffers[in->tensor_buffer[weight]].kind;
        int64_t first = -1;

        if (!in->options.op_offload || home < 0 || !in->kinds[kind].host)
                return -1;
        if (home == (int64_t) in->device_count - 1) {
                for (uint32_t d = 0; d < (uint32_t) home && first < 0; ++d) {
                        if (planner_supports(planner, d, tensor) &&
                            planner_wants_offload(planner, d, tensor))
                                first = d;
                }
        }
        /* A home other than the last device that computes in host memory may be relieved, too. */
        if (planner->headrace && in->kinds[in->devices[home].kind].host)
                return hr_rule_offload(planner, tensor, weight, first);
        return first;
}

static bool is_weight(const struct hr_planner *planner, uint32_t tensor) {
        uint32_t own = planner->in->tensor_buffer[tensor];

        return own != HR_NO_BUFFER && planner->in->buffers[own].usage == HR_USAGE_WEIGHTS;
}

/* Step 6 of pass 1: where the first weight among the sources lives. */
static void follow_weight(struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        const uint32_t *sources = planner->graph->sources + t->source_first;
        int64_t home, target;

        if (t->op == HR_OP_ROPE || t->op == HR_OP_FLASH_ATTN_EXT)
                return;
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = sources[i];

                if (source == HR_TENSOR_NONE || !is_weight(planner, source))
                        continue;
                home = home_of(planner, source, tensor);
                target = offload_target(planner, tensor, source, home);
                if (target >= 0)
                        assign(planner, tensor, target, HR_CAUSE_OFFLOAD);
                else
                        assign(planner, tensor, home, HR_CAUSE_WEIGHT + HR_MIN(i, 1000U));
                return;
        }
}

static hr_status assign_by_memory(struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        uint32_t buffer = planner_buffer(planner, tensor);
        int64_t home;

        if (buffer != HR_NO_BUFFER) {
                home = home_of(planner, tensor, tensor);
                if (home >= 0) {
                        assign(planner, tensor, home, HR_CAUSE_MEMORY);
                        return HR_OK;
                }
        }
        if (t->view_base != HR_TENSOR_NONE) {
                home = home_of(planner, t->view_base, tensor);
                if (home >= 0) {
                        assign(planner, tensor, home, HR_CAUSE_MEMORY_VIEW);
                        return HR_OK;
                }
        }
        if (buffer == HR_NO_BUFFER)
                buffer = planner->in->tensor_buffer[tensor];
        if (buffer != HR_NO_BUFFER)
                return homeless(planner, tensor, buffer);
        if ((t->flags & HR_TENSOR_INPUT) || t->leaf_kind == HR_LEAF_INPUT)
                assign(planner, tensor, (int64_t) planner->in->device_count - 1, HR_CAUSE_INPUT);
        else
                follow_weight(planner, tensor);
        return HR_OK;
}

static void open_add(struct hr_planner *planner, uint32_t node) {
        planner->open_first = HR_MIN(planner->open_first, node);
        planner->open_end = HR_MAX(planner->open_end, node + 1);
}

/* Pass 1. */
static hr_status pass_memory(struct hr_planner *planner) {
        uint32_t count = planner->graph->leaf_count + planner->graph->node_count;
        uint32_t all = planner->plan->tensor_count;

        memset(planner->plan->device, 0xff, all * sizeof *planner->plan->device);
        memset(planner->plan->cause, 0, all * sizeof *planner->plan->cause);
        for (uint32_t i = 0; planner->in->pins && i < all; ++i) {
                if (planner_pinned(planner, i))
                        assign(planner, i, planner->in->pins[i], HR_CAUSE_USER);
        }
        planner->open_count = planner->open_end = 0;
        planner->open_first = UINT32_MAX;
        for (uint32_t i = 0; i < count; ++i) {
                if (planner->plan->device[i] < 0)
                        HR_TRY(assign_by_memory(planner, i));
                if (i >= planner->graph->leaf_count && planner->plan->device[i] < 0 &&
                    !planner_is_view(planner, i)) {
                        ++planner->open_count;
                        open_add(planner, i - planner->graph->leaf_count);
                }
        }
        return HR_OK;
}

/* The turn at which a sweep starts: what it carries to the first open node on its way comes from
 * the nearest node before that one which is no view. */
static uint32_t sweep_start(const struct hr_planner *planner, bool down) {
        uint32_t count = planner->graph->node_count, first = planner->graph->leaf_count;
        uint32_t node = down ? planner->open_first : planner->open_end;

        while (down && node > 0 && planner_is_view(planner, first + node - 1))
                --node;
        while (!down && node < count && planner_is_view(planner, first + node))
                ++node;
        if (down)
                return node > 0 ? node - 1 : 0;
        return node < count ? count - 1 - node : 0;
}

/* One sweep of pass 2 over the nodes in one direction. Nothing is left to do once no node is
 * open. */
static void sweep(struct hr_planner *planner, bool down, bool skip_last, hr_cause cause) {
        uint32_t count = planner->graph->node_count, first = planner->graph->leaf_count;
        int64_t last = (int64_t) planner->in->device_count - 1, carried = -1;
        uint32_t start = planner->open_count ? sweep_start(planner, down) : count;

        planner->open_end = 0;
        planner->open_first = UINT32_MAX;
        for (uint32_t k = start; k < count && planner->open_count; ++k) {
                uint32_t id = first + (down ? k : count - 1 - k);
                int32_t device = planner->plan->device[id];

                if (device >= 0) {
                        if (!planner_is_view(planner, id))
                                carried = skip_last && device == last ? -1 : device;
                } else if (planner_is_view(planner, id)) {
                        continue;
                } else if (carried >= 0 && planner_supports(planner, (uint32_t) carried, id)) {
                        assign(planner, id, carried, cause);
                        --planner->open_count;
                } else {
                        open_add(planner, id - first);
                }
        }
}

static void choose_best(struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        int64_t best_count = -1;

        for (uint32_t d = 0; d < planner->in->device_count; ++d) {
                int64_t count = 0;

                if (!planner_supports(planner, d, tensor))
                        continue;
                for (uint32_t i = 0; i < t->source_count; ++i) {
                        uint32_t source = planner_source(planner, tensor, i), base;

                        if (source == HR_TENSOR_NONE)
                                continue;
                        base = planner_tensor(planner, source)->view_base;
                        /* The node itself (a cast's second source) counts from the moment that an
                         * earlier candidate was taken. */
                        if ((planner->plan->device[source] >= 0 ||
                             (base != HR_TENSOR_NONE && planner->plan->device[base] >= 0)) &&
                            planner_could_read(planner, source, d))
                                ++count;
                }
                if (count > best_count) {
                        best_count = count;
                        assign(planner, tensor, d, HR_CAUSE_BEST);
                }
        }
}

static bool reads_all_sources(const struct hr_planner *planner, uint32_t tensor, uint32_t device) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = planner_source(planner, tensor, i);

                if (source != HR_TENSOR_NONE && !planner_could_read(planner, source, device))
                        return false;
        }
        return true;
}

static void upgrade(struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_device *devices = planner->in->devices;
        uint32_t own = (uint32_t) planner->plan->device[tensor];

        for (uint32_t d = 0; planner->has_twin[own] && d < own; ++d) {
                if (devices[d].kind != devices[own].kind || !planner_supports(planner, d, tensor) ||
                    !reads_all_sources(planner, tensor, d))
                        continue;
                if (planner->headrace && planner_pinned(planner, tensor)) {
                        planner_note(planner, HR_RULE_PINS, tensor);
                        return;
                }
                assign(planner, tensor, d, HR_CAUSE_UPGRADE);
                return;
        }
}

/* Pass 3. */
static void pass_best(struct hr_planner *planner) {
        if (planner->open_count == 0 && !planner->any_twin)
                return;
        for (uint32_t i = 0; i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i;

                if (planner_is_view(planner, id))
                        continue;
                if (planner->plan->device[id] < 0)
                        choose_best(planner, id);
                else
                        upgrade(planner, id);
        }
}

static hr_status no_device(struct hr_planner *planner, uint32_t node) {
        uint32_t op = hr_graph_node(planner->graph, node)->op;

        hr_fail_reason(planner->diag, HR_E_UNSUPPORTED, "OP", "no device supports node %u (%s)",
                       node, hr_op_name(op));
        if (planner->diag) {
                planner->diag->has_node = true;
                planner->diag->node = node;
        }
        return HR_E_UNSUPPORTED;
}

static void fill_sources(struct hr_planner *planner, uint32_t tensor) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);
        int32_t *device = planner->plan->device;

        const uint32_t *sources = planner->graph->sources + t->source_first;

        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = sources[i], base;

                if (source == HR_TENSOR_NONE || device[source] >= 0)
                        continue;
                base = planner_tensor(planner, source)->view_base;
                if (base != HR_TENSOR_NONE)
                        assign(planner, source, device[base], HR_CAUSE_VIEW_BASE);
                else
                        assign(planner, source, device[tensor], HR_CAUSE_CONSUMER);
        }
}

/* The first device that supports the node. */
static hr_status take_first(struct hr_planner *planner, uint32_t node) {
        uint32_t id = planner->graph->leaf_count + node;

        for (uint32_t d = 0; d < planner->in->device_count; ++d) {
                if (planner_supports(planner, d, id)) {
                        assign(planner, id, d, HR_CAUSE_FIRST);
                        return HR_OK;
                }
        }
        if (!planner->headrace || !planner_is_view(planner, id))
                return no_device(planner, node);
        assign(planner, id, (int64_t) planner->in->device_count - 1, HR_CAUSE_FIRST);
        return HR_OK;
}

/* Pass 4. */
static hr_status pass_rest(struct hr_planner *planner) {
        int32_t *device = planner->plan->device;

        for (uint32_t i = 0; i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i;
                const struct hr_plan_tensor *node = planner_tensor(planner, id);

                /* An operator that is open now is one that nobody supports. */
                if (node->view_base != HR_TENSOR_NONE && device[id] < 0 &&
                    (planner_is_view(planner, id) || !planner->headrace))
                        assign(planner, id, device[node->view_base], HR_CAUSE_VIEW_BASE);
                fill_sources(planner, id);
                if (device[id] < 0)
                        HR_TRY(take_first(planner, i));
                if (planner->headrace && planner_writes_given(planner, id))
                        HR_TRY(hr_rule_writer(planner, id));
        }
        return HR_OK;
}

/* Writers into a leaf that had no device yet when their turn came: it has one from a later reader,
 * or from its views. */
static hr_status ask_late_writers(struct hr_planner *planner) {
        for (uint32_t i = 0; planner->late_writers && i < planner->graph->node_count; ++i) {
                uint32_t id = planner->graph->leaf_count + i;

                if (planner_writes_given(planner, id) &&
                    !(planner->write_back && planner->write_back[i]))
                        HR_TRY(hr_rule_writer(planner, id));
        }
        return HR_OK;
}

static hr_status run_passes(struct hr_planner *planner) {
        memset(planner->plan->rule_count, 0, sizeof planner->plan->rule_count);
        memset(planner->plan->notes, 0,
               hr_graph_tensor_count(planner->graph) * sizeof *planner->plan->notes);
        if (planner->write_back)
                memset(planner->write_back, 0, planner->graph->node_count);
        planner->late_writers = false;
        HR_TRY(pass_memory(planner));
        sweep(planner, true, true, HR_CAUSE_GPU_DOWN);
        sweep(planner, false, true, HR_CAUSE_GPU_UP);
        sweep(planner, true, false, HR_CAUSE_REST_DOWN);
        sweep(planner, false, false, HR_CAUSE_REST_UP);
        pass_best(planner);
        HR_TRY(pass_rest(planner));
        if (!planner->headrace)
                return HR_OK;
        hr_rule_view_leaves(planner);
        return ask_late_writers(planner);
}

/* The passes, whose failure is nobody's yet. */
static bool passes_work(struct hr_planner *planner) {
        struct hr_diag *diag = planner->diag, ignored = {0};
        hr_status status;

        planner->diag = &ignored;
        status = run_passes(planner);
        planner->diag = diag;
        return status == HR_OK;
}

static void set_allowed(struct hr_planner *planner, uint32_t device, bool is_allowed) {
        const uint64_t bit = (uint64_t) 1 << (device % 64);

        if (is_allowed)
                planner->allowed[device / 64] |= bit;
        else
                planner->allowed[device / 64] &= ~bit;
}

/* The idle ones out of play, all or none. */
static void allow_idle(struct hr_planner *planner, const uint64_t *idle, bool is_allowed) {
        for (uint32_t d = 0; d < planner->in->device_count; ++d)
                if (hr_bit_get(idle, d))
                        set_allowed(planner, d, is_allowed);
}

/* Where one of them turns out to be needed (it alone reaches some memory) it stays, the others
 * go. */
static hr_status drop_one_by_one(struct hr_planner *planner, const uint64_t *idle, uint64_t *needed,
                                 bool *ret_dropped) {
        allow_idle(planner, idle, true);
        for (uint32_t d = 0; d < planner->in->device_count; ++d) {
                if (!hr_bit_get(idle, d))
                        continue;
                set_allowed(planner, d, false);
                if (passes_work(planner)) {
                        *ret_dropped = true;
                        continue;
                }
                set_allowed(planner, d, true);
                hr_bit_set(needed, d);
        }
        return run_passes(planner);
}

/* Repeats the passes without the devices that hold labels but no node, until none is left: where
 * one is gone, the next may hold what it held. */
static hr_status drop_idle(struct hr_planner *planner) {
        uint32_t words = planner->plan->words;
        uint64_t *idle = planner_scratch(planner, words, sizeof *idle);
        uint64_t *needed = planner_scratch(planner, words, sizeof *needed);
        bool is_dropped = false, is_left = idle && needed;

        while (is_left && hr_rule_idle_devices(planner, idle)) {
                is_left = false;
                for (uint32_t w = 0; w < words; ++w) {
                        idle[w] &= ~needed[w];
                        is_left = is_left || idle[w];
                }
                if (!is_left)
                        break;
                allow_idle(planner, idle, false);
                if (passes_work(planner))
                        is_dropped = true;
                else
                        HR_TRY(drop_one_by_one(planner, idle, needed, &is_dropped));
        }
        planner->plan->rule_count[HR_RULE_IDLE_DEVICE] = is_dropped;
        return HR_OK;
}

hr_status hr_plan_assign(struct hr_planner *planner) {
        if (planner->headrace && planner->in->pins)
                HR_TRY(hr_rule_pins_check(planner));
        HR_TRY(run_passes(planner));
        if (planner->headrace)
                HR_TRY(drop_idle(planner));
        return hr_rule_strict(planner);
}
