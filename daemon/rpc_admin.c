/*
 * STATS: one flat list of named numbers with labels, gathered from the engine's side in one job and
 * from the loop's own counters behind it. QUOTA: the same of what the asking client holds.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "daemon/bind.h"
#include "daemon/rpc.h"

#define LABEL_BYTES 128U

/* A list that grows in the request's arena; `full` when there is no more memory. */
struct list {
        struct hr_arena *arena;
        struct hr_wire_stat *stats;
        uint32_t count, capacity;
        bool full;
};

struct gathered {
        struct hr_exec_stats exec;
        struct hr_plan_cache_stats plans;
        struct hr_weights_store_stats store;
        struct hr_engine_stats engine;
        uint64_t graphs;
        struct list list; /* begun by the engine */
};

static void put_labelled(struct list *list, const char *name, const char *labels, double value) {
        if (list->count == list->capacity) {
                uint32_t capacity = list->capacity ? list->capacity * 2 : 128;
                struct hr_wire_stat *stats =
                        hr_arena_alloc(list->arena, capacity * sizeof *stats, 8);

                if (!stats) {
                        list->full = true;
                        return;
                }
                for (uint32_t i = 0; i < list->count; i++)
                        stats[i] = list->stats[i];
                list->stats = stats;
                list->capacity = capacity;
        }
        list->stats[list->count++] = (struct hr_wire_stat){name, labels, value};
}

static void put(struct list *list, const char *name, uint64_t value) {
        put_labelled(list, name, "", (double) value);
}

/* key="value", in the arena. */
HR_PRINTF(4, 5)
static void put_with(struct list *list, const char *name, uint64_t value, const char *format, ...) {
        char *labels = hr_arena_alloc(list->arena, LABEL_BYTES, 1);
        va_list args;

        if (!labels) {
                list->full = true;
                return;
        }
        va_start(args, format);
        (void) vsnprintf(labels, LABEL_BYTES, format, args);
        va_end(args);
        put_labelled(list, name, labels, (double) value);
}

/* A name inside a label: what would end it becomes '_'. Cut to the room. */
static void label_copy(char *label, size_t room, const char *name) {
        size_t at = 0;

        for (; name[at] && at + 1 < room; at++)
                label[at] = name[at] == '"' || name[at] == '\\' || (unsigned char) name[at] < ' '
                                    ? '_'
                                    : name[at];
        label[at] = '\0';
}

static void put_usage(struct list *list, const char *set, const char *tensor,
                      const struct hr_expert_usage *usage) {
        char set_label[33], tensor_label[65];

        label_copy(set_label, sizeof set_label, set);
        label_copy(tensor_label, sizeof tensor_label, tensor);
        for (uint32_t e = 0; e < usage->experts; e++) {
                uint64_t runs = atomic_load_explicit(&usage->runs[e], memory_order_relaxed);

                if (runs)
                        put_with(list, "expert_uses_total", runs,
                                 "set=\"%s\",tensor=\"%s\",expert=\"%u\"", set_label,
                                 tensor_label, e);
        }
}

/* The histogram of every layer: how many runs used each expert of its first weight, while its set
 * is there. Thread: engine. */
static void put_usages(struct list *list, struct hr_weights_store *store) {
        for (struct hr_weights *set = hr_weights_store_next(store, NULL); set;
             set = hr_weights_store_next(store, set))
                for (uint32_t i = 0; i < set->manifest->tensor_count; i++) {
                        const struct hr_weights_home *home = &set->homes[i];
                        const struct hr_expert_usage *usage =
                                home->buffer ? home->buffer->expert_usages : NULL;

                        for (; usage; usage = usage->next)
                                if (usage->offset == home->offset)
                                        put_usage(list, set->name, set->manifest->tensors[i].name,
                                                  usage);
                }
}

/* Thread: engine. */
static void stats_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct hr_engine *engine = request->server->engine;
        struct gathered *gathered = request->context;

        hr_engine_turn_take(engine);
        gathered->exec = hr_fleet_exec_stats(hr_engine_fleet(engine));
        hr_engine_turn_give(engine);
        gathered->plans = hr_plan_cache_stats(hr_engine_plan_cache(engine));
        gathered->store = hr_weights_store_stats(hr_engine_store(engine));
        gathered->engine = hr_engine_stats(engine);
        gathered->graphs = hr_graphs_count(request->server->graphs);
        gathered->list.arena = &request->arena;
        put_usages(&gathered->list, hr_engine_store(engine));
        hr_engine_job_end(job);
}

