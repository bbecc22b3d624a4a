/*
 * States: writable tensors that a session owns, such as a KV cache.
 *
 * A state holds one zero-filled buffer per device that its tensors are placed on. It is charged by
 * its caller before it is made. The executor orders runs that share a state among themselves
 * through `use`; a READ or WRITE from outside is ordered by the engine: it begins only when no run
 * that uses the state is in flight, and no such run begins before it is done. The two counters
 * below are for that.
 *
 * Thread: engine. One owner (the session); pipelines hold references to the buffers, and `use` must
 * outlive every pipeline that is bound to the state, hence the reference count.
 */
#pragma once

#include "daemon/placement.h"

struct hr_state_home {
        uint32_t device;          /* index in the fleet */
        struct hr_buffer *buffer;
        uint64_t offset;
};

/* Read-only for everybody but state.c, except the two counters. */
struct hr_state {
        uint32_t refs;
        struct hr_state_use use;
        uint32_t runs;      /* in flight: kept by the engine */
        uint32_t transfers; /* in flight: kept by the engine */
        struct hr_fleet *fleet;
        struct hr_manifest *manifest;
        struct hr_state_home *homes;   /* one per tensor */
        struct hr_placement placement; /* planned bytes per device */
        struct hr_buffer **buffers;    /* one per device, NULL where none */
        uint64_t bytes;                /* of all buffers */
};

/* Bytes that a state of this manifest takes, for charging before it is made. */
uint64_t hr_state_bytes(const struct hr_manifest *manifest);

/* Takes the manifest, also on failure. HR_E_EXHAUSTED names bytes asked and free; the statuses of
 * hr_placement_init. */
HR_NODISCARD hr_status hr_state_new(struct hr_fleet *fleet, struct hr_manifest *manifest,
                                    const struct hr_placement_rule *rules, uint32_t rule_count,
                                    struct hr_diag *diag, struct hr_state **ret_state);
/* Zero-filled, with the same tensors in the same places. */
HR_NODISCARD hr_status hr_state_new_like(const struct hr_state *like, struct hr_diag *diag,
                                         struct hr_state **ret_state);
struct hr_state *hr_state_ref(struct hr_state *state);
struct hr_state *hr_state_unref(struct hr_state *state);
HR_DEFINE_CLEANUP(struct hr_state *, hr_state_unrefp, hr_state_unref)

/* As hr_weights_bind, for leaves of kind STATE. */
HR_NODISCARD hr_status hr_state_bind(const struct hr_state *state, const struct hr_graph *graph,
                                     uint32_t leaf, struct hr_diag *diag,
                                     struct hr_leaf_home *ret_home);

/* One READ or WRITE of a range of one tensor, or a copy of it. Caller's storage until done. */
struct hr_state_transfer {
        /* Set by the caller. */
        struct hr_state *state;
        uint32_t tensor;
        uint64_t offset, bytes; /* inside the tensor's contiguous bytes */
        void *host;             /* `bytes` bytes; valid until done. Not of a copy */
        struct hr_state *into;  /* of a copy: a state made like this one */
        void (*done)(struct hr_state_transfer *transfer, void *arg); /* thread: any, blocks not */
        void *arg;
        /* Valid from done on: outcome.diag.status is HR_OK or why not. */
        struct hr_outcome outcome;
};

/* Checks a range. HR_E_RANGE with reason TENSOR, OFFSET or SIZE (limit and actual set). */
HR_NODISCARD hr_status hr_state_check_range(const struct hr_state *state, uint32_t tensor,
                                            uint64_t offset, uint64_t bytes, struct hr_diag *diag);
/* Queue the copy behind everything submitted so far on the tensor's device. After HR_OK done is
 * called exactly once (for 0 bytes too); after a failure it is not. A reference to the state is the
 * caller's until done. */
HR_NODISCARD hr_status hr_state_read(struct hr_state_transfer *transfer, struct hr_diag *diag);
HR_NODISCARD hr_status hr_state_write(struct hr_state_transfer *transfer, struct hr_diag *diag);
/* The range of `state` to the same place in `into`, on the device. */
HR_NODISCARD hr_status hr_state_copy(struct hr_state_transfer *transfer, struct hr_diag *diag);
