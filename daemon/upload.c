/*
 * The table of leaves, the streams that fill it, and the hashes.
 *
 * Invariants: a leaf belongs to one stream at most, and only its stream's memory is written. The
 * leaves of a stream are filled in the order in which they were given. `missing` counts the leaves
 * that nobody has; `next` is where the search for one begins.
 */
#include "daemon/upload.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

typedef enum leaf_state { LEAF_MISSING, LEAF_GIVEN, LEAF_RECEIVED } leaf_state;

struct leaf {
        struct hr_task task, bringing;
        atomic_bool is_bringing; /* `bringing` is a worker's */
        struct hr_upload *upload;
        uint8_t digest[HR_DIGEST_BYTES];
        uint8_t state; /* the loop's */
};

struct hr_upload {
        atomic_uint refs;
        struct hr_image *image;
        uint64_t total_bytes;
        uint32_t leaf_count;
        uint8_t *expected; /* digests of the leaves, or NULL */
        struct hr_workers *workers;
        bool is_in_place;
        void (*wake)(void *arg);
        void *arg;
        struct leaf *leaves;
        uint32_t missing, next;              /* the loop's */
        atomic_uint_fast64_t received_bytes; /* written by the loop */
        atomic_uint received, hashed;        /* leaves */
        atomic_uint_fast64_t bad;            /* the first wrong leaf, plus one */
        atomic_bool is_abandoned, library_failed;
};

uint64_t hr_upload_leaves(uint64_t total_bytes) {
        return total_bytes / HR_DIGEST_LEAF_BYTES + (total_bytes % HR_DIGEST_LEAF_BYTES != 0);
}

static uint64_t leaf_start(uint32_t leaf) {
        return leaf * HR_DIGEST_LEAF_BYTES;
}

static uint64_t leaf_bytes(const struct hr_upload *upload, uint32_t leaf) {
        return HR_MIN(upload->total_bytes - leaf_start(leaf), HR_DIGEST_LEAF_BYTES);
}

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_upload_new(const struct hr_upload_config *config, struct hr_diag *diag,
                        struct hr_upload **ret_upload) {
        const uint64_t count = hr_upload_leaves(config->total_bytes);
        struct hr_upload *upload = calloc(1, sizeof *upload);

        HR_ASSERT(config->total_bytes <= config->image->bytes || config->total_bytes == 0);
        if (!upload || count >= UINT32_MAX) {
                free(upload);
                return hr_fail(diag, HR_E_EXHAUSTED, "an upload of %" PRIu64 " leaves", count);
        }
        atomic_init(&upload->refs, 1);
        upload->leaves = calloc((size_t) count + 1, sizeof *upload->leaves);
        if (config->leaf_digests)
                upload->expected = malloc((size_t) count * HR_DIGEST_BYTES + 1);
        if (!upload->leaves || (config->leaf_digests && !upload->expected)) {
                (void) hr_upload_unref(upload);
                return hr_fail(diag, HR_E_EXHAUSTED, "an upload of %" PRIu64 " leaves", count);
        }
        if (config->leaf_digests)
                memcpy(upload->expected, config->leaf_digests, (size_t) count * HR_DIGEST_BYTES);
        upload->image = hr_image_ref(config->image);
        upload->total_bytes = config->total_bytes;
        upload->leaf_count = upload->missing = (uint32_t) count;
        upload->workers = config->workers;
        upload->is_in_place = config->is_in_place;
        upload->wake = config->wake;
        upload->arg = config->arg;
        for (uint32_t i = 0; i < upload->leaf_count; i++)
                upload->leaves[i].upload = upload;
        *ret_upload = upload;
        return HR_OK;
}

struct hr_upload *hr_upload_ref(struct hr_upload *upload) {
        atomic_fetch_add(&upload->refs, 1);
        return upload;
}

struct hr_upload *hr_upload_unref(struct hr_upload *upload) {
        if (upload && atomic_fetch_sub(&upload->refs, 1) == 1) {
                (void) hr_image_unref(upload->image);
                free(upload->expected);
                free(upload->leaves);
                free(upload);
        }
        return NULL;
}

