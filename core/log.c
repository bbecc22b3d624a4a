/* One write per line, so that lines of different threads do not mix. */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define WORDS_BYTES 1024
#define LINE_BYTES 4096

static const char *const level_names[] = { "error", "warning", "notice", "info", "debug" };
static atomic_int log_level = HR_LOG_INFO;
static hr_log_sink log_sink;

void hr_log_set_sink(hr_log_sink sink) {
        log_sink = sink;
}

void hr_log_set_level(hr_log_level level) {
        atomic_store_explicit(&log_level, (int) level, memory_order_relaxed);
}

hr_log_level hr_log_get_level(void) {
        return (hr_log_level) atomic_load_explicit(&log_level, memory_order_relaxed);
}

int hr_log_level_from_name(const char *name) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(level_names); i++)
                if (strcasecmp(name, level_names[i]) == 0)
                        return (int) i;
        return -1;
}

/* ---- Cleaning -------------------------------------------------------------------------------- */

/* Bytes of the character at text that may stand in a log, or 0. */
static size_t character_bytes(const unsigned char *text) {
        const unsigned char lead = text[0];
        size_t bytes;

        if (lead < 0x80)
                return lead >= ' ' && lead != 0x7f;
        if (lead < 0xc2 || lead > 0xf4)
                return 0;
        bytes = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
        for (size_t i = 1; i < bytes; i++) /* stops at the NUL */
                if ((text[i] & 0xc0) != 0x80)
                        return 0;
        if (lead == 0xc2 && text[1] < 0xa0) /* C1: some terminals obey them */
                return 0;
        if ((lead == 0xe0 && text[1] < 0xa0) || (lead == 0xed && text[1] > 0x9f) ||
            (lead == 0xf0 && text[1] < 0x90) || (lead == 0xf4 && text[1] > 0x8f))
                return 0;
        /* U+2028 and U+2029 end lines, U+202A to U+202E turn them round. */
        if (lead == 0xe2 && text[1] == 0x80 && text[2] >= 0xa8 && text[2] <= 0xae)
                return 0;
        return bytes;
}

/* Copies whole characters, cut to the room. */
static void text_clean(const char *text, char *clean, size_t room) {
        const unsigned char *at = (const unsigned char *) text;
        size_t used = 0;

        while (*at) {
                const size_t bytes = character_bytes(at);
                const size_t takes = bytes ? bytes : 1;

                if (used + takes >= room)
                        break;
                if (bytes)
                        memcpy(clean + used, at, bytes);
                else
                        clean[used] = '?';
                used += takes;
                at += takes;
        }
        clean[used] = '\0';
}

/* ---- Lines of text --------------------------------------------------------------------------- */

struct line {
        char *text;
        size_t used, room;
};

static void line_add(struct line *line, const char *text) {
        for (; *text && line->used + 2 < line->room; text++)
                line->text[line->used++] = *text;
}

static bool is_plain(const char *value) {
        for (const char *at = value; *at; at++)
                if (!(*at >= 'a' && *at <= 'z') && !(*at >= 'A' && *at <= 'Z') &&
                    !(*at >= '0' && *at <= '9') && *at != '_' && *at != '-' && *at != '.' &&
                    *at != ':' && *at != '/')
                        return false;
        return *value;
}

/* In quotes unless it is one plain word. */
static void value_add(struct line *line, const char *value) {
        char one[2] = {0};

        if (is_plain(value)) {
                line_add(line, value);
                return;
        }
        line_add(line, "\"");
        for (; *value; value++) {
                one[0] = *value == '"' ? '\'' : *value;
                line_add(line, one);
        }
        line_add(line, "\"");
}

static void text_add(struct line *line, const char *words, const struct hr_log_field *fields,
                     size_t count) {
        line_add(line, words);
        for (size_t i = 0; i < count; i++) {
                if (!fields[i].value)
                        continue;
                line_add(line, " ");
                line_add(line, fields[i].name);
                line_add(line, "=");
                value_add(line, fields[i].value);
        }
}

size_t hr_log_text(const char *words, const struct hr_log_field *fields, size_t count, char *text,
                   size_t room) {
        struct line line = {.text = text, .room = room};

        text_add(&line, words, fields, count);
        text[line.used] = '\0';
        return line.used;
}

size_t hr_log_line(hr_log_level level, const char *topic, const char *words,
                   const struct hr_log_field *fields, size_t count, char *text, size_t room) {
        struct line line = {.text = text, .room = room};

        line_add(&line, "headraced: ");
        line_add(&line, level_names[level]);
        line_add(&line, ": ");
        line_add(&line, topic);
        line_add(&line, ": ");
        text_add(&line, words, fields, count);
        text[line.used++] = '\n';
        text[line.used] = '\0';
        return line.used;
}

/* ---- Logging --------------------------------------------------------------------------------- */

static void log_send(hr_log_level level, const char *topic, const char *words,
                     const struct hr_log_field *fields, size_t count) {
        char line[LINE_BYTES];
        size_t bytes;

        if (log_sink) {
                log_sink(level, topic, words, fields, count);
                return;
        }
        bytes = hr_log_line(level, topic, words, fields, count, line, sizeof line);
        /* Nothing can be done about a log that cannot be written. */
        if (write(STDERR_FILENO, line, bytes) < 0)
                return;
}

HR_PRINTF(5, 0)
static void log_format(hr_log_level level, const char *topic, const struct hr_log_field *fields,
                       size_t count, const char *format, va_list args) {
        char raw[WORDS_BYTES], words[WORDS_BYTES];
        char values[HR_LOG_FIELDS_MAX][HR_LOG_VALUE_BYTES_MAX];
        struct hr_log_field clean[HR_LOG_FIELDS_MAX];

        if (level > hr_log_get_level() || vsnprintf(raw, sizeof raw, format, args) < 0)
                return;
        text_clean(raw, words, sizeof words);
        count = HR_MIN(count, (size_t) HR_LOG_FIELDS_MAX);
        for (size_t i = 0; i < count; i++) {
                clean[i] = fields[i];
                if (!fields[i].value)
                        continue;
                text_clean(fields[i].value, values[i], sizeof values[i]);
                clean[i].value = values[i];
        }
        log_send(level, topic, words, clean, count);
}

void hr_log(hr_log_level level, const char *topic, const char *format, ...) {
        va_list args;

        va_start(args, format);
        log_format(level, topic, NULL, 0, format, args);
        va_end(args);
}

void hr_log_fields(hr_log_level level, const char *topic, const struct hr_log_field *fields,
                   size_t count, const char *format, ...) {
        va_list args;

        va_start(args, format);
        log_format(level, topic, fields, count, format, args);
        va_end(args);
}
