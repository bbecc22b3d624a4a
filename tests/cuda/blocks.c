/*
 * The threads of a block as contexts that take turns on one thread: each runs until it waits for
 * the others. A warp's exchange waits for the warp, a barrier for the block; when nobody can go on
 * and somebody has not ended, the kernel is wrong, and that is told instead of hanging.
 *
 * Shared memory is static, hence one block at a time and a lock around all.
 *
 * A context is entered once as a ucontext and left and entered by jumps from then on, which cost no
 * system call; sanitizers want to see the whole of it each time.
 */
#undef _FORTIFY_SOURCE /* a jump to another stack is what it takes for an accident */
#include "tests/cuda/blocks.h"

#include "tests/cuda/blocks_watch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAVE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAVE_ASAN 1
#endif
#endif
#ifndef HAVE_ASAN
#define HAVE_ASAN 0
#endif
#if HAVE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#define HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define HAVE_TSAN 1
#endif
#endif
#ifndef HAVE_TSAN
#define HAVE_TSAN 0
#endif
#if HAVE_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#define THREADS_MAX 1024
#define WARP 32
#define WORDS_MAX 8
#define STACK_BYTES (128U << 10)

typedef enum thread_state { READY, AT_BARRIER, AT_EXCHANGE, AT_WARP_BARRIER, ENDED } thread_state;

struct cuda_host_dim cuda_host_thread, cuda_host_block, cuda_host_grid;

const struct blocks_watch *blocks_watch;
static struct cuda_host_kernel *kernels;
static uint32_t chance; /* 0: threads take their turns by number */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct {
        ucontext_t scheduler, contexts[THREADS_MAX];
        thread_state states[THREADS_MAX];
        unsigned exchanges[THREADS_MAX];           /* how many a thread has made */
        uint32_t slots[2][THREADS_MAX][WORDS_MAX]; /* of one exchange and of the next; a warp's lie
                                                    * together */
        jmp_buf jumps[THREADS_MAX + 1];            /* the scheduler's last */
        bool has_begun[THREADS_MAX];
        void *fake_stacks[THREADS_MAX + 1];        /* a sanitizer's, the scheduler's last */
        void *fibers[THREADS_MAX + 1];             /* the other sanitizer's, likewise */
        const void *scheduler_stack;
        size_t scheduler_stack_bytes;
        uint8_t *stacks;
        unsigned threads, current;
        const struct cuda_host_kernel *kernel;
        const void *argument;
} run;

void cuda_host_register(struct cuda_host_kernel *kernel) {
        kernel->next = kernels;
        kernels = kernel;
}

const struct cuda_host_kernel *blocks_find(const char *name) {
        const struct cuda_host_kernel *kernel = kernels;

        while (kernel && strcmp(kernel->name, name) != 0)
                kernel = kernel->next;
        return kernel;
}

/* ---- Taking turns ---------------------------------------------------------------------------- */

#if HAVE_ASAN || HAVE_TSAN
static void leave(unsigned thread) {
        (void) swapcontext(&run.contexts[thread], &run.scheduler);
}

static void enter(unsigned thread) {
        (void) swapcontext(&run.scheduler, &run.contexts[thread]);
}
#else
static void leave(unsigned thread) {
        if (_setjmp(run.jumps[thread]) == 0)
                _longjmp(run.jumps[THREADS_MAX], 1);
}

static void enter(unsigned thread) {
        if (_setjmp(run.jumps[THREADS_MAX]) != 0)
                return;
        if (run.has_begun[thread])
                _longjmp(run.jumps[thread], 1);
        run.has_begun[thread] = true;
        (void) setcontext(&run.contexts[thread]);
}
#endif

