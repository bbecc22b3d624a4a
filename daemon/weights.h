/*
 * Weight sets: named read-only tensors, shared by all sessions.
 *
 * Model. A set comes from a GGUF file (LOAD) or from a client (PUT). Its contents arrive in an
 * image: the mapped file, or memory that the upload fills. Tensors placed on devices that use host
 * memory stay in the image and are used in place; tensors placed on a device with memory of its own
 * are copied there through that device's queue, a few MiB at a time. A set is visible only when all
 * of this is done and, for an upload, when the digest has been verified.
 *
 *   hr_weights_file_open --> hr_weights_load --+                        +--> job.done(set)
 *                                              +--> store_step ... -----+
 *   hr_weights_put --> upload_place/commit ----+                        +--> job.done(status)
 *
 * A file's bytes are read by a thread of their own (weights_reader.h), ahead of the copies, so that
 * neither the engine nor a device waits for a disk. A set is ready when those of its tensors that
 * stay in the mapping have been brought in, as far as there is memory for them; the others are read
 * when they are used.
 *
 * Work is done by hr_weights_store_step() in bounded portions; the store calls `wake` (any thread)
 * when a step would find something to do.
 *
 * Nothing writes into a ready set: an upload under a name that is there makes a set of its own, a
 * file is mapped read-only, a graph that writes into a weight is invalid (ALIAS), and what a client
 * writes are states. So what devices keep of a set (experts that stay) never becomes stale, and
 * nobody here has to call hr_buffer_changed(). A model file that is rewritten in place while it is
 * mapped changes under its graphs: files are to be replaced, not rewritten.
 *
 * Contents are known by their digest: a PUT of what is there transfers nothing. A kept PUT outlives
 * its requests; what has been received waits for the next one.
 *
 * Threads: engine, unless a function says otherwise. Reference counts are the engine's. A file that
 * is truncated while it is read makes the LOAD fail; one that is truncated later is lost (image.h)
 * when somebody touches what is gone: the runs that did fail, and nobody binds or finds the set.
 */
#pragma once

#include <stdatomic.h>

#include "core/list.h"
#include "daemon/config.h"
#include "daemon/digest.h"
#include "daemon/disk_cache.h"
#include "daemon/gguf.h"
#include "daemon/placement.h"
#include "daemon/safetensors.h"

struct hr_image;
struct hr_inherited;
struct hr_upload;

/* ---- A set ----------------------------------------------------------------------------------- */

/* Makes "the same file" precise. */
struct hr_file_identity {
        uint64_t device, inode, bytes;
        int64_t modified_s, modified_ns;
};

/* Where a tensor of a set lives. */
struct hr_weights_home {
        uint32_t device;          /* index in the fleet */
        struct hr_buffer *buffer;
        uint64_t offset;
};

/* Read-only for everybody but weights.c, except `users`. */
struct hr_weights {
        uint32_t refs;
        uint64_t number; /* of its store, never given again: who only compares goes by it */
        uint32_t users;               /* sessions that hold it: kept by the sessions */
        uint64_t owner; /* who alone finds it, and shares in it; 0: everybody */
        char *name;
        bool from_file;
        bool has_digest;
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_manifest *manifest;
        struct hr_weights_home *homes; /* one per tensor */
        struct hr_placement placement; /* planned and requested bytes per device */
        uint64_t bytes;                /* of all tensors */
        uint8_t *metadata;             /* key-values as they stand in the GGUF file, or NULL */
        uint64_t metadata_bytes, metadata_count;
        struct hr_buffer **buffers;    /* one per device, NULL where none */
        struct hr_image *image; /* what the contents stay in, referenced; NULL: devices have them */
        uint64_t contents_bytes; /* of an upload: those that the digest is of */
        struct hr_file_identity identity; /* of a file */
        char *path;                       /* of a file, relative to its directory */
        struct hr_weights_work *work;     /* while it is being made; NULL when it is ready */
        bool is_given;      /* the service manager has it (weights_keep.c) */
        bool is_taken_back; /* from it, with a reference of the store's */
        bool is_displaced;  /* ... and lies elsewhere than it did: nobody finds it by name */
        uint8_t record[HR_DIGEST_BYTES]; /* the name of its record there */
        struct hr_weights_store *store;
        struct hr_list link;
};

struct hr_weights *hr_weights_ref(struct hr_weights *set);
/* The last reference takes the set out of the store; buffers live on while pipelines hold them. */
struct hr_weights *hr_weights_unref(struct hr_weights *set);

/* The file behind it has become shorter: its contents are worth nothing any more. Thread: any. */
bool hr_weights_is_torn(const struct hr_weights *set);
/* Finds the home of weight leaf `leaf` (by its name). HR_E_DATA_LOSS (reason FILE) of a torn set.
 * HR_E_NOT_FOUND (reason LEAF) when the set has no such tensor: try the next set, with a cleared
 * diag; HR_E_INVALID (reason LEAF) when type or shape differ. The home's buffer is the set's: no
 * reference is taken. */
