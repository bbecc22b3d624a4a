/* See lane.h. Copies are in lane_moves.c. */
#include "backends/cuda/lane.h"

#include <stdlib.h>
#include <string.h>

#include "backends/cuda/blas.h"
#include "backends/cuda/lane_priv.h"

#define PASSAGES_MAX 4096
#define TASKS_MAX 1024
#define WATCH_NS (1 * HR_NS_PER_MS)
#define PAUSE_US_MAX 100

/* A run or a task that is under way until `count` is reached. */
struct cuda_passage {
        uint64_t count;
        struct hr_outcome *outcome;
        struct cuda_task *task;
};

/* ---- Progress -------------------------------------------------------------------------------- */

uint64_t cuda_lane_progress(const struct cuda_lane *lane) {
        return cuda_word_progress(lane->word);
}

/* What the host says of the stream's progress; several threads may. */
static void word_raise(struct cuda_word *word, uint64_t count) {
        uint_least64_t seen = atomic_load(&word->forced);

        while (seen < count && !atomic_compare_exchange_weak(&word->forced, &seen, count)) {
        }
}

bool cuda_lane_is_busy(const struct cuda_lane *lane) {
        return cuda_lane_progress(lane) < lane->count || lane->spans.count > 0;
}

static void passages_retire(struct cuda_lane *lane) {
        uint64_t progress = cuda_lane_progress(lane);

        if (!lane->passage_count ||
            lane->passages[lane->passage_first % PASSAGES_MAX].count > progress)
                return;
        (void) pthread_mutex_lock(&lane->lock);
        while (lane->passage_count &&
               lane->passages[lane->passage_first % PASSAGES_MAX].count <= progress) {
                struct cuda_task *task = lane->passages[lane->passage_first % PASSAGES_MAX].task;

                /* The driver of a lost GPU may still come with it. */
                if (task && !lane->is_swept) {
                        task->next_free = lane->free_tasks;
                        lane->free_tasks = task;
                }
                lane->passage_first++;
                lane->passage_count--;
        }
        (void) pthread_mutex_unlock(&lane->lock);
}

static void passage_add(struct cuda_lane *lane, struct cuda_passage passage) {
        passages_retire(lane);
        if (lane->passage_count == PASSAGES_MAX) {
                cuda_lane_reach(lane, lane->count);
                passages_retire(lane);
        }
        (void) pthread_mutex_lock(&lane->lock);
        lane->passages[(lane->passage_first + lane->passage_count) % PASSAGES_MAX] = passage;
        lane->passage_count++;
        (void) pthread_mutex_unlock(&lane->lock);
}

/* A run has commands in the stream until the next number is reached. */
void cuda_lane_use(struct cuda_lane *lane, struct hr_outcome *outcome) {
        uint32_t last = lane->passage_first + lane->passage_count - 1;

        if (lane->passage_count && lane->passages[last % PASSAGES_MAX].outcome == outcome &&
            lane->passages[last % PASSAGES_MAX].count == lane->count + 1)
                return;
        passage_add(lane, (struct cuda_passage) { .count = lane->count + 1, .outcome = outcome });
}

/* ---- Tasks ----------------------------------------------------------------------------------- */

static void task_fault(struct cuda_task *task) {
        struct cuda_program *program = task->program;
        uint64_t step = atomic_exchange(&program->fault->fault, 0);
        uint32_t node;

        if (!step || step > program->program.steps->count)
                return;
        node = program->program.steps->steps[step - 1].node;
        (void) hr_outcome_fail(task->outcome, HR_E_RANGE, "INDEX_VALUE", node,
                               "an index in the data of node %u lies outside its tensor", node);
}

static void task_run(struct cuda_task *task) {
        switch (task->kind) {
        case TASK_NOTIFY:
                task->notify.fn(task->notify.arg);
                break;
        case TASK_MOVE:
                /* The bytes of a failed run are of no use, and nobody waits for them. */
                if (!hr_outcome_failed(task->outcome))
                        memcpy(task->move.to, task->move.from, task->move.bytes);
                break;
        case TASK_FAULT:
                task_fault(task);
                break;
        }
}

/* Thread: the driver's. */
static void CUDA_CB task_called(void *arg) {
        struct cuda_task *task = arg;

        if (atomic_exchange(&task->is_claimed, true))
                return;
        task_run(task);
        word_raise(task->word, task->count);
}

