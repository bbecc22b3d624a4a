/*
 * One datagram a call. A manager that cannot be reached is not worth more than silence: it sees the
 * daemon's exit status whatever became of its messages. The words go on one line, since lines are
 * assignments here.
 *
 * Descriptors are sent by hand: the library would wait for a manager whose queue is full, for ever.
 */
#include "daemon/notify.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"

#ifdef HR_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#define PATIENCE_MS 100

#define WORDS_BYTES 200

/* state: assignments, one a line; "" = none. */
static void notify_send(const char *state, const char *format, va_list args) {
        char words[WORDS_BYTES];

        (void) vsnprintf(words, sizeof words, format, args);
        for (char *at = words; *at; at++)
                if (*at == '\n')
                        *at = ' ';
#ifdef HR_HAVE_SYSTEMD
        (void) sd_notifyf(0, "%s%sSTATUS=%s", state, *state ? "\n" : "", words);
#else
        (void) state;
#endif
}

void hr_notify_ready(const char *format, ...) {
        va_list args;

        va_start(args, format);
        notify_send("READY=1", format, args);
        va_end(args);
}

void hr_notify_status(const char *format, ...) {
        va_list args;

        va_start(args, format);
        notify_send("", format, args);
        va_end(args);
}

void hr_notify_stopping(const char *format, ...) {
        va_list args;

        va_start(args, format);
        notify_send("STOPPING=1", format, args);
        va_end(args);
}

void hr_notify_waiting(uint64_t more_ns, const char *format, ...) {
        char state[64];
        va_list args;

        (void) snprintf(state, sizeof state, "EXTEND_TIMEOUT_USEC=%llu",
                        (unsigned long long) (HR_MAX(more_ns, HR_NS_PER_S) / 1000));
        va_start(args, format);
        notify_send(state, format, args);
        va_end(args);
}

uint64_t hr_notify_watchdog_ns(void) {
#ifdef HR_HAVE_SYSTEMD
        uint64_t us = 0;

        if (sd_watchdog_enabled(0, &us) > 0)
                return us * 1000;
#endif
        return 0;
}

void hr_notify_watchdog(void) {
#ifdef HR_HAVE_SYSTEMD
        (void) sd_notify(0, "WATCHDOG=1");
#endif
}

void hr_notify_reloading(void) {
#ifdef HR_HAVE_SYSTEMD
        /* Type=notify-reload wants to know when the reading began. */
        (void) sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=Reading the configuration",
                          (unsigned long long) (hr_clock_now_ns() / 1000));
#endif
}

/* ---- descriptors ----------------------------------------------------------------------------- */

#ifdef HR_HAVE_SYSTEMD
/* A socket connected to the manager's, or -1. */
static int manager_open(void) {
        const char *path = getenv("NOTIFY_SOCKET");
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        const size_t bytes = path ? strlen(path) : 0;
        int fd;

        if (bytes < 2 || bytes >= sizeof address.sun_path || (*path != '/' && *path != '@'))
                return -1;
        memcpy(address.sun_path, path, bytes);
        if (*path == '@')
                address.sun_path[0] = '\0';
        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (const struct sockaddr *) &address,
                               (socklen_t) (offsetof(struct sockaddr_un, sun_path) + bytes)) != 0) {
                (void) close(fd);
                fd = -1;
        }
        return fd;
}

/* One message, with a descriptor unless that is -1. A manager that has once let the time pass is
 * not waited for again until it takes something. */
static bool manager_send(const char *words, int passed) {
        static atomic_bool is_deaf;
        _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
        struct iovec part = {.iov_base = (void *) (uintptr_t) words, .iov_len = strlen(words)};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        const int fd = manager_open();
        struct pollfd room = {.fd = fd, .events = POLLOUT};
        bool sent;

        if (fd < 0)
                return false;
        if (passed >= 0) {
                struct cmsghdr *header;

                message.msg_control = control;
                message.msg_controllen = sizeof control;
                header = CMSG_FIRSTHDR(&message);
                header->cmsg_level = SOL_SOCKET;
                header->cmsg_type = SCM_RIGHTS;
                header->cmsg_len = CMSG_LEN(sizeof passed);
                memcpy(CMSG_DATA(header), &passed, sizeof passed);
        }
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
        if (!sent && errno == EAGAIN && !atomic_load(&is_deaf) && poll(&room, 1, PATIENCE_MS) > 0)
                sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
        atomic_store(&is_deaf, !sent);
        (void) close(fd);
        return sent;
}
#endif

bool hr_notify_store(const char *name, int fd) {
#ifdef HR_HAVE_SYSTEMD
        char words[WORDS_BYTES];

        (void) snprintf(words, sizeof words, "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
        return manager_send(words, fd);
#else
        (void) name;
        (void) fd;
        return false;
#endif
}

void hr_notify_remove(const char *name) {
#ifdef HR_HAVE_SYSTEMD
        char words[WORDS_BYTES];

        (void) snprintf(words, sizeof words, "FDSTOREREMOVE=1\nFDNAME=%s", name);
        (void) manager_send(words, -1);
#else
        (void) name;
#endif
}
