/*
 * An in-order queue: the engine's thread hands commands over, the queue's thread brings them to the
 * stream.
 *
 * The thread is there because some commands have to wait on the host (for the event of another
 * backend, for pinned memory) and none may make the engine wait. It runs ahead of the GPU as far as
 * it can.
 *
 * Commands come from a pool and go back to it through a stack that the submitter takes as a whole;
 * a queue further behind than ever before takes memory for another command, which is counted.
 */
#include "backends/cuda/queue.h"

#include <stdlib.h>

#include "backends/cuda/lanes.h"
#include "core/mpsc.h"

#define COMMANDS_AT_START 512
#define IDLE_WATCH_NS (10 * HR_NS_PER_MS)

typedef enum command_kind {
        COMMAND_COMPUTE,
        COMMAND_WRITE,
        COMMAND_READ,
        COMMAND_COPY,
        COMMAND_WAIT,
        COMMAND_WAIT_FOREIGN,
        COMMAND_RECORD,
        COMMAND_NOTIFY,
        COMMAND_EXPERTS,
        COMMAND_STOP,
} command_kind;

struct command {
        struct hr_mpsc_link link;
        struct command *next_free;
        command_kind kind;
        uint32_t first, count;
        struct hr_outcome *outcome;
        union {
                struct cuda_program *program;
                struct {
                        struct cuda_mark *mark;
                        struct cuda_gpu *gpu;
                } event;
                struct hr_event *foreign;
                struct {
                        void *to;
                        const void *from;
                        uint64_t bytes;
                        struct cuda_gpu *gpu; /* of `to`, for COPY */
                } move;
                struct {
                        hr_notify_fn fn;
                        void *arg;
                } notify;
                struct {
                        struct hr_expert_cache *cache;
                        const void *ids;
                        struct hr_expert_tally *tally;
                } experts; /* of weight `first` */
        };
};

struct cuda_queue {
        struct hr_queue queue;
        struct cuda_queue_config config;
        struct hr_thread thread;
        struct cuda_lanes lanes;
        struct hr_outcome outcome; /* of commands without one */
        /* Submitter's. */
        struct command *spare;
        atomic_uint_fast64_t growths;
        /* Shared. */
        struct hr_mpsc submitted;
        _Alignas(64) struct hr_host_word published;
        _Alignas(64) _Atomic(struct command *) executed;
};

static const struct hr_queue_ops queue_ops;

static struct cuda_queue *queue_cast(struct hr_queue *queue) {
        HR_ASSERT(queue->ops == &queue_ops);
        return HR_CONTAINER_OF(queue, struct cuda_queue, queue);
}

/* ---- Executing ------------------------------------------------------------------------------- */

/* The event of another backend is asked for again and again, with sleeps inside its own
 * synchronise. */
static void foreign_wait(struct cuda_queue *queue, struct hr_event *event) {
        uint64_t end_ns = hr_clock_now_ns() + queue->lanes.compute.spin_ns;

        while (!hr_event_query(event)) {
                hr_status status;

                if (hr_clock_now_ns() < end_ns) {
                        hr_host_pause();
                        continue;
                }
                status = hr_event_synchronize(event, 10 * HR_NS_PER_MS, NULL);
                if (status != HR_OK && status != HR_E_DEADLINE)
                        return;
                cuda_lanes_watch(&queue->lanes);
        }
}

/* `span`: what a copy is recorded as, by whoever executes it; NULL = it is not. False: the queue
 * ends. */
static bool command_execute(struct cuda_queue *queue, const struct command *command,
                            const struct hr_span *span) {
        struct cuda_lane *lane = &queue->lanes.compute;

        switch (command->kind) {
        case COMMAND_COMPUTE:
                cuda_lane_compute(lane, command->program, command->first, command->count,
                                  command->outcome);
                break;
        case COMMAND_WRITE:
                cuda_lane_write(lane, command->move.to, command->move.from, command->move.bytes,
                                command->outcome);
                break;
        case COMMAND_READ:
                cuda_lane_read(lane, command->move.from, command->move.to, command->move.bytes,
                               command->outcome);
                break;
        case COMMAND_COPY:
                cuda_lanes_copy(&queue->lanes, command->move.from, command->move.to,
                                command->move.gpu, command->move.bytes, command->outcome, span);
                break;
        case COMMAND_WAIT:
                cuda_lane_wait(lane, command->event.mark, command->event.gpu);
                atomic_fetch_sub_explicit(&command->event.mark->holds, 1, memory_order_release);
                break;
        case COMMAND_WAIT_FOREIGN:
                foreign_wait(queue, command->foreign);
                break;
        case COMMAND_RECORD:
                cuda_lanes_record(&queue->lanes, command->event.mark);
                atomic_fetch_sub_explicit(&command->event.mark->holds, 1, memory_order_release);
                break;
        case COMMAND_NOTIFY:
                cuda_lanes_notify(&queue->lanes, command->notify.fn, command->notify.arg);
                break;
        case COMMAND_EXPERTS:
                cuda_lane_experts(lane, command->experts.cache, command->first,
                                  command->experts.ids, command->experts.tally, command->outcome);
                break;
        case COMMAND_STOP:
                return false;
        }
        return true;
}

