/* See event.h. */
#include "backends/cuda/event.h"

#include <stdlib.h>

#define SPIN_NS (20 * UINT64_C(1000))
#define PAUSE_US_MAX 200

struct cuda_event {
        struct hr_event event;
        struct cuda_gpu *gpu;
        struct cuda_mark *marks; /* engine's */
        _Atomic(struct cuda_mark *) latest;
};

static const struct hr_event_ops event_ops;

static struct cuda_event *event_cast(struct hr_event *event) {
        HR_ASSERT(event->ops == &event_ops);
        return HR_CONTAINER_OF(event, struct cuda_event, event);
}

bool cuda_event_is_ours(const struct hr_event *event) {
        return event->ops == &event_ops;
}

bool cuda_mark_is_reached(struct cuda_mark *mark) {
        struct cuda_word *word;

        if (atomic_load_explicit(&mark->phase.value, memory_order_acquire) != CUDA_MARK_ISSUED)
                return false;
        word = atomic_load_explicit(&mark->word, memory_order_relaxed);
        return cuda_word_progress(word) >=
               atomic_load_explicit(&mark->count, memory_order_relaxed);
}

static bool event_query(struct hr_event *base) {
        struct cuda_mark *mark = atomic_load_explicit(&event_cast(base)->latest,
                                                      memory_order_acquire);

        return !mark || cuda_mark_is_reached(mark);
}

/* The GPU cannot wake a thread, so the waiter looks again and again, less and less often. */
static bool poll(bool (*is_true)(struct hr_event *event), struct hr_event *event,
                 uint64_t timeout_ns) {
        uint64_t start_ns = hr_clock_now_ns();
        unsigned pause_us = 1;

        while (!is_true(event)) {
                uint64_t passed_ns = hr_clock_now_ns() - start_ns;

                if (passed_ns >= timeout_ns)
                        return is_true(event);
                if (passed_ns < SPIN_NS) {
                        hr_host_pause();
                        continue;
                }
                (void) usleep((useconds_t) HR_MIN(pause_us,
                                                  (timeout_ns - passed_ns) / 1000 + 1));
                pause_us = HR_MIN(2 * pause_us, PAUSE_US_MAX);
        }
        return true;
}

static hr_status event_synchronize(struct hr_event *base, uint64_t timeout_ns,
                                   struct hr_diag *diag) {
        struct cuda_event *event = event_cast(base);

        if (!poll(event_query, base, timeout_ns))
                return hr_fail(diag, HR_E_DEADLINE, "an event of %s has not been reached",
                               base->device->props.name);
        if (cuda_gpu_is_lost(event->gpu))
                return cuda_gpu_fail_lost(event->gpu, diag);
        return HR_OK;
}

/* Neither named by a command nor to be reached yet. */
static bool mark_is_free(struct cuda_mark *mark) {
        return atomic_load_explicit(&mark->holds, memory_order_acquire) == 0 &&
               (!mark->is_used || cuda_mark_is_reached(mark));
}

static bool event_is_free(struct hr_event *base) {
        for (struct cuda_mark *mark = event_cast(base)->marks; mark; mark = mark->next)
                if (!mark_is_free(mark))
                        return false;
        return true;
}

static void event_destroy(struct hr_event *base) {
        struct cuda_event *event = event_cast(base);

        (void) poll(event_is_free, base, UINT64_MAX);
        (void) event->gpu->cu->cuCtxSetCurrent(event->gpu->context);
        while (event->marks) {
                struct cuda_mark *mark = event->marks;

                event->marks = mark->next;
                (void) event->gpu->cu->cuEventDestroy(mark->event);
                free(mark);
        }
        free(event);
}

static const struct hr_event_ops event_ops = {
        .size = sizeof event_ops,
        .destroy = event_destroy,
        .query = event_query,
        .synchronize = event_synchronize,
};

static hr_status mark_add(struct cuda_event *event, struct hr_diag *diag,
                          struct cuda_mark **ret_mark) {
        struct cuda_mark *mark = calloc(1, sizeof *mark);
        hr_status status;

        if (!mark)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for an event");
        status = cuda_gpu_enter(event->gpu, diag);
        if (status == HR_OK)
                status = cuda_gpu_check(event->gpu,
                                        event->gpu->cu->cuEventCreate(&mark->event,
                                                                      CU_EVENT_DISABLE_TIMING),
                                        "event", diag);
        if (status != HR_OK) {
                free(mark);
                return status;
        }
        mark->next = event->marks;
        event->marks = mark;
        *ret_mark = mark;
        return HR_OK;
}

hr_status cuda_event_new(struct hr_device *device, struct cuda_gpu *gpu, struct hr_diag *diag,
                         struct hr_event **ret_event) {
        struct cuda_event *event = calloc(1, sizeof *event);
        struct cuda_mark *mark = NULL;
        hr_status status;

        if (!event)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for an event");
        event->event.ops = &event_ops;
        event->event.device = device;
        event->gpu = gpu;
        status = mark_add(event, diag, &mark);
        if (status != HR_OK) {
                free(event);
                return status;
        }
        *ret_event = &event->event;
        return HR_OK;
}

struct cuda_mark *cuda_event_latest(struct hr_event *event) {
        return atomic_load(&event_cast(event)->latest);
}

struct cuda_gpu *cuda_event_gpu(struct hr_event *event) {
        return event_cast(event)->gpu;
}

hr_status cuda_event_renew(struct hr_event *base, struct hr_diag *diag,
                           struct cuda_mark **ret_mark) {
        struct cuda_event *event = event_cast(base);
        struct cuda_mark *mark = event->marks;

        while (mark && !mark_is_free(mark))
                mark = mark->next;
        if (!mark)
                HR_TRY(mark_add(event, diag, &mark));
        mark->is_used = true;
        atomic_fetch_add(&mark->holds, 1);
        atomic_store(&mark->phase.value, CUDA_MARK_SUBMITTED);
        atomic_store(&event->latest, mark);
        *ret_mark = mark;
        return HR_OK;
}
