/*
 * Accesses to memory: to blocks, to sections of blocks, to places.
 */
#include "scheduler/verify_priv.h"

#include <stdio.h>
#include <string.h>

hr_status prover_grow(struct prover *prover, void **array, uint32_t count, uint32_t *capacity,
                      size_t bytes) {
        uint32_t wanted = *capacity ? *capacity * 2 : 64;
        void *larger;

        larger = prover_take_raw(prover, wanted, bytes);
        if (!larger)
                return prover_out_of_memory(prover);
        if (count)
                memcpy(larger, *array, count * bytes);
        *array = larger;
        *capacity = wanted;
        return HR_OK;
}

const char *prover_queue_words(const struct prover *prover, uint32_t queue, char *buffer,
                               size_t buffer_bytes) {
        uint32_t devices = prover->plan->device_count;

        (void) snprintf(buffer, buffer_bytes, "%sdevice %u",
                        queue < devices ? "" : "upload queue of ", queue % devices);
        return buffer;
}

hr_status prover_missing(struct prover *prover, const char *what, uint32_t holds, uint32_t earlier,
                         const char *how) {
        uint32_t tensors = prover->plan->tensor_count;
        uint32_t tensor = holds < tensors ? holds : prover->plan->copies[holds - tensors].tensor;
        char late[48], early[48];

        if (prover->queue == prover->other)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "no event at the end of a lane covers the %s of a state by "
                                      "%s",
                                      how,
                                      prover_queue_words(prover, earlier, early, sizeof early));
        prover_queue_words(prover, prover->queue, late, sizeof late);
        if (earlier == prover->other)
                return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                                      "command %u on %s %s tensor %u without an edge after "
                                      "the pipeline that used the state before",
                                      command_index(prover), late, what, tensor);
        return hr_fail_reason(prover->diag, HR_E_INTERNAL, "HAZARD",
                              "command %u on %s %s tensor %u without an edge after the %s by %s",
                              command_index(prover), late, what, tensor, how,
                              prover_queue_words(prover, earlier, early, sizeof early));
}

hr_status prover_wrong(struct prover *prover, const char *reason, const char *what,
                       uint32_t holds) {
        uint32_t tensors = prover->plan->tensor_count;
        char words[48];

        return hr_fail_reason(prover->diag, HR_E_INTERNAL, reason,
                              "command %u on %s: %s (tensor %u)", command_index(prover),
                              prover_queue_words(prover, prover->queue, words, sizeof words), what,
                              holds < tensors ? holds
                                              : prover->plan->copies[holds - tensors].tensor);
}

/* ---- Accesses to a block ---------------------------------------------------------------------
 */

/* Keeps the latest read of each queue; the latest of all stands in the block. */
static inline hr_status add_reader(struct prover *prover, struct block *block) {
        if (HR_LIKELY(block->reader == prover->queue || block->reader == HR_NO_INDEX)) {
                block->reader = prover->queue;
                block->reader_clock = prover->now;
                return HR_OK;
        }
        for (uint32_t r = block->more_readers; r != HR_NO_INDEX; r = prover->readers[r].next) {
                if (prover->readers[r].queue == prover->queue) {
                        prover->readers[r].clock = prover->now;
                        return HR_OK;
                }
        }
        if (prover->reader_count == prover->reader_capacity)
                HR_TRY(prover_grow(prover, (void **) &prover->readers, prover->reader_count,
                                   &prover->reader_capacity, sizeof *prover->readers));
        prover->readers[prover->reader_count] = (struct reader){
                .queue = prover->queue, .clock = prover->now, .next = block->more_readers};
        block->more_readers = prover->reader_count++;
        return HR_OK;
}

static inline hr_status read_block(struct prover *prover, struct block *block, uint32_t holds) {
        if (!is_after(prover, block->writer, block->writer_clock))
                return prover_missing(prover, "reads", holds, block->writer, "write");
        return add_reader(prover, block);
}

static inline hr_status may_write(struct prover *prover, const struct block *block,
                                  uint32_t holds) {
        if (!is_after(prover, block->writer, block->writer_clock))
                return prover_missing(prover, "writes", holds, block->writer, "write");
        if (!is_after(prover, block->reader, block->reader_clock))
                return prover_missing(prover, "writes", holds, block->reader, "read");
        for (uint32_t r = block->more_readers; r != HR_NO_INDEX; r = prover->readers[r].next) {
                if (!is_after(prover, prover->readers[r].queue, prover->readers[r].clock))
                        return prover_missing(prover, "writes", holds, prover->readers[r].queue,
                                              "read");
        }
        return HR_OK;
}

hr_status prover_may_write(struct prover *prover, const struct block *block, uint32_t holds) {
        return may_write(prover, block, holds);
}

static void note_writer(const struct prover *prover, struct block *block) {
        block->writer = prover->queue;
        block->writer_clock = prover->now;
        block->reader = block->more_readers = HR_NO_INDEX;
}

