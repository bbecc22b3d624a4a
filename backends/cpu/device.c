/*
 * The CPU device: what it can compute, its memory, and programs made of its kernels.
 *
 * A device is passive; each queue made of it has a team of its own. A program holds, for each step,
 * the kernel and the number of threads worth waking, and one block of scratch that all steps share
 * (they run one after the other). Nothing is allocated when it runs.
 */
#include "backends/cpu/backend.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/matrix/dot.h"
#include "backends/cpu/ops.h"
#include "backends/cpu/team.h"
#include "backends/cpu/vec.h"
#include "core/deny.h"
#include "core/host.h"

#define SOURCES_MAX 16
#define SCRATCH_ALIGN 64
#define DELAY_US_MAX 1000000U
#define DEFAULT_ELEMENTS_PER_THREAD 8192

struct cpu_device {
        struct hr_device device;
        char name[32], description[96], kind_name[40];
        struct hr_buffer_kind kind; /* when isolated */
        uint32_t threads, spin_us, delay_us;
        bool wake_all;
        uint32_t *processors; /* threads of them, or NULL */
        const struct cpu_dot *dot;
        const struct cpu_vec *vec;
        struct hr_deny deny;
};

struct cpu_program_step {
        const struct cpu_kernel *kernel; /* NULL: nothing to do (an empty result) */
        uint32_t threads;
};

struct cpu_program {
        struct hr_program program;
        uint8_t *scratch;
        struct cpu_program_step steps[];
};

static const struct hr_device_ops cpu_device_ops;

static struct cpu_device *cpu_cast(struct hr_device *device) {
        HR_ASSERT(device->ops == &cpu_device_ops);
        return HR_CONTAINER_OF(device, struct cpu_device, device);
}

static const struct cpu_device *cpu_cast_const(const struct hr_device *device) {
        HR_ASSERT(device->ops == &cpu_device_ops);
        return HR_CONTAINER_OF(device, const struct cpu_device, device);
}

/* ---- Steps without addresses ----------------------------------------------------------------- */

/* False: more sources than any op has. `sources` has room for SOURCES_MAX. */
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
        ret_step->result = hr_operand_of_tensor(tensor, id);
        for (uint32_t i = 0; i < tensor->source_count; i++) {
                uint32_t source = hr_graph_source(graph, tensor, i);

                if (source == HR_TENSOR_NONE)
                        sources[i] = (struct hr_operand) { .type = HR_OPERAND_ABSENT };
                else
                        sources[i] = hr_operand_of_tensor(&graph->tensors[source], source);
        }
        return true;
}

/* Kernels ask for facts of the type, so it must be one. */
static bool types_exist(const struct hr_step *step) {
        if (!hr_type_info(step->result.type))
                return false;
        for (uint32_t i = 0; i < step->source_count; i++)
                if (step->sources[i].type != HR_OPERAND_ABSENT &&
                    !hr_type_info(step->sources[i].type))
                        return false;
        return true;
}

/* ---- Device ---------------------------------------------------------------------------------- */

static void cpu_destroy(struct hr_device *device) {
        struct cpu_device *cpu = cpu_cast(device);

        free(cpu->processors);
        free(cpu);
}

static bool cpu_supports_op(const struct hr_device *device, const struct hr_graph *graph,
                            uint32_t tensor) {
        const struct cpu_device *cpu = cpu_cast_const(device);
        uint32_t op = graph->tensors[tensor].op;
        struct hr_operand sources[SOURCES_MAX];
        const struct cpu_kernel *kernel;
        struct hr_step step;

        if (op == HR_OP_NONE)
                return true;
        if (hr_deny_refuses(&cpu->deny, graph, tensor))
                return false;
        if (hr_op_is_view(op))
                return true;
        kernel = cpu_kernel_find(op);
        return kernel && step_of_tensor(graph, tensor, sources, &step) && types_exist(&step) &&
               kernel->supports(&step);
}

static bool cpu_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind) {
        return kind == device->props.kind;
}

