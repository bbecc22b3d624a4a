/*
 * The store of weight sets, and the making of a set in bounded portions.
 *
 * A set being made has a struct hr_weights_work; a ready one has none. Portions of work:
 *
 *   upload:  workers hash (follows the leaves that have come) -> [verify] -> [seal] -> COPY ->
 * ready file:                                                                              COPY ->
 * ready
 *
 * COPY moves the tensors of devices with memory of their own from the contents (the mapped file, or
 * staging memory) through the device's queue, a few chunks in flight at a time. A set all of whose
 * tensors are used in place has nothing to copy.
 *
 * Invariants: a set is in exactly one of the store's lists `working` and `ready`. While chunks are
 * in flight it is not freed, whatever becomes of its jobs. A job is linked in the work of its set,
 * or, when the set is ready already, in the store's list `answered`, and then holds a reference.
 */
#include "daemon/weights_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/host.h"
#include "core/log.h"
#include "daemon/large_pages.h"
#include "daemon/transfer.h"

#define HASHERS_MAX 4U
#define OPENERS 4U /* so many disks may stall before others wait */
#define COPY_CHUNK_BYTES (UINT64_C(2) << 20)
#define COPY_CHUNKS_IN_FLIGHT 4U

static void store_wake(const struct hr_weights_store *store) {
        store->config.wake(store->config.arg);
}

/* ---- Sets ------------------------------------------------------------------------------------ */

HR_DEFINE_CLEANUP(struct hr_weights *, set_freep, hr_weights_set_free)
HR_DEFINE_CLEANUP(struct hr_weights_file *, file_freep, hr_weights_file_free)

struct hr_weights *hr_weights_ref(struct hr_weights *set) {
        HR_ASSERT(!set->work);
        set->refs++;
        return set;
}

struct hr_weights *hr_weights_unref(struct hr_weights *set) {
        if (!set)
                return NULL;
        HR_ASSERT(set->refs > 0 && !set->work);
        if (--set->refs == 0) {
                hr_weights_take_away(set);
                set->store->stats.sets--;
                set->store->stats.bytes -= set->bytes;
                hr_weights_set_free(set);
        }
        return NULL;
}

bool hr_weights_is_torn(const struct hr_weights *set) {
        return set->image && hr_image_check(set->image);
}

hr_status hr_weights_bind(const struct hr_weights *set, const struct hr_graph *graph, uint32_t leaf,
                          struct hr_diag *diag, struct hr_leaf_home *ret_home) {
        size_t name_bytes;
        const char *name = hr_graph_name(graph, leaf, &name_bytes);
        const int64_t tensor = hr_manifest_find(set->manifest, name, name_bytes);

        if (tensor < 0)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "LEAF", "no weight set holds '%.*s'",
                                      (int) HR_MIN(name_bytes, 80U), name);
        if (hr_weights_is_torn(set))
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "FILE",
                                      "the file of set '%.80s' has become shorter", set->name);
        HR_TRY(hr_manifest_check_leaf(set->manifest, (uint32_t) tensor, graph, leaf, diag));
        ret_home->buffer = set->homes[tensor].buffer;
        ret_home->offset = set->homes[tensor].offset;
        return HR_OK;
}

/* ---- Jobs ------------------------------------------------------------------------------------ */

/* The job waits for a set that is being made. */
void hr_weights_job_join(struct hr_weights_job *job, struct hr_weights *set, bool already) {
        job->set = set;
        job->already = already;
        hr_list_append(&set->work->jobs, &job->link);
        store_wake(set->store);
}

/* The job will be told of a ready set. */
void hr_weights_job_answer(struct hr_weights_job *job, struct hr_weights *set, bool already) {
        job->set = hr_weights_ref(set);
        job->already = already;
        hr_list_append(&set->store->answered, &job->link);
        store_wake(set->store);
}

static bool work_is_idle(const struct hr_weights_work *work) {
        return atomic_load_explicit(&work->in_flight, memory_order_acquire) == 0 &&
               hr_reader_is_over(&work->reading);
}

/* Of the tensors' bytes in their order: how many may be copied. */
static uint64_t readable_bytes(const struct hr_weights_work *work) {
        return work->is_upload ? UINT64_MAX
                               : atomic_load_explicit(&work->reading.counted, memory_order_acquire);
}

