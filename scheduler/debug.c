/*
 * What the scheduler decided, line by line, for logs: which device each node and its sources have
 * and why; the splits and their inputs; the copies. explain.c gives the same as data, and more.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "scheduler/exec.h"

struct page {
        FILE *stream;
        const struct hr_plan *plan;
        const struct hr_graph *graph;
        const struct hr_fleet *fleet;
};

static const char *device_name(const struct page *page, int64_t device) {
        return device < 0 ? "-" : page->fleet->devices[device]->props.name;
}

/* The name, or the id of a tensor without. Names are the client's: what would break a line does not
 * come through. */
static void print_name(const struct page *page, uint32_t tensor) {
        size_t bytes = 0;
        const char *name = hr_graph_name(page->graph, tensor, &bytes);

        if (bytes == 0)
                fprintf(page->stream, "#%u", tensor);
        for (size_t i = 0; i < HR_MIN(bytes, (size_t) 80); ++i)
                fputc((unsigned char) name[i] < ' ' ? '?' : name[i], page->stream);
}

static void print_tensor(const struct page *page, uint32_t tensor) {
        char cause[32];

        print_name(page, tensor);
        fprintf(page->stream, " (%" PRIu64 " bytes) [%s %s]", page->plan->span[tensor],
                device_name(page, page->plan->device[tensor]),
                hr_cause_name(page->plan->cause[tensor], cause, sizeof cause));
}

static void print_node(const struct page *page, uint32_t node) {
        uint32_t id = page->plan->leaf_count + node;
        const struct hr_tensor *t = &page->graph->tensors[id];

        if (hr_op_is_view(t->op))
                return;
        fprintf(page->stream, "node %u %s ", node, hr_op_name(t->op));
        print_tensor(page, id);
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = hr_graph_source(page->graph, t, i);

                fputs(i ? ", " : ": ", page->stream);
                if (source == HR_TENSOR_NONE)
                        fputs("-", page->stream);
                else
                        print_tensor(page, source);
        }
        fputc('\n', page->stream);
}

static void print_split(const struct page *page, uint32_t s) {
        const struct hr_plan_split *split = &page->plan->splits[s];

        fprintf(page->stream, "split %u on %s (%s): nodes %u to %u, %u inputs", s,
                device_name(page, split->device), hr_split_reason_name(split->reason), split->start,
                split->end, split->input_count);
        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy =
                        &page->plan->copies[page->plan->inputs[split->input_first + i]];

                fputs(i ? " [" : ": [", page->stream);
                print_name(page, copy->tensor);
                fprintf(page->stream, " %" PRIu64 " bytes]", copy->bytes);
        }
        fputc('\n', page->stream);
}

static void print_copy(const struct page *page, const struct hr_plan_copy *copy) {
        static const char *const methods[] = {
                [HR_COPY_INPUT] = "from the run",
                [HR_COPY_CONSTANT] = "once, when the graph is bound",
                [HR_COPY_HOST_WEIGHT] = "from host memory",
                [HR_COPY_EXPERTS] = "used experts, from host memory",
                [HR_COPY_DIRECT] = "directly",
                [HR_COPY_STAGED] = "through host memory",
        };

        fputs("copy ", page->stream);
        print_name(page, copy->tensor);
        fprintf(page->stream, " to %s for split %u: %" PRIu64 " bytes, %s",
                device_name(page, copy->device), copy->split, copy->bytes, methods[copy->method]);
        if (copy->source_device != HR_NO_INDEX)
                fprintf(page->stream, " by %s", device_name(page, copy->source_device));
        fprintf(page->stream, "%s%s\n",
                copy->place.where == HR_WHERE_SLOT ? ", one in each slot" : "",
                copy->write_back ? ", and back" : "");
}

static void print_parts(const struct page *page, uint32_t parts) {
        const struct hr_plan *plan = page->plan;

        for (uint32_t s = 0; s < plan->split_count; ++s) {
                if (parts & HR_DEBUG_SPLITS)
                        print_split(page, s);
                for (uint32_t n = plan->splits[s].start;
                     (parts & HR_DEBUG_ASSIGNMENTS) && n < plan->splits[s].end; ++n)
                        print_node(page, n);
        }
        for (uint32_t c = 0; (parts & HR_DEBUG_COPIES) && c < plan->copy_count; ++c)
                print_copy(page, &plan->copies[c]);
        if (parts & HR_DEBUG_COPIES)
                fprintf(page->stream,
                        "%u slots (%s), %" PRIu64 " bytes copied between memories per run\n",
                        plan->n_copies, plan->copies_reason, plan->copied_bytes);
}

hr_status hr_plan_debug(const struct hr_plan *plan, const struct hr_graph *graph,
                        const struct hr_fleet *fleet, uint32_t parts, struct hr_diag *diag,
                        char **ret_text, size_t *ret_bytes) {
        struct page page = {.plan = plan, .graph = graph, .fleet = fleet};
        char *text = NULL;
        size_t bytes = 0;

        if (graph->leaf_count != plan->leaf_count || graph->node_count != plan->node_count ||
            fleet->device_count != plan->device_count)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "PLAN",
                                      "the plan was made for another graph or fleet");
        page.stream = open_memstream(&text, &bytes);
        if (page.stream) {
                print_parts(&page, parts);
                if (fclose(page.stream) == 0) {
                        *ret_text = text;
                        *ret_bytes = bytes;
                        return HR_OK;
                }
        }
        free(text);
        return hr_fail(diag, HR_E_EXHAUSTED, "memory for what is to be printed of a plan");
}
