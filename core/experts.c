/*
 * Experts of a mixture, copied when they are used: the part that queues share.
 *
 * The ids say which experts a run uses. A scan checks them, gives every used expert a place (its
 * own, or that of the expert that was used longest ago) and lists those whose bytes are missing;
 * after it each weight copies the listed ones, neighbours together. Bytes past an expert are zeros,
 * so that a kernel that reads a little further reads something finite, whatever lies behind the
 * expert at home.
 *
 * A run may end between the scan and a weight's copy. Every weight remembers the scan that it has
 * followed; unless all have followed the last one, the next scan trusts no place.
 */
#include "core/experts.h"

#include <inttypes.h>
#include <string.h>

#define NOWHERE UINT32_MAX

static int64_t ids_count(const struct hr_expert_cache *cache) {
        return cache->ne[0] * cache->ne[1];
}

static int32_t id_at(const struct hr_expert_cache *cache, const void *ids, int64_t index) {
        uint64_t offset = (uint64_t) (index % cache->ne[0]) * cache->nb[0] +
                          (uint64_t) (index / cache->ne[0]) * cache->nb[1];
        int32_t id;

        memcpy(&id, (const uint8_t *) ids + offset, sizeof id);
        return id;
}

static bool ids_are_valid(const struct hr_expert_cache *cache, const void *ids,
                          struct hr_outcome *outcome) {
        for (int64_t i = 0; i < ids_count(cache); i++) {
                int32_t id = id_at(cache, ids, i);

                if (id >= 0 && (uint32_t) id < cache->experts)
                        continue;
                (void) hr_outcome_fail(outcome, HR_E_RANGE, "INDEX_VALUE", cache->node,
                                       "expert id %" PRId32 " of %" PRIu32 " experts", id,
                                       cache->experts);
                return false;
        }
        return true;
}

static void forget_all(struct hr_expert_cache *cache) {
        for (uint32_t e = 0; e < cache->experts; e++)
                cache->place_of[e] = NOWHERE;
        for (uint32_t p = 0; p < cache->places; p++)
                cache->expert_at[p] = NOWHERE;
}

/* Is what the directory says still true of every weight? */
static bool places_are_true(struct hr_expert_cache *cache) {
        bool answer = cache->resident && cache->clock > 0;

        for (uint32_t w = 0; w < cache->weight_count; w++) {
                struct hr_expert_weight *weight = &cache->weights[w];
                unsigned changes = atomic_load(&weight->home->changes);

                answer = answer && weight->copied_at == cache->clock && weight->changes == changes;
                weight->changes = changes;
        }
        return answer;
}

/* An empty place, else that of the expert that was used longest ago, of several the lowest. One is
 * free: there are as many as a run can use. */
static uint32_t place_take(const struct hr_expert_cache *cache) {
        uint32_t oldest = NOWHERE;

        for (uint32_t p = 0; p < cache->places; p++) {
                if (cache->expert_at[p] == NOWHERE)
                        return p;
        }
        for (uint32_t e = 0; e < cache->experts; e++) {
                if (cache->place_of[e] != NOWHERE && cache->used_at[e] != cache->clock &&
                    (oldest == NOWHERE || cache->used_at[e] < cache->used_at[oldest]))
                        oldest = e;
        }
        HR_ASSERT(oldest != NOWHERE);
        return cache->place_of[oldest];
}

static void place_give(struct hr_expert_cache *cache, uint32_t expert) {
        uint32_t place = cache->translated ? place_take(cache) : expert;

        if (cache->expert_at[place] != NOWHERE)
                cache->place_of[cache->expert_at[place]] = NOWHERE;
        cache->expert_at[place] = expert;
        cache->place_of[expert] = place;
        cache->missing[cache->missing_count++] = expert;
}

static void scan(struct hr_expert_cache *cache, const void *ids, int32_t *translated,
                 struct hr_expert_tally *tally) {
        uint32_t used = 0;

        if (!places_are_true(cache))
                forget_all(cache);
        cache->clock++;
        cache->missing_count = 0;
        for (int64_t i = 0; i < ids_count(cache); i++)
                cache->used_at[id_at(cache, ids, i)] = cache->clock;
        for (uint32_t e = 0; e < cache->experts; e++) {
                if (cache->used_at[e] != cache->clock)
                        continue;
                used++;
                atomic_fetch_add_explicit(&cache->uses[e], 1, memory_order_relaxed);
                if (cache->usage)
                        atomic_fetch_add_explicit(&cache->usage->runs[e], 1, memory_order_relaxed);
                if (cache->place_of[e] == NOWHERE)
                        place_give(cache, e);
        }
        for (int64_t i = 0; translated && i < ids_count(cache); i++)
                translated[i] = (int32_t) cache->place_of[id_at(cache, ids, i)];
        atomic_fetch_add_explicit(&tally->misses, cache->missing_count, memory_order_relaxed);
        atomic_fetch_add_explicit(&tally->hits, used - cache->missing_count, memory_order_relaxed);
}

bool hr_experts_scan(struct hr_expert_cache *cache, const void *ids, int32_t *translated,
                     struct hr_expert_tally *tally, struct hr_outcome *outcome) {
        HR_ASSERT((translated == NULL) == (cache->translated == NULL));
        if (!ids_are_valid(cache, ids, outcome))
                return false;
        scan(cache, ids, translated, tally);
        return true;
}

/* How many of the missing ones from `first` on lie one behind the other here and there. */
static uint32_t neighbours(const struct hr_expert_cache *cache,
                           const struct hr_expert_weight *weight, uint32_t first) {
        uint32_t expert = cache->missing[first], count = 1;

        if (weight->bytes != weight->from_stride || weight->bytes != weight->to_stride)
                return 1;
        while (first + count < cache->missing_count &&
               cache->missing[first + count] == expert + count &&
               cache->place_of[expert + count] == cache->place_of[expert] + count)
                count++;
        return count;
}

bool hr_experts_next(const struct hr_expert_cache *cache, uint32_t index,
                     struct hr_expert_move *move) {
        const struct hr_expert_weight *weight = &cache->weights[index];
        uint32_t expert, count;

        if (move->next >= cache->missing_count)
                return false;
        expert = cache->missing[move->next];
        count = neighbours(cache, weight, move->next);
        move->from = weight->from + expert * weight->from_stride;
        move->to = weight->to + cache->place_of[expert] * weight->to_stride;
        move->bytes = count * weight->bytes;
        move->zeros = weight->to_stride > weight->bytes ? weight->to_stride - weight->bytes : 0;
        move->next += count;
        move->copies++;
        return true;
}

void hr_experts_end(struct hr_expert_cache *cache, uint32_t index,
                    const struct hr_expert_move *move, struct hr_expert_tally *tally) {
        struct hr_expert_weight *weight = &cache->weights[index];

        weight->copied_at = cache->clock;
        atomic_fetch_add_explicit(&tally->copies, move->copies, memory_order_relaxed);
        atomic_fetch_add_explicit(&tally->bytes, cache->missing_count * weight->bytes,
                                  memory_order_relaxed);
}
