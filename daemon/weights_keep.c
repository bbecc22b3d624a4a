/*
 * Sets that outlive the process.
 *
 * A ready upload whose contents stay in a sealed memfd is given to the service manager: first the
 * contents, unless a set that it has shares them, then the record (keep.h). So what the manager has
 * a record of is whole. When the set goes the record is taken away first. While the daemon ends
 * nothing is taken away.
 *
 * The next daemon takes back what it is passed before it is ready: seals and sizes are looked at,
 * contents are not read. Each set stands as it stood, if its devices are there and use host memory;
 * else its contents lie with the last device that does, where a PUT of them finds them and nobody
 * finds them by name. The store itself holds a reference until hr_weights_store_release(), or until
 * memory is wanted; then what no session has taken goes.
 */
#include "daemon/weights_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/inherit.h"
#include "daemon/keep.h"
#include "daemon/notify.h"
#include "daemon/region.h"

#define SEALS (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE)

HR_DEFINE_CLEANUP(struct hr_weights *, set_freep, hr_weights_set_free)
HR_DEFINE_CLEANUP(struct hr_keep_record *, record_deinitp, hr_keep_record_deinit)

/* ---- giving ---------------------------------------------------------------------------------- */

/* The memory of a record, sealed; -1 without memory or descriptors. */
static int record_memfd(const uint8_t *bytes, size_t size) {
        int fd = memfd_create("headrace-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        while (fd >= 0 && size > 0) {
                const ssize_t written = write(fd, bytes, size);

                if (written < 0 && errno == EINTR)
                        continue;
                if (written <= 0)
                        break;
                bytes += written;
                size -= (size_t) written;
        }
        if (fd >= 0 && (size > 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)) {
                (void) close(fd);
                fd = -1;
        }
        return fd;
}

static hr_status record_fill(const struct hr_weights *set, uint64_t image_bytes,
                             struct hr_diag *diag, struct hr_keep_record *record) {
        const struct hr_fleet *fleet = set->store->config.fleet;
        const uint32_t count = hr_fleet_device_count(fleet);

        record->manifest = set->manifest;
        record->contents_bytes = set->contents_bytes;
        record->image_bytes = image_bytes;
        memcpy(record->digest, set->digest, HR_DIGEST_BYTES);
        memcpy(record->name, set->name, strlen(set->name));
        record->homes = set->placement.devices;
        record->device_count = count;
        record->devices = calloc(count, sizeof *record->devices);
        if (!record->devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "names of %u devices", count);
        for (uint32_t i = 0; i < count; i++)
                memcpy(record->devices[i], hr_fleet_device(fleet, i)->props.name,
                       HR_MIN(strlen(hr_fleet_device(fleet, i)->props.name),
                              (size_t) HR_DEVICE_NAME_BYTES_MAX));
        return HR_OK;
}

/* Gives the record away; set->record is its name from then on. The manager has contents of so many
 * bytes. */
static bool record_give(struct hr_weights *set, uint64_t image_bytes) {
        struct hr_keep_record record = {0};
        char name[HR_KEEP_NAME_BYTES];
        uint8_t *bytes = NULL;
        size_t size = 0;
        bool given = false;
        int fd = -1;

        if (record_fill(set, image_bytes, NULL, &record) == HR_OK &&
            hr_keep_encode(&record, NULL, &bytes, &size) == HR_OK) {
                memcpy(set->record, bytes + size - HR_DIGEST_BYTES, HR_DIGEST_BYTES);
                fd = record_memfd(bytes, size);
        }
        if (fd >= 0) {
                hr_keep_name(HR_KEEP_RECORD, set->record, name);
                given = hr_notify_store(name, fd);
                (void) close(fd);
        }
        free(bytes);
        free(record.devices); /* the rest is the set's */
        return given;
}

/* Another set of the same contents that the manager has, or NULL. */
static const struct hr_weights *contents_shared(const struct hr_weights *set) {
        HR_LIST_FOR_EACH(link, &set->store->ready) {
                const struct hr_weights *other = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (other != set && other->is_given && hr_digest_equal(other->digest, set->digest))
                        return other;
        }
        return NULL;
}

