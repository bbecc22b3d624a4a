/*
 * Packs a pool anew where taking memory in the order of time has left holes.
 *
 * All blocks are known by then, with the turns at which each was taken and given back. The largest
 * is placed first, each into the lowest gap between those that are there while it is: what small
 * and short ones would have broken up is kept whole. The result is taken if it is smaller. What is
 * kept from run to run was taken before anything else and stays where it is.
 *
 * Most blocks live for a few turns. They are found through buckets of turns, so that a block is
 * compared with its neighbours in time alone, and with the few that live long. Where that takes
 * more than WORK_MOST comparisons a block (in large graphs made of long lives), the pool stays as
 * it is: planning grows with the graph, whatever the graph.
 */
#include "scheduler/place_priv.h"

#include <string.h>

enum { TURNS_SHIFT = 4, BUCKETS_MOST = 8 }; /* of one that does not live long */
enum { WASTE_SHARE = 128 }; /* less than this part of a pool is not worth the time */
enum { WORK_MOST = 128, WORK_FREE = 1 << 18 }; /* comparisons a block; of any pool */

static uint64_t work_most(uint32_t blocks) {
        return HR_MAX((uint64_t) WORK_MOST * blocks, (uint64_t) WORK_FREE);
}

struct packed {
        uint64_t bytes, offset;
        uint32_t begin, end, block;
        bool is_kept;
};

struct link {
        uint32_t packed, next;
};

struct packing {
        struct packed *packed, *sorted; /* the pool's blocks; room to sort them */
        uint32_t *near;                 /* of the block in turn: those it meets, by offset */
        uint32_t *lasting;              /* those placed that live long */
        uint32_t *head;                 /* per bucket of turns: links of those placed */
        struct link *links;
        uint32_t count, near_count, lasting_count, link_count;
        uint64_t end, work;
};

static bool goes_before(const struct packed *a, const struct packed *b) {
        if (a->is_kept || b->is_kept)
                return a->is_kept;
        return a->bytes >= b->bytes;
}

/* What is kept first, then the largest; as they were taken where they are equal. */
static void sort(struct packing *packing) {
        for (uint32_t width = 1; width < packing->count; width *= 2) {
                struct packed *from = packing->packed, *to = packing->sorted;

                for (uint32_t first = 0; first < packing->count; first += 2 * width) {
                        uint32_t middle = HR_MIN(first + width, packing->count);
                        uint32_t last = HR_MIN(first + 2 * width, packing->count);
                        uint32_t a = first, b = middle;

                        for (uint32_t k = first; k < last; ++k) {
                                bool left = b == last ||
                                            (a < middle && goes_before(&from[a], &from[b]));

                                to[k] = from[left ? a++ : b++];
                        }
                }
                packing->packed = to;
                packing->sorted = from;
        }
}

static bool is_lasting(const struct packed *block) {
        return (block->end >> TURNS_SHIFT) - (block->begin >> TURNS_SHIFT) >= BUCKETS_MOST;
}

static void meet(struct packing *packing, const struct packed *block, uint32_t other) {
        const struct packed *o = &packing->packed[other];
        uint32_t at = packing->near_count;

        ++packing->work;
        if (o->end < block->begin || o->begin > block->end)
                return;
        for (; at > 0 && packing->packed[packing->near[at - 1]].offset > o->offset; --at)
                packing->near[at] = packing->near[at - 1];
        packing->near[at] = other;
        packing->work += packing->near_count++ - at;
}

/* Those placed that the block meets: one that is in several of its buckets is taken in the first.
 */
static void find_near(struct packing *packing, uint32_t index) {
        const struct packed *block = &packing->packed[index];
        uint32_t first = block->begin >> TURNS_SHIFT, last = block->end >> TURNS_SHIFT;

        packing->near_count = 0;
        if (is_lasting(block)) {
                for (uint32_t i = 0; i < index; ++i)
                        meet(packing, block, i);
                return;
        }
        for (uint32_t i = 0; i < packing->lasting_count; ++i)
                meet(packing, block, packing->lasting[i]);
        for (uint32_t bucket = first; bucket <= last; ++bucket) {
                for (uint32_t l = packing->head[bucket]; l != HR_NO_INDEX;
                     l = packing->links[l].next) {
                        uint32_t other = packing->links[l].packed;

                        if (bucket == first ||
                            packing->packed[other].begin >> TURNS_SHIFT == bucket)
                                meet(packing, block, other);
                }
        }
}

