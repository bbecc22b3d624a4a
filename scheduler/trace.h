/*
 * When each command of a run began and ended, and what that says about splits. Included by
 * scheduler.h.
 *
 * A traced run carries memory for one entry per command. Around each command its queue is asked to
 * call back, and the device's own thread reads the clock; a run without a trace pays one comparison
 * per command. The callbacks order nothing, but a queue that would have worked ahead of them does
 * not.
 */
#pragma once

#include "core/arena.h"
#include "core/device.h"

struct hr_pipeline;
struct hr_run;

/* Of one command. Zeroed by hr_run_start(); complete when the run is done. */
struct hr_trace_entry {
        struct hr_run *run;
        uint64_t begin_ns, end_ns; /* hr_clock_now_ns() on the device's thread; 0 = never */
        struct hr_expert_tally experts; /* of a command that copies experts */
};

typedef enum hr_trace_kind {
        HR_TRACE_WAIT,    /* for an event */
        HR_TRACE_RECORD,  /* of an event */
        HR_TRACE_INPUT,   /* bytes of the client's to where the device reads them */
        HR_TRACE_WRITE,   /* host memory to the device's */
        HR_TRACE_READ,    /* the device's memory to host memory that a copy goes through */
        HR_TRACE_COPY,    /* memory to memory */
        HR_TRACE_EXPERTS, /* the used experts to the device's memory */
        HR_TRACE_COMPUTE, /* of a split */
        HR_TRACE_TAP,     /* shown to the client */
        HR_TRACE_OUTPUT,  /* read back for the client */
        HR_TRACE_KINDS
} hr_trace_kind;

/* "wait", "record", "input", "write", "read", "copy", "experts", "compute", "output". */
const char *hr_trace_kind_name(hr_trace_kind kind);

/* How many commands a run of the pipeline has. */
uint32_t hr_pipeline_command_count(const struct hr_pipeline *pipeline);

/* The commands of a run that happened, in the order in which they were submitted; columns of
 * `count` in the arena given. */
struct hr_trace {
        uint64_t sequence, started_ns, ended_ns;
        uint32_t slot, n_copies, split_count;
        uint32_t slot_event_count; /* events from this number on are not per slot: ends of lanes */
        uint32_t count;
        uint32_t *kind;
        uint32_t *device;  /* whose queue it was; counted from the number of devices on: whose
                            * upload queue */
        uint32_t *split;   /* that it belongs to: of a record the one before, of a wait the next;
                            * split_count: what follows the last */
        uint32_t *subject; /* WAIT, RECORD: the event; COMPUTE: the split; else the tensor */
        uint64_t *bytes;   /* moved */
        uint64_t *begin_ns, *end_ns;
};

/* From a run that is done and was traced. Pure; any thread that has the run to itself.
 * HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_run_trace(const struct hr_run *run, struct hr_arena *arena,
                                    struct hr_diag *diag, struct hr_trace *ret_trace);

/* ---- Measured splits ------------------------------------------------------------------------- */

/* The figures of the latest traced runs of a graph. One owner; one thread at a time. */
struct hr_measure;

#define HR_MEASURE_RUNS 16U

/* Medians over the runs that are held; columns per split, in the arena given. */
struct hr_measure_medians {
        uint32_t runs; /* 0: no figures */
        uint64_t run_ns;
        uint64_t *compute_ns, *copy_ns, *wait_ns;
        uint64_t *bytes; /* that were moved for it */
};

HR_NODISCARD hr_status hr_measure_new(uint32_t split_count, struct hr_diag *diag,
                                      struct hr_measure **ret_measure);
struct hr_measure *hr_measure_free(struct hr_measure *measure);
/* Bytes that hr_measure_new() takes. */
uint64_t hr_measure_bytes(uint32_t split_count);
/* Takes a trace in, and the oldest out when there are HR_MEASURE_RUNS. */
void hr_measure_add(struct hr_measure *measure, const struct hr_trace *trace);
HR_NODISCARD hr_status hr_measure_medians(const struct hr_measure *measure, struct hr_arena *arena,
                                          struct hr_diag *diag,
                                          struct hr_measure_medians *ret_medians);
