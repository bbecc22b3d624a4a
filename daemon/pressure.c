/*
 * One timer. A look compares the kernel's counter with that of the look before; the next one comes
 * after daemon.memory_look, or at once as long as there are more idle graphs than a millisecond of
 * the loop allows.
 *
 * What is given up on the loop (handles of graphs, requests) reaches the engine ahead of the job
 * that frees plans and hands the heap's free memory back to the kernel; until that job is back,
 * looks count time but go no step further, so that each step has had its effect when the next is
 * taken.
 */
#include "daemon/pressure.h"

#include <errno.h>
#include <inttypes.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/evict.h"
#include "daemon/holding.h"
#include "daemon/notify.h"
#include "daemon/psi.h"
#include "daemon/request.h"
#include "daemon/server.h"

#define CALM_LOOKS 5U
#define GRAPHS_AT_ONCE 64U /* less than a millisecond of the loop */
#define NEXT_ROUND_MS 2

struct hr_pressure {
        struct hr_server *server;
        struct hr_timer *timer;
        char path[HR_PSI_PATH_BYTES];
        bool has_looked, has_failed, has_more;
        uint64_t looked_ns, some_us; /* of the look before */
        uint64_t since_ns;           /* the first look with pressure */
        unsigned calm;               /* looks without, in a row */
        struct hr_job job;
        bool job_is_out;
        struct hr_plan_cache_evicted plans; /* the job's */
        uint64_t held_bytes; /* all compute memory before graphs went; 0 = none did */
        uint64_t said; /* entries given up when it was said last */
        struct hr_pressure_stats stats;
};

static void look_cb(void *arg);

static const char *const level_names[] = {"none", "caches", "idle", "refuse"};

const char *hr_shed_name(unsigned kind) {
        static const char *const names[HR_SHED_KINDS] = {"requests", "plans", "graphs", "uploads"};

        return names[kind];
}

/* ---- giving up ------------------------------------------------------------------------------- */

static void look_next(struct hr_pressure *pressure, uint64_t after_ms) {
        const uint64_t period_ms = pressure->server->config->memory_look_ns / HR_NS_PER_MS;

        if (!pressure->server->draining)
                hr_timer_start(pressure->timer, look_cb, after_ms ? after_ms : period_ms,
                               period_ms);
}

static void shed_count(struct hr_pressure *pressure, unsigned kind, uint64_t entries,
                       uint64_t bytes) {
        pressure->stats.entries[kind] += entries;
        pressure->stats.bytes[kind] += bytes;
}

static uint64_t shed_entries(const struct hr_pressure *pressure) {
        uint64_t sum = 0;

        for (unsigned i = 0; i < HR_SHED_KINDS; i++)
                sum += pressure->stats.entries[i];
        return sum;
}

static uint64_t device_bytes(const struct hr_server *server) {
        return hr_account_held(hr_principals_account(server->principals), HR_CHARGE_DEVICE_BYTES);
}

/* Thread: engine. */
static void shed_work(struct hr_job *job) {
        struct hr_pressure *pressure = job->arg;

        pressure->plans = hr_plan_cache_evict(hr_engine_plan_cache(pressure->server->engine));
#ifdef __GLIBC__
        (void) malloc_trim(0);
#endif
        hr_engine_job_end(job);
}

static void shed_done(struct hr_job *job) {
        struct hr_pressure *pressure = job->arg;
        const uint64_t held_bytes = device_bytes(pressure->server);

        pressure->job_is_out = false;
        /* Of graphs counts what all hold less of now: what some share goes with the last of
         * them. */
        if (pressure->held_bytes > held_bytes)
                shed_count(pressure, HR_SHED_GRAPHS, 0, pressure->held_bytes - held_bytes);
        shed_count(pressure, HR_SHED_PLANS, pressure->plans.entries, pressure->plans.bytes);
        if (shed_entries(pressure) != pressure->said)
                hr_log(HR_LOG_WARNING, "memory",
                       "memory is short, given up since the start: requests=%" PRIu64
                       " plans=%" PRIu64 " graphs=%" PRIu64 " uploads=%" PRIu64,
                       pressure->stats.entries[HR_SHED_REQUESTS],
                       pressure->stats.entries[HR_SHED_PLANS],
                       pressure->stats.entries[HR_SHED_GRAPHS],
                       pressure->stats.entries[HR_SHED_UPLOADS]);
        pressure->said = shed_entries(pressure);
        if (pressure->has_more)
                look_next(pressure, NEXT_ROUND_MS);
}

