/* Memory that clients pass: checks before the mapping, ranges, REGION_ADD and REGION_DROP. */
#include "daemon/region.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/rpc.h"

#define SEALS_OF_SIZE (F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW)
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

struct region {
        struct hr_object base;
        struct hr_image *image;
        bool is_writable;
};

static struct region *region_of(struct hr_object *object) {
        HR_ASSERT(object->kind == HR_OBJECT_REGION);
        return HR_CONTAINER_OF(object, struct region, base);
}

/* ---- memfds ---------------------------------------------------------------------------------- */

/* Ordinary pages. A mapping of huge ones (MFD_HUGETLB) can neither be unmapped by its length nor be
 * filled from a fault on, and it holds more than it is charged with. */
static bool is_of_pages(int fd) {
        struct statfs facts;

        return fstatfs(fd, &facts) == 0 && facts.f_type == TMPFS_MAGIC;
}

static uint64_t page_bytes(void) {
        return (uint64_t) sysconf(_SC_PAGESIZE);
}

/* What stays in memory as long as any byte of it is mapped: all of it. What is no memfd of a fixed
 * size is refused later, whatever its own size. */
static uint64_t held_bytes(int fd, uint64_t bytes) {
        const int seals = fcntl(fd, F_GET_SEALS);
        struct stat facts;

        if (seals < 0 || (seals & SEALS_OF_SIZE) != SEALS_OF_SIZE || fstat(fd, &facts) < 0 ||
            facts.st_size < 0)
                return bytes;
        return HR_MAX(bytes, (uint64_t) facts.st_size);
}

static hr_status check_seals(int fd, uint64_t bytes, hr_memfd_use use, struct hr_diag *diag) {
        const int seals = fcntl(fd, F_GET_SEALS);
        struct stat facts;

        if (fstat(fd, &facts) < 0 || !S_ISREG(facts.st_mode) || seals < 0 ||
            !is_of_pages(fd))
                return hr_fail_reason(diag, HR_E_INVALID, "NOT_MEMFD",
                                      "the descriptor is no memfd of ordinary pages");
        if ((seals & SEALS_OF_SIZE) != SEALS_OF_SIZE ||
            (use == HR_MEMFD_CONTENTS && !(seals & F_SEAL_WRITE)) ||
            (use == HR_MEMFD_OUTPUT && (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE))))
                return hr_fail_reason(diag, HR_E_INVALID, "SEALS",
                                      "the memfd does not have the seals it needs (%#x)",
                                      (unsigned) seals);
        if (bytes > 0 && (uint64_t) facts.st_size >= bytes &&
            (use != HR_MEMFD_CONTENTS || (uint64_t) facts.st_size - bytes < page_bytes()))
                return HR_OK;
        if (diag && diag->status == HR_OK) {
                diag->limit = (uint64_t) facts.st_size;
                diag->actual = bytes;
        }
        return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                              "%" PRIu64 " bytes of a memfd that has %" PRIu64, bytes,
                              (uint64_t) facts.st_size);
}

hr_status hr_memfd_map(int fd, uint64_t bytes, hr_memfd_use use, struct hr_diag *diag,
                       struct hr_image **ret_image) {
        const int access = PROT_READ | (use == HR_MEMFD_OUTPUT ? PROT_WRITE : 0);
        const int seals = fcntl(fd, F_GET_SEALS);
        /* Kernels before 6.7 refuse shared mappings of what is sealed against writing. */
        const bool is_fixed = seals >= 0 && seals & F_SEAL_WRITE;
        hr_status status = check_seals(fd, bytes, use, diag);
        void *base = MAP_FAILED;

        if (status == HR_OK) {
                base = mmap(NULL, bytes, access, is_fixed ? MAP_PRIVATE : MAP_SHARED, fd, 0);
                if (base == MAP_FAILED)
                        status = hr_fail_reason(diag, HR_E_EXHAUSTED, "HOST_MEMORY",
                                                "%" PRIu64 " bytes of a memfd cannot be mapped",
                                                bytes);
        }
        if (status == HR_OK)
                status = hr_image_new(base, bytes, use == HR_MEMFD_CONTENTS ? fd : -1, diag,
                                      ret_image);
        if (status == HR_OK)
                (*ret_image)->is_writable = use == HR_MEMFD_OUTPUT;
        if (status != HR_OK || use != HR_MEMFD_CONTENTS)
                (void) close(fd);
        return status;
}

