/*
 * A plan as data: assignment with causes and rules, splits with their inputs, memory per device.
 *
 * Each part takes its columns from the explanation's arena and fills them from the plan; nothing is
 * decided here, and nothing is put into words: that is the reader's.
 */
#include "scheduler/explain.h"

#include <string.h>

#include "scheduler/exec.h"

struct page {
        const struct hr_plan *plan;
        const struct hr_graph *graph;
        const struct hr_fleet *fleet;
        uint32_t slots, planned;
        struct hr_explanation *out;
        bool failed; /* no memory for a column */
};

/* A column of zeros. */
static void *column(struct page *page, uint64_t count, uint64_t width) {
        static uint64_t nothing[1];
        uint64_t bytes;
        void *memory = hr_mul_u64(count, width, &bytes)
                               ? hr_arena_alloc(&page->out->arena, bytes, 8)
                               : NULL;

        page->failed = page->failed || !memory;
        return memory ? memory : nothing;
}

static uint32_t *words(struct page *page, uint32_t count) {
        return column(page, count, sizeof(uint32_t));
}

static uint64_t *longs(struct page *page, uint32_t count) {
        return column(page, count, sizeof(uint64_t));
}

static const char **texts(struct page *page, uint32_t count) {
        return column(page, count, sizeof(const char *));
}

static void list_names(struct page *page, const char *const *names, uint32_t count,
                       struct hr_explain_names *ret_names) {
        ret_names->names = texts(page, count);
        ret_names->count = page->failed ? 0 : count;
        for (uint32_t i = 0; i < ret_names->count; ++i)
                ret_names->names[i] = names[i];
}

static uint32_t device_or_none(int64_t device) {
        return device < 0 ? HR_EXPLAIN_NONE : (uint32_t) device;
}

/* ---- Names ------------------------------------------------------------------------------------
 */

static void name_fixed_lists(struct page *page) {
        static const char *const where[] = {
                [HR_WHERE_NONE] = "none", [HR_WHERE_SHARED] = "shared",   [HR_WHERE_SLOT] = "slot",
                [HR_WHERE_HOME] = "home", [HR_WHERE_STAGING] = "staging",
        };
        static const char *const methods[] = {
                [HR_COPY_INPUT] = "input",      [HR_COPY_CONSTANT] = "constant",
                [HR_COPY_HOST_WEIGHT] = "host", [HR_COPY_EXPERTS] = "experts",
                [HR_COPY_DIRECT] = "direct",    [HR_COPY_STAGED] = "staged",
        };
        const char *rules[HR_RULE_COUNT], *reasons[HR_SPLIT_EXPERTS + 1];

        for (int r = 0; r < HR_RULE_COUNT; ++r)
                rules[r] = hr_rule_name((hr_rule) r);
        for (int r = 0; r <= HR_SPLIT_EXPERTS; ++r)
                reasons[r] = hr_split_reason_name((hr_split_reason) r);
        list_names(page, where, HR_ARRAY_LENGTH(where), &page->out->where_names);
        list_names(page, methods, HR_ARRAY_LENGTH(methods), &page->out->method_names);
        list_names(page, rules, HR_RULE_COUNT, &page->out->rule_names);
        list_names(page, reasons, HR_SPLIT_EXPERTS + 1, &page->out->reason_names);
}

/* The causes that occur, and per tensor which of them. */
static void explain_causes(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->leaf_count + plan->node_count, most = 0, found = 0;
        uint32_t *number;

        for (uint32_t i = 0; i < count; ++i)
                most = HR_MAX(most, (uint32_t) plan->cause[i]);
        out->cause = words(page, count);
        out->cause_names.names = texts(page, most + 1);
        number = words(page, most + 1);
        for (uint32_t i = 0; i < count && !page->failed; ++i) {
                uint16_t cause = plan->cause[i];
                char *name;

                if (!number[cause]) {
                        name = column(page, 32, 1);
                        if (page->failed)
                                return;
                        out->cause_names.names[found] = hr_cause_name(cause, name, 32);
                        number[cause] = ++found;
                }
                out->cause[i] = number[cause] - 1;
        }
        out->cause_names.count = found;
}

/* ---- Tensors, splits, copies ------------------------------------------------------------------
 */

