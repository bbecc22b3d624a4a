/*
 * Runs: a walk over the bound tape of a slot.
 *
 * Starting a run submits every command at once and returns; queues and events keep the order. From
 * the first submission on the run ends through its notifications only: a command that cannot be
 * submitted is a failure of the run, the rest of the tape still goes out (its computations do
 * nothing), and `done` is called when every lane has passed its end.
 *
 *   free --start--> submitted --notifications--> done --finish--> free        (a slot)
 *
 * A run that uses a state which another pipeline used last first makes the lanes that touch states
 * wait for the ends of the other pipeline's lanes. So it is with memory that pipelines share
 * (workspace.c).
 *
 * An edge that cannot be submitted leaves later runs on the same workspace, or with the same
 * states, without their order: none of them starts until those in flight there are over. Others
 * have no memory in common with them and go on. A notification that cannot be submitted is waited
 * for.
 */
#include "scheduler/exec.h"

#include <string.h>

#include "core/clock.h"
#include "core/log.h"

/* How long the end of a queue is waited for that cannot tell it by itself: a minute in all. */
#define END_TURNS 60
#define END_TURN_NS HR_NS_PER_S

static void count(atomic_uint_fast64_t *counter, uint64_t more) {
        atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

/* Of a counter that only starts of runs change, which are one at a time; it is read at any time. */
static void count_at_start(atomic_uint_fast64_t *counter, uint64_t more) {
        uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);

        atomic_store_explicit(counter, before + more, memory_order_relaxed);
}

/* ---- Before
 * ------------------------------------------------------------------------------------ */

static hr_status check_inputs(const struct hr_pipeline *pipeline, const struct hr_run *run,
                              struct hr_diag *diag) {
        const struct hr_graph *graph = pipeline->graph;

        for (uint32_t i = 0; i < graph->input_count; ++i) {
                uint64_t wanted = pipeline->plan->span[graph->inputs[i]];

                if (run->inputs[i].bytes == wanted && (run->inputs[i].data || wanted == 0))
                        continue;
                hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                               "input %u (tensor %u) takes %llu bytes, not %llu", i,
                               graph->inputs[i], (unsigned long long) wanted,
                               (unsigned long long) run->inputs[i].bytes);
                if (diag) {
                        diag->has_tensor = true;
                        diag->tensor = graph->inputs[i];
                        diag->limit = wanted;
                        diag->actual = run->inputs[i].bytes;
                }
                return HR_E_INVALID;
        }
        return HR_OK;
}

static uint32_t output_index(const struct hr_graph *graph, uint32_t tensor) {
        uint32_t low = 0, high = graph->output_count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (graph->outputs[middle] < tensor)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low < graph->output_count && graph->outputs[low] == tensor ? low : HR_NO_INDEX;
}

static hr_status choose_outputs(const struct hr_pipeline *pipeline, const struct hr_run *run,
                                struct hr_slot *slot, struct hr_diag *diag) {
        const struct hr_graph *graph = pipeline->graph;

        memset(slot->wanted, 0, graph->output_count * sizeof *slot->wanted);
        for (uint32_t i = 0; i < run->output_count; ++i) {
                const struct hr_run_output *output = &run->outputs[i];
                uint32_t index = output_index(graph, output->tensor);

                if (index == HR_NO_INDEX)
                        return hr_fail_reason(diag, HR_E_INVALID, "OUTPUT",
                                              "tensor %u is no output of the graph",
                                              output->tensor);
                if (slot->wanted[index])
                        return hr_fail_reason(diag, HR_E_INVALID, "OUTPUT",
                                              "tensor %u is asked for twice", output->tensor);
                if (output->bytes != pipeline->plan->span[output->tensor] ||
                    (!output->data && output->bytes))
                        return hr_fail_reason(
                                diag, HR_E_INVALID, "SIZE",
                                "output tensor %u has %llu bytes, not %llu", output->tensor,
                                (unsigned long long) pipeline->plan->span[output->tensor],
                                (unsigned long long) output->bytes);
                slot->wanted[index] = output;
        }
        return HR_OK;
}

/* ---- The end
 * ----------------------------------------------------------------------------------- */

