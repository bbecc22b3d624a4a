/*
 * Reservations, and plans as data.
 */
#include "client/c/client_priv.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_ARENA_BYTES (1U << 20)

/* ---- reservations ---------------------------------------------------------------------------- */

struct wanted {
        struct hr_wire_submit *submits;
        struct iovec *graphs; /* encoded */
        size_t count;
};

static void wanted_deinit(struct wanted *wanted) {
        for (size_t i = 0; wanted->graphs && i < wanted->count; i++)
                free(wanted->graphs[i].iov_base);
        free(wanted->graphs);
        free(wanted->submits);
}

static enum headrace_status wanted_init(struct wanted *wanted,
                                        const struct headrace_wanted *graphs, size_t count,
                                        struct headrace_error *error, uint64_t *ret_bytes) {
        const struct headrace_submit none = {0};

        *wanted = (struct wanted){
                .submits = calloc(count + 1, sizeof *wanted->submits),
                .graphs = calloc(count + 1, sizeof *wanted->graphs),
                .count = count,
        };
        *ret_bytes = 0;
        if (!wanted->submits || !wanted->graphs)
                return hr_client_fail_memory(error);
        for (size_t i = 0; i < count; i++) {
                uint8_t *bytes = NULL;
                size_t size = 0;
                enum headrace_status status =
                        hr_client_graph_encode(graphs[i].graph, error, &bytes, &size);

                if (status != HEADRACE_OK)
                        return status;
                wanted->graphs[i] = (struct iovec){bytes, size};
                wanted->submits[i] =
                        hr_client_submit(graphs[i].options ? graphs[i].options : &none, size);
                *ret_bytes += size;
        }
        return HEADRACE_OK;
}

static enum headrace_status reserve(struct headrace_client *client, const struct wanted *wanted,
                                    uint64_t bytes, int64_t timeout_ms,
                                    struct headrace_error *error, uint64_t *ret_reservation) {
        const struct hr_wire_reserve wire = {
                .graphs = wanted->submits,
                .graph_count = (uint32_t) wanted->count,
                .body_bytes = bytes > hr_client_body_max(client) ? bytes : 0,
        };
        uint8_t message[HR_WIRE_MESSAGE_BYTES_MAX];
        struct hr_request request = {.kind = HR_FRAME_RESERVE,
                                     .message = message,
                                     .parts = wanted->graphs,
                                     .part_count = wanted->count};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;

        if (hr_wire_reserve_encode(&wire, message, sizeof message, &diag,
                                   &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_client_call(client, &request,
                                 hr_client_deadline_of(client, timeout_ms), error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        if (hr_wire_reserve_reply_decode(answer.message, &diag, ret_reservation) != HR_OK)
                status = hr_client_fail_answer(error, &diag);
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_reserve(struct headrace_client *client,
                                      const struct headrace_wanted *graphs, size_t count,
                                      int64_t timeout_ms, struct headrace_error *error,
                                      uint64_t *ret_reservation) {
        struct wanted wanted;
        uint64_t bytes = 0;
        enum headrace_status status = wanted_init(&wanted, graphs, count, error, &bytes);

        if (status == HEADRACE_OK)
                status = reserve(client, &wanted, bytes, timeout_ms, error, ret_reservation);
        wanted_deinit(&wanted);
        return status;
}

enum headrace_status headrace_unreserve(struct headrace_client *client, uint64_t reservation,
                                        int64_t timeout_ms, struct headrace_error *error) {
        return hr_client_simple(client, HR_FRAME_RELEASE, reservation, timeout_ms, error);
}

/* ---- explanations ---------------------------------------------------------------------------- */

static enum headrace_status explain(struct headrace_handle *handle, int64_t deadline_ns,
                                    struct headrace_error *error, uint64_t *ret_generation,
                                    void **ret_bytes, size_t *ret_size) {
        struct headrace_client *client = hr_client_of(handle);
        uint8_t message[16];
        struct hr_request request = {.kind = HR_FRAME_EXPLAIN, .message = message};
        struct hr_diag diag = {0};
        struct hr_answer answer;
        struct hr_call *call;
        enum headrace_status status;
        uint8_t *copy;

        if (hr_wire_fixed64_encode(hr_client_number(handle, ret_generation), message,
                                   sizeof message, &diag, &request.message_bytes) != HR_OK)
                return hr_client_fail_diag(error, &diag);
        status = hr_client_call(client, &request, deadline_ns, error, &call, &answer);
        if (status != HEADRACE_OK)
                return status;
        copy = malloc(answer.body.size + 1);
        if (copy) {
                if (answer.body.size > 0)
                        memcpy(copy, answer.body.data, answer.body.size);
                *ret_bytes = copy;
                *ret_size = answer.body.size;
        } else {
                status = hr_client_fail_memory(error);
        }
        hr_call_free(call);
        return status;
}

enum headrace_status headrace_explain(struct headrace_handle *handle, int64_t timeout_ms,
                                      struct headrace_error *error, void **ret_bytes,
                                      size_t *ret_size) {
        int64_t deadline_ns = hr_client_deadline_of(hr_client_of(handle), timeout_ms);
        struct headrace_error local;
        uint64_t generation = 0;
        enum headrace_status status =
                explain(handle, deadline_ns, &local, &generation, ret_bytes, ret_size);

        if (hr_client_is_evicted(status, &local)) {
                status = hr_client_renew(handle, generation, deadline_ns, &local);
                if (status == HEADRACE_OK)
                        status = explain(handle, deadline_ns, &local, &generation, ret_bytes,
                                         ret_size);
        }
        if (status != HEADRACE_OK && error)
                *error = local;
        return status;
}
