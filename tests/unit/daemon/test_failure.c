/* How many failures of a kind are logged. */
#include "core/clock.h"
#include "daemon/failure.h"
#include "tests/harness.h"

HR_TEST(failure_has_a_burst_then_one_a_second) {
        struct hr_failures failures = {0};
        uint64_t now_ns = 1000 * HR_NS_PER_S, suppressed = 7;
        unsigned shown = 0;

        for (int i = 0; i < 1000; i++)
                shown += hr_failure_allowed(&failures, 5, now_ns, &suppressed);
        HR_EXPECT_EQ(shown, HR_FAILURE_BURST);
        HR_EXPECT_EQ(suppressed, 0);
        HR_EXPECT_EQ(failures.kinds[5].suppressed, 1000 - HR_FAILURE_BURST);
        /* Another kind is not held back by it. */
        HR_EXPECT(hr_failure_allowed(&failures, 6, now_ns, &suppressed));
        /* The next line says how many were not shown. */
        now_ns += HR_NS_PER_S - 1;
        HR_EXPECT(!hr_failure_allowed(&failures, 5, now_ns, &suppressed));
        now_ns += 1;
        HR_EXPECT(hr_failure_allowed(&failures, 5, now_ns, &suppressed));
        HR_EXPECT_EQ(suppressed, 1001 - HR_FAILURE_BURST);
        HR_EXPECT(!hr_failure_allowed(&failures, 5, now_ns, &suppressed));
        /* After a while of silence there is a whole burst again. */
        now_ns += HR_FAILURE_BURST * HR_NS_PER_S;
        shown = 0;
        for (int i = 0; i < 100; i++)
                shown += hr_failure_allowed(&failures, 5, now_ns, &suppressed);
        HR_EXPECT_EQ(shown, HR_FAILURE_BURST);
        HR_EXPECT_EQ(failures.suppressed_total,
                     1001 - HR_FAILURE_BURST + 1 + 100 - HR_FAILURE_BURST);
}