static void count_experts(struct hr_exec_counters *counters, const struct hr_expert_tally *tally) {
        uint64_t bytes = atomic_load_explicit(&tally->bytes, memory_order_relaxed);
        uint64_t hits = atomic_load_explicit(&tally->hits, memory_order_relaxed);
        uint64_t misses = atomic_load_explicit(&tally->misses, memory_order_relaxed);

        if (bytes + hits + misses == 0)
                return;
        count(&counters->expert_hits, hits);
        count(&counters->expert_misses, misses);
        count(&counters->expert_bytes, bytes);
        count(&counters->bytes_copied, bytes);
}

/* The pipeline was made, but its constants did not arrive. */
static void without_constants(struct hr_run *run) {
        const struct hr_diag *diag = hr_outcome_diag(&run->pipeline->constants);

        (void) hr_outcome_fail(&run->outcome, diag->status, diag->reason, HR_DIAG_NO_INDEX,
                               "the graph's constants could not be written: %.160s", diag->words);
}

/* now_ns: the time, if the caller has just looked, else 0. */
static void run_end(struct hr_run *run, uint64_t now_ns) {
        struct hr_exec_counters *counters = &run->pipeline->fleet->counters;

        if (HR_UNLIKELY(hr_outcome_failed(&run->pipeline->constants)))
                without_constants(run);
        hr_outcome_end(&run->outcome);
        run->ended_ns = now_ns ? now_ns : hr_clock_now_ns();
        count_experts(counters, &run->experts);
        if (run->outcome.diag.status == HR_OK)
                count(&counters->runs_ok, 1);
        else if (run->outcome.diag.status == HR_E_CANCELLED)
                count(&counters->runs_cancelled, 1);
        else
                count(&counters->runs_failed, 1);
        run->done(run, run->arg);
}

/* One of those whom the run waits for is done. now_ns: as of run_end(). Thread: any. */
static void share_end(struct hr_run *run, uint64_t now_ns) {
        if (atomic_fetch_sub_explicit(&run->pending, 1, memory_order_acq_rel) == 1)
                run_end(run, now_ns);
}

static void on_notify(void *arg) {
        share_end(arg, 0);
}

/* ---- Traces
 * ------------------------------------------------------------------------------------ */

/* Thread: the queue's, before and after the command. */
static void on_begin(void *arg) {
        struct hr_trace_entry *entry = arg;

        entry->begin_ns = hr_clock_now_ns();
        on_notify(entry->run);
}

static void on_end(void *arg) {
        struct hr_trace_entry *entry = arg;
        struct hr_run *run = entry->run;
        struct hr_expert_tally *sum = &run->experts, *own = &entry->experts;

        entry->end_ns = hr_clock_now_ns();
        count(&sum->hits, atomic_load_explicit(&own->hits, memory_order_relaxed));
        count(&sum->misses, atomic_load_explicit(&own->misses, memory_order_relaxed));
        count(&sum->copies, atomic_load_explicit(&own->copies, memory_order_relaxed));
        count(&sum->bytes, atomic_load_explicit(&own->bytes, memory_order_relaxed));
        on_notify(run);
}

/* The run is not over before its last entry is complete. A queue that cannot call back leaves the
 * entry as what did not happen. */
static void mark(const struct hr_bound_command *command, struct hr_trace_entry *entry,
                 hr_notify_fn fn) {
        atomic_fetch_add_explicit(&entry->run->pending, 1, memory_order_relaxed);
        if (hr_queue_notify(command->queue, fn, entry, NULL) != HR_OK)
                on_notify(entry->run); /* not the last: the starter holds a share */
}

/* ---- Submission
 * -------------------------------------------------------------------------------- */

/* A queue that takes no notification: the end of its lane is waited for, so that nothing that the
 * run touches is used while a device still does. What a lost device was given is over. */
static void wait_for_end(struct hr_fleet *fleet, const struct hr_bound_command *command) {
        struct hr_event *event = command->event;

        for (int turn = 0; turn < END_TURNS; ++turn) {
                if (hr_device_is_lost(command->queue->device) ||
                    (hr_queue_record(command->queue, event, NULL) == HR_OK &&
                     hr_fleet_wait(fleet, event, END_TURN_NS) == HR_OK))
                        return;
        }
        hr_log(HR_LOG_DEBUG, "exec", "device %s does not come to an end",
               command->queue->device->props.name);
}

