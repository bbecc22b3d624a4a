/*
 * Runs recorded operator cases on a device and measures the results.
 *
 *   golden_ops [--device cpu|blas] [--isa NAME] [--arithmetic ggml|fast] [--threads N] [--isolated]
 *              [--wake-all] [--deterministic] [--batch-min N] [--allow-unsupported] [--verbose]
 *              [--digest] [--case ID] [--guard start|end] [--stray read|write] [FILE.txt|FOLDER]...
 *
 * Each case is run twice. First node by node: a node's result is measured, then replaced by the
 * recorded one, so that every node is judged on recorded inputs. Then, if it has several nodes, as
 * a whole, where the result and the leaves written into are judged.
 *
 * Around each tensor lie bytes that must keep their pattern. With --guard each tensor ends where a
 * page without access begins (or begins where one ends), so that reading past it is found as well:
 * the process then says where and ends with status 3. --stray does what a kernel with that fault
 * would, after each node.
 *
 * Measures. By the case's metric and tolerance; on top of that, dot products must agree closely
 * with the recorded result (same rounding of activations) or with the exact one (activations kept).
 * Types whose encoder searches are judged by their error against the values encoded, beside the
 * recorded one's.
 */
#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "backends/registry.h"
#include "tests/golden/ops_compare.h"
#include "tests/golden/ops_fault.h"
#include "tests/golden/ops_machine.h"

#define NMSE_CLOSE 1e-9
#define NMSE_CLOSE_Q8_1 4e-6 /* sums of activation blocks are rounded to f16 */
#define NMSE_EXACT_F16 1e-6
#define NMSE_EXACT_BF16 4e-6
#define NMSE_INTERMEDIATE 1e-7
#define ENCODER_RATIO 1.05
#define REASONS_MAX 256

typedef enum verdict { PASSED, FAILED, SKIPPED } verdict;

struct options {
        struct hr_backend_config backend;
        bool allow_unsupported, is_verbose, is_digested;
        bool strays, stray_writes;
        ops_guard guard;
        int64_t only_case;
};

struct tally {
        uint32_t passed, failed, skipped;
};

static struct options options;

/* What was skipped and why, and the worst error of each op. */
static struct reason {
        char words[96];
        uint32_t count;
} reasons[REASONS_MAX];
static uint32_t reason_count;
static double worst[HR_OP_LIMIT];

static void reason_count_one(const char *words) {
        char short_words[sizeof reasons[0].words];
        uint32_t i;

        (void) snprintf(short_words, sizeof short_words, "%.*s", (int) sizeof short_words - 1,
                        words);
        for (i = 0; i < reason_count && strcmp(reasons[i].words, short_words) != 0; i++) {
        }
        if (i == REASONS_MAX)
                return;
        if (i == reason_count)
                memcpy(reasons[reason_count++].words, short_words, sizeof short_words);
        reasons[i].count++;
}

HR_PRINTF(3, 4)
static bool complain(const struct ops_run *run, uint32_t k, const char *format, ...) {
        const struct ops_case *item = run->item;
        va_list args;

        printf("  %s %" PRIu32 " %s, tensor %" PRIu32 " (%s): ", run->family->name, item->id,
               item->op, k, item->tensors[k].op_name);
        va_start(args, format);
        vprintf(format, args);
        va_end(args);
        printf("   [%s]\n", item->label);
        return false;
}

/* ---- Measures -------------------------------------------------------------------------------- */

static bool is_dot(uint32_t op) {
        return op == HR_OP_MUL_MAT || op == HR_OP_MUL_MAT_ID || op == HR_OP_FLASH_ATTN_EXT;
}

static bool dot_is_close(const struct ops_run *run, uint32_t k, const uint8_t *actual,
                         double nmse) {
        const struct ops_tensor *node = &run->item->tensors[k];
        struct ops_bytes exact = ops_family_tensor(run->family, run->item, k, ".exact");
        double close = NMSE_CLOSE, limit = NMSE_CLOSE, exact_nmse;

        for (uint32_t i = 0; i < node->source_count && i < 3; i++) {
                uint32_t type = node->sources[i] < 0
                                        ? HR_TYPE_F32
                                        : run->item->tensors[node->sources[i]].type;

                if (type == HR_TYPE_F16)
                        limit = fmax(limit, NMSE_EXACT_F16);
                if (type == HR_TYPE_BF16)
                        limit = fmax(limit, NMSE_EXACT_BF16);
                if (type == HR_TYPE_Q4_1 || type == HR_TYPE_Q5_1)
                        close = NMSE_CLOSE_Q8_1;
                if (hr_type_info(type)->is_block && node->op == HR_OP_FLASH_ATTN_EXT)
                        limit = fmax(limit, NMSE_EXACT_F16);
        }
        if (nmse <= close || !exact.data)
                return true;
        exact_nmse = ops_nmse(HR_TYPE_F32, exact.data, actual,
                              hr_tensor_elements(&run->graph->tensors[k]));
        if (exact_nmse <= limit)
                return true;
        return complain(run, k, "nmse %.3g to the recorded result (<= %.1g), %.3g to the exact one "
                        "(<= %.1g)", nmse, close, exact_nmse, limit);
}

