/*
 * See checks.h. Each byte of shared memory and each byte of a GPU's that is accessed has a cell,
 * which knows its last write and the reads since then. A block's barriers number its stretches of
 * time, the meetings of a warp its own: what happened in an earlier stretch happened before.
 */
#include "tests/cuda/checks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/blocks_watch.h"

#define WARP 32U
#define WARPS_MAX 32U
#define THREADS_MAX 1024U
#define RANGES_MAX 65536U
#define PAGE UINT64_C(4096)
#define PAGES_MAX 4096U /* cells of so many at a time; beyond, what is known is forgotten */
#define SITES_MAX 64U
#define EVERY_BLOCK UINT32_MAX

typedef enum readers { NOBODY, A_THREAD, A_WARP, SEVERAL_WARPS } readers;

struct cell {
        uint32_t stamp; /* of the launch, or of the block; another: nothing is known */
        uint32_t write_block, write_time, write_warp_time;
        uint32_t read_block, read_time, read_warp_time;
        uint16_t writer, reader;
        uint8_t is_written, is_atomic, is_coming;
        uint8_t readers;
};

struct page {
        uint64_t number; /* of PAGE bytes */
        struct cell *cells;
};

enum { IS_WRITE = 1, IS_ATOMIC = 2, IS_UNALIGNED = 4 };

struct access {
        uint64_t address;
        const void *site;
        unsigned flags;
        bool is_shared;
};

extern uint8_t __start_cuda_shared[], __stop_cuda_shared[];
extern uint8_t __executable_start[], _end[];

static struct {
        checks_memory_fn memory;
        struct checks_range ranges[RANGES_MAX], last;
        unsigned range_count;
        const struct cuda_host_kernel *kernel;
        uint64_t argument, stacks, stack_bytes, own_stack, own_stack_bytes;
        uint32_t launch, block_stamp, time, warp_time[WARPS_MAX];
        struct cell *shared;
        struct page *pages;
        unsigned page_count;
        struct page *last_page;
        uint64_t findings;
        const void *sites[SITES_MAX];
        unsigned site_count;
        char words[256];
} checks;

/* ---- What is found --------------------------------------------------------------------------- */

static bool is_new(const void *site) {
        for (unsigned i = 0; i < checks.site_count; i++)
                if (checks.sites[i] == site)
                        return false;
        if (checks.site_count < SITES_MAX)
                checks.sites[checks.site_count++] = site;
        return true;
}

static void find(const struct access *access, const char *words) {
        if (checks.findings++ == 0)
                (void) snprintf(checks.words, sizeof checks.words, "%s", words);
        if (is_new(access->site))
                fprintf(stderr, "%s: block %u, thread %u: %s %s: %s (at %#tx of the program)\n",
                        checks.kernel->name, cuda_host_block.x, cuda_host_thread.x,
                        access->flags & IS_WRITE ? "a write to" : "a read of",
                        access->is_shared ? "shared memory" : "memory", words,
                        (const uint8_t *) access->site - __executable_start);
}

uint64_t checks_findings(void) {
        return checks.findings;
}

const char *checks_take(void) {
        static char words[sizeof checks.words];

        memcpy(words, checks.words, sizeof words);
        checks.findings = 0;
        checks.words[0] = 0;
        checks.site_count = 0;
        return words;
}

/* ---- Order ----------------------------------------------------------------------------------- */

static uint32_t own_time(void) {
        return checks.warp_time[cuda_host_thread.x / WARP];
}

static bool is_own_warp(unsigned thread) {
        return thread / WARP == cuda_host_thread.x / WARP;
}

static bool write_is_before(const struct cell *cell) {
        if (cell->write_block != cuda_host_block.x)
                return false;
        return cell->write_time < checks.time || cell->writer == cuda_host_thread.x ||
               (is_own_warp(cell->writer) && cell->write_warp_time < own_time());
}

