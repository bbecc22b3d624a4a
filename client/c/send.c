/*
 * Sending: frames, and bodies under credit.
 *
 * A thread that waits to send reads too, unless another one does, so that two full socket buffers
 * cannot block each other. A frame goes out whole or the connection ends.
 */
#include "client/c/channel_priv.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#define PIECES_MAX 510 /* of a body in one frame: with header and message half of IOV_MAX */

/* ---- sending --------------------------------------------------------------------------------- */

/* Waits until the stream takes bytes, reading meanwhile unless another thread does. */
static void wait_writable(struct hr_channel *channel, int64_t deadline_ns) {
        struct pollfd ready = {.fd = channel->transport.poll_fd, .events = POLLOUT};
        bool mine;
        int ms = HR_MIN(hr_client_poll_ms(deadline_ns), 100);

        (void) pthread_mutex_lock(&channel->state);
        mine = !channel->reading;
        channel->reading = true;
        (void) pthread_mutex_unlock(&channel->state);
        if (mine)
                ready.events |= POLLIN;
        (void) poll(&ready, 1, ms);
        if (!mine)
                return;
        (void) pthread_mutex_lock(&channel->state);
        if (ready.revents & ~POLLOUT)
                hr_channel_receive(channel, NULL);
        channel->reading = false;
        hr_channel_hand_over(channel);
        (void) pthread_mutex_unlock(&channel->state);
}

static bool channel_failure(struct hr_channel *channel, struct headrace_error *error) {
        bool failed;

        (void) pthread_mutex_lock(&channel->state);
        failed = channel->failed;
        if (failed && error)
                *error = channel->failure;
        (void) pthread_mutex_unlock(&channel->state);
        return failed;
}

static void transport_broken(struct hr_channel *channel, int number) {
        (void) pthread_mutex_lock(&channel->state);
        if (!channel->reading) /* what the daemon said last may explain it */
                hr_channel_receive(channel, NULL);
        hr_channel_break_transport(channel, number);
        (void) pthread_mutex_unlock(&channel->state);
}

/* No more bytes can be sent in time; half a frame ends the connection. */
static enum headrace_status send_too_late(struct hr_channel *channel, bool begun,
                                          struct headrace_error *error) {
        struct headrace_error late;

        (void) hr_client_fail(&late, HEADRACE_DEADLINE, "DEADLINE",
                              "the daemon takes no more bytes");
        if (begun) {
                (void) pthread_mutex_lock(&channel->state);
                hr_channel_break(channel, &late);
                (void) pthread_mutex_unlock(&channel->state);
        }
        if (error)
                *error = late;
        return late.status;
}

/* Takes `bytes` bytes off the parts; returns how many parts are left behind. */
static size_t parts_advance(struct iovec *parts, size_t bytes) {
        size_t done = 0;

        while (bytes) {
                size_t taken = HR_MIN(bytes, parts[done].iov_len);

                parts[done].iov_base = (uint8_t *) parts[done].iov_base + taken;
                parts[done].iov_len -= taken;
                bytes -= taken;
                if (!parts[done].iov_len)
                        done++;
        }
        return done;
}

/* One frame: a header, a message, pieces of a body, descriptors. */
struct frame {
        struct hr_frame_header header;
        const uint8_t *message;
        const struct iovec *pieces;
        size_t piece_count;
        const int *fds; /* header.n_fds of them */
};

/* Sends all parts, which it consumes, and what the transport has kept of them; the frame's
 * descriptors with the first byte. `sending` held. */
static enum headrace_status send_all(struct hr_channel *channel, const struct frame *frame,
                                     struct iovec *parts, size_t count, int64_t deadline_ns,
                                     struct headrace_error *error) {
        const struct hr_transport *transport = &channel->transport;
        struct headrace_error failure;
        bool begun = false;

        for (;;) {
                int64_t sent;

                for (; count && !parts->iov_len; parts++)
                        count--;
                if (!count && !transport->flush)
                        return HEADRACE_OK;
                if (channel_failure(channel, &failure)) {
                        if (error)
                                *error = failure;
                        return failure.status;
                }
                if (frame->header.n_fds && !begun)
                        sent = transport->send_with(transport->data, parts, count, frame->fds,
                                                    frame->header.n_fds);
                else
                        sent = count ? transport->send(transport->data, parts, count)
                                     : transport->flush(transport->data);
                if (!count && !sent)
                        return HEADRACE_OK;
                if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
                        transport_broken(channel, errno);
                        continue;
                }
                if (sent > 0) {
                        size_t done = parts_advance(parts, (size_t) sent);

                        begun = true;
                        parts += done;
                        count -= done;
                        continue;
                }
                if (hr_client_is_past(deadline_ns))
                        return send_too_late(channel, begun, error);
                wait_writable(channel, deadline_ns);
        }
}

/* What is left of a request's body. */
struct body {
        const struct iovec *parts;
        size_t count, offset; /* offset into parts[0] */
};

