/*
 * The scheduler as the daemon sees it: fleet, plan, plan cache, pipeline, run.
 *
 * Everything here is called by the engine thread unless said otherwise. Plans are immutable and
 * reference counted; a pipeline has one owner; a run is the caller's storage until its `done`.
 */
#pragma once

#include <stdatomic.h>

#include "core/device.h"
#include "core/topology.h"
#include "scheduler/explain.h"
#include "scheduler/trace.h"

/* ---- Fleet: the devices in priority order ---------------------------------------------------- */

/* References to devices, one queue each. The last device is of type CPU and supports everything the
 * fleet can run. The epoch moves when a device is retired. */
struct hr_fleet;
struct hr_recorder;

HR_NODISCARD hr_status hr_fleet_new(struct hr_device *const *devices, uint32_t device_count,
                                    struct hr_diag *diag, struct hr_fleet **ret_fleet);
struct hr_fleet *hr_fleet_free(struct hr_fleet *fleet); /* after the last pipeline */
/* Gives each queue, also those that come later, a recorder of that many spans; 0: none. Before the
 * first command. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_fleet_record(struct hr_fleet *fleet, uint32_t spans,
                                       struct hr_diag *diag);
/* Of a device's queue, or with the number of devices added: of its upload queue. NULL = none.
 * Thread: any. */
const struct hr_recorder *hr_fleet_recorder(const struct hr_fleet *fleet, uint32_t queue);
uint32_t hr_fleet_device_count(const struct hr_fleet *fleet);
struct hr_device *hr_fleet_device(const struct hr_fleet *fleet, uint32_t index);
struct hr_queue *hr_fleet_queue(const struct hr_fleet *fleet, uint32_t index);
uint64_t hr_fleet_epoch(const struct hr_fleet *fleet);
/* Retires the devices that have been lost: they take no part in plans made from now on, the epoch
 * moves, and pipelines that need one start no run any more. Returns how many are retired by this
 * call. To be called when anything has answered HR_E_DEVICE_LOST. */
uint32_t hr_fleet_retire(struct hr_fleet *fleet);
/* Is there a lost device that is not retired? Thread: any. */
bool hr_fleet_has_losses(const struct hr_fleet *fleet);
bool hr_fleet_is_retired(const struct hr_fleet *fleet, uint32_t index); /* thread: any */
/* Index of the device of that name, or -1; retired ones are not found. */
int64_t hr_fleet_find(const struct hr_fleet *fleet, const char *name);

/* ---- Plan ------------------------------------------------------------------------------------ */

typedef enum hr_rules { HR_RULES_HEADRACE, HR_RULES_GGML } hr_rules;

struct hr_plan_options {
        hr_rules rules;
        uint32_t n_copies; /* 0 = decided by the plan; else at most that many slots */
        uint32_t copies_most; /* that the plan may decide on; 0 = 16 */
        bool op_offload;
        bool strict;       /* refuse a plan in which a node falls back to another device type */
        uint64_t expert_bytes; /* per device: memory for experts that are copied when they are used;
                                * 0 = for all of them. A device's own expert_bytes counts where it
                                * is less. What one layer can use in a run is held even
                                * where that is more */
        bool optimize; /* devices choose the order inside splits and join nodes into passes; results
                        * have the same bits. Without effect under rules = ggml */
        bool serial_uploads; /* bytes from host memory arrive in turn with computation, in the least
                              * memory, also on devices that could bring them meanwhile */
};

/* Where a leaf of kind WEIGHT or STATE lives. */
struct hr_leaf_home {
        struct hr_buffer *buffer; /* NULL for inputs and constants */
        uint64_t offset;
};

#define HR_NO_PIN (-1)

struct hr_plan_request {
        const struct hr_graph *graph;      /* frozen */
        const struct hr_fleet *fleet;
        const struct hr_leaf_home *homes;  /* one per leaf; only kind and usage of the buffers count
                                            * for the plan, addresses do not */
        const int32_t *pins;               /* device index per tensor id or HR_NO_PIN; NULL =
                                            * none */
        const uint32_t *taps;              /* ids of nodes to be observed, ascending; part of the
                                            * plan */
        uint32_t tap_count;
        struct hr_plan_options options;
};

struct hr_plan;

struct hr_plan *hr_plan_ref(struct hr_plan *plan);
struct hr_plan *hr_plan_unref(struct hr_plan *plan);
HR_DEFINE_CLEANUP(struct hr_plan *, hr_plan_unrefp, hr_plan_unref)

