/*
 * Blocks of 256 times one column, two units of 32 elements at once: those that share bytes, which
 * are then loaded and taken apart once. Sums stay integers until both units are in them, as all of
 * a block has one scale, and the column's bytes have one, too.
 *
 * Of Q2_K, Q3_K, Q4_K and Q5_K pair p has units 2 p and 2 p + 1; of Q6_K 4 (p / 2) + p % 2 and the
 * one but next. Levels that are 4 or 16 times as large, as they lie in their bytes, are multiplied
 * so; the sum is then a multiple, too.
 */
#pragma once

#include "backends/cuda/kernels/products.cuh"

DEVICE constexpr bool has_pairs(uint32_t type) {
        return type == HR_TYPE_Q2_K || type == HR_TYPE_Q3_K || type == HR_TYPE_Q4_K ||
               type == HR_TYPE_Q5_K || type == HR_TYPE_Q6_K;
}

/* What a pair is multiplied with: the units' halves, their bytes' sums (two each), the scale. */
struct pair_column {
        uint32_t q[2][8];
        uint32_t sum[2];
        float scale;
};

/* The lane's of a group of pairs that begins at `bytes` and `with`. */
template <uint32_t TYPE>
DEVICE void pair_load(const piece *bytes, const struct cuda_activation *with, pair_column *ret) {
        constexpr bool IS_NEXT = TYPE != HR_TYPE_Q6_K;
        int lane = (int) (threadIdx.x % WARP), odd = lane % 2;

        for (int i = 0; i < 2; i++)
                for (int h = 0; h < 2; h++) {
                        int plane = 2 * (IS_NEXT ? i : odd) + h;
                        piece p = load_piece(bytes + (lane ^ i) + plane * WARP);

                        for (int j = 0; j < 4; j++)
                                ret->q[i][4 * h + j] = p.word[j];
                }
        if (IS_NEXT) {
                piece both = load_piece((const piece *) (with + 2 * lane));

                ret->scale = bits_float(both.word[0]);
                ret->sum[0] = both.word[1];
                ret->sum[1] = both.word[3];
        } else {
                const uint64_t *at = (const uint64_t *) (with + 2 * lane - odd);
                uint64_t first = load_word(at), second = load_word(at + 2);

                ret->scale = bits_float((uint32_t) first);
                ret->sum[0] = (uint32_t) (first >> 32);
                ret->sum[1] = (uint32_t) (second >> 32);
        }
}

DEVICE uint32_t rotate_right(uint32_t bits, int shift) {
        return __funnelshift_r(bits, bits, shift & 31);
}

DEVICE int byte_of(uint32_t bytes, int i) {
        return (int8_t) (bytes >> 8 * i);
}

/* The halves' sums by their factors, signed bytes. */
DEVICE int by_factors(const int *dots, uint32_t factors) {
        int sum = 0;

        for (int i = 0; i < 4; i++)
                sum += byte_of(factors, i) * dots[i];
        return sum;
}

/* The column's sums by factors of halves. */
DEVICE int sums_by_factors(const pair_column &column, uint32_t factors) {
        return __dp2a_hi((int) column.sum[1], (int) factors,
                         __dp2a_lo((int) column.sum[0], (int) factors, 0));
}

/* d * sum - least * minima of the two halves in `factors`. */
DEVICE float with_minimum(uint32_t factors, int sum, int minima) {
        return half_to_float((uint16_t) factors) * (float) sum -
               half_to_float((uint16_t) (factors >> 16)) * (float) minima;
}

template <int READ> DEVICE float pair_q2_k(const byte *block, int p, const pair_column &column) {
        uint32_t w[8], factors, d;
        int dots[4] = {};

        words_at<READ, 8>(block + 16 + p / 2 * 32, w);
        words_at<READ, 1>(block + 4 * p, &factors);
        words_at<READ, 1>(block + 80, &d);
        for (int j = 0; j < 8; j++) {
                w[j] >>= 4 * (p % 2);
                dots[j / 4] = __dp4a((int) (w[j] & 0x03030303u), (int) column.q[0][j], dots[j / 4]);
                dots[2 + j / 4] = __dp4a((int) (w[j] & 0x0c0c0c0cu), (int) column.q[1][j],
                                         dots[2 + j / 4]);
        }
        dots[2] >>= 2;
        dots[3] >>= 2;
        return with_minimum(d, by_factors(dots, factors & 0x0f0f0f0fu),
                            sums_by_factors(column, factors >> 4 & 0x0f0f0f0fu));
}