static bool reads_are_before(const struct cell *cell) {
        if (cell->readers == NOBODY)
                return true;
        if (cell->read_block != cuda_host_block.x)
                return false;
        if (cell->read_time < checks.time)
                return true;
        if (cell->readers == SEVERAL_WARPS || !is_own_warp(cell->reader))
                return false;
        return cell->read_warp_time < own_time() ||
               (cell->readers == A_THREAD && cell->reader == cuda_host_thread.x);
}

static void cell_read(struct cell *cell) {
        bool is_known = cell->readers != NOBODY;

        if (is_known && cell->read_block != cuda_host_block.x) {
                cell->read_block = EVERY_BLOCK;
                return;
        }
        if (!is_known || cell->read_time < checks.time)
                cell->readers = A_THREAD;
        else if (!is_own_warp(cell->reader))
                cell->readers = SEVERAL_WARPS;
        else if (cell->readers == A_WARP || cell->reader != cuda_host_thread.x)
                cell->readers = cell->readers == SEVERAL_WARPS      ? SEVERAL_WARPS
                                : cell->read_warp_time < own_time() ? A_THREAD
                                                                    : A_WARP;
        cell->read_block = cuda_host_block.x;
        cell->read_time = checks.time;
        cell->read_warp_time = own_time();
        cell->reader = (uint16_t) cuda_host_thread.x;
}

static void cell_write(struct cell *cell, unsigned flags) {
        cell->is_written = 1;
        cell->is_atomic = (flags & IS_ATOMIC) != 0;
        cell->write_block = cuda_host_block.x;
        cell->write_time = checks.time;
        cell->write_warp_time = own_time();
        cell->writer = (uint16_t) cuda_host_thread.x;
        cell->readers = NOBODY;
}

static void cell_access(struct cell *cell, const struct access *access) {
        uint32_t stamp = access->is_shared ? checks.block_stamp : checks.launch;
        bool is_write = access->flags & IS_WRITE;

        if (cell->stamp != stamp)
                *cell = (struct cell) { .stamp = stamp };
        if (cell->is_coming)
                find(access, "an asynchronous copy is still bringing it");
        else if (!cell->is_written && !is_write && access->is_shared)
                find(access, "nobody has written it in this block");
        else if (cell->is_written && !write_is_before(cell) &&
                 !(cell->is_atomic && access->flags & IS_ATOMIC))
                find(access, cell->write_block == cuda_host_block.x
                                     ? "another thread writes it, and nothing says who is first"
                                     : "another block writes it");
        else if (is_write && !reads_are_before(cell))
                find(access, cell->read_block == cuda_host_block.x
                                     ? "another thread reads it, and nothing says who is first"
                                     : "another block reads it");
        if (is_write)
                cell_write(cell, access->flags);
        else
                cell_read(cell);
}

/* ---- Cells ----------------------------------------------------------------------------------- */

static void pages_forget(void) {
        for (unsigned i = 0; i < 2 * PAGES_MAX && checks.pages; i++) {
                free(checks.pages[i].cells);
                checks.pages[i] = (struct page) { 0 };
        }
        checks.page_count = 0;
        checks.last_page = NULL;
}

static struct page *page_of(uint64_t number) {
        unsigned i = (unsigned) (number * UINT64_C(0x9e3779b97f4a7c15) >> 40) % (2 * PAGES_MAX);

        while (checks.pages[i].cells && checks.pages[i].number != number)
                i = (i + 1) % (2 * PAGES_MAX);
        if (!checks.pages[i].cells) {
                if (checks.page_count++ == PAGES_MAX) {
                        pages_forget();
                        return page_of(number);
                }
                checks.pages[i].number = number;
                checks.pages[i].cells = calloc(PAGE, sizeof(struct cell));
                if (!checks.pages[i].cells)
                        abort();
        }
        return &checks.pages[i];
}

