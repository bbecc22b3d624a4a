/*
 * The table of all keys, and the types of their values.
 *
 * Each row names a section, a key, the type of its value, its place in struct hr_config (or
 * hr_config_device), default and bounds. Defaults, parsing, checking and dumping all walk the
 * table, so a key cannot be accepted and then forgotten. A value is parsed whole or refused.
 */
#include "daemon/config_priv.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "core/deny.h"
#include "daemon/share.h"

const char *const hr_config_sections[SECTION_COUNT] = {
        NULL, "daemon", "listen", "tls", "models", "limits", "device", "principal"};

#define MS HR_NS_PER_MS
#define US UINT64_C(1000)
#define DAY (UINT64_C(86400) * HR_NS_PER_S)
#define FIELD(name) offsetof(struct hr_config, name)
#define DEVICE_FIELD(name) offsetof(struct hr_config_device, name)
#define PRINCIPAL_FIELD(name) offsetof(struct hr_config_principal, name)
#define LIMIT(name, kind, fallback, low, high)                                                     \
        { SECTION_LIMITS, #name, kind, FIELD(limits.name), fallback, low, high, NULL, NULL }
#define LIMIT_TIME(name, fallback_ms)                                                              \
        {                                                                                          \
                SECTION_LIMITS, #name, KIND_DURATION, FIELD(limits.name##_ns), (fallback_ms) *MS,  \
                        MS, DAY, NULL, NULL                                                        \
        }

static const char *const realloc_choices[] = {"count", "fail", NULL};
static const char *const revocation_choices[] = {"abort", "finish", NULL};
/* In the order of hr_keep. */
static const char *const keep_choices[] = {"none", "host", "all", NULL};
static const char *const arithmetic_choices[] = {"ggml", "fast", NULL};
static const char *const isa_choices[] = {"auto", "portable", "avx2", "avx512", "avx512bf16", NULL};
/* In the order of HR_DEBUG_ASSIGNMENTS and what follows. */
static const char *const debug_choices[] = {"assignments", "splits", "copies", "realloc", NULL};

const struct key hr_config_keys[] = {
        {SECTION_DAEMON, "log_level", KIND_LEVEL, FIELD(log_level), HR_LOG_NOTICE, 0, 0, NULL,
         NULL},
        {SECTION_DAEMON, "drain_timeout", KIND_DURATION, FIELD(drain_timeout_ns),
         HR_DEFAULT_DRAIN_TIMEOUT_MS *MS, 0, DAY, NULL, NULL},
        {SECTION_DAEMON, "session_grace", KIND_DURATION, FIELD(session_grace_ns),
         HR_DEFAULT_SESSION_GRACE_MS *MS, 0, DAY, NULL, NULL},
        {SECTION_DAEMON, "upload_grace", KIND_DURATION, FIELD(upload_grace_ns),
         HR_DEFAULT_UPLOAD_GRACE_MS *MS, 0, DAY, NULL, NULL},
        {SECTION_DAEMON, "spin", KIND_DURATION, FIELD(spin_ns), HR_DEFAULT_SPIN_US *US, 0,
         HR_NS_PER_S, NULL, NULL},
        {SECTION_DAEMON, "plan_cache_bytes", KIND_SIZE, FIELD(plan_cache_bytes),
         HR_DEFAULT_PLAN_CACHE_BYTES, 0, HR_TIB, NULL, NULL},
        {SECTION_DAEMON, "debug", KIND_FLAGS, FIELD(debug), 0, 0, 0, "", debug_choices},
        {SECTION_DAEMON, "optimize", KIND_BOOL, FIELD(optimize), true, 0, 0, NULL, NULL},
        {SECTION_DAEMON, "realloc", KIND_CHOICE, FIELD(realloc), 0, 0, 0, "count", realloc_choices},
        {SECTION_DAEMON, "revocation", KIND_CHOICE, FIELD(revocation), 0, 0, 0, "abort",
         revocation_choices},
        {SECTION_DAEMON, "heartbeat", KIND_DURATION, FIELD(heartbeat_ns),
         HR_DEFAULT_HEARTBEAT_MS *MS, MS, DAY, NULL, NULL},
        {SECTION_DAEMON, "trace_spans", KIND_COUNT, FIELD(trace_spans), HR_DEFAULT_TRACE_SPANS, 0,
         HR_TRACE_SPANS_MAX, NULL, NULL},
        {SECTION_DAEMON, "device_retry", KIND_DURATION, FIELD(device_retry_ns),
         HR_DEFAULT_DEVICE_RETRY_MS *MS, MS, DAY, NULL, NULL},
        {SECTION_DAEMON, "memory_pressure", KIND_PATH, FIELD(memory_pressure), 0, 0, 4095, "auto",
         NULL},
        {SECTION_DAEMON, "memory_look", KIND_DURATION, FIELD(memory_look_ns),
         HR_DEFAULT_MEMORY_LOOK_MS *MS, 10 * MS, DAY, NULL, NULL},
        {SECTION_DAEMON, "memory_stall", KIND_DURATION, FIELD(memory_stall_ns),
         HR_DEFAULT_MEMORY_STALL_MS *MS, US, HR_NS_PER_S, NULL, NULL},
        {SECTION_DAEMON, "memory_idle", KIND_DURATION, FIELD(memory_idle_ns),
         HR_DEFAULT_MEMORY_IDLE_MS *MS, 0, DAY, NULL, NULL},
        {SECTION_DAEMON, "metrics", KIND_ADDRESS, FIELD(metrics), 0, 0, 0, NULL, NULL},

        {SECTION_LISTEN, "unix", KIND_PATH, FIELD(unix_path), 0, 1,
         sizeof((struct sockaddr_un *) 0)->sun_path - 1, "/run/headrace/headrace.sock", NULL},
        {SECTION_LISTEN, "unix_mode", KIND_MODE, FIELD(unix_mode), 0660, 0, 0777, NULL, NULL},
        {SECTION_LISTEN, "tcp", KIND_ADDRESS, FIELD(tcp), 0, 0, 0, NULL, NULL},
        {SECTION_LISTEN, "tls", KIND_ADDRESS, FIELD(tls), 0, 0, 0, NULL, NULL},
        {SECTION_LISTEN, "insecure", KIND_BOOL, FIELD(insecure), false, 0, 0, NULL, NULL},

        {SECTION_TLS, "certificate", KIND_PATH, FIELD(tls_certificate), 0, 0, 4096, NULL, NULL},
        {SECTION_TLS, "key", KIND_PATH, FIELD(tls_key), 0, 0, 4096, NULL, NULL},
        {SECTION_TLS, "client_ca", KIND_PATH, FIELD(tls_client_ca), 0, 0, 4096, NULL, NULL},

        {SECTION_MODELS, "cache_directory", KIND_PATH, FIELD(cache_directory), 0, 0, 4096, NULL,
         NULL},
        {SECTION_MODELS, "cache_bytes", KIND_SIZE, FIELD(cache_bytes), HR_DEFAULT_CACHE_BYTES, 0,
         UINT64_C(1) << 60, NULL, NULL},
        {SECTION_MODELS, "keep", KIND_CHOICE, FIELD(keep), 0, 0, 0, "host", keep_choices},
        {SECTION_MODELS, "keep_grace", KIND_DURATION, FIELD(keep_grace_ns),
         HR_DEFAULT_KEEP_GRACE_MS *MS, 0, DAY, NULL, NULL},
        {SECTION_MODELS, "directories", KIND_DIRECTORIES, 0, 0, 0, 0, NULL, NULL},

        LIMIT(message_bytes, KIND_SIZE, HR_DEFAULT_MESSAGE_BYTES, HR_KIB, 64 * HR_KIB),
        LIMIT(body_bytes, KIND_SIZE, HR_DEFAULT_BODY_BYTES, 4 * HR_KIB, 4 * HR_MIB),
        LIMIT(graph_nodes, KIND_COUNT, HR_DEFAULT_GRAPH_NODES, 1, UINT64_C(1) << 30),
        LIMIT(graph_bytes, KIND_SIZE, HR_DEFAULT_GRAPH_BYTES, HR_KIB, HR_TIB),
        LIMIT(tensor_bytes, KIND_SIZE, HR_DEFAULT_TENSOR_BYTES, 1, UINT64_C(1) << 60),
        LIMIT(session_graphs, KIND_COUNT, HR_DEFAULT_SESSION_GRAPHS, 1, UINT64_C(1) << 20),
        LIMIT(session_runs, KIND_COUNT, HR_DEFAULT_SESSION_RUNS, 1, UINT64_C(1) << 20),
        LIMIT(session_state_bytes, KIND_SIZE, HR_DEFAULT_SESSION_STATE_BYTES, 0, UINT64_C(1) << 60),
        LIMIT(upload_bytes, KIND_SIZE, HR_DEFAULT_UPLOAD_BYTES, 0, UINT64_C(1) << 60),
        LIMIT(output_queue_bytes, KIND_SIZE, HR_DEFAULT_OUTPUT_QUEUE_BYTES, 64 * HR_KIB, HR_TIB),
        LIMIT(run_bytes, KIND_SIZE, HR_DEFAULT_RUN_BYTES, 0, HR_TIB),
        LIMIT(copies, KIND_COUNT, HR_DEFAULT_COPIES, 1, 1024),
        LIMIT(taps, KIND_COUNT, HR_DEFAULT_TAPS, 0, UINT64_C(1) << 20),
        LIMIT(device_runs, KIND_COUNT, HR_DEFAULT_DEVICE_RUNS, 1, UINT64_C(1) << 20),
        {SECTION_LIMITS, "device_ahead", KIND_DURATION, FIELD(limits.device_ahead_ns),
         HR_DEFAULT_DEVICE_AHEAD_US *US, 0, DAY, NULL, NULL},
        LIMIT(pins, KIND_COUNT, HR_DEFAULT_PINS, 0, UINT64_C(1) << 20),
        LIMIT(session_device_bytes, KIND_SIZE, HR_DEFAULT_SESSION_DEVICE_BYTES, HR_KIB,
              UINT64_C(1) << 60),
        LIMIT(session_buffer_bytes, KIND_SIZE, HR_DEFAULT_SESSION_BUFFER_BYTES, HR_MIB, HR_TIB),
        LIMIT(session_plan_bytes, KIND_SIZE, HR_DEFAULT_SESSION_PLAN_BYTES, 64 * HR_KIB,
              UINT64_C(1) << 60),
        LIMIT(weights_bytes, KIND_SIZE, HR_DEFAULT_WEIGHTS_BYTES, 0, UINT64_C(1) << 60),
        LIMIT(weights_tensors, KIND_COUNT, HR_DEFAULT_WEIGHTS_TENSORS, 1, UINT64_C(1) << 30),
        LIMIT(kept_sets, KIND_COUNT, HR_DEFAULT_KEPT_SETS, 0, 1024),
        LIMIT(session_regions, KIND_COUNT, HR_DEFAULT_SESSION_REGIONS, 0, UINT64_C(1) << 20),
        LIMIT(principal_regions, KIND_COUNT, HR_DEFAULT_PRINCIPAL_REGIONS, 0, UINT64_C(1) << 30),
        LIMIT(session_weights, KIND_COUNT, HR_DEFAULT_SESSION_WEIGHTS, 0, UINT64_C(1) << 20),
        LIMIT(session_uploads, KIND_COUNT, HR_DEFAULT_SESSION_UPLOADS, 0, UINT64_C(1) << 20),
        LIMIT(upload_window_bytes, KIND_SIZE, HR_DEFAULT_UPLOAD_WINDOW_BYTES, 4 * HR_KIB, HR_GIB),
        LIMIT(resident_bytes, KIND_SIZE, HR_DEFAULT_RESIDENT_BYTES, 0, UINT64_C(1) << 60),
        LIMIT(metadata_bytes, KIND_SIZE, HR_DEFAULT_METADATA_BYTES, HR_KIB, 4 * HR_GIB),
        LIMIT(metadata_keys, KIND_COUNT, HR_DEFAULT_METADATA_KEYS, 1, UINT64_C(1) << 24),
        LIMIT(manifest_bytes, KIND_SIZE, HR_DEFAULT_MANIFEST_BYTES, HR_KIB, 4 * HR_GIB),
        LIMIT(placement_rules, KIND_COUNT, HR_DEFAULT_PLACEMENT_RULES, 0, UINT64_C(1) << 20),
        LIMIT(session_states, KIND_COUNT, HR_DEFAULT_SESSION_STATES, 0, UINT64_C(1) << 20),
        LIMIT(state_tensors, KIND_COUNT, HR_DEFAULT_STATE_TENSORS, 1, UINT64_C(1) << 30),
        LIMIT(principal_sessions, KIND_COUNT, HR_DEFAULT_PRINCIPAL_SESSIONS, 1, UINT64_C(1) << 20),
        LIMIT(principal_connections, KIND_COUNT, HR_DEFAULT_PRINCIPAL_CONNECTIONS, 1,
              UINT64_C(1) << 20),
        LIMIT(principal_weights, KIND_COUNT, HR_DEFAULT_PRINCIPAL_WEIGHTS, 0, UINT64_C(1) << 30),
        LIMIT(principal_states, KIND_COUNT, HR_DEFAULT_PRINCIPAL_STATES, 0, UINT64_C(1) << 30),
        LIMIT(principal_graphs, KIND_COUNT, HR_DEFAULT_PRINCIPAL_GRAPHS, 1, UINT64_C(1) << 30),
        LIMIT(principal_reservations, KIND_COUNT, HR_DEFAULT_PRINCIPAL_RESERVATIONS, 0,
              UINT64_C(1) << 30),
        LIMIT(principal_runs, KIND_COUNT, HR_DEFAULT_PRINCIPAL_RUNS, 1, UINT64_C(1) << 30),
        LIMIT(principal_uploads, KIND_COUNT, HR_DEFAULT_PRINCIPAL_UPLOADS, 0, UINT64_C(1) << 30),
        LIMIT(principal_state_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_STATE_BYTES, 0,
              UINT64_C(1) << 60),
        LIMIT(principal_buffer_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_BUFFER_BYTES, HR_MIB,
              UINT64_C(1) << 60),
        LIMIT(principal_upload_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_UPLOAD_BYTES, 0,
              UINT64_C(1) << 60),
        LIMIT(principal_plan_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_PLAN_BYTES, 64 * HR_KIB,
              UINT64_C(1) << 60),
        LIMIT(principal_descriptors, KIND_COUNT, HR_DEFAULT_PRINCIPAL_DESCRIPTORS, 0,
              UINT64_C(1) << 20),
        LIMIT(principal_weight_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_WEIGHT_BYTES, 0,
              UINT64_C(1) << 60),
        LIMIT(principal_device_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_DEVICE_BYTES, HR_KIB,
              UINT64_C(1) << 60),
        LIMIT(principal_output_bytes, KIND_SIZE, HR_DEFAULT_PRINCIPAL_OUTPUT_BYTES, 64 * HR_KIB,
              UINT64_C(1) << 60),
        LIMIT(principal_misses, KIND_COUNT, HR_DEFAULT_PRINCIPAL_MISSES, 1, 1000000),
        LIMIT(principal_cancels, KIND_COUNT, HR_DEFAULT_PRINCIPAL_CANCELS, 1, 1000000),
        LIMIT(connections, KIND_COUNT, HR_DEFAULT_CONNECTIONS, 1, UINT64_C(1) << 20),
        LIMIT(greetings, KIND_COUNT, HR_DEFAULT_GREETINGS, 1, UINT64_C(1) << 20),
        LIMIT(connection_requests, KIND_COUNT, HR_DEFAULT_CONNECTION_REQUESTS, 1,
              UINT64_C(1) << 20),
        LIMIT(backlog, KIND_COUNT, HR_DEFAULT_BACKLOG, 1, 65535),
        LIMIT_TIME(hello_timeout, HR_DEFAULT_HELLO_TIMEOUT_MS),
        LIMIT_TIME(refusal_delay, HR_DEFAULT_REFUSAL_DELAY_MS),
        LIMIT_TIME(progress_timeout, HR_DEFAULT_PROGRESS_TIMEOUT_MS),
        LIMIT_TIME(output_timeout, HR_DEFAULT_OUTPUT_TIMEOUT_MS),
        LIMIT_TIME(tap_timeout, HR_DEFAULT_TAP_TIMEOUT_MS),

        /* The choices of `backend` are those of the build: key_choices(). */
        {SECTION_DEVICE, "backend", KIND_CHOICE, DEVICE_FIELD(backend), 0, 0, 0, "cpu", NULL},
        {SECTION_DEVICE, "threads", KIND_COUNT, DEVICE_FIELD(threads), 0, 0, 4096, NULL, NULL},
        {SECTION_DEVICE, "memory", KIND_MEMORY, DEVICE_FIELD(isolated), false, 0, 0, NULL, NULL},
        {SECTION_DEVICE, "memory_cap", KIND_SIZE, DEVICE_FIELD(memory_cap), 0, 0, UINT64_C(1) << 60,
         NULL, NULL},
        {SECTION_DEVICE, "expert_bytes", KIND_SIZE, DEVICE_FIELD(expert_bytes), 0, 0,
         UINT64_C(1) << 60, NULL, NULL},
        {SECTION_DEVICE, "spin", KIND_DURATION, DEVICE_FIELD(spin_ns), HR_DEFAULT_SPIN_US *US, 0,
         HR_NS_PER_S, NULL, NULL},
        {SECTION_DEVICE, "deterministic", KIND_BOOL, DEVICE_FIELD(deterministic), true, 0, 0, NULL,
         NULL},
        {SECTION_DEVICE, "arithmetic", KIND_CHOICE, DEVICE_FIELD(arithmetic), 0, 0, 0, "ggml",
         arithmetic_choices},
        {SECTION_DEVICE, "isa", KIND_CHOICE, DEVICE_FIELD(isa), 0, 0, 0, "auto", isa_choices},
        {SECTION_DEVICE, "deny_ops", KIND_OPS, DEVICE_FIELD(deny_ops), 0, 0, 4096, NULL, NULL},
        {SECTION_DEVICE, "delay", KIND_DURATION, DEVICE_FIELD(delay_ns), 0, 0, 60 * HR_NS_PER_S,
         NULL, NULL},
        {SECTION_DEVICE, "batch_min", KIND_COUNT, DEVICE_FIELD(batch_min), 0, 0, UINT32_MAX, NULL,
         NULL},
        {SECTION_DEVICE, "required", KIND_BOOL, DEVICE_FIELD(required), true, 0, 0, NULL, NULL},
        {SECTION_DEVICE, "gpu", KIND_COUNT, DEVICE_FIELD(gpu), 0, 0, 63, NULL, NULL},
        {SECTION_DEVICE, "pin_bytes", KIND_SIZE, DEVICE_FIELD(pin_bytes), HR_DEFAULT_PIN_BYTES, 0,
         UINT64_C(1) << 60, NULL, NULL},
        {SECTION_DEVICE, "graphs", KIND_BOOL, DEVICE_FIELD(graphs), true, 0, 0, NULL, NULL},

        {SECTION_PRINCIPAL, "uid", KIND_USERS, PRINCIPAL_FIELD(uids), 0, 0, 0, NULL, NULL},
        {SECTION_PRINCIPAL, "gid", KIND_GROUPS, PRINCIPAL_FIELD(gids), 0, 0, 0, NULL, NULL},
        {SECTION_PRINCIPAL, "token_sha256", KIND_TOKEN, 0, 0, 0, 0, NULL, NULL},
        {SECTION_PRINCIPAL, "certificate", KIND_NAME, PRINCIPAL_FIELD(certificate), 0, 0, 64, NULL,
         NULL},
        {SECTION_PRINCIPAL, "permissions", KIND_PERMISSIONS, PRINCIPAL_FIELD(permissions), 0, 0, 0,
         "run, load", NULL},
        {SECTION_PRINCIPAL, "weight", KIND_COUNT, PRINCIPAL_FIELD(weight), HR_SHARE_WEIGHT, 1,
         HR_SHARE_WEIGHT_MAX, NULL, NULL},
};

const uint32_t hr_config_key_count = HR_ARRAY_LENGTH(hr_config_keys);

hr_status hr_config_fail(const struct origin *origin, const struct key *key, const char *format,
                         ...) {
        const size_t label_bytes = strlen(origin->label);
        const char *label = origin->label + (label_bytes > 80 ? label_bytes - 80 : 0);
        char words[HR_DIAG_WORDS_BYTES], line[16] = "";
        va_list args;

        va_start(args, format);
        vsnprintf(words, sizeof words, format, args);
        va_end(args);
        if (origin->line > 0)
                snprintf(line, sizeof line, ":%" PRIu32, origin->line);
        if (!key)
                return hr_fail_reason(origin->diag, HR_E_INVALID, "CONFIG", "%s%s: %s", label, line,
                                      words);
        return hr_fail_reason(origin->diag, HR_E_INVALID, "CONFIG", "%s%s: %s.%s: %s", label, line,
                              hr_config_sections[key->section], key->name, words);
}

/* ---- Values ---------------------------------------------------------------------------------- */

/* Digits in `base` at the start of text; gives what follows them. */
static bool parse_number(const char *text, uint64_t base, uint64_t *ret_value,
                         const char **ret_rest) {
        uint64_t value = 0;
        const char *next = text;

        for (; isdigit((unsigned char) *next) && (uint64_t) (*next - '0') < base; next++)
                if (!hr_mul_u64(value, base, &value) ||
                    !hr_add_u64(value, (uint64_t) (*next - '0'), &value))
                        return false;
        *ret_value = value;
        *ret_rest = next;
        return next != text;
}

struct unit {
        const char *name;
        uint64_t factor;
};

/* Largest first: printing takes the first that divides. */
static const struct unit size_units[] = {
        {"T", HR_TIB}, {"G", HR_GIB}, {"M", HR_MIB}, {"K", HR_KIB}, {"", 1}};
static const struct unit duration_units[] = {{"s", HR_NS_PER_S}, {"ms", MS}, {"us", US}};

static bool parse_with_unit(const char *text, const struct unit *units, size_t unit_count,
                            uint64_t *ret_value) {
        const char *rest = "";
        uint64_t value = 0;

        if (!parse_number(text, 10, &value, &rest))
                return false;
        while (*rest == ' ')
                rest++;
        for (size_t i = 0; i < unit_count; i++)
                if (strcasecmp(rest, units[i].name) == 0)
                        return hr_mul_u64(value, units[i].factor, ret_value);
        if (value == 0 && *rest == '\0') { /* nothing needs no unit */
                *ret_value = 0;
                return true;
        }
        return false;
}

static bool parse_bool(const char *text, bool *ret_value) {
        static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(words); i++)
                if (strcasecmp(text, words[i]) == 0) {
                        *ret_value = i % 2;
                        return true;
                }
        return false;
}

