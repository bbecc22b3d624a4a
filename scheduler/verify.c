/*
 * Proves that every hazard of a tape has an edge, and that every read finds what it means.
 *
 * The proof trusts nothing that planning thought. It walks the commands of a first run in the order
 * of submission, with a vector clock per queue: a wait merges the clock that its event had when it
 * was last recorded. Memory is a set of *blocks*, each what one root, or one copy, has in a section
 * (the shared part of a pool, a slot's part, staging), and of buffers, which are one block each. A
 * block knows which queue wrote it last at which clock, and who has read it since.
 *
 *   read   must come after the last write, and what is meant must still lie there
 *   write  must come after the last write and all reads since of all that it covers
 *   done   must come after every command that touches memory
 *
 * Which bytes are meant depends on the writes so far. Splits are computed in their order, each
 * once; `meant` counts the writes into a root by the nodes computed so far, `landed` those that
 * have reached its memory, or that a copy has seen. A root is read when all that is
 * meant has landed, and a copy only if it has seen as much.
 *
 * Runs. A slot is used again after its run is done, so two runs in flight have different slots, and
 * since every place lies inside its section they meet in shared parts and in buffers only. There
 * all of a run must come after all of the run before: a second run, command by command, shows it.
 * Runs further apart follow, because what conflicts with a run also conflicts with the one between.
 *
 * Other pipelines may use the same states before and after. They are one more queue: behind it
 * start the lanes that touch states, and it goes on after the events at the ends of those lanes.
 *
 * Taps. With them there are two kinds of runs, and both are proven: those that are observed compute
 * range by range and read each tap, at the version that its node sees; the others compute the whole
 * split where the first range stands and read none.
 *
 * Accesses count for whole blocks, which errs on the strict side.
 */
#include "scheduler/plan.h"

#include <string.h>

struct reader {
        uint32_t queue, clock, next;
};

struct block {
        uint64_t start, end;
        uint32_t section;
        uint32_t writer, writer_clock; /* HR_NO_INDEX: written before everything */
        uint32_t reader, reader_clock; /* the latest reader; HR_NO_INDEX: none */
        uint32_t more_readers;         /* list of the others, HR_NO_INDEX ends */
        bool dead;                     /* something else has been written over it */
        bool constant;                 /* never written */
};

/* A range of a section and the block whose accesses count there, dead or not. */
struct stretch {
        uint64_t start, end;
        uint32_t block;
};

struct section {
        struct stretch *stretches; /* by address */
        uint32_t count, capacity;
        uint64_t bytes;
};

/* What a root, or a copy, holds. */
struct holder {
        uint32_t block; /* its newest one; 0 = none */
        uint32_t meant; /* root: writes by the nodes computed so far */
        uint32_t
                landed; /* root: those that have reached its memory; copy: those that it has seen */
};

/* A command touches the shared part of a pool, or a buffer (numbered after the pools). */
struct touch {
        uint32_t command, object;
        bool write;
};

struct prover {
        const struct hr_plan *plan;
        const struct hr_plan_input *in;
        const struct hr_graph *graph;
        struct hr_diag *diag;
        struct hr_arena *arena;
        uint32_t queues; /* the devices', and one of other pipelines */
        uint32_t kind_words;
        uint32_t *clocks;         /* queues x queues: what each queue knows of each */
        uint32_t *events;         /* (slot events + lanes) x queues */
        uint32_t *last_touch;     /* per queue: clock of the last command that touched memory */
        uint32_t *done;           /* queues: what is over when the run is done */
        struct section *sections; /* kinds: shared; kinds: of the slot; staging */
        struct block *blocks;     /* from 1 on */
        uint32_t block_count;
        struct holder *holders; /* per root, then per copy */
        struct block *buffers;
        struct reader *readers;
        uint32_t reader_count, reader_capacity;
        bool *scanned; /* per group of experts: the run has read its ids */
        bool *filled;  /* per copy of experts: the run has brought those that it uses */
        uint32_t next_split;
        bool observed;         /* the run reads taps */
        uint32_t next_step;    /* of next_split: the steps before it have been computed */
        uint32_t next_tap;
        uint32_t *tap_version; /* per tap: writes into its root by its node and those before */
        /* With several slots: what the first run touched, for the second one. */
        struct touch *touches;
        uint32_t touch_count, touch_capacity;
        uint32_t *noted; /* per object, read and written: the last command that did, and one */
        uint32_t *pool_reads, *pool_writes; /* kinds x queues: clock of the last one */
        const struct hr_command *command;
        uint32_t queue;        /* the command's */
        const uint64_t *reach; /* bit set over kinds: what its device reaches */
};

static hr_status out_of_memory(struct prover *prover) {
        return hr_fail(prover->diag, HR_E_EXHAUSTED, "memory for the proof of a plan");
}

static void *take(struct prover *prover, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc(prover->arena, total, 16) : NULL;
}

/* Not zeroed. */
static void *take_raw(struct prover *prover, uint64_t count, uint64_t bytes) {
        uint64_t total;

        return hr_mul_u64(count, bytes, &total) ? hr_arena_alloc_raw(prover->arena, total, 16)
                                                : NULL;
}

