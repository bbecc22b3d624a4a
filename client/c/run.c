/*
 * Submitted graphs and their runs. The daemon may evict a graph that has been idle: the first run
 * that meets this submits it again, the others wait for that, and each is sent once more.
 */
#include "client/c/client_priv.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define RUN_BYTES 512 /* of the message */
#define OUTPUTS_BYTES_MAX (16U << 20) /* of the list of lengths in a reply */

struct headrace_handle {
        struct headrace_client *client;
        uint8_t *graph, *message; /* as they are submitted, the message without the sets */
        size_t graph_bytes, message_bytes;
        uint64_t *weights; /* the caller's numbers of the sets */
        size_t weight_count;
        uint32_t *taps; /* the tensors' numbers, in the order in which they are shown */
        size_t tap_count;
        uint32_t *numbers; /* the tensors' numbers, by their ids on the wire */
        uint32_t tensor_count;
        bool has_states;
        pthread_mutex_t lock; /* of what is below; held while the graph is submitted again */
        uint64_t handle;
        uint64_t generation; /* counts submits */
        struct headrace_plan plan;
};

struct headrace_run {
        struct headrace_handle *handle;
        pthread_mutex_t lock; /* of what is next; who cancels takes it, too */
        struct hr_call *call;
        bool cancelled;
        bool repeated; /* sent once more over another connection */
        bool outputs_are_shared; /* they come in no reply */
        headrace_observe_fn observe;
        void *observe_arg;
        uint64_t generation; /* of the handle that it was sent with */
        struct iovec *inputs, *outputs;
        size_t input_count, output_count;
        uint64_t input_bytes;
        int32_t priority;
        const char *traceparent;
        int64_t deadline_ns;
};

/* ---- submit ---------------------------------------------------------------------------------- */

/* The message with the present numbers of the sets, and with the graph's length where it is longer
 * than a frame. Free with free(). */
static uint8_t *submit_message(const struct headrace_handle *handle, size_t *ret_bytes) {
        const size_t capacity = handle->message_bytes + (handle->weight_count + 4) * 16;
        uint8_t *message = malloc(capacity);
        uint64_t *weights = calloc(handle->weight_count + 1, sizeof *weights);
        struct hr_wire_submit present = {.weights = weights,
                                         .weight_count = (uint32_t) handle->weight_count};
        struct hr_diag diag = {0};
        size_t bytes = 0;

        if (handle->graph_bytes > hr_client_body_max(handle->client))
                present.graph_bytes = handle->graph_bytes;
        for (size_t i = 0; weights && i < handle->weight_count; i++)
                weights[i] = hr_client_set_number(handle->client, handle->weights[i]);
        if (message)
                memcpy(message, handle->message, handle->message_bytes);
        if (!message || !weights ||
            hr_wire_submit_encode(&present, message + handle->message_bytes,
                                  capacity - handle->message_bytes, &diag, &bytes) != HR_OK) {
                free(message);
                message = NULL;
        }
        free(weights);
        *ret_bytes = handle->message_bytes + bytes;
        return message;
}

void hr_client_error_number(const struct headrace_handle *handle, struct headrace_error *error) {
        const uint32_t count = handle ? handle->tensor_count : 0;
        uint32_t known = 0;

        if (error->has_tensor) {
                error->has_tensor = error->tensor < count;
                error->tensor = error->has_tensor ? handle->numbers[error->tensor] : 0;
        }
        for (uint32_t i = 0; i < error->written_count; i++)
                if (error->written[i] < count)
                        error->written[known++] = handle->numbers[error->written[i]];
        error->written_left_out += error->written_count - known;
        error->written_count = known;
}

