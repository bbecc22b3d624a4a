/*
 * RUN, TAP and SYNC.
 *
 * A run's memory (inputs, outputs, the executor's struct) is recycled within its graph: in a steady
 * state a run allocates nothing, its inputs are read from the socket into the memory the device
 * reads, and its outputs are written to the socket from the memory the device wrote.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/bind.h"
#include "daemon/evict.h"
#include "daemon/region.h"
#include "daemon/rpc.h"
#include "daemon/tap.h"

#define RUN_ALIGNMENT 64U
#define IDLE_RUN_BYTES (UINT64_C(16) << 10)

/* ---- run memory ------------------------------------------------------------------------------ */

static uint64_t run_bytes(const struct hr_graph_object *object) {
        return object->input_total + object->output_total;
}

static struct hr_graph_run *run_free(struct hr_graph_object *object, struct hr_graph_run *run) {
        if (!run)
                return NULL;
        hr_session_discharge(object->base.session, HR_CHARGE_BUFFER_BYTES,
                             run_bytes(object) + run->trace_bytes + run->tap_bytes);
        free(run->tap_data);
        free(run->trace);
        free(run->inputs);
        free(run->outputs);
        free(run->input_list);
        free(run->output_list);
        free(run->output_bytes);
        free(run);
        return NULL;
}

/* At least one byte, so that NULL means "no memory". */
static uint8_t *buffer_new(uint64_t bytes) {
        uint64_t rounded;

        if (!hr_align_up_u64(HR_MAX(bytes, (uint64_t) 1), RUN_ALIGNMENT, &rounded))
                return NULL;
        return aligned_alloc(RUN_ALIGNMENT, rounded);
}

static void inputs_lie_at(struct hr_graph_run *run, const struct hr_graph_object *object,
                          uint8_t *at) {
        for (uint32_t i = 0; i < object->input_count; i++) {
                run->input_list[i] = (struct hr_run_input){at, object->input_bytes[i]};
                at += object->input_bytes[i];
        }
}

static hr_status run_new(struct hr_graph_object *object, struct hr_diag *diag,
                         struct hr_graph_run **ret_run) {
        struct hr_session *session = object->base.session;
        struct hr_graph_run *run;

        HR_TRY(hr_session_charge_buffer(session, run_bytes(object), diag));
        run = calloc(1, sizeof *run);
        if (!run) {
                hr_session_discharge(session, HR_CHARGE_BUFFER_BYTES, run_bytes(object));
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a run");
        }
        run->inputs = buffer_new(object->input_total);
        run->outputs = buffer_new(object->output_total);
        run->input_list = calloc((size_t) object->input_count + 1, sizeof *run->input_list);
        run->output_list = calloc((size_t) object->output_count + 1, sizeof *run->output_list);
        run->output_bytes = calloc((size_t) object->output_count + 1, sizeof *run->output_bytes);
        if (!run->inputs || !run->outputs || !run->input_list || !run->output_list ||
            !run->output_bytes) {
                run = run_free(object, run);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a run of %llu bytes",
                               (unsigned long long) run_bytes(object));
        }
        inputs_lie_at(run, object, run->inputs);
        *ret_run = run;
        return HR_OK;
}

static hr_status run_take(struct hr_graph_object *object, struct hr_diag *diag,
                          struct hr_graph_run **ret_run) {
        struct hr_list *link = hr_list_pop(&object->idle_runs);

        if (!link)
                return run_new(object, diag, ret_run);
        object->idle_run_count--;
        *ret_run = HR_CONTAINER_OF(link, struct hr_graph_run, link);
        return HR_OK;
}

/* Keeps as many as can be in flight, and one more that is being received; small ones also for a
 * client that has many waiting. */
static void run_give(struct hr_graph_object *object, struct hr_graph_run *run) {
        const struct hr_pipeline *pipeline = object->bound->bound.pipeline;

        if (object->idle_run_count > hr_pipeline_copies(pipeline) &&
            object->idle_run_count >= IDLE_RUN_BYTES / HR_MAX(run_bytes(object), RUN_ALIGNMENT)) {
                (void) run_free(object, run);
                return;
        }
        hr_list_prepend(&object->idle_runs, &run->link); /* what was used last is in the caches */
        object->idle_run_count++;
}