/* ---- hashing --------------------------------------------------------------------------------- */

/* Thread: a worker's. */
static void leaf_hash(struct hr_task *task) {
        struct leaf *leaf = HR_CONTAINER_OF(task, struct leaf, task);
        struct hr_upload *upload = leaf->upload;
        const uint32_t index = (uint32_t) (leaf - upload->leaves);
        uint_fast64_t none = 0;

        if (!atomic_load(&upload->is_abandoned)) {
                if (hr_sha256(upload->image->base + leaf_start(index), leaf_bytes(upload, index),
                              NULL, leaf->digest) != HR_OK)
                        atomic_store(&upload->library_failed, true);
                else if (upload->expected &&
                         !hr_digest_equal(leaf->digest,
                                          upload->expected + (size_t) index * HR_DIGEST_BYTES))
                        (void) atomic_compare_exchange_strong(&upload->bad, &none, index + 1);
                atomic_fetch_add_explicit(&upload->hashed, 1, memory_order_release);
                upload->wake(upload->arg);
        }
        (void) hr_upload_unref(upload);
}

static void leaf_complete(struct hr_upload *upload, uint32_t index) {
        struct leaf *leaf = &upload->leaves[index];

        leaf->state = LEAF_RECEIVED;
        leaf->task.run = leaf_hash;
        atomic_fetch_add(&upload->received, 1);
        (void) hr_upload_ref(upload);
        hr_workers_add(upload->workers, &leaf->task);
}

void hr_upload_fill(struct hr_upload *upload) {
        HR_ASSERT(upload->missing == upload->leaf_count);
        upload->missing = 0;
        atomic_store(&upload->received_bytes, upload->total_bytes);
        for (uint32_t i = 0; i < upload->leaf_count; i++)
                leaf_complete(upload, i);
}

void hr_upload_abandon(struct hr_upload *upload) {
        atomic_store(&upload->is_abandoned, true);
}

bool hr_upload_is_abandoned(const struct hr_upload *upload) {
        return atomic_load(&upload->is_abandoned);
}

uint64_t hr_upload_received(const struct hr_upload *upload) {
        return atomic_load_explicit(&upload->received_bytes, memory_order_acquire);
}

uint64_t hr_upload_total(const struct hr_upload *upload) {
        return upload->total_bytes;
}

bool hr_upload_is_received(const struct hr_upload *upload) {
        return atomic_load(&upload->received) == upload->leaf_count;
}

hr_status hr_upload_check(const struct hr_upload *upload, struct hr_diag *diag,
                          bool *ret_is_hashed) {
        const uint64_t bad = atomic_load(&upload->bad);
        hr_status status;

        if (atomic_load(&upload->library_failed))
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a digest");
        if (bad > 0) {
                status = hr_fail_reason(diag, HR_E_DATA_LOSS, "DIGEST",
                                        "leaf %" PRIu64 " does not have the announced digest",
                                        bad - 1);
                if (diag && diag->status == status) {
                        diag->field = "leaf";
                        diag->actual = bad - 1;
                        diag->limit = upload->leaf_count;
                }
                return status;
        }
        *ret_is_hashed =
                atomic_load_explicit(&upload->hashed, memory_order_acquire) == upload->leaf_count;
        return HR_OK;
}

hr_status hr_upload_digest(const struct hr_upload *upload, struct hr_diag *diag,
                           uint8_t ret_digest[HR_DIGEST_BYTES]) {
        uint8_t *all = malloc((size_t) upload->leaf_count * HR_DIGEST_BYTES + 1);
        hr_status status;

        if (!all)
                return hr_fail(diag, HR_E_EXHAUSTED, "digests of %u leaves", upload->leaf_count);
        for (uint32_t i = 0; i < upload->leaf_count; i++)
                memcpy(all + (size_t) i * HR_DIGEST_BYTES, upload->leaves[i].digest,
                       HR_DIGEST_BYTES);
        status = hr_sha256(all, (size_t) upload->leaf_count * HR_DIGEST_BYTES, diag, ret_digest);
        free(all);
        return status;
}

