/*
 * Records in and out of OpenSSL.
 *
 *   socket --recv--> BIO `in` --SSL_read--> the caller's memory
 *   the caller's memory --SSL_write--> BIO `out` --send--> socket
 */
#include "daemon/tls.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define RECORD_BYTES 16384U
#define RECORD_HEADER_BYTES 5U
#define UNSENT_MAX (UINT64_C(64) << 10)
#define CHAIN_BYTES_MAX (16 << 10)
#define EMPTY_BYTES_MAX (UINT64_C(64) << 10) /* taken without a byte of contents in it */

struct hr_tls_context {
        SSL_CTX *ssl;
};

struct hr_tls {
        struct hr_tls_context *context;
        SSL *ssl;
        BIO *in, *out; /* the SSL's */
        bool ended;    /* the socket has given its end */
        uint64_t empty_bytes; /* taken from the socket since there were contents */
        uint32_t head_bytes;  /* taken of the header of a record; 0 = none is under way */
        uint32_t record_left; /* to come of the record behind it, at most 2^16 - 1 */
        char words[96];
};

/* ---- context --------------------------------------------------------------------------------- */

static hr_status library_fail(struct hr_diag *diag, const char *what, const char *file) {
        char reason[96];
        unsigned long error = ERR_peek_last_error();
        hr_status status;

        ERR_error_string_n(error, reason, sizeof reason);
        status = hr_fail_reason(diag, HR_E_PRECONDITION, "TLS", "%s %.100s: %.96s", what, file,
                                error ? reason : "refused");
        ERR_clear_error();
        return status;
}

static hr_status context_fill(SSL_CTX *ssl, const char *certificate, const char *key,
                              const char *client_ca, struct hr_diag *diag) {
        if (SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1)
                return library_fail(diag, "TLS 1.3", "");
        (void) SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_RELEASE_BUFFERS |
                                             SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
        (void) SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
        if (SSL_CTX_set_num_tickets(ssl, 0) != 1)
                return library_fail(diag, "tickets", "");
        (void) SSL_CTX_set_max_cert_list(ssl, CHAIN_BYTES_MAX);
        if (SSL_CTX_use_certificate_chain_file(ssl, certificate) != 1)
                return library_fail(diag, "certificate", certificate);
        if (SSL_CTX_use_PrivateKey_file(ssl, key, SSL_FILETYPE_PEM) != 1 ||
            SSL_CTX_check_private_key(ssl) != 1)
                return library_fail(diag, "key", key);
        if (!client_ca)
                return HR_OK;
        if (SSL_CTX_load_verify_locations(ssl, client_ca, NULL) != 1)
                return library_fail(diag, "client_ca", client_ca);
        /* Asked for, not demanded: a token serves as well. A wrong one ends the handshake. */
        SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);
        return HR_OK;
}

hr_status hr_tls_context_new(const char *certificate, const char *key, const char *client_ca,
                             struct hr_diag *diag, struct hr_tls_context **ret_context) {
        struct hr_tls_context *context = calloc(1, sizeof *context);
        hr_status status;

        if (context)
                context->ssl = SSL_CTX_new(TLS_server_method());
        if (!context || !context->ssl) {
                free(context);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for TLS");
        }
        status = context_fill(context->ssl, certificate, key, client_ca, diag);
        if (status != HR_OK) {
                (void) hr_tls_context_free(context);
                return status;
        }
        *ret_context = context;
        return HR_OK;
}

struct hr_tls_context *hr_tls_context_free(struct hr_tls_context *context) {
        if (!context)
                return NULL;
        SSL_CTX_free(context->ssl);
        free(context);
        return NULL;
}

void hr_tls_context_take(struct hr_tls_context *context, struct hr_tls_context *fresh) {
        SSL_CTX *old = context->ssl;

        context->ssl = fresh->ssl;
        fresh->ssl = old;
}

/* ---- connection ------------------------------------------------------------------------------ */

struct hr_tls *hr_tls_new(struct hr_tls_context *context) {
        struct hr_tls *tls = calloc(1, sizeof *tls);

        if (!tls)
                return NULL;
        tls->context = context;
        tls->ssl = SSL_new(context->ssl);
        tls->in = BIO_new(BIO_s_mem());
        tls->out = BIO_new(BIO_s_mem());
        if (!tls->ssl || !tls->in || !tls->out) {
                SSL_free(tls->ssl);
                (void) BIO_free(tls->in);
                (void) BIO_free(tls->out);
                free(tls);
                return NULL;
        }
        SSL_set_bio(tls->ssl, tls->in, tls->out);
        SSL_set_accept_state(tls->ssl);
        return tls;
}

