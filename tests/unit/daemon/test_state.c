#include "daemon/state.h"

#include <unistd.h>

#include "tests/unit/daemon/fleet.h"

static const struct test_device three[] = {
        {"cpu0", true, 0}, {"small", true, 4096}, {"cpu1", false, 0}};

/* k0, v0, k1, v1, ... of 1000 floats each, and one tensor without elements. */
static struct hr_manifest *cache_manifest(uint32_t layers) {
        struct hr_manifest *manifest = NULL;
        struct hr_diag diag = {0};
        uint32_t lengths[64], types[64];
        int64_t ne[64 * HR_DIMS];
        char names[64 * 16];
        size_t bytes = 0;
        const uint32_t count = 2 * layers + 1;

        for (uint32_t i = 0; i < count; i++) {
                char name[16];

                snprintf(name, sizeof name, i < 2 * layers ? "cache_%c.%u" : "empty",
                         "kv"[i % 2], i / 2);
                lengths[i] = (uint32_t) strlen(name);
                memcpy(names + bytes, name, lengths[i]);
                bytes += lengths[i];
                types[i] = HR_TYPE_F32;
                for (uint32_t d = 0; d < HR_DIMS; d++)
                        ne[HR_DIMS * i + d] = d == 0 ? (i < 2 * layers ? 1000 : 0) : 1;
        }
        HR_EXPECT_OK(hr_manifest_new(
                             &(struct hr_manifest_columns){count, lengths, names, bytes, types, ne},
                             &(struct hr_manifest_limits){64, UINT64_MAX, UINT64_MAX}, &diag,
                             &manifest),
                     &diag);
        return manifest;
}

static void set_flag(struct hr_state_transfer *transfer, void *arg) {
        atomic_store((atomic_int *) arg, 1);
}

static void run_transfer(struct hr_state *state, uint32_t tensor, uint64_t offset, void *host,
                         uint64_t bytes, bool write) {
        atomic_int ended = 0;
        struct hr_diag diag = {0};
        struct hr_state_transfer transfer = {.state = state, .tensor = tensor, .offset = offset,
                                             .bytes = bytes, .host = host, .done = set_flag,
                                             .arg = &ended};

        HR_EXPECT_OK(write ? hr_state_write(&transfer, &diag) : hr_state_read(&transfer, &diag),
                     &diag);
        while (!atomic_load(&ended))
                usleep(100);
        HR_EXPECT(!hr_outcome_failed(&transfer.outcome));
}

HR_TEST(zero_filled_placed_and_charged) {
        static const struct hr_placement_rule rules[] = {{"cache_?.0", "cpu0"}, {"*", "cpu1"}};
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_state *state = NULL;
        struct hr_diag diag = {0};
        float values[1000];

        HR_EXPECT_OK(hr_state_new(fleet, cache_manifest(2), rules, 2, &diag, &state), &diag);
        HR_EXPECT_EQ(state->homes[0].device, 0);
        HR_EXPECT_EQ(state->homes[2].device, 2);
        HR_EXPECT(state->buffers[0] && !state->buffers[1] && state->buffers[2]);
        HR_EXPECT_EQ(state->homes[1].offset % 64, 0);
        HR_EXPECT(state->homes[1].offset >= 4000);
        HR_EXPECT_EQ(state->placement.shares[0].planned_bytes, 8000);
        HR_EXPECT_EQ(test_fleet_used(fleet, 0), state->buffers[0]->bytes);
        HR_EXPECT_EQ(state->bytes, state->buffers[0]->bytes + state->buffers[2]->bytes);
        HR_EXPECT(state->homes[4].buffer);
        for (uint32_t i = 0; i < 4; i++) {
                memset(values, 0xff, sizeof values);
                run_transfer(state, i, 0, values, sizeof values, false);
                for (uint32_t k = 0; k < 1000; k++)
                        HR_EXPECT(values[k] == 0);
        }
        HR_EXPECT(!hr_state_unref(state));
        HR_EXPECT_EQ(test_fleet_used(fleet, 0), 0);
        hr_fleet_free(fleet);
}