/* Makes a plan without a cache. Pure function of the request. HR_E_UNSUPPORTED (reason OP) names
 * the node that no device supports, PIN one that its pinned device does not, REACH a tensor in
 * memory that no device reaches; HR_E_PRECONDITION (reason FALLBACK) under `strict`; HR_E_NOT_FOUND
 * (reason HOME) a weight or state without a home; HR_E_DATA_LOSS (reason DEVICE) one in the memory
 * of a lost device; HR_E_DEVICE_LOST when the last device is retired; HR_E_INVALID (reason PIN) a
 * device that is not there, (reason TAP) a tap that is no node, or empty. */
HR_NODISCARD hr_status hr_plan_new(const struct hr_plan_request *request, struct hr_diag *diag,
                                   struct hr_plan **ret_plan);

struct hr_plan_summary {
        uint32_t split_count;
        uint32_t n_copies;            /* decided by the plan */
        const char *copies_reason;    /* why that many; static storage */
        const char *uploads;          /* how weights come from host memory: "" none does; "early",
                                       * while their device computes; "in turn" with it; "memory":
                                       * in turn, because memory is short. Static storage */
        uint32_t device_count;
        const uint64_t *compute_bytes; /* per device, all slots; owned by the plan */
        const uint64_t *copies_bytes;  /* per device, all slots, part of compute_bytes: of copies */
        const uint64_t *scratch_bytes; /* per device, all slots: of prepared programs */
        uint64_t staging_bytes;        /* host memory for copies on their way, all slots */
        const uint32_t *device_splits; /* splits per device */
        uint64_t copied_bytes;        /* between devices, per run, at most */
        uint32_t tap_count;
        uint64_t tap_bytes;           /* of the largest */
        uint32_t fallback_nodes;      /* that run on the last device although a weight lives
                                       * elsewhere */
        uint64_t memory_bytes;        /* of the plan itself, on the host */
};
struct hr_plan_summary hr_plan_summary(const struct hr_plan *plan);
/* The tensor behind a tap: the tap-th of the request. */
uint32_t hr_plan_tap_tensor(const struct hr_plan *plan, uint32_t tap);
/* Device of a tensor, -1 where none. */
int32_t hr_plan_tensor_device(const struct hr_plan *plan, uint32_t tensor);

/* Parts of what hr_plan_debug() prints, and what the daemon does with them. */
#define HR_DEBUG_ASSIGNMENTS 1U /* nodes and their sources: device, cause, bytes */
#define HR_DEBUG_SPLITS 2U
#define HR_DEBUG_COPIES 4U
#define HR_DEBUG_REALLOC 8U /* the daemon's: memory that grew */
#define HR_DEBUG_ALL 15U
#define HR_DEBUG_TEXT 16U /* the daemon's: into the reply */

/* The parts of a plan as lines of text. The caller frees *ret_text (NUL-terminated).
 * HR_E_EXHAUSTED; HR_E_PRECONDITION, reason PLAN: of another graph or fleet. */
HR_NODISCARD hr_status hr_plan_debug(const struct hr_plan *plan, const struct hr_graph *graph,
                                     const struct hr_fleet *fleet, uint32_t parts,
                                     struct hr_diag *diag, char **ret_text, size_t *ret_bytes);

/* ---- Plan cache ------------------------------------------------------------------------------ */

struct hr_plan_cache;

/* What an eviction of plans has freed, and what was not to be. */
struct hr_plan_cache_evicted {
        uint64_t entries, bytes, kept_entries, kept_bytes;
};

typedef enum hr_plan_origin {
        HR_PLAN_HIT,
        HR_PLAN_MISS_NEW,       /* a topology never seen */
        HR_PLAN_MISS_SHAPES,    /* same ops and sources, other shapes or parameters */
        HR_PLAN_MISS_PLACEMENT, /* same graph, other homes, pins or options */
        HR_PLAN_MISS_EPOCH,     /* same, before a device was lost */
        HR_PLAN_MISS_EVICTED,   /* known, but no longer held */
        HR_PLAN_ORIGIN_COUNT
} hr_plan_origin;

/* "hit", "new", "shapes", "placement", "epoch", "evicted". */
const char *hr_plan_origin_name(hr_plan_origin origin);

struct hr_plan_cache_stats {
        uint64_t count[HR_PLAN_ORIGIN_COUNT];
        uint64_t entries, bytes, bytes_max, evictions;
};