static void note_placed(struct packing *packing, uint32_t index) {
        const struct packed *block = &packing->packed[index];

        if (is_lasting(block)) {
                packing->lasting[packing->lasting_count++] = index;
                return;
        }
        for (uint32_t bucket = block->begin >> TURNS_SHIFT; bucket <= block->end >> TURNS_SHIFT;
             ++bucket) {
                packing->links[packing->link_count] =
                        (struct link){.packed = index, .next = packing->head[bucket]};
                packing->head[bucket] = packing->link_count++;
        }
}

/* The lowest gap in which the block never meets another. */
static void pack_block(struct packing *packing, uint32_t index) {
        struct packed *block = &packing->packed[index];

        find_near(packing, index);
        packing->work += packing->near_count;
        for (uint32_t i = 0; i < packing->near_count; ++i) {
                const struct packed *other = &packing->packed[packing->near[i]];

                if (other->offset >= block->offset + block->bytes)
                        break;
                block->offset = HR_MAX(block->offset, other->offset + other->bytes);
        }
        packing->end = HR_MAX(packing->end, block->offset + block->bytes);
        note_placed(packing, index);
}

/* ---- Who used the memory before --------------------------------------------------------------
 */

/* From its offset to the next one's: the split that used it last, + 1. */
struct stretch {
        uint64_t offset;
        uint32_t used;
};

struct stretches {
        struct stretch *items; /* by offset, the first at 0 */
        uint32_t count;
        uint64_t work;
};

static uint32_t stretch_at(const struct stretches *s, uint64_t offset) {
        uint32_t low = 0, high = s->count;

        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (s->items[middle].offset <= offset)
                        low = middle;
                else
                        high = middle;
        }
        return low;
}

/* The number of the stretch that begins there, which may be a new one. */
static uint32_t stretch_cut(struct stretches *s, uint64_t offset) {
        uint32_t at = stretch_at(s, offset);

        if (s->items[at].offset == offset)
                return at;
        memmove(&s->items[at + 2], &s->items[at + 1], (s->count - at - 1) * sizeof *s->items);
        s->work += s->count++ - at;
        s->items[at + 1] = (struct stretch){.offset = offset, .used = s->items[at].used};
        return at + 1;
}

/* Later turns have later splits. */
static void stretch_use(struct stretches *s, const struct block *block) {
        uint32_t first = stretch_cut(s, block->offset);
        uint32_t end = stretch_cut(s, block->offset + block->bytes);

        s->items[first].used = block->split + 1;
        memmove(&s->items[first + 1], &s->items[end], (s->count - end) * sizeof *s->items);
        s->work += s->count - first;
        s->count -= end - first - 1;
}

static uint32_t stretch_used(struct stretches *s, const struct block *block) {
        uint32_t used = 0;

        for (uint32_t i = stretch_at(s, block->offset);
             i < s->count && s->items[i].offset < block->offset + block->bytes; ++i, ++s->work)
                used = HR_MAX(used, s->items[i].used);
        return used ? used - 1 : HR_NO_INDEX;
}

/* Turn by turn, the block of the pool that is taken or given back then; HR_NO_INDEX: another's. */
static uint32_t *blocks_by_turn(struct placer *placer, uint32_t kind) {
        uint32_t *turns = planner_scratch_raw(placer->planner, placer->turn, sizeof *turns);

        if (!turns)
                return NULL;
        memset(turns, 0xff, placer->turn * sizeof *turns);
        for (uint32_t i = 0; i < placer->block_count; ++i) {
                if (placer->blocks[i].kind != kind)
                        continue;
                turns[placer->blocks[i].begin] = i;
                if (placer->blocks[i].end != NEVER_GIVEN)
                        turns[placer->blocks[i].end] = i;
        }
        return turns;
}

/* ret_users: per block of the pool, the split that used its memory last before it. False in
 * *ret_done where that takes too long to find. */
static hr_status find_users(struct placer *placer, uint32_t kind, uint32_t *ret_users,
                            bool *ret_done) {
        struct hr_planner *planner = placer->planner;
        const uint64_t most = work_most(placer->block_count);
        const uint32_t *turns = blocks_by_turn(placer, kind);
        struct stretches s = {.count = 1};

        s.items = planner_scratch(planner, 2 * (uint64_t) placer->block_count + 2, sizeof *s.items);
        if (!turns || !s.items)
                return planner_out_of_memory(planner);
        for (uint32_t turn = 0; turn < placer->turn && s.work <= most; ++turn) {
                const struct block *block;

                if (turns[turn] == HR_NO_INDEX)
                        continue;
                block = &placer->blocks[turns[turn]];
                if (block->end == turn)
                        stretch_use(&s, block);
                else
                        ret_users[turns[turn]] = stretch_used(&s, block);
        }
        *ret_done = s.work <= most;
        return HR_OK;
}

