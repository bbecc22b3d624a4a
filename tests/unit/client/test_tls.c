/*
 * TLS against listeners that do not speak it: each attempt ends in a typed error, within its
 * deadline. Handshakes that succeed are tests/client/live.c's and tests/client/secure.c's.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/c/headrace.h"
#include "tests/harness.h"

struct listener {
        int fd;
        char address[64]; /* tls:127.0.0.1:port */
        const char *says; /* to whoever connects; NULL: nothing, and stays */
        size_t bytes;
        pthread_t thread;
};

/* Takes one connection, says its words, and waits until the other side has gone unless it says
 * something. */
static void *listener_serve(void *data) {
        struct listener *listener = data;
        int fd = accept(listener->fd, NULL, NULL);
        char sink[512];

        if (fd < 0)
                return NULL;
        (void) read(fd, sink, sizeof sink); /* so that closing is no reset */
        if (listener->says)
                (void) write(fd, listener->says, listener->bytes);
        else
                while (read(fd, sink, sizeof sink) > 0)
                        ;
        (void) close(fd);
        return NULL;
}

static void listener_start(struct listener *listener, const char *says, size_t bytes) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;

        *listener = (struct listener){.says = says, .bytes = bytes};
        listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        HR_EXPECT(bind(listener->fd, (struct sockaddr *) &at, size) == 0);
        HR_EXPECT(listen(listener->fd, 1) == 0);
        HR_EXPECT(getsockname(listener->fd, (struct sockaddr *) &at, &size) == 0);
        (void) snprintf(listener->address, sizeof listener->address, "tls:127.0.0.1:%u",
                        ntohs(at.sin_port));
        HR_EXPECT(pthread_create(&listener->thread, NULL, listener_serve, listener) == 0);
}

static void listener_end(struct listener *listener) {
        (void) shutdown(listener->fd, SHUT_RDWR); /* where nobody has come */
        (void) pthread_join(listener->thread, NULL);
        (void) close(listener->fd);
}

#define ALERT "\x15\x03\x03\x00\x02\x02\x28" /* fatal: handshake_failure */

HR_TEST(peers_that_do_not_shake_hands) {
        static const struct {
                const char *says;
                size_t bytes;
                enum headrace_status status;
                const char *reason, *words;
        } cases[] = {
                {NULL, 0, HEADRACE_DEADLINE, "DEADLINE", "not connected in time"},
                {"", 0, HEADRACE_UNAVAILABLE, "TLS", "reset by peer"},
                {"HTTP/1.1 400 Bad Request\r\n\r\n", 28, HEADRACE_UNAVAILABLE, "TLS",
                 "wrong version"},
                {"\x16\x03\x03", 3, HEADRACE_UNAVAILABLE, "TLS", "reset by peer"}, /* cut off */
                {ALERT, sizeof ALERT - 1, HEADRACE_UNAVAILABLE, "TLS", "handshake failure"},
        };

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                const struct headrace_options options = {.timeout_ms = cases[i].says ? 10000 : 100};
                struct headrace_error error = {0};
                struct headrace_client *client = NULL;
                struct listener listener;

                listener_start(&listener, cases[i].says, cases[i].bytes);
                HR_EXPECT_EQ(headrace_connect(listener.address, &options, &error, &client),
                             cases[i].status);
                HR_EXPECT_STREQ(error.reason, cases[i].reason);
                HR_EXPECT(strncmp(error.words, listener.address, strlen(listener.address)) == 0);
                if (!strstr(error.words, cases[i].words))
                        hr_test_fail(__FILE__, __LINE__, "case %zu: %s", i, error.words);
                HR_EXPECT(client == NULL);
                listener_end(&listener);
        }
}

/* What the caller gives is looked at before anything is said to the other side. */
HR_TEST(files_and_names_of_no_use) {
        static const struct {
                struct headrace_options options;
                const char *words;
        } cases[] = {
                {{.tls_ca = "/nonexistent/ca.pem"}, "CA /nonexistent/ca.pem: "},
                {{.tls_ca = "/dev/null"}, "CA /dev/null: "},
                {{.tls_certificate = "/nonexistent/c.pem"}, "certificate /nonexistent/c.pem: "},
                {{.tls_key = "/nonexistent/key.pem"}, "no certificate for the key"},
                {{.tls_name = ""}, "no name"}, /* to OpenSSL that means anybody's */
        };
        struct listener listener;

        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
                struct headrace_error error = {0};
                struct headrace_client *client = NULL;

                listener_start(&listener, "", 0);
                HR_EXPECT_EQ(headrace_connect(listener.address, &cases[i].options, &error, &client),
                             HEADRACE_INVALID);
                HR_EXPECT_STREQ(error.reason, "TLS");
                if (!strstr(error.words, cases[i].words))
                        hr_test_fail(__FILE__, __LINE__, "case %zu: %s", i, error.words);
                listener_end(&listener);
        }
}
