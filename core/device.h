/*
 * The device interface: device, buffer, queue, event. The scheduler drives devices through this
 * header alone, and a backend knows nothing above it.
 *
 * Model. A device has memory of one buffer kind and makes in-order queues. A queue takes commands
 * without ever blocking on their execution; between queues only events order anything. Copies
 * between devices are commands of the queue that owns the *source* memory, so that source memory
 * needs no edge of its own; the destination is guarded by events.
 *
 * Failure. Submitting can fail at once (status + diag). Failure during execution goes into the
 * run's hr_outcome: the first one wins, later COMPUTE and copy commands of that run become no-ops,
 * while waits, records and notifications still happen, so that nothing that depends on them hangs.
 *
 * Threads: one engine thread submits to all queues of a fleet; a backend's own threads execute.
 * Vtables are `static const` with no NULL members; only the wrappers in core/device.c call them.
 */
#pragma once

#include <stdatomic.h>

#include "core/graph.h"

struct hr_device;
struct hr_buffer;
struct hr_queue;
struct hr_event;
struct hr_program;
struct hr_recorder;

typedef enum hr_device_type {
        HR_DEVICE_CPU,
        HR_DEVICE_GPU,
        HR_DEVICE_IGPU,
        HR_DEVICE_ACCEL,
} hr_device_type;

/* "CPU", "GPU", "IGPU", "ACCEL". */
const char *hr_device_type_name(hr_device_type type);

/* A kind of memory. Identity is the pointer: devices that share memory name the same kind. */
struct hr_buffer_kind {
        const char *name;
        bool host;          /* ordinary host memory, readable in place by every host device */
        uint32_t alignment; /* of tensors in it, bytes, power of two */
        bool addressable;   /* not `host`, yet the host can load and store it (isolated CPU memory):
                             * a host queue may copy into it */
};

/* Ordinary host memory; alignment 64. */
extern const struct hr_buffer_kind hr_host_kind;

typedef enum hr_buffer_usage {
        HR_USAGE_ANY,     /* a state */
        HR_USAGE_WEIGHTS, /* read-only */
        HR_USAGE_COMPUTE,
} hr_buffer_usage;

/* What became of a run. Zeroed is "running". */
struct hr_outcome {
        atomic_int phase; /* 0 running, 1 being written, 2 failed: diag is valid, 3 ended well */
        atomic_uint reached; /* steps of the run, in the order of its plan, up to the last one that
                              * has begun; others before it may not have */
        uint64_t tag; /* of the request that the run belongs to, for what queues record; 0 = none */
        struct hr_diag diag;
};

/* Records the first failure (any thread; later ones are dropped). `node` may be
 * HR_DIAG_NO_INDEX. Returns status. */
HR_PRINTF(5, 6)
hr_status hr_outcome_fail(struct hr_outcome *outcome, hr_status status, const char *reason,
                          uint32_t node, const char *format, ...);
/* The run is over: whatever fails or cancels it from now on changes nothing. Thread: any. */
void hr_outcome_end(struct hr_outcome *outcome);
/* A queue begins to compute; `steps` are those up to the last of the command's, in the order of the
 * run's plan (hr_steps.before). Thread: any. */
void hr_outcome_reach(struct hr_outcome *outcome, uint32_t steps);
/* True once a failure or a cancellation is recorded. */
bool hr_outcome_failed(struct hr_outcome *outcome);
/* The failure, or NULL while there is none. Waits for a writer that is between its two steps. */
const struct hr_diag *hr_outcome_diag(struct hr_outcome *outcome);

/* ---- What a queue computes ------------------------------------------------------------------- */

/* A tensor with its place in memory: what a kernel sees. */
struct hr_operand {
        uint32_t type;
        uint32_t id;       /* tensor id in the plan, for messages */
        int64_t ne[HR_DIMS];
        uint64_t nb[HR_DIMS];
        void *data;        /* address on the device (host pointer for host devices); of an empty
                            * tensor one that nobody may look at */
        uint64_t room;     /* bytes that may be touched from data on: kernels never leave it */
};

