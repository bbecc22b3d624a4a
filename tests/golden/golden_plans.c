/*
 * Compares the splitter under rules = ggml with recorded reference plans.
 *
 *   golden_plans [-v] [FILE | FOLDER]...        default: data/plans beside the sources
 *
 * The recorded masks of support and offload go straight into the planning input, so the graphs need
 * not be valid ones. For each failing case the first difference is printed. Then: in how many cases
 * our compute memory is at most the recorded one, how many graphs each rule of rules = headrace
 * touches, and whether untouched graphs have the reference's plan. The format is in
 * data/plans/README.md.
 */
#include "scheduler/plan.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LINE_BYTES 1100
#define OP_CUSTOM 900 /* an op outside op.def */

struct lines {
        char **items;
        uint32_t count, capacity;
};

struct recorded {
        struct lines facts; /* from `case` to `plan` or `abort` */
        struct lines plan;  /* L N S R G F and splits lines */
        struct lines bytes; /* A lines */
        char name[256];
        bool aborts, abort_has_plan, allocated;
        uint32_t copies, slot, leafs, nodes, extras;
};

struct totals {
        uint32_t passed, failed, fit, fit_of, touched[HR_RULE_COUNT], untouched, untouched_equal;
        uint32_t headrace_errors, unsound;
        bool verbose;
};

static void *need(void *pointer) {
        if (!pointer) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return pointer;
}

static void lines_add(struct lines *lines, const char *line) {
        if (lines->count == lines->capacity) {
                lines->capacity = lines->capacity ? lines->capacity * 2 : 64;
                lines->items = need(realloc(lines->items, lines->capacity * sizeof(char *)));
        }
        lines->items[lines->count++] = need(strdup(line));
}

static void lines_clear(struct lines *lines) {
        for (uint32_t i = 0; i < lines->count; ++i)
                free(lines->items[i]);
        free(lines->items);
        memset(lines, 0, sizeof *lines);
}

/* The value of key=... among the fields from `from` on, or NULL. */
static const char *field(char **words, int count, int from, const char *key) {
        size_t length = strlen(key);

        for (int i = from; i < count; ++i) {
                if (strncmp(words[i], key, length) == 0 && words[i][length] == '=')
                        return words[i] + length + 1;
        }
        return NULL;
}

static unsigned long number(const char *text, int base, unsigned long otherwise) {
        return text ? strtoul(text, NULL, base) : otherwise;
}

/* Splits a line at blanks, in place. */
static int words_of(char *line, char **words, int most) {
        int count = 0;
        char *rest = NULL;

        for (char *word = strtok_r(line, " \n", &rest); word && count < most;
             word = strtok_r(NULL, " \n", &rest))
                words[count++] = word;
        return count;
}

/* ---- The case as a planning input -------------------------------------------------------------
 */

struct problem {
        struct hr_plan_input in;
        struct hr_graph *graph;
        struct hr_plan_device *devices;
        struct hr_plan_kind *kinds;
        struct hr_plan_buffer *buffers;
        uint64_t *reads, *supports, *offload;
        uint32_t *tensor_buffer;
        int32_t *pins;
        uint32_t words, sources;
};

static void problem_clear(struct problem *problem) {
        hr_graph_unref(problem->graph);
        free(problem->devices);
        free(problem->kinds);
        free(problem->buffers);
        free(problem->reads);
        free(problem->supports);
        free(problem->offload);
        free(problem->tensor_buffer);
        free(problem->pins);
}

static void mask_of(const char *hex, uint64_t *words, uint32_t count) {
        size_t length = hex ? strlen(hex) : 0;

        memset(words, 0, count * sizeof *words);
        for (size_t i = 0; i < length; ++i) {
                char digit[2] = {hex[length - 1 - i], 0};

                if (i / 16 < count)
                        words[i / 16] |= (uint64_t) strtoul(digit, NULL, 16) << (i % 16 * 4);
        }
}

static hr_device_type device_type(const char *name) {
        for (int type = HR_DEVICE_CPU; type <= HR_DEVICE_ACCEL; ++type) {
                if (name && strcmp(name, hr_device_type_name((hr_device_type) type)) == 0)
                        return (hr_device_type) type;
        }
        return HR_DEVICE_ACCEL;
}

