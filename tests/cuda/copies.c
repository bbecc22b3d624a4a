/*
 * Copies to shared memory that a thread does not wait for. The GPU may bring them at any time from
 * their beginning to the wait; here they come at the wait, and until then their place holds
 * rubbish, so that a kernel that reads too early reads something else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/blocks_watch.h"

#define THREADS_MAX 1024
#define PENDING_MAX 64
#define PIECE 16
#define RUBBISH 0xa5

/* Of a thread, in order: those of earlier groups first. */
struct pending {
        void *to;
        const void *from;
        unsigned group;
};

static struct {
        struct pending pending[PENDING_MAX];
        unsigned count, groups; /* groups that are complete */
} threads[THREADS_MAX];

void copies_begin_block(void) {
        for (unsigned i = 0; i < THREADS_MAX; i++)
                threads[i].count = threads[i].groups = 0;
}

void copies_end_block(void) {
        for (unsigned i = 0; i < THREADS_MAX; i++)
                if (threads[i].count && blocks_watch)
                        blocks_watch->leaves_copies();
}

static void die(const char *words) {
        fprintf(stderr, "%s\n", words);
        abort();
}

void cuda_host_copy_begin(void *to, const void *from) {
        unsigned self = cuda_host_thread.x;

        if ((uintptr_t) to % PIECE || (uintptr_t) from % PIECE)
                die("a copy of sixteen bytes that are not aligned");
        if (threads[self].count == PENDING_MAX)
                die("more copies under way than a thread should have");
        if (blocks_watch)
                blocks_watch->brings(to, from, __builtin_return_address(0));
        memset(to, RUBBISH, PIECE);
        threads[self].pending[threads[self].count++] =
                (struct pending) { to, from, threads[self].groups };
}

void cuda_host_copy_group(void) {
        threads[cuda_host_thread.x].groups++;
}

void cuda_host_copy_wait(unsigned count) {
        unsigned self = cuda_host_thread.x, done = 0, groups = threads[self].groups;

        while (done < threads[self].count && threads[self].pending[done].group + count < groups) {
                struct pending *p = &threads[self].pending[done++];

                memcpy(p->to, p->from, PIECE);
                if (blocks_watch)
                        blocks_watch->brought(p->to);
        }
        threads[self].count -= done;
        memmove(threads[self].pending, threads[self].pending + done,
                threads[self].count * sizeof *threads[self].pending);
}

int cuda_host_add(int *at, int value) {
        int before = *at;

        if (blocks_watch)
                blocks_watch->adds(at, __builtin_return_address(0));
        *at = before + value;
        return before;
}
