/* Reader of recorded plans: lines to records. See plans_file.h. */
#include "tests/golden/plans_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void *plan_need(void *pointer) {
        if (!pointer) {
                fprintf(stderr, "out of memory\n");
                exit(2);
        }
        return pointer;
}

void plan_lines_add(struct plan_lines *lines, const char *line) {
        if (lines->count == lines->capacity) {
                lines->capacity = lines->capacity ? lines->capacity * 2 : 64;
                lines->items = plan_need(realloc(lines->items, lines->capacity * sizeof(char *)));
        }
        lines->items[lines->count++] = plan_need(strdup(line));
}

void plan_lines_clear(struct plan_lines *lines) {
        for (uint32_t i = 0; i < lines->count; ++i)
                free(lines->items[i]);
        free(lines->items);
        memset(lines, 0, sizeof *lines);
}

static void sort_flag_lines(struct plan_lines *lines) {
        for (uint32_t i = 1; i < lines->count; ++i) {
                for (uint32_t j = i;
                     j > 0 && lines->items[j][0] == 'F' && lines->items[j - 1][0] == 'F' &&
                     strtoul(lines->items[j] + 2, NULL, 10) <
                             strtoul(lines->items[j - 1] + 2, NULL, 10);
                     --j) {
                        char *line = lines->items[j];

                        lines->items[j] = lines->items[j - 1];
                        lines->items[j - 1] = line;
                }
        }
}

static void append_text(char **line, const char *more) {
        *line = plan_need(realloc(*line, strlen(*line) + strlen(more) + 1));
        strcat(*line, more);
}

/* Does a line of splits lack some of the inputs that it counts? */
static bool lacks_inputs(const char *line) {
        uint32_t listed = 0, wanted = 0;
        char reason[32];

        if (sscanf(line, "S %*u %*u %*u %*u %31s %u", reason, &wanted) != 2)
                return false;
        for (; *line; ++line)
                listed += *line == ' ';
        return listed < wanted + 6;
}

/* Long lists go on in further lines of the same kind. */
static void take_plan_line(struct plan_record *record, const char *line) {
        struct plan_lines *plan = &record->plan;
        char **last = plan->count ? &plan->items[plan->count - 1] : NULL;

        if (strncmp(line, "alloc ok", 8) == 0)
                record->allocated = true;
        else if (line[0] == 'A' && line[1] == ' ')
                plan_lines_add(&record->bytes, line);
        else if (last && line[0] == (*last)[0] &&
                 (line[0] == 'G' || (line[0] == 'S' && lacks_inputs(*last))))
                append_text(last, line + 1);
        else if (strncmp(line, "splits ", 7) == 0 ||
                 (line[0] && strchr("LNSRGF", line[0]) && line[1] == ' '))
                plan_lines_add(plan, line);
}

static void take_line(struct plan_record *record, const char *line) {
        if (strcmp(line, "plan") == 0) {
                record->has_plan = true;
        } else if (strncmp(line, "abort ", 6) == 0) {
                record->aborts = true;
                record->abort_has_plan = strncmp(line + 6, "alloc", 5) == 0;
        } else if (record->has_plan) {
                take_plan_line(record, line);
        } else {
                sscanf(line, "sched copies=%u", &record->copies);
                plan_lines_add(&record->facts, line);
        }
}

static void record_clear(struct plan_record *record) {
        plan_lines_clear(&record->facts);
        plan_lines_clear(&record->plan);
        plan_lines_clear(&record->bytes);
        memset(record, 0, sizeof *record);
}

/* ---- Files -------------------------------------------------------------------------------------
 */

struct shelf {
        void (*fn)(const struct plan_record *record, void *arg);
        void *arg;
        uint32_t cases, failed;
};

static void shelf_complain(struct shelf *shelf, const struct plan_record *record,
                           const char *what) {
        printf("%s:%u: %s: %s\n", record->path, record->line, record->name, what);
        ++shelf->failed;
}

/* A line begins a case, ends one, or belongs to one. */
static void read_line(struct shelf *shelf, struct plan_record *record, const char *path,
                      uint32_t number, const char *line) {
        if (strncmp(line, "case ", 5) == 0) {
                if (record->path)
                        shelf_complain(shelf, record, "has no end");
                record_clear(record);
                record->path = path;
                record->line = number;
                snprintf(record->name, sizeof record->name, "%.250s", line + 5);
        } else if (record->path && strcmp(line, "end") == 0) {
                ++shelf->cases;
                if (!record->has_plan && !record->aborts) {
                        shelf_complain(shelf, record, "has neither a plan nor an abort");
                } else {
                        sort_flag_lines(&record->plan);
                        shelf->fn(record, shelf->arg);
                }
                record_clear(record);
        } else if (record->path) {
                take_line(record, line);
        }
}

static void read_file(struct shelf *shelf, const char *path) {
        FILE *file = fopen(path, "r");
        char *line = NULL;
        size_t room = 0;
        ssize_t length;
        struct plan_record record = {0};

        if (!file) {
                printf("%s: cannot be opened\n", path);
                ++shelf->failed;
                return;
        }
        for (uint32_t number = 1; (length = getline(&line, &room, file)) >= 0; ++number) {
                line[strcspn(line, "\r\n")] = 0;
                read_line(shelf, &record, path, number, line);
        }
        if (record.path)
                shelf_complain(shelf, &record, "has no end");
        if (ferror(file)) {
                printf("%s: cannot be read\n", path);
                ++shelf->failed;
        }
        record_clear(&record);
        free(line);
        fclose(file);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
        return strcmp((*a)->d_name, (*b)->d_name);
}

static void read_folder(struct shelf *shelf, const char *path) {
        struct dirent **entries = NULL;
        int count = scandir(path, &entries, NULL, by_name);

        if (count < 0) {
                printf("%s: cannot be opened\n", path);
                ++shelf->failed;
        }
        for (int i = 0; i < count; ++i) {
                const char *name = entries[i]->d_name;
                size_t length = strlen(name);
                char *full = NULL;

                if (length > 4 && strcmp(name + length - 4, ".txt") == 0) {
                        if (asprintf(&full, "%s/%s", path, name) < 0)
                                full = NULL;
                        read_file(shelf, plan_need(full));
                        free(full);
                }
                free(entries[i]);
        }
        free(entries);
}

uint32_t plan_records_read(const char *path,
                           void (*fn)(const struct plan_record *record, void *arg), void *arg) {
        struct shelf shelf = {.fn = fn, .arg = arg};
        struct stat info;

        if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
                read_folder(&shelf, path);
        else
                read_file(&shelf, path);
        if (shelf.cases == 0 && shelf.failed == 0) {
                printf("%s: no case is in it\n", path);
                ++shelf.failed;
        }
        return shelf.failed;
}
