/* Budgets: all of a chain or none of it, limits kept under contention. */
#include "core/thread.h"
#include "scheduler/scheduler.h"
#include "tests/harness.h"

HR_TEST(all_or_none) {
        struct hr_budget top = {.limit = 100, .field = "top"};
        struct hr_budget one = {.above = &top, .limit = 80, .field = "one"};
        struct hr_budget other = {.above = &top, .limit = UINT64_MAX, .field = "other"};
        struct hr_diag diag = {0};

        HR_EXPECT(hr_budget_take(&one, 80, &diag) == HR_OK);
        HR_EXPECT_EQ(hr_budget_take(&one, 1, &diag), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "one");
        HR_EXPECT_EQ(diag.limit, 80);
        HR_EXPECT_EQ(diag.actual, 81);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_budget_take(&other, 21, &diag), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "top");
        HR_EXPECT_EQ(atomic_load(&other.held), 0); /* it had been charged on the way */
        HR_EXPECT_EQ(atomic_load(&top.held), 80);
        hr_diag_clear(&diag);
        HR_EXPECT(hr_budget_take(&other, 20, &diag) == HR_OK);
        HR_EXPECT_EQ(hr_budget_take(&other, UINT64_MAX, &diag), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(diag.actual, UINT64_MAX);
        hr_budget_give(&one, 80);
        hr_budget_give(&other, 20);
        HR_EXPECT_EQ(atomic_load(&top.held), 0);
        HR_EXPECT(hr_budget_take(NULL, 5, NULL) == HR_OK); /* no budget */
        hr_budget_give(NULL, 5);
}

struct taker {
        struct hr_thread thread;
        struct hr_budget own;
        unsigned taken;
};

static void take_and_give(void *arg) {
        struct taker *taker = arg;

        for (int i = 0; i < 20000; i++) {
                if (hr_budget_take(&taker->own, 3, NULL) != HR_OK)
                        continue;
                taker->taken++;
                HR_EXPECT(atomic_load(&taker->own.above->held) <= 7);
                hr_budget_give(&taker->own, 3);
        }
}

HR_TEST(threads_keep_the_limit) {
        struct hr_budget top = {.limit = 7, .field = "top"};
        struct taker takers[3] = {{{0}}};
        struct hr_diag diag = {0};

        for (int i = 0; i < 3; i++) {
                takers[i].own = (struct hr_budget){.above = &top, .limit = 3, .field = "own"};
                HR_EXPECT(hr_thread_start(&takers[i].thread, "taker", take_and_give, &takers[i],
                                          &diag) == HR_OK);
        }
        for (int i = 0; i < 3; i++)
                hr_thread_join(&takers[i].thread);
        HR_EXPECT_EQ(atomic_load(&top.held), 0);
        for (int i = 0; i < 3; i++) {
                HR_EXPECT(takers[i].taken > 0);
                HR_EXPECT_EQ(atomic_load(&takers[i].own.held), 0);
        }
}
