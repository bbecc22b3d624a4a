/*
 * EXPLAIN, and the traces of runs: what is known of a graph's plan and of its runs, as messages.
 *
 * Both are put together on the engine's thread, since they can be long; the figures of traced runs
 * belong to that thread, too. The loop only charges and replies.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/bind.h"
#include "daemon/rpc.h"
#include "proto/fields.h"
#include "proto/operate.h"

/* The message in memory of its own, behind room for `before` bytes. Becomes the reply's memory. */
static hr_status reply_encode(struct hr_request *request, const struct hr_wire_field *fields,
                              uint32_t count, uint64_t before, struct hr_diag *diag) {
        size_t bytes = 0;
        uint8_t *memory;

        HR_TRY(hr_wire_fields_encode(fields, count, NULL, 0, diag, &bytes));
        memory = malloc(before + bytes + 1);
        if (!memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply of %zu bytes", bytes);
        request->reply_memory = memory;
        request->reply_bytes = before + bytes;
        return hr_wire_fields_encode(fields, count, memory + before, bytes, diag, &bytes);
}

/* ---- EXPLAIN --------------------------------------------------------------------------------- */

/* Fields of a message, in the order in which they are put. */
struct fields {
        struct hr_wire_field at[72];
        uint32_t count;
};

static void put(struct fields *fields, uint32_t number, hr_wire_form form, const void *data,
                uint64_t count) {
        HR_ASSERT(fields->count < HR_ARRAY_LENGTH(fields->at));
        fields->at[fields->count++] = (struct hr_wire_field){number, form, data, count};
}

#define NUMBER(field, value) put(fields, HR_WIRE_EXPLAIN_##field, HR_WIRE_NUMBER, NULL, value)
#define TEXT(field, text) put(fields, HR_WIRE_EXPLAIN_##field, HR_WIRE_TEXT, text, 0)
#define TEXTS(field, texts, count) put(fields, HR_WIRE_EXPLAIN_##field, HR_WIRE_TEXTS, texts, count)
#define WORDS(field, words, count) put(fields, HR_WIRE_EXPLAIN_##field, HR_WIRE_WORDS, words, count)
#define LONGS(field, longs, count) put(fields, HR_WIRE_EXPLAIN_##field, HR_WIRE_LONGS, longs, count)
#define NAMES(field, list) TEXTS(field, (list).names, (list).count)

static void put_plan(struct fields *fields, const struct hr_explanation *e,
                     const struct hr_graph_object *object) {
        TEXT(RULES, e->rules);
        NUMBER(LEAF_COUNT, e->leaf_count);
        NUMBER(NODE_COUNT, e->node_count);
        NUMBER(N_COPIES, e->n_copies);
        NUMBER(PLANNED_COPIES, e->planned_copies);
        TEXT(COPIES_REASON, e->copies_reason);
        TEXT(UPLOADS, e->uploads);
        TEXT(ORIGIN, hr_plan_origin_name(object->origin));
        NUMBER(FIRST_DIFFERENT, object->first_different);
        NUMBER(COPIED_BYTES, e->copied_bytes);
        NUMBER(STAGING_BYTES, e->staging_bytes);
        NUMBER(FALLBACK_NODES, e->fallback_nodes);
        NAMES(CAUSE_NAME, e->cause_names);
        NAMES(RULE_NAME, e->rule_names);
        NAMES(REASON_NAME, e->reason_names);
        NAMES(METHOD_NAME, e->method_names);
        NAMES(WHERE_NAME, e->where_names);
        WORDS(RULE_COUNT, e->rule_count, e->rule_names.count);
}

/* `leaf_bytes`: weights of all devices, then states. */
static void put_devices(struct fields *fields, const struct hr_explanation *e,
                        const uint64_t *leaf_bytes) {
        uint32_t count = e->device_names.count;

        NAMES(DEVICE_NAME, e->device_names);
        TEXTS(DEVICE_TYPE, e->device_types, count);
        TEXTS(DEVICE_MEMORY, e->memory_kinds, count);
        WORDS(DEVICE_SPLITS, e->device_splits, count);
        WORDS(DEVICE_NODES, e->device_nodes, count);
        LONGS(DEVICE_WEIGHTS_BYTES, leaf_bytes, count);
        LONGS(DEVICE_STATE_BYTES, leaf_bytes + count, count);
        LONGS(DEVICE_COMPUTE_BYTES, e->compute_bytes, count);
        LONGS(DEVICE_SCRATCH_BYTES, e->scratch_bytes, count);
        LONGS(DEVICE_COPIES_BYTES, e->copies_bytes, count);
        LONGS(DEVICE_STAGING_BYTES, e->device_staging, count);
}

/* `lengths` of the tensors' names. */
static void put_tensors(struct fields *fields, const struct hr_explanation *e,
                        const struct hr_graph *graph, const uint32_t *lengths) {
        uint32_t count = e->leaf_count + e->node_count;

        WORDS(NAME_LENGTH, lengths, count);
        put(fields, HR_WIRE_EXPLAIN_NAMES, HR_WIRE_BYTES, graph->names, graph->name_offsets[count]);
        WORDS(OP, e->op, e->node_count);
        WORDS(TENSOR_DEVICE, e->device, count);
        WORDS(TENSOR_CAUSE, e->cause, count);
        WORDS(TENSOR_NOTES, e->notes, count);
        WORDS(TENSOR_ROOT, e->root, count);
        LONGS(TENSOR_BYTES, e->bytes, count);
        WORDS(TENSOR_WHERE, e->place.where, count);
        LONGS(TENSOR_OFFSET, e->place.offset, count);
}

static void put_splits(struct fields *fields, const struct hr_explanation *e) {
        WORDS(SPLIT_DEVICE, e->split_device, e->split_count);
        WORDS(SPLIT_START, e->split_start, e->split_count);
        WORDS(SPLIT_END, e->split_end, e->split_count);
        WORDS(SPLIT_REASON, e->split_reason, e->split_count);
        WORDS(SPLIT_INPUTS, e->split_inputs, e->split_count);
        WORDS(SPLIT_STEPS, e->split_steps, e->split_count);
        WORDS(STEP_NODE, e->step_node, e->step_count);
        WORDS(STEP_JOINED, e->step_joined, e->step_count);
        WORDS(COPY_TENSOR, e->copy_tensor, e->copy_count);
        WORDS(COPY_SOURCE, e->copy_source, e->copy_count);
        WORDS(COPY_METHOD, e->copy_method, e->copy_count);
        WORDS(COPY_BACK, e->copy_back, e->copy_count);
        WORDS(COPY_EARLY, e->copy_early, e->copy_count);
        LONGS(COPY_BYTES, e->copy_bytes, e->copy_count);
        WORDS(COPY_WHERE, e->copy_place.where, e->copy_count);
        LONGS(COPY_OFFSET, e->copy_place.offset, e->copy_count);
        WORDS(GROUP_IDS, e->group_ids, e->group_count);
        WORDS(GROUP_DEVICE, e->group_device, e->group_count);
        WORDS(GROUP_EXPERTS, e->group_experts, e->group_count);
        WORDS(GROUP_PLACES, e->group_places, e->group_count);
        WORDS(GROUP_RESIDENT, e->group_resident, e->group_count);
        WORDS(GROUP_WEIGHTS, e->group_weights, e->group_count);
        LONGS(GROUP_USES, e->group_uses, e->group_uses_count);
}

static void put_measured(struct fields *fields, const struct hr_explanation *e,
                         const struct hr_measure_medians *medians) {
        uint32_t count = medians->runs ? e->split_count : 0;

        NUMBER(MEASURED_RUNS, medians->runs);
        NUMBER(MEASURED_RUN_NS, medians->run_ns);
        LONGS(SPLIT_COMPUTE_NS, medians->compute_ns, count);
        LONGS(SPLIT_COPY_NS, medians->copy_ns, count);
        LONGS(SPLIT_WAIT_NS, medians->wait_ns, count);
        LONGS(SPLIT_MOVED_BYTES, medians->bytes, count);
}

static hr_status explanation_encode(struct hr_request *request, struct hr_explanation *e,
                                    const struct hr_measure_medians *medians,
                                    struct hr_diag *diag) {
        const struct hr_graph_object *object = hr_graph_object(request->object);
        const struct hr_graph *graph = hr_graph_entry_graph(object->entry);
        uint32_t tensors = e->leaf_count + e->node_count;
        uint32_t *lengths = hr_arena_alloc(&e->arena, (uint64_t) tensors * sizeof *lengths, 8);
        uint32_t devices = e->device_names.count;
        uint64_t *leaf_bytes = hr_arena_alloc(&e->arena, 2 * sizeof *leaf_bytes * devices, 8);
        struct fields fields = {0};

        if (!lengths || !leaf_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        for (uint32_t i = 0; i < devices; i++) {
                leaf_bytes[i] = object->leaf_bytes[i].weights;
                leaf_bytes[devices + i] = object->leaf_bytes[i].states;
        }
        for (uint32_t i = 0; i < tensors; i++)
                lengths[i] = (uint32_t) (graph->name_offsets[i + 1] - graph->name_offsets[i]);
        put_plan(&fields, e, object);
        put_devices(&fields, e, leaf_bytes);
        put_tensors(&fields, e, graph, lengths);
        put_splits(&fields, e);
        put_measured(&fields, e, medians);
        return reply_encode(request, fields.at, fields.count, 0, diag);
}

/* Thread: engine. */
static hr_status explain_try(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_graph_object *object = hr_graph_object(request->object);
        struct hr_measure_medians medians = {0};
        struct hr_explanation explanation;
        hr_status status;

        hr_engine_turn_take(request->server->engine); /* what it holds changes as it moves */
        status = hr_pipeline_explain(object->bound->bound.pipeline, diag, &explanation);
        hr_engine_turn_give(request->server->engine);
        HR_TRY(status);
        if (object->measure)
                status = hr_measure_medians(object->measure, &explanation.arena, diag, &medians);
        if (status == HR_OK)
                status = explanation_encode(request, &explanation, &medians, diag);
        hr_explanation_deinit(&explanation);
        return status;
}

/* Thread: engine. */
static void explain_work(struct hr_job *job) {
        job->status = explain_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

static hr_status explain_finish(struct hr_request *request, struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static void explain_done(struct hr_job *job) {
        hr_request_finish(job, explain_finish);
}

/* A graph that PLANS lists: of any session for who may see it. HR_E_NOT_FOUND (reason GRAPH). */
static hr_status take_listed(struct hr_request *request, const struct hr_wire_explain *explain,
                             struct hr_diag *diag) {
        HR_LIST_FOR_EACH(link, &request->server->sessions) {
                const struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);
                const struct hr_handle_slot *slot = session->handles.slots;

                if (session->number != explain->session || explain->graph == 0 ||
                    explain->graph > session->handles.slot_count ||
                    (!hr_request_is_whole(request) &&
                     session->principal != request->session->principal))
                        continue;
                slot += explain->graph - 1;
                if (slot->generation == 0 || slot->object->kind != HR_OBJECT_GRAPH)
                        continue;
                request->object = hr_object_ref(slot->object);
                return HR_OK;
        }
        return hr_fail_reason(diag, HR_E_NOT_FOUND, "GRAPH", "no such graph in that session");
}

static hr_status explain_begin(struct hr_request *request, struct hr_wire_span message,
                               const struct hr_frame_header *header, struct hr_diag *diag) {
        struct hr_wire_explain explain;

        (void) header;
        HR_TRY(hr_wire_explain_decode(message, diag, &explain));
        if (explain.session != 0)
                return take_listed(request, &explain, diag);
        HR_TRY(hr_principal_check(request->session->principal, HR_PERMIT_RUN, diag));
        return hr_request_take_object(request, explain.handle, HR_OBJECT_GRAPH, diag);
}

static hr_status explain_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, explain_work, explain_done);
        return HR_OK;
}

/* ---- traces ---------------------------------------------------------------------------------- */

hr_status hr_run_trace_expect(struct hr_graph_object *object, struct hr_graph_run *run,
                              struct hr_diag *diag) {
        struct hr_session *session = object->base.session;
        uint32_t commands = hr_pipeline_command_count(object->bound->bound.pipeline);
        uint64_t bytes = (uint64_t) commands * sizeof *run->trace;
        uint64_t measure = hr_measure_bytes(hr_plan_summary(object->plan).split_count);

        if (!object->measure_charge) {
                HR_TRY(hr_session_charge_buffer(session, measure, diag));
                object->measure_charge = measure;
        }
        if (run->trace)
                return HR_OK;
        HR_TRY(hr_session_charge_buffer(session, bytes, diag));
        run->trace = calloc(1, bytes + 1);
        if (!run->trace) {
                hr_session_discharge(session, HR_CHARGE_BUFFER_BYTES, bytes);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a trace of %u commands",
                               commands);
        }
        run->trace_bytes = bytes;
        return HR_OK;
}