void hr_upload_map(const struct hr_upload *upload, uint8_t *ret_bits) {
        memset(ret_bits, 0, (upload->leaf_count + 7) / 8);
        for (uint32_t i = 0; i < upload->leaf_count; i++)
                if (upload->leaves[i].state == LEAF_RECEIVED)
                        ret_bits[i / 8] = (uint8_t) (ret_bits[i / 8] | 1U << i % 8);
}

/* The system clears and maps pages when they are first written: a whole leaf at once costs less
 * than page by page, and costs a worker. Where the system cannot do it the loop does. Thread: a
 * worker's. */
static void leaf_bring(struct hr_task *task) {
        struct leaf *leaf = HR_CONTAINER_OF(task, struct leaf, bringing);
        struct hr_upload *upload = leaf->upload;
        const uint32_t index = (uint32_t) (leaf - upload->leaves);

        if (!atomic_load(&upload->is_abandoned))
                (void) madvise(upload->image->base + leaf_start(index), leaf_bytes(upload, index),
                               MADV_POPULATE_WRITE);
        atomic_store(&leaf->is_bringing, false);
        (void) hr_upload_unref(upload);
}

static void leaf_expect(struct hr_upload *upload, uint32_t index) {
        struct leaf *leaf = &upload->leaves[index];

        if (atomic_exchange(&leaf->is_bringing, true))
                return;
        leaf->bringing.run = leaf_bring;
        (void) hr_upload_ref(upload);
        hr_workers_add(upload->workers, &leaf->bringing);
}

/* ---- streams --------------------------------------------------------------------------------- */

static uint32_t stream_leaf(const struct hr_upload_stream *stream, uint32_t position) {
        return stream->leaves[(stream->first + position) % stream->room];
}

hr_status hr_upload_join(struct hr_upload *upload, uint64_t window_bytes, struct hr_diag *diag,
                         struct hr_upload_stream *ret_stream) {
        const uint64_t room =
                HR_MIN(window_bytes / HR_DIGEST_LEAF_BYTES + 2, (uint64_t) upload->leaf_count + 1);

        *ret_stream = (struct hr_upload_stream){.room = (uint32_t) room};
        ret_stream->leaves = calloc((size_t) room, sizeof *ret_stream->leaves);
        if (!ret_stream->leaves)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a stream of an upload");
        ret_stream->upload = hr_upload_ref(upload);
        return HR_OK;
}

void hr_upload_leave(struct hr_upload_stream *stream) {
        struct hr_upload *upload = stream->upload;

        if (!upload)
                return;
        for (uint32_t i = 0; i < stream->count; i++) {
                const uint32_t leaf = stream_leaf(stream, i);

                HR_ASSERT(upload->leaves[leaf].state == LEAF_GIVEN);
                upload->leaves[leaf].state = LEAF_MISSING;
                upload->missing++;
                upload->next = HR_MIN(upload->next, leaf);
        }
        atomic_fetch_sub(&upload->received_bytes, stream->first_done);
        free(stream->leaves);
        stream->leaves = NULL;
        stream->count = 0;
        stream->first_done = 0;
        stream->upload = hr_upload_unref(upload);
}

/* The leaf behind the last one given, if it is missing, else the first that is. */
static bool stream_take_leaf(struct hr_upload_stream *stream) {
        struct hr_upload *upload = stream->upload;
        uint32_t leaf;

        if (upload->missing == 0 || stream->count == stream->room)
                return false;
        leaf = stream->count > 0 ? stream_leaf(stream, stream->count - 1) + 1 : upload->next;
        if (leaf >= upload->leaf_count || upload->leaves[leaf].state != LEAF_MISSING)
                for (leaf = upload->next; upload->leaves[leaf].state != LEAF_MISSING; leaf++)
                        HR_ASSERT(leaf + 1 < upload->leaf_count);
        if (leaf == upload->next)
                upload->next++;
        upload->leaves[leaf].state = LEAF_GIVEN;
        if (upload->is_in_place)
                leaf_expect(upload, leaf);
        upload->missing--;
        if (upload->missing == 0)
                upload->next = upload->leaf_count;
        stream->leaves[(stream->first + stream->count) % stream->room] = leaf;
        stream->count++;
        stream->last_granted = 0;
        return true;
}

