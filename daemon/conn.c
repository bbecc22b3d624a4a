/*
 * One peer's bytes.
 *
 * Reading. recvmsg() with two places: the rest of the body that is due, and behind it the server's
 * window, from which headers, messages and what begins the next body are taken. So a large body is
 * written by the kernel to where it is wanted, and a small frame costs one call. A message that has
 * come in part is the only thing a connection buffers.
 *
 * Writing. While nothing is queued a frame goes straight out with its message and body in one call.
 * What the socket does not take becomes a struct output. Frames of a long reply take turns with the
 * other outputs: a finished frame puts its output at the end of the queue.
 *
 * Ends. hr_conn_close() only marks; the taking down happens in hr_conns_reap(), outside of every
 * call chain that may still hold the connection or one of its requests. The handle's memory goes in
 * its close callback.
 */
#include "daemon/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/request.h"
#include "daemon/rpc.h"

#define READ_ROUNDS_MAX 16                  /* reads before others have their turn */
#define READ_BYTES_MAX (UINT64_C(2) << 20)  /* likewise */
#define WRITE_BYTES_MAX (UINT64_C(4) << 20) /* written before others have their turn */
#define LINGER_NS (500 * HR_NS_PER_MS)
#define DATA_MESSAGE_BYTES 16U
#define REFUSAL_GROWTH_MAX 8
#define REFUSAL_MEMORY_NS (10 * HR_NS_PER_S)

struct output {
        struct hr_list link;
        uint64_t request_id;
        const uint8_t *body;
        uint64_t body_bytes;  /* of the whole reply */
        uint64_t frame_first; /* offset of this frame's part of the body */
        uint64_t frame_bytes, frame_sent;
        void (*release)(void *arg);
        void *arg;
        size_t head_bytes, head_sent;
        uint8_t head[]; /* header and message; room for a DATA frame's */
};

static void conn_poll_cb(uv_poll_t *handle, int status, int events);
static void conn_close_if_done(struct hr_conn *conn);

static uint64_t output_limit(const struct hr_conn *conn) {
        return conn->server->config->limits.output_queue_bytes;
}

/* Asks for the events that are wanted now. */
static void conn_poll_update(struct hr_conn *conn) {
        int events = 0;

        if (conn->over)
                return;
        if (conn->lingering ||
            (conn->stage != HR_CONN_DEAF && !conn->eof && conn->output_bytes <= output_limit(conn)))
                events |= UV_READABLE;
        if (!hr_list_is_empty(&conn->outputs) || hr_stream_has_unsent(&conn->stream))
                events |= UV_WRITABLE;
        if (events == conn->polled)
                return;
        conn->polled = events;
        if (events ? uv_poll_start(&conn->poll, events, conn_poll_cb) : uv_poll_stop(&conn->poll))
                hr_conn_close(conn);
}

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_conn_open(struct hr_server *server, int fd, bool is_tcp,
                       struct hr_tls_context *context, struct hr_diag *diag) {
        struct hr_conn *conn = calloc(1, sizeof *conn);
        hr_status status;

        if (!conn) {
                (void) close(fd);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a connection");
        }
        conn->server = server;
        status = hr_stream_init(&conn->stream, fd, is_tcp, context, NULL);
        if (status == HR_OK)
                status = is_tcp ? hr_principal_of_tcp(server->principals, NULL, &conn->principal)
                                : hr_principal_of_unix(server->principals, fd, NULL,
                                                       &conn->principal);
        if (status != HR_OK && status != HR_E_UNAUTHENTICATED) { /* that may show a token */
                hr_stream_deinit(&conn->stream);
                free(conn);
                return hr_fail(diag, status, "no memory for a connection");
        }
        hr_list_init(&conn->requests);
        hr_list_init(&conn->outputs);
        conn->opened_ns = conn->read_ns = conn->write_ns = hr_clock_now_ns();
        if (uv_poll_init(&server->loop, &conn->poll, fd) != 0) {
                hr_stream_deinit(&conn->stream);
                conn->principal = hr_principal_unref(conn->principal);
                free(conn);
                return hr_fail(diag, HR_E_UNAVAILABLE, "a socket cannot be watched");
        }
        conn->poll.data = conn;
        hr_list_append(&server->conns, &conn->link);
        server->stats.connections++;
        server->stats.connections_total++;
        server->greeting_count++;
        conn_poll_update(conn);
        return HR_OK;
}

