/*
 * What the machine's GPUs are and what they can do at most: the first thing to know on a new
 * machine, and what other figures are shares of.
 *
 *   gpu_probe                          opens every GPU as a device, which tests its copies; a JSON
 * line each gpu_probe peaks GPU BYTES SIDE     rates of that GPU: copies of BYTES, a product of
 * bf16 matrices of SIDE x SIDE by cuBLASLt (null without the library)
 *
 * A copy within the GPU counts twice, read and written. Rates are medians of rounds; the matrices
 * hold random numbers, because zeros cost the GPU less. Exit status 1, with words, where something
 * fails.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/blas.h"
#include "core/clock.h"
#include "core/type.h"

#define ROUNDS 5
#define COPIES 20       /* a round */
#define PRODUCTS 10     /* a round */
#define WORKSPACE_BYTES (UINT64_C(32) << 20)

HR_NORETURN static void give_up(const struct hr_diag *diag, const char *what) {
        fprintf(stderr, "%s: %s\n", what, diag->words);
        exit(1);
}

static void must(hr_status status, const struct hr_diag *diag, const char *what) {
        if (status != HR_OK)
                give_up(diag, what);
}

/* ---- GPUs ------------------------------------------------------------------------------------ */

/* Text of ours and of the driver's, as a JSON string. */
static void print_text(const char *text) {
        (void) putchar('"');
        for (; *text; text++)
                if (*text == '"' || *text == '\\')
                        printf("\\%c", *text);
                else if ((unsigned char) *text >= ' ')
                        (void) putchar(*text);
        (void) putchar('"');
}

static void print_gpu(uint32_t number) {
        const struct hr_cuda_config config = { .name = "gpu", .gpu = number };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };
        uint64_t free_bytes, total_bytes, start;

        if (!hr_cuda_gpu_is_usable(number)) {
                printf("{\"gpu\": %" PRIu32 ", \"usable\": false}\n", number);
                return;
        }
        start = hr_clock_now_ns();
        must(hr_cuda_device_new(&config, &diag, &device), &diag, "opening a GPU");
        hr_device_memory(device, &free_bytes, &total_bytes);
        printf("{\"gpu\": %" PRIu32 ", \"usable\": true, \"description\": ", number);
        print_text(device->props.description);
        printf(", \"free_bytes\": %" PRIu64 ", \"total_bytes\": %" PRIu64
               ", \"open_ms\": %.1f, \"products\": %s}\n",
               free_bytes, total_bytes, (double) (hr_clock_now_ns() - start) / 1e6,
               cuda_blas_open() ? "true" : "false");
        (void) hr_device_unref(device);
}

static int print_gpus(void) {
        struct hr_diag diag = { 0 };
        uint32_t count = 0;

        must(hr_cuda_gpu_count(&diag, &count), &diag, "no driver");
        if (count == 0) {
                fprintf(stderr, "no GPU: the driver counts none\n");
                return 1;
        }
        for (uint32_t i = 0; i < count; i++)
                print_gpu(i);
        return 0;
}

/* ---- Rates ----------------------------------------------------------------------------------- */

struct bench {
        struct cuda_gpu *gpu;
        CUstream stream;
        CUdeviceptr from, to;
        void *pinned;
        uint64_t bytes; /* of each */
        struct cuda_matmul *matmul;
};

typedef CUresult act_fn(struct bench *bench);

static void check(struct bench *bench, CUresult result, const char *what) {
        struct hr_diag diag = { 0 };

        must(cuda_gpu_check(bench->gpu, result, what, &diag), &diag, what);
}

static CUresult copy_within(struct bench *bench) {
        return bench->gpu->cu->cuMemcpyDtoDAsync(bench->to, bench->from, bench->bytes,
                                                 bench->stream);
}

static CUresult copy_in(struct bench *bench) {
        return bench->gpu->cu->cuMemcpyHtoDAsync(bench->to, bench->pinned, bench->bytes,
                                                 bench->stream);
}

static CUresult copy_out(struct bench *bench) {
        return bench->gpu->cu->cuMemcpyDtoHAsync(bench->pinned, bench->from, bench->bytes,
                                                 bench->stream);
}

static CUresult multiply(struct bench *bench) {
        return cuda_matmul_launch(bench->matmul, bench->stream);
}

static int compare(const void *a, const void *b) {
        double x = *(const double *) a, y = *(const double *) b;

        return (x > y) - (x < y);
}

/* Seconds that one of them takes: the median of rounds of `count`, after one that warms up. */
static double seconds_of(struct bench *bench, act_fn *act, uint32_t count, const char *what) {
        double seconds[ROUNDS];

        for (int round = -1; round < ROUNDS; round++) {
                uint64_t start = hr_clock_now_ns();

                for (uint32_t i = 0; i < count; i++)
                        check(bench, act(bench), what);
                check(bench, bench->gpu->cu->cuStreamSynchronize(bench->stream), what);
                if (round >= 0)
                        seconds[round] = (double) (hr_clock_now_ns() - start) / 1e9 / count;
        }
        qsort(seconds, ROUNDS, sizeof *seconds, compare);
        return seconds[ROUNDS / 2];
}