/* ---- Sections --------------------------------------------------------------------------------
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
hr_status prover_fresh_block(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds) {
        uint32_t number = section_of(prover, place), first, past;
        struct section *section = &prover->sections[number];
        struct stretch fresh = {.start = place->offset,
                                .end = place->offset + bytes,
                                .block = ++prover->block_count};
        struct stretch *old;
        struct block *block;

        if (place->offset > section->bytes || bytes > section->bytes - place->offset)
                return prover_wrong(prover, "BOUNDS", "leaves its section of memory", holds);
        if (HR_UNLIKELY(section->count + 2 > section->capacity))
                HR_TRY(prover_grow(prover, (void **) &section->stretches, section->count,
                                   &section->capacity, sizeof *section->stretches));
        first = past = stretch_find(section, fresh.start);
        for (old = section->stretches + first; past < section->count && old->start < fresh.end;
             ++past, ++old) {
                block = &prover->blocks[old->block];
                if (block->constant)
                        return prover_wrong(prover, "HAZARD", "writes over a constant", holds);
                HR_TRY(may_write(prover, block, holds));
                block->dead = true;
        }
        prover->holders[holds].block = fresh.block;
        prover->blocks[fresh.block] = (struct block){
                .start = fresh.start,
                .end = fresh.end,
                .section = number,
                .writer = prover->queue,
                .writer_clock = prover->now,
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

        if (HR_UNLIKELY(block->dead || block->section != section_of(prover, place) ||
                        place->offset < block->start || place->offset > block->end ||
                        bytes > block->end - place->offset))
                return prover_wrong(prover, "HAZARD", "uses memory that holds something else",
                                    holds);
        *ret_block = block;
        return HR_OK;
}

/* ---- Accesses to a place ---------------------------------------------------------------------
 */

/* Memory that passes is the run's behind a gate; what is left of it is said to the next pipeline.
 */
static inline hr_status touch_passing(struct prover *prover, const struct hr_place *place,
                                      uint32_t holds) {
        uint32_t *touched;

        if (!hr_plan_passes(prover->plan, place))
                return HR_OK;
        touched = &prover->passing_touch[(size_t) place->index * prover->queues + prover->queue];
        if (*touched == prover->now) /* by the same command: it is behind its gate */
                return HR_OK;
        if (HR_UNLIKELY(!hr_bit_get(prover_gates(prover, prover->queue), place->index)))
                return prover_wrong(prover, "GATE",
                                    "uses memory before the pipeline that had it last is over",
                                    holds);
        *touched = prover->now;
        return HR_OK;
}

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
                        prover->now;
        if (prover->touch_count == prover->touch_capacity)
                HR_TRY(prover_grow(prover, (void **) &prover->touches, prover->touch_count,
                                   &prover->touch_capacity, sizeof *prover->touches));
        prover->touches[prover->touch_count++] =
                (struct touch){.command = command_index(prover), .object = object, .write = write};
        return HR_OK;
}

hr_status prover_access_buffer(struct prover *prover, uint32_t buffer, uint32_t holds, bool write) {
        struct block *block = &prover->buffers[buffer];

        /* What nobody writes can be read at any time. */
        if (block->constant)
                return write ? prover_wrong(prover, "HAZARD", "writes over a constant", holds)
                             : HR_OK;
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
        return prover_wrong(prover, "HAZARD", "uses a tensor that has no memory", holds);
}

/* What is written by WRITE, and weights of experts, come from host memory, whoever owns it. */
static bool is_host_source(const struct prover *prover, uint32_t holds) {
        return prover->command->code == HR_COMMAND_WRITE ||
               (prover->command->code == HR_COMMAND_COPY_EXPERTS &&
                holds == prover->command->from_holds);
}

/* What is asked of a command that touches the place, besides order. */
static hr_status settle(struct prover *prover, const struct hr_place *place, uint32_t holds,
                        bool write) {
        const bool reached = reaches(prover, place);

        /* COPY goes to foreign memory; whether its queue can is asked where the way is chosen. */
        if (!reached &&
            !(write ? prover->command->code == HR_COMMAND_COPY : is_host_source(prover, holds)))
                return prover_wrong(prover, "REACH",
                                    write ? "writes memory out of its reach"
                                          : "reads memory out of its reach",
                                    holds);
        HR_TRY(touch_passing(prover, place, holds));
        if (prover->noted)
                HR_TRY(note_touch(prover, place, write));
        if (reached && hr_plan_passes(prover->plan, place))
                prover->settled[2 * place->index + write] = prover->turn;
        return HR_OK;
}

hr_status prover_check_read(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                            uint32_t holds) {
        struct block *block = NULL;

        if (bytes == 0)
                return HR_OK;
        if (!prover_is_settled(prover, place, false)) {
                if (place->where == HR_WHERE_NONE)
                        return check_nowhere(prover, holds);
                HR_TRY(settle(prover, place, holds, false));
                if (place->where == HR_WHERE_HOME)
                        return prover_access_buffer(
                                prover, prover->in->tensor_buffer[place->index], holds, false);
        }
        HR_TRY(find_block(prover, place, bytes, holds, &block));
        return read_block(prover, block, holds);
}

/* `whole`: what was there before does not matter, else it must be what `holds` names. */
hr_status prover_check_write(struct prover *prover, const struct hr_place *place, uint64_t bytes,
                             uint32_t holds, bool whole) {
        struct block *block = NULL;

        if (bytes == 0)
                return HR_OK;
        if (!prover_is_settled(prover, place, true)) {
                if (place->where == HR_WHERE_NONE)
                        return check_nowhere(prover, holds);
                HR_TRY(settle(prover, place, holds, true));
                if (place->where == HR_WHERE_HOME)
                        return prover_access_buffer(
                                prover, prover->in->tensor_buffer[place->index], holds, true);
        }
        if (whole)
                return prover_fresh_block(prover, place, bytes, holds);
        HR_TRY(find_block(prover, place, bytes, holds, &block));
        HR_TRY(may_write(prover, block, holds));
        note_writer(prover, block);
        return HR_OK;
}