static void yield(thread_state state) {
        unsigned self = run.current;

        run.states[self] = state;
#if HAVE_ASAN
        __sanitizer_start_switch_fiber(state == ENDED ? NULL : &run.fake_stacks[self],
                                       run.scheduler_stack, run.scheduler_stack_bytes);
#endif
#if HAVE_TSAN
        __tsan_switch_to_fiber(run.fibers[THREADS_MAX], 0);
#endif
        leave(self);
#if HAVE_ASAN
        __sanitizer_finish_switch_fiber(run.fake_stacks[self], &run.scheduler_stack,
                                        &run.scheduler_stack_bytes);
#endif
}

static void thread_main(void) {
#if HAVE_ASAN
        __sanitizer_finish_switch_fiber(NULL, &run.scheduler_stack, &run.scheduler_stack_bytes);
#endif
        run.kernel->entry(run.argument);
        yield(ENDED);
}

static void resume(unsigned thread) {
        run.current = thread;
        cuda_host_thread.x = thread;
#if HAVE_ASAN
        __sanitizer_start_switch_fiber(&run.fake_stacks[THREADS_MAX],
                                       run.stacks + (size_t) thread * STACK_BYTES, STACK_BYTES);
#endif
#if HAVE_TSAN
        __tsan_switch_to_fiber(run.fibers[thread], 0);
#endif
        enter(thread);
#if HAVE_ASAN
        __sanitizer_finish_switch_fiber(run.fake_stacks[THREADS_MAX], NULL, NULL);
#endif
}

void cuda_host_barrier(void) {
        yield(AT_BARRIER);
}

void cuda_host_warp_barrier(void) {
        yield(AT_WARP_BARRIER);
}

/* A lane writes into one of two rows of slots in turn. It cannot come round to the same row before
 * all lanes have met once more, by when each has read. */
const uint32_t *cuda_host_gather(const uint32_t *words, unsigned count) {
        unsigned self = run.current, first = self / WARP * WARP;
        uint32_t *slots = run.slots[run.exchanges[self]++ % 2][first];

        memcpy(slots + (self - first) * count, words, count * sizeof *words);
        yield(AT_EXCHANGE);
        return slots;
}

uint32_t cuda_host_exchange(uint32_t value, unsigned from) {
        return cuda_host_gather(&value, 1)[from];
}

/* Are all threads first .. end - 1 in that state? Then they go on. */
static bool release(unsigned first, unsigned end, thread_state state) {
        for (unsigned i = first; i < end; i++)
                if (run.states[i] != state)
                        return false;
        for (unsigned i = first; i < end; i++)
                run.states[i] = READY;
        return true;
}

static void release_warp(unsigned warp) {
        unsigned first = warp * WARP;
        unsigned end = first + WARP < run.threads ? first + WARP : run.threads;

        (void) release(first, end, AT_EXCHANGE);
        if (release(first, end, AT_WARP_BARRIER) && blocks_watch)
                blocks_watch->warp(warp);
}

static void release_block(void) {
        if (release(0, run.threads, AT_BARRIER) && blocks_watch)
                blocks_watch->barrier();
}

/* ---- Whose turn it is ------------------------------------------------------------------------ */

/* Lets every thread that can run until it waits. Returns how many ran. */
static unsigned turn_all(void) {
        unsigned count = 0;

        for (unsigned i = 0; i < run.threads; i++)
                if (run.states[i] == READY) {
                        resume(i);
                        count++;
                }
        for (unsigned i = 0; i < run.threads; i += WARP)
                release_warp(i / WARP);
        release_block();
        return count;
}

static unsigned chance_below(unsigned limit) {
        chance = chance * 1664525 + 1013904223;
        return (unsigned) ((uint64_t) (chance >> 8) * limit >> 24);
}

/* The same of one warp, in an order by chance. */
static unsigned turn_warp(unsigned warp) {
        unsigned first = chance_below(WARP), step = 2 * chance_below(WARP / 2) + 1, count = 0;

        for (unsigned i = 0; i < WARP; i++) {
                unsigned thread = warp * WARP + (first + i * step) % WARP;

                if (thread < run.threads && run.states[thread] == READY) {
                        resume(thread);
                        count++;
                }
        }
        release_warp(warp);
        return count;
}

