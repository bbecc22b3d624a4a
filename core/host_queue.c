/*
 * An in-order queue on a thread of its own, and events between such queues.
 *
 * Commands. One thread submits, one executes. Commands lie in segments that form a list;
 * `published` counts them and is the word the executing thread waits on. A segment that has been
 * executed goes onto a stack from which the submitter takes its next one:
 *
 *   submitter: slot = segment->commands[used++]; fill; published++ ; wake
 *   executor:  waits for published != executed; runs segment->commands[next++]
 *
 * The executor follows segment->next only after a command in the next segment has been published,
 * hence it never sees a segment that is being linked.
 *
 * Events. record() takes a ticket when it is submitted; executing it raises `reached` to the
 * ticket. wait() remembers the latest ticket when it is submitted, so that a later record of the
 * same event cannot hold it up (and no cycle can arise from reuse). `finished` follows `reached` as
 * the very last access of the recording thread: freeing an event waits for it and for the waiters,
 * hence an event may be freed as soon as it is seen to be reached.
 *
 * Failures. The outcome of a run that has failed turns its later compute and copy commands into
 * no-ops; waits, records and notifications always happen. Commands without an outcome share the
 * queue's own.
 *
 * Spans. What a recorder is there for is timed by the executing thread: the clock is read once per
 * command, and once more after a pause, since a command begins where the one before has ended.
 * Reading it takes about as long as a copy of some kilobytes: such a copy counts as one nanosecond.
 */
#include "core/host.h"

#include <stdlib.h>
#include <string.h>

#include "core/host_wait.h"
#include "core/recorder.h"
#include "core/thread.h"

#define SEGMENT_COMMANDS 256
#define UNTIMED_BYTES 4096 /* of copies that are shorter than a look at the clock */

typedef enum command_kind {
        COMMAND_COMPUTE,
        COMMAND_COPY,
        COMMAND_WAIT,
        COMMAND_WAIT_FOREIGN,
        COMMAND_RECORD,
        COMMAND_NOTIFY,
        COMMAND_EXPERTS,
        COMMAND_STOP,
} command_kind;

struct host_event {
        struct hr_event event;
        uint64_t spin_ns;
        atomic_uint submitted; /* latest ticket */
        struct hr_host_word reached;
        atomic_uint finished;
        atomic_uint waits; /* WAIT commands not yet executed */
};

struct command {
        command_kind kind;
        uint32_t first, count; /* steps; count is the ticket of RECORD and WAIT; first the weight of
                                * EXPERTS */
        struct hr_outcome *outcome;
        union {
                struct hr_program *program;
                struct host_event *event;
                struct hr_event *foreign;
                struct {
                        void *destination;
                        const void *source;
                        uint64_t bytes;
                } copy;
                struct {
                        hr_notify_fn fn;
                        void *arg;
                } notify;
                struct {
                        struct hr_expert_cache *cache;
                        const void *ids;
                        struct hr_expert_tally *tally;
                } experts;
        };
};

struct segment {
        struct segment *next;   /* in the order of commands */
        struct segment *unused; /* in the stack of executed ones */
        struct command commands[SEGMENT_COMMANDS];
};

struct host_queue {
        struct hr_queue queue;
        struct hr_host_queue_config config;
        struct hr_host_team *team;
        struct hr_thread thread;
        struct hr_outcome outcome; /* of commands without one */
        uint64_t spin_ns;
        /* Submitter's. */
        struct segment *tail;
        uint32_t tail_used;
        struct segment *spare;
        atomic_uint_fast64_t growths;
        /* Shared. */
        _Alignas(64) struct hr_host_word published;
        _Alignas(64) _Atomic(struct segment *) executed_segments;
        /* Executor's. */
        _Alignas(64) struct segment *head;
        uint32_t head_next;
        uint64_t now_ns; /* when the latest command ended that was timed; 0 = something else has
                          * happened since */
};

/* ---- Events ---------------------------------------------------------------------------------- */

/* Tickets wrap; the distance between live ones is far below 2^31. */
static bool ticket_is_reached(unsigned reached, unsigned ticket) {
        return (int) (reached - ticket) >= 0;
}

