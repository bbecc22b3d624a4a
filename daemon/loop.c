/*
 * libuv. Each handle lies in memory of its own that goes in its close callback, so that owners need
 * not outlive their call to free it.
 *
 * The wake is an eventfd: a uv_async_t makes the loop spin, and give up the processor, until the
 * sender is back from its system call, from which the loop itself has often displaced it. Wakes at
 * a time come from a timerfd: a uv_timer_t knows milliseconds only. So do timers: what a uv_timer_t
 * is due at bounds every sleep, for which the kernel sets a clock and takes it back each time, and
 * on a virtual machine that costs as much as all else of a turn.
 */
#include "daemon/loop.h"

#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "core/clock.h"

#define SIGNALS_MAX 4

struct signal_watch {
        uv_signal_t handle;
        void (*fn)(void *arg, int number);
        void *arg;
};

struct hr_loop {
        uv_loop_t uv;
        int wake_fd, alarm_fd;
        uv_poll_t wake, alarm;
        struct signal_watch signals[SIGNALS_MAX];
        unsigned signal_count;
};

struct hr_watch {
        uv_poll_t handle; /* its data: what fn gets; every connection has a watch */
        hr_watch_fn fn;
};

struct hr_timer {
        uv_poll_t handle;
        int fd;
        bool running, repeats;
        hr_timer_fn fn;
        void *arg;
};

/* ---- the loop -------------------------------------------------------------------------------- */

/* Of the eventfd and of the timerfd: both are read as a count. */
static void wake_cb(uv_poll_t *handle, int status, int events) {
        uv_os_fd_t fd;
        uint64_t count;

        (void) status;
        (void) events;
        if (uv_fileno((const uv_handle_t *) handle, &fd) == 0)
                (void) read(fd, &count, sizeof count);
}

void hr_loop_wake(struct hr_loop *loop) {
        const uint64_t one = 1;

        (void) write(loop->wake_fd, &one, sizeof one);
}