void hr_weights_give(struct hr_weights *set) {
        struct hr_weights_store *store = set->store;
        const struct hr_weights *shared;
        char name[HR_KEEP_NAME_BYTES];

        if (store->config.keep == HR_KEEP_NONE || set->from_file || set->owner != 0 ||
            !set->has_digest ||
            !set->image || set->image->fd < 0)
                return;
        if (store->stats.given >= store->config.kept_sets_max) {
                hr_log(HR_LOG_NOTICE, "keep", "set '%.80s' ends with the daemon: limits.kept_sets",
                       set->name);
                return;
        }
        hr_keep_name(HR_KEEP_CONTENTS, set->digest, name);
        shared = contents_shared(set);
        if ((shared || hr_notify_store(name, set->image->fd)) &&
            record_give(set, shared ? shared->image->bytes : set->image->bytes)) {
                set->is_given = true;
                store->stats.given++;
                return;
        }
        hr_log(HR_LOG_WARNING, "keep",
               "set '%.80s' ends with the daemon: the service manager does "
               "not answer",
               set->name);
}

void hr_weights_take_away(struct hr_weights *set) {
        char name[HR_KEEP_NAME_BYTES];

        if (!set->is_given)
                return;
        set->is_given = false;
        set->store->stats.given--;
        if (atomic_load(&set->store->is_leaving))
                return;
        hr_keep_name(HR_KEEP_RECORD, set->record, name);
        hr_notify_remove(name);
        if (contents_shared(set))
                return;
        hr_keep_name(HR_KEEP_CONTENTS, set->digest, name);
        hr_notify_remove(name);
}

void hr_weights_store_leave(struct hr_weights_store *store) {
        atomic_store(&store->is_leaving, true);
}

/* ---- taking back ----------------------------------------------------------------------------- */

/* Contents that came, by digest. */
struct contents {
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_inherited_kept *kept;
        struct hr_image *image; /* mapped by the first record that needs it */
        bool is_used;           /* by a set */
};

struct taking {
        struct hr_weights_store *store;
        struct contents *contents;
        uint32_t contents_count;
        uint64_t refused;
};

/* Closes it and has the manager close it; nothing else comes of it. */
static void refuse(struct taking *taking, struct hr_inherited_kept *kept, const char *why) {
        hr_log(HR_LOG_WARNING, "keep", "\"%.100s\" is not taken back: %s", kept->name, why);
        if (kept->fd >= 0)
                (void) close(kept->fd);
        kept->fd = -1;
        hr_notify_remove(kept->name);
        taking->refused++;
}

static struct contents *contents_find(struct taking *taking,
                                      const uint8_t digest[HR_DIGEST_BYTES]) {
        for (uint32_t i = 0; i < taking->contents_count; i++)
                if (hr_digest_equal(taking->contents[i].digest, digest))
                        return &taking->contents[i];
        return NULL;
}

/* The other of two goes without a word to the manager: they have one name. */
static void sort_out(struct taking *taking, struct hr_inherited *inherited) {
        for (uint32_t i = 0; i < inherited->kept_count; i++) {
                struct hr_inherited_kept *kept = &inherited->kept[i];
                uint8_t digest[HR_DIGEST_BYTES];
                const hr_keep_kind kind = hr_keep_name_read(kept->name, digest);

                if (kind == HR_KEEP_UNKNOWN) {
                        refuse(taking, kept, "no such name is given");
                } else if (kind == HR_KEEP_CONTENTS && contents_find(taking, digest)) {
                        (void) close(kept->fd);
                        kept->fd = -1;
                } else if (kind == HR_KEEP_CONTENTS) {
                        struct contents *contents = &taking->contents[taking->contents_count++];

                        memcpy(contents->digest, digest, HR_DIGEST_BYTES);
                        contents->kept = kept;
                }
        }
}

static hr_status record_read(const struct hr_weights_store *store, int fd,
                             const uint8_t name[HR_DIGEST_BYTES], struct hr_diag *diag,
                             struct hr_keep_record *ret_record) {
        HR_CLEANUP(hr_image_unrefp) struct hr_image *image = NULL;
        struct stat facts;

        if (fstat(fd, &facts) < 0 || facts.st_size < (off_t) HR_DIGEST_BYTES ||
            (uint64_t) facts.st_size > HR_KEEP_RECORD_BYTES_MAX) {
                (void) close(fd);
                return hr_fail(diag, HR_E_INVALID, "no size that a record has");
        }
        HR_TRY(hr_memfd_map(fd, (uint64_t) facts.st_size, HR_MEMFD_CONTENTS, diag, &image));
        if (!hr_digest_equal(image->base + image->bytes - HR_DIGEST_BYTES, name))
                return hr_fail(diag, HR_E_INVALID, "a record of another name");
        return hr_keep_decode(image->base, image->bytes, &store->config.manifest_limits, diag,
                              ret_record);
}

