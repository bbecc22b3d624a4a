/*
 * Pipelines that share compute memory: runs of different pipelines in flight at once, under random
 * delays, give what each gives alone; memory is that of the largest; growing and shrinking move
 * pipelines and free what nothing uses; reallocations are counted, or refused.
 *
 * HR_SEED=N replays a seed, HEADRACE_FULL=1 runs many.
 */
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"
#include "tests/unit/scheduler/delays.h"

enum { WIDTH_MOST = 512, LACES = 4, FLIGHTS = 24 };

/* t[i] = t[i - 1] + t[i - 2], node i on device i mod devices: two values live at any time. */
struct lace {
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_plan *plan;
        struct hr_pipeline *pipeline;
        int64_t width;
        uint32_t depth, output;
        float constant;
};

static void lace_init(struct lace *lace, int64_t width, uint32_t depth, uint32_t devices,
                      float constant) {
        uint32_t before, last, next;

        *lace = (struct lace){.width = width, .depth = depth, .constant = constant};
        sketch_init(&lace->sketch, width);
        before = sketch_leaf(&lace->sketch, HR_LEAF_INPUT, "x");
        last = sketch_constant(&lace->sketch, constant);
        for (uint32_t i = 0; i < depth; ++i) {
                next = sketch_node(&lace->sketch, HR_OP_ADD, last, before, (int32_t) (i % devices));
                before = last;
                last = next;
        }
        lace->output = last;
        sketch_output(&lace->sketch, last);
        lace->graph = sketch_finish(&lace->sketch);
}

static float lace_value(const struct lace *lace, float x) {
        float before = x, last = lace->constant;

        for (uint32_t i = 0; i < lace->depth; ++i) {
                float next = last + before;

                before = last;
                last = next;
        }
        return last;
}

static void lace_plan(struct lace *lace, struct rig *rig, uint32_t n_copies) {
        const struct hr_plan_request request = {.graph = lace->graph,
                                                .fleet = rig->fleet,
                                                .pins = lace->sketch.pins,
                                                .options = {.n_copies = n_copies}};

        HR_EXPECT_OK(hr_plan_new(&request, &rig->diag, &lace->plan), &rig->diag);
}

static hr_status lace_bind(struct lace *lace, struct rig *rig, struct hr_workspace *workspace,
                           hr_realloc_policy policy, struct hr_diag *diag) {
        const struct hr_pipeline_request request = {.plan = lace->plan,
                                                    .graph = lace->graph,
                                                    .fleet = rig->fleet,
                                                    .workspace = workspace,
                                                    .realloc = policy};

        return hr_pipeline_new(&request, diag, &lace->pipeline);
}

static void lace_deinit(struct lace *lace) {
        lace->pipeline = hr_pipeline_free(lace->pipeline);
        hr_plan_unref(lace->plan);
        hr_graph_unref(lace->graph);
        sketch_deinit(&lace->sketch);
}

static uint64_t passing(const struct lace *lace, uint32_t kind) {
        return lace->plan->pools[kind].shared_bytes - lace->plan->pools[kind].kept_bytes;
}

/* ---- Runs that fly -----------------------------------------------------------------------------
 */

struct flight {
        struct ride ride;
        struct lace *lace; /* NULL = free */
        float x;
        float in[WIDTH_MOST], out[WIDTH_MOST];
};

static void flight_start(struct flight *flight, struct lace *lace, float x) {
        struct hr_diag diag = {0};

        ride_init(&flight->ride);
        flight->lace = lace;
        flight->x = x;
        for (int64_t i = 0; i < lace->width; ++i)
                flight->in[i] = x;
        memset(flight->out, 0, sizeof flight->out);
        flight->ride.inputs[0] = (struct hr_run_input){
                .data = flight->in, .bytes = (uint64_t) lace->width * sizeof(float)};
        flight->ride.outputs[0] =
                (struct hr_run_output){.tensor = lace->output,
                                       .data = flight->out,
                                       .bytes = (uint64_t) lace->width * sizeof(float)};
        flight->ride.run.output_count = 1;
        HR_EXPECT_OK(ride_start(&flight->ride, lace->pipeline, &diag), &diag);
}

static void flight_land(struct flight *flight) {
        float wanted;

        if (!flight->lace)
                return;
        wanted = lace_value(flight->lace, flight->x);
        HR_EXPECT_EQ(ride_wait(&flight->ride), HR_OK);
        for (int64_t i = 0; i < flight->lace->width; ++i)
                HR_EXPECT_EQ(flight->out[i], wanted);
        ride_deinit(&flight->ride);
        flight->lace = NULL;
}

