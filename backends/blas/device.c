/*
 * The BLAS device: matrix products on host memory, nothing else. It shares host memory with the CPU
 * devices, so products and the rest of a graph meet without copies.
 *
 * OpenBLAS runs single-threaded, because concurrent callers of a threaded one wait for each other;
 * the queue's own team takes blocks of the product instead.
 */
#include "backends/blas/backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/blas/gemm.h"
#include "core/host.h"

/* From this many columns on it keeps up with the CPU's kernels for weights of f32 and f16, and is
 * ahead where there are many more; with weights of bf16 and in blocks, which the CPU multiplies as
 * they are, it never is (`./bench blas`). */
#define BATCH_MIN_FLOATS 1024
#define SCRATCH_ALIGN 64

struct blas_device {
        struct hr_device device;
        char name[32], description[64];
        uint32_t threads, spin_us;
        uint32_t batch_min; /* 0: what was measured */
        const hr_dequantize_fn *to_f32;
};

struct blas_program {
        struct hr_program program;
        uint8_t *scratch; /* thread_bytes for each thread */
        uint64_t thread_bytes;
};

static const struct hr_device_ops blas_device_ops;

static struct blas_device *blas_cast(struct hr_device *device) {
        HR_ASSERT(device->ops == &blas_device_ops);
        return HR_CONTAINER_OF(device, struct blas_device, device);
}

static const struct blas_device *blas_cast_const(const struct hr_device *device) {
        HR_ASSERT(device->ops == &blas_device_ops);
        return HR_CONTAINER_OF(device, const struct blas_device, device);
}

static bool blas_takes(const struct blas_device *blas, const struct hr_step *step) {
        const hr_type type = step->sources[0].type;

        if (!blas->batch_min && type != HR_TYPE_F32 && type != HR_TYPE_F16)
                return false;
        return blas_gemm_supports(step, blas->to_f32,
                                  blas->batch_min ? blas->batch_min : BATCH_MIN_FLOATS);
}

static void blas_destroy(struct hr_device *device) {
        free(blas_cast(device));
}

/* False: not a product of two tensors. */
static bool product_of_tensor(const struct hr_graph *graph, uint32_t id,
                              struct hr_operand sources[2], struct hr_step *ret_step) {
        const struct hr_tensor *tensor = &graph->tensors[id];

        if (tensor->op != HR_OP_MUL_MAT)
                return false;
        *ret_step = (struct hr_step) { .op = tensor->op,
                                       .params = tensor->params,
                                       .source_count = 2,
                                       .sources = sources };
        ret_step->result = hr_operand_of_tensor(tensor, id);
        for (uint32_t i = 0; i < 2; i++) {
                const struct hr_tensor *source = hr_graph_source_tensor(graph, tensor, i);

                if (!source)
                        return false;
                sources[i] = hr_operand_of_tensor(source, hr_graph_source(graph, tensor, i));
        }
        return true;
}

static bool blas_supports_op(const struct hr_device *device, const struct hr_graph *graph,
                             uint32_t tensor) {
        uint32_t op = graph->tensors[tensor].op;
        struct hr_operand sources[2];
        struct hr_step step;

        if (op == HR_OP_NONE || hr_op_is_view(op))
                return true;
        return product_of_tensor(graph, tensor, sources, &step) &&
               blas_takes(blas_cast_const(device), &step);
}

static bool blas_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind->host;
}

static bool blas_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                               uint32_t tensor) {
        return false;
}

static hr_status blas_buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                                 struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        return hr_host_buffer_new(device, &hr_host_kind, bytes, usage, diag, ret_buffer);
}

static hr_status blas_event_new(struct hr_device *device, struct hr_diag *diag,
                                struct hr_event **ret_event) {
        return hr_host_event_new(device, blas_cast(device)->spin_us, diag, ret_event);
}

static void blas_memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total) {
        hr_host_memory(ret_free, ret_total);
}

/* ---- Program --------------------------------------------------------------------------------- */

static void blas_program_destroy(struct hr_program *program) {
        struct blas_program *blas = HR_CONTAINER_OF(program, struct blas_program, program);

        free(blas->scratch);
        free(blas);
}

static const struct hr_program_ops blas_program_ops = {
        .size = sizeof blas_program_ops,
        .destroy = blas_program_destroy,
};

static hr_status blas_program_new(struct hr_device *device, const struct hr_steps *steps,
                                  struct hr_diag *diag, struct hr_program **ret_program) {
        struct blas_device *blas = blas_cast(device);
        struct blas_program *program = calloc(1, sizeof *program);
        hr_status status = HR_OK;

        if (!program)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a program");
        program->program = (struct hr_program) {
                .ops = &blas_program_ops,
                .device = device,
                .steps = steps,
        };
        for (uint32_t i = 0; i < steps->count && status == HR_OK; i++) {
                const struct hr_step *step = &steps->steps[i];

                if (!blas_takes(blas, step))
                        status = hr_fail_reason(diag, HR_E_UNSUPPORTED, "OP",
                                                "%s: no kernel for node %u, %s", blas->name,
                                                step->node, hr_op_name(step->op));
                else
                        program->thread_bytes = HR_MAX(program->thread_bytes,
                                                       blas_gemm_scratch(step));
        }
        program->program.scratch_bytes = program->thread_bytes * blas->threads;
        if (status == HR_OK && program->thread_bytes) {
                void *scratch = NULL;

                if (posix_memalign(&scratch, SCRATCH_ALIGN,
                                   (size_t) program->program.scratch_bytes) != 0)
                        status = hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                                                "%s: %" PRIu64 " bytes of scratch", blas->name,
                                                program->program.scratch_bytes);
                program->scratch = scratch;
        }
        if (status != HR_OK) {
                blas_program_destroy(&program->program);
                return status;
        }
        *ret_program = &program->program;
        return HR_OK;
}

