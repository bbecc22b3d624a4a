/* Recorded cases to planning inputs, with what planning relies on checked. See plans_file.h. */
#include "tests/golden/plans_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OP_CUSTOM 900 /* an op outside op.def */
#define SLOTS_MOST 1024U

enum { WORDS_MOST = 32, TENSOR_WORDS = 9 };

/* A line in its words: fixed ones first, then key=value. */
struct words {
        char *text, *word[WORDS_MOST];
        int count;
        const struct plan_record *record;
        uint32_t number; /* of the line in its file */
        struct hr_diag *diag;
};

static hr_status words_fail(const struct words *words, const char *what, const char *value) {
        return hr_fail(words->diag, HR_E_INVALID, "line %u (%s): %s \"%s\"", words->number,
                       words->count ? words->word[0] : "", what, value ? value : "(missing)");
}

static void words_split(struct words *words, const struct plan_record *record, uint32_t line,
                        struct hr_diag *diag) {
        char *rest = NULL;

        *words = (struct words){.record = record, .number = record->line + 1 + line, .diag = diag};
        words->text = plan_need(strdup(record->facts.items[line]));
        for (char *word = strtok_r(words->text, " ", &rest); word && words->count < WORDS_MOST;
             word = strtok_r(NULL, " ", &rest))
                words->word[words->count++] = word;
}

/* The value of key=..., or NULL. */
static const char *words_find(const struct words *words, const char *key) {
        size_t length = strlen(key);

        for (int i = 1; i < words->count; ++i) {
                if (strncmp(words->word[i], key, length) == 0 && words->word[i][length] == '=')
                        return words->word[i] + length + 1;
        }
        return NULL;
}

/* All of the text is a number of at most `most`. */
static bool number_read(const char *text, int base, uint64_t most, uint64_t *ret_number) {
        char *end = NULL;
        unsigned long long number;

        if (!text || !isxdigit((unsigned char) text[0]))
                return false;
        errno = 0;
        number = strtoull(text, &end, base);
        if (errno || *end || number > most)
                return false;
        *ret_number = number;
        return true;
}

/* A number in key=..., `otherwise` where there is none. */
static hr_status words_number(const struct words *words, const char *key, int base, uint64_t most,
                              uint64_t otherwise, uint64_t *ret_number) {
        const char *text = words_find(words, key);

        *ret_number = otherwise;
        if (text && !number_read(text, base, most, ret_number))
                return words_fail(words, key, text);
        return HR_OK;
}

/* A set of at most `bits` members, in hexadecimal digits; empty where there is none. */
static hr_status words_mask(const struct words *words, const char *key, uint32_t bits,
                            uint64_t *set) {
        const char *text = words_find(words, key);
        size_t length = text ? strlen(text) : 0;

        for (size_t i = 0; i < length; ++i) {
                char digit[2] = {text[length - 1 - i], 0};
                uint64_t value = 0;

                if (!number_read(digit, 16, 15, &value))
                        return words_fail(words, key, text);
                for (uint32_t bit = 0; bit < 4; ++bit) {
                        if (!(value >> bit & 1))
                                continue;
                        if (i * 4 + bit >= bits)
                                return words_fail(words, key, text);
                        hr_bit_set(set, (uint32_t) i * 4 + bit);
                }
        }
        return HR_OK;
}

/* The id after the first word, which counts the lines of its kind. */
static hr_status words_turn(const struct words *words, uint32_t *seen) {
        uint64_t id = 0;

        if (words->count < 2 || !number_read(words->word[1], 10, UINT32_MAX, &id) || id != *seen)
                return words_fail(words, "not the next number", words->word[1]);
        ++*seen;
        return HR_OK;
}

/* ---- The system --------------------------------------------------------------------------------
 */

static hr_status read_schedule(struct plan_problem *problem, const struct words *words) {
        uint64_t copies, slot, offload;

        HR_TRY(words_number(words, "copies", 10, SLOTS_MOST, 1, &copies));
        HR_TRY(words_number(words, "cur", 10, copies ? copies - 1 : 0, 0, &slot));
        HR_TRY(words_number(words, "offload", 10, 1, 0, &offload));
        if (copies == 0)
                return words_fail(words, "copies", "0");
        problem->in.options.n_copies = (uint32_t) copies;
        problem->in.current_slot = (uint32_t) slot;
        problem->in.options.op_offload = offload;
        return HR_OK;
}

