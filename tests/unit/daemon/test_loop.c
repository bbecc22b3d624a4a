/* Turns of the loop: what ends them, whom they call, and what may go while they do. */
#include "daemon/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base.h"
#include "core/clock.h"
#include "tests/harness.h"

#define PAIRS 100 /* more than one turn serves */

struct end {
        struct hr_loop *loop;
        struct hr_watch *watch;
        int fds[2]; /* watched, and its peer */
        int calls, last;
        struct end *victim; /* freed by the first call, whoever it is of */
        struct end *hushed; /* wants nothing any more from the first call on */
};

static struct hr_loop *loop_new(void) {
        struct hr_diag diag = {0};
        struct hr_loop *loop = NULL;

        HR_EXPECT_OK(hr_loop_new(&diag, &loop), &diag);
        return loop;
}

static void end_called(void *arg, int events) {
        struct end *end = arg;

        end->calls++;
        end->last = events;
        if (end->victim) {
                end->victim->watch = hr_watch_free(end->victim->watch);
                end->victim->victim = NULL;
                end->victim = NULL;
        }
        if (end->hushed) {
                HR_EXPECT(hr_watch_want(end->hushed->watch, 0));
                end->hushed->hushed = NULL;
                end->hushed = NULL;
        }
}

static void end_open(struct hr_loop *loop, struct end *end, int wanted) {
        *end = (struct end){.loop = loop};
        HR_EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, end->fds), 0);
        end->watch = hr_watch_new(loop, end->fds[0], end_called, end);
        HR_EXPECT(end->watch);
        HR_EXPECT(hr_watch_want(end->watch, wanted));
}

static void end_close(struct end *end) {
        end->watch = hr_watch_free(end->watch);
        (void) close(end->fds[0]);
        if (end->fds[1] >= 0)
                (void) close(end->fds[1]);
}

static void end_say(struct end *end) {
        HR_EXPECT_EQ(write(end->fds[1], "x", 1), 1);
}

HR_TEST(a_watch_is_told_what_it_wants) {
        struct hr_loop *loop = loop_new();
        struct end end;

        end_open(loop, &end, HR_LOOP_READABLE);
        HR_EXPECT(fcntl(end.fds[0], F_GETFL) & O_NONBLOCK);
        hr_loop_turn(loop, false);
        HR_EXPECT_EQ(end.calls, 0);
        end_say(&end);
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(end.calls, 1);
        HR_EXPECT_EQ(end.last, HR_LOOP_READABLE);
        hr_loop_turn(loop, true); /* what has not been read is told again */
        HR_EXPECT_EQ(end.calls, 2);
        HR_EXPECT(hr_watch_want(end.watch, HR_LOOP_READABLE | HR_LOOP_WRITABLE));
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(end.last, HR_LOOP_READABLE | HR_LOOP_WRITABLE);
        HR_EXPECT(hr_watch_want(end.watch, HR_LOOP_WRITABLE));
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(end.last, HR_LOOP_WRITABLE);
        HR_EXPECT(hr_watch_want(end.watch, 0));
        hr_loop_turn(loop, false);
        HR_EXPECT_EQ(end.calls, 4);
        HR_EXPECT(hr_watch_want(end.watch, HR_LOOP_READABLE));
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(end.calls, 5);
        end_close(&end);
        (void) hr_loop_free(loop);
}

HR_TEST(the_end_of_a_peer_is_told_as_what_is_wanted) {
        static const int wanted[] = {HR_LOOP_READABLE, HR_LOOP_WRITABLE};
        struct hr_loop *loop = loop_new();

        for (size_t i = 0; i < HR_ARRAY_LENGTH(wanted); i++) {
                struct end end;

                end_open(loop, &end, wanted[i]);
                (void) close(end.fds[1]);
                end.fds[1] = -1;
                hr_loop_turn(loop, true);
                HR_EXPECT_EQ(end.last, wanted[i]);
                HR_EXPECT(hr_watch_want(end.watch, 0));
                end.calls = 0;
                hr_loop_turn(loop, false);
                HR_EXPECT_EQ(end.calls, 0);
                end_close(&end);
        }
        (void) hr_loop_free(loop);
}

