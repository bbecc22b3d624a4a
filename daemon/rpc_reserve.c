/*
 * RESERVE: pipelines of several graphs, made and held before anybody submits the graphs.
 *
 * First all plans are made, so that it is known how much compute memory the largest needs; then the
 * pipelines, so that the session's memory grows at most once. The reservation holds a reference to
 * each pipeline. A SUBMIT that comes to the same plan, graph and memory shares the pipeline; one
 * that is smaller finds shared memory large enough. When the reservation is dropped, what no handle
 * uses is freed, after the runs in flight, since those hold the handles' objects.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/bind.h"
#include "daemon/evict.h"
#include "daemon/rpc.h"

struct reservation {
        struct hr_object base;
        struct hr_bound_graph **graphs; /* the engine's */
        uint32_t graph_count;
        bool counted; /* by the workspace */
        uint64_t plan_charge; /* of the session's plan_bytes */
};

/* In the request's arena. */
struct reserving {
        struct hr_binding *bindings;
        uint32_t count;
        /* Results of the work: what the session holds, per device. */
        uint64_t *device_bytes, *scratch_bytes;
        uint64_t reallocs;
};

static struct reservation *reservation_of(struct hr_object *object) {
        HR_ASSERT(object->kind == HR_OBJECT_RESERVATION);
        return HR_CONTAINER_OF(object, struct reservation, base);
}

/* Thread: engine. */
static void reservation_empty(struct hr_server *server, struct reservation *reservation) {
        for (uint32_t i = 0; i < reservation->graph_count; i++) {
                reservation->graphs[i]->reserved--;
                (void) hr_bound_graph_unref(server, reservation->graphs[i]);
        }
        reservation->graph_count = 0;
}

/* Thread: engine. */
static void close_work(struct hr_job *job) {
        struct hr_object *base = HR_CONTAINER_OF(job, struct hr_object, closing);
        struct reservation *reservation = reservation_of(base);
        struct hr_server *server = base->session->server;

        reservation_empty(server, reservation);
        hr_engine_turn_take(server->engine);
        if (reservation->counted)
                hr_workspace_release(base->session->workspace);
        hr_workspace_trim(base->session->workspace);
        hr_engine_turn_give(server->engine);
        hr_engine_job_end(job);
}

static void reservation_free(struct hr_object *base) {
        struct reservation *reservation = reservation_of(base);

        hr_session_discharge(base->session, HR_CHARGE_PLAN_BYTES, reservation->plan_charge);
        free(reservation->graphs);
        free(reservation);
}

/* ---- taking it in ---------------------------------------------------------------------------- */

static hr_status bindings_begin(struct hr_request *request, const struct hr_wire_reserve *wire,
                                struct reserving *reserving, struct hr_diag *diag) {
        uint64_t count = wire->graph_count;

        reserving->bindings =
                hr_arena_alloc(&request->arena, (count + 1) * sizeof *reserving->bindings, 8);
        if (!reserving->bindings)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        for (uint32_t i = 0; i < count; i++) {
                struct hr_binding *binding = &reserving->bindings[i];

                binding->submit = wire->graphs[i];
                reserving->count = i + 1; /* what has been taken is given back on failure */
                if (binding->submit.dry_run)
                        return hr_fail_reason(diag, HR_E_INVALID, "RESERVE",
                                              "graph %u: a dry run holds nothing", i);
                HR_TRY(hr_binding_begin(request, binding, diag));
                binding->realloc = HR_REALLOC_EXPECTED;
        }
        return HR_OK;
}

static hr_status body_expect(struct hr_request *request, const struct hr_wire_reserve *wire,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t total = 0, body = wire->body_bytes ? wire->body_bytes : header->body_bytes;
        hr_status status;

        for (uint32_t i = 0; i < wire->graph_count; i++) {
                if (!hr_add_u64(total, wire->graphs[i].graph_bytes, &total))
                        total = UINT64_MAX;
        }
        if (total == body)
                return hr_request_expect_body(request, total,
                                              request->server->config->limits.graph_bytes,
                                              "graph_bytes", diag);
        status =
                hr_fail_reason(diag, HR_E_INVALID, "SIZE", "graphs of %llu bytes in a body of %llu",
                               (unsigned long long) total, (unsigned long long) body);
        diag->limit = total;
        diag->actual = body;
        return status;
}

static hr_status reserve_begin(struct hr_request *request, struct hr_wire_span message,
                               const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t most = request->server->config->limits.session_graphs, none = 0;
        struct reserving *reserving = hr_arena_alloc(&request->arena, sizeof *reserving, 8);
        struct hr_wire_reserve wire;
        struct reservation *reservation;

        if (!reserving)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = reserving;
        HR_TRY(hr_session_need_workspace(request->session, diag)); /* before a reservation */
        HR_TRY(hr_wire_reserve_decode(message, &request->arena, diag, &wire));
        HR_TRY(hr_charge(&none, wire.graph_count, most, "session_graphs", diag));
        HR_TRY(bindings_begin(request, &wire, reserving, diag));
        if (wire.graph_count > 0) {
                HR_TRY(hr_object_new(request->session, HR_OBJECT_RESERVATION, sizeof *reservation,
                                     most, diag, &request->object));
                request->object->close = close_work;
                request->object->free = reservation_free;
                reservation = reservation_of(request->object);
                reservation->graphs = calloc(wire.graph_count, sizeof *reservation->graphs);
                if (!reservation->graphs)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reservation");
        }
        return body_expect(request, &wire, header, diag);
}