/* What the command will have been, or false where nothing is to be told of it. */
static bool command_span(const struct command *command, struct hr_span *span) {
        switch (command->kind) {
        case COMMAND_COMPUTE:
                *span = (struct hr_span) { .kind = HR_SPAN_COMPUTE,
                                           .detail = command->program->program.steps->split };
                break;
        case COMMAND_WRITE:
        case COMMAND_READ:
        case COMMAND_COPY:
                *span = (struct hr_span) { .kind = HR_SPAN_COPY, .a = command->move.bytes };
                if (!command->move.bytes)
                        return false;
                break;
        case COMMAND_EXPERTS:
                *span = (struct hr_span) { .kind = HR_SPAN_EXPERTS, .detail = command->first };
                break;
        case COMMAND_WAIT:
                *span = (struct hr_span) { .kind = HR_SPAN_WAIT };
                return !cuda_mark_is_reached(command->event.mark);
        case COMMAND_WAIT_FOREIGN:
                *span = (struct hr_span) { .kind = HR_SPAN_WAIT };
                return !hr_event_query(command->foreign);
        default:
                return false;
        }
        span->tag = command->outcome->tag;
        return !hr_outcome_failed(command->outcome);
}

static bool command_record(struct cuda_queue *queue, const struct command *command) {
        struct hr_recorder *recorder = queue->queue.recorder;
        struct hr_span span;
        bool goes_on;

        if (!recorder)
                return command_execute(queue, command, NULL);
        cuda_lanes_tell(&queue->lanes, recorder);
        if (!command_span(command, &span))
                return command_execute(queue, command, NULL);
        if (command->kind == COMMAND_COPY)
                return command_execute(queue, command, &span);
        cuda_lane_span_begin(&queue->lanes.compute);
        goes_on = command_execute(queue, command, NULL);
        cuda_lane_span_end(&queue->lanes.compute, &span);
        return goes_on;
}

static void command_recycle(struct cuda_queue *queue, struct command *command) {
        command->next_free = atomic_load(&queue->executed);
        while (!atomic_compare_exchange_weak(&queue->executed, &command->next_free, command)) {
        }
}

/* The next command. While the GPU has work it is looked after from time to time. */
static struct command *command_next(struct cuda_queue *queue, uint32_t taken) {
        struct hr_mpsc_link *link;

        while (atomic_load(&queue->published.value) == taken) {
                bool is_busy = cuda_lanes_are_busy(&queue->lanes);

                if (hr_host_word_spin(&queue->published, taken, queue->lanes.compute.spin_ns))
                        break;
                hr_host_word_sleep(&queue->published, taken, is_busy ? IDLE_WATCH_NS : UINT64_MAX);
                if (is_busy) {
                        cuda_lanes_watch(&queue->lanes);
                        cuda_lanes_tell(&queue->lanes, queue->queue.recorder);
                }
        }
        while (!(link = hr_mpsc_pop(&queue->submitted)))
                hr_host_pause();
        return HR_CONTAINER_OF(link, struct command, link);
}

static void queue_main(void *arg) {
        struct cuda_queue *queue = arg;
        bool goes_on = true;

        (void) queue->config.gpu->cu->cuCtxSetCurrent(queue->config.gpu->context);
        for (uint32_t taken = 0; goes_on; taken++) {
                struct command *command = command_next(queue, taken);

                goes_on = command_record(queue, command);
                if (cuda_gpu_is_lost(queue->config.gpu))
                        cuda_lanes_watch(&queue->lanes);
                command_recycle(queue, command);
        }
        cuda_lanes_finish(&queue->lanes, queue->queue.recorder);
        cuda_lanes_deinit(&queue->lanes);
}

/* ---- Submitting ------------------------------------------------------------------------------ */

static struct command *command_take(struct cuda_queue *queue, command_kind kind,
                                    struct hr_diag *diag) {
        struct command *command;

        if (!queue->spare)
                queue->spare = atomic_exchange(&queue->executed, NULL);
        command = queue->spare;
        if (command) {
                queue->spare = command->next_free;
        } else {
                command = malloc(sizeof *command);
                if (!command) {
                        (void) hr_fail(diag, HR_E_EXHAUSTED, "no memory for commands of %s",
                                       queue->queue.device->props.name);
                        return NULL;
                }
                atomic_fetch_add_explicit(&queue->growths, 1, memory_order_relaxed);
        }
        *command = (struct command) { .kind = kind };
        return command;
}

