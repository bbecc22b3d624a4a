/* Reader of recorded plans. See plans_file.h. */
#include "tests/golden/plans_file.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define OP_CUSTOM 900 /* an op outside op.def */

void *plan_need(void *pointer) {
        if (!pointer) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return pointer;
}

void plan_lines_add(struct plan_lines *lines, const char *line) {
        if (lines->count == lines->capacity) {
                lines->capacity = lines->capacity ? lines->capacity * 2 : 64;
                lines->items = plan_need(realloc(lines->items, lines->capacity * sizeof(char *)));
        }
        lines->items[lines->count++] = plan_need(strdup(line));
}

void plan_lines_clear(struct plan_lines *lines) {
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

void plan_problem_clear(struct plan_problem *problem) {
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

static uint32_t count_lines(const struct plan_lines *lines, const char *prefix) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < lines->count; ++i)
                count += strncmp(lines->items[i], prefix, strlen(prefix)) == 0;
        return count;
}

static void read_system(struct plan_problem *problem, const struct plan_lines *facts) {
        uint32_t device = 0, kind = 0, buffer = 0, words;

        problem->in.device_count = count_lines(facts, "backend ");
        problem->in.kind_count = count_lines(facts, "buft ");
        problem->in.buffer_count = count_lines(facts, "buffer ");
        words = hr_bit_words(problem->in.kind_count);
        problem->devices =
                plan_need(calloc(problem->in.device_count + 1, sizeof *problem->devices));
        problem->kinds = plan_need(calloc(problem->in.kind_count + 1, sizeof *problem->kinds));
        problem->buffers =
                plan_need(calloc(problem->in.buffer_count + 1, sizeof *problem->buffers));
        problem->reads = plan_need(
                calloc((size_t) (problem->in.device_count + 1) * (words + 1), sizeof(uint64_t)));
        for (uint32_t i = 0; i < facts->count; ++i) {
                char line[PLAN_LINE_BYTES], *word[64] = {0};
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

static void read_sources(struct plan_problem *problem, struct hr_tensor *tensor, const char *list) {
        char text[PLAN_LINE_BYTES], *rest = NULL;

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

static void read_tensor(struct plan_problem *problem, char **word, int count) {
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

static uint32_t count_sources(const struct plan_lines *facts) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < facts->count; ++i) {
                const char *list = strstr(facts->items[i], " s=");

                for (; list && *list && *list != '\n'; ++list)
                        count += *list == ',' || *list == '=';
        }
        return count;
}

bool plan_problem_read(struct plan_problem *problem, const struct plan_record *record) {
        struct hr_graph_sizes sizes = {.leaf_count = record->leafs,
                                       .node_count = record->nodes,
                                       .extra_count = record->extras,
                                       .source_count = count_sources(&record->facts)};
        struct hr_diag diag = {0};
        size_t count = (size_t) record->leafs + record->nodes + record->extras;

        memset(problem, 0, sizeof *problem);
        read_system(problem, &record->facts);
        problem->words = hr_bit_words(problem->in.device_count);
        if (hr_graph_new(&sizes, &diag, &problem->graph) != HR_OK)
                return false;
        problem->tensor_buffer = plan_need(calloc(count + 1, sizeof(uint32_t)));
        problem->pins = plan_need(calloc(count + 1, sizeof(int32_t)));
        problem->supports = plan_need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        problem->offload = plan_need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        for (uint32_t i = 0; i < record->facts.count; ++i) {
                char line[PLAN_LINE_BYTES], *word[64] = {0};
                int words;

                if (!strchr("lnx", record->facts.items[i][0]) || record->facts.items[i][1] != ' ')
                        continue;
                snprintf(line, sizeof line, "%s", record->facts.items[i]);
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

static void sort_flag_lines(struct plan_lines *lines) {
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
        *line = plan_need(realloc(*line, strlen(*line) + strlen(more) + 1));
        strcat(*line, more);
}

/* Long lists go on in further lines of the same kind. */
static void take_line(struct plan_record *record, char *line, bool *in_plan) {
        struct plan_lines *plan = &record->plan;
        char **last = plan->count ? &plan->items[plan->count - 1] : NULL;

        if (strncmp(line, "plan", 4) == 0 && (line[4] == 0)) {
                *in_plan = true;
        } else if (strncmp(line, "abort ", 6) == 0) {
                record->aborts = true;
                record->abort_has_plan = strncmp(line + 6, "alloc", 5) == 0;
        } else if (*in_plan) {
                if (strncmp(line, "alloc ok", 8) == 0)
                        record->allocated = true;
                else if (line[0] == 'A' && line[1] == ' ')
                        plan_lines_add(&record->bytes, line);
                else if (line[0] == 'G' && last && last[0][0] == 'G')
                        append_text(last, line + 1);
                else if (strncmp(line, "splits ", 7) == 0 ||
                         (strchr("LNSRGF", line[0]) && line[1] == ' '))
                        plan_lines_add(&record->plan, line);
        } else {
                sscanf(line, "graph leafs=%u nodes=%u extra=%u", &record->leafs, &record->nodes,
                       &record->extras);
                sscanf(line, "sched copies=%u", &record->copies);
                plan_lines_add(&record->facts, line);
        }
}

static void record_clear(struct plan_record *record) {
        plan_lines_clear(&record->facts);
        plan_lines_clear(&record->plan);
        plan_lines_clear(&record->bytes);
        memset(record, 0, sizeof *record);
}

static bool read_file(const char *path, void (*fn)(const struct plan_record *record, void *arg),
                      void *arg) {
        FILE *file = fopen(path, "r");
        char line[PLAN_LINE_BYTES];
        struct plan_record record = {0};
        bool in_plan = false;

        if (!file)
                return false;
        while (fgets(line, sizeof line, file)) {
                line[strcspn(line, "\r\n")] = 0;
                if (strncmp(line, "case ", 5) == 0) {
                        snprintf(record.name, sizeof record.name, "%.250s", line + 5);
                        in_plan = false;
                } else if (strcmp(line, "end") == 0) {
                        sort_flag_lines(&record.plan);
                        fn(&record, arg);
                        record_clear(&record);
                } else {
                        take_line(&record, line, &in_plan);
                }
        }
        record_clear(&record);
        fclose(file);
        return true;
}

static int by_name(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

uint32_t plan_records_read(const char *path,
                           void (*fn)(const struct plan_record *record, void *arg), void *arg) {
        struct stat info;
        struct dirent **entries = NULL;
        uint32_t failed = 0;
        int count;

        if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode))
                count = -1;
        else if ((count = scandir(path, &entries, NULL, by_name)) < 0)
                failed = 1;
        if (failed || (count < 0 && !read_file(path, fn, arg))) {
                printf("%s: cannot be opened\n", path);
                return 1;
        }
        for (int i = 0; i < count; ++i) {
                const char *name = entries[i]->d_name;
                size_t length = strlen(name);
                char full[4096];

                snprintf(full, sizeof full, "%s/%s", path, name);
                if (length > 4 && strcmp(name + length - 4, ".txt") == 0 &&
                    !read_file(full, fn, arg)) {
                        printf("%s: cannot be opened\n", full);
                        ++failed;
                }
                free(entries[i]);
        }
        free(entries);
        return failed;
}
