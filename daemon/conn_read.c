/*
 * What comes in from one peer.
 *
 * recvmsg() with two places: the rest of the body that is due, and behind it the server's window,
 * from which headers, messages and what begins the next body are taken. So a large body is written
 * by the kernel to where it is wanted, and a small frame costs one call. What is written through a
 * descriptor (uploads) lands in the server's memory first, as much at once as stays in the
 * processor's cache. A message that has come in part is the only thing a connection buffers.
 */
#include "daemon/conn_priv.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/image.h"
#include "daemon/rpc.h"

#define READ_ROUNDS_MAX 16                 /* reads before others have their turn */
#define READ_BYTES_MAX (UINT64_C(2) << 20) /* likewise */
#define STRANGER_BYTES 64U                  /* read beyond what is due before the hello */

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
        struct hr_frame_header header;
        struct hr_diag diag;

        hr_diag_clear(&diag);
        if (!conn->session) {
                limits.message_bytes_max = HR_DEFAULT_HELLO_BYTES;
                limits.body_bytes_max = 0;
        } else if (!conn->stream.is_tcp) {
                limits.fds_max = HR_FRAME_FDS_MAX;
        }
        if (hr_frame_header_decode(bytes, &limits, &diag, &header) != HR_OK) {
                hr_conn_fail(conn, &diag);
                return;
        }
        conn->header = header;
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

/* `size` bytes of the body, which are not where they belong yet. Without memory its request ends,
 * and the rest of the frame goes nowhere. */
static void conn_body_put(struct hr_conn *conn, const uint8_t *bytes, size_t size) {
        struct hr_diag diag = {0};

        if (!conn->body_to)
                return;
        if (!conn->body_image)
                memcpy(conn->body_to, bytes, size);
        else if (hr_image_write(conn->body_image, conn->body_to, bytes, size, &diag) != HR_OK)
                hr_request_abort(conn->body_request, &diag);
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
                        conn_body_put(conn, at, bytes);
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
        struct hr_diag diag;
        size_t got = 0;

        hr_diag_clear(&diag);
        switch (hr_stream_receive(&conn->stream, parts, part_count, only_buffered, &got)) {
        case HR_STREAM_OK:
                conn->server->stats.bytes_in += got;
                return got;
        case HR_STREAM_LATER:
                if (hr_stream_is_within(&conn->stream)) /* it goes on, or has begun */
                        conn->read_ns = hr_clock_now_ns();
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
                hr_conn_stream_failed(conn);
                break;
        }
        return 0;
}

/* How much of the window a read may fill. Of a stranger no more is taken than what is due, and
 * little beyond it: whoever speaks another protocol, or floods, has not been read when it is cut.
 */
static size_t conn_window_bytes(const struct hr_conn *conn) {
        if (conn->session)
                return HR_WINDOW_BYTES;
        if (conn->stage == HR_CONN_MESSAGE)
                return conn->header.message_bytes - conn->filled + STRANGER_BYTES;
        return HR_FRAME_HEADER_BYTES - conn->filled + STRANGER_BYTES;
}

/* Descriptors come with the bytes of their frame: between frames there is none, and those that a
 * frame has not claimed yet are charged. */
static void conn_look_at_fds(struct hr_conn *conn) {
        const uint32_t count = hr_stream_fd_count(&conn->stream);
        struct hr_diag diag;
        hr_status status = HR_OK;

        if (count == 0 && conn->fds_charged == 0)
                return;
        hr_diag_clear(&diag);
        if (count > conn->fds_charged)
                status = hr_account_charge(NULL, &conn->principal->account,
                                           &conn->server->config->limits, HR_CHARGE_DESCRIPTORS,
                                           count - conn->fds_charged, 0, &diag);
        else
                hr_account_discharge(NULL, &conn->principal->account, HR_CHARGE_DESCRIPTORS,
                                     conn->fds_charged - count);
        if (status == HR_OK)
                conn->fds_charged = count;
        if (status == HR_OK && count > 0 && conn->stage == HR_CONN_HEADER && conn->filled == 0)
                status = hr_fail_reason(&diag, HR_E_PROTOCOL, "BAD_FDS",
                                        "descriptors came that no frame announced");
        if (status != HR_OK)
                hr_conn_fail(conn, &diag);
}

/* The rest of a body that the kernel can write at once to where it belongs, or as much of it as
 * lands; no bytes: there is none, or it is not wanted. */
static struct iovec conn_direct(struct hr_conn *conn) {
        if (conn->stage != HR_CONN_BODY || !conn->body_to)
                return (struct iovec){0};
        if (!conn->body_image)
                return (struct iovec){conn->body_to, conn->body_left};
        return (struct iovec){conn->server->landing, HR_MIN(conn->body_left, HR_LANDING_BYTES)};
}

/* Where the next bytes go: the rest of a body, then, behind its end, the window. */
static size_t conn_read_once(struct hr_conn *conn, bool only_buffered, bool *ret_again) {
        uint8_t *window = conn->server->window;
        const struct iovec place = conn_direct(conn);
        const size_t direct = place.iov_len;
        const bool is_part = direct > 0 && direct < conn->body_left;
        const size_t window_bytes = is_part ? 0 : conn_window_bytes(conn);
        struct iovec parts[2];
        size_t part_count = 0, got;

        if (direct > 0)
                parts[part_count++] = place;
        if (window_bytes > 0)
                parts[part_count++] = (struct iovec){window, window_bytes};
        got = conn_receive(conn, parts, part_count, only_buffered);
        /* The end of a TLS stream may lie behind the last bytes, and no event tells of it. */
        *ret_again = conn->stream.tls ? got > 0 : got == direct + window_bytes;
        if (got == 0)
                return 0;
        conn->read_ns = hr_clock_now_ns();
        conn->server->active_ns = conn->read_ns;
        if (direct > 0 && conn->body_image)
                conn_body_put(conn, place.iov_base, HR_MIN(got, direct));
        if (direct > 0)
                conn_body_arrived(conn, HR_MIN(got, direct));
        if (got > direct)
                conn_consume(conn, window, got - direct);
        conn_look_at_fds(conn);
        return got;
}

void hr_conn_read(struct hr_conn *conn) {
        uint64_t total = 0;
        bool again = true;

        for (int i = 0; i < READ_ROUNDS_MAX && again && total < READ_BYTES_MAX; i++) {
                if (conn->over || conn->stage == HR_CONN_DEAF ||
                    hr_conn_is_clogged(conn))
                        break;
                total += conn_read_once(conn, false, &again);
        }
        /* What TLS has taken from the socket, no event will announce: at most a record or two. */
        while (again && !conn->over && conn->stage != HR_CONN_DEAF)
                (void) conn_read_once(conn, true, &again);
        hr_conn_poll_update(conn);
}

/* After the last frame of a TCP connection: whatever comes is dropped. */
void hr_conn_linger(struct hr_conn *conn) {
        if (!hr_stream_drop(&conn->stream, conn->server->window, HR_WINDOW_BYTES))
                hr_conn_close(conn);
}
