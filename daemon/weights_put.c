/*
 * PUT: sets of contents that clients send, and what is known by a digest.
 *
 * A PUT asks, in this order: is there a ready set that equals it; does the owner already upload
 * these contents; do the buffers, or the memory, of another set have them. Only otherwise does it
 * begin an upload of its own.
 *
 * What has come is hashed by workers, leaf by leaf (upload.c). When all is hashed the digest is
 * compared; contents that stay in host memory are then sealed by a worker, since taking a writable
 * mapping away takes time.
 */
#include "daemon/weights_priv.h"

#include <inttypes.h>
#include <string.h>

#define UPLOAD_NAME_BYTES_MAX 255U

HR_DEFINE_CLEANUP(struct hr_weights *, set_freep, hr_weights_set_free)

static hr_status check_upload(const struct hr_upload_request *request, struct hr_diag *diag) {
        const struct hr_manifest *manifest = request->manifest;
        const size_t name_bytes = strnlen(request->name, UPLOAD_NAME_BYTES_MAX + 1);
        const struct hr_manifest_tensor *last = &manifest->tensors[manifest->tensor_count - 1];

        if (name_bytes == 0 || name_bytes > UPLOAD_NAME_BYTES_MAX)
                return hr_fail_reason(diag, HR_E_INVALID, "NAME", "a set's name has 1 to %u bytes",
                                      UPLOAD_NAME_BYTES_MAX);
        if (request->total_bytes == manifest->total_bytes ||
            request->total_bytes == last->offset + last->bytes)
                return HR_OK;
        if (diag && diag->status == HR_OK) {
                diag->limit = manifest->total_bytes;
                diag->actual = request->total_bytes;
        }
        return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                              "%" PRIu64 " bytes announced, the manifest has %" PRIu64,
                              request->total_bytes, manifest->total_bytes);
}

static bool same_places(const struct hr_weights *a, const struct hr_weights *b) {
        return hr_manifest_equal(a->manifest, b->manifest) &&
               memcmp(a->placement.devices, b->placement.devices,
                      a->placement.tensor_count * sizeof *a->placement.devices) == 0;
}

/* A ready upload with these contents: one that needs nothing at all if there is one, else one whose
 * buffers serve, else one whose contents are still there. */
static struct hr_weights *find_contents(struct hr_weights_store *store,
                                        const struct hr_weights *wanted,
                                        const uint8_t digest[HR_DIGEST_BYTES]) {
        struct hr_weights *found = NULL;

        HR_LIST_FOR_EACH(link, &store->ready) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);
                const bool placed = !hr_weights_set_is_lost(set) && same_places(set, wanted);

                if (set->from_file || set->owner != wanted->owner || !set->has_digest ||
                    !hr_digest_equal(set->digest, digest) ||
                    set->contents_bytes != wanted->contents_bytes)
                        continue;
                if (placed && strcmp(set->name, wanted->name) == 0)
                        return set;
                if (placed || (set->image && (!found || !same_places(found, wanted))))
                        found = set;
        }
        return found;
}

/* The set has the buffers, and the contents, of another one. */
static void set_alias(struct hr_weights *set, const struct hr_weights *other) {
        for (uint32_t i = 0; i < set->placement.device_count; i++)
                if (other->buffers[i])
                        set->buffers[i] = hr_buffer_ref(other->buffers[i]);
        memcpy(set->homes, other->homes, set->manifest->tensor_count * sizeof *set->homes);
        if (other->image)
                set->image = hr_image_ref(other->image);
        set->work->tensor = set->manifest->tensor_count; /* nothing is to be copied */
        set->work->is_verified = true;
        set->work->is_sealing = true;
}

/* The contents are in memory, verified, under a digest that is known. */
static void set_is_filled(struct hr_weights *set, const uint8_t digest[HR_DIGEST_BYTES]) {
        set->has_digest = true;
        memcpy(set->digest, digest, HR_DIGEST_BYTES);
        set->work->is_verified = true;
        set->work->is_sealing = true;
}

/* Whether its contents stay in host memory. */
static bool contents_stay(const struct hr_weights *set) {
        bool stays = set->store->config.keep == HR_KEEP_ALL;

        for (uint32_t i = 0; i < set->placement.device_count; i++)
                stays |= set->work->in_place[i];
        return stays;
}