static void shed_idle(struct hr_pressure *pressure) {
        struct hr_server *server = pressure->server;
        const uint64_t now_ns = hr_clock_now_ns(), idle_ns = server->config->memory_idle_ns;
        const struct hr_evict_which which = {
                .most = GRAPHS_AT_ONCE,
                .used_before_ns = now_ns > idle_ns ? now_ns - idle_ns : 0,
                .counter = &server->stats.evictions_for_pressure,
        };
        struct hr_evicted_sum graphs = {0}, uploads = {0};

        pressure->held_bytes = device_bytes(server);
        hr_evict_idle(server, &which, &graphs);
        if (graphs.entries == 0)
                pressure->held_bytes = 0;
        shed_count(pressure, HR_SHED_GRAPHS, graphs.entries, 0);
        pressure->has_more = graphs.more;
        hr_holdings_count(server, &uploads);
        (void) hr_holdings_expire(server, 0, true);
        shed_count(pressure, HR_SHED_UPLOADS, uploads.entries, uploads.bytes);
}

static void shed(struct hr_pressure *pressure) {
        struct hr_server *server = pressure->server;

        shed_count(pressure, HR_SHED_REQUESTS, server->idle_request_count, 0);
        hr_requests_deinit(server);
        pressure->has_more = false;
        pressure->held_bytes = 0;
        if (pressure->stats.level >= HR_PRESSURE_IDLE)
                shed_idle(pressure);
        pressure->job = (struct hr_job){
                .kind = HR_JOB_WORK, .work = shed_work, .done = shed_done, .arg = pressure};
        pressure->job_is_out = true;
        hr_engine_post(server->engine, &pressure->job);
}

/* ---- looking --------------------------------------------------------------------------------- */

static void level_rise(struct hr_pressure *pressure, uint64_t stalled_us, uint64_t elapsed_us) {
        if (pressure->stats.level == HR_PRESSURE_REFUSE)
                return;
        if (pressure->stats.level == HR_PRESSURE_NONE)
                pressure->since_ns = hr_clock_now_ns();
        pressure->stats.level++;
        hr_log(HR_LOG_WARNING, "memory",
               "memory is short, step=%s: threads waited for it for %.1f ms of %.1f",
               level_names[pressure->stats.level], (double) stalled_us / 1e3,
               (double) elapsed_us / 1e3);
        hr_notify_status("Serving with %u devices; %s", pressure->server->device_count,
                         hr_pressure_words(pressure));
}

static void level_end(struct hr_pressure *pressure) {
        pressure->stats.level = HR_PRESSURE_NONE;
        hr_log(HR_LOG_NOTICE, "memory", "memory is not short any more, after %.1f s",
               (double) (hr_clock_now_ns() - pressure->since_ns) / 1e9);
        hr_notify_status("Serving with %u devices", pressure->server->device_count);
}

/* What the counter says; false when it says nothing, or nothing yet. */
static bool look(struct hr_pressure *pressure, uint64_t *ret_stalled_us, uint64_t *ret_elapsed_us) {
        const uint64_t now_ns = hr_clock_now_ns();
        const uint64_t before_ns = pressure->looked_ns, before_us = pressure->some_us;
        const bool has_looked = pressure->has_looked;
        struct hr_diag diag = {0};
        hr_status status = hr_psi_read(pressure->path, &diag, &pressure->some_us);

        if ((status != HR_OK) != pressure->has_failed)
                hr_log(HR_LOG_NOTICE, "memory", "memory pressure is %s known%s%s",
                       status == HR_OK ? "again" : "not", status == HR_OK ? "" : ": ",
                       status == HR_OK ? "" : diag.words);
        pressure->has_failed = status != HR_OK;
        pressure->has_looked = status == HR_OK;
        pressure->looked_ns = now_ns;
        if (status != HR_OK || !has_looked || now_ns <= before_ns)
                return false;
        *ret_elapsed_us = (now_ns - before_ns) / 1000;
        *ret_stalled_us = pressure->some_us > before_us ? pressure->some_us - before_us : 0;
        return *ret_elapsed_us > 0;
}