/* ---- use ------------------------------------------------------------------------------------- */

hr_status hr_region_take(struct hr_session *session, uint64_t handle, uint64_t offset,
                         uint64_t bytes, bool is_written, struct hr_diag *diag,
                         struct hr_object **ret_object, uint8_t **ret_memory) {
        struct hr_object *object = NULL;
        struct region *region;
        const char *reason = NULL;

        HR_TRY(hr_session_object(session, handle, HR_OBJECT_REGION, diag, &object));
        region = region_of(object);
        *ret_object = object;
        if (is_written && !region->is_writable)
                return hr_fail_reason(diag, HR_E_INVALID, "REGION",
                                      "the region was added for reading only");
        if (offset > region->image->bytes)
                reason = "OFFSET";
        else if (bytes > region->image->bytes - offset)
                reason = "SIZE";
        if (!reason) {
                *ret_memory = region->image->base + offset;
                return HR_OK;
        }
        if (diag && diag->status == HR_OK) {
                diag->limit = region->image->bytes;
                diag->actual = *reason == 'O' ? offset : bytes;
        }
        return hr_fail_reason(diag, HR_E_RANGE, reason,
                              "%" PRIu64 " bytes at %" PRIu64 " of a region of %" PRIu64, bytes,
                              offset, region->image->bytes);
}

hr_status hr_region_check(const struct hr_object *object, struct hr_diag *diag) {
        if (!object || !hr_image_is_lost(region_of((struct hr_object *) object)->image))
                return HR_OK;
        return hr_fail_reason(diag, HR_E_DATA_LOSS, "REGION", "memory of the region is gone");
}

/* ---- ADD and DROP ---------------------------------------------------------------------------- */

/* Thread: engine. */
static void region_close_work(struct hr_job *job) {
        struct region *region = region_of(HR_CONTAINER_OF(job, struct hr_object, closing));

        region->image = hr_image_unref(region->image);
        hr_engine_job_end(job);
}

static hr_status add_begin(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct hr_wire_region_add add;
        struct region *region;
        hr_status status;
        uint64_t held;
        int fd;

        (void) header;
        HR_TRY(hr_wire_region_add_decode(message, diag, &add));
        HR_TRY(hr_object_new(request->session, HR_OBJECT_REGION, sizeof *region,
                             limits->session_regions, diag, &request->object));
        region = region_of(request->object);
        region->base.close = region_close_work;
        fd = hr_request_fd_take(request);
        held = held_bytes(fd, add.bytes);
        status = hr_session_charge_buffer(request->session, held, diag);
        if (status != HR_OK) {
                (void) close(fd);
                return status;
        }
        region->base.bytes_kind = HR_CHARGE_BUFFER_BYTES;
        region->base.bytes = held;
        region->is_writable = add.writable;
        return hr_memfd_map(fd, add.bytes, add.writable ? HR_MEMFD_OUTPUT : HR_MEMFD_INPUT, diag,
                            &region->image);
}

static hr_status add_start(struct hr_request *request, struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_session_publish(request->session, request->object, diag));
        (void) hr_object_ref(request->object); /* the handle's */
        HR_TRY(hr_wire_fixed64_encode(request->object->handle, message, sizeof message, diag,
                                      &bytes));
        hr_request_reply(request, message, bytes, NULL, 0);
        return HR_OK;
}

static hr_status drop_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t handle = 0;

        (void) header;
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        return hr_session_object(request->session, handle, HR_OBJECT_REGION, diag,
                                 &request->object);
}

static hr_status drop_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_forget_object(request);
        return HR_OK;
}

const struct hr_method hr_region_methods[] = {
        {.type = HR_FRAME_REGION_ADD,
         .name = "REGION_ADD",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .fd_count = 1,
         .begin = add_begin,
         .start = add_start},
        {.type = HR_FRAME_REGION_DROP,
         .name = "REGION_DROP",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = drop_begin,
         .start = drop_start},
        {0},
};
