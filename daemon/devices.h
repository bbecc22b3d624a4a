/*
 * The devices of a server, as the configuration names them.
 *
 * One that is not there (no driver, no such GPU) and that is required is waited for: the server is
 * not ready, says so loudly (log, STATUS=, /ready over HTTP), and tries again until it is there.
 * One that is not required is left out: the server is degraded from then on.
 *
 * Thread: loop.
 */
#pragma once

#include "core/status.h"

struct hr_server;

/* Fills server->devices and what goes with them. HR_OK with server->stopping set: it was told to
 * end while it waited. HR_E_UNSUPPORTED for a backend that this build does not have, and whatever
 * else no patience helps against. */
HR_NODISCARD hr_status hr_devices_open(struct hr_server *server, struct hr_diag *diag);
void hr_devices_close(struct hr_server *server);
