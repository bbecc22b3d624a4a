/*
 * Log lines: level, topic, words and fields. core, backends, scheduler and proto never log above
 * DEBUG; the daemon logs each failure once. They go to stderr, or to the sink that the daemon has
 * set.
 *
 * Words and values may come from a peer: control characters (C0, DEL, C1) and what is no UTF-8
 * become
 * '?', and a value in a line of text stands in quotes that nothing inside of it can end. So no peer
 * begins a line, moves a cursor or adds a field. Thread: any.
 */
#pragma once

#include "core/base.h"

typedef enum hr_log_level {
        HR_LOG_ERROR,
        HR_LOG_WARNING,
        HR_LOG_NOTICE,
        HR_LOG_INFO,
        HR_LOG_DEBUG,
} hr_log_level;

/* name: lower case, digits and '_', static. value: NULL = the field is left out. */
struct hr_log_field {
        const char *name;
        const char *value;
};
#define HR_LOG_FIELDS_MAX 16U
#define HR_LOG_VALUE_BYTES_MAX 300U /* what is longer is cut */

/* Takes a line whose words and values are clean already. Thread: any, several at once. */
typedef void (*hr_log_sink)(hr_log_level level, const char *topic, const char *words,
                            const struct hr_log_field *fields, size_t count);

/* NULL: stderr. Before there are other threads. */
void hr_log_set_sink(hr_log_sink sink);
void hr_log_set_level(hr_log_level level);
hr_log_level hr_log_get_level(void);
/* "error"..."debug" -> level; -1 for other words. */
int hr_log_level_from_name(const char *name);
HR_PRINTF(3, 4)
void hr_log(hr_log_level level, const char *topic, const char *format, ...);
/* With at most HR_LOG_FIELDS_MAX fields. */
HR_PRINTF(5, 6)
void hr_log_fields(hr_log_level level, const char *topic, const struct hr_log_field *fields,
                   size_t count, const char *format, ...);
/* The words and then the fields, name=value, cut to the room. Returns the bytes, without the
 * NUL. */
size_t hr_log_text(const char *words, const struct hr_log_field *fields, size_t count, char *text,
                   size_t room);
/* What stderr gets: the whole line with its end, cut to the room. Returns its bytes. */
size_t hr_log_line(hr_log_level level, const char *topic, const char *words,
                   const struct hr_log_field *fields, size_t count, char *line, size_t room);
