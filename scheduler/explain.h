/*
 * What a plan has decided and what its pipeline takes, as plain columns: data for whoever shows it.
 * Included by scheduler.h.
 *
 * Names occur once, in lists; columns hold positions in them. Everything lies in the explanation's
 * arena except names of static storage and those of devices, which live as long as the fleet.
 */
#pragma once

#include "core/arena.h"
#include "core/status.h"

struct hr_fleet;
struct hr_graph;
struct hr_pipeline;
struct hr_plan;
struct hr_plan_request;

#define HR_EXPLAIN_NONE UINT32_MAX

/* A list of names. */
struct hr_explain_names {
        const char **names;
        uint32_t count;
};

/* A place in memory: pools of the pipeline exist once or per slot; home is a leaf's own buffer. */
struct hr_explain_places {
        uint32_t *where; /* into where_names */
        uint64_t *offset;
};

struct hr_explanation {
        struct hr_arena arena;
        const char *rules, *copies_reason;
        uint32_t leaf_count, node_count;
        uint32_t n_copies;         /* slots that there are */
        uint32_t planned_copies;   /* ... that were planned while there was memory */
        const char *uploads;       /* as in the summary of a plan */
        uint32_t fallback_nodes;
        uint64_t copied_bytes;     /* between memories, per run, at most */
        uint64_t staging_bytes;    /* host memory that copies go through, in all slots */
        struct hr_explain_names where_names, cause_names, rule_names, reason_names, method_names;
        uint32_t *rule_count;      /* per rule: how often it changed a decision */

        /* Devices in order of priority; memory in bytes. */
        struct hr_explain_names device_names;
        const char **device_types, **memory_kinds;
        uint32_t *device_splits, *device_nodes;
        uint64_t *compute_bytes;  /* all slots: intermediates, inputs, constants, copies */
        uint64_t *copies_bytes;   /* ... of it of copies, each for itself; with one slot they share
                                   * memory with intermediates */
        uint64_t *scratch_bytes;  /* beside it: of prepared splits */
        uint64_t *device_staging; /* of staging_bytes: for copies that the device reads */

        /* Tensors by id: leaves, then nodes. */
        uint32_t *op;     /* per node */
        uint32_t *device; /* HR_EXPLAIN_NONE: none */
        uint32_t *cause;  /* into cause_names */
        uint32_t *notes;  /* bit n: rule n has touched it; bit 31: a fallback */
        uint32_t *root;   /* the tensor in whose memory it lies, itself if it has its own */
        uint64_t *bytes;  /* that it spans */
        struct hr_explain_places place; /* of the root */

        /* Steps in the order in which they are computed, split by split. */
        uint32_t step_count;
        uint32_t *step_node;   /* index */
        uint32_t *step_joined; /* 1: in one pass with the next */

        /* Splits in order; copies in order of the splits whose inputs they are. */
        uint32_t split_count, copy_count;
        uint32_t *split_device, *split_start, *split_end; /* nodes start .. end - 1 */
        uint32_t *split_reason, *split_inputs;            /* into reason_names; how many */
        uint32_t *split_steps;                            /* how many */
        uint32_t *copy_tensor, *copy_source, *copy_method; /* source device or HR_EXPLAIN_NONE */
        uint32_t *copy_back;                               /* 1: carried back after the split */
        uint32_t *copy_early;                              /* 1: comes while the device computes */
        uint64_t *copy_bytes;
        struct hr_explain_places copy_place;

        /* Weights of mixtures that travel by the expert: one entry per ids and device. */
        uint32_t group_count;
        uint32_t *group_ids, *group_device, *group_experts, *group_places, *group_resident;
        uint32_t *group_weights; /* how many share the ids */
        uint64_t *group_uses; /* per expert of each group: runs that used it; of pipelines only */
        uint32_t group_uses_count;
};

#define HR_EXPLAIN_FALLBACK (UINT32_C(1) << 31)

/* The plan of a request as it would be bound with all its slots. HR_E_PRECONDITION (reason PLAN)
 * when it was made for another graph or fleet, HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_plan_explain(const struct hr_plan *plan,
                                       const struct hr_plan_request *request, struct hr_diag *diag,
                                       struct hr_explanation *ret_explanation);
/* The plan that the pipeline runs, which need not be the one it was made from: memory may have been
 * short. Memory is what it holds. Nobody moves or runs it meanwhile. */
HR_NODISCARD hr_status hr_pipeline_explain(const struct hr_pipeline *pipeline, struct hr_diag *diag,
                                           struct hr_explanation *ret_explanation);
/* Zeroed is valid. */
void hr_explanation_deinit(struct hr_explanation *explanation);
