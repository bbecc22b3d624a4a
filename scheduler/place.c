/*
 * Where every tensor lies in the compute memory of its kind.
 *
 * One pool per kind: a part shared by all slots, and one section per slot. Work of a lane runs in
 * plan order and a pool belongs to one lane, so lifetimes are counted in plan order: node i happens
 * at time 2i + 1 and the copies into a split at twice its first node. With one slot everything but
 * constants lives from its first to its last use. With several, inputs and copies have places of
 * their own in every slot, which no other tensor ever shares: that is what lets them be filled
 * while an earlier run still computes.
 */
#include "scheduler/place_priv.h"

#include <string.h>

static hr_status place_shared(struct placer *placer, uint32_t device, uint64_t bytes,
                              struct hr_place *ret_place, struct life *life, int64_t *ret_stamp) {
        uint32_t kind;
        struct pool *pool = pool_of(placer, device, &kind);

        *ret_stamp = NEVER_USED;
        life->bytes = 0;
        if (bytes == 0)
                return HR_OK;
        HR_TRY(aligned(placer, pool, bytes, &bytes));
        *ret_place = (struct hr_place){.where = HR_WHERE_SHARED, .index = kind};
        HR_TRY(hr_pool_take(placer, pool, bytes, &ret_place->offset, ret_stamp));
        life->bytes = bytes;
        if (HR_UNLIKELY(placer->blocks))
                life->block = place_begin(placer, kind, ret_place->offset, bytes, false);
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
        if (HR_UNLIKELY(placer->blocks))
                place_end(placer, placer->lives[holder].block, split);
        return hr_pool_give(placer, &placer->pools[place->index], place->offset, held, split);
}

static hr_status place_leaf(struct placer *placer, uint32_t leaf) {
        struct hr_plan *plan = placer->plan;
        uint32_t device = planner_root_device(placer->planner, leaf);
        bool constant = placer->planner->graph->tensors[leaf].leaf_kind == HR_LEAF_CONSTANT;
        int64_t stamp;

        if (constant)
                return HR_OK; /* placed before everything else */
        return place_shared(placer, device, plan->span[leaf], &plan->place[leaf],
                            &placer->lives[leaf], &stamp);
}

/* Written by a queue of another lane, at a time that the reader's lane does not choose. */
static bool arrives_from_elsewhere(const struct hr_plan *plan, const struct hr_plan_copy *copy) {
        return copy->method == HR_COPY_DIRECT &&
               plan->lane[copy->source_device] != plan->lane[copy->device];
}

static hr_status place_copy(struct placer *placer, uint32_t index) {
        struct hr_plan *plan = placer->plan;
        struct hr_plan_copy *copy = &plan->copies[index];
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
                return hr_place_forever(placer, copy->device, copy->bytes, false, &copy->place);
        HR_TRY(place_shared(placer, copy->device, copy->bytes, &copy->place,
                            &placer->lives[plan->tensor_count + index], &stamp));
        copy->ready_after = stamp < 0 ? HR_NO_INDEX : (uint32_t) stamp;
        return HR_OK;
}

/* Which copies take their memory in which split's prologue although they are not its own. */
static hr_status chain_early_copies(struct placer *placer) {
        struct hr_plan *plan = placer->plan;
        bool any = false;

        for (uint32_t c = 0; c < plan->copy_count && !any; ++c)
                any = plan->copies[c].placed_at != plan->copies[c].split;
        if (!any)
                return HR_OK;
        placer->early_next = planner_scratch(placer->planner, plan->copy_count, sizeof(uint32_t));
        placer->early_head = planner_scratch(placer->planner, plan->split_count, sizeof(uint32_t));
        if (!placer->early_next || !placer->early_head)
                return planner_out_of_memory(placer->planner);
        memset(placer->early_head, 0xff, plan->split_count * sizeof(uint32_t));
        for (uint32_t c = plan->copy_count; c-- > 0;) {
                const struct hr_plan_copy *copy = &plan->copies[c];

                if (copy->placed_at == copy->split)
                        continue;
                placer->early_next[c] = placer->early_head[copy->placed_at];
                placer->early_head[copy->placed_at] = c;
        }
        return HR_OK;
}

static hr_status place_copies(struct placer *placer, uint32_t s) {
        const struct hr_plan *plan = placer->plan;
        const struct hr_plan_split *split = &plan->splits[s];

        for (uint32_t i = 0; i < split->input_count; ++i) {
                uint32_t copy = plan->inputs[split->input_first + i];

                if (plan->copies[copy].placed_at == s)
                        HR_TRY(place_copy(placer, copy));
        }
        for (uint32_t copy = placer->early_head ? placer->early_head[s] : HR_NO_INDEX;
             copy != HR_NO_INDEX; copy = placer->early_next[copy])
                HR_TRY(place_copy(placer, copy));
        return HR_OK;
}

