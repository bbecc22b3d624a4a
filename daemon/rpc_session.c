/*
 * Hello, ping, cancel: what is answered by the loop alone.
 *
 * A hello makes a session, or joins the one whose token it shows. A token that is not (or no
 * longer) known is refused without ending the connection, so that the client can say hello again
 * without it.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/digest.h"
#include "daemon/rpc.h"

static const char *const features[] = {"load",  "put",     "state",   "explain",
                                       "stats", "dry_run", "progress", "trace",
                                       "memfd", "state_copy"};

struct hello_context {
        struct hr_wire_hello hello;
};

static hr_status hello_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        struct hello_context *context = hr_arena_alloc(&request->arena, sizeof *context, 8);

        (void) header;
        if (!context)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a hello");
        request->context = context;
        return hr_wire_hello_decode(message, diag, &context->hello);
}

static hr_status version_check(const struct hr_wire_hello *hello, struct hr_diag *diag) {
        if (hello->protocol_min <= HR_WIRE_PROTOCOL && hello->protocol_max >= HR_WIRE_PROTOCOL &&
            hello->protocol_min <= hello->protocol_max)
                return HR_OK;
        return hr_fail_reason(diag, HR_E_PRECONDITION, "VERSION",
                              "the client speaks protocols %u to %u, the daemon %u to %u",
                              hello->protocol_min, hello->protocol_max, HR_WIRE_PROTOCOL,
                              HR_WIRE_PROTOCOL);
}

static bool hello_names(const struct hr_wire_hello *hello, const char *feature) {
        for (uint32_t i = 0; i < hello->feature_count; i++)
                if (strcmp(hello->features[i], feature) == 0)
                        return true;
        return false;
}

/* Who the peer is: by the token it shows, else by what its connection says. */
static hr_status principal_find(struct hr_conn *conn, struct hr_wire_hello *hello,
                                struct hr_diag *diag) {
        struct hr_principal *found = NULL;
        char name[HR_TLS_NAME_BYTES];

        if (conn->stream.tls && !conn->principal && hr_tls_common_name(conn->stream.tls, name) &&
            hr_principal_of_certificate(conn->server->principals, name, NULL, &found) == HR_OK) {
                conn->principal = found;
                conn->known_by = HR_CONN_BY_CERTIFICATE;
        }
        if (hello->credentials_bytes > 0) {
                hr_status status;

                if (!conn->token_digest)
                        conn->token_digest = calloc(1, HR_TOKEN_DIGEST_BYTES);
                status = conn->token_digest
                                 ? hr_sha256(hello->credentials, hello->credentials_bytes, diag,
                                             conn->token_digest)
                                 : hr_fail(diag, HR_E_EXHAUSTED, "no memory for a token");
                explicit_bzero(hello->credentials, sizeof hello->credentials);
                if (status == HR_OK)
                        status = hr_principal_of_token(conn->server->principals,
                                                       conn->token_digest, diag, &found);
                HR_TRY(status);
                (void) hr_principal_unref(conn->principal);
                conn->principal = found;
                conn->known_by = HR_CONN_BY_TOKEN;
        }
        return conn->principal ? HR_OK
                               : hr_fail(diag, HR_E_UNAUTHENTICATED, "the peer is not known");
}

/* The session of the token, or a new one. */
static hr_status session_find(struct hr_conn *conn, const struct hr_wire_hello *hello,
                              struct hr_diag *diag) {
        struct hr_session *session;

        if (hello->resume_token_bytes > 0) {
                session = hr_session_find(conn->server, conn->principal, hello->resume_token,
                                          hello->resume_token_bytes);
                if (!session)
                        return hr_fail_reason(diag, HR_E_NOT_FOUND, "SESSION",
                                              "no session with this token");
                conn->session = hr_session_ref(session);
                conn->stream.takes_fds = !conn->stream.is_tcp;
                session->closing_ns = 0;
        } else {
                char *name = *hello->session_name ? strdup(hello->session_name) : NULL;
                hr_status status = hr_session_new(conn->server, conn->principal, diag, &session);

                if (status != HR_OK) {
                        free(name);
                        return status;
                }
                session->name = name;
                session->client = *hello->client_name ? strdup(hello->client_name) : NULL;
                conn->session = session;
                conn->stream.takes_fds = !conn->stream.is_tcp;
        }
        return HR_OK;
}

