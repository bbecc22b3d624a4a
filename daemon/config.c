/*
 * Configuration files and overrides.
 *
 * inih splits lines into keys and values. The reader that feeds it sees every line first: it counts
 * them, refuses what inih would accept quietly (continuation lines, lines cut at its buffer's end),
 * and notices section headers, which inih does not report. The first failure stops the reading.
 */
#include "daemon/config_priv.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "backends/registry.h"

#define KEYS_MAX 128 /* rows of the table, at most */

/* What a file has said so far; the next file, or an override, may say it again. */
struct hr_config_given {
        bool sections[SECTION_COUNT];
        bool file_keys[KEYS_MAX]; /* of the one-of-a-kind sections */
        bool other_directories; /* what is told next is another list */
        bool is_finished;
};

/* ---- Sections ---------------------------------------------------------------------------------
 * */

/* Sections of which there are many: "device NAME" in a file, "device.NAME" in an override. */
static enum section find_named_section(const char *text, char separator, const char **ret_name) {
        for (enum section i = SECTION_DEVICE; i < SECTION_COUNT; i++) {
                const size_t bytes = strlen(hr_config_sections[i]);

                if (strncmp(text, hr_config_sections[i], bytes) == 0 && text[bytes] == separator) {
                        *ret_name = text + bytes + 1;
                        return i;
                }
        }
        return SECTION_NONE;
}

static enum section find_section(const char *name) {
        for (enum section i = SECTION_DAEMON; i < SECTION_DEVICE; i++)
                if (strcmp(hr_config_sections[i], name) == 0)
                        return i;
        return SECTION_NONE;
}

/* A device or principal by its name; NULL when there is none. Index: its number. */
static void *find_named(const struct hr_config *config, enum section section, const char *name) {
        if (section == SECTION_DEVICE)
                for (uint32_t i = 0; i < config->device_count; i++)
                        if (strcmp(config->devices[i].name, name) == 0)
                                return &config->devices[i];
        if (section == SECTION_PRINCIPAL)
                for (uint32_t i = 0; i < config->principal_count; i++)
                        if (strcmp(config->principals[i].name, name) == 0)
                                return &config->principals[i];
        return NULL;
}

static bool name_is_valid(const char *name) {
        const size_t bytes = strlen(name);

        return bytes >= 1 && bytes <= HR_DEVICE_NAME_BYTES_MAX && strcmp(name, "fit") != 0 &&
               strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") ==
                       bytes;
}

/* Room for one more of `size` bytes, zero-filled; the name is the first member of each. */
static void *grow(void **array, uint32_t *count, size_t size, const char *name) {
        char *grown = reallocarray(*array, *count + 1, size), *copy;

        if (!grown)
                return NULL;
        *array = grown;
        grown += *count * size;
        memset(grown, 0, size);
        copy = strdup(name);
        if (!copy)
                return NULL;
        memcpy(grown, &copy, sizeof copy);
        ++*count;
        return grown;
}

static hr_status add_named(const struct origin *origin, struct hr_config *config,
                           enum section section, const char *name, void **ret_object) {
        void *devices = config->devices, *principals = config->principals, *made;

        if (!name_is_valid(name))
                return hr_config_fail(origin, NULL,
                                      "'%.40s' is no %s name (1 to %d of letters, "
                                      "digits, _ and -; not 'fit')",
                                      name, hr_config_sections[section], HR_DEVICE_NAME_BYTES_MAX);
        if (section == SECTION_DEVICE)
                made = grow(&devices, &config->device_count, sizeof *config->devices, name);
        else
                made = grow(&principals, &config->principal_count, sizeof *config->principals,
                            name);
        config->devices = devices;
        config->principals = principals;
        if (!made)
                return hr_fail(origin->diag, HR_E_EXHAUSTED, "%s %s", hr_config_sections[section],
                               name);
        *ret_object = made;
        return hr_config_set_defaults(section, config, made, origin->diag);
}