static bool cpu_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                              uint32_t tensor) {
        return false;
}

static hr_status cpu_buffer_new(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                                struct hr_diag *diag, struct hr_buffer **ret_buffer) {
        return hr_host_buffer_new(device, device->props.kind, bytes, usage, diag, ret_buffer);
}

static hr_status cpu_event_new(struct hr_device *device, struct hr_diag *diag,
                               struct hr_event **ret_event) {
        return hr_host_event_new(device, cpu_cast(device)->spin_us, diag, ret_event);
}

static void cpu_memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total) {
        hr_host_memory(ret_free, ret_total);
}

static bool operand_is_empty(const struct hr_operand *operand) {
        return !operand->ne[0] || !operand->ne[1] || !operand->ne[2] || !operand->ne[3];
}

static uint32_t step_threads(const struct cpu_device *cpu, const struct cpu_kernel *kernel,
                             const struct hr_step *step) {
        uint32_t most;

        if (cpu->wake_all) {
                most = cpu->threads;
        } else if (kernel->threads_max) {
                most = kernel->threads_max(step);
        } else {
                uint64_t elements = (uint64_t) step->result.ne[0] * step->result.ne[1] *
                                    step->result.ne[2] * step->result.ne[3];
                uint64_t worth = 1 + elements / DEFAULT_ELEMENTS_PER_THREAD;

                most = worth > UINT32_MAX ? UINT32_MAX : (uint32_t) worth;
        }
        return HR_MAX(1U, HR_MIN(most, cpu->threads));
}

/* ---- Program --------------------------------------------------------------------------------- */

static void cpu_program_destroy(struct hr_program *program) {
        struct cpu_program *cpu = HR_CONTAINER_OF(program, struct cpu_program, program);

        free(cpu->scratch);
        free(cpu);
}

static const struct hr_program_ops cpu_program_ops = {
        .size = sizeof cpu_program_ops,
        .destroy = cpu_program_destroy,
};

static hr_status program_step(const struct cpu_device *cpu, const struct hr_step *step,
                              struct cpu_program_step *prepared, uint64_t *scratch_bytes,
                              struct hr_diag *diag) {
        const struct cpu_kernel *kernel =
                step->joined ? &cpu_kernel_chain : cpu_kernel_find(step->op);

        if (!kernel || !types_exist(step) || !kernel->supports(step))
                return hr_fail_reason(diag, HR_E_UNSUPPORTED, "OP", "%s: no kernel for node %u, %s",
                                      cpu->device.props.name, step->node, hr_op_name(step->op));
        *prepared = (struct cpu_program_step) { 0 };
        if (operand_is_empty(&step->result))
                return HR_OK;
        prepared->kernel = kernel;
        prepared->threads = step_threads(cpu, kernel, step);
        if (kernel->scratch) {
                uint64_t bytes = kernel->scratch(step, prepared->threads);

                *scratch_bytes = HR_MAX(*scratch_bytes, bytes);
        }
        return HR_OK;
}

static hr_status cpu_program_new(struct hr_device *device, const struct hr_steps *steps,
                                 struct hr_diag *diag, struct hr_program **ret_program) {
        const struct cpu_device *cpu = cpu_cast(device);
        struct cpu_program *program;
        uint64_t scratch_bytes = 0, bytes;
        hr_status status = HR_OK;

        if (!hr_mul_u64(steps->count, sizeof program->steps[0], &bytes) ||
            !hr_add_u64(bytes, sizeof *program, &bytes) || !(program = calloc(1, (size_t) bytes)))
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a program of %u steps",
                               steps->count);
        program->program = (struct hr_program) {
                .ops = &cpu_program_ops,
                .device = device,
                .steps = steps,
        };
        /* The first step of a chain stands for all of it. */
        for (uint32_t i = 0; i < steps->count && status == HR_OK; i += 1 + steps->steps[i].joined)
                status = program_step(cpu, &steps->steps[i], &program->steps[i], &scratch_bytes,
                                      diag);
        if (status == HR_OK && scratch_bytes) {
                void *scratch = NULL;

                if (scratch_bytes > SIZE_MAX / 2 ||
                    posix_memalign(&scratch, SCRATCH_ALIGN, (size_t) scratch_bytes) != 0)
                        status = hr_fail_reason(diag, HR_E_EXHAUSTED, "DEVICE_MEMORY",
                                                "%s: %" PRIu64 " bytes of scratch",
                                                device->props.name, scratch_bytes);
                program->scratch = scratch;
        }
        if (status != HR_OK) {
                cpu_program_destroy(&program->program);
                return status;
        }
        program->program.scratch_bytes = scratch_bytes;
        *ret_program = &program->program;
        return HR_OK;
}

