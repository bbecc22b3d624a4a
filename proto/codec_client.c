/*
 * What only clients do: requests about weights and states are written, replies with lists are read.
 * Texts of the daemon's go into the arena and are checked as everywhere.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

bool hr_codec_rule_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_rule *rule = (const struct hr_wire_rule *) data + index;
        headrace_v1_PlacementRule wire = headrace_v1_PlacementRule_init_zero;

        hr_codec_text_copy(wire.pattern, sizeof wire.pattern, rule->pattern);
        hr_codec_text_copy(wire.device, sizeof wire.device, rule->device);
        return pb_encode_submessage(stream, headrace_v1_PlacementRule_fields, &wire);
}

hr_status hr_wire_weights_put_encode(const struct hr_wire_weights_put *put, uint8_t *buffer,
                                     size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items rules = {put->rules, put->rule_count, hr_codec_rule_put};
        headrace_v1_WeightsPut wire = headrace_v1_WeightsPut_init_zero;

        HR_ASSERT(put->digest_bytes <= HR_WIRE_DIGEST_BYTES);
        hr_codec_text_copy(wire.name, sizeof wire.name, put->name);
        wire.total_bytes = put->total_bytes;
        wire.manifest_bytes = put->manifest_bytes;
        wire.resume = put->resume;
        wire.digest.size = (pb_size_t) put->digest_bytes;
        memcpy(wire.digest.bytes, put->digest, put->digest_bytes);
        wire.share = (headrace_v1_Share) put->is_own;
        wire.placement = hr_codec_put_items(&rules);
        return hr_codec_encode(headrace_v1_WeightsPut_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_weights_load_encode(const struct hr_wire_weights_load *load, uint8_t *buffer,
                                      size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items rules = {load->rules, load->rule_count, hr_codec_rule_put};
        headrace_v1_WeightsLoad wire = headrace_v1_WeightsLoad_init_zero;

        wire.share = (headrace_v1_Share) load->is_own;
        hr_codec_text_copy(wire.path, sizeof wire.path, load->path);
        hr_codec_text_copy(wire.name, sizeof wire.name, load->name);
        wire.placement = hr_codec_put_items(&rules);
        return hr_codec_encode(headrace_v1_WeightsLoad_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_state_alloc_encode(const struct hr_wire_state_alloc *alloc, uint8_t *buffer,
                                     size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items rules = {alloc->rules, alloc->rule_count, hr_codec_rule_put};
        headrace_v1_StateAlloc wire = {
                .placement = hr_codec_put_items(&rules),
                .manifest_bytes = alloc->manifest_bytes,
        };

        return hr_codec_encode(headrace_v1_StateAlloc_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_state_restore_encode(const struct hr_wire_state_restore *restore, uint8_t *buffer,
                                       size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items rules = {restore->rules, restore->rule_count, hr_codec_rule_put};
        headrace_v1_StateRestore wire = {
                .placement = hr_codec_put_items(&rules),
                .manifest_bytes = restore->manifest_bytes,
                .body_bytes = restore->body_bytes,
        };

        return hr_codec_encode(headrace_v1_StateRestore_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_state_range_encode(const struct hr_wire_state_range *range, uint8_t *buffer,
                                     size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        const headrace_v1_StateRead wire = {
                .handle = range->handle,
                .tensor = range->tensor,
                .offset = range->offset,
                .bytes = range->bytes,
                .region = range->region,
                .region_offset = range->region_offset,
        };

        return hr_codec_encode(headrace_v1_StateRead_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_region_add_encode(const struct hr_wire_region_add *add, uint8_t *buffer,
                                    size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        const headrace_v1_RegionAdd wire = {.bytes = add->bytes, .writable = add->writable};

        return hr_codec_encode(headrace_v1_RegionAdd_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_weights_query_encode(const uint8_t digest[HR_WIRE_DIGEST_BYTES], uint8_t *buffer,
                                       size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        headrace_v1_WeightsQuery wire = headrace_v1_WeightsQuery_init_zero;

        wire.digests.size = HR_WIRE_DIGEST_BYTES;
        memcpy(wire.digests.bytes, digest, HR_WIRE_DIGEST_BYTES);
        return hr_codec_encode(headrace_v1_WeightsQuery_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_weights_query_reply_decode(struct hr_wire_span message, struct hr_arena *arena,
                                             struct hr_diag *diag, uint32_t *ret_state) {
        struct hr_codec_list states = {.arena = arena};
        headrace_v1_WeightsQueryReply wire = headrace_v1_WeightsQueryReply_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.state = hr_codec_list_fixed32(&states);
        status = hr_codec_decode(message, headrace_v1_WeightsQueryReply_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&states, status, diag));
        *ret_state = states.count > 0 ? *(const uint32_t *) states.items : 0;
        return HR_OK;
}

static void set_info_take(const headrace_v1_SetInfo *wire, struct hr_wire_set_info *ret_set) {
        *ret_set = (struct hr_wire_set_info){
                .handle = wire->handle,
                .tensors = wire->tensors,
                .bytes = wire->bytes,
                .digest_bytes = wire->digest.size,
                .users = wire->users,
        };
        memcpy(ret_set->digest, wire->digest.bytes, wire->digest.size);
}

hr_status hr_wire_set_reply_decode(struct hr_wire_span message, bool load, struct hr_diag *diag,
                                   struct hr_wire_set_info *ret_set, bool *ret_already) {
        headrace_v1_WeightsPutReply put = headrace_v1_WeightsPutReply_init_zero;
        headrace_v1_WeightsLoadReply loaded = headrace_v1_WeightsLoadReply_init_zero;

        if (load)
                HR_TRY(hr_codec_decode(message, headrace_v1_WeightsLoadReply_fields, &loaded,
                                       diag));
        else
                HR_TRY(hr_codec_decode(message, headrace_v1_WeightsPutReply_fields, &put, diag));
        set_info_take(load ? &loaded.set : &put.set, ret_set);
        *ret_already = load ? loaded.already : put.already;
        return HR_OK;
}

hr_status hr_wire_state_alloc_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                           struct hr_wire_state_alloc_reply *ret_reply) {
        headrace_v1_StateAllocReply wire = headrace_v1_StateAllocReply_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_StateAllocReply_fields, &wire, diag));
        *ret_reply = (struct hr_wire_state_alloc_reply){
                .handle = wire.handle,
                .bytes = wire.bytes,
        };
        return HR_OK;
}

/* A copy in the list's arena, or NULL: no text, or no room. */
static const char *text_keep(struct hr_codec_list *list, const char *text, size_t capacity) {
        size_t bytes = strnlen(text, capacity);
        char *kept;

        if (!hr_codec_array_is_valid(text, capacity))
                return NULL;
        kept = hr_arena_alloc(list->arena, bytes + 1, 1);
        if (!kept) {
                list->exhausted = true;
                return NULL;
        }
        memcpy(kept, text, bytes);
        return kept;
}

