/*
 * The running half of the scheduler: fleet, pipeline, and the tape bound to addresses.
 *
 * A pipeline resolves every command of its plan's tape once per slot, into pointers and handles, so
 * that starting a run is one walk over an array. Everything here is the engine thread's, except the
 * notification, which any thread may deliver.
 */
#pragma once

#include "core/list.h"
#include "scheduler/plan.h"

struct hr_exec_counters {
        atomic_uint_fast64_t runs_started, runs_ok, runs_failed, runs_cancelled;
        atomic_uint_fast64_t splits_computed, nodes_computed, bytes_copied, bytes_in, bytes_out;
        atomic_uint_fast64_t expert_hits, expert_misses, expert_bytes;
        atomic_uint_fast64_t longest_start_ns, device_waits;
};

/* Events that a pipeline gave back. Freeing one would wait for every queue that still has a wait
 * for it before it, even one that is long reached; handing it on does not. */
struct hr_spare_events {
        struct hr_event **events;
        uint32_t count, capacity;
};

/* Memory that planning works in, kept from plan to plan so that it is warm. */
struct hr_desk {
        atomic_bool taken;
        struct hr_arena arena;
};

struct hr_fleet {
        struct hr_device **devices;
        struct hr_queue **queues;
        struct hr_queue **uploads; /* per device; NULL until a pipeline needs it */
        struct hr_recorder **recorders; /* per queue, then per upload queue; NULL = not recorded */
        uint32_t device_count;
        /* Written by the engine under the turn, read by any. */
        atomic_uint_fast64_t epoch;
        atomic_bool *retired; /* per device */
        uint32_t in_flight;
        bool unordered;                /* a workspace is, or has been since nothing was in flight */
        struct hr_spare_events *spare; /* per device */
        struct hr_exec_counters counters;
        struct hr_desk *desk;
};

/* The queue that executes commands of a plan, made if need be. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_fleet_upload_queue(struct hr_fleet *fleet, uint32_t device,
                                             struct hr_diag *diag);
static inline struct hr_queue *hr_fleet_queue_of(const struct hr_fleet *fleet,
                                                 const struct hr_command *command) {
        return command->upload ? fleet->uploads[command->device] : fleet->queues[command->device];
}
/* An event of the device, whose records so far have all been reached. */
HR_NODISCARD hr_status hr_fleet_event_take(struct hr_fleet *fleet, uint32_t device,
                                           struct hr_diag *diag, struct hr_event **ret_event);
/* Blocks until the event is reached, at most timeout_ns: the one place where the engine waits for a
 * device. Counted; never on the way of a run whose commands the devices take. */
HR_NODISCARD hr_status hr_fleet_wait(struct hr_fleet *fleet, struct hr_event *event,
                                     uint64_t timeout_ns);
/* Takes it back once its last record has been reached. NULL is a no-op. */
void hr_fleet_event_give(struct hr_fleet *fleet, uint32_t device, struct hr_event *event);

/* A command of the tape with everything resolved for one slot. */
struct hr_bound_command {
        hr_command_code code;
        uint32_t index; /* INPUT: input; READ_BACK: output; GATE: kind of the plan */
        struct hr_queue *queue;
        struct hr_event *event;            /* WAIT, RECORD; NOTIFY: one of the queue's device */
        struct hr_program *program;        /* COMPUTE */
        uint32_t first, step_count;        /* COMPUTE: a range, for runs that are observed */
        uint32_t whole_count;              /* COMPUTE: all steps; 0 = with an earlier range */
        struct hr_expert_cache *experts;   /* COPY_EXPERTS; index is the weight, from the ids */
        const struct hr_buffer_kind *kind; /* COPY: of the destination */
        const void *from;                  /* INPUT: NULL, the run's bytes from from_offset on */
        void *to;
        uint64_t from_offset, bytes;
};

/* ---- Memory that pipelines share ---------------------------------------------------------------
 */

/* A piece of memory of a workspace. Freed when no pipeline is bound to it. */
struct hr_block {
        struct hr_buffer *buffer;
        uint32_t owner; /* device that it counts for */
        uint32_t refs;
        struct hr_pipeline
                *user; /* whose run was submitted last; NULL: nothing in flight uses it */
        uint64_t grown_from; /* bytes that it had, if it grew and that is not yet told; else 0 */
};

/* What a workspace has of one kind of memory. */
struct hr_workspace_part {
        const struct hr_buffer_kind *kind;
        struct hr_block *current; /* NULL = none; lives by the references of pipelines */
        uint64_t wanted_bytes;
};

