/*
 * Traces: the commands of a run in columns, and medians over runs.
 *
 * The tape says what each command is about, the entries say when it happened. A command that names
 * no split (a wait, a record, an input of a leaf) belongs to a neighbour on its device's queue: a
 * record marks the end of what came before it, everything else leads to what comes next.
 */
#include "scheduler/trace.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"

const char *hr_trace_kind_name(hr_trace_kind kind) {
        static const char *const names[HR_TRACE_KINDS] = {
                [HR_TRACE_WAIT] = "wait",       [HR_TRACE_RECORD] = "record",
                [HR_TRACE_INPUT] = "input",     [HR_TRACE_WRITE] = "write",
                [HR_TRACE_READ] = "read",       [HR_TRACE_COPY] = "copy",
                [HR_TRACE_EXPERTS] = "experts", [HR_TRACE_COMPUTE] = "compute",
                [HR_TRACE_TAP] = "tap",         [HR_TRACE_OUTPUT] = "output",
        };

        HR_ASSERT(kind < HR_TRACE_KINDS);
        return names[kind];
}

uint32_t hr_pipeline_command_count(const struct hr_pipeline *pipeline) {
        return pipeline->plan->tape.count;
}

/* ---- A run in columns -------------------------------------------------------------------------
 */

static hr_trace_kind kind_of(hr_command_code code) {
        static const hr_trace_kind kinds[] = {
                [HR_COMMAND_WAIT] = HR_TRACE_WAIT,
                [HR_COMMAND_RECORD] = HR_TRACE_RECORD,
                [HR_COMMAND_INPUT] = HR_TRACE_INPUT,
                [HR_COMMAND_WRITE] = HR_TRACE_WRITE,
                [HR_COMMAND_READ] = HR_TRACE_READ,
                [HR_COMMAND_COPY] = HR_TRACE_COPY,
                [HR_COMMAND_COPY_EXPERTS] = HR_TRACE_EXPERTS,
                [HR_COMMAND_COMPUTE] = HR_TRACE_COMPUTE,
                [HR_COMMAND_TAP] = HR_TRACE_TAP,
                [HR_COMMAND_READ_BACK] = HR_TRACE_OUTPUT,
        };

        HR_ASSERT(code < HR_COMMAND_NOTIFY);
        return kinds[code];
}

/* The copy that a command writes or reads, or HR_NO_COPY. */
static uint32_t copy_of(const struct hr_plan *plan, const struct hr_command *command) {
        if (command->code < HR_COMMAND_INPUT || command->code > HR_COMMAND_COPY_EXPERTS)
                return HR_NO_COPY;
        if (command->to_holds >= plan->tensor_count)
                return command->to_holds - plan->tensor_count;
        if (command->from_holds >= plan->tensor_count)
                return command->from_holds - plan->tensor_count;
        return HR_NO_COPY;
}

static uint32_t subject_of(const struct hr_pipeline *pipeline, const struct hr_command *command) {
        uint32_t copy = copy_of(pipeline->plan, command);

        if (copy != HR_NO_COPY)
                return pipeline->plan->copies[copy].tensor;
        if (command->code == HR_COMMAND_INPUT)
                return pipeline->graph->inputs[command->index];
        if (command->code == HR_COMMAND_TAP)
                return pipeline->plan->taps[command->index].tensor;
        if (command->code == HR_COMMAND_READ_BACK)
                return pipeline->graph->outputs[command->index];
        return command->index;
}

/* The split that the command itself names, or HR_NO_INDEX. */
static uint32_t named_split(const struct hr_plan *plan, const struct hr_command *command) {
        uint32_t copy = copy_of(plan, command);

        if (command->code == HR_COMMAND_COMPUTE)
                return command->index;
        if (command->code == HR_COMMAND_TAP)
                return plan->taps[command->index].split;
        if (command->code == HR_COMMAND_READ_BACK)
                return plan->split_count;
        return copy == HR_NO_COPY ? HR_NO_INDEX : plan->copies[copy].split;
}

