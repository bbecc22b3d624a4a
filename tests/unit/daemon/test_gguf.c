#include "daemon/gguf.h"

#include "tests/harness.h"
#include "tests/unit/daemon/gguf_builder.h"

static const struct hr_gguf_limits wide = {.metadata_bytes_max = 1 << 20,
                                           .metadata_count_max = 1000,
                                           .tensors_max = 1000,
                                           .tensor_bytes_max = UINT64_C(1) << 40};

/* The bytes end at the end of an allocation, so that a sanitizer sees any read behind them. */
static hr_status parse(const struct gguf_builder *builder, const struct hr_gguf_limits *limits,
                       struct hr_diag *diag, struct hr_gguf *ret_gguf) {
        uint8_t *exact = malloc(builder->size ? builder->size : 1);
        hr_status status;

        memcpy(exact, builder->bytes, builder->size);
        status = hr_gguf_parse(exact, builder->size, limits, diag, ret_gguf);
        free(exact);
        return status;
}

static void small_file(struct gguf_builder *builder, uint32_t version) {
        gguf_header(builder, version, 3, 4);
        gguf_key_string(builder, "general.architecture", "test");
        gguf_key_u32(builder, "test.block_count", 2);
        gguf_string(builder, "tokens");
        gguf_u32(builder, 9);
        gguf_u32(builder, 8);
        gguf_u64(builder, 2);
        gguf_string(builder, "ab");
        gguf_string(builder, "");
        gguf_string(builder, "scores");
        gguf_u32(builder, 9);
        gguf_u32(builder, 6);
        gguf_u64(builder, 3);
        gguf_fill(builder, 12, 0);
        gguf_tensor(builder, "first", 32, 2, 2, 0);
        gguf_tensor(builder, "second", 3, 1, 0, 64);
        gguf_tensor(builder, "third", 0, 5, 0, 96);
        gguf_pad(builder, 32);
        gguf_fill(builder, 64 + 12, 7);
}

HR_TEST(reads_versions_2_and_3) {
        for (uint32_t version = 2; version <= 3; version++) {
                struct gguf_builder builder = {0};
                struct hr_gguf gguf = {0};
                struct hr_diag diag = {0};
                const struct hr_manifest_tensor *tensors;

                small_file(&builder, version);
                HR_EXPECT_OK(parse(&builder, &wide, &diag, &gguf), &diag);
                HR_EXPECT_EQ(gguf.version, version);
                HR_EXPECT_EQ(gguf.alignment, 32);
                HR_EXPECT_EQ(gguf.metadata_count, 4);
                HR_EXPECT_EQ(gguf.metadata_offset, 24);
                HR_EXPECT_EQ(gguf.data_offset % 32, 0);
                HR_EXPECT_EQ(gguf.data_offset + 76, builder.size);
                HR_EXPECT(memcmp(builder.bytes + gguf.metadata_offset + gguf.metadata_bytes,
                                 "\5\0\0\0\0\0\0\0first", 13) == 0);
                tensors = gguf.tensors->tensors;
                HR_EXPECT_EQ(gguf.tensors->tensor_count, 3);
                HR_EXPECT_EQ(hr_manifest_find(gguf.tensors, "second", 6), 1);
                HR_EXPECT_EQ(tensors[0].bytes, 36);
                HR_EXPECT_EQ(tensors[0].offset, gguf.data_offset);
                HR_EXPECT_EQ(tensors[1].offset, gguf.data_offset + 64);
                HR_EXPECT_EQ(tensors[1].ne[0], 3);
                HR_EXPECT_EQ(tensors[1].ne[3], 1);
                HR_EXPECT_EQ(tensors[2].bytes, 0);
                hr_gguf_deinit(&gguf);
                gguf_builder_free(&builder);
        }
}

HR_TEST(honours_alignment) {
        struct gguf_builder builder = {0};
        struct hr_gguf gguf = {0};
        struct hr_diag diag = {0};

        gguf_header(&builder, 3, 2, 1);
        gguf_key_u32(&builder, "general.alignment", 128);
        gguf_tensor(&builder, "a", 4, 1, 0, 0);
        gguf_tensor(&builder, "b", 4, 1, 0, 128);
        gguf_pad(&builder, 128);
        gguf_fill(&builder, 144, 0);
        HR_EXPECT_OK(parse(&builder, &wide, &diag, &gguf), &diag);
        HR_EXPECT_EQ(gguf.alignment, 128);
        HR_EXPECT_EQ(gguf.data_offset % 128, 0);
        hr_gguf_deinit(&gguf);
        gguf_builder_free(&builder);
}

