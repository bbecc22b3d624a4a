/* Queues that wait for each other, over the queues of a rig. See meeting.h. */
#include "tests/unit/scheduler/meeting.h"

#include <stdlib.h>
#include <time.h>

#include "scheduler/exec.h"

enum { MEETINGS_MOST = 32, PATIENCE_S = 20 };

struct place {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        uint32_t there; /* how many have come */
};

static struct place places[MEETINGS_MOST];
static atomic_uint missed;

struct meeting_queue {
        struct hr_queue queue;
        struct hr_queue *inner;
        meeting_kind kind;
        uint32_t number;  /* of the next command of that kind */
        uint32_t skipped; /* commands before the first that meets */
        uint32_t meetings;
};

/* Runs on the queue's own thread, just before the command. */
static void meet(void *arg) {
        struct place *place = arg;
        struct timespec until;

        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += PATIENCE_S;
        pthread_mutex_lock(&place->lock);
        ++place->there;
        pthread_cond_broadcast(&place->changed);
        while (place->there < 2) {
                if (pthread_cond_timedwait(&place->changed, &place->lock, &until) != 0) {
                        atomic_fetch_add(&missed, 1);
                        break;
                }
        }
        pthread_mutex_unlock(&place->lock);
}

static struct meeting_queue *cast(const struct hr_queue *queue) {
        return (struct meeting_queue *) HR_CONTAINER_OF(queue, struct meeting_queue, queue);
}

static struct hr_queue *inner_of(struct hr_queue *queue, bool meets, struct hr_diag *diag) {
        struct meeting_queue *meeting = cast(queue);
        uint32_t number = meeting->number;

        if (!meets)
                return meeting->inner;
        ++meeting->number;
        if (number >= meeting->skipped && number - meeting->skipped < meeting->meetings)
                HR_EXPECT_EQ(hr_queue_notify(meeting->inner, meet,
                                             &places[number - meeting->skipped], diag),
                             HR_OK);
        return meeting->inner;
}

static void meeting_destroy(struct hr_queue *queue) {
        (void) hr_queue_free(cast(queue)->inner);
        free(cast(queue));
}

static hr_status meeting_compute(struct hr_queue *queue, struct hr_program *program, uint32_t first,
                                 uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        bool meets = cast(queue)->kind == MEET_COMPUTE;

        return hr_queue_compute(inner_of(queue, meets, diag), program, first, count, outcome, diag);
}

static hr_status meeting_write(struct hr_queue *queue, void *destination, const void *host,
                               uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        bool meets = cast(queue)->kind == MEET_WRITE;

        return hr_queue_write(inner_of(queue, meets, diag), destination, host, bytes, outcome,
                              diag);
}

static hr_status meeting_read(struct hr_queue *queue, const void *source, void *host,
                              uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_read(cast(queue)->inner, source, host, bytes, outcome, diag);
}

static hr_status meeting_copy(struct hr_queue *queue, const void *source, void *destination,
                              const struct hr_buffer_kind *to, uint64_t bytes,
                              struct hr_outcome *outcome, struct hr_diag *diag) {
        return hr_queue_copy(cast(queue)->inner, source, destination, to, bytes, outcome, diag);
}

static bool meeting_can_copy(const struct hr_queue *queue, const struct hr_buffer_kind *to) {
        return hr_queue_can_copy(cast(queue)->inner, to);
}

static hr_status meeting_wait(struct hr_queue *queue, struct hr_event *event,
                              struct hr_diag *diag) {
        return hr_queue_wait(cast(queue)->inner, event, diag);
}

static hr_status meeting_record(struct hr_queue *queue, struct hr_event *event,
                                struct hr_diag *diag) {
        return hr_queue_record(cast(queue)->inner, event, diag);
}

static hr_status meeting_notify(struct hr_queue *queue, hr_notify_fn fn, void *arg,
                                struct hr_diag *diag) {
        return hr_queue_notify(cast(queue)->inner, fn, arg, diag);
}

static hr_status meeting_copy_experts(struct hr_queue *queue, struct hr_expert_cache *cache,
                                      uint32_t weight, const void *ids,
                                      struct hr_expert_tally *tally, struct hr_outcome *outcome,
                                      struct hr_diag *diag) {
        bool meets = cast(queue)->kind == MEET_EXPERTS && weight == 0;

        return hr_queue_copy_experts(inner_of(queue, meets, diag), cache, weight, ids, tally,
                                     outcome, diag);
}

static const struct hr_queue_ops meeting_ops = {
        .size = sizeof meeting_ops,
        .destroy = meeting_destroy,
        .compute = meeting_compute,
        .write = meeting_write,
        .read = meeting_read,
        .copy = meeting_copy,
        .can_copy = meeting_can_copy,
        .copy_fault = hr_queue_copy_fault_none,
        .wait = meeting_wait,
        .record = meeting_record,
        .notify = meeting_notify,
        .copy_experts = meeting_copy_experts,
};

static void wrap(struct hr_queue **queue, meeting_kind kind, uint32_t skipped, uint32_t meetings) {
        struct meeting_queue *meeting = calloc(1, sizeof *meeting);

        HR_EXPECT(meeting);
        meeting->queue.ops = &meeting_ops;
        meeting->queue.device = hr_device_ref((*queue)->device);
        meeting->inner = *queue;
        meeting->kind = kind;
        meeting->skipped = skipped;
        meeting->meetings = meetings;
        *queue = &meeting->queue;
}

static void arrange(uint32_t meetings) {
        HR_EXPECT(meetings <= MEETINGS_MOST);
        atomic_store(&missed, 0);
        for (uint32_t i = 0; i < meetings; ++i) {
                pthread_mutex_init(&places[i].lock, NULL);
                pthread_cond_init(&places[i].changed, NULL);
                places[i].there = 0;
        }
}

void rig_meet(struct rig *rig, uint32_t runs, uint32_t early, meeting_kind early_kind,
              uint32_t late, meeting_kind late_kind) {
        HR_EXPECT(runs >= 2);
        arrange(runs - 1);
        wrap(&rig->fleet->queues[early], early_kind, 1, runs - 1);
        wrap(&rig->fleet->queues[late], late_kind, 0, runs - 1);
}

void rig_meet_uploads(struct rig *rig, uint32_t device, uint32_t skipped, uint32_t meetings,
                      meeting_kind kind) {
        arrange(meetings);
        HR_EXPECT_OK(hr_fleet_upload_queue(rig->fleet, device, &rig->diag), &rig->diag);
        wrap(&rig->fleet->queues[device], MEET_COMPUTE, skipped, meetings);
        wrap(&rig->fleet->uploads[device], kind, 0, meetings);
}

uint32_t rig_missed_meetings(void) {
        return atomic_load(&missed);
}