HR_NODISCARD hr_status hr_weights_bind(const struct hr_weights *set, const struct hr_graph *graph,
                                       uint32_t leaf, struct hr_diag *diag,
                                       struct hr_leaf_home *ret_home);

/* ---- The store ------------------------------------------------------------------------------- */

struct hr_weights_store;

struct hr_weights_store_config {
        struct hr_fleet *fleet;          /* outlives the store */
        uint64_t bytes_max;              /* contents of all sets, ready or not */
        uint64_t resident_bytes_max;     /* of one file that are read ahead of their first use */
        const char *cache_directory;     /* NULL = no cache on disk */
        uint64_t cache_bytes_max;
        hr_keep keep;
        uint64_t kept_sets_max;
        struct hr_manifest_limits manifest_limits; /* of sets that are taken back */
        void (*wake)(void *arg);         /* thread: any; must not call back into the store */
        void *arg;
};

struct hr_weights_store_stats {
        uint64_t sets, bytes;            /* ready */
        uint64_t working, working_bytes; /* being made */
        uint64_t loads, uploads, failures; /* since the start */
        uint64_t shared;                   /* jobs answered by an equal set */
        uint64_t bytes_hashed, bytes_copied;
        uint64_t given;              /* sets that the service manager has */
        uint64_t taken_back, take_back_failures; /* since the start; failures: descriptors */
        uint64_t waiting;            /* taken back, and held by the store itself */
        struct hr_disk_cache_stats cache;
};

HR_NODISCARD hr_status hr_weights_store_new(const struct hr_weights_store_config *config,
                                            struct hr_diag *diag,
                                            struct hr_weights_store **ret_store);
/* After the last reference to a set and the last job. Waits for copies still in flight. */
struct hr_weights_store *hr_weights_store_free(struct hr_weights_store *store);
/* One bounded portion of work (at most 256 KiB hashed, or one copy queued, or one job told). True
 * when something was done: call again after serving others. False: nothing to do until `wake`. */
bool hr_weights_store_step(struct hr_weights_store *store);
struct hr_weights_store_stats hr_weights_store_stats(const struct hr_weights_store *store);
/* Takes back the sets that an earlier daemon has left with the service manager. What is of no use
 * is closed, there as well, and logged. Before the first step. */
void hr_weights_store_take_back(struct hr_weights_store *store, struct hr_inherited *inherited);
/* Sets that were taken back and that no session holds go; the others with their last handle. */
void hr_weights_store_release(struct hr_weights_store *store);
/* What an eviction has freed, and what somebody holds. */
struct hr_weights_evicted {
        uint64_t sets, bytes, kept_sets, kept_bytes;
};
/* Those of them that nobody holds go, of that name or, with "", of any. */
struct hr_weights_evicted hr_weights_store_evict(struct hr_weights_store *store, const char *name);
/* The process ends: what the manager has stays with it, whatever goes from now on. Thread: any. */
void hr_weights_store_leave(struct hr_weights_store *store);
/* The ready set of that name that became ready last, or NULL; no reference is taken. */
struct hr_weights *hr_weights_store_find(struct hr_weights_store *store, uint64_t viewer,
                                         const char *name);
/* viewer: an owner of sets, or 0. */
static inline bool hr_weights_is_seen_by(const struct hr_weights *set, uint64_t viewer) {
        return set->owner == 0 || set->owner == viewer;
}
/* Iterates over the ready sets, oldest first: NULL starts; returns NULL at the end. */
struct hr_weights *hr_weights_store_next(struct hr_weights_store *store,
                                         struct hr_weights *previous);

/* ---- Jobs: LOAD and PUT ---------------------------------------------------------------------- */

struct hr_weights_job;
/* Called once from hr_weights_store_step(). HR_OK: `set` carries a reference for the callee;
 * `already` tells that an equal set existed or was being made by somebody else. Otherwise set is
 * NULL. The callee may free the job and call anything but hr_weights_store_step/free. */
typedef void (*hr_weights_done_fn)(struct hr_weights_job *job, hr_status status,
                                   const struct hr_diag *diag, struct hr_weights *set,
                                   bool already);

/* Caller's storage, embedded in its request; done and arg are set by the caller. */
struct hr_weights_job {
        hr_weights_done_fn done;
        void *arg;
        uint64_t owner; /* the set's; equal sets and contents are looked for among its own */
        bool is_last;   /* cancelled, it leaves no upload for others to go on with */
        bool is_new;    /* out: its contents were nowhere, or not where they serve */
        /* Private. */
        struct hr_list link;
        struct hr_weights *set;
        bool already;
        atomic_uint_fast64_t done_bytes, total_bytes;
};

/* Takes the job away from its set: done will not be called. The set's making is abandoned when no
 * other job waits for it. A no-op for a job that has ended or never began (zeroed). After it
 * returns nobody may write into an upload of that job. */
void hr_weights_job_cancel(struct hr_weights_job *job);
/* How much of a LOAD's bytes have been read and copied, or of a PUT's have been copied to devices
 * once they are verified. A total of 0: nothing to tell (yet). Done never decreases, and the total
 * does not change once it is known. Thread: any, while the job's storage lives. */
