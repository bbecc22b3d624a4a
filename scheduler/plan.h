/*
 * The inside of the scheduler: what planning reads, what a plan is, and the passes.
 *
 * Planning is a chain of pure functions over struct hr_plan_input. The input is made either from a
 * fleet and the homes of the leaves (caps.c) or, in tests, from recorded facts. A plan holds no
 * pointer to anything outside itself, no address and no time; all of it lives in one arena.
 *
 * Words. The *root* of a tensor is the tensor whose memory it is a window on, itself if it has its
 * own. A *lane* is a set of devices that touch common memory in place: all work of a lane happens
 * in plan order, whatever queues it uses. A *copy* is a tensor's instance for a device that cannot
 * reach the tensor's memory.
 */
#pragma once

#include "core/arena.h"
#include "scheduler/scheduler.h"

#define HR_NO_BUFFER UINT32_MAX
#define HR_NO_COPY UINT32_MAX
#define HR_NO_INDEX UINT32_MAX

/* ---- Input ------------------------------------------------------------------------------------
 */

struct hr_plan_device {
        hr_device_type type;
        uint32_t kind;       /* index of the kind of its compute memory */
        bool experts;        /* it can be given the used experts alone */
        uint32_t expert_pad; /* bytes that it may read past one */
        uint64_t expert_bytes; /* for those that it keeps; 0 = as the options say */
        bool uploads;          /* a second queue of it brings host bytes while it computes */
};

struct hr_plan_kind {
        bool host;
        uint32_t alignment;
};

/* Memory that exists before planning. Read-only buffers of one kind may be one entry; a writable
 * one is an entry of its own, since accesses to it are ordered. */
struct hr_plan_buffer {
        uint32_t kind;
        hr_buffer_usage usage;
};

/* Everything a plan depends on. Arrays indexed by tensor cover leaves, nodes and extras. The graph
 * need not be validated: it may hold self-sources, ops outside op.def and chained views. */
struct hr_plan_input {
        const struct hr_graph *graph;
        uint32_t device_count, kind_count, buffer_count;
        const struct hr_plan_device *devices; /* priority order; the last is a CPU */
        const struct hr_plan_kind *kinds;
        const struct hr_plan_buffer *buffers;
        const uint64_t *reads;  /* per device: bit set over kinds it reads and writes in place */
        const uint64_t *copies; /* per device: kinds its queue copies into; NULL = all */
        const uint32_t *tensor_buffer; /* per tensor: buffer of its own or HR_NO_BUFFER */
        const int32_t *pins;           /* per tensor or NULL */
        const uint32_t *taps;          /* ids of nodes, ascending */
        uint32_t tap_count;
        /* Which devices support a tensor's op, and which ask to take it over: recorded as a bit set
         * per tensor, or else asked of the fleet when a pass wants to know. */
        const uint64_t *supports, *offload;
        const uint64_t *retired; /* bit set over devices that take no part; NULL = none */
        const struct hr_fleet *fleet;
        struct hr_plan_options options;
        uint32_t current_slot; /* rules = ggml: slot that replacements name */
};

/* ---- Plan --------------------------------------------------------------------------------------
 */

/* The last rule that set a device. HR_CAUSE_WEIGHT + n: source n is a weight. */
typedef enum hr_cause {
        HR_CAUSE_NONE,
        HR_CAUSE_USER,
        HR_CAUSE_MEMORY,      /* 1.dst */
        HR_CAUSE_MEMORY_VIEW, /* 1.vsrc */
        HR_CAUSE_INPUT,       /* 1.inp */
        HR_CAUSE_OFFLOAD,     /* 1.off */
        HR_CAUSE_GPU_DOWN,    /* 2.gd */
        HR_CAUSE_GPU_UP,      /* 2.gu */
        HR_CAUSE_REST_DOWN,   /* 2.rd */
        HR_CAUSE_REST_UP,     /* 2.ru */
        HR_CAUSE_BEST,        /* 3.best */
        HR_CAUSE_UPGRADE,     /* 3.upg */
        HR_CAUSE_VIEW_BASE,   /* 4.vsrc */
        HR_CAUSE_CONSUMER,    /* 4.cur */
        HR_CAUSE_FIRST,       /* 4.fst */
        HR_CAUSE_COPIES,      /* 4.cpy */
        HR_CAUSE_RULE_WRITER, /* h.writer: moved to where its base's buffer is reachable */
        HR_CAUSE_RULE_VIEW,   /* h.view: leaf takes the device of the view that uses it */
        HR_CAUSE_WEIGHT,      /* 1.wgt0; must be last */
} hr_cause;