static uint64_t parts_bytes(const struct iovec *parts, size_t count) {
        uint64_t bytes = 0;

        for (size_t i = 0; i < count; i++)
                bytes += parts[i].iov_len;
        return bytes;
}

/* Takes up to `bytes` bytes and PIECES_MAX pieces off the body; returns how many pieces
 * and, in *ret_bytes, how many bytes. */
static size_t body_take(struct body *body, uint64_t bytes, struct iovec *pieces,
                        uint64_t *ret_bytes) {
        size_t count = 0;

        *ret_bytes = 0;
        while (body->count && bytes && count < PIECES_MAX) {
                size_t left = body->parts->iov_len - body->offset;
                size_t taken = (size_t) HR_MIN((uint64_t) left, bytes);

                if (taken)
                        pieces[count++] = (struct iovec){
                                (uint8_t *) body->parts->iov_base + body->offset, taken};
                *ret_bytes += taken;
                bytes -= taken;
                body->offset += taken;
                if (body->offset == body->parts->iov_len) {
                        body->parts++;
                        body->count--;
                        body->offset = 0;
                }
        }
        return count;
}

static void body_skip(struct body *body, uint64_t bytes) {
        for (; body->count && bytes >= body->parts->iov_len - body->offset; body->count--) {
                bytes -= body->parts->iov_len - body->offset;
                body->parts++;
                body->offset = 0;
        }
        body->offset += (size_t) bytes;
}

static enum headrace_status send_frame(struct hr_channel *channel, const struct frame *frame,
                                       int64_t deadline_ns, struct headrace_error *error) {
        uint8_t head[HR_FRAME_HEADER_BYTES];
        struct iovec parts[PIECES_MAX + 2] = {
                {head, sizeof head},
                {(void *) (uintptr_t) frame->message, frame->header.message_bytes},
        };
        enum headrace_status status;

        HR_ASSERT(frame->piece_count <= PIECES_MAX);
        hr_frame_header_encode(&frame->header, head);
        if (frame->piece_count)
                memcpy(parts + 2, frame->pieces, frame->piece_count * sizeof *frame->pieces);
        if (!hr_client_lock(&channel->sending, deadline_ns))
                return send_too_late(channel, false, error);
        status = send_all(channel, frame, parts, frame->piece_count + 2, deadline_ns, error);
        (void) pthread_mutex_unlock(&channel->sending);
        return status;
}

/* A piece of a body: DATA at that offset of its sequence. */
static enum headrace_status send_data(struct hr_channel *channel, const struct hr_call *call,
                                      uint64_t offset, const struct iovec *pieces, size_t count,
                                      uint64_t bytes, bool is_last, struct headrace_error *error) {
        uint8_t message[16];
        struct frame frame = {
                .header = {.type = HR_FRAME_DATA,
                           .flags = is_last ? HR_FRAME_END : HR_FRAME_MORE,
                           .request_id = call->id,
                           .body_bytes = (uint32_t) bytes},
                .message = message,
                .pieces = pieces,
                .piece_count = count,
        };
        size_t message_bytes;

        if (hr_wire_varint_encode(offset, message, sizeof message, NULL, &message_bytes) != HR_OK)
                return hr_client_fail_memory(error);
        frame.header.message_bytes = (uint32_t) message_bytes;
        return send_frame(channel, &frame, call->deadline_ns, error);
}

/* Waits for credit. OK with *ret_bytes 0: the call has ended without wanting more. */
static enum headrace_status wait_credit(struct hr_channel *channel, struct hr_call *call,
                                        uint64_t wanted, struct headrace_error *error,
                                        uint64_t *ret_bytes) {
        enum headrace_status status = HEADRACE_OK;

        (void) pthread_mutex_lock(&channel->state);
        while (!call->ended && !call->credit && !channel->failed &&
               !hr_client_is_past(call->deadline_ns))
                hr_channel_wait_some(channel, call, call->deadline_ns);
        if (channel->failed && !call->ended) {
                status = channel->failure.status;
                if (error)
                        *error = channel->failure;
        } else if (!call->ended && !call->credit) {
                status = hr_client_fail(error, HEADRACE_DEADLINE, "DEADLINE",
                                        "the daemon grants no credit");
        }
        *ret_bytes = call->ended ? 0 : HR_MIN(call->credit, wanted);
        call->credit -= *ret_bytes;
        (void) pthread_mutex_unlock(&channel->state);
        return status;
}

/* Sends a sequence of `total` bytes under credit; `last`: the request ends with it. */
static enum headrace_status send_sequence(struct hr_channel *channel, struct hr_call *call,
                                          struct body *body, uint64_t total, bool last,
                                          struct headrace_error *error) {
        struct iovec pieces[PIECES_MAX];
        uint64_t offset = 0;

        while (offset < total) {
                uint64_t granted, taken;
                size_t count;
                enum headrace_status status = wait_credit(
                        channel, call, HR_MIN(total - offset, (uint64_t) channel->body_max), error,
                        &granted);

                if (status != HEADRACE_OK || !granted)
                        return status;
                count = body_take(body, granted, pieces, &taken);
                if (taken < granted) { /* many small pieces: the rest in a later frame */
                        (void) pthread_mutex_lock(&channel->state);
                        call->credit += granted - taken;
                        (void) pthread_mutex_unlock(&channel->state);
                }
                status = send_data(channel, call, offset, pieces, count, taken,
                                   last && offset + taken == total, error);
                if (status != HEADRACE_OK)
                        return status;
                offset += taken;
        }
        return HEADRACE_OK;
}