static void put_server(struct list *list, const struct hr_server *server) {
        const struct hr_server_stats *stats = &server->stats;

        put_labelled(list, "uptime_seconds", "",
                     (double) (hr_clock_now_ns() - server->started_ns) / 1e9);
        put(list, "connections", stats->connections);
        put(list, "connections_total", stats->connections_total);
        put(list, "connections_refused_total", stats->connections_refused);
        put(list, "unauthenticated_total", stats->unauthenticated);
        put(list, "sessions", stats->sessions);
        put(list, "sessions_total", stats->sessions_total);
        put(list, "objects", stats->objects);
        put(list, "requests_in_flight", stats->requests_in_flight);
        put(list, "runs_in_flight", stats->runs_in_flight);
        put(list, "reallocations_total", stats->reallocs);
        put(list, "bytes_in_total", stats->bytes_in);
        put(list, "bytes_out_total", stats->bytes_out);
        put(list, "frames_in_total", stats->frames_in);
        put(list, "frames_out_total", stats->frames_out);
        put(list, "protocol_errors_total", stats->protocol_errors);
        put(list, "data_dropped_total", stats->data_dropped);
        put(list, "fallback_nodes_total", stats->fallback_nodes);
        put_with(list, "graph_evictions_total", stats->evictions_for_handles, "reason=\"handles\"");
        put_with(list, "graph_evictions_total", stats->evictions_for_memory, "reason=\"memory\"");
        put_with(list, "graph_evictions_total", stats->evictions_for_loss,
                 "reason=\"device_lost\"");
        put_labelled(list, "run_seconds_total", "", (double) stats->run_ns / 1e9);
        put(list, "taps_total", stats->taps);
        put(list, "taps_stopped_total", stats->taps_stopped);
        put_labelled(list, "queue_seconds_total", "", (double) stats->queue_ns / 1e9);
        for (unsigned type = 0; type < HR_ARRAY_LENGTH(stats->requests); type++)
                for (unsigned code = 0; code < HR_GRPC_CODES; code++)
                        if (stats->requests[type][code] > 0)
                                put_with(list, "requests_total", stats->requests[type][code],
                                         "type=\"%s\",code=\"%u\"", hr_method_name((uint8_t) type),
                                         code);
}

/* 1 before the first use. */
static double hit_ratio(uint64_t hits, uint64_t misses) {
        return hits + misses ? (double) hits / (double) (hits + misses) : 1.0;
}

static void put_engine(struct list *list, const struct gathered *gathered) {
        put(list, "runs_started_total", gathered->exec.runs_started);
        put_with(list, "runs_total", gathered->exec.runs_ok, "end=\"ok\"");
        put_with(list, "runs_total", gathered->exec.runs_failed, "end=\"failed\"");
        put_with(list, "runs_total", gathered->exec.runs_cancelled, "end=\"cancelled\"");
        put(list, "splits_computed_total", gathered->exec.splits_computed);
        put(list, "nodes_computed_total", gathered->exec.nodes_computed);
        put(list, "bytes_copied_total", gathered->exec.bytes_copied);
        put_with(list, "experts_total", gathered->exec.expert_hits, "result=\"hit\"");
        put_with(list, "experts_total", gathered->exec.expert_misses, "result=\"miss\"");
        put(list, "expert_bytes_copied_total", gathered->exec.expert_bytes);
        put_labelled(list, "expert_hit_ratio", "",
                     hit_ratio(gathered->exec.expert_hits, gathered->exec.expert_misses));
        put_labelled(list, "run_start_seconds_max", "",
                     (double) gathered->exec.longest_start_ns / 1e9);
        put_with(list, "run_bytes_total", gathered->exec.bytes_in, "direction=\"in\"");
        put_with(list, "run_bytes_total", gathered->exec.bytes_out, "direction=\"out\"");
        put_with(list, "plan_cache_total", gathered->plans.count[HR_PLAN_HIT], "result=\"hit\"");
        for (unsigned i = HR_PLAN_HIT + 1; i < HR_PLAN_ORIGIN_COUNT; i++)
                put_with(list, "plan_cache_total", gathered->plans.count[i],
                         "result=\"miss\",reason=\"%s\"", hr_plan_origin_name((hr_plan_origin) i));
        put(list, "plan_cache_entries", gathered->plans.entries);
        put(list, "plan_cache_bytes", gathered->plans.bytes);
        put(list, "plan_cache_bytes_max", gathered->plans.bytes_max);
        put(list, "plan_cache_evictions_total", gathered->plans.evictions);
        put(list, "weight_sets", gathered->store.sets);
        put(list, "weight_bytes", gathered->store.bytes);
        put(list, "weight_sets_in_work", gathered->store.working);
        put_with(list, "weight_makings_total", gathered->store.loads, "source=\"file\"");
        put_with(list, "weight_makings_total", gathered->store.uploads, "source=\"upload\"");
        put(list, "weight_failures_total", gathered->store.failures);
        put(list, "weight_bytes_hashed_total", gathered->store.bytes_hashed);
        put(list, "weight_bytes_copied_total", gathered->store.bytes_copied);
        put(list, "graphs", gathered->graphs);
        put(list, "engine_jobs_total", gathered->engine.jobs);
        put(list, "engine_slot_waits_total", gathered->engine.waits);
        put(list, "engine_device_waits_total", gathered->engine.turn_waits);
}