void hr_conn_close(struct hr_conn *conn) {
        if (conn->over)
                return;
        conn->over = true;
        conn->stage = HR_CONN_DEAF;
        conn->body_to = NULL;
        conn->body_request = NULL;
        (void) uv_poll_stop(&conn->poll);
        hr_list_append(&conn->server->conns_over, &conn->over_link);
}

static void output_drop(struct hr_conn *conn, struct output *output) {
        hr_list_remove(&output->link);
        conn->output_bytes -= (output->head_bytes - output->head_sent) +
                              (output->body_bytes - output->frame_first - output->frame_sent);
        if (output->release)
                output->release(output->arg);
        free(output);
}

static void conn_freed_cb(uv_handle_t *handle) {
        struct hr_conn *conn = handle->data;
        struct hr_server *server = conn->server;

        free(conn);
        hr_server_conn_gone(server);
}

static void conn_leave_session(struct hr_conn *conn) {
        struct hr_session *session = conn->session;

        if (!session) {
                conn->server->greeting_count--;
                return;
        }
        hr_list_remove(&conn->session_link);
        conn->session = NULL;
        hr_account_discharge(NULL, &conn->principal->account, HR_CHARGE_CONNECTIONS, 1);
        if (hr_list_is_empty(&session->conns))
                hr_session_left(session);
        (void) hr_session_unref(session);
}

static void conn_take_down(struct hr_conn *conn) {
        struct hr_list *link;

        while ((link = conn->requests.next) != &conn->requests)
                hr_request_orphan(HR_CONTAINER_OF(link, struct hr_request, link));
        while ((link = conn->outputs.next) != &conn->outputs)
                output_drop(conn, HR_CONTAINER_OF(link, struct output, link));
        HR_ASSERT(conn->output_bytes == 0 && conn->request_count == 0);
        free(conn->message);
        conn->message = NULL;
        conn_leave_session(conn);
        conn->principal = hr_principal_unref(conn->principal);
        hr_list_remove(&conn->link);
        conn->server->stats.connections--;
        uv_close((uv_handle_t *) &conn->poll, conn_freed_cb);
        hr_stream_deinit(&conn->stream); /* not before: the number may be somebody else's by then */
        hr_server_accept_update(conn->server);
}

void hr_conns_reap(struct hr_server *server) {
        struct hr_list *link;

        while ((link = hr_list_pop(&server->conns_over)))
                conn_take_down(HR_CONTAINER_OF(link, struct hr_conn, over_link));
}

static void conn_close_if_done(struct hr_conn *conn) {
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
        conn_poll_update(conn);
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
        conn_poll_update(conn);
        conn_close_if_done(conn);
}

/* The first few, then ever fewer: peers that break rules on purpose cannot fill the log. */
static void conn_log_failure(const struct hr_conn *conn, const struct hr_diag *failure) {
        const uint64_t count = conn->server->stats.protocol_errors;
        const bool shown = count <= 32 || (count & (count - 1)) == 0;

        hr_log(shown ? HR_LOG_NOTICE : HR_LOG_DEBUG, "conn",
               "connection cut: %s (%.120s) %s principal=\"%s\" count=%llu",
               hr_diag_reason(failure), failure->words, hr_stream_name(&conn->stream),
               conn->principal ? conn->principal->name : "", (unsigned long long) count);
}

void hr_conn_fail(struct hr_conn *conn, const struct hr_diag *failure) {
        uint8_t message[HR_WIRE_ERROR_BYTES_MAX];
        size_t bytes = 0;

        if (conn->over || conn->finishing)
                return;
        conn->server->stats.protocol_errors++;
        conn_log_failure(conn, failure);
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

        conn->refuse_ns = now_ns + refusal_delay(conn->server, now_ns);
        conn->stage = HR_CONN_DEAF;
        conn->server->stats.unauthenticated++;
        hr_log(HR_LOG_NOTICE, "conn", "hello refused: unauthenticated %s count=%llu",
               hr_stream_name(&conn->stream),
               (unsigned long long) conn->server->stats.unauthenticated);
        conn_poll_update(conn);
}

/* The delay is over. */
static void conn_refuse_now(struct hr_conn *conn) {
        struct hr_diag diag = {0};

        conn->refuse_ns = 0;
        (void) hr_fail(&diag, HR_E_UNAUTHENTICATED,
                       "no principal of this daemon has these credentials");
        if (!hr_list_is_empty(&conn->requests))
                hr_request_fail(
                        HR_CONTAINER_OF(conn->requests.next, struct hr_request, link), &diag);
        hr_conn_finish(conn);
}

