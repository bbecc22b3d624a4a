/*
 * A plan bound to memory: pools, slots, events, programs, and the tape in pointers.
 *
 * Everything that running needs is taken here, so that running takes nothing. When memory does not
 * suffice for all slots, one slot after the other is given up; the last step is a plan of its own
 * for one slot, in which copies share memory with other tensors. It has the same splits.
 */
#include "scheduler/exec.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"

/* A device that has not written a few constants by then is lost. */
#define SETTLE_TIMEOUT_NS (30 * HR_NS_PER_S)

static void *take(struct hr_pipeline *pipeline, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&pipeline->arena, total, 16)
                                                : NULL;
}

/* What holds addresses is made anew when the pipeline moves. */
static void *take_bound(struct hr_pipeline *pipeline, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&pipeline->bound, total, 16)
                                                : NULL;
}

static hr_status out_of_memory(struct hr_diag *diag) {
        return hr_fail(diag, HR_E_EXHAUSTED, "host memory for a pipeline");
}

/* ---- Addresses --------------------------------------------------------------------------------
 */

static void *address_of(const struct hr_pipeline *pipeline, const struct hr_place *place,
                        uint32_t slot, bool host) {
        const struct hr_plan_pool *pool;
        const struct hr_leaf_home *home;
        uint8_t *base;

        switch (place->where) {
        case HR_WHERE_NONE:
                break;
        case HR_WHERE_SHARED:
                pool = &pipeline->plan->pools[place->index];
                if (place->offset < pool->kept_bytes)
                        return (uint8_t *) pipeline->pools[place->index]->base + place->offset;
                return (uint8_t *) pipeline->blocks[place->index]->buffer->base + place->offset -
                       pool->kept_bytes;
        case HR_WHERE_SLOT:
                pool = &pipeline->plan->pools[place->index];
                return (uint8_t *) pipeline->pools[place->index]->base + pool->kept_bytes +
                       slot * pool->slot_bytes + place->offset;
        case HR_WHERE_HOME:
                home = &pipeline->homes[place->index];
                base = host ? home->buffer->host_base : home->buffer->base;
                return base ? base + home->offset + place->offset : NULL;
        case HR_WHERE_STAGING:
                return pipeline->staging + slot * pipeline->plan->staging_bytes + place->offset;
        }
        return NULL;
}

static struct hr_place tensor_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

static struct hr_operand operand_of(const struct hr_pipeline *pipeline, uint32_t tensor,
                                    uint32_t copy, uint32_t slot) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_tensor *t = &pipeline->graph->tensors[tensor];
        struct hr_place place =
                copy == HR_NO_COPY ? tensor_place(plan, tensor) : plan->copies[copy].place;
        struct hr_operand operand = hr_operand_of_tensor(t, tensor);

        if (plan->span[tensor] == 0)
                return operand;
        operand.data = address_of(pipeline, &place, slot, false);
        operand.room = copy == HR_NO_COPY
                               ? plan->span[plan->root[tensor]] - plan->root_offset[tensor]
                               : plan->copies[copy].bytes;
        return operand;
}

/* ---- Memory -----------------------------------------------------------------------------------
 */

static hr_status reserve_pools(struct hr_pipeline *pipeline, uint64_t bytes_max,
                               struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        uint64_t total = 0;

        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                const struct hr_plan_pool *pool = &plan->pools[k];
                uint64_t bytes;

                if (!hr_mul_u64(pool->slot_bytes, pipeline->slot_count, &bytes) ||
                    !hr_add_u64(bytes, pool->shared_bytes, &bytes) ||
                    !hr_add_u64(total, bytes, &total))
                        return hr_fail(diag, HR_E_EXHAUSTED, "compute memory beyond 64 bits");
        }
        if (bytes_max && total > bytes_max) {
                hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                               "%llu bytes of compute memory asked, %llu allowed",
                               (unsigned long long) total, (unsigned long long) bytes_max);
                if (diag) {
                        diag->limit = bytes_max;
                        diag->actual = total;
                }
                return HR_E_EXHAUSTED;
        }
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                const struct hr_plan_pool *pool = &plan->pools[k];
                uint64_t own = pool->kept_bytes + pool->slot_bytes * pipeline->slot_count;

                if (own + pool->shared_bytes == 0)
                        continue;
                if (own)
                        HR_TRY(hr_buffer_new(pipeline->fleet->devices[pool->owner], own,
                                             HR_USAGE_COMPUTE, diag, &pipeline->pools[k]));
                pipeline->device_bytes[pool->owner] += own + pool->shared_bytes - pool->kept_bytes;
        }
        if (plan->staging_bytes) {
                uint64_t bytes;

                if (!hr_mul_u64(plan->staging_bytes, pipeline->slot_count, &bytes))
                        return out_of_memory(diag);
                pipeline->staging = aligned_alloc(64, (size_t) bytes);
                if (!pipeline->staging)
                        return out_of_memory(diag);
        }
        return HR_OK;
}

