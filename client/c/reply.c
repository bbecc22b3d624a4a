/*
 * What arrives: bytes become frames, frames belong to calls.
 *
 * A header and its message pass through scratch memory; a body goes from the socket straight to
 * where its call wants it, but for what came along with the message. What a call has no room for is
 * thrown away, and the call's failure alone. A call that has been abandoned
 * stays listed until its reply has ended, since a reply to an unknown call means that the two sides
 * no longer understand each other.
 */
#include "client/c/channel_priv.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void fail_protocol(struct hr_channel *channel, const char *words) {
        struct headrace_error error;

        (void) hr_client_fail(&error, HEADRACE_INTERNAL, "PROTOCOL", "%s", words);
        hr_channel_break(channel, &error);
}

static void call_end(struct hr_channel *channel, struct hr_call *call) {
        call->ended = true;
        if (call->abandoned) {
                hr_channel_forget(channel, call);
                hr_call_destroy(call);
        } else if (call->waiting) {
                (void) pthread_cond_signal(&call->changed);
        }
}

static bool call_keep_message(struct hr_call *call, struct hr_wire_span message) {
        free(call->message);
        call->message = malloc(message.size + 1);
        if (!call->message)
                return false;
        memcpy(call->message, message.data, message.size);
        call->message_bytes = message.size;
        return true;
}

/* Room for `more` further bytes of a body that the call keeps itself. */
static bool call_reserve(struct hr_call *call, uint64_t more) {
        uint64_t need = call->body_bytes + more;
        size_t capacity = HR_MAX(call->body_capacity, (size_t) 256);
        uint8_t *grown;

        if (need <= call->body_capacity)
                return true;
        while (capacity < need)
                capacity *= 2;
        grown = realloc(call->body, capacity);
        if (!grown)
                return false;
        call->body = grown;
        call->body_capacity = capacity;
        return true;
}

/* Notes an error frame in its call, or ends the connection where it is about that. */
static void take_error(struct hr_channel *channel, struct hr_call *call,
                       struct hr_wire_span message) {
        struct hr_wire_error wire;
        struct hr_diag diag = {0};
        struct headrace_error error;

        if (hr_wire_error_decode(message, &diag, &wire) != HR_OK) {
                fail_protocol(channel, "an error that cannot be read");
                return;
        }
        (void) hr_client_fail_wire(&error, &wire);
        if (!call) {
                hr_channel_break(channel, &error);
                return;
        }
        call->error = error;
        call->status = error.status;
}

/* The daemon wants part of the contents. */
static bool call_ask(struct hr_call *call, struct hr_range range) {
        struct hr_range *last = call->range_count ? &call->ranges[call->range_count - 1] : NULL;

        if (last && last->offset + last->bytes == range.offset &&
            hr_add_u64(last->bytes, range.bytes, &last->bytes))
                return true;
        if (call->range_count == call->range_capacity) {
                size_t capacity = call->range_capacity * 2 + 8;
                struct hr_range *grown = realloc(call->ranges, capacity * sizeof *grown);

                if (!grown)
                        return false;
                call->ranges = grown;
                call->range_capacity = capacity;
        }
        call->ranges[call->range_count++] = range;
        return true;
}

static void take_push(struct hr_channel *channel, struct hr_call *call,
                      struct hr_wire_span message) {
        struct hr_diag diag = {0};
        struct hr_range range;

        switch (channel->header.type) {
        case HR_FRAME_CREDIT:
                if (hr_wire_credit_decode(message, &diag, &range.bytes, &range.offset) != HR_OK) {
                        fail_protocol(channel, "credit that cannot be read");
                        return;
                }
                if (!call || !hr_add_u64(call->credit, range.bytes, &call->credit))
                        return;
                if (call->is_pulled && !call->before && !call_ask(call, range)) {
                        fail_protocol(channel, "no memory for what is asked for");
                        return;
                }
                call->before -= HR_MIN(call->before, range.bytes);
                if (call->waiting)
                        (void) pthread_cond_signal(&call->changed);
                return;
        case HR_FRAME_GOAWAY:
                channel->draining = true;
                return;
        default: /* progress, which nobody asked for */
                return;
        }
}

