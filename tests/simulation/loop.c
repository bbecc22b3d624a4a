/*
 * The loop: timers of virtual time, watches over simulated sockets. What is due at the same time is
 * called in an order that the seed picks.
 */
#include "daemon/loop.h"

#include <stdlib.h>

#include "core/clock.h"
#include "tests/simulation/sim.h"

#define SIGNALS_MAX 4
#define READY_MAX 64

struct hr_watch {
        struct hr_list link;
        uint64_t number;
        int fd, wanted;
        hr_watch_fn fn;
        void *arg;
};

struct hr_timer {
        struct hr_list link;
        hr_timer_fn fn;
        void *arg;
        bool running;
        uint64_t due_ns, period_ms;
};

struct hr_loop {
        struct hr_list watches, timers;
        uint64_t watch_number, wake_at_ns;
        bool woken;
        struct {
                int number;
                bool came;
                void (*fn)(void *arg, int number);
                void *arg;
        } signals[SIGNALS_MAX];
        unsigned signal_count;
};

static struct hr_loop *the_loop;

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_loop_new(struct hr_diag *diag, struct hr_loop **ret_loop) {
        struct hr_loop *loop = calloc(1, sizeof *loop);

        (void) diag;
        HR_ASSERT(loop && !the_loop);
        hr_list_init(&loop->watches);
        hr_list_init(&loop->timers);
        loop->wake_at_ns = SIM_NEVER;
        *ret_loop = the_loop = loop;
        return HR_OK;
}

struct hr_loop *hr_loop_free(struct hr_loop *loop) {
        if (!loop)
                return NULL;
        if (!hr_list_is_empty(&loop->watches) || !hr_list_is_empty(&loop->timers))
                sim_fail("the loop goes before its watches and timers");
        free(loop);
        the_loop = NULL;
        sim_links_refuse();
        return NULL;
}

hr_status hr_loop_signal(struct hr_loop *loop, int number, void (*fn)(void *arg, int number),
                         void *arg, struct hr_diag *diag) {
        (void) diag;
        HR_ASSERT(loop->signal_count < SIGNALS_MAX);
        loop->signals[loop->signal_count].number = number;
        loop->signals[loop->signal_count].fn = fn;
        loop->signals[loop->signal_count++].arg = arg;
        sim.server = arg;
        return HR_OK;
}

void sim_loop_signal(int number) {
        for (unsigned i = 0; i < the_loop->signal_count; i++)
                if (the_loop->signals[i].number == number)
                        the_loop->signals[i].came = true;
        sim_loop_nudge();
}

void sim_loop_nudge(void) {
        if (the_loop)
                sim_wake(the_loop);
}

void hr_loop_wake(struct hr_loop *loop) {
        if (sim.plant == SIM_PLANT_WAKE && sim_chance(2))
                return;
        loop->woken = true;
        sim_wake(loop);
        sim_yield();
}

/* Who sleeps looks at it anew. */
void hr_loop_wake_at(struct hr_loop *loop, uint64_t at_ns) {
        loop->wake_at_ns = at_ns;
        sim_wake(loop);
        sim_yield();
}

static bool wake_serve(struct hr_loop *loop) {
        bool any = loop->woken || loop->wake_at_ns <= sim.now_ns;

        loop->woken = false;
        if (loop->wake_at_ns <= sim.now_ns)
                loop->wake_at_ns = SIM_NEVER;
        return any;
}

/* ---- watches --------------------------------------------------------------------------------- */

struct hr_watch *hr_watch_new(struct hr_loop *loop, int fd, hr_watch_fn fn, void *arg) {
        struct hr_watch *watch = calloc(1, sizeof *watch);

        HR_ASSERT(watch);
        *watch = (struct hr_watch){.fd = fd, .fn = fn, .arg = arg, .number = ++loop->watch_number};
        hr_list_append(&loop->watches, &watch->link);
        return watch;
}

bool hr_watch_want(struct hr_watch *watch, int events) {
        watch->wanted = events;
        return true;
}

struct hr_watch *hr_watch_free(struct hr_watch *watch) {
        if (watch)
                hr_list_remove(&watch->link);
        free(watch);
        return NULL;
}

/* ---- timers ---------------------------------------------------------------------------------- */

