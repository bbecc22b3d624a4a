/* A small fleet of CPU devices for tests of what lives on devices. */
#pragma once

#include "backends/registry.h"
#include "scheduler/scheduler.h"
#include "tests/harness.h"

struct test_device {
        const char *name;
        bool isolated;
        uint64_t memory_cap;
};

static inline struct hr_fleet *test_fleet_new(const struct test_device *devices, uint32_t count) {
        struct hr_device *made[8];
        struct hr_fleet *fleet = NULL;
        struct hr_diag diag = {0};

        for (uint32_t i = 0; i < count; i++) {
                const struct hr_backend_config config = {.backend = "cpu",
                                                         .name = devices[i].name,
                                                         .threads = 1,
                                                         .isolated = devices[i].isolated,
                                                         .memory_cap = devices[i].memory_cap,
                                                         .isa = "auto"};

                HR_EXPECT_OK(hr_backend_device_new(&config, &diag, &made[i]), &diag);
        }
        HR_EXPECT_OK(hr_fleet_new(made, count, &diag, &fleet), &diag);
        for (uint32_t i = 0; i < count; i++)
                hr_device_unref(made[i]);
        return fleet;
}

static inline uint64_t test_fleet_used(const struct hr_fleet *fleet, uint32_t device) {
        return atomic_load(&hr_fleet_device(fleet, device)->used_bytes);
}
