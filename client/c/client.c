/* Connecting, and questions about the daemon. */
#include "client/c/client_priv.h"
#include "client/c/transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Lists of devices and counters in a reply: far more than any daemon has. */
#define LIST_BYTES_MAX (16U << 20)

void headrace_free(void *memory) {
        free(memory);
}

/* ---- hello ----------------------------------------------------------------------------------- */

static enum headrace_status hello_fill(const struct headrace_options *options,
                                       struct headrace_error *error, struct hr_wire_hello *hello) {
        const char *name = options->client_name ? options->client_name : "libheadrace-client";
        const char *session = options->session_name ? options->session_name : "";

        if (options->credentials_bytes > sizeof hello->credentials ||
            options->resume_token_bytes > sizeof hello->resume_token)
                return hr_client_fail(error, HEADRACE_INVALID, "SIZE",
                                      "credentials of %zu bytes, a token of %zu",
                                      options->credentials_bytes, options->resume_token_bytes);
        if (strlen(name) >= HR_WIRE_NAME_BYTES || strlen(session) >= HR_WIRE_NAME_BYTES)
                return hr_client_fail(error, HEADRACE_INVALID, "NAME",
                                      "a name of more than %u bytes", HR_WIRE_NAME_BYTES - 1);
        *hello = (struct hr_wire_hello){
                .protocol_min = HR_WIRE_PROTOCOL,
                .protocol_max = HR_WIRE_PROTOCOL,
                .credentials_bytes = (uint32_t) options->credentials_bytes,
                .resume_token_bytes = (uint32_t) options->resume_token_bytes,
        };
        (void) snprintf(hello->client_name, sizeof hello->client_name, "%s", name);
        (void) snprintf(hello->session_name, sizeof hello->session_name, "%s", session);
        if (options->credentials_bytes)
                memcpy(hello->credentials, options->credentials, options->credentials_bytes);
        if (options->resume_token_bytes)
                memcpy(hello->resume_token, options->resume_token, options->resume_token_bytes);
        return HEADRACE_OK;
}

enum headrace_status hr_client_say_hello(struct hr_channel *channel,
                                         const struct headrace_options *options,
                                         int64_t deadline_ns, struct headrace_error *error,
                                         struct hr_wire_hello_reply *ret_reply) {
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_HELLO, .message = message};
        struct hr_wire_hello hello;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status = hello_fill(options, error, &hello);

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_hello_encode(&hello, message, sizeof message, &diag, &request.message_bytes) !=
            HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_call(channel, &request, deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_hello_reply_decode(answer.message, &diag, ret_reply) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        else if (ret_reply->protocol != HR_WIRE_PROTOCOL)
                status = hr_client_fail(error, HEADRACE_PRECONDITION, "VERSION",
                                        "the daemon speaks protocol %u, this library %u",
                                        ret_reply->protocol, HR_WIRE_PROTOCOL);
        else if (ret_reply->limits.body_bytes_max > 0 &&
                 ret_reply->limits.body_bytes_max <= UINT32_MAX)
                hr_channel_set_body_max(channel, (uint32_t) ret_reply->limits.body_bytes_max);
        hr_call_free(call);
        return status;
}

static bool maps_memory(const struct hr_wire_hello_reply *reply) {
        for (uint32_t i = 0; i < reply->feature_count; i++)
                if (strcmp(reply->features[i], "memfd") == 0)
                        return true;
        return false;
}

static void hello_take(struct headrace_client *client, const struct hr_wire_hello_reply *reply) {
        const struct hr_wire_limits *limits = &reply->limits;

        client->limits = (struct headrace_limits){
                limits->message_bytes_max,      limits->body_bytes_max,
                limits->graph_nodes_max,        limits->graph_bytes_max,
                limits->tensor_bytes_max,       limits->session_graphs_max,
                limits->session_runs_max,       limits->session_state_bytes_max,
                limits->upload_bytes_max,       limits->output_queue_bytes_max,
                limits->run_bytes_max,          limits->copies_max,
        };
        client->session_waits = limits->session_grace_ms > 0;
        client->passes_memory = hr_channel_passes_fds(client->channel) && maps_memory(reply);
        client->session = 1;
        hr_channel_set_session(client->channel, client->session);
        memcpy(client->daemon_version, reply->daemon_version, sizeof client->daemon_version);
        client->token_bytes = reply->session_token_bytes;
        memcpy(client->token, reply->session_token, reply->session_token_bytes);
}

