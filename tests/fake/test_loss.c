/*
 * Lost devices: what was in flight fails once and hangs nowhere, the device is retired, and what is
 * planned anew runs on the others.
 */
#include "tests/fake/studio.h"

enum { WIDTH = 16, DEVICES = 4 };

/* out = ((x + a) + b) + c, one addition on each of the first three devices, the first two of which
 * hold their weights themselves; c lies on the last, which is host memory. */
struct relay {
        struct studio studio;
        struct scene scene;
        uint32_t weights[3], output;
        struct hr_leaf_home homes[8];
};

static void relay_init(struct relay *relay, bool pinned, bool local_weights) {
        struct hr_fake_config config = {.peer = true, .step_ns = 1000, .command_ns = 50};
        uint32_t at;

        memset(relay, 0, sizeof *relay);
        studio_init(&relay->studio, DEVICES, &config);
        scene_init(&relay->scene, WIDTH);
        at = scene_leaf(&relay->scene, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < 3; ++i)
                relay->weights[i] = scene_leaf(&relay->scene, HR_LEAF_WEIGHT, i ? "b" : "a");
        for (uint32_t i = 0; i < 3; ++i)
                at = scene_node(&relay->scene, HR_OP_ADD, at, relay->weights[i],
                                pinned ? (int32_t) i : HR_NO_PIN);
        relay->output = at;
        scene_output(&relay->scene, at);
        scene_finish(&relay->scene);
        for (uint32_t i = 0; i < 3; ++i) {
                struct hr_leaf_home *home = &relay->homes[relay->weights[i]];
                struct hr_device *device = relay->studio.devices[local_weights ? i : DEVICES - 1];

                HR_EXPECT_OK(hr_buffer_new(device, WIDTH * sizeof(float), HR_USAGE_WEIGHTS,
                                           &relay->studio.diag, &home->buffer),
                             &relay->studio.diag);
                for (int k = 0; k < WIDTH; ++k)
                        ((float *) home->buffer->host_base)[k] = (float) ((int) (i + 1) * 100 + k);
        }
}

static void relay_deinit(struct relay *relay) {
        for (int i = 0; i < 8; ++i)
                hr_buffer_unref(relay->homes[i].buffer);
        scene_deinit(&relay->scene);
        studio_deinit(&relay->studio);
}

struct shot {
        struct take take;
        float x[WIDTH], out[WIDTH];
};

static hr_status shoot(struct relay *relay, struct hr_pipeline *pipeline, uint32_t number,
                       struct shot *shot, struct hr_diag *diag) {
        take_init(&shot->take, &relay->studio);
        for (int i = 0; i < WIDTH; ++i)
                shot->x[i] = (float) number;
        memset(shot->out, 0, sizeof shot->out);
        shot->take.inputs[0] = (struct hr_run_input){shot->x, sizeof shot->x};
        shot->take.outputs[0] = (struct hr_run_output){relay->output, shot->out, sizeof shot->out};
        shot->take.run.output_count = 1;
        return hr_run_start(pipeline, &shot->take.run, diag);
}

static void expect_out(const struct shot *shot) {
        for (int i = 0; i < WIDTH; ++i)
                HR_EXPECT_EQ(shot->out[i], shot->x[i] + 600 + (float) (3 * i));
}

static void expect_right(struct relay *relay, struct hr_pipeline *pipeline) {
        for (uint32_t n = 1; n < 5; ++n) {
                struct hr_diag diag = {0};
                struct shot shot;

                HR_EXPECT_OK(shoot(relay, pipeline, n, &shot, &diag), &diag);
                HR_EXPECT_OK(take_wait(&shot.take), &shot.take.run.outcome.diag);
                expect_out(&shot);
        }
}

