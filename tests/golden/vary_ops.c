/*
 * Runs recorded operators in shapes, with parameters and over contents that nobody recorded: close
 * to a recorded case, so that validation accepts many of them, and drawn from a seed.
 *
 *   vary_ops [--device NAME] [--isa NAME] [--threads N] [--batch-min N] [--guard start|end]
 *            [--seed N] [--tries N] [--elements N] [--case ID] [--same-bits] [--verbose]
 *            [FILE.txt|FOLDER]...
 *
 * What validation accepts and the device takes is computed there and by the CPU's portable kernels.
 * It must end well or with RANGE, touch nothing outside its tensors (a guard, the bands or a
 * sanitizer tell), end the same way on both, and have results that agree: to the bit with
 * --same-bits, else as far as different roundings of activations go.
 */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/registry.h"
#include "tests/golden/ops_compare.h"
#include "tests/golden/ops_fault.h"
#include "tests/golden/ops_machine.h"

/* Sums of few products may all but cancel, and inputs of blocks are rounded to one byte. */
#define NMSE_CLOSE 5e-2

struct options {
        struct hr_backend_config backend;
        ops_guard guard;
        uint64_t seed;
        uint32_t tries;
        int64_t elements_max, only_case;
        bool has_same_bits, is_verbose;
};

struct tally {
        uint64_t refused, unsupported, computed, ranged, failed;
};

static struct options options;
static struct tally tally;

/* ---- Drawing --------------------------------------------------------------------------------- */

static uint64_t state;

static uint64_t draw(void) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return state;
}

static uint32_t draw_below(uint32_t limit) {
        return (uint32_t) (draw() >> 33) % limit;
}

static int64_t draw_extent(int64_t old) {
        static const int64_t extents[] = { 0, 1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 63, 64,
                                           65, 100, 128, 256, 257, 512 };
        const uint32_t form = draw_below(8);

        if (form == 0)
                return old + 1;
        if (form == 1)
                return old > 0 ? old - 1 : 0;
        if (form == 2)
                return old * 2;
        return extents[draw_below(HR_ARRAY_LENGTH(extents))];
}

/* ---- Varying --------------------------------------------------------------------------------- */

static uint32_t first_node(const struct hr_graph *graph) {
        return graph->leaf_count;
}

/* One number, wherever it is an extent (seldom in one place only), becomes another. */
static void vary_extent(struct hr_graph *graph) {
        const uint32_t count = hr_graph_tensor_count(graph);
        const uint32_t k = draw_below(HR_MAX(graph->leaf_count, 1U)), dim = draw_below(HR_DIMS);
        const int64_t old = graph->tensors[k].ne[dim], new = draw_extent(old);

        if (draw_below(5) == 0) {
                graph->tensors[k].ne[dim] = new;
                return;
        }
        for (uint32_t i = 0; i < count; i++)
                for (int d = 0; d < HR_DIMS; d++)
                        if (graph->tensors[i].ne[d] == old && (old != 1 || d == (int) dim))
                                graph->tensors[i].ne[d] = new;
}

static void vary_param(struct hr_graph *graph) {
        static const int32_t words[] = { 0, 1, 2, 3, 4, 7, 10, 32, -1, INT32_MAX, INT32_MIN };
        const uint32_t nodes = hr_graph_tensor_count(graph) - first_node(graph);
        int32_t *word = &graph->tensors[first_node(graph) + draw_below(nodes)]
                                 .params[draw_below(HR_OP_PARAM_WORDS)];
        const uint32_t form = draw_below(4);

        if (form == 0)
                *word += 1;
        else if (form == 1)
                *word -= *word > INT32_MIN;
        else
                *word = words[draw_below(HR_ARRAY_LENGTH(words))];
}

static void vary_type(struct hr_graph *graph) {
        const uint32_t k = draw_below(hr_graph_tensor_count(graph));

        graph->tensors[k].type = draw_below(HR_TYPE_LIMIT);
}

