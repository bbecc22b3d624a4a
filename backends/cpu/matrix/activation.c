/*
 * Activations to the partner types Q8_0, Q8_1 and Q8_K, interleaved as column groups are.
 *
 * The rules are ggml's. Q8_0 and Q8_1: d = max|x| / 127 is kept as f16, but the quants come from
 * 127 / max|x| in f32; Q8_1 also keeps d * sum(q) as f16, with the unrounded d. Q8_K: 256 elements
 * share d = 1 / (-127 / x of the largest magnitude), in f32. Rounding is to nearest, ties to even,
 * done by adding 1.5 * 2^23, whose low mantissa bits then hold the integer; a NaN gives some byte.
 *
 * Several blocks go through at once, those of all columns of a group or several of one column:
 * their scales lie side by side, and so are they computed.
 */
#include "backends/cpu/matrix/tables.h"

#define ROUND_MAGIC 12582912.0f

/* Bits of the largest magnitude; magnitudes order like their bits, NaN above all. */
LANES_INLINE uint32_t largest_bits(const float *values, const int count) {
        lanes_u largest = lanes_set_u(0);

        for (int i = 0; i < count; i += CPU_LANES)
                largest = lanes_max_u(largest, (lanes_u) lanes_load_f(values + i) & 0x7fffffffU);
        return lanes_largest(largest);
}

/* Nearest integers of x * factor as bytes, in order. */
LANES_INLINE void round_bytes(const float *values, const int count, float factor,
                              uint8_t *ret_bytes) {
        for (int i = 0; i < count; i += CPU_LANES)
                lanes_store_bytes(ret_bytes + i,
                                  (lanes_u) (lanes_load_f(values + i) * factor + ROUND_MAGIC));
}

/* The sum of the four signed bytes of a dword. */
LANES_INLINE int32_t sum_bytes(uint32_t four) {
        uint32_t moved = four ^ 0x80808080U, pairs = (moved & 0xff00ffU) + (moved >> 8 & 0xff00ffU);

        return (int32_t) ((pairs & 0xffffU) + (pairs >> 16)) - 4 * 128;
}

/* `count` values, at most CPU_WIDTH, rounded to f16 and back. */
LANES_INLINE void store_halves(const float *values, const uint32_t count, float *ret_values) {
        float spare[CPU_LANES] = {0};

        for (uint32_t c = 0; c < count; c++)
                spare[c] = values[c];
        lanes_store_f(spare, lanes_round_half(lanes_load_f(spare)));
        memcpy(ret_values, spare, count * sizeof spare[0]);
}

/* Dwords of each column, side by side. */
LANES_INLINE void interleave(const uint32_t *quants, const uint32_t dwords, const uint32_t width,
                             uint32_t *ret_q) {
        for (uint32_t j = 0; j < dwords; j++)
                for (uint32_t c = 0; c < width; c++)
                        ret_q[j * width + c] = quants[c * dwords + j];
}

/* Blocks of 32 of `count` columns, or, where `is_row`, `count` blocks of one. */
LANES_INLINE void activate_blocks(const float *const *values, const uint32_t count,
                                  const bool is_row, const struct activation *ret) {
        float largest[CPU_WIDTH], d[CPU_WIDTH], inverse[CPU_WIDTH];
        int32_t sum[8 * CPU_WIDTH], total[CPU_WIDTH] = {0};
        uint32_t quants[8 * CPU_WIDTH];

        for (uint32_t c = 0; c < count; c++)
                largest[c] = cpu_bits_float(largest_bits(values[c], 32));
        for (uint32_t c = 0; c < count; c++) {
                float full = 127.0f / largest[c];

                d[c] = largest[c] / 127.0f;
                inverse[c] = largest[c] != 0 ? full : 0;
        }
        for (uint32_t c = 0; c < count; c++)
                round_bytes(values[c], 32, inverse[c], (uint8_t *) (quants + 8 * c));
        store_halves(d, count, ret->scale);
        if (is_row)
                memcpy(ret->q, quants, 8 * count * sizeof quants[0]);
        else
                interleave(quants, 8, count, ret->q);
        if (!ret->dword_sums && !ret->sums && !ret->product)
                return;
        for (uint32_t i = 0; i < 8 * count; i++)
                sum[i] = sum_bytes(ret->q[i]);
        for (uint32_t i = 0; i < 8 * count && ret->dword_sums; i++)
                ret->dword_sums[i] = sum[i] * ret->factor;
        if (!ret->sums && !ret->product)
                return;
        for (uint32_t j = 0; j < 8; j++)
                for (uint32_t c = 0; c < count; c++)
                        total[c] += is_row ? sum[c * 8 + j] : sum[j * count + c];
        for (uint32_t c = 0; c < count && ret->sums; c++)
                ret->sums[c] = total[c] * ret->factor;
        for (uint32_t c = 0; c < count; c++)
                d[c] = d[c] * (float) total[c];
        if (ret->product)
                store_halves(d, count, ret->product);
}

