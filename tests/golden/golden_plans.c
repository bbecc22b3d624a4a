/*
 * Compares the splitter under rules = ggml with recorded reference plans.
 *
 *   golden_plans [-v] [FILE | FOLDER]...        default: data/plans beside the sources
 *
 * The recorded masks of support and offload go straight into the planning input, so the graphs need
 * not be valid ones. For each failing case the first difference is printed. Then: in how many cases
 * our compute memory is at most the recorded one, how many graphs each rule of rules = headrace
 * touches, whether untouched graphs have the reference's plan, and whether an accelerator more that
 * gets no node changes a byte of any plan. The format is in data/plans/README.md.
 */
#include "tests/golden/plans_file.h"
#include "tests/golden/plans_idle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct totals {
        uint32_t passed, failed, fit, fit_of, touched[HR_RULE_COUNT], untouched, untouched_equal;
        uint32_t headrace_errors, unsound, idle_same, idle_of;
        bool verbose;
};

/* ---- A plan as recorded lines
 * ----------------------------------------------------------------- */

static void print_assignment(const struct hr_plan *plan, const struct hr_graph *graph,
                             struct plan_lines *out) {
        char line[PLAN_LINE_BYTES], cause[32];

        for (uint32_t i = 0; i < graph->leaf_count + graph->node_count; ++i) {
                snprintf(line, sizeof line, "%c %u %d %s", i < graph->leaf_count ? 'L' : 'N', i,
                         plan->device[i], hr_cause_name(plan->cause[i], cause, sizeof cause));
                plan_lines_add(out, line);
        }
}

/* Appends " id" to a line of any length. */
static void append_id(char **line, uint32_t id) {
        size_t length = strlen(*line);

        *line = plan_need(realloc(*line, length + 16));
        snprintf(*line + length, 16, " %u", id);
}

static void print_splits(const struct hr_plan *plan, struct plan_lines *out) {
        char line[PLAN_LINE_BYTES];

        snprintf(line, sizeof line, "splits %u", plan->split_count);
        plan_lines_add(out, line);
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];

                snprintf(line, sizeof line, "S %u %u %u %u %s %u", s, split->device, split->start,
                         split->end, hr_split_reason_name(split->reason), split->input_count);
                plan_lines_add(out, line);
                for (uint32_t i = 0; i < split->input_count; ++i)
                        append_id(&out->items[out->count - 1],
                                  plan->copies[plan->inputs[split->input_first + i]].tensor);
        }
}

static void print_replacements(const struct hr_plan *plan, const struct plan_problem *problem,
                               struct plan_lines *out) {
        const struct hr_graph *graph = problem->graph;
        char line[PLAN_LINE_BYTES];

        for (uint32_t n = 0; n < graph->node_count; ++n) {
                for (uint32_t p = plan->source_start[n]; p < plan->source_start[n + 1]; ++p) {
                        if (plan->source_copy[p] == HR_NO_COPY)
                                continue;
                        snprintf(line, sizeof line, "R %u %u %u %u %u", graph->leaf_count + n,
                                 p - plan->source_start[n],
                                 plan->copies[plan->source_copy[p]].tensor,
                                 plan->copies[plan->source_copy[p]].device,
                                 problem->in.current_slot);
                        plan_lines_add(out, line);
                }
        }
}

/* Graph inputs, and the flags that keeping them in several copies sets: on a view, also on its
 * base, and on that one's. */
static void print_inputs(const struct hr_plan *plan, const struct hr_graph *graph,
                         struct plan_lines *out) {
        uint32_t *flags = plan_need(calloc(plan->tensor_count + 1, sizeof *flags));
        char line[PLAN_LINE_BYTES];

        if (plan->graph_input_count)
                plan_lines_add(out, "G");
        for (uint32_t i = 0; i < plan->graph_input_count; ++i) {
                uint32_t id = plan->graph_inputs[i];

                append_id(&out->items[out->count - 1], id);
                flags[id] |= HR_TENSOR_INPUT;
                for (; id != HR_TENSOR_NONE; id = graph->tensors[id].view_base)
                        flags[id] |= HR_TENSOR_OUTPUT;
        }
        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                uint32_t now = graph->tensors[i].flags | flags[i];

                if (now == graph->tensors[i].flags)
                        continue;
                snprintf(line, sizeof line, "F %u %x", i, now);
                plan_lines_add(out, line);
        }
        free(flags);
}