static hr_status make_events(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;
        uint64_t lanes_first = (uint64_t) tape->slot_event_count * pipeline->slot_count;

        pipeline->event_count = lanes_first + pipeline->plan->lane_count;
        pipeline->events = take(pipeline, pipeline->event_count, sizeof *pipeline->events);
        pipeline->event_devices = take(pipeline, pipeline->event_count, sizeof(uint32_t));
        if (!pipeline->events || !pipeline->event_devices)
                return out_of_memory(diag);
        for (uint32_t i = 0; i < tape->count; ++i) {
                const struct hr_command *command = &tape->commands[i];
                bool lane_end = command->index >= tape->slot_event_count;
                uint64_t at = lane_end ? lanes_first + command->index - tape->slot_event_count
                                       : command->index;

                if (command->code != HR_COMMAND_RECORD)
                        continue;
                for (uint32_t s = 0; s < (lane_end ? 1 : pipeline->slot_count); ++s) {
                        uint64_t event = at + (uint64_t) s * tape->slot_event_count;

                        pipeline->event_devices[event] = command->device;
                        HR_TRY(hr_fleet_event_take(pipeline->fleet, command->device, diag,
                                                   &pipeline->events[event]));
                }
        }
        return HR_OK;
}

static struct hr_event *event_of(const struct hr_pipeline *pipeline, uint32_t event,
                                 uint32_t slot) {
        uint32_t slot_events = pipeline->plan->tape.slot_event_count;

        return event < slot_events
                       ? pipeline->events[(uint64_t) slot * slot_events + event]
                       : pipeline->events[(uint64_t) slot_events * pipeline->slot_count + event -
                                          slot_events];
}

/* ---- Experts -----------------------------------------------------------------------------------
 */

static hr_status fill_cache(struct hr_pipeline *pipeline, uint32_t g, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_expert_group *group = &plan->groups[g];
        const struct hr_tensor *ids = &pipeline->graph->tensors[group->ids];
        struct hr_expert_cache *cache = &pipeline->expert_caches[g];

        *cache = (struct hr_expert_cache){
                .node = group->node,
                .experts = group->experts,
                .places = group->places,
                .resident = group->resident,
                .ne = {ids->ne[0], ids->ne[1]},
                .nb = {ids->nb[0], ids->nb[1]},
                .translated = address_of(pipeline, &group->translated, 0, false),
                .weights = take(pipeline, group->member_count, sizeof *cache->weights),
                .weight_count = group->member_count,
                .place_of = take(pipeline, group->experts, sizeof(uint32_t)),
                .expert_at = take(pipeline, group->places, sizeof(uint32_t)),
                .used_at = take(pipeline, group->experts, sizeof(uint64_t)),
                .uses = take(pipeline, group->experts, sizeof *cache->uses),
                .missing = take(pipeline, group->experts, sizeof(uint32_t)),
        };
        return cache->weights && cache->place_of && cache->expert_at && cache->used_at &&
                               cache->uses && cache->missing
                       ? HR_OK
                       : out_of_memory(diag);
}

/* Where experts come from and go to. */
static void aim_caches(struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                struct hr_place from = tensor_place(plan, copy->tensor);

                if (copy->group == HR_NO_INDEX)
                        continue;
                pipeline->expert_caches[copy->group].weights[copy->member] =
                        (struct hr_expert_weight){
                                .home = pipeline->homes[plan->root[copy->tensor]].buffer,
                                .from = address_of(pipeline, &from, 0, true),
                                .to = address_of(pipeline, &copy->place, 0, false),
                                .from_stride = pipeline->graph->tensors[copy->tensor].nb[2],
                                .to_stride = copy->expert_stride,
                                .bytes = copy->expert_bytes,
                        };
        }
}

