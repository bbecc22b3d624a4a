/*
 * Matrix products on the CPU device: GB/s of weights for one column, GFLOP/s for many.
 *
 *   bench_mul_mat [threads=1] [columns=1] [isa=auto] [MiB=320] [type ...]
 *
 * With one column the weights cycle through that many MiB: with 320 every byte comes from memory,
 * with 8 or so none does. Each shape is a program of many products, as a model is. Printed are the
 * median and the best of several runs.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/backend.h"
#include "core/clock.h"

#define STEPS_MAX 4096
#define RUNS 7

struct bench {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        uint8_t *pool;
        uint64_t pool_bytes, cycle_bytes;
        float *columns, *results;
        struct hr_operand sources[2 * STEPS_MAX];
        struct hr_step steps[STEPS_MAX];
        int32_t params[HR_OP_PARAM_WORDS];
};

static void must(hr_status status, const struct hr_diag *diag) {
        if (status == HR_OK)
                return;
        fprintf(stderr, "%s: %s\n", hr_status_name(status), diag->words);
        exit(1);
}

static struct hr_operand operand_of(uint32_t type, int64_t rows, int64_t columns, void *data) {
        struct hr_operand operand = {.type = type, .ne = {rows, columns, 1, 1}, .data = data};
        uint64_t row_bytes;

        if (!hr_type_row_bytes(type, rows, &row_bytes))
                exit(1);
        operand.nb[0] = hr_type_info(type)->block_bytes;
        operand.nb[1] = row_bytes;
        operand.nb[2] = operand.nb[3] = row_bytes * (uint64_t) columns;
        operand.room = operand.nb[3];
        return operand;
}

/* Products of m x k weights with n columns; as many as fit the pool. Returns how many. */
static uint32_t fill_steps(struct bench *bench, uint32_t type, int64_t m, int64_t k, int64_t n) {
        struct hr_operand weights = operand_of(type, k, m, NULL);
        uint64_t each = (weights.nb[2] + 4095) & ~UINT64_C(4095);
        uint64_t count = n > 1 ? 1 : HR_MAX(bench->cycle_bytes / each, 1);
        uint32_t steps = count > STEPS_MAX ? STEPS_MAX : (uint32_t) count;

        for (uint32_t i = 0; i < steps; i++) {
                weights.data = bench->pool + each * i;
                bench->sources[2 * i] = weights;
                bench->sources[2 * i + 1] = operand_of(HR_TYPE_F32, k, n, bench->columns);
                bench->steps[i] =
                        (struct hr_step){.op = HR_OP_MUL_MAT,
                                         .node = i,
                                         .params = bench->params,
                                         .result = operand_of(HR_TYPE_F32, m, n, bench->results),
                                         .source_count = 2,
                                         .sources = &bench->sources[2 * i]};
        }
        return steps;
}

static int by_value(const void *a, const void *b) {
        double x = *(const double *) a, y = *(const double *) b;

        return (x > y) - (x < y);
}

static void measure(struct bench *bench, uint32_t type, int64_t m, int64_t k, int64_t n) {
        uint32_t count = fill_steps(bench, type, m, k, n);
        struct hr_steps steps = {count, bench->steps};
        struct hr_program *program;
        struct hr_outcome outcome = {0};
        struct hr_diag diag = {0};
        double seconds[RUNS], bytes = (double) bench->sources[0].nb[2] * count;
        double operations = 2.0 * (double) m * (double) k * (double) n * count;
        uint32_t repeats = 1;

        must(hr_program_new(bench->device, &steps, &diag, &program), &diag);
        for (int run = -1; run < RUNS; run++) { /* the first is to warm up, and to see how long */
                uint64_t start = hr_clock_now_ns(), took;

                for (uint32_t i = 0; i < repeats; i++)
                        must(hr_queue_compute(bench->queue, program, 0, count, &outcome, &diag),
                             &diag);
                must(hr_queue_record(bench->queue, bench->event, &diag), &diag);
                must(hr_event_synchronize(bench->event, 60 * HR_NS_PER_S, &diag), &diag);
                took = hr_clock_now_ns() - start;
                if (run >= 0)
                        seconds[run] = (double) took / 1e9 / repeats;
                else if (took < 40 * HR_NS_PER_MS)
                        repeats = 1 + (uint32_t) (40 * HR_NS_PER_MS / (took + 1));
        }
        qsort(seconds, RUNS, sizeof seconds[0], by_value);
        if (n == 1)
                printf("  %5lldx%-5lld %7.2f us %6.1f (%5.1f) GB/s", (long long) m, (long long) k,
                       seconds[RUNS / 2] / count * 1e6, bytes / seconds[RUNS / 2] / 1e9,
                       bytes / seconds[0] / 1e9);
        else
                printf("  %5lldx%-5lld %6.1f (%6.1f) GFLOP/s", (long long) m, (long long) k,
                       operations / seconds[RUNS / 2] / 1e9, operations / seconds[0] / 1e9);
        fflush(stdout);
        (void) hr_program_free(program);
}

