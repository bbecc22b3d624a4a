/*
 * Graphs: SUBMIT, RELEASE, and the question which device supports which op.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/bind.h"
#include "daemon/evict.h"
#include "daemon/rpc.h"

/* ---- SUBMIT ---------------------------------------------------------------------------------- */

static hr_status objects_take(struct hr_request *request, const uint64_t *handles, uint32_t count,
                              hr_object_kind kind, struct hr_diag *diag,
                              struct hr_object ***ret_objects) {
        struct hr_object **objects =
                hr_arena_alloc(&request->arena, ((uint64_t) count + 1) * sizeof *objects, 8);

        if (!objects)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a list of handles");
        *ret_objects = objects; /* zero-filled: what has been taken is given back on failure */
        for (uint32_t i = 0; i < count; i++)
                HR_TRY(hr_session_object(request->session, handles[i], kind, diag, &objects[i]));
        return HR_OK;
}

static hr_status submit_limits(const struct hr_limits *limits, const struct hr_wire_submit *submit,
                               struct hr_diag *diag) {
        uint64_t none = 0;

        HR_TRY(hr_charge(&none, submit->tap_count, limits->taps, "taps", diag));
        none = 0;
        HR_TRY(hr_charge(&none, submit->pin_count, limits->pins, "pins", diag));
        none = 0;
        HR_TRY(hr_charge(&none, submit->n_copies, limits->copies, "n_copies", diag));
        none = 0;
        HR_TRY(hr_charge(&none, submit->weight_count, limits->session_weights, "weights", diag));
        none = 0;
        return hr_charge(&none, submit->state_count, limits->session_states, "states", diag);
}

/* Where leaves would live that are nowhere yet: a question, hence for dry runs. */
static hr_status planned_take(struct hr_request *request, struct hr_binding *binding,
                              struct hr_diag *diag) {
        const struct hr_wire_submit *submit = &binding->submit;
        uint64_t none = 0;

        if (submit->planned_count > 0 && !submit->dry_run)
                return hr_fail_reason(diag, HR_E_INVALID, "PLACEMENT",
                                      "planned leaves are for dry runs");
        HR_TRY(hr_charge(&none, submit->planned_count,
                         request->server->config->limits.placement_rules, "placement_rules", diag));
        binding->planned = hr_arena_alloc(
                &request->arena, ((uint64_t) submit->planned_count + 1) * sizeof *binding->planned,
                8);
        if (!binding->planned)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for placement rules");
        for (uint32_t i = 0; i < submit->planned_count; i++)
                binding->planned[i] = (struct hr_placement_rule){submit->planned[i].pattern,
                                                                 submit->planned[i].device};
        return HR_OK;
}

hr_status hr_binding_begin(struct hr_request *request, struct hr_binding *binding,
                           struct hr_diag *diag) {
        const struct hr_config *config = request->server->config;
        const struct hr_wire_submit *submit = &binding->submit;

        binding->realloc = submit->realloc_fail || hr_config_realloc_fails(config)
                                   ? HR_REALLOC_FAIL
                                   : HR_REALLOC_COUNT;
        HR_TRY(submit_limits(&config->limits, submit, diag));
        HR_TRY(planned_take(request, binding, diag));
        HR_TRY(objects_take(request, submit->weights, submit->weight_count, HR_OBJECT_WEIGHTS, diag,
                            &binding->weights));
        return objects_take(request, submit->states, submit->state_count, HR_OBJECT_STATE, diag,
                            &binding->states);
}

hr_status hr_binding_hold(const struct hr_binding *binding, struct hr_object *object,
                          struct hr_diag *diag) {
        HR_TRY(hr_object_hold(object, binding->weights, binding->submit.weight_count, diag));
        return hr_object_hold(object, binding->states, binding->submit.state_count, diag);
}

uint64_t hr_binding_plan_bytes(const struct hr_graph *graph, const struct hr_plan *plan) {
        return hr_graph_memory_bytes(graph) + hr_plan_summary(plan).memory_bytes;
}

void hr_binding_release(struct hr_binding *binding) {
        for (uint32_t i = 0; binding->weights && i < binding->submit.weight_count; i++)
                (void) hr_object_unref(binding->weights[i]);
        for (uint32_t i = 0; binding->states && i < binding->submit.state_count; i++)
                (void) hr_object_unref(binding->states[i]);
        binding->plan = hr_plan_unref(binding->plan);
}

