/*
 * Queues and events of the simulated devices: what is submitted, how long it takes, and its effect.
 *
 * A queue is a ring of commands that grows; the clock (script.c) decides when each ends. A record
 * takes a ticket when it is submitted and a wait remembers the latest, so that a later record of
 * the same event does not hold the wait up.
 */
#include "backends/fake/fake.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/host.h"

/* Another backend's event that has not come by then belongs to a device that will not go on. */
#define FOREIGN_TIMEOUT_NS (10 * HR_NS_PER_S)

static const struct hr_event_ops event_ops;

static struct fake_queue *queue_cast(struct hr_queue *queue) {
        return HR_CONTAINER_OF(queue, struct fake_queue, queue);
}

static struct fake_device *device_of(const struct fake_queue *queue) {
        return fake_device_cast(queue->queue.device);
}

void fake_foreign_wait(struct hr_event *event) {
        if (hr_event_synchronize(event, FOREIGN_TIMEOUT_NS, NULL) != HR_OK)
                return; /* asked again */
}

/* ---- Effects --------------------------------------------------------------------------------- */

static void compute(struct fake_device *device, const struct fake_command *command) {
        const struct hr_steps *steps = command->compute.program->steps;

        hr_outcome_reach(command->outcome,
                         steps->before + command->compute.first + command->compute.count);
        for (uint32_t i = 0; i < command->compute.count && !device->config.sizes_only; ++i) {
                if (hr_outcome_failed(command->outcome))
                        return;
                fake_compute(&steps->steps[command->compute.first + i], command->outcome);
        }
}

static void event_reach(struct fake_event *event, uint64_t ticket) {
        struct fake_queue *waiting = event->waiters;

        --event->held_by;
        atomic_store(&event->reached, HR_MAX(atomic_load(&event->reached), ticket));
        event->waiters = NULL;
        while (waiting) {
                struct fake_queue *queue = waiting;

                waiting = queue->next_waiter;
                queue->waits_for = NULL;
                fake_queue_go_on(queue);
        }
}

static void take_effect(struct fake_device *device, const struct fake_command *command) {
        switch (command->code) {
        case FAKE_COMPUTE:
                compute(device, command);
                break;
        case FAKE_MOVE:
                if (command->move.bytes && !device->config.sizes_only)
                        memmove(command->move.to, command->move.from, (size_t) command->move.bytes);
                break;
        case FAKE_EXPERTS:
                hr_host_experts_copy(command->experts.cache, command->experts.weight,
                                     command->experts.ids, command->experts.tally,
                                     command->outcome);
                break;
        default:
                break;
        }
}

void fake_command_end(struct fake_queue *queue, const struct fake_command *command,
                      bool has_effect) {
        struct fake_device *device = device_of(queue);

        switch (command->code) {
        case FAKE_COMPUTE:
        case FAKE_MOVE:
        case FAKE_EXPERTS:
                if (has_effect && fake_command_passes(device, command->outcome) &&
                    !hr_outcome_failed(command->outcome))
                        take_effect(device, command);
                break;
        case FAKE_WAIT:
                if (command->edge.event)
                        --command->edge.event->held_by;
                break;
        case FAKE_WAIT_FOREIGN:
        case FAKE_GATE:
                break;
        case FAKE_RECORD:
                if (command->edge.event)
                        event_reach(command->edge.event, command->edge.ticket);
                break;
        case FAKE_NOTIFY:
                command->notify.fn(command->notify.arg);
                break;
        }
}

/* ---- Submitting ------------------------------------------------------------------------------ */

static hr_status grow(struct fake_queue *queue, struct hr_diag *diag) {
        uint32_t room = queue->room ? queue->room * 2 : 64;
        struct fake_command *larger = malloc(room * sizeof *larger);

        if (!larger)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for commands");
        for (uint32_t i = 0; i < queue->count; ++i)
                larger[i] = queue->commands[(queue->first + i) % queue->room];
        free(queue->commands);
        queue->commands = larger;
        queue->room = room;
        queue->first = 0;
        return HR_OK;
}

