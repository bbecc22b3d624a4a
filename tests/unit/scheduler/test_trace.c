/*
 * Traces of runs on isolated devices: what they name, that their times follow each queue and each
 * event, and that they show what is under way at the same time. What has to overlap is made to meet
 * (meeting.h), so that nothing depends on how fast the machine is.
 */
#include <stdlib.h>
#include <string.h>

#include "scheduler/exec.h"
#include "tests/unit/scheduler/delays.h"
#include "tests/unit/scheduler/meeting.h"

enum { WIDTH = 8, RUNS = 6, COMMANDS_MOST = 64 };
enum { K = 32, EXPERTS = 8, SLOTS = 2, EXPERT_BYTES = K * K * 4 };

/* A run and all that it needs. */
struct journey {
        struct ride ride;
        struct hr_trace_entry entries[COMMANDS_MOST];
        struct hr_arena arena;
        struct hr_trace trace;
        float x[K], out[SLOTS * K];
        int32_t ids[2][SLOTS];
};

static void journey_start(struct journey *journey, struct hr_pipeline *pipeline) {
        const struct hr_graph *graph = pipeline->graph;
        struct hr_diag diag = {0};
        const void *data[3] = {journey->x, journey->ids[0], journey->ids[1]};

        ride_init(&journey->ride);
        hr_arena_init(&journey->arena, 0);
        HR_EXPECT(hr_pipeline_command_count(pipeline) <= COMMANDS_MOST);
        memset(journey->entries, 0xff, sizeof journey->entries);
        journey->ride.run.trace = journey->entries;
        for (uint32_t i = 0; i < graph->input_count; ++i)
                journey->ride.inputs[i] = (struct hr_run_input){
                        data[i], hr_tensor_bytes(&graph->tensors[graph->inputs[i]])};
        journey->ride.outputs[0] =
                (struct hr_run_output){graph->outputs[0], journey->out,
                                       hr_tensor_bytes(&graph->tensors[graph->outputs[0]])};
        journey->ride.run.output_count = 1;
        HR_EXPECT_OK(ride_start(&journey->ride, pipeline, &diag), &diag);
}

static hr_status journey_end(struct journey *journey) {
        hr_status status = ride_wait(&journey->ride);
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_run_trace(&journey->ride.run, &journey->arena, &diag, &journey->trace),
                     &diag);
        return status;
}

static void journey_deinit(struct journey *journey) {
        ride_deinit(&journey->ride);
        hr_arena_deinit(&journey->arena);
}

/* The position of the command, of which there is one. */
static uint32_t find(const struct hr_trace *trace, hr_trace_kind kind, uint32_t device,
                     uint32_t split) {
        uint32_t found = UINT32_MAX;

        for (uint32_t i = 0; i < trace->count; ++i) {
                if (trace->kind[i] != kind || trace->device[i] != device ||
                    trace->split[i] != split)
                        continue;
                HR_EXPECT_EQ(found, UINT32_MAX);
                found = i;
        }
        HR_EXPECT(found != UINT32_MAX);
        return found;
}

static bool overlap(const struct hr_trace *a, uint32_t i, const struct hr_trace *b, uint32_t j) {
        return a->begin_ns[i] < b->end_ns[j] && b->begin_ns[j] < a->end_ns[i];
}

/* Commands of a queue follow each other, within the run, and nobody gets past a wait before the
 * record that it waits for. */
static void check_times(const struct hr_trace *trace) {
        uint64_t queue_end[RIG_DEVICES] = {0};
        uint64_t recorded[COMMANDS_MOST] = {0};

        for (uint32_t i = 0; i < trace->count; ++i) {
                uint32_t device = trace->device[i];

                HR_EXPECT(trace->begin_ns[i] <= trace->end_ns[i]);
                HR_EXPECT(queue_end[device] <= trace->begin_ns[i]);
                queue_end[device] = trace->end_ns[i];
                HR_EXPECT(trace->started_ns <= trace->begin_ns[i]);
                HR_EXPECT(trace->end_ns[i] <= trace->ended_ns);
                if (trace->kind[i] == HR_TRACE_RECORD)
                        recorded[trace->subject[i]] = trace->begin_ns[i];
                if (trace->kind[i] == HR_TRACE_WAIT && trace->subject[i] < trace->slot_event_count)
                        HR_EXPECT(recorded[trace->subject[i]] &&
                                  recorded[trace->subject[i]] <= trace->end_ns[i]);
        }
}

