/* See launch.h. */
#include "backends/cuda/launch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/blas.h"
#include "backends/cuda/chain.h"
#include "backends/cuda/ops.h"

/* Blocks beyond this take several pieces each. */
#define BLOCKS_MAX (1U << 20)
#define ARGUMENT_BYTES_MAX 4096

struct cuda_builder {
        struct cuda_program *program;
        uint32_t step;
        uint64_t launch_count, launch_room;
        uint64_t argument_count, argument_room;
        hr_status status;
        struct hr_diag *diag;
        /* What cuda_builder_make() has last made, in which step; the argument's offset. */
        struct cuda_made {
                enum cuda_kernel kernel;
                uint32_t step, argument_bytes;
                uint64_t argument;
                bool is_there;
        } made;
};

uint64_t cuda_builder_fault(const struct cuda_builder *builder) {
        return (uint64_t) (uintptr_t) &builder->program->fault->fault;
}

uint64_t cuda_builder_step(const struct cuda_builder *builder) {
        return builder->step;
}

const struct cuda_options *cuda_builder_options(const struct cuda_builder *builder) {
        return builder->program->options;
}

uint64_t cuda_builder_scratch(const struct cuda_builder *builder) {
        return (uint64_t) builder->program->scratch;
}

/* Room for `more` elements behind `count`. */
static bool grow(void **array, uint64_t *room, uint64_t count, uint64_t more, size_t size) {
        uint64_t wanted = HR_MAX(*room * 2, count + more);
        void *larger;

        if (count + more <= *room)
                return true;
        larger = realloc(*array, (size_t) wanted * size);
        if (!larger)
                return false;
        *array = larger;
        *room = wanted;
        return true;
}

void cuda_builder_launch(struct cuda_builder *builder, enum cuda_kernel kernel, uint64_t items,
                         const void *argument, uint32_t argument_bytes) {
        struct cuda_program *program = builder->program;
        struct cuda_launch launch = {
                .blocks = (uint32_t) HR_MIN(items, BLOCKS_MAX),
                .threads = CUDA_THREADS,
                .argument_bytes = argument_bytes,
                .argument = builder->argument_count,
        };
        void *launches = program->launches, *arguments = program->arguments;
        bool has_room;

        HR_ASSERT(argument_bytes <= ARGUMENT_BYTES_MAX && argument_bytes % 8 == 0);
        if (builder->status != HR_OK || items == 0)
                return;
        has_room =
                grow(&launches, &builder->launch_room, builder->launch_count, 1, sizeof launch) &&
                grow(&arguments, &builder->argument_room, builder->argument_count, argument_bytes,
                     1);
        program->launches = launches;
        program->arguments = arguments;
        if (!has_room) {
                builder->status = hr_fail(builder->diag, HR_E_EXHAUSTED, "no memory for launches");
                return;
        }
        builder->status = cuda_gpu_function(program->gpu, kernel, builder->diag, &launch.function);
        if (builder->status != HR_OK)
                return;
        memcpy(program->arguments + builder->argument_count, argument, argument_bytes);
        builder->argument_count += argument_bytes;
        program->launches[builder->launch_count++] = launch;
        program->launch_count = builder->launch_count;
}

void cuda_builder_make(struct cuda_builder *builder, enum cuda_kernel kernel, uint64_t items,
                       const void *argument, uint32_t argument_bytes) {
        struct cuda_made *made = &builder->made;
        bool is_made = made->is_there && made->kernel == kernel &&
                       made->step + 1 == builder->step && made->argument_bytes == argument_bytes &&
                       memcmp(builder->program->arguments + made->argument, argument,
                              argument_bytes) == 0;

        made->step = builder->step;
        if (is_made)
                return;
        *made = (struct cuda_made) { .kernel = kernel,
                                     .step = builder->step,
                                     .argument_bytes = argument_bytes,
                                     .argument = builder->argument_count,
                                     .is_there = true };
        cuda_builder_launch(builder, kernel, items, argument, argument_bytes);
}

bool cuda_builder_matmul(struct cuda_builder *builder, const struct cuda_matmul_spec *spec) {
        struct cuda_program *program = builder->program;
        struct cuda_launch launch = { 0 };
        void *launches = program->launches;
        hr_status status;

        if (builder->status != HR_OK)
                return true;
        if (!grow(&launches, &builder->launch_room, builder->launch_count, 1, sizeof launch)) {
                builder->status = hr_fail(builder->diag, HR_E_EXHAUSTED, "no memory for launches");
                return true;
        }
        program->launches = launches;
        status = cuda_matmul_new(program->gpu, spec, NULL, &launch.matmul);
        if (status == HR_E_UNSUPPORTED)
                return false;
        if (status != HR_OK) {
                builder->status = hr_fail(builder->diag, status, "%s: a product of the library",
                                          program->program.device->props.name);
                return true;
        }
        program->has_matmul = true;
        program->launches[builder->launch_count++] = launch;
        program->launch_count = builder->launch_count;
        return true;
}