static const char *const *key_choices(const struct key *key) {
        return key->choices ? key->choices : hr_backend_names();
}

static hr_status set_choice(const struct origin *origin, const struct key *key, const char *text,
                            const char **field) {
        const char *const *choices = key_choices(key);
        char list[128] = "";

        for (size_t i = 0; choices[i]; i++) {
                if (strcasecmp(text, choices[i]) == 0) {
                        *field = choices[i];
                        return HR_OK;
                }
                snprintf(list + strlen(list), sizeof list - strlen(list), " %s", choices[i]);
        }
        return hr_config_fail(origin, key, "'%.40s' is none of:%s", text, list);
}

/* Words of the choices, separated by commas; nothing is none. */
static hr_status set_flags(const struct origin *origin, const struct key *key, const char *text,
                           uint64_t *field) {
        uint64_t flags = 0;

        while (*(text += strspn(text, " ,"))) {
                size_t bytes = strcspn(text, " ,"), i = 0;

                while (key->choices[i] && (strlen(key->choices[i]) != bytes ||
                                           strncasecmp(text, key->choices[i], bytes) != 0))
                        i++;
                if (!key->choices[i])
                        return hr_config_fail(origin, key, "'%.*s' is none of its words",
                                              (int) HR_MIN(bytes, (size_t) 40), text);
                flags |= UINT64_C(1) << i;
                text += bytes;
        }
        *field = flags;
        return HR_OK;
}

