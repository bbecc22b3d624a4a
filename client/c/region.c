/*
 * Regions: memory that the daemon maps, too. What lies there crosses no socket and is not copied on
 * the way. A region is the caller's for as long as it wants; the daemon is told of it once per
 * session, so its descriptor is kept.
 */
#include "client/c/client_priv.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct headrace_region {
        struct headrace_region *next; /* of the client's */
        struct headrace_client *client;
        uint8_t *memory;
        uint64_t bytes;
        int fd;
        pthread_mutex_t lock; /* of what is below; held while the daemon is told */
        uint64_t handle;
        uint64_t session; /* that the handle is of; 0: none */
};

int hr_client_memfd(uint64_t bytes) {
        int fd = memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        if (fd >= 0 && (bytes > INT64_MAX || ftruncate(fd, (off_t) bytes) != 0)) {
                (void) close(fd);
                return -1;
        }
        return fd;
}

bool hr_client_memfd_seal(int fd, bool is_final) {
        return fcntl(fd, F_ADD_SEALS,
                     F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | (is_final ? F_SEAL_WRITE : 0)) ==
               0;
}

static void region_destroy(struct headrace_region *region) {
        if (region->memory)
                (void) munmap(region->memory, region->bytes);
        if (region->fd >= 0)
                (void) close(region->fd);
        (void) pthread_mutex_destroy(&region->lock);
        free(region);
}

/* Tells the daemon of a region. Its lock is held. */
static enum headrace_status region_add(struct headrace_region *region, struct hr_channel *channel,
                                       int64_t deadline_ns, struct headrace_error *error) {
        const struct hr_wire_region_add add = {.bytes = region->bytes, .writable = true};
        uint8_t message[32];
        struct hr_request request = {
                .kind = HR_FRAME_REGION_ADD, .message = message, .fds = &region->fd, .fd_count = 1};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        if (hr_wire_region_add_encode(&add, message, sizeof message, &diag,
                                      &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_call(channel, &request, deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_fixed64_decode(answer.message, &diag, &region->handle) == HR_OK)
                region->session = hr_channel_session(channel);
        else
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_region_new(struct headrace_client *client, uint64_t bytes,
                                         int64_t timeout_ms, struct headrace_error *error,
                                         struct headrace_region **ret_region) {
        struct headrace_region *region;
        struct hr_channel *channel;
        enum headrace_status status;
        void *memory = MAP_FAILED;

        if (!client->passes_memory)
                return hr_client_fail(error, HEADRACE_UNSUPPORTED, "REGION",
                                      "memory is shared over Unix sockets only");
        region = calloc(1, sizeof *region);
        if (!region)
                return hr_client_fail_memory(error);
        region->client = client;
        region->bytes = bytes;
        (void) pthread_mutex_init(&region->lock, NULL);
        region->fd = hr_client_memfd(bytes);
        if (region->fd >= 0 && hr_client_memfd_seal(region->fd, false))
                memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, 0);
        if (memory == MAP_FAILED) {
                region_destroy(region);
                return hr_client_fail_memory(error);
        }
        region->memory = memory;
        channel = hr_client_channel(client);
        status = region_add(region, channel, hr_client_deadline_of(client, timeout_ms), error);
        hr_channel_unref(channel);
        if (status != HEADRACE_OK) {
                region_destroy(region);
                return status;
        }
        (void) pthread_mutex_lock(&client->lock);
        region->next = client->regions;
        client->regions = region;
        (void) pthread_mutex_unlock(&client->lock);
        *ret_region = region;
        return HEADRACE_OK;
}

void *headrace_region_memory(const struct headrace_region *region) {
        return region->memory;
}

enum headrace_status headrace_region_free(struct headrace_region *region, int64_t timeout_ms,
                                          struct headrace_error *error) {
        struct headrace_region **at;
        enum headrace_status status;

        if (!region)
                return HEADRACE_OK;
        (void) pthread_mutex_lock(&region->client->lock);
        for (at = &region->client->regions; *at && *at != region;)
                at = &(*at)->next;
        if (*at)
                *at = region->next;
        (void) pthread_mutex_unlock(&region->client->lock);
        status = hr_client_simple(region->client, HR_FRAME_REGION_DROP, region->handle, timeout_ms,
                                  error);
        region_destroy(region);
        return status == HEADRACE_NOT_FOUND ? HEADRACE_OK : status; /* of a session that has gone */
}

/* The region in which the parts lie one behind the other, or NULL. */
static struct headrace_region *region_of(struct headrace_client *client, const struct iovec *parts,
                                         size_t count) {
        struct headrace_region *found;
        const uintptr_t first = count > 0 ? (uintptr_t) parts[0].iov_base : 0;
        uintptr_t end = first;

        for (size_t i = 0; i < count; i++) {
                if ((uintptr_t) parts[i].iov_base != end)
                        return NULL;
                end += parts[i].iov_len;
        }
        if (end == first)
                return NULL;
        (void) pthread_mutex_lock(&client->lock);
        for (found = client->regions; found; found = found->next)
                if (first >= (uintptr_t) found->memory &&
                    end <= (uintptr_t) found->memory + found->bytes)
                        break;
        (void) pthread_mutex_unlock(&client->lock);
        return found;
}

enum headrace_status hr_client_region(struct headrace_client *client, struct hr_channel *channel,
                                      const struct iovec *parts, size_t count, int64_t deadline_ns,
                                      struct headrace_error *error, uint64_t *ret_handle,
                                      uint64_t *ret_offset) {
        struct headrace_region *region =
                client->passes_memory ? region_of(client, parts, count) : NULL;
        enum headrace_status status = HEADRACE_OK;

        *ret_handle = *ret_offset = 0;
        if (!region)
                return HEADRACE_OK;
        (void) pthread_mutex_lock(&region->lock);
        if (region->session != hr_channel_session(channel))
                status = region_add(region, channel, deadline_ns, error);
        *ret_handle = region->handle;
        (void) pthread_mutex_unlock(&region->lock);
        *ret_offset = (uint64_t) ((uintptr_t) parts[0].iov_base - (uintptr_t) region->memory);
        return status;
}
