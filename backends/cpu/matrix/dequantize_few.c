/*
 * Rows of the types with a handful of levels to f32: FP4, ternary, two bits, one bit.
 *
 * Compiled once per instruction set.
 */
#include "backends/cpu/matrix/tables.h"

#include "backends/cpu/matrix/small_float.h"
#include "core/codebooks.h"

void CPU_ISA(dequantize_mxfp4)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 32, block += 17, ret_values += 32) {
                float scale = cpu_e8m0_half(block[0]);

                for (int j = 0; j < 16; j++) {
                        ret_values[j] = scale * (float) hr_codebook_values_e2m1[block[1 + j] & 15];
                        ret_values[16 + j] =
                                scale * (float) hr_codebook_values_e2m1[block[1 + j] >> 4];
                }
        }
}

void CPU_ISA(dequantize_nvfp4)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 64, block += 36)
                for (int g = 0; g < 4; g++, ret_values += 16) {
                        const uint8_t *q = block + 4 + 8 * g;
                        float scale = cpu_ue4m3_half(block[g]);

                        for (int j = 0; j < 8; j++) {
                                ret_values[j] = scale * (float) hr_codebook_values_e2m1[q[j] & 15];
                                ret_values[8 + j] =
                                        scale * (float) hr_codebook_values_e2m1[q[j] >> 4];
                        }
                }
}

/* Digit `place` of five in base 3: the byte is the fraction whose digits they are, in 256ths. */
static int trit(uint8_t byte, int place) {
        static const uint8_t power[5] = {1, 3, 9, 27, 81};

        return (uint8_t) (byte * power[place]) * 3 >> 8;
}

void CPU_ISA(dequantize_tq1_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 54, ret_values += 256) {
                float d = cpu_read_half(block + 52);

                for (int i = 0; i < 160; i++)
                        ret_values[i] = d * (float) (trit(block[i % 32], i / 32) - 1);
                for (int i = 0; i < 80; i++)
                        ret_values[160 + i] = d * (float) (trit(block[32 + i % 16], i / 16) - 1);
                for (int i = 0; i < 16; i++)
                        ret_values[240 + i] = d * (float) (trit(block[48 + i % 4], i / 4) - 1);
        }
}

void CPU_ISA(dequantize_tq2_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 66, ret_values += 256) {
                float d = cpu_read_half(block + 64);

                for (int i = 0; i < 256; i++) {
                        int level = block[32 * (i / 128) + i % 32] >> 2 * (i % 128 / 32) & 3;

                        ret_values[i] = d * (float) (level - 1);
                }
        }
}

void CPU_ISA(dequantize_q1_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 128, block += 18, ret_values += 128) {
                float d = cpu_read_half(block);

                for (int i = 0; i < 128; i++)
                        ret_values[i] = block[2 + i / 8] >> i % 8 & 1 ? d : -d;
        }
}

void CPU_ISA(dequantize_q2_0)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 64, block += 18, ret_values += 64) {
                float d = cpu_read_half(block);

                for (int i = 0; i < 64; i++)
                        ret_values[i] = (float) ((block[2 + i / 4] >> 2 * (i % 4) & 3) - 1) * d;
        }
}
