/*
 * The CUDA device: what it can compute, its memory, and who can be reached from it. Several logical
 * devices may be on one GPU, each with memory of its own kind, queues of its own and a cap of its
 * own; they share the context and are lost together.
 *
 * All devices are in one list, so that a queue finds the GPU that owns a kind of memory.
 */
#include "backends/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/chain.h"
#include "backends/cuda/event.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/ops.h"
#include "backends/cuda/pins.h"
#include "backends/cuda/queue.h"

#define ALIGNMENT 256
#define SOURCES_MAX 16
/* A product with host weights is worth moving them from this many columns on. */
#define OFFLOAD_COLUMNS 32

static struct {
        pthread_mutex_t lock;
        struct cuda_device *first;
} devices = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct hr_device_ops device_ops;

static struct cuda_device *device_cast(struct hr_device *device) {
        HR_ASSERT(device->ops == &device_ops);
        return HR_CONTAINER_OF(device, struct cuda_device, device);
}

static const struct cuda_device *device_cast_const(const struct hr_device *device) {
        HR_ASSERT(device->ops == &device_ops);
        return HR_CONTAINER_OF(device, const struct cuda_device, device);
}

static void devices_add(struct cuda_device *device) {
        (void) pthread_mutex_lock(&devices.lock);
        device->next = devices.first;
        devices.first = device;
        (void) pthread_mutex_unlock(&devices.lock);
}

static void devices_remove(struct cuda_device *device) {
        struct cuda_device **at = &devices.first;

        (void) pthread_mutex_lock(&devices.lock);
        while (*at && *at != device)
                at = &(*at)->next;
        if (*at)
                *at = device->next;
        (void) pthread_mutex_unlock(&devices.lock);
}

/* Whoever asks has memory of that kind, so its device stays. */
static struct cuda_gpu *gpu_of_kind(const struct hr_buffer_kind *kind) {
        struct cuda_gpu *gpu = NULL;

        (void) pthread_mutex_lock(&devices.lock);
        for (struct cuda_device *device = devices.first; device && !gpu; device = device->next)
                if (&device->kind == kind)
                        gpu = device->gpu;
        (void) pthread_mutex_unlock(&devices.lock);
        return gpu;
}

/* Are there devices on other GPUs? */
static bool has_neighbours(const struct cuda_gpu *gpu) {
        bool has = false;

        (void) pthread_mutex_lock(&devices.lock);
        for (const struct cuda_device *device = devices.first; device; device = device->next)
                has |= device->gpu != gpu;
        (void) pthread_mutex_unlock(&devices.lock);
        return has;
}

/* ---- Steps without addresses ----------------------------------------------------------------- */

/* False: the tensor does not begin at an element's address. Memory itself is aligned to
 * ALIGNMENT. */
static bool operand_of_tensor(struct hr_operand *operand, const struct hr_tensor *tensor) {
        *operand = hr_operand_of_tensor(tensor, 0);
        return hr_type_info(tensor->type) &&
               (tensor->view_base == HR_TENSOR_NONE ||
                tensor->view_offset % cuda_type_alignment(tensor->type) == 0);
}

static bool step_of_tensor(const struct hr_graph *graph, uint32_t id, struct hr_operand *sources,
                           struct hr_step *ret_step) {
        const struct hr_tensor *tensor = &graph->tensors[id];

        if (tensor->source_count > SOURCES_MAX)
                return false;
        *ret_step = (struct hr_step) {
                .op = tensor->op,
                .params = tensor->params,
                .source_count = tensor->source_count,
                .sources = sources,
        };
        if (!operand_of_tensor(&ret_step->result, tensor))
                return false;
        for (uint32_t i = 0; i < tensor->source_count; i++) {
                uint32_t source = hr_graph_source(graph, tensor, i);

                if (source == HR_TENSOR_NONE)
                        sources[i] = (struct hr_operand) { .type = HR_OPERAND_ABSENT };
                else if (!operand_of_tensor(&sources[i], &graph->tensors[source]))
                        return false;
        }
        return true;
}

/* ---- Device ---------------------------------------------------------------------------------- */

static void device_destroy(struct hr_device *base) {
        struct cuda_device *device = device_cast(base);

        devices_remove(device);
        (void) cuda_gpu_unref(device->gpu);
        free(device);
}