static bool event_query(struct hr_event *base) {
        struct host_event *event = HR_CONTAINER_OF(base, struct host_event, event);
        unsigned ticket = atomic_load_explicit(&event->submitted, memory_order_acquire);

        return ticket_is_reached(atomic_load_explicit(&event->reached.value, memory_order_acquire),
                                 ticket);
}

/* Waits for a ticket; false when timeout_ns (UINT64_MAX = for ever) has passed before. */
static bool event_wait(struct host_event *event, unsigned ticket, uint64_t timeout_ns) {
        uint64_t start_ns = 0;

        for (;;) {
                unsigned reached = atomic_load(&event->reached.value);
                uint64_t left_ns = timeout_ns;

                if (ticket_is_reached(reached, ticket))
                        return true;
                if (hr_host_word_spin(&event->reached, reached, HR_MIN(event->spin_ns, left_ns)))
                        continue;
                if (timeout_ns != UINT64_MAX) {
                        uint64_t now_ns = hr_clock_now_ns();

                        if (!start_ns)
                                start_ns = now_ns;
                        if (now_ns - start_ns >= timeout_ns)
                                return false;
                        left_ns = timeout_ns - (now_ns - start_ns);
                }
                hr_host_word_sleep(&event->reached, reached, left_ns);
        }
}

static hr_status event_synchronize(struct hr_event *base, uint64_t timeout_ns,
                                   struct hr_diag *diag) {
        struct host_event *event = HR_CONTAINER_OF(base, struct host_event, event);
        unsigned ticket = atomic_load_explicit(&event->submitted, memory_order_acquire);

        if (!event_wait(event, ticket, timeout_ns))
                return hr_fail(diag, HR_E_DEADLINE, "an event of %s has not been reached",
                               base->device->props.name);
        return HR_OK;
}

static void event_reach(struct host_event *event, unsigned ticket) {
        atomic_store(&event->reached.value, ticket);
        hr_host_word_wake(&event->reached);
        atomic_store_explicit(&event->finished, ticket, memory_order_release);
}

static void event_destroy(struct hr_event *base) {
        struct host_event *event = HR_CONTAINER_OF(base, struct host_event, event);
        unsigned ticket = atomic_load(&event->submitted);

        (void) event_wait(event, ticket, UINT64_MAX);
        while (atomic_load_explicit(&event->finished, memory_order_acquire) != ticket ||
               atomic_load_explicit(&event->waits, memory_order_acquire) > 0)
                (void) usleep(10);
        free(event);
}

static const struct hr_event_ops event_ops = {
        .size = sizeof event_ops,
        .destroy = event_destroy,
        .query = event_query,
        .synchronize = event_synchronize,
};

hr_status hr_host_event_new(struct hr_device *device, uint32_t spin_us, struct hr_diag *diag,
                            struct hr_event **ret_event) {
        struct host_event *event = calloc(1, sizeof *event);

        if (!event)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for an event");
        event->event.ops = &event_ops;
        event->event.device = device;
        event->spin_ns = (uint64_t) spin_us * 1000;
        *ret_event = &event->event;
        return HR_OK;
}

/* ---- Executing ------------------------------------------------------------------------------- */

/* Another backend's event: asked for again and again, with sleeps inside its own synchronise. A
 * failure of its device ends the wait; what follows belongs to a run that has failed as well. */
static void foreign_wait(struct hr_event *event, uint64_t spin_ns) {
        uint64_t end_ns = hr_clock_now_ns() + spin_ns;

        while (!hr_event_query(event)) {
                hr_status status;

                if (hr_clock_now_ns() < end_ns) {
                        hr_host_pause();
                        continue;
                }
                status = hr_event_synchronize(event, 10 * HR_NS_PER_MS, NULL);
                if (status != HR_OK && status != HR_E_DEADLINE)
                        return;
        }
}

static void command_compute(struct host_queue *queue, const struct command *command) {
        if (queue->config.delay_us && !hr_outcome_failed(command->outcome))
                (void) usleep(queue->config.delay_us);
        if (hr_outcome_failed(command->outcome))
                return;
        hr_outcome_reach(command->outcome,
                         command->program->steps->before + command->first + command->count);
        queue->config.compute(command->program, command->first, command->count, queue->team,
                              command->outcome);
}

static bool wait_is_over(const struct command *command) {
        return ticket_is_reached(
                atomic_load_explicit(&command->event->reached.value, memory_order_acquire),
                command->count);
}