static void fill_random(uint16_t *values, uint64_t count) {
        uint64_t state = UINT64_C(0x9e3779b97f4a7c15);

        for (uint64_t i = 0; i < count; i++) {
                float value;
                uint32_t bits;

                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                value = (float) ((double) (state >> 40) / (1 << 23) - 1);
                memcpy(&bits, &value, sizeof bits);
                values[i] = (uint16_t) (bits >> 16);
        }
}

/* Bytes a second: within the GPU, to it, from it. */
static void measure_copies(struct bench *bench) {
        double bytes = (double) bench->bytes;

        printf("{\"copy\": %.4g", 2 * bytes / seconds_of(bench, copy_within, COPIES, "a copy"));
        printf(", \"to_device\": %.4g", bytes / seconds_of(bench, copy_in, COPIES, "a copy"));
        printf(", \"to_host\": %.4g", bytes / seconds_of(bench, copy_out, COPIES, "a copy"));
}

/* Operations a second. */
static void measure_product(struct bench *bench, int64_t side) {
        const struct cuda_syms *cu = bench->gpu->cu;
        uint64_t matrix_bytes = (uint64_t) (side * side) * 2;
        struct cuda_matmul_spec spec = {
                .type = HR_TYPE_BF16,
                .m = side, .n = side, .k = side,
                .a_stride = side, .b_stride = side, .out_stride = side,
                .workspace_bytes = WORKSPACE_BYTES,
        };
        struct hr_diag diag = { 0 };
        CUdeviceptr memory = 0;
        double seconds;

        must(cuda_gpu_memory_take(bench->gpu, "gpu_probe", 4 * matrix_bytes + WORKSPACE_BYTES,
                                  &diag, &memory),
             &diag, "memory");
        spec.a = memory;
        spec.b = memory + matrix_bytes;
        spec.out = memory + 2 * matrix_bytes;
        spec.workspace = memory + 4 * matrix_bytes;
        fill_random(bench->pinned, (uint64_t) (side * side));
        check(bench, cu->cuMemcpyHtoDAsync(spec.a, bench->pinned, matrix_bytes, bench->stream),
              "copy");
        check(bench, cu->cuMemcpyHtoDAsync(spec.b, bench->pinned, matrix_bytes, bench->stream),
              "copy");
        must(cuda_matmul_new(bench->gpu, &spec, &diag, &bench->matmul), &diag, "a product");
        seconds = seconds_of(bench, multiply, PRODUCTS, "a product");
        printf(", \"matrix\": %.4g", 2 * (double) side * (double) side * (double) side / seconds);
        bench->matmul = cuda_matmul_free(bench->matmul);
        cuda_gpu_memory_give(bench->gpu, memory);
}

static int measure(uint32_t number, uint64_t bytes, int64_t side) {
        struct bench bench = { .bytes = HR_MAX(bytes, (uint64_t) (side * side) * 2) };
        struct hr_diag diag = { 0 };
        const struct cuda_syms *cu;

        must(cuda_gpu_ref(number, &diag, &bench.gpu), &diag, "opening the GPU");
        cu = bench.gpu->cu;
        must(cuda_gpu_enter(bench.gpu, &diag), &diag, "entering the GPU");
        check(&bench, cu->cuStreamCreate(&bench.stream, CU_STREAM_NON_BLOCKING), "a stream");
        must(cuda_gpu_memory_take(bench.gpu, "gpu_probe", bench.bytes, &diag, &bench.from), &diag,
             "memory");
        must(cuda_gpu_memory_take(bench.gpu, "gpu_probe", bench.bytes, &diag, &bench.to), &diag,
             "memory");
        check(&bench, cu->cuMemHostAlloc(&bench.pinned, bench.bytes, CU_MEMHOSTALLOC_PORTABLE),
              "pinned memory");
        memset(bench.pinned, 0x5a, bench.bytes);
        measure_copies(&bench);
        if (cuda_blas_open())
                measure_product(&bench, side);
        else
                printf(", \"matrix\": null");
        printf("}\n");
        check(&bench, cu->cuMemFreeHost(bench.pinned), "pinned memory");
        cuda_gpu_memory_give(bench.gpu, bench.from);
        cuda_gpu_memory_give(bench.gpu, bench.to);
        check(&bench, cu->cuStreamDestroy(bench.stream), "a stream");
        (void) cuda_gpu_unref(bench.gpu);
        return 0;
}

int main(int argc, char **argv) {
        uint64_t gpu, bytes, side;

        if (argc == 1)
                return print_gpus();
        if (argc != 5 || strcmp(argv[1], "peaks") != 0) {
                fprintf(stderr, "usage: gpu_probe [peaks GPU BYTES SIDE]\n");
                return 2;
        }
        gpu = strtoull(argv[2], NULL, 10);
        bytes = strtoull(argv[3], NULL, 10);
        side = strtoull(argv[4], NULL, 10);
        if (gpu >= CUDA_GPUS_MAX || bytes < 1 || bytes > UINT64_C(1) << 36 || side < 64 ||
            side > 16384 || side % 64 != 0) {
                fprintf(stderr,
                        "GPU below %d, BYTES up to 64 GiB, SIDE a multiple of 64 up to 16384\n",
                        CUDA_GPUS_MAX);
                return 2;
        }
        return measure((uint32_t) gpu, bytes, (int64_t) side);
}
