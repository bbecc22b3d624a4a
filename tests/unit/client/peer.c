/* The daemon's end of a connection, played. */
#include "tests/unit/client/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness.h"

static bool take(int fd, void *bytes, size_t size) {
        uint8_t *at = bytes;

        while (size) {
                ssize_t count = recv(fd, at, size, 0);

                if (count <= 0)
                        return false;
                at += count;
                size -= (size_t) count;
        }
        return true;
}

bool peer_receive(struct peer *peer) {
        const struct hr_frame_limits limits = {HR_WIRE_MESSAGE_BYTES_MAX, PEER_BYTES_MAX, 0};
        uint8_t head[HR_FRAME_HEADER_BYTES];
        struct hr_diag diag = {0};

        if (!take(peer->fd, head, sizeof head))
                return false;
        HR_EXPECT_OK(hr_frame_header_decode(head, &limits, &diag, &peer->header), &diag);
        return take(peer->fd, peer->message, peer->header.message_bytes) &&
               take(peer->fd, peer->body, peer->header.body_bytes);
}

void peer_send(struct peer *peer, const struct hr_frame_header *header, const void *message,
               const void *body) {
        uint8_t head[HR_FRAME_HEADER_BYTES];

        hr_frame_header_encode(header, head);
        (void) send(peer->fd, head, sizeof head, MSG_NOSIGNAL);
        if (header->message_bytes)
                (void) send(peer->fd, message, header->message_bytes, MSG_NOSIGNAL);
        if (header->body_bytes)
                (void) send(peer->fd, body, header->body_bytes, MSG_NOSIGNAL);
}

void peer_reply(struct peer *peer, uint16_t flags, const void *body, uint32_t body_bytes) {
        const struct hr_frame_header header = {.type = peer->header.type | HR_FRAME_REPLY,
                                               .flags = flags,
                                               .request_id = peer->header.request_id,
                                               .body_bytes = body_bytes};

        peer_send(peer, &header, NULL, body);
}

void peer_reply_error(struct peer *peer, uint64_t request_id, hr_status status,
                      const char *reason) {
        const struct hr_diag failure = {.status = status, .reason = reason, .words = "so it is"};
        struct hr_frame_header header = {.type = peer->header.type | HR_FRAME_REPLY,
                                         .flags = HR_FRAME_ERROR | HR_FRAME_END,
                                         .request_id = request_id,
                                         .timeout_ms = hr_status_grpc_code(status)};
        uint8_t message[HR_WIRE_ERROR_BYTES_MAX];
        size_t bytes;

        HR_EXPECT_EQ(hr_wire_error_encode(&failure, NULL, message, sizeof message, &bytes), HR_OK);
        header.message_bytes = (uint32_t) bytes;
        peer_send(peer, &header, message, NULL);
}

static void *peer_main(void *arg) {
        struct hr_wire_hello_reply hello = {.protocol = HR_WIRE_PROTOCOL,
                                            .daemon_version = "played",
                                            .limits = {.body_bytes_max = 4096}};
        struct hr_frame_header header = {.type = HR_FRAME_HELLO | HR_FRAME_REPLY,
                                         .flags = HR_FRAME_END};
        struct peer *peer = arg;
        uint8_t message[4096];
        struct hr_diag diag = {0};
        size_t bytes;

        if (peer_receive(peer)) {
                HR_EXPECT_EQ(peer->header.type, HR_FRAME_HELLO);
                HR_EXPECT_OK(hr_wire_hello_reply_encode(&hello, message, sizeof message, &diag,
                                                        &bytes),
                             &diag);
                header.request_id = peer->header.request_id;
                header.message_bytes = (uint32_t) bytes;
                peer_send(peer, &header, message, NULL);
                peer->play(peer);
        }
        (void) shutdown(peer->fd, SHUT_RDWR);
        return NULL;
}

struct peer *peer_new(void (*play)(struct peer *peer)) {
        struct peer *peer = calloc(1, sizeof *peer);
        int pair[2];

        HR_EXPECT(peer && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        peer->fd = pair[0];
        peer->client_fd = pair[1];
        peer->play = play;
        HR_EXPECT(fcntl(pair[1], F_SETFL, O_NONBLOCK) == 0);
        HR_EXPECT(pthread_create(&peer->thread, NULL, peer_main, peer) == 0);
        return peer;
}

void peer_free(struct peer *peer) {
        (void) pthread_join(peer->thread, NULL);
        (void) close(peer->fd);
        HR_EXPECT_EQ(peer->closed, 1);
        free(peer);
}

static int64_t stream_receive(void *data, void *buffer, size_t bytes) {
        return recv(((struct peer *) data)->client_fd, buffer, bytes, 0);
}

static int64_t stream_send(void *data, const void *buffer, size_t bytes) {
        return send(((struct peer *) data)->client_fd, buffer, bytes, MSG_NOSIGNAL);
}

static void stream_close(void *data) {
        struct peer *peer = data;

        peer->closed++;
        (void) close(peer->client_fd);
}

enum headrace_status peer_connect(struct peer *peer, int64_t timeout_ms,
                                  struct headrace_error *error,
                                  struct headrace_client **ret_client) {
        const struct headrace_stream stream = {peer, peer->client_fd, stream_receive, stream_send,
                                               stream_close};

        return headrace_connect(NULL,
                                &(struct headrace_options){.timeout_ms = timeout_ms,
                                                           .stream = &stream},
                                error, ret_client);
}