uint64_t hr_upload_grant(struct hr_upload_stream *stream, uint64_t bytes_max,
                         uint64_t *ret_offset) {
        const struct hr_upload *upload = stream->upload;
        uint32_t leaf;
        uint64_t bytes;

        if (bytes_max == 0)
                return 0;
        if (stream->count == 0 ||
            stream->last_granted == leaf_bytes(upload, stream_leaf(stream, stream->count - 1)))
                if (!stream_take_leaf(stream))
                        return 0;
        leaf = stream_leaf(stream, stream->count - 1);
        bytes = HR_MIN(bytes_max, leaf_bytes(upload, leaf) - stream->last_granted);
        *ret_offset = leaf_start(leaf) + stream->last_granted;
        stream->last_granted += bytes;
        stream->granted_bytes += bytes;
        return bytes;
}

/* Bytes granted from the next expected one on, as far as they lie one behind the other. */
static uint64_t stream_run(const struct hr_upload_stream *stream) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < stream->count; i++) {
                const uint32_t leaf = stream_leaf(stream, i);

                if (i > 0 && leaf != stream_leaf(stream, i - 1) + 1)
                        break;
                bytes += i + 1 < stream->count ? leaf_bytes(stream->upload, leaf)
                                               : stream->last_granted;
        }
        return bytes - stream->first_done;
}

hr_status hr_upload_place(struct hr_upload_stream *stream, uint64_t offset, uint64_t bytes,
                          struct hr_diag *diag, uint8_t **ret_memory) {
        const struct hr_upload *upload = stream->upload;
        const uint64_t run = stream_run(stream);
        const uint64_t next = run > 0 ? leaf_start(stream_leaf(stream, 0)) + stream->first_done
                                      : upload->total_bytes;
        const char *reason = offset != next && run > 0            ? "OFFSET"
                             : bytes > upload->total_bytes - next ? "SIZE"
                             : bytes > run                        ? "CREDIT"
                                                                  : NULL;
        hr_status status;

        if (!reason) {
                *ret_memory = upload->image->base + next;
                return HR_OK;
        }
        status = hr_fail_reason(diag, HR_E_RANGE, reason,
                                "%" PRIu64 " bytes at %" PRIu64 ", due are %" PRIu64 " at %" PRIu64,
                                bytes, offset, run, next);
        if (diag && diag->status == status) {
                diag->limit = *reason == 'O' ? next : run;
                diag->actual = *reason == 'O' ? offset : bytes;
        }
        return status;
}

struct hr_image *hr_upload_written(const struct hr_upload_stream *stream) {
        return stream->upload->is_in_place ? NULL : stream->upload->image;
}

void hr_upload_commit(struct hr_upload_stream *stream, uint64_t bytes) {
        struct hr_upload *upload = stream->upload;

        stream->received_bytes += bytes;
        atomic_fetch_add_explicit(&upload->received_bytes, bytes, memory_order_release);
        while (bytes > 0) {
                const uint32_t leaf = stream_leaf(stream, 0);
                const uint64_t part = HR_MIN(bytes, leaf_bytes(upload, leaf) - stream->first_done);

                HR_ASSERT(stream->count > 0);
                bytes -= part;
                stream->first_done += part;
                if (stream->first_done < leaf_bytes(upload, leaf))
                        break;
                stream->first = (stream->first + 1) % stream->room;
                stream->count--;
                stream->first_done = 0;
                leaf_complete(upload, leaf);
        }
}