/* The device is lost after `steps` commands have ended, with three runs in flight. */
static void lose_in_flight(uint32_t victim, uint32_t steps) {
        struct hr_pipeline *pipeline, *other;
        struct shot shots[3], late;
        struct hr_diag diag = {0};
        struct relay relay;
        uint64_t epoch;
        uint32_t failed = 0;

        relay_init(&relay, false, false);
        /* Pins for the first pipeline only: the next plan is free to choose. */
        for (uint32_t i = 0; i < 3; ++i)
                relay.scene.pins[4 + i] = (int32_t) i;
        pipeline = studio_pipeline(&relay.studio, &relay.scene, relay.homes, NULL, 0, 3);
        epoch = hr_fleet_epoch(relay.studio.fleet);
        HR_EXPECT_EQ(hr_pipeline_copies(pipeline), 3);
        for (uint32_t i = 0; i < 3; ++i)
                HR_EXPECT_OK(shoot(&relay, pipeline, i, &shots[i], &diag), &diag);
        for (uint32_t i = 0; i < steps && hr_fake_step(relay.studio.world); ++i) {
        }
        hr_fake_lose(relay.studio.devices[victim]);
        for (uint32_t i = 0; i < 3; ++i) {
                hr_status status = take_wait(&shots[i].take);

                HR_EXPECT(status == HR_OK || status == HR_E_DEVICE_LOST);
                if (status == HR_OK)
                        expect_out(&shots[i]);
                failed += status != HR_OK;
                HR_EXPECT(status == HR_OK ||
                          hr_status_scope(shots[i].take.run.outcome.diag.status) ==
                                  HR_SCOPE_DEVICE);
        }
        hr_fake_run(relay.studio.world);
        for (uint32_t i = 0; i < 3; ++i)
                HR_EXPECT_EQ(shots[i].take.done_count, 1);
        HR_EXPECT(steps > 0 || failed == 3);
        /* Not retired yet: a run is taken, fails and ends, and is the last one. */
        if (failed == 0) {
                HR_EXPECT_OK(shoot(&relay, pipeline, 9, &late, &diag), &diag);
                HR_EXPECT_EQ(take_wait(&late.take), HR_E_DEVICE_LOST);
                late.take.done_count = 0;
        }
        HR_EXPECT_EQ(shoot(&relay, pipeline, 9, &late, &diag), HR_E_DEVICE_LOST);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "RETIRED");
        HR_EXPECT_EQ(late.take.done_count, 0);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 0);
        HR_EXPECT_EQ(hr_fleet_epoch(relay.studio.fleet), epoch + 1);
        HR_EXPECT(hr_fleet_is_retired(relay.studio.fleet, victim));
        HR_EXPECT(hr_pipeline_is_lost(pipeline));
        HR_EXPECT_EQ(shoot(&relay, pipeline, 9, &late, &diag), HR_E_DEVICE_LOST);
        HR_EXPECT_EQ(late.take.done_count, 0);
        hr_diag_clear(&diag);
        relay.scene.pins[4 + victim] = HR_NO_PIN;
        other = studio_pipeline(&relay.studio, &relay.scene, relay.homes, NULL, 0, 2);
        HR_EXPECT(!hr_pipeline_is_lost(other));
        expect_right(&relay, other);
        hr_pipeline_free(other);
        hr_pipeline_free(pipeline);
        relay_deinit(&relay);
}

HR_TEST_LIMIT(runs_in_flight_end_once_whenever_a_device_is_lost, 60) {
        for (uint32_t victim = 0; victim < 3; ++victim) {
                for (uint32_t steps = 0; steps < 60; ++steps)
                        lose_in_flight(victim, steps);
        }
}

HR_TEST(plans_leave_retired_devices_out) {
        for (uint32_t victim = 0; victim < 3; ++victim) {
                struct hr_plan *plan;
                struct relay relay;

                relay_init(&relay, false, false);
                hr_fake_lose(relay.studio.devices[victim]);
                HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
                HR_EXPECT_EQ(
                        hr_fleet_find(relay.studio.fleet, relay.studio.devices[victim]->props.name),
                        -1);
                plan = studio_plan(&relay.studio, &relay.scene, relay.homes, 2);
                for (uint32_t i = 0; i < relay.scene.tensor_count; ++i)
                        HR_EXPECT(hr_plan_tensor_device(plan, i) != (int32_t) victim);
                HR_EXPECT_EQ(hr_plan_summary(plan).compute_bytes[victim], 0);
                HR_EXPECT_EQ(hr_plan_summary(plan).device_splits[victim], 0);
                hr_plan_unref(plan);
                relay_deinit(&relay);
        }
}

static hr_status plan_status(struct relay *relay, struct hr_diag *diag) {
        struct hr_plan_request request = {.graph = relay->scene.graph,
                                          .fleet = relay->studio.fleet,
                                          .homes = relay->homes,
                                          .pins = relay->scene.pins};
        struct hr_plan *plan = NULL;
        hr_status status = hr_plan_new(&request, diag, &plan);

        hr_plan_unref(plan);
        return status;
}