/* A reply's frame: where its body goes. */
static void take_reply(struct hr_channel *channel, struct hr_call *call,
                       struct hr_wire_span message) {
        const struct hr_frame_header *header = &channel->header;
        uint8_t expected = (uint8_t) ((call->begun ? HR_FRAME_DATA : call->kind) | HR_FRAME_REPLY);

        if (header->flags & HR_FRAME_ERROR) {
                take_error(channel, call, message);
                return;
        }
        if (header->type != expected) {
                fail_protocol(channel, "a frame of another type than was due");
                return;
        }
        if (call->abandoned || call->status != HEADRACE_OK) {
                call->begun = true;
                return;
        }
        if ((!call->begun && !call_keep_message(call, message)) ||
            (!call->into && !call_reserve(call, header->body_bytes)))
                call->status = hr_client_fail_memory(&call->error);
        else
                channel->target = call;
        call->begun = true;
}

/* This frame's body is the next piece of what a run shows. */
static void take_shown_piece(struct hr_channel *channel, struct hr_call *call) {
        struct hr_shown *shown = &call->shown;

        if (channel->header.body_bytes > shown->left) {
                fail_protocol(channel, "a tap of more bytes than it announced");
                return;
        }
        shown->left -= channel->header.body_bytes;
        channel->in_shown = true;
        channel->target = call;
}

static void take_tap(struct hr_channel *channel, struct hr_call *call,
                     struct hr_wire_span message) {
        struct hr_wire_tap_push push;
        struct hr_diag diag = {0};

        if (!call || call->kind != HR_FRAME_RUN || call->begun || call->shown.open ||
            call->shown.ready || hr_wire_tap_push_decode(message, &diag, &push) != HR_OK) {
                fail_protocol(channel, "a tap of no run that is under way");
                return;
        }
        call->shown = (struct hr_shown){
                .open = true, .tap = push.tap, .bytes = push.bytes, .left = push.bytes};
        if (call->show && !call->abandoned)
                call->shown.data = push.bytes < SIZE_MAX ? malloc(push.bytes + 1) : NULL;
        if (call->show && !call->abandoned && !call->shown.data)
                fail_protocol(channel, "no memory for a tap");
        else
                take_shown_piece(channel, call);
}

/* Header and message are there. */
static void take_frame(struct hr_channel *channel, struct hr_wire_span message) {
        const struct hr_frame_header *header = &channel->header;
        struct hr_call *call = hr_channel_find(channel, header->request_id);

        channel->in_body = true;
        channel->body_left = header->body_bytes;
        channel->target = NULL;
        channel->in_shown = false;
        if (header->type == HR_FRAME_CREDIT || header->type == HR_FRAME_GOAWAY ||
            header->type == HR_FRAME_PROGRESS) {
                take_push(channel, call, message);
        } else if (header->type == HR_FRAME_TAP) {
                take_tap(channel, call, message);
        } else if (call && call->shown.open &&
                   header->type == (HR_FRAME_DATA | HR_FRAME_REPLY) &&
                   !(header->flags & HR_FRAME_ERROR)) {
                take_shown_piece(channel, call);
        } else if (call) {
                take_reply(channel, call, message);
        } else if (header->flags & HR_FRAME_ERROR) {
                take_error(channel, NULL, message);
        } else {
                fail_protocol(channel, "a reply to a call that is not open");
        }
}

static void frame_done(struct hr_channel *channel) {
        const struct hr_frame_header *header = &channel->header;
        struct hr_call *call = hr_channel_find(channel, header->request_id);

        channel->in_body = false;
        channel->target = NULL;
        if (channel->in_shown) {
                channel->in_shown = false;
                if (call && !call->shown.left) {
                        call->shown.open = false;
                        call->shown.ready = true;
                        if (call->waiting)
                                (void) pthread_cond_signal(&call->changed);
                }
                return;
        }
        if (!call || header->type == HR_FRAME_CREDIT || header->type == HR_FRAME_GOAWAY ||
            header->type == HR_FRAME_PROGRESS)
                return;
        if ((header->flags & HR_FRAME_ERROR) || !(header->flags & HR_FRAME_MORE))
                call_end(channel, call);
}

