/*
 * TLS 1.3 between a socket and the frames: OpenSSL with memory BIOs, so that every call of the
 * system is ours and nothing blocks. The handshake goes on inside of receiving.
 *
 * Bounds: one record (16 KiB) is taken from the socket at a time, and only when the one before has
 * been consumed; unsent ciphertext is bounded by UNSENT_MAX of tls.c; a client's certificate chain
 * by 16 KiB, and what comes without contents (key updates, say) by 64 KiB in a row. There are no
 * tickets, no resumption, no renegotiation. Thread: loop.
 */
#pragma once

#include <sys/uio.h>

#include "core/status.h"

/* What became of an attempt to move bytes. */
typedef enum hr_stream_event {
        HR_STREAM_OK,
        HR_STREAM_LATER,       /* nothing now; the socket will say when */
        HR_STREAM_END,         /* the peer sends nothing more */
        HR_STREAM_DESCRIPTORS, /* descriptors came along; they are closed */
        HR_STREAM_FAILED,      /* the connection is of no use any more */
} hr_stream_event;

struct hr_tls_context;
struct hr_tls;

/* certificate: PEM, the chain behind it; key: PEM; client_ca: PEM or NULL = no client certificates
 * are asked for. HR_E_PRECONDITION (reason TLS) with OpenSSL's words when they are of no use. */
HR_NODISCARD hr_status hr_tls_context_new(const char *certificate, const char *key,
                                          const char *client_ca, struct hr_diag *diag,
                                          struct hr_tls_context **ret_context);
struct hr_tls_context *hr_tls_context_free(struct hr_tls_context *context);
/* From now on connections begin with what `fresh` holds; those that are open go on, but are known
 * by their certificates only as far as `fresh` trusts them. What was held before is in `fresh`. */
void hr_tls_context_take(struct hr_tls_context *context, struct hr_tls_context *fresh);

/* One connection, as the server. NULL without memory. The context outlives it. */
struct hr_tls *hr_tls_new(struct hr_tls_context *context);
struct hr_tls *hr_tls_free(struct hr_tls *tls);

/* As those of stream.h. */
hr_stream_event hr_tls_receive(struct hr_tls *tls, int fd, const struct iovec *parts,
                               size_t part_count, bool only_buffered, size_t *ret_bytes);
hr_stream_event hr_tls_send(struct hr_tls *tls, int fd, const struct iovec *parts,
                            size_t part_count, size_t *ret_bytes);
hr_stream_event hr_tls_flush(struct hr_tls *tls, int fd);
bool hr_tls_has_unsent(const struct hr_tls *tls);
/* Sends close_notify as far as the socket takes it. */
void hr_tls_end(struct hr_tls *tls, int fd);
/* A record has come in part: nobody can tell yet what it carries. */
bool hr_tls_is_within_record(const struct hr_tls *tls);
/* Why the last call failed, for the log: OpenSSL's words, or "". */
const char *hr_tls_words(const struct hr_tls *tls);

#define HR_TLS_NAME_BYTES 65
/* The socket has ended, and the peer had not said so: it is gone, not done with sending. */
bool hr_tls_is_cut_off(const struct hr_tls *tls);
/* The common name of the client's verified certificate. False: it has shown none. */
bool hr_tls_common_name(const struct hr_tls *tls, char ret_name[HR_TLS_NAME_BYTES]);