enum headrace_status headrace_connect(const char *address, const struct headrace_options *options,
                                      struct headrace_error *error,
                                      struct headrace_client **ret_client) {
        const struct headrace_options none = {0};
        struct headrace_client *client = calloc(1, sizeof *client);
        struct hr_wire_hello_reply reply;
        struct hr_transport transport;
        enum headrace_status status;
        int64_t deadline_ns;

        if (!options)
                options = &none;
        if (!client) {
                if (options->stream)
                        options->stream->close(options->stream->data);
                return hr_client_fail_memory(error);
        }
        (void) pthread_mutex_init(&client->renewal, NULL);
        (void) pthread_mutex_init(&client->lock, NULL);
        client->timeout_ms = options->timeout_ms ? options->timeout_ms : HR_CLIENT_TIMEOUT_MS;
        deadline_ns = hr_client_deadline(client->timeout_ms, 0);
        status = hr_transport_open(address, options, deadline_ns, error, &transport);
        if (status == HEADRACE_OK)
                status = hr_channel_new(&transport, error, &client->channel);
        if (status == HEADRACE_OK)
                status = hr_client_say_hello(client->channel, options, deadline_ns, error, &reply);
        if (status == HEADRACE_OK)
                status = hr_client_keep_options(client, address, options, error);
        if (status != HEADRACE_OK) {
                headrace_close(client);
                return status;
        }
        hello_take(client, &reply);
        *ret_client = client;
        return HEADRACE_OK;
}

void headrace_close(struct headrace_client *client) {
        if (!client)
                return;
        hr_channel_unref(client->channel);
        hr_client_forget_all(client);
        (void) pthread_mutex_destroy(&client->renewal);
        (void) pthread_mutex_destroy(&client->lock);
        explicit_bzero(client->token, sizeof client->token);
        free(client);
}

const struct headrace_limits *headrace_limits_of(const struct headrace_client *client) {
        return &client->limits;
}

const char *headrace_daemon_version(const struct headrace_client *client) {
        return client->daemon_version;
}

const void *headrace_session_token(const struct headrace_client *client, size_t *ret_bytes) {
        *ret_bytes = client->token_bytes;
        return client->token;
}

bool headrace_draining(struct headrace_client *client) {
        struct hr_channel *channel = hr_client_channel(client);
        bool draining = hr_channel_draining(channel);

        hr_channel_unref(channel);
        return draining;
}

/* ---- questions ------------------------------------------------------------------------------- */

