/* One write per line, so that lines of different threads do not mix. */
#include "core/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#define LINE_BYTES 1024

static const char *const level_names[] = { "error", "warning", "notice", "info", "debug" };
static atomic_int log_level = HR_LOG_INFO;

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

void hr_log(hr_log_level level, const char *topic, const char *format, ...) {
        char line[LINE_BYTES];
        int used, more;
        va_list args;

        if (level > hr_log_get_level())
                return;
        used = snprintf(line, sizeof line, "headraced: %s: %s: ", level_names[level], topic);
        if (used < 0 || (size_t) used >= sizeof line)
                return;
        va_start(args, format);
        more = vsnprintf(line + used, sizeof line - (size_t) used, format, args);
        va_end(args);
        if (more < 0)
                return;
        used = HR_MIN(used + more, LINE_BYTES - 2);
        /* A peer's words must not start lines of their own or move a terminal's cursor. */
        for (int i = 0; i < used; i++)
                if ((unsigned char) line[i] < ' ')
                        line[i] = '?';
        line[used++] = '\n';
        /* Nothing can be done about a log that cannot be written. */
        if (write(STDERR_FILENO, line, (size_t) used) < 0)
                return;
}