/* The named rules of rules = headrace; how often each changed a decision is in the plan. */
typedef enum hr_rule {
        HR_RULE_PINS,        /* a pin is not overridden by an upgrade */
        HR_RULE_NO_CUT,      /* an input list of 30 does not end a split */
        HR_RULE_OFFLOAD,     /* offload weighs the bytes it moves */
        HR_RULE_WRITER,      /* a writer runs where its base is reachable */
        HR_RULE_WRITE_BACK,  /* a writer that cannot: its result is carried back */
        HR_RULE_VIEW_LEAF,   /* a leaf reached through views only takes the view's device */
        HR_RULE_IDLE_DEVICE, /* a device without a node changes nothing */
        HR_RULE_REACH,       /* memory decides whether a copy is needed, not the label of a view */
        HR_RULE_FRESH_COPY,  /* a copy made before a write is not used after it */
        HR_RULE_LABEL,       /* a leaf or view in memory needs a reader, not support of its op */
        HR_RULE_EXPERTS,     /* a split starts where ids made in the one before choose experts */
        HR_RULE_COUNT
} hr_rule;

/* A node that fell back to the last device; beside the bits of the rules. */
#define HR_NOTE_FALLBACK 0x8000U
_Static_assert(HR_RULE_COUNT <= 15, "rules and notes share 16 bits");

typedef enum hr_split_reason {
        HR_SPLIT_FIRST,
        HR_SPLIT_DEVICE, /* "backend" */
        HR_SPLIT_WEIGHT,
        HR_SPLIT_INPUTS,
        HR_SPLIT_WRITE_BACK, /* rules = headrace only */
        HR_SPLIT_EXPERTS,    /* likewise */
} hr_split_reason;

/* How the bytes of a copy get there. */
typedef enum hr_copy_method {
        HR_COPY_INPUT,       /* written from the run's own input bytes */
        HR_COPY_CONSTANT,    /* written once, when the pipeline is made */
        HR_COPY_HOST_WEIGHT, /* written from read-only host memory */
        HR_COPY_EXPERTS,     /* likewise, but the used experts only */
        HR_COPY_DIRECT,      /* by the queue of the source memory */
        HR_COPY_STAGED,      /* read into host memory, then written */
} hr_copy_method;

typedef enum hr_where {
        HR_WHERE_NONE,    /* no memory: empty, or never touched */
        HR_WHERE_SHARED,  /* in the pool `index`, the same in every slot */
        HR_WHERE_SLOT,    /* in the pool `index`, once per slot */
        HR_WHERE_HOME,    /* in the buffer of leaf `index` */
        HR_WHERE_STAGING, /* host memory of the pipeline, once per slot */
} hr_where;

struct hr_place {
        hr_where where;
        uint32_t index;
        uint64_t offset;
};

struct hr_plan_copy {
        uint32_t tensor;
        uint32_t device;        /* that reads the copy */
        uint32_t split;         /* that lists it as input */
        uint32_t next;          /* older copy of the same tensor; HR_NO_COPY ends */
        uint32_t version;       /* writes into the root's memory before the copy */
        uint32_t source_device; /* whose queue reads the source; HR_NO_INDEX for INPUT, CONSTANT,
                                 * HOST_WEIGHT */
        uint32_t ready_after;   /* split of the reader's lane that used this memory last, or
                                 * HR_NO_INDEX */
        hr_copy_method method;
        bool write_back;      /* holds the result of a writer, carried back after its split */
        bool back_staged;     /* ... through staging */
        bool is_upload;       /* HOST_WEIGHT, EXPERTS: brought by the device's upload queue */
        uint32_t placed_at;   /* split at whose start it takes its memory: `split`, or, so that it
                               * can arrive meanwhile, the one before it in its lane */
        uint32_t home_device; /* ... whose queue owns the memory it goes back to */
        uint64_t bytes;       /* that it takes */
        struct hr_place place;
        uint64_t staging_offset;
        uint32_t group, member; /* EXPERTS: into plan->groups, and its number there; HR_NO_INDEX */
        uint64_t expert_bytes, expert_stride; /* EXPERTS: of an expert, and of its place */
};

