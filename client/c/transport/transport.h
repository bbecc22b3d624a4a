/*
 * Bytes to and from the daemon: a socket, a socket with TLS 1.3 around it, or a stream of the
 * caller's, behind one interface. Nothing here knows of frames.
 *
 * Nothing blocks but hr_transport_open(), which keeps its deadline. receive() and send() may be
 * called by two threads at once, but each by one at a time.
 */
#pragma once

#include <sys/uio.h>

#include "client/c/client_priv.h"

/* The functions return -1 with errno where they fail, EAGAIN where they would block: poll_fd is
 * then polled, for POLLIN after receive(), for POLLOUT after the other two. */
struct hr_transport {
        void *data;
        int poll_fd;
        bool holds_received; /* bytes may wait here that poll() does not know of */
        /* Bytes received; 0: the peer sends nothing more. */
        int64_t (*receive)(void *data, void *buffer, size_t bytes);
        /* Takes as many bytes from the front of the parts as it can; at least one part is not
         * empty. */
        int64_t (*send)(void *data, const struct iovec *parts, size_t count);
        /* send(), with descriptors beside the first byte. NULL: none can be passed. */
        int64_t (*send_with)(void *data, const struct iovec *parts, size_t count, const int *fds,
                             size_t fd_count);
        /* 0: all that send() has taken is with the system. NULL: it always is. */
        int (*flush)(void *data);
        /* More than errno says about the latest failure, or NULL. The function may be NULL. */
        const char *(*words)(void *data);
        void (*close)(void *data); /* once */
};

/* Connects to an address of the public header's, and shakes hands where it is one of TLS; takes
 * over options->stream instead where there is one. */
enum headrace_status hr_transport_open(const char *address, const struct headrace_options *options,
                                       int64_t deadline_ns, struct headrace_error *error,
                                       struct hr_transport *ret_transport);

/* ---- within this room ------------------------------------------------------------------------ */

#define HR_TRANSPORT_HOST_BYTES 256

/* UNAVAILABLE (CONNECT), or DEADLINE once that is over. */
enum headrace_status hr_transport_fail(struct headrace_error *error, const char *address,
                                       int64_t deadline_ns, const char *words);
/* A non-blocking socket that is connected. ret_host: of tcp: and tls:, as it stands in the address
 * without brackets. */
enum headrace_status hr_socket_open(const char *address, int64_t deadline_ns,
                                    struct headrace_error *error, int *ret_fd,
                                    char ret_host[HR_TRANSPORT_HOST_BYTES]);
/* Shakes hands over a connected socket, which it takes over, also on failure. */
enum headrace_status hr_tls_open(const char *address, const char *host, int fd,
                                 const struct headrace_options *options, int64_t deadline_ns,
                                 struct headrace_error *error, struct hr_transport *ret_transport);