/* What the daemon asks for next, at most `most` bytes. OK with no bytes: the call has ended. */
static enum headrace_status wait_range(struct hr_channel *channel, struct hr_call *call,
                                       uint64_t most, struct headrace_error *error,
                                       struct hr_range *ret_range) {
        uint64_t granted = 0;
        enum headrace_status status = wait_credit(channel, call, most, error, &granted);

        *ret_range = (struct hr_range){0};
        if (status != HEADRACE_OK || !granted)
                return status;
        (void) pthread_mutex_lock(&channel->state);
        if (call->range_count > 0) {
                struct hr_range *first = call->ranges;

                *ret_range = (struct hr_range){first->offset, HR_MIN(first->bytes, granted)};
                first->offset += ret_range->bytes;
                first->bytes -= ret_range->bytes;
                if (!first->bytes)
                        memmove(first, first + 1, --call->range_count * sizeof *first);
        }
        call->credit += granted - ret_range->bytes;
        (void) pthread_mutex_unlock(&channel->state);
        return ret_range->bytes ? HEADRACE_OK
                                : hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                                 "credit for nothing");
}

/* Sends of the contents what is asked for, until the call has ended. */
static enum headrace_status send_pulled(struct hr_channel *channel, struct hr_call *call,
                                        const struct body *contents, uint64_t total,
                                        uint64_t *sent, struct headrace_error *error) {
        struct iovec pieces[PIECES_MAX];

        for (;;) {
                struct body body = *contents;
                struct hr_range range;
                enum headrace_status status =
                        wait_range(channel, call, channel->body_max, error, &range);

                if (status != HEADRACE_OK || !range.bytes)
                        return status;
                if (range.offset > total || range.bytes > total - range.offset)
                        return hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                              "bytes beyond the contents are asked for");
                body_skip(&body, range.offset);
                while (range.bytes > 0) {
                        uint64_t taken;
                        size_t count = body_take(&body, range.bytes, pieces, &taken);

                        status = send_data(channel, call, range.offset, pieces, count, taken, false,
                                           error);
                        if (status != HEADRACE_OK)
                                return status;
                        range.offset += taken;
                        range.bytes -= taken;
                        if (sent)
                                *sent += taken;
                }
        }
}

static uint32_t timeout_ms(int64_t deadline_ns) {
        int64_t left;

        if (deadline_ns == HR_CLIENT_NEVER)
                return 0;
        left = (deadline_ns - hr_client_now_ns() + 999999) / 1000000;
        return (uint32_t) HR_MIN(HR_MAX(left, 1), (int64_t) UINT32_MAX);
}

enum headrace_status hr_channel_send(struct hr_channel *channel, struct hr_call *call,
                                     const struct hr_request *request,
                                     struct headrace_error *error) {
        size_t first_parts = request->first_parts ? request->first_parts : request->part_count;
        uint64_t first = parts_bytes(request->parts, first_parts);
        uint64_t second =
                parts_bytes(request->parts + first_parts, request->part_count - first_parts);
        bool inline_first = first <= channel->body_max && first_parts <= PIECES_MAX;
        struct body body = {request->parts, request->part_count, 0};
        struct iovec pieces[PIECES_MAX];
        uint64_t taken = 0;
        size_t count = inline_first ? body_take(&body, first, pieces, &taken) : 0;
        const bool more = inline_first ? second > 0 : first + second > 0;
        const struct frame frame = {
                .header = {.type = request->kind,
                           .flags = (uint16_t) ((more ? HR_FRAME_MORE : HR_FRAME_END) |
                                                (request->fd_count ? HR_FRAME_FDS : 0)),
                           .n_fds = (uint16_t) request->fd_count,
                           .request_id = call->id,
                           .message_bytes = (uint32_t) request->message_bytes,
                           .body_bytes = (uint32_t) taken,
                           .timeout_ms = timeout_ms(call->deadline_ns)},
                .message = request->message,
                .pieces = pieces,
                .piece_count = count,
                .fds = request->fds,
        };
        enum headrace_status status;

        call->is_pulled = request->is_pulled;
        call->before = inline_first ? 0 : first;
        status = send_frame(channel, &frame, call->deadline_ns, error);
        call->sent = status == HEADRACE_OK;
        if (status == HEADRACE_OK && !inline_first)
                status = send_sequence(channel, call, &body, first, !second, error);
        if (status == HEADRACE_OK && second && request->is_pulled)
                status = send_pulled(channel, call, &body, second, request->ret_sent, error);
        else if (status == HEADRACE_OK && second)
                status = send_sequence(channel, call, &body, second, true, error);
        return status;
}