static uint32_t count_lines(const struct lines *lines, const char *prefix) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < lines->count; ++i)
                count += strncmp(lines->items[i], prefix, strlen(prefix)) == 0;
        return count;
}

static void read_system(struct problem *problem, const struct lines *facts) {
        uint32_t device = 0, kind = 0, buffer = 0, words;

        problem->in.device_count = count_lines(facts, "backend ");
        problem->in.kind_count = count_lines(facts, "buft ");
        problem->in.buffer_count = count_lines(facts, "buffer ");
        words = hr_bit_words(problem->in.kind_count);
        problem->devices = need(calloc(problem->in.device_count + 1, sizeof *problem->devices));
        problem->kinds = need(calloc(problem->in.kind_count + 1, sizeof *problem->kinds));
        problem->buffers = need(calloc(problem->in.buffer_count + 1, sizeof *problem->buffers));
        problem->reads = need(
                calloc((size_t) (problem->in.device_count + 1) * (words + 1), sizeof(uint64_t)));
        for (uint32_t i = 0; i < facts->count; ++i) {
                char line[LINE_BYTES], *word[64] = {0};
                int count;

                snprintf(line, sizeof line, "%s", facts->items[i]);
                count = words_of(line, word, 64);
                if (count == 0)
                        continue;
                if (strcmp(word[0], "buft") == 0) {
                        problem->kinds[kind].host = number(field(word, count, 3, "host"), 10, 0);
                        problem->kinds[kind++].alignment =
                                (uint32_t) number(field(word, count, 3, "align"), 10, 32);
                } else if (strcmp(word[0], "backend") == 0) {
                        problem->devices[device].type = device_type(field(word, count, 3, "type"));
                        problem->devices[device].kind =
                                (uint32_t) number(field(word, count, 3, "buft"), 10, 0);
                        mask_of(field(word, count, 3, "sup"),
                                problem->reads + (size_t) device++ * words, words);
                } else if (strcmp(word[0], "buffer") == 0) {
                        const char *usage = field(word, count, 2, "usage");

                        problem->buffers[buffer].kind =
                                (uint32_t) number(field(word, count, 2, "buft"), 10, 0);
                        problem->buffers[buffer++].usage =
                                strcmp(usage, "weights") == 0   ? HR_USAGE_WEIGHTS
                                : strcmp(usage, "compute") == 0 ? HR_USAGE_COMPUTE
                                                                : HR_USAGE_ANY;
                } else if (strcmp(word[0], "sched") == 0) {
                        problem->in.options.n_copies =
                                (uint32_t) number(field(word, count, 1, "copies"), 10, 1);
                        problem->in.current_slot =
                                (uint32_t) number(field(word, count, 1, "cur"), 10, 0);
                        problem->in.options.op_offload =
                                number(field(word, count, 1, "offload"), 10, 0);
                }
        }
}

static void read_shape(struct hr_tensor *tensor, char **word, int count) {
        const char *strides = field(word, count, 9, "nb"), *view = field(word, count, 9, "v");
        int op = hr_op_from_name(word[3]), type = hr_type_from_name(word[4]);
        struct hr_diag diag = {0};

        tensor->op = op < 0 ? OP_CUSTOM : (uint32_t) op;
        tensor->type = type < 0 ? HR_TYPE_F32 : (uint32_t) type;
        for (int d = 0; d < HR_DIMS; ++d)
                tensor->ne[d] = strtoll(word[5 + d], NULL, 10);
        if (hr_tensor_set_contiguous(tensor, &diag) != HR_OK)
                fprintf(stderr, "%s: %s\n", word[2], diag.words);
        if (strides)
                sscanf(strides, "%" SCNu64 ",%" SCNu64 ",%" SCNu64 ",%" SCNu64, &tensor->nb[0],
                       &tensor->nb[1], &tensor->nb[2], &tensor->nb[3]);
        tensor->view_base = HR_TENSOR_NONE;
        if (view)
                sscanf(view, "%u:%" SCNu64, &tensor->view_base, &tensor->view_offset);
        tensor->flags = (uint32_t) number(field(word, count, 9, "f"), 16, 0);
}

