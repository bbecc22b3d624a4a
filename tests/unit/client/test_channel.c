/*
 * The client against a peer that does what no daemon should: each ends in a typed error, never in a
 * hang, a mix-up of replies or a write past a buffer.
 */
#include <unistd.h>

#include "tests/harness.h"
#include "tests/unit/client/peer.h"

static struct headrace_client *connected(struct peer *peer) {
        struct headrace_client *client = NULL;
        struct headrace_error error = {0};

        HR_EXPECT_EQ(peer_connect(peer, 2000, &error, &client), HEADRACE_OK);
        HR_EXPECT_STREQ(headrace_daemon_version(client), "played");
        return client;
}

/* What a ping says after the play. */
static void expect_ping(void (*play)(struct peer *peer), enum headrace_status status,
                        const char *reason) {
        struct peer *peer = peer_new(play);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};

        HR_EXPECT_EQ(headrace_ping(client, 300, &error), status);
        if (status != HEADRACE_OK)
                HR_EXPECT_STREQ(error.reason, reason);
        headrace_close(client);
        peer_free(peer);
}

static void play_answer(struct peer *peer) {
        while (peer_receive(peer))
                peer_reply(peer, HR_FRAME_END, NULL, 0);
}

static void play_hang_up(struct peer *peer) {
        (void) peer_receive(peer);
}

static void play_garbage(struct peer *peer) {
        static const uint8_t garbage[256] = {0xFF, 1, 2, 3};

        if (peer_receive(peer))
                (void) write(peer->fd, garbage, sizeof garbage);
        while (peer_receive(peer))
                ;
}

static void play_half_header(struct peer *peer) {
        if (peer_receive(peer))
                (void) write(peer->fd, "HR\1", 3);
}

static void play_unknown_reply(struct peer *peer) {
        if (peer_receive(peer)) {
                peer->header.request_id += 100;
                peer_reply(peer, HR_FRAME_END, NULL, 0);
        }
        while (peer_receive(peer))
                ;
}

static void play_other_type(struct peer *peer) {
        if (peer_receive(peer)) {
                peer->header.type = HR_FRAME_RUN;
                peer_reply(peer, HR_FRAME_END, NULL, 0);
        }
        while (peer_receive(peer))
                ;
}

static void play_error(struct peer *peer) {
        if (peer_receive(peer))
                peer_reply_error(peer, peer->header.request_id, HR_E_PERMISSION, "PERMISSION");
        while (peer_receive(peer))
                ;
}

static void play_connection_error(struct peer *peer) {
        if (peer_receive(peer)) {
                peer->header.type = HR_FRAME_GOAWAY;
                peer_reply_error(peer, HR_FRAME_PUSH_ID, HR_E_UNAVAILABLE, "DRAINING");
        }
        while (peer_receive(peer))
                ;
}

static void play_unreadable_error(struct peer *peer) {
        static const uint8_t nonsense[] = {0xFF, 0xFF, 0xFF};

        if (peer_receive(peer))
                peer_send(peer,
                          &(struct hr_frame_header){.type = peer->header.type | HR_FRAME_REPLY,
                                                    .flags = HR_FRAME_ERROR,
                                                    .request_id = peer->header.request_id,
                                                    .message_bytes = sizeof nonsense},
                          nonsense, NULL);
        while (peer_receive(peer))
                ;
}

static void play_pushes_first(struct peer *peer) {
        while (peer_receive(peer)) {
                struct hr_frame_header push = {.request_id = HR_FRAME_PUSH_ID};

                push.type = HR_FRAME_GOAWAY;
                peer_send(peer, &push, NULL, NULL);
                push.type = HR_FRAME_PROGRESS;
                push.request_id = peer->header.request_id;
                peer_send(peer, &push, NULL, NULL);
                push.type = HR_FRAME_CREDIT; /* for a call that wants none */
                peer_send(peer, &push, NULL, NULL);
                peer_reply(peer, HR_FRAME_END, NULL, 0);
        }
}

