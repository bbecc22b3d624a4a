/*
 * The devices: those of backends/fake, in a world whose clock follows the history's. What ends on
 * them ends on a thread of its own, as notifications of a driver do.
 */
#include "backends/registry.h"

#include <stdio.h>
#include <string.h>

#include "backends/fake/fake.h"
#include "core/clock.h"
#include "tests/simulation/sim.h"

#define DEVICES_MAX 8U

struct hr_fleet *__real_hr_fleet_free(struct hr_fleet *fleet);
struct hr_fleet *__wrap_hr_fleet_free(struct hr_fleet *fleet);

static struct hr_fake_world *world;
static struct hr_device *devices[DEVICES_MAX]; /* not referenced */
static uint32_t device_count;
static pthread_t thread;
static bool ending, stepping;
static uint64_t trouble_ns; /* when the next one comes */

/* ---- the registry ---------------------------------------------------------------------------- */

hr_status hr_backend_device_new(const struct hr_backend_config *config, struct hr_diag *diag,
                                struct hr_device **ret_device) {
        const bool host = strcmp(config->backend, "cpu") == 0;
        struct hr_fake_config fake = {
                .name = config->name,
                .type = host ? HR_DEVICE_CPU : HR_DEVICE_GPU,
                .host = host,
                .peer = sim_chance(500),
                .threads = 1,
                .memory_cap = config->memory_cap,
                .launch_ns = sim_random(50000),
                .step_ns = sim_random(20000),
                .command_ns = sim_random(2000),
        };
        struct hr_fake_link link = {sim_random(20000), 1 + sim_random(HR_NS_PER_S)};

        HR_TRY(hr_fake_device_new(world, &fake, diag, ret_device));
        HR_TRY(hr_fake_link(*ret_device, NULL, link, diag));
        if (!host && device_count < DEVICES_MAX)
                devices[device_count++] = *ret_device;
        return HR_OK;
}

const char *const *hr_backend_names(void) {
        static const char *const names[] = {"cpu", "fake", NULL};

        return names;
}

hr_status hr_backend_gpu_count(struct hr_diag *diag, uint32_t *ret_count) {
        (void) ret_count;
        return hr_fail_reason(diag, HR_E_UNSUPPORTED, "BACKEND", "no GPUs here");
}

bool hr_backend_gpu_is_usable(uint32_t gpu) {
        (void) gpu;
        return false;
}

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t sim_devices_next_ns(void) {
        return world && world->heap_count > 0 ? world->heap[0]->ends_ns : SIM_NEVER;
}

/* Whoever waits for an event lets the devices' time pass, and with it everybody's. */
void sim_devices_follow(void) {
        if (!world || world->is_running)
                return;
        sim.now_ns = HR_MAX(sim.now_ns, world->now_ns);
        if (sim_devices_next_ns() > sim.now_ns)
                hr_fake_run_until(world, sim.now_ns);
        else
                sim_wake(&world);
}

static void trouble_make(void) {
        trouble_ns = sim.now_ns + 1 + sim_random(20 * HR_NS_PER_MS);
        if (sim.traits.device_errors) {
                if (sim_chance(500))
                        hr_fake_fail_command(world, 1 + sim_random(20), HR_E_INTERNAL);
                else
                        hr_fake_fail_call(world, 1 + sim_random(40), HR_E_INTERNAL, false);
        }
        if (sim.traits.device_losses && device_count > 0 && sim_chance(100)) {
                uint64_t lost = sim_random(device_count);

                sim_tell("%s is lost", devices[lost]->props.name);
                hr_fake_lose(devices[lost]);
        }
}

static void devices_main(void) {
        while (!ending) {
                const uint64_t next_ns = sim_devices_next_ns();

                if (next_ns > sim.now_ns) {
                        sim_block(&world, next_ns);
                        continue;
                }
                stepping = true;
                sim_hold(true);
                (void) hr_fake_step(world);
                if ((sim.traits.device_errors || sim.traits.device_losses) &&
                    sim.now_ns >= trouble_ns && sim.running)
                        trouble_make();
                sim_hold(false);
                stepping = false;
                sim_wake(&stepping);
                sim_yield();
        }
}

/* A device's thread has ended before its queues go. */
struct hr_fleet *__wrap_hr_fleet_free(struct hr_fleet *fleet) {
        while (stepping)
                sim_block(&stepping, SIM_NEVER);
        ending = true;
        sim_wake(&world);
        (void) pthread_join(thread, NULL);
        return __real_hr_fleet_free(fleet);
}

void sim_devices_begin(void) {
        struct hr_diag diag = {0};

        HR_ASSERT(hr_fake_world_new(false, &diag, &world) == HR_OK);
        world->now_ns = sim.now_ns;
        device_count = 0;
        ending = stepping = false;
        trouble_ns = sim.now_ns + sim_random(50 * HR_NS_PER_MS);
        thread = sim_thread_start(devices_main);
}

void sim_devices_end(void) {
        world = hr_fake_world_unref(world);
}
