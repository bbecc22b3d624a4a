/*
 * Proves that every hazard of a tape has an edge, and that every read finds what it means.
 *
 * The proof trusts nothing that planning thought. It walks the commands of a first run in the order
 * of submission, with a vector clock per queue: a wait merges the clock that its event had when it
 * was last recorded. Memory is a set of *blocks*, each what one root, or one copy, has in a section
 * (the shared part of a pool, a slot's part, staging), and of buffers, which are one block each. A
 * block knows which queue wrote it last at which clock, and who has read it since.
 *
 *   read   must come after the last write, and what is meant must still lie there
 *   write  must come after the last write and all reads since of all that it covers
 *   done   must come after every command that touches memory
 *
 * Which bytes are meant depends on the writes so far. Splits are computed in their order, each
 * once; `meant` counts the writes into a root by the nodes computed so far, `landed` those that
 * have reached its memory, or that a copy has seen. A root is read when all that is
 * meant has landed, and a copy only if it has seen as much.
 *
 * Runs. A slot is used again after its run is done, so two runs in flight have different slots, and
 * since every place lies inside its section they meet in shared parts and in buffers only. There
 * all of a run must come after all of the run before: a second run, command by command, shows it.
 * Runs further apart follow, because what conflicts with a run also conflicts with the one between.
 *
 * Upload queues are queues like others, numbered after the devices'.
 *
 * Other pipelines may use the same states before and after. They are one more queue: behind it
 * start the lanes that touch states, and it goes on after the events at the ends of those lanes.
 *
 * Memory that passes (a workspace's) may have been another pipeline's before, and is another one's
 * after. A gate is where a queue waits for the former; every access comes after a gate of its kind,
 * in whatever queue that is. The latter waits for the ends of the lanes that the plan says touch
 * the kind; all accesses come before them, those of earlier runs too. So pipelines that take turns
 * are ordered, whatever their plans.
 *
 * Taps. With them there are two kinds of runs, and both are proven: those that are observed compute
 * range by range and read each tap, at the version that its node sees; the others compute the whole
 * split where the first range stands and read none.
 *
 * Accesses count for whole blocks, which errs on the strict side.
 */
#include "scheduler/verify_priv.h"

#include <string.h>

/* What the command does to the clocks. True when it touches memory. */
static bool step_clocks(struct prover *prover) {
        uint64_t *gates, *event_gates;
        uint32_t *own, queue = hr_plan_queue(prover->plan, prover->command);

        ++prover->turn;
        prover->reach = prover->in->reads + (size_t) prover->command->device * prover->kind_words;
        own = clock_of(prover, queue);
        ++own[queue];
        prover_turn_to(prover, queue);
        gates = prover_gates(prover, prover->queue);
        switch (prover->command->code) {
        case HR_COMMAND_WAIT:
                merge(prover, own, event_clock(prover, prover->command->index));
                event_gates = prover_gates(prover, prover->queues + prover->command->index);
                for (uint32_t w = 0; w < prover->kind_words; ++w)
                        gates[w] |= event_gates[w];
                return false;
        case HR_COMMAND_RECORD:
                memcpy(event_clock(prover, prover->command->index), own,
                       prover->queues * sizeof *own);
                event_gates = prover_gates(prover, prover->queues + prover->command->index);
                memcpy(event_gates, gates, prover->kind_words * sizeof *gates);
                return false;
        case HR_COMMAND_GATE:
                hr_bit_set(gates, prover->command->kind);
                return false;
        case HR_COMMAND_NOTIFY:
                merge(prover, prover->done, own);
                return false;
        default:
                prover->last_touch[prover->queue] = own[prover->queue];
                return true;
        }
}

/* ---- Runs ------------------------------------------------------------------------------------
 */

/* Every command that touches memory is over when the run is done. */
static hr_status prove_done(struct prover *prover) {
        char words[48];

        for (uint32_t q = 0; q < prover->queues; ++q) {
                if (prover->done[q] < prover->last_touch[q])
                        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                              "the run is done before the last command on %s",
                                              prover_queue_words(prover, q, words, sizeof words));
        }
        return HR_OK;
}

