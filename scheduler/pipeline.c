/*
 * A plan bound to memory: pools, slots, events, programs, and the tape in pointers.
 *
 * Everything that running needs is taken here, so that running takes nothing. When memory does not
 * suffice for all slots, one slot after the other is given up; the last step is a plan of its own
 * for one slot, in which copies share memory with other tensors. It has the same splits.
 */
#include "scheduler/pipeline_priv.h"

#include <stdlib.h>
#include <string.h>

static hr_status take_homes(struct hr_pipeline *pipeline, const struct hr_leaf_home *homes,
                            struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->homes = hr_pipeline_take(pipeline, plan->leaf_count, sizeof *pipeline->homes);
        if (!pipeline->homes)
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t i = 0; homes && i < plan->leaf_count; ++i) {
                uint64_t end;

                if (!homes[i].buffer)
                        continue;
                if (!hr_add_u64(homes[i].offset, plan->span[i], &end) ||
                    end > homes[i].buffer->bytes)
                        return hr_fail_reason(diag, HR_E_INVALID, "HOME",
                                              "leaf %u does not fit the buffer it lives in", i);
                pipeline->homes[i] = homes[i];
                hr_buffer_ref(homes[i].buffer);
        }
        return HR_OK;
}

static hr_status take_states(struct hr_pipeline *pipeline,
                             const struct hr_pipeline_request *request, struct hr_diag *diag) {
        pipeline->states =
                hr_pipeline_take(pipeline, request->state_count, sizeof *pipeline->states);
        if (!pipeline->states)
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t i = 0; i < request->state_count; ++i)
                pipeline->states[i] = request->states[i];
        pipeline->state_count = request->state_count;
        return HR_OK;
}

/* The kinds behind the plan's numbers, found in the same way as when it was made. */
static hr_status take_kinds(struct hr_pipeline *pipeline, const struct hr_plan_request *request,
                            struct hr_diag *diag) {
        struct hr_plan_facts facts;

        HR_TRY(hr_plan_facts_init(&facts, request, diag));
        if (facts.input.kind_count != pipeline->plan->kind_count ||
            facts.input.device_count != pipeline->plan->device_count ||
            request->graph->node_count != pipeline->plan->node_count ||
            request->graph->leaf_count != pipeline->plan->leaf_count) {
                hr_plan_facts_deinit(&facts);
                return hr_fail_reason(diag, HR_E_PRECONDITION, "PLAN",
                                      "the plan was made for another graph, placement or fleet");
        }
        pipeline->kinds =
                hr_pipeline_take(pipeline, facts.input.kind_count, sizeof *pipeline->kinds);
        if (pipeline->kinds)
                memcpy(pipeline->kinds, facts.kinds,
                       facts.input.kind_count * sizeof *pipeline->kinds);
        hr_plan_facts_deinit(&facts);
        return pipeline->kinds ? HR_OK : hr_pipeline_out_of_memory(diag);
}

static hr_status fill(struct hr_pipeline *pipeline, const struct hr_pipeline_request *request,
                      const struct hr_plan_request *plan_request, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->pools = hr_pipeline_take(pipeline, plan->kind_count, sizeof *pipeline->pools);
        pipeline->slots = hr_pipeline_take(pipeline, pipeline->slot_count, sizeof *pipeline->slots);
        pipeline->blocks = hr_pipeline_take(pipeline, plan->kind_count, sizeof *pipeline->blocks);
        pipeline->device_bytes = hr_pipeline_take(pipeline, plan->device_count, sizeof(uint64_t));
        if (!pipeline->pools || !pipeline->slots || !pipeline->blocks || !pipeline->device_bytes)
                return hr_pipeline_out_of_memory(diag);
        HR_TRY(take_kinds(pipeline, plan_request, diag));
        HR_TRY(take_homes(pipeline, request->homes, diag));
        HR_TRY(take_states(pipeline, request, diag));
        HR_TRY(hr_pipeline_reserve(pipeline, request->device_bytes_max, diag));
        HR_TRY(hr_workspace_take(pipeline->workspace, pipeline, request->realloc, diag));
        for (uint32_t d = 0; d < plan->device_count; ++d) {
                if (plan->uploads[d])
                        HR_TRY(hr_fleet_upload_queue(pipeline->fleet, d, diag));
        }
        HR_TRY(hr_pipeline_make_events(pipeline, diag));
        HR_TRY(hr_pipeline_make_caches(pipeline, diag));
        HR_TRY(hr_pipeline_make_programs(pipeline, diag));
        HR_TRY(hr_pipeline_bind_tape(pipeline, diag));
        HR_TRY(hr_pipeline_count_tape(pipeline, diag));
        return hr_pipeline_write_constants(pipeline, diag);
}