/* Uses of a weight are counted where it lies, for all pipelines. Windows on weights have none. */
static hr_status share_usages(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                const struct hr_leaf_home *home;

                if (copy->group == HR_NO_INDEX || copy->member != 0 ||
                    plan->root[copy->tensor] != copy->tensor)
                        continue;
                home = &pipeline->homes[copy->tensor];
                HR_TRY(hr_buffer_expert_usage(home->buffer, home->offset,
                                              plan->groups[copy->group].experts, diag,
                                              &pipeline->expert_caches[copy->group].usage));
        }
        return HR_OK;
}

static hr_status make_caches(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->expert_caches = take(pipeline, plan->group_count, sizeof(struct hr_expert_cache));
        if (!pipeline->expert_caches)
                return out_of_memory(diag);
        for (uint32_t g = 0; g < plan->group_count; ++g)
                HR_TRY(fill_cache(pipeline, g, diag));
        aim_caches(pipeline);
        return share_usages(pipeline, diag);
}

/* The node sees the places instead of the experts, and ids that name places. */
static void use_places(const struct hr_pipeline *pipeline, const struct hr_plan_copy *copy,
                       struct hr_operand *sources) {
        const struct hr_expert_group *group = &pipeline->plan->groups[copy->group];
        struct hr_operand *weight = &sources[0], *ids = &sources[2];

        weight->ne[2] = group->places;
        weight->nb[2] = copy->expert_stride;
        weight->nb[3] = copy->bytes;
        if (group->translated.where == HR_WHERE_NONE)
                return;
        ids->data = address_of(pipeline, &group->translated, 0, false);
        ids->nb[0] = sizeof(int32_t);
        ids->nb[1] = ids->nb[0] * (uint64_t) ids->ne[0];
        ids->nb[2] = ids->nb[3] = ids->nb[1] * (uint64_t) ids->ne[1];
        ids->room = ids->nb[3];
}

/* ---- Programs ---------------------------------------------------------------------------------
 */

static hr_status fill_step(struct hr_pipeline *pipeline, uint32_t node, uint32_t slot,
                           struct hr_step *step, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_graph *graph = pipeline->graph;
        uint32_t id = graph->leaf_count + node;
        const struct hr_tensor *t = &graph->tensors[id];
        struct hr_operand *sources = take_bound(pipeline, t->source_count, sizeof *sources);

        if (!sources)
                return out_of_memory(diag);
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = hr_graph_source(graph, t, i);

                if (source == HR_TENSOR_NONE)
                        sources[i] = (struct hr_operand){.type = HR_OPERAND_ABSENT};
                else
                        sources[i] =
                                operand_of(pipeline, source,
                                           plan->source_copy[plan->source_start[node] + i], slot);
        }
        if (t->source_count > 2) {
                uint32_t copy = plan->source_copy[plan->source_start[node]];

                if (copy != HR_NO_COPY && plan->copies[copy].group != HR_NO_INDEX)
                        use_places(pipeline, &plan->copies[copy], sources);
        }
        *step = (struct hr_step){
                .op = t->op,
                .node = node,
                .params = t->params,
                .result =
                        operand_of(pipeline, id,
                                   plan->result_copy ? plan->result_copy[node] : HR_NO_COPY, slot),
                .source_count = t->source_count,
                .sources = sources,
        };
        return HR_OK;
}

