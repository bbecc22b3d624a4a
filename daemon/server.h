/*
 * The server owns the loop and everything below it, in one order of start and the reverse of it at
 * the end: devices, fleet, engine, listeners; then connections and their sessions come and go.
 *
 * SIGTERM or SIGINT begins the drain: listeners close, connections are told GOAWAY, new requests
 * are refused with UNAVAILABLE (reason DRAINING), what is in flight ends. When nothing is left, or
 * the drain time has passed and what is left has been cancelled, the loop ends and the process
 * exits 0.
 *
 * Thread: loop, except where said.
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/failure.h"
#include "daemon/inherit.h"
#include "daemon/loop.h"
#include "daemon/metrics.h"
#include "daemon/session.h"
#include "proto/codec.h"
#include "proto/frame.h"

struct hr_conn;
struct hr_listener;
struct hr_graphs;
struct hr_heartbeat;
struct hr_http;
struct hr_pressure;

/* Bytes read at once when no body is due; also the most that is read past one. */
#define HR_WINDOW_BYTES 16384U
#define HR_LANDING_BYTES (UINT32_C(512) << 10) /* stays in a processor's cache */

#define HR_GRPC_CODES 17U
#define HR_WAITING_BYTES 256
#define HR_REQUEST_BUCKETS 4096U

struct hr_server_stats {
        uint64_t connections, connections_total, connections_refused;
        uint64_t unauthenticated; /* hellos refused */
        uint64_t revoked;         /* connections whose access a reload has taken */
        uint64_t sessions, sessions_total;
        uint64_t objects;
        uint64_t bytes_in, bytes_out, frames_in, frames_out;
        uint64_t protocol_errors, data_dropped;
        uint64_t misses, rates_exceeded;
        uint64_t requests[256][HR_GRPC_CODES]; /* by type and the code of their end */
        uint64_t requests_in_flight;
        uint64_t runs_in_flight;
        uint64_t reallocs;         /* of sessions' compute memory */
        uint64_t run_ns, queue_ns; /* sums over runs */
        struct hr_stage stages[HR_STAGE_COUNT];
        uint64_t taps, taps_stopped; /* shown; runs that a client, or its silence, stopped there */
        uint64_t *device_splits;   /* of runs that ended well, per device */
        uint64_t fallback_nodes; /* of the plans of submitted graphs */
        uint64_t evictions_for_handles, evictions_for_memory, evictions_for_loss; /* of graphs */
        uint64_t evictions_for_operator, evictions_for_pressure;
};

struct hr_server {
        const struct hr_config *config; /* reload may change what only the loop reads */
        struct hr_config *own_config;   /* the same: for reload */
        hr_status (*reload)(void *arg, struct hr_diag *diag, struct hr_config *ret_fresh);
        void *reload_arg;
        struct hr_loop *loop;
        struct hr_device **devices;
        const struct hr_config_device **device_configs; /* of each of them */
        uint32_t device_count;
        uint32_t missing_count; /* configured ones that were not there */
        char waiting[HR_WAITING_BYTES]; /* at the start: for which one, and why; "": for none */
        struct hr_fleet *fleet;
        struct hr_engine *engine;
        struct hr_graphs *graphs; /* by digest; thread: engine */
        struct hr_inherited inherited; /* until what is in it has been taken */
        struct hr_heartbeat *heartbeat;
        struct hr_http *http; /* NULL = none */
        struct hr_pressure *pressure; /* NULL = nobody looks */
        struct hr_listener *listeners[3];
        uint32_t listener_count;
        struct hr_list conns, conns_over;
        struct hr_list sessions;
        struct hr_request *requests[HR_REQUEST_BUCKETS]; /* in flight, by connection and id */
        struct hr_list holdings; /* holding.h */
        struct hr_list idle_requests;
        uint32_t idle_request_count;
        struct hr_list deadlines; /* of requests that have one */
        struct hr_list progresses; /* progress.h */
        struct hr_list tap_waits;  /* tap.h */
        uint64_t armed_ns;        /* when the deadline timer goes off; 0 = not armed */
        uint32_t greeting_count;  /* connections without hello */
        uint8_t boot_id[HR_WIRE_BOOT_ID_BYTES];
        uint64_t started_ns;
        uint64_t active_ns; /* last activity, for spinning */
        uint64_t tags;      /* requests so far */
        uint64_t span_seed; /* random: the daemon's spans in traces of its clients are this + tag */
        struct hr_recorder *recorder; /* spans of requests; NULL = none are kept */
        bool draining, cancelled, stopping;
        struct hr_timer *tick; /* connections' deadlines */
        uint64_t ticked_ns;    /* the latest tick, or its timer's start */
        struct hr_timer *deadline_timer, *drain_timer, *progress_timer, *tap_timer;
        struct hr_timer *keep_timer; /* sets that were taken back wait until then */
        bool is_releasing;           /* ... and the engine lets them go */
        struct hr_job releasing;
        struct hr_server_stats stats;
        struct hr_failures failures; /* what of them is logged */
        struct hr_frame_limits frame_limits;
        struct hr_principals *principals;
        struct hr_tls_context *tls_context; /* NULL = no TLS listener */
        uint64_t refusal_ns, refusal_delay_ns; /* the last failed authentication, and how long it
                                                * was put off */
        uint8_t window[HR_WINDOW_BYTES];            /* what a read leaves beyond a body */
        uint8_t landing[HR_LANDING_BYTES]; /* what a read brings of a body that is then written */
        uint8_t scratch[HR_WIRE_MESSAGE_BYTES_MAX]; /* a message being encoded */
};

/* Reads the configuration again, for hr_config_deinit() also on failure; NULL: SIGHUP does
 * nothing. */
typedef hr_status (*hr_reload_fn)(void *arg, struct hr_diag *diag, struct hr_config *ret_fresh);
/* Runs until drained. HR_OK after a drain; otherwise diag says why it could not start or go on. */
HR_NODISCARD hr_status hr_server_run(struct hr_config *config, hr_reload_fn reload, void *arg,
                                     struct hr_diag *diag);

/* A session, or a connection, has gone: maybe the last one of a drain. */
void hr_server_session_gone(struct hr_server *server);
void hr_server_conn_gone(struct hr_server *server);
/* Begins the drain (idempotent). */
void hr_server_drain(struct hr_server *server, const char *why);
/* Of a drain that has begun: what is in flight so much later is cancelled, in place of when the
 * configuration says. */
void hr_server_drain_limit(struct hr_server *server, uint64_t limit_ms);
/* Reads the configuration again: what may change does, what may not is named; a file that is wrong
 * changes nothing. HR_E_INVALID (reason CONFIG), whose words begin with the file's path;
 * HR_E_PRECONDITION while the daemon drains, or where there is nothing to read. */
HR_NODISCARD hr_status hr_server_reconfigure(struct hr_server *server, struct hr_diag *diag,
                                             struct hr_config_changes *ret_changes);
/* A request with a deadline has come. */
void hr_server_deadline_add(struct hr_server *server, struct hr_list *link, uint64_t deadline_ns);
/* A path of a listener does not lead to it. */
bool hr_server_is_astray(const struct hr_server *server);
/* Starts or ends accepting as the number of connections says. */
void hr_server_accept_update(struct hr_server *server);
/* Something waits for its time to pass: the tick goes on. */
void hr_server_tick(struct hr_server *server);
/* A listener cannot accept for now: the next tick lets it try again. */
void hr_server_listener_rests(struct hr_server *server);