/* x + x on d0, times x on d1. */
static struct hr_graph *two_stages(struct sketch *sketch) {
        uint32_t x, y;

        sketch_init(sketch, WIDTH);
        x = sketch_leaf(sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(sketch, HR_OP_ADD, x, x, 0);
        sketch_output(sketch, sketch_node(sketch, HR_OP_MUL, y, y, 1));
        return sketch_finish(sketch);
}

static const struct rig_device two_isolated[3] = {{.isolated = true}, {.isolated = true}, {0}};

HR_TEST(a_run_command_by_command) {
        static const struct {
                hr_trace_kind kind;
                uint32_t device, split, subject, bytes;
        } expected[] = {
                {HR_TRACE_INPUT, 0, 0, 0, 4 * WIDTH},  {HR_TRACE_COMPUTE, 0, 0, 0, 0},
                {HR_TRACE_COPY, 0, 1, 1, 4 * WIDTH},   {HR_TRACE_RECORD, 0, 1, 0, 0},
                {HR_TRACE_WAIT, 1, 1, 0, 0},           {HR_TRACE_COMPUTE, 1, 1, 1, 0},
                {HR_TRACE_OUTPUT, 1, 2, 2, 4 * WIDTH}, {HR_TRACE_RECORD, 0, 1, 1, 0},
                {HR_TRACE_RECORD, 1, 2, 2, 0},
        };
        static struct journey journey;
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph = two_stages(&sketch);
        struct hr_pipeline *pipeline;

        rig_init(&rig, two_isolated, 3);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 2, NULL, 0);
        for (uint32_t run = 0; run < 4; ++run) {
                const struct hr_trace *trace = &journey.trace;

                journey.x[0] = (float) run;
                journey_start(&journey, pipeline);
                HR_EXPECT_EQ(journey_end(&journey), HR_OK);
                HR_EXPECT_EQ((int) journey.out[0], (int) (4 * run * run));
                HR_EXPECT(trace->sequence == run && trace->slot == run % 2);
                HR_EXPECT(trace->n_copies == 2 && trace->split_count == 2);
                HR_EXPECT_EQ(trace->slot_event_count, 1);
                HR_EXPECT_EQ(trace->count, HR_ARRAY_LENGTH(expected));
                for (uint32_t i = 0; i < trace->count; ++i) {
                        HR_EXPECT_EQ(trace->kind[i], expected[i].kind);
                        HR_EXPECT_EQ(trace->device[i], expected[i].device);
                        HR_EXPECT_EQ(trace->split[i], expected[i].split);
                        HR_EXPECT_EQ(trace->subject[i], expected[i].subject);
                        HR_EXPECT_EQ(trace->bytes[i], expected[i].bytes);
                }
                check_times(trace);
                journey_deinit(&journey);
        }
        HR_EXPECT_EQ(hr_run_copied_bytes(&journey.ride.run), 4 * WIDTH);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* An output that is not wanted is not read; a run that is cancelled ends once, with all entries. */
HR_TEST(commands_that_do_not_happen) {
        static struct journey journey;
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph = two_stages(&sketch);
        struct hr_pipeline *pipeline;

        rig_init(&rig, two_isolated, 3);
        rig_delay(&rig, 3, 500, 2);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 2, NULL, 0);
        journey_start(&journey, pipeline);
        hr_run_cancel(&journey.ride.run, HR_E_CANCELLED, NULL);
        HR_EXPECT_EQ(journey_end(&journey), HR_E_CANCELLED);
        HR_EXPECT_EQ(journey.trace.count, 9);
        check_times(&journey.trace);
        journey_deinit(&journey);

