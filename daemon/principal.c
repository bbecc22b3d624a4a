/*
 * The table of principals.
 *
 * Tokens are compared as SHA-256 digests, all of them, without leaving early: the time says neither
 * whether a token is right nor how much of it. The token itself, and its digest, are wiped by
 * whoever received it.
 */
#include "daemon/principal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "daemon/stream.h"

#define GROUPS_MAX 1024

struct hr_principals {
        const struct hr_config *config;
        struct hr_share *devices;
        struct hr_account account;      /* what all of them hold together */
        struct hr_list all;
        struct hr_principal **sections; /* referenced: one for each section, in order */
        uint32_t section_count;
        uint64_t next_id;
};

struct hr_principals_change {
        struct hr_principal **sections; /* `made` ones are not in the table yet */
        uint64_t *permissions, *weights;
        bool *made;
        uint32_t section_count;
};

const struct hr_account *hr_principals_account(const struct hr_principals *principals) {
        return &principals->account;
}

/* ---- one principal --------------------------------------------------------------------------- */

/* Not in the table's list yet. */
static hr_status principal_new(const struct hr_principals *principals, const char *name,
                               uint64_t weight, struct hr_diag *diag,
                               struct hr_principal **ret_principal) {
        struct hr_principal *made = calloc(1, sizeof *made);
        hr_status status;

        if (!made)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a principal");
        made->refs = 1;
        made->uid = UINT32_MAX;
        (void) snprintf(made->name, sizeof made->name, "%s", name);
        status = hr_share_init(&made->share, principals->devices, weight,
                               principals->devices->device_count, diag);
        if (status != HR_OK) {
                free(made);
                return status;
        }
        *ret_principal = made;
        return HR_OK;
}

static void principal_enter(struct hr_principals *principals, struct hr_principal *principal) {
        principal->table = principals;
        principal->id = principals->next_id++;
        hr_account_init(&principal->account, &principals->account, "principal_device_bytes",
                        principals->config->limits.principal_device_bytes);
        hr_list_append(&principals->all, &principal->link);
}

static void principal_free(struct hr_principal *principal) {
        hr_share_deinit(&principal->share);
        free(principal);
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
        HR_ASSERT(!principal->has_section);
        hr_list_remove(&principal->link);
        principal_free(principal);
        return NULL;
}

/* ---- the table ------------------------------------------------------------------------------- */

void hr_principals_discard(struct hr_principals_change *change) {
        if (!change)
                return;
        for (uint32_t i = 0; change->made && i < change->section_count; i++)
                if (change->made[i])
                        principal_free(change->sections[i]);
        free(change->sections);
        free(change->permissions);
        free(change->weights);
        free(change->made);
        free(change);
}

static struct hr_principal *find_section(const struct hr_principals *principals, const char *name) {
        for (uint32_t i = 0; i < principals->section_count; i++)
                if (strcmp(principals->sections[i]->name, name) == 0)
                        return principals->sections[i];
        return NULL;
}

static hr_status change_fill(const struct hr_principals *principals, const struct hr_config *fresh,
                             struct hr_diag *diag, struct hr_principals_change *change) {
        uint32_t room = HR_MAX(fresh->principal_count, 1U);

        change->sections = calloc(room, sizeof *change->sections);
        change->permissions = calloc(room, sizeof *change->permissions);
        change->weights = calloc(room, sizeof *change->weights);
        change->made = calloc(room, sizeof *change->made);
        if (!change->sections || !change->permissions || !change->weights || !change->made)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for principals");
        for (uint32_t i = 0; i < fresh->principal_count; i++) {
                const struct hr_config_principal *section = &fresh->principals[i];

                change->sections[i] = find_section(principals, section->name);
                change->permissions[i] = section->permissions;
                change->weights[i] = section->weight;
                if (!change->sections[i]) {
                        HR_TRY(principal_new(principals, section->name, section->weight, diag,
                                             &change->sections[i]));
                        change->made[i] = true;
                }
                change->section_count++;
        }
        return HR_OK;
}

hr_status hr_principals_prepare(const struct hr_principals *principals,
                                const struct hr_config *fresh, struct hr_diag *diag,
                                struct hr_principals_change **ret_change) {
        struct hr_principals_change *change = calloc(1, sizeof *change);
        hr_status status;

        if (!change)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for principals");
        status = change_fill(principals, fresh, diag, change);
        if (status != HR_OK) {
                hr_principals_discard(change);
                return status;
        }
        *ret_change = change;
        return HR_OK;
}

static bool is_among(const struct hr_principals_change *change,
                     const struct hr_principal *principal) {
        for (uint32_t i = 0; i < change->section_count; i++)
                if (change->sections[i] == principal)
                        return true;
        return false;
}

/* Its name may be somebody else's soon: figures show it under another. */
static void revoke(struct hr_principal *principal) {
        if (principal->is_revoked)
                return;
        principal->is_revoked = true;
        hr_log(HR_LOG_NOTICE, "principal", "revoked name=\"%s\" shown_as=\"revoked %" PRIu64 "\"",
               principal->name, principal->id);
        (void) snprintf(principal->name, sizeof principal->name, "revoked %" PRIu64,
                        principal->id);
}

/* The table's references of those whose sections have gone. */
static void revoke_others(struct hr_principals *principals,
                          const struct hr_principals_change *change) {
        HR_LIST_FOR_EACH(link, &principals->all) {
                struct hr_principal *principal = HR_CONTAINER_OF(link, struct hr_principal, link);

                if (!principal->has_section && change->section_count > 0)
                        revoke(principal);
        }
        for (uint32_t i = 0; i < principals->section_count; i++) {
                struct hr_principal *principal = principals->sections[i];

                if (is_among(change, principal))
                        continue;
                revoke(principal);
                principal->has_section = false;
                (void) hr_principal_unref(principal);
        }
}

