/* Headers: round trip, every rule, every single bit flipped; the checksum against known values. */
#include "proto/frame.h"

#include "tests/harness.h"

static const struct hr_frame_limits limits = {
        .message_bytes_max = 65536,
        .body_bytes_max = 1 << 20,
        .fds_max = 16,
};

static const struct hr_frame_header sample = {
        .type = HR_FRAME_RUN,
        .flags = HR_FRAME_MORE | HR_FRAME_NOREPLY,
        .request_id = UINT64_C(0x0123456789ABCDEF),
        .message_bytes = 0x1234,
        .body_bytes = 0x000ABCDE,
        .timeout_ms = 0xDEADBEEF,
};

/* A header with a right checksum, whatever else is wrong with it. */
static void seal(uint8_t bytes[HR_FRAME_HEADER_BYTES]) {
        uint32_t crc = hr_crc32c(bytes, 28);

        for (int i = 0; i < 4; i++)
                bytes[28 + i] = (uint8_t) (crc >> (8 * i));
}

static void expect_reason(const uint8_t *bytes, const struct hr_frame_limits *at_most,
                          const char *reason) {
        struct hr_frame_header header = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(hr_frame_header_decode(bytes, at_most, &diag, &header), HR_E_PROTOCOL);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), reason);
        HR_EXPECT_EQ(header.type, 0); /* nothing written */
        HR_EXPECT(diag.words[0] != '\0');
}

HR_TEST(crc_known_values) {
        static const uint8_t zeros[32] = {0};
        uint8_t ones[32], rising[32];

        memset(ones, 0xFF, sizeof ones);
        for (int i = 0; i < 32; i++)
                rising[i] = (uint8_t) i;
        /* RFC 3720, B.4 */
        HR_EXPECT_EQ(hr_crc32c(zeros, 32), 0x8A9136AA);
        HR_EXPECT_EQ(hr_crc32c(ones, 32), 0x62A8AB43);
        HR_EXPECT_EQ(hr_crc32c(rising, 32), 0x46DD794E);
        HR_EXPECT_EQ(hr_crc32c("123456789", 9), 0xE3069283);
        HR_EXPECT_EQ(hr_crc32c("", 0), 0);
}

HR_TEST(crc_both_ways_agree) {
        uint8_t bytes[257];

        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t) (i * 131 + 7);
        for (size_t size = 0; size <= sizeof bytes; size++)
                HR_EXPECT_EQ(hr_crc32c(bytes, size), hr_crc32c_with(false, bytes, size));
}

HR_TEST(header_round_trip) {
        uint8_t bytes[HR_FRAME_HEADER_BYTES];
        struct hr_frame_header back;
        struct hr_diag diag = {0};

        hr_frame_header_encode(&sample, bytes);
        HR_EXPECT_OK(hr_frame_header_decode(bytes, &limits, &diag, &back), &diag);
        HR_EXPECT_EQ(back.type, sample.type);
        HR_EXPECT_EQ(back.flags, sample.flags);
        HR_EXPECT_EQ(back.n_fds, 0);
        HR_EXPECT(back.request_id == sample.request_id);
        HR_EXPECT_EQ(back.message_bytes, sample.message_bytes);
        HR_EXPECT_EQ(back.body_bytes, sample.body_bytes);
        HR_EXPECT_EQ(back.timeout_ms, sample.timeout_ms);
}

HR_TEST(header_is_laid_out_as_documented) {
        static const uint8_t expected[28] = {
                'H',  'R',  1,    96,   10, 0, 0,    0,    0xEF, 0xCD, 0xAB, 0x89, 0x67, 0x45,
                0x23, 0x01, 0x34, 0x12, 0,  0, 0xDE, 0xBC, 0x0A, 0,    0xEF, 0xBE, 0xAD, 0xDE,
        };
        uint8_t bytes[HR_FRAME_HEADER_BYTES];

        hr_frame_header_encode(&sample, bytes);
        HR_EXPECT_EQ(memcmp(bytes, expected, sizeof expected), 0);
}

HR_TEST(header_every_bit_flipped_is_refused) {
        uint8_t bytes[HR_FRAME_HEADER_BYTES];

        for (unsigned bit = 0; bit < HR_FRAME_HEADER_BYTES * 8; bit++) {
                const char *reason = bit < 16   ? "BAD_MAGIC"
                                     : bit < 24 ? "BAD_VERSION"
                                                : "BAD_HEADER_CRC";

                hr_frame_header_encode(&sample, bytes);
                bytes[bit / 8] ^= (uint8_t) (1U << (bit % 8));
                expect_reason(bytes, &limits, reason);
        }
}

HR_TEST(header_rules) {
        static const struct {
                const char *reason;
                unsigned offset;
                uint8_t value;
        } rules[] = {
                {"BAD_TYPE", 3, 0},           {"BAD_FLAGS", 4, 32},
                {"BAD_FLAGS", 5, 1},          {"BAD_FDS", 6, 1}, /* without the flag */
                {"BAD_FDS", 4, HR_FRAME_FDS},                    /* without descriptors */
                {"MESSAGE_TOO_LONG", 18, 2},  {"MESSAGE_TOO_LONG", 19, 0x80},
                {"BODY_TOO_LONG", 22, 0x20},  {"BODY_TOO_LONG", 23, 0xFF},
        };
        uint8_t bytes[HR_FRAME_HEADER_BYTES];
        struct hr_frame_header back;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rules); i++) {
                hr_frame_header_encode(&sample, bytes);
                bytes[rules[i].offset] = rules[i].value;
                seal(bytes);
                expect_reason(bytes, &limits, rules[i].reason);
                HR_EXPECT_EQ(hr_frame_header_decode(bytes, &limits, NULL, &back), HR_E_PROTOCOL);
        }
        hr_frame_header_encode(&sample, bytes);
        memset(bytes + 8, 0, 8);
        seal(bytes);
        expect_reason(bytes, &limits, "BAD_ID");
}

HR_TEST(header_limits_are_inclusive_and_told) {
        struct hr_frame_header header = sample, back;
        struct hr_frame_limits exact = {.message_bytes_max = sample.message_bytes,
                                        .body_bytes_max = sample.body_bytes};
        uint8_t bytes[HR_FRAME_HEADER_BYTES];
        struct hr_diag diag = {0};

        hr_frame_header_encode(&header, bytes);
        HR_EXPECT_OK(hr_frame_header_decode(bytes, &exact, &diag, &back), &diag);
        exact.body_bytes_max--;
        HR_EXPECT_EQ(hr_frame_header_decode(bytes, &exact, &diag, &back), HR_E_PROTOCOL);
        HR_EXPECT_EQ(diag.limit, sample.body_bytes - 1);
        HR_EXPECT_EQ(diag.actual, sample.body_bytes);
        HR_EXPECT_STREQ(diag.field, "body_bytes");
}

HR_TEST(header_descriptors_up_to_the_limit) {
        struct hr_frame_header header = sample, back;
        uint8_t bytes[HR_FRAME_HEADER_BYTES];
        struct hr_diag diag = {0};

        header.flags |= HR_FRAME_FDS;
        header.n_fds = 16;
        hr_frame_header_encode(&header, bytes);
        HR_EXPECT_OK(hr_frame_header_decode(bytes, &limits, &diag, &back), &diag);
        HR_EXPECT_EQ(back.n_fds, 16);
        header.n_fds = 17;
        hr_frame_header_encode(&header, bytes);
        expect_reason(bytes, &limits, "BAD_FDS");
}
