/*
 * Any bytes as a configuration file: an answer with words, and, when the file is accepted, a dump
 * that reads back to the same dump.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* The dump of a configuration read from text, NULL when the text is refused. Caller frees. */
static char *dump_of(const char *text, size_t size) {
        struct hr_config config;
        struct hr_diag diag = {0};
        char *dump = NULL;
        size_t dump_bytes = 0;
        FILE *stream;

        HR_ASSERT(hr_config_init(&config, &diag) == HR_OK);
        if (hr_config_read_text(&config, "fuzz", text, size, &diag) == HR_OK &&
            hr_config_finish(&config, &diag) == HR_OK) {
                HR_PLANT(config.device_count > 0 && config.devices[0].name[1] != '\0');
                stream = open_memstream(&dump, &dump_bytes);
                HR_ASSERT(stream);
                hr_config_dump(&config, stream);
                (void) fclose(stream);
        } else {
                HR_ASSERT(diag.status != HR_OK && diag.words[0] != '\0');
        }
        hr_config_deinit(&config);
        return dump;
}

/* A line near the longest that can be read may be too long once it is printed with blanks. */
static bool has_long_line(const char *text) {
        while (*text != '\0') {
                const size_t bytes = strcspn(text, "\n");

                if (bytes > 190)
                        return true;
                text += bytes + (text[bytes] == '\n');
        }
        return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        char *first = dump_of((const char *) bytes, size);

        if (first) {
                char *second = dump_of(first, strlen(first));

                HR_ASSERT(has_long_line(first) || (second && strcmp(first, second) == 0));
                free(second);
        }
        free(first);
        return 0;
}
