/*
 * Proves that every hazard of a tape has an edge, and that every read finds the tensor it means.
 *
 * The proof trusts nothing that planning thought: it walks the commands of several successive runs
 * in the order of submission, with a vector clock per queue. A wait merges the clock that its event
 * had when it was last recorded; a run starts after the run that had its slot before is done, as
 * its notifications tell. Memory is a set of intervals per pool, slot section, staging area and
 * buffer; each knows which queue wrote it at which clock, what it holds, and who has read it since.
 *
 *   read   must come after the write, and the interval must hold the tensor that is meant
 *   write  must come after the write before it and after all reads since
 *   done   must come after every command that touches memory
 *
 * Beside that, a device must reach every place that its commands name, and a copy must not be used
 * after a later write into the memory that it was made from.
 *
 * Reads are booked on whole intervals and buffers are one interval each; both err on the strict
 * side.
 */
#include "scheduler/plan.h"

#include <string.h>

#define HOLDS_ANYTHING UINT32_MAX

struct reader {
        uint32_t queue, clock, next;
};

struct interval {
        uint64_t start, end;
        uint32_t writer, writer_clock; /* HR_NO_INDEX: written before everything */
        uint32_t holds;                /* tensor id; copies count from tensor_count on */
        uint32_t readers;              /* list, HR_NO_INDEX ends */
};

struct object {
        struct interval *intervals;
        uint32_t count, capacity;
};

struct prover {
        const struct hr_plan *plan;
        const struct hr_plan_input *in;
        struct hr_diag *diag;
        struct hr_arena arena;
        uint32_t devices;
        uint32_t *clocks;     /* devices x devices: what each queue knows of each */
        uint32_t *events;     /* (slot events x slots + lanes) x devices */
        uint32_t *last_touch; /* devices: clock of the last command that touched memory */
        uint32_t *done;       /* slots x devices: what is over when a slot's run is done */
        struct object *objects;
        struct reader *readers;
        uint32_t reader_count, reader_capacity;
        uint32_t *versions; /* tensors: how often computations have written into a root */
        uint32_t *copied;   /* copies: version of the root when the copy was made */
        uint32_t slots, slot;
        const struct hr_command *command;
};

static hr_status out_of_memory(struct prover *prover) {
        return hr_fail(prover->diag, HR_E_EXHAUSTED, "memory for the proof of a plan");
}

static uint32_t *clock_of(const struct prover *prover, uint32_t queue) {
        return prover->clocks + (size_t) queue * prover->devices;
}

static uint32_t *event_clock(const struct prover *prover, uint32_t event) {
        uint32_t slot_events = prover->plan->tape.slot_event_count;
        size_t index = event < slot_events
                               ? (size_t) prover->slot * slot_events + event
                               : (size_t) prover->slots * slot_events + (event - slot_events);

        return prover->events + index * prover->devices;
}

static void merge(const struct prover *prover, uint32_t *into, const uint32_t *from) {
        for (uint32_t d = 0; d < prover->devices; ++d)
                into[d] = HR_MAX(into[d], from[d]);
}

static struct object *object_of(struct prover *prover, const struct hr_place *place) {
        uint32_t kinds = prover->plan->kind_count, slots = prover->slots;

        switch (place->where) {
        case HR_WHERE_SHARED:
                return &prover->objects[place->index];
        case HR_WHERE_SLOT:
                return &prover->objects[kinds + place->index * slots + prover->slot];
        case HR_WHERE_STAGING:
                return &prover->objects[kinds * (1 + slots) + prover->slot];
        case HR_WHERE_HOME:
                return &prover->objects[kinds * (1 + slots) + slots +
                                        prover->in->tensor_buffer[place->index]];
        case HR_WHERE_NONE:
                break;
        }
        return NULL;
}

/* ---- Intervals --------------------------------------------------------------------------------
 */

static hr_status interval_room(struct prover *prover, struct object *object, uint32_t more) {
        uint32_t wanted;
        struct interval *larger;

        if (object->count + more <= object->capacity)
                return HR_OK;
        wanted = HR_MAX(object->capacity * 2, object->count + more + 6);
        larger = hr_arena_alloc(&prover->arena, (uint64_t) wanted * sizeof *larger, 16);
        if (!larger)
                return out_of_memory(prover);
        if (object->count)
                memcpy(larger, object->intervals, object->count * sizeof *larger);
        object->intervals = larger;
        object->capacity = wanted;
        return HR_OK;
}

