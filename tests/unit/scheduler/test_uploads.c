/*
 * Weights that arrive while their device computes: in the same run the next layer's bytes come in
 * beside the computing of this one, with the same bits as in turn, in bounded memory, and in turn
 * where there is no memory for it.
 *
 * HR_SEED=N replays a seed.
 */
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"
#include "scheduler/trace.h"
#include "tests/unit/scheduler/delays.h"
#include "tests/unit/scheduler/meeting.h"
#include "tests/unit/scheduler/tower.h"

enum { COMMANDS_MOST = 256 };

static const struct rig_device devices[4] = {
        {.isolated = true}, {.isolated = true}, {.isolated = true}, {0}};

/* A tower on the rig's devices, with its weights on the last one. */
struct site {
        struct tower tower;
        struct tower_home home;
        struct rig *rig;
};

static void site_init(struct site *site, struct rig *rig, const char *kinds, uint32_t count) {
        site->rig = rig;
        tower_init(&site->tower, kinds, count);
        tower_home_init(&site->home, &site->tower,
                        rig->devices[hr_fleet_device_count(rig->fleet) - 1]);
}

static void site_deinit(struct site *site) {
        tower_home_deinit(&site->home);
        tower_deinit(&site->tower);
}

static struct hr_plan *site_plan(struct site *site, uint32_t n_copies, bool serial) {
        const struct hr_plan_request request = {
                .graph = site->tower.graph,
                .fleet = site->rig->fleet,
                .homes = site->home.homes,
                .pins = site->tower.pins,
                .options = {.n_copies = n_copies, .serial_uploads = serial}};
        struct hr_plan *plan = NULL;

        HR_EXPECT_OK(hr_plan_new(&request, &site->rig->diag, &plan), &site->rig->diag);
        return plan;
}

static struct hr_pipeline *site_pipeline(struct site *site, uint32_t n_copies, bool serial) {
        struct hr_pipeline_request request = {.graph = site->tower.graph,
                                              .fleet = site->rig->fleet,
                                              .homes = site->home.homes,
                                              .plan = site_plan(site, n_copies, serial)};
        struct hr_pipeline *pipeline = NULL;

        HR_EXPECT_OK(hr_pipeline_new(&request, &site->rig->diag, &pipeline), &site->rig->diag);
        hr_plan_unref(request.plan);
        return pipeline;
}

struct climb {
        struct ride ride;
        struct hr_trace_entry entries[COMMANDS_MOST];
        float x[TOWER_FLOATS], out[TOWER_FLOATS];
};

static void climb_start(struct climb *climb, const struct site *site, struct hr_pipeline *pipeline,
                        uint32_t number) {
        struct hr_diag diag = {0};

        ride_init(&climb->ride);
        HR_EXPECT(hr_pipeline_command_count(pipeline) <= COMMANDS_MOST);
        climb->ride.run.trace = climb->entries;
        for (uint32_t i = 0; i < TOWER_FLOATS; ++i)
                climb->x[i] = (float) ((i * 5 + number * 3) % 23) / 16.0F - 0.6F;
        memset(climb->out, 0xff, sizeof climb->out);
        climb->ride.inputs[0] = (struct hr_run_input){climb->x, sizeof climb->x};
        climb->ride.outputs[0] =
                (struct hr_run_output){site->tower.out, climb->out, sizeof climb->out};
        climb->ride.run.output_count = 1;
        HR_EXPECT_OK(ride_start(&climb->ride, pipeline, &diag), &diag);
}

static void climb_end(struct climb *climb) {
        HR_EXPECT_EQ(ride_wait(&climb->ride), HR_OK);
        ride_deinit(&climb->ride);
}

static uint32_t uploads_in(const struct hr_plan *plan) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < plan->tape.count; ++i)
                count += plan->tape.commands[i].upload &&
                         (plan->tape.commands[i].code == HR_COMMAND_WRITE ||
                          plan->tape.commands[i].code == HR_COMMAND_COPY_EXPERTS);
        return count;
}

/* ---- Overlap -----------------------------------------------------------------------------------
 */