static uint32_t command_index(const struct prover *prover) {
        return (uint32_t) (prover->command - prover->plan->tape.commands);
}

/* Makes room for `more` elements. */
static hr_status grow(struct prover *prover, void **array, uint32_t count, uint32_t more,
                      uint32_t *capacity, size_t bytes) {
        uint32_t wanted = *capacity ? *capacity * 2 : 64;
        void *larger;

        if (HR_LIKELY(count + more <= *capacity))
                return HR_OK;
        larger = take_raw(prover, wanted, bytes);
        if (!larger)
                return out_of_memory(prover);
        if (count)
                memcpy(larger, *array, count * bytes);
        *array = larger;
        *capacity = wanted;
        return HR_OK;
}

/* ---- Order -------------------------------------------------------------------------------------
 */

static inline uint32_t *clock_of(const struct prover *prover, uint32_t queue) {
        return prover->clocks + (size_t) queue * prover->queues;
}

static uint32_t *event_clock(const struct prover *prover, uint32_t event) {
        return prover->events + (size_t) event * prover->queues;
}

static void merge(const struct prover *prover, uint32_t *into, const uint32_t *from) {
        for (uint32_t q = 0; q < prover->queues; ++q)
                into[q] = HR_MAX(into[q], from[q]);
}

static inline bool is_after(const struct prover *prover, uint32_t earlier, uint32_t clock) {
        return earlier == prover->queue || earlier == HR_NO_INDEX ||
               clock_of(prover, prover->queue)[earlier] >= clock;
}

static inline uint32_t now(const struct prover *prover) {
        return clock_of(prover, prover->queue)[prover->queue];
}

/* ---- What can be wrong -------------------------------------------------------------------------
 */

static hr_status missing(struct prover *prover, const char *what, uint32_t holds, uint32_t earlier,
                         const char *how) {
        uint32_t tensors = prover->plan->tensor_count;
        uint32_t tensor = holds < tensors ? holds : prover->plan->copies[holds - tensors].tensor;

        if (prover->queue == prover->plan->device_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "no event at the end of a lane covers the %s of a state by "
                                      "device %u",
                                      how, earlier);
        if (earlier == prover->plan->device_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "command %u on device %u %s tensor %u without an edge after "
                                      "the pipeline that used the state before",
                                      command_index(prover), prover->queue, what, tensor);
        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                              "command %u on device %u %s tensor %u without an edge after the %s "
                              "by device %u",
                              command_index(prover), prover->queue, what, tensor, how, earlier);
}

static hr_status wrong(struct prover *prover, const char *reason, const char *what,
                       uint32_t holds) {
        uint32_t tensors = prover->plan->tensor_count;

        return hr_fail_reason(
                prover->diag, HR_E_INTERNAL, reason, "command %u on device %u: %s (tensor %u)",
                command_index(prover), prover->queue, what,
                holds < tensors ? holds : prover->plan->copies[holds - tensors].tensor);
}

/* ---- Accesses to a block -----------------------------------------------------------------------
 */

/* Keeps the latest read of each queue; the latest of all stands in the block. */
static inline hr_status add_reader(struct prover *prover, struct block *block) {
        if (HR_LIKELY(block->reader == prover->queue || block->reader == HR_NO_INDEX)) {
                block->reader = prover->queue;
                block->reader_clock = now(prover);
                return HR_OK;
        }
        for (uint32_t r = block->more_readers; r != HR_NO_INDEX; r = prover->readers[r].next) {
                if (prover->readers[r].queue == prover->queue) {
                        prover->readers[r].clock = now(prover);
                        return HR_OK;
                }
        }
        HR_TRY(grow(prover, (void **) &prover->readers, prover->reader_count, 1,
                    &prover->reader_capacity, sizeof *prover->readers));
        prover->readers[prover->reader_count] = (struct reader){
                .queue = prover->queue, .clock = now(prover), .next = block->more_readers};
        block->more_readers = prover->reader_count++;
        return HR_OK;
}

static inline hr_status read_block(struct prover *prover, struct block *block, uint32_t holds) {
        if (!is_after(prover, block->writer, block->writer_clock))
                return missing(prover, "reads", holds, block->writer, "write");
        return add_reader(prover, block);
}

static inline hr_status may_write(struct prover *prover, const struct block *block,
                                  uint32_t holds) {
        if (!is_after(prover, block->writer, block->writer_clock))
                return missing(prover, "writes", holds, block->writer, "write");
        if (!is_after(prover, block->reader, block->reader_clock))
                return missing(prover, "writes", holds, block->reader, "read");
        for (uint32_t r = block->more_readers; r != HR_NO_INDEX; r = prover->readers[r].next) {
                if (!is_after(prover, prover->readers[r].queue, prover->readers[r].clock))
                        return missing(prover, "writes", holds, prover->readers[r].queue, "read");
        }
        return HR_OK;
}

static void note_writer(const struct prover *prover, struct block *block) {
        block->writer = prover->queue;
        block->writer_clock = now(prover);
        block->reader = block->more_readers = HR_NO_INDEX;
}

/* ---- Sections ----------------------------------------------------------------------------------
 */

