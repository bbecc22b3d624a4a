/*
 * Explanation and Trace: messages that are written from columns as they lie in memory, and read
 * into such. The caller gives each field with its number and form. Nothing here keeps state.
 * Thread: any.
 */
#pragma once

#include "proto/codec.h"

/* A field of Explanation or Trace, written from memory as it lies there. */
typedef enum hr_wire_form {
        HR_WIRE_NUMBER, /* `count` is the number; 0 is not written */
        HR_WIRE_TEXT,   /* data: a string */
        HR_WIRE_TEXTS,  /* data: `count` pointers to strings */
        HR_WIRE_BYTES,  /* data: `count` bytes */
        HR_WIRE_WORDS,  /* data: `count` uint32_t, packed as fixed32 */
        HR_WIRE_LONGS,  /* data: `count` uint64_t, packed as fixed64 */
} hr_wire_form;

struct hr_wire_field {
        uint32_t number;
        hr_wire_form form;
        const void *data;
        uint64_t count;
};

/* The fields in the order given. A buffer of NULL only measures. */
HR_NODISCARD hr_status hr_wire_fields_encode(const struct hr_wire_field *fields, uint32_t count,
                                             uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                             size_t *ret_bytes);

/* Takes fields of a message: for each one named in `fields` with number and form, what the message
 * holds of it. NUMBER: `count`; TEXT: `data` ("" without one); TEXTS: `data` and `count`; WORDS,
 * LONGS, BYTES: likewise, aligned, the last column where it comes twice. Memory is the arena's.
 * Fields that are not named are skipped. HR_E_INVALID (reason DECODE, UTF8), HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_wire_fields_decode(struct hr_wire_span message, struct hr_arena *arena,
                                             struct hr_diag *diag, struct hr_wire_field *fields,
                                             uint32_t count);

/* Their numbers in message Explanation... */
enum {
        HR_WIRE_EXPLAIN_RULES = 1, HR_WIRE_EXPLAIN_LEAF_COUNT = 2, HR_WIRE_EXPLAIN_NODE_COUNT = 3,
        HR_WIRE_EXPLAIN_N_COPIES = 4, HR_WIRE_EXPLAIN_PLANNED_COPIES = 5,
        HR_WIRE_EXPLAIN_COPIES_REASON = 6, HR_WIRE_EXPLAIN_ORIGIN = 7,
        HR_WIRE_EXPLAIN_FIRST_DIFFERENT = 8, HR_WIRE_EXPLAIN_COPIED_BYTES = 9,
        HR_WIRE_EXPLAIN_STAGING_BYTES = 10, HR_WIRE_EXPLAIN_FALLBACK_NODES = 11,
        HR_WIRE_EXPLAIN_CAUSE_NAME = 12, HR_WIRE_EXPLAIN_RULE_NAME = 13,
        HR_WIRE_EXPLAIN_REASON_NAME = 14, HR_WIRE_EXPLAIN_METHOD_NAME = 15,
        HR_WIRE_EXPLAIN_WHERE_NAME = 16, HR_WIRE_EXPLAIN_RULE_COUNT = 17,
        HR_WIRE_EXPLAIN_DEVICE_NAME = 18, HR_WIRE_EXPLAIN_DEVICE_TYPE = 19,
        HR_WIRE_EXPLAIN_DEVICE_MEMORY = 20, HR_WIRE_EXPLAIN_DEVICE_SPLITS = 21,
        HR_WIRE_EXPLAIN_DEVICE_NODES = 22, HR_WIRE_EXPLAIN_DEVICE_WEIGHTS_BYTES = 23,
        HR_WIRE_EXPLAIN_DEVICE_STATE_BYTES = 24, HR_WIRE_EXPLAIN_DEVICE_COMPUTE_BYTES = 25,
        HR_WIRE_EXPLAIN_DEVICE_SCRATCH_BYTES = 26, HR_WIRE_EXPLAIN_DEVICE_COPIES_BYTES = 27,
        HR_WIRE_EXPLAIN_DEVICE_STAGING_BYTES = 28, HR_WIRE_EXPLAIN_NAME_LENGTH = 29,
        HR_WIRE_EXPLAIN_NAMES = 30, HR_WIRE_EXPLAIN_OP = 31, HR_WIRE_EXPLAIN_TENSOR_DEVICE = 32,
        HR_WIRE_EXPLAIN_TENSOR_CAUSE = 33, HR_WIRE_EXPLAIN_TENSOR_NOTES = 34,
        HR_WIRE_EXPLAIN_TENSOR_ROOT = 35, HR_WIRE_EXPLAIN_TENSOR_BYTES = 36,
        HR_WIRE_EXPLAIN_TENSOR_WHERE = 37, HR_WIRE_EXPLAIN_TENSOR_OFFSET = 38,
        HR_WIRE_EXPLAIN_SPLIT_DEVICE = 39, HR_WIRE_EXPLAIN_SPLIT_START = 40,
        HR_WIRE_EXPLAIN_SPLIT_END = 41, HR_WIRE_EXPLAIN_SPLIT_REASON = 42,
        HR_WIRE_EXPLAIN_SPLIT_INPUTS = 43, HR_WIRE_EXPLAIN_COPY_TENSOR = 44,
        HR_WIRE_EXPLAIN_COPY_SOURCE = 45, HR_WIRE_EXPLAIN_COPY_METHOD = 46,
        HR_WIRE_EXPLAIN_COPY_BACK = 47, HR_WIRE_EXPLAIN_COPY_BYTES = 48,
        HR_WIRE_EXPLAIN_COPY_WHERE = 49, HR_WIRE_EXPLAIN_COPY_OFFSET = 50,
        HR_WIRE_EXPLAIN_GROUP_IDS = 51, HR_WIRE_EXPLAIN_GROUP_DEVICE = 52,
        HR_WIRE_EXPLAIN_GROUP_EXPERTS = 53, HR_WIRE_EXPLAIN_GROUP_PLACES = 54,
        HR_WIRE_EXPLAIN_GROUP_RESIDENT = 55, HR_WIRE_EXPLAIN_GROUP_WEIGHTS = 56,
        HR_WIRE_EXPLAIN_GROUP_USES = 57, HR_WIRE_EXPLAIN_MEASURED_RUNS = 58,
        HR_WIRE_EXPLAIN_MEASURED_RUN_NS = 59, HR_WIRE_EXPLAIN_SPLIT_COMPUTE_NS = 60,
        HR_WIRE_EXPLAIN_SPLIT_COPY_NS = 61, HR_WIRE_EXPLAIN_SPLIT_WAIT_NS = 62,
        HR_WIRE_EXPLAIN_SPLIT_MOVED_BYTES = 63, HR_WIRE_EXPLAIN_SPLIT_STEPS = 64,
        HR_WIRE_EXPLAIN_STEP_NODE = 65, HR_WIRE_EXPLAIN_STEP_JOINED = 66,
        HR_WIRE_EXPLAIN_UPLOADS = 67, HR_WIRE_EXPLAIN_COPY_EARLY = 68,
};

/* ... and in message Trace. */
enum {
        HR_WIRE_TRACE_SEQUENCE = 1, HR_WIRE_TRACE_SLOT = 2, HR_WIRE_TRACE_N_COPIES = 3,
        HR_WIRE_TRACE_ARRIVED_NS = 4, HR_WIRE_TRACE_STARTED_NS = 5, HR_WIRE_TRACE_ENDED_NS = 6,
        HR_WIRE_TRACE_SPLIT_COUNT = 7, HR_WIRE_TRACE_SLOT_EVENT_COUNT = 8,
        HR_WIRE_TRACE_KIND_NAME = 9, HR_WIRE_TRACE_DEVICE_NAME = 10, HR_WIRE_TRACE_KIND = 11,
        HR_WIRE_TRACE_DEVICE = 12, HR_WIRE_TRACE_SPLIT = 13, HR_WIRE_TRACE_SUBJECT = 14,
        HR_WIRE_TRACE_BYTES = 15, HR_WIRE_TRACE_BEGIN_NS = 16, HR_WIRE_TRACE_END_NS = 17,
};