/* The socket, or TLS on it, is of no use any more. */
static void conn_stream_failed(struct hr_conn *conn) {
        const char *words = conn->stream.tls ? hr_tls_words(conn->stream.tls) : "";

        if (*words != '\0') {
                struct hr_diag diag = {0};

                conn->server->stats.protocol_errors++;
                (void) hr_fail_reason(&diag, HR_E_PROTOCOL, "TLS", "%s", words);
                conn_log_failure(conn, &diag);
        }
        hr_conn_close(conn);
}

/* ---- requests in flight ---------------------------------------------------------------------- */

static struct hr_request **conn_bucket(struct hr_conn *conn, uint64_t id) {
        /* Clients count up; the multiplication spreads any other habit. */
        return &conn->buckets[(id * UINT64_C(0x9E3779B97F4A7C15) >> 32) % HR_CONN_BUCKETS];
}

struct hr_request *hr_conn_find(struct hr_conn *conn, uint64_t id) {
        struct hr_request *request = *conn_bucket(conn, id);

        while (request && request->id != id)
                request = request->next;
        return request;
}

void hr_conn_add(struct hr_conn *conn, struct hr_request *request) {
        struct hr_request **bucket = conn_bucket(conn, request->id);

        request->next = *bucket;
        *bucket = request;
        hr_list_append(&conn->requests, &request->link);
        conn->request_count++;
        conn->server->stats.requests_in_flight++;
}