/* How many uploads of a layer overlap the computing of an earlier one, by the trace of the run. */
static uint32_t overlaps(const struct climb *climb) {
        struct hr_arena arena;
        struct hr_trace trace;
        struct hr_diag diag = {0};
        uint32_t count = 0, devices_in_all = climb->ride.run.pipeline->plan->device_count;

        hr_arena_init(&arena, 0);
        HR_EXPECT_OK(hr_run_trace(&climb->ride.run, &arena, &diag, &trace), &diag);
        for (uint32_t i = 0; i < trace.count; ++i) {
                bool found = false;

                if (trace.device[i] < devices_in_all ||
                    (trace.kind[i] != HR_TRACE_WRITE && trace.kind[i] != HR_TRACE_EXPERTS))
                        continue;
                for (uint32_t j = 0; j < trace.count; ++j)
                        found = found || (trace.kind[j] == HR_TRACE_COMPUTE &&
                                          trace.device[j] == trace.device[i] - devices_in_all &&
                                          trace.split[j] < trace.split[i] &&
                                          trace.begin_ns[i] < trace.end_ns[j] &&
                                          trace.begin_ns[j] < trace.end_ns[i]);
                count += found;
        }
        hr_arena_deinit(&arena);
        return count;
}

/* Layer n + 1 arrives while layer n is computed: both are held until the other is under way. */
static void meet_in_one_run(const char *kinds, uint32_t n_copies, uint32_t skipped,
                            uint32_t meetings, meeting_kind kind) {
        static struct climb climb, expected;
        struct hr_pipeline *pipeline, *serial;
        struct site site, plain;
        struct rig rig, other;

        rig_init(&rig, devices + 2, 2);
        rig_init(&other, devices + 2, 2);
        site_init(&site, &rig, kinds, 1);
        site_init(&plain, &other, kinds, 1);
        rig_meet_uploads(&rig, 0, skipped, meetings, kind);
        pipeline = site_pipeline(&site, n_copies, false);
        serial = site_pipeline(&plain, n_copies, true);
        HR_EXPECT_EQ(uploads_in(serial->plan), 0);
        HR_EXPECT(uploads_in(pipeline->plan) >= meetings);
        climb_start(&climb, &site, pipeline, 1);
        climb_end(&climb);
        HR_EXPECT_EQ(rig_missed_meetings(), 0);
        HR_EXPECT(overlaps(&climb) >= meetings);
        climb_start(&expected, &plain, serial, 1);
        climb_end(&expected);
        HR_EXPECT(memcmp(climb.out, expected.out, sizeof climb.out) == 0);
        hr_pipeline_free(serial);
        hr_pipeline_free(pipeline);
        site_deinit(&plain);
        site_deinit(&site);
        rig_deinit(&other);
        rig_deinit(&rig);
}

HR_TEST_LIMIT(the_next_layer_arrives_while_this_one_is_computed, 60) {
        meet_in_one_run("dddddd", 1, 0, 6, MEET_WRITE);
        meet_in_one_run("dddddd", 2, 0, 6, MEET_WRITE);
}

/* Ids that are made before any layer: the experts of layers 1 to 4 travel early. */
HR_TEST_LIMIT(experts_arrive_early_when_their_ids_are_known, 60) {
        meet_in_one_run("deeee", 1, 1, 4, MEET_EXPERTS);
}

/* ---- Bits --------------------------------------------------------------------------------------
 */

static void climb_at_random(uint64_t seed, const char *kinds, uint32_t count, uint32_t n_copies) {
        enum { IN_FLIGHT = 4, RUNS = 24 };
        static struct climb climbs[IN_FLIGHT], expected[IN_FLIGHT];
        struct hr_pipeline *pipeline, *serial;
        struct site site, plain;
        struct rig rig, other;

        rig_init(&rig, devices + 3 - count, count + 1);
        rig_init(&other, devices + 3 - count, count + 1);
        site_init(&site, &rig, kinds, count);
        site_init(&plain, &other, kinds, count);
        rig_delay(&rig, seed, 120, 3);
        pipeline = site_pipeline(&site, n_copies, false);
        serial = site_pipeline(&plain, n_copies, true);
        HR_EXPECT(uploads_in(pipeline->plan) > 0);
        for (uint32_t n = 0; n < RUNS; ++n) {
                struct climb *climb = &climbs[n % hr_pipeline_copies(pipeline)];
                struct climb *wanted = &expected[n % hr_pipeline_copies(pipeline)];

                if (n >= hr_pipeline_copies(pipeline)) {
                        climb_end(climb);
                        climb_end(wanted);
                        if (memcmp(climb->out, wanted->out, sizeof climb->out) != 0)
                                hr_test_fail(__FILE__, __LINE__,
                                             "HR_SEED=%llu: %s on %u devices, %u copies: differs",
                                             (unsigned long long) seed, kinds, count, n_copies);
                }
                climb_start(climb, &site, pipeline, n);
                climb_start(wanted, &plain, serial, n);
        }
        for (uint32_t i = 0; i < hr_pipeline_copies(pipeline); ++i) {
                climb_end(&climbs[i]);
                climb_end(&expected[i]);
                HR_EXPECT(memcmp(climbs[i].out, expected[i].out, sizeof climbs[i].out) == 0);
        }
        hr_pipeline_free(serial);
        hr_pipeline_free(pipeline);
        site_deinit(&plain);
        site_deinit(&site);
        rig_deinit(&other);
        rig_deinit(&rig);
}

