/*
 * Model files: opened below the operator's directories, mapped privately and read-only, and read as
 * far as their table of contents. The metadata are copied out, so that nothing but tensors'
 * contents is ever read from the mapping afterwards.
 */
#include "daemon/weights_priv.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/host.h"
#include "daemon/beneath.h"
#include "daemon/large_pages.h"

HR_DEFINE_CLEANUP(struct hr_weights_file *, file_freep, hr_weights_file_free)

struct hr_weights_file *hr_weights_file_free(struct hr_weights_file *file) {
        if (file) {
                hr_manifest_free(file->tensors);
                hr_image_unref(file->image);
                if (file->fd >= 0)
                        (void) close(file->fd);
                free(file->metadata);
                free(file->path);
                free(file);
        }
        return NULL;
}

uint64_t hr_weights_file_bytes(const struct hr_weights_file *file) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < file->tensors->tensor_count; i++)
                bytes += file->tensors->tensors[i].bytes;
        return bytes;
}

static hr_status file_map(struct hr_weights_file *file, struct hr_diag *diag) {
        struct stat facts;
        void *base;

        if (fstat(file->fd, &facts) < 0)
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "FILE", "the file cannot be examined");
        if (facts.st_size <= 0)
                return hr_fail_reason(diag, HR_E_INVALID, "GGUF", "the file is empty");
        file->identity = (struct hr_file_identity){
                .device = facts.st_dev,
                .inode = facts.st_ino,
                .bytes = (uint64_t) facts.st_size,
                .modified_s = facts.st_mtim.tv_sec,
                .modified_ns = facts.st_mtim.tv_nsec,
        };
        base = mmap(NULL, file->identity.bytes, PROT_READ, MAP_PRIVATE, file->fd, 0);
        if (base == MAP_FAILED)
                return hr_fail_reason(diag, HR_E_EXHAUSTED, "HOST_MEMORY",
                                      "no address space for a file of %" PRIu64 " bytes",
                                      file->identity.bytes);
        hr_large_pages_want(base, file->identity.bytes);
        HR_TRY(hr_image_new(base, file->identity.bytes, -1, diag, &file->image));
        return hr_image_watch(file->image, file->fd, diag);
}

static hr_status file_read_gguf(struct hr_weights_file *file, const struct hr_gguf_limits *limits,
                                struct hr_diag *diag) {
        struct hr_gguf gguf = {0};

        HR_TRY(hr_gguf_parse(file->image->base, file->image->bytes, limits, diag, &gguf));
        file->tensors = HR_STEAL(gguf.tensors);
        file->is_aligned = true; /* by the format: 8 bytes at least */
        file->metadata_bytes = gguf.metadata_bytes;
        file->metadata_count = gguf.metadata_count;
        file->metadata = malloc(gguf.metadata_bytes + 1);
        if (!file->metadata)
                return hr_fail(diag, HR_E_EXHAUSTED, "metadata of %" PRIu64 " bytes",
                               gguf.metadata_bytes);
        memcpy(file->metadata, file->image->base + gguf.metadata_offset, gguf.metadata_bytes);
        return HR_OK;
}

static hr_status file_read_safetensors(struct hr_weights_file *file,
                                       const struct hr_gguf_limits *limits, struct hr_diag *diag) {
        const struct hr_safetensors_limits header_limits = {
                .header_bytes_max = limits->metadata_bytes_max,
                .metadata_count_max = limits->metadata_count_max,
                .tensors_max = limits->tensors_max,
                .tensor_bytes_max = limits->tensor_bytes_max,
        };
        struct hr_safetensors contents = {0};

        HR_TRY(hr_safetensors_parse(file->image->base, file->image->bytes, &header_limits, diag,
                                    &contents));
        file->tensors = HR_STEAL(contents.tensors);
        file->is_aligned = contents.is_aligned;
        return HR_OK;
}

