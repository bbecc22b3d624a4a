/* Who starts next: order, devices that are not shared, and the bound on being overtaken. */
#include "daemon/admission.h"

#include "core/clock.h"
#include "scheduler/exec.h"
#include "tests/harness.h"

#define DEVICES 3

/* A pipeline as far as this room asks: the devices it computes on. */
struct fake {
        struct hr_pipeline pipeline;
        struct hr_plan plan;
        uint32_t splits[DEVICES];
};

static const struct hr_pipeline *on(struct fake *fake, uint32_t a, uint32_t b, uint32_t c) {
        *fake = (struct fake){.splits = {a, b, c}};
        fake->plan.device_count = DEVICES;
        fake->plan.device_splits = fake->splits;
        fake->pipeline.plan = &fake->plan;
        return &fake->pipeline;
}

static void open(struct hr_admission *admission, uint32_t device_runs) {
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_admission_init(admission, DEVICES, device_runs, UINT64_MAX, &diag), &diag);
}

static bool left(struct hr_admission *admission, struct hr_ticket *ticket) {
        return hr_admission_leave(admission, ticket, 0, 0, NULL);
}

/* The one that is admitted next, which must be `expected`. */
static void expect_next(struct hr_admission *admission, struct hr_ticket *expected) {
        HR_EXPECT(hr_admission_next(admission, 0) == expected);
        if (expected)
                HR_EXPECT(hr_admission_ask(admission, expected, expected->pipeline, 0));
}

HR_TEST(higher_priority_first_then_arrival) {
        struct hr_ticket running = {0}, low = {.priority = -1}, first = {0}, second = {0},
                         high = {.priority = 5};
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 0, 0);

        open(&admission, 1);
        HR_EXPECT(hr_admission_ask(&admission, &running, pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &first, pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &second, pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &high, pipeline, 0));
        expect_next(&admission, NULL);
        HR_EXPECT(left(&admission, &running));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline, 0));
        expect_next(&admission, &high);
        HR_EXPECT(left(&admission, &high));
        expect_next(&admission, &first);
        HR_EXPECT(left(&admission, &first));
        expect_next(&admission, &second);
        HR_EXPECT(left(&admission, &second));
        expect_next(&admission, &low);
        HR_EXPECT(left(&admission, &low));
        HR_EXPECT(!left(&admission, &low));
        hr_admission_deinit(&admission);
}

HR_TEST(other_devices_are_not_waited_for) {
        struct hr_ticket running = {0}, waiting = {.priority = 9}, other = {.priority = -9},
                         both = {0};
        struct hr_admission admission;
        struct fake fakes[3];
        const struct hr_pipeline *one = on(&fakes[0], 1, 0, 0), *two = on(&fakes[1], 0, 1, 0),
                                 *across = on(&fakes[2], 1, 1, 0);

        open(&admission, 1);
        HR_EXPECT(hr_admission_ask(&admission, &running, one, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &waiting, one, 0));
        HR_EXPECT(hr_admission_ask(&admission, &other, two, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &both, across, 0)); /* behind the one that waits */
        hr_admission_forget(&waiting);
        expect_next(&admission, &both); /* two devices: three runs at once */
        (void) left(&admission, &running);
        (void) left(&admission, &other);
        (void) left(&admission, &both);
        for (uint32_t d = 0; d < DEVICES; d++)
                HR_EXPECT_EQ(admission.devices[d].in_flight, 0);
        hr_admission_deinit(&admission);
}

/* A stream of high priority overtakes a low one as often as is allowed, and no more. */
HR_TEST(nobody_is_overtaken_for_ever) {
        static struct hr_ticket high[40];
        struct hr_ticket low = {.priority = -100}, lower = {.priority = -200};
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 0, 1, 0);
        unsigned overtaken = 0;

        open(&admission, 1);
        high[0].priority = 100;
        HR_EXPECT(hr_admission_ask(&admission, &high[0], pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline, 0));
        HR_EXPECT(!hr_admission_ask(&admission, &lower, pipeline, 0));
        for (unsigned i = 1; i < 40; i++) {
                struct hr_ticket *next;

                high[i].priority = 100;
                HR_EXPECT(!hr_admission_ask(&admission, &high[i], pipeline, 0));
                HR_EXPECT(left(&admission, i == 1 ? &high[0] : &high[i - 1]));
                next = hr_admission_next(&admission, 0);
                if (next != &high[i])
                        break;
                HR_EXPECT(hr_admission_ask(&admission, next, pipeline, 0));
                overtaken++;
        }
        HR_EXPECT_EQ(overtaken, HR_PASSES_MAX);
        expect_next(&admission, &low);
        (void) left(&admission, &low);
        expect_next(&admission, &lower);
        (void) left(&admission, &lower);
        hr_admission_deinit(&admission);
}

