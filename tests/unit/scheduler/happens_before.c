/*
 * The brute-force oracle. See happens_before.h.
 *
 * An *instance* is one command that touches memory, in one run of the unrolled sequence. For each
 * instance there is a bit set of those it conflicts with, found by comparing all pairs; for each
 * queue, event and run another of what is over. Both are as plain as they can be.
 *
 * Spaces of addresses: a pool per kind and pipeline, staging per pipeline, and for buffers the
 * buffer when conflicts are looked for (where in it a leaf lies, no plan knows), the leaf when
 * values are followed.
 */
#include "tests/unit/scheduler/happens_before.h"

#include <stdlib.h>
#include <string.h>

#include "tests/harness.h"
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

static void *zeroed(uint64_t count, uint64_t bytes) {
        void *memory = calloc(count + 1, bytes);

        HR_EXPECT(memory);
        return memory;
}

/* ---- Places ------------------------------------------------------------------------------------
 */

static bool touches_memory(const struct hr_command *command) {
        return command->code != HR_COMMAND_WAIT && command->code != HR_COMMAND_RECORD &&
               command->code != HR_COMMAND_NOTIFY && command->code != HR_COMMAND_GATE;
}

static struct hr_place place_of(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

/* Where a place is for a turn: its value space and its address there. */
static bool locate(const struct oracle *oracle, const struct turn *turn, struct hr_place place,
                   uint32_t *ret_space, uint64_t *ret_address) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t kinds = plan->kind_count;

        *ret_address = place.offset;
        switch (place.where) {
        case HR_WHERE_SLOT:
                *ret_address += plan->pools[place.index].shared_bytes +
                                turn->slot * plan->pools[place.index].slot_bytes;
                *ret_space = place.index * PIPELINES + turn->pipeline;
                return true;
        case HR_WHERE_SHARED: /* what passes is the same for both */
                *ret_space =
                        place.index * PIPELINES +
                        (place.offset < plan->pools[place.index].kept_bytes ? turn->pipeline : 0);
                return true;
        case HR_WHERE_STAGING:
                *ret_address += turn->slot * plan->staging_bytes;
                *ret_space = kinds * PIPELINES + turn->pipeline;
                return true;
        case HR_WHERE_HOME:
                *ret_space = (kinds + 1) * PIPELINES + place.index;
                return true;
        case HR_WHERE_NONE:
                break;
        }
        return false;
}

static bool in_reach(const struct oracle *oracle, uint32_t device, struct hr_place place) {
        const struct hr_plan_input *in = oracle->in;
        const uint64_t *reads = in->reads + (size_t) device * hr_bit_words(in->kind_count);

        if (place.where == HR_WHERE_SHARED || place.where == HR_WHERE_SLOT)
                return hr_bit_get(reads, place.index);
        if (place.where == HR_WHERE_HOME)
                return hr_bit_get(reads, in->buffers[in->tensor_buffer[place.index]].kind);
        return true;
}

/* What node `node` reads as source i, and where its result goes. */
static bool source_place(const struct oracle *oracle, uint32_t node, uint32_t i,
                         struct hr_place *ret_place, uint64_t *ret_bytes) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t id = oracle->graph->leaf_count + node, copy;
        uint32_t source = hr_graph_source(oracle->graph, &oracle->graph->tensors[id], i);

        if (source == HR_TENSOR_NONE || source == id)
                return false;
        copy = plan->source_copy[plan->source_start[node] + i];
        *ret_place = copy == HR_NO_COPY ? place_of(plan, source) : plan->copies[copy].place;
        *ret_bytes = copy == HR_NO_COPY ? plan->span[source] : plan->copies[copy].bytes;
        return true;
}

static struct hr_place result_place(const struct oracle *oracle, uint32_t node) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t copy = plan->result_copy ? plan->result_copy[node] : HR_NO_COPY;

        return copy == HR_NO_COPY ? place_of(plan, oracle->graph->leaf_count + node)
                                  : plan->copies[copy].place;
}

/* ---- Conflicts ---------------------------------------------------------------------------------
 */

struct range_list {
        struct range *items;
        uint32_t count, capacity;
};

