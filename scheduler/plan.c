/*
 * Plans: made by the passes in order, then immutable and counted.
 *
 * Everything a plan owns lies in its arena, so making one half and giving up is a single release.
 * What the passes need only among themselves lies in the planner's scratch arena.
 */
#include "scheduler/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"

/* Memory kept from plan to plan: of graphs up to some hundred thousand nodes. */
#define DESK_BYTES_MAX (UINT64_C(64) << 20)

hr_status planner_out_of_memory(struct hr_planner *planner) {
        return hr_fail(planner->diag, HR_E_EXHAUSTED, "memory for a plan of %u nodes",
                       planner->graph->node_count);
}

struct hr_plan *hr_plan_ref(struct hr_plan *plan) {
        atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
        return plan;
}

struct hr_plan *hr_plan_unref(struct hr_plan *plan) {
        if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1)
                return NULL;
        hr_arena_deinit(&plan->arena);
        free(plan);
        return NULL;
}

static hr_status check_input(const struct hr_plan_input *in, struct hr_diag *diag) {
        if (in->device_count == 0 || in->devices[in->device_count - 1].type != HR_DEVICE_CPU)
                return hr_fail_reason(diag, HR_E_INVALID, "DEVICES",
                                      "the last device is not of type CPU");
        for (uint32_t d = 0; d < in->device_count; ++d) {
                const uint64_t *reads = in->reads + (size_t) d * hr_bit_words(in->kind_count);

                if (!hr_bit_get(reads, in->devices[d].kind))
                        return hr_fail_reason(diag, HR_E_INVALID, "DEVICES",
                                              "device %u does not reach its own memory", d);
        }
        for (uint32_t i = 0; in->pins && i < hr_graph_tensor_count(in->graph); ++i) {
                if (in->pins[i] >= (int64_t) in->device_count)
                        return hr_fail_reason(diag, HR_E_INVALID, "PIN",
                                              "tensor %u is pinned to device %d of %u", i,
                                              in->pins[i], in->device_count);
        }
        return HR_OK;
}

/* Root of a tensor and the bytes from there. Chains of views are followed; one that closes on
 * itself is cut. */
static uint32_t find_root(const struct hr_planner *planner, uint32_t tensor, uint64_t *ret_offset) {
        const struct hr_tensor *tensors = planner->graph->tensors;

        for (uint32_t depth = 0; depth < 64; ++depth) {
                uint32_t base = tensors[tensor].view_base;

                if (base == HR_TENSOR_NONE || base >= planner->plan->tensor_count)
                        break;
                *ret_offset += tensors[tensor].view_offset;
                tensor = base;
        }
        return tensor;
}

static uint8_t flags_of(const struct hr_planner *planner, uint32_t tensor) {
        const struct hr_tensor *t = &planner->graph->tensors[tensor];
        unsigned flags = t->flags & (HR_TENSOR_INPUT | HR_TENSOR_OUTPUT);

        if (hr_op_is_view(t->op))
                return (uint8_t) (flags | HR_PLAN_IS_VIEW);
        if (t->op == HR_OP_NONE)
                return (uint8_t) flags;
        if (planner->plan->span[tensor] > 0) /* not empty */
                flags |= HR_PLAN_IS_STEP;
        if (t->view_base != HR_TENSOR_NONE || planner->in->tensor_buffer[tensor] != HR_NO_BUFFER)
                flags |= HR_PLAN_WRITES_GIVEN;
        return (uint8_t) flags;
}

static hr_status lacks_memory(struct hr_planner *planner, uint32_t tensor, uint32_t root) {
        return hr_fail(planner->diag, HR_E_INVALID,
                       "tensor %u needs the memory of tensor %u, which has none", tensor, root);
}

/* Without memory, and not computed before `node`, which looks at it. */
static bool comes_late(const struct hr_planner *planner, uint32_t node, uint32_t root) {
        return root > node && planner->in->tensor_buffer[root] == HR_NO_BUFFER;
}

/* Nobody gives contents to what a leaf looks at unless it is an input: it has them before, or there
 * are none. */
static hr_status check_root(struct hr_planner *planner, uint32_t tensor, uint32_t root) {
        const struct hr_plan *plan = planner->plan;
        bool is_leaf = tensor < plan->leaf_count, is_late = comes_late(planner, tensor, root);

        if (tensor >= plan->leaf_count + plan->node_count)
                return HR_OK;
        if (is_leaf)
                is_late = root != tensor && planner->in->tensor_buffer[root] == HR_NO_BUFFER &&
                          planner->graph->tensors[root].leaf_kind == HR_LEAF_NOT;
        return is_late ? lacks_memory(planner, tensor, root) : HR_OK;
}

