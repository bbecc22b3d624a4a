/*
 * The loop and everything below it. Start-up is one list, read backwards at the end:
 *
 *   loop, signals, timers -> HTTP -> devices -> fleet -> engine, graphs -> listeners
 *
 * The loop spins for a configured time after the last activity (events are polled without sleeping,
 * news of the engine is looked for in memory) and then sleeps in the kernel. Before it sleeps it
 * says so and looks once more, hence no news is slept over.
 *
 * The drain is a condition, not an event: it is over when no request, connection, session or object
 * is left. It is looked at whenever one of them goes.
 */
#include "daemon/server.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/recorder.h"
#include "core/log.h"
#include "daemon/conn.h"
#include "daemon/devices.h"
#include "daemon/graphs.h"
#include "daemon/heartbeat.h"
#include "daemon/holding.h"
#include "daemon/http.h"
#include "daemon/inherit.h"
#include "daemon/listener.h"
#include "daemon/notify.h"
#include "daemon/pressure.h"
#include "daemon/random.h"
#include "daemon/reload.h"
#include "daemon/request.h"

#define TICK_MS 100

/* ---- deadlines ------------------------------------------------------------------------------- */

static void deadline_cb(void *arg);

static void deadlines_arm(struct hr_server *server, uint64_t deadline_ns) {
        uint64_t now_ns = hr_clock_now_ns();
        uint64_t ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / HR_NS_PER_MS + 1 : 0;

        server->armed_ns = deadline_ns;
        hr_timer_start(server->deadline_timer, deadline_cb, ms, 0);
}

void hr_server_deadline_add(struct hr_server *server, struct hr_list *link, uint64_t deadline_ns) {
        hr_list_append(&server->deadlines, link);
        if (server->armed_ns == 0 || deadline_ns < server->armed_ns)
                deadlines_arm(server, deadline_ns);
}

static void deadline_cb(void *arg) {
        struct hr_server *server = arg;
        uint64_t now_ns = hr_clock_now_ns();
        uint64_t next_ns = 0;

        server->armed_ns = 0;
        HR_LIST_FOR_EACH(link, &server->deadlines) {
                struct hr_request *request =
                        HR_CONTAINER_OF(link, struct hr_request, deadline_link);

                if (request->deadline_ns <= now_ns) {
                        hr_list_remove(link);
                        hr_request_stop(request, HR_E_DEADLINE);
                } else if (next_ns == 0 || request->deadline_ns < next_ns) {
                        next_ns = request->deadline_ns;
                }
        }
        if (next_ns != 0)
                deadlines_arm(server, next_ns);
}

/* Time in which the process was stopped, or the loop busy, is no peer's delay: what a peer sent
 * meanwhile has not been read yet. */
static void absence_forgive(struct hr_server *server, uint64_t now_ns) {
        const uint64_t away_ns = now_ns - server->ticked_ns;

        server->ticked_ns = now_ns;
        if (away_ns <= 2 * TICK_MS * HR_NS_PER_MS)
                return;
        HR_LIST_FOR_EACH(link, &server->conns)
        hr_conn_forgive(HR_CONTAINER_OF(link, struct hr_conn, link),
                        away_ns - TICK_MS * HR_NS_PER_MS, now_ns);
}

static void tick_cb(void *arg) {
        struct hr_server *server = arg;
        uint64_t now_ns = hr_clock_now_ns();
        bool waiting;

        absence_forgive(server, now_ns);
        HR_LIST_FOR_EACH(link, &server->conns)
        hr_conn_tick(HR_CONTAINER_OF(link, struct hr_conn, link), now_ns);
        for (uint32_t i = 0; i < server->listener_count; i++)
                hr_listener_rested(server->listeners[i]);
        waiting = hr_sessions_expire(server, now_ns, false);
        waiting |= hr_holdings_expire(server, now_ns, false);
        waiting |= hr_failures_flush(server, now_ns, false);
        if (!waiting && hr_list_is_empty(&server->conns))
                hr_timer_stop(server->tick);
        hr_server_accept_update(server);
}

static void tick_start(struct hr_server *server) {
        if (hr_timer_is_running(server->tick))
                return;
        server->ticked_ns = hr_clock_now_ns();
        hr_timer_start(server->tick, tick_cb, TICK_MS, TICK_MS);
}

void hr_server_tick(struct hr_server *server) {
        tick_start(server);
}

