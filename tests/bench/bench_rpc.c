/*
 * Round trips of the smallest useful run, beside a bare socket echo.
 *
 *   bench_rpc unix:PATH|tcp:127.0.0.1:PORT RUNS REPETITIONS
 *
 * The client says hello, submits a graph of one node (y = x + x over four floats), and then runs it
 * RUNS times, one at a time, checking every result. The echo is a child process behind a socket of
 * the same family, which reads as many bytes as a run's request has and writes as many as its reply
 * has: what the kernel alone costs. Both are measured in turn in every repetition. One JSON line
 * per repetition goes to standard output, times in nanoseconds.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/bench/wire_client.h"

#define FLOATS 4
#define WARM_UP 200

/* Fills the request of one run, exchanges it and returns the bytes of its reply. */
static size_t run_once(int fd, uint64_t handle, uint64_t request_id,
                       struct wire_frame *ret_request) {
        const float input[FLOATS] = {1.0F, -2.0F, 0.5F, 1024.0F};
        static struct wire_frame reply;
        float output[FLOATS];

        wire_run_make(handle, request_id, input, sizeof input, ret_request);
        wire_exchange(fd, ret_request, &reply);
        if (reply.header.body_bytes != sizeof output)
                wire_give_up("a reply of %u bytes", reply.header.body_bytes);
        memcpy(output, wire_frame_body(&reply), sizeof output);
        for (uint32_t i = 0; i < FLOATS; i++)
                if (output[i] != input[i] + input[i])
                        wire_give_up("a wrong result: %g", (double) output[i]);
        return reply.size;
}

/* ---- measuring
 * -------------------------------------------------------------------------------- */

static int compare_u64(const void *left, const void *right) {
        uint64_t a = *(const uint64_t *) left, b = *(const uint64_t *) right;

        return (a > b) - (a < b);
}

static uint64_t percentile(uint64_t *sorted, size_t count, size_t per_mille) {
        return sorted[(count - 1) * per_mille / 1000];
}

static void measure_runs(int fd, uint64_t handle, size_t count, uint64_t *ret_times) {
        static struct wire_frame request;

        for (size_t i = 0; i < count; i++) {
                uint64_t start = hr_clock_now_ns();

                (void) run_once(fd, handle, 100 + i, &request);
                ret_times[i] = hr_clock_now_ns() - start;
        }
        qsort(ret_times, count, sizeof *ret_times, compare_u64);
}

static void measure_echo(int fd, size_t request_bytes, size_t reply_bytes, size_t count,
                         uint64_t *ret_times) {
        static uint8_t bytes[sizeof(struct wire_frame)];

        for (size_t i = 0; i < count; i++) {
                uint64_t start = hr_clock_now_ns();

                wire_write(fd, bytes, request_bytes);
                if (!wire_read(fd, bytes, reply_bytes))
                        wire_give_up("the echo ended");
                ret_times[i] = hr_clock_now_ns() - start;
        }
        qsort(ret_times, count, sizeof *ret_times, compare_u64);
}

/* The child that answers; returns the connected socket of this side. */
static int echo_start(int family, size_t request_bytes, size_t reply_bytes, pid_t *ret_child) {
        static uint8_t bytes[sizeof(struct wire_frame)];
        union wire_address address = {0};
        socklen_t size = sizeof address;
        int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        address.any.sa_family = (sa_family_t) family;
        if (family == AF_INET)
                address.internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        else
                size = sizeof address.local.sun_family; /* the kernel chooses an abstract name */
        if (listener < 0 || bind(listener, &address.any, size) != 0 || listen(listener, 1) != 0)
                wire_give_up("echo: %s", strerror(errno));
        size = sizeof address;
        if (getsockname(listener, &address.any, &size) != 0)
                wire_give_up("echo: %s", strerror(errno));
        *ret_child = fork();
        if (*ret_child < 0)
                wire_give_up("fork: %s", strerror(errno));
        if (*ret_child == 0) {
                int fd = accept(listener, NULL, NULL);

                wire_no_delay(fd, family);
                while (wire_read(fd, bytes, request_bytes))
                        wire_write(fd, bytes, reply_bytes);
                _exit(0);
        }
        (void) close(listener);
        return wire_connect(&address, size);
}

int main(int argc, char **argv) {
        static struct wire_frame request;
        union wire_address address;
        size_t count, repetitions, reply_bytes;
        struct hr_graph *graph;
        uint64_t *times, handle;
        int daemon_fd, echo_fd;
        socklen_t size;
        pid_t child;

        if (argc != 4)
                wire_give_up("usage: bench_rpc unix:PATH|tcp:127.0.0.1:PORT RUNS REPETITIONS");
        size = wire_address_parse(argv[1], &address);
        count = strtoul(argv[2], NULL, 10);
        repetitions = strtoul(argv[3], NULL, 10);
        if (count < WARM_UP)
                wire_give_up("at least %d runs", WARM_UP);
        times = calloc(count, sizeof *times);
        if (!times)
                wire_give_up("no memory");
        daemon_fd = wire_connect(&address, size);
        wire_hello(daemon_fd, NULL);
        graph = wire_graph_double(FLOATS);
        handle = wire_submit(daemon_fd, graph, 0);
        (void) hr_graph_unref(graph);
        reply_bytes = run_once(daemon_fd, handle, 3, &request);
        echo_fd = echo_start(address.any.sa_family, request.size, reply_bytes, &child);
        measure_echo(echo_fd, request.size, reply_bytes, WARM_UP, times);
        measure_runs(daemon_fd, handle, WARM_UP, times);
        for (size_t i = 0; i < repetitions; i++) {
                uint64_t echo_p50, echo_p99;

                measure_echo(echo_fd, request.size, reply_bytes, count, times);
                echo_p50 = percentile(times, count, 500);
                echo_p99 = percentile(times, count, 990);
                measure_runs(daemon_fd, handle, count, times);
                (void) printf("{\"request_bytes\": %zu, \"reply_bytes\": %zu, \"run_p50\": %llu, "
                              "\"run_p99\": %llu, \"echo_p50\": %llu, \"echo_p99\": %llu}\n",
                              request.size, reply_bytes,
                              (unsigned long long) percentile(times, count, 500),
                              (unsigned long long) percentile(times, count, 990),
                              (unsigned long long) echo_p50, (unsigned long long) echo_p99);
                (void) fflush(stdout);
        }
        (void) close(echo_fd);
        (void) close(daemon_fd);
        (void) waitpid(child, NULL, 0);
        free(times);
        return 0;
}
