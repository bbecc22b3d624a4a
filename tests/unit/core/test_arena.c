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
