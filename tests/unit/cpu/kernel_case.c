/* See kernel_case.h. */
#include "tests/unit/cpu/kernel_case.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backends/cpu/matrix/half.h"
#include "tests/harness.h"

#define PATTERN 0xa5
#define SCRATCH_BAND 64
#define THREADS_MAX 8
#define MAPS_MAX 65536

struct cpu_team {
        pthread_barrier_t barrier;
        atomic_uint next, next_own[THREADS_MAX];
        atomic_int refused;
};

void cpu_barrier(const struct cpu_call *call) {
        if (call->threads > 1)
                pthread_barrier_wait(&call->team->barrier);
}

uint32_t cpu_next_item(const struct cpu_call *call, uint32_t count) {
        uint32_t item = atomic_fetch_add(&call->team->next, 1);

        return item < count ? item : count;
}

uint32_t cpu_next_own(const struct cpu_call *call, uint32_t thread, uint32_t count) {
        uint32_t item = atomic_fetch_add(&call->team->next_own[thread], 1);

        return item < count ? item : count;
}

void cpu_fail_index(const struct cpu_call *call, const char *what, int64_t value, int64_t limit) {
        HR_EXPECT(value < 0 || value >= limit);
        atomic_fetch_add(&call->team->refused, 1);
}

static const char *const set_names[] = {"portable", "avx2", "avx512", "avx512bf16"};

const struct cpu_dot *const *case_sets(uint32_t *ret_count) {
        static const struct cpu_dot *sets[HR_ARRAY_LENGTH(set_names)];
        uint32_t count = 0;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(set_names); i++) {
                const struct cpu_dot *dot = cpu_dot_select(set_names[i]);

                if (dot)
                        sets[count++] = dot;
        }
        *ret_count = count;
        return sets;
}

const struct cpu_dot *const *case_product_sets(uint32_t *ret_count) {
        static const struct cpu_dot *sets[2 * HR_ARRAY_LENGTH(set_names)];
        uint32_t count;
        const struct cpu_dot *const *plain = case_sets(&count);

        for (uint32_t i = 0; i < count; i++) {
                sets[i] = plain[i];
                sets[count + i] = cpu_dot_fast(plain[i]);
                HR_EXPECT(sets[count + i] != plain[i]);
        }
        *ret_count = 2 * count;
        return sets;
}

static struct {
        void *base;
        size_t bytes;
} maps[MAPS_MAX];
static size_t map_count;

