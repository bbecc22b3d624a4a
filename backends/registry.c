/* From a configuration to a device of one of the backends in this build. */
#include "backends/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cpu/backend.h"
#ifdef HR_HAVE_BLAS
#include "backends/blas/backend.h"
#endif
#ifdef HR_HAVE_FAKE
#include "backends/fake/backend.h"
#endif
#ifdef HR_HAVE_CUDA
#include "backends/cuda/backend.h"
#endif

static hr_status cpu_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                struct hr_device **ret_device) {
        struct hr_cpu_config cpu = {
                .name = config->name,
                .threads = config->threads,
                .isolated = config->isolated,
                .memory_cap = config->memory_cap,
                .spin_us = config->spin_us,
                .deterministic = config->deterministic,
                .fast = config->fast,
                .isa = config->isa,
                .deny_ops = config->deny_ops,
                .delay_us = config->delay_us,
                .wake_all = config->wake_all,
        };

        return hr_cpu_device_new(&cpu, diag, ret_device);
}

#ifdef HR_HAVE_BLAS
static hr_status blas_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                 struct hr_device **ret_device) {
        struct hr_blas_config blas = {
                .name = config->name,
                .threads = config->threads,
                .batch_min = config->batch_min,
                .spin_us = config->spin_us,
                .memory_cap = config->memory_cap,
                .to_f32 = hr_cpu_weights_to_f32(),
        };

        return hr_blas_device_new(&blas, diag, ret_device);
}
#endif

#ifdef HR_HAVE_FAKE
/* All simulated devices of a process share a world that lets everything pass at once. It stays. */
static hr_status fake_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                 struct hr_device **ret_device) {
        static struct hr_fake_world *world;
        const char *folder = getenv("HEADRACE_FAKE_NEED");
        char path[4096];
        struct hr_fake_config fake = {
                .name = config->name,
                .type = HR_DEVICE_GPU,
                .peer = true,
                .threads = config->threads,
                .memory_cap = config->memory_cap,
                .deny_ops = config->deny_ops,
                .lose_folder = getenv("HEADRACE_FAKE_LOSE"),
        };

        /* It is there once a file of its name is. */
        if (folder && (snprintf(path, sizeof path, "%s/%s", folder, config->name) < 0 ||
                       access(path, F_OK) != 0))
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "DRIVER", "no such simulated device");
        if (!world)
                HR_TRY(hr_fake_world_new(true, diag, &world));
        return hr_fake_device_new(world, &fake, diag, ret_device);
}
#endif

#ifdef HR_HAVE_CUDA
static hr_status cuda_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                 struct hr_device **ret_device) {
        struct hr_cuda_config cuda = {
                .name = config->name,
                .gpu = config->gpu,
                .memory_cap = config->memory_cap,
                .spin_us = config->spin_us,
                .batch_min = config->batch_min,
                .deny_ops = config->deny_ops,
                .pin_bytes = config->pin_bytes,
                .single_launches = config->single_launches,
        };

        return hr_cuda_device_new(&cuda, diag, ret_device);
}
#endif

hr_status hr_backend_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                struct hr_device **ret_device) {
        if (strcmp(config->backend, "cpu") == 0)
                return cpu_device_new(config, diag, ret_device);
#ifdef HR_HAVE_BLAS
        if (strcmp(config->backend, "blas") == 0)
                return blas_device_new(config, diag, ret_device);
#endif
#ifdef HR_HAVE_FAKE
        if (strcmp(config->backend, "fake") == 0)
                return fake_device_new(config, diag, ret_device);
#endif
#ifdef HR_HAVE_CUDA
        if (strcmp(config->backend, "cuda") == 0)
                return cuda_device_new(config, diag, ret_device);
#endif
        return hr_fail_reason(diag, HR_E_UNSUPPORTED, "BACKEND",
                              "this build has no backend \"%s\"", config->backend);
}

const char *const *hr_backend_names(void) {
        static const char *const names[] = {
                "cpu",
#ifdef HR_HAVE_BLAS
                "blas",
#endif
#ifdef HR_HAVE_FAKE
                "fake",
#endif
#ifdef HR_HAVE_CUDA
                "cuda",
#endif
                NULL,
        };

        return names;
}

hr_status hr_backend_gpu_count(struct hr_diag *diag, uint32_t *ret_count) {
#ifdef HR_HAVE_CUDA
        return hr_cuda_gpu_count(diag, ret_count);
#else
        return hr_fail_reason(diag, HR_E_UNSUPPORTED, "BACKEND", "this build has no backend cuda");
#endif
}

bool hr_backend_gpu_is_usable(uint32_t gpu) {
#ifdef HR_HAVE_CUDA
        return hr_cuda_gpu_is_usable(gpu);
#else
        return false;
#endif
}