static uint64_t cpu_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                  const uint32_t *nodes, uint32_t node_count) {
        const struct cpu_device *cpu = cpu_cast_const(device);
        uint64_t most = 0;

        for (uint32_t i = 0; i < node_count; i++) {
                struct hr_operand sources[SOURCES_MAX];
                uint32_t id = graph->leaf_count + nodes[i];
                const struct cpu_kernel *kernel = cpu_kernel_find(graph->tensors[id].op);
                struct hr_step step;
                uint64_t bytes;

                if (!kernel || !kernel->scratch || hr_tensor_is_empty(&graph->tensors[id]) ||
                    !step_of_tensor(graph, id, sources, &step) || !types_exist(&step) ||
                    !kernel->supports(&step))
                        continue;
                bytes = kernel->scratch(&step, step_threads(cpu, kernel, &step));
                most = HR_MAX(most, bytes);
        }
        return most;
}

/* ---- Queue ----------------------------------------------------------------------------------- */

struct cpu_job {
        struct cpu_call call;
        const struct cpu_kernel *kernel;
};

static void job_run(void *arg, uint32_t member, uint32_t members) {
        const struct cpu_job *job = arg;
        struct cpu_call call = job->call;

        call.thread = member;
        call.threads = members;
        job->kernel->run(&call);
}

/* Kernels that need none in this program still compute where theirs would be. */
static uint8_t none[SCRATCH_ALIGN];

static void cpu_compute(struct hr_program *base, uint32_t first, uint32_t count,
                        struct hr_host_team *host, struct hr_outcome *outcome) {
        struct cpu_program *program = HR_CONTAINER_OF(base, struct cpu_program, program);
        struct cpu_device *cpu = cpu_cast(base->device);
        struct cpu_team team = { .host = host };
        struct cpu_job job = { .call = { .scratch = program->scratch ? program->scratch : none,
                                         .team = &team,
                                         .dot = cpu->dot,
                                         .vec = cpu->vec,
                                         .outcome = outcome } };

        for (uint32_t i = first; i < first + count; i++) {
                const struct cpu_program_step *step = &program->steps[i];

                if (!step->kernel)
                        continue;
                job.call.step = &base->steps->steps[i];
                job.kernel = step->kernel;
                hr_host_team_run(host, step->threads, job_run, &job);
                hr_device_move(base->device);
                if (hr_outcome_failed(outcome))
                        return;
        }
}

static hr_status cpu_queue_new(struct hr_device *device, struct hr_diag *diag,
                               struct hr_queue **ret_queue) {
        struct cpu_device *cpu = cpu_cast(device);
        struct hr_host_queue_config config = {
                .team = { .name = cpu->name,
                          .threads = cpu->threads,
                          .spin_us = cpu->spin_us,
                          .processors = cpu->processors },
                .delay_us = cpu->delay_us,
                .compute = cpu_compute,
        };

        return hr_host_queue_new(device, &config, diag, ret_queue);
}