/* ---- The file -------------------------------------------------------------------------------- */

struct reader {
        struct hr_config *config;
        struct origin origin;
        const char *next, *end;
        enum section section; /* open */
        void *object;         /* what the open section is about */
        hr_status status;
};

static bool *opened_of(enum section section, void *object) {
        return section == SECTION_DEVICE ? &((struct hr_config_device *) object)->is_opened
                                         : &((struct hr_config_principal *) object)->is_opened;
}

/* A section of which there are many: a new one, or one that an earlier file began. */
static hr_status open_named(struct reader *reader, const char *name) {
        const enum section section = reader->section;
        void *object = find_named(reader->config, section, name);

        if (object && *opened_of(section, object))
                return hr_config_fail(&reader->origin, NULL, "second section [%s %s]",
                                      hr_config_sections[section], name);
        if (!object)
                HR_TRY(add_named(&reader->origin, reader->config, section, name, &object));
        *opened_of(section, object) = true;
        reader->object = object;
        return HR_OK;
}

/* A header line: opens the section. `line` begins with '['. */
static hr_status open_section(struct reader *reader, const char *line) {
        const char *object_name = "";
        char name[96];
        const char *close = strchr(line, ']');
        const char *after = close ? close + 1 + strspn(close + 1, " \t\r\n") : "";

        if (!close || (*after != '\0' && *after != ';' && *after != '#') ||
            (size_t) (close - line) > sizeof name)
                return hr_config_fail(&reader->origin, NULL, "a section header is [NAME] alone");
        snprintf(name, sizeof name, "%.*s", (int) (close - line - 1), line + 1);
        reader->section = find_named_section(name, ' ', &object_name);
        if (reader->section != SECTION_NONE) {
                return open_named(reader, object_name + strspn(object_name, " "));
        }
        reader->object = reader->config;
        reader->section = find_section(name);
        if (reader->section == SECTION_NONE)
                return hr_config_fail(&reader->origin, NULL, "unknown section [%s]", name);
        if (reader->config->given->sections[reader->section])
                return hr_config_fail(&reader->origin, NULL, "second section [%s]", name);
        reader->config->given->sections[reader->section] = true;
        return HR_OK;
}

/* Takes the next line into inih's buffer of `size` bytes. */
static hr_status read_line(struct reader *reader, char *buffer, size_t size) {
        const size_t left = (size_t) (reader->end - reader->next);
        const char *newline = memchr(reader->next, '\n', left);
        const size_t bytes = newline ? (size_t) (newline + 1 - reader->next) : left;

        reader->origin.line++;
        if (bytes + 1 > size)
                return hr_config_fail(&reader->origin, NULL, "line of more than %zu bytes",
                                      size - 1);
        if (memchr(reader->next, '\0', bytes))
                return hr_config_fail(&reader->origin, NULL, "zero byte in the line");
        memcpy(buffer, reader->next, bytes);
        buffer[bytes] = '\0';
        reader->next += bytes;
        if ((*buffer == ' ' || *buffer == '\t') && buffer[strspn(buffer, " \t\r\n")] != '\0')
                return hr_config_fail(&reader->origin, NULL,
                                      "line begins with a space (a value has "
                                      "one line)");
        return *buffer == '[' ? open_section(reader, buffer) : HR_OK;
}

static char *reader_line(char *buffer, int size, void *stream) {
        struct reader *reader = stream;

        if (reader->status != HR_OK || reader->next == reader->end || size <= 1)
                return NULL;
        reader->status = read_line(reader, buffer, (size_t) size);
        return reader->status == HR_OK ? buffer : NULL;
}

/* A file's list, or that of the overrides, is a list of its own: it does not go on with the one
 * before it. */
static void list_begin(struct hr_config *config) {
        if (config->given->other_directories)
                hr_config_clear_directories(config);
        config->given->other_directories = false;
}

