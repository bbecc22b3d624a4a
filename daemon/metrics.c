/*
 * The daemon's figures: one flat list of named numbers with labels, first those of the engine's
 * side, then the loop's own. STATS sends it as it is, METRICS and HTTP as text in the format of
 * Prometheus (exposition format 0.0.4), where names begin with headrace_. The names, their kinds
 * and what they mean stand in metrics.def; a name that is missing there is in no text.
 */
#include "daemon/metrics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/bind.h"
#include "daemon/graphs.h"
#include "daemon/heartbeat.h"
#include "daemon/pressure.h"
#include "daemon/rpc.h"

#define LABEL_BYTES 128U

void hr_metrics_put(struct hr_metrics *list, const char *name, const char *labels, double value) {
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

static void put(struct hr_metrics *list, const char *name, uint64_t value) {
        hr_metrics_put(list, name, "", (double) value);
}

void hr_metrics_put_with(struct hr_metrics *list, const char *name, uint64_t value,
                         const char *format, ...) {
        char *labels = hr_arena_alloc(list->arena, LABEL_BYTES, 1);
        va_list args;

        if (!labels) {
                list->full = true;
                return;
        }
        va_start(args, format);
        (void) vsnprintf(labels, LABEL_BYTES, format, args);
        va_end(args);
        hr_metrics_put(list, name, labels, (double) value);
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

static void put_usage(struct hr_metrics *list, const char *set, const char *tensor,
                      const struct hr_expert_usage *usage) {
        char set_label[33], tensor_label[65];

        label_copy(set_label, sizeof set_label, set);
        label_copy(tensor_label, sizeof tensor_label, tensor);
        for (uint32_t e = 0; e < usage->experts; e++) {
                uint64_t runs = atomic_load_explicit(&usage->runs[e], memory_order_relaxed);

                if (runs)
                        hr_metrics_put_with(list, "expert_uses_total", runs,
                                 "set=\"%s\",tensor=\"%s\",expert=\"%u\"", set_label,
                                 tensor_label, e);
        }
}

/* The histogram of every layer: how many runs used each expert of its first weight, while its set
 * is there. Thread: engine. */
static void put_usages(struct hr_metrics *list, struct hr_weights_store *store) {
        for (struct hr_weights *set = hr_weights_store_next(store, NULL); set;
             set = hr_weights_store_next(store, set))
                /* The names of those that only their owner finds are nobody else's business. */
                for (uint32_t i = 0; set->owner == 0 && i < set->manifest->tensor_count; i++) {
                        const struct hr_weights_home *home = &set->homes[i];
                        const struct hr_expert_usage *usage =
                                home->buffer ? home->buffer->expert_usages : NULL;

                        for (; usage; usage = usage->next)
                                if (usage->offset == home->offset)
                                        put_usage(list, set->name, set->manifest->tensors[i].name,
                                                  usage);
                }
}

void hr_metrics_gather(struct hr_metrics *metrics, struct hr_server *server) {
        struct hr_engine *engine = server->engine;

        hr_engine_turn_take(engine);
        metrics->exec = hr_fleet_exec_stats(hr_engine_fleet(engine));
        hr_engine_turn_give(engine);
        metrics->plans = hr_plan_cache_stats(hr_engine_plan_cache(engine));
        metrics->store = hr_weights_store_stats(hr_engine_store(engine));
        metrics->engine = hr_engine_stats(engine);
        metrics->graphs = hr_graphs_count(server->graphs);
        put_usages(metrics, hr_engine_store(engine));
}

static void put_server(struct hr_metrics *list, const struct hr_server *server) {
        const struct hr_server_stats *stats = &server->stats;

        hr_metrics_put(list, "uptime_seconds", "",
                     (double) (hr_clock_now_ns() - server->started_ns) / 1e9);
        put(list, "connections", stats->connections);
        put(list, "connections_total", stats->connections_total);
        put(list, "connections_refused_total", stats->connections_refused);
        put(list, "unauthenticated_total", stats->unauthenticated);
        put(list, "revoked_total", stats->revoked);
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
        put(list, "log_suppressed_total", server->failures.suppressed_total);
        put(list, "misses_total", stats->misses);
        put(list, "rates_exceeded_total", stats->rates_exceeded);
        put(list, "data_dropped_total", stats->data_dropped);
        put(list, "fallback_nodes_total", stats->fallback_nodes);
        hr_metrics_put_with(list, "graph_evictions_total", stats->evictions_for_handles,
                            "reason=\"handles\"");
        hr_metrics_put_with(list, "graph_evictions_total", stats->evictions_for_memory,
                            "reason=\"memory\"");
        hr_metrics_put_with(list, "graph_evictions_total", stats->evictions_for_loss,
                 "reason=\"device_lost\"");
        hr_metrics_put_with(list, "graph_evictions_total", stats->evictions_for_operator,
                            "reason=\"operator\"");
        hr_metrics_put_with(list, "graph_evictions_total", stats->evictions_for_pressure,
                            "reason=\"pressure\"");
        hr_metrics_put(list, "run_seconds_total", "", (double) stats->run_ns / 1e9);
        put(list, "taps_total", stats->taps);
        put(list, "taps_stopped_total", stats->taps_stopped);
        hr_metrics_put(list, "queue_seconds_total", "", (double) stats->queue_ns / 1e9);
        for (unsigned type = 0; type < HR_ARRAY_LENGTH(stats->requests); type++)
                for (unsigned code = 0; code < HR_GRPC_CODES; code++)
                        if (stats->requests[type][code] > 0)
                                hr_metrics_put_with(list, "requests_total",
                                                    stats->requests[type][code],
                                                    "type=\"%s\",code=\"%u\"",
                                                    hr_method_name((uint8_t) type), code);
}

/* 1 before the first use. */
static double hit_ratio(uint64_t hits, uint64_t misses) {
        return hits + misses ? (double) hits / (double) (hits + misses) : 1.0;
}

static void put_engine(struct hr_metrics *list) {
        put(list, "runs_started_total", list->exec.runs_started);
        hr_metrics_put_with(list, "runs_total", list->exec.runs_ok, "end=\"ok\"");
        hr_metrics_put_with(list, "runs_total", list->exec.runs_failed, "end=\"failed\"");
        hr_metrics_put_with(list, "runs_total", list->exec.runs_cancelled, "end=\"cancelled\"");
        put(list, "splits_computed_total", list->exec.splits_computed);
        put(list, "nodes_computed_total", list->exec.nodes_computed);
        put(list, "bytes_copied_total", list->exec.bytes_copied);
        hr_metrics_put_with(list, "experts_total", list->exec.expert_hits, "result=\"hit\"");
        hr_metrics_put_with(list, "experts_total", list->exec.expert_misses, "result=\"miss\"");
        put(list, "expert_bytes_copied_total", list->exec.expert_bytes);
        hr_metrics_put(list, "expert_hit_ratio", "",
                     hit_ratio(list->exec.expert_hits, list->exec.expert_misses));
        hr_metrics_put(list, "run_start_seconds_max", "",
                     (double) list->exec.longest_start_ns / 1e9);
        put(list, "engine_blocked_total", list->exec.device_waits);
        hr_metrics_put_with(list, "run_bytes_total", list->exec.bytes_in, "direction=\"in\"");
        hr_metrics_put_with(list, "run_bytes_total", list->exec.bytes_out, "direction=\"out\"");
        hr_metrics_put_with(list, "plan_cache_total", list->plans.count[HR_PLAN_HIT],
                            "result=\"hit\"");
        for (unsigned i = HR_PLAN_HIT + 1; i < HR_PLAN_ORIGIN_COUNT; i++)
                hr_metrics_put_with(list, "plan_cache_total", list->plans.count[i],
                         "result=\"miss\",reason=\"%s\"", hr_plan_origin_name((hr_plan_origin) i));
        put(list, "plan_cache_entries", list->plans.entries);
        put(list, "plan_cache_bytes", list->plans.bytes);
        put(list, "plan_cache_bytes_max", list->plans.bytes_max);
        put(list, "plan_cache_evictions_total", list->plans.evictions);
        put(list, "weight_sets", list->store.sets);
        put(list, "weight_bytes", list->store.bytes);
        put(list, "weight_sets_in_work", list->store.working);
        hr_metrics_put_with(list, "weight_makings_total", list->store.loads, "source=\"file\"");
        hr_metrics_put_with(list, "weight_makings_total", list->store.uploads, "source=\"upload\"");
        put(list, "weight_failures_total", list->store.failures);
        put(list, "weight_bytes_hashed_total", list->store.bytes_hashed);
        put(list, "weight_bytes_copied_total", list->store.bytes_copied);
        put(list, "weight_sets_kept", list->store.given);
        put(list, "weight_sets_waiting", list->store.waiting);
        put(list, "weight_sets_taken_back_total", list->store.taken_back);
        put(list, "weight_take_back_failures_total", list->store.take_back_failures);
        put(list, "weight_cache_entries", list->store.cache.entries);
        put(list, "weight_cache_bytes", list->store.cache.bytes);
        hr_metrics_put_with(list, "weight_cache_total", list->store.cache.hits, "event=\"hit\"");
        hr_metrics_put_with(list, "weight_cache_total", list->store.cache.misses, "event=\"miss\"");
        hr_metrics_put_with(list, "weight_cache_total", list->store.cache.evictions,
                            "event=\"evicted\"");
        hr_metrics_put_with(list, "weight_cache_total", list->store.cache.damaged,
                            "event=\"damaged\"");
        hr_metrics_put_with(list, "weight_cache_total", list->store.cache.failures,
                            "event=\"not_written\"");
        put(list, "graphs", list->graphs);
        put(list, "engine_jobs_total", list->engine.jobs);
        hr_metrics_put(list, "engine_lag_seconds_max", "", (double) list->engine.lag_max_ns / 1e9);
        put(list, "engine_slot_waits_total", list->engine.waits);
        put(list, "engine_device_waits_total", list->engine.turn_waits);
}

/* Splits that were recorded, once any was. */
static void put_graphs(struct hr_metrics *list, const struct hr_device *device) {
        const struct hr_graph_counters *graphs = &device->graphs;
        const struct {
                const char *event;
                uint64_t count;
        } rows[] = {
                {"captured", atomic_load(&graphs->captured)},
                {"updated", atomic_load(&graphs->updated)},
                {"replayed", atomic_load(&graphs->replayed)},
                {"failed", atomic_load(&graphs->failed)},
                {"launched", atomic_load(&graphs->launched)},
        };
        const struct {
                const char *way;
                uint64_t ns;
        } times[] = {
                {"graph", atomic_load(&graphs->replay_ns)},
                {"kernels", atomic_load(&graphs->launch_ns)},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++)
                if (atomic_load(&graphs->captured) + atomic_load(&graphs->failed) > 0)
                        hr_metrics_put_with(list, "device_graphs_total", rows[i].count,
                                 "device=\"%s\",event=\"%s\"", device->props.name,
                                 rows[i].event);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(times); i++)
                if (atomic_load(&graphs->captured) + atomic_load(&graphs->failed) > 0) {
                        hr_metrics_put_with(list, "device_launch_seconds_total", 0,
                                            "device=\"%s\",way=\"%s\"", device->props.name,
                                            times[i].way);
                        if (!list->full)
                                list->stats[list->count - 1].value = (double) times[i].ns / 1e9;
                }
}

/* Memory of the host locked for it, once it has asked for any. */
static void put_pins(struct hr_metrics *list, const struct hr_device *device) {
        const uint64_t bytes = atomic_load(&device->pinned_bytes);
        const uint64_t failed = atomic_load(&device->pins_failed);

        if (bytes + failed == 0)
                return;
        hr_metrics_put_with(list, "device_pinned_bytes", bytes, "device=\"%s\"",
                            device->props.name);
        hr_metrics_put_with(list, "device_pins_failed_total", failed, "device=\"%s\"",
                            device->props.name);
}

/* Pairs whose own way a test found at fault. */
static void put_copy_faults(struct hr_metrics *list, const struct hr_fleet *fleet, uint32_t from) {
        for (uint32_t to = 0; to < hr_fleet_device_count(fleet); to++)
                if (hr_queue_copy_fault(hr_fleet_queue(fleet, from),
                                        hr_fleet_device(fleet, to)->props.kind))
                        hr_metrics_put_with(list, "device_copies_through_host", 1,
                                            "from=\"%s\",to=\"%s\"",
                                            hr_fleet_device(fleet, from)->props.name,
                                            hr_fleet_device(fleet, to)->props.name);
}

static void put_devices(struct hr_metrics *list, const struct hr_server *server) {
        for (uint32_t i = 0; i < hr_fleet_device_count(server->fleet); i++) {
                const struct hr_device *device = hr_fleet_device(server->fleet, i);
                uint64_t free_bytes = 0, total_bytes = 0;

                hr_device_memory(device, &free_bytes, &total_bytes);
                hr_metrics_put_with(list, "device_memory_used_bytes",
                                    atomic_load(&device->used_bytes), "device=\"%s\"",
                                    device->props.name);
                hr_metrics_put_with(list, "device_memory_free_bytes", free_bytes, "device=\"%s\"",
                         device->props.name);
                hr_metrics_put_with(list, "device_splits_total", server->stats.device_splits[i],
                         "device=\"%s\"", device->props.name);
                put_graphs(list, device);
                put_pins(list, device);
                put_copy_faults(list, server->fleet, i);
        }
}

static void put_pressure(struct hr_metrics *list, const struct hr_server *server) {
        const struct hr_pressure_stats stats = hr_pressure_stats(server->pressure);

        put(list, "memory_pressure", stats.level);
        hr_metrics_put(list, "memory_stall_seconds_total", "", (double) stats.stall_us / 1e6);
        put(list, "memory_refused_total", stats.refused);
        for (unsigned i = 0; i < HR_SHED_KINDS; i++)
                hr_metrics_put_with(list, "memory_shed_total", stats.entries[i], "what=\"%s\"",
                                    hr_shed_name(i));
        for (unsigned i = HR_SHED_PLANS; i < HR_SHED_KINDS; i++)
                hr_metrics_put_with(list, "memory_shed_bytes_total", stats.bytes[i],
                                    "what=\"%s\"", hr_shed_name(i));
}

static void put_health(struct hr_metrics *list, const struct hr_server *server) {
        const char *words;

        put(list, "ready", hr_server_is_ready(server, &words));
        put(list, "degraded", hr_server_is_degraded(server));
        put(list, "devices_missing", server->missing_count);
        hr_metrics_put(list, "loop_lag_seconds_max", "",
                       (double) hr_heartbeat_lag_ns(server->heartbeat) / 1e9);
        for (uint32_t i = 0; i < server->device_count; i++) {
                const char *device = server->devices[i]->props.name;
                struct hr_device_health health;

                hr_heartbeat_device(server->heartbeat, i, &health);
                hr_metrics_put_with(list, "device_heartbeat_age_seconds", 0, "device=\"%s\"",
                                    device);
                if (!list->full)
                        list->stats[list->count - 1].value = (double) health.age_ns / 1e9;
                hr_metrics_put_with(list, "device_heartbeats_total", health.beats,
                                    "device=\"%s\",result=\"right\"", device);
                hr_metrics_put_with(list, "device_heartbeats_total", health.failures,
                                    "device=\"%s\",result=\"wrong\"", device);
        }
}

/* What is held of each kind, where it is anything, under labels that begin with `who`. */
static void put_account(struct hr_metrics *list, const char *name,
                        const struct hr_account *account, const char *who) {
        for (int i = 0; i < HR_CHARGE_KINDS; i++) {
                hr_charge_kind kind = (hr_charge_kind) i;
                uint64_t held = hr_account_held(account, kind);

                if (held > 0)
                        hr_metrics_put_with(list, name, held, "%swhat=\"%s\"", who,
                                            hr_charge_name(kind));
        }
}

/* The sum over sessions of a principal is the principal's, the sum over principals the total. */
static void put_accounts(struct hr_metrics *list, const struct hr_server *server) {
        const struct hr_principal *principal = NULL;
        char who[LABEL_BYTES / 2];

        put_account(list, "total_held", hr_principals_account(server->principals), "");
        while ((principal = hr_principals_next(server->principals, principal))) {
                (void) snprintf(who, sizeof who, "principal=\"%s\",", principal->name);
                put_account(list, "principal_held", &principal->account, who);
        }
        HR_LIST_FOR_EACH(link, &server->sessions) {
                const struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);

                (void) snprintf(who, sizeof who, "session=\"%llu\",principal=\"%s\",",
                                (unsigned long long) session->number, session->principal->name);
                put_account(list, "session_held", &session->account, who);
        }
}

