/* Messages of who runs the daemon: every field there and back, texts that are none, fields by
 * number. */
#include "proto/operate.h"

#include "proto/fields.h"
#include "tests/harness.h"

static uint8_t buffer[HR_WIRE_MESSAGE_BYTES_MAX];

/* Fills a struct from its list: a number of its own for each field, a text that ends with one. */
static uint64_t next_number;

#define FILL_NUMBER(type, name) to->name = (type) ++next_number;
#define FILL_TEXT(name, bytes)                                                                     \
        (void) snprintf(to->name, bytes, "%s%llu", #name,                                          \
                        (unsigned long long) ++next_number % 1000);
#define SAME_NUMBER(type, name) HR_EXPECT_EQ(to->name, from->name);
#define SAME_TEXT(name, bytes) HR_EXPECT_STREQ(to->name, from->name);

#define ROUND_TRIP(name, LIST)                                                                     \
        HR_TEST(name##_round_trip) {                                                               \
                static struct hr_wire_##name sent, back;                                           \
                struct hr_wire_##name *to = &sent, *from = &sent;                                  \
                struct hr_diag diag = {0};                                                         \
                size_t bytes = 0;                                                                  \
                                                                                                   \
                LIST(FILL_NUMBER, FILL_TEXT)                                                       \
                HR_EXPECT_OK(hr_wire_##name##_encode(&sent, buffer, sizeof buffer, &diag, &bytes), \
                             &diag);                                                               \
                HR_EXPECT_OK(hr_wire_##name##_decode((struct hr_wire_span){buffer, bytes}, &diag,  \
                                                     &back),                                       \
                             &diag);                                                               \
                to = &back;                                                                        \
                LIST(SAME_NUMBER, SAME_TEXT)                                                       \
                HR_EXPECT_EQ(hr_wire_##name##_encode(&sent, buffer, bytes - 1, &diag, &bytes),     \
                             HR_E_EXHAUSTED);                                                      \
        }

#define EXPLAIN_LIST(NUMBER, TEXT)                                                                 \
        NUMBER(uint64_t, handle) NUMBER(uint64_t, session) NUMBER(uint32_t, graph)
#define PAGE_LIST(NUMBER, TEXT) NUMBER(uint64_t, first) NUMBER(uint32_t, second)

ROUND_TRIP(status, HR_WIRE_STATUS_LIST)
ROUND_TRIP(reload, HR_WIRE_RELOAD_LIST)
ROUND_TRIP(drained, HR_WIRE_DRAIN_LIST)
ROUND_TRIP(evict, HR_WIRE_EVICT_LIST)
ROUND_TRIP(evicted, HR_WIRE_EVICTED_LIST)
ROUND_TRIP(page, PAGE_LIST)
ROUND_TRIP(explain, EXPLAIN_LIST)

#define LIST_ROUND_TRIP(name, LIST)                                                                \
        HR_TEST(name##s_round_trip) {                                                              \
                static struct hr_wire_##name sent[3];                                              \
                const struct hr_wire_##name *back = NULL;                                          \
                struct hr_diag diag = {0};                                                         \
                struct hr_arena arena;                                                             \
                uint32_t count = 0;                                                                \
                size_t bytes = 0, measured = 0;                                                    \
                                                                                                   \
                hr_arena_init(&arena, 0);                                                          \
                for (int i = 0; i < 3; i++) {                                                      \
                        struct hr_wire_##name *to = &sent[i];                                      \
                                                                                                   \
                        LIST(FILL_NUMBER, FILL_TEXT)                                               \
                }                                                                                  \
                HR_EXPECT_OK(hr_wire_##name##s_encode(sent, 3, NULL, 0, &diag, &measured), &diag); \
                HR_EXPECT_OK(hr_wire_##name##s_encode(sent, 3, buffer, measured, &diag, &bytes),   \
                             &diag);                                                               \
                HR_EXPECT_EQ(bytes, measured);                                                     \
                HR_EXPECT_OK(hr_wire_##name##s_decode((struct hr_wire_span){buffer, bytes},        \
                                                      &arena, &diag, &back, &count),               \
                             &diag);                                                               \
                HR_EXPECT_EQ(count, 3);                                                            \
                for (uint32_t i = 0; i < count; i++) {                                             \
                        const struct hr_wire_##name *to = &back[i], *from = &sent[i];              \
                                                                                                   \
                        LIST(SAME_NUMBER, SAME_TEXT)                                               \
                }                                                                                  \
                hr_arena_deinit(&arena);                                                           \
                hr_arena_init(&arena, sizeof sent[0]);                                             \
                HR_EXPECT_EQ(hr_wire_##name##s_decode((struct hr_wire_span){buffer, bytes},        \
                                                      &arena, &diag, &back, &count),               \
                             HR_E_EXHAUSTED);                                                      \
                hr_arena_deinit(&arena);                                                           \
        }

LIST_ROUND_TRIP(session, HR_WIRE_SESSION_LIST)
LIST_ROUND_TRIP(plan, HR_WIRE_PLAN_LIST)

