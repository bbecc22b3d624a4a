/* Which transport an address means; the plain ones: a socket, and a stream of the caller's. */
#include "client/c/transport/transport.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FDS_MAX 16U /* in a frame */

/* ---- a socket -------------------------------------------------------------------------------- */

static int64_t socket_receive(void *data, void *buffer, size_t bytes) {
        return recv((int) (intptr_t) data, buffer, bytes, 0);
}

static int64_t socket_send(void *data, const struct iovec *parts, size_t count) {
        const struct msghdr message = {.msg_iov = (struct iovec *) (uintptr_t) parts,
                                       .msg_iovlen = count};

        return sendmsg((int) (intptr_t) data, &message, MSG_NOSIGNAL);
}

static int64_t socket_send_with(void *data, const struct iovec *parts, size_t count, const int *fds,
                                size_t fd_count) {
        union {
                struct cmsghdr head;
                char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
        } control = {0};
        const size_t bytes = fd_count * sizeof(int);
        struct msghdr message = {.msg_iov = (struct iovec *) (uintptr_t) parts,
                                 .msg_iovlen = count,
                                 .msg_control = &control,
                                 .msg_controllen = CMSG_SPACE(bytes)};

        HR_ASSERT(fd_count > 0 && fd_count <= FDS_MAX);
        control.head = (struct cmsghdr){
                .cmsg_len = CMSG_LEN(bytes), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.head), fds, bytes);
        return sendmsg((int) (intptr_t) data, &message, MSG_NOSIGNAL);
}

static void socket_close(void *data) {
        (void) close((int) (intptr_t) data);
}

/* ---- a stream of the caller's ---------------------------------------------------------------- */

static int64_t stream_receive(void *data, void *buffer, size_t bytes) {
        const struct headrace_stream *stream = data;

        return stream->receive(stream->data, buffer, bytes);
}

static int64_t stream_send(void *data, const struct iovec *parts, size_t count) {
        const struct headrace_stream *stream = data;

        for (; count > 1 && !parts->iov_len; parts++)
                count--;
        return stream->send(stream->data, parts->iov_base, parts->iov_len);
}

static void stream_close(void *data) {
        struct headrace_stream *stream = data;

        stream->close(stream->data);
        free(stream);
}

static enum headrace_status stream_open(const struct headrace_stream *from,
                                        struct headrace_error *error,
                                        struct hr_transport *ret_transport) {
        struct headrace_stream *stream = malloc(sizeof *stream);

        if (!stream) {
                from->close(from->data);
                return hr_client_fail_memory(error);
        }
        *stream = *from;
        *ret_transport = (struct hr_transport){
                .data = stream,
                .poll_fd = stream->poll_fd,
                .holds_received = true,
                .receive = stream_receive,
                .send = stream_send,
                .close = stream_close,
        };
        return HEADRACE_OK;
}

/* ---- addresses ------------------------------------------------------------------------------- */

enum headrace_status hr_transport_fail(struct headrace_error *error, const char *address,
                                       int64_t deadline_ns, const char *words) {
        if (hr_client_is_past(deadline_ns))
                return hr_client_fail(error, HEADRACE_DEADLINE, "DEADLINE",
                                      "%.150s: not connected in time", address);
        return hr_client_fail(error, HEADRACE_UNAVAILABLE, "CONNECT", "%.150s: %.100s", address,
                              words);
}

enum headrace_status hr_transport_open(const char *address, const struct headrace_options *options,
                                       int64_t deadline_ns, struct headrace_error *error,
                                       struct hr_transport *ret_transport) {
        char host[HR_TRANSPORT_HOST_BYTES];
        enum headrace_status status;
        int fd;

        if (options->stream)
                return stream_open(options->stream, error, ret_transport);
        status = hr_socket_open(address, deadline_ns, error, &fd, host);
        if (status != HEADRACE_OK)
                return status;
        if (strncmp(address, "tls:", 4) == 0)
                return hr_tls_open(address, host, fd, options, deadline_ns, error, ret_transport);
        *ret_transport = (struct hr_transport){
                .data = (void *) (intptr_t) fd,
                .poll_fd = fd,
                .receive = socket_receive,
                .send = socket_send,
                .send_with = strncmp(address, "unix:", 5) == 0 ? socket_send_with : NULL,
                .close = socket_close,
        };
        return HEADRACE_OK;
}
