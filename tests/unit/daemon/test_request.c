/* A whole server in a thread of this process, and frames by hand: what becomes of requests. */
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/server.h"
#include "tests/build.h"
#include "tests/harness.h"

static struct {
        struct hr_config config;
        pthread_t thread;
        char folder[64], path[96];
        hr_status status;
        struct hr_diag diag;
} daemon_state;

static void *daemon_main(void *arg) {
        (void) arg;
        daemon_state.status = hr_server_run(&daemon_state.config, NULL, NULL, &daemon_state.diag);
        return NULL;
}

static int dial(void) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        HR_EXPECT(fd >= 0);
        memcpy(address.sun_path, daemon_state.path, strlen(daemon_state.path));
        for (int i = 0; connect(fd, (struct sockaddr *) &address, sizeof address) != 0; i++) {
                HR_EXPECT(i < 1000);
                (void) usleep(5000);
        }
        return fd;
}

/* delay: of each split, e.g. "200ms". */
static void daemon_start(const char *delay) {
        struct hr_diag diag = {0};
        char setting[128];

        strcpy(daemon_state.folder, "/tmp/headrace-test-XXXXXX");
        HR_EXPECT(mkdtemp(daemon_state.folder));
        (void) snprintf(daemon_state.path, sizeof daemon_state.path, "%s/socket",
                        daemon_state.folder);
        HR_EXPECT_OK(hr_config_init(&daemon_state.config, &diag), &diag);
        (void) snprintf(setting, sizeof setting, "listen.unix=%s", daemon_state.path);
        HR_EXPECT_OK(hr_config_set(&daemon_state.config, setting, &diag), &diag);
        (void) snprintf(setting, sizeof setting, "device.cpu0.delay=%s", delay);
        HR_EXPECT_OK(hr_config_set(&daemon_state.config, setting, &diag), &diag);
        HR_EXPECT_OK(hr_config_set(&daemon_state.config, "daemon.log_level=error", &diag), &diag);
        HR_EXPECT_OK(hr_config_finish(&daemon_state.config, &diag), &diag);
        hr_log_set_level(HR_LOG_ERROR);
        HR_EXPECT_EQ(pthread_create(&daemon_state.thread, NULL, daemon_main, NULL), 0);
        (void) close(dial());
}

static void daemon_stop(void) {
        char lock[128];

        HR_EXPECT_EQ(kill(getpid(), SIGTERM), 0);
        HR_EXPECT_EQ(pthread_join(daemon_state.thread, NULL), 0);
        HR_EXPECT_OK(daemon_state.status, &daemon_state.diag);
        HR_EXPECT(access(daemon_state.path, F_OK) != 0); /* the socket is gone */
        hr_config_deinit(&daemon_state.config);
        (void) snprintf(lock, sizeof lock, "%s.lock", daemon_state.path);
        (void) unlink(lock);
        HR_EXPECT_EQ(rmdir(daemon_state.folder), 0);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX], body[1 << 16];
static struct hr_frame_header got;
static uint8_t got_bytes[1 << 17];

