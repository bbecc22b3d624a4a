/*
 * Messages about weights and states. Their lists of rules go into the caller's arena; a path or a
 * name is only checked for being text here, what it may name is the store's matter.
 */
#include "proto/codec_priv.h"

#include "headrace.pb.h"

/* diag is not NULL. */
static hr_status digest_check(uint32_t bytes, struct hr_diag *diag) {
        if (bytes == 0 || bytes == HR_WIRE_DIGEST_BYTES)
                return HR_OK;
        diag->field = "digest";
        return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "a digest has %u bytes, not %u", bytes,
                              HR_WIRE_DIGEST_BYTES);
}

static hr_status share_check(headrace_v1_Share share, struct hr_diag *diag) {
        if (share <= _headrace_v1_Share_MAX)
                return HR_OK;
        return hr_fail_reason(diag, HR_E_INVALID, "DECODE", "no such share: %d", (int) share);
}

hr_status hr_wire_weights_put_decode(struct hr_wire_span message, struct hr_arena *arena,
                                     struct hr_diag *diag, struct hr_wire_weights_put *ret_put) {
        struct hr_codec_list rules = {.arena = arena};
        headrace_v1_WeightsPut wire = headrace_v1_WeightsPut_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.placement = hr_codec_list_rules(&rules);
        status = hr_codec_decode(message, headrace_v1_WeightsPut_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&rules, status, diag));
        HR_TRY(hr_codec_text_check(wire.name, sizeof wire.name, "name", diag));
        HR_TRY(digest_check(wire.digest.size, diag));
        HR_TRY(share_check(wire.share, diag));
        *ret_put = (struct hr_wire_weights_put){
                .total_bytes = wire.total_bytes,
                .manifest_bytes = wire.manifest_bytes,
                .resume = wire.resume,
                .is_own = wire.share == headrace_v1_Share_SHARE_PRINCIPAL,
                .digest_bytes = wire.digest.size,
                .rules = rules.items,
                .rule_count = rules.count,
        };
        memcpy(ret_put->name, wire.name, sizeof wire.name);
        memcpy(ret_put->digest, wire.digest.bytes, wire.digest.size);
        return HR_OK;
}

hr_status hr_wire_weights_query_decode(struct hr_wire_span message, struct hr_arena *arena,
                                       struct hr_diag *diag, const uint8_t **ret_digests,
                                       uint32_t *ret_count) {
        headrace_v1_WeightsQuery wire = headrace_v1_WeightsQuery_init_zero;
        uint8_t *digests;

        HR_TRY(hr_codec_decode(message, headrace_v1_WeightsQuery_fields, &wire, diag));
        if (wire.digests.size % HR_WIRE_DIGEST_BYTES != 0)
                return hr_fail_reason(diag, HR_E_INVALID, "DECODE",
                                      "%u bytes are no whole number of digests", wire.digests.size);
        digests = hr_arena_alloc(arena, wire.digests.size, 1);
        if (!digests)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a list of digests");
        memcpy(digests, wire.digests.bytes, wire.digests.size);
        *ret_digests = digests;
        *ret_count = wire.digests.size / HR_WIRE_DIGEST_BYTES;
        return HR_OK;
}

hr_status hr_wire_weights_load_decode(struct hr_wire_span message, struct hr_arena *arena,
                                      struct hr_diag *diag, struct hr_wire_weights_load *ret_load) {
        struct hr_codec_list rules = {.arena = arena};
        headrace_v1_WeightsLoad wire = headrace_v1_WeightsLoad_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.placement = hr_codec_list_rules(&rules);
        status = hr_codec_decode(message, headrace_v1_WeightsLoad_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&rules, status, diag));
        HR_TRY(hr_codec_text_check(wire.path, sizeof wire.path, "path", diag));
        HR_TRY(hr_codec_text_check(wire.name, sizeof wire.name, "name", diag));
        HR_TRY(share_check(wire.share, diag));
        *ret_load = (struct hr_wire_weights_load){
                .is_own = wire.share == headrace_v1_Share_SHARE_PRINCIPAL,
                .rules = rules.items,
                .rule_count = rules.count,
        };
        memcpy(ret_load->path, wire.path, sizeof wire.path);
        memcpy(ret_load->name, wire.name, sizeof wire.name);
        return HR_OK;
}

static void set_info_fill(const struct hr_wire_set_info *set, headrace_v1_SetInfo *ret_info) {
        HR_ASSERT(set->digest_bytes <= HR_WIRE_DIGEST_BYTES);
        *ret_info = (headrace_v1_SetInfo){
                .handle = set->handle,
                .tensors = set->tensors,
                .bytes = set->bytes,
                .digest.size = (pb_size_t) set->digest_bytes,
                .users = set->users,
        };
        memcpy(ret_info->digest.bytes, set->digest, set->digest_bytes);
        hr_codec_text_copy(ret_info->name, sizeof ret_info->name, set->name);
        hr_codec_text_copy(ret_info->source, sizeof ret_info->source, set->source);
}

static bool placed_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        const struct hr_wire_placed *placed = (const struct hr_wire_placed *) data + index;
        headrace_v1_PlacedBytes wire = {
                .planned_bytes = placed->planned_bytes,
                .requested_bytes = placed->requested_bytes,
                .held_bytes = placed->held_bytes,
        };

        hr_codec_text_copy(wire.device, sizeof wire.device, placed->device);
        return pb_encode_submessage(stream, headrace_v1_PlacedBytes_fields, &wire);
}