static hr_status take_pair(struct reader *reader, const char *name, const char *value) {
        struct hr_config *config = reader->config;
        bool *given;
        int64_t index;

        if (reader->section == SECTION_NONE)
                return hr_config_fail(&reader->origin, NULL, "key '%.40s' before any section",
                                      name);
        index = hr_config_find_key(reader->section, name);
        if (index < 0)
                return hr_config_fail(&reader->origin, NULL, "unknown key '%.40s' in [%s]", name,
                                      hr_config_sections[reader->section]);
        given = &config->given->file_keys[index];
        if (reader->section == SECTION_DEVICE)
                given = &((struct hr_config_device *) reader->object)
                                 ->given[index - hr_config_find_key(SECTION_DEVICE, "backend")];
        if (reader->section == SECTION_PRINCIPAL)
                given = &((struct hr_config_principal *) reader->object)
                                 ->given[index - hr_config_find_key(SECTION_PRINCIPAL, "uid")];
        if (*given && hr_config_keys[index].kind != KIND_DIRECTORIES)
                return hr_config_fail(&reader->origin, &hr_config_keys[index], "given twice");
        *given = true;
        if (hr_config_keys[index].kind == KIND_DIRECTORIES)
                list_begin(config);
        return hr_config_set_value(&reader->origin, &hr_config_keys[index], value, config,
                                   reader->object);
}

static int reader_pair(void *user, const char *section, const char *name, const char *value) {
        struct reader *reader = user;

        if (reader->status == HR_OK)
                reader->status = take_pair(reader, name, value);
        return reader->status == HR_OK;
}

/* Each file is checked by itself for what is said twice. */
static void forget_given(struct hr_config *config) {
        memset(config->given->sections, 0, sizeof config->given->sections);
        memset(config->given->file_keys, 0, sizeof config->given->file_keys);
        for (uint32_t i = 0; i < config->device_count; i++) {
                config->devices[i].is_opened = false;
                memset(config->devices[i].given, 0, sizeof config->devices[i].given);
        }
        for (uint32_t i = 0; i < config->principal_count; i++) {
                config->principals[i].is_opened = false;
                memset(config->principals[i].given, 0, sizeof config->principals[i].given);
        }
}

hr_status hr_config_read_text(struct hr_config *config, const char *label, const char *text,
                              size_t text_bytes, struct hr_diag *diag) {
        struct reader reader = {.config = config,
                                .origin = {.label = label, .diag = diag},
                                .next = text,
                                .end = text + text_bytes};
        int bad_line;

        HR_ASSERT(config->given && hr_config_key_count <= KEYS_MAX);
        forget_given(config);
        bad_line = ini_parse_stream(reader_line, &reader, reader_pair, &reader);
        HR_TRY(reader.status);
        if (bad_line != 0) {
                reader.origin.line = bad_line > 0 ? (uint32_t) bad_line : 0;
                return hr_config_fail(&reader.origin, NULL, "neither [SECTION] nor KEY = VALUE");
        }
        config->given->other_directories = true;
        return HR_OK;
}

#define FILE_BYTES_MAX (1U << 20)

hr_status hr_config_read_file(struct hr_config *config, const char *path, struct hr_diag *diag) {
        FILE *file = fopen(path, "re");
        char *text = malloc(FILE_BYTES_MAX + 1);
        hr_status status;
        size_t bytes = 0;
        bool bad = !file;

        if (file && text) {
                bytes = fread(text, 1, FILE_BYTES_MAX + 1, file);
                bad = ferror(file) != 0;
        }
        if (bad)
                status = hr_fail(diag, HR_E_NOT_FOUND, "%.200s: %m", path);
        else if (!text)
                status = hr_fail(diag, HR_E_EXHAUSTED, "configuration text");
        else if (bytes > FILE_BYTES_MAX)
                status = hr_fail_reason(diag, HR_E_INVALID, "CONFIG",
                                        "%.200s: larger than %u bytes", path, FILE_BYTES_MAX);
        else
                status = hr_config_read_text(config, path, text, bytes, diag);
        free(text);
        if (file)
                (void) fclose(file);
        return status;
}