static void command_submit(struct cuda_queue *queue, struct command *command) {
        hr_mpsc_push(&queue->submitted, &command->link);
        atomic_fetch_add(&queue->published.value, 1);
        hr_host_word_wake(&queue->published);
}

/* The outcome that a command reports to; a queue whose own has failed takes nothing more for it. */
static hr_status queue_outcome(struct cuda_queue *queue, struct hr_outcome *outcome,
                               struct hr_diag *diag, struct hr_outcome **ret_outcome) {
        const struct hr_diag *earlier = outcome ? NULL : hr_outcome_diag(&queue->outcome);

        if (earlier && earlier->status == HR_E_DEVICE_LOST)
                return hr_fail(diag, HR_E_DEVICE_LOST, "%s", earlier->words);
        if (earlier)
                return hr_fail(diag, HR_E_PRECONDITION,
                               "an earlier command outside any run failed on %s: %s",
                               queue->queue.device->props.name, earlier->words);
        *ret_outcome = outcome ? outcome : &queue->outcome;
        return HR_OK;
}

static hr_status queue_compute(struct hr_queue *base, struct hr_program *program, uint32_t first,
                               uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        struct command *command;

        HR_TRY(queue_outcome(queue, outcome, diag, &outcome));
        command = command_take(queue, COMMAND_COMPUTE, diag);
        if (!command)
                return HR_E_EXHAUSTED;
        command->program = cuda_program_cast(program);
        command->first = first;
        command->count = count;
        command->outcome = outcome;
        command_submit(queue, command);
        return HR_OK;
}

static hr_status queue_move(struct hr_queue *base, command_kind kind, void *to, const void *from,
                            struct cuda_gpu *gpu, uint64_t bytes, struct hr_outcome *outcome,
                            struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        struct command *command;

        HR_TRY(queue_outcome(queue, outcome, diag, &outcome));
        command = command_take(queue, kind, diag);
        if (!command)
                return HR_E_EXHAUSTED;
        command->move.to = to;
        command->move.from = from;
        command->move.bytes = bytes;
        command->move.gpu = gpu;
        command->outcome = outcome;
        command_submit(queue, command);
        return HR_OK;
}

static hr_status queue_write(struct hr_queue *base, void *destination, const void *host,
                             uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return queue_move(base, COMMAND_WRITE, destination, host, NULL, bytes, outcome, diag);
}

static hr_status queue_read(struct hr_queue *base, const void *source, void *host, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        return queue_move(base, COMMAND_READ, host, source, NULL, bytes, outcome, diag);
}

/* To ordinary memory, and to every GPU for which the test at the start went well. */
static bool queue_can_copy(const struct hr_queue *base, const struct hr_buffer_kind *to) {
        const struct cuda_queue *queue = HR_CONTAINER_OF(base, const struct cuda_queue, queue);
        const struct cuda_gpu *gpu;

        if (to->host || to->addressable)
                return true;
        gpu = queue->config.gpu_of_kind(to);
        return gpu && cuda_gpu_reaches(queue->config.gpu, gpu);
}

static const char *queue_copy_fault(const struct hr_queue *base, const struct hr_buffer_kind *to) {
        const struct cuda_queue *queue = HR_CONTAINER_OF(base, const struct cuda_queue, queue);
        const struct cuda_gpu *gpu = to->host || to->addressable ? NULL
                                                                 : queue->config.gpu_of_kind(to);

        return gpu && !cuda_gpu_reaches(queue->config.gpu, gpu)
                       ? "bytes of a test did not arrive as they were"
                       : NULL;
}

static hr_status queue_copy(struct hr_queue *base, const void *source, void *destination,
                            const struct hr_buffer_kind *to, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        if (!queue_can_copy(base, to))
                return hr_fail(diag, HR_E_UNSUPPORTED, "%s cannot write to memory of kind %s",
                               base->device->props.name, to->name);
        if (to->host || to->addressable)
                return queue_read(base, source, destination, bytes, outcome, diag);
        return queue_move(base, COMMAND_COPY, destination, source,
                          queue_cast(base)->config.gpu_of_kind(to), bytes, outcome, diag);
}

static hr_status queue_wait(struct hr_queue *base, struct hr_event *event, struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        bool is_ours = cuda_event_is_ours(event);
        struct cuda_mark *mark = is_ours ? cuda_event_latest(event) : NULL;
        struct command *command;

        if (is_ours && (!mark || cuda_mark_is_reached(mark)))
                return HR_OK;
        command = command_take(queue, is_ours ? COMMAND_WAIT : COMMAND_WAIT_FOREIGN, diag);
        if (!command)
                return HR_E_EXHAUSTED;
        if (is_ours) {
                atomic_fetch_add(&mark->holds, 1);
                command->event.mark = mark;
                command->event.gpu = cuda_event_gpu(event);
        } else {
                command->foreign = event;
        }
        command_submit(queue, command);
        return HR_OK;
}

