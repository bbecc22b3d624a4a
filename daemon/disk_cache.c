/*
 * The index is the engine's; files are touched by one worker, in the order asked for. So a file
 * that is to be removed is gone before the same contents are written again.
 *
 * A write takes its room in the index at once (is_written false: not found yet) and others make way
 * for it; when it fails the entry goes.
 */
#include "daemon/disk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/list.h"
#include "core/log.h"
#include "core/mpsc.h"
#include "daemon/workers.h"

#define NAME_BYTES (HR_DIGEST_HEX_BYTES + 2) /* digits, a suffix of two, the terminator */
#define PORTION_BYTES (UINT64_C(4) << 20)
#define SUFFIX ".w"
#define SUFFIX_UNFINISHED ".t"

struct work;

struct entry {
        struct hr_list link; /* the latest use last */
        uint8_t digest[HR_DIGEST_BYTES];
        uint64_t bytes;
        int64_t used_s; /* of files found at the start */
        bool is_written;
        const struct work *writer; /* while it is not */
};

struct hr_disk_cache {
        int directory;
        uint64_t bytes_max;
        struct hr_list entries;
        struct hr_disk_cache_stats stats;
        struct hr_workers *worker;
        struct hr_mpsc written; /* writes that have ended */
        void (*wake)(void *arg);
        void *arg;
};

typedef enum work_kind { WORK_READ, WORK_WRITE, WORK_REMOVE } work_kind;

struct work {
        struct hr_task task;
        struct hr_mpsc_link link;
        struct hr_disk_cache *cache;
        work_kind kind;
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_image *image; /* referenced */
        uint64_t bytes;
        hr_disk_cache_done_fn done;
        void *arg;
        bool ok;
};

static void file_name(const uint8_t digest[HR_DIGEST_BYTES], const char *suffix,
                      char ret_name[NAME_BYTES]) {
        hr_digest_hex(digest, ret_name);
        memcpy(ret_name + HR_DIGEST_HEX_BYTES - 1, suffix, 3);
}

/* ---- the worker ------------------------------------------------------------------------------ */

static bool read_file(const struct work *work) {
        char name[NAME_BYTES];
        struct stat facts;
        uint64_t done = 0;
        int fd;

        file_name(work->digest, SUFFIX, name);
        fd = openat(work->cache->directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return false;
        if (fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode) &&
            (uint64_t) facts.st_size == work->bytes)
                while (done < work->bytes) {
                        const ssize_t got = pread(
                                fd, work->image->base + done,
                                (size_t) HR_MIN(work->bytes - done, PORTION_BYTES), (off_t) done);

                        if (got < 0 && errno == EINTR)
                                continue;
                        if (got <= 0)
                                break;
                        done += (uint64_t) got;
                }
        (void) futimens(fd,
                        (const struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}});
        (void) close(fd);
        return work->bytes > 0 && done == work->bytes;
}

static bool write_all(int fd, const struct work *work) {
        uint64_t done = 0;

        while (done < work->bytes) {
                const ssize_t put =
                        pwrite(fd, work->image->base + done,
                               (size_t) HR_MIN(work->bytes - done, PORTION_BYTES), (off_t) done);

                if (put < 0 && errno == EINTR)
                        continue;
                if (put <= 0)
                        return false;
                done += (uint64_t) put;
        }
        return fsync(fd) == 0;
}

static bool write_file(const struct work *work) {
        const int directory = work->cache->directory;
        char name[NAME_BYTES], unfinished[NAME_BYTES];
        bool ok;
        int fd;

        file_name(work->digest, SUFFIX, name);
        file_name(work->digest, SUFFIX_UNFINISHED, unfinished);
        (void) unlinkat(directory, unfinished, 0);
        fd = openat(directory, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                    0600);
        if (fd < 0)
                return false;
        ok = write_all(fd, work);
        ok = close(fd) == 0 && ok && renameat(directory, unfinished, directory, name) == 0 &&
             fsync(directory) == 0;
        if (!ok)
                (void) unlinkat(directory, unfinished, 0);
        return ok;
}

static void work_free(struct work *work) {
        (void) hr_image_unref(work->image);
        free(work);
}

/* Thread: the worker's. */
static void work_run(struct hr_task *task) {
        struct work *work = HR_CONTAINER_OF(task, struct work, task);
        struct hr_disk_cache *cache = work->cache;
        char name[NAME_BYTES];

        switch (work->kind) {
        case WORK_READ:
                work->done(work->arg, read_file(work));
                work_free(work);
                break;
        case WORK_REMOVE:
                file_name(work->digest, SUFFIX, name);
                (void) unlinkat(cache->directory, name, 0);
                work_free(work);
                break;
        case WORK_WRITE:
                work->ok = write_file(work);
                work->image = hr_image_unref(work->image);
                hr_mpsc_push(&cache->written, &work->link);
                cache->wake(cache->arg);
                break;
        }
}

