/* What is charged, to whom, and what is said of it. */
#include "daemon/charge.h"

#include "tests/harness.h"

struct fixture {
        struct hr_limits limits;
        struct hr_account daemon, principal, session;
        struct hr_diag diag;
};

static void fixture_init(struct fixture *fixture) {
        *fixture = (struct fixture){.limits = {.principal_graphs = 5, .principal_states = 7}};
        hr_account_init(&fixture->daemon, NULL, "devices", UINT64_MAX);
        hr_account_init(&fixture->principal, &fixture->daemon, "principal_device_bytes", 1000);
        hr_account_init(&fixture->session, &fixture->principal, "session_device_bytes", 600);
}

static hr_status charge(struct fixture *fixture, hr_charge_kind kind, uint64_t amount,
                        uint64_t session_limit) {
        fixture->diag = (struct hr_diag){0};
        return hr_account_charge(&fixture->session, &fixture->principal, &fixture->limits, kind,
                                 amount, session_limit, &fixture->diag);
}

/* What session, principal and daemon hold of a kind. */
static void expect(const struct fixture *fixture, hr_charge_kind kind, uint64_t session,
                   uint64_t principal, uint64_t daemon) {
        HR_EXPECT_EQ(hr_account_held(&fixture->session, kind), session);
        HR_EXPECT_EQ(hr_account_held(&fixture->principal, kind), principal);
        HR_EXPECT_EQ(hr_account_held(&fixture->daemon, kind), daemon);
}

HR_TEST(every_kind_has_a_name_and_a_limit_of_its_own) {
        struct hr_limits limits;

        for (int i = 0; i < HR_CHARGE_KINDS; i++) {
                HR_EXPECT(*hr_charge_name((hr_charge_kind) i) != '\0');
                for (int j = 0; j < i; j++)
                        HR_EXPECT(strcmp(hr_charge_name((hr_charge_kind) i),
                                         hr_charge_name((hr_charge_kind) j)) != 0);
        }
        memset(&limits, 0, sizeof limits);
        limits.principal_graphs = 17;
        limits.principal_upload_bytes = 19;
        for (int i = 0; i < HR_CHARGE_KINDS; i++)
                HR_EXPECT_EQ(hr_charge_limit(&limits, (hr_charge_kind) i),
                             i == HR_CHARGE_GRAPHS         ? 17
                             : i == HR_CHARGE_UPLOAD_BYTES ? 19
                                                           : 0);
}

