/*
 * One peer: its life, the events of its socket, and its requests in flight.
 *
 * hr_conn_close() only marks; the taking down happens in hr_conns_reap(), outside of every call
 * chain that may still hold the connection or one of its requests.
 */
#include "daemon/conn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/conn_priv.h"
#include "daemon/request.h"

static void conn_watch_cb(void *arg, int events) {
        struct hr_conn *conn = arg;

        if (events == 0) {
                hr_conn_close(conn);
                return;
        }
        if (events & HR_LOOP_WRITABLE)
                hr_conn_flush(conn);
        if (conn->over || !(events & HR_LOOP_READABLE))
                return;
        if (conn->lingering)
                hr_conn_linger(conn);
        else
                hr_conn_read(conn);
}

/* Asks for the events that are wanted now. */
void hr_conn_poll_update(struct hr_conn *conn) {
        int events = 0;

        if (conn->over)
                return;
        if (conn->lingering ||
            (conn->stage != HR_CONN_DEAF && !conn->eof && !hr_conn_is_clogged(conn)))
                events |= HR_LOOP_READABLE;
        if (!hr_list_is_empty(&conn->outputs) || hr_stream_has_unsent(&conn->stream))
                events |= HR_LOOP_WRITABLE;
        if (events == conn->polled)
                return;
        conn->polled = events;
        if (!hr_watch_want(conn->watch, events))
                hr_conn_close(conn);
}

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_conn_principal(const struct hr_conn *conn, struct hr_diag *diag,
                            struct hr_principal **ret_principal) {
        struct hr_principals *table = conn->server->principals;

        if (conn->stream.tls)
                return hr_fail(diag, HR_E_UNAUTHENTICATED, "TLS alone says nothing about a peer");
        return conn->stream.is_tcp
                       ? hr_principal_of_tcp(table, diag, ret_principal)
                       : hr_principal_of_unix(table, conn->stream.fd, diag, ret_principal);
}

hr_status hr_conn_open(struct hr_server *server, int fd, bool is_tcp,
                       struct hr_tls_context *context, struct hr_diag *diag) {
        struct hr_conn *conn = calloc(1, sizeof *conn);
        hr_status status;

        if (!conn) {
                (void) close(fd);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a connection");
        }
        conn->server = server;
        status = hr_stream_init(&conn->stream, fd, is_tcp, context, NULL);
        if (status == HR_OK)
                status = hr_conn_principal(conn, NULL, &conn->principal);
        if (status != HR_OK && status != HR_E_UNAUTHENTICATED) { /* that may show a token */
                hr_stream_deinit(&conn->stream);
                free(conn);
                return hr_fail(diag, status, "no memory for a connection");
        }
        hr_list_init(&conn->requests);
        hr_list_init(&conn->outputs);
        conn->opened_ns = conn->read_ns = conn->write_ns = hr_clock_now_ns();
        conn->watch = hr_watch_new(server->loop, fd, conn_watch_cb, conn);
        if (!conn->watch) {
                hr_stream_deinit(&conn->stream);
                conn->principal = hr_principal_unref(conn->principal);
                free(conn);
                return hr_fail(diag, HR_E_UNAVAILABLE, "a socket cannot be watched");
        }
        hr_list_append(&server->conns, &conn->link);
        server->stats.connections++;
        conn->number = ++server->stats.connections_total;
        server->greeting_count++;
        hr_conn_poll_update(conn);
        return HR_OK;
}

void hr_conn_close(struct hr_conn *conn) {
        if (conn->over)
                return;
        conn->over = true;
        conn->stage = HR_CONN_DEAF;
        conn->body_to = NULL;
        conn->body_request = NULL;
        (void) hr_watch_want(conn->watch, 0);
        hr_list_append(&conn->server->conns_over, &conn->over_link);
}

static void conn_leave_session(struct hr_conn *conn) {
        struct hr_session *session = conn->session;

        if (!session) {
                conn->server->greeting_count--;
                return;
        }
        hr_list_remove(&conn->session_link);
        conn->session = NULL;
        hr_account_discharge(NULL, &conn->principal->account, HR_CHARGE_CONNECTIONS, 1);
        hr_account_discharge(NULL, &conn->principal->account, HR_CHARGE_DESCRIPTORS,
                             conn->fds_charged);
        if (hr_list_is_empty(&session->conns))
                hr_session_left(session);
        (void) hr_session_unref(session);
}

static void conn_take_down(struct hr_conn *conn) {
        struct hr_server *server = conn->server;
        struct hr_list *link;

        while ((link = conn->requests.next) != &conn->requests)
                hr_request_orphan(HR_CONTAINER_OF(link, struct hr_request, link));
        hr_conn_outputs_drop(conn);
        HR_ASSERT(conn->request_count == 0);
        free(conn->message);
        conn->message = NULL;
        conn_leave_session(conn);
        conn->principal = hr_principal_unref(conn->principal);
        if (conn->token_digest)
                explicit_bzero(conn->token_digest, HR_TOKEN_DIGEST_BYTES);
        free(conn->token_digest);
        hr_list_remove(&conn->link);
        server->stats.connections--;
        conn->watch = hr_watch_free(conn->watch);
        hr_stream_deinit(&conn->stream); /* not before: the number may be somebody else's by then */
        free(conn);
        hr_server_accept_update(server);
        hr_server_conn_gone(server);
}

void hr_conns_reap(struct hr_server *server) {
        struct hr_list *link;

        while ((link = hr_list_pop(&server->conns_over)))
                conn_take_down(HR_CONTAINER_OF(link, struct hr_conn, over_link));
}

/* ---- requests in flight ---------------------------------------------------------------------- */

/* One table for all connections, so that idle ones pay nothing for it. Clients count up; the
 * multiplication spreads any other habit. */
static struct hr_request **conn_bucket(struct hr_conn *conn, uint64_t id) {
        uint64_t key = id ^ ((uint64_t) (uintptr_t) conn >> 4);

        return &conn->server->requests[(key * UINT64_C(0x9E3779B97F4A7C15) >> 32) %
                                       HR_REQUEST_BUCKETS];
}

struct hr_request *hr_conn_find(struct hr_conn *conn, uint64_t id) {
        struct hr_request *request = *conn_bucket(conn, id);

        while (request && (request->id != id || request->conn != conn))
                request = request->next;
        return request;
}

void hr_conn_add(struct hr_conn *conn, struct hr_request *request) {
        struct hr_request **bucket = conn_bucket(conn, request->id);

        request->next = *bucket;
        *bucket = request;
        hr_list_append(&conn->requests, &request->link);
        conn->request_count++;
        conn->server->stats.requests_in_flight++;
}

void hr_conn_remove(struct hr_conn *conn, struct hr_request *request) {
        struct hr_request **at = conn_bucket(conn, request->id);

        while (*at != request) {
                HR_ASSERT(*at);
                at = &(*at)->next;
        }
        *at = request->next;
        request->next = NULL;
        hr_list_remove(&request->link);
        if (conn->body_request == request) {
                conn->body_request = NULL;
                conn->body_to = NULL;
        }
        HR_ASSERT(conn->request_count > 0);
        conn->request_count--;
        conn->server->stats.requests_in_flight--;
        hr_conn_close_if_done(conn);
}
