/*
 * The table of guarded ranges is read inside a signal handler, on any thread: entries are claimed
 * and given back with atomics and never move. An entry's image is set last and cleared first, and a
 * thread that faults in an image holds a reference to it, so its entry stays while it is looked up.
 * Blocks of entries are chained and never freed.
 */
#include "daemon/image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_ENTRIES 64U

struct guard_block {
        _Atomic(struct hr_image *) images[BLOCK_ENTRIES];
        _Atomic(struct guard_block *) next;
};

static struct guard_block first_block;
static atomic_bool handler_is_installed;
static uintptr_t page_bytes; /* set before the handler is */

static bool guard_claim(struct guard_block *block, uint32_t first, struct hr_image *image) {
        for (uint32_t i = 0; i < BLOCK_ENTRIES; i++) {
                struct hr_image *none = NULL;

                if (atomic_compare_exchange_strong(&block->images[i], &none, image)) {
                        image->guard = first + i + 1;
                        return true;
                }
        }
        return false;
}

static hr_status guard_add(struct hr_image *image, struct hr_diag *diag) {
        struct guard_block *block = &first_block;

        for (uint32_t first = 0;; first += BLOCK_ENTRIES) {
                struct guard_block *next, *none = NULL;

                if (guard_claim(block, first, image))
                        return HR_OK;
                next = atomic_load(&block->next);
                if (!next) {
                        next = calloc(1, sizeof *next);
                        if (!next)
                                return hr_fail(diag, HR_E_EXHAUSTED, "table of mappings");
                        if (!atomic_compare_exchange_strong(&block->next, &none, next)) {
                                free(next);
                                next = none;
                        }
                }
                block = next;
        }
}

static void guard_remove(struct hr_image *image) {
        struct guard_block *block = &first_block;
        uint32_t index = image->guard - 1;

        if (image->guard == 0)
                return;
        for (; index >= BLOCK_ENTRIES; index -= BLOCK_ENTRIES)
                block = atomic_load(&block->next);
        atomic_store(&block->images[index], NULL);
        image->guard = 0;
}

/* Async-signal-safe. */
static struct hr_image *guard_find(const uint8_t *address) {
        for (struct guard_block *block = &first_block; block; block = atomic_load(&block->next))
                for (uint32_t i = 0; i < BLOCK_ENTRIES; i++) {
                        struct hr_image *image = atomic_load(&block->images[i]);

                        if (image && address >= image->base && address < image->base + image->bytes)
                                return image;
                }
        return NULL;
}

/* Zeros from the page of the fault to the end. mmap() is a plain system call here, and safe. */
static void bus_handler(int number, siginfo_t *facts, void *context) {
        const int kept = errno;
        uint8_t *address = facts->si_addr;
        struct hr_image *image = facts->si_code > 0 ? guard_find(address) : NULL;
        uintptr_t page;

        (void) context;
        if (image) {
                page = (uintptr_t) address & ~(page_bytes - 1);
                atomic_store(&image->is_lost, true);
                if (mmap((void *) page, (size_t) (image->base + image->bytes - (uint8_t *) page),
                         PROT_READ | (image->is_writable ? PROT_WRITE : 0),
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
                         0) != MAP_FAILED) {
                        errno = kept;
                        return;
                }
        }
        (void) signal(number, SIG_DFL); /* the same instruction faults again */
        errno = kept;
}

void hr_image_guard(void) {
        struct sigaction action = {.sa_sigaction = bus_handler,
                                   .sa_flags = SA_SIGINFO | SA_RESTART};

        if (atomic_exchange(&handler_is_installed, true))
                return;
        page_bytes = (uintptr_t) sysconf(_SC_PAGESIZE);
        (void) sigemptyset(&action.sa_mask);
        (void) sigaction(SIGBUS, &action, NULL);
}

hr_status hr_image_new(void *base, uint64_t bytes, int fd, struct hr_diag *diag,
                       struct hr_image **ret_image) {
        struct hr_image *image = calloc(1, sizeof *image);
        hr_status status;

        if (!image) {
                (void) munmap(base, bytes);
                return hr_fail(diag, HR_E_EXHAUSTED, "mapping of %" PRIu64 " bytes", bytes);
        }
        atomic_init(&image->refs, 1);
        image->base = base;
        image->bytes = bytes;
        image->fd = -1;
        status = guard_add(image, diag);
        if (status != HR_OK) {
                (void) hr_image_unref(image);
                return status;
        }
        image->fd = fd;
        *ret_image = image;
        return HR_OK;
}

