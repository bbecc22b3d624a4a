/*
 * Two layers. What a turn waits on is an epoll of the loop's own: the watches, which every
 * connection has, the wake and the alarm. One more descriptor in it is that of libuv's loop, which
 * has what comes seldom: timers and signals. A request so costs one epoll_wait() and the call of
 * its watch; a turn of libuv costs a dozen looks at the clock and at queues that are empty. Handles
 * of libuv lie in memory of their own that goes in its close callback, so that owners need not
 * outlive their call to free them. libuv registers and closes nothing before its own next turn, so
 * whoever changes a handle asks for one.
 *
 * The wake is an eventfd: a uv_async_t makes the loop spin, and give up the processor, until the
 * sender is back from its system call, from which the loop itself has often displaced it. Wakes at
 * a time come from a timerfd: a uv_timer_t knows milliseconds only. Both are watched for edges,
 * each of which ends a turn, so nobody has to read them. Timers are timerfds as well: what a
 * uv_timer_t is due at bounds every sleep, for which the kernel sets a clock and takes it back each
 * time, and on a virtual machine that costs as much as all else of a turn.
 *
 * A watch may be freed, or want something else, while events of the same turn wait behind the one
 * being served: an event counts for what its watch wants by then, and one that has been freed goes
 * when all of them have been served.
 */
#include "daemon/loop.h"

#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <unistd.h>
#include <uv.h>

#include "core/clock.h"

#define SIGNALS_MAX 4
#define EVENTS_MAX 64 /* of one turn; the kernel lets those that are left go first in the next */

struct signal_watch {
        uv_signal_t handle;
        void (*fn)(void *arg, int number);
        void *arg;
};

struct hr_watch {
        hr_watch_fn fn; /* NULL: freed */
        void *arg;
        struct hr_loop *loop;
        struct hr_watch *next_freed;
        int fd;
        uint32_t wanted; /* EPOLLIN, EPOLLOUT; 0 = the epoll does not have it */
};

struct hr_loop {
        int epoll_fd, wake_fd, alarm_fd;
        bool uv_has_changes;    /* handles that it has not registered or closed yet */
        bool is_serving;        /* events of a turn */
        struct hr_watch *freed; /* meanwhile */
        uv_loop_t uv;
        struct signal_watch signals[SIGNALS_MAX];
        unsigned signal_count;
};

struct hr_timer {
        uv_poll_t handle;
        struct hr_loop *loop;
        int fd;
        bool running, repeats;
        hr_timer_fn fn;
        void *arg;
};

/* ---- the loop -------------------------------------------------------------------------------- */

void hr_loop_wake(struct hr_loop *loop) {
        const uint64_t one = 1;

        (void) write(loop->wake_fd, &one, sizeof one);
}

void hr_loop_wake_at(struct hr_loop *loop, uint64_t at_ns) {
        const struct itimerspec at = {.it_value = {.tv_sec = (time_t) (at_ns / HR_NS_PER_S),
                                                   .tv_nsec = (long) (at_ns % HR_NS_PER_S)}};

        (void) timerfd_settime(loop->alarm_fd, TFD_TIMER_ABSTIME, &at, NULL);
}

