/*
 * One datagram a call. A manager that cannot be reached is not worth more than silence: it sees the
 * daemon's exit status whatever became of its messages. The words go on one line, since lines are
 * assignments here.
 */
#include "daemon/notify.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/clock.h"

#ifdef HR_HAVE_SYSTEMD
#include <systemd/sd-daemon.h>
#endif

#define WORDS_BYTES 200

static void notify_send(const char *state, const char *format, va_list args) {
        char words[WORDS_BYTES];

        (void) vsnprintf(words, sizeof words, format, args);
        for (char *at = words; *at; at++)
                if (*at == '\n')
                        *at = ' ';
#ifdef HR_HAVE_SYSTEMD
        (void) sd_notifyf(0, "%s=1\nSTATUS=%s", state, words);
#else
        (void) state;
#endif
}

void hr_notify_ready(const char *format, ...) {
        va_list args;

        va_start(args, format);
        notify_send("READY", format, args);
        va_end(args);
}

void hr_notify_stopping(const char *format, ...) {
        va_list args;

        va_start(args, format);
        notify_send("STOPPING", format, args);
        va_end(args);
}

uint64_t hr_notify_watchdog_ns(void) {
#ifdef HR_HAVE_SYSTEMD
        uint64_t us = 0;

        if (sd_watchdog_enabled(0, &us) > 0)
                return us * 1000;
#endif
        return 0;
}

void hr_notify_watchdog(void) {
#ifdef HR_HAVE_SYSTEMD
        (void) sd_notify(0, "WATCHDOG=1");
#endif
}

void hr_notify_reloading(void) {
#ifdef HR_HAVE_SYSTEMD
        /* Type=notify-reload wants to know when the reading began. */
        (void) sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu\nSTATUS=Reading the configuration",
                          (unsigned long long) (hr_clock_now_ns() / 1000));
#endif
}