/* ---- how long stages take -------------------------------------------------------------------- */

static const struct {
        uint64_t ns;
        const char *seconds;
} bounds[HR_STAGE_BOUNDS] = {
        {10000, "1e-05"},       {25000, "2.5e-05"},     {50000, "5e-05"},
        {100000, "0.0001"},     {250000, "0.00025"},    {500000, "0.0005"},
        {1000000, "0.001"},     {2500000, "0.0025"},    {5000000, "0.005"},
        {10000000, "0.01"},     {25000000, "0.025"},    {50000000, "0.05"},
        {100000000, "0.1"},     {250000000, "0.25"},    {500000000, "0.5"},
        {1000000000, "1"},      {2500000000, "2.5"},    {10000000000, "10"},
};

static const char *const stage_names[HR_STAGE_COUNT] = {
        [HR_STAGE_UPLOAD] = "upload", [HR_STAGE_QUEUE] = "queue",
        [HR_STAGE_COMPUTE] = "compute", [HR_STAGE_READ_BACK] = "read_back",
        [HR_STAGE_PLAN] = "plan",
};

void hr_stage_add(struct hr_stage *stage, uint64_t ns) {
        unsigned at = 0;

        while (at < HR_STAGE_BOUNDS && ns > bounds[at].ns)
                at++;
        stage->counts[at]++;
        stage->sum_ns += ns;
}