/* Number of the section of a place that is neither NONE nor HOME. */
static inline uint32_t section_of(const struct prover *prover, const struct hr_place *place) {
        uint32_t kinds = prover->plan->kind_count;

        return place->where == HR_WHERE_SHARED ? place->index
               : place->where == HR_WHERE_SLOT ? kinds + place->index
                                               : 2 * kinds;
}

/* Index of the first stretch that ends after `start`. */
static uint32_t stretch_find(const struct section *section, uint64_t start) {
        uint32_t low = 0, high = section->count;

        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (section->stretches[middle].end <= start)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

static void stretch_open(struct section *section, uint32_t index, struct stretch stretch) {
        memmove(&section->stretches[index + 1], &section->stretches[index],
                (section->count - index) * sizeof stretch);
        section->stretches[index] = stretch;
        ++section->count;
}

/* Replaces what lies in the range of `fresh`, the stretches first .. past - 1, by it. Room for two
 * more must be there. */
static void stretch_replace(struct section *section, uint32_t first, uint32_t past,
                            struct stretch fresh) {
        if (past == first + 1 && section->stretches[first].start == fresh.start &&
            section->stretches[first].end == fresh.end) { /* as large as the one before */
                section->stretches[first].block = fresh.block;
                return;
        }
        if (first < past && section->stretches[first].start < fresh.start) {
                struct stretch tail = section->stretches[first];

                section->stretches[first++].end = fresh.start;
                if (tail.end > fresh.end) { /* cuts one in two */
                        tail.start = fresh.end;
                        stretch_open(section, first, tail);
                        past = first;
                }
        }
        if (first < past && section->stretches[past - 1].end > fresh.end)
                section->stretches[--past].start = fresh.end;
        if (first == past) {
                stretch_open(section, first, fresh);
                return;
        }
        section->stretches[first] = fresh;
        if (past - first == 1)
                return;
        memmove(&section->stretches[first + 1], &section->stretches[past],
                (section->count - past) * sizeof fresh);
        section->count -= past - first - 1;
}

/* A block for what `holds` names, over whatever was there. */
static hr_status fresh_block(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds) {
        uint32_t number = section_of(prover, place), first, past;
        struct section *section = &prover->sections[number];
        struct stretch fresh = {.start = place->offset,
                                .end = place->offset + bytes,
                                .block = ++prover->block_count};
        struct stretch *old;
        struct block *block;

        if (place->offset > section->bytes || bytes > section->bytes - place->offset)
                return wrong(prover, "BOUNDS", "leaves its section of memory", holds);
        HR_TRY(grow(prover, (void **) &section->stretches, section->count, 2, &section->capacity,
                    sizeof *section->stretches));
        first = past = stretch_find(section, fresh.start);
        for (old = section->stretches + first;
             past < section->count && old->start < fresh.end; ++past, ++old) {
                block = &prover->blocks[old->block];
                if (block->constant)
                        return wrong(prover, "HAZARD", "writes over a constant", holds);
                HR_TRY(may_write(prover, block, holds));
                block->dead = true;
        }
        prover->holders[holds].block = fresh.block;
        prover->blocks[fresh.block] = (struct block){
                .start = fresh.start,
                .end = fresh.end,
                .section = number,
                .writer = prover->queue,
                .writer_clock = now(prover),
                .reader = HR_NO_INDEX,
                .more_readers = HR_NO_INDEX,
        };
        stretch_replace(section, first, past, fresh);
        return HR_OK;
}

/* The living block of what `holds` names, which must cover the place. */
static inline hr_status find_block(struct prover *prover, const struct hr_place *place,
                                   uint64_t bytes, uint32_t holds, struct block **ret_block) {
        struct block *block = &prover->blocks[prover->holders[holds].block];

        if (HR_UNLIKELY(block->dead ||
                        block->section != section_of(prover, place) ||
                        place->offset < block->start || place->offset > block->end ||
                        bytes > block->end - place->offset))
                return wrong(prover, "HAZARD", "uses memory that holds something else", holds);
        *ret_block = block;
        return HR_OK;
}

/* ---- Accesses to a place -----------------------------------------------------------------------
 */

/* Does the command's device reach the place with its own hands? */
static inline bool reaches(const struct prover *prover, const struct hr_place *place) {
        const struct hr_plan_input *in = prover->in;

        if (place->where == HR_WHERE_SHARED || place->where == HR_WHERE_SLOT)
                return hr_bit_get(prover->reach, place->index);
        return place->where != HR_WHERE_HOME ||
               hr_bit_get(prover->reach, in->buffers[in->tensor_buffer[place->index]].kind);
}

/* Remembers for the second run that the command touches a buffer or the shared part of a pool. */
static hr_status note_touch(struct prover *prover, const struct hr_place *place, bool write) {
        uint32_t object = place->index, *noted;

        if (place->where == HR_WHERE_HOME)
                object = prover->plan->kind_count + prover->in->tensor_buffer[place->index];
        else if (place->where != HR_WHERE_SHARED)
                return HR_OK;
        noted = &prover->noted[2 * object + write];
        if (*noted == command_index(prover) + 1)
                return HR_OK;
        *noted = command_index(prover) + 1;
        if (place->where == HR_WHERE_SHARED)
                (write ? prover->pool_writes
                       : prover->pool_reads)[(size_t) object * prover->queues + prover->queue] =
                        now(prover);
        HR_TRY(grow(prover, (void **) &prover->touches, prover->touch_count, 1,
                    &prover->touch_capacity, sizeof *prover->touches));
        prover->touches[prover->touch_count++] =
                (struct touch){.command = command_index(prover), .object = object, .write = write};
        return HR_OK;
}

static hr_status access_buffer(struct prover *prover, uint32_t buffer, uint32_t holds, bool write) {
        struct block *block = &prover->buffers[buffer];

        /* What nobody writes can be read at any time. */
        if (block->constant)
                return write ? wrong(prover, "HAZARD", "writes over a constant", holds) : HR_OK;
        if (!write)
                return read_block(prover, block, holds);
        HR_TRY(may_write(prover, block, holds));
        note_writer(prover, block);
        return HR_OK;
}

/* No memory is a fault, except of a node that computes nothing: what it holds is nobody's business.
 */
static hr_status check_nowhere(struct prover *prover, uint32_t holds) {
        const struct hr_plan *plan = prover->plan;

        if (holds >= plan->leaf_count && holds < plan->tensor_count &&
            prover->graph->tensors[holds].op == HR_OP_NONE)
                return HR_OK;
        return wrong(prover, "HAZARD", "uses a tensor that has no memory", holds);
}

/* What is written by WRITE, and weights of experts, come from host memory, whoever owns it. */
static bool is_host_source(const struct prover *prover, uint32_t holds) {
        return prover->command->code == HR_COMMAND_WRITE ||
               (prover->command->code == HR_COMMAND_COPY_EXPERTS &&
                holds == prover->command->from_holds);
}

static inline hr_status check_read(struct prover *prover, const struct hr_place *place,
                                   uint64_t bytes, uint32_t holds) {
        struct block *block = NULL;

        if (bytes == 0)
                return HR_OK;
        if (place->where == HR_WHERE_NONE)
                return check_nowhere(prover, holds);
        if (!reaches(prover, place) && !is_host_source(prover, holds))
                return wrong(prover, "REACH", "reads memory out of its reach", holds);
        if (prover->noted)
                HR_TRY(note_touch(prover, place, false));
        if (place->where == HR_WHERE_HOME)
                return access_buffer(prover, prover->in->tensor_buffer[place->index], holds, false);
        HR_TRY(find_block(prover, place, bytes, holds, &block));
        return read_block(prover, block, holds);
}

/* `whole`: what was there before does not matter, else it must be what `holds` names. */
static hr_status check_write(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds, bool whole) {
        struct block *block = NULL;

        if (bytes == 0)
                return HR_OK;
        if (place->where == HR_WHERE_NONE)
                return check_nowhere(prover, holds);
        /* COPY goes to foreign memory; whether its queue can is asked where the way is chosen. */
        if (prover->command->code != HR_COMMAND_COPY && !reaches(prover, place))
                return wrong(prover, "REACH", "writes memory out of its reach", holds);
        if (prover->noted)
                HR_TRY(note_touch(prover, place, true));
        if (place->where == HR_WHERE_HOME)
                return access_buffer(prover, prover->in->tensor_buffer[place->index], holds, true);
        if (whole)
                return fresh_block(prover, place, bytes, holds);
        HR_TRY(find_block(prover, place, bytes, holds, &block));
        HR_TRY(may_write(prover, block, holds));
        note_writer(prover, block);
        return HR_OK;
}

/* ---- Commands ----------------------------------------------------------------------------------
 */

static inline struct hr_place tensor_place(const struct hr_plan *plan, uint32_t tensor) {
        struct hr_place place = plan->place[plan->root[tensor]];

        place.offset += plan->root_offset[tensor];
        return place;
}

static inline hr_status read_root(struct prover *prover, uint32_t tensor) {
        const struct hr_plan *plan = prover->plan;
        uint32_t root = plan->root[tensor];
        const struct holder *holder = &prover->holders[root];
        struct hr_place place = tensor_place(plan, tensor);

        if (HR_UNLIKELY(holder->landed != holder->meant))
                return wrong(prover, "STALE", "reads before a result has been carried back", root);
        return check_read(prover, &place, plan->span[tensor], root);
}

static hr_status read_copy(struct prover *prover, uint32_t copy) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_copy *c = &plan->copies[copy];
        uint32_t holds = plan->tensor_count + copy;

        if (prover->holders[holds].landed != prover->holders[plan->root[c->tensor]].meant)
                return wrong(prover, "STALE", "uses a copy made before a write", holds);
        if (HR_UNLIKELY(c->method == HR_COPY_EXPERTS) && !prover->filled[copy])
                return wrong(prover, "HAZARD", "uses experts before they are copied",
                             plan->tensor_count + copy);
        return check_read(prover, &c->place, c->bytes, holds);
}

