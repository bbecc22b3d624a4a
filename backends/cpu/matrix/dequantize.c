/*
 * Rows of every type to f32, written as the block layouts read.
 *
 * Compiled once per instruction set. Products are formed in the order d * scale * q - dmin *
 * minimum, each rounded to f32, so that all copies give the same bits. Plain rows may be of any
 * length, block rows are multiples of their block.
 */
#include "backends/cpu/matrix/tables.h"

void CPU_ISA(dequantize_f32)(const void *row, float *ret_values, int64_t count) {
        memcpy(ret_values, row, (size_t) count * sizeof(float));
}

void CPU_ISA(dequantize_f16)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *bytes = row;
        int64_t i = 0;

        for (; i + CPU_LANES <= count; i += CPU_LANES)
                lanes_store_f(ret_values + i, lanes_load_f16(bytes + 2 * i));
        for (; i < count; i++)
                ret_values[i] = cpu_read_half(bytes + 2 * i);
}

void CPU_ISA(dequantize_bf16)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *bytes = row;

        for (int64_t i = 0; i < count; i++)
                ret_values[i] = cpu_bf16_to_float(cpu_read_u16(bytes + 2 * i));
}

void CPU_ISA(dequantize_q4_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 18, ret_values += 32) {
                float d = cpu_read_half(block);

                for (int j = 0; j < 16; j++) {
                        ret_values[j] = (float) ((block[2 + j] & 15) - 8) * d;
                        ret_values[16 + j] = (float) ((block[2 + j] >> 4) - 8) * d;
                }
        }
}

void CPU_ISA(dequantize_q4_1)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 20, ret_values += 32) {
                float d = cpu_read_half(block), m = cpu_read_half(block + 2);

                for (int j = 0; j < 16; j++) {
                        ret_values[j] = (float) (block[4 + j] & 15) * d + m;
                        ret_values[16 + j] = (float) (block[4 + j] >> 4) * d + m;
                }
        }
}

void CPU_ISA(dequantize_q5_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 22, ret_values += 32) {
                float d = cpu_read_half(block);
                uint32_t high = cpu_read_u32(block + 2);

                for (int j = 0; j < 16; j++) {
                        int low = (block[6 + j] & 15) | (int) (high >> j & 1U) << 4;
                        int far = block[6 + j] >> 4 | (int) (high >> (16 + j) & 1U) << 4;

                        ret_values[j] = (float) (low - 16) * d;
                        ret_values[16 + j] = (float) (far - 16) * d;
                }
        }
}

void CPU_ISA(dequantize_q5_1)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 24, ret_values += 32) {
                float d = cpu_read_half(block), m = cpu_read_half(block + 2);
                uint32_t high = cpu_read_u32(block + 4);

                for (int j = 0; j < 16; j++) {
                        int low = (block[8 + j] & 15) | (int) (high >> j & 1U) << 4;
                        int far = block[8 + j] >> 4 | (int) (high >> (16 + j) & 1U) << 4;

                        ret_values[j] = (float) low * d + m;
                        ret_values[16 + j] = (float) far * d + m;
                }
        }
}

void CPU_ISA(dequantize_q8_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 34, ret_values += 32) {
                float d = cpu_read_half(block);

                for (int j = 0; j < 32; j++)
                        ret_values[j] = (float) (int8_t) block[2 + j] * d;
        }
}

void CPU_ISA(dequantize_iq4_nl)(const void *row, float *ret_values, int64_t count) {
        static const int8_t values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 18, ret_values += 32) {
                float d = cpu_read_half(block);

                for (int j = 0; j < 16; j++) {
                        ret_values[j] = d * (float) values[block[2 + j] & 15];
                        ret_values[16 + j] = d * (float) values[block[2 + j] >> 4];
                }
        }
}

void CPU_ISA(dequantize_q2_K)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 84, ret_values += 256) {
                float d = cpu_read_half(block + 80), dmin = cpu_read_half(block + 82);

                for (int g = 0; g < 16; g++) { /* 16 elements: half g / 8, shift, half of 32 */
                        const uint8_t *q = block + 16 + 32 * (g / 8) + 16 * (g % 2);
                        float scale = d * (float) (block[g] & 15);
                        float minimum = dmin * (float) (block[g] >> 4);

                        for (int l = 0; l < 16; l++)
                                ret_values[16 * g + l] =
                                        scale * (float) (q[l] >> 2 * (g % 8 / 2) & 3) - minimum;
                }
        }
}

