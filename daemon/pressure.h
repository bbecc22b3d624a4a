/*
 * What the daemon gives up when memory is short, so that the kernel need not take it.
 *
 * At a steady pace it looks at how long threads have waited for memory (psi.h). While that is more
 * than daemon.memory_stall of a second, each look goes a step further, and does again what the
 * steps before it do:
 *
 *   1 caches   memory of ended requests, plans that no graph uses, free memory of the heap
 *   2 idle     graphs that nobody has used for daemon.memory_idle; uploads that nobody sends
 *   3 refuse   requests that would take memory are refused: EXHAUSTED, reason HOST_MEMORY, and when
 *              to come again. Runs of what is there go on, and so does what is under way
 *
 * Weights that were acknowledged stay, those that wait for their clients after a restart included,
 * and so do states, sessions, reservations and graphs in use. After five looks without pressure
 * everything is as before.
 *
 * Thread: loop, except where said.
 */
#pragma once

#include "core/status.h"

struct hr_server;
struct hr_pressure;

typedef enum hr_pressure_level {
        HR_PRESSURE_NONE,
        HR_PRESSURE_CACHES,
        HR_PRESSURE_IDLE,
        HR_PRESSURE_REFUSE,
} hr_pressure_level;

enum { HR_SHED_REQUESTS, HR_SHED_PLANS, HR_SHED_GRAPHS, HR_SHED_UPLOADS, HR_SHED_KINDS };

struct hr_pressure_stats {
        hr_pressure_level level;
        uint64_t stall_us; /* seen since the start */
        uint64_t refused;
        uint64_t entries[HR_SHED_KINDS], bytes[HR_SHED_KINDS]; /* bytes of requests: not counted */
};

/* Begins looking, unless the configuration says off or there is nothing to look at.
 * HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_pressure_new(struct hr_server *server, struct hr_diag *diag,
                                       struct hr_pressure **ret_pressure);
/* No more looks, for a drain. NULL is a no-op. */
void hr_pressure_stop(struct hr_pressure *pressure);
/* Nothing of it is with the engine. */
bool hr_pressure_is_idle(const struct hr_pressure *pressure);
/* After the engine has stopped. Returns NULL; NULL is a no-op. */
struct hr_pressure *hr_pressure_free(struct hr_pressure *pressure);

/* Before a request that takes memory is begun. HR_E_EXHAUSTED (reason HOST_MEMORY, retry_after_ms);
 * counted. */
HR_NODISCARD hr_status hr_pressure_check(struct hr_pressure *pressure, struct hr_diag *diag);
/* For STATUS and HEALTH: what is given up, static; NULL: memory is not short. */
const char *hr_pressure_words(const struct hr_pressure *pressure);
/* "requests"... */
const char *hr_shed_name(unsigned kind);
struct hr_pressure_stats hr_pressure_stats(const struct hr_pressure *pressure);
