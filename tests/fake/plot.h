/*
 * A graph on simulated devices that has all that a pipeline can have to give back, and runs of it
 * whose results plain arithmetic gives.
 *
 * A GPU and one or two devices on host memory (a lane of two queues), copies both ways, a constant,
 * a state, a weight in the GPU's memory, and two weights of a mixture in host memory of which the
 * used experts travel. All values are small integers.
 */
#pragma once

#include "tests/fake/studio.h"

enum {
        PLOT_WIDTH = 8,
        PLOT_EXPERTS = 4,
        PLOT_USED = 2,
        PLOT_RUNS = 6, /* of a volley */
        PLOT_FORMS = 12,
        PLOT_COMMANDS = 96, /* at most, of a tape */
};

/* How runs are made: plainly, traced, or observed at two nodes and resumed there. */
typedef enum plot_mode { PLOT_PLAIN, PLOT_TRACED, PLOT_OBSERVED, PLOT_MODES } plot_mode;

struct plot {
        struct studio studio;
        plot_mode mode;
        uint64_t last_ns; /* that the last device takes for a step */
        struct hr_build *build;
        struct hr_graph *graph;
        int32_t pins[32];
        struct hr_leaf_home homes[8];
        struct hr_state_use use, *uses[1];
        uint32_t x, ids, ten, w, s, up, gate, sum, mixed, read;
        uint32_t taps[2];
};

/* Forms 0 to 3: two or three devices, copies through the host or direct; the others: the same,
 * calls take time and the last device is slow, so that a run may be under way while the next is
 * submitted. */
void plot_init(struct plot *plot, uint32_t form);
/* Expects that no device holds any memory. */
void plot_deinit(struct plot *plot);
hr_status plot_pipeline(struct plot *plot, uint32_t n_copies, struct hr_workspace *workspace,
                        struct hr_diag *diag, struct hr_pipeline **ret_pipeline);

struct shot {
        struct take take;
        struct hr_trace_entry trace[PLOT_COMMANDS];
        float tap[PLOT_USED * PLOT_WIDTH];
        uint32_t at_tap, taps_seen;
        float x[PLOT_WIDTH], mixed[PLOT_USED][PLOT_WIDTH], read[PLOT_WIDTH];
        int32_t ids[PLOT_USED];
        hr_status started, ended;
};

/* Starts run `number`; its inputs follow from the number. */
void shoot(struct plot *plot, struct hr_pipeline *pipeline, uint32_t number, struct shot *shot);
/* Lets time pass until it is over, and resumes it where it waits. */
hr_status shot_wait(struct shot *shot);
/* PLOT_RUNS runs, the pipelines in turn, as many in flight as they take; each ends once. */
void volley(struct plot *plot, struct hr_pipeline *const *pipelines, uint32_t pipeline_count,
            uint32_t first, struct shot *shots);
/* What depends on the run's input alone is right. */
void expect_mixed(const struct shot *shot);
/* A volley is right in all, from a state of zeros: what a failed run has left there is nobody's
 * promise. */
void expect_all_right(struct plot *plot, struct hr_pipeline *const *pipelines,
                      uint32_t pipeline_count, uint32_t first);