static void read_sources(struct problem *problem, struct hr_tensor *tensor, const char *list) {
        char text[LINE_BYTES], *rest = NULL;

        tensor->source_first = problem->sources;
        if (!list)
                return;
        snprintf(text, sizeof text, "%s", list);
        for (char *item = strtok_r(text, ",", &rest); item; item = strtok_r(NULL, ",", &rest)) {
                problem->graph->sources[problem->sources++] =
                        strcmp(item, "-") == 0 ? HR_TENSOR_NONE
                                               : (uint32_t) strtoul(item, NULL, 10);
                ++tensor->source_count;
        }
}

static void read_tensor(struct problem *problem, char **word, int count) {
        uint32_t id = (uint32_t) strtoul(word[1], NULL, 10);
        const char *buffer, *pin;
        struct hr_tensor *tensor;

        if (id >= hr_graph_tensor_count(problem->graph))
                return;
        tensor = &problem->graph->tensors[id];
        read_shape(tensor, word, count);
        read_sources(problem, tensor, field(word, count, 9, "s"));
        buffer = field(word, count, 9, "b");
        pin = field(word, count, 9, "u");
        problem->tensor_buffer[id] = buffer ? (uint32_t) strtoul(buffer, NULL, 10) : HR_NO_BUFFER;
        problem->pins[id] = pin ? (int32_t) strtol(pin, NULL, 10) : HR_NO_PIN;
        mask_of(field(word, count, 9, "sup"), problem->supports + (size_t) id * problem->words,
                problem->words);
        mask_of(field(word, count, 9, "off"), problem->offload + (size_t) id * problem->words,
                problem->words);
        if (word[0][0] == 'l')
                tensor->leaf_kind = buffer                            ? HR_LEAF_WEIGHT
                                    : tensor->flags & HR_TENSOR_INPUT ? HR_LEAF_INPUT
                                                                      : HR_LEAF_NOT;
}

static uint32_t count_sources(const struct lines *facts) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < facts->count; ++i) {
                const char *list = strstr(facts->items[i], " s=");

                for (; list && *list && *list != '\n'; ++list)
                        count += *list == ',' || *list == '=';
        }
        return count;
}

static bool read_problem(struct problem *problem, const struct recorded *recorded) {
        struct hr_graph_sizes sizes = {.leaf_count = recorded->leafs,
                                       .node_count = recorded->nodes,
                                       .extra_count = recorded->extras,
                                       .source_count = count_sources(&recorded->facts)};
        struct hr_diag diag = {0};
        size_t count = (size_t) recorded->leafs + recorded->nodes + recorded->extras;

        memset(problem, 0, sizeof *problem);
        read_system(problem, &recorded->facts);
        problem->words = hr_bit_words(problem->in.device_count);
        if (hr_graph_new(&sizes, &diag, &problem->graph) != HR_OK)
                return false;
        problem->tensor_buffer = need(calloc(count + 1, sizeof(uint32_t)));
        problem->pins = need(calloc(count + 1, sizeof(int32_t)));
        problem->supports = need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        problem->offload = need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        for (uint32_t i = 0; i < recorded->facts.count; ++i) {
                char line[LINE_BYTES], *word[64] = {0};
                int words;

                if (!strchr("lnx", recorded->facts.items[i][0]) ||
                    recorded->facts.items[i][1] != ' ')
                        continue;
                snprintf(line, sizeof line, "%s", recorded->facts.items[i]);
                words = words_of(line, word, 64);
                if (words >= 9)
                        read_tensor(problem, word, words);
        }
        problem->in.graph = problem->graph;
        problem->in.devices = problem->devices;
        problem->in.kinds = problem->kinds;
        problem->in.buffers = problem->buffers;
        problem->in.reads = problem->reads;
        problem->in.supports = problem->supports;
        problem->in.offload = problem->offload;
        problem->in.tensor_buffer = problem->tensor_buffer;
        problem->in.pins = problem->pins;
        problem->in.options.rules = HR_RULES_GGML;
        return true;
}

/* ---- A plan as recorded lines -----------------------------------------------------------------
 */