/* What the command will have been, or false where nothing is to be told of it. */
static bool command_span(const struct command *command, struct hr_span *span) {
        switch (command->kind) {
        case COMMAND_COMPUTE:
                *span = (struct hr_span){
                        .kind = HR_SPAN_COMPUTE,
                        .detail = command->program->steps->split,
                };
                break;
        case COMMAND_COPY:
                if (command->copy.bytes == 0)
                        return false;
                *span = (struct hr_span){.kind = HR_SPAN_COPY, .a = command->copy.bytes};
                break;
        case COMMAND_EXPERTS:
                *span = (struct hr_span){.kind = HR_SPAN_EXPERTS, .detail = command->first};
                break;
        case COMMAND_WAIT:
                *span = (struct hr_span){.kind = HR_SPAN_WAIT};
                return !wait_is_over(command);
        case COMMAND_WAIT_FOREIGN:
                *span = (struct hr_span){.kind = HR_SPAN_WAIT};
                return true;
        default:
                return false;
        }
        span->tag = command->outcome->tag;
        return !hr_outcome_failed(command->outcome);
}

/* False: the queue ends. */
static bool command_execute(struct host_queue *queue, const struct command *command) {
        switch (command->kind) {
        case COMMAND_COMPUTE:
                command_compute(queue, command);
                break;
        case COMMAND_COPY:
                if (command->copy.bytes && !hr_outcome_failed(command->outcome))
                        memmove(command->copy.destination, command->copy.source,
                                (size_t) command->copy.bytes);
                break;
        case COMMAND_WAIT:
                (void) event_wait(command->event, command->count, UINT64_MAX);
                atomic_fetch_sub_explicit(&command->event->waits, 1, memory_order_release);
                break;
        case COMMAND_WAIT_FOREIGN:
                foreign_wait(command->foreign, queue->spin_ns);
                break;
        case COMMAND_RECORD:
                event_reach(command->event, command->count);
                break;
        case COMMAND_NOTIFY:
                command->notify.fn(command->notify.arg);
                break;
        case COMMAND_EXPERTS:
                if (!hr_outcome_failed(command->outcome))
                        hr_host_experts_copy(command->experts.cache, command->first,
                                             command->experts.ids, command->experts.tally,
                                             command->outcome);
                break;
        case COMMAND_STOP:
                return false;
        }
        return true;
}

static bool command_record(struct host_queue *queue, const struct command *command) {
        struct hr_recorder *recorder = queue->queue.recorder;
        struct hr_span span;
        bool goes_on;

        if (!recorder || !command_span(command, &span)) {
                queue->now_ns = 0;
                return command_execute(queue, command);
        }
        span.begin_ns = queue->now_ns ? queue->now_ns : hr_clock_now_ns();
        goes_on = command_execute(queue, command);
        queue->now_ns = span.kind == HR_SPAN_COPY && span.a <= UNTIMED_BYTES ? span.begin_ns + 1
                                                                             : hr_clock_now_ns();
        span.end_ns = queue->now_ns;
        hr_recorder_add(recorder, &span);
        return goes_on;
}

static void segment_give_back(struct host_queue *queue, struct segment *segment) {
        segment->unused = atomic_load_explicit(&queue->executed_segments, memory_order_relaxed);
        while (!atomic_compare_exchange_weak_explicit(&queue->executed_segments, &segment->unused,
                                                      segment, memory_order_release,
                                                      memory_order_relaxed)) {
        }
}

static void queue_main(void *arg) {
        struct host_queue *queue = arg;
        unsigned executed = 0;

        for (;;) {
                if (atomic_load_explicit(&queue->published.value, memory_order_relaxed) == executed)
                        queue->now_ns = 0;
                hr_host_word_wait(&queue->published, executed, queue->spin_ns);
                if (queue->head_next == SEGMENT_COMMANDS) {
                        struct segment *spent = queue->head;

                        queue->head = spent->next;
                        queue->head_next = 0;
                        segment_give_back(queue, spent);
                }
                if (!command_record(queue, &queue->head->commands[queue->head_next]))
                        return;
                queue->head_next++;
                executed++;
        }
}

/* ---- Submitting ------------------------------------------------------------------------------ */

