/*
 * What a queue's own thread does on the GPU: an in-order stream, and the books that make every
 * command end, whatever becomes of the GPU. A queue has one or two (lanes.h).
 *
 * Progress. Commands that somebody waits for get the next number; the stream writes it into `word`
 * when it gets there. What the stream has passed is thus known from one load, without the driver.
 *
 * Tasks. Work of the host in the stream's order (a notification, a copy between pinned and ordinary
 * memory, a look at a fault word) is a task: the driver's thread runs it as a host function, and a
 * task is claimed before it is run, so that it runs once although a lost GPU leaves its tasks to
 * this thread.
 *
 * Loss. While anything is under way the thread asks the stream for its health every now and then.
 * The first lane that finds the GPU lost fails the runs under way on all of its lanes with
 * DEVICE_LOST. Then each lane gives its notifications in order and sets its word to the last
 * number: everything is then reached, and whoever sees that also sees that the run has failed.
 * Later commands do no work and fail their runs, but still record and notify.
 *
 * Waits for another queue of the same GPU are the stream's. Waits for another GPU are this
 * thread's: what a stream does about the event of a lost context is the driver's secret.
 *
 * A call that fails without ending the context is made up for: the stream is waited for and the
 * host does the task. Failing launches and copies fail their run.
 */
#pragma once

#include "backends/cuda/event.h"
#include "backends/cuda/launch.h"
#include "backends/cuda/spans.h"

#define CUDA_STAGING_SLOTS 16
#define CUDA_STAGING_BYTES (256U << 10)

struct cuda_task;
struct cuda_passage;

struct cuda_lane {
        struct cuda_lane *next; /* of the GPU's; guarded by its lock */
        struct cuda_gpu *gpu;
        struct hr_device *device;
        CUstream stream;
        struct cuda_word *word;
        uint64_t count;  /* latest number given */
        uint64_t hazard; /* until it is reached, host memory may still change by earlier commands */
        bool is_swept;   /* the GPU is lost and everything under way has been dealt with */
        struct cuda_lane *before; /* of the same queue: what it has comes first when the GPU is
                                   * lost; NULL = nothing */
        const struct cuda_word *own; /* of another stream of the same queue, whose records need no
                                      * wait; NULL = there is none */
        uint64_t spin_ns;
        /* Under way: a ring of what has to be told when the GPU is lost. Only this thread changes
         * it, and holds the lock while it does. */
        pthread_mutex_t lock;
        struct cuda_passage *passages;
        uint32_t passage_first, passage_count;
        struct cuda_task *tasks, *free_tasks;
        /* Pinned memory between device and ordinary memory. */
        uint8_t *staging;
        uint64_t staging_busy[CUDA_STAGING_SLOTS]; /* number that frees the slot */
        uint32_t staging_next;
        /* Host memory for ids of experts; grows with the largest. */
        uint8_t *ids;
        uint64_t ids_room;
        struct cuda_spans spans;
};

/* with_host: it copies from and to the host. On failure what was made is undone. Thread: engine. */
HR_NODISCARD hr_status cuda_lane_init(struct cuda_lane *lane, struct hr_device *device,
                                      struct cuda_gpu *gpu, uint64_t spin_ns, bool with_host,
                                      struct hr_diag *diag);
/* Waits until everything issued has ended. */
void cuda_lane_deinit(struct cuda_lane *lane);

/* Everything below: the queue's thread. None of these can fail as a call; failures go to the
 * outcome. */
void cuda_lane_compute(struct cuda_lane *lane, struct cuda_program *program, uint32_t first,
                       uint32_t count, struct hr_outcome *outcome);
void cuda_lane_write(struct cuda_lane *lane, void *destination, const void *host, uint64_t bytes,
                     struct hr_outcome *outcome);
void cuda_lane_read(struct cuda_lane *lane, const void *source, void *host, uint64_t bytes,
                    struct hr_outcome *outcome);
void cuda_lane_copy(struct cuda_lane *lane, const void *source, void *destination,
                    struct cuda_gpu *to, uint64_t bytes, struct hr_outcome *outcome);
/* hr_queue_ops.copy_experts. Waits for the ids: what comes later in the queue is not in the stream
 * before they are there. */
void cuda_lane_experts(struct cuda_lane *lane, struct hr_expert_cache *cache, uint32_t weight,
                       const void *ids, struct hr_expert_tally *tally, struct hr_outcome *outcome);
/* `gpu` is that of the queue that records. */
void cuda_lane_wait(struct cuda_lane *lane, struct cuda_mark *mark, struct cuda_gpu *gpu);
void cuda_lane_record(struct cuda_lane *lane, struct cuda_mark *mark);
void cuda_lane_notify(struct cuda_lane *lane, hr_notify_fn fn, void *arg);
/* Is anything under way, or not yet told to the recorder? */
bool cuda_lane_is_busy(const struct cuda_lane *lane);
/* Asks the stream for its health and sweeps if the GPU is lost. */
void cuda_lane_watch(struct cuda_lane *lane);
/* Around a command that is to be recorded. */
void cuda_lane_span_begin(struct cuda_lane *lane);
void cuda_lane_span_end(struct cuda_lane *lane, const struct hr_span *span);
/* Waits for everything issued, and tells the recorder. */
void cuda_lane_finish(struct cuda_lane *lane, struct hr_recorder *recorder);
/* Tells the recorder what has been done. */
void cuda_lane_tell(struct cuda_lane *lane, struct hr_recorder *recorder);