/* What inference makes of a node; false: nothing. */
static bool node_infer(struct hr_graph *graph, uint32_t k) {
        struct hr_tensor *node = &graph->tensors[k];
        const bool is_over = node->view_base != HR_TENSOR_NONE &&
                             hr_op_info(node->op)->kind == HR_OP_KIND_INPLACE;
        const struct hr_tensor *source = hr_graph_source_tensor(graph, node, 0);
        uint64_t offset = 0;

        if (source && source->view_base != HR_TENSOR_NONE)
                offset = source->view_offset;
        node->view_base = HR_TENSOR_NONE;
        node->view_offset = 0;
        if (node->op == HR_OP_VIEW && !hr_add_u64(offset, hr_param_u64(node->params, 0),
                                                  &node->view_offset))
                return false;
        if (hr_graph_infer(graph, k, NULL) != HR_OK)
                return false;
        if (is_over && source) {
                node->view_base = source->view_base == HR_TENSOR_NONE
                                          ? hr_graph_source(graph, node, 0)
                                          : source->view_base;
                node->view_offset = offset;
                memcpy(node->nb, source->nb, sizeof node->nb);
        }
        return true;
}

/* NULL: what came out is no graph, or too large to be computed often. */
static struct hr_graph *varied_new(const struct ops_case *item) {
        static const struct hr_graph_limits limits = { .tensor_bytes_max = UINT64_C(1) << 26 };
        struct hr_graph *graph = NULL;
        bool good;

        if (ops_graph_new(item, NULL, &graph) != HR_OK || item->leaf_count == item->tensor_count)
                return hr_graph_unref(graph);
        for (uint32_t changes = 1 + draw_below(3); changes > 0; changes--) {
                const uint32_t form = draw_below(8);

                if (form < 5)
                        vary_extent(graph);
                else if (form < 7)
                        vary_param(graph);
                else
                        vary_type(graph);
        }
        good = true;
        for (uint32_t k = 0; k < graph->leaf_count && good; k++)
                good = hr_tensor_set_contiguous(&graph->tensors[k], NULL) == HR_OK;
        for (uint32_t k = first_node(graph); k < item->tensor_count && good; k++)
                good = node_infer(graph, k);
        good = good && hr_graph_validate(graph, &limits, NULL) == HR_OK;
        for (uint32_t k = 0; k < item->tensor_count && good; k++)
                good = hr_tensor_elements(&graph->tensors[k]) <= options.elements_max;
        return good ? graph : hr_graph_unref(graph);
}

/* ---- Running --------------------------------------------------------------------------------- */

static void say(const struct ops_run *run, const char *words) {
        printf("  %s %" PRIu32 " %s%s: %s\n", run->family->name, run->item->id, run->item->op,
               run->note, words);
        for (uint32_t k = 0; k < run->item->tensor_count; k++) {
                const struct hr_tensor *t = &run->graph->tensors[k];

                printf("    %" PRIu32 " %s %s [%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64
                       "] nb %" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 " of",
                       k, hr_op_name(t->op), hr_type_name(t->type), t->ne[0], t->ne[1], t->ne[2],
                       t->ne[3], t->nb[0], t->nb[1], t->nb[2], t->nb[3]);
                for (uint32_t i = 0; i < t->source_count; i++)
                        printf(" %" PRId32, (int32_t) hr_graph_source(run->graph, t, i));
                printf(", params");
                for (int i = 0; i < HR_OP_PARAM_WORDS; i++)
                        printf(" %" PRId32, t->params[i]);
                printf("\n");
        }
}

/* Small numbers of any type: the bytes of a half, and of a scale in a block, are below 1. */
static void content_make(uint32_t type, uint8_t *content, uint64_t bytes) {
        for (uint64_t i = 0; i < bytes; i++)
                content[i] = (uint8_t) (i * 7 % 48);
        for (uint64_t i = 0; type == HR_TYPE_F32 && i + 4 <= bytes; i += 4) {
                const float value = (float) (i * 7 % 64) / 32.0f - 1.0f;

                memcpy(content + i, &value, sizeof value);
        }
        for (uint64_t i = 0; hr_type_info(type)->is_integer && i < bytes; i++)
                content[i] = i % hr_type_info(type)->block_bytes == 0 ? (uint8_t) (i / 8 % 4) : 0;
}

