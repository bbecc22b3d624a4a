/*
 * How a connection comes to its end: it has nothing more to say, it broke a rule, its hello was
 * refused, its stream failed, or it was too slow.
 */
#include "daemon/conn_priv.h"

#include "core/clock.h"
#include "daemon/failure.h"
#include "daemon/request.h"

#define LINGER_NS (500 * HR_NS_PER_MS)
#define REFUSAL_GROWTH_MAX 8
#define REFUSAL_MEMORY_NS (10 * HR_NS_PER_S)

void hr_conn_close_if_done(struct hr_conn *conn) {
        if (conn->over || !conn->finishing || conn->request_count > 0 ||
            !hr_list_is_empty(&conn->outputs) || conn->lingering ||
            hr_stream_has_unsent(&conn->stream))
                return;
        if (!conn->stream.is_tcp || conn->eof) {
                if (conn->stream.tls)
                        hr_stream_end(&conn->stream);
                hr_conn_close(conn);
                return;
        }
        /* A TCP socket that is closed with unread bytes sends a reset, which may overtake the last
         * frame: say that nothing more comes, and read until the peer has seen it. */
        hr_stream_end(&conn->stream);
        conn->lingering = true;
        conn->closing_ns = hr_clock_now_ns() + LINGER_NS;
        hr_conn_poll_update(conn);
}

void hr_conn_finish(struct hr_conn *conn) {
        if (conn->over || conn->finishing)
                return;
        conn->finishing = true;
        conn->stage = HR_CONN_DEAF;
        conn->body_to = NULL;
        conn->body_request = NULL;
        HR_LIST_FOR_EACH(link, &conn->requests) {
                struct hr_request *request = HR_CONTAINER_OF(link, struct hr_request, link);

                /* What is still to be received will never come. */
                if (request->phase == HR_REQUEST_RECEIVING)
                        hr_request_stop(request, HR_E_CANCELLED);
        }
        hr_conn_poll_update(conn);
        hr_conn_close_if_done(conn);
}

/* The last frame that a peer gets for no request of its own. */
static void conn_send_failure(struct hr_conn *conn, const struct hr_diag *failure) {
        uint8_t message[HR_WIRE_ERROR_BYTES_MAX];
        size_t bytes = 0;

        if (hr_wire_error_encode(failure, NULL, message, sizeof message, &bytes) == HR_OK)
                hr_conn_send(conn,
                             &(struct hr_send){
                                     .header = {.type = HR_FRAME_GOAWAY | HR_FRAME_REPLY,
                                                .flags = HR_FRAME_ERROR | HR_FRAME_END,
                                                .request_id = HR_FRAME_PUSH_ID,
                                                .timeout_ms = hr_status_grpc_code(failure->status)},
                                     .message = message,
                                     .message_bytes = bytes,
                             });
}

void hr_conn_fail(struct hr_conn *conn, const struct hr_diag *failure) {
        if (conn->over || conn->finishing)
                return;
        conn->server->stats.protocol_errors++;
        hr_failure_log_conn(conn, HR_FAILURE_CUT, "connection cut", failure);
        conn_send_failure(conn, failure);
        hr_conn_finish(conn);
}

void hr_conn_too_often(struct hr_conn *conn, const char *field, uint64_t per_second) {
        struct hr_diag diag = {0};

        if (conn->over || conn->finishing)
                return;
        (void) hr_fail_reason(&diag, HR_E_EXHAUSTED, "RATE", "%s: more than %llu in a second",
                              field, (unsigned long long) per_second);
        diag.field = field;
        diag.limit = per_second;
        diag.retry_after_ms = 1000;
        conn->server->stats.rates_exceeded++;
        hr_failure_log_conn(conn, HR_FAILURE_CUT, "connection cut", &diag);
        conn_send_failure(conn, &diag);
        hr_conn_finish(conn);
}

void hr_conn_revoke(struct hr_conn *conn, bool aborts) {
        struct hr_diag diag = {0};

        if (conn->over || conn->finishing)
                return;
        (void) hr_fail_reason(&diag, HR_E_PERMISSION, "REVOKED",
                              "the access that this connection came in by was revoked");
        HR_LIST_FOR_EACH(link, &conn->requests) {
                struct hr_request *request = HR_CONTAINER_OF(link, struct hr_request, link);

                if (aborts || request->phase == HR_REQUEST_RECEIVING)
                        hr_request_abort(request, &diag);
        }
        conn_send_failure(conn, &diag);
        hr_conn_finish(conn);
}

/* Each refusal soon after the one before it doubles the delay. */
static uint64_t refusal_delay(struct hr_server *server, uint64_t now_ns) {
        uint64_t shortest = server->config->limits.refusal_delay_ns;
        bool again = server->refusal_ns != 0 && now_ns - server->refusal_ns < REFUSAL_MEMORY_NS;

        server->refusal_delay_ns =
                again ? HR_MIN(server->refusal_delay_ns * 2, shortest * REFUSAL_GROWTH_MAX)
                      : shortest;
        server->refusal_ns = now_ns;
        return server->refusal_delay_ns;
}

