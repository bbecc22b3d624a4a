/*
 * Waiting for a 32-bit word to change: spin for a while, then sleep on a futex. For whoever has
 * a thread that waits: core/host_*.c, and queues of backends.
 *
 * A sleeper says so before it asks the kernel to compare the word, and the waker changes the word
 * before it looks; all four accesses are sequentially consistent, so one of the two sees the other
 * and no wake-up is lost. The waker takes the note away and wakes all who sleep, so that who goes
 * on changing the word while they come round makes one system call, not one for each change.
 */
#pragma once

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

struct hr_host_word {
        atomic_uint value;
        atomic_uint asleep; /* somebody may sleep */
};

static inline void hr_host_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Sleeps while the word is `old`, at most timeout_ns (UINT64_MAX = for ever); may return early. */
static inline void hr_host_word_sleep(struct hr_host_word *word, unsigned old,
                                      uint64_t timeout_ns) {
        struct timespec timeout = { .tv_sec = (time_t) (timeout_ns / HR_NS_PER_S),
                                    .tv_nsec = (long) (timeout_ns % HR_NS_PER_S) };

        atomic_store(&word->asleep, 1);
        (void) syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old,
                       timeout_ns == UINT64_MAX ? NULL : &timeout, NULL, 0);
}

/* Returns true as soon as the word is seen not to be `old`, false when spin_ns have passed. */
static inline bool hr_host_word_spin(struct hr_host_word *word, unsigned old, uint64_t spin_ns) {
        uint64_t end_ns = 0;

        /* What is about to happen is seen at once; the clock and the scheduler take longer. */
        for (uint32_t turn = 0; turn < 64 && spin_ns > 0; turn++) {
                if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
                        return true;
                hr_host_pause();
        }
        for (uint32_t turn = 0;; turn++) {
                if (atomic_load_explicit(&word->value, memory_order_acquire) != old)
                        return true;
                if (turn % 64 == 0) {
                        uint64_t now_ns = hr_clock_now_ns();

                        if (turn == 0)
                                end_ns = now_ns + spin_ns;
                        if (now_ns >= end_ns)
                                return false;
                        (void) sched_yield(); /* the one waited for may need this processor */
                }
                hr_host_pause();
        }
}

/* Waits until the word is not `old`. */
static inline void hr_host_word_wait(struct hr_host_word *word, unsigned old, uint64_t spin_ns) {
        if (hr_host_word_spin(word, old, spin_ns))
                return;
        while (atomic_load(&word->value) == old)
                hr_host_word_sleep(word, old, UINT64_MAX);
}

/* After the word has been changed by a sequentially consistent operation. */
static inline void hr_host_word_wake(struct hr_host_word *word) {
        if (atomic_load(&word->asleep) && atomic_exchange(&word->asleep, 0))
                (void) syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL,
                               0);
}