static hr_status make_program(struct hr_pipeline *pipeline, uint32_t s, uint32_t slot,
                              struct hr_diag *diag) {
        const struct hr_plan_split *split = &pipeline->plan->splits[s];
        struct hr_step *steps = take_bound(pipeline, split->step_count, sizeof *steps);
        struct hr_steps *list = take_bound(pipeline, 1, sizeof *list);
        struct hr_program **program = &pipeline->slots[slot].programs[s];

        if (!steps || !list)
                return out_of_memory(diag);
        for (uint32_t k = split->step_count; k-- > 0;) {
                uint32_t step = split->step_first + k;

                HR_TRY(fill_step(pipeline, pipeline->plan->steps[step], slot, &steps[k], diag));
                if (pipeline->plan->joined && pipeline->plan->joined[step])
                        steps[k].joined = steps[k + 1].joined + 1;
        }
        *list = (struct hr_steps){.count = split->step_count, .steps = steps};
        HR_TRY(hr_program_new(pipeline->fleet->devices[split->device], list, diag, program));
        pipeline->device_bytes[split->device] += (*program)->scratch_bytes;
        return HR_OK;
}

static hr_status make_programs(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->computed_splits = pipeline->computed_nodes = 0;
        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                pipeline->slots[slot].programs =
                        take_bound(pipeline, plan->split_count, sizeof(void *));
                if (!pipeline->slots[slot].programs)
                        return out_of_memory(diag);
        }
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];
                bool per_slot;

                if (split->step_count == 0)
                        continue;
                ++pipeline->computed_splits;
                pipeline->computed_nodes += split->step_count;
                per_slot = hr_plan_split_is_per_slot(plan, pipeline->graph, split);
                for (uint32_t slot = 0; slot < (per_slot ? pipeline->slot_count : 1); ++slot)
                        HR_TRY(make_program(pipeline, s, slot, diag));
        }
        return HR_OK;
}

/* ---- The tape in pointers ---------------------------------------------------------------------
 */

static void bind_experts(struct hr_pipeline *pipeline, const struct hr_command *command,
                         uint32_t slot, struct hr_bound_command *bound) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_plan_copy *copy = &plan->copies[command->index];
        const struct hr_expert_group *group = &plan->groups[copy->group];
        struct hr_place ids = group->ids_copy == HR_NO_COPY ? tensor_place(plan, group->ids)
                                                            : plan->copies[group->ids_copy].place;

        bound->index = copy->member;
        bound->experts = &pipeline->expert_caches[copy->group];
        bound->from = address_of(pipeline, &ids, slot, false);
}

static void bind_command(struct hr_pipeline *pipeline, const struct hr_command *command,
                         uint32_t slot, struct hr_bound_command *bound) {
        struct hr_program *program = NULL;
        bool host_source = command->code == HR_COMMAND_WRITE;

        if (command->code == HR_COMMAND_COMPUTE) {
                program = pipeline->slots[slot].programs[command->index];
                if (!program)
                        program = pipeline->slots[0].programs[command->index];
        }
        *bound = (struct hr_bound_command){
                .code = command->code,
                .index = command->index,
                .queue = pipeline->fleet->queues[command->device],
                .program = program,
                .first = command->first,
                .step_count = command->count,
                .whole_count = command->first == 0 && program ? program->steps->count : 0,
                .kind = pipeline->kinds[command->kind],
                .from = command->code == HR_COMMAND_INPUT
                                ? NULL
                                : address_of(pipeline, &command->from, slot, host_source),
                .to = address_of(pipeline, &command->to, slot, false),
                .from_offset = command->from.offset,
                .bytes = command->bytes,
        };
        if (command->code == HR_COMMAND_WAIT || command->code == HR_COMMAND_RECORD)
                bound->event = event_of(pipeline, command->index, slot);
        if (command->code == HR_COMMAND_COPY_EXPERTS)
                bind_experts(pipeline, command, slot, bound);
}

static hr_status bind_tape(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;

        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                struct hr_slot *s = &pipeline->slots[slot];

                s->commands = take_bound(pipeline, tape->count, sizeof *s->commands);
                if (!s->commands)
                        return out_of_memory(diag);
                for (uint32_t i = 0; i < tape->count; ++i)
                        bind_command(pipeline, &tape->commands[i], slot, &s->commands[i]);
        }
        return HR_OK;
}

