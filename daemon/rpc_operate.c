/*
 * What who runs the daemon asks and orders: STATUS, HEALTH, RELOAD, DRAIN, EVICT.
 *
 * STATUS and HEALTH are answered by the loop from what it has, whatever the engine is doing. Who
 * lacks the right "admin" sees what its principal holds. EVICT frees on both threads and is
 * answered when the engine has come past what it was given to free.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/evict.h"
#include "daemon/heartbeat.h"
#include "daemon/holding.h"
#include "daemon/rpc.h"
#include "proto/operate.h"

/* Graphs or sessions of one EVICT: less than a millisecond of the loop. */
#define EVICTED_AT_ONCE 64U

bool hr_request_is_whole(const struct hr_request *request) {
        return request->session->principal->permissions & HR_PERMIT_ADMIN;
}

/* ---- status and health ----------------------------------------------------------------------- */

static void status_held(const struct hr_account *account, struct hr_wire_status *status) {
        status->connections = hr_account_held(account, HR_CHARGE_CONNECTIONS);
        status->sessions = hr_account_held(account, HR_CHARGE_SESSIONS);
        status->runs = hr_account_held(account, HR_CHARGE_RUNS);
        status->graphs = hr_account_held(account, HR_CHARGE_GRAPHS);
        status->weights = hr_account_held(account, HR_CHARGE_WEIGHTS);
        status->states = hr_account_held(account, HR_CHARGE_STATES);
        status->weight_bytes = hr_account_held(account, HR_CHARGE_WEIGHT_BYTES);
        status->state_bytes = hr_account_held(account, HR_CHARGE_STATE_BYTES);
        status->device_bytes = hr_account_held(account, HR_CHARGE_DEVICE_BYTES);
        status->buffer_bytes = hr_account_held(account, HR_CHARGE_BUFFER_BYTES);
        status->upload_bytes = hr_account_held(account, HR_CHARGE_UPLOAD_BYTES);
}

