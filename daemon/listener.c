/*
 * Accepting.
 *
 * Out of descriptors: one is held in reserve. It is given up to accept the connection, which is
 * told UNAVAILABLE and closed, so that nobody hangs in the queue and the loop does not spin on a
 * readable listener. When even that fails, accepting rests until the next tick.
 */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/log.h"
#include "daemon/conn.h"

#define ACCEPTS_PER_EVENT 16

struct hr_listener {
        struct hr_watch *watch;
        struct hr_server *server;
        int fd, lock_fd, spare_fd;
        bool is_tcp, accepting;
        bool listens; /* from the start */
        struct hr_tls_context *context; /* NULL = plain */
        bool resting; /* out of everything, until the next tick */
        char *path;     /* of a Unix socket that is ours */
        char *led_path; /* of any Unix socket; NULL = nobody can be led there by one */
        dev_t device;   /* of the socket's inode, to remove only what is ours */
        ino_t inode;
        bool is_astray;
};

static int spare_open(void) {
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

/* ---- accepting ------------------------------------------------------------------------------- */

/* Tells the peer, and closes. */
static void refuse(int fd, const char *words) {
        uint8_t frame[HR_FRAME_HEADER_BYTES + HR_WIRE_ERROR_BYTES_MAX];
        struct hr_diag diag = {0};
        size_t bytes = 0;

        (void) hr_fail_reason(&diag, HR_E_UNAVAILABLE, "CONNECTIONS", "%s", words);
        diag.retry_after_ms = 1000;
        if (hr_wire_error_encode(&diag, NULL, frame + HR_FRAME_HEADER_BYTES,
                                 HR_WIRE_ERROR_BYTES_MAX, &bytes) != HR_OK) {
                hr_stream_refuse(fd, NULL, 0);
                return;
        }
        hr_frame_header_encode(
                &(struct hr_frame_header){
                        .type = HR_FRAME_GOAWAY | HR_FRAME_REPLY,
                        .flags = HR_FRAME_ERROR | HR_FRAME_END,
                        .request_id = HR_FRAME_PUSH_ID,
                        .message_bytes = (uint32_t) bytes,
                        .timeout_ms = hr_status_grpc_code(diag.status),
                },
                frame);
        hr_stream_refuse(fd, frame, HR_FRAME_HEADER_BYTES + bytes);
}

static void listener_refuse(struct hr_listener *listener, int fd, const char *words) {
        if (listener->context)
                hr_stream_refuse(fd, NULL, 0);
        else
                refuse(fd, words);
        listener->server->stats.connections_refused++;
}

/* Accepts with the reserve. False when nothing helps. */
static bool listener_accept_spare(struct hr_listener *listener) {
        int fd;

        if (listener->spare_fd < 0)
                return false;
        (void) close(listener->spare_fd);
        fd = hr_stream_accept(listener->fd, listener->is_tcp);
        if (fd >= 0)
                listener_refuse(listener, fd, "the daemon is out of descriptors");
        listener->spare_fd = spare_open();
        return fd >= 0;
}

/* One connection; false when there is none, or accepting has to rest. */
static bool listener_accept_one(struct hr_listener *listener) {
        struct hr_server *server = listener->server;
        struct hr_diag diag = {0};
        int fd = hr_stream_accept(listener->fd, listener->is_tcp);

        if (fd < 0) {
                if (errno == EINTR || errno == ECONNABORTED)
                        return true;
                if (errno == EAGAIN || errno == EWOULDBLOCK)
                        return false;
                if ((errno == EMFILE || errno == ENFILE) && listener_accept_spare(listener))
                        return true;
                listener->resting = true;
                hr_listener_accept(listener, false);
                hr_server_listener_rests(server);
                return false;
        }
        if (server->stats.connections >= server->config->limits.connections) {
                listener_refuse(listener, fd, "too many connections");
                return true;
        }
        if (hr_conn_open(server, fd, listener->is_tcp, listener->context, &diag) != HR_OK)
                hr_log(HR_LOG_WARNING, "listener", "a connection was dropped: %s", diag.words);
        return true;
}

static void listener_watch_cb(void *arg, int events) {
        struct hr_listener *listener = arg;

        (void) events;
        /* Each may be the last that there is a place for. */
        for (int i = 0; i < ACCEPTS_PER_EVENT && listener->accepting; i++) {
                const bool go_on = listener_accept_one(listener);

                hr_server_accept_update(listener->server);
                if (!go_on)
                        break;
        }
}

void hr_listener_accept(struct hr_listener *listener, bool accept) {
        if (listener->accepting == accept || (accept && listener->resting))
                return;
        listener->accepting =
                hr_watch_want(listener->watch, accept ? HR_LOOP_READABLE : 0) && accept;
}

void hr_listener_rested(struct hr_listener *listener) {
        listener->resting = false;
}

/* ---- opening --------------------------------------------------------------------------------- */

static struct hr_listener *listener_free(struct hr_listener *listener) {
        if (!listener)
                return NULL;
        listener->watch = hr_watch_free(listener->watch);
        if (listener->fd >= 0)
                (void) close(listener->fd);
        if (listener->spare_fd >= 0)
                (void) close(listener->spare_fd);
        if (listener->lock_fd >= 0)
                (void) close(listener->lock_fd);
        free(listener->path);
        free(listener->led_path);
        free(listener);
        return NULL;
}
HR_DEFINE_CLEANUP(struct hr_listener *, listener_freep, listener_free)

static struct hr_listener *listener_new(struct hr_server *server, bool is_tcp) {
        struct hr_listener *listener = calloc(1, sizeof *listener);

        if (!listener)
                return NULL;
        listener->server = server;
        listener->is_tcp = is_tcp;
        listener->fd = listener->lock_fd = -1;
        listener->spare_fd = spare_open();
        return listener;
}

static hr_status system_fail(struct hr_diag *diag, const char *what, const char *name) {
        return hr_fail_reason(diag, HR_E_PRECONDITION, "LISTEN", "%s %s: %s", what, name,
                              strerror(errno));
}

static hr_status listener_watch(struct hr_listener *listener, const char *name,
                                struct hr_diag *diag) {
        listener->watch = hr_watch_new(listener->server->loop, listener->fd, listener_watch_cb,
                                       listener);
        if (!listener->watch)
                return hr_fail(diag, HR_E_PRECONDITION, "%s cannot be watched", name);
        return HR_OK;
}

/* Binds and watches. */
static hr_status listener_begin(struct hr_listener *listener, const struct sockaddr *address,
                                socklen_t address_bytes, const char *name, struct hr_diag *diag) {
        if (bind(listener->fd, address, address_bytes) != 0)
                return system_fail(diag, "bind", name);
        return listener_watch(listener, name, diag);
}

static hr_status lock_take(struct hr_listener *listener, struct hr_diag *diag) {
        char name[sizeof(struct sockaddr_un) + 8];
        char pid[24] = "";

        (void) snprintf(name, sizeof name, "%s.lock", listener->path);
        listener->lock_fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (listener->lock_fd < 0)
                return system_fail(diag, "open", name);
        if (flock(listener->lock_fd, LOCK_EX | LOCK_NB) != 0) {
                ssize_t got = read(listener->lock_fd, pid, sizeof pid - 1);

                pid[got > 0 ? got : 0] = '\0';
                pid[strcspn(pid, "\n")] = '\0';
                return hr_fail_reason(diag, HR_E_EXISTS, "LOCKED",
                                      "another daemon (pid %s) listens on %s", pid, listener->path);
        }
        (void) snprintf(pid, sizeof pid, "%ld\n", (long) getpid());
        if (ftruncate(listener->lock_fd, 0) != 0 ||
            pwrite(listener->lock_fd, pid, strlen(pid), 0) != (ssize_t) strlen(pid))
                return system_fail(diag, "write", name);
        return HR_OK;
}

/* Under the lock: a socket that is there belongs to nobody any more. */
static hr_status stale_remove(const char *path, struct hr_diag *diag) {
        struct stat found;

        if (lstat(path, &found) != 0)
                return errno == ENOENT ? HR_OK : system_fail(diag, "stat", path);
        if (!S_ISSOCK(found.st_mode))
                return hr_fail_reason(diag, HR_E_PRECONDITION, "LISTEN",
                                      "%s is there and is no socket", path);
        return unlink(path) == 0 ? HR_OK : system_fail(diag, "unlink", path);
}

hr_status hr_listener_open_unix(struct hr_server *server, const char *path, uint32_t mode,
                                struct hr_diag *diag, struct hr_listener **ret_listener) {
        HR_CLEANUP(listener_freep) struct hr_listener *listener = listener_new(server, false);
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct stat made;

        if (!listener || !(listener->path = strdup(path)))
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listener");
        if (strlen(path) >= sizeof address.sun_path)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "LISTEN",
                                      "%s is longer than the %zu bytes of a socket's path", path,
                                      sizeof address.sun_path - 1);
        memcpy(address.sun_path, path, strlen(path));
        HR_TRY(lock_take(listener, diag));
        HR_TRY(stale_remove(path, diag));
        listener->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (listener->fd < 0)
                return system_fail(diag, "socket", path);
        /* The inode takes the mode of the socket, so there is no instant with a wider one. */
        if (fchmod(listener->fd, mode) != 0)
                return system_fail(diag, "chmod", path);
        HR_TRY(listener_begin(listener, (struct sockaddr *) &address, sizeof address, path, diag));
        if (chmod(path, mode) != 0 || lstat(path, &made) != 0) {
                hr_status status = system_fail(diag, "chmod", path);

                listener = hr_listener_close(HR_STEAL(listener));
                return status;
        }
        listener->device = made.st_dev;
        listener->inode = made.st_ino;
        listener->led_path = strdup(path);
        hr_log(HR_LOG_INFO, "listener", "listening on unix:%s", path);
        *ret_listener = HR_STEAL(listener);
        return HR_OK;
}

