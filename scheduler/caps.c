/*
 * From a request to a planning input: kinds, buffers and answers of the devices as plain numbers.
 *
 * A device is asked whether it supports a tensor when a pass wants to know, and at most once.
 * Buffers are numbered by what a plan can depend on: all read-only buffers of one kind are one
 * entry, every writable buffer is its own, in order of first use. Two requests with the same
 * numbers get the same plan.
 */
#include "scheduler/exec.h"

#include <string.h>

/* What stands for the memory of retired devices: of a kind that nothing lies in. */
static const struct hr_buffer_kind retired_kind = {.name = "retired", .alignment = 64};

struct numbering {
        const struct hr_buffer_kind **kinds; /* distinct ones, devices' first */
        uint32_t kind_count;
        /* Open-addressed: writable buffer -> number + 1. */
        const struct hr_buffer **keys;
        uint32_t *numbers;
        uint32_t mask;
        uint32_t *weights_of_kind; /* number + 1 of the read-only buffers of a kind */
        struct hr_plan_buffer *buffers;
        uint32_t buffer_count;
};

static hr_status out_of_memory(struct hr_diag *diag) {
        return hr_fail(diag, HR_E_EXHAUSTED, "memory for the facts of a plan");
}

static void *take(struct hr_plan_facts *facts, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(&facts->arena, total, 16) : NULL;
}

static uint32_t kind_number(struct numbering *numbering, const struct hr_buffer_kind *kind) {
        for (uint32_t k = 0; k < numbering->kind_count; ++k) {
                if (numbering->kinds[k] == kind)
                        return k;
        }
        numbering->kinds[numbering->kind_count] = kind;
        return numbering->kind_count++;
}

