#include "daemon/placement.h"

#include <time.h>

#include "tests/harness.h"

HR_TEST(globs) {
        static const struct {
                const char *pattern, *name;
                bool match;
        } cases[] = {
                {"", "", true},
                {"", "a", false},
                {"*", "", true},
                {"*", "anything.at.all", true},
                {"a", "a", true},
                {"a", "b", false},
                {"a", "aa", false},
                {"?", "a", true},
                {"?", "", false},
                {"blk.*.attn_q.weight", "blk.12.attn_q.weight", true},
                {"blk.*.attn_q.weight", "blk.12.attn_k.weight", false},
                {"*a*b*c*", "xxaxxbxxcxx", true},
                {"*a*b*c*", "xxaxxcxxbxx", false},
                {"a*b*b", "abbb", true},
                {"*ab", "aab", true},
                {"[abc]", "b", true},
                {"[abc]", "d", false},
                {"[a-c]x", "bx", true},
                {"[!a-c]x", "bx", false},
                {"[^a-c]x", "dx", true},
                {"[]]", "]", true},
                {"[!]]", "]", false},
                {"[a-]", "-", true},
                {"[0-9][0-9]", "42", true},
                {"blk.[0-9].*", "blk.12.x", false},
                {"[unclosed", "[unclosed", true},
                {"[unclosed", "u", false},
                {"\\*", "*", true},
                {"\\*", "a", false},
                {"\\[a]", "[a]", true},
                {"tail\\", "tail\\", true},
                {"**", "ab", true},
                {"*?", "", false},
                {"*?", "a", true},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++)
                if (hr_glob_match(cases[i].pattern, strlen(cases[i].pattern), cases[i].name,
                                  strlen(cases[i].name)) != cases[i].match)
                        hr_test_fail(__FILE__, __LINE__, "'%s' on '%s'", cases[i].pattern,
                                     cases[i].name);
}

/* Backtracking matchers need ages for this one. */
HR_TEST_LIMIT(glob_is_not_exponential, 2) {
        char name[255], pattern[255];

        memset(name, 'a', sizeof name);
        for (size_t i = 0; i < sizeof pattern; i++)
                pattern[i] = i % 2 ? 'a' : '*';
        pattern[sizeof pattern - 1] = 'b';
        for (unsigned i = 0; i < 100; i++)
                HR_EXPECT(!hr_glob_match(pattern, sizeof pattern, name, sizeof name));
}

/* ---- Placement ------------------------------------------------------------------------------- */

static struct hr_manifest *manifest_of(const char *const *names, const int64_t *elements,
                                       uint32_t count) {
        struct hr_manifest *manifest = NULL;
        struct hr_diag diag = {0};
        uint64_t name_bytes = 0;

        for (uint32_t i = 0; i < count; i++)
                name_bytes += strlen(names[i]);
        HR_EXPECT_OK(hr_manifest_reserve(count, name_bytes, &diag, &manifest), &diag);
        for (uint32_t i = 0; i < count; i++) {
                const int64_t ne[HR_DIMS] = {elements ? elements[i] : 1, 1, 1, 1};

                HR_EXPECT_OK(hr_manifest_add(manifest, names[i], strlen(names[i]), HR_TYPE_I8, ne,
                                             0, &diag),
                             &diag);
        }
        HR_EXPECT_OK(hr_manifest_seal(manifest, &diag), &diag);
        return manifest;
}

static const int memory_a, memory_b, memory_host;

static const struct hr_placement_device devices[] = {
        {"gpu0", &memory_a, 3000},
        {"gpu1", &memory_b, 1000},
        {"blas", &memory_host, 4000},
        {"cpu", &memory_host, 4000},
};

enum { GPU0, GPU1, BLAS, CPU };

static hr_status plan(const struct hr_manifest *manifest, const struct hr_placement_rule *rules,
                      uint32_t rule_count, struct hr_diag *diag, struct hr_placement *ret) {
        return hr_placement_plan(ret, manifest, devices, HR_ARRAY_LENGTH(devices), rules,
                                 rule_count, diag);
}

