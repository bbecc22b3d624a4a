/*
 * One answer as text or JSON. JSON goes out as it comes; a table is kept until its list ends, when
 * the widths of its columns are known.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/ctl/ctl.h"

#define LABEL_WIDTH 18

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Bytes of the valid UTF-8 character at text, or 0. */
static size_t character_bytes(const unsigned char *text) {
        size_t bytes = text[0] < 0x80 ? 1 : text[0] < 0xC2 ? 0 : text[0] < 0xE0 ? 2
                       : text[0] < 0xF0 ? 3 : text[0] < 0xF5 ? 4 : 0;

        for (size_t i = 1; i < bytes; i++)
                if ((text[i] & 0xC0) != 0x80)
                        return 0;
        if (bytes >= 3 && ((text[0] == 0xE0 && text[1] < 0xA0) ||
                           (text[0] == 0xED && text[1] > 0x9F) ||
                           (text[0] == 0xF0 && text[1] < 0x90) ||
                           (text[0] == 0xF4 && text[1] > 0x8F)))
                return 0;
        return bytes;
}

void ctl_json_text(FILE *stream, const char *text) {
        const unsigned char *at = (const unsigned char *) text;

        fputc('"', stream);
        while (*at) {
                size_t bytes = character_bytes(at);

                if (*at == '"' || *at == '\\')
                        fprintf(stream, "\\%c", *at);
                else if (*at < ' ' || *at == 0x7F)
                        fprintf(stream, "\\u%04x", *at);
                else if (bytes == 0)
                        fputs("\\ufffd", stream);
                else
                        (void) fwrite(at, 1, bytes, stream);
                at += bytes ? bytes : 1;
        }
        fputc('"', stream);
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Control characters would move the terminal's cursor. */
static void put_printable(FILE *stream, const char *text) {
        for (; *text; text++)
                fputc((unsigned char) *text < ' ' || *text == 0x7F ? '?' : *text, stream);
}

/* Columns on a terminal, near enough: characters of UTF-8. */
static int width_of(const char *text) {
        int width = 0;

        for (; *text; text++)
                width += ((unsigned char) *text & 0xC0) != 0x80;
        return width;
}

/* "n_copies" -> "n copies"; narrow: "device_bytes" -> "device", since the unit is in the values. */
static void label_of(const char *key, bool narrow, char label[64]) {
        static const char *const units[] = {"_bytes", "_ms", "_ns"};

        (void) snprintf(label, 64, "%s", key);
        for (size_t i = 0; narrow && i < sizeof units / sizeof *units; i++) {
                size_t at = strlen(label), bytes = strlen(units[i]);

                if (at > bytes && strcmp(label + at - bytes, units[i]) == 0) {
                        label[at - bytes] = '\0';
                        break;
                }
        }
        for (char *at = label; *at; at++)
                if (*at == '_')
                        *at = ' ';
}

/* A cell of the table, or a line. The text for people. */
static void put(struct ctl_output *out, const char *key, const char *text, bool is_number) {
        char label[64];

        if (!out->in_list) {
                label_of(key, strlen(key) < 6 || strcmp(key + strlen(key) - 6, "_bytes") != 0,
                         label);
                fprintf(out->stream, "%-*s ", LABEL_WIDTH, label);
                put_printable(out->stream, text);
                fputc('\n', out->stream);
                return;
        }
        if (out->column == CTL_COLUMNS_MAX || !out->cells) {
                out->failed = true;
                return;
        }
        if (out->row_count == 1) {
                out->keys[out->column] = key;
                out->is_number[out->column] = is_number;
                out->column_count = out->column + 1;
        }
        out->cells[(size_t) (out->row_count - 1) * CTL_COLUMNS_MAX + out->column] = strdup(text);
        out->column++;
}

static const char *cell(const struct ctl_output *out, uint32_t row, uint32_t column) {
        const char *text = out->cells[(size_t) row * CTL_COLUMNS_MAX + column];

        return text ? text : "";
}

static void put_cell(struct ctl_output *out, const char *text, int width, bool right, bool last) {
        int space = width - width_of(text);

        if (right && space > 0)
                fprintf(out->stream, "%*s", space, "");
        put_printable(out->stream, text);
        if (!right && space > 0 && !last)
                fprintf(out->stream, "%*s", space, "");
        fputs(last ? "\n" : "  ", out->stream);
}

static void table_print(struct ctl_output *out) {
        int width[CTL_COLUMNS_MAX];
        char label[64];

        for (uint32_t c = 0; c < out->column_count; c++) {
                label_of(out->keys[c], true, label);
                width[c] = width_of(label);
                for (uint32_t r = 0; r < out->row_count; r++)
                        if (width_of(cell(out, r, c)) > width[c])
                                width[c] = width_of(cell(out, r, c));
        }
        for (uint32_t c = 0; c < out->column_count; c++) {
                label_of(out->keys[c], true, label);
                for (char *at = label; *at; at++)
                        if (*at >= 'a' && *at <= 'z')
                                *at = (char) (*at - 'a' + 'A');
                put_cell(out, label, width[c], out->is_number[c], c + 1 == out->column_count);
        }
        for (uint32_t r = 0; r < out->row_count; r++)
                for (uint32_t c = 0; c < out->column_count; c++)
                        put_cell(out, cell(out, r, c), width[c], out->is_number[c],
                                 c + 1 == out->column_count);
}

static void table_clear(struct ctl_output *out) {
        for (size_t i = 0; out->cells && i < (size_t) out->row_count * CTL_COLUMNS_MAX; i++)
                free(out->cells[i]);
        free(out->cells);
        out->cells = NULL;
        out->row_count = out->column_count = out->column = 0;
}

/* ---- the answer ------------------------------------------------------------------------------ */

void ctl_output_begin(struct ctl_output *out, FILE *stream, bool json) {
        *out = (struct ctl_output){.stream = stream, .json = json};
        if (json)
                fputc('{', stream);
}

bool ctl_output_end(struct ctl_output *out) {
        table_clear(out);
        if (out->json)
                fputs("}\n", out->stream);
        return fflush(out->stream) == 0 && !ferror(out->stream) && !out->failed;
}

/* The key of what follows. */
static void json_key(struct ctl_output *out, const char *key) {
        if (out->has_field)
                fputc(',', out->stream);
        out->has_field = true;
        ctl_json_text(out->stream, key);
        fputc(':', out->stream);
}

void ctl_list(struct ctl_output *out, const char *key) {
        if (out->json) {
                json_key(out, key);
                fputc('[', out->stream);
        } else if (out->has_field) {
                fputc('\n', out->stream);
        }
        out->in_list = true;
        out->has_row = false;
}

void ctl_row(struct ctl_output *out) {
        char **grown;

        if (out->json) {
                fputs(out->has_row ? "},{" : "{", out->stream);
                out->has_row = true;
                out->has_field = false;
                return;
        }
        grown = reallocarray(out->cells, out->row_count + (size_t) 1,
                             CTL_COLUMNS_MAX * sizeof *grown);
        if (!grown) {
                out->failed = true;
                return;
        }
        memset(grown + (size_t) out->row_count * CTL_COLUMNS_MAX, 0,
               CTL_COLUMNS_MAX * sizeof *grown);
        out->cells = grown;
        out->row_count++;
        out->column = 0;
}

void ctl_list_end(struct ctl_output *out) {
        if (out->json)
                fputs(out->has_row ? "}]" : "]", out->stream);
        else if (out->row_count > 0)
                table_print(out);
        else
                fputs("none\n", out->stream);
        table_clear(out);
        out->in_list = false;
        out->has_field = true;
}

void ctl_text(struct ctl_output *out, const char *key, const char *text) {
        if (!out->json) {
                put(out, key, text, false);
                out->has_field = true;
                return;
        }
        json_key(out, key);
        ctl_json_text(out->stream, text);
}

void ctl_bool(struct ctl_output *out, const char *key, bool value) {
        if (!out->json) {
                ctl_text(out, key, value ? "yes" : "no");
                return;
        }
        json_key(out, key);
        fputs(value ? "true" : "false", out->stream);
}

static void put_number(struct ctl_output *out, const char *key, const char *text,
                       const char *json) {
        if (out->json) {
                json_key(out, key);
                fputs(json, out->stream);
                return;
        }
        put(out, key, text, true);
        out->has_field = true;
}

void ctl_count(struct ctl_output *out, const char *key, uint64_t value) {
        char text[32];

        (void) snprintf(text, sizeof text, "%" PRIu64, value);
        put_number(out, key, text, text);
}

void ctl_bytes(struct ctl_output *out, const char *key, uint64_t bytes) {
        static const char units[] = " KMGTPE";
        char text[32], json[32];
        double scaled = (double) bytes;
        size_t unit = 0;

        (void) snprintf(json, sizeof json, "%" PRIu64, bytes);
        while (scaled >= 1024 && unit + 2 < sizeof units) {
                scaled /= 1024;
                unit++;
        }
        if (unit == 0)
                (void) snprintf(text, sizeof text, "%" PRIu64, bytes);
        else
                (void) snprintf(text, sizeof text, scaled < 10 ? "%.2f%c" : "%.1f%c", scaled,
                                units[unit]);
        put_number(out, key, text, json);
}

void ctl_ms(struct ctl_output *out, const char *key, uint64_t ms) {
        uint64_t s = ms / 1000;
        char text[48], json[32];

        (void) snprintf(json, sizeof json, "%" PRIu64, ms);
        if (ms < 10000)
                (void) snprintf(text, sizeof text, "%.1f s", (double) ms / 1000);
        else if (s < 86400)
                (void) snprintf(text, sizeof text, "%02" PRIu64 ":%02" PRIu64 ":%02" PRIu64,
                                s / 3600, s / 60 % 60, s % 60);
        else
                (void) snprintf(text, sizeof text, "%" PRIu64 "d %02" PRIu64 ":%02" PRIu64,
                                s / 86400, s / 3600 % 24, s / 60 % 60);
        put_number(out, key, text, json);
}

void ctl_ns(struct ctl_output *out, const char *key, uint64_t ns) {
        char text[32], json[32];

        (void) snprintf(json, sizeof json, "%" PRIu64, ns);
        (void) snprintf(text, sizeof text, "%.3f ms", (double) ns / 1e6);
        put_number(out, key, text, json);
}

void ctl_number(struct ctl_output *out, const char *key, double value) {
        char text[32], json[32];

        (void) snprintf(json, sizeof json, "%.6g", value);
        (void) snprintf(text, sizeof text, value < 10 ? "%.2f" : "%.0f", value);
        put_number(out, key, text, json);
}
