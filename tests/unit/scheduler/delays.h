/*
 * Random delays in the queues of a rig: before any command the queue may sleep, so that whatever is
 * ordered by luck only has a chance to show.
 */
#pragma once

#include "tests/unit/scheduler/graphs.h"

struct dice {
        uint64_t state;
};

void dice_init(struct dice *dice, uint64_t seed);
uint32_t dice_roll(struct dice *dice, uint32_t sides);

/* Every queue of the rig sleeps up to us_most before one command in `one_in`; copies, waits and
 * records included. To be called before the first pipeline is made. */
void rig_delay(struct rig *rig, uint64_t seed, uint32_t us_most, uint32_t one_in);
