/*
 * The wrappers around the four vtables: they assert arguments, keep the accounts of device memory,
 * and are the only callers of ops->x. Also the outcome of a run and buffers over foreign memory.
 */
#include "core/device.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

const struct hr_buffer_kind hr_host_kind = { .name = "host", .host = true, .alignment = 64 };

const char *hr_device_type_name(hr_device_type type) {
        static const char *const names[] = { "CPU", "GPU", "IGPU", "ACCEL" };

        HR_ASSERT(type < HR_ARRAY_LENGTH(names));
        return names[type];
}

/* ---- Outcome --------------------------------------------------------------------------------- */

enum { PHASE_RUNNING, PHASE_WRITING, PHASE_FAILED, PHASE_ENDED };

hr_status hr_outcome_fail(struct hr_outcome *outcome, hr_status status, const char *reason,
                          uint32_t node, const char *format, ...) {
        int expected = PHASE_RUNNING;
        va_list args;

        if (!outcome || !atomic_compare_exchange_strong(&outcome->phase, &expected, PHASE_WRITING))
                return status;
        outcome->diag = (struct hr_diag) { .status = status, .reason = reason };
        if (node != HR_DIAG_NO_INDEX) {
                outcome->diag.has_node = true;
                outcome->diag.node = node;
        }
        va_start(args, format);
        (void) vsnprintf(outcome->diag.words, sizeof outcome->diag.words, format, args);
        va_end(args);
        atomic_store_explicit(&outcome->phase, PHASE_FAILED, memory_order_release);
        return status;
}

void hr_outcome_end(struct hr_outcome *outcome) {
        int expected = PHASE_RUNNING;

        if (!atomic_compare_exchange_strong(&outcome->phase, &expected, PHASE_ENDED))
                (void) hr_outcome_diag(outcome); /* whoever writes it now takes no longer than
                                                  * that */
}

void hr_outcome_reach(struct hr_outcome *outcome, uint32_t steps) {
        unsigned seen;

        if (!outcome)
                return;
        seen = atomic_load_explicit(&outcome->reached, memory_order_relaxed);
        while (seen < steps &&
               !atomic_compare_exchange_weak(&outcome->reached, &seen, steps)) {
        }
}

bool hr_outcome_failed(struct hr_outcome *outcome) {
        int phase;

        if (!outcome)
                return false;
        phase = atomic_load_explicit(&outcome->phase, memory_order_acquire);
        return phase == PHASE_WRITING || phase == PHASE_FAILED;
}

const struct hr_diag *hr_outcome_diag(struct hr_outcome *outcome) {
        int phase;

        do
                phase = atomic_load_explicit(&outcome->phase, memory_order_acquire);
        while (phase == PHASE_WRITING);
        return phase == PHASE_FAILED ? &outcome->diag : NULL;
}

/* ---- Device ---------------------------------------------------------------------------------- */

struct hr_device *hr_device_ref(struct hr_device *device) {
        HR_ASSERT(atomic_load(&device->refs) > 0);
        atomic_fetch_add(&device->refs, 1);
        return device;
}

struct hr_device *hr_device_unref(struct hr_device *device) {
        if (device && atomic_fetch_sub(&device->refs, 1) == 1)
                device->ops->destroy(device);
        return NULL;
}

bool hr_device_supports_op(const struct hr_device *device, const struct hr_graph *graph,
                           uint32_t tensor) {
        HR_ASSERT(tensor < hr_graph_tensor_count(graph));
        return device->ops->supports_op(device, graph, tensor);
}

bool hr_device_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind || device->ops->reads_kind(device, kind);
}

bool hr_device_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                             uint32_t tensor) {
        return device->ops->wants_offload(device, graph, tensor);
}

void hr_device_memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total) {
        uint64_t used = atomic_load(&device->used_bytes);

        device->ops->memory(device, ret_free, ret_total);
        if (device->memory_cap) {
                uint64_t left = device->memory_cap > used ? device->memory_cap - used : 0;

                *ret_total = HR_MIN(*ret_total, device->memory_cap);
                *ret_free = HR_MIN(*ret_free, left);
        }
}

void hr_device_pin_none(struct hr_device *device, struct hr_buffer *buffer) {
        (void) device;
        (void) buffer;
}

void hr_device_pin(struct hr_device *device, struct hr_buffer *buffer) {
        if (buffer->host_base && buffer->usage == HR_USAGE_WEIGHTS && buffer->bytes)
                device->ops->pin(device, buffer);
}