static bool measure_metric(const struct ops_run *run, uint32_t k, const uint8_t *expected,
                           const uint8_t *actual, bool is_chained) {
        const struct hr_tensor *tensor = &run->graph->tensors[k];
        const struct ops_case *item = run->item;
        bool is_checked = item->tensors[k].role != 'I';
        double tolerance = item->tolerance, nmse;

        if (is_checked && strcmp(item->metric, "rowset") == 0 && tensor->type == HR_TYPE_I32)
                return ops_same_sets(expected, actual, tensor->ne[0], hr_tensor_rows(tensor)) ||
                       complain(run, k, "a row holds other indices");
        if (is_checked && strcmp(item->metric, "exact") == 0)
                return ops_exact(tensor->type, expected, actual, hr_tensor_elements(tensor)) ||
                       complain(run, k, "not equal");
        nmse = ops_nmse(tensor->type, expected, actual, hr_tensor_elements(tensor));
        if (!is_checked && !is_dot(tensor->op))
                tolerance = fmax(tolerance, NMSE_INTERMEDIATE);
        if (!is_chained && tensor->op < HR_OP_LIMIT && isfinite(nmse))
                worst[tensor->op] = fmax(worst[tensor->op], nmse);
        if (!(nmse <= tolerance))
                return complain(run, k, "nmse %.3g%s (<= %.1g)", nmse,
                                is_chained ? " of the whole" : "", tolerance);
        return is_chained || !is_dot(tensor->op) || dot_is_close(run, k, actual, nmse);
}

/* Squared error of n expanded elements against values. */
static double squared_error(const double *values, const double *expanded, int64_t n) {
        double error = 0;

        for (int64_t i = 0; i < n; i++)
                error += (values[i] - expanded[i]) * (values[i] - expanded[i]);
        return error;
}

/* Row of the result that row (i1, i2, i3) of source 0 goes to: itself, or by SET_ROWS's ids. */
static int64_t target_row(const struct ops_run *run, uint32_t k, const uint8_t *ids,
                          const int64_t at[3]) {
        const struct hr_tensor *node = &run->graph->tensors[k];
        const struct hr_tensor *id = hr_graph_source_tensor(run->graph, node, 1);
        int64_t index = at[0], place;

        if (ids) {
                place = at[0] + id->ne[0] * (at[1] % id->ne[1] + id->ne[1] * (at[2] % id->ne[2]));
                if (id->type == HR_TYPE_I64)
                        memcpy(&index, ids + (size_t) place * sizeof index, sizeof index);
                else
                        index = ((const int32_t *) (const void *) ids)[place];
        }
        return index + node->ne[1] * (at[1] + node->ne[2] * at[2]);
}

/* Errors of both encodings of the rows written; rows not written must be equal to the byte. */
static bool encoders_compare(const struct ops_run *run, uint32_t k, const double *values,
                             const uint8_t *ids, const uint8_t *expected, const uint8_t *actual) {
        const struct hr_tensor *node = &run->graph->tensors[k];
        const struct hr_tensor *source = hr_graph_source_tensor(run->graph, node, 0);
        int64_t rows = hr_tensor_rows(node), n = node->ne[0];
        double *g = malloc((size_t) n * sizeof *g), *x = malloc((size_t) n * sizeof *x);
        bool *is_written = calloc((size_t) rows, 1);
        double g_error = 0, x_error = 0;
        uint64_t bytes = 0;
        bool good = g && x && is_written && hr_type_row_bytes(node->type, n, &bytes);
        bool by_rows = ids || hr_tensor_same_shape(node, source);

        for (int64_t row = 0; good && row < (by_rows ? hr_tensor_rows(source) : rows); row++) {
                int64_t at[3] = { row % source->ne[1], row / source->ne[1] % source->ne[2],
                                  row / source->ne[1] / source->ne[2] };
                int64_t to = by_rows ? target_row(run, k, ids, at) : row;

                good = ops_expand(node->type, expected + (uint64_t) to * bytes, n, g) &&
                       ops_expand(node->type, actual + (uint64_t) to * bytes, n, x);
                is_written[to] = true;
                g_error += squared_error(values + row * n, g, n);
                x_error += squared_error(values + row * n, x, n);
        }
        for (int64_t row = 0; good && row < rows; row++)
                if (!is_written[row] && memcmp(expected + (uint64_t) row * bytes,
                                               actual + (uint64_t) row * bytes, (size_t) bytes))
                        good = complain(run, k, "row %" PRId64 " was not to be written", row);
        if (good && !(x_error <= ENCODER_RATIO * g_error + 1e-12))
                good = complain(run, k, "encoding error %.4g, the recorded one's is %.4g", x_error,
                                g_error);
        free(g);
        free(x);
        free(is_written);
        return good;
}

