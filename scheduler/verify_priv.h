/*
 * What the files of the proof share: verify.c (runs), verify_commands.c (what each command reads
 * and writes), verify_memory.c (accesses to memory and their order).
 */
#pragma once

#include "scheduler/plan.h"

struct reader {
        uint32_t queue, clock, next;
};

struct block {
        uint64_t start, end;
        uint32_t section;
        uint32_t writer, writer_clock; /* HR_NO_INDEX: written before everything */
        uint32_t reader, reader_clock; /* the latest reader; HR_NO_INDEX: none */
        uint32_t more_readers;         /* list of the others, HR_NO_INDEX ends */
        bool dead;                     /* something else has been written over it */
        bool constant;                 /* never written */
};

/* A range of a section and the block whose accesses count there, dead or not. */
struct stretch {
        uint64_t start, end;
        uint32_t block;
};

struct section {
        struct stretch *stretches; /* by address */
        uint32_t count, capacity;
        uint64_t bytes;
};

/* What a root, or a copy, holds. */
struct holder {
        uint32_t block; /* its newest one; 0 = none */
        uint32_t meant; /* root: writes by the nodes computed so far */
        uint32_t
                landed; /* root: those that have reached its memory; copy: those that it has seen */
};

/* A command touches the shared part of a pool, or a buffer (numbered after the pools). */
struct touch {
        uint32_t command, object;
        bool write;
};

struct prover {
        const struct hr_plan *plan;
        const struct hr_plan_input *in;
        const struct hr_graph *graph;
        struct hr_diag *diag;
        struct hr_arena *arena;
        uint32_t queues; /* the plan's (hr_plan_queue), and one of other pipelines */
        uint32_t other;  /* that one */
        uint32_t kind_words;
        uint32_t *clocks;     /* queues x queues: what each queue knows of each */
        uint32_t *events;     /* (slot events + lanes) x queues */
        uint32_t *last_touch; /* per queue: clock of the last command that touched memory */
        uint32_t *done;       /* queues: what is over when the run is done */
        /* Memory that passes from pipeline to pipeline. */
        uint64_t *gates_passed;   /* queues, then events x kind_words: kinds that are the run's */
        uint32_t *passing_touch;  /* kinds x queues: clock of the last access in the first run */
        struct section *sections; /* kinds: shared; kinds: of the slot; staging */
        struct block *blocks;     /* from 1 on */
        uint32_t block_count;
        struct holder *holders; /* per root, then per copy */
        struct block *buffers;
        struct reader *readers;
        uint32_t reader_count, reader_capacity;
        bool *scanned; /* per group of experts: the run has read its ids */
        bool *filled;  /* per copy of experts: the run has brought those that it uses */
        uint32_t next_split;
        bool observed;      /* the run reads taps */
        uint32_t next_step; /* of next_split: the steps before it have been computed */
        uint32_t next_tap;
        uint32_t *tap_version; /* per tap: writes into its root by its node and those before */
        /* With several slots: what the first run touched, for the second one. */
        struct touch *touches;
        uint32_t touch_count, touch_capacity;
        uint32_t *noted; /* per object, read and written: the last command that did, and one */
        uint32_t *pool_reads, *pool_writes; /* kinds x queues: clock of the last one */
        const struct hr_command *command;   /* NULL before the first */
        uint32_t queue;                     /* the command's */
        uint32_t *known, now; /* its clocks: of all queues, and its own */
        const uint64_t *reach;              /* bit set over kinds: what its device reaches */
        /* What is asked of a command once, however often it touches the passing memory of a kind.
         * Per kind, read and written: the last command of which that has been asked. */
        uint32_t *settled;
        uint32_t turn; /* commands so far, over all runs */
};

static inline hr_status prover_out_of_memory(struct prover *prover) {
        return hr_fail(prover->diag, HR_E_EXHAUSTED, "memory for the proof of a plan");
}

static inline void *prover_take(struct prover *prover, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(prover->arena, total, 16) : NULL;
}

/* Not zeroed. */
static inline void *prover_take_raw(struct prover *prover, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc_raw(prover->arena, total, 16)
                                                : NULL;
}

