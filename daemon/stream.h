/*
 * Peers' sockets, Unix or TCP: who is at the other end, and the bytes, plain or through TLS.
 * Nothing here blocks, and nothing knows frames. The simulation (tests/simulation) has streams of
 * its own behind this face. Thread: loop.
 */
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "daemon/tls.h"

/* Zeroed is not valid: hr_stream_init(). */
struct hr_stream {
        int fd;
        bool is_tcp; /* TLS, too */
        struct hr_tls *tls; /* NULL = plain */
        bool takes_fds;     /* of a Unix socket: descriptors that come along are kept */
        struct hr_fd_queue *fds; /* those that no frame has claimed yet; NULL = none */
};

/* The next connection that waits at a listening socket; -1, and errno. */
int hr_stream_accept(int listening, bool is_tcp);
/* Says these bytes as far as that goes at once, NULL = nothing, and closes. */
void hr_stream_refuse(int fd, const void *bytes, size_t size);
/* Who opened the other end of a Unix socket. False: the system does not say. */
HR_NODISCARD bool hr_stream_user(int fd, uid_t *ret_uid, gid_t *ret_gid);
/* Its further groups, at most capacity of them. */
size_t hr_stream_groups(int fd, gid_t *groups, size_t capacity);

/* Takes the descriptor. context: NULL = plain. HR_E_EXHAUSTED: the descriptor is still the
 * caller's. */
HR_NODISCARD hr_status hr_stream_init(struct hr_stream *stream, int fd, bool is_tcp,
                                      struct hr_tls_context *context, struct hr_diag *diag);
/* Closes the descriptor. */
void hr_stream_deinit(struct hr_stream *stream);
/* "unix", "tcp", "tls". */
const char *hr_stream_name(const struct hr_stream *stream);

/* Descriptors that have come and have not been claimed, at most HR_STREAM_FDS_MAX. */
#define HR_STREAM_FDS_MAX 32U
uint32_t hr_stream_fd_count(const struct hr_stream *stream);
/* The first of them, the caller's from then on. -1: there is none. */
int hr_stream_fd_take(struct hr_stream *stream);

/* Fills the parts in order with what is there. OK: some bytes, and if they fill the parts there may
 * be more. only_buffered: nothing is taken from the socket. */
hr_stream_event hr_stream_receive(struct hr_stream *stream, const struct iovec *parts,
                                  size_t part_count, bool only_buffered, size_t *ret_bytes);
/* Sends from the front of the parts as much as goes. OK: some bytes. */
hr_stream_event hr_stream_send(struct hr_stream *stream, struct iovec *parts, size_t part_count,
                               size_t *ret_bytes);
/* Something has come whose end is missing, so that it can be given to nobody yet. */
bool hr_stream_is_within(const struct hr_stream *stream);
/* What has been taken by hr_stream_send() but waits for the socket: true while there is any. */
bool hr_stream_has_unsent(const struct hr_stream *stream);
/* Sends it. OK: none is left. */
hr_stream_event hr_stream_flush(struct hr_stream *stream);
/* Nothing more will be sent: says so to the peer. */
void hr_stream_end(struct hr_stream *stream);
/* Drops what has come. False: nothing comes any more. */
HR_NODISCARD bool hr_stream_drop(struct hr_stream *stream, void *window, size_t window_bytes);
/* A peer that has closed both directions of a Unix socket, or whose TLS ended without saying so,
 * can be told from one that still reads. */
bool hr_stream_peer_vanished(const struct hr_stream *stream);