static hr_status submit(struct fake_queue *queue, const struct fake_command *command,
                        struct hr_diag *diag) {
        if (queue->count == queue->room)
                HR_TRY(grow(queue, diag));
        queue->commands[(queue->first + queue->count++) % queue->room] = *command;
        ++device_of(queue)->world->pending;
        fake_submitted(queue);
        return HR_OK;
}

/* Asks the script, and finds the outcome that a command reports to. */
static hr_status ready(struct fake_queue *queue, struct hr_outcome *outcome, struct hr_diag *diag,
                       struct hr_outcome **ret_outcome) {
        HR_TRY(fake_call(device_of(queue), diag));
        if (!outcome) {
                outcome = &queue->outcome;
                if (hr_outcome_failed(outcome))
                        return hr_fail(diag, HR_E_PRECONDITION,
                                       "an earlier command outside any run failed on %s",
                                       device_of(queue)->name);
        }
        *ret_outcome = outcome;
        return HR_OK;
}

static uint64_t compute_ns(const struct fake_device *device, const struct hr_steps *steps,
                           uint32_t first, uint32_t count) {
        const struct hr_fake_config *config = &device->config;
        double macs = 0;

        if (config->compute_ns)
                return config->compute_ns(config->arg, steps, first, count);
        for (uint32_t i = 0; config->macs_per_s && i < count; ++i)
                macs += fake_step_macs(&steps->steps[first + i]);
        return config->launch_ns + config->step_ns * count +
               (config->macs_per_s ? (uint64_t) (macs * 1e9 / (double) config->macs_per_s) : 0);
}

static uint64_t transfer_ns(const struct fake_device *device, const struct hr_buffer_kind *to,
                            uint64_t bytes) {
        struct hr_fake_link link = device->link;

        for (uint32_t i = 0; i < device->link_count; ++i) {
                if (device->links[i].to == to)
                        link = device->links[i].link;
        }
        return link.latency_ns +
               (link.bytes_per_s ? (uint64_t) ((double) bytes * 1e9 / (double) link.bytes_per_s)
                                 : 0);
}

static hr_status queue_compute(struct hr_queue *base, struct hr_program *program, uint32_t first,
                               uint32_t count, struct hr_outcome *outcome, struct hr_diag *diag) {
        struct fake_queue *queue = queue_cast(base);
        struct fake_command command = {.code = FAKE_COMPUTE};

        HR_TRY(ready(queue, outcome, diag, &command.outcome));
        command.ns = compute_ns(device_of(queue), program->steps, first, count);
        command.compute.program = program;
        command.compute.first = first;
        command.compute.count = count;
        return submit(queue, &command, diag);
}

static hr_status move(struct fake_queue *queue, void *to, const void *from,
                      const struct hr_buffer_kind *kind, uint64_t bytes, struct hr_outcome *outcome,
                      struct hr_diag *diag) {
        struct fake_command command = {.code = FAKE_MOVE};

        HR_TRY(ready(queue, outcome, diag, &command.outcome));
        command.ns = transfer_ns(device_of(queue), kind, bytes);
        command.move.to = to;
        command.move.from = from;
        command.move.bytes = bytes;
        return submit(queue, &command, diag);
}

static hr_status queue_write(struct hr_queue *base, void *destination, const void *host,
                             uint64_t bytes, struct hr_outcome *outcome, struct hr_diag *diag) {
        return move(queue_cast(base), destination, host, &hr_host_kind, bytes, outcome, diag);
}

static hr_status queue_read(struct hr_queue *base, const void *source, void *host, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        return move(queue_cast(base), host, source, &hr_host_kind, bytes, outcome, diag);
}

/* Its own memory always; memory without bytes can be anybody's: all of the world is simulated
 * then. */
static bool queue_can_copy(const struct hr_queue *base, const struct hr_buffer_kind *to) {
        const struct fake_device *device = fake_device_cast(base->device);
        const struct hr_fake_config *config = &device->config;

        return to->host || to == &device->kind ||
               (config->peer && (to->addressable || config->sizes_only));
}