HR_TEST_LIMIT(the_same_bits_as_in_turn, 200) {
        static const char *const kinds[] = {"dddddd", "dmdmdmd", "deedeed", "edmdemdd"};
        const char *only = getenv("HR_SEED");
        uint64_t first = only ? strtoull(only, NULL, 10) : 1;
        uint64_t seeds = only ? 1 : getenv("HEADRACE_FULL") ? 40 : 2;

        printf("seeds %llu to %llu\n", (unsigned long long) first,
               (unsigned long long) (first + seeds - 1));
        for (uint64_t seed = first; seed < first + seeds; ++seed) {
                for (size_t k = 0; k < HR_ARRAY_LENGTH(kinds); ++k) {
                        for (uint32_t n = 1; n <= 4; ++n)
                                climb_at_random(seed, kinds[k], 1 + (uint32_t) (seed + n) % 3, n);
                }
        }
}

/* ---- Memory ------------------------------------------------------------------------------------
 */

/* Two layers' weights at a time instead of one; where that is too much, one. */
HR_TEST(early_weights_take_the_room_of_one_layer_more) {
        static struct climb climb;
        struct rig_device small[2] = {{.isolated = true}, {0}};
        struct hr_pipeline *pipeline;
        struct hr_plan *early, *serial;
        struct site site;
        struct rig rig;

        rig_init(&rig, devices + 2, 2);
        site_init(&site, &rig, "dddddd", 1);
        early = site_plan(&site, 1, false);
        serial = site_plan(&site, 1, true);
        HR_EXPECT(early->compute_bytes[0] > serial->compute_bytes[0]);
        HR_EXPECT(early->compute_bytes[0] <=
                  serial->compute_bytes[0] + tower_weight_bytes(&site.tower, 0));
        small[0].memory_cap = serial->compute_bytes[0];
        hr_plan_unref(early);
        hr_plan_unref(serial);
        site_deinit(&site);
        rig_deinit(&rig);

        rig_init(&rig, small, 2);
        site_init(&site, &rig, "dddddd", 1);
        pipeline = site_pipeline(&site, 1, false);
        HR_EXPECT_EQ(uploads_in(pipeline->plan), 0);
        HR_EXPECT_EQ(hr_pipeline_bytes(pipeline, 0), small[0].memory_cap);
        climb_start(&climb, &site, pipeline, 1);
        climb_end(&climb);
        hr_pipeline_free(pipeline);
        site_deinit(&site);
        rig_deinit(&rig);
}

/* The reference knows one queue per device. */
HR_TEST(plans_of_the_reference_have_no_uploads) {
        struct site site;
        struct rig rig;
        struct hr_plan_request request;
        struct hr_plan *plan = NULL;

        rig_init(&rig, devices + 2, 2);
        site_init(&site, &rig, "dddd", 1);
        request = (struct hr_plan_request){.graph = site.tower.graph,
                                           .fleet = rig.fleet,
                                           .homes = site.home.homes,
                                           .pins = site.tower.pins,
                                           .options = {.rules = HR_RULES_GGML, .n_copies = 1}};
        HR_EXPECT_OK(hr_plan_new(&request, &rig.diag, &plan), &rig.diag);
        HR_EXPECT_EQ(uploads_in(plan), 0);
        HR_EXPECT(plan->copied_bytes >= 4 * tower_weight_bytes(&site.tower, 0));
        hr_plan_unref(plan);
        site_deinit(&site);
        rig_deinit(&rig);
}