/* From what another set has, which is held meanwhile. */
static hr_status put_from(struct hr_weights *set, struct hr_weights *other, struct hr_diag *diag) {
        set_is_filled(set, other->digest);
        if (!hr_weights_set_is_lost(other) && same_places(set, other)) {
                set_alias(set, other);
                return HR_OK;
        }
        HR_TRY(hr_weights_set_allocate(set, set->manifest->total_bytes, other->image, false, diag));
        HR_TRY(hr_weights_set_place(set, diag));
        if (contents_stay(set))
                set->image = hr_image_ref(set->work->image);
        return HR_OK;
}

/* An upload of the owner's that is under way and may be joined, or NULL. */
static struct hr_weights *find_upload(struct hr_weights_store *store,
                                      const struct hr_upload_request *request) {
        HR_LIST_FOR_EACH(link, &store->working) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);
                const struct hr_weights_work *work = set->work;

                if (work->upload && work->is_kept && work->owner == request->owner &&
                    work->failure.status == HR_OK &&
                    hr_digest_equal(work->expected, request->digest) &&
                    strcmp(set->name, request->name) == 0)
                        return set;
        }
        return NULL;
}

static hr_status put_join(struct hr_weights *set, const struct hr_weights *wanted,
                          struct hr_weights_job *job, struct hr_diag *diag,
                          struct hr_upload **ret_upload) {
        if (set->contents_bytes != wanted->contents_bytes || set->owner != wanted->owner ||
            !same_places(set, wanted))
                return hr_fail_reason(diag, HR_E_INVALID, "MANIFEST",
                                      "these contents are being uploaded as other tensors, to "
                                      "other places, or for others to find");
        hr_weights_job_join(job, set, false);
        *ret_upload = hr_upload_ref(set->work->upload);
        return HR_OK;
}

static void count_skipped(struct hr_weights *set) {
        for (uint32_t i = 0; i < set->manifest->tensor_count; i++)
                if (hr_weights_in_place(set, i))
                        set->work->skipped_bytes += set->manifest->tensors[i].bytes;
}

/* Thread: the cache's. */
static void cached_read(void *arg, bool is_read) {
        struct hr_weights_work *work = arg;
        /* Copied: after the decrement the engine may free the work, and the store with it. */
        const struct hr_weights_store_config config = work->store->config;

        if (is_read)
                hr_upload_fill(work->upload);
        else
                atomic_store(&work->cache_failed, true);
        atomic_fetch_sub_explicit(&work->in_flight, 1, memory_order_release);
        config.wake(config.arg);
}

/* The contents come from the disk, and are hashed like those that clients send. */
static hr_status put_cached(struct hr_weights *set, struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;

        work->is_cached = true;
        work->is_kept = false;
        atomic_fetch_add(&work->in_flight, 1);
        if (hr_disk_cache_get(set->store->cache, work->expected, work->image, set->contents_bytes,
                              cached_read, work, diag) == HR_OK)
                return HR_OK;
        atomic_fetch_sub(&work->in_flight, 1);
        return diag->status;
}

/* What was on the disk is not what it was: the client sends it. */
static void cache_fail(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;

        hr_disk_cache_damaged(set->store->cache, work->expected);
        hr_diag_clear(&work->failure);
        (void) hr_fail_reason(&work->failure, HR_E_UNAVAILABLE, "CACHE",
                              "the copy on disk was damaged and is gone: send the contents");
        work->failure.retry_after_ms = 1;
}

