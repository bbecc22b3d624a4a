/*
 * What who runs the daemon asks and is told: status, health, sessions, plans, quotas; reload,
 * drain, evict. Fields are listed once, and the lists give the structs, both ways of the codec and
 * the C client's copies: names are those of proto/headrace.proto.
 *
 * Texts are NUL-terminated and valid, cut to the wire's caps when they are written. Statuses as in
 * codec.h. Thread: any.
 */
#pragma once

#include "proto/codec.h"

/* NUMBER(type, name), TEXT(name, bytes with the NUL). */
#define HR_WIRE_STATUS_LIST(NUMBER, TEXT)                                                          \
        TEXT(version, 32)                                                                          \
        NUMBER(uint64_t, pid)                                                                      \
        NUMBER(uint64_t, uptime_ms)                                                                \
        TEXT(state, 16)                                                                            \
        NUMBER(bool, ready)                                                                        \
        NUMBER(bool, degraded)                                                                     \
        TEXT(words, 128)                                                                           \
        TEXT(principal, 64)                                                                        \
        NUMBER(bool, whole)                                                                        \
        NUMBER(uint64_t, connections)                                                              \
        NUMBER(uint64_t, sessions)                                                                 \
        NUMBER(uint64_t, requests)                                                                 \
        NUMBER(uint64_t, runs)                                                                     \
        NUMBER(uint64_t, graphs)                                                                   \
        NUMBER(uint64_t, weights)                                                                  \
        NUMBER(uint64_t, states)                                                                   \
        NUMBER(uint64_t, weight_bytes)                                                             \
        NUMBER(uint64_t, state_bytes)                                                              \
        NUMBER(uint64_t, device_bytes)                                                             \
        NUMBER(uint64_t, buffer_bytes)                                                             \
        NUMBER(uint64_t, upload_bytes)                                                             \
        NUMBER(uint64_t, epoch)                                                                    \
        NUMBER(uint32_t, devices)                                                                  \
        NUMBER(uint32_t, devices_lost)

#define HR_WIRE_DEVICE_HEALTH_LIST(NUMBER, TEXT)                                                   \
        TEXT(device, 64)                                                                           \
        TEXT(health, 16)                                                                           \
        NUMBER(bool, required)                                                                     \
        NUMBER(uint64_t, age_ms)                                                                   \
        NUMBER(uint64_t, beats)                                                                    \
        NUMBER(uint64_t, failures)

#define HR_WIRE_SESSION_LIST(NUMBER, TEXT)                                                         \
        NUMBER(uint64_t, number)                                                                   \
        TEXT(principal, 64)                                                                        \
        TEXT(name, 64)                                                                             \
        TEXT(client, 64)                                                                           \
        NUMBER(uint32_t, connections)                                                              \
        NUMBER(uint64_t, closing_ms)                                                               \
        NUMBER(uint64_t, runs)                                                                     \
        NUMBER(uint64_t, graphs)                                                                   \
        NUMBER(uint64_t, states)                                                                   \
        NUMBER(uint64_t, weights)                                                                  \
        NUMBER(uint64_t, device_bytes)                                                             \
        NUMBER(uint64_t, state_bytes)                                                              \
        NUMBER(uint64_t, weight_bytes)                                                             \
        NUMBER(uint64_t, buffer_bytes)

#define HR_WIRE_PLAN_LIST(NUMBER, TEXT)                                                            \
        NUMBER(uint64_t, session)                                                                  \
        NUMBER(uint32_t, graph)                                                                    \
        TEXT(principal, 64)                                                                        \
        TEXT(digest, 24)                                                                           \
        NUMBER(uint32_t, nodes)                                                                    \
        NUMBER(uint32_t, splits)                                                                   \
        NUMBER(uint32_t, n_copies)                                                                 \
        NUMBER(uint32_t, fallback_nodes)                                                           \
        NUMBER(uint64_t, copied_bytes)                                                             \
        NUMBER(uint64_t, own_bytes)                                                                \
        TEXT(origin, 16)                                                                           \
        NUMBER(bool, in_use)                                                                       \
        NUMBER(uint64_t, expert_bytes)                                                             \
        TEXT(devices, 256)

#define HR_WIRE_RELOAD_LIST(NUMBER, TEXT)                                                          \
        TEXT(applied, 1024)                                                                        \
        TEXT(kept, 1024)

#define HR_WIRE_DRAIN_LIST(NUMBER, TEXT)                                                           \
        NUMBER(uint64_t, requests)                                                                 \
        NUMBER(uint64_t, connections)                                                              \
        NUMBER(uint64_t, limit_ms)

#define HR_WIRE_EVICT_LIST(NUMBER, TEXT)                                                           \
        TEXT(what, 16)                                                                             \
        TEXT(name, 256)