/* Scale g (0 .. 15) of the 16 six-bit ones that Q3_K packs into 12 bytes. */
static int scale_q3_K(const uint8_t *packed, int g) {
        int low = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;

        return (low | (packed[8 + g % 4] >> 2 * (g / 4) & 3) << 4) - 32;
}

void CPU_ISA(dequantize_q3_K)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 110, ret_values += 256) {
                float d = cpu_read_half(block + 108);

                for (int g = 0; g < 16; g++) {
                        const uint8_t *q = block + 32 + 32 * (g / 8) + 16 * (g % 2);
                        const uint8_t *high = block + 16 * (g % 2);
                        float scale = d * (float) scale_q3_K(block + 96, g);

                        for (int l = 0; l < 16; l++) {
                                int value = q[l] >> 2 * (g % 8 / 2) & 3;

                                value -= high[l] >> (g / 2) & 1 ? 0 : 4;
                                ret_values[16 * g + l] = scale * (float) value;
                        }
                }
        }
}

/* Scale and minimum g (0 .. 7) of the six-bit pairs that Q4_K and Q5_K pack into 12 bytes. */
static void factors_k(const uint8_t *packed, int g, int *ret_scale, int *ret_minimum) {
        if (g < 4) {
                *ret_scale = packed[g] & 63;
                *ret_minimum = packed[4 + g] & 63;
        } else {
                *ret_scale = (packed[4 + g] & 15) | packed[g - 4] >> 6 << 4;
                *ret_minimum = packed[4 + g] >> 4 | packed[g] >> 6 << 4;
        }
}

void CPU_ISA(dequantize_q4_K)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 144, ret_values += 256) {
                float d = cpu_read_half(block), dmin = cpu_read_half(block + 2);

                for (int g = 0; g < 8; g++) {
                        const uint8_t *q = block + 16 + 32 * (g / 2);
                        int scale, minimum;
                        float d_scale, d_minimum;

                        factors_k(block + 4, g, &scale, &minimum);
                        d_scale = d * (float) scale;
                        d_minimum = dmin * (float) minimum;
                        for (int l = 0; l < 32; l++)
                                ret_values[32 * g + l] =
                                        d_scale * (float) (q[l] >> 4 * (g % 2) & 15) - d_minimum;
                }
        }
}

void CPU_ISA(dequantize_q5_K)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 176, ret_values += 256) {
                float d = cpu_read_half(block), dmin = cpu_read_half(block + 2);

                for (int g = 0; g < 8; g++) {
                        const uint8_t *q = block + 48 + 32 * (g / 2);
                        int scale, minimum;
                        float d_scale, d_minimum;

                        factors_k(block + 4, g, &scale, &minimum);
                        d_scale = d * (float) scale;
                        d_minimum = dmin * (float) minimum;
                        for (int l = 0; l < 32; l++) {
                                int value = (q[l] >> 4 * (g % 2) & 15) |
                                            (block[16 + l] >> g & 1) << 4;

                                ret_values[32 * g + l] = d_scale * (float) value - d_minimum;
                        }
                }
        }
}

void CPU_ISA(dequantize_q6_K)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 210, ret_values += 256) {
                float d = cpu_read_half(block + 208);

                for (int g = 0; g < 16; g++) { /* 16 elements: half, quarter of 32, half of that */
                        int half = g / 8, quarter = g % 8 / 2, part = 16 * (g % 2);
                        const uint8_t *low = block + 64 * half + 32 * (quarter % 2) + part;
                        const uint8_t *high = block + 128 + 32 * half + part;
                        float scale = d * (float) (int8_t) block[192 + g];

                        for (int l = 0; l < 16; l++) {
                                int value = (low[l] >> 4 * (quarter / 2) & 15) |
                                            (high[l] >> 2 * quarter & 3) << 4;

                                ret_values[16 * g + l] = scale * (float) (value - 32);
                        }
                }
        }
}
