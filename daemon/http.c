/*
 * libmicrohttpd without a thread of its own: its epoll descriptor is watched by the loop, and a
 * timer lets it drop connections that say nothing. An answer that needs the engine suspends its
 * connection until the engine's job has come back.
 */
#include "daemon/http.h"

#include "daemon/server.h"

#ifdef HR_HAVE_HTTP

#include <microhttpd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "daemon/heartbeat.h"
#include "daemon/pressure.h"
#include "daemon/metrics.h"

#define CONNECTIONS_MAX 32U
#define CONNECTION_TIMEOUT_S 10U
#define CONNECTION_BYTES ((size_t) 16 << 10)
#define FIGURES_BYTES_MAX ((uint64_t) 64 << 20)
#define TICK_MS 1000
#define RUNS_MAX 8 /* of the library at a time, before others have their turn */

struct hr_http {
        struct hr_server *server;
        struct MHD_Daemon *daemon;
        struct hr_watch *watch;
        struct hr_timer *timer;
        uint32_t pending; /* answers that wait for the engine */
};

static void timer_cb(void *arg);

/* Lets the library work until nothing is left that could go on at once: it tells of that by a
 * timeout of nothing, its epoll descriptor does not. */
static void http_run(struct hr_http *http) {
        MHD_UNSIGNED_LONG_LONG left_ms = 0;
        bool is_busy = true;

        for (int i = 0; i < RUNS_MAX && is_busy; i++) {
                (void) MHD_run(http->daemon);
                is_busy = MHD_get_timeout(http->daemon, &left_ms) == MHD_YES && left_ms == 0;
        }
        if (is_busy)
                hr_timer_start(http->timer, timer_cb, 1, TICK_MS);
}

/* One answer under way. */
struct answer {
        struct hr_http *http;
        struct MHD_Connection *connection;
        struct hr_job job;
        struct hr_arena arena;
        struct hr_metrics metrics;
        char *text;
        size_t bytes;
        bool asked, failed;
};

static enum MHD_Result reply(struct MHD_Connection *connection, unsigned code, const char *type,
                             char *text, size_t bytes, enum MHD_ResponseMemoryMode mode) {
        struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, mode);
        enum MHD_Result result;

        if (!response) {
                if (mode == MHD_RESPMEM_MUST_FREE)
                        free(text);
                return MHD_NO;
        }
        (void) MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        /* One request a connection: what may be a second one inside of it is never looked at. */
        (void) MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
        result = MHD_queue_response(connection, code, response);
        MHD_destroy_response(response);
        return result;
}

static enum MHD_Result reply_words(struct MHD_Connection *connection, unsigned code,
                                   const char *words) {
        return reply(connection, code, "text/plain; charset=utf-8", (char *) (uintptr_t) words,
                     strlen(words), MHD_RESPMEM_PERSISTENT);
}

/* Thread: engine. */
static void gather_work(struct hr_job *job) {
        struct answer *answer = job->arg;

        hr_metrics_gather(&answer->metrics, answer->http->server);
        hr_engine_job_end(job);
}

static void gather_done(struct hr_job *job) {
        struct answer *answer = job->arg;
        struct hr_diag diag = {0};

        answer->http->pending--;
        hr_metrics_finish(&answer->metrics, answer->http->server);
        answer->failed =
                job->status != HR_OK ||
                hr_metrics_text(&answer->metrics, &diag, &answer->text, &answer->bytes) != HR_OK;
        MHD_resume_connection(answer->connection);
        http_run(answer->http);
}

static enum MHD_Result metrics_ask(struct hr_http *http, struct MHD_Connection *connection,
                                   struct answer *answer) {
        answer->connection = connection;
        answer->asked = true;
        hr_arena_init(&answer->arena, FIGURES_BYTES_MAX);
        answer->metrics.arena = &answer->arena;
        answer->job = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = gather_work,
                .done = gather_done,
                .arg = answer,
        };
        http->pending++;
        MHD_suspend_connection(connection);
        hr_engine_post(http->server->engine, &answer->job);
        return MHD_YES;
}

static enum MHD_Result metrics_answer(struct MHD_Connection *connection, struct answer *answer) {
        char *text = answer->text;