static hr_status queue_record(struct hr_queue *base, struct hr_event *event,
                              struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        struct command *command = command_take(queue, COMMAND_RECORD, diag);
        hr_status status;

        if (!command)
                return HR_E_EXHAUSTED;
        status = cuda_event_renew(event, diag, &command->event.mark);
        if (status != HR_OK) {
                command->next_free = queue->spare;
                queue->spare = command;
                return status;
        }
        command_submit(queue, command);
        return HR_OK;
}

static hr_status queue_notify(struct hr_queue *base, hr_notify_fn fn, void *arg,
                              struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        struct command *command = command_take(queue, COMMAND_NOTIFY, diag);

        if (!command)
                return HR_E_EXHAUSTED;
        command->notify.fn = fn;
        command->notify.arg = arg;
        command_submit(queue, command);
        return HR_OK;
}

static hr_status queue_copy_experts(struct hr_queue *base, struct hr_expert_cache *cache,
                                    uint32_t weight, const void *ids, struct hr_expert_tally *tally,
                                    struct hr_outcome *outcome, struct hr_diag *diag) {
        struct cuda_queue *queue = queue_cast(base);
        struct command *command;

        HR_TRY(queue_outcome(queue, outcome, diag, &outcome));
        command = command_take(queue, COMMAND_EXPERTS, diag);
        if (!command)
                return HR_E_EXHAUSTED;
        command->first = weight;
        command->experts.cache = cache;
        command->experts.ids = ids;
        command->experts.tally = tally;
        command->outcome = outcome;
        command_submit(queue, command);
        return HR_OK;
}

/* ---- Life ------------------------------------------------------------------------------------ */

static void commands_free(struct command *command) {
        while (command) {
                struct command *next = command->next_free;

                free(command);
                command = next;
        }
}

static void queue_destroy(struct hr_queue *base) {
        struct cuda_queue *queue = queue_cast(base);

        if (queue->thread.running) {
                struct command *stop;

                /* Without memory for one more command: there is one once the others have run. */
                while (!(stop = command_take(queue, COMMAND_STOP, NULL)))
                        (void) usleep(1000);
                command_submit(queue, stop);
                hr_thread_join(&queue->thread);
        }
        commands_free(queue->spare);
        commands_free(atomic_load(&queue->executed));
        free(queue);
}

static const struct hr_queue_ops queue_ops = {
        .size = sizeof queue_ops,
        .destroy = queue_destroy,
        .compute = queue_compute,
        .write = queue_write,
        .read = queue_read,
        .copy = queue_copy,
        .can_copy = queue_can_copy,
        .copy_fault = queue_copy_fault,
        .wait = queue_wait,
        .record = queue_record,
        .notify = queue_notify,
        .copy_experts = queue_copy_experts,
};

uint64_t cuda_queue_growths(const struct hr_queue *queue) {
        HR_ASSERT(queue->ops == &queue_ops);
        return atomic_load(&HR_CONTAINER_OF(queue, const struct cuda_queue, queue)->growths);
}

static hr_status queue_start(struct cuda_queue *queue, struct hr_diag *diag) {
        hr_status status;

        for (uint32_t i = 0; i < COMMANDS_AT_START; i++) {
                struct command *command = calloc(1, sizeof *command);

                if (!command)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a queue");
                command->next_free = queue->spare;
                queue->spare = command;
        }
        HR_TRY(cuda_lanes_init(&queue->lanes, queue->queue.device, queue->config.gpu,
                               (uint64_t) queue->config.spin_us * 1000,
                               queue->config.copies_beside, diag));
        status = hr_thread_start(&queue->thread, queue->queue.device->props.name, queue_main,
                                 queue, diag);
        if (status != HR_OK)
                cuda_lanes_deinit(&queue->lanes);
        return status;
}

hr_status cuda_queue_new(struct hr_device *device, const struct cuda_queue_config *config,
                         struct hr_diag *diag, struct hr_queue **ret_queue) {
        struct cuda_queue *queue = aligned_alloc(64, sizeof *queue);
        hr_status status;

        if (!queue)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a queue");
        *queue = (struct cuda_queue) { .queue = { .ops = &queue_ops, .device = device },
                                       .config = *config };
        hr_mpsc_init(&queue->submitted);
        status = queue_start(queue, diag);
        if (status != HR_OK) {
                queue_destroy(&queue->queue);
                return status;
        }
        *ret_queue = &queue->queue;
        return HR_OK;
}
