/* Sockets: connecting within a deadline. */
#include "client/c/transport/transport.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* Connects a non-blocking socket within the deadline. 0, or errno. */
static int socket_connect(int fd, const struct sockaddr *peer, socklen_t bytes,
                          int64_t deadline_ns) {
        struct pollfd ready = {.fd = fd, .events = POLLOUT};
        int number = 0;
        socklen_t size = sizeof number;

        while (connect(fd, peer, bytes) != 0) {
                if (errno == EAGAIN) { /* a Unix socket whose queue is full: tried again */
                        if (hr_client_is_past(deadline_ns))
                                return ETIMEDOUT;
                        (void) poll(NULL, 0, 5);
                        continue;
                }
                if (errno != EINPROGRESS)
                        return errno;
                while (poll(&ready, 1, hr_client_poll_ms(deadline_ns)) <= 0)
                        if (hr_client_is_past(deadline_ns))
                                return ETIMEDOUT;
                return getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &size) ? errno : number;
        }
        return 0;
}

static enum headrace_status open_unix(const char *address, const char *path, int64_t deadline_ns,
                                      struct headrace_error *error, int *ret_fd) {
        struct sockaddr_un peer = {.sun_family = AF_UNIX};
        int fd, number;

        if (!*path || strlen(path) >= sizeof peer.sun_path)
                return hr_client_fail(error, HEADRACE_INVALID, "ADDRESS",
                                      "a path of at most %zu bytes", sizeof peer.sun_path - 1);
        memcpy(peer.sun_path, path, strlen(path));
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return hr_transport_fail(error, address, deadline_ns, strerror(errno));
        number = socket_connect(fd, (const struct sockaddr *) &peer, sizeof peer, deadline_ns);
        if (number) {
                (void) close(fd);
                return hr_transport_fail(error, address, deadline_ns, strerror(number));
        }
        *ret_fd = fd;
        return HEADRACE_OK;
}

static enum headrace_status fail_address(struct headrace_error *error) {
        return hr_client_fail(error, HEADRACE_INVALID, "ADDRESS",
                              "unix:/path, tcp:host:port or tls:host:port");
}

/* rest: host:port. */
static enum headrace_status open_tcp(const char *address, const char *rest, int64_t deadline_ns,
                                     struct headrace_error *error, int *ret_fd,
                                     char ret_host[HR_TRANSPORT_HOST_BYTES]) {
        const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
        struct addrinfo *found;
        const char *colon = strrchr(rest, ':');
        int length = colon ? (int) (colon - rest) : 0, number, one = 1;

        if (length > 1 && rest[0] == '[' && rest[length - 1] == ']') {
                rest++;
                length -= 2;
        }
        if (length <= 0 || !colon[1] || length >= HR_TRANSPORT_HOST_BYTES)
                return fail_address(error);
        (void) snprintf(ret_host, HR_TRANSPORT_HOST_BYTES, "%.*s", length, rest);
        number = getaddrinfo(ret_host, colon + 1, &wanted, &found);
        if (number)
                return hr_transport_fail(error, address, deadline_ns, gai_strerror(number));
        number = ECONNREFUSED;
        for (const struct addrinfo *one_of = found; one_of; one_of = one_of->ai_next) {
                int fd = socket(one_of->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

                if (fd < 0) {
                        number = errno;
                        continue;
                }
                number = socket_connect(fd, one_of->ai_addr, one_of->ai_addrlen, deadline_ns);
                if (!number) {
                        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                        freeaddrinfo(found);
                        *ret_fd = fd;
                        return HEADRACE_OK;
                }
                (void) close(fd);
        }
        freeaddrinfo(found);
        return hr_transport_fail(error, address, deadline_ns, strerror(number));
}

enum headrace_status hr_socket_open(const char *address, int64_t deadline_ns,
                                    struct headrace_error *error, int *ret_fd,
                                    char ret_host[HR_TRANSPORT_HOST_BYTES]) {
        if (address && strncmp(address, "unix:", 5) == 0)
                return open_unix(address, address + 5, deadline_ns, error, ret_fd);
        if (address && (strncmp(address, "tcp:", 4) == 0 || strncmp(address, "tls:", 4) == 0))
                return open_tcp(address, address + 4, deadline_ns, error, ret_fd, ret_host);
        return fail_address(error);
}
