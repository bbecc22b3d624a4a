/*
 * Opening the driver, and what its results mean here.
 *
 * A version is asked for before anything else: images of one major toolkit version run on drivers
 * of that version or later, so an older driver is told apart from a broken one.
 */
#include "backends/cuda/syms.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define DRIVER_VERSION_MIN 13000

static struct cuda_syms opened;
static atomic_flag is_opening = ATOMIC_FLAG_INIT; /* one thread at a time */
static void *opened_library; /* NULL until it could be */
static bool is_started;
static _Atomic(const struct cuda_syms *) replacement;

static const struct {
        const char *name;
        size_t offset;
} names[] = {
#define NAME_OF(name) #name
#define X(name) { NAME_OF(name), offsetof(struct cuda_syms, name) },
#include "backends/cuda/syms.def"
#undef X
};

static hr_status driver_fill(void *library, struct cuda_syms *syms, struct hr_diag *diag) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                void *address = dlsym(library, names[i].name);

                if (!address)
                        return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER",
                                              "the CUDA driver has no %s", names[i].name);
                memcpy((char *) syms + names[i].offset, &address, sizeof address);
        }
        return HR_OK;
}

static hr_status driver_start(const struct cuda_syms *syms, struct hr_diag *diag) {
        int version = 0;
        CUresult result = syms->cuDriverGetVersion(&version);

        if (result == CUDA_SUCCESS && version < DRIVER_VERSION_MIN)
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER",
                                      "the CUDA driver is for version %d.%d, %d.%d is needed",
                                      version / 1000, version % 1000 / 10,
                                      DRIVER_VERSION_MIN / 1000, DRIVER_VERSION_MIN % 1000 / 10);
        if (result == CUDA_SUCCESS)
                result = syms->cuInit(0);
        if (result != CUDA_SUCCESS)
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER",
                                      "the CUDA driver does not start: %s",
                                      cuda_result_name(syms, result));
        return HR_OK;
}

/* The library stays open for good: threads of its own may run in it. What has failed is tried again
 * by the next call: a driver may be loaded later than the daemon. */
static hr_status driver_open(struct hr_diag *diag) {
        if (is_started)
                return HR_OK;
        if (!opened_library)
                opened_library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!opened_library)
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER",
                                      "no CUDA driver: libcuda.so.1 cannot be opened");
        HR_TRY(driver_fill(opened_library, &opened, diag));
        HR_TRY(driver_start(&opened, diag));
        is_started = true;
        return HR_OK;
}

hr_status cuda_syms_open(struct hr_diag *diag, const struct cuda_syms **ret_syms) {
        const struct cuda_syms *replaced = atomic_load(&replacement);
        hr_status status;

        if (replaced) {
                HR_TRY(driver_start(replaced, diag));
                *ret_syms = replaced;
                return HR_OK;
        }
        while (atomic_flag_test_and_set(&is_opening))
                (void) sched_yield();
        status = driver_open(diag);
        atomic_flag_clear(&is_opening);
        HR_TRY(status);
        *ret_syms = &opened;
        return HR_OK;
}

void cuda_syms_replace(const struct cuda_syms *syms) {
        atomic_store(&replacement, syms);
}

/* ---- Results --------------------------------------------------------------------------------- */

bool cuda_result_is_sticky(CUresult result) {
        switch (result) {
        case CUDA_ERROR_DEINITIALIZED:
        case CUDA_ERROR_DEVICE_UNAVAILABLE:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_CONTAINED:
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_TENSOR_MEMORY_LEAK:
        case CUDA_ERROR_SYSTEM_NOT_READY:
        case CUDA_ERROR_EXTERNAL_DEVICE:
        case CUDA_ERROR_UNKNOWN:
                return true;
        default:
                return false;
        }
}

hr_status cuda_result_status(CUresult result) {
        if (result == CUDA_SUCCESS)
                return HR_OK;
        if (cuda_result_is_sticky(result))
                return HR_E_DEVICE_LOST;
        if (result == CUDA_ERROR_OUT_OF_MEMORY)
                return HR_E_EXHAUSTED;
        return result == CUDA_ERROR_NOT_SUPPORTED ? HR_E_UNSUPPORTED : HR_E_INTERNAL;
}

const char *cuda_result_name(const struct cuda_syms *syms, CUresult result) {
        const char *name = NULL;

        if (syms->cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
                return "an unknown error";
        return name;
}
