/*
 * Every message of the codec under the same treatment: written and read back, into every buffer
 * that is too small for it, out of every arena that is too small, cut at every byte, with every
 * byte replaced; each with and without somewhere to put the words of a failure.
 */
#include "proto/codec_priv.h"

#include "proto/columns.h"
#include "proto/fields.h"
#include "proto/operate.h"
#include "tests/harness.h"

#define BYTES_MAX 8192
#define ARENA_BYTES_MAX 32768 /* more than any of the samples needs */

/* A message's sample. */
struct message {
        const char *name;
        hr_status (*write)(uint8_t *to, size_t capacity, struct hr_diag *diag, size_t *ret_bytes);
        /* Reads it, and where ret_again is not NULL writes what was read; *ret_again 0: cannot. */
        hr_status (*read)(struct hr_wire_span message, struct hr_arena *arena, struct hr_diag *diag,
                          uint8_t *again, size_t *ret_again);
        bool in_arena; /* some of what is read lies there */
        bool has_text;
};

#define WRITE(name, call)                                                                          \
        static hr_status name##_write(uint8_t *to, size_t capacity, struct hr_diag *diag,          \
                                      size_t *ret_bytes) {                                         \
                return call;                                                                       \
        }
/* decode: into `back`; encode: of `back` into (again, BYTES_MAX, diag, ret_again). */
#define READ(name, Type, decode, encode)                                                           \
        static hr_status name##_read(struct hr_wire_span message, struct hr_arena *arena,          \
                                     struct hr_diag *diag, uint8_t *again, size_t *ret_again) {    \
                static Type back;                                                                  \
                                                                                                   \
                (void) arena;                                                                      \
                HR_TRY(decode);                                                                    \
                return ret_again ? encode : HR_OK;                                                 \
        }
#define AGAIN again, BYTES_MAX, diag, ret_again

/* Only one direction exists, or fields are left out: tested below. */
static hr_status not_again(size_t *ret_again) {
        *ret_again = 0;
        return HR_OK;
}

/* ---- samples --------------------------------------------------------------------------------- */