void hr_weights_store_take(struct hr_weights_store *store, struct hr_weights *set) {
        hr_list_append(&store->working, &set->link);
        store->stats.working++;
        store->stats.working_bytes += set->bytes;
}

/* Takes a set that will not become ready out of the store, unless chunks are in flight. */
void hr_weights_set_abandon(struct hr_weights *set) {
        hr_reader_stop(&set->work->reading);
        if (!work_is_idle(set->work))
                return;
        set->store->stats.working--;
        set->store->stats.working_bytes -= set->bytes;
        hr_weights_set_free(set);
}

void hr_weights_job_cancel(struct hr_weights_job *job) {
        struct hr_weights *set = job->set;

        if (!hr_list_is_linked(&job->link))
                return;
        hr_list_remove(&job->link);
        job->set = NULL;
        if (job->is_last && set->work)
                set->work->is_kept = false;
        if (!set->work)
                hr_weights_unref(set);
        else if (hr_list_is_empty(&set->work->jobs) && !set->work->is_ending && !set->work->is_kept)
                hr_weights_set_abandon(set); /* else a later step does */
}

void hr_weights_job_progress(const struct hr_weights_job *job, uint64_t *ret_done,
                             uint64_t *ret_total) {
        *ret_done = atomic_load(&job->done_bytes);
        *ret_total = atomic_load(&job->total_bytes);
}

bool hr_weights_in_place(const struct hr_weights *set, uint32_t tensor) {
        return set->work->in_place[set->homes[tensor].device];
}

/* Tensors of a mapped file that are used there and are brought in now. */
static bool tensor_is_read_in_place(const struct hr_weights *set, uint32_t tensor) {
        return hr_weights_in_place(set, tensor) && set->work->ranges &&
               !set->work->ranges[tensor].skip;
}

/* Bytes that have been read, and copied where that is wanted: counted in the tensors' order, less
 * what is still on its way and what is neither read nor copied. */
static uint64_t bytes_arrived(const struct hr_weights *set) {
        const struct hr_weights_work *work = set->work;
        const uint64_t on_the_way = atomic_load(&work->in_flight) * COPY_CHUNK_BYTES;
        uint64_t arrived = work->bytes_done;

        if (work->tensor < set->manifest->tensor_count &&
            tensor_is_read_in_place(set, work->tensor))
                arrived = HR_MAX(arrived,
                                 HR_MIN(readable_bytes(work),
                                        arrived + set->manifest->tensors[work->tensor].bytes));
        arrived -= HR_MIN(arrived, on_the_way + work->skipped_done);
        return arrived;
}

/* Tells the jobs of a set how far it is. */
static void publish_progress(const struct hr_weights *set) {
        const struct hr_weights_work *work = set->work;
        const uint64_t total = set->bytes - work->skipped_bytes;
        const uint64_t done = bytes_arrived(set);

        if (work->is_upload && !work->is_verified)
                return;
        HR_LIST_FOR_EACH(link, &work->jobs) {
                struct hr_weights_job *job = HR_CONTAINER_OF(link, struct hr_weights_job, link);

                atomic_store(&job->total_bytes, total);
                if (done > atomic_load(&job->done_bytes))
                        atomic_store(&job->done_bytes, HR_MIN(done, total));
        }
}

/* ---- LOAD ------------------------------------------------------------------------------------ */

/* What lay on a lost device is found by nobody: the same contents are made again. */
bool hr_weights_set_is_lost(const struct hr_weights *set) {
        if (hr_weights_is_torn(set))
                return true;
        for (uint32_t i = 0; set->buffers && i < set->placement.device_count; i++)
                if (set->buffers[i] && hr_buffer_is_lost(set->buffers[i]))
                        return true;
        return false;
}

static bool same_file(const struct hr_weights *a, const struct hr_weights *b) {
        return a->from_file && b->from_file && a->owner == b->owner && !hr_weights_set_is_lost(a) &&
               !hr_weights_set_is_lost(b) &&
               memcmp(&a->identity, &b->identity, sizeof a->identity) == 0 &&
               strcmp(a->path, b->path) == 0 && strcmp(a->name, b->name) == 0 &&
               a->placement.tensor_count == b->placement.tensor_count &&
               memcmp(a->placement.devices, b->placement.devices,
                      a->placement.tensor_count * sizeof *a->placement.devices) == 0;
}

