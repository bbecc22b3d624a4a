/*
 * Experts of a mixture, copied when they are used, between memories that the host reaches.
 */
#include "core/experts.h"
#include "core/host.h"

#include <string.h>

void hr_host_experts_copy(struct hr_expert_cache *cache, uint32_t weight, const void *ids,
                          struct hr_expert_tally *tally, struct hr_outcome *outcome) {
        struct hr_expert_move move = {0};

        if (weight == 0 && !hr_experts_scan(cache, ids, cache->translated, tally, outcome))
                return;
        while (hr_experts_next(cache, weight, &move)) {
                memcpy(move.to, move.from, (size_t) move.bytes);
                if (move.zeros)
                        memset(move.to + move.bytes, 0, (size_t) move.zeros);
        }
        hr_experts_end(cache, weight, &move, tally);
}
