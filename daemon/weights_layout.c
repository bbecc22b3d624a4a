/*
 * Sets before they are ready: their tables, their placement, their memory.
 *
 * A device's buffer is either a window on the contents (tensors keep the manifest's offsets) or
 * memory of the device's own, laid out anew, to which the tensors are copied later.
 *
 * Memory of an upload is a memfd (image.h). Where all tensors live in host memory they stay in it,
 * and all host devices have windows on it. Otherwise it is staging memory, every device gets a
 * buffer of its own, and the memfd goes when all has been copied. A file is its own
 * staging memory, and all host devices have windows on it, unless its tensors lie at odd places
 * that kernels cannot take: then they are copied for host devices as well.
 */
#include "daemon/weights_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

HR_DEFINE_CLEANUP(struct hr_weights *, set_freep, hr_weights_set_free)

void hr_weights_work_free(struct hr_weights_work *work) {
        if (!work)
                return;
        HR_ASSERT(atomic_load(&work->in_flight) == 0 && hr_reader_is_over(&work->reading));
        if (work->fd >= 0)
                (void) close(work->fd);
        free(work->ranges);
        if (work->upload)
                hr_upload_abandon(work->upload);
        (void) hr_upload_unref(work->upload);
        (void) hr_image_unref(work->image);
        free(work->in_place);
        free(work);
}

struct hr_weights *hr_weights_set_free(struct hr_weights *set) {
        if (!set)
                return NULL;
        hr_list_remove(&set->link);
        for (uint32_t i = 0; set->buffers && i < set->placement.device_count; i++)
                hr_buffer_unref(set->buffers[i]);
        hr_weights_work_free(set->work);
        hr_placement_deinit(&set->placement);
        hr_manifest_free(set->manifest);
        (void) hr_image_unref(set->image);
        free(set->buffers);
        free(set->homes);
        free(set->metadata);
        free(set->path);
        free(set->name);
        free(set);
        return NULL;
}

bool hr_weights_uses_host_memory(const struct hr_fleet *fleet, uint32_t index) {
        return hr_fleet_device(fleet, index)->props.kind == &hr_host_kind;
}

hr_status hr_weights_check_room(struct hr_weights_store *store, uint64_t bytes,
                                struct hr_diag *diag) {
        do {
                uint64_t sum = store->stats.bytes + store->stats.working_bytes;

                if (hr_add_u64(sum, bytes, &sum) && sum <= store->config.bytes_max)
                        return HR_OK;
        } while (hr_weights_make_way(store));
        if (diag && diag->status == HR_OK) {
                diag->limit = store->config.bytes_max;
                diag->actual = bytes;
        }
        return hr_fail_reason(diag, HR_E_EXHAUSTED, "WEIGHTS_BYTES",
                              "a set of %" PRIu64 " bytes beside those there are exceeds %" PRIu64,
                              bytes, store->config.bytes_max);
}

static hr_status set_allocate_tables(struct hr_weights *set, const struct set_plan *plan,
                                     struct hr_diag *diag) {
        const uint32_t device_count = hr_fleet_device_count(plan->store->config.fleet);
        struct hr_weights_work *work = calloc(1, sizeof *work);

        if (work)
                work->fd = -1;
        set->work = work;
        set->name = strdup(plan->name);
        set->homes = calloc((size_t) set->manifest->tensor_count + 1, sizeof *set->homes);
        set->buffers = calloc(device_count, sizeof(struct hr_buffer *));
        if (work)
                work->in_place = calloc(device_count, sizeof *work->in_place);
        if (!work || !set->name || !set->homes || !set->buffers || !work->in_place)
                return hr_fail(diag, HR_E_EXHAUSTED, "weight set of %u tensors",
                               set->manifest->tensor_count);
        work->store = plan->store;
        hr_list_init(&work->jobs);
        work->is_upload = plan->is_upload;
        return HR_OK;
}

hr_status hr_weights_set_begin(const struct set_plan *plan, struct hr_diag *diag,
                               struct hr_weights **ret_set) {
        HR_CLEANUP(set_freep) struct hr_weights *set = calloc(1, sizeof *set);

        if (!set) {
                hr_manifest_free(plan->manifest);
                return hr_fail(diag, HR_E_EXHAUSTED, "weight set");
        }
        set->store = plan->store;
        set->number = ++plan->store->numbers;
        set->manifest = plan->manifest;
        set->from_file = !plan->is_upload;
        set->owner = plan->owner;
        HR_TRY(hr_weights_check_room(plan->store, plan->contents_bytes, diag));
        HR_TRY(set_allocate_tables(set, plan, diag));
        HR_TRY(hr_placement_init(&set->placement, set->manifest, plan->store->config.fleet,
                                 plan->rules, plan->rule_count, diag));
        for (uint32_t i = 0; i < set->manifest->tensor_count; i++)
                set->bytes += set->manifest->tensors[i].bytes;
        *ret_set = HR_STEAL(set);
        return HR_OK;
}

static void release_image(void *arg) {
        (void) hr_image_unref(arg);
}

/* Whether to try again: the device had no memory, but a set has made way. */
static bool may_try_again(const struct hr_weights *set, hr_status status, struct hr_diag *diag) {
        if (status != HR_E_EXHAUSTED || !hr_weights_make_way(set->store))
                return false;
        hr_diag_clear(diag);
        return true;
}