/* The tensor's type, extents and strides; no address yet, unless it is empty. Where dimension 0 has
 * only one block its stride means nothing in the graph; in the operand it is the block's size, so
 * that a kernel may walk contiguous memory by nb[0]. */
struct hr_operand hr_operand_of_tensor(const struct hr_tensor *tensor, uint32_t id);

struct hr_step {
        uint32_t op;                  /* hr_op, never a view op */
        uint32_t node;                /* index into the graph's nodes, for errors and traces */
        const int32_t *params;        /* HR_OP_PARAM_WORDS words */
        struct hr_operand result;
        uint32_t source_count;
        const struct hr_operand *sources; /* source_count; an absent one has data NULL, type
                                           * UINT32_MAX */
        uint32_t joined; /* that many steps after it are computed in one pass with it: the result of
                          * each but the last has no memory (data NULL), and is a source of the next
                          * step only */
};

#define HR_OPERAND_ABSENT UINT32_MAX

/* The nodes of one split, bound to one slot's addresses, in execution order. */
struct hr_steps {
        uint32_t count;
        const struct hr_step *steps;
        uint32_t before; /* steps of the plan's splits before this one */
        uint32_t split;  /* number of the split in its plan */
};

/* Nodes of one split, as optimize() sees them: they compute something, one after the other, and
 * what lies between them are views. */
struct hr_split_view {
        const struct hr_graph *graph;
        const uint32_t *nodes; /* ascending, the graph's own order */
        uint32_t node_count;
        /* Per node: the place in `nodes` of the one that reads its result, when that one takes it
         * as one source and nobody else needs it: it is no output, is not observed, has memory of
         * its own, is nobody's base, and no other device reads it. HR_NO_READER otherwise. */
        const uint32_t *reader;
};

#define HR_NO_READER UINT32_MAX

/* ---- Device ---------------------------------------------------------------------------------- */

struct hr_device_props {
        const char *name;        /* unique in the fleet: "cpu0", "blas", "cuda0" */
        const char *description; /* for people */
        hr_device_type type;
        const struct hr_buffer_kind *kind; /* of its own memory, compute buffers included */
        bool events;             /* queues of it can record and wait */
        bool async;              /* copies run beside computation */
        uint32_t threads;        /* 0 where that has no meaning */
        bool experts;            /* its queues execute copy_experts */
        uint32_t expert_pad;     /* bytes that kernels may read past the end of an expert */
        bool uploads;            /* a second queue brings host bytes while the first one computes */
};