/* Lets a warp run that can, a few times: some get far ahead of the others. */
static unsigned turn_some(void) {
        unsigned warps = (run.threads + WARP - 1) / WARP, first = chance_below(warps), count = 0;
        unsigned times = 1 + chance_below(8);

        for (unsigned i = 0; i < warps && count == 0; i++)
                count = turn_warp((first + i) % warps);
        for (unsigned i = 1; i < times && count; i++)
                (void) turn_warp(chance_below(warps));
        release_block();
        return count;
}

void blocks_shuffle(uint32_t seed) {
        (void) pthread_mutex_lock(&lock);
        chance = seed;
        (void) pthread_mutex_unlock(&lock);
}

/* The thread's number is no local variable: getcontext() may return twice. */
static void threads_make(void) {
#if HAVE_TSAN
        for (unsigned i = 0; i < run.threads; i++)
                if (!run.fibers[i])
                        run.fibers[i] = __tsan_create_fiber(0);
        run.fibers[THREADS_MAX] = __tsan_get_current_fiber();
#endif
        for (run.current = 0; run.current < run.threads; run.current++) {
                (void) getcontext(&run.contexts[run.current]);
                run.contexts[run.current].uc_stack.ss_sp =
                        run.stacks + (size_t) run.current * STACK_BYTES;
                run.contexts[run.current].uc_stack.ss_size = STACK_BYTES;
                run.contexts[run.current].uc_link = NULL;
                makecontext(&run.contexts[run.current], thread_main, 0);
                run.states[run.current] = READY;
                run.exchanges[run.current] = 0;
                run.has_begun[run.current] = false;
        }
}

static unsigned threads_ended(void) {
        unsigned ended = 0;

        for (unsigned i = 0; i < run.threads; i++)
                ended += run.states[i] == ENDED;
        return ended;
}

static bool run_together(void) {
        unsigned ended;

        threads_make();
        copies_begin_block();
        while ((chance ? turn_some() : turn_all()) > 0) {
        }
        copies_end_block();
        ended = threads_ended();
        if (ended == run.threads)
                return true;
        fprintf(stderr, "%s: block %u: %u of %u threads have ended, the others wait for ever\n",
                run.kernel->name, cuda_host_block.x, ended, run.threads);
        return false;
}

static void run_flat(void) {
        for (unsigned i = 0; i < run.threads; i++) {
                cuda_host_thread.x = i;
                run.kernel->entry(run.argument);
        }
}

bool blocks_run(const struct cuda_host_kernel *kernel, unsigned blocks, unsigned threads,
                const void *argument) {
        unsigned first;
        bool good = true;

        if (threads > THREADS_MAX)
                return false;
        (void) pthread_mutex_lock(&lock);
        if (!run.stacks) {
                void *stacks = mmap(NULL, (size_t) THREADS_MAX * STACK_BYTES,
                                    PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

                run.stacks = stacks == MAP_FAILED ? NULL : stacks;
        }
        run.kernel = kernel;
        run.argument = argument;
        run.threads = threads;
        if (blocks_watch)
                blocks_watch->launch(kernel, argument, kernel->is_flat ? NULL : run.stacks,
                                     STACK_BYTES);
        cuda_host_grid = (struct cuda_host_dim) { blocks, 1, 1 };
        first = chance ? chance_below(blocks) : 0;
        for (unsigned i = 0; i < blocks && good; i++) {
                cuda_host_block = (struct cuda_host_dim) { (first + i) % blocks, 0, 0 };
                if (blocks_watch)
                        blocks_watch->block();
                if (kernel->is_flat)
                        run_flat();
                else
                        good = run.stacks && run_together();
        }
        (void) pthread_mutex_unlock(&lock);
        return good;
}