HR_TEST(as_many_at_once_as_allowed) {
        struct hr_ticket tickets[5] = {{0}};
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 1, 1);

        open(&admission, 2); /* three devices: four, all the same */
        for (unsigned i = 0; i < 5; i++)
                HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[i], pipeline, 0), i < 4);
        HR_EXPECT(left(&admission, &tickets[2]));
        expect_next(&admission, &tickets[4]);
        for (unsigned i = 0; i < 5; i++)
                (void) left(&admission, &tickets[i]);
        hr_admission_deinit(&admission);
}

/* Time goes on by what is asked for: a run of `ms` that has the device alone. */
struct clock {
        uint64_t now_ns;
};

static uint64_t passes(struct hr_admission *admission, struct clock *clock,
                       struct hr_ticket *ticket, uint64_t ms) {
        uint64_t start_ns = clock->now_ns, cost_ns = 0;

        clock->now_ns += ms * HR_NS_PER_MS;
        HR_EXPECT(hr_admission_leave(admission, ticket, start_ns, clock->now_ns, &cost_ns));
        return cost_ns;
}

struct somebody {
        struct hr_share principal, session;
        struct hr_ticket ticket;
        uint64_t run_ms, had_ms;
};

static void arrives(struct hr_admission *admission, struct somebody *one, uint64_t weight,
                    uint64_t run_ms) {
        HR_EXPECT(hr_share_init(&one->principal, &admission->top, weight, DEVICES, NULL) == HR_OK);
        HR_EXPECT(hr_share_init(&one->session, &one->principal, HR_SHARE_WEIGHT, DEVICES, NULL) ==
                  HR_OK);
        one->run_ms = run_ms;
        one->had_ms = 0;
}

static void goes(struct somebody *one) {
        hr_share_deinit(&one->session);
        hr_share_deinit(&one->principal);
}

static bool asks(struct hr_admission *admission, struct somebody *one,
                 const struct hr_pipeline *pipeline) {
        one->ticket = (struct hr_ticket){.share = &one->session};
        return hr_admission_ask(admission, &one->ticket, pipeline, 0);
}

/* Everybody always has a run waiting: each gets its weight's part of the time, whatever the length
 * of its runs, to within the longest run. */
HR_TEST(time_is_shared_by_weight) {
        struct somebody all[3] = {{{0}}};
        const uint64_t weights[3] = {100, 300, 100}, runs_ms[3] = {40, 1, 3};
        struct hr_admission admission;
        struct clock clock = {HR_NS_PER_S};
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 0, 0);
        struct somebody *running = NULL;

        HR_EXPECT(hr_admission_init(&admission, DEVICES, 8, 0, NULL) == HR_OK);
        for (int i = 0; i < 3; i++)
                arrives(&admission, &all[i], weights[i], runs_ms[i]);
        for (int i = 0; i < 3; i++)
                if (asks(&admission, &all[i], pipeline))
                        running = &all[i];
        for (int turn = 0; turn < 4000; turn++) {
                struct hr_ticket *next;

                HR_EXPECT_EQ(passes(&admission, &clock, &running->ticket, running->run_ms),
                             running->run_ms * HR_NS_PER_MS);
                running->had_ms += running->run_ms;
                if (asks(&admission, running, pipeline))
                        continue;
                next = hr_admission_next(&admission, 0);
                HR_EXPECT(next && hr_admission_ask(&admission, next, pipeline, 0));
                running = HR_CONTAINER_OF(next, struct somebody, ticket);
        }
        for (int i = 0; i < 3; i++) {
                uint64_t whole = all[0].had_ms + all[1].had_ms + all[2].had_ms;
                uint64_t due = whole * weights[i] / 500;
                uint64_t slack = 2 * 40 + 3 + 3;

                HR_EXPECT(all[i].had_ms + slack >= due && all[i].had_ms <= due + slack);
        }
        (void) hr_admission_leave(&admission, &running->ticket, 0, 0, NULL);
        for (int i = 0; i < 3; i++) {
                hr_admission_forget(&all[i].ticket);
                goes(&all[i]);
        }
        hr_admission_deinit(&admission);
}

/* One that asks for little waits for the run on the device and for none of the hog's queue, though
 * the hog comes with many sessions. */