/* A descriptor of the loop's own. of: what its events name. */
static hr_status own_watch(struct hr_loop *loop, int fd, uint32_t events, void *of,
                           struct hr_diag *diag) {
        struct epoll_event event = {.events = events, .data.ptr = of};

        if (fd < 0 || epoll_ctl(loop->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "no descriptor for the event loop");
        return HR_OK;
}

static hr_status descriptors_open(struct hr_loop *loop, struct hr_diag *diag) {
        loop->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
        if (loop->epoll_fd < 0)
                return hr_fail(diag, HR_E_UNAVAILABLE, "no descriptor for the event loop");
        loop->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        HR_TRY(own_watch(loop, loop->wake_fd, EPOLLIN | EPOLLET, NULL, diag));
        loop->alarm_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        HR_TRY(own_watch(loop, loop->alarm_fd, EPOLLIN | EPOLLET, NULL, diag));
        return own_watch(loop, uv_backend_fd(&loop->uv), EPOLLIN, &loop->uv, diag);
}

hr_status hr_loop_new(struct hr_diag *diag, struct hr_loop **ret_loop) {
        struct hr_loop *loop = calloc(1, sizeof *loop);
        hr_status status;

        if (!loop)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the event loop");
        loop->epoll_fd = loop->wake_fd = loop->alarm_fd = -1;
        if (uv_loop_init(&loop->uv) != 0) {
                free(loop);
                return hr_fail(diag, HR_E_UNAVAILABLE, "no event loop");
        }
        loop->uv_has_changes = true;
        status = descriptors_open(loop, diag);
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

static void descriptor_close(int fd) {
        if (fd >= 0)
                (void) close(fd);
}

struct hr_loop *hr_loop_free(struct hr_loop *loop) {
        if (!loop)
                return NULL;
        HR_ASSERT(!loop->is_serving);
        uv_walk(&loop->uv, handle_close_cb, NULL);
        while (uv_run(&loop->uv, UV_RUN_DEFAULT) != 0) {
        }
        descriptor_close(loop->epoll_fd);
        (void) uv_loop_close(&loop->uv);
        descriptor_close(loop->wake_fd);
        descriptor_close(loop->alarm_fd);
        free(loop);
        return NULL;
}

static void uv_serve(struct hr_loop *loop) {
        loop->uv_has_changes = false;
        (void) uv_run(&loop->uv, UV_RUN_NOWAIT);
}

/* What has happened counts only as far as it is still wanted. */
static void watch_serve(struct hr_watch *watch, uint32_t events) {
        int ours = 0;

        if (!watch->fn || !watch->wanted)
                return;
        if (HR_UNLIKELY(events & EPOLLERR)) {
                (void) hr_watch_want(watch, 0);
                watch->fn(watch->arg, 0);
                return;
        }
        if (events & EPOLLHUP) /* found by whoever reads or writes */
                events |= EPOLLIN | EPOLLOUT;
        events &= watch->wanted;
        if (events & EPOLLIN)
                ours |= HR_LOOP_READABLE;
        if (events & EPOLLOUT)
                ours |= HR_LOOP_WRITABLE;
        if (ours)
                watch->fn(watch->arg, ours);
}

void hr_loop_turn(struct hr_loop *loop, bool may_sleep) {
        struct epoll_event events[EVENTS_MAX];
        int count;

        if (HR_UNLIKELY(loop->uv_has_changes)) {
                uv_serve(loop);
                may_sleep = false; /* something may have happened there */
        }
        count = epoll_wait(loop->epoll_fd, events, EVENTS_MAX, may_sleep ? -1 : 0);
        loop->is_serving = true;
        for (int i = 0; i < count; i++) {
                void *of = events[i].data.ptr; /* NULL: the turn ends, no more */

                if (of == &loop->uv)
                        uv_serve(loop);
                else if (of)
                        watch_serve(of, events[i].events);
        }
        loop->is_serving = false;
        while (HR_UNLIKELY(loop->freed != NULL)) {
                struct hr_watch *watch = loop->freed;

                loop->freed = watch->next_freed;
                free(watch);
        }
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
        loop->uv_has_changes = true;
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

struct hr_watch *hr_watch_new(struct hr_loop *loop, int fd, hr_watch_fn fn, void *arg) {
        struct hr_watch *watch = malloc(sizeof *watch);
        int one = 1;

        if (!watch)
                return NULL;
        if (ioctl(fd, FIONBIO, &one) != 0) {
                free(watch);
                return NULL;
        }
        *watch = (struct hr_watch){.fn = fn, .arg = arg, .loop = loop, .fd = fd};
        return watch;
}

bool hr_watch_want(struct hr_watch *watch, int events) {
        struct epoll_event event = {.data.ptr = watch};
        int change = EPOLL_CTL_MOD;

        if (events & HR_LOOP_READABLE)
                event.events |= EPOLLIN;
        if (events & HR_LOOP_WRITABLE)
                event.events |= EPOLLOUT;
        if (event.events == watch->wanted)
                return true;
        if (!event.events) /* an end would be told of all the same */
                change = EPOLL_CTL_DEL;
        else if (!watch->wanted)
                change = EPOLL_CTL_ADD;
        if (epoll_ctl(watch->loop->epoll_fd, change, watch->fd, &event) != 0)
                return false;
        watch->wanted = event.events;
        return true;
}

struct hr_watch *hr_watch_free(struct hr_watch *watch) {
        if (!watch)
                return NULL;
        (void) hr_watch_want(watch, 0);
        if (!watch->loop->is_serving) {
                free(watch);
                return NULL;
        }
        watch->fn = NULL;
        watch->next_freed = watch->loop->freed;
        watch->loop->freed = watch;
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
        timer->loop = loop;
        timer->arg = arg;
        loop->uv_has_changes = true;
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
        if (!timer)
                return NULL;
        timer->loop->uv_has_changes = true;
        uv_close((uv_handle_t *) &timer->handle, timer_closed_cb);
        return NULL;
}