static hr_status prove_first_run(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                prover->command = &plan->tape.commands[i];
                if (step_clocks(prover))
                        HR_TRY(prover_prove_access(prover));
        }
        prover_skip_empty_splits(prover);
        if (prover->next_split != plan->split_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "split %u is not computed", prover->next_split);
        if (prover->observed && prover->next_tap != plan->tap_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER", "tap %u is not shown",
                                      prover->next_tap);
        return prove_done(prover);
}

/* The pool's shared part belongs to the run before until all that conflicts is over. */
static hr_status prove_pool_touch(struct prover *prover, uint32_t kind, bool write) {
        const uint32_t *known = prover->known;
        const uint32_t *writes = prover->pool_writes + (size_t) kind * prover->queues;
        const uint32_t *reads = prover->pool_reads + (size_t) kind * prover->queues;
        char late[48], early[48];

        for (uint32_t q = 0; q < prover->other; ++q) {
                if (q == prover->queue ||
                    (known[q] >= writes[q] && (!write || known[q] >= reads[q])))
                        continue;
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "command %u on %s uses memory of kind %u without an edge "
                                      "after %s in the run before",
                                      command_index(prover),
                                      prover_queue_words(prover, prover->queue, late, sizeof late),
                                      kind, prover_queue_words(prover, q, early, sizeof early));
        }
        return HR_OK;
}

static hr_status prove_second_run(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t slot_events = plan->tape.slot_event_count, next = 0;

        /* The other slot's events have not been recorded; those of the lanes have. */
        memset(prover->events, 0, (size_t) slot_events * prover->queues * sizeof(uint32_t));
        memset(prover->done, 0, prover->queues * sizeof(uint32_t));
        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                prover->command = &plan->tape.commands[i];
                (void) step_clocks(prover);
                for (; next < prover->touch_count && prover->touches[next].command == i; ++next) {
                        const struct touch *touch = &prover->touches[next];

                        if (touch->object < plan->kind_count)
                                HR_TRY(prove_pool_touch(prover, touch->object, touch->write));
                        else
                                HR_TRY(prover_access_buffer(
                                        prover, touch->object - plan->kind_count, 0, touch->write));
                }
        }
        return prove_done(prover);
}

/* What the pipeline that uses passing memory of the kind next waits for: the ends of the lanes that
 * say that they touch it, or whose upload queues do (hr_plan_lane_touches(), for all lanes). */
static void pass_gates(struct prover *prover, uint32_t kind, uint32_t *known) {
        const struct hr_plan *plan = prover->plan;
        uint32_t ends = plan->tape.slot_event_count;
        const bool *touches = plan->touches + kind;

        for (uint32_t l = 0; l < plan->lane_count; ++l, touches += plan->kind_count) {
                if (*touches)
                        merge(prover, known, event_clock(prover, ends + l));
        }
        for (uint32_t d = 0; d < plan->device_count; ++d, touches += plan->kind_count) {
                if (plan->uploads[d] && *touches)
                        merge(prover, known, event_clock(prover, ends + plan->lane[d]));
        }
}

/* That covers all accesses. */
static hr_status prove_gates(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t *known = prover_take(prover, prover->queues, sizeof *known);
        char words[48];

        if (!known)
                return prover_out_of_memory(prover);
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                const uint32_t *touch = prover->passing_touch + (size_t) k * prover->queues;

                memset(known, 0, prover->queues * sizeof *known);
                pass_gates(prover, k, known);
                for (uint32_t q = 0; q < prover->other; ++q) {
                        if (known[q] < touch[q])
                                return hr_fail_reason(
                                        prover->diag, HR_E_INTERNAL, "GATE",
                                        "no end of a lane that touches memory of kind %u covers "
                                        "what %s does there",
                                        k, prover_queue_words(prover, q, words, sizeof words));
                }
        }
        return HR_OK;
}

/* The pipeline that uses the states next waits for the ends of the lanes that touch them. */
static hr_status prove_hand_over(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        prover_turn_to(prover, prover->other);
        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                if (plan->state_lane[l])
                        merge(prover, clock_of(prover, prover->queue),
                              event_clock(prover, plan->tape.slot_event_count + l));
        }
        for (uint32_t b = 0; b < prover->in->buffer_count; ++b) {
                if (prover->buffers[b].constant)
                        continue;
                HR_TRY(prover_may_write(prover, &prover->buffers[b], 0));
        }
        return HR_OK;
}

