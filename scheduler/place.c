/*
 * Where every tensor lies in the compute memory of its kind.
 *
 * One pool per kind: a part shared by all slots, and one section per slot. Work of a lane runs in
 * plan order and a pool belongs to one lane, so lifetimes are counted in plan order: node i happens
 * at time 2i + 1 and the copies into a split at twice its first node. With one slot everything but
 * constants lives from its first to its last use. With several, inputs and copies have places of
 * their own in every slot, which no other tensor ever shares: that is what lets them be filled
 * while an earlier run still computes.
 *
 * Free memory of a pool is a list ordered by offset; the smallest sufficient block is taken (best
 * fit), neighbours unite, and the end of the pool grows only when nothing fits. A block remembers
 * the split that used it last: a copy that arrives from another lane must wait for that split.
 */
#include "scheduler/plan.h"

#include <string.h>

#define FOREVER INT64_MAX
#define NEVER_USED (-1)

struct hole {
        uint64_t offset, bytes;
        int64_t stamp; /* split that used it last, or NEVER_USED */
};

struct pool {
        struct hole *holes;
        uint32_t count, capacity;
        uint64_t end; /* of everything ever allocated */
        uint64_t alignment;
        uint64_t slot_end;
};

/* What becomes of the memory of a root or a copy. */
struct life {
        int64_t last_use;
        uint64_t bytes;       /* held now; 0 = nothing */
        uint32_t first_split; /* in whose prologue a leaf gets its place */
};

struct placer {
        struct hr_planner *planner;
        struct hr_plan *plan;
        struct pool *pools;         /* per kind */
        struct life *lives;         /* per holder */
        uint32_t next_use;   /* of planner->uses: the first that has not had its turn */
        uint32_t next_tap;   /* of planner->tap_uses likewise */
        uint32_t *leaf_next; /* per leaf: next leaf of the same first split */
        uint32_t *leaf_head; /* per split, + 1 for leaves that only outputs need */
};

/* ---- Free lists -------------------------------------------------------------------------------
 */

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