static const uint64_t longs[] = {1, UINT64_MAX, 0, 1U << 30};
static const uint32_t words[] = {7, UINT32_MAX, 0};
static const struct hr_wire_rule rules[] = {{"blk.*.attn_output.weight", "cpu0"}, {"*", "fit"}};
static const char trace[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

static const struct hr_wire_hello hello = {
        .protocol_min = 1,
        .protocol_max = 3,
        .feature_count = 2,
        .features = {"alpha", "beta"},
        .client_name = "client \xc3\xa9",
        .session_name = "session",
        .credentials_bytes = 2,
        .credentials = {1, 2},
        .resume_token_bytes = 3,
        .resume_token = {9, 8, 7},
};
WRITE(hello, hr_wire_hello_encode(&hello, to, capacity, diag, ret_bytes))
READ(hello, struct hr_wire_hello, hr_wire_hello_decode(message, diag, &back),
     hr_wire_hello_encode(&back, AGAIN))

static const struct hr_wire_device devices[] = {
        {"cpu0", "a processor", "cpu", "host", 1, 2, 3, 4},
        {"cuda0", "a card", "gpu", "device", 5, 6, 7, 8},
};
static const struct hr_wire_hello_reply hello_reply = {
        .protocol = 1,
        .feature_count = 1,
        .features = {"tls"},
        .daemon_version = "0.1.0",
        .boot_id = {1, 2, 3},
        .session_token_bytes = 2,
        .session_token = {4, 5},
        .epoch = 6,
        .limits = {.message_bytes_max = 1, .taps_max = 2, .principal_plan_bytes_max = 3},
        .devices = devices,
        .device_count = 2,
};
WRITE(hello_reply, hr_wire_hello_reply_encode(&hello_reply, to, capacity, diag, ret_bytes))
READ(hello_reply, struct hr_wire_hello_reply, hr_wire_hello_reply_decode(message, diag, &back),
     not_again(ret_again))

static hr_status devices_decode(struct hr_wire_span message, struct hr_arena *arena,
                                struct hr_diag *diag, struct hr_wire_hello_reply *back) {
        return hr_wire_devices_reply_decode(message, arena, diag, &back->devices,
                                            &back->device_count);
}
WRITE(devices, hr_wire_devices_reply_encode(0, devices, 2, to, capacity, diag, ret_bytes))
READ(devices, struct hr_wire_hello_reply, devices_decode(message, arena, diag, &back),
     hr_wire_devices_reply_encode(0, back.devices, back.device_count, AGAIN))

static hr_status error_encode(uint8_t *to, size_t capacity, struct hr_diag *diag,
                              size_t *ret_bytes) {
        static const uint8_t digest[HR_WIRE_DIGEST_BYTES] = {1, 2, 3};
        struct hr_diag failure = {0};

        (void) hr_fail_reason(&failure, HR_E_INVALID, "SHAPE", "words");
        failure.field = "field";
        failure.has_node = true;
        failure.node = 3;
        if (hr_wire_error_encode(
                    &failure,
                    &(struct hr_wire_error_more){.digest = digest, .traceparent = "00-ab-cd-01"},
                    to, capacity, ret_bytes) == HR_OK)
                return HR_OK;
        return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE", "does not fit");
}
WRITE(error, error_encode(to, capacity, diag, ret_bytes))
READ(error, struct hr_wire_error, hr_wire_error_decode(message, diag, &back), not_again(ret_again))

static const struct hr_wire_progress progress = {
        .done_bytes = 5, .total_bytes = 6, .phase = "read"};
WRITE(progress, hr_wire_progress_encode(&progress, to, capacity, diag, ret_bytes))
READ(progress, struct hr_wire_progress, hr_wire_progress_decode(message, diag, &back),
     not_again(ret_again))

WRITE(fixed64, hr_wire_fixed64_encode(77, to, capacity, diag, ret_bytes))
READ(fixed64, uint64_t, hr_wire_fixed64_decode(message, diag, &back),
     hr_wire_fixed64_encode(back, AGAIN))
WRITE(varint, hr_wire_varint_encode(7777, to, capacity, diag, ret_bytes))
READ(varint, uint64_t, hr_wire_varint_decode(message, diag, &back),
     hr_wire_varint_encode(back, AGAIN))

struct credit_back {
        uint64_t bytes, offset;
};
WRITE(credit, hr_wire_credit_encode(7, 1000, to, capacity, diag, ret_bytes))
READ(credit, struct credit_back, hr_wire_credit_decode(message, diag, &back.bytes, &back.offset),
     hr_wire_credit_encode(back.bytes, back.offset, AGAIN))

static const struct hr_wire_weights_put put = {
        .name = "a set",
        .total_bytes = 1000,
        .manifest_bytes = 100,
        .digest_bytes = HR_WIRE_DIGEST_BYTES,
        .digest = {1, 2, 3},
        .rules = rules,
        .rule_count = 2,
        .is_own = true,
};
WRITE(put, hr_wire_weights_put_encode(&put, to, capacity, diag, ret_bytes))
READ(put, struct hr_wire_weights_put, hr_wire_weights_put_decode(message, arena, diag, &back),
     hr_wire_weights_put_encode(&back, AGAIN))

static const struct hr_wire_weights_load load = {
        .path = "a/file.gguf", .name = "a set", .rules = rules, .rule_count = 2, .is_own = true};
WRITE(load, hr_wire_weights_load_encode(&load, to, capacity, diag, ret_bytes))
READ(load, struct hr_wire_weights_load, hr_wire_weights_load_decode(message, arena, diag, &back),
     hr_wire_weights_load_encode(&back, AGAIN))

static const struct hr_wire_set_info sets[] = {
        {1, "first", 2, 3, HR_WIRE_DIGEST_BYTES, {4}, "upload", 5},
        {6, "second", 7, 8, 0, {0}, "file", 9},
};
struct sets_back {
        const struct hr_wire_set_info *sets;
        uint32_t count;
};
WRITE(sets, hr_wire_sets_encode(sets, 2, to, capacity, diag, ret_bytes))
READ(sets, struct sets_back, hr_wire_sets_decode(message, arena, diag, &back.sets, &back.count),
     hr_wire_sets_encode(back.sets, back.count, AGAIN))

static const struct hr_wire_placed placed[] = {{"cpu0", 1, 2, 3}};
static const struct hr_wire_put_reply put_reply = {
        .set = {1, "first", 2, 3, HR_WIRE_DIGEST_BYTES, {4}, "upload", 5},
        .placed = placed,
        .placed_count = 1,
};
static const struct hr_wire_load_reply load_reply = {
        .set = {1, "first", 2, 3, HR_WIRE_DIGEST_BYTES, {4}, "file", 5},
        .already = true,
        .placed = placed,
        .placed_count = 1,
};
struct set_back {
        struct hr_wire_set_info set;
        bool already;
};
WRITE(put_reply, hr_wire_put_reply_encode(&put_reply, to, capacity, diag, ret_bytes))
READ(put_reply, struct set_back,
     hr_wire_set_reply_decode(message, false, diag, &back.set, &back.already), not_again(ret_again))
WRITE(load_reply, hr_wire_load_reply_encode(&load_reply, to, capacity, diag, ret_bytes))
READ(load_reply, struct set_back,
     hr_wire_set_reply_decode(message, true, diag, &back.set, &back.already), not_again(ret_again))

/* What only other clients write, as they write it. */
static hr_status bytes_encode(const void *bytes, size_t size, uint8_t *to, size_t capacity,
                              struct hr_diag *diag, size_t *ret_bytes) {
        if (capacity < size)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "MESSAGE", "does not fit");
        memcpy(to, bytes, size);
        *ret_bytes = size;
        return HR_OK;
}
static const uint8_t query_digest[HR_WIRE_DIGEST_BYTES] = {1, 2, 3};
struct query_back {
        const uint8_t *digests;
        uint32_t count;
};
WRITE(query, hr_wire_weights_query_encode(query_digest, to, capacity, diag, ret_bytes))
READ(query, struct query_back,
     hr_wire_weights_query_decode(message, arena, diag, &back.digests, &back.count),
     hr_wire_weights_query_encode(back.digests, AGAIN))
