/* Copies to another GPU travel while the next split is computed, and the queue is in order all the
 * same: bytes, events, notifications, failures, losses. */
#include <unistd.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/lanes.h"
#include "core/clock.h"
#include "core/recorder.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

/* A tensor just large enough to go beside, doubled TURNS times, sent away each time. */
enum { WIDTH = CUDA_BESIDE_MIN / 4, TURNS = 3, TIMEOUT_S = 20, SPANS = 64 };

struct pair {
        struct hr_device *devices[2];
        struct hr_queue *queues[2];
        struct hr_event *events[2];
        struct hr_recorder *recorder;
        struct hr_buffer *source, *targets[TURNS];
        struct hr_program *program;
        struct hr_operand operand;
        int32_t params[HR_OP_PARAM_WORDS];
        struct hr_step step;
        struct hr_steps list;
        struct hr_outcome outcome;
        atomic_uint notified;
        float values[WIDTH], results[TURNS][WIDTH];
};

static void notified(void *arg) {
        atomic_fetch_add((atomic_uint *) arg, 1);
}

static hr_status pair_open(struct pair *pair, struct hr_diag *diag) {
        static const char *const names[] = { "first", "second" };
        const uint64_t bytes = sizeof pair->values;
        const float two = 2.0f;

        for (uint32_t i = 0; i < 2; i++)
                HR_TRY(hr_cuda_device_new(&(struct hr_cuda_config) { .name = names[i], .gpu = i },
                                          diag, &pair->devices[i]));
        for (uint32_t i = 0; i < 2; i++) {
                HR_TRY(hr_queue_new(pair->devices[i], diag, &pair->queues[i]));
                HR_TRY(hr_event_new(pair->devices[i], diag, &pair->events[i]));
        }
        HR_TRY(hr_recorder_new(SPANS, diag, &pair->recorder));
        pair->queues[0]->recorder = pair->recorder;
        HR_TRY(hr_buffer_new(pair->devices[0], bytes, HR_USAGE_COMPUTE, diag, &pair->source));
        for (uint32_t i = 0; i < TURNS; i++)
                HR_TRY(hr_buffer_new(pair->devices[1], bytes, HR_USAGE_COMPUTE, diag,
                                     &pair->targets[i]));
        memcpy(pair->params, &two, sizeof two);
        pair->operand = (struct hr_operand) { .type = HR_TYPE_F32,
                                              .ne = { WIDTH, 1, 1, 1 },
                                              .nb = { 4, bytes, bytes, bytes },
                                              .data = pair->source->base,
                                              .room = bytes };
        pair->step = (struct hr_step) { .op = HR_OP_SCALE,
                                        .params = pair->params,
                                        .result = pair->operand,
                                        .source_count = 1,
                                        .sources = &pair->operand };
        pair->list = (struct hr_steps) { .count = 1, .steps = &pair->step };
        for (uint32_t i = 0; i < WIDTH; i++)
                pair->values[i] = (float) (i % 1000);
        return hr_program_new(pair->devices[0], &pair->list, diag, &pair->program);
}

