/* Who starts next: order, devices that are not shared, and the bound on being overtaken. */
#include "daemon/admission.h"

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

        HR_EXPECT_OK(hr_admission_init(admission, DEVICES, device_runs, &diag), &diag);
}

/* The one that is admitted next, which must be `expected`. */
static void expect_next(struct hr_admission *admission, struct hr_ticket *expected) {
        HR_EXPECT(hr_admission_next(admission) == expected);
        if (expected)
                HR_EXPECT(hr_admission_ask(admission, expected, expected->pipeline));
}

HR_TEST(higher_priority_first_then_arrival) {
        struct hr_ticket running = {0}, low = {.priority = -1}, first = {0}, second = {0},
                         high = {.priority = 5};
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 0, 0);

        open(&admission, 1);
        HR_EXPECT(hr_admission_ask(&admission, &running, pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &first, pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &second, pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &high, pipeline));
        expect_next(&admission, NULL);
        HR_EXPECT(hr_admission_leave(&admission, &running));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline));
        expect_next(&admission, &high);
        HR_EXPECT(hr_admission_leave(&admission, &high));
        expect_next(&admission, &first);
        HR_EXPECT(hr_admission_leave(&admission, &first));
        expect_next(&admission, &second);
        HR_EXPECT(hr_admission_leave(&admission, &second));
        expect_next(&admission, &low);
        HR_EXPECT(hr_admission_leave(&admission, &low));
        HR_EXPECT(!hr_admission_leave(&admission, &low));
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
        HR_EXPECT(hr_admission_ask(&admission, &running, one));
        HR_EXPECT(!hr_admission_ask(&admission, &waiting, one));
        HR_EXPECT(hr_admission_ask(&admission, &other, two));
        HR_EXPECT(!hr_admission_ask(&admission, &both, across)); /* behind the one that waits */
        hr_admission_forget(&waiting);
        expect_next(&admission, &both); /* two devices: three runs at once */
        (void) hr_admission_leave(&admission, &running);
        (void) hr_admission_leave(&admission, &other);
        (void) hr_admission_leave(&admission, &both);
        for (uint32_t d = 0; d < DEVICES; d++)
                HR_EXPECT_EQ(admission.in_flight[d], 0);
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
        HR_EXPECT(hr_admission_ask(&admission, &high[0], pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &low, pipeline));
        HR_EXPECT(!hr_admission_ask(&admission, &lower, pipeline));
        for (unsigned i = 1; i < 40; i++) {
                struct hr_ticket *next;

                high[i].priority = 100;
                HR_EXPECT(!hr_admission_ask(&admission, &high[i], pipeline));
                HR_EXPECT(hr_admission_leave(&admission, i == 1 ? &high[0] : &high[i - 1]));
                next = hr_admission_next(&admission);
                if (next != &high[i])
                        break;
                HR_EXPECT(hr_admission_ask(&admission, next, pipeline));
                overtaken++;
        }
        HR_EXPECT_EQ(overtaken, HR_PASSES_MAX);
        expect_next(&admission, &low);
        (void) hr_admission_leave(&admission, &low);
        expect_next(&admission, &lower);
        (void) hr_admission_leave(&admission, &lower);
        hr_admission_deinit(&admission);
}

HR_TEST(as_many_at_once_as_allowed) {
        struct hr_ticket tickets[5] = {{0}};
        struct hr_admission admission;
        struct fake fake;
        const struct hr_pipeline *pipeline = on(&fake, 1, 1, 1);

        open(&admission, 2); /* three devices: four, all the same */
        for (unsigned i = 0; i < 5; i++)
                HR_EXPECT_EQ(hr_admission_ask(&admission, &tickets[i], pipeline), i < 4);
        HR_EXPECT(hr_admission_leave(&admission, &tickets[2]));
        expect_next(&admission, &tickets[4]);
        for (unsigned i = 0; i < 5; i++)
                (void) hr_admission_leave(&admission, &tickets[i]);
        hr_admission_deinit(&admission);
}