/* One thread, on any processor: those of the device are busy meanwhile. */
static hr_status cpu_upload_queue_new(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue) {
        struct cpu_device *cpu = cpu_cast(device);
        char name[sizeof cpu->name + 4];
        struct hr_host_queue_config config = {
                .team = { .name = name, .threads = 1, .spin_us = cpu->spin_us },
                .compute = cpu_compute,
        };

        if (!device->props.uploads)
                return hr_device_upload_queue_none(device, diag, ret_queue);
        (void) snprintf(name, sizeof name, "%s.up", cpu->name);
        return hr_host_queue_new(device, &config, diag, ret_queue);
}

static const struct hr_device_ops cpu_device_ops = {
        .size = sizeof cpu_device_ops,
        .destroy = cpu_destroy,
        .supports_op = cpu_supports_op,
        .reads_kind = cpu_reads_kind,
        .wants_offload = cpu_wants_offload,
        .buffer_new = cpu_buffer_new,
        .queue_new = cpu_queue_new,
        .event_new = cpu_event_new,
        .program_new = cpu_program_new,
        .program_bytes = cpu_program_bytes,
        .memory = cpu_memory,
        .optimize = cpu_optimize,
        .pin = hr_device_pin_none,
        .upload_queue_new = cpu_upload_queue_new,
};

/* ---- Configuration --------------------------------------------------------------------------- */

static hr_status config_apply(struct cpu_device *cpu, const struct hr_cpu_config *config,
                              struct hr_diag *diag) {
        cpu->threads = config->threads ? config->threads : hr_host_processors();
        cpu->spin_us = config->spin_us;
        cpu->wake_all = config->wake_all;
        cpu->delay_us = HR_MIN(config->delay_us, DELAY_US_MAX);
        cpu->vec = cpu_vec_select(config->isa);
        cpu->dot = cpu_dot_select(config->isa);
        if (cpu->dot && config->fast)
                cpu->dot = cpu_dot_fast(cpu->dot);
        if (!cpu->vec || !cpu->dot)
                return hr_fail_reason(diag, HR_E_UNSUPPORTED, "ISA",
                                      "this processor or build has no instruction set \"%s\"",
                                      config->isa);
        if (config->processors) {
                cpu->processors = calloc(cpu->threads, sizeof *cpu->processors);
                if (!cpu->processors)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device");
                memcpy(cpu->processors, config->processors,
                       cpu->threads * sizeof *cpu->processors);
        }
        return hr_deny_parse(config->deny_ops, diag, &cpu->deny);
}

hr_status hr_cpu_device_new(const struct hr_cpu_config *config, struct hr_diag *diag,
                            struct hr_device **ret_device) {
        struct cpu_device *cpu = calloc(1, sizeof *cpu);
        hr_status status;

        if (!cpu)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a device");
        (void) snprintf(cpu->name, sizeof cpu->name, "%s", config->name ? config->name : "cpu");
        cpu->device.ops = &cpu_device_ops;
        atomic_init(&cpu->device.refs, 1);
        status = config_apply(cpu, config, diag);
        if (status != HR_OK) {
                cpu_destroy(&cpu->device);
                return status;
        }
        (void) snprintf(cpu->kind_name, sizeof cpu->kind_name, "%s.memory", cpu->name);
        cpu->kind = (struct hr_buffer_kind) { .name = cpu->kind_name,
                                              .alignment = hr_host_kind.alignment,
                                              .addressable = true };
        (void) snprintf(cpu->description, sizeof cpu->description, "%u thread%s, %s, %s memory",
                        cpu->threads, cpu->threads == 1 ? "" : "s", cpu->vec->isa,
                        config->isolated ? "isolated" : "shared");
        cpu->device.memory_cap = config->memory_cap;
        cpu->device.props = (struct hr_device_props) {
                .name = cpu->name,
                .description = cpu->description,
                .type = HR_DEVICE_CPU,
                .kind = config->isolated ? &cpu->kind : &hr_host_kind,
                .events = true,
                .async = true,
                .threads = cpu->threads,
                .experts = true,
                .uploads = config->isolated,
        };
        *ret_device = &cpu->device;
        return HR_OK;
}
