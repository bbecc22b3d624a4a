#include "daemon/manifest.h"

#include "tests/harness.h"

static const struct hr_manifest_limits wide = {
        .tensors_max = 1000, .tensor_bytes_max = UINT64_MAX, .total_bytes_max = UINT64_MAX};

struct sample {
        const char *name;
        uint32_t type;
        int64_t ne[HR_DIMS];
};

/* Builds a manifest from samples; a count of bytes of the names that is off by `name_surplus`. */
static hr_status build(const struct sample *samples, uint32_t count, int name_surplus,
                       const struct hr_manifest_limits *limits, struct hr_diag *diag,
                       struct hr_manifest **ret_manifest) {
        uint32_t lengths[16], types[16];
        int64_t ne[16 * HR_DIMS];
        char names[4096];
        size_t bytes = 0;
        struct hr_manifest_columns columns = {.tensor_count = count,
                                              .name_lengths = lengths,
                                              .names = names,
                                              .types = types,
                                              .ne = ne};

        for (uint32_t i = 0; i < count; i++) {
                lengths[i] = (uint32_t) strlen(samples[i].name);
                types[i] = samples[i].type;
                memcpy(names + bytes, samples[i].name, lengths[i]);
                memcpy(ne + (size_t) HR_DIMS * i, samples[i].ne, sizeof samples[i].ne);
                bytes += lengths[i];
        }
        columns.names_bytes = (uint64_t) ((int64_t) bytes + name_surplus);
        return hr_manifest_new(&columns, limits, diag, ret_manifest);
}

HR_TEST(offsets_are_padded_and_names_found) {
        static const struct sample samples[] = {
                {"b", HR_TYPE_F32, {3, 1, 1, 1}},     {"a.long.name", HR_TYPE_Q4_0, {64, 2, 1, 1}},
                {"empty", HR_TYPE_F16, {0, 7, 1, 1}}, {"\xc3\xa4", HR_TYPE_I64, {1, 1, 1, 1}},
                {"ab", HR_TYPE_F32, {16, 1, 1, 1}},
        };
        static const uint64_t offsets[] = {0, 64, 192, 192, 256}, bytes[] = {12, 72, 0, 8, 64};
        struct hr_manifest *manifest = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(build(samples, 5, 0, &wide, &diag, &manifest), &diag);
        HR_EXPECT_EQ(manifest->total_bytes, 320);
        for (uint32_t i = 0; i < 5; i++) {
                const char *name = samples[i].name;

                HR_EXPECT_EQ(hr_manifest_find(manifest, name, strlen(name)), i);
                HR_EXPECT_EQ(manifest->tensors[i].offset, offsets[i]);
                HR_EXPECT_EQ(manifest->tensors[i].bytes, bytes[i]);
                HR_EXPECT_STREQ(manifest->tensors[i].name, name);
        }
        HR_EXPECT_EQ(hr_manifest_find(manifest, "a", 1), -1);
        HR_EXPECT_EQ(hr_manifest_find(manifest, "", 0), -1);
        HR_EXPECT_EQ(hr_manifest_find(manifest, "abc", 3), -1);
        HR_EXPECT_EQ(hr_manifest_find(manifest, "abc", 2), 4);
        hr_manifest_free(manifest);
}

HR_TEST(equality_looks_at_everything) {
        static const struct sample base[] = {{"x", HR_TYPE_F32, {4, 2, 1, 1}},
                                             {"y", HR_TYPE_F16, {4, 1, 1, 1}}};
        static const struct sample others[][2] = {
                {{"x", HR_TYPE_F32, {4, 2, 1, 1}}, {"z", HR_TYPE_F16, {4, 1, 1, 1}}},
                {{"x", HR_TYPE_I32, {4, 2, 1, 1}}, {"y", HR_TYPE_F16, {4, 1, 1, 1}}},
                {{"x", HR_TYPE_F32, {2, 4, 1, 1}}, {"y", HR_TYPE_F16, {4, 1, 1, 1}}},
        };
        struct hr_manifest *manifest = NULL, *same = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(build(base, 2, 0, &wide, &diag, &manifest), &diag);
        HR_EXPECT_OK(build(base, 2, 0, &wide, &diag, &same), &diag);
        HR_EXPECT(hr_manifest_equal(manifest, same));
        for (size_t i = 0; i < HR_ARRAY_LENGTH(others); i++) {
                struct hr_manifest *other = NULL;

                HR_EXPECT_OK(build(others[i], 2, 0, &wide, &diag, &other), &diag);
                HR_EXPECT(!hr_manifest_equal(manifest, other));
                hr_manifest_free(other);
        }
        hr_manifest_free(manifest);
        hr_manifest_free(same);
}

#define GOOD {"g", HR_TYPE_F32, {1, 1, 1, 1}}