static hr_status queue_copy(struct hr_queue *base, const void *source, void *destination,
                            const struct hr_buffer_kind *to, uint64_t bytes,
                            struct hr_outcome *outcome, struct hr_diag *diag) {
        if (!queue_can_copy(base, to))
                return hr_fail(diag, HR_E_UNSUPPORTED, "%s cannot write to memory of kind %s",
                               base->device->props.name, to->name);
        return move(queue_cast(base), destination, source, to, bytes, outcome, diag);
}

static hr_status queue_wait(struct hr_queue *base, struct hr_event *event, struct hr_diag *diag) {
        struct fake_queue *queue = queue_cast(base);
        struct fake_command command = {.code = FAKE_WAIT,
                                       .ns = device_of(queue)->config.command_ns};
        hr_status status;

        HR_TRY(fake_call(device_of(queue), diag));
        if (event->ops != &event_ops) {
                command.code = FAKE_WAIT_FOREIGN;
                command.foreign = event;
                return submit(queue, &command, diag);
        }
        command.edge.event = HR_CONTAINER_OF(event, struct fake_event, event);
        command.edge.ticket = atomic_load(&command.edge.event->submitted);
        ++command.edge.event->held_by;
        status = submit(queue, &command, diag);
        if (status != HR_OK)
                --command.edge.event->held_by;
        return status;
}

static hr_status queue_record(struct hr_queue *base, struct hr_event *event, struct hr_diag *diag) {
        struct fake_queue *queue = queue_cast(base);
        struct fake_command command = {.code = FAKE_RECORD,
                                       .ns = device_of(queue)->config.command_ns};
        hr_status status;

        HR_ASSERT(event->ops == &event_ops);
        HR_TRY(fake_call(device_of(queue), diag));
        command.edge.event = HR_CONTAINER_OF(event, struct fake_event, event);
        command.edge.ticket = atomic_fetch_add(&command.edge.event->submitted, 1) + 1;
        ++command.edge.event->held_by;
        status = submit(queue, &command, diag);
        if (status != HR_OK) {
                atomic_fetch_sub(&command.edge.event->submitted, 1);
                --command.edge.event->held_by;
        }
        return status;
}

static hr_status queue_notify(struct hr_queue *base, hr_notify_fn fn, void *arg,
                              struct hr_diag *diag) {
        struct fake_queue *queue = queue_cast(base);
        struct fake_command command = {.code = FAKE_NOTIFY,
                                       .ns = device_of(queue)->config.command_ns};

        HR_TRY(fake_call(device_of(queue), diag));
        command.notify.fn = fn;
        command.notify.arg = arg;
        return submit(queue, &command, diag);
}

hr_status hr_fake_gate_close(struct hr_queue *base, struct hr_diag *diag) {
        return submit(queue_cast(base), &(struct fake_command){.code = FAKE_GATE}, diag);
}

/* How many experts are missing is known when the ids are: only the latency is simulated. */
static hr_status queue_copy_experts(struct hr_queue *base, struct hr_expert_cache *cache,
                                    uint32_t weight, const void *ids, struct hr_expert_tally *tally,
                                    struct hr_outcome *outcome, struct hr_diag *diag) {
        struct fake_queue *queue = queue_cast(base);
        struct fake_command command = {.code = FAKE_EXPERTS};

        HR_TRY(ready(queue, outcome, diag, &command.outcome));
        command.ns = transfer_ns(device_of(queue), &hr_host_kind, 0);
        command.experts.cache = cache;
        command.experts.weight = weight;
        command.experts.ids = ids;
        command.experts.tally = tally;
        return submit(queue, &command, diag);
}

/* ---- Life ------------------------------------------------------------------------------------ */

