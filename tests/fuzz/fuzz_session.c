/*
 * A whole conversation: a daemon in this process, one connection per input, which says what the
 * input says.
 *
 * An input is a list of steps. Each is a request (type, flags, id, message, body) in a frame whose
 * header is right, or raw bytes. Handles that the daemon has given in this conversation stand in
 * messages as the eight bytes EE k EE EE EE EE EE EE (k: graph, weights, state). At the end the
 * connection says that nothing more comes, and the daemon has to come to its own end of it: every
 * answer is a proper frame, no request has two, and the stream ends.
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "daemon/server.h"
#include "proto/codec.h"
#include "tests/fuzz/plant.h"

#define WAIT_MS 10
#define END_WAITS 2000 /* of WAIT_MS each: a process that was stopped for minutes waits on */
#define FRAME_MAX (1U << 17)
#define STEPS_MAX 64

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* ---- the daemon ------------------------------------------------------------------------------ */

static struct hr_config config;
static struct sockaddr_un address = {.sun_family = AF_UNIX};
static char folder[64];
static pthread_t thread;
static atomic_bool is_over;

/* An input may ask for a drain: then there is another daemon. */
static HR_UNCOUNTED void *serve(void *arg) {
        (void) arg;
        while (!atomic_load(&is_over)) {
                struct hr_diag diag = {0};

                HR_ASSERT(hr_server_run(&config, NULL, NULL, &diag) == HR_OK);
        }
        return NULL;
}

static void stop(void) {
        struct timespec until;

        atomic_store(&is_over, true);
        do { /* a signal between two daemons is nobody's */
                (void) kill(getpid(), SIGTERM);
                (void) clock_gettime(CLOCK_REALTIME, &until);
                until.tv_sec++;
        } while (pthread_timedjoin_np(thread, NULL, &until) == ETIMEDOUT);
        hr_config_deinit(&config);
        (void) unlink(address.sun_path);
        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s/s.lock", folder);
        (void) unlink(address.sun_path);
        (void) rmdir(folder);
}

static void set(const char *key, const char *value) {
        char assignment[256];
        struct hr_diag diag = {0};

        (void) snprintf(assignment, sizeof assignment, "%s=%s", key, value);
        HR_ASSERT(hr_config_set(&config, assignment, &diag) == HR_OK);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
        struct hr_diag diag = {0};

        (void) argc;
        (void) argv;
        (void) snprintf(folder, sizeof folder, "/tmp/headrace-fuzz-XXXXXX");
        HR_ASSERT(mkdtemp(folder));
        (void) snprintf(address.sun_path, sizeof address.sun_path, "%s/s", folder);
        HR_ASSERT(hr_config_init(&config, &diag) == HR_OK);
        set("listen.unix", address.sun_path);
        set("daemon.log_level", "error");
        set("daemon.drain_timeout", "1s");
        set("limits.body_bytes", "64K");
        set("limits.output_queue_bytes", "1M");
        set("limits.tensor_bytes", "1M");
        set("limits.run_bytes", "1M");
        set("limits.upload_bytes", "1M");
        set("limits.graph_nodes", "1000");
        set("limits.session_buffer_bytes", "16M");
        set("limits.session_state_bytes", "4M");
        set("limits.tap_timeout", "50ms");
        set("limits.hello_timeout", "1s");
        set("limits.progress_timeout", "1s");
        set("device.cpu0.threads", "1");
        set("device.cpu0.memory", "isolated");
        set("device.host.threads", "1");
        HR_ASSERT(hr_config_finish(&config, &diag) == HR_OK);
        hr_log_set_level(HR_LOG_ERROR);
        HR_ASSERT(pthread_create(&thread, NULL, serve, NULL) == 0);
        /* Its own clean-up would come before our threads end. */
        (void) OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
        (void) atexit(stop);
        return 0;
}

/* ---- one conversation ------------------------------------------------------------------------ */

struct peer {
        int fd;
        bool is_over;
        uint8_t input[FRAME_MAX];
        size_t filled;
        uint64_t handles[3];
        uint32_t sent[16], ended[16]; /* requests and last frames of replies, by id */
};

