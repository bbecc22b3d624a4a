/*
 * Brings mapped files into memory, on a thread of its own.
 *
 * A task is a list of ranges of one mapping, in the order in which they are wanted. The thread
 * takes a chunk of each task in turn, so that a large file does not hold up a small one, and counts
 * what is there. Whoever uses only what has been counted never waits for a disk, and is told of a
 * file that has become shorter, or cannot be read, instead of being killed by it.
 */
#pragma once

#include <stdatomic.h>

#include "core/list.h"
#include "core/status.h"

/* At least this much is read between two looks at whether a task has been stopped. */
#define HR_READER_CHUNK_BYTES (UINT64_C(4) << 20)

struct hr_reader_range {
        uint64_t offset, bytes; /* in the mapping */
        bool skip;              /* counted without being read */
};

/* Caller's storage, until it is over. Set by the caller: the first block. */
struct hr_reader_task {
        const uint8_t *base; /* of the mapping, page-aligned */
        uint64_t room;       /* its bytes; 0: what is cached in small pages stays so */
        int fd;              /* of the file, for kernels that cannot populate a mapping */
        const struct hr_reader_range *ranges;
        uint32_t range_count;
        /* Told after each chunk and at the end. Thread: the reader's; must not call the reader. */
        void (*wake)(void *arg);
        void *arg;
        /* Results. Thread: any. */
        atomic_uint_fast64_t counted; /* bytes of the ranges, from the first on */
        atomic_bool failed;           /* the bytes after `counted` cannot be had */
        /* Private. */
        atomic_bool stop, over;
        bool keep_pages; /* large ones cannot be had */
        uint32_t range;
        uint64_t range_done;
        struct hr_list link;
};

struct hr_reader;

HR_NODISCARD hr_status hr_reader_new(struct hr_diag *diag, struct hr_reader **ret_reader);
/* After the last task is over. NULL is a no-op. Returns NULL. */
struct hr_reader *hr_reader_free(struct hr_reader *reader);
/* Thread: any. */
void hr_reader_add(struct hr_reader *reader, struct hr_reader_task *task);
/* Asks a task to end after its chunk, as far as it has got. Idempotent. Thread: any. */
void hr_reader_stop(struct hr_reader_task *task);
/* True when the thread will not touch the task again (also for a zeroed one, never added). */
bool hr_reader_is_over(const struct hr_reader_task *task);

/* Brings bytes into memory. False when they cannot be read. For hr_reader and tests. */
bool hr_reader_populate(const struct hr_reader_task *task, uint64_t offset, uint64_t bytes);
/* The same by reading the file: the bytes are then in the system's cache. */
bool hr_reader_read_through(const struct hr_reader_task *task, uint64_t offset, uint64_t bytes);