/* Nobody gives memory to a tensor outside the graph. */
static hr_status check_extras(struct hr_planner *planner) {
        const struct hr_plan *plan = planner->plan;

        if (planner->graph->extra_count == 0)
                return HR_OK;
        for (uint32_t i = plan->leaf_count; i < plan->leaf_count + plan->node_count; ++i) {
                for (uint32_t k = 0; k < planner_tensor(planner, i)->source_count; ++k) {
                        uint32_t source = planner_source(planner, i, k);

                        if (source != HR_TENSOR_NONE &&
                            comes_late(planner, i, plan->root[source]))
                                return lacks_memory(planner, i, plan->root[source]);
                }
        }
        return HR_OK;
}

#define AHEAD 8 /* tensors by which memory is asked for */

/* One walk over the graph's own tensors, which are large. */
static hr_status describe_tensors(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;

        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                const struct hr_tensor *t = &planner->graph->tensors[i];

                if (i + AHEAD < plan->tensor_count) /* lines that the walk misses otherwise */
                        for (size_t line = 0; line < sizeof *t; line += 64)
                                __builtin_prefetch((const char *) &t[AHEAD] + line);
                if (HR_UNLIKELY(!hr_tensor_find_span(t, &plan->span[i])))
                        return hr_tensor_span(t, planner->diag, &plan->span[i]);
                planner->tensors[i] = (struct hr_plan_tensor){
                        .source_first = t->source_first,
                        .source_count = t->source_count,
                        .view_base = t->view_base,
                        .op = (uint16_t) HR_MIN(t->op, UINT16_MAX),
                        .leaf_kind = (uint8_t) t->leaf_kind,
                        .flags = flags_of(planner, i),
                };
                plan->root_offset[i] = 0;
                plan->root[i] = i;
                if (t->view_base != HR_TENSOR_NONE) {
                        plan->root[i] = find_root(planner, i, &plan->root_offset[i]);
                        if (planner->headrace)
                                HR_TRY(check_root(planner, i, plan->root[i]));
                }
                if (t->flags & HR_TENSOR_OUTPUT) {
                        if (planner->outputs_end == 0)
                                planner->outputs_first = i;
                        planner->outputs_end = i + 1;
                }
        }
        return HR_OK;
}

/* All devices are in play, but for retired ones. */
static void allow_all(struct hr_planner *planner) {
        const struct hr_plan_input *in = planner->in;

        for (uint32_t d = 0; d < in->device_count; ++d) {
                if (!in->retired || !hr_bit_get(in->retired, d))
                        hr_bit_set(planner->allowed, d);
        }
}

static hr_status describe_devices(struct hr_planner *planner) {
        const struct hr_plan_input *in = planner->in;
        uint32_t words = planner->plan->words;

        planner->readers =
                planner_scratch(planner, (uint64_t) in->kind_count * words, sizeof(uint64_t));
        planner->allowed = planner_scratch(planner, words, sizeof(uint64_t));
        planner->has_twin = planner_scratch(planner, in->device_count, sizeof(bool));
        if (!planner->readers || !planner->allowed || !planner->has_twin)
                return planner_out_of_memory(planner);
        allow_all(planner);
        for (uint32_t d = 0; d < in->device_count; ++d) {
                for (uint32_t k = 0; k < in->kind_count; ++k) {
                        if (planner_reads(planner, d, k))
                                hr_bit_set(planner->readers + (size_t) k * words, d);
                }
                for (uint32_t e = 0; e < d; ++e)
                        planner->has_twin[d] =
                                planner->has_twin[d] || in->devices[e].kind == in->devices[d].kind;
                planner->any_twin = planner->any_twin || planner->has_twin[d];
        }
        return HR_OK;
}

static hr_status planner_init(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        const struct hr_plan_input *in = planner->in;
        uint64_t count = plan->tensor_count;

        plan->device = planner_keep_raw(planner, count, sizeof *plan->device);
        plan->cause = planner_keep_raw(planner, count, sizeof *plan->cause);
        plan->notes = planner_keep(planner, count, sizeof *plan->notes);
        plan->root = planner_keep_raw(planner, count, sizeof *plan->root);
        plan->root_offset = planner_keep_raw(planner, count, sizeof *plan->root_offset);
        plan->span = planner_keep_raw(planner, count, sizeof *plan->span);
        plan->compute_bytes = planner_keep(planner, in->device_count, sizeof(uint64_t));
        plan->copies_bytes = planner_keep(planner, in->device_count, sizeof(uint64_t));
        plan->scratch_bytes = planner_keep(planner, in->device_count, sizeof(uint64_t));
        plan->device_splits = planner_keep(planner, in->device_count, sizeof(uint32_t));
        plan->uploads = planner_keep(planner, in->device_count, sizeof(bool));
        planner->tensors = planner_scratch_raw(planner, count, sizeof *planner->tensors);
        planner->supports = (uint64_t *) in->supports;
        if (!in->supports) {
                planner->supports =
                        planner_scratch_raw(planner, count, plan->words * sizeof(uint64_t));
                planner->asked = planner_scratch(planner, count, plan->words * sizeof(uint64_t));
        }
        if (in->pins)
                plan->pins = planner_keep_raw(planner, count, sizeof *plan->pins);
        if (!plan->device || !plan->cause || !plan->notes || !plan->root || !plan->root_offset ||
            !plan->span || !plan->compute_bytes || !plan->copies_bytes || !plan->scratch_bytes ||
            !plan->device_splits || !plan->uploads || !planner->tensors || !planner->supports ||
            (!in->supports && !planner->asked) || (in->pins && !plan->pins))
                return planner_out_of_memory(planner);
        if (in->pins)
                memcpy(plan->pins, in->pins, count * sizeof *plan->pins);
        HR_TRY(describe_devices(planner));
        HR_TRY(describe_tensors(planner));
        return planner->headrace ? check_extras(planner) : HR_OK;
}

