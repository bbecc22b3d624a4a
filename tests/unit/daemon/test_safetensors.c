#include "daemon/safetensors.h"

#include "tests/harness.h"

static const struct hr_safetensors_limits wide = {.header_bytes_max = 1 << 20,
                                                  .metadata_count_max = 1000,
                                                  .tensors_max = 1000,
                                                  .tensor_bytes_max = UINT64_C(1) << 40};

/* A file: the header's length, the header, `data_bytes` of contents. Exactly as long as it is, so
 * that a read past its end is seen by a sanitizer. */
static hr_status parse_sized(const char *header, uint64_t length, uint64_t data_bytes,
                             const struct hr_safetensors_limits *limits, struct hr_diag *diag,
                             struct hr_safetensors *file) {
        const size_t header_bytes = strlen(header);
        const size_t size = 8 + header_bytes + data_bytes;
        uint8_t *bytes = calloc(1, size);
        hr_status status;

        HR_EXPECT(bytes);
        for (int i = 0; i < 8; i++)
                bytes[i] = (uint8_t) (length >> (8 * i));
        memcpy(bytes + 8, header, header_bytes);
        status = hr_safetensors_parse(bytes, size, limits, diag, file);
        free(bytes);
        return status;
}

static hr_status parse(const char *header, uint64_t data_bytes, struct hr_diag *diag,
                       struct hr_safetensors *file) {
        return parse_sized(header, strlen(header), data_bytes, &wide, diag, file);
}

HR_TEST(a_table_of_contents) {
        /* Not in the order of their places, one of nothing, one scalar. 48 + 6 + 8 + 0 bytes. */
        static const char header[] =
                "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[56,62]},"
                "\"__metadata__\":{\"format\":\"pt\",\"\":\"\"},"
                "\"a.w\":{\"shape\":[4,3],\"data_offsets\":[0,48],\"dtype\":\"F32\"},"
                "\"none\":{\"dtype\":\"I8\",\"shape\":[5,0],\"data_offsets\":[48,48]},"
                "\"one\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[48,56]}}   \n";
        struct hr_safetensors file = {0};
        struct hr_diag diag = {0};
        const struct hr_manifest_tensor *tensors;
        const uint64_t start = 8 + strlen(header);

        HR_EXPECT_OK(parse(header, 62, &diag, &file), &diag);
        HR_EXPECT_EQ(file.data_offset, start);
        HR_EXPECT_EQ(file.metadata_count, 2);
        HR_EXPECT_EQ(file.tensors->tensor_count, 4);
        tensors = file.tensors->tensors;
        HR_EXPECT_STREQ(tensors[0].name, "a.w");
        HR_EXPECT_EQ(tensors[0].type, HR_TYPE_F32);
        HR_EXPECT(tensors[0].ne[0] == 3 && tensors[0].ne[1] == 4 && tensors[0].ne[2] == 1);
        HR_EXPECT_EQ(tensors[0].offset, start);
        HR_EXPECT_EQ(tensors[0].bytes, 48);
        HR_EXPECT_STREQ(tensors[1].name, "none");
        HR_EXPECT(tensors[1].ne[0] == 0 && tensors[1].ne[1] == 5 && tensors[1].bytes == 0);
        HR_EXPECT_STREQ(tensors[2].name, "one");
        HR_EXPECT(tensors[2].ne[0] == 1 && tensors[2].ne[3] == 1 && tensors[2].bytes == 8);
        HR_EXPECT_EQ(tensors[3].type, HR_TYPE_BF16);
        HR_EXPECT_EQ(tensors[3].offset, start + 56);
        HR_EXPECT_EQ(hr_manifest_find(file.tensors, "b", 1), 3);
        hr_safetensors_deinit(&file);
}

HR_TEST(every_type) {
        static const struct {
                const char *name;
                uint32_t type, bytes;
        } types[] = {{"F32", HR_TYPE_F32, 4}, {"F16", HR_TYPE_F16, 2}, {"BF16", HR_TYPE_BF16, 2},
                     {"I8", HR_TYPE_I8, 1},   {"I16", HR_TYPE_I16, 2}, {"I32", HR_TYPE_I32, 4},
                     {"I64", HR_TYPE_I64, 8}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};
                char header[128];

                snprintf(header, sizeof header,
                         "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,3],\"data_offsets\":[0,%u]}}",
                         types[i].name, 6 * types[i].bytes);
                HR_EXPECT_OK(parse(header, 6 * types[i].bytes, &diag, &file), &diag);
                HR_EXPECT_EQ(file.tensors->tensors[0].type, types[i].type);
                hr_safetensors_deinit(&file);
        }
}

