/*
 * Runs a fuzz target over files: as they are, cut at every length up to a bound, and with single
 * bytes replaced. Deterministic; no fuzzer is needed.
 *
 *   replay [[-c CHANGES] FILE-OR-FOLDER]...   folders one level deep; at most CHANGES bytes of a
 * file are replaced, and as many cuts are tried (4096)
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INPUT_BYTES_MAX (1L << 22)
#define CUTS_MAX 2048

__attribute__((weak)) int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static unsigned long inputs;
static size_t changes_max = 4096;

/* A copy of exactly that size, so that a sanitizer sees every byte read past the end. */
static void run(const uint8_t *bytes, size_t size) {
        uint8_t *exact = malloc(size ? size : 1);

        if (!exact)
                exit(2);
        if (size > 0)
                memcpy(exact, bytes, size);
        (void) LLVMFuzzerTestOneInput(exact, size);
        free(exact);
        inputs++;
}

static void run_variants(uint8_t *bytes, size_t size) {
        static const uint8_t values[] = {0, 1, 0x7F, 0x80, 0xFF};
        size_t step = size / changes_max + 1;
        size_t cuts = size < CUTS_MAX ? size : CUTS_MAX;

        run(bytes, size);
        for (size_t cut = 0; cut < cuts; cut += step)
                run(bytes, cut);
        for (size_t at = 0; at < size; at += step) {
                uint8_t kept = bytes[at];

                for (size_t i = 0; i < sizeof values; i++) {
                        bytes[at] = values[i];
                        run(bytes, size);
                }
                for (unsigned bit = 0; bit < 8; bit++) {
                        bytes[at] = (uint8_t) (kept ^ (1U << bit));
                        run(bytes, size);
                }
                bytes[at] = kept;
        }
}

static int run_file(const char *path) {
        FILE *file = fopen(path, "rb");
        uint8_t *bytes;
        size_t size;
        long length;

        if (!file || fseek(file, 0, SEEK_END) != 0 || (length = ftell(file)) < 0 ||
            length > INPUT_BYTES_MAX || fseek(file, 0, SEEK_SET) != 0) {
                fprintf(stderr, "%s cannot be read\n", path);
                return 1;
        }
        bytes = malloc((size_t) length + 1);
        if (!bytes)
                return 1;
        size = fread(bytes, 1, (size_t) length, file);
        (void) fclose(file);
        run_variants(bytes, size);
        free(bytes);
        return 0;
}

static int run_folder(const char *path) {
        DIR *folder = opendir(path);
        struct dirent *entry;
        int failures = 0;
        int files = 0;

        if (!folder)
                return 1;
        while ((entry = readdir(folder))) {
                char name[4096];

                if (entry->d_name[0] == '.')
                        continue;
                (void) snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
                failures += run_file(name);
                files++;
        }
        (void) closedir(folder);
        if (files == 0)
                fprintf(stderr, "%s is empty\n", path);
        return failures + (files == 0);
}

int main(int argc, char **argv) {
        int failures = argc < 2;

        if (LLVMFuzzerInitialize)
                (void) LLVMFuzzerInitialize(&argc, &argv);
        for (int i = 1; i < argc; i++) {
                struct stat found;

                if (strcmp(argv[i], "-c") == 0 && i + 1 < argc) {
                        changes_max = strtoul(argv[++i], NULL, 10);
                        continue;
                }
                if (stat(argv[i], &found) != 0) {
                        fprintf(stderr, "%s is not there\n", argv[i]);
                        failures++;
                } else {
                        failures +=
                                S_ISDIR(found.st_mode) ? run_folder(argv[i]) : run_file(argv[i]);
                }
        }
        printf("%lu inputs\n", inputs);
        return failures ? 1 : 0;
}
