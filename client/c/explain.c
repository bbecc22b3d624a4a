/*
 * EXPLAIN of a graph that is listed: the columns of the daemon's answer, as far as they say what
 * runs where and what it takes, in rows.
 *
 * Nothing that the daemon says about lengths is believed: a column that is shorter than it should
 * be counts as zeros, a position outside of its list as no name.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/c/client_priv.h"
#include "proto/fields.h"
#include "proto/operate.h"

#define ARENA_BYTES_MAX (1U << 30)

/* The fields that are looked at: their places below. */
enum {
        RULES,
        ORIGIN,
        COPIES_REASON,
        LEAF_COUNT,
        NODE_COUNT,
        N_COPIES,
        FALLBACK_NODES,
        COPIED_BYTES,
        STAGING_BYTES,
        MEASURED_RUNS,
        MEASURED_RUN_NS,
        REASON_NAME,
        DEVICE_NAME,
        DEVICE_TYPE,
        DEVICE_SPLITS,
        DEVICE_NODES,
        DEVICE_WEIGHTS_BYTES,
        DEVICE_STATE_BYTES,
        DEVICE_COMPUTE_BYTES,
        DEVICE_SCRATCH_BYTES,
        SPLIT_DEVICE,
        SPLIT_START,
        SPLIT_END,
        SPLIT_REASON,
        SPLIT_INPUTS,
        COPY_BYTES,
        SPLIT_COMPUTE_NS,
        SPLIT_COPY_NS,
        SPLIT_WAIT_NS,
        FIELD_COUNT
};

#define NAMED(name, form) [name] = {HR_WIRE_EXPLAIN_##name, HR_WIRE_##form, NULL, 0}

static const struct hr_wire_field wanted[FIELD_COUNT] = {
        NAMED(RULES, TEXT), NAMED(ORIGIN, TEXT), NAMED(COPIES_REASON, TEXT),
        NAMED(LEAF_COUNT, NUMBER), NAMED(NODE_COUNT, NUMBER), NAMED(N_COPIES, NUMBER),
        NAMED(FALLBACK_NODES, NUMBER), NAMED(COPIED_BYTES, NUMBER), NAMED(STAGING_BYTES, NUMBER),
        NAMED(MEASURED_RUNS, NUMBER), NAMED(MEASURED_RUN_NS, NUMBER), NAMED(REASON_NAME, TEXTS),
        NAMED(DEVICE_NAME, TEXTS), NAMED(DEVICE_TYPE, TEXTS), NAMED(DEVICE_SPLITS, WORDS),
        NAMED(DEVICE_NODES, WORDS), NAMED(DEVICE_WEIGHTS_BYTES, LONGS),
        NAMED(DEVICE_STATE_BYTES, LONGS), NAMED(DEVICE_COMPUTE_BYTES, LONGS),
        NAMED(DEVICE_SCRATCH_BYTES, LONGS), NAMED(SPLIT_DEVICE, WORDS), NAMED(SPLIT_START, WORDS),
        NAMED(SPLIT_END, WORDS), NAMED(SPLIT_REASON, WORDS), NAMED(SPLIT_INPUTS, WORDS),
        NAMED(COPY_BYTES, LONGS), NAMED(SPLIT_COMPUTE_NS, LONGS), NAMED(SPLIT_COPY_NS, LONGS),
        NAMED(SPLIT_WAIT_NS, LONGS),
};

static uint32_t word_of(const struct hr_wire_field *field, uint64_t index) {
        return index < field->count ? ((const uint32_t *) field->data)[index] : 0;
}

static uint64_t long_of(const struct hr_wire_field *field, uint64_t index) {
        return index < field->count ? ((const uint64_t *) field->data)[index] : 0;
}

static const char *name_of(const struct hr_wire_field *field, uint64_t index) {
        return index < field->count ? ((const char *const *) field->data)[index] : "";
}

#define PUT_TEXT(to, from) (void) snprintf((to), sizeof(to), "%s", (from))

static void devices_take(const struct hr_wire_field *fields,
                         struct headrace_explanation *explanation) {
        for (size_t i = 0; i < explanation->device_count; i++) {
                struct headrace_explained_device *device = &explanation->devices[i];

                PUT_TEXT(device->name, name_of(&fields[DEVICE_NAME], i));
                PUT_TEXT(device->type, name_of(&fields[DEVICE_TYPE], i));
                device->splits = word_of(&fields[DEVICE_SPLITS], i);
                device->nodes = word_of(&fields[DEVICE_NODES], i);
                device->weights_bytes = long_of(&fields[DEVICE_WEIGHTS_BYTES], i);
                device->state_bytes = long_of(&fields[DEVICE_STATE_BYTES], i);
                device->compute_bytes = long_of(&fields[DEVICE_COMPUTE_BYTES], i);
                device->scratch_bytes = long_of(&fields[DEVICE_SCRATCH_BYTES], i);
        }
}