/* A set equal to a file's, ready or being made, or NULL. */
static struct hr_weights *find_same_file(struct hr_weights_store *store,
                                         const struct hr_weights *wanted) {
        struct hr_list *const lists[] = {&store->ready, &store->working};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(lists); i++)
                HR_LIST_FOR_EACH(link, lists[i]) {
                        struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                        if (same_file(set, wanted) &&
                            (!set->work || set->work->failure.status == HR_OK))
                                return set;
                }
        return NULL;
}

hr_status hr_weights_load(struct hr_weights_store *store, struct hr_weights_file *taken,
                          const char *name, const struct hr_placement_rule *rules,
                          uint32_t rule_count, struct hr_weights_job *job, struct hr_diag *diag) {
        HR_CLEANUP(file_freep) struct hr_weights_file *file = taken;
        HR_CLEANUP(set_freep) struct hr_weights *set = NULL;
        struct hr_weights *same;
        const struct set_plan plan = {
                .store = store,
                .name = name && *name != '\0' ? name : file->path,
                .manifest = HR_STEAL(file->tensors),
                .rules = rules,
                .rule_count = rule_count,
                .contents_bytes = file->image->bytes,
                .owner = job->owner,
        };

        HR_TRY(hr_weights_set_begin(&plan, diag, &set));
        set->identity = file->identity;
        set->path = HR_STEAL(file->path);
        same = find_same_file(store, set);
        if (same) {
                store->stats.shared++;
                if (same->work)
                        hr_weights_job_join(job, same, true);
                else
                        hr_weights_job_answer(job, same, true);
                return HR_OK;
        }
        set->metadata = HR_STEAL(file->metadata);
        set->metadata_bytes = file->metadata_bytes;
        set->metadata_count = file->metadata_count;
        HR_TRY(hr_weights_set_map(set, file, diag));
        HR_TRY(hr_weights_set_place(set, diag));
        HR_TRY(hr_weights_set_read(set, file, diag));
        store->stats.loads++;
        hr_weights_store_take(store, set);
        hr_weights_job_join(job, set, false);
        publish_progress(set);
        set = NULL; /* the store's now */
        return HR_OK;
}

/* ---- Portions of work ------------------------------------------------------------------------ */

static void chunk_copied(void *arg) {
        struct hr_weights_work *work = arg;
        /* Copied: after the decrement the engine may free the work, and the store with it. */
        const struct hr_weights_store_config config = work->store->config;

        atomic_fetch_sub_explicit(&work->in_flight, 1, memory_order_release);
        config.wake(config.arg);
}

/* Moves the cursor over tensors that need no copy and are there. Gives the bytes that may be copied
 * at the cursor, 0 at the end and where they have not been read yet. */
static uint64_t next_to_copy(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;
        const uint64_t readable = readable_bytes(work);

        while (work->tensor < set->manifest->tensor_count) {
                const struct hr_manifest_tensor *tensor = &set->manifest->tensors[work->tensor];
                const uint64_t left = tensor->bytes - work->tensor_done;
                const uint64_t there = readable - HR_MIN(readable, work->bytes_done);

                if (left > 0 && !hr_weights_in_place(set, work->tensor))
                        return HR_MIN(left, there);
                if (there < left)
                        return 0;
                if (hr_weights_in_place(set, work->tensor) &&
                    !tensor_is_read_in_place(set, work->tensor))
                        work->skipped_done += left;
                work->bytes_done += tensor->bytes - work->tensor_done;
                work->tensor++;
                work->tensor_done = 0;
        }
        return 0;
}

/* Queues one chunk. True when something was done. */
static bool copy_portion(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;
        const struct hr_weights_home *home;
        const struct hr_manifest_tensor *tensor;
        uint64_t bytes;

        if (work->failure.status != HR_OK || hr_outcome_failed(&work->outcome) ||
            atomic_load(&work->in_flight) >= COPY_CHUNKS_IN_FLIGHT)
                return false;
        bytes = HR_MIN(next_to_copy(set), COPY_CHUNK_BYTES);
        if (bytes == 0)
                return false;
        home = &set->homes[work->tensor];
        tensor = &set->manifest->tensors[work->tensor];
        atomic_fetch_add(&work->in_flight, 1);
        if (hr_transfer_write(hr_fleet_queue(set->store->config.fleet, home->device),
                              (uint8_t *) home->buffer->base + home->offset + work->tensor_done,
                              work->contents + tensor->offset + work->tensor_done, bytes,
                              &work->outcome, chunk_copied, work, &work->failure) != HR_OK) {
                atomic_fetch_sub(&work->in_flight, 1);
                return true;
        }
        work->tensor_done += bytes;
        work->bytes_done += bytes;
        set->store->stats.bytes_copied += bytes;
        return true;
}