hr_status hr_wire_put_reply_encode(const struct hr_wire_put_reply *reply, uint8_t *buffer,
                                   size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items placed = {reply->placed, reply->placed_count, placed_put};
        headrace_v1_WeightsPutReply wire = {
                .has_set = true,
                .already = reply->already,
                .devices = hr_codec_put_items(&placed),
        };

        set_info_fill(&reply->set, &wire.set);
        return hr_codec_encode(headrace_v1_WeightsPutReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_load_reply_encode(const struct hr_wire_load_reply *reply, uint8_t *buffer,
                                    size_t capacity, struct hr_diag *diag, size_t *ret_bytes) {
        struct hr_codec_items placed = {reply->placed, reply->placed_count, placed_put};
        headrace_v1_WeightsLoadReply wire = {
                .has_set = true,
                .metadata_count = reply->metadata_count,
                .metadata_bytes = reply->metadata_bytes,
                .already = reply->already,
                .devices = hr_codec_put_items(&placed),
        };

        set_info_fill(&reply->set, &wire.set);
        return hr_codec_encode(headrace_v1_WeightsLoadReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

static bool set_put(pb_ostream_t *stream, const void *data, uint32_t index) {
        headrace_v1_SetInfo wire;

        set_info_fill((const struct hr_wire_set_info *) data + index, &wire);
        return pb_encode_submessage(stream, headrace_v1_SetInfo_fields, &wire);
}

hr_status hr_wire_sets_encode(const struct hr_wire_set_info *sets, uint32_t set_count,
                              uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                              size_t *ret_bytes) {
        struct hr_codec_items items = {.data = sets, .count = set_count, .encode = set_put};
        headrace_v1_WeightSets wire = {.sets = hr_codec_put_items(&items)};

        return hr_codec_encode(headrace_v1_WeightSets_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_state_alloc_decode(struct hr_wire_span message, struct hr_arena *arena,
                                     struct hr_diag *diag, struct hr_wire_state_alloc *ret_alloc) {
        struct hr_codec_list rules = {.arena = arena};
        headrace_v1_StateAlloc wire = headrace_v1_StateAlloc_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.placement = hr_codec_list_rules(&rules);
        status = hr_codec_decode(message, headrace_v1_StateAlloc_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&rules, status, diag));
        *ret_alloc = (struct hr_wire_state_alloc){
                .manifest_bytes = wire.manifest_bytes,
                .rules = rules.items,
                .rule_count = rules.count,
        };
        return HR_OK;
}

hr_status hr_wire_state_restore_decode(struct hr_wire_span message, struct hr_arena *arena,
                                       struct hr_diag *diag,
                                       struct hr_wire_state_restore *ret_restore) {
        struct hr_codec_list rules = {.arena = arena};
        headrace_v1_StateRestore wire = headrace_v1_StateRestore_init_zero;
        struct hr_diag local = {0};
        hr_status status;

        if (!diag)
                diag = &local;
        wire.placement = hr_codec_list_rules(&rules);
        status = hr_codec_decode(message, headrace_v1_StateRestore_fields, &wire, diag);
        HR_TRY(hr_codec_list_check(&rules, status, diag));
        *ret_restore = (struct hr_wire_state_restore){
                .manifest_bytes = wire.manifest_bytes,
                .body_bytes = wire.body_bytes,
                .rules = rules.items,
                .rule_count = rules.count,
        };
        return HR_OK;
}

hr_status hr_wire_state_alloc_reply_encode(const struct hr_wire_state_alloc_reply *reply,
                                           uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                           size_t *ret_bytes) {
        struct hr_codec_items placed = {reply->placed, reply->placed_count, placed_put};
        headrace_v1_StateAllocReply wire = {
                .handle = reply->handle,
                .bytes = reply->bytes,
                .devices = hr_codec_put_items(&placed),
        };

        return hr_codec_encode(headrace_v1_StateAllocReply_fields, &wire, buffer, capacity, diag,
                               ret_bytes);
}

hr_status hr_wire_state_range_decode(struct hr_wire_span message, struct hr_diag *diag,
                                     struct hr_wire_state_range *ret_range) {
        headrace_v1_StateRead wire = headrace_v1_StateRead_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_StateRead_fields, &wire, diag));
        *ret_range = (struct hr_wire_state_range){
                .handle = wire.handle,
                .offset = wire.offset,
                .bytes = wire.bytes,
                .tensor = wire.tensor,
                .region = wire.region,
                .region_offset = wire.region_offset,
        };
        return HR_OK;
}

hr_status hr_wire_region_add_decode(struct hr_wire_span message, struct hr_diag *diag,
                                    struct hr_wire_region_add *ret_add) {
        headrace_v1_RegionAdd wire = headrace_v1_RegionAdd_init_zero;

        HR_TRY(hr_codec_decode(message, headrace_v1_RegionAdd_fields, &wire, diag));
        *ret_add = (struct hr_wire_region_add){.bytes = wire.bytes, .writable = wire.writable};
        return HR_OK;
}
