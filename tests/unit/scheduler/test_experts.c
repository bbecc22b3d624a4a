/*
 * Mixtures whose experts lie in host memory that the device does not read: only the used ones
 * travel, with the bits that all of them would give.
 *
 * The layer is gate, up and down of 8 experts, chosen by ids that are an input, or made by the
 * device or by another one in the same run. The reference is the same plan on a device that takes
 * weights whole. HR_SEED=N replays the random routings of one seed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"
#include "tests/unit/scheduler/delays.h"

enum { K = 32, M = 16, EXPERTS = 8, WEIGHTS = 3, TOKENS_MOST = 8, SLOTS_MOST = 8 };
enum { EXPERT_BYTES = K * M * 4, LAYER_BYTES = WEIGHTS * EXPERT_BYTES };
enum { OUT_MOST = K * SLOTS_MOST * TOKENS_MOST };

/* ids: an input, or the best of scores sorted by that device. */
struct mixture {
        struct hr_graph *graph;
        int32_t pins[32];
        uint32_t weights[WEIGHTS], out, tensor_count;
        int64_t slots, tokens;
        bool sorts;
        uint64_t in_bytes, ids_bytes, out_bytes;
};

struct rig_of_two {
        struct rig rig;
        struct hr_buffer *weights[WEIGHTS];
        struct hr_leaf_home homes[8];
};

/* ---- Graph -------------------------------------------------------------------------------------
 */

static uint32_t node(struct mixture *mixture, struct hr_build *build, uint32_t op, uint32_t type,
                     const int64_t ne[3], const uint32_t *sources, uint32_t count, int32_t pin) {
        uint32_t id = hr_build_node(build, op, type, ne[0], ne[1], ne[2], 1, count, sources);

        mixture->pins[id] = pin;
        return id;
}

static uint32_t add_ids(struct mixture *mixture, struct hr_build *build, uint32_t leaf,
                        int32_t sorter) {
        int64_t all[3] = {EXPERTS, mixture->tokens, 1};
        int64_t best[3] = {mixture->slots, mixture->tokens, 1};
        uint32_t sorted, view;

        if (!mixture->sorts)
                return leaf;
        sorted = node(mixture, build, HR_OP_ARGSORT, HR_TYPE_I32, all, &leaf, 1, sorter);
        hr_build_tensor(build, sorted)->params[0] = 1;
        view = node(mixture, build, HR_OP_VIEW, HR_TYPE_I32, best, &sorted, 1, HR_NO_PIN);
        hr_build_tensor(build, view)->view_base = sorted;
        hr_build_tensor(build, view)->nb[1] = EXPERTS * sizeof(int32_t);
        hr_build_tensor(build, view)->nb[2] = hr_build_tensor(build, view)->nb[3] =
                EXPERTS * sizeof(int32_t) * (uint64_t) mixture->tokens;
        return view;
}