        ride_init(&journey.ride);
        hr_arena_init(&journey.arena, 0);
        journey.ride.inputs[0] = (struct hr_run_input){journey.x, 4 * WIDTH};
        journey.ride.run.trace = journey.entries;
        HR_EXPECT_OK(ride_start(&journey.ride, pipeline, &rig.diag), &rig.diag);
        HR_EXPECT_EQ(journey_end(&journey), HR_OK);
        HR_EXPECT_EQ(journey.trace.count, 8);
        for (uint32_t i = 0; i < journey.trace.count; ++i)
                HR_EXPECT(journey.trace.kind[i] != HR_TRACE_OUTPUT);
        journey_deinit(&journey);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* The bytes of a run go through host memory where a device's memory is out of reach. */
HR_TEST(staged_copies_have_two_halves) {
        static const struct rig_device devices[3] = {{.opaque = true}, {.opaque = true}, {0}};
        static struct journey journey;
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph = two_stages(&sketch);
        struct hr_pipeline *pipeline;
        struct hr_explanation e;
        uint32_t read, write;

        rig_init(&rig, devices, 3);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 2, NULL, 0);
        journey_start(&journey, pipeline);
        HR_EXPECT_EQ(journey_end(&journey), HR_OK);
        check_times(&journey.trace);
        read = find(&journey.trace, HR_TRACE_READ, 0, 1);
        write = find(&journey.trace, HR_TRACE_WRITE, 1, 1);
        HR_EXPECT(journey.trace.subject[read] == 1 && journey.trace.subject[write] == 1);
        HR_EXPECT(journey.trace.bytes[read] == 4 * WIDTH &&
                  journey.trace.bytes[write] == 4 * WIDTH);
        HR_EXPECT(journey.trace.end_ns[read] <= journey.trace.begin_ns[write]);
        HR_EXPECT_OK(hr_pipeline_explain(pipeline, &rig.diag, &e), &rig.diag);
        HR_EXPECT_EQ(e.staging_bytes, 2 * 64);
        HR_EXPECT(e.device_staging[1] == 2 * 64 && e.device_staging[0] == 0);
        HR_EXPECT_STREQ(e.method_names.names[e.copy_method[1]], "staged");
        hr_explanation_deinit(&e);
        journey_deinit(&journey);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* The ranges that a tap cuts a split into are one computation where nobody watches. */
HR_TEST(taps_that_nobody_watches) {
        static struct journey journey;
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph = two_stages(&sketch);
        const uint32_t taps[] = {1, 2};
        struct hr_plan_request request = {
                .graph = graph, .pins = sketch.pins, .taps = taps, .tap_count = 2};
        struct hr_pipeline_request bind = {.graph = graph};
        struct hr_pipeline *pipeline = NULL;

        rig_init(&rig, two_isolated, 3);
        request.fleet = bind.fleet = rig.fleet;
        HR_EXPECT_OK(hr_plan_new(&request, &rig.diag, &bind.plan), &rig.diag);
        HR_EXPECT_OK(hr_pipeline_new(&bind, &rig.diag, &pipeline), &rig.diag);
        journey_start(&journey, pipeline);
        HR_EXPECT_EQ(journey_end(&journey), HR_OK);
        (void) find(&journey.trace, HR_TRACE_COMPUTE, 0, 0);
        (void) find(&journey.trace, HR_TRACE_COMPUTE, 1, 1);
        for (uint32_t i = 0; i < journey.trace.count; ++i)
                HR_EXPECT(journey.trace.kind[i] != HR_TRACE_TAP);
        check_times(&journey.trace);
        journey_deinit(&journey);
        hr_pipeline_free(pipeline);
        hr_plan_unref(bind.plan);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* A node that its source's device cannot run is marked, and so are the rules that moved a node. */
HR_TEST(fallbacks_are_marked) {
        static const struct rig_device devices[2] = {{.opaque = true}, {0}};
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_pipeline *pipeline;
        struct hr_explanation e;
        uint32_t x, y;

        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        y = sketch_node(&sketch, HR_OP_SQR, y, HR_TENSOR_NONE, HR_NO_PIN);
        sketch_output(&sketch, sketch_node(&sketch, HR_OP_MUL, y, x, 0));
        graph = sketch_finish(&sketch);
        rig_init(&rig, devices, 2);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 1, NULL, 0);
        HR_EXPECT_OK(hr_pipeline_explain(pipeline, &rig.diag, &e), &rig.diag);
        HR_EXPECT_EQ(e.fallback_nodes, 1);
        HR_EXPECT_EQ(e.notes[1] & HR_EXPLAIN_FALLBACK, 0);
        HR_EXPECT_EQ(e.notes[2], HR_EXPLAIN_FALLBACK);
        HR_EXPECT_EQ(e.notes[3] & HR_EXPLAIN_FALLBACK, 0);
        HR_EXPECT(e.device[1] == 0 && e.device[2] == 1 && e.device[3] == 0);
        hr_explanation_deinit(&e);
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

HR_TEST(the_first_stage_of_a_run_overlaps_the_second_of_the_run_before) {
        static struct journey journeys[RUNS];
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph = two_stages(&sketch);
        struct hr_pipeline *pipeline;

        rig_init(&rig, two_isolated, 3);
        rig_meet(&rig, RUNS, 0, MEET_COMPUTE, 1, MEET_COMPUTE);
        pipeline = rig_pipeline(&rig, graph, sketch.pins, NULL, 2, NULL, 0);
        for (uint32_t run = 0; run < RUNS; ++run) {
                if (run >= 2)
                        HR_EXPECT_EQ(journey_end(&journeys[run - 2]), HR_OK);
                journey_start(&journeys[run], pipeline);
        }
        for (uint32_t run = RUNS - 2; run < RUNS; ++run)
                HR_EXPECT_EQ(journey_end(&journeys[run]), HR_OK);
        HR_EXPECT_EQ(rig_missed_meetings(), 0);
        for (uint32_t run = 0; run + 1 < RUNS; ++run) {
                const struct hr_trace *trace = &journeys[run].trace,
                                      *next = &journeys[run + 1].trace;

                HR_EXPECT(overlap(trace, find(trace, HR_TRACE_COMPUTE, 1, 1), next,
                                  find(next, HR_TRACE_COMPUTE, 0, 0)));
        }
        for (uint32_t run = 0; run < RUNS; ++run) {
                check_times(&journeys[run].trace);
                journey_deinit(&journeys[run]);
        }
        hr_pipeline_free(pipeline);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        rig_deinit(&rig);
}

/* ---- Mixtures ---------------------------------------------------------------------------------
 */

/* Two layers of experts in host memory, the first on d0, the second on d1. */
struct mixture {
        struct hr_graph *graph;
        struct rig rig;
        struct hr_buffer *weights[2];
        struct hr_leaf_home homes[5];
        struct hr_pipeline *pipeline;
};

static void mixture_build(struct mixture *mixture, int32_t pins[7]) {
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 24};
        struct hr_build *build = hr_build_new();
        uint32_t x, ids[2], w[2];

        x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", K, 1, 1, 1);
        for (uint32_t i = 0; i < 2; ++i)
                ids[i] = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, i ? "ids1" : "ids0",
                                       SLOTS, 1, 1, 1);
        for (uint32_t i = 0; i < 2; ++i)
                w[i] = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, i ? "w1" : "w0", K, K,
                                     EXPERTS, 1);
        for (uint32_t i = 0; i < 7; ++i)
                pins[i] = HR_NO_PIN;
        for (uint32_t i = 0; i < 2; ++i) {
                x = hr_build_node(build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, K, SLOTS, 1, 1, 3,
                                  (uint32_t[]){w[i], x, ids[i]});
                pins[x] = (int32_t) i;
        }
        hr_build_tensor(build, x)->flags |= HR_TENSOR_OUTPUT;
        mixture->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(mixture->graph, &limits, &mixture->rig.diag),
                     &mixture->rig.diag);
}

