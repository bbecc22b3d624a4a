/*
 * Lets chosen calls of a process fail: a library for LD_PRELOAD, driven through the page that
 * HEADRACE_INJECT names (inject.h). Without the variable, and until the test arms it, it only
 * counts.
 *
 * Allocation goes to glibc's own entry points, so nothing here allocates or looks symbols up while
 * the first allocations are made. The other calls are made through syscall numbers or the next
 * definition, looked up at load.
 */
#include "tests/inject/inject.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static struct inject_control *control;
static int (*next_pthread_create)(pthread_t *, const pthread_attr_t *, void *(*) (void *), void *);
static long (*found_syscall)(long, ...);
static int (*next_eventfd)(unsigned, int);

/* Constructors of other libraries may come before ours. */
static void names_find(void) {
        if (found_syscall)
                return;
        next_pthread_create = (int (*)(pthread_t *, const pthread_attr_t *, void *(*) (void *),
                                       void *)) dlsym(RTLD_NEXT, "pthread_create");
        next_eventfd = (int (*)(unsigned, int)) dlsym(RTLD_NEXT, "eventfd");
        found_syscall = (long (*)(long, ...)) dlsym(RTLD_NEXT, "syscall");
}

#define next_syscall (names_find(), found_syscall)

__attribute__((constructor)) static void inject_begin(void) {
        const char *path = getenv("HEADRACE_INJECT");
        void *page;
        int fd;

        names_find();
        if (!path || (fd = (int) next_syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC)) < 0)
                return;
        page = (void *) next_syscall(SYS_mmap, NULL, sizeof *control, PROT_READ | PROT_WRITE,
                                     MAP_SHARED, fd, 0);
        (void) next_syscall(SYS_close, fd);
        if (page != MAP_FAILED)
                control = page;
}

/* Whether this call fails; then errno says how. */
static bool is_due(enum inject_kind kind) {
        uint64_t number;

        if (!control)
                return false;
        number = atomic_fetch_add(&control->calls[kind], 1) + 1;
        if (atomic_load(&control->kind) != (uint32_t) kind)
                return false;
        switch (atomic_load(&control->mode)) {
        case INJECT_ONCE:
                if (atomic_load(&control->countdown) <= 0 ||
                    atomic_fetch_sub(&control->countdown, 1) != 1)
                        return false;
                break;
        case INJECT_EVERY:
                if (atomic_load(&control->countdown) <= 0 ||
                    number % atomic_load(&control->period) != 0)
                        return false;
                break;
        default:
                return false;
        }
        atomic_fetch_add(&control->fired, 1);
        errno = (int) atomic_load(&control->error);
        return true;
}

static bool is_short(enum inject_kind kind) {
        if (!control || atomic_load(&control->countdown) <= 0 ||
            atomic_load(&control->kind) != (uint32_t) kind ||
            atomic_load(&control->mode) != INJECT_SHORT)
                return false;
        atomic_fetch_add(&control->fired, 1);
        return true;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *counted(void *memory) {
        if (memory && control) {
                atomic_fetch_add(&control->live_blocks, 1);
                atomic_fetch_add(&control->live_bytes, (int64_t) malloc_usable_size(memory));
        }
        return memory;
}

static void uncounted(void *memory) {
        if (memory && control) {
                atomic_fetch_sub(&control->live_blocks, 1);
                atomic_fetch_sub(&control->live_bytes, (int64_t) malloc_usable_size(memory));
        }
}

EXPORT void *malloc(size_t size) {
        return is_due(INJECT_MALLOC) ? NULL : counted(__libc_malloc(size));
}

EXPORT void *calloc(size_t count, size_t size) {
        return is_due(INJECT_MALLOC) ? NULL : counted(__libc_calloc(count, size));
}

EXPORT void *realloc(void *memory, size_t size) {
        int64_t before = memory ? (int64_t) malloc_usable_size(memory) : 0;
        void *moved;

        if (is_due(INJECT_MALLOC))
                return NULL;
        moved = __libc_realloc(memory, size);
        if (!control)
                return moved;
        if (moved)
                atomic_fetch_add(&control->live_bytes,
                                 (int64_t) malloc_usable_size(moved) - before);
        else if (memory && size == 0)
                atomic_fetch_sub(&control->live_bytes, before);
        if (moved && !memory)
                atomic_fetch_add(&control->live_blocks, 1);
        else if (!moved && memory && size == 0)
                atomic_fetch_sub(&control->live_blocks, 1);
        return moved;
}

EXPORT void *aligned_alloc(size_t alignment, size_t size) {
        return is_due(INJECT_MALLOC) ? NULL : counted(__libc_memalign(alignment, size));
}

EXPORT void *memalign(size_t alignment, size_t size) {
        return is_due(INJECT_MALLOC) ? NULL : counted(__libc_memalign(alignment, size));
}

EXPORT int posix_memalign(void **ret_memory, size_t alignment, size_t size) {
        int before = errno;
        void *memory;

        if (is_due(INJECT_MALLOC)) {
                errno = before;
                return ENOMEM;
        }
        memory = counted(__libc_memalign(alignment, size));
        if (!memory)
                return ENOMEM;
        *ret_memory = memory;
        return 0;
}

EXPORT void free(void *memory) {
        uncounted(memory);
        __libc_free(memory);
}

/* ---- sockets --------------------------------------------------------------------------------- */

EXPORT ssize_t recv(int fd, void *to, size_t size, int flags) {
        if (is_due(INJECT_RECV))
                return -1;
        if (is_short(INJECT_RECV) && size > 1)
                size = 1;
        return next_syscall(SYS_recvfrom, fd, to, size, flags, NULL, NULL);
}

/* One byte of the first part that has any. */
static struct msghdr cut_short(const struct msghdr *message, struct iovec *part) {
        struct msghdr cut = *message;

        for (size_t i = 0; i < message->msg_iovlen; i++)
                if (message->msg_iov[i].iov_len > 0) {
                        *part = (struct iovec){message->msg_iov[i].iov_base, 1};
                        cut.msg_iov = part;
                        cut.msg_iovlen = 1;
                        break;
                }
        return cut;
}

EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
        struct iovec part;
        struct msghdr cut;
        ssize_t got;

        if (is_due(INJECT_RECV))
                return -1;
        if (!is_short(INJECT_RECV))
                return next_syscall(SYS_recvmsg, fd, message, flags);
        cut = cut_short(message, &part);
        got = next_syscall(SYS_recvmsg, fd, &cut, flags);
        message->msg_controllen = cut.msg_controllen;
        message->msg_flags = cut.msg_flags;
        return got;
}