static hr_status run_passes(struct hr_planner *planner) {
        HR_TRY(planner_init(planner));
        HR_TRY(hr_plan_assign(planner));
        HR_TRY(hr_plan_split(planner));
        HR_TRY(hr_plan_find_taps(planner));
        HR_TRY(hr_plan_optimize(planner));
        HR_TRY(hr_plan_lanes(planner));
        HR_TRY(hr_plan_uploads(planner));
        HR_TRY(hr_plan_place(planner));
        HR_TRY(hr_plan_tape(planner));
        if (planner->headrace)
                return hr_plan_prove(planner->plan, planner->in, planner->scratch, planner->diag);
        /* The reference's decisions are kept as they are, sound or not; an unsound plan can be
         * looked at but never runs. */
        if (hr_plan_prove(planner->plan, planner->in, planner->scratch, &planner->plan->fault) ==
            HR_E_EXHAUSTED)
                return planner_out_of_memory(planner);
        return HR_OK;
}

/* What a plan keeps for each tensor, node and source; splits, copies and commands are few. */
static void reserve_plan(struct hr_plan *plan, const struct hr_graph *graph) {
        uint64_t per_tensor = sizeof *plan->device + sizeof *plan->cause + sizeof *plan->notes +
                              sizeof *plan->root + sizeof *plan->root_offset + sizeof *plan->span +
                              sizeof *plan->place;
        uint64_t per_node = sizeof *plan->steps + sizeof *plan->source_start;

        hr_arena_reserve(&plan->arena, per_tensor * plan->tensor_count +
                                               per_node * plan->node_count +
                                               sizeof(uint32_t) * graph->source_count + 1024);
}

/* The fleet's desk, if nobody plans at it. */
static struct hr_desk *desk_take(const struct hr_plan_input *input) {
        struct hr_desk *desk = input->fleet ? input->fleet->desk : NULL;

        return desk && !atomic_exchange_explicit(&desk->taken, true, memory_order_acquire) ? desk
                                                                                           : NULL;
}

static void desk_give(struct hr_desk *desk) {
        hr_arena_recycle(&desk->arena, DESK_BYTES_MAX);
        atomic_store_explicit(&desk->taken, false, memory_order_release);
}

hr_status hr_plan_make(const struct hr_plan_input *input, struct hr_diag *diag,
                       struct hr_plan **ret_plan) {
        HR_CLEANUP(hr_plan_unrefp) struct hr_plan *plan = NULL;
        struct hr_planner planner = {.in = input, .graph = input->graph, .diag = diag};
        struct hr_arena own;
        struct hr_desk *desk;
        hr_status status;

        HR_TRY(check_input(input, diag));
        plan = calloc(1, sizeof *plan);
        if (!plan)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a plan");
        atomic_init(&plan->refs, 1);
        hr_arena_init(&plan->arena, 0);
        hr_arena_init(&own, 0);
        plan->options = input->options;
        plan->leaf_count = input->graph->leaf_count;
        plan->node_count = input->graph->node_count;
        plan->tensor_count = hr_graph_tensor_count(input->graph);
        plan->device_count = input->device_count;
        plan->kind_count = input->kind_count;
        plan->words = hr_bit_words(input->device_count);
        reserve_plan(plan, input->graph);
        planner.plan = plan;
        planner.headrace = input->options.rules == HR_RULES_HEADRACE;
        planner.kind_words = hr_bit_words(input->kind_count);
        desk = desk_take(input);
        planner.scratch = desk ? &desk->arena : &own;
        status = run_passes(&planner);
        if (desk)
                desk_give(desk);
        hr_arena_deinit(&own);
        if (status != HR_OK)
                return status;
        HR_ASSERT(plan->split_count > 0);
        *ret_plan = HR_STEAL(plan);
        return HR_OK;
}

