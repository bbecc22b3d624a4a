/*
 * What a pipeline holds of its own: pools, staging, events, constants; and where a place of the
 * plan lies in them.
 */
#include "scheduler/pipeline_priv.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"

/* A device that has not written a few constants by then is lost. */
#define SETTLE_TIMEOUT_NS (30 * HR_NS_PER_S)

void *hr_pipeline_address(const struct hr_pipeline *pipeline, const struct hr_place *place,
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

/* For what is its own: pools, staging, what prepared programs work in. Shared blocks take theirs by
 * themselves. */
static hr_status take_budget(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_plan_summary summary = hr_plan_summary(plan);
        uint64_t bytes, part;

        if (!hr_mul_u64(plan->staging_bytes, pipeline->slot_count, &bytes))
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                if (!hr_mul_u64(plan->pools[k].slot_bytes, pipeline->slot_count, &part) ||
                    !hr_add_u64(part, plan->pools[k].kept_bytes, &part) ||
                    !hr_add_u64(bytes, part, &bytes))
                        return hr_pipeline_out_of_memory(diag);
        }
        for (uint32_t d = 0; d < summary.device_count; ++d) {
                if (!hr_add_u64(bytes, summary.scratch_bytes[d], &bytes))
                        return hr_pipeline_out_of_memory(diag);
        }
        HR_TRY(hr_budget_take(pipeline->workspace->budget, bytes, diag));
        pipeline->budget_bytes = bytes;
        return HR_OK;
}

/* What the pipelines of the workspace hold on a device, this one included, is limited. */
static hr_status check_limit(const struct hr_pipeline *pipeline, uint64_t bytes_max,
                             struct hr_diag *diag) {
        for (uint32_t d = 0; bytes_max && d < pipeline->plan->device_count; ++d) {
                uint64_t bytes = hr_workspace_bytes_with(pipeline->workspace, pipeline, d);

                if (bytes <= bytes_max)
                        continue;
                hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                               "%llu bytes of compute memory on %s, with those held, %llu allowed",
                               (unsigned long long) bytes, pipeline->fleet->devices[d]->props.name,
                               (unsigned long long) bytes_max);
                if (diag) {
                        diag->limit = bytes_max;
                        diag->actual = bytes;
                }
                return HR_E_EXHAUSTED;
        }
        return HR_OK;
}

hr_status hr_pipeline_reserve(struct hr_pipeline *pipeline, uint64_t bytes_max,
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
        HR_TRY(check_limit(pipeline, bytes_max, diag));
        HR_TRY(take_budget(pipeline, diag));
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
                        return hr_pipeline_out_of_memory(diag);
                pipeline->staging = aligned_alloc(64, (size_t) bytes);
                if (!pipeline->staging)
                        return hr_pipeline_out_of_memory(diag);
        }
        return HR_OK;
}

hr_status hr_pipeline_make_events(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;
        uint64_t lanes_first = (uint64_t) tape->slot_event_count * pipeline->slot_count;

        pipeline->event_count = lanes_first + pipeline->plan->lane_count;
        pipeline->events =
                hr_pipeline_take(pipeline, pipeline->event_count, sizeof *pipeline->events);
        pipeline->event_devices =
                hr_pipeline_take(pipeline, pipeline->event_count, sizeof(uint32_t));
        if (!pipeline->events || !pipeline->event_devices)
                return hr_pipeline_out_of_memory(diag);
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

struct hr_event *hr_pipeline_event(const struct hr_pipeline *pipeline, uint32_t event,
                                   uint32_t slot) {
        uint32_t slot_events = pipeline->plan->tape.slot_event_count;

        return event < slot_events
                       ? pipeline->events[(uint64_t) slot * slot_events + event]
                       : pipeline->events[(uint64_t) slot_events * pipeline->slot_count + event -
                                          slot_events];
}

/* ---- Constants -------------------------------------------------------------------------------
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

hr_status hr_pipeline_write_constants(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        bool *wrote = hr_pipeline_take(pipeline, plan->device_count, sizeof *wrote);

        pipeline->constant_events =
                hr_pipeline_take(pipeline, plan->device_count, sizeof *pipeline->constant_events);
        if (!wrote || !pipeline->constant_events)
                return hr_pipeline_out_of_memory(diag);
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

/* Waits until the writes of constants are over: no run's end has shown it. */
void hr_pipeline_settle_constants(struct hr_pipeline *pipeline) {
        for (uint32_t d = 0; d < pipeline->fleet->device_count; ++d) {
                struct hr_event *event = NULL;

                if (hr_fleet_event_take(pipeline->fleet, d, NULL, &event) == HR_OK) {
                        if (hr_queue_record(pipeline->fleet->queues[d], event, NULL) != HR_OK ||
                            hr_fleet_wait(pipeline->fleet, event, SETTLE_TIMEOUT_NS) != HR_OK)
                                hr_log(HR_LOG_DEBUG, "pipeline", "device %u does not settle", d);
                        hr_fleet_event_give(pipeline->fleet, d, event);
                }
        }
}