/* Copies of weights [k, m, experts] for one device, chosen by the same ids. The first member's copy
 * reads the ids; the others follow in the same run. */
struct hr_expert_group {
        uint32_t device, ids, version; /* what makes a group: with the writes into the ids so far */
        uint32_t experts;
        uint32_t ids_copy; /* that the device reads, or HR_NO_COPY */
        uint32_t node;     /* the first that uses it */
        uint32_t next;     /* older group of the same ids, or HR_NO_INDEX */
        uint32_t member_count;
        uint32_t most;              /* experts that one run can use */
        uint32_t places;            /* of experts on the device: from `most` to `experts` */
        bool resident;              /* the places belong to it from run to run */
        struct hr_place translated; /* of the ids as places, with fewer places than experts */
        bool is_upload;             /* its copies are brought by the device's upload queue */
        uint32_t ids_split;         /* ... once this split has been computed; HR_NO_INDEX: once all
                                     * else that the first member's split needs has arrived */
};

struct hr_plan_split {
        uint32_t device;
        uint32_t start, end; /* nodes start .. end - 1 */
        hr_split_reason reason;
        uint32_t input_first, input_count; /* into plan->inputs: copies, in order */
        uint32_t step_first, step_count;   /* into plan->steps: nodes that compute something */
        uint32_t write_back;               /* copy to carry back, or HR_NO_COPY */
};

/* A node whose result an observed run shows. */
struct hr_plan_tap {
        uint32_t tensor;
        uint32_t split;
        uint32_t step; /* into plan->steps: those before it have been computed, no others */
};

/* One kind's compute memory: [shared: [kept][passing]][slot 0][slot 1]... What is kept lives as
 * long as the pipeline; what passes is nothing between runs, and may serve other pipelines then. */
struct hr_plan_pool {
        uint32_t owner;        /* device that allocates it */
        uint64_t kept_bytes;   /* the first of shared_bytes; all three multiples of the alignment */
        uint64_t shared_bytes;
        uint64_t slot_bytes;
};

typedef enum hr_command_code {
        HR_COMMAND_WAIT, /* device's queue waits for event */
        HR_COMMAND_RECORD,
        HR_COMMAND_GATE, /* device's queue waits for the pipeline that used the memory of `kind`,
                          * which passes through many pipelines, before this one */
        HR_COMMAND_INPUT, /* bytes of input `index` from from.offset on are written to `to` */
        HR_COMMAND_WRITE, /* host memory `from` (home or staging) to `to` */
        HR_COMMAND_READ,  /* `from` into staging `to` */
        HR_COMMAND_COPY,  /* `from` to `to`, of memory kind `kind` */
        HR_COMMAND_COPY_EXPERTS, /* of copy `index`: host memory `from` to `to`, as the ids say */
        HR_COMMAND_COMPUTE,      /* steps first .. first + count - 1 of split `index` */
        HR_COMMAND_TAP,          /* tap `index` from `from`, if the run is observed */
        HR_COMMAND_READ_BACK,    /* output `index` from `from`, if the run wants it */
        HR_COMMAND_NOTIFY,       /* the run is done when every notification has arrived */
} hr_command_code;

struct hr_command {
        hr_command_code code;
        bool upload; /* the device's upload queue executes it, not the one that computes */
        uint32_t device;
        uint32_t index; /* split, input, output or event; NOTIFY: lane, of an upload queue its last
                         * event */
        uint32_t kind;
        uint64_t bytes;
        uint32_t first, count; /* COMPUTE: a range of the split's steps */
        uint32_t from_holds, to_holds; /* root that lies there; copies count from tensor_count */
        struct hr_place from, to;
};

/* Events: 0 .. slot_event_count - 1 exist per slot; the next lane_count once: the end of a lane. */
struct hr_tape {
        struct hr_command *commands;
        uint32_t count;
        uint32_t slot_event_count;
        uint32_t *lane_first, *lane_last; /* per lane: device that starts and that ends it */
};

struct hr_plan {
        atomic_uint refs;
        struct hr_arena arena;
        struct hr_plan_options options;
        uint32_t leaf_count, node_count, tensor_count;
        uint32_t device_count, kind_count, words; /* words of a bit set over devices */

