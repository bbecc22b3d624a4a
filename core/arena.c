/*
 * Blocks in a list, the newest first; allocations are cut from it. A request that does not fit the
 * rest of the newest block opens another, at least as large as the request.
 */
#include "core/arena.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES_MIN UINT64_C(4096)

struct hr_arena_block {
        struct hr_arena_block *next;
        uint64_t size, used;
        _Alignas(64) uint8_t bytes[];
};

void hr_arena_init(struct hr_arena *arena, uint64_t cap_bytes) {
        *arena = (struct hr_arena) { .cap_bytes = cap_bytes };
}

void hr_arena_deinit(struct hr_arena *arena) {
        struct hr_arena_block *block = arena->blocks;

        while (block) {
                struct hr_arena_block *next = block->next;

                free(block);
                block = next;
        }
        arena->blocks = NULL;
        arena->used_bytes = 0;
}

static void *block_take(struct hr_arena_block *block, uint64_t bytes, uint32_t align) {
        uint64_t start, end;

        if (!hr_align_up_u64((uintptr_t) block->bytes + block->used, align, &start))
                return NULL;
        start -= (uintptr_t) block->bytes;
        if (!hr_add_u64(start, bytes, &end) || end > block->size)
                return NULL;
        block->used = end;
        return block->bytes + start;
}

static struct hr_arena_block *arena_grow(struct hr_arena *arena, uint64_t bytes, uint32_t align) {
        uint64_t size, total;
        struct hr_arena_block *block;

        if (!hr_add_u64(bytes, align, &size))
                return NULL;
        size = HR_MAX(size, BLOCK_BYTES_MIN);
        if (!hr_add_u64(arena->used_bytes, size, &total))
                return NULL;
        if (arena->cap_bytes && total > arena->cap_bytes) {
                /* The usual block does not fit the cap any more, but the request may. */
                size = bytes + align;
                if (arena->used_bytes + size > arena->cap_bytes)
                        return NULL;
                total = arena->used_bytes + size;
        }
        if (size > SIZE_MAX - sizeof *block - 64)
                return NULL;
        block = aligned_alloc(64, (sizeof *block + size + 63) & ~(size_t) 63);
        if (!block)
                return NULL;
        block->next = arena->blocks;
        block->size = size;
        block->used = 0;
        arena->blocks = block;
        arena->used_bytes = total;
        return block;
}

void *hr_arena_alloc_raw(struct hr_arena *arena, uint64_t bytes, uint32_t align) {
        void *memory = NULL;

        HR_ASSERT(align && (align & (align - 1)) == 0);
        if (bytes == 0)
                bytes = 1;
        if (arena->blocks)
                memory = block_take(arena->blocks, bytes, align);
        if (!memory) {
                struct hr_arena_block *block = arena_grow(arena, bytes, align);

                memory = block ? block_take(block, bytes, align) : NULL;
        }
        return memory;
}

void *hr_arena_alloc(struct hr_arena *arena, uint64_t bytes, uint32_t align) {
        void *memory = hr_arena_alloc_raw(arena, bytes, align);

        return memory ? memset(memory, 0, HR_MAX(bytes, (uint64_t) 1)) : NULL;
}

void hr_arena_reserve(struct hr_arena *arena, uint64_t bytes) {
        (void) arena_grow(arena, bytes, 64);
}

void hr_arena_recycle(struct hr_arena *arena, uint64_t bytes_max) {
        uint64_t held = arena->used_bytes;

        if (arena->blocks && !arena->blocks->next && held <= bytes_max) {
                arena->blocks->used = 0;
                return;
        }
        hr_arena_deinit(arena);
        if (held > 0 && held <= bytes_max)
                hr_arena_reserve(arena, held);
}

void hr_arena_reset(struct hr_arena *arena) {
        struct hr_arena_block *kept = arena->blocks;

        if (!kept)
                return;
        arena->blocks = kept->next;
        hr_arena_deinit(arena);
        kept->next = NULL;
        kept->used = 0;
        arena->blocks = kept;
        arena->used_bytes = kept->size;
}
