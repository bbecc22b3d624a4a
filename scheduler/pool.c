/*
 * Free memory of a pool: a list of holes ordered by offset. The smallest sufficient one is taken
 * (best fit), neighbours unite, and the end of the pool grows only when nothing fits. A hole
 * remembers the split that used it last: a copy that arrives from another lane must wait for that
 * split.
 */
#include "scheduler/place_priv.h"

#include <string.h>

static void hole_remove(struct pool *pool, uint32_t index) {
        --pool->count;
        memmove(&pool->holes[index], &pool->holes[index + 1],
                (pool->count - index) * sizeof *pool->holes);
}

static hr_status hole_insert(struct placer *placer, struct pool *pool, uint32_t index,
                             struct hole hole) {
        if (pool->count == pool->capacity) {
                uint32_t wanted = pool->capacity ? pool->capacity * 2 : 64;
                struct hole *larger = planner_scratch(placer->planner, wanted, sizeof *larger);

                if (!larger)
                        return planner_out_of_memory(placer->planner);
                if (pool->count)
                        memcpy(larger, pool->holes, pool->count * sizeof *larger);
                pool->holes = larger;
                pool->capacity = wanted;
        }
        memmove(&pool->holes[index + 1], &pool->holes[index],
                (pool->count - index) * sizeof *pool->holes);
        pool->holes[index] = hole;
        ++pool->count;
        return HR_OK;
}

hr_status hr_pool_take(struct placer *placer, struct pool *pool, uint64_t bytes,
                       uint64_t *ret_offset, int64_t *ret_stamp) {
        uint32_t best = HR_NO_INDEX;
        struct hole *last = pool->count ? &pool->holes[pool->count - 1] : NULL;
        bool tail = last && last->offset + last->bytes == pool->end;
        uint64_t end;

        pool->held += bytes;
        pool->peak = HR_MAX(pool->peak, pool->held);
        for (uint32_t i = 0; i < pool->count - tail; ++i) {
                if (pool->holes[i].bytes >= bytes &&
                    (best == HR_NO_INDEX || pool->holes[i].bytes < pool->holes[best].bytes))
                        best = i;
        }
        /* The hole at the end is the one that can grow: it is taken last. */
        if (best == HR_NO_INDEX && tail && last->bytes >= bytes)
                best = pool->count - 1;
        if (best != HR_NO_INDEX) {
                struct hole *hole = &pool->holes[best];

                *ret_offset = hole->offset;
                *ret_stamp = hole->stamp;
                hole->offset += bytes;
                hole->bytes -= bytes;
                if (hole->bytes == 0)
                        hole_remove(pool, best);
                return HR_OK;
        }
        *ret_offset = pool->end;
        *ret_stamp = NEVER_USED;
        if (tail) {
                *ret_offset = last->offset;
                *ret_stamp = last->stamp;
                --pool->count;
        }
        if (!hr_add_u64(*ret_offset, bytes, &end))
                return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                               "compute memory does not fit 64 bits");
        pool->end = end;
        return HR_OK;
}

hr_status hr_pool_give(struct placer *placer, struct pool *pool, uint64_t offset, uint64_t bytes,
                       int64_t stamp) {
        uint32_t low = 0, high = pool->count;
        struct hole *before, *after;

        pool->held -= bytes;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (pool->holes[middle].offset < offset)
                        low = middle + 1;
                else
                        high = middle;
        }
        before = low > 0 ? &pool->holes[low - 1] : NULL;
        after = low < pool->count ? &pool->holes[low] : NULL;
        if (after && after->offset != offset + bytes)
                after = NULL;
        if (before && before->offset + before->bytes == offset) {
                before->bytes += bytes;
                before->stamp = HR_MAX(before->stamp, stamp);
                if (after) {
                        before->bytes += after->bytes;
                        before->stamp = HR_MAX(before->stamp, after->stamp);
                        hole_remove(pool, low);
                }
                return HR_OK;
        }
        if (after) {
                after->offset = offset;
                after->bytes += bytes;
                after->stamp = HR_MAX(after->stamp, stamp);
                return HR_OK;
        }
        return hole_insert(placer, pool, low,
                           (struct hole){.offset = offset, .bytes = bytes, .stamp = stamp});
}
