/*
 * Runs chained in the daemon: a step's inputs come from the client or from outputs of earlier
 * steps, and only what is asked for comes back. A graph that was evicted is submitted again, once,
 * and so is the whole sequence, which has not begun then.
 */
#include "client/c/client_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_BYTES_MAX (16U << 20) /* of lists in a reply */

struct sequence {
        const struct headrace_step *steps;
        size_t step_count;
        struct hr_wire_step *wire;
        uint64_t *generations; /* of the steps' handles, as they were sent */
        struct iovec *inputs, *outputs;
        size_t input_count, output_count;
        uint64_t input_bytes;
        int32_t priority;
        int64_t deadline_ns;
};

static struct iovec *buffers_take(const struct headrace_buffer *buffers, size_t count,
                                  uint64_t *ret_bytes) {
        struct iovec *parts = calloc(count + 1, sizeof *parts);

        *ret_bytes = 0;
        for (size_t i = 0; parts && i < count; i++) {
                parts[i] = (struct iovec){buffers[i].data, buffers[i].bytes};
                *ret_bytes += buffers[i].bytes;
        }
        return parts;
}

static void sequence_deinit(struct sequence *sequence) {
        free(sequence->wire);
        free(sequence->generations);
        free(sequence->inputs);
        free(sequence->outputs);
}

/* Outputs in the reply against the buffers, one after the other. */
static enum headrace_status outputs_check(const struct sequence *sequence,
                                          const struct hr_wire_sequence_reply *reply,
                                          uint64_t body_bytes, struct headrace_error *error) {
        size_t next = 0;

        if (reply->step_count != sequence->step_count)
                return hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL", "%u steps of %zu",
                                      reply->step_count, sequence->step_count);
        for (uint32_t i = 0; i < reply->step_count; i++)
                for (uint32_t j = 0; j < reply->steps[i].output_count; j++, next++) {
                        uint64_t bytes = reply->steps[i].output_bytes[j];
                        size_t room = next < sequence->output_count
                                              ? sequence->outputs[next].iov_len
                                              : bytes; /* their number is what is wrong */

                        if (bytes != room)
                                return hr_client_fail_size(error, "SIZE", room, bytes,
                                                           "step %u, output %u has %" PRIu64
                                                           " bytes, its buffer %zu",
                                                           i, j, bytes, room);
                        body_bytes -= bytes;
                }
        if (next != sequence->output_count)
                return hr_client_fail_size(error, "OUTPUT", sequence->output_count, next,
                                           "the steps have %zu outputs, room is for %zu", next,
                                           sequence->output_count);
        return body_bytes ? hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                           "the outputs have not the length that is said")
                          : HEADRACE_OK;
}

/* are_shared: the outputs come in no reply. */
static enum headrace_status sequence_take(const struct sequence *sequence,
                                          const struct hr_answer *answer, bool are_shared,
                                          struct headrace_error *error) {
        struct hr_wire_sequence_reply reply;
        uint64_t body_bytes = answer->body_bytes;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        enum headrace_status status;

        hr_arena_init(&arena, REPLY_BYTES_MAX);
        for (size_t i = 0; are_shared && i < sequence->output_count; i++)
                body_bytes += sequence->outputs[i].iov_len;
        status = hr_wire_sequence_reply_decode(answer->message, &arena, &diag, &reply) == HR_OK
                         ? outputs_check(sequence, &reply, body_bytes, error)
                         : hr_client_fail_answer(error, &diag);
        hr_arena_deinit(&arena);
        return status;
}

/* What of inputs and outputs lies in memory that the daemon has, too. */
static enum headrace_status regions_find(struct headrace_client *client, struct hr_channel *channel,
                                         const struct sequence *sequence,
                                         struct headrace_error *error,
                                         struct hr_wire_sequence *wire) {
        enum headrace_status status = hr_client_region(
                client, channel, sequence->inputs, sequence->input_count, sequence->deadline_ns,
                error, &wire->input_region, &wire->input_offset);

        if (status == HEADRACE_OK)
                status = hr_client_region(client, channel, sequence->outputs,
                                          sequence->output_count, sequence->deadline_ns, error,
                                          &wire->output_region, &wire->output_offset);
        return status;
}

