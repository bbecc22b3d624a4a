/*
 * Which pages are large is asked of the kernel with PAGEMAP_SCAN, whose numbers stand here: the
 * headers of the systems that this is built on are older than it.
 */
#include "daemon/large_pages.h"

#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/base.h"

#define LARGE_PAGE (UINT64_C(2) << 20)

/* linux/fs.h: struct pm_scan_arg, struct page_region. */
struct scan {
        uint64_t size, flags, start, end, walk_end, regions, region_count, pages_max;
        uint64_t inverted, all_of, any_of, returned;
};

struct region {
        uint64_t start, end, categories;
};

#define SCAN _IOWR('f', 16, struct scan)
#define IS_HUGE (UINT64_C(1) << 6)

void hr_large_pages_want(void *base, uint64_t bytes) {
        (void) madvise(base, (size_t) bytes, MADV_HUGEPAGE);
}

/* The word in brackets is the one that holds. */
static bool choice_is(const char *path, const char *word) {
        char text[128];
        const int fd = open(path, O_RDONLY | O_CLOEXEC);
        const ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;

        if (fd >= 0)
                (void) close(fd);
        text[HR_MAX(length, 0)] = '\0';
        return strstr(text, word) != NULL;
}

bool hr_large_pages_are_shared(void) {
        static const char *const words[] = {"[always]", "[within_size]", "[advise]"};
        static const char all[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
        static const char one[] =
                "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";
        const bool is_inherited = choice_is(one, "[inherit]") || access(one, R_OK) != 0;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(words); i++)
                if (choice_is(is_inherited ? all : one, words[i]))
                        return !choice_is(all, "[deny]");
        return choice_is(all, "[force]");
}

void hr_large_pages_span(const uint8_t *base, uint64_t room, uint64_t offset, uint64_t bytes,
                         uint64_t *ret_first, uint64_t *ret_end) {
        /* Of memory, not of the file, whose start is a large page's. */
        const uint64_t lead = (uint64_t) (uintptr_t) base % LARGE_PAGE;
        const uint64_t last = room / LARGE_PAGE * LARGE_PAGE;
        uint64_t first = offset / LARGE_PAGE * LARGE_PAGE, end = last;

        if (offset < last && bytes < last - offset)
                end = (offset + bytes + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
        if (lead || first >= end) /* a mapping that lies askew has none */
                first = end = 0;
        *ret_first = first;
        *ret_end = end;
}

int hr_large_pages_scanner(void) {
        const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
        struct scan nothing = {.size = sizeof nothing};

        if (fd >= 0 && ioctl(fd, SCAN, &nothing) < 0) {
                (void) close(fd);
                return -1;
        }
        return fd;
}

bool hr_large_pages_used(int scanner, const uint8_t *base, uint64_t first, uint64_t end) {
        struct region region = {0};
        struct scan scan = {.size = sizeof scan,
                            .start = (uint64_t) (uintptr_t) base + first,
                            .end = (uint64_t) (uintptr_t) base + end,
                            .regions = (uint64_t) (uintptr_t) &region,
                            .region_count = 1,
                            .all_of = IS_HUGE,
                            .returned = IS_HUGE};

        return scanner >= 0 && ioctl(scanner, SCAN, &scan) == 1 && region.start == scan.start &&
               region.end == scan.end;
}

void hr_large_pages_drop(int fd, const uint8_t *base, uint64_t first, uint64_t end) {
        (void) madvise((void *) (uintptr_t) (base + first), (size_t) (end - first), MADV_DONTNEED);
        (void) posix_fadvise(fd, (off_t) first, (off_t) (end - first), POSIX_FADV_DONTNEED);
}