/* NULL without memory. */
static const char *queue_name(const struct hr_device *device, bool uploads,
                              struct hr_arena *arena) {
        static const char suffix[] = " uploads";
        size_t bytes = strlen(device->props.name);
        char *name;

        if (!uploads)
                return device->props.name;
        name = hr_arena_alloc(arena, bytes + sizeof suffix, 1);
        if (name) {
                memcpy(name, device->props.name, bytes);
                memcpy(name + bytes, suffix, sizeof suffix);
        }
        return name;
}

static hr_status trace_encode(struct hr_request *request, const struct hr_trace *trace,
                              struct hr_arena *arena, struct hr_diag *diag) {
        const struct hr_graph_run *run = request->context;
        const struct hr_fleet *fleet = hr_engine_fleet(request->server->engine);
        uint32_t devices = hr_fleet_device_count(fleet);
        const char *kinds[HR_TRACE_KINDS];
        uint32_t queues = devices;
        const char **names = hr_arena_alloc(arena, 2 * devices * sizeof *names, 8);

        if (!names)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        for (uint32_t i = 0; i < trace->count; i++)
                queues = trace->device[i] < devices ? queues : 2 * devices;
        for (uint32_t i = 0; i < queues; i++) {
                names[i] = queue_name(hr_fleet_device(fleet, i % devices), i >= devices, arena);
                if (!names[i])
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        }
        for (int i = 0; i < HR_TRACE_KINDS; i++)
                kinds[i] = hr_trace_kind_name((hr_trace_kind) i);
        const struct hr_wire_field fields[] = {
                {HR_WIRE_TRACE_SEQUENCE, HR_WIRE_NUMBER, NULL, trace->sequence},
                {HR_WIRE_TRACE_SLOT, HR_WIRE_NUMBER, NULL, trace->slot},
                {HR_WIRE_TRACE_N_COPIES, HR_WIRE_NUMBER, NULL, trace->n_copies},
                {HR_WIRE_TRACE_ARRIVED_NS, HR_WIRE_NUMBER, NULL, request->arrived_ns},
                {HR_WIRE_TRACE_STARTED_NS, HR_WIRE_NUMBER, NULL, trace->started_ns},
                {HR_WIRE_TRACE_ENDED_NS, HR_WIRE_NUMBER, NULL, trace->ended_ns},
                {HR_WIRE_TRACE_SPLIT_COUNT, HR_WIRE_NUMBER, NULL, trace->split_count},
                {HR_WIRE_TRACE_SLOT_EVENT_COUNT, HR_WIRE_NUMBER, NULL, trace->slot_event_count},
                {HR_WIRE_TRACE_KIND_NAME, HR_WIRE_TEXTS, kinds, HR_TRACE_KINDS},
                {HR_WIRE_TRACE_DEVICE_NAME, HR_WIRE_TEXTS, names, queues},
                {HR_WIRE_TRACE_KIND, HR_WIRE_WORDS, trace->kind, trace->count},
                {HR_WIRE_TRACE_DEVICE, HR_WIRE_WORDS, trace->device, trace->count},
                {HR_WIRE_TRACE_SPLIT, HR_WIRE_WORDS, trace->split, trace->count},
                {HR_WIRE_TRACE_SUBJECT, HR_WIRE_WORDS, trace->subject, trace->count},
                {HR_WIRE_TRACE_BYTES, HR_WIRE_LONGS, trace->bytes, trace->count},
                {HR_WIRE_TRACE_BEGIN_NS, HR_WIRE_LONGS, trace->begin_ns, trace->count},
                {HR_WIRE_TRACE_END_NS, HR_WIRE_LONGS, trace->end_ns, trace->count},
        };

        return reply_encode(request, fields, HR_ARRAY_LENGTH(fields), run->wanted_bytes, diag);
}

