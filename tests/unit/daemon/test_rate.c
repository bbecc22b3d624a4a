/* A second's worth at once, then one for each that has been paid for. */
#include "daemon/rate.h"

#include "core/clock.h"
#include "tests/harness.h"

HR_TEST(a_seconds_worth_and_no_more) {
        const uint64_t begun = 7 * HR_NS_PER_S;
        struct hr_rate rate = {0};

        for (int i = 0; i < 10; i++)
                HR_EXPECT(hr_rate_take(&rate, 10, begun));
        HR_EXPECT(!hr_rate_take(&rate, 10, begun));
        HR_EXPECT(!hr_rate_take(&rate, 10, begun + HR_NS_PER_S / 10 - 1));
        HR_EXPECT(hr_rate_take(&rate, 10, begun + HR_NS_PER_S / 10));
        HR_EXPECT(!hr_rate_take(&rate, 10, begun + HR_NS_PER_S / 10));
}

HR_TEST(idle_time_is_not_saved_up) {
        struct hr_rate rate = {0};

        for (uint64_t hour = 1; hour < 4; hour++) {
                for (int i = 0; i < 1000; i++)
                        HR_EXPECT(hr_rate_take(&rate, 1000, hour * 3600 * HR_NS_PER_S));
                HR_EXPECT(!hr_rate_take(&rate, 1000, hour * 3600 * HR_NS_PER_S));
        }
}

HR_TEST(the_extremes) {
        struct hr_rate slow = {0}, fast = {0};

        HR_EXPECT(hr_rate_take(&slow, 1, 1));
        HR_EXPECT(!hr_rate_take(&slow, 1, HR_NS_PER_S));
        HR_EXPECT(hr_rate_take(&slow, 1, HR_NS_PER_S + 1));
        for (int i = 0; i < 1000; i++)
                HR_EXPECT(hr_rate_take(&fast, HR_NS_PER_S, 5));
}