static void one_run(struct lace *lace, float x) {
        static struct flight flight;

        flight_start(&flight, lace, x);
        flight_land(&flight);
}

/* ---- Order -------------------------------------------------------------------------------------
 */

static void mix(uint64_t seed, uint32_t devices, uint32_t n_copies, uint32_t runs) {
        static const int64_t widths[LACES] = {64, 512, 96, 320};
        static struct flight flights[FLIGHTS];
        const struct rig_device isolated[4] = {
                {.isolated = true}, {.isolated = true}, {.isolated = true}, {.isolated = true}};
        struct hr_workspace *workspace = NULL;
        struct lace laces[LACES];
        struct dice dice;
        struct rig rig;
        uint32_t bound = 0, next = 0;

        dice_init(&dice, seed);
        rig_init(&rig, isolated, devices);
        rig_delay(&rig, seed, 300, 3);
        HR_EXPECT_OK(hr_workspace_new(&rig.diag, &workspace), &rig.diag);
        for (uint32_t i = 0; i < LACES; ++i) {
                lace_init(&laces[i], widths[i], 5 + 3 * i, devices, (float) (i + 1));
                lace_plan(&laces[i], &rig, n_copies);
        }
        for (uint32_t n = 0; n < runs; ++n) {
                struct flight *flight = &flights[next++ % FLIGHTS];
                struct lace *lace;

                /* Another pipeline comes while runs are in flight; some make the memory grow. */
                if (bound < LACES && n >= bound * 8)
                        HR_EXPECT_OK(lace_bind(&laces[bound++], &rig, workspace, HR_REALLOC_COUNT,
                                               &rig.diag),
                                     &rig.diag);
                lace = &laces[dice_roll(&dice, bound)];
                flight_land(flight);
                for (uint32_t oldest = next; !hr_pipeline_has_slot(lace->pipeline); ++oldest)
                        flight_land(&flights[oldest % FLIGHTS]);
                if (dice_roll(&dice, 5) == 0)
                        (void) hr_workspace_settle(workspace);
                flight_start(flight, lace, (float) (n % 100));
        }
        for (uint32_t i = 0; i < FLIGHTS; ++i)
                flight_land(&flights[i]);
        HR_EXPECT(hr_workspace_settle(workspace));
        for (uint32_t k = 0; k < laces[0].plan->kind_count; ++k) {
                uint32_t owner = laces[0].plan->pools[k].owner;
                uint64_t most = 0;

                for (uint32_t i = 0; i < LACES; ++i)
                        most = HR_MAX(most, passing(&laces[i], k));
                if (owner != HR_NO_INDEX)
                        HR_EXPECT_EQ(hr_workspace_bytes(workspace, owner), most);
        }
        for (uint32_t i = 0; i < LACES; ++i)
                lace_deinit(&laces[i]);
        for (uint32_t d = 0; d < devices; ++d)
                HR_EXPECT_EQ(hr_workspace_bytes(workspace, d), 0);
        hr_workspace_unref(workspace);
        rig_deinit(&rig);
}

HR_TEST_LIMIT(runs_of_different_pipelines_keep_apart, 280) {
        static const uint32_t slots[] = {1, 2, 4};
        const char *only = getenv("HR_SEED");
        bool full = getenv("HEADRACE_FULL");
        uint64_t first = only ? strtoull(only, NULL, 10) : 1;
        uint64_t count = only || !full ? 1 : 10;

        printf("seeds %llu to %llu\n", (unsigned long long) first,
               (unsigned long long) (first + count - 1));
        for (uint64_t seed = first; seed < first + count; ++seed) {
                for (uint32_t devices = 1; devices <= 4; ++devices) {
                        for (size_t i = 0; i < HR_ARRAY_LENGTH(slots); ++i)
                                mix(seed * 100 + i, devices, slots[i], full ? 600 : 150);
                }
        }
}

/* ---- Memory ------------------------------------------------------------------------------------
 */

struct pair {
        struct rig rig;
        struct hr_workspace *workspace;
        struct lace small, large;
};

static void pair_init(struct pair *pair, uint64_t memory_cap, uint32_t delay_us) {
        const struct rig_device devices[1] = {
                {.isolated = true, .memory_cap = memory_cap, .delay_us = delay_us}};

        rig_init(&pair->rig, devices, 1);
        pair->workspace = NULL;
        HR_EXPECT_OK(hr_workspace_new(&pair->rig.diag, &pair->workspace), &pair->rig.diag);
        lace_init(&pair->small, 64, 5, 1, 1);
        lace_init(&pair->large, 512, 6, 1, 2);
        lace_plan(&pair->small, &pair->rig, 1);
        lace_plan(&pair->large, &pair->rig, 1);
}