static hr_status place_prologue(struct placer *placer, uint32_t s) {
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_split *split = &plan->splits[s];
        const uint32_t *inputs = plan->inputs + split->input_first;

        for (uint32_t leaf = placer->leaf_head[s]; leaf != HR_NO_INDEX;
             leaf = placer->leaf_next[leaf])
                HR_TRY(place_leaf(placer, leaf));
        HR_TRY(place_copies(placer, s));
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
        const struct hr_plan_tensor *t = planner_tensor(placer->planner, plan->leaf_count + node);
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
                placer->lives[id].block = placer->lives[holder].block;
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
        bool placed =
                plan->root[id] != id || placer->planner->in->tensor_buffer[id] != HR_NO_BUFFER;
        int64_t stamp;

        for (uint32_t k = last + 1; !placed && k-- > first;)
                placed = reuse_source(placer, &pass, plan->steps[k], id);
        if (!placed)
                HR_TRY(place_shared(placer, (uint32_t) plan->device[id], plan->span[id],
                                    &plan->place[id], &placer->lives[id], &stamp));
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

/* ---- The result ------------------------------------------------------------------------------
 */

/* The lowest computing device of the kind allocates its memory; where none computes, the last. */
static uint32_t pool_owner(const struct placer *placer, uint32_t kind) {
        const struct hr_plan_input *in = placer->planner->in;
        uint32_t owner = HR_NO_INDEX;

        for (uint32_t d = in->device_count; d-- > 0;) {
                if (in->devices[d].kind != kind)
                        continue;
                if (owner == HR_NO_INDEX || placer->plan->lane[d] != HR_NO_INDEX)
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
                        ret_bytes[owner] =
                                HR_MIN(plan->compute_bytes[owner],
                                       ret_bytes[owner] + copy->bytes * (slotted ? slots : 1U));
        }
}

static hr_status placer_init(struct placer *placer) {
        struct hr_planner *planner = placer->planner;
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_input *in = planner->in;
        uint64_t count = plan->tensor_count;

        placer->pools = planner_scratch(planner, in->kind_count, sizeof *placer->pools);
        placer->lives =
                planner_scratch_raw(planner, count + plan->copy_count, sizeof *placer->lives);
        placer->leaf_next = planner_scratch_raw(planner, count, sizeof(uint32_t));
        placer->leaf_head =
                planner_scratch_raw(planner, (uint64_t) plan->split_count + 1, sizeof(uint32_t));
        plan->place = planner_keep_raw(planner, count, sizeof *plan->place);
        plan->pools = planner_keep(planner, in->kind_count, sizeof *plan->pools);
        if (!placer->pools || !placer->lives || !placer->leaf_next || !placer->leaf_head ||
            !plan->place || !plan->pools)
                return planner_out_of_memory(planner);
        return HR_OK;
}

/* From the start, whatever has been placed before. */
static hr_status place_all(struct placer *placer) {
        struct hr_plan *plan = placer->plan;
        const struct hr_plan_input *in = placer->planner->in;

        placer->next_use = placer->next_tap = 0;
        memset(placer->leaf_head, 0xff, ((size_t) plan->split_count + 1) * sizeof(uint32_t));
        for (uint32_t k = 0; k < in->kind_count; ++k)
                placer->pools[k] = (struct pool){.alignment = in->kinds[k].alignment};
        hr_place_lives(placer);
        hr_place_homes(placer);
        HR_TRY(hr_place_constants(placer));
        HR_TRY(hr_place_experts(placer));
        HR_TRY(chain_early_copies(placer));
        for (uint32_t k = 0; k < in->kind_count; ++k)
                plan->pools[k].kept_bytes = placer->pools[k].end;
        for (uint32_t s = 0; s < plan->split_count; ++s)
                HR_TRY(place_split(placer, s));
        for (uint32_t leaf = placer->leaf_head[plan->split_count]; leaf != HR_NO_INDEX;
             leaf = placer->leaf_next[leaf])
                HR_TRY(place_leaf(placer, leaf));
        return HR_OK;
}

/* Most graphs leave few holes. Where one does, all is placed once more with blocks noted. */
static hr_status pack_holes(struct placer *placer) {
        const struct hr_plan *plan = placer->plan;
        const uint64_t most = (uint64_t) plan->tensor_count + plan->copy_count + plan->group_count;

        if (!hr_place_has_holes(placer))
                return HR_OK;
        placer->blocks = planner_scratch_raw(placer->planner, most, sizeof *placer->blocks);
        if (!placer->blocks)
                return planner_out_of_memory(placer->planner);
        HR_TRY(place_all(placer));
        return hr_place_pack(placer);
}

hr_status hr_plan_place(struct hr_planner *planner) {
        struct placer placer = {.planner = planner, .plan = planner->plan};

        HR_TRY(hr_experts_size(planner));
        HR_TRY(placer_init(&placer));
        HR_TRY(place_all(&placer));
        HR_TRY(pack_holes(&placer));
        planner->leaf_head = placer.leaf_head;
        planner->leaf_next = placer.leaf_next;
        HR_TRY(finish_pools(&placer));
        hr_plan_copies_bytes(placer.plan, placer.plan->n_copies, placer.plan->copies_bytes);
        return HR_OK;
}
