/* The arithmetic of shares, against the formulas worked out by hand. */
#include "daemon/share.h"

#include "core/clock.h"
#include "tests/harness.h"

static void make(struct hr_share *share, struct hr_share *above, uint64_t weight) {
        HR_EXPECT(hr_share_init(share, above, weight, 2, NULL) == HR_OK);
}

HR_TEST(starts_and_finishes) {
        struct hr_share top, light, heavy, inner;

        make(&top, NULL, 100);
        make(&light, &top, 50);
        make(&heavy, &top, 200);
        make(&inner, &heavy, 100);
        hr_share_use(&light, 0, 10);
        HR_EXPECT_EQ(light.tags[0].finish, 20); /* 10 at half the usual weight */
        HR_EXPECT_EQ(top.tags[0].now, 0);
        HR_EXPECT_EQ(hr_share_lag(&light, 0), 20);
        HR_EXPECT_EQ(hr_share_lag(&light, 1), 0); /* devices are apart */
        hr_share_use(&inner, 0, 10);
        HR_EXPECT_EQ(inner.tags[0].finish, 10);
        HR_EXPECT_EQ(heavy.tags[0].finish, 5); /* at twice */
        hr_share_use(&inner, 0, 10);
        HR_EXPECT_EQ(heavy.tags[0].now, 10);
        HR_EXPECT_EQ(heavy.tags[0].finish, 10);
        HR_EXPECT_EQ(top.tags[0].now, 5);
        HR_EXPECT_EQ(hr_share_lag(&light, 0), 15);
        hr_share_correct(&light, 0, 10, 4); /* it took less: 8, not 20 */
        HR_EXPECT_EQ(hr_share_lag(&light, 0), 3);
        hr_share_correct(&light, 0, 4, 1); /* behind what is: it does not save up */
        HR_EXPECT_EQ(hr_share_lag(&light, 0), 0);
        hr_share_use(&light, 0, 10);
        HR_EXPECT_EQ(light.tags[0].finish, 25);
        hr_share_deinit(&inner);
        hr_share_deinit(&heavy);
        hr_share_deinit(&light);
        hr_share_deinit(&top);
}

HR_TEST(an_idle_device_forgets) {
        struct hr_share top, one, other;

        make(&top, NULL, 100);
        make(&one, &top, 100);
        make(&other, &top, 100);
        hr_share_use(&one, 0, HR_NS_PER_S);
        hr_share_use(&other, 0, 5);
        HR_EXPECT_EQ(hr_share_lag(&one, 0), HR_NS_PER_S);
        hr_share_idle(&top, 0);
        HR_EXPECT_EQ(hr_share_lag(&one, 0), 0);
        HR_EXPECT_EQ(hr_share_lag(&other, 0), 0);
        HR_EXPECT_EQ(top.tags[0].now, HR_NS_PER_S);
        hr_share_deinit(&other);
        hr_share_deinit(&one);
        hr_share_deinit(&top);
}

/* Times wrap, differences do not care. */
HR_TEST(it_goes_on_for_ever) {
        struct hr_share top, one, other;

        make(&top, NULL, 100);
        make(&one, &top, 1);
        make(&other, &top, 100);
        top.tags[0].now = top.tags[0].finish = one.tags[0].finish = other.tags[0].finish =
                UINT64_MAX - 3;
        hr_share_use(&one, 0, 1);
        HR_EXPECT_EQ(hr_share_lag(&one, 0), 100);
        HR_EXPECT_EQ(hr_share_lag(&other, 0), 0);
        hr_share_idle(&top, 0);
        HR_EXPECT_EQ(hr_share_lag(&one, 0), 0);
        hr_share_use(&one, 0, UINT64_MAX); /* bounded, not wrapped */
        HR_EXPECT_EQ(hr_share_lag(&one, 0), INT64_MAX / 4);
        hr_share_use(&other, 0, 7);
        HR_EXPECT_EQ(hr_share_lag(&other, 0), 7);
        hr_share_deinit(&other);
        hr_share_deinit(&one);
        hr_share_deinit(&top);
}
