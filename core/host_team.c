/*
 * A team of threads that runs one function at a time.
 *
 * Member 0 is whoever calls hr_host_team_run; the others are threads that wait on a word of their
 * own, so that a job for three members does not disturb the fourth. A job:
 *
 *   leader: write fn, arg, members; pending = members - 1; go[i]++ for each i < members; wake
 *   member: sees go[i] change; fn(arg, i, members); pending--; the last one wakes the leader
 *   leader: fn(arg, 0, members); waits for pending == 0
 *
 * The leader hands out a job only when pending is 0, hence a member never misses a value of its
 * word.
 */
#include "core/host.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/host_wait.h"
#include "core/thread.h"

#define CACHE_LINE 64
#define UNPINNED UINT32_MAX

/* What the leader writes for each job shares a line. */
struct team_member {
        _Alignas(CACHE_LINE) struct hr_host_word go;
        atomic_uint next_own; /* of its own items */
        struct hr_host_team *team;
        struct hr_thread thread;
        uint32_t index, processor;
};

struct hr_host_team {
        uint32_t threads;
        uint64_t spin_ns;
        hr_host_team_fn fn;
        void *arg;
        uint32_t members;
        atomic_bool stop;
        uint32_t processor; /* of member 0 */
        bool leader_is_pinned;
        _Alignas(CACHE_LINE) struct hr_host_word pending;
        _Alignas(CACHE_LINE) atomic_uint arrived;
        _Alignas(CACHE_LINE) struct hr_host_word barrier;
        _Alignas(CACHE_LINE) atomic_uint next_item;
        struct team_member member[];
};

uint32_t hr_host_processors(void) {
        cpu_set_t set;
        long online;

        CPU_ZERO(&set);
        if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
                return (uint32_t) CPU_COUNT(&set);
        online = sysconf(_SC_NPROCESSORS_ONLN);
        return online > 0 ? (uint32_t) online : 1;
}

static void member_main(void *arg) {
        struct team_member *member = arg;
        struct hr_host_team *team = member->team;
        unsigned seen = 0;

        if (member->processor != UNPINNED)
                (void) hr_thread_pin_self(member->processor);
        for (;;) {
                hr_host_word_wait(&member->go, seen, team->spin_ns);
                seen++;
                if (atomic_load_explicit(&team->stop, memory_order_acquire))
                        return;
                team->fn(team->arg, member->index, team->members);
                if (atomic_fetch_sub(&team->pending.value, 1) == 1)
                        hr_host_word_wake(&team->pending);
        }
}

hr_status hr_host_team_new(const struct hr_host_team_config *config, struct hr_diag *diag,
                           struct hr_host_team **ret_team) {
        size_t bytes = sizeof(struct hr_host_team);
        struct hr_host_team *team;

        HR_ASSERT(config->threads > 0);
        bytes += (size_t) config->threads * sizeof(struct team_member);
        team = aligned_alloc(CACHE_LINE, (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE);
        if (!team)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %u threads", config->threads);
        memset(team, 0, bytes);
        team->threads = config->threads;
        team->spin_ns = (uint64_t) config->spin_us * 1000;
        team->processor = config->processors ? config->processors[0] : UNPINNED;
        for (uint32_t i = 1; i < team->threads; i++) {
                struct team_member *member = &team->member[i];
                char name[32]; /* the system shows the first 15 */
                hr_status status;

                member->team = team;
                member->index = i;
                member->processor = config->processors ? config->processors[i] : UNPINNED;
                (void) snprintf(name, sizeof name, "%.11s.%u", config->name, i);
                status = hr_thread_start(&member->thread, name, member_main, member, diag);
                if (status != HR_OK) {
                        (void) hr_host_team_free(team);
                        return status;
                }
        }
        *ret_team = team;
        return HR_OK;
}

static void member_go(struct team_member *member) {
        atomic_fetch_add(&member->go.value, 1);
        hr_host_word_wake(&member->go);
}

struct hr_host_team *hr_host_team_free(struct hr_host_team *team) {
        if (!team)
                return NULL;
        atomic_store(&team->stop, true);
        for (uint32_t i = 1; i < team->threads; i++)
                if (team->member[i].thread.running)
                        member_go(&team->member[i]);
        for (uint32_t i = 1; i < team->threads; i++)
                hr_thread_join(&team->member[i].thread);
        free(team);
        return NULL;
}

uint32_t hr_host_team_threads(const struct hr_host_team *team) {
        return team->threads;
}

void hr_host_team_run(struct hr_host_team *team, uint32_t members, hr_host_team_fn fn, void *arg) {
        unsigned pending;

        HR_ASSERT(members > 0 && members <= team->threads);
        if (HR_UNLIKELY(!team->leader_is_pinned)) {
                team->leader_is_pinned = true;
                if (team->processor != UNPINNED)
                        (void) hr_thread_pin_self(team->processor);
        }
        atomic_store_explicit(&team->next_item, 0, memory_order_relaxed);
        for (uint32_t i = 0; i < members; i++)
                atomic_store_explicit(&team->member[i].next_own, 0, memory_order_relaxed);
        if (members == 1) {
                fn(arg, 0, 1);
                return;
        }
        team->fn = fn;
        team->arg = arg;
        team->members = members;
        atomic_store(&team->pending.value, members - 1);
        for (uint32_t i = 1; i < members; i++)
                member_go(&team->member[i]);
        fn(arg, 0, members);
        while ((pending = atomic_load_explicit(&team->pending.value, memory_order_acquire)) > 0)
                hr_host_word_wait(&team->pending, pending, team->spin_ns);
}

void hr_host_team_barrier(struct hr_host_team *team, uint32_t members) {
        unsigned generation;

        if (members <= 1)
                return;
        generation = atomic_load_explicit(&team->barrier.value, memory_order_acquire);
        if (atomic_fetch_add(&team->arrived, 1) + 1 == members) {
                atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
                atomic_fetch_add(&team->barrier.value, 1);
                hr_host_word_wake(&team->barrier);
        } else {
                hr_host_word_wait(&team->barrier, generation, team->spin_ns);
        }
}

static uint32_t next_of(atomic_uint *next, uint32_t count) {
        unsigned item = atomic_load_explicit(next, memory_order_relaxed);

        /* Past the end nothing is added, so that the counter cannot wrap. */
        if (item >= count)
                return count;
        item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        return item < count ? item : count;
}

uint32_t hr_host_team_next(struct hr_host_team *team, uint32_t count) {
        return next_of(&team->next_item, count);
}

uint32_t hr_host_team_next_own(struct hr_host_team *team, uint32_t member, uint32_t count) {
        return next_of(&team->member[member].next_own, count);
}
