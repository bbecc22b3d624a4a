/*
 * Pipelines on a virtual clock: rates, makespans against closed formulas, and the number of slots.
 *
 * A chain. Stage s of m computes c_s and then carries its result on, which takes its queue x_s more
 * (the copy is a command of the queue that owns the source memory); the next stage cannot begin
 * before. The first stage also takes the run's input (w), the last one reads the output back (r).
 * So stage s is a server that needs t_s for each run:
 *
 *     t_0 = w + c_0 + x_0,   t_s = c_s + x_s,   t_(m-1) = c_(m-1) + r
 *
 * Servers are in order and all runs are equal. With S slots, run k starts when run k - S is over.
 * The end of run k is the longest path to (run k, stage m-1) over the edges
 *
 *     (k, s) -> (k, s + 1)     the copy            (k, s) -> (k + 1, s)   the queue's order
 *     (k, m - 1) -> (k + S, 0) the slot
 *
 * A path that takes i edges of the third kind passes all stages i + 1 times, which costs T = sum of
 * t_s each time, and has k - iS edges of the second kind left; each costs one more t_s, at most
 * b = max t_s, and all can be taken at the slowest stage. Hence N runs take
 *
 *     max over i = 0 .. floor((N - 1) / S) of  (i + 1) T + (N - 1 - iS) b
 *
 * and, that being linear in i, the larger of its two ends. The rate in the long run is one run per
 * max(b, T / S): with S >= T / b slots the slowest stage is never idle.
 */
#include "tests/fake/studio.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum { STAGES_MOST = 64, RUNS_MOST = 400 };

struct chain {
        struct studio studio;
        struct scene scene;
        uint32_t stages;
        uint64_t compute_ns[STAGES_MOST];
        struct hr_fake_link links[STAGES_MOST];
        uint64_t command_ns; /* of waits, records and notifications */
};

static uint64_t cost(void *arg, const struct hr_steps *steps, uint32_t first, uint32_t count) {
        const uint64_t *node_ns = arg;
        uint64_t ns = 0;

        for (uint32_t i = first; i < first + count; ++i)
                ns += node_ns[steps->steps[i].node];
        return ns;
}

/* Costs and links have been set. One node per stage. */
static void chain_open(struct chain *chain, int64_t width, uint64_t memory_bytes) {
        struct hr_fake_config config = {.sizes_only = true,
                                        .peer = true,
                                        .memory_bytes = memory_bytes,
                                        .command_ns = chain->command_ns,
                                        .compute_ns = cost,
                                        .arg = chain->compute_ns};
        uint32_t at;

        studio_init(&chain->studio, chain->stages, &config);
        for (uint32_t s = 0; s < chain->stages; ++s)
                HR_EXPECT_OK(hr_fake_link(chain->studio.devices[s], NULL, chain->links[s],
                                          &chain->studio.diag),
                             &chain->studio.diag);
        scene_init(&chain->scene, width);
        at = scene_leaf(&chain->scene, HR_LEAF_INPUT, "x");
        for (uint32_t s = 0; s < chain->stages; ++s)
                at = scene_node(&chain->scene, HR_OP_ADD, at, at, (int32_t) s);
        scene_output(&chain->scene, at);
        scene_finish(&chain->scene);
}

static void chain_close(struct chain *chain) {
        scene_deinit(&chain->scene);
        studio_deinit(&chain->studio);
}

static uint64_t link_ns(const struct chain *chain, uint32_t stage) {
        double bytes = (double) chain->scene.width * sizeof(float);
        const struct hr_fake_link *link = &chain->links[stage];

        return link->latency_ns +
               (link->bytes_per_s ? (uint64_t) (bytes * 1e9 / (double) link->bytes_per_s) : 0);
}

/* The formula at the top. The output is read back only where a run wants it; these do not. */
static double chain_makespan(const struct chain *chain, uint32_t slots, uint32_t runs) {
        double total = 0, slowest = 0, turns = (runs - 1) / slots;
        double straight, turning;

        for (uint32_t s = 0; s < chain->stages; ++s) {
                double t = (double) chain->compute_ns[s];

                if (s == 0)
                        t += (double) link_ns(chain, 0);
                if (s + 1 < chain->stages)
                        t += (double) link_ns(chain, s);
                total += t;
                slowest = HR_MAX(slowest, t);
        }
        straight = total + (runs - 1) * slowest;
        turning = (turns + 1) * total + (runs - 1 - turns * slots) * slowest;
        return HR_MAX(straight, turning);
}