static void add_range(struct oracle *oracle, struct range_list *list, const struct turn *turn,
                      struct hr_place place, uint64_t bytes, bool write) {
        struct range range = {.write = write};

        if (bytes == 0 || !locate(oracle, turn, place, &range.space, &range.start))
                return;
        range.end = range.start + bytes;
        if (place.where == HR_WHERE_HOME) {
                range.space = UINT32_MAX - oracle->in->tensor_buffer[place.index];
                range.start = 0;
                range.end = 1;
        }
        if (list->count == list->capacity) {
                list->capacity = list->capacity ? list->capacity * 2 : 8;
                list->items = realloc(list->items, list->capacity * sizeof *list->items);
                HR_EXPECT(list->items);
        }
        list->items[list->count++] = range;
}

static void need_reach(struct oracle *oracle, uint32_t device, struct hr_place place,
                       uint64_t bytes) {
        if (bytes && !in_reach(oracle, device, place))
                oracle->fault = "a device touches memory out of its reach";
}

static void compute_ranges(struct oracle *oracle, struct range_list *list, const struct turn *turn,
                           const struct hr_command *command) {
        const struct hr_plan *plan = oracle->plan;
        const struct hr_plan_split *split = &plan->splits[command->index];

        for (uint32_t k = command->first; k < command->first + command->count; ++k) {
                uint32_t node = plan->steps[split->step_first + k];
                uint32_t id = oracle->graph->leaf_count + node;
                struct hr_place place;
                uint64_t bytes;

                for (uint32_t i = 0; i < oracle->graph->tensors[id].source_count; ++i) {
                        if (!source_place(oracle, node, i, &place, &bytes))
                                continue;
                        add_range(oracle, list, turn, place, bytes, false);
                        need_reach(oracle, command->device, place, bytes);
                }
                place = result_place(oracle, node);
                add_range(oracle, list, turn, place, plan->span[id], true);
                need_reach(oracle, command->device, place, plan->span[id]);
        }
}

static int by_start(const void *a, const void *b) {
        const struct range *x = a, *y = b;

        if (x->write != y->write)
                return x->write - y->write;
        if (x->space != y->space)
                return x->space < y->space ? -1 : 1;
        return x->start < y->start ? -1 : x->start > y->start;
}

/* The first weight's command reads the ids. */
static void ids_range(struct oracle *oracle, struct range_list *list, const struct turn *turn,
                      const struct hr_command *command) {
        const struct hr_plan *plan = oracle->plan;
        const struct hr_plan_copy *copy = &plan->copies[command->index];
        const struct hr_expert_group *group = &plan->groups[copy->group];
        bool copied = group->ids_copy != HR_NO_COPY;
        struct hr_place place =
                copied ? plan->copies[group->ids_copy].place : place_of(plan, group->ids);

        if (copy->member > 0)
                return;
        add_range(oracle, list, turn, place, plan->span[group->ids], false);
        need_reach(oracle, command->device, place, plan->span[group->ids]);
}

/* Unites what touches: only which bytes are read and which written matters. */
static void unite(struct range_list *list) {
        uint32_t kept = 0;

        if (list->count)
                qsort(list->items, list->count, sizeof *list->items, by_start);
        for (uint32_t i = 0; i < list->count; ++i) {
                struct range *last = kept ? &list->items[kept - 1] : NULL;
                const struct range *next = &list->items[i];

                if (last && last->write == next->write && last->space == next->space &&
                    next->start <= last->end)
                        last->end = HR_MAX(last->end, next->end);
                else
                        list->items[kept++] = *next;
        }
        list->count = kept;
}

static void find_ranges(struct oracle *oracle, uint32_t turn_index) {
        const struct turn *turn = &oracle->turns[turn_index];
        const struct hr_tape *tape = &oracle->plan->tape;

        for (uint32_t c = 0; c < tape->count; ++c) {
                const struct hr_command *command = &tape->commands[c];
                struct range_list list = {0};
                uint32_t instance = turn_index * oracle->touching_count + oracle->touching[c];
                bool from_host = command->code == HR_COMMAND_INPUT;
                bool to_host =
                        command->code == HR_COMMAND_READ_BACK || command->code == HR_COMMAND_TAP;

                if (!touches_memory(command))
                        continue;
                if (command->code == HR_COMMAND_COMPUTE) {
                        compute_ranges(oracle, &list, turn, command);
                } else {
                        if (!from_host)
                                add_range(oracle, &list, turn, command->from, command->bytes,
                                          false);
                        if (!to_host)
                                add_range(oracle, &list, turn, command->to, command->bytes, true);
                        if (command->code == HR_COMMAND_COPY_EXPERTS)
                                ids_range(oracle, &list, turn, command);
                        if (!from_host && command->code != HR_COMMAND_WRITE &&
                            command->code != HR_COMMAND_COPY_EXPERTS)
                                need_reach(oracle, command->device, command->from, command->bytes);
                        if (from_host || command->code == HR_COMMAND_WRITE ||
                            command->code == HR_COMMAND_COPY_EXPERTS)
                                need_reach(oracle, command->device, command->to, command->bytes);
                }
                unite(&list);
                oracle->ranges[instance] = list.items;
                oracle->range_count[instance] = list.count;
        }
}

