/*
 * Messages <-> plain structs. The only header through which anybody sees the protobuf contract
 * (proto/headrace.proto); nanopb stays behind it.
 *
 * Decoding. Each hr_wire_x_decode() reads one message from memory into *ret_x, which is written in
 * full on success only. Strings are NUL-terminated, hold no NUL and are valid UTF-8; lists and byte
 * strings of variable length lie in the caller's arena. Failures: HR_E_INVALID with reason DECODE
 * (not such a message, a cap of headrace.options exceeded, trailing bytes), UTF8, or HR_E_EXHAUSTED
 * when the arena is full. Unknown fields are skipped; of duplicate scalars the last wins.
 *
 * Encoding. Each hr_wire_x_encode() writes into the caller's buffer and returns the bytes used;
 * HR_E_EXHAUSTED (reason MESSAGE) when it does not fit.
 *
 * Nothing here does I/O or keeps state. Thread: any. The structs with names ending in _handle,
 * _count or _bytes serve all messages of that shape; numbers of fields are equal in them.
 */
#pragma once

#include "core/arena.h"
#include "core/graph.h"

#define HR_WIRE_PROTOCOL 1U
#define HR_WIRE_MESSAGE_BYTES_MAX 65536U
#define HR_WIRE_FEATURES_MAX 32U
#define HR_WIRE_FEATURE_BYTES 48U
#define HR_WIRE_NAME_BYTES 64U /* of devices, clients, sessions; with the NUL */
#define HR_WIRE_SET_NAME_BYTES 256U
#define HR_WIRE_PATTERN_BYTES 256U
#define HR_WIRE_PATH_BYTES 1024U
#define HR_WIRE_DIGEST_BYTES 32U
#define HR_WIRE_BOOT_ID_BYTES 16U
#define HR_WIRE_TOKEN_BYTES_MAX 32U

/* Bytes in the wire's memory or in an arena. */
struct hr_wire_span {
        const uint8_t *data;
        size_t size;
};

/* ---- session --------------------------------------------------------------------------------- */

struct hr_wire_hello {
        uint32_t protocol_min, protocol_max;
        uint32_t feature_count;
        char features[HR_WIRE_FEATURES_MAX][HR_WIRE_FEATURE_BYTES];
        char client_name[HR_WIRE_NAME_BYTES];
        char session_name[HR_WIRE_NAME_BYTES];
        uint32_t credentials_bytes, resume_token_bytes;
        uint8_t credentials[256];
        uint8_t resume_token[HR_WIRE_TOKEN_BYTES_MAX];
};
HR_NODISCARD hr_status hr_wire_hello_decode(struct hr_wire_span message, struct hr_diag *diag,
                                            struct hr_wire_hello *ret_hello);
HR_NODISCARD hr_status hr_wire_hello_encode(const struct hr_wire_hello *hello, uint8_t *buffer,
                                            size_t capacity, struct hr_diag *diag,
                                            size_t *ret_bytes);

struct hr_wire_device {
        const char *name, *description, *type, *memory_kind; /* cut to the wire's caps */
        uint64_t memory_free, memory_total, memory_used;
        uint32_t threads;
};

struct hr_wire_limits {
        uint64_t message_bytes_max, body_bytes_max, graph_nodes_max, graph_bytes_max,
                tensor_bytes_max, session_graphs_max, session_runs_max, session_state_bytes_max,
                upload_bytes_max, output_queue_bytes_max, run_bytes_max, copies_max;
        uint64_t session_states_max, session_weights_max, session_uploads_max,
                session_buffer_bytes_max, session_device_bytes_max, connection_requests_max,
                principal_sessions_max, principal_connections_max, principal_weights_max,
                principal_states_max, principal_graphs_max, principal_reservations_max,
                principal_runs_max, principal_uploads_max, principal_state_bytes_max,
                principal_buffer_bytes_max, principal_weight_bytes_max,
                principal_device_bytes_max, principal_output_bytes_max, session_grace_ms,
                principal_upload_bytes_max, principal_descriptors_max;
        uint64_t session_regions_max, principal_regions_max, taps_max, pins_max, weights_bytes_max,
                weights_tensors_max, metadata_bytes_max, manifest_bytes_max, placement_rules_max,
                state_tensors_max, principal_misses_max, principal_cancels_max,
                session_plan_bytes_max, principal_plan_bytes_max;
};