static hr_status session_enter(struct hr_request *request, const struct hr_wire_hello *hello,
                               struct hr_diag *diag) {
        struct hr_conn *conn = request->conn;
        struct hr_account *account = &conn->principal->account;
        hr_status status;

        HR_TRY(hr_account_charge(NULL, account, &conn->server->config->limits,
                                 HR_CHARGE_CONNECTIONS, 1, 0, diag));
        status = session_find(conn, hello, diag);
        if (status != HR_OK) {
                hr_account_discharge(NULL, account, HR_CHARGE_CONNECTIONS, 1);
                return status;
        }
        hr_list_append(&conn->session->conns, &conn->session_link);
        conn->server->greeting_count--;
        hr_server_accept_update(conn->server);
        return HR_OK;
}

static void limits_fill(const struct hr_config *config, struct hr_wire_limits *ret_limits) {
        const struct hr_limits *limits = &config->limits;

        *ret_limits = (struct hr_wire_limits){
                .message_bytes_max = limits->message_bytes,
                .body_bytes_max = limits->body_bytes,
                .graph_nodes_max = limits->graph_nodes,
                .graph_bytes_max = limits->graph_bytes,
                .tensor_bytes_max = limits->tensor_bytes,
                .session_graphs_max = limits->session_graphs,
                .session_runs_max = limits->session_runs,
                .session_state_bytes_max = limits->session_state_bytes,
                .upload_bytes_max = limits->upload_bytes,
                .output_queue_bytes_max = limits->output_queue_bytes,
                .run_bytes_max = limits->run_bytes,
                .copies_max = limits->copies,
                .session_states_max = limits->session_states,
                .session_weights_max = limits->session_weights,
                .session_uploads_max = limits->session_uploads,
                .session_buffer_bytes_max = limits->session_buffer_bytes,
                .session_device_bytes_max = limits->session_device_bytes,
                .connection_requests_max = limits->connection_requests,
                .principal_sessions_max = limits->principal_sessions,
                .principal_connections_max = limits->principal_connections,
                .principal_weights_max = limits->principal_weights,
                .principal_states_max = limits->principal_states,
                .principal_graphs_max = limits->principal_graphs,
                .principal_reservations_max = limits->principal_reservations,
                .principal_runs_max = limits->principal_runs,
                .principal_uploads_max = limits->principal_uploads,
                .principal_state_bytes_max = limits->principal_state_bytes,
                .principal_buffer_bytes_max = limits->principal_buffer_bytes,
                .principal_weight_bytes_max = limits->principal_weight_bytes,
                .principal_device_bytes_max = limits->principal_device_bytes,
                .principal_output_bytes_max = limits->principal_output_bytes,
                .principal_upload_bytes_max = limits->principal_upload_bytes,
                .principal_descriptors_max = limits->principal_descriptors,
                .session_regions_max = limits->session_regions,
                .principal_regions_max = limits->principal_regions,
                .taps_max = limits->taps,
                .pins_max = limits->pins,
                .weights_bytes_max = limits->weights_bytes,
                .weights_tensors_max = limits->weights_tensors,
                .metadata_bytes_max = limits->metadata_bytes,
                .manifest_bytes_max = limits->manifest_bytes,
                .placement_rules_max = limits->placement_rules,
                .state_tensors_max = limits->state_tensors,
                .principal_misses_max = limits->principal_misses,
                .principal_cancels_max = limits->principal_cancels,
                .session_plan_bytes_max = limits->session_plan_bytes,
                .principal_plan_bytes_max = limits->principal_plan_bytes,
                .session_grace_ms = config->session_grace_ns / HR_NS_PER_MS,
        };
}

void hr_rpc_devices(struct hr_server *server, struct hr_wire_device *devices) {
        for (uint32_t i = 0; i < hr_fleet_device_count(server->fleet); i++) {
                const struct hr_device *device = hr_fleet_device(server->fleet, i);
                uint64_t free_bytes = 0, total_bytes = 0;

                if (!hr_fleet_is_retired(server->fleet, i))
                        hr_device_memory(device, &free_bytes, &total_bytes);
                devices[i] = (struct hr_wire_device){
                        .name = device->props.name,
                        .description = hr_fleet_is_retired(server->fleet, i)
                                               ? "lost"
                                               : device->props.description,
                        .type = hr_device_type_name(device->props.type),
                        .memory_kind = device->props.kind->name,
                        .memory_free = free_bytes,
                        .memory_total = total_bytes,
                        .memory_used = atomic_load(&device->used_bytes),
                        .threads = device->props.threads,
                };
        }
}

static struct hr_wire_device *devices_new(struct hr_request *request, struct hr_diag *diag) {
        uint32_t count = hr_fleet_device_count(request->server->fleet);
        struct hr_wire_device *devices =
                hr_arena_alloc(&request->arena, count * sizeof *devices, 8);

        if (devices)
                hr_rpc_devices(request->server, devices);
        else
                (void) hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device table");
        return devices;
}