        /* Placement of tensors. */
        int32_t *device;       /* per tensor; -1 none */
        uint16_t *cause;       /* per tensor: hr_cause */
        uint16_t *notes;       /* per tensor: bits of the hr_rules that touched it, and below */
        uint32_t *root;        /* per tensor */
        uint64_t *root_offset; /* per tensor: bytes into the root */
        uint64_t *span;        /* per tensor: bytes it touches */
        int32_t *pins;         /* NULL = none */

        /* Splits. */
        struct hr_plan_split *splits;
        uint32_t split_count;
        struct hr_plan_copy *copies;
        uint32_t copy_count;
        struct hr_expert_group *groups;
        uint32_t group_count;
        uint32_t *inputs; /* copy indices */
        uint32_t input_count;
        uint32_t *source_start; /* per node, + 1: first position in source_copy */
        uint32_t *source_copy;  /* per source of a node: the copy it uses or HR_NO_COPY */
        uint32_t *result_copy;  /* per node that is carried back: where it writes; NULL = none */
        uint32_t *graph_inputs; /* rules = ggml, several copies: inputs kept per slot */
        uint32_t graph_input_count;
        uint32_t *steps; /* node indices, split after split, in the order of execution */
        uint32_t step_count;
        bool *joined; /* per step: computed in one pass with the next, which alone reads its result;
                       * that has no memory. NULL = none is */
        uint32_t rule_count[HR_RULE_COUNT];
        uint32_t fallback_nodes;

        /* Taps, in the order of their nodes. */
        struct hr_plan_tap *taps;
        uint32_t *tap_ids; /* their tensors, as the request had them */
        uint32_t tap_count;
        uint64_t tap_bytes; /* of the largest */

        /* Memory and order. */
        uint32_t n_copies;
        const char *copies_reason;
        uint32_t *lane; /* per device: lane, or HR_NO_INDEX where the run has no business */
        uint32_t lane_count;
        uint32_t *pool_lane;        /* per kind: lane that computes in its pool, or HR_NO_INDEX */
        struct hr_place *place;     /* per tensor, valid for roots */
        struct hr_plan_pool *pools; /* per kind */
        uint64_t staging_bytes;     /* per slot */
        uint64_t *scratch_bytes; /* per device, all slots: of programs; known to plans of a fleet */
        uint64_t *compute_bytes; /* per device, all slots */
        uint64_t *copies_bytes;  /* ... of them of copies */
        uint32_t *device_splits;
        uint64_t copied_bytes;  /* per run, at most */
        uint64_t expert_bytes;  /* ... of them of experts */
        uint32_t *kind_of_leaf; /* per leaf with a buffer: kind of that buffer */
        bool *state_lane;       /* per lane: touches writable buffers of its homes */
        bool *uploads;          /* per device: its upload queue has commands */
        const char *arrival;    /* of weights from host memory: hr_plan_summary's `uploads` */
        bool *touches;          /* walkers x kinds: passing memory that its commands touch; walkers
                                 * are the lanes, then the devices' upload queues */
        struct hr_tape tape;
        struct hr_diag fault; /* rules = ggml: why the plan cannot be run; HR_OK = it can */
};

/* Where a tensor lies, in its root. */
static inline struct hr_place hr_plan_tensor_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

/* Queues of a plan: the devices', then, counted from device_count on, their upload queues. */
static inline uint32_t hr_plan_queue(const struct hr_plan *plan,
                                     const struct hr_command *command) {
        return command->device + (command->upload ? plan->device_count : 0);
}

static inline bool *hr_plan_touches(const struct hr_plan *plan, const struct hr_command *command) {
        uint32_t walker = command->upload ? plan->lane_count + command->device
                                          : plan->lane[command->device];

        return plan->touches + (size_t) walker * plan->kind_count;
}

/* Memory of the kind that is nothing between runs. */
static inline uint64_t hr_plan_passing_bytes(const struct hr_plan *plan, uint32_t kind) {
        return plan->pools[kind].shared_bytes - plan->pools[kind].kept_bytes;
}

/* Is it in memory that passes? */
static inline bool hr_plan_passes(const struct hr_plan *plan, const struct hr_place *place) {
        return place->where == HR_WHERE_SHARED &&
               place->offset >= plan->pools[place->index].kept_bytes;
}

/* Does the lane, or an upload queue whose commands its end comes after, touch passing memory of the
 * kind? */