static hr_status pool_take(struct placer *placer, struct pool *pool, uint64_t bytes,
                           uint64_t *ret_offset, int64_t *ret_stamp) {
        uint32_t best = HR_NO_INDEX;
        struct hole *last = pool->count ? &pool->holes[pool->count - 1] : NULL;
        bool tail = last && last->offset + last->bytes == pool->end;
        uint64_t end;

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

static hr_status pool_give(struct placer *placer, struct pool *pool, uint64_t offset,
                           uint64_t bytes, int64_t stamp) {
        uint32_t low = 0, high = pool->count;
        struct hole *before, *after;

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

/* ---- Lifetimes --------------------------------------------------------------------------------
 */

static int64_t node_time(uint32_t node) {
        return 2 * (int64_t) node + 1;
}

/* Uses come in the order of time. A split copies at its start. */
static void use_split(struct placer *placer, uint32_t s, uint32_t *next) {
        struct hr_plan *plan = placer->plan;
        const struct hr_planner *planner = placer->planner;
        const struct hr_plan_split *split = &plan->splits[s];
        uint32_t u = *next;

        for (uint32_t i = 0; i < split->input_count; ++i) {
                const struct hr_plan_copy *copy =
                        &plan->copies[plan->inputs[split->input_first + i]];
                struct life *life = &placer->lives[plan->root[copy->tensor]];

                if (copy->source_device == HR_NO_INDEX)
                        continue;
                life->last_use = 2 * (int64_t) split->start;
                life->first_split = HR_MIN(life->first_split, s);
        }
        for (; u < planner->use_count && planner->uses[u].node < split->end; ++u) {
                const struct hr_plan_use use = planner->uses[u];
                struct life *life = &placer->lives[use.holder];

                life->last_use = node_time(use.node);
                if (use.holder < plan->leaf_count && life->first_split == HR_NO_INDEX)
                        life->first_split = s;
        }
        *next = u;
}

static void use_taps(struct placer *placer) {
        for (uint32_t i = 0; i < placer->plan->tap_count; ++i) {
                struct hr_plan_use use = placer->planner->tap_uses[i];
                struct life *life = &placer->lives[use.holder];

                life->last_use = use.node == HR_NO_INDEX
                                         ? FOREVER
                                         : HR_MAX(life->last_use, node_time(use.node));
                life->first_split = HR_MIN(life->first_split, placer->plan->taps[i].split);
        }
}

/* Which leaves take a place in which split's prologue; leaves that only an output names come last.
 */
static void chain_leaves(struct placer *placer) {
        const struct hr_graph *graph = placer->planner->graph;
        struct hr_plan *plan = placer->plan;

        for (uint32_t i = graph->leaf_count; i-- > 0;) {
                uint32_t split = HR_MIN(placer->lives[i].first_split, plan->split_count);

                if (!placer->planner->direct[i])
                        continue;
                placer->leaf_next[i] = placer->leaf_head[split];
                placer->leaf_head[split] = i;
        }
}

static void find_lifetimes(struct placer *placer) {
        struct hr_plan *plan = placer->plan;
        uint32_t next = 0;

        for (uint32_t i = 0; i < plan->tensor_count + plan->copy_count; ++i)
                placer->lives[i] = (struct life){.last_use = -1, .first_split = HR_NO_INDEX};
        for (uint32_t s = 0; s < plan->split_count; ++s)
                use_split(placer, s, &next);
        use_taps(placer);
        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                if (planner_tensor(placer->planner, i)->flags & HR_TENSOR_OUTPUT)
                        placer->lives[plan->root[i]].last_use = FOREVER;
        }
        chain_leaves(placer);
}

/* ---- Placing ----------------------------------------------------------------------------------
 */

static struct pool *pool_of(struct placer *placer, uint32_t device, uint32_t *ret_kind) {
        *ret_kind = placer->planner->in->devices[device].kind;
        return &placer->pools[*ret_kind];
}

static hr_status aligned(struct placer *placer, const struct pool *pool, uint64_t bytes,
                         uint64_t *ret_bytes) {
        if (!hr_align_up_u64(bytes, pool->alignment, ret_bytes))
                return hr_fail(placer->planner->diag, HR_E_EXHAUSTED, "a tensor of %llu bytes",
                               (unsigned long long) bytes);
        return HR_OK;
}

/* A place in every slot, or, where `once`, a shared one that is never given back. */
static hr_status place_forever(struct placer *placer, uint32_t device, uint64_t bytes, bool once,
                               struct hr_place *ret_place) {
        uint32_t kind;
        struct pool *pool = pool_of(placer, device, &kind);
        int64_t stamp;

        if (bytes == 0)
                return HR_OK;
        HR_TRY(aligned(placer, pool, bytes, &bytes));
        *ret_place =
                (struct hr_place){.where = once ? HR_WHERE_SHARED : HR_WHERE_SLOT, .index = kind};
        if (once)
                return pool_take(placer, pool, bytes, &ret_place->offset, &stamp);
        ret_place->offset = pool->slot_end;
        if (!hr_add_u64(pool->slot_end, bytes, &pool->slot_end))
                return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                               "compute memory does not fit 64 bits");
        return HR_OK;
}

static hr_status place_shared(struct placer *placer, uint32_t device, uint64_t bytes,
                              struct hr_place *ret_place, uint64_t *ret_bytes, int64_t *ret_stamp) {
        uint32_t kind;
        struct pool *pool = pool_of(placer, device, &kind);

        *ret_stamp = NEVER_USED;
        *ret_bytes = 0;
        if (bytes == 0)
                return HR_OK;
        HR_TRY(aligned(placer, pool, bytes, &bytes));
        *ret_place = (struct hr_place){.where = HR_WHERE_SHARED, .index = kind};
        HR_TRY(pool_take(placer, pool, bytes, &ret_place->offset, ret_stamp));
        *ret_bytes = bytes;
        return HR_OK;
}

