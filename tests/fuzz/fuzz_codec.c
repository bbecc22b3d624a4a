/*
 * The first byte chooses a message, the rest are its bytes. What is accepted holds what the codec
 * promises: terminated strings of valid text, lists inside the arena, and it encodes and decodes
 * again.
 */
#include <string.h>

#include "proto/codec.h"
#include "proto/fields.h"
#include "proto/operate.h"
#include "tests/fuzz/plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static uint8_t buffer[1 << 18];

static void check_text(const char *text, size_t capacity) {
        HR_ASSERT(strnlen(text, capacity) < capacity);
}

static void check_rules(const struct hr_wire_rule *rules, uint32_t count) {
        for (uint32_t i = 0; i < count; i++) {
                check_text(rules[i].pattern, 4096);
                check_text(rules[i].device, 4096);
        }
}

static void hello(struct hr_wire_span message) {
        struct hr_wire_hello hello, again;
        size_t bytes = 0;

        if (hr_wire_hello_decode(message, NULL, &hello) != HR_OK)
                return;
        HR_ASSERT(hello.feature_count <= HR_WIRE_FEATURES_MAX);
        for (uint32_t i = 0; i < hello.feature_count; i++)
                check_text(hello.features[i], sizeof hello.features[i]);
        check_text(hello.client_name, sizeof hello.client_name);
        check_text(hello.session_name, sizeof hello.session_name);
        HR_ASSERT(hr_wire_hello_encode(&hello, buffer, sizeof buffer, NULL, &bytes) == HR_OK);
        HR_ASSERT(hr_wire_hello_decode((struct hr_wire_span){buffer, bytes}, NULL, &again) ==
                  HR_OK);
        HR_ASSERT(again.protocol_max == hello.protocol_max);
        HR_PLANT(hello.protocol_min > 1000);
        HR_ASSERT(strcmp(again.client_name, hello.client_name) == 0);
}

static void submit(struct hr_wire_span message, struct hr_arena *arena) {
        struct hr_wire_submit submit, again;
        size_t bytes = 0;

        if (hr_wire_submit_decode(message, arena, NULL, &submit) != HR_OK)
                return;
        check_rules(submit.pins, submit.pin_count);
        check_rules(submit.planned, submit.planned_count);
        HR_ASSERT(submit.rules <= 1);
        HR_ASSERT(hr_wire_submit_encode(&submit, buffer, sizeof buffer, NULL, &bytes) == HR_OK);
        HR_ASSERT(hr_wire_submit_decode((struct hr_wire_span){buffer, bytes}, arena, NULL,
                                        &again) == HR_OK);
        HR_ASSERT(again.weight_count == submit.weight_count);
        HR_ASSERT(again.pin_count == submit.pin_count);
        HR_ASSERT(again.tap_count == submit.tap_count && again.debug == submit.debug);
        HR_ASSERT(again.planned_count == submit.planned_count);
}

static void reserve(struct hr_wire_span message, struct hr_arena *arena) {
        struct hr_wire_reserve reserve, again;
        size_t bytes = 0;

        if (hr_wire_reserve_decode(message, arena, NULL, &reserve) != HR_OK ||
            hr_wire_reserve_encode(&reserve, buffer, sizeof buffer, NULL, &bytes) != HR_OK)
                return;
        HR_ASSERT(hr_wire_reserve_decode((struct hr_wire_span){buffer, bytes}, arena, NULL,
                                         &again) != HR_E_INVALID);
}

static void sequence(struct hr_wire_span message, struct hr_arena *arena) {
        struct hr_wire_sequence sequence, again;
        size_t bytes = 0;

        if (hr_wire_sequence_decode(message, arena, NULL, &sequence) != HR_OK)
                return;
        HR_ASSERT(hr_wire_sequence_encode(&sequence, buffer, sizeof buffer, NULL, &bytes) == HR_OK);
        HR_ASSERT(hr_wire_sequence_decode((struct hr_wire_span){buffer, bytes}, arena, NULL,
                                          &again) != HR_E_INVALID);
}

