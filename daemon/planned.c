/*
 * The leaves of a kind become a manifest, the manifest is placed, and each leaf gets the buffer of
 * its device. Offsets are those that lay_out_copies() of a set and lay_out() of a state would give,
 * though nobody looks at them.
 */
#include "daemon/planned.h"

#include <stdlib.h>

static bool leaf_is_planned(const struct hr_graph *graph, const struct hr_leaf_home *homes,
                            uint32_t leaf, uint32_t kind) {
        return graph->tensors[leaf].leaf_kind == kind && !homes[leaf].buffer;
}

static hr_status leaves_list(const struct hr_graph *graph, const struct hr_leaf_home *homes,
                             uint32_t kind, struct hr_diag *diag,
                             struct hr_manifest **ret_manifest) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *manifest = NULL;
        uint64_t name_bytes = 0;
        uint32_t count = 0;
        size_t bytes = 0;

        for (uint32_t i = 0; i < graph->leaf_count; i++) {
                if (!leaf_is_planned(graph, homes, i, kind))
                        continue;
                (void) hr_graph_name(graph, i, &bytes);
                name_bytes += bytes;
                count++;
        }
        if (count == 0)
                return HR_OK;
        HR_TRY(hr_manifest_reserve(count, name_bytes, diag, &manifest));
        for (uint32_t i = 0; i < graph->leaf_count; i++) {
                const char *name = hr_graph_name(graph, i, &bytes);

                if (leaf_is_planned(graph, homes, i, kind))
                        HR_TRY(hr_manifest_add(manifest, name, bytes, graph->tensors[i].type,
                                               graph->tensors[i].ne, 0, diag));
        }
        HR_TRY(hr_manifest_seal(manifest, diag));
        *ret_manifest = HR_STEAL(manifest);
        return HR_OK;
}

static hr_status leaves_place(const struct hr_graph *graph, const struct hr_fleet *fleet,
                              const struct hr_placement_rule *rules, uint32_t rule_count,
                              uint32_t kind, struct hr_buffer *buffers, struct hr_diag *diag,
                              struct hr_leaf_home *homes) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *manifest = NULL;
        struct hr_placement placement = {0};
        uint32_t tensor = 0;

        HR_TRY(leaves_list(graph, homes, kind, diag, &manifest));
        if (!manifest)
                return HR_OK;
        HR_TRY(hr_placement_init(&placement, manifest, fleet, rules, rule_count, diag));
        for (uint32_t i = 0; i < graph->leaf_count; i++)
                if (leaf_is_planned(graph, homes, i, kind))
                        homes[i] = (struct hr_leaf_home){
                                .buffer = &buffers[placement.devices[tensor++]]};
        hr_placement_deinit(&placement);
        return HR_OK;
}

hr_status hr_planned_homes(struct hr_planned *planned, const struct hr_graph *graph,
                           const struct hr_fleet *fleet, const struct hr_placement_rule *rules,
                           uint32_t rule_count, struct hr_diag *diag, struct hr_leaf_home *homes) {
        const uint32_t device_count = hr_fleet_device_count(fleet);

        planned->buffers = calloc((size_t) device_count * 2, sizeof *planned->buffers);
        if (!planned->buffers)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the homes of %u leaves",
                               graph->leaf_count);
        for (uint32_t i = 0; i < device_count * 2; i++) {
                struct hr_device *device = hr_fleet_device(fleet, i % device_count);

                planned->buffers[i].device = device;
                planned->buffers[i].kind = device->props.kind;
                planned->buffers[i].usage = i < device_count ? HR_USAGE_WEIGHTS : HR_USAGE_ANY;
        }
        HR_TRY(leaves_place(graph, fleet, rules, rule_count, HR_LEAF_WEIGHT, planned->buffers, diag,
                            homes));
        return leaves_place(graph, fleet, rules, rule_count, HR_LEAF_STATE,
                            planned->buffers + device_count, diag, homes);
}

void hr_planned_deinit(struct hr_planned *planned) {
        free(planned->buffers);
        *planned = (struct hr_planned){0};
}

void hr_leaf_bytes_add(const struct hr_graph *graph, const struct hr_fleet *fleet,
                       const struct hr_leaf_home *homes, struct hr_leaf_bytes *bytes) {
        const uint32_t device_count = hr_fleet_device_count(fleet);

        for (uint32_t i = 0; i < graph->leaf_count; i++) {
                const struct hr_buffer *buffer = homes[i].buffer;
                uint32_t device = 0;
                uint64_t padded = 0;

                if (!buffer)
                        continue;
                while (device < device_count && hr_fleet_device(fleet, device) != buffer->device)
                        device++;
                if (device == device_count ||
                    !hr_align_up_u64(
                            hr_tensor_bytes(&graph->tensors[i]),
                            HR_MAX(buffer->kind->alignment, (uint32_t) HR_MANIFEST_PADDING),
                            &padded))
                        continue;
                if (graph->tensors[i].leaf_kind == HR_LEAF_WEIGHT)
                        bytes[device].weights += padded;
                else
                        bytes[device].states += padded;
        }
}