hr_status hr_device_upload_queue_none(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue) {
        (void) ret_queue;
        return hr_fail(diag, HR_E_UNSUPPORTED, "%s has no queue for uploads", device->props.name);
}

void hr_device_optimize_none(const struct hr_device *device, const struct hr_split_view *view,
                             uint32_t *order, bool *joined) {
}

void hr_device_optimize(const struct hr_device *device, const struct hr_split_view *view,
                        uint32_t *order, bool *joined) {
        for (uint32_t i = 0; i < view->node_count; i++) {
                order[i] = i;
                joined[i] = false;
        }
        device->ops->optimize(device, view, order, joined);
}

void hr_device_lose(struct hr_device *device) {
        atomic_store(&device->lost, true);
}

bool hr_device_is_lost(const struct hr_device *device) {
        return atomic_load_explicit(&device->lost, memory_order_acquire) ||
               (device->lost_with &&
                atomic_load_explicit(device->lost_with, memory_order_acquire) != 0);
}

/* What a member of the device answered. */
static hr_status device_heard(struct hr_device *device, hr_status status) {
        if (HR_UNLIKELY(status == HR_E_DEVICE_LOST))
                hr_device_lose(device);
        return status;
}

/* ---- Buffer ---------------------------------------------------------------------------------- */

/* Adds to the account unless the cap forbids it. */
static bool device_charge(struct hr_device *device, uint64_t bytes) {
        uint_fast64_t used = atomic_load(&device->used_bytes);
        uint64_t total;

        do {
                if (!hr_add_u64(used, bytes, &total))
                        return false;
                if (device->memory_cap && total > device->memory_cap)
                        return false;
        } while (!atomic_compare_exchange_weak(&device->used_bytes, &used, total));
        return true;
}

static hr_status device_charge_or_fail(struct hr_device *device, uint64_t bytes,
                                       struct hr_diag *diag) {
        uint64_t used;

        if (device_charge(device, bytes))
                return HR_OK;
        used = atomic_load(&device->used_bytes);
        (void) hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                              "%s: %" PRIu64 " bytes asked, %" PRIu64 " free of %" PRIu64,
                              device->props.name, bytes,
                              device->memory_cap > used ? device->memory_cap - used : 0,
                              device->memory_cap);
        if (diag) {
                diag->limit = device->memory_cap;
                diag->actual = bytes;
        }
        return HR_E_EXHAUSTED;
}

hr_status hr_buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                        struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        hr_status status;

        HR_TRY(device_charge_or_fail(device, bytes, diag));
        status = device_heard(device,
                              device->ops->buffer_new(device, bytes, usage, diag, ret_buffer));
        if (status != HR_OK) {
                atomic_fetch_sub(&device->used_bytes, bytes);
                return status;
        }
        HR_ASSERT((*ret_buffer)->bytes == bytes && (*ret_buffer)->device == device);
        HR_ASSERT(!(*ret_buffer)->expert_usages);
        (void) hr_device_ref(device);
        return HR_OK;
}

hr_status hr_buffer_grow(struct hr_buffer *buffer, uint64_t bytes, struct hr_diag *diag) {
        struct hr_device *device = buffer->device;
        uint64_t more;
        hr_status status;

        HR_ASSERT(bytes >= buffer->bytes);
        more = bytes - buffer->bytes;
        HR_TRY(device_charge_or_fail(device, more, diag));
        status = device_heard(device, buffer->ops->grow(buffer, bytes, diag));
        if (status != HR_OK) {
                atomic_fetch_sub(&device->used_bytes, more);
                return status;
        }
        buffer->bytes = bytes;
        return HR_OK;
}

hr_status hr_buffer_grow_none(struct hr_buffer *buffer, uint64_t bytes, struct hr_diag *diag) {
        return hr_fail(diag, HR_E_UNSUPPORTED, "memory of %s does not grow to %" PRIu64 " bytes",
                       buffer->device->props.name, bytes);
}

bool hr_buffer_is_lost(const struct hr_buffer *buffer) {
        return !buffer->kind->host && hr_device_is_lost(buffer->device);
}

void hr_buffer_changed(struct hr_buffer *buffer) {
        atomic_fetch_add(&buffer->changes, 1);
}

hr_status hr_buffer_expert_usage(struct hr_buffer *buffer, uint64_t offset, uint32_t experts,
                                 struct hr_diag *diag, struct hr_expert_usage **ret_usage) {
        struct hr_expert_usage *usage = buffer->expert_usages;

        while (usage && (usage->offset != offset || usage->experts != experts))
                usage = usage->next;
        if (!usage) {
                usage = calloc(1, sizeof *usage + (size_t) experts * sizeof *usage->runs);
                if (!usage)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for counters of experts");
                usage->offset = offset;
                usage->experts = experts;
                usage->next = buffer->expert_usages;
                buffer->expert_usages = usage;
        }
        *ret_usage = usage;
        return HR_OK;
}

