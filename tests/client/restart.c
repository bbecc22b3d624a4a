/*
 * The C client library and daemons that end under it. HEADRACE_TEST_ADDRESS names the daemon,
 * HEADRACE_TEST_CONTROL a socket to who started it (tests/integration/test_restart_c.py): a letter
 * is what is to happen, a letter comes back when it has. Without them every test is skipped.
 */
#include "client/c/headrace.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness.h"

#define OK(expression)                                                                             \
        do {                                                                                       \
                if ((expression) != HEADRACE_OK)                                                   \
                        hr_test_fail(__FILE__, __LINE__, "%s: %s %s", #expression, error.reason,   \
                                     error.words);                                                 \
        } while (0)

/* What may happen: the daemon is killed or stopped and started again; the same, once it has a run
 * in flight, while the caller goes on; that has happened. */
enum event { KILL = 'k', RESTART = 'r', KILL_IN_A_RUN = 'i', KILL_IN_TWO_RUNS = 'j', DONE = 'd' };

static struct headrace_error error;

static void happen(enum event event) {
        const char *number = getenv("HEADRACE_TEST_CONTROL");
        char letter = (char) event;

        if (!number)
                hr_test_skip("HEADRACE_TEST_CONTROL is not set");
        HR_EXPECT(write(atoi(number), &letter, 1) == 1 && read(atoi(number), &letter, 1) == 1);
}

static struct headrace_client *connected(bool no_resend) {
        const char *address = getenv("HEADRACE_TEST_ADDRESS");
        struct headrace_client *client = NULL;

        if (!address)
                hr_test_skip("HEADRACE_TEST_ADDRESS is not set");
        OK(headrace_connect(address,
                            &(struct headrace_options){.timeout_ms = 20000, .no_resend = no_resend},
                            &error, &client));
        return client;
}

static uint32_t leaf(struct headrace_graph *graph, enum headrace_leaf kind, int64_t count,
                     const char *name) {
        uint32_t tensor = 0;

        OK(headrace_graph_leaf(graph, kind, "f32", (const int64_t[4]){count, 1, 1, 1}, name, &error,
                               &tensor));
        return tensor;
}

static uint32_t node(struct headrace_graph *graph, const char *op, uint32_t a, uint32_t b) {
        uint32_t tensor = 0;

        OK(headrace_graph_node(
                graph,
                &(struct headrace_node){.op = op, .sources = (uint32_t[]){a, b}, .source_count = 2},
                &error, &tensor));
        return tensor;
}

/* y = x + x, or x + w with a set's number, of so many floats. */
static struct headrace_handle *submitted(struct headrace_client *client, int64_t count,
                                         const uint64_t *set, const char *device) {
        struct headrace_graph *graph = headrace_graph_new();
        uint32_t x = leaf(graph, HEADRACE_INPUT, count, "x");
        struct headrace_handle *handle = NULL;
        const struct headrace_rule pin = {"*", device};
        const struct headrace_submit options = {.weights = set,
                                                .weight_count = set ? 1 : 0,
                                                .pins = &pin,
                                                .pin_count = device ? 1 : 0};

        headrace_graph_output(
                graph, node(graph, "ADD", x, set ? leaf(graph, HEADRACE_WEIGHT, count, "w") : x));
        OK(headrace_submit(client, graph, &options, 0, &error, &handle));
        headrace_graph_free(graph);
        return handle;
}

static enum headrace_status run(struct headrace_handle *handle, float x[8], float y[8]) {
        return headrace_run(handle, &(struct headrace_buffer){x, 32}, 1,
                            &(struct headrace_buffer){y, 32}, 1, NULL, &error, NULL);
}

