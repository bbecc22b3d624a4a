/*
 * Decides by brute force whether a tape is sound: what the tests hold the verifier against.
 *
 * The tape is unrolled over several successive runs in all slots, and over two pipelines that take
 * turns on the same states and on the same passing memory. A tape is broken if
 *
 *   - two accesses to common memory, one of them a write, are not ordered by queues, events, and
 *     the rule that a slot is used again only after its run is done; or a run is done before one of
 *     its accesses; or
 *   - executed in the order of submission, some node computes, or some output carries, something
 *     else than the graph evaluated node by node, run after run, with memory for every tensor; or
 *   - a device touches memory out of its reach.
 *
 * The order is a set of commands per command; values are symbols. Nothing is shared with the
 * verifier, and nothing here is fast.
 */
#pragma once

#include "scheduler/plan.h"

struct oracle;

/* For a plan as it stands: places and sizes count when this is called, the order of the tape when
 * it is judged. The plan and the input must outlive the oracle. */
struct oracle *oracle_new(const struct hr_plan *plan, const struct hr_plan_input *input);
void oracle_free(struct oracle *oracle);
/* Bytes that oracle_new() would take for what grows with the square of the tape. */
uint64_t oracle_bytes(const struct hr_plan *plan);
/* The commands tape.commands[order[0 .. count - 1]], submitted in that order, in every run. NULL
 * when sound, else why not; valid until the next call. */
const char *oracle_judge(struct oracle *oracle, const uint32_t *order, uint32_t count);