void hr_server_listener_rests(struct hr_server *server) {
        tick_start(server);
}

bool hr_server_is_astray(const struct hr_server *server) {
        bool is_astray = false;

        for (uint32_t i = 0; i < server->listener_count; i++)
                is_astray |= hr_listener_is_astray(server->listeners[i]);
        return is_astray;
}

void hr_server_accept_update(struct hr_server *server) {
        bool accept =
                !server->draining && server->greeting_count < server->config->limits.greetings;

        for (uint32_t i = 0; i < server->listener_count; i++)
                hr_listener_accept(server->listeners[i], accept);
        if (!hr_list_is_empty(&server->conns))
                tick_start(server);
}

/* ---- drain ----------------------------------------------------------------------------------- */

static void listeners_close(struct hr_server *server) {
        for (uint32_t i = 0; i < server->listener_count; i++)
                server->listeners[i] = hr_listener_close(server->listeners[i]);
        server->listener_count = 0;
}

static void go_away_send(struct hr_conn *conn) {
        uint8_t message[128];
        size_t bytes = 0;

        if (!conn->session || hr_wire_go_away_encode("draining", 1000, message, sizeof message,
                                                     NULL, &bytes) != HR_OK)
                return;
        hr_conn_send(conn,
                     &(struct hr_send){
                             .header = {.type = HR_FRAME_GOAWAY, .request_id = HR_FRAME_PUSH_ID},
                             .message = message,
                             .message_bytes = bytes,
                     });
}

/* Whoever is left may ask the next daemon. */
static void drain_timeout_cb(void *arg) {
        struct hr_server *server = arg;
        struct hr_diag diag = {0};

        hr_log(HR_LOG_WARNING, "server", "drain time has passed, cancelling requests=%llu",
               (unsigned long long) server->stats.requests_in_flight);
        server->cancelled = true;
        (void) hr_fail_reason(&diag, HR_E_UNAVAILABLE, "DRAINING",
                              "the daemon ends, and this did not end in time");
        diag.retry_after_ms = 1000;
        HR_LIST_FOR_EACH(link, &server->conns) {
                struct hr_conn *conn = HR_CONTAINER_OF(link, struct hr_conn, link);

                HR_LIST_FOR_EACH(link_, &conn->requests) {
                        struct hr_request *request =
                                HR_CONTAINER_OF(link_, struct hr_request, link);

                        if (request->stopped == HR_OK)
                                hr_request_abort(request, &diag);
                }
        }
}

void hr_server_drain(struct hr_server *server, const char *why) {
        if (server->draining)
                return;
        hr_log(HR_LOG_NOTICE, "server", "draining (%s) connections=%llu requests=%llu", why,
               (unsigned long long) server->stats.connections,
               (unsigned long long) server->stats.requests_in_flight);
        server->draining = true;
        hr_notify_stopping("Draining, requests in flight: %llu, connections: %llu",
                           (unsigned long long) server->stats.requests_in_flight,
                           (unsigned long long) server->stats.connections);
        hr_weights_store_leave(hr_engine_store(server->engine));
        hr_pressure_stop(server->pressure);
        listeners_close(server);
        HR_LIST_FOR_EACH(link, &server->conns)
        go_away_send(HR_CONTAINER_OF(link, struct hr_conn, link));
        hr_timer_start(server->drain_timer, drain_timeout_cb,
                       server->config->drain_timeout_ns / HR_NS_PER_MS, 0);
}

void hr_server_drain_limit(struct hr_server *server, uint64_t limit_ms) {
        if (server->draining && !server->cancelled)
                hr_timer_start(server->drain_timer, drain_timeout_cb, limit_ms, 0);
}

/* What is left of a drain: first the requests, then the connections, then what the sessions
 * held. */
static void drain_step(struct hr_server *server) {
        if (!server->draining || server->stats.requests_in_flight > 0)
                return;
        hr_heartbeat_stop(server->heartbeat);
        HR_LIST_FOR_EACH(link, &server->conns)
        hr_conn_finish(HR_CONTAINER_OF(link, struct hr_conn, link));
        hr_conns_reap(server);
        (void) hr_sessions_expire(server, 0, true);
        (void) hr_holdings_expire(server, 0, true);
        if (hr_list_is_empty(&server->conns) && hr_list_is_empty(&server->sessions) &&
            hr_list_is_empty(&server->holdings) && !server->is_releasing &&
            hr_http_is_idle(server->http) && hr_pressure_is_idle(server->pressure) &&
            hr_heartbeat_is_idle(server->heartbeat))
                server->stopping = true;
}

