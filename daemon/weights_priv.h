/* What weights.c (store and jobs), weights_layout.c (memory) and weights_file.c (mapped files)
 * share. */
#pragma once

#include <stdatomic.h>

#include "daemon/weights.h"
#include "daemon/weights_reader.h"

/* A range of memory mapped for one or more buffers: a file, or staging memory. Unmapped with the
 * last reference. Every mapped range of a file is known by one of these. Thread: any. */
struct hr_image {
        atomic_uint refs;
        uint8_t *base;
        uint64_t bytes;
};

/* Takes the mapping, also on failure. */
HR_NODISCARD hr_status hr_image_new(void *base, uint64_t bytes, struct hr_diag *diag,
                                    struct hr_image **ret_image);
/* Zero-filled memory. HR_E_EXHAUSTED without it. */
HR_NODISCARD hr_status hr_image_new_memory(uint64_t bytes, struct hr_diag *diag,
                                           struct hr_image **ret_image);
struct hr_image *hr_image_ref(struct hr_image *image);
struct hr_image *hr_image_unref(struct hr_image *image);

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

struct hr_upload {
        struct hr_weights_store *store;
        uint8_t *memory;
        uint64_t total_bytes;
        uint64_t claimed;              /* the receiving thread's: bytes of the open place */
        atomic_uint_fast64_t received; /* written by the receiving thread */
};

struct hr_weights_work {
        struct hr_weights_store *store;
        struct hr_list jobs;
        struct hr_image *image;  /* mapping behind the contents, or NULL */
        const uint8_t *contents; /* what the manifest's offsets count from */
        bool *in_place;          /* per device: its buffer is a window on the contents */
        bool is_upload;
        struct hr_upload upload;
        struct hr_tree_digest digest;
        bool has_expected;
        uint8_t expected[HR_DIGEST_BYTES];
        bool is_verified;
        bool is_ending;          /* its jobs are being told of a failure */
        uint32_t tensor; /* the next to copy, and how far */
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
};

/* A set with tables and placement, without memory. */
HR_NODISCARD hr_status hr_weights_set_begin(const struct set_plan *plan, struct hr_diag *diag,
                                            struct hr_weights **ret_set);
/* The contents are a mapped file: windows for the host devices if its tensors are aligned. */
HR_NODISCARD hr_status hr_weights_set_map(struct hr_weights *set,
                                          const struct hr_weights_file *file, struct hr_diag *diag);
/* The contents are memory that a client fills. */
HR_NODISCARD hr_status hr_weights_set_allocate(struct hr_weights *set, uint64_t bytes,
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
