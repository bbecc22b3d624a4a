/*
 * The thread that reads ahead of everybody who uses a mapped file.
 *
 * Pages are populated by the kernel in one call a chunk, which fails where touching them would be
 * fatal. Kernels without it (before 5.14) are asked to read the file instead; the pages are then in
 * the cache, and using them is a fault without waiting.
 *
 * Locking: `lock` guards the list of tasks and `stopping`. A task is out of the list before `over`
 * is set; after that its storage is the caller's again.
 */
#include "daemon/weights_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/thread.h"
#include "daemon/large_pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

#define SCRATCH_BYTES 65536U

struct hr_reader {
        struct hr_thread thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        struct hr_list tasks;
        bool stopping;
        int scanner; /* of large pages; -1: none */
};

bool hr_reader_read_through(const struct hr_reader_task *task, uint64_t offset, uint64_t bytes) {
        uint8_t *scratch = malloc(SCRATCH_BYTES);
        uint64_t done = 0;

        while (scratch && done < bytes) {
                const uint64_t want = HR_MIN(bytes - done, (uint64_t) SCRATCH_BYTES);
                const ssize_t got =
                        pread(task->fd, scratch, (size_t) want, (off_t) (offset + done));

                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0)
                        break;
                done += (uint64_t) got;
        }
        free(scratch);
        return done == bytes;
}

bool hr_reader_populate(const struct hr_reader_task *task, uint64_t offset, uint64_t bytes) {
        const uint64_t page = (uint64_t) sysconf(_SC_PAGESIZE);
        const uint64_t first = offset / page * page;

        for (;;) {
                if (madvise((uint8_t *) task->base + first, (size_t) (offset + bytes - first),
                            MADV_POPULATE_READ) == 0)
                        return true;
                if (errno == EINVAL)
                        return hr_reader_read_through(task, offset, bytes);
                if (errno != EAGAIN && errno != EINTR)
                        return false;
        }
}

/* A chunk, in large pages where they can be had. What lies in the cache in small ones is read
 * again, until a chunk has stayed in small ones in spite of it. */
static bool chunk_read(const struct hr_reader *reader, struct hr_reader_task *task,
                       uint64_t offset, uint64_t bytes) {
        uint64_t first, end;

        if (!hr_reader_populate(task, offset, bytes))
                return false;
        if (task->keep_pages)
                return true;
        hr_large_pages_span(task->base, task->room, offset, bytes, &first, &end);
        if (first == end || hr_large_pages_used(reader->scanner, task->base, first, end))
                return true;
        hr_large_pages_drop(task->fd, task->base, first, end);
        if (!hr_reader_populate(task, first, end - first))
                return false;
        task->keep_pages = !hr_large_pages_used(reader->scanner, task->base, first, end);
        return true;
}

/* One chunk, or as many skipped ranges as there are. True when there is more to do. */
static bool task_step(const struct hr_reader *reader, struct hr_reader_task *task) {
        const struct hr_reader_range *range;
        uint64_t bytes;

        while (task->range < task->range_count && !atomic_load(&task->stop)) {
                range = &task->ranges[task->range];
                bytes = range->bytes - task->range_done;
                if (!range->skip)
                        bytes = HR_MIN(bytes, HR_READER_CHUNK_BYTES);
                if (!range->skip && bytes > 0 &&
                    !chunk_read(reader, task, range->offset + task->range_done, bytes)) {
                        atomic_store(&task->failed, true);
                        return false;
                }
                task->range_done += bytes;
                atomic_fetch_add_explicit(&task->counted, bytes, memory_order_release);
                if (task->range_done == range->bytes) {
                        task->range++;
                        task->range_done = 0;
                }
                if (!range->skip && bytes > 0)
                        break;
        }
        return task->range < task->range_count && !atomic_load(&task->stop);
}

static void reader_main(void *arg) {
        struct hr_reader *reader = arg;

        (void) pthread_mutex_lock(&reader->lock);
        while (!reader->stopping || !hr_list_is_empty(&reader->tasks)) {
                struct hr_list *link = hr_list_pop(&reader->tasks);
                struct hr_reader_task *task;
                void (*wake)(void *arg);
                void *wake_arg;
                bool more;

                if (!link) {
                        (void) pthread_cond_wait(&reader->changed, &reader->lock);
                        continue;
                }
                (void) pthread_mutex_unlock(&reader->lock);
                task = HR_CONTAINER_OF(link, struct hr_reader_task, link);
                wake = task->wake;
                wake_arg = task->arg;
                more = task_step(reader, task);
                if (more) {
                        (void) pthread_mutex_lock(&reader->lock);
                        hr_list_append(&reader->tasks, link);
                        (void) pthread_mutex_unlock(&reader->lock);
                } else {
                        atomic_store_explicit(&task->over, true, memory_order_release);
                }
                wake(wake_arg);
                (void) pthread_mutex_lock(&reader->lock);
        }
        (void) pthread_mutex_unlock(&reader->lock);
}

hr_status hr_reader_new(struct hr_diag *diag, struct hr_reader **ret_reader) {
        struct hr_reader *reader = calloc(1, sizeof *reader);
        hr_status status;

        if (!reader)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reader of files");
        (void) pthread_mutex_init(&reader->lock, NULL);
        (void) pthread_cond_init(&reader->changed, NULL);
        hr_list_init(&reader->tasks);
        reader->scanner = hr_large_pages_scanner();
        status = hr_thread_start(&reader->thread, "hr-reader", reader_main, reader, diag);
        if (status != HR_OK) {
                (void) hr_reader_free(reader);
                return status;
        }
        *ret_reader = reader;
        return HR_OK;
}

struct hr_reader *hr_reader_free(struct hr_reader *reader) {
        if (!reader)
                return NULL;
        (void) pthread_mutex_lock(&reader->lock);
        reader->stopping = true;
        (void) pthread_cond_signal(&reader->changed);
        (void) pthread_mutex_unlock(&reader->lock);
        hr_thread_join(&reader->thread);
        HR_ASSERT(hr_list_is_empty(&reader->tasks));
        if (reader->scanner >= 0)
                (void) close(reader->scanner);
        (void) pthread_cond_destroy(&reader->changed);
        (void) pthread_mutex_destroy(&reader->lock);
        free(reader);
        return NULL;
}

void hr_reader_add(struct hr_reader *reader, struct hr_reader_task *task) {
        task->range = 0;
        task->range_done = 0;
        task->keep_pages = reader->scanner < 0 || !task->room;
        atomic_store(&task->counted, 0);
        atomic_store(&task->failed, false);
        atomic_store(&task->stop, false);
        atomic_store(&task->over, false);
        (void) pthread_mutex_lock(&reader->lock);
        hr_list_append(&reader->tasks, &task->link);
        (void) pthread_cond_signal(&reader->changed);
        (void) pthread_mutex_unlock(&reader->lock);
}

void hr_reader_stop(struct hr_reader_task *task) {
        atomic_store(&task->stop, true);
}

bool hr_reader_is_over(const struct hr_reader_task *task) {
        return !task->wake || atomic_load_explicit(&task->over, memory_order_acquire);
}