/* ---- Before the first run --------------------------------------------------------------------
 */

/* Is the copy there before the first run? Places of experts that stay from run to run are: nothing
 * but the command that fills them writes there. */
static bool is_there(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        return copy->method == HR_COPY_CONSTANT ||
               (copy->method == HR_COPY_EXPERTS && plan->groups[copy->group].resident);
}

/* Constants and their copies are there. */
static hr_status write_constants(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_tensor *tensors = prover->graph->tensors;

        for (uint32_t i = 0; i < plan->leaf_count + plan->copy_count; ++i) {
                bool leaf = i < plan->leaf_count;
                uint32_t copy = leaf ? 0 : i - plan->leaf_count;
                uint32_t holds = leaf ? i : plan->tensor_count + copy;
                const struct hr_place *place = leaf ? &plan->place[i] : &plan->copies[copy].place;
                uint64_t bytes = leaf ? plan->span[i] : plan->copies[copy].bytes;

                if (bytes == 0 || place->where != HR_WHERE_SHARED ||
                    (leaf ? tensors[i].leaf_kind != HR_LEAF_CONSTANT
                          : !is_there(plan, &plan->copies[copy])))
                        continue;
                HR_TRY(prover_fresh_block(prover, place, bytes, holds));
                prover->blocks[prover->holders[holds].block].writer = HR_NO_INDEX;
                prover->blocks[prover->holders[holds].block].constant = true;
        }
        return HR_OK;
}

/* Writable buffers come from another pipeline; read-only ones were written before everything. */
static void take_buffers(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t b = 0; b < prover->in->buffer_count; ++b)
                prover->buffers[b] = (struct block){
                        .writer = HR_NO_INDEX,
                        .writer_clock = 1,
                        .reader = HR_NO_INDEX,
                        .more_readers = HR_NO_INDEX,
                        .constant = prover->in->buffers[b].usage == HR_USAGE_WEIGHTS,
                };
        for (uint32_t k = 0; k < plan->step_count; ++k) {
                uint32_t id = plan->leaf_count + plan->steps[k];
                const struct hr_place *place = &plan->place[plan->root[id]];

                if (place->where == HR_WHERE_HOME)
                        prover->buffers[prover->in->tensor_buffer[place->index]].constant = false;
        }
        for (uint32_t b = 0; b < prover->in->buffer_count; ++b) {
                if (!prover->buffers[b].constant)
                        prover->buffers[b].writer = prover->other;
        }
        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                if (plan->state_lane[l] && plan->tape.lane_first[l] != HR_NO_INDEX)
                        clock_of(prover, plan->tape.lane_first[l])[prover->other] = 1;
        }
}

static void size_sections(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                prover->sections[k].bytes = plan->pools[k].shared_bytes;
                prover->sections[plan->kind_count + k].bytes = plan->pools[k].slot_bytes;
        }
        prover->sections[2 * plan->kind_count].bytes = plan->staging_bytes;
}

static hr_status count_tap_versions(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t *version = prover_take(prover, plan->tensor_count, sizeof *version);
        bool *computes = prover_take(prover, plan->node_count, sizeof *computes);
        uint32_t node = 0;

        prover->tap_version = prover_take(prover, plan->tap_count, sizeof *prover->tap_version);
        if (!version || !computes || !prover->tap_version)
                return prover_out_of_memory(prover);
        for (uint32_t k = 0; k < plan->step_count; ++k)
                computes[plan->steps[k]] = true;
        for (uint32_t i = 0; i < plan->tap_count; ++i) {
                uint32_t tensor = plan->taps[i].tensor;

                for (; plan->leaf_count + node <= tensor; ++node)
                        version[plan->root[plan->leaf_count + node]] += computes[node];
                prover->tap_version[i] = version[plan->root[tensor]];
        }
        return HR_OK;
}