/* A result that a joined pass keeps to itself: it is computed and nobody else can want it. */
static void keep_to_itself(struct prover *prover, uint32_t node) {
        struct holder *holder = &prover->holders[prover->graph->leaf_count + node];

        holder->landed = ++holder->meant;
}

/* The node computes on a copy, which is carried back later. */
static hr_status write_copy(struct prover *prover, uint32_t copy, uint32_t root) {
        const struct hr_plan_copy *c = &prover->plan->copies[copy];
        uint32_t holds = prover->plan->tensor_count + copy;

        if (prover->holders[holds].landed != prover->holders[root].meant)
                return wrong(prover, "STALE", "writes into a copy made before a write", root);
        prover->holders[holds].landed = ++prover->holders[root].meant;
        return check_write(prover, &c->place, c->bytes, holds, false);
}

static inline hr_status write_result(struct prover *prover, uint32_t node, uint32_t id) {
        const struct hr_plan *plan = prover->plan;
        uint32_t root = plan->root[id];
        struct holder *holder = &prover->holders[root];
        struct hr_place place = tensor_place(plan, id);

        if (plan->result_copy && plan->result_copy[node] != HR_NO_COPY)
                return write_copy(prover, plan->result_copy[node], root);
        if (HR_UNLIKELY(holder->landed != holder->meant))
                return wrong(prover, "STALE", "writes before a result has been carried back", root);
        ++holder->meant;
        ++holder->landed;
        return check_write(prover, &place, plan->span[id], root, root == id);
}

