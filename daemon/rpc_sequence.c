/*
 * SEQUENCE: runs chained in the daemon.
 *
 * Every step is a run job of the session's lane, and all are posted at once, in order, so nothing
 * else of the session starts in between. A step that is fed by others waits in the lane until they
 * have ended; what feeds it lies in host memory, and the step's input points there. Steps that
 * nothing feeds follow each other as runs do, several in flight where their pipelines have slots.
 * The first failure keeps the rest from starting.
 *
 * Memory is the request's: inputs in the body, results in one piece, those asked for first, step by
 * step, so that the reply is sent from where the devices wrote it. Everything is charged before.
 * Inputs and what is asked for may lie in regions of the client's instead.
 *
 * The request's own job stands for all of them: it is never posted, but ends the request when the
 * last step has been handed back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bind.h"
#include "daemon/evict.h"
#include "daemon/region.h"
#include "daemon/rpc.h"

#define RESULT_ALIGNMENT 64U

struct step {
        struct hr_request *request;
        struct hr_object *object; /* referenced */
        struct hr_run_job job;
        struct hr_run_input *inputs;
        struct hr_run_output *outputs; /* asked for, then those that only feed */
        uint32_t output_count, asked_count;
        uint64_t *asked_bytes;
        uint64_t reply_offset, reply_bytes; /* in the results */
        struct hr_run_job **needs;
        bool posted, done;
};

struct sequence {
        struct hr_wire_sequence wire;
        struct step *steps;
        struct hr_chain chain;
        uint64_t asked_total, results_total, input_total;
        uint8_t *results;
        struct hr_object *regions[2]; /* of the inputs, of the outputs; referenced, NULL = none */
        uint8_t *input_memory, *output_memory;
        uint32_t left; /* steps that have not been handed back */
        uint32_t told; /* steps that have been replied to, with `each` */
        uint64_t charged_runs;
};

static void *take(struct hr_request *request, uint64_t count, size_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&request->arena, total, 16) : NULL;
}

static hr_status out_of_memory(struct hr_diag *diag) {
        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a sequence");
}

