/*
 * Which experts of a mixture a run uses, and which of them have to be copied: what every queue that
 * executes hr_queue_ops.copy_experts decides in the same way. Moving the bytes is the queue's.
 *
 * A command for weight 0 scans first. Then, for its own weight:
 *
 *         struct hr_expert_move move = { 0 };
 *         while (hr_experts_next(cache, weight, &move))
 *                 copy move.bytes from move.from to move.to, then move.zeros zeros
 *         hr_experts_end(cache, weight, &move, tally);
 *
 * hr_experts_end is left out where the bytes may not have been copied. Thread: the queue's.
 */
#pragma once

#include "core/device.h"

/* Neighbours go together, and then have no zeros between them. */
struct hr_expert_move {
        const uint8_t *from;
        uint8_t *to;
        uint64_t bytes;
        uint64_t zeros;  /* to follow them */
        uint32_t next;   /* of the cache's missing experts */
        uint32_t copies; /* moves so far */
};

/* `ids` are host memory, with the cache's extents and strides. `translated` gets them as places,
 * without gaps; NULL exactly where cache->translated is. False: an id is no expert, and the outcome
 * has failed (HR_E_RANGE, reason INDEX_VALUE). */
bool hr_experts_scan(struct hr_expert_cache *cache, const void *ids, int32_t *translated,
                     struct hr_expert_tally *tally, struct hr_outcome *outcome);
/* The next move of that weight; false after the last one. */
bool hr_experts_next(const struct hr_expert_cache *cache, uint32_t weight,
                     struct hr_expert_move *move);
/* All moves of the weight have been made, or will be before whatever follows. */
void hr_experts_end(struct hr_expert_cache *cache, uint32_t weight,
                    const struct hr_expert_move *move, struct hr_expert_tally *tally);
