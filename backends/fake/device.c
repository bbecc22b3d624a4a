/*
 * A simulated device: what it says of itself, its memory and its programs.
 *
 * Memory comes in two sorts. With bytes, results can be looked at and the device supports the ops
 * of compute.c. Sizes only: addresses are made up, nothing is ever touched, and all ops are
 * supported; a thousand devices of 80 GB each cost nothing.
 */
#include "backends/fake/fake.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENDLESS_BYTES (UINT64_C(1) << 46)
#define ALIGNMENT 64U

static const struct hr_device_ops device_ops;

struct fake_device *fake_device_cast(const struct hr_device *device) {
        HR_ASSERT(device->ops == &device_ops);
        return (struct fake_device *) HR_CONTAINER_OF(device, struct fake_device, device);
}

static bool copy_words(struct fake_device *device, const struct hr_fake_config *config) {
        device->name = strdup(config->name);
        if (config->lose_folder &&
            asprintf(&device->lose_file, "%s/%s", config->lose_folder, config->name) < 0)
                device->lose_file = NULL;
        return device->name && (device->lose_file || !config->lose_folder);
}

static void free_words(struct fake_device *device) {
        free(device->lose_file);
        free(device->name);
}

static void device_destroy(struct hr_device *base) {
        struct fake_device *device = fake_device_cast(base);

        hr_fake_world_unref(device->world);
        free(device->links);
        free_words(device);
        free(device);
}

/* ---- Answers --------------------------------------------------------------------------------- */

static bool supports_op(const struct hr_device *base, const struct hr_graph *graph,
                        uint32_t tensor) {
        const struct fake_device *device = fake_device_cast(base);

        ++device->world->asked;
        if (hr_deny_refuses(&device->deny, graph, tensor))
                return false;
        return device->config.sizes_only || fake_can_compute(graph, tensor);
}

static bool reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind;
}

static bool wants_offload(const struct hr_device *base, const struct hr_graph *graph,
                          uint32_t tensor) {
        int64_t batch = fake_device_cast(base)->config.offload_batch;
        const struct hr_tensor *t = &graph->tensors[tensor];

        return batch && t->ne[t->op == HR_OP_MUL_MAT_ID ? 2 : 1] >= batch;
}

static uint64_t program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                              const uint32_t *nodes, uint32_t node_count) {
        return 0;
}

static void memory(const struct hr_device *base, uint64_t *ret_free, uint64_t *ret_total) {
        const struct fake_device *device = fake_device_cast(base);

        *ret_total = device->config.memory_bytes ? device->config.memory_bytes : ENDLESS_BYTES;
        *ret_free = *ret_total - device->taken_bytes;
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static void buffer_destroy(struct hr_buffer *buffer) {
        struct fake_device *device = fake_device_cast(buffer->device);

        device->taken_bytes -= buffer->bytes;
        if (!device->config.sizes_only)
                free(buffer->base);
        free(buffer);
}

static const struct hr_buffer_ops buffer_ops = {
        .size = sizeof buffer_ops,
        .destroy = buffer_destroy,
        .grow = hr_buffer_grow_none,
};

static void *take_bytes(struct fake_device *device, uint64_t bytes) {
        struct hr_fake_world *world = device->world;
        uint64_t room;
        void *base;

        if (!hr_align_up_u64(HR_MAX(bytes, 1U), ALIGNMENT, &room))
                return NULL;
        if (device->config.sizes_only) {
                uint64_t at = world->next_address;

                if (!hr_add_u64(at, room, &world->next_address))
                        return NULL;
                return (void *) (uintptr_t) at;
        }
        base = aligned_alloc(ALIGNMENT, (size_t) room);
        if (base)
                memset(base, 0, (size_t) room);
        return base;
}

static hr_status refuse(const struct fake_device *device, uint64_t bytes, uint64_t left,
                        struct hr_diag *diag) {
        (void) hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                              "%s: %" PRIu64 " bytes asked, %" PRIu64 " free", device->name, bytes,
                              left);
        if (diag) {
                diag->limit = left;
                diag->actual = bytes;
        }
        return HR_E_EXHAUSTED;
}

