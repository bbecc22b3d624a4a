/* What a new configuration changes of a server that runs. */
#include "daemon/reload.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/conn.h"
#include "daemon/holding.h"
#include "daemon/request.h"
#include "daemon/rpc.h"

/* Only what has been said and proven when the connection came counts, by the rules of now. */
static struct hr_principal *principal_now(const struct hr_conn *conn) {
        struct hr_principals *table = conn->server->principals;
        struct hr_principal *found = NULL;
        char name[HR_TLS_NAME_BYTES];
        hr_status status = HR_E_UNAUTHENTICATED;

        switch (conn->known_by) {
        case HR_CONN_BY_TOKEN:
                status = hr_principal_of_token(table, conn->token_digest, NULL, &found);
                break;
        case HR_CONN_BY_CERTIFICATE:
                if (hr_tls_common_name(conn->stream.tls, name))
                        status = hr_principal_of_certificate(table, name, NULL, &found);
                break;
        case HR_CONN_BY_SOCKET:
                status = hr_conn_principal(conn, NULL, &found);
                break;
        }
        return status == HR_OK ? found : NULL;
}

/* Ends what the principal may not ask for any more. */
static void requests_review(struct hr_conn *conn, bool aborts) {
        HR_LIST_FOR_EACH(link, &conn->requests) {
                struct hr_request *request = HR_CONTAINER_OF(link, struct hr_request, link);
                struct hr_diag diag = {0};

                if ((aborts || request->phase == HR_REQUEST_RECEIVING) &&
                    hr_method_check(request->method, conn->principal, &diag) != HR_OK)
                        hr_request_abort(request, &diag);
        }
}

static void conn_review(struct hr_conn *conn, bool aborts) {
        struct hr_principal *now;

        if (conn->over || conn->finishing || conn->refuse_ns != 0)
                return;
        now = principal_now(conn);
        if (!conn->session) {
                (void) hr_principal_unref(conn->principal);
                conn->principal = now;
                return;
        }
        if (now == conn->principal) {
                requests_review(conn, aborts);
        } else {
                hr_log(HR_LOG_NOTICE, "conn", "connection ends: access revoked %s principal=\"%s\"",
                       hr_stream_name(&conn->stream), conn->principal->name);
                conn->server->stats.revoked++;
                hr_conn_revoke(conn, aborts);
        }
        (void) hr_principal_unref(now);
}

static void access_review(struct hr_server *server) {
        bool aborts = strcmp(server->config->revocation, "abort") == 0;

        HR_LIST_FOR_EACH(link, &server->conns)
        conn_review(HR_CONTAINER_OF(link, struct hr_conn, link), aborts);
        (void) hr_sessions_expire(server, hr_clock_now_ns(), false);
        (void) hr_holdings_expire(server, hr_clock_now_ns(), false);
}

/* The files of a listener that is open; one that the new configuration does not have keeps its own.
 */
static hr_status tls_prepare(struct hr_server *server, const struct hr_config *fresh,
                             struct hr_diag *diag, struct hr_tls_context **ret_context) {
        *ret_context = NULL;
        if (!server->tls_context || !fresh->tls_certificate || !fresh->tls_key)
                return HR_OK;
        return hr_tls_context_new(fresh->tls_certificate, fresh->tls_key, fresh->tls_client_ca,
                                  diag, ret_context);
}

hr_status hr_server_reload(struct hr_server *server, struct hr_diag *diag,
                           struct hr_config_changes *ret_changes) {
        struct hr_config fresh = {0};
        struct hr_principals_change *people = NULL;
        struct hr_tls_context *context = NULL;
        hr_status status = server->reload(server->reload_arg, diag, &fresh);

        if (status == HR_OK)
                status = tls_prepare(server, &fresh, diag, &context);
        if (status == HR_OK)
                status = hr_principals_prepare(server->principals, &fresh, diag, &people);
        if (status == HR_OK)
                status = hr_config_reload(server->own_config, &fresh, diag, ret_changes);
        if (status == HR_OK) {
                hr_principals_commit(server->principals, people);
                if (context)
                        hr_tls_context_take(server->tls_context, context);
                hr_log_set_level(server->config->log_level);
                hr_server_accept_update(server);
                access_review(server);
        } else {
                hr_principals_discard(people);
        }
        (void) hr_tls_context_free(context);
        hr_config_deinit(&fresh);
        return status;
}