void hr_principals_commit(struct hr_principals *principals, struct hr_principals_change *change) {
        HR_ASSERT(change->section_count == principals->config->principal_count);
        revoke_others(principals, change);
        for (uint32_t i = 0; i < change->section_count; i++) {
                struct hr_principal *principal = change->sections[i];

                if (change->made[i])
                        principal_enter(principals, principal);
                change->made[i] = false;
                principal->has_section = true;
                principal->permissions = change->permissions[i];
                hr_share_set_weight(&principal->share, change->weights[i]);
        }
        free(principals->sections);
        principals->sections = HR_STEAL(change->sections);
        principals->section_count = change->section_count;
        hr_principals_discard(change);
}

HR_DEFINE_CLEANUP(struct hr_principals *, hr_principals_freep, hr_principals_free)

hr_status hr_principals_new(const struct hr_config *config, struct hr_share *devices,
                            struct hr_diag *diag, struct hr_principals **ret_principals) {
        HR_CLEANUP(hr_principals_freep)
        struct hr_principals *principals = calloc(1, sizeof *principals);
        struct hr_principals_change *change;

        if (!principals)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for principals");
        hr_list_init(&principals->all);
        principals->config = config;
        principals->devices = devices;
        hr_account_init(&principals->account, NULL, "devices", UINT64_MAX);
        HR_TRY(hr_principals_prepare(principals, config, diag, &change));
        hr_principals_commit(principals, change);
        *ret_principals = HR_STEAL(principals);
        return HR_OK;
}

struct hr_principals *hr_principals_free(struct hr_principals *principals) {
        if (!principals)
                return NULL;
        for (uint32_t i = 0; i < principals->section_count; i++) {
                HR_ASSERT(principals->sections[i]->refs == 1);
                principals->sections[i]->has_section = false;
                (void) hr_principal_unref(principals->sections[i]);
        }
        HR_ASSERT(hr_list_is_empty(&principals->all));
        free(principals->sections);
        free(principals);
        return NULL;
}

/* One without a section, made when its first peer comes. */
static hr_status principal_without_section(struct hr_principals *principals, uint32_t uid,
                                           struct hr_diag *diag,
                                           struct hr_principal **ret_principal) {
        struct hr_principal *made = NULL;
        char name[HR_DEVICE_NAME_BYTES_MAX + 1] = "local";

        HR_LIST_FOR_EACH(link, &principals->all) {
                struct hr_principal *other = HR_CONTAINER_OF(link, struct hr_principal, link);

                if (other->uid == uid && !other->has_section && !other->is_revoked) {
                        *ret_principal = hr_principal_ref(other);
                        return HR_OK;
                }
        }
        if (uid != UINT32_MAX)
                (void) snprintf(name, sizeof name, "uid %u", uid);
        HR_TRY(principal_new(principals, name, HR_SHARE_WEIGHT, diag, &made));
        made->uid = uid;
        made->permissions = HR_PERMIT_ALL;
        principal_enter(principals, made);
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
                return hr_fail(diag, HR_E_UNAUTHENTICATED,
                               "the system does not say who the peer is");
        if (config->principal_count == 0)
                return principal_without_section(principals, uid, diag, ret_principal);
        for (uint32_t i = 0; i < config->principal_count; i++)
                if (has_id(&config->principals[i].uids, uid) ||
                    has_id(&config->principals[i].gids, gid) ||
                    has_group(&config->principals[i].gids, fd)) {
                        *ret_principal = hr_principal_ref(principals->sections[i]);
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

        for (size_t i = 0; i < HR_TOKEN_DIGEST_BYTES; i++)
                difference = difference | (uint32_t) (a[i] ^ b[i]);
        return (difference - 1) >> 31;
}

hr_status hr_principal_of_token(struct hr_principals *principals,
                                const uint8_t digest[HR_TOKEN_DIGEST_BYTES], struct hr_diag *diag,
                                struct hr_principal **ret_principal) {
        const struct hr_config *config = principals->config;
        uint32_t found = UINT32_MAX;

        for (uint32_t i = 0; i < config->principal_count; i++) {
                const struct hr_config_principal *principal = &config->principals[i];
                uint32_t matches = digests_match(digest, principal->token_digest) &
                                   (uint32_t) principal->has_token;

                found = matches ? i : found;
        }
        if (found == UINT32_MAX)
                return refuse(diag);
        *ret_principal = hr_principal_ref(principals->sections[found]);
        return HR_OK;
}

hr_status hr_principal_of_certificate(struct hr_principals *principals, const char *common_name,
                                      struct hr_diag *diag, struct hr_principal **ret_principal) {
        const struct hr_config *config = principals->config;

        for (uint32_t i = 0; i < config->principal_count; i++)
                if (config->principals[i].certificate &&
                    strcmp(config->principals[i].certificate, common_name) == 0) {
                        *ret_principal = hr_principal_ref(principals->sections[i]);
                        return HR_OK;
                }
        return refuse(diag);
}

const struct hr_principal *hr_principals_next(const struct hr_principals *principals,
                                              const struct hr_principal *principal) {
        const struct hr_list *next = principal ? principal->link.next : principals->all.next;

        return next == &principals->all ? NULL : HR_CONTAINER_OF(next, struct hr_principal, link);
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