/* `inside`: the result of the step before it, which has no memory. */
static hr_status prove_node(struct prover *prover, uint32_t node, uint32_t inside) {
        const struct hr_plan *plan = prover->plan;
        uint32_t id = prover->graph->leaf_count + node;
        const struct hr_tensor *tensor = &prover->graph->tensors[id];
        const uint32_t *sources = prover->graph->sources + tensor->source_first;
        const uint32_t *copies = plan->source_copy + plan->source_start[node];

        for (uint32_t i = 0; i < tensor->source_count; ++i) {
                if (sources[i] == HR_TENSOR_NONE || sources[i] == id || sources[i] == inside)
                        continue;
                if (copies[i] != HR_NO_COPY)
                        HR_TRY(read_copy(prover, copies[i]));
                else
                        HR_TRY(read_root(prover, sources[i]));
        }
        return HR_OK;
}

/* All of a joined pass is read before its result is written. */
static inline hr_status prove_step(struct prover *prover, uint32_t step) {
        const struct hr_plan *plan = prover->plan;
        uint32_t node = plan->steps[step], id = prover->graph->leaf_count + node;
        uint32_t inside = plan->joined && step && plan->joined[step - 1]
                                  ? prover->graph->leaf_count + plan->steps[step - 1]
                                  : HR_TENSOR_NONE;

        HR_TRY(prove_node(prover, node, inside));
        if (!plan->joined || !plan->joined[step])
                return write_result(prover, node, id);
        keep_to_itself(prover, node);
        return HR_OK;
}

/* Splits of view ops only have no command. */
static void skip_empty_splits(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        while (prover->next_split < plan->split_count &&
               plan->splits[prover->next_split].step_count == 0)
                ++prover->next_split;
}

static hr_status prove_compute(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_command *command = prover->command;
        const struct hr_plan_split *split = &plan->splits[command->index];
        uint32_t count = prover->observed ? command->count : split->step_count;

        if (!prover->observed && command->first > 0)
                return HR_OK; /* done with the first range */
        skip_empty_splits(prover);
        if (command->index != prover->next_split || command->first != prover->next_step ||
            count == 0 || count > split->step_count - prover->next_step)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "command %u computes split %u out of order",
                                      command_index(prover), command->index);
        for (uint32_t k = 0; k < count; ++k)
                HR_TRY(prove_step(prover, split->step_first + command->first + k));
        prover->next_step += count;
        if (plan->joined && plan->joined[split->step_first + prover->next_step - 1])
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "command %u ends inside a pass", command_index(prover));
        if (prover->next_step == split->step_count) {
                prover->next_step = 0;
                ++prover->next_split;
        }
        return HR_OK;
}

/* Shows what its node and those before it have made of the tensor. */
static hr_status prove_tap(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_tap *tap = &plan->taps[command->index];
        struct hr_place place = tensor_place(plan, tap->tensor);
        uint32_t root = plan->root[tap->tensor];

        if (!prover->observed)
                return HR_OK;
        if (command->index != prover->next_tap++ || command->bytes != plan->span[tap->tensor] ||
            place.where != command->from.where || place.offset != command->from.offset ||
            prover->holders[root].meant != prover->tap_version[command->index])
                return wrong(prover, "ORDER", "shows a tap too early, too late or from elsewhere",
                             tap->tensor);
        return read_root(prover, tap->tensor);
}

/* The run's bytes arrive in a leaf's own memory, before anything has written there, or in a copy.
 */