void hr_server_session_gone(struct hr_server *server) {
        server->active_ns = hr_clock_now_ns();
}

void hr_server_conn_gone(struct hr_server *server) {
        server->active_ns = hr_clock_now_ns();
}

hr_status hr_server_reconfigure(struct hr_server *server, struct hr_diag *diag,
                                struct hr_config_changes *ret_changes) {
        struct hr_config_changes changes = {0};
        hr_status status;

        if (!server->reload || server->draining)
                return hr_fail(diag, HR_E_PRECONDITION, "the configuration is not read now");
        hr_notify_reloading();
        status = hr_server_reload(server, diag, &changes);
        if (status != HR_OK) {
                hr_log(HR_LOG_ERROR, "server", "the configuration stays as it is: %s",
                       diag->words);
                hr_notify_ready("Serving with %u devices; the configuration file is wrong",
                                server->device_count);
                return status;
        }
        hr_log(HR_LOG_NOTICE, "server", "configuration read again, changed: %s",
               changes.applied[0] ? changes.applied : "nothing");
        if (changes.kept[0])
                hr_log(HR_LOG_WARNING, "server", "only a new start changes: %s", changes.kept);
        hr_notify_ready("Serving with %u devices", server->device_count);
        *ret_changes = changes;
        return HR_OK;
}

static void signal_cb(void *arg, int number) {
        struct hr_server *server = arg;

        if (!server->engine) { /* still at the start, waiting for a device */
                server->stopping = server->stopping || number != SIGHUP;
                return;
        }
        if (number == SIGHUP) {
                struct hr_config_changes changes;
                struct hr_diag diag = {0};

                (void) !hr_server_reconfigure(server, &diag, &changes);
                return;
        }
        hr_server_drain(server, number == SIGINT ? "SIGINT" : "SIGTERM");
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* The news are looked for after every turn of the loop. Thread: any. */
static void server_wake(void *arg) {
        struct hr_server *server = arg;

        hr_loop_wake(server->loop);
}

/* Thread: any. */
static void server_wake_at(void *arg, uint64_t at_ns) {
        struct hr_server *server = arg;

        hr_loop_wake_at(server->loop, at_ns);
}

/* Everything that is not an event of the kernel. */
static void server_serve(struct hr_server *server) {
        while (hr_engine_poll(server->engine)) {
        }
        hr_conns_reap(server);
        drain_step(server);
}

static void server_loop(struct hr_server *server) {
        uint64_t spin_ns = server->config->spin_ns;

        while (!server->stopping) {
                hr_engine_loop_awake(server->engine, true);
                server_serve(server);
                if (server->stopping)
                        break;
                if (spin_ns > 0 && hr_clock_now_ns() - server->active_ns < spin_ns) {
                        hr_loop_turn(server->loop, false);
                        (void) sched_yield(); /* whoever shares the processor goes first */
                        continue;
                }
                hr_engine_loop_awake(server->engine, false);
                if (!hr_engine_has_news(server->engine))
                        hr_loop_turn(server->loop, true);
        }
        hr_engine_loop_awake(server->engine, true);
}

/* ---- start and end --------------------------------------------------------------------------- */

static hr_status loop_init(struct hr_server *server, struct hr_diag *diag) {
        static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
        static const int ignored[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGALRM};
        struct hr_timer **const timers[] = {&server->tick, &server->deadline_timer,
                                            &server->drain_timer, &server->progress_timer,
                                            &server->tap_timer, &server->keep_timer};

        HR_TRY(hr_loop_new(diag, &server->loop));
        for (size_t i = 0; i < HR_ARRAY_LENGTH(timers); i++) {
                *timers[i] = hr_timer_new(server->loop, server);
                if (!*timers[i])
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for timers");
        }
        for (size_t i = 0; i < HR_ARRAY_LENGTH(numbers); i++)
                HR_TRY(hr_loop_signal(server->loop, numbers[i], signal_cb, server, diag));
        for (size_t i = 0; i < HR_ARRAY_LENGTH(ignored); i++)
                (void) signal(ignored[i], SIG_IGN);
        return HR_OK;
}

static void loop_deinit(struct hr_server *server) {
        server->tick = hr_timer_free(server->tick);
        server->deadline_timer = hr_timer_free(server->deadline_timer);
        server->drain_timer = hr_timer_free(server->drain_timer);
        server->progress_timer = hr_timer_free(server->progress_timer);
        server->tap_timer = hr_timer_free(server->tap_timer);
        server->keep_timer = hr_timer_free(server->keep_timer);
        server->loop = hr_loop_free(server->loop);
}

/* Pairs of devices whose own way a test at the start found at fault. */
static void copy_faults_log(const struct hr_fleet *fleet) {
        for (uint32_t from = 0; from < hr_fleet_device_count(fleet); from++)
                for (uint32_t to = 0; to < hr_fleet_device_count(fleet); to++) {
                        const char *fault =
                                hr_queue_copy_fault(hr_fleet_queue(fleet, from),
                                                    hr_fleet_device(fleet, to)->props.kind);

                        if (fault)
                                hr_log(HR_LOG_WARNING, "server",
                                       "copies from %s to %s go through the host: %s",
                                       hr_fleet_device(fleet, from)->props.name,
                                       hr_fleet_device(fleet, to)->props.name, fault);
                }
}

/* ---- what an earlier daemon has left
 * ---------------------------------------------------------- */

/* Thread: engine. */
static void release_work(struct hr_job *job) {
        const struct hr_server *server = job->arg;

        hr_weights_store_release(hr_engine_store(server->engine));
        hr_engine_job_end(job);
}

static void release_done(struct hr_job *job) {
        struct hr_server *server = job->arg;

        server->is_releasing = false;
}

/* Clients have had time to come back. */
static void keep_cb(void *arg) {
        struct hr_server *server = arg;

        if (server->draining)
                return;
        server->is_releasing = true;
        server->releasing = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = release_work,
                .done = release_done,
                .arg = server,
        };
        hr_engine_post(server->engine, &server->releasing);
}