hr_status hr_listener_open_tcp(struct hr_server *server, const struct hr_address *address,
                               struct hr_tls_context *context, struct hr_diag *diag,
                               struct hr_listener **ret_listener) {
        HR_CLEANUP(listener_freep) struct hr_listener *listener = listener_new(server, true);
        struct sockaddr_storage bound = {0};
        socklen_t bound_bytes = sizeof bound;
        int one = 1;

        if (!listener)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listener");
        listener->context = context;
        listener->fd =
                socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (listener->fd < 0)
                return system_fail(diag, "socket", address->text);
        if (setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
                return system_fail(diag, "setsockopt", address->text);
        HR_TRY(listener_begin(listener, (const struct sockaddr *) &address->socket,
                              address->socket_bytes, address->text, diag));
        if (getsockname(listener->fd, (struct sockaddr *) &bound, &bound_bytes) != 0)
                return system_fail(diag, "getsockname", address->text);
        /* The only place that tells a port which the system has chosen. */
        hr_log(hr_socket_port(&address->socket) == 0 ? HR_LOG_NOTICE : HR_LOG_INFO, "listener",
               "listening on %s:%s port=%u", context ? "tls" : "tcp", address->text,
               hr_socket_port(&bound));
        *ret_listener = HR_STEAL(listener);
        return HR_OK;
}

/* Whose path leads to it; where it cannot be seen from here, nothing is known of it. */
static void path_find(struct hr_listener *listener) {
        struct sockaddr_un address = {0};
        socklen_t bytes = sizeof address - 1; /* a terminator is left */
        struct stat found;

        if (getsockname(listener->fd, (struct sockaddr *) &address, &bytes) != 0 ||
            address.sun_family != AF_UNIX || address.sun_path[0] != '/' ||
            lstat(address.sun_path, &found) != 0)
                return;
        listener->device = found.st_dev;
        listener->inode = found.st_ino;
        listener->led_path = strdup(address.sun_path);
}

bool hr_listener_is_astray(struct hr_listener *listener) {
        struct stat found;
        bool is_astray;

        if (!listener->led_path)
                return false;
        is_astray = lstat(listener->led_path, &found) == 0
                            ? found.st_dev != listener->device || found.st_ino != listener->inode
                            : errno == ENOENT;
        if (is_astray != listener->is_astray)
                hr_log(is_astray ? HR_LOG_ERROR : HR_LOG_NOTICE, "listener",
                       is_astray ? "%s does not lead here any more: nobody can connect"
                                 : "%s leads here again",
                       listener->led_path);
        listener->is_astray = is_astray;
        return is_astray;
}

hr_status hr_listener_open_inherited(struct hr_server *server, int fd, bool is_tcp,
                                     struct hr_tls_context *context, struct hr_diag *diag,
                                     struct hr_listener **ret_listener) {
        HR_CLEANUP(listener_freep) struct hr_listener *listener = listener_new(server, is_tcp);

        if (!listener) {
                (void) close(fd);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listener");
        }
        listener->context = context;
        listener->fd = fd;
        listener->listens = true;
        HR_TRY(listener_watch(listener, "an inherited socket", diag));
        path_find(listener);
        hr_log(HR_LOG_INFO, "listener", "listening on an inherited socket, %s",
               context  ? "tls"
               : is_tcp ? "tcp"
                        : "unix");
        *ret_listener = HR_STEAL(listener);
        return HR_OK;
}

hr_status hr_listener_listen(struct hr_listener *listener, struct hr_diag *diag) {
        if (listener->listens) /* as long a queue as its opener wants */
                return HR_OK;
        if (listen(listener->fd, (int) listener->server->config->limits.backlog) != 0)
                return system_fail(diag, "listen", listener->path ? listener->path : "tcp");
        return HR_OK;
}

struct hr_listener *hr_listener_close(struct hr_listener *listener) {
        struct stat found;

        if (!listener)
                return NULL;
        if (listener->path && lstat(listener->path, &found) == 0 &&
            found.st_dev == listener->device && found.st_ino == listener->inode)
                (void) unlink(listener->path);
        return listener_free(listener);
}