HR_TEST(a_small_one_waits_for_no_queue) {
        struct somebody hog = {{0}}, small = {{0}};
        struct hr_share sessions[6] = {{0}};
        struct hr_ticket tickets[6] = {{0}};
        struct hr_admission admission;
        struct clock clock = {HR_NS_PER_S};
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 0, 0);

        HR_EXPECT(hr_admission_init(&admission, DEVICES, 8, 0, NULL) == HR_OK);
        arrives(&admission, &hog, 100, 50);
        arrives(&admission, &small, 100, 1);
        for (int i = 0; i < 6; i++) {
                HR_EXPECT(hr_share_init(&sessions[i], &hog.principal, 100, DEVICES, NULL) == HR_OK);
                tickets[i] = (struct hr_ticket){.share = &sessions[i], .priority = 1000};
                HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[i], pipeline, 0), i == 0);
        }
        for (int i = 0; i < 5; i++) {
                HR_EXPECT(!asks(&admission, &small, pipeline));
                (void) passes(&admission, &clock, &tickets[i], 50);
                expect_next(&admission, &small.ticket);
                (void) passes(&admission, &clock, &small.ticket, 1);
                expect_next(&admission, &tickets[i + 1]); /* its sessions take turns */
        }
        (void) hr_admission_leave(&admission, &tickets[5], 0, 0, NULL);
        for (int i = 0; i < 6; i++)
                hr_share_deinit(&sessions[i]);
        goes(&small);
        goes(&hog);
        hr_admission_deinit(&admission);
}

/* Short runs are handed over ahead, long ones one at a time. */
HR_TEST(long_runs_go_one_at_a_time) {
        struct hr_ticket tickets[8] = {{0}};
        struct hr_admission admission;
        struct fake fakes[2];
        const struct hr_pipeline *one = on(&fakes[0], 1, 0, 0), *two = on(&fakes[1], 1, 1, 0);
        uint64_t ms = HR_NS_PER_MS;

        HR_EXPECT(hr_admission_init(&admission, DEVICES, 4, ms, NULL) == HR_OK);
        for (int i = 0; i < 4; i++) {
                tickets[i].cost_ns = ms / 3 + 1;
                HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[i], one, 0), i < 3);
        }
        for (int i = 0; i < 4; i++)
                (void) left(&admission, &tickets[i]);
        /* Over two devices it takes three to keep both busy. */
        for (int i = 4; i < 8; i++) {
                tickets[i].cost_ns = 9 * ms;
                HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[i], two, 0), i < 7);
        }
        for (int i = 4; i < 8; i++)
                (void) left(&admission, &tickets[i]);
        hr_admission_deinit(&admission);
}

static struct hr_ticket of_5_ms(void) {
        return (struct hr_ticket){.cost_ns = 5 * HR_NS_PER_MS};
}

/* ... but the next one shortly before the expected end, and no third, however long that takes. */
HR_TEST(the_next_goes_shortly_before_the_end) {
        struct hr_ticket a = of_5_ms(), b = of_5_ms(), c = of_5_ms();
        const uint64_t ms = HR_NS_PER_MS, start_ns = 7 * HR_NS_PER_S;
        const uint64_t due_ns = start_ns + 5 * ms - HR_LEAD_NS;
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 0, 1, 0);

        HR_EXPECT(hr_admission_init(&admission, DEVICES, 8, ms / 2, NULL) == HR_OK);
        HR_EXPECT(hr_admission_ask(&admission, &a, pipeline, start_ns));
        HR_EXPECT_EQ(hr_admission_due_ns(&admission, start_ns), UINT64_MAX);
        HR_EXPECT(!hr_admission_ask(&admission, &b, pipeline, start_ns));
        HR_EXPECT(!hr_admission_ask(&admission, &c, pipeline, start_ns));
        HR_EXPECT_EQ(hr_admission_due_ns(&admission, start_ns), due_ns);
        HR_EXPECT(!hr_admission_next(&admission, due_ns - 1));
        HR_EXPECT_EQ(hr_admission_due_ns(&admission, due_ns - 1), due_ns);
        HR_EXPECT(hr_admission_ask(&admission, &b, pipeline, due_ns));
        HR_EXPECT_EQ(hr_admission_due_ns(&admission, due_ns), UINT64_MAX);
        HR_EXPECT(!hr_admission_ask(&admission, &c, pipeline, due_ns));
        HR_EXPECT(!hr_admission_next(&admission, start_ns + 500 * ms));
        /* It took 9 ms; the one behind it begins now. */
        HR_EXPECT(hr_admission_leave(&admission, &a, start_ns, start_ns + 9 * ms, NULL));
        HR_EXPECT_EQ(hr_admission_due_ns(&admission, start_ns + 9 * ms), due_ns + 9 * ms);
        HR_EXPECT(!hr_admission_next(&admission, due_ns + 9 * ms - 1));
        HR_EXPECT(hr_admission_next(&admission, due_ns + 9 * ms) == &c);
        (void) left(&admission, &b);
        (void) left(&admission, &c);
        hr_admission_deinit(&admission);
}