HR_TEST(a_broken_descriptor_is_told_once) {
        struct hr_loop *loop = loop_new();
        struct end end = {.loop = loop};
        int fds[2];

        HR_EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
        end.watch = hr_watch_new(loop, fds[1], end_called, &end);
        HR_EXPECT(end.watch && hr_watch_want(end.watch, HR_LOOP_WRITABLE));
        (void) close(fds[0]); /* nobody will read */
        end.last = -1;
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(end.calls, 1);
        HR_EXPECT_EQ(end.last, 0);
        hr_loop_turn(loop, false);
        HR_EXPECT_EQ(end.calls, 1);
        end.watch = hr_watch_free(end.watch);
        (void) close(fds[1]);
        (void) hr_loop_free(loop);
}

HR_TEST(what_cannot_be_watched_says_so) {
        struct hr_loop *loop = loop_new();
        struct end end = {.loop = loop};
        char path[] = "/tmp/headrace-loop-XXXXXX";
        int fd = mkstemp(path);

        HR_EXPECT(fd >= 0);
        (void) unlink(path);
        HR_EXPECT(!hr_watch_new(loop, fd, end_called, &end)); /* a file is always ready */
        (void) close(fd);
        HR_EXPECT(!hr_watch_new(loop, fd, end_called, &end));
        (void) hr_loop_free(loop);
}

/* Either of two may be the first of a turn: it takes the other out of it. */
HR_TEST(whoever_is_freed_or_hushed_in_a_turn_hears_nothing_in_it) {
        for (int way = 0; way < 2; way++) {
                struct hr_loop *loop = loop_new();
                struct end ends[2];

                for (int i = 0; i < 2; i++)
                        end_open(loop, &ends[i], HR_LOOP_READABLE);
                for (int i = 0; i < 2; i++) {
                        struct end *other = &ends[1 - i];

                        if (way == 0)
                                ends[i].victim = other;
                        else
                                ends[i].hushed = other;
                        end_say(&ends[i]);
                }
                hr_loop_turn(loop, true);
                HR_EXPECT_EQ(ends[0].calls + ends[1].calls, 1);
                for (int i = 0; i < 2; i++)
                        end_close(&ends[i]);
                (void) hr_loop_free(loop);
        }
}

HR_TEST(a_watch_frees_itself) {
        struct hr_loop *loop = loop_new();
        struct end end;

        end_open(loop, &end, HR_LOOP_READABLE);
        end.victim = &end;
        end_say(&end);
        hr_loop_turn(loop, true);
        hr_loop_turn(loop, false);
        HR_EXPECT_EQ(end.calls, 1);
        HR_EXPECT(!end.watch);
        end_close(&end);
        (void) hr_loop_free(loop);
}

HR_TEST(nobody_is_left_out_for_long) {
        static struct end ends[PAIRS];
        struct hr_loop *loop = loop_new();

        for (int i = 0; i < PAIRS; i++) {
                end_open(loop, &ends[i], HR_LOOP_READABLE);
                end_say(&ends[i]);
        }
        for (int turn = 0; turn < 4; turn++)
                hr_loop_turn(loop, true);
        for (int i = 0; i < PAIRS; i++) {
                HR_EXPECT(ends[i].calls >= 1);
                end_close(&ends[i]);
        }
        (void) hr_loop_free(loop);
}

static void *wake_main(void *arg) {
        (void) usleep(10000);
        hr_loop_wake(arg);
        return NULL;
}

HR_TEST(every_wake_ends_a_sleep) {
        struct hr_loop *loop = loop_new();
        pthread_t thread;

        hr_loop_turn(loop, false);
        for (int i = 0; i < 3; i++) {
                hr_loop_wake(loop); /* before the sleep */
                hr_loop_turn(loop, true);
        }
        HR_EXPECT_EQ(pthread_create(&thread, NULL, wake_main, loop), 0);
        hr_loop_turn(loop, true);
        HR_EXPECT_EQ(pthread_join(thread, NULL), 0);
        (void) hr_loop_free(loop);
}

