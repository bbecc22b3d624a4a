/*
 * TLS between the C client library and a running daemon: who is let in, whom the client believes.
 * HEADRACE_TEST_ADDRESS is one of TLS, HEADRACE_TEST_PLAIN another of the daemon's of TCP, and
 * HEADRACE_TEST_PAPERS a folder of certificates (tests/integration/papers.py); without them every
 * test is skipped. tests/integration/test_client_c.py starts the daemon, which lets in whoever has
 * HEADRACE_TEST_TOKEN or the certificate `known`.
 */
#include "client/c/headrace.h"

#include <string.h>

#include "tests/harness.h"

#define PATH_BYTES 512

/* An attempt to come in; files are names in the folder. */
struct attempt {
        const char *ca, *certificate, *key, *name;
        bool token;
        enum headrace_status status;
        const char *reason, *words; /* of a refusal; words: a part of them, or NULL */
};

static const char *variable(const char *name) {
        const char *text = getenv(name);

        if (!text)
                hr_test_skip("%s is not set", name);
        return text;
}

static const char *paper(const char *name, char place[PATH_BYTES]) {
        if (!name)
                return NULL;
        (void) snprintf(place, PATH_BYTES, "%s/%s", variable("HEADRACE_TEST_PAPERS"), name);
        return place;
}

static enum headrace_status enter(const char *address, const struct attempt *how,
                                  struct headrace_error *error,
                                  struct headrace_client **ret_client) {
        char places[3][PATH_BYTES];
        const char *token = how->token ? variable("HEADRACE_TEST_TOKEN") : "";
        const struct headrace_options options = {
                .timeout_ms = 10000,
                .credentials = token,
                .credentials_bytes = strlen(token),
                .tls_ca = paper(how->ca, places[0]),
                .tls_certificate = paper(how->certificate, places[1]),
                .tls_key = paper(how->key, places[2]),
                .tls_name = how->name,
        };

        return headrace_connect(address, &options, error, ret_client);
}

static void expect(const char *address, const struct attempt *how, size_t number) {
        struct headrace_client *client = NULL;
        struct headrace_error error = {0};
        enum headrace_status status = enter(address, how, &error, &client);

        if (status != how->status)
                hr_test_fail(__FILE__, __LINE__, "attempt %zu: %s, %s: %s", number,
                             headrace_status_name(status), error.reason, error.words);
        if (status == HEADRACE_OK && headrace_ping(client, 0, &error) != HEADRACE_OK)
                hr_test_fail(__FILE__, __LINE__, "attempt %zu: ping: %s", number, error.words);
        if (status != HEADRACE_OK && (strcmp(error.reason, how->reason) != 0 ||
                                      (how->words && !strstr(error.words, how->words))))
                hr_test_fail(__FILE__, __LINE__, "attempt %zu: %s: %s", number, error.reason,
                             error.words);
        headrace_close(client);
}

#define OURS .ca = "ours.pem"
#define SHOWS(who) .certificate = who ".pem", .key = who ".key"
#define REFUSED(code, why, said) .status = HEADRACE_##code, .reason = why, .words = said

HR_TEST(who_is_let_in) {
        static const struct attempt attempts[] = {
                {OURS, .token = true},
                {OURS, SHOWS("known")},
                {OURS, SHOWS("unknown"), .token = true},
                {OURS, REFUSED(UNAUTHENTICATED, "UNAUTHENTICATED", NULL)},
                {OURS, SHOWS("unknown"), REFUSED(UNAUTHENTICATED, "UNAUTHENTICATED", NULL)},
                /* The right name, signed by somebody else; or by us, until yesterday. */
                {OURS, SHOWS("stranger"), REFUSED(UNAVAILABLE, "EOF", "unknown ca")},
                {OURS, SHOWS("expired"), REFUSED(UNAVAILABLE, "EOF", "certificate expired")},
        };

        for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
                expect(variable("HEADRACE_TEST_ADDRESS"), &attempts[i], i);
}

HR_TEST(whom_the_client_believes) {
        static const struct attempt attempts[] = {
                {.ca = "theirs.pem",
                 .token = true,
                 REFUSED(UNAVAILABLE, "TLS", "certificate verify failed")},
                {.token = true, /* by the system's authorities */
                 REFUSED(UNAVAILABLE, "TLS", "certificate verify failed")},
                {OURS, .name = "another.example", .token = true,
                 REFUSED(UNAVAILABLE, "TLS", "ostname mismatch")},
                {OURS, .name = "127.0.0.2", .token = true,
                 REFUSED(UNAVAILABLE, "TLS", "IP address mismatch")},
                {OURS, .name = "127.0.0.1", .token = true},
                {OURS, .name = "localhost", .token = true},
        };

        for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
                expect(variable("HEADRACE_TEST_ADDRESS"), &attempts[i], i);
}

HR_TEST(files_that_do_not_fit) {
        static const struct attempt attempts[] = {
                {OURS, .certificate = "known.pem", REFUSED(INVALID, "TLS", "key ")},
                {OURS, .certificate = "known.pem", .key = "daemon.key",
                 REFUSED(INVALID, "TLS", "key ")},
                /* Nobody is asked for its phrase. */
                {OURS, .certificate = "known.pem", .key = "locked.key",
                 REFUSED(INVALID, "TLS", "key ")},
                {OURS, .certificate = "both.pem"}, /* the key is in the same file */
        };

        for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
                expect(variable("HEADRACE_TEST_ADDRESS"), &attempts[i], i);
}

/* A daemon's port of TCP takes a handshake for a frame, and hangs up. */
HR_TEST(a_port_without_tls) {
        const char *plain = variable("HEADRACE_TEST_PLAIN");
        const struct attempt attempt = {OURS, .token = true, REFUSED(UNAVAILABLE, "TLS", NULL)};
        char address[64];

        (void) snprintf(address, sizeof address, "tls:%s", plain + strlen("tcp:"));
        expect(address, &attempt, 0);
}
