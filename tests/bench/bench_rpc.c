/*
 * Round trips of the smallest useful run, beside a bare socket echo.
 *
 *   bench_rpc unix:PATH|tcp:127.0.0.1:PORT RUNS REPETITIONS
 *
 * The client says hello, submits a graph of one node (y = x + x over four floats), and then runs it
 * RUNS times, one at a time, checking every result. The echo is a child process behind a socket of the
 * same family, which reads as many bytes as a run's request has and writes as many as its reply has:
 * what the kernel alone costs. Both are measured in turn in every repetition. One JSON line per
 * repetition goes to standard output, times in nanoseconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "proto/codec.h"
#include "proto/frame.h"

#define MESSAGE_BYTES_MAX 4096
#define BODY_BYTES_MAX 65536
#define FLOATS 4
#define WARM_UP 200

struct frame {
        struct hr_frame_header header;
        uint8_t bytes[HR_FRAME_HEADER_BYTES + MESSAGE_BYTES_MAX + BODY_BYTES_MAX];
        size_t size;
};

HR_NORETURN HR_PRINTF(1, 2) static void give_up(const char *format, ...) {
        va_list arguments;

        va_start(arguments, format);
        (void) fprintf(stderr, "bench_rpc: ");
        (void) vfprintf(stderr, format, arguments);
        (void) fprintf(stderr, "\n");
        va_end(arguments);
        exit(1);
}

static void must(hr_status status, const struct hr_diag *diag) {
        if (status != HR_OK)
                give_up("%s: %s", hr_status_name(status), diag->words);
}

/* ---- sockets ---------------------------------------------------------------------------------- */

union address {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_in internet;
};

static socklen_t address_parse(const char *text, union address *ret_address) {
        *ret_address = (union address){0};
        if (strncmp(text, "unix:", 5) == 0) {
                ret_address->local.sun_family = AF_UNIX;
                if (strlen(text + 5) >= sizeof ret_address->local.sun_path)
                        give_up("%s is too long", text);
                strcpy(ret_address->local.sun_path, text + 5);
                return sizeof ret_address->local;
        }
        if (strncmp(text, "tcp:127.0.0.1:", 14) == 0) {
                ret_address->internet.sin_family = AF_INET;
                ret_address->internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                ret_address->internet.sin_port = htons((uint16_t) strtoul(text + 14, NULL, 10));
                return sizeof ret_address->internet;
        }
        give_up("%s is neither unix:PATH nor tcp:127.0.0.1:PORT", text);
}