static void pair_close(struct pair *pair) {
        for (uint32_t i = 0; i < 2; i++)
                pair->queues[i] = hr_queue_free(pair->queues[i]);
        pair->recorder = hr_recorder_free(pair->recorder);
        pair->program = hr_program_free(pair->program);
        pair->source = hr_buffer_unref(pair->source);
        for (uint32_t i = 0; i < TURNS; i++)
                pair->targets[i] = hr_buffer_unref(pair->targets[i]);
        for (uint32_t i = 0; i < 2; i++) {
                pair->events[i] = hr_event_free(pair->events[i]);
                pair->devices[i] = hr_device_unref(pair->devices[i]);
        }
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

static hr_status turn(struct pair *pair, uint32_t i, struct hr_diag *diag) {
        HR_TRY(hr_queue_compute(pair->queues[0], pair->program, 0, 1, &pair->outcome, diag));
        return hr_queue_copy(pair->queues[0], pair->source->base, pair->targets[i]->base,
                             pair->targets[i]->kind, sizeof pair->values, &pair->outcome, diag);
}

/* All turns in one go, read back at the other end. */
static hr_status pair_run(struct pair *pair, bool *ret_was_submitted, struct hr_diag *diag) {
        HR_TRY(hr_queue_write(pair->queues[0], pair->source->base, pair->values,
                              sizeof pair->values, &pair->outcome, diag));
        for (uint32_t i = 0; i < TURNS; i++)
                HR_TRY(turn(pair, i, diag));
        HR_TRY(hr_queue_record(pair->queues[0], pair->events[0], diag));
        HR_TRY(hr_queue_wait(pair->queues[1], pair->events[0], diag));
        for (uint32_t i = 0; i < TURNS; i++)
                HR_TRY(hr_queue_read(pair->queues[1], pair->targets[i]->base, pair->results[i],
                                     sizeof pair->results[i], &pair->outcome, diag));
        HR_TRY(hr_queue_notify(pair->queues[0], notified, &pair->notified, diag));
        HR_TRY(hr_queue_record(pair->queues[1], pair->events[1], diag));
        HR_TRY(hr_queue_notify(pair->queues[1], notified, &pair->notified, diag));
        *ret_was_submitted = true;
        return HR_OK;
}

static void await(const atomic_uint *count, uint32_t wanted) {
        for (int i = 0; i < TIMEOUT_S * 10000 && atomic_load(count) < wanted; i++)
                (void) usleep(100);
        HR_EXPECT_EQ(atomic_load(count), wanted);
}

static bool is_right(const struct pair *pair) {
        for (uint32_t i = 0; i < TURNS; i++)
                for (uint32_t j = 0; j < WIDTH; j++)
                        if (pair->results[i][j] != (float) (2U << i) * pair->values[j])
                                return false;
        return true;
}

/* One run with whatever the fake driver has been told to do. */
static hr_status journey(bool *ret_is_right) {
        struct pair *pair = calloc(1, sizeof *pair);
        bool was_submitted = false;
        struct hr_diag diag = { 0 };
        hr_status status;

        HR_EXPECT(pair);
        status = pair_open(pair, &diag);
        if (status == HR_OK)
                status = pair_run(pair, &was_submitted, &diag);
        if (was_submitted) {
                await(&pair->notified, 2);
                if (hr_outcome_failed(&pair->outcome))
                        status = hr_outcome_diag(&pair->outcome)->status;
        }
        *ret_is_right = is_right(pair);
        pair_close(pair);
        free(pair);
        return status;
}

/* While the first copy is held, what overwrites its source is computed; and nothing that stands for
 * the copy is told. */
HR_TEST(the_next_split_is_computed_while_a_copy_travels) {
        struct pair *pair = calloc(1, sizeof *pair);
        struct hr_diag diag = { 0 };
        uint64_t still = 0, executed = 0;

        HR_EXPECT(pair);
        fake_begin(1);
        HR_EXPECT_OK(pair_open(pair, &diag), &diag);
        HR_EXPECT_OK(hr_queue_write(pair->queues[0], pair->source->base, pair->values,
                                    sizeof pair->values, &pair->outcome, &diag),
                     &diag);
        fake_hold_peers(true);
        HR_EXPECT_OK(turn(pair, 0, &diag), &diag);
        HR_EXPECT_OK(hr_queue_record(pair->queues[0], pair->events[0], &diag), &diag);
        HR_EXPECT_OK(hr_queue_notify(pair->queues[0], notified, &pair->notified, &diag), &diag);
        for (uint32_t i = 1; i < TURNS; i++)
                HR_EXPECT_OK(turn(pair, i, &diag), &diag);
        HR_EXPECT_OK(hr_queue_wait(pair->queues[0], pair->events[0], &diag), &diag);
        HR_EXPECT_OK(hr_queue_compute(pair->queues[0], pair->program, 0, 1, &pair->outcome, &diag),
                     &diag);
        /* Memory of the fake is memory: doubled once more than it was sent. */
        for (int i = 0; i < TIMEOUT_S * 10000 && still < 100; i++) {
                still = executed == fake_executed() ? still + 1 : 0;
                executed = fake_executed();
                (void) usleep(100);
        }
        HR_EXPECT(((const float *) pair->source->base)[999] == 999.0f * (2U << TURNS));
        HR_EXPECT(!hr_event_query(pair->events[0]));
        HR_EXPECT_EQ(atomic_load(&pair->notified), 0);
        fake_hold_peers(false);
        HR_EXPECT_OK(hr_event_synchronize(pair->events[0], TIMEOUT_S * HR_NS_PER_S, &diag), &diag);
        HR_EXPECT_OK(hr_queue_notify(pair->queues[0], notified, &pair->notified, &diag), &diag);
        await(&pair->notified, 2);
        for (uint32_t i = 0; i < TURNS; i++)
                memcpy(pair->results[i], pair->targets[i]->base, sizeof pair->results[i]);
        HR_EXPECT(is_right(pair));
        pair_close(pair);
        free(pair);
}

HR_TEST_LIMIT(results_are_right_with_any_pauses, 60) {
        for (uint32_t seed = 0; seed < 20; seed++) {
                bool right = false;

                fake_begin(seed);
                HR_EXPECT_EQ(journey(&right), HR_OK);
                HR_EXPECT(right);
        }
}

static void fail_every_call(CUresult result) {
        uint64_t call = 0;
        bool was_hit;

        do {
                bool right = false;
                hr_status status;

                fake_begin((uint32_t) call + 1);
                fake_fail_call(call, result);
                status = journey(&right);
                HR_EXPECT(status != HR_OK || right);
                if (hr_status_scope(status) == HR_SCOPE_DEVICE)
                        HR_EXPECT(cuda_result_is_sticky(result));
                was_hit = fake_calls() > call++;
        } while (was_hit);
        HR_EXPECT(call > 80);
}

HR_TEST_LIMIT(every_call_fails_once, 120) {
        fail_every_call(CUDA_ERROR_INVALID_VALUE);
}

HR_TEST_LIMIT(every_call_ends_its_context, 120) {
        fail_every_call(CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void lose_at_every_operation(uint32_t gpu) {
        uint32_t lost = 0, passed = 0;

        for (uint64_t operation = 0; operation < 200 && passed < 2; operation++) {
                bool right = false;
                hr_status status;

                fake_begin((uint32_t) operation + 1);
                fake_lose(gpu, operation, CUDA_ERROR_ECC_UNCORRECTABLE);
                status = journey(&right);
                HR_EXPECT(status == HR_E_DEVICE_LOST || (status == HR_OK && right));
                lost += status != HR_OK;
                passed += status == HR_OK;
        }
        HR_EXPECT(lost > 8 && passed == 2);
}

HR_TEST_LIMIT(the_source_is_lost_at_every_operation, 120) {
        lose_at_every_operation(0);
}

HR_TEST_LIMIT(the_target_is_lost_at_every_operation, 120) {
        lose_at_every_operation(1);
}

/* Order of the two streams is made up for by waiting; without memory to put aside, or events, there
 * is one stream. */
HR_TEST_LIMIT(what_can_be_made_up_for_is, 60) {
        static const char *const names[] = { "cuEventRecord", "cuStreamWaitEvent",
                                             "cuStreamWriteValue64", "cuLaunchHostFunc" };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                bool right = false;

                fake_begin(11);
                fake_fail_name(names[i], CUDA_ERROR_INVALID_VALUE);
                HR_EXPECT_EQ(journey(&right), HR_OK);
                HR_EXPECT(right);
        }
        for (uint64_t bytes = 4 << 20; bytes <= 64 << 20; bytes *= 4) {
                bool right = false;

                fake_begin(12);
                fake_set_memory(bytes);
                HR_EXPECT_EQ(journey(&right), HR_OK);
                HR_EXPECT(right);
        }
}

/* More than there is memory to put aside, in pieces that end anywhere. */
HR_TEST_LIMIT(a_copy_larger_than_what_is_put_aside_arrives_whole, 60) {
        const uint64_t bytes = (uint64_t) CUDA_ASIDE_SLOTS * CUDA_ASIDE_BYTES + (5 << 20) + 12345;
        struct pair *pair = calloc(1, sizeof *pair);
        struct hr_buffer *large[2] = { 0 };
        struct hr_span spans[SPANS];
        struct hr_diag diag = { 0 };
        uint64_t told = 0;
        uint32_t count;

        HR_EXPECT(pair);
        fake_begin(7);
        HR_EXPECT_OK(pair_open(pair, &diag), &diag);
        for (uint32_t i = 0; i < 2; i++)
                HR_EXPECT_OK(hr_buffer_new(pair->devices[i], bytes, HR_USAGE_ANY, &diag, &large[i]),
                             &diag);
        for (uint64_t i = 0; i < bytes; i++)
                ((uint8_t *) large[0]->base)[i] = (uint8_t) (i * 131 + i / 4096);
        HR_EXPECT_OK(hr_queue_copy(pair->queues[0], large[0]->base, large[1]->base, large[1]->kind,
                                   bytes, &pair->outcome, &diag),
                     &diag);
        HR_EXPECT_OK(hr_queue_notify(pair->queues[0], notified, &pair->notified, &diag), &diag);
        await(&pair->notified, 1);
        HR_EXPECT(!hr_outcome_failed(&pair->outcome));
        HR_EXPECT(memcmp(large[0]->base, large[1]->base, bytes) == 0);
        pair->queues[0] = hr_queue_free(pair->queues[0]);
        count = hr_recorder_read(pair->recorder, spans);
        for (uint32_t i = 0; i < count; i++)
                told += spans[i].kind == HR_SPAN_COPY ? spans[i].a : 0;
        HR_EXPECT_EQ(told, bytes);
        for (uint32_t i = 0; i < 2; i++)
                large[i] = hr_buffer_unref(large[i]);
        pair_close(pair);
        free(pair);
}

struct order {
        atomic_uint next;
        unsigned of[3]; /* the place in which it was called */
};

struct caller {
        struct order *order;
        uint32_t number;
};

static void called(void *arg) {
        const struct caller *caller = arg;

        caller->order->of[caller->number] = atomic_load(&caller->order->next);
        atomic_fetch_add(&caller->order->next, 1);
}

/* Whichever of the two streams is found to be lost first: notifications of both come in turn. */
HR_TEST_LIMIT(a_loss_tells_of_both_streams_in_order, 60) {
        const uint64_t bytes = (uint64_t) (CUDA_ASIDE_SLOTS + 1) * CUDA_ASIDE_BYTES;

        for (uint32_t seed = 1; seed < 40; seed++) {
                struct pair *pair = calloc(1, sizeof *pair);
                struct hr_buffer *large[2] = { 0 };
                struct order order = { 0 };
                struct caller callers[] = { { &order, 0 }, { &order, 1 }, { &order, 2 } };
                struct hr_diag diag = { 0 };

                HR_EXPECT(pair);
                fake_begin(seed);
                HR_EXPECT_OK(pair_open(pair, &diag), &diag);
                for (uint32_t i = 0; i < 2; i++)
                        HR_EXPECT_OK(hr_buffer_new(pair->devices[i], bytes, HR_USAGE_ANY, &diag,
                                                   &large[i]),
                                     &diag);
                fake_hold_peers(true);
                fake_lose(0, seed % 4, CUDA_ERROR_LAUNCH_FAILED);
                for (uint32_t i = 0; i < 3; i++) {
                        HR_EXPECT_OK(hr_queue_notify(pair->queues[0], called, &callers[i], &diag),
                                     &diag);
                        HR_EXPECT_OK(hr_queue_copy(pair->queues[0], large[0]->base, large[1]->base,
                                                   large[1]->kind, i ? bytes : CUDA_BESIDE_MIN,
                                                   &pair->outcome, &diag),
                                     &diag);
                }
                await(&order.next, 3);
                for (uint32_t i = 0; i < 3; i++)
                        HR_EXPECT_EQ(order.of[i], i);
                for (uint32_t i = 0; i < 2; i++)
                        large[i] = hr_buffer_unref(large[i]);
                pair_close(pair);
                free(pair);
        }
}