static hr_status engine_open(struct hr_server *server, struct hr_diag *diag) {
        struct hr_engine_config config = {
                .config = server->config,
                .wake_loop = server_wake,
                .wake_loop_at = server_wake_at,
                .arg = server,
        };

        HR_TRY(hr_fleet_new(server->devices, server->device_count, diag, &server->fleet));
        HR_TRY(hr_fleet_record(server->fleet, (uint32_t) server->config->trace_spans, diag));
        if (server->config->trace_spans)
                HR_TRY(hr_recorder_new((uint32_t) server->config->trace_spans, diag,
                                       &server->recorder));
        copy_faults_log(server->fleet);
        config.fleet = server->fleet;
        config.inherited = &server->inherited;
        HR_TRY(hr_graphs_new(diag, &server->graphs));
        HR_TRY(hr_engine_new(&config, diag, &server->engine));
        if (server->inherited.kept_count > 0)
                hr_timer_start(server->keep_timer, keep_cb,
                               server->config->keep_grace_ns / HR_NS_PER_MS, 0);
        return hr_principals_new(server->config, hr_engine_share(server->engine), diag,
                                 &server->principals);
}

/* One listener: an inherited socket, else what the configuration says; none of either is fine. */
static hr_status listener_open(struct hr_server *server, hr_inherited_kind kind, int fd,
                               struct hr_diag *diag) {
        const struct hr_config *config = server->config;
        const struct hr_address *address = kind == HR_INHERITED_TLS ? &config->tls : &config->tcp;
        struct hr_tls_context *context = kind == HR_INHERITED_TLS ? server->tls_context : NULL;
        struct hr_listener **place = &server->listeners[server->listener_count];

        if (fd >= 0)
                HR_TRY(hr_listener_open_inherited(server, fd, kind != HR_INHERITED_UNIX, context,
                                                  diag, place));
        else if (kind == HR_INHERITED_UNIX && config->unix_path)
                HR_TRY(hr_listener_open_unix(server, config->unix_path,
                                             (uint32_t) config->unix_mode, diag, place));
        else if (kind != HR_INHERITED_UNIX && address->text)
                HR_TRY(hr_listener_open_tcp(server, address, context, diag, place));
        else
                return HR_OK;
        server->listener_count++;
        return HR_OK;
}