void hr_graph_object_free(struct hr_object *base) {
        struct hr_graph_object *object = hr_graph_object(base);
        struct hr_list *link;

        while ((link = hr_list_pop(&object->idle_runs)))
                (void) run_free(object, HR_CONTAINER_OF(link, struct hr_graph_run, link));
        hr_session_discharge(object->base.session, HR_CHARGE_BUFFER_BYTES, object->measure_charge);
        hr_session_discharge(object->base.session, HR_CHARGE_PLAN_BYTES, object->plan_charge);
        free(object->input_bytes);
        free(object->output_bytes);
        free(object->shares);
        free(object->leaf_bytes);
        free(object);
}

/* ---- RUN ------------------------------------------------------------------------------------- */

static void output_want(struct hr_graph_run *run, uint32_t index,
                        const struct hr_graph_object *object, uint32_t position) {
        const struct hr_graph *graph = hr_graph_entry_graph(object->entry);
        uint64_t bytes = object->output_bytes[position];

        run->output_list[index] = (struct hr_run_output){
                .tensor = graph->outputs[position],
                .data = run->outputs + run->wanted_bytes,
                .bytes = bytes,
        };
        run->output_bytes[index] = bytes;
        run->wanted_bytes += bytes;
}

/* Outputs lie one behind the other in the run's memory, in the order asked for. */
static hr_status outputs_choose(struct hr_graph_run *run, const struct hr_graph_object *object,
                                const struct hr_wire_run *wire, struct hr_diag *diag) {
        uint32_t count = wire->output_count;

        run->wanted_bytes = 0;
        if (wire->no_outputs || count == 0) {
                count = wire->no_outputs ? 0 : object->output_count;
                for (uint32_t i = 0; i < count; i++)
                        output_want(run, i, object, i);
                run->job.run.output_count = count;
                return HR_OK;
        }
        if (count > object->output_count)
                return hr_fail_reason(diag, HR_E_INVALID, "OUTPUT",
                                      "%u outputs wanted, the graph has %u", count,
                                      object->output_count);
        for (uint32_t i = 0; i < count; i++) {
                uint32_t position = wire->outputs[i];

                if (position >= object->output_count)
                        return hr_fail_reason(diag, HR_E_RANGE, "OUTPUT",
                                              "output %u wanted, the graph has %u", position,
                                              object->output_count);
                if (object->output_bytes[position] > object->output_total - run->wanted_bytes)
                        return hr_fail_reason(diag, HR_E_INVALID, "OUTPUT",
                                              "output %u is wanted twice", position);
                output_want(run, i, object, position);
        }
        run->job.run.output_count = count;
        return HR_OK;
}

/* Inputs and outputs that lie in regions of the client's. */
static hr_status regions_take(struct hr_request *request, struct hr_graph_run *run,
                              const struct hr_wire_run *wire, struct hr_diag *diag) {
        const struct hr_graph_object *object = hr_graph_object(request->object);
        uint8_t *memory = NULL;

        if (wire->input_region != 0) {
                HR_TRY(hr_region_take(request->session, wire->input_region, wire->input_offset,
                                      object->input_total, false, diag, &run->regions[0], &memory));
                inputs_lie_at(run, object, memory);
        }
        if (wire->output_region == 0)
                return HR_OK;
        if (wire->trace)
                return hr_fail_reason(diag, HR_E_INVALID, "REGION",
                                      "a traced run's outputs go into the body");
        HR_TRY(hr_region_take(request->session, wire->output_region, wire->output_offset,
                              run->wanted_bytes, true, diag, &run->regions[1], &memory));
        for (uint32_t i = 0; i < run->job.run.output_count; i++) {
                run->output_list[i].data = memory;
                memory += run->output_list[i].bytes;
        }
        return HR_OK;
}