/* Says which step it is that fails. */
static hr_status step_failed(uint32_t index, hr_status status, struct hr_diag *diag) {
        char words[HR_DIAG_WORDS_BYTES];

        memcpy(words, diag->words, sizeof words);
        (void) snprintf(diag->words, sizeof diag->words, "step %u: %.235s", index, words);
        diag->has_step = true;
        diag->step = index;
        return status;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static hr_status output_add(struct sequence *sequence, struct step *step, uint32_t position,
                            struct hr_diag *diag) {
        const struct hr_graph_object *object = hr_graph_object(step->object);
        uint64_t bytes = object->output_bytes[position];

        /* The offset stands for the address until there is memory. */
        step->outputs[step->output_count++] = (struct hr_run_output){
                .tensor = hr_graph_entry_graph(object->entry)->outputs[position],
                .data = (void *) (uintptr_t) sequence->results_total,
                .bytes = bytes,
        };
        if (!hr_add_u64(sequence->results_total, bytes, &sequence->results_total))
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT", "outputs beyond 64 bits");
        return HR_OK;
}

static struct hr_run_output *output_find(const struct step *step, uint32_t position) {
        const struct hr_graph *graph = hr_graph_entry_graph(hr_graph_object(step->object)->entry);

        for (uint32_t i = 0; i < step->output_count; i++)
                if (step->outputs[i].tensor == graph->outputs[position])
                        return &step->outputs[i];
        return NULL;
}

static hr_status outputs_ask(struct sequence *sequence, struct step *step,
                             const struct hr_wire_step *wire, struct hr_diag *diag) {
        uint32_t most = hr_graph_object(step->object)->output_count;
        bool all = wire->output_count == 0;
        uint32_t count = wire->no_outputs ? 0 : all ? most : wire->output_count;

        step->reply_offset = sequence->results_total;
        for (uint32_t i = 0; i < count; i++) {
                uint32_t position = all ? i : wire->outputs[i];

                if (position >= most)
                        return hr_fail_reason(diag, HR_E_RANGE, "OUTPUT",
                                              "output %u wanted, the graph has %u", position, most);
                if (!all && output_find(step, position))
                        return hr_fail_reason(diag, HR_E_INVALID, "OUTPUT",
                                              "output %u is wanted twice", position);
                step->asked_bytes[i] = hr_graph_object(step->object)->output_bytes[position];
                HR_TRY(output_add(sequence, step, position, diag));
        }
        step->asked_count = count;
        step->reply_bytes = sequence->results_total - step->reply_offset;
        return HR_OK;
}

/* ---- feeds ----------------------------------------------------------------------------------- */

static const struct hr_tensor *tensor_of(const struct step *step, bool output, uint32_t position) {
        const struct hr_graph *graph = hr_graph_entry_graph(hr_graph_object(step->object)->entry);

        return &graph->tensors[output ? graph->outputs[position] : graph->inputs[position]];
}

static hr_status feed_check(const struct sequence *sequence, uint32_t index,
                            const struct hr_wire_feed *feed, struct hr_diag *diag) {
        const struct step *step = &sequence->steps[index], *from;
        const struct hr_tensor *source, *target;

        if (feed->step >= index)
                return hr_fail_reason(diag, HR_E_INVALID, "FEED", "step %u is no earlier one",
                                      feed->step);
        from = &sequence->steps[feed->step];
        if (feed->input >= hr_graph_object(step->object)->input_count ||
            feed->output >= hr_graph_object(from->object)->output_count)
                return hr_fail_reason(diag, HR_E_RANGE, "FEED",
                                      "input %u is fed by output %u of step %u: no such thing",
                                      feed->input, feed->output, feed->step);
        if (step->inputs[feed->input].bytes)
                return hr_fail_reason(diag, HR_E_INVALID, "FEED", "input %u is fed twice",
                                      feed->input);
        source = tensor_of(from, true, feed->output);
        target = tensor_of(step, false, feed->input);
        if (source->type != target->type || hr_tensor_bytes(source) != hr_tensor_bytes(target) ||
            !hr_tensor_is_contiguous(source))
                return hr_fail_reason(diag, HR_E_INVALID, "FEED",
                                      "output %u of step %u is not what input %u takes",
                                      feed->output, feed->step, feed->input);
        return HR_OK;
}

/* Marks the inputs that are fed, and has what feeds them put out. */
static hr_status feeds_note(struct sequence *sequence, uint32_t index, struct hr_diag *diag) {
        const struct hr_wire_step *wire = &sequence->wire.steps[index];
        struct step *step = &sequence->steps[index];

        for (uint32_t i = 0; i < wire->feed_count; i++) {
                const struct hr_wire_feed *feed = &wire->feeds[i];
                struct step *from;

                HR_TRY(feed_check(sequence, index, feed, diag));
                from = &sequence->steps[feed->step];
                step->inputs[feed->input].bytes = 1; /* fed; its size comes with the run */
                step->needs[i] = &from->job;
                if (!output_find(from, feed->output))
                        HR_TRY(output_add(sequence, from, feed->output, diag));
        }
        for (uint32_t i = 0; i < hr_graph_object(step->object)->input_count; i++) {
                uint64_t bytes = hr_graph_object(step->object)->input_bytes[i];

                if (!step->inputs[i].bytes &&
                    !hr_add_u64(sequence->input_total, bytes, &sequence->input_total))
                        return hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT",
                                              "inputs beyond 64 bits");
        }
        return HR_OK;
}

/* ---- taking it in ---------------------------------------------------------------------------- */

static hr_status step_begin(struct hr_request *request, struct sequence *sequence, uint32_t index,
                            struct hr_diag *diag) {
        const struct hr_wire_step *wire = &sequence->wire.steps[index];
        struct step *step = &sequence->steps[index];
        const struct hr_graph_object *object;

        HR_TRY(hr_request_take_object(request, wire->handle, HR_OBJECT_GRAPH, diag));
        step->object = HR_STEAL(request->object);
        step->request = request;
        object = hr_graph_object(step->object);
        step->inputs = take(request, object->input_count + UINT64_C(1), sizeof *step->inputs);
        step->outputs = take(request, object->output_count + UINT64_C(1), sizeof *step->outputs);
        step->asked_bytes = take(request, object->output_count + UINT64_C(1), sizeof(uint64_t));
        step->needs = take(request, wire->feed_count + UINT64_C(1), sizeof *step->needs);
        if (!step->inputs || !step->outputs || !step->asked_bytes || !step->needs)
                return out_of_memory(diag);
        return outputs_ask(sequence, step, wire, diag);
}