/* What can still happen does; what waits for ever ends without effect. */
static void queue_destroy(struct hr_queue *base) {
        struct fake_queue *queue = queue_cast(base);
        struct hr_fake_world *world = device_of(queue)->world;

        queue->open_gates = UINT32_MAX;
        fake_queue_go_on(queue);
        while (queue->count && hr_fake_step(world)) {
        }
        if (queue->waits_for) {
                struct fake_queue **at = &queue->waits_for->waiters;

                while (*at != queue)
                        at = &(*at)->next_waiter;
                *at = queue->next_waiter;
        }
        for (; queue->count; --queue->count, --world->pending) {
                struct fake_command command = queue->commands[queue->first];

                queue->first = (queue->first + 1) % queue->room;
                fake_command_end(queue, &command, false);
        }
        fake_world_drop_queue(world, queue);
        free(queue->commands);
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

hr_status fake_queue_new(struct hr_device *device, struct hr_diag *diag,
                         struct hr_queue **ret_queue) {
        struct fake_device *fake = fake_device_cast(device);
        struct fake_queue *queue;
        hr_status status;

        HR_TRY(fake_call(fake, diag));
        queue = calloc(1, sizeof *queue);
        if (!queue)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a queue");
        queue->queue.ops = &queue_ops;
        queue->queue.device = device;
        status = grow(queue, diag);
        if (status == HR_OK)
                status = fake_world_add_queue(fake->world, queue, diag);
        if (status != HR_OK) {
                free(queue->commands);
                free(queue);
                return status;
        }
        *ret_queue = &queue->queue;
        return HR_OK;
}

hr_status fake_upload_queue_new(struct hr_device *device, struct hr_diag *diag,
                                struct hr_queue **ret_queue) {
        if (!device->props.uploads)
                return hr_device_upload_queue_none(device, diag, ret_queue);
        return fake_queue_new(device, diag, ret_queue);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static bool event_query(struct hr_event *base) {
        struct fake_event *event = HR_CONTAINER_OF(base, struct fake_event, event);

        return atomic_load(&event->reached) >= atomic_load(&event->submitted);
}

/* Others' threads may wait for an eager world's event: they let no time pass in it. */
static void wait_aside(struct hr_event *event, uint64_t timeout_ns) {
        uint64_t start_ns = hr_clock_now_ns();

        while (!event_query(event) && hr_clock_now_ns() - start_ns < timeout_ns)
                (void) usleep(50);
}

/* Lets virtual time pass. */
static hr_status event_synchronize(struct hr_event *base, uint64_t timeout_ns,
                                   struct hr_diag *diag) {
        struct fake_event *event = HR_CONTAINER_OF(base, struct fake_event, event);
        struct hr_fake_world *world = event->world;
        uint64_t end_ns = 0;

        if (world->eager) {
                wait_aside(base, timeout_ns);
        } else {
                HR_TRY(fake_call(fake_device_cast(base->device), diag));
                if (!hr_add_u64(world->now_ns, timeout_ns, &end_ns))
                        end_ns = UINT64_MAX;
        }
        while (!world->eager && !event_query(base)) {
                if (world->heap_count && world->heap[0]->ends_ns > end_ns)
                        break;
                if (!hr_fake_step(world))
                        break;
        }
        if (!event_query(base))
                return hr_fail(diag, HR_E_DEADLINE, "an event of %s has not been reached",
                               base->device->props.name);
        return HR_OK;
}

static void event_destroy(struct hr_event *base) {
        struct fake_event *event = HR_CONTAINER_OF(base, struct fake_event, event);

        while (event->held_by && hr_fake_step(event->world)) {
        }
        for (struct fake_queue *queue = event->world->queues; event->held_by && queue;
             queue = queue->next) {
                for (uint32_t i = 0; i < queue->count; ++i) {
                        struct fake_command *command =
                                &queue->commands[(queue->first + i) % queue->room];

                        if ((command->code == FAKE_WAIT || command->code == FAKE_RECORD) &&
                            command->edge.event == event)
                                command->edge.event = NULL;
                }
                if (queue->waits_for == event) {
                        queue->waits_for = NULL;
                        fake_queue_go_on(queue);
                }
        }
        free(event);
}

static const struct hr_event_ops event_ops = {
        .size = sizeof event_ops,
        .destroy = event_destroy,
        .query = event_query,
        .synchronize = event_synchronize,
};

hr_status fake_event_new(struct hr_device *device, struct hr_diag *diag,
                         struct hr_event **ret_event) {
        struct fake_event *event;

        HR_TRY(fake_call(fake_device_cast(device), diag));
        event = calloc(1, sizeof *event);
        if (!event)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for an event");
        event->event.ops = &event_ops;
        event->event.device = device;
        event->world = fake_device_cast(device)->world;
        *ret_event = &event->event;
        return HR_OK;
}