enum headrace_status hr_client_simple(struct headrace_client *client, uint8_t kind, uint64_t value,
                                      int64_t timeout_ms, struct headrace_error *error) {
        uint8_t message[16];
        struct hr_request request = {.kind = kind, .message = message};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        if (value && hr_wire_fixed64_encode(value, message, sizeof message, &diag,
                                            &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_client_call(client, &request,
                                 hr_client_deadline_of(client, timeout_ms), error, &call, &answer);
        if (status == HEADRACE_OK)
                hr_call_free(call);
        return status;
}

enum headrace_status headrace_ping(struct headrace_client *client, int64_t timeout_ms,
                                   struct headrace_error *error) {
        return hr_client_simple(client, HR_FRAME_PING, 1, timeout_ms, error);
}

enum headrace_status headrace_sync(struct headrace_client *client, int64_t timeout_ms,
                                   struct headrace_error *error) {
        return hr_client_simple(client, HR_FRAME_SYNC, 0, timeout_ms, error);
}

/* Fills a list for the caller from a reply. */
typedef enum headrace_status (*take_fn)(const struct hr_answer *answer, struct hr_arena *arena,
                                        struct headrace_error *error, void **ret_list,
                                        size_t *ret_count);

static enum headrace_status ask_list(struct headrace_client *client, uint8_t kind,
                                     int64_t timeout_ms, take_fn take, struct headrace_error *error,
                                     void **ret_list, size_t *ret_count) {
        const struct hr_request request = {.kind = kind};
        struct hr_arena arena;
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status =
                hr_client_call(client, &request,
                                hr_client_deadline_of(client, timeout_ms), error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        hr_arena_init(&arena, LIST_BYTES_MAX);
        status = take(&answer, &arena, error, ret_list, ret_count);
        hr_arena_deinit(&arena);
        hr_call_free(call);
        return status;
}

static enum headrace_status devices_take(const struct hr_answer *answer, struct hr_arena *arena,
                                         struct headrace_error *error, void **ret_list,
                                         size_t *ret_count) {
        const struct hr_wire_device *devices;
        struct headrace_device *list;
        struct hr_diag diag = {0};
        uint32_t count;

        if (hr_wire_devices_reply_decode(answer->message, arena, &diag, &devices, &count) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        list = calloc(count + (size_t) 1, sizeof *list);
        if (!list)
                return hr_client_fail_memory(error);
        for (uint32_t i = 0; i < count; i++) {
                const struct hr_wire_device *from = &devices[i];
                struct headrace_device *to = &list[i];

                (void) snprintf(to->name, sizeof to->name, "%s", from->name);
                (void) snprintf(to->description, sizeof to->description, "%s", from->description);
                (void) snprintf(to->type, sizeof to->type, "%s", from->type);
                (void) snprintf(to->memory_kind, sizeof to->memory_kind, "%s", from->memory_kind);
                to->memory_free = from->memory_free;
                to->memory_total = from->memory_total;
                to->memory_used = from->memory_used;
                to->threads = from->threads;
        }
        *ret_list = list;
        *ret_count = count;
        return HEADRACE_OK;
}

enum headrace_status headrace_devices(struct headrace_client *client, int64_t timeout_ms,
                                      struct headrace_error *error,
                                      struct headrace_device **ret_devices, size_t *ret_count) {
        void *list = NULL;
        enum headrace_status status = ask_list(client, HR_FRAME_DEVICES, timeout_ms, devices_take,
                                               error, &list, ret_count);

        if (status == HEADRACE_OK)
                *ret_devices = list;
        return status;
}

static enum headrace_status stats_take(const struct hr_answer *answer, struct hr_arena *arena,
                                       struct headrace_error *error, void **ret_list,
                                       size_t *ret_count) {
        const struct hr_wire_stat *stats;
        struct headrace_stat *list;
        struct hr_diag diag = {0};
        uint32_t count;

        if (hr_wire_stats_decode(answer->body, arena, &diag, &stats, &count) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        list = calloc(count + (size_t) 1, sizeof *list);
        if (!list)
                return hr_client_fail_memory(error);
        for (uint32_t i = 0; i < count; i++) {
                (void) snprintf(list[i].name, sizeof list[i].name, "%s", stats[i].name);
                (void) snprintf(list[i].labels, sizeof list[i].labels, "%s", stats[i].labels);
                list[i].value = stats[i].value;
        }
        *ret_list = list;
        *ret_count = count;
        return HEADRACE_OK;
}

static enum headrace_status ask_stats(struct headrace_client *client, uint8_t kind,
                                      int64_t timeout_ms, struct headrace_error *error,
                                      struct headrace_stat **ret_stats, size_t *ret_count) {
        void *list = NULL;
        enum headrace_status status =
                ask_list(client, kind, timeout_ms, stats_take, error, &list, ret_count);

        if (status == HEADRACE_OK)
                *ret_stats = list;
        return status;
}

enum headrace_status headrace_stats(struct headrace_client *client, int64_t timeout_ms,
                                    struct headrace_error *error, struct headrace_stat **ret_stats,
                                    size_t *ret_count) {
        return ask_stats(client, HR_FRAME_STATS, timeout_ms, error, ret_stats, ret_count);
}

enum headrace_status headrace_quota(struct headrace_client *client, int64_t timeout_ms,
                                    struct headrace_error *error, struct headrace_stat **ret_stats,
                                    size_t *ret_count) {
        return ask_stats(client, HR_FRAME_QUOTA, timeout_ms, error, ret_stats, ret_count);
}

static enum headrace_status text_take(const struct hr_answer *answer, struct hr_arena *arena,
                                      struct headrace_error *error, void **ret_list,
                                      size_t *ret_count) {
        char *text = malloc(answer->body.size + 1);

        (void) arena;
        if (!text)
                return hr_client_fail_memory(error);
        if (answer->body.size)
                memcpy(text, answer->body.data, answer->body.size);
        text[answer->body.size] = '\0';
        *ret_list = text;
        *ret_count = answer->body.size;
        return HEADRACE_OK;
}

/* A text that a question with a message brings. */
static enum headrace_status ask_text(struct headrace_client *client,
                                     const struct hr_request *request, int64_t timeout_ms,
                                     struct headrace_error *error, char **ret_text,
                                     size_t *ret_bytes) {
        struct hr_answer answer;
        struct hr_call *call;
        void *text = NULL;
        enum headrace_status status =
                hr_client_call(client, request,
                                hr_client_deadline_of(client, timeout_ms), error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        status = text_take(&answer, NULL, error, &text, ret_bytes);
        hr_call_free(call);
        if (status == HEADRACE_OK)
                *ret_text = text;
        return status;
}

enum headrace_status headrace_trace(struct headrace_client *client, uint64_t latest_ms, bool own,
                                    int64_t timeout_ms, struct headrace_error *error,
                                    char **ret_text, size_t *ret_bytes) {
        const struct hr_wire_trace_ask ask = {.latest_ms = latest_ms, .own = own};
        uint8_t message[32];
        struct hr_request request = {.kind = HR_FRAME_TRACE, .message = message};
        struct hr_diag diag = {0};

        if (hr_wire_trace_ask_encode(&ask, message, sizeof message, &diag,
                                     &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        return ask_text(client, &request, timeout_ms, error, ret_text, ret_bytes);
}

enum headrace_status headrace_metrics(struct headrace_client *client, int64_t timeout_ms,
                                      struct headrace_error *error, char **ret_text) {
        void *text = NULL;
        size_t count;
        enum headrace_status status =
                ask_list(client, HR_FRAME_METRICS, timeout_ms, text_take, error, &text, &count);

        if (status == HEADRACE_OK)
                *ret_text = text;
        return status;
}
