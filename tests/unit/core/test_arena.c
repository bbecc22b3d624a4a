#include "core/arena.h"
#include "tests/harness.h"

HR_TEST(arena_gives_zeroed_aligned_memory) {
        struct hr_arena arena;

        hr_arena_init(&arena, 0);
        for (uint32_t align = 1; align <= 64; align *= 2)
                for (int i = 0; i < 100; i++) {
                        uint8_t *memory = hr_arena_alloc(&arena, 37, align);

                        HR_EXPECT(memory);
                        HR_EXPECT_EQ((uintptr_t) memory % align, 0);
                        for (int byte = 0; byte < 37; byte++)
                                HR_EXPECT_EQ(memory[byte], 0);
                        memset(memory, 0xff, 37);
                }
        hr_arena_deinit(&arena);
}

HR_TEST(arena_refuses_beyond_its_cap) {
        struct hr_arena arena;

        hr_arena_init(&arena, 1000);
        HR_EXPECT(hr_arena_alloc(&arena, 500, 8));
        HR_EXPECT(!hr_arena_alloc(&arena, 600, 8));
        HR_EXPECT(hr_arena_alloc(&arena, 400, 8));
        HR_EXPECT(!hr_arena_alloc(&arena, UINT64_MAX, 8));
        HR_EXPECT(!hr_arena_alloc(&arena, UINT64_MAX - 4, 8));
        HR_EXPECT(arena.used_bytes <= 1000);
        hr_arena_deinit(&arena);
}

HR_TEST(arena_reset_keeps_one_block_and_clears_again) {
        struct hr_arena arena;
        uint8_t *memory;

        hr_arena_init(&arena, 0);
        for (int i = 0; i < 10; i++)
                memset(hr_arena_alloc(&arena, 3000, 8), 0xff, 3000);
        hr_arena_reset(&arena);
        HR_EXPECT(arena.used_bytes <= 8192);
        memory = hr_arena_alloc(&arena, 3000, 8);
        for (int i = 0; i < 3000; i++)
                HR_EXPECT_EQ(memory[i], 0);
        hr_arena_deinit(&arena);
}

HR_TEST(arena_zero_bytes_are_distinct) {
        struct hr_arena arena;

        hr_arena_init(&arena, 0);
        HR_EXPECT(hr_arena_alloc(&arena, 0, 1) != hr_arena_alloc(&arena, 0, 1));
        hr_arena_deinit(&arena);
}

HR_TEST(arena_recycles_all_that_it_held_as_one_block) {
        struct hr_arena arena;
        uint8_t *first, *again;
        uint64_t held;

        hr_arena_init(&arena, 0);
        for (int i = 0; i < 10; i++)
                memset(hr_arena_alloc(&arena, 3000, 8), 0xff, 3000);
        held = arena.used_bytes;
        hr_arena_recycle(&arena, held);
        first = hr_arena_alloc_raw(&arena, held / 2, 8);
        again = hr_arena_alloc_raw(&arena, held / 2, 8);
        HR_EXPECT_EQ(again - first, (int64_t) (held / 2)); /* one behind the other: one block */
        hr_arena_recycle(&arena, arena.used_bytes);
        HR_EXPECT(hr_arena_alloc_raw(&arena, held / 2, 8) == first);
        for (uint64_t i = 0; i < held / 2; i++) /* zeroed although it has been used */
                first[i] = 0xff;
        hr_arena_recycle(&arena, arena.used_bytes);
        again = hr_arena_alloc(&arena, held / 2, 8);
        for (uint64_t i = 0; i < held / 2; i++)
                HR_EXPECT_EQ(again[i], 0);
        hr_arena_recycle(&arena, 1000);
        HR_EXPECT_EQ(arena.used_bytes, 0);
        hr_arena_recycle(&arena, 1000);
        HR_EXPECT(hr_arena_alloc(&arena, 10, 8));
        hr_arena_deinit(&arena);
}

HR_TEST(arena_reserves_within_its_cap) {
        struct hr_arena arena;
        uint8_t *first;

        hr_arena_init(&arena, 100000);
        hr_arena_reserve(&arena, 50000);
        first = hr_arena_alloc_raw(&arena, 20000, 8);
        HR_EXPECT(hr_arena_alloc_raw(&arena, 20000, 8) == first + 20000);
        hr_arena_reserve(&arena, 200000); /* does not fit: nothing happens */
        HR_EXPECT(hr_arena_alloc_raw(&arena, 9000, 8) == first + 40000);
        HR_EXPECT(arena.used_bytes <= 100000);
        hr_arena_deinit(&arena);
}