/* On by `count` columns or blocks. */
LANES_INLINE void go_on(struct activation *at, uint32_t count) {
        at->q += 8 * count;
        at->scale += count;
        if (at->sums)
                at->sums += count;
        if (at->dword_sums)
                at->dword_sums += 8 * count;
        if (at->product)
                at->product += count;
}

static void activate_row(const float *values, int64_t k, struct activation at) {
        const float *block[CPU_WIDTH];
        int64_t blocks = k / 32;

        for (; blocks >= CPU_WIDTH; blocks -= CPU_WIDTH, values += 32 * CPU_WIDTH) {
                for (int c = 0; c < CPU_WIDTH; c++)
                        block[c] = values + 32 * c;
                activate_blocks(block, CPU_WIDTH, true, &at);
                go_on(&at, CPU_WIDTH);
        }
        for (; blocks > 0; blocks--, values += 32) {
                activate_blocks(&values, 1, true, &at);
                go_on(&at, 1);
        }
}

void CPU_ISA(activate_q8)(const float *const *values, uint32_t width, int64_t k,
                          const struct activation *ret) {
        struct activation at = *ret;
        const float *block[CPU_WIDTH];

        if (width == 1) {
                activate_row(values[0], k, at);
                return;
        }
        for (int64_t i = 0; i < k; i += 32) {
                for (uint32_t c = 0; c < width; c++)
                        block[c] = values[c] + i;
                if (width == CPU_WIDTH)
                        activate_blocks(block, CPU_WIDTH, false, &at);
                else if (width == 4)
                        activate_blocks(block, 4, false, &at);
                else if (width == 3)
                        activate_blocks(block, 3, false, &at);
                else
                        activate_blocks(block, 2, false, &at);
                go_on(&at, width);
        }
}

/* Of the elements with the largest magnitude the first: its value. */
LANES_INLINE float first_extreme(const float *values) {
        uint32_t largest = largest_bits(values, 256);
        lanes_u positive = lanes_set_u(0), negative = positive;
        int i = 0;

        for (int j = 0; j < 256; j += CPU_LANES) {
                lanes_u bits = (lanes_u) lanes_load_f(values + j);

                positive |= (lanes_u) (bits == largest);
                negative |= (lanes_u) (bits == (largest | 0x80000000U));
        }
        if (!lanes_largest(negative & 1U))
                return cpu_bits_float(largest);
        if (!lanes_largest(positive & 1U))
                return cpu_bits_float(largest | 0x80000000U);
        while ((cpu_float_bits(values[i]) & 0x7fffffffU) != largest)
                i++;
        return values[i];
}

/* Blocks of 256 of `width` columns. */
LANES_INLINE void activate_large(const float *const *values, const uint32_t width, int64_t k,
                                 const uint32_t group, struct activation at) {
        const uint32_t groups = 256 / group, dwords = group / 4;
        uint32_t quants[64 * CPU_WIDTH];
        int32_t sum[64 * CPU_WIDTH];

        for (int64_t i = 0; i < k; i += 256) {
                for (uint32_t c = 0; c < width; c++) {
                        float extreme = first_extreme(values[c] + i);
                        float inverse = extreme != 0 ? -127.0f / extreme : 0;

                        at.scale[c] = extreme != 0 ? 1.0f / inverse : 0;
                        round_bytes(values[c] + i, 256, inverse, (uint8_t *) (quants + 64 * c));
                }
                interleave(quants, 64, width, at.q);
                for (uint32_t j = 0; j < 64 * width; j++)
                        sum[j] = sum_bytes(at.q[j]);
                for (uint32_t g = 0; g < groups; g++) {
                        int32_t total[CPU_WIDTH] = {0};

                        for (uint32_t j = g * dwords; j < (g + 1) * dwords; j++)
                                for (uint32_t c = 0; c < width; c++)
                                        total[c] += sum[j * width + c];
                        for (uint32_t c = 0; c < width; c++)
                                at.sums[g * width + c] = total[c] * at.factor;
                        for (uint32_t c = 0; c < width && at.product; c++)
                                at.product[g * width + c] = (float) total[c];
                }
                at.q += 64 * width;
                at.sums += groups * width;
                at.scale += width;
                if (at.product)
                        at.product += groups * width;
        }
}

#define FOR_GROUP(width)                                                                           \
        do {                                                                                       \
                if (group == 32)                                                                   \
                        activate_large(values, width, k, 32, *ret);                                \
                else                                                                               \
                        activate_large(values, width, k, 16, *ret);                                \
        } while (0)

void CPU_ISA(activate_q8_K)(const float *const *values, uint32_t width, int64_t k, uint32_t group,
                            const struct activation *ret) {
        if (width == CPU_WIDTH)
                FOR_GROUP(CPU_WIDTH);
        else if (width == 4)
                FOR_GROUP(4);
        else if (width == 3)
                FOR_GROUP(3);
        else if (width == 2)
                FOR_GROUP(2);
        else
                FOR_GROUP(1);
}