static hr_status submit_notify(const struct hr_bound_command *command, struct hr_run *run,
                               struct hr_diag *diag) {
        hr_status status = hr_queue_notify(command->queue, on_notify, run, diag);

        if (status == HR_OK)
                return HR_OK;
        /* Counts as arrived once it would have. The last one is held back by the starter's own
         * share of `pending`. */
        wait_for_end(run->pipeline->fleet, command);
        atomic_fetch_sub_explicit(&run->pending, 1, memory_order_acq_rel);
        return status;
}

/* Thread: any. */
static void on_tap(void *arg) {
        struct hr_run *run = arg;

        run->at_tap(run, run->arg);
}

/* What follows waits until the run is told to go on. */
static hr_status submit_tap(const struct hr_bound_command *command, struct hr_run *run,
                            struct hr_diag *diag) {
        hr_status status;

        run->tap = command->index;
        run->waits = true;
        status = hr_queue_notify(command->queue, on_tap, run, diag);
        if (status != HR_OK)
                run->waits = false;
        return status;
}

static hr_status submit(const struct hr_bound_command *command, const struct hr_slot *slot,
                        struct hr_run *run, struct hr_expert_tally *tally, struct hr_diag *diag) {
        struct hr_outcome *outcome = &run->outcome;
        const struct hr_run_output *wanted;

        switch (command->code) {
        case HR_COMMAND_WAIT:
                return hr_queue_wait(command->queue, command->event, diag);
        case HR_COMMAND_RECORD:
                return hr_queue_record(command->queue, command->event, diag);
        case HR_COMMAND_GATE:
                return hr_gate_pass(run->pipeline, command->queue, command->index, diag);
        case HR_COMMAND_INPUT:
                return hr_queue_write(command->queue, command->to,
                                      (const uint8_t *) run->inputs[command->index].data +
                                              command->from_offset,
                                      command->bytes, outcome, diag);
        case HR_COMMAND_WRITE:
                return hr_queue_write(command->queue, command->to, command->from, command->bytes,
                                      outcome, diag);
        case HR_COMMAND_READ:
                return hr_queue_read(command->queue, command->from, command->to, command->bytes,
                                     outcome, diag);
        case HR_COMMAND_COPY:
                return hr_queue_copy(command->queue, command->from, command->to, command->kind,
                                     command->bytes, outcome, diag);
        case HR_COMMAND_COPY_EXPERTS:
                return hr_queue_copy_experts(command->queue, command->experts, command->index,
                                             command->from, tally, outcome, diag);
        case HR_COMMAND_COMPUTE:
                if (HR_UNLIKELY(run->at_tap != NULL))
                        return hr_queue_compute(command->queue, command->program, command->first,
                                                command->step_count, outcome, diag);
                if (HR_UNLIKELY(command->whole_count == 0))
                        return HR_OK;
                return hr_queue_compute(command->queue, command->program, 0, command->whole_count,
                                        outcome, diag);
        case HR_COMMAND_TAP:
                if (!run->at_tap || hr_outcome_failed(outcome))
                        return HR_OK;
                HR_TRY(hr_queue_read(command->queue, command->from, run->tap_data, command->bytes,
                                     outcome, diag));
                return submit_tap(command, run, diag);
        case HR_COMMAND_READ_BACK:
                wanted = slot->wanted[command->index];
                if (!wanted)
                        return HR_OK;
                return hr_queue_read(command->queue, command->from, wanted->data, command->bytes,
                                     outcome, diag);
        case HR_COMMAND_NOTIFY:
                return submit_notify(command, run, diag);
        }
        return HR_OK;
}

/* Will the device have anything to do for it? */
static bool happens(const struct hr_bound_command *command, const struct hr_slot *slot,
                    const struct hr_run *run) {
        switch (command->code) {
        case HR_COMMAND_COMPUTE:
                return run->at_tap || command->whole_count;
        case HR_COMMAND_TAP:
                return run->at_tap;
        case HR_COMMAND_READ_BACK:
                return slot->wanted[command->index];
        case HR_COMMAND_GATE:
        case HR_COMMAND_NOTIFY:
                return false;
        default:
                return true;
        }
}