HR_TEST(every_truncation_is_refused) {
        struct gguf_builder builder = {0};
        struct hr_gguf gguf = {0};

        small_file(&builder, 3);
        for (size_t size = 0; size < builder.size; size++) {
                const struct gguf_builder cut = {.bytes = builder.bytes, .size = size};
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(parse(&cut, &wide, &diag, &gguf), HR_E_INVALID);
                HR_EXPECT(diag.words[0] != '\0');
        }
        gguf_builder_free(&builder);
}

/* Any byte changed: an answer, and never a tensor outside the range. */
HR_TEST(every_flipped_byte_is_survived) {
        struct gguf_builder builder = {0};

        small_file(&builder, 3);
        for (size_t at = 0; at < builder.size; at++)
                for (unsigned flip = 1; flip < 256; flip = flip * 3 + 1) {
                        struct hr_gguf gguf = {0};
                        struct hr_diag diag = {0};

                        builder.bytes[at] ^= (uint8_t) flip;
                        if (parse(&builder, &wide, &diag, &gguf) == HR_OK) {
                                const struct hr_manifest *manifest = gguf.tensors;

                                for (uint32_t i = 0; i < manifest->tensor_count; i++)
                                        HR_EXPECT(manifest->tensors[i].bytes == 0 ||
                                                  manifest->tensors[i].offset +
                                                                  manifest->tensors[i].bytes <=
                                                          builder.size);
                        }
                        hr_gguf_deinit(&gguf);
                        builder.bytes[at] ^= (uint8_t) flip;
                }
        gguf_builder_free(&builder);
}

/* ---- Hostile files: each writes one ---------------------------------------------------------- */

static void with_tensors(struct gguf_builder *builder, uint64_t count) {
        gguf_header(builder, 3, count, 0);
}

static void finish(struct gguf_builder *builder, size_t contents) {
        gguf_pad(builder, 32);
        gguf_fill(builder, contents, 0);
}