struct hr_device_ops {
        uint32_t size;
        void (*destroy)(struct hr_device *device);
        /* Pure function of node (id in graph) and its sources' types, shapes and strides. Leaves
         * are asked too, with op NONE. */
        bool (*supports_op)(const struct hr_device *device, const struct hr_graph *graph,
                            uint32_t tensor);
        /* Can kernels read and write memory of that kind in place? Always true for its own. */
        bool (*reads_kind)(const struct hr_device *device, const struct hr_buffer_kind *kind);
        /* Would it rather run this node although its weight lies in host memory? */
        bool (*wants_offload)(const struct hr_device *device, const struct hr_graph *graph,
                              uint32_t tensor);
        /* Zero-filled memory of the device's kind. HR_E_EXHAUSTED names asked and free bytes. */
        hr_status (*buffer_new)(struct hr_device *device, uint64_t bytes, hr_buffer_usage usage,
                                struct hr_diag *diag, struct hr_buffer **ret_buffer);
        hr_status (*queue_new)(struct hr_device *device, struct hr_diag *diag,
                               struct hr_queue **ret_queue);
        hr_status (*event_new)(struct hr_device *device, struct hr_diag *diag,
                               struct hr_event **ret_event);
        /* Prepares the steps of a split for replay: scratch memory, packed parameters, fusion. The
         * steps outlive the program. HR_E_EXHAUSTED without memory. */
        hr_status (*program_new)(struct hr_device *device, const struct hr_steps *steps,
                                 struct hr_diag *diag, struct hr_program **ret_program);
        /* Bytes of scratch that program_new would take, without addresses: for predictions. */
        uint64_t (*program_bytes)(const struct hr_device *device, const struct hr_graph *graph,
                                  const uint32_t *nodes, uint32_t node_count);
        void (*memory)(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total);
        /* Chooses the order of a split's nodes, and which of them share one pass. A pure function
         * of the view. `order` comes in as 0, 1, 2 ... and holds places in view->nodes; `joined`,
         * all false, says of a place in `order` that it is computed in one pass with the one after
         * it, which must be its reader. Every node still reads and overwrites what it does in the
         * graph's own order. The result of a pass may lie over one of its sources, with the same
         * address and layout, and over nothing else that it reads. */
        void (*optimize)(const struct hr_device *device, const struct hr_split_view *view,
                         uint32_t *order, bool *joined);
        /* The device will read this buffer of weights in memory of the host (host_base) again and
         * again: it may prepare that, beside whatever goes on, until the buffer goes. A hint.
         * Thread: engine. */
        void (*pin)(struct hr_device *device, struct hr_buffer *buffer);
        /* A queue for write, copy_experts, wait, record and notify, whose commands run beside those
         * of the device's other queues. Only where props.uploads says so. */
        hr_status (*upload_queue_new)(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue);
};

/* What a device counts of splits that it has recorded for replay. Thread: any. */
struct hr_graph_counters {
        atomic_uint_fast64_t captured; /* recorded anew */
        atomic_uint_fast64_t updated;  /* an earlier record given other addresses or sizes */
        atomic_uint_fast64_t replayed; /* splits computed from their record */
        atomic_uint_fast64_t failed;   /* records that the device did not take */
        atomic_uint_fast64_t launched; /* splits, or parts, given to the device kernel by kernel */
        /* Time of the host that this took: without what making a record takes. */
        atomic_uint_fast64_t replay_ns, launch_ns;
};

struct hr_device {
        const struct hr_device_ops *ops;
        struct hr_device_props props;
        atomic_uint refs;
        atomic_uint_fast64_t used_bytes; /* of buffers alive, kept by core/device.c */
        uint64_t memory_cap;             /* configured; 0 = none. Checked by hr_buffer_new */
        uint64_t expert_bytes;           /* configured before a fleet has it: memory for experts
                                          * that are copied when they are used; 0 = as plans say */
        struct hr_graph_counters graphs; /* all 0 where nothing is recorded */
        atomic_uint_fast64_t pinned_bytes; /* of the host's memory, locked for its copies */
        atomic_uint_fast64_t pins_failed;  /* buffers of which that could not be done, or not of
                                            * all */
        atomic_uint_fast64_t moves;      /* goes up while it computes, by steps where they are the
                                          * host's: for who asks whether it is stuck */
        atomic_bool lost;                /* for good; see hr_device_lose */
        const atomic_int *lost_with;     /* lost, too, when this is not 0; outlives the device. NULL
                                          * = nothing. For devices that share what can be lost */
};

struct hr_device *hr_device_ref(struct hr_device *device);
struct hr_device *hr_device_unref(struct hr_device *device);
bool hr_device_supports_op(const struct hr_device *device, const struct hr_graph *graph,
                           uint32_t tensor);
bool hr_device_reads_kind(const struct hr_device *device, const struct hr_buffer_kind *kind);
bool hr_device_wants_offload(const struct hr_device *device, const struct hr_graph *graph,
                             uint32_t tensor);