/* Gives device `index` a window on the mapped contents. */
static hr_status open_window(struct hr_weights *set, uint32_t index, struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;
        struct hr_image *image = hr_image_ref(work->image);
        const hr_status status = hr_buffer_wrap(hr_fleet_device(set->store->config.fleet, index),
                                                image->base, image->bytes, HR_USAGE_WEIGHTS,
                                                release_image, image, diag, &set->buffers[index]);

        if (status != HR_OK)
                hr_image_unref(image);
        work->in_place[index] = status == HR_OK;
        return status;
}

/* Offsets inside the buffers of the devices that are copied to; bytes per device. */
static hr_status lay_out_copies(struct hr_weights *set, uint64_t *device_bytes,
                                struct hr_diag *diag) {
        for (uint32_t i = 0; i < set->manifest->tensor_count; i++) {
                const uint32_t index = set->placement.devices[i];
                const struct hr_device *device = hr_fleet_device(set->store->config.fleet, index);
                const uint32_t align =
                        HR_MAX(device->props.kind->alignment, (uint32_t) HR_MANIFEST_PADDING);

                set->homes[i].device = index;
                if (set->work->in_place[index]) {
                        set->homes[i].offset = set->manifest->tensors[i].offset;
                        continue;
                }
                set->homes[i].offset = device_bytes[index];
                if (!hr_add_u64(device_bytes[index], set->manifest->tensors[i].bytes,
                                &device_bytes[index]) ||
                    !hr_align_up_u64(device_bytes[index], align, &device_bytes[index]))
                        return hr_fail_reason(diag, HR_E_INVALID, "SIZE", "sizes do not add up");
                device_bytes[index] = HR_MAX(device_bytes[index], align);
        }
        return HR_OK;
}

hr_status hr_weights_set_place(struct hr_weights *set, struct hr_diag *diag) {
        const uint32_t device_count = set->placement.device_count;
        uint64_t *device_bytes = calloc(device_count, sizeof *device_bytes);
        hr_status status;

        if (!device_bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "layout of a weight set");
        status = lay_out_copies(set, device_bytes, diag);
        for (uint32_t i = 0; status == HR_OK && i < device_count; i++) {
                if (device_bytes[i] == 0)
                        continue;
                do
                        status = hr_buffer_new(hr_fleet_device(set->store->config.fleet, i),
                                               device_bytes[i], HR_USAGE_WEIGHTS, diag,
                                               &set->buffers[i]);
                while (may_try_again(set, status, diag));
                set->placement.shares[i].held_bytes = device_bytes[i];
        }
        free(device_bytes);
        HR_TRY(status);
        for (uint32_t i = 0; i < set->manifest->tensor_count; i++)
                set->homes[i].buffer = set->buffers[set->homes[i].device];
        return HR_OK;
}

static void mark_devices_used(const struct hr_weights *set, bool *used) {
        for (uint32_t i = 0; i < set->manifest->tensor_count; i++)
                used[set->placement.devices[i]] = true;
}

/* Memory of an upload that stays where it is: the last of the devices is charged for it, the others
 * have windows. An image that is there already has been charged for. */
static hr_status place_in_place(struct hr_weights *set, const bool *used, bool is_charged,
                                struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;

        for (uint32_t i = set->placement.device_count; i-- > 0;) {
                struct hr_image *image;
                hr_status status;

                if (!used[i])
                        continue;
                if (is_charged) {
                        HR_TRY(open_window(set, i, diag));
                        continue;
                }
                image = hr_image_ref(work->image);
                do
                        status = hr_buffer_adopt(hr_fleet_device(set->store->config.fleet, i),
                                                 image->base, image->bytes, HR_USAGE_WEIGHTS,
                                                 release_image, image, diag, &set->buffers[i]);
                while (may_try_again(set, status, diag));
                if (status != HR_OK) {
                        (void) hr_image_unref(image);
                        return status;
                }
                set->placement.shares[i].held_bytes = image->bytes;
                work->in_place[i] = is_charged = true;
        }
        return HR_OK;
}

hr_status hr_weights_set_allocate(struct hr_weights *set, uint64_t bytes, struct hr_image *filled,
                                  bool is_charged, struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;
        bool *used = calloc(set->placement.device_count, sizeof *used);
        bool all_host = true;
        hr_status status = HR_OK;

        if (!used)
                return hr_fail(diag, HR_E_EXHAUSTED, "layout of a weight set");
        mark_devices_used(set, used);
        for (uint32_t i = 0; i < set->placement.device_count; i++)
                all_host &= !used[i] || hr_weights_uses_host_memory(set->store->config.fleet, i);
        if (filled)
                work->image = hr_image_ref(filled);
        else
                status = hr_image_new_memory(HR_MAX(bytes, (uint64_t) HR_MANIFEST_PADDING), diag,
                                             &work->image);
        if (status == HR_OK && all_host)
                status = place_in_place(set, used, !is_charged, diag);
        if (status == HR_OK)
                work->contents = work->image->base;
        free(used);
        return status;
}

hr_status hr_weights_set_map(struct hr_weights *set, const struct hr_weights_file *file,
                             struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;

        work->image = hr_image_ref(file->image);
        work->contents = file->image->base;
        for (uint32_t i = 0; file->is_aligned && i < set->manifest->tensor_count; i++) {
                const uint32_t index = set->placement.devices[i];

                if (!set->buffers[index] &&
                    hr_weights_uses_host_memory(set->store->config.fleet, index))
                        HR_TRY(open_window(set, index, diag));
                if (!set->image && set->buffers[index])
                        set->image = hr_image_ref(file->image);
        }
        return HR_OK;
}