hr_status hr_config_set_string(const struct origin *origin, const struct key *key, const char *text,
                               char **field) {
        char *copy = NULL;

        if (*text != '\0') {
                copy = strdup(text);
                if (!copy)
                        return hr_fail(origin->diag, HR_E_EXHAUSTED, "value of %s", key->name);
        }
        free(*field);
        *field = copy;
        return HR_OK;
}

/* Can a file hold it? No control characters, no blank at either end, nothing that begins a
 * comment. */
static bool path_is_plain(const char *path, size_t bytes) {
        for (size_t i = 0; i < bytes; i++)
                if ((unsigned char) path[i] < ' ' || path[i] == 0x7f ||
                    (path[i] == ';' && (i == 0 || path[i - 1] == ' ')))
                        return false;
        return bytes == 0 || (path[0] != ' ' && path[bytes - 1] != ' ');
}

static hr_status check_ops(const struct origin *origin, const struct key *key, const char *text) {
        struct hr_diag diag = {0};
        struct hr_deny deny;

        return hr_deny_parse(text, &diag, &deny) == HR_OK
                       ? HR_OK
                       : hr_config_fail(origin, key, "%s", diag.words);
}

void hr_config_clear_directories(struct hr_config *config) {
        for (uint32_t i = 0; i < config->directory_count; i++)
                free(config->directories[i]);
        free(config->directories);
        config->directories = NULL;
        config->directory_count = 0;
}