static struct cuda_task *task_take(struct cuda_lane *lane) {
        struct cuda_task *task;

        passages_retire(lane);
        if (!lane->free_tasks && !lane->is_swept) {
                cuda_lane_reach(lane, lane->count);
                passages_retire(lane);
        }
        task = lane->free_tasks;
        if (task)
                lane->free_tasks = task->next_free;
        return task;
}

/* ---- Loss ------------------------------------------------------------------------------------ */

static void fail_lost(struct cuda_lane *lane, struct hr_outcome *outcome) {
        struct hr_diag diag = { 0 };

        (void) cuda_gpu_fail_lost(lane->gpu, &diag);
        (void) hr_outcome_fail(outcome, HR_E_DEVICE_LOST, NULL, HR_DIAG_NO_INDEX, "%s", diag.words);
}

/* Fails the runs that are under way in one lane. Thread: that of any lane of the GPU. */
static void lane_fail_runs(struct cuda_lane *lane) {
        (void) pthread_mutex_lock(&lane->lock);
        for (uint32_t i = 0; i < lane->passage_count; i++) {
                struct cuda_passage *passage = &lane->passages[(lane->passage_first + i) %
                                                               PASSAGES_MAX];

                if (passage->outcome && passage->count > cuda_lane_progress(lane))
                        fail_lost(lane, passage->outcome);
        }
        (void) pthread_mutex_unlock(&lane->lock);
}

/* A run may be notified of by one lane and have its work in another. */
static void gpu_fail_runs(struct cuda_gpu *gpu) {
        (void) pthread_mutex_lock(&gpu->lock);
        for (struct cuda_lane *lane = gpu->lanes; lane && !gpu->runs_have_failed; lane = lane->next)
                lane_fail_runs(lane);
        gpu->runs_have_failed = true;
        (void) pthread_mutex_unlock(&gpu->lock);
}

/* Deals with everything under way on a GPU that is lost. */
static void lane_sweep(struct cuda_lane *lane) {
        if (lane->is_swept)
                return;
        if (lane->before)
                lane_sweep(lane->before);
        gpu_fail_runs(lane->gpu);
        passages_retire(lane);
        lane->is_swept = true;
        for (uint32_t i = 0; i < lane->passage_count; i++) {
                struct cuda_passage *passage = &lane->passages[(lane->passage_first + i) %
                                                               PASSAGES_MAX];

                if (!passage->task)
                        continue;
                if (!atomic_exchange(&passage->task->is_claimed, true)) {
                        if (passage->task->kind == TASK_NOTIFY)
                                task_run(passage->task);
                        word_raise(lane->word, passage->count);
                }
                while (cuda_lane_progress(lane) < passage->count)
                        (void) usleep(10); /* the driver's thread is in the middle of it */
        }
        word_raise(lane->word, lane->count);
        passages_retire(lane);
}

void cuda_lane_watch(struct cuda_lane *lane) {
        CUresult result;

        if (!cuda_gpu_is_lost(lane->gpu)) {
                result = lane->gpu->cu->cuStreamQuery(lane->stream);
                if (result != CUDA_ERROR_NOT_READY)
                        (void) cuda_gpu_check(lane->gpu, result, "stream", NULL);
        }
        if (cuda_gpu_is_lost(lane->gpu))
                lane_sweep(lane);
}

/* True: the GPU is lost and nothing is under way. */
static bool lane_is_lost(struct cuda_lane *lane) {
        if (!cuda_gpu_is_lost(lane->gpu))
                return false;
        lane_sweep(lane);
        return true;
}

/* Waits until the stream has got that far, or is lost. */
void cuda_lane_reach(struct cuda_lane *lane, uint64_t count) {
        uint64_t start_ns = 0, watched_ns = 0;
        unsigned pause_us = 1;

        for (uint32_t turn = 0; cuda_lane_progress(lane) < count; turn++) {
                uint64_t now_ns = hr_clock_now_ns();

                if (!start_ns)
                        start_ns = watched_ns = now_ns;
                if (now_ns - watched_ns >= WATCH_NS) {
                        cuda_lane_watch(lane);
                        watched_ns = now_ns;
                }
                if (now_ns - start_ns < lane->spin_ns) {
                        hr_host_pause();
                        continue;
                }
                (void) usleep(pause_us);
                pause_us = HR_MIN(2 * pause_us, PAUSE_US_MAX);
        }
}

