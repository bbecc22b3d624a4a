/* What the processor and its memory can do at most, as the yardstick of other measurements. */
#pragma once

#include <stdint.h>

/* Bytes a ns that `threads` threads (at most 64) read of memory[bytes], each its own part of it. */
double bench_read_peak(const uint8_t *memory, uint64_t bytes, uint32_t threads);

/* Operations a ns of `threads` threads (at most 64), two per multiplication with addition: "int8"
 * dot products of four bytes, or "f32" fused multiply-adds. 0 where there is no such
 * instruction. */
double bench_dot_peak(const char *kind, uint32_t threads);
