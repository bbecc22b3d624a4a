/*
 * Events of CUDA queues.
 *
 * A queue counts what it has issued, and its GPU writes the count into a pinned word when it gets
 * there (lane.h). A record of an event is such a number, so asking for it is one load from memory
 * and no call of the driver. The driver's own event serves other streams, which wait for it on the
 * GPU.
 *
 * Each record has a mark of its own while somebody may still look for it: a later record of the
 * same event must not hold up an earlier wait. In a steady state an event has one or two.
 */
#pragma once

#include "backends/cuda/gpu.h"
#include "core/device.h"
#include "core/host_wait.h"

enum { CUDA_MARK_SUBMITTED, CUDA_MARK_ISSUED };

struct cuda_mark {
        struct cuda_mark *next;
        CUevent event;
        bool is_used; /* recorded at least once; engine's */
        _Atomic(struct cuda_word *) word; /* of the queue that records */
        atomic_uint_least64_t count;      /* the word reaches it */
        struct hr_host_word phase;        /* SUBMITTED until word, count and event are right */
        atomic_uint holds;                /* records and waits submitted and not yet executed */
};

HR_NODISCARD hr_status cuda_event_new(struct hr_device *device, struct cuda_gpu *gpu,
                                      struct hr_diag *diag, struct hr_event **ret_event);
bool cuda_event_is_ours(const struct hr_event *event);
/* The mark of the latest record submitted, or NULL. Thread: engine. */
struct cuda_mark *cuda_event_latest(struct hr_event *event);
/* The GPU of the device that it was made of. */
struct cuda_gpu *cuda_event_gpu(struct hr_event *event);
/* A mark for one more record, already the latest one, and held for it. HR_E_EXHAUSTED leaves the
 * event as it was. Thread: engine. */
HR_NODISCARD hr_status cuda_event_renew(struct hr_event *event, struct hr_diag *diag,
                                        struct cuda_mark **ret_mark);
bool cuda_mark_is_reached(struct cuda_mark *mark);
