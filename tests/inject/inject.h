/*
 * What a test and a process under injection share: one page of a file, mapped by both.
 *
 * The test sets `kind`, `error` and so on, and `countdown` last; the process counts every call of
 * each kind and lets those fail that are due. tests/hostile/inject.py knows this layout, too.
 */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

enum inject_kind {
        INJECT_NONE,
        INJECT_MALLOC, /* malloc, calloc, realloc, aligned_alloc, posix_memalign */
        INJECT_RECV,   /* recv, recvmsg */
        INJECT_SEND,   /* send, sendmsg */
        INJECT_ACCEPT, /* accept4 */
        INJECT_MMAP,   /* mmap */
        INJECT_OPEN,   /* open, openat, openat2, memfd_create, fstat */
        INJECT_WRITE,  /* write, pwrite, ftruncate */
        INJECT_READ,   /* read, pread */
        INJECT_THREAD, /* pthread_create, eventfd */
        INJECT_KINDS,
};

enum inject_mode {
        INJECT_ONCE,  /* the call at which `countdown` arrives at 0 */
        INJECT_EVERY, /* every `period`-th call */
        INJECT_SHORT, /* RECV and SEND: every call moves one byte at most */
};

struct inject_control {
        _Atomic uint32_t kind, mode, error, period;
        _Atomic int64_t countdown;
        _Atomic uint64_t fired;
        _Atomic uint64_t calls[16];
        _Atomic int64_t live_blocks; /* allocated and not yet freed */
        _Atomic int64_t live_bytes;
};
