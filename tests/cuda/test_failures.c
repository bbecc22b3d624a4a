/* Every call of the driver fails once, GPUs are lost at every operation: nothing hangs, leaks or
 * breaks a rule of the driver, results are right or the run says that they are not. */
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/journey.h"
#include "tests/harness.h"

static void expect_clean(void) {
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

/* A failure that touches the request or the device, never the daemon. */
static void expect_scope(hr_status status, CUresult injected) {
        hr_scope scope = hr_status_scope(status);

        HR_EXPECT(scope == HR_SCOPE_REQUEST || scope == HR_SCOPE_DEVICE);
        if (scope == HR_SCOPE_DEVICE)
                HR_EXPECT(cuda_result_is_sticky(injected));
}

static void fail_every_call(CUresult result, uint32_t second_gpu) {
        uint64_t call = 0;
        bool was_hit;

        do {
                struct journey journey = { .gpus = { 0, second_gpu } };
                hr_status status;

                fake_begin((uint32_t) call + 1);
                fake_fail_call(call, result);
                status = journey_make(&journey);
                if (status != HR_OK)
                        expect_scope(status, result);
                if (status == HR_OK && journey.run_status == HR_OK)
                        HR_EXPECT(journey.is_right);
                if (status == HR_OK && journey.run_status != HR_OK)
                        expect_scope(journey.run_status, result);
                expect_clean();
                was_hit = fake_calls() > call++;
        } while (was_hit);
        HR_EXPECT(call > 60); /* the journey does make calls */
}

HR_TEST_LIMIT(every_call_fails_without_memory, 120) {
        fail_every_call(CUDA_ERROR_OUT_OF_MEMORY, 1);
}

HR_TEST_LIMIT(every_call_fails_as_wrong, 120) {
        fail_every_call(CUDA_ERROR_INVALID_VALUE, 1);
}

HR_TEST_LIMIT(every_call_fails_as_unsupported, 120) {
        fail_every_call(CUDA_ERROR_NOT_SUPPORTED, 0);
}

HR_TEST_LIMIT(every_call_ends_its_context, 120) {
        fail_every_call(CUDA_ERROR_ILLEGAL_ADDRESS, 1);
}

HR_TEST_LIMIT(every_call_ends_the_context_of_two_devices, 120) {
        fail_every_call(CUDA_ERROR_LAUNCH_FAILED, 0);
}

/* From the first operation on, whatever it is; a task that the driver never calls is one of
 * them. */
static void lose_at_every_operation(uint32_t lost_gpu) {
        uint32_t lost = 0, passed = 0;

        for (uint64_t operation = 0; operation < 200 && passed < 3; operation++) {
                struct journey journey = { .gpus = { 0, 1 } };
                hr_status status;

                fake_begin((uint32_t) operation + 1);
                fake_lose(lost_gpu, operation, CUDA_ERROR_ECC_UNCORRECTABLE);
                status = journey_make(&journey);
                if (status == HR_OK && journey.run_status == HR_OK) {
                        HR_EXPECT(journey.is_right);
                        passed++;
                } else {
                        HR_EXPECT_EQ(status != HR_OK ? status : journey.run_status,
                                     HR_E_DEVICE_LOST);
                        HR_EXPECT(status != HR_OK || journey.is_lost);
                        lost++;
                }
                expect_clean();
        }
        HR_EXPECT(lost > 4 && passed == 3);
}

HR_TEST_LIMIT(the_source_is_lost_at_every_operation, 120) {
        lose_at_every_operation(0);
}

HR_TEST_LIMIT(the_target_is_lost_at_every_operation, 120) {
        lose_at_every_operation(1);
}

/* A number that a dying GPU writes after everything was given up takes nothing back. */
HR_TEST_LIMIT(late_writes_of_a_lost_gpu_count_for_nothing, 60) {
        for (uint64_t operation = 8; operation < 24; operation++) {
                struct journey journey = { .gpus = { 0, 1 }, .linger_us = 40000 };

                fake_begin((uint32_t) operation);
                fake_lose(0, operation, CUDA_ERROR_ILLEGAL_ADDRESS);
                fake_write_late();
                (void) journey_make(&journey);
                expect_clean();
        }
}

/* Entry points whose failure can be made up for never fail a run. */
HR_TEST_LIMIT(what_can_be_made_up_for_is, 60) {
        static const char *const names[] = { "cuStreamWriteValue64", "cuLaunchHostFunc",
                                             "cuEventRecord", "cuStreamWaitEvent",
                                             "cuGraphCreate", "cuGraphAddKernelNode",
                                             "cuGraphInstantiate", "cuGraphLaunch" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                struct journey journey = { .gpus = { 0, 1 } };

                fake_begin(11);
                fake_fail_name(names[i], CUDA_ERROR_INVALID_VALUE);
                HR_EXPECT_OK(journey_make(&journey), &journey.diag);
                HR_EXPECT_OK(journey.run_status, &journey.run_diag);
                HR_EXPECT(journey.is_right);
                expect_clean();
        }
}

/* Times are the GPU's; whoever cannot measure them goes on without. */
HR_TEST(commands_are_told_to_the_flight_recorder) {
        static const char *const names[] = { NULL, "cuEventElapsedTime", "cuEventRecord" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                struct journey journey = { .gpus = { 0, 1 } };

                fake_begin(13);
                fake_fail_name(names[i], CUDA_ERROR_INVALID_VALUE);
                HR_EXPECT_OK(journey_make(&journey), &journey.diag);
                HR_EXPECT(journey.is_right);
                HR_EXPECT_EQ(journey.computes, names[i] ? 0 : 3);
                HR_EXPECT_EQ(journey.copies, names[i] ? 0 : 4);
                expect_clean();
        }
}

HR_TEST(a_gpu_that_was_lost_can_be_opened_again) {
        struct journey journey = { .gpus = { 0, 0 } };

        fake_begin(1);
        fake_lose(0, 12, CUDA_ERROR_LAUNCH_FAILED);
        (void) journey_make(&journey);
        HR_EXPECT_EQ(journey.run_status != HR_OK ? journey.run_status : journey.diag.status,
                     HR_E_DEVICE_LOST);
        fake_begin(1);
        journey = (struct journey) { .gpus = { 0, 0 } };
        HR_EXPECT_OK(journey_make(&journey), &journey.diag);
        HR_EXPECT_OK(journey.run_status, &journey.run_diag);
        HR_EXPECT(journey.is_right);
        expect_clean();
}

HR_TEST(a_journey_is_right_with_any_pauses) {
        for (uint32_t seed = 0; seed < 40; seed++) {
                struct journey journey = { .gpus = { seed % 2, seed / 2 % 2 } };

                fake_begin(seed);
                HR_EXPECT_OK(journey_make(&journey), &journey.diag);
                HR_EXPECT_OK(journey.run_status, &journey.run_diag);
                HR_EXPECT(journey.is_right);
                expect_clean();
        }
}

HR_TEST(an_id_outside_its_table_fails_the_run) {
        static const int32_t ids[] = { 5, -1, INT32_MAX, INT32_MIN };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(ids); i++) {
                struct journey journey = { .gpus = { 0, 1 }, .bad_id = ids[i] };

                fake_begin(3);
                HR_EXPECT_OK(journey_make(&journey), &journey.diag);
                HR_EXPECT_EQ(journey.run_status, HR_E_RANGE);
                HR_EXPECT_STREQ(hr_diag_reason(&journey.run_diag), "INDEX_VALUE");
                HR_EXPECT(journey.run_diag.has_node);
                HR_EXPECT_EQ(journey.run_diag.node, 7);
                expect_clean();
        }
}