#define HR_WIRE_EVICTED_LIST(NUMBER, TEXT)                                                         \
        NUMBER(uint64_t, entries)                                                                  \
        NUMBER(uint64_t, bytes)                                                                    \
        NUMBER(uint64_t, kept_entries)                                                             \
        NUMBER(uint64_t, kept_bytes)                                                               \
        NUMBER(bool, more)

#define HR_WIRE_NUMBER_MEMBER(type, name) type name;
#define HR_WIRE_TEXT_MEMBER(name, bytes) char name[bytes];
#define HR_WIRE_MEMBERS(LIST) LIST(HR_WIRE_NUMBER_MEMBER, HR_WIRE_TEXT_MEMBER)

struct hr_wire_status {
        uint8_t boot_id[HR_WIRE_BOOT_ID_BYTES];
        HR_WIRE_MEMBERS(HR_WIRE_STATUS_LIST)
};
struct hr_wire_device_health {
        HR_WIRE_MEMBERS(HR_WIRE_DEVICE_HEALTH_LIST)
};
struct hr_wire_health {
        bool live, ready, degraded;
        char words[128];
        const struct hr_wire_device_health *devices;
        uint32_t device_count;
};
struct hr_wire_session {
        HR_WIRE_MEMBERS(HR_WIRE_SESSION_LIST)
};
struct hr_wire_plan {
        HR_WIRE_MEMBERS(HR_WIRE_PLAN_LIST)
};
struct hr_wire_reload {
        HR_WIRE_MEMBERS(HR_WIRE_RELOAD_LIST)
};
struct hr_wire_drained {
        HR_WIRE_MEMBERS(HR_WIRE_DRAIN_LIST)
};
struct hr_wire_evict {
        HR_WIRE_MEMBERS(HR_WIRE_EVICT_LIST)
};
struct hr_wire_evicted {
        HR_WIRE_MEMBERS(HR_WIRE_EVICTED_LIST)
};

#define HR_WIRE_QUOTA_ITEMS_MAX 24U
struct hr_wire_quota_item {
        char what[32];
        uint64_t held, limit;
};
struct hr_wire_quota {
        char principal[64], permissions[32];
        uint32_t weight, item_count;
        struct hr_wire_quota_item items[HR_WIRE_QUOTA_ITEMS_MAX];
};

/* Where a page begins, or the next one does: Sessions, Quotas (only the first number) and Plans,
 * and their replies. */
struct hr_wire_page {
        uint64_t first;
        uint32_t second;
};

/* Explain. */
struct hr_wire_explain {
        uint64_t handle, session; /* one of them is 0 */
        uint32_t graph;
};

#define HR_WIRE_OPERATE_CODEC(name)                                                                \
        HR_NODISCARD hr_status hr_wire_##name##_encode(const struct hr_wire_##name *from,          \
                                                       uint8_t *buffer, size_t capacity,           \
                                                       struct hr_diag *diag, size_t *ret_bytes);   \
        HR_NODISCARD hr_status hr_wire_##name##_decode(struct hr_wire_span message,                \
                                                       struct hr_diag *diag,                       \
                                                       struct hr_wire_##name *ret_to)

/* StatusReply, ReloadReply, DrainReply, Evict, EvictReply, pages, Explain. */
HR_WIRE_OPERATE_CODEC(status);
HR_WIRE_OPERATE_CODEC(reload);
HR_WIRE_OPERATE_CODEC(drained);
HR_WIRE_OPERATE_CODEC(evict);
HR_WIRE_OPERATE_CODEC(evicted);
HR_WIRE_OPERATE_CODEC(page);
HR_WIRE_OPERATE_CODEC(explain);

/* HealthReply; its devices in the arena. */
HR_NODISCARD hr_status hr_wire_health_encode(const struct hr_wire_health *health, uint8_t *buffer,
                                             size_t capacity, struct hr_diag *diag,
                                             size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_health_decode(struct hr_wire_span message, struct hr_arena *arena,
                                             struct hr_diag *diag,
                                             struct hr_wire_health *ret_health);

/* SessionList, PlanList, QuotaList. Encoding: a buffer of NULL only measures. */
#define HR_WIRE_LIST_CODEC(name)                                                                   \
        HR_NODISCARD hr_status hr_wire_##name##s_encode(const struct hr_wire_##name *rows,         \
                                                        uint32_t count, uint8_t *buffer,           \
                                                        size_t capacity, struct hr_diag *diag,     \
                                                        size_t *ret_bytes);                        \
        HR_NODISCARD hr_status hr_wire_##name##s_decode(                                           \
                struct hr_wire_span message, struct hr_arena *arena, struct hr_diag *diag,         \
                const struct hr_wire_##name **ret_rows, uint32_t *ret_count)
HR_WIRE_LIST_CODEC(session);
HR_WIRE_LIST_CODEC(plan);
HR_WIRE_LIST_CODEC(quota);