static struct host_queue *queue_cast(struct hr_queue *queue) {
        return HR_CONTAINER_OF(queue, struct host_queue, queue);
}

static hr_status segment_take(struct host_queue *queue, struct hr_diag *diag,
                              struct segment **ret_segment) {
        struct segment *segment = queue->spare;

        if (!segment)
                segment = atomic_exchange_explicit(&queue->executed_segments, NULL,
                                                   memory_order_acquire);
        if (segment) {
                queue->spare = segment->unused;
        } else {
                segment = malloc(sizeof *segment);
                if (!segment)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for commands of %s",
                                       queue->queue.device->props.name);
                atomic_fetch_add_explicit(&queue->growths, 1, memory_order_relaxed);
        }
        segment->next = segment->unused = NULL;
        *ret_segment = segment;
        return HR_OK;
}

static hr_status queue_submit(struct host_queue *queue, const struct command *command,
                              struct hr_diag *diag) {
        if (queue->tail_used == SEGMENT_COMMANDS) {
                struct segment *segment = NULL;

                HR_TRY(segment_take(queue, diag, &segment));
                queue->tail->next = segment;
                queue->tail = segment;
                queue->tail_used = 0;
        }
        queue->tail->commands[queue->tail_used++] = *command;
        atomic_fetch_add(&queue->published.value, 1);
        hr_host_word_wake(&queue->published);
        return HR_OK;
}

/* The outcome that a command reports to; a queue whose own has failed takes nothing more for it. */
static hr_status queue_outcome(struct host_queue *queue, struct hr_outcome *outcome,
                               struct hr_diag *diag, struct hr_outcome **ret_outcome) {
        if (!outcome) {
                outcome = &queue->outcome;
                if (hr_outcome_failed(outcome))
                        return hr_fail(diag, HR_E_PRECONDITION,
                                       "an earlier command outside any run failed on %s",
                                       queue->queue.device->props.name);
        }
        *ret_outcome = outcome;
        return HR_OK;
}

static hr_status queue_compute(struct hr_queue *base, struct hr_program *program, uint32_t first,
                               uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        struct host_queue *queue = queue_cast(base);
        struct command command = { .kind = COMMAND_COMPUTE, .first = first, .count = count };

        command.program = program;
        HR_TRY(queue_outcome(queue, outcome, diag, &command.outcome));
        return queue_submit(queue, &command, diag);
}

static hr_status queue_move(struct hr_queue *base, void *destination, const void *source,
                            uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        struct host_queue *queue = queue_cast(base);
        struct command command = { .kind = COMMAND_COPY };

        command.copy.destination = destination;
        command.copy.source = source;
        command.copy.bytes = bytes;
        HR_TRY(queue_outcome(queue, outcome, diag, &command.outcome));
        return queue_submit(queue, &command, diag);
}

static hr_status queue_write(struct hr_queue *base, void *destination, const void *host,
                             uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return queue_move(base, destination, host, bytes, outcome, diag);
}

static hr_status queue_read(struct hr_queue *base, const void *source, void *host, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        return queue_move(base, host, source, bytes, outcome, diag);
}

static bool queue_can_copy(const struct hr_queue *base, const struct hr_buffer_kind *to) {
        return to->host || to->addressable;
}

static hr_status queue_copy(struct hr_queue *base, const void *source, void *destination,
                            const struct hr_buffer_kind *to, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        if (!queue_can_copy(base, to))
                return hr_fail(diag, HR_E_UNSUPPORTED, "%s cannot write to memory of kind %s",
                               base->device->props.name, to->name);
        return queue_move(base, destination, source, bytes, outcome, diag);
}

static hr_status queue_wait(struct hr_queue *base, struct hr_event *event, struct hr_diag *diag) {
        struct host_queue *queue = queue_cast(base);
        struct command command = { .kind = COMMAND_WAIT };
        hr_status status;

        if (event->ops != &event_ops) {
                command.kind = COMMAND_WAIT_FOREIGN;
                command.foreign = event;
                return queue_submit(queue, &command, diag);
        }
        command.event = HR_CONTAINER_OF(event, struct host_event, event);
        command.count = atomic_load(&command.event->submitted);
        if (ticket_is_reached(atomic_load(&command.event->reached.value), command.count))
                return HR_OK;
        atomic_fetch_add(&command.event->waits, 1);
        status = queue_submit(queue, &command, diag);
        if (status != HR_OK)
                atomic_fetch_sub(&command.event->waits, 1);
        return status;
}

