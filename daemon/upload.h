/*
 * The receiving end of an upload.
 *
 * The contents are cut into leaves of HR_DIGEST_LEAF_BYTES. Streams (one per request that sends)
 * are given leaves that are missing, send each from its first byte to its last, and may leave at
 * any moment: what they were given and have not filled is missing again. So several connections
 * share one upload, and a broken one costs the leaf it was in. Where shared memory comes in large
 * pages, a leaf that is given is brought in by a worker, so that the loop, which fills it, does not
 * wait for pages. Elsewhere the loop writes what it has received through the descriptor: for each
 * small page, clearing and mapping it first costs more than copying from the cache does. A leaf
 * that is complete is hashed by a worker.
 *
 *   MISSING --grant--> GIVEN --complete--> RECEIVED --hashed--> HASHED
 *      ^                 |
 *      +-----leave-------+
 *
 * References: the set that is being made, each stream and each hash under way hold one; the memory
 * goes with the last.
 *
 * Threads: loop for streams, workers for hashes, engine for the rest; what crosses is atomic.
 */
#pragma once

#include <stdatomic.h>

#include "core/list.h"
#include "daemon/digest.h"
#include "daemon/image.h"
#include "daemon/workers.h"

struct hr_upload;

struct hr_upload_config {
        struct hr_image *image;      /* where the contents go; referenced */
        uint64_t total_bytes;        /* at most the image's */
        const uint8_t *leaf_digests; /* HR_DIGEST_BYTES per leaf, copied; NULL = not known */
        struct hr_workers *workers;
        bool is_in_place; /* streams fill the image's memory, which workers bring in ahead of them;
                           * else they write through its descriptor (hr_image_write()) */
        void (*wake)(void *arg); /* a leaf has been hashed. Thread: a worker's */
        void *arg;
};

/* Leaves of so many bytes. */
uint64_t hr_upload_leaves(uint64_t total_bytes);

HR_NODISCARD hr_status hr_upload_new(const struct hr_upload_config *config, struct hr_diag *diag,
                                     struct hr_upload **ret_upload);
struct hr_upload *hr_upload_ref(struct hr_upload *upload);
/* NULL is a no-op. Returns NULL. */
struct hr_upload *hr_upload_unref(struct hr_upload *upload);

/* All contents are there already: every leaf is hashed. Before any stream. */
void hr_upload_fill(struct hr_upload *upload);
/* Nobody wants it any more: leaves that have not been hashed yet are not. */
void hr_upload_abandon(struct hr_upload *upload);
bool hr_upload_is_abandoned(const struct hr_upload *upload);
/* Bytes received, counted by whole leaves and what streams have of theirs. */
uint64_t hr_upload_received(const struct hr_upload *upload);
uint64_t hr_upload_total(const struct hr_upload *upload);
bool hr_upload_is_received(const struct hr_upload *upload);
/* HR_OK and all leaves are hashed: true. A leaf that has another digest than was announced:
 * HR_E_DATA_LOSS (reason DIGEST, field "leaf", actual its number), at once. */
HR_NODISCARD hr_status hr_upload_check(const struct hr_upload *upload, struct hr_diag *diag,
                                       bool *ret_is_hashed);
/* The digest of the contents, when all leaves are hashed. */
HR_NODISCARD hr_status hr_upload_digest(const struct hr_upload *upload, struct hr_diag *diag,
                                        uint8_t ret_digest[HR_DIGEST_BYTES]);
/* One bit per leaf that has been received, the first leaf's lowest; room for (leaves + 7) / 8. */
void hr_upload_map(const struct hr_upload *upload, uint8_t *ret_bits);

/* Caller's storage; zeroed is valid to leave. */
struct hr_upload_stream {
        struct hr_upload *upload;               /* referenced */
        struct hr_list link;                    /* the caller's */
        uint64_t granted_bytes, received_bytes; /* in all */
        /* Private: leaves given, in order; of the first so many bytes have come, of the last so
         * many are granted. */
        uint32_t *leaves;
        uint32_t room, first, count;
        uint64_t first_done, last_granted;
};

/* A stream with room for leaves of `window_bytes` granted at once. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_upload_join(struct hr_upload *upload, uint64_t window_bytes,
                                      struct hr_diag *diag, struct hr_upload_stream *ret_stream);
/* Gives back the leaves that are not complete, and the reference. Idempotent. */
void hr_upload_leave(struct hr_upload_stream *stream);
/* The next bytes that the stream may send, at most `bytes_max`, within one leaf. 0: nothing is
 * missing that others do not send. */
uint64_t hr_upload_grant(struct hr_upload_stream *stream, uint64_t bytes_max, uint64_t *ret_offset);
/* Where the `bytes` bytes at `offset` go: the next that were granted. HR_E_RANGE (reason OFFSET,
 * SIZE or CREDIT). The memory may be written until the commit. */
HR_NODISCARD hr_status hr_upload_place(struct hr_upload_stream *stream, uint64_t offset,
                                       uint64_t bytes, struct hr_diag *diag, uint8_t **ret_memory);
/* The image that the place is written through; NULL: the place is filled. */
struct hr_image *hr_upload_written(const struct hr_upload_stream *stream);
/* `bytes` bytes of the place are there. */
void hr_upload_commit(struct hr_upload_stream *stream, uint64_t bytes);