static hr_status read_kind(struct plan_problem *problem, const struct words *words) {
        struct hr_plan_kind *kind = &problem->kinds[problem->kinds_seen];
        uint64_t host, alignment;

        HR_TRY(words_turn(words, &problem->kinds_seen));
        HR_TRY(words_number(words, "host", 10, 1, 0, &host));
        HR_TRY(words_number(words, "align", 10, UINT32_C(1) << 30, 32, &alignment));
        if (alignment == 0 || (alignment & (alignment - 1)))
                return words_fail(words, "align", words_find(words, "align"));
        *kind = (struct hr_plan_kind){.host = host, .alignment = (uint32_t) alignment};
        return HR_OK;
}

static hr_status read_device(struct plan_problem *problem, const struct words *words) {
        struct hr_plan_device *device = &problem->devices[problem->devices_seen];
        const char *name = words_find(words, "type");
        uint64_t kind;
        int type = HR_DEVICE_CPU;

        HR_TRY(words_mask(words, "sup", problem->in.kind_count,
                          problem->reads + (size_t) problem->devices_seen *
                                                   hr_bit_words(problem->in.kind_count)));
        HR_TRY(words_turn(words, &problem->devices_seen));
        if (problem->in.kind_count == 0)
                return words_fail(words, "there is no buft for", words->word[1]);
        HR_TRY(words_number(words, "buft", 10, problem->in.kind_count - 1, 0, &kind));
        while (type <= HR_DEVICE_ACCEL &&
               !(name && strcmp(name, hr_device_type_name((hr_device_type) type)) == 0))
                ++type;
        if (type > HR_DEVICE_ACCEL)
                return words_fail(words, "type", name);
        device->type = (hr_device_type) type;
        device->kind = (uint32_t) kind;
        return HR_OK;
}

static hr_status read_buffer(struct plan_problem *problem, const struct words *words) {
        struct hr_plan_buffer *buffer = &problem->buffers[problem->buffers_seen];
        const char *usage = words_find(words, "usage");
        uint64_t kind;

        HR_TRY(words_turn(words, &problem->buffers_seen));
        if (problem->in.kind_count == 0)
                return words_fail(words, "there is no buft for", words->word[1]);
        HR_TRY(words_number(words, "buft", 10, problem->in.kind_count - 1, 0, &kind));
        buffer->kind = (uint32_t) kind;
        if (usage && strcmp(usage, "weights") == 0)
                buffer->usage = HR_USAGE_WEIGHTS;
        else if (usage && strcmp(usage, "compute") == 0)
                buffer->usage = HR_USAGE_COMPUTE;
        else if (usage && strcmp(usage, "any") == 0)
                buffer->usage = HR_USAGE_ANY;
        else
                return words_fail(words, "usage", usage);
        return HR_OK;
}

/* ---- The graph ---------------------------------------------------------------------------------
 */

static hr_status read_shape(struct hr_tensor *tensor, const struct words *words) {
        const char *strides = words_find(words, "nb");
        int op = hr_op_from_name(words->word[3]), type = hr_type_from_name(words->word[4]);
        struct hr_diag shape = {0};
        uint64_t flags;
        int used = 0;

        if (type < 0)
                return words_fail(words, "unknown type", words->word[4]);
        tensor->op = op < 0 ? OP_CUSTOM : (uint32_t) op;
        tensor->type = (uint32_t) type;
        for (int d = 0; d < HR_DIMS; ++d) {
                uint64_t extent = 0;

                if (!number_read(words->word[5 + d], 10, INT64_MAX, &extent))
                        return words_fail(words, "extent", words->word[5 + d]);
                tensor->ne[d] = (int64_t) extent;
        }
        if (hr_tensor_set_contiguous(tensor, &shape) != HR_OK)
                return words_fail(words, shape.words, words->word[1]);
        if (strides) {
                char text[128], *rest = NULL;

                snprintf(text, sizeof text, "%s", strides);
                for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest))
                        if (used >= HR_DIMS ||
                            !number_read(one, 10, INT64_MAX, &tensor->nb[used++]))
                                return words_fail(words, "nb", strides);
                if (used != HR_DIMS)
                        return words_fail(words, "nb", strides);
        }
        HR_TRY(words_number(words, "f", 16, UINT32_MAX, 0, &flags));
        tensor->flags = (uint32_t) flags;
        return HR_OK;
}

/* A node reads leaves, extras, earlier nodes, or itself. It may be a view of any tensor: through a
 * leaf that is a view, of a later one. */
static bool may_refer(const struct plan_problem *problem, uint32_t from, uint64_t to) {
        const struct hr_graph *graph = problem->graph;
        bool is_node = from >= graph->leaf_count && from < graph->leaf_count + graph->node_count;

        return to < hr_graph_tensor_count(graph) &&
               (!is_node || to <= from || to >= graph->leaf_count + graph->node_count);
}