static struct work *work_new(struct hr_disk_cache *cache, work_kind kind,
                             const uint8_t digest[HR_DIGEST_BYTES]) {
        struct work *work = calloc(1, sizeof *work);

        if (!work)
                return NULL;
        work->task.run = work_run;
        work->cache = cache;
        work->kind = kind;
        memcpy(work->digest, digest, HR_DIGEST_BYTES);
        return work;
}

/* ---- the index ------------------------------------------------------------------------------- */

static struct entry *entry_find(const struct hr_disk_cache *cache,
                                const uint8_t digest[HR_DIGEST_BYTES]) {
        HR_LIST_FOR_EACH(link, (struct hr_list *) &cache->entries) {
                struct entry *entry = HR_CONTAINER_OF(link, struct entry, link);

                if (hr_digest_equal(entry->digest, digest))
                        return entry;
        }
        return NULL;
}

static void entry_free(struct hr_disk_cache *cache, struct entry *entry) {
        hr_list_remove(&entry->link);
        cache->stats.entries--;
        cache->stats.bytes -= entry->bytes;
        free(entry);
}

/* Takes it out of the index, and its file away. Without memory for that the file stays until the
 * next start finds it. */
static void entry_remove(struct hr_disk_cache *cache, struct entry *entry) {
        struct work *work = work_new(cache, WORK_REMOVE, entry->digest);

        if (work)
                hr_workers_add(cache->worker, &work->task);
        entry_free(cache, entry);
}

/* Room for `bytes` more: what has not been used for longest goes. */
static void make_room(struct hr_disk_cache *cache, uint64_t bytes) {
        HR_LIST_FOR_EACH(link, &cache->entries) {
                struct entry *entry = HR_CONTAINER_OF(link, struct entry, link);

                if (cache->stats.bytes + bytes <= cache->bytes_max)
                        return;
                if (!entry->is_written)
                        continue;
                cache->stats.evictions++;
                entry_remove(cache, entry);
        }
}

static struct entry *entry_add(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                               uint64_t bytes, bool is_written) {
        struct entry *entry = calloc(1, sizeof *entry);

        if (!entry)
                return NULL;
        memcpy(entry->digest, digest, HR_DIGEST_BYTES);
        entry->bytes = bytes;
        entry->is_written = is_written;
        hr_list_append(&cache->entries, &entry->link);
        cache->stats.entries++;
        cache->stats.bytes += bytes;
        return entry;
}

/* ---- start and end --------------------------------------------------------------------------- */

/* The digest in the name of a file of ours. */
static bool name_digest(const char *name, const char *suffix, uint8_t ret_digest[HR_DIGEST_BYTES]) {
        if (strlen(name) != NAME_BYTES - 1 || strcmp(name + HR_DIGEST_HEX_BYTES - 1, suffix) != 0)
                return false;
        return hr_digest_read(name, HR_DIGEST_HEX_BYTES - 1, ret_digest);
}

/* Puts a file that was found where its last use says. */
static void entry_sort(struct hr_disk_cache *cache, struct entry *entry) {
        struct hr_list *before = entry->link.previous;

        hr_list_remove(&entry->link);
        while (before != &cache->entries &&
               HR_CONTAINER_OF(before, struct entry, link)->used_s > entry->used_s)
                before = before->previous;
        entry->link.previous = before;
        entry->link.next = before->next;
        before->next->previous = &entry->link;
        before->next = &entry->link;
}