bool hr_plan_lane_touches(const struct hr_plan *plan, uint32_t lane, uint32_t kind) {
        if (plan->touches[(size_t) lane * plan->kind_count + kind])
                return true;
        for (uint32_t d = 0; d < plan->device_count; ++d) {
                size_t walker = (size_t) plan->lane_count + d;

                if (plan->uploads[d] && plan->lane[d] == lane &&
                    plan->touches[walker * plan->kind_count + kind])
                        return true;
        }
        return false;
}

static bool is_slotted(const struct hr_place *place) {
        return place->where == HR_WHERE_SLOT;
}

bool hr_plan_split_is_per_slot(const struct hr_plan *plan, const struct hr_graph *graph,
                               const struct hr_plan_split *split) {
        for (uint32_t k = 0; k < split->step_count; ++k) {
                uint32_t node = plan->steps[split->step_first + k], id = graph->leaf_count + node;

                if (is_slotted(&plan->place[plan->root[id]]) ||
                    (plan->result_copy && plan->result_copy[node] != HR_NO_COPY))
                        return true;
                for (uint32_t i = 0; i < graph->tensors[id].source_count; ++i) {
                        uint32_t source = hr_graph_source(graph, &graph->tensors[id], i);
                        uint32_t copy = plan->source_copy[plan->source_start[node] + i];

                        if (copy != HR_NO_COPY
                                    ? is_slotted(&plan->copies[copy].place)
                                    : source != HR_TENSOR_NONE &&
                                              is_slotted(&plan->place[plan->root[source]]))
                                return true;
                }
        }
        return false;
}

struct hr_plan_summary hr_plan_summary(const struct hr_plan *plan) {
        return (struct hr_plan_summary){
                .split_count = plan->split_count,
                .n_copies = plan->n_copies,
                .copies_reason = plan->copies_reason,
                .uploads = plan->arrival,
                .device_count = plan->device_count,
                .compute_bytes = plan->compute_bytes,
                .copies_bytes = plan->copies_bytes,
                .scratch_bytes = plan->scratch_bytes,
                .staging_bytes = plan->staging_bytes * plan->n_copies,
                .device_splits = plan->device_splits,
                .copied_bytes = plan->copied_bytes,
                .tap_count = plan->tap_count,
                .tap_bytes = plan->tap_bytes,
                .fallback_nodes = plan->fallback_nodes,
                .memory_bytes = sizeof *plan + plan->arena.used_bytes,
        };
}

int32_t hr_plan_tensor_device(const struct hr_plan *plan, uint32_t tensor) {
        return tensor < plan->tensor_count ? plan->device[tensor] : -1;
}

const char *hr_cause_name(uint16_t cause, char *buffer, size_t buffer_bytes) {
        static const char *const names[HR_CAUSE_WEIGHT] = {
                [HR_CAUSE_NONE] = "-",
                [HR_CAUSE_USER] = "usr",
                [HR_CAUSE_MEMORY] = "1.dst",
                [HR_CAUSE_MEMORY_VIEW] = "1.vsrc",
                [HR_CAUSE_INPUT] = "1.inp",
                [HR_CAUSE_OFFLOAD] = "1.off",
                [HR_CAUSE_GPU_DOWN] = "2.gd",
                [HR_CAUSE_GPU_UP] = "2.gu",
                [HR_CAUSE_REST_DOWN] = "2.rd",
                [HR_CAUSE_REST_UP] = "2.ru",
                [HR_CAUSE_BEST] = "3.best",
                [HR_CAUSE_UPGRADE] = "3.upg",
                [HR_CAUSE_VIEW_BASE] = "4.vsrc",
                [HR_CAUSE_CONSUMER] = "4.cur",
                [HR_CAUSE_FIRST] = "4.fst",
                [HR_CAUSE_COPIES] = "4.cpy",
                [HR_CAUSE_RULE_WRITER] = "h.writer",
                [HR_CAUSE_RULE_VIEW] = "h.view",
        };

        if (cause < HR_CAUSE_WEIGHT)
                return names[cause];
        snprintf(buffer, buffer_bytes, "1.wgt%u", (unsigned) (cause - HR_CAUSE_WEIGHT));
        return buffer;
}

const char *hr_split_reason_name(hr_split_reason reason) {
        static const char *const names[] = {
                [HR_SPLIT_FIRST] = "first",           [HR_SPLIT_DEVICE] = "backend",
                [HR_SPLIT_WEIGHT] = "weight",         [HR_SPLIT_INPUTS] = "inputs",
                [HR_SPLIT_WRITE_BACK] = "write-back", [HR_SPLIT_EXPERTS] = "experts",
        };

        return names[reason];
}