static hr_status read_view(struct plan_problem *problem, uint32_t id, const struct words *words) {
        struct hr_tensor *tensor = &problem->graph->tensors[id];
        const char *view = words_find(words, "v"), *colon = view ? strchr(view, ':') : NULL;
        char text[32];
        uint64_t base = 0, offset = 0;

        tensor->view_base = HR_TENSOR_NONE;
        if (!view)
                return HR_OK;
        snprintf(text, sizeof text, "%.*s", colon ? (int) (colon - view) : 0, view);
        if (!colon || !number_read(text, 10, UINT32_MAX, &base) ||
            !number_read(colon + 1, 10, INT64_MAX, &offset) || base == id ||
            base >= hr_graph_tensor_count(problem->graph))
                return words_fail(words, "v", view);
        tensor->view_base = (uint32_t) base;
        tensor->view_offset = offset;
        return HR_OK;
}

static hr_status read_sources(struct plan_problem *problem, uint32_t id,
                              const struct words *words) {
        struct hr_tensor *tensor = &problem->graph->tensors[id];
        const char *list = words_find(words, "s");
        char *text, *rest = NULL;
        hr_status status = HR_OK;

        tensor->source_first = problem->sources;
        if (!list)
                return HR_OK;
        text = plan_need(strdup(list));
        for (char *item = strtok_r(text, ",", &rest); item && status == HR_OK;
             item = strtok_r(NULL, ",", &rest)) {
                uint64_t source = HR_TENSOR_NONE;

                if (strcmp(item, "-") != 0 && (!number_read(item, 10, UINT32_MAX, &source) ||
                                               !may_refer(problem, id, source)))
                        status = words_fail(words, "s", list);
                problem->graph->sources[problem->sources++] = (uint32_t) source;
                ++tensor->source_count;
        }
        free(text);
        return status;
}

static hr_status read_tensor(struct plan_problem *problem, const struct words *words) {
        const struct hr_graph *graph = problem->graph;
        uint32_t nodes_end = graph->leaf_count + graph->node_count, first, end;
        uint64_t id = 0, buffer = HR_NO_BUFFER, pin = 0;

        if (words->count < TENSOR_WORDS)
                return words_fail(words, "too short, after", words->word[words->count - 1]);
        first = words->word[0][0] == 'l'   ? 0
                : words->word[0][0] == 'n' ? graph->leaf_count
                                           : nodes_end;
        end = words->word[0][0] == 'l'   ? graph->leaf_count
              : words->word[0][0] == 'n' ? nodes_end
                                         : hr_graph_tensor_count(graph);
        if (!number_read(words->word[1], 10, UINT32_MAX, &id) || id < first || id >= end)
                return words_fail(words, "not a number of its kind", words->word[1]);
        if (problem->seen[id])
                return words_fail(words, "again", words->word[1]);
        problem->seen[id] = true;
        HR_TRY(read_shape(&problem->graph->tensors[id], words));
        HR_TRY(read_view(problem, (uint32_t) id, words));
        HR_TRY(read_sources(problem, (uint32_t) id, words));
        if (words_find(words, "b") &&
            (!number_read(words_find(words, "b"), 10, UINT32_MAX, &buffer) ||
             buffer >= problem->in.buffer_count))
                return words_fail(words, "b", words_find(words, "b"));
        if (words_find(words, "u") &&
            (!number_read(words_find(words, "u"), 10, UINT32_MAX, &pin) ||
             pin >= problem->in.device_count))
                return words_fail(words, "u", words_find(words, "u"));
        problem->tensor_buffer[id] = (uint32_t) buffer;
        problem->pins[id] = words_find(words, "u") ? (int32_t) pin : HR_NO_PIN;
        HR_TRY(words_mask(words, "sup", problem->in.device_count,
                          problem->supports + (size_t) id * problem->words));
        HR_TRY(words_mask(words, "off", problem->in.device_count,
                          problem->offload + (size_t) id * problem->words));
        if (words->word[0][0] == 'l')
                problem->graph->tensors[id].leaf_kind =
                        buffer != HR_NO_BUFFER                           ? HR_LEAF_WEIGHT
                        : problem->graph->tensors[id].flags & HR_TENSOR_INPUT ? HR_LEAF_INPUT
                                                                              : HR_LEAF_NOT;
        return HR_OK;
}

/* Every view ends, within as many steps as there are tensors, at one that is none. */
static hr_status check_views(const struct plan_problem *problem, const struct plan_record *record,
                             struct hr_diag *diag) {
        uint32_t count = hr_graph_tensor_count(problem->graph);

        for (uint32_t i = 0; i < count; ++i) {
                uint32_t at = i, steps = 0;

                while (problem->graph->tensors[at].view_base != HR_TENSOR_NONE && steps++ <= count)
                        at = problem->graph->tensors[at].view_base;
                if (steps > count)
                        return hr_fail(diag, HR_E_INVALID, "line %u: tensor %u is a view of itself",
                                       record->line, i);
                if (!problem->seen[i])
                        return hr_fail(diag, HR_E_INVALID, "line %u: tensor %u has no line",
                                       record->line, i);
        }
        return HR_OK;
}

