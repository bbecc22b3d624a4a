/*
 * What the files of the brute-force oracle share: happens_before.c (its making), oracle_conflicts.c
 * (which accesses touch the same bytes), oracle_order.c (what is over when), oracle_values.c (what
 * memory holds).
 *
 * An *instance* is one command that touches memory, in one run of the unrolled sequence. For each
 * instance there is a bit set of those it conflicts with, found by comparing all pairs; for each
 * queue, event and run another of what is over. Both are as plain as they can be.
 *
 * Spaces of addresses: a pool per kind and pipeline, staging per pipeline, and for buffers the
 * buffer when conflicts are looked for (where in it a leaf lies, no plan knows), the leaf when
 * values are followed.
 */
#pragma once

#include "tests/unit/scheduler/happens_before.h"
#include "tests/unit/scheduler/symbols.h"

enum { PIPELINES = 2, REASON_BYTES = 160 };

struct range {
        uint32_t space;
        uint64_t start, end;
        bool write;
};

/* One run of the unrolled sequence. */
struct turn {
        uint32_t pipeline, slot;
        uint32_t after;  /* turn that had the slot before, or HR_NO_INDEX */
        bool takes_over; /* the other pipeline had states and passing memory last */
};

struct oracle {
        const struct hr_plan *plan;
        const struct hr_plan_input *in;
        const struct hr_graph *graph;
        struct turn *turns;
        uint32_t turn_count;
        uint32_t *touching; /* per command: number among those that touch memory, or HR_NO_INDEX */
        uint32_t touching_count, instances, words;
        uint64_t *conflicts;   /* instances x words */
        struct range **ranges; /* per instance */
        uint32_t *range_count;
        uint64_t *over; /* what a queue, an event, a run has behind it: sets of instances */
        uint64_t *submitted;
        struct symbols *memory;
        uint64_t *meant_node, *meant_output, *meant_tap; /* per turn: values of the reference */
        uint32_t *computed;                              /* per node, in this turn */
        const char *fault; /* of the plan itself, whatever the order */
        char reason[REASON_BYTES];
};

/* Fails the test where there is no memory. */
void *oracle_zeroed(uint64_t count, uint64_t bytes);

static inline bool oracle_touches_memory(const struct hr_command *command) {
        return command->code != HR_COMMAND_WAIT && command->code != HR_COMMAND_RECORD &&
               command->code != HR_COMMAND_NOTIFY && command->code != HR_COMMAND_GATE;
}

/* ---- oracle_conflicts.c ----------------------------------------------------------------------
 */

struct hr_place oracle_place(const struct hr_plan *plan, uint32_t tensor);
/* Where a place is for a turn: its value space and its address there. */
bool oracle_locate(const struct oracle *oracle, const struct turn *turn, struct hr_place place,
                   uint32_t *ret_space, uint64_t *ret_address);
/* What node `node` reads as source i, and where its result goes. */
bool oracle_source_place(const struct oracle *oracle, uint32_t node, uint32_t i,
                         struct hr_place *ret_place, uint64_t *ret_bytes);
struct hr_place oracle_result_place(const struct oracle *oracle, uint32_t node);
/* Which bytes the instances of a turn read and write; then, all turns found, who conflicts. */
void oracle_find_ranges(struct oracle *oracle, uint32_t turn_index);
void oracle_find_conflicts(struct oracle *oracle);

/* ---- oracle_order.c --------------------------------------------------------------------------
 */

/* Sets in oracle->over. */
uint64_t oracle_set_count(const struct oracle *oracle);
const char *oracle_judge_order(struct oracle *oracle, const uint32_t *order, uint32_t count);

/* ---- oracle_values.c -------------------------------------------------------------------------
 */

/* What every node, output and tap is to be. */
void oracle_find_meaning(struct oracle *oracle);
void oracle_make_memory(struct oracle *oracle);
const char *oracle_judge_values(struct oracle *oracle, const uint32_t *order, uint32_t count);
