/*
 * From frames to methods: look-up, the rules that hold for every request, bodies and DATA.
 *
 * Rules in order: a hello first and once; an id that is in flight is not used again; an unknown
 * type is refused and its frame skipped; nothing new while the daemon drains, nothing that takes
 * memory while that is short; at most so many requests of one connection at a time. What breaks the
 * conversation itself ends the connection, everything else ends one request.
 *
 * A body whose total is known to be larger than its first frame follows as DATA: in order, within
 * what has been granted, MORE on every frame but the last. DATA for a request that is not receiving
 * (its failure may have crossed them on the way) is skipped.
 */
#include "daemon/rpc.h"

#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/failure.h"
#include "daemon/pressure.h"
#include "daemon/upload.h"

static const struct hr_method *const services[] = {
        hr_session_methods, hr_weights_methods, hr_upload_methods, hr_region_methods,
        hr_state_methods,   hr_state_copy_methods,
        hr_graph_methods,   hr_reserve_methods, hr_run_methods,
        hr_admin_methods,   hr_explain_methods, hr_sequence_methods, hr_trace_methods,
        hr_operate_methods, hr_list_methods,
};

/* Filled at the first use; the loop is the only user. */
static const struct hr_method *method_by_type[128];
static bool methods_are_indexed;

const struct hr_method *hr_method_find(uint8_t type) {
        if (!methods_are_indexed) {
                for (size_t i = 0; i < HR_ARRAY_LENGTH(services); i++)
                        for (const struct hr_method *method = services[i]; method->type; method++)
                                method_by_type[method->type] = method;
                methods_are_indexed = true;
        }
        return type < HR_ARRAY_LENGTH(method_by_type) ? method_by_type[type] : NULL;
}

hr_status hr_method_check(const struct hr_method *method, const struct hr_principal *principal,
                          struct hr_diag *diag) {
        if (method->or_admin && principal->permissions & HR_PERMIT_ADMIN)
                return HR_OK;
        return hr_principal_check(principal, method->permissions, diag);
}

const char *hr_method_name(uint8_t type) {
        const struct hr_method *method = hr_method_find(type);

        return method ? method->name : "?";
}

/* ---- refusals -------------------------------------------------------------------------------- */

/* One error for a request that was never taken in. */
static void refuse(struct hr_conn *conn, const struct hr_diag *failure) {
        uint8_t message[HR_WIRE_ERROR_BYTES_MAX];
        uint32_t code = hr_status_grpc_code(failure->status);
        struct hr_send send = {
                .header = {.type = (uint8_t) (conn->header.type | HR_FRAME_REPLY),
                           .flags = HR_FRAME_ERROR | HR_FRAME_END,
                           .request_id = conn->header.request_id,
                           .timeout_ms = code},
                .message = message,
        };

        hr_failure_log_refused(conn, failure);
        conn->server->stats.requests[conn->header.type][code]++;
        if (hr_wire_error_encode(failure, NULL, message, sizeof message, &send.message_bytes) !=
            HR_OK)
                HR_ASSERT(false); /* the capacity is the largest error's */
        hr_conn_send(conn, &send);
}

/* Whether the frame may begin a request at all. A failure of scope peer, or before the hello, ends
 * the connection. */
static hr_status conversation_check(struct hr_conn *conn, const struct hr_method *method,
                                    struct hr_diag *diag) {
        const struct hr_frame_header *header = &conn->header;

        if (header->n_fds != (method ? method->fd_count : 0) ||
            header->n_fds > hr_stream_fd_count(&conn->stream))
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_FDS",
                                      "%u descriptors announced, %u came, the message takes %u",
                                      header->n_fds, hr_stream_fd_count(&conn->stream),
                                      method ? method->fd_count : 0);
        if (hr_conn_find(conn, header->request_id))
                return hr_fail_reason(diag, HR_E_PROTOCOL, "BAD_ID",
                                      "a request with this id is in flight");
        if (!conn->session && header->type != HR_FRAME_HELLO)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "HELLO", "a hello comes first");
        if (conn->session && header->type == HR_FRAME_HELLO)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "HELLO",
                                      "there was a hello already");
        return HR_OK;
}