static void bench_init(struct bench *bench, uint32_t threads, const char *isa, int64_t n) {
        struct hr_cpu_config config = {
                .name = "cpu0", .threads = threads, .spin_us = 1000, .isa = isa};
        struct hr_diag diag = {0};
        uint64_t state = 1;

        must(hr_cpu_device_new(&config, &diag, &bench->device), &diag);
        must(hr_queue_new(bench->device, &diag, &bench->queue), &diag);
        must(hr_event_new(bench->device, &diag, &bench->event), &diag);
        bench->pool = aligned_alloc(4096, bench->pool_bytes);
        bench->columns = aligned_alloc(64, 8192 * sizeof(float) * (size_t) n);
        bench->results = aligned_alloc(64, 65536 * sizeof(float) * (size_t) n);
        if (!bench->pool || !bench->columns || !bench->results)
                exit(1);
        for (uint64_t i = 0; i < bench->pool_bytes / 8; i++) { /* no bits of a NaN or an infinity */
                uint64_t bits;

                state = state * UINT64_C(6364136223846793005) + 1442695040888963407U;
                bits = (state >> 16 ^ state) & UINT64_C(0x3b3b3b3b3b3b3b3b);
                memcpy(bench->pool + 8 * i, &bits, sizeof bits);
        }
        for (int64_t i = 0; i < 8192 * n; i++)
                bench->columns[i] = sinf((float) i);
}

int main(int argc, char **argv) {
        static const int64_t shapes[][2] = {
                {4096, 4096}, {576, 576}, {1536, 576}, {576, 1536}, {192, 576}};
        static const char *const defaults[] = {"f32",  "f16",  "bf16", "q8_0",
                                               "q4_0", "q4_1", "q4_K", "q6_K"};
        static struct bench bench;
        uint32_t threads = argc > 1 ? (uint32_t) atoi(argv[1]) : 1;
        int64_t n = argc > 2 ? atoi(argv[2]) : 1;
        int types = argc > 5 ? argc - 5 : (int) HR_ARRAY_LENGTH(defaults);

        bench.cycle_bytes = (argc > 4 ? strtoull(argv[4], NULL, 10) : 320) << 20;
        bench.pool_bytes = HR_MAX(bench.cycle_bytes, UINT64_C(64) << 20);
        if (n < 1 || n > 4096)
                return 1;
        bench_init(&bench, threads, argc > 3 ? argv[3] : "auto", n);
        for (int t = 0; t < types; t++) {
                const char *name = argc > 5 ? argv[5 + t] : defaults[t];
                int type = hr_type_from_name(name);

                if (type < 0)
                        return 1;
                printf("%-6s", name);
                for (size_t s = 0; s < HR_ARRAY_LENGTH(shapes); s++)
                        if (shapes[s][1] % hr_type_info((uint32_t) type)->block_elements == 0)
                                measure(&bench, (uint32_t) type, shapes[s][0], shapes[s][1], n);
                printf("\n");
        }
        return 0;
}
