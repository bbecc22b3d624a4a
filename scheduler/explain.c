/*
 * A plan as text for people: splits with their nodes, devices and causes, copies, memory, rules.
 *
 * One writer appends to a growing buffer; the first failed allocation is remembered and reported at
 * the end.
 */
#include "scheduler/exec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct page {
        const struct hr_plan *plan;
        const struct hr_graph *graph;
        const struct hr_fleet *fleet;
        char *text;
        size_t bytes, capacity;
        bool failed;
};

HR_PRINTF(2, 3)
static void print(struct page *page, const char *format, ...) {
        va_list args;
        int length;

        if (page->failed)
                return;
        if (page->capacity - page->bytes < 1024) {
                size_t wanted = page->capacity ? page->capacity * 2 : 8192;
                char *larger = realloc(page->text, wanted);

                if (!larger) {
                        page->failed = true;
                        return;
                }
                page->text = larger;
                page->capacity = wanted;
        }
        va_start(args, format);
        length = vsnprintf(page->text + page->bytes, page->capacity - page->bytes, format, args);
        va_end(args);
        HR_ASSERT(length >= 0);
        page->bytes += HR_MIN((size_t) length, page->capacity - page->bytes - 1);
}

static const char *device_name(const struct page *page, int64_t device) {
        return device < 0 ? "-" : page->fleet->devices[device]->props.name;
}

/* "12 blk.0.attn_q" */
static void print_tensor(struct page *page, uint32_t tensor) {
        size_t bytes = 0;
        const char *name = hr_graph_name(page->graph, tensor, &bytes);

        print(page, "%u", tensor);
        if (bytes)
                print(page, " %.*s", (int) HR_MIN(bytes, (size_t) 80), name);
}

static void print_place(struct page *page, const struct hr_place *place) {
        switch (place->where) {
        case HR_WHERE_NONE:
                print(page, "no memory");
                break;
        case HR_WHERE_SHARED:
                print(page, "at %" PRIu64, place->offset);
                break;
        case HR_WHERE_SLOT:
                print(page, "at %" PRIu64 " of each slot", place->offset);
                break;
        case HR_WHERE_HOME:
                print(page, "home");
                break;
        case HR_WHERE_STAGING:
                print(page, "staging");
                break;
        }
}

static void print_summary(struct page *page) {
        const struct hr_plan *plan = page->plan;

        print(page, "plan: %u leaves, %u nodes, %u splits, %u copies (%s), rules %s\n",
              plan->leaf_count, plan->node_count, plan->split_count, plan->n_copies,
              plan->copies_reason, plan->options.rules == HR_RULES_GGML ? "ggml" : "headrace");
        print(page, "copied between memories per run: %" PRIu64 " bytes; fallback nodes: %u\n",
              plan->copied_bytes, plan->fallback_nodes);
        for (uint32_t d = 0; d < plan->device_count; ++d)
                print(page,
                      "device %u %s: %u splits, %" PRIu64 " bytes of compute memory, %" PRIu64
                      " of scratch\n",
                      d, device_name(page, d), plan->device_splits[d], plan->compute_bytes[d],
                      plan->scratch_bytes[d]);
        if (plan->staging_bytes)
                print(page, "staging: %" PRIu64 " bytes per slot\n", plan->staging_bytes);
        print(page, "rules:");
        for (int rule = 0; rule < HR_RULE_COUNT; ++rule) {
                if (plan->rule_count[rule])
                        print(page, " %s %u", hr_rule_name((hr_rule) rule), plan->rule_count[rule]);
        }
        print(page, "\n");
}

static void print_leaves(struct page *page) {
        const struct hr_plan *plan = page->plan;
        char cause[32];

        for (uint32_t i = 0; i < plan->leaf_count; ++i) {
                print(page, "leaf ");
                print_tensor(page, i);
                print(page, ": %s, %s, %" PRIu64 " bytes, ", device_name(page, plan->device[i]),
                      hr_cause_name(plan->cause[i], cause, sizeof cause), plan->span[i]);
                print_place(page, &plan->place[i]);
                print(page, "\n");
        }
}

