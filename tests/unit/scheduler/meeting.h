/*
 * Queues that wait for each other: command n + 1 of one device is held until command n of another
 * is being executed, and the other way round, so that both are certainly under way at the same
 * time, on a machine of any speed. Where the scheduler does not let them overlap, the wait ends
 * after a while and is counted.
 */
#pragma once

#include "tests/unit/scheduler/graphs.h"

/* The commands that meet: computations, copies of experts (of a group's first weight), writes. */
typedef enum meeting_kind { MEET_COMPUTE, MEET_EXPERTS, MEET_WRITE } meeting_kind;

/* Of `runs` runs, the command of run n + 1 on device `early` meets that of run n on device `late`.
 * One such command per run and device. Before the first pipeline is made. */
void rig_meet(struct rig *rig, uint32_t runs, uint32_t early, meeting_kind early_kind,
              uint32_t late, meeting_kind late_kind);
/* The device's computations, from the one numbered `skipped` on, meet one by one the commands of
 * that kind of its upload queue, in the same run. Before the first pipeline is made. */
void rig_meet_uploads(struct rig *rig, uint32_t device, uint32_t skipped, uint32_t meetings,
                      meeting_kind kind);
/* How many did not meet. */
uint32_t rig_missed_meetings(void);
