/*
 * Taps: nodes whose results an observed run shows to its client before it goes on.
 *
 * A tap lies after its node and before the next one. The steps of its split are cut there into
 * ranges, so devices order and join nodes within a range only, and the tape reads the tensor
 * between two ranges. A run that is not observed computes all ranges of a split at once and reads
 * no tap.
 *
 * A tensor with memory of its own is still there when its node has been computed. A window may be
 * on something that nobody else needs so late: its root lives on until the next step, or the end.
 */
#include <string.h>

#include "scheduler/exec.h"

static hr_status check_tap(const struct hr_planner *planner, uint32_t tap) {
        const struct hr_plan_input *in = planner->in;
        uint32_t tensor = in->taps[tap];

        if (tensor < planner->plan->leaf_count || tensor >= planner->plan->tensor_count)
                return hr_fail_reason(planner->diag, HR_E_INVALID, "TAP", "tensor %u is no node",
                                      tensor);
        if (tap && tensor <= in->taps[tap - 1])
                return hr_fail_reason(planner->diag, HR_E_INVALID, "TAP",
                                      "taps are not in ascending order");
        if (planner->plan->span[tensor] == 0)
                return hr_fail_reason(planner->diag, HR_E_INVALID, "TAP",
                                      "node %u has no elements to show",
                                      tensor - planner->plan->leaf_count);
        return HR_OK;
}

/* The turn until which the root of a tapped window lives: that of the step after the tap. */
static uint32_t turn_after(const struct hr_plan *plan, const struct hr_plan_tap *tap) {
        return tap->step < plan->step_count ? plan->steps[tap->step] : HR_NO_INDEX;
}

hr_status hr_plan_find_taps(struct hr_planner *planner) {
        const struct hr_plan_input *in = planner->in;
        struct hr_plan *plan = planner->plan;
        uint32_t split = 0, step = 0;

        if (in->tap_count == 0)
                return HR_OK;
        plan->taps = planner_keep(planner, in->tap_count, sizeof *plan->taps);
        planner->tap_uses = planner_scratch(planner, in->tap_count, sizeof *planner->tap_uses);
        plan->tap_ids = planner_keep(planner, in->tap_count, sizeof *plan->tap_ids);
        if (!plan->taps || !plan->tap_ids || !planner->tap_uses)
                return planner_out_of_memory(planner);
        memcpy(plan->tap_ids, in->taps, in->tap_count * sizeof *plan->tap_ids);
        for (uint32_t i = 0; i < in->tap_count; ++i) {
                struct hr_plan_tap *tap = &plan->taps[i];
                uint32_t node, root;

                HR_TRY(check_tap(planner, i));
                node = in->taps[i] - plan->leaf_count;
                root = plan->root[in->taps[i]];
                while (plan->splits[split].end <= node)
                        ++split;
                while (step < plan->step_count && plan->steps[step] <= node)
                        ++step;
                *tap = (struct hr_plan_tap){.tensor = in->taps[i], .split = split, .step = step};
                plan->tap_bytes = HR_MAX(plan->tap_bytes, plan->span[tap->tensor]);
                planner->tap_uses[i] = (struct hr_plan_use){
                        .holder = root, .node = root == tap->tensor ? node : turn_after(plan, tap)};
        }
        plan->tap_count = in->tap_count;
        return HR_OK;
}

uint32_t hr_plan_tap_tensor(const struct hr_plan *plan, uint32_t tap) {
        HR_ASSERT(tap < plan->tap_count);
        return plan->taps[tap].tensor;
}

/* ---- What a stopped run has written ------------------------------------------------------------
 *
 * Up to where it waits everything submitted happens. Of a run that has ended, what its devices had
 * begun when it failed: later computations did nothing.
 */

static void add_state(const struct hr_plan *plan, const struct hr_graph *graph, uint32_t root,
                      uint32_t *leaves, uint32_t *count, uint32_t capacity) {
        if (root >= plan->leaf_count || graph->tensors[root].leaf_kind != HR_LEAF_STATE)
                return;
        for (uint32_t i = 0; i < *count; ++i) {
                if (leaves[i] == root)
                        return;
        }
        if (*count < capacity)
                leaves[(*count)++] = root;
}

uint32_t hr_run_written_states(const struct hr_run *run, uint32_t *leaves, uint32_t capacity) {
        const struct hr_plan *plan = run->pipeline->plan;
        const struct hr_graph *graph = run->pipeline->graph;
        uint32_t reached = run->waits ? HR_NO_INDEX : atomic_load(&run->outcome.reached);
        uint32_t count = 0, end = 0;

        for (uint32_t i = 0; i < run->next_command; ++i) {
                const struct hr_command *command = &plan->tape.commands[i];
                uint32_t first;

                if (command->to.where == HR_WHERE_HOME && end <= reached) /* carried back */
                        add_state(plan, graph, command->to_holds, leaves, &count, capacity);
                if (command->code != HR_COMMAND_COMPUTE)
                        continue;
                first = plan->splits[command->index].step_first + command->first;
                end = first + command->count;
                for (uint32_t k = first; k < HR_MIN(end, reached); ++k) {
                        uint32_t node = plan->steps[k];

                        if (!plan->result_copy || plan->result_copy[node] == HR_NO_COPY)
                                add_state(plan, graph, plan->root[plan->leaf_count + node], leaves,
                                          &count, capacity);
                }
        }
        return count;
}