/* Everything has to come. */
static hr_status put_new(struct hr_weights *set, const struct hr_upload_request *request,
                         struct hr_diag *diag, struct hr_upload **ret_upload) {
        struct hr_weights_work *work = set->work;
        struct hr_upload_config config = {
                .total_bytes = request->total_bytes,
                .leaf_digests = request->leaf_digests,
                .workers = set->store->workers,
                .is_in_place = set->store->has_large_pages,
                .wake = set->store->config.wake,
                .arg = set->store->config.arg,
        };

        if (request->digest) {
                work->has_expected = true;
                memcpy(work->expected, request->digest, HR_DIGEST_BYTES);
        }
        work->is_sealed = request->contents != NULL;
        work->is_kept = request->is_kept && request->digest;
        work->owner = request->owner;
        HR_TRY(hr_weights_set_allocate(set, set->manifest->total_bytes, request->contents, true,
                                       diag));
        HR_TRY(hr_weights_set_place(set, diag));
        config.image = work->image;
        HR_TRY(hr_upload_new(&config, diag, &work->upload));
        if (request->contents)
                hr_upload_fill(work->upload);
        else if (request->digest && set->owner == 0 &&
                 hr_disk_cache_has(set->store->cache, request->digest, request->total_bytes))
                return put_cached(set, diag);
        else
                *ret_upload = hr_upload_ref(work->upload);
        if (request->digest && !request->contents)
                hr_disk_cache_miss(set->store->cache);
        return HR_OK;
}

/* The announced digests of the leaves have to have the announced digest. */
static hr_status check_leaf_digests(const struct hr_upload_request *request, struct hr_diag *diag) {
        uint8_t digest[HR_DIGEST_BYTES];

        if (!request->leaf_digests || !request->digest)
                return HR_OK;
        HR_TRY(hr_sha256(request->leaf_digests,
                         hr_upload_leaves(request->total_bytes) * HR_DIGEST_BYTES, diag, digest));
        if (hr_digest_equal(digest, request->digest))
                return HR_OK;
        return hr_fail_reason(diag, HR_E_INVALID, "MANIFEST",
                              "the leaves' digests do not have the announced digest");
}

static hr_status put_set(struct hr_weights *set, const struct hr_upload_request *request,
                         struct hr_weights_job *job, struct hr_diag *diag,
                         struct hr_upload **ret_upload) {
        struct hr_weights_store *store = set->store;
        struct hr_weights *there = NULL;
        hr_status status;

        if (request->digest)
                there = find_contents(store, set, request->digest);
        if (!there || (!there->image && !same_places(there, set))) {
                HR_TRY(put_new(set, request, diag, ret_upload));
                job->already = set->work->is_cached;
                job->is_new = true;
                return HR_OK;
        }
        store->stats.shared++;
        (void) hr_weights_ref(there);
        status = put_from(set, there, diag);
        (void) hr_weights_unref(there);
        HR_TRY(status);
        job->already = true;
        return HR_OK;
}

hr_status hr_weights_put(struct hr_weights_store *store, const struct hr_upload_request *request,
                         struct hr_weights_job *job, struct hr_diag *diag,
                         struct hr_upload **ret_upload) {
        HR_CLEANUP(hr_manifest_freep) struct hr_manifest *manifest = request->manifest;
        HR_CLEANUP(set_freep) struct hr_weights *set = NULL;
        struct hr_weights *other = NULL;
        struct set_plan plan = {
                .store = store,
                .name = request->name,
                .rules = request->rules,
                .rule_count = request->rule_count,
                .is_upload = true,
                .owner = job->owner,
        };

        HR_TRY(check_upload(request, diag));
        HR_TRY(check_leaf_digests(request, diag));
        plan.manifest = HR_STEAL(manifest);
        HR_TRY(hr_weights_set_begin(&plan, diag, &set));
        set->contents_bytes = request->total_bytes;
        if (request->digest)
                other = find_contents(store, set, request->digest);
        if (other && strcmp(other->name, set->name) == 0 && !hr_weights_set_is_lost(other) &&
            same_places(other, set)) {
                store->stats.shared++;
                hr_weights_job_answer(job, other, true);
                return HR_OK;
        }
        if (request->is_kept && request->digest) {
                other = find_upload(store, request);
                if (other)
                        return put_join(other, set, job, diag, ret_upload);
        }
        HR_TRY(hr_weights_check_room(store, set->manifest->total_bytes, diag));
        HR_TRY(put_set(set, request, job, diag, ret_upload));
        count_skipped(set);
        store->stats.uploads++;
        hr_weights_store_take(store, set);
        hr_weights_job_join(job, set, job->already);
        set = NULL; /* the store's now */
        return HR_OK;
}

void hr_weights_upload_drop(struct hr_weights_store *store, const struct hr_upload *upload) {
        HR_LIST_FOR_EACH(link, &store->working) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (set->work->upload != upload)
                        continue;
                set->work->is_kept = false;
                if (hr_list_is_empty(&set->work->jobs) && !set->work->is_ending)
                        hr_weights_set_abandon(set);
                return;
        }
}