/* The first line in which the two differ, or UINT32_MAX. */
static uint32_t first_difference(const struct plan_lines *ours, const struct plan_lines *theirs) {
        uint32_t most = HR_MAX(ours->count, theirs->count);

        for (uint32_t i = 0; i < most; ++i) {
                if (i >= ours->count || i >= theirs->count ||
                    strcmp(ours->items[i], theirs->items[i]) != 0)
                        return i;
        }
        return UINT32_MAX;
}

/* Without what keeping inputs in several copies adds to a recorded plan: the graph inputs, their
 * flags, and the cause that takes the place of another. */
static void forget_copies(const struct plan_lines *theirs, struct plan_lines *ours,
                          struct plan_lines *ret_theirs) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < theirs->count; ++i) {
                const char *line = theirs->items[i];
                size_t length = strlen(line);

                if (line[0] == 'G' || line[0] == 'F')
                        continue;
                if (length > 6 && strcmp(line + length - 6, " 4.cpy") == 0 && kept < ours->count &&
                    strncmp(line, ours->items[kept], length - 5) == 0)
                        line = ours->items[kept];
                plan_lines_add(ret_theirs, line);
                ++kept;
        }
}

static bool same_plan(const struct hr_plan *plan, const struct plan_problem *problem,
                      const struct plan_lines *theirs, const char *name) {
        struct plan_lines ours = {0}, trimmed = {0};
        uint32_t at;

        print_assignment(plan, problem->graph, &ours);
        print_splits(plan, &ours);
        print_replacements(plan, problem, &ours);
        print_inputs(plan, problem->graph, &ours);
        if (problem->in.options.rules == HR_RULES_HEADRACE) {
                forget_copies(theirs, &ours, &trimmed);
                theirs = &trimmed;
        }
        at = first_difference(&ours, theirs);
        if (at != UINT32_MAX && name)
                printf("%s: ours \"%s\", recorded \"%s\"\n", name,
                       at < ours.count ? ours.items[at] : "(end)",
                       at < theirs->count ? theirs->items[at] : "(end)");
        plan_lines_clear(&ours);
        plan_lines_clear(&trimmed);
        return at == UINT32_MAX;
}

/* ---- Cases
 * ------------------------------------------------------------------------------------ */

/* Memory of one kind is compared as a whole: who is charged among its devices is a convention. */
static void compare_bytes(const struct hr_plan *plan, const struct plan_problem *problem,
                          const struct plan_record *record, struct totals *totals) {
        bool fits = true;
        uint64_t *theirs = plan_need(calloc(problem->in.kind_count + 1, sizeof *theirs));
        uint64_t *ours = plan_need(calloc(problem->in.kind_count + 1, sizeof *ours));

        for (uint32_t i = 0; i < record->bytes.count; ++i) {
                unsigned device;
                uint64_t bytes;

                if (sscanf(record->bytes.items[i], "A %u %" SCNu64, &device, &bytes) == 2 &&
                    device < problem->in.device_count)
                        theirs[problem->devices[device].kind] += bytes;
        }
        for (uint32_t d = 0; d < problem->in.device_count; ++d)
                ours[problem->devices[d].kind] += plan->compute_bytes[d];
        for (uint32_t k = 0; k < problem->in.kind_count; ++k) {
                if (ours[k] > theirs[k]) {
                        fits = false;
                        if (totals->verbose)
                                printf("%s: kind %u takes %" PRIu64 " bytes, recorded %" PRIu64
                                       "\n",
                                       record->name, k, ours[k], theirs[k]);
                }
        }
        totals->fit += fits;
        ++totals->fit_of;
        free(theirs);
        free(ours);
}