static void bad_magic(struct gguf_builder *b) {
        gguf_raw(b, "GGML\3\0\0\0", 8);
        gguf_fill(b, 64, 0);
}
static void version_1(struct gguf_builder *b) {
        gguf_header(b, 1, 0, 0);
}
static void version_4(struct gguf_builder *b) {
        gguf_header(b, 4, 0, 0);
}
static void big_endian(struct gguf_builder *b) {
        gguf_header(b, 3U << 24, 0, 0);
}
static void huge_tensor_count(struct gguf_builder *b) {
        gguf_header(b, 3, UINT64_MAX, 0);
        gguf_fill(b, 100, 0);
}
static void tensor_count_2_31(struct gguf_builder *b) {
        gguf_header(b, 3, UINT64_C(1) << 31, 0);
        gguf_fill(b, 100, 0);
}
static void huge_key_count(struct gguf_builder *b) {
        gguf_header(b, 3, 0, UINT64_MAX);
        gguf_fill(b, 100, 0);
}
static void huge_key_length(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_u64(b, UINT64_MAX);
        gguf_fill(b, 100, 'a');
}
static void huge_string(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_string(b, "key");
        gguf_u32(b, 8);
        gguf_u64(b, UINT64_MAX - 7);
        gguf_fill(b, 100, 'a');
}
static void array_of(struct gguf_builder *b, uint32_t type, uint64_t count) {
        gguf_header(b, 3, 0, 1);
        gguf_string(b, "key");
        gguf_u32(b, 9);
        gguf_u32(b, type);
        gguf_u64(b, count);
        gguf_fill(b, 100, 0);
}
static void huge_array(struct gguf_builder *b) {
        array_of(b, 0, UINT64_MAX);
}
static void wrapping_array(struct gguf_builder *b) {
        array_of(b, 12, UINT64_C(1) << 61);
}
static void huge_string_array(struct gguf_builder *b) {
        array_of(b, 8, UINT64_C(1) << 40);
}
static void nested_array(struct gguf_builder *b) {
        array_of(b, 9, 1);
}
static void array_of_unknown(struct gguf_builder *b) {
        array_of(b, 13, 1);
}
static void unknown_value_type(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_string(b, "key");
        gguf_u32(b, UINT32_MAX);
        gguf_fill(b, 100, 0);
}
static void bad_boolean(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_string(b, "key");
        gguf_u32(b, 7);
        gguf_u8(b, 2);
        gguf_pad(b, 32);
}
static void empty_key(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_key_u32(b, "", 1);
        gguf_pad(b, 32);
}
static void zero_byte_in_key(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_u64(b, 3);
        gguf_raw(b, "a\0b", 3);
        gguf_u32(b, 4);
        gguf_u32(b, 4);
        gguf_pad(b, 32);
}
static void duplicate_key(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 3);
        gguf_key_u32(b, "same", 1);
        gguf_key_u32(b, "other", 1);
        gguf_key_string(b, "same", "x");
        gguf_pad(b, 32);
}
static void alignment_of(struct gguf_builder *b, uint32_t alignment) {
        gguf_header(b, 3, 0, 1);
        gguf_key_u32(b, "general.alignment", alignment);
        gguf_pad(b, 32);
}
static void alignment_0(struct gguf_builder *b) {
        alignment_of(b, 0);
}
static void alignment_1(struct gguf_builder *b) {
        alignment_of(b, 1);
}
static void alignment_24(struct gguf_builder *b) {
        alignment_of(b, 24);
}
static void alignment_2_31(struct gguf_builder *b) {
        alignment_of(b, 1U << 31);
}
static void alignment_text(struct gguf_builder *b) {
        gguf_header(b, 3, 0, 1);
        gguf_key_string(b, "general.alignment", "32");
        gguf_pad(b, 32);
}
static void five_dimensions(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_string(b, "t");
        gguf_u32(b, 5);
        gguf_fill(b, 100, 0);
}
static void dimensions_2_32(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_string(b, "t");
        gguf_u32(b, UINT32_MAX);
        gguf_fill(b, 100, 0);
}
static void negative_extent(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", UINT64_MAX, 1, 0, 0);
        finish(b, 64);
}
static void wrapping_extents(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", UINT64_C(1) << 32, UINT64_C(1) << 32, 0, 0);
        finish(b, 64);
}
static void wrapping_bytes(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", UINT64_C(1) << 62, 1, 0, 0);
        finish(b, 64);
}
static void unknown_type(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 32, 1, 99, 0);
        finish(b, 64);
}
static void removed_type(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 32, 1, 4, 0);
        finish(b, 64);
}
static void half_a_block(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 16, 1, 2, 0);
        finish(b, 64);
}
static void offset_unaligned(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 1, 1, 0, 8);
        finish(b, 64);
}
static void offset_past_end(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 1, 1, 0, 64);
        finish(b, 64);
}
static void offset_wraps(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 1, 1, 0, UINT64_MAX - 31);
        finish(b, 64);
}
static void end_wraps(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", UINT64_C(1) << 40, 1, 24, UINT64_MAX - (UINT64_C(1) << 40) - 4095);
        finish(b, 64);
}
static void larger_than_file(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "t", 17, 1, 0, 0);
        finish(b, 64);
}
static void overlapping(struct gguf_builder *b) {
        with_tensors(b, 2);
        gguf_tensor(b, "t", 16, 1, 0, 0);
        gguf_tensor(b, "u", 16, 1, 0, 32);
        finish(b, 128);
}
static void decreasing(struct gguf_builder *b) {
        with_tensors(b, 2);
        gguf_tensor(b, "t", 8, 1, 0, 32);
        gguf_tensor(b, "u", 8, 1, 0, 0);
        finish(b, 64);
}
static void duplicate_name(struct gguf_builder *b) {
        with_tensors(b, 3);
        gguf_tensor(b, "t", 8, 1, 0, 0);
        gguf_tensor(b, "u", 8, 1, 0, 32);
        gguf_tensor(b, "t", 8, 1, 0, 64);
        finish(b, 96);
}
static void empty_name(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "", 8, 1, 0, 0);
        finish(b, 32);
}
static void bad_utf8_name(struct gguf_builder *b) {
        with_tensors(b, 1);
        gguf_tensor(b, "\xff\xfe", 8, 1, 0, 0);
        finish(b, 32);
}
static void long_name(struct gguf_builder *b) {
        char name[300];

        memset(name, 'n', sizeof name);
        name[sizeof name - 1] = '\0';
        with_tensors(b, 1);
        gguf_tensor(b, name, 8, 1, 0, 0);
        finish(b, 32);
}