static uint64_t blas_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                   const uint32_t *nodes, uint32_t node_count) {
        const struct blas_device *blas = blas_cast_const(device);
        uint64_t most = 0;

        for (uint32_t i = 0; i < node_count; i++) {
                struct hr_operand sources[2];
                struct hr_step step;

                if (product_of_tensor(graph, graph->leaf_count + nodes[i], sources, &step) &&
                    blas_takes(blas, &step))
                        most = HR_MAX(most, blas_gemm_scratch(&step));
        }
        return most * blas->threads;
}

/* ---- Queue ----------------------------------------------------------------------------------- */

struct blas_job {
        const struct blas_program *program;
        const struct hr_step *step;
        const hr_dequantize_fn *to_f32;
        struct hr_host_team *team;
        uint32_t blocks;
};

static void job_run(void *arg, uint32_t member, uint32_t members) {
        const struct blas_job *job = arg;
        float *scratch = NULL;
        uint32_t block;

        if (job->program->scratch)
                scratch = (float *) (void *) (job->program->scratch +
                                              member * job->program->thread_bytes);
        while ((block = hr_host_team_next(job->team, job->blocks)) < job->blocks)
                blas_gemm_block(job->step, job->to_f32, block, scratch);
}

static void blas_compute(struct hr_program *base, uint32_t first, uint32_t count,
                         struct hr_host_team *team, struct hr_outcome *outcome) {
        struct blas_job job = {
                .program = HR_CONTAINER_OF(base, struct blas_program, program),
                .to_f32 = blas_cast(base->device)->to_f32,
                .team = team,
        };

        for (uint32_t i = first; i < first + count; i++) {
                job.step = &base->steps->steps[i];
                job.blocks = blas_gemm_blocks(job.step);
                hr_device_move(base->device);
                hr_host_team_run(team, HR_MIN(hr_host_team_threads(team), job.blocks), job_run,
                                 &job);
                if (hr_outcome_failed(outcome))
                        return;
        }
}

static hr_status blas_queue_new(struct hr_device *device, struct hr_diag *diag,
                                struct hr_queue **ret_queue) {
        struct blas_device *blas = blas_cast(device);
        struct hr_host_queue_config config = {
                .team = { .name = blas->name, .threads = blas->threads,
                          .spin_us = blas->spin_us },
                .compute = blas_compute,
        };

        return hr_host_queue_new(device, &config, diag, ret_queue);
}

static const struct hr_device_ops blas_device_ops = {
        .size = sizeof blas_device_ops,
        .destroy = blas_destroy,
        .supports_op = blas_supports_op,
        .reads_kind = blas_reads_kind,
        .wants_offload = blas_wants_offload,
        .buffer_new = blas_buffer_new,
        .queue_new = blas_queue_new,
        .event_new = blas_event_new,
        .program_new = blas_program_new,
        .program_bytes = blas_program_bytes,
        .memory = blas_memory,
        .optimize = hr_device_optimize_none,
        .pin = hr_device_pin_none,
        .upload_queue_new = hr_device_upload_queue_none,
};

hr_status hr_blas_device_new(const struct hr_blas_config *config, struct hr_diag *diag,
                             struct hr_device **ret_device) {
        struct blas_device *blas = calloc(1, sizeof *blas);

        if (!blas)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device");
        blas_gemm_init();
        (void) snprintf(blas->name, sizeof blas->name, "%s", config->name ? config->name : "blas");
        blas->threads = config->threads ? config->threads : hr_host_processors();
        blas->batch_min = config->batch_min;
        blas->spin_us = config->spin_us;
        blas->to_f32 = config->to_f32;
        (void) snprintf(blas->description, sizeof blas->description,
                        "OpenBLAS, %u thread%s, %u columns or more", blas->threads,
                        blas->threads == 1 ? "" : "s",
                        blas->batch_min ? blas->batch_min : BATCH_MIN_FLOATS);
        blas->device.ops = &blas_device_ops;
        atomic_init(&blas->device.refs, 1);
        blas->device.memory_cap = config->memory_cap;
        blas->device.props = (struct hr_device_props) {
                .name = blas->name,
                .description = blas->description,
                .type = HR_DEVICE_ACCEL,
                .kind = &hr_host_kind,
                .events = true,
                .async = true,
                .threads = blas->threads,
        };
        *ret_device = &blas->device;
        return HR_OK;
}
