/*
 * A RUN without anything unusual is decoded by a reader of its own, every other by nanopb. Both
 * have to say the same of the same bytes: a message is read as it is, and with a field in front
 * that nobody knows, which sends it to nanopb. Messages are put together at random from fields in
 * any order, often enough and in forms that no encoder of ours writes, then cut and damaged.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/codec.h"
#include "tests/harness.h"

#define BYTES_MAX 512
#define UNKNOWN_BYTES 2
#define TRIALS 60000

struct text {
        uint8_t bytes[BYTES_MAX];
        size_t size;
};

static uint64_t state;

static uint64_t draw(uint64_t below) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (state >> 11) % below;
}

static void add_byte(struct text *text, uint64_t byte) {
        if (text->size < BYTES_MAX)
                text->bytes[text->size++] = (uint8_t) byte;
}

/* In more bytes than it needs, now and then. */
static void add_varint(struct text *text, uint64_t value) {
        uint64_t longer = draw(12) == 0 ? draw(11) : 0;

        while (value >= 0x80 || longer > 0) {
                add_byte(text, 0x80U | (value & 0x7FU));
                value >>= 7;
                longer -= longer > 0;
        }
        add_byte(text, value);
}

static uint64_t draw_number(void) {
        static const uint64_t corners[] = {0,         1,          2,         127,       128,
                                           INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};

        return draw(2) ? corners[draw(sizeof corners / sizeof corners[0])]
                       : draw(UINT64_C(1) << 40);
}

static void add_fixed(struct text *text, uint32_t bytes) {
        for (uint32_t i = 0; i < bytes; i++)
                add_byte(text, draw(256));
}

static void add_field(struct text *text) {
        static const uint8_t wire_types[] = {9, 1, 2, 0, 0, 0, 0, 0, 1, 0, 1, 0}; /* of field i */
        uint32_t number = 1 + (uint32_t) draw(draw(20) ? 11 : 15);
        uint32_t type = number < sizeof wire_types && draw(20) ? wire_types[number]
                                                               : (uint32_t) draw(6);

        if (draw(25) == 0) { /* its number has two bytes */
                number = 72;
                type = 2;
        }
        add_varint(text, (uint64_t) number << 3 | type);
        if (type == 0)
                add_varint(text, number == 5 && draw(2) ? draw(100) : draw_number());
        else if (type == 1)
                add_fixed(text, 8);
        else if (type == 2) {
                bool is_whole = number == 2 && draw(4);
                uint32_t bytes = is_whole ? 4 * (uint32_t) draw(5) : (uint32_t) draw(9);

                add_varint(text, bytes);
                add_fixed(text, bytes);
        } else if (type == 5)
                add_fixed(text, 4);
}

static void damage(struct text *text) {
        if (text->size > 0 && draw(4) == 0)
                text->bytes[draw(text->size)] = (uint8_t) draw(256);
        if (draw(4) == 0)
                text->size = draw(text->size + 1);
}

static bool same_text(const char *a, const char *b) {
        return a && b ? strcmp(a, b) == 0 : a == b;
}

static void expect_same(const struct hr_wire_run *a, const struct hr_wire_run *b) {
        HR_EXPECT_EQ(a->handle, b->handle);
        HR_EXPECT_EQ(a->output_count, b->output_count);
        HR_EXPECT(a->output_count == 0 ||
                  memcmp(a->outputs, b->outputs, a->output_count * sizeof *a->outputs) == 0);
        HR_EXPECT_EQ(a->no_outputs, b->no_outputs);
        HR_EXPECT_EQ(a->input_bytes, b->input_bytes);
        HR_EXPECT_EQ(a->priority, b->priority);
        HR_EXPECT_EQ(a->observe, b->observe);
        HR_EXPECT_EQ(a->trace, b->trace);
        HR_EXPECT_EQ(a->input_region, b->input_region);
        HR_EXPECT_EQ(a->input_offset, b->input_offset);
        HR_EXPECT_EQ(a->output_region, b->output_region);
        HR_EXPECT_EQ(a->output_offset, b->output_offset);
        HR_EXPECT(same_text(a->traceparent, b->traceparent));
}

/* Returns whether it was a message at all. The bytes lie in memory of exactly their size. */
static bool read_both(const struct text *text) {
        uint8_t *as_it_is = malloc(text->size + 1);
        uint8_t *unknown_first = malloc(text->size + UNKNOWN_BYTES);
        struct hr_wire_run quick = {0}, slow = {0};
        struct hr_arena arena;
        hr_status status;

        hr_arena_init(&arena, 0);
        HR_EXPECT(as_it_is && unknown_first);
        memcpy(as_it_is + 1, text->bytes, text->size);
        unknown_first[0] = 15 << 3;
        unknown_first[1] = 0;
        memcpy(unknown_first + UNKNOWN_BYTES, text->bytes, text->size);
        status = hr_wire_run_decode((struct hr_wire_span){as_it_is + 1, text->size}, &arena, NULL,
                                    &quick);
        HR_EXPECT_EQ(status,
                     hr_wire_run_decode(
                             (struct hr_wire_span){unknown_first, text->size + UNKNOWN_BYTES},
                             &arena, NULL, &slow));
        if (status == HR_OK)
                expect_same(&quick, &slow);
        hr_arena_deinit(&arena);
        free(as_it_is);
        free(unknown_first);
        return status == HR_OK;
}

HR_TEST(both_readers_say_the_same) {
        uint32_t good = 0;

        state = UINT64_C(0x9E3779B97F4A7C15);
        for (uint32_t trial = 0; trial < TRIALS; trial++) {
                struct text text = {.size = 0};

                for (uint64_t fields = draw(7); fields > 0; fields--)
                        add_field(&text);
                damage(&text);
                good += read_both(&text);
        }
        HR_EXPECT(good > TRIALS / 10 && good < TRIALS - TRIALS / 10);
}

/* Field by field, the values that the quick reader takes and those next to them. */
HR_TEST(corners_of_every_field) {
        static const uint8_t tags[] = {0x18, 0x20, 0x28, 0x30, 0x38, 0x48, 0x58};
        static const uint64_t values[] = {0,         1,
                                          2,         INT32_MAX,
                                          1U << 31,  UINT32_MAX,
                                          INT64_MAX, UINT64_C(1) << 63,
                                          UINT64_MAX};

        state = 1;
        for (size_t t = 0; t < sizeof tags; t++) {
                for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
                        struct text text = {.size = 0};
                        uint64_t value = values[v];

                        add_byte(&text, tags[t]);
                        for (; value >= 0x80; value >>= 7)
                                add_byte(&text, 0x80U | (value & 0x7FU));
                        add_byte(&text, value);
                        (void) read_both(&text);
                }
        }
}