static hr_status admission_check(struct hr_conn *conn, const struct hr_method *method,
                                 struct hr_diag *diag) {
        uint64_t limit = conn->server->config->limits.connection_requests;

        if (!method)
                return hr_fail_reason(diag, HR_E_UNSUPPORTED, "MESSAGE",
                                      "message type %u is not known here", conn->header.type);
        if (method->needs_session)
                HR_TRY(hr_method_check(method, conn->principal, diag));
        if (conn->server->draining && method->needs_session && !method->in_drain) {
                hr_status status = hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRAINING",
                                                  "the daemon is about to end");

                diag->retry_after_ms = 1000;
                return status;
        }
        if (method->takes_memory)
                HR_TRY(hr_pressure_check(conn->server->pressure, diag));
        if (conn->request_count >= limit) {
                hr_status status = hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT",
                                                  "%u requests in flight on this connection",
                                                  conn->request_count);

                diag->field = "connection_requests";
                diag->limit = limit;
                diag->actual = conn->request_count + 1;
                return status;
        }
        return HR_OK;
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static hr_status size_fail(struct hr_diag *diag, hr_status status, const char *reason,
                           const char *words, uint64_t limit, uint64_t actual) {
        (void) hr_fail_reason(diag, status, reason, "%s: %llu, not %llu", words,
                              (unsigned long long) actual, (unsigned long long) limit);
        diag->limit = limit;
        diag->actual = actual;
        return status;
}

/* The first frame's share of the body against the total. */
static hr_status body_check(const struct hr_request *request, const struct hr_frame_header *header,
                            struct hr_diag *diag) {
        bool more = header->flags & HR_FRAME_MORE;

        if (header->body_bytes > request->body_total)
                return size_fail(diag, HR_E_INVALID, "SIZE", "bytes of the body",
                                 request->body_total, header->body_bytes);
        if (header->body_bytes == request->body_total ? more != request->more_follows : !more)
                return size_fail(diag, HR_E_INVALID, "SIZE",
                                 more ? "more is announced; bytes of the body"
                                      : "bytes of the body",
                                 request->body_total, header->body_bytes);
        return HR_OK;
}

static void request_fail_with(struct hr_request *request, hr_status status, struct hr_diag *diag) {
        (void) hr_fail(diag, status, "the request failed"); /* only if there are no words yet */
        hr_request_fail(request, diag);
}

static void request_start(struct hr_request *request) {
        struct hr_diag diag;
        hr_status status;

        hr_diag_clear(&diag);
        status = request->method->start(request, &diag);
        if (status != HR_OK)
                request_fail_with(request, status, &diag);
}

/* The place of a DATA frame in a body whose memory is there. */
static hr_status data_place(const struct hr_request *request, const struct hr_frame_header *header,
                            uint64_t offset, struct hr_diag *diag, uint8_t **ret_memory) {
        const uint64_t left = request->body_total - request->body_received;
        const uint64_t granted = request->body_granted - request->body_received;
        const bool is_last = header->body_bytes == left && !request->more_follows;

        if (offset != request->body_received)
                return size_fail(diag, HR_E_RANGE, "OFFSET", "offset of the data",
                                 request->body_received, offset);
        if (header->body_bytes > left)
                return size_fail(diag, HR_E_RANGE, "SIZE", "bytes beyond the declared total", left,
                                 header->body_bytes);
        if (header->body_bytes > granted)
                return size_fail(diag, HR_E_RANGE, "CREDIT", "bytes beyond the credit", granted,
                                 header->body_bytes);
        if (header->body_bytes == 0 || !(header->flags & HR_FRAME_MORE) != is_last)
                return size_fail(diag, HR_E_RANGE, "END", "end of the data", request->body_total,
                                 request->body_received + header->body_bytes);
        *ret_memory = request->body + request->body_received;
        return HR_OK;
}