HR_TEST(refusals_are_typed) {
        static char long_name[300];
        static const struct {
                struct sample samples[2];
                uint32_t count;
                int surplus;
                hr_status status;
                const char *reason;
        } cases[] = {
                {{GOOD}, 0, 0, HR_E_INVALID, "MANIFEST"},
                {{GOOD}, 1, 1, HR_E_INVALID, "MANIFEST"},
                {{GOOD}, 1, -1, HR_E_INVALID, "MANIFEST"},
                {{{"", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{long_name, HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"a\nb", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\x7f", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\xc0\xaf", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\xed\xa0\x80", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\xc2\x85", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\xf5\x80\x80\x80", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{{"\xe2\x82", HR_TYPE_F32, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "NAME"},
                {{GOOD, GOOD}, 2, 0, HR_E_INVALID, "NAME"},
                {{{"t", 5, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "DTYPE"},
                {{{"t", UINT32_MAX, {1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "DTYPE"},
                {{{"t", HR_TYPE_Q4_0, {33, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "BLOCK"},
                {{{"t", HR_TYPE_F32, {-1, 1, 1, 1}}}, 1, 0, HR_E_INVALID, NULL},
                {{{"t", HR_TYPE_F32, {INT64_MAX, 1, 1, 1}}}, 1, 0, HR_E_INVALID, "SIZE"},
                {{{"t", HR_TYPE_F32, {1 << 30, 1 << 30, 1 << 30, 1}}}, 1, 0, HR_E_INVALID, "SIZE"},
                {{{"t", HR_TYPE_I8, {INT64_MAX, 2, 1, 1}}, GOOD}, 2, 0, HR_E_INVALID, "SIZE"},
                /* Alone it fits, padded it does not, or two do not together. */
                {{{"t", HR_TYPE_I8, {INT64_MAX, 1, 1, 1}},
                  {"u", HR_TYPE_I8, {INT64_MAX, 1, 1, 1}}},
                 2, 0, HR_E_INVALID, "SIZE"},
        };

        memset(long_name, 'n', sizeof long_name - 1);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_manifest *manifest = NULL;
                struct hr_diag diag = {0};
                const hr_status status = build(cases[i].samples, cases[i].count, cases[i].surplus,
                                               &wide, &diag, &manifest);

                if (status != cases[i].status)
                        hr_test_fail(__FILE__, __LINE__, "case %zu: %s (%s)", i,
                                     hr_status_name(status), diag.words);
                if (cases[i].reason)
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                HR_EXPECT(diag.words[0] != '\0' && !manifest);
        }
}

HR_TEST(limits_are_told) {
        static const struct sample samples[] = {{"x", HR_TYPE_F32, {100, 1, 1, 1}},
                                                {"y", HR_TYPE_F32, {100, 1, 1, 1}}};
        static const struct {
                struct hr_manifest_limits limits;
                uint64_t limit, actual;
        } cases[] = {
                {{1, UINT64_MAX, UINT64_MAX}, 1, 2},
                {{2, 399, UINT64_MAX}, 399, 400},
                {{2, 400, 895}, 895, 896},
        };
        static const struct hr_manifest_limits enough = {2, 400, 896};
        struct hr_manifest *manifest = NULL;
        struct hr_diag diag = {0};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                hr_diag_clear(&diag);
                HR_EXPECT_EQ(build(samples, 2, 0, &cases[i].limits, &diag, &manifest),
                             HR_E_EXHAUSTED);
                HR_EXPECT_EQ(diag.limit, cases[i].limit);
                HR_EXPECT_EQ(diag.actual, cases[i].actual);
        }
        hr_diag_clear(&diag);
        HR_EXPECT_OK(build(samples, 2, 0, &enough, &diag, &manifest), &diag);
        hr_manifest_free(manifest);
}

HR_TEST(leaf_must_have_the_same_type_and_shape) {
        static const struct sample samples[] = {{"w", HR_TYPE_F32, {4, 3, 1, 1}}};
        static const struct {
                uint32_t type;
                int64_t ne[HR_DIMS];
                hr_status status;
        } cases[] = {
                {HR_TYPE_F32, {4, 3, 1, 1}, HR_OK},
                {HR_TYPE_F16, {4, 3, 1, 1}, HR_E_INVALID},
                {HR_TYPE_F32, {3, 4, 1, 1}, HR_E_INVALID},
                {HR_TYPE_F32, {4, 3, 1, 2}, HR_E_INVALID},
        };
        struct hr_manifest *manifest = NULL;
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(build(samples, 1, 0, &wide, &diag, &manifest), &diag);
        HR_EXPECT_OK(hr_graph_new(&(struct hr_graph_sizes){.leaf_count = 1, .node_count = 1,
                                                           .source_count = 1, .name_bytes = 1},
                                  &diag, &graph),
                     &diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                hr_diag_clear(&diag);
                graph->tensors[0].type = cases[i].type;
                memcpy(graph->tensors[0].ne, cases[i].ne, sizeof cases[i].ne);
                HR_EXPECT_EQ(hr_manifest_check_leaf(manifest, 0, graph, 0, &diag),
                             cases[i].status);
                if (cases[i].status == HR_OK)
                        continue;
                HR_EXPECT(diag.has_tensor && diag.tensor == 0);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "LEAF");
                HR_EXPECT(strstr(diag.words, "'w'") && strstr(diag.words, "f32 [4,3,1,1]"));
        }
        hr_graph_unref(graph);
        hr_manifest_free(manifest);
}