void hr_device_memory(const struct hr_device *device, uint64_t *ret_free, uint64_t *ret_total);
/* Bytes of scratch that a program of these nodes will take. */
uint64_t hr_device_program_bytes(const struct hr_device *device, const struct hr_graph *graph,
                                 const uint32_t *nodes, uint32_t node_count);
/* The device will not compute again, and what is in its memory is gone. A backend that finds out
 * says so; a member that answers HR_E_DEVICE_LOST has said so. From then on nothing that it was
 * given has an effect on memory any more, its commands fail their outcomes with HR_E_DEVICE_LOST,
 * and waits, records and notifications that it took still happen. Thread: any. */
void hr_device_lose(struct hr_device *device);
bool hr_device_is_lost(const struct hr_device *device);
/* It has come one step further. Thread: the one that computes on it. */
static inline void hr_device_move(struct hr_device *device) {
        atomic_store_explicit(&device->moves,
                              atomic_load_explicit(&device->moves, memory_order_relaxed) + 1,
                              memory_order_relaxed);
}

/* Keeps the order, joins nothing: for devices without opinion. */
void hr_device_optimize_none(const struct hr_device *device, const struct hr_split_view *view,
                             uint32_t *order, bool *joined);
/* See hr_device_ops.pin; a no-op for buffers that are no weights in memory of the host. */
void hr_device_pin(struct hr_device *device, struct hr_buffer *buffer);
/* For devices that read memory of the host as it is. */
void hr_device_pin_none(struct hr_device *device, struct hr_buffer *buffer);
/* For devices without a second queue: HR_E_UNSUPPORTED. */
hr_status hr_device_upload_queue_none(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue);
/* Asks the device; fills order and joined, view->node_count elements each. */
void hr_device_optimize(const struct hr_device *device, const struct hr_split_view *view,
                        uint32_t *order, bool *joined);

/* ---- Buffer ---------------------------------------------------------------------------------- */

struct hr_buffer_ops {
        uint32_t size;
        void (*destroy)(struct hr_buffer *buffer);
        /* More bytes behind those that it has, zero-filled, at the same address; `bytes` is all
         * that it then has. What is in flight is not disturbed. HR_E_UNSUPPORTED where memory
         * cannot grow, or not that far. */
        hr_status (*grow)(struct hr_buffer *buffer, uint64_t bytes, struct hr_diag *diag);
};

/* How many runs used each expert of a weight that lies at `offset` of a buffer. Counted by the
 * queues that copy experts, read by any thread; lives as long as the buffer. */
struct hr_expert_usage {
        struct hr_expert_usage *next;
        uint64_t offset;
        uint32_t experts;
        atomic_uint_fast64_t runs[];
};

/* What a device has prepared of a buffer's memory: let go of before that memory goes. */
struct hr_buffer_pin {
        struct hr_buffer_pin *next;
        void (*release)(struct hr_buffer_pin *pin);
};

/* Reference counted; holds its device. Contents are reached through queues only, except that a
 * buffer with `host_base` may be touched by whoever knows that nothing in flight uses it. */
struct hr_buffer {
        const struct hr_buffer_ops *ops;
        struct hr_device *device;
        const struct hr_buffer_kind *kind;
        hr_buffer_usage usage;
        atomic_uint refs;
        void *base;      /* device address of byte 0 */
        void *host_base; /* the same memory as seen by the host, or NULL */
        uint64_t bytes;
        atomic_uint changes; /* how often its contents were replaced; usage WEIGHTS only */
        struct hr_expert_usage *expert_usages; /* a list */
        struct hr_buffer_pin *pins;            /* a list; the engine's while anybody refers to it */
};

HR_NODISCARD hr_status hr_buffer_new(struct hr_device *device, uint64_t bytes,
                                     hr_buffer_usage usage, struct hr_diag *diag,
                                     struct hr_buffer **ret_buffer);