/* The header is padded so that the contents begin at `start` more than a multiple of 8. */
HR_TEST(aligned_is_what_lies_at_multiples_of_its_elements) {
        static const struct {
                uint64_t start;
                unsigned bytes; /* of a first tensor of I8 */
                const char *type;
                unsigned size;
                bool is_aligned;
        } cases[] = {{0, 4, "F32", 4, true},  {0, 3, "F32", 4, false}, {0, 4, "I64", 8, false},
                     {0, 8, "I64", 8, true},  {4, 4, "I64", 8, true},  {0, 2, "BF16", 2, true},
                     {1, 1, "BF16", 2, true}, {1, 2, "F16", 2, false}, {1, 5, "I8", 1, true},
                     {3, 0, "F32", 4, false}, {4, 0, "F32", 4, true},  {2, 3, "F32", 4, false}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};
                char header[512];
                size_t bytes = (size_t) snprintf(
                        header, sizeof header,
                        "{\"a\":{\"dtype\":\"I8\",\"shape\":[%u],\"data_offsets\":[0,%u]},"
                        "\"b\":{\"dtype\":\"%s\",\"shape\":[1],\"data_offsets\":[%u,%u]}}",
                        cases[i].bytes, cases[i].bytes, cases[i].type, cases[i].bytes,
                        cases[i].bytes + cases[i].size);

                while (bytes % 8 != cases[i].start)
                        header[bytes++] = ' ';
                header[bytes] = '\0';
                HR_EXPECT_OK(parse(header, cases[i].bytes + cases[i].size, &diag, &file), &diag);
                HR_EXPECT_EQ(file.is_aligned, cases[i].is_aligned);
                hr_safetensors_deinit(&file);
        }
}

#define TENSOR(rest) "{\"t\":{" rest "}}"
#define F32_SHAPE "\"dtype\":\"F32\",\"shape\":"
#define PLACE ",\"data_offsets\":[0,4]"

HR_TEST(headers_that_are_none) {
        static const struct {
                const char *header;
                const char *reason;
                hr_status status;
                uint64_t data_bytes;
        } cases[] = {
                {"", "SAFETENSORS", HR_E_INVALID, 4},
                {" {}", "SAFETENSORS", HR_E_INVALID, 4},
                {"[]", "SAFETENSORS", HR_E_INVALID, 4},
                {"{}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"__metadata__\":{}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"t\":1}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":\"F32\"}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":null}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":true}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":[]}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":{}}", "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE) "}", "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE) " x", "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE) "{}", "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE ","), "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":{" F32_SHAPE "[1]" PLACE "}", "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]"), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "1" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[[1]]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[{}]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[\"1\"]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[null]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[01]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[-1]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1.0]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1e0]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[9223372036854775808]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[99999999999999999999]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1,1,1,1,1]" PLACE), "SHAPE", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[4611686018427387904,4]" PLACE), NULL, HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[0]"), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[0,4,4]"), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[4,0]"), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[0,8]"), "SIZE", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[0,8]"), "SIZE", HR_E_INVALID, 8},
                {TENSOR(F32_SHAPE "[2]" PLACE), "SIZE", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE), "SAFETENSORS", HR_E_INVALID, 5},
                {TENSOR(F32_SHAPE "[1]" PLACE), "SIZE", HR_E_INVALID, 3},
                {TENSOR(F32_SHAPE "[1],\"data_offsets\":[1,5]"), "SAFETENSORS", HR_E_INVALID, 5},
                {TENSOR(F32_SHAPE
                        "[1],\"data_offsets\":[18446744073709551612,18446744073709551615]"),
                 "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR("\"dtype\":\"U8\",\"shape\":[1]" PLACE), "DTYPE", HR_E_INVALID, 4},
                {TENSOR("\"dtype\":\"f32\",\"shape\":[1]" PLACE), "DTYPE", HR_E_INVALID, 4},
                {TENSOR("\"dtype\":\"\",\"shape\":[1]" PLACE), "DTYPE", HR_E_INVALID, 4},
                {TENSOR("\"dtype\":0,\"shape\":[1]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR("\"dtype\":[\"F32\"],\"shape\":[1]" PLACE), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE ",\"shape\":[1]"), "SAFETENSORS", HR_E_INVALID, 4},
                {TENSOR(F32_SHAPE "[1]" PLACE ",\"more\":1"), "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"\":{" F32_SHAPE "[1]" PLACE "}}", "NAME", HR_E_INVALID, 4},
                {"{\"a\\u0000b\":{" F32_SHAPE "[1]" PLACE "}}", "NAME", HR_E_INVALID, 4},
                {"{\"a\\nb\":{" F32_SHAPE "[1]" PLACE "}}", "NAME", HR_E_INVALID, 4},
                {"{\"a\xff\":{" F32_SHAPE "[1]" PLACE "}}", "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":{" F32_SHAPE "[1]" PLACE "},\"t\":{" F32_SHAPE
                 "[1],\"data_offsets\":[4,8]}}",
                 "NAME", HR_E_INVALID, 8},
                {"{\"t\":{" F32_SHAPE "[1]" PLACE "},\"u\":{" F32_SHAPE "[1]" PLACE "}}",
                 "SAFETENSORS", HR_E_INVALID, 4},
                {"{\"t\":{" F32_SHAPE "[1]" PLACE "},\"u\":{" F32_SHAPE
                 "[1],\"data_offsets\":[5,9]}}",
                 "SAFETENSORS", HR_E_INVALID, 9},
                {"{\"__metadata__\":{\"a\":1}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"__metadata__\":{\"a\":{}}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"__metadata__\":{\"a\":null}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"__metadata__\":\"a\"}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"__metadata__\":{},\"__metadata__\":{}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{/**/}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{'t':{}}", "SAFETENSORS", HR_E_INVALID, 0},
                {"{\"t\":NaN}", "SAFETENSORS", HR_E_INVALID, 0},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};
                const hr_status status = parse(cases[i].header, cases[i].data_bytes, &diag, &file);

                if (status != cases[i].status)
                        hr_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].header,
                                     hr_status_name(status));
                HR_EXPECT_EQ(diag.status, status);
                HR_EXPECT(diag.words[0] != '\0');
                if (cases[i].reason && strcmp(hr_diag_reason(&diag), cases[i].reason) != 0)
                        hr_test_fail(__FILE__, __LINE__, "%s: %s %s", cases[i].header,
                                     hr_diag_reason(&diag), diag.words);
                HR_EXPECT(!file.tensors);
                HR_EXPECT_EQ(hr_safetensors_parse((const uint8_t *) "", 0, &wide, NULL, &file),
                             HR_E_INVALID);
        }
}

