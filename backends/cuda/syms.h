/*
 * The driver's entry points as one table, filled from libcuda.so.1 at run time: the program is
 * linked against no part of CUDA and starts where there is none. A test fills the table itself.
 */
#pragma once

#include <cuda.h>

#include "core/status.h"

struct cuda_syms {
#define X(name) __typeof__(name) *name;
#include "backends/cuda/syms.def"
#undef X
};

/* The table of the process, opened and initialised by the first call. HR_E_UNAVAILABLE (reason
 * DRIVER) without a driver, with one that is too old, or when it does not start; later calls give
 * the same answer. Thread: any. */
HR_NODISCARD hr_status cuda_syms_open(struct hr_diag *diag, const struct cuda_syms **ret_syms);

/* From now on that table instead of the driver's (NULL: the driver's again). Only while no device
 * of this backend exists. It outlives its use. */
void cuda_syms_replace(const struct cuda_syms *syms);

/* ---- Results --------------------------------------------------------------------------------- */

/* Does the error end the context, so that every later call on it fails as well? */
bool cuda_result_is_sticky(CUresult result);
/* DEVICE_LOST for sticky errors, EXHAUSTED without memory, UNSUPPORTED, else INTERNAL. */
hr_status cuda_result_status(CUresult result);
/* "CUDA_ERROR_LAUNCH_FAILED"..., also without a driver; never NULL. */
const char *cuda_result_name(const struct cuda_syms *syms, CUresult result);
