/*
 * Log lines to stderr: level, topic, words and fields (KEY=value). core, backends, scheduler and
 * proto never log above DEBUG; the daemon logs each failure once. Thread: any.
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

void hr_log_set_level(hr_log_level level);
hr_log_level hr_log_get_level(void);
/* "error"..."debug" -> level; -1 for other words. */
int hr_log_level_from_name(const char *name);
HR_PRINTF(3, 4)
void hr_log(hr_log_level level, const char *topic, const char *format, ...);
