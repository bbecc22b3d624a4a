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
 *
 * The configuration may change while the daemon runs. A principal is the same as before when a
 * section of its name is there; one that is not there any more is revoked: nobody is known as it
 * from then on, and it goes when nothing refers to it. Thread: loop.
 */
#pragma once

#include <sys/socket.h>

#include "core/list.h"
#include "daemon/charge.h"
#include "daemon/rate.h"
#include "daemon/share.h"

struct hr_principals;
struct hr_principals_change;

struct hr_principal {
        struct hr_list link; /* in the table's list */
        struct hr_principals *table;
        uint64_t id;         /* unique while the daemon runs, however often peers come and go */
        uint32_t refs;       /* the table has one of those with a section */
        uint32_t uid;        /* of those without a section; UINT32_MAX = none */
        bool has_section, is_revoked;
        uint64_t permissions;
        struct hr_account account; /* what its sessions hold together */
        struct hr_share share;     /* of the devices; the engine's */
        struct hr_rate misses, cancels;
        char name[HR_DEVICE_NAME_BYTES_MAX + 1];
};

/* As the owner of weight sets; never 0. */
static inline uint64_t hr_principal_owner(const struct hr_principal *principal) {
        return principal->id + 1;
}

/* devices: what all of them have shares of. */
HR_NODISCARD hr_status hr_principals_new(const struct hr_config *config, struct hr_share *devices,
                                         struct hr_diag *diag,
                                         struct hr_principals **ret_principals);
/* Nobody refers to any of them any more. NULL is a no-op. */
struct hr_principals *hr_principals_free(struct hr_principals *principals);

/* Prepares for the sections of `fresh`; nothing has changed yet. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_principals_prepare(const struct hr_principals *principals,
                                             const struct hr_config *fresh, struct hr_diag *diag,
                                             struct hr_principals_change **ret_change);
/* Makes the change, which is freed: the table's configuration has the sections of `fresh` now. */
void hr_principals_commit(struct hr_principals *principals, struct hr_principals_change *change);
/* Or does not. NULL is a no-op. */
void hr_principals_discard(struct hr_principals_change *change);

/* The principal of a connected Unix socket by its user, or one of its groups. HR_E_UNAUTHENTICATED
 * when it is nobody's: it may still show a token. */
HR_NODISCARD hr_status hr_principal_of_unix(struct hr_principals *principals, int fd,
                                            struct hr_diag *diag,
                                            struct hr_principal **ret_principal);
/* Of a plain TCP connection before it shows a token. HR_E_UNAUTHENTICATED where there are
 * sections. */
HR_NODISCARD hr_status hr_principal_of_tcp(struct hr_principals *principals, struct hr_diag *diag,
                                           struct hr_principal **ret_principal);
/* By the SHA-256 of its token. Takes the same time for any. HR_E_UNAUTHENTICATED, in the same words
 * for every wrong one. */
HR_NODISCARD hr_status hr_principal_of_token(struct hr_principals *principals,
                                             const uint8_t digest[HR_TOKEN_DIGEST_BYTES],
                                             struct hr_diag *diag,
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
/* One after the other, revoked ones too: NULL begins, NULL ends. */
const struct hr_principal *hr_principals_next(const struct hr_principals *principals,
                                              const struct hr_principal *principal);
/* HR_E_PERMISSION when it lacks one of these. */
HR_NODISCARD hr_status hr_principal_check(const struct hr_principal *principal,
                                          uint64_t permissions, struct hr_diag *diag);