static hr_status queue_record(struct hr_queue *base, struct hr_event *event,
                              struct hr_diag *diag) {
        struct command command = { .kind = COMMAND_RECORD };
        hr_status status;

        HR_ASSERT(event->ops == &event_ops);
        command.event = HR_CONTAINER_OF(event, struct host_event, event);
        command.count = atomic_fetch_add(&command.event->submitted, 1) + 1;
        status = queue_submit(queue_cast(base), &command, diag);
        if (status != HR_OK)
                atomic_fetch_sub(&command.event->submitted, 1);
        return status;
}

static hr_status queue_notify(struct hr_queue *base, hr_notify_fn fn, void *arg,
                              struct hr_diag *diag) {
        struct command command = { .kind = COMMAND_NOTIFY };

        command.notify.fn = fn;
        command.notify.arg = arg;
        return queue_submit(queue_cast(base), &command, diag);
}

static hr_status queue_copy_experts(struct hr_queue *base, struct hr_expert_cache *cache,
                                    uint32_t weight, const void *ids, struct hr_expert_tally *tally,
                                    struct hr_outcome *outcome, struct hr_diag *diag) {
        struct host_queue *queue = queue_cast(base);
        struct command command = { .kind = COMMAND_EXPERTS, .first = weight };

        command.experts.cache = cache;
        command.experts.ids = ids;
        command.experts.tally = tally;
        HR_TRY(queue_outcome(queue, outcome, diag, &command.outcome));
        return queue_submit(queue, &command, diag);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static struct segment *segments_free(struct segment *segment, bool unused) {
        while (segment) {
                struct segment *next = unused ? segment->unused : segment->next;

                free(segment);
                segment = next;
        }
        return NULL;
}

static void queue_destroy(struct hr_queue *base) {
        struct host_queue *queue = queue_cast(base);

        if (queue->thread.running) {
                struct command stop = { .kind = COMMAND_STOP };

                /* Without memory for one more command: there is room once the others have run. */
                while (queue_submit(queue, &stop, NULL) != HR_OK)
                        (void) usleep(1000);
                hr_thread_join(&queue->thread);
        }
        queue->team = hr_host_team_free(queue->team);
        queue->head = segments_free(queue->head, false);
        queue->spare = segments_free(queue->spare, true);
        (void) segments_free(atomic_load(&queue->executed_segments), true);
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
        .copy_fault = hr_queue_copy_fault_none,
        .wait = queue_wait,
        .record = queue_record,
        .notify = queue_notify,
        .copy_experts = queue_copy_experts,
};

uint64_t hr_host_queue_growths(const struct hr_queue *queue) {
        HR_ASSERT(queue->ops == &queue_ops);
        return atomic_load(&HR_CONTAINER_OF(queue, struct host_queue, queue)->growths);
}

/* Two segments: one is executed while the other is filled. */
static hr_status queue_start(struct host_queue *queue, struct hr_diag *diag) {
        queue->head = queue->tail = calloc(1, sizeof *queue->head);
        queue->spare = calloc(1, sizeof *queue->spare);
        if (!queue->head || !queue->spare)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a queue");
        HR_TRY(hr_host_team_new(&queue->config.team, diag, &queue->team));
        queue->config.team.processors = NULL;
        return hr_thread_start(&queue->thread, queue->config.team.name, queue_main, queue, diag);
}

hr_status hr_host_queue_new(struct hr_device *device, const struct hr_host_queue_config *config,
                            struct hr_diag *diag, struct hr_queue **ret_queue) {
        struct host_queue *queue = aligned_alloc(64, sizeof *queue);
        hr_status status;

        if (!queue)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a queue");
        memset(queue, 0, sizeof *queue);
        queue->queue.ops = &queue_ops;
        queue->queue.device = device;
        queue->config = *config;
        queue->spin_ns = (uint64_t) config->team.spin_us * 1000;
        status = queue_start(queue, diag);
        if (status != HR_OK) {
                queue_destroy(&queue->queue);
                return status;
        }
        *ret_queue = &queue->queue;
        return HR_OK;
}
