/*
 * What the files of the tape share: tape.c (splits in order), tape_copies.c (what arrives in and
 * leaves a split), tape_writer.c (commands, queues, events).
 */
#pragma once

#include "scheduler/plan.h"

struct wanted_event {
        uint32_t lane, event, next;
};

/* How far a device's upload queue is. */
struct upload_end {
        uint32_t seen;  /* the splits before it are over for the queue, as far as memory is meant */
        uint32_t event; /* that it recorded last; HR_NO_INDEX: none */
        bool is_open;   /* it has had commands since */
};

struct writer {
        struct hr_planner *planner;
        struct hr_plan *plan;
        struct hr_command *commands;
        uint32_t count, capacity;
        uint32_t event_count, next_tap;
        uint32_t *current;     /* per lane: device that runs it now */
        uint32_t *wanted_head; /* per split: events to record at its end */
        struct wanted_event *wanted;
        uint32_t wanted_count;
        bool *is_pending; /* per lane: it copied for the current split */
        /* With one slot: what each lane knows to be over of each other, to leave out waits whose
         * order is there already. NULL with several slots, where no such wait arises. */
        uint32_t *known; /* lanes x lanes, in commands that touch memory */
        uint32_t **
                snapshots; /* per event: what its lane knew when it was recorded, itself included */
        uint32_t snapshot_capacity;
        struct upload_end *upload_ends; /* per device; NULL where no copy is an upload */
};

/* The number of a lane's end is known only when all slot events are; until then it is counted from
 * the top. */
static inline uint32_t hr_tape_lane_end(uint32_t lane) {
        return UINT32_MAX - 1 - lane;
}

/* ---- Commands --------------------------------------------------------------------------------
 */

hr_status hr_tape_writer_init(struct writer *writer);
hr_status hr_tape_emit(struct writer *writer, struct hr_command command);
hr_status hr_tape_emit_event(struct writer *writer, hr_command_code code, uint32_t device,
                             uint32_t event);
hr_status hr_tape_record(struct writer *writer, uint32_t device, uint32_t event);
/* Waits for an event of another lane unless the lane is known to be past it. */
hr_status hr_tape_wait(struct writer *writer, uint32_t device, uint32_t event, uint32_t event_lane);
/* The next command of the device's lane goes to the device's queue. */
hr_status hr_tape_go_to(struct writer *writer, uint32_t device);
/* Numbers the events that somebody waits for, and the ends of the lanes after them; drops the rest.
 */
hr_status hr_tape_keep_commands(struct writer *writer);

/* ---- Copies ----------------------------------------------------------------------------------
 */

/* The event that the split's end records for a lane, or HR_NO_INDEX. */
uint32_t hr_tape_wanted_event(const struct writer *writer, uint32_t split, uint32_t lane);
/* Which splits have to record an event for copies that arrive later in memory they used. */
void hr_tape_find_wanted_events(struct writer *writer);
/* Inputs of the run that the split is the first to use. */
hr_status hr_tape_leaves(struct writer *writer, uint32_t split);
/* What the reader's own queue writes: run inputs first, they are the client's. */
hr_status hr_tape_own_writes(struct writer *writer, const struct hr_plan_split *split);
/* Copies by other queues, then the reader's waits for them, then the second half of staged ones. */
hr_status hr_tape_copies(struct writer *writer, const struct hr_plan_split *split);
/* The used experts, once the ids are where the device reads them. */
hr_status hr_tape_experts(struct writer *writer, const struct hr_plan_split *split);
hr_status hr_tape_write_back(struct writer *writer, uint32_t index);

/* ---- Upload queues ---------------------------------------------------------------------------
 */

hr_status hr_tape_init_uploads(struct writer *writer);
/* What upload queues bring for the split, and its queue's wait for it. After all other copies. */
hr_status hr_tape_uploads(struct writer *writer, const struct hr_plan_split *split);
/* The upload queues' part of the run's end. */
hr_status hr_tape_end_uploads(struct writer *writer);
