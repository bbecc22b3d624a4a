/*
 * The configuration read again while the daemon serves (SIGHUP).
 *
 * First everything that can fail: the file, the TLS files, memory. Then the change, at once: no
 * request sees half of it. Whoever came in by something that is not valid any more (a principal
 * without a section, a token, user, group or certificate that it is not known by now) loses the
 * connection: GOAWAY with PERMISSION (reason REVOKED), and daemon.revocation says whether requests
 * in flight end with the same error or in their own way. Sessions stay with their principal; those
 * of a revoked one close, with all that they hold. What a principal must not do any more ends
 * likewise.
 *
 * Thread: loop.
 */
#pragma once

#include "daemon/server.h"

/* HR_E_INVALID and others: nothing has changed. */
HR_NODISCARD hr_status hr_server_reload(struct hr_server *server, struct hr_diag *diag,
                                        struct hr_config_changes *ret_changes);
