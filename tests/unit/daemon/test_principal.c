/* Tokens: only the whole one is known, and how much of it a guess has makes no difference in
 * time. */
#include "daemon/principal.h"

#include <math.h>

#include "core/clock.h"
#include "daemon/digest.h"
#include "tests/harness.h"

#define TOKEN "0123456789abcdefghijklmnopqrstuv"
#define TOKEN_BYTES 32U
#define PAIRS 50000U

struct fixture {
        struct hr_config config;
        struct hr_share devices;
        struct hr_principals *principals;
        struct hr_diag diag;
};

static void fixture_init(struct fixture *fixture) {
        /* sha256sum of TOKEN, and of nothing anybody knows. */
        static const char text[] =
                "[principal first]\n"
                "token_sha256 = 1111111111111111111111111111111111111111111111111111111111111111\n"
                "[principal second]\n"
                "token_sha256 = 73337f479fe170d73e53e247f3052e4243cc9c2a0ffa621853d9385c619efb77\n"
                "permissions = run\n";

        *fixture = (struct fixture){0};
        HR_EXPECT_OK(hr_config_init(&fixture->config, &fixture->diag), &fixture->diag);
        HR_EXPECT_OK(hr_config_read_text(&fixture->config, "text", text, sizeof text - 1,
                                         &fixture->diag), &fixture->diag);
        HR_EXPECT_OK(hr_config_finish(&fixture->config, &fixture->diag), &fixture->diag);
        HR_EXPECT_OK(hr_share_init(&fixture->devices, NULL, HR_SHARE_WEIGHT, 1, &fixture->diag),
                     &fixture->diag);
        HR_EXPECT_OK(hr_principals_new(&fixture->config, &fixture->devices, &fixture->diag,
                                       &fixture->principals), &fixture->diag);
}

static void fixture_deinit(struct fixture *fixture) {
        fixture->principals = hr_principals_free(fixture->principals);
        hr_share_deinit(&fixture->devices);
        hr_config_deinit(&fixture->config);
}

/* What a hello does with a token. */
static hr_status known_by_token(struct hr_principals *principals, const void *token, size_t bytes,
                                struct hr_diag *diag, struct hr_principal **ret_principal) {
        uint8_t digest[HR_TOKEN_DIGEST_BYTES];

        HR_TRY(hr_sha256(token, bytes, diag, digest));
        return hr_principal_of_token(principals, digest, diag, ret_principal);
}

HR_TEST(only_the_whole_token_is_known) {
        struct fixture fixture;
        struct hr_principal *found = NULL;
        char guess[TOKEN_BYTES + 1];

        fixture_init(&fixture);
        HR_EXPECT_OK(known_by_token(fixture.principals, TOKEN, TOKEN_BYTES, &fixture.diag,
                                    &found), &fixture.diag);
        HR_EXPECT_STREQ(found->name, "second");
        HR_EXPECT_OK(hr_principal_check(found, HR_PERMIT_RUN, &fixture.diag), &fixture.diag);
        HR_EXPECT_EQ(hr_principal_check(found, HR_PERMIT_ADMIN, &fixture.diag), HR_E_PERMISSION);
        found = hr_principal_unref(found);
        for (unsigned bytes = 0; bytes < TOKEN_BYTES; bytes++)
                HR_EXPECT_EQ(known_by_token(fixture.principals, TOKEN, bytes, NULL, &found),
                             HR_E_UNAUTHENTICATED);
        memcpy(guess, TOKEN, sizeof guess); /* and the zero behind it */
        HR_EXPECT_EQ(known_by_token(fixture.principals, guess, sizeof guess, NULL, &found),
                     HR_E_UNAUTHENTICATED);
        for (unsigned bit = 0; bit < 8 * TOKEN_BYTES; bit++) {
                memcpy(guess, TOKEN, TOKEN_BYTES);
                guess[bit / 8] = (char) (guess[bit / 8] ^ (1 << bit % 8));
                HR_EXPECT_EQ(known_by_token(fixture.principals, guess, TOKEN_BYTES, NULL,
                                            &found), HR_E_UNAUTHENTICATED);
        }
        HR_EXPECT(!found);
        fixture_deinit(&fixture);
}

/* Who comes and goes with a new configuration; whoever is still referred to is counted until
 * then. */