HR_TEST(replies_and_failures) {
        expect_ping(play_answer, HEADRACE_OK, NULL);
        expect_ping(play_hang_up, HEADRACE_UNAVAILABLE, "EOF");
        expect_ping(play_garbage, HEADRACE_INTERNAL, "PROTOCOL");
        expect_ping(play_half_header, HEADRACE_UNAVAILABLE, "EOF");
        expect_ping(play_unknown_reply, HEADRACE_INTERNAL, "PROTOCOL");
        expect_ping(play_other_type, HEADRACE_INTERNAL, "PROTOCOL");
        expect_ping(play_error, HEADRACE_PERMISSION, "PERMISSION");
        expect_ping(play_unreadable_error, HEADRACE_INTERNAL, "PROTOCOL");
        expect_ping(play_pushes_first, HEADRACE_OK, NULL);
}

HR_TEST(an_error_about_the_connection_ends_it) {
        struct peer *peer = peer_new(play_connection_error);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};

        HR_EXPECT_EQ(headrace_ping(client, 0, &error), HEADRACE_UNAVAILABLE);
        HR_EXPECT(headrace_draining(client));
        /* The first failure counts, for everybody. */
        HR_EXPECT_EQ(headrace_ping(client, 0, &error), HEADRACE_UNAVAILABLE);
        headrace_close(client);
        peer_free(peer);
}

/* Answers the first ping only when the second has come. */
static void play_late(struct peer *peer) {
        uint64_t first = 0;

        while (peer_receive(peer)) {
                if (peer->header.type == HR_FRAME_CANCEL) {
                        peer_reply(peer, HR_FRAME_END, NULL, 0);
                        continue;
                }
                if (!first) {
                        first = peer->header.request_id;
                        continue;
                }
                uint64_t second = peer->header.request_id;

                peer->header.request_id = first;
                peer_reply(peer, HR_FRAME_MORE, "late", 4);
                peer->header.type = HR_FRAME_DATA;
                peer_reply(peer, HR_FRAME_END, "r", 1);
                peer->header.type = HR_FRAME_PING;
                peer->header.request_id = second;
                peer_reply(peer, HR_FRAME_END, NULL, 0);
        }
}

HR_TEST(a_late_reply_is_thrown_away) {
        struct peer *peer = peer_new(play_late);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};

        HR_EXPECT_EQ(headrace_ping(client, 50, &error), HEADRACE_DEADLINE);
        HR_EXPECT_STREQ(error.reason, "DEADLINE");
        HR_EXPECT_EQ(headrace_ping(client, 5000, &error), HEADRACE_OK);
        headrace_close(client);
        peer_free(peer);
}

/* A state's bytes: more, fewer, in pieces. */
static unsigned reply_bytes;

static void play_state(struct peer *peer) {
        static const uint8_t bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8};

        while (peer_receive(peer)) {
                if (peer->header.type == HR_FRAME_CANCEL) {
                        peer_reply(peer, HR_FRAME_END, NULL, 0);
                        continue;
                }
                HR_EXPECT_EQ(peer->header.type, HR_FRAME_STATE_READ);
                peer_reply(peer, HR_FRAME_MORE, bytes, 1);
                peer->header.type = HR_FRAME_DATA;
                peer_reply(peer, HR_FRAME_END, bytes + 1, reply_bytes - 1);
        }
}

static enum headrace_status read_state(unsigned bytes, struct headrace_error *error,
                                       uint8_t buffer[16]) {
        struct headrace_client *client;
        enum headrace_status status;
        struct peer *peer;
        uint8_t good[8];

        reply_bytes = bytes;
        peer = peer_new(play_state);
        client = connected(peer);
        status = headrace_state_read(client, 1, 0, 0, buffer, 8, 500, error);
        /* The connection goes on. */
        reply_bytes = 8;
        HR_EXPECT_EQ(headrace_state_read(client, 1, 0, 0, good, 8, 500, NULL), HEADRACE_OK);
        headrace_close(client);
        peer_free(peer);
        return status;
}