struct hr_tls *hr_tls_free(struct hr_tls *tls) {
        if (!tls)
                return NULL;
        SSL_free(tls->ssl); /* and its BIOs */
        free(tls);
        return NULL;
}

const char *hr_tls_words(const struct hr_tls *tls) {
        return tls->words;
}

static hr_stream_event tls_fail(struct hr_tls *tls, int fd) {
        unsigned long error = ERR_peek_last_error();

        if (error)
                (void) snprintf(tls->words, sizeof tls->words, "%.90s",
                                ERR_reason_error_string(error) ? ERR_reason_error_string(error)
                                                               : "unknown");
        ERR_clear_error();
        (void) hr_tls_flush(tls, fd); /* the alert */
        return HR_STREAM_FAILED;
}

bool hr_tls_has_unsent(const struct hr_tls *tls) {
        return BIO_ctrl_pending(tls->out) > 0;
}

hr_stream_event hr_tls_flush(struct hr_tls *tls, int fd) {
        uint8_t sink[RECORD_BYTES];

        while (BIO_ctrl_pending(tls->out) > 0) {
                char *bytes = NULL;
                long count = BIO_get_mem_data(tls->out, &bytes);
                ssize_t sent = send(fd, bytes, (size_t) count, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (sent < 0 && errno == EINTR)
                        continue;
                if (sent < 0)
                        return errno == EAGAIN || errno == EWOULDBLOCK || errno == ENOBUFS
                                       ? HR_STREAM_LATER
                                       : HR_STREAM_FAILED;
                while (sent > 0) {
                        int taken =
                                BIO_read(tls->out, sink, (int) HR_MIN((size_t) sent, sizeof sink));

                        if (taken <= 0)
                                return HR_STREAM_FAILED;
                        sent -= taken;
                }
        }
        return HR_STREAM_OK;
}

/* Records may carry nothing that is the frames', and may ask for an answer each: a peer that sends
 * little else, or does not read the answers, would keep the loop, and memory. Handshakes and
 * records are far shorter. */
static bool is_flood(struct hr_tls *tls) {
        if (tls->empty_bytes < EMPTY_BYTES_MAX && BIO_ctrl_pending(tls->out) < 2 * UNSENT_MAX)
                return false;
        (void) snprintf(tls->words, sizeof tls->words, "records without contents");
        return true;
}

/* Follows where records begin and end, which OpenSSL does not say. A header's last two bytes are
 * how much is behind it; what else is wrong with a record, OpenSSL finds. */
static void records_follow(struct hr_tls *tls, const uint8_t *bytes, size_t size) {
        while (size > 0) {
                size_t taken = 1;

                if (tls->head_bytes < RECORD_HEADER_BYTES) {
                        tls->record_left = (tls->record_left << 8 | *bytes) & 0xFFFF;
                        tls->head_bytes++;
                } else {
                        taken = HR_MIN(size, (size_t) tls->record_left);
                        tls->record_left -= (uint32_t) taken;
                }
                if (tls->head_bytes == RECORD_HEADER_BYTES && tls->record_left == 0)
                        tls->head_bytes = 0;
                bytes += taken;
                size -= taken;
        }
}

bool hr_tls_is_within_record(const struct hr_tls *tls) {
        return tls->head_bytes > 0;
}

/* At most a record's bytes from the socket into OpenSSL. */
static hr_stream_event tls_fetch(struct hr_tls *tls, int fd) {
        uint8_t bytes[RECORD_BYTES];
        ssize_t got;

        if (tls->ended)
                return HR_STREAM_END;
        do {
                got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        } while (got < 0 && errno == EINTR);
        if (got < 0)
                return errno == EAGAIN || errno == EWOULDBLOCK ? HR_STREAM_LATER : HR_STREAM_FAILED;
        if (got == 0) {
                tls->ended = true;
                return HR_STREAM_END;
        }
        tls->empty_bytes += (uint64_t) got;
        records_follow(tls, bytes, (size_t) got);
        return BIO_write(tls->in, bytes, (int) got) == (int) got ? HR_STREAM_OK : HR_STREAM_FAILED;
}

/* One SSL_read of as much as is buffered. */
static hr_stream_event tls_read(struct hr_tls *tls, int fd, bool only_buffered, void *to,
                                size_t size, size_t *ret_bytes) {
        for (;;) {
                hr_stream_event event;

                ERR_clear_error();
                if (SSL_read_ex(tls->ssl, to, size, ret_bytes) == 1) {
                        tls->empty_bytes = 0;
                        return HR_STREAM_OK;
                }
                switch (SSL_get_error(tls->ssl, 0)) {
                case SSL_ERROR_WANT_READ:
                        if (hr_tls_flush(tls, fd) == HR_STREAM_FAILED || is_flood(tls))
                                return HR_STREAM_FAILED;
                        event = only_buffered ? HR_STREAM_LATER : tls_fetch(tls, fd);
                        if (event != HR_STREAM_OK)
                                return event;
                        break;
                case SSL_ERROR_ZERO_RETURN:
                        return HR_STREAM_END;
                default:
                        return tls_fail(tls, fd);
                }
        }
}

hr_stream_event hr_tls_receive(struct hr_tls *tls, int fd, const struct iovec *parts,
                               size_t part_count, bool only_buffered, size_t *ret_bytes) {
        *ret_bytes = 0;
        for (size_t i = 0; i < part_count; i++)
                for (size_t filled = 0, got = 0; filled < parts[i].iov_len; filled += got) {
                        hr_stream_event event = tls_read(tls, fd, only_buffered,
                                                         (uint8_t *) parts[i].iov_base + filled,
                                                         parts[i].iov_len - filled, &got);

                        if (event != HR_STREAM_OK) /* an end is met again by the next call */
                                return *ret_bytes > 0 && event != HR_STREAM_FAILED ? HR_STREAM_OK
                                                                                   : event;
                        *ret_bytes += got;
                }
        return HR_STREAM_OK;
}

hr_stream_event hr_tls_send(struct hr_tls *tls, int fd, const struct iovec *parts,
                            size_t part_count, size_t *ret_bytes) {
        *ret_bytes = 0;
        if (!SSL_is_init_finished(tls->ssl))
                return HR_STREAM_FAILED; /* nobody to say it to yet */
        if (hr_tls_flush(tls, fd) == HR_STREAM_FAILED)
                return HR_STREAM_FAILED;
        for (size_t i = 0; i < part_count; i++)
                for (size_t taken = 0, count = 0; taken < parts[i].iov_len; taken += count) {
                        if (BIO_ctrl_pending(tls->out) >= UNSENT_MAX) {
                                if (hr_tls_flush(tls, fd) == HR_STREAM_FAILED)
                                        return HR_STREAM_FAILED;
                                if (BIO_ctrl_pending(tls->out) >= UNSENT_MAX)
                                        return *ret_bytes > 0 ? HR_STREAM_OK : HR_STREAM_LATER;
                        }
                        ERR_clear_error();
                        if (SSL_write_ex(tls->ssl, (const uint8_t *) parts[i].iov_base + taken,
                                         parts[i].iov_len - taken, &count) != 1)
                                return tls_fail(tls, fd);
                        *ret_bytes += count;
                }
        return hr_tls_flush(tls, fd) == HR_STREAM_FAILED ? HR_STREAM_FAILED : HR_STREAM_OK;
}

void hr_tls_end(struct hr_tls *tls, int fd) {
        ERR_clear_error();
        if (SSL_is_init_finished(tls->ssl))
                (void) SSL_shutdown(tls->ssl);
        ERR_clear_error();
        (void) hr_tls_flush(tls, fd);
}

bool hr_tls_is_cut_off(const struct hr_tls *tls) {
        return tls->ended && !(SSL_get_shutdown(tls->ssl) & SSL_RECEIVED_SHUTDOWN);
}

/* A certificate that was verified in the handshake, under what is trusted now. */
static bool is_trusted_now(const struct hr_tls *tls, X509 *certificate) {
        X509_STORE_CTX *check;
        bool trusted;

        if (SSL_get_SSL_CTX(tls->ssl) == tls->context->ssl)
                return true;
        if (SSL_CTX_get_verify_mode(tls->context->ssl) == SSL_VERIFY_NONE)
                return false;
        check = X509_STORE_CTX_new();
        trusted = check &&
                  X509_STORE_CTX_init(check, SSL_CTX_get_cert_store(tls->context->ssl), certificate,
                                      SSL_get_peer_cert_chain(tls->ssl)) == 1 &&
                  X509_STORE_CTX_set_default(check, "ssl_client") == 1 &&
                  X509_verify_cert(check) == 1;
        X509_STORE_CTX_free(check);
        ERR_clear_error();
        return trusted;
}

bool hr_tls_common_name(const struct hr_tls *tls, char ret_name[HR_TLS_NAME_BYTES]) {
        X509 *certificate = SSL_get0_peer_certificate(tls->ssl);
        int bytes;

        if (!certificate || SSL_get_verify_result(tls->ssl) != X509_V_OK ||
            !is_trusted_now(tls, certificate))
                return false;
        bytes = X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                                          ret_name, HR_TLS_NAME_BYTES);
        /* A name with a zero byte inside is nobody's. */
        return bytes > 0 && bytes < HR_TLS_NAME_BYTES && strlen(ret_name) == (size_t) bytes;
}