static hr_status steps_begin(struct hr_request *request, struct sequence *sequence,
                             struct hr_diag *diag) {
        uint64_t body_max = request->server->config->limits.body_bytes;

        for (uint32_t i = 0; i < sequence->wire.step_count; i++) {
                hr_status status = step_begin(request, sequence, i, diag);

                if (status == HR_OK && sequence->wire.each &&
                    sequence->steps[i].reply_bytes > body_max)
                        status =
                                hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                               "%llu bytes of outputs do not fit one body",
                                               (unsigned long long) sequence->steps[i].reply_bytes);
                if (status != HR_OK)
                        return step_failed(i, status, diag);
        }
        sequence->asked_total = sequence->results_total;
        for (uint32_t i = 0; i < sequence->wire.step_count; i++) {
                hr_status status = feeds_note(sequence, i, diag);

                if (status != HR_OK)
                        return step_failed(i, status, diag);
        }
        return HR_OK;
}

static hr_status regions_take(struct hr_request *request, struct sequence *sequence,
                              struct hr_diag *diag) {
        const struct hr_wire_sequence *wire = &sequence->wire;

        if (wire->input_region != 0)
                HR_TRY(hr_region_take(request->session, wire->input_region, wire->input_offset,
                                      sequence->input_total, false, diag, &sequence->regions[0],
                                      &sequence->input_memory));
        if (wire->output_region == 0)
                return HR_OK;
        if (wire->each)
                return hr_fail_reason(diag, HR_E_INVALID, "REGION",
                                      "outputs that are told step by step go into the body");
        return hr_region_take(request->session, wire->output_region, wire->output_offset,
                              sequence->asked_total, true, diag, &sequence->regions[1],
                              &sequence->output_memory);
}

/* Of what has that offset in the results. */
static uint8_t *result_at(const struct sequence *sequence, uint64_t offset) {
        if (!sequence->output_memory)
                return sequence->results + offset;
        return offset < sequence->asked_total
                       ? sequence->output_memory + offset
                       : sequence->results + (offset - sequence->asked_total);
}

static hr_status results_take(struct hr_request *request, struct sequence *sequence,
                              struct hr_diag *diag) {
        const uint64_t own = sequence->results_total -
                             (sequence->output_memory ? sequence->asked_total : 0);
        uint64_t bytes;

        HR_TRY(hr_session_charge_buffer(request->session, own, diag));
        request->buffer_charge += own;
        if (!hr_align_up_u64(own + 1, RESULT_ALIGNMENT, &bytes))
                return out_of_memory(diag);
        sequence->results = request->reply_memory = aligned_alloc(RESULT_ALIGNMENT, bytes);
        return sequence->results ? HR_OK : out_of_memory(diag);
}

static hr_status sequence_begin(struct hr_request *request, struct hr_wire_span message,
                                const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct sequence *sequence = take(request, 1, sizeof *sequence);
        uint32_t count;

        (void) header;
        if (!sequence)
                return out_of_memory(diag);
        HR_TRY(hr_wire_sequence_decode(message, &request->arena, diag, &sequence->wire));
        hr_origin_parse(sequence->wire.traceparent, &request->origin);
        count = sequence->wire.step_count;
        if (count == 0)
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "a sequence without steps");
        HR_TRY(hr_session_charge(request->session, HR_CHARGE_RUNS, count, limits->session_runs,
                                 diag));
        sequence->charged_runs = count;
        request->server->stats.runs_in_flight += count;
        request->context = sequence;
        sequence->steps = take(request, count, sizeof *sequence->steps);
        if (!sequence->steps)
                return out_of_memory(diag);
        HR_TRY(steps_begin(request, sequence, diag));
        if (sequence->wire.input_bytes != 0 && sequence->wire.input_bytes != sequence->input_total)
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                      "%llu bytes of inputs, the steps take %llu",
                                      (unsigned long long) sequence->wire.input_bytes,
                                      (unsigned long long) sequence->input_total);
        HR_TRY(regions_take(request, sequence, diag));
        HR_TRY(results_take(request, sequence, diag));
        return hr_request_expect_body(request, sequence->input_memory ? 0 : sequence->input_total,
                                      limits->run_bytes, "run_bytes", diag);
}