static hr_status file_read_contents(struct hr_weights_file *file,
                                    const struct hr_gguf_limits *limits, struct hr_diag *diag) {
        return hr_safetensors_path(file->path) ? file_read_safetensors(file, limits, diag)
                                               : file_read_gguf(file, limits, diag);
}

/* Missing in one directory: the next one is tried. Any other failure ends the search. */
static hr_status find_file(const struct hr_weights_file_config *config, const char *path,
                           struct hr_diag *diag, int *ret_fd) {
        hr_status status = HR_E_NOT_FOUND;

        HR_TRY(hr_path_check(path, diag));
        for (uint32_t i = 0; status == HR_E_NOT_FOUND && i < config->directory_count; i++) {
                struct hr_diag inner = {0};

                status = hr_open_beneath(config->directories[i], path, false, &inner, ret_fd);
                if (status != HR_OK && status != HR_E_NOT_FOUND)
                        return hr_fail_reason(diag, status, hr_diag_reason(&inner), "%s",
                                              inner.words);
        }
        if (status != HR_OK)
                return hr_fail_reason(diag, status, "FILE",
                                      "no such file below the model directories");
        return HR_OK;
}

hr_status hr_weights_file_open(const struct hr_weights_file_config *config, const char *path,
                               struct hr_diag *diag, struct hr_weights_file **ret_file) {
        HR_CLEANUP(file_freep) struct hr_weights_file *file = NULL;
        int fd = -1;

        HR_TRY(find_file(config, path, diag, &fd));
        file = calloc(1, sizeof *file);
        if (!file) {
                (void) close(fd);
                return hr_fail(diag, HR_E_EXHAUSTED, "table of a file");
        }
        file->fd = fd;
        file->path = strdup(path);
        if (!file->path)
                return hr_fail(diag, HR_E_EXHAUSTED, "table of a file");
        HR_TRY(file_map(file, diag));
        HR_TRY(file_read_contents(file, &config->limits, diag));
        if (hr_image_check(file->image))
                return hr_fail_reason(diag, HR_E_DATA_LOSS, "FILE",
                                      "the file has become shorter while it was read");
        *ret_file = HR_STEAL(file);
        return HR_OK;
}

/* What of a file's pages may be brought in for tensors that are used where they are mapped: pages
 * beyond free memory would only push out those that came before. */
static uint64_t resident_room(const struct hr_weights_store *store) {
        uint64_t free_bytes = 0, total_bytes = 0;

        hr_host_memory(&free_bytes, &total_bytes);
        return HR_MIN(free_bytes - free_bytes / 8, store->config.resident_bytes_max);
}

hr_status hr_weights_set_read(struct hr_weights *set, struct hr_weights_file *file,
                              struct hr_diag *diag) {
        struct hr_weights_work *work = set->work;
        const uint32_t count = set->manifest->tensor_count;
        uint64_t room = resident_room(set->store);

        work->ranges = calloc((size_t) count + 1, sizeof *work->ranges);
        if (!work->ranges)
                return hr_fail(diag, HR_E_EXHAUSTED, "table of %u tensors", count);
        work->fd = file->fd;
        file->fd = -1;
        for (uint32_t i = 0; i < count; i++) {
                const struct hr_manifest_tensor *tensor = &set->manifest->tensors[i];
                struct hr_reader_range *range = &work->ranges[i];

                *range = (struct hr_reader_range){.offset = tensor->offset, .bytes = tensor->bytes};
                if (!work->in_place[set->homes[i].device])
                        continue;
                range->skip = tensor->bytes > room;
                if (range->skip)
                        work->skipped_bytes += tensor->bytes;
                else
                        room -= tensor->bytes;
        }
        work->reading.base = work->image->base;
        work->reading.room = work->image->bytes;
        work->reading.fd = work->fd;
        work->reading.ranges = work->ranges;
        work->reading.range_count = count;
        work->reading.wake = set->store->config.wake;
        work->reading.arg = set->store->config.arg;
        hr_reader_add(set->store->reader, &work->reading);
        return HR_OK;
}