/* Per command of the tape: its split. `neighbour` has room for one number per queue. */
static void find_splits(const struct hr_plan *plan, uint32_t *neighbour, uint32_t *split) {
        const struct hr_tape *tape = &plan->tape;

        for (uint32_t i = 0; i < tape->count; ++i)
                split[i] = named_split(plan, &tape->commands[i]);
        for (uint32_t q = 0; q < 2 * plan->device_count; ++q)
                neighbour[q] = HR_NO_INDEX;
        for (uint32_t i = 0; i < tape->count; ++i) {
                const struct hr_command *command = &tape->commands[i];

                if (split[i] != HR_NO_INDEX)
                        neighbour[hr_plan_queue(plan, command)] = split[i];
                else if (command->code == HR_COMMAND_RECORD)
                        split[i] = neighbour[hr_plan_queue(plan, command)];
        }
        for (uint32_t q = 0; q < 2 * plan->device_count; ++q)
                neighbour[q] = plan->split_count;
        for (uint32_t i = tape->count; i-- > 0;) {
                uint32_t queue = hr_plan_queue(plan, &tape->commands[i]);

                if (split[i] == HR_NO_INDEX)
                        split[i] = neighbour[queue];
                else if (tape->commands[i].code != HR_COMMAND_RECORD)
                        neighbour[queue] = split[i];
        }
}

static bool happened(const struct hr_trace_entry *entry) {
        return entry->begin_ns && entry->end_ns;
}

static void fill(const struct hr_run *run, const uint32_t *split, struct hr_trace *trace) {
        const struct hr_pipeline *pipeline = run->pipeline;
        const struct hr_tape *tape = &pipeline->plan->tape;

        for (uint32_t i = 0; i < tape->count; ++i) {
                const struct hr_command *command = &tape->commands[i];
                const struct hr_trace_entry *entry = &run->trace[i];
                uint32_t at = trace->count;

                if (!happened(entry))
                        continue;
                trace->kind[at] = kind_of(command->code);
                trace->device[at] = hr_plan_queue(pipeline->plan, command);
                trace->split[at] = split[i];
                trace->subject[at] = subject_of(pipeline, command);
                trace->bytes[at] = command->code == HR_COMMAND_COPY_EXPERTS
                                           ? atomic_load(&entry->experts.bytes)
                                           : command->bytes;
                trace->begin_ns[at] = entry->begin_ns;
                trace->end_ns[at] = entry->end_ns;
                ++trace->count;
        }
}

hr_status hr_run_trace(const struct hr_run *run, struct hr_arena *arena, struct hr_diag *diag,
                       struct hr_trace *ret_trace) {
        const struct hr_pipeline *pipeline = run->pipeline;
        const struct hr_plan *plan = pipeline->plan;
        uint64_t words = (uint64_t) plan->tape.count * sizeof(uint32_t);
        uint64_t longs = (uint64_t) plan->tape.count * sizeof(uint64_t);
        uint32_t *split = hr_arena_alloc(arena, words, 8);
        uint32_t *neighbour = hr_arena_alloc(arena, plan->device_count * 2 * sizeof(uint32_t), 8);
        struct hr_trace trace = {
                .sequence = run->sequence,
                .started_ns = run->started_ns,
                .ended_ns = run->ended_ns,
                .slot = run->slot,
                .n_copies = pipeline->slot_count,
                .split_count = plan->split_count,
                .slot_event_count = plan->tape.slot_event_count,
                .kind = hr_arena_alloc(arena, words, 8),
                .device = hr_arena_alloc(arena, words, 8),
                .split = hr_arena_alloc(arena, words, 8),
                .subject = hr_arena_alloc(arena, words, 8),
                .bytes = hr_arena_alloc(arena, longs, 8),
                .begin_ns = hr_arena_alloc(arena, longs, 8),
                .end_ns = hr_arena_alloc(arena, longs, 8),
        };

        HR_ASSERT(run->trace != NULL);
        if (!split || !neighbour || !trace.kind || !trace.device || !trace.split ||
            !trace.subject || !trace.bytes || !trace.begin_ns || !trace.end_ns)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the trace of a run");
        find_splits(plan, neighbour, split);
        fill(run, split, &trace);
        *ret_trace = trace;
        return HR_OK;
}

/* ---- Measured splits --------------------------------------------------------------------------
 */

enum figure { FIGURE_COMPUTE, FIGURE_COPY, FIGURE_WAIT, FIGURE_BYTES, FIGURES };

struct hr_measure {
        uint32_t split_count;
        uint64_t added;
        uint64_t run_ns[HR_MEASURE_RUNS];
        uint64_t figures[]; /* [run][figure][split] */
};

uint64_t hr_measure_bytes(uint32_t split_count) {
        return sizeof(struct hr_measure) +
               (uint64_t) split_count * FIGURES * HR_MEASURE_RUNS * sizeof(uint64_t);
}

