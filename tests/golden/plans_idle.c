/* See plans_idle.h. The plan with the device is rewritten in place as if the device did not count,
 * then all arrays of the two plans are compared as memory. */
#include "tests/golden/plans_idle.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/op.h"

/* ---- The problem with one more device -------------------------------------------------------- */

struct wider {
        struct hr_plan_input in;
        struct hr_plan_device *devices;
        uint64_t *reads, *supports, *offload;
        int32_t *pins;
        uint32_t idle; /* its number */
};

/* Each tensor's set of devices, with a gap where the idle one is. */
static uint64_t *sets_widen(const struct plan_problem *problem, const uint64_t *sets,
                            uint32_t idle) {
        uint32_t tensors = hr_graph_tensor_count(problem->graph);
        uint32_t from = hr_bit_words(idle + 1), to = hr_bit_words(idle + 2);
        uint64_t *wide = plan_need(calloc((size_t) tensors * to + 1, sizeof *wide));

        for (uint32_t t = 0; t < tensors; ++t)
                for (uint32_t d = 0; d <= idle; ++d)
                        if (hr_bit_get(sets + (size_t) t * from, d))
                                hr_bit_set(wide + (size_t) t * to, d < idle ? d : d + 1);
        return wide;
}

static void wider_init(struct wider *wider, const struct plan_problem *problem) {
        const struct hr_plan_input *in = &problem->in;
        uint32_t count = in->device_count, tensors = hr_graph_tensor_count(problem->graph);
        uint32_t words = hr_bit_words(count + 1), kind_words = hr_bit_words(in->kind_count);

        *wider = (struct wider){.in = *in, .idle = count - 1};
        wider->devices = plan_need(calloc(count + 1, sizeof *wider->devices));
        memcpy(wider->devices, in->devices, (count - 1) * sizeof *wider->devices);
        wider->devices[count - 1] = wider->devices[count] = in->devices[count - 1];
        wider->devices[count - 1].type = HR_DEVICE_ACCEL;
        wider->reads = plan_need(calloc((size_t) (count + 1) * kind_words, sizeof *wider->reads));
        memcpy(wider->reads, in->reads, (size_t) count * kind_words * sizeof *wider->reads);
        memcpy(wider->reads + (size_t) count * kind_words,
               in->reads + (size_t) (count - 1) * kind_words, kind_words * sizeof *wider->reads);
        wider->supports = sets_widen(problem, in->supports, wider->idle);
        wider->offload = sets_widen(problem, in->offload, wider->idle);
        for (uint32_t t = 0; t < tensors; ++t)
                if (t < problem->graph->leaf_count ||
                    hr_op_is_view(problem->graph->tensors[t].op))
                        hr_bit_set(wider->supports + (size_t) t * words, wider->idle);
        wider->pins = plan_need(calloc(tensors + 1, sizeof *wider->pins));
        for (uint32_t t = 0; in->pins && t < tensors; ++t)
                wider->pins[t] = in->pins[t] + (in->pins[t] == (int32_t) wider->idle);
        wider->in.device_count = count + 1;
        wider->in.devices = wider->devices;
        wider->in.reads = wider->reads;
        wider->in.supports = wider->supports;
        wider->in.offload = wider->offload;
        wider->in.pins = in->pins ? wider->pins : NULL;
}

static void wider_clear(struct wider *wider) {
        free(wider->devices);
        free(wider->reads);
        free(wider->supports);
        free(wider->offload);
        free(wider->pins);
}

/* ---- The plan as if it were not there -------------------------------------------------------- */

/* The idle device itself becomes a number that no plan has. */
static void renumber(uint32_t *device, uint32_t idle) {
        if (*device == HR_NO_INDEX || *device < idle)
                return;
        *device = *device == idle ? HR_NO_INDEX - 1 : *device - 1;
}

static void plan_narrow(struct hr_plan *plan, uint32_t idle) {
        for (uint32_t i = 0; i < plan->tensor_count; ++i)
                if (plan->device[i] >= 0)
                        renumber((uint32_t *) &plan->device[i], idle);
        for (uint32_t i = 0; i < plan->split_count; ++i)
                renumber(&plan->splits[i].device, idle);
        for (uint32_t i = 0; i < plan->copy_count; ++i) {
                renumber(&plan->copies[i].device, idle);
                renumber(&plan->copies[i].source_device, idle);
                renumber(&plan->copies[i].home_device, idle);
        }
        for (uint32_t i = 0; i < plan->group_count; ++i)
                renumber(&plan->groups[i].device, idle);
        for (uint32_t i = 0; i < plan->kind_count; ++i)
                renumber(&plan->pools[i].owner, idle);
        for (uint32_t i = 0; i < plan->tape.count; ++i)
                renumber(&plan->tape.commands[i].device, idle);
        for (uint32_t i = 0; i < plan->lane_count; ++i) {
                renumber(&plan->tape.lane_first[i], idle);
                renumber(&plan->tape.lane_last[i], idle);
        }
}

/* ---- What no field has ----------------------------------------------------------------------- */

struct gap {
        size_t from, to;
};

#define GAP(type, before, after)                                                                   \
        { offsetof(struct type, before) + sizeof((struct type *) NULL)->before,                    \
          offsetof(struct type, after) }
#define TAIL(type, last)                                                                           \
        { offsetof(struct type, last) + sizeof((struct type *) NULL)->last, sizeof(struct type) }

static void gaps_clear(void *array, uint64_t count, size_t bytes, const struct gap *gaps,
                       size_t gap_count) {
        for (uint64_t i = 0; i < count; ++i)
                for (size_t g = 0; g < gap_count; ++g)
                        memset((uint8_t *) array + i * bytes + gaps[g].from, 0,
                               gaps[g].to - gaps[g].from);
}

