/*
 * Contents of uploads on disk, by digest: after a restart they need not be sent again.
 *
 * A file holds contents and nothing else; its name is their digest. It appears whole or not at all
 * (written under another name, flushed, renamed, and the directory flushed), is read into memory
 * and hashed like an upload, and is removed when the digest is another. The files together keep to
 * a limit: those not used for longest go first. Contents only: no states, no names, nothing of a
 * client.
 *
 * Threads: engine, except that one thread of the cache's own touches the disk.
 */
#pragma once

#include "daemon/digest.h"
#include "daemon/image.h"

struct hr_disk_cache;

struct hr_disk_cache_stats {
        uint64_t entries, bytes;
        uint64_t hits, misses, evictions, damaged, failures; /* since the start */
};

/* Makes the directory if it is not there, takes what is in it and removes what is left of writes
 * that were interrupted. HR_E_UNAVAILABLE when it cannot be used. `wake`: hr_disk_cache_step() has
 * something to do. Thread of wake: any. */
HR_NODISCARD hr_status hr_disk_cache_open(const char *directory, uint64_t bytes_max,
                                          void (*wake)(void *arg), void *arg, struct hr_diag *diag,
                                          struct hr_disk_cache **ret_cache);
/* Waits for what is under way. NULL is a no-op. Returns NULL. */
struct hr_disk_cache *hr_disk_cache_free(struct hr_disk_cache *cache);
struct hr_disk_cache_stats hr_disk_cache_stats(const struct hr_disk_cache *cache);

/* Whether contents of so many bytes (0 = any) are there. Counts nothing. NULL cache: false. */
bool hr_disk_cache_has(const struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                       uint64_t bytes);
/* Writes the first `bytes` bytes of an image that does not change any more, if they are not there.
 * A no-op for NULL, and for what is larger than the limit. */
void hr_disk_cache_put(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                       struct hr_image *image, uint64_t bytes);
/* Reads contents that are there into an image of at least that size; done(arg, whether they could
 * be read) is called by the cache's thread. Whether they have the digest is the caller's to see. */
typedef void (*hr_disk_cache_done_fn)(void *arg, bool is_read);
HR_NODISCARD hr_status hr_disk_cache_get(struct hr_disk_cache *cache,
                                         const uint8_t digest[HR_DIGEST_BYTES],
                                         struct hr_image *image, uint64_t bytes,
                                         hr_disk_cache_done_fn done, void *arg,
                                         struct hr_diag *diag);
/* Contents that are not there were asked for. NULL is a no-op. */
void hr_disk_cache_miss(struct hr_disk_cache *cache);
/* They did not have the digest, or could not be read: they go. */
void hr_disk_cache_damaged(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES]);
/* Removes everything; tells how much that was. */
void hr_disk_cache_purge(struct hr_disk_cache *cache, uint64_t *ret_entries, uint64_t *ret_bytes);
/* Takes in what has been written. True when there was anything. */
bool hr_disk_cache_step(struct hr_disk_cache *cache);