static bool measure_encoder(struct ops_run *run, uint32_t k, const uint8_t *expected,
                            const uint8_t *actual) {
        const struct hr_tensor *node = &run->graph->tensors[k];
        uint32_t from = hr_graph_source(run->graph, node, 0);
        int64_t elements = hr_tensor_elements(&run->graph->tensors[from]);
        uint8_t *content = ops_run_download(run, from), *ids = NULL;
        double *values = malloc(((size_t) elements + 1) * sizeof *values);
        bool good;

        if (node->op == HR_OP_SET_ROWS)
                ids = ops_run_download(run, hr_graph_source(run->graph, node, 1));
        good = content && values && (node->op != HR_OP_SET_ROWS || ids) &&
               ops_expand(run->graph->tensors[from].type, content, elements, values) &&
               encoders_compare(run, k, values, ids, expected, actual);
        free(content);
        free(ids);
        free(values);
        return good;
}

static bool is_encoding(const struct ops_run *run, uint32_t k) {
        const struct hr_tensor *node = &run->graph->tensors[k];

        return (node->op == HR_OP_CPY || node->op == HR_OP_SET_ROWS) &&
               ops_is_searched(node->type) &&
               hr_graph_source_tensor(run->graph, node, 0)->type != node->type;
}

/* ---- Cases ----------------------------------------------------------------------------------- */

/* Of all results in order (FNV-1a): equal where two runs over the same files have the same bits. */
static uint64_t digest = UINT64_C(0xcbf29ce484222325);

static void digest_add(const struct hr_tensor *tensor, const uint8_t *content) {
        uint64_t row_bytes = 0, bytes;

        if (!hr_type_row_bytes(tensor->type, tensor->ne[0], &row_bytes))
                return;
        bytes = row_bytes * (uint64_t) hr_tensor_rows(tensor);
        for (uint64_t i = 0; i < bytes; i++)
                digest = (digest ^ content[i]) * UINT64_C(0x100000001b3);
}

static bool node_is_right(struct ops_run *run, uint32_t k, bool is_chained) {
        struct ops_bytes expected = ops_family_tensor(run->family, run->item, k, "");
        uint8_t *actual;
        bool good;

        if (!run->item->tensors[k].is_stored)
                return true;
        if (!expected.data)
                return complain(run, k, "the file lacks its bytes");
        actual = ops_run_download(run, k);
        if (!actual)
                return complain(run, k, "cannot be read back");
        digest_add(&run->graph->tensors[k], actual);
        if (is_encoding(run, k))
                good = is_chained || measure_encoder(run, k, expected.data, actual);
        else
                good = measure_metric(run, k, expected.data, actual, is_chained);
        free(actual);
        return good;
}

/* Leaves that the graph writes into, after it has run. */
static bool leaves_are_right(struct ops_run *run) {
        bool good = true, is_encoded = false;

        for (uint32_t k = run->item->leaf_count; k < run->item->tensor_count; k++)
                is_encoded |= is_encoding(run, k);
        for (uint32_t k = 0; k < run->item->leaf_count && !is_encoded; k++) {
                struct ops_bytes after = ops_family_tensor(run->family, run->item, k, ".after");
                uint8_t *actual;

                if (!(run->item->tensors[k].extra & OPS_EXTRA_AFTER))
                        continue;
                actual = ops_run_download(run, k);
                good &= actual && after.data ? measure_metric(run, k, after.data, actual, true)
                                             : complain(run, k,
                                               "its content afterwards is missing");
                free(actual);
        }
        return good;
}