static void reserve_release(struct hr_request *request) {
        struct reserving *reserving = request->context;

        for (uint32_t i = 0; reserving && i < reserving->count; i++)
                hr_binding_release(&reserving->bindings[i]);
}

/* ---- the work (thread: engine) --------------------------------------------------------------- */

/* Says which graph it is that fails. */
static hr_status graph_failed(uint32_t index, hr_status status, struct hr_diag *diag) {
        char words[HR_DIAG_WORDS_BYTES];

        memcpy(words, diag->words, sizeof words);
        (void) snprintf(diag->words, sizeof diag->words, "graph %u: %.230s", index, words);
        return status;
}

static hr_status plans_make(struct hr_request *request, struct reserving *reserving,
                            struct hr_diag *diag) {
        struct hr_workspace *workspace = request->session->workspace;
        const uint8_t *at = request->body_memory;

        for (uint32_t i = 0; i < reserving->count; i++) {
                struct hr_binding *binding = &reserving->bindings[i];
                struct hr_plan_request plan_request;
                hr_status status;

                binding->encoded = (struct hr_wire_span){at, binding->submit.graph_bytes};
                at += binding->submit.graph_bytes;
                binding->shortages = NULL; /* of an earlier try */
                binding->reserved = false;
                binding->plan = hr_plan_unref(binding->plan);
                status = hr_bind_plan(request, binding, diag);
                if (status != HR_OK)
                        return graph_failed(i, status, diag);
                plan_request = hr_binding_plan_request(request, binding);
                hr_engine_turn_take(request->server->engine);
                status = hr_workspace_want(workspace, &plan_request, binding->plan, diag);
                hr_engine_turn_give(request->server->engine);
                HR_TRY(status);
        }
        return HR_OK;
}

static hr_status pipelines_make(struct hr_request *request, struct reserving *reserving,
                                struct hr_diag *diag) {
        struct reservation *reservation = reservation_of(request->object);

        for (uint32_t i = 0; i < reserving->count; i++) {
                struct hr_binding *binding = &reserving->bindings[i];
                hr_status status = hr_bind_pipeline(request, binding, diag);

                if (status != HR_OK)
                        return graph_failed(i, status, diag);
                binding->bound->reserved++;
                reservation->graphs[reservation->graph_count++] = HR_STEAL(binding->bound);
        }
        return HR_OK;
}

/* What the session holds: shared memory, and what is each pipeline's own. */
static hr_status bytes_count(struct hr_request *request, struct reserving *reserving,
                             struct hr_diag *diag) {
        uint32_t devices = hr_fleet_device_count(request->server->fleet);
        struct hr_session *session = request->session;

        reserving->device_bytes =
                hr_arena_alloc(&request->arena, (devices + UINT64_C(1)) * sizeof(uint64_t), 8);
        reserving->scratch_bytes =
                hr_arena_alloc(&request->arena, (devices + UINT64_C(1)) * sizeof(uint64_t), 8);
        if (!reserving->device_bytes || !reserving->scratch_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        hr_engine_turn_take(request->server->engine);
        for (uint32_t d = 0; d < devices; d++) {
                reserving->device_bytes[d] = hr_workspace_bytes(session->workspace, d);
                HR_LIST_FOR_EACH(link, &session->bounds) {
                        const struct hr_bound_graph *bound =
                                HR_CONTAINER_OF(link, struct hr_bound_graph, link);
                        const struct hr_pipeline *pipeline = bound->bound.pipeline;
                        uint64_t scratch = hr_pipeline_scratch_bytes(pipeline, d);

                        reserving->device_bytes[d] += hr_pipeline_own_bytes(pipeline, d) - scratch;
                        reserving->scratch_bytes[d] += scratch;
                }
        }
        reserving->reallocs = hr_workspace_stats(session->workspace).reallocs;
        hr_engine_turn_give(request->server->engine);
        return HR_OK;
}

static hr_status reserve_try(struct hr_request *request, struct hr_diag *diag) {
        struct reserving *reserving = request->context;
        struct hr_workspace *workspace = request->session->workspace;

        HR_TRY(plans_make(request, reserving, diag));
        if (reserving->count > 0) {
                HR_TRY(pipelines_make(request, reserving, diag));
                reservation_of(request->object)->counted = true;
        }
        hr_engine_turn_take(request->server->engine);
        if (reserving->count > 0) {
                hr_workspace_reserve(workspace);
        } else {
                hr_workspace_trim(workspace);
                hr_workspace_reset(workspace);
        }
        hr_engine_turn_give(request->server->engine);
        return bytes_count(request, reserving, diag);
}

static void reserve_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct reserving *reserving = request->context;

        job->status = reserve_try(request, &job->diag);
        if (job->status != HR_OK && request->object)
                reservation_empty(request->server, reservation_of(request->object));
        hr_engine_turn_take(request->server->engine);
        hr_workspace_forget(request->session->workspace);
        hr_engine_turn_give(request->server->engine);
        for (uint32_t i = 0; i < reserving->count; i++) {
                struct hr_binding *binding = &reserving->bindings[i];
                struct hr_plan *plan = HR_STEAL(binding->plan); /* for the reply */

                hr_binding_deinit(request, binding);
                binding->plan = plan;
        }
        hr_engine_job_end(job);
}