static void send_frame(int fd, uint8_t type, uint64_t id, size_t message_bytes, size_t body_bytes,
                       uint32_t timeout_ms) {
        struct hr_frame_header header = {.type = type,
                                         .flags = HR_FRAME_END,
                                         .request_id = id,
                                         .message_bytes = (uint32_t) message_bytes,
                                         .body_bytes = (uint32_t) body_bytes,
                                         .timeout_ms = timeout_ms};
        uint8_t head[HR_FRAME_HEADER_BYTES];

        hr_frame_header_encode(&header, head);
        HR_EXPECT_EQ(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
        HR_EXPECT_EQ(send(fd, message, message_bytes, MSG_NOSIGNAL), message_bytes);
        HR_EXPECT_EQ(send(fd, body, body_bytes, MSG_NOSIGNAL), body_bytes);
}

static bool read_all(int fd, uint8_t *bytes, size_t size) {
        while (size > 0) {
                struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
                ssize_t count;

                HR_EXPECT(poll(&poll_fd, 1, 15000) == 1);
                count = recv(fd, bytes, size, 0);
                if (count <= 0)
                        return false;
                bytes += count;
                size -= (size_t) count;
        }
        return true;
}

/* The next frame; false at the end of the stream. */
static bool receive(int fd) {
        const struct hr_frame_limits limits = {HR_WIRE_MESSAGE_BYTES_MAX, 1 << 16, 0};
        uint8_t head[HR_FRAME_HEADER_BYTES];
        struct hr_diag diag = {0};

        if (!read_all(fd, head, sizeof head))
                return false;
        HR_EXPECT_OK(hr_frame_header_decode(head, &limits, &diag, &got), &diag);
        return read_all(fd, got_bytes, (size_t) got.message_bytes + got.body_bytes);
}

static void expect_reply(int fd, uint8_t type, uint64_t id) {
        HR_EXPECT(receive(fd));
        HR_EXPECT_EQ(got.type, type | HR_FRAME_REPLY);
        HR_EXPECT_EQ(got.request_id, id);
        HR_EXPECT_EQ(got.flags & HR_FRAME_ERROR, 0);
}

static void expect_error(int fd, uint64_t id, const char *reason) {
        struct hr_wire_error error;
        struct hr_diag diag = {0};

        HR_EXPECT(receive(fd));
        HR_EXPECT(got.flags & HR_FRAME_ERROR);
        HR_EXPECT(got.request_id == id);
        HR_EXPECT_OK(hr_wire_error_decode((struct hr_wire_span){got_bytes, got.message_bytes},
                                          &diag, &error),
                     &diag);
        HR_EXPECT_STREQ(error.reason, reason);
        HR_EXPECT_EQ(error.code, got.timeout_ms);
}

static int greet(void) {
        const struct hr_wire_hello hello = {.protocol_min = 1, .protocol_max = 1};
        struct hr_diag diag = {0};
        size_t bytes = 0;
        int fd = dial();

        HR_EXPECT_OK(hr_wire_hello_encode(&hello, message, sizeof message, &diag, &bytes), &diag);
        send_frame(fd, HR_FRAME_HELLO, 1, bytes, 0, 0);
        expect_reply(fd, HR_FRAME_HELLO, 1);
        return fd;
}

static size_t number_message(uint64_t value) {
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_fixed64_encode(value, message, sizeof message, &diag, &bytes), &diag);
        return bytes;
}

/* y = 3 x of four floats; the handle. */
static uint64_t submit(int fd, uint64_t id) {
        struct hr_build *build = hr_build_new();
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 1, 1, 1);
        uint32_t y = hr_build_node(build, HR_OP_SCALE, HR_TYPE_F32, 4, 1, 1, 1, 1, &x);
        const struct hr_wire_submit wire = {0};
        struct hr_wire_submit_reply reply;
        struct hr_diag diag = {0};
        struct hr_graph *graph;
        size_t message_bytes = 0, body_bytes = 0;

        hr_build_tensor(build, x)->flags |= HR_TENSOR_INPUT;
        hr_build_tensor(build, y)->flags |= HR_TENSOR_OUTPUT;
        hr_build_param_f32(build, y, 0, 3);
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, body, sizeof body, &diag, &body_bytes), &diag);
        graph = hr_graph_unref(graph);
        HR_EXPECT_OK(hr_wire_submit_encode(&wire, message, sizeof message, &diag, &message_bytes),
                     &diag);
        send_frame(fd, HR_FRAME_SUBMIT, id, message_bytes, body_bytes, 0);
        expect_reply(fd, HR_FRAME_SUBMIT, id);
        HR_EXPECT_OK(hr_wire_submit_reply_decode(
                             (struct hr_wire_span){got_bytes, got.message_bytes}, &diag, &reply),
                     &diag);
        return reply.handle;
}

static void run_send(int fd, uint64_t id, uint64_t handle, uint32_t timeout_ms) {
        const struct hr_wire_run run = {.handle = handle};
        const float x[4] = {1, 2, 3, (float) id};
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_run_encode(&run, message, sizeof message, &diag, &bytes), &diag);
        memcpy(body, x, sizeof x);
        send_frame(fd, HR_FRAME_RUN, id, bytes, sizeof x, timeout_ms);
}

static void expect_run(int fd, uint64_t id) {
        float y[4];

        expect_reply(fd, HR_FRAME_RUN, id);
        HR_EXPECT_EQ(got.body_bytes, sizeof y);
        memcpy(y, got_bytes + got.message_bytes, sizeof y);
        HR_EXPECT(y[0] == 3 && y[3] == 3 * (float) id);
}

/* ---- tests ----------------------------------------------------------------------------------- */

HR_TEST(requests_in_flight_end_once_each) {
        uint64_t handle;
        int fd;

        daemon_start("0us");
        fd = greet();
        handle = submit(fd, 2);
        for (uint64_t id = 10; id < 60; id++)
                run_send(fd, id, handle, 0);
        send_frame(fd, HR_FRAME_PING, 99, number_message(7), 0, 0);
        for (uint64_t id = 10; id < 60;) {
                HR_EXPECT(receive(fd));
                if (got.request_id == 99)
                        continue; /* answered by the loop, whenever */
                HR_EXPECT_EQ(got.request_id, id);
                id++;
        }
        (void) close(fd);
        daemon_stop();
}

