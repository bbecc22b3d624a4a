/*
 * Sockets that a service manager has opened before it started the daemon (LISTEN_FDS).
 *
 * Each is looked at before it is believed: a listening stream socket of the kind that its name
 * says, or of any kind under another name. What is something else is closed and logged; nothing of
 * it ends the daemon. Thread: main, before anything else opens descriptors.
 */
#pragma once

#include "core/status.h"

#define HR_INHERITED_MAX 3

typedef enum hr_inherited_kind {
        HR_INHERITED_UNIX,
        HR_INHERITED_TCP,
        HR_INHERITED_TLS, /* named "tls" */
        HR_INHERITED_KINDS
} hr_inherited_kind;

/* Descriptors by kind; -1 = none came. */
struct hr_inherited {
        int fd[HR_INHERITED_KINDS];
};

/* Takes them over, once in the life of a process: non-blocking, closed on exec. */
void hr_inherited_take(struct hr_inherited *ret_inherited);