/* ---- A case ------------------------------------------------------------------------------------
 */

static uint32_t count_lines(const struct plan_lines *lines, const char *prefix) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < lines->count; ++i)
                count += strncmp(lines->items[i], prefix, strlen(prefix)) == 0;
        return count;
}

static uint32_t count_sources(const struct plan_lines *facts) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < facts->count; ++i) {
                const char *list = strstr(facts->items[i], " s=");

                for (; list && *list; ++list)
                        count += *list == ',' || *list == '=';
        }
        return count;
}

/* Room for as much as there are lines, and a graph of the size that the case gives. */
static hr_status make_room(struct plan_problem *problem, const struct plan_record *record,
                           struct hr_diag *diag) {
        const struct plan_lines *facts = &record->facts;
        struct hr_graph_sizes sizes = {.leaf_count = count_lines(facts, "l "),
                                       .node_count = count_lines(facts, "n "),
                                       .extra_count = count_lines(facts, "x "),
                                       .source_count = count_sources(facts)};
        size_t count = (size_t) sizes.leaf_count + sizes.node_count + sizes.extra_count;
        char graph[96];

        snprintf(graph, sizeof graph, "graph leafs=%u nodes=%u extra=%u", sizes.leaf_count,
                 sizes.node_count, sizes.extra_count);
        if (count_lines(facts, "graph ") != 1 || count_lines(facts, graph) != 1)
                return hr_fail(diag, HR_E_INVALID, "line %u: its lines make \"%s\"", record->line,
                               graph);
        if (count_lines(facts, "sched ") != 1)
                return hr_fail(diag, HR_E_INVALID, "line %u: no or several lines \"sched\"",
                               record->line);
        problem->in.device_count = count_lines(facts, "backend ");
        problem->in.kind_count = count_lines(facts, "buft ");
        problem->in.buffer_count = count_lines(facts, "buffer ");
        problem->words = hr_bit_words(problem->in.device_count);
        problem->devices =
                plan_need(calloc(problem->in.device_count + 1, sizeof *problem->devices));
        problem->kinds = plan_need(calloc(problem->in.kind_count + 1, sizeof *problem->kinds));
        problem->buffers =
                plan_need(calloc(problem->in.buffer_count + 1, sizeof *problem->buffers));
        problem->reads = plan_need(calloc((size_t) (problem->in.device_count + 1) *
                                                  (hr_bit_words(problem->in.kind_count) + 1),
                                          sizeof(uint64_t)));
        problem->tensor_buffer = plan_need(calloc(count + 1, sizeof(uint32_t)));
        problem->pins = plan_need(calloc(count + 1, sizeof(int32_t)));
        problem->seen = plan_need(calloc(count + 1, sizeof(bool)));
        problem->supports = plan_need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        problem->offload = plan_need(calloc((count + 1) * (problem->words + 1), sizeof(uint64_t)));
        return hr_graph_new(&sizes, diag, &problem->graph);
}

static hr_status read_line(struct plan_problem *problem, const struct words *words) {
        static const struct {
                const char *name;
                hr_status (*read)(struct plan_problem *problem, const struct words *words);
        } kinds[] = {{"sched", read_schedule}, {"buft", read_kind}, {"backend", read_device},
                     {"buffer", read_buffer},  {"l", read_tensor},  {"n", read_tensor},
                     {"x", read_tensor}};

        for (size_t i = 0; words->count && i < HR_ARRAY_LENGTH(kinds); ++i) {
                if (strcmp(words->word[0], kinds[i].name) != 0)
                        continue;
                return words->count == WORDS_MOST
                               ? words_fail(words, "too long, with", words->word[WORDS_MOST - 1])
                               : kinds[i].read(problem, words);
        }
        return HR_OK;
}

hr_status plan_problem_read(struct plan_problem *problem, const struct plan_record *record,
                            struct hr_diag *diag) {
        memset(problem, 0, sizeof *problem);
        HR_TRY(make_room(problem, record, diag));
        for (uint32_t i = 0; i < record->facts.count; ++i) {
                struct words words;
                hr_status status;

                words_split(&words, record, i, diag);
                status = read_line(problem, &words);
                free(words.text);
                HR_TRY(status);
        }
        HR_TRY(check_views(problem, record, diag));
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
        return HR_OK;
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
        free(problem->seen);
}
