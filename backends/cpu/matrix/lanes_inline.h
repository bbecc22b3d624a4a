/* How the small functions over lanes are declared: always part of their caller. */
#pragma once

#define LANES_INLINE static inline __attribute__((always_inline, unused))