HR_TEST(a_wake_at_a_time_is_not_early_and_the_latest_counts) {
        struct hr_loop *loop = loop_new();

        hr_loop_turn(loop, false);
        for (int i = 0; i < 3; i++) {
                uint64_t at_ns = hr_clock_now_ns() + 20 * HR_NS_PER_MS;

                hr_loop_wake_at(loop, at_ns + 3600 * HR_NS_PER_S);
                hr_loop_wake_at(loop, at_ns);
                hr_loop_turn(loop, true);
                HR_EXPECT(hr_clock_now_ns() >= at_ns);
        }
        hr_loop_wake_at(loop, hr_clock_now_ns() - 1); /* has passed */
        hr_loop_turn(loop, true);
        (void) hr_loop_free(loop);
}

static void count_cb(void *arg) {
        ++*(int *) arg;
}

/* Turns that sleep, until it has been called that often. */
static void turn_until(struct hr_loop *loop, const int *calls, int wanted) {
        for (int turn = 0; turn < 1000 && *calls < wanted; turn++)
                hr_loop_turn(loop, true);
        HR_EXPECT_EQ(*calls, wanted);
}

HR_TEST(timers_end_sleeps) {
        struct hr_loop *loop = loop_new();
        int once = 0, often = 0, never = 0;
        struct hr_timer *first = hr_timer_new(loop, &once), *second = hr_timer_new(loop, &often),
                        *third = hr_timer_new(loop, &never);

        HR_EXPECT(first && second && third);
        hr_timer_start(first, count_cb, 0, 0);
        HR_EXPECT(hr_timer_is_running(first));
        turn_until(loop, &once, 1);
        HR_EXPECT(!hr_timer_is_running(first));
        hr_timer_start(second, count_cb, 1, 1);
        turn_until(loop, &often, 5);
        HR_EXPECT(hr_timer_is_running(second));
        hr_timer_stop(second);
        hr_timer_start(third, count_cb, 1, 0);
        hr_timer_stop(third);
        often = 0;
        hr_timer_start(first, count_cb, 30, 0); /* whatever else there were has had its time */
        turn_until(loop, &once, 2);
        HR_EXPECT_EQ(often + never, 0);
        (void) hr_timer_free(first);
        (void) hr_timer_free(second);
        (void) hr_timer_free(third);
        (void) hr_loop_free(loop);
}

struct maker {
        struct hr_loop *loop;
        struct hr_timer *timer, *made;
        int calls;
};

/* A timer that is made in a call, while the loop would sleep next, and frees the one that calls. */
static void make_cb(void *arg) {
        struct maker *maker = arg;

        maker->made = hr_timer_new(maker->loop, &maker->calls);
        HR_EXPECT(maker->made);
        hr_timer_start(maker->made, count_cb, 1, 0);
        maker->timer = hr_timer_free(maker->timer);
}

HR_TEST(timers_made_and_freed_in_calls) {
        struct maker maker = {.loop = loop_new()};

        maker.timer = hr_timer_new(maker.loop, &maker);
        HR_EXPECT(maker.timer);
        hr_timer_start(maker.timer, make_cb, 1, 0);
        turn_until(maker.loop, &maker.calls, 1);
        HR_EXPECT(!maker.timer);
        (void) hr_timer_free(maker.made);
        (void) hr_loop_free(maker.loop);
}

static void signal_cb(void *arg, int number) {
        HR_EXPECT_EQ(number, SIGHUP);
        ++*(int *) arg;
}

HR_TEST(a_signal_ends_a_sleep) {
        struct hr_loop *loop = loop_new();
        struct hr_diag diag = {0};
        int calls = 0;

        HR_EXPECT_OK(hr_loop_signal(loop, SIGHUP, signal_cb, &calls, &diag), &diag);
        for (int i = 1; i <= 3; i++) {
                HR_EXPECT_EQ(kill(getpid(), SIGHUP), 0);
                turn_until(loop, &calls, i);
        }
        (void) hr_loop_free(loop);
        HR_EXPECT_EQ(kill(getpid(), SIGHUP), 0); /* no end of the process after the loop's */
        HR_EXPECT_EQ(calls, 3);
}
