/*
 * A device for tests whose memory no other queue can write: what goes there goes through staging.
 * It computes ADD, SUB and MUL of equal f32 rows (a source of one element is repeated), and sleeps
 * at random before a step, so that missing edges have a chance to show. Everything else is the host
 * machinery's.
 */
#include "core/host.h"
#include "tests/unit/scheduler/graphs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct opaque {
        struct hr_device device;
        struct hr_buffer_kind kind;
        char name[16];
        uint32_t sleep_us; /* at most, before a step */
        _Atomic uint32_t seed;
};

static struct opaque *opaque_cast(const struct hr_device *device) {
        return (struct opaque *) HR_CONTAINER_OF(device, struct opaque, device);
}

static void opaque_destroy(struct hr_device *device) {
        free(opaque_cast(device));
}

static bool opaque_supports_op(const struct hr_device *device, const struct hr_graph *graph,
                               uint32_t tensor) {
        uint32_t op = graph->tensors[tensor].op;

        return op == HR_OP_ADD || op == HR_OP_SUB || op == HR_OP_MUL || op == HR_OP_NONE ||
               hr_op_is_view(op);
}

static bool opaque_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind;
}

static bool opaque_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                                 uint32_t tensor) {
        return false;
}

static hr_status opaque_buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                                   struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        HR_TRY(hr_host_buffer_new(device, device->props.kind, bytes, usage, diag, ret_buffer));
        /* Tests look into weights and states; what the scheduler places it reaches by queue
         * only. */
        if (usage == HR_USAGE_COMPUTE)
                (*ret_buffer)->host_base = NULL;
        return HR_OK;
}

static void opaque_step(const struct hr_step *step) {
        const float *a = step->sources[0].data, *b = step->sources[1].data;
        float *result = step->result.data;

        for (int64_t i = 0; i < step->result.ne[0]; ++i) {
                float right = b[step->sources[1].ne[0] == 1 ? 0 : i];

                switch (step->op) {
                case HR_OP_ADD:
                        result[i] = a[i] + right;
                        break;
                case HR_OP_SUB:
                        result[i] = a[i] - right;
                        break;
                default:
                        result[i] = a[i] * right;
                }
        }
}

static void opaque_compute(struct hr_program *program, uint32_t first, uint32_t count,
                           struct hr_host_team *team, struct hr_outcome *outcome) {
        struct opaque *opaque = opaque_cast(program->device);

        for (uint32_t i = first; i < first + count; ++i) {
                uint32_t seed = atomic_fetch_add(&opaque->seed, 0x9e3779b9U);

                seed ^= seed >> 15;
                seed *= 0x2c1b3c6dU;
                seed ^= seed >> 13;
                if (opaque->sleep_us && seed % 4 == 0)
                        usleep(seed / 4 % opaque->sleep_us);
                opaque_step(&program->steps->steps[i]);
        }
}

static hr_status opaque_queue_new(struct hr_device *device, struct hr_diag *diag,
                                  struct hr_queue **ret_queue) {
        struct hr_host_queue_config config = {
                .team = {.name = device->props.name, .threads = 1},
                .compute = opaque_compute,
        };

        return hr_host_queue_new(device, &config, diag, ret_queue);
}

static hr_status opaque_event_new(struct hr_device *device, struct hr_diag *diag,
                                  struct hr_event **ret_event) {
        return hr_host_event_new(device, 0, diag, ret_event);
}

static void opaque_program_destroy(struct hr_program *program) {
        free(program);
}

static const struct hr_program_ops opaque_program_ops = {
        .size = sizeof opaque_program_ops,
        .destroy = opaque_program_destroy,
};

static hr_status opaque_program_new(struct hr_device *device, const struct hr_steps *steps,
                                    struct hr_diag *diag, struct hr_program **ret_program) {
        struct hr_program *program = calloc(1, sizeof *program);

        if (!program)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a program");
        program->ops = &opaque_program_ops;
        program->device = device;
        program->steps = steps;
        *ret_program = program;
        return HR_OK;
}

static uint64_t opaque_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                     const uint32_t *nodes, uint32_t node_count) {
        return 0;
}

static void opaque_memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total) {
        hr_host_memory(ret_free, ret_total);
}

static const struct hr_device_ops opaque_ops = {
        .size = sizeof opaque_ops,
        .destroy = opaque_destroy,
        .supports_op = opaque_supports_op,
        .reads_kind = opaque_reads_kind,
        .wants_offload = opaque_wants_offload,
        .buffer_new = opaque_buffer_new,
        .queue_new = opaque_queue_new,
        .event_new = opaque_event_new,
        .program_new = opaque_program_new,
        .program_bytes = opaque_program_bytes,
        .memory = opaque_memory,
        .optimize = hr_device_optimize_none,
        .pin = hr_device_pin_none,
        .upload_queue_new = hr_device_upload_queue_none,
};

struct hr_device *opaque_device_new(const char *name, uint32_t sleep_us, uint32_t seed) {
        struct opaque *opaque = calloc(1, sizeof *opaque);

        HR_EXPECT(opaque);
        (void) snprintf(opaque->name, sizeof opaque->name, "%s", name);
        opaque->kind = (struct hr_buffer_kind){.name = opaque->name, .alignment = 64};
        opaque->sleep_us = sleep_us;
        atomic_init(&opaque->seed, seed);
        atomic_init(&opaque->device.refs, 1);
        opaque->device.ops = &opaque_ops;
        opaque->device.props = (struct hr_device_props){.name = opaque->name,
                                                        .description = "test",
                                                        .type = HR_DEVICE_GPU,
                                                        .kind = &opaque->kind,
                                                        .events = true,
                                                        .async = true};
        return &opaque->device;
}