HR_TEST(cancel_and_deadline) {
        uint64_t handle, found = 0;
        struct hr_diag diag = {0};
        int fd;

        daemon_start("100ms");
        fd = greet();
        handle = submit(fd, 2);
        run_send(fd, 10, handle, 0);
        run_send(fd, 11, handle, 0);
        run_send(fd, 12, handle, 20);
        send_frame(fd, HR_FRAME_CANCEL, 13, number_message(11), 0, 0);
        expect_reply(fd, HR_FRAME_CANCEL, 13);
        HR_EXPECT_OK(hr_wire_varint_decode((struct hr_wire_span){got_bytes, got.message_bytes},
                                           &diag, &found),
                     &diag);
        HR_EXPECT_EQ(found, 1);
        expect_error(fd, 11, "CANCELLED");
        expect_error(fd, 12, "DEADLINE");
        expect_run(fd, 10);
        for (uint64_t target = 10; target < 13; target++) { /* ended, or its own id */
                uint64_t id = target == 12 ? 20 : target + 10;

                send_frame(fd, HR_FRAME_CANCEL, id, number_message(target == 12 ? 20 : target), 0,
                           0);
                expect_reply(fd, HR_FRAME_CANCEL, id);
                HR_EXPECT_EQ(got.message_bytes, 0); /* not found */
        }
        (void) close(fd);
        daemon_stop();
}

HR_TEST(an_id_in_flight_is_not_used_again) {
        uint64_t handle;
        int fd;

        daemon_start("100ms");
        fd = greet();
        handle = submit(fd, 2);
        run_send(fd, 10, handle, 0);
        run_send(fd, 10, handle, 0);
        expect_error(fd, HR_FRAME_PUSH_ID, "BAD_ID");
        expect_run(fd, 10); /* the first one's reply is still right */
        HR_EXPECT(!receive(fd));
        (void) close(fd);
        daemon_stop();
}

HR_TEST(failed_requests_leave_the_connection) {
        uint64_t handle;
        int fd;

        daemon_start("0us");
        fd = greet();
        send_frame(fd, 111, 3, 0, 0, 0);
        expect_error(fd, 3, "MESSAGE");
        message[0] = 0xFF;
        send_frame(fd, HR_FRAME_EXPLAIN, 4, 1, 0, 0);
        expect_error(fd, 4, "DECODE");
        send_frame(fd, HR_FRAME_EXPLAIN, 5, number_message(UINT64_MAX), 0, 0);
        expect_error(fd, 5, "GRAPH");
        handle = submit(fd, 6);
        send_frame(fd, HR_FRAME_RUN, 7, number_message(handle), 15, 0); /* one byte too few */
        expect_error(fd, 7, "SIZE");
        run_send(fd, 8, handle, 0);
        expect_run(fd, 8);
        send_frame(fd, HR_FRAME_RELEASE, 9, number_message(handle), 0, 0);
        expect_reply(fd, HR_FRAME_RELEASE, 9);
        run_send(fd, 10, handle, 0);
        expect_error(fd, 10, "GRAPH");
        (void) close(fd);
        daemon_stop();
}

HR_TEST(a_peer_that_vanishes_takes_its_runs_with_it) {
        uint64_t handle;
        int fd, other;

        daemon_start("50ms");
        for (int round = 0; round < 3; round++) {
                uint64_t start_ns;

                fd = greet();
                handle = submit(fd, 2);
                for (uint64_t id = 10; id < 40; id++)
                        run_send(fd, id, handle, 0);
                (void) close(fd);
                other = greet(); /* somebody else is served at once, not after 30 runs */
                handle = submit(other, 2);
                start_ns = hr_clock_now_ns();
                run_send(other, 10, handle, 0);
                expect_run(other, 10);
                HR_EXPECT(hr_clock_now_ns() - start_ns < HR_NS_PER_S);
                (void) close(other);
        }
        daemon_stop();
}

HR_TEST(a_drain_lets_runs_end) {
        uint64_t handle;
        int fd;

        daemon_start("100ms");
        fd = greet();
        handle = submit(fd, 2);
        run_send(fd, 10, handle, 0);
        run_send(fd, 11, handle, 0);
        (void) usleep(20000);
        HR_EXPECT_EQ(kill(getpid(), SIGTERM), 0);
        HR_EXPECT(receive(fd));
        HR_EXPECT_EQ(got.type, HR_FRAME_GOAWAY);
        run_send(fd, 12, handle, 0);
        expect_error(fd, 12, "DRAINING");
        expect_run(fd, 10);
        expect_run(fd, 11);
        HR_EXPECT(!receive(fd));
        (void) close(fd);
        daemon_stop();
}