static hr_status count_tape(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;

        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                struct hr_slot *s = &pipeline->slots[slot];

                s->wanted = take(pipeline, pipeline->graph->output_count, sizeof(void *));
                if (!s->wanted)
                        return out_of_memory(diag);
        }
        for (uint32_t i = 0; i < tape->count; ++i)
                pipeline->notify_count += tape->commands[i].code == HR_COMMAND_NOTIFY;
        for (uint32_t l = 0; l < pipeline->plan->lane_count; ++l)
                pipeline->touches_states =
                        pipeline->touches_states || pipeline->plan->state_lane[l];
        pipeline->copied_bytes = pipeline->plan->copied_bytes - pipeline->plan->expert_bytes;
        return HR_OK;
}

/* ---- Constants --------------------------------------------------------------------------------
 */

/* Fresh memory that the host sees is written at once; other memory by the device's queue. */
static hr_status write_constant(struct hr_pipeline *pipeline, uint32_t leaf, uint64_t offset,
                                uint64_t bytes, uint32_t device, const struct hr_place *place,
                                bool *wrote, struct hr_diag *diag) {
        const struct hr_graph *graph = pipeline->graph;
        const uint8_t *from = graph->constants + graph->constant_offsets[leaf] + offset;
        struct hr_buffer *pool;

        if (place->where != HR_WHERE_SHARED || bytes == 0)
                return HR_OK;
        pool = pipeline->pools[place->index];
        if (pool->host_base) {
                memcpy((uint8_t *) pool->host_base + place->offset, from, bytes);
                return HR_OK;
        }
        wrote[device] = true;
        pipeline->constants_pending = true;
        return hr_queue_write(pipeline->fleet->queues[device],
                              (uint8_t *) pool->base + place->offset, from, bytes,
                              &pipeline->constants, diag);
}

/* The queues that start the lanes wait for the constants that other queues write. */
static hr_status order_constants(struct hr_pipeline *pipeline, const bool *wrote,
                                 struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t d = 0; d < plan->device_count; ++d) {
                struct hr_event *event = NULL;
                uint32_t first;
                hr_status status;

                if (!wrote[d] || plan->lane[d] == HR_NO_INDEX)
                        continue;
                first = plan->tape.lane_first[plan->lane[d]];
                if (first == HR_NO_INDEX || first == d)
                        continue;
                HR_TRY(hr_fleet_event_take(pipeline->fleet, d, diag, &event));
                status = hr_queue_record(pipeline->fleet->queues[d], event, diag);
                if (status == HR_OK)
                        status = hr_queue_wait(pipeline->fleet->queues[first], event, diag);
                pipeline->constant_events[d] = event;
                HR_TRY(status);
        }
        return HR_OK;
}

static hr_status write_constants(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        bool *wrote = take(pipeline, plan->device_count, sizeof *wrote);

        pipeline->constant_events =
                take(pipeline, plan->device_count, sizeof *pipeline->constant_events);
        if (!wrote || !pipeline->constant_events)
                return out_of_memory(diag);
        for (uint32_t i = 0; i < plan->leaf_count; ++i) {
                uint32_t device =
                        plan->device[i] < 0 ? plan->device_count - 1 : (uint32_t) plan->device[i];

                if (pipeline->graph->tensors[i].leaf_kind != HR_LEAF_CONSTANT ||
                    plan->place[i].where == HR_WHERE_NONE)
                        continue;
                HR_TRY(write_constant(pipeline, i, 0, plan->span[i], device, &plan->place[i], wrote,
                                      diag));
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method != HR_COPY_CONSTANT)
                        continue;
                HR_TRY(write_constant(pipeline, plan->root[copy->tensor],
                                      plan->root_offset[copy->tensor], copy->bytes, copy->device,
                                      &copy->place, wrote, diag));
        }
        return order_constants(pipeline, wrote, diag);
}

/* ---- Life -------------------------------------------------------------------------------------
 */

static hr_status take_homes(struct hr_pipeline *pipeline, const struct hr_leaf_home *homes,
                            struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->homes = take(pipeline, plan->leaf_count, sizeof *pipeline->homes);
        if (!pipeline->homes)
                return out_of_memory(diag);
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
        pipeline->states = take(pipeline, request->state_count, sizeof *pipeline->states);
        if (!pipeline->states)
                return out_of_memory(diag);
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
        pipeline->kinds = take(pipeline, facts.input.kind_count, sizeof *pipeline->kinds);
        if (pipeline->kinds)
                memcpy(pipeline->kinds, facts.kinds,
                       facts.input.kind_count * sizeof *pipeline->kinds);
        hr_plan_facts_deinit(&facts);
        return pipeline->kinds ? HR_OK : out_of_memory(diag);
}