static bool conflict(const struct oracle *oracle, uint32_t a, uint32_t b) {
        for (uint32_t i = 0; i < oracle->range_count[a]; ++i) {
                const struct range *x = &oracle->ranges[a][i];

                for (uint32_t j = 0; j < oracle->range_count[b]; ++j) {
                        const struct range *y = &oracle->ranges[b][j];

                        if ((x->write || y->write) && x->space == y->space && x->start < y->end &&
                            y->start < x->end)
                                return true;
                }
        }
        return false;
}

static void find_conflicts(struct oracle *oracle) {
        oracle->conflicts = zeroed((uint64_t) oracle->instances * oracle->words, sizeof(uint64_t));
        for (uint32_t a = 0; a < oracle->instances; ++a) {
                for (uint32_t b = 0; b < a; ++b) {
                        if (!conflict(oracle, a, b))
                                continue;
                        hr_bit_set(oracle->conflicts + (size_t) a * oracle->words, b);
                        hr_bit_set(oracle->conflicts + (size_t) b * oracle->words, a);
                }
        }
}

/* ---- Order -------------------------------------------------------------------------------------
 */

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

static const char *judge_order(struct oracle *oracle, const uint32_t *order, uint32_t count) {
        const struct hr_plan *plan = oracle->plan;
        uint64_t sets =
                (uint64_t) PIPELINES * (queue_count(plan) + event_count(plan)) + oracle->turn_count;
        const char *reason = NULL;

        memset(oracle->over, 0, sets * oracle->words * sizeof(uint64_t));
        memset(oracle->submitted, 0, oracle->words * sizeof(uint64_t));
        for (uint32_t t = 0; t < oracle->turn_count && !reason; ++t)
                reason = order_turn(oracle, t, order, count);
        return reason;
}

/* ---- Values ------------------------------------------------------------------------------------
 */

enum { NAME_INPUT = 1, NAME_CONSTANT, NAME_HOME, NAME_NODE };

static uint64_t name(uint32_t what, uint32_t id, uint32_t turn) {
        return symbol_mix(symbol_mix(what, id), turn) | 1;
}

static uint64_t leaf_value(const struct oracle *oracle, uint32_t leaf, uint32_t turn) {
        return oracle->graph->tensors[leaf].leaf_kind == HR_LEAF_CONSTANT
                       ? name(NAME_CONSTANT, leaf, 0)
                       : name(NAME_INPUT, leaf, turn);
}

static bool is_home(const struct oracle *oracle, uint32_t tensor) {
        return oracle->in->tensor_buffer[tensor] != HR_NO_BUFFER &&
               oracle->plan->root[tensor] == tensor;
}

static bool computes(const struct hr_tensor *tensor) {
        return !hr_op_is_view(tensor->op) && tensor->op != HR_OP_NONE &&
               !hr_tensor_is_empty(tensor);
}

static uint64_t tensor_value(const struct hr_plan *plan, struct symbols *memory, uint32_t id) {
        return symbols_read(memory, plan->root[id], plan->root_offset[id], plan->span[id]);
}