static const char query_reply[] = "\x0a\x08\x02\0\0\0\x01\0\0\0"; /* of two sets */
WRITE(query_reply, bytes_encode(query_reply, sizeof query_reply - 1, to, capacity, diag, ret_bytes))
READ(query_reply, uint32_t, hr_wire_weights_query_reply_decode(message, arena, diag, &back),
     not_again(ret_again))

static const struct hr_wire_region_add region = {4096, true};
WRITE(region, hr_wire_region_add_encode(&region, to, capacity, diag, ret_bytes))
READ(region, struct hr_wire_region_add, hr_wire_region_add_decode(message, diag, &back),
     hr_wire_region_add_encode(&back, AGAIN))

static const struct hr_wire_state_alloc state_alloc = {100, rules, 2};
WRITE(state_alloc, hr_wire_state_alloc_encode(&state_alloc, to, capacity, diag, ret_bytes))
READ(state_alloc, struct hr_wire_state_alloc,
     hr_wire_state_alloc_decode(message, arena, diag, &back),
     hr_wire_state_alloc_encode(&back, AGAIN))
static const struct hr_wire_state_restore state_restore = {100, 200, rules, 2};
WRITE(state_restore, hr_wire_state_restore_encode(&state_restore, to, capacity, diag, ret_bytes))
READ(state_restore, struct hr_wire_state_restore,
     hr_wire_state_restore_decode(message, arena, diag, &back),
     hr_wire_state_restore_encode(&back, AGAIN))
static const struct hr_wire_state_alloc_reply state_reply = {1, 2, placed, 1};
WRITE(state_reply, hr_wire_state_alloc_reply_encode(&state_reply, to, capacity, diag, ret_bytes))
READ(state_reply, struct hr_wire_state_alloc_reply,
     hr_wire_state_alloc_reply_decode(message, diag, &back), not_again(ret_again))
static const struct hr_wire_state_range range = {1, 2, 3, 4, 5, 6};
WRITE(range, hr_wire_state_range_encode(&range, to, capacity, diag, ret_bytes))
READ(range, struct hr_wire_state_range, hr_wire_state_range_decode(message, diag, &back),
     hr_wire_state_range_encode(&back, AGAIN))

static const struct hr_wire_submit submit = {
        .digest_bytes = HR_WIRE_DIGEST_BYTES,
        .digest = {1, 2, 3},
        .graph_bytes = 5,
        .weights = longs,
        .states = longs + 1,
        .weight_count = 2,
        .state_count = 3,
        .pins = rules,
        .pin_count = 2,
        .planned = rules + 1,
        .planned_count = 1,
        .rules = 1,
        .n_copies = 2,
        .taps = words,
        .tap_count = 3,
        .traceparent = trace,
};
WRITE(submit, hr_wire_submit_encode(&submit, to, capacity, diag, ret_bytes))
READ(submit, struct hr_wire_submit, hr_wire_submit_decode(message, arena, diag, &back),
     hr_wire_submit_encode(&back, AGAIN))

static const struct hr_wire_device_bytes device_bytes[] = {{"cpu0", 1, 2, 3, 4, 5, 6}};
static const struct hr_wire_realloc reallocated = {"cpu0", "x", 1, 2, 3};
static const struct hr_wire_submit_reply submit_reply = {
        .handle = 1,
        .digest = {2},
        .origin = "cache",
        .copies_reason = "one",
        .uploads = "none",
        .devices = device_bytes,
        .device_count = 1,
        .realloc = &reallocated,
        .traceparent = trace,
};
WRITE(submit_reply, hr_wire_submit_reply_encode(&submit_reply, to, capacity, diag, ret_bytes))
READ(submit_reply, struct hr_wire_submit_reply, hr_wire_submit_reply_decode(message, diag, &back),
     not_again(ret_again))

static const struct hr_wire_submit reserved[] = {
        {.graph_bytes = 5, .weights = longs, .weight_count = 2},
        {.graph_bytes = 6, .pins = rules, .pin_count = 1},
};
static const struct hr_wire_reserve reserve = {reserved, 2, 11};
WRITE(reserve, hr_wire_reserve_encode(&reserve, to, capacity, diag, ret_bytes))
READ(reserve, struct hr_wire_reserve, hr_wire_reserve_decode(message, arena, diag, &back),
     hr_wire_reserve_encode(&back, AGAIN))
static const struct hr_wire_reserved_graph reserved_graphs[] = {
        {.digest = {1}, .origin = "cache", .copies_reason = "one", .pipelined = true}};
static const struct hr_wire_reserve_reply reserve_reply = {
        .handle = 5,
        .devices = device_bytes,
        .graphs = reserved_graphs,
        .device_count = 1,
        .graph_count = 1,
};
WRITE(reserve_reply, hr_wire_reserve_reply_encode(&reserve_reply, to, capacity, diag, ret_bytes))
READ(reserve_reply, uint64_t, hr_wire_reserve_reply_decode(message, diag, &back),
     not_again(ret_again))

static const struct hr_wire_run run = {
        .handle = 1, .outputs = words, .output_count = 3, .priority = -1, .traceparent = trace};