static void try_headrace(struct plan_problem *problem, const struct plan_record *record,
                         struct totals *totals) {
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        const char *difference;
        bool touched = false;
        hr_status status;

        problem->in.options.rules = HR_RULES_HEADRACE;
        status = hr_plan_make(&problem->in, &diag, &plan);
        if (status != HR_OK) {
                ++totals->headrace_errors;
                if (status == HR_E_INTERNAL || totals->verbose)
                        printf("%s (headrace): %s: %s\n", record->name, hr_status_name(status),
                               diag.words);
                if (status == HR_E_INTERNAL)
                        ++totals->failed;
                return;
        }
        for (int rule = 0; rule < HR_RULE_COUNT; ++rule) {
                totals->touched[rule] += plan->rule_count[rule] != 0;
                touched = touched || plan->rule_count[rule] != 0;
        }
        difference = plan_idle_difference(problem, plan);
        ++totals->idle_of;
        totals->idle_same += !difference;
        if (difference)
                printf("%s: an idle accelerator changes %s\n", record->name, difference);
        if (!touched && record->plan.count) {
                ++totals->untouched;
                totals->untouched_equal += same_plan(plan, problem, &record->plan, record->name);
        }
        hr_plan_unref(plan);
}

static bool run_case(const struct plan_record *record, struct totals *totals) {
        struct plan_problem problem;
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        hr_status status;
        bool passed;

        if (plan_problem_read(&problem, record, &diag) != HR_OK) {
                printf("%s: %s: %s\n", record->path, record->name, diag.words);
                plan_problem_clear(&problem);
                return false;
        }
        status = hr_plan_make(&problem.in, &diag, &plan);
        if (record->aborts && !record->abort_has_plan) {
                passed = status != HR_E_INTERNAL;
                if (!passed)
                        printf("%s: %s\n", record->name, diag.words);
        } else if (status != HR_OK) {
                printf("%s: %s: %s\n", record->name, hr_status_name(status), diag.words);
                passed = false;
        } else {
                passed = same_plan(plan, &problem, &record->plan, record->name);
                if (record->allocated)
                        compare_bytes(plan, &problem, record, totals);
        }
        totals->unsound += plan && plan->fault.status != HR_OK;
        if (plan && plan->fault.status != HR_OK && totals->verbose)
                printf("%s: not sound: %s\n", record->name, plan->fault.words);
        hr_plan_unref(plan);
        try_headrace(&problem, record, totals);
        plan_problem_clear(&problem);
        return passed;
}

static void count_case(const struct plan_record *record, void *arg) {
        struct totals *totals = arg;

        if (run_case(record, totals))
                ++totals->passed;
        else
                ++totals->failed;
}

int main(int argc, char **argv) {
        struct totals totals = {0};
        int first = 1;

        if (argc > 1 && strcmp(argv[1], "-v") == 0) {
                totals.verbose = true;
                ++first;
        }
        for (int i = first; i < argc; ++i)
                totals.failed += plan_records_read(argv[i], count_case, &totals);
        if (first >= argc)
                totals.failed += plan_records_read(HR_GOLDEN_PLANS, count_case, &totals);
        printf("compute memory at most the recorded: %u of %u cases (%.1f %%)\n", totals.fit,
               totals.fit_of, totals.fit_of ? 100.0 * totals.fit / totals.fit_of : 0.0);
        /* Of other files, which may be few, the share is only told. */
        if (first >= argc && totals.fit * 100 < totals.fit_of * 95)
                ++totals.failed;
        printf("rules = ggml: %u plans would read what is not there, or no longer\n",
               totals.unsound);
        printf("rules = headrace: %u graphs refused; untouched graphs with the recorded plan: %u "
               "of %u; touched by",
               totals.headrace_errors, totals.untouched_equal, totals.untouched);
        for (int rule = 0; rule < HR_RULE_COUNT; ++rule)
                printf(" %s %u", hr_rule_name((hr_rule) rule), totals.touched[rule]);
        printf("\nan accelerator more without a node changes nothing in %u of %u plans",
               totals.idle_same, totals.idle_of);
        if (totals.untouched_equal != totals.untouched || totals.idle_same != totals.idle_of)
                ++totals.failed;
        printf("\n%u passed, %u failed\n", totals.passed, totals.failed);
        return totals.failed != 0;
}
