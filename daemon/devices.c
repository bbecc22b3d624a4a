/*
 * Waiting is done in the loop, so that signals are taken and HTTP answers; sockets are not open
 * yet, except those that the service manager holds, where clients wait: until its devices are known
 * the daemon has no plans to make, no limits to tell and nobody to charge.
 */
#include "daemon/devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/log.h"
#include "daemon/notify.h"
#include "daemon/server.h"

#define SAID_AGAIN_NS (UINT64_C(60) * HR_NS_PER_S)

/* Why no GPU is among the devices that were found, once. */
static void gpus_log(void) {
        struct hr_diag diag = {0};
        uint32_t count = 0;

        if (hr_backend_gpu_count(&diag, &count) == HR_OK)
                hr_log(HR_LOG_INFO, "server", "GPUs found: %u", count);
        else if (diag.status == HR_E_UNAVAILABLE)
                hr_log(HR_LOG_NOTICE, "server", "no GPU is used: %s", diag.words);
}

static hr_status device_new(const struct hr_config_device *device, struct hr_diag *diag,
                            struct hr_device **ret_device) {
        const struct hr_backend_config backend = {
                .backend = device->backend,
                .name = device->name,
                .threads = (uint32_t) device->threads,
                .isolated = device->isolated,
                .memory_cap = device->memory_cap,
                .spin_us = (uint32_t) (device->spin_ns / 1000),
                .deterministic = device->deterministic,
                .fast = strcmp(device->arithmetic, "fast") == 0,
                .isa = device->isa,
                .deny_ops = device->deny_ops,
                .delay_us = (uint32_t) (device->delay_ns / 1000),
                .batch_min = (uint32_t) device->batch_min,
                .gpu = (uint32_t) device->gpu,
                .pin_bytes = device->pin_bytes,
                .single_launches = !device->graphs,
        };

        return hr_backend_device_new(&backend, diag, ret_device);
}

/* It may be there later. */
static bool is_missing(hr_status status) {
        return status == HR_E_UNAVAILABLE || status == HR_E_NOT_FOUND || status == HR_E_DEVICE_LOST;
}

static void again_cb(void *arg) {
        bool *is_due = arg;

        *is_due = true;
}

/* Until the device is there, or the server is told to end. */
static hr_status device_wait(struct hr_server *server, const struct hr_config_device *device,
                             struct hr_diag *diag, struct hr_device **ret_device) {
        const uint64_t retry_ms = server->config->device_retry_ns / HR_NS_PER_MS;
        const uint64_t started_ns = hr_clock_now_ns();
        uint64_t said_ns = 0;
        hr_status status = diag->status;
        bool is_due = false;
        struct hr_timer *timer = hr_timer_new(server->loop, &is_due);

        if (!timer)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a timer");
        while (is_missing(status) && !server->stopping) {
                const uint64_t now_ns = hr_clock_now_ns();

                if (said_ns == 0 || now_ns - said_ns >= SAID_AGAIN_NS) {
                        hr_log(HR_LOG_ERROR, "server",
                               "required device %s is not there, not ready: %s", device->name,
                               diag->words);
                        said_ns = now_ns;
                }
                (void) snprintf(server->waiting, sizeof server->waiting,
                                "required device %s is not there: %.200s", device->name,
                                diag->words);
                hr_notify_waiting(2 * server->config->device_retry_ns, "Not ready: %s",
                                  server->waiting);
                is_due = false;
                hr_timer_start(timer, again_cb, retry_ms, 0);
                while (!is_due && !server->stopping)
                        hr_loop_turn(server->loop, true);
                hr_diag_clear(diag);
                status = server->stopping ? HR_OK : device_new(device, diag, ret_device);
        }
        (void) hr_timer_free(timer);
        server->waiting[0] = '\0';
        if (status == HR_OK && !server->stopping)
                hr_log(HR_LOG_NOTICE, "server", "required device %s is there after %.1f s",
                       device->name, (double) (hr_clock_now_ns() - started_ns) / 1e9);
        return status;
}

static hr_status device_open(struct hr_server *server, const struct hr_config_device *config,
                             struct hr_diag *diag) {
        struct hr_device *device = NULL;
        hr_status status = device_new(config, diag, &device);

        if (is_missing(status) && config->required) {
                status = device_wait(server, config, diag, &device);
        } else if (is_missing(status)) {
                hr_log(HR_LOG_ERROR, "server",
                       "device %s is not there, degraded until the next start: %s", config->name,
                       diag->words);
                hr_diag_clear(diag);
                server->missing_count++;
                return HR_OK;
        }
        HR_TRY(status);
        if (!device)
                return HR_OK;
        device->expert_bytes = config->expert_bytes;
        server->device_configs[server->device_count] = config;
        server->devices[server->device_count++] = device;
        hr_log(HR_LOG_INFO, "server", "device %s: %s", config->name, device->props.description);
        return HR_OK;
}

hr_status hr_devices_open(struct hr_server *server, struct hr_diag *diag) {
        const struct hr_config *config = server->config;
        const uint32_t count = config->device_count;

        if (config->devices_are_found)
                gpus_log();
        server->devices = calloc(count, sizeof *server->devices);
        server->device_configs = calloc(count, sizeof(const struct hr_config_device *));
        server->stats.device_splits = calloc(count, sizeof(uint64_t));
        if (!server->devices || !server->device_configs || !server->stats.device_splits)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for devices");
        for (uint32_t i = 0; i < count && !server->stopping; i++)
                HR_TRY(device_open(server, &config->devices[i], diag));
        return HR_OK;
}

void hr_devices_close(struct hr_server *server) {
        for (uint32_t i = 0; i < server->device_count; i++)
                server->devices[i] = hr_device_unref(server->devices[i]);
        free(server->devices);
        free(server->device_configs);
        free(server->stats.device_splits);
}