static hr_status no_memory(uint64_t bytes, struct hr_diag *diag) {
        if (diag && diag->status == HR_OK)
                diag->actual = bytes;
        return hr_fail_reason(diag, HR_E_EXHAUSTED, "HOST_MEMORY",
                              "no memory for %" PRIu64 " bytes of an upload", bytes);
}

static bool size_set(int fd, off_t bytes) {
        int done;

        do {
                done = ftruncate(fd, bytes);
        } while (done < 0 && errno == EINTR);
        return done == 0;
}

hr_status hr_image_new_memory(uint64_t bytes, struct hr_diag *diag, struct hr_image **ret_image) {
        const uint64_t room = HR_MAX(bytes, UINT64_C(1));
        const int fd = memfd_create("headrace-weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        hr_status status;
        void *base;

        if (fd < 0)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "DESCRIPTORS",
                                      "no descriptor for an upload");
        if (room > INT64_MAX || !size_set(fd, (off_t) room)) {
                (void) close(fd);
                return no_memory(bytes, diag);
        }
        base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED) {
                (void) close(fd);
                return no_memory(bytes, diag);
        }
        (void) madvise(base, room, MADV_HUGEPAGE);
        status = hr_image_new(base, room, fd, diag, ret_image);
        if (status != HR_OK)
                (void) close(fd);
        return status;
}

hr_status hr_image_write(struct hr_image *image, const uint8_t *to, const void *bytes, size_t size,
                         struct hr_diag *diag) {
        const uint8_t *from = bytes;

        HR_ASSERT(image->fd >= 0 && !image->is_file);
        HR_ASSERT(to >= image->base && size <= image->bytes - (uint64_t) (to - image->base));
        while (size > 0) {
                const ssize_t done = pwrite(image->fd, from, size, (off_t) (to - image->base));

                if (done < 0 && errno == EINTR)
                        continue;
                if (done <= 0)
                        return no_memory(image->bytes, diag);
                from += done;
                to += done;
                size -= (size_t) done;
        }
        return HR_OK;
}

hr_status hr_image_seal(struct hr_image *image, struct hr_diag *diag) {
        HR_ASSERT(image->fd >= 0);
        /* A seal against writing needs that no shared mapping could write; read-only shared ones
         * are refused by kernels before 6.7. */
        if (mmap(image->base, image->bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, image->fd, 0) ==
            MAP_FAILED)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "HOST_MEMORY",
                                      "an upload cannot be mapped for reading");
        if (fcntl(image->fd, F_ADD_SEALS,
                  F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                return hr_fail(diag, HR_E_INTERNAL, "an upload cannot be sealed");
        return HR_OK;
}

struct hr_image *hr_image_ref(struct hr_image *image) {
        atomic_fetch_add(&image->refs, 1);
        return image;
}

struct hr_image *hr_image_unref(struct hr_image *image) {
        if (image && atomic_fetch_sub(&image->refs, 1) == 1) {
                guard_remove(image);
                (void) munmap(image->base, image->bytes);
                if (image->fd >= 0)
                        (void) close(image->fd);
                free(image);
        }
        return NULL;
}

hr_status hr_image_watch(struct hr_image *image, int fd, struct hr_diag *diag) {
        HR_ASSERT(image->fd < 0);
        image->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
        if (image->fd < 0)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "DESCRIPTORS",
                                      "no descriptor for a model file");
        image->is_file = true;
        return HR_OK;
}

bool hr_image_check(struct hr_image *image) {
        struct statx facts;

        if (image->is_file && !hr_image_is_lost(image) &&
            (statx(image->fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_SIZE, &facts) != 0 ||
             facts.stx_size < image->bytes))
                hr_image_mark_lost(image);
        return hr_image_is_lost(image);
}

bool hr_image_is_lost(const struct hr_image *image) {
        return atomic_load(&image->is_lost);
}

void hr_image_mark_lost(struct hr_image *image) {
        atomic_store(&image->is_lost, true);
}