static hr_status status_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct hr_principal *principal = request->session->principal;
        struct hr_wire_status status = {
                .pid = (uint64_t) getpid(),
                .uptime_ms = (hr_clock_now_ns() - server->started_ns) / HR_NS_PER_MS,
                .degraded = hr_server_is_degraded(server),
                .whole = hr_request_is_whole(request),
                .epoch = hr_fleet_epoch(server->fleet),
                .devices = server->device_count,
        };
        const char *words;
        size_t bytes = 0;

        status.ready = hr_server_is_ready(server, &words);
        memcpy(status.boot_id, server->boot_id, sizeof status.boot_id);
        (void) snprintf(status.version, sizeof status.version, "%s", HR_VERSION);
        (void) snprintf(status.state, sizeof status.state, "%s",
                        server->draining ? "draining" : "serving");
        (void) snprintf(status.words, sizeof status.words, "%s", words);
        (void) snprintf(status.principal, sizeof status.principal, "%s", principal->name);
        for (uint32_t i = 0; i < server->device_count; i++)
                status.devices_lost += hr_device_is_lost(server->devices[i]);
        if (status.whole)
                status.requests = server->stats.requests_in_flight;
        status_held(status.whole ? hr_principals_account(server->principals) : &principal->account,
                    &status);
        HR_TRY(hr_wire_status_encode(&status, server->scratch, sizeof server->scratch, diag,
                                     &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static hr_status health_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct hr_wire_device_health *devices =
                hr_arena_alloc(&request->arena, server->device_count * sizeof *devices, 8);
        struct hr_wire_health health = {
                .live = true,
                .degraded = hr_server_is_degraded(server),
                .devices = devices,
                .device_count = server->device_count,
        };
        const char *words;
        size_t bytes = 0;

        if (!devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device table");
        health.ready = hr_server_is_ready(server, &words);
        (void) snprintf(health.words, sizeof health.words, "%s", words);
        for (uint32_t i = 0; i < server->device_count; i++) {
                struct hr_device_health found;

                hr_heartbeat_device(server->heartbeat, i, &found);
                devices[i] = (struct hr_wire_device_health){
                        .required = server->device_configs[i]->required,
                        .age_ms = found.age_ns ? found.age_ns / HR_NS_PER_MS + 1 : 0,
                        .beats = found.beats,
                        .failures = found.failures,
                };
                (void) snprintf(devices[i].device, sizeof devices[i].device, "%s",
                                server->devices[i]->props.name);
                (void) snprintf(devices[i].health, sizeof devices[i].health, "%s",
                                hr_health_name(found.health));
        }
        HR_TRY(hr_wire_health_encode(&health, server->scratch, sizeof server->scratch, diag,
                                     &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

/* ---- reload and drain ------------------------------------------------------------------------ */

/* The words of a wrong file begin with its path, which is no client's business: its name is
 * kept. */
static hr_status reload_fail(const struct hr_diag *why, struct hr_diag *diag) {
        const char *end = strstr(why->words, ": ");
        const char *name = why->words;

        for (const char *at = why->words; end && at < end; at++)
                if (*at == '/')
                        name = at + 1;
        return hr_fail_reason(diag, why->status, hr_diag_reason(why), "%s", name);
}

/* Whoever asks may be revoked by what it asks for. Then its connection ends, but this request does
 * not while it is at work: it counts as answered while the others are looked through. */
static hr_status reload_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct hr_config_changes changes;
        struct hr_wire_reload reply = {0};
        struct hr_diag why = {0};
        size_t bytes = 0;
        hr_status status;

        request->phase = HR_REQUEST_REPLYING;
        status = hr_server_reconfigure(server, &why, &changes);
        request->phase = HR_REQUEST_WORKING;
        if (status != HR_OK)
                return reload_fail(&why, diag);
        (void) snprintf(reply.applied, sizeof reply.applied, "%s", changes.applied);
        (void) snprintf(reply.kept, sizeof reply.kept, "%s", changes.kept);
        HR_TRY(hr_wire_reload_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                     &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static hr_status drain_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t *limit_ms = hr_arena_alloc(&request->arena, sizeof *limit_ms, 8);

        (void) header;
        if (!limit_ms)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = limit_ms;
        return hr_wire_varint_decode(message, diag, limit_ms);
}

/* Answered first: once it drains, the last request takes the connections with it. */
static hr_status drain_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const uint64_t asked_ms = *(const uint64_t *) request->context;
        const struct hr_wire_drained reply = {
                .requests = server->stats.requests_in_flight - 1,
                .connections = server->stats.connections,
                .limit_ms = asked_ms ? asked_ms : server->config->drain_timeout_ns / HR_NS_PER_MS,
        };
        char why[HR_DEVICE_NAME_BYTES_MAX + 16];
        size_t bytes = 0;

        (void) snprintf(why, sizeof why, "asked by %s", request->session->principal->name);
        HR_TRY(hr_wire_drained_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                      &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        hr_server_drain(server, why);
        if (asked_ms)
                hr_server_drain_limit(server, asked_ms);
        return HR_OK;
}

/* ---- evict ----------------------------------------------------------------------------------- */

struct eviction {
        struct hr_wire_evict asked;
        struct hr_evicted_sum sum;
        bool plans, weights; /* the engine's part */
        bool graphs;
        uint64_t held_bytes; /* compute memory of all when graphs began to go */
};

static hr_status evict_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        struct eviction *eviction = hr_arena_alloc(&request->arena, sizeof *eviction, 8);

        (void) header;
        if (!eviction)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = eviction;
        return hr_wire_evict_decode(message, diag, &eviction->asked);
}

/* Sessions that wait for a connection, and what they hold. */
static void sessions_evict(struct hr_server *server, struct hr_evicted_sum *sum) {
        HR_LIST_FOR_EACH(link, &server->sessions) {
                struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);
                uint64_t bytes = hr_account_held(&session->account, HR_CHARGE_DEVICE_BYTES) +
                                 hr_account_held(&session->account, HR_CHARGE_STATE_BYTES) +
                                 hr_account_held(&session->account, HR_CHARGE_BUFFER_BYTES);

                if (session->closed)
                        continue;
                if (!hr_list_is_empty(&session->conns)) {
                        sum->kept_entries++;
                        sum->kept_bytes += bytes;
                        continue;
                }
                if (sum->entries == EVICTED_AT_ONCE) {
                        sum->more = true;
                        return;
                }
                sum->entries++;
                sum->bytes += bytes;
                hr_session_close(session);
        }
}

/* Thread: engine. */
static void evict_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct eviction *eviction = request->context;

        if (eviction->plans) {
                struct hr_plan_cache_evicted evicted =
                        hr_plan_cache_evict(hr_engine_plan_cache(request->server->engine));

                eviction->sum = (struct hr_evicted_sum){evicted.entries, evicted.bytes,
                                                        evicted.kept_entries, evicted.kept_bytes,
                                                        false};
        }
        if (eviction->weights) {
                struct hr_weights_evicted evicted =
                        hr_weights_store_evict(hr_engine_store(request->server->engine),
                                               eviction->asked.name);

                eviction->sum = (struct hr_evicted_sum){evicted.sets, evicted.bytes,
                                                        evicted.kept_sets, evicted.kept_bytes,
                                                        false};
        }
        hr_engine_job_end(job);
}

static uint64_t device_bytes(const struct hr_server *server) {
        return hr_account_held(hr_principals_account(server->principals), HR_CHARGE_DEVICE_BYTES);
}

/* Of graphs it counts what all hold less of now: memory that some shared goes with the last of
 * them. */
static hr_status evict_finish(struct hr_request *request, struct hr_diag *diag) {
        struct eviction *eviction = request->context;
        struct hr_evicted_sum *sum = &eviction->sum;
        const uint64_t now = device_bytes(request->server);

        if (eviction->graphs)
                sum->bytes = eviction->held_bytes > now ? eviction->held_bytes - now : 0;
        const struct hr_wire_evicted reply = {
                .entries = sum->entries,
                .bytes = sum->bytes,
                .kept_entries = sum->kept_entries,
                .kept_bytes = sum->kept_bytes,
                .more = sum->more,
        };
        struct hr_server *server = request->server;
        size_t bytes = 0;

        HR_TRY(hr_wire_evicted_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                      &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static void evict_done(struct hr_job *job) {
        hr_request_finish(job, evict_finish);
}

static hr_status evict_start(struct hr_request *request, struct hr_diag *diag) {
        struct eviction *eviction = request->context;
        struct hr_server *server = request->server;
        const char *what = eviction->asked.what;

        if (strcmp(what, "plans") == 0) {
                eviction->plans = true;
        } else if (strcmp(what, "weights") == 0) {
                eviction->weights = true;
        } else if (strcmp(what, "graphs") == 0 || strcmp(what, "experts") == 0) {
                eviction->graphs = true;
                eviction->held_bytes = device_bytes(server);
                hr_evict_idle(server,
                              &(struct hr_evict_which){
                                      .experts_only = what[0] == 'e',
                                      .most = EVICTED_AT_ONCE,
                                      .used_before_ns = UINT64_MAX,
                                      .counter = &server->stats.evictions_for_operator,
                              },
                              &eviction->sum);
        } else if (strcmp(what, "uploads") == 0) {
                hr_holdings_count(server, &eviction->sum);
                (void) hr_holdings_expire(server, 0, true);
        } else if (strcmp(what, "sessions") == 0) {
                sessions_evict(server, &eviction->sum);
        } else {
                diag->field = "what";
                return hr_fail_reason(diag, HR_E_INVALID, "EVICT",
                                      "not one of: plans graphs experts uploads sessions weights");
        }
        /* What the loop has let go of reaches the engine ahead of this. */
        hr_request_post_work(request, evict_work, evict_done);
        return HR_OK;
}

const struct hr_method hr_operate_methods[] = {
        {.type = HR_FRAME_STATUS,
         .name = "STATUS",
         .needs_session = true,
         .in_drain = true,
         .begin = hr_method_begin_empty,
         .start = status_start},
        {.type = HR_FRAME_HEALTH,
         .name = "HEALTH",
         .needs_session = true,
         .in_drain = true,
         .begin = hr_method_begin_empty,
         .start = health_start},
        {.type = HR_FRAME_RELOAD,
         .name = "RELOAD",
         .needs_session = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = hr_method_begin_empty,
         .start = reload_start},
        {.type = HR_FRAME_DRAIN,
         .name = "DRAIN",
         .needs_session = true,
         .in_drain = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = drain_begin,
         .start = drain_start},
        {.type = HR_FRAME_EVICT,
         .name = "EVICT",
         .needs_session = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = evict_begin,
         .start = evict_start},
        {0},
};