static int is_fragment(const struct dirent *entry) {
        const size_t bytes = strlen(entry->d_name);

        return entry->d_name[0] != '.' && bytes > 5 &&
               strcmp(entry->d_name + bytes - 5, ".conf") == 0;
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

hr_status hr_config_read_fragments(struct hr_config *config, const char *path,
                                   struct hr_diag *diag) {
        struct dirent **entries = NULL;
        char folder[PATH_MAX], file[PATH_MAX];
        hr_status status = HR_OK;
        int count;

        if ((size_t) snprintf(folder, sizeof folder, "%s.d", path) >= sizeof folder)
                return hr_fail(diag, HR_E_NOT_FOUND, "a path of more than %d bytes", PATH_MAX);
        count = scandir(folder, &entries, is_fragment, by_bytes);
        if (count < 0)
                return errno == ENOENT ? HR_OK
                                       : hr_fail(diag, HR_E_NOT_FOUND, "%.200s: %m", folder);
        for (int i = 0; i < count && status == HR_OK; i++) {
                if ((size_t) snprintf(file, sizeof file, "%s/%s", folder, entries[i]->d_name) >=
                    sizeof file)
                        status = hr_fail(diag, HR_E_NOT_FOUND, "a path of more than %d bytes",
                                         PATH_MAX);
                else
                        status = hr_config_read_file(config, file, diag);
        }
        for (int i = 0; i < count; i++)
                free(entries[i]);
        free(entries);
        return status;
}

/* ---- Overrides ------------------------------------------------------------------------------- */

static hr_status set_override(struct hr_config *config, const struct origin *origin, char *section,
                              const char *name, const char *value) {
        const char *object_name = "";
        enum section number = find_named_section(section, '.', &object_name);
        void *object = config;
        int64_t index;

        if (number == SECTION_NONE)
                number = find_section(section);
        index = hr_config_find_key(number, name);
        if (number == SECTION_NONE || index < 0)
                return hr_config_fail(origin, NULL, "unknown key '%.40s.%.40s'", section, name);
        if (number >= SECTION_DEVICE) {
                object = find_named(config, number, object_name);
                if (!object)
                        HR_TRY(add_named(origin, config, number, object_name, &object));
        }
        if (hr_config_keys[index].kind == KIND_DIRECTORIES)
                list_begin(config);
        return hr_config_set_value(origin, &hr_config_keys[index], value, config, object);
}

static void trim_end(char *text) {
        size_t bytes = strlen(text);

        while (bytes > 0 && isspace((unsigned char) text[bytes - 1]))
                text[--bytes] = '\0';
}

hr_status hr_config_set(struct hr_config *config, const char *assignment, struct hr_diag *diag) {
        const struct origin origin = {.label = "--set", .diag = diag};
        char *copy = strdup(assignment);
        char *equals, *dot = NULL, *value;
        hr_status status;

        HR_ASSERT(config->given);
        if (!copy)
                return hr_fail(diag, HR_E_EXHAUSTED, "override");
        equals = strchr(copy, '=');
        if (equals) {
                *equals = '\0';
                trim_end(copy);
                dot = strrchr(copy, '.');
        }
        if (dot) {
                *dot = '\0';
                value = equals + 1 + strspn(equals + 1, " \t");
                trim_end(value);
                status = set_override(config, &origin, copy, dot + 1, value);
        } else {
                status = hr_config_fail(&origin, NULL, "'%.80s' is not SECTION.KEY=VALUE",
                                        assignment);
        }
        free(copy);
        return status;
}

/* ---- The whole ------------------------------------------------------------------------------- */

hr_status hr_config_init(struct hr_config *config, struct hr_diag *diag) {
        hr_status status = HR_OK;

        *config = (struct hr_config){.given = calloc(1, sizeof *config->given)};
        if (!config->given)
                return hr_fail(diag, HR_E_EXHAUSTED, "configuration");
        for (enum section i = SECTION_DAEMON; i < SECTION_DEVICE && status == HR_OK; i++)
                status = hr_config_set_defaults(i, config, config, diag);
        if (status != HR_OK)
                hr_config_deinit(config);
        return status;
}

void hr_config_deinit(struct hr_config *config) {
        for (uint32_t i = 0; i < config->device_count; i++) {
                free(config->devices[i].name);
                free(config->devices[i].deny_ops);
        }
        free(config->devices);
        for (uint32_t i = 0; i < config->principal_count; i++)
                hr_config_clear_principal(&config->principals[i]);
        free(config->principals);
        hr_config_clear_directories(config);
        free(config->unix_path);
        free(config->metrics.text);
        free(config->tcp.text);
        free(config->tls.text);
        free(config->cache_directory);
        free(config->memory_pressure);
        free(config->tls_certificate);
        free(config->tls_key);
        free(config->tls_client_ca);
        free(config->given);
        *config = (struct hr_config){0};
}

/* Without a list of devices: the GPUs that can be used, then the processor. */
static hr_status find_devices(const struct origin *origin, struct hr_config *config) {
        uint32_t gpus = 0;
        void *made;

        config->devices_are_found = true;
        if (hr_backend_gpu_count(NULL, &gpus) != HR_OK)
                gpus = 0;
        for (uint32_t gpu = 0; gpu < gpus; gpu++) {
                struct hr_config_device *device;
                char name[16];

                if (!hr_backend_gpu_is_usable(gpu))
                        continue;
                snprintf(name, sizeof name, "cuda%" PRIu32, gpu);
                HR_TRY(add_named(origin, config, SECTION_DEVICE, name, &made));
                device = made;
                device->backend = "cuda";
                device->gpu = gpu;
        }
        return add_named(origin, config, SECTION_DEVICE, "cpu0", &made);
}

hr_status hr_config_finish(struct hr_config *config, struct hr_diag *diag) {
        const struct origin origin = {.label = "configuration", .diag = diag};
        const struct hr_config_device *device;

        HR_ASSERT(config->given && !config->given->is_finished);
        config->given->is_finished = true;
        if (config->device_count == 0)
                HR_TRY(find_devices(&origin, config));
        device = &config->devices[config->device_count - 1];
        if (strcmp(device->backend, "cpu") != 0)
                return hr_config_fail(&origin, NULL,
                                      "the last device, '%s', must have backend cpu, "
                                      "which can run every op",
                                      device->name);
        for (uint32_t i = 0; i < config->device_count; i++)
                if (config->devices[i].isolated && strcmp(config->devices[i].backend, "cpu") != 0)
                        return hr_config_fail(&origin, NULL,
                                              "device '%s': only backend cpu can "
                                              "have memory = isolated",
                                              config->devices[i].name);
        HR_TRY(hr_config_check_access(&origin, config));
        if (config->memory_pressure && strcmp(config->memory_pressure, "auto") != 0 &&
            strcmp(config->memory_pressure, "off") != 0 && config->memory_pressure[0] != '/')
                return hr_config_fail(&origin, NULL,
                                      "daemon.memory_pressure is none of: auto, off, an "
                                      "absolute path");
        if (config->limits.output_queue_bytes < config->limits.body_bytes)
                return hr_config_fail(&origin, NULL,
                                      "limits.output_queue_bytes is less than "
                                      "limits.body_bytes");
        if (config->limits.upload_window_bytes < config->limits.body_bytes)
                return hr_config_fail(&origin, NULL,
                                      "limits.upload_window_bytes is less than "
                                      "limits.body_bytes");
        return HR_OK;
}
