/*
 * Descriptors that a service manager passes to the daemon (LISTEN_FDS): sockets that it has opened,
 * and what an earlier daemon has left with it (keep.h).
 *
 * Each is looked at before it is believed: a listening stream socket of the kind that its name
 * says, or of any kind under another name. What is named as weight sets are is passed on as it is,
 * for the store to look at. What is something else is closed and logged; nothing of it ends the
 * daemon. Thread: main.
 */
#pragma once

#include "core/status.h"

typedef enum hr_inherited_kind {
        HR_INHERITED_UNIX,
        HR_INHERITED_TCP,
        HR_INHERITED_TLS, /* named "tls" */
        HR_INHERITED_KINDS
} hr_inherited_kind;

struct hr_inherited_kept {
        int fd; /* -1 once somebody has taken it */
        char *name;
};

struct hr_inherited {
        int fd[HR_INHERITED_KINDS]; /* sockets by kind; -1 = none came, or somebody has taken it */
        struct hr_inherited_kept *kept;
        uint32_t kept_count;
};

/* Takes them over, once in the life of a process: sockets non-blocking, all closed on exec. */
void hr_inherited_take(struct hr_inherited *ret_inherited);
/* Closes what nobody has taken. */
void hr_inherited_deinit(struct hr_inherited *inherited);