static hr_status submit_begin(struct hr_request *request, struct hr_wire_span message,
                              const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct hr_binding *binding = hr_arena_alloc(&request->arena, sizeof *binding, 8);
        struct hr_wire_submit *submit;

        if (!binding)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = binding;
        submit = &binding->submit;
        HR_TRY(hr_wire_submit_decode(message, &request->arena, diag, submit));
        hr_origin_parse(submit->traceparent, &request->origin);
        HR_TRY(hr_binding_begin(request, binding, diag));
        /* Those on their way may be as many as those there: a handle is made room for at the
         * end. */
        HR_TRY(hr_object_new(request->session, HR_OBJECT_GRAPH, sizeof(struct hr_graph_object),
                             2 * limits->session_graphs, diag, &request->object));
        request->object->close = hr_graph_object_close_work;
        request->object->free = hr_graph_object_free;
        hr_list_init(&hr_graph_object(request->object)->idle_runs);
        return hr_request_expect_body(
                request, submit->graph_bytes ? submit->graph_bytes : header->body_bytes,
                limits->graph_bytes, "graph_bytes", diag);
}

static void submit_release(struct hr_request *request) {
        if (request->context)
                hr_binding_release(request->context);
}

static void submit_done(struct hr_job *job);

/* Thread: engine. */
static void submit_work(struct hr_job *job) {
        job->status = hr_bind(job->arg, &job->diag);
        hr_engine_job_end(job);
}

/* The latest reallocation, or NULL when this request caused none, or there is no memory to tell. */
static const struct hr_wire_realloc *realloc_of(struct hr_request *request) {
        const struct hr_binding *binding = request->context;
        const struct hr_workspace_stats *latest = &binding->realloc_latest;
        struct hr_wire_realloc *realloc = hr_arena_alloc(&request->arena, sizeof *realloc, 8);
        size_t name_bytes = 0;
        const char *from;
        char *name;

        if (binding->reallocs == 0 || !realloc)
                return NULL;
        from = hr_graph_name(hr_graph_entry_graph(hr_graph_object(request->object)->entry),
                             latest->tensor, &name_bytes);
        name = hr_arena_alloc(&request->arena, name_bytes + 1, 1);
        if (!name)
                return NULL;
        memcpy(name, from, name_bytes);
        *realloc = (struct hr_wire_realloc){
                .device = hr_fleet_device(request->server->fleet, latest->device)->props.name,
                .tensor = latest->tensor,
                .name = name,
                .old_bytes = latest->old_bytes,
                .new_bytes = latest->new_bytes,
        };
        return realloc;
}

static hr_status submit_reply(struct hr_request *request, uint64_t handle,
                              const struct hr_plan *plan, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct hr_binding *binding = request->context;
        struct hr_plan_summary summary = hr_plan_summary(plan);
        struct hr_wire_device_bytes *devices =
                hr_arena_alloc(&request->arena, (summary.device_count + 1) * sizeof *devices, 8);
        struct hr_wire_submit_reply reply = {
                .handle = handle,
                .origin = hr_plan_origin_name(binding->origin),
                .copies_reason =
                        binding->n_copies < summary.n_copies ? "memory" : summary.copies_reason,
                .uploads = binding->uploads ? binding->uploads : summary.uploads,
                .first_different = binding->first_different,
                .split_count = summary.split_count,
                .n_copies = binding->n_copies,
                .copied_bytes = summary.copied_bytes,
                .staging_bytes = summary.staging_bytes,
                .tap_bytes = summary.tap_bytes,
                .debug_bytes = request->reply_bytes,
                .devices = devices,
                .device_count = summary.device_count,
                .input_count = binding->input_count,
                .output_count = binding->output_count,
                .fallback_nodes = summary.fallback_nodes,
                .reallocs = binding->session_reallocs,
                .realloc = realloc_of(request),
                .reserved = binding->reserved,
                .traceparent = hr_request_traceparent(request),
        };
        size_t bytes = 0;

        if (!devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        memcpy(reply.digest, binding->digest, sizeof reply.digest);
        for (uint32_t i = 0; i < summary.device_count; i++)
                devices[i] = (struct hr_wire_device_bytes){
                        .device = hr_fleet_device(server->fleet, i)->props.name,
                        .compute_bytes = summary.compute_bytes[i],
                        .weights_bytes = binding->leaf_bytes[i].weights,
                        .state_bytes = binding->leaf_bytes[i].states,
                        .copies_bytes = summary.copies_bytes[i],
                        .scratch_bytes = summary.scratch_bytes[i],
                        .splits = summary.device_splits[i],
                };
        HR_TRY(hr_wire_submit_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                           &bytes));
        hr_request_reply(request, server->scratch, bytes, request->reply_memory,
                         request->reply_bytes);
        return HR_OK;
}

