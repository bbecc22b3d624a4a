/*
 * Rows of the IQ types to f32: entries of codebooks with signs or an offset, as the layouts read.
 *
 * Compiled once per instruction set. A scale is made first, exactly in f32, and each value is one
 * rounding from there.
 */
#include "backends/cpu/matrix/tables.h"

#include "core/codebooks.h"

/* Four entries that share a dword, negated where their bit of `signs` is set. */
static void spell(uint32_t entries, unsigned signs, float scale, float *ret_values) {
        for (int j = 0; j < 4; j++) {
                float value = scale * (float) (entries >> 8 * j & 255);

                ret_values[j] = signs >> j & 1 ? -value : value;
        }
}

static void spell8(const uint32_t *entry, unsigned signs, float scale, float *ret_values) {
        spell(entry[0], signs, scale, ret_values);
        spell(entry[1], signs >> 4, scale, ret_values + 4);
}

void CPU_ISA(dequantize_iq2_xxs)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 66)
                for (int g = 0; g < 8; g++) {
                        const uint8_t *index = block + 2 + 8 * g;
                        uint32_t rest = cpu_read_u32(index + 4);
                        float scale = cpu_read_half(block) * (0.5f + (float) (rest >> 28)) * 0.25f;

                        for (int l = 0; l < 4; l++, ret_values += 8)
                                spell8(hr_codebook_grid_iq2_xxs + 2 * index[l],
                                       hr_codebook_signs7[rest >> 7 * l & 127], scale, ret_values);
                }
}

void CPU_ISA(dequantize_iq2_xs)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 74)
                for (int i = 0; i < 32; i++, ret_values += 8) {
                        unsigned word = cpu_read_u16(block + 2 + 2 * i);
                        int factor = block[66 + i / 4] >> 4 * (i / 2 % 2) & 15;
                        float scale = cpu_read_half(block) * (0.5f + (float) factor) * 0.25f;

                        spell8(hr_codebook_grid_iq2_xs + 2 * (word & 511),
                               hr_codebook_signs7[word >> 9], scale, ret_values);
                }
}

void CPU_ISA(dequantize_iq2_s)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 82)
                for (int i = 0; i < 32; i++, ret_values += 8) {
                        int index = block[2 + i] | (block[66 + i / 4] >> 2 * (i % 4) & 3) << 8;
                        int factor = block[74 + i / 4] >> 4 * (i / 2 % 2) & 15;
                        float scale = cpu_read_half(block) * (0.5f + (float) factor) * 0.25f;

                        spell8(hr_codebook_grid_iq2_s + 2 * index, block[34 + i], scale,
                               ret_values);
                }
}

void CPU_ISA(dequantize_iq3_xxs)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 98)
                for (int g = 0; g < 8; g++) {
                        const uint8_t *index = block + 2 + 8 * g;
                        uint32_t rest = cpu_read_u32(block + 66 + 4 * g);
                        float scale = cpu_read_half(block) * (0.5f + (float) (rest >> 28)) * 0.5f;

                        for (int j = 0; j < 8; j++, ret_values += 4) {
                                unsigned signs = hr_codebook_signs7[rest >> 7 * (j / 2) & 127];

                                spell(hr_codebook_grid_iq3_xxs[index[j]], signs >> 4 * (j % 2),
                                      scale, ret_values);
                        }
                }
}

void CPU_ISA(dequantize_iq3_s)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 110)
                for (int i = 0; i < 64; i++, ret_values += 4) {
                        int index = block[2 + i] | (block[66 + i / 8] >> i % 8 & 1) << 8;
                        int factor = block[106 + i / 16] >> 4 * (i / 8 % 2) & 15;

                        spell(hr_codebook_grid_iq3_s[index],
                              (unsigned) block[74 + i / 2] >> 4 * (i % 2),
                              cpu_read_half(block) * (float) (1 + 2 * factor), ret_values);
                }
}

/* Eight signed entries -1, 0, 1, moved by an eighth. */
static void spell_moved(unsigned index, float delta, float scale, float *ret_values) {
        for (int j = 0; j < 8; j++) {
                uint32_t entries = hr_codebook_grid_iq1_s[2 * index + (unsigned) j / 4];

                ret_values[j] = scale * ((float) (int8_t) (entries >> 8 * (j % 4) & 255) + delta);
        }
}

void CPU_ISA(dequantize_iq1_s)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 50)
                for (int i = 0; i < 32; i++, ret_values += 8) {
                        unsigned high = cpu_read_u16(block + 34 + i / 4 * 2);
                        unsigned index = block[2 + i] | (high >> 3 * (i % 4) & 7) << 8;
                        float scale = cpu_read_half(block) * (float) (2 * (high >> 12 & 7) + 1);

                        spell_moved(index, high >> 15 ? -0.125f : 0.125f, scale, ret_values);
                }
}

void CPU_ISA(dequantize_iq1_m)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 56) {
                unsigned bits = 0;

                for (int j = 0; j < 4; j++)
                        bits |= (unsigned) (block[49 + 2 * j] >> 4) << 4 * j;
                for (int i = 0; i < 32; i++, ret_values += 8) {
                        unsigned high = (unsigned) block[32 + i / 2] >> 4 * (i % 2);
                        unsigned factors = cpu_read_u16(block + 48 + i / 8 * 2);
                        unsigned factor = factors >> 3 * (i / 2 % 4) & 7;

                        spell_moved(block[i] | (high & 7) << 8, high & 8 ? -0.125f : 0.125f,
                                    cpu_half_to_float((uint16_t) bits) * (float) (2 * factor + 1),
                                    ret_values);
                }
        }
}

void CPU_ISA(dequantize_iq4_xs)(const void *row, float *ret_values, int64_t count) {
        const uint8_t *block = row;

        for (; count > 0; count -= 256, block += 136)
                for (int g = 0; g < 8; g++, ret_values += 32) {
                        const uint8_t *q = block + 8 + 16 * g;
                        int low = block[4 + g / 2] >> 4 * (g % 2) & 15;
                        int factor = (low | (cpu_read_u16(block + 2) >> 2 * g & 3) << 4) - 32;
                        float scale = cpu_read_half(block) * (float) factor;

                        for (int j = 0; j < 16; j++) {
                                ret_values[j] =
                                        scale * (float) hr_codebook_values_iq4_nl[q[j] & 15];
                                ret_values[16 + j] =
                                        scale * (float) hr_codebook_values_iq4_nl[q[j] >> 4];
                        }
                }
}
