/*
 * Requests: recycled storage, bodies, the one terminal reply.
 *
 * Who holds a request: the connection's table until its reply is out, the engine while a job of it
 * is posted, the output queue while its reply is written. It is freed when none of them does any
 * more; `phase` and `active` say which do. A request whose peer has gone (conn == NULL) has nobody
 * to reply to: its end frees it.
 */
#include "daemon/request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/evict.h"
#include "daemon/failure.h"
#include "daemon/rpc.h"

#define IDLE_REQUESTS_MAX 64U
/* What one request's messages may take in its arena: lists of a 64 KiB message, copied out. */
#define REQUEST_ARENA_BYTES (UINT64_C(64) << 20)

static struct hr_request *request_storage(struct hr_server *server) {
        struct hr_list *link = hr_list_pop(&server->idle_requests);
        struct hr_request *request;

        if (link) {
                server->idle_request_count--;
                return HR_CONTAINER_OF(link, struct hr_request, link);
        }
        request = calloc(1, sizeof *request);
        if (request)
                hr_arena_init(&request->arena, REQUEST_ARENA_BYTES);
        return request;
}

struct hr_request *hr_request_new(struct hr_conn *conn, const struct hr_frame_header *header,
                                  const struct hr_method *method) {
        struct hr_request *request = request_storage(conn->server);

        if (!request)
                return NULL;
        request->server = conn->server;
        request->conn = conn;
        request->session = conn->session ? hr_session_ref(conn->session) : NULL;
        request->method = method;
        request->fd = -1;
        request->id = header->request_id;
        request->type = header->type;
        request->flags = header->flags;
        request->phase = HR_REQUEST_RECEIVING;
        request->arrived_ns = conn->read_ns;
        request->tag = ++conn->server->tags;
        if (header->timeout_ms > 0) {
                request->deadline_ns = conn->read_ns + header->timeout_ms * HR_NS_PER_MS;
                hr_server_deadline_add(conn->server, &request->deadline_link, request->deadline_ns);
        }
        hr_conn_add(conn, request);
        return request;
}

int hr_request_fd_take(struct hr_request *request) {
        const int fd = request->fd;

        request->fd = -1;
        return fd;
}

/* Back into the pool. Nobody holds it any more. */
static void request_recycle(struct hr_request *request) {
        struct hr_server *server = request->server;
        struct hr_arena arena;

        HR_ASSERT(!request->active && !request->stream);
        if (request->method && request->method->release)
                request->method->release(request);
        (void) hr_object_unref(request->object);
        if (request->buffer_charge > 0)
                hr_session_discharge(request->session, HR_CHARGE_BUFFER_BYTES,
                                     request->buffer_charge);
        (void) hr_session_unref(request->session);
        hr_list_remove(&request->deadline_link);
        free(request->body_memory);
        free(request->reply_memory);
        if (request->fd >= 0)
                (void) close(request->fd);
        hr_arena_reset(&request->arena);
        arena = request->arena;
        memset(request, 0, sizeof *request);
        request->arena = arena;
        if (server->idle_request_count < IDLE_REQUESTS_MAX) {
                hr_list_prepend(&server->idle_requests, &request->link);
                server->idle_request_count++;
                return;
        }
        hr_arena_deinit(&request->arena);
        free(request);
}

void hr_requests_deinit(struct hr_server *server) {
        struct hr_list *link;

        while ((link = hr_list_pop(&server->idle_requests))) {
                struct hr_request *request = HR_CONTAINER_OF(link, struct hr_request, link);

                hr_arena_deinit(&request->arena);
                free(request);
        }
        server->idle_request_count = 0;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

hr_status hr_request_expect_body(struct hr_request *request, uint64_t total, uint64_t limit,
                                 const char *field, struct hr_diag *diag) {
        uint64_t none = 0;

        HR_TRY(hr_charge(&none, total, limit, field, diag));
        if (total > 0) {
                HR_TRY(hr_session_charge_buffer(request->session, total, diag));
                request->buffer_charge += total;
                request->body_memory = malloc(total);
                if (!request->body_memory)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a body of %llu bytes",
                                       (unsigned long long) total);
        }
        request->body = request->body_memory;
        request->body_total = total;
        return HR_OK;
}