static hr_status release(struct placer *placer, uint32_t holder, uint32_t split) {
        struct hr_plan *plan = placer->plan;
        const struct hr_place *place = holder < plan->tensor_count
                                               ? &plan->place[holder]
                                               : &plan->copies[holder - plan->tensor_count].place;
        uint64_t held = placer->lives[holder].bytes;

        if (held == 0)
                return HR_OK;
        placer->lives[holder].bytes = 0;
        return pool_give(placer, &placer->pools[place->index], place->offset, held, split);
}

static hr_status place_leaf(struct placer *placer, uint32_t leaf) {
        struct hr_plan *plan = placer->plan;
        uint32_t device = planner_root_device(placer->planner, leaf);
        bool constant = placer->planner->graph->tensors[leaf].leaf_kind == HR_LEAF_CONSTANT;
        int64_t stamp;

        if (constant)
                return HR_OK; /* placed before everything else */
        return place_shared(placer, device, plan->span[leaf], &plan->place[leaf],
                            &placer->lives[leaf].bytes, &stamp);
}

/* Written by a queue of another lane, at a time that the reader's lane does not choose. */
static bool arrives_from_elsewhere(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        return copy->method == HR_COPY_DIRECT &&
               plan->lane[copy->source_device] != plan->lane[copy->device];
}

static hr_status place_copy(struct placer *placer, uint32_t index) {
        struct hr_plan *plan = placer->plan;
        struct hr_plan_copy *copy = &plan->copies[index];
        uint64_t *held = &placer->lives[plan->tensor_count + index].bytes;
        int64_t stamp;

        if (copy->method == HR_COPY_STAGED || copy->back_staged) {
                copy->staging_offset = plan->staging_bytes;
                if (!hr_add_u64(plan->staging_bytes, (copy->bytes + 63) & ~UINT64_C(63),
                                &plan->staging_bytes))
                        return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                                       "staging memory does not fit 64 bits");
        }
        if (copy->method == HR_COPY_CONSTANT)
                return HR_OK;
        if (copy->method == HR_COPY_EXPERTS && plan->groups[copy->group].resident)
                return HR_OK;
        if (plan->n_copies > 1 && arrives_from_elsewhere(plan, copy))
                return place_forever(placer, copy->device, copy->bytes, false, &copy->place);
        HR_TRY(place_shared(placer, copy->device, copy->bytes, &copy->place, held, &stamp));
        copy->ready_after = stamp < 0 ? HR_NO_INDEX : (uint32_t) stamp;
        return HR_OK;
}

static hr_status place_prologue(struct placer *placer, uint32_t s) {
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t leaf = placer->leaf_head[s]; leaf != HR_NO_INDEX;
             leaf = placer->leaf_next[leaf])
                HR_TRY(place_leaf(placer, leaf));
        for (uint32_t i = 0; i < split->input_count; ++i)
                HR_TRY(place_copy(placer, inputs[i]));
        for (uint32_t i = 0; i < split->input_count; ++i) {
                uint32_t root = plan->root[plan->copies[inputs[i]].tensor];

                if (placer->lives[root].last_use == 2 * (int64_t) split->start)
                        HR_TRY(release(placer, root, s));
        }
        return HR_OK;
}

static bool same_layout(const struct hr_tensor *a, const struct hr_tensor *b) {
        uint64_t differences = a->type ^ b->type;

        for (int i = 0; i < HR_DIMS; ++i)
                differences |= (uint64_t) (a->ne[i] ^ b->ne[i]) | (a->nb[i] ^ b->nb[i]);
        return differences == 0;
}

/* How many of its first sources the result of the op may be written over. */
static uint32_t reusable_sources(uint32_t op) {
        const struct hr_op_info *info = hr_op_info(op);

        if (!info || info->kind != HR_OP_KIND_INPLACE)
                return 0;
        return op == HR_OP_ADD || op == HR_OP_SUB || op == HR_OP_MUL || op == HR_OP_DIV ? 2 : 1;
}