HR_TEST_LIMIT(runs_go_on_over_kills_and_restarts, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle;
        struct headrace_set set, again;
        float w[8] = {5, 5, 5, 5, 5, 5, 5, 5}, x[8] = {0}, y[8] = {0};
        const struct headrace_tensor tensor = {"w", "f32", {8, 1, 1, 1}, w};

        OK(headrace_put(client, "kept", &tensor, 1, NULL, 0, 0, &error, &set));
        handle = submitted(client, 8, &set.handle, "cpu0");
        for (int turn = 0; turn < 4; turn++) {
                x[7] = (float) turn;
                OK(run(handle, x, y));
                HR_EXPECT(y[7] == 5 + x[7] && y[0] == 5);
                happen(turn % 2 ? RESTART : KILL);
        }
        /* Without anything sent before: the number is the caller's own, whatever the daemon's is.
         */
        OK(headrace_release(submitted(client, 8, &set.handle, "cpu0"), 0, &error));
        OK(run(handle, x, y));
        HR_EXPECT(y[7] == 8);
        OK(headrace_load(client, "", "kept", NULL, 0, 0, &error, &again));
        OK(headrace_drop(client, again.handle, 0, &error));
        OK(headrace_drop(client, set.handle, 0, &error));
        HR_EXPECT_EQ(headrace_drop(client, set.handle, 0, &error), HEADRACE_NOT_FOUND);
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

/* Memory that both sides have is told to the next daemon, too. */
HR_TEST_LIMIT(shared_memory_goes_on, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 1 << 20, NULL, "cpu0");
        const uint64_t bytes = UINT64_C(4) << 20;
        struct headrace_region *region = NULL;
        float *x;

        OK(headrace_region_new(client, 2 * bytes, 0, &error, &region));
        x = headrace_region_memory(region);
        for (int turn = 0; turn < 3; turn++) {
                for (size_t i = 0; i < bytes / 4; i++)
                        x[i] = (float) (i + (size_t) turn);
                OK(headrace_run(handle, &(struct headrace_buffer){x, bytes}, 1,
                                &(struct headrace_buffer){x + bytes / 4, bytes}, 1, NULL, &error,
                                NULL));
                for (size_t i = 0; i < bytes / 4; i++)
                        HR_EXPECT(x[bytes / 4 + i] == 2 * x[i]);
                happen(turn % 2 ? RESTART : KILL);
        }
        OK(headrace_ping(client, 0, &error)); /* what gives back is not sent again */
        OK(headrace_region_free(region, 0, &error));
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

static double stat_of(struct headrace_client *client, const char *name, const char *labels) {
        struct headrace_stat *stats = NULL;
        size_t count = 0;
        double value = 0;

        OK(headrace_stats(client, 0, &error, &stats, &count));
        for (size_t i = 0; i < count; i++)
                if (strcmp(stats[i].name, name) == 0 && strstr(stats[i].labels, labels))
                        value += stats[i].value;
        headrace_free(stats);
        return value;
}

HR_TEST_LIMIT(an_unanswered_run_is_sent_again, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 1 << 20, NULL, "slow");
        uint64_t bytes = (uint64_t) 4 << 20;
        float *x = malloc(bytes), *y = malloc(bytes);

        for (size_t i = 0; i < bytes / 4; i++)
                x[i] = (float) i;
        happen(KILL_IN_A_RUN);
        OK(headrace_run(handle, &(struct headrace_buffer){x, bytes}, 1,
                        &(struct headrace_buffer){y, bytes}, 1, NULL, &error, NULL));
        for (size_t i = 0; i < bytes / 4; i++)
                HR_EXPECT(y[i] == 2 * x[i]);
        happen(DONE);
        HR_EXPECT(stat_of(client, "runs_total", "end=\"ok\"") == 1);
        OK(headrace_release(handle, 0, &error));
        free(x);
        free(y);
        headrace_close(client);
}

HR_TEST_LIMIT(only_once, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 8, NULL, "slow");
        float x[8] = {1}, y[8] = {0};

        happen(KILL_IN_TWO_RUNS);
        HR_EXPECT_EQ(run(handle, x, y), HEADRACE_UNAVAILABLE);
        HR_EXPECT_STREQ(error.reason, "EOF");
        happen(DONE);
        OK(run(handle, x, y));
        HR_EXPECT(y[0] == 2);
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

HR_TEST_LIMIT(a_run_that_is_sent_again_can_be_cancelled, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 8, NULL, "slow");
        float x[8] = {1}, y[8] = {0};
        struct headrace_run *run_of = NULL;
        enum headrace_status status;

        happen(KILL_IN_A_RUN);
        OK(headrace_run_start(handle, &(struct headrace_buffer){x, 32}, 1,
                              &(struct headrace_buffer){y, 32}, 1, NULL, &error, &run_of));
        happen(DONE);
        headrace_run_cancel(run_of); /* of a connection that has ended: the next one is told */
        status = headrace_run_wait(run_of, &error, NULL);
        HR_EXPECT_EQ(status, HEADRACE_CANCELLED);
        OK(headrace_ping(client, 0, &error));
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

HR_TEST_LIMIT(what_writes_states_is_not_sent_again, 60) {
        struct headrace_client *client = connected(false);
        struct headrace_graph *graph = headrace_graph_new();
        const struct headrace_tensor tensor = {"s", "f32", {8, 1, 1, 1}, NULL};
        struct headrace_handle *handle = NULL;
        float x[8] = {1}, y[8] = {0};
        uint64_t state;
        uint32_t s;

        OK(headrace_state_alloc(client, &tensor, 1, NULL, 0, 0, &error, &state));
        s = leaf(graph, HEADRACE_STATE, 8, "s");
        headrace_graph_output(
                graph,
                node(graph, "CPY", node(graph, "ADD", s, leaf(graph, HEADRACE_INPUT, 8, "x")), s));
        OK(headrace_submit(client, graph,
                           &(struct headrace_submit){.states = &state, .state_count = 1}, 0, &error,
                           &handle));
        OK(run(handle, x, y));
        OK(run(handle, x, y));
        HR_EXPECT(y[0] == 2);
        happen(KILL);
        HR_EXPECT_EQ(run(handle, x, y), HEADRACE_UNAVAILABLE);
        HR_EXPECT_STREQ(error.reason, "EOF");
        HR_EXPECT_EQ(headrace_state_read(client, state, 0, 0, y, 32, 0, &error),
                     HEADRACE_UNAVAILABLE);
        OK(headrace_ping(client, 0, &error)); /* this may, and finds the new daemon */
        HR_EXPECT_EQ(headrace_state_read(client, state, 0, 0, y, 32, 0, &error),
                     HEADRACE_NOT_FOUND);
        HR_EXPECT_EQ(run(handle, x, y), HEADRACE_NOT_FOUND);
        OK(headrace_release(handle, 0, &error));
        headrace_graph_free(graph);
        headrace_close(client);
}