static hr_status listeners_open(struct hr_server *server, struct hr_diag *diag) {
        const struct hr_config *config = server->config;
        struct hr_inherited *inherited = &server->inherited;
        hr_status status = HR_OK;

        if (config->tls_certificate && config->tls_key)
                status = hr_tls_context_new(config->tls_certificate, config->tls_key,
                                            config->tls_client_ca, diag, &server->tls_context);
        else if (inherited->fd[HR_INHERITED_TLS] >= 0)
                status = hr_fail_reason(diag, HR_E_PRECONDITION, "TLS",
                                        "a socket for TLS is inherited, but tls.certificate and "
                                        "tls.key are not given");
        for (int i = 0; status == HR_OK && i < HR_INHERITED_KINDS; i++) {
                const int fd = inherited->fd[i];

                inherited->fd[i] = -1;
                status = listener_open(server, (hr_inherited_kind) i, fd, diag);
        }
        HR_TRY(status);
        /* The Unix socket last: who can connect to it finds the others open, too. */
        for (uint32_t i = server->listener_count; i-- > 0;)
                HR_TRY(hr_listener_listen(server->listeners[i], diag));
        hr_server_accept_update(server);
        return HR_OK;
}

static hr_status server_open(struct hr_server *server, struct hr_diag *diag) {
        const struct hr_limits *limits = &server->config->limits;

        hr_list_init(&server->conns);
        hr_list_init(&server->conns_over);
        hr_list_init(&server->sessions);
        hr_list_init(&server->holdings);
        hr_list_init(&server->idle_requests);
        hr_list_init(&server->deadlines);
        hr_list_init(&server->progresses);
        hr_list_init(&server->tap_waits);
        server->frame_limits = (struct hr_frame_limits){
                .message_bytes_max = (uint32_t) limits->message_bytes,
                .body_bytes_max = (uint32_t) limits->body_bytes,
        };
        server->started_ns = hr_clock_now_ns();
        hr_inherited_take(&server->inherited);
        HR_TRY(hr_random(server->boot_id, sizeof server->boot_id, diag));
        HR_TRY(hr_random(&server->span_seed, sizeof server->span_seed, diag));
        server->span_seed >>= 1; /* no sum is 0 */
        HR_TRY(loop_init(server, diag));
        HR_TRY(hr_http_open(server, diag, &server->http)); /* says what is waited for */
        HR_TRY(hr_devices_open(server, diag));
        if (server->stopping) /* told to end while a device was waited for */
                return HR_OK;
        HR_TRY(engine_open(server, diag));
        HR_TRY(hr_heartbeat_new(server, diag, &server->heartbeat));
        HR_TRY(hr_pressure_new(server, diag, &server->pressure));
        return listeners_open(server, diag);
}

/* The start backwards; copes with a start that got half-way. */
static void server_close(struct hr_server *server) {
        listeners_close(server);
        server->http = hr_http_close(server->http);
        hr_engine_stop(server->engine);
        server->graphs = hr_graphs_free(server->graphs);
        server->principals = hr_principals_free(server->principals);
        if (server->fleet)
                server->fleet = hr_fleet_free(server->fleet);
        hr_heartbeat_release(server->heartbeat);
        server->engine = hr_engine_free(server->engine);
        hr_devices_close(server);
        server->heartbeat = hr_heartbeat_free(server->heartbeat);
        server->pressure = hr_pressure_free(server->pressure);
        loop_deinit(server);
        server->tls_context = hr_tls_context_free(server->tls_context);
        hr_inherited_deinit(&server->inherited);
        if (server->idle_requests.next)
                hr_requests_deinit(server);
        server->recorder = hr_recorder_free(server->recorder);
        free(server);
}

hr_status hr_server_run(struct hr_config *config, hr_reload_fn reload, void *arg,
                        struct hr_diag *diag) {
        struct hr_server *server = calloc(1, sizeof *server);
        hr_status status;

        if (!server)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the server");
        server->config = config;
        server->own_config = config;
        server->reload = reload;
        server->reload_arg = arg;
        status = server_open(server, diag);
        if (status == HR_OK && !server->stopping) {
                hr_log(HR_LOG_NOTICE, "server", "headraced %s ready devices=%u start_ms=%.1f",
                       HR_VERSION, server->device_count,
                       (double) (hr_clock_now_ns() - server->started_ns) / 1e6);
                hr_notify_ready("Serving with %u device%s", server->device_count,
                                server->device_count == 1 ? "" : "s");
                server_loop(server);
                (void) hr_failures_flush(server, 0, true);
                hr_log(HR_LOG_NOTICE, "server", "drained");
        }
        server_close(server);
        return status;
}