/* One turn of the graph with memory for every root. A tap comes before the next node. */
static void mean_turn(struct oracle *oracle, struct symbols *memory, uint32_t turn) {
        const struct hr_graph *graph = oracle->graph;
        const struct hr_plan *plan = oracle->plan;
        uint64_t *meant_tap = oracle->meant_tap + (size_t) turn * plan->tap_count;
        uint32_t tap = 0;

        for (uint32_t i = 0; i < graph->leaf_count; ++i) {
                if (plan->root[i] == i && !is_home(oracle, i))
                        symbols_write(memory, i, 0, plan->span[i], leaf_value(oracle, i, turn));
        }
        for (uint32_t n = 0; n < graph->node_count; ++n) {
                uint32_t id = graph->leaf_count + n, root = plan->root[id];
                uint64_t value = name(NAME_NODE, id, 0);

                for (; tap < plan->tap_count && plan->taps[tap].tensor < id; ++tap)
                        meant_tap[tap] = tensor_value(plan, memory, plan->taps[tap].tensor);
                if (!computes(&graph->tensors[id]))
                        continue;
                for (uint32_t i = 0; i < graph->tensors[id].source_count; ++i) {
                        uint32_t source = hr_graph_source(graph, &graph->tensors[id], i);

                        if (source != HR_TENSOR_NONE && source != id)
                                value = symbol_mix(value, symbols_read(memory, plan->root[source],
                                                                       plan->root_offset[source],
                                                                       plan->span[source]));
                }
                if (root != id)
                        value = symbol_mix(value, symbols_read(memory, root, plan->root_offset[id],
                                                               plan->span[id]));
                symbols_write(memory, root, plan->root_offset[id], plan->span[id], value);
                oracle->meant_node[(size_t) turn * graph->node_count + n] = value;
        }
        for (; tap < plan->tap_count; ++tap)
                meant_tap[tap] = tensor_value(plan, memory, plan->taps[tap].tensor);
        for (uint32_t i = 0; i < graph->output_count; ++i) {
                uint32_t id = graph->outputs[i];

                oracle->meant_output[(size_t) turn * graph->output_count + i] =
                        tensor_value(plan, memory, id);
        }
}

static void find_meaning(struct oracle *oracle) {
        const struct hr_plan *plan = oracle->plan;
        struct symbols *memory = symbols_new(plan->tensor_count);

        for (uint32_t i = 0; i < plan->tensor_count; ++i)
                symbols_announce(memory, plan->root[i], plan->root_offset[i], plan->span[i]);
        symbols_seal(memory);
        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                if (is_home(oracle, i))
                        symbols_write(memory, i, 0, plan->span[i], name(NAME_HOME, i, 0));
        }
        for (uint32_t t = 0; t < oracle->turn_count; ++t)
                mean_turn(oracle, memory, t);
        symbols_free(memory);
}

static uint64_t read_place(const struct oracle *oracle, const struct turn *turn,
                           struct hr_place place, uint64_t bytes) {
        uint32_t space;
        uint64_t address;

        if (bytes == 0 || !locate(oracle, turn, place, &space, &address))
                return symbols_part(0, bytes, 0, bytes);
        return symbols_read(oracle->memory, space, address, bytes);
}

static void write_place(const struct oracle *oracle, const struct turn *turn, struct hr_place place,
                        uint64_t bytes, uint64_t value) {
        uint32_t space;
        uint64_t address;

        if (bytes && locate(oracle, turn, place, &space, &address))
                symbols_write(oracle->memory, space, address, bytes, value);
}

static bool compute_node(struct oracle *oracle, uint32_t turn, uint32_t node) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t id = oracle->graph->leaf_count + node;
        uint64_t value = name(NAME_NODE, id, 0), bytes;
        struct hr_place place;

        for (uint32_t i = 0; i < oracle->graph->tensors[id].source_count; ++i) {
                if (source_place(oracle, node, i, &place, &bytes))
                        value = symbol_mix(value,
                                           read_place(oracle, &oracle->turns[turn], place, bytes));
        }
        place = result_place(oracle, node);
        if (plan->root[id] != id)
                value = symbol_mix(value,
                                   read_place(oracle, &oracle->turns[turn], place, plan->span[id]));
        write_place(oracle, &oracle->turns[turn], place, plan->span[id], value);
        oracle->computed[node] = turn + 1;
        return value == oracle->meant_node[(size_t) turn * oracle->graph->node_count + node];
}

static bool compute_range(struct oracle *oracle, uint32_t turn, const struct hr_command *command) {
        const struct hr_plan_split *split = &oracle->plan->splits[command->index];

        for (uint32_t k = command->first; k < command->first + command->count; ++k) {
                if (!compute_node(oracle, turn, oracle->plan->steps[split->step_first + k]))
                        return false;
        }
        return true;
}