bool hr_plan_lane_touches(const struct hr_plan *plan, uint32_t lane, uint32_t kind);

/* ---- Planning ----------------------------------------------------------------------------------
 */

/* What the passes ask of a tensor again and again, in little memory. */
struct hr_plan_tensor {
        uint32_t source_first, source_count, view_base;
        uint16_t op; /* UINT16_MAX for numbers past it */
        uint8_t leaf_kind;
        uint8_t flags; /* HR_TENSOR_..., and below */
};

#define HR_PLAN_IS_VIEW 0x10U /* a view op */
#define HR_PLAN_IS_STEP 0x20U /* a node that computes something */
/* A node that writes into memory which is not its own to place: a base's, or given before. */
#define HR_PLAN_WRITES_GIVEN 0x40U

/* A node reads or writes what a holder has: a root, or a copy, which count from tensor_count on. */
struct hr_plan_use {
        uint32_t holder, node;
};

/* What the passes share. What lies in `scratch` lives as long as the planning. */
struct hr_planner {
        const struct hr_plan_input *in;
        const struct hr_graph *graph;
        struct hr_plan *plan;
        struct hr_arena *scratch;
        struct hr_diag *diag;
        bool headrace;
        uint32_t kind_words;
        struct hr_plan_tensor *tensors;
        /* Per tensor, bit sets over devices: which support its op, and, where devices are asked, of
         * which that is known. */
        uint64_t *supports, *asked;
        uint64_t *readers;        /* per kind: bit set over devices that reach it */
        bool *has_twin;           /* per device: a lower one has compute memory of the same kind */
        bool any_twin;
        uint32_t outputs_first, outputs_end; /* where tensors flagged OUTPUT begin and end */
        uint64_t *allowed;        /* devices in play */
        uint32_t open_count;      /* nodes, views apart, that no device has been given so far */
        uint32_t open_first, open_end; /* ... and where they lie */
        bool *write_back;         /* per node, or NULL */
        bool late_writers;        /* some write into leaves that had no device at that time */
        struct hr_plan_use *uses; /* by nodes that compute, in their order: sources, then result */
        uint32_t use_count;
        struct hr_plan_use *tap_uses; /* per tap: its root, and the turn until which it lives;
                                       * HR_NO_INDEX: to the end */
        uint32_t *step_time; /* per step: the node at whose turn it is computed; NULL = its own */
        uint32_t *copy_head;  /* per tensor: newest copy */
        uint32_t *last_write; /* per tensor (roots): 1 + the last node that wrote into it; 0 none */
        uint32_t *group_head; /* per tensor: newest group whose ids it is; NULL without experts */
        uint32_t group_capacity;
        uint32_t *version; /* per tensor (roots): writes so far */
        bool *written;     /* per tensor (roots): some node writes into it */
        bool *direct;      /* per tensor (roots): touched in place or copied from its memory */
        uint32_t *output_reader; /* per output: the device whose queue reads it; HR_NO_INDEX: there
                                  * is nothing to read */
        uint32_t *tap_reader;    /* per tap, likewise */
        uint32_t *leaf_head, *leaf_next; /* per split: leaves that take their place in its prologue;
                                          * the entry past the last split: for outputs only */
};

/* The plan for an input, from first to last pass. */
HR_NODISCARD hr_status hr_plan_make(const struct hr_plan_input *input, struct hr_diag *diag,
                                    struct hr_plan **ret_plan);

/* The passes, in order. Each fills its part of planner->plan. */
HR_NODISCARD hr_status hr_plan_assign(struct hr_planner *planner); /* 1 to 4 */
HR_NODISCARD hr_status hr_plan_split(struct hr_planner *planner);  /* 5 */
HR_NODISCARD hr_status hr_plan_find_taps(struct hr_planner *planner);
HR_NODISCARD hr_status hr_plan_optimize(struct hr_planner *planner); /* order inside splits */
HR_NODISCARD hr_status hr_plan_lanes(struct hr_planner *planner);    /* lanes and n_copies */
HR_NODISCARD hr_status hr_plan_slots(struct hr_planner *planner);    /* called by the pass before */
HR_NODISCARD hr_status hr_plan_uploads(struct hr_planner *planner);  /* which copies arrive early */
HR_NODISCARD hr_status hr_plan_place(struct hr_planner *planner);
HR_NODISCARD hr_status hr_plan_tape(struct hr_planner *planner);
/* Proves that every hazard has an edge. HR_E_INTERNAL names the first that has none. */
HR_NODISCARD hr_status hr_plan_verify(const struct hr_plan *plan, const struct hr_plan_input *input,
                                      struct hr_diag *diag);
