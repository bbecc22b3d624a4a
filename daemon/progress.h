/*
 * How far a request is, pushed to its peer while it lasts.
 *
 * A timer looks at all such requests twenty times a second; the numbers are atomics of the weight
 * store's job, so looking waits for nobody. Only peers that asked for it in their hello are told,
 * and one that does not read what is sent is not sent more. Thread: loop.
 */
#pragma once

#include "daemon/request.h"

/* Embedded in what the request holds. Zeroed is valid to end. */
struct hr_progress {
        struct hr_list link;
        struct hr_request *request;
        const struct hr_weights_job *job;
        const char *phase; /* static storage */
        uint64_t told_bytes;
        bool told;
};

/* Begins to tell; a no-op for a peer that has not asked for it. The job outlives the progress. */
void hr_progress_begin(struct hr_progress *progress, struct hr_request *request,
                       const struct hr_weights_job *job, const char *phase);
/* Everything is there: tells that, unless there was nothing to tell or it has been told. */
void hr_progress_complete(struct hr_progress *progress);
/* Nothing more is told. Idempotent. */
void hr_progress_end(struct hr_progress *progress);
