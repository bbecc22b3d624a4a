/* What a peer may send that carries nothing: an end comes, and memory stays small. */
#include "daemon/tls.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/harness.h"

struct pair {
        char folder[40], certificate[64], key[64];
        struct hr_tls_context *context;
        struct hr_tls *server;
        SSL_CTX *peers;
        SSL *peer;
        int fds[2]; /* the server's, the peer's */
};

static void pair_papers(struct pair *pair) {
        EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        X509 *certificate = X509_new();
        FILE *file;

        (void) snprintf(pair->folder, sizeof pair->folder, "/tmp/headrace-tls-XXXXXX");
        HR_EXPECT(mkdtemp(pair->folder) != NULL);
        (void) snprintf(pair->certificate, sizeof pair->certificate, "%s/c", pair->folder);
        (void) snprintf(pair->key, sizeof pair->key, "%s/k", pair->folder);
        HR_EXPECT(X509_gmtime_adj(X509_getm_notBefore(certificate), -60) &&
                  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600) &&
                  X509_set_pubkey(certificate, key) && X509_sign(certificate, key, NULL));
        file = fopen(pair->certificate, "w");
        HR_EXPECT(file && PEM_write_X509(file, certificate) && fclose(file) == 0);
        file = fopen(pair->key, "w");
        HR_EXPECT(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) &&
                  fclose(file) == 0);
        X509_free(certificate);
        EVP_PKEY_free(key);
}

static hr_stream_event server_take(struct pair *pair) {
        uint8_t bytes[64];
        size_t got = 0;

        return hr_tls_receive(pair->server, pair->fds[0],
                              &(struct iovec){bytes, sizeof bytes}, 1, false, &got);
}

static void pair_init(struct pair *pair) {
        struct hr_diag diag = {0};

        pair_papers(pair);
        HR_EXPECT_OK(hr_tls_context_new(pair->certificate, pair->key, NULL, &diag, &pair->context),
                     &diag);
        pair->server = hr_tls_new(pair->context);
        pair->peers = SSL_CTX_new(TLS_client_method());
        pair->peer = SSL_new(pair->peers);
        HR_EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair->fds) == 0);
        HR_EXPECT(SSL_set_fd(pair->peer, pair->fds[1]) == 1);
        SSL_set_connect_state(pair->peer);
        for (int i = 0; i < 10 && SSL_do_handshake(pair->peer) != 1; i++)
                HR_EXPECT_EQ(server_take(pair), HR_STREAM_LATER);
        HR_EXPECT_EQ(server_take(pair), HR_STREAM_LATER);
        HR_EXPECT(SSL_is_init_finished(pair->peer));
}

static void pair_deinit(struct pair *pair) {
        hr_tls_free(pair->server);
        hr_tls_context_free(pair->context);
        SSL_free(pair->peer);
        SSL_CTX_free(pair->peers);
        (void) close(pair->fds[0]);
        (void) close(pair->fds[1]);
        (void) unlink(pair->certificate);
        (void) unlink(pair->key);
        (void) rmdir(pair->folder);
}

/* Each asks the server for one of its own; the peer need not read those. */
static bool key_update(struct pair *pair) {
        return SSL_key_update(pair->peer, SSL_KEY_UPDATE_REQUESTED) == 1 &&
               SSL_do_handshake(pair->peer) == 1;
}

HR_TEST(key_updates_alone_are_cut_off) {
        struct pair pair = {0};
        int count = 0;

        pair_init(&pair);
        for (int i = 0; i < 100; i++) {
                HR_EXPECT(key_update(&pair));
                HR_EXPECT_EQ(server_take(&pair), HR_STREAM_LATER);
        }
        while (count < 100000 && key_update(&pair) && server_take(&pair) == HR_STREAM_LATER)
                count++;
        HR_EXPECT(count > 1000 && count < 3000); /* of 27 bytes each */
        HR_EXPECT_STREQ(hr_tls_words(pair.server), "records without contents");
        pair_deinit(&pair);
}

/* Contents in between do not help who never reads. */
HR_TEST(answers_that_nobody_reads_do_not_pile_up) {
        struct pair pair = {0};
        hr_stream_event event = HR_STREAM_OK;

        pair_init(&pair);
        for (int i = 0; i < 200000 && event != HR_STREAM_FAILED; i++) {
                HR_EXPECT(key_update(&pair));
                HR_EXPECT_EQ(SSL_write(pair.peer, "x", 1), 1);
                event = server_take(&pair);
        }
        HR_EXPECT_EQ(event, HR_STREAM_FAILED);
        HR_EXPECT_STREQ(hr_tls_words(pair.server), "records without contents");
        pair_deinit(&pair);
}