HR_NODISCARD hr_status hr_plan_cache_new(uint64_t bytes_max, struct hr_diag *diag,
                                         struct hr_plan_cache **ret_cache);
struct hr_plan_cache *hr_plan_cache_free(struct hr_plan_cache *cache);
/* The plan for the request, from the cache or made now. ret_plan holds a reference for the caller.
 * ret_first_different: with MISS_SHAPES, the first tensor that differs from the nearest known
 * graph. */
HR_NODISCARD hr_status hr_plan_cache_get(struct hr_plan_cache *cache,
                                         const struct hr_plan_request *request,
                                         struct hr_diag *diag, struct hr_plan **ret_plan,
                                         hr_plan_origin *ret_origin,
                                         uint32_t *ret_first_different);
/* Lets go of the plans that nobody else refers to; a later miss says that they were evicted. */
struct hr_plan_cache_evicted hr_plan_cache_evict(struct hr_plan_cache *cache);
struct hr_plan_cache_stats hr_plan_cache_stats(const struct hr_plan_cache *cache);

/* ---- Budget: what somebody may hold of compute memory
 * ------------------------------------------ */

/* Taken before the memory is, given back after it has gone; those above are charged along. Its
 * place in memory stays while anything is held. Thread: any. */
struct hr_budget {
        struct hr_budget *above; /* NULL = none */
        uint64_t limit;
        const char *field; /* the limit's name, for the refusal. Static storage */
        atomic_uint_fast64_t held;
};
/* All of them, or none. HR_E_EXHAUSTED (reason LIMIT; field, limit, actual). */
HR_NODISCARD hr_status hr_budget_take(struct hr_budget *budget, uint64_t bytes,
                                      struct hr_diag *diag);
void hr_budget_give(struct hr_budget *budget, uint64_t bytes);

/* ---- Workspace: compute memory that pipelines share
 * -------------------------------------------- */

/* What passes through the memory of a run is nothing afterwards, so pipelines whose runs follow
 * each other need it once: per kind of memory as much as the largest of them. A session has a
 * workspace of its own, and no other session's pipelines ever touch that memory. Runs of different
 * pipelines are ordered where they share: by events at the ends of the lanes that touch it. What
 * runs in flight may hold at the same time (slots), and what stays (constants, experts), is each
 * pipeline's own.
 *
 * Where a pipeline needs more than there is, larger memory takes the place of what there was: a
 * reallocation. Pipelines move there when no run of theirs is in flight; what they leave is freed
 * with the last of them. */
struct hr_workspace;

/* What a new pipeline may do to the workspace. */
typedef enum hr_realloc_policy {
        HR_REALLOC_COUNT,    /* a reallocation is counted */
        HR_REALLOC_EXPECTED, /* ... is what the caller wants: for a reservation */
        HR_REALLOC_FAIL,     /* ... is refused: HR_E_PRECONDITION, reason REALLOC */
} hr_realloc_policy;

/* The latest reallocation, and how many there were. Memory that is taken where the workspace held
 * none of that kind counts only once something has been reserved. */
struct hr_workspace_stats {
        uint64_t reallocs;
        uint32_t device, tensor; /* whose memory; the tensor that reaches furthest in it */
        uint64_t old_bytes, new_bytes;
        uint64_t moves; /* of pipelines to other memory */
};

HR_NODISCARD hr_status hr_workspace_new(struct hr_diag *diag, struct hr_workspace **ret_workspace);
/* What it and its pipelines hold from now on is taken from there. Before the first pipeline. */
void hr_workspace_set_budget(struct hr_workspace *workspace, struct hr_budget *budget);
struct hr_workspace *hr_workspace_ref(struct hr_workspace *workspace);
struct hr_workspace *hr_workspace_unref(struct hr_workspace *workspace);
struct hr_workspace_stats hr_workspace_stats(const struct hr_workspace *workspace);
/* Bytes of shared memory held, replaced memory that is still in use included. */
uint64_t hr_workspace_bytes(const struct hr_workspace *workspace, uint32_t device);
/* The next allocations are large enough for the plan, too; zero again with
 * hr_workspace_forget(). */
HR_NODISCARD hr_status hr_workspace_want(struct hr_workspace *workspace,
                                         const struct hr_plan_request *request,
                                         const struct hr_plan *plan, struct hr_diag *diag);