/* Where each tensor goes: as it was, if all of its devices are there and use host memory, else to
 * the last device that does. */
static hr_status homes_find(const struct hr_weights_store *store,
                            const struct hr_keep_record *record, struct hr_diag *diag,
                            uint32_t *homes, bool *ret_is_displaced) {
        const struct hr_fleet *fleet = store->config.fleet;
        const uint32_t device_count = hr_fleet_device_count(fleet);
        uint32_t last = device_count;

        *ret_is_displaced = false;
        for (uint32_t i = 0; i < device_count; i++)
                if (hr_weights_uses_host_memory(fleet, i))
                        last = i;
        if (last == device_count)
                return hr_fail(diag, HR_E_UNAVAILABLE, "no device uses host memory");
        for (uint32_t i = 0; i < record->manifest->tensor_count; i++) {
                uint32_t device = 0;

                while (device < device_count && strcmp(hr_fleet_device(fleet, device)->props.name,
                                                       record->devices[record->homes[i]]) != 0)
                        device++;
                *ret_is_displaced |=
                        device == device_count || !hr_weights_uses_host_memory(fleet, device);
                homes[i] = device;
        }
        for (uint32_t i = 0; *ret_is_displaced && i < record->manifest->tensor_count; i++)
                homes[i] = last;
        return HR_OK;
}

/* The set becomes ready, with a reference that is the store's. */
static void set_take_in(struct hr_weights *set, const struct hr_keep_record *record,
                        struct hr_image *image) {
        struct hr_weights_store *store = set->store;

        set->image = hr_image_ref(image);
        set->contents_bytes = record->contents_bytes;
        set->has_digest = true;
        memcpy(set->digest, record->digest, HR_DIGEST_BYTES);
        hr_weights_work_free(HR_STEAL(set->work));
        set->refs = 1;
        set->is_taken_back = set->is_given = true;
        hr_list_append(&store->ready, &set->link);
        store->stats.sets++;
        store->stats.bytes += set->bytes;
        store->stats.given++;
        store->stats.taken_back++;
        store->stats.waiting++;
}

static hr_status set_make(struct hr_weights_store *store, struct hr_keep_record *record,
                          const uint8_t name[HR_DIGEST_BYTES], struct hr_image *image,
                          const uint32_t *homes, bool is_displaced, struct hr_diag *diag) {
        HR_CLEANUP(set_freep) struct hr_weights *set = NULL;
        const uint64_t total = record->manifest->total_bytes;
        struct hr_placement placement = {0};
        const struct set_plan plan = {
                .store = store,
                .name = record->name,
                .manifest = HR_STEAL(record->manifest),
                .contents_bytes = total,
                .is_upload = true,
        };

        HR_TRY(hr_weights_set_begin(&plan, diag, &set));
        HR_TRY(hr_placement_init_given(&placement, set->manifest, set->placement.device_count,
                                       homes, diag));
        hr_placement_deinit(&set->placement);
        set->placement = placement;
        set->is_displaced = is_displaced;
        memcpy(set->record, name, HR_DIGEST_BYTES);
        HR_TRY(hr_weights_set_allocate(set, total, image, true, diag));
        HR_TRY(hr_weights_set_place(set, diag));
        set_take_in(set, record, image);
        set = NULL; /* the store's now */
        return HR_OK;
}

/* Reads a record and makes its set. The descriptor is taken. */
static hr_status take_back(struct taking *taking, int fd, const uint8_t name[HR_DIGEST_BYTES],
                           struct hr_diag *diag) {
        HR_CLEANUP(record_deinitp) struct hr_keep_record *record = &(struct hr_keep_record){0};
        struct hr_weights_store *store = taking->store;
        struct contents *contents;
        bool is_displaced = false;
        uint32_t *homes;
        hr_status status;

        if (store->stats.given >= store->config.kept_sets_max) {
                (void) close(fd);
                return hr_fail(diag, HR_E_EXHAUSTED, "there are %" PRIu64 " already",
                               store->stats.given);
        }
        HR_TRY(record_read(store, fd, name, diag, record));
        contents = contents_find(taking, record->digest);
        if (!contents)
                return hr_fail(diag, HR_E_NOT_FOUND, "its contents have not come");
        if (!contents->image && contents->kept->fd < 0)
                return hr_fail(diag, HR_E_INVALID, "its contents are of no use");
        if (!contents->image) {
                status = hr_memfd_map(contents->kept->fd, record->image_bytes, HR_MEMFD_CONTENTS,
                                      diag, &contents->image);
                contents->kept->fd = -1;
                HR_TRY(status);
        }
        if (contents->image->bytes != record->image_bytes)
                return hr_fail(diag, HR_E_INVALID, "another size than its contents have");
        homes = malloc((size_t) record->manifest->tensor_count * sizeof *homes + 1);
        if (!homes)
                return hr_fail(diag, HR_E_EXHAUSTED, "table of %u tensors",
                               record->manifest->tensor_count);
        status = homes_find(store, record, diag, homes, &is_displaced);
        if (status == HR_OK)
                status = set_make(store, record, name, contents->image, homes, is_displaced, diag);
        free(homes);
        contents->is_used |= status == HR_OK;
        return status;
}