/* See hr_buffer_ops.grow; charged to the device. `bytes` is at least what it has. On failure it is
 * as it was. HR_E_EXHAUSTED (reason DEVICE_MEMORY), HR_E_UNSUPPORTED. Thread: engine. */
HR_NODISCARD hr_status hr_buffer_grow(struct hr_buffer *buffer, uint64_t bytes,
                                      struct hr_diag *diag);
/* For buffers of one size: HR_E_UNSUPPORTED. */
hr_status hr_buffer_grow_none(struct hr_buffer *buffer, uint64_t bytes, struct hr_diag *diag);
/* A buffer of kind hr_host_kind over memory that somebody else owns (a mapped file); release(arg)
 * is called once with the last reference. Not charged to the device. */
HR_NODISCARD hr_status hr_buffer_wrap(struct hr_device *device, void *base, uint64_t bytes,
                                      hr_buffer_usage usage, void (*release)(void *arg), void *arg,
                                      struct hr_diag *diag, struct hr_buffer **ret_buffer);
/* The same over memory that was taken for it: charged to the device until it goes. HR_E_EXHAUSTED
 * (reason DEVICE_MEMORY). */
HR_NODISCARD hr_status hr_buffer_adopt(struct hr_device *device, void *base, uint64_t bytes,
                                       hr_buffer_usage usage, void (*release)(void *arg), void *arg,
                                       struct hr_diag *diag, struct hr_buffer **ret_buffer);
/* True when its contents are gone with its device. Host memory outlives the device that asked for
 * it. Thread: any. */
bool hr_buffer_is_lost(const struct hr_buffer *buffer);
/* To be called after bytes of a buffer of weights have been written that runs may have read before:
 * what devices keep of it is not used any more. Thread: any. */
void hr_buffer_changed(struct hr_buffer *buffer);
/* The counters of the weight there, made at the first call. Thread: engine. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_buffer_expert_usage(struct hr_buffer *buffer, uint64_t offset,
                                              uint32_t experts, struct hr_diag *diag,
                                              struct hr_expert_usage **ret_usage);
struct hr_buffer *hr_buffer_ref(struct hr_buffer *buffer);
struct hr_buffer *hr_buffer_unref(struct hr_buffer *buffer);
HR_DEFINE_CLEANUP(struct hr_buffer *, hr_buffer_unrefp, hr_buffer_unref)

/* ---- Program --------------------------------------------------------------------------------- */

struct hr_program_ops {
        uint32_t size;
        void (*destroy)(struct hr_program *program);
};

/* A split prepared by one device. Owned by the pipeline slot. */
struct hr_program {
        const struct hr_program_ops *ops;
        struct hr_device *device;
        const struct hr_steps *steps;
        uint64_t scratch_bytes;
};

HR_NODISCARD hr_status hr_program_new(struct hr_device *device, const struct hr_steps *steps,
                                      struct hr_diag *diag, struct hr_program **ret_program);
struct hr_program *hr_program_free(struct hr_program *program);

/* ---- Experts --------------------------------------------------------------------------------- */

/* What a run moved of experts. Several queues may count into one. */
struct hr_expert_tally {
        atomic_uint_fast64_t hits;   /* used experts that were there, each counted once per ids */
        atomic_uint_fast64_t misses; /* ... that were not */
        atomic_uint_fast64_t copies; /* moves: neighbours go together */
        atomic_uint_fast64_t bytes;
};

/* One weight [k, m, experts] of a mixture in host memory, and its places on the device. */
struct hr_expert_weight {
        struct hr_buffer *home; /* holds the weight; not referenced */
        const uint8_t *from;
        uint8_t *to;
        uint64_t from_stride, to_stride; /* from expert to expert, from place to place */
        uint64_t bytes;                  /* of an expert; up to to_stride zeros follow */
        /* The executing queue's. */
        unsigned changes;   /* of its home, when it was looked at last */
        uint64_t copied_at; /* clock of the last scan whose experts it has */
};