HR_TEST_LIMIT(who_does_not_want_it_is_told, 60) {
        struct headrace_client *client = connected(true);

        happen(KILL);
        for (int i = 0; i < 2; i++) {
                HR_EXPECT_EQ(headrace_ping(client, 0, &error), HEADRACE_UNAVAILABLE);
                HR_EXPECT_STREQ(error.reason, "EOF");
        }
        headrace_close(client);
}

/* Ends the connections of this process to the daemon, as a network does. */
static void break_connections(void) {
        const char *control = getenv("HEADRACE_TEST_CONTROL");

        for (int fd = 3; fd < 256; fd++) {
                struct sockaddr_un peer = {0};
                socklen_t bytes = sizeof peer;

                if (control && fd == atoi(control))
                        continue;
                if (getpeername(fd, (struct sockaddr *) &peer, &bytes) == 0)
                        (void) shutdown(fd, SHUT_RDWR);
        }
}

/* The daemon waits for sessions: after a broken connection it is the same one, with its states. */
HR_TEST(a_broken_connection_finds_its_session_again) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 8, NULL, "cpu0");
        const struct headrace_tensor tensor = {"s", "f32", {8, 1, 1, 1}, NULL};
        float x[8] = {1, 2, 3}, y[8] = {0};
        uint64_t state;

        happen(DONE); /* skipped without who started the daemon */
        OK(headrace_state_alloc(client, &tensor, 1, NULL, 0, 0, &error, &state));
        OK(headrace_state_write(client, state, 0, 0, x, 32, 0, &error));
        for (int i = 0; i < 3; i++) {
                break_connections();
                OK(run(handle, x, y));
                HR_EXPECT(y[2] == 6);
                OK(headrace_state_read(client, state, 0, 0, y, 32, 0, &error));
                HR_EXPECT(y[2] == 3);
        }
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

struct shared {
        struct headrace_client *client;
        struct headrace_handle *handle;
        _Atomic int failures, over;
        _Atomic int runs[8];
};

struct worker {
        struct shared *shared;
        int number;
};

static void *run_on(void *arg) {
        const struct worker *worker = arg;
        struct shared *shared = worker->shared;

        for (int i = 0; !shared->over; i++) {
                float x[8] = {(float) (worker->number * 100000 + i)}, y[8] = {0};

                if (headrace_run(shared->handle, &(struct headrace_buffer){x, 32}, 1,
                                 &(struct headrace_buffer){y, 32}, 1, NULL, NULL,
                                 NULL) != HEADRACE_OK ||
                    y[0] != 2 * x[0])
                        shared->failures++;
                if (i % 8 == 0 && headrace_ping(shared->client, 0, NULL) != HEADRACE_OK)
                        shared->failures++;
                shared->runs[worker->number]++;
        }
        return NULL;
}

/* Threads that share a client go on over kills, each with its own answers. */
HR_TEST_LIMIT(threads_go_on, 60) {
        struct shared shared = {.client = connected(false)};
        struct worker workers[8];
        pthread_t threads[8];

        shared.handle = submitted(shared.client, 8, NULL, "cpu0");
        for (int i = 0; i < 8; i++) {
                workers[i] = (struct worker){&shared, i};
                HR_EXPECT(pthread_create(&threads[i], NULL, run_on, &workers[i]) == 0);
        }
        for (int turn = 0; turn < 4; turn++) {
                int before[8];

                for (int i = 0; i < 8; i++)
                        before[i] = shared.runs[i];
                for (int i = 0; i < 8; i++) /* what is under way has begun after the last end */
                        while (shared.runs[i] < before[i] + 3)
                                (void) usleep(1000);
                happen(turn % 2 ? RESTART : KILL);
        }
        shared.over = 1;
        for (int i = 0; i < 8; i++)
                (void) pthread_join(threads[i], NULL);
        HR_EXPECT_EQ(shared.failures, 0);
        OK(headrace_release(shared.handle, 0, &error));
        headrace_close(shared.client);
}

HR_TEST(a_child_does_not_touch_the_connection) {
        struct headrace_client *client = connected(false);
        struct headrace_handle *handle = submitted(client, 8, NULL, "cpu0");
        float x[8] = {1}, y[8] = {0};
        int code = -1;
        pid_t child = fork();

        if (child == 0) {
                bool refused = headrace_ping(client, 0, &error) == HEADRACE_UNAVAILABLE &&
                               strcmp(error.reason, "FORKED") == 0 &&
                               run(handle, x, y) == HEADRACE_UNAVAILABLE;

                headrace_close(client);
                _exit(refused ? 0 : 1);
        }
        HR_EXPECT(waitpid(child, &code, 0) == child && code == 0);
        OK(run(handle, x, y));
        HR_EXPECT(y[0] == 2);
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}