static enum headrace_status submit_take(struct headrace_handle *handle,
                                        const struct hr_answer *answer,
                                        struct headrace_error *error) {
        struct hr_wire_submit_reply reply;
        struct hr_diag diag = {0};

        if (hr_wire_submit_reply_decode(answer->message, &diag, &reply) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        handle->handle = reply.handle;
        handle->generation++;
        handle->plan = (struct headrace_plan){
                .splits = reply.split_count,
                .n_copies = reply.n_copies,
                .inputs = reply.input_count,
                .outputs = reply.output_count,
                .fallback_nodes = reply.fallback_nodes,
                .copied_bytes = reply.copied_bytes,
        };
        return HEADRACE_OK;
}

static enum headrace_status submit_over(struct headrace_handle *handle, struct hr_channel *channel,
                                        int64_t deadline_ns, struct headrace_error *error) {
        const struct iovec part = {handle->graph, handle->graph_bytes};
        struct hr_request request = {.kind = HR_FRAME_SUBMIT, .parts = &part, .part_count = 1};
        uint8_t *message = submit_message(handle, &request.message_bytes);
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        if (!message)
                return hr_client_fail_memory(error);
        request.message = message;
        status = hr_channel_call(channel, &request, deadline_ns, error, &call, &answer);
        free(message);
        if (status != HEADRACE_OK) {
                hr_client_error_number(handle, error);
                return status;
        }
        status = submit_take(handle, &answer, error);
        hr_call_free(call);
        return status;
}

/* Sends the graph; the lock is held or nobody else knows the handle. */
static enum headrace_status handle_submit(struct headrace_handle *handle, int64_t deadline_ns,
                                          struct headrace_error *error) {
        struct hr_channel *channel = hr_client_channel(handle->client);
        struct headrace_error local;
        enum headrace_status status = submit_over(handle, channel, deadline_ns, &local);

        if (hr_client_has_ended(status, &local) && !handle->has_states &&
            hr_client_reconnect(handle->client, channel, deadline_ns)) {
                hr_channel_unref(channel);
                channel = hr_client_channel(handle->client);
                status = submit_over(handle, channel, deadline_ns, &local);
        }
        hr_channel_unref(channel);
        if (status != HEADRACE_OK && error)
                *error = local;
        return status;
}

struct hr_wire_submit hr_client_submit(const struct headrace_submit *options,
                                       uint64_t graph_bytes) {
        return (struct hr_wire_submit){
                .graph_bytes = graph_bytes,
                .weights = options->weights,
                .weight_count = (uint32_t) options->weight_count,
                .states = options->states,
                .state_count = (uint32_t) options->state_count,
                .pins = (const struct hr_wire_rule *) (const void *) options->pins,
                .pin_count = (uint32_t) options->pin_count,
                .rules = options->rules_ggml,
                .n_copies = options->n_copies,
                .op_offload = options->op_offload,
                .strict = options->strict,
                .fresh = options->fresh,
                .realloc_fail = options->realloc_fail,
                .traceparent = options->traceparent,
        };
}

static enum headrace_status message_make(struct headrace_handle *handle,
                                         const struct headrace_submit *options,
                                         const uint32_t *taps, struct headrace_error *error) {
        struct hr_wire_submit submit = hr_client_submit(options, 0);
        uint8_t buffer[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_diag diag = {0};

        handle->weights = calloc(options->weight_count + 1, sizeof *handle->weights);
        if (!handle->weights)
                return hr_client_fail_memory(error);
        if (options->weight_count > 0)
                memcpy(handle->weights, options->weights,
                       options->weight_count * sizeof *handle->weights);
        handle->weight_count = options->weight_count;
        handle->has_states = options->state_count > 0;
        submit.weight_count = 0;
        submit.taps = taps;
        submit.tap_count = (uint32_t) handle->tap_count;
        if (hr_wire_submit_encode(&submit, buffer, sizeof buffer, &diag, &handle->message_bytes) !=
            HR_OK)
                return hr_client_fail_diag(error, &diag);
        handle->message = malloc(handle->message_bytes + 1);
        if (!handle->message)
                return hr_client_fail_memory(error);
        memcpy(handle->message, buffer, handle->message_bytes);
        return HEADRACE_OK;
}

static enum headrace_status message_of(struct headrace_handle *handle,
                                       const struct headrace_graph *graph,
                                       const struct headrace_submit *options,
                                       struct headrace_error *error) {
        uint32_t *ids = calloc(options->tap_count + 1, sizeof *ids);
        enum headrace_status status;

        handle->taps = calloc(options->tap_count + 1, sizeof *handle->taps);
        handle->tap_count = options->tap_count;
        status = ids && handle->taps
                         ? hr_client_graph_taps(graph, options->taps, options->tap_count, error,
                                                ids, handle->taps)
                         : hr_client_fail_memory(error);
        if (status == HEADRACE_OK)
                status = message_make(handle, options, ids, error);
        free(ids);
        return status;
}

static void handle_free(struct headrace_handle *handle) {
        (void) pthread_mutex_destroy(&handle->lock);
        free(handle->graph);
        free(handle->message);
        free(handle->weights);
        free(handle->taps);
        free(handle->numbers);
        free(handle);
}

enum headrace_status headrace_submit(struct headrace_client *client,
                                     const struct headrace_graph *graph,
                                     const struct headrace_submit *options, int64_t timeout_ms,
                                     struct headrace_error *error,
                                     struct headrace_handle **ret_handle) {
        const struct headrace_submit none = {0};
        struct headrace_handle *handle = calloc(1, sizeof *handle);
        enum headrace_status status;

        if (!handle)
                return hr_client_fail_memory(error);
        handle->client = client;
        (void) pthread_mutex_init(&handle->lock, NULL);
        status = hr_client_graph_encode(graph, error, &handle->graph, &handle->graph_bytes);
        if (status == HEADRACE_OK)
                status = hr_client_graph_numbers(graph, error, &handle->numbers,
                                                 &handle->tensor_count);
        if (status == HEADRACE_OK)
                status = message_of(handle, graph, options ? options : &none, error);
        if (status == HEADRACE_OK)
                status = handle_submit(handle, hr_client_deadline_of(client, timeout_ms), error);
        if (status != HEADRACE_OK) {
                handle_free(handle);
                return status;
        }
        *ret_handle = handle;
        return HEADRACE_OK;
}

void headrace_plan_of(struct headrace_handle *handle, struct headrace_plan *ret_plan) {
        (void) pthread_mutex_lock(&handle->lock);
        *ret_plan = handle->plan;
        (void) pthread_mutex_unlock(&handle->lock);
}

enum headrace_status headrace_release(struct headrace_handle *handle, int64_t timeout_ms,
                                      struct headrace_error *error) {
        enum headrace_status status;

        if (!handle)
                return HEADRACE_OK;
        status = hr_client_simple(handle->client, HR_FRAME_RELEASE, handle->handle, timeout_ms,
                                  error);
        handle_free(handle);
        return status == HEADRACE_NOT_FOUND ? HEADRACE_OK : status; /* evicted: gone already */
}

struct headrace_client *hr_client_of(const struct headrace_handle *handle) {
        return handle->client;
}

uint64_t hr_client_number(struct headrace_handle *handle, uint64_t *ret_generation) {
        uint64_t number;

        (void) pthread_mutex_lock(&handle->lock);
        number = handle->handle;
        *ret_generation = handle->generation;
        (void) pthread_mutex_unlock(&handle->lock);
        return number;
}

bool hr_client_is_evicted(enum headrace_status status, const struct headrace_error *error) {
        return status == HEADRACE_NOT_FOUND && strcmp(error->reason, "GRAPH") == 0;
}

enum headrace_status hr_client_renew(struct headrace_handle *handle, uint64_t seen,
                                     int64_t deadline_ns, struct headrace_error *error) {
        enum headrace_status status = HEADRACE_OK;

        (void) pthread_mutex_lock(&handle->lock);
        if (handle->generation == seen)
                status = handle_submit(handle, deadline_ns, error);
        (void) pthread_mutex_unlock(&handle->lock);
        return status;
}

/* ---- run ------------------------------------------------------------------------------------- */

static void run_free(struct headrace_run *run) {
        hr_call_free(run->call);
        (void) pthread_mutex_destroy(&run->lock);
        free(run->inputs);
        free(run->outputs);
        free(run);
}

static struct iovec *buffers_copy(const struct headrace_buffer *buffers, size_t count,
                                  uint64_t *ret_bytes) {
        struct iovec *copy = calloc(count + 1, sizeof *copy);

        *ret_bytes = 0;
        for (size_t i = 0; copy && i < count; i++) {
                copy[i] = (struct iovec){buffers[i].data, buffers[i].bytes};
                *ret_bytes += buffers[i].bytes;
        }
        return copy;
}

/* What of inputs and outputs lies in memory that the daemon has, too. */
static enum headrace_status run_regions(const struct headrace_run *run, struct hr_channel *channel,
                                        struct headrace_error *error, struct hr_wire_run *wire) {
        struct headrace_client *client = run->handle->client;
        enum headrace_status status =
                hr_client_region(client, channel, run->inputs, run->input_count, run->deadline_ns,
                                 error, &wire->input_region, &wire->input_offset);

        if (status == HEADRACE_OK)
                status = hr_client_region(client, channel, run->outputs, run->output_count,
                                          run->deadline_ns, error, &wire->output_region,
                                          &wire->output_offset);
        return status;
}

static bool run_show(void *arg, uint32_t tap, const void *data, uint64_t bytes) {
        const struct headrace_run *run = arg;

        return tap >= run->handle->tap_count ||
               run->observe(run->observe_arg, run->handle->taps[tap], data, bytes);
}

static enum headrace_status run_over(struct headrace_run *run, struct hr_channel *channel,
                                     struct headrace_error *error) {
        uint8_t message[RUN_BYTES];
        struct hr_request request = {.kind = HR_FRAME_RUN,
                                     .message = message,
                                     .into = run->outputs,
                                     .into_count = run->output_count,
                                     .show = run->observe ? run_show : NULL,
                                     .show_arg = run};
        struct hr_wire_run wire = {
                .observe = run->observe != NULL,
                .no_outputs = run->output_count == 0,
                .priority = run->priority,
                .traceparent = run->traceparent,
        };
        struct hr_diag diag = {0};
        struct hr_call *call, *before;
        enum headrace_status status = run_regions(run, channel, error, &wire);

        if (status != HEADRACE_OK)
                return status;
        if (!wire.input_region) {
                request.parts = run->inputs;
                request.part_count = run->input_count;
                wire.input_bytes =
                        run->input_bytes > hr_channel_body_max(channel) ? run->input_bytes : 0;
        }
        run->outputs_are_shared = wire.output_region != 0;
        wire.handle = hr_client_number(run->handle, &run->generation);
        if (hr_wire_run_encode(&wire, message, sizeof message, &diag, &request.message_bytes) !=
            HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_start(channel, &request, run->deadline_ns, error, &call);
        if (status != HEADRACE_OK)
                return status;
        (void) pthread_mutex_lock(&run->lock);
        before = run->call;
        run->call = call;
        if (run->cancelled)
                hr_call_cancel(call);
        (void) pthread_mutex_unlock(&run->lock);
        hr_call_free(before);
        return HEADRACE_OK;
}

/* The run was not answered since its connection has ended, and may be sent once more over
 * another. */
static bool run_may_repeat(struct headrace_run *run, enum headrace_status status,
                           const struct headrace_error *error, const struct hr_channel *ended) {
        if (!hr_client_has_ended(status, error) || run->handle->has_states || run->repeated ||
            run->observe)
                return false;
        run->repeated = true;
        return hr_client_reconnect(run->handle->client, ended, run->deadline_ns);
}

/* Sends the run with the handle's present number. */
static enum headrace_status run_send(struct headrace_run *run, struct headrace_error *error) {
        struct hr_channel *channel = hr_client_channel(run->handle->client);
        struct headrace_error local;
        enum headrace_status status = run_over(run, channel, &local);

        if (run_may_repeat(run, status, &local, channel)) {
                hr_channel_unref(channel);
                channel = hr_client_channel(run->handle->client);
                status = run_over(run, channel, &local);
        }
        hr_channel_unref(channel);
        if (status != HEADRACE_OK && error)
                *error = local;
        return status;
}

enum headrace_status headrace_run_start(struct headrace_handle *handle,
                                        const struct headrace_buffer *inputs, size_t input_count,
                                        const struct headrace_buffer *outputs, size_t output_count,
                                        const struct headrace_run_options *options,
                                        struct headrace_error *error,
                                        struct headrace_run **ret_run) {
        struct headrace_run *run = calloc(1, sizeof *run);
        uint64_t output_bytes = 0;
        enum headrace_status status;

        if (!run)
                return hr_client_fail_memory(error);
        (void) pthread_mutex_init(&run->lock, NULL);
        run->handle = handle;
        run->inputs = buffers_copy(inputs, input_count, &run->input_bytes);
        run->outputs = buffers_copy(outputs, output_count, &output_bytes);
        run->input_count = input_count;
        run->output_count = output_count;
        run->priority = options ? options->priority : 0;
        run->traceparent = options ? options->traceparent : NULL;
        run->observe = options ? options->observe : NULL;
        run->observe_arg = options ? options->observe_arg : NULL;
        run->deadline_ns = hr_client_deadline_of(handle->client, options ? options->timeout_ms : 0);
        status = run->inputs && run->outputs ? run_send(run, error)
                                             : hr_client_fail_memory(error);
        if (status != HEADRACE_OK) {
                run_free(run);
                return status;
        }
        *ret_run = run;
        return HEADRACE_OK;
}

/* What came back must be what there is room for, output by output. */
static enum headrace_status outputs_check(const struct headrace_run *run,
                                          const struct hr_wire_run_reply *reply,
                                          uint64_t body_bytes, struct headrace_error *error) {
        for (uint32_t i = 0; run->outputs_are_shared && i < reply->output_count; i++)
                body_bytes += reply->output_bytes[i];
        if (reply->output_count != run->output_count)
                return hr_client_fail_size(error, "OUTPUT", run->output_count, reply->output_count,
                                           "the graph has %u outputs, room is for %zu",
                                           reply->output_count, run->output_count);
        for (uint32_t i = 0; i < reply->output_count; i++) {
                if (reply->output_bytes[i] != run->outputs[i].iov_len)
                        return hr_client_fail_size(
                                error, "SIZE", run->outputs[i].iov_len, reply->output_bytes[i],
                                "output %u has %" PRIu64 " bytes, its buffer %zu", i,
                                reply->output_bytes[i], run->outputs[i].iov_len);
                body_bytes -= reply->output_bytes[i];
        }
        return body_bytes ? hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                           "the outputs have not the length that is said")
                          : HEADRACE_OK;
}

static enum headrace_status run_take(const struct headrace_run *run, const struct hr_answer *answer,
                                     struct headrace_error *error,
                                     struct headrace_run_figures *ret_figures) {
        struct hr_wire_run_reply reply;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        enum headrace_status status = HEADRACE_OK;

        hr_arena_init(&arena, OUTPUTS_BYTES_MAX);
        if (hr_wire_run_reply_decode(answer->message, &arena, &diag, &reply) != HR_OK) {
                status = hr_client_fail_answer(error, &diag);
        } else {
                status = outputs_check(run, &reply, answer->body_bytes, error);
        }
        if (status == HEADRACE_OK && ret_figures)
                *ret_figures = (struct headrace_run_figures){
                        .queue_ns = reply.queue_ns, .run_ns = reply.run_ns,
                        .copied_bytes = reply.copied_bytes, .sequence = reply.sequence,
                        .slot = reply.slot};
        hr_arena_deinit(&arena);
        return status;
}

static enum headrace_status run_hear(struct headrace_run *run, struct headrace_error *error,
                                     struct hr_answer *ret_answer) {
        enum headrace_status status = hr_call_wait(run->call, error, ret_answer);

        if (status != HEADRACE_OK)
                hr_client_error_number(run->handle, error);
        return status;
}

static enum headrace_status run_resend(struct headrace_run *run, struct headrace_error *error,
                                       struct hr_answer *ret_answer) {
        enum headrace_status status = run_send(run, error);

        return status == HEADRACE_OK ? run_hear(run, error, ret_answer) : status;
}

enum headrace_status headrace_run_wait(struct headrace_run *run, struct headrace_error *error,
                                       struct headrace_run_figures *ret_figures) {
        struct headrace_error local;
        struct hr_answer answer = {0};
        enum headrace_status status = run_hear(run, &local, &answer);

        if (run_may_repeat(run, status, &local, hr_call_channel(run->call)))
                status = run_resend(run, &local, &answer);
        if (hr_client_is_evicted(status, &local)) {
                status = hr_client_renew(run->handle, run->generation, run->deadline_ns, &local);
                if (status == HEADRACE_OK)
                        status = run_resend(run, &local, &answer);
                if (run_may_repeat(run, status, &local, hr_call_channel(run->call)))
                        status = run_resend(run, &local, &answer);
        }
        if (status == HEADRACE_OK)
                status = run_take(run, &answer, &local, ret_figures);
        if (status != HEADRACE_OK && error)
                *error = local;
        run_free(run);
        return status;
}

void headrace_run_cancel(struct headrace_run *run) {
        (void) pthread_mutex_lock(&run->lock);
        run->cancelled = true;
        hr_call_cancel(run->call);
        (void) pthread_mutex_unlock(&run->lock);
}

enum headrace_status headrace_run(struct headrace_handle *handle,
                                  const struct headrace_buffer *inputs, size_t input_count,
                                  const struct headrace_buffer *outputs, size_t output_count,
                                  const struct headrace_run_options *options,
                                  struct headrace_error *error,
                                  struct headrace_run_figures *ret_figures) {
        struct headrace_run *run;
        enum headrace_status status = headrace_run_start(
                handle, inputs, input_count, outputs, output_count, options, error, &run);

        return status == HEADRACE_OK ? headrace_run_wait(run, error, ret_figures) : status;
}