static hr_status prover_init(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint64_t queues = prover->queues,
                 holders = (uint64_t) plan->tensor_count + plan->copy_count;
        uint64_t events = (uint64_t) plan->tape.slot_event_count + plan->lane_count;

        /* At most one for each constant, node and command. */
        prover->blocks =
                prover_take_raw(prover, holders + plan->tape.count + 1, sizeof(struct block));
        prover->clocks = prover_take(prover, queues * queues, sizeof(uint32_t));
        prover->events = prover_take(prover, events * queues, sizeof(uint32_t));
        prover->done = prover_take(prover, queues, sizeof(uint32_t));
        prover->gates_passed =
                prover_take(prover, queues + events, prover->kind_words * sizeof(uint64_t));
        prover->passing_touch = prover_take(prover, queues * plan->kind_count, sizeof(uint32_t));
        prover->last_touch = prover_take(prover, queues, sizeof(uint32_t));
        prover->settled = prover_take(prover, plan->kind_count, 2 * sizeof(uint32_t));
        prover->sections =
                prover_take(prover, plan->kind_count * UINT64_C(2) + 1, sizeof(struct section));
        prover->holders = prover_take(prover, holders, sizeof(struct holder));
        prover->buffers = prover_take(prover, prover->in->buffer_count, sizeof(struct block));
        prover->scanned = prover_take(prover, plan->group_count, sizeof(bool));
        prover->filled =
                prover_take(prover, plan->group_count ? plan->copy_count : 0, sizeof(bool));
        if (!prover->blocks || !prover->clocks || !prover->events || !prover->done ||
            !prover->gates_passed || !prover->passing_touch || !prover->last_touch ||
            !prover->settled || !prover->sections || !prover->holders || !prover->buffers ||
            !prover->scanned || !prover->filled)
                return prover_out_of_memory(prover);
        if (plan->n_copies > 1) {
                uint64_t pools = plan->kind_count * queues;

                prover->pool_reads = prover_take(prover, pools, sizeof(uint32_t));
                prover->pool_writes = prover_take(prover, pools, sizeof(uint32_t));
                prover->noted =
                        prover_take(prover, (uint64_t) plan->kind_count + prover->in->buffer_count,
                                    2 * sizeof(uint32_t));
                if (!prover->pool_reads || !prover->pool_writes || !prover->noted)
                        return prover_out_of_memory(prover);
        }
        prover->blocks[0] = (struct block){.dead = true}; /* of whoever has none */
        if (prover->observed)
                HR_TRY(count_tap_versions(prover));
        prover_turn_to(prover, 0);
        size_sections(prover);
        take_buffers(prover);
        return write_constants(prover);
}

static hr_status prove(struct prover *prover) {
        HR_TRY(prover_init(prover));
        HR_TRY(prove_first_run(prover));
        HR_TRY(prove_gates(prover));
        if (prover->plan->n_copies > 1) {
                HR_TRY(prove_second_run(prover));
                HR_TRY(prove_gates(prover));
        }
        return prove_hand_over(prover);
}

static bool uploads(const struct hr_plan *plan) {
        for (uint32_t d = 0; d < plan->device_count; ++d) {
                if (plan->uploads[d])
                        return true;
        }
        return false;
}

static hr_status prove_runs(const struct hr_plan *plan, const struct hr_plan_input *input,
                            bool observed, struct hr_arena *arena, struct hr_diag *diag) {
        uint32_t other = plan->device_count * (uploads(plan) ? 2 : 1);
        struct prover prover = {
                .arena = arena,
                .plan = plan,
                .in = input,
                .graph = input->graph,
                .diag = diag,
                .queues = other + 1,
                .other = other,
                .kind_words = hr_bit_words(input->kind_count),
                .observed = observed,
        };

        return prove(&prover);
}

hr_status hr_plan_prove(const struct hr_plan *plan, const struct hr_plan_input *input,
                        struct hr_arena *arena, struct hr_diag *diag) {
        HR_TRY(hr_plan_verify_steps(plan, input, diag));
        HR_TRY(prove_runs(plan, input, false, arena, diag));
        return plan->tap_count ? prove_runs(plan, input, true, arena, diag) : HR_OK;
}

hr_status hr_plan_verify(const struct hr_plan *plan, const struct hr_plan_input *input,
                         struct hr_diag *diag) {
        struct hr_arena arena;
        hr_status status;

        hr_arena_init(&arena, 0);
        status = hr_plan_prove(plan, input, &arena, diag);
        hr_arena_deinit(&arena);
        return status;
}
