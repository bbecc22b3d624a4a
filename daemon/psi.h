/*
 * The kernel's account of how long threads have waited for memory (pressure stall information):
 *
 *   some avg10=0.00 avg60=0.00 avg300=0.00 total=1234
 *   full avg10=0.00 avg60=0.00 avg300=0.00 total=567
 *
 * in memory.pressure of a control group (version 2), for what runs in it, and in
 * /proc/pressure/memory for the whole machine. Thread: any.
 */
#pragma once

#include "core/status.h"

#define HR_PSI_PATH_BYTES 4096

/* Microseconds in which at least one thread waited, since the beginning. False: that is not
 * said. */
bool hr_psi_parse(const char *text, uint64_t *ret_some_us);
/* The same of a file. HR_E_NOT_FOUND when it cannot be opened or read; HR_E_INVALID. */
HR_NODISCARD hr_status hr_psi_read(const char *path, struct hr_diag *diag, uint64_t *ret_some_us);
/* The control group that lines as in /proc/self/cgroup name for version 2: "/" or a path below it.
 * False: none, or it does not fit. */
bool hr_psi_group(const char *lines, char *group, size_t room);
/* The file of the daemon's own control group, else the machine's. False: there is none that can be
 * read. */
bool hr_psi_find(char path[HR_PSI_PATH_BYTES]);