static bool run_node_by_node(struct ops_run *run, struct hr_diag *diag) {
        bool good = true;

        for (uint32_t i = 0; i < run->list.count; i++) {
                uint32_t k = run->step_tensors[i];
                struct ops_bytes recorded = ops_family_tensor(run->family, run->item, k, "");

                if (ops_run_compute(run, i, 1, diag) != HR_OK)
                        return complain(run, k, "%s: %s", hr_status_name(diag->status),
                                        diag->words);
                if (options.strays)
                        ops_run_stray(run, k, options.stray_writes);
                good &= node_is_right(run, k, false);
                if (run->graph->tensors[k].view_base == HR_TENSOR_NONE && recorded.data &&
                    ops_run_upload(run, k, recorded.data, diag) != HR_OK)
                        return complain(run, k, "%s", diag->words);
        }
        return leaves_are_right(run) && good;
}

static bool run_whole(struct ops_run *run, struct hr_diag *diag) {
        uint32_t out = run->item->out;

        if (ops_run_upload_leaves(run, diag) != HR_OK ||
            ops_run_compute(run, 0, run->list.count, diag) != HR_OK)
                return complain(run, out, "%s: %s", hr_status_name(diag->status), diag->words);
        return node_is_right(run, out, true) && leaves_are_right(run);
}

static verdict case_run(struct ops_machine *machine, const struct ops_family *family,
                        const struct ops_case *item) {
        struct hr_diag diag = { 0 };
        uint32_t touched = item->out;
        struct ops_run run;
        verdict result;
        hr_status status = ops_run_init(&run, machine, family, item, &diag);

        if (options.guard != OPS_GUARD_NONE)
                ops_fault_watch(&run);
        if (status == HR_OK) {
                bool good = run_node_by_node(&run, &diag);

                if (good && run.list.count > 1)
                        good = run_whole(&run, &diag);
                if (ops_run_check_bands(&run, &diag, &touched) != HR_OK)
                        good = complain(&run, touched, "%s", diag.words);
                result = good ? PASSED : FAILED;
        } else if (status == HR_E_UNSUPPORTED && options.allow_unsupported) {
                reason_count_one(diag.words);
                result = SKIPPED;
        } else {
                printf("  %s %" PRIu32 " %s: %s: %s   [%s]\n", family->name, item->id, item->op,
                       hr_status_name(status), diag.words, item->label);
                result = FAILED;
        }
        if (options.guard != OPS_GUARD_NONE)
                ops_fault_watch(NULL);
        ops_run_deinit(&run);
        return result;
}

static bool family_run(struct ops_machine *machine, const char *path, struct tally *total) {
        struct ops_family family;
        struct tally tally = { 0 };

        if (!ops_family_read(path, &family))
                return false;
        for (uint32_t i = 0; i < family.case_count; i++) {
                verdict result;

                if (options.only_case >= 0 && family.cases[i].id != options.only_case)
                        continue;
                result = case_run(machine, &family, &family.cases[i]);
                tally.passed += result == PASSED;
                tally.failed += result == FAILED;
                tally.skipped += result == SKIPPED;
        }
        printf("%-20s %4" PRIu32 " passed %4" PRIu32 " failed %4" PRIu32 " skipped\n", family.name,
               tally.passed, tally.failed, tally.skipped);
        fflush(stdout);
        total->passed += tally.passed;
        total->failed += tally.failed;
        total->skipped += tally.skipped;
        ops_family_free(&family);
        return true;
}

static int is_text_file(const struct dirent *entry) {
        size_t length = strlen(entry->d_name);

        return length > 4 && strcmp(entry->d_name + length - 4, ".txt") == 0;
}

/* A folder stands for its files. */
static bool path_run(struct ops_machine *machine, const char *path, struct tally *total) {
        struct dirent **entries;
        char name[4096];
        struct stat info;
        bool good = true;
        int count;

        if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
                size_t length = strlen(path);

                (void) snprintf(name, sizeof name, "%.*s",
                                (int) (length > 4 ? length - 4 : length), path);
                return family_run(machine, name, total);
        }
        count = scandir(path, &entries, is_text_file, alphasort);
        if (count <= 0) {
                fprintf(stderr, "%s: no recorded operators here\n", path);
                return false;
        }
        for (int i = 0; i < count; i++) {
                (void) snprintf(name, sizeof name, "%s/%.*s", path,
                                (int) strlen(entries[i]->d_name) - 4, entries[i]->d_name);
                good &= family_run(machine, name, total);
                free(entries[i]);
        }
        free(entries);
        return good;
}

/* ---- Command line ---------------------------------------------------------------------------- */

static int usage(void) {
        fprintf(stderr,
          "usage: golden_ops [--device cpu|blas] [--isa NAME] [--arithmetic ggml|fast] "
                        "[--threads N] "
                        "[--isolated] [--wake-all] [--deterministic] [--batch-min N] "
                        "[--allow-unsupported] [--verbose] [--digest] [--case ID] "
                        "[--guard start|end] [--stray read|write] [FILE.txt|FOLDER]...\n");
        return 2;
}

