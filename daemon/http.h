/*
 * HTTP for monitoring, on an address of its own (daemon.metrics; off by default):
 *
 *   GET /metrics  the figures in Prometheus' text format
 *   GET /live     200 while the loop turns
 *   GET /ready    200 while new requests are taken and required devices compute; else 503 and why
 *   GET /degraded 200 while every device is well; else 503 and which are not
 *
 * There is no authentication: bind it where only the monitoring reaches it. Served by the loop,
 * through libmicrohttpd; a build without that refuses the key. Thread: loop.
 */
#pragma once

#include "core/status.h"

struct hr_server;
struct hr_http;

/* NULL where the configuration names no address. HR_E_UNAVAILABLE (reason LISTEN) when it cannot be
 * had, HR_E_UNSUPPORTED in a build without it. */
HR_NODISCARD hr_status hr_http_open(struct hr_server *server, struct hr_diag *diag,
                                    struct hr_http **ret_http);
/* No answer waits for the engine. */
bool hr_http_is_idle(const struct hr_http *http);
/* When it is idle; before the loop is closed. Returns NULL; NULL is a no-op. */
struct hr_http *hr_http_close(struct hr_http *http);