static hr_status buffer_new(struct hr_device *base, uint64_t bytes, hr_buffer_usage usage,
                            struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        struct fake_device *device = fake_device_cast(base);
        struct hr_buffer *buffer;
        uint64_t left, total;

        HR_TRY(fake_call(device, diag));
        memory(base, &left, &total);
        if (bytes > left)
                return refuse(device, bytes, left, diag);
        buffer = calloc(1, sizeof *buffer);
        if (!buffer)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a buffer");
        *buffer = (struct hr_buffer){.ops = &buffer_ops,
                                     .device = base,
                                     .kind = base->props.kind,
                                     .usage = usage,
                                     .base = take_bytes(device, bytes),
                                     .bytes = bytes};
        if (!buffer->base) {
                free(buffer);
                return refuse(device, bytes, left, diag);
        }
        /* What the scheduler places in a GPU's memory it reaches by queue only. Where there are no
         * bytes, host weights still have addresses to name. */
        if (device->config.sizes_only ? usage == HR_USAGE_WEIGHTS && buffer->kind->host
                                      : usage != HR_USAGE_COMPUTE || buffer->kind->host)
                buffer->host_base = buffer->base;
        atomic_init(&buffer->refs, 1);
        device->taken_bytes += bytes;
        *ret_buffer = buffer;
        return HR_OK;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static void program_destroy(struct hr_program *program) {
        free(program);
}

static const struct hr_program_ops program_ops = {
        .size = sizeof program_ops,
        .destroy = program_destroy,
};

static hr_status program_new(struct hr_device *device, const struct hr_steps *steps,
                             struct hr_diag *diag, struct hr_program **ret_program) {
        struct hr_program *program;

        HR_TRY(fake_call(fake_device_cast(device), diag));
        for (uint32_t i = 0; i < steps->count; ++i) {
                uint32_t op = steps->steps[i].op;

                if (!fake_device_cast(device)->config.sizes_only && !fake_knows_op(op))
                        return hr_fail_reason(diag, HR_E_UNSUPPORTED, "OP", "%s on %s",
                                              hr_op_name(op), device->props.name);
        }
        program = calloc(1, sizeof *program);
        if (!program)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a program");
        *program = (struct hr_program){.ops = &program_ops, .device = device, .steps = steps};
        *ret_program = program;
        return HR_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static const struct hr_device_ops device_ops = {
        .size = sizeof device_ops,
        .destroy = device_destroy,
        .supports_op = supports_op,
        .reads_kind = reads_kind,
        .wants_offload = wants_offload,
        .buffer_new = buffer_new,
        .queue_new = fake_queue_new,
        .pin = hr_device_pin_none,
        .upload_queue_new = fake_upload_queue_new,
        .event_new = fake_event_new,
        .program_new = program_new,
        .program_bytes = program_bytes,
        .optimize = hr_device_optimize_none,
        .memory = memory,
};

hr_status hr_fake_device_new(struct hr_fake_world *world, const struct hr_fake_config *config,
                             struct hr_diag *diag, struct hr_device **ret_device) {
        struct fake_device *device = calloc(1, sizeof *device);
        struct hr_deny deny;
        hr_status status = hr_deny_parse(config->deny_ops, diag, &deny);

        if (status != HR_OK) {
                free(device);
                return status;
        }
        if (!device || !copy_words(device, config)) {
                if (device)
                        free_words(device);
                free(device);
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for device %s", config->name);
        }
        ++world->refs;
        device->world = world;
        device->config = *config;
        device->deny = deny;
        device->kind = (struct hr_buffer_kind){
                .name = device->name, .alignment = ALIGNMENT, .addressable = !config->sizes_only};
        device->device.ops = &device_ops;
        device->device.memory_cap = config->memory_cap;
        device->device.props = (struct hr_device_props){
                .name = device->name,
                .description = "simulated",
                .type = config->type,
                .kind = config->host ? &hr_host_kind : &device->kind,
                .events = true,
                .async = true,
                .threads = config->threads,
                .experts = config->experts && !config->sizes_only,
                .uploads = config->uploads,
        };
        atomic_init(&device->device.refs, 1);
        *ret_device = &device->device;
        return HR_OK;
}

hr_status hr_fake_link(struct hr_device *from, const struct hr_buffer_kind *to,
                       struct hr_fake_link link, struct hr_diag *diag) {
        struct fake_device *device = fake_device_cast(from);
        struct fake_link *larger;

        if (!to) {
                device->link = link;
                return HR_OK;
        }
        larger = realloc(device->links, (device->link_count + 1) * sizeof *larger);
        if (!larger)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a link");
        device->links = larger;
        device->links[device->link_count++] = (struct fake_link){.to = to, .link = link};
        return HR_OK;
}

void hr_fake_lose(struct hr_device *base) {
        struct fake_device *device = fake_device_cast(base);

        if (hr_device_is_lost(base))
                return;
        hr_device_lose(base);
        fake_device_hurry(device);
}

uint64_t hr_fake_busy_ns(const struct hr_device *device) {
        return fake_device_cast(device)->busy_ns;
}