WRITE(run, hr_wire_run_encode(&run, to, capacity, diag, ret_bytes))
READ(run, struct hr_wire_run, hr_wire_run_decode(message, arena, diag, &back),
     hr_wire_run_encode(&back, AGAIN))
static const struct hr_wire_run_reply run_reply = {
        .output_bytes = longs, .output_count = 4, .queue_ns = 5, .run_ns = 6, .expert_misses = 7};
WRITE(run_reply, hr_wire_run_reply_encode(&run_reply, to, capacity, diag, ret_bytes))
READ(run_reply, struct hr_wire_run_reply, hr_wire_run_reply_decode(message, arena, diag, &back),
     hr_wire_run_reply_encode(&back, AGAIN))

static const struct hr_wire_run_reply traced = {.run_ns = 1, .traceparent = trace};
WRITE(traced, hr_wire_run_reply_encode(&traced, to, capacity, diag, ret_bytes))
READ(traced, struct hr_wire_run_reply, hr_wire_run_reply_decode(message, arena, diag, &back),
     not_again(ret_again))

static const struct hr_wire_tap_push tap_push = {1, 2, 3};
WRITE(tap_push, hr_wire_tap_push_encode(&tap_push, to, capacity, diag, ret_bytes))
READ(tap_push, struct hr_wire_tap_push, hr_wire_tap_push_decode(message, diag, &back),
     hr_wire_tap_push_encode(&back, AGAIN))
static const struct hr_wire_tap tap = {1, 2, true};
WRITE(tap, hr_wire_tap_encode(&tap, to, capacity, diag, ret_bytes))
READ(tap, struct hr_wire_tap, hr_wire_tap_decode(message, diag, &back),
     hr_wire_tap_encode(&back, AGAIN))
static const struct hr_wire_trace_ask ask = {1, 2, true};
WRITE(ask, hr_wire_trace_ask_encode(&ask, to, capacity, diag, ret_bytes))
READ(ask, struct hr_wire_trace_ask, hr_wire_trace_ask_decode(message, diag, &back),
     hr_wire_trace_ask_encode(&back, AGAIN))

static const struct hr_wire_feed feeds[] = {{0, 0, 1}, {1, 0, 0}};
static const struct hr_wire_step steps[] = {
        {.handle = 1, .outputs = words, .output_count = 2},
        {.handle = 2, .no_outputs = true, .feeds = feeds, .feed_count = 2},
};
static const struct hr_wire_sequence sequence = {
        .steps = steps, .step_count = 2, .input_bytes = 3, .each = true, .traceparent = trace};
WRITE(sequence, hr_wire_sequence_encode(&sequence, to, capacity, diag, ret_bytes))
READ(sequence, struct hr_wire_sequence, hr_wire_sequence_decode(message, arena, diag, &back),
     hr_wire_sequence_encode(&back, AGAIN))
static const struct hr_wire_step_reply step_replies[] = {
        {.output_bytes = longs, .output_count = 2, .slot = 1, .run_ns = 2}, {.run_ns = 3}};
WRITE(sequence_reply,
      hr_wire_sequence_reply_encode(
              &(struct hr_wire_sequence_reply){
                      .steps = step_replies, .step_count = 2, .queue_ns = 9, .traceparent = trace},
              to, capacity, diag, ret_bytes))
READ(sequence_reply, struct hr_wire_sequence_reply,
     hr_wire_sequence_reply_decode(message, arena, diag, &back),
     hr_wire_sequence_reply_encode(&back, AGAIN))

static const struct hr_wire_stat stats[] = {{"runs", "device=\"cpu0\"", 1.5}, {"sets", "", -1}};
struct stats_back {
        const struct hr_wire_stat *stats;
        uint32_t count;
};
WRITE(stats, hr_wire_stats_encode(stats, 2, to, capacity, diag, ret_bytes))
READ(stats, struct stats_back, hr_wire_stats_decode(message, arena, diag, &back.stats, &back.count),
     hr_wire_stats_encode(back.stats, back.count, AGAIN))