static void run(struct hr_wire_span message, struct hr_arena *arena) {
        struct hr_wire_run run, again;
        size_t bytes = 0;

        if (hr_wire_run_decode(message, arena, NULL, &run) != HR_OK)
                return;
        HR_ASSERT(hr_wire_run_encode(&run, buffer, sizeof buffer, NULL, &bytes) == HR_OK);
        HR_ASSERT(hr_wire_run_decode((struct hr_wire_span){buffer, bytes}, arena, NULL, &again) ==
                  HR_OK);
        HR_ASSERT(again.handle == run.handle && again.output_count == run.output_count);
        HR_ASSERT(again.observe == run.observe);
}

static void weights(struct hr_wire_span message, struct hr_arena *arena) {
        static struct hr_wire_weights_put put;
        static struct hr_wire_weights_load load;
        struct hr_wire_state_restore restore;
        struct hr_wire_state_alloc alloc;

        if (hr_wire_weights_put_decode(message, arena, NULL, &put) == HR_OK) {
                check_text(put.name, sizeof put.name);
                check_rules(put.rules, put.rule_count);
        }
        if (hr_wire_weights_load_decode(message, arena, NULL, &load) == HR_OK) {
                check_text(load.path, sizeof load.path);
                check_rules(load.rules, load.rule_count);
        }
        if (hr_wire_state_alloc_decode(message, arena, NULL, &alloc) == HR_OK)
                check_rules(alloc.rules, alloc.rule_count);
        if (hr_wire_state_restore_decode(message, arena, NULL, &restore) == HR_OK)
                check_rules(restore.rules, restore.rule_count);
}

static void manifest(struct hr_wire_span message, struct hr_arena *arena) {
        static const struct hr_wire_manifest_limits limits = {.tensors_max = 10000};
        struct hr_wire_manifest manifest, again;
        size_t bytes = 0;

        if (hr_wire_manifest_decode(message, &limits, arena, NULL, &manifest) != HR_OK)
                return;
        HR_ASSERT(manifest.count <= limits.tensors_max);
        if (hr_wire_manifest_encode(&manifest, buffer, sizeof buffer, NULL, &bytes) != HR_OK)
                return;
        HR_ASSERT(hr_wire_manifest_decode((struct hr_wire_span){buffer, bytes}, &limits, arena,
                                          NULL, &again) == HR_OK);
        HR_ASSERT(again.count == manifest.count && again.names_bytes == manifest.names_bytes);
}

static void small(struct hr_wire_span message, struct hr_arena *arena) {
        struct hr_wire_hello_reply hello_reply;
        struct hr_wire_submit_reply submit_reply;
        struct hr_wire_state_range range;
        struct hr_wire_run_reply run_reply;
        struct hr_wire_tap_push push;
        struct hr_wire_error error;
        struct hr_wire_trace_ask ask;
        struct hr_wire_tap tap;
        uint64_t number;

        (void) !hr_wire_empty_decode(message, NULL);
        (void) !hr_wire_fixed64_decode(message, NULL, &number);
        (void) !hr_wire_varint_decode(message, NULL, &number);
        (void) !hr_wire_state_range_decode(message, NULL, &range);
        (void) !hr_wire_hello_reply_decode(message, NULL, &hello_reply);
        (void) !hr_wire_submit_reply_decode(message, NULL, &submit_reply);
        (void) !hr_wire_run_reply_decode(message, arena, NULL, &run_reply);
        (void) !hr_wire_tap_push_decode(message, NULL, &push);
        (void) !hr_wire_tap_decode(message, NULL, &tap);
        (void) !hr_wire_trace_ask_decode(message, NULL, &ask);
        if (hr_wire_error_decode(message, NULL, &error) == HR_OK) {
                check_text(error.reason, sizeof error.reason);
                check_text(error.words, sizeof error.words);
                HR_ASSERT(error.written_count <= HR_WIRE_ERROR_WRITTEN_MAX);
                HR_ASSERT(error.written_left_out == 0 ||
                          error.written_count == HR_WIRE_ERROR_WRITTEN_MAX);
                HR_ASSERT((error.written_count + (uint64_t) error.written_left_out) * 4 <=
                          message.size);
        }
}

