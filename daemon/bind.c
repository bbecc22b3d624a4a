/*
 * From bytes to a pipeline, on the engine's thread.
 *
 *   digest -> known graph?  no: decode, validate
 *          -> homes: weight and state leaves by name, in the order of the sets given
 *          -> pins: globs over names -> devices
 *          -> plan: from the cache, or made
 *          -> pipeline: memory, constants, programs (the turn is held)
 *
 * A failure leaves the object half-filled; its closing copes with any half.
 */
#include "daemon/bind.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/debug.h"
#include "daemon/image.h"
#include "daemon/placement.h"
#include "daemon/rpc.h"

struct hr_graph_object *hr_graph_object(struct hr_object *object) {
        HR_ASSERT(object->kind == HR_OBJECT_GRAPH);
        return HR_CONTAINER_OF(object, struct hr_graph_object, base);
}

hr_status hr_bind_decode(const struct hr_server *server, struct hr_wire_span encoded,
                         struct hr_diag *diag, struct hr_graph **ret_graph) {
        const struct hr_limits *limits = &server->config->limits;
        const struct hr_wire_graph_limits wire_limits = {
                .nodes_max = limits->graph_nodes,
                .leaves_max = limits->graph_nodes,
                .bytes_max = limits->graph_bytes,
        };
        const struct hr_graph_limits graph_limits = {.tensor_bytes_max = limits->tensor_bytes};
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;

        HR_TRY(hr_wire_graph_decode(encoded, &wire_limits, diag, &graph));
        HR_TRY(hr_graph_validate(graph, &graph_limits, diag));
        *ret_graph = HR_STEAL(graph);
        return HR_OK;
}

/* ---- which graph ----------------------------------------------------------------------------- */

static hr_status graph_find(struct hr_request *request, struct hr_binding *binding,
                            struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct hr_wire_submit *submit = &binding->submit;
        const struct hr_wire_span body = binding->encoded;
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;

        if (body.size > 0)
                HR_TRY(hr_sha256(body.data, body.size, diag, binding->digest));
        else if (submit->digest_bytes == HR_DIGEST_BYTES)
                memcpy(binding->digest, submit->digest, HR_DIGEST_BYTES);
        else
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                      "neither a graph nor the digest of one");
        if (submit->digest_bytes == HR_DIGEST_BYTES &&
            !hr_digest_equal(submit->digest, binding->digest))
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "DIGEST",
                                      "the graph's digest is not the one announced");
        binding->entry =
                hr_graphs_find(server->graphs, request->session->principal->id, binding->digest);
        if (binding->entry)
                return HR_OK;
        if (body.size == 0) {
                binding->digest_is_unknown = true;
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "GRAPH",
                                      "no graph with this digest is held");
        }
        HR_TRY(hr_bind_decode(server, body, diag, &graph));
        return hr_graphs_add(server->graphs, request->session->principal->id, binding->digest,
                             graph, diag, &binding->entry);
}

/* ---- homes and pins -------------------------------------------------------------------------- */

static void homes_deinit(struct hr_homes *homes) {
        free(homes->leaves);
        free(homes->states);
        free(homes->uses);
        free(homes->pins);
        hr_planned_deinit(&homes->planned);
        *homes = (struct hr_homes){0};
}

static hr_status leaf_unbound(struct hr_diag *diag, const struct hr_graph *graph, uint32_t leaf,
                              const char *kind) {
        size_t bytes = 0;
        const char *name = hr_graph_name(graph, leaf, &bytes);
        hr_status status;

        hr_diag_clear(diag);
        status = hr_fail_reason(diag, HR_E_PRECONDITION, "UNBOUND",
                                "no %s given holds \"%.*s\" (tensor %u)", kind,
                                (int) HR_MIN(bytes, (size_t) 120), name, leaf);
        diag->has_tensor = true;
        diag->tensor = leaf;
        return status;
}