static void pair_deinit(struct pair *pair) {
        lace_deinit(&pair->small);
        lace_deinit(&pair->large);
        hr_workspace_unref(pair->workspace);
        rig_deinit(&pair->rig);
}

static void bind_small(struct pair *pair, hr_realloc_policy policy) {
        HR_EXPECT_OK(lace_bind(&pair->small, &pair->rig, pair->workspace, policy, &pair->rig.diag),
                     &pair->rig.diag);
}

static void bind_large(struct pair *pair, hr_realloc_policy policy) {
        HR_EXPECT_OK(lace_bind(&pair->large, &pair->rig, pair->workspace, policy, &pair->rig.diag),
                     &pair->rig.diag);
}

HR_TEST(the_largest_of_all_is_held_once) {
        struct pair pair;
        uint64_t used;

        pair_init(&pair, 0, 0);
        HR_EXPECT(passing(&pair.small, 0) > 0 && passing(&pair.small, 0) < passing(&pair.large, 0));
        bind_large(&pair, HR_REALLOC_COUNT);
        used = pair.rig.devices[0]->used_bytes;
        bind_small(&pair, HR_REALLOC_COUNT);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.large, 0));
        HR_EXPECT_EQ(pair.rig.devices[0]->used_bytes,
                     used + hr_pipeline_bytes(pair.small.pipeline, 0) - passing(&pair.small, 0));
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 0);
        for (int i = 0; i < 10; ++i) {
                one_run(&pair.small, (float) i);
                one_run(&pair.large, (float) i);
        }
        pair_deinit(&pair);
}

HR_TEST(growing_moves_who_is_idle_and_counts) {
        struct hr_workspace_stats stats;
        struct pair pair;

        pair_init(&pair, 0, 0);
        bind_small(&pair, HR_REALLOC_COUNT);
        one_run(&pair.small, 3);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 0);
        bind_large(&pair, HR_REALLOC_COUNT);
        stats = hr_workspace_stats(pair.workspace);
        HR_EXPECT_EQ(stats.reallocs, 1);
        HR_EXPECT_EQ(stats.old_bytes, passing(&pair.small, 0));
        HR_EXPECT_EQ(stats.new_bytes, passing(&pair.large, 0));
        HR_EXPECT_EQ(stats.device, 0);
        HR_EXPECT_EQ(stats.moves, 1);
        HR_EXPECT_EQ(hr_pipeline_moves(pair.small.pipeline), 1);
        HR_EXPECT_EQ(hr_pipeline_moves(pair.large.pipeline), 0);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.large, 0));
        one_run(&pair.small, 4);
        one_run(&pair.large, 4);
        hr_workspace_reset(pair.workspace);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 0);
        pair_deinit(&pair);
}

/* A run in flight keeps its memory until it is over. */
HR_TEST(growing_waits_for_runs_in_flight) {
        static struct flight flight;
        struct pair pair;

        pair_init(&pair, 0, 50000);
        bind_small(&pair, HR_REALLOC_COUNT);
        flight_start(&flight, &pair.small, 7);
        bind_large(&pair, HR_REALLOC_COUNT);
        HR_EXPECT_EQ(hr_pipeline_moves(pair.small.pipeline), 0);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0),
                     passing(&pair.small, 0) + passing(&pair.large, 0));
        HR_EXPECT(!hr_pipeline_wants_move(pair.small.pipeline));
        HR_EXPECT(!hr_workspace_settle(pair.workspace));
        flight_land(&flight);
        HR_EXPECT(hr_pipeline_wants_move(pair.small.pipeline));
        HR_EXPECT(hr_workspace_settle(pair.workspace));
        HR_EXPECT(!hr_pipeline_wants_move(pair.small.pipeline));
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.large, 0));
        one_run(&pair.small, 8);
        one_run(&pair.large, 8);
        pair_deinit(&pair);
}

/* Who made the memory grow goes before the one in flight could move there: what is there stays. */
HR_TEST(growing_that_is_over_before_a_run_is) {
        static struct flight flight;
        struct pair pair;

        pair_init(&pair, 0, 50000);
        bind_small(&pair, HR_REALLOC_COUNT);
        for (int i = 0; i < 3; ++i) {
                flight_start(&flight, &pair.small, 7);
                bind_large(&pair, HR_REALLOC_COUNT);
                pair.large.pipeline = hr_pipeline_free(pair.large.pipeline);
                HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.small, 0));
                flight_land(&flight);
                HR_EXPECT(!hr_pipeline_wants_move(pair.small.pipeline));
                HR_EXPECT(hr_workspace_settle(pair.workspace));
                one_run(&pair.small, 8);
                HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.small, 0));
        }
        HR_EXPECT_EQ(hr_pipeline_moves(pair.small.pipeline), 0);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 3);
        pair_deinit(&pair);
}