/* The virtual time of `runs` runs with that many slots (0 = decided by the plan). */
static uint64_t chain_time(struct chain *chain, uint32_t n_copies, uint32_t runs,
                           uint32_t *ret_slots) {
        struct hr_pipeline *pipeline =
                studio_pipeline(&chain->studio, &chain->scene, NULL, NULL, 0, n_copies);
        uint64_t ends[RUNS_MOST];

        HR_EXPECT(runs <= RUNS_MOST);
        studio_stream(&chain->studio, pipeline, &chain->scene, runs, 0, ends);
        for (uint32_t i = 1; i < runs; ++i)
                HR_EXPECT(ends[i] >= ends[i - 1]);
        if (ret_slots)
                *ret_slots = hr_pipeline_copies(pipeline);
        hr_pipeline_free(pipeline);
        return ends[runs - 1];
}

static void expect_makespan(struct chain *chain, uint32_t n_copies, uint32_t runs,
                            const char *what) {
        uint32_t slots = 0;
        double simulated = (double) chain_time(chain, n_copies, runs, &slots);
        double analytic = chain_makespan(chain, slots, runs);

        HR_EXPECT(n_copies == 0 || slots == n_copies);
        if (simulated > analytic * 1.01 || simulated < analytic * 0.99)
                hr_test_fail(__FILE__, __LINE__, "%s: %u slots, %u runs: %.0f ns, expected %.0f",
                             what, slots, runs, simulated, analytic);
}

HR_TEST(equal_stages_reach_the_rate_of_one) {
        static const uint32_t counts[] = {2, 4, 8};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(counts); ++i) {
                struct chain chain = {.stages = counts[i], .command_ns = 200};
                uint64_t ends[200], steady;
                struct hr_pipeline *pipeline;
                double rate;

                for (uint32_t s = 0; s < chain.stages; ++s) {
                        chain.compute_ns[s] = 5 * MS;
                        chain.links[s] = (struct hr_fake_link){10 * US, 25000000000};
                }
                chain_open(&chain, 16384, 0);
                pipeline = studio_pipeline(&chain.studio, &chain.scene, NULL, NULL, 0, 0);
                HR_EXPECT_EQ(hr_pipeline_copies(pipeline), counts[i]);
                studio_stream(&chain.studio, pipeline, &chain.scene, 200, 0, ends);
                hr_pipeline_free(pipeline);
                steady = (ends[199] - ends[49]) / 150;
                rate = (double) (5 * MS) / (double) steady;
                printf("%u stages: %.2f %% of the bottleneck's rate\n", counts[i], rate * 100);
                HR_EXPECT(rate >= 0.97 && rate <= 1.0);
                /* One slot does the stages one after the other. */
                HR_EXPECT(chain_time(&chain, 1, 20, NULL) > counts[i] * 20 * 5 * MS);
                chain_close(&chain);
        }
}

HR_TEST(makespans_are_the_analytic_ones) {
        static const struct {
                const char *what;
                uint32_t stages;
                uint64_t compute_us[6];
                uint64_t latency_us[6];
                uint64_t mb_per_s[6];
        } shapes[] = {
                {"equal", 3, {1000, 1000, 1000}, {5, 5, 5}, {10000, 10000, 10000}},
                {"unequal", 4, {300, 2000, 700, 1100}, {5, 5, 5, 5}, {0, 0, 0, 0}},
                {"slow links", 4, {400, 400, 400, 400}, {100, 900, 50, 0}, {50, 10, 100, 1}},
                {"one slow device", 6, {200, 200, 200, 5000, 200, 200}, {1, 1, 1, 1, 1, 1}, {0}},
                {"slow first", 3, {9000, 100, 100}, {0, 0, 0}, {1000, 1000, 1000}},
                {"slow last", 3, {100, 100, 9000}, {0, 0, 0}, {1000, 1000, 1000}},
                {"all is transfer", 3, {0, 0, 0}, {700, 300, 100}, {20, 20, 20}},
                {"one device", 1, {500}, {20}, {1000}},
        };
        static const uint32_t slots[] = {0, 1, 2, 3, 5, 8, 16};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(shapes); ++i) {
                struct chain chain = {.stages = shapes[i].stages};

                for (uint32_t s = 0; s < chain.stages; ++s) {
                        chain.compute_ns[s] = shapes[i].compute_us[s] * US;
                        chain.links[s].latency_ns = shapes[i].latency_us[s] * US;
                        chain.links[s].bytes_per_s = shapes[i].mb_per_s[s] * 1000000;
                }
                chain_open(&chain, 4096, 0);
                for (size_t j = 0; j < HR_ARRAY_LENGTH(slots); ++j) {
                        expect_makespan(&chain, slots[j], 1, shapes[i].what);
                        expect_makespan(&chain, slots[j], 7, shapes[i].what);
                        expect_makespan(&chain, slots[j], 100, shapes[i].what);
                }
                chain_close(&chain);
        }
}

