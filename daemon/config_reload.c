/*
 * A configuration read again while the daemon runs. Keys that only the loop looks at, each time
 * anew, may change, and so may principals, as a whole; whatever else differs is named and stays as
 * it was. Devices and sockets are made at the start.
 */
#include "daemon/config_priv.h"

#include <stdlib.h>
#include <string.h>

static const struct {
        enum section section;
        const char *name;
} live[] = {
        {SECTION_DAEMON, "log_level"},          {SECTION_DAEMON, "drain_timeout"},
        {SECTION_DAEMON, "session_grace"},      {SECTION_LIMITS, "connections"},
        {SECTION_LIMITS, "greetings"},          {SECTION_LIMITS, "connection_requests"},
        {SECTION_LIMITS, "session_runs"},       {SECTION_LIMITS, "hello_timeout"},
        {SECTION_LIMITS, "refusal_delay"},      {SECTION_LIMITS, "progress_timeout"},
        {SECTION_LIMITS, "output_timeout"},     {SECTION_LIMITS, "tap_timeout"},
        {SECTION_LIMITS, "principal_misses"},   {SECTION_LIMITS, "principal_cancels"},
        {SECTION_DAEMON, "memory_look"},        {SECTION_DAEMON, "memory_stall"},
        {SECTION_DAEMON, "memory_idle"},
        {SECTION_DAEMON, "revocation"},         {SECTION_TLS, "certificate"},
        {SECTION_TLS, "key"},                   {SECTION_TLS, "client_ca"},
};

static bool is_live(const struct key *key) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(live); i++)
                if (live[i].section == key->section && strcmp(live[i].name, key->name) == 0)
                        return true;
        return false;
}

/* A value as a file says it; freed by the caller, NULL without memory. */
static char *value_text(const struct key *key, const struct hr_config *config, const void *object) {
        char *text = NULL;
        size_t bytes = 0;
        FILE *stream = open_memstream(&text, &bytes);

        if (!stream)
                return NULL;
        hr_config_dump_value(key, config, object, stream);
        if (fclose(stream) != 0) {
                free(text);
                return NULL;
        }
        return text;
}

static hr_status values_differ(const struct key *key, const struct hr_config *a,
                               const void *a_object, const struct hr_config *b,
                               const void *b_object, struct hr_diag *diag, bool *ret_differ) {
        char *one = value_text(key, a, a_object), *other = value_text(key, b, b_object);
        hr_status status = one && other ? HR_OK
                                        : hr_fail(diag, HR_E_EXHAUSTED,
                                                  "no memory to compare configurations");

        if (status == HR_OK)
                *ret_differ = strcmp(one, other) != 0;
        free(one);
        free(other);
        return status;
}

static void note(char *words, const char *section, const char *name, const char *key) {
        size_t used = strlen(words);
        size_t room = HR_CONFIG_CHANGES_BYTES - used;

        (void) snprintf(words + used, room, "%s%s%s%s%s%s", used ? ", " : "", section,
                        name ? "." : "", name ? name : "", key ? "." : "", key ? key : "");
}

static void take_over(const struct key *key, struct hr_config *config, struct hr_config *fresh) {
        void *to = (char *) config + key->offset;
        void *from = (char *) fresh + key->offset;
        char *path;

        switch (key->kind) {
        case KIND_LEVEL:
                *(hr_log_level *) to = *(const hr_log_level *) from;
                break;
        case KIND_CHOICE: /* words that live for ever */
                *(const char **) to = *(const char *const *) from;
                break;
        case KIND_PATH:
                path = *(char **) to;
                *(char **) to = *(char **) from;
                *(char **) from = path;
                break;
        default:
                HR_ASSERT(key->kind == KIND_COUNT || key->kind == KIND_DURATION);
                *(uint64_t *) to = *(const uint64_t *) from;
        }
}

