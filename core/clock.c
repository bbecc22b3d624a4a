/* The one place that asks the system for the time. */
#include "core/clock.h"

#include <time.h>

uint64_t hr_clock_now_ns(void) {
        struct timespec now;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t) now.tv_sec * HR_NS_PER_S + (uint64_t) now.tv_nsec;
}