void cuda_lane_settle(struct cuda_lane *lane) {
        CUresult result = lane->gpu->cu->cuStreamSynchronize(lane->stream);

        /* A stream that cannot even be waited for is as good as lost. */
        if (result != CUDA_SUCCESS && !cuda_result_is_sticky(result))
                result = CUDA_ERROR_UNKNOWN;
        if (cuda_gpu_check(lane->gpu, result, "waiting for a stream", NULL) != HR_OK)
                lane_sweep(lane);
        word_raise(lane->word, lane->count);
}

/* The next number, written by the stream when it gets there. */
uint64_t cuda_lane_mark(struct cuda_lane *lane) {
        CUresult result;

        lane->count++;
        if (lane_is_lost(lane)) {
                word_raise(lane->word, lane->count);
                return lane->count;
        }
        result = lane->gpu->cu->cuStreamWriteValue64(lane->stream,
                                                     (CUdeviceptr) (uintptr_t) &lane->word->value,
                                                     lane->count, CU_STREAM_WRITE_VALUE_DEFAULT);
        if (cuda_gpu_check(lane->gpu, result, "progress", NULL) != HR_OK)
                cuda_lane_settle(lane);
        return lane->count;
}

/* Puts a task into the stream under the next number. Returns the number. */
uint64_t cuda_lane_task(struct cuda_lane *lane, const struct cuda_task *model) {
        struct cuda_task *task = lane_is_lost(lane) ? NULL : task_take(lane);
        CUresult result;

        lane->count++;
        if (!task) { /* lost, perhaps while waiting for a free one */
                struct cuda_task alone = *model;

                if (alone.kind == TASK_NOTIFY)
                        task_run(&alone);
                word_raise(lane->word, lane->count);
                return lane->count;
        }
        *task = *model;
        atomic_init(&task->is_claimed, false);
        task->word = lane->word;
        task->count = lane->count;
        passage_add(lane, (struct cuda_passage) { .count = lane->count, .task = task });
        result = lane->gpu->cu->cuLaunchHostFunc(lane->stream, task_called, task);
        if (cuda_gpu_check(lane->gpu, result, "host function", NULL) == HR_OK)
                return lane->count;
        /* All before it has to be over; a sweep gives it too. */
        lane->count--;
        cuda_lane_settle(lane);
        lane->count++;
        if (!atomic_exchange(&task->is_claimed, true))
                task_run(task);
        word_raise(lane->word, lane->count);
        return lane->count;
}

/* ---- Commands -------------------------------------------------------------------------------- */

void cuda_lane_fail(struct cuda_lane *lane, CUresult result, const char *what, uint32_t node,
                      struct hr_outcome *outcome) {
        struct hr_diag diag = { 0 };
        hr_status status = cuda_gpu_check(lane->gpu, result, what, &diag);

        (void) hr_outcome_fail(outcome, status, NULL, node, "%s", diag.words);
}

/* False: the run has failed, or fails now because the GPU is lost. */
bool cuda_lane_begins(struct cuda_lane *lane, struct hr_outcome *outcome) {
        if (hr_outcome_failed(outcome))
                return false;
        if (lane_is_lost(lane)) {
                fail_lost(lane, outcome);
                return false;
        }
        return true;
}

static CUresult launch(struct cuda_lane *lane, const struct cuda_program *program,
                       const struct cuda_launch *item) {
        size_t bytes = item->argument_bytes;
        void *extra[] = CUDA_LAUNCH_EXTRA(program, item, &bytes);

        if (item->matmul)
                return cuda_matmul_launch(item->matmul, lane->stream);
        return lane->gpu->cu->cuLaunchKernel(item->function, item->blocks, 1, 1, item->threads, 1,
                                             1, item->shared_bytes, lane->stream, NULL, extra);
}

/* Step by step. *ret_step: the one that did not go. */
static CUresult launch_steps(struct cuda_lane *lane, const struct cuda_program *program,
                             uint32_t first, uint32_t count, uint32_t *ret_step) {
        for (uint32_t step = first; step < first + count; step++)
                for (uint32_t i = program->first[step]; i < program->first[step + 1]; i++) {
                        CUresult result = launch(lane, program, &program->launches[i]);

                        if (result != CUDA_SUCCESS) {
                                *ret_step = step;
                                return result;
                        }
                }
        return CUDA_SUCCESS;
}