static void print_assignment(const struct hr_plan *plan, const struct hr_graph *graph,
                             struct lines *out) {
        char line[LINE_BYTES], cause[32];

        for (uint32_t i = 0; i < graph->leaf_count + graph->node_count; ++i) {
                snprintf(line, sizeof line, "%c %u %d %s", i < graph->leaf_count ? 'L' : 'N', i,
                         plan->device[i], hr_cause_name(plan->cause[i], cause, sizeof cause));
                lines_add(out, line);
        }
}

/* Appends " id" to a line of any length. */
static void append_id(char **line, uint32_t id) {
        size_t length = strlen(*line);

        *line = need(realloc(*line, length + 16));
        snprintf(*line + length, 16, " %u", id);
}

static void print_splits(const struct hr_plan *plan, struct lines *out) {
        char line[LINE_BYTES];

        snprintf(line, sizeof line, "splits %u", plan->split_count);
        lines_add(out, line);
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];

                snprintf(line, sizeof line, "S %u %u %u %u %s %u", s, split->device, split->start,
                         split->end, hr_split_reason_name(split->reason), split->input_count);
                lines_add(out, line);
                for (uint32_t i = 0; i < split->input_count; ++i)
                        append_id(&out->items[out->count - 1],
                                  plan->copies[plan->inputs[split->input_first + i]].tensor);
        }
}

static void print_replacements(const struct hr_plan *plan, const struct problem *problem,
                               struct lines *out) {
        const struct hr_graph *graph = problem->graph;
        char line[LINE_BYTES];

        for (uint32_t n = 0; n < graph->node_count; ++n) {
                for (uint32_t p = plan->source_start[n]; p < plan->source_start[n + 1]; ++p) {
                        if (plan->source_copy[p] == HR_NO_COPY)
                                continue;
                        snprintf(line, sizeof line, "R %u %u %u %u %u", graph->leaf_count + n,
                                 p - plan->source_start[n],
                                 plan->copies[plan->source_copy[p]].tensor,
                                 plan->copies[plan->source_copy[p]].device,
                                 problem->in.current_slot);
                        lines_add(out, line);
                }
        }
}

/* Graph inputs, and the flags that keeping them in several copies sets: on a view, also on its
 * base. */
static void print_inputs(const struct hr_plan *plan, const struct hr_graph *graph,
                         struct lines *out) {
        uint32_t *flags = need(calloc(plan->tensor_count + 1, sizeof *flags));
        char line[LINE_BYTES];

        if (plan->graph_input_count)
                lines_add(out, "G");
        for (uint32_t i = 0; i < plan->graph_input_count; ++i) {
                uint32_t id = plan->graph_inputs[i], base = graph->tensors[id].view_base;

                append_id(&out->items[out->count - 1], id);
                flags[id] |= HR_TENSOR_INPUT | HR_TENSOR_OUTPUT;
                if (base != HR_TENSOR_NONE)
                        flags[base] |= HR_TENSOR_OUTPUT;
        }
        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                uint32_t now = graph->tensors[i].flags | flags[i];

                if (now == graph->tensors[i].flags)
                        continue;
                snprintf(line, sizeof line, "F %u %x", i, now);
                lines_add(out, line);
        }
        free(flags);
}

/* The first line in which the two differ, or UINT32_MAX. */
static uint32_t first_difference(const struct lines *ours, const struct lines *theirs) {
        uint32_t most = HR_MAX(ours->count, theirs->count);

        for (uint32_t i = 0; i < most; ++i) {
                if (i >= ours->count || i >= theirs->count ||
                    strcmp(ours->items[i], theirs->items[i]) != 0)
                        return i;
        }
        return UINT32_MAX;
}

static bool same_plan(const struct hr_plan *plan, const struct problem *problem,
                      const struct lines *theirs, const char *name) {
        struct lines ours = {0};
        uint32_t at;

        print_assignment(plan, problem->graph, &ours);
        print_splits(plan, &ours);
        print_replacements(plan, problem, &ours);
        print_inputs(plan, problem->graph, &ours);
        at = first_difference(&ours, theirs);
        if (at != UINT32_MAX && name)
                printf("%s: ours \"%s\", recorded \"%s\"\n", name,
                       at < ours.count ? ours.items[at] : "(end)",
                       at < theirs->count ? theirs->items[at] : "(end)");
        lines_clear(&ours);
        return at == UINT32_MAX;
}