/* The nodes that are computed in one pass: first .. last, into plan->steps. */
struct pass {
        uint32_t first, last;
        int64_t time;
};

/* Does another source of the pass read the memory that the result would take? A copy is read
 * through its own tensor only. */
static bool read_otherwise(const struct placer *placer, const struct pass *pass, uint32_t root,
                           uint32_t tensor) {
        for (uint32_t k = pass->first; k <= pass->last; ++k) {
                uint32_t id = placer->plan->leaf_count + placer->plan->steps[k];

                for (uint32_t i = 0; i < planner_tensor(placer->planner, id)->source_count; ++i) {
                        uint32_t source = planner_source(placer->planner, id, i);

                        if (source != HR_TENSOR_NONE && source != tensor &&
                            placer->plan->root[source] == root)
                                return true;
                }
        }
        return false;
}

/* The result of the pass takes over the memory of a source of one of its nodes that dies in it. */
static bool reuse_source(struct placer *placer, const struct pass *pass, uint32_t node,
                         uint32_t id) {
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_tensor *t =
                planner_tensor(placer->planner, plan->leaf_count + node);
        const struct hr_tensor *tensors = placer->planner->graph->tensors;
        const uint32_t *sources = placer->planner->graph->sources + t->source_first;
        const uint32_t *copies = plan->source_copy + plan->source_start[node];
        uint32_t kind = placer->planner->in->devices[plan->device[id]].kind;
        uint32_t candidates = HR_MIN(reusable_sources(t->op), t->source_count);

        for (uint32_t i = 0; i < candidates; ++i) {
                bool copied = copies[i] != HR_NO_COPY;
                uint32_t source = sources[i], root, holder;
                const struct hr_place *place;

                if (source == HR_TENSOR_NONE || source == id)
                        continue;
                root = plan->root[source];
                holder = copied ? plan->tensor_count + copies[i] : root;
                if (placer->lives[holder].bytes == 0 ||
                    placer->lives[holder].last_use != pass->time ||
                    !same_layout(&tensors[id], &tensors[source]))
                        continue;
                place = copied ? &plan->copies[copies[i]].place : &plan->place[root];
                if (!copied && (place->index != kind || plan->root_offset[source] != 0 ||
                                read_otherwise(placer, pass, root, source)))
                        continue;
                plan->place[id] = *place;
                placer->lives[id].bytes = placer->lives[holder].bytes;
                placer->lives[holder].bytes = 0;
                return true;
        }
        return false;
}

/* Nobody needs after the turn of `node` what is used there for the last time. A holder that a node
 * uses twice is listed twice; what is given back is given back once. */
static hr_status release_dead(struct placer *placer, uint32_t s, uint32_t node) {
        const struct hr_plan_use *use = placer->planner->uses + placer->next_use;
        const struct hr_plan_use *end = placer->planner->uses + placer->planner->use_count;

        for (; use < end && use->node <= node; ++use) {
                const struct life *life = &placer->lives[use->holder];

                if (life->bytes && life->last_use == node_time(use->node))
                        HR_TRY(release(placer, use->holder, s));
        }
        placer->next_use = (uint32_t) (use - placer->planner->uses);
        for (; placer->next_tap < placer->plan->tap_count; ++placer->next_tap) {
                const struct hr_plan_use *tap = &placer->planner->tap_uses[placer->next_tap];

                if (tap->node > node)
                        break;
                if (placer->lives[tap->holder].last_use == node_time(tap->node))
                        HR_TRY(release(placer, tap->holder, s));
        }
        return HR_OK;
}

