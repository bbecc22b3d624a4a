/* Where the rows of a tile are, and what is asked for before it is needed. */
#pragma once

#include <stdbool.h>

#include "backends/cpu/matrix/lanes.h"

/* How far ahead of the next tile the second-level cache is filled. */
#define PREFETCH_FAR 16384

/* Asks for the bytes of the next tile while this one is multiplied, and for those after it from
 * farther away: rows are short, and the processor does not see from one to the next. `at`: where in
 * its rows this tile is, `bytes`: what it goes on by. */
LANES_INLINE void prefetch_next(const uint8_t *base, uint64_t stride, uint64_t at,
                                const uint64_t bytes) {
        const uint8_t *next = base + stride * CPU_LANES + at * CPU_LANES;
        const uint8_t *far = next + PREFETCH_FAR;
        const bool near = stride * CPU_LANES <= PREFETCH_FAR;

        __asm__("" : "+r"(far)); /* else each of these addresses would be kept for itself */
        for (uint64_t i = 0; i < bytes * CPU_LANES; i += 64) {
                __builtin_prefetch(far + i, 0, 2);
                if (near)
                        __builtin_prefetch(next + i, 0, 3);
        }
}

/* Columns of a register block up to which reading the rows may be what takes longest. */
#define FEW_AT_ONCE 4

/* From so many bytes on a single column goes past several rows of floats at once: it is long, too,
 * and would have to be read again for each. */
#define LONG_ROW 8192

/* How far ahead a single row of f32 is asked for: past the next page of memory, which the processor
 * looks for late. */
#define ROW_AHEAD 4096

/* The same for rows of floats: what follows a block of rows comes in a line at `next`, which is
 * soon where `near`; else what is soon is farther on in the row itself. */
LANES_INLINE void prefetch_row(const uint8_t *next, bool near, const uint8_t *here) {
        __builtin_prefetch(next + PREFETCH_FAR, 0, 2);
        __builtin_prefetch(near ? next : here + 512, 0, 3);
}

LANES_INLINE void rows_at(const uint8_t *base, uint64_t stride, uint32_t rows,
                          const uint8_t *ret_row[CPU_LANES]) {
        for (uint32_t i = 0; i < CPU_LANES; i++)
                ret_row[i] = base + stride * (i < rows ? i : rows - 1);
}
