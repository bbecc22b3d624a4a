/*
 * Recorded reference plans: reads files of cases (plans_file.c) and makes planning inputs of them
 * (plans_problem.c).
 *
 * The recorded masks of support and offload go straight into the planning input, so the graphs need
 * not be valid ones. What planning relies on is checked, whoever wrote the file: ids are there,
 * sources come before the nodes that read them, views end at a tensor that is none. The format is
 * in data/plans/README.md.
 */
#pragma once

#include "scheduler/plan.h"

#define PLAN_LINE_BYTES 1100 /* enough for a line that is printed, lists apart */

struct plan_lines {
        char **items;
        uint32_t count, capacity;
};

/* One case as it stands in its file. */
struct plan_record {
        struct plan_lines facts; /* from `case` to `plan` or `abort`; the first follows `line` */
        struct plan_lines plan;  /* L N S R G F and splits lines */
        struct plan_lines bytes; /* A lines */
        const char *path;        /* the caller's */
        uint32_t line;           /* number of its `case` line */
        char name[256];
        bool has_plan, aborts, abort_has_plan, allocated;
        uint32_t copies;
};

/* A case as a planning input, rules = ggml; owns what the input points at. */
struct plan_problem {
        struct hr_plan_input in;
        struct hr_graph *graph;
        struct hr_plan_device *devices;
        struct hr_plan_kind *kinds;
        struct hr_plan_buffer *buffers;
        uint64_t *reads, *supports, *offload;
        uint32_t *tensor_buffer;
        int32_t *pins;
        bool *seen; /* per tensor: it has a line */
        uint32_t words, sources, devices_seen, kinds_seen, buffers_seen;
};

/* The pointer, or the end of the process without memory. */
void *plan_need(void *pointer);
void plan_lines_add(struct plan_lines *lines, const char *line);
void plan_lines_clear(struct plan_lines *lines);

/* Calls fn for each case of a file, or of every *.txt in a folder, in order of name. The record is
 * fn's during the call. Returns how many files, folders and cases could not be read, which is
 * printed, too: what cannot be opened, has no case, or has one without an end. */
uint32_t plan_records_read(const char *path,
                           void (*fn)(const struct plan_record *record, void *arg), void *arg);

/* HR_E_INVALID: the words name the line. `problem` is to be cleared in any case. */
HR_NODISCARD hr_status plan_problem_read(struct plan_problem *problem,
                                         const struct plan_record *record, struct hr_diag *diag);
void plan_problem_clear(struct plan_problem *problem);
