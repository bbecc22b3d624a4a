/*
 * The table of principals.
 *
 * Tokens are compared as SHA-256 digests, all of them, without leaving early: the time says neither
 * whether a token is right nor how much of it. The token itself is wiped by whoever received it.
 */
#include "daemon/principal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/digest.h"
#include "daemon/stream.h"

#define GROUPS_MAX 1024

struct hr_principals {
        const struct hr_config *config;
        struct hr_share *devices;
        struct hr_account account; /* what all of them hold together */
        struct hr_principal *configured; /* one for each section, in order */
        struct hr_list others;           /* those without a section */
        uint32_t next_id;
};

static void account_open(struct hr_principal *principal) {
        struct hr_principals *table = principal->table;

        hr_account_init(&principal->account, &table->account, "principal_device_bytes",
                        table->config->limits.principal_device_bytes);
}

const struct hr_account *hr_principals_account(const struct hr_principals *principals) {
        return &principals->account;
}

HR_DEFINE_CLEANUP(struct hr_principals *, hr_principals_freep, hr_principals_free)

hr_status hr_principals_new(const struct hr_config *config, struct hr_share *devices,
                            struct hr_diag *diag, struct hr_principals **ret_principals) {
        HR_CLEANUP(hr_principals_freep)
        struct hr_principals *principals = calloc(1, sizeof *principals);

        if (!principals)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for principals");
        hr_list_init(&principals->others);
        principals->config = config;
        principals->devices = devices;
        hr_account_init(&principals->account, NULL, "devices", UINT64_MAX);
        principals->configured =
                calloc(HR_MAX(config->principal_count, 1U), sizeof *principals->configured);
        if (!principals->configured)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for principals");
        for (uint32_t i = 0; i < config->principal_count; i++) {
                struct hr_principal *principal = &principals->configured[i];

                *principal = (struct hr_principal){
                        .table = principals,
                        .id = principals->next_id++,
                        .refs = 1,
                        .uid = UINT32_MAX,
                        .permissions = config->principals[i].permissions,
                        .config = &config->principals[i],
                };
                (void) snprintf(principal->name, sizeof principal->name, "%s",
                                config->principals[i].name);
                account_open(principal);
                HR_TRY(hr_share_init(&principal->share, devices, config->principals[i].weight,
                                     devices->device_count, diag));
        }
        *ret_principals = HR_STEAL(principals);
        return HR_OK;
}

struct hr_principals *hr_principals_free(struct hr_principals *principals) {
        if (!principals)
                return NULL;
        for (uint32_t i = 0; principals->configured && i < principals->config->principal_count;
             i++) {
                HR_ASSERT(principals->configured[i].refs <= 1);
                hr_share_deinit(&principals->configured[i].share);
        }
        HR_ASSERT(hr_list_is_empty(&principals->others));
        free(principals->configured);
        free(principals);
        return NULL;
}

struct hr_principal *hr_principal_ref(struct hr_principal *principal) {
        HR_ASSERT(principal->refs > 0);
        principal->refs++;
        return principal;
}

struct hr_principal *hr_principal_unref(struct hr_principal *principal) {
        if (!principal)
                return NULL;
        HR_ASSERT(principal->refs > 0);
        if (--principal->refs > 0)
                return NULL;
        HR_ASSERT(!principal->config);
        hr_list_remove(&principal->link);
        hr_share_deinit(&principal->share);
        free(principal);
        return NULL;
}

/* One without a section, made when its first peer comes. */
static hr_status principal_without_section(struct hr_principals *principals, uint32_t uid,
                                           struct hr_diag *diag,
                                           struct hr_principal **ret_principal) {
        struct hr_principal *made;
        hr_status status;

        HR_LIST_FOR_EACH(link, &principals->others) {
                struct hr_principal *other = HR_CONTAINER_OF(link, struct hr_principal, link);

                if (other->uid == uid) {
                        *ret_principal = hr_principal_ref(other);
                        return HR_OK;
                }
        }
        made = calloc(1, sizeof *made);
        if (!made)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a principal");
        *made = (struct hr_principal){
                .table = principals,
                .id = principals->next_id++,
                .refs = 1,
                .uid = uid,
                .permissions = HR_PERMIT_ALL,
        };
        account_open(made);
        status = hr_share_init(&made->share, principals->devices, HR_SHARE_WEIGHT,
                               principals->devices->device_count, diag);
        if (status != HR_OK) {
                free(made);
                return status;
        }
        if (uid == UINT32_MAX)
                (void) snprintf(made->name, sizeof made->name, "local");
        else
                (void) snprintf(made->name, sizeof made->name, "uid %u", uid);
        hr_list_append(&principals->others, &made->link);
        *ret_principal = made;
        return HR_OK;
}