/* What ends now earlier, now later than expected is followed earlier, up to what may be ahead. */
HR_TEST(an_uncertain_end_is_met_earlier) {
        static const struct {
                uint64_t spread_ns, lead_ns;
        } cases[] = {{0, HR_LEAD_NS},
                     {60000, HR_LEAD_NS + 120000},
                     {HR_NS_PER_MS, HR_NS_PER_MS / 2},
                     {UINT64_C(1) << 40, HR_NS_PER_MS / 2}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_ticket a = of_5_ms(), b = of_5_ms();
                struct hr_admission admission;
                struct fake fake;
                const struct hr_pipeline *pipeline = on(&fake, 0, 0, 1);

                a.spread_ns = cases[i].spread_ns;
                HR_EXPECT(hr_admission_init(&admission, DEVICES, 8, HR_NS_PER_MS / 2, NULL) ==
                          HR_OK);
                HR_EXPECT(hr_admission_ask(&admission, &a, pipeline, HR_NS_PER_S));
                HR_EXPECT(!hr_admission_ask(&admission, &b, pipeline, HR_NS_PER_S));
                HR_EXPECT_EQ(hr_admission_due_ns(&admission, HR_NS_PER_S),
                             HR_NS_PER_S + 5 * HR_NS_PER_MS - cases[i].lead_ns);
                (void) left(&admission, &a);
                hr_admission_forget(&b);
                HR_EXPECT_EQ(admission.devices[2].spread_ns, 0);
                hr_admission_deinit(&admission);
        }
}

/* Nothing is handed over early behind a run of which nothing is known, where runs go one at a time,
 * or for a plan over several devices, which has runs enough. */
HR_TEST(nothing_goes_early_without_need) {
        static const struct {
                uint32_t device_runs;
                uint64_t ahead_ns, cost_ns;
                bool wide, early;
        } cases[] = {
                {8, HR_NS_PER_MS, 5 * HR_NS_PER_MS, false, true},
                {2, HR_NS_PER_MS, 5 * HR_NS_PER_MS, false, true},
                {8, HR_NS_PER_MS, 0, false, false},
                {1, HR_NS_PER_MS, 5 * HR_NS_PER_MS, false, false},
                {8, 0, 5 * HR_NS_PER_MS, false, false},
                {8, HR_NS_PER_MS, 5 * HR_NS_PER_MS, true, false},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                uint32_t running = cases[i].wide ? 3 : 1;
                struct hr_ticket tickets[4] = {{0}};
                struct hr_admission admission;
                struct fake fake;
                const struct hr_pipeline *pipeline = on(&fake, 1, cases[i].wide, 0);

                HR_EXPECT(hr_admission_init(&admission, DEVICES, cases[i].device_runs,
                                            cases[i].ahead_ns, NULL) == HR_OK);
                for (uint32_t r = 0; r <= running; r++) {
                        tickets[r].cost_ns = cases[i].cost_ns;
                        HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[r], pipeline, 1),
                                     r < running);
                }
                HR_EXPECT_EQ(hr_admission_due_ns(&admission, 1) != UINT64_MAX, cases[i].early);
                HR_EXPECT_EQ(hr_admission_next(&admission, HR_NS_PER_S) != NULL, cases[i].early);
                for (uint32_t r = 0; r <= running; r++)
                        (void) left(&admission, &tickets[r]);
                for (uint32_t d = 0; d < DEVICES; d++)
                        HR_EXPECT_EQ(admission.devices[d].guesses + admission.devices[d].in_flight,
                                     0);
                hr_admission_deinit(&admission);
        }
}

/* A run that waits for its client leaves its room to others, and is paid for all the same. */
HR_TEST(who_waits_for_somebody_takes_no_room) {
        struct somebody watcher = {{0}}, other = {{0}};
        struct hr_admission admission;
        struct clock clock = {HR_NS_PER_S};
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 0, 0);

        HR_EXPECT(hr_admission_init(&admission, DEVICES, 1, 0, NULL) == HR_OK);
        arrives(&admission, &watcher, 100, 5);
        arrives(&admission, &other, 100, 5);
        watcher.ticket = (struct hr_ticket){.share = &watcher.session, .waits_for_somebody = true};
        HR_EXPECT(hr_admission_ask(&admission, &watcher.ticket, pipeline, 0));
        HR_EXPECT(asks(&admission, &other, pipeline));
        HR_EXPECT(hr_share_lag(&watcher.principal, 0) > 0);
        (void) passes(&admission, &clock, &other.ticket, 5);
        (void) passes(&admission, &clock, &watcher.ticket, 7);
        HR_EXPECT_EQ(admission.devices[0].in_flight, 0);
        goes(&watcher);
        goes(&other);
        hr_admission_deinit(&admission);
}