/* Index of the first interval that ends after `start`. */
static uint32_t interval_find(const struct object *object, uint64_t start) {
        uint32_t low = 0, high = object->count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (object->intervals[middle].end <= start)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static void interval_open(struct object *object, uint32_t index, struct interval interval) {
        memmove(&object->intervals[index + 1], &object->intervals[index],
                (object->count - index) * sizeof interval);
        object->intervals[index] = interval;
        ++object->count;
}

/* Replaces what lies in start .. end - 1 by one interval. Room for two more must be there. */
static void interval_replace(struct object *object, uint32_t first, uint32_t past,
                             struct interval fresh) {
        uint32_t kept = first;

        if (first < past && object->intervals[first].start < fresh.start) {
                struct interval tail = object->intervals[first];

                object->intervals[first].end = fresh.start;
                if (tail.end > fresh.end) { /* cuts one interval in two */
                        tail.start = fresh.end;
                        interval_open(object, first + 1, tail);
                        interval_open(object, first + 1, fresh);
                        return;
                }
                kept = ++first;
        }
        if (first < past && object->intervals[past - 1].end > fresh.end) {
                object->intervals[past - 1].start = fresh.end;
                --past;
        }
        if (first == past) {
                interval_open(object, kept, fresh);
                return;
        }
        object->intervals[kept] = fresh;
        memmove(&object->intervals[kept + 1], &object->intervals[past],
                (object->count - past) * sizeof fresh);
        object->count -= past - kept - 1;
}

/* ---- Accesses ---------------------------------------------------------------------------------
 */

static bool is_after(const struct prover *prover, uint32_t queue, uint32_t earlier,
                     uint32_t clock) {
        return earlier == HR_NO_INDEX || earlier == queue ||
               clock_of(prover, queue)[earlier] >= clock;
}

static hr_status missing(struct prover *prover, const char *what, uint32_t tensor, uint32_t earlier,
                         const char *how) {
        const struct hr_command *command = prover->command;

        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                              "command %u on device %u %s tensor %u without an edge after the %s "
                              "by device %u",
                              (uint32_t) (command - prover->plan->tape.commands), command->device,
                              what, tensor, how, earlier);
}

static hr_status add_reader(struct prover *prover, struct interval *interval, uint32_t queue) {
        uint32_t clock = clock_of(prover, queue)[queue];

        for (uint32_t r = interval->readers; r != HR_NO_INDEX; r = prover->readers[r].next) {
                if (prover->readers[r].queue == queue) {
                        prover->readers[r].clock = clock;
                        return HR_OK;
                }
        }
        if (prover->reader_count == prover->reader_capacity) {
                uint32_t wanted = HR_MAX(prover->reader_capacity * 2, 256U);
                struct reader *larger =
                        hr_arena_alloc(&prover->arena, (uint64_t) wanted * sizeof *larger, 16);

                if (!larger)
                        return out_of_memory(prover);
                if (prover->reader_count)
                        memcpy(larger, prover->readers, prover->reader_count * sizeof *larger);
                prover->readers = larger;
                prover->reader_capacity = wanted;
        }
        prover->readers[prover->reader_count] =
                (struct reader){.queue = queue, .clock = clock, .next = interval->readers};
        interval->readers = prover->reader_count++;
        return HR_OK;
}

static void range_of(const struct hr_place *place, uint64_t bytes, uint64_t *ret_start,
                     uint64_t *ret_end) {
        bool home = place->where == HR_WHERE_HOME;

        *ret_start = home ? 0 : place->offset;
        *ret_end = home ? 1 : place->offset + bytes;
}

/* Does the command's device reach the place with its own hands? */
static bool reaches(const struct prover *prover, const struct hr_place *place) {
        const struct hr_plan_input *in = prover->in;
        const uint64_t *reads =
                in->reads + (size_t) prover->command->device * hr_bit_words(in->kind_count);

        if (place->where == HR_WHERE_SHARED || place->where == HR_WHERE_SLOT)
                return hr_bit_get(reads, place->index);
        if (place->where == HR_WHERE_HOME)
                return hr_bit_get(reads, in->buffers[in->tensor_buffer[place->index]].kind);
        return true;
}

