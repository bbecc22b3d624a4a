/*
 * What a warp does together on the hardware's own units: products of small matrices in registers,
 * copies from memory to shared memory that it does not wait for, and a meeting of its lanes.
 *
 * On the processor the products are made of what all lanes of the warp hold, by the places that the
 * hardware documents for its fragments: a kernel that loads a fragment from a wrong place gives a
 * wrong result there, too. In all of them lane l has rows l / 4 and l / 4 + 8 of the 16 x 8
 * results, columns 2 (l % 4) and the next: c[0] c[1] of the first row, c[2] c[3] of the second.
 */
#pragma once

#include "backends/cuda/kernels/common.cuh"

/* Memory that is loaded and stored at once. */
struct alignas(16) piece {
        uint32_t word[4];
};

#ifdef __CUDACC__

/* c += a b, a 16 x 16 bytes by rows, b 16 x 8 by columns: a[0] has row l / 4, bytes 4 (l % 4) and
 * the next three, a[1] the same of row l / 4 + 8; b those of column l / 4. */
DEVICE void multiply_bytes16(int *c, const uint32_t *a, uint32_t b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, "
                     "{%6}, {%0, %1, %2, %3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(b));
}

/* The same with 32 bytes: a[2], a[3] and b[1] have the second sixteen. */
DEVICE void multiply_bytes32(int *c, const uint32_t *a, const uint32_t *b) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, "
                     "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* c += a b, a 16 x 16 halves, b 16 x 8: the words lie as with multiply_bytes32, two halves in
 * each. */
DEVICE void multiply_f16(float *c, const uint32_t *a, const uint32_t *b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, "
                     "%6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEVICE void multiply_bf16(float *c, const uint32_t *a, const uint32_t *b) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, "
                     "%5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Begins to copy; to shared memory, past the first cache. */
DEVICE void copy_begin(piece *to, const byte *from) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                     :
                     : "r"((uint32_t) __cvta_generic_to_shared(to)), "l"(from)
                     : "memory");
}

/* The same OFFSET bytes further on both sides, which is part of the instruction. */
template <int OFFSET> DEVICE void copy_begin_at(piece *to, const byte *from) {
        asm volatile("cp.async.cg.shared.global [%0 + %2], [%1 + %2], 16;"
                     :
                     : "r"((uint32_t) __cvta_generic_to_shared(to)), "l"(from), "n"(OFFSET)
                     : "memory");
}

/* What was begun since the last call is a group. */
DEVICE void copy_group(void) {
        asm volatile("cp.async.commit_group;" : : : "memory");
}

/* Waits for this lane's groups but the last COUNT. */
template <int COUNT> DEVICE void copy_wait(void) {
        asm volatile("cp.async.wait_group %0;" : : "n"(COUNT) : "memory");
}

DEVICE int add_atomic(int *at, int value) {
        return atomicAdd(at, value);
}

/* From memory that nobody writes during the launch. */
DEVICE piece load_piece(const piece *from) {
        uint4 v = __ldg((const uint4 *) from);

        return piece{ { v.x, v.y, v.z, v.w } };
}

DEVICE uint64_t load_word(const uint64_t *from) {
        return __ldg((const unsigned long long *) from);
}

DEVICE struct cuda_activation load_activation(const struct cuda_activation *from) {
        uint2 v = __ldg((const uint2 *) from);
        struct cuda_activation with;

        with.scale = bits_float(v.x);
        with.sum[0] = (int16_t) v.y;
        with.sum[1] = (int16_t) (v.y >> 16);
        return with;
}

#else

DEVICE void multiply_bytes16(int *c, const uint32_t *a, uint32_t b) {
        const uint32_t words[3] = { a[0], a[1], b };
        const uint32_t *all = cuda_host_gather(words, 3);
        unsigned lane = threadIdx.x % WARP;

        for (unsigned i = 0; i < 4; i++)
                for (unsigned t = 0; t < 4; t++)
                        c[i] = __dp4a((int) all[3 * (lane / 4 * 4 + t) + i / 2],
                                      (int) all[3 * ((2 * (lane % 4) + i % 2) * 4 + t) + 2], c[i]);
}

DEVICE void multiply_bytes32(int *c, const uint32_t *a, const uint32_t *b) {
        const uint32_t words[6] = { a[0], a[1], a[2], a[3], b[0], b[1] };
        const uint32_t *all = cuda_host_gather(words, 6);
        unsigned lane = threadIdx.x % WARP;

        for (unsigned i = 0; i < 4; i++)
                for (unsigned k = 0; k < 8; k++)
                        c[i] = __dp4a((int) all[6 * (lane / 4 * 4 + k % 4) + i / 2 + 2 * (k / 4)],
                                      (int) all[6 * ((2 * (lane % 4) + i % 2) * 4 + k % 4) + 4 +
                                                k / 4],
                                      c[i]);
}

template <bool IS_BF16>
DEVICE void multiply_halves(float *c, const uint32_t *a, const uint32_t *b) {
        const uint32_t words[6] = { a[0], a[1], a[2], a[3], b[0], b[1] };
        const uint32_t *all = cuda_host_gather(words, 6);
        unsigned lane = threadIdx.x % WARP;

        for (unsigned i = 0; i < 4; i++)
                for (unsigned k = 0; k < 16; k++) {
                        uint32_t x = all[6 * (lane / 4 * 4 + k % 8 / 2) + i / 2 + 2 * (k / 8)];
                        uint32_t y = all[6 * ((2 * (lane % 4) + i % 2) * 4 + k % 8 / 2) + 4 +
                                         k / 8];
                        uint16_t p = (uint16_t) (x >> 16 * (k % 2));
                        uint16_t q = (uint16_t) (y >> 16 * (k % 2));

                        c[i] += IS_BF16 ? bf16_to_float(p) * bf16_to_float(q)
                                        : half_to_float(p) * half_to_float(q);
                }
}

DEVICE void multiply_f16(float *c, const uint32_t *a, const uint32_t *b) {
        multiply_halves<false>(c, a, b);
}

DEVICE void multiply_bf16(float *c, const uint32_t *a, const uint32_t *b) {
        multiply_halves<true>(c, a, b);
}

DEVICE void copy_begin(piece *to, const byte *from) {
        cuda_host_copy_begin(to, from);
}

template <int OFFSET> DEVICE void copy_begin_at(piece *to, const byte *from) {
        copy_begin(to + OFFSET / 16, from + OFFSET);
}

DEVICE void copy_group(void) {
        cuda_host_copy_group();
}

template <int COUNT> DEVICE void copy_wait(void) {
        cuda_host_copy_wait(COUNT);
}

DEVICE int add_atomic(int *at, int value) {
        return cuda_host_add(at, value);
}

DEVICE piece load_piece(const piece *from) {
        return *from;
}

DEVICE uint64_t load_word(const uint64_t *from) {
        return *from;
}

DEVICE struct cuda_activation load_activation(const struct cuda_activation *from) {
        return *from;
}

#endif
