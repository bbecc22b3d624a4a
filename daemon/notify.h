/*
 * What the service manager is told: ready, stopping, and a line of text for people.
 *
 * Over sd_notify where the build has libsystemd and a manager asks for it (NOTIFY_SOCKET in the
 * environment); otherwise nothing happens. Thread: loop.
 */
#pragma once

#include "core/base.h"

/* The daemon takes requests from now on. */
HR_PRINTF(1, 2) void hr_notify_ready(const char *format, ...);
/* Not ready yet, and why; the manager is to wait for so much longer. */
HR_PRINTF(2, 3) void hr_notify_waiting(uint64_t more_ns, const char *format, ...);
/* Only the line of text. */
HR_PRINTF(1, 2) void hr_notify_status(const char *format, ...);
/* The configuration is being read again; hr_notify_ready() follows. */
void hr_notify_reloading(void);
/* It is about to end. Sent once; later calls change the text. */
HR_PRINTF(1, 2) void hr_notify_stopping(const char *format, ...);
/* What the manager's watchdog waits for at most, 0 = there is none. */
uint64_t hr_notify_watchdog_ns(void);
/* Everything moves. */
void hr_notify_watchdog(void);

/* Gives the manager a copy of a descriptor, to be passed to the next daemon under that name (at
 * most 100 printable characters without ':'). False when it could not be told. Whether it has room,
 * it does not say. Waits for a manager that is busy, but not long. Thread: any. */
bool hr_notify_store(const char *name, int fd);
/* Whatever it has under that name it may close. Thread: any. */
void hr_notify_remove(const char *name);