static bool has_copies(const struct placer *placer, uint32_t kind) {
        const struct hr_plan *plan = placer->plan;
        const struct life *lives = placer->lives + plan->tensor_count;

        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                if (lives[c].block != HR_NO_INDEX && placer->blocks[lives[c].block].kind == kind)
                        return true;
        }
        return false;
}

/* The places of a pool from its blocks', and what its copies wait for. */
static void move_places(struct placer *placer, uint32_t kind, const uint32_t *users) {
        struct hr_plan *plan = placer->plan;
        const struct life *lives = placer->lives;

        for (uint32_t i = 0; i < plan->leaf_count + plan->node_count; ++i) {
                if (lives[i].block != HR_NO_INDEX && placer->blocks[lives[i].block].kind == kind)
                        plan->place[i].offset = placer->blocks[lives[i].block].offset;
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                uint32_t block = lives[plan->tensor_count + c].block;

                if (block == HR_NO_INDEX || placer->blocks[block].kind != kind)
                        continue;
                plan->copies[c].place.offset = placer->blocks[block].offset;
                plan->copies[c].ready_after = users[block];
        }
}

/* ---- Pools -----------------------------------------------------------------------------------
 */

static hr_status packing_init(struct packing *packing, struct placer *placer, uint32_t kind) {
        struct hr_planner *planner = placer->planner;
        uint32_t count = placer->block_count, buckets = (placer->turn >> TURNS_SHIFT) + 1;

        *packing = (struct packing){
                .packed = planner_scratch_raw(planner, count, sizeof *packing->packed),
                .sorted = planner_scratch_raw(planner, count, sizeof *packing->sorted),
                .near = planner_scratch_raw(planner, count, sizeof *packing->near),
                .lasting = planner_scratch_raw(planner, count, sizeof *packing->lasting),
                .head = planner_scratch_raw(planner, buckets, sizeof *packing->head),
                .links = planner_scratch_raw(planner, (uint64_t) count * BUCKETS_MOST,
                                             sizeof *packing->links),
        };
        if (!packing->packed || !packing->sorted || !packing->near || !packing->lasting ||
            !packing->head || !packing->links)
                return planner_out_of_memory(planner);
        memset(packing->head, 0xff, buckets * sizeof *packing->head);
        for (uint32_t i = 0; i < count; ++i) {
                const struct block *block = &placer->blocks[i];

                if (block->kind == kind)
                        packing->packed[packing->count++] =
                                (struct packed){.bytes = block->bytes,
                                                .begin = block->begin,
                                                .end = block->end,
                                                .block = i,
                                                .is_kept = block->is_kept};
        }
        return HR_OK;
}

/* Each block takes the offset that the other has. */
static void swap_offsets(struct placer *placer, struct packing *packing) {
        for (uint32_t i = 0; i < packing->count; ++i) {
                struct packed *packed = &packing->packed[i];
                struct block *block = &placer->blocks[packed->block];
                const uint64_t offset = block->offset;

                block->offset = packed->offset;
                packed->offset = offset;
        }
}

static hr_status pack_pool(struct placer *placer, uint32_t kind) {
        struct pool *pool = &placer->pools[kind];
        struct packing packing;
        uint32_t *users = NULL;
        bool is_done = true;

        HR_TRY(packing_init(&packing, placer, kind));
        sort(&packing);
        for (uint32_t i = 0; i < packing.count && packing.end < pool->end; ++i) {
                pack_block(&packing, i);
                if (packing.work > work_most(packing.count))
                        return HR_OK;
        }
        if (packing.end >= pool->end)
                return HR_OK;
        swap_offsets(placer, &packing);
        if (has_copies(placer, kind)) {
                users = planner_scratch_raw(placer->planner, placer->block_count, sizeof *users);
                if (!users)
                        return planner_out_of_memory(placer->planner);
                HR_TRY(find_users(placer, kind, users, &is_done));
        }
        if (!is_done) {
                swap_offsets(placer, &packing);
                return HR_OK;
        }
        pool->end = packing.end;
        move_places(placer, kind, users);
        return HR_OK;
}

static bool has_holes(const struct pool *pool) {
        return pool->end - pool->peak > pool->peak / WASTE_SHARE;
}

bool hr_place_has_holes(const struct placer *placer) {
        for (uint32_t k = 0; k < placer->planner->in->kind_count; ++k) {
                if (has_holes(&placer->pools[k]))
                        return true;
        }
        return false;
}

hr_status hr_place_pack(struct placer *placer) {
        for (uint32_t k = 0; k < placer->planner->in->kind_count; ++k) {
                if (has_holes(&placer->pools[k]))
                        HR_TRY(pack_pool(placer, k));
        }
        return HR_OK;
}
