/*
 * The log in systemd's journal, line by line with its fields, in the journal's own protocol: one
 * datagram per line. MESSAGE has what a person reads, the words and the fields; SYSLOG_IDENTIFIER
 * is headraced, HEADRACE_TOPIC the topic, and each field is HEADRACE_ and its name in capitals.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "core/log.h"

#define HR_JOURNAL_SOCKET "/run/systemd/journal/socket"
#define HR_JOURNAL_ENTRY_BYTES_MAX 8192U

/* Lines go to the journal from now on, if stderr is connected to it ($JOURNAL_STREAM names stderr's
 * device and inode) and it listens at `path`. Before there are other threads. */
void hr_journal_open(const char *path);

/* One line as the journal takes it. A value with a line end could not be told from a field
 * otherwise, so such a value goes with its length. Returns the bytes; 0: no room. */
size_t hr_journal_entry(hr_log_level level, const char *topic, const char *words,
                        const struct hr_log_field *fields, size_t count, uint8_t *entry,
                        size_t room);