static hr_status add_directories(const struct origin *origin, const struct key *key,
                                 const char *text, struct hr_config *config) {
        while (*text != '\0') {
                const size_t bytes = strcspn(text, ":");
                char **grown;

                if (text[0] != '/' || !path_is_plain(text, bytes))
                        return hr_config_fail(origin, key,
                                              "'%.*s' is no absolute path, or has blanks "
                                              "at its ends",
                                              (int) HR_MIN(bytes, 60U), text);
                grown = reallocarray(config->directories, config->directory_count + 1,
                                     sizeof *grown);
                if (!grown)
                        return hr_fail(origin->diag, HR_E_EXHAUSTED, "model directories");
                config->directories = grown;
                grown[config->directory_count] = strndup(text, bytes);
                if (!grown[config->directory_count])
                        return hr_fail(origin->diag, HR_E_EXHAUSTED, "model directories");
                config->directory_count++;
                text += bytes;
                text += *text == ':';
        }
        return HR_OK;
}

static hr_status set_number(const struct origin *origin, const struct key *key, const char *text,
                            uint64_t *field) {
        const char *rest = "", *what = "number";
        uint64_t value = 0;
        bool good;

        if (key->kind == KIND_SIZE) {
                what = "size (digits, then K, M, G or T)";
                good = parse_with_unit(text, size_units, HR_ARRAY_LENGTH(size_units), &value);
        } else if (key->kind == KIND_DURATION) {
                what = "duration (digits, then us, ms or s)";
                good = parse_with_unit(text, duration_units, HR_ARRAY_LENGTH(duration_units),
                                       &value);
        } else {
                what = key->kind == KIND_MODE ? "octal number" : what;
                good = parse_number(text, key->kind == KIND_MODE ? 8 : 10, &value, &rest) &&
                       *rest == '\0';
        }
        if (!good)
                return hr_config_fail(origin, key, "'%.60s' is no %s", text, what);
        if (value < key->low || value > key->high)
                return hr_config_fail(
                        origin, key, "'%.60s' is not within %" PRIu64 " to %" PRIu64 "%s", text,
                        key->low, key->high, key->kind == KIND_DURATION ? " nanoseconds" : "");
        *field = value;
        return HR_OK;
}

