/*
 * The devices in priority order, one queue each, and the counters of what runs on them.
 */
#include "scheduler/exec.h"

#include <stdlib.h>
#include <string.h>

#include "core/recorder.h"

static hr_status fleet_fill(struct hr_fleet *fleet, struct hr_device *const *devices,
                            uint32_t device_count, struct hr_diag *diag) {
        fleet->devices = calloc(device_count, sizeof *fleet->devices);
        fleet->queues = calloc(device_count, sizeof *fleet->queues);
        fleet->uploads = calloc(device_count, sizeof *fleet->uploads);
        fleet->spare = calloc(device_count, sizeof *fleet->spare);
        fleet->retired = calloc(device_count, sizeof *fleet->retired);
        fleet->desk = calloc(1, sizeof *fleet->desk);
        if (!fleet->devices || !fleet->queues || !fleet->uploads || !fleet->spare ||
            !fleet->retired || !fleet->desk)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a fleet of %u", device_count);
        hr_arena_init(&fleet->desk->arena, 0);
        for (uint32_t d = 0; d < device_count; ++d) {
                fleet->devices[d] = hr_device_ref(devices[d]);
                ++fleet->device_count;
                HR_TRY(hr_queue_new(devices[d], diag, &fleet->queues[d]));
        }
        return HR_OK;
}

hr_status hr_fleet_new(struct hr_device *const *devices, uint32_t device_count,
                       struct hr_diag *diag, struct hr_fleet **ret_fleet) {
        struct hr_fleet *fleet;
        hr_status status;

        if (device_count == 0 || devices[device_count - 1]->props.type != HR_DEVICE_CPU)
                return hr_fail_reason(diag, HR_E_INVALID, "DEVICES",
                                      "the last device is not of type CPU");
        fleet = calloc(1, sizeof *fleet);
        if (!fleet)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a fleet");
        atomic_init(&fleet->epoch, 1);
        status = fleet_fill(fleet, devices, device_count, diag);
        if (status != HR_OK) {
                hr_fleet_free(fleet);
                return status;
        }
        *ret_fleet = fleet;
        return HR_OK;
}

struct hr_fleet *hr_fleet_free(struct hr_fleet *fleet) {
        if (!fleet)
                return NULL;
        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                for (uint32_t i = 0; i < fleet->spare[d].count; ++i)
                        hr_event_free(fleet->spare[d].events[i]);
                free(fleet->spare[d].events);
        }
        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                if (fleet->uploads)
                        hr_queue_free(fleet->uploads[d]);
                hr_queue_free(fleet->queues[d]);
                hr_device_unref(fleet->devices[d]);
        }
        for (uint32_t q = 0; fleet->recorders && q < 2 * fleet->device_count; ++q)
                hr_recorder_free(fleet->recorders[q]);
        free(fleet->recorders);
        free(fleet->retired);
        if (fleet->desk)
                hr_arena_deinit(&fleet->desk->arena);
        free(fleet->desk);
        free(fleet->spare);
        free(fleet->uploads);
        free(fleet->queues);
        free(fleet->devices);
        free(fleet);
        return NULL;
}

hr_status hr_fleet_record(struct hr_fleet *fleet, uint32_t spans, struct hr_diag *diag) {
        HR_ASSERT(!fleet->recorders);
        if (spans == 0)
                return HR_OK;
        fleet->recorders = calloc((size_t) fleet->device_count * 2, sizeof *fleet->recorders);
        if (!fleet->recorders)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for recorders");
        for (uint32_t q = 0; q < 2 * fleet->device_count; ++q)
                HR_TRY(hr_recorder_new(spans, diag, &fleet->recorders[q]));
        for (uint32_t d = 0; d < fleet->device_count; ++d)
                fleet->queues[d]->recorder = fleet->recorders[d];
        return HR_OK;
}

const struct hr_recorder *hr_fleet_recorder(const struct hr_fleet *fleet, uint32_t queue) {
        HR_ASSERT(queue < 2 * fleet->device_count);
        return fleet->recorders ? fleet->recorders[queue] : NULL;
}

