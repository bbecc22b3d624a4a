/*
 * What the files of placement share: place.c (splits in order), place_lives.c (first and last
 * uses), place_kept.c (what stays from run to run), place_pack.c (pools packed anew), pool.c (free
 * memory).
 */
#pragma once

#include "scheduler/plan.h"

#define FOREVER INT64_MAX
#define NEVER_USED (-1)
#define NEVER_GIVEN UINT32_MAX

struct hole {
        uint64_t offset, bytes;
        int64_t stamp; /* split that used it last, or NEVER_USED */
};

struct pool {
        struct hole *holes;
        uint32_t count, capacity;
        uint64_t end;        /* of everything ever allocated */
        uint64_t held, peak; /* now, and at most at a time */
        uint64_t alignment;
        uint64_t slot_end;
};

/* What becomes of the memory of a root or a copy. */
struct life {
        int64_t last_use;
        uint64_t bytes;       /* held now; 0 = nothing */
        uint32_t first_split; /* in whose prologue a leaf gets its place */
        uint32_t block;       /* that it has or had */
};

/* Memory from its taking to its giving back; several holders may have had it one after another. */
struct block {
        uint64_t bytes, offset;
        uint32_t begin, end; /* turns, which count takings and givings */
        uint32_t split;      /* that used it last, once it is given back */
        uint32_t kind;
        bool is_kept; /* from run to run */
};

struct placer {
        struct hr_planner *planner;
        struct hr_plan *plan;
        struct pool *pools; /* per kind */
        struct life *lives; /* per holder */
        struct block *blocks; /* NULL = not noted */
        uint32_t block_count, turn;
        uint32_t next_use;   /* of planner->uses: the first that has not had its turn */
        uint32_t next_tap;   /* of planner->tap_uses likewise */
        uint32_t *leaf_next; /* per leaf: next leaf of the same first split */
        uint32_t *leaf_head; /* per split, + 1 for leaves that only outputs need */
        /* Copies that take their memory a split before theirs: per copy the next, per split the
         * first. NULL = there are none. */
        uint32_t *early_next, *early_head;
};

/* ---- Free memory -----------------------------------------------------------------------------
 */

/* The smallest hole that suffices, or the end of the pool. ret_stamp: the split that used it last.
 */
hr_status hr_pool_take(struct placer *placer, struct pool *pool, uint64_t bytes,
                       uint64_t *ret_offset, int64_t *ret_stamp);
hr_status hr_pool_give(struct placer *placer, struct pool *pool, uint64_t offset, uint64_t bytes,
                       int64_t stamp);

static inline struct pool *pool_of(struct placer *placer, uint32_t device, uint32_t *ret_kind) {
        *ret_kind = placer->planner->in->devices[device].kind;
        return &placer->pools[*ret_kind];
}

/* The bytes up to the pool's alignment. */
static inline hr_status aligned(struct placer *placer, const struct pool *pool, uint64_t bytes,
                                uint64_t *ret_bytes) {
        if (!hr_align_up_u64(bytes, pool->alignment, ret_bytes))
                return hr_fail(placer->planner->diag, HR_E_EXHAUSTED, "a tensor of %llu bytes",
                               (unsigned long long) bytes);
        return HR_OK;
}

/* ---- Packing ---------------------------------------------------------------------------------
 */

/* Where blocks are noted: notes that memory is taken, and returns the block's number. */
static inline uint32_t place_begin(struct placer *placer, uint32_t kind, uint64_t offset,
                                   uint64_t bytes, bool is_kept) {
        placer->blocks[placer->block_count] = (struct block){.kind = kind,
                                                             .offset = offset,
                                                             .bytes = bytes,
                                                             .begin = placer->turn++,
                                                             .end = NEVER_GIVEN,
                                                             .is_kept = is_kept};
        return placer->block_count++;
}

/* Notes that it is given back, after its last use in `split`; likewise. */
static inline void place_end(struct placer *placer, uint32_t block, uint32_t split) {
        placer->blocks[block].end = placer->turn++;
        placer->blocks[block].split = split;
}

/* Once all is placed: whether a pool is much larger than what it holds at a time. */
bool hr_place_has_holes(const struct placer *placer);
/* Packs such pools anew, from the blocks that have been noted. */
hr_status hr_place_pack(struct placer *placer);

/* ---- Time ------------------------------------------------------------------------------------
 */

static inline int64_t node_time(uint32_t node) {
        return 2 * (int64_t) node + 1;
}

/* When each holder is used last, and in whose prologue each leaf gets its place. */
void hr_place_lives(struct placer *placer);

/* ---- What is kept ----------------------------------------------------------------------------
 */

void hr_place_homes(struct placer *placer);
/* Constants and their copies: written once, before any run, and kept. */
hr_status hr_place_constants(struct placer *placer);
/* What stays from run to run has its place before anything else: experts, and the ids as places,
 * which nothing but the device's queue writes and reads. */
hr_status hr_place_experts(struct placer *placer);
/* A place in every slot, or, where `once`, a shared one that is never given back. */
hr_status hr_place_forever(struct placer *placer, uint32_t device, uint64_t bytes, bool once,
                           struct hr_place *ret_place);