static hr_status bind(const struct hr_pipeline_request *request,
                      const struct hr_plan_request *plan_request, struct hr_plan *plan,
                      uint32_t slot_count, struct hr_diag *diag,
                      struct hr_pipeline **ret_pipeline) {
        struct hr_pipeline *pipeline = calloc(1, sizeof *pipeline);
        hr_status status = HR_OK;

        if (!pipeline)
                return hr_pipeline_out_of_memory(diag);
        hr_arena_init(&pipeline->arena, 0);
        hr_arena_init(&pipeline->bound, 0);
        pipeline->plan = hr_plan_ref(plan);
        pipeline->graph = hr_graph_ref(request->graph);
        pipeline->fleet = request->fleet;
        pipeline->slot_count = slot_count;
        pipeline->planned_copies = request->plan->n_copies;
        if (request->workspace)
                pipeline->workspace = hr_workspace_ref(request->workspace);
        else
                status = hr_workspace_new(diag, &pipeline->workspace);
        if (status == HR_OK)
                status = fill(pipeline, request, plan_request, diag);
        if (status != HR_OK) {
                hr_pipeline_free(pipeline);
                return status;
        }
        hr_workspace_commit(pipeline->workspace, pipeline, request->realloc);
        (void) hr_workspace_settle(pipeline->workspace);
        *ret_pipeline = pipeline;
        return HR_OK;
}

/* As many slots as fit; with n copies asked for, at least two: the plan for one is another. */
static hr_status bind_most(const struct hr_pipeline_request *request,
                           const struct hr_plan_request *plan_request, struct hr_plan *plan,
                           struct hr_diag *diag, struct hr_pipeline **ret_pipeline) {
        hr_status status = HR_E_EXHAUSTED;

        for (uint32_t n = plan->n_copies;
             status == HR_E_EXHAUSTED && n > (plan->n_copies > 1 ? 1U : 0U); --n) {
                struct hr_diag attempt = {0};

                status = bind(request, plan_request, plan, n, &attempt, ret_pipeline);
                /* The first is the one that tells how much was asked for. */
                if (status != HR_OK && diag->status == HR_OK)
                        *diag = attempt;
        }
        return status;
}

static bool has_uploads(const struct hr_plan *plan) {
        for (uint32_t d = 0; d < plan->device_count; ++d) {
                if (plan->uploads[d])
                        return true;
        }
        return false;
}

static bool keeps_experts(const struct hr_plan *plan) {
        for (uint32_t g = 0; g < plan->group_count; ++g) {
                if (plan->groups[g].resident && plan->groups[g].places)
                        return true;
        }
        return false;
}

/* Gives up what costs memory and is not needed, one thing after the other: first the room in which
 * weights arrive early, then experts that stay. False where nothing of the kind is left. */
static bool spare_memory(const struct hr_plan *plan, struct hr_plan_options *options) {
        if (has_uploads(plan))
                options->serial_uploads = true;
        else if (keeps_experts(plan))
                options->expert_bytes = 1; /* they are kept for one run only */
        else
                return false;
        return true;
}

/* The plan with all its slots; where that does not fit, leaner ones, and then fewer slots. */
static hr_status bind_lean(const struct hr_pipeline_request *request,
                           struct hr_plan_request *plan_request, struct hr_diag *first,
                           struct hr_diag *diag, struct hr_pipeline **ret_pipeline) {
        HR_CLEANUP(hr_plan_unrefp) struct hr_plan *lean = hr_plan_ref(request->plan);
        hr_status status;

        while (spare_memory(lean, &plan_request->options)) {
                struct hr_plan *next = NULL;

                status = bind(request, plan_request, lean, lean->n_copies, first, ret_pipeline);
                if (status != HR_E_EXHAUSTED)
                        return status;
                HR_TRY(hr_plan_new(plan_request, diag, &next));
                hr_plan_unref(lean);
                lean = next;
        }
        status = bind_most(request, plan_request, lean, first, ret_pipeline);
        if (status == HR_E_EXHAUSTED && lean->n_copies > 1) {
                plan_request->options.n_copies = 1;
                hr_plan_unref(lean);
                lean = NULL;
                HR_TRY(hr_plan_new(plan_request, diag, &lean));
                return bind(request, plan_request, lean, 1, diag, ret_pipeline);
        }
        return status;
}