/* The weights of a device that are used with the same ids, and which experts are there. With as
 * many places as experts, expert e has place e and kernels read the ids as they are. With fewer,
 * the ids are translated into places. Made and freed by the pipeline; from the first command to the
 * last it belongs to the thread that executes them. */
struct hr_expert_cache {
        uint32_t node;    /* for messages: the first one that uses the ids */
        uint32_t experts; /* valid ids are 0 .. experts - 1 */
        uint32_t places;  /* at least as many as one run can use */
        bool resident;    /* the places keep their experts from run to run */
        int64_t ne[2];    /* of the ids */
        uint64_t nb[2];
        int32_t *translated; /* ne[0] x ne[1], contiguous, on the device; NULL with places =
                              * experts */
        struct hr_expert_weight *weights;
        uint32_t weight_count;
        /* The executing queue's. */
        uint64_t clock;      /* scans so far */
        uint32_t *place_of;  /* per expert; >= places: nowhere */
        uint32_t *expert_at; /* per place; >= experts: nothing */
        uint64_t *used_at;   /* per expert: clock of its latest use */
        atomic_uint_fast64_t *uses; /* per expert: scans that named it; read by any thread */
        struct hr_expert_usage *usage; /* the same for all that use the first weight; NULL = not
                                        * kept */
        uint32_t *missing;   /* experts to be copied after the latest scan, ascending */
        uint32_t missing_count;
};

/* ---- Queue and event ------------------------------------------------------------------------- */

typedef void (*hr_notify_fn)(void *arg);

/* Every member: thread engine; returns before the work is done. `outcome` may be NULL for commands
 * that belong to no run (uploads), whose failures then mark the queue. */
struct hr_queue_ops {
        uint32_t size;
        void (*destroy)(struct hr_queue *queue); /* after all work has ended */
        /* Runs steps first .. first + count - 1. */
        hr_status (*compute)(struct hr_queue *queue, struct hr_program *program, uint32_t first,
                             uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag);
        /* Host memory to this device's memory. The host bytes stay untouched until it has run. */
        hr_status (*write)(struct hr_queue *queue, void *destination, const void *host,
                           uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag);
        /* This device's memory to host memory. */
        hr_status (*read)(struct hr_queue *queue, const void *source, void *host, uint64_t bytes,
                          struct hr_outcome *outcome, struct hr_diag *diag);
        /* This device's memory to memory of kind `to`. HR_E_UNSUPPORTED, before anything is queued,
         * where it cannot: the caller then goes through host memory. */
        hr_status (*copy)(struct hr_queue *queue, const void *source, void *destination,
                          const struct hr_buffer_kind *to, uint64_t bytes,
                          struct hr_outcome *outcome, struct hr_diag *diag);
        /* A pure function: would copy() do it? */
        bool (*can_copy)(const struct hr_queue *queue, const struct hr_buffer_kind *to);
        /* Words that say why copies to memory of that kind go through host memory although there is
         * a way of their own: a test at the start found that it does not give the same bytes. NULL:
         * there is no such fault. Thread: any, once all devices have been made. */
        const char *(*copy_fault)(const struct hr_queue *queue, const struct hr_buffer_kind *to);
        /* Later commands of this queue run after the latest record() of event submitted so far; an
         * event never recorded does not hold anything up. Any backend's event. */
        hr_status (*wait)(struct hr_queue *queue, struct hr_event *event, struct hr_diag *diag);
        hr_status (*record)(struct hr_queue *queue, struct hr_event *event, struct hr_diag *diag);
        /* Calls fn(arg) once after all earlier commands, whatever became of them. Thread of fn:
         * any. fn does not block and submits nothing. */
        hr_status (*notify)(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                            struct hr_diag *diag);
        /* Brings the used experts of cache->weights[weight] to their places. The first weight's
         * command reads the ids, in order with the queue's other commands, and decides for all;
         * those of the others follow in the same run. `ids` is an address on the device. An id that
         * is no expert fails the outcome: HR_E_RANGE, reason INDEX_VALUE. Only where props.experts
         * says so. */
        hr_status (*copy_experts)(struct hr_queue *queue, struct hr_expert_cache *cache,
                                  uint32_t weight, const void *ids, struct hr_expert_tally *tally,
                                  struct hr_outcome *outcome, struct hr_diag *diag);
};