struct hr_buffer *hr_buffer_ref(struct hr_buffer *buffer) {
        HR_ASSERT(atomic_load(&buffer->refs) > 0);
        atomic_fetch_add(&buffer->refs, 1);
        return buffer;
}

struct wrapped_buffer {
        struct hr_buffer buffer;
        void (*release)(void *arg);
        void *arg;
        bool is_charged; /* to the device */
};

static void wrapped_destroy(struct hr_buffer *buffer) {
        struct wrapped_buffer *wrapped = HR_CONTAINER_OF(buffer, struct wrapped_buffer, buffer);

        if (wrapped->is_charged)
                atomic_fetch_sub(&buffer->device->used_bytes, buffer->bytes);
        if (wrapped->release)
                wrapped->release(wrapped->arg);
        free(wrapped);
}

static const struct hr_buffer_ops wrapped_ops = {
        .size = sizeof wrapped_ops,
        .destroy = wrapped_destroy,
        .grow = hr_buffer_grow_none,
};

hr_status hr_buffer_wrap(struct hr_device *device, void *base, uint64_t bytes,
                         hr_buffer_usage usage, void (*release)(void *arg), void *arg,
                         struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        struct wrapped_buffer *wrapped = calloc(1, sizeof *wrapped);

        if (!wrapped)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a buffer");
        wrapped->buffer.ops = &wrapped_ops;
        wrapped->buffer.device = hr_device_ref(device);
        wrapped->buffer.kind = &hr_host_kind;
        wrapped->buffer.usage = usage;
        wrapped->buffer.base = wrapped->buffer.host_base = base;
        wrapped->buffer.bytes = bytes;
        atomic_init(&wrapped->buffer.refs, 1);
        wrapped->release = release;
        wrapped->arg = arg;
        *ret_buffer = &wrapped->buffer;
        return HR_OK;
}

hr_status hr_buffer_adopt(struct hr_device *device, void *base, uint64_t bytes,
                          hr_buffer_usage usage, void (*release)(void *arg), void *arg,
                          struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        hr_status status;

        HR_TRY(device_charge_or_fail(device, bytes, diag));
        status = hr_buffer_wrap(device, base, bytes, usage, release, arg, diag, ret_buffer);
        if (status != HR_OK) {
                atomic_fetch_sub(&device->used_bytes, bytes);
                return status;
        }
        HR_CONTAINER_OF(*ret_buffer, struct wrapped_buffer, buffer)->is_charged = true;
        return HR_OK;
}

struct hr_buffer *hr_buffer_unref(struct hr_buffer *buffer) {
        struct hr_device *device;

        if (!buffer || atomic_fetch_sub(&buffer->refs, 1) != 1)
                return NULL;
        device = buffer->device;
        while (buffer->pins) {
                struct hr_buffer_pin *pin = buffer->pins;

                buffer->pins = pin->next;
                pin->release(pin);
        }
        while (buffer->expert_usages) {
                struct hr_expert_usage *usage = buffer->expert_usages;

                buffer->expert_usages = usage->next;
                free(usage);
        }
        if (buffer->ops != &wrapped_ops)
                atomic_fetch_sub(&device->used_bytes, buffer->bytes);
        buffer->ops->destroy(buffer);
        (void) hr_device_unref(device);
        return NULL;
}

/* ---- Program, queue, event ------------------------------------------------------------------- */

uint64_t hr_device_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                 const uint32_t *nodes, uint32_t node_count) {
        return node_count ? device->ops->program_bytes(device, graph, nodes, node_count) : 0;
}

hr_status hr_program_new(struct hr_device *device, const struct hr_steps *steps,
                         struct hr_diag *diag, struct hr_program **ret_program) {
        HR_TRY(device_heard(device, device->ops->program_new(device, steps, diag, ret_program)));
        HR_ASSERT((*ret_program)->steps == steps && (*ret_program)->device == device);
        return HR_OK;
}

struct hr_program *hr_program_free(struct hr_program *program) {
        if (program)
                program->ops->destroy(program);
        return NULL;
}

hr_status hr_queue_new(struct hr_device *device, struct hr_diag *diag,
                       struct hr_queue **ret_queue) {
        HR_TRY(device_heard(device, device->ops->queue_new(device, diag, ret_queue)));
        HR_ASSERT((*ret_queue)->device == device);
        (void) hr_device_ref(device);
        return HR_OK;
}