void hr_workspace_forget(struct hr_workspace *workspace);
/* From now on, or no longer, something is reserved. */
void hr_workspace_reserve(struct hr_workspace *workspace);
void hr_workspace_release(struct hr_workspace *workspace);
/* Gives back what no pipeline needs, where memory for a smaller place can be had. */
void hr_workspace_trim(struct hr_workspace *workspace);
/* Counts from zero again. */
void hr_workspace_reset(struct hr_workspace *workspace);
/* Moves the pipelines that hold replaced memory and have no run in flight. True when none is left
 * that does. One that cannot be moved for want of memory stays where it is, in good order. */
bool hr_workspace_settle(struct hr_workspace *workspace);

/* ---- Pipeline: a plan bound to memory, slots and events
 * --------------------------------------- */

struct hr_pipeline;

/* A state as the executor needs it: who used it last, so that runs of different pipelines that
 * share it stay in order. Zeroed is "never used". Embedded in the daemon's state object; must
 * outlive every pipeline bound to it. */
struct hr_state_use {
        struct hr_pipeline *pipeline;
        uint32_t slot;
};

struct hr_pipeline_request {
        struct hr_plan *plan;              /* a reference is taken */
        struct hr_graph *graph;            /* a reference is taken; constants come from here */
        struct hr_fleet *fleet;
        const struct hr_leaf_home *homes;  /* buffers are referenced */
        struct hr_state_use *const *states; /* every distinct state behind the homes */
        uint32_t state_count;
        uint64_t device_bytes_max;         /* that pipelines of the workspace may hold as compute
                                            * memory on a device, with this one; 0 = no limit */
        struct hr_workspace *workspace;    /* a reference is taken; NULL = one of its own */
        hr_realloc_policy realloc;
};

/* Reserves all memory, writes the constants, prepares the programs. When memory does not suffice
 * for experts to stay from run to run, none do; then, when it does not for n_copies, it tries
 * fewer; hr_pipeline_copies() tells. HR_E_EXHAUSTED with bytes asked and free;
 * HR_E_PRECONDITION: reason PLAN, made for another graph, placement or fleet; reason UNSOUND, a
 * plan under rules = ggml that would not compute what the graph says. */
HR_NODISCARD hr_status hr_pipeline_new(const struct hr_pipeline_request *request,
                                       struct hr_diag *diag, struct hr_pipeline **ret_pipeline);
/* Only when no run is in flight. */
struct hr_pipeline *hr_pipeline_free(struct hr_pipeline *pipeline);
uint32_t hr_pipeline_copies(const struct hr_pipeline *pipeline);
/* The summary's `uploads` of the plan that it runs. */
const char *hr_pipeline_uploads(const struct hr_pipeline *pipeline);
/* Bytes of device memory held, per device index of the fleet: its own, and what it needs of the
 * workspace. */
uint64_t hr_pipeline_bytes(const struct hr_pipeline *pipeline, uint32_t device);
/* Of these its own: what is free once it has been freed, whoever shares the rest. */
uint64_t hr_pipeline_own_bytes(const struct hr_pipeline *pipeline, uint32_t device);
/* Of its own: memory of experts that stay from run to run, on all devices. Thread: any. */
uint64_t hr_pipeline_expert_bytes(const struct hr_pipeline *pipeline);
/* Of its own: host memory of the prepared programs. */
uint64_t hr_pipeline_scratch_bytes(const struct hr_pipeline *pipeline, uint32_t device);
/* True when a run could be admitted now: its slot (sequence mod n_copies) is free. */
bool hr_pipeline_has_slot(const struct hr_pipeline *pipeline);
/* True while no run of the pipeline starts because one in flight, on its workspace or with a state
 * of its, lacks an edge that could not be submitted; it ends with the last run in flight there. */
bool hr_pipeline_is_held(const struct hr_pipeline *pipeline);
/* True when a retired device computes, copies or holds something for it, or a run of it has ended
 * with HR_E_DEVICE_LOST: no run starts any more. */
bool hr_pipeline_is_lost(struct hr_pipeline *pipeline);
/* Does it compute on that device? */
bool hr_pipeline_uses(const struct hr_pipeline *pipeline, uint32_t device);
/* How often it was moved to other memory. */
uint64_t hr_pipeline_moves(const struct hr_pipeline *pipeline);
/* True when it holds memory that has been replaced and has no run in flight: hr_workspace_settle()
 * is to be called. */
