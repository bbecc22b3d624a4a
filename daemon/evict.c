/*
 * The order of use is the session's list `graphs`: published graphs only, the latest use last. The
 * memory of evictions is a ring, so its size is bounded whatever a client does.
 */
#include "daemon/evict.h"

#include <stdlib.h>
#include <string.h>

struct hr_evicted {
        uint64_t handle; /* 0 = none */
        uint8_t digest[HR_DIGEST_BYTES];
};

static void evicted_remember(struct hr_session *session, uint64_t handle, const uint8_t *digest) {
        struct hr_evicted *entry;

        if (!session->evicted)
                session->evicted = calloc(HR_EVICTED_MAX, sizeof *session->evicted);
        if (!session->evicted)
                return; /* the handle is not found, without a digest */
        entry = &session->evicted[session->evicted_next++ % HR_EVICTED_MAX];
        entry->handle = handle;
        memcpy(entry->digest, digest, HR_DIGEST_BYTES);
}

const uint8_t *hr_evicted_digest(const struct hr_session *session, uint64_t handle) {
        for (uint32_t i = 0; session->evicted && handle != 0 && i < HR_EVICTED_MAX; i++)
                if (session->evicted[i].handle == handle)
                        return session->evicted[i].digest;
        return NULL;
}

static bool object_is_idle(const struct hr_object *object) {
        return object->refs == 1;
}

static void object_evict(struct hr_object *object, uint64_t *counter) {
        struct hr_session *session = object->session;

        evicted_remember(session, object->handle,
                         hr_graph_entry_digest(hr_graph_object(object)->entry));
        hr_object_discharge(object);
        hr_session_forget(session, object);
        ++*counter;
}

static bool graph_helps(const struct hr_graph_object *graph, const struct hr_shortage *shortages,
                        uint32_t device_count) {
        for (uint32_t i = 0; i < device_count; i++)
                if (shortages[i].is_short && graph->shares[i].bytes > 0)
                        return true;
        return false;
}

/* Bytes of a device that the session's idle graphs own. */
static uint64_t idle_bytes(const struct hr_session *session, uint32_t device) {
        uint64_t bytes = 0;

        HR_LIST_FOR_EACH(link, &session->graphs) {
                struct hr_object *object = HR_CONTAINER_OF(link, struct hr_object, used_link);

                if (object_is_idle(object))
                        bytes += hr_graph_object(object)->shares[device].own_bytes;
        }
        return bytes;
}

bool hr_evict_for_memory(struct hr_session *session, const struct hr_shortage *shortages) {
        const uint32_t device_count = hr_fleet_device_count(session->server->fleet);

        for (uint32_t i = 0; i < device_count; i++)
                if (shortages[i].is_short && shortages[i].missing_bytes > 0 &&
                    idle_bytes(session, i) < shortages[i].missing_bytes)
                        return false;
        HR_LIST_FOR_EACH(link, &session->graphs) {
                struct hr_object *object = HR_CONTAINER_OF(link, struct hr_object, used_link);

                if (!object_is_idle(object) ||
                    !graph_helps(hr_graph_object(object), shortages, device_count))
                        continue;
                object_evict(object, &session->server->stats.evictions_for_memory);
                return true;
        }
        return false;
}

void hr_evict_lost(struct hr_request *request, struct hr_object *object, struct hr_job *job) {
        const uint8_t *digest = hr_graph_entry_digest(hr_graph_object(object)->entry);

        if (job->status != HR_E_DEVICE_LOST || strcmp(hr_diag_reason(&job->diag), "RETIRED") != 0)
                return;
        if (object->handle != 0)
                object_evict(object, &object->session->server->stats.evictions_for_loss);
        if (!request->digest) {
                request->digest = hr_arena_alloc(&request->arena, HR_DIGEST_BYTES, 1);
                if (request->digest)
                        memcpy(request->digest, digest, HR_DIGEST_BYTES);
        }
        hr_diag_clear(&job->diag);
        job->status = hr_fail_reason(&job->diag, HR_E_NOT_FOUND, "GRAPH",
                                     "the graph was planned for a device that is lost");
}

/* The idle graph that was used longest ago, or NULL. */
static struct hr_object *idle_graph(const struct hr_session *session) {
        HR_LIST_FOR_EACH(link, &session->graphs) {
                struct hr_object *object = HR_CONTAINER_OF(link, struct hr_object, used_link);

                if (object_is_idle(object))
                        return object;
        }
        return NULL;
}

hr_status hr_evict_for_handle(struct hr_session *session, uint64_t limit, struct hr_diag *diag) {
        while (session->graph_handles >= limit) {
                struct hr_object *object = idle_graph(session);
                uint64_t held = session->graph_handles;

                if (!object)
                        return hr_charge(&held, 1, limit, "session_graphs", diag);
                object_evict(object, &session->server->stats.evictions_for_handles);
        }
        return HR_OK;
}

/* ---- for who runs the daemon ----------------------------------------------------------------- */

#define LOOKS_MAX 16384U /* graphs looked at in one call */

static uint64_t own_bytes(const struct hr_graph_object *graph, uint32_t device_count,
                          uint64_t *ret_all) {
        uint64_t own = 0;

        *ret_all = 0;
        for (uint32_t i = 0; i < device_count; i++) {
                own += graph->shares[i].own_bytes;
                *ret_all += graph->shares[i].bytes;
        }
        return own;
}

void hr_evict_idle(struct hr_server *server, const struct hr_evict_which *which,
                   struct hr_evicted_sum *ret_sum) {
        const uint32_t device_count = hr_fleet_device_count(server->fleet);
        struct hr_evicted_sum sum = {0};
        uint32_t looks = 0;

        HR_LIST_FOR_EACH(session_link, &server->sessions) {
                struct hr_session *session =
                        HR_CONTAINER_OF(session_link, struct hr_session, link);

                HR_LIST_FOR_EACH(link, &session->graphs) {
                        struct hr_object *object =
                                HR_CONTAINER_OF(link, struct hr_object, used_link);
                        const struct hr_graph_object *graph = hr_graph_object(object);
                        uint64_t all, own = own_bytes(graph, device_count, &all);

                        if (++looks > LOOKS_MAX || sum.entries == which->most) {
                                sum.more = sum.entries > 0;
                                *ret_sum = sum;
                                return;
                        }
                        if (which->experts_only &&
                            hr_pipeline_expert_bytes(graph->bound->bound.pipeline) == 0)
                                continue;
                        /* Without a share it is reserved: its handle alone would go. */
                        if (!object_is_idle(object) || all == 0 ||
                            object->used_ns >= which->used_before_ns) {
                                sum.kept_entries++;
                                sum.kept_bytes += own;
                                continue;
                        }
                        object_evict(object, which->counter);
                        sum.entries++;
                        sum.bytes += own;
                }
        }
        *ret_sum = sum;
}