HR_TEST(a_reply_of_another_length) {
        struct headrace_error error = {0};
        uint8_t buffer[16];

        memset(buffer, 0xAA, sizeof buffer);
        HR_EXPECT_EQ(read_state(8, &error, buffer), HEADRACE_OK);
        for (int i = 0; i < 16; i++)
                HR_EXPECT_EQ(buffer[i], i < 8 ? i + 1 : 0xAA);
        HR_EXPECT_EQ(read_state(7, &error, buffer), HEADRACE_INTERNAL);
        HR_EXPECT_STREQ(error.reason, "PROTOCOL");
        for (unsigned bytes = 9; bytes < 64; bytes += 11) {
                HR_EXPECT_EQ(read_state(bytes, &error, buffer), HEADRACE_INTERNAL);
                HR_EXPECT_STREQ(error.reason, "PROTOCOL");
                for (int i = 8; i < 16; i++)
                        HR_EXPECT_EQ(buffer[i], 0xAA);
        }
}

/* Grants credit in odd portions and checks what comes. */
static uint64_t received;

static void play_credit(struct peer *peer) {
        static const uint32_t grants[] = {1, 4095, 4096, 3, 100000};
        struct hr_frame_header push = {.type = HR_FRAME_CREDIT};
        uint64_t granted = 0;
        uint8_t message[16];
        unsigned next = 0;
        size_t bytes;

        received = 0;
        if (!peer_receive(peer))
                return;
        HR_EXPECT_EQ(peer->header.type, HR_FRAME_STATE_WRITE);
        HR_EXPECT_EQ(peer->header.body_bytes, 0);
        HR_EXPECT(peer->header.flags & HR_FRAME_MORE);
        push.request_id = peer->header.request_id;
        while (peer->header.flags & HR_FRAME_MORE) {
                struct hr_diag diag = {0};
                uint64_t offset;

                if (granted == received) {
                        uint32_t more = grants[HR_MIN(next, 4U)];

                        next++;
                        HR_EXPECT_EQ(hr_wire_varint_encode(more, message, sizeof message, NULL,
                                                           &bytes),
                                     HR_OK);
                        push.message_bytes = (uint32_t) bytes;
                        peer_send(peer, &push, message, NULL);
                        granted += more;
                }
                HR_EXPECT(peer_receive(peer));
                HR_EXPECT_EQ(peer->header.type, HR_FRAME_DATA);
                HR_EXPECT_OK(
                        hr_wire_varint_decode(
                                (struct hr_wire_span){peer->message, peer->header.message_bytes},
                                &diag, &offset),
                        &diag);
                HR_EXPECT_EQ(offset, received);
                for (uint32_t i = 0; i < peer->header.body_bytes; i++)
                        HR_EXPECT_EQ(peer->body[i], (uint8_t) ((offset + i) * 31));
                received += peer->header.body_bytes;
                HR_EXPECT(peer->header.body_bytes <= 4096 && received <= granted);
        }
        peer->header.type = HR_FRAME_STATE_WRITE;
        peer_reply(peer, HR_FRAME_END, NULL, 0);
        while (peer_receive(peer))
                ;
}

HR_TEST(a_long_body_follows_under_credit) {
        struct peer *peer = peer_new(play_credit);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};
        static uint8_t data[50000];

        for (unsigned i = 0; i < sizeof data; i++)
                data[i] = (uint8_t) (i * 31);
        HR_EXPECT_EQ(headrace_state_write(client, 1, 0, 0, data, sizeof data, 0, &error),
                     HEADRACE_OK);
        headrace_close(client);
        peer_free(peer);
        HR_EXPECT_EQ(received, sizeof data);
}

/* Refuses before the body has been asked for. */
HR_TEST(a_refused_upload_ends_at_once) {
        struct peer *peer = peer_new(play_error);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};
        static uint8_t data[50000];

        HR_EXPECT_EQ(headrace_state_write(client, 1, 0, 0, data, sizeof data, 0, &error),
                     HEADRACE_PERMISSION);
        headrace_close(client);
        peer_free(peer);
}

