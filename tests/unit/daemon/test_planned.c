#include "daemon/planned.h"

#include "core/op.h"
#include "tests/build.h"
#include "tests/unit/daemon/fleet.h"

static const struct test_device three[] = {
        {"iso0", true, 0}, {"iso1", true, 0}, {"host", false, 0}};

enum { ISO0, ISO1, HOST };

/* Leaves: two weights, a state, an input, a constant; then their sum. */
static struct hr_graph *graph_new(const char *second) {
        static const uint32_t sources[] = {0, 3};
        struct hr_build *build = hr_build_new();

        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "a.w", 100, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_Q8_0, second, 32, 3, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F16, "a.w", 7, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 100, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "c", 1, 1, 1, 1);
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 100, 1, 1, 1, 2, sources);
        return hr_build_finish(build);
}

HR_TEST(leaves_go_where_the_rules_say) {
        static const struct hr_placement_rule rules[] = {{"a.*", "iso1"}, {"b.*", "iso0"}};
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_graph *graph = graph_new("b.w");
        struct hr_leaf_home homes[5] = {0};
        struct hr_leaf_bytes bytes[3] = {0};
        struct hr_planned planned = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_planned_homes(&planned, graph, fleet, rules, 2, &diag, homes), &diag);
        HR_EXPECT(homes[0].buffer->device == hr_fleet_device(fleet, ISO1));
        HR_EXPECT(homes[1].buffer->device == hr_fleet_device(fleet, ISO0));
        HR_EXPECT(homes[2].buffer->device == hr_fleet_device(fleet, ISO1));
        HR_EXPECT_EQ(homes[0].buffer->usage, HR_USAGE_WEIGHTS);
        HR_EXPECT_EQ(homes[2].buffer->usage, HR_USAGE_ANY);
        HR_EXPECT(!homes[3].buffer && !homes[4].buffer);
        hr_leaf_bytes_add(graph, fleet, homes, bytes);
        HR_EXPECT_EQ(bytes[ISO1].weights, 448); /* 400, padded */
        HR_EXPECT_EQ(bytes[ISO0].weights, 128); /* 3 blocks of 34 */
        HR_EXPECT_EQ(bytes[ISO1].states, 64);
        HR_EXPECT_EQ(bytes[ISO0].states + bytes[HOST].states + bytes[HOST].weights, 0);
        for (uint32_t i = 0; i < 3; i++)
                HR_EXPECT_EQ(test_fleet_used(fleet, i), 0);
        hr_planned_deinit(&planned);
        hr_graph_unref(graph);
        hr_fleet_free(fleet);
}

HR_TEST(what_has_a_home_keeps_it) {
        static const struct hr_placement_rule rule = {"*", "iso1"};
        struct hr_fleet *fleet = test_fleet_new(three, 3);
        struct hr_graph *graph = graph_new("b.w");
        struct hr_buffer here = {.device = hr_fleet_device(fleet, HOST), .kind = &hr_host_kind};
        struct hr_leaf_home homes[5] = {[1] = {&here, 4096}};
        struct hr_leaf_bytes bytes[3] = {0};
        struct hr_planned planned = {0};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_planned_homes(&planned, graph, fleet, &rule, 1, &diag, homes), &diag);
        HR_EXPECT(homes[1].buffer == &here && homes[1].offset == 4096);
        hr_leaf_bytes_add(graph, fleet, homes, bytes);
        HR_EXPECT_EQ(bytes[HOST].weights, 128);
        HR_EXPECT_EQ(bytes[ISO1].weights, 448);
        hr_planned_deinit(&planned);
        hr_graph_unref(graph);
        hr_fleet_free(fleet);
}

HR_TEST(leaves_that_no_set_could_hold) {
        static const struct {
                const char *second, *device;
                hr_status status;
                const char *reason;
        } cases[] = {{"", "iso0", HR_E_INVALID, "NAME"},
                     {"a.w", "iso0", HR_E_INVALID, "NAME"},
                     {"b.w", "nowhere", HR_E_NOT_FOUND, "DEVICE"},
                     {"b.w", "fit:iso0=x", HR_E_INVALID, "PLACEMENT"}};
        struct hr_fleet *fleet = test_fleet_new(three, 3);

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_placement_rule rule = {"*", cases[i].device};
                struct hr_graph *graph = graph_new(cases[i].second);
                struct hr_leaf_home homes[5] = {0};
                struct hr_planned planned = {0};
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(hr_planned_homes(&planned, graph, fleet, &rule, 1, &diag, homes),
                             cases[i].status);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                hr_planned_deinit(&planned);
                hr_graph_unref(graph);
        }
        hr_fleet_free(fleet);
}
