/* pthread with a name, blocked signals and a status. */
#include "core/thread.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct thread_start {
        void (*fn)(void *arg);
        void *arg;
        char name[16];
};

static void *thread_main(void *opaque) {
        struct thread_start start = *(struct thread_start *) opaque;

        free(opaque);
        (void) pthread_setname_np(pthread_self(), start.name);
        start.fn(start.arg);
        return NULL;
}

hr_status hr_thread_start(struct hr_thread *thread, const char *name, void (*fn)(void *arg),
                          void *arg, struct hr_diag *diag) {
        static const int own[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP};
        struct thread_start *start;
        sigset_t all, before;
        int error;

        HR_ASSERT(!thread->running);
        start = calloc(1, sizeof *start);
        if (!start)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for thread %s", name);
        start->fn = fn;
        start->arg = arg;
        (void) snprintf(start->name, sizeof start->name, "%s", name);

        /* A thread inherits the mask: signals stay with the thread that asked for them, but for
         * those that it causes itself, which are fatal where they are blocked. */
        (void) sigfillset(&all);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(own); i++)
                (void) sigdelset(&all, own[i]);
        (void) pthread_sigmask(SIG_SETMASK, &all, &before);
        error = pthread_create(&thread->handle, NULL, thread_main, start);
        (void) pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (error) {
                free(start);
                return hr_fail(diag, HR_E_EXHAUSTED, "thread %s: %s", name, strerror(error));
        }
        thread->running = true;
        return HR_OK;
}

void hr_thread_join(struct hr_thread *thread) {
        if (!thread->running)
                return;
        (void) pthread_join(thread->handle, NULL);
        thread->running = false;
}

bool hr_thread_pin_self(uint32_t processor) {
        cpu_set_t set;

        if (processor >= CPU_SETSIZE)
                return false;
        CPU_ZERO(&set);
        CPU_SET(processor, &set);
        return pthread_setaffinity_np(pthread_self(), sizeof set, &set) == 0;
}

void hr_once_call(hr_once *once, void (*fn)(void)) {
        (void) pthread_once(once, fn);
}
