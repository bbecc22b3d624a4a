/*
 * How many slots a plan gets when that is left to it.
 *
 * More slots never slow a run down: its commands are ahead of the next run's in every queue. They
 * cost memory, so there are as many as runs can be under way at once, whatever the splits cost.
 *
 * The next run's first split on a lane follows this run's last one there, so all that lies between
 * the first and the last split of a lane, in the order that lanes and copies force, belongs to one
 * run at a time. Two splits of different runs can thus be computed at once only if no lane has both
 * between its first and its last. The longest path of splits, each forced after the one before, of
 * which that holds for every two is the number: there are costs that keep all of them busy with a
 * run each. Along a path it is enough that neighbours fulfil it, because what has begun before a
 * split has begun before all that follow it. Where paths meet, the longer one goes on.
 */
#include "scheduler/plan.h"

#define SLOTS_MOST 16U

struct overlap {
        struct hr_planner *planner;
        uint32_t words;   /* of a set of lanes */
        uint32_t *first;  /* per split, + 1: into from */
        uint32_t *from;   /* splits that it is forced after */
        uint64_t *begun;  /* per split: lanes whose first split is not after it */
        uint64_t *open;   /* per split: lanes whose last split is not before it */
        uint64_t *end;    /* per split: what had begun at the last split counted on its path */
        uint32_t *length; /* ... and how many were counted */
};

static uint64_t *set_of(const struct overlap *overlap, uint64_t *sets, uint32_t split) {
        return sets + (size_t) split * overlap->words;
}

static void set_join(const struct overlap *overlap, uint64_t *set, const uint64_t *more) {
        for (uint32_t w = 0; w < overlap->words; ++w)
                set[w] |= more[w];
}

static bool sets_meet(const struct overlap *overlap, const uint64_t *a, const uint64_t *b) {
        for (uint32_t w = 0; w < overlap->words; ++w) {
                if (a[w] & b[w])
                        return true;
        }
        return false;
}

static uint32_t set_count(const struct overlap *overlap, const uint64_t *set) {
        uint32_t count = 0;

        for (uint32_t w = 0; w < overlap->words; ++w)
                count += (uint32_t) __builtin_popcountll(set[w]);
        return count;
}

/* The edges: a split follows the latest one of its lane and of each lane that copies for it. */
static void find_edges(struct overlap *overlap, uint32_t *latest) {
        const struct hr_plan *plan = overlap->planner->plan;
        uint32_t count = 0;

        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];
                uint32_t lane = plan->lane[split->device];

                overlap->first[s] = count;
                if (lane == HR_NO_INDEX)
                        continue;
                if (latest[lane])
                        overlap->from[count++] = latest[lane] - 1;
                for (uint32_t i = 0; i < split->input_count; ++i) {
                        uint32_t copy = plan->inputs[split->input_first + i];
                        uint32_t source = plan->copies[copy].source_device;

                        if (source != HR_NO_INDEX && latest[plan->lane[source]])
                                overlap->from[count++] = latest[plan->lane[source]] - 1;
                }
                latest[lane] = s + 1;
                if (split->write_back != HR_NO_COPY)
                        latest[plan->lane[plan->copies[split->write_back].home_device]] = s + 1;
        }
        overlap->first[plan->split_count] = count;
}

/* Lanes begun up to each split, and, in the second walk, those not over before it. */
static void find_sets(struct overlap *overlap) {
        const struct hr_plan *plan = overlap->planner->plan;

        for (uint32_t s = 0; s < plan->split_count; ++s) {
                uint32_t lane = plan->lane[plan->splits[s].device];

                if (lane == HR_NO_INDEX)
                        continue;
                hr_bit_set(set_of(overlap, overlap->begun, s), lane);
                hr_bit_set(set_of(overlap, overlap->open, s), lane);
                for (uint32_t e = overlap->first[s]; e < overlap->first[s + 1]; ++e)
                        set_join(overlap, set_of(overlap, overlap->begun, s),
                                 set_of(overlap, overlap->begun, overlap->from[e]));
        }
        for (uint32_t s = plan->split_count; s-- > 0;) {
                for (uint32_t e = overlap->first[s]; e < overlap->first[s + 1]; ++e)
                        set_join(overlap, set_of(overlap, overlap->open, overlap->from[e]),
                                 set_of(overlap, overlap->open, s));
        }
}

