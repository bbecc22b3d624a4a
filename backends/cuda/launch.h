/*
 * A split prepared for the GPU: a list of kernel launches with their arguments, made once with the
 * addresses of a slot and replayed as it is.
 */
#pragma once

#include "backends/cuda/gpu.h"
#include "backends/cuda/replay.h"
#include "core/device.h"

struct cuda_matmul;
struct cuda_options;

/* One launch. Its argument is a struct of `argument_bytes` bytes in the program's block. */
struct cuda_launch {
        struct cuda_matmul *matmul; /* instead of a kernel; the program's */
        CUfunction function;
        uint32_t blocks, threads;
        uint32_t shared_bytes;
        uint32_t argument_bytes;
        uint64_t argument; /* offset */
};

struct cuda_program {
        struct hr_program program;
        struct cuda_gpu *gpu;
        const struct cuda_options *options; /* the device's */
        struct cuda_launch *launches;
        uint64_t launch_count;
        uint32_t *first; /* of step i: launches first[i] .. first[i + 1] - 1 */
        uint8_t *arguments;
        /* Kernels that meet an index outside its tensor write 1 + the step's number into it. NULL
         * when no step uses values as indices. */
        struct cuda_word *fault;
        bool *may_fault; /* per step */
        bool has_matmul; /* some launch is one */
        CUdeviceptr scratch; /* program.scratch_bytes, for one step after the other; 0 = none */
        struct cuda_replay replay;
};

/* A launch's argument as the driver takes it; valid while the program and *bytes are. */
#define CUDA_LAUNCH_EXTRA(program, item, bytes)                                                    \
        {                                                                                          \
                CU_LAUNCH_PARAM_BUFFER_POINTER, (program)->arguments + (item)->argument,           \
                        CU_LAUNCH_PARAM_BUFFER_SIZE, (bytes), CU_LAUNCH_PARAM_END                  \
        }

/* Takes the steps apart into launches. HR_E_UNSUPPORTED (reason OP) for a step without a kernel. */
HR_NODISCARD hr_status cuda_program_new(struct hr_device *device, struct cuda_gpu *gpu,
                                        const struct cuda_options *options,
                                        const struct hr_steps *steps, struct hr_diag *diag,
                                        struct hr_program **ret_program);
/* Bytes of scratch that one step needs; its operands may have no addresses yet. */
uint64_t cuda_step_scratch(const struct hr_step *step, const struct cuda_options *options);
struct cuda_program *cuda_program_cast(struct hr_program *program);
