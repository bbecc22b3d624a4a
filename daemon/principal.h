/*
 * Who a peer is.
 *
 * A principal is an authenticated identity: a [principal NAME] of the configuration, known by the
 * user or group of a Unix peer, by its token, or by its client certificate. Without any such
 * section every Unix user is a principal of their own ("uid 1000"), and whoever comes over plain
 * TCP is "local"; all of them may do everything, because the socket's mode and the loopback have
 * decided already who may come in.
 *
 * The identity is the peer's at the time of connect: a descriptor that is handed on keeps it.
 * Thread: loop.
 */
#pragma once

#include <sys/socket.h>

#include "core/list.h"
#include "daemon/charge.h"
#include "daemon/share.h"

struct hr_principals;

struct hr_principal {
        struct hr_list link; /* of those without a section */
        struct hr_principals *table;
        uint32_t id;         /* unique while the daemon runs */
        uint32_t refs;       /* those without a section go with the last */
        uint32_t uid;        /* of those without a section */
        uint64_t permissions;
        struct hr_account account; /* what its sessions hold together */
        struct hr_share share;     /* of the devices; the engine's */
        const struct hr_config_principal *config; /* NULL: has no section */
        char name[HR_DEVICE_NAME_BYTES_MAX + 1];
};

/* devices: what all of them have shares of. */
HR_NODISCARD hr_status hr_principals_new(const struct hr_config *config, struct hr_share *devices,
                                         struct hr_diag *diag,
                                         struct hr_principals **ret_principals);
/* Nobody refers to any of them any more. NULL is a no-op. */
struct hr_principals *hr_principals_free(struct hr_principals *principals);

/* The principal of a connected Unix socket by its user, or one of its groups. HR_E_UNAUTHENTICATED
 * when it is nobody's: it may still show a token. */
HR_NODISCARD hr_status hr_principal_of_unix(struct hr_principals *principals, int fd,
                                            struct hr_diag *diag,
                                            struct hr_principal **ret_principal);
/* Of a plain TCP connection before it shows a token. HR_E_UNAUTHENTICATED where there are
 * sections. */
HR_NODISCARD hr_status hr_principal_of_tcp(struct hr_principals *principals, struct hr_diag *diag,
                                           struct hr_principal **ret_principal);
/* By its token. Takes the same time for any token. HR_E_UNAUTHENTICATED, in the same words for
 * every wrong one. */
HR_NODISCARD hr_status hr_principal_of_token(struct hr_principals *principals, const void *token,
                                             size_t token_bytes, struct hr_diag *diag,
                                             struct hr_principal **ret_principal);
/* By the common name of a verified client certificate. HR_E_UNAUTHENTICATED. */
HR_NODISCARD hr_status hr_principal_of_certificate(struct hr_principals *principals,
                                                   const char *common_name, struct hr_diag *diag,
                                                   struct hr_principal **ret_principal);

struct hr_principal *hr_principal_ref(struct hr_principal *principal);
/* Returns NULL; NULL is a no-op. */
struct hr_principal *hr_principal_unref(struct hr_principal *principal);
/* What all of them hold together. */
const struct hr_account *hr_principals_account(const struct hr_principals *principals);
/* The configured ones, then those without a section, one after the other: NULL begins, NULL
 * ends. */
const struct hr_principal *hr_principals_next(const struct hr_principals *principals,
                                              const struct hr_principal *principal);
/* HR_E_PERMISSION when it lacks one of these. */
HR_NODISCARD hr_status hr_principal_check(const struct hr_principal *principal,
                                          uint64_t permissions, struct hr_diag *diag);