HR_TEST(lengths_that_lie) {
        static const char header[] = TENSOR(F32_SHAPE "[1]" PLACE);
        const uint64_t right = strlen(header);
        const uint64_t wrong[] = {0,         1,          right - 1,  right + 1,
                                  right + 4, right + 5,  UINT64_MAX, UINT64_MAX - 7,
                                  1 << 20,   UINT32_MAX, INT64_MAX};
        struct hr_safetensors file = {0};
        struct hr_diag diag = {0};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(wrong); i++) {
                hr_diag_clear(&diag);
                HR_EXPECT_EQ(parse_sized(header, wrong[i], 4, &wide, &diag, &file), HR_E_INVALID);
        }
        hr_diag_clear(&diag);
        HR_EXPECT_OK(parse_sized(header, right, 4, &wide, &diag, &file), &diag);
        hr_safetensors_deinit(&file);
}

HR_TEST(limits_are_kept) {
        static const char header[] =
                "{\"__metadata__\":{\"a\":\"b\",\"c\":\"d\"},\"t\":{" F32_SHAPE "[1]" PLACE
                "},\"u\":{" F32_SHAPE "[1],\"data_offsets\":[4,8]}}";
        static const struct {
                struct hr_safetensors_limits limits;
                hr_status status;
                const char *reason;
        } cases[] = {{{1000, 2, 2, 4}, HR_OK, NULL},
                     {{20, 2, 2, 4}, HR_E_EXHAUSTED, "METADATA"},
                     {{1000, 1, 2, 4}, HR_E_EXHAUSTED, "METADATA"},
                     {{1000, 2, 1, 4}, HR_E_EXHAUSTED, "TENSORS"},
                     {{1000, 2, 2, 3}, HR_E_EXHAUSTED, "TENSOR_BYTES"}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(parse_sized(header, strlen(header), 8, &cases[i].limits, &diag, &file),
                             cases[i].status);
                if (cases[i].reason)
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                hr_safetensors_deinit(&file);
        }
}

/* A header made to take memory takes what is wanted of a header: it is refused where it begins. */
HR_TEST(deep_and_wide_headers) {
        static const struct {
                const char *before, *again, *after;
        } cases[] = {{"{\"t\":{\"shape\":", "[", ""},
                     {"{\"t\":", "{\"t\":", ""},
                     {"{\"t\":{\"shape\":[", "0,", "0]}}"},
                     {"{\"t\":{\"data_offsets\":[", "{},", "0]}}"}};
        const size_t most = 1 << 20;
        char *header = malloc(most);

        HR_EXPECT(header);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};
                size_t at = strlen(strcpy(header, cases[i].before));

                while (at + 100 < most)
                        at += strlen(strcpy(header + at, cases[i].again));
                strcpy(header + at, cases[i].after);
                HR_EXPECT_EQ(parse(header, 4, &diag, &file), HR_E_INVALID);
        }
        free(header);
}

HR_TEST(every_cut_of_a_small_header_is_refused) {
        static const char header[] =
                "{\"__metadata__\":{\"a\":\"b\"},\"t\":{" F32_SHAPE "[1,1]" PLACE "}}";
        char cut[sizeof header];

        for (size_t bytes = 0; bytes < strlen(header); bytes++) {
                struct hr_safetensors file = {0};
                struct hr_diag diag = {0};

                memcpy(cut, header, bytes);
                cut[bytes] = '\0';
                HR_EXPECT_EQ(parse(cut, 4, &diag, &file), HR_E_INVALID);
        }
}

HR_TEST(paths) {
        HR_EXPECT(hr_safetensors_path("a.safetensors"));
        HR_EXPECT(hr_safetensors_path("a/b/model-00001-of-00002.safetensors"));
        HR_EXPECT(!hr_safetensors_path(".safetensors"));
        HR_EXPECT(!hr_safetensors_path("a.safetensors.gguf"));
        HR_EXPECT(!hr_safetensors_path("a.Safetensors"));
        HR_EXPECT(!hr_safetensors_path(""));
}
