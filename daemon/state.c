/*
 * States: one buffer per device, tensors behind each other in it.
 *
 * Offsets are laid out per device at multiples of the memory's alignment (at least the manifest's
 * padding). Tensors without elements get the offset where they would lie and, on a device where
 * nothing has elements, a buffer of the smallest size, so that every home has a buffer.
 */
#include "daemon/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/transfer.h"

uint64_t hr_state_bytes(const struct hr_manifest *manifest) {
        return manifest->total_bytes;
}

/* Offsets of all tensors, and the bytes of each device's buffer. */
static hr_status lay_out(struct hr_state *state, uint64_t *device_bytes, struct hr_diag *diag) {
        for (uint32_t i = 0; i < state->manifest->tensor_count; i++) {
                const uint32_t index = state->placement.devices[i];
                const struct hr_device *device = hr_fleet_device(state->fleet, index);
                const uint32_t align =
                        HR_MAX(device->props.kind->alignment, (uint32_t) HR_MANIFEST_PADDING);

                state->homes[i].device = index;
                state->homes[i].offset = device_bytes[index];
                if (!hr_add_u64(device_bytes[index], state->manifest->tensors[i].bytes,
                                &device_bytes[index]) ||
                    !hr_align_up_u64(device_bytes[index], align, &device_bytes[index]))
                        return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "sizes do not add up");
                device_bytes[index] = HR_MAX(device_bytes[index], align);
        }
        return HR_OK;
}

static hr_status allocate(struct hr_state *state, uint64_t *device_bytes, struct hr_diag *diag) {
        HR_TRY(lay_out(state, device_bytes, diag));
        for (uint32_t i = 0; i < state->placement.device_count; i++) {
                if (device_bytes[i] == 0)
                        continue;
                HR_TRY(hr_buffer_new(hr_fleet_device(state->fleet, i), device_bytes[i],
                                     HR_USAGE_ANY, diag, &state->buffers[i]));
                state->bytes += device_bytes[i];
                state->placement.shares[i].held_bytes = device_bytes[i];
        }
        for (uint32_t i = 0; i < state->manifest->tensor_count; i++)
                state->homes[i].buffer = state->buffers[state->homes[i].device];
        return HR_OK;
}

/* like: where the tensors go, instead of rules; NULL = by the rules. */
static hr_status build(struct hr_state *state, const struct hr_placement_rule *rules,
                       uint32_t rule_count, const struct hr_placement *like,
                       struct hr_diag *diag) {
        const uint32_t device_count = hr_fleet_device_count(state->fleet);
        uint64_t *device_bytes = calloc(device_count, sizeof *device_bytes);
        hr_status status = HR_OK;

        state->homes = calloc((size_t) state->manifest->tensor_count + 1, sizeof *state->homes);
        state->buffers = calloc(device_count, sizeof(struct hr_buffer *));
        if (!device_bytes || !state->homes || !state->buffers)
                status = hr_fail(diag, HR_E_EXHAUSTED, "state of %u tensors",
                                 state->manifest->tensor_count);
        if (status == HR_OK)
                status = hr_placement_init(&state->placement, state->manifest, state->fleet, rules,
                                           rule_count, diag);
        if (status == HR_OK && like) {
                memcpy(state->placement.devices, like->devices,
                       state->manifest->tensor_count * sizeof *like->devices);
                memcpy(state->placement.shares, like->shares,
                       like->device_count * sizeof *like->shares);
        }
        if (status == HR_OK)
                status = allocate(state, device_bytes, diag);
        free(device_bytes);
        return status;
}

hr_status hr_state_new(struct hr_fleet *fleet, struct hr_manifest *manifest,
                       const struct hr_placement_rule *rules, uint32_t rule_count,
                       struct hr_diag *diag, struct hr_state **ret_state) {
        HR_CLEANUP(hr_state_unrefp) struct hr_state *state = calloc(1, sizeof *state);

        if (!state) {
                hr_manifest_free(manifest);
                return hr_fail(diag, HR_E_EXHAUSTED, "state");
        }
        state->refs = 1;
        state->fleet = fleet;
        state->manifest = manifest;
        HR_TRY(build(state, rules, rule_count, NULL, diag));
        *ret_state = HR_STEAL(state);
        return HR_OK;
}

static hr_status manifest_copy(const struct hr_manifest *from, struct hr_diag *diag,
                               struct hr_manifest **ret_copy) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *copy = NULL;

        HR_TRY(hr_manifest_reserve(from->tensor_count, from->name_bytes, diag, &copy));
        for (uint32_t i = 0; i < from->tensor_count; i++) {
                const struct hr_manifest_tensor *tensor = &from->tensors[i];

                HR_TRY(hr_manifest_add(copy, tensor->name, tensor->name_bytes, tensor->type,
                                       tensor->ne, tensor->offset, diag));
        }
        HR_TRY(hr_manifest_seal(copy, diag));
        copy->total_bytes = from->total_bytes;
        *ret_copy = HR_STEAL(copy);
        return HR_OK;
}