void hr_request_grant(struct hr_request *request, uint64_t bytes, uint64_t offset) {
        const bool was_idle = request->body_granted == request->body_received;
        uint8_t message[32];
        size_t message_bytes = 0;

        request->body_granted += bytes;
        if (!request->conn || bytes == 0)
                return;
        if (was_idle) /* it may have waited for this: its time begins now */
                request->conn->asked_ns = hr_clock_now_ns();
        if (hr_wire_credit_encode(bytes, offset, message, sizeof message, NULL, &message_bytes) !=
            HR_OK)
                HR_ASSERT(false); /* two numbers always fit */
        hr_conn_send(request->conn,
                     &(struct hr_send){
                             .header = {.type = HR_FRAME_CREDIT, .request_id = request->id},
                             .message = message,
                             .message_bytes = message_bytes,
                     });
}

hr_status hr_request_take_object(struct hr_request *request, uint64_t handle, hr_object_kind kind,
                                 struct hr_diag *diag) {
        const uint8_t *digest;
        hr_status status;

        status = hr_session_object(request->session, handle, kind, diag, &request->object);
        if (status != HR_E_NOT_FOUND || kind != HR_OBJECT_GRAPH)
                return status;
        digest = hr_evicted_digest(request->session, handle);
        if (digest)
                request->digest = hr_arena_alloc(&request->arena, HR_DIGEST_BYTES, 1);
        if (request->digest)
                memcpy(request->digest, digest, HR_DIGEST_BYTES);
        return status;
}

/* What is left of the frame under way goes nowhere. */
static void body_drop(struct hr_request *request) {
        struct hr_conn *conn = request->conn;

        if (!conn || conn->body_request != request)
                return;
        conn->body_request = NULL;
        conn->body_to = NULL;
}

/* ---- work ------------------------------------------------------------------------------------ */

void hr_request_post(struct hr_request *request, struct hr_job *job) {
        HR_ASSERT(!request->active);
        request->phase = HR_REQUEST_WORKING;
        request->active = job;
        job->arg = request;
        job->deadline_ns = request->deadline_ns;
        hr_engine_post(request->server->engine, job);
}

void hr_request_post_work(struct hr_request *request, hr_job_fn work, hr_job_fn done) {
        request->job.kind = HR_JOB_WORK;
        request->job.work = work;
        request->job.cancel = NULL;
        request->job.done = done;
        hr_request_post(request, &request->job);
}

struct hr_request *hr_request_of(struct hr_job *job) {
        struct hr_request *request = job->arg;

        HR_ASSERT(request->active == job);
        request->active = NULL;
        return request;
}

void hr_request_finish(struct hr_job *job, hr_finish_fn finish) {
        struct hr_request *request = hr_request_of(job);
        struct hr_diag diag;

        hr_diag_clear(&diag);
        if (request->failure) {
                diag = *request->failure;
                hr_request_fail(request, &diag);
        } else if (job->status != HR_OK) {
                diag = job->diag;
                hr_request_fail(request, &diag);
        } else if (finish(request, &diag) != HR_OK) {
                hr_request_fail(request, &diag);
        }
}

/* ---- the flight recorder --------------------------------------------------------------------- */

void hr_request_record(const struct hr_request *request, hr_span_kind kind, uint64_t begin_ns,
                       uint64_t end_ns) {
        hr_recorder_add(request->server->recorder, &(struct hr_span){
                                                           .begin_ns = begin_ns,
                                                           .end_ns = end_ns,
                                                           .tag = request->tag,
                                                           .kind = (uint32_t) kind,
                                                   });
}

void hr_request_record_run(const struct hr_request *request, const struct hr_run_job *run) {
        if (!run->job.started_ns || !run->run.ended_ns)
                return;
        hr_request_record(request, HR_SPAN_QUEUE, run->job.posted_ns,
                          HR_MIN(run->job.started_ns, run->run.started_ns));
        hr_recorder_add(request->server->recorder, &(struct hr_span){
                                                           .begin_ns = run->run.started_ns,
                                                           .end_ns = run->run.ended_ns,
                                                           .tag = request->tag,
                                                           .kind = HR_SPAN_RUN,
                                                           .detail = run->run.slot,
                                                           .a = run->run.sequence,
                                                   });
}

const char *hr_request_traceparent(struct hr_request *request) {
        char *text;

        if (!request->origin.known)
                return NULL;
        text = hr_arena_alloc(&request->arena, HR_TRACEPARENT_BYTES, 1);
        if (text)
                hr_origin_write(&request->origin, request->server->span_seed + request->tag, text);
        return text;
}