/* Tells every job that it failed. A callee may free its job and cancel others of the set. */
static void set_fail(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;

        work->is_ending = true;
        set->store->stats.failures++;
        for (struct hr_list *link = hr_list_pop(&work->jobs); link;
             link = hr_list_pop(&work->jobs)) {
                struct hr_weights_job *job = HR_CONTAINER_OF(link, struct hr_weights_job, link);

                job->set = NULL;
                job->done(job, work->failure.status, &work->failure, NULL, false);
        }
        hr_weights_set_abandon(set);
}

/* All jobs that wait for work will be told of a ready set. */
static void answer_all(struct hr_weights_work *work, struct hr_weights *set, bool already) {
        for (struct hr_list *link = hr_list_pop(&work->jobs); link;
             link = hr_list_pop(&work->jobs)) {
                struct hr_weights_job *job = HR_CONTAINER_OF(link, struct hr_weights_job, link);

                hr_weights_job_answer(job, set, already || job->already);
        }
}

static void set_finish(struct hr_weights *set) {
        struct hr_weights_store *store = set->store;
        struct hr_weights_work *work = set->work;
        struct hr_weights *same = set->from_file ? NULL : hr_weights_same_upload(set);

        publish_progress(set);
        if (same) {
                store->stats.shared++;
                answer_all(work, same, true);
                hr_weights_set_abandon(set);
                return;
        }
        hr_list_remove(&set->link);
        hr_list_append(&store->ready, &set->link);
        store->stats.working--;
        store->stats.working_bytes -= set->bytes;
        store->stats.sets++;
        store->stats.bytes += set->bytes;
        if (!set->from_file && set->owner == 0 && set->has_digest && work->image &&
            !work->is_cached)
                hr_disk_cache_put(store->cache, set->digest, work->image, set->contents_bytes);
        set->work = NULL;
        hr_weights_give(set); /* first: what has been answered for outlives the process */
        answer_all(work, set, false);
        hr_weights_work_free(work);
}

/* One portion for one set; true when something was done. The set may be gone afterwards. */
static bool set_step(struct hr_weights *set) {
        struct hr_weights_work *work = set->work;
        const bool is_idle = work_is_idle(work);
        bool did = false;
        const struct hr_diag *failure = hr_outcome_diag(&work->outcome);

        if (hr_list_is_empty(&work->jobs) && !work->is_kept) {
                hr_weights_set_abandon(set);
                return is_idle;
        }
        publish_progress(set);
        if (work->upload && !hr_weights_upload_verified(set, &did))
                return false;
        if (did)
                return true;
        if (hr_list_is_empty(&work->jobs)) /* the next that takes part finds it so */
                return false;
        if (atomic_load(&work->reading.failed))
                (void) hr_fail_reason(&work->failure, HR_E_DATA_LOSS, "FILE",
                                      "the file of set '%.80s' has changed or cannot be read",
                                      set->name);
        if (copy_portion(set))
                return true;
        if (failure && work->failure.status == HR_OK)
                work->failure = *failure;
        if (work->failure.status != HR_OK)
                hr_reader_stop(&work->reading);
        if (!is_idle)
                return false;
        if (work->failure.status != HR_OK)
                set_fail(set);
        else if (work->tensor < set->manifest->tensor_count)
                return false;
        else
                set_finish(set);
        return true;
}

/* ---- The store ------------------------------------------------------------------------------- */

/* A folder that cannot be used is no reason not to serve. */
static void cache_open(struct hr_weights_store *store) {
        struct hr_diag diag = {0};

        if (hr_disk_cache_open(store->config.cache_directory, store->config.cache_bytes_max,
                               store->config.wake, store->config.arg, &diag,
                               &store->cache) != HR_OK)
                hr_log(HR_LOG_WARNING, "cache", "the cache on disk is off: %s", diag.words);
}

