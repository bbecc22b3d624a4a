/* Which accesses touch the same bytes, one of them writing: found by comparing all pairs. */
#include "tests/unit/scheduler/oracle.h"

#include <stdlib.h>

#include "tests/harness.h"

struct hr_place oracle_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

bool oracle_locate(const struct oracle *oracle, const struct turn *turn, struct hr_place place,
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

bool oracle_source_place(const struct oracle *oracle, uint32_t node, uint32_t i,
                         struct hr_place *ret_place, uint64_t *ret_bytes) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t id = oracle->graph->leaf_count + node, copy;
        uint32_t source = hr_graph_source(oracle->graph, &oracle->graph->tensors[id], i);

        if (source == HR_TENSOR_NONE || source == id)
                return false;
        copy = plan->source_copy[plan->source_start[node] + i];
        *ret_place = copy == HR_NO_COPY ? oracle_place(plan, source) : plan->copies[copy].place;
        *ret_bytes = copy == HR_NO_COPY ? plan->span[source] : plan->copies[copy].bytes;
        return true;
}

struct hr_place oracle_result_place(const struct oracle *oracle, uint32_t node) {
        const struct hr_plan *plan = oracle->plan;
        uint32_t copy = plan->result_copy ? plan->result_copy[node] : HR_NO_COPY;

        return copy == HR_NO_COPY ? oracle_place(plan, oracle->graph->leaf_count + node)
                                  : plan->copies[copy].place;
}

struct range_list {
        struct range *items;
        uint32_t count, capacity;
};

static void add_range(struct oracle *oracle, struct range_list *list, const struct turn *turn,
                      struct hr_place place, uint64_t bytes, bool write) {
        struct range range = {.write = write};

        if (bytes == 0 || !oracle_locate(oracle, turn, place, &range.space, &range.start))
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
                        if (!oracle_source_place(oracle, node, i, &place, &bytes))
                                continue;
                        add_range(oracle, list, turn, place, bytes, false);
                        need_reach(oracle, command->device, place, bytes);
                }
                place = oracle_result_place(oracle, node);
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
                copied ? plan->copies[group->ids_copy].place : oracle_place(plan, group->ids);

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

void oracle_find_ranges(struct oracle *oracle, uint32_t turn_index) {
        const struct turn *turn = &oracle->turns[turn_index];
        const struct hr_tape *tape = &oracle->plan->tape;

        for (uint32_t c = 0; c < tape->count; ++c) {
                const struct hr_command *command = &tape->commands[c];
                struct range_list list = {0};
                uint32_t instance = turn_index * oracle->touching_count + oracle->touching[c];
                bool from_host = command->code == HR_COMMAND_INPUT;
                bool to_host =
                        command->code == HR_COMMAND_READ_BACK || command->code == HR_COMMAND_TAP;

                if (!oracle_touches_memory(command))
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

void oracle_find_conflicts(struct oracle *oracle) {
        oracle->conflicts =
                oracle_zeroed((uint64_t) oracle->instances * oracle->words, sizeof(uint64_t));
        for (uint32_t a = 0; a < oracle->instances; ++a) {
                for (uint32_t b = 0; b < a; ++b) {
                        if (!conflict(oracle, a, b))
                                continue;
                        hr_bit_set(oracle->conflicts + (size_t) a * oracle->words, b);
                        hr_bit_set(oracle->conflicts + (size_t) b * oracle->words, a);
                }
        }
}