static hr_status out_of_reach(struct prover *prover, uint32_t tensor) {
        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "REACH",
                              "command %u: device %u does not reach the memory of tensor %u",
                              (uint32_t) (prover->command - prover->plan->tape.commands),
                              prover->command->device, tensor);
}

static hr_status check_read(struct prover *prover, struct hr_place place, uint64_t bytes,
                            uint32_t holds) {
        struct object *object = object_of(prover, &place);
        uint32_t queue = prover->command->device;
        uint64_t start, end, reached;

        if (!object || bytes == 0)
                return HR_OK;
        /* What is written by WRITE comes from host memory, whoever owns it. */
        if (prover->command->code != HR_COMMAND_WRITE && !reaches(prover, &place))
                return out_of_reach(prover, holds);
        range_of(&place, bytes, &start, &end);
        reached = start;
        for (uint32_t i = interval_find(object, start);
             i < object->count && object->intervals[i].start < end; ++i) {
                struct interval *interval = &object->intervals[i];

                if (!is_after(prover, queue, interval->writer, interval->writer_clock))
                        return missing(prover, "reads", holds, interval->writer, "write");
                if ((interval->holds != holds && interval->holds != HOLDS_ANYTHING) ||
                    interval->start > reached)
                        break;
                reached = interval->end;
                HR_TRY(add_reader(prover, interval, queue));
        }
        if (reached < end && place.where != HR_WHERE_HOME)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "command %u on device %u reads tensor %u from memory that "
                                      "holds something else",
                                      (uint32_t) (prover->command - prover->plan->tape.commands),
                                      queue, holds);
        if (reached < end) { /* a buffer nobody has touched so far */
                HR_TRY(interval_room(prover, object, 1));
                interval_open(object, 0,
                              (struct interval){.end = 1,
                                                .writer = HR_NO_INDEX,
                                                .holds = HOLDS_ANYTHING,
                                                .readers = HR_NO_INDEX});
                HR_TRY(add_reader(prover, &object->intervals[0], queue));
        }
        return HR_OK;
}

static hr_status check_write(struct prover *prover, struct hr_place place, uint64_t bytes,
                             uint32_t holds) {
        struct object *object = object_of(prover, &place);
        uint32_t queue = prover->command->device, first, past;
        uint64_t start, end;

        if (!object || bytes == 0)
                return HR_OK;
        /* COPY goes to foreign memory; whether its queue can is asked where the way is chosen. */
        if (prover->command->code != HR_COMMAND_COPY && !reaches(prover, &place))
                return out_of_reach(prover, holds);
        range_of(&place, bytes, &start, &end);
        HR_TRY(interval_room(prover, object, 2));
        first = past = interval_find(object, start);
        for (; past < object->count && object->intervals[past].start < end; ++past) {
                const struct interval *interval = &object->intervals[past];

                if (!is_after(prover, queue, interval->writer, interval->writer_clock))
                        return missing(prover, "writes", holds, interval->writer, "write");
                for (uint32_t r = interval->readers; r != HR_NO_INDEX;
                     r = prover->readers[r].next) {
                        const struct reader *reader = &prover->readers[r];

                        if (!is_after(prover, queue, reader->queue, reader->clock))
                                return missing(prover, "writes", holds, reader->queue, "read");
                }
        }
        interval_replace(
                object, first, past,
                (struct interval){.start = start,
                                  .end = end,
                                  .writer = queue,
                                  .writer_clock = clock_of(prover, queue)[queue],
                                  .holds = place.where == HR_WHERE_HOME ? HOLDS_ANYTHING : holds,
                                  .readers = HR_NO_INDEX});
        return HR_OK;
}

/* ---- Commands ---------------------------------------------------------------------------------
 */

static struct hr_place tensor_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

/* A copy is as good as the memory it was made from, until that is written. */
static hr_status check_fresh(struct prover *prover, uint32_t copy) {
        const struct hr_plan *plan = prover->plan;
        uint32_t tensor = plan->copies[copy].tensor;

        if (prover->copied[copy] == prover->versions[plan->root[tensor]])
                return HR_OK;
        return hr_fail_reason(
                prover->diag, HR_E_INTERNAL, "STALE",
                "command %u on device %u uses a copy of tensor %u made before a write",
                (uint32_t) (prover->command - plan->tape.commands), prover->command->device,
                tensor);
}