/* Memory that the one in flight was to move to, and grows again before it could: only what is used
 * stays. */
HR_TEST(growing_after_a_trim_before_a_run_is_over) {
        static struct flight flight;
        struct pair pair;

        pair_init(&pair, 0, 50000);
        bind_large(&pair, HR_REALLOC_COUNT);
        bind_small(&pair, HR_REALLOC_COUNT);
        for (int i = 0; i < 3; ++i) {
                flight_start(&flight, &pair.small, 7); /* in the large memory */
                pair.large.pipeline = hr_pipeline_free(pair.large.pipeline);
                hr_workspace_trim(pair.workspace); /* the small memory is there, for later */
                hr_workspace_trim(pair.workspace);
                bind_large(&pair, HR_REALLOC_COUNT);
                flight_land(&flight);
                HR_EXPECT(hr_workspace_settle(pair.workspace));
                HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.large, 0));
                one_run(&pair.small, 8);
                one_run(&pair.large, 8);
        }
        pair_deinit(&pair);
}

/* Without memory for more, the new pipeline fails and the old one goes on. */
HR_TEST(growing_that_fails_changes_nothing) {
        struct hr_diag diag = {0};
        struct pair pair;
        uint64_t cap;

        pair_init(&pair, 0, 0);
        bind_small(&pair, HR_REALLOC_COUNT);
        cap = pair.rig.devices[0]->used_bytes + passing(&pair.large, 0) / 2;
        pair.rig.devices[0]->memory_cap = cap;
        HR_EXPECT_EQ(lace_bind(&pair.large, &pair.rig, pair.workspace, HR_REALLOC_COUNT, &diag),
                     HR_E_EXHAUSTED);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.small, 0));
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 0);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).moves, 0);
        one_run(&pair.small, 9);
        pair_deinit(&pair);
}

HR_TEST(a_reallocation_can_be_refused) {
        struct hr_diag diag = {0};
        struct pair pair;

        pair_init(&pair, 0, 0);
        bind_small(&pair, HR_REALLOC_FAIL); /* the first memory is no reallocation */
        HR_EXPECT_EQ(lace_bind(&pair.large, &pair.rig, pair.workspace, HR_REALLOC_FAIL, &diag),
                     HR_E_PRECONDITION);
        HR_EXPECT_STREQ(diag.reason, "REALLOC");
        HR_EXPECT(diag.has_tensor);
        HR_EXPECT_EQ(diag.limit, passing(&pair.small, 0));
        HR_EXPECT_EQ(diag.actual, passing(&pair.large, 0));
        HR_EXPECT(strstr(diag.words, "d0"));
        one_run(&pair.small, 2);
        pair_deinit(&pair);
}

static hr_status lace_bind_within(struct lace *lace, struct pair *pair, uint64_t bytes_max,
                                  struct hr_diag *diag) {
        const struct hr_pipeline_request request = {.plan = lace->plan,
                                                    .graph = lace->graph,
                                                    .fleet = pair->rig.fleet,
                                                    .workspace = pair->workspace,
                                                    .device_bytes_max = bytes_max,
                                                    .realloc = HR_REALLOC_COUNT};

        return hr_pipeline_new(&request, diag, &lace->pipeline);
}

/* The pipelines of a session hold together what one limit allows: each one's own memory, and the
 * largest of what passes once. */
