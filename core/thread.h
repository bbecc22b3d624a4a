/* Threads with names, and the tags by which debug checks know who is calling. */
#pragma once

#include <pthread.h>

#include "core/status.h"

struct hr_thread {
        pthread_t handle;
        bool running;
};

/* Starts fn(arg) on a thread with that name (at most 15 characters). HR_E_EXHAUSTED when the system
 * refuses one. Signals are blocked in it, except those that a thread's own faults raise. */
HR_NODISCARD hr_status hr_thread_start(struct hr_thread *thread, const char *name,
                                       void (*fn)(void *arg), void *arg, struct hr_diag *diag);
/* Waits for its end. A no-op when it is not running. */
void hr_thread_join(struct hr_thread *thread);
/* Pins the calling thread to a processor; a refusal is ignored (returns false). */
bool hr_thread_pin_self(uint32_t processor);

/* Calls fn() the first time that any thread comes here; the others wait until it has returned. */
typedef pthread_once_t hr_once;
#define HR_ONCE_INIT PTHREAD_ONCE_INIT
void hr_once_call(hr_once *once, void (*fn)(void));