static hr_status run_begin(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct hr_graph_object *object;
        struct hr_graph_run *run = NULL;
        struct hr_wire_run wire;

        (void) header;
        HR_TRY(hr_wire_run_decode(message, &request->arena, diag, &wire));
        hr_origin_parse(wire.traceparent, &request->origin);
        HR_TRY(hr_request_take_object(request, wire.handle, HR_OBJECT_GRAPH, diag));
        object = hr_graph_object(request->object);
        if (wire.input_bytes != 0 && wire.input_bytes != object->input_total)
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                      "%llu bytes of inputs, the graph takes %llu",
                                      (unsigned long long) wire.input_bytes,
                                      (unsigned long long) object->input_total);
        HR_TRY(hr_session_charge(request->session, HR_CHARGE_RUNS, 1, limits->session_runs, diag));
        if (run_take(object, diag, &run) != HR_OK) {
                hr_session_discharge(request->session, HR_CHARGE_RUNS, 1);
                return diag->status;
        }
        request->context = run;
        request->server->stats.runs_in_flight++;
        HR_TRY(outputs_choose(run, object, &wire, diag));
        run->job.ticket = (struct hr_ticket){.priority = wire.priority,
                                              .share = &request->session->share};
        run->ended_well = false;
        run->traced = wire.trace;
        if (run->traced)
                HR_TRY(hr_run_trace_expect(object, run, diag));
        run->observed = wire.observe;
        if (run->observed)
                HR_TRY(hr_tap_expect(object, run, diag));
        HR_TRY(regions_take(request, run, &wire, diag));
        request->body = run->inputs;
        request->body_total = run->regions[0] ? 0 : object->input_total;
        return HR_OK;
}

static void run_release(struct hr_request *request) {
        struct hr_graph_run *run = request->context;

        if (!run)
                return;
        if (run->ended_well) { /* and the last byte of its outputs is out */
                const uint64_t now_ns = hr_clock_now_ns();

                hr_stage_add(&request->server->stats.stages[HR_STAGE_READ_BACK],
                             now_ns - run->job.job.ended_ns);
                hr_request_record(request, HR_SPAN_REPLY, run->job.job.ended_ns, now_ns);
        }
        if (run->regions[0])
                inputs_lie_at(run, hr_graph_object(request->object), run->inputs);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(run->regions); i++)
                run->regions[i] = hr_object_unref(run->regions[i]);
        run_give(hr_graph_object(request->object), request->context);
        hr_session_discharge(request->session, HR_CHARGE_RUNS, 1);
        request->server->stats.runs_in_flight--;
}

void hr_splits_count(struct hr_server *server, const struct hr_plan *plan) {
        struct hr_plan_summary summary = hr_plan_summary(plan);

        for (uint32_t i = 0; i < summary.device_count; i++)
                server->stats.device_splits[i] += summary.device_splits[i];
}

static void stages_add(struct hr_server *server, const struct hr_request *request,
                       const struct hr_run_job *run) {
        struct hr_stage *stages = server->stats.stages;

        hr_stage_add(&stages[HR_STAGE_UPLOAD], run->job.posted_ns - request->arrived_ns);
        hr_stage_add(&stages[HR_STAGE_QUEUE], run->job.started_ns - run->job.posted_ns);
        hr_stage_add(&stages[HR_STAGE_COMPUTE], run->run.ended_ns - run->run.started_ns);
}

static hr_status run_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct hr_graph_run *run = request->context;
        const struct hr_expert_tally *experts = &run->job.run.experts;
        const struct hr_wire_run_reply reply = {
                .output_bytes = run->output_bytes,
                .output_count = run->job.run.output_count,
                .queue_ns = run->job.job.started_ns - request->arrived_ns,
                .run_ns = run->job.run.ended_ns - run->job.run.started_ns,
                .slot = run->job.run.slot,
                .sequence = run->job.run.sequence,
                .taps = run->observed ? run->tap.count : 0,
                .tap_ns = run->observed ? run->tap.waited_ns : 0,
                .trace_bytes = run->traced ? request->reply_bytes - run->wanted_bytes : 0,
                .copied_bytes = hr_run_copied_bytes(&run->job.run),
                .expert_hits = atomic_load(&experts->hits),
                .expert_misses = atomic_load(&experts->misses),
                .expert_copies = atomic_load(&experts->copies),
                .expert_bytes = atomic_load(&experts->bytes),
                .moves = run->job.moves,
                .traceparent = hr_request_traceparent(request),
        };
        size_t bytes = 0;

        HR_TRY(hr_region_check(run->regions[0], diag));
        HR_TRY(hr_region_check(run->regions[1], diag));
        server->stats.queue_ns += reply.queue_ns;
        server->stats.run_ns += reply.run_ns;
        stages_add(server, request, &run->job);
        run->ended_well = true;
        hr_splits_count(server, hr_graph_object(request->object)->plan);
        HR_TRY(hr_wire_run_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                        &bytes));
        if (run->traced)
                hr_request_reply(request, server->scratch, bytes, request->reply_memory,
                                 request->reply_bytes);
        else
                hr_request_reply(request, server->scratch, bytes, run->outputs,
                                 run->regions[1] ? 0 : run->wanted_bytes);
        return HR_OK;
}

