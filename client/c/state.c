/*
 * States as a whole: saved, restored, forked. What is saved is eight bytes with the length of the
 * manifest, lowest first, the manifest, and the contents: any daemon restores it, and so does every
 * other client.
 */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_BYTES 8U

enum headrace_status hr_client_ask_state(struct headrace_client *client,
                                         const struct hr_request *request, int64_t timeout_ms,
                                         struct headrace_error *error, uint64_t *ret_state) {
        struct hr_wire_state_alloc_reply reply;
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status =
                hr_client_call(client, request, hr_client_deadline_of(client, timeout_ms),
                                error, &call, &answer);

        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_state_alloc_reply_decode(answer.message, &diag, &reply) == HR_OK)
                *ret_state = reply.handle;
        else
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        return status;
}

static enum headrace_status saved_take(const struct hr_answer *answer, struct headrace_error *error,
                                       void **ret_saved, uint64_t *ret_bytes) {
        struct hr_diag diag = {0};
        uint64_t head = 0;
        uint8_t *saved;

        if (hr_wire_varint_decode(answer->message, &diag, &head) != HR_OK)
                return hr_client_fail_answer(error, &diag);
        if (head > answer->body.size)
                return hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                                      "a saved state of %zu bytes with a manifest of %llu",
                                      answer->body.size, (unsigned long long) head);
        saved = malloc(HEAD_BYTES + answer->body.size);
        if (!saved)
                return hr_client_fail_memory(error);
        for (unsigned i = 0; i < HEAD_BYTES; i++)
                saved[i] = (uint8_t) (head >> 8 * i);
        if (answer->body.size > 0)
                memcpy(saved + HEAD_BYTES, answer->body.data, answer->body.size);
        *ret_saved = saved;
        *ret_bytes = HEAD_BYTES + answer->body.size;
        return HEADRACE_OK;
}

/* A message that is one fixed64. */
static enum headrace_status handle_message(uint64_t handle, uint8_t message[16],
                                           struct hr_request *request,
                                           struct headrace_error *error) {
        struct hr_diag diag = {0};

        request->message = message;
        return hr_wire_fixed64_encode(handle, message, 16, &diag, &request->message_bytes) == HR_OK
                       ? HEADRACE_OK
                       : hr_client_fail_diag(error, &diag);
}

enum headrace_status headrace_state_save(struct headrace_client *client, uint64_t state,
                                         int64_t timeout_ms, struct headrace_error *error,
                                         void **ret_saved, uint64_t *ret_bytes) {
        struct hr_request request = {.kind = HR_FRAME_STATE_SAVE};
        uint8_t message[16];
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status = handle_message(state, message, &request, error);

        if (status == HEADRACE_OK)
                status = hr_client_call(client, &request,
                                         hr_client_deadline_of(client, timeout_ms), error, &call,
                                         &answer);
        if (status != HEADRACE_OK)
                return status;
        status = saved_take(&answer, error, ret_saved, ret_bytes);
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_state_restore(struct headrace_client *client, const void *saved,
                                            uint64_t bytes, const struct headrace_rule *rules,
                                            size_t rule_count, int64_t timeout_ms,
                                            struct headrace_error *error, uint64_t *ret_state) {
        const uint8_t *head = saved;
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_STATE_RESTORE, .message = message};
        struct hr_wire_state_restore restore = {
                .rules = (const struct hr_wire_rule *) (const void *) rules,
                .rule_count = (uint32_t) rule_count,
        };
        struct hr_diag diag = {0};
        struct iovec part;

        for (unsigned i = 0; bytes >= HEAD_BYTES && i < HEAD_BYTES; i++)
                restore.manifest_bytes |= (uint64_t) head[i] << 8 * i;
        if (bytes < HEAD_BYTES || restore.manifest_bytes > bytes - HEAD_BYTES)
                return hr_client_fail(error, HEADRACE_INVALID, "SIZE",
                                      "this is no saved state, or not all of it");
        part = (struct iovec){(void *) (uintptr_t) (head + HEAD_BYTES), bytes - HEAD_BYTES};
        request.parts = &part;
        request.part_count = 1;
        restore.body_bytes =
                part.iov_len > hr_client_body_max(client) ? part.iov_len : 0;
        if (hr_wire_state_restore_encode(&restore, message, sizeof message, &diag,
                                         &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        return hr_client_ask_state(client, &request, timeout_ms, error, ret_state);
}

enum headrace_status headrace_state_fork(struct headrace_client *client, uint64_t state,
                                         int64_t timeout_ms, struct headrace_error *error,
                                         uint64_t *ret_state) {
        struct hr_request request = {.kind = HR_FRAME_STATE_FORK};
        uint8_t message[16];
        enum headrace_status status = handle_message(state, message, &request, error);

        return status == HEADRACE_OK
                       ? hr_client_ask_state(client, &request, timeout_ms, error, ret_state)
                       : status;
}