static void explain_tensors(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->leaf_count + plan->node_count;

        explain_causes(page);
        out->op = words(page, plan->node_count);
        out->device = words(page, count);
        out->notes = words(page, count);
        out->root = words(page, count);
        out->bytes = longs(page, count);
        out->place.where = words(page, count);
        out->place.offset = longs(page, count);
        for (uint32_t i = 0; i < plan->node_count && !page->failed; ++i)
                out->op[i] = page->graph->tensors[plan->leaf_count + i].op;
        for (uint32_t i = 0; i < count && !page->failed; ++i) {
                const struct hr_place *place = &plan->place[plan->root[i]];

                out->device[i] = device_or_none(plan->device[i]);
                out->notes[i] = plan->notes[i] & (HR_NOTE_FALLBACK - 1);
                if (plan->notes[i] & HR_NOTE_FALLBACK)
                        out->notes[i] |= HR_EXPLAIN_FALLBACK;
                out->root[i] = plan->root[i];
                out->bytes[i] = plan->span[i];
                out->place.where[i] = place->where;
                out->place.offset[i] = place->offset;
        }
}

static void explain_copies(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->input_count;

        out->copy_count = count;
        out->copy_tensor = words(page, count);
        out->copy_source = words(page, count);
        out->copy_method = words(page, count);
        out->copy_back = words(page, count);
        out->copy_early = words(page, count);
        out->copy_bytes = longs(page, count);
        out->copy_place.where = words(page, count);
        out->copy_place.offset = longs(page, count);
        for (uint32_t i = 0; i < count && !page->failed; ++i) {
                const struct hr_plan_copy *copy = &plan->copies[plan->inputs[i]];

                out->copy_tensor[i] = copy->tensor;
                out->copy_source[i] = copy->source_device;
                out->copy_method[i] = copy->method;
                out->copy_back[i] = copy->write_back;
                out->copy_early[i] = copy->is_upload;
                out->copy_bytes[i] = copy->bytes;
                out->copy_place.where[i] = copy->place.where;
                out->copy_place.offset[i] = copy->place.offset;
        }
}

static void explain_splits(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->split_count;

        out->split_count = count;
        out->split_device = words(page, count);
        out->split_start = words(page, count);
        out->split_end = words(page, count);
        out->split_reason = words(page, count);
        out->split_inputs = words(page, count);
        out->split_steps = words(page, count);
        for (uint32_t s = 0; s < count && !page->failed; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];

                out->split_device[s] = split->device;
                out->split_start[s] = split->start;
                out->split_end[s] = split->end;
                out->split_reason[s] = split->reason;
                out->split_inputs[s] = split->input_count;
                out->split_steps[s] = split->step_count;
        }
}

static void explain_steps(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;

        out->step_count = plan->step_count;
        out->step_node = words(page, plan->step_count);
        out->step_joined = words(page, plan->step_count);
        for (uint32_t k = 0; k < plan->step_count && !page->failed; ++k) {
                out->step_node[k] = plan->steps[k];
                out->step_joined[k] = plan->joined && plan->joined[k];
        }
}

static void explain_groups(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->group_count;

        out->group_count = count;
        out->group_ids = words(page, count);
        out->group_device = words(page, count);
        out->group_experts = words(page, count);
        out->group_places = words(page, count);
        out->group_resident = words(page, count);
        out->group_weights = words(page, count);
        for (uint32_t g = 0; g < count && !page->failed; ++g) {
                const struct hr_expert_group *group = &plan->groups[g];

                out->group_ids[g] = group->ids;
                out->group_device[g] = group->device;
                out->group_experts[g] = group->experts;
                out->group_places[g] = group->places;
                out->group_resident[g] = group->resident;
                out->group_weights[g] = group->member_count;
        }
}

/* ---- Memory per device ------------------------------------------------------------------------
 */

static void explain_memory(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;

        hr_plan_copies_bytes(plan, page->slots, out->copies_bytes);
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_STAGED || copy->back_staged)
                        out->device_staging[copy->device] +=
                                ((copy->bytes + 63) & ~UINT64_C(63)) * page->slots;
        }
}

static void explain_devices(struct page *page) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;
        uint32_t count = plan->device_count;

        out->device_names.names = texts(page, count);
        out->device_types = texts(page, count);
        out->memory_kinds = texts(page, count);
        out->device_splits = words(page, count);
        out->device_nodes = words(page, count);
        out->compute_bytes = longs(page, count);
        out->scratch_bytes = longs(page, count);
        out->copies_bytes = longs(page, count);
        out->device_staging = longs(page, count);
        if (page->failed)
                return;
        out->device_names.count = count;
        for (uint32_t d = 0; d < count; ++d) {
                const struct hr_device_props *props = &page->fleet->devices[d]->props;

                out->device_names.names[d] = props->name;
                out->device_types[d] = hr_device_type_name(props->type);
                out->memory_kinds[d] = props->kind->name;
                out->device_splits[d] = plan->device_splits[d];
                out->compute_bytes[d] = plan->compute_bytes[d];
                out->scratch_bytes[d] = plan->scratch_bytes[d];
        }
        for (uint32_t i = 0; i < plan->node_count; ++i) {
                int32_t device = plan->device[plan->leaf_count + i];

                if (device >= 0)
                        ++out->device_nodes[device];
        }
        explain_memory(page);
}