/* The same with memory from an arena. */
HR_NODISCARD hr_status hr_plan_prove(const struct hr_plan *plan, const struct hr_plan_input *input,
                                     struct hr_arena *arena, struct hr_diag *diag);
/* Its first part: every split computes each of its nodes once, each reads and overwrites what it
 * does in the graph's own order, and joined passes keep their hands off what they still read. */
HR_NODISCARD hr_status hr_plan_verify_steps(const struct hr_plan *plan,
                                            const struct hr_plan_input *input,
                                            struct hr_diag *diag);

/* ---- Experts: groups are found while splits are cut, and sized before they are placed. ---- */

/* Would the device take the used experts of the node's weight alone? */
bool hr_experts_wanted(const struct hr_planner *planner, uint32_t tensor, uint32_t device);
/* The group of the node's ids as they are now, or HR_NO_INDEX. */
uint32_t hr_experts_find(const struct hr_planner *planner, uint32_t tensor, uint32_t device);
HR_NODISCARD hr_status hr_experts_add(struct hr_planner *planner, uint32_t tensor, uint32_t device,
                                      uint32_t *ret_group);
/* Decides places and residency within the expert_bytes of options and devices, and how much each
 * copy takes. */
HR_NODISCARD hr_status hr_experts_size(struct hr_planner *planner);

/* The rules of rules = headrace that act on a whole assignment. */
HR_NODISCARD hr_status hr_rule_pins_check(struct hr_planner *planner);
void hr_rule_view_leaves(struct hr_planner *planner);
HR_NODISCARD hr_status hr_rule_strict(struct hr_planner *planner);
/* The device that takes over node `tensor`, whose host weight is `weight`, or -1. `plain` is the
 * answer without the rule. */
int64_t hr_rule_offload(struct hr_planner *planner, uint32_t tensor, uint32_t weight,
                        int64_t plain);
HR_NODISCARD hr_status hr_rule_writer(struct hr_planner *planner, uint32_t tensor);
/* The devices in play that hold labels but no node, as a bit set. True when there are any. */
bool hr_rule_idle_devices(struct hr_planner *planner, uint64_t *ret_idle);

/* Do the addresses of the split's nodes differ from slot to slot? */
bool hr_plan_split_is_per_slot(const struct hr_plan *plan, const struct hr_graph *graph,
                               const struct hr_plan_split *split);

/* Bytes of copies per device with so many slots. Copies that share memory with others count each,
 * but never more than there is. */
void hr_plan_copies_bytes(const struct hr_plan *plan, uint32_t slots, uint64_t *ret_bytes);

const char *hr_rule_name(hr_rule rule);
/* "1.wgt0" needs the buffer; returns a name as in the recorded plans. */
const char *hr_cause_name(uint16_t cause, char *buffer, size_t buffer_bytes);
const char *hr_split_reason_name(hr_split_reason reason);

/* An input made from a request; owns its arrays. */
struct hr_plan_facts {
        struct hr_plan_input input;
        const struct hr_buffer_kind **kinds; /* by the numbers that the input gives them */
        struct hr_arena arena;
};
HR_NODISCARD hr_status hr_plan_facts_init(struct hr_plan_facts *facts,
                                          const struct hr_plan_request *request,
                                          struct hr_diag *diag);
void hr_plan_facts_deinit(struct hr_plan_facts *facts);

/* ---- Small questions ---------------------------------------------------------------------------
 */

/* caps.c: asks the device and keeps its answer. */
bool planner_ask(const struct hr_planner *planner, uint32_t device, uint32_t tensor);
/* Does the device ask to take the node over? */
bool planner_wants_offload(const struct hr_planner *planner, uint32_t device, uint32_t tensor);

static inline bool planner_supports(const struct hr_planner *planner, uint32_t device,
                                    uint32_t tensor) {
        size_t word = (size_t) tensor * planner->plan->words + device / 64;
        uint64_t bit = (uint64_t) 1 << (device % 64);

        if (!(planner->allowed[device / 64] & bit))
                return false;
        if (planner->asked && !(planner->asked[word] & bit))
                return planner_ask(planner, device, tensor);
        return planner->supports[word] & bit;
}