static void note_write(struct prover *prover, uint32_t holds) {
        const struct hr_plan *plan = prover->plan;

        if (holds < plan->tensor_count)
                ++prover->versions[holds];
        else
                prover->copied[holds - plan->tensor_count] =
                        prover->versions
                                [plan->root[plan->copies[holds - plan->tensor_count].tensor]];
}

static hr_status prove_node(struct prover *prover, uint32_t node) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_graph *graph = prover->in->graph;
        uint32_t id = graph->leaf_count + node, copy;
        const struct hr_tensor *tensor = &graph->tensors[id];

        for (uint32_t i = 0; i < tensor->source_count; ++i) {
                uint32_t source = hr_graph_source(graph, tensor, i);

                if (source == HR_TENSOR_NONE || source == id)
                        continue;
                copy = plan->source_copy[plan->source_start[node] + i];
                if (copy != HR_NO_COPY) {
                        HR_TRY(check_read(prover, plan->copies[copy].place,
                                          plan->copies[copy].bytes, plan->tensor_count + copy));
                        HR_TRY(check_fresh(prover, copy));
                } else
                        HR_TRY(check_read(prover, tensor_place(plan, source), plan->span[source],
                                          plan->root[source]));
        }
        copy = plan->result_copy ? plan->result_copy[node] : HR_NO_COPY;
        if (copy != HR_NO_COPY)
                return check_write(prover, plan->copies[copy].place, plan->copies[copy].bytes,
                                   plan->tensor_count + copy);
        note_write(prover, plan->root[id]);
        return check_write(prover, tensor_place(plan, id), plan->span[id], plan->root[id]);
}

static hr_status prove_compute(struct prover *prover, uint32_t s) {
        const struct hr_plan_split *split = &prover->plan->splits[s];

        for (uint32_t k = 0; k < split->step_count; ++k)
                HR_TRY(prove_node(prover, prover->plan->steps[split->step_first + k]));
        return HR_OK;
}

static hr_status prove_command(struct prover *prover) {
        const struct hr_command *command = prover->command;
        uint32_t queue = command->device;
        uint32_t *own = clock_of(prover, queue);

        ++own[queue];
        switch (command->code) {
        case HR_COMMAND_WAIT:
                merge(prover, own, event_clock(prover, command->index));
                return HR_OK;
        case HR_COMMAND_RECORD:
                memcpy(event_clock(prover, command->index), own, prover->devices * sizeof *own);
                return HR_OK;
        case HR_COMMAND_INPUT:
                if (command->to_holds >= prover->plan->tensor_count)
                        note_write(prover, command->to_holds);
                return check_write(prover, command->to, command->bytes, command->to_holds);
        case HR_COMMAND_WRITE:
        case HR_COMMAND_READ:
        case HR_COMMAND_COPY:
                HR_TRY(check_read(prover, command->from, command->bytes, command->from_holds));
                /* The second half of a staged copy brings what the first one took. */
                if (command->from.where != HR_WHERE_STAGING ||
                    command->to_holds < prover->plan->tensor_count)
                        note_write(prover, command->to_holds);
                return check_write(prover, command->to, command->bytes, command->to_holds);
        case HR_COMMAND_COMPUTE:
                return prove_compute(prover, command->index);
        case HR_COMMAND_READ_BACK:
                return check_read(prover, command->from, command->bytes, command->from_holds);
        case HR_COMMAND_NOTIFY:
                merge(prover, prover->done + (size_t) prover->slot * prover->devices, own);
                return HR_OK;
        }
        return HR_OK;
}

/* Every command that touches memory is over when the run is done. */
static hr_status prove_done(struct prover *prover) {
        const uint32_t *done = prover->done + (size_t) prover->slot * prover->devices;
        const struct hr_tape *tape = &prover->plan->tape;
        bool *seen = hr_arena_alloc(&prover->arena, prover->devices, 16);

        if (!seen)
                return out_of_memory(prover);
        for (uint32_t i = tape->count; i-- > 0;) {
                const struct hr_command *command = &tape->commands[i];
                uint32_t queue = command->device;

                if (command->code == HR_COMMAND_NOTIFY || command->code == HR_COMMAND_WAIT ||
                    command->code == HR_COMMAND_RECORD || seen[queue])
                        continue;
                seen[queue] = true;
                if (done[queue] < prover->last_touch[queue])
                        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                              "the run is done before command %u on device %u", i,
                                              queue);
        }
        return HR_OK;
}