hr_status hr_weights_store_new(const struct hr_weights_store_config *config, struct hr_diag *diag,
                               struct hr_weights_store **ret_store) {
        struct hr_weights_store *store = calloc(1, sizeof *store);
        hr_status status;

        if (!store)
                return hr_fail(diag, HR_E_EXHAUSTED, "weight store");
        store->config = *config;
        hr_list_init(&store->working);
        hr_list_init(&store->ready);
        hr_list_init(&store->answered);
        hr_mpsc_init(&store->opened);
        hr_image_guard();
        store->has_large_pages = hr_large_pages_are_shared();
        status = hr_reader_new(diag, &store->reader);
        if (status == HR_OK)
                status = hr_workers_new("hr-hash", HR_MIN(hr_host_processors(), HASHERS_MAX), diag,
                                        &store->workers);
        if (status == HR_OK)
                status = hr_workers_new("hr-open", OPENERS, diag, &store->openers);
        if (status == HR_OK && config->cache_directory && config->cache_bytes_max > 0)
                cache_open(store);
        if (status == HR_OK) {
                *ret_store = store;
                return HR_OK;
        }
        (void) hr_workers_free(store->openers);
        (void) hr_workers_free(store->workers);
        (void) hr_reader_free(store->reader);
        free(store);
        return status;
}

struct hr_weights_store *hr_weights_store_free(struct hr_weights_store *store) {
        if (!store)
                return NULL;
        hr_weights_store_leave(store);
        hr_weights_store_release(store);
        HR_ASSERT(hr_list_is_empty(&store->answered));
        HR_LIST_FOR_EACH(link, &store->working) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                HR_ASSERT(hr_list_is_empty(&set->work->jobs));
                set->work->is_kept = false;
                hr_reader_stop(&set->work->reading);
                while (!work_is_idle(set->work))
                        (void) usleep(200);
                hr_weights_set_abandon(set);
        }
        HR_ASSERT(hr_list_is_empty(&store->ready));
        (void) hr_reader_free(store->reader);
        (void) hr_workers_free(store->workers);
        (void) hr_workers_free(store->openers);
        (void) hr_disk_cache_free(store->cache);
        while (hr_weights_opened_portion(store)) {
        }
        free(store);
        return NULL;
}

static bool answer_portion(struct hr_weights_store *store) {
        static const struct hr_diag success = {0};
        struct hr_list *link = hr_list_pop(&store->answered);
        struct hr_weights_job *job;
        struct hr_weights *set;

        if (!link)
                return false;
        job = HR_CONTAINER_OF(link, struct hr_weights_job, link);
        set = HR_STEAL(job->set);
        job->done(job, HR_OK, &success, set, job->already);
        return true;
}

bool hr_weights_store_step(struct hr_weights_store *store) {
        if (answer_portion(store) || hr_weights_opened_portion(store) ||
            hr_disk_cache_step(store->cache))
                return true;
        for (uint64_t i = store->stats.working; i > 0; i--) {
                struct hr_list *link = store->working.next;

                /* To the end first, so that every set gets its turn. */
                hr_list_remove(link);
                hr_list_append(&store->working, link);
                if (set_step(HR_CONTAINER_OF(link, struct hr_weights, link)))
                        return true;
        }
        return false;
}

struct hr_weights_store_stats hr_weights_store_stats(const struct hr_weights_store *store) {
        struct hr_weights_store_stats stats = store->stats;

        stats.cache = hr_disk_cache_stats(store->cache);
        return stats;
}

void hr_weights_store_purge(struct hr_weights_store *store, uint64_t *ret_entries,
                            uint64_t *ret_bytes) {
        hr_disk_cache_purge(store->cache, ret_entries, ret_bytes);
}

struct hr_weights *hr_weights_store_find(struct hr_weights_store *store, uint64_t viewer,
                                         const char *name) {
        struct hr_weights *found = NULL;

        HR_LIST_FOR_EACH(link, &store->ready) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (strcmp(set->name, name) != 0 || set->is_displaced || hr_weights_is_torn(set) ||
                    !hr_weights_is_seen_by(set, viewer))
                        continue;
                if (!found || set->owner != 0 || found->owner == 0) /* the viewer's own first */
                        found = set;
        }
        return found;
}

struct hr_weights *hr_weights_store_next(struct hr_weights_store *store,
                                         struct hr_weights *previous) {
        struct hr_list *link = previous ? previous->link.next : store->ready.next;

        return link == &store->ready ? NULL : HR_CONTAINER_OF(link, struct hr_weights, link);
}