struct hr_timer *hr_timer_new(struct hr_loop *loop, void *arg) {
        struct hr_timer *timer = calloc(1, sizeof *timer);

        HR_ASSERT(timer);
        timer->arg = arg;
        hr_list_append(&loop->timers, &timer->link);
        return timer;
}

void hr_timer_start(struct hr_timer *timer, hr_timer_fn fn, uint64_t after_ms, uint64_t period_ms) {
        timer->fn = fn;
        timer->running = true;
        timer->due_ns = sim.now_ns + after_ms * HR_NS_PER_MS;
        timer->period_ms = period_ms;
}

void hr_timer_stop(struct hr_timer *timer) {
        timer->running = false;
}

bool hr_timer_is_running(const struct hr_timer *timer) {
        return timer->running;
}

struct hr_timer *hr_timer_free(struct hr_timer *timer) {
        if (timer)
                hr_list_remove(&timer->link);
        free(timer);
        return NULL;
}

static uint64_t timers_next_ns(const struct hr_loop *loop) {
        uint64_t next_ns = SIM_NEVER;

        HR_LIST_FOR_EACH(link, &loop->timers) {
                const struct hr_timer *timer = HR_CONTAINER_OF(link, struct hr_timer, link);

                if (timer->running)
                        next_ns = HR_MIN(next_ns, timer->due_ns);
        }
        return next_ns;
}

/* The one that is due first, of those due by that time. */
static struct hr_timer *timer_due(struct hr_loop *loop, uint64_t by_ns) {
        struct hr_timer *first = NULL;

        HR_LIST_FOR_EACH(link, &loop->timers) {
                struct hr_timer *timer = HR_CONTAINER_OF(link, struct hr_timer, link);

                if (timer->running && timer->due_ns <= by_ns &&
                    (!first || timer->due_ns < first->due_ns))
                        first = timer;
        }
        return first;
}

/* ---- a turn ---------------------------------------------------------------------------------- */

static bool signals_serve(struct hr_loop *loop) {
        bool any = false;

        for (unsigned i = 0; i < loop->signal_count; i++)
                if (loop->signals[i].came) {
                        loop->signals[i].came = false;
                        loop->signals[i].fn(loop->signals[i].arg, loop->signals[i].number);
                        any = true;
                }
        return any;
}

static bool timers_serve(struct hr_loop *loop) {
        const uint64_t by_ns = sim.now_ns;
        struct hr_timer *timer;
        bool any = false;

        while ((timer = timer_due(loop, by_ns))) {
                timer->running = timer->period_ms > 0;
                timer->due_ns = by_ns + timer->period_ms * HR_NS_PER_MS;
                timer->fn(timer->arg);
                any = true;
        }
        return any;
}

static struct hr_watch *watch_find(struct hr_loop *loop, uint64_t number) {
        HR_LIST_FOR_EACH(link, &loop->watches) {
                struct hr_watch *watch = HR_CONTAINER_OF(link, struct hr_watch, link);

                if (watch->number == number)
                        return watch;
        }
        return NULL;
}

static bool watches_serve(struct hr_loop *loop) {
        uint64_t ready[READY_MAX];
        uint32_t count = 0;
        bool any = false;

        HR_LIST_FOR_EACH(link, &loop->watches) {
                const struct hr_watch *watch = HR_CONTAINER_OF(link, struct hr_watch, link);

                if (count < READY_MAX && (watch->wanted & sim_stream_events(watch->fd)))
                        ready[count++] = watch->number;
        }
        while (count > 0) {
                const uint64_t at = sim_random(count);
                struct hr_watch *watch = watch_find(loop, ready[at]);
                int events = watch ? watch->wanted & sim_stream_events(watch->fd) : 0;

                ready[at] = ready[--count];
                if (events == 0)
                        continue;
                watch->fn(watch->arg, events);
                any = true;
        }
        return any;
}

void hr_loop_turn(struct hr_loop *loop, bool may_sleep) {
        sim_yield();
        sim_accounts_check();
        for (;;) {
                bool any = wake_serve(loop);

                any = signals_serve(loop) || any;
                any = timers_serve(loop) || any;
                any = watches_serve(loop) || any;
                if (any || !may_sleep)
                        return;
                sim_block(loop, HR_MIN(loop->wake_at_ns,
                                       HR_MIN(timers_next_ns(loop), sim_stream_next_ns())));
        }
}
