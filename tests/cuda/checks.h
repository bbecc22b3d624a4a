/*
 * Looks at every access of kernels that were compiled with -fsanitize=thread
 * (tests/cuda/meson.build): the compiler calls __tsan_read4() and the like before each, and
 * checks.c is what answers.
 *
 * Found are accesses outside of any memory of a GPU, to memory of the GPU that is not aligned to
 * what is accessed, to another thread's own memory, to shared memory that nobody has written in
 * this block, to bytes that an asynchronous copy is still bringing, and races: two accesses to the
 * same byte, one of them a write, of threads of which nothing says who comes first. Threads of a
 * block are put in order by barriers, lanes of a warp by __syncwarp() too, by exchanges not;
 * threads of different blocks by nothing. Volatile accesses and atomic additions do not race with
 * one another.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Memory that kernels may access. */
struct checks_range {
        uint64_t base, bytes;
};

/* Asks for what there is at each launch; writes at most `room`, returns how many there are. */
typedef unsigned (*checks_memory_fn)(struct checks_range *ret_ranges, unsigned room);

/* From now on kernels are looked at. */
void checks_begin(checks_memory_fn memory);
/* What was found so far; words about each place in the program went to stderr. */
uint64_t checks_findings(void);
/* Words about the first, and forgets all. */
const char *checks_take(void);
