/*
 * One product on the CPU device and on the BLAS device in turn, for a growing number of columns.
 *
 *   bench_blas THREADS ROWS K TYPE COLUMNS...
 *
 * Prints one JSON object per number of columns: the medians of both, in nanoseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "core/clock.h"

#define RUNS 9
#define RUN_NS (10 * HR_NS_PER_MS)

struct side {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_program *program;
        uint32_t repeats;
        double ns[RUNS];
};

static void must(hr_status status, const struct hr_diag *diag) {
        if (status == HR_OK)
                return;
        fprintf(stderr, "%s: %s\n", hr_status_name(status), diag->words);
        exit(1);
}

static void side_open(struct side *side, const char *backend, uint32_t threads) {
        struct hr_backend_config config = {
                .backend = backend,
                .name = backend,
                .threads = threads,
                .spin_us = 1000,
                .batch_min = 1,
        };
        struct hr_diag diag = {0};

        must(hr_backend_device_new(&config, &diag, &side->device), &diag);
        must(hr_queue_new(side->device, &diag, &side->queue), &diag);
        must(hr_event_new(side->device, &diag, &side->event), &diag);
}

static double side_run(struct side *side, uint32_t repeats) {
        struct hr_outcome outcome = {0};
        struct hr_diag diag = {0};
        uint64_t start = hr_clock_now_ns();

        for (uint32_t i = 0; i < repeats; i++)
                must(hr_queue_compute(side->queue, side->program, 0, 1, &outcome, &diag), &diag);
        must(hr_queue_record(side->queue, side->event, &diag), &diag);
        must(hr_event_synchronize(side->event, 60 * HR_NS_PER_S, &diag), &diag);
        return (double) (hr_clock_now_ns() - start) / repeats;
}

static void side_prepare(struct side *side, const struct hr_steps *steps) {
        struct hr_diag diag = {0};
        double first;

        must(hr_program_new(side->device, steps, &diag, &side->program), &diag);
        (void) side_run(side, 1);
        first = side_run(side, 1);
        side->repeats = 1 + (uint32_t) ((double) RUN_NS / first);
}

static int by_value(const void *a, const void *b) {
        double x = *(const double *) a, y = *(const double *) b;

        return (x > y) - (x < y);
}

static double median(double values[RUNS]) {
        qsort(values, RUNS, sizeof values[0], by_value);
        return values[RUNS / 2];
}

/* Memory whose bytes are finite numbers in every type. */
static void *memory_of(uint64_t bytes) {
        uint8_t *memory = aligned_alloc(64, (size_t) ((bytes + 63) / 64 * 64));
        uint32_t state = 1;

        if (!memory)
                exit(1);
        for (uint64_t i = 0; i < bytes; i++) {
                state = state * 1664525 + 1013904223;
                memory[i] = (uint8_t) (state >> 24 & 0x3b);
        }
        return memory;
}

static struct hr_operand operand_of(uint32_t type, int64_t ne0, int64_t ne1) {
        struct hr_operand operand = {.type = type, .ne = {ne0, ne1, 1, 1}};
        uint64_t row_bytes;

        if (!hr_type_row_bytes(type, ne0, &row_bytes))
                exit(1);
        operand.nb[0] = hr_type_info(type)->block_bytes;
        operand.nb[1] = row_bytes;
        operand.nb[2] = operand.nb[3] = operand.room = row_bytes * (uint64_t) ne1;
        operand.data = memory_of(operand.room);
        return operand;
}

static void compare(struct side sides[2], uint32_t type, int64_t m, int64_t k, int64_t n) {
        static const int32_t params[HR_OP_PARAM_WORDS];
        struct hr_operand sources[2] = {operand_of(type, k, m), operand_of(HR_TYPE_F32, k, n)};
        struct hr_step step = {
                .op = HR_OP_MUL_MAT,
                .params = params,
                .result = operand_of(HR_TYPE_F32, m, n),
                .source_count = 2,
                .sources = sources,
        };
        struct hr_steps steps = {1, &step};

        for (int i = 0; i < 2; i++)
                side_prepare(&sides[i], &steps);
        for (int run = 0; run < RUNS; run++)
                for (int i = 0; i < 2; i++)
                        sides[i].ns[run] = side_run(&sides[i], sides[i].repeats);
        printf("{\"columns\": %lld, \"cpu_ns\": %.0f, \"blas_ns\": %.0f}\n", (long long) n,
               median(sides[0].ns), median(sides[1].ns));
        fflush(stdout);
        for (int i = 0; i < 2; i++)
                sides[i].program = hr_program_free(sides[i].program);
        free(sources[0].data);
        free(sources[1].data);
        free(step.result.data);
}

int main(int argc, char **argv) {
        struct side sides[2] = {0};
        int type = argc > 5 ? hr_type_from_name(argv[4]) : -1;

        if (type < 0) {
                fprintf(stderr, "usage: bench_blas THREADS ROWS K TYPE COLUMNS...\n");
                return 1;
        }
        side_open(&sides[0], "cpu", (uint32_t) atoi(argv[1]));
        side_open(&sides[1], "blas", (uint32_t) atoi(argv[1]));
        for (int i = 5; i < argc; i++)
                compare(sides, (uint32_t) type, atoll(argv[2]), atoll(argv[3]), atoll(argv[i]));
        for (int i = 0; i < 2; i++) {
                sides[i].event = hr_event_free(sides[i].event);
                sides[i].queue = hr_queue_free(sides[i].queue);
                sides[i].device = hr_device_unref(sides[i].device);
        }
        return 0;
}