HR_TEST(write_then_read_anywhere) {
        static const struct hr_placement_rule rules[] = {{"cache_k.*", "cpu0"}};
        static const struct {
                uint32_t tensor;
                uint64_t offset, bytes;
        } ranges[] = {{0, 0, 4000}, {1, 1, 1}, {2, 3999, 1}, {3, 1234, 777}, {0, 4000, 0},
                      {4, 0, 0}};
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_state *state = NULL;
        struct hr_diag diag = {0};
        uint8_t model[5][4000] = {{0}}, bytes[4000];

        HR_EXPECT_OK(hr_state_new(fleet, cache_manifest(2), rules, 1, &diag, &state), &diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(ranges); i++) {
                for (uint64_t k = 0; k < ranges[i].bytes; k++)
                        bytes[k] = (uint8_t) (i * 31 + k * 7 + 1);
                memcpy(model[ranges[i].tensor] + ranges[i].offset, bytes, ranges[i].bytes);
                run_transfer(state, ranges[i].tensor, ranges[i].offset, bytes, ranges[i].bytes,
                             true);
        }
        for (uint32_t i = 0; i < 4; i++) {
                run_transfer(state, i, 0, bytes, sizeof bytes, false);
                HR_EXPECT(memcmp(bytes, model[i], sizeof bytes) == 0);
        }
        hr_state_unref(state);
        hr_fleet_free(fleet);
}

HR_TEST(ranges_are_checked) {
        static const struct {
                uint32_t tensor;
                uint64_t offset, bytes;
                const char *reason; /* NULL = good */
        } cases[] = {
                {0, 0, 4000, NULL},
                {0, 4000, 0, NULL},
                {0, 0, 4001, "SIZE"},
                {0, 4000, 1, "SIZE"},
                {0, 4001, 0, "OFFSET"},
                {0, 1, UINT64_MAX, "SIZE"},
                {0, UINT64_MAX, 1, "OFFSET"},
                {0, UINT64_MAX, UINT64_MAX, "OFFSET"},
                {5, 0, 1, "TENSOR"},
                {UINT32_MAX, 0, 0, "TENSOR"},
        };
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_state *state = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_state_new(fleet, cache_manifest(2), NULL, 0, &diag, &state), &diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_state_transfer transfer = {.state = state,
                                                     .tensor = cases[i].tensor,
                                                     .offset = cases[i].offset,
                                                     .bytes = cases[i].bytes};

                hr_diag_clear(&diag);
                HR_EXPECT_EQ(hr_state_check_range(state, cases[i].tensor, cases[i].offset,
                                                  cases[i].bytes, &diag),
                             cases[i].reason ? HR_E_RANGE : HR_OK);
                if (!cases[i].reason)
                        continue;
                HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                HR_EXPECT_EQ(hr_state_read(&transfer, NULL), HR_E_RANGE);
                HR_EXPECT_EQ(hr_state_write(&transfer, NULL), HR_E_RANGE);
        }
        hr_state_unref(state);
        hr_fleet_free(fleet);
}

HR_TEST(too_large_for_a_device_leaves_nothing_behind) {
        static const struct hr_placement_rule rules[] = {{"cache_k.*", "cpu0"}, {"*", "small"}};
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_state *state = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(hr_state_new(fleet, cache_manifest(2), rules, 2, &diag, &state),
                     HR_E_EXHAUSTED);
        HR_EXPECT(!state && diag.words[0] != '\0');
        for (uint32_t i = 0; i < 3; i++)
                HR_EXPECT_EQ(test_fleet_used(fleet, i), 0);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_state_new(fleet, cache_manifest(2),
                                  &(struct hr_placement_rule){"*", "nosuch"}, 1, &diag, &state),
                     HR_E_NOT_FOUND);
        hr_fleet_free(fleet);
}

HR_TEST(bind_finds_by_name_and_checks) {
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_graph *graph = NULL;
        struct hr_state *state = NULL;
        struct hr_leaf_home home = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_state_new(fleet, cache_manifest(2), NULL, 0, &diag, &state), &diag);
        HR_EXPECT_OK(hr_graph_new(&(struct hr_graph_sizes){.leaf_count = 2, .name_bytes = 15},
                                  &diag, &graph),
                     &diag);
        memcpy(graph->names, "cache_v.1nosuch", 15);
        graph->name_offsets[1] = 9;
        graph->name_offsets[2] = 15;
        for (uint32_t i = 0; i < 2; i++)
                graph->tensors[i] = (struct hr_tensor){.type = HR_TYPE_F32, .ne = {1000, 1, 1, 1},
                                                       .leaf_kind = HR_LEAF_STATE};
        HR_EXPECT_OK(hr_state_bind(state, graph, 0, &diag, &home), &diag);
        HR_EXPECT(home.buffer == state->homes[3].buffer && home.offset == state->homes[3].offset);
        HR_EXPECT_EQ(hr_state_bind(state, graph, 1, &diag, &home), HR_E_NOT_FOUND);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "LEAF");
        graph->tensors[0].ne[0] = 999;
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_state_bind(state, graph, 0, &diag, &home), HR_E_INVALID);
        hr_graph_unref(graph);
        hr_state_unref(state);
        hr_fleet_free(fleet);
}