hr_status hr_config_set_value(const struct origin *origin, const struct key *key, const char *text,
                              struct hr_config *config, void *object) {
        void *field = (char *) object + key->offset;
        int level;

        switch (key->kind) {
        case KIND_COUNT:
        case KIND_SIZE:
        case KIND_DURATION:
        case KIND_MODE:
                return set_number(origin, key, text, field);
        case KIND_BOOL:
                if (!parse_bool(text, field))
                        return hr_config_fail(origin, key, "'%.40s' is neither yes nor no", text);
                return HR_OK;
        case KIND_MEMORY:
                if (strcasecmp(text, "shared") != 0 && strcasecmp(text, "isolated") != 0)
                        return hr_config_fail(origin, key, "'%.40s' is neither shared nor isolated",
                                              text);
                *(bool *) field = strcasecmp(text, "isolated") == 0;
                return HR_OK;
        case KIND_LEVEL:
                level = hr_log_level_from_name(text);
                if (level < 0)
                        return hr_config_fail(origin, key,
                                              "'%.40s' is none of: error warning notice "
                                              "info debug",
                                              text);
                *(hr_log_level *) field = (hr_log_level) level;
                return HR_OK;
        case KIND_CHOICE:
                return set_choice(origin, key, text, field);
        case KIND_FLAGS:
                return set_flags(origin, key, text, field);
        case KIND_OPS:
                HR_TRY(check_ops(origin, key, text));
                return hr_config_set_string(origin, key, text, field);
        case KIND_PATH:
                if (!path_is_plain(text, strlen(text)))
                        return hr_config_fail(origin, key,
                                              "has blanks at its ends, a control "
                                              "character or a comment");
                if (strlen(text) > key->high)
                        return hr_config_fail(origin, key, "longer than %" PRIu64 " bytes",
                                              key->high);
                return hr_config_set_string(origin, key, text, field);
        case KIND_DIRECTORIES:
                return add_directories(origin, key, text, config);
        case KIND_ADDRESS:
        case KIND_USERS:
        case KIND_GROUPS:
        case KIND_PERMISSIONS:
        case KIND_TOKEN:
        case KIND_NAME:
                return hr_config_set_access(origin, key, text, object);
        }
        return hr_fail(origin->diag, HR_E_INTERNAL, "key of no kind");
}