HR_TEST(random_chains_take_the_analytic_time) {
        uint64_t seed = studio_seed();
        struct dice dice;

        dice_init(&dice, seed);
        for (int round = 0; round < 100; ++round) {
                struct chain chain = {.stages = 1 + dice_roll(&dice, 12)};
                char what[32];

                for (uint32_t s = 0; s < chain.stages; ++s) {
                        chain.compute_ns[s] = dice_roll(&dice, 5000) * US;
                        chain.links[s].latency_ns = dice_roll(&dice, 300) * US;
                        chain.links[s].bytes_per_s =
                                dice_roll(&dice, 3)
                                        ? 0
                                        : UINT64_C(1000000) * (1 + dice_roll(&dice, 500));
                }
                chain_open(&chain, 1 + dice_roll(&dice, 20000), 0);
                (void) snprintf(what, sizeof what, "round %d", round);
                expect_makespan(&chain, dice_roll(&dice, 17), 1 + dice_roll(&dice, 150), what);
                expect_makespan(&chain, 0, 60, what);
                chain_close(&chain);
        }
}

/* What depends on the result of the run before cannot overlap, and loses nothing by slots. */
HR_TEST(decoding_alone_costs_the_same_with_copies) {
        struct chain chain = {.stages = 4, .command_ns = 300};
        uint64_t one[100], more[100];
        struct hr_pipeline *pipeline;

        for (uint32_t s = 0; s < chain.stages; ++s) {
                chain.compute_ns[s] = 60 * US;
                chain.links[s] = (struct hr_fake_link){4 * US, 20000000000};
        }
        chain_open(&chain, 4096, 0);
        pipeline = studio_pipeline(&chain.studio, &chain.scene, NULL, NULL, 0, 1);
        studio_stream(&chain.studio, pipeline, &chain.scene, 100, 1, one);
        hr_pipeline_free(pipeline);
        for (uint32_t n = 0; n <= 16; n += 4) {
                pipeline = studio_pipeline(&chain.studio, &chain.scene, NULL, NULL, 0, n);
                HR_EXPECT(hr_pipeline_copies(pipeline) >= 4);
                studio_stream(&chain.studio, pipeline, &chain.scene, 100, 1, more);
                hr_pipeline_free(pipeline);
                HR_EXPECT((double) more[99] <= 1.02 * (double) one[99]);
        }
        chain_close(&chain);
}

/* Who decides for the plan may be told how far it may go. */
HR_TEST(decided_slots_keep_to_the_most_allowed) {
        struct chain chain = {.stages = 8, .compute_ns = {MS, MS, MS, MS, MS, MS, MS, MS}};

        chain_open(&chain, 256, 0);
        for (uint32_t most = 0; most < 12; ++most) {
                struct hr_plan_request request = {.graph = chain.scene.graph,
                                                  .fleet = chain.studio.fleet,
                                                  .pins = chain.scene.pins,
                                                  .options = {.copies_most = most}};
                struct hr_plan *plan = NULL;

                HR_EXPECT_OK(hr_plan_new(&request, &chain.studio.diag, &plan), &chain.studio.diag);
                HR_EXPECT_EQ(hr_plan_summary(plan).n_copies, most ? HR_MIN(most, 8U) : 8);
                hr_plan_unref(plan);
        }
        chain_close(&chain);
}