hr_status hr_measure_new(uint32_t split_count, struct hr_diag *diag,
                         struct hr_measure **ret_measure) {
        struct hr_measure *measure = calloc(1, hr_measure_bytes(split_count));

        if (!measure)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the times of %u splits",
                               split_count);
        measure->split_count = split_count;
        *ret_measure = measure;
        return HR_OK;
}

struct hr_measure *hr_measure_free(struct hr_measure *measure) {
        free(measure);
        return NULL;
}

static uint64_t *figure_of(const struct hr_measure *measure, uint32_t run, enum figure figure) {
        return (uint64_t *) measure->figures +
               ((size_t) run * FIGURES + figure) * measure->split_count;
}

static enum figure figure_of_kind(hr_trace_kind kind) {
        switch (kind) {
        case HR_TRACE_COMPUTE:
                return FIGURE_COMPUTE;
        case HR_TRACE_WAIT:
        case HR_TRACE_RECORD:
                return FIGURE_WAIT;
        default:
                return FIGURE_COPY;
        }
}

void hr_measure_add(struct hr_measure *measure, const struct hr_trace *trace) {
        uint32_t run = (uint32_t) (measure->added++ % HR_MEASURE_RUNS);

        HR_ASSERT(trace->split_count == measure->split_count);
        measure->run_ns[run] = trace->ended_ns - trace->started_ns;
        memset(figure_of(measure, run, FIGURE_COMPUTE), 0,
               (size_t) measure->split_count * FIGURES * sizeof(uint64_t));
        for (uint32_t i = 0; i < trace->count; ++i) {
                enum figure figure = figure_of_kind((hr_trace_kind) trace->kind[i]);
                uint32_t split = trace->split[i];

                if (split == measure->split_count) /* behind the last */
                        continue;
                figure_of(measure, run, figure)[split] += trace->end_ns[i] - trace->begin_ns[i];
                figure_of(measure, run, FIGURE_BYTES)[split] += trace->bytes[i];
        }
}

/* Of at most HR_MEASURE_RUNS values; of an even number the mean of the two in the middle. */
static uint64_t median(uint64_t *values, uint32_t count) {
        for (uint32_t i = 1; i < count; ++i) {
                uint64_t value = values[i];
                uint32_t at = i;

                for (; at > 0 && values[at - 1] > value; --at)
                        values[at] = values[at - 1];
                values[at] = value;
        }
        if (count % 2)
                return values[count / 2];
        return values[count / 2 - 1] + (values[count / 2] - values[count / 2 - 1]) / 2;
}

static void medians_of(const struct hr_measure *measure, uint32_t runs, enum figure figure,
                       uint64_t *ret_column) {
        uint64_t values[HR_MEASURE_RUNS];

        for (uint32_t s = 0; s < measure->split_count; ++s) {
                for (uint32_t r = 0; r < runs; ++r)
                        values[r] = figure_of(measure, r, figure)[s];
                ret_column[s] = median(values, runs);
        }
}

hr_status hr_measure_medians(const struct hr_measure *measure, struct hr_arena *arena,
                             struct hr_diag *diag, struct hr_measure_medians *ret_medians) {
        uint64_t bytes = (uint64_t) measure->split_count * sizeof(uint64_t);
        uint64_t runs[HR_MEASURE_RUNS];
        struct hr_measure_medians medians = {
                .runs = (uint32_t) HR_MIN(measure->added, (uint64_t) HR_MEASURE_RUNS),
                .compute_ns = hr_arena_alloc(arena, bytes, 8),
                .copy_ns = hr_arena_alloc(arena, bytes, 8),
                .wait_ns = hr_arena_alloc(arena, bytes, 8),
                .bytes = hr_arena_alloc(arena, bytes, 8),
        };

        if (!medians.compute_ns || !medians.copy_ns || !medians.wait_ns || !medians.bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the times of splits");
        if (medians.runs) {
                memcpy(runs, measure->run_ns, sizeof runs);
                medians.run_ns = median(runs, medians.runs);
                medians_of(measure, medians.runs, FIGURE_COMPUTE, medians.compute_ns);
                medians_of(measure, medians.runs, FIGURE_COPY, medians.copy_ns);
                medians_of(measure, medians.runs, FIGURE_WAIT, medians.wait_ns);
                medians_of(measure, medians.runs, FIGURE_BYTES, medians.bytes);
        }
        *ret_medians = medians;
        return HR_OK;
}
