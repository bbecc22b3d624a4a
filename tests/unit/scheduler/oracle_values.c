/* What memory holds, as symbols in the order of submission, against the meaning of the graph. */
#include "tests/unit/scheduler/oracle.h"

#include <stdio.h>
#include <string.h>

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

void oracle_find_meaning(struct oracle *oracle) {
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

        if (bytes == 0 || !oracle_locate(oracle, turn, place, &space, &address))
                return symbols_part(0, bytes, 0, bytes);
        return symbols_read(oracle->memory, space, address, bytes);
}

static void write_place(const struct oracle *oracle, const struct turn *turn, struct hr_place place,
                        uint64_t bytes, uint64_t value) {
        uint32_t space;
        uint64_t address;

        if (bytes && oracle_locate(oracle, turn, place, &space, &address))
                symbols_write(oracle->memory, space, address, bytes, value);
}

static bool compute_node(struct oracle *oracle, uint32_t turn, uint32_t node) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t id = oracle->graph->leaf_count + node;
        uint64_t value = name(NAME_NODE, id, 0), bytes;
        struct hr_place place;

        for (uint32_t i = 0; i < oracle->graph->tensors[id].source_count; ++i) {
                if (oracle_source_place(oracle, node, i, &place, &bytes))
                        value = symbol_mix(value,
                                           read_place(oracle, &oracle->turns[turn], place, bytes));
        }
        place = oracle_result_place(oracle, node);
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

const char *oracle_judge_values(struct oracle *oracle, const uint32_t *order, uint32_t count) {
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

static void announce(struct oracle *oracle, const struct turn *turn, struct hr_place place,
                     uint64_t bytes) {
        uint32_t space;
        uint64_t address;

        if (bytes && oracle_locate(oracle, turn, place, &space, &address))
                symbols_announce(oracle->memory, space, address, bytes);
}

void oracle_make_memory(struct oracle *oracle) {
        const struct hr_plan *plan = oracle->plan;

        oracle->memory = symbols_new((plan->kind_count + 1) * PIPELINES + plan->tensor_count);
        for (uint32_t t = 0; t <= oracle->turn_count; ++t) {
                struct turn first = {.pipeline = 1};
                const struct turn *turn = t < oracle->turn_count ? &oracle->turns[t] : &first;

                for (uint32_t i = 0; i < plan->tensor_count; ++i)
                        announce(oracle, turn, oracle_place(plan, i), plan->span[i]);
                for (uint32_t c = 0; c < plan->copy_count; ++c)
                        announce(oracle, turn, plan->copies[c].place, plan->copies[c].bytes);
                for (uint32_t c = 0; c < plan->tape.count; ++c) {
                        const struct hr_command *command = &plan->tape.commands[c];

                        if (!oracle_touches_memory(command))
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
