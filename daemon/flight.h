/*
 * What the daemon remembers of itself, as Chrome/Perfetto JSON: the spans of requests that the loop
 * has recorded and those of commands that devices' queues have, with arrows from each request
 * through its stages, its commands in the order in which they began, on whatever device, to its
 * reply.
 */
#pragma once

#include "core/status.h"

struct hr_fleet;
struct hr_recorder;
struct hr_span;

#define HR_FLIGHT_EVERYBODY UINT64_MAX

struct hr_flight_name {
        uint64_t id;
        const char *name;
};

/* One question. What it points at stays as it is until it is answered. */
struct hr_flight {
        const struct hr_recorder *recorder; /* the loop's; NULL = none */
        const struct hr_fleet *fleet;
        const struct hr_span *open; /* requests in flight */
        uint32_t open_count;
        uint64_t since_ns;  /* of the end of a span; 0 = all */
        uint64_t principal; /* whose requests; HR_FLIGHT_EVERYBODY: also what belongs to none */
        uint32_t spans_max; /* the latest ones */
        uint64_t span_seed; /* hr_server.span_seed */
        const char *(*type_name)(uint8_t type);
        const struct hr_flight_name *principals;
        uint32_t principal_count;
};

/* The text is freed by the caller. HR_E_EXHAUSTED. Thread: any. */
HR_NODISCARD hr_status hr_flight_text(const struct hr_flight *flight, struct hr_diag *diag,
                                      char **ret_text, size_t *ret_bytes);