static hr_status prove_input(struct prover *prover) {
        const struct hr_command *command = prover->command;
        uint32_t tensors = prover->plan->tensor_count, holds = command->to_holds;
        uint32_t root =
                prover->plan->root[holds < tensors ? holds
                                                   : prover->plan->copies[holds - tensors].tensor];

        if (holds >= tensors)
                prover->holders[holds].landed = 0;
        else if (prover->holders[root].meant != 0)
                return wrong(prover, "STALE", "an input arrives after a write into it", holds);
        if (prover->graph->input_count && prover->graph->inputs[command->index] != root)
                return wrong(prover, "ORDER", "takes the bytes of another input", holds);
        return check_write(prover, &command->to, command->bytes, holds, true);
}

/* Some experts arrive in places that others keep. */
static bool fills_places(const struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        return prover->command->code == HR_COMMAND_COPY_EXPERTS &&
               plan->groups[plan->copies[prover->command->index].group].resident;
}

/* A command that moves bytes: into a copy, out of one back into its root, or through staging. */
static hr_status prove_move(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        uint32_t tensors = plan->tensor_count;
        bool back = command->from_holds >= tensors && command->to_holds < tensors;

        HR_TRY(check_read(prover, &command->from, command->bytes, command->from_holds));
        if (command->from_holds < tensors && command->to_holds >= tensors) {
                uint32_t copy = command->to_holds - tensors;
                struct hr_place source = tensor_place(plan, plan->copies[copy].tensor);

                if (source.where != command->from.where || source.offset != command->from.offset)
                        return wrong(prover, "ORDER", "copies from elsewhere", command->to_holds);
                prover->holders[command->to_holds].landed =
                        prover->holders[command->from_holds].landed;
        }
        if (back && prover->holders[command->from_holds].landed !=
                            ++prover->holders[command->to_holds].landed)
                return wrong(prover, "STALE", "carries back what is not computed",
                             command->to_holds);
        return check_write(prover, &command->to, command->bytes, command->to_holds,
                           !back && !fills_places(prover));
}

/* The first of a group reads the ids; what it decides holds for the others in the same run. */
static hr_status prove_experts(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_plan_copy *copy = &plan->copies[prover->command->index];
        const struct hr_expert_group *group = &plan->groups[copy->group];

        if (copy->member == 0 && group->ids_copy != HR_NO_COPY)
                HR_TRY(read_copy(prover, group->ids_copy));
        else if (copy->member == 0)
                HR_TRY(read_root(prover, group->ids));
        else if (!prover->scanned[copy->group])
                return wrong(prover, "ORDER", "copies experts before their ids are read",
                             prover->command->to_holds);
        prover->scanned[copy->group] = prover->filled[prover->command->index] = true;
        return prove_move(prover);
}

static hr_status prove_read_back(struct prover *prover) {
        const struct hr_command *command = prover->command;
        const struct hr_plan *plan = prover->plan;
        uint32_t tensor = prover->graph->outputs[command->index];
        struct hr_place place = tensor_place(plan, tensor);

        skip_empty_splits(prover);
        if (prover->next_split < plan->split_count || command->bytes != plan->span[tensor] ||
            place.where != command->from.where || place.offset != command->from.offset)
                return wrong(prover, "ORDER", "reads an output too early or from elsewhere",
                             tensor);
        return read_root(prover, tensor);
}

static hr_status prove_access(struct prover *prover) {
        switch (prover->command->code) {
        case HR_COMMAND_INPUT:
                return prove_input(prover);
        case HR_COMMAND_WRITE:
        case HR_COMMAND_READ:
        case HR_COMMAND_COPY:
                return prove_move(prover);
        case HR_COMMAND_COPY_EXPERTS:
                return prove_experts(prover);
        case HR_COMMAND_COMPUTE:
                return prove_compute(prover);
        case HR_COMMAND_TAP:
                return prove_tap(prover);
        case HR_COMMAND_READ_BACK:
                return prove_read_back(prover);
        case HR_COMMAND_WAIT:
        case HR_COMMAND_RECORD:
        case HR_COMMAND_NOTIFY:
                break;
        }
        return HR_OK;
}

/* What the command does to the clocks. True when it touches memory. */
static bool step_clocks(struct prover *prover) {
        uint32_t *own;

        prover->queue = prover->command->device;
        prover->reach = prover->in->reads + (size_t) prover->queue * prover->kind_words;
        own = clock_of(prover, prover->queue);
        ++own[prover->queue];
        switch (prover->command->code) {
        case HR_COMMAND_WAIT:
                merge(prover, own, event_clock(prover, prover->command->index));
                return false;
        case HR_COMMAND_RECORD:
                memcpy(event_clock(prover, prover->command->index), own,
                       prover->queues * sizeof *own);
                return false;
        case HR_COMMAND_NOTIFY:
                merge(prover, prover->done, own);
                return false;
        default:
                prover->last_touch[prover->queue] = own[prover->queue];
                return true;
        }
}

/* ---- Runs --------------------------------------------------------------------------------------
 */

/* Every command that touches memory is over when the run is done. */
static hr_status prove_done(struct prover *prover) {
        for (uint32_t q = 0; q < prover->queues; ++q) {
                if (prover->done[q] < prover->last_touch[q])
                        return hr_fail_reason(
                                prover->diag, HR_E_INTERNAL, "HAZARD",
                                "the run is done before the last command on device %u", q);
        }
        return HR_OK;
}