void hr_conn_remove(struct hr_conn *conn, struct hr_request *request) {
        struct hr_request **at = conn_bucket(conn, request->id);

        while (*at != request) {
                HR_ASSERT(*at);
                at = &(*at)->next;
        }
        *at = request->next;
        request->next = NULL;
        hr_list_remove(&request->link);
        if (conn->body_request == request) {
                conn->body_request = NULL;
                conn->body_to = NULL;
        }
        HR_ASSERT(conn->request_count > 0);
        conn->request_count--;
        conn->server->stats.requests_in_flight--;
        conn_close_if_done(conn);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* Bytes the socket took; 0 when it takes none now or the connection has ended. */
static size_t conn_write(struct hr_conn *conn, struct iovec *parts, size_t part_count) {
        size_t sent = 0;

        switch (hr_stream_send(&conn->stream, parts, part_count, &sent)) {
        case HR_STREAM_OK:
                conn->server->stats.bytes_out += sent;
                conn->write_ns = hr_clock_now_ns();
                break;
        case HR_STREAM_LATER:
                break;
        default:
                conn_stream_failed(conn);
                return 0;
        }
        return sent;
}

/* Writes the head of the next DATA frame of a long reply. */
static void output_next_frame(struct hr_conn *conn, struct output *output) {
        uint64_t left;
        size_t message_bytes = 0;

        output->frame_first += output->frame_bytes;
        left = output->body_bytes - output->frame_first;
        output->frame_bytes = HR_MIN(left, conn->server->config->limits.body_bytes);
        output->frame_sent = 0;
        if (hr_wire_varint_encode(output->frame_first, output->head + HR_FRAME_HEADER_BYTES,
                                  DATA_MESSAGE_BYTES, NULL, &message_bytes) != HR_OK)
                HR_ASSERT(false); /* eleven bytes always fit */
        hr_frame_header_encode(
                &(struct hr_frame_header){
                        .type = HR_FRAME_DATA | HR_FRAME_REPLY,
                        .flags = output->frame_bytes < left ? HR_FRAME_MORE : HR_FRAME_END,
                        .request_id = output->request_id,
                        .message_bytes = (uint32_t) message_bytes,
                        .body_bytes = (uint32_t) output->frame_bytes,
                },
                output->head);
        output->head_bytes = HR_FRAME_HEADER_BYTES + message_bytes;
        output->head_sent = 0;
        conn->output_bytes += output->head_bytes;
        conn->server->stats.frames_out++;
}

/* Counts `sent` bytes off the first output. True when its frame is complete. */
static bool output_advance(struct hr_conn *conn, struct output *output, size_t sent) {
        size_t head = HR_MIN(sent, output->head_bytes - output->head_sent);

        conn->output_bytes -= sent;
        output->head_sent += head;
        output->frame_sent += sent - head;
        HR_ASSERT(output->frame_sent <= output->frame_bytes);
        return output->head_sent == output->head_bytes && output->frame_sent == output->frame_bytes;
}

static void conn_flush(struct hr_conn *conn) {
        uint64_t written = 0;

        if (hr_stream_has_unsent(&conn->stream)) {
                if (hr_stream_flush(&conn->stream) == HR_STREAM_FAILED)
                        conn_stream_failed(conn);
                conn->write_ns = hr_clock_now_ns();
        }
        while (!conn->over && !hr_list_is_empty(&conn->outputs) && written < WRITE_BYTES_MAX) {
                struct output *output = HR_CONTAINER_OF(conn->outputs.next, struct output, link);
                struct iovec parts[2] = {
                        {output->head + output->head_sent, output->head_bytes - output->head_sent},
                        {(uint8_t *) output->body + output->frame_first + output->frame_sent,
                         output->frame_bytes - output->frame_sent},
                };
                size_t sent = conn_write(conn, parts, 2);

                if (sent == 0)
                        break;
                written += sent;
                if (!output_advance(conn, output, sent))
                        continue;
                if (output->frame_first + output->frame_bytes == output->body_bytes) {
                        output_drop(conn, output);
                        continue;
                }
                output_next_frame(conn, output);
                hr_list_remove(&output->link);
                hr_list_append(&conn->outputs, &output->link);
        }
        conn_poll_update(conn);
        conn_close_if_done(conn);
}

/* Queues what is left of a frame of which `sent` bytes are out. */
static void conn_queue(struct hr_conn *conn, const struct hr_send *send,
                       const struct hr_frame_header *header, size_t sent) {
        size_t head_bytes = HR_FRAME_HEADER_BYTES + send->message_bytes;
        size_t room = HR_MAX(head_bytes, (size_t) HR_FRAME_HEADER_BYTES + DATA_MESSAGE_BYTES);
        struct output *output = malloc(sizeof *output + room);

        if (!output) {
                hr_conn_close(conn);
                if (send->release)
                        send->release(send->arg);
                return;
        }
        *output = (struct output){
                .request_id = header->request_id,
                .body = send->body,
                .body_bytes = send->body_bytes,
                .frame_bytes = header->body_bytes,
                .release = send->release,
                .arg = send->arg,
                .head_bytes = head_bytes,
        };
        hr_frame_header_encode(header, output->head);
        if (send->message_bytes > 0)
                memcpy(output->head + HR_FRAME_HEADER_BYTES, send->message, send->message_bytes);
        hr_list_append(&conn->outputs, &output->link);
        conn->output_bytes += head_bytes + send->body_bytes;
        if (sent > 0 && output_advance(conn, output, sent))
                output_next_frame(conn, output);
        conn_poll_update(conn);
}

void hr_conn_send(struct hr_conn *conn, const struct hr_send *send) {
        struct hr_frame_header header = send->header;
        uint8_t head[HR_FRAME_HEADER_BYTES];
        size_t total, sent = 0;

        if (conn->over || conn->lingering) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        HR_ASSERT(send->message_bytes <= HR_WIRE_MESSAGE_BYTES_MAX);
        header.message_bytes = (uint32_t) send->message_bytes;
        header.body_bytes =
                (uint32_t) HR_MIN(send->body_bytes, conn->server->config->limits.body_bytes);
        if (header.body_bytes < send->body_bytes)
                header.flags = (uint16_t) ((header.flags | HR_FRAME_MORE) & ~HR_FRAME_END);
        conn->server->stats.frames_out++;
        total = HR_FRAME_HEADER_BYTES + send->message_bytes + header.body_bytes;
        if (hr_list_is_empty(&conn->outputs)) {
                struct iovec parts[3] = {
                        {head, sizeof head},
                        {(void *) send->message, send->message_bytes},
                        {(void *) send->body, header.body_bytes},
                };

                hr_frame_header_encode(&header, head);
                conn->write_ns = hr_clock_now_ns();
                sent = conn_write(conn, parts, header.body_bytes ? 3 : 2);
        }
        if (sent == total && header.body_bytes == send->body_bytes) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        if (conn->over) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        conn_queue(conn, send, &header, sent);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void conn_frame_done(struct hr_conn *conn) {
        if (conn->stage == HR_CONN_DEAF)
                return;
        conn->stage = HR_CONN_HEADER;
        conn->filled = 0;
}

/* A whole message is at hand. */
static void conn_message(struct hr_conn *conn, const uint8_t *message) {
        bool go_on, may_hold_token = !conn->session;

        conn->server->stats.frames_in++;
        conn->body_to = NULL;
        conn->body_request = NULL;
        conn->body_left = conn->header.body_bytes;
        conn->stage = HR_CONN_BODY;
        go_on = hr_rpc_message(conn, (struct hr_wire_span){message, conn->header.message_bytes});
        if (may_hold_token && message)
                explicit_bzero((void *) message, conn->header.message_bytes);
        free(conn->message);
        conn->message = NULL;
        if (!go_on || conn->stage == HR_CONN_DEAF || conn->body_left > 0)
                return;
        hr_rpc_body(conn);
        conn_frame_done(conn);
}

static void conn_header(struct hr_conn *conn, const uint8_t *bytes) {
        struct hr_frame_limits limits = conn->server->frame_limits;
        struct hr_diag diag = {0};

        if (!conn->session) {
                limits.message_bytes_max = HR_DEFAULT_HELLO_BYTES;
                limits.body_bytes_max = 0;
        }
        if (hr_frame_header_decode(bytes, &limits, &diag, &conn->header) != HR_OK) {
                hr_conn_fail(conn, &diag);
                return;
        }
        if (conn->header.request_id & HR_FRAME_PUSH_ID) {
                (void) hr_fail_reason(&diag, HR_E_PROTOCOL, "BAD_ID",
                                      "ids with the top bit are the daemon's");
                hr_conn_fail(conn, &diag);
                return;
        }
        conn->stage = HR_CONN_MESSAGE;
        conn->filled = 0;
        if (conn->header.message_bytes == 0)
                conn_message(conn, NULL);
}

/* Takes a fixed-size piece from the front of the input: directly when it is whole there, else
 * through `buffer`. NULL: not yet complete. */
static const uint8_t *conn_piece(struct hr_conn *conn, const uint8_t **at, size_t *left,
                                 uint8_t *buffer, uint32_t wanted) {
        const uint8_t *piece;
        size_t taken;

        if (conn->filled == 0 && *left >= wanted) {
                piece = *at;
                taken = wanted;
        } else {
                taken = HR_MIN(*left, (size_t) wanted - conn->filled);
                memcpy(buffer + conn->filled, *at, taken);
                conn->filled += (uint32_t) taken;
                piece = conn->filled == wanted ? buffer : NULL;
        }
        *at += taken;
        *left -= taken;
        return piece;
}

static void conn_consume_message(struct hr_conn *conn, const uint8_t **at, size_t *left) {
        uint32_t wanted = conn->header.message_bytes;
        const uint8_t *piece;

        if (conn->filled == 0 && *left < wanted) {
                conn->message = malloc(wanted);
                if (!conn->message) {
                        hr_conn_close(conn);
                        return;
                }
        }
        piece = conn_piece(conn, at, left, conn->message, wanted);
        if (piece)
                conn_message(conn, piece);
}

/* `bytes` of the body have arrived, already where they belong. */
static void conn_body_arrived(struct hr_conn *conn, uint64_t bytes) {
        conn->body_left -= bytes;
        if (conn->body_to)
                conn->body_to += bytes;
        if (conn->body_left == 0) {
                hr_rpc_body(conn);
                conn_frame_done(conn);
        }
}

static void conn_consume(struct hr_conn *conn, const uint8_t *at, size_t left) {
        while (left > 0 && conn->stage != HR_CONN_DEAF) {
                const uint8_t *piece;
                size_t bytes;

                switch (conn->stage) {
                case HR_CONN_HEADER:
                        piece = conn_piece(conn, &at, &left, conn->head, HR_FRAME_HEADER_BYTES);
                        if (piece)
                                conn_header(conn, piece);
                        break;
                case HR_CONN_MESSAGE:
                        conn_consume_message(conn, &at, &left);
                        break;
                case HR_CONN_BODY:
                        bytes = HR_MIN(conn->body_left, left);
                        if (conn->body_to)
                                memcpy(conn->body_to, at, bytes);
                        at += bytes;
                        left -= bytes;
                        conn_body_arrived(conn, bytes);
                        break;
                case HR_CONN_DEAF:
                        break;
                }
        }
}

/* What the stream has, at most `parts`; 0 when there is nothing (more) to do with it now. */
static size_t conn_receive(struct hr_conn *conn, struct iovec *parts, size_t part_count,
                           bool only_buffered) {
        struct hr_diag diag = {0};
        size_t got = 0;

        switch (hr_stream_receive(&conn->stream, parts, part_count, only_buffered, &got)) {
        case HR_STREAM_OK:
                conn->server->stats.bytes_in += got;
                return got;
        case HR_STREAM_LATER:
                break;
        case HR_STREAM_END:
                conn->eof = true;
                if (hr_stream_peer_vanished(&conn->stream))
                        hr_conn_close(conn);
                else
                        hr_conn_finish(conn);
                break;
        case HR_STREAM_DESCRIPTORS:
                (void) hr_fail_reason(&diag, HR_E_PROTOCOL, "BAD_FDS",
                                      "descriptors came that no frame announced");
                hr_conn_fail(conn, &diag);
                break;
        case HR_STREAM_FAILED:
                conn_stream_failed(conn);
                break;
        }
        return 0;
}

/* Where the next bytes go: the rest of a body, then the window. */
static size_t conn_read_once(struct hr_conn *conn, bool only_buffered, bool *ret_again) {
        uint8_t *window = conn->server->window;
        struct iovec parts[2];
        size_t part_count = 0, direct = 0, got;

        if (conn->stage == HR_CONN_BODY && conn->body_to) {
                direct = conn->body_left;
                parts[part_count++] = (struct iovec){conn->body_to, direct};
        }
        parts[part_count++] = (struct iovec){window, HR_WINDOW_BYTES};
        got = conn_receive(conn, parts, part_count, only_buffered);
        /* The end of a TLS stream may lie behind the last bytes, and no event tells of it. */
        *ret_again = conn->stream.tls ? got > 0 : got == direct + HR_WINDOW_BYTES;
        if (got == 0)
                return 0;
        conn->read_ns = hr_clock_now_ns();
        conn->server->active_ns = conn->read_ns;
        if (direct > 0)
                conn_body_arrived(conn, HR_MIN(got, direct));
        if (got > direct)
                conn_consume(conn, window, got - direct);
        return got;
}

static void conn_read(struct hr_conn *conn) {
        uint64_t total = 0;
        bool again = true;

        for (int i = 0; i < READ_ROUNDS_MAX && again && total < READ_BYTES_MAX; i++) {
                if (conn->over || conn->stage == HR_CONN_DEAF ||
                    conn->output_bytes > output_limit(conn))
                        break;
                total += conn_read_once(conn, false, &again);
        }
        /* What TLS has taken from the socket, no event will announce: at most a record or two. */
        while (again && !conn->over && conn->stage != HR_CONN_DEAF)
                (void) conn_read_once(conn, true, &again);
        conn_poll_update(conn);
}

/* After the last frame of a TCP connection: whatever comes is dropped. */
static void conn_linger(struct hr_conn *conn) {
        ssize_t got = recv(conn->stream.fd, conn->server->window, HR_WINDOW_BYTES, MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
                hr_conn_close(conn);
}

static void conn_poll_cb(uv_poll_t *handle, int status, int events) {
        struct hr_conn *conn = handle->data;

        if (status < 0) {
                hr_conn_close(conn);
                return;
        }
        if (events & UV_WRITABLE)
                conn_flush(conn);
        if (conn->over || !(events & UV_READABLE))
                return;
        if (conn->lingering)
                conn_linger(conn);
        else
                conn_read(conn);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

static bool conn_expects_bytes(const struct hr_conn *conn) {
        if (conn->stage == HR_CONN_DEAF)
                return false;
        if (conn->stage != HR_CONN_HEADER || conn->filled > 0)
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
        if (!conn->session && is_past(conn->opened_ns, limits->hello_timeout_ns, now_ns)) {
                (void) hr_fail_reason(
                        &diag, HR_E_UNAUTHENTICATED, "HELLO_TIMEOUT", "no hello within %llu ms",
                        (unsigned long long) (limits->hello_timeout_ns / HR_NS_PER_MS));
                hr_conn_fail(conn, &diag);
        } else if (conn->session && conn->output_bytes <= output_limit(conn) &&
                   is_past(conn->read_ns, limits->progress_timeout_ns, now_ns) &&
                   conn_expects_bytes(conn)) {
                (void) hr_fail_reason(&diag, HR_E_DEADLINE, "PROGRESS",
                                      "a frame or an upload stopped half-way");
                hr_conn_fail(conn, &diag);
        }
}
