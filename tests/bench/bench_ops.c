/*
 * Operators on one device, timed for `./bench ops`, which speaks to it in lines:
 *
 *   mul_mat WAY TYPE M K N THREADS MIB   products of m x k weights with n columns: as many as fill
 * MIB with weights, one at least. WAY: cpu, fast (cpu with that arithmetic) or another backend
 *   attend THREADS SIZE HEADS KEY_HEADS KEYS QUERIES COPIES      attention over f16 keys and values
 *                                                -> "ok OPERATORS" or "no"
 *   run PASSES            computes them all so often        -> ns an operator
 *   read THREADS MIB      sums memory that no cache holds   -> bytes a ns
 *   peak KIND THREADS     dot products of int8 or f32       -> operations a ns; 0: none here
 *
 * As a model is, a pass is one program of many operators whose weights follow one another in
 * memory.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/device.h"
#include "core/graph.h"
#include "tests/bench/peaks.h"

#define STEPS_MAX 8192U
#define SPIN_US 1000U
#define LARGE_PAGE (UINT64_C(2) << 20)
#define PASS_NS_MAX (120 * HR_NS_PER_S)

struct bench {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_program *program;
        uint8_t *pool; /* weights, or keys and values */
        uint64_t pool_bytes;
        float *columns, *results;
        uint64_t columns_bytes, results_bytes;
        uint16_t *mask;
        struct hr_operand sources[4 * STEPS_MAX];
        struct hr_step steps[STEPS_MAX];
        struct hr_steps all;
        int32_t params[HR_OP_PARAM_WORDS];
};

static void must(hr_status status, const struct hr_diag *diag) {
        if (status == HR_OK)
                return;
        fprintf(stderr, "bench_ops: %s: %s\n", hr_status_name(status), diag->words);
        exit(1);
}