struct hr_wire_hello_reply {
        uint32_t protocol;
        uint32_t feature_count;
        char features[HR_WIRE_FEATURES_MAX][HR_WIRE_FEATURE_BYTES];
        char daemon_version[32];
        uint8_t boot_id[HR_WIRE_BOOT_ID_BYTES];
        uint32_t session_token_bytes;
        uint8_t session_token[HR_WIRE_TOKEN_BYTES_MAX];
        uint64_t epoch;
        struct hr_wire_limits limits;
        const struct hr_wire_device *devices; /* not decoded: NULL then */
        uint32_t device_count;                /* decoded: how many there were */
};
HR_NODISCARD hr_status hr_wire_hello_reply_encode(const struct hr_wire_hello_reply *reply,
                                                  uint8_t *buffer, size_t capacity,
                                                  struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_hello_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                                  struct hr_wire_hello_reply *ret_reply);
HR_NODISCARD hr_status hr_wire_devices_reply_encode(uint64_t epoch,
                                                    const struct hr_wire_device *devices,
                                                    uint32_t device_count, uint8_t *buffer,
                                                    size_t capacity, struct hr_diag *diag,
                                                    size_t *ret_bytes);

#define HR_WIRE_ERROR_WRITTEN_MAX 256U
struct hr_wire_error {
        uint32_t code;
        char reason[48];
        char words[257];
        bool has_node, has_tensor, has_step;
        uint32_t node, tensor, step;
        char field[64];
        uint64_t limit, actual;
        uint32_t retry_after_ms;
        uint32_t digest_bytes;
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        char traceparent[56];
        uint32_t written_count, written_left_out; /* in the array; named, but not there */
        uint32_t written[HR_WIRE_ERROR_WRITTEN_MAX];
};
/* What an error says beside its diag; zeroed: nothing. */
struct hr_wire_error_more {
        const uint8_t *digest;    /* HR_WIRE_DIGEST_BYTES, of a graph; NULL = none */
        const uint32_t *written;  /* of a run that failed or was stopped: ids of leaves. As many are
                                   * named as fit */
        uint32_t written_count;
        const char *traceparent;  /* NULL = none */
};
/* From a diag: gRPC's code, reason, words, place; more may be NULL. Never fails for a buffer of
 * HR_WIRE_ERROR_BYTES_MAX. */
