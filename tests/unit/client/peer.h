/*
 * A daemon's end of a connection, played by the test: the client gets one half of a socket pair as
 * its stream, a thread of the test's answers on the other.
 */
#pragma once

#include <pthread.h>

#include "client/c/headrace.h"
#include "proto/codec.h"
#include "proto/frame.h"

#define PEER_BYTES_MAX (1U << 20)

struct peer {
        int fd; /* the daemon's end */
        int client_fd;
        pthread_t thread;
        void (*play)(struct peer *peer);
        /* The latest request. */
        struct hr_frame_header header;
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        uint8_t body[PEER_BYTES_MAX];
        unsigned closed; /* calls of the client's close function */
};

/* Starts a peer that answers the hello and then plays. */
struct peer *peer_new(void (*play)(struct peer *peer));
/* Waits for the end of its play and frees it. */
void peer_free(struct peer *peer);
/* Connects a client to it. */
enum headrace_status peer_connect(struct peer *peer, int64_t timeout_ms,
                                  struct headrace_error *error,
                                  struct headrace_client **ret_client);

/* For the play. False: the connection has ended. */
bool peer_receive(struct peer *peer);
void peer_send(struct peer *peer, const struct hr_frame_header *header, const void *message,
               const void *body);
/* A reply without a message to the latest request. */
void peer_reply(struct peer *peer, uint16_t flags, const void *body, uint32_t body_bytes);
void peer_reply_error(struct peer *peer, uint64_t request_id, hr_status status, const char *reason);