/* What is decoded encodes, and decodes to what encodes to the same bytes. */
#define AGAIN(name)                                                                                \
        do {                                                                                       \
                static struct hr_wire_##name one, other;                                           \
                size_t count = 0, again = 0;                                                       \
                                                                                                   \
                if (hr_wire_##name##_decode(message, NULL, &one) != HR_OK)                         \
                        break;                                                                     \
                HR_ASSERT(hr_wire_##name##_encode(&one, buffer, sizeof buffer, NULL, &count) ==    \
                          HR_OK);                                                                  \
                HR_ASSERT(hr_wire_##name##_decode((struct hr_wire_span){buffer, count}, NULL,      \
                                                  &other) == HR_OK);                               \
                HR_ASSERT(hr_wire_##name##_encode(&other, second, sizeof second, NULL, &again) ==  \
                          HR_OK);                                                                  \
                HR_ASSERT(count == again && memcmp(buffer, second, count) == 0);                   \
        } while (0)

#define LIST_AGAIN(name)                                                                           \
        do {                                                                                       \
                const struct hr_wire_##name *one, *other;                                          \
                uint32_t one_count, other_count;                                                   \
                size_t count = 0, again = 0;                                                       \
                                                                                                   \
                if (hr_wire_##name##s_decode(message, arena, NULL, &one, &one_count) != HR_OK ||   \
                    hr_wire_##name##s_encode(one, one_count, buffer, sizeof buffer, NULL,          \
                                             &count) != HR_OK ||                                   \
                    hr_wire_##name##s_decode((struct hr_wire_span){buffer, count}, arena, NULL,    \
                                             &other, &other_count) != HR_OK)                       \
                        break;                                                                     \
                HR_ASSERT(one_count == other_count);                                               \
                HR_ASSERT(hr_wire_##name##s_encode(other, other_count, second, sizeof second,      \
                                                   NULL, &again) == HR_OK);                        \
                HR_ASSERT(count == again && memcmp(buffer, second, count) == 0);                   \
        } while (0)

/* What lists of the client's side say lies in the arena, whole. */
static void replies(struct hr_wire_span message, struct hr_arena *arena) {
        const struct hr_wire_set_info *sets;
        const struct hr_wire_device *devices;
        struct hr_wire_sequence_reply sequence;
        uint64_t handle, sum = 0;
        uint32_t count, state;
        size_t bytes = 0;

        (void) !hr_wire_reserve_reply_decode(message, NULL, &handle);
        (void) !hr_wire_weights_query_reply_decode(message, arena, NULL, &state);
        if (hr_wire_sequence_reply_decode(message, arena, NULL, &sequence) == HR_OK) {
                for (uint32_t i = 0; i < sequence.step_count; i++)
                        for (uint32_t k = 0; k < sequence.steps[i].output_count; k++)
                                sum += sequence.steps[i].output_bytes[k];
                HR_ASSERT(sum == 0 || sequence.step_count > 0);
        }
        if (hr_wire_sets_decode(message, arena, NULL, &sets, &count) == HR_OK) {
                for (uint32_t i = 0; i < count; i++) {
                        check_text(sets[i].name, message.size + 1);
                        check_text(sets[i].source, message.size + 1);
                }
                HR_ASSERT(hr_wire_sets_encode(sets, count, NULL, 0, NULL, &bytes) == HR_OK);
        }
        if (hr_wire_devices_reply_decode(message, arena, NULL, &devices, &count) == HR_OK) {
                for (uint32_t i = 0; i < count; i++)
                        check_text(devices[i].name, message.size + 1);
        }
}

