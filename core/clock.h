/* Monotonic time. */
#pragma once

#include <stdint.h>

#define HR_NS_PER_MS UINT64_C(1000000)
#define HR_NS_PER_S UINT64_C(1000000000)

/* Nanoseconds of CLOCK_MONOTONIC. Thread: any. */
uint64_t hr_clock_now_ns(void);
