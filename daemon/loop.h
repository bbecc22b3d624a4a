/*
 * What the loop's thread waits for: descriptors, times, signals, and the word of other threads. The
 * one face of libuv, which nothing else in the daemon sees; the simulation (tests/simulation) has a
 * loop of its own behind it.
 *
 * Whoever makes a watch or a timer frees it before the loop. After that it is called no more, and
 * what it was called with may go. Thread: loop, except where said.
 */
#pragma once

#include "core/status.h"

struct hr_loop;
struct hr_watch;
struct hr_timer;

#define HR_LOOP_READABLE 1
#define HR_LOOP_WRITABLE 2

HR_NODISCARD hr_status hr_loop_new(struct hr_diag *diag, struct hr_loop **ret_loop);
/* Returns NULL; NULL is a no-op. */
struct hr_loop *hr_loop_free(struct hr_loop *loop);
/* Calls whoever something has happened for; may_sleep: waits until that is somebody. */
void hr_loop_turn(struct hr_loop *loop, bool may_sleep);
/* A turn that sleeps, or the next that would, ends. Thread: any. */
void hr_loop_wake(struct hr_loop *loop);
/* So from that time on, by hr_clock_now_ns(); each call takes the place of the one before. Finer
 * than a timer. Thread: any. */
void hr_loop_wake_at(struct hr_loop *loop, uint64_t at_ns);
/* Calls fn(arg, number) when that signal has come. From then on its default never comes back in
 * this process, whatever happens to the loop. */
HR_NODISCARD hr_status hr_loop_signal(struct hr_loop *loop, int number,
                                      void (*fn)(void *arg, int number), void *arg,
                                      struct hr_diag *diag);

/* events: HR_LOOP_READABLE, HR_LOOP_WRITABLE; 0: the descriptor cannot be watched any more. */
typedef void (*hr_watch_fn)(void *arg, int events);
/* Watches for nothing yet. NULL: it cannot be watched, or there is no memory. */
struct hr_watch *hr_watch_new(struct hr_loop *loop, int fd, hr_watch_fn fn, void *arg);
/* What it watches for from now on. False: it cannot. */
bool hr_watch_want(struct hr_watch *watch, int events);
/* Before the descriptor is closed. Returns NULL; NULL is a no-op. */
struct hr_watch *hr_watch_free(struct hr_watch *watch);

typedef void (*hr_timer_fn)(void *arg);
/* Stopped. NULL: no memory, or no descriptor. */
struct hr_timer *hr_timer_new(struct hr_loop *loop, void *arg);
/* Calls fn(arg) after_ms from now, then every period_ms; 0 = once. A running one begins anew. */
void hr_timer_start(struct hr_timer *timer, hr_timer_fn fn, uint64_t after_ms, uint64_t period_ms);
void hr_timer_stop(struct hr_timer *timer);
bool hr_timer_is_running(const struct hr_timer *timer);
/* Returns NULL; NULL is a no-op. */
struct hr_timer *hr_timer_free(struct hr_timer *timer);
