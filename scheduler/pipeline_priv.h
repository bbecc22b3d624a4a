/*
 * What the files of a pipeline share: pipeline.c (its life), pipeline_memory.c (pools, events,
 * constants), pipeline_experts.c (caches), pipeline_programs.c (programs, the tape in pointers).
 * Thread: engine.
 */
#pragma once

#include "scheduler/exec.h"

static inline void *hr_pipeline_take(struct hr_pipeline *pipeline, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&pipeline->arena, total, 16)
                                                : NULL;
}

/* What holds addresses is made anew when the pipeline moves. */
static inline void *hr_pipeline_take_bound(struct hr_pipeline *pipeline, uint64_t count,
                                           uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&pipeline->bound, total, 16)
                                                : NULL;
}

static inline hr_status hr_pipeline_out_of_memory(struct hr_diag *diag) {
        return hr_fail(diag, HR_E_EXHAUSTED, "host memory for a pipeline");
}

/* ---- Memory ----------------------------------------------------------------------------------
 */

/* Null for what has no memory. host: as the host sees it. */
void *hr_pipeline_address(const struct hr_pipeline *pipeline, const struct hr_place *place,
                          uint32_t slot, bool host);
/* Its own memory, for all its slots; with all that the workspace and its pipelines hold, not more
 * than bytes_max on any device; 0 = any. */
hr_status hr_pipeline_reserve(struct hr_pipeline *pipeline, uint64_t bytes_max,
                              struct hr_diag *diag);
hr_status hr_pipeline_make_events(struct hr_pipeline *pipeline, struct hr_diag *diag);
struct hr_event *hr_pipeline_event(const struct hr_pipeline *pipeline, uint32_t event,
                                   uint32_t slot);
/* Queues the writes of all constants, and their order before the first run. */
hr_status hr_pipeline_write_constants(struct hr_pipeline *pipeline, struct hr_diag *diag);
/* Waits until the writes of constants are over: no run's end has shown it. */
void hr_pipeline_settle_constants(struct hr_pipeline *pipeline);

/* ---- Experts ---------------------------------------------------------------------------------
 */

hr_status hr_pipeline_make_caches(struct hr_pipeline *pipeline, struct hr_diag *diag);
/* Where experts come from and go to. */
void hr_pipeline_aim_caches(struct hr_pipeline *pipeline);
/* The node sees the places instead of the experts, and ids that name places. */
void hr_pipeline_use_places(const struct hr_pipeline *pipeline, const struct hr_plan_copy *copy,
                            struct hr_operand *sources);

/* ---- Programs and commands -------------------------------------------------------------------
 */

hr_status hr_pipeline_make_programs(struct hr_pipeline *pipeline, struct hr_diag *diag);
void hr_pipeline_free_programs(struct hr_pipeline *pipeline, struct hr_slot *slots);
hr_status hr_pipeline_bind_tape(struct hr_pipeline *pipeline, struct hr_diag *diag);
/* What a run's counters take from the tape. */
hr_status hr_pipeline_count_tape(struct hr_pipeline *pipeline, struct hr_diag *diag);