void hr_conn_refuse(struct hr_conn *conn) {
        uint64_t now_ns = hr_clock_now_ns();
        struct hr_diag diag = {0};

        conn->refuse_ns = now_ns + refusal_delay(conn->server, now_ns);
        conn->stage = HR_CONN_DEAF;
        conn->server->stats.unauthenticated++;
        (void) hr_fail(&diag, HR_E_UNAUTHENTICATED, "nobody has these credentials");
        hr_failure_log_conn(conn, HR_FAILURE_REFUSED, "hello refused: unauthenticated", &diag);
        hr_conn_poll_update(conn);
}

/* The delay is over. */
static void conn_refuse_now(struct hr_conn *conn) {
        struct hr_diag diag = {0};

        conn->refuse_ns = 0;
        (void) hr_fail(&diag, HR_E_UNAUTHENTICATED,
                       "no principal of this daemon has these credentials");
        if (!hr_list_is_empty(&conn->requests))
                hr_request_fail(HR_CONTAINER_OF(conn->requests.next, struct hr_request, link),
                                &diag);
        hr_conn_finish(conn);
}

/* The socket, or TLS on it, is of no use any more. */
void hr_conn_stream_failed(struct hr_conn *conn) {
        const char *words = conn->stream.tls ? hr_tls_words(conn->stream.tls) : "";

        if (*words != '\0') {
                struct hr_diag diag = {0};

                conn->server->stats.protocol_errors++;
                (void) hr_fail_reason(&diag, HR_E_PROTOCOL, "TLS", "%s", words);
                hr_failure_log_conn(conn, HR_FAILURE_CUT, "connection cut", &diag);
        }
        hr_conn_close(conn);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static bool conn_expects_bytes(const struct hr_conn *conn) {
        if (conn->stage == HR_CONN_DEAF)
                return false;
        if (conn->stage != HR_CONN_HEADER || conn->filled > 0 ||
            hr_stream_is_within(&conn->stream))
                return true;
        HR_LIST_FOR_EACH(link, &conn->requests) {
                struct hr_request *request = HR_CONTAINER_OF(link, struct hr_request, link);

                if (request->phase == HR_REQUEST_RECEIVING &&
                    request->body_granted > request->body_received)
                        return true;
        }
        return false;
}

static bool is_past(uint64_t since_ns, uint64_t limit_ns, uint64_t now_ns) {
        return now_ns > since_ns && now_ns - since_ns > limit_ns;
}

void hr_conn_forgive(struct hr_conn *conn, uint64_t away_ns, uint64_t now_ns) {
        uint64_t *const times[] = {&conn->opened_ns, &conn->read_ns, &conn->write_ns,
                                   &conn->asked_ns};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(times); i++)
                *times[i] = HR_MIN(*times[i] + away_ns, now_ns);
        conn->closing_ns += away_ns;
}

void hr_conn_tick(struct hr_conn *conn, uint64_t now_ns) {
        const struct hr_limits *limits = &conn->server->config->limits;
        struct hr_diag diag = {0};

        if (conn->over)
                return;
        if ((conn->lingering && now_ns > conn->closing_ns) ||
            (conn->eof && hr_stream_peer_vanished(&conn->stream)) ||
            ((!hr_list_is_empty(&conn->outputs) || hr_stream_has_unsent(&conn->stream)) &&
             is_past(conn->write_ns, limits->output_timeout_ns, now_ns))) {
                hr_conn_close(conn);
                return;
        }
        if (conn->finishing)
                return;
        if (conn->refuse_ns != 0) {
                if (now_ns >= conn->refuse_ns)
                        conn_refuse_now(conn);
                return;
        }
        if (hr_conn_is_clogged(conn)) /* what it sends is not read meanwhile */
                conn->read_ns = now_ns;
        if (!conn->session && is_past(conn->opened_ns, limits->hello_timeout_ns, now_ns)) {
                (void) hr_fail_reason(
                        &diag, HR_E_UNAUTHENTICATED, "HELLO_TIMEOUT", "no hello within %llu ms",
                        (unsigned long long) (limits->hello_timeout_ns / HR_NS_PER_MS));
                hr_conn_fail(conn, &diag);
        } else if (conn->session &&
                   is_past(HR_MAX(conn->read_ns, conn->asked_ns), limits->progress_timeout_ns,
                           now_ns) &&
                   conn_expects_bytes(conn)) {
                (void) hr_fail_reason(&diag, HR_E_DEADLINE, "PROGRESS",
                                      "a frame or an upload stopped half-way");
                hr_conn_fail(conn, &diag);
        }
}