static const char *method_name(hr_copy_method method) {
        static const char *const names[] = {
                [HR_COPY_INPUT] = "from the run",
                [HR_COPY_CONSTANT] = "constant, once",
                [HR_COPY_HOST_WEIGHT] = "from host memory",
                [HR_COPY_EXPERTS] = "used experts from host memory",
                [HR_COPY_DIRECT] = "copied",
                [HR_COPY_STAGED] = "copied through host memory",
        };

        return names[method];
}

static void print_inputs(struct page *page, const struct hr_plan_split *split) {
        const struct hr_plan *plan = page->plan;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy =
                        &plan->copies[plan->inputs[split->input_first + i]];

                print(page, "  input ");
                print_tensor(page, copy->tensor);
                print(page, ": %s", method_name(copy->method));
                if (copy->source_device != HR_NO_INDEX)
                        print(page, " by %s", device_name(page, copy->source_device));
                print(page, ", %" PRIu64 " bytes, ", copy->bytes);
                print_place(page, &copy->place);
                print(page, "%s\n", copy->write_back ? ", carried back" : "");
        }
}

/* Passes of more than one node, and an order that is not the graph's. */
static void print_steps(struct page *page, const struct hr_plan_split *split) {
        const struct hr_plan *plan = page->plan;
        uint32_t end = split->step_first + split->step_count;
        bool moved = false;

        for (uint32_t k = split->step_first; k + 1 < end; ++k)
                moved = moved || plan->steps[k] > plan->steps[k + 1];
        if (moved) {
                print(page, "  order:");
                for (uint32_t k = split->step_first; k < end; ++k)
                        print(page, " %u", plan->steps[k]);
                print(page, "\n");
        }
        for (uint32_t k = split->step_first; plan->joined && k < end; ++k) {
                if (!plan->joined[k])
                        continue;
                print(page, "  one pass:");
                for (;; ++k) {
                        uint32_t id = plan->leaf_count + plan->steps[k];

                        print(page, " %u %s", plan->steps[k],
                              hr_op_name(page->graph->tensors[id].op));
                        if (!plan->joined[k])
                                break;
                        print(page, ",");
                }
                print(page, "\n");
        }
}

static void print_split(struct page *page, uint32_t s) {
        const struct hr_plan *plan = page->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        char cause[32];

        print(page, "split %u on %s: nodes %u..%u, %s, %u inputs\n", s,
              device_name(page, split->device), split->start, split->end,
              hr_split_reason_name(split->reason), split->input_count);
        print_inputs(page, split);
        print_steps(page, split);
        for (uint32_t i = split->start; i < split->end; ++i) {
                uint32_t id = plan->leaf_count + i;

                print(page, "  node %u ", i);
                print_tensor(page, id);
                print(page, " %s: %s, %s, ", hr_op_name(page->graph->tensors[id].op),
                      device_name(page, plan->device[id]),
                      hr_cause_name(plan->cause[id], cause, sizeof cause));
                if (plan->root[id] != id)
                        print(page, "in %u\n", plan->root[id]);
                else {
                        print_place(page, &plan->place[id]);
                        print(page, ", %" PRIu64 " bytes\n", plan->span[id]);
                }
        }
}

hr_status hr_plan_explain(const struct hr_plan *plan, const struct hr_graph *graph,
                          const struct hr_fleet *fleet, struct hr_diag *diag, char **ret_text,
                          size_t *ret_bytes) {
        struct page page = {.plan = plan, .graph = graph, .fleet = fleet};

        if (graph->leaf_count != plan->leaf_count || graph->node_count != plan->node_count ||
            fleet->device_count != plan->device_count)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "PLAN",
                                      "the plan was made for another graph or fleet");
        print_summary(&page);
        print_leaves(&page);
        for (uint32_t s = 0; s < plan->split_count; ++s)
                print_split(&page, s);
        if (page.failed) {
                free(page.text);
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the explanation of a plan");
        }
        *ret_text = page.text;
        *ret_bytes = page.bytes;
        return HR_OK;
}
