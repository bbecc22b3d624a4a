/*
 * Graphs that make way for others of their session.
 *
 * A session's graphs are kept in the order of their latest use. When there is no handle or no
 * device memory left for another one, the graph that has been idle longest goes: its handle, its
 * pipeline, and with them its memory. What has been evicted is remembered for a while, so that a
 * later use of the handle is told the graph's digest and the client can submit it again.
 *
 * Idle is a graph that nothing but its handle refers to: no run of it is received, queued or in
 * flight, no other request uses it, and it is not reserved. Thread: loop.
 */
#pragma once

#include "daemon/bind.h"

/* Evictions that a session remembers: 40 KiB, taken with the first one. */
#define HR_EVICTED_MAX 1024U

/* Evicts the idle graph that was used longest ago among those with memory on a device that is short
 * of it (`shortages`: per device). False when there is none, or when all of them together would not
 * do. The engine closes it before it takes up work that is posted from now on. */
bool hr_evict_for_memory(struct hr_session *session, const struct hr_shortage *shortages);
/* Makes room for one more handle of a graph under `limit`. HR_E_EXHAUSTED (reason LIMIT) when none
 * is idle. */
HR_NODISCARD hr_status hr_evict_for_handle(struct hr_session *session, uint64_t limit,
                                           struct hr_diag *diag);
/* Where a run of the graph was refused because its plan needs a lost device: takes the graph's
 * handle, whoever else uses it, and makes the job's end that of an evicted graph, with the digest
 * in the request. To be called for each run that has ended. */
void hr_evict_lost(struct hr_request *request, struct hr_object *object, struct hr_job *job);
/* The digest of the graph that a handle stood for until it was evicted, or NULL: never one, or too
 * long ago. Valid until the next eviction. */
const uint8_t *hr_evicted_digest(const struct hr_session *session, uint64_t handle);

/* What an eviction has freed, and what is in use. */
struct hr_evicted_sum {
        uint64_t entries, bytes, kept_entries, kept_bytes;
        bool more; /* there is more to look at */
};
struct hr_evict_which {
        bool experts_only;       /* those that keep experts on devices */
        uint32_t most;           /* at most so many */
        uint64_t used_before_ns; /* those whose latest use was before that time */
        uint64_t *counter;       /* of evictions */
};
/* Evicts idle graphs of all sessions; looks at so many more as a millisecond allows. Bytes are the
 * graphs' own; what they share is free with the last of them. */
void hr_evict_idle(struct hr_server *server, const struct hr_evict_which *which,
                   struct hr_evicted_sum *ret_sum);