static void mixture_init(struct mixture *mixture, uint32_t runs) {
        struct hr_diag *diag = &mixture->rig.diag;
        int32_t pins[7];

        memset(mixture, 0, sizeof *mixture);
        rig_init(&mixture->rig, two_isolated, 3);
        if (runs)
                rig_meet(&mixture->rig, runs, 0, MEET_COMPUTE, 1, MEET_EXPERTS);
        mixture_build(mixture, pins);
        for (uint32_t i = 0; i < 2; ++i) {
                HR_EXPECT_OK(hr_buffer_new(mixture->rig.devices[2], EXPERTS * EXPERT_BYTES,
                                           HR_USAGE_WEIGHTS, diag, &mixture->weights[i]),
                             diag);
                mixture->homes[3 + i].buffer = mixture->weights[i];
        }
        mixture->pipeline =
                rig_pipeline(&mixture->rig, mixture->graph, pins, mixture->homes, 2, NULL, 0);
        HR_EXPECT_EQ(mixture->pipeline->plan->group_count, 2);
}

static void mixture_deinit(struct mixture *mixture) {
        hr_pipeline_free(mixture->pipeline);
        hr_graph_unref(mixture->graph);
        for (uint32_t i = 0; i < 2; ++i)
                mixture->weights[i] = hr_buffer_unref(mixture->weights[i]);
        rig_deinit(&mixture->rig);
}