static hr_status submit_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_binding *binding = request->context;
        struct hr_graph_object *object = hr_graph_object(request->object);
        uint64_t plan_bytes;

        request->server->stats.reallocs += binding->reallocs;
        HR_TRY(hr_session_charge_buffer(request->session, request->reply_bytes, diag));
        request->buffer_charge += request->reply_bytes;
        if (binding->submit.dry_run)
                return submit_reply(request, 0, binding->plan, diag);
        plan_bytes = hr_binding_plan_bytes(hr_graph_entry_graph(object->entry), object->plan);
        HR_TRY(hr_session_charge(request->session, HR_CHARGE_PLAN_BYTES, plan_bytes,
                                 request->server->config->limits.session_plan_bytes, diag));
        object->plan_charge = plan_bytes;
        HR_TRY(hr_binding_hold(binding, &object->base, diag));
        HR_TRY(hr_evict_for_handle(request->session, request->server->config->limits.session_graphs,
                                   diag));
        HR_TRY(hr_session_publish(request->session, &object->base, diag));
        (void) hr_object_ref(&object->base); /* the handle's */
        request->server->stats.fallback_nodes += hr_plan_summary(object->plan).fallback_nodes;
        return submit_reply(request, object->base.handle, object->plan, diag);
}

static void submit_done(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct hr_binding *binding = request->context;

        if (binding->digest_is_unknown)
                request->digest = binding->digest;
        /* Memory is short on some devices: what the session does not use there makes way. */
        if (binding->shortages && request->stopped == HR_OK && !request->failure &&
            hr_evict_for_memory(request->session, binding->shortages)) {
                (void) hr_request_of(job);
                hr_request_post_work(request, submit_work, submit_done);
                return;
        }
        hr_stage_add(&request->server->stats.stages[HR_STAGE_PLAN],
                     job->ended_ns - job->started_ns);
        hr_request_record(request, HR_SPAN_UPLOAD, request->arrived_ns, job->posted_ns);
        hr_request_record(request, HR_SPAN_QUEUE, job->posted_ns, job->started_ns);
        hr_request_record(request, HR_SPAN_PLAN, job->started_ns, job->ended_ns);
        hr_request_finish(job, submit_finish);
}

static hr_status submit_start(struct hr_request *request, struct hr_diag *diag) {
        HR_TRY(hr_session_need_workspace(request->session, diag));
        hr_request_post_work(request, submit_work, submit_done);
        return HR_OK;
}

/* ---- RELEASE --------------------------------------------------------------------------------- */

static hr_status release_begin(struct hr_request *request, struct hr_wire_span message,
                               const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t handle = 0;

        (void) header;
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        if (hr_session_object(request->session, handle, HR_OBJECT_RESERVATION, NULL,
                              &request->object) == HR_OK)
                return HR_OK;
        return hr_request_take_object(request, handle, HR_OBJECT_GRAPH, diag);
}

static hr_status release_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_forget_object(request);
        return HR_OK;
}

/* ---- OPS ------------------------------------------------------------------------------------- */

struct question {
        uint32_t device_count, node_count;
};

static hr_status ops_begin(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag) {
        request->context = hr_arena_alloc(&request->arena, sizeof(struct question), 8);
        if (!request->context)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        HR_TRY(hr_wire_empty_decode(message, diag));
        return hr_request_expect_body(request, header->body_bytes,
                                      request->server->config->limits.graph_bytes, "graph_bytes",
                                      diag);
}

/* Thread: engine. */
static hr_status ops_try(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_fleet *fleet = hr_engine_fleet(request->server->engine);
        struct question *question = request->context;
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;
        uint32_t devices = hr_fleet_device_count(fleet);
        uint8_t *answer;

        HR_TRY(hr_bind_decode(request->server,
                              (struct hr_wire_span){request->body_memory, request->body_received},
                              diag, &graph));
        question->device_count = devices;
        question->node_count = graph->node_count;
        request->reply_bytes = (size_t) devices * graph->node_count;
        request->reply_memory = answer = malloc(request->reply_bytes + 1);
        if (!answer)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %zu answers",
                               request->reply_bytes);
        for (uint32_t node = 0; node < graph->node_count; node++)
                for (uint32_t i = 0; i < devices; i++)
                        *answer++ = hr_device_supports_op(hr_fleet_device(fleet, i), graph,
                                                          graph->leaf_count + node);
        return HR_OK;
}

/* Thread: engine. */
static void ops_work(struct hr_job *job) {
        job->status = ops_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

static hr_status ops_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct question *question = request->context;
        uint8_t message[32];
        size_t bytes = 0;

        HR_TRY(hr_wire_ops_reply_encode(question->device_count, question->node_count, message,
                                        sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static void ops_done(struct hr_job *job) {
        hr_request_finish(job, ops_finish);
}

static hr_status ops_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, ops_work, ops_done);
        return HR_OK;
}

const struct hr_method hr_graph_methods[] = {
        {.type = HR_FRAME_OPS,
         .name = "OPS",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = ops_begin,
         .start = ops_start},
        {.type = HR_FRAME_SUBMIT,
         .name = "SUBMIT",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = submit_begin,
         .start = submit_start,
         .release = submit_release},
        {.type = HR_FRAME_RELEASE,
         .name = "RELEASE",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = release_begin,
         .start = release_start},
        {0},
};
