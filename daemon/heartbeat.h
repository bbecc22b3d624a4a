/*
 * The pulse: at a steady pace the engine has each device compute a small known result. What comes
 * back proves that the loop turns, that the engine works and that the device's queue moves and
 * computes right, and a look at the listeners' paths that clients can still come; the service
 * manager's watchdog is fed by nothing else.
 *
 * A beat waits behind what a device has been given. While it does, the device is alive as long as
 * it comes from step to step.
 *
 * Thread: loop, except where said.
 */
#pragma once

#include "core/status.h"

struct hr_server;
struct hr_heartbeat;

typedef enum hr_health {
        HR_HEALTH_STARTING, /* no beat has come back yet */
        HR_HEALTH_OK,
        HR_HEALTH_LATE,  /* its beat has been outstanding for two ticks and it came no further */
        HR_HEALTH_WRONG, /* its latest result was wrong, or could not be computed */
        HR_HEALTH_LOST,
} hr_health;

struct hr_device_health {
        hr_health health;
        uint64_t age_ns; /* since the latest beat that came back right; 0 before the first */
        uint64_t beats, failures;
};

/* Begins beating. HR_E_EXHAUSTED; what a device refuses is no failure here, but its health. */
HR_NODISCARD hr_status hr_heartbeat_new(struct hr_server *server, struct hr_diag *diag,
                                        struct hr_heartbeat **ret_heartbeat);
/* No more beats are begun, for the end of a drain. */
void hr_heartbeat_stop(struct hr_heartbeat *heartbeat);
/* Nothing of it is with the engine. */
bool hr_heartbeat_is_idle(const struct hr_heartbeat *heartbeat);
/* Gives back what is on devices; the engine has stopped, the fleet's queues have ended. NULL is a
 * no-op. */
void hr_heartbeat_release(struct hr_heartbeat *heartbeat);
/* After the loop has been closed. Returns NULL; NULL is a no-op. */
struct hr_heartbeat *hr_heartbeat_free(struct hr_heartbeat *heartbeat);

void hr_heartbeat_device(const struct hr_heartbeat *heartbeat, uint32_t device,
                         struct hr_device_health *ret_health);
/* "ok"...; never NULL. */
const char *hr_health_name(hr_health health);
/* New requests are taken and every required device is well. words: why not, or what is given up for
 * lack of memory; they stay while the server waits no longer. At the start: not yet. */
bool hr_server_is_ready(const struct hr_server *server, const char **ret_words);
/* Some device is not well, or is not there (yet), required or not; or memory is short. */
bool hr_server_is_degraded(const struct hr_server *server);
/* The longest that a tick has come late: the loop was busy for so long. */
uint64_t hr_heartbeat_lag_ns(const struct hr_heartbeat *heartbeat);