static hr_status refuse(struct hr_diag *diag) {
        return hr_fail_reason(diag, HR_E_UNAUTHENTICATED, NULL,
                              "no principal of this daemon has these credentials");
}

static bool has_id(const struct hr_id_list *list, uint32_t id) {
        for (uint32_t i = 0; i < list->count; i++)
                if (list->ids[i] == id)
                        return true;
        return false;
}

/* Whether one of the peer's further groups is on the list. */
static bool has_group(const struct hr_id_list *list, int fd) {
        gid_t groups[GROUPS_MAX];
        size_t count = list->count ? hr_stream_groups(fd, groups, GROUPS_MAX) : 0;

        for (size_t i = 0; i < count; i++)
                if (has_id(list, groups[i]))
                        return true;
        return false;
}

hr_status hr_principal_of_unix(struct hr_principals *principals, int fd, struct hr_diag *diag,
                               struct hr_principal **ret_principal) {
        const struct hr_config *config = principals->config;
        uid_t uid;
        gid_t gid;

        if (!hr_stream_user(fd, &uid, &gid))
                return hr_fail(diag, HR_E_UNAUTHENTICATED, "the system does not say who the peer is");
        if (config->principal_count == 0)
                return principal_without_section(principals, uid, diag, ret_principal);
        for (uint32_t i = 0; i < config->principal_count; i++)
                if (has_id(&config->principals[i].uids, uid) ||
                    has_id(&config->principals[i].gids, gid) ||
                    has_group(&config->principals[i].gids, fd)) {
                        *ret_principal = hr_principal_ref(&principals->configured[i]);
                        return HR_OK;
                }
        return refuse(diag);
}

hr_status hr_principal_of_tcp(struct hr_principals *principals, struct hr_diag *diag,
                              struct hr_principal **ret_principal) {
        if (principals->config->principal_count > 0)
                return refuse(diag);
        return principal_without_section(principals, UINT32_MAX, diag, ret_principal);
}

/* 1 where two digests are equal, in constant time. */
static uint32_t digests_match(const uint8_t *a, const uint8_t *b) {
        volatile uint32_t difference = 0;

        for (size_t i = 0; i < HR_DIGEST_BYTES; i++)
                difference = difference | (uint32_t) (a[i] ^ b[i]);
        return (difference - 1) >> 31;
}

hr_status hr_principal_of_token(struct hr_principals *principals, const void *token,
                                size_t token_bytes, struct hr_diag *diag,
                                struct hr_principal **ret_principal) {
        const struct hr_config *config = principals->config;
        uint8_t digest[HR_DIGEST_BYTES];
        uint32_t found = UINT32_MAX;

        HR_TRY(hr_sha256(token, token_bytes, diag, digest));
        for (uint32_t i = 0; i < config->principal_count; i++) {
                const struct hr_config_principal *principal = &config->principals[i];
                uint32_t matches = digests_match(digest, principal->token_digest) &
                                   (uint32_t) principal->has_token;

                found = matches ? i : found;
        }
        explicit_bzero(digest, sizeof digest);
        if (found == UINT32_MAX)
                return refuse(diag);
        *ret_principal = hr_principal_ref(&principals->configured[found]);
        return HR_OK;
}

hr_status hr_principal_of_certificate(struct hr_principals *principals, const char *common_name,
                                      struct hr_diag *diag, struct hr_principal **ret_principal) {
        const struct hr_config *config = principals->config;

        for (uint32_t i = 0; i < config->principal_count; i++)
                if (config->principals[i].certificate &&
                    strcmp(config->principals[i].certificate, common_name) == 0) {
                        *ret_principal = hr_principal_ref(&principals->configured[i]);
                        return HR_OK;
                }
        return refuse(diag);
}

const struct hr_principal *hr_principals_next(const struct hr_principals *principals,
                                              const struct hr_principal *principal) {
        const struct hr_list *next = principal && !principal->config ? principal->link.next
                                                                     : principals->others.next;
        ptrdiff_t number = principal && principal->config ? principal - principals->configured : -1;

        if ((!principal || principal->config) &&
            number + 1 < (ptrdiff_t) principals->config->principal_count)
                return &principals->configured[number + 1];
        return next == &principals->others ? NULL
                                           : HR_CONTAINER_OF(next, struct hr_principal, link);
}

hr_status hr_principal_check(const struct hr_principal *principal, uint64_t permissions,
                             struct hr_diag *diag) {
        uint64_t missing = permissions & ~principal->permissions;

        if (!missing)
                return HR_OK;
        return hr_fail_reason(diag, HR_E_PERMISSION, NULL, "this needs the permission \"%s\"",
                              missing & HR_PERMIT_RUN    ? "run"
                              : missing & HR_PERMIT_LOAD ? "load"
                                                         : "admin");
}