static hr_status prove_run(struct prover *prover, uint32_t run) {
        const struct hr_tape *tape = &prover->plan->tape;
        uint32_t *done;

        prover->slot = run % prover->slots;
        done = prover->done + (size_t) prover->slot * prover->devices;
        for (uint32_t d = 0; d < prover->devices; ++d)
                merge(prover, clock_of(prover, d), done);
        for (uint32_t i = 0; i < tape->count; ++i) {
                prover->command = &tape->commands[i];
                HR_TRY(prove_command(prover));
                if (prover->command->code >= HR_COMMAND_INPUT &&
                    prover->command->code <= HR_COMMAND_READ_BACK)
                        prover->last_touch[prover->command->device] =
                                clock_of(prover, prover->command->device)[prover->command->device];
        }
        return prove_done(prover);
}

/* Constants and their copies are there before the first run. */
static hr_status write_constants(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t pass = 0; pass < 2; ++pass) {
                uint32_t count = pass == 0 ? plan->leaf_count : plan->copy_count;

                for (uint32_t i = 0; i < count; ++i) {
                        struct hr_place place = pass == 0 ? plan->place[i] : plan->copies[i].place;
                        uint64_t bytes = pass == 0 ? plan->span[i] : plan->copies[i].bytes;
                        bool constant = pass == 0 ? prover->in->graph->tensors[i].leaf_kind ==
                                                            HR_LEAF_CONSTANT
                                                  : plan->copies[i].method == HR_COPY_CONSTANT;
                        struct object *object = object_of(prover, &place);
                        uint32_t at;

                        if (!constant || !object || bytes == 0 || place.where != HR_WHERE_SHARED)
                                continue;
                        HR_TRY(interval_room(prover, object, 2));
                        at = interval_find(object, place.offset);
                        interval_open(
                                object, at,
                                (struct interval){.start = place.offset,
                                                  .end = place.offset + bytes,
                                                  .writer = HR_NO_INDEX,
                                                  .holds = pass == 0 ? i : plan->tensor_count + i,
                                                  .readers = HR_NO_INDEX});
                }
        }
        return HR_OK;
}

static hr_status prover_init(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint64_t devices = prover->devices, slots = prover->slots;
        uint64_t events = (uint64_t) plan->tape.slot_event_count * slots + plan->lane_count;
        uint64_t objects =
                (uint64_t) plan->kind_count * (1 + slots) + slots + prover->in->buffer_count;

        prover->clocks = hr_arena_alloc(&prover->arena, devices * devices * 4, 16);
        prover->events = hr_arena_alloc(&prover->arena, events * devices * 4, 16);
        prover->done = hr_arena_alloc(&prover->arena, slots * devices * 4, 16);
        prover->last_touch = hr_arena_alloc(&prover->arena, devices * 4, 16);
        prover->versions = hr_arena_alloc(&prover->arena, (uint64_t) plan->tensor_count * 4, 16);
        prover->copied = hr_arena_alloc(&prover->arena, (uint64_t) plan->copy_count * 4, 16);
        prover->objects = hr_arena_alloc(&prover->arena, objects * sizeof(struct object), 16);
        if (!prover->clocks || !prover->events || !prover->done || !prover->last_touch ||
            !prover->objects || !prover->versions || !prover->copied)
                return out_of_memory(prover);
        return write_constants(prover);
}

static hr_status prove(struct prover *prover) {
        uint32_t runs = prover->slots == 1 ? 1 : prover->slots + 1;

        HR_TRY(prover_init(prover));
        for (uint32_t run = 0; run < runs; ++run)
                HR_TRY(prove_run(prover, run));
        return HR_OK;
}

hr_status hr_plan_verify(const struct hr_plan *plan, const struct hr_plan_input *input,
                         struct hr_diag *diag) {
        struct prover prover = {
                .plan = plan,
                .in = input,
                .diag = diag,
                .devices = plan->device_count,
                /* Three slots show every kind of neighbour: one run apart, two apart, slot reused.
                 */
                .slots = HR_MIN(plan->n_copies, 3U),
        };
        hr_status status;

        hr_arena_init(&prover.arena, 0);
        status = prove(&prover);
        hr_arena_deinit(&prover.arena);
        return status;
}