static struct cell *cell_of(uint64_t address) {
        if (!checks.last_page || checks.last_page->number != address / PAGE)
                checks.last_page = page_of(address / PAGE);
        return &checks.last_page->cells[address % PAGE];
}

/* ---- Where ----------------------------------------------------------------------------------- */

static bool is_in(uint64_t address, uint64_t size, uint64_t base, uint64_t bytes) {
        return address - base < bytes && size <= bytes - (address - base);
}

static bool is_device(uint64_t address, uint64_t size) {
        unsigned low = 0, high = checks.range_count;

        if (is_in(address, size, checks.last.base, checks.last.bytes))
                return true;
        while (high - low > 1) {
                unsigned middle = (low + high) / 2;

                if (checks.ranges[middle].base <= address)
                        low = middle;
                else
                        high = middle;
        }
        if (!checks.range_count ||
            !is_in(address, size, checks.ranges[low].base, checks.ranges[low].bytes))
                return false;
        checks.last = checks.ranges[low];
        return true;
}

static bool is_shared(uint64_t address) {
        return address - (uint64_t) (uintptr_t) __start_cuda_shared <
               (uint64_t) (__stop_cuda_shared - __start_cuda_shared);
}

/* The thread's own stack, what it was given, and what the program holds for all. */
static bool is_private(uint64_t address, uint64_t size, unsigned flags) {
        uint64_t start = (uint64_t) (uintptr_t) __executable_start;

        if (is_in(address, size, checks.own_stack, checks.own_stack_bytes))
                return true;
        if (flags & IS_WRITE)
                return false;
        return is_in(address, size, checks.argument, checks.kernel->argument_bytes) ||
               is_in(address, size, start, (uint64_t) (uintptr_t) _end - start);
}

static void own_stack_update(void) {
        if (checks.stacks)
                checks.own_stack = checks.stacks + cuda_host_thread.x * checks.stack_bytes;
}

static void look(const void *at, uint64_t size, unsigned flags, const void *site) {
        struct access access = { (uint64_t) (uintptr_t) at, site, flags, false };

        if (!checks.kernel)
                return;
        own_stack_update();
        access.is_shared = is_shared(access.address);
        if (!access.is_shared && is_private(access.address, size, flags))
                return;
        if (!access.is_shared && !is_device(access.address, size)) {
                find(&access, checks.stacks && is_in(access.address, 1, checks.stacks,
                                                     THREADS_MAX * checks.stack_bytes)
                                      ? "it is another thread's own"
                                      : "it lies outside of what the GPU has");
                return;
        }
        if (!(flags & IS_UNALIGNED) && access.address % size)
                find(&access, "it is not aligned to its size");
        for (uint64_t i = 0; i < size; i++) {
                uint64_t byte = access.address + i;

                cell_access(access.is_shared
                                    ? &checks.shared[byte - (uint64_t) (uintptr_t)
                                                                    __start_cuda_shared]
                                    : cell_of(byte),
                            &access);
        }
}

/* ---- What blocks.c and copies.c tell --------------------------------------------------------- */

static int range_compare(const void *a, const void *b) {
        const struct checks_range *left = a, *right = b;

        return left->base < right->base ? -1 : left->base > right->base;
}

/* Threads of flat kernels run on the stack of whoever runs them. */
static void flat_stack_find(void) {
        pthread_attr_t attributes;
        size_t bytes = 0;
        void *base = NULL;

        if (pthread_getattr_np(pthread_self(), &attributes) != 0)
                abort();
        (void) pthread_attr_getstack(&attributes, &base, &bytes);
        (void) pthread_attr_destroy(&attributes);
        checks.own_stack = (uint64_t) (uintptr_t) base;
        checks.own_stack_bytes = bytes;
}