void cuda_lane_compute(struct cuda_lane *lane, struct cuda_program *program, uint32_t first,
                       uint32_t count, struct hr_outcome *outcome) {
        bool is_whole = first == 0 && count == program->program.steps->count, may_fault = false;
        CUresult result = CUDA_SUCCESS;
        uint32_t step = first;

        if (!cuda_lane_begins(lane, outcome))
                return;
        cuda_lane_use(lane, outcome);
        hr_outcome_reach(outcome, program->program.steps->before + first + count);
        if (!is_whole || !cuda_replay_launch(program, lane->stream, &result)) {
                uint64_t start_ns = hr_clock_now_ns();

                result = launch_steps(lane, program, first, count, &step);
                atomic_fetch_add(&lane->device->graphs.launched, 1);
                atomic_fetch_add(&lane->device->graphs.launch_ns, hr_clock_now_ns() - start_ns);
        }
        if (result != CUDA_SUCCESS) {
                cuda_lane_fail(lane, result, "launch", program->program.steps->steps[step].node,
                               outcome);
                return;
        }
        for (uint32_t i = first; i < first + count; i++)
                may_fault |= program->may_fault[i];
        if (may_fault)
                (void) cuda_lane_task(lane, &(struct cuda_task) { .kind = TASK_FAULT,
                                                             .outcome = outcome,
                                                             .program = program });
}

void cuda_lane_wait(struct cuda_lane *lane, struct cuda_mark *mark, struct cuda_gpu *gpu) {
        uint64_t start_ns;

        /* Another queue's thread is about to say where its stream stands. */
        hr_host_word_wait(&mark->phase, CUDA_MARK_SUBMITTED, lane->spin_ns);
        if (atomic_load(&mark->word) == lane->word ||
            (lane->own && atomic_load(&mark->word) == lane->own) || cuda_mark_is_reached(mark))
                return;
        lane->hazard = lane->count + 1;
        if (gpu == lane->gpu && !lane_is_lost(lane) &&
            cuda_gpu_check(lane->gpu,
                           lane->gpu->cu->cuStreamWaitEvent(lane->stream, mark->event,
                                                            CU_EVENT_WAIT_DEFAULT),
                           "waiting for an event", NULL) == HR_OK)
                return;
        start_ns = hr_clock_now_ns();
        for (uint32_t turn = 0; !cuda_mark_is_reached(mark); turn++) {
                if (hr_clock_now_ns() - start_ns < lane->spin_ns) {
                        hr_host_pause();
                        continue;
                }
                if (turn % 64 == 63)
                        cuda_lane_watch(lane);
                (void) usleep(20);
        }
}

/* The number is written before the driver's event is recorded: what another stream does after the
 * event finds it reached on the host as well. */
void cuda_lane_record(struct cuda_lane *lane, struct cuda_mark *mark) {
        atomic_store(&mark->count, cuda_lane_mark(lane));
        atomic_store(&mark->word, lane->word);
        if (!lane_is_lost(lane) &&
            cuda_gpu_check(lane->gpu, lane->gpu->cu->cuEventRecord(mark->event, lane->stream),
                           "recording an event", NULL) != HR_OK)
                cuda_lane_settle(lane); /* other streams that wait for it find it reached */
        atomic_store(&mark->phase.value, CUDA_MARK_ISSUED);
        hr_host_word_wake(&mark->phase);
}

void cuda_lane_notify(struct cuda_lane *lane, hr_notify_fn fn, void *arg) {
        (void) cuda_lane_task(lane, &(struct cuda_task){.kind = TASK_NOTIFY, .notify = {fn, arg}});
}

/* ---- Spans ----------------------------------------------------------------------------------- */

void cuda_lane_span_begin(struct cuda_lane *lane) {
        if (!lane_is_lost(lane))
                cuda_spans_begin(&lane->spans, lane->gpu, lane->stream,
                                 cuda_lane_progress(lane) >= lane->count);
}

void cuda_lane_span_end(struct cuda_lane *lane, const struct hr_span *span) {
        if (!lane_is_lost(lane))
                cuda_spans_end(&lane->spans, lane->gpu, lane->stream, span, lane->count + 1);
}