static bool device_supports_op(const struct hr_device *base, const struct hr_graph *graph,
                               uint32_t tensor) {
        const struct cuda_device *device = device_cast_const(base);
        uint32_t op = graph->tensors[tensor].op;
        struct hr_operand sources[SOURCES_MAX];
        struct hr_step step;

        if (op == HR_OP_NONE)
                return true;
        if (hr_deny_refuses(&device->deny, graph, tensor))
                return false;
        if (hr_op_is_view(op))
                return true;
        return step_of_tensor(graph, tensor, sources, &step) && cuda_op_find(&step);
}

static bool device_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind;
}

static bool device_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                                 uint32_t tensor) {
        const struct hr_tensor *node = &graph->tensors[tensor];
        int64_t columns = 0;

        if (node->op == HR_OP_MUL_MAT)
                columns = node->ne[1];
        else if (node->op == HR_OP_MUL_MAT_ID)
                columns = node->ne[2];
        return columns >= OFFLOAD_COLUMNS && device_supports_op(device, graph, tensor);
}

static hr_status device_buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                                   struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        return cuda_buffer_new(device, device_cast(device)->gpu, bytes, usage, diag, ret_buffer);
}

static hr_status queue_make(struct hr_device *base, bool copies_beside, struct hr_diag *diag,
                            struct hr_queue **ret_queue) {
        struct cuda_device *device = device_cast(base);
        struct cuda_queue_config config = {
                .gpu = device->gpu,
                .spin_us = device->spin_us,
                .copies_beside = copies_beside,
                .gpu_of_kind = gpu_of_kind,
        };

        return cuda_queue_new(base, &config, diag, ret_queue);
}

/* A queue made before the other GPUs are copies to them in the stream that computes. */
static hr_status device_queue_new(struct hr_device *base, struct hr_diag *diag,
                                  struct hr_queue **ret_queue) {
        return queue_make(base, has_neighbours(device_cast(base)->gpu), diag, ret_queue);
}

/* A stream of its own, for what comes from the host. */
static hr_status device_upload_queue_new(struct hr_device *base, struct hr_diag *diag,
                                         struct hr_queue **ret_queue) {
        return queue_make(base, false, diag, ret_queue);
}

static void device_pin(struct hr_device *base, struct hr_buffer *buffer) {
        struct cuda_device *device = device_cast(base);

        if (device->pin_bytes)
                cuda_pins_add(base, device->gpu, buffer, device->pin_bytes);
}

static hr_status device_event_new(struct hr_device *device, struct hr_diag *diag,
                                  struct hr_event **ret_event) {
        return cuda_event_new(device, device_cast(device)->gpu, diag, ret_event);
}

static hr_status device_program_new(struct hr_device *device, const struct hr_steps *steps,
                                    struct hr_diag *diag, struct hr_program **ret_program) {
        return cuda_program_new(device, device_cast(device)->gpu, &device_cast(device)->options,
                                steps, diag, ret_program);
}

/* Steps have the same scratch, one after the other. */
static uint64_t device_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                     const uint32_t *nodes, uint32_t node_count) {
        struct hr_operand sources[SOURCES_MAX];
        struct hr_step step;
        uint64_t most = 0;

        for (uint32_t i = 0; i < node_count; i++)
                if (step_of_tensor(graph, graph->leaf_count + nodes[i], sources, &step))
                        most = HR_MAX(most, cuda_step_scratch(
                                                    &step, &device_cast_const(device)->options));
        return most;
}

static void device_memory(const struct hr_device *base, uint64_t *ret_free, uint64_t *ret_total) {
        struct cuda_gpu *gpu = device_cast_const(base)->gpu;
        size_t free_bytes = 0, total_bytes = 0;

        *ret_free = 0;
        *ret_total = gpu->total_bytes;
        if (cuda_gpu_enter(gpu, NULL) == HR_OK &&
            cuda_gpu_check(gpu, gpu->cu->cuMemGetInfo(&free_bytes, &total_bytes), "memory", NULL) ==
                    HR_OK)
                *ret_free = free_bytes;
}