struct hr_queue {
        const struct hr_queue_ops *ops;
        struct hr_device *device;
        struct hr_recorder *recorder; /* what its commands are recorded in, by the thread that
                                       * executes them, where the backend does; set before the first
                                       * command, outlives the queue; NULL = not recorded */
};

struct hr_event_ops {
        uint32_t size;
        void (*destroy)(struct hr_event *event);
        /* Has the latest record submitted so far been reached? True if there was none. */
        bool (*query)(struct hr_event *event);
        /* Blocks until then, at most timeout_ns. Thread: any but the engine's hot path.
         * HR_E_DEADLINE when it has not been reached. */
        hr_status (*synchronize)(struct hr_event *event, uint64_t timeout_ns, struct hr_diag *diag);
};

/* An event may be waited for by a queue of another host backend through query/synchronize. */
struct hr_event {
        const struct hr_event_ops *ops;
        struct hr_device *device;
};

HR_NODISCARD hr_status hr_queue_new(struct hr_device *device, struct hr_diag *diag,
                                    struct hr_queue **ret_queue);
/* What the device has for uploads alone; HR_E_UNSUPPORTED without props.uploads. */
HR_NODISCARD hr_status hr_queue_new_for_uploads(struct hr_device *device, struct hr_diag *diag,
                                                struct hr_queue **ret_queue);
struct hr_queue *hr_queue_free(struct hr_queue *queue);
HR_NODISCARD hr_status hr_queue_compute(struct hr_queue *queue, struct hr_program *program,
                                        uint32_t first, uint32_t count, struct hr_outcome *outcome,
                                        struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_write(struct hr_queue *queue, void *destination, const void *host,
                                      uint64_t bytes, struct hr_outcome *outcome,
                                      struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_read(struct hr_queue *queue, const void *source, void *host,
                                     uint64_t bytes, struct hr_outcome *outcome,
                                     struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_copy(struct hr_queue *queue, const void *source, void *destination,
                                     const struct hr_buffer_kind *to, uint64_t bytes,
                                     struct hr_outcome *outcome, struct hr_diag *diag);
bool hr_queue_can_copy(const struct hr_queue *queue, const struct hr_buffer_kind *to);
const char *hr_queue_copy_fault(const struct hr_queue *queue, const struct hr_buffer_kind *to);
/* NULL, for queues of which every way gives the same bytes. */
const char *hr_queue_copy_fault_none(const struct hr_queue *queue,
                                     const struct hr_buffer_kind *to);
HR_NODISCARD hr_status hr_queue_wait(struct hr_queue *queue, struct hr_event *event,
                                     struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_record(struct hr_queue *queue, struct hr_event *event,
                                       struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_notify(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                                       struct hr_diag *diag);
HR_NODISCARD hr_status hr_queue_copy_experts(struct hr_queue *queue, struct hr_expert_cache *cache,
                                             uint32_t weight, const void *ids,
                                             struct hr_expert_tally *tally,
                                             struct hr_outcome *outcome, struct hr_diag *diag);

HR_NODISCARD hr_status hr_event_new(struct hr_device *device, struct hr_diag *diag,
                                    struct hr_event **ret_event);
struct hr_event *hr_event_free(struct hr_event *event);
bool hr_event_query(struct hr_event *event);
HR_NODISCARD hr_status hr_event_synchronize(struct hr_event *event, uint64_t timeout_ns,
                                            struct hr_diag *diag);
