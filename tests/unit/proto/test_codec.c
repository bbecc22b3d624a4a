/* Messages: round trips, caps, text rules, lists in the arena, hostile bytes. */
#include "proto/codec.h"

#include "proto/codec_priv.h"
#include "proto/fields.h"
#include "proto/headrace.pb.h"
#include "tests/harness.h"

static uint8_t buffer[HR_WIRE_MESSAGE_BYTES_MAX];

static struct hr_wire_span span(size_t bytes) {
        return (struct hr_wire_span){buffer, bytes};
}

/* A length-delimited field with a one-byte tag. */
static size_t field(uint8_t *at, unsigned number, const void *bytes, size_t size) {
        at[0] = (uint8_t) (number << 3 | 2);
        at[1] = (uint8_t) size;
        HR_EXPECT(number < 16 && size < 128);
        memcpy(at + 2, bytes, size);
        return size + 2;
}

HR_TEST(hello_round_trip) {
        struct hr_wire_hello hello = {.protocol_min = 1,
                                      .protocol_max = 3,
                                      .feature_count = 2,
                                      .resume_token_bytes = 3,
                                      .resume_token = {9, 8, 7}};
        struct hr_wire_hello back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        strcpy(hello.features[0], "alpha");
        strcpy(hello.features[1], "beta");
        strcpy(hello.client_name, "client \xc3\xa9");
        HR_EXPECT_OK(hr_wire_hello_encode(&hello, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_hello_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT_EQ(back.protocol_min, 1);
        HR_EXPECT_EQ(back.protocol_max, 3);
        HR_EXPECT_EQ(back.feature_count, 2);
        HR_EXPECT_STREQ(back.features[1], "beta");
        HR_EXPECT_STREQ(back.client_name, "client \xc3\xa9");
        HR_EXPECT_EQ(back.resume_token_bytes, 3);
        HR_EXPECT_EQ(back.resume_token[2], 7);
}

HR_TEST(hello_unknown_fields_are_skipped) {
        struct hr_wire_hello back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        buffer[bytes++] = 0x08; /* protocol_min = 7, then again: the last one wins */
        buffer[bytes++] = 7;
        buffer[bytes++] = 0x08;
        buffer[bytes++] = 1;
        bytes += field(buffer + bytes, 15, "grease", 6);
        buffer[bytes++] = 0x78; /* field 15 as a varint */
        buffer[bytes++] = 5;
        HR_EXPECT_OK(hr_wire_hello_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT_EQ(back.protocol_min, 1);
}

HR_TEST(hello_every_cut_is_refused_or_a_prefix) {
        struct hr_wire_hello hello = {.protocol_min = 1, .protocol_max = 1}, back;
        struct hr_diag diag = {0};
        size_t bytes = 0;
        unsigned refused = 0;

        strcpy(hello.client_name, "somebody");
        HR_EXPECT_OK(hr_wire_hello_encode(&hello, buffer, sizeof buffer, &diag, &bytes), &diag);
        for (size_t cut = 0; cut < bytes; cut++) {
                hr_diag_clear(&diag);
                if (hr_wire_hello_decode(span(cut), &diag, &back) != HR_OK) {
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DECODE");
                        refused++;
                }
        }
        /* All but the cuts between fields. */
        HR_EXPECT_EQ(refused, bytes - 3);
}

HR_TEST(strings_over_their_cap_are_refused) {
        struct hr_wire_hello back;
        struct hr_diag diag = {0};
        char name[100];
        size_t bytes;

        memset(name, 'x', sizeof name);
        bytes = field(buffer, 4, name, 63);
        HR_EXPECT_OK(hr_wire_hello_decode(span(bytes), &diag, &back), &diag);
        bytes = field(buffer, 4, name, 64);
        HR_EXPECT_EQ(hr_wire_hello_decode(span(bytes), &diag, &back), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DECODE");
}

HR_TEST(features_over_their_cap_are_refused) {
        struct hr_wire_hello back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        for (unsigned i = 0; i < HR_WIRE_FEATURES_MAX + 1; i++)
                bytes += field(buffer + bytes, 3, "f", 1);
        HR_EXPECT_EQ(hr_wire_hello_decode(span(bytes), &diag, &back), HR_E_INVALID);
}

HR_TEST(text_rules) {
        static const struct {
                const char *bytes;
                size_t size;
                bool valid;
        } texts[] = {
                {"plain ascii, longer than eight", 30, true},
                {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, true},
                {"a\0b", 3, false},
                {"12345678\0x", 10, false},
                {"\xc0\xaf", 2, false},             /* overlong */
                {"\xe0\x80\xaf", 3, false},         /* overlong */
                {"\xed\xa0\x80", 3, false},         /* surrogate */
                {"\xf4\x90\x80\x80", 4, false},     /* above U+10FFFF */
                {"\xf0\x8f\x80\x80", 4, false},     /* overlong */
                {"\xe0\xa0\x80\xed\x9f\xbf", 6, true}, /* next to what is none */
                {"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8, true},
                {"\xf8\x88\x80\x80\x80", 5, false}, /* five bytes */
                {"\xe2\x82", 2, false},             /* cut */
                {"\x80", 1, false},                 /* no lead */
                {"1234567\xff", 8, false},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(texts); i++) {
                struct hr_wire_hello back;
                struct hr_diag diag = {0};
                size_t bytes = field(buffer, 6, texts[i].bytes, texts[i].size);
                hr_status status = hr_wire_hello_decode(span(bytes), &diag, &back);

                HR_EXPECT_EQ(status, texts[i].valid ? HR_OK : HR_E_INVALID);
                if (!texts[i].valid) {
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), "UTF8");
                        HR_EXPECT_STREQ(diag.field, "session_name");
                }
        }
}

HR_TEST(error_round_trip) {
        struct hr_diag failure = {.has_node = true,
                                  .node = 17,
                                  .has_tensor = true,
                                  .tensor = 99,
                                  .field = "ne",
                                  .limit = 1,
                                  .actual = UINT64_MAX,
                                  .retry_after_ms = 250};
        const uint8_t digest[HR_WIRE_DIGEST_BYTES] = {1, 2, 3};
        const struct hr_wire_error_more more = {.digest = digest, .traceparent = "00-ab-cd-01"};
        struct hr_wire_error back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        (void) hr_fail_reason(&failure, HR_E_RANGE, "VIEW", "words \xff here");
        HR_EXPECT_OK(
                hr_wire_error_encode(&failure, &more, buffer, HR_WIRE_ERROR_BYTES_MAX, &bytes),
                &failure);
        HR_EXPECT_OK(hr_wire_error_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT_EQ(back.code, hr_status_grpc_code(HR_E_RANGE));
        HR_EXPECT_STREQ(back.reason, "VIEW");
        HR_EXPECT_STREQ(back.words, "words ? here"); /* never bytes that are no UTF-8 */
        HR_EXPECT(back.has_node && back.has_tensor);
        HR_EXPECT_EQ(back.node, 17);
        HR_EXPECT_EQ(back.tensor, 99);
        HR_EXPECT_STREQ(back.field, "ne");
        HR_EXPECT(back.limit == 1 && back.actual == UINT64_MAX);
        HR_EXPECT_EQ(back.retry_after_ms, 250);
        HR_EXPECT_EQ(back.digest_bytes, HR_WIRE_DIGEST_BYTES);
        HR_EXPECT_EQ(memcmp(back.digest, digest, sizeof digest), 0);
        HR_EXPECT_STREQ(back.traceparent, "00-ab-cd-01");
        HR_EXPECT(back.written_count == 0 && back.written_left_out == 0);
}

HR_TEST(largest_error_fits) {
        struct hr_diag failure = {.has_node = true,
                                  .node = UINT32_MAX - 1,
                                  .has_tensor = true,
                                  .tensor = UINT32_MAX - 1,
                                  .limit = UINT64_MAX,
                                  .actual = UINT64_MAX,
                                  .has_step = true,
                                  .step = UINT32_MAX,
                                  .retry_after_ms = UINT32_MAX};
        static char long_field[200], long_reason[200];
        const uint8_t digest[HR_WIRE_DIGEST_BYTES] = {0};
        const struct hr_wire_error_more more = {.digest = digest, .traceparent = long_field};
        size_t bytes = 0;

        memset(long_field, 'f', sizeof long_field - 1);
        memset(long_reason, 'R', sizeof long_reason - 1);
        (void) hr_fail_reason(&failure, HR_E_DATA_LOSS, long_reason, "%0255d", 7);
        failure.field = long_field;
        HR_EXPECT_EQ(
                hr_wire_error_encode(&failure, &more, buffer, HR_WIRE_ERROR_BYTES_MAX, &bytes),
                HR_OK);
        HR_EXPECT(bytes > 500);
}

HR_TEST(submit_round_trip) {
        static const uint64_t weights[] = {1, UINT64_MAX, 3};
        static const uint64_t states[] = {77};
        static const uint32_t taps[] = {9, 10, UINT32_MAX - 1};
        static const struct hr_wire_rule pins[] = {{"blk.*", "cpu0"}, {"output", "cpu1"}};
        static const struct hr_wire_rule planned[] = {{"*.w", "fit:cpu0,cpu1"}};
        const struct hr_wire_submit submit = {.graph_bytes = 12345678901,
                                              .weights = weights,
                                              .weight_count = 3,
                                              .states = states,
                                              .state_count = 1,
                                              .pins = pins,
                                              .pin_count = 2,
                                              .planned = planned,
                                              .planned_count = 1,
                                              .taps = taps,
                                              .tap_count = 3,
                                              .rules = 1,
                                              .n_copies = 4,
                                              .strict = true,
                                              .dry_run = true};
        struct hr_wire_submit back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        hr_arena_init(&arena, 1 << 20);
        HR_EXPECT_OK(hr_wire_submit_encode(&submit, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_submit_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT(back.graph_bytes == submit.graph_bytes);
        HR_EXPECT_EQ(back.weight_count, 3);
        HR_EXPECT_EQ(memcmp(back.weights, weights, sizeof weights), 0);
        HR_EXPECT_EQ(back.state_count, 1);
        HR_EXPECT_EQ(back.states[0], 77);
        HR_EXPECT_EQ(back.pin_count, 2);
        HR_EXPECT_STREQ(back.pins[1].pattern, "output");
        HR_EXPECT_STREQ(back.pins[0].device, "cpu0");
        HR_EXPECT_EQ(back.tap_count, 3);
        HR_EXPECT_EQ(memcmp(back.taps, taps, sizeof taps), 0);
        HR_EXPECT_EQ(back.planned_count, 1);
        HR_EXPECT_STREQ(back.planned[0].pattern, "*.w");
        HR_EXPECT_STREQ(back.planned[0].device, "fit:cpu0,cpu1");
        HR_EXPECT_EQ(back.rules, 1);
        HR_EXPECT_EQ(back.n_copies, 4);
        HR_EXPECT(back.strict && back.dry_run && !back.fresh && !back.op_offload);
        hr_arena_deinit(&arena);
}

HR_TEST(submit_refuses_unknown_rules_and_odd_digests) {
        struct hr_wire_submit back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes;

        hr_arena_init(&arena, 1 << 20);
        buffer[0] = 6 << 3;
        buffer[1] = 2;
        HR_EXPECT_EQ(hr_wire_submit_decode(span(2), &arena, &diag, &back), HR_E_INVALID);
        hr_diag_clear(&diag);
        bytes = field(buffer, 1, "short", 5);
        HR_EXPECT_EQ(hr_wire_submit_decode(span(bytes), &arena, &diag, &back), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DECODE");
        hr_arena_deinit(&arena);
}

HR_TEST(reserve_round_trip) {
        static const uint64_t weights[] = {1, 2};
        static const struct hr_wire_rule pins[] = {{"blk.*", "cpu0"}};
        const struct hr_wire_submit graphs[] = {
                {.graph_bytes = 100, .weights = weights, .weight_count = 2, .n_copies = 3},
                {.graph_bytes = 0, .digest_bytes = HR_WIRE_DIGEST_BYTES, .digest = {9}},
                {.graph_bytes = 7, .pins = pins, .pin_count = 1, .realloc_fail = true}};
        const struct hr_wire_reserve reserve = {
                .graphs = graphs, .graph_count = 3, .body_bytes = 107};
        struct hr_wire_reserve back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0, again = 0;

        hr_arena_init(&arena, 1 << 20);
        HR_EXPECT_OK(hr_wire_reserve_encode(&reserve, buffer, sizeof buffer, &diag, &bytes),
                     &diag);
        HR_EXPECT_OK(hr_wire_reserve_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT_EQ(back.graph_count, 3);
        HR_EXPECT_EQ(back.body_bytes, 107);
        HR_EXPECT_EQ(back.graphs[0].weights[1], 2);
        HR_EXPECT_EQ(back.graphs[0].n_copies, 3);
        HR_EXPECT_EQ(back.graphs[0].pin_count, 0);
        HR_EXPECT_EQ(back.graphs[1].digest_bytes, HR_WIRE_DIGEST_BYTES);
        HR_EXPECT_EQ(back.graphs[1].digest[0], 9);
        HR_EXPECT(back.graphs[2].realloc_fail && !back.graphs[0].realloc_fail);
        HR_EXPECT_STREQ(back.graphs[2].pins[0].device, "cpu0");
        for (size_t capacity = 0; capacity < bytes; capacity++)
                HR_EXPECT_EQ(hr_wire_reserve_encode(&reserve, buffer, capacity,
                                                    &(struct hr_diag){0}, &again),
                             HR_E_EXHAUSTED);
        hr_arena_deinit(&arena);
}

/* A graph whose arguments are none, and more graphs than the arena holds. */
HR_TEST(reserve_refuses_broken_graphs) {
        static const struct hr_wire_submit many[200];
        const struct hr_wire_reserve reserve = {.graphs = many, .graph_count = 200};
        struct hr_wire_reserve back;
        struct hr_arena arena, small;
        struct hr_diag diag = {0};
        size_t bytes = field(buffer, 1, "\x30\x09", 2); /* rules = 9 */

        hr_arena_init(&arena, 1 << 20);
        hr_arena_init(&small, 16384);
        HR_EXPECT_EQ(hr_wire_reserve_decode(span(bytes), &arena, &diag, &back), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DECODE");
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_wire_reserve_encode(&reserve, buffer, sizeof buffer, &diag, &bytes),
                     &diag);
        HR_EXPECT_EQ(hr_wire_reserve_decode(span(bytes), &small, &diag, &back), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "LIMIT");
        hr_arena_deinit(&arena);
        hr_arena_deinit(&small);
}

HR_TEST(sequence_round_trip) {
        static const uint32_t outputs[] = {1, 0};
        static const struct hr_wire_feed feeds[] = {{2, 0, 1}, {0, 1, 0}};
        static const struct hr_wire_step steps[] = {
                {.handle = UINT64_C(0x8000000000000001), .outputs = outputs, .output_count = 2},
                {.handle = 2, .no_outputs = true},
                {.handle = 3, .feeds = feeds, .feed_count = 2}};
        const struct hr_wire_sequence sequence = {.steps = steps,
                                                  .step_count = 3,
                                                  .input_bytes = UINT64_C(1) << 40,
                                                  .each = true,
                                                  .priority = -7};
        struct hr_wire_sequence back;
        struct hr_arena arena, small;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        hr_arena_init(&arena, 1 << 20);
        hr_arena_init(&small, 64);
        HR_EXPECT_OK(hr_wire_sequence_encode(&sequence, buffer, sizeof buffer, &diag, &bytes),
                     &diag);
        HR_EXPECT_OK(hr_wire_sequence_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT_EQ(back.step_count, 3);
        HR_EXPECT(back.input_bytes == sequence.input_bytes && back.each);
        HR_EXPECT_EQ(back.priority, -7);
        HR_EXPECT(back.steps[0].handle == steps[0].handle);
        HR_EXPECT_EQ(back.steps[0].outputs[0], 1);
        HR_EXPECT_EQ(back.steps[0].feed_count, 0);
        HR_EXPECT(back.steps[1].no_outputs && !back.steps[2].no_outputs);
        HR_EXPECT_EQ(back.steps[2].feed_count, 2);
        HR_EXPECT_EQ(memcmp(back.steps[2].feeds, feeds, sizeof feeds), 0);
        HR_EXPECT_EQ(hr_wire_sequence_decode(span(bytes), &small, &diag, &back), HR_E_EXHAUSTED);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_wire_sequence_decode(span(bytes - 1), &arena, &diag, &back), HR_E_INVALID);
        hr_arena_deinit(&arena);
        hr_arena_deinit(&small);
}

HR_TEST(lists_take_packed_and_single_elements) {
        struct hr_wire_run back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        const uint32_t packed[] = {1, 2, 3};
        size_t bytes = 0;

        hr_arena_init(&arena, 1 << 20);
        bytes += field(buffer + bytes, 2, packed, sizeof packed);
        buffer[bytes++] = 2 << 3 | 5; /* one more, unpacked */
        memcpy(buffer + bytes, &(uint32_t){4}, 4);
        bytes += 4;
        bytes += field(buffer + bytes, 2, packed, 8);
        bytes += field(buffer + bytes, 2, packed, 0);
        HR_EXPECT_OK(hr_wire_run_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT_EQ(back.output_count, 6);
        HR_EXPECT_EQ(back.outputs[3], 4);
        HR_EXPECT_EQ(back.outputs[5], 2);
        bytes += field(buffer + bytes, 2, packed, 7); /* no multiple of four */
        HR_EXPECT_EQ(hr_wire_run_decode(span(bytes), &arena, &diag, &back), HR_E_INVALID);
        hr_arena_deinit(&arena);
}

HR_TEST(lists_stop_at_the_arena) {
        static uint64_t many[4000];
        const struct hr_wire_submit submit = {.weights = many, .weight_count = 4000};
        struct hr_wire_submit back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        hr_arena_init(&arena, 16384);
        HR_EXPECT_OK(hr_wire_submit_encode(&submit, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_EQ(hr_wire_submit_decode(span(bytes), &arena, &diag, &back), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "LIMIT");
        hr_arena_deinit(&arena);
}

HR_TEST(run_round_trip_and_full_buffer) {
        static const uint32_t outputs[] = {5, 0};
        const struct hr_wire_run run = {.handle = UINT64_C(0xFEDCBA9876543210),
                                        .outputs = outputs,
                                        .output_count = 2,
                                        .input_bytes = 1 << 30,
                                        .priority = -3,
                                        .observe = true,
                                        .trace = true};
        struct hr_wire_run back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0, again = 0;

        hr_arena_init(&arena, 1 << 20);
        HR_EXPECT_OK(hr_wire_run_encode(&run, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_run_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT(back.handle == run.handle);
        HR_EXPECT_EQ(back.outputs[0], 5);
        HR_EXPECT_EQ(back.priority, -3);
        HR_EXPECT(back.trace && back.observe);
        for (size_t capacity = 0; capacity < bytes; capacity++) {
                hr_diag_clear(&diag);
                HR_EXPECT_EQ(hr_wire_run_encode(&run, buffer, capacity, &diag, &again),
                             HR_E_EXHAUSTED);
        }
        HR_EXPECT_OK(hr_wire_run_encode(&run, buffer, bytes, &(struct hr_diag){0}, &again), &diag);
        hr_arena_deinit(&arena);
}

HR_TEST(run_reply_round_trip) {
        const uint64_t outputs[] = {7, UINT64_C(1) << 40};
        struct hr_wire_run_reply reply = {.sequence = UINT64_C(1) << 40,
                                          .output_bytes = outputs,
                                          .output_count = 2,
                                          .queue_ns = 1,
                                          .run_ns = 2,
                                          .slot = 3,
                                          .copied_bytes = 5},
                                 back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0, more = 0;

        hr_arena_init(&arena, 1 << 20);
        HR_EXPECT_OK(hr_wire_run_reply_encode(&reply, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_run_reply_decode(span(bytes), &arena, &diag, &back), &diag);
        HR_EXPECT(back.output_bytes[1] == outputs[1] && back.slot == 3 && back.copied_bytes == 5);
        HR_EXPECT_EQ(back.sequence, UINT64_C(1) << 40);
        HR_EXPECT_EQ(back.trace_bytes + back.expert_hits + back.expert_misses + back.expert_copies +
                             back.expert_bytes,
                     0);
        reply.taps = 11;
        reply.tap_ns = 12;
        reply.trace_bytes = 6;
        reply.expert_misses = 2;
        reply.expert_copies = 4;
        reply.expert_bytes = 8;
        HR_EXPECT_OK(hr_wire_run_reply_encode(&reply, buffer, sizeof buffer, &diag, &more), &diag);
        HR_EXPECT(more > bytes);
        HR_EXPECT_OK(hr_wire_run_reply_decode(span(more), &arena, &diag, &back), &diag);
        HR_EXPECT(back.taps == 11 && back.tap_ns == 12);
        HR_EXPECT(back.trace_bytes == 6 && back.expert_hits == 0 && back.expert_misses == 2);
        HR_EXPECT(back.expert_copies == 4 && back.expert_bytes == 8);
        hr_arena_deinit(&arena);
}

/* nanopb's own encoding of a reply, the reference. */
static size_t reply_reference(const struct hr_wire_run_reply *reply, uint8_t *to, size_t capacity) {
        struct hr_codec_numbers outputs = {reply->output_bytes, reply->output_count, 8};
        headrace_v1_RunReply wire = {
                .output_bytes = hr_codec_put_numbers(&outputs),
                .queue_ns = reply->queue_ns,
                .run_ns = reply->run_ns,
                .slot = reply->slot,
                .taps = reply->taps,
                .tap_ns = reply->tap_ns,
                .trace_bytes = reply->trace_bytes,
                .has_experts = reply->expert_hits || reply->expert_misses,
                .experts = {reply->expert_hits, reply->expert_misses, reply->expert_copies,
                            reply->expert_bytes},
                .copied_bytes = reply->copied_bytes,
                .moves = reply->moves,
                .sequence = reply->sequence,
        };
        struct hr_diag diag = {0};
        size_t bytes = 0;

        hr_codec_text_copy(wire.traceparent, sizeof wire.traceparent, reply->traceparent);
        HR_EXPECT_OK(hr_codec_encode(headrace_v1_RunReply_fields, &wire, to, capacity, &diag,
                                     &bytes),
                     &diag);
        return bytes;
}

/* Any number of bits, often none. */
static uint64_t some(uint64_t *state) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return *state >> 63 ? 0 : *state * UINT64_C(0x9E3779B97F4A7C15) >> (*state >> 40) % 64;
}

HR_TEST(run_replies_are_what_nanopb_writes) {
        static const char *const texts[] = {
                NULL, "", "00-0123-4567-01", "bytes that are no text: \xff",
                "one that is longer than the fifty-five bytes for which there is room"};
        static uint8_t expected[1024];
        uint64_t state = 1, outputs[20];

        for (int i = 0; i < 5000; i++) {
                struct hr_wire_run_reply reply = {
                        .output_bytes = outputs,
                        .output_count = (uint32_t) some(&state) % 21,
                        .queue_ns = some(&state),
                        .run_ns = some(&state),
                        .slot = (uint32_t) some(&state),
                        .taps = (uint32_t) some(&state),
                        .tap_ns = some(&state),
                        .trace_bytes = some(&state),
                        .expert_hits = some(&state),
                        .expert_misses = some(&state),
                        .expert_copies = some(&state),
                        .expert_bytes = some(&state),
                        .copied_bytes = some(&state),
                        .moves = some(&state),
                        .sequence = some(&state),
                        .traceparent = texts[some(&state) % HR_ARRAY_LENGTH(texts)],
                };
                struct hr_diag diag = {0};
                size_t bytes = 0, again = 0, right;

                for (size_t k = 0; k < HR_ARRAY_LENGTH(outputs); k++)
                        outputs[k] = some(&state);
                right = reply_reference(&reply, expected, sizeof expected);
                HR_EXPECT_OK(hr_wire_run_reply_encode(&reply, buffer, right, &diag, &bytes), &diag);
                HR_EXPECT_EQ(bytes, right);
                HR_EXPECT(memcmp(buffer, expected, right) == 0);
                HR_EXPECT_OK(hr_wire_run_reply_encode(&reply, NULL, 0, &diag, &again), &diag);
                HR_EXPECT_EQ(again, right);
                if (right > 0)
                        HR_EXPECT_EQ(hr_wire_run_reply_encode(&reply, buffer, right - 1, &diag,
                                                              &bytes),
                                     HR_E_EXHAUSTED);
        }
}

HR_TEST(fields_out_of_columns) {
        static const uint32_t words[] = {1, UINT32_MAX, 3};
        static const uint64_t longs[] = {UINT64_C(1) << 63};
        const char *texts[] = {"one", "", "\xff"};
        const struct hr_wire_field fields[] = {
                {1, HR_WIRE_NUMBER, NULL, 300}, {2, HR_WIRE_NUMBER, NULL, 0},
                {3, HR_WIRE_TEXT, "text", 0},   {4, HR_WIRE_TEXTS, texts, 3},
                {5, HR_WIRE_BYTES, "abc", 2},   {6, HR_WIRE_WORDS, words, 3},
                {7, HR_WIRE_LONGS, longs, 1},   {8, HR_WIRE_WORDS, NULL, 0},
        };
        static const uint8_t head[] = {0x08, 0xac, 0x02, 0x1a, 4,    't',  'e', 'x', 't',
                                       0x22, 3,    'o',  'n',  'e',  0x22, 0,   0x22, 1,
                                       '?',  0x2a, 2,    'a',  'b',  0x32, 12};
        size_t bytes = 0, again = 0;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_wire_fields_encode(fields, 8, NULL, 0, &diag, &bytes), &diag);
        HR_EXPECT_EQ(bytes, sizeof head + 12 + 10);
        HR_EXPECT_OK(hr_wire_fields_encode(fields, 8, buffer, bytes, &diag, &again), &diag);
        HR_EXPECT_EQ(again, bytes);
        HR_EXPECT(memcmp(buffer, head, sizeof head) == 0);
        HR_EXPECT(memcmp(buffer + sizeof head, words, 12) == 0);
        HR_EXPECT(memcmp(buffer + sizeof head + 12, "\x3a\x08", 2) == 0);
        HR_EXPECT(memcmp(buffer + sizeof head + 14, longs, 8) == 0);
        for (size_t capacity = 0; capacity < bytes; capacity++) {
                hr_diag_clear(&diag);
                HR_EXPECT_EQ(hr_wire_fields_encode(fields, 8, buffer, capacity, &diag, &again),
                             HR_E_EXHAUSTED);
        }
}

HR_TEST(numbers_and_empties) {
        struct hr_diag diag = {0};
        uint64_t value = 0;
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_fixed64_encode(UINT64_MAX, buffer, 64, &diag, &bytes), &diag);
        HR_EXPECT_EQ(bytes, 9);
        HR_EXPECT_OK(hr_wire_fixed64_decode(span(bytes), &diag, &value), &diag);
        HR_EXPECT(value == UINT64_MAX);
        HR_EXPECT_OK(hr_wire_varint_encode(UINT64_MAX, buffer, 64, &diag, &bytes), &diag);
        HR_EXPECT_EQ(bytes, 11);
        HR_EXPECT_OK(hr_wire_varint_decode(span(bytes), &diag, &value), &diag);
        HR_EXPECT(value == UINT64_MAX);
        HR_EXPECT_OK(hr_wire_varint_decode(span(0), &diag, &value), &diag);
        HR_EXPECT_EQ(value, 0);
        HR_EXPECT_OK(hr_wire_empty_decode(span(0), &diag), &diag);
        buffer[0] = 0; /* a tag of zero */
        HR_EXPECT_EQ(hr_wire_empty_decode(span(1), &diag), HR_E_INVALID);
}

HR_TEST(taps_round_trip) {
        struct hr_wire_tap_push push = {UINT32_MAX, UINT32_MAX - 1, UINT64_MAX}, push_back;
        struct hr_wire_tap tap = {UINT64_MAX, 7, true}, tap_back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_tap_push_encode(&push, buffer, HR_WIRE_TAP_PUSH_BYTES_MAX, &diag,
                                             &bytes),
                     &diag);
        HR_EXPECT_OK(hr_wire_tap_push_decode(span(bytes), &diag, &push_back), &diag);
        HR_EXPECT(push_back.tap == push.tap && push_back.tensor == push.tensor &&
                  push_back.bytes == push.bytes);
        HR_EXPECT_OK(hr_wire_tap_encode(&tap, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_tap_decode(span(bytes), &diag, &tap_back), &diag);
        HR_EXPECT(tap_back.run == tap.run && tap_back.tap == 7 && tap_back.stop);
        HR_EXPECT_EQ(hr_wire_tap_decode(span(bytes - 1), &diag, &tap_back), HR_E_INVALID);
}

HR_TEST(traceparents_are_kept_as_they_come) {
        static const char text[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        struct hr_wire_submit submit = {.traceparent = text}, submit_back;
        struct hr_wire_run run = {.handle = 1, .traceparent = text}, run_back;
        struct hr_wire_sequence sequence = {.traceparent = text}, sequence_back;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        size_t bytes = 0;

        hr_arena_init(&arena, 1 << 16);
        HR_EXPECT_OK(hr_wire_submit_encode(&submit, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_submit_decode(span(bytes), &arena, &diag, &submit_back), &diag);
        HR_EXPECT_STREQ(submit_back.traceparent, text);
        HR_EXPECT_OK(hr_wire_sequence_encode(&sequence, buffer, sizeof buffer, &diag, &bytes),
                     &diag);
        HR_EXPECT_OK(hr_wire_sequence_decode(span(bytes), &arena, &diag, &sequence_back), &diag);
        HR_EXPECT_STREQ(sequence_back.traceparent, text);
        HR_EXPECT_OK(hr_wire_run_encode(&run, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_run_decode(span(bytes), &arena, &diag, &run_back), &diag);
        HR_EXPECT_STREQ(run_back.traceparent, text);
        buffer[bytes - 1] = 0xff; /* no text */
        HR_EXPECT_EQ(hr_wire_run_decode(span(bytes), &arena, &diag, &run_back), HR_E_INVALID);
        HR_EXPECT_STREQ(diag.field, "traceparent");
        hr_arena_deinit(&arena);
}

HR_TEST(trace_ask_round_trip) {
        struct hr_wire_trace_ask ask = {UINT64_MAX, 77, true}, back = {0};
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_trace_ask_encode(&ask, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_trace_ask_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT(back.latest_ms == UINT64_MAX && back.spans_max == 77 && back.own);
        HR_EXPECT_EQ(hr_wire_trace_ask_decode(span(bytes - 1), &diag, &back), HR_E_INVALID);
}

/* More states than fit are named as far as they do; the rest of the error is whole. */
HR_TEST(error_names_what_a_stopped_run_has_written) {
        static uint32_t written[HR_WIRE_MESSAGE_BYTES_MAX / 4];
        const struct hr_wire_error_more two = {.written = written, .written_count = 2};
        const struct hr_wire_error_more all = {.written = written,
                                               .written_count = HR_ARRAY_LENGTH(written)};
        struct hr_diag failure = {0}, diag = {0};
        struct hr_wire_error back;
        size_t bytes = 0, few = 0;

        (void) hr_fail_reason(&failure, HR_E_CANCELLED, "TAP_STOP", "the run was stopped");
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(written); i++)
                written[i] = i;
        HR_EXPECT_OK(hr_wire_error_encode(&failure, &two, buffer,
                                          HR_WIRE_MESSAGE_BYTES_MAX, &few),
                     &diag);
        HR_EXPECT_OK(hr_wire_error_encode(&failure, &all, buffer,
                                          HR_WIRE_MESSAGE_BYTES_MAX, &bytes),
                     &diag);
        HR_EXPECT(bytes <= HR_WIRE_MESSAGE_BYTES_MAX &&
                  bytes > HR_WIRE_MESSAGE_BYTES_MAX - HR_WIRE_ERROR_BYTES_MAX);
        HR_EXPECT_OK(hr_wire_error_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT_STREQ(back.reason, "TAP_STOP");
        HR_EXPECT_EQ(back.written_count, HR_WIRE_ERROR_WRITTEN_MAX);
        HR_EXPECT_EQ(back.written_left_out,
                     (HR_WIRE_MESSAGE_BYTES_MAX - HR_WIRE_ERROR_BYTES_MAX) / 4 -
                             HR_WIRE_ERROR_WRITTEN_MAX);
        for (uint32_t i = 0; i < back.written_count; i++)
                HR_EXPECT_EQ(back.written[i], i);
        HR_EXPECT_OK(hr_wire_error_encode(&failure, &two, buffer,
                                          HR_WIRE_MESSAGE_BYTES_MAX, &few),
                     &diag);
        /* Field 13, two packed words: the last ten bytes but what comes after it, nothing. */
        HR_EXPECT(buffer[few - 10] == (13 << 3 | 2) && buffer[few - 9] == 8);
        HR_EXPECT(buffer[few - 8] == 0 && buffer[few - 4] == 1);
        HR_EXPECT_OK(hr_wire_error_decode(span(few), &diag, &back), &diag);
        HR_EXPECT(back.written_count == 2 && back.written_left_out == 0);
        HR_EXPECT(back.written[0] == 0 && back.written[1] == 1);
        /* One by one, as the encoding allows as well: behind the two that are packed. */
        memcpy(buffer + few, (const uint8_t[]){13 << 3 | 5, 9, 0, 0, 0}, 5);
        HR_EXPECT_OK(hr_wire_error_decode(span(few + 5), &diag, &back), &diag);
        HR_EXPECT(back.written_count == 3 && back.written[1] == 1 && back.written[2] == 9);
        buffer[few - 9] = 7; /* no whole number of words */
        HR_EXPECT_EQ(hr_wire_error_decode(span(few - 1), &diag, &back), HR_E_INVALID);
}

HR_TEST(progress_round_trip) {
        struct hr_wire_progress progress = {UINT64_MAX, UINT64_MAX - 1, "fifteen letters and more"};
        struct hr_wire_progress back;
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_progress_encode(&progress, buffer, HR_WIRE_PROGRESS_BYTES_MAX, &diag,
                                             &bytes),
                     &diag);
        HR_EXPECT_EQ(bytes, 9 + 9 + 2 + 15); /* the phase is cut to the wire's cap */
        HR_EXPECT_OK(hr_wire_progress_decode(span(bytes), &diag, &back), &diag);
        HR_EXPECT(back.done_bytes == UINT64_MAX && back.total_bytes == UINT64_MAX - 1);
        HR_EXPECT_EQ(hr_wire_progress_decode(span(bytes - 1), &diag, &back), HR_E_INVALID);
}

HR_TEST(manifest_round_trip) {
        static const uint32_t lengths[] = {3, 0, 5};
        static const uint32_t types[] = {0, 2, 26};
        static const int64_t ne[] = {1, 2, 3, 4, 32, 1, 1, 1, -5, 0, INT64_MAX, 1};
        const struct hr_wire_manifest manifest = {3, lengths, "abcdefgh", 8, types, ne};
        const struct hr_wire_manifest_limits limits = {.tensors_max = 3};
        struct hr_wire_manifest back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        size_t bytes = 0, measured = 0;

        hr_arena_init(&arena, 1 << 20);
        HR_EXPECT_OK(hr_wire_manifest_encode(&manifest, NULL, 0, &diag, &measured), &diag);
        HR_EXPECT_OK(hr_wire_manifest_encode(&manifest, buffer, measured, &diag, &bytes), &diag);
        HR_EXPECT_EQ(bytes, measured);
        HR_EXPECT_OK(hr_wire_manifest_decode(span(bytes), &limits, &arena, &diag, &back), &diag);
        HR_EXPECT_EQ(back.count, 3);
        HR_EXPECT_EQ(back.names_bytes, 8);
        HR_EXPECT_EQ(memcmp(back.names, "abcdefgh", 8), 0);
        HR_EXPECT_EQ(memcmp(back.name_lengths, lengths, sizeof lengths), 0);
        HR_EXPECT_EQ(memcmp(back.types, types, sizeof types), 0);
        HR_EXPECT_EQ(memcmp(back.ne, ne, sizeof ne), 0);
        HR_EXPECT_EQ(hr_wire_manifest_decode(span(bytes),
                                             &(struct hr_wire_manifest_limits){.tensors_max = 2},
                                             &arena, &diag, &back),
                     HR_E_EXHAUSTED);
        HR_EXPECT_EQ(diag.actual, 3);
        hr_arena_deinit(&arena);
}

HR_TEST(manifest_columns_must_agree) {
        const struct hr_wire_manifest_limits limits = {.tensors_max = 100};
        struct hr_wire_manifest back;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        const uint32_t words[] = {1, 1};
        size_t bytes = 0;

        hr_arena_init(&arena, 1 << 20);
        bytes += field(buffer + bytes, 1, words, 8);
        bytes += field(buffer + bytes, 2, "ab", 2);
        bytes += field(buffer + bytes, 3, words, 8);
        HR_EXPECT_EQ(hr_wire_manifest_decode(span(bytes), &limits, &arena, &diag, &back),
                     HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "COLUMN");
        HR_EXPECT_STREQ(diag.field, "ne");
        hr_arena_deinit(&arena);
}

HR_TEST(random_bytes_never_do_harm) {
        uint64_t state = 88172645463325252;
        struct hr_arena arena;

        hr_arena_init(&arena, 1 << 20);
        for (unsigned round = 0; round < 20000; round++) {
                static union {
                        struct hr_wire_hello hello;
                        struct hr_wire_submit submit;
                        struct hr_wire_weights_put put;
                        struct hr_wire_weights_load load;
                        struct hr_wire_run run;
                        struct hr_wire_reserve reserve;
                        struct hr_wire_sequence sequence;
                        struct hr_wire_manifest manifest;
                } any;
                const struct hr_wire_manifest_limits limits = {.tensors_max = 1000};
                struct hr_diag diag = {0};
                size_t bytes = 0;

                do {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        buffer[bytes++] = (uint8_t) state;
                } while (bytes < 200 && (state >> 40) % 50 != 0);
                (void) !hr_wire_hello_decode(span(bytes), &diag, &any.hello);
                (void) !hr_wire_submit_decode(span(bytes), &arena, &diag, &any.submit);
                (void) !hr_wire_weights_put_decode(span(bytes), &arena, &diag, &any.put);
                (void) !hr_wire_weights_load_decode(span(bytes), &arena, &diag, &any.load);
                (void) !hr_wire_run_decode(span(bytes), &arena, &diag, &any.run);
                (void) !hr_wire_sequence_decode(span(bytes), &arena, &diag, &any.sequence);
                (void) !hr_wire_reserve_decode(span(bytes), &arena, &diag, &any.reserve);
                (void) !hr_wire_manifest_decode(span(bytes), &limits, &arena, &diag, &any.manifest);
                hr_arena_reset(&arena);
        }
        hr_arena_deinit(&arena);
}
