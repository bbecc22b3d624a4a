/*
 * The running half of the scheduler: fleet, pipeline, and the tape bound to addresses.
 *
 * A pipeline resolves every command of its plan's tape once per slot, into pointers and handles, so
 * that starting a run is one walk over an array. Everything here is the engine thread's, except the
 * notification, which any thread may deliver.
 */
#pragma once

#include "scheduler/plan.h"

struct hr_exec_counters {
        atomic_uint_fast64_t runs_started, runs_ok, runs_failed, runs_cancelled;
        atomic_uint_fast64_t splits_computed, nodes_computed, bytes_copied, bytes_in, bytes_out;
        atomic_uint_fast64_t expert_hits, expert_misses, expert_bytes;
        atomic_uint_fast64_t longest_start_ns;
};

/* Events that a pipeline gave back. Freeing one would wait for every queue that still has a wait
 * for it before it, even one that is long reached; handing it on does not. */
struct hr_spare_events {
        struct hr_event **events;
        uint32_t count, capacity;
};

struct hr_fleet {
        struct hr_device **devices;
        struct hr_queue **queues;
        uint32_t device_count;
        uint64_t epoch;
        struct hr_spare_events *spare; /* per device */
        struct hr_exec_counters counters;
};

/* An event of the device, whose records so far have all been reached. */
HR_NODISCARD hr_status hr_fleet_event_take(struct hr_fleet *fleet, uint32_t device,
                                           struct hr_diag *diag, struct hr_event **ret_event);
/* Takes it back once its last record has been reached. NULL is a no-op. */
void hr_fleet_event_give(struct hr_fleet *fleet, uint32_t device, struct hr_event *event);

/* A command of the tape with everything resolved for one slot. */
struct hr_bound_command {
        hr_command_code code;
        uint32_t index; /* INPUT: input; READ_BACK: output */
        struct hr_queue *queue;
        struct hr_event *event;            /* WAIT, RECORD */
        struct hr_program *program;        /* COMPUTE */
        uint32_t step_count;               /* COMPUTE */
        struct hr_expert_cache *experts;   /* COPY_EXPERTS; index is the weight, from the ids */
        const struct hr_buffer_kind *kind; /* COPY: of the destination */
        const void *from;                  /* INPUT: NULL, the run's bytes from from_offset on */
        void *to;
        uint64_t from_offset, bytes;
};

struct hr_slot {
        bool taken;
        const struct hr_run_output **wanted; /* per output of the graph; NULL = not wanted */
        struct hr_bound_command *commands;
        struct hr_program **programs; /* per split; those of slot 0 may serve every slot */
};

struct hr_pipeline {
        struct hr_plan *plan;
        struct hr_graph *graph;
        struct hr_fleet *fleet;
        struct hr_arena arena;
        struct hr_leaf_home *homes; /* per leaf; buffers referenced; NULL without any */
        struct hr_state_use **states;
        uint32_t state_count;
        uint32_t slot_count;
        struct hr_slot *slots;
        struct hr_buffer **pools; /* per kind of the plan */
        struct hr_expert_cache *expert_caches; /* per group of the plan */
        uint8_t *staging;         /* slot_count x staging_bytes */
        uint32_t *event_devices;  /* whose each event is */
        struct hr_event **events; /* slot 0's, slot 1's, ..., then one per lane */
        uint64_t event_count;
        const struct hr_buffer_kind **kinds; /* of the plan's numbers */
        uint64_t *device_bytes;              /* per device */
        uint32_t notify_count;               /* notifications per run */
        uint64_t sequence;                   /* of the next run */
        uint32_t in_flight;
        bool touches_states;               /* some lane reads or writes a writable buffer */
        bool constants_pending;            /* written, and no run has ended since */
        struct hr_event **constant_events; /* per device that wrote some for another to read */
        /* Sums over the tape, for the counters. */
        uint64_t copied_bytes, computed_splits, computed_nodes;
};