/* The best path up to a split, itself included where it may be: a path that the split makes longer
 * goes on before one of that length that it does not. */
static void extend(struct overlap *overlap, uint32_t s) {
        const struct hr_plan *plan = overlap->planner->plan;
        uint64_t *end = set_of(overlap, overlap->end, s);
        const uint64_t *open = set_of(overlap, overlap->open, s), *best = NULL;
        bool counts = plan->splits[s].step_count > 0, adds = counts;

        for (uint32_t e = overlap->first[s]; e < overlap->first[s + 1]; ++e) {
                const uint64_t *at = set_of(overlap, overlap->end, overlap->from[e]);
                bool lengthens = counts && !sets_meet(overlap, at, open);
                uint32_t length = overlap->length[overlap->from[e]] + lengthens;

                if (!best || length > overlap->length[s] ||
                    (length == overlap->length[s] &&
                     set_count(overlap, at) < set_count(overlap, best))) {
                        best = at;
                        overlap->length[s] = length;
                        adds = lengthens;
                }
        }
        if (best)
                set_join(overlap, end, best);
        else
                overlap->length[s] = counts;
        if (adds)
                set_join(overlap, end, set_of(overlap, overlap->begun, s));
}

static hr_status find_longest(struct hr_planner *planner, uint32_t *ret_length) {
        const struct hr_plan *plan = planner->plan;
        uint64_t splits = plan->split_count, sets;
        struct overlap overlap = {.planner = planner, .words = hr_bit_words(plan->lane_count)};
        uint32_t *latest = planner_scratch(planner, plan->lane_count, sizeof *latest);

        if (!hr_mul_u64(splits, overlap.words, &sets))
                return planner_out_of_memory(planner);
        overlap.first = planner_scratch(planner, splits + 1, sizeof *overlap.first);
        overlap.from = planner_scratch(planner, splits + plan->input_count, sizeof *overlap.from);
        overlap.begun = planner_scratch(planner, sets, sizeof *overlap.begun);
        overlap.open = planner_scratch(planner, sets, sizeof *overlap.open);
        overlap.end = planner_scratch(planner, sets, sizeof *overlap.end);
        overlap.length = planner_scratch(planner, splits, sizeof *overlap.length);
        if (!latest || !overlap.first || !overlap.from || !overlap.begun || !overlap.open ||
            !overlap.end || !overlap.length)
                return planner_out_of_memory(planner);
        find_edges(&overlap, latest);
        find_sets(&overlap);
        *ret_length = 1;
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                extend(&overlap, s);
                *ret_length = HR_MAX(*ret_length, overlap.length[s]);
        }
        return HR_OK;
}

hr_status hr_plan_slots(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        uint32_t length = 1, most = plan->options.copies_most;

        most = most ? HR_MIN(most, SLOTS_MOST) : SLOTS_MOST;
        if (plan->options.n_copies != 0) {
                plan->n_copies = plan->options.n_copies;
                plan->copies_reason = "as asked";
                return HR_OK;
        }
        if (plan->lane_count > 1)
                HR_TRY(find_longest(planner, &length));
        plan->n_copies = HR_MIN(length, most);
        if (plan->lane_count < 2)
                plan->copies_reason = "one device, or devices on common memory, compute";
        else if (length < 2)
                plan->copies_reason = "a device that starts a run is needed until it ends";
        else if (length > most)
                plan->copies_reason = "the most that is given without being asked for";
        else
                plan->copies_reason = "so many runs can be under way at once";
        return HR_OK;
}