/* The recorded bytes again and again: numbers that make sense, whatever the shape. */
static hr_status contents_upload(struct ops_run *run, struct hr_diag *diag) {
        for (uint32_t k = 0; k < run->item->leaf_count; k++) {
                const struct hr_tensor *leaf = &run->graph->tensors[k];
                const uint64_t bytes = hr_tensor_bytes(leaf);
                struct ops_bytes from = ops_family_tensor(run->family, run->item, k, "");
                uint8_t *content;
                hr_status status;

                if (!run->buffers[k])
                        continue;
                content = malloc((size_t) bytes + 1);
                if (!content)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
                if (leaf->type != run->item->tensors[k].type)
                        content_make(leaf->type, content, bytes);
                else
                        for (uint64_t i = 0; i < bytes; i++)
                                content[i] = from.bytes ? from.data[i % from.bytes] : 0;
                status = ops_run_upload(run, k, content, diag);
                free(content);
                HR_TRY(status);
        }
        return HR_OK;
}

/* NULL and *ret_status where the graph is not computed or does not end well. */
static uint8_t *graph_run(struct ops_machine *machine, const struct ops_family *family,
                          const struct ops_case *item, const char *note, struct hr_graph *graph,
                          hr_status *ret_status) {
        struct hr_diag diag = { 0 };
        uint32_t touched = item->out;
        uint8_t *out = NULL;
        struct ops_run run;
        hr_status status = ops_run_init_graph(&run, machine, family, item, note, graph,
                                              &diag);

        ops_fault_watch(&run);
        if (status == HR_OK)
                status = contents_upload(&run, &diag);
        if (status == HR_OK && run.list.count > 0)
                status = ops_run_compute(&run, 0, run.list.count, &diag);
        /* The failed run is over: reading is another. */
        memset(&run.outcome, 0, sizeof run.outcome);
        if ((status == HR_OK || status == HR_E_RANGE) && run.program &&
            ops_run_check_bands(&run, NULL, &touched) != HR_OK) {
                say(&run, "bytes next to a tensor were written");
                status = HR_E_INTERNAL;
        }
        if (status == HR_OK)
                out = ops_run_download(&run, item->out);
        if (status != HR_OK && status != HR_E_UNSUPPORTED && status != HR_E_RANGE &&
            status != HR_E_INTERNAL)
                say(&run, diag.words);
        ops_fault_watch(NULL);
        ops_run_deinit(&run);
        *ret_status = status;
        return out;
}

static bool is_float(uint32_t type) {
        return !hr_type_info(type)->is_integer;
}

/* Places where neither is a finite number must be of one kind. */
static double error_between(const struct hr_tensor *tensor, const uint8_t *expected,
                            const uint8_t *actual) {
        const int64_t n = hr_tensor_elements(tensor);
        double *g = malloc(((size_t) n + 1) * sizeof *g), *x = malloc(((size_t) n + 1) * sizeof *x);
        double error = 0, sum = 0;

        if (!g || !x || !ops_expand(tensor->type, expected, n, g) ||
            !ops_expand(tensor->type, actual, n, x))
                error = INFINITY;
        for (int64_t i = 0; i < n && error < INFINITY; i++) {
                if (isfinite(g[i]) && isfinite(x[i])) {
                        error += (g[i] - x[i]) * (g[i] - x[i]);
                        sum += g[i] * g[i];
                } else if (isnan(g[i]) != isnan(x[i]) ||
                           (!isnan(g[i]) && g[i] != x[i] && fabs(g[i]) < 3e38)) {
                        error = INFINITY;
                }
        }
        free(g);
        free(x);
        return error == 0 ? 0 : error / (sum + 1e-12);
}