void hr_weights_job_progress(const struct hr_weights_job *job, uint64_t *ret_done,
                             uint64_t *ret_total);

/* A file below one of the model directories: opened, mapped, its table of contents read and
 * checked. One whose path ends with .safetensors is read as such, any other as GGUF. */
struct hr_weights_file;

struct hr_weights_file_config {
        const char *const *directories; /* tried in order */
        uint32_t directory_count;
        struct hr_gguf_limits limits;
};

/* Thread: any, best a worker: it may wait for the disk. HR_E_INVALID (reason PATH) for a path that
 * is empty, absolute, too long, a URL, or has empty, "." or ".." components or control characters;
 * HR_E_NOT_FOUND (reason FILE), with the same words for missing, forbidden, not a regular file and
 * behind a symbolic link; HR_E_INVALID (reason GGUF or SAFETENSORS ...) for the contents;
 * HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_weights_file_open(const struct hr_weights_file_config *config,
                                            const char *path, struct hr_diag *diag,
                                            struct hr_weights_file **ret_file);
struct hr_weights_file *hr_weights_file_free(struct hr_weights_file *file);
/* Of all its tensors. */
uint64_t hr_weights_file_bytes(const struct hr_weights_file *file);

struct hr_weights_opening;
/* The file is the callee's; NULL when status is not HR_OK. Thread: engine. */
typedef void (*hr_weights_opened_fn)(void *arg, hr_status status, const struct hr_diag *diag,
                                     struct hr_weights_file *file);
/* hr_weights_file_open() on a thread of its own: done(arg) is called once, from a later
 * hr_weights_store_step(), unless it is cancelled before. The config's directories outlive it. */
HR_NODISCARD hr_status hr_weights_open(struct hr_weights_store *store,
                                       const struct hr_weights_file_config *config,
                                       const char *path, hr_weights_opened_fn done, void *arg,
                                       struct hr_diag *diag,
                                       struct hr_weights_opening **ret_opening);
/* Before its done. NULL is a no-op. */
void hr_weights_opening_cancel(struct hr_weights_opening *opening);

/* Begins a LOAD. Takes the file, also on failure. `name` NULL or "" means the path. job->done tells
 * the end, never from inside this call: HR_E_DATA_LOSS (reason FILE) when the file cannot be read,
 * or is shorter than it was. The same file (path, identity, size and modification time)
 * with the same placement is the same set. */
HR_NODISCARD hr_status hr_weights_load(struct hr_weights_store *store,
                                       struct hr_weights_file *file, const char *name,
                                       const struct hr_placement_rule *rules, uint32_t rule_count,
                                       struct hr_weights_job *job, struct hr_diag *diag);

struct hr_upload_request {
        struct hr_manifest *manifest; /* taken, also on failure */
        const char *name;             /* 1 to 255 bytes */
        uint64_t total_bytes;         /* the manifest's, with or without the padding after the last
                                       * tensor */
        const uint8_t *digest;        /* HR_DIGEST_BYTES, or NULL: computed, not compared */
        const uint8_t *leaf_digests;  /* HR_DIGEST_BYTES per leaf, or NULL */
        const struct hr_placement_rule *rules;
        uint32_t rule_count;
        /* With a digest: others of the same owner may take part, and what has been received stays
         * when nobody does, until hr_weights_upload_drop(). */
        bool is_kept;
        const void *owner; /* only compared */
        /* All contents, in memory that nobody can change: at least total_bytes, referenced. NULL:
         * they will come. */
        struct hr_image *contents;
};

/* Begins a PUT: plans the placement and takes memory for everything; or takes part in one that is
 * under way (equal owner, digest and name, both kept: HR_E_INVALID, reason MANIFEST, when tensors
 * or places differ); or finds that the contents are there: then *ret_upload is NULL and nothing is
 * to be sent. HR_E_EXHAUSTED names bytes asked and free. An upload of 0 bytes is complete at once.
 * The caller charges its principal first. When the digest or the copies fail, job->done tells
 * HR_E_DATA_LOSS (reason DIGEST). A reference to the upload is the caller's. */
HR_NODISCARD hr_status hr_weights_put(struct hr_weights_store *store,
                                      const struct hr_upload_request *request,
                                      struct hr_weights_job *job, struct hr_diag *diag,
                                      struct hr_upload **ret_upload);
/* Nobody will take part in a kept upload any more: its making is abandoned when no job waits for
 * it. */
void hr_weights_upload_drop(struct hr_weights_store *store, const struct hr_upload *upload);

/* Removes all contents from the cache on disk. */
void hr_weights_store_purge(struct hr_weights_store *store, uint64_t *ret_entries,
                            uint64_t *ret_bytes);

typedef enum hr_contents_state {
        HR_CONTENTS_ABSENT,
        HR_CONTENTS_PLACED, /* a set with equal tensors and places needs no transfer */
        HR_CONTENTS_HELD,   /* no set of them does */
} hr_contents_state;
/* What is there of contents with that digest, as far as the viewer sees it. */
hr_contents_state hr_weights_store_has(struct hr_weights_store *store, uint64_t viewer,
                                       const uint8_t digest[HR_DIGEST_BYTES]);