/* sorter: device that sorts scores, or -1 for ids from outside. */
static void mixture_init(struct mixture *mixture, int64_t slots, int64_t tokens, int32_t sorter) {
        static const char *const names[WEIGHTS] = {"gate", "up", "down"};
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 24};
        int64_t in[3] = {K, 1, tokens}, inner[3] = {M, slots, tokens}, out[3] = {K, slots, tokens};
        struct hr_build *build = hr_build_new();
        struct hr_diag diag = {0};
        uint32_t x, leaf, ids, two, h[2];

        *mixture = (struct mixture){.slots = slots, .tokens = tokens, .sorts = sorter >= 0};
        for (size_t i = 0; i < HR_ARRAY_LENGTH(mixture->pins); ++i)
                mixture->pins[i] = HR_NO_PIN;
        x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", K, 1, tokens, 1);
        leaf = mixture->sorts ? hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "scores", EXPERTS,
                                              tokens, 1, 1)
                              : hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "ids", slots,
                                              tokens, 1, 1);
        for (int w = 0; w < WEIGHTS; ++w)
                mixture->weights[w] = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, names[w],
                                                    w == 2 ? M : K, w == 2 ? K : M, EXPERTS, 1);
        if (sorter == 0) /* nothing but the weights comes from elsewhere */
                mixture->pins[x] = mixture->pins[leaf] = 0;
        two = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "", 1, 1, 1, 1);
        hr_build_constant(build, two, &(float){2}, sizeof(float));
        ids = add_ids(mixture, build, leaf, sorter);
        x = node(mixture, build, HR_OP_MUL, HR_TYPE_F32, in, (uint32_t[]){x, two}, 2, 0);
        for (int w = 0; w < 2; ++w)
                h[w] = node(mixture, build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, inner,
                            (uint32_t[]){mixture->weights[w], x, ids}, 3, 0);
        x = node(mixture, build, HR_OP_MUL, HR_TYPE_F32, inner, h, 2, 0);
        mixture->out = node(mixture, build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, out,
                            (uint32_t[]){mixture->weights[2], x, ids}, 3, 0);
        hr_build_tensor(build, mixture->out)->flags |= HR_TENSOR_OUTPUT;
        mixture->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(mixture->graph, &limits, &diag), &diag);
        mixture->in_bytes = (uint64_t) tokens * K * 4;
        mixture->ids_bytes = (uint64_t) (tokens * (mixture->sorts ? EXPERTS : slots)) * 4;
        mixture->out_bytes = (uint64_t) (tokens * slots * K) * 4;
}

static void mixture_deinit(struct mixture *mixture) {
        hr_graph_unref(mixture->graph);
}

/* ---- Devices -----------------------------------------------------------------------------------
 */

static float weight_value(uint32_t weight, uint32_t index) {
        return (float) ((weight * 31 + index * 7) % 61) / 64.0F - 0.4F;
}

/* Device 0 computes, device 1 is the host. */
static void two_init(struct rig_of_two *two, bool whole, uint64_t memory_cap) {
        const struct rig_device devices[2] = {{.isolated = true, .memory_cap = memory_cap}, {0}};

        memset(two, 0, sizeof *two);
        rig_init(&two->rig, devices, 2);
        two->rig.devices[0]->props.experts = !whole;
        for (uint32_t w = 0; w < WEIGHTS; ++w) {
                float *values;

                HR_EXPECT_OK(hr_buffer_new(two->rig.devices[1], EXPERTS * EXPERT_BYTES,
                                           HR_USAGE_WEIGHTS, &two->rig.diag, &two->weights[w]),
                             &two->rig.diag);
                values = two->weights[w]->host_base;
                for (uint32_t i = 0; i < EXPERTS * K * M; ++i)
                        values[i] = weight_value(w, i);
                two->homes[2 + w].buffer = two->weights[w];
        }
}

static void two_deinit(struct rig_of_two *two) {
        for (uint32_t w = 0; w < WEIGHTS; ++w)
                hr_buffer_unref(two->weights[w]);
        rig_deinit(&two->rig);
}