/* ---- Cases ------------------------------------------------------------------------------------
 */

/* Memory of one kind is compared as a whole: who is charged among its devices is a convention. */
static void compare_bytes(const struct hr_plan *plan, const struct problem *problem,
                          const struct recorded *recorded, struct totals *totals) {
        bool fits = true;
        uint64_t *theirs = need(calloc(problem->in.kind_count + 1, sizeof *theirs));
        uint64_t *ours = need(calloc(problem->in.kind_count + 1, sizeof *ours));

        for (uint32_t i = 0; i < recorded->bytes.count; ++i) {
                unsigned device;
                uint64_t bytes;

                if (sscanf(recorded->bytes.items[i], "A %u %" SCNu64, &device, &bytes) == 2 &&
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
                                       recorded->name, k, ours[k], theirs[k]);
                }
        }
        totals->fit += fits;
        ++totals->fit_of;
        free(theirs);
        free(ours);
}

static void try_headrace(struct problem *problem, const struct recorded *recorded,
                         struct totals *totals) {
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        bool touched = false;
        hr_status status;

        problem->in.options.rules = HR_RULES_HEADRACE;
        status = hr_plan_make(&problem->in, &diag, &plan);
        if (status != HR_OK) {
                ++totals->headrace_errors;
                if (status == HR_E_INTERNAL || totals->verbose)
                        printf("%s (headrace): %s: %s\n", recorded->name, hr_status_name(status),
                               diag.words);
                if (status == HR_E_INTERNAL)
                        ++totals->failed;
                return;
        }
        for (int rule = 0; rule < HR_RULE_COUNT; ++rule) {
                totals->touched[rule] += plan->rule_count[rule] != 0;
                touched = touched || plan->rule_count[rule] != 0;
        }
        /* With several copies ggml also changes causes and flags, which headrace leaves alone. */
        if (!touched && recorded->copies == 1 && recorded->plan.count) {
                ++totals->untouched;
                totals->untouched_equal +=
                        same_plan(plan, problem, &recorded->plan, recorded->name);
        }
        hr_plan_unref(plan);
}

static bool run_case(const struct recorded *recorded, struct totals *totals) {
        struct problem problem;
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        hr_status status;
        bool passed;

        if (!read_problem(&problem, recorded)) {
                printf("%s: cannot be read\n", recorded->name);
                return false;
        }
        status = hr_plan_make(&problem.in, &diag, &plan);
        if (recorded->aborts && !recorded->abort_has_plan) {
                passed = status != HR_E_INTERNAL;
                if (!passed)
                        printf("%s: %s\n", recorded->name, diag.words);
        } else if (status != HR_OK) {
                printf("%s: %s: %s\n", recorded->name, hr_status_name(status), diag.words);
                passed = false;
        } else {
                passed = same_plan(plan, &problem, &recorded->plan, recorded->name);
                if (recorded->allocated)
                        compare_bytes(plan, &problem, recorded, totals);
        }
        totals->unsound += plan && plan->fault.status != HR_OK;
        if (plan && plan->fault.status != HR_OK && totals->verbose)
                printf("%s: not sound: %s\n", recorded->name, plan->fault.words);
        hr_plan_unref(plan);
        try_headrace(&problem, recorded, totals);
        problem_clear(&problem);
        return passed;
}

static void sort_flag_lines(struct lines *lines) {
        for (uint32_t i = 1; i < lines->count; ++i) {
                for (uint32_t j = i;
                     j > 0 && lines->items[j][0] == 'F' && lines->items[j - 1][0] == 'F' &&
                     strtoul(lines->items[j] + 2, NULL, 10) <
                             strtoul(lines->items[j - 1] + 2, NULL, 10);
                     --j) {
                        char *line = lines->items[j];

                        lines->items[j] = lines->items[j - 1];
                        lines->items[j - 1] = line;
                }
        }
}

static void append_text(char **line, const char *more) {
        *line = need(realloc(*line, strlen(*line) + strlen(more) + 1));
        strcat(*line, more);
}