HR_TEST(first_matching_rule_decides_and_the_last_device_takes_the_rest) {
        static const char *const names[] = {"blk.0.attn", "blk.0.ffn", "blk.1.attn", "output"};
        static const int64_t elements[] = {10, 20, 30, 40};
        static const struct hr_placement_rule rules[] = {
                {"blk.1.*", "gpu1"}, {"*.attn", "gpu0"}, {"blk.*.attn", "blas"}};
        static const uint32_t expected[] = {GPU0, CPU, GPU1, CPU};
        struct hr_manifest *manifest = manifest_of(names, elements, 4);
        struct hr_placement placement = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(plan(manifest, rules, 3, &diag, &placement), &diag);
        for (uint32_t i = 0; i < 4; i++)
                HR_EXPECT_EQ(placement.devices[i], expected[i]);
        HR_EXPECT_EQ(placement.shares[GPU0].planned_bytes, 10);
        HR_EXPECT_EQ(placement.shares[GPU1].planned_bytes, 30);
        HR_EXPECT_EQ(placement.shares[BLAS].planned_bytes, 0);
        HR_EXPECT_EQ(placement.shares[CPU].planned_bytes, 60);
        HR_EXPECT_EQ(placement.shares[CPU].requested_bytes, 60);
        hr_placement_deinit(&placement);
        hr_manifest_free(manifest);
}

HR_TEST(fit_follows_free_memory_and_keeps_layers_together) {
        /* Out of order on purpose; each layer has 200 bytes, all have 1600: shares 600, 200, 800.
         */
        static const char *const names[] = {"output.weight", "blk.5.a", "blk.0.a", "blk.0.b",
                                            "blk.10.a",      "blk.1.a", "blk.1.b", "token_embd",
                                            "blk.2.a",       "blk.5.b", "blk.2.b"};
        static const int64_t elements[] = {200, 50, 100, 100, 200, 100, 100, 200, 150, 150, 50};
        static const uint32_t expected[] = {CPU,  CPU,  GPU0, GPU0, CPU, GPU0,
                                            GPU0, GPU0, GPU1, CPU,  GPU1};
        static const struct hr_placement_rule rules[] = {{"*", "fit"}};
        struct hr_manifest *manifest = manifest_of(names, elements, 11);
        struct hr_placement placement = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(plan(manifest, rules, 1, &diag, &placement), &diag);
        for (uint32_t i = 0; i < 11; i++)
                if (placement.devices[i] != expected[i])
                        hr_test_fail(__FILE__, __LINE__, "%s on %u", names[i],
                                     placement.devices[i]);
        HR_EXPECT_EQ(placement.shares[GPU0].requested_bytes, 525);
        HR_EXPECT_EQ(placement.shares[GPU0].planned_bytes, 600);
        HR_EXPECT_EQ(placement.shares[BLAS].requested_bytes, 0);
        hr_placement_deinit(&placement);
        hr_manifest_free(manifest);
}

/* A wanted ratio over many tensors: the error of each device is at most one tensor. */
HR_TEST(fit_ratio_does_not_drift) {
        static const char *const ratios[] = {"fit:gpu0=0.49,gpu1=0.51", "fit:gpu0=1,gpu1=1",
                                             "fit:gpu0=3,gpu1=1,cpu=2", "fit:gpu1=0.001,cpu=99"};
        char storage[200][16];
        const char *names[200];
        int64_t elements[200];
        uint64_t total = 0, largest = 0;

        for (uint32_t i = 0; i < 200; i++) {
                snprintf(storage[i], sizeof storage[i], "t%u", i);
                names[i] = storage[i];
                elements[i] = 1000 + i * 37 % 911;
                total += (uint64_t) elements[i];
                largest = HR_MAX(largest, (uint64_t) elements[i]);
        }
        for (size_t r = 0; r < HR_ARRAY_LENGTH(ratios); r++) {
                const struct hr_placement_rule rule = {"*", ratios[r]};
                struct hr_manifest *manifest = manifest_of(names, elements, 200);
                struct hr_placement placement = {0};
                struct hr_diag diag = {0};
                uint64_t planned = 0, requested = 0;

                HR_EXPECT_OK(plan(manifest, &rule, 1, &diag, &placement), &diag);
                for (uint32_t i = 0; i < HR_ARRAY_LENGTH(devices); i++) {
                        const struct hr_placement_share *share = &placement.shares[i];
                        const int64_t error =
                                (int64_t) share->planned_bytes - (int64_t) share->requested_bytes;

                        HR_EXPECT(error <= (int64_t) largest && -error <= (int64_t) largest);
                        planned += share->planned_bytes;
                        requested += share->requested_bytes;
                }
                HR_EXPECT_EQ(planned, total);
                HR_EXPECT(requested + 2 >= total && requested <= total + 2);
                hr_placement_deinit(&placement);
                hr_manifest_free(manifest);
        }
}