/* The command's entry, begun; NULL where nothing happens. */
static struct hr_trace_entry *trace_begin(const struct hr_bound_command *command,
                                          const struct hr_slot *slot, struct hr_run *run,
                                          struct hr_trace_entry *entry) {
        *entry = (struct hr_trace_entry){.run = run};
        if (!happens(command, slot, run))
                return NULL;
        mark(command, entry, on_begin);
        return entry;
}

/* The lanes of this pipeline that touch states wait for those of the pipeline that used them
 * last. */
static hr_status wait_for_pipeline(const struct hr_pipeline *pipeline,
                                   const struct hr_pipeline *other, struct hr_diag *diag) {
        uint64_t ends = other->event_count - other->plan->lane_count;

        for (uint32_t l = 0; l < pipeline->plan->lane_count; ++l) {
                uint32_t first = pipeline->plan->tape.lane_first[l];

                if (!pipeline->plan->state_lane[l] || first == HR_NO_INDEX)
                        continue;
                for (uint32_t m = 0; m < other->plan->lane_count; ++m) {
                        uint32_t last = other->plan->tape.lane_last[m];

                        if (!other->plan->state_lane[m] || last == HR_NO_INDEX || last == first)
                                continue;
                        HR_TRY(hr_queue_wait(pipeline->fleet->queues[first],
                                             other->events[ends + m], diag));
                }
        }
        return HR_OK;
}

static hr_status take_states(struct hr_pipeline *pipeline, uint32_t slot, struct hr_diag *diag) {
        const struct hr_pipeline *waited = NULL;

        /* One whose states are bound but never touched neither waits nor is waited for. */
        if (!pipeline->touches_states)
                return HR_OK;
        for (uint32_t i = 0; i < pipeline->state_count; ++i) {
                struct hr_state_use *state = pipeline->states[i];

                if (state->pipeline && state->pipeline != pipeline && state->pipeline != waited) {
                        waited = state->pipeline;
                        HR_TRY(wait_for_pipeline(pipeline, waited, diag));
                }
                state->pipeline = pipeline;
                state->slot = slot;
        }
        return HR_OK;
}

static void note_failure(struct hr_run *run, struct hr_diag *diag, bool was_edge) {
        (void) hr_outcome_fail(&run->outcome, diag->status, diag->reason, HR_DIAG_NO_INDEX, "%s",
                               diag->words);
        hr_diag_clear(diag);
        if (was_edge)
                run->pipeline->workspace->unordered = run->pipeline->fleet->unordered = true;
}

static bool is_edge(const struct hr_bound_command *command) {
        return command->code == HR_COMMAND_WAIT || command->code == HR_COMMAND_RECORD ||
               command->code == HR_COMMAND_GATE;
}

/* From run->next_command to the end, or to where the run waits. */
static void submit_rest(struct hr_run *run) {
        struct hr_pipeline *pipeline = run->pipeline;
        struct hr_slot *slot = &pipeline->slots[run->slot];
        uint32_t commands = pipeline->plan->tape.count;
        struct hr_trace_entry *trace = run->trace;
        struct hr_diag diag;

        hr_diag_clear(&diag);
        for (uint32_t i = run->next_command; i < commands; ++i) {
                const struct hr_bound_command *command = &slot->commands[i];
                struct hr_trace_entry *entry = NULL;
                hr_status status;

                run->next_command = i + 1;
                if (HR_UNLIKELY(trace != NULL))
                        entry = trace_begin(command, slot, run, &trace[i]);
                status = submit(command, slot, run, entry ? &entry->experts : &run->experts, &diag);
                if (HR_UNLIKELY(entry != NULL))
                        mark(command, entry, on_end);
                if (HR_UNLIKELY(status != HR_OK))
                        note_failure(run, &diag, is_edge(command));
                if (HR_UNLIKELY(run->waits))
                        return;
        }
        hr_gates_passed(pipeline);
}

static void submit_first(struct hr_run *run) {
        struct hr_diag diag;

        hr_diag_clear(&diag);
        if (take_states(run->pipeline, run->slot, &diag) != HR_OK)
                note_failure(run, &diag, true);
        submit_rest(run);
}

