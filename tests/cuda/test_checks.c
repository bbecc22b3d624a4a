/* Whoever looks at kernels finds each fault, tells it from the others, and finds nothing in the
 * same kernel without it, in whatever order threads take their turns. */
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/kernels/args.h"
#include "tests/cuda/blocks.h"
#include "tests/cuda/checks.h"
#include "tests/cuda/wrong_kernels.h"
#include "tests/harness.h"

#define ORDERS 6U

static uint8_t *memory;

static unsigned memory_list(struct checks_range *ret_ranges, unsigned room) {
        if (room)
                ret_ranges[0] = (struct checks_range) { (uint64_t) (uintptr_t) memory,
                                                        WRONG_BYTES };
        return 1;
}

/* Runs the kernel; what was found, in words. */
static const char *found(const char *name, bool is_wrong, uint32_t order) {
        struct wrong_args args = { (uint64_t) (uintptr_t) memory, is_wrong };
        const struct cuda_host_kernel *kernel = blocks_find(name);
        /* The last thread's word is the last of the memory. */
        unsigned blocks = strstr(name, "blocks") || strstr(name, "place") ? 2 : 1;

        if (!kernel)
                return "there is no such kernel";
        if (strcmp(name, "wrong_end") == 0)
                args.out += WRONG_BYTES - CUDA_THREADS * sizeof(uint32_t);
        memset(memory, 0, WRONG_BYTES);
        blocks_shuffle(order);
        HR_EXPECT(blocks_run(kernel, blocks, CUDA_THREADS, &args));
        return checks_findings() ? checks_take() : "nothing";
}

static const struct fault {
        const char *kernel, *words;
        bool is_early;
} faults[] = {
        { "wrong_barrier", "another thread", true },
        { "wrong_warp_barrier", "another thread", false },
        { "wrong_overtaking", "another thread", false },
        { "wrong_unwritten", "nobody has written it in this block", false },
        { "wrong_end", "it lies outside of what the GPU has", false },
        { "wrong_alignment", "it is not aligned to its size", false },
        { "wrong_copy", "an asynchronous copy is still bringing it", false },
        { "wrong_meeting", "an asynchronous copy", true },
        { "wrong_leaving", "a copy was begun that its thread does not wait for", false },
        { "wrong_blocks", "another block writes it", false },
        { "wrong_place", "another block", false },
        { "wrong_neighbour", "it is another thread's own", false },
        { "wrong_addition", "another thread", false },
};

static void begin(void) {
        memory = aligned_alloc(256, WRONG_BYTES);
        HR_EXPECT(memory);
        checks_begin(memory_list);
}

/* What is read too early may also be what nobody has written yet. */
HR_TEST(faults_are_found) {
        begin();
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
                for (uint32_t order = 0; order < ORDERS; order++) {
                        const char *words = found(faults[i].kernel, true, order);

                        if (!strstr(words, faults[i].words) &&
                            !(faults[i].is_early && strstr(words, "nobody has written it")))
                                hr_test_fail(__FILE__, __LINE__, "%s, order %u: %s",
                                             faults[i].kernel, order, words);
                }
        free(memory);
}

HR_TEST(nothing_is_found_that_is_right) {
        begin();
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
                for (uint32_t order = 0; order < ORDERS; order++)
                        HR_EXPECT_STREQ(found(faults[i].kernel, false, order), "nothing");
        free(memory);
}