hr_status hr_state_new_like(const struct hr_state *like, struct hr_diag *diag,
                            struct hr_state **ret_state) {
        HR_CLEANUP(hr_state_unrefp) struct hr_state *state = calloc(1, sizeof *state);

        if (!state)
                return hr_fail(diag, HR_E_EXHAUSTED, "state");
        state->refs = 1;
        state->fleet = like->fleet;
        HR_TRY(manifest_copy(like->manifest, diag, &state->manifest));
        HR_TRY(build(state, NULL, 0, &like->placement, diag));
        *ret_state = HR_STEAL(state);
        return HR_OK;
}

struct hr_state *hr_state_ref(struct hr_state *state) {
        HR_ASSERT(state->refs > 0);
        state->refs++;
        return state;
}

struct hr_state *hr_state_unref(struct hr_state *state) {
        if (!state)
                return NULL;
        HR_ASSERT(state->refs > 0);
        if (--state->refs > 0)
                return NULL;
        HR_ASSERT(state->transfers == 0);
        for (uint32_t i = 0; state->buffers && i < hr_fleet_device_count(state->fleet); i++)
                hr_buffer_unref(state->buffers[i]);
        free(state->buffers);
        free(state->homes);
        hr_placement_deinit(&state->placement);
        hr_manifest_free(state->manifest);
        free(state);
        return NULL;
}

hr_status hr_state_bind(const struct hr_state *state, const struct hr_graph *graph, uint32_t leaf,
                        struct hr_diag *diag, struct hr_leaf_home *ret_home) {
        size_t name_bytes;
        const char *name = hr_graph_name(graph, leaf, &name_bytes);
        const int64_t tensor = hr_manifest_find(state->manifest, name, name_bytes);

        if (tensor < 0)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "LEAF", "no state holds '%.*s'",
                                      (int) HR_MIN(name_bytes, 80U), name);
        HR_TRY(hr_manifest_check_leaf(state->manifest, (uint32_t) tensor, graph, leaf, diag));
        ret_home->buffer = state->homes[tensor].buffer;
        ret_home->offset = state->homes[tensor].offset;
        return HR_OK;
}

static hr_status fail_range(struct hr_diag *diag, const char *reason, const char *what,
                            uint64_t actual, uint64_t limit) {
        if (diag && diag->status == HR_OK) {
                diag->actual = actual;
                diag->limit = limit;
        }
        return hr_fail_reason(diag, HR_E_RANGE, reason, "%s %" PRIu64 ", at most %" PRIu64, what,
                              actual, limit);
}

hr_status hr_state_check_range(const struct hr_state *state, uint32_t tensor, uint64_t offset,
                               uint64_t bytes, struct hr_diag *diag) {
        uint64_t size;

        if (tensor >= state->manifest->tensor_count)
                return fail_range(diag, "TENSOR", "tensor", tensor,
                                  state->manifest->tensor_count - 1);
        size = state->manifest->tensors[tensor].bytes;
        if (offset > size)
                return fail_range(diag, "OFFSET", "offset", offset, size);
        if (bytes > size - offset)
                return fail_range(diag, "SIZE", "bytes from the offset on", bytes, size - offset);
        return HR_OK;
}

static void transfer_ended(void *arg) {
        struct hr_state_transfer *transfer = arg;

        transfer->done(transfer, transfer->arg);
}

static hr_status prepare(struct hr_state_transfer *transfer, struct hr_diag *diag,
                         struct hr_queue **ret_queue, uint8_t **ret_address) {
        const struct hr_state *state = transfer->state;
        const struct hr_state_home *home;

        HR_TRY(hr_state_check_range(state, transfer->tensor, transfer->offset, transfer->bytes,
                                    diag));
        home = &state->homes[transfer->tensor];
        if (hr_buffer_is_lost(home->buffer))
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "DEVICE", "tensor %u was lost with %s",
                                      transfer->tensor, home->buffer->device->props.name);
        transfer->outcome = (struct hr_outcome){0};
        *ret_queue = hr_fleet_queue(state->fleet, home->device);
        *ret_address = (uint8_t *) home->buffer->base + home->offset + transfer->offset;
        return HR_OK;
}

hr_status hr_state_read(struct hr_state_transfer *transfer, struct hr_diag *diag) {
        struct hr_queue *queue = NULL;
        uint8_t *address = NULL;

        HR_TRY(prepare(transfer, diag, &queue, &address));
        return hr_transfer_read(queue, address, transfer->host, transfer->bytes, &transfer->outcome,
                                transfer_ended, transfer, diag);
}

hr_status hr_state_write(struct hr_state_transfer *transfer, struct hr_diag *diag) {
        struct hr_queue *queue = NULL;
        uint8_t *address = NULL;

        HR_TRY(prepare(transfer, diag, &queue, &address));
        return hr_transfer_write(queue, address, transfer->host, transfer->bytes,
                                 &transfer->outcome, transfer_ended, transfer, diag);
}

hr_status hr_state_copy(struct hr_state_transfer *transfer, struct hr_diag *diag) {
        const struct hr_state_home *to = &transfer->into->homes[transfer->tensor];
        struct hr_queue *queue = NULL;
        uint8_t *address = NULL;

        HR_TRY(prepare(transfer, diag, &queue, &address));
        return hr_transfer_copy(queue, address,
                                (uint8_t *) to->buffer->base + to->offset + transfer->offset,
                                to->buffer->kind, transfer->bytes, &transfer->outcome,
                                transfer_ended, transfer, diag);
}