static hr_status fill(struct hr_pipeline *pipeline, const struct hr_pipeline_request *request,
                      const struct hr_plan_request *plan_request, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->pools = take(pipeline, plan->kind_count, sizeof *pipeline->pools);
        pipeline->slots = take(pipeline, pipeline->slot_count, sizeof *pipeline->slots);
        pipeline->blocks = take(pipeline, plan->kind_count, sizeof *pipeline->blocks);
        pipeline->device_bytes = take(pipeline, plan->device_count, sizeof(uint64_t));
        if (!pipeline->pools || !pipeline->slots || !pipeline->blocks || !pipeline->device_bytes)
                return out_of_memory(diag);
        HR_TRY(take_kinds(pipeline, plan_request, diag));
        HR_TRY(take_homes(pipeline, request->homes, diag));
        HR_TRY(take_states(pipeline, request, diag));
        HR_TRY(reserve_pools(pipeline, request->device_bytes_max, diag));
        HR_TRY(hr_workspace_take(pipeline->workspace, pipeline, request->realloc, diag));
        HR_TRY(make_events(pipeline, diag));
        HR_TRY(hr_gates_find(pipeline, diag));
        HR_TRY(make_caches(pipeline, diag));
        HR_TRY(make_programs(pipeline, diag));
        HR_TRY(bind_tape(pipeline, diag));
        HR_TRY(count_tape(pipeline, diag));
        return write_constants(pipeline, diag);
}

static hr_status bind(const struct hr_pipeline_request *request,
                      const struct hr_plan_request *plan_request, struct hr_plan *plan,
                      uint32_t slot_count, struct hr_diag *diag,
                      struct hr_pipeline **ret_pipeline) {
        struct hr_pipeline *pipeline = calloc(1, sizeof *pipeline);
        hr_status status = HR_OK;

        if (!pipeline)
                return out_of_memory(diag);
        hr_arena_init(&pipeline->arena, 0);
        hr_arena_init(&pipeline->bound, 0);
        pipeline->plan = hr_plan_ref(plan);
        pipeline->graph = hr_graph_ref(request->graph);
        pipeline->fleet = request->fleet;
        pipeline->slot_count = slot_count;
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

static bool keeps_experts(const struct hr_plan *plan) {
        for (uint32_t g = 0; g < plan->group_count; ++g) {
                if (plan->groups[g].resident && plan->groups[g].places)
                        return true;
        }
        return false;
}

hr_status hr_pipeline_new(const struct hr_pipeline_request *request, struct hr_diag *diag,
                          struct hr_pipeline **ret_pipeline) {
        struct hr_plan *plan = request->plan;
        struct hr_plan_request plan_request = {.graph = request->graph,
                                               .fleet = request->fleet,
                                               .homes = request->homes,
                                               .pins = plan->pins,
                                               .taps = plan->tap_ids,
                                               .tap_count = plan->tap_count,
                                               .options = plan->options};
        HR_CLEANUP(hr_plan_unrefp) struct hr_plan *frugal = NULL, *single = NULL;
        struct hr_diag first = {0};
        hr_status status;

        if (plan->fault.status != HR_OK)
                return hr_fail_reason(diag, HR_E_PRECONDITION, "UNSOUND",
                                      "rules = ggml give a plan that cannot be run: %.160s",
                                      plan->fault.words);
        if (keeps_experts(plan)) {
                status = bind(request, &plan_request, plan, plan->n_copies, &first, ret_pipeline);
                if (status != HR_E_EXHAUSTED) {
                        if (status != HR_OK && diag && diag->status == HR_OK)
                                *diag = first;
                        return status;
                }
                plan_request.options.expert_bytes = 1; /* experts are kept for one run only */
                HR_TRY(hr_plan_new(&plan_request, diag, &frugal));
                plan = frugal;
        }
        status = bind_most(request, &plan_request, plan, &first, ret_pipeline);
        if (status == HR_E_EXHAUSTED && plan->n_copies > 1) {
                plan_request.options.n_copies = 1;
                HR_TRY(hr_plan_new(&plan_request, diag, &single));
                return bind(request, &plan_request, single, 1, diag, ret_pipeline);
        }
        if (status != HR_OK && diag && diag->status == HR_OK)
                *diag = first;
        return status;
}

/* Waits until the writes of constants are over: no run's end has shown it. */
static void settle_constants(struct hr_pipeline *pipeline) {
        for (uint32_t d = 0; d < pipeline->fleet->device_count; ++d) {
                struct hr_event *event = NULL;

                if (hr_fleet_event_take(pipeline->fleet, d, NULL, &event) == HR_OK) {
                        if (hr_queue_record(pipeline->fleet->queues[d], event, NULL) != HR_OK ||
                            hr_event_synchronize(event, SETTLE_TIMEOUT_NS, NULL) != HR_OK)
                                hr_log(HR_LOG_DEBUG, "pipeline", "device %u does not settle", d);
                        hr_fleet_event_give(pipeline->fleet, d, event);
                }
        }
}

static void free_programs(struct hr_pipeline *pipeline, struct hr_slot *slots) {
        for (uint32_t s = 0; slots && s < pipeline->slot_count; ++s) {
                struct hr_program **programs = slots[s].programs;

                for (uint32_t i = 0; programs && i < pipeline->plan->split_count; ++i) {
                        if (!programs[i])
                                continue;
                        pipeline->device_bytes[pipeline->plan->splits[i].device] -=
                                programs[i]->scratch_bytes;
                        programs[i] = hr_program_free(programs[i]);
                }
        }
}

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
        status = make_programs(pipeline, diag);
        if (status == HR_OK)
                status = bind_tape(pipeline, diag);
        if (status == HR_OK) {
                free_programs(pipeline, old_slots);
                hr_workspace_leave(pipeline->workspace, pipeline, old_blocks);
                hr_arena_deinit(&old_bound);
                ++pipeline->moves;
        } else {
                free_programs(pipeline, pipeline->slots);
                memcpy(pipeline->slots, old_slots, slots_bytes);
                hr_workspace_restore(pipeline->workspace, pipeline, old_blocks);
                hr_arena_deinit(&pipeline->bound);
                pipeline->bound = old_bound;
        }
        aim_caches(pipeline);
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
                status = out_of_memory(diag);
        free(slots);
        free(blocks);
        return status;
}