HR_TEST(sixty_four_devices_and_sixteen_slots) {
        struct chain chain = {.stages = 64};
        uint32_t slots = 0;

        for (uint32_t s = 0; s < chain.stages; ++s)
                chain.compute_ns[s] = 1 * MS;
        chain_open(&chain, 256, 0);
        expect_makespan(&chain, 16, 200, "64 devices");
        HR_EXPECT(chain_time(&chain, 0, 200, &slots) > 0);
        HR_EXPECT_EQ(slots, 16);
        chain_close(&chain);
}

/* ---- Memory ------------------------------------------------------------------------------------
 */

HR_TEST(copies_that_do_not_fit_are_given_up_one_by_one) {
        struct chain chain = {.stages = 3, .compute_ns = {MS, MS, MS}};
        uint32_t last = 0, seen = 0;
        uint64_t bytes[9] = {0};

        /* What n slots take on the device in the middle. */
        chain_open(&chain, 4096, 0);
        for (uint32_t n = 1; n <= 8; ++n) {
                struct hr_plan *plan = studio_plan(&chain.studio, &chain.scene, NULL, n);

                for (uint32_t d = 0; d < 3; ++d)
                        bytes[n] = HR_MAX(bytes[n], hr_plan_summary(plan).compute_bytes[d]);
                HR_EXPECT(bytes[n] > bytes[n - 1]);
                hr_plan_unref(plan);
        }
        chain_close(&chain);
        for (uint64_t memory = bytes[1]; memory <= bytes[8] + 4096; memory += 4096) {
                struct hr_pipeline *pipeline;
                uint32_t fits = 1, copies;

                for (uint32_t n = 2; n <= 8; ++n)
                        fits = bytes[n] <= memory ? n : fits;
                chain_open(&chain, 4096, memory);
                pipeline = studio_pipeline(&chain.studio, &chain.scene, NULL, NULL, 0, 8);
                copies = hr_pipeline_copies(pipeline);
                HR_EXPECT_EQ(copies, fits);
                seen += copies != last;
                last = copies;
                for (uint32_t d = 0; d < 3; ++d)
                        HR_EXPECT(hr_pipeline_bytes(pipeline, d) <= memory);
                hr_pipeline_free(pipeline);
                expect_makespan(&chain, 0, 20, "little memory");
                chain_close(&chain);
        }
        HR_EXPECT_EQ(seen, 8);
        /* Not even one fits: the error tells what was asked for and what there is. */
        chain_open(&chain, 4096, bytes[1] - 1);
        {
                struct hr_plan *plan = studio_plan(&chain.studio, &chain.scene, NULL, 8);
                struct hr_pipeline_request request = {
                        .plan = plan, .graph = chain.scene.graph, .fleet = chain.studio.fleet};
                struct hr_pipeline *pipeline = NULL;
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(hr_pipeline_new(&request, &diag, &pipeline), HR_E_EXHAUSTED);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "DEVICE_MEMORY");
                HR_EXPECT_EQ(diag.limit, bytes[1] - 1);
                HR_EXPECT(diag.actual > diag.limit);
                HR_EXPECT(!pipeline);
                hr_plan_unref(plan);
        }
        chain_close(&chain);
}

/* ---- Graphs of any form ------------------------------------------------------------------------
 */

struct maze {
        struct studio studio;
        struct scene scene;
        uint64_t node_ns[48];
};

static void maze_open(struct maze *maze, struct dice *dice) {
        struct hr_fake_config config = {.sizes_only = true,
                                        .peer = dice_roll(dice, 4) > 0,
                                        .command_ns = dice_roll(dice, 2) * 500,
                                        .compute_ns = cost,
                                        .arg = maze->node_ns};
        uint32_t devices = 2 + dice_roll(dice, 6), nodes = 2 + dice_roll(dice, 46);
        uint32_t stretch = 1 + dice_roll(dice, 8), device = 0, last;

        studio_init(&maze->studio, devices, &config);
        for (uint32_t d = 0; d < devices; ++d) {
                struct hr_fake_link link = {dice_roll(dice, 200) * US,
                                            UINT64_C(10000000) * (1 + dice_roll(dice, 1000))};

                HR_EXPECT_OK(hr_fake_link(maze->studio.devices[d], NULL, link, &maze->studio.diag),
                             &maze->studio.diag);
        }
        scene_init(&maze->scene, 64 + dice_roll(dice, 8192));
        last = scene_leaf(&maze->scene, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < nodes; ++i) {
                uint32_t other = dice_roll(dice, 3) ? last : dice_roll(dice, last + 1);

                if (dice_roll(dice, stretch) == 0)
                        device = dice_roll(dice, 2) ? (device + 1) % devices
                                                    : dice_roll(dice, devices);
                maze->node_ns[i] = dice_roll(dice, 4) ? dice_roll(dice, 900) * US : 0;
                last = scene_node(&maze->scene, HR_OP_ADD,
                                  dice_roll(dice, 6) ? last : dice_roll(dice, last + 1), other,
                                  (int32_t) device);
                if (dice_roll(dice, 8) == 0)
                        scene_output(&maze->scene, last);
        }
        scene_output(&maze->scene, last);
        scene_finish(&maze->scene);
}