static void look_cb(void *arg) {
        struct hr_pressure *pressure = arg;
        const double limit = (double) pressure->server->config->memory_stall_ns / 1e9;
        uint64_t stalled_us = 0, elapsed_us = 0;

        if (pressure->has_more) { /* the same step goes on */
                if (!pressure->job_is_out)
                        shed(pressure);
                return;
        }
        if (!look(pressure, &stalled_us, &elapsed_us)) {
                if (!pressure->has_failed)
                        return;
        } else if ((double) stalled_us >= limit * (double) elapsed_us) {
                pressure->stats.stall_us += stalled_us;
                pressure->calm = 0;
                if (pressure->job_is_out)
                        return;
                level_rise(pressure, stalled_us, elapsed_us);
                shed(pressure);
                return;
        }
        pressure->stats.stall_us += stalled_us;
        if (pressure->stats.level != HR_PRESSURE_NONE && ++pressure->calm >= CALM_LOOKS)
                level_end(pressure);
}

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_pressure_new(struct hr_server *server, struct hr_diag *diag,
                          struct hr_pressure **ret_pressure) {
        const char *setting = server->config->memory_pressure;
        struct hr_pressure *pressure;

        if (!setting || strcmp(setting, "off") == 0)
                return HR_OK;
        pressure = calloc(1, sizeof *pressure);
        if (pressure)
                pressure->timer = hr_timer_new(server->loop, pressure);
        if (!pressure || !pressure->timer) {
                (void) hr_pressure_free(pressure);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for looking at memory");
        }
        pressure->server = server;
        if (strcmp(setting, "auto") != 0) {
                (void) stpncpy(pressure->path, setting, sizeof pressure->path - 1);
        } else if (!hr_psi_find(pressure->path)) {
                hr_log(HR_LOG_INFO, "memory", "the kernel does not say whether memory is short");
                (void) hr_pressure_free(pressure);
                return HR_OK;
        }
        hr_log(HR_LOG_INFO, "memory", "memory pressure is read from %s", pressure->path);
        look_next(pressure, 0);
        *ret_pressure = pressure;
        return HR_OK;
}

void hr_pressure_stop(struct hr_pressure *pressure) {
        if (!pressure)
                return;
        hr_timer_stop(pressure->timer);
        pressure->has_more = false;
}

bool hr_pressure_is_idle(const struct hr_pressure *pressure) {
        return !pressure || !pressure->job_is_out;
}

struct hr_pressure *hr_pressure_free(struct hr_pressure *pressure) {
        if (pressure)
                pressure->timer = hr_timer_free(pressure->timer);
        free(pressure);
        return NULL;
}

/* ---- what others ask ------------------------------------------------------------------------- */

hr_status hr_pressure_check(struct hr_pressure *pressure, struct hr_diag *diag) {
        hr_status status;

        if (!pressure || pressure->stats.level != HR_PRESSURE_REFUSE)
                return HR_OK;
        pressure->stats.refused++;
        status = hr_fail_reason(diag, HR_E_EXHAUSTED, "HOST_MEMORY",
                                "memory is short: nothing that takes more is begun now");
        if (diag)
                diag->retry_after_ms =
                        (uint32_t) (CALM_LOOKS * (pressure->server->config->memory_look_ns /
                                                  HR_NS_PER_MS));
        return status;
}

const char *hr_pressure_words(const struct hr_pressure *pressure) {
        static const char *const words[] = {
                [HR_PRESSURE_NONE] = NULL,
                [HR_PRESSURE_CACHES] = "memory is short: caches are given up",
                [HR_PRESSURE_IDLE] = "memory is short: idle graphs are given up",
                [HR_PRESSURE_REFUSE] =
                        "memory is short: new graphs, states and weights are refused",
        };

        return pressure ? words[pressure->stats.level] : NULL;
}

struct hr_pressure_stats hr_pressure_stats(const struct hr_pressure *pressure) {
        return pressure ? pressure->stats : (struct hr_pressure_stats){0};
}
