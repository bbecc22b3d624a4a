/* How the small functions over lanes are declared: always part of their caller; and what stands
 * before their loops, whose ends are constants there. */
#pragma once

#define LANES_INLINE static inline __attribute__((always_inline, unused))

#ifdef __clang__ /* does not know the other one */
#define LANES_UNROLL _Pragma("unroll")
#else
#define LANES_UNROLL _Pragma("GCC unroll 8")
#endif
