/*
 * Allocations that fail when a test says so: malloc, calloc, realloc, reallocarray, aligned_alloc,
 * posix_memalign, strdup and strndup of everything that is linked into the program (linker option
 * --wrap; the C library's own calls are not seen). One thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The n-th allocation from now on fails, once. 0: none does. */
void fail_alloc_at(uint64_t n);
/* Has it failed? */
bool fail_alloc_fired(void);
/* Blocks that are allocated now. */
int64_t fail_alloc_live(void);
