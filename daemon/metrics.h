/*
 * The daemon's figures, gathered in two steps: hr_metrics_gather() on the engine's thread, then
 * hr_metrics_finish() on the loop. The list lies in the caller's arena.
 */
#pragma once

#include "core/arena.h"
#include "daemon/engine.h"
#include "daemon/weights.h"
#include "proto/codec.h"
#include "scheduler/scheduler.h"

struct hr_server;

/* Stages of a request whose lengths are counted: of a run its inputs' arrival (from the first byte
 * to the last), waiting, computing, and its outputs' way out; the planning of a graph. */
typedef enum hr_stage_kind {
        HR_STAGE_UPLOAD,
        HR_STAGE_QUEUE,
        HR_STAGE_COMPUTE,
        HR_STAGE_READ_BACK,
        HR_STAGE_PLAN,
        HR_STAGE_COUNT
} hr_stage_kind;

#define HR_STAGE_BOUNDS 18

/* A histogram; the last count is of what is above all bounds. */
struct hr_stage {
        uint64_t counts[HR_STAGE_BOUNDS + 1];
        uint64_t sum_ns;
};
void hr_stage_add(struct hr_stage *stage, uint64_t ns);

/* `full`: there was no memory for all of it. Zeroed but for the arena. */
struct hr_metrics {
        struct hr_arena *arena;
        struct hr_wire_stat *stats;
        uint32_t count, capacity;
        bool full;
        /* Between the two steps. */
        struct hr_exec_stats exec;
        struct hr_plan_cache_stats plans;
        struct hr_weights_store_stats store;
        struct hr_engine_stats engine;
        uint64_t graphs;
};

/* Thread: engine. */
void hr_metrics_gather(struct hr_metrics *metrics, struct hr_server *server);
/* Thread: loop. */
void hr_metrics_finish(struct hr_metrics *metrics, const struct hr_server *server);
/* One more figure; name and labels must live as long as the list. */
void hr_metrics_put(struct hr_metrics *list, const char *name, const char *labels, double value);
/* The same with labels, key="value",..., made in the arena. */
HR_PRINTF(4, 5)
void hr_metrics_put_with(struct hr_metrics *list, const char *name, uint64_t value,
                         const char *format, ...);
/* As text; freed by the caller. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_metrics_text(const struct hr_metrics *list, struct hr_diag *diag,
                                       char **ret_text, size_t *ret_bytes);