static enum headrace_status sequence_over(struct headrace_client *client,
                                          struct hr_channel *channel,
                                          const struct sequence *sequence,
                                          struct headrace_error *error) {
        struct hr_wire_sequence wire = {
                .steps = sequence->wire,
                .step_count = (uint32_t) sequence->step_count,
                .priority = sequence->priority,
        };
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_SEQUENCE,
                                     .message = message,
                                     .into = sequence->outputs,
                                     .into_count = sequence->output_count};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status = regions_find(client, channel, sequence, error, &wire);

        if (status != HEADRACE_OK)
                return status;
        if (!wire.input_region) {
                request.parts = sequence->inputs;
                request.part_count = sequence->input_count;
                if (sequence->input_bytes > hr_channel_body_max(channel))
                        wire.input_bytes = sequence->input_bytes;
        }
        for (size_t i = 0; i < sequence->step_count; i++)
                sequence->wire[i].handle =
                        hr_client_number(sequence->steps[i].handle, &sequence->generations[i]);
        if (hr_wire_sequence_encode(&wire, message, sizeof message, &diag,
                                    &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_call(channel, &request, sequence->deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK) {
                hr_client_error_number(error->has_step && error->step < sequence->step_count
                                               ? sequence->steps[error->step].handle
                                               : NULL,
                                       error);
                return status;
        }
        status = sequence_take(sequence, &answer, wire.output_region != 0, error);
        hr_call_free(call);
        return status;
}

static enum headrace_status sequence_call(struct headrace_client *client,
                                          const struct sequence *sequence,
                                          struct headrace_error *error) {
        struct hr_channel *channel = hr_client_channel(client);
        enum headrace_status status = sequence_over(client, channel, sequence, error);

        hr_channel_unref(channel);
        return status;
}

/* Which of the graphs was evicted is not said in a way that could be relied on: all are
 * submitted. */
static enum headrace_status sequence_again(struct headrace_client *client,
                                           const struct sequence *sequence,
                                           struct headrace_error *error) {
        for (size_t i = 0; i < sequence->step_count; i++) {
                enum headrace_status status =
                        hr_client_renew(sequence->steps[i].handle, sequence->generations[i],
                                        sequence->deadline_ns, error);

                if (status != HEADRACE_OK)
                        return status;
        }
        return sequence_call(client, sequence, error);
}

static enum headrace_status sequence_init(struct sequence *sequence,
                                          const struct headrace_step *steps, size_t step_count,
                                          struct headrace_error *error) {
        sequence->steps = steps;
        sequence->step_count = step_count;
        sequence->wire = calloc(step_count + 1, sizeof *sequence->wire);
        sequence->generations = calloc(step_count + 1, sizeof *sequence->generations);
        if (!sequence->wire || !sequence->generations || !sequence->inputs || !sequence->outputs)
                return hr_client_fail_memory(error);
        for (size_t i = 0; i < step_count; i++)
                sequence->wire[i] = (struct hr_wire_step){
                        .outputs = steps[i].outputs,
                        .output_count = (uint32_t) steps[i].output_count,
                        .no_outputs = steps[i].no_outputs,
                        .feeds = (const struct hr_wire_feed *) (const void *) steps[i].feeds,
                        .feed_count = (uint32_t) steps[i].feed_count,
                };
        return HEADRACE_OK;
}

enum headrace_status headrace_sequence(struct headrace_client *client,
                                       const struct headrace_step *steps, size_t step_count,
                                       const struct headrace_buffer *inputs, size_t input_count,
                                       const struct headrace_buffer *outputs, size_t output_count,
                                       const struct headrace_run_options *options,
                                       struct headrace_error *error) {
        struct sequence sequence = {
                .input_count = input_count,
                .output_count = output_count,
                .priority = options ? options->priority : 0,
                .deadline_ns = hr_client_deadline_of(client, options ? options->timeout_ms : 0),
        };
        struct headrace_error local;
        uint64_t output_bytes;
        enum headrace_status status;

        _Static_assert(sizeof(struct headrace_feed) == sizeof(struct hr_wire_feed),
                       "a feed is three numbers");
        sequence.inputs = buffers_take(inputs, input_count, &sequence.input_bytes);
        sequence.outputs = buffers_take(outputs, output_count, &output_bytes);
        status = sequence_init(&sequence, steps, step_count, &local);
        if (status == HEADRACE_OK)
                status = sequence_call(client, &sequence, &local);
        if (hr_client_is_evicted(status, &local))
                status = sequence_again(client, &sequence, &local);
        if (status != HEADRACE_OK && error)
                *error = local;
        sequence_deinit(&sequence);
        return status;
}