static void take_file(struct hr_disk_cache *cache, const char *name) {
        uint8_t digest[HR_DIGEST_BYTES];
        struct stat facts;
        struct entry *entry;

        if (name_digest(name, SUFFIX_UNFINISHED, digest)) {
                (void) unlinkat(cache->directory, name, 0);
                return;
        }
        if (!name_digest(name, SUFFIX, digest) ||
            fstatat(cache->directory, name, &facts, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(facts.st_mode))
                return;
        entry = entry_add(cache, digest, (uint64_t) facts.st_size, true);
        if (!entry)
                return;
        entry->used_s = facts.st_mtim.tv_sec;
        entry_sort(cache, entry);
}

static hr_status take_files(struct hr_disk_cache *cache, struct hr_diag *diag) {
        const int fd = openat(cache->directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *listing = fd < 0 ? NULL : fdopendir(fd);

        if (!listing) {
                if (fd >= 0)
                        (void) close(fd);
                return hr_fail_reason(diag, HR_E_UNAVAILABLE, "CACHE",
                                      "the cache's directory cannot be read");
        }
        for (const struct dirent *file = readdir(listing); file; file = readdir(listing))
                take_file(cache, file->d_name);
        (void) closedir(listing);
        make_room(cache, 0);
        return HR_OK;
}

hr_status hr_disk_cache_open(const char *directory, uint64_t bytes_max, void (*wake)(void *arg),
                             void *arg, struct hr_diag *diag, struct hr_disk_cache **ret_cache) {
        struct hr_disk_cache *cache = calloc(1, sizeof *cache);
        hr_status status;

        if (!cache)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a cache");
        hr_list_init(&cache->entries);
        hr_mpsc_init(&cache->written);
        cache->bytes_max = bytes_max;
        cache->wake = wake;
        cache->arg = arg;
        (void) mkdir(directory, 0700);
        cache->directory = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (cache->directory < 0 ||
            faccessat(cache->directory, ".", R_OK | W_OK | X_OK, AT_EACCESS) != 0)
                status =
                        hr_fail_reason(diag, HR_E_UNAVAILABLE, "CACHE",
                                       "the cache's directory cannot be used: %s", strerror(errno));
        else
                status = hr_workers_new("hr-cache", 1, diag, &cache->worker);
        if (status == HR_OK)
                status = take_files(cache, diag);
        if (status != HR_OK) {
                (void) hr_disk_cache_free(cache);
                return status;
        }
        *ret_cache = cache;
        return HR_OK;
}

struct hr_disk_cache *hr_disk_cache_free(struct hr_disk_cache *cache) {
        if (!cache)
                return NULL;
        cache->worker = hr_workers_free(cache->worker);
        while (hr_disk_cache_step(cache)) {
        }
        HR_LIST_FOR_EACH(link, &cache->entries)
        entry_free(cache, HR_CONTAINER_OF(link, struct entry, link));
        if (cache->directory >= 0)
                (void) close(cache->directory);
        free(cache);
        return NULL;
}

struct hr_disk_cache_stats hr_disk_cache_stats(const struct hr_disk_cache *cache) {
        return cache ? cache->stats : (struct hr_disk_cache_stats){0};
}

/* ---- use ------------------------------------------------------------------------------------- */

bool hr_disk_cache_has(const struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                       uint64_t bytes) {
        const struct entry *entry = cache ? entry_find(cache, digest) : NULL;

        return entry && entry->is_written && (bytes == 0 || entry->bytes == bytes);
}

void hr_disk_cache_put(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                       struct hr_image *image, uint64_t bytes) {
        struct entry *entry;
        struct work *work;

        if (!cache || bytes == 0 || bytes > cache->bytes_max || entry_find(cache, digest))
                return;
        make_room(cache, bytes);
        if (cache->stats.bytes + bytes > cache->bytes_max) /* being written, all of it */
                return;
        work = work_new(cache, WORK_WRITE, digest);
        entry = work ? entry_add(cache, digest, bytes, false) : NULL;
        if (!entry) {
                free(work);
                return;
        }
        entry->writer = work;
        work->image = hr_image_ref(image);
        work->bytes = bytes;
        hr_workers_add(cache->worker, &work->task);
}

hr_status hr_disk_cache_get(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES],
                            struct hr_image *image, uint64_t bytes, hr_disk_cache_done_fn done,
                            void *arg, struct hr_diag *diag) {
        struct work *work = work_new(cache, WORK_READ, digest);
        struct entry *entry = entry_find(cache, digest);

        if (!work)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory to read the cache");
        HR_ASSERT(entry && bytes <= image->bytes);
        hr_list_remove(&entry->link);
        hr_list_append(&cache->entries, &entry->link);
        cache->stats.hits++;
        work->image = hr_image_ref(image);
        work->bytes = bytes;
        work->done = done;
        work->arg = arg;
        hr_workers_add(cache->worker, &work->task);
        return HR_OK;
}

void hr_disk_cache_miss(struct hr_disk_cache *cache) {
        if (cache)
                cache->stats.misses++;
}

void hr_disk_cache_damaged(struct hr_disk_cache *cache, const uint8_t digest[HR_DIGEST_BYTES]) {
        struct entry *entry = entry_find(cache, digest);

        cache->stats.damaged++;
        if (entry && entry->is_written)
                entry_remove(cache, entry);
}

void hr_disk_cache_purge(struct hr_disk_cache *cache, uint64_t *ret_entries, uint64_t *ret_bytes) {
        *ret_entries = *ret_bytes = 0;
        if (!cache)
                return;
        HR_LIST_FOR_EACH(link, &cache->entries) {
                struct entry *entry = HR_CONTAINER_OF(link, struct entry, link);

                (*ret_entries)++;
                *ret_bytes += entry->bytes;
                entry_remove(cache, entry);
        }
}

bool hr_disk_cache_step(struct hr_disk_cache *cache) {
        struct hr_mpsc_link *link = cache ? hr_mpsc_pop(&cache->written) : NULL;
        struct work *work;
        struct entry *entry;

        if (!link)
                return false;
        work = HR_CONTAINER_OF(link, struct work, link);
        entry = entry_find(cache, work->digest);
        if (entry && entry->writer != work) /* another write, after a purge */
                entry = NULL;
        if (!work->ok && cache->stats.failures++ == 0)
                hr_log(HR_LOG_WARNING, "cache",
                       "the cache on disk could not take contents; nothing more is said of that");
        if (entry && work->ok)
                entry->is_written = true;
        else if (entry)
                entry_free(cache, entry);
        work_free(work);
        return true;
}
