/*
 * How often somebody may do what costs the daemon more than it costs them.
 *
 * The generic cell rate algorithm (ITU-T I.371, A.1): one number is kept, the time up to which what
 * has been done is paid for. Each time costs 1 / per_second; who has done nothing for a second may
 * do a second's worth at once. Thread: loop.
 */
#pragma once

#include "core/base.h"

/* Zeroed is valid: nothing has been done. */
struct hr_rate {
        uint64_t paid_ns;
};

/* Once more. False: too often, and not counted. per_second > 0. */
bool hr_rate_take(struct hr_rate *rate, uint64_t per_second, uint64_t now_ns);
