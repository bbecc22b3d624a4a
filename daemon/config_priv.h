/* The guts that config.c (files, overrides) and config_value.c (the table, values) share. */
#pragma once

#include "daemon/config.h"

enum section { SECTION_NONE, SECTION_DAEMON, SECTION_LISTEN, SECTION_MODELS, SECTION_LIMITS,
               SECTION_DEVICE, SECTION_COUNT };

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
        KIND_PATH,        /* char *, NULL when empty */
        KIND_OPS,         /* char *, names of ops, NULL when empty */
        KIND_TCP,         /* char * tcp and the parsed address */
        KIND_DIRECTORIES, /* the list of directories */
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
/* Stores a value. `object` is the configuration, or the device for keys of [device]. Directories
 * are appended. */
hr_status hr_config_set_value(const struct origin *origin, const struct key *key, const char *text,
                              struct hr_config *config, void *object);
/* Stores the defaults of [device], or of all other sections. */
hr_status hr_config_set_defaults(bool of_device, struct hr_config *config, void *object,
                                 struct hr_diag *diag);
void hr_config_clear_directories(struct hr_config *config);
