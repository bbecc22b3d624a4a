/*
 * Mapped files in large pages.
 *
 * A model's weights are read from end to end for every token. In pages of 4 KiB the processor sees
 * no farther ahead than a page, and its table of pages is too small for them: the same weights come
 * a quarter to a half faster in pages of 2 MiB. File systems that can (ext4, XFS and Btrfs of
 * recent kernels) keep a file so when it is read through a mapping that asks for it; what lies in
 * the system's cache in small pages is dropped there and read again. Where that is not possible,
 * nothing changes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Asks that what is read of a file through this mapping be kept in large pages. base: as mmap()
 * returned it. Thread: any. */
void hr_large_pages_want(void *base, uint64_t bytes);

/* Whether shared memory that asks for large pages may get them here, as the system's files say.
 * Thread: any. */
bool hr_large_pages_are_shared(void);

/* A descriptor for hr_large_pages_used(); -1 where the kernel (before 6.7) cannot tell. The
 * caller's to close. Thread: any. */
int hr_large_pages_scanner(void);

/* Of the large pages that [offset, offset + bytes) of a mapping of `room` bytes touches, and that
 * lie in it wholly: the first byte and the end; equal when there are none. */
void hr_large_pages_span(const uint8_t *base, uint64_t room, uint64_t offset, uint64_t bytes,
                         uint64_t *ret_first, uint64_t *ret_end);

/* Whether this span of a mapping is mapped in large pages. Thread: any. */
bool hr_large_pages_used(int scanner, const uint8_t *base, uint64_t first, uint64_t end);

/* Drops this span from the mapping and, where nobody else uses it, from the system's cache, so that
 * it is read again when it is touched. Safe while others read the mapping. Thread: any. */
void hr_large_pages_drop(int fd, const uint8_t *base, uint64_t first, uint64_t end);
