/*
 * The streams of one queue: one computes and talks to the host, and where another GPU is there, a
 * second one takes what goes to it, so that the next split is computed while results of this one
 * still travel.
 *
 * A queue is in order all the same. What is copied is first put aside, in memory of the queue's own
 * on the same GPU, in the computing stream; so whatever comes later may overwrite it at once. The
 * copying stream waits for that and sends it on. Nothing else of this queue touches the memory at
 * the other end. While the copying stream has work, records, notifications and small copies go
 * there, too, behind all that was given to the computing one; so what they stand for is complete,
 * and nobody is notified out of turn. When it has none, all that it was given is over, and the
 * computing stream says all there is.
 *
 * Copies below CUDA_BESIDE_MIN cost less than the events around them and stay where they are, as do
 * those within a GPU, which are as fast as putting aside. Both limits are reckoned, not measured.
 */
#pragma once

#include "backends/cuda/lane.h"

#define CUDA_BESIDE_MIN (256U << 10)
#define CUDA_ASIDE_SLOTS 8
#define CUDA_ASIDE_BYTES (4U << 20)

struct cuda_lanes {
        struct cuda_lane compute, copies;
        bool has_copies;
        CUevent behind;    /* where the computing stream stood when the other one was told last */
        CUdeviceptr aside; /* CUDA_ASIDE_SLOTS pieces of CUDA_ASIDE_BYTES */
        uint64_t aside_busy[CUDA_ASIDE_SLOTS]; /* number of `copies` that frees the piece */
        uint32_t aside_next;
};

/* with_copies: GPUs other than this one may be copied to. Without device memory to put aside there
 * is one stream, and nothing fails. On failure what was made is undone. Thread: engine. */
HR_NODISCARD hr_status cuda_lanes_init(struct cuda_lanes *lanes, struct hr_device *device,
                                       struct cuda_gpu *gpu, uint64_t spin_ns, bool with_copies,
                                       struct hr_diag *diag);
/* Waits until everything issued has ended. */
void cuda_lanes_deinit(struct cuda_lanes *lanes);

/* Everything below: the queue's thread. See the commands of the same name in lane.h. */

/* `span`, unless it is NULL, is what the copy is recorded as. */
void cuda_lanes_copy(struct cuda_lanes *lanes, const void *source, void *destination,
                     struct cuda_gpu *to, uint64_t bytes, struct hr_outcome *outcome,
                     const struct hr_span *span);
void cuda_lanes_record(struct cuda_lanes *lanes, struct cuda_mark *mark);
void cuda_lanes_notify(struct cuda_lanes *lanes, hr_notify_fn fn, void *arg);
bool cuda_lanes_are_busy(const struct cuda_lanes *lanes);
void cuda_lanes_watch(struct cuda_lanes *lanes);
void cuda_lanes_tell(struct cuda_lanes *lanes, struct hr_recorder *recorder);
void cuda_lanes_finish(struct cuda_lanes *lanes, struct hr_recorder *recorder);