/* ---- The table --------------------------------------------------------------------------------
 * */

hr_status hr_config_set_defaults(enum section section, struct hr_config *config, void *object,
                                 struct hr_diag *diag) {
        const struct origin origin = {.label = "defaults", .diag = diag};

        for (size_t i = 0; i < hr_config_key_count; i++) {
                const struct key *key = &hr_config_keys[i];
                void *field = (char *) object + key->offset;

                if (key->section != section)
                        continue;
                if (key->text_fallback)
                        HR_TRY(hr_config_set_value(&origin, key, key->text_fallback, config,
                                                   object));
                else if (key->kind == KIND_BOOL || key->kind == KIND_MEMORY)
                        *(bool *) field = key->fallback;
                else if (key->kind == KIND_LEVEL)
                        *(hr_log_level *) field = (hr_log_level) key->fallback;
                else if (key->kind <= KIND_MODE)
                        *(uint64_t *) field = key->fallback;
        }
        return HR_OK;
}

int64_t hr_config_find_key(enum section section, const char *name) {
        for (size_t i = 0; i < hr_config_key_count; i++)
                if (hr_config_keys[i].section == section &&
                    strcmp(hr_config_keys[i].name, name) == 0)
                        return (int64_t) i;
        return -1;
}

/* ---- Dump ------------------------------------------------------------------------------------ */