static hr_status leaf_bind_weight(const struct hr_binding *binding, const struct hr_graph *graph,
                                  uint32_t leaf, struct hr_diag *diag,
                                  struct hr_leaf_home *ret_home) {
        for (uint32_t i = 0; i < binding->submit.weight_count; i++) {
                hr_status status = hr_weights_bind(hr_weights_of(binding->weights[i]), graph, leaf,
                                                   diag, ret_home);

                if (status != HR_E_NOT_FOUND)
                        return status;
                hr_diag_clear(diag);
        }
        return binding->submit.planned_count ? HR_OK
                                             : leaf_unbound(diag, graph, leaf, "weight set");
}

static void homes_note_state(struct hr_homes *homes, struct hr_state *state) {
        for (uint32_t i = 0; i < homes->state_count; i++)
                if (homes->states[i] == state)
                        return;
        homes->states[homes->state_count] = state;
        homes->uses[homes->state_count] = &state->use;
        homes->state_count++;
}

static hr_status leaf_bind_state(const struct hr_binding *binding, const struct hr_graph *graph,
                                 uint32_t leaf, struct hr_homes *homes, struct hr_diag *diag) {
        for (uint32_t i = 0; i < binding->submit.state_count; i++) {
                struct hr_state *state = hr_state_of(binding->states[i]);
                hr_status status = hr_state_bind(state, graph, leaf, diag, &homes->leaves[leaf]);

                if (status == HR_OK)
                        homes_note_state(homes, state);
                if (status != HR_E_NOT_FOUND)
                        return status;
                hr_diag_clear(diag);
        }
        return binding->submit.planned_count ? HR_OK : leaf_unbound(diag, graph, leaf, "state");
}

static hr_status homes_find(const struct hr_binding *binding, const struct hr_graph *graph,
                            struct hr_homes *homes, struct hr_diag *diag) {
        uint32_t states = binding->submit.state_count;

        homes->leaves = calloc((size_t) graph->leaf_count + 1, sizeof *homes->leaves);
        homes->states = calloc((size_t) states + 1, sizeof *homes->states);
        homes->uses = calloc((size_t) states + 1, sizeof *homes->uses);
        if (!homes->leaves || !homes->states || !homes->uses)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the homes of %u leaves",
                               graph->leaf_count);
        for (uint32_t i = 0; i < graph->leaf_count; i++) {
                if (graph->tensors[i].leaf_kind == HR_LEAF_WEIGHT)
                        HR_TRY(leaf_bind_weight(binding, graph, i, diag, &homes->leaves[i]));
                else if (graph->tensors[i].leaf_kind == HR_LEAF_STATE)
                        HR_TRY(leaf_bind_state(binding, graph, i, homes, diag));
        }
        return HR_OK;
}

/* The first pin whose pattern matches a tensor's name decides. One that matches none is refused: it
 * is a slip of the pen, and the graph would run elsewhere than its client believes. */
