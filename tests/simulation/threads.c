/*
 * The baton. Each thread has a semaphore of its own and sleeps on it while another one runs; the
 * wrapped functions of pthread (the linker's --wrap) are the places where the baton may go on. So
 * of all orders in which threads can come to their locks, waits and signals, a seed picks one.
 *
 * A thread that waits, waits for an address (a lock, a condition, another thread, whatever) or a
 * time. Waits are looked at again by whoever waits, as with the real functions.
 */
#include "tests/simulation/sim.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"

#define SPURIOUS_OF_1000 100
#define SPURIOUS_NS (2 * HR_NS_PER_MS)

int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __real_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __real_pthread_cond_signal(pthread_cond_t *condition);
int __real_pthread_cond_broadcast(pthread_cond_t *condition);
int __real_pthread_create(pthread_t *handle, const pthread_attr_t *attributes,
                          void *(*fn)(void *arg), void *arg);
int __real_pthread_join(pthread_t handle, void **ret_result);
int __real_sched_yield(void);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex);
int __wrap_pthread_cond_signal(pthread_cond_t *condition);
int __wrap_pthread_cond_broadcast(pthread_cond_t *condition);
int __wrap_pthread_create(pthread_t *handle, const pthread_attr_t *attributes,
                          void *(*fn)(void *arg), void *arg);
int __wrap_pthread_join(pthread_t handle, void **ret_result);
int __wrap_sched_yield(void);

#define THREADS_MAX 32

struct thread {
        uint32_t number;
        pthread_t handle;
        sem_t go;
        void *(*fn)(void *arg);
        void *arg;
        const void *waits_for; /* NULL with a time: only for that */
        uint64_t until_ns;
        bool waits, over, holds;
};

static struct thread *threads[THREADS_MAX];
static uint32_t thread_count, thread_numbers;
static _Thread_local struct thread *self;

/* ---- the baton ------------------------------------------------------------------------------- */

static bool can_go_on(struct thread *thread) {
        if (thread->waits && thread->until_ns <= sim.now_ns)
                thread->waits = false;
        return !thread->waits && !thread->over;
}

/* Nobody can go on: to the next time for which somebody waits. */
static void time_pass(void) {
        uint64_t next_ns = sim_devices_next_ns();

        for (uint32_t i = 0; i < thread_count; i++)
                if (!threads[i]->over && threads[i]->waits)
                        next_ns = HR_MIN(next_ns, threads[i]->until_ns);
        if (next_ns == SIM_NEVER)
                sim_fail("everybody waits for somebody");
        sim_sleep_check();
        sim.now_ns = HR_MAX(sim.now_ns, next_ns);
}

static struct thread *thread_pick(void) {
        struct thread *ready[THREADS_MAX];
        uint32_t count = 0;

        while (count == 0) {
                sim_devices_follow();
                for (uint32_t i = 0; i < thread_count; i++)
                        if (can_go_on(threads[i]))
                                ready[count++] = threads[i];
                if (count == 0)
                        time_pass();
        }
        return ready[sim_random(count)];
}

static void baton_give(struct thread *to) {
        sim.steps++;
        sim_note_number(to->number);
        (void) sem_post(&to->go);
}

static void baton_await(void) {
        while (sem_wait(&self->go) != 0) {
        }
}

static void baton_pass(void) {
        struct thread *next = thread_pick();

        if (next == self)
                return;
        baton_give(next);
        baton_await();
}

void sim_yield(void) {
        if (sim.running && self && !self->holds && sim_random(256) < sim.traits.preempt)
                baton_pass();
}

void sim_block(const void *what, uint64_t until_ns) {
        self->waits = true;
        self->waits_for = what;
        self->until_ns = until_ns;
        baton_pass();
        self->waits_for = NULL;
}

void sim_wake(const void *what) {
        for (uint32_t i = 0; i < thread_count; i++)
                if (threads[i]->waits && threads[i]->waits_for == what)
                        threads[i]->waits = false;
}

void sim_hold(bool hold) {
        self->holds = hold;
}

/* ---- life ------------------------------------------------------------------------------------ */

static struct thread *thread_new(void) {
        struct thread *thread = calloc(1, sizeof *thread);

        HR_ASSERT(thread && thread_count < THREADS_MAX);
        (void) sem_init(&thread->go, 0, 0);
        thread->number = thread_numbers++;
        threads[thread_count++] = thread;
        return thread;
}

static void thread_free(struct thread *thread) {
        for (uint32_t i = 0; i < thread_count; i++)
                if (threads[i] == thread) {
                        for (thread_count--; i < thread_count; i++)
                                threads[i] = threads[i + 1];
                }
        (void) sem_destroy(&thread->go);
        free(thread);
}