static void query(struct hr_wire_span message, struct hr_arena *arena) {
        const uint8_t *digests;
        uint32_t count;

        if (hr_wire_weights_query_decode(message, arena, NULL, &digests, &count) != HR_OK)
                return;
        HR_ASSERT((uint64_t) count * HR_WIRE_DIGEST_BYTES <= message.size);
        for (uint32_t i = 0; i < count; i++) {
                const uint8_t *digest = digests + (size_t) i * HR_WIRE_DIGEST_BYTES;
                const uint8_t *again;
                uint32_t one;
                size_t bytes = 0;

                HR_ASSERT(hr_wire_weights_query_encode(digest, buffer, sizeof buffer, NULL,
                                                       &bytes) == HR_OK);
                HR_ASSERT(hr_wire_weights_query_decode((struct hr_wire_span){buffer, bytes}, arena,
                                                       NULL, &again, &one) != HR_E_INVALID);
        }
}

static void credit(struct hr_wire_span message) {
        uint64_t bytes, offset, bytes_again, offset_again;
        size_t encoded = 0;

        if (hr_wire_credit_decode(message, NULL, &bytes, &offset) != HR_OK)
                return;
        HR_ASSERT(hr_wire_credit_encode(bytes, offset, buffer, sizeof buffer, NULL, &encoded) ==
                  HR_OK);
        HR_ASSERT(hr_wire_credit_decode((struct hr_wire_span){buffer, encoded}, NULL, &bytes_again,
                                        &offset_again) == HR_OK);
        HR_ASSERT(bytes_again == bytes && offset_again == offset);
}

static void operate(struct hr_wire_span message, struct hr_arena *arena) {
        static uint8_t second[sizeof buffer];
        struct hr_wire_field fields[] = {
                {HR_WIRE_EXPLAIN_RULES, HR_WIRE_TEXT, NULL, 0},
                {HR_WIRE_EXPLAIN_NODE_COUNT, HR_WIRE_NUMBER, NULL, 0},
                {HR_WIRE_EXPLAIN_DEVICE_NAME, HR_WIRE_TEXTS, NULL, 0},
                {HR_WIRE_EXPLAIN_SPLIT_DEVICE, HR_WIRE_WORDS, NULL, 0},
                {HR_WIRE_EXPLAIN_DEVICE_COMPUTE_BYTES, HR_WIRE_LONGS, NULL, 0},
        };
        struct hr_wire_health health;

        AGAIN(status);
        AGAIN(reload);
        AGAIN(drained);
        AGAIN(evict);
        AGAIN(evicted);
        AGAIN(page);
        AGAIN(explain);
        LIST_AGAIN(session);
        LIST_AGAIN(plan);
        LIST_AGAIN(quota);
        LIST_AGAIN(stat);
        AGAIN(progress);
        AGAIN(region_add);
        if (hr_wire_health_decode(message, arena, NULL, &health) == HR_OK) {
                check_text(health.words, sizeof health.words);
                for (uint32_t i = 0; i < health.device_count; i++)
                        check_text(health.devices[i].device, sizeof health.devices[i].device);
        }
        if (hr_wire_fields_decode(message, arena, NULL, fields, HR_ARRAY_LENGTH(fields)) != HR_OK)
                return;
        HR_ASSERT(fields[0].data && strlen(fields[0].data) <= message.size);
        for (uint64_t i = 0; i < fields[2].count; i++)
                check_text(((const char *const *) fields[2].data)[i], message.size + 1);
        HR_ASSERT(fields[3].count * 4 <= message.size && fields[4].count * 8 <= message.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        struct hr_wire_span message = {bytes + 1, size - 1};
        struct hr_arena arena;

        if (size == 0)
                return 0;
        hr_arena_init(&arena, 1 << 20);
        switch (bytes[0] % 7) {
        case 0:
                hello(message);
                break;
        case 1:
                submit(message, &arena);
                reserve(message, &arena);
                break;
        case 2:
                run(message, &arena);
                sequence(message, &arena);
                break;
        case 3:
                weights(message, &arena);
                query(message, &arena);
                break;
        case 4:
                manifest(message, &arena);
                break;
        case 6:
                operate(message, &arena);
                break;
        default:
                small(message, &arena);
                credit(message);
                replies(message, &arena);
                break;
        }
        hr_arena_deinit(&arena);
        return 0;
}