/* Where the next bytes of the body go, and how many fit there. NULL: nowhere. */
static uint8_t *body_place(struct hr_channel *channel, size_t *ret_bytes) {
        struct hr_call *call = channel->target;

        *ret_bytes = (size_t) HR_MIN(channel->body_left, (uint64_t) SIZE_MAX);
        if (call && channel->in_shown)
                return call->shown.data ? call->shown.data + call->shown.received : NULL;
        if (!call || (call->into && !call->into_left))
                return NULL;
        if (!call->into)
                return call->body + call->body_bytes;
        while (call->into_at->iov_len == 0)
                call->into_at++;
        *ret_bytes = HR_MIN(*ret_bytes, call->into_at->iov_len);
        return call->into_at->iov_base;
}

static void body_advance(struct hr_channel *channel, size_t bytes) {
        struct hr_call *call = channel->target;

        channel->body_left -= bytes;
        if (!call)
                return;
        if (channel->in_shown) {
                call->shown.received += bytes;
                return;
        }
        call->body_bytes += bytes;
        if (call->into && call->into_left) { /* more than fits is counted, and thrown away */
                call->into_left -= bytes;
                call->into_at->iov_base = (uint8_t *) call->into_at->iov_base + bytes;
                call->into_at->iov_len -= bytes;
        }
}

/* Takes one step through the scratch bytes; false when more are needed. */
static bool advance(struct hr_channel *channel) {
        size_t have = channel->end - channel->start, bytes;
        const uint8_t *at = channel->scratch + channel->start;
        const struct hr_frame_limits limits = {HR_WIRE_MESSAGE_BYTES_MAX, UINT32_MAX, 0};
        struct hr_diag diag = {0};
        uint8_t *place;

        if (channel->failed)
                return false;
        if (!channel->in_body) {
                if (have < HR_FRAME_HEADER_BYTES)
                        return false;
                if (hr_frame_header_decode(at, &limits, &diag, &channel->header) != HR_OK) {
                        fail_protocol(channel, diag.words);
                        return false;
                }
                if (have < HR_FRAME_HEADER_BYTES + (size_t) channel->header.message_bytes)
                        return false;
                channel->start += HR_FRAME_HEADER_BYTES + channel->header.message_bytes;
                take_frame(channel, (struct hr_wire_span){at + HR_FRAME_HEADER_BYTES,
                                                          channel->header.message_bytes});
        } else if (channel->body_left) {
                if (!have)
                        return false;
                place = body_place(channel, &bytes);
                bytes = HR_MIN(bytes, have);
                if (place)
                        memcpy(place, at, bytes);
                channel->start += bytes;
                body_advance(channel, bytes);
        }
        if (channel->in_body && !channel->body_left && !channel->failed)
                frame_done(channel);
        return true;
}

/* Reads once; false when nothing is there, or no more. */
static bool read_once(struct hr_channel *channel) {
        uint8_t *place = NULL;
        size_t bytes = 0;
        int64_t count;

        if (channel->in_body && channel->start == channel->end)
                place = body_place(channel, &bytes);
        if (!place) {
                memmove(channel->scratch, channel->scratch + channel->start,
                        channel->end - channel->start);
                channel->end -= channel->start;
                channel->start = 0;
                count = channel->transport.receive(channel->transport.data,
                                                channel->scratch + channel->end,
                                                HR_CHANNEL_SCRATCH_BYTES - channel->end);
        } else {
                count = channel->transport.receive(channel->transport.data, place, bytes);
        }
        if (count <= 0) {
                int number = count ? errno : 0;

                if (number != EAGAIN && number != EWOULDBLOCK && number != EINTR)
                        hr_channel_break_transport(channel, number);
                return false;
        }
        if (place) {
                body_advance(channel, (size_t) count);
                if (!channel->body_left)
                        frame_done(channel);
        } else {
                channel->end += (size_t) count;
        }
        return true;
}

void hr_channel_receive(struct hr_channel *channel, const struct hr_call *until) {
        while (!channel->failed) {
                if (!read_once(channel))
                        return;
                while (advance(channel))
                        ;
                if (until && hr_call_has_news(until))
                        return;
        }
}