static const struct hr_wire_manifest manifest = {
        .count = 3,
        .name_lengths = (const uint32_t[]){1, 30, 0},
        .names = "abcdefghijklmnopqrstuvwxyz12345",
        .names_bytes = 31,
        .types = words,
        .ne = (const int64_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
        .leaf_digests_bytes = HR_WIRE_DIGEST_BYTES,
        .leaf_digests = (const uint8_t[HR_WIRE_DIGEST_BYTES]){1},
};
static const struct hr_wire_manifest_limits manifest_limits = {10};
WRITE(manifest, hr_wire_manifest_encode(&manifest, to, capacity, diag, ret_bytes))
READ(manifest, struct hr_wire_manifest,
     hr_wire_manifest_decode(message, &manifest_limits, arena, diag, &back),
     hr_wire_manifest_encode(&back, AGAIN))

static const struct hr_wire_status status = {.boot_id = {1, 2},
                                             .version = "0.1.0",
                                             .state = "ready",
                                             .words = "fine",
                                             .principal = "us"};
static const struct hr_wire_reload reload = {"one", "two"};
static const struct hr_wire_drained drained = {1, 2, 3};
static const struct hr_wire_evict evict = {"plans", "all"};
static const struct hr_wire_evicted evicted = {1, 2, 3, 4, true};
static const struct hr_wire_page page = {1, 2};
static const struct hr_wire_explain explain = {1, 2, 3};
#define OPERATE(name)                                                                              \
        WRITE(name, hr_wire_##name##_encode(&name, to, capacity, diag, ret_bytes))                 \
        READ(name, struct hr_wire_##name, hr_wire_##name##_decode(message, diag, &back),           \
             hr_wire_##name##_encode(&back, AGAIN))
OPERATE(status)
OPERATE(reload)
OPERATE(drained)
OPERATE(evict)
OPERATE(evicted)
OPERATE(page)
OPERATE(explain)

static const struct hr_wire_device_health device_health[] = {{"cpu0", "good", true, 1, 2, 3}};
static const struct hr_wire_health health = {true, true, false, "all well", device_health, 1};
WRITE(health, hr_wire_health_encode(&health, to, capacity, diag, ret_bytes))
READ(health, struct hr_wire_health, hr_wire_health_decode(message, arena, diag, &back),
     hr_wire_health_encode(&back, AGAIN))

static const struct hr_wire_session sessions[] = {{.number = 1, .principal = "us", .name = "n"},
                                                  {.number = 2, .client = "c"}};
static const struct hr_wire_plan plans[] = {
        {.session = 1, .principal = "us", .digest = "ab", .origin = "cache", .devices = "cpu0"}};
static const struct hr_wire_quota quotas[] = {
        {"us", "run", 1, 2, {{"runs", 1, 2}, {"graphs", 3, 4}}}, {.weight = 1}};
#define LIST(name)                                                                                 \
        struct name##s_back {                                                                      \
                const struct hr_wire_##name *rows;                                                 \
                uint32_t count;                                                                    \
        };                                                                                         \
        WRITE(name##s, hr_wire_##name##s_encode(name##s, HR_ARRAY_LENGTH(name##s), to, capacity,   \
                                                diag, ret_bytes))                                  \
        READ(name##s, struct name##s_back,                                                         \
             hr_wire_##name##s_decode(message, arena, diag, &back.rows, &back.count),              \
             hr_wire_##name##s_encode(back.rows, back.count, AGAIN))
LIST(session)
LIST(plan)
LIST(quota)

static const char *const names[] = {"one", "two"};
static const struct hr_wire_field fields[] = {
        {1, HR_WIRE_NUMBER, NULL, 7}, {2, HR_WIRE_TEXT, "a text", 0},
        {3, HR_WIRE_TEXTS, names, 2}, {4, HR_WIRE_BYTES, "bytes", 5},
        {5, HR_WIRE_WORDS, words, 3}, {6, HR_WIRE_LONGS, longs, 4},
        {7, HR_WIRE_NUMBER, NULL, 0}, {8, HR_WIRE_WORDS, NULL, 0},
        {9, HR_WIRE_TEXTS, NULL, 0},
};
struct fields_back {
        struct hr_wire_field fields[HR_ARRAY_LENGTH(fields)];
};
static hr_status fields_decode(struct hr_wire_span message, struct hr_arena *arena,
                               struct hr_diag *diag, struct fields_back *back) {
        memcpy(back->fields, fields, sizeof fields);
        return hr_wire_fields_decode(message, arena, diag, back->fields, HR_ARRAY_LENGTH(fields));
}
WRITE(fields, hr_wire_fields_encode(fields, HR_ARRAY_LENGTH(fields), to, capacity, diag, ret_bytes))
READ(fields, struct fields_back, fields_decode(message, arena, diag, &back),
     hr_wire_fields_encode(back.fields, HR_ARRAY_LENGTH(fields), AGAIN))

#define PLAIN(name)                                                                                \
        { #name, name##_write, name##_read, false, false }
#define TEXTS(name)                                                                                \
        { #name, name##_write, name##_read, false, true }
#define LISTS(name)                                                                                \
        { #name, name##_write, name##_read, true, false }
#define BOTH(name)                                                                                 \
        { #name, name##_write, name##_read, true, true }

static const struct message messages[] = {
        TEXTS(hello),         TEXTS(hello_reply), BOTH(devices),
        TEXTS(error),         PLAIN(progress),    PLAIN(fixed64),
        PLAIN(varint),        PLAIN(credit),      BOTH(put),
        BOTH(load),           BOTH(sets),         PLAIN(put_reply),
        PLAIN(load_reply),    LISTS(query),       LISTS(query_reply),
        PLAIN(region),        BOTH(state_alloc),  BOTH(state_restore),
        PLAIN(state_reply),   PLAIN(range),       BOTH(submit),
        PLAIN(submit_reply),  LISTS(reserve), /* whatever is wrong within a Submit is "arguments of
                                                 a graph" */
        PLAIN(reserve_reply), BOTH(run),          LISTS(run_reply),
        PLAIN(traced),        PLAIN(tap_push),    PLAIN(tap),
        PLAIN(ask),           BOTH(sequence),     BOTH(sequence_reply),
        BOTH(stats),          BOTH(manifest),     TEXTS(status),
        TEXTS(reload),        PLAIN(drained),     TEXTS(evict),
        PLAIN(evicted),       PLAIN(page),        PLAIN(explain),
        BOTH(health),         BOTH(sessions),     BOTH(plans),
        BOTH(quotas),         BOTH(fields),
};

/* ---- the treatment --------------------------------------------------------------------------- */

static uint8_t written[BYTES_MAX], again[BYTES_MAX];

#define FOR_MESSAGES(one)                                                                          \
        for (const struct message *one = messages; one < messages + HR_ARRAY_LENGTH(messages);     \
             one++)

static void fail(const struct message *one, const char *what, uint64_t where, hr_status found,
                 const struct hr_diag *diag) {
        hr_test_fail(__FILE__, __LINE__, "%s, %s %llu: status %d, %s: %s", one->name, what,
                     (unsigned long long) where, (int) found, hr_diag_reason(diag), diag->words);
}

static size_t sample(const struct message *one) {
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(one->write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT(bytes > 0);
        return bytes;
}

/* Reads `bytes` bytes of what is written, in an arena of `cap` bytes, twice: with and without
 * words. */
static hr_status read_sample(const struct message *one, size_t bytes, uint64_t cap,
                             struct hr_diag *diag) {
        hr_status found[2];

        for (int i = 0; i < 2; i++) {
                struct hr_arena arena;

                hr_arena_init(&arena, cap);
                found[i] = one->read((struct hr_wire_span){written, bytes}, &arena, i ? NULL : diag,
                                     NULL, NULL);
                hr_arena_deinit(&arena);
        }
        if (found[0] != found[1] || found[0] != diag->status)
                fail(one, "without words", found[1], found[0], diag);
        return found[0];
}

HR_TEST(what_is_read_is_what_was_written) {
        FOR_MESSAGES(one) {
                size_t bytes = sample(one), bytes_again = 0;
                struct hr_diag diag = {0};
                struct hr_arena arena;

                hr_arena_init(&arena, ARENA_BYTES_MAX);
                HR_EXPECT_OK(one->read((struct hr_wire_span){written, bytes}, &arena, &diag, again,
                                       &bytes_again),
                             &diag);
                if (bytes_again > 0 && (bytes_again != bytes || memcmp(written, again, bytes) != 0))
                        fail(one, "written again, bytes", bytes_again, HR_OK, &diag);
                hr_arena_deinit(&arena);
        }
}

HR_TEST(every_buffer_that_is_too_small) {
        FOR_MESSAGES(one) {
                size_t bytes = sample(one), found_bytes = 0;

                for (size_t capacity = 0; capacity < bytes; capacity++) {
                        struct hr_diag diag = {0};
                        hr_status found = one->write(again, capacity, &diag, &found_bytes);

                        if (found != HR_E_EXHAUSTED ||
                            strcmp(hr_diag_reason(&diag), "MESSAGE") != 0)
                                fail(one, "capacity", capacity, found, &diag);
                        HR_EXPECT_EQ(one->write(again, capacity, NULL, &found_bytes),
                                     HR_E_EXHAUSTED);
                }
                HR_EXPECT_EQ(found_bytes, 0);
        }
}

HR_TEST(every_arena_that_is_too_small) {
        FOR_MESSAGES(one) {
                size_t bytes = sample(one);
                uint64_t cap = 1;

                for (; cap < ARENA_BYTES_MAX; cap++) {
                        struct hr_diag diag = {0};
                        hr_status found = read_sample(one, bytes, cap, &diag);

                        if (found == HR_OK)
                                break;
                        if (found != HR_E_EXHAUSTED)
                                fail(one, "arena", cap, found, &diag);
                }
                HR_EXPECT(cap < ARENA_BYTES_MAX);
                HR_EXPECT_EQ(cap > 1, one->in_arena);
        }
}

/* Cut between two fields it is another message, else none. */
HR_TEST(every_cut) {
        FOR_MESSAGES(one) {
                size_t bytes = sample(one);
                unsigned refused = 0;

                for (size_t cut = 0; cut < bytes; cut++) {
                        struct hr_diag diag = {0};
                        hr_status found = read_sample(one, cut, ARENA_BYTES_MAX, &diag);

                        refused += found == HR_E_INVALID;
                        if (found != HR_OK && found != HR_E_INVALID)
                                fail(one, "cut", cut, found, &diag);
                }
                HR_EXPECT(refused > 0);
        }
}

/* Every byte replaced by a few others: read as something else, or refused for a reason; where there
 * is text, one of the reasons is that it is none. */
HR_TEST(every_byte_replaced) {
        static const uint8_t others[] = {0x00, 0x01, 0x7F, 0x80, 0xC3, 0xFF};

        FOR_MESSAGES(one) {
                size_t bytes = sample(one);
                bool no_text = false;

                for (size_t at = 0; at < bytes; at++) {
                        const uint8_t before = written[at];

                        for (size_t i = 0; i <= sizeof others; i++) {
                                struct hr_diag diag = {0};
                                hr_status found;

                                /* The last one: of a tag, a field of another wire type. */
                                written[at] = i < sizeof others ? others[i] : before ^ 2;
                                found = read_sample(one, bytes, ARENA_BYTES_MAX, &diag);
                                if (found != HR_OK && found != HR_E_INVALID &&
                                    found != HR_E_EXHAUSTED && found != HR_E_UNSUPPORTED)
                                        fail(one, "byte", at, found, &diag);
                                no_text |= found == HR_E_INVALID &&
                                           (strcmp(hr_diag_reason(&diag), "UTF8") == 0 ||
                                            strstr(diag.words, "UTF-8"));
                        }
                        written[at] = before;
                }
                if (no_text != one->has_text)
                        hr_test_fail(__FILE__, __LINE__, "%s: text is %s", one->name,
                                     no_text ? "checked" : "not checked");
        }
}

/* ---- what no sample above shows -------------------------------------------------------------- */

static struct hr_wire_span span_of(size_t bytes) {
        return (struct hr_wire_span){written, bytes};
}

HR_TEST(what_clients_are_told) {
        struct hr_wire_sequence_reply steps_back;
        const struct hr_wire_device *devices_back;
        const struct hr_wire_set_info *sets_back;
        const struct hr_wire_stat *stats_back;
        struct hr_wire_state_alloc_reply state_back;
        struct hr_wire_set_info set_back;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        uint64_t handle = 0;
        uint32_t count = 0;
        bool already = true;
        size_t bytes = 0;

        hr_arena_init(&arena, 0);
        HR_EXPECT_OK(devices_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(
                hr_wire_devices_reply_decode(span_of(bytes), &arena, &diag, &devices_back, &count),
                &diag);
        HR_EXPECT_EQ(count, 2);
        HR_EXPECT_STREQ(devices_back[1].name, "cuda0");
        HR_EXPECT_STREQ(devices_back[0].memory_kind, "host");
        HR_EXPECT_EQ(devices_back[1].memory_used, 7);
        HR_EXPECT_OK(sets_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_sets_decode(span_of(bytes), &arena, &diag, &sets_back, &count), &diag);
        HR_EXPECT_EQ(count, 2);
        HR_EXPECT_STREQ(sets_back[0].source, "upload");
        HR_EXPECT_EQ(sets_back[0].digest[0], 4);
        HR_EXPECT_EQ(sets_back[1].users, 9);
        HR_EXPECT_OK(stats_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_stats_decode(span_of(bytes), &arena, &diag, &stats_back, &count),
                     &diag);
        HR_EXPECT_STREQ(stats_back[0].labels, "device=\"cpu0\"");
        HR_EXPECT(stats_back[1].value == -1);
        HR_EXPECT_OK(sequence_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_sequence_reply_decode(span_of(bytes), &arena, &diag, &steps_back),
                     &diag);
        HR_EXPECT_EQ(steps_back.step_count, 2);
        HR_EXPECT_EQ(steps_back.steps[0].output_bytes[1], UINT64_MAX);
        HR_EXPECT_EQ(steps_back.steps[1].run_ns, 3);
        HR_EXPECT_EQ(steps_back.queue_ns, 9);
        HR_EXPECT_OK(reserve_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_reserve_reply_decode(span_of(bytes), &diag, &handle), &diag);
        HR_EXPECT_EQ(handle, 5);
        HR_EXPECT_OK(query_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_weights_query_reply_decode(span_of(bytes), &arena, &diag, &count),
                     &diag);
        HR_EXPECT_EQ(count, 2); /* the state of the first set */
        HR_EXPECT_OK(hr_wire_weights_query_reply_decode(span_of(0), &arena, &diag, &count), &diag);
        HR_EXPECT_EQ(count, 0);
        HR_EXPECT_OK(put_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_set_reply_decode(span_of(bytes), false, &diag, &set_back, &already),
                     &diag);
        HR_EXPECT(set_back.tensors == 2 && set_back.bytes == 3 && !already);
        HR_EXPECT_OK(load_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_set_reply_decode(span_of(bytes), true, &diag, &set_back, &already),
                     &diag);
        HR_EXPECT(set_back.handle == 1 && already);
        HR_EXPECT_OK(state_reply_write(written, sizeof written, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_state_alloc_reply_decode(span_of(bytes), &diag, &state_back), &diag);
        HR_EXPECT(state_back.handle == 1 && state_back.bytes == 2);
        hr_arena_deinit(&arena);
}

/* Digests are whole or absent. */
HR_TEST(digests_of_another_length) {
        struct hr_wire_weights_put odd = put, back;
        const uint8_t *digests = NULL;
        struct hr_arena arena;
        uint32_t count = 0;

        hr_arena_init(&arena, 0);
        for (uint32_t size = 0; size <= HR_WIRE_DIGEST_BYTES; size++) {
                const bool whole = size == 0 || size == HR_WIRE_DIGEST_BYTES;
                struct hr_diag diag = {0};
                size_t bytes = 0;

                odd.digest_bytes = size;
                HR_EXPECT_OK(
                        hr_wire_weights_put_encode(&odd, written, sizeof written, &diag, &bytes),
                        &diag);
                HR_EXPECT_EQ(hr_wire_weights_put_decode(span_of(bytes), &arena, NULL, &back),
                             whole ? HR_OK : HR_E_INVALID);
                HR_EXPECT_EQ(hr_wire_weights_put_decode(span_of(bytes), &arena, &diag, &back),
                             whole ? HR_OK : HR_E_INVALID);
                if (!whole)
                        HR_EXPECT_STREQ(diag.field, "digest");
                hr_diag_clear(&diag);
                written[0] = 1 << 3 | 2; /* WeightsQuery */
                written[1] = (uint8_t) size;
                memset(written + 2, 'x', size);
                HR_EXPECT_EQ(hr_wire_weights_query_decode(span_of(size + 2), &arena, &diag,
                                                          &digests, &count),
                             whole ? HR_OK : HR_E_INVALID);
                if (whole)
                        HR_EXPECT_EQ(count, size / HR_WIRE_DIGEST_BYTES);
        }
        hr_arena_deinit(&arena);
}

/* Parts of replies that are there or not. */
HR_TEST(parts_that_may_be_absent) {
        const struct { uint64_t hits, misses; } experts[] = {{0, 0}, {1, 0}, {0, 2}, {3, 4}};
        struct hr_wire_submit_reply plain = submit_reply, plain_back;
        struct hr_wire_run_reply reply = run_reply, back;
        struct hr_diag diag = {0}, failure = {.has_step = true, .step = 7};
        size_t with = 0, bytes = 0;
        struct hr_wire_error error;
        struct hr_arena arena;

        hr_arena_init(&arena, 0);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(experts); i++) {
                reply.expert_hits = experts[i].hits;
                reply.expert_misses = experts[i].misses;
                HR_EXPECT_OK(
                        hr_wire_run_reply_encode(&reply, written, sizeof written, &diag, &bytes),
                        &diag);
                HR_EXPECT_OK(hr_wire_run_reply_decode(span_of(bytes), &arena, &diag, &back), &diag);
                HR_EXPECT_EQ(back.expert_hits, experts[i].hits);
                HR_EXPECT_EQ(back.expert_misses, experts[i].misses);
        }
        hr_arena_deinit(&arena);
        HR_EXPECT_OK(submit_reply_write(written, sizeof written, &diag, &with), &diag);
        plain.realloc = NULL;
        HR_EXPECT_OK(hr_wire_submit_reply_encode(&plain, written, sizeof written, &diag, &bytes),
                     &diag);
        HR_EXPECT(bytes < with);
        HR_EXPECT_OK(hr_wire_submit_reply_decode(span_of(bytes), &diag, &plain_back), &diag);
        (void) hr_fail_reason(&failure, HR_E_INVALID, "SHAPE", "words");
        HR_EXPECT_EQ(hr_wire_error_encode(&failure, NULL, written, sizeof written, &bytes), HR_OK);
        HR_EXPECT_OK(hr_wire_error_decode(span_of(bytes), &diag, &error), &diag);
        HR_EXPECT(error.has_step && error.step == 7 && error.digest_bytes == 0);
        failure.has_step = false;
        HR_EXPECT_EQ(hr_wire_error_encode(&failure, NULL, written, sizeof written, &bytes), HR_OK);
        HR_EXPECT_OK(hr_wire_error_decode(span_of(bytes), &diag, &error), &diag);
        HR_EXPECT(!error.has_step);
}

HR_TEST(manifests_at_the_limit) {
        static const struct {
                uint64_t tensors_max;
                hr_status status;
        } cases[] = {{2, HR_E_EXHAUSTED}, {3, HR_OK}, {UINT64_MAX, HR_OK}};
        const struct hr_wire_manifest nothing = {0};
        struct hr_wire_manifest back;
        struct hr_arena arena;
        size_t bytes = 0;

        hr_arena_init(&arena, 0);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_wire_manifest_limits most = {cases[i].tensors_max};
                struct hr_diag diag = {0};

                HR_EXPECT_OK(manifest_write(written, sizeof written, &diag, &bytes), &diag);
                HR_EXPECT_EQ(hr_wire_manifest_decode(span_of(bytes), &most, &arena, NULL, &back),
                             cases[i].status);
                HR_EXPECT_EQ(hr_wire_manifest_decode(span_of(bytes), &most, &arena, &diag, &back),
                             cases[i].status);
                if (cases[i].status != HR_OK) {
                        HR_EXPECT_EQ(diag.limit, 2);
                        HR_EXPECT_EQ(diag.actual, 3);
                }
        }
        HR_EXPECT_EQ(hr_wire_manifest_encode(&nothing, written, sizeof written, NULL, &bytes),
                     HR_OK);
        HR_EXPECT_EQ(bytes, 0);
        HR_EXPECT_EQ(hr_wire_manifest_decode(span_of(0), &manifest_limits, &arena, NULL, &back),
                     HR_OK);
        HR_EXPECT_EQ(back.count, 0);
        hr_arena_deinit(&arena);
}

HR_TEST(what_nanopb_never_leaves) {
        static const char full[4] = {'a', 'b', 'c', 'd'}; /* without a NUL */
        struct hr_codec_list list = {.count = 1};

        HR_EXPECT(!hr_codec_array_is_valid(full, sizeof full));
        HR_EXPECT(!hr_codec_list_extend(&list, UINT32_MAX, 1));
        HR_EXPECT(list.exhausted && list.count == 1);
}
