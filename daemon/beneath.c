/*
 * Opening below a directory, with the kernel's openat2() or, without it, one component at a time.
 *
 * Both ways refuse symbolic links in any component after the directory itself, which is the
 * operator's. What was opened is judged by its descriptor, so nothing can be swapped between check
 * and use.
 */
#include "daemon/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define COMPONENT_BYTES_MAX 255
#define FILE_FLAGS (O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | O_NOFOLLOW)
#define TRIES 4 /* openat2 answers EAGAIN when a rename raced with it */

static hr_status fail_path(struct hr_diag *diag, const char *what) {
        return hr_fail_reason(diag, HR_E_INVALID, "PATH", "the path %s", what);
}

static bool component_is_dots(const char *component, size_t bytes) {
        return (bytes == 1 && component[0] == '.') ||
               (bytes == 2 && component[0] == '.' && component[1] == '.');
}

hr_status hr_path_check(const char *path, struct hr_diag *diag) {
        const char *component = path;

        if (*path == '\0')
                return fail_path(diag, "is empty");
        if (strnlen(path, HR_PATH_BYTES_MAX + 1) > HR_PATH_BYTES_MAX)
                return fail_path(diag, "is too long");
        if (strstr(path, "://"))
                return fail_path(diag, "is a URL; nothing is fetched");
        for (const char *next = path; *next != '\0'; next++)
                if ((unsigned char) *next < 0x20 || *next == 0x7f)
                        return fail_path(diag, "holds a control character");
        for (;;) {
                const size_t bytes = strcspn(component, "/");

                if (bytes == 0 && component == path)
                        return fail_path(diag, "is absolute; it begins below a model directory");
                if (bytes == 0)
                        return fail_path(diag, "has an empty component");
                if (bytes > COMPONENT_BYTES_MAX || component_is_dots(component, bytes))
                        return fail_path(diag, "has a component that is too long, '.' or '..'");
                if (component[bytes] == '\0')
                        return HR_OK;
                component += bytes + 1;
        }
}

static int close_and(int fd, int error) {
        if (fd >= 0)
                (void) close(fd);
        errno = error;
        return -1;
}

static int open_by_kernel(int directory_fd, const char *path) {
        struct open_how how = {
                .flags = FILE_FLAGS,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS |
                           RESOLVE_NO_XDEV,
        };
        long fd = -1;

        for (unsigned i = 0; i < TRIES; i++) {
                fd = syscall(SYS_openat2, directory_fd, path, &how, sizeof how);
                if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
                        break;
        }
        return (int) fd;
}

/* One component below `parent`, on the same file system. Closes parent. */
static int step_into(int parent, const char *component, int flags) {
        struct stat above, below;
        int fd = openat(parent, component, flags);

        if (fd < 0)
                return close_and(parent, errno);
        if (fstat(parent, &above) < 0 || fstat(fd, &below) < 0 || above.st_dev != below.st_dev) {
                (void) close(fd);
                return close_and(parent, EXDEV);
        }
        (void) close(parent);
        return fd;
}

static int open_by_components(int directory_fd, const char *path) {
        char component[COMPONENT_BYTES_MAX + 1];
        int fd = fcntl(directory_fd, F_DUPFD_CLOEXEC, 0);

        while (fd >= 0) {
                const size_t bytes = strcspn(path, "/");
                const bool last = path[bytes] == '\0';

                if (bytes > COMPONENT_BYTES_MAX)
                        return close_and(fd, ENAMETOOLONG);
                memcpy(component, path, bytes);
                component[bytes] = '\0';
                fd = step_into(fd, component,
                               last ? FILE_FLAGS : O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (last)
                        return fd;
                path += bytes + 1;
        }
        return -1;
}

static hr_status fail_open(struct hr_diag *diag, int error) {
        if (error == EMFILE || error == ENFILE || error == ENOMEM)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "DESCRIPTORS",
                                      "no descriptor or memory to open a file");
        return hr_fail_reason(diag, HR_E_NOT_FOUND, "FILE",
                              "no such file below the model directories");
}

hr_status hr_open_beneath(const char *directory, const char *path, bool component_wise,
                          struct hr_diag *diag, int *ret_fd) {
        struct stat facts;
        int error, fd = -1;
        int directory_fd;

        HR_TRY(hr_path_check(path, diag));
        directory_fd = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (directory_fd < 0)
                return fail_open(diag, errno);
        if (!component_wise)
                fd = open_by_kernel(directory_fd, path);
        /* EPERM: a sandbox that does not know the call. */
        if (component_wise || (fd < 0 && (errno == ENOSYS || errno == EPERM)))
                fd = open_by_components(directory_fd, path);
        error = errno;
        (void) close(directory_fd);
        if (fd < 0)
                return fail_open(diag, error);
        if (fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode)) {
                (void) close(fd);
                return fail_open(diag, ENOENT);
        }
        *ret_fd = fd;
        return HR_OK;
}