static void sequence_release(struct hr_request *request) {
        struct sequence *sequence = request->context;

        if (!sequence)
                return;
        for (uint32_t i = 0; sequence->steps && i < sequence->wire.step_count; i++)
                (void) hr_object_unref(sequence->steps[i].object);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(sequence->regions); i++)
                (void) hr_object_unref(sequence->regions[i]);
        hr_session_discharge(request->session, HR_CHARGE_RUNS, sequence->charged_runs);
        request->server->stats.runs_in_flight -= sequence->charged_runs;
}

/* ---- running --------------------------------------------------------------------------------- */

static struct hr_wire_step_reply step_reply(const struct step *step) {
        return (struct hr_wire_step_reply){
                .output_bytes = step->asked_bytes,
                .output_count = step->asked_count,
                .slot = step->job.run.slot,
                .sequence = step->job.run.sequence,
                .run_ns = step->job.run.ended_ns - step->job.run.started_ns,
        };
}

static uint64_t queue_ns(const struct hr_request *request, const struct sequence *sequence) {
        return sequence->steps[0].job.job.started_ns - request->arrived_ns;
}

static hr_status sequence_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct sequence *sequence = request->context;
        uint32_t count = sequence->wire.step_count, first = sequence->wire.each ? count - 1 : 0;
        struct hr_wire_step_reply *replies = take(request, count, sizeof *replies);
        const struct step *from = &sequence->steps[first];
        size_t bytes = 0;

        if (!replies)
                return out_of_memory(diag);
        HR_TRY(hr_region_check(sequence->regions[0], diag));
        HR_TRY(hr_region_check(sequence->regions[1], diag));
        for (uint32_t i = 0; i < count; i++) {
                replies[i] = step_reply(&sequence->steps[i]);
                server->stats.run_ns += replies[i].run_ns;
                hr_splits_count(server, hr_graph_object(sequence->steps[i].object)->plan);
        }
        server->stats.queue_ns += queue_ns(request, sequence);
        const struct hr_wire_sequence_reply reply = {
                .steps = replies + first,
                .step_count = count - first,
                .queue_ns = queue_ns(request, sequence),
                .traceparent = hr_request_traceparent(request),
        };
        HR_TRY(hr_wire_sequence_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                             &bytes));
        if (sequence->output_memory)
                hr_request_reply(request, server->scratch, bytes, NULL, 0);
        else
                hr_request_reply(request, server->scratch, bytes,
                                 sequence->results + from->reply_offset,
                                 sequence->asked_total - from->reply_offset);
        return HR_OK;
}

/* The replies of steps that have ended, in order; the last one's ends the request. */
static void replies_tell(struct hr_request *request, struct sequence *sequence) {
        struct hr_server *server = request->server;

        for (; sequence->told + 1 < sequence->wire.step_count; sequence->told++) {
                const struct step *step = &sequence->steps[sequence->told];
                struct hr_wire_step_reply ended;
                struct hr_wire_sequence_reply reply = {.steps = &ended, .step_count = 1};
                size_t bytes = 0;

                if (!step->done) /* its run may be the engine's or a device's still */
                        return;
                ended = step_reply(step);
                reply.queue_ns = queue_ns(request, sequence);
                if (step->job.job.status != HR_OK || !request->conn ||
                    hr_wire_sequence_reply_encode(&reply, server->scratch,
                                                  sizeof server->scratch, NULL, &bytes) != HR_OK)
                        return;
                hr_conn_send(request->conn,
                             &(struct hr_send){
                                     .header = {.type = (uint8_t) (request->type | HR_FRAME_REPLY),
                                                .flags = HR_FRAME_MORE,
                                                .request_id = request->id},
                                     .message = server->scratch,
                                     .message_bytes = bytes,
                                     .body = sequence->results + step->reply_offset,
                                     .body_bytes = step->reply_bytes,
                             });
        }
}

/* The failure that began it: later steps have only been kept from starting. */
static void failure_choose(struct hr_request *request, const struct sequence *sequence) {
        uint32_t found = HR_DIAG_NO_INDEX;

        for (uint32_t i = 0; i < sequence->wire.step_count; i++) {
                hr_status status = sequence->steps[i].job.job.status;

                if (status == HR_OK)
                        continue;
                if (found == HR_DIAG_NO_INDEX ||
                    (request->job.status == HR_E_CANCELLED && status != HR_E_CANCELLED)) {
                        found = i;
                        request->job.status = status;
                        request->job.diag = sequence->steps[i].job.job.diag;
                }
        }
        if (found == HR_DIAG_NO_INDEX)
                return;
        (void) step_failed(found, request->job.status, &request->job.diag);
        hr_written_note(request, sequence->steps[found].object, &sequence->steps[found].job.run);
}