static void traced_done(struct hr_job *job) {
        hr_request_finish(job, run_finish);
}

static hr_status run_trace(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_run_trace_post(request, traced_done);
        return HR_OK;
}

void hr_written_note(struct hr_request *request, struct hr_object *object,
                     const struct hr_run *run) {
        uint32_t most = hr_graph_entry_graph(hr_graph_object(object)->entry)->leaf_count;

        if (!run->pipeline || request->written)
                return;
        request->written = hr_arena_alloc(&request->arena, ((uint64_t) most + 1) * sizeof(uint32_t),
                                          sizeof(uint32_t));
        if (request->written)
                request->written_count = hr_run_written_states(run, request->written, most);
}

static void run_end(struct hr_job *job) {
        struct hr_request *request = job->arg;
        const struct hr_graph_run *run = request->context;

        hr_request_record(request, HR_SPAN_UPLOAD, request->arrived_ns, job->posted_ns);
        hr_request_record_run(request, &run->job);
        if (job->status != HR_OK)
                hr_written_note(request, request->object, &run->job.run);
        hr_evict_lost(request, request->object, job);
        hr_request_finish(job, run->traced ? run_trace : run_finish);
}

static void run_done(struct hr_job *job) {
        const struct hr_request *request = job->arg;
        struct hr_graph_run *run = request->context;

        if (!run->observed || !hr_tap_defer(run, run_end))
                run_end(job);
}

static hr_status run_start(struct hr_request *request, struct hr_diag *diag) {
        struct hr_graph_object *object = hr_graph_object(request->object);
        struct hr_graph_run *run = request->context;
        struct hr_run *inner = &run->job.run;

        (void) diag;
        run->job.bound = &object->bound->bound;
        inner->inputs = run->input_list;
        inner->outputs = run->output_list;
        inner->trace = run->traced ? run->trace : NULL;
        inner->tag = request->tag;
        inner->pipeline = NULL; /* until it has been started */
        inner->started_ns = inner->ended_ns = 0;
        run->job.at_tap = NULL;
        if (run->observed)
                hr_tap_begin(request, run);
        run->job.job.kind = HR_JOB_RUN;
        run->job.job.lane = &request->session->lane;
        run->job.job.done = run_done;
        hr_request_post(request, &run->job.job);
        return HR_OK;
}

/* ---- TAP ------------------------------------------------------------------------------------- */

static hr_status tap_begin(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag) {
        struct hr_wire_tap *answer = hr_arena_alloc(&request->arena, sizeof *answer, 8);

        (void) header;
        if (!answer)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = answer;
        return hr_wire_tap_decode(message, diag, answer);
}

static hr_status tap_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_wire_tap answer = *(const struct hr_wire_tap *) request->context;
        struct hr_request *target = hr_conn_find(request->conn, answer.run);
        uint8_t message[16];
        size_t bytes = 0;
        bool found = target && target->type == HR_FRAME_RUN &&
                     target->phase == HR_REQUEST_WORKING &&
                     hr_tap_answer(target, answer.tap, answer.stop);

        HR_TRY(hr_wire_varint_encode(found, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, NULL, 0);
        return HR_OK;
}

/* ---- SYNC ------------------------------------------------------------------------------------ */

static hr_status sync_finish(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_reply(request, NULL, 0, NULL, 0);
        return HR_OK;
}

static void sync_done(struct hr_job *job) {
        hr_request_finish(job, sync_finish);
}

static hr_status sync_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        request->job.kind = HR_JOB_SYNC;
        request->job.lane = &request->session->lane;
        request->job.done = sync_done;
        hr_request_post(request, &request->job);
        return HR_OK;
}

const struct hr_method hr_run_methods[] = {
        {.type = HR_FRAME_RUN,
         .name = "RUN",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = run_begin,
         .start = run_start,
         .release = run_release},
        {.type = HR_FRAME_TAP,
         .name = "TAP",
         .needs_session = true,
         .in_drain = true,
         .permissions = HR_PERMIT_RUN,
         .begin = tap_begin,
         .start = tap_start},
        {.type = HR_FRAME_SYNC,
         .name = "SYNC",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = hr_method_begin_empty,
         .start = sync_start},
        {0},
};