HR_TEST(the_session_refuses_first_then_its_principal) {
        struct fixture fixture;

        fixture_init(&fixture);
        HR_EXPECT_OK(charge(&fixture, HR_CHARGE_GRAPHS, 3, 3), &fixture.diag);
        HR_EXPECT_EQ(charge(&fixture, HR_CHARGE_GRAPHS, 1, 3), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(fixture.diag.field, "session_graphs");
        expect(&fixture, HR_CHARGE_GRAPHS, 3, 3, 3);
        HR_EXPECT_EQ(charge(&fixture, HR_CHARGE_GRAPHS, 3, 100), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(fixture.diag.field, "principal_graphs");
        HR_EXPECT_EQ(fixture.diag.limit, 5);
        HR_EXPECT_EQ(fixture.diag.actual, 6);
        expect(&fixture, HR_CHARGE_GRAPHS, 3, 3, 3); /* both or neither */
        hr_account_discharge(&fixture.session, &fixture.principal, HR_CHARGE_GRAPHS, 3);
        expect(&fixture, HR_CHARGE_GRAPHS, 0, 0, 0);
}

HR_TEST(what_is_a_principals_alone) {
        struct fixture fixture;

        fixture_init(&fixture);
        HR_EXPECT_OK(hr_account_charge(NULL, &fixture.principal, &fixture.limits, HR_CHARGE_STATES,
                                       7, 0, &fixture.diag), &fixture.diag);
        expect(&fixture, HR_CHARGE_STATES, 0, 7, 7);
        HR_EXPECT_EQ(hr_account_charge(NULL, &fixture.principal, &fixture.limits, HR_CHARGE_STATES,
                                       1, 0, NULL), HR_E_EXHAUSTED);
        hr_account_discharge(NULL, &fixture.principal, HR_CHARGE_STATES, 7);
        expect(&fixture, HR_CHARGE_STATES, 0, 0, 0);
}

HR_TEST(principals_without_limits_together_do_not_wrap) {
        struct fixture fixture;
        struct hr_account other = {0};

        fixture_init(&fixture);
        fixture.limits.principal_weight_bytes = UINT64_MAX;
        hr_account_init(&other, &fixture.daemon, "principal_device_bytes", 1000);
        HR_EXPECT_OK(charge(&fixture, HR_CHARGE_WEIGHT_BYTES, UINT64_MAX - 5, UINT64_MAX),
                     &fixture.diag);
        HR_EXPECT_EQ(hr_account_charge(NULL, &other, &fixture.limits, HR_CHARGE_WEIGHT_BYTES, 6, 0,
                                       NULL), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(hr_account_held(&other, HR_CHARGE_WEIGHT_BYTES), 0);
        HR_EXPECT_OK(hr_account_charge(NULL, &other, &fixture.limits, HR_CHARGE_WEIGHT_BYTES, 5, 0,
                                       &fixture.diag), &fixture.diag);
        expect(&fixture, HR_CHARGE_WEIGHT_BYTES, UINT64_MAX - 5, UINT64_MAX - 5, UINT64_MAX);
        hr_account_discharge(NULL, &other, HR_CHARGE_WEIGHT_BYTES, 5);
        hr_account_discharge(&fixture.session, &fixture.principal, HR_CHARGE_WEIGHT_BYTES,
                             UINT64_MAX - 5);
        expect(&fixture, HR_CHARGE_WEIGHT_BYTES, 0, 0, 0);
}

HR_TEST(an_account_with_nothing_above) {
        struct hr_limits limits = {.principal_runs = 2};
        struct hr_account alone = {0};
        struct hr_diag diag = {0};

        hr_account_init(&alone, NULL, "devices", 10);
        HR_EXPECT_OK(hr_account_charge(NULL, &alone, &limits, HR_CHARGE_RUNS, 2, 0, &diag), &diag);
        HR_EXPECT_EQ(hr_account_held(&alone, HR_CHARGE_RUNS), 2);
        hr_account_discharge(NULL, &alone, HR_CHARGE_RUNS, 2);
        HR_EXPECT_EQ(hr_account_held(&alone, HR_CHARGE_RUNS), 0);
}

HR_TEST(what_is_never_refused_is_counted_all_the_way_up) {
        struct fixture fixture;

        fixture_init(&fixture);
        hr_account_change(&fixture.principal, HR_CHARGE_OUTPUT_BYTES, 0, 50);
        expect(&fixture, HR_CHARGE_OUTPUT_BYTES, 0, 50, 50);
        hr_account_change(&fixture.principal, HR_CHARGE_OUTPUT_BYTES, 50, 20);
        expect(&fixture, HR_CHARGE_OUTPUT_BYTES, 0, 20, 20);
        hr_account_change(NULL, HR_CHARGE_OUTPUT_BYTES, 1, 2); /* of nobody */
        hr_account_change(&fixture.principal, HR_CHARGE_OUTPUT_BYTES, 20, 0);
        expect(&fixture, HR_CHARGE_OUTPUT_BYTES, 0, 0, 0);
}

HR_TEST(compute_memory_goes_by_budgets) {
        struct fixture fixture;

        fixture_init(&fixture);
        HR_EXPECT_OK(hr_budget_take(&fixture.session.device_bytes, 600, &fixture.diag),
                     &fixture.diag);
        expect(&fixture, HR_CHARGE_DEVICE_BYTES, 600, 600, 600);
        HR_EXPECT_EQ(hr_budget_take(&fixture.session.device_bytes, 1, &fixture.diag),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(fixture.diag.field, "session_device_bytes");
        fixture.diag = (struct hr_diag){0};
        HR_EXPECT_EQ(hr_budget_take(&fixture.principal.device_bytes, 401, &fixture.diag),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(fixture.diag.field, "principal_device_bytes");
        expect(&fixture, HR_CHARGE_DEVICE_BYTES, 600, 600, 600);
        hr_budget_give(&fixture.session.device_bytes, 600);
        expect(&fixture, HR_CHARGE_DEVICE_BYTES, 0, 0, 0);
}

/* The first failure keeps its words, and figures that do not fit are as large as can be. */
HR_TEST(words_of_a_refusal) {
        uint64_t counter = 10;
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(hr_charge(&counter, UINT64_MAX, UINT64_MAX, "bytes", &diag), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(diag.actual, UINT64_MAX);
        HR_EXPECT_EQ(hr_charge(&counter, 91, 100, "bytes", NULL), HR_E_EXHAUSTED);
        diag = (struct hr_diag){0};
        HR_EXPECT_EQ(hr_fail(&diag, HR_E_INVALID, "something else"), HR_E_INVALID);
        HR_EXPECT_EQ(hr_charge(&counter, 91, 100, "bytes", &diag), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(diag.status, HR_E_INVALID);
        HR_EXPECT(!diag.field);
        HR_EXPECT_EQ(counter, 10);
}
