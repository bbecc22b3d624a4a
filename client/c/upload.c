/*
 * Uploads. Contents are known by their digest: what the daemon has is not sent, and what it has got
 * before a connection broke is not sent again. On a Unix socket large contents are passed as sealed
 * memory instead. When the connection ends it is made anew, and the upload goes on, as long as
 * leaves arrive in between.
 */
#include "client/c/client_priv.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PASSED_BYTES (UINT64_C(1) << 20) /* from here on memory is worth more than the socket */
#define REPLY_BYTES_MAX 65536U           /* of lists in a reply */
#define LEAF_BYTES (UINT64_C(4) << 20)

/* How long is waited before a connection is made anew that brought nothing forward. */
static const int pauses_ms[] = {0, 100, 500, 2000};

struct upload {
        struct headrace_client *client;
        struct hr_manifest manifest;
        struct hr_wire_weights_put put;
        struct iovec *parts; /* the manifest, then the contents */
        size_t part_count;
        uint8_t *leaves; /* their digests */
        int64_t deadline_ns;
};

static void upload_deinit(struct upload *upload) {
        hr_manifest_deinit(&upload->manifest);
        free(upload->parts);
        free(upload->leaves);
}

/* Each tensor and what pads it, behind the manifest's place. */
static enum headrace_status parts_make(struct upload *upload, const struct headrace_tensor *tensors,
                                       size_t count, struct headrace_error *error) {
        static const uint8_t zeros[HR_MANIFEST_PADDING];

        upload->parts = calloc(1 + count * 2, sizeof *upload->parts);
        if (!upload->parts)
                return hr_client_fail_memory(error);
        upload->part_count = 1;
        for (size_t i = 0; i < count; i++) {
                uint64_t bytes = upload->manifest.tensor_bytes[i];
                size_t rest = bytes % HR_MANIFEST_PADDING;

                upload->parts[upload->part_count++] =
                        (struct iovec){(void *) (uintptr_t) tensors[i].data, bytes};
                if (rest > 0)
                        upload->parts[upload->part_count++] = (struct iovec){
                                (void *) (uintptr_t) zeros, HR_MANIFEST_PADDING - rest};
        }
        return HEADRACE_OK;
}

static enum headrace_status upload_init(struct upload *upload, const char *name,
                                        const struct headrace_tensor *tensors, size_t count,
                                        const struct headrace_rule *rules, size_t rule_count,
                                        struct headrace_error *error) {
        size_t leaf_bytes = 0;
        enum headrace_status status = hr_manifest_init(&upload->manifest, tensors, count, error);

        if (status == HEADRACE_OK)
                status = parts_make(upload, tensors, count, error);
        if (status != HEADRACE_OK)
                return status;
        memcpy(upload->put.name, name, strlen(name));
        upload->put.rules = hr_client_rules(rules);
        upload->put.rule_count = (uint32_t) rule_count;
        upload->put.total_bytes = upload->manifest.total_bytes;
        upload->put.resume = true;
        upload->put.digest_bytes = sizeof upload->put.digest;
        if (!hr_client_digest(upload->parts + 1, upload->manifest.total_bytes, &upload->leaves,
                              &leaf_bytes, upload->put.digest))
                return hr_client_fail_memory(error);
        status = hr_manifest_add_digests(&upload->manifest, upload->leaves, leaf_bytes, error);
        upload->parts[0] = (struct iovec){upload->manifest.bytes, upload->manifest.size};
        return status;
}

/* ---- one attempt ----------------------------------------------------------------------------- */

