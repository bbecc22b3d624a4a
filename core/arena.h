/*
 * A capped bump arena: many small allocations, one release. Not thread-safe; one owner.
 */
#pragma once

#include "core/base.h"

struct hr_arena_block;

struct hr_arena {
        struct hr_arena_block *blocks;
        uint64_t used_bytes, cap_bytes;
};

/* cap_bytes bounds all memory the arena may hold; 0 = unbounded. */
void hr_arena_init(struct hr_arena *arena, uint64_t cap_bytes);
void hr_arena_deinit(struct hr_arena *arena);
/* Zero-filled. NULL when the cap or memory is exhausted. align: a power of two. 0 bytes gives a
 * unique, valid pointer. */
void *hr_arena_alloc(struct hr_arena *arena, uint64_t bytes, uint32_t align);
/* The same with whatever is there: for what is filled right after. */
void *hr_arena_alloc_raw(struct hr_arena *arena, uint64_t bytes, uint32_t align);
/* Forgets everything and keeps one block for reuse. */
void hr_arena_reset(struct hr_arena *arena);
/* Forgets everything; what comes next finds one block as large as all that was held, unless that
 * was more than bytes_max (then nothing is held). */
void hr_arena_recycle(struct hr_arena *arena, uint64_t bytes_max);
/* Opens a block of so many bytes for what comes next; without memory for it nothing happens. */
void hr_arena_reserve(struct hr_arena *arena, uint64_t bytes);