HR_TEST(sections_change) {
        static const char text[] =
                "[principal third]\n"
                "token_sha256 = 1111111111111111111111111111111111111111111111111111111111111111\n"
                "weight = 300\n"
                "[principal second]\n"
                "token_sha256 = 2222222222222222222222222222222222222222222222222222222222222222\n"
                "permissions = admin\n";
        struct hr_principal *first = NULL, *second = NULL, *third = NULL;
        struct hr_principals_change *change = NULL;
        uint8_t ones[HR_TOKEN_DIGEST_BYTES], twos[HR_TOKEN_DIGEST_BYTES];
        const struct hr_principal *at = NULL;
        struct hr_config_changes changes;
        struct hr_config fresh = {0};
        struct fixture fixture;
        uint32_t count = 0;

        memset(ones, 0x11, sizeof ones);
        memset(twos, 0x22, sizeof twos);
        fixture_init(&fixture);
        HR_EXPECT_OK(hr_principal_of_token(fixture.principals, ones, &fixture.diag, &first),
                     &fixture.diag);
        HR_EXPECT_STREQ(first->name, "first");
        HR_EXPECT_OK(known_by_token(fixture.principals, TOKEN, TOKEN_BYTES, &fixture.diag, &second),
                     &fixture.diag);
        HR_EXPECT_OK(hr_account_charge(NULL, &first->account, &fixture.config.limits,
                                       HR_CHARGE_STATES, 2, 0, &fixture.diag), &fixture.diag);
        HR_EXPECT_OK(hr_config_init(&fresh, &fixture.diag), &fixture.diag);
        HR_EXPECT_OK(hr_config_read_text(&fresh, "text", text, sizeof text - 1, &fixture.diag),
                     &fixture.diag);
        HR_EXPECT_OK(hr_config_finish(&fresh, &fixture.diag), &fixture.diag);

        HR_EXPECT_OK(hr_principals_prepare(fixture.principals, &fresh, &fixture.diag, &change),
                     &fixture.diag);
        hr_principals_discard(change); /* as if it had not been */
        HR_EXPECT(!first->is_revoked);
        HR_EXPECT_OK(hr_principals_prepare(fixture.principals, &fresh, &fixture.diag, &change),
                     &fixture.diag);
        HR_EXPECT_OK(hr_config_reload(&fixture.config, &fresh, &fixture.diag, &changes),
                     &fixture.diag);
        HR_EXPECT_STREQ(changes.applied,
                        "principal.first, principal.second.token_sha256, "
                        "principal.second.permissions, principal.third");
        HR_EXPECT_STREQ(changes.kept, "");
        hr_principals_commit(fixture.principals, change);
        hr_config_deinit(&fresh);

        HR_EXPECT(first->is_revoked && !second->is_revoked);
        HR_EXPECT_EQ(second->permissions, HR_PERMIT_ADMIN);
        HR_EXPECT_EQ(known_by_token(fixture.principals, TOKEN, TOKEN_BYTES, NULL, &third),
                     HR_E_UNAUTHENTICATED);
        HR_EXPECT_OK(hr_principal_of_token(fixture.principals, twos, &fixture.diag, &third),
                     &fixture.diag);
        HR_EXPECT(third == second);
        third = hr_principal_unref(third);
        HR_EXPECT_OK(hr_principal_of_token(fixture.principals, ones, &fixture.diag, &third),
                     &fixture.diag);
        HR_EXPECT_STREQ(third->name, "third");
        HR_EXPECT_EQ(atomic_load(&third->share.weight), 300);
        while ((at = hr_principals_next(fixture.principals, at)))
                count++;
        HR_EXPECT_EQ(count, 3);
        HR_EXPECT_EQ(hr_account_held(hr_principals_account(fixture.principals), HR_CHARGE_STATES),
                     2);
        hr_account_discharge(NULL, &first->account, HR_CHARGE_STATES, 2);
        first = hr_principal_unref(first);
        second = hr_principal_unref(second);
        third = hr_principal_unref(third);
        HR_EXPECT(!first && !second && !third);
        fixture_deinit(&fixture);
}

/* ---- time ------------------------------------------------------------------------------------ */

static uint64_t time_of(const struct fixture *fixture, const char *guess) {
        struct hr_principal *found = NULL;
        uint64_t begun = hr_clock_now_ns();

        HR_EXPECT_EQ(known_by_token(fixture->principals, guess, TOKEN_BYTES, NULL, &found),
                     HR_E_UNAUTHENTICATED);
        return hr_clock_now_ns() - begun;
}

static int by_value(const void *a, const void *b) {
        uint64_t left = *(const uint64_t *) a, right = *(const uint64_t *) b;

        return (left > right) - (left < right);
}

/* Mean and variance of the lower nine tenths: interrupts are nobody's doing. */
static void moments(uint64_t *values, double *ret_mean, double *ret_variance) {
        const unsigned count = PAIRS / 10 * 9;
        double mean = 0, variance = 0;

        qsort(values, PAIRS, sizeof *values, by_value);
        for (unsigned i = 0; i < count; i++)
                mean += (double) values[i] / count;
        for (unsigned i = 0; i < count; i++)
                variance += pow((double) values[i] - mean, 2) / (count - 1);
        *ret_mean = mean;
        *ret_variance = variance;
}

HR_TEST_LIMIT(guesses_take_the_same_time_whatever_they_share, 120) {
        static uint64_t none[PAIRS], most[PAIRS];
        static const char far_off[] = "zzzzzzzzzzzzzzzzzzzzzzzzzzzzzzzz";
        struct fixture fixture;
        char near_by[TOKEN_BYTES + 1] = TOKEN;
        double mean[2], variance[2], t;

        if (!getenv("HEADRACE_FULL"))
                hr_test_skip("a measurement, in the long form only");
        fixture_init(&fixture);
        near_by[TOKEN_BYTES - 1] = '!';
        for (unsigned i = 0; i < PAIRS; i++) { /* in turns, each first every other time */
                if (i % 2 == 0)
                        none[i] = time_of(&fixture, far_off);
                most[i] = time_of(&fixture, near_by);
                if (i % 2 == 1)
                        none[i] = time_of(&fixture, far_off);
        }
        moments(none, &mean[0], &variance[0]);
        moments(most, &mean[1], &variance[1]);
        t = (mean[0] - mean[1]) / sqrt((variance[0] + variance[1]) / (PAIRS / 10 * 9));
        if (fabs(t) >= 4.5)
                hr_test_fail(__FILE__, __LINE__, "t = %.2f: %.1f ns and %.1f ns", t, mean[0],
                             mean[1]);
        fixture_deinit(&fixture);
}
