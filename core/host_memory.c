/*
 * Host memory as buffers.
 *
 * The kernel grants address space that it cannot back and ends a process when the bill comes in. So
 * a large request is first compared with what the system says it can give; what is refused here is
 * an error of one request instead of the end of the daemon. Small buffers come from the allocator,
 * where the sanitizers guard their ends; large ones are mapped, zero pages until touched.
 *
 * What devices compute in is mapped from a few pages on, with addresses that lead nowhere before
 * and behind it. Processors fetch ahead past the end of what a thread reads, across the end of a
 * page as well, and the system puts one mapping right below the one before: lines that a neighbour
 * writes would wander to and fro between two processors, and a stage of a pipeline would take a
 * third longer where these have no cache in common.
 */
#include "core/host.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAPPED_FROM_BYTES ((uint64_t) 1 << 20)
#define HUGE_FROM_BYTES ((uint64_t) 4 << 20)
#define COMPUTE_MAPPED_FROM_BYTES ((uint64_t) 16 << 10)
/* Before and behind mapped memory; that of a huge page where there are such, so that they fit. */
#define GAP_BYTES ((uint64_t) 64 << 10)
#define HUGE_GAP_BYTES ((uint64_t) 2 << 20)

/* Where the allocator guards the ends of what it gives, it gives all but the large. */
#if defined(__SANITIZE_ADDRESS__)
#define GUARDED_ENDS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define GUARDED_ENDS 1
#endif
#endif
#ifndef GUARDED_ENDS
#define GUARDED_ENDS 0
#endif

struct host_buffer {
        struct hr_buffer buffer;
        bool is_mapped;
};

/* The number after `key` in a file of "key: number kB" lines, in bytes; 0 = not found. */
static uint64_t meminfo_bytes(const char *text, const char *key) {
        const char *line = strstr(text, key);
        uint64_t kib;

        if (!line || sscanf(line + strlen(key), " %" SCNu64, &kib) != 1)
                return 0;
        return kib * 1024;
}

static size_t file_read(const char *path, char *text, size_t room) {
        FILE *file = fopen(path, "re");
        size_t bytes = 0;

        if (file) {
                bytes = fread(text, 1, room - 1, file);
                (void) fclose(file);
        }
        text[bytes] = '\0';
        return bytes;
}

void hr_host_memory(uint64_t *ret_free, uint64_t *ret_total) {
        uint64_t limit, current, total, available;
        char text[4096];

        (void) file_read("/proc/meminfo", text, sizeof text);
        total = meminfo_bytes(text, "MemTotal:");
        available = meminfo_bytes(text, "MemAvailable:");
        if (!total)
                total = available = UINT64_MAX;
        /* Inside a container with a limit of its own ("max" is no number). */
        (void) file_read("/sys/fs/cgroup/memory.max", text, sizeof text);
        if (sscanf(text, "%" SCNu64, &limit) == 1) {
                (void) file_read("/sys/fs/cgroup/memory.current", text, sizeof text);
                if (sscanf(text, "%" SCNu64, &current) != 1)
                        current = 0;
                total = HR_MIN(total, limit);
                available = HR_MIN(available, limit > current ? limit - current : 0);
        }
        *ret_free = available;
        *ret_total = total;
}

/* Pages, and the gap on either side of them. */
static uint64_t map_room(uint64_t bytes) {
        uint64_t page = (uint64_t) sysconf(_SC_PAGESIZE);

        return (bytes + page - 1) / page * page;
}

static uint64_t map_gap(uint64_t bytes) {
        return bytes >= HUGE_FROM_BYTES ? HUGE_GAP_BYTES : GAP_BYTES;
}

static void memory_unmap(void *base, uint64_t bytes) {
        uint64_t gap = map_gap(bytes);

        (void) munmap((uint8_t *) base - gap, (size_t) (map_room(bytes) + 2 * gap));
}

static void *memory_map(uint64_t bytes) {
        uint64_t gap = map_gap(bytes), room = map_room(bytes);
        uint8_t *whole = mmap(NULL, (size_t) (room + 2 * gap), PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (whole == MAP_FAILED)
                return NULL;
        if (mprotect(whole + gap, (size_t) room, PROT_READ | PROT_WRITE) != 0) {
                memory_unmap(whole + gap, bytes);
                return NULL;
        }
        if (bytes >= HUGE_FROM_BYTES)
                (void) madvise(whole + gap, (size_t) room, MADV_HUGEPAGE);
        return whole + gap;
}

static void host_buffer_destroy(struct hr_buffer *buffer) {
        struct host_buffer *host = HR_CONTAINER_OF(buffer, struct host_buffer, buffer);

        if (host->is_mapped)
                memory_unmap(buffer->base, buffer->bytes);
        else
                free(buffer->base);
        free(host);
}

static const struct hr_buffer_ops host_buffer_ops = {
        .size = sizeof host_buffer_ops,
        .destroy = host_buffer_destroy,
        .grow = hr_buffer_grow_none,
};

static hr_status memory_refuse(const struct hr_device *device, uint64_t asked, uint64_t left,
                               struct hr_diag *diag) {
        bool first = diag && diag->status == HR_OK;

        (void) hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                              "%s: %" PRIu64 " bytes asked, %" PRIu64 " free", device->props.name,
                              asked, left);
        if (first) {
                diag->limit = left;
                diag->actual = asked;
        }
        return HR_E_EXHAUSTED;
}

static void *memory_allocate(uint64_t bytes, uint32_t align) {
        void *base;

        if (posix_memalign(&base, align, bytes ? (size_t) bytes : 1) != 0)
                return NULL;
        memset(base, 0, bytes ? (size_t) bytes : 1);
        return base;
}

hr_status hr_host_buffer_new(struct hr_device *device, const struct hr_buffer_kind *kind,
                             uint64_t bytes, hr_buffer_usage usage, struct hr_diag *diag,
                             struct hr_buffer **ret_buffer) {
        struct host_buffer *host;
        uint64_t left = 0, total;
        bool is_large = bytes >= MAPPED_FROM_BYTES;
        bool is_mapped = is_large || (!GUARDED_ENDS && usage == HR_USAGE_COMPUTE &&
                                      bytes >= COMPUTE_MAPPED_FROM_BYTES);
        void *base;

        if (is_large) {
                hr_host_memory(&left, &total);
                if (bytes > left || bytes > SIZE_MAX / 2)
                        return memory_refuse(device, bytes, left, diag);
        }
        base = is_mapped ? memory_map(bytes) : memory_allocate(bytes, HR_MAX(kind->alignment, 64U));
        host = calloc(1, sizeof *host);
        if (!base || !host) {
                if (base && is_mapped)
                        memory_unmap(base, bytes);
                else
                        free(base);
                free(host);
                return memory_refuse(device, bytes, left, diag);
        }
        host->is_mapped = is_mapped;
        host->buffer.ops = &host_buffer_ops;
        host->buffer.device = device;
        host->buffer.kind = kind;
        host->buffer.usage = usage;
        atomic_init(&host->buffer.refs, 1);
        host->buffer.base = host->buffer.host_base = base;
        host->buffer.bytes = bytes;
        *ret_buffer = &host->buffer;
        return HR_OK;
}