hr_status hr_pipeline_new(const struct hr_pipeline_request *request, struct hr_diag *diag,
                          struct hr_pipeline **ret_pipeline) {
        const struct hr_plan *plan = request->plan;
        struct hr_plan_request plan_request = {.graph = request->graph,
                                               .fleet = request->fleet,
                                               .homes = request->homes,
                                               .pins = plan->pins,
                                               .taps = plan->tap_ids,
                                               .tap_count = plan->tap_count,
                                               .options = plan->options};
        struct hr_diag first = {0};
        hr_status status;

        if (plan->fault.status != HR_OK)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "UNSOUND",
                                      "rules = ggml give a plan that cannot be run: %.160s",
                                      plan->fault.words);
        status = bind_lean(request, &plan_request, &first, diag, ret_pipeline);
        /* What was asked for first tells most. */
        if (status != HR_OK && diag && diag->status == HR_OK)
                *diag = first;
        return status;
}

/* ---- Moving ----------------------------------------------------------------------------------
 */

/* The old programs and commands stay until the new ones are complete. */
static hr_status move(struct hr_pipeline *pipeline, struct hr_slot *old_slots,
                      struct hr_block **old_blocks, struct hr_diag *diag) {
        size_t slots_bytes = pipeline->slot_count * sizeof *old_slots;
        struct hr_arena old_bound = pipeline->bound;
        hr_status status;

        memcpy(old_slots, pipeline->slots, slots_bytes);
        for (uint32_t s = 0; s < pipeline->slot_count; ++s)
                pipeline->slots[s].programs = NULL;
        hr_workspace_renew(pipeline->workspace, pipeline, old_blocks);
        hr_arena_init(&pipeline->bound, 0);
        status = hr_pipeline_make_programs(pipeline, diag);
        if (status == HR_OK)
                status = hr_pipeline_bind_tape(pipeline, diag);
        if (status == HR_OK) {
                hr_pipeline_free_programs(pipeline, old_slots);
                hr_workspace_leave(pipeline->workspace, pipeline, old_blocks);
                hr_arena_deinit(&old_bound);
                ++pipeline->moves;
        } else {
                hr_pipeline_free_programs(pipeline, pipeline->slots);
                memcpy(pipeline->slots, old_slots, slots_bytes);
                hr_workspace_restore(pipeline->workspace, pipeline, old_blocks);
                hr_arena_deinit(&pipeline->bound);
                pipeline->bound = old_bound;
        }
        hr_pipeline_aim_caches(pipeline);
        return status;
}

hr_status hr_pipeline_move(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        struct hr_slot *slots = calloc(pipeline->slot_count, sizeof *slots);
        struct hr_block **blocks =
                calloc((size_t) pipeline->plan->kind_count + 1, sizeof(struct hr_block *));
        hr_status status;

        HR_ASSERT(pipeline->in_flight == 0);
        if (slots && blocks)
                status = move(pipeline, slots, blocks, diag);
        else
                status = hr_pipeline_out_of_memory(diag);
        free(slots);
        free(blocks);
        return status;
}

/* ---- The end ---------------------------------------------------------------------------------
 */

struct hr_pipeline *hr_pipeline_free(struct hr_pipeline *pipeline) {
        if (!pipeline)
                return NULL;
        HR_ASSERT(pipeline->in_flight == 0);
        if (pipeline->constants_pending)
                hr_pipeline_settle_constants(pipeline);
        for (uint32_t i = 0; i < pipeline->state_count; ++i) {
                if (pipeline->states[i]->pipeline == pipeline)
                        pipeline->states[i]->pipeline = NULL;
        }
        hr_pipeline_free_programs(pipeline, pipeline->slots);
        for (uint64_t i = 0; pipeline->events && i < pipeline->event_count; ++i)
                hr_fleet_event_give(pipeline->fleet, pipeline->event_devices[i],
                                    pipeline->events[i]);
        for (uint32_t d = 0; pipeline->constant_events && d < pipeline->plan->device_count; ++d)
                hr_fleet_event_give(pipeline->fleet, d, pipeline->constant_events[d]);
        for (uint32_t k = 0; pipeline->pools && k < pipeline->plan->kind_count; ++k)
                hr_buffer_unref(pipeline->pools[k]);
        for (uint32_t i = 0; pipeline->homes && i < pipeline->plan->leaf_count; ++i)
                hr_buffer_unref(pipeline->homes[i].buffer);
        if (pipeline->workspace) {
                hr_budget_give(pipeline->workspace->budget, pipeline->budget_bytes);
                hr_workspace_give(pipeline->workspace, pipeline);
        }
        hr_workspace_unref(pipeline->workspace);
        free(pipeline->staging);
        hr_arena_deinit(&pipeline->bound);
        hr_arena_deinit(&pipeline->arena);
        hr_plan_unref(pipeline->plan);
        hr_graph_unref(pipeline->graph);
        free(pipeline);
        return NULL;
}