static const struct hr_device_ops device_ops = {
        .size = sizeof device_ops,
        .destroy = device_destroy,
        .supports_op = device_supports_op,
        .reads_kind = device_reads_kind,
        .wants_offload = device_wants_offload,
        .buffer_new = device_buffer_new,
        .queue_new = device_queue_new,
        .event_new = device_event_new,
        .program_new = device_program_new,
        .program_bytes = device_program_bytes,
        .memory = device_memory,
        .optimize = cuda_optimize,
        .pin = device_pin,
        .upload_queue_new = device_upload_queue_new,
};

/* ---- Configuration --------------------------------------------------------------------------- */

/* For people, with the GPUs that the test at the start found out of reach. */
static void device_describe(struct cuda_device *device) {
        const struct cuda_gpu *gpu = device->gpu;
        uint64_t failed = atomic_load(&gpu->peers_failed);
        size_t at;

        (void) snprintf(device->description, sizeof device->description,
                        "%s, GPU %u, compute capability %d.%d, %u multiprocessors, %.1f GiB",
                        gpu->name, gpu->number, gpu->capability / 10, gpu->capability % 10,
                        gpu->processors, (double) gpu->total_bytes / (1 << 30));
        for (uint32_t i = 0; i < CUDA_GPUS_MAX; i++) {
                at = strlen(device->description);
                if (failed >> i & 1)
                        (void) snprintf(device->description + at, sizeof device->description - at,
                                        ", copies to GPU %u go through the host", i);
        }
}

static void device_init(struct cuda_device *device, const struct hr_cuda_config *config) {
        (void) snprintf(device->name, sizeof device->name, "%s",
                        config->name ? config->name : "cuda");
        (void) snprintf(device->kind_name, sizeof device->kind_name, "%s memory", device->name);
        device_describe(device);
        device->spin_us = config->spin_us;
        device->options.batch_min = config->batch_min ? config->batch_min : CUDA_BATCH_MIN;
        device->single_launches = config->single_launches;
        device->pin_bytes = config->pin_bytes;
        device->kind = (struct hr_buffer_kind) { .name = device->kind_name,
                                                 .alignment = ALIGNMENT };
        device->device.ops = &device_ops;
        atomic_init(&device->device.refs, 1);
        device->device.memory_cap = config->memory_cap;
        device->device.lost_with = &device->gpu->lost;
        device->device.props = (struct hr_device_props) {
                .name = device->name,
                .description = device->description,
                .type = HR_DEVICE_GPU,
                .kind = &device->kind,
                .events = true,
                .async = true,
                .experts = true,
                .uploads = true,
        };
}

hr_status hr_cuda_device_new(const struct hr_cuda_config *config, struct hr_diag *diag,
                             struct hr_device **ret_device) {
        struct cuda_device *device = calloc(1, sizeof *device);
        hr_status status;

        if (!device)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device");
        status = hr_deny_parse(config->deny_ops, diag, &device->deny);
        if (status == HR_OK)
                status = cuda_gpu_ref(config->gpu, diag, &device->gpu);
        if (status == HR_OK && cuda_gpu_is_lost(device->gpu)) {
                status = cuda_gpu_fail_lost(device->gpu, diag);
                (void) cuda_gpu_unref(device->gpu);
        }
        if (status != HR_OK) {
                free(device);
                return status;
        }
        device_init(device, config);
        devices_add(device);
        *ret_device = &device->device;
        return HR_OK;
}

hr_status hr_cuda_gpu_count(struct hr_diag *diag, uint32_t *ret_count) {
        const struct cuda_syms *cu = NULL;
        CUresult result;
        int count = 0;

        HR_TRY(cuda_syms_open(diag, &cu));
        result = cu->cuDeviceGetCount(&count);
        if (result != CUDA_SUCCESS)
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER", "counting GPUs: %s",
                                      cuda_result_name(cu, result));
        *ret_count = count > 0 ? (uint32_t) count : 0;
        return HR_OK;
}

bool hr_cuda_gpu_is_usable(uint32_t gpu) {
        const struct cuda_syms *cu = NULL;
        int major = 0, minor = 0;
        CUdevice device;

        return cuda_syms_open(NULL, &cu) == HR_OK && gpu < CUDA_GPUS_MAX &&
               cu->cuDeviceGet(&device, (int) gpu) == CUDA_SUCCESS &&
               cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                        device) == CUDA_SUCCESS &&
               cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                                        device) == CUDA_SUCCESS &&
               major * 10 + minor >= CUDA_CAPABILITY_MIN;
}