static void handle_take(struct peer *peer, const struct hr_frame_header *header,
                        struct hr_wire_span message) {
        struct hr_wire_submit_reply submit;
        struct hr_wire_state_alloc_reply alloc;
        struct hr_wire_set_info set_info;
        bool already;

        if (header->type == (HR_FRAME_SUBMIT | HR_FRAME_REPLY) &&
            hr_wire_submit_reply_decode(message, NULL, &submit) == HR_OK)
                peer->handles[0] = submit.handle;
        if (header->type == (HR_FRAME_WEIGHTS_PUT | HR_FRAME_REPLY) &&
            hr_wire_set_reply_decode(message, false, NULL, &set_info, &already) == HR_OK)
                peer->handles[1] = set_info.handle;
        if (header->type == (HR_FRAME_STATE_ALLOC | HR_FRAME_REPLY) &&
            hr_wire_state_alloc_reply_decode(message, NULL, &alloc) == HR_OK)
                peer->handles[2] = alloc.handle;
}

static void frames_take(struct peer *peer) {
        static const struct hr_frame_limits limits = {65536, 65536, 0};
        size_t at = 0;

        while (peer->filled - at >= HR_FRAME_HEADER_BYTES) {
                const uint8_t *head = peer->input + at;
                struct hr_frame_header header;
                struct hr_diag diag = {0};
                size_t whole;

                HR_ASSERT(hr_frame_header_decode(head, &limits, &diag, &header) == HR_OK);
                whole = HR_FRAME_HEADER_BYTES + (size_t) header.message_bytes + header.body_bytes;
                HR_ASSERT(whole <= sizeof peer->input);
                if (peer->filled - at < whole)
                        break;
                if (header.flags & HR_FRAME_ERROR) {
                        struct hr_wire_error error;

                        HR_ASSERT(hr_wire_error_decode(
                                          (struct hr_wire_span){head + HR_FRAME_HEADER_BYTES,
                                                                header.message_bytes},
                                          &diag, &error) == HR_OK);
                        HR_ASSERT(error.reason[0] != '\0' && error.words[0] != '\0');
                } else {
                        handle_take(peer, &header,
                                    (struct hr_wire_span){head + HR_FRAME_HEADER_BYTES,
                                                          header.message_bytes});
                }
                if ((header.type & HR_FRAME_REPLY) && !(header.flags & HR_FRAME_MORE) &&
                    header.request_id < 16) {
                        peer->ended[header.request_id]++;
                        HR_ASSERT(peer->ended[header.request_id] <= peer->sent[header.request_id]);
                }
                at += whole;
        }
        memmove(peer->input, peer->input + at, peer->filled - at);
        peer->filled -= at;
}