HR_TEST(fit_orders_devices_as_written) {
        static const char *const names[] = {"blk.0", "blk.1", "blk.2", "blk.3"};
        static const struct hr_placement_rule rules[] = {{"blk.*", "fit:cpu=1,gpu0=1"}};
        static const uint32_t expected[] = {CPU, CPU, GPU0, GPU0};
        struct hr_manifest *manifest = manifest_of(names, NULL, 4);
        struct hr_placement placement = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(plan(manifest, rules, 1, &diag, &placement), &diag);
        for (uint32_t i = 0; i < 4; i++)
                HR_EXPECT_EQ(placement.devices[i], expected[i]);
        hr_placement_deinit(&placement);
        hr_manifest_free(manifest);
}

HR_TEST(fit_without_any_free_memory_still_places_everything) {
        static const char *const names[] = {"a", "b", "c"};
        static const struct hr_placement_device full[] = {{"x", &memory_a, 0}, {"y", &memory_b, 0}};
        static const struct hr_placement_rule rules[] = {{"*", "fit"}};
        struct hr_manifest *manifest = manifest_of(names, NULL, 3);
        struct hr_placement placement = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_placement_plan(&placement, manifest, full, 2, rules, 1, &diag), &diag);
        for (uint32_t i = 0; i < 3; i++)
                HR_EXPECT(placement.devices[i] < 2);
        hr_placement_deinit(&placement);
        hr_manifest_free(manifest);
}

HR_TEST(bad_rules_are_typed_errors) {
        static char long_pattern[HR_PATTERN_BYTES_MAX + 2], long_device[2000];
        static const struct {
                struct hr_placement_rule rule;
                hr_status status;
                const char *reason;
        } cases[] = {
                {{"*", "nosuch"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"matches nothing", "nosuch"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", ""}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "gpu"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "gpu0x"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "fit:"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "fit:gpu0,"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "fit:gpu0,nosuch"}, HR_E_NOT_FOUND, "DEVICE"},
                {{"*", "fit:gpu0=1,gpu0=1"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=1,gpu1"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0="}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=0"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=-1"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=1.2.3"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=1e300"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=nan"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=."}, HR_E_INVALID, "PLACEMENT"},
                {{"*", "fit:gpu0=1111111111111111111"}, HR_E_INVALID, "PLACEMENT"},
                {{long_pattern, "cpu"}, HR_E_INVALID, "PLACEMENT"},
                {{"*", long_device}, HR_E_INVALID, "PLACEMENT"},
        };
        static const char *const names[] = {"a"};
        struct hr_manifest *manifest = manifest_of(names, NULL, 1);

        memset(long_pattern, '*', sizeof long_pattern - 1);
        memset(long_device, 'd', sizeof long_device - 1);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_placement placement = {0};
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(plan(manifest, &cases[i].rule, 1, &diag, &placement), cases[i].status);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                HR_EXPECT(!placement.devices);
        }
        hr_manifest_free(manifest);
}

HR_TEST(too_much_matching_is_refused_before_it_begins) {
        static struct hr_placement_rule rules[60000];
        char storage[300][HR_TENSOR_NAME_BYTES_MAX + 1];
        const char *names[300];
        struct hr_manifest *manifest;
        struct hr_placement placement = {0};
        struct hr_diag diag = {0};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(rules); i++)
                rules[i] = (struct hr_placement_rule){"*b", "cpu"};
        for (uint32_t i = 0; i < 300; i++) {
                memset(storage[i], 'a', HR_TENSOR_NAME_BYTES_MAX);
                snprintf(storage[i] + 200, 56, "%u", i);
                names[i] = storage[i];
        }
        manifest = manifest_of(names, NULL, 300);
        HR_EXPECT_EQ(plan(manifest, rules, HR_ARRAY_LENGTH(rules), &diag, &placement),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "PLACEMENT");
        hr_manifest_free(manifest);
}