        if (answer->failed)
                return reply_words(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, "no memory\n");
        answer->text = NULL;
        return reply(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", text,
                     answer->bytes, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result ready_answer(struct hr_http *http, struct MHD_Connection *connection) {
        const char *words;
        bool ready = hr_server_is_ready(http->server, &words);
        char *text = malloc(strlen(words) + 2);

        if (!text)
                return MHD_NO;
        (void) stpcpy(stpcpy(text, words), "\n");
        return reply(connection, ready ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE,
                     "text/plain; charset=utf-8", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

/* A line per device that is not well or waited for, and one when memory is short. */
static enum MHD_Result degraded_answer(struct hr_http *http, struct MHD_Connection *connection) {
        struct hr_server *server = http->server;
        char *text = NULL;
        size_t bytes = 0;
        FILE *out;

        if (!hr_server_is_degraded(server))
                return reply_words(connection, MHD_HTTP_OK, "not degraded\n");
        out = open_memstream(&text, &bytes);
        if (!out)
                return MHD_NO;
        if (hr_pressure_words(server->pressure))
                fprintf(out, "%s\n", hr_pressure_words(server->pressure));
        if (server->waiting[0])
                fprintf(out, "%s\n", server->waiting);
        for (uint32_t i = 0; server->heartbeat && i < server->device_count; i++) {
                struct hr_device_health health;

                hr_heartbeat_device(server->heartbeat, i, &health);
                if (health.health != HR_HEALTH_OK && health.health != HR_HEALTH_STARTING)
                        fprintf(out, "device %s: %s\n", server->devices[i]->props.name,
                                hr_health_name(health.health));
        }
        if (fclose(out) != 0) {
                free(text);
                return MHD_NO;
        }
        return reply(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", text,
                     bytes, MHD_RESPMEM_MUST_FREE);
}

/* Called for a request's header, for what it carries, which nobody wants, and at its end. */
static enum MHD_Result request_cb(void *arg, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **context) {
        struct hr_http *http = arg;
        struct answer *answer = *context;

        (void) version;
        (void) data;
        if (!answer) {
                answer = calloc(1, sizeof *answer);
                if (!answer)
                        return MHD_NO;
                answer->http = http;
                *context = answer;
                return MHD_YES;
        }
        if (*data_bytes) {
                *data_bytes = 0;
                return MHD_YES;
        }
        if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
                return reply_words(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET only\n");
        if (strcmp(url, "/metrics") == 0) {
                if (answer->asked)
                        return metrics_answer(connection, answer);
                if (http->server->stopping)
                        return reply_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "ending\n");
                if (!http->server->heartbeat) /* no engine yet */
                        return reply_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "starting\n");
                return metrics_ask(http, connection, answer);
        }
        if (strcmp(url, "/live") == 0)
                return reply_words(connection, MHD_HTTP_OK, "live\n");
        if (strcmp(url, "/ready") == 0)
                return ready_answer(http, connection);
        if (strcmp(url, "/degraded") == 0)
                return degraded_answer(http, connection);
        return reply_words(connection, MHD_HTTP_NOT_FOUND,
                           "/metrics, /live, /ready or /degraded\n");
}

static void completed_cb(void *arg, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode code) {
        struct answer *answer = *context;

        (void) arg;
        (void) connection;
        (void) code;
        if (!answer)
                return;
        if (answer->asked)
                hr_arena_deinit(&answer->arena);
        free(answer->text);
        free(answer);
        *context = NULL;
}

static void watch_cb(void *arg, int events) {
        (void) events;
        http_run(arg);
}

static void timer_cb(void *arg) {
        http_run(arg);
}

static hr_status watch(struct hr_http *http, struct hr_diag *diag) {
        const union MHD_DaemonInfo *info =
                MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_EPOLL_FD);
        struct hr_loop *loop = http->server->loop;

        http->timer = hr_timer_new(loop, http);
        if (info)
                http->watch = hr_watch_new(loop, info->epoll_fd, watch_cb, http);
        if (!http->timer || !http->watch || !hr_watch_want(http->watch, HR_LOOP_READABLE))
                return hr_fail(diag, HR_E_UNAVAILABLE, "HTTP cannot be watched");
        hr_timer_start(http->timer, timer_cb, TICK_MS, TICK_MS);
        return HR_OK;
}

hr_status hr_http_open(struct hr_server *server, struct hr_diag *diag, struct hr_http **ret_http) {
        const struct hr_address *address = &server->config->metrics;
        unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC;
        const union MHD_DaemonInfo *bound;
        struct hr_http *http;
        hr_status status;

        if (!address->text) {
                *ret_http = NULL;
                return HR_OK;
        }
        http = calloc(1, sizeof *http);
        if (!http)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for HTTP");
        http->server = server;
        if (address->socket.ss_family == AF_INET6)
                flags |= MHD_USE_IPv6;
        http->daemon = MHD_start_daemon(
                flags, 0, NULL, NULL, request_cb, http, MHD_OPTION_SOCK_ADDR,
                (const struct sockaddr *) &address->socket, MHD_OPTION_NOTIFY_COMPLETED,
                completed_cb, http, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
                MHD_OPTION_CONNECTION_TIMEOUT, CONNECTION_TIMEOUT_S,
                MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES, MHD_OPTION_END);
        if (!http->daemon) {
                free(http);
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "LISTEN",
                                      "daemon.metrics: cannot listen on %s", address->text);
        }
        status = watch(http, diag);
        if (status != HR_OK) {
                (void) hr_http_close(http);
                return status;
        }
        bound = MHD_get_daemon_info(http->daemon, MHD_DAEMON_INFO_BIND_PORT);
        hr_log(hr_socket_port(&address->socket) == 0 ? HR_LOG_NOTICE : HR_LOG_INFO, "server",
               "metrics over HTTP on %s port=%u", address->text, bound ? bound->port : 0U);
        *ret_http = http;
        return HR_OK;
}

bool hr_http_is_idle(const struct hr_http *http) {
        return !http || http->pending == 0;
}

struct hr_http *hr_http_close(struct hr_http *http) {
        if (!http)
                return NULL;
        HR_ASSERT(http->pending == 0);
        http->watch = hr_watch_free(http->watch); /* before the descriptor that it watches */
        MHD_stop_daemon(http->daemon);
        http->timer = hr_timer_free(http->timer);
        free(http);
        return NULL;
}

#else

hr_status hr_http_open(struct hr_server *server, struct hr_diag *diag, struct hr_http **ret_http) {
        if (server->config->metrics.text)
                return hr_fail_reason(diag, HR_E_UNSUPPORTED, "BACKEND",
                                      "daemon.metrics: this build has no HTTP");
        *ret_http = NULL;
        return HR_OK;
}

bool hr_http_is_idle(const struct hr_http *http) {
        (void) http;
        return true;
}

struct hr_http *hr_http_close(struct hr_http *http) {
        (void) http;
        return NULL;
}

#endif
