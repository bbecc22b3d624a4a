/*
 * Where the build has no libsystemd, nothing is ever inherited.
 *
 * A socket's name ("FileDescriptorName=") decides only between plain TCP and TLS: what it is, the
 * system says. Of two of a kind the first is kept.
 */
#include "daemon/inherit.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/log.h"

#ifdef HR_HAVE_SYSTEMD
#include <fcntl.h>
#include <systemd/sd-daemon.h>

#include "daemon/keep.h"

/* HR_INHERITED_KINDS: it is none that can be used. */
static hr_inherited_kind kind_of(int fd, const char *name) {
        if (sd_is_socket_unix(fd, SOCK_STREAM, 1, NULL, 0) > 0)
                return HR_INHERITED_UNIX;
        if (sd_is_socket(fd, AF_INET, SOCK_STREAM, 1) > 0 ||
            sd_is_socket(fd, AF_INET6, SOCK_STREAM, 1) > 0)
                return name && strcmp(name, "tls") == 0 ? HR_INHERITED_TLS : HR_INHERITED_TCP;
        return HR_INHERITED_KINDS;
}

static void take_one(struct hr_inherited *inherited, int fd, const char *name) {
        hr_inherited_kind kind = kind_of(fd, name);
        int flags;

        if (kind == HR_INHERITED_KINDS || inherited->fd[kind] >= 0) {
                hr_log(HR_LOG_WARNING, "inherit", "descriptor %d (\"%.40s\") is of no use: %s", fd,
                       name ? name : "",
                       kind == HR_INHERITED_KINDS ? "no listening stream socket"
                                                  : "there was one of its kind");
                (void) close(fd);
                return;
        }
        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
                (void) close(fd);
                return;
        }
        inherited->fd[kind] = fd;
}

/* What an earlier daemon has left. Takes the name. */
static void take_kept(struct hr_inherited *inherited, int fd, char *name) {
        struct hr_inherited_kept *more = realloc(
                inherited->kept, ((size_t) inherited->kept_count + 1) * sizeof *inherited->kept);

        if (!more) {
                (void) close(fd);
                free(name);
                return;
        }
        inherited->kept = more;
        inherited->kept[inherited->kept_count++] = (struct hr_inherited_kept){fd, name};
}
#endif

void hr_inherited_take(struct hr_inherited *ret_inherited) {
        *ret_inherited = (struct hr_inherited){0};
        for (int i = 0; i < HR_INHERITED_KINDS; i++)
                ret_inherited->fd[i] = -1;
#ifdef HR_HAVE_SYSTEMD
        uint8_t digest[HR_DIGEST_BYTES];
        char **names = NULL;
        int count = sd_listen_fds_with_names(1, &names); /* sets close-on-exec */

        if (count < 0)
                hr_log(HR_LOG_WARNING, "inherit",
                       "what the service manager passes is not there: %s", strerror(-count));
        for (int i = 0; i < count; i++)
                if (names && names[i] && hr_keep_name_read(names[i], digest) != HR_KEEP_FOREIGN)
                        take_kept(ret_inherited, SD_LISTEN_FDS_START + i, names[i]);
                else
                        take_one(ret_inherited, SD_LISTEN_FDS_START + i, names ? names[i] : NULL);
        for (int i = 0; names && names[i]; i++)
                if (i >= count || hr_keep_name_read(names[i], digest) == HR_KEEP_FOREIGN)
                        free(names[i]);
        free(names);
#endif
}

void hr_inherited_deinit(struct hr_inherited *inherited) {
        for (int i = 0; i < HR_INHERITED_KINDS; i++)
                if (inherited->fd[i] >= 0)
                        (void) close(inherited->fd[i]);
        for (uint32_t i = 0; i < inherited->kept_count; i++) {
                if (inherited->kept[i].fd >= 0)
                        (void) close(inherited->kept[i].fd);
                free(inherited->kept[i].name);
        }
        free(inherited->kept);
        *inherited = (struct hr_inherited){.fd = {-1, -1, -1}};
}