/* The bytes of a run's input, or of a part of it. */
static uint64_t input_value(const struct oracle *oracle, const struct hr_command *command,
                            uint32_t turn) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t holds = command->to_holds, leaf;

        leaf = plan->root[holds < plan->tensor_count
                                  ? holds
                                  : plan->copies[holds - plan->tensor_count].tensor];
        if (command->index < oracle->graph->input_count)
                leaf = oracle->graph->inputs[command->index];
        return symbols_part(leaf_value(oracle, leaf, turn), plan->span[leaf], command->from.offset,
                            command->bytes);
}

static bool execute(struct oracle *oracle, uint32_t turn, const struct hr_command *command) {
        const struct turn *at = &oracle->turns[turn];
        uint64_t bytes;

        switch (command->code) {
        case HR_COMMAND_INPUT:
                write_place(oracle, at, command->to, command->bytes,
                            input_value(oracle, command, turn));
                return true;
        case HR_COMMAND_WRITE:
        case HR_COMMAND_READ:
        case HR_COMMAND_COPY:
                write_place(oracle, at, command->to, command->bytes,
                            read_place(oracle, at, command->from, command->bytes));
                return true;
        case HR_COMMAND_COPY_EXPERTS: /* the used ones stand for all, in however few places */
                bytes = oracle->plan->span[oracle->plan->copies[command->index].tensor];
                write_place(oracle, at, command->to, command->bytes,
                            read_place(oracle, at, command->from, bytes));
                return true;
        case HR_COMMAND_COMPUTE:
                return compute_range(oracle, turn, command);
        case HR_COMMAND_TAP:
                return read_place(oracle, at, command->from, command->bytes) ==
                       oracle->meant_tap[(size_t) turn * oracle->plan->tap_count + command->index];
        case HR_COMMAND_READ_BACK:
                return read_place(oracle, at, command->from, command->bytes) ==
                       oracle->meant_output[(size_t) turn * oracle->graph->output_count +
                                            command->index];
        case HR_COMMAND_WAIT:
        case HR_COMMAND_RECORD:
        case HR_COMMAND_GATE:
        case HR_COMMAND_NOTIFY:
                break;
        }
        return true;
}

/* Homes, constants and copies of constants hold their values before the first run. */
static void fill_memory(struct oracle *oracle) {
        const struct hr_plan *plan = oracle->plan;

        symbols_clear(oracle->memory);
        for (uint32_t p = 0; p < PIPELINES; ++p) {
                struct turn turn = {.pipeline = p};

                for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                        if (is_home(oracle, i))
                                write_place(oracle, &turn, plan->place[i], plan->span[i],
                                            name(NAME_HOME, i, 0));
                        else if (i < plan->leaf_count &&
                                 oracle->graph->tensors[i].leaf_kind == HR_LEAF_CONSTANT)
                                write_place(oracle, &turn, plan->place[i], plan->span[i],
                                            leaf_value(oracle, i, 0));
                }
                for (uint32_t c = 0; c < plan->copy_count; ++c) {
                        const struct hr_plan_copy *copy = &plan->copies[c];
                        uint32_t root = plan->root[copy->tensor];

                        if (copy->method == HR_COPY_CONSTANT)
                                write_place(
                                        oracle, &turn, copy->place, copy->bytes,
                                        symbols_part(leaf_value(oracle, root, 0), plan->span[root],
                                                     plan->root_offset[copy->tensor], copy->bytes));
                }
        }
}

static const char *judge_values(struct oracle *oracle, const uint32_t *order, uint32_t count) {
        const struct hr_graph *graph = oracle->graph;

        fill_memory(oracle);
        memset(oracle->computed, 0, graph->node_count * sizeof(uint32_t));
        for (uint32_t t = 0; t < oracle->turn_count; ++t) {
                for (uint32_t i = 0; i < count; ++i) {
                        if (execute(oracle, t, &oracle->plan->tape.commands[order[i]]))
                                continue;
                        snprintf(oracle->reason, sizeof oracle->reason,
                                 "command %u of run %u has not what the graph means", order[i], t);
                        return oracle->reason;
                }
                for (uint32_t n = 0; n < graph->node_count; ++n) {
                        if (computes(hr_graph_node(graph, n)) && oracle->computed[n] != t + 1)
                                return "a node is not computed";
                }
        }
        return NULL;
}

