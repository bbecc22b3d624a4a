/*
 * A listening socket: a Unix path, guarded by a lock file beside it, or a TCP address.
 *
 * The lock ("PATH.lock") is held as long as the daemon listens: a second daemon on the same path is
 * refused with the first one's pid, and a socket that a dead daemon left behind is replaced.
 * Thread: loop.
 */
#pragma once

#include "daemon/server.h"
#include "daemon/tls.h"

/* HR_E_EXISTS (reason LOCKED) when another daemon has the path; HR_E_PRECONDITION for whatever else
 * the system refuses. */
HR_NODISCARD hr_status hr_listener_open_unix(struct hr_server *server, const char *path,
                                             uint32_t mode, struct hr_diag *diag,
                                             struct hr_listener **ret_listener);
/* context: NULL = plain; outlives the listener. */
HR_NODISCARD hr_status hr_listener_open_tcp(struct hr_server *server,
                                            const struct hr_address *address,
                                            struct hr_tls_context *context, struct hr_diag *diag,
                                            struct hr_listener **ret_listener);
/* A socket that listens already, opened by somebody else, who also removes its path. Takes fd, also
 * on failure. context: NULL = plain. */
HR_NODISCARD hr_status hr_listener_open_inherited(struct hr_server *server, int fd, bool is_tcp,
                                                  struct hr_tls_context *context,
                                                  struct hr_diag *diag,
                                                  struct hr_listener **ret_listener);
/* From now on peers can connect. An opened listener has its address, and nothing else. */
HR_NODISCARD hr_status hr_listener_listen(struct hr_listener *listener, struct hr_diag *diag);
/* Accepts, or leaves connections to the kernel's queue for now. */
void hr_listener_accept(struct hr_listener *listener, bool accept);
/* A tick has passed since accepting failed for want of descriptors or memory: it may try again. */
void hr_listener_rested(struct hr_listener *listener);
/* A Unix socket's path leads to another socket, or nowhere: nobody new can come. Logs a change. */
bool hr_listener_is_astray(struct hr_listener *listener);
/* Closes and removes the path. The memory goes in the close callback. NULL is a no-op. */
struct hr_listener *hr_listener_close(struct hr_listener *listener);
