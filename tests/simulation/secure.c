/*
 * TLS at the clients' side, and the daemon's certificate. Records go through the same links as
 * plain bytes, so they arrive in pieces, late, or not at all, from the handshake's first byte on.
 *
 * The library's numbers are not the seed's, but all that they change is what bytes look like: with
 * Ed25519, X25519 and no tickets, handshakes and records have the same lengths in every history.
 */
#include "tests/simulation/secure.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>

#define HANDSHAKE_BYTES 2000U /* about as many as a client sends before it is let in */
#define PULL_BYTES 3000U
#define PLAIN_BYTES 3000U
#define CLOSE_BYTES 64U

struct sim_secure {
        SSL *ssl;
        BIO *in, *out; /* the SSL's */
        uint64_t sent, stop_at; /* of the ciphertext */
        bool began, has_more, is_stalled, cuts;
};

static SSL_CTX *context;

/* ---- who the daemon is ----------------------------------------------------------------------- */

static void save(const char *name, EVP_PKEY *key, X509 *certificate) {
        char path[64];
        FILE *file;

        (void) snprintf(path, sizeof path, "%s/%s", sim_folder(), name);
        file = fopen(path, "w");
        HR_ASSERT(file);
        HR_ASSERT(certificate ? PEM_write_X509(file, certificate)
                              : PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL));
        HR_ASSERT(fclose(file) == 0);
}

void sim_secure_begin(void) {
        static const unsigned char name[] = "simulation";
        EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
        X509 *certificate = X509_new();

        HR_ASSERT(key && certificate && ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1));
        HR_ASSERT(X509_gmtime_adj(X509_getm_notBefore(certificate), -3600) &&
                  X509_gmtime_adj(X509_getm_notAfter(certificate), 86400));
        HR_ASSERT(X509_set_pubkey(certificate, key) &&
                  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN",
                                             MBSTRING_ASC, name, -1, -1, 0) &&
                  X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) &&
                  X509_sign(certificate, key, NULL));
        save("key", key, NULL);
        save("certificate", NULL, certificate);
        X509_free(certificate);
        EVP_PKEY_free(key);
        context = SSL_CTX_new(TLS_client_method());
        HR_ASSERT(context && SSL_CTX_set1_groups_list(context, "X25519"));
        (void) SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
}

void sim_secure_end(void) {
        SSL_CTX_free(context);
        context = NULL;
}

/* ---- one connection -------------------------------------------------------------------------- */

struct sim_secure *sim_secure_new(void) {
        struct sim_secure *secure = calloc(1, sizeof *secure);

        HR_ASSERT(secure);
        secure->ssl = SSL_new(context);
        secure->in = BIO_new(BIO_s_mem());
        secure->out = BIO_new(BIO_s_mem());
        HR_ASSERT(secure->ssl && secure->in && secure->out);
        (void) BIO_set_mem_eof_return(secure->in, -1);
        SSL_set_bio(secure->ssl, secure->in, secure->out);
        SSL_set_connect_state(secure->ssl);
        secure->stop_at = SIM_NEVER;
        if (sim_chance(100)) {
                secure->stop_at = 1 + sim_random(HANDSHAKE_BYTES << sim_random(4));
                secure->cuts = sim_chance(700);
        }
        return secure;
}

struct sim_secure *sim_secure_free(struct sim_secure *secure) {
        if (secure)
                SSL_free(secure->ssl);
        free(secure);
        return NULL;
}

void sim_secure_flush(struct sim_secure *secure, struct sim_link *link) {
        for (;;) {
                char *bytes = NULL, sink[PULL_BYTES];
                const size_t pending = (size_t) BIO_get_mem_data(secure->out, &bytes);
                size_t most = 1 + sim_random(sizeof sink), sent;

                most = HR_MIN(most, pending);
                most = (size_t) HR_MIN(most, secure->stop_at - secure->sent);
                if (most == 0)
                        break;
                sent = sim_link_write(link, (const uint8_t *) bytes, most);
                if (sent == 0)
                        break;
                HR_ASSERT(BIO_read(secure->out, sink, (int) sent) == (int) sent);
                secure->sent += sent;
        }
        secure->is_stalled = secure->sent == secure->stop_at;
}

size_t sim_secure_write(struct sim_secure *secure, struct sim_link *link, const uint8_t *bytes,
                        size_t size) {
        size_t count = 0;

        secure->began = true;
        sim_secure_flush(secure, link);
        if (secure->is_stalled || BIO_ctrl_pending(secure->out) > 0)
                return 0;
        if (SSL_write_ex(secure->ssl, bytes, HR_MIN(size, PLAIN_BYTES), &count) != 1)
                count = 0;
        sim_secure_flush(secure, link);
        return count;
}

size_t sim_secure_read(struct sim_secure *secure, struct sim_link *link, uint8_t *bytes,
                       size_t size) {
        size_t got = 0;

        for (;;) {
                uint8_t pulled[PULL_BYTES];
                size_t count;

                if (secure->began && SSL_read_ex(secure->ssl, bytes, size, &got) == 1)
                        break;
                got = 0;
                sim_secure_flush(secure, link);
                count = sim_link_read(link, pulled, 1 + sim_random(sizeof pulled));
                if (count == 0)
                        break;
                HR_ASSERT(BIO_write(secure->in, pulled, (int) count) == (int) count);
        }
        secure->has_more = got > 0;
        return got;
}

bool sim_secure_end_stream(struct sim_secure *secure, struct sim_link *link) {
        sim_secure_flush(secure, link);
        if (BIO_ctrl_pending(secure->out) > 0 && !secure->is_stalled)
                return false;
        if (SSL_is_init_finished(secure->ssl))
                (void) SSL_shutdown(secure->ssl);
        sim_secure_flush(secure, link);
        return BIO_ctrl_pending(secure->out) == 0 || secure->is_stalled;
}

bool sim_secure_can_write(const struct sim_secure *secure, bool has_bytes) {
        if (secure->is_stalled)
                return false;
        return BIO_ctrl_pending(secure->out) > 0 ||
               (has_bytes && (!secure->began || SSL_is_init_finished(secure->ssl)));
}

bool sim_secure_has_more(const struct sim_secure *secure) {
        return secure->has_more;
}

bool sim_secure_has_part(const struct sim_secure *secure) {
        return BIO_ctrl_pending(secure->in) > 0;
}

bool sim_secure_is_stalled(const struct sim_secure *secure, bool *ret_cuts) {
        *ret_cuts = secure->cuts;
        return secure->is_stalled;
}