/* Splits that were recorded, once any was. */
static void put_graphs(struct list *list, const struct hr_device *device) {
        const struct hr_graph_counters *graphs = &device->graphs;
        const struct {
                const char *event;
                uint64_t count;
        } rows[] = {
                {"captured", atomic_load(&graphs->captured)},
                {"updated", atomic_load(&graphs->updated)},
                {"replayed", atomic_load(&graphs->replayed)},
                {"failed", atomic_load(&graphs->failed)},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++)
                if (atomic_load(&graphs->captured) + atomic_load(&graphs->failed) > 0)
                        put_with(list, "device_graphs_total", rows[i].count,
                                 "device=\"%s\",event=\"%s\"", device->props.name,
                                 rows[i].event);
}

/* Pairs whose own way a test found at fault. */
static void put_copy_faults(struct list *list, const struct hr_fleet *fleet, uint32_t from) {
        for (uint32_t to = 0; to < hr_fleet_device_count(fleet); to++)
                if (hr_queue_copy_fault(hr_fleet_queue(fleet, from),
                                        hr_fleet_device(fleet, to)->props.kind))
                        put_with(list, "device_copies_through_host", 1, "from=\"%s\",to=\"%s\"",
                                 hr_fleet_device(fleet, from)->props.name,
                                 hr_fleet_device(fleet, to)->props.name);
}

static void put_devices(struct list *list, const struct hr_server *server) {
        for (uint32_t i = 0; i < hr_fleet_device_count(server->fleet); i++) {
                const struct hr_device *device = hr_fleet_device(server->fleet, i);
                uint64_t free_bytes = 0, total_bytes = 0;

                hr_device_memory(device, &free_bytes, &total_bytes);
                put_with(list, "device_memory_used_bytes", atomic_load(&device->used_bytes),
                         "device=\"%s\"", device->props.name);
                put_with(list, "device_memory_free_bytes", free_bytes, "device=\"%s\"",
                         device->props.name);
                put_with(list, "device_splits_total", server->stats.device_splits[i],
                         "device=\"%s\"", device->props.name);
                put_graphs(list, device);
                put_copy_faults(list, server->fleet, i);
        }
}

static void put_principals(struct list *list, const struct hr_server *server) {
        const struct hr_principal *principal = NULL;

        while ((principal = hr_principals_next(server->principals, principal)))
                for (int kind = 0; kind < HR_CHARGE_KINDS; kind++)
                        if (principal->account.held[kind] > 0)
                                put_with(list, "principal_held", principal->account.held[kind],
                                         "principal=\"%s\",what=\"%s\"", principal->name,
                                         hr_charge_name((hr_charge_kind) kind));
}

/* Replies the list; its storage is the request's. */
static hr_status list_reply(struct hr_request *request, const struct list *list,
                            struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        if (list->full)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        HR_TRY(hr_wire_stats_encode(list->stats, list->count, NULL, 0, diag, &request->reply_bytes));
        request->reply_memory = malloc(request->reply_bytes + 1);
        if (!request->reply_memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        HR_TRY(hr_wire_stats_encode(list->stats, list->count, request->reply_memory,
                                    request->reply_bytes, diag, &request->reply_bytes));
        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static hr_status stats_finish(struct hr_request *request, struct hr_diag *diag) {
        struct gathered *gathered = request->context;
        struct list list = gathered->list;

        put_server(&list, request->server);
        put_engine(&list, gathered);
        put_devices(&list, request->server);
        put_principals(&list, request->server);
        return list_reply(request, &list, diag);
}

static void stats_done(struct hr_job *job) {
        hr_request_finish(job, stats_finish);
}

static hr_status stats_start(struct hr_request *request, struct hr_diag *diag) {
        request->context = hr_arena_alloc(&request->arena, sizeof(struct gathered), 8);
        if (!request->context)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        hr_request_post_work(request, stats_work, stats_done);
        return HR_OK;
}

static hr_status quota_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_session *session = request->session;
        const struct hr_limits *limits = &request->server->config->limits;
        struct list list = {.arena = &request->arena};

        for (int i = 0; i < HR_CHARGE_KINDS; i++) {
                hr_charge_kind kind = (hr_charge_kind) i;
                const char *name = hr_charge_name(kind);

                if (kind < HR_CHARGE_SESSIONS)
                        put_with(&list, "session_held", session->account.held[kind],
                                 "what=\"%s\"", name);
                put_with(&list, "principal_held", session->principal->account.held[kind],
                         "what=\"%s\"", name);
                put_with(&list, "principal_limit", hr_charge_limit(limits, kind), "what=\"%s\"",
                         name);
        }
        return list_reply(request, &list, diag);
}

const struct hr_method hr_admin_methods[] = {
        {.type = HR_FRAME_QUOTA,
         .name = "QUOTA",
         .needs_session = true,
         .begin = hr_method_begin_empty,
         .start = quota_start},
        {.type = HR_FRAME_STATS,
         .name = "STATS",
         .needs_session = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = hr_method_begin_empty,
         .start = stats_start},
        {0},
};