/* Memory as the daemon's own: in large pages where there are any. */
static void *room_for(void *old, uint64_t *bytes, uint64_t wanted) {
        if (wanted <= *bytes)
                return old;
        free(old);
        *bytes = (wanted + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        old = aligned_alloc(LARGE_PAGE, *bytes);
        if (!old)
                exit(1);
        (void) madvise(old, *bytes, MADV_HUGEPAGE);
        return old;
}

/* Bits that are no NaN, no infinity and no large number in any float type. */
static void fill_pool(struct bench *bench, uint64_t bytes) {
        uint64_t state = 1;

        if (bytes <= bench->pool_bytes)
                return;
        bench->pool = room_for(bench->pool, &bench->pool_bytes, bytes);
        for (uint64_t i = 0; i < bench->pool_bytes / 8; i++) {
                uint64_t bits;

                state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
                bits = (state >> 16 ^ state) & UINT64_C(0x3b3b3b3b3b3b3b3b);
                memcpy(bench->pool + 8 * i, &bits, sizeof bits);
        }
}

static void fill_floats(struct bench *bench, uint64_t columns, uint64_t results) {
        bench->columns = room_for(bench->columns, &bench->columns_bytes, columns * sizeof(float));
        bench->results = room_for(bench->results, &bench->results_bytes, results * sizeof(float));
        for (uint64_t i = 0; i < columns; i++)
                bench->columns[i] = sinf((float) i);
}

static struct hr_operand operand_of(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2,
                                    void *data) {
        struct hr_operand operand = {.type = type, .ne = {ne0, ne1, ne2, 1}, .data = data};
        uint64_t row_bytes;

        if (!hr_type_row_bytes(type, ne0, &row_bytes))
                exit(1);
        operand.nb[0] = hr_type_info(type)->block_bytes;
        operand.nb[1] = row_bytes;
        operand.nb[2] = row_bytes * (uint64_t) ne1;
        operand.nb[3] = operand.room = operand.nb[2] * (uint64_t) ne2;
        return operand;
}

static void device_close(struct bench *bench) {
        bench->program = hr_program_free(bench->program);
        bench->event = hr_event_free(bench->event);
        bench->queue = hr_queue_free(bench->queue);
        bench->device = hr_device_unref(bench->device);
}

static bool device_open(struct bench *bench, const struct hr_backend_config *config) {
        struct hr_diag diag = {0};

        device_close(bench);
        if (hr_backend_device_new(config, &diag, &bench->device) != HR_OK)
                return false;
        must(hr_queue_new(bench->device, &diag, &bench->queue), &diag);
        must(hr_event_new(bench->device, &diag, &bench->event), &diag);
        return true;
}

static void program_open(struct bench *bench, uint32_t count) {
        struct hr_diag diag = {0};

        bench->all = (struct hr_steps) {count, bench->steps};
        must(hr_program_new(bench->device, &bench->all, &diag, &bench->program), &diag);
        printf("ok %u\n", count);
}

static bool mul_mat_open(struct bench *bench, const char *line) {
        char way[16], type_name[16];
        long long m, k, n, mib;
        unsigned threads;
        struct hr_operand weights;
        uint64_t each, count;
        bool is_fast;
        int type;

        if (sscanf(line, "mul_mat %15s %15s %lld %lld %lld %u %lld", way, type_name, &m, &k, &n,
                   &threads, &mib) != 7)
                return false;
        is_fast = strcmp(way, "fast") == 0;
        type = hr_type_from_name(type_name);
        if (type < 0 || m < 1 || k < 1 || n < 1 || mib < 0 ||
            k % hr_type_info((uint32_t) type)->block_elements ||
            !device_open(bench, &(struct hr_backend_config) {.backend = is_fast ? "cpu" : way,
                                                             .name = "bench",
                                                             .fast = is_fast,
                                                             .batch_min = 1,
                                                             .threads = threads,
                                                             .spin_us = SPIN_US}))
                return false;
        weights = operand_of((uint32_t) type, k, m, 1, NULL);
        each = (weights.room + 4095) & ~UINT64_C(4095);
        count = HR_MIN(HR_MAX(((uint64_t) mib << 20) / each, 1), STEPS_MAX);
        fill_pool(bench, each * count);
        fill_floats(bench, (uint64_t) (k * n), (uint64_t) (m * n));
        for (uint32_t i = 0; i < count; i++) {
                weights.data = bench->pool + each * i;
                bench->sources[2 * i] = weights;
                bench->sources[2 * i + 1] = operand_of(HR_TYPE_F32, k, n, 1, bench->columns);
                bench->steps[i] =
                        (struct hr_step){.op = HR_OP_MUL_MAT,
                                         .node = i,
                                         .params = bench->params,
                                         .result = operand_of(HR_TYPE_F32, m, n, 1, bench->results),
                                         .source_count = 2,
                                         .sources = &bench->sources[2 * i]};
        }
        program_open(bench, (uint32_t) count);
        return true;
}

/* Every query sees the keys up to its own place; the last query sees all. */
static void fill_mask(struct bench *bench, int64_t keys, int64_t queries) {
        uint16_t *mask;

        free(bench->mask);
        mask = bench->mask = calloc((size_t) (keys * queries), sizeof *mask);
        if (!mask)
                exit(1);
        for (int64_t q = 0; q < queries; q++)
                for (int64_t i = keys - queries + q + 1; i < keys; i++)
                        mask[q * keys + i] = 0xfc00; /* -inf */
}

static bool attend_open(struct bench *bench, const char *line) {
        long long size, heads, key_heads, keys, queries;
        unsigned threads, copies;
        uint64_t each;
        float scale;

        if (sscanf(line, "attend %u %lld %lld %lld %lld %lld %u", &threads, &size, &heads,
                   &key_heads, &keys, &queries, &copies) != 7 ||
            size < 1 || heads < 1 || key_heads < 1 || keys < queries || queries < 1 || !copies ||
            copies > STEPS_MAX ||
            !device_open(bench, &(struct hr_backend_config) {.backend = "cpu",
                                                             .name = "bench",
                                                             .threads = threads,
                                                             .spin_us = SPIN_US}))
                return false;
        each = (uint64_t) (size * keys * key_heads) * 2;
        fill_pool(bench, 2 * each * copies);
        fill_floats(bench, (uint64_t) (size * queries * heads),
                    (uint64_t) (size * heads * queries));
        fill_mask(bench, keys, queries);
        scale = 1.0f / sqrtf((float) size);
        memset(bench->params, 0, sizeof bench->params);
        memcpy(bench->params, &scale, sizeof scale);
        for (uint32_t i = 0; i < copies; i++) {
                struct hr_operand *sources = &bench->sources[4 * i];
                uint8_t *at = bench->pool + 2 * each * i;

                sources[0] = operand_of(HR_TYPE_F32, size, queries, heads, bench->columns);
                sources[1] = operand_of(HR_TYPE_F16, size, keys, key_heads, at);
                sources[2] = operand_of(HR_TYPE_F16, size, keys, key_heads, at + each);
                for (int s = 1; s < 3; s++) { /* a cache holds all heads of a key side by side */
                        sources[s].nb[1] = (uint64_t) (size * key_heads) * 2;
                        sources[s].nb[2] = (uint64_t) size * 2;
                }
                sources[3] = operand_of(HR_TYPE_F16, keys, queries, 1, bench->mask);
                bench->steps[i] = (struct hr_step) {
                        .op = HR_OP_FLASH_ATTN_EXT,
                        .node = i,
                        .params = bench->params,
                        .result = operand_of(HR_TYPE_F32, size, heads, queries, bench->results),
                        .source_count = 4,
                        .sources = sources};
        }
        program_open(bench, copies);
        return true;
}

/* ns an operator. */
static double run(struct bench *bench, uint32_t passes) {
        struct hr_outcome outcome = {0};
        struct hr_diag diag = {0};
        uint64_t start = hr_clock_now_ns();

        for (uint32_t i = 0; i < passes; i++)
                must(hr_queue_compute(bench->queue, bench->program, 0, bench->all.count, &outcome,
                                      &diag),
                     &diag);
        must(hr_queue_record(bench->queue, bench->event, &diag), &diag);
        must(hr_event_synchronize(bench->event, PASS_NS_MAX, &diag), &diag);
        return (double) (hr_clock_now_ns() - start) / passes / bench->all.count;
}

static bool answer(struct bench *bench, const char *line) {
        unsigned threads, count;
        char kind[16];

        if (sscanf(line, "run %u", &count) == 1 && bench->program && count > 0)
                return printf("%.1f\n", run(bench, count)) > 0;
        if (sscanf(line, "read %u %u", &threads, &count) == 2 && threads > 0 && count > 0) {
                fill_pool(bench, (uint64_t) count << 20);
                return printf("%.3f\n", bench_read_peak(bench->pool, (uint64_t) count << 20,
                                                        threads)) > 0;
        }
        if (sscanf(line, "peak %15s %u", kind, &threads) == 2 && threads > 0)
                return printf("%.3f\n", bench_dot_peak(kind, threads)) > 0;
        if (strncmp(line, "mul_mat", 7) == 0)
                return mul_mat_open(bench, line);
        return strncmp(line, "attend", 6) == 0 && attend_open(bench, line);
}

int main(void) {
        static struct bench bench;
        char line[256];

        while (fgets(line, sizeof line, stdin)) {
                if (!answer(&bench, line))
                        printf("no\n");
                (void) fflush(stdout);
        }
        device_close(&bench);
        free(bench.pool);
        free(bench.columns);
        free(bench.results);
        free(bench.mask);
        return 0;
}