HR_TEST(what_only_a_lost_device_had_is_an_error_with_words) {
        struct hr_diag diag = {0};
        struct relay relay;

        /* A pin. */
        relay_init(&relay, true, false);
        hr_fake_lose(relay.studio.devices[1]);
        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
        HR_EXPECT_EQ(plan_status(&relay, &diag), HR_E_UNSUPPORTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "PIN");
        relay_deinit(&relay);
        /* A weight. */
        hr_diag_clear(&diag);
        relay_init(&relay, false, true);
        hr_fake_lose(relay.studio.devices[1]);
        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
        HR_EXPECT_EQ(plan_status(&relay, &diag), HR_E_DATA_LOSS);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DEVICE");
        HR_EXPECT(diag.has_tensor && diag.tensor == relay.weights[1]);
        relay_deinit(&relay);
        /* The last device, without which nothing is planned. */
        hr_diag_clear(&diag);
        relay_init(&relay, false, false);
        hr_fake_lose(relay.studio.devices[DEVICES - 1]);
        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
        HR_EXPECT_EQ(plan_status(&relay, &diag), HR_E_DEVICE_LOST);
        relay_deinit(&relay);
}

HR_TEST(the_cache_plans_anew_for_the_epoch) {
        struct hr_plan_cache *cache = NULL;
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        hr_plan_origin origin;
        uint32_t different;
        struct relay relay;

        relay_init(&relay, false, false);
        HR_EXPECT_OK(hr_plan_cache_new(1 << 20, &diag, &cache), &diag);
        for (int i = 0; i < 4; ++i) {
                static const hr_plan_origin expected[] = {HR_PLAN_MISS_NEW, HR_PLAN_HIT,
                                                          HR_PLAN_MISS_EPOCH, HR_PLAN_HIT};
                struct hr_plan_request request = {.graph = relay.scene.graph,
                                                  .fleet = relay.studio.fleet,
                                                  .homes = relay.homes};

                if (i == 2) {
                        hr_fake_lose(relay.studio.devices[0]);
                        HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), 1);
                }
                HR_EXPECT_OK(hr_plan_cache_get(cache, &request, &diag, &plan, &origin, &different),
                             &diag);
                HR_EXPECT_EQ(origin, expected[i]);
                plan = hr_plan_unref(plan);
        }
        hr_plan_cache_free(cache);
        relay_deinit(&relay);
}

/* A device that is lost by what it answers, at any call while a pipeline is made and runs. */
HR_TEST_LIMIT(any_call_may_be_the_one_that_tells_of_the_loss, 60) {
        uint32_t made = 0, ran = 0;

        for (uint64_t n = 1; n < 80; ++n) {
                struct hr_plan_request request;
                struct hr_pipeline_request bind;
                struct hr_pipeline *pipeline = NULL;
                struct hr_plan *plan;
                struct hr_diag diag = {0};
                struct shot shot;
                struct relay relay;
                hr_status status;

                relay_init(&relay, true, false);
                plan = studio_plan(&relay.studio, &relay.scene, relay.homes, 2);
                bind = (struct hr_pipeline_request){.plan = plan,
                                                    .graph = relay.scene.graph,
                                                    .fleet = relay.studio.fleet,
                                                    .homes = relay.homes};
                hr_fake_fail_call(relay.studio.world, n, HR_E_DEVICE_LOST, false);
                status = hr_pipeline_new(&bind, &diag, &pipeline);
                HR_EXPECT(status == HR_OK || status == HR_E_DEVICE_LOST);
                made += status == HR_OK;
                if (status == HR_OK && shoot(&relay, pipeline, 3, &shot, &diag) == HR_OK) {
                        status = take_wait(&shot.take);
                        HR_EXPECT(status == HR_OK || status == HR_E_DEVICE_LOST);
                        ran += status == HR_OK;
                }
                hr_fake_fail_call(relay.studio.world, 0, HR_OK, false);
                HR_EXPECT_EQ(hr_fleet_retire(relay.studio.fleet), status == HR_OK ? 0 : 1);
                hr_pipeline_free(pipeline);
                hr_plan_unref(plan);
                if (!hr_fleet_is_retired(relay.studio.fleet, DEVICES - 1)) {
                        for (uint32_t i = 0; i < 3; ++i)
                                relay.scene.pins[4 + i] = HR_NO_PIN;
                        pipeline = studio_pipeline(&relay.studio, &relay.scene, relay.homes, NULL,
                                                   0, 2);
                        expect_right(&relay, pipeline);
                        hr_pipeline_free(pipeline);
                } else {
                        request = (struct hr_plan_request){.graph = relay.scene.graph,
                                                           .fleet = relay.studio.fleet,
                                                           .homes = relay.homes};
                        plan = NULL;
                        hr_diag_clear(&diag);
                        HR_EXPECT_EQ(hr_plan_new(&request, &diag, &plan), HR_E_DEVICE_LOST);
                }
                relay_deinit(&relay);
        }
        HR_EXPECT(made > 20 && made < 79);
        HR_EXPECT(ran > 5 && ran < made);
}