static uint64_t maze_time(struct maze *maze, uint32_t n_copies, uint32_t *ret_slots) {
        struct hr_pipeline *pipeline =
                studio_pipeline(&maze->studio, &maze->scene, NULL, NULL, 0, n_copies);
        uint64_t ends[40];

        studio_stream(&maze->studio, pipeline, &maze->scene, 40, 0, ends);
        *ret_slots = hr_pipeline_copies(pipeline);
        hr_pipeline_free(pipeline);
        return ends[39];
}

/* Where two paths of equal length meet, the one on which runs follow each other closer counts: d1
 * begins and ends a run, but what d0 has to do needs nothing from it. */
HR_TEST(a_path_beside_the_first_split_counts) {
        struct maze maze = {.node_ns = {0, 2 * MS, 2 * MS}};
        struct hr_fake_config config = {
                .sizes_only = true, .peer = true, .compute_ns = cost, .arg = maze.node_ns};
        uint32_t slots = 0, ignored, x, a, b;

        studio_init(&maze.studio, 2, &config);
        scene_init(&maze.scene, 64);
        x = scene_leaf(&maze.scene, HR_LEAF_INPUT, "x");
        a = scene_node(&maze.scene, HR_OP_ADD, x, x, 1);
        b = scene_node(&maze.scene, HR_OP_ADD, x, x, 0);
        scene_output(&maze.scene, scene_node(&maze.scene, HR_OP_MUL, a, b, 1));
        scene_finish(&maze.scene);
        HR_EXPECT_EQ(maze_time(&maze, 1, &ignored), 40 * 4 * MS);
        HR_EXPECT_EQ(maze_time(&maze, 0, &slots), 41 * 2 * MS);
        HR_EXPECT_EQ(slots, 2);
        scene_deinit(&maze.scene);
        studio_deinit(&maze.studio);
}

/* The number that the plan decides on never loses against one, and 16 slots gain little more. */
HR_TEST_LIMIT(decided_slots_never_lose, 60) {
        uint64_t seed = studio_seed();
        uint32_t rounds = getenv("HEADRACE_FULL") ? 3000 : 300, several = 0, behind = 0;
        struct dice dice;

        dice_init(&dice, seed);
        for (uint32_t round = 0; round < rounds; ++round) {
                struct maze maze = {0};
                uint64_t one, decided, most;
                uint32_t slots = 0, ignored;

                maze_open(&maze, &dice);
                one = maze_time(&maze, 1, &ignored);
                decided = maze_time(&maze, 0, &slots);
                most = maze_time(&maze, 16, &ignored);
                if (decided > one)
                        hr_test_fail(__FILE__, __LINE__,
                                     "round %u: %u slots take %llu ns, one %llu", round, slots,
                                     (unsigned long long) decided, (unsigned long long) one);
                several += slots > 1;
                if ((double) decided > 1.03 * (double) most) {
                        ++behind;
                        printf("round %u: %u slots %.3f ms, 16 %.3f ms\n", round, slots,
                               (double) decided / 1e6, (double) most / 1e6);
                }
                scene_deinit(&maze.scene);
                studio_deinit(&maze.studio);
        }
        printf("%u of %u with several slots, %u more than 3 %% behind 16\n", several, rounds,
               behind);
        HR_EXPECT(several > rounds / 4);
        HR_EXPECT(behind <= rounds / 300);
}