static hr_status prove_first_run(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                prover->command = &plan->tape.commands[i];
                if (step_clocks(prover))
                        HR_TRY(prove_access(prover));
        }
        skip_empty_splits(prover);
        if (prover->next_split != plan->split_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER",
                                      "split %u is not computed", prover->next_split);
        if (prover->observed && prover->next_tap != plan->tap_count)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "ORDER", "tap %u is not shown",
                                      prover->next_tap);
        return prove_done(prover);
}

/* The pool's shared part belongs to the run before until all that conflicts is over. */
static hr_status prove_pool_touch(struct prover *prover, uint32_t kind, bool write) {
        const uint32_t *known = clock_of(prover, prover->queue);
        const uint32_t *writes = prover->pool_writes + (size_t) kind * prover->queues;
        const uint32_t *reads = prover->pool_reads + (size_t) kind * prover->queues;

        for (uint32_t q = 0; q < prover->plan->device_count; ++q) {
                if (q == prover->queue ||
                    (known[q] >= writes[q] && (!write || known[q] >= reads[q])))
                        continue;
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "command %u on device %u uses memory of kind %u without an "
                                      "edge after device %u in the run before",
                                      command_index(prover), prover->queue, kind, q);
        }
        return HR_OK;
}

static hr_status prove_second_run(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t slot_events = plan->tape.slot_event_count, next = 0;

        /* The other slot's events have not been recorded; those of the lanes have. */
        memset(prover->events, 0, (size_t) slot_events * prover->queues * sizeof(uint32_t));
        memset(prover->done, 0, prover->queues * sizeof(uint32_t));
        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                prover->command = &plan->tape.commands[i];
                (void) step_clocks(prover);
                for (; next < prover->touch_count && prover->touches[next].command == i; ++next) {
                        const struct touch *touch = &prover->touches[next];

                        if (touch->object < plan->kind_count)
                                HR_TRY(prove_pool_touch(prover, touch->object, touch->write));
                        else
                                HR_TRY(access_buffer(prover, touch->object - plan->kind_count, 0,
                                                     touch->write));
                }
        }
        return prove_done(prover);
}

/* The pipeline that uses the states next waits for the ends of the lanes that touch them. */
static hr_status prove_hand_over(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        prover->queue = plan->device_count;
        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                if (plan->state_lane[l])
                        merge(prover, clock_of(prover, prover->queue),
                              event_clock(prover, plan->tape.slot_event_count + l));
        }
        for (uint32_t b = 0; b < prover->in->buffer_count; ++b) {
                if (prover->buffers[b].constant)
                        continue;
                HR_TRY(may_write(prover, &prover->buffers[b], 0));
        }
        return HR_OK;
}

/* ---- Before the first run ----------------------------------------------------------------------
 */

/* Is the copy there before the first run? Places of experts that stay from run to run are: nothing
 * but the command that fills them writes there. */
static bool is_there(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        return copy->method == HR_COPY_CONSTANT ||
               (copy->method == HR_COPY_EXPERTS && plan->groups[copy->group].resident);
}

/* Constants and their copies are there. */
static hr_status write_constants(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        const struct hr_tensor *tensors = prover->graph->tensors;

        for (uint32_t i = 0; i < plan->leaf_count + plan->copy_count; ++i) {
                bool leaf = i < plan->leaf_count;
                uint32_t copy = leaf ? 0 : i - plan->leaf_count;
                uint32_t holds = leaf ? i : plan->tensor_count + copy;
                const struct hr_place *place = leaf ? &plan->place[i] : &plan->copies[copy].place;
                uint64_t bytes = leaf ? plan->span[i] : plan->copies[copy].bytes;

                if (bytes == 0 || place->where != HR_WHERE_SHARED ||
                    (leaf ? tensors[i].leaf_kind != HR_LEAF_CONSTANT
                          : !is_there(plan, &plan->copies[copy])))
                        continue;
                HR_TRY(fresh_block(prover, place, bytes, holds));
                prover->blocks[prover->holders[holds].block].writer = HR_NO_INDEX;
                prover->blocks[prover->holders[holds].block].constant = true;
        }
        return HR_OK;
}

/* Writable buffers come from another pipeline; read-only ones were written before everything. */
static void take_buffers(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t other = plan->device_count;

        for (uint32_t b = 0; b < prover->in->buffer_count; ++b)
                prover->buffers[b] = (struct block){
                        .writer = HR_NO_INDEX,
                        .writer_clock = 1,
                        .reader = HR_NO_INDEX,
                        .more_readers = HR_NO_INDEX,
                        .constant = prover->in->buffers[b].usage == HR_USAGE_WEIGHTS,
                };
        for (uint32_t k = 0; k < plan->step_count; ++k) {
                uint32_t id = plan->leaf_count + plan->steps[k];
                const struct hr_place *place = &plan->place[plan->root[id]];

                if (place->where == HR_WHERE_HOME)
                        prover->buffers[prover->in->tensor_buffer[place->index]].constant = false;
        }
        for (uint32_t b = 0; b < prover->in->buffer_count; ++b) {
                if (!prover->buffers[b].constant)
                        prover->buffers[b].writer = other;
        }
        for (uint32_t l = 0; l < plan->lane_count; ++l) {
                if (plan->state_lane[l] && plan->tape.lane_first[l] != HR_NO_INDEX)
                        clock_of(prover, plan->tape.lane_first[l])[other] = 1;
        }
}