/* A DATA frame: sets where its body goes, or fails the request it belongs to. */
static void data_message(struct hr_conn *conn, struct hr_wire_span message) {
        const struct hr_frame_header *header = &conn->header;
        struct hr_request *request = hr_conn_find(conn, header->request_id);
        struct hr_diag diag = {0};
        uint64_t offset = 0;
        hr_status status;

        if (!request || request->phase != HR_REQUEST_RECEIVING) {
                conn->server->stats.data_dropped++;
                return;
        }
        status = hr_wire_varint_decode(message, &diag, &offset);
        if (status == HR_OK && request->stream)
                status = request->method->place(request, header, offset, &diag, &conn->body_to);
        else if (status == HR_OK)
                status = data_place(request, header, offset, &diag, &conn->body_to);
        if (status != HR_OK) {
                conn->body_to = NULL;
                hr_request_abort(request, &diag);
                return;
        }
        conn->body_image = request->stream ? hr_upload_written(request->stream) : NULL;
        conn->body_request = request;
}

bool hr_rpc_message(struct hr_conn *conn, struct hr_wire_span message) {
        const struct hr_frame_header *header = &conn->header;
        const struct hr_method *method = hr_method_find(header->type);
        struct hr_diag diag;
        struct hr_request *request;
        hr_status status;
        int fd;

        hr_diag_clear(&diag);
        if (header->type == HR_FRAME_DATA && conn->session && header->n_fds == 0) {
                data_message(conn, message);
                return true;
        }
        status = conversation_check(conn, method, &diag);
        if (status == HR_E_PROTOCOL) {
                hr_conn_fail(conn, &diag);
                return false;
        }
        if (status != HR_OK) {
                refuse(conn, &diag);
                hr_conn_finish(conn);
                return false;
        }
        fd = header->n_fds > 0 ? hr_stream_fd_take(&conn->stream) : -1;
        if (admission_check(conn, method, &diag) != HR_OK) {
                if (fd >= 0)
                        (void) close(fd);
                refuse(conn, &diag);
                return true;
        }
        request = hr_request_new(conn, header, method);
        if (!request) {
                if (fd >= 0)
                        (void) close(fd);
                (void) hr_fail(&diag, HR_E_EXHAUSTED, "no memory for a request");
                refuse(conn, &diag);
                return true;
        }
        request->fd = fd;
        status = method->begin(request, message, header, &diag);
        if (status == HR_OK)
                status = body_check(request, header, &diag);
        if (status != HR_OK) {
                request_fail_with(request, status, &diag);
                return true;
        }
        conn->body_request = request;
        conn->body_to = request->body;
        conn->body_image = NULL;
        return true;
}

void hr_rpc_body(struct hr_conn *conn) {
        struct hr_request *request = conn->body_request;
        uint64_t bytes = conn->header.body_bytes;

        conn->body_request = NULL;
        conn->body_to = NULL;
        if (!request)
                return;
        request->body_received += bytes;
        if (request->stream) {
                request->method->data(request, bytes);
                return;
        }
        if (request->body_received == request->body_total) {
                request_start(request);
                return;
        }
        /* Memory for all of it is there: grant the rest at once. */
        if (request->body_granted == 0)
                request->body_granted = request->body_received;
        if (request->body_granted < request->body_total)
                hr_request_grant(request, request->body_total - request->body_granted, 0);
}

hr_status hr_method_begin_empty(struct hr_request *request, struct hr_wire_span message,
                                const struct hr_frame_header *header, struct hr_diag *diag) {
        (void) request;
        (void) header;
        return hr_wire_empty_decode(message, diag);
}

hr_status hr_method_begin_graph(struct hr_request *request, struct hr_wire_span message,
                                const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t handle = 0;

        (void) header;
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        return hr_request_take_object(request, handle, HR_OBJECT_GRAPH, diag);
}