static void origin_record(const struct hr_request *request) {
        const struct hr_origin *origin = &request->origin;

        hr_recorder_add(request->server->recorder, &(struct hr_span){
                                                           .begin_ns = request->arrived_ns,
                                                           .end_ns = origin->span,
                                                           .tag = request->tag,
                                                           .kind = HR_SPAN_ORIGIN,
                                                           .detail = origin->flags,
                                                           .a = origin->trace[0],
                                                           .b = origin->trace[1],
                                                   });
}

/* Without a session it was nobody's. */
struct hr_span hr_request_span(const struct hr_request *request, uint32_t code, uint64_t end_ns) {
        const struct hr_session *session = request->session;

        return (struct hr_span){
                .begin_ns = request->arrived_ns,
                .end_ns = end_ns,
                .tag = request->tag,
                .kind = HR_SPAN_REQUEST,
                .detail = request->type | code << 8,
                .a = request->id,
                .b = session ? session->principal->id : UINT64_MAX,
        };
}

static void request_record(const struct hr_request *request, uint32_t code, uint64_t end_ns) {
        const struct hr_span span = hr_request_span(request, code, end_ns);

        if (request->origin.known)
                origin_record(request);
        hr_recorder_add(request->server->recorder, &span);
}

/* ---- the terminal reply ---------------------------------------------------------------------- */

/* The reply's last byte is out, or will never be. */
static void request_sent(void *arg) {
        struct hr_request *request = arg;

        HR_ASSERT(request->phase == HR_REQUEST_REPLYING);
        if (request->conn)
                hr_conn_remove(request->conn, request);
        request_recycle(request);
}

static void request_end(struct hr_request *request, const struct hr_send *send, uint32_t code) {
        struct hr_server *server = request->server;

        HR_ASSERT(request->phase != HR_REQUEST_REPLYING);
        HR_ASSERT(!request->active);
        request->phase = HR_REQUEST_REPLYING;
        hr_list_remove(&request->deadline_link);
        server->stats.requests[request->type][HR_MIN(code, HR_GRPC_CODES - 1)]++;
        server->active_ns = hr_clock_now_ns();
        request_record(request, code, server->active_ns);
        if (!request->conn) {
                request_sent(request);
                return;
        }
        body_drop(request);
        if (code == 0 && (request->flags & HR_FRAME_NOREPLY)) {
                request_sent(request);
                return;
        }
        hr_conn_send(request->conn, send);
}

void hr_request_reply(struct hr_request *request, const void *message, size_t message_bytes,
                      const void *body, uint64_t body_bytes) {
        struct hr_send send = {
                .header = {.type = (uint8_t) (request->type | HR_FRAME_REPLY),
                           .flags = HR_FRAME_END,
                           .request_id = request->id},
                .message = message,
                .message_bytes = message_bytes,
                .body = body,
                .body_bytes = body_bytes,
                .release = request_sent,
                .arg = request,
        };

        request_end(request, &send, 0);
}

/* Something was asked for that is not there; a graph that was evicted had been. */
static void request_missed(struct hr_server *server, struct hr_conn *conn) {
        uint64_t limit = server->config->limits.principal_misses;

        server->stats.misses++;
        if (conn && conn->principal &&
            !hr_rate_take(&conn->principal->misses, limit, hr_clock_now_ns()))
                hr_conn_too_often(conn, "principal_misses", limit);
}

/* What the request will be told. The first failure counts. False: there is no memory for it. */
static bool failure_keep(struct hr_request *request, const struct hr_diag *failure) {
        if (request->failure)
                return true;
        request->failure = hr_arena_alloc(&request->arena, sizeof *failure, 8);
        if (!request->failure)
                return false;
        *request->failure = *failure;
        return true;
}

