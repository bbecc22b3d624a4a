/* Handles and charges: what a session may hold and how it is found again. */
#include "daemon/session.h"

#include "daemon/random.h"
#include "tests/harness.h"

static struct hr_object objects[1000];

HR_TEST(handles_find_what_was_added) {
        struct hr_handles handles = {0};
        uint64_t ids[1000];
        struct hr_diag diag = {0};

        for (int i = 0; i < 1000; i++) {
                HR_EXPECT_OK(hr_handles_add(&handles, &objects[i], &diag, &ids[i]), &diag);
                HR_EXPECT(ids[i] != 0);
        }
        HR_EXPECT_EQ(handles.used, 1000);
        for (int i = 0; i < 1000; i++)
                HR_EXPECT(hr_handles_find(&handles, ids[i]) == &objects[i]);
        hr_handles_deinit(&handles);
}

HR_TEST(handles_stale_ones_are_not_found) {
        struct hr_handles handles = {0};
        uint64_t first = 0, second = 0;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_handles_add(&handles, &objects[0], &diag, &first), &diag);
        HR_EXPECT(hr_handles_remove(&handles, first) == &objects[0]);
        HR_EXPECT(!hr_handles_find(&handles, first));
        HR_EXPECT(!hr_handles_remove(&handles, first));
        for (int i = 0; i < 100; i++) {
                /* The slot is used again, with another generation. */
                HR_EXPECT_OK(hr_handles_add(&handles, &objects[1], &diag, &second), &diag);
                HR_EXPECT_EQ((uint32_t) second, (uint32_t) first);
                HR_EXPECT(second != first);
                HR_EXPECT(!hr_handles_find(&handles, first));
                HR_EXPECT(hr_handles_find(&handles, second) == &objects[1]);
                HR_EXPECT(hr_handles_remove(&handles, second) == &objects[1]);
        }
        HR_EXPECT_EQ(handles.slot_count, 8);
        hr_handles_deinit(&handles);
}

HR_TEST(handles_guesses_are_not_found) {
        struct hr_handles mine = {0}, theirs = {0};
        uint64_t handle = 0, other = 0;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_handles_add(&mine, &objects[0], &diag, &handle), &diag);
        HR_EXPECT_OK(hr_handles_add(&theirs, &objects[1], &diag, &other), &diag);
        HR_EXPECT(!hr_handles_find(&mine, other));
        HR_EXPECT(!hr_handles_find(&mine, 0));
        HR_EXPECT(!hr_handles_find(&mine, 1));
        HR_EXPECT(!hr_handles_find(&mine, UINT64_MAX));
        HR_EXPECT(!hr_handles_find(&mine, handle & UINT32_MAX));
        HR_EXPECT(!hr_handles_find(&mine, handle + 1)); /* a slot that is free */
        HR_EXPECT(!hr_handles_find(&mine, handle + 1000));
        for (uint64_t guess = 0; guess < 100000; guess++)
                HR_EXPECT(guess << 32 == (handle & ~(uint64_t) UINT32_MAX) ||
                          !hr_handles_find(&mine, guess << 32 | 1));
        hr_handles_deinit(&mine);
        hr_handles_deinit(&theirs);
}

HR_TEST(accounts_are_charged_both_or_neither) {
        struct hr_limits limits = {.principal_runs = 5};
        struct hr_account first = {0}, second = {0}, both = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_account_charge(&first, &both, &limits, HR_CHARGE_RUNS, 3, 4, &diag), &diag);
        HR_EXPECT_EQ(hr_account_charge(&first, &both, &limits, HR_CHARGE_RUNS, 2, 4, &diag),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "session_runs");
        diag = (struct hr_diag){0};
        HR_EXPECT_EQ(hr_account_charge(&second, &both, &limits, HR_CHARGE_RUNS, 3, 4, &diag),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "principal_runs");
        HR_EXPECT_EQ(diag.limit, 5);
        HR_EXPECT_EQ(second.held[HR_CHARGE_RUNS], 0);
        HR_EXPECT_EQ(both.held[HR_CHARGE_RUNS], 3);
        diag = (struct hr_diag){0};
        HR_EXPECT_OK(hr_account_charge(&second, &both, &limits, HR_CHARGE_RUNS, 2, 4, &diag),
                     &diag);
        hr_account_discharge(&first, &both, HR_CHARGE_RUNS, 3);
        hr_account_discharge(&second, &both, HR_CHARGE_RUNS, 2);
        HR_EXPECT_EQ(both.held[HR_CHARGE_RUNS], 0);
}

HR_TEST(charges_are_exact) {
        uint64_t counter = 0;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_charge(&counter, 60, 100, "bytes", &diag), &diag);
        HR_EXPECT_OK(hr_charge(&counter, 40, 100, "bytes", &diag), &diag);
        HR_EXPECT_EQ(hr_charge(&counter, 1, 100, "bytes", &diag), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "LIMIT");
        HR_EXPECT_STREQ(diag.field, "bytes");
        HR_EXPECT_EQ(diag.limit, 100);
        HR_EXPECT_EQ(diag.actual, 101);
        HR_EXPECT_EQ(counter, 100);
        hr_discharge(&counter, 100);
        HR_EXPECT_EQ(counter, 0);
}

HR_TEST(charges_do_not_wrap) {
        uint64_t counter = 10;
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(hr_charge(&counter, UINT64_MAX, UINT64_MAX, "bytes", &diag), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(counter, 10);
        HR_EXPECT(diag.actual == UINT64_MAX);
}

HR_TEST(random_bytes_differ) {
        uint64_t a = 0, b = 0;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_random(&a, sizeof a, &diag), &diag);
        HR_EXPECT_OK(hr_random(&b, sizeof b, &diag), &diag);
        HR_EXPECT(a != b);
}