hr_status hr_fleet_upload_queue(struct hr_fleet *fleet, uint32_t device, struct hr_diag *diag) {
        struct hr_queue *queue = NULL;

        if (fleet->uploads[device])
                return HR_OK;
        HR_TRY(hr_queue_new_for_uploads(fleet->devices[device], diag, &queue));
        if (fleet->recorders)
                queue->recorder = fleet->recorders[fleet->device_count + device];
        fleet->uploads[device] = queue;
        return HR_OK;
}

hr_status hr_fleet_event_take(struct hr_fleet *fleet, uint32_t device, struct hr_diag *diag,
                              struct hr_event **ret_event) {
        struct hr_spare_events *spare = &fleet->spare[device];

        if (spare->count == 0)
                return hr_event_new(fleet->devices[device], diag, ret_event);
        *ret_event = spare->events[--spare->count];
        return HR_OK;
}

hr_status hr_fleet_wait(struct hr_fleet *fleet, struct hr_event *event, uint64_t timeout_ns) {
        atomic_fetch_add_explicit(&fleet->counters.device_waits, 1, memory_order_relaxed);
        return hr_event_synchronize(event, timeout_ns, NULL);
}

void hr_fleet_event_give(struct hr_fleet *fleet, uint32_t device, struct hr_event *event) {
        struct hr_spare_events *spare = &fleet->spare[device];

        if (!event)
                return;
        if (spare->count == spare->capacity) {
                uint32_t wanted = spare->capacity ? spare->capacity * 2 : 64;
                struct hr_event **larger = realloc(spare->events, wanted * sizeof *larger);

                if (!larger) {
                        hr_event_free(event);
                        return;
                }
                spare->events = larger;
                spare->capacity = wanted;
        }
        spare->events[spare->count++] = event;
}

uint32_t hr_fleet_device_count(const struct hr_fleet *fleet) {
        return fleet->device_count;
}

struct hr_device *hr_fleet_device(const struct hr_fleet *fleet, uint32_t index) {
        HR_ASSERT(index < fleet->device_count);
        return fleet->devices[index];
}

struct hr_queue *hr_fleet_queue(const struct hr_fleet *fleet, uint32_t index) {
        HR_ASSERT(index < fleet->device_count);
        return fleet->queues[index];
}

uint64_t hr_fleet_epoch(const struct hr_fleet *fleet) {
        return fleet->epoch;
}

uint32_t hr_fleet_retire(struct hr_fleet *fleet) {
        uint32_t count = 0;

        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                if (fleet->retired[d] || !hr_device_is_lost(fleet->devices[d]))
                        continue;
                atomic_store(&fleet->retired[d], true);
                atomic_fetch_add(&fleet->epoch, 1);
                ++count;
        }
        return count;
}

bool hr_fleet_has_losses(const struct hr_fleet *fleet) {
        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                if (hr_device_is_lost(fleet->devices[d]) && !fleet->retired[d])
                        return true;
        }
        return false;
}

bool hr_fleet_is_retired(const struct hr_fleet *fleet, uint32_t index) {
        HR_ASSERT(index < fleet->device_count);
        return fleet->retired[index];
}

int64_t hr_fleet_find(const struct hr_fleet *fleet, const char *name) {
        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                if (!fleet->retired[d] && strcmp(fleet->devices[d]->props.name, name) == 0)
                        return d;
        }
        return -1;
}

struct hr_exec_stats hr_fleet_exec_stats(const struct hr_fleet *fleet) {
        const struct hr_exec_counters *counters = &fleet->counters;

#define LOAD(name) .name = atomic_load_explicit(&counters->name, memory_order_relaxed)
        return (struct hr_exec_stats){
                LOAD(runs_started),     LOAD(runs_ok),         LOAD(runs_failed),
                LOAD(runs_cancelled),   LOAD(splits_computed), LOAD(nodes_computed),
                LOAD(bytes_copied),     LOAD(bytes_in),        LOAD(bytes_out),
                LOAD(expert_hits),      LOAD(expert_misses),   LOAD(expert_bytes),
                LOAD(longest_start_ns), LOAD(device_waits),
        };
#undef LOAD
}