/* ---- Questions -------------------------------------------------------------------------------
 */

bool hr_pipeline_is_lost(struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;

        if (pipeline->epoch == pipeline->fleet->epoch)
                return pipeline->lost;
        pipeline->epoch = pipeline->fleet->epoch;
        for (uint32_t d = 0; d < plan->device_count; ++d) {
                if (pipeline->fleet->retired[d] && plan->lane[d] != HR_NO_INDEX)
                        pipeline->lost = true;
        }
        for (uint32_t i = 0; i < plan->leaf_count; ++i) {
                if (pipeline->homes[i].buffer && hr_buffer_is_lost(pipeline->homes[i].buffer))
                        pipeline->lost = true;
        }
        return pipeline->lost;
}

const char *hr_pipeline_uploads(const struct hr_pipeline *pipeline) {
        return pipeline->plan->arrival;
}

uint32_t hr_pipeline_copies(const struct hr_pipeline *pipeline) {
        return pipeline->slot_count;
}

uint64_t hr_pipeline_bytes(const struct hr_pipeline *pipeline, uint32_t device) {
        return device < pipeline->plan->device_count ? pipeline->device_bytes[device] : 0;
}

uint64_t hr_pipeline_own_bytes(const struct hr_pipeline *pipeline, uint32_t device) {
        uint64_t bytes = hr_pipeline_bytes(pipeline, device);

        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                const struct hr_plan_pool *pool = &pipeline->plan->pools[k];

                if (pool->owner == device)
                        bytes -= pool->shared_bytes - pool->kept_bytes;
        }
        return bytes;
}

uint64_t hr_pipeline_scratch_bytes(const struct hr_pipeline *pipeline, uint32_t device) {
        uint64_t bytes = 0;

        for (uint32_t s = 0; s < pipeline->slot_count; ++s) {
                for (uint32_t i = 0; i < pipeline->plan->split_count; ++i) {
                        const struct hr_program *program = pipeline->slots[s].programs[i];

                        if (program && pipeline->plan->splits[i].device == device)
                                bytes += program->scratch_bytes;
                }
        }
        return bytes;
}

bool hr_pipeline_is_held(const struct hr_pipeline *pipeline) {
        if (HR_LIKELY(!pipeline->fleet->unordered))
                return false;
        for (uint32_t i = 0; i < pipeline->state_count; ++i) {
                const struct hr_pipeline *other = pipeline->states[i]->pipeline;

                if (other && hr_workspace_is_held(other->workspace))
                        return true;
        }
        return hr_workspace_is_held(pipeline->workspace);
}

bool hr_pipeline_has_slot(const struct hr_pipeline *pipeline) {
        return !hr_pipeline_is_held(pipeline) &&
               !pipeline->slots[pipeline->sequence % pipeline->slot_count].taken;
}

bool hr_pipeline_uses(const struct hr_pipeline *pipeline, uint32_t device) {
        return device < pipeline->plan->device_count && pipeline->plan->device_splits[device] > 0;
}

uint64_t hr_pipeline_moves(const struct hr_pipeline *pipeline) {
        return pipeline->moves;
}

bool hr_pipeline_wants_move(const struct hr_pipeline *pipeline) {
        return pipeline->workspace->unsettled && pipeline->in_flight == 0 &&
               hr_workspace_is_behind(pipeline->workspace, pipeline);
}

struct hr_workspace *hr_pipeline_workspace(const struct hr_pipeline *pipeline) {
        return pipeline->workspace;
}