/* While d1 brings the experts of layer 1 for one run, d0 computes layer 0 of the next. */
HR_TEST(the_upload_of_a_layer_overlaps_the_computing_of_another) {
        static struct journey journeys[RUNS];
        struct mixture mixture;

        mixture_init(&mixture, RUNS);
        for (uint32_t run = 0; run < RUNS; ++run) {
                if (run >= 2)
                        HR_EXPECT_EQ(journey_end(&journeys[run - 2]), HR_OK);
                for (int slot = 0; slot < SLOTS; ++slot) {
                        journeys[run].ids[0][slot] = (int32_t) (run + (uint32_t) slot);
                        journeys[run].ids[1][slot] = (int32_t) (run + 1);
                }
                journey_start(&journeys[run], mixture.pipeline);
        }
        for (uint32_t run = RUNS - 2; run < RUNS; ++run)
                HR_EXPECT_EQ(journey_end(&journeys[run]), HR_OK);
        HR_EXPECT_EQ(rig_missed_meetings(), 0);
        for (uint32_t run = 0; run + 1 < RUNS; ++run) {
                const struct hr_trace *trace = &journeys[run].trace,
                                      *next = &journeys[run + 1].trace;
                uint32_t upload = find(trace, HR_TRACE_EXPERTS, 1, 1);

                HR_EXPECT_EQ(trace->bytes[upload], EXPERT_BYTES);
                HR_EXPECT(overlap(trace, upload, next, find(next, HR_TRACE_COMPUTE, 0, 0)));
        }
        for (uint32_t run = 0; run < RUNS; ++run) {
                check_times(&journeys[run].trace);
                journey_deinit(&journeys[run]);
        }
        mixture_deinit(&mixture);
}

/* Each command of a traced run counts its own experts, and the run all of them. */
HR_TEST(experts_are_counted_per_command_run_and_expert) {
        static const int32_t ids[3][2][SLOTS] = {
                {{1, 5}, {7, 7}}, {{5, 2}, {7, 0}}, {{1, 1}, {7, 7}}};
        static const uint64_t uses[2 * EXPERTS] = {0, 2, 1, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 0, 0, 3};
        static const uint32_t misses[3][2] = {{2, 1}, {1, 1}, {0, 0}};
        static struct journey journey;
        struct mixture mixture;
        struct hr_explanation e;

        mixture_init(&mixture, 0);
        for (int run = 0; run < 3; ++run) {
                const struct hr_expert_tally *tally = &journey.ride.run.experts;
                uint32_t all = misses[run][0] + misses[run][1];

                memcpy(journey.ids, ids[run], sizeof journey.ids);
                journey_start(&journey, mixture.pipeline);
                HR_EXPECT_EQ(journey_end(&journey), HR_OK);
                for (uint32_t d = 0; d < 2; ++d)
                        HR_EXPECT_EQ(
                                journey.trace.bytes[find(&journey.trace, HR_TRACE_EXPERTS, d, d)],
                                misses[run][d] * EXPERT_BYTES);
                HR_EXPECT(tally->misses == all && tally->bytes == all * EXPERT_BYTES);
                HR_EXPECT_EQ(hr_run_copied_bytes(&journey.ride.run),
                             SLOTS * K * 4 + all * EXPERT_BYTES);
                journey_deinit(&journey);
        }
        HR_EXPECT_EQ(hr_fleet_exec_stats(mixture.rig.fleet).expert_misses, 5);
        HR_EXPECT_OK(hr_pipeline_explain(mixture.pipeline, &mixture.rig.diag, &e),
                     &mixture.rig.diag);
        HR_EXPECT(e.group_count == 2 && e.group_uses_count == 2 * EXPERTS);
        for (uint32_t g = 0; g < 2; ++g)
                HR_EXPECT(e.group_ids[g] == 1 + g && e.group_device[g] == g &&
                          e.group_experts[g] == EXPERTS && e.group_weights[g] == 1 &&
                          e.group_resident[g]);
        for (uint32_t i = 0; i < 2 * EXPERTS; ++i)
                HR_EXPECT_EQ(e.group_uses[i], uses[i]);
        for (uint32_t g = 0; g < 2; ++g) {
                const struct hr_expert_usage *usage = mixture.weights[g]->expert_usages;

                HR_EXPECT(usage && !usage->next && usage->offset == 0);
                HR_EXPECT_EQ(usage->experts, EXPERTS);
                for (uint32_t i = 0; i < EXPERTS; ++i)
                        HR_EXPECT_EQ(usage->runs[i], uses[g * EXPERTS + i]);
        }
        hr_explanation_deinit(&e);
        mixture_deinit(&mixture);
}