HR_TEST(quotas_round_trip) {
        static struct hr_wire_quota sent[2];
        const struct hr_wire_quota *back = NULL;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        uint32_t count = 0;
        size_t bytes = 0;

        hr_arena_init(&arena, 0);
        sent[0].weight = 7;
        sent[0].item_count = HR_WIRE_QUOTA_ITEMS_MAX;
        for (uint32_t i = 0; i < HR_WIRE_QUOTA_ITEMS_MAX; i++) {
                (void) snprintf(sent[0].items[i].what, sizeof sent[0].items[i].what, "kind %u", i);
                sent[0].items[i].held = i;
                sent[0].items[i].limit = UINT64_MAX - i;
        }
        strcpy(sent[1].principal, "other");
        HR_EXPECT_OK(hr_wire_quotas_encode(sent, 2, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_quotas_decode((struct hr_wire_span){buffer, bytes}, &arena, &diag,
                                           &back, &count),
                     &diag);
        HR_EXPECT_EQ(count, 2);
        HR_EXPECT_EQ(back[0].item_count, HR_WIRE_QUOTA_ITEMS_MAX);
        HR_EXPECT_STREQ(back[0].items[5].what, "kind 5");
        HR_EXPECT_EQ(back[0].items[23].limit, UINT64_MAX - 23);
        HR_EXPECT_STREQ(back[1].principal, "other");
        hr_arena_deinit(&arena);
}

HR_TEST(health_round_trip) {
        const struct hr_wire_device_health devices[2] = {
                {.device = "cuda0", .health = "lost", .required = true, .failures = 3},
                {.device = "cpu0", .health = "ok", .age_ms = 5, .beats = 9},
        };
        const struct hr_wire_health sent = {
                .live = true, .degraded = true, .words = "a device is lost", .devices = devices,
                .device_count = 2};
        struct hr_wire_health back;
        struct hr_diag diag = {0};
        struct hr_arena arena;
        size_t bytes = 0;

        hr_arena_init(&arena, 0);
        HR_EXPECT_OK(hr_wire_health_encode(&sent, buffer, sizeof buffer, &diag, &bytes), &diag);
        HR_EXPECT_OK(hr_wire_health_decode((struct hr_wire_span){buffer, bytes}, &arena, &diag,
                                           &back),
                     &diag);
        HR_EXPECT(back.live && !back.ready && back.degraded);
        HR_EXPECT_EQ(back.device_count, 2);
        HR_EXPECT_STREQ(back.devices[0].health, "lost");
        HR_EXPECT_EQ(back.devices[1].beats, 9);
        hr_arena_deinit(&arena);
}

/* `what` of Evict: too long, no UTF-8, a NUL inside, and what is no text at all. */
HR_TEST(texts_that_are_none) {
        static const struct {
                const char *bytes;
                size_t size;
                const char *reason;
        } rows[] = {
                {"\x0a\x10xxxxxxxxxxxxxxxx", 18, "DECODE"}, {"\x0a\x02\xff\xfe", 4, "UTF8"},
                {"\x0a\x03" "a\0b", 5, "UTF8"},             {"\x08\x05", 2, "DECODE"},
                {"\x0a\x05" "ab", 4, "DECODE"},             {"\x0a", 1, "DECODE"},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++) {
                const struct hr_wire_span message = {(const uint8_t *) rows[i].bytes, rows[i].size};
                struct hr_wire_evict evict;
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(hr_wire_evict_decode(message, &diag, &evict), HR_E_INVALID);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), rows[i].reason);
        }
}

HR_TEST(fields_by_number) {
        static const uint32_t words[3] = {1, 2, 3};
        static const uint64_t longs[2] = {UINT64_MAX, 5};
        static const char *const texts[2] = {"one", "two \xc3\xa9"};
        const struct hr_wire_field sent[] = {
                {1, HR_WIRE_TEXT, "rules", 0}, {2, HR_WIRE_NUMBER, NULL, 77},
                {18, HR_WIRE_TEXTS, texts, 2}, {35, HR_WIRE_WORDS, words, 3},
                {36, HR_WIRE_LONGS, longs, 2}, {40, HR_WIRE_BYTES, "abc", 3},
        };
        struct hr_wire_field back[] = {
                {36, HR_WIRE_LONGS, NULL, 0}, {18, HR_WIRE_TEXTS, NULL, 0},
                {35, HR_WIRE_WORDS, NULL, 0}, {2, HR_WIRE_NUMBER, NULL, 0},
                {1, HR_WIRE_TEXT, NULL, 0},   {9, HR_WIRE_TEXT, NULL, 0},
                {8, HR_WIRE_TEXTS, NULL, 0},
        };
        struct hr_diag diag = {0};
        struct hr_arena arena;
        size_t bytes = 0;

        hr_arena_init(&arena, 0);
        HR_EXPECT_OK(hr_wire_fields_encode(sent, HR_ARRAY_LENGTH(sent), buffer, sizeof buffer,
                                           &diag, &bytes),
                     &diag);
        HR_EXPECT_OK(hr_wire_fields_decode((struct hr_wire_span){buffer, bytes}, &arena, &diag,
                                           back, HR_ARRAY_LENGTH(back)),
                     &diag);
        HR_EXPECT_EQ(back[0].count, 2);
        HR_EXPECT_EQ(((const uint64_t *) back[0].data)[0], UINT64_MAX);
        HR_EXPECT_STREQ(((const char *const *) back[1].data)[1], "two \xc3\xa9");
        HR_EXPECT_EQ(((const uint32_t *) back[2].data)[2], 3);
        HR_EXPECT_EQ(back[3].count, 77);
        HR_EXPECT_STREQ((const char *) back[4].data, "rules");
        HR_EXPECT_STREQ((const char *) back[5].data, "");
        HR_EXPECT_EQ(back[6].count, 0);
        for (size_t cut = 1; cut < bytes; cut++) /* whole, or refused */
                (void) !hr_wire_fields_decode((struct hr_wire_span){buffer, cut}, &arena, &diag,
                                              back, HR_ARRAY_LENGTH(back));
        back[0].number = 35; /* words are no longs: three of them are 12 bytes */
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_wire_fields_decode((struct hr_wire_span){buffer, bytes}, &arena, &diag,
                                           back, 1),
                     HR_E_INVALID);
        hr_arena_deinit(&arena);
}