static void dump_with_unit(FILE *stream, uint64_t value, const struct unit *units) {
        while (value % units->factor != 0)
                units++;
        fprintf(stream, "%" PRIu64 "%s", value / units->factor, units->name);
}

void hr_config_dump_value(const struct key *key, const struct hr_config *config,
                          const void *object, FILE *stream) {
        static const char *const levels[] = {"error", "warning", "notice", "info", "debug"};
        const void *field = (const char *) object + key->offset;
        const char *text = "", *comma = "";

        switch (key->kind) {
        case KIND_COUNT:
                fprintf(stream, "%" PRIu64, *(const uint64_t *) field);
                return;
        case KIND_SIZE:
                if (*(const uint64_t *) field == 0)
                        fputc('0', stream);
                else
                        dump_with_unit(stream, *(const uint64_t *) field, size_units);
                return;
        case KIND_DURATION:
                dump_with_unit(stream, *(const uint64_t *) field, duration_units);
                return;
        case KIND_MODE:
                fprintf(stream, "%04" PRIo64, *(const uint64_t *) field);
                return;
        case KIND_DIRECTORIES:
                for (uint32_t i = 0; i < config->directory_count; i++)
                        fprintf(stream, "%s%s", i > 0 ? "\ndirectories = " : "",
                                config->directories[i]);
                return;
        case KIND_BOOL:
                text = *(const bool *) field ? "yes" : "no";
                break;
        case KIND_MEMORY:
                text = *(const bool *) field ? "isolated" : "shared";
                break;
        case KIND_LEVEL:
                text = levels[*(const hr_log_level *) field];
                break;
        case KIND_FLAGS:
                for (size_t i = 0; key->choices[i]; i++)
                        if (*(const uint64_t *) field >> i & 1) {
                                fprintf(stream, "%s%s", comma, key->choices[i]);
                                comma = ", ";
                        }
                return;
        case KIND_CHOICE:
        case KIND_PATH:
        case KIND_OPS:
                text = *(const char *const *) field;
                break;
        case KIND_ADDRESS:
        case KIND_USERS:
        case KIND_GROUPS:
        case KIND_PERMISSIONS:
        case KIND_TOKEN:
        case KIND_NAME:
                hr_config_dump_access(key, object, stream);
                return;
        }
        fputs(text ? text : "", stream);
}