static void socket_no_delay(int fd, int family) {
        int on = 1;

        if (family == AF_INET)
                (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static int socket_connect(const union address *address, socklen_t size) {
        int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0 || connect(fd, &address->any, size) != 0)
                give_up("connect: %s", strerror(errno));
        socket_no_delay(fd, address->any.sa_family);
        return fd;
}

static void write_all(int fd, const void *bytes, size_t size) {
        const uint8_t *next = bytes;

        while (size > 0) {
                ssize_t count = send(fd, next, size, MSG_NOSIGNAL);

                if (count <= 0)
                        give_up("send: %s", strerror(errno));
                next += count;
                size -= (size_t) count;
        }
}

/* False at the end of the stream. */
static bool read_all(int fd, void *bytes, size_t size) {
        uint8_t *next = bytes;

        while (size > 0) {
                ssize_t count = recv(fd, next, size, 0);

                if (count <= 0)
                        return false;
                next += count;
                size -= (size_t) count;
        }
        return true;
}

/* ---- the protocol, as far as this needs it ---------------------------------------------------- */

static void frame_make(struct frame *frame, hr_frame_type type, uint64_t request_id,
                       const uint8_t *message, size_t message_bytes, const void *body,
                       size_t body_bytes) {
        frame->header = (struct hr_frame_header){
                .type = (uint8_t) type,
                .flags = HR_FRAME_END,
                .request_id = request_id,
                .message_bytes = (uint32_t) message_bytes,
                .body_bytes = (uint32_t) body_bytes,
        };
        frame->size = HR_FRAME_HEADER_BYTES + message_bytes + body_bytes;
        if (frame->size > sizeof frame->bytes)
                give_up("a frame of %zu bytes", frame->size);
        hr_frame_header_encode(&frame->header, frame->bytes);
        memcpy(frame->bytes + HR_FRAME_HEADER_BYTES, message, message_bytes);
        if (body_bytes > 0)
                memcpy(frame->bytes + HR_FRAME_HEADER_BYTES + message_bytes, body, body_bytes);
}

static struct hr_wire_span frame_message(const struct frame *frame) {
        return (struct hr_wire_span){frame->bytes + HR_FRAME_HEADER_BYTES,
                                     frame->header.message_bytes};
}

static const uint8_t *frame_body(const struct frame *frame) {
        return frame->bytes + HR_FRAME_HEADER_BYTES + frame->header.message_bytes;
}

static void frame_read(int fd, struct frame *frame) {
        const struct hr_frame_limits limits = {MESSAGE_BYTES_MAX, BODY_BYTES_MAX, 0};
        struct hr_diag diag = {0};

        if (!read_all(fd, frame->bytes, HR_FRAME_HEADER_BYTES))
                give_up("the daemon closed the connection");
        must(hr_frame_header_decode(frame->bytes, &limits, &diag, &frame->header), &diag);
        frame->size = HR_FRAME_HEADER_BYTES + frame->header.message_bytes +
                      frame->header.body_bytes;
        if (!read_all(fd, frame->bytes + HR_FRAME_HEADER_BYTES,
                      frame->size - HR_FRAME_HEADER_BYTES))
                give_up("the daemon closed the connection in a frame");
}

/* One request, one reply; a typed error of the daemon ends the program with its words. */
static void exchange(int fd, const struct frame *request, struct frame *ret_reply) {
        write_all(fd, request->bytes, request->size);
        do
                frame_read(fd, ret_reply);
        while (ret_reply->header.request_id != request->header.request_id);
        if (ret_reply->header.flags & HR_FRAME_ERROR) {
                struct hr_wire_error error;
                struct hr_diag diag = {0};

                must(hr_wire_error_decode(frame_message(ret_reply), &diag, &error), &diag);
                give_up("the daemon answers %s: %s", error.reason, error.words);
        }
}

static void say_hello(int fd) {
        static struct hr_wire_hello hello;
        static struct frame request, reply;
        uint8_t message[MESSAGE_BYTES_MAX];
        struct hr_diag diag = {0};
        size_t bytes;

        hello.protocol_min = hello.protocol_max = HR_WIRE_PROTOCOL;
        strcpy(hello.client_name, "bench_rpc");
        must(hr_wire_hello_encode(&hello, message, sizeof message, &diag, &bytes), &diag);
        frame_make(&request, HR_FRAME_HELLO, 1, message, bytes, NULL, 0);
        exchange(fd, &request, &reply);
}

/* y = x + x. */
static struct hr_graph *graph_new(void) {
        const struct hr_graph_sizes sizes = {.leaf_count = 1, .node_count = 1, .source_count = 2};
        struct hr_diag diag = {0};
        struct hr_graph *graph;

        must(hr_graph_new(&sizes, &diag, &graph), &diag);
        for (uint32_t i = 0; i < 2; i++) {
                struct hr_tensor *tensor = &graph->tensors[i];

                tensor->type = HR_TYPE_F32;
                tensor->view_base = HR_TENSOR_NONE;
                tensor->ne[0] = FLOATS;
                tensor->ne[1] = tensor->ne[2] = tensor->ne[3] = 1;
                must(hr_tensor_set_contiguous(tensor, &diag), &diag);
        }
        graph->tensors[0].leaf_kind = HR_LEAF_INPUT;
        graph->tensors[0].flags = HR_TENSOR_INPUT;
        graph->tensors[1].op = HR_OP_ADD;
        graph->tensors[1].flags = HR_TENSOR_OUTPUT;
        graph->tensors[1].source_count = 2;
        graph->sources[0] = graph->sources[1] = 0;
        return graph;
}

static uint64_t submit_graph(int fd) {
        static struct hr_wire_submit_reply reply;
        static struct frame request, answer;
        uint8_t message[MESSAGE_BYTES_MAX], body[MESSAGE_BYTES_MAX];
        const struct hr_wire_submit submit = {0};
        struct hr_graph *graph = graph_new();
        struct hr_diag diag = {0};
        size_t message_bytes, body_bytes;

        must(hr_wire_graph_encode(graph, body, sizeof body, &diag, &body_bytes), &diag);
        must(hr_wire_submit_encode(&submit, message, sizeof message, &diag, &message_bytes), &diag);
        frame_make(&request, HR_FRAME_SUBMIT, 2, message, message_bytes, body, body_bytes);
        exchange(fd, &request, &answer);
        must(hr_wire_submit_reply_decode(frame_message(&answer), &diag, &reply), &diag);
        (void) hr_graph_unref(graph);
        return reply.handle;
}

/* Fills the request of one run and returns the bytes of its reply. */
static size_t run_make(int fd, uint64_t handle, uint64_t request_id, struct frame *ret_request) {
        const float input[FLOATS] = {1.0F, -2.0F, 0.5F, 1024.0F};
        const struct hr_wire_run run = {.handle = handle};
        static struct frame reply;
        uint8_t message[MESSAGE_BYTES_MAX];
        struct hr_diag diag = {0};
        float output[FLOATS];
        size_t bytes;

        must(hr_wire_run_encode(&run, message, sizeof message, &diag, &bytes), &diag);
        frame_make(ret_request, HR_FRAME_RUN, request_id, message, bytes, input, sizeof input);
        exchange(fd, ret_request, &reply);
        if (reply.header.body_bytes != sizeof output)
                give_up("a reply of %u bytes", reply.header.body_bytes);
        memcpy(output, frame_body(&reply), sizeof output);
        for (uint32_t i = 0; i < FLOATS; i++)
                if (output[i] != input[i] + input[i])
                        give_up("a wrong result: %g", (double) output[i]);
        return reply.size;
}

/* ---- measuring -------------------------------------------------------------------------------- */

static int compare_u64(const void *left, const void *right) {
        uint64_t a = *(const uint64_t *) left, b = *(const uint64_t *) right;

        return (a > b) - (a < b);
}

static uint64_t percentile(uint64_t *sorted, size_t count, size_t per_mille) {
        return sorted[(count - 1) * per_mille / 1000];
}

static void measure_runs(int fd, uint64_t handle, size_t count, uint64_t *ret_times) {
        static struct frame request;

        for (size_t i = 0; i < count; i++) {
                uint64_t start = hr_clock_now_ns();

                (void) run_make(fd, handle, 100 + i, &request);
                ret_times[i] = hr_clock_now_ns() - start;
        }
        qsort(ret_times, count, sizeof *ret_times, compare_u64);
}

static void measure_echo(int fd, size_t request_bytes, size_t reply_bytes, size_t count,
                         uint64_t *ret_times) {
        static uint8_t bytes[sizeof(struct frame)];

        for (size_t i = 0; i < count; i++) {
                uint64_t start = hr_clock_now_ns();

                write_all(fd, bytes, request_bytes);
                if (!read_all(fd, bytes, reply_bytes))
                        give_up("the echo ended");
                ret_times[i] = hr_clock_now_ns() - start;
        }
        qsort(ret_times, count, sizeof *ret_times, compare_u64);
}

/* The child that answers; returns the connected socket of this side. */
static int echo_start(int family, size_t request_bytes, size_t reply_bytes, pid_t *ret_child) {
        static uint8_t bytes[sizeof(struct frame)];
        union address address = {0};
        socklen_t size = sizeof address;
        int listener = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        address.any.sa_family = (sa_family_t) family;
        if (family == AF_INET)
                address.internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        else
                size = sizeof address.local.sun_family; /* the kernel chooses an abstract name */
        if (listener < 0 || bind(listener, &address.any, size) != 0 || listen(listener, 1) != 0)
                give_up("echo: %s", strerror(errno));
        size = sizeof address;
        if (getsockname(listener, &address.any, &size) != 0)
                give_up("echo: %s", strerror(errno));
        *ret_child = fork();
        if (*ret_child < 0)
                give_up("fork: %s", strerror(errno));
        if (*ret_child == 0) {
                int fd = accept(listener, NULL, NULL);

                socket_no_delay(fd, family);
                while (read_all(fd, bytes, request_bytes))
                        write_all(fd, bytes, reply_bytes);
                _exit(0);
        }
        (void) close(listener);
        return socket_connect(&address, size);
}

int main(int argc, char **argv) {
        static struct frame request;
        union address address;
        size_t count, repetitions, reply_bytes;
        uint64_t *times, handle;
        int daemon_fd, echo_fd;
        socklen_t size;
        pid_t child;

        if (argc != 4)
                give_up("usage: bench_rpc unix:PATH|tcp:127.0.0.1:PORT RUNS REPETITIONS");
        size = address_parse(argv[1], &address);
        count = strtoul(argv[2], NULL, 10);
        repetitions = strtoul(argv[3], NULL, 10);
        if (count < WARM_UP)
                give_up("at least %d runs", WARM_UP);
        times = calloc(count, sizeof *times);
        if (!times)
                give_up("no memory");
        daemon_fd = socket_connect(&address, size);
        say_hello(daemon_fd);
        handle = submit_graph(daemon_fd);
        reply_bytes = run_make(daemon_fd, handle, 3, &request);
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