/* Compilers copy gaps between fields or leave them: to compare memory, they have to be equal. */
static void plan_clear_gaps(struct hr_plan *plan) {
        const struct gap copy[] = {GAP(hr_plan_copy, is_upload, placed_at),
                                   GAP(hr_plan_copy, home_device, bytes)};
        const struct gap group[] = {GAP(hr_expert_group, resident, translated),
                                    GAP(hr_expert_group, is_upload, ids_split),
                                    TAIL(hr_expert_group, ids_split)};
        const struct gap pool[] = {GAP(hr_plan_pool, owner, kept_bytes)};
        const struct gap command[] = {GAP(hr_command, upload, device),
                                      GAP(hr_command, kind, bytes)};

        gaps_clear(plan->copies, plan->copy_count, sizeof *plan->copies, copy,
                   HR_ARRAY_LENGTH(copy));
        gaps_clear(plan->groups, plan->group_count, sizeof *plan->groups, group,
                   HR_ARRAY_LENGTH(group));
        gaps_clear(plan->pools, plan->kind_count, sizeof *plan->pools, pool, HR_ARRAY_LENGTH(pool));
        gaps_clear(plan->tape.commands, plan->tape.count, sizeof *plan->tape.commands, command,
                   HR_ARRAY_LENGTH(command));
}

/* ---- Comparing ------------------------------------------------------------------------------- */

static bool same(const void *a, const void *b, uint64_t count, size_t bytes) {
        return count == 0 || (!a && !b) || (a && b && memcmp(a, b, (size_t) count * bytes) == 0);
}

/* Arrays by device: without the idle one's element, which is to be `idle_has`. */
static bool same_by_device(const void *a, const void *b, uint32_t idle, size_t bytes,
                           const void *idle_has) {
        const uint8_t *with = a, *without = b;

        if (!with || !without)
                return with == without;
        return memcmp(with + idle * bytes, idle_has, bytes) == 0 &&
               same(with, without, idle, bytes) &&
               same(with + (idle + 1) * bytes, without + idle * bytes, 1, bytes);
}

#define ARRAY(name, count)                                                                         \
        { #name, a->name, b->name, a->count, b->count, sizeof *a->name }

static const char *arrays_difference(const struct hr_plan *a, const struct hr_plan *b) {
        const struct {
                const char *name;
                const void *a, *b;
                uint32_t a_count, b_count;
                size_t bytes;
        } arrays[] = {
                ARRAY(device, tensor_count),
                ARRAY(cause, tensor_count),
                ARRAY(root, tensor_count),
                ARRAY(root_offset, tensor_count),
                ARRAY(span, tensor_count),
                ARRAY(place, tensor_count),
                ARRAY(splits, split_count),
                ARRAY(copies, copy_count),
                ARRAY(groups, group_count),
                ARRAY(inputs, input_count),
                ARRAY(source_start, node_count),
                ARRAY(result_copy, node_count),
                ARRAY(graph_inputs, graph_input_count),
                ARRAY(steps, step_count),
                ARRAY(joined, step_count),
                ARRAY(taps, tap_count),
                ARRAY(pool_lane, kind_count),
                ARRAY(pools, kind_count),
                ARRAY(state_lane, lane_count),
                ARRAY(tape.commands, tape.count),
                ARRAY(tape.lane_first, lane_count),
                ARRAY(tape.lane_last, lane_count),
                ARRAY(kind_of_leaf, leaf_count),
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(arrays); ++i)
                if (arrays[i].a_count != arrays[i].b_count ||
                    !same(arrays[i].a, arrays[i].b, arrays[i].a_count, arrays[i].bytes))
                        return arrays[i].name;
        return same(a->source_copy, b->source_copy, a->source_start[a->node_count],
                    sizeof *a->source_copy)
                       ? NULL
                       : "source_copy";
}

static const char *plans_difference(const struct hr_plan *a, const struct hr_plan *b,
                                    uint32_t idle) {
        const uint32_t none = HR_NO_INDEX;
        const uint64_t nothing = 0;
        const char *name = arrays_difference(a, b);

        if (name)
                return name;
        if (!same_by_device(a->lane, b->lane, idle, sizeof *a->lane, &none))
                return "lane";
        if (!same_by_device(a->compute_bytes, b->compute_bytes, idle, sizeof nothing, &nothing))
                return "compute_bytes";
        if (!same_by_device(a->copies_bytes, b->copies_bytes, idle, sizeof nothing, &nothing))
                return "copies_bytes";
        if (!same_by_device(a->device_splits, b->device_splits, idle, sizeof *a->device_splits,
                            &nothing))
                return "device_splits";
        if (a->n_copies != b->n_copies || a->staging_bytes != b->staging_bytes ||
            a->copied_bytes != b->copied_bytes || a->expert_bytes != b->expert_bytes ||
            a->tape.slot_event_count != b->tape.slot_event_count ||
            a->fallback_nodes != b->fallback_nodes)
                return "a number";
        return NULL;
}

const char *plan_idle_difference(const struct plan_problem *problem, struct hr_plan *without) {
        const char *difference = "it cannot be planned";
        struct hr_plan *with = NULL;
        struct wider wider;

        wider_init(&wider, problem);
        if (hr_plan_make(&wider.in, NULL, &with) == HR_OK) {
                plan_narrow(with, wider.idle);
                plan_clear_gaps(with);
                plan_clear_gaps(without);
                difference = plans_difference(with, without, wider.idle);
        }
        hr_plan_unref(with);
        wider_clear(&wider);
        return difference;
}
