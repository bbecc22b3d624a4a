/*
 * The commands that ask once: each takes its answer and says which of its fields are shown under
 * which names.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/c/ctl/ctl.h"

#define DRAIN_LOOK_NS 50000000 /* between two questions of drain --wait */

/* Begins the answer of a command that has got it. */
static struct ctl_output *begin(struct ctl *ctl) {
        ctl_output_begin(&ctl->out, stdout, ctl->json);
        return &ctl->out;
}

static int end(struct ctl *ctl, int code) {
        if (ctl_output_end(&ctl->out))
                return code;
        fprintf(stderr, "headracectl: the answer cannot be written: %s\n", strerror(errno));
        return CTL_BAD_FILE;
}

/* ---- what there is --------------------------------------------------------------------------- */

int ctl_status(struct ctl *ctl) {
        struct headrace_daemon_status status;
        struct ctl_output *out;

        if (headrace_daemon_status(ctl->client, 0, &ctl->error, &status) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_text(out, "version", status.version);
        ctl_count(out, "pid", status.pid);
        ctl_ms(out, "uptime_ms", status.uptime_ms);
        ctl_text(out, "state", status.state);
        ctl_bool(out, "ready", status.ready);
        ctl_text(out, "words", status.words);
        ctl_bool(out, "degraded", status.degraded);
        ctl_text(out, "principal", status.principal);
        ctl_text(out, "figures_of", status.whole ? "the daemon" : status.principal);
        ctl_count(out, "connections", status.connections);
        ctl_count(out, "sessions", status.sessions);
        if (status.whole)
                ctl_count(out, "requests", status.requests);
        ctl_count(out, "runs", status.runs);
        ctl_count(out, "graphs", status.graphs);
        ctl_count(out, "weights", status.weights);
        ctl_count(out, "states", status.states);
        ctl_bytes(out, "weight_bytes", status.weight_bytes);
        ctl_bytes(out, "state_bytes", status.state_bytes);
        ctl_bytes(out, "device_bytes", status.device_bytes);
        ctl_bytes(out, "buffer_bytes", status.buffer_bytes);
        ctl_bytes(out, "upload_bytes", status.upload_bytes);
        ctl_count(out, "devices", status.devices);
        ctl_count(out, "devices_lost", status.devices_lost);
        ctl_count(out, "epoch", status.epoch);
        return end(ctl, CTL_OK);
}

int ctl_health(struct ctl *ctl) {
        struct headrace_device_health *devices = NULL;
        struct headrace_health health;
        struct ctl_output *out;
        size_t count;

        if (headrace_health(ctl->client, 0, &ctl->error, &health, &devices, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_bool(out, "live", health.live);
        ctl_bool(out, "ready", health.ready);
        ctl_bool(out, "degraded", health.degraded);
        ctl_text(out, "words", health.words);
        ctl_list(out, "devices");
        for (size_t i = 0; i < count; i++) {
                ctl_row(out);
                ctl_text(out, "device", devices[i].device);
                ctl_text(out, "health", devices[i].health);
                ctl_bool(out, "required", devices[i].required);
                ctl_ms(out, "age_ms", devices[i].age_ms);
                ctl_count(out, "beats", devices[i].beats);
                ctl_count(out, "failures", devices[i].failures);
        }
        ctl_list_end(out);
        headrace_free(devices);
        return end(ctl, !health.ready ? CTL_NOT_READY : health.degraded ? CTL_DEGRADED : CTL_OK);
}

int ctl_sessions(struct ctl *ctl) {
        struct headrace_session_info *sessions = NULL;
        struct ctl_output *out;
        size_t count;

        if (headrace_sessions(ctl->client, 0, &ctl->error, &sessions, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_list(out, "sessions");
        for (size_t i = 0; i < count; i++) {
                ctl_row(out);
                ctl_count(out, "session", sessions[i].number);
                ctl_text(out, "principal", sessions[i].principal);
                ctl_text(out, "client", sessions[i].client);
                ctl_text(out, "name", sessions[i].name);
                ctl_count(out, "connections", sessions[i].connections);
                ctl_count(out, "runs", sessions[i].runs);
                ctl_count(out, "graphs", sessions[i].graphs);
                ctl_count(out, "states", sessions[i].states);
                ctl_count(out, "weights", sessions[i].weights);
                ctl_bytes(out, "device_bytes", sessions[i].device_bytes);
                ctl_bytes(out, "state_bytes", sessions[i].state_bytes);
                ctl_bytes(out, "weight_bytes", sessions[i].weight_bytes);
                ctl_bytes(out, "buffer_bytes", sessions[i].buffer_bytes);
                ctl_ms(out, "closing_ms", sessions[i].closing_ms);
        }
        ctl_list_end(out);
        headrace_free(sessions);
        return end(ctl, CTL_OK);
}

int ctl_devices(struct ctl *ctl) {
        struct headrace_device *devices = NULL;
        struct ctl_output *out;
        size_t count;

        if (headrace_devices(ctl->client, 0, &ctl->error, &devices, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_list(out, "devices");
        for (size_t i = 0; i < count; i++) {
                ctl_row(out);
                ctl_text(out, "device", devices[i].name);
                ctl_text(out, "type", devices[i].type);
                ctl_count(out, "threads", devices[i].threads);
                ctl_text(out, "memory_kind", devices[i].memory_kind);
                ctl_bytes(out, "used_bytes", devices[i].memory_used);
                ctl_bytes(out, "free_bytes", devices[i].memory_free);
                ctl_bytes(out, "total_bytes", devices[i].memory_total);
                ctl_text(out, "description", devices[i].description);
        }
        ctl_list_end(out);
        headrace_free(devices);
        return end(ctl, CTL_OK);
}

int ctl_weights(struct ctl *ctl) {
        struct headrace_weight_set *sets = NULL;
        struct ctl_output *out;
        size_t count;

        if (headrace_weight_sets(ctl->client, 0, &ctl->error, &sets, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_list(out, "weights");
        for (size_t i = 0; i < count; i++) {
                char digest[65] = "";

                for (size_t k = 0; sets[i].has_digest && k < sizeof sets[i].digest; k++)
                        (void) snprintf(digest + 2 * k, 3, "%02x", sets[i].digest[k]);
                if (!ctl->json)
                        digest[16] = '\0';
                ctl_row(out);
                ctl_text(out, "name", sets[i].name);
                ctl_text(out, "source", sets[i].source);
                ctl_count(out, "tensors", sets[i].tensors);
                ctl_bytes(out, "size_bytes", sets[i].bytes);
                ctl_count(out, "users", sets[i].users);
                ctl_text(out, "digest", digest);
        }
        ctl_list_end(out);
        headrace_free(sets);
        return end(ctl, CTL_OK);
}

int ctl_plans(struct ctl *ctl) {
        struct headrace_plan_info *plans = NULL;
        struct ctl_output *out;
        size_t count;

        if (headrace_plans(ctl->client, 0, &ctl->error, &plans, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_list(out, "plans");
        for (size_t i = 0; i < count; i++) {
                ctl_row(out);
                ctl_count(out, "session", plans[i].session);
                ctl_count(out, "graph", plans[i].graph);
                ctl_text(out, "principal", plans[i].principal);
                ctl_count(out, "nodes", plans[i].nodes);
                ctl_count(out, "splits", plans[i].splits);
                ctl_count(out, "n_copies", plans[i].n_copies);
                ctl_count(out, "fallback_nodes", plans[i].fallback_nodes);
                ctl_bytes(out, "copied_bytes", plans[i].copied_bytes);
                ctl_bytes(out, "own_bytes", plans[i].own_bytes);
                ctl_bytes(out, "expert_bytes", plans[i].expert_bytes);
                ctl_text(out, "origin", plans[i].origin);
                ctl_bool(out, "in_use", plans[i].in_use);
                ctl_text(out, "devices", plans[i].devices);
                ctl_text(out, "digest", plans[i].digest);
        }
        ctl_list_end(out);
        headrace_free(plans);
        return end(ctl, CTL_OK);
}

static void explained(struct ctl_output *out, const struct headrace_explanation *plan) {
        ctl_text(out, "rules", plan->rules);
        ctl_text(out, "origin", plan->origin);
        ctl_count(out, "leaves", plan->leaf_count);
        ctl_count(out, "nodes", plan->node_count);
        ctl_count(out, "n_copies", plan->n_copies);
        ctl_text(out, "copies_reason", plan->copies_reason);
        ctl_count(out, "fallback_nodes", plan->fallback_nodes);
        ctl_bytes(out, "copied_bytes", plan->copied_bytes);
        ctl_bytes(out, "staging_bytes", plan->staging_bytes);
        ctl_count(out, "measured_runs", plan->measured_runs);
        ctl_ns(out, "measured_run_ns", plan->measured_run_ns);
        ctl_list(out, "devices");
        for (size_t i = 0; i < plan->device_count; i++) {
                ctl_row(out);
                ctl_text(out, "device", plan->devices[i].name);
                ctl_text(out, "type", plan->devices[i].type);
                ctl_count(out, "splits", plan->devices[i].splits);
                ctl_count(out, "nodes", plan->devices[i].nodes);
                ctl_bytes(out, "weights_bytes", plan->devices[i].weights_bytes);
                ctl_bytes(out, "state_bytes", plan->devices[i].state_bytes);
                ctl_bytes(out, "compute_bytes", plan->devices[i].compute_bytes);
                ctl_bytes(out, "scratch_bytes", plan->devices[i].scratch_bytes);
        }
        ctl_list_end(out);
        ctl_list(out, "splits");
        for (size_t i = 0; i < plan->split_count; i++) {
                ctl_row(out);
                ctl_count(out, "split", i);
                ctl_text(out, "device", plan->splits[i].device);
                ctl_count(out, "first_node", plan->splits[i].first_node);
                ctl_count(out, "nodes", plan->splits[i].nodes);
                ctl_text(out, "reason", plan->splits[i].reason);
                ctl_count(out, "inputs", plan->splits[i].inputs);
                ctl_bytes(out, "copied_bytes", plan->splits[i].copied_bytes);
                if (plan->measured_runs == 0)
                        continue;
                ctl_ns(out, "compute_ns", plan->splits[i].compute_ns);
                ctl_ns(out, "copy_ns", plan->splits[i].copy_ns);
                ctl_ns(out, "wait_ns", plan->splits[i].wait_ns);
        }
        ctl_list_end(out);
}

int ctl_explain(struct ctl *ctl) {
        struct headrace_explanation plan = {0};
        uint64_t session, graph;

        if (!ctl_parse_u64(ctl->arguments[0], &session) || session == 0 ||
            !ctl_parse_u64(ctl->arguments[1], &graph) || graph > UINT32_MAX)
                return ctl_misuse("explain SESSION GRAPH: numbers as plans shows them");
        if (headrace_explain_listed(ctl->client, session, (uint32_t) graph, 0, &ctl->error,
                                    &plan) != HEADRACE_OK)
                return ctl_fail(ctl);
        explained(begin(ctl), &plan);
        headrace_explanation_free(&plan);
        return end(ctl, CTL_OK);
}

int ctl_quota(struct ctl *ctl) {
        const char *wanted = ctl->argument_count > 0 ? ctl->arguments[0] : NULL;
        struct headrace_principal_quota *quotas = NULL;
        struct ctl_output *out;
        size_t count, shown = 0;

        if (headrace_quotas(ctl->client, 0, &ctl->error, &quotas, &count) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_list(out, "quotas");
        for (size_t i = 0; i < count; i++) {
                if (wanted && strcmp(wanted, quotas[i].principal) != 0)
                        continue;
                shown++;
                for (uint32_t k = 0; k < quotas[i].item_count; k++) {
                        const struct headrace_quota_item *item = &quotas[i].items[k];
                        size_t bytes = strlen(item->what);
                        bool is_bytes = bytes > 6 && strcmp(item->what + bytes - 6, "_bytes") == 0;

                        if (item->held == 0 && !ctl->all)
                                continue;
                        ctl_row(out);
                        ctl_text(out, "principal", quotas[i].principal);
                        ctl_text(out, "permissions", quotas[i].permissions);
                        ctl_count(out, "weight", quotas[i].weight);
                        ctl_text(out, "what", item->what);
                        (is_bytes ? ctl_bytes : ctl_count)(out, "held", item->held);
                        (is_bytes ? ctl_bytes : ctl_count)(out, "limit", item->limit);
                }
        }
        ctl_list_end(out);
        headrace_free(quotas);
        if (wanted && shown == 0) {
                (void) end(ctl, CTL_OK);
                fprintf(stderr, "headracectl: no principal %s\n", wanted);
                return CTL_REFUSED;
        }
        return end(ctl, CTL_OK);
}

/* ---- orders ---------------------------------------------------------------------------------- */

int ctl_reload(struct ctl *ctl) {
        struct headrace_reloaded reloaded;
        struct ctl_output *out;

        if (headrace_reload(ctl->client, 0, &ctl->error, &reloaded) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_text(out, "applied", reloaded.applied);
        ctl_text(out, "needs_new_start", reloaded.kept);
        return end(ctl, CTL_OK);
}

/* Until the daemon has closed the connection, which it does when all requests have ended. */
static int drain_await(struct ctl *ctl) {
        const struct timespec pause = {.tv_nsec = DRAIN_LOOK_NS};

        while (headrace_ping(ctl->client, 0, &ctl->error) == HEADRACE_OK)
                (void) nanosleep(&pause, NULL);
        return ctl->error.status == HEADRACE_UNAVAILABLE ? CTL_OK : ctl_fail(ctl);
}

int ctl_drain(struct ctl *ctl) {
        struct headrace_drain drain;
        struct ctl_output *out;
        int code = CTL_OK;

        if (headrace_drain(ctl->client, (uint64_t) (ctl->limit_s * 1000), 0, &ctl->error, &drain) !=
            HEADRACE_OK)
                return ctl_fail(ctl);
        if (ctl->wait)
                code = drain_await(ctl);
        if (code != CTL_OK)
                return code;
        out = begin(ctl);
        ctl_count(out, "requests", drain.requests);
        ctl_count(out, "connections", drain.connections);
        ctl_ms(out, "limit_ms", drain.limit_ms);
        ctl_bool(out, "drained", ctl->wait);
        return end(ctl, CTL_OK);
}

int ctl_evict(struct ctl *ctl) {
        const char *what = ctl->arguments[0];
        const char *name = ctl->argument_count > 1 ? ctl->arguments[1] : NULL;
        struct headrace_evicted evicted;
        struct ctl_output *out;

        if (name && strcmp(what, "weights") != 0)
                return ctl_misuse("evict %s takes no name", what);
        if (headrace_evict(ctl->client, what, name, 0, &ctl->error, &evicted) != HEADRACE_OK)
                return ctl_fail(ctl);
        out = begin(ctl);
        ctl_text(out, "what", what);
        ctl_count(out, "evicted", evicted.entries);
        ctl_bytes(out, "evicted_bytes", evicted.bytes);
        ctl_count(out, "in_use", evicted.kept_entries);
        ctl_bytes(out, "in_use_bytes", evicted.kept_bytes);
        return end(ctl, CTL_OK);
}

int ctl_trace(struct ctl *ctl) {
        FILE *stream = stdout;
        bool written;
        size_t bytes;
        char *text;

        if (headrace_trace(ctl->client, ctl->latest_ms, ctl->own, 0, &ctl->error, &text, &bytes) !=
            HEADRACE_OK)
                return ctl_fail(ctl);
        if (ctl->output && strcmp(ctl->output, "-") != 0)
                stream = fopen(ctl->output, "we");
        written = stream && fwrite(text, 1, bytes, stream) == bytes && fflush(stream) == 0;
        if (stream && stream != stdout && fclose(stream) != 0)
                written = false;
        headrace_free(text);
        if (written)
                return CTL_OK;
        fprintf(stderr, "headracectl: %s: %s\n", ctl->output ? ctl->output : "stdout",
                strerror(errno));
        return CTL_BAD_FILE;
}