static void dump_section(enum section section, const struct hr_config *config, const void *object,
                         FILE *stream) {
        for (size_t i = 0; i < hr_config_key_count; i++) {
                if (hr_config_keys[i].section != section)
                        continue;
                fprintf(stream, "%s = ", hr_config_keys[i].name);
                hr_config_dump_value(&hr_config_keys[i], config, object, stream);
                fputc('\n', stream);
        }
}

void hr_config_dump(const struct hr_config *config, FILE *stream) {
        for (enum section i = SECTION_DAEMON; i < SECTION_DEVICE; i++) {
                fprintf(stream, "[%s]\n", hr_config_sections[i]);
                dump_section(i, config, config, stream);
                fputc('\n', stream);
        }
        for (uint32_t i = 0; i < config->device_count; i++) {
                fprintf(stream, "[device %s]\n", config->devices[i].name);
                dump_section(SECTION_DEVICE, config, &config->devices[i], stream);
                fputc('\n', stream);
        }
        for (uint32_t i = 0; i < config->principal_count; i++) {
                fprintf(stream, "[principal %s]\n", config->principals[i].name);
                dump_section(SECTION_PRINCIPAL, config, &config->principals[i], stream);
                fputc('\n', stream);
        }
}

bool hr_config_realloc_fails(const struct hr_config *config) {
        return strcmp(config->realloc, "fail") == 0;
}

hr_keep hr_config_keep(const struct hr_config *config) {
        unsigned i = 0;

        while (keep_choices[i] && strcmp(config->keep, keep_choices[i]) != 0)
                i++;
        HR_ASSERT(i <= HR_KEEP_ALL);
        return (hr_keep) i;
}