static uint32_t buffer_number(struct numbering *numbering, const struct hr_buffer *buffer,
                              uint32_t kind) {
        uint32_t slot, number = numbering->buffer_count;

        if (buffer->usage == HR_USAGE_WEIGHTS) {
                if (numbering->weights_of_kind[kind])
                        return numbering->weights_of_kind[kind] - 1;
                numbering->weights_of_kind[kind] = number + 1;
        } else {
                slot = (uint32_t) (((uintptr_t) buffer >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 32);
                for (slot &= numbering->mask; numbering->keys[slot];
                     slot = (slot + 1) & numbering->mask) {
                        if (numbering->keys[slot] == buffer)
                                return numbering->numbers[slot];
                }
                numbering->keys[slot] = buffer;
                numbering->numbers[slot] = number;
        }
        numbering->buffers[number] = (struct hr_plan_buffer){.kind = kind, .usage = buffer->usage};
        ++numbering->buffer_count;
        return number;
}

static hr_status number_buffers(struct hr_plan_facts *facts, const struct hr_plan_request *request,
                                struct numbering *numbering, struct hr_diag *diag) {
        const struct hr_graph *graph = request->graph;
        uint32_t tensors = hr_graph_tensor_count(graph), room = 16;
        uint32_t *tensor_buffer = take(facts, tensors, sizeof *tensor_buffer);

        while (room < graph->leaf_count * 2 && room < UINT32_MAX / 2)
                room *= 2;
        numbering->mask = room - 1;
        numbering->keys = take(facts, room, sizeof *numbering->keys);
        numbering->numbers = take(facts, room, sizeof *numbering->numbers);
        numbering->weights_of_kind =
                take(facts, (uint64_t) request->fleet->device_count + graph->leaf_count + 1,
                     sizeof(uint32_t));
        numbering->buffers = take(facts, graph->leaf_count, sizeof *numbering->buffers);
        if (!tensor_buffer || !numbering->keys || !numbering->numbers ||
            !numbering->weights_of_kind || !numbering->buffers)
                return out_of_memory(diag);
        memset(tensor_buffer, 0xff, (size_t) tensors * sizeof *tensor_buffer);
        for (uint32_t i = 0; i < graph->leaf_count; ++i) {
                const struct hr_buffer *buffer = request->homes ? request->homes[i].buffer : NULL;
                uint32_t kind = graph->tensors[i].leaf_kind;

                if ((kind == HR_LEAF_WEIGHT || kind == HR_LEAF_STATE) && !buffer) {
                        hr_fail_reason(diag, HR_E_NOT_FOUND, "HOME", "leaf %u has no memory", i);
                        if (diag) {
                                diag->has_tensor = true;
                                diag->tensor = i;
                        }
                        return HR_E_NOT_FOUND;
                }
                if (buffer && hr_buffer_is_lost(buffer)) {
                        hr_fail_reason(diag, HR_E_DATA_LOSS, "DEVICE",
                                       "what leaf %u holds was lost with %s", i,
                                       buffer->device->props.name);
                        if (diag) {
                                diag->has_tensor = true;
                                diag->tensor = i;
                        }
                        return HR_E_DATA_LOSS;
                }
                if (buffer)
                        tensor_buffer[i] = buffer_number(numbering, buffer,
                                                         kind_number(numbering, buffer->kind));
        }
        facts->input.tensor_buffer = tensor_buffer;
        facts->input.buffers = numbering->buffers;
        facts->input.buffer_count = numbering->buffer_count;
        return HR_OK;
}

static hr_status describe_devices(struct hr_plan_facts *facts, const struct hr_fleet *fleet,
                                  struct numbering *numbering, struct hr_diag *diag) {
        uint32_t kinds = numbering->kind_count, words = hr_bit_words(kinds);
        struct hr_plan_device *devices = take(facts, fleet->device_count, sizeof *devices);
        struct hr_plan_kind *kind_facts = take(facts, kinds, sizeof *kind_facts);
        uint64_t *reads = take(facts, (uint64_t) fleet->device_count * words, sizeof *reads);
        uint64_t *copies = take(facts, (uint64_t) fleet->device_count * words, sizeof *copies);
        uint64_t *retired = take(facts, hr_bit_words(fleet->device_count), sizeof *retired);

        if (!devices || !kind_facts || !reads || !copies || !retired)
                return out_of_memory(diag);
        for (uint32_t k = 0; k < kinds; ++k)
                kind_facts[k] = (struct hr_plan_kind){.host = numbering->kinds[k]->host,
                                                      .alignment = numbering->kinds[k]->alignment};
        for (uint32_t d = 0; d < fleet->device_count; ++d) {
                const struct hr_device *device = fleet->devices[d];

                devices[d].type = device->props.type;
                devices[d].experts = device->props.experts;
                devices[d].expert_pad = device->props.expert_pad;
                devices[d].expert_bytes = device->expert_bytes;
                devices[d].uploads = device->props.uploads && device->props.events;
                if (fleet->retired[d]) {
                        hr_bit_set(retired, d);
                        devices[d].kind = kind_number(numbering, &retired_kind);
                        hr_bit_set(reads + (size_t) d * words, devices[d].kind);
                        continue;
                }
                for (uint32_t k = 0; k < kinds; ++k) {
                        if (numbering->kinds[k] == device->props.kind)
                                devices[d].kind = k;
                        if (hr_device_reads_kind(device, numbering->kinds[k]))
                                hr_bit_set(reads + (size_t) d * words, k);
                        if (hr_queue_can_copy(fleet->queues[d], numbering->kinds[k]))
                                hr_bit_set(copies + (size_t) d * words, k);
                }
        }
        facts->input.device_count = fleet->device_count;
        facts->input.kind_count = kinds;
        facts->input.devices = devices;
        facts->input.kinds = kind_facts;
        facts->input.reads = reads;
        facts->input.retired = retired;
        facts->input.copies = copies;
        return HR_OK;
}

bool planner_ask(const struct hr_planner *planner, uint32_t device, uint32_t tensor) {
        bool supports = hr_device_supports_op(planner->in->fleet->devices[device], planner->graph,
                                              tensor);
        size_t word = (size_t) tensor * planner->plan->words + device / 64;
        uint64_t bit = (uint64_t) 1 << (device % 64), kept = planner->supports[word] & ~bit;

        planner->asked[word] |= bit;
        planner->supports[word] = supports ? kept | bit : kept;
        return supports;
}

bool planner_wants_offload(const struct hr_planner *planner, uint32_t device, uint32_t tensor) {
        const struct hr_plan_input *in = planner->in;

        if (in->offload)
                return hr_bit_get(in->offload + (size_t) tensor * planner->plan->words, device);
        return in->options.op_offload && tensor >= planner->graph->leaf_count &&
               hr_device_wants_offload(in->fleet->devices[device], planner->graph, tensor);
}

static hr_status fill(struct hr_plan_facts *facts, const struct hr_plan_request *request,
                      struct hr_diag *diag) {
        const struct hr_fleet *fleet = request->fleet;
        struct numbering numbering = {0};

        if (fleet->retired[fleet->device_count - 1])
                return hr_fail(diag, HR_E_DEVICE_LOST,
                               "%s is lost, and without it there are no plans",
                               fleet->devices[fleet->device_count - 1]->props.name);
        facts->input.graph = request->graph;
        facts->input.pins = request->pins;
        facts->input.options = request->options;
        numbering.kinds =
                take(facts, (uint64_t) fleet->device_count + request->graph->leaf_count + 1,
                     sizeof *numbering.kinds);
        if (!numbering.kinds)
                return out_of_memory(diag);
        for (uint32_t d = 0; d < fleet->device_count; ++d)
                (void) kind_number(&numbering, fleet->retired[d] ? &retired_kind
                                                                 : fleet->devices[d]->props.kind);
        HR_TRY(number_buffers(facts, request, &numbering, diag));
        facts->kinds = numbering.kinds;
        HR_TRY(describe_devices(facts, fleet, &numbering, diag));
        facts->input.taps = request->taps;
        facts->input.tap_count = request->tap_count;
        facts->input.fleet = fleet;
        return HR_OK;
}

hr_status hr_plan_facts_init(struct hr_plan_facts *facts, const struct hr_plan_request *request,
                             struct hr_diag *diag) {
        hr_status status;

        memset(facts, 0, sizeof *facts);
        hr_arena_init(&facts->arena, 0);
        status = fill(facts, request, diag);
        if (status != HR_OK)
                hr_plan_facts_deinit(facts);
        return status;
}

void hr_plan_facts_deinit(struct hr_plan_facts *facts) {
        hr_arena_deinit(&facts->arena);
        memset(&facts->input, 0, sizeof facts->input);
}

/* What the devices' programs will take, so that a plan tells all memory before it is bound. */
static void predict_scratch(struct hr_plan *plan, const struct hr_plan_request *request) {
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];
                bool per_slot = plan->n_copies > 1 &&
                                hr_plan_split_is_per_slot(plan, request->graph, split);
                uint64_t slots = per_slot ? plan->n_copies : 1;

                plan->scratch_bytes[split->device] +=
                        slots * hr_device_program_bytes(
                                        request->fleet->devices[split->device], request->graph,
                                        plan->steps + split->step_first, split->step_count);
        }
}

hr_status hr_plan_new(const struct hr_plan_request *request, struct hr_diag *diag,
                      struct hr_plan **ret_plan) {
        struct hr_plan_facts facts;
        hr_status status;

        HR_TRY(hr_plan_facts_init(&facts, request, diag));
        status = hr_plan_make(&facts.input, diag, ret_plan);
        hr_plan_facts_deinit(&facts);
        if (status == HR_OK)
                predict_scratch(*ret_plan, request);
        return status;
}