static bool parse_flag(const char *name) {
        if (strcmp(name, "--isolated") == 0)
                options.backend.isolated = true;
        else if (strcmp(name, "--wake-all") == 0)
                options.backend.wake_all = true;
        else if (strcmp(name, "--deterministic") == 0)
                options.backend.deterministic = true;
        else if (strcmp(name, "--allow-unsupported") == 0)
                options.allow_unsupported = true;
        else if (strcmp(name, "--verbose") == 0)
                options.is_verbose = true;
        else if (strcmp(name, "--digest") == 0)
                options.is_digested = true;
        else
                return false;
        return true;
}

static bool parse_guard(const char *value) {
        options.guard = strcmp(value, "start") == 0 ? OPS_GUARD_START
                        : strcmp(value, "end") == 0 ? OPS_GUARD_END
                                                    : OPS_GUARD_NONE;
        return options.guard != OPS_GUARD_NONE;
}

static bool parse_stray(const char *value) {
        options.strays = true;
        options.stray_writes = strcmp(value, "write") == 0;
        return options.stray_writes || strcmp(value, "read") == 0;
}

static bool parse_value(const char *name, const char *value) {
        if (strcmp(name, "--guard") == 0)
                return parse_guard(value);
        if (strcmp(name, "--stray") == 0)
                return parse_stray(value);
        if (strcmp(name, "--device") == 0)
                options.backend.backend = value;
        else if (strcmp(name, "--isa") == 0)
                options.backend.isa = value;
        else if (strcmp(name, "--arithmetic") == 0)
                options.backend.fast = strcmp(value, "fast") == 0;
        else if (strcmp(name, "--threads") == 0)
                options.backend.threads = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(name, "--batch-min") == 0)
                options.backend.batch_min = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(name, "--case") == 0)
                options.only_case = strtoll(value, NULL, 10);
        else
                return false;
        return true;
}

/* The number of arguments taken: 0 for one that is no option, -1 for a wrong one. */
static int parse_option(int left, char **argv) {
        if (strncmp(argv[0], "--", 2) != 0)
                return 0;
        if (parse_flag(argv[0]))
                return 1;
        return left > 1 && parse_value(argv[0], argv[1]) ? 2 : -1;
}

static void report(const struct tally *total) {
        for (uint32_t i = 0; i < reason_count; i++)
                printf("skipped %4" PRIu32 ": %s\n", reasons[i].count, reasons[i].words);
        if (options.is_verbose)
                for (uint32_t op = 0; op < HR_OP_LIMIT; op++)
                        if (worst[op] > 0)
                                printf("largest nmse %-20s %.3g\n", hr_op_name(op), worst[op]);
        if (options.is_digested)
                printf("digest %016" PRIx64 "\n", digest);
        printf("%" PRIu32 " passed, %" PRIu32 " failed, %" PRIu32 " skipped\n", total->passed,
               total->failed, total->skipped);
}

int main(int argc, char **argv) {
        struct tally total = { 0 };
        struct hr_diag diag = { 0 };
        struct hr_device *device = NULL;
        struct ops_machine machine;
        bool good = true;
        int first = 1;

        options.backend = (struct hr_backend_config) { .backend = "cpu", .threads = 2,
                                                       .spin_us = 20 };
        options.only_case = -1;
        while (first < argc) {
                int taken = parse_option(argc - first, argv + first);

                if (taken < 0)
                        return usage();
                if (taken == 0)
                        break;
                first += taken;
        }
        options.backend.name = options.backend.backend;
        if (hr_backend_device_new(&options.backend, &diag, &device) != HR_OK) {
                fprintf(stderr, "%s\n", diag.words);
                return diag.status == HR_E_UNSUPPORTED ? 77 : 2;
        }
        if (options.guard != OPS_GUARD_NONE && device->props.kind != &hr_host_kind) {
                fprintf(stderr, "guards are for devices that read host memory\n");
                return 2;
        }
        if (ops_machine_init(&machine, device, options.guard, &diag) != HR_OK) {
                fprintf(stderr, "%s\n", diag.words);
                return 2;
        }
        if (first == argc)
                good = path_run(&machine, GOLDEN_OPS_DATA, &total);
        for (; first < argc; first++)
                good &= path_run(&machine, argv[first], &total);
        report(&total);
        ops_machine_deinit(&machine);
        return good && total.failed == 0 && total.passed > 0 ? 0 : 1;
}