void sim_threads_begin(void) {
        thread_numbers = 0;
        self = thread_new();
}

void sim_threads_end(void) {
        if (thread_count != 1)
                sim_fail("%u threads have not ended", thread_count - 1);
        thread_free(self);
        self = NULL;
}

void sim_threads_print(void) {
        for (uint32_t i = 0; i < thread_count; i++)
                (void) fprintf(stderr, "  thread %u: %s%s%p until %.6f ms\n", threads[i]->number,
                               threads[i] == self ? "(here) " : "",
                               threads[i]->over    ? "over "
                               : threads[i]->waits ? "waits for "
                                                   : "can go on ",
                               threads[i]->waits_for, (double) threads[i]->until_ns / 1e6);
}

static void *thread_main(void *arg) {
        void *result;

        self = arg;
        baton_await();
        result = self->fn(self->arg);
        self->over = true;
        sim_wake(self);
        baton_give(thread_pick());
        return result;
}

int __wrap_pthread_create(pthread_t *handle, const pthread_attr_t *attributes,
                          void *(*fn)(void *arg), void *arg) {
        struct thread *thread;
        int error;

        if (!self)
                return __real_pthread_create(handle, attributes, fn, arg);
        thread = thread_new();
        thread->fn = fn;
        thread->arg = arg;
        error = __real_pthread_create(&thread->handle, attributes, thread_main, thread);
        *handle = thread->handle;
        if (error)
                thread_free(thread);
        else
                sim_yield();
        return error;
}

int __wrap_pthread_join(pthread_t handle, void **ret_result) {
        struct thread *thread = NULL;
        int error;

        for (uint32_t i = 0; self && i < thread_count; i++)
                if (threads[i] != self && pthread_equal(threads[i]->handle, handle))
                        thread = threads[i];
        while (thread && !thread->over)
                sim_block(thread, SIM_NEVER);
        error = __real_pthread_join(handle, ret_result);
        if (thread)
                thread_free(thread);
        return error;
}

static void *start_main(void *arg) {
        void (*fn)(void) = *(void (**)(void)) arg;

        fn();
        return NULL;
}

pthread_t sim_thread_start(void (*fn)(void)) {
        static void (*functions[THREADS_MAX])(void);
        static uint32_t next;
        void (**place)(void) = &functions[next++ % THREADS_MAX];
        pthread_t handle;

        *place = fn;
        HR_ASSERT(__wrap_pthread_create(&handle, NULL, start_main, place) == 0);
        return handle;
}

/* ---- locks and conditions -------------------------------------------------------------------- */

static void mutex_take(pthread_mutex_t *mutex) {
        while (__real_pthread_mutex_trylock(mutex) != 0)
                sim_block(mutex, SIM_NEVER);
}

static void mutex_drop(pthread_mutex_t *mutex) {
        (void) __real_pthread_mutex_unlock(mutex);
        sim_wake(mutex);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex) {
        if (!self)
                return __real_pthread_mutex_lock(mutex);
        sim_yield();
        mutex_take(mutex);
        return 0;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex) {
        sim_yield();
        return __real_pthread_mutex_trylock(mutex);
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex) {
        if (!self)
                return __real_pthread_mutex_unlock(mutex);
        mutex_drop(mutex);
        sim_yield();
        return 0;
}

int __wrap_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
        uint64_t until_ns = SIM_NEVER;

        if (!self)
                return __real_pthread_cond_wait(condition, mutex);
        if (sim.running && sim.traits.spurious && sim_chance(SPURIOUS_OF_1000))
                until_ns = sim.now_ns + sim_random(SPURIOUS_NS);
        mutex_drop(mutex);
        sim_block(condition, until_ns);
        mutex_take(mutex);
        return 0;
}

int __wrap_pthread_cond_signal(pthread_cond_t *condition) {
        struct thread *waiting[THREADS_MAX];
        uint32_t count = 0;

        if (!self)
                return __real_pthread_cond_signal(condition);
        for (uint32_t i = 0; i < thread_count; i++)
                if (threads[i]->waits && threads[i]->waits_for == condition)
                        waiting[count++] = threads[i];
        if (count > 0)
                waiting[sim_random(count)]->waits = false;
        sim_yield();
        return 0;
}

int __wrap_pthread_cond_broadcast(pthread_cond_t *condition) {
        if (!self)
                return __real_pthread_cond_broadcast(condition);
        sim_wake(condition);
        sim_yield();
        return 0;
}

int __wrap_sched_yield(void) {
        if (!self || !sim.running)
                return __real_sched_yield();
        baton_pass();
        return 0;
}