HR_TEST(hostile_files_are_typed_errors) {
        static const struct {
                const char *name;
                void (*write)(struct gguf_builder *builder);
                const char *reason;
        } cases[] = {
#define CASE(fn, reason) {#fn, fn, reason}
                CASE(bad_magic, "GGUF"),          CASE(version_1, "GGUF"),
                CASE(version_4, "GGUF"),          CASE(big_endian, "GGUF"),
                CASE(huge_tensor_count, "GGUF"),  CASE(tensor_count_2_31, "GGUF"),
                CASE(huge_key_count, "GGUF"),     CASE(huge_key_length, "GGUF"),
                CASE(huge_string, "GGUF"),        CASE(huge_array, "GGUF"),
                CASE(wrapping_array, "GGUF"),     CASE(huge_string_array, "GGUF"),
                CASE(nested_array, "GGUF"),       CASE(array_of_unknown, "GGUF"),
                CASE(unknown_value_type, "GGUF"), CASE(bad_boolean, "GGUF"),
                CASE(empty_key, "GGUF"),          CASE(zero_byte_in_key, "GGUF"),
                CASE(duplicate_key, "GGUF"),      CASE(alignment_0, "GGUF"),
                CASE(alignment_1, "GGUF"),        CASE(alignment_24, "GGUF"),
                CASE(alignment_2_31, "GGUF"),     CASE(alignment_text, "GGUF"),
                CASE(five_dimensions, "GGUF"),    CASE(dimensions_2_32, "GGUF"),
                CASE(negative_extent, "GGUF"),    CASE(wrapping_extents, "SIZE"),
                CASE(wrapping_bytes, "SIZE"),     CASE(unknown_type, "DTYPE"),
                CASE(removed_type, "DTYPE"),      CASE(half_a_block, "BLOCK"),
                CASE(offset_unaligned, "GGUF"),   CASE(offset_past_end, "GGUF"),
                CASE(offset_wraps, "GGUF"),       CASE(end_wraps, "GGUF"),
                CASE(larger_than_file, "GGUF"),   CASE(overlapping, "GGUF"),
                CASE(decreasing, "GGUF"),         CASE(duplicate_name, "NAME"),
                CASE(empty_name, "NAME"),         CASE(bad_utf8_name, "NAME"),
                CASE(long_name, "NAME"),
#undef CASE
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct gguf_builder builder = {0};
                struct hr_gguf gguf = {0};
                struct hr_diag diag = {0};
                hr_status status;

                cases[i].write(&builder);
                status = parse(&builder, &wide, &diag, &gguf);
                if (status != HR_E_INVALID || strcmp(hr_diag_reason(&diag), cases[i].reason) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s: %s %s (%s)", cases[i].name,
                                     hr_status_name(status), hr_diag_reason(&diag), diag.words);
                HR_EXPECT(diag.words[0] != '\0' && !gguf.tensors);
                gguf_builder_free(&builder);
        }
}

HR_TEST(limits_refuse) {
        static const struct hr_gguf_limits cases[] = {
                {.metadata_bytes_max = 10, .metadata_count_max = 99, .tensors_max = 99,
                 .tensor_bytes_max = 1000},
                {.metadata_bytes_max = 1000, .metadata_count_max = 3, .tensors_max = 99,
                 .tensor_bytes_max = 1000},
                {.metadata_bytes_max = 1000, .metadata_count_max = 99, .tensors_max = 2,
                 .tensor_bytes_max = 1000},
                {.metadata_bytes_max = 1000, .metadata_count_max = 99, .tensors_max = 99,
                 .tensor_bytes_max = 35},
        };
        struct gguf_builder builder = {0};

        small_file(&builder, 3);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_gguf gguf = {0};
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(parse(&builder, &cases[i], &diag, &gguf), HR_E_EXHAUSTED);
        }
        gguf_builder_free(&builder);
}


HR_TEST(no_tensors_and_no_keys) {
        struct gguf_builder builder = {0};
        struct hr_gguf gguf = {0};
        struct hr_diag diag = {0};

        gguf_header(&builder, 3, 0, 0);
        HR_EXPECT_OK(parse(&builder, &wide, &diag, &gguf), &diag);
        HR_EXPECT_EQ(gguf.tensors->tensor_count, 0);
        hr_gguf_deinit(&gguf);
        gguf_builder_free(&builder);
}