template <int READ> DEVICE float pair_q3_k(const byte *block, int p, const pair_column &column) {
        uint32_t w[8], high[8], packed[3], factors;
        int dots[4] = {};

        words_at<READ, 8>(block + 32 + p / 2 * 32, w);
        words_at<READ, 8>(block, high);
        words_at<READ, 3>(block + 96, packed);
        for (int j = 0; j < 8; j++) {
                w[j] >>= 4 * (p % 2);
                dots[j / 4] = __dp4a((int) ((w[j] & 0x03030303u) |
                                            (rotate_right(high[j], 2 * p - 2) & 0x04040404u)),
                                     (int) column.q[0][j], dots[j / 4]);
                dots[2 + j / 4] = __dp4a((int) ((w[j] & 0x0c0c0c0cu) |
                                                (rotate_right(high[j], 2 * p - 3) & 0x10101010u)),
                                         (int) column.q[1][j], dots[2 + j / 4]);
        }
        dots[2] >>= 2;
        dots[3] >>= 2;
        factors = ((p % 2 ? packed[1] : packed[0]) >> p / 2 * 4 & 0x0f0f0f0fu) |
                  (packed[2] >> 2 * p & 0x03030303u) << 4;
        factors = less(factors, 0x20202020u);
        return half_at(block + 108) *
               (float) (by_factors(dots, factors) - 4 * sums_by_factors(column, factors));
}

/* Of Q4_K and Q5_K: the units' sums with the factors and minima that the head has for them. */
DEVICE float pair_with_head(const uint32_t *head, int p, int first, int second,
                            const pair_column &column) {
        int shift = 16 * (p % 2);
        uint32_t a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
        uint32_t factors = p < 2 ? a & 0x3f3f : (c & 0x0f0f) | (a >> 2 & 0x3030);
        uint32_t minima = p < 2 ? b & 0x3f3f : (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030);
        uint32_t halves = __byte_perm(column.sum[0], column.sum[1], 0x5410);
        uint32_t others = __byte_perm(column.sum[0], column.sum[1], 0x7632);

        return with_minimum(head[0], (int) (factors & 255) * first + (int) (factors >> 8) * second,
                            __dp2a_lo((int) others, (int) minima,
                                      __dp2a_lo((int) halves, (int) minima, 0)));
}

template <int READ> DEVICE void head_of(const byte *block, uint32_t *ret) {
        if (READ == BY_PIECES)
                piece_at(block, ret);
        else
                words_at<READ, 4>(block, ret);
}

template <int READ> DEVICE float pair_q4_k(const byte *block, int p, const pair_column &column) {
        uint32_t head[4], w[8];
        int first = 0, second = 0;

        two_pieces<READ>(block + 16 + 32 * p, w);
        head_of<READ>(block, head);
        for (int j = 0; j < 8; j++) {
                first = __dp4a((int) (w[j] & 0x0f0f0f0fu), (int) column.q[0][j], first);
                second = dp4a_unsigned(w[j] & 0xf0f0f0f0u, column.q[1][j], second);
        }
        return pair_with_head(head, p, first, second >> 4, column);
}

template <int READ> DEVICE float pair_q5_k(const byte *block, int p, const pair_column &column) {
        uint32_t head[4], w[8], high[8];
        int first = 0, second = 0;

        two_pieces<READ>(block + 48 + 32 * p, w);
        two_pieces<READ>(block + 16, high);
        head_of<READ>(block, head);
        for (int j = 0; j < 8; j++) {
                first = __dp4a((int) ((w[j] & 0x0f0f0f0fu) |
                                      (rotate_right(high[j], 2 * p - 4) & 0x10101010u)),
                               (int) column.q[0][j], first);
                second = __dp4a((int) ((w[j] >> 4 & 0x0f0f0f0fu) |
                                       (rotate_right(high[j], 2 * p - 3) & 0x10101010u)),
                                (int) column.q[1][j], second);
        }
        return pair_with_head(head, p, first, second, column);
}

template <int READ> DEVICE float pair_q6_k(const byte *block, int p, const pair_column &column) {
        int part = p / 2, odd = p % 2;
        const uint16_t *packed = (const uint16_t *) (block + 192 + 8 * part + 2 * odd);
        uint32_t w[8], high[8], factors = packed[0] | (uint32_t) packed[2] << 16;
        int dots[4] = {};

        words_at<READ, 8>(block + 32 * p, w);
        words_at<READ, 8>(block + 128 + 32 * part, high);
        for (int j = 0; j < 8; j++) {
                dots[j / 4] = __dp4a((int) ((w[j] & 0x0f0f0f0fu) |
                                            (high[j] << (4 - 2 * odd) & 0x30303030u)),
                                     (int) column.q[0][j], dots[j / 4]);
                dots[2 + j / 4] = __dp4a((int) ((w[j] >> 4 & 0x0f0f0f0fu) |
                                                (high[j] >> 2 * odd & 0x30303030u)),
                                         (int) column.q[1][j], dots[2 + j / 4]);
        }
        return half_at(block + 208) *
               (float) (by_factors(dots, factors) - 32 * sums_by_factors(column, factors));
}

/* Pair p of a block with its part of the column. */
template <uint32_t TYPE, int READ>
DEVICE float multiply_pair(const byte *block, int p, const pair_column &column) {
        switch (TYPE) {
        case HR_TYPE_Q2_K: return pair_q2_k<READ>(block, p, column) * column.scale;
        case HR_TYPE_Q3_K: return pair_q3_k<READ>(block, p, column) * column.scale;
        case HR_TYPE_Q4_K: return pair_q4_k<READ>(block, p, column) * column.scale;
        case HR_TYPE_Q5_K: return pair_q5_k<READ>(block, p, column) * column.scale;
        default: return pair_q6_k<READ>(block, p, column) * column.scale;
        }
}