static void step_done(struct hr_job *job) {
        struct step *step = job->arg;
        struct hr_request *request = step->request;
        struct sequence *sequence = request->context;

        step->done = true;
        hr_request_record_run(request, &step->job);
        hr_evict_lost(request, step->object, job);
        if (sequence->wire.each && request->stopped == HR_OK && !request->failure)
                replies_tell(request, sequence);
        HR_ASSERT(sequence->left > 0);
        if (--sequence->left > 0)
                return;
        failure_choose(request, sequence);
        hr_request_finish(&request->job, sequence_finish);
}

/* Where the bytes are: in the body, or in the results of an earlier step. */
static void inputs_aim(struct sequence *sequence, uint32_t index, const uint8_t **at) {
        const struct hr_wire_step *wire = &sequence->wire.steps[index];
        struct step *step = &sequence->steps[index];
        const struct hr_graph_object *object = hr_graph_object(step->object);

        for (uint32_t i = 0; i < wire->feed_count; i++) {
                const struct hr_wire_feed *feed = &wire->feeds[i];

                step->inputs[feed->input].data =
                        output_find(&sequence->steps[feed->step], feed->output)->data;
        }
        for (uint32_t i = 0; i < object->input_count; i++) {
                step->inputs[i].bytes = object->input_bytes[i];
                if (step->inputs[i].data)
                        continue;
                step->inputs[i].data = *at;
                *at += object->input_bytes[i];
        }
}

static void step_prepare(struct hr_request *request, struct sequence *sequence, uint32_t index,
                         const uint8_t **at) {
        struct step *step = &sequence->steps[index];

        for (uint32_t i = 0; i < step->output_count; i++)
                step->outputs[i].data = result_at(sequence, (uintptr_t) step->outputs[i].data);
        inputs_aim(sequence, index, at);
        step->job = (struct hr_run_job){
                .job = {.kind = HR_JOB_RUN,
                        .lane = &request->session->lane,
                        .done = step_done,
                        .arg = step,
                        .deadline_ns = request->deadline_ns},
                .bound = &hr_graph_object(step->object)->bound->bound,
                .ticket = {.priority = sequence->wire.priority,
                           .share = &request->session->share},
                .chain = &sequence->chain,
                .needs = step->needs,
                .need_count = sequence->wire.steps[index].feed_count,
                .run = {.inputs = step->inputs,
                        .outputs = step->outputs,
                        .output_count = step->output_count,
                        .tag = request->tag},
        };
}

static hr_status sequence_start(struct hr_request *request, struct hr_diag *diag) {
        struct sequence *sequence = request->context;
        const uint8_t none = 0, *at = request->body_memory ? request->body_memory : &none;

        (void) diag;
        if (sequence->input_memory)
                at = sequence->input_memory;
        for (uint32_t i = 0; i < sequence->wire.step_count; i++)
                step_prepare(request, sequence, i, &at);
        sequence->left = sequence->wire.step_count;
        request->phase = HR_REQUEST_WORKING;
        request->job.kind = HR_JOB_SYNC; /* of a lane, as far as stopping it goes */
        request->job.arg = request;
        request->active = &request->job;
        for (uint32_t i = 0; i < sequence->wire.step_count; i++) {
                sequence->steps[i].posted = true;
                hr_engine_post(request->server->engine, &sequence->steps[i].job.job);
        }
        return HR_OK;
}

static void sequence_stop(struct hr_request *request) {
        struct sequence *sequence = request->context;
        hr_status status = request->stopped != HR_OK ? request->stopped : HR_E_CANCELLED;

        for (uint32_t i = 0; sequence && sequence->steps && i < sequence->wire.step_count; i++) {
                struct step *step = &sequence->steps[i];

                if (step->posted && !step->done)
                        hr_engine_cancel(request->server->engine, &step->job.job, status);
        }
}

const struct hr_method hr_sequence_methods[] = {
        {.type = HR_FRAME_SEQUENCE,
         .name = "SEQUENCE",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = sequence_begin,
         .start = sequence_start,
         .release = sequence_release,
         .stop = sequence_stop},
        {0},
};