bool hr_pipeline_wants_move(const struct hr_pipeline *pipeline);
struct hr_workspace *hr_pipeline_workspace(const struct hr_pipeline *pipeline);

/* ---- Run ------------------------------------------------------------------------------------- */

struct hr_run_input {
        const void *data; /* host memory, the tensor's contiguous bytes; valid until done */
        uint64_t bytes;
};

struct hr_run_output {
        uint32_t tensor;  /* id; flagged OUTPUT */
        void *data;       /* host memory for the tensor's strided span (hr_tensor_bytes) */
        uint64_t bytes;
};

struct hr_run;
/* Thread: any. Called exactly once. The run may be reused or freed from then on, but not inside it
 * unless the callee only posts it elsewhere. */
typedef void (*hr_run_done_fn)(struct hr_run *run, void *arg);
/* Thread: any. The run waits at run->tap: its bytes are in run->tap_data, unless the run has
 * failed. */
typedef void (*hr_run_tap_fn)(struct hr_run *run, void *arg);

struct hr_run {
        /* Set by the caller before hr_run_start. */
        const struct hr_run_input *inputs;   /* one per input leaf of the graph, in order */
        const struct hr_run_output *outputs; /* those wanted */
        uint32_t output_count;
        hr_run_done_fn done;
        void *arg;
        hr_run_tap_fn at_tap; /* NULL: the run is not observed */
        void *tap_data;       /* host memory for the largest tap, when it is */
        struct hr_trace_entry *trace; /* hr_pipeline_command_count() of them, of the caller's; NULL
                                       * = not traced */
        uint64_t tag; /* of the request, for what devices record */
        /* Set by the executor. */
        uint32_t tap;          /* at_tap: where it waits */
        uint32_t next_command; /* what the tape goes on with */
        bool waits;            /* ... when the run is resumed */
        struct hr_pipeline *pipeline;
        uint64_t sequence;
        uint32_t slot;
        struct hr_outcome outcome;           /* after done: outcome.diag.status is HR_OK or why
                                              * not */
        uint64_t started_ns, ended_ns;
        struct hr_expert_tally experts;      /* after done */
        atomic_uint pending;
};

/* Takes the next slot and submits the whole tape; never blocks. HR_E_UNAVAILABLE (reason SLOT) when
 * the slot is taken: start again after a done. HR_E_DEVICE_LOST (reason RETIRED) for a pipeline
 * that is lost. HR_E_INVALID for wrong sizes, or an output that is none or asked for twice. After
 * any failure here `done` is not called; after HR_OK it is, whatever happens. Outputs hold what the
 * tensor holds at the end of the run. */
HR_NODISCARD hr_status hr_run_start(struct hr_pipeline *pipeline, struct hr_run *run,
                                    struct hr_diag *diag);
/* From at_tap on: submits what follows, up to the next tap or the end; never blocks. A run that has
 * been cancelled meanwhile, or has failed, goes to its end without another tap. Between start and
 * end of an observed run no other run may be started that shares memory with it: none on the
 * workspace of its pipeline, and none on its states. */
void hr_run_resume(struct hr_run *run);
/* Leaves (ids, in no order) of kind STATE that a run which waits at a tap, or has ended before its
 * end, has written or may have; at most `capacity`, returns how many. */
uint32_t hr_run_written_states(const struct hr_run *run, uint32_t *leaves, uint32_t capacity);
/* Stops at the next split boundary. Thread: any. Idempotent; harmless after the end. */
void hr_run_cancel(struct hr_run *run, hr_status status, const char *reason);
/* Engine thread, after done: gives the slot back. Must be called before the next hr_run_start that
 * needs it. */
void hr_run_finish(struct hr_run *run);

/* Bytes that the run copied between memories, experts included. After done. */
uint64_t hr_run_copied_bytes(const struct hr_run *run);

/* Counters of the executor since the start. */
struct hr_exec_stats {
        uint64_t runs_started, runs_ok, runs_failed, runs_cancelled;
        uint64_t splits_computed, nodes_computed, bytes_copied, bytes_in, bytes_out;
        uint64_t expert_hits, expert_misses; /* used experts: resident, or copied */
        uint64_t expert_bytes;               /* copied; part of bytes_copied */
        uint64_t longest_start_ns; /* of any hr_run_start: submitting waits for no device */
        uint64_t device_waits; /* times that the engine blocked for a device: 0 while devices take
                                * their commands */
};
struct hr_exec_stats hr_fleet_exec_stats(const struct hr_fleet *fleet);