void hr_loop_wake_at(struct hr_loop *loop, uint64_t at_ns) {
        const struct itimerspec at = {.it_value = {.tv_sec = (time_t) (at_ns / HR_NS_PER_S),
                                                   .tv_nsec = (long) (at_ns % HR_NS_PER_S)}};

        (void) timerfd_settime(loop->alarm_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* A descriptor that ends a turn when it can be read. */
static hr_status wake_watch(struct hr_loop *loop, uv_poll_t *handle, int fd, struct hr_diag *diag) {
        if (fd < 0 || uv_poll_init(&loop->uv, handle, fd) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "no descriptor for the event loop");
        if (uv_poll_start(handle, UV_READABLE, wake_cb) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "the event loop cannot be woken");
        return HR_OK;
}

static hr_status wake_init(struct hr_loop *loop, struct hr_diag *diag) {
        loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        HR_TRY(wake_watch(loop, &loop->wake, loop->wake_fd, diag));
        loop->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        return wake_watch(loop, &loop->alarm, loop->alarm_fd, diag);
}

hr_status hr_loop_new(struct hr_diag *diag, struct hr_loop **ret_loop) {
        struct hr_loop *loop = calloc(1, sizeof *loop);
        hr_status status;

        if (!loop)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the event loop");
        loop->wake_fd = loop->alarm_fd = -1;
        if (uv_loop_init(&loop->uv) != 0) {
                free(loop);
                return hr_fail(diag, HR_E_UNAVAILABLE, "no event loop");
        }
        status = wake_init(loop, diag);
        if (status != HR_OK) {
                (void) hr_loop_free(loop);
                return status;
        }
        *ret_loop = loop;
        return HR_OK;
}

/* Watches and timers have gone: what is left is the loop's own. */
static void handle_close_cb(uv_handle_t *handle, void *arg) {
        (void) arg;
        if (!uv_is_closing(handle))
                uv_close(handle, NULL);
}

struct hr_loop *hr_loop_free(struct hr_loop *loop) {
        if (!loop)
                return NULL;
        uv_walk(&loop->uv, handle_close_cb, NULL);
        while (uv_run(&loop->uv, UV_RUN_DEFAULT) != 0) {
        }
        (void) uv_loop_close(&loop->uv);
        if (loop->wake_fd >= 0)
                (void) close(loop->wake_fd);
        if (loop->alarm_fd >= 0)
                (void) close(loop->alarm_fd);
        free(loop);
        return NULL;
}

void hr_loop_turn(struct hr_loop *loop, bool may_sleep) {
        (void) uv_run(&loop->uv, may_sleep ? UV_RUN_ONCE : UV_RUN_NOWAIT);
}

/* ---- signals --------------------------------------------------------------------------------- */

static void signal_cb(uv_signal_t *handle, int number) {
        struct signal_watch *watch = handle->data;

        watch->fn(watch->arg, number);
}

static void signal_kept_cb(uv_signal_t *handle, int number) {
        (void) handle; /* its loop never runs */
        (void) number;
}

/* With the last watcher of a signal its default comes back, and a second SIGTERM would kill what is
 * about to end well. So there is one more, on a loop that never runs and is never closed. */
static hr_status signal_keep(int number, struct hr_diag *diag) {
        static uv_signal_t keepers[SIGNALS_MAX];
        static int numbers[SIGNALS_MAX];
        unsigned i = 0;

        while (i < SIGNALS_MAX && numbers[i] != 0 && numbers[i] != number)
                i++;
        HR_ASSERT(i < SIGNALS_MAX);
        if (numbers[i] == number) /* kept since an earlier loop of this process */
                return HR_OK;
        if (uv_signal_init(uv_default_loop(), &keepers[i]) != 0 ||
            uv_signal_start(&keepers[i], signal_kept_cb, number) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "signals cannot be watched");
        numbers[i] = number;
        return HR_OK;
}

hr_status hr_loop_signal(struct hr_loop *loop, int number, void (*fn)(void *arg, int number),
                         void *arg, struct hr_diag *diag) {
        struct signal_watch *watch = &loop->signals[loop->signal_count];

        HR_ASSERT(loop->signal_count < SIGNALS_MAX);
        HR_TRY(signal_keep(number, diag));
        if (uv_signal_init(&loop->uv, &watch->handle) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "signals cannot be watched");
        loop->signal_count++;
        watch->handle.data = watch;
        watch->fn = fn;
        watch->arg = arg;
        if (uv_signal_start(&watch->handle, signal_cb, number) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "signals cannot be watched");
        return HR_OK;
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static void watch_cb(uv_poll_t *handle, int status, int events) {
        struct hr_watch *watch = HR_CONTAINER_OF(handle, struct hr_watch, handle);
        int ours = 0;

        if (events & UV_READABLE)
                ours |= HR_LOOP_READABLE;
        if (events & UV_WRITABLE)
                ours |= HR_LOOP_WRITABLE;
        watch->fn(handle->data, status < 0 ? 0 : ours);
}

struct hr_watch *hr_watch_new(struct hr_loop *loop, int fd, hr_watch_fn fn, void *arg) {
        struct hr_watch *watch = calloc(1, sizeof *watch);

        if (!watch)
                return NULL;
        if (uv_poll_init(&loop->uv, &watch->handle, fd) != 0) {
                free(watch);
                return NULL;
        }
        watch->handle.data = arg;
        watch->fn = fn;
        return watch;
}

bool hr_watch_want(struct hr_watch *watch, int events) {
        int theirs = 0;

        if (events & HR_LOOP_READABLE)
                theirs |= UV_READABLE;
        if (events & HR_LOOP_WRITABLE)
                theirs |= UV_WRITABLE;
        return (theirs ? uv_poll_start(&watch->handle, theirs, watch_cb)
                       : uv_poll_stop(&watch->handle)) == 0;
}

static void watch_closed_cb(uv_handle_t *handle) {
        free(HR_CONTAINER_OF((uv_poll_t *) handle, struct hr_watch, handle));
}

struct hr_watch *hr_watch_free(struct hr_watch *watch) {
        if (watch)
                uv_close((uv_handle_t *) &watch->handle, watch_closed_cb);
        return NULL;
}

/* ---- timers ---------------------------------------------------------------------------------- */

/* Readiness may be older than a stop or a new start, both of which take it away. */
static void timer_cb(uv_poll_t *handle, int status, int events) {
        struct hr_timer *timer = HR_CONTAINER_OF(handle, struct hr_timer, handle);
        uint64_t count;

        (void) status;
        (void) events;
        if (read(timer->fd, &count, sizeof count) != (ssize_t) sizeof count)
                return;
        timer->running = timer->repeats;
        timer->fn(timer->arg);
}

static void timer_closed_cb(uv_handle_t *handle) {
        struct hr_timer *timer = HR_CONTAINER_OF((uv_poll_t *) handle, struct hr_timer, handle);

        (void) close(timer->fd);
        free(timer);
}

struct hr_timer *hr_timer_new(struct hr_loop *loop, void *arg) {
        struct hr_timer *timer = calloc(1, sizeof *timer);

        if (!timer)
                return NULL;
        timer->fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        timer->arg = arg;
        if (timer->fd >= 0 && uv_poll_init(&loop->uv, &timer->handle, timer->fd) == 0) {
                if (uv_poll_start(&timer->handle, UV_READABLE, timer_cb) == 0)
                        return timer;
                uv_close((uv_handle_t *) &timer->handle, timer_closed_cb);
                return NULL;
        }
        if (timer->fd >= 0)
                (void) close(timer->fd);
        free(timer);
        return NULL;
}

static struct timespec milliseconds(uint64_t ms) {
        return (struct timespec){
                .tv_sec = (time_t) (ms / 1000),
                .tv_nsec = (long) (ms % 1000 * HR_NS_PER_MS),
        };
}

void hr_timer_start(struct hr_timer *timer, hr_timer_fn fn, uint64_t after_ms, uint64_t period_ms) {
        struct itimerspec times = {milliseconds(period_ms), milliseconds(after_ms)};

        if (after_ms == 0)
                times.it_value.tv_nsec = 1; /* 0 would stop it */
        timer->fn = fn;
        timer->running = true;
        timer->repeats = period_ms > 0;
        (void) timerfd_settime(timer->fd, 0, &times, NULL);
}

void hr_timer_stop(struct hr_timer *timer) {
        static const struct itimerspec never;

        if (!timer->running)
                return;
        timer->running = false;
        (void) timerfd_settime(timer->fd, 0, &never, NULL);
}

bool hr_timer_is_running(const struct hr_timer *timer) {
        return timer->running;
}

struct hr_timer *hr_timer_free(struct hr_timer *timer) {
        if (timer)
                uv_close((uv_handle_t *) &timer->handle, timer_closed_cb);
        return NULL;
}
