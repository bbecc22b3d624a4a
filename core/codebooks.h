/*
 * The codebooks that block types are defined by. The tables are made from core/codebooks.txt when
 * the project is built.
 *
 * Entries are read-only. An entry of eight bytes is two words, the low one first; bytes of an entry
 * are elements in order, lowest first.
 */
#pragma once

#include <stdint.h>

/* The eight signs (1 = minus) of a seven-bit sign index: the eighth makes their number even. */
extern const uint8_t hr_codebook_signs7[128];
/* Eight magnitudes an entry. */
extern const uint32_t hr_codebook_grid_iq2_xxs[2 * 256];
extern const uint32_t hr_codebook_grid_iq2_xs[2 * 512];
extern const uint32_t hr_codebook_grid_iq2_s[2 * 1024];
/* Four magnitudes an entry. */
extern const uint32_t hr_codebook_grid_iq3_xxs[256];
extern const uint32_t hr_codebook_grid_iq3_s[512];
/* Eight of -1, 0, 1 an entry; IQ1_S and IQ1_M. */
extern const uint32_t hr_codebook_grid_iq1_s[2 * 2048];
/* IQ4_NL and IQ4_XS. */
extern const int8_t hr_codebook_values_iq4_nl[16];
/* Twice the values of FP4 (E2M1). */
extern const int8_t hr_codebook_values_e2m1[16];