static bool take_device(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        headrace_v1_DeviceInfo wire = headrace_v1_DeviceInfo_init_zero;
        struct hr_wire_device *device;

        (void) field;
        if (!pb_decode(stream, headrace_v1_DeviceInfo_fields, &wire))
                return false;
        device = hr_codec_list_extend(list, 1, sizeof *device);
        if (!device)
                return false;
        *device = (struct hr_wire_device){
                .name = text_keep(list, wire.name, sizeof wire.name),
                .description = text_keep(list, wire.description, sizeof wire.description),
                .type = text_keep(list, wire.type, sizeof wire.type),
                .memory_kind = text_keep(list, wire.memory_kind, sizeof wire.memory_kind),
                .memory_free = wire.memory_free,
                .memory_total = wire.memory_total,
                .memory_used = wire.memory_used,
                .threads = wire.threads,
        };
        if (!device->name || !device->description || !device->type || !device->memory_kind)
                return hr_codec_refuse(stream, "a text is no UTF-8");
        return true;
}

hr_status hr_wire_devices_reply_decode(struct hr_wire_span message, struct hr_arena *arena,
                                       struct hr_diag *diag,
                                       const struct hr_wire_device **ret_devices,
                                       uint32_t *ret_count) {
        struct hr_codec_list list = {.arena = arena};
        headrace_v1_DevicesReply wire = headrace_v1_DevicesReply_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.devices = (pb_callback_t){.funcs.decode = take_device, .arg = &list};
        status = hr_codec_decode(message, headrace_v1_DevicesReply_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&list, status, diag));
        *ret_devices = list.items;
        *ret_count = list.count;
        return HR_OK;
}