/* Keys of a section of which there is one. */
static hr_status reload_section(enum section section, struct hr_config *config,
                                struct hr_config *fresh, struct hr_diag *diag,
                                struct hr_config_changes *changes) {
        for (size_t i = 0; i < hr_config_key_count; i++) {
                const struct key *key = &hr_config_keys[i];
                bool differ = false;

                if (key->section != section)
                        continue;
                HR_TRY(values_differ(key, config, config, fresh, fresh, diag, &differ));
                if (!differ)
                        continue;
                if (is_live(key))
                        take_over(key, config, fresh);
                note(is_live(key) ? changes->applied : changes->kept, hr_config_sections[section],
                     NULL, key->name);
        }
        return HR_OK;
}

/* A section that one has and the other has not, or keys of one that both have. */
static hr_status compare_named(enum section section, const char *name,
                               const struct hr_config *config, const void *mine,
                               const struct hr_config *fresh, const void *theirs,
                               struct hr_diag *diag, char *words) {
        if (!mine || !theirs) {
                note(words, hr_config_sections[section], name, NULL);
                return HR_OK;
        }
        for (size_t i = 0; i < hr_config_key_count; i++) {
                const struct key *key = &hr_config_keys[i];
                bool differ = false;

                if (key->section != section)
                        continue;
                HR_TRY(values_differ(key, config, mine, fresh, theirs, diag, &differ));
                if (differ)
                        note(words, hr_config_sections[section], name, key->name);
        }
        return HR_OK;
}

/* Their order counts: it is their priority. */
static hr_status compare_devices(const struct hr_config *config, const struct hr_config *fresh,
                                 struct hr_diag *diag, char *words) {
        for (uint32_t i = 0; i < HR_MAX(config->device_count, fresh->device_count); i++) {
                const struct hr_config_device *mine =
                        i < config->device_count ? &config->devices[i] : NULL;
                const struct hr_config_device *theirs =
                        i < fresh->device_count ? &fresh->devices[i] : NULL;
                const char *name = mine ? mine->name : theirs->name;

                if (mine && theirs && strcmp(mine->name, theirs->name) != 0)
                        theirs = NULL;
                HR_TRY(compare_named(SECTION_DEVICE, name, config, mine, fresh, theirs, diag,
                                     words));
        }
        return HR_OK;
}

static const struct hr_config_principal *find_principal(const struct hr_config *config,
                                                        const char *name) {
        for (uint32_t i = 0; i < config->principal_count; i++)
                if (strcmp(config->principals[i].name, name) == 0)
                        return &config->principals[i];
        return NULL;
}

/* By their names; an order that has changed is no change. */
static hr_status compare_principals(const struct hr_config *config, const struct hr_config *fresh,
                                    struct hr_diag *diag, char *words) {
        for (uint32_t i = 0; i < config->principal_count; i++) {
                const struct hr_config_principal *mine = &config->principals[i];

                HR_TRY(compare_named(SECTION_PRINCIPAL, mine->name, config, mine, fresh,
                                     find_principal(fresh, mine->name), diag, words));
        }
        for (uint32_t i = 0; i < fresh->principal_count; i++)
                if (!find_principal(config, fresh->principals[i].name))
                        note(words, hr_config_sections[SECTION_PRINCIPAL],
                             fresh->principals[i].name, NULL);
        return HR_OK;
}

static void take_over_principals(struct hr_config *config, struct hr_config *fresh) {
        struct hr_config_principal *principals = config->principals;
        uint32_t count = config->principal_count;

        config->principals = fresh->principals;
        config->principal_count = fresh->principal_count;
        fresh->principals = principals;
        fresh->principal_count = count;
}

hr_status hr_config_reload(struct hr_config *config, struct hr_config *fresh,
                           struct hr_diag *diag, struct hr_config_changes *ret_changes) {
        struct hr_config_changes changes = {0};

        for (enum section i = SECTION_DAEMON; i < SECTION_DEVICE; i++)
                HR_TRY(reload_section(i, config, fresh, diag, &changes));
        HR_TRY(compare_devices(config, fresh, diag, changes.kept));
        HR_TRY(compare_principals(config, fresh, diag, changes.applied));
        take_over_principals(config, fresh);
        *ret_changes = changes;
        return HR_OK;
}
