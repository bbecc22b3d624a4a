/*
 * Planning studies: a thousand devices, a hundred thousand nodes, memory of sizes only.
 *
 * How planning grows is judged by what can be counted: questions to devices, commands of the tape,
 * and bytes of the plan, which everything the passes keep lies in. No time is measured.
 */
#include "scheduler/exec.h"
#include "tests/fake/studio.h"

#define US UINT64_C(1000)

static void open_studio(struct studio *studio, uint32_t devices, uint64_t step_ns) {
        struct hr_fake_config config = {.sizes_only = true, .peer = true, .step_ns = step_ns};

        studio_init(studio, devices, &config);
}

/* `nodes` additions one after the other, spread over the devices in runs of `stretch` nodes. */
static void line(struct scene *scene, uint32_t nodes, uint32_t devices, uint32_t stretch) {
        uint32_t at;

        scene_init(scene, 64);
        at = scene_leaf(scene, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < nodes; ++i)
                at = scene_node(scene, HR_OP_ADD, at, at, (int32_t) (i / stretch % devices));
        scene_output(scene, at);
        scene_finish(scene);
}

/* Every device does one step, so a run takes all of them, and the slots are what limits the rate:
 * with S of them N runs end after ceil(N / S) rounds of all stages, and the rest of the last
 * round's runs follow each other by one step. */
HR_TEST_LIMIT(a_thousand_devices, 120) {
        enum { DEVICES = 1000, SLOTS = 16, RUNS = 40 };
        uint64_t ends[RUNS], round = DEVICES * 10 * US, expected;
        struct hr_plan_summary summary;
        struct hr_pipeline *pipeline;
        struct studio studio;
        struct scene scene;
        struct hr_plan *plan;

        open_studio(&studio, DEVICES, 10 * US);
        line(&scene, DEVICES, DEVICES, 1);
        plan = studio_plan(&studio, &scene, NULL, 0);
        summary = hr_plan_summary(plan);
        HR_EXPECT_EQ(summary.split_count, DEVICES);
        HR_EXPECT_EQ(summary.n_copies, SLOTS);
        for (uint32_t d = 0; d < DEVICES; ++d) {
                HR_EXPECT_EQ(summary.device_splits[d], 1);
                HR_EXPECT_EQ(plan->device[1 + d], (int) d);
        }
        hr_plan_unref(plan);
        pipeline = studio_pipeline(&studio, &scene, NULL, NULL, 0, SLOTS);
        studio_stream(&studio, pipeline, &scene, RUNS, 0, ends);
        /* Two full rounds, and a third of eight runs. */
        expected = 3 * round + (RUNS - 1 - 2 * SLOTS) * 10 * US;
        HR_EXPECT_EQ(ends[RUNS - 1], expected);
        hr_pipeline_free(pipeline);
        plan = studio_plan(&studio, &scene, NULL, 1);
        HR_EXPECT_EQ(hr_plan_summary(plan).split_count, DEVICES);
        hr_plan_unref(plan);
        scene_deinit(&scene);
        studio_deinit(&studio);
}

/* A model of many layers over a thousand devices: each gets its share, in order. */
HR_TEST_LIMIT(a_hundred_thousand_nodes_on_a_thousand_devices, 120) {
        enum { DEVICES = 1000, NODES = 100000 };
        struct hr_plan_summary summary;
        struct studio studio;
        struct scene scene;
        struct hr_plan *plan;
        uint64_t hash;

        open_studio(&studio, DEVICES, US);
        line(&scene, NODES, DEVICES, NODES / DEVICES);
        hash = hr_graph_hash(scene.graph);
        plan = studio_plan(&studio, &scene, NULL, 4);
        summary = hr_plan_summary(plan);
        HR_EXPECT_EQ(summary.split_count, DEVICES);
        HR_EXPECT_EQ(summary.n_copies, 4);
        HR_EXPECT_EQ(plan->step_count, NODES);
        HR_EXPECT_EQ(hr_graph_hash(scene.graph), hash);
        hr_plan_unref(plan);
        scene_deinit(&scene);
        studio_deinit(&studio);
}

struct growth {
        uint64_t asked, commands, bytes;
};

static struct growth plan_growth(uint32_t nodes, uint32_t devices, uint32_t stretch,
                                 uint32_t n_copies) {
        struct growth growth;
        struct studio studio;
        struct scene scene;
        struct hr_plan *plan;

        open_studio(&studio, devices, US);
        line(&scene, nodes, devices, stretch);
        plan = studio_plan(&studio, &scene, NULL, n_copies);
        growth = (struct growth){.asked = hr_fake_asked(studio.world),
                                 .commands = plan->tape.count,
                                 .bytes = plan->arena.used_bytes};
        hr_plan_unref(plan);
        scene_deinit(&scene);
        studio_deinit(&studio);
        return growth;
}

static void expect_linear(const char *what, uint64_t small, uint64_t large, uint64_t times) {
        if (large > small * times + small / 4)
                hr_test_fail(__FILE__, __LINE__,
                             "%s: %" PRIu64 " grow to %" PRIu64 ", more than %" PRIu64 " times",
                             what, small, large, times);
}

HR_TEST_LIMIT(what_planning_does_grows_with_the_graph, 120) {
        static const uint32_t stretches[] = {1, 7, 1000};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(stretches); ++i) {
                for (uint32_t n_copies = 0; n_copies <= 4; n_copies += 2) {
                        struct growth small = plan_growth(2000, 4, stretches[i], n_copies);
                        struct growth large = plan_growth(32000, 4, stretches[i], n_copies);

                        expect_linear("questions", small.asked, large.asked, 16);
                        expect_linear("commands", small.commands, large.commands, 16);
                        expect_linear("bytes", small.bytes, large.bytes, 16);
                        /* No device is asked twice about a tensor. */
                        HR_EXPECT(large.asked <= UINT64_C(32001) * 4);
                }
        }
}
