/* The brute-force oracle: its making and its word. See happens_before.h and oracle.h. */
#include "tests/unit/scheduler/happens_before.h"

#include <stdlib.h>

#include "tests/harness.h"
#include "tests/unit/scheduler/oracle.h"

void *oracle_zeroed(uint64_t count, uint64_t bytes) {
        void *memory = calloc(count + 1, bytes);

        HR_EXPECT(memory);
        return memory;
}

static bool touches_states(const struct hr_plan *plan) {
        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                if (plan->state_lane[l])
                        return true;
        }
        return false;
}

static bool shares_memory(const struct hr_plan *plan) {
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                if (plan->pools[k].shared_bytes > plan->pools[k].kept_bytes)
                        return true;
        }
        return false;
}

/* All slots, the first two of them again; then two runs of a second pipeline and one more. */
static void unroll(struct oracle *oracle) {
        uint32_t slots = oracle->plan->n_copies, own = slots + 2;
        bool turns = touches_states(oracle->plan) || shares_memory(oracle->plan);

        oracle->turn_count = own + (turns ? 3 : 0);
        oracle->turns = oracle_zeroed(oracle->turn_count, sizeof *oracle->turns);
        for (uint32_t t = 0; t < oracle->turn_count; ++t) {
                bool second = t == own || t == own + 1;
                uint32_t sequence = t < own ? t : second ? t - own : own;

                oracle->turns[t] = (struct turn){
                        .pipeline = second,
                        .slot = sequence % slots,
                        .after =
                                sequence < slots ? HR_NO_INDEX : t - slots - (t == own + 2 ? 2 : 0),
                        .takes_over = t == own || t == own + 2,
                };
        }
}

static uint32_t touching_count(const struct hr_plan *plan) {
        uint32_t count = 0;

        for (uint32_t c = 0; c < plan->tape.count; ++c)
                count += oracle_touches_memory(&plan->tape.commands[c]);
        return count;
}

uint64_t oracle_bytes(const struct hr_plan *plan) {
        uint64_t instances = (uint64_t) touching_count(plan) * (plan->n_copies + 5);

        return instances * instances / 8;
}

struct oracle *oracle_new(const struct hr_plan *plan, const struct hr_plan_input *input) {
        struct oracle *oracle = oracle_zeroed(1, sizeof *oracle);

        oracle->plan = plan;
        oracle->in = input;
        oracle->graph = input->graph;
        unroll(oracle);
        oracle->touching = oracle_zeroed(plan->tape.count, sizeof(uint32_t));
        for (uint32_t c = 0; c < plan->tape.count; ++c)
                oracle->touching[c] = oracle_touches_memory(&plan->tape.commands[c])
                                              ? oracle->touching_count++
                                              : HR_NO_INDEX;
        oracle->instances = oracle->touching_count * oracle->turn_count;
        oracle->words = (oracle->instances + 63) / 64;
        oracle->ranges = oracle_zeroed(oracle->instances, sizeof *oracle->ranges);
        oracle->range_count = oracle_zeroed(oracle->instances, sizeof *oracle->range_count);
        oracle->over = oracle_zeroed(oracle_set_count(oracle) * oracle->words, sizeof(uint64_t));
        oracle->submitted = oracle_zeroed(oracle->words, sizeof(uint64_t));
        oracle->meant_node = oracle_zeroed(
                (uint64_t) oracle->turn_count * oracle->graph->node_count, sizeof(uint64_t));
        oracle->meant_tap =
                oracle_zeroed((uint64_t) oracle->turn_count * plan->tap_count, sizeof(uint64_t));
        oracle->meant_output = oracle_zeroed(
                (uint64_t) oracle->turn_count * oracle->graph->output_count, sizeof(uint64_t));
        oracle->computed = oracle_zeroed(oracle->graph->node_count, sizeof(uint32_t));
        for (uint32_t t = 0; t < oracle->turn_count; ++t)
                oracle_find_ranges(oracle, t);
        oracle_find_conflicts(oracle);
        oracle_find_meaning(oracle);
        oracle_make_memory(oracle);
        return oracle;
}

void oracle_free(struct oracle *oracle) {
        for (uint32_t i = 0; i < oracle->instances; ++i)
                free(oracle->ranges[i]);
        symbols_free(oracle->memory);
        free(oracle->turns);
        free(oracle->touching);
        free(oracle->ranges);
        free(oracle->range_count);
        free(oracle->conflicts);
        free(oracle->over);
        free(oracle->submitted);
        free(oracle->meant_node);
        free(oracle->meant_output);
        free(oracle->meant_tap);
        free(oracle->computed);
        free(oracle);
}

const char *oracle_judge(struct oracle *oracle, const uint32_t *order, uint32_t count) {
        const char *reason = oracle->fault;

        if (!reason)
                reason = oracle_judge_order(oracle, order, count);
        return reason ? reason : oracle_judge_values(oracle, order, count);
}