static inline uint32_t command_index(const struct prover *prover) {
        return prover->command ? (uint32_t) (prover->command - prover->plan->tape.commands) : 0;
}

/* ---- Order -----------------------------------------------------------------------------------
 */

static inline uint32_t *clock_of(const struct prover *prover, uint32_t queue) {
        return prover->clocks + (size_t) queue * prover->queues;
}

static inline uint32_t *event_clock(const struct prover *prover, uint32_t event) {
        return prover->events + (size_t) event * prover->queues;
}

static inline void merge(const struct prover *prover, uint32_t *into, const uint32_t *from) {
        for (uint32_t q = 0; q < prover->queues; ++q)
                into[q] = HR_MAX(into[q], from[q]);
}

/* Bit set over kinds: whose memory the queue, or, counted from `queues` on, the event is past the
 * gate of. */
static inline uint64_t *prover_gates(const struct prover *prover, uint32_t walker) {
        return prover->gates_passed + (size_t) walker * prover->kind_words;
}

static inline bool is_after(const struct prover *prover, uint32_t earlier, uint32_t clock) {
        return earlier == prover->queue || earlier == HR_NO_INDEX ||
               prover->known[earlier] >= clock;
}

/* Is the place memory of which the command has been asked all that it is asked once? */
static inline bool prover_is_settled(const struct prover *prover, const struct hr_place *place,
                                     bool write) {
        return hr_plan_passes(prover->plan, place) &&
               prover->settled[2 * place->index + write] == prover->turn;
}

/* Reads what the command's queue wrote itself, in memory of which nothing else is to be asked, as
 * most reads do. False, with nothing done: it is another read. */
static inline bool prover_read_own(const struct prover *prover, const struct hr_place *place,
                                   uint64_t bytes, uint32_t holds) {
        struct block *block = &prover->blocks[prover->holders[holds].block];

        if (!prover_is_settled(prover, place, false) || block->dead ||
            block->section != place->index || block->writer != prover->queue ||
            (block->reader != prover->queue && block->reader != HR_NO_INDEX) ||
            place->offset < block->start || place->offset > block->end ||
            bytes > block->end - place->offset)
                return false;
        block->reader = prover->queue;
        block->reader_clock = prover->now;
        return true;
}

/* The accesses from here on are of that queue. */
static inline void prover_turn_to(struct prover *prover, uint32_t queue) {
        prover->queue = queue;
        prover->known = clock_of(prover, queue);
        prover->now = prover->known[queue];
}

/* ---- What can be wrong -----------------------------------------------------------------------
 */

/* "device 3", "upload queue of device 3". */
const char *prover_queue_words(const struct prover *prover, uint32_t queue, char *buffer,
                               size_t buffer_bytes);
/* An access, `what`, without an edge after the one before it, `how`, by the queue `earlier`. */
hr_status prover_missing(struct prover *prover, const char *what, uint32_t holds, uint32_t earlier,
                         const char *how);
hr_status prover_wrong(struct prover *prover, const char *reason, const char *what, uint32_t holds);

/* ---- Memory ----------------------------------------------------------------------------------
 */

/* Makes room for more elements, two at least. */
hr_status prover_grow(struct prover *prover, void **array, uint32_t count, uint32_t *capacity,
                      size_t bytes);
/* A block for what `holds` names, over whatever was there. */
hr_status prover_fresh_block(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds);
hr_status prover_may_write(struct prover *prover, const struct block *block, uint32_t holds);
hr_status prover_access_buffer(struct prover *prover, uint32_t buffer, uint32_t holds, bool write);
hr_status prover_check_read(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                            uint32_t holds);
/* `whole`: what was there before does not matter, else it must be what `holds` names. */
hr_status prover_check_write(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds, bool whole);

/* ---- Commands --------------------------------------------------------------------------------
 */

/* Splits of view ops only have no command. */
void prover_skip_empty_splits(struct prover *prover);
/* All that the command reads and writes. */
hr_status prover_prove_access(struct prover *prover);