#define HR_WIRE_ERROR_BYTES_MAX 576U
HR_NODISCARD hr_status hr_wire_error_encode(const struct hr_diag *failure,
                                            const struct hr_wire_error_more *more, uint8_t *buffer,
                                            size_t capacity, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_error_decode(struct hr_wire_span message, struct hr_diag *diag,
                                            struct hr_wire_error *ret_error);

/* GoAway. */
HR_NODISCARD hr_status hr_wire_go_away_encode(const char *reason, uint32_t retry_after_ms,
                                              uint8_t *buffer, size_t capacity,
                                              struct hr_diag *diag, size_t *ret_bytes);

/* Progress. */
struct hr_wire_progress {
        uint64_t done_bytes, total_bytes;
        const char *phase; /* not decoded */
};
#define HR_WIRE_PROGRESS_BYTES_MAX 40U
HR_NODISCARD hr_status hr_wire_progress_encode(const struct hr_wire_progress *progress,
                                               uint8_t *buffer, size_t capacity,
                                               struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_progress_decode(struct hr_wire_span message, struct hr_diag *diag,
                                               struct hr_wire_progress *ret_progress);

/* Messages without fields: Devices, Ops, WeightsList, Sync, StatsRequest. */
HR_NODISCARD hr_status hr_wire_empty_decode(struct hr_wire_span message, struct hr_diag *diag);

/* Messages whose field 1 is a fixed64: Ping and PingReply (cookie), Cancel (request id), and those
 * with a handle: WeightsDrop, WeightsTensors, StateFree, Explain, Release. */
HR_NODISCARD hr_status hr_wire_fixed64_decode(struct hr_wire_span message, struct hr_diag *diag,
                                              uint64_t *ret_value);
HR_NODISCARD hr_status hr_wire_fixed64_encode(uint64_t value, uint8_t *buffer, size_t capacity,
                                              struct hr_diag *diag, size_t *ret_bytes);

/* Messages whose field 1 is a uint64 or bool: CancelReply, Credit, Data, StateReadReply,
 * ExplainReply, StatsReply, WeightsTensorsReply. A value of 0 is an empty message. */
HR_NODISCARD hr_status hr_wire_varint_decode(struct hr_wire_span message, struct hr_diag *diag,
                                             uint64_t *ret_value);
HR_NODISCARD hr_status hr_wire_varint_encode(uint64_t value, uint8_t *buffer, size_t capacity,
                                             struct hr_diag *diag, size_t *ret_bytes);

HR_NODISCARD hr_status hr_wire_ops_reply_encode(uint32_t device_count, uint32_t node_count,
                                                uint8_t *buffer, size_t capacity,
                                                struct hr_diag *diag, size_t *ret_bytes);

/* Credit. offset: 0 but for uploads. */
HR_NODISCARD hr_status hr_wire_credit_encode(uint64_t credit_bytes, uint64_t offset,
                                             uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                             size_t *ret_bytes);

HR_NODISCARD hr_status hr_wire_credit_decode(struct hr_wire_span message, struct hr_diag *diag,
                                             uint64_t *ret_bytes, uint64_t *ret_offset);

/* ---- weights and state ----------------------------------------------------------------------- */

/* A glob over tensor names and the device for what it matches: PlacementRule and Pin. */
struct hr_wire_rule {
        const char *pattern;
        const char *device;
};

struct hr_wire_set_info {
        uint64_t handle;
        const char *name; /* cut to the wire's cap */
        uint64_t tensors, bytes;
        uint32_t digest_bytes;
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        const char *source;
        uint32_t users;
};

/* PlacedBytes. */
struct hr_wire_placed {
        const char *device; /* cut to the wire's cap */
        uint64_t planned_bytes, requested_bytes, held_bytes;
};

struct hr_wire_weights_put {
        char name[HR_WIRE_SET_NAME_BYTES];
        uint64_t total_bytes, manifest_bytes;
        uint32_t digest_bytes; /* 0 or HR_WIRE_DIGEST_BYTES */
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        const struct hr_wire_rule *rules;
        uint32_t rule_count;
        bool resume;
        bool is_own; /* share = principal */
};
HR_NODISCARD hr_status hr_wire_weights_put_decode(struct hr_wire_span message,
                                                  struct hr_arena *arena, struct hr_diag *diag,
                                                  struct hr_wire_weights_put *ret_put);
/* WeightsQuery: digests one after the other, in the arena. HR_E_INVALID (reason DECODE) when they
 * are no whole number of digests. */
HR_NODISCARD hr_status hr_wire_weights_query_decode(struct hr_wire_span message,
                                                    struct hr_arena *arena, struct hr_diag *diag,
                                                    const uint8_t **ret_digests,
                                                    uint32_t *ret_count);
/* Of one digest. */
HR_NODISCARD hr_status hr_wire_weights_query_encode(const uint8_t digest[HR_WIRE_DIGEST_BYTES],
                                                    uint8_t *buffer, size_t capacity,
                                                    struct hr_diag *diag, size_t *ret_bytes);
/* WeightsQueryReply: the first of its states. */
#define HR_WIRE_CONTENTS_WHOLE 2U /* no set of them needs any transfer */
HR_NODISCARD hr_status hr_wire_weights_query_reply_decode(struct hr_wire_span message,
                                                          struct hr_arena *arena,
                                                          struct hr_diag *diag,
                                                          uint32_t *ret_state);
/* WeightsPutReply. */
struct hr_wire_put_reply {
        struct hr_wire_set_info set;
        const struct hr_wire_placed *placed;
        uint32_t placed_count;
        bool already;
};
HR_NODISCARD hr_status hr_wire_put_reply_encode(const struct hr_wire_put_reply *reply,
                                                uint8_t *buffer, size_t capacity,
                                                struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_weights_load {
        char path[HR_WIRE_PATH_BYTES];
        char name[HR_WIRE_SET_NAME_BYTES];
        const struct hr_wire_rule *rules;
        uint32_t rule_count;
        bool is_own; /* share = principal */
};
HR_NODISCARD hr_status hr_wire_weights_load_decode(struct hr_wire_span message,
                                                   struct hr_arena *arena, struct hr_diag *diag,
                                                   struct hr_wire_weights_load *ret_load);
/* WeightsLoadReply. */
struct hr_wire_load_reply {
        struct hr_wire_set_info set;
        uint64_t metadata_count, metadata_bytes;
        bool already;
        const struct hr_wire_placed *placed;
        uint32_t placed_count;
};
HR_NODISCARD hr_status hr_wire_load_reply_encode(const struct hr_wire_load_reply *reply,
                                                 uint8_t *buffer, size_t capacity,
                                                 struct hr_diag *diag, size_t *ret_bytes);
/* WeightSets, into a body of any size. A buffer of NULL only measures. */
HR_NODISCARD hr_status hr_wire_sets_encode(const struct hr_wire_set_info *sets, uint32_t set_count,
                                           uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                           size_t *ret_bytes);

/* Names, types and shapes in columns. */
struct hr_wire_manifest {
        uint32_t count;
        const uint32_t *name_lengths;
        const char *names;    /* one after the other */
        uint64_t names_bytes; /* sum of the lengths */
        const uint32_t *types;
        const int64_t *ne; /* four per tensor */
        uint64_t leaf_digests_bytes; /* of an upload; 0 = not given */
        const uint8_t *leaf_digests;
};
struct hr_wire_manifest_limits {
        uint64_t tensors_max;
};
/* Columns into the arena; lengths cross-checked (reason COLUMN), names checked (reason UTF8), the
 * cap checked before anything is allocated. Types and extents are the store's to judge. */
HR_NODISCARD hr_status hr_wire_manifest_decode(struct hr_wire_span message,
                                               const struct hr_wire_manifest_limits *limits,
                                               struct hr_arena *arena, struct hr_diag *diag,
                                               struct hr_wire_manifest *ret_manifest);
/* A buffer of NULL only measures. */
HR_NODISCARD hr_status hr_wire_manifest_encode(const struct hr_wire_manifest *manifest,
                                               uint8_t *buffer, size_t capacity,
                                               struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_state_alloc {
        uint64_t manifest_bytes;
        const struct hr_wire_rule *rules;
        uint32_t rule_count;
};
HR_NODISCARD hr_status hr_wire_state_alloc_decode(struct hr_wire_span message,
                                                  struct hr_arena *arena, struct hr_diag *diag,
                                                  struct hr_wire_state_alloc *ret_alloc);
struct hr_wire_state_restore {
        uint64_t manifest_bytes, body_bytes;
        const struct hr_wire_rule *rules;
        uint32_t rule_count;
};
HR_NODISCARD hr_status hr_wire_state_restore_decode(struct hr_wire_span message,
                                                    struct hr_arena *arena, struct hr_diag *diag,
                                                    struct hr_wire_state_restore *ret_restore);
/* Of STATE_RESTORE and STATE_FORK, too. */
struct hr_wire_state_alloc_reply {
        uint64_t handle, bytes;
        const struct hr_wire_placed *placed;
        uint32_t placed_count;
};
HR_NODISCARD hr_status
hr_wire_state_alloc_reply_encode(const struct hr_wire_state_alloc_reply *reply, uint8_t *buffer,
                                 size_t capacity, struct hr_diag *diag, size_t *ret_bytes);

/* StateRead and StateWrite. */
struct hr_wire_state_range {
        uint64_t handle, offset, bytes;
        uint32_t tensor;
        uint64_t region, region_offset; /* 0 = the body */
};
HR_NODISCARD hr_status hr_wire_state_range_decode(struct hr_wire_span message, struct hr_diag *diag,
                                                  struct hr_wire_state_range *ret_range);

struct hr_wire_region_add {
        uint64_t bytes;
        bool writable;
};
HR_NODISCARD hr_status hr_wire_region_add_decode(struct hr_wire_span message, struct hr_diag *diag,
                                                 struct hr_wire_region_add *ret_add);
HR_NODISCARD hr_status hr_wire_region_add_encode(const struct hr_wire_region_add *add,
                                                 uint8_t *buffer, size_t capacity,
                                                 struct hr_diag *diag, size_t *ret_bytes);

/* ---- graph and run --------------------------------------------------------------------------- */

struct hr_wire_graph_limits {
        uint64_t nodes_max, leaves_max; /* counts */
        uint64_t bytes_max; /* of the encoded graph; in memory it takes at most eight times
                             * as much */
};
/* Columns -> a graph ready for hr_graph_validate(): counts cross-checked, views flattened to their
 * root, strides filled in, constants cut. HR_E_INVALID with reason COLUMN (lengths disagree, an id
 * out of range), VIEW (a base that is no earlier tensor, an offset that wraps), UTF8, DECODE;
 * HR_E_EXHAUSTED (reason LIMIT) over a limit, before memory is taken. Linear time, no recursion. */
HR_NODISCARD hr_status hr_wire_graph_decode(struct hr_wire_span message,
                                            const struct hr_wire_graph_limits *limits,
                                            struct hr_diag *diag, struct hr_graph **ret_graph);
/* The encoded form of a graph (without `extra` tensors); a buffer of NULL only measures. */
HR_NODISCARD hr_status hr_wire_graph_encode(const struct hr_graph *graph, uint8_t *buffer,
                                            size_t capacity, struct hr_diag *diag,
                                            size_t *ret_bytes);

struct hr_wire_submit {
        uint32_t digest_bytes; /* 0 or HR_WIRE_DIGEST_BYTES */
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        uint64_t graph_bytes;
        const uint64_t *weights, *states; /* handles */
        uint32_t weight_count, state_count;
        const struct hr_wire_rule *pins;
        uint32_t pin_count;
        const struct hr_wire_rule *planned; /* placement of leaves that are in no set */
        uint32_t planned_count;
        uint32_t rules; /* 0 headrace, 1 ggml */
        uint32_t n_copies;
        bool op_offload, strict, dry_run, fresh;
        bool realloc_fail;
        const uint32_t *taps;
        uint32_t tap_count, debug;
        const char *traceparent; /* as it came; NULL = none */
};
HR_NODISCARD hr_status hr_wire_submit_decode(struct hr_wire_span message, struct hr_arena *arena,
                                             struct hr_diag *diag,
                                             struct hr_wire_submit *ret_submit);
HR_NODISCARD hr_status hr_wire_submit_encode(const struct hr_wire_submit *submit, uint8_t *buffer,
                                             size_t capacity, struct hr_diag *diag,
                                             size_t *ret_bytes);

struct hr_wire_device_bytes {
        const char *device;
        uint64_t compute_bytes, weights_bytes, state_bytes, copies_bytes, scratch_bytes;
        uint32_t splits;
};

struct hr_wire_realloc {
        const char *device, *name;
        uint32_t tensor;
        uint64_t old_bytes, new_bytes;
};

struct hr_wire_submit_reply {
        uint64_t handle;
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        const char *origin, *copies_reason, *uploads; /* not decoded */
        uint32_t first_different, split_count, n_copies;
        uint64_t copied_bytes, staging_bytes, tap_bytes, debug_bytes;
        const struct hr_wire_device_bytes *devices; /* not decoded */
        uint32_t device_count, input_count, output_count, fallback_nodes;
        uint64_t reallocs;
        const struct hr_wire_realloc *realloc; /* NULL = none; not decoded */
        bool reserved;
        const char *traceparent; /* NULL = none; not decoded */
};
HR_NODISCARD hr_status hr_wire_submit_reply_encode(const struct hr_wire_submit_reply *reply,
                                                   uint8_t *buffer, size_t capacity,
                                                   struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_submit_reply_decode(struct hr_wire_span message,
                                                   struct hr_diag *diag,
                                                   struct hr_wire_submit_reply *ret_reply);

struct hr_wire_reserve {
        const struct hr_wire_submit *graphs;
        uint32_t graph_count;
        uint64_t body_bytes;
};
HR_NODISCARD hr_status hr_wire_reserve_decode(struct hr_wire_span message, struct hr_arena *arena,
                                              struct hr_diag *diag,
                                              struct hr_wire_reserve *ret_reserve);
HR_NODISCARD hr_status hr_wire_reserve_encode(const struct hr_wire_reserve *reserve,
                                              uint8_t *buffer, size_t capacity,
                                              struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_reserved_graph {
        uint8_t digest[HR_WIRE_DIGEST_BYTES];
        const char *origin, *copies_reason;
        uint32_t split_count, n_copies, fallback_nodes;
        uint64_t copied_bytes;
        bool pipelined;
};

struct hr_wire_reserve_reply {
        uint64_t handle, reallocs;
        const struct hr_wire_device_bytes *devices;
        const struct hr_wire_reserved_graph *graphs;
        uint32_t device_count, graph_count;
};
HR_NODISCARD hr_status hr_wire_reserve_reply_encode(const struct hr_wire_reserve_reply *reply,
                                                    uint8_t *buffer, size_t capacity,
                                                    struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_run {
        uint64_t handle;
        const uint32_t *outputs; /* positions among the graph's outputs */
        uint32_t output_count;   /* 0 = all, unless no_outputs */
        bool no_outputs;
        uint64_t input_bytes;
        int32_t priority;
        bool observe, trace;
        uint64_t input_region, input_offset, output_region, output_offset; /* 0 = the body */
        const char *traceparent; /* as it came; NULL = none */
};
HR_NODISCARD hr_status hr_wire_run_decode(struct hr_wire_span message, struct hr_arena *arena,
                                          struct hr_diag *diag, struct hr_wire_run *ret_run);
HR_NODISCARD hr_status hr_wire_run_encode(const struct hr_wire_run *run, uint8_t *buffer,
                                          size_t capacity, struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_run_reply {
        const uint64_t *output_bytes; /* decoded: in the arena */
        uint32_t output_count;
        uint64_t queue_ns, run_ns;
        uint32_t slot, taps;
        uint64_t tap_ns, trace_bytes, copied_bytes;
        uint64_t expert_hits, expert_misses, expert_copies, expert_bytes;
        uint64_t moves, sequence;
        const char *traceparent; /* NULL = none; not decoded */
};
HR_NODISCARD hr_status hr_wire_run_reply_encode(const struct hr_wire_run_reply *reply,
                                                uint8_t *buffer, size_t capacity,
                                                struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_run_reply_decode(struct hr_wire_span message, struct hr_arena *arena,
                                                struct hr_diag *diag,
                                                struct hr_wire_run_reply *ret_reply);

/* TapPush. */
struct hr_wire_tap_push {
        uint32_t tap, tensor;
        uint64_t bytes;
};
#define HR_WIRE_TAP_PUSH_BYTES_MAX 32U
HR_NODISCARD hr_status hr_wire_tap_push_encode(const struct hr_wire_tap_push *push, uint8_t *buffer,
                                               size_t capacity, struct hr_diag *diag,
                                               size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_tap_push_decode(struct hr_wire_span message, struct hr_diag *diag,
                                               struct hr_wire_tap_push *ret_push);

/* TraceAsk. */
struct hr_wire_trace_ask {
        uint64_t latest_ms;
        uint32_t spans_max;
        bool own;
};
HR_NODISCARD hr_status hr_wire_trace_ask_decode(struct hr_wire_span message, struct hr_diag *diag,
                                                struct hr_wire_trace_ask *ret_ask);
HR_NODISCARD hr_status hr_wire_trace_ask_encode(const struct hr_wire_trace_ask *ask,
                                                uint8_t *buffer, size_t capacity,
                                                struct hr_diag *diag, size_t *ret_bytes);

/* Tap: the client's answer. */
struct hr_wire_tap {
        uint64_t run;
        uint32_t tap;
        bool stop;
};
HR_NODISCARD hr_status hr_wire_tap_decode(struct hr_wire_span message, struct hr_diag *diag,
                                          struct hr_wire_tap *ret_tap);
HR_NODISCARD hr_status hr_wire_tap_encode(const struct hr_wire_tap *tap, uint8_t *buffer,
                                          size_t capacity, struct hr_diag *diag, size_t *ret_bytes);
struct hr_wire_feed {
        uint32_t input, step, output; /* positions */
};

struct hr_wire_step {
        uint64_t handle;
        const uint32_t *outputs;
        uint32_t output_count; /* 0 = all, unless no_outputs */
        bool no_outputs;
        const struct hr_wire_feed *feeds;
        uint32_t feed_count;
};

struct hr_wire_sequence {
        const struct hr_wire_step *steps;
        uint32_t step_count;
        uint64_t input_bytes;
        bool each;
        int32_t priority;
        uint64_t input_region, input_offset, output_region, output_offset; /* 0 = the body */
        const char *traceparent; /* as it came; NULL = none */
};
HR_NODISCARD hr_status hr_wire_sequence_decode(struct hr_wire_span message, struct hr_arena *arena,
                                               struct hr_diag *diag,
                                               struct hr_wire_sequence *ret_sequence);
HR_NODISCARD hr_status hr_wire_sequence_encode(const struct hr_wire_sequence *sequence,
                                               uint8_t *buffer, size_t capacity,
                                               struct hr_diag *diag, size_t *ret_bytes);

struct hr_wire_step_reply {
        const uint64_t *output_bytes;
        uint32_t output_count, slot;
        uint64_t run_ns, sequence;
};
struct hr_wire_sequence_reply {
        const struct hr_wire_step_reply *steps;
        uint32_t step_count;
        uint64_t queue_ns;
        const char *traceparent; /* NULL = none */
};
HR_NODISCARD hr_status hr_wire_sequence_reply_encode(const struct hr_wire_sequence_reply *reply,
                                                     uint8_t *buffer, size_t capacity,
                                                     struct hr_diag *diag, size_t *ret_bytes);

/* ---- admin ----------------------------------------------------------------------------------- */

struct hr_wire_stat {
        const char *name;
        const char *labels;
        double value;
};
/* Stats, into a body of any size. A buffer of NULL only measures. */
HR_NODISCARD hr_status hr_wire_stats_encode(const struct hr_wire_stat *stats, uint32_t count,
                                            uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                            size_t *ret_bytes);

/* ---- the client's side ----------------------------------------------------------------------- */

HR_NODISCARD hr_status hr_wire_weights_put_encode(const struct hr_wire_weights_put *put,
                                                  uint8_t *buffer, size_t capacity,
                                                  struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_weights_load_encode(const struct hr_wire_weights_load *load,
                                                   uint8_t *buffer, size_t capacity,
                                                   struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_state_alloc_encode(const struct hr_wire_state_alloc *alloc,
                                                  uint8_t *buffer, size_t capacity,
                                                  struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_state_range_encode(const struct hr_wire_state_range *range,
                                                  uint8_t *buffer, size_t capacity,
                                                  struct hr_diag *diag, size_t *ret_bytes);
HR_NODISCARD hr_status hr_wire_state_restore_encode(const struct hr_wire_state_restore *restore,
                                                    uint8_t *buffer, size_t capacity,
                                                    struct hr_diag *diag, size_t *ret_bytes);
/* Of the reply only the handle. */
HR_NODISCARD hr_status hr_wire_reserve_reply_decode(struct hr_wire_span message,
                                                    struct hr_diag *diag, uint64_t *ret_handle);
/* Lists in the arena. */
HR_NODISCARD hr_status hr_wire_sequence_reply_decode(struct hr_wire_span message,
                                                     struct hr_arena *arena, struct hr_diag *diag,
                                                     struct hr_wire_sequence_reply *ret_reply);
/* WeightsPutReply or WeightsLoadReply: of the set handle, tensors and bytes; *ret_already is false
 * in the former. */
HR_NODISCARD hr_status hr_wire_set_reply_decode(struct hr_wire_span message, bool load,
                                                struct hr_diag *diag,
                                                struct hr_wire_set_info *ret_set,
                                                bool *ret_already);
/* Without the list of devices. */
HR_NODISCARD hr_status
hr_wire_state_alloc_reply_decode(struct hr_wire_span message, struct hr_diag *diag,
                                 struct hr_wire_state_alloc_reply *ret_reply);
/* Lists and their texts in the arena. */
HR_NODISCARD hr_status hr_wire_sets_decode(struct hr_wire_span message, struct hr_arena *arena,
                                           struct hr_diag *diag,
                                           const struct hr_wire_set_info **ret_sets,
                                           uint32_t *ret_count);
HR_NODISCARD hr_status hr_wire_devices_reply_decode(struct hr_wire_span message,
                                                    struct hr_arena *arena, struct hr_diag *diag,
                                                    const struct hr_wire_device **ret_devices,
                                                    uint32_t *ret_count);
HR_NODISCARD hr_status hr_wire_stats_decode(struct hr_wire_span message, struct hr_arena *arena,
                                            struct hr_diag *diag,
                                            const struct hr_wire_stat **ret_stats,
                                            uint32_t *ret_count);