/* ---- the reply ------------------------------------------------------------------------------- */

static struct hr_wire_reserved_graph graph_reply(const struct hr_binding *binding) {
        const struct hr_plan_summary summary = hr_plan_summary(binding->plan);
        struct hr_wire_reserved_graph graph = {
                .origin = hr_plan_origin_name(binding->origin),
                .copies_reason =
                        binding->n_copies < summary.n_copies ? "memory" : summary.copies_reason,
                .split_count = summary.split_count,
                .n_copies = binding->n_copies,
                .fallback_nodes = summary.fallback_nodes,
                .copied_bytes = summary.copied_bytes,
                .pipelined = binding->n_copies > 1,
        };

        memcpy(graph.digest, binding->digest, sizeof graph.digest);
        return graph;
}

static hr_status reserve_reply(struct hr_request *request, uint64_t handle, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct reserving *reserving = request->context;
        uint32_t devices = hr_fleet_device_count(server->fleet);
        struct hr_wire_device_bytes *shares =
                hr_arena_alloc(&request->arena, (devices + UINT64_C(1)) * sizeof *shares, 8);
        struct hr_wire_reserved_graph *graphs = hr_arena_alloc(
                &request->arena, (reserving->count + UINT64_C(1)) * sizeof *graphs, 8);
        const struct hr_wire_reserve_reply reply = {
                .handle = handle,
                .reallocs = reserving->reallocs,
                .devices = shares,
                .device_count = devices,
                .graphs = graphs,
                .graph_count = reserving->count,
        };
        size_t bytes = 0;

        if (!shares || !graphs)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        for (uint32_t d = 0; d < devices; d++) {
                shares[d] = (struct hr_wire_device_bytes){
                        .device = hr_fleet_device(server->fleet, d)->props.name,
                        .compute_bytes = reserving->device_bytes[d],
                        .scratch_bytes = reserving->scratch_bytes[d],
                };
                for (uint32_t i = 0; i < reserving->count; i++)
                        shares[d].splits +=
                                hr_plan_summary(reserving->bindings[i].plan).device_splits[d];
        }
        for (uint32_t i = 0; i < reserving->count; i++)
                graphs[i] = graph_reply(&reserving->bindings[i]);
        HR_TRY(hr_wire_reserve_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                            &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static hr_status reserve_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct reserving *reserving = request->context;
        struct hr_object *object = request->object;
        uint64_t plan_bytes = 0;

        if (!object)
                return reserve_reply(request, 0, diag);
        for (uint32_t i = 0; i < reserving->count; i++) {
                const struct hr_bound_graph *graph = reservation_of(object)->graphs[i];

                HR_TRY(hr_binding_hold(&reserving->bindings[i], object, diag));
                plan_bytes +=
                        hr_binding_plan_bytes(hr_graph_entry_graph(graph->entry), graph->plan);
        }
        HR_TRY(hr_session_charge(request->session, HR_CHARGE_PLAN_BYTES, plan_bytes,
                                 request->server->config->limits.session_plan_bytes, diag));
        reservation_of(object)->plan_charge = plan_bytes;
        HR_TRY(hr_session_publish(request->session, object, diag));
        (void) hr_object_ref(object); /* the handle's */
        return reserve_reply(request, object->handle, diag);
}

static void reserve_done(struct hr_job *job) {
        struct hr_request *request = job->arg;
        const struct reserving *reserving = request->context;

        for (uint32_t i = 0; i < reserving->count; i++) {
                const struct hr_binding *binding = &reserving->bindings[i];

                if (binding->digest_is_unknown)
                        request->digest = reserving->bindings[i].digest;
                /* Memory is short on some devices: what the session does not use makes way. */
                if (binding->shortages && request->stopped == HR_OK && !request->failure &&
                    hr_evict_for_memory(request->session, binding->shortages)) {
                        (void) hr_request_of(job);
                        hr_request_post_work(request, reserve_work, reserve_done);
                        return;
                }
        }
        hr_request_finish(job, reserve_finish);
}

static hr_status reserve_start(struct hr_request *request, struct hr_diag *diag) {
        const struct reserving *reserving = request->context;

        (void) diag;
        /* A reset: their closing comes before this request's work. */
        if (reserving->count == 0)
                hr_session_forget_kind(request->session, HR_OBJECT_RESERVATION);
        hr_request_post_work(request, reserve_work, reserve_done);
        return HR_OK;
}

const struct hr_method hr_reserve_methods[] = {
        {.type = HR_FRAME_RESERVE,
         .name = "RESERVE",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = reserve_begin,
         .start = reserve_start,
         .release = reserve_release},
        {0},
};