static bool results_agree(const struct hr_tensor *tensor, const uint8_t *expected,
                          const uint8_t *actual, double *ret_error) {
        uint64_t row_bytes = 0;

        *ret_error = 0;
        if (!hr_type_row_bytes(tensor->type, tensor->ne[0], &row_bytes))
                return false;
        if (memcmp(expected, actual, (size_t) (row_bytes * (uint64_t) hr_tensor_rows(tensor))) == 0)
                return true;
        *ret_error = INFINITY;
        if (options.has_same_bits)
                return false;
        if (!is_float(tensor->type))
                return tensor->op == HR_OP_TOP_K &&
                       ops_same_sets(expected, actual, tensor->ne[0], hr_tensor_rows(tensor));
        *ret_error = error_between(tensor, expected, actual);
        return *ret_error <= NMSE_CLOSE;
}

/* Tells of a graph through a run that has nothing but it. */
static void fail(const struct ops_family *family, const struct ops_case *item,
                 const char *note, struct hr_graph *graph, const char *words) {
        const struct ops_run run = { .family = family, .item = item, .note = note,
                                     .graph = graph };

        say(&run, words);
        tally.failed++;
}

static void judge(const struct ops_family *family, const struct ops_case *item,
                  const char *note, struct hr_graph *graph, struct ops_machine machines[2]) {
        hr_status expected_status, status;
        uint8_t *actual = graph_run(&machines[1], family, item, note, graph, &status), *expected;
        char words[160];
        double error;

        if (status == HR_E_UNSUPPORTED) {
                tally.unsupported++;
                if (options.is_verbose)
                        fail(family, item, note, graph, "is not supported");
                return;
        }
        expected = graph_run(&machines[0], family, item, note, graph, &expected_status);
        if (status == HR_OK && expected_status == HR_E_UNSUPPORTED) {
                /* Only this device takes it: there is nothing to compare with. */
        } else if (status == HR_E_INTERNAL || status != expected_status) {
                (void) snprintf(words, sizeof words, "%s, the portable kernels: %s",
                                hr_status_name(status), hr_status_name(expected_status));
                fail(family, item, note, graph, words);
        } else if (status == HR_OK && !results_agree(&graph->tensors[item->out], expected, actual,
                                                     &error)) {
                (void) snprintf(words, sizeof words, "differs from the portable kernels: %.3g",
                                error);
                fail(family, item, note, graph, words);
        }
        tally.computed += status == HR_OK;
        tally.ranged += status == HR_E_RANGE;
        free(expected);
        free(actual);
}

static bool family_run(const char *path, struct ops_machine machines[2]) {
        struct ops_family family;

        if (!ops_family_read(path, &family))
                return false;
        for (uint32_t i = 0; i < family.case_count; i++) {
                const struct ops_case *item = &family.cases[i];

                if (options.only_case >= 0 && item->id != options.only_case)
                        continue;
                for (uint64_t try = 0; try < options.tries; try++) {
                        const uint64_t seed = options.seed + try;
                        struct hr_graph *graph;
                        char note[40];

                        (void) snprintf(note, sizeof note, ", seed %" PRIu64, seed);
                        state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ item->id;
                        (void) draw();
                        graph = varied_new(item);
                        if (graph)
                                judge(&family, item, note, graph, machines);
                        else
                                tally.refused++;
                        graph = hr_graph_unref(graph);
                }
        }
        ops_family_free(&family);
        return true;
}

static int is_text_file(const struct dirent *entry) {
        size_t length = strlen(entry->d_name);

        return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

/* A folder stands for its files. */
static bool path_run(const char *path, struct ops_machine machines[2]) {
        struct dirent **entries;
        char name[4096];
        struct stat info;
        bool good = true;
        int count;

        if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
                size_t length = strlen(path);

                (void) snprintf(name, sizeof name, "%.*s",
                                (int) (length > 4 ? length - 4 : length), path);
                return family_run(name, machines);
        }
        count = scandir(path, &entries, is_text_file, alphasort);
        if (count <= 0)
                return false;
        for (int i = 0; i < count; i++) {
                (void) snprintf(name, sizeof name, "%s/%.*s", path,
                                (int) strlen(entries[i]->d_name) - 4, entries[i]->d_name);
                good &= family_run(name, machines);
                free(entries[i]);
        }
        free(entries);
        return good;
}

