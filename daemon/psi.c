/*
 * Files are opened anew for each look: their contents are made when they are read, and a look a
 * second costs some microseconds. A control group's file is there for whoever may see the
 * hierarchy, which a service may even where all of it is read-only; so nothing is ever written to
 * it, and what a trigger would say is found out by comparing two looks.
 */
#include "daemon/psi.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_BYTES 4096

bool hr_psi_parse(const char *text, uint64_t *ret_some_us) {
        const char *line = text;

        while (line && *line) {
                const char *end = strchrnul(line, '\n');
                const char *total = strstr(line, " total=");
                char *after;

                if (strncmp(line, "some ", 5) == 0 && total && total < end) {
                        const char *digits = total + strlen(" total=");
                        uint64_t value;

                        errno = 0;
                        value = strtoull(digits, &after, 10);
                        if (*digits < '0' || *digits > '9' || errno != 0 || after != end)
                                return false;
                        *ret_some_us = value;
                        return true;
                }
                line = *end ? end + 1 : end;
        }
        return false;
}

/* The beginning of a file as text; false when it cannot be read. */
static bool file_text(const char *path, char text[TEXT_BYTES]) {
        const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        size_t used = 0;
        ssize_t bytes = -1;

        while (fd >= 0 && used + 1 < TEXT_BYTES) {
                bytes = read(fd, text + used, TEXT_BYTES - 1 - used);
                if (bytes < 0 && errno == EINTR)
                        continue;
                if (bytes <= 0)
                        break;
                used += (size_t) bytes;
        }
        if (fd >= 0)
                (void) close(fd);
        text[used] = '\0';
        return bytes >= 0;
}

hr_status hr_psi_read(const char *path, struct hr_diag *diag, uint64_t *ret_some_us) {
        char text[TEXT_BYTES];

        if (!file_text(path, text))
                return hr_fail(diag, HR_E_NOT_FOUND, "%s: %s", path, strerror(errno));
        if (!hr_psi_parse(text, ret_some_us))
                return hr_fail(diag, HR_E_INVALID, "%s says nothing of memory pressure", path);
        return HR_OK;
}

bool hr_psi_group(const char *lines, char *group, size_t room) {
        const char *line = lines;

        while (*line) {
                const char *end = strchrnul(line, '\n');

                if (strncmp(line, "0::/", 4) == 0) {
                        const size_t bytes = (size_t) (end - line) - 3;

                        if (bytes >= room)
                                return false;
                        memcpy(group, line + 3, bytes);
                        group[bytes] = '\0';
                        return true;
                }
                line = *end ? end + 1 : end;
        }
        return false;
}

bool hr_psi_find(char path[HR_PSI_PATH_BYTES]) {
        /* Where version 2 is alone, and where it stands beside version 1. */
        static const char *const places[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};
        char lines[TEXT_BYTES], group[TEXT_BYTES];
        uint64_t some_us;

        if (file_text("/proc/self/cgroup", lines) && hr_psi_group(lines, group, sizeof group))
                for (size_t i = 0; i < HR_ARRAY_LENGTH(places); i++) {
                        const int bytes =
                                snprintf(path, HR_PSI_PATH_BYTES, "%s%s/memory.pressure",
                                         places[i], strcmp(group, "/") == 0 ? "" : group);

                        if (bytes < HR_PSI_PATH_BYTES &&
                            hr_psi_read(path, NULL, &some_us) == HR_OK)
                                return true;
                }
        (void) snprintf(path, HR_PSI_PATH_BYTES, "/proc/pressure/memory");
        return hr_psi_read(path, NULL, &some_us) == HR_OK;
}