hr_status hr_queue_new_for_uploads(struct hr_device *device, struct hr_diag *diag,
                                   struct hr_queue **ret_queue) {
        HR_TRY(device_heard(device, device->ops->upload_queue_new(device, diag, ret_queue)));
        HR_ASSERT((*ret_queue)->device == device);
        (void) hr_device_ref(device);
        return HR_OK;
}

struct hr_queue *hr_queue_free(struct hr_queue *queue) {
        if (queue) {
                struct hr_device *device = queue->device;

                queue->ops->destroy(queue);
                (void) hr_device_unref(device);
        }
        return NULL;
}

hr_status hr_queue_compute(struct hr_queue *queue, struct hr_program *program, uint32_t first,
                           uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        HR_ASSERT(program->device == queue->device);
        HR_ASSERT((uint64_t) first + count <= program->steps->count);
        return device_heard(queue->device,
                            queue->ops->compute(queue, program, first, count, outcome, diag));
}

hr_status hr_queue_write(struct hr_queue *queue, void *destination, const void *host,
                         uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        HR_ASSERT(bytes == 0 || (destination && host));
        return device_heard(queue->device,
                            queue->ops->write(queue, destination, host, bytes, outcome, diag));
}

hr_status hr_queue_read(struct hr_queue *queue, const void *source, void *host, uint64_t bytes,
                        struct hr_outcome *outcome, struct hr_diag *diag) {
        HR_ASSERT(bytes == 0 || (source && host));
        return device_heard(queue->device,
                            queue->ops->read(queue, source, host, bytes, outcome, diag));
}

hr_status hr_queue_copy(struct hr_queue *queue, const void *source, void *destination,
                        const struct hr_buffer_kind *to, uint64_t bytes,
                        struct hr_outcome *outcome, struct hr_diag *diag) {
        HR_ASSERT(bytes == 0 || (source && destination));
        return device_heard(queue->device,
                            queue->ops->copy(queue, source, destination, to, bytes, outcome, diag));
}

bool hr_queue_can_copy(const struct hr_queue *queue, const struct hr_buffer_kind *to) {
        return queue->ops->can_copy(queue, to);
}

const char *hr_queue_copy_fault(const struct hr_queue *queue, const struct hr_buffer_kind *to) {
        return queue->ops->copy_fault(queue, to);
}

const char *hr_queue_copy_fault_none(const struct hr_queue *queue,
                                     const struct hr_buffer_kind *to) {
        return NULL;
}

hr_status hr_queue_wait(struct hr_queue *queue, struct hr_event *event, struct hr_diag *diag) {
        HR_ASSERT(event);
        return device_heard(queue->device, queue->ops->wait(queue, event, diag));
}

hr_status hr_queue_record(struct hr_queue *queue, struct hr_event *event, struct hr_diag *diag) {
        HR_ASSERT(event->device == queue->device);
        return device_heard(queue->device, queue->ops->record(queue, event, diag));
}

hr_status hr_queue_notify(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                          struct hr_diag *diag) {
        HR_ASSERT(fn);
        return device_heard(queue->device, queue->ops->notify(queue, fn, arg, diag));
}

hr_status hr_queue_copy_experts(struct hr_queue *queue, struct hr_expert_cache *cache,
                                uint32_t weight, const void *ids, struct hr_expert_tally *tally,
                                struct hr_outcome *outcome, struct hr_diag *diag) {
        HR_ASSERT(queue->device->props.experts);
        HR_ASSERT(weight < cache->weight_count);
        HR_ASSERT(ids);
        return device_heard(queue->device, queue->ops->copy_experts(queue, cache, weight, ids,
                                                                    tally, outcome, diag));
}

hr_status hr_event_new(struct hr_device *device, struct hr_diag *diag,
                       struct hr_event **ret_event) {
        HR_TRY(device_heard(device, device->ops->event_new(device, diag, ret_event)));
        HR_ASSERT((*ret_event)->device == device);
        (void) hr_device_ref(device);
        return HR_OK;
}

struct hr_event *hr_event_free(struct hr_event *event) {
        if (event) {
                struct hr_device *device = event->device;

                event->ops->destroy(event);
                (void) hr_device_unref(device);
        }
        return NULL;
}

bool hr_event_query(struct hr_event *event) {
        return event->ops->query(event);
}

hr_status hr_event_synchronize(struct hr_event *event, uint64_t timeout_ns,
                               struct hr_diag *diag) {
        return device_heard(event->device, event->ops->synchronize(event, timeout_ns, diag));
}