static void fail_now(struct hr_request *request, const struct hr_diag *failure) {
        const bool is_miss = failure->status == HR_E_NOT_FOUND && !request->digest;
        struct hr_server *server = request->server;
        struct hr_conn *conn = request->conn;
        const struct hr_wire_error_more more = {
                .digest = request->digest,
                .written = request->written,
                .written_count = request->written_count,
                .traceparent = hr_request_traceparent(request),
        };
        uint8_t message[HR_WIRE_ERROR_BYTES_MAX], *longer = server->scratch;
        uint32_t code = hr_status_grpc_code(failure->status);
        struct hr_send send = {
                .header = {.type = (uint8_t) (request->type | HR_FRAME_REPLY),
                           .flags = HR_FRAME_ERROR | HR_FRAME_END,
                           .request_id = request->id,
                           .timeout_ms = code},
                .message = message,
                .release = request_sent,
                .arg = request,
        };

        hr_failure_log_request(request, failure);
        if (request->written_count > 0 &&
            hr_wire_error_encode(failure, &more, longer, sizeof server->scratch,
                                 &send.message_bytes) == HR_OK)
                send.message = longer;
        else if (hr_wire_error_encode(failure, &more, message, sizeof message,
                                      &send.message_bytes) != HR_OK)
                HR_ASSERT(false); /* the capacity is the largest error's */
        request_end(request, &send, code);
        if (is_miss)
                request_missed(server, conn);
}

/* ---- giving objects back --------------------------------------------------------------------- */

/* The reply of a request whose object has closed. */
static void closed_reply(struct hr_request *request) {
        struct hr_diag diag;

        if (request->failure) {
                diag = *request->failure;
                fail_now(request, &diag);
        } else {
                hr_request_reply(request, NULL, 0, NULL, 0);
        }
}

/* Thread: engine. */
static void closed_others_work(struct hr_job *job) {
        hr_engine_job_end(job);
}

static void closed_others_done(struct hr_job *job) {
        closed_reply(hr_request_of(job));
}

static void object_close_done(struct hr_job *job) {
        struct hr_request *request = hr_request_of(job);
        struct hr_object *object = HR_CONTAINER_OF(job, struct hr_object, closing);
        const bool held_others = object->held_count > 0;

        if (job->diag.status != HR_OK)
                (void) failure_keep(request, &job->diag);
        hr_object_closed(object); /* frees the job */
        if (!held_others) {
                closed_reply(request);
                return;
        }
        /* What the object held may close now: those jobs were posted before this one. */
        hr_request_post_work(request, closed_others_work, closed_others_done);
}

/* Closes the request's object, which nobody else holds, and replies then. */
static void object_close(struct hr_request *request) {
        struct hr_object *object = HR_STEAL(request->object);

        object->refs = 0;
        hr_object_closing_init(object, object_close_done);
        hr_request_post(request, &object->closing);
}

void hr_request_forget_object(struct hr_request *request) {
        struct hr_object *object = request->object;

        hr_session_forget(request->session, object);
        if (object->refs > 1)
                hr_request_reply(request, NULL, 0, NULL, 0);
        else
                object_close(request);
}

void hr_request_fail(struct hr_request *request, const struct hr_diag *failure) {
        struct hr_object *object = request->object;

        /* Who hears of the failure may use at once what the object was charged with. */
        if (!object || object->is_made || !request->conn || !failure_keep(request, failure)) {
                fail_now(request, failure);
                return;
        }
        body_drop(request);
        object_close(request);
}

/* ---- early ends ------------------------------------------------------------------------------ */

void hr_request_stop(struct hr_request *request, hr_status status) {
        struct hr_diag diag = {0};

        if (request->phase == HR_REQUEST_REPLYING || request->stopped != HR_OK)
                return;
        request->stopped = status;
        if (request->method->stop)
                request->method->stop(request);
        if (request->active) {
                request->phase = HR_REQUEST_WORKING;
                hr_engine_cancel(request->server->engine, request->active, status);
                return;
        }
        (void) hr_fail(&diag, status, "%s",
                       status == HR_E_DEADLINE ? "the deadline passed before the end"
                                               : "cancelled");
        hr_request_fail(request, &diag);
}

void hr_request_abort(struct hr_request *request, const struct hr_diag *failure) {
        if (request->phase == HR_REQUEST_REPLYING || request->failure)
                return;
        if (request->method->stop)
                request->method->stop(request);
        if (!request->active) {
                hr_request_fail(request, failure);
                return;
        }
        (void) failure_keep(request, failure);
        request->phase = HR_REQUEST_WORKING;
        hr_engine_cancel(request->server->engine, request->active, HR_E_CANCELLED);
}

void hr_request_orphan(struct hr_request *request) {
        hr_conn_remove(request->conn, request);
        request->conn = NULL;
        if (request->phase != HR_REQUEST_REPLYING)
                hr_request_stop(request, HR_E_CANCELLED);
}