static void on_launch(const struct cuda_host_kernel *kernel, const void *argument,
                      const void *stacks, unsigned long stack_bytes) {
        checks.kernel = kernel;
        checks.argument = (uint64_t) (uintptr_t) argument;
        checks.stacks = (uint64_t) (uintptr_t) stacks;
        checks.stack_bytes = checks.own_stack_bytes = stack_bytes;
        if (!stacks)
                flat_stack_find();
        checks.range_count = checks.memory(checks.ranges, RANGES_MAX);
        if (checks.range_count > RANGES_MAX)
                abort();
        qsort(checks.ranges, checks.range_count, sizeof *checks.ranges, range_compare);
        checks.last = (struct checks_range) { 0 };
        checks.launch++;
}

static void on_block(void) {
        checks.block_stamp++;
        checks.time = 1;
        memset(checks.warp_time, 0, sizeof checks.warp_time);
}

static void on_barrier(void) {
        checks.time++;
}

static void on_warp(unsigned warp) {
        checks.warp_time[warp]++;
}

/* From its beginning to the wait for it a copy may write at any time. */
static void on_brings(const void *to, const void *from, const void *site) {
        look(from, 16, 0, site);
        look(to, 16, IS_WRITE, site);
        for (unsigned i = 0; i < 16 && is_shared((uint64_t) (uintptr_t) to); i++)
                checks.shared[(const uint8_t *) to - __start_cuda_shared + i].is_coming = 1;
}

static void on_brought(const void *to) {
        for (unsigned i = 0; i < 16 && is_shared((uint64_t) (uintptr_t) to); i++) {
                struct cell *cell =
                        &checks.shared[(const uint8_t *) to - __start_cuda_shared + i];

                cell->is_coming = 0;
                cell_write(cell, 0);
        }
}

static void on_add(const void *at, const void *site) {
        look(at, sizeof(int), IS_WRITE | IS_ATOMIC, site);
}

static void on_copies_left(void) {
        struct access access = { .site = checks.kernel };

        find(&access, "a copy was begun that its thread does not wait for");
}

void checks_begin(checks_memory_fn memory) {
        static const struct blocks_watch watch = {
                .launch = on_launch,
                .block = on_block,
                .barrier = on_barrier,
                .warp = on_warp,
                .brings = on_brings,
                .brought = on_brought,
                .adds = on_add,
                .leaves_copies = on_copies_left,
        };

        checks.memory = memory;
        checks.shared = calloc((size_t) (__stop_cuda_shared - __start_cuda_shared),
                               sizeof *checks.shared);
        checks.pages = calloc((size_t) 2 * PAGES_MAX, sizeof *checks.pages);
        if (!checks.shared || !checks.pages)
                abort();
        blocks_watch = &watch;
}

/* ---- What the compiler calls ----------------------------------------------------------------- */

#define ACCESS(name, size, flags)                                                                  \
        void __tsan_##name(void *at);                                                              \
        void __tsan_##name(void *at) {                                                             \
                look(at, size, flags, __builtin_return_address(0));                                \
        }
#define ACCESSES(size)                                                                             \
        ACCESS(read##size, size, 0)                                                                \
        ACCESS(write##size, size, IS_WRITE)                                                        \
        ACCESS(volatile_read##size, size, IS_ATOMIC)                                               \
        ACCESS(volatile_write##size, size, IS_WRITE | IS_ATOMIC)                                   \
        ACCESS(unaligned_read##size, size, IS_UNALIGNED)                                           \
        ACCESS(unaligned_write##size, size, IS_WRITE | IS_UNALIGNED)

ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void *at, unsigned long size);
void __tsan_read_range(void *at, unsigned long size) {
        look(at, size, IS_UNALIGNED, __builtin_return_address(0));
}

void __tsan_write_range(void *at, unsigned long size);
void __tsan_write_range(void *at, unsigned long size) {
        look(at, size, IS_WRITE | IS_UNALIGNED, __builtin_return_address(0));
}

void __tsan_init(void);
void __tsan_init(void) {
}