/* ---- Making ------------------------------------------------------------------------------------
 */

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
        oracle->turns = zeroed(oracle->turn_count, sizeof *oracle->turns);
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

static void announce(struct oracle *oracle, const struct turn *turn, struct hr_place place,
                     uint64_t bytes) {
        uint32_t space;
        uint64_t address;

        if (bytes && locate(oracle, turn, place, &space, &address))
                symbols_announce(oracle->memory, space, address, bytes);
}

static void make_memory(struct oracle *oracle) {
        const struct hr_plan *plan = oracle->plan;

        oracle->memory = symbols_new((plan->kind_count + 1) * PIPELINES + plan->tensor_count);
        for (uint32_t t = 0; t <= oracle->turn_count; ++t) {
                struct turn first = {.pipeline = 1};
                const struct turn *turn = t < oracle->turn_count ? &oracle->turns[t] : &first;

                for (uint32_t i = 0; i < plan->tensor_count; ++i)
                        announce(oracle, turn, place_of(plan, i), plan->span[i]);
                for (uint32_t c = 0; c < plan->copy_count; ++c)
                        announce(oracle, turn, plan->copies[c].place, plan->copies[c].bytes);
                for (uint32_t c = 0; c < plan->tape.count; ++c) {
                        const struct hr_command *command = &plan->tape.commands[c];

                        if (!touches_memory(command))
                                continue;
                        if (command->code != HR_COMMAND_INPUT)
                                announce(oracle, turn, command->from, command->bytes);
                        if (command->code != HR_COMMAND_READ_BACK &&
                            command->code != HR_COMMAND_TAP)
                                announce(oracle, turn, command->to, command->bytes);
                }
        }
        symbols_seal(oracle->memory);
}

static uint32_t touching_count(const struct hr_plan *plan) {
        uint32_t count = 0;

        for (uint32_t c = 0; c < plan->tape.count; ++c)
                count += touches_memory(&plan->tape.commands[c]);
        return count;
}

uint64_t oracle_bytes(const struct hr_plan *plan) {
        uint64_t instances = (uint64_t) touching_count(plan) * (plan->n_copies + 5);

        return instances * instances / 8;
}

struct oracle *oracle_new(const struct hr_plan *plan, const struct hr_plan_input *input) {
        struct oracle *oracle = zeroed(1, sizeof *oracle);
        uint64_t sets;

        oracle->plan = plan;
        oracle->in = input;
        oracle->graph = input->graph;
        unroll(oracle);
        oracle->touching = zeroed(plan->tape.count, sizeof(uint32_t));
        for (uint32_t c = 0; c < plan->tape.count; ++c)
                oracle->touching[c] = touches_memory(&plan->tape.commands[c])
                                              ? oracle->touching_count++
                                              : HR_NO_INDEX;
        oracle->instances = oracle->touching_count * oracle->turn_count;
        oracle->words = (oracle->instances + 63) / 64;
        oracle->ranges = zeroed(oracle->instances, sizeof *oracle->ranges);
        oracle->range_count = zeroed(oracle->instances, sizeof *oracle->range_count);
        sets = (uint64_t) PIPELINES * (queue_count(plan) + event_count(plan)) + oracle->turn_count;
        oracle->over = zeroed(sets * oracle->words, sizeof(uint64_t));
        oracle->submitted = zeroed(oracle->words, sizeof(uint64_t));
        oracle->meant_node =
                zeroed((uint64_t) oracle->turn_count * oracle->graph->node_count, sizeof(uint64_t));
        oracle->meant_tap =
                zeroed((uint64_t) oracle->turn_count * plan->tap_count, sizeof(uint64_t));
        oracle->meant_output = zeroed((uint64_t) oracle->turn_count * oracle->graph->output_count,
                                      sizeof(uint64_t));
        oracle->computed = zeroed(oracle->graph->node_count, sizeof(uint32_t));
        for (uint32_t t = 0; t < oracle->turn_count; ++t)
                find_ranges(oracle, t);
        find_conflicts(oracle);
        find_meaning(oracle);
        make_memory(oracle);
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
                reason = judge_order(oracle, order, count);
        return reason ? reason : judge_values(oracle, order, count);
}
