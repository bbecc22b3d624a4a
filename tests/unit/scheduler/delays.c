/* Queues that sleep at random, over the queues of a rig. See delays.h. */
#include "tests/unit/scheduler/delays.h"

#include <unistd.h>

#include "scheduler/exec.h"

struct delayed_queue {
        struct hr_queue queue;
        struct hr_queue *inner;
        struct dice dice;
        uint32_t us_most, one_in;
};

void dice_init(struct dice *dice, uint64_t seed) {
        dice->state = UINT64_C(0x9e3779b97f4a7c15) * (seed + 1);
        for (int i = 0; i < 8; ++i)
                (void) dice_roll(dice, 2);
}

uint32_t dice_roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

/* Runs on the queue's own thread, between two commands. */
static void nap(void *arg) {
        (void) usleep((useconds_t) (uintptr_t) arg);
}

static struct hr_queue *inner_of(struct hr_queue *queue, struct hr_diag *diag) {
        struct delayed_queue *delayed = HR_CONTAINER_OF(queue, struct delayed_queue, queue);

        if (dice_roll(&delayed->dice, delayed->one_in) == 0) {
                uintptr_t us = 1 + dice_roll(&delayed->dice, delayed->us_most);

                HR_EXPECT_EQ(hr_queue_notify(delayed->inner, nap, (void *) us, diag), HR_OK);
        }
        return delayed->inner;
}

static void delayed_destroy(struct hr_queue *queue) {
        struct delayed_queue *delayed = HR_CONTAINER_OF(queue, struct delayed_queue, queue);

        (void) hr_queue_free(delayed->inner);
        free(delayed);
}

static hr_status delayed_compute(struct hr_queue *queue, struct hr_program *program, uint32_t first,
                                 uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_compute(inner_of(queue, diag), program, first, count, outcome, diag);
}

static hr_status delayed_write(struct hr_queue *queue, void *destination, const void *host,
                               uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_write(inner_of(queue, diag), destination, host, bytes, outcome, diag);
}

static hr_status delayed_read(struct hr_queue *queue, const void *source, void *host,
                              uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_read(inner_of(queue, diag), source, host, bytes, outcome, diag);
}

static hr_status delayed_copy(struct hr_queue *queue, const void *source, void *destination,
                              const struct hr_buffer_kind *to, uint64_t bytes,
                              struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_copy(inner_of(queue, diag), source, destination, to, bytes, outcome, diag);
}

static bool delayed_can_copy(const struct hr_queue *queue, const struct hr_buffer_kind *to) {
        return hr_queue_can_copy(HR_CONTAINER_OF(queue, struct delayed_queue, queue)->inner, to);
}

static hr_status delayed_wait(struct hr_queue *queue, struct hr_event *event,
                              struct hr_diag *diag) {
        return hr_queue_wait(inner_of(queue, diag), event, diag);
}

static hr_status delayed_record(struct hr_queue *queue, struct hr_event *event,
                                struct hr_diag *diag) {
        return hr_queue_record(inner_of(queue, diag), event, diag);
}

static hr_status delayed_notify(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                                struct hr_diag *diag) {
        return hr_queue_notify(inner_of(queue, diag), fn, arg, diag);
}

static hr_status delayed_copy_experts(struct hr_queue *queue, struct hr_expert_cache *cache,
                                      uint32_t weight, const void *ids,
                                      struct hr_expert_tally *tally, struct hr_outcome *outcome,
                                      struct hr_diag *diag) {
        return hr_queue_copy_experts(inner_of(queue, diag), cache, weight, ids, tally, outcome,
                                     diag);
}

static const struct hr_queue_ops delayed_ops = {
        .size = sizeof delayed_ops,
        .destroy = delayed_destroy,
        .compute = delayed_compute,
        .write = delayed_write,
        .read = delayed_read,
        .copy = delayed_copy,
        .can_copy = delayed_can_copy,
        .copy_fault = hr_queue_copy_fault_none,
        .wait = delayed_wait,
        .record = delayed_record,
        .notify = delayed_notify,
        .copy_experts = delayed_copy_experts,
};

static struct hr_queue *delayed_new(struct hr_queue *inner, uint64_t seed, uint32_t us_most,
                                    uint32_t one_in) {
        struct delayed_queue *delayed = calloc(1, sizeof *delayed);

        HR_EXPECT(delayed);
        delayed->queue.ops = &delayed_ops;
        delayed->queue.device = hr_device_ref(inner->device);
        delayed->inner = inner;
        delayed->us_most = us_most;
        delayed->one_in = one_in;
        dice_init(&delayed->dice, seed);
        return &delayed->queue;
}

void rig_delay(struct rig *rig, uint64_t seed, uint32_t us_most, uint32_t one_in) {
        struct hr_fleet *fleet = rig->fleet;

        for (uint32_t d = 0; d < hr_fleet_device_count(fleet); ++d) {
                fleet->queues[d] =
                        delayed_new(fleet->queues[d], seed * RIG_DEVICES + d, us_most, one_in);
                if (!fleet->devices[d]->props.uploads)
                        continue;
                HR_EXPECT_OK(hr_fleet_upload_queue(fleet, d, &rig->diag), &rig->diag);
                fleet->uploads[d] =
                        delayed_new(fleet->uploads[d], ~(seed * RIG_DEVICES + d), us_most, one_in);
        }
}
