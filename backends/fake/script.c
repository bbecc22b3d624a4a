/*
 * A world of simulated devices: its clock, the order in which commands end, and what the script
 * does to them.
 *
 * Each queue has at most one command under way, the first one. Those queues form a heap by the time
 * at which the command ends, and by the order of their beginnings among equals; so everything is
 * decided by what was submitted when, and a simulation repeats itself exactly. A command has its
 * effect when it ends.
 *
 *   submitted --first in its queue, nothing to wait for--> under way --its time is over--> ended
 */
#include "backends/fake/fake.h"

#include <stdlib.h>
#include <unistd.h>

hr_status hr_fake_world_new(bool eager, struct hr_diag *diag, struct hr_fake_world **ret_world) {
        struct hr_fake_world *world = calloc(1, sizeof *world);

        if (!world)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a world");
        world->refs = 1;
        world->eager = eager;
        world->next_address = UINT64_C(1) << 40;
        *ret_world = world;
        return HR_OK;
}

struct hr_fake_world *hr_fake_world_unref(struct hr_fake_world *world) {
        if (!world || --world->refs > 0)
                return NULL;
        HR_ASSERT(world->queue_count == 0);
        free(world->heap);
        free(world);
        return NULL;
}

uint64_t hr_fake_now_ns(const struct hr_fake_world *world) {
        return world->now_ns;
}

uint64_t hr_fake_pending(const struct hr_fake_world *world) {
        return world->pending;
}

/* ---- The heap -------------------------------------------------------------------------------- */

static bool ends_before(const struct fake_queue *a, const struct fake_queue *b) {
        return a->ends_ns != b->ends_ns ? a->ends_ns < b->ends_ns : a->order < b->order;
}

static void heap_swap(struct fake_queue **a, struct fake_queue **b) {
        struct fake_queue *kept = *a;

        *a = *b;
        *b = kept;
}

static void heap_rise(struct fake_queue **heap, uint32_t at) {
        for (; at > 0 && ends_before(heap[at], heap[(at - 1) / 2]); at = (at - 1) / 2)
                heap_swap(&heap[at], &heap[(at - 1) / 2]);
}

static void heap_sink(struct fake_queue **heap, uint32_t count, uint32_t at) {
        for (;;) {
                uint32_t least = at;

                for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < count; ++child) {
                        if (ends_before(heap[child], heap[least]))
                                least = child;
                }
                if (least == at)
                        return;
                heap_swap(&heap[at], &heap[least]);
                at = least;
        }
}

static void heap_add(struct hr_fake_world *world, struct fake_queue *queue) {
        HR_ASSERT(world->heap_count < world->heap_room);
        world->heap[world->heap_count] = queue;
        heap_rise(world->heap, world->heap_count++);
}

static void heap_remove(struct hr_fake_world *world, uint32_t at) {
        HR_ASSERT(at < world->heap_count);
        world->heap[at] = world->heap[--world->heap_count];
        if (at < world->heap_count) {
                heap_rise(world->heap, at);
                heap_sink(world->heap, world->heap_count, at);
        }
}

hr_status fake_world_add_queue(struct hr_fake_world *world, struct fake_queue *queue,
                               struct hr_diag *diag) {
        if (world->queue_count == world->heap_room) {
                uint32_t room = world->heap_room ? world->heap_room * 2 : 16;
                struct fake_queue **heap = realloc(world->heap, room * sizeof(struct fake_queue *));

                if (!heap)
                        return hr_fail(diag, HR_E_EXHAUSTED, "memory for a queue");
                world->heap = heap;
                world->heap_room = room;
        }
        ++world->queue_count;
        queue->next = world->queues;
        world->queues = queue;
        return HR_OK;
}

void fake_world_drop_queue(struct hr_fake_world *world, struct fake_queue *queue) {
        struct fake_queue **at = &world->queues;

        while (*at != queue)
                at = &(*at)->next;
        *at = queue->next;
        --world->queue_count;
}

/* ---- Commands in time ------------------------------------------------------------------------ */

static void begin(struct fake_queue *queue, struct fake_command *command) {
        struct fake_device *device = fake_device_cast(queue->queue.device);
        bool moves = command->code <= FAKE_EXPERTS;

        queue->has_effect = moves && !hr_outcome_failed(command->outcome);
        if (queue->has_effect && hr_device_is_lost(&device->device)) {
                queue->has_effect = false;
                (void) hr_outcome_fail(command->outcome, HR_E_DEVICE_LOST, NULL, HR_DIAG_NO_INDEX,
                                       "%s is lost", device->name);
        }
        if ((moves && !queue->has_effect) || hr_device_is_lost(&device->device))
                command->ns = 0;
        queue->is_under_way = true;
        queue->order = device->world->begun++;
        queue->ends_ns = device->world->now_ns + command->ns;
        device->busy_ns += command->ns;
        heap_add(device->world, queue);
}

/* Other backends have threads of their own. */
static bool foreign_is_reached(const struct hr_fake_world *world, struct hr_event *event) {
        if (world->eager)
                fake_foreign_wait(event);
        return hr_event_query(event);
}

void fake_queue_go_on(struct fake_queue *queue) {
        struct hr_fake_world *world = fake_device_cast(queue->queue.device)->world;
        struct fake_command *command = &queue->commands[queue->first];

        if (queue->is_under_way || queue->waits_for || queue->count == 0)
                return;
        if (command->code == FAKE_WAIT && command->edge.event &&
            atomic_load(&command->edge.event->reached) < command->edge.ticket) {
                struct fake_queue **last = &command->edge.event->waiters;

                while (*last)
                        last = &(*last)->next_waiter;
                *last = queue;
                queue->next_waiter = NULL;
                queue->waits_for = command->edge.event;
                return;
        }
        if (command->code == FAKE_WAIT_FOREIGN && !foreign_is_reached(world, command->foreign))
                return;
        if (command->code == FAKE_GATE) {
                if (queue->open_gates == 0)
                        return;
                --queue->open_gates;
        }
        begin(queue, command);
}