struct hr_pipeline *hr_pipeline_free(struct hr_pipeline *pipeline) {
        if (!pipeline)
                return NULL;
        HR_ASSERT(pipeline->in_flight == 0);
        if (pipeline->constants_pending)
                settle_constants(pipeline);
        for (uint32_t i = 0; i < pipeline->state_count; ++i) {
                if (pipeline->states[i]->pipeline == pipeline)
                        pipeline->states[i]->pipeline = NULL;
        }
        free_programs(pipeline, pipeline->slots);
        for (uint64_t i = 0; pipeline->events && i < pipeline->event_count; ++i)
                hr_fleet_event_give(pipeline->fleet, pipeline->event_devices[i],
                                    pipeline->events[i]);
        for (uint32_t d = 0; pipeline->constant_events && d < pipeline->plan->device_count; ++d)
                hr_fleet_event_give(pipeline->fleet, d, pipeline->constant_events[d]);
        for (uint32_t k = 0; pipeline->pools && k < pipeline->plan->kind_count; ++k)
                hr_buffer_unref(pipeline->pools[k]);
        for (uint32_t i = 0; pipeline->homes && i < pipeline->plan->leaf_count; ++i)
                hr_buffer_unref(pipeline->homes[i].buffer);
        if (pipeline->workspace)
                hr_workspace_give(pipeline->workspace, pipeline);
        hr_workspace_unref(pipeline->workspace);
        free(pipeline->staging);
        hr_arena_deinit(&pipeline->bound);
        hr_arena_deinit(&pipeline->arena);
        hr_plan_unref(pipeline->plan);
        hr_graph_unref(pipeline->graph);
        free(pipeline);
        return NULL;
}

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

bool hr_pipeline_has_slot(const struct hr_pipeline *pipeline) {
        return !hr_fleet_holds(pipeline->fleet) &&
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
