/*
 * headracectl: what its files share.
 *
 * Commands and options stand in one table each (ctl.c), from which --help, the completions and the
 * generated parts of the manual are written. Thread: main, the only one.
 */
#pragma once

#include <stdio.h>

#include "client/c/headrace.h"

/* Exit codes; the words are in ctl.c. */
enum {
        CTL_OK = 0,
        CTL_REFUSED = 1,
        CTL_USAGE = 2,
        CTL_NO_DAEMON = 3,
        CTL_BAD_FILE = 4,
        CTL_NOT_READY = 5,
        CTL_DEGRADED = 6,
};

/* ---- output (output.c) ----------------------------------------------------------------------- */

#define CTL_COLUMNS_MAX 24

/*
 * One answer, as text for people or as one JSON object: fields, then lists of rows of fields.
 *
 *         ctl_text(out, "state", status.state);
 *         ctl_list(out, "devices");
 *         for (...) { ctl_row(out); ctl_text(out, "device", ...); ctl_bytes(out, "free_bytes",
 * ...); } ctl_list_end(out);
 *
 * Keys are the names in the JSON; numbers there are plain, in the unit that the key ends with. As
 * text a list is a table, whose columns are the keys of its first row.
 */
struct ctl_output {
        FILE *stream;
        bool json;
        bool failed; /* no memory for a table */
        /* Private. */
        bool in_list, has_field, has_row;
        uint32_t column, column_count, row_count;
        const char *keys[CTL_COLUMNS_MAX];
        bool is_number[CTL_COLUMNS_MAX];
        char **cells; /* row_count x CTL_COLUMNS_MAX */
};

void ctl_output_begin(struct ctl_output *out, FILE *stream, bool json);
/* True when everything has been written. */
bool ctl_output_end(struct ctl_output *out);
void ctl_list(struct ctl_output *out, const char *key);
void ctl_row(struct ctl_output *out);
void ctl_list_end(struct ctl_output *out);
void ctl_text(struct ctl_output *out, const char *key, const char *text);
void ctl_bool(struct ctl_output *out, const char *key, bool value);
void ctl_count(struct ctl_output *out, const char *key, uint64_t value);
/* For people 1.5M, 3d 04:05, 1.20 ms; key ends with _bytes, _ms, _ns. */
void ctl_bytes(struct ctl_output *out, const char *key, uint64_t bytes);
void ctl_ms(struct ctl_output *out, const char *key, uint64_t ms);
void ctl_ns(struct ctl_output *out, const char *key, uint64_t ns);
/* A rate or a ratio. */
void ctl_number(struct ctl_output *out, const char *key, double value);

/* A string of JSON, quotes included; what is no UTF-8 becomes U+FFFD. */
void ctl_json_text(FILE *stream, const char *text);

/* ---- commands -------------------------------------------------------------------------------- */

struct ctl {
        struct headrace_client *client;
        struct headrace_error error;
        struct ctl_output out;
        /* What the command line says. */
        const char *address, *token_file, *output;
        const char *tls_ca, *tls_certificate, *tls_key, *tls_name;
        double timeout_s, interval_s, limit_s;
        uint64_t samples, latest_ms;
        bool json, wait, all, own;
        char **arguments; /* of the command */
        int argument_count;
};

struct ctl_command {
        const char *name, *arguments, *words;
        int least, most; /* arguments */
        bool offline;    /* needs no daemon */
        int (*run)(struct ctl *ctl);
};

/* Says that the daemon has refused, or is not there, and returns the exit code. */
int ctl_fail(const struct ctl *ctl);
/* Says what is wrong with the command line: CTL_USAGE. */
__attribute__((format(printf, 1, 2))) int ctl_misuse(const char *format, ...);
/* A number of an argument. */
bool ctl_parse_u64(const char *text, uint64_t *ret_value);

int ctl_status(struct ctl *ctl);
int ctl_sessions(struct ctl *ctl);
int ctl_devices(struct ctl *ctl);
int ctl_weights(struct ctl *ctl);
int ctl_plans(struct ctl *ctl);
int ctl_explain(struct ctl *ctl);
int ctl_top(struct ctl *ctl);
int ctl_drain(struct ctl *ctl);
int ctl_reload(struct ctl *ctl);
int ctl_evict(struct ctl *ctl);
int ctl_quota(struct ctl *ctl);
int ctl_trace(struct ctl *ctl);
int ctl_health(struct ctl *ctl);
int ctl_completion(struct ctl *ctl);
int ctl_manual(struct ctl *ctl);