HR_TEST(a_limit_counts_all_pipelines) {
        for (int small_first = 0; small_first < 2; ++small_first) {
                struct hr_diag diag = {0};
                struct pair pair;
                struct lace *first, *second;
                uint64_t own = 0, most;

                pair_init(&pair, 0, 0);
                first = small_first ? &pair.small : &pair.large;
                second = small_first ? &pair.large : &pair.small;
                for (uint32_t k = 0; k < second->plan->kind_count; ++k)
                        own += second->plan->pools[k].kept_bytes;
                most = first->plan->compute_bytes[0];
                HR_EXPECT(own > 0);
                HR_EXPECT_EQ(lace_bind_within(first, &pair, most - 1, &diag), HR_E_EXHAUSTED);
                HR_EXPECT_EQ(diag.limit, most - 1);
                HR_EXPECT_EQ(diag.actual, most);
                diag = (struct hr_diag){0};
                HR_EXPECT_OK(lace_bind_within(first, &pair, most, &diag), &diag);
                most = hr_pipeline_own_bytes(first->pipeline, 0) + own + passing(&pair.large, 0);
                HR_EXPECT_EQ(lace_bind_within(second, &pair, most - 1, &diag), HR_E_EXHAUSTED);
                HR_EXPECT_EQ(diag.actual, most);
                HR_EXPECT_STREQ(diag.reason, "DEVICE_MEMORY");
                diag = (struct hr_diag){0};
                HR_EXPECT_OK(lace_bind_within(second, &pair, most, &diag), &diag);
                HR_EXPECT_EQ(pair.rig.devices[0]->used_bytes, most);
                one_run(first, 3);
                one_run(second, 3);
                pair_deinit(&pair);
        }
}

HR_TEST(what_is_reserved_is_large_enough_for_all) {
        struct pair pair;

        for (int reserved = 0; reserved < 2; ++reserved) {
                pair_init(&pair, 0, 0);
                if (reserved) {
                        const struct hr_plan_request request = {.graph = pair.large.graph,
                                                                .fleet = pair.rig.fleet,
                                                                .pins = pair.large.sketch.pins};

                        HR_EXPECT_OK(hr_workspace_want(pair.workspace, &request, pair.large.plan,
                                                       &pair.rig.diag),
                                     &pair.rig.diag);
                }
                bind_small(&pair, HR_REALLOC_EXPECTED);
                hr_workspace_forget(pair.workspace);
                hr_workspace_reserve(pair.workspace);
                HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0),
                             passing(reserved ? &pair.large : &pair.small, 0));
                if (reserved)
                        bind_large(&pair, HR_REALLOC_FAIL);
                else
                        bind_large(&pair, HR_REALLOC_COUNT);
                HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, !reserved);
                one_run(&pair.small, 5);
                one_run(&pair.large, 5);
                hr_workspace_release(pair.workspace);
                pair_deinit(&pair);
        }
}

/* Memory on a device that nothing was reserved on is a reallocation from nothing. */
HR_TEST(memory_beside_a_reservation_counts) {
        struct hr_diag diag = {0};
        struct pair pair;

        pair_init(&pair, 0, 0);
        hr_workspace_reserve(pair.workspace);
        HR_EXPECT_EQ(lace_bind(&pair.small, &pair.rig, pair.workspace, HR_REALLOC_FAIL, &diag),
                     HR_E_PRECONDITION);
        HR_EXPECT_EQ(diag.limit, 0);
        bind_small(&pair, HR_REALLOC_COUNT);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 1);
        hr_workspace_release(pair.workspace);
        pair_deinit(&pair);
}

HR_TEST(trimming_leaves_what_is_needed) {
        static struct flight flight;
        struct pair pair;

        pair_init(&pair, 0, 20000);
        bind_large(&pair, HR_REALLOC_COUNT);
        bind_small(&pair, HR_REALLOC_COUNT);
        hr_workspace_trim(pair.workspace); /* no smaller than the largest */
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.large, 0));
        pair.large.pipeline = hr_pipeline_free(pair.large.pipeline);
        flight_start(&flight, &pair.small, 6);
        hr_workspace_trim(pair.workspace);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0),
                     passing(&pair.large, 0) + passing(&pair.small, 0));
        flight_land(&flight);
        HR_EXPECT(hr_workspace_settle(pair.workspace));
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), passing(&pair.small, 0));
        one_run(&pair.small, 6);
        HR_EXPECT_EQ(hr_workspace_stats(pair.workspace).reallocs, 0);
        pair_deinit(&pair);
}

/* Everybody was about to move, and goes instead. */
HR_TEST(nothing_is_left_when_all_have_gone) {
        static struct flight flight;
        struct pair pair;

        pair_init(&pair, 0, 20000);
        bind_large(&pair, HR_REALLOC_COUNT);
        bind_small(&pair, HR_REALLOC_COUNT);
        pair.large.pipeline = hr_pipeline_free(pair.large.pipeline);
        flight_start(&flight, &pair.small, 1);
        hr_workspace_trim(pair.workspace);
        flight_land(&flight);
        pair.small.pipeline = hr_pipeline_free(pair.small.pipeline);
        HR_EXPECT_EQ(hr_workspace_bytes(pair.workspace, 0), 0);
        HR_EXPECT_EQ(pair.rig.devices[0]->used_bytes, 0);
        pair_deinit(&pair);
}
