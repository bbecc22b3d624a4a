/* The thread team of core/host.h: every member once, barriers, items, sleep. */
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "core/host.h"
#include "tests/harness.h"

#define MEMBERS 4

static struct hr_host_team *team_new(uint32_t threads, uint32_t spin_us) {
        struct hr_host_team_config config = { .name = "team", .threads = threads,
                                              .spin_us = spin_us };
        struct hr_host_team *team = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_host_team_new(&config, &diag, &team), &diag);
        HR_EXPECT_EQ(hr_host_team_threads(team), threads);
        return team;
}

struct roll {
        uint32_t members;
        atomic_uint calls[MEMBERS];
        atomic_bool is_wrong;
};

static void answer(void *arg, uint32_t member, uint32_t members) {
        struct roll *roll = arg;

        if (members != roll->members || member >= members)
                atomic_store(&roll->is_wrong, true);
        else
                atomic_fetch_add(&roll->calls[member], 1);
}

static void every_member_answers(uint32_t spin_us, uint32_t rounds) {
        struct hr_host_team *team = team_new(MEMBERS, spin_us);
        uint32_t expected[MEMBERS] = { 0 };
        struct roll roll = { 0 };

        for (uint32_t round = 0; round < rounds; round++) {
                roll.members = round % MEMBERS + 1;
                for (uint32_t i = 0; i < roll.members; i++)
                        expected[i]++;
                hr_host_team_run(team, roll.members, answer, &roll);
                for (uint32_t i = 0; i < MEMBERS; i++)
                        HR_EXPECT_EQ(atomic_load(&roll.calls[i]), expected[i]);
        }
        HR_EXPECT(!atomic_load(&roll.is_wrong));
        team = hr_host_team_free(team);
}

HR_TEST(every_member_is_called_once_when_spinning) {
        every_member_answers(100, 2000);
}

HR_TEST(every_member_is_called_once_when_sleeping) {
        every_member_answers(0, 2000);
}

struct phases {
        struct hr_host_team *team;
        uint32_t rounds;
        uint32_t value[MEMBERS]; /* plain: the barrier must order them */
        atomic_bool is_wrong;
};

static void walk_phases(void *arg, uint32_t member, uint32_t members) {
        struct phases *phases = arg;

        for (uint32_t round = 1; round <= phases->rounds; round++) {
                phases->value[member] = round;
                hr_host_team_barrier(phases->team, members);
                for (uint32_t i = 0; i < members; i++)
                        if (phases->value[i] != round)
                                atomic_store(&phases->is_wrong, true);
                hr_host_team_barrier(phases->team, members);
        }
}

HR_TEST(a_barrier_shows_what_the_others_wrote) {
        static const uint32_t spins_us[] = { 0, 50 };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(spins_us); i++)
                for (uint32_t members = 1; members <= MEMBERS; members++) {
                        struct phases phases = { .rounds = 300 };

                        phases.team = team_new(MEMBERS, spins_us[i]);
                        hr_host_team_run(phases.team, members, walk_phases, &phases);
                        HR_EXPECT(!atomic_load(&phases.is_wrong));
                        phases.team = hr_host_team_free(phases.team);
                }
}

struct items {
        struct hr_host_team *team;
        uint32_t count;
        atomic_uint taken[1000];
        atomic_bool is_wrong;
};

static void take_items(void *arg, uint32_t member, uint32_t members) {
        struct items *items = arg;
        uint32_t item;

        while ((item = hr_host_team_next(items->team, items->count)) < items->count)
                atomic_fetch_add(&items->taken[item], 1);
        if (item != items->count)
                atomic_store(&items->is_wrong, true);
}

HR_TEST(each_item_is_handed_out_once) {
        struct items *items = calloc(1, sizeof *items);
        static const uint32_t counts[] = { 0, 1, 3, 1000 };

        HR_EXPECT(items);
        items->team = team_new(MEMBERS, 20);
        for (uint32_t round = 1; round <= 20; round++)
                for (size_t i = 0; i < HR_ARRAY_LENGTH(counts); i++) {
                        items->count = counts[i];
                        memset(items->taken, 0, sizeof items->taken);
                        hr_host_team_run(items->team, MEMBERS, take_items, items);
                        for (uint32_t j = 0; j < HR_ARRAY_LENGTH(items->taken); j++)
                                HR_EXPECT_EQ(atomic_load(&items->taken[j]), j < counts[i]);
                }
        HR_EXPECT(!atomic_load(&items->is_wrong));
        items->team = hr_host_team_free(items->team);
        free(items);
}

/* Own items first, then the others'. */
static void take_own(void *arg, uint32_t member, uint32_t members) {
        struct items *items = arg;

        for (uint32_t i = 0; i < members; i++) {
                const uint32_t owner = (member + i) % members;
                uint32_t item;

                while ((item = hr_host_team_next_own(items->team, owner, items->count)) <
                       items->count)
                        atomic_fetch_add(&items->taken[items->count * owner + item], 1);
                if (item != items->count)
                        atomic_store(&items->is_wrong, true);
        }
}

HR_TEST(each_members_items_are_handed_out_once) {
        struct items *items = calloc(1, sizeof *items);
        static const uint32_t counts[] = { 0, 1, 5, 1000 / MEMBERS };

        HR_EXPECT(items);
        items->team = team_new(MEMBERS, 20);
        for (uint32_t round = 1; round <= 20; round++)
                for (uint32_t members = 1; members <= MEMBERS; members++)
                        for (size_t i = 0; i < HR_ARRAY_LENGTH(counts); i++) {
                                items->count = counts[i];
                                memset(items->taken, 0, sizeof items->taken);
                                hr_host_team_run(items->team, members, take_own, items);
                                for (uint32_t j = 0; j < HR_ARRAY_LENGTH(items->taken); j++)
                                        HR_EXPECT_EQ(atomic_load(&items->taken[j]),
                                                     j < counts[i] * members);
                        }
        HR_EXPECT(!atomic_load(&items->is_wrong));
        items->team = hr_host_team_free(items->team);
        free(items);
}

static void do_nothing(void *arg, uint32_t member, uint32_t members) {
}

static uint64_t processor_ns(void) {
        struct timespec time;

        HR_EXPECT(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
        return (uint64_t) time.tv_sec * 1000000000 + (uint64_t) time.tv_nsec;
}

HR_TEST(an_idle_team_uses_no_processor) {
        struct hr_host_team *team = team_new(MEMBERS, 50);
        uint64_t before;

        hr_host_team_run(team, MEMBERS, do_nothing, NULL);
        (void) usleep(20000);
        before = processor_ns();
        (void) usleep(300000);
        HR_EXPECT(processor_ns() - before < 3000000);
        hr_host_team_run(team, MEMBERS, do_nothing, NULL);
        team = hr_host_team_free(team);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#ifndef HAS_SANITIZER
#define HAS_SANITIZER 0
#endif

/* Some threads start before the address space for their stacks ends; those must end again. */
HR_TEST(threads_that_cannot_be_had_are_refused) {
        struct rlimit limit = { .rlim_cur = 400U << 20, .rlim_max = 400U << 20 };
        struct hr_host_team_config config = { .name = "many", .threads = 4000 };
        struct hr_host_team *team = NULL;
        struct hr_diag diag = { 0 };

        if (HAS_SANITIZER)
                hr_test_skip("sanitizers need the address space");
        HR_EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
        HR_EXPECT_EQ(hr_host_team_new(&config, &diag, &team), HR_E_EXHAUSTED);
        HR_EXPECT(!team);
        HR_EXPECT(diag.words[0]);
}