static bool take_stat(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        headrace_v1_Stat wire = headrace_v1_Stat_init_zero;
        struct hr_wire_stat *stat;

        (void) field;
        if (!pb_decode(stream, headrace_v1_Stat_fields, &wire))
                return false;
        stat = hr_codec_list_extend(list, 1, sizeof *stat);
        if (!stat)
                return false;
        *stat = (struct hr_wire_stat){
                .name = text_keep(list, wire.name, sizeof wire.name),
                .labels = text_keep(list, wire.labels, sizeof wire.labels),
                .value = wire.value,
        };
        if (!stat->name || !stat->labels)
                return hr_codec_refuse(stream, "a text is no UTF-8");
        return true;
}

hr_status hr_wire_stats_decode(struct hr_wire_span message, struct hr_arena *arena,
                               struct hr_diag *diag, const struct hr_wire_stat **ret_stats,
                               uint32_t *ret_count) {
        struct hr_codec_list list = {.arena = arena};
        headrace_v1_Stats wire = headrace_v1_Stats_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.stats = (pb_callback_t){.funcs.decode = take_stat, .arg = &list};
        status = hr_codec_decode(message, headrace_v1_Stats_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&list, status, diag));
        *ret_stats = list.items;
        *ret_count = list.count;
        return HR_OK;
}

hr_status hr_wire_reserve_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                       uint64_t *ret_handle) {
        headrace_v1_ReserveReply wire = headrace_v1_ReserveReply_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_ReserveReply_fields, &wire, diag));
        *ret_handle = wire.handle;
        return HR_OK;
}

static bool take_step_reply(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        struct hr_codec_list outputs = {.arena = list->arena};
        headrace_v1_StepReply wire = headrace_v1_StepReply_init_zero;
        struct hr_wire_step_reply *step;

        (void) field;
        wire.output_bytes = hr_codec_list_fixed64(&outputs);
        if (!pb_decode(stream, headrace_v1_StepReply_fields, &wire)) {
                list->exhausted |= outputs.exhausted;
                return false;
        }
        step = hr_codec_list_extend(list, 1, sizeof *step);
        if (!step)
                return hr_codec_refuse(stream, "too many steps");
        *step = (struct hr_wire_step_reply){
                .output_bytes = outputs.items,
                .output_count = outputs.count,
                .slot = wire.slot,
                .run_ns = wire.run_ns,
        };
        return true;
}

hr_status hr_wire_sequence_reply_decode(struct hr_wire_span message, struct hr_arena *arena,
                                        struct hr_diag *diag,
                                        struct hr_wire_sequence_reply *ret_reply) {
        struct hr_codec_list steps = {.arena = arena};
        headrace_v1_SequenceReply wire = headrace_v1_SequenceReply_init_zero;
        const char *traceparent = NULL;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.steps = (pb_callback_t){.funcs.decode = take_step_reply, .arg = &steps};
        status = hr_codec_decode(message, headrace_v1_SequenceReply_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&steps, status, diag));
        HR_TRY(hr_codec_text_check(wire.traceparent, sizeof wire.traceparent, "traceparent", diag));
        HR_TRY(hr_codec_text_keep(wire.traceparent, arena, diag, &traceparent));
        *ret_reply = (struct hr_wire_sequence_reply){
                .steps = steps.items,
                .step_count = steps.count,
                .queue_ns = wire.queue_ns,
                .traceparent = traceparent,
        };
        return HR_OK;
}

static bool take_set(pb_istream_t *stream, const pb_field_t *field, void **arg) {
        struct hr_codec_list *list = *arg;
        headrace_v1_SetInfo wire = headrace_v1_SetInfo_init_zero;
        struct hr_wire_set_info *set;

        (void) field;
        if (!pb_decode(stream, headrace_v1_SetInfo_fields, &wire))
                return false;
        set = hr_codec_list_extend(list, 1, sizeof *set);
        if (!set)
                return false;
        set_info_take(&wire, set);
        set->name = text_keep(list, wire.name, sizeof wire.name);
        set->source = text_keep(list, wire.source, sizeof wire.source);
        if (!set->name || !set->source)
                return hr_codec_refuse(stream, "a text is no UTF-8");
        return true;
}

hr_status hr_wire_sets_decode(struct hr_wire_span message, struct hr_arena *arena,
                              struct hr_diag *diag, const struct hr_wire_set_info **ret_sets,
                              uint32_t *ret_count) {
        struct hr_codec_list list = {.arena = arena};
        headrace_v1_WeightSets wire = headrace_v1_WeightSets_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.sets = (pb_callback_t){.funcs.decode = take_set, .arg = &list};
        status = hr_codec_decode(message, headrace_v1_WeightSets_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&list, status, diag));
        *ret_sets = list.items;
        *ret_count = list.count;
        return HR_OK;
}