static struct hr_pipeline *two_pipeline(struct rig_of_two *two, const struct mixture *mixture,
                                        uint32_t n_copies, uint64_t expert_bytes) {
        struct hr_plan_request request = {
                .graph = mixture->graph,
                .fleet = two->rig.fleet,
                .homes = two->homes,
                .pins = mixture->pins,
                .options = {.n_copies = n_copies, .expert_bytes = expert_bytes}};
        struct hr_pipeline_request bind = {
                .graph = mixture->graph, .fleet = two->rig.fleet, .homes = two->homes};
        struct hr_pipeline *pipeline = NULL;

        HR_EXPECT_OK(hr_plan_new(&request, &two->rig.diag, &bind.plan), &two->rig.diag);
        HR_EXPECT_OK(hr_pipeline_new(&bind, &two->rig.diag, &pipeline), &two->rig.diag);
        hr_plan_unref(bind.plan);
        return pipeline;
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

struct trip {
        struct ride ride;
        float x[K * TOKENS_MOST], scores[EXPERTS * TOKENS_MOST], out[OUT_MOST];
        int32_t ids[SLOTS_MOST * TOKENS_MOST];
};

static void trip_start(struct trip *trip, const struct mixture *mixture,
                       struct hr_pipeline *pipeline) {
        struct hr_diag diag = {0};

        ride_init(&trip->ride);
        for (int i = 0; i < K * TOKENS_MOST; ++i)
                trip->x[i] = (float) (i * 5 % 23) / 16.0F - 0.6F;
        /* The first id has the best score. */
        for (int i = 0; i < EXPERTS * TOKENS_MOST; ++i)
                trip->scores[i] = -(float) (i % EXPERTS) - 100;
        for (int64_t i = 0; mixture->sorts && i < mixture->slots * mixture->tokens; ++i)
                trip->scores[i / mixture->slots * EXPERTS + trip->ids[i]] =
                        (float) (mixture->slots - i % mixture->slots);
        memset(trip->out, 0xff, sizeof trip->out);
        trip->ride.inputs[0] = (struct hr_run_input){trip->x, mixture->in_bytes};
        trip->ride.inputs[1] = (struct hr_run_input){
                mixture->sorts ? (const void *) trip->scores : trip->ids, mixture->ids_bytes};
        trip->ride.outputs[0] = (struct hr_run_output){mixture->out, trip->out, mixture->out_bytes};
        trip->ride.run.output_count = 1;
        HR_EXPECT_OK(ride_start(&trip->ride, pipeline, &diag), &diag);
}

static hr_status trip_end(struct trip *trip) {
        hr_status status = ride_wait(&trip->ride);

        ride_deinit(&trip->ride);
        return status;
}

static void ids_set(struct trip *trip, const struct mixture *mixture, const int32_t *ids) {
        memcpy(trip->ids, ids, (size_t) (mixture->slots * mixture->tokens) * sizeof *ids);
}

static uint32_t distinct(const struct trip *trip, const struct mixture *mixture) {
        uint32_t seen = 0, count = 0;

        for (int64_t i = 0; i < mixture->slots * mixture->tokens; ++i)
                seen |= 1U << trip->ids[i];
        for (uint32_t e = 0; e < EXPERTS; ++e)
                count += seen >> e & 1;
        return count;
}

/* The same run where weights travel whole. */
static void reference(const struct mixture *mixture, const int32_t *ids, struct trip *trip) {
        struct rig_of_two two;
        struct hr_pipeline *pipeline;

        two_init(&two, true, 0);
        pipeline = two_pipeline(&two, mixture, 1, 0);
        HR_EXPECT_EQ(pipeline->plan->group_count, 0);
        ids_set(trip, mixture, ids);
        trip_start(trip, mixture, pipeline);
        HR_EXPECT_EQ(trip_end(trip), HR_OK);
        HR_EXPECT_EQ(trip->ride.run.experts.bytes, 0);
        hr_pipeline_free(pipeline);
        two_deinit(&two);
}

static void poison_unused(struct rig_of_two *two, const struct trip *trip,
                          const struct mixture *mixture) {
        for (uint32_t e = 0; e < EXPERTS; ++e) {
                bool used = false;

                for (int64_t i = 0; i < mixture->slots * mixture->tokens; ++i)
                        used = used || trip->ids[i] == (int32_t) e;
                for (uint32_t w = 0; !used && w < WEIGHTS; ++w)
                        memset((uint8_t *) two->weights[w]->host_base + e * EXPERT_BYTES, 0xff,
                               EXPERT_BYTES);
        }
}

/* ---- Tests -------------------------------------------------------------------------------------
 */

struct routing {
        const char *name;
        int64_t slots, tokens;
        int32_t ids[8];
        uint32_t used, moves; /* moves: per weight, with neighbours together */
};

static const struct routing routings[] = {
        {"one", 1, 1, {3}, 1, 1},
        {"first only", 2, 1, {0, 0}, 1, 1},
        {"last only", 1, 2, {7, 7}, 1, 1},
        {"all", 4, 2, {3, 1, 0, 2, 7, 6, 4, 5}, 8, 1},
        {"duplicates", 3, 2, {2, 5, 2, 5, 5, 2}, 2, 2},
        {"1 1 4 6 6", 5, 1, {1, 1, 4, 6, 6}, 3, 3},
        {"neighbours", 2, 3, {5, 6, 4, 1, 2, 5}, 5, 2},
};

/* With the neighbours poisoned, and with and without bytes that kernels may read past an expert. */
HR_TEST(only_used_experts_are_copied) {
        for (size_t r = 0; r < 2 * HR_ARRAY_LENGTH(routings); ++r) {
                const struct routing *routing = &routings[r / 2];
                static struct trip expected, trip;
                struct mixture mixture;
                struct rig_of_two two;
                struct hr_pipeline *pipeline;

                mixture_init(&mixture, routing->slots, routing->tokens, -1);
                reference(&mixture, routing->ids, &expected);
                two_init(&two, false, 0);
                two.rig.devices[0]->props.expert_pad = r % 2 ? 48 : 0;
                pipeline = two_pipeline(&two, &mixture, 1, 0);
                HR_EXPECT_EQ(pipeline->plan->group_count, 1);
                HR_EXPECT_EQ(pipeline->plan->groups[0].member_count, WEIGHTS);
                ids_set(&trip, &mixture, routing->ids);
                poison_unused(&two, &trip, &mixture);
                for (int again = 0; again < 2; ++again) {
                        uint32_t misses = again ? 0 : routing->used;

                        trip_start(&trip, &mixture, pipeline);
                        HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                        if (memcmp(trip.out, expected.out, sizeof trip.out) != 0)
                                hr_test_fail(__FILE__, __LINE__, "%s: bits differ", routing->name);
                        /* Three weights, and the ids were read once. */
                        HR_EXPECT_EQ(pipeline->expert_caches[0].clock, again + 1);
                        HR_EXPECT_EQ(trip.ride.run.experts.misses, misses);
                        HR_EXPECT_EQ(trip.ride.run.experts.hits, routing->used - misses);
                        HR_EXPECT_EQ(trip.ride.run.experts.bytes, misses * LAYER_BYTES);
                        if (r % 2 == 0)
                                HR_EXPECT_EQ(trip.ride.run.experts.copies,
                                             again ? 0 : routing->moves * WEIGHTS);
                }
                HR_EXPECT_EQ(hr_fleet_exec_stats(two.rig.fleet).expert_bytes,
                             routing->used * LAYER_BYTES);
                hr_pipeline_free(pipeline);
                mixture_deinit(&mixture);
                two_deinit(&two);
        }
}

/* In memory that held something else before, what follows an expert is made finite. */
HR_TEST(bytes_after_an_expert_are_zeros) {
        enum { PAD = 48 };
        static struct trip trip;
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;
        const struct hr_expert_cache *cache;

        mixture_init(&mixture, 2, 1, -1);
        two_init(&two, false, 0);
        two.rig.devices[0]->props.expert_pad = PAD;
        pipeline = two_pipeline(&two, &mixture, 1, 0);
        cache = &pipeline->expert_caches[0];
        for (uint32_t w = 0; w < WEIGHTS; ++w) {
                HR_EXPECT(cache->weights[w].to_stride >= EXPERT_BYTES + PAD);
                memset(cache->weights[w].to, 0xff, cache->weights[w].to_stride * cache->places);
        }
        ids_set(&trip, &mixture, (int32_t[]){6, 2});
        trip_start(&trip, &mixture, pipeline);
        HR_EXPECT_EQ(trip_end(&trip), HR_OK);
        for (uint32_t w = 0; w < WEIGHTS; ++w) {
                const struct hr_expert_weight *weight = &cache->weights[w];
                const uint8_t *end = weight->to + 6 * weight->to_stride + weight->bytes;

                for (uint64_t i = 0; i < weight->to_stride - weight->bytes; ++i)
                        HR_EXPECT_EQ(end[i], 0);
        }
        hr_pipeline_free(pipeline);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

HR_TEST(zero_tokens_copy_nothing) {
        static struct trip trip;
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;

        mixture_init(&mixture, 2, 0, -1);
        two_init(&two, false, 0);
        pipeline = two_pipeline(&two, &mixture, 2, 0);
        for (int i = 0; i < 4; ++i) {
                trip_start(&trip, &mixture, pipeline);
                HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                HR_EXPECT_EQ(trip.ride.run.experts.bytes, 0);
        }
        HR_EXPECT_EQ(hr_fleet_exec_stats(two.rig.fleet).bytes_copied, 0);
        hr_pipeline_free(pipeline);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

HR_TEST(bad_ids_fail_their_run) {
        static struct trip trip, expected;
        const int32_t good[4] = {1, 2, 3, 2};
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;

        mixture_init(&mixture, 2, 2, -1);
        reference(&mixture, good, &expected);
        two_init(&two, false, 0);
        for (uint64_t limit = 0; limit < 2; ++limit) {
                const int32_t bad[] = {-1, EXPERTS, INT32_MAX, INT32_MIN};

                pipeline = two_pipeline(&two, &mixture, 2, limit);
                for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); ++i) {
                        ids_set(&trip, &mixture, good);
                        trip.ids[3] = bad[i];
                        trip_start(&trip, &mixture, pipeline);
                        HR_EXPECT_EQ(trip_end(&trip), HR_E_RANGE);
                        HR_EXPECT_STREQ(trip.ride.run.outcome.diag.reason, "INDEX_VALUE");
                        HR_EXPECT_EQ(trip.ride.run.outcome.diag.node, 1);
                        HR_EXPECT_EQ(trip.ride.run.experts.bytes, 0);
                        ids_set(&trip, &mixture, good);
                        trip_start(&trip, &mixture, pipeline);
                        HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                        HR_EXPECT(memcmp(trip.out, expected.out, sizeof trip.out) == 0);
                }
                hr_pipeline_free(pipeline);
        }
        mixture_deinit(&mixture);
        two_deinit(&two);
}

/* The ids are made by the device itself, or by another one, before the first expert is needed. */
HR_TEST(ids_made_in_the_same_run) {
        const int32_t ids[6] = {6, 1, 1, 2, 7, 0};

        for (int32_t sorter = 0; sorter < 2; ++sorter) {
                static struct trip trip, expected;
                struct mixture mixture;
                struct rig_of_two two;
                struct hr_pipeline *pipeline;

                mixture_init(&mixture, 2, 3, sorter);
                reference(&mixture, ids, &expected);
                two_init(&two, false, 0);
                rig_delay(&two.rig, 1, 300, 2);
                for (uint32_t n = 1; n <= 3; ++n) {
                        pipeline = two_pipeline(&two, &mixture, n, n == 3 ? 1 : 0);
                        HR_EXPECT_EQ(pipeline->plan->group_count, 1);
                        HR_EXPECT_EQ(pipeline->plan->rule_count[HR_RULE_EXPERTS], sorter == 0);
                        ids_set(&trip, &mixture, ids);
                        poison_unused(&two, &trip, &mixture);
                        for (int i = 0; i < 5; ++i) {
                                trip_start(&trip, &mixture, pipeline);
                                HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                                HR_EXPECT(memcmp(trip.out, expected.out, sizeof trip.out) == 0);
                        }
                        hr_pipeline_free(pipeline);
                }
                mixture_deinit(&mixture);
                two_deinit(&two);
        }
}

/* The verifier finds experts copied before their ids are there, by members in the wrong order, and
 * into memory that something else uses. */
HR_TEST(broken_tapes_are_refused) {
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_plan_request request;
        struct hr_plan_facts facts;
        struct hr_plan *plan = NULL;
        struct hr_command *commands;
        uint32_t at = 0, computed, next;
        struct hr_place place;

        mixture_init(&mixture, 2, 3, 0);
        two_init(&two, false, 0);
        request = (struct hr_plan_request){.graph = mixture.graph,
                                           .fleet = two.rig.fleet,
                                           .homes = two.homes,
                                           .pins = mixture.pins,
                                           .options = {.n_copies = 2}};
        HR_EXPECT_OK(hr_plan_new(&request, &two.rig.diag, &plan), &two.rig.diag);
        HR_EXPECT_OK(hr_plan_facts_init(&facts, &request, &two.rig.diag), &two.rig.diag);
        HR_EXPECT_OK(hr_plan_verify(plan, &facts.input, &two.rig.diag), &two.rig.diag);
        commands = plan->tape.commands;
        while (commands[at].code != HR_COMMAND_COPY_EXPERTS)
                ++at;
        for (next = at + 1; commands[next].code != HR_COMMAND_COPY_EXPERTS;)
                ++next;
        for (computed = at; commands[computed].code != HR_COMMAND_COMPUTE;)
                --computed;
        for (int broken = 0; broken < 3; ++broken) {
                uint32_t other = broken == 0 ? computed : next;
                struct hr_command kept[2] = {commands[at], commands[other]};
                struct hr_plan_copy *copy = &plan->copies[commands[at].index];

                place = copy->place;
                if (broken < 2) {
                        commands[at] = kept[1];
                        commands[other] = kept[0];
                } else {
                        copy->place = plan->place[plan->root[mixture.out]];
                        commands[at].to = copy->place;
                }
                HR_EXPECT_EQ(hr_plan_verify(plan, &facts.input, NULL), HR_E_INTERNAL);
                copy->place = place;
                commands[at] = kept[0];
                commands[other] = kept[1];
                HR_EXPECT_EQ(hr_plan_verify(plan, &facts.input, NULL), HR_OK);
        }
        hr_plan_facts_deinit(&facts);
        hr_plan_unref(plan);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

HR_TEST(written_weights_are_copied_again) {
        static struct trip trip;
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;
        float before;

        mixture_init(&mixture, 2, 1, -1);
        two_init(&two, false, 0);
        pipeline = two_pipeline(&two, &mixture, 1, 0);
        ids_set(&trip, &mixture, (int32_t[]){4, 5});
        for (int i = 0; i < 2; ++i) {
                trip_start(&trip, &mixture, pipeline);
                HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                HR_EXPECT_EQ(trip.ride.run.experts.misses, i ? 0 : 2);
        }
        before = trip.out[0];
        for (uint32_t i = 0; i < EXPERTS * K * M; ++i)
                ((float *) two.weights[2]->host_base)[i] *= 2;
        hr_buffer_changed(two.weights[2]);
        trip_start(&trip, &mixture, pipeline);
        HR_EXPECT_EQ(trip_end(&trip), HR_OK);
        HR_EXPECT_EQ(trip.ride.run.experts.misses, 2);
        HR_EXPECT(trip.out[0] == 2 * before);
        hr_pipeline_free(pipeline);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

/* Too little memory for all experts: those of one run are held, and no more. */
static uint32_t places_of(struct rig_of_two *two, const struct mixture *mixture,
                          uint64_t device_bytes, uint64_t option_bytes, bool *ret_resident) {
        struct hr_pipeline *pipeline;
        uint32_t places;

        two->rig.devices[0]->expert_bytes = device_bytes;
        pipeline = two_pipeline(two, mixture, 1, option_bytes);
        HR_EXPECT(pipeline->plan->group_count > 0);
        places = pipeline->plan->groups[0].places;
        *ret_resident = pipeline->plan->groups[0].resident;
        hr_pipeline_free(pipeline);
        return places;
}

/* What a device is given and what a plan is given mean the same; the smaller counts. */
HR_TEST(a_device_has_memory_for_experts_of_its_own) {
        const uint64_t some = WEIGHTS * 5 * EXPERT_BYTES; /* five of eight experts, at two a run */
        struct mixture mixture;
        struct rig_of_two two;
        bool resident;
        uint32_t most;

        mixture_init(&mixture, 2, 1, 0);
        two_init(&two, false, 0);
        HR_EXPECT_EQ(places_of(&two, &mixture, 0, 0, &resident), EXPERTS);
        HR_EXPECT(resident);
        most = places_of(&two, &mixture, 0, some, &resident);
        HR_EXPECT(most >= 2 && most < EXPERTS && resident);
        HR_EXPECT_EQ(places_of(&two, &mixture, some, 0, &resident), most);
        HR_EXPECT(resident);
        HR_EXPECT_EQ(places_of(&two, &mixture, some, UINT64_MAX, &resident), most);
        HR_EXPECT_EQ(places_of(&two, &mixture, UINT64_MAX, some, &resident), most);
        HR_EXPECT_EQ(places_of(&two, &mixture, 1, some, &resident), 2);
        HR_EXPECT(!resident);
        HR_EXPECT_EQ(places_of(&two, &mixture, some, 1, &resident), 2);
        HR_EXPECT(!resident);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

HR_TEST(experts_do_not_stay_when_memory_is_short) {
        static struct trip trip, expected;
        const int32_t ids[2] = {7, 3};
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;

        mixture_init(&mixture, 2, 1, -1);
        reference(&mixture, ids, &expected);
        two_init(&two, false, 3 * LAYER_BYTES);
        pipeline = two_pipeline(&two, &mixture, 2, 0);
        HR_EXPECT(!pipeline->plan->groups[0].resident);
        HR_EXPECT_EQ(pipeline->plan->groups[0].places, 2);
        HR_EXPECT_EQ(hr_pipeline_copies(pipeline), 2);
        ids_set(&trip, &mixture, ids);
        for (int i = 0; i < 2; ++i) {
                trip_start(&trip, &mixture, pipeline);
                HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                HR_EXPECT_EQ(trip.ride.run.experts.misses, 2);
                HR_EXPECT(memcmp(trip.out, expected.out, sizeof trip.out) == 0);
        }
        hr_pipeline_free(pipeline);
        mixture_deinit(&mixture);
        two_deinit(&two);
}

/* ---- Random routings ---------------------------------------------------------------------------
 */

/* The least recently used expert leaves first, as the device should do it. */
struct model {
        uint64_t used_at[EXPERTS], clock;
        bool there[EXPERTS];
        uint32_t places;
        bool resident;
};

static uint32_t model_run(struct model *model, const struct trip *trip, int64_t count) {
        uint32_t misses = 0, held = 0;

        ++model->clock;
        for (int64_t i = 0; i < count; ++i)
                model->used_at[trip->ids[i]] = model->clock;
        if (!model->resident)
                memset(model->there, 0, sizeof model->there);
        for (uint32_t e = 0; e < EXPERTS; ++e) {
                if (model->used_at[e] == model->clock && !model->there[e]) {
                        model->there[e] = true;
                        ++misses;
                }
                held += model->there[e];
        }
        for (; held > model->places; --held) {
                uint32_t oldest = EXPERTS;

                for (uint32_t e = 0; e < EXPERTS; ++e) {
                        if (model->there[e] &&
                            (oldest == EXPERTS || model->used_at[e] < model->used_at[oldest]))
                                oldest = e;
                }
                model->there[oldest] = false;
        }
        return misses;
}

static void route_at_random(uint64_t seed, uint64_t limit, uint32_t runs) {
        enum { IN_FLIGHT = 3 };
        static struct trip trips[IN_FLIGHT], expected[IN_FLIGHT];
        uint32_t misses[IN_FLIGHT];
        struct dice dice;
        struct mixture mixture;
        struct rig_of_two two, whole;
        struct hr_pipeline *pipeline, *other;
        struct model model = {0};
        uint64_t bytes = 0;

        dice_init(&dice, seed);
        mixture_init(&mixture, 2, 1 + dice_roll(&dice, 2), -1);
        two_init(&two, false, 0);
        two_init(&whole, true, 0);
        rig_delay(&two.rig, seed, 60, 6);
        pipeline = two_pipeline(&two, &mixture, IN_FLIGHT, limit);
        other = two_pipeline(&whole, &mixture, IN_FLIGHT, 0);
        model.places = pipeline->plan->groups[0].places;
        model.resident = pipeline->plan->groups[0].resident;
        for (uint32_t n = 0; n < runs + IN_FLIGHT; ++n) {
                struct trip *trip = &trips[n % IN_FLIGHT], *wanted = &expected[n % IN_FLIGHT];

                if (n >= IN_FLIGHT) {
                        HR_EXPECT_EQ(trip_end(trip), HR_OK);
                        HR_EXPECT_EQ(trip_end(wanted), HR_OK);
                        if (memcmp(trip->out, wanted->out, sizeof trip->out) != 0)
                                hr_test_fail(__FILE__, __LINE__, "HR_SEED=%llu: run %u differs",
                                             (unsigned long long) seed, n - IN_FLIGHT);
                        HR_EXPECT_EQ(trip->ride.run.experts.misses, misses[n % IN_FLIGHT]);
                        HR_EXPECT_EQ(trip->ride.run.experts.hits + misses[n % IN_FLIGHT],
                                     distinct(trip, &mixture));
                        HR_EXPECT_EQ(trip->ride.run.experts.bytes,
                                     misses[n % IN_FLIGHT] * LAYER_BYTES);
                        bytes += misses[n % IN_FLIGHT] * (uint64_t) LAYER_BYTES;
                }
                if (n >= runs)
                        continue;
                for (int64_t i = 0; i < mixture.slots * mixture.tokens; ++i)
                        trip->ids[i] = (int32_t) (dice_roll(&dice, 3) ? dice_roll(&dice, 3)
                                                                      : dice_roll(&dice, EXPERTS));
                memcpy(wanted->ids, trip->ids, sizeof trip->ids);
                misses[n % IN_FLIGHT] = model_run(&model, trip, mixture.slots * mixture.tokens);
                trip_start(trip, &mixture, pipeline);
                trip_start(wanted, &mixture, other);
        }
        HR_EXPECT_EQ(hr_fleet_exec_stats(two.rig.fleet).expert_bytes, bytes);
        HR_EXPECT_EQ(hr_fleet_exec_stats(two.rig.fleet).expert_misses * LAYER_BYTES, bytes);
        hr_pipeline_free(pipeline);
        hr_pipeline_free(other);
        mixture_deinit(&mixture);
        two_deinit(&two);
        two_deinit(&whole);
}

/* All experts stay, six layers' worth of one run, and none. */
HR_TEST_LIMIT(a_thousand_random_routings, 200) {
        const uint64_t limits[] = {0, 6 * LAYER_BYTES, 1};
        const char *only = getenv("HR_SEED");
        uint64_t first = only ? strtoull(only, NULL, 10) : 1;
        uint64_t count = only ? 1 : getenv("HEADRACE_FULL") ? 40 : 4;

        printf("seeds %llu to %llu\n", (unsigned long long) first,
               (unsigned long long) (first + count - 1));
        for (uint64_t seed = first; seed < first + count; ++seed) {
                for (size_t i = 0; i < HR_ARRAY_LENGTH(limits); ++i)
                        route_at_random(seed, limits[i], 100);
        }
}

/* A run that ends between two weights of a layer leaves no half of an expert behind. */
HR_TEST(cancelled_runs_leave_nothing_half_done) {
        static struct trip trip, expected;
        const int32_t ids[4] = {0, 3, 5, 6};
        struct mixture mixture;
        struct rig_of_two two;
        struct hr_pipeline *pipeline;
        struct dice dice;

        mixture_init(&mixture, 4, 1, 0);
        reference(&mixture, ids, &expected);
        two_init(&two, false, 0);
        rig_delay(&two.rig, 3, 200, 2);
        dice_init(&dice, 3);
        for (int i = 0; i < 60; ++i) {
                pipeline = two_pipeline(&two, &mixture, 1, 0);
                ids_set(&trip, &mixture, ids);
                trip_start(&trip, &mixture, pipeline);
                for (uint32_t turns = dice_roll(&dice, 200000); turns > 0; --turns)
                        atomic_signal_fence(memory_order_seq_cst);
                hr_run_cancel(&trip.ride.run, HR_E_CANCELLED, "TEST");
                (void) trip_end(&trip);
                trip_start(&trip, &mixture, pipeline);
                HR_EXPECT_EQ(trip_end(&trip), HR_OK);
                HR_EXPECT(memcmp(trip.out, expected.out, sizeof trip.out) == 0);
                hr_pipeline_free(pipeline);
        }
        mixture_deinit(&mixture);
        two_deinit(&two);
}