/* Copies stand in the order of the splits whose inputs they are. */
static void splits_take(const struct hr_wire_field *fields,
                        struct headrace_explanation *explanation) {
        uint64_t copy = 0;

        for (size_t i = 0; i < explanation->split_count; i++) {
                struct headrace_explained_split *split = &explanation->splits[i];
                uint32_t end = word_of(&fields[SPLIT_END], i);

                PUT_TEXT(split->device, name_of(&fields[DEVICE_NAME],
                                                word_of(&fields[SPLIT_DEVICE], i)));
                PUT_TEXT(split->reason, name_of(&fields[REASON_NAME],
                                                word_of(&fields[SPLIT_REASON], i)));
                split->first_node = word_of(&fields[SPLIT_START], i);
                split->nodes = end > split->first_node ? end - split->first_node : 0;
                split->inputs = word_of(&fields[SPLIT_INPUTS], i);
                for (uint32_t k = 0; k < split->inputs && copy < fields[COPY_BYTES].count; k++)
                        split->copied_bytes += long_of(&fields[COPY_BYTES], copy++);
                split->compute_ns = long_of(&fields[SPLIT_COMPUTE_NS], i);
                split->copy_ns = long_of(&fields[SPLIT_COPY_NS], i);
                split->wait_ns = long_of(&fields[SPLIT_WAIT_NS], i);
        }
}

static enum headrace_status explanation_take(struct hr_wire_span body, struct hr_arena *arena,
                                             struct headrace_error *error,
                                             struct headrace_explanation *ret_explanation) {
        struct hr_wire_field fields[FIELD_COUNT];
        struct headrace_explanation found = {0};
        struct hr_diag diag = {0};

        memcpy(fields, wanted, sizeof fields);
        if (hr_wire_fields_decode(body, arena, &diag, fields, FIELD_COUNT) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        PUT_TEXT(found.rules, (const char *) fields[RULES].data);
        PUT_TEXT(found.origin, (const char *) fields[ORIGIN].data);
        PUT_TEXT(found.copies_reason, (const char *) fields[COPIES_REASON].data);
        found.leaf_count = (uint32_t) fields[LEAF_COUNT].count;
        found.node_count = (uint32_t) fields[NODE_COUNT].count;
        found.n_copies = (uint32_t) fields[N_COPIES].count;
        found.fallback_nodes = (uint32_t) fields[FALLBACK_NODES].count;
        found.copied_bytes = fields[COPIED_BYTES].count;
        found.staging_bytes = fields[STAGING_BYTES].count;
        found.measured_runs = fields[MEASURED_RUNS].count;
        found.measured_run_ns = fields[MEASURED_RUN_NS].count;
        found.device_count = fields[DEVICE_NAME].count;
        found.split_count = fields[SPLIT_DEVICE].count;
        found.devices = calloc(found.device_count + 1, sizeof *found.devices);
        found.splits = calloc(found.split_count + 1, sizeof *found.splits);
        if (!found.devices || !found.splits) {
                headrace_explanation_free(&found);
                return hr_client_fail_memory(error);
        }
        devices_take(fields, &found);
        splits_take(fields, &found);
        *ret_explanation = found;
        return HEADRACE_OK;
}

enum headrace_status headrace_explain_listed(struct headrace_client *client, uint64_t session,
                                      uint32_t graph, int64_t timeout_ms,
                                      struct headrace_error *error,
                                      struct headrace_explanation *ret_explanation) {
        const struct hr_wire_explain explain = {.session = session, .graph = graph};
        uint8_t message[64];
        struct hr_request request = {.kind = HR_FRAME_EXPLAIN, .message = message};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_arena arena;
        struct hr_call *call;
        enum headrace_status status;

        if (session == 0)
                return hr_client_fail(error, HEADRACE_INVALID, "SESSION", "sessions count from 1");
        if (hr_wire_explain_encode(&explain, message, sizeof message, &diag,
                                   &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_client_call(client, &request,
                                 hr_client_deadline_of(client, timeout_ms), error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        hr_arena_init(&arena, ARENA_BYTES_MAX);
        status = explanation_take(answer.body, &arena, error, ret_explanation);
        hr_arena_deinit(&arena);
        hr_call_free(call);
        return status;
}

void headrace_explanation_free(struct headrace_explanation *explanation) {
        free(explanation->devices);
        free(explanation->splits);
        *explanation = (struct headrace_explanation){0};
}