hr_contents_state hr_weights_store_has(struct hr_weights_store *store, uint64_t viewer,
                                       const uint8_t digest[HR_DIGEST_BYTES]) {
        hr_contents_state state = HR_CONTENTS_ABSENT;

        HR_LIST_FOR_EACH(link, &store->ready) {
                const struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (set->from_file || !hr_weights_is_seen_by(set, viewer) || !set->has_digest ||
                    !hr_digest_equal(set->digest, digest))
                        continue;
                if (set->image)
                        return HR_CONTENTS_HELD;
                if (!hr_weights_set_is_lost(set))
                        state = HR_CONTENTS_PLACED;
        }
        return hr_disk_cache_has(store->cache, digest, 0) ? HR_CONTENTS_HELD : state;
}

/* A ready upload with equal name, tensors, places and digest, or NULL. */
struct hr_weights *hr_weights_same_upload(const struct hr_weights *set) {
        HR_LIST_FOR_EACH(link, &set->store->ready) {
                struct hr_weights *other = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (other->owner == set->owner && other->has_digest && set->has_digest &&
                    !hr_weights_set_is_lost(other) &&
                    hr_digest_equal(other->digest, set->digest) &&
                    strcmp(other->name, set->name) == 0 && same_places(other, set))
                        return other;
        }
        return NULL;
}

/* ---- Verifying ------------------------------------------------------------------------------- */

/* Everything has come and is hashed, or can no longer be: compares. */
static void verify(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;

        work->is_verified = true;
        if (work->failure.status != HR_OK ||
            hr_upload_digest(work->upload, &work->failure, set->digest) != HR_OK)
                return;
        set->store->stats.bytes_hashed += hr_upload_total(work->upload);
        set->has_digest = true;
        if (work->has_expected && !hr_digest_equal(set->digest, work->expected))
                hr_fail_reason(&work->failure, HR_E_DATA_LOSS, "DIGEST",
                               "the contents of set '%.80s' do not have the announced digest",
                               set->name);
}

/* Thread: a worker's. */
static void seal_run(struct hr_task *task) {
        struct hr_weights_work *work = HR_CONTAINER_OF(task, struct hr_weights_work, sealing);
        /* Copied: after the decrement the engine may free the work, and the store with it. */
        const struct hr_weights_store_config config = work->store->config;
        struct hr_diag diag = {0};

        atomic_store(&work->sealed, (int) hr_image_seal(work->image, &diag));
        atomic_fetch_sub_explicit(&work->in_flight, 1, memory_order_release);
        config.wake(config.arg);
}

/* Contents that stay in memory are sealed, by a worker: unmapping takes time. */
static void seal_begin(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;

        work->is_sealing = true;
        if (!contents_stay(set) || work->failure.status != HR_OK)
                return;
        set->image = hr_image_ref(work->image);
        if (work->is_sealed) /* it came so */
                return;
        work->sealing.run = seal_run;
        atomic_fetch_add(&work->in_flight, 1);
        hr_workers_add(work->store->workers, &work->sealing);
}

/* True when the contents are verified, and sealed where they stay. */
bool hr_weights_upload_verified(struct hr_weights *set, bool *ret_did) {
        struct hr_weights_work *work = set->work;
        bool hashed = false;

        *ret_did = false;
        if (!work->is_verified) {
                if (atomic_load(&work->cache_failed))
                        (void) hr_fail(&work->failure, HR_E_DATA_LOSS, "not read");
                if (work->failure.status == HR_OK &&
                    hr_upload_check(work->upload, &work->failure, &hashed) == HR_OK && !hashed)
                        return false;
                verify(set);
                if (work->is_cached && work->failure.status != HR_OK)
                        cache_fail(set);
                *ret_did = true;
        }
        if (!work->is_sealing) {
                seal_begin(set);
                *ret_did = true;
        }
        if (atomic_load(&work->sealed) != HR_OK && work->failure.status == HR_OK)
                (void) hr_fail(&work->failure, (hr_status) atomic_load(&work->sealed),
                               "the contents of set '%.80s' cannot be sealed", set->name);
        return true;
}