void fake_submitted(struct fake_queue *queue) {
        struct hr_fake_world *world = fake_device_cast(queue->queue.device)->world;

        fake_queue_go_on(queue);
        if (world->eager && !world->is_running)
                hr_fake_run(world);
}

void hr_fake_gate_open(struct hr_queue *base) {
        struct fake_queue *queue = HR_CONTAINER_OF(base, struct fake_queue, queue);

        ++queue->open_gates;
        fake_submitted(queue);
}

/* Queues that wait for other backends: asked again, and, where nothing else can happen, waited
 * for. */
static void look_abroad(struct hr_fake_world *world) {
        for (struct fake_queue *queue = world->queues; queue; queue = queue->next) {
                struct fake_command *command = &queue->commands[queue->first];

                if (queue->count == 0 || queue->is_under_way || command->code != FAKE_WAIT_FOREIGN)
                        continue;
                if (world->heap_count == 0)
                        fake_foreign_wait(command->foreign);
                fake_queue_go_on(queue);
        }
}

bool hr_fake_step(struct hr_fake_world *world) {
        struct fake_command command;
        struct fake_queue *queue;
        bool was_running = world->is_running;

        look_abroad(world);
        if (world->heap_count == 0)
                return false;
        queue = world->heap[0];
        heap_remove(world, 0);
        HR_ASSERT(queue->ends_ns >= world->now_ns);
        world->now_ns = queue->ends_ns;
        queue->is_under_way = false;
        command = queue->commands[queue->first];
        queue->first = (queue->first + 1) % queue->room;
        --queue->count;
        --world->pending;
        world->is_running = true;
        fake_command_end(queue, &command, queue->has_effect);
        world->is_running = was_running;
        fake_queue_go_on(queue);
        return true;
}

void hr_fake_run(struct hr_fake_world *world) {
        while (hr_fake_step(world)) {
        }
}

void hr_fake_run_until(struct hr_fake_world *world, uint64_t now_ns) {
        for (look_abroad(world); world->heap_count && world->heap[0]->ends_ns <= now_ns;)
                (void) hr_fake_step(world);
        world->now_ns = HR_MAX(world->now_ns, now_ns);
}

/* ---- Failures -------------------------------------------------------------------------------- */

hr_status fake_call(struct fake_device *device, struct hr_diag *diag) {
        struct hr_fake_world *world = device->world;

        if (world->submit_ns && !world->is_running)
                hr_fake_run_until(world, world->now_ns + world->submit_ns);
        ++world->calls;
        if (hr_device_is_lost(&device->device))
                return hr_fail(diag, HR_E_DEVICE_LOST, "%s is lost", device->name);
        if (world->fail_call == 0)
                return HR_OK;
        if (world->fail_call > 1) {
                --world->fail_call;
                return HR_OK;
        }
        if (!world->fail_all_later)
                world->fail_call = 0;
        return hr_fail_reason(diag, world->fail_call_status, "SCRIPTED",
                              "%s: call %llu was to fail", device->name,
                              (unsigned long long) world->calls);
}

void hr_fake_fail_call(struct hr_fake_world *world, uint64_t n, hr_status status, bool all_later) {
        world->fail_call = n;
        world->fail_call_status = status;
        world->fail_all_later = all_later;
}

uint64_t hr_fake_asked(const struct hr_fake_world *world) {
        return world->asked;
}

void hr_fake_submit_ns(struct hr_fake_world *world, uint64_t ns) {
        world->submit_ns = ns;
}

uint64_t hr_fake_calls(const struct hr_fake_world *world) {
        return world->calls;
}

bool fake_command_passes(struct fake_device *device, struct hr_outcome *outcome) {
        struct hr_fake_world *world = device->world;

        ++world->commands;
        if (++device->commands == device->config.lose_at_command ||
            (device->lose_file && access(device->lose_file, F_OK) == 0))
                hr_fake_lose(&device->device);
        if (hr_device_is_lost(&device->device)) {
                (void) hr_outcome_fail(outcome, HR_E_DEVICE_LOST, NULL, HR_DIAG_NO_INDEX,
                                       "%s is lost", device->name);
                return false;
        }
        if (world->fail_command && --world->fail_command == 0) {
                (void) hr_outcome_fail(outcome, world->fail_command_status, "SCRIPTED",
                                       HR_DIAG_NO_INDEX, "%s: command %llu was to fail",
                                       device->name, (unsigned long long) world->commands);
                return false;
        }
        return true;
}

void hr_fake_fail_command(struct hr_fake_world *world, uint64_t n, hr_status status) {
        world->fail_command = n;
        world->fail_command_status = status;
}

uint64_t hr_fake_commands(const struct hr_fake_world *world) {
        return world->commands;
}

void fake_device_hurry(struct fake_device *device) {
        struct hr_fake_world *world = device->world;

        for (uint32_t i = 0; i < world->heap_count; ++i) {
                struct fake_queue *queue = world->heap[i];

                if (queue->queue.device != &device->device || queue->ends_ns == world->now_ns)
                        continue;
                device->busy_ns -= queue->ends_ns - world->now_ns;
                queue->ends_ns = world->now_ns;
                heap_rise(world->heap, i);
                i = UINT32_MAX; /* the order has changed: look from the start */
        }
}
