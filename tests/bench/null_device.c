/* Devices that compute nothing. See null_device.h. */
#include "tests/bench/null_device.h"

#include <stdlib.h>

struct null_device {
        struct hr_device device;
        struct hr_buffer_kind kind;
};

static void *need(size_t bytes) {
        void *memory = calloc(1, bytes);

        if (!memory)
                abort();
        return memory;
}

static void device_destroy(struct hr_device *device) {
        free(HR_CONTAINER_OF(device, struct null_device, device));
}

static bool supports_op(const struct hr_device *device, const struct hr_graph *graph,
                        uint32_t tensor) {
        return true;
}

static bool reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind;
}

static bool wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                          uint32_t tensor) {
        return false;
}

static void buffer_destroy(struct hr_buffer *buffer) {
        free(buffer);
}

static const struct hr_buffer_ops buffer_ops = {.size = sizeof buffer_ops,
                                                .destroy = buffer_destroy,
                                              .grow = hr_buffer_grow_none};

static hr_status buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                            struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        struct hr_buffer *buffer = need(sizeof *buffer);

        *buffer = (struct hr_buffer){.ops = &buffer_ops,
                                     .device = device,
                                     .kind = device->props.kind,
                                     .usage = usage,
                                     .base = (void *) (uintptr_t) (UINT64_C(1) << 40),
                                     .bytes = bytes};
        atomic_init(&buffer->refs, 1);
        *ret_buffer = buffer;
        return HR_OK;
}

static void queue_destroy(struct hr_queue *queue) {
        free(queue);
}

static hr_status queue_compute(struct hr_queue *queue, struct hr_program *program, uint32_t first,
                               uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        return HR_OK;
}

static hr_status queue_write(struct hr_queue *queue, void *destination, const void *host,
                             uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return HR_OK;
}

static hr_status queue_read(struct hr_queue *queue, const void *source, void *host, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        return HR_OK;
}

static hr_status queue_copy(struct hr_queue *queue, const void *source, void *destination,
                            const struct hr_buffer_kind *to, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        return HR_OK;
}

static bool queue_can_copy(const struct hr_queue *queue, const struct hr_buffer_kind *to) {
        return true;
}

static hr_status queue_event(struct hr_queue *queue, struct hr_event *event, struct hr_diag *diag) {
        return HR_OK;
}

static hr_status queue_notify(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                              struct hr_diag *diag) {
        fn(arg);
        return HR_OK;
}

static const struct hr_queue_ops queue_ops = {
        .size = sizeof queue_ops,
        .destroy = queue_destroy,
        .compute = queue_compute,
        .write = queue_write,
        .read = queue_read,
        .copy = queue_copy,
        .can_copy = queue_can_copy,
        .copy_fault = hr_queue_copy_fault_none,
        .wait = queue_event,
        .record = queue_event,
        .notify = queue_notify,
};

static hr_status queue_new(struct hr_device *device, struct hr_diag *diag,
                           struct hr_queue **ret_queue) {
        struct hr_queue *queue = need(sizeof *queue);

        *queue = (struct hr_queue){.ops = &queue_ops, .device = device};
        *ret_queue = queue;
        return HR_OK;
}

static void event_destroy(struct hr_event *event) {
        free(event);
}

static bool event_query(struct hr_event *event) {
        return true;
}

static hr_status event_synchronize(struct hr_event *event, uint64_t timeout_ns,
                                   struct hr_diag *diag) {
        return HR_OK;
}

static const struct hr_event_ops event_ops = {
        .size = sizeof event_ops,
        .destroy = event_destroy,
        .query = event_query,
        .synchronize = event_synchronize,
};

static hr_status event_new(struct hr_device *device, struct hr_diag *diag,
                           struct hr_event **ret_event) {
        struct hr_event *event = need(sizeof *event);

        *event = (struct hr_event){.ops = &event_ops, .device = device};
        *ret_event = event;
        return HR_OK;
}

static void program_destroy(struct hr_program *program) {
        free(program);
}

static const struct hr_program_ops program_ops = {.size = sizeof program_ops,
                                                  .destroy = program_destroy};

static hr_status program_new(struct hr_device *device, const struct hr_steps *steps,
                             struct hr_diag *diag, struct hr_program **ret_program) {
        struct hr_program *program = need(sizeof *program);

        *program = (struct hr_program){.ops = &program_ops, .device = device, .steps = steps};
        *ret_program = program;
        return HR_OK;
}

static uint64_t program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                              const uint32_t *nodes, uint32_t node_count) {
        return 0;
}

static void memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total) {
        *ret_free = *ret_total = UINT64_C(1) << 46;
}

static const struct hr_device_ops device_ops = {
        .size = sizeof device_ops,
        .destroy = device_destroy,
        .supports_op = supports_op,
        .reads_kind = reads_kind,
        .wants_offload = wants_offload,
        .buffer_new = buffer_new,
        .queue_new = queue_new,
        .event_new = event_new,
        .program_new = program_new,
        .program_bytes = program_bytes,
        .memory = memory,
        .optimize = hr_device_optimize_none,
        .pin = hr_device_pin_none,
        .upload_queue_new = hr_device_upload_queue_none,
};

struct hr_device *null_device_new(const char *name, hr_device_type type) {
        struct null_device *null = need(sizeof *null);

        null->kind = (struct hr_buffer_kind){.name = name, .alignment = 128};
        null->device.ops = &device_ops;
        null->device.props = (struct hr_device_props){
                .name = name,
                .description = "computes nothing",
                .type = type,
                .kind = type == HR_DEVICE_CPU ? &hr_host_kind : &null->kind,
                .events = true,
                .async = true,
        };
        atomic_init(&null->device.refs, 1);
        return &null->device;
}