static void size_sections(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;

        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                prover->sections[k].bytes = plan->pools[k].shared_bytes;
                prover->sections[plan->kind_count + k].bytes = plan->pools[k].slot_bytes;
        }
        prover->sections[2 * plan->kind_count].bytes = plan->staging_bytes;
}

static hr_status count_tap_versions(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint32_t *version = take(prover, plan->tensor_count, sizeof *version);
        bool *computes = take(prover, plan->node_count, sizeof *computes);
        uint32_t node = 0;

        prover->tap_version = take(prover, plan->tap_count, sizeof *prover->tap_version);
        if (!version || !computes || !prover->tap_version)
                return out_of_memory(prover);
        for (uint32_t k = 0; k < plan->step_count; ++k)
                computes[plan->steps[k]] = true;
        for (uint32_t i = 0; i < plan->tap_count; ++i) {
                uint32_t tensor = plan->taps[i].tensor;

                for (; plan->leaf_count + node <= tensor; ++node)
                        version[plan->root[plan->leaf_count + node]] += computes[node];
                prover->tap_version[i] = version[plan->root[tensor]];
        }
        return HR_OK;
}

static hr_status prover_init(struct prover *prover) {
        const struct hr_plan *plan = prover->plan;
        uint64_t queues = prover->queues,
                 holders = (uint64_t) plan->tensor_count + plan->copy_count;
        uint64_t events = (uint64_t) plan->tape.slot_event_count + plan->lane_count;

        /* At most one for each constant, node and command. */
        prover->blocks = take_raw(prover, holders + plan->tape.count + 1, sizeof(struct block));
        prover->clocks = take(prover, queues * queues, sizeof(uint32_t));
        prover->events = take(prover, events * queues, sizeof(uint32_t));
        prover->done = take(prover, queues, sizeof(uint32_t));
        prover->last_touch = take(prover, queues, sizeof(uint32_t));
        prover->sections = take(prover, plan->kind_count * UINT64_C(2) + 1, sizeof(struct section));
        prover->holders = take(prover, holders, sizeof(struct holder));
        prover->buffers = take(prover, prover->in->buffer_count, sizeof(struct block));
        prover->scanned = take(prover, plan->group_count, sizeof(bool));
        prover->filled = take(prover, plan->group_count ? plan->copy_count : 0, sizeof(bool));
        if (!prover->blocks || !prover->clocks || !prover->events || !prover->done ||
            !prover->last_touch || !prover->sections || !prover->holders || !prover->buffers ||
            !prover->scanned || !prover->filled)
                return out_of_memory(prover);
        if (plan->n_copies > 1) {
                uint64_t pools = plan->kind_count * queues;

                prover->pool_reads = take(prover, pools, sizeof(uint32_t));
                prover->pool_writes = take(prover, pools, sizeof(uint32_t));
                prover->noted = take(prover, (uint64_t) plan->kind_count + prover->in->buffer_count,
                                     2 * sizeof(uint32_t));
                if (!prover->pool_reads || !prover->pool_writes || !prover->noted)
                        return out_of_memory(prover);
        }
        prover->blocks[0] = (struct block){.dead = true}; /* of whoever has none */
        if (prover->observed)
                HR_TRY(count_tap_versions(prover));
        size_sections(prover);
        take_buffers(prover);
        return write_constants(prover);
}

static hr_status prove(struct prover *prover) {
        HR_TRY(prover_init(prover));
        HR_TRY(prove_first_run(prover));
        if (prover->plan->n_copies > 1)
                HR_TRY(prove_second_run(prover));
        return prove_hand_over(prover);
}

static hr_status prove_runs(const struct hr_plan *plan, const struct hr_plan_input *input,
                            bool observed, struct hr_arena *arena, struct hr_diag *diag) {
        struct prover prover = {
                .arena = arena,
                .plan = plan,
                .in = input,
                .graph = input->graph,
                .diag = diag,
                .queues = plan->device_count + 1,
                .kind_words = hr_bit_words(input->kind_count),
                .observed = observed,
        };

        return prove(&prover);
}

hr_status hr_plan_prove(const struct hr_plan *plan, const struct hr_plan_input *input,
                        struct hr_arena *arena, struct hr_diag *diag) {
        HR_TRY(hr_plan_verify_steps(plan, input, diag));
        HR_TRY(prove_runs(plan, input, false, arena, diag));
        return plan->tap_count ? prove_runs(plan, input, true, arena, diag) : HR_OK;
}

hr_status hr_plan_verify(const struct hr_plan *plan, const struct hr_plan_input *input,
                         struct hr_diag *diag) {
        struct hr_arena arena;
        hr_status status;

        hr_arena_init(&arena, 0);
        status = hr_plan_prove(plan, input, &arena, diag);
        hr_arena_deinit(&arena);
        return status;
}