/* Thread: engine. */
static hr_status trace_try(struct hr_request *request, struct hr_diag *diag) {
        struct hr_graph_object *object = hr_graph_object(request->object);
        const struct hr_graph_run *run = request->context;
        struct hr_arena arena;
        struct hr_trace trace;
        hr_status status;

        hr_arena_init(&arena, 0);
        status = hr_run_trace(&run->job.run, &arena, diag, &trace);
        if (status == HR_OK && !object->measure)
                status = hr_measure_new(trace.split_count, diag, &object->measure);
        if (status == HR_OK) {
                hr_measure_add(object->measure, &trace);
                status = trace_encode(request, &trace, &arena, diag);
        }
        hr_arena_deinit(&arena);
        if (status == HR_OK)
                memcpy(request->reply_memory, run->outputs, run->wanted_bytes);
        return status;
}

/* Thread: engine. */
static void trace_work(struct hr_job *job) {
        job->status = trace_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

void hr_run_trace_post(struct hr_request *request, hr_job_fn done) {
        hr_request_post_work(request, trace_work, done);
}

const struct hr_method hr_explain_methods[] = {
        {.type = HR_FRAME_EXPLAIN,
         .name = "EXPLAIN",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .or_admin = true,
         .begin = explain_begin,
         .start = explain_start},
        {0},
};
