/*
 * One request from its first byte to the last byte of its reply.
 *
 *   RECEIVING --body complete--> WORKING --> REPLYING --output drained--> freed
 *        |                          |
 *        +--- failure, cancel, deadline, peer gone ---> REPLYING, or freed without a peer
 *
 * Exactly one terminal reply: hr_request_reply() and hr_request_fail() end the request and may be
 * called once. A request whose peer has gone ends in the same way, without a reply.
 *
 * A request is recycled: its arena and its storage serve the next one. Thread: loop; the job in it
 * belongs to the engine between post and done.
 */
#pragma once

#include "core/arena.h"
#include "core/recorder.h"
#include "daemon/conn.h"
#include "daemon/engine.h"
#include "daemon/origin.h"
#include "daemon/session.h"

struct hr_method;
struct hr_upload_stream;

typedef enum hr_request_phase {
        HR_REQUEST_RECEIVING,
        HR_REQUEST_WORKING,
        HR_REQUEST_REPLYING,
} hr_request_phase;

struct hr_request {
        struct hr_list link;     /* in the connection's, or the server's idle, list */
        struct hr_request *next; /* in the connection's bucket */
        struct hr_list deadline_link;
        struct hr_server *server;
        struct hr_conn *conn;       /* NULL once the peer has gone */
        struct hr_session *session; /* referenced */
        const struct hr_method *method;
        uint64_t id;
        uint8_t type;
        uint16_t flags;
        hr_request_phase phase;
        uint64_t arrived_ns, deadline_ns;
        struct hr_origin origin;
        uint64_t tag; /* unique while the daemon runs, never 0: what its spans are known by */
        struct hr_arena arena;
        void *context; /* the method's, in the arena */
        /* Body. */
        uint8_t *body; /* where it goes */
        uint64_t body_total, body_received, body_granted;
        void *body_memory;        /* freed with the request */
        uint64_t buffer_charge;   /* of the session's buffer_bytes */
        bool more_follows;        /* after the body: the first frame has MORE */
        struct hr_upload_stream *stream; /* instead of body, while an upload is received */
        int fd;                   /* a descriptor that came with it, until it is taken; -1 = none */
        /* Work. */
        struct hr_job job;
        struct hr_job *active;    /* the job that is posted, &job or another; NULL = none */
        hr_status stopped;        /* asked to stop with this status */
        struct hr_diag *failure;  /* replied when the active job has ended, whatever became of it */
        struct hr_object *object; /* referenced */
        void *reply_memory;       /* freed with the request */
        size_t reply_bytes;       /* used of it */
        uint32_t *written;        /* states that a failed run has written, for the error;
                                   * likewise */
        uint32_t written_count;
        uint8_t *digest;          /* of the graph that was not found, for the error; in the arena */
};

/* A fresh request in phase RECEIVING, in the connection's table. NULL without memory. */
struct hr_request *hr_request_new(struct hr_conn *conn, const struct hr_frame_header *header,
                                  const struct hr_method *method);

/* Memory for a body of `total` bytes, charged. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_request_expect_body(struct hr_request *request, uint64_t total,
                                              uint64_t limit, const char *field,
                                              struct hr_diag *diag);
/* Sends CREDIT for `bytes` more. offset: where they begin, of an upload; else 0. */
void hr_request_grant(struct hr_request *request, uint64_t bytes, uint64_t offset);

/* Finds the object a handle of the session stands for and keeps a reference in request->object.
 * HR_E_NOT_FOUND with the kind's name as reason, and with the digest of a graph that was
 * evicted. */
HR_NODISCARD hr_status hr_request_take_object(struct hr_request *request, uint64_t handle,
                                              hr_object_kind kind, struct hr_diag *diag);

/* The descriptor that came with it: the caller's from then on. -1: there is none (any more). */
int hr_request_fd_take(struct hr_request *request);

/* Posts a job; the request is WORKING until its done(). */
void hr_request_post(struct hr_request *request, struct hr_job *job);
/* The usual job: work on the engine's thread. */
void hr_request_post_work(struct hr_request *request, hr_job_fn work, hr_job_fn done);
/* In done(): the request the job belongs to; it has no active job any more. */
struct hr_request *hr_request_of(struct hr_job *job);

/* Takes the handle from the request's object and replies: when the object has closed, so that what
 * it was charged with is free again, or at once when runs or other requests still hold it. */
void hr_request_forget_object(struct hr_request *request);

/* The terminal reply. The body must live as long as the request does. */
void hr_request_reply(struct hr_request *request, const void *message, size_t message_bytes,
                      const void *body, uint64_t body_bytes);
/* The terminal reply of a failure: when the object that the request was to make has closed, so that
 * what it was charged with is free again. */
void hr_request_fail(struct hr_request *request, const struct hr_diag *failure);
/* A span of the request for the flight recorder. */
void hr_request_record(const struct hr_request *request, hr_span_kind kind, uint64_t begin_ns,
                       uint64_t end_ns);
/* The request as a whole, so far; code: of its end, or HR_SPAN_OPEN. */
struct hr_span hr_request_span(const struct hr_request *request, uint32_t code, uint64_t end_ns);
/* What a run of it has waited and computed, if it has started at all. */
void hr_request_record_run(const struct hr_request *request, const struct hr_run_job *run);
/* The request's own traceparent for its reply, in its arena: the caller's trace, and a span of the
 * daemon's, which TRACE names too. NULL: its caller has given none, or there is no memory. */
const char *hr_request_traceparent(struct hr_request *request);
/* Asked to end early (CANCELLED or DEADLINE). */
void hr_request_stop(struct hr_request *request, hr_status status);
/* Ends with a failure that the loop has found, now or when the active job has ended. */
void hr_request_abort(struct hr_request *request, const struct hr_diag *failure);
/* The connection goes away. */
void hr_request_orphan(struct hr_request *request);
/* Frees what is kept for reuse. */
void hr_requests_deinit(struct hr_server *server);
