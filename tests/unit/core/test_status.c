#include "core/device.h"
#include "core/thread.h"
#include "tests/harness.h"

HR_TEST(status_first_failure_wins) {
        struct hr_diag diag = { 0 };

        HR_EXPECT_EQ(hr_fail_reason(&diag, HR_E_INVALID, "SHAPE", "first %d", 1), HR_E_INVALID);
        HR_EXPECT_EQ(hr_fail(&diag, HR_E_INTERNAL, "second"), HR_E_INTERNAL);
        HR_EXPECT_EQ(diag.status, HR_E_INVALID);
        HR_EXPECT_STREQ(diag.words, "first 1");
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "SHAPE");
}

HR_TEST(status_words_are_cut_not_overrun) {
        struct hr_diag diag = { 0 };
        char long_words[1000];

        memset(long_words, 'x', sizeof long_words - 1);
        long_words[sizeof long_words - 1] = '\0';
        (void) hr_fail(&diag, HR_E_INVALID, "%s", long_words);
        HR_EXPECT_EQ(strlen(diag.words), HR_DIAG_WORDS_BYTES - 1);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "INVALID");
}

HR_TEST(status_every_code_has_name_scope_and_number) {
        for (int status = 0; status < HR_STATUS_COUNT; status++) {
                HR_EXPECT(hr_status_name((hr_status) status));
                HR_EXPECT(hr_status_grpc_code((hr_status) status) <= 16);
                HR_EXPECT((hr_status_scope((hr_status) status) == HR_SCOPE_NONE) ==
                          (status == HR_OK));
        }
}

static struct hr_outcome outcome;

static void fail_once(void *arg) {
        (void) hr_outcome_fail(&outcome, HR_E_RANGE, "INDEX_VALUE", *(uint32_t *) arg, "by %u",
                               *(uint32_t *) arg);
}

HR_TEST(outcome_is_written_by_one_thread) {
        struct hr_thread threads[4] = { 0 };
        uint32_t numbers[4] = { 0, 1, 2, 3 };
        struct hr_diag diag = { 0 };
        char words[16];

        HR_EXPECT(!hr_outcome_failed(&outcome));
        HR_EXPECT(!hr_outcome_diag(&outcome));
        for (int i = 0; i < 4; i++)
                HR_EXPECT_OK(hr_thread_start(&threads[i], "fail", fail_once, &numbers[i], &diag),
                             &diag);
        for (int i = 0; i < 4; i++)
                hr_thread_join(&threads[i]);
        HR_EXPECT(hr_outcome_failed(&outcome));
        HR_EXPECT_EQ(hr_outcome_diag(&outcome)->status, HR_E_RANGE);
        (void) snprintf(words, sizeof words, "by %u", outcome.diag.node);
        HR_EXPECT_STREQ(outcome.diag.words, words);
}