static void put_stages(struct hr_metrics *list, const struct hr_server *server) {
        for (int s = 0; s < HR_STAGE_COUNT; s++) {
                const struct hr_stage *stage = &server->stats.stages[s];
                uint64_t below = 0;

                for (int i = 0; i < HR_STAGE_BOUNDS; i++) {
                        below += stage->counts[i];
                        hr_metrics_put_with(list, "stage_seconds_bucket", below,
                                            "stage=\"%s\",le=\"%s\"", stage_names[s],
                                            bounds[i].seconds);
                }
                below += stage->counts[HR_STAGE_BOUNDS];
                hr_metrics_put_with(list, "stage_seconds_bucket", below,
                                    "stage=\"%s\",le=\"+Inf\"", stage_names[s]);
                hr_metrics_put_with(list, "stage_seconds_count", below, "stage=\"%s\"",
                                    stage_names[s]);
                hr_metrics_put_with(list, "stage_seconds_sum", 0, "stage=\"%s\"", stage_names[s]);
                if (!list->full)
                        list->stats[list->count - 1].value = (double) stage->sum_ns / 1e9;
        }
}

void hr_metrics_finish(struct hr_metrics *list, const struct hr_server *server) {
        put_server(list, server);
        put_stages(list, server);
        put_engine(list);
        put_devices(list, server);
        put_accounts(list, server);
        put_health(list, server);
        put_pressure(list, server);
}