static void play_nothing(struct peer *peer) {
        while (peer_receive(peer))
                ;
}

HR_TEST(no_credit_no_hang) {
        struct peer *peer = peer_new(play_nothing);
        struct headrace_client *client = connected(peer);
        struct headrace_error error = {0};
        static uint8_t data[50000];

        HR_EXPECT_EQ(headrace_state_write(client, 1, 0, 0, data, sizeof data, 100, &error),
                     HEADRACE_DEADLINE);
        headrace_close(client);
        peer_free(peer);
}

/* Replies in the wrong order, to many threads at once: each gets its own. */
#define THREADS 8
#define ROUNDS 200

static void play_shuffle(struct peer *peer) {
        struct hr_frame_header held[THREADS];
        struct hr_wire_state_range ranges[THREADS];
        uint8_t bytes[THREADS][4];
        unsigned count = 0, seed = 1;

        while (peer_receive(peer)) {
                struct hr_diag diag = {0};

                HR_EXPECT_OK(hr_wire_state_range_decode(
                                     (struct hr_wire_span){peer->message,
                                                           peer->header.message_bytes},
                                     &diag, &ranges[count]),
                             &diag);
                held[count] = peer->header;
                memcpy(bytes[count], &ranges[count].tensor, 4);
                count++;
                seed = seed * 1103515245 + 12345;
                while (count && (count == THREADS || (seed >> 16) % 3)) {
                        unsigned pick = (seed >> 8) % count;

                        peer->header = held[pick];
                        peer_reply(peer, HR_FRAME_END, bytes[pick], 4);
                        count--;
                        held[pick] = held[count];
                        memcpy(bytes[pick], bytes[count], 4);
                        seed = seed * 1103515245 + 12345;
                }
                /* Whoever is left out waits for the next request, or for its second try. */
                if (count && count < THREADS && !(seed % 5)) {
                        peer->header = held[--count];
                        peer_reply(peer, HR_FRAME_END, bytes[count], 4);
                }
        }
}

static void *read_many(void *arg) {
        struct headrace_client *client = arg;
        static _Atomic uint32_t next;

        for (int i = 0; i < ROUNDS; i++) {
                uint32_t wanted = next++, got = 0;
                enum headrace_status status = headrace_state_read(client, 1, wanted, 0, &got,
                                                                  sizeof got, 20, NULL);

                /* One that the play has left out may run out of time; none gets another's. */
                HR_EXPECT(status == HEADRACE_DEADLINE || (status == HEADRACE_OK && got == wanted));
        }
        return NULL;
}

HR_TEST_LIMIT(threads_get_their_own_replies, 120) {
        struct peer *peer = peer_new(play_shuffle);
        struct headrace_client *client = connected(peer);
        pthread_t threads[THREADS];

        for (int i = 0; i < THREADS; i++)
                HR_EXPECT(pthread_create(&threads[i], NULL, read_many, client) == 0);
        for (int i = 0; i < THREADS; i++)
                (void) pthread_join(threads[i], NULL);
        headrace_close(client);
        peer_free(peer);
}

HR_TEST(bad_addresses) {
        static const char *const addresses[] = {"",     "unix:",     "tcp:",   "tcp:host", "tcp::1",
                                                "tls:", "tls:host:", "http:x", NULL};
        struct headrace_error error = {0};
        struct headrace_client *client = NULL;

        for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
                HR_EXPECT_EQ(headrace_connect(addresses[i], NULL, &error, &client),
                             HEADRACE_INVALID);
                HR_EXPECT_STREQ(error.reason, "ADDRESS");
        }
        HR_EXPECT_EQ(headrace_connect("unix:/nonexistent/socket", NULL, &error, &client),
                     HEADRACE_UNAVAILABLE);
        HR_EXPECT_STREQ(error.reason, "CONNECT");
        HR_EXPECT(client == NULL);
        headrace_close(NULL);
}
