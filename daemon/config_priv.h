/* The guts that config.c (files, overrides) and config_value.c (the table, values) share. */
#pragma once

#include "daemon/config.h"

/* From SECTION_DEVICE on there may be many, each with a name. */
enum section { SECTION_NONE, SECTION_DAEMON, SECTION_LISTEN, SECTION_TLS, SECTION_MODELS,
               SECTION_LIMITS, SECTION_DEVICE, SECTION_PRINCIPAL, SECTION_COUNT };

/* "daemon"...; indexed by section. */
extern const char *const hr_config_sections[SECTION_COUNT];

enum kind {
        KIND_COUNT,       /* uint64_t, decimal */
        KIND_SIZE,        /* uint64_t, bytes with K M G T */
        KIND_DURATION,    /* uint64_t, ns, written with us ms s */
        KIND_MODE,        /* uint64_t, octal */
        KIND_BOOL,        /* bool */
        KIND_MEMORY,      /* bool: shared or isolated */
        KIND_LEVEL,       /* hr_log_level */
        KIND_CHOICE,      /* const char *, one of choices */
        KIND_FLAGS,       /* uint64_t, a bit per choice, with commas */
        KIND_PATH,        /* char *, NULL when empty */
        KIND_OPS,         /* char *, names of ops, NULL when empty */
        KIND_ADDRESS,     /* struct hr_address */
        KIND_DIRECTORIES, /* the list of directories */
        KIND_USERS,       /* struct hr_id_list: names or numbers, with commas */
        KIND_GROUPS,      /* likewise */
        KIND_PERMISSIONS, /* uint64_t: run load admin, with commas */
        KIND_TOKEN,       /* has_token and token_digest of the principal: 64 hexadecimal digits */
        KIND_NAME,        /* char *, NULL when empty; plain text */
};

struct key {
        enum section section;
        const char *name;
        enum kind kind;
        size_t offset;
        uint64_t fallback, low, high;
        const char *text_fallback;
        const char *const *choices; /* NULL-terminated */
};

/* One row per key; rows of a section follow each other. */
extern const struct key hr_config_keys[];
extern const uint32_t hr_config_key_count;

/* Where a value comes from, for messages. */
struct origin {
        const char *label; /* file, or "--set" */
        uint32_t line;     /* 0 where there are no lines */
        struct hr_diag *diag;
};

/* Words of a failure, with label, line and key (NULL = none in particular). HR_E_INVALID. */
HR_PRINTF(3, 4)
hr_status hr_config_fail(const struct origin *origin, const struct key *key, const char *format,
                         ...);
/* Index of a key of that section, or -1. */
int64_t hr_config_find_key(enum section section, const char *name);
/* Stores a value. `object` is the configuration, or the device or principal for keys of those.
 * Directories are appended. */
hr_status hr_config_set_value(const struct origin *origin, const struct key *key, const char *text,
                              struct hr_config *config, void *object);
/* Stores the defaults of one section. */
hr_status hr_config_set_defaults(enum section section, struct hr_config *config, void *object,
                                 struct hr_diag *diag);
/* A value as a file says it. */
void hr_config_dump_value(const struct key *key, const struct hr_config *config,
                          const void *object, FILE *stream);
void hr_config_clear_directories(struct hr_config *config);

/* Values of who may come in (config_access.c), parsed and as a file says them. */
hr_status hr_config_set_string(const struct origin *origin, const struct key *key, const char *text,
                               char **field);
hr_status hr_config_set_access(const struct origin *origin, const struct key *key, const char *text,
                               void *object);
void hr_config_dump_access(const struct key *key, const void *object, FILE *stream);
/* What concerns listeners, certificates and principals together. */
hr_status hr_config_check_access(const struct origin *origin, const struct hr_config *config);
void hr_config_clear_principal(struct hr_config_principal *principal);
