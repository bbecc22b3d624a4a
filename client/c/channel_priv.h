/*
 * One connection that many threads share. Locks: `sending` (one frame after the other; may wait for
 * the socket) is taken before `state` (calls, the reading role, received bytes; held for moments,
 * never while waiting).
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "client/c/client_priv.h"
#include "client/c/transport/transport.h"

#define HR_CHANNEL_SCRATCH_BYTES (HR_FRAME_HEADER_BYTES + HR_WIRE_MESSAGE_BYTES_MAX + 16384)

struct hr_range {
        uint64_t offset, bytes;
};

/* What an observed run shows, as it arrives. */
struct hr_shown {
        bool open;  /* some of it is still to come */
        bool ready; /* the run waits for an answer */
        uint32_t tap;
        uint8_t *data; /* NULL: nobody wants it */
        uint64_t bytes, received, left; /* left: not announced by a frame's header yet */
};

struct hr_call {
        struct hr_call *next; /* of the channel's calls */
        struct hr_channel *channel; /* referenced until the call is freed or abandoned */
        uint64_t id;
        uint8_t kind;
        int64_t deadline_ns;
        pthread_cond_t changed; /* its thread waits here */
        bool waiting;
        bool sent; /* its own frame is out */
        uint64_t credit; /* bytes that may be sent */
        /* Of contents that are asked for by offset: what is not sent yet, in the order asked
         * for. */
        bool is_pulled;
        uint64_t before; /* bytes of what precedes them that credit has not been given for yet */
        struct hr_range *ranges;
        size_t range_count, range_capacity;
        hr_show_fn show;
        void *show_arg;
        struct hr_shown shown;
        /* The reply. */
        bool begun, ended;
        bool abandoned; /* nobody waits: the channel frees it when its reply has ended */
        enum headrace_status status;
        struct headrace_error error;
        uint8_t *message;
        size_t message_bytes;
        struct iovec *into; /* what is left to fill, or NULL */
        struct iovec *into_at;
        size_t into_count;
        uint64_t into_left;
        uint8_t *body;
        size_t body_capacity;
        uint64_t body_bytes;
};

struct hr_channel {
        _Atomic uint32_t refs;
        pid_t process; /* that may use it: a child of it shares the socket */
        struct hr_transport transport;
        pthread_mutex_t sending, state;
        uint32_t body_max;
        uint64_t session; /* of the client's */
        uint64_t next_id;
        struct hr_call *calls;
        bool reading; /* a thread has the reading role */
        bool draining;
        bool failed;
        struct headrace_error failure;
        /* Received and not taken yet: scratch[start .. end). */
        uint8_t *scratch;
        size_t start, end;
        bool in_shown; /* a frame's body is part of what a run shows */
        bool in_body; /* a frame's header and message have been taken */
        struct hr_frame_header header;
        uint64_t body_left;    /* of that frame */
        struct hr_call *target; /* whose reply it is; NULL: thrown away */
};

/* Something that its thread has to do, or to hear of. */
static inline bool hr_call_has_news(const struct hr_call *call) {
        return call->ended || call->credit || call->shown.ready;
}

/* All of these with `state` held. */

/* Takes what has arrived, until nothing is there or `until` (may be NULL) has news. */
void hr_channel_receive(struct hr_channel *channel, const struct hr_call *until);
/* Ends the connection for everybody; the first failure counts. */
void hr_channel_break(struct hr_channel *channel, const struct headrace_error *error);
/* The same, for a failure of the transport's; number: errno, or 0 for the end of what is sent. */
void hr_channel_break_transport(struct hr_channel *channel, int number);
struct hr_call *hr_channel_find(struct hr_channel *channel, uint64_t id);
void hr_channel_forget(struct hr_channel *channel, struct hr_call *call);
/* Wakes one waiting thread so that somebody reads. */
void hr_channel_hand_over(struct hr_channel *channel);
/* Reads, or waits for the thread that reads, until something may have changed. `state` is given up
 * meanwhile. */
void hr_channel_wait_some(struct hr_channel *channel, struct hr_call *call, int64_t deadline_ns);
/* Frees the call itself. */
void hr_call_destroy(struct hr_call *call);

/* Without a lock. */

/* Sends the request's own frame and what follows under credit. */
enum headrace_status hr_channel_send(struct hr_channel *channel, struct hr_call *call,
                                     const struct hr_request *request,
                                     struct headrace_error *error);