void *case_memory(uint64_t bytes) {
        size_t page = (size_t) sysconf(_SC_PAGESIZE), body = (bytes + page - 1) / page * page;
        uint8_t *base =
                mmap(NULL, body + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        HR_EXPECT(base != MAP_FAILED);
        HR_EXPECT(map_count < MAPS_MAX);
        HR_EXPECT(mprotect(base + body, page, PROT_NONE) == 0);
        maps[map_count].base = base;
        maps[map_count++].bytes = body + page;
        return base + body - bytes;
}

void case_free_all(void) {
        while (map_count) {
                map_count--;
                munmap(maps[map_count].base, maps[map_count].bytes);
        }
}

uint32_t case_random(void) {
        static uint64_t state = 88172645463325252U;

        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (uint32_t) (state >> 16);
}

float case_uniform(void) {
        return (float) (case_random() % 65536) / 32768.0f - 1.0f;
}

/* Byte offsets of the f16 scales of a block. */
static int scale_offsets(uint32_t type, int ret_at[2]) {
        switch (type) {
        case HR_TYPE_Q4_1:
        case HR_TYPE_Q5_1:
        case HR_TYPE_Q4_K:
        case HR_TYPE_Q5_K:
                ret_at[0] = 0;
                ret_at[1] = 2;
                return 2;
        case HR_TYPE_Q2_K:
                ret_at[0] = 80;
                ret_at[1] = 82;
                return 2;
        case HR_TYPE_Q3_K:
                ret_at[0] = 108;
                return 1;
        case HR_TYPE_Q6_K:
                ret_at[0] = 208;
                return 1;
        case HR_TYPE_TQ1_0:
                ret_at[0] = 52;
                return 1;
        case HR_TYPE_TQ2_0:
                ret_at[0] = 64;
                return 1;
        case HR_TYPE_IQ1_M: /* in pieces; MXFP4, NVFP4: no f16 at all */
        case HR_TYPE_MXFP4:
        case HR_TYPE_NVFP4:
                return 0;
        default:
                ret_at[0] = 0;
                return 1;
        }
}

/* Into the top bits of four 16-bit words. */
static void spread_half(uint8_t *words, float value) {
        uint16_t half = cpu_float_to_half(value);

        for (int j = 0; j < 4; j++)
                words[2 * j + 1] = (uint8_t) ((words[2 * j + 1] & 15) | (half >> 4 * j & 15) << 4);
}

void case_fill_blocks(uint32_t type, uint8_t *bytes, uint64_t count) {
        const struct hr_type_info *info = hr_type_info(type);
        int at[2], scales = scale_offsets(type, at);

        for (uint64_t i = 0; i < count; i++)
                bytes[i] = (uint8_t) case_random();
        for (uint64_t b = 0; b + info->block_bytes <= count; b += info->block_bytes)
                for (int s = 0; s < scales; s++)
                        cpu_write_half(bytes + b + at[s], case_uniform() * 0.125f);
        for (uint64_t b = 0; b + info->block_bytes <= count; b += info->block_bytes) {
                if (type == HR_TYPE_IQ1_M)
                        spread_half(bytes + b + 48, case_uniform() * 0.125f);
                if (type == HR_TYPE_MXFP4)
                        bytes[b] = (uint8_t) (120 + bytes[b] % 8);
        }
}

static struct hr_operand shape(uint32_t type, const int64_t ne[HR_DIMS], uint64_t *ret_bytes) {
        struct hr_operand operand = {.type = type};
        uint64_t row;

        HR_EXPECT(hr_type_row_bytes(type, ne[0], &row));
        memcpy(operand.ne, ne, sizeof operand.ne);
        operand.nb[0] = hr_type_info(type)->block_bytes;
        operand.nb[1] = row;
        operand.nb[2] = row * (uint64_t) ne[1];
        operand.nb[3] = operand.nb[2] * (uint64_t) ne[2];
        *ret_bytes = operand.room = operand.nb[3] * (uint64_t) ne[3];
        return operand;
}

static void fill(const struct hr_operand *operand, uint64_t bytes) {
        uint8_t *data = operand->data;
        uint64_t size = hr_type_info(operand->type)->block_bytes;

        if (hr_type_info(operand->type)->is_block) {
                case_fill_blocks(operand->type, data, bytes);
                return;
        }
        for (uint64_t at = 0; at < bytes; at += size) {
                float value = case_uniform();
                uint16_t half = operand->type == HR_TYPE_F16 ? cpu_float_to_half(value)
                                                             : cpu_float_to_bf16(value);
                int64_t whole = (int64_t) (value * 100);

                if (operand->type == HR_TYPE_F32)
                        memcpy(data + at, &value, sizeof value);
                else if (operand->type == HR_TYPE_F16 || operand->type == HR_TYPE_BF16)
                        memcpy(data + at, &half, sizeof half);
                else
                        memcpy(data + at, &whole, size);
        }
}

struct hr_operand case_operand(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
        uint64_t bytes;
        struct hr_operand operand = shape(type, (int64_t[]){ne0, ne1, ne2, ne3}, &bytes);

        operand.data = case_memory(bytes);
        fill(&operand, bytes);
        return operand;
}

struct hr_operand case_result(uint32_t type, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
        uint64_t bytes;
        struct hr_operand operand = shape(type, (int64_t[]){ne0, ne1, ne2, ne3}, &bytes);
        uint8_t *memory = case_memory(bytes + 2 * CASE_BANDS);

        memset(memory, PATTERN, bytes + 2 * CASE_BANDS);
        operand.data = memory + CASE_BANDS;
        return operand;
}

void case_check_bands(const struct hr_operand *operand) {
        const uint8_t *data = operand->data;

        for (int i = 1; i <= CASE_BANDS; i++) {
                HR_EXPECT_EQ(data[-i], PATTERN);
                HR_EXPECT_EQ(data[operand->room + (uint64_t) i - 1], PATTERN);
        }
}

struct hr_operand case_swap(struct hr_operand operand, int a, int b) {
        int64_t ne = operand.ne[a];
        uint64_t nb = operand.nb[a];

        operand.ne[a] = operand.ne[b];
        operand.nb[a] = operand.nb[b];
        operand.ne[b] = ne;
        operand.nb[b] = nb;
        return operand;
}

struct member {
        struct cpu_call call;
        const struct cpu_kernel *kernel;
};

const struct cpu_vec *case_vec;

static void *member_main(void *arg) {
        struct member *member = arg;

        member->kernel->run(&member->call);
        return NULL;
}

int case_run(const struct cpu_kernel *kernel, const struct hr_step *step, const struct cpu_dot *dot,
             uint32_t threads) {
        uint64_t bytes = kernel->scratch ? kernel->scratch(step, threads) : 0;
        uint8_t *scratch = aligned_alloc(64, (bytes + SCRATCH_BAND + 63) / 64 * 64);
        struct cpu_team team = {0};
        struct member members[THREADS_MAX];
        pthread_t handles[THREADS_MAX];

        HR_EXPECT(kernel->supports(step));
        HR_EXPECT(!kernel->threads_max || kernel->threads_max(step) >= 1);
        HR_EXPECT(scratch != NULL && threads <= THREADS_MAX);
        memset(scratch, PATTERN, bytes + SCRATCH_BAND);
        HR_EXPECT_EQ(pthread_barrier_init(&team.barrier, NULL, threads), 0);
        for (uint32_t i = 0; i < threads; i++) {
                members[i] = (struct member){.call = {.step = step,
                                                      .thread = i,
                                                      .threads = threads,
                                                      .scratch = scratch,
                                                      .team = &team,
                                                      .dot = dot,
                                                      .vec = case_vec},
                                             .kernel = kernel};
                if (i)
                        HR_EXPECT_EQ(pthread_create(&handles[i], NULL, member_main, &members[i]),
                                     0);
        }
        member_main(&members[0]);
        for (uint32_t i = 1; i < threads; i++)
                pthread_join(handles[i], NULL);
        for (int i = 0; i < SCRATCH_BAND; i++)
                HR_EXPECT_EQ(scratch[bytes + (uint64_t) i], PATTERN);
        pthread_barrier_destroy(&team.barrier);
        free(scratch);
        return team.refused;
}

double case_value(const struct hr_operand *operand, int64_t i0, int64_t i1, int64_t i2,
                  int64_t i3) {
        const struct hr_type_info *info = hr_type_info(operand->type);
        const uint8_t *at = (const uint8_t *) operand->data + (uint64_t) i1 * operand->nb[1] +
                            (uint64_t) i2 * operand->nb[2] + (uint64_t) i3 * operand->nb[3] +
                            (uint64_t) (i0 / info->block_elements) * operand->nb[0];
        float values[256];
        int64_t whole = 0;

        if (info->is_integer) {
                memcpy(&whole, at, info->block_bytes);
                switch (info->block_bytes) {
                case 1:
                        return (int8_t) whole;
                case 2:
                        return (int16_t) whole;
                case 4:
                        return (int32_t) whole;
                default:
                        return (double) whole;
                }
        }
        cpu_dot_select("portable")->dequantize[operand->type](at, values, info->block_elements);
        return values[i0 % info->block_elements];
}

void case_row(const struct hr_operand *operand, int64_t i1, int64_t i2, int64_t i3,
              double *ret_values) {
        const struct hr_type_info *info = hr_type_info(operand->type);
        float values[256];

        for (int64_t i = 0; i < operand->ne[0]; i++) {
                const uint8_t *at =
                        (const uint8_t *) operand->data + (uint64_t) i1 * operand->nb[1] +
                        (uint64_t) i2 * operand->nb[2] + (uint64_t) i3 * operand->nb[3] +
                        (uint64_t) (i / info->block_elements) * operand->nb[0];

                if (!info->is_block) {
                        ret_values[i] = case_value(operand, i, i1, i2, i3);
                        continue;
                }
                if (i % info->block_elements == 0)
                        cpu_dot_select("portable")
                                ->dequantize[operand->type](at, values, info->block_elements);
                ret_values[i] = values[i % info->block_elements];
        }
}

void case_compare(struct case_error *error, double reference, double value) {
        if (isinf(reference) && value == reference)
                return;
        error->difference += (reference - value) * (reference - value);
        error->reference += reference * reference;
}

double case_nmse(const struct case_error *error) {
        if (error->reference == 0)
                return error->difference == 0 ? 0 : INFINITY;
        return error->difference / error->reference;
}
