/*
 * top: what changes, again and again. Rates are differences of the daemon's counters between two
 * looks. On a terminal each look takes the place of the one before; elsewhere they follow each
 * other, and with --json each is one line.
 *
 * Counters need the right "admin"; without it there are no rates and no devices' splits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/c/ctl/ctl.h"

#define SESSIONS_SHOWN 10

/* One look. Lists are freed with look_clear(). */
struct look {
        double at_s;
        struct headrace_daemon_status status;
        struct headrace_stat *stats;
        struct headrace_device *devices;
        struct headrace_session_info *sessions;
        size_t stat_count, device_count, session_count;
};

static void look_clear(struct look *look) {
        headrace_free(look->stats);
        headrace_free(look->devices);
        headrace_free(look->sessions);
        *look = (struct look){0};
}

static double now_s(void) {
        struct timespec now;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

static bool look_take(struct ctl *ctl, struct look *look) {
        enum headrace_status status;

        look->at_s = now_s();
        if (headrace_daemon_status(ctl->client, 0, &ctl->error, &look->status) != HEADRACE_OK ||
            headrace_devices(ctl->client, 0, &ctl->error, &look->devices, &look->device_count) !=
                    HEADRACE_OK ||
            headrace_sessions(ctl->client, 0, &ctl->error, &look->sessions, &look->session_count) !=
                    HEADRACE_OK)
                return false;
        if (!look->status.whole)
                return true;
        status = headrace_stats(ctl->client, 0, &ctl->error, &look->stats, &look->stat_count);
        return status == HEADRACE_OK;
}

/* The sum of the counter's rows whose labels contain that text. */
static double value_of(const struct look *look, const char *name, const char *labels) {
        double sum = 0;

        for (size_t i = 0; i < look->stat_count; i++)
                if (strcmp(look->stats[i].name, name) == 0 && strstr(look->stats[i].labels, labels))
                        sum += look->stats[i].value;
        return sum;
}

static double rate_of(const struct look *before, const struct look *now, const char *name,
                      const char *labels) {
        double seconds = now->at_s - before->at_s;

        return seconds > 0
                       ? (value_of(now, name, labels) - value_of(before, name, labels)) / seconds
                       : 0;
}

static void rates_show(struct ctl_output *out, const struct look *before, const struct look *now) {
        double hits = rate_of(before, now, "plan_cache_total", "result=\"hit\"");
        double plans = rate_of(before, now, "plan_cache_total", "");

        ctl_number(out, "runs_per_s", rate_of(before, now, "runs_total", "end=\"ok\""));
        ctl_number(out, "failed_per_s", rate_of(before, now, "runs_total", "end=\"failed\""));
        ctl_number(out, "requests_per_s", rate_of(before, now, "requests_total", ""));
        ctl_bytes(out, "in_per_s_bytes",
                  (uint64_t) fmax(0, rate_of(before, now, "bytes_in_total", "")));
        ctl_bytes(out, "out_per_s_bytes",
                  (uint64_t) fmax(0, rate_of(before, now, "bytes_out_total", "")));
        ctl_bytes(out, "copied_per_s_bytes",
                  (uint64_t) fmax(0, rate_of(before, now, "bytes_copied_total", "")));
        ctl_number(out, "plans_per_s", plans);
        ctl_number(out, "plan_hit_ratio", plans > 0 ? hits / plans : 1);
        ctl_number(out, "loop_lag_max_s", value_of(now, "loop_lag_seconds_max", ""));
}

static void devices_show(struct ctl_output *out, const struct look *before,
                         const struct look *now) {
        ctl_list(out, "devices");
        for (size_t i = 0; i < now->device_count; i++) {
                const struct headrace_device *device = &now->devices[i];
                char label[96];

                (void) snprintf(label, sizeof label, "device=\"%s\"", device->name);
                ctl_row(out);
                ctl_text(out, "device", device->name);
                ctl_text(out, "type", device->type);
                ctl_bytes(out, "used_bytes", device->memory_used);
                ctl_bytes(out, "free_bytes", device->memory_free);
                if (now->status.whole)
                        ctl_number(out, "splits_per_s",
                                   rate_of(before, now, "device_splits_total", label));
        }
        ctl_list_end(out);
}

/* Those with most runs first, then with most memory. */
static int busier(const void *a, const void *b) {
        const struct headrace_session_info *one = a, *other = b;

        if (one->runs != other->runs)
                return one->runs < other->runs ? 1 : -1;
        if (one->device_bytes != other->device_bytes)
                return one->device_bytes < other->device_bytes ? 1 : -1;
        return one->number < other->number ? -1 : one->number > other->number;
}

static void sessions_show(struct ctl_output *out, struct look *now) {
        ctl_list(out, "sessions");
        if (now->session_count > 0)
                qsort(now->sessions, now->session_count, sizeof *now->sessions, busier);
        for (size_t i = 0; i < now->session_count && i < SESSIONS_SHOWN; i++) {
                const struct headrace_session_info *session = &now->sessions[i];

                ctl_row(out);
                ctl_count(out, "session", session->number);
                ctl_text(out, "principal", session->principal);
                ctl_text(out, "client", session->client);
                ctl_count(out, "runs", session->runs);
                ctl_count(out, "graphs", session->graphs);
                ctl_bytes(out, "device_bytes", session->device_bytes);
                ctl_bytes(out, "state_bytes", session->state_bytes);
                ctl_bytes(out, "weight_bytes", session->weight_bytes);
        }
        ctl_list_end(out);
}

static bool look_show(struct ctl *ctl, const struct look *before, struct look *now) {
        struct ctl_output *out = &ctl->out;
        const struct headrace_daemon_status *status = &now->status;

        ctl_output_begin(out, stdout, ctl->json);
        ctl_text(out, "state", status->state);
        ctl_ms(out, "uptime_ms", status->uptime_ms);
        ctl_text(out, "words", status->words);
        ctl_bool(out, "degraded", status->degraded);
        ctl_text(out, "figures_of", status->whole ? "the daemon" : status->principal);
        ctl_count(out, "connections", status->connections);
        ctl_count(out, "session_count", status->sessions);
        ctl_count(out, "runs", status->runs);
        ctl_bytes(out, "device_bytes", status->device_bytes);
        if (status->whole)
                rates_show(out, before, now);
        devices_show(out, before, now);
        sessions_show(out, now);
        return ctl_output_end(out);
}

static void pause_for(double seconds) {
        struct timespec left = {.tv_sec = (time_t) seconds,
                                .tv_nsec = (long) ((seconds - floor(seconds)) * 1e9)};

        (void) nanosleep(&left, NULL);
}

int ctl_top(struct ctl *ctl) {
        const bool live = !ctl->json && isatty(STDOUT_FILENO);
        struct look before = {0}, now = {0};
        int code = CTL_OK;

        if (!look_take(ctl, &before))
                code = ctl_fail(ctl);
        for (uint64_t i = 0; code == CTL_OK && (ctl->samples == 0 || i < ctl->samples); i++) {
                pause_for(ctl->interval_s);
                if (!look_take(ctl, &now)) {
                        code = ctl_fail(ctl);
                        break;
                }
                if (live)
                        fputs("\033[H\033[2J", stdout);
                else if (i > 0 && !ctl->json)
                        fputc('\n', stdout);
                if (!look_show(ctl, &before, &now))
                        code = CTL_BAD_FILE;
                look_clear(&before);
                before = now;
                now = (struct look){0};
        }
        look_clear(&before);
        look_clear(&now);
        return code;
}