/* ---- Command line ---------------------------------------------------------------------------- */

static bool parse_value(const char *name, const char *value) {
        if (strcmp(name, "--device") == 0)
                options.backend.backend = value;
        else if (strcmp(name, "--isa") == 0)
                options.backend.isa = value;
        else if (strcmp(name, "--threads") == 0)
                options.backend.threads = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(name, "--batch-min") == 0)
                options.backend.batch_min = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(name, "--seed") == 0)
                options.seed = strtoull(value, NULL, 10);
        else if (strcmp(name, "--tries") == 0)
                options.tries = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(name, "--elements") == 0)
                options.elements_max = strtoll(value, NULL, 10);
        else if (strcmp(name, "--case") == 0)
                options.only_case = strtoll(value, NULL, 10);
        else if (strcmp(name, "--guard") == 0)
                options.guard = strcmp(value, "start") == 0 ? OPS_GUARD_START : OPS_GUARD_END;
        else
                return false;
        return true;
}

static int parse_options(int argc, char **argv) {
        int at = 1;

        for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
                if (strcmp(argv[at], "--same-bits") == 0)
                        options.has_same_bits = true;
                else if (strcmp(argv[at], "--verbose") == 0)
                        options.is_verbose = true;
                else if (at + 1 == argc || !parse_value(argv[at], argv[at + 1]))
                        return -1;
                else
                        at++;
        }
        return at;
}

static bool machine_start(struct ops_machine *machine, struct hr_backend_config *config,
                          ops_guard guard) {
        struct hr_diag diag = { 0 };
        struct hr_device *device = NULL;

        config->name = config->backend;
        if (hr_backend_device_new(config, &diag, &device) == HR_OK &&
            ops_machine_init(machine, device, guard, &diag) == HR_OK)
                return true;
        fprintf(stderr, "%s\n", diag.words);
        return false;
}

int main(int argc, char **argv) {
        struct hr_backend_config portable = { .backend = "cpu", .threads = 1, .isa = "portable" };
        struct ops_machine machines[2];
        bool good = true;
        int first;

        options = (struct options) { .backend = { .backend = "cpu", .threads = 1, .spin_us = 20,
                                                  .wake_all = true },
                                     .tries = 4, .elements_max = 16384, .only_case = -1 };
        (void) setvbuf(stdout, NULL, _IOLBF, 0);
        first = parse_options(argc, argv);
        if (first < 0) {
                fprintf(stderr, "usage: vary_ops [--device NAME] [--isa NAME] [--threads N] "
                                "[--batch-min N] [--guard start|end] [--seed N] [--tries N] "
                                "[--elements N] [--case ID] [--same-bits] [--verbose] "
                                "[FILE.txt|FOLDER]...\n");
                return 2;
        }
        if (!machine_start(&machines[0], &portable, OPS_GUARD_NONE) ||
            !machine_start(&machines[1], &options.backend, options.guard))
                return 77;
        if (first == argc)
                good = path_run(GOLDEN_OPS_DATA, machines);
        for (; first < argc; first++)
                good &= path_run(argv[first], machines);
        ops_machine_deinit(&machines[0]);
        ops_machine_deinit(&machines[1]);
        printf("%" PRIu64 " refused, %" PRIu64 " not supported, %" PRIu64 " computed, %" PRIu64
               " out of range, %" PRIu64 " failed\n",
               tally.refused, tally.unsupported, tally.computed, tally.ranged, tally.failed);
        return good && tally.failed == 0 && tally.computed > 0 ? 0 : 1;
}