static hr_status hello_start(struct hr_request *request, struct hr_diag *diag) {
        struct hello_context *context = request->context;
        struct hr_server *server = request->server;
        struct hr_wire_hello_reply *reply = hr_arena_alloc(&request->arena, sizeof *reply, 8);
        struct hr_wire_device *devices = devices_new(request, diag);
        struct hr_conn *conn = request->conn;
        size_t bytes = 0;
        hr_status status;

        if (!reply || !devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a hello");
        status = version_check(&context->hello, diag);
        if (status != HR_OK) {
                hr_request_fail(request, diag);
                hr_conn_finish(conn);
                return HR_OK;
        }
        status = principal_find(conn, &context->hello, diag);
        if (status == HR_E_UNAUTHENTICATED) {
                hr_conn_refuse(conn);
                return HR_OK;
        }
        HR_TRY(status);
        HR_TRY(session_enter(request, &context->hello, diag));
        request->session = hr_session_ref(conn->session);
        conn->wants_progress = hello_names(&context->hello, "progress");
        reply->protocol = HR_WIRE_PROTOCOL;
        reply->feature_count = HR_ARRAY_LENGTH(features);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(features); i++)
                memcpy(reply->features[i], features[i], strlen(features[i]) + 1);
        memcpy(reply->daemon_version, HR_VERSION, sizeof HR_VERSION);
        memcpy(reply->boot_id, server->boot_id, sizeof reply->boot_id);
        reply->session_token_bytes = HR_SESSION_TOKEN_BYTES;
        memcpy(reply->session_token, conn->session->token, HR_SESSION_TOKEN_BYTES);
        reply->epoch = hr_fleet_epoch(server->fleet);
        limits_fill(server->config, &reply->limits);
        reply->devices = devices;
        reply->device_count = hr_fleet_device_count(server->fleet);
        HR_TRY(hr_wire_hello_reply_encode(reply, server->scratch, sizeof server->scratch, diag,
                                          &bytes));
        hr_log_fields(HR_LOG_DEBUG, "session",
                      (const struct hr_log_field[]){
                              {"client", context->hello.client_name},
                              {"principal", conn->principal->name},
                              {"transport", hr_stream_name(&conn->stream)},
                      },
                      3, "hello");
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

/* ---- ping and cancel ------------------------------------------------------------------------- */

static hr_status number_begin(struct hr_request *request, struct hr_wire_span message,
                              const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t *value = hr_arena_alloc(&request->arena, sizeof *value, 8);

        if (!value)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = value;
        if (header->type == HR_FRAME_PING)
                request->body_total = header->body_bytes; /* taken and dropped */
        return hr_wire_fixed64_decode(message, diag, value);
}

static hr_status ping_start(struct hr_request *request, struct hr_diag *diag) {
        uint64_t *cookie = request->context;
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_wire_fixed64_encode(*cookie, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, NULL, 0);
        return HR_OK;
}

static hr_status cancel_start(struct hr_request *request, struct hr_diag *diag) {
        uint64_t id = *(uint64_t *) request->context;
        struct hr_request *target = id == request->id ? NULL : hr_conn_find(request->conn, id);
        bool found = target && target->phase != HR_REQUEST_REPLYING;
        struct hr_conn *conn = request->conn;
        uint64_t limit = request->server->config->limits.principal_cancels;
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_wire_varint_encode(found, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, NULL, 0);
        if (found)
                hr_request_stop(target, HR_E_CANCELLED);
        if (!hr_rate_take(&conn->principal->cancels, limit, hr_clock_now_ns()))
                hr_conn_too_often(conn, "principal_cancels", limit);
        return HR_OK;
}

static hr_status devices_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct hr_wire_device *devices = devices_new(request, diag);
        size_t bytes = 0;

        if (!devices)
                return HR_E_EXHAUSTED;
        HR_TRY(hr_wire_devices_reply_encode(hr_fleet_epoch(server->fleet), devices,
                                            hr_fleet_device_count(server->fleet), server->scratch,
                                            sizeof server->scratch, diag, &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

const struct hr_method hr_session_methods[] = {
        {.type = HR_FRAME_HELLO, .name = "HELLO", .begin = hello_begin, .start = hello_start},
        {.type = HR_FRAME_PING, .name = "PING", .begin = number_begin, .start = ping_start},
        {.type = HR_FRAME_CANCEL, .name = "CANCEL", .begin = number_begin, .start = cancel_start},
        {.type = HR_FRAME_DEVICES,
         .name = "DEVICES",
         .begin = hr_method_begin_empty,
         .start = devices_start},
        {0},
};