/* ---- Programs -------------------------------------------------------------------------------- */

static void program_destroy(struct hr_program *base) {
        struct cuda_program *program = HR_CONTAINER_OF(base, struct cuda_program, program);

        cuda_replay_deinit(program);
        cuda_gpu_word_give(program->gpu, program->fault);
        (void) program->gpu->cu->cuCtxSetCurrent(program->gpu->context);
        for (uint64_t i = 0; i < program->launch_count; i++)
                (void) cuda_matmul_free(program->launches[i].matmul);
        cuda_gpu_memory_give(program->gpu, program->scratch);
        free(program->launches);
        free(program->arguments);
        free(program->first);
        free(program->may_fault);
        free(program);
}

static const struct hr_program_ops program_ops = {
        .size = sizeof program_ops,
        .destroy = program_destroy,
};

struct cuda_program *cuda_program_cast(struct hr_program *program) {
        HR_ASSERT(program->ops == &program_ops);
        return HR_CONTAINER_OF(program, struct cuda_program, program);
}

uint64_t cuda_step_scratch(const struct hr_step *step, const struct cuda_options *options) {
        const struct cuda_op *op = cuda_is_empty(&step->result) ? NULL : cuda_op_find(step);

        return op && op->scratch ? op->scratch(step, options) : 0;
}

static hr_status program_take_scratch(struct cuda_program *program, struct hr_diag *diag) {
        const struct hr_steps *steps = program->program.steps;
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < steps->count; i++)
                bytes = HR_MAX(bytes, cuda_step_scratch(&steps->steps[i], program->options));
        if (!bytes)
                return HR_OK;
        HR_TRY(cuda_gpu_memory_take(program->gpu, program->program.device->props.name, bytes, diag,
                                    &program->scratch));
        program->program.scratch_bytes = bytes;
        return HR_OK;
}

static bool step_supports(const struct hr_step *step, const struct cuda_op *op) {
        return op && (!step->joined || cuda_chain_supports(step));
}

static hr_status program_step(struct cuda_builder *builder, const struct hr_step *step) {
        struct cuda_program *program = builder->program;
        const struct cuda_op *op = cuda_op_find(step);

        if (!step_supports(step, op))
                return hr_fail_reason(builder->diag, HR_E_UNSUPPORTED, "OP",
                                      "%s: no kernel for node %u, %s",
                                      program->program.device->props.name, step->node,
                                      hr_op_name(step->op));
        if (cuda_is_empty(&step->result))
                return HR_OK;
        if (op->may_fault && !program->fault)
                HR_TRY(cuda_gpu_word_take(program->gpu, builder->diag, &program->fault));
        program->may_fault[builder->step] = op->may_fault;
        if (step->joined)
                cuda_chain_prepare(step, builder);
        else
                op->prepare(step, builder);
        return builder->status;
}

static hr_status program_build(struct cuda_program *program, struct hr_diag *diag) {
        const struct hr_steps *steps = program->program.steps;
        struct cuda_builder builder = { .program = program, .diag = diag };

        program->first = calloc((size_t) steps->count + 1, sizeof *program->first);
        program->may_fault = calloc((size_t) steps->count + 1, sizeof *program->may_fault);
        if (!program->first || !program->may_fault)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a program of %u steps",
                               steps->count);
        HR_TRY(cuda_gpu_enter(program->gpu, diag));
        HR_TRY(program_take_scratch(program, diag));
        for (; builder.step < steps->count; builder.step++) {
                const struct hr_step *step = &steps->steps[builder.step];

                program->first[builder.step] = (uint32_t) builder.launch_count;
                HR_TRY(program_step(&builder, step));
                /* What is computed in one pass with it has no launches of its own. */
                for (uint32_t i = 0; i < step->joined; i++)
                        program->first[++builder.step] = (uint32_t) builder.launch_count;
        }
        program->first[steps->count] = (uint32_t) builder.launch_count;
        if (program->fault)
                atomic_store(&program->fault->fault, 0);
        return HR_OK;
}

hr_status cuda_program_new(struct hr_device *device, struct cuda_gpu *gpu,
                           const struct cuda_options *options, const struct hr_steps *steps,
                           struct hr_diag *diag, struct hr_program **ret_program) {
        struct cuda_program *program = calloc(1, sizeof *program);
        hr_status status;

        if (!program)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a program");
        program->gpu = gpu;
        program->options = options;
        program->program = (struct hr_program) {
                .ops = &program_ops,
                .device = device,
                .steps = steps,
        };
        status = program_build(program, diag);
        if (status != HR_OK) {
                program_destroy(&program->program);
                return status;
        }
        *ret_program = &program->program;
        return HR_OK;
}