static enum headrace_status set_take(struct upload *upload, const struct hr_answer *answer,
                                     struct headrace_error *error, struct headrace_set *ret_set) {
        uint8_t load[HR_WIRE_SET_NAME_BYTES + 16];
        struct hr_wire_weights_load by_name = {.is_own = upload->put.is_own};
        struct hr_wire_set_info set;
        struct hr_diag diag = {0};
        size_t load_bytes = 0;
        bool already;

        memcpy(by_name.name, upload->put.name, sizeof by_name.name);
        if (hr_wire_set_reply_decode(answer->message, false, &diag, &set, &already) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        if (hr_wire_weights_load_encode(&by_name, load, sizeof load, &diag, &load_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        *ret_set = (struct headrace_set){
                hr_client_remember_set(upload->client, &set, load, load_bytes), set.tensors,
                set.bytes, already};
        return HEADRACE_OK;
}

/* Sends the contents, or with a descriptor memory that holds them. ret_sent: bytes of contents. */
static enum headrace_status attempt(struct upload *upload, struct hr_channel *channel, int fd,
                                    struct headrace_error *error, uint64_t *ret_sent,
                                    struct headrace_set *ret_set) {
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        const bool is_long = upload->manifest.size > hr_channel_body_max(channel);
        struct hr_request request = {.kind = fd < 0 ? HR_FRAME_WEIGHTS_PUT
                                                    : HR_FRAME_WEIGHTS_PUT_FD,
                                     .message = message,
                                     .parts = upload->parts,
                                     .part_count = fd < 0 ? upload->part_count : 1,
                                     .first_parts = 1,
                                     .is_pulled = fd < 0,
                                     .fds = &fd,
                                     .fd_count = fd < 0 ? 0 : 1,
                                     .ret_sent = ret_sent};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        upload->put.manifest_bytes = is_long ? upload->manifest.size : 0;
        if (hr_wire_weights_put_encode(&upload->put, message, sizeof message, &diag,
                                       &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_channel_call(channel, &request, upload->deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        status = set_take(upload, &answer, error, ret_set);
        hr_call_free(call);
        return status;
}

/* Until it has come, has been refused, or gets nowhere. */
static enum headrace_status upload_go_on(struct upload *upload, int fd,
                                         struct headrace_error *error,
                                         struct headrace_set *ret_set) {
        struct hr_channel *channel = hr_client_channel(upload->client);
        enum headrace_status status;
        bool is_asked_again = false;

        for (size_t stuck = 0; stuck < HR_ARRAY_LENGTH(pauses_ms);) {
                uint64_t sent = 0;

                status = attempt(upload, channel, fd, error, &sent, ret_set);
                if (status == HEADRACE_UNAVAILABLE && strcmp(error->reason, "CACHE") == 0 &&
                    !is_asked_again) { /* a damaged copy on disk is gone: all is asked for */
                        is_asked_again = true;
                        continue;
                }
                if (!upload->client->address || !hr_client_has_ended(status, error))
                        break;
                stuck = sent >= LEAF_BYTES ? 0 : stuck + 1;
                if (stuck == HR_ARRAY_LENGTH(pauses_ms) ||
                    hr_client_now_ns() + pauses_ms[stuck] * INT64_C(1000000) > upload->deadline_ns)
                        break;
                (void) poll(NULL, 0, pauses_ms[stuck]);
                if (!hr_client_reconnect(upload->client, channel, upload->deadline_ns))
                        continue; /* is tried once more over what has ended, which fails at once */
                hr_channel_unref(channel);
                channel = hr_client_channel(upload->client);
        }
        hr_channel_unref(channel);
        return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The contents in memory that nobody can change any more; -1 where there is none to be had. */
static int contents_seal(const struct upload *upload) {
        uint64_t at = 0, bytes = upload->manifest.total_bytes;
        int fd = hr_client_memfd(bytes);
        uint8_t *memory;

        if (fd < 0)
                return -1;
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (memory != MAP_FAILED) {
                for (size_t i = 1; i < upload->part_count; at += upload->parts[i++].iov_len)
                        if (upload->parts[i].iov_len > 0)
                                memcpy(memory + at, upload->parts[i].iov_base,
                                       upload->parts[i].iov_len);
                (void) munmap(memory, bytes);
                if (hr_client_memfd_seal(fd, true))
                        return fd;
        }
        (void) close(fd);
        return -1;
}

/* The daemon has all of it: there is nothing to pass. */
static bool is_there(struct upload *upload) {
        uint8_t message[64];
        struct hr_request request = {.kind = HR_FRAME_WEIGHTS_QUERY, .message = message};
        struct headrace_error error;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_arena arena;
        struct hr_call *call;
        uint32_t state = 0;

        if (hr_wire_weights_query_encode(upload->put.digest, message, sizeof message, &diag,
                                         &request.message_bytes) != HR_OK ||
            hr_client_call(upload->client, &request, upload->deadline_ns, &error, &call, &answer) !=
                    HEADRACE_OK)
                return false;
        hr_arena_init(&arena, REPLY_BYTES_MAX);
        if (hr_wire_weights_query_reply_decode(answer.message, &arena, &diag, &state) != HR_OK)
                state = 0;
        hr_arena_deinit(&arena);
        hr_call_free(call);
        return state == HR_WIRE_CONTENTS_WHOLE;
}

enum headrace_status headrace_put_shared(struct headrace_client *client, const char *name,
                                         const struct headrace_tensor *tensors,
                                         size_t tensor_count, const struct headrace_rule *rules,
                                         size_t rule_count, enum headrace_share share,
                                         int64_t timeout_ms, struct headrace_error *error,
                                         struct headrace_set *ret_set) {
        struct upload upload = {.client = client,
                                .put.is_own = share == HEADRACE_SHARE_PRINCIPAL,
                                .deadline_ns = hr_client_deadline_of(client, timeout_ms)};
        struct headrace_error local;
        enum headrace_status status = hr_client_check_share(share, &local);
        int fd = -1;

        if (status == HEADRACE_OK)
                status = hr_client_check_name(name, sizeof upload.put.name, &local);
        for (size_t i = 0; i < tensor_count && status == HEADRACE_OK; i++)
                if (!tensors[i].data)
                        status = hr_client_fail(&local, HEADRACE_INVALID, "MANIFEST",
                                                "tensor %zu has no data", i);
        if (status == HEADRACE_OK)
                status = upload_init(&upload, name, tensors, tensor_count, rules, rule_count,
                                     &local);
        if (status == HEADRACE_OK && client->passes_memory &&
            upload.manifest.total_bytes >= PASSED_BYTES && !is_there(&upload))
                fd = contents_seal(&upload);
        if (status == HEADRACE_OK)
                status = upload_go_on(&upload, fd, &local, ret_set);
        if (fd >= 0)
                (void) close(fd);
        if (status != HEADRACE_OK && error)
                *error = local;
        upload_deinit(&upload);
        return status;
}

enum headrace_status headrace_put(struct headrace_client *client, const char *name,
                                  const struct headrace_tensor *tensors, size_t tensor_count,
                                  const struct headrace_rule *rules, size_t rule_count,
                                  int64_t timeout_ms, struct headrace_error *error,
                                  struct headrace_set *ret_set) {
        return headrace_put_shared(client, name, tensors, tensor_count, rules, rule_count,
                                   HEADRACE_SHARE_ALL, timeout_ms, error, ret_set);
}
