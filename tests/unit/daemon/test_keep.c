#include "daemon/keep.h"

#include <stdlib.h>

#include "tests/harness.h"

static const struct hr_manifest_limits wide = {
        .tensors_max = 1000, .tensor_bytes_max = UINT64_MAX, .total_bytes_max = UINT64_MAX};

/* Two tensors on two devices. */
static struct hr_keep_record sample(void) {
        static const uint32_t lengths[] = {1, 3}, types[] = {HR_TYPE_F32, HR_TYPE_Q4_0};
        static const int64_t ne[] = {5, 1, 1, 1, 32, 2, 1, 1};
        struct hr_keep_record record = {.name = "a set", .device_count = 2};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(
                hr_manifest_new(&(struct hr_manifest_columns){2, lengths, "abcd", 4, types, ne},
                                &wide, &diag, &record.manifest),
                &diag);
        record.contents_bytes = record.image_bytes = record.manifest->total_bytes;
        memset(record.digest, 0x5a, sizeof record.digest);
        record.devices = calloc(2, sizeof *record.devices);
        record.homes = calloc(2, sizeof *record.homes);
        (void) strcpy(record.devices[0], "cpu0");
        (void) strcpy(record.devices[1], "host");
        record.homes[0] = 1;
        return record;
}

HR_TEST(what_is_written_is_read) {
        struct hr_keep_record record = sample(), back = {0};
        struct hr_diag diag = {0};
        uint8_t *bytes = NULL;
        size_t size = 0;

        HR_EXPECT_OK(hr_keep_encode(&record, &diag, &bytes, &size), &diag);
        HR_EXPECT_OK(hr_keep_decode(bytes, size, &wide, &diag, &back), &diag);
        HR_EXPECT_STREQ(back.name, "a set");
        HR_EXPECT(hr_manifest_equal(back.manifest, record.manifest));
        HR_EXPECT(hr_digest_equal(back.digest, record.digest));
        HR_EXPECT_EQ(back.contents_bytes, record.contents_bytes);
        HR_EXPECT_EQ(back.image_bytes, record.image_bytes);
        HR_EXPECT_EQ(back.device_count, 2);
        HR_EXPECT_STREQ(back.devices[1], "host");
        HR_EXPECT_EQ(back.homes[0], 1);
        HR_EXPECT_EQ(back.homes[1], 0);
        hr_keep_record_deinit(&back);
        hr_keep_record_deinit(&record);
        free(bytes);
}

/* Every record that is cut somewhere, and every one with one bit changed. */
HR_TEST(what_is_damaged_is_refused) {
        struct hr_keep_record record = sample(), back = {0};
        struct hr_diag diag = {0};
        uint8_t *bytes = NULL;
        size_t size = 0;

        HR_EXPECT_OK(hr_keep_encode(&record, &diag, &bytes, &size), &diag);
        for (size_t cut = 0; cut < size; cut++) {
                struct hr_diag inner = {0};

                HR_EXPECT_EQ(hr_keep_decode(bytes, cut, &wide, &inner, &back), HR_E_INVALID);
        }
        for (size_t bit = 0; bit < size * 8; bit++) {
                struct hr_diag inner = {0};

                bytes[bit / 8] ^= (uint8_t) (1U << bit % 8);
                HR_EXPECT_EQ(hr_keep_decode(bytes, size, &wide, &inner, &back), HR_E_INVALID);
                bytes[bit / 8] ^= (uint8_t) (1U << bit % 8);
        }
        hr_keep_record_deinit(&record);
        free(bytes);
}

HR_TEST(limits_hold_for_records) {
        const struct hr_manifest_limits narrow = {
                .tensors_max = 1, .tensor_bytes_max = UINT64_MAX, .total_bytes_max = UINT64_MAX};
        struct hr_keep_record record = sample(), back = {0};
        struct hr_diag diag = {0}, inner = {0};
        uint8_t *bytes = NULL;
        size_t size = 0;

        HR_EXPECT_OK(hr_keep_encode(&record, &diag, &bytes, &size), &diag);
        HR_EXPECT_EQ(hr_keep_decode(bytes, size, &narrow, &inner, &back), HR_E_EXHAUSTED);
        hr_keep_record_deinit(&record);
        free(bytes);
}

HR_TEST(names_are_told_apart) {
        uint8_t digest[HR_DIGEST_BYTES], back[HR_DIGEST_BYTES];
        char name[HR_KEEP_NAME_BYTES];
        static const struct {
                const char *name;
                hr_keep_kind kind;
        } samples[] = {
                {"headrace", HR_KEEP_FOREIGN},      {"headrace.socket", HR_KEEP_FOREIGN},
                {"stored", HR_KEEP_FOREIGN},        {"", HR_KEEP_FOREIGN},
                {"headrace-set-", HR_KEEP_UNKNOWN}, {"headrace-weights-0123", HR_KEEP_UNKNOWN},
        };

        for (unsigned i = 0; i < sizeof digest; i++)
                digest[i] = (uint8_t) (i * 7 + 3);
        hr_keep_name(HR_KEEP_CONTENTS, digest, name);
        HR_EXPECT_EQ(hr_keep_name_read(name, back), HR_KEEP_CONTENTS);
        HR_EXPECT(hr_digest_equal(back, digest));
        hr_keep_name(HR_KEEP_RECORD, digest, name);
        HR_EXPECT_EQ(hr_keep_name_read(name, back), HR_KEEP_RECORD);
        HR_EXPECT(hr_digest_equal(back, digest));
        name[strlen(name) - 1] = 'G';
        HR_EXPECT_EQ(hr_keep_name_read(name, back), HR_KEEP_UNKNOWN);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(samples); i++)
                HR_EXPECT_EQ(hr_keep_name_read(samples[i].name, back), samples[i].kind);
}