/* ---- Medians ----------------------------------------------------------------------------------
 */

/* One command of each kind of figure for split 1, and one behind the last split. */
static void add_run(struct hr_measure *measure, uint64_t ns) {
        uint32_t kind[] = {HR_TRACE_COMPUTE, HR_TRACE_COPY, HR_TRACE_INPUT, HR_TRACE_WAIT,
                           HR_TRACE_OUTPUT};
        uint32_t device[5] = {0}, split[] = {1, 1, 1, 1, 2}, subject[5] = {0};
        uint64_t bytes[] = {0, ns, 1, 0, 1000}, begin[5] = {10, 10, 10, 10, 10};
        uint64_t end[] = {10 + 4 * ns, 10 + 2 * ns, 11, 10 + 3 * ns, 1000};
        struct hr_trace trace = {.started_ns = 5,
                                 .ended_ns = 5 + 10 * ns,
                                 .split_count = 2,
                                 .count = 5,
                                 .kind = kind,
                                 .device = device,
                                 .split = split,
                                 .subject = subject,
                                 .bytes = bytes,
                                 .begin_ns = begin,
                                 .end_ns = end};

        hr_measure_add(measure, &trace);
}

static void expect_medians(const struct hr_measure *measure, uint32_t runs, uint64_t ns) {
        struct hr_measure_medians medians;
        struct hr_arena arena;
        struct hr_diag diag = {0};

        hr_arena_init(&arena, 0);
        HR_EXPECT_OK(hr_measure_medians(measure, &arena, &diag, &medians), &diag);
        HR_EXPECT_EQ(medians.runs, runs);
        HR_EXPECT_EQ(medians.run_ns, 10 * ns);
        HR_EXPECT_EQ(medians.compute_ns[1], 4 * ns);
        HR_EXPECT_EQ(medians.copy_ns[1], runs ? 2 * ns + 1 : 0);
        HR_EXPECT_EQ(medians.wait_ns[1], 3 * ns);
        HR_EXPECT_EQ(medians.bytes[1], runs ? ns + 1 : 0);
        HR_EXPECT_EQ(medians.compute_ns[0] + medians.copy_ns[0] + medians.bytes[0], 0);
        hr_arena_deinit(&arena);
}

HR_TEST(medians_over_the_latest_runs) {
        struct hr_measure *measure = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_measure_new(2, &diag, &measure), &diag);
        expect_medians(measure, 0, 0);
        add_run(measure, 7);
        expect_medians(measure, 1, 7);
        add_run(measure, 1);
        expect_medians(measure, 2, 4);
        add_run(measure, 3);
        expect_medians(measure, 3, 3);
        /* The oldest go: 100 .. 100 + HR_MEASURE_RUNS - 1 are left. */
        for (uint64_t i = 0; i < 3 * HR_MEASURE_RUNS; ++i)
                add_run(measure, 100 + (i * 5) % HR_MEASURE_RUNS * 2);
        expect_medians(measure, HR_MEASURE_RUNS, 100 + HR_MEASURE_RUNS - 1);
        measure = hr_measure_free(measure);
}