/* Reads what there is; waits so long for it. False: nothing came. */
static bool peer_read(struct peer *peer, int wait_ms) {
        struct pollfd poll_fd = {.fd = peer->fd, .events = POLLIN};
        ssize_t got;

        if (peer->is_over || poll(&poll_fd, 1, wait_ms) <= 0)
                return false;
        got = recv(peer->fd, peer->input + peer->filled, sizeof peer->input - peer->filled,
                   MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
                return false;
        if (got <= 0) {
                peer->is_over = true;
                return false;
        }
        peer->filled += (size_t) got;
        frames_take(peer);
        return true;
}

/* Reads what there is, once it comes. False: nothing did. */
static bool peer_await(struct peer *peer) {
        for (int i = 0; i < END_WAITS && !peer->is_over; i++)
                if (peer_read(peer, WAIT_MS))
                        return true;
        return false;
}

static void peer_send(struct peer *peer, const uint8_t *bytes, size_t size) {
        while (size > 0 && !peer->is_over) {
                ssize_t sent = send(peer->fd, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (sent > 0) {
                        bytes += sent;
                        size -= (size_t) sent;
                } else if (errno == EAGAIN || errno == EINTR) {
                        (void) peer_read(peer, 1);
                } else {
                        break; /* cut: what it said before is still to be read */
                }
        }
}

struct script {
        const uint8_t *at;
        size_t left;
};

static uint32_t take(struct script *script, unsigned bytes) {
        uint32_t value = 0;

        for (unsigned i = 0; i < bytes && script->left > 0; i++, script->left--)
                value |= (uint32_t) *script->at++ << (8 * i);
        return value;
}

static size_t take_bytes(struct script *script, uint8_t *to, size_t size) {
        size_t count = HR_MIN(size, script->left);

        if (count > 0)
                memcpy(to, script->at, count);
        script->at += count;
        script->left -= count;
        return count;
}

/* Puts the conversation's handles where their places are held. */
static void handles_put(const struct peer *peer, uint8_t *message, size_t bytes) {
        for (size_t i = 0; i + 8 <= bytes; i++) {
                bool is_place = message[i] == 0xEE && message[i + 1] < 3;

                for (size_t k = 2; k < 8 && is_place; k++)
                        is_place = message[i + k] == 0xEE;
                for (size_t k = 0, which = message[i + 1]; k < 8 && is_place; k++)
                        message[i + k] = (uint8_t) (peer->handles[which] >> (8 * k));
        }
}

/* A header with a right checksum, whatever is in it. */
static void head_write(uint8_t *head, uint32_t type, uint32_t flags, uint32_t id,
                       size_t message_bytes, size_t body_bytes) {
        const uint32_t words[] = {'H' | 'R' << 8 | 1 << 16 | type << 24,
                                  flags,
                                  id,
                                  0,
                                  (uint32_t) message_bytes,
                                  (uint32_t) body_bytes,
                                  type % 7 == 0 ? 5 : 0};
        uint32_t crc;

        memcpy(head, words, sizeof words);
        crc = hr_crc32c(head, sizeof words);
        memcpy(head + sizeof words, &crc, sizeof crc);
}

enum { STEP_RAW = 64, STEP_WAIT = 128 };

static void step(struct peer *peer, struct script *script) {
        static _Alignas(uint32_t) uint8_t frame[HR_FRAME_HEADER_BYTES + 256 + 65536];
        const uint32_t type = take(script, 1), flags = take(script, 1), id = take(script, 1) % 16;
        size_t message_bytes = take(script, 1), body_bytes = take(script, 2);

        message_bytes = take_bytes(script, frame + HR_FRAME_HEADER_BYTES, message_bytes);
        handles_put(peer, frame + HR_FRAME_HEADER_BYTES, message_bytes);
        body_bytes = take_bytes(script, frame + HR_FRAME_HEADER_BYTES + message_bytes, body_bytes);
        if (flags & STEP_RAW) {
                for (int i = 0; i < 16; i++)
                        peer->sent[i] += 1000; /* whatever these bytes are */
                peer_send(peer, frame + HR_FRAME_HEADER_BYTES, message_bytes);
                return;
        }
        head_write(frame, type, flags & 31, id, message_bytes, body_bytes);
        peer->sent[id]++;
        peer_send(peer, frame, HR_FRAME_HEADER_BYTES + message_bytes + body_bytes);
        if (flags & STEP_WAIT) {
                const uint32_t before = peer->ended[id];

                for (int i = 0; i < 4 && peer->ended[id] == before; i++)
                        if (!peer_read(peer, WAIT_MS))
                                break;
        }
        HR_PLANT(peer->handles[0] != 0 && flags & HR_FRAME_NOREPLY);
}

static void say_hello(struct peer *peer) {
        const struct hr_wire_hello hello = {.protocol_min = 1, .protocol_max = 1};
        uint8_t frame[HR_FRAME_HEADER_BYTES + 256];
        size_t bytes = 0;

        HR_ASSERT(hr_wire_hello_encode(&hello, frame + HR_FRAME_HEADER_BYTES, 256, NULL, &bytes) ==
                  HR_OK);
        hr_frame_header_encode(&(struct hr_frame_header){.type = HR_FRAME_HELLO,
                                                         .flags = HR_FRAME_END,
                                                         .request_id = 1,
                                                         .message_bytes = (uint32_t) bytes},
                               frame);
        peer->sent[1]++;
        peer_send(peer, frame, HR_FRAME_HEADER_BYTES + bytes);
        while (peer->ended[1] == 0 && peer_await(peer)) {
        }
}

static int peer_connect(void) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        HR_ASSERT(fd >= 0);
        for (int i = 0; i < 2000; i++) {
                if (connect(fd, (struct sockaddr *) &address, sizeof address) == 0)
                        return fd;
                (void) usleep(5000);
        }
        HR_ASSERT(false);
        return -1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static struct peer peer;
        struct script script = {bytes, size};

        if (size < 7)
                return 0;
        memset(&peer, 0, sizeof peer);
        peer.fd = peer_connect();
        if (!(take(&script, 1) & 1))
                say_hello(&peer);
        for (int i = 0; i < STEPS_MAX && script.left > 0 && !peer.is_over; i++)
                step(&peer, &script);
        (void) shutdown(peer.fd, SHUT_WR);
        while (peer_await(&peer)) {
        }
        HR_ASSERT(peer.is_over); /* else the daemon hangs */
        (void) close(peer.fd);
        return 0;
}