static hr_status pins_find(const struct hr_binding *binding, const struct hr_graph *graph,
                           const struct hr_fleet *fleet, struct hr_homes *homes,
                           struct hr_diag *diag) {
        const struct hr_wire_submit *submit = &binding->submit;
        uint32_t tensors = hr_graph_tensor_count(graph);

        if (submit->pin_count == 0)
                return HR_OK;
        homes->pins = malloc((size_t) tensors * sizeof *homes->pins + 1);
        if (!homes->pins)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for pins");
        for (uint32_t i = 0; i < tensors; i++)
                homes->pins[i] = HR_NO_PIN;
        for (uint32_t p = 0; p < submit->pin_count; p++) {
                const struct hr_wire_rule *pin = &submit->pins[p];
                int64_t device = hr_fleet_find(fleet, pin->device);
                size_t pattern_bytes = strlen(pin->pattern);
                bool is_used = false;

                if (device < 0)
                        return hr_fail_reason(diag, HR_E_NOT_FOUND, "DEVICE",
                                              "pin %u names a device that is not there", p);
                for (uint32_t i = 0; i < tensors; i++) {
                        size_t bytes = 0;
                        const char *name = hr_graph_name(graph, i, &bytes);

                        if (is_used && homes->pins[i] != HR_NO_PIN)
                                continue;
                        if (!hr_glob_match(pin->pattern, pattern_bytes, name, bytes))
                                continue;
                        is_used = true;
                        if (homes->pins[i] == HR_NO_PIN)
                                homes->pins[i] = (int32_t) device;
                }
                if (!is_used)
                        return hr_fail_reason(diag, HR_E_INVALID, "PIN",
                                              "pin %u: no tensor is named like \"%s\"", p,
                                              pin->pattern);
        }
        return HR_OK;
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static hr_status sizes_fill(struct hr_graph_object *object, const struct hr_graph *graph,
                            const struct hr_limits *limits, struct hr_diag *diag) {
        uint64_t none = 0;

        object->input_count = graph->input_count;
        object->output_count = graph->output_count;
        object->input_bytes = calloc((size_t) graph->input_count + 1, sizeof(uint64_t));
        object->output_bytes = calloc((size_t) graph->output_count + 1, sizeof(uint64_t));
        if (!object->input_bytes || !object->output_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of sizes");
        for (uint32_t i = 0; i < graph->input_count; i++) {
                object->input_bytes[i] = hr_tensor_bytes(&graph->tensors[graph->inputs[i]]);
                HR_TRY(hr_charge(&object->input_total, object->input_bytes[i], limits->run_bytes,
                                 "run_bytes", diag));
        }
        for (uint32_t i = 0; i < graph->output_count; i++) {
                object->output_bytes[i] = hr_tensor_bytes(&graph->tensors[graph->outputs[i]]);
                if (!hr_add_u64(object->output_total, object->output_bytes[i],
                                &object->output_total))
                        return hr_charge(&none, UINT64_MAX, limits->session_buffer_bytes,
                                         "session_buffer_bytes", diag);
        }
        return HR_OK;
}

/* ---- plan and pipeline ----------------------------------------------------------------------- */

struct hr_plan_request hr_binding_plan_request(const struct hr_request *request,
                                               const struct hr_binding *binding) {
        const struct hr_wire_submit *submit = &binding->submit;

        return (struct hr_plan_request){
                .graph = hr_graph_entry_graph(binding->entry),
                .fleet = hr_engine_fleet(request->server->engine),
                .homes = binding->homes.leaves,
                .pins = binding->homes.pins,
                .taps = submit->taps,
                .tap_count = submit->tap_count,
                .options =
                        {
                                .rules = submit->rules == 1 ? HR_RULES_GGML : HR_RULES_HEADRACE,
                                .n_copies = submit->n_copies,
                                .copies_most = (uint32_t) request->server->config->limits.copies,
                                .op_offload = submit->op_offload,
                                .strict = submit->strict,
                                .optimize = request->server->config->optimize,
                        },
        };
}

static hr_status plan_find(struct hr_request *request, struct hr_binding *binding,
                           struct hr_diag *diag) {
        const struct hr_wire_submit *submit = &binding->submit;
        struct hr_engine *engine = request->server->engine;
        const struct hr_plan_request plan_request = hr_binding_plan_request(request, binding);

        if (submit->fresh) {
                binding->origin = HR_PLAN_MISS_NEW;
                return hr_plan_new(&plan_request, diag, &binding->plan);
        }
        return hr_plan_cache_get(hr_engine_plan_cache(engine), &plan_request, diag, &binding->plan,
                                 &binding->origin, &binding->first_different);
}

hr_status hr_bind_plan(struct hr_request *request, struct hr_binding *binding,
                       struct hr_diag *diag) {
        const struct hr_fleet *fleet = hr_engine_fleet(request->server->engine);
        struct hr_homes *homes = &binding->homes;
        const struct hr_graph *graph;

        HR_TRY(graph_find(request, binding, diag));
        graph = hr_graph_entry_graph(binding->entry);
        binding->input_count = graph->input_count;
        binding->output_count = graph->output_count;
        HR_TRY(homes_find(binding, graph, homes, diag));
        if (binding->submit.planned_count)
                HR_TRY(hr_planned_homes(&homes->planned, graph, fleet, binding->planned,
                                        binding->submit.planned_count, diag, homes->leaves));
        binding->leaf_bytes = hr_arena_alloc(
                &request->arena, hr_fleet_device_count(fleet) * sizeof *binding->leaf_bytes, 8);
        if (!binding->leaf_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of sizes");
        hr_leaf_bytes_add(graph, fleet, homes->leaves, binding->leaf_bytes);
        HR_TRY(pins_find(binding, graph, fleet, homes, diag));
        return plan_find(request, binding, diag);
}

/* A reserved pipeline of the session for the same plan, graph and memory. */
static struct hr_bound_graph *bound_find(struct hr_session *session,
                                         const struct hr_binding *binding) {
        const struct hr_graph *graph = hr_graph_entry_graph(binding->entry);
        size_t leaves_bytes = graph->leaf_count * sizeof(struct hr_leaf_home);

        HR_LIST_FOR_EACH(link, &session->bounds) {
                struct hr_bound_graph *bound = HR_CONTAINER_OF(link, struct hr_bound_graph, link);

                if (bound->reserved && bound->plan == binding->plan &&
                    bound->entry == binding->entry &&
                    memcmp(bound->leaves, binding->homes.leaves, leaves_bytes) == 0)
                        return bound;
        }
        return NULL;
}

/* What a plan that could not be bound lacks: a device on which all slots would fit is not why, one
 * slot takes at least its share of them, and what the session's graphs share may be given back with
 * the last of them. NULL when no device is short. */
static const struct hr_shortage *find_shortages(struct hr_request *request,
                                                const struct hr_plan *plan) {
        const struct hr_fleet *fleet = hr_engine_fleet(request->server->engine);
        const struct hr_plan_summary summary = hr_plan_summary(plan);
        struct hr_shortage *shortages =
                hr_arena_alloc(&request->arena, summary.device_count * sizeof *shortages, 8);
        bool any = false;

        for (uint32_t i = 0; shortages && i < summary.device_count; i++) {
                const uint64_t shared = hr_workspace_bytes(request->session->workspace, i);
                const uint64_t wanted = summary.compute_bytes[i] + summary.scratch_bytes[i];
                const uint64_t least = wanted / summary.n_copies;
                uint64_t free_bytes = 0, total_bytes = 0;

                hr_device_memory(hr_fleet_device(fleet, i), &free_bytes, &total_bytes);
                shortages[i].is_short = wanted > free_bytes;
                shortages[i].missing_bytes = least - HR_MIN(least, free_bytes + shared);
                any |= shortages[i].is_short;
        }
        return any ? shortages : NULL;
}

/* The mapped files that its weights may lie in. */
static hr_status bound_note_images(const struct hr_binding *binding, struct hr_bound_graph *bound,
                                   struct hr_diag *diag) {
        const uint32_t count = binding->submit.weight_count;
        uint32_t used = 0;

        bound->bound.images = calloc((size_t) count + 1, sizeof(struct hr_image *));
        if (!bound->bound.images)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of files");
        for (uint32_t i = 0; i < count; i++) {
                const struct hr_weights *set = hr_weights_of(binding->weights[i]);

                if (set->from_file && set->image)
                        bound->bound.images[used++] = hr_image_ref(set->image);
        }
        return HR_OK;
}

static hr_status bound_fill(struct hr_request *request, struct hr_binding *binding,
                            struct hr_bound_graph *bound, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct hr_workspace *workspace = request->session->workspace;
        struct hr_homes *homes = &binding->homes;
        const struct hr_pipeline_request pipeline_request = {
                .plan = binding->plan,
                .graph = hr_graph_entry_graph(binding->entry),
                .fleet = hr_engine_fleet(server->engine),
                .homes = homes->leaves,
                .states = homes->uses,
                .state_count = homes->state_count,
                .device_bytes_max = server->config->limits.session_device_bytes,
                .workspace = workspace,
                .realloc = binding->realloc,
        };
        struct hr_workspace_stats before;
        hr_status status;

        bound->bound.states = calloc((size_t) homes->state_count + 1, sizeof(struct hr_state *));
        if (!bound->bound.states)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of states");
        HR_TRY(bound_note_images(binding, bound, diag));
        for (uint32_t i = 0; i < homes->state_count; i++)
                bound->bound.states[i] = hr_state_ref(homes->states[i]);
        bound->bound.state_count = homes->state_count;
        bound->plan = hr_plan_ref(binding->plan);
        bound->entry =
                hr_graphs_find(server->graphs, request->session->principal->id, binding->digest);
        HR_ASSERT(bound->entry == binding->entry);
        bound->leaves = HR_STEAL(homes->leaves);
        hr_engine_turn_take(server->engine);
        before = hr_workspace_stats(workspace);
        status = hr_pipeline_new(&pipeline_request, diag, &bound->bound.pipeline);
        binding->realloc_latest = hr_workspace_stats(workspace);
        if (status == HR_E_EXHAUSTED)
                binding->shortages = find_shortages(request, binding->plan);
        hr_engine_turn_give(server->engine);
        binding->session_reallocs = binding->realloc_latest.reallocs;
        binding->reallocs = binding->session_reallocs - before.reallocs;
        return status;
}

hr_status hr_bind_pipeline(struct hr_request *request, struct hr_binding *binding,
                           struct hr_diag *diag) {
        struct hr_bound_graph *bound = bound_find(request->session, binding);

        if (bound) {
                binding->reserved = true;
                bound->refs++;
                binding->session_reallocs =
                        hr_workspace_stats(request->session->workspace).reallocs;
        } else {
                bound = calloc(1, sizeof *bound);
                if (!bound)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a bound graph");
                bound->refs = 1;
                hr_list_append(&request->session->bounds, &bound->link);
        }
        binding->bound = bound;
        if (!bound->bound.pipeline)
                HR_TRY(bound_fill(request, binding, bound, diag));
        binding->n_copies = hr_pipeline_copies(bound->bound.pipeline);
        binding->uploads = hr_pipeline_uploads(bound->bound.pipeline);
        return HR_OK;
}

struct hr_bound_graph *hr_bound_graph_unref(struct hr_server *server,
                                            struct hr_bound_graph *graph) {
        struct hr_bound *bound;

        if (!graph || --graph->refs > 0)
                return NULL;
        bound = &graph->bound;
        if (bound->pipeline) {
                hr_engine_turn_take(server->engine);
                hr_bound_forget(bound);
                bound->pipeline = hr_pipeline_free(bound->pipeline);
                hr_engine_turn_give(server->engine);
        }
        for (uint32_t i = 0; i < bound->state_count; i++)
                bound->states[i] = hr_state_unref(bound->states[i]);
        free(bound->states);
        for (struct hr_image **image = bound->images; image && *image; image++)
                (void) hr_image_unref(*image);
        free(bound->images);
        free(graph->leaves);
        (void) hr_plan_unref(graph->plan);
        (void) hr_graph_entry_unref(server->graphs, graph->entry);
        hr_list_remove(&graph->link);
        free(graph);
        return NULL;
}

void hr_binding_deinit(struct hr_request *request, struct hr_binding *binding) {
        struct hr_server *server = request->server;

        binding->bound = hr_bound_graph_unref(server, binding->bound);
        binding->plan = hr_plan_unref(binding->plan);
        binding->entry = hr_graph_entry_unref(server->graphs, binding->entry);
        homes_deinit(&binding->homes);
}

/* ---- SUBMIT ---------------------------------------------------------------------------------- */

static hr_status shares_fill(struct hr_request *request, const struct hr_binding *binding,
                             struct hr_graph_object *object, struct hr_diag *diag) {
        uint32_t device_count = hr_fleet_device_count(hr_engine_fleet(request->server->engine));
        const struct hr_pipeline *pipeline = object->bound->bound.pipeline;

        object->shares = calloc(device_count, sizeof *object->shares);
        if (!object->shares)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of sizes");
        hr_engine_turn_take(request->server->engine); /* a pipeline's bytes change as it moves */
        for (uint32_t i = 0; !binding->reserved && i < device_count; i++)
                object->shares[i] = (struct hr_graph_share){hr_pipeline_bytes(pipeline, i),
                                                            hr_pipeline_own_bytes(pipeline, i)};
        hr_engine_turn_give(request->server->engine);
        return HR_OK;
}

static hr_status bind_object(struct hr_request *request, struct hr_binding *binding,
                             struct hr_graph_object *object, struct hr_diag *diag) {
        const size_t devices = hr_fleet_device_count(hr_engine_fleet(request->server->engine));

        HR_TRY(hr_bind_plan(request, binding, diag));
        HR_TRY(sizes_fill(object, hr_graph_entry_graph(binding->entry),
                          &request->server->config->limits, diag));
        if (binding->submit.dry_run) {
                binding->n_copies = hr_plan_summary(binding->plan).n_copies;
                return HR_OK;
        }
        if (!object->leaf_bytes)
                object->leaf_bytes = calloc(devices, sizeof *object->leaf_bytes);
        if (!object->leaf_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a table of sizes");
        HR_TRY(hr_bind_pipeline(request, binding, diag));
        object->bound = HR_STEAL(binding->bound);
        object->plan = HR_STEAL(binding->plan);
        object->origin = binding->origin;
        object->first_different = binding->first_different;
        object->entry = HR_STEAL(binding->entry);
        memcpy(object->leaf_bytes, binding->leaf_bytes, devices * sizeof *object->leaf_bytes);
        return shares_fill(request, binding, object, diag);
}

/* An earlier try may have failed: everything is found anew. */
static void bind_again(struct hr_binding *binding, struct hr_graph_object *object) {
        free(object->input_bytes);
        free(object->output_bytes);
        object->input_bytes = object->output_bytes = NULL;
        object->input_total = object->output_total = 0;
        binding->shortages = NULL;
        binding->reserved = false;
}

hr_status hr_bind(struct hr_request *request, struct hr_diag *diag) {
        struct hr_graph_object *object = hr_graph_object(request->object);
        struct hr_binding *binding = request->context;
        struct hr_plan *dry = NULL;
        hr_status status;

        HR_ASSERT(!object->bound && !object->shares);
        binding->encoded = (struct hr_wire_span){request->body_memory, request->body_received};
        bind_again(binding, object);
        status = bind_object(request, binding, object, diag);
        if (status == HR_OK && binding->submit.dry_run)
                hr_debug_submit(request, binding->plan, hr_graph_entry_graph(binding->entry));
        else if (status == HR_OK)
                hr_debug_submit(request, object->plan, hr_graph_entry_graph(object->entry));
        if (status == HR_OK && binding->submit.dry_run)
                dry = HR_STEAL(binding->plan);
        hr_binding_deinit(request, binding);
        binding->plan = dry;
        return status;
}

void hr_graph_object_close_work(struct hr_job *job) {
        struct hr_object *base = HR_CONTAINER_OF(job, struct hr_object, closing);
        struct hr_graph_object *object = hr_graph_object(base);
        struct hr_server *server = base->session->server;

        object->bound = hr_bound_graph_unref(server, object->bound);
        object->measure = hr_measure_free(object->measure);
        object->plan = hr_plan_unref(object->plan);
        object->entry = hr_graph_entry_unref(server->graphs, object->entry);
        hr_engine_job_end(job);
}