EXPORT ssize_t send(int fd, const void *from, size_t size, int flags) {
        if (is_due(INJECT_SEND))
                return -1;
        if (is_short(INJECT_SEND) && size > 1)
                size = 1;
        return next_syscall(SYS_sendto, fd, from, size, flags, NULL, 0);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
        struct iovec part;
        struct msghdr cut;

        if (is_due(INJECT_SEND))
                return -1;
        if (!is_short(INJECT_SEND))
                return next_syscall(SYS_sendmsg, fd, message, flags);
        cut = cut_short(message, &part);
        return next_syscall(SYS_sendmsg, fd, &cut, flags);
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *bytes, int flags) {
        return is_due(INJECT_ACCEPT) ? -1
                                     : (int) next_syscall(SYS_accept4, fd, address, bytes, flags);
}

/* ---- files and memory of files --------------------------------------------------------------- */

EXPORT void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset) {
        if (is_due(INJECT_MMAP))
                return MAP_FAILED;
        return (void *) next_syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}

EXPORT int open(const char *path, int flags, ...) {
        va_list list;
        mode_t mode;

        va_start(list, flags);
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
        va_end(list);
        return is_due(INJECT_OPEN) ? -1
                                   : (int) next_syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

EXPORT int openat(int folder, const char *path, int flags, ...) {
        va_list list;
        mode_t mode;

        va_start(list, flags);
        mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0;
        va_end(list);
        return is_due(INJECT_OPEN) ? -1 : (int) next_syscall(SYS_openat, folder, path, flags, mode);
}

EXPORT int memfd_create(const char *name, unsigned flags) {
        return is_due(INJECT_OPEN) ? -1 : (int) next_syscall(SYS_memfd_create, name, flags);
}

EXPORT long syscall(long number, ...) {
        va_list list;
        long a[6];

        va_start(list, number);
        for (int i = 0; i < 6; i++)
                a[i] = va_arg(list, long);
        va_end(list);
        if (number == SYS_openat2 && is_due(INJECT_OPEN))
                return -1;
        return next_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

EXPORT ssize_t write(int fd, const void *from, size_t size) {
        return is_due(INJECT_WRITE) ? -1 : next_syscall(SYS_write, fd, from, size);
}

EXPORT ssize_t pwrite(int fd, const void *from, size_t size, off_t offset) {
        return is_due(INJECT_WRITE) ? -1 : next_syscall(SYS_pwrite64, fd, from, size, offset);
}

EXPORT int ftruncate(int fd, off_t size) {
        return is_due(INJECT_WRITE) ? -1 : (int) next_syscall(SYS_ftruncate, fd, size);
}

EXPORT ssize_t read(int fd, void *to, size_t size) {
        return is_due(INJECT_READ) ? -1 : next_syscall(SYS_read, fd, to, size);
}

EXPORT ssize_t pread(int fd, void *to, size_t size, off_t offset) {
        return is_due(INJECT_READ) ? -1 : next_syscall(SYS_pread64, fd, to, size, offset);
}

EXPORT int fstat(int fd, struct stat *ret_stat) {
        return is_due(INJECT_OPEN) ? -1 : (int) next_syscall(SYS_fstat, fd, ret_stat);
}

/* ---- threads --------------------------------------------------------------------------------- */

EXPORT int pthread_create(pthread_t *ret_thread, const pthread_attr_t *attributes,
                          void *(*fn)(void *), void *arg) {
        names_find();
        return is_due(INJECT_THREAD) ? EAGAIN
                                     : next_pthread_create(ret_thread, attributes, fn, arg);
}

EXPORT int eventfd(unsigned value, int flags) {
        names_find();
        return is_due(INJECT_THREAD) ? -1 : next_eventfd(value, flags);
}
