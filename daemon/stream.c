/* Plain sockets, and the choice between them and TLS. */
#include "daemon/stream.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONTROL_BYTES 512

struct hr_fd_queue {
        uint32_t first, count;
        int fds[HR_STREAM_FDS_MAX];
};

/* ---- peers ----------------------------------------------------------------------------------- */

int hr_stream_accept(int listening, bool is_tcp) {
        int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        int one = 1;

        if (fd >= 0 && is_tcp)
                (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return fd;
}

void hr_stream_refuse(int fd, const void *bytes, size_t size) {
        if (bytes)
                (void) send(fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        (void) close(fd);
}

bool hr_stream_user(int fd, uid_t *ret_uid, gid_t *ret_gid) {
        struct ucred peer;
        socklen_t bytes = sizeof peer;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
                return false;
        *ret_uid = peer.uid;
        *ret_gid = peer.gid;
        return true;
}

size_t hr_stream_groups(int fd, gid_t *groups, size_t capacity) {
        socklen_t bytes = (socklen_t) (capacity * sizeof *groups);

        if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &bytes) != 0)
                return 0;
        return bytes / sizeof *groups;
}

/* ---- descriptors that come along ------------------------------------------------------------- */

uint32_t hr_stream_fd_count(const struct hr_stream *stream) {
        return stream->fds ? stream->fds->count : 0;
}

int hr_stream_fd_take(struct hr_stream *stream) {
        struct hr_fd_queue *queue = stream->fds;
        int fd;

        if (hr_stream_fd_count(stream) == 0)
                return -1;
        fd = queue->fds[queue->first];
        queue->first = (queue->first + 1) % HR_STREAM_FDS_MAX;
        if (--queue->count == 0) {
                free(queue);
                stream->fds = NULL;
        }
        return fd;
}

static void fds_close(struct hr_stream *stream) {
        for (int fd = hr_stream_fd_take(stream); fd >= 0; fd = hr_stream_fd_take(stream))
                (void) close(fd);
}

/* ---- life and bytes -------------------------------------------------------------------------- */

hr_status hr_stream_init(struct hr_stream *stream, int fd, bool is_tcp,
                         struct hr_tls_context *context, struct hr_diag *diag) {
        *stream = (struct hr_stream){.fd = fd, .is_tcp = is_tcp};
        if (context) {
                stream->tls = hr_tls_new(context);
                if (!stream->tls)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for TLS");
        }
        return HR_OK;
}

void hr_stream_deinit(struct hr_stream *stream) {
        stream->tls = hr_tls_free(stream->tls);
        fds_close(stream);
        (void) close(stream->fd);
        stream->fd = -1;
}

const char *hr_stream_name(const struct hr_stream *stream) {
        return stream->tls ? "tls" : stream->is_tcp ? "tcp" : "unix";
}

/* Keeps it, or closes it. */
static bool fd_keep(struct hr_stream *stream, int fd) {
        struct hr_fd_queue *queue = stream->fds;

        if (!queue && stream->takes_fds)
                queue = stream->fds = calloc(1, sizeof *queue);
        if (!queue || queue->count == HR_STREAM_FDS_MAX) {
                (void) close(fd);
                return false;
        }
        queue->fds[(queue->first + queue->count++) % HR_STREAM_FDS_MAX] = fd;
        return true;
}

/* Keeps the descriptors that came along. False when they cannot be kept, all of them, or some were
 * cut off: then none is left open. */
static bool descriptors_take(struct hr_stream *stream, struct msghdr *message) {
        bool all = !(message->msg_flags & MSG_CTRUNC);

        for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part;
             part = CMSG_NXTHDR(message, part)) {
                size_t count;

                if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
                        continue;
                count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < count; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
                        all &= fd_keep(stream, fd);
                }
        }
        if (!all)
                fds_close(stream);
        return all;
}

static hr_stream_event plain_receive(struct hr_stream *stream, const struct iovec *parts,
                                     size_t part_count, size_t *ret_bytes) {
        _Alignas(struct cmsghdr) uint8_t control[CONTROL_BYTES];
        struct msghdr message = {.msg_iov = (struct iovec *) parts, .msg_iovlen = part_count};
        ssize_t got;

        if (!stream->is_tcp) {
                message.msg_control = control;
                message.msg_controllen = sizeof control;
        }
        do {
                got = recvmsg(stream->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        } while (got < 0 && errno == EINTR);
        if (got < 0)
                return errno == EAGAIN || errno == EWOULDBLOCK ? HR_STREAM_LATER : HR_STREAM_FAILED;
        if (message.msg_controllen > 0 && !stream->is_tcp && !descriptors_take(stream, &message))
                return HR_STREAM_DESCRIPTORS;
        *ret_bytes = (size_t) got;
        return got > 0 ? HR_STREAM_OK : HR_STREAM_END;
}

hr_stream_event hr_stream_receive(struct hr_stream *stream, const struct iovec *parts,
                                  size_t part_count, bool only_buffered, size_t *ret_bytes) {
        *ret_bytes = 0;
        if (stream->tls)
                return hr_tls_receive(stream->tls, stream->fd, parts, part_count, only_buffered,
                                      ret_bytes);
        return only_buffered ? HR_STREAM_LATER
                             : plain_receive(stream, parts, part_count, ret_bytes);
}

hr_stream_event hr_stream_send(struct hr_stream *stream, struct iovec *parts, size_t part_count,
                               size_t *ret_bytes) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = part_count};
        ssize_t sent;

        *ret_bytes = 0;
        if (stream->tls)
                return hr_tls_send(stream->tls, stream->fd, parts, part_count, ret_bytes);
        do {
                sent = sendmsg(stream->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        } while (sent < 0 && errno == EINTR);
        if (sent < 0)
                return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS
                               ? HR_STREAM_LATER
                               : HR_STREAM_FAILED;
        *ret_bytes = (size_t) sent;
        return HR_STREAM_OK;
}

bool hr_stream_is_within(const struct hr_stream *stream) {
        return stream->tls && hr_tls_is_within_record(stream->tls);
}

bool hr_stream_has_unsent(const struct hr_stream *stream) {
        return stream->tls && hr_tls_has_unsent(stream->tls);
}

hr_stream_event hr_stream_flush(struct hr_stream *stream) {
        return stream->tls ? hr_tls_flush(stream->tls, stream->fd) : HR_STREAM_OK;
}

void hr_stream_end(struct hr_stream *stream) {
        if (stream->tls)
                hr_tls_end(stream->tls, stream->fd);
        (void) shutdown(stream->fd, SHUT_WR);
}

bool hr_stream_drop(struct hr_stream *stream, void *window, size_t window_bytes) {
        ssize_t got = recv(stream->fd, window, window_bytes, MSG_DONTWAIT);

        return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

bool hr_stream_peer_vanished(const struct hr_stream *stream) {
        struct pollfd poll_fd = {.fd = stream->fd};

        if (stream->tls && hr_tls_is_cut_off(stream->tls))
                return true;
        return !stream->is_tcp && poll(&poll_fd, 1, 0) > 0 &&
               (poll_fd.revents & (POLLHUP | POLLERR | POLLNVAL));
}