/* Only the result of a pass's last node has memory. */
static hr_status place_pass(struct placer *placer, uint32_t s, uint32_t first, uint32_t last) {
        struct hr_plan *plan = placer->plan;
        const uint32_t *step_time = placer->planner->step_time;
        uint32_t turn = step_time ? step_time[last] : plan->steps[last];
        struct pass pass = {.first = first, .last = last, .time = node_time(turn)};
        uint32_t id = plan->leaf_count + plan->steps[last];
        bool placed = plan->root[id] != id || placer->planner->in->tensor_buffer[id] != HR_NO_BUFFER;
        int64_t stamp;

        for (uint32_t k = last + 1; !placed && k-- > first;)
                placed = reuse_source(placer, &pass, plan->steps[k], id);
        if (!placed)
                HR_TRY(place_shared(placer, (uint32_t) plan->device[id], plan->span[id],
                                    &plan->place[id], &placer->lives[id].bytes, &stamp));
        return release_dead(placer, s, turn);
}

static hr_status place_split(struct placer *placer, uint32_t s) {
        const struct hr_plan *plan = placer->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        uint32_t first = split->step_first;

        HR_TRY(place_prologue(placer, s));
        for (uint32_t k = first; k < split->step_first + split->step_count; ++k) {
                if (plan->joined && plan->joined[k])
                        continue;
                HR_TRY(place_pass(placer, s, first, k));
                first = k + 1;
        }
        return HR_OK;
}

/* What stays from run to run has its place before anything else: experts, and the ids as places,
 * which nothing but the device's queue writes and reads. */
static hr_status place_experts(struct placer *placer) {
        struct hr_plan *plan = placer->plan;

        for (uint32_t g = 0; g < plan->group_count; ++g) {
                struct hr_expert_group *group = &plan->groups[g];
                const struct hr_tensor *ids = &placer->planner->graph->tensors[group->ids];
                uint64_t count, bytes;

                if (group->places == group->experts)
                        continue;
                if (!hr_mul_u64((uint64_t) ids->ne[0], (uint64_t) ids->ne[1], &count) ||
                    !hr_mul_u64(count, sizeof(int32_t), &bytes))
                        return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                                       "compute memory does not fit 64 bits");
                HR_TRY(place_forever(placer, group->device, bytes, true, &group->translated));
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_EXPERTS && plan->groups[copy->group].resident)
                        HR_TRY(place_forever(placer, copy->device, copy->bytes, true,
                                             &copy->place));
        }
        return HR_OK;
}

/* Constants and their copies: written once, before any run, and kept. */
static hr_status place_constants(struct placer *placer) {
        const struct hr_graph *graph = placer->planner->graph;
        struct hr_plan *plan = placer->plan;

        for (uint32_t i = 0; i < graph->leaf_count; ++i) {
                if (planner_tensor(placer->planner, i)->leaf_kind == HR_LEAF_CONSTANT &&
                    placer->planner->direct[i])
                        HR_TRY(place_forever(placer, planner_root_device(placer->planner, i),
                                             plan->span[i], true, &plan->place[i]));
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->method == HR_COPY_CONSTANT)
                        HR_TRY(place_forever(placer, copy->device, copy->bytes, true,
                                             &copy->place));
        }
        return HR_OK;
}

static void place_homes(struct placer *placer) {
        const struct hr_plan_input *in = placer->planner->in;
        struct hr_plan *plan = placer->plan;

        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                bool home = in->tensor_buffer[i] != HR_NO_BUFFER && plan->root[i] == i &&
                            plan->span[i] > 0;

                plan->place[i] = (struct hr_place){.where = home ? HR_WHERE_HOME : HR_WHERE_NONE,
                                                   .index = home ? i : 0};
        }
}

/* The lowest computing device of the kind allocates its memory. */
static uint32_t pool_owner(const struct placer *placer, uint32_t kind) {
        const struct hr_plan_input *in = placer->planner->in;
        uint32_t owner = HR_NO_INDEX;

        for (uint32_t d = in->device_count; d-- > 0;) {
                if (in->devices[d].kind != kind)
                        continue;
                if (owner == HR_NO_INDEX || placer->plan->lane[d] != HR_NO_INDEX ||
                    placer->plan->lane[owner] == HR_NO_INDEX)
                        owner = d;
        }
        return owner;
}

