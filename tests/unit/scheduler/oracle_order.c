/* What is over when an access is submitted: sets that queues, events and runs hand on. */
#include "tests/unit/scheduler/oracle.h"

#include <stdio.h>
#include <string.h>

/* Sets in oracle->over: queues, then the events of each pipeline, then turns. */
/* Devices' queues and their upload queues; each pipeline has its own, as if the two had no device
 * in common but the memory. */
static uint32_t queue_count(const struct hr_plan *plan) {
        return 2 * plan->device_count;
}

static uint64_t *queue_set(const struct oracle *oracle, const struct turn *turn, uint32_t queue) {
        return oracle->over +
               (size_t) (turn->pipeline * queue_count(oracle->plan) + queue) * oracle->words;
}

static uint32_t event_count(const struct hr_plan *plan) {
        return plan->tape.slot_event_count * plan->n_copies + plan->lane_count;
}

static uint64_t *event_set(const struct oracle *oracle, const struct turn *turn, uint32_t event) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t slot_events = plan->tape.slot_event_count;
        uint32_t index = event < slot_events ? turn->slot * slot_events + event
                                             : plan->n_copies * slot_events + (event - slot_events);

        return oracle->over + (size_t) (PIPELINES * queue_count(plan) +
                                        turn->pipeline * event_count(plan) + index) *
                                      oracle->words;
}

static uint64_t *turn_set(const struct oracle *oracle, uint32_t turn) {
        const struct hr_plan *plan = oracle->plan;

        return oracle->over +
               (size_t) (PIPELINES * (queue_count(plan) + event_count(plan)) + turn) *
                       oracle->words;
}

static void join_set(const struct oracle *oracle, uint64_t *into, const uint64_t *from) {
        for (uint32_t w = 0; w < oracle->words; ++w)
                into[w] |= from[w];
}

/* The lanes that touch states go on after those of the pipeline that had the states. */
static void take_states(struct oracle *oracle, const struct turn *turn) {
        const struct hr_plan *plan = oracle->plan;
        struct turn other = {.pipeline = 1 - turn->pipeline};

        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                uint32_t first = plan->tape.lane_first[l];

                if (!plan->state_lane[l] || first == HR_NO_INDEX)
                        continue;
                for (uint32_t m = 0; m < plan->lane_count; ++m) {
                        if (plan->state_lane[m] && plan->tape.lane_last[m] != HR_NO_INDEX)
                                join_set(
                                        oracle, queue_set(oracle, turn, first),
                                        event_set(oracle, &other, plan->tape.slot_event_count + m));
                }
        }
}

/* At a gate the queue goes on after the lanes of the pipeline that had the memory of the kind. */
static void pass_gate(struct oracle *oracle, const struct turn *turn,
                      const struct hr_command *command, uint64_t *queue) {
        const struct hr_plan *plan = oracle->plan;
        struct turn other = {.pipeline = 1 - turn->pipeline};

        for (uint32_t l = 0; turn->takes_over && l < plan->lane_count; ++l) {
                bool touches = plan->touches[l * plan->kind_count + command->kind];

                for (uint32_t d = 0; d < plan->device_count; ++d)
                        touches = touches ||
                                  (plan->lane[d] == l &&
                                   plan->touches[(plan->lane_count + d) * plan->kind_count +
                                                 command->kind]);
                if (touches)
                        join_set(oracle, queue,
                                 event_set(oracle, &other, plan->tape.slot_event_count + l));
        }
}

/* Every earlier instance that this one conflicts with must be over. */
static const char *order_instance(struct oracle *oracle, uint32_t instance, uint64_t *queue) {
        const uint64_t *conflicts = oracle->conflicts + (size_t) instance * oracle->words;

        for (uint32_t w = 0; w < oracle->words; ++w) {
                uint64_t open = conflicts[w] & oracle->submitted[w] & ~queue[w];
                uint32_t other = w * 64 + (open ? (uint32_t) __builtin_ctzll(open) : 0);

                if (!open)
                        continue;
                snprintf(oracle->reason, sizeof oracle->reason,
                         "access %u of run %u is not ordered after access %u of run %u",
                         instance % oracle->touching_count, instance / oracle->touching_count,
                         other % oracle->touching_count, other / oracle->touching_count);
                return oracle->reason;
        }
        hr_bit_set(oracle->submitted, instance);
        hr_bit_set(queue, instance);
        return NULL;
}

static const char *order_turn(struct oracle *oracle, uint32_t index, const uint32_t *order,
                              uint32_t count) {
        const struct hr_plan *plan = oracle->plan;
        const struct turn *turn = &oracle->turns[index];
        uint64_t *done = turn_set(oracle, index);
        const char *reason = NULL;

        for (uint32_t d = 0; turn->after != HR_NO_INDEX && d < queue_count(plan); ++d)
                join_set(oracle, queue_set(oracle, turn, d), turn_set(oracle, turn->after));
        if (turn->takes_over)
                take_states(oracle, turn);
        for (uint32_t i = 0; i < count && !reason; ++i) {
                const struct hr_command *command = &plan->tape.commands[order[i]];
                uint64_t *queue = queue_set(oracle, turn,
                                            command->upload * plan->device_count + command->device);

                if (command->code == HR_COMMAND_WAIT)
                        join_set(oracle, queue, event_set(oracle, turn, command->index));
                else if (command->code == HR_COMMAND_RECORD)
                        memcpy(event_set(oracle, turn, command->index), queue,
                               oracle->words * sizeof *queue);
                else if (command->code == HR_COMMAND_NOTIFY)
                        join_set(oracle, done, queue);
                else if (command->code == HR_COMMAND_GATE)
                        pass_gate(oracle, turn, command, queue);
                else
                        reason = order_instance(
                                oracle, index * oracle->touching_count + oracle->touching[order[i]],
                                queue);
        }
        for (uint32_t k = 0; k < oracle->touching_count && !reason; ++k) {
                if (!hr_bit_get(done, index * oracle->touching_count + k))
                        reason = "a run is done before one of its accesses";
        }
        return reason;
}

uint64_t oracle_set_count(const struct oracle *oracle) {
        const struct hr_plan *plan = oracle->plan;

        return (uint64_t) PIPELINES * (queue_count(plan) + event_count(plan)) + oracle->turn_count;
}

const char *oracle_judge_order(struct oracle *oracle, const uint32_t *order, uint32_t count) {
        const char *reason = NULL;

        memset(oracle->over, 0, oracle_set_count(oracle) * oracle->words * sizeof(uint64_t));
        memset(oracle->submitted, 0, oracle->words * sizeof(uint64_t));
        for (uint32_t t = 0; t < oracle->turn_count && !reason; ++t)
                reason = order_turn(oracle, t, order, count);
        return reason;
}
