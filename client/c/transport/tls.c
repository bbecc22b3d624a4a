/*
 * TLS 1.3 around a socket: OpenSSL between memory BIOs, so that every call of the system is made
 * here, none blocks, and none raises SIGPIPE.
 *
 *   socket --recv--> BIO `in` --SSL_read--> the caller's memory
 *   the caller's memory --SSL_write--> BIO `out` --send--> socket
 *
 * One thread may read while another sends, but OpenSSL's state is one: `lock` is held for moments.
 * At most BATCH_BYTES are encrypted before they have been sent; what then waits goes with flush().
 * The first failure ends it: OpenSSL's state is of no use after one.
 */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/c/transport/transport.h"

#define RECORD_BYTES 16384U
#define BATCH_BYTES (UINT64_C(64) << 10)

struct tls {
        int fd;
        SSL *ssl;
        BIO *in, *out; /* the SSL's */
        pthread_mutex_t lock;
        bool failed;
        char words[128]; /* of the failure; not written again */
};

static void tls_close(void *data) {
        struct tls *tls = data;

        if (tls->ssl && SSL_is_init_finished(tls->ssl) && !tls->failed) {
                char *bytes = NULL;
                long count;

                ERR_clear_error();
                (void) SSL_shutdown(tls->ssl); /* only says so: nothing is waited for */
                ERR_clear_error();
                count = BIO_get_mem_data(tls->out, &bytes);
                if (count > 0)
                        (void) send(tls->fd, bytes, (size_t) count, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        SSL_free(tls->ssl); /* and its BIOs */
        (void) pthread_mutex_destroy(&tls->lock);
        (void) close(tls->fd);
        free(tls);
}

/* ---- moving bytes; `lock` held --------------------------------------------------------------- */

/* Notes why OpenSSL refuses. -1, errno is EPROTO. */
static int tls_fail(struct tls *tls) {
        unsigned long code = ERR_peek_last_error();
        long verified = SSL_get_verify_result(tls->ssl);
        const char *words = code ? ERR_reason_error_string(code) : NULL;

        if (!tls->failed)
                (void) snprintf(tls->words, sizeof tls->words, "%.60s%s%.60s",
                                words ? words : "no TLS", verified == X509_V_OK ? "" : ": ",
                                verified == X509_V_OK ? ""
                                                      : X509_verify_cert_error_string(verified));
        tls->failed = true;
        ERR_clear_error();
        errno = EPROTO;
        return -1;
}

/* 0: no ciphertext is left. */
static int send_ciphertext(struct tls *tls) {
        uint8_t sink[RECORD_BYTES];

        while (BIO_ctrl_pending(tls->out) > 0) {
                char *bytes = NULL;
                long count = BIO_get_mem_data(tls->out, &bytes);
                ssize_t sent = send(tls->fd, bytes, (size_t) count, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (sent < 0)
                        return -1;
                while (sent > 0) {
                        int taken =
                                BIO_read(tls->out, sink, (int) HR_MIN((size_t) sent, sizeof sink));

                        if (taken <= 0)
                                return tls_fail(tls);
                        sent -= taken;
                }
        }
        return 0;
}

/* At most a record's bytes from the socket into OpenSSL: how many, or 0 at the end of what comes,
 * or -1 with errno. */
static ssize_t take_ciphertext(struct tls *tls) {
        uint8_t bytes[RECORD_BYTES];
        ssize_t got = recv(tls->fd, bytes, sizeof bytes, MSG_DONTWAIT);

        if (got > 0 && BIO_write(tls->in, bytes, (int) got) != (int) got)
                return tls_fail(tls);
        return got;
}

static int64_t receive_plain(struct tls *tls, void *buffer, size_t bytes) {
        for (;;) {
                size_t got = 0;
                ssize_t taken;

                ERR_clear_error();
                if (SSL_read_ex(tls->ssl, buffer, bytes, &got) == 1)
                        return (int64_t) got;
                switch (SSL_get_error(tls->ssl, 0)) {
                case SSL_ERROR_WANT_READ:
                        /* An answer of OpenSSL's own, to a change of keys. */
                        if (send_ciphertext(tls) < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
                                return -1;
                        taken = take_ciphertext(tls);
                        if (taken <= 0)
                                return taken;
                        break;
                case SSL_ERROR_ZERO_RETURN:
                        return 0;
                default:
                        return tls_fail(tls);
                }
        }
}

static int64_t send_plain(struct tls *tls, const struct iovec *parts, size_t count) {
        int64_t bytes = 0;

        for (size_t i = 0; i < count; i++)
                for (size_t taken = 0, some = 0; taken < parts[i].iov_len; taken += some) {
                        if (BIO_ctrl_pending(tls->out) >= BATCH_BYTES && send_ciphertext(tls) < 0)
                                return bytes ? bytes : -1;
                        ERR_clear_error();
                        if (SSL_write_ex(tls->ssl, (const uint8_t *) parts[i].iov_base + taken,
                                         HR_MIN(parts[i].iov_len - taken, (size_t) RECORD_BYTES),
                                         &some) != 1)
                                return tls_fail(tls);
                        bytes += (int64_t) some;
                }
        /* What does not go now goes with the next call, or with flush(). */
        (void) send_ciphertext(tls);
        return bytes;
}

/* ---- the transport --------------------------------------------------------------------------- */

static bool tls_begin(struct tls *tls) {
        (void) pthread_mutex_lock(&tls->lock);
        errno = EPROTO;
        return !tls->failed;
}

static int64_t tls_end(struct tls *tls, int64_t result) {
        int number = errno;

        (void) pthread_mutex_unlock(&tls->lock);
        errno = number;
        return result;
}

static int64_t tls_receive(void *data, void *buffer, size_t bytes) {
        struct tls *tls = data;

        return tls_end(tls, tls_begin(tls) ? receive_plain(tls, buffer, bytes) : -1);
}

static int64_t tls_send(void *data, const struct iovec *parts, size_t count) {
        struct tls *tls = data;

        return tls_end(tls, tls_begin(tls) ? send_plain(tls, parts, count) : -1);
}

static int tls_flush(void *data) {
        struct tls *tls = data;

        return (int) tls_end(tls, tls_begin(tls) ? send_ciphertext(tls) : -1);
}

static const char *tls_words(void *data) {
        struct tls *tls = data;
        bool failed;

        (void) pthread_mutex_lock(&tls->lock);
        failed = tls->failed;
        (void) pthread_mutex_unlock(&tls->lock);
        return failed ? tls->words : NULL;
}

/* ---- connecting ------------------------------------------------------------------------------ */

static enum headrace_status fail_file(struct headrace_error *error, const char *what,
                                      const char *file) {
        unsigned long code = ERR_peek_last_error();
        const char *words = code ? ERR_reason_error_string(code) : NULL;

        (void) hr_client_fail(error, HEADRACE_INVALID, "TLS", "%s %.150s: %.60s", what,
                              file ? file : "", words ? words : "cannot be used");
        ERR_clear_error();
        return HEADRACE_INVALID;
}

/* Nobody is asked for a pass phrase. */
static int no_phrase(char *to, int bytes, int writing, void *data) {
        (void) to, (void) bytes, (void) writing, (void) data;
        return 0;
}

static enum headrace_status context_fill(SSL_CTX *context, const struct headrace_options *options,
                                         struct headrace_error *error) {
        const char *certificate = options->tls_certificate;
        const char *key = options->tls_key ? options->tls_key : certificate;

        (void) SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_RELEASE_BUFFERS |
                                                 SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        SSL_CTX_set_default_passwd_cb(context, no_phrase);
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
        if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1)
                return fail_file(error, "TLS 1.3", NULL);
        if (options->tls_ca ? SSL_CTX_load_verify_locations(context, options->tls_ca, NULL) != 1
                            : SSL_CTX_set_default_verify_paths(context) != 1)
                return fail_file(error, "CA", options->tls_ca);
        if (!certificate)
                return options->tls_key ? fail_file(error, "no certificate for the key", key)
                                        : HEADRACE_OK;
        if (SSL_CTX_use_certificate_chain_file(context, certificate) != 1)
                return fail_file(error, "certificate", certificate);
        if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
            SSL_CTX_check_private_key(context) != 1)
                return fail_file(error, "key", key);
        return HEADRACE_OK;
}

/* Whose certificate is wanted: an address of the internet or a name, which the daemon is told. An
 * empty one would be anybody's. */
static bool ssl_set_name(SSL *ssl, const char *name) {
        if (!*name)
                return false;
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1 ||
               (SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1);
}

static enum headrace_status tls_fill(struct tls *tls, const char *host,
                                     const struct headrace_options *options,
                                     struct headrace_error *error) {
        const char *name = options->tls_name ? options->tls_name : host;
        SSL_CTX *context = SSL_CTX_new(TLS_client_method());
        enum headrace_status status =
                context ? context_fill(context, options, error) : hr_client_fail_memory(error);

        if (status == HEADRACE_OK) {
                tls->ssl = SSL_new(context); /* holds the context */
                tls->in = BIO_new(BIO_s_mem());
                tls->out = BIO_new(BIO_s_mem());
                if (!tls->ssl || !tls->in || !tls->out) {
                        (void) BIO_free(tls->in);
                        (void) BIO_free(tls->out);
                        status = hr_client_fail_memory(error);
                } else {
                        SSL_set_bio(tls->ssl, tls->in, tls->out);
                        SSL_set_connect_state(tls->ssl);
                        if (!ssl_set_name(tls->ssl, name))
                                status = fail_file(error, "no name to expect:", name);
                }
        }
        SSL_CTX_free(context);
        ERR_clear_error();
        return status;
}

/* One step of the handshake: 1 done, 0 with the events to wait for, -1 failed with errno. */
static int handshake_step(struct tls *tls, short *ret_events) {
        ssize_t taken;
        int result, why, flushed;

        ERR_clear_error();
        result = SSL_do_handshake(tls->ssl);
        why = result == 1 ? SSL_ERROR_NONE : SSL_get_error(tls->ssl, result);
        if (why != SSL_ERROR_NONE && why != SSL_ERROR_WANT_READ)
                (void) tls_fail(tls);
        flushed = send_ciphertext(tls); /* an alert, too */
        if (tls->failed) {
                errno = EPROTO;
                return -1;
        }
        *ret_events = POLLOUT;
        if (flushed < 0)
                return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
        if (why == SSL_ERROR_NONE)
                return 1;
        *ret_events = POLLIN;
        taken = take_ciphertext(tls);
        if (taken == 0)
                errno = ECONNRESET;
        return taken > 0 || (taken < 0 &&
                             (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
                       ? 0
                       : -1;
}

static enum headrace_status handshake(struct tls *tls, const char *address, int64_t deadline_ns,
                                      struct headrace_error *error) {
        struct pollfd ready = {.fd = tls->fd};
        int done;

        while ((done = handshake_step(tls, &ready.events)) == 0) {
                if (hr_client_is_past(deadline_ns))
                        return hr_transport_fail(error, address, deadline_ns, "");
                /* Bytes that have been taken are looked at before more are waited for. */
                if (BIO_ctrl_pending(tls->in) == 0 || ready.events == POLLOUT)
                        (void) poll(&ready, 1, hr_client_poll_ms(deadline_ns));
        }
        if (done < 0)
                return hr_client_fail(error, HEADRACE_UNAVAILABLE, "TLS", "%.120s: %.120s", address,
                                      tls->failed ? tls->words : strerror(errno));
        return HEADRACE_OK;
}

enum headrace_status hr_tls_open(const char *address, const char *host, int fd,
                                 const struct headrace_options *options, int64_t deadline_ns,
                                 struct headrace_error *error, struct hr_transport *ret_transport) {
        struct tls *tls = calloc(1, sizeof *tls);
        enum headrace_status status;

        if (!tls) {
                (void) close(fd);
                return hr_client_fail_memory(error);
        }
        tls->fd = fd;
        (void) pthread_mutex_init(&tls->lock, NULL);
        status = tls_fill(tls, host, options, error);
        if (status == HEADRACE_OK)
                status = handshake(tls, address, deadline_ns, error);
        if (status != HEADRACE_OK) {
                tls_close(tls);
                return status;
        }
        *ret_transport = (struct hr_transport){
                .data = tls,
                .poll_fd = fd,
                .holds_received = true,
                .receive = tls_receive,
                .send = tls_send,
                .flush = tls_flush,
                .words = tls_words,
                .close = tls_close,
        };
        return HEADRACE_OK;
}