/* Long lists go on in further lines of the same kind. */
static void take_line(struct recorded *recorded, char *line, bool *in_plan) {
        struct lines *plan = &recorded->plan;
        char **last = plan->count ? &plan->items[plan->count - 1] : NULL;

        if (strncmp(line, "plan", 4) == 0 && (line[4] == 0)) {
                *in_plan = true;
        } else if (strncmp(line, "abort ", 6) == 0) {
                recorded->aborts = true;
                recorded->abort_has_plan = strncmp(line + 6, "alloc", 5) == 0;
        } else if (*in_plan) {
                if (strncmp(line, "alloc ok", 8) == 0)
                        recorded->allocated = true;
                else if (line[0] == 'A' && line[1] == ' ')
                        lines_add(&recorded->bytes, line);
                else if (line[0] == 'G' && last && last[0][0] == 'G')
                        append_text(last, line + 1);
                else if (strncmp(line, "splits ", 7) == 0 ||
                         (strchr("LNSRGF", line[0]) && line[1] == ' '))
                        lines_add(&recorded->plan, line);
        } else {
                sscanf(line, "graph leafs=%u nodes=%u extra=%u", &recorded->leafs, &recorded->nodes,
                       &recorded->extras);
                sscanf(line, "sched copies=%u", &recorded->copies);
                lines_add(&recorded->facts, line);
        }
}

static void run_file(const char *path, struct totals *totals) {
        FILE *file = fopen(path, "r");
        char line[LINE_BYTES];
        struct recorded recorded = {0};
        bool in_plan = false;

        if (!file) {
                printf("%s: cannot be opened\n", path);
                ++totals->failed;
                return;
        }
        while (fgets(line, sizeof line, file)) {
                line[strcspn(line, "\r\n")] = 0;
                if (strncmp(line, "case ", 5) == 0) {
                        snprintf(recorded.name, sizeof recorded.name, "%.250s", line + 5);
                        in_plan = false;
                } else if (strcmp(line, "end") == 0) {
                        sort_flag_lines(&recorded.plan);
                        if (run_case(&recorded, totals))
                                ++totals->passed;
                        else
                                ++totals->failed;
                        lines_clear(&recorded.facts);
                        lines_clear(&recorded.plan);
                        lines_clear(&recorded.bytes);
                        memset(&recorded, 0, sizeof recorded);
                } else {
                        take_line(&recorded, line, &in_plan);
                }
        }
        fclose(file);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_path(const char *path, struct totals *totals) {
        struct stat info;
        struct dirent **entries = NULL;
        int count;

        if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
                run_file(path, totals);
                return;
        }
        count = scandir(path, &entries, NULL, by_name);
        if (count < 0) {
                printf("%s: cannot be opened\n", path);
                ++totals->failed;
                return;
        }
        for (int i = 0; i < count; ++i) {
                const char *name = entries[i]->d_name;
                size_t length = strlen(name);
                char full[4096];

                snprintf(full, sizeof full, "%s/%s", path, name);
                if (length > 4 && strcmp(name + length - 4, ".txt") == 0)
                        run_file(full, totals);
                free(entries[i]);
        }
        free(entries);
}

int main(int argc, char **argv) {
        struct totals totals = {0};
        int first = 1;

        if (argc > 1 && strcmp(argv[1], "-v") == 0) {
                totals.verbose = true;
                ++first;
        }
        for (int i = first; i < argc; ++i)
                run_path(argv[i], &totals);
        if (first >= argc)
                run_path(HR_GOLDEN_PLANS, &totals);
        printf("compute memory at most the recorded: %u of %u cases (%.1f %%)\n", totals.fit,
               totals.fit_of, totals.fit_of ? 100.0 * totals.fit / totals.fit_of : 0.0);
        printf("rules = ggml: %u plans would read what is not there, or no longer\n",
               totals.unsound);
        printf("rules = headrace: %u graphs refused; untouched graphs with the recorded plan: %u "
               "of %u; touched by",
               totals.headrace_errors, totals.untouched_equal, totals.untouched);
        for (int rule = 0; rule < HR_RULE_COUNT; ++rule)
                printf(" %s %u", hr_rule_name((hr_rule) rule), totals.touched[rule]);
        if (totals.untouched_equal != totals.untouched)
                ++totals.failed;
        printf("\n%u passed, %u failed\n", totals.passed, totals.failed);
        return totals.failed != 0;
}