static void count_start(struct hr_pipeline *pipeline, const struct hr_run *run) {
        struct hr_exec_counters *counters = &pipeline->fleet->counters;
        uint64_t in = 0, out = 0;

        for (uint32_t i = 0; i < pipeline->graph->input_count; ++i)
                in += run->inputs[i].bytes;
        for (uint32_t i = 0; i < run->output_count; ++i)
                out += run->outputs[i].bytes;
        count_at_start(&counters->runs_started, 1);
        count_at_start(&counters->splits_computed, pipeline->computed_splits);
        count_at_start(&counters->nodes_computed, pipeline->computed_nodes);
        if (pipeline->copied_bytes > 0)
                count(&counters->bytes_copied, pipeline->copied_bytes);
        count_at_start(&counters->bytes_in, in);
        count_at_start(&counters->bytes_out, out);
}

/* One thread starts runs. */
static void note_start(struct hr_fleet *fleet, uint64_t took_ns) {
        atomic_uint_fast64_t *longest = &fleet->counters.longest_start_ns;

        if (took_ns > atomic_load_explicit(longest, memory_order_relaxed))
                atomic_store_explicit(longest, took_ns, memory_order_relaxed);
}

static void outcome_begin(struct hr_outcome *outcome, uint64_t tag) {
        atomic_store_explicit(&outcome->phase, 0, memory_order_relaxed);
        atomic_store_explicit(&outcome->reached, 0, memory_order_relaxed);
        outcome->tag = tag;
        hr_diag_clear(&outcome->diag);
}

hr_status hr_run_start(struct hr_pipeline *pipeline, struct hr_run *run, struct hr_diag *diag) {
        uint32_t index = (uint32_t) (pipeline->sequence % pipeline->slot_count);
        struct hr_slot *slot = &pipeline->slots[index];
        uint64_t now_ns;

        HR_ASSERT(run->done != NULL);
        if (HR_UNLIKELY(hr_pipeline_is_lost(pipeline)))
                return hr_fail_reason(diag, HR_E_DEVICE_LOST, "RETIRED",
                                      "a device that the plan needs is lost");
        if (slot->taken || hr_pipeline_is_held(pipeline))
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "SLOT", "slot %u is taken", index);
        HR_TRY(check_inputs(pipeline, run, diag));
        HR_TRY(choose_outputs(pipeline, run, slot, diag));
        slot->taken = true;
        ++pipeline->in_flight;
        if (pipeline->workspace->in_flight++ == 0)
                pipeline->workspace->unordered = false;
        if (pipeline->fleet->in_flight++ == 0)
                pipeline->fleet->unordered = false;
        run->pipeline = pipeline;
        run->sequence = pipeline->sequence++;
        run->slot = index;
        outcome_begin(&run->outcome, run->tag);
        memset(&run->experts, 0, sizeof run->experts);
        /* One share more than there are notifications: the run cannot end while it is submitted. */
        atomic_store_explicit(&run->pending, pipeline->notify_count + 1, memory_order_relaxed);
        run->started_ns = hr_clock_now_ns();
        run->ended_ns = 0;
        count_start(pipeline, run);
        run->next_command = 0;
        run->waits = false;
        submit_first(run);
        now_ns = hr_clock_now_ns();
        note_start(pipeline->fleet, now_ns - run->started_ns);
        if (!run->waits)
                share_end(run, now_ns);
        return HR_OK;
}

void hr_run_resume(struct hr_run *run) {
        HR_ASSERT(run->waits);
        run->waits = false;
        submit_rest(run);
        if (!run->waits)
                on_notify(run);
}

void hr_run_cancel(struct hr_run *run, hr_status status, const char *reason) {
        (void) hr_outcome_fail(&run->outcome, status, reason, HR_DIAG_NO_INDEX,
                               "the run was stopped");
}

void hr_run_finish(struct hr_run *run) {
        struct hr_pipeline *pipeline = run->pipeline;

        HR_ASSERT(pipeline->slots[run->slot].taken);
        HR_ASSERT(pipeline->in_flight > 0);
        pipeline->slots[run->slot].taken = false;
        --pipeline->in_flight;
        --pipeline->workspace->in_flight;
        --pipeline->fleet->in_flight;
        pipeline->constants_pending = false;
        /* Nobody else is to meet what this run has met, before the device is retired as well. */
        if (run->outcome.diag.status == HR_E_DEVICE_LOST)
                pipeline->lost = true;
}

uint64_t hr_run_copied_bytes(const struct hr_run *run) {
        return run->pipeline->copied_bytes + atomic_load(&run->experts.bytes);
}
