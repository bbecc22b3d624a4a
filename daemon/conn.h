/*
 * One peer: bytes in, bytes out.
 *
 * In: header, message, body; the body goes straight to where rpc says, or is skipped. Out: frames
 * in completion order; a reply too large for one frame goes out as DATA frames, in turn with the
 * frames of other replies. While more output waits than the limit allows, the socket is not read.
 *
 * Ends. A broken stream (a bad header, descriptors that nobody asked for) gets one error frame;
 * then nothing more is read, replies of requests in flight are still delivered, and the connection
 * closes. A half-closed peer gets its replies, then the close. A peer that has vanished takes its
 * requests with it.
 *
 * Ownership: the server's list; freed by hr_conns_reap(). Thread: loop.
 */
#pragma once

#include "core/list.h"
#include "daemon/server.h"
#include "daemon/stream.h"

struct hr_request;

/* What has made the peer known. */
typedef enum hr_conn_known_by {
        HR_CONN_BY_SOCKET,
        HR_CONN_BY_CERTIFICATE,
        HR_CONN_BY_TOKEN,
} hr_conn_known_by;

typedef enum hr_conn_stage {
        HR_CONN_HEADER,
        HR_CONN_MESSAGE,
        HR_CONN_BODY,
        HR_CONN_DEAF, /* nothing is read any more */
} hr_conn_stage;

struct hr_conn {
        struct hr_watch *watch;
        struct hr_server *server;
        uint64_t number; /* of all connections of the daemon, from 1: what logs call it */
        struct hr_list link;         /* in the server's list */
        struct hr_list session_link; /* in the session's */
        struct hr_session *session;  /* NULL before the hello */
        struct hr_stream stream;
        bool eof, finishing, lingering;
        bool over; /* in the server's list of connections to take down */
        bool wants_progress; /* its hello names the feature */
        hr_conn_known_by known_by;
        hr_conn_stage stage;
        int polled; /* events asked for */
        struct hr_list over_link;
        struct hr_principal *principal; /* referenced; NULL while nobody knows who it is */
        uint8_t *token_digest; /* HR_TOKEN_DIGEST_BYTES of the one in its hello, or NULL */
        uint64_t refuse_ns; /* when a refused hello is answered and the connection cut; 0 = not
                             * refused */
        /* In. */
        uint32_t filled; /* of the header or the message */
        uint32_t fds_charged; /* descriptors that no frame has claimed yet */
        union { /* thousands of connections are idle: what a header is, and what it becomes */
                uint8_t head[HR_FRAME_HEADER_BYTES]; /* stage HEADER: `filled` bytes of it */
                struct hr_frame_header header;       /* else, and until more is read */
        };
        uint8_t *message; /* only while one has come in part */
        uint8_t *body_to; /* NULL = skipped */
        struct hr_image *body_image; /* body_to lies in it and is written through its descriptor;
                                      * NULL = in place */
        uint64_t body_left;
        struct hr_request *body_request;
        uint64_t opened_ns, read_ns, closing_ns;
        uint64_t asked_ns; /* when a request that had nothing left to send was last granted some */
        /* Requests in flight. */
        struct hr_list requests;
        uint32_t request_count;
        /* Out. */
        struct hr_list outputs;
        uint64_t output_bytes, output_charged; /* queued; of it, charged to the principal */
        uint64_t write_ns; /* last progress */
};

/* Takes the socket, also on failure. context: NULL = without TLS. */
HR_NODISCARD hr_status hr_conn_open(struct hr_server *server, int fd, bool is_tcp,
                                    struct hr_tls_context *context, struct hr_diag *diag);
/* The connection is over: nothing is read or sent any more. Requests are told to stop and memory
 * goes when the loop next comes to hr_conns_reap(), so callers up the stack keep what they hold.
 * Idempotent. */
void hr_conn_close(struct hr_conn *conn);
/* Takes down the connections that are over. Called by the server between callbacks. */
void hr_conns_reap(struct hr_server *server);
/* Who the peer is by its socket alone. As hr_principal_of_unix() and _tcp(). */
HR_NODISCARD hr_status hr_conn_principal(const struct hr_conn *conn, struct hr_diag *diag,
                                         struct hr_principal **ret_principal);
/* Closes when requests and output have ended. */
void hr_conn_finish(struct hr_conn *conn);
/* A hello without the right credentials: nothing more is read; after a delay that grows with such
 * hellos its request is answered UNAUTHENTICATED, and the connection closes. */
void hr_conn_refuse(struct hr_conn *conn);
/* The peer is not known any more: a GOAWAY says so, then as hr_conn_finish(); aborts: its requests
 * in flight end with the same error. */
void hr_conn_revoke(struct hr_conn *conn, bool aborts);
/* A second's worth of `field` has been passed: one error frame, then as hr_conn_finish(). */
void hr_conn_too_often(struct hr_conn *conn, const char *field, uint64_t per_second);
/* The stream is broken: one error frame, then as hr_conn_finish(). */
void hr_conn_fail(struct hr_conn *conn, const struct hr_diag *failure);

struct hr_send {
        struct hr_frame_header header; /* message_bytes, body_bytes and MORE are filled in */
        const void *message;
        size_t message_bytes;
        const void *body; /* any size; must live until release */
        uint64_t body_bytes;
        void (*release)(void *arg); /* called once, maybe at once; may be NULL */
        void *arg;
};
/* Sends, or queues what the socket does not take. */
void hr_conn_send(struct hr_conn *conn, const struct hr_send *send);
/* The loop was away for so long, until now: that counts against no deadline of the connection's. */
void hr_conn_forgive(struct hr_conn *conn, uint64_t away_ns, uint64_t now_ns);
/* Looks at deadlines; called by the server's tick. */
void hr_conn_tick(struct hr_conn *conn, uint64_t now_ns);

/* The request in flight with that id, or NULL. */
struct hr_request *hr_conn_find(struct hr_conn *conn, uint64_t id);
/* A request enters or leaves the table; leaving may complete a pending close. */
void hr_conn_add(struct hr_conn *conn, struct hr_request *request);
void hr_conn_remove(struct hr_conn *conn, struct hr_request *request);