struct hr_workspace {
        uint32_t refs;
        struct hr_budget *budget; /* NULL = none */
        uint32_t reserved;
        uint32_t in_flight; /* runs of its pipelines */
        bool unordered;     /* an edge of one of them could not be submitted */
        struct hr_workspace_part *parts;
        uint32_t part_count;
        struct hr_list pipelines;
        uint64_t *held_bytes; /* per device */
        uint32_t device_count;
        bool unsettled; /* some pipeline may hold replaced memory */
        struct hr_workspace_stats stats;
};

/* Blocks for all that passes through the pipeline's memory: those of the workspace, or new ones
 * that take their place with hr_workspace_commit(). On failure nothing has changed. */
HR_NODISCARD hr_status hr_workspace_take(struct hr_workspace *workspace,
                                         struct hr_pipeline *pipeline, hr_realloc_policy policy,
                                         struct hr_diag *diag);
/* An edge of a run in flight is missing: none of the workspace's pipelines starts another. */
bool hr_workspace_is_held(const struct hr_workspace *workspace);
/* What the workspace and its pipelines would hold on the device with this one, which is not of them
 * yet. Memory that this one would make it replace does not count. Saturates. */
uint64_t hr_workspace_bytes_with(const struct hr_workspace *workspace,
                                 const struct hr_pipeline *pipeline, uint32_t device);
/* The pipeline is complete: its blocks are the workspace's. */
void hr_workspace_commit(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                         hr_realloc_policy policy);
/* Gives the pipeline's blocks back, and takes it off the workspace's list. */
void hr_workspace_give(struct hr_workspace *workspace, struct hr_pipeline *pipeline);
/* The workspace's newest blocks in place of the pipeline's; the old ones are given to the caller.
 */
void hr_workspace_renew(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                        struct hr_block **ret_old);
void hr_workspace_restore(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                          struct hr_block *const *old);
void hr_workspace_leave(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                        struct hr_block **old);
/* Is a block of the pipeline not the workspace's newest any more? */
bool hr_workspace_is_behind(const struct hr_workspace *workspace,
                            const struct hr_pipeline *pipeline);
/* A gate of the tape: the queue waits for the pipeline that used the block of that kind last. */
HR_NODISCARD hr_status hr_gate_pass(const struct hr_pipeline *pipeline, struct hr_queue *queue,
                                    uint32_t kind, struct hr_diag *diag);
/* The run has been submitted. */
void hr_gates_passed(struct hr_pipeline *pipeline);
/* Programs and commands anew, for the newest blocks. Only without a run in flight. On failure all
 * is as it was. */
HR_NODISCARD hr_status hr_pipeline_move(struct hr_pipeline *pipeline, struct hr_diag *diag);

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
        struct hr_arena bound; /* what holds addresses: steps, commands */
        struct hr_workspace *workspace;
        struct hr_list workspace_link;
        struct hr_block **blocks; /* per kind of the plan: of the workspace; NULL = needs none */
        uint64_t moves;
        struct hr_leaf_home *homes; /* per leaf; buffers referenced; NULL without any */
        struct hr_state_use **states;
        uint32_t state_count;
        uint32_t slot_count;
        uint32_t planned_copies; /* slots of the plan that it was made from */
        struct hr_slot *slots;
        struct hr_buffer **pools; /* per kind of the plan: its own, [kept][slot 0][slot 1]... */
        struct hr_expert_cache *expert_caches; /* per group of the plan */
        uint8_t *staging;                      /* slot_count x staging_bytes */
        uint64_t budget_bytes; /* taken from the workspace's budget for what is its own */
        uint32_t *event_devices;               /* whose each event is */
        struct hr_event **events;              /* slot 0's, slot 1's, ..., then one per lane */
        uint64_t event_count;
        const struct hr_buffer_kind **kinds; /* of the plan's numbers */
        uint64_t *device_bytes;              /* per device */
        uint32_t notify_count;               /* notifications per run */
        uint64_t sequence;                   /* of the next run */
        uint64_t epoch;                      /* of the fleet, when `lost` was found out */
        bool lost;                           /* a device that it needs is lost */
        uint32_t in_flight;
        bool touches_states;               /* some lane reads or writes a writable buffer */
        bool constants_pending;            /* written, and no run has ended since */
        struct hr_outcome constants;       /* of their writing */
        struct hr_event **constant_events; /* per device that wrote some for another to read */
        /* Sums over the tape, for the counters. */
        uint64_t copied_bytes, computed_splits, computed_nodes;
};