/* A span is over with the number after it: without other commands it gets one of its own. */
void cuda_lane_tell(struct cuda_lane *lane, struct hr_recorder *recorder) {
        const struct cuda_spans *spans = &lane->spans;
        uint32_t last = (spans->first + spans->count - 1) % CUDA_SPANS_MAX;

        if (!spans->count)
                return;
        if (spans->pending[last].count > lane->count && cuda_lane_progress(lane) >= lane->count)
                (void) cuda_lane_mark(lane);
        cuda_spans_retire(&lane->spans, lane->gpu, cuda_lane_progress(lane), recorder);
}

void cuda_lane_finish(struct cuda_lane *lane, struct hr_recorder *recorder) {
        if (!lane->spans.count)
                return;
        cuda_lane_reach(lane, cuda_lane_mark(lane));
        cuda_lane_tell(lane, recorder);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static hr_status lane_make(struct cuda_lane *lane, bool with_host, struct hr_diag *diag) {
        const struct cuda_syms *cu = lane->gpu->cu;
        void *pinned = NULL;

        lane->passages = calloc(PASSAGES_MAX, sizeof *lane->passages);
        lane->tasks = calloc(TASKS_MAX, sizeof *lane->tasks);
        if (!lane->passages || !lane->tasks)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a queue");
        for (uint32_t i = 0; i < TASKS_MAX; i++) {
                lane->tasks[i].next_free = lane->free_tasks;
                lane->free_tasks = &lane->tasks[i];
        }
        HR_TRY(cuda_gpu_enter(lane->gpu, diag));
        HR_TRY(cuda_gpu_word_take(lane->gpu, diag, &lane->word));
        lane->count = cuda_lane_progress(lane);
        if (with_host)
                HR_TRY(cuda_gpu_check(lane->gpu,
                                      cu->cuMemHostAlloc(&pinned,
                                                         (size_t) CUDA_STAGING_SLOTS *
                                                                 CUDA_STAGING_BYTES,
                                                         CU_MEMHOSTALLOC_PORTABLE),
                                      "pinned memory", diag));
        lane->staging = pinned;
        return cuda_gpu_check(lane->gpu, cu->cuStreamCreate(&lane->stream, CU_STREAM_NON_BLOCKING),
                              "stream", diag);
}

hr_status cuda_lane_init(struct cuda_lane *lane, struct hr_device *device, struct cuda_gpu *gpu,
                         uint64_t spin_ns, bool with_host, struct hr_diag *diag) {
        hr_status status;

        *lane = (struct cuda_lane) { .gpu = gpu, .device = device, .spin_ns = spin_ns };
        (void) pthread_mutex_init(&lane->lock, NULL);
        status = lane_make(lane, with_host, diag);
        if (status != HR_OK) {
                cuda_lane_deinit(lane);
                return status;
        }
        (void) pthread_mutex_lock(&gpu->lock);
        lane->next = gpu->lanes;
        gpu->lanes = lane;
        (void) pthread_mutex_unlock(&gpu->lock);
        return HR_OK;
}

static void lane_leave(struct cuda_lane *lane) {
        struct cuda_lane **at = &lane->gpu->lanes;

        (void) pthread_mutex_lock(&lane->gpu->lock);
        while (*at && *at != lane)
                at = &(*at)->next;
        if (*at)
                *at = lane->next;
        (void) pthread_mutex_unlock(&lane->gpu->lock);
}

void cuda_lane_deinit(struct cuda_lane *lane) {
        const struct cuda_syms *cu = lane->gpu->cu;

        (void) cu->cuCtxSetCurrent(lane->gpu->context);
        cuda_spans_deinit(&lane->spans, lane->gpu);
        if (lane->stream) {
                cuda_lane_reach(lane, lane->count);
                if (!lane_is_lost(lane))
                        (void) cu->cuStreamSynchronize(lane->stream);
                (void) cu->cuStreamDestroy(lane->stream);
        }
        lane_leave(lane);
        if (lane->staging)
                (void) cu->cuMemFreeHost(lane->staging);
        (void) pthread_mutex_destroy(&lane->lock);
        cuda_gpu_word_give(lane->gpu, lane->word);
        free(lane->passages);
        free(lane->tasks);
        free(lane->ids);
        *lane = (struct cuda_lane) { 0 };
}