/* ---- The whole --------------------------------------------------------------------------------
 */

static hr_status explain(struct page *page, struct hr_diag *diag) {
        const struct hr_plan *plan = page->plan;
        struct hr_explanation *out = page->out;

        *out = (struct hr_explanation){
                .rules = plan->options.rules == HR_RULES_GGML ? "ggml" : "headrace",
                .copies_reason = page->slots < page->planned ? "memory" : plan->copies_reason,
                .uploads = plan->arrival,
                .leaf_count = plan->leaf_count,
                .node_count = plan->node_count,
                .n_copies = page->slots,
                .planned_copies = page->planned,
                .fallback_nodes = plan->fallback_nodes,
                .copied_bytes = plan->copied_bytes,
                .staging_bytes = plan->staging_bytes * page->slots,
        };
        hr_arena_init(&out->arena, 0);
        if (page->graph->leaf_count != plan->leaf_count ||
            page->graph->node_count != plan->node_count ||
            page->fleet->device_count != plan->device_count)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "PLAN",
                                      "the plan was made for another graph or fleet");
        name_fixed_lists(page);
        out->rule_count = words(page, HR_RULE_COUNT);
        if (!page->failed)
                memcpy(out->rule_count, plan->rule_count, sizeof plan->rule_count);
        explain_devices(page);
        explain_tensors(page);
        explain_splits(page);
        explain_steps(page);
        explain_copies(page);
        explain_groups(page);
        if (!page->failed)
                return HR_OK;
        hr_explanation_deinit(out);
        return hr_fail(diag, HR_E_EXHAUSTED, "memory for the explanation of a plan");
}

hr_status hr_plan_explain(const struct hr_plan *plan, const struct hr_plan_request *request,
                          struct hr_diag *diag, struct hr_explanation *ret_explanation) {
        struct hr_explanation explanation;
        struct page page = {.plan = plan,
                            .graph = request->graph,
                            .fleet = request->fleet,
                            .slots = plan->n_copies,
                            .planned = plan->n_copies,
                            .out = &explanation};

        HR_TRY(explain(&page, diag));
        *ret_explanation = explanation;
        return HR_OK;
}

/* What the pipeline holds, which with fewer slots is less than was planned. */
static void explain_held(const struct hr_pipeline *pipeline, struct hr_explanation *explanation) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t d = 0; d < plan->device_count; ++d)
                explanation->scratch_bytes[d] = 0;
        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                for (uint32_t s = 0; s < plan->split_count; ++s) {
                        const struct hr_program *program = pipeline->slots[slot].programs[s];

                        if (program)
                                explanation->scratch_bytes[plan->splits[s].device] +=
                                        program->scratch_bytes;
                }
        }
        for (uint32_t d = 0; d < plan->device_count; ++d)
                explanation->compute_bytes[d] =
                        hr_pipeline_bytes(pipeline, d) - explanation->scratch_bytes[d];
}

static hr_status explain_uses(const struct hr_pipeline *pipeline,
                              struct hr_explanation *explanation, struct hr_diag *diag) {
        uint64_t total = 0, *uses;

        for (uint32_t g = 0; g < explanation->group_count; ++g)
                total += explanation->group_experts[g];
        uses = hr_arena_alloc(&explanation->arena, total * sizeof *uses, 8);
        if (!uses || total > UINT32_MAX)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the explanation of a plan");
        explanation->group_uses = uses;
        explanation->group_uses_count = (uint32_t) total;
        for (uint32_t g = 0; g < explanation->group_count; ++g) {
                const struct hr_expert_cache *cache = &pipeline->expert_caches[g];

                for (uint32_t e = 0; e < explanation->group_experts[g]; ++e)
                        *uses++ = atomic_load_explicit(&cache->uses[e], memory_order_relaxed);
        }
        return HR_OK;
}

hr_status hr_pipeline_explain(const struct hr_pipeline *pipeline, struct hr_diag *diag,
                              struct hr_explanation *ret_explanation) {
        struct hr_explanation explanation;
        struct page page = {.plan = pipeline->plan,
                            .graph = pipeline->graph,
                            .fleet = pipeline->fleet,
                            .slots = pipeline->slot_count,
                            .planned = pipeline->planned_copies,
                            .out = &explanation};
        hr_status status;

        HR_TRY(explain(&page, diag));
        explain_held(pipeline, &explanation);
        status = explain_uses(pipeline, &explanation, diag);
        if (status != HR_OK) {
                hr_explanation_deinit(&explanation);
                return status;
        }
        *ret_explanation = explanation;
        return HR_OK;
}

void hr_explanation_deinit(struct hr_explanation *explanation) {
        hr_arena_deinit(&explanation->arena);
        *explanation = (struct hr_explanation){0};
}