/* ---- as text --------------------------------------------------------------------------------- */

static const struct {
        const char *name, *kind, *help;
} families[] = {
#define X(name, kind, help) {#name, #kind, help},
#include "daemon/metrics.def"
#undef X
};

/* The family that a name is of: itself, or a histogram's without its ending. */
static bool is_of(const char *name, size_t family) {
        size_t length = strlen(families[family].name);

        if (strncmp(name, families[family].name, length) != 0)
                return false;
        if (name[length] == '\0')
                return true;
        return strcmp(families[family].kind, "histogram") == 0 &&
               (strcmp(name + length, "_bucket") == 0 || strcmp(name + length, "_sum") == 0 ||
                strcmp(name + length, "_count") == 0);
}

static void write_value(FILE *out, const struct hr_wire_stat *stat) {
        fprintf(out, stat->labels[0] ? "headrace_%s{%s} %.17g\n" : "headrace_%s%s %.17g\n",
                stat->name, stat->labels, stat->value);
}

hr_status hr_metrics_text(const struct hr_metrics *list, struct hr_diag *diag, char **ret_text,
                          size_t *ret_bytes) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *out = list->full ? NULL : open_memstream(&text, &bytes);
        bool failed;

        if (!out)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        for (size_t f = 0; f < HR_ARRAY_LENGTH(families); f++) {
                bool begun = false;

                for (uint32_t i = 0; i < list->count; i++) {
                        if (!is_of(list->stats[i].name, f))
                                continue;
                        if (!begun)
                                fprintf(out, "# HELP headrace_%s %s\n# TYPE headrace_%s %s\n",
                                        families[f].name, families[f].help, families[f].name,
                                        families[f].kind);
                        begun = true;
                        write_value(out, &list->stats[i]);
                }
        }
        failed = ferror(out) != 0;
        if (fclose(out) != 0 || failed) {
                free(text);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        }
        *ret_text = text;
        *ret_bytes = bytes;
        return HR_OK;
}