static bool is_there(const struct hr_weights_store *store, const uint8_t name[HR_DIGEST_BYTES]) {
        HR_LIST_FOR_EACH(link, (struct hr_list *) &store->ready) {
                const struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (set->is_given && hr_digest_equal(set->record, name))
                        return true;
        }
        return false;
}

static void take_records(struct taking *taking, struct hr_inherited *inherited) {
        for (uint32_t i = 0; i < inherited->kept_count; i++) {
                struct hr_inherited_kept *kept = &inherited->kept[i];
                struct hr_diag diag = {0};
                uint8_t name[HR_DIGEST_BYTES];
                int fd = kept->fd;

                if (fd < 0 || hr_keep_name_read(kept->name, name) != HR_KEEP_RECORD)
                        continue;
                kept->fd = -1;
                if (taking->store->config.keep == HR_KEEP_NONE) {
                        (void) close(fd);
                        refuse(taking, kept, "models.keep is none");
                } else if (is_there(taking->store, name))
                        (void) close(fd);
                else if (take_back(taking, fd, name, &diag) != HR_OK)
                        refuse(taking, kept, diag.words);
        }
}

void hr_weights_store_take_back(struct hr_weights_store *store, struct hr_inherited *inherited) {
        struct taking taking = {.store = store};
        const uint64_t started_ns = hr_clock_now_ns();

        if (!inherited || inherited->kept_count == 0)
                return;
        taking.contents = calloc(inherited->kept_count, sizeof *taking.contents);
        if (!taking.contents)
                return; /* the manager has them still */
        sort_out(&taking, inherited);
        take_records(&taking, inherited);
        for (uint32_t i = 0; i < taking.contents_count; i++) {
                if (!taking.contents[i].is_used)
                        refuse(&taking, taking.contents[i].kept, "no set has these contents");
                (void) hr_image_unref(taking.contents[i].image);
        }
        free(taking.contents);
        store->stats.take_back_failures = taking.refused;
        hr_log(HR_LOG_NOTICE, "keep",
               "weight sets taken back: %" PRIu64 " (%" PRIu64 " bytes), refused descriptors: "
               "%" PRIu64 ", in %.1f ms",
               store->stats.taken_back, store->stats.bytes, taking.refused,
               (double) (hr_clock_now_ns() - started_ns) / 1e6);
}

/* ---- letting go ------------------------------------------------------------------------------ */

static void let_go(struct hr_weights *set) {
        set->is_taken_back = false;
        set->store->stats.waiting--;
        (void) hr_weights_unref(set);
}

void hr_weights_store_release(struct hr_weights_store *store) {
        HR_LIST_FOR_EACH(link, &store->ready) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (set->is_taken_back)
                        let_go(set);
        }
}

struct hr_weights_evicted hr_weights_store_evict(struct hr_weights_store *store, const char *name) {
        struct hr_weights_evicted evicted = {0};

        HR_LIST_FOR_EACH(link, &store->ready) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (*name != '\0' && strcmp(set->name, name) != 0)
                        continue;
                if (!set->is_taken_back || set->refs > 1) {
                        evicted.kept_sets++;
                        evicted.kept_bytes += set->bytes;
                        continue;
                }
                evicted.sets++;
                evicted.bytes += set->bytes;
                let_go(set);
        }
        return evicted;
}

bool hr_weights_make_way(struct hr_weights_store *store) {
        HR_LIST_FOR_EACH(link, &store->ready) {
                struct hr_weights *set = HR_CONTAINER_OF(link, struct hr_weights, link);

                if (!set->is_taken_back || set->refs > 1)
                        continue;
                hr_log(HR_LOG_NOTICE, "keep", "set '%.80s' makes way: nobody has taken it",
                       set->name);
                let_go(set);
                return true;
        }
        return false;
}
