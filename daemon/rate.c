/* The generic cell rate algorithm. */
#include "daemon/rate.h"

#include "core/clock.h"

bool hr_rate_take(struct hr_rate *rate, uint64_t per_second, uint64_t now_ns) {
        uint64_t paid_ns;

        HR_ASSERT(per_second > 0 && per_second <= HR_NS_PER_S);
        paid_ns = HR_MAX(rate->paid_ns, now_ns) + HR_NS_PER_S / per_second;
        if (paid_ns - now_ns > HR_NS_PER_S)
                return false;
        rate->paid_ns = paid_ns;
        return true;
}