static inline bool planner_reads(const struct hr_planner *planner, uint32_t device, uint32_t kind) {
        return hr_bit_get(planner->in->reads + (size_t) device * planner->kind_words, kind);
}

/* The rule has changed what becomes of the tensor. */
static inline void planner_note(const struct hr_planner *planner, hr_rule rule, uint32_t tensor) {
        ++planner->plan->rule_count[rule];
        planner->plan->notes[tensor] |= (uint16_t) (1U << rule);
}

static inline bool planner_pinned(const struct hr_planner *planner, uint32_t tensor) {
        return planner->in->pins && planner->in->pins[tensor] >= 0;
}

static inline const struct hr_plan_tensor *planner_tensor(const struct hr_planner *planner,
                                                          uint32_t tensor) {
        return &planner->tensors[tensor];
}

static inline bool planner_is_view(const struct hr_planner *planner, uint32_t tensor) {
        return planner->tensors[tensor].flags & HR_PLAN_IS_VIEW;
}

/* Id of source `position`, HR_TENSOR_NONE when absent. A recorded cast names itself. */
static inline uint32_t planner_source(const struct hr_planner *planner, uint32_t tensor,
                                      uint32_t position) {
        const struct hr_plan_tensor *t = planner_tensor(planner, tensor);

        return position < t->source_count ? planner->graph->sources[t->source_first + position]
                                          : HR_TENSOR_NONE;
}

/* Buffer behind a tensor: a view's is its base's, never its own. */
static inline uint32_t planner_buffer(const struct hr_planner *planner, uint32_t tensor) {
        uint32_t base = planner_tensor(planner, tensor)->view_base;

        return planner->in->tensor_buffer[base == HR_TENSOR_NONE ? tensor : base];
}

/* Could the device read the tensor where it lies, or where its label says that it will lie? */
static inline bool planner_could_read(const struct hr_planner *planner, uint32_t tensor,
                                      uint32_t device) {
        const struct hr_plan_input *in = planner->in;
        uint32_t buffer = planner_buffer(planner, tensor);
        uint32_t base = planner_tensor(planner, tensor)->view_base;
        int32_t where;

        if (buffer != HR_NO_BUFFER)
                return planner_reads(planner, device, in->buffers[buffer].kind);
        where = planner->plan->device[tensor];
        if (where < 0 && base != HR_TENSOR_NONE)
                where = planner->plan->device[base];
        return where >= 0 && planner_reads(planner, device, in->devices[where].kind);
}

static inline bool planner_writes_given(const struct hr_planner *planner, uint32_t tensor) {
        return planner->tensors[tensor].flags & HR_PLAN_WRITES_GIVEN;
}

/* Device whose memory holds a root without a buffer. */
static inline uint32_t planner_root_device(const struct hr_planner *planner, uint32_t root) {
        int32_t device = planner->plan->device[root];

        return device < 0 ? planner->in->device_count - 1 : (uint32_t) device;
}

/* Kind of the memory behind a root, or -1 when it has none yet. */
static inline int64_t planner_root_kind(const struct hr_planner *planner, uint32_t root) {
        uint32_t buffer = planner->in->tensor_buffer[root];

        if (buffer != HR_NO_BUFFER)
                return planner->in->buffers[buffer].kind;
        if (planner->plan->device[root] < 0)
                return -1;
        return planner->in->devices[planner->plan->device[root]].kind;
}

/* Zeroed scratch or plan memory; NULL without memory. */
static inline void *planner_scratch(struct hr_planner *planner, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(planner->scratch, total, 16)
                                                : NULL;
}

static inline void *planner_keep(struct hr_planner *planner, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&planner->plan->arena, total, 16)
                                                : NULL;
}

/* The same, not zeroed: for what is filled right after. */
static inline void *planner_scratch_raw(struct hr_planner *planner, uint64_t count,
                                        uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total)
                       ? hr_arena_alloc_raw(planner->scratch, total, 16)
                       : NULL;
}

static inline void *planner_keep_raw(struct hr_planner *planner, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total)
                       ? hr_arena_alloc_raw(&planner->plan->arena, total, 16)
                       : NULL;
}

hr_status planner_out_of_memory(struct hr_planner *planner);
