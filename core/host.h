/*
 * What host backends are made of: memory, a team of threads, an in-order queue, events.
 *
 * A queue owns one thread, which is member 0 of its team; the other members sleep unless a step is
 * worth sharing. Low latency and idleness are bought the same way everywhere: a waiter spins for
 * spin_us after the last activity and then sleeps on a futex, and nobody is woken by a system call
 * who does not sleep.
 *
 * One thread at a time submits to a queue (the engine). Running allocates nothing: commands live in
 * segments that are reused; a queue that is further behind than ever before takes another segment,
 * which is counted.
 */
#pragma once

#include "core/device.h"

/* ---- Memory ---------------------------------------------------------------------------------- */

/* Zero-filled memory of that kind, aligned to at least 64 bytes, for hr_device_ops.buffer_new.
 * HR_E_EXHAUSTED (reason DEVICE_MEMORY; limit = free, actual = asked) when the system does not have
 * it, judged before it is taken. `kind` outlives the buffer. */
HR_NODISCARD hr_status hr_host_buffer_new(struct hr_device *device,
                                          const struct hr_buffer_kind *kind, uint64_t bytes,
                                          hr_buffer_usage usage, struct hr_diag *diag,
                                          struct hr_buffer **ret_buffer);
/* Bytes the system can still give, and has. Never 0 for the total. */
void hr_host_memory(uint64_t *ret_free, uint64_t *ret_total);
/* Processors that this process may use; at least 1. */
uint32_t hr_host_processors(void);

/* ---- Team ------------------------------------------------------------------------------------ */

struct hr_host_team;

struct hr_host_team_config {
        const char *name;           /* of its threads, with the member's number behind it */
        uint32_t threads;           /* at least 1; member 0 is the caller of hr_host_team_run */
        uint32_t spin_us;
        const uint32_t *processors; /* of member i, NULL = not pinned. Copied */
};

typedef void (*hr_host_team_fn)(void *arg, uint32_t member, uint32_t members);

/* Starts threads - 1 threads. HR_E_EXHAUSTED without them or without memory. */
HR_NODISCARD hr_status hr_host_team_new(const struct hr_host_team_config *config,
                                        struct hr_diag *diag, struct hr_host_team **ret_team);
/* Ends the threads. NULL is a no-op. Returns NULL. */
struct hr_host_team *hr_host_team_free(struct hr_host_team *team);
uint32_t hr_host_team_threads(const struct hr_host_team *team);
/* Calls fn(arg, 0 .. members - 1, members), one call per thread, and returns when all have
 * returned. members is at least 1 and at most the team's threads; with 1 nobody is woken. Thread:
 * one at a time, always the same. */
void hr_host_team_run(struct hr_host_team *team, uint32_t members, hr_host_team_fn fn, void *arg);
/* Inside fn: waits until all `members` have come here. What each wrote before is seen by all. */
void hr_host_team_barrier(struct hr_host_team *team, uint32_t members);
/* Inside fn: the next of `count` items, each handed out once; count when none is left. Starts anew
 * with each hr_host_team_run. */
uint32_t hr_host_team_next(struct hr_host_team *team, uint32_t count);
/* The same of `count` items that are a member's own, for it and for whoever has none left. */
uint32_t hr_host_team_next_own(struct hr_host_team *team, uint32_t member, uint32_t count);

/* ---- Experts --------------------------------------------------------------------------------- */

/* Executes hr_queue_ops.copy_experts on memory that the host reaches. Thread: the queue's. */
void hr_host_experts_copy(struct hr_expert_cache *cache, uint32_t weight, const void *ids,
                          struct hr_expert_tally *tally, struct hr_outcome *outcome);

/* ---- Queue and events ------------------------------------------------------------------------ */

struct hr_host_queue_config {
        struct hr_host_team_config team;
        uint32_t delay_us; /* slept before each compute command */
        /* Runs steps first .. first + count - 1. `outcome` is never NULL and not failed at the
         * start. Thread: the queue's. */
        void (*compute)(struct hr_program *program, uint32_t first, uint32_t count,
                        struct hr_host_team *team, struct hr_outcome *outcome);
};

/* An implementation of hr_queue over host memory for hr_device_ops.queue_new. HR_E_EXHAUSTED
 * without threads or memory. Destroying it waits for the commands submitted. */
HR_NODISCARD hr_status hr_host_queue_new(struct hr_device *device,
                                         const struct hr_host_queue_config *config,
                                         struct hr_diag *diag, struct hr_queue **ret_queue);
/* How often it took another segment of commands since it was made (0 in a steady state). */
uint64_t hr_host_queue_growths(const struct hr_queue *queue);

/* Events for hr_device_ops.event_new. Queues of all host devices wait for them without help of the
 * submitting thread. Freeing one waits until no command refers to it any more. */
HR_NODISCARD hr_status hr_host_event_new(struct hr_device *device, uint32_t spin_us,
                                         struct hr_diag *diag, struct hr_event **ret_event);
