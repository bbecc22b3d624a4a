/* What weights.c (store and jobs), weights_layout.c (memory) and weights_file.c (mapped files)
 * share. */
#pragma once

#include <stdatomic.h>

#include "core/mpsc.h"
#include "daemon/image.h"
#include "daemon/upload.h"
#include "daemon/weights.h"
#include "daemon/weights_reader.h"

struct hr_weights_file {
        char *path;
        int fd; /* -1 once a set has it */
        struct hr_file_identity identity;
        struct hr_image *image;
        struct hr_manifest *tensors;
        bool is_aligned;   /* every tensor can be used where it is mapped */
        uint8_t *metadata; /* copy of the key-values, or NULL */
        uint64_t metadata_bytes, metadata_count;
};

struct hr_weights_work {
        struct hr_weights_store *store;
        struct hr_list jobs;
        struct hr_image *image;  /* behind the contents */
        const uint8_t *contents; /* what the manifest's offsets count from */
        bool *in_place;          /* per device: its buffer is a window on the contents */
        bool is_upload;
        struct hr_upload *upload; /* referenced; NULL when the contents were there already */
        const void *owner;        /* whose upload it is */
        bool is_kept;             /* also while no job waits for it */
        bool has_expected;
        uint8_t expected[HR_DIGEST_BYTES];
        bool is_verified;
        bool is_sealing; /* handed to a worker, or done */
        bool is_sealed;  /* from the start */
        bool is_cached;  /* the contents come from the cache on disk */
        atomic_bool cache_failed;
        struct hr_task sealing;
        atomic_int sealed; /* hr_status of it */
        bool is_ending;    /* its jobs are being told of a failure */
        uint32_t tensor;   /* the next to copy, and how far */
        uint64_t tensor_done;
        uint64_t bytes_done;
        /* A file: its tensors are read in their order, ahead of the copies. */
        int fd;
        struct hr_reader_range *ranges; /* one per tensor */
        struct hr_reader_task reading;
        uint64_t skipped_bytes, skipped_done; /* of tensors neither read nor copied */
        atomic_uint in_flight;
        struct hr_outcome outcome;
        struct hr_diag failure;
};

struct hr_weights_store {
        struct hr_weights_store_config config;
        struct hr_list working, ready;
        struct hr_list answered;
        struct hr_reader *reader;
        struct hr_workers *workers;  /* hash and seal */
        struct hr_workers *openers;  /* open files */
        struct hr_mpsc opened;       /* files that they have opened, or could not */
        struct hr_disk_cache *cache; /* NULL = none */
        atomic_bool is_leaving;
        bool has_large_pages; /* of shared memory, on this system */
        uint64_t numbers; /* given to sets */
        struct hr_weights_store_stats stats;
};

/* What differs between a file and an upload until the set exists. */
struct set_plan {
        struct hr_weights_store *store;
        const char *name;
        struct hr_manifest *manifest; /* taken by hr_weights_set_begin, also on failure */
        const struct hr_placement_rule *rules;
        uint32_t rule_count;
        uint64_t contents_bytes;
        bool is_upload;
        uint64_t owner;
};

/* HR_E_EXHAUSTED (reason WEIGHTS_BYTES) when the store has no room for so many bytes more, even
 * after sets that nobody has taken since the start have gone. */
HR_NODISCARD hr_status hr_weights_check_room(struct hr_weights_store *store, uint64_t bytes,
                                             struct hr_diag *diag);
bool hr_weights_uses_host_memory(const struct hr_fleet *fleet, uint32_t index);
/* A set with tables and placement, without memory. */
HR_NODISCARD hr_status hr_weights_set_begin(const struct set_plan *plan, struct hr_diag *diag,
                                            struct hr_weights **ret_set);
/* The contents are a mapped file: windows for the host devices if its tensors are aligned. */
HR_NODISCARD hr_status hr_weights_set_map(struct hr_weights *set,
                                          const struct hr_weights_file *file, struct hr_diag *diag);
/* The contents are memory that a client fills, or an image that has them already (not NULL: then it
 * is used where it is, and referenced). is_charged: devices are charged for it. */
HR_NODISCARD hr_status hr_weights_set_allocate(struct hr_weights *set, uint64_t bytes,
                                               struct hr_image *filled, bool is_charged,
                                               struct hr_diag *diag);
/* Begins to read the tensors: all that are copied, and of those that stay in the mapping as many as
 * memory holds. Takes the file's descriptor. */
HR_NODISCARD hr_status hr_weights_set_read(struct hr_weights *set, struct hr_weights_file *file,
                                           struct hr_diag *diag);
/* After either: buffers for the devices without a window, homes for all tensors. */
HR_NODISCARD hr_status hr_weights_set_place(struct hr_weights *set, struct hr_diag *diag);
void hr_weights_work_free(struct hr_weights_work *work);
/* In whatever stage it is; no chunk may be in flight. NULL is a no-op. */
struct hr_weights *hr_weights_set_free(struct hr_weights *set);

/* Of weights.c, for weights_put.c. The job waits for a set that is being made... */
void hr_weights_job_join(struct hr_weights_job *job, struct hr_weights *set, bool already);
/* ... or will be told of a ready one. */
void hr_weights_job_answer(struct hr_weights_job *job, struct hr_weights *set, bool already);
void hr_weights_store_take(struct hr_weights_store *store, struct hr_weights *set);
/* Takes a set that will not become ready out of the store, unless chunks are in flight. */
void hr_weights_set_abandon(struct hr_weights *set);
bool hr_weights_in_place(const struct hr_weights *set, uint32_t tensor);
/* Some of it lay on a device that is lost. */
bool hr_weights_set_is_lost(const struct hr_weights *set);

/* Of weights_open.c: tells of one file that has been opened. True when there was one. */
bool hr_weights_opened_portion(struct hr_weights_store *store);

/* Of weights_put.c. True when the contents are verified, and sealed where they stay, or when that
 * has failed (work->failure). *ret_did: something was done. */
bool hr_weights_upload_verified(struct hr_weights *set, bool *ret_did);
/* A ready upload with equal name, tensors, places and digest, or NULL. */
struct hr_weights *hr_weights_same_upload(const struct hr_weights *set);

/* Of weights_keep.c. A set that has become ready is given to the service manager, if it can
 * be... */
void hr_weights_give(struct hr_weights *set);
/* ... and taken away from it before it is freed. */
void hr_weights_take_away(struct hr_weights *set);
/* A set that was taken back and that nobody holds goes, for one that is wanted. False: there is
 * none. */
bool hr_weights_make_way(struct hr_weights_store *store);
