/* Splits recorded as graphs: from the second run on, updated where the kernels stay, never another
 * program's, tried again after failures. */
#include "backends/cuda/backend.h"
#include "core/clock.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

enum { WIDTH_MOST = 96, STEPS_MOST = 8, TIMEOUT_S = 10 };

struct stage {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
};

/* x * 2 * 2 ... in place, `steps` times. */
struct act {
        uint32_t steps;
        int64_t width;
        struct hr_buffer *memory;
        struct hr_operand source;
        int32_t params[HR_OP_PARAM_WORDS];
        struct hr_step list[STEPS_MOST];
        struct hr_steps all;
        struct hr_program *program;
};

static void stage_open_as(struct stage *stage, const struct hr_cuda_config *config) {
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_cuda_device_new(config, &diag, &stage->device), &diag);
        HR_EXPECT_OK(hr_queue_new(stage->device, &diag, &stage->queue), &diag);
        HR_EXPECT_OK(hr_event_new(stage->device, &diag, &stage->event), &diag);
}

static void stage_open(struct stage *stage) {
        stage_open_as(stage, &(struct hr_cuda_config) { .name = "stage", .gpu = 0 });
}

static void stage_close(struct stage *stage) {
        stage->queue = hr_queue_free(stage->queue);
        stage->event = hr_event_free(stage->event);
        stage->device = hr_device_unref(stage->device);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

static void act_open(struct stage *stage, struct act *act, uint32_t steps, int64_t width) {
        const uint64_t bytes = (uint64_t) width * 4;
        const float two = 2.0f;
        struct hr_diag diag = { 0 };

        *act = (struct act) { .steps = steps, .width = width };
        HR_EXPECT_OK(hr_buffer_new(stage->device, bytes, HR_USAGE_COMPUTE, &diag, &act->memory),
                     &diag);
        memcpy(act->params, &two, sizeof two);
        act->source = (struct hr_operand) { .type = HR_TYPE_F32,
                                            .ne = { width, 1, 1, 1 },
                                            .nb = { 4, bytes, bytes, bytes },
                                            .data = act->memory->base,
                                            .room = bytes };
        for (uint32_t i = 0; i < steps; i++)
                act->list[i] = (struct hr_step) { .op = HR_OP_SCALE,
                                                  .node = i,
                                                  .params = act->params,
                                                  .result = act->source,
                                                  .source_count = 1,
                                                  .sources = &act->source };
        act->all = (struct hr_steps) { .count = steps, .steps = act->list };
        HR_EXPECT_OK(hr_program_new(stage->device, &act->all, &diag, &act->program), &diag);
}

static void act_close(struct act *act) {
        act->program = hr_program_free(act->program);
        act->memory = hr_buffer_unref(act->memory);
}

/* Runs it once, in pieces of `piece` steps, and looks at the result. */
static void act_play(struct stage *stage, struct act *act, float value, uint32_t piece) {
        float values[WIDTH_MOST];
        const uint64_t bytes = (uint64_t) act->width * 4;
        struct hr_outcome outcome = { 0 };
        struct hr_diag diag = { 0 };

        for (int64_t i = 0; i < act->width; i++)
                values[i] = value + (float) i;
        HR_EXPECT_OK(
                hr_queue_write(stage->queue, act->memory->base, values, bytes, &outcome, &diag),
                &diag);
        for (uint32_t at = 0; at < act->steps; at += piece)
                HR_EXPECT_OK(hr_queue_compute(stage->queue, act->program, at,
                                              HR_MIN(piece, act->steps - at), &outcome, &diag),
                             &diag);
        HR_EXPECT_OK(hr_queue_read(stage->queue, act->memory->base, values, bytes, &outcome, &diag),
                     &diag);
        HR_EXPECT_OK(hr_queue_record(stage->queue, stage->event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(stage->event, TIMEOUT_S * HR_NS_PER_S, &diag), &diag);
        HR_EXPECT(!hr_outcome_failed(&outcome));
        for (int64_t i = 0; i < act->width; i++)
                HR_EXPECT(values[i] == (value + (float) i) * (float) (1U << act->steps));
}

static void expect_counts(const struct stage *stage, uint64_t captured, uint64_t updated,
                          uint64_t replayed, uint64_t failed) {
        HR_EXPECT_EQ(atomic_load(&stage->device->graphs.captured), captured);
        HR_EXPECT_EQ(atomic_load(&stage->device->graphs.updated), updated);
        HR_EXPECT_EQ(atomic_load(&stage->device->graphs.replayed), replayed);
        HR_EXPECT_EQ(atomic_load(&stage->device->graphs.failed), failed);
}

HR_TEST(a_split_is_recorded_at_its_second_run) {
        struct stage stage = { 0 };
        struct act act;

        fake_begin(1);
        stage_open(&stage);
        act_open(&stage, &act, 5, 33);
        act_play(&stage, &act, 1, 5);
        expect_counts(&stage, 0, 0, 0, 0);
        act_play(&stage, &act, 2, 5);
        expect_counts(&stage, 1, 0, 1, 0);
        /* From now on no kernel is launched by itself. */
        fake_fail_name("cuLaunchKernel", CUDA_ERROR_INVALID_VALUE);
        for (int run = 0; run < 20; run++)
                act_play(&stage, &act, (float) run, 5);
        expect_counts(&stage, 1, 0, 21, 0);
        act_close(&act);
        stage_close(&stage);
}

HR_TEST(parts_of_a_split_and_single_launches_are_not_recorded) {
        struct stage stage = { 0 };
        struct act act, single;

        fake_begin(1);
        stage_open(&stage);
        act_open(&stage, &act, 5, 33);
        act_open(&stage, &single, 1, 33);
        for (int run = 0; run < 5; run++) {
                act_play(&stage, &act, 1, 2);
                act_play(&stage, &single, 1, 1);
        }
        expect_counts(&stage, 0, 0, 0, 0);
        act_close(&act);
        act_close(&single);
        stage_close(&stage);
}

HR_TEST(a_device_that_is_to_launch_one_by_one_records_nothing) {
        struct stage stage = { 0 };
        struct act act;

        fake_begin(1);
        stage_open_as(&stage, &(struct hr_cuda_config){.name = "stage", .single_launches = true});
        act_open(&stage, &act, 5, 33);
        fake_fail_name("cuGraphCreate", CUDA_ERROR_INVALID_VALUE);
        for (int run = 0; run < 5; run++)
                act_play(&stage, &act, (float) run, 5);
        expect_counts(&stage, 0, 0, 0, 0);
        act_close(&act);
        stage_close(&stage);
}

/* Ten shapes, each new, then one again and again; twice. Nothing is given up for good, and the
 * second phase takes over what the first has left. */
HR_TEST(shapes_that_change_are_no_reason_to_stop) {
        struct stage stage = { 0 };
        struct act act;

        fake_begin(3);
        stage_open(&stage);
        for (uint32_t phase = 0; phase < 2; phase++) {
                for (uint32_t i = 0; i < 10; i++) {
                        act_open(&stage, &act, 4, 8 + i);
                        act_play(&stage, &act, (float) i, 4);
                        act_close(&act);
                }
                act_open(&stage, &act, 4, 64 + phase);
                for (uint32_t run = 0; run < 100; run++)
                        act_play(&stage, &act, (float) run, 4);
                act_close(&act);
                expect_counts(&stage, 1, phase, 99 * (phase + 1), 0);
        }
        stage_close(&stage);
}

/* Programs that take turns, of one form and of others, with memory that moves: each computes its
 * own. */
HR_TEST(no_program_replays_another) {
        struct stage stage = { 0 };
        struct act acts[4];
        static const uint32_t steps[] = { 3, 3, 2, 4 };

        fake_begin(5);
        stage_open(&stage);
        for (uint32_t round = 0; round < 5; round++) {
                for (uint32_t i = 0; i < 4; i++)
                        act_open(&stage, &acts[i], steps[i], 8 + 8 * ((i + round) % 4));
                for (uint32_t run = 0; run < 6; run++)
                        for (uint32_t i = 0; i < 4; i++)
                                act_play(&stage, &acts[i], (float) (100 * i + run), steps[i]);
                for (uint32_t i = 0; i < 4; i++)
                        act_close(&acts[i]);
        }
        expect_counts(&stage, 4, 16, 5 * 4 * 5, 0);
        stage_close(&stage);
}

/* More programs than the shelf has places, of as many forms as there are. */
HR_TEST(what_is_kept_is_bounded) {
        struct stage stage = { 0 };
        static struct act acts[100];

        fake_begin(7);
        stage_open(&stage);
        for (uint32_t i = 0; i < 100; i++) {
                act_open(&stage, &acts[i], 2 + i % 6, 8);
                act_play(&stage, &acts[i], 1, STEPS_MOST);
                act_play(&stage, &acts[i], 2, STEPS_MOST);
        }
        for (uint32_t i = 0; i < 100; i++)
                act_close(&acts[i]);
        expect_counts(&stage, 100, 0, 100, 0);
        stage_close(&stage);
}

/* An entry point that fails for a while: results stay right, and it is tried again. */
HR_TEST(what_fails_is_tried_again) {
        static const char *const names[] = { "cuGraphCreate", "cuGraphAddKernelNode",
                                             "cuGraphInstantiate", "cuGraphLaunch" };

        for (size_t n = 0; n < HR_ARRAY_LENGTH(names); n++) {
                struct stage stage = { 0 };
                struct act act;
                uint64_t failed;

                fake_begin(1);
                stage_open(&stage);
                act_open(&stage, &act, 4, 33);
                fake_fail_name(names[n], CUDA_ERROR_OUT_OF_MEMORY);
                for (uint32_t run = 0; run < 40; run++)
                        act_play(&stage, &act, (float) run, 4);
                failed = atomic_load(&stage.device->graphs.failed);
                HR_EXPECT(failed >= 3 && failed <= 5); /* ever more seldom */
                HR_EXPECT_EQ(atomic_load(&stage.device->graphs.replayed), 0);
                fake_fail_name(NULL, CUDA_SUCCESS);
                for (uint32_t run = 0; run < 100; run++)
                        act_play(&stage, &act, (float) run, 4);
                HR_EXPECT_EQ(atomic_load(&stage.device->graphs.failed), failed);
                HR_EXPECT(atomic_load(&stage.device->graphs.replayed) > 50);
                act_close(&act);
                stage_close(&stage);
        }
}

HR_TEST(an_update_that_fails_is_made_anew) {
        struct stage stage = { 0 };
        struct act act;

        fake_begin(1);
        stage_open(&stage);
        for (uint32_t i = 0; i < 3; i++) {
                if (i == 1)
                        fake_fail_name("cuGraphExecUpdate", CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
                act_open(&stage, &act, 4, 33);
                for (uint32_t run = 0; run < 5; run++)
                        act_play(&stage, &act, (float) run, 4);
                act_close(&act);
        }
        expect_counts(&stage, 3, 0, 12, 0);
        stage_close(&stage);
}

/* What may not happen while a stream is captured: the fake driver sees it, so no test passes that
 * does it. */
HR_TEST(a_capture_allows_nothing_that_waits_or_takes_memory) {
        const struct cuda_syms *cu = NULL;
        struct stage stage = { 0 };
        struct hr_diag diag = { 0 };
        CUcontext context = NULL;

        fake_begin(1);
        stage_open(&stage);
        HR_EXPECT_OK(cuda_syms_open(&diag, &cu), &diag);
        HR_EXPECT_EQ(cu->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        HR_EXPECT_EQ(cu->cuCtxSetCurrent(context), CUDA_SUCCESS);
        for (int which = 0; which < 4; which++) {
                uint32_t before = fake_violations();
                CUdeviceptr memory = 0;
                CUstream stream = NULL;
                CUgraph graph = NULL;

                HR_EXPECT_EQ(cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
                HR_EXPECT_EQ(cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
                             CUDA_SUCCESS);
                if (which == 0)
                        (void) cu->cuMemAlloc(&memory, 64);
                else if (which == 1)
                        (void) cu->cuStreamQuery(stream);
                else if (which == 2)
                        (void) cu->cuStreamSynchronize(stream);
                HR_EXPECT_EQ(cu->cuStreamEndCapture(stream, &graph),
                             which < 3 ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS);
                HR_EXPECT_EQ(fake_violations() > before, which < 3);
                if (graph)
                        (void) cu->cuGraphDestroy(graph);
                if (memory)
                        (void) cu->cuMemFree(memory);
                (void) cu->cuStreamDestroy(stream);
        }
        HR_EXPECT_EQ(cu->cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
        fake_forgive();
        stage_close(&stage);
}