static hr_status finish_pools(struct placer *placer) {
        const struct hr_plan_input *in = placer->planner->in;
        struct hr_plan *plan = placer->plan;

        for (uint32_t k = 0; k < in->kind_count; ++k) {
                struct hr_plan_pool *pool = &plan->pools[k];
                uint64_t total;

                pool->owner = pool_owner(placer, k);
                pool->shared_bytes = placer->pools[k].end;
                pool->slot_bytes = placer->pools[k].slot_end;
                if (pool->owner == HR_NO_INDEX)
                        continue;
                if (!hr_mul_u64(pool->slot_bytes, plan->n_copies, &total) ||
                    !hr_add_u64(total, pool->shared_bytes, &total))
                        return hr_fail(placer->planner->diag, HR_E_EXHAUSTED,
                                       "compute memory does not fit 64 bits");
                plan->compute_bytes[pool->owner] = total;
        }
        return HR_OK;
}

void hr_plan_copies_bytes(const struct hr_plan *plan, uint32_t slots, uint64_t *ret_bytes) {
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                const struct hr_plan_copy *copy = &plan->copies[c];
                const bool slotted = copy->place.where == HR_WHERE_SLOT;
                uint32_t owner;

                if (!slotted && copy->place.where != HR_WHERE_SHARED)
                        continue;
                owner = plan->pools[copy->place.index].owner;
                if (owner != HR_NO_INDEX)
                        ret_bytes[owner] = HR_MIN(plan->compute_bytes[owner],
                                                  ret_bytes[owner] +
                                                          copy->bytes * (slotted ? slots : 1U));
        }
}

static hr_status placer_init(struct placer *placer) {
        struct hr_planner *planner = placer->planner;
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_input *in = planner->in;
        uint64_t count = plan->tensor_count;

        placer->pools = planner_scratch(planner, in->kind_count, sizeof *placer->pools);
        placer->lives = planner_scratch_raw(planner, count + plan->copy_count, sizeof *placer->lives);
        placer->leaf_next = planner_scratch_raw(planner, count, sizeof(uint32_t));
        placer->leaf_head =
                planner_scratch_raw(planner, (uint64_t) plan->split_count + 1, sizeof(uint32_t));
        plan->place = planner_keep_raw(planner, count, sizeof *plan->place);
        plan->pools = planner_keep(planner, in->kind_count, sizeof *plan->pools);
        if (!placer->pools || !placer->lives || !placer->leaf_next ||
            !placer->leaf_head || !plan->place || !plan->pools)
                return planner_out_of_memory(planner);
        memset(placer->leaf_head, 0xff, ((size_t) plan->split_count + 1) * sizeof(uint32_t));
        for (uint32_t k = 0; k < in->kind_count; ++k)
                placer->pools[k].alignment = in->kinds[k].alignment;
        return HR_OK;
}

hr_status hr_plan_place(struct hr_planner *planner) {
        struct hr_plan *plan = planner->plan;
        struct placer placer = {.planner = planner, .plan = plan};

        HR_TRY(hr_experts_size(planner));
        HR_TRY(placer_init(&placer));
        find_lifetimes(&placer);
        place_homes(&placer);
        HR_TRY(place_constants(&placer));
        HR_TRY(place_experts(&placer));
        for (uint32_t k = 0; k < planner->in->kind_count; ++k)
                plan->pools[k].kept_bytes = placer.pools[k].end;
        for (uint32_t s = 0; s < plan->split_count; ++s)
                HR_TRY(place_split(&placer, s));
        for (uint32_t leaf = placer.leaf_head[plan->split_count]; leaf != HR_NO_INDEX;
             leaf = placer.leaf_next[leaf])
                HR_TRY(place_leaf(&placer, leaf));
        planner->leaf_head = placer.leaf_head;
        planner->leaf_next = placer.leaf_next;
        HR_TRY(finish_pools(&placer));
        hr_plan_copies_bytes(placer.plan, placer.plan->n_copies, placer.plan->copies_bytes);
        return HR_OK;
}
