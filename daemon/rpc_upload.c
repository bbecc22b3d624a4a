/*
 * WEIGHTS_PUT, WEIGHTS_PUT_FD and WEIGHTS_QUERY.
 *
 * PUT is two jobs: the first makes room for the contents, finds those that are there, or takes part
 * in an upload that is under way; then DATA goes straight into that room under credit, while the
 * second waits for the store to have verified and placed everything.
 *
 * Each PUT that sends is a stream of its holding's upload (upload.h). What a stream that ends has
 * not filled is given to the others. An upload whose last stream has gone without being told to
 * stay away waits in its holding for the next one.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/region.h"
#include "daemon/rpc_weights.h"
#include "proto/fields.h"

#define MAKING_OF(link_) HR_CONTAINER_OF(link_, struct making, stream.link)

/* ---- PUT: before the data -------------------------------------------------------------------- */

static struct hr_holding_request wanted_holding(const struct hr_request *request,
                                                const struct making *making) {
        return (struct hr_holding_request){
                .principal = request->session->principal,
                .name = making->put.name,
                .digest = making->put.digest_bytes ? making->put.digest : NULL,
                .bytes = making->put.total_bytes,
                .is_kept = making->put.resume && request->type == HR_FRAME_WEIGHTS_PUT,
                .is_own = making->put.is_own,
        };
}

static hr_status put_begin(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct making *making = NULL;
        struct hr_holding_request holding;
        uint64_t none = 0;

        HR_TRY(hr_making_begin(request, diag, &making));
        HR_TRY(hr_wire_weights_put_decode(message, &request->arena, diag, &making->put));
        HR_TRY(hr_making_rules(request, making, making->put.rules, making->put.rule_count, diag));
        if (making->put.name[0] == '\0')
                return hr_fail_reason(diag, HR_E_INVALID, "NAME", "a set needs a name");
        HR_TRY(hr_charge(&none, making->put.total_bytes, limits->upload_bytes, "upload_bytes",
                         diag));
        holding = wanted_holding(request, making);
        HR_TRY(hr_object_charge(request->object, HR_CHARGE_WEIGHT_BYTES, making->put.total_bytes,
                                UINT64_MAX, diag));
        HR_TRY(hr_holding_take(request->server, &holding, diag, &making->holding));
        request->more_follows =
                making->put.total_bytes > 0 && request->type == HR_FRAME_WEIGHTS_PUT;
        return hr_request_expect_body(request,
                                      making->put.manifest_bytes ? making->put.manifest_bytes
                                                                 : header->body_bytes,
                                      limits->manifest_bytes, "manifest_bytes", diag);
}

/* The same with all contents in a memfd. */
static hr_status put_fd_begin(struct hr_request *request, struct hr_wire_span message,
                              const struct hr_frame_header *header, struct hr_diag *diag) {
        struct making *making;

        HR_TRY(put_begin(request, message, header, diag));
        making = request->context;
        return hr_memfd_map(hr_request_fd_take(request), making->put.total_bytes, HR_MEMFD_CONTENTS,
                            diag, &making->contents);
}

/* The digests of the leaves, NULL when none were sent. */
static hr_status leaf_digests(const struct making *making, const struct hr_wire_manifest *wire,
                              struct hr_diag *diag, const uint8_t **ret_digests) {
        *ret_digests = wire->leaf_digests_bytes ? wire->leaf_digests : NULL;
        if (wire->leaf_digests_bytes == 0 ||
            wire->leaf_digests_bytes == hr_upload_leaves(making->put.total_bytes) * HR_DIGEST_BYTES)
                return HR_OK;
        return hr_fail_reason(diag, HR_E_INVALID, "MANIFEST",
                              "digests of leaves: %llu bytes for %llu leaves",
                              (unsigned long long) wire->leaf_digests_bytes,
                              (unsigned long long) hr_upload_leaves(making->put.total_bytes));
}

/* Thread: engine. */
static hr_status put_try(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct making *making = request->context;
        const struct hr_wire_manifest_limits wire_limits = {limits->weights_tensors};
        const struct hr_manifest_limits manifest_limits = {
                .tensors_max = limits->weights_tensors,
                .tensor_bytes_max = limits->tensor_bytes,
                .total_bytes_max = limits->upload_bytes,
        };
        struct hr_wire_manifest wire;
        struct hr_upload_request upload = {
                .name = making->put.name,
                .total_bytes = making->put.total_bytes,
                .digest = making->put.digest_bytes ? making->put.digest : NULL,
                .rules = making->rules,
                .rule_count = making->rule_count,
                .is_kept = making->put.resume && !making->contents,
                .owner = request->session->principal,
                .contents = making->contents,
        };

        HR_TRY(hr_wire_manifest_decode(
                (struct hr_wire_span){request->body_memory, request->body_received}, &wire_limits,
                &request->arena, diag, &wire));
        HR_TRY(leaf_digests(making, &wire, diag, &upload.leaf_digests));
        HR_TRY(hr_manifest_new(&(struct hr_manifest_columns){wire.count, wire.name_lengths,
                                                             wire.names, wire.names_bytes,
                                                             wire.types, wire.ne},
                               &manifest_limits, diag, &upload.manifest));
        making->store_job.done = hr_making_done;
        making->store_job.arg = request;
        making->store_job.owner =
                making->put.is_own ? hr_principal_owner(request->session->principal) : 0;
        return hr_weights_put(hr_engine_store(request->server->engine), &upload, &making->store_job,
                              diag, &making->upload);
}

/* Thread: engine. */
static void put_work(struct hr_job *job) {
        job->status = put_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

/* Thread: engine. */
static void put_wait_work(struct hr_job *job) {
        struct hr_request *request = job->arg;

        hr_making_wait(request->context, job);
}

/* ---- PUT: streams ---------------------------------------------------------------------------- */

/* Keeps at most the window under way. */
static void credit_give(struct making *making) {
        struct hr_upload_stream *stream = &making->stream;
        const uint64_t window = making->request->server->config->limits.upload_window_bytes;
        uint64_t under_way = stream->granted_bytes - stream->received_bytes;
        uint64_t first = 0, bytes = 0, offset, more;

        if (under_way > window / 2)
                return;
        while ((more = hr_upload_grant(stream, window - under_way, &offset)) > 0) {
                if (bytes > 0 && offset != first + bytes) {
                        hr_request_grant(making->request, bytes, first);
                        bytes = 0;
                }
                first = bytes > 0 ? first : offset;
                bytes += more;
                under_way += more;
        }
        hr_request_grant(making->request, bytes, first);
}

/* The request sends nothing more, not even what is left of the frame that is under way. What it has
 * not filled is for the others. */
static void stream_end(struct making *making) {
        struct hr_request *request = making->request;
        struct hr_conn *conn = request->conn;

        request->stream = NULL;
        hr_list_remove(&making->stream.link);
        hr_upload_leave(&making->stream);
        if (conn && conn->body_request == request) {
                conn->body_request = NULL;
                conn->body_to = NULL;
        }
}

static void stream_stop(struct making *making) {
        if (!making->request->stream)
                return;
        stream_end(making);
        HR_LIST_FOR_EACH(link, &making->holding->streams)
        credit_give(MAKING_OF(link));
}

/* Nothing more is to come: all that wait for the upload wait for the store. A holding of contents
 * that are there may have several, to different places. */
static void streams_complete(struct hr_holding *holding, const struct hr_upload *upload) {
        HR_LIST_FOR_EACH(link, &holding->streams) {
                struct making *making = MAKING_OF(link);

                if (making->upload != upload)
                        continue;
                stream_end(making);
                making->request->phase = HR_REQUEST_WORKING;
        }
}

static hr_status stream_begin(struct making *making, struct hr_diag *diag) {
        struct hr_request *request = making->request;
        struct hr_holding *holding = making->holding;

        if (hr_upload_is_received(making->upload))
                return HR_OK;
        HR_TRY(hr_upload_join(making->upload, request->server->config->limits.upload_window_bytes,
                              diag, &making->stream));
        hr_list_append(&holding->streams, &making->stream.link);
        request->phase = HR_REQUEST_RECEIVING;
        request->stream = &making->stream;
        request->body = NULL;
        request->body_total = making->put.total_bytes;
        request->body_received = request->body_granted = 0;
        request->more_follows = false;
        credit_give(making);
        return HR_OK;
}

/* The place of a DATA frame. */
static hr_status put_place(struct hr_request *request, const struct hr_frame_header *header,
                           uint64_t offset, struct hr_diag *diag, uint8_t **ret_memory) {
        const struct making *making = request->context;
        const uint64_t total = making->put.total_bytes;
        const bool more = header->flags & HR_FRAME_MORE;
        bool is_last;

        HR_TRY(hr_upload_place(request->stream, offset, header->body_bytes, diag, ret_memory));
        is_last = !making->put.resume && offset + header->body_bytes == total;
        if (header->body_bytes > 0 && more != is_last)
                return HR_OK;
        diag->limit = total;
        diag->actual = offset + header->body_bytes;
        return hr_fail_reason(diag, HR_E_RANGE, "END", "end of the data at %llu of %llu bytes",
                              (unsigned long long) diag->actual, (unsigned long long) total);
}

static void put_data(struct hr_request *request, uint64_t bytes) {
        struct making *making = request->context;

        hr_upload_commit(request->stream, bytes);
        if (hr_upload_is_received(making->upload))
                streams_complete(making->holding, making->upload);
        else
                credit_give(making);
}

/* A broken connection, or a deadline, leaves what has come for the next; a client that says so, or
 * that breaks the rules, does not, unless others take part. */
static void put_stop(struct hr_request *request) {
        struct making *making = request->context;
        const bool is_told =
                request->conn && !request->conn->finishing && request->stopped != HR_E_DEADLINE;

        stream_stop(making);
        if (is_told && making->holding && making->holding->refs == 1)
                making->holding->is_unwanted = true;
}

/* ---- PUT: the end ---------------------------------------------------------------------------- */

static hr_status put_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct making *making = request->context;
        struct hr_wire_put_reply reply = {.already = making->already};
        size_t bytes = 0;

        hr_progress_complete(&making->progress);
        HR_TRY(hr_rpc_placed(request, &hr_weights_object(request->object)->set->placement, diag,
                             &reply.placed, &reply.placed_count));
        HR_TRY(hr_making_publish(request, &reply.set, diag));
        HR_TRY(hr_wire_put_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                        &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static void put_wait_done(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct making *making = request->context;

        if (request->stream)
                stream_end(making);
        if (job->status == HR_E_DATA_LOSS)
                making->holding->is_unwanted = true;
        hr_request_finish(job, put_finish);
}

/* The store has made the upload of a holding, anew when the one before it has failed. Of one that
 * is settled it has not found the contents, or not where they are wanted: they come once more, from
 * the client, in its memory, or from the disk. Without room for them nobody goes on with this
 * upload. */
static hr_status holding_fill(struct hr_request *request, struct making *making,
                              struct hr_diag *diag) {
        const struct hr_holding_request wanted = wanted_holding(request, making);
        struct hr_holding *holding = making->holding;
        hr_status status;

        if (holding->set_number != 0 && (making->upload || making->store_job.is_new)) {
                status = hr_holding_part(&wanted, making->upload, diag, &making->holding);
                making->store_job.is_last = status != HR_OK;
                return status;
        }
        if (making->upload && holding->upload != making->upload) {
                (void) hr_upload_unref(holding->upload);
                holding->upload = hr_upload_ref(making->upload);
        }
        return HR_OK;
}

/* There is room for the upload: wait for its end, and let it come. */
static void put_done(struct hr_job *job) {
        struct hr_request *request = hr_request_of(job);
        struct making *making = request->context;
        struct hr_diag diag = job->diag;
        hr_status stopped = request->stopped, filled;

        if (job->status != HR_OK) {
                hr_request_fail(request, request->failure ? request->failure : &diag);
                return;
        }
        filled = holding_fill(request, making, &diag);
        /* Nothing more comes from a peer that has closed its side meanwhile. */
        if (making->upload && request->conn && request->conn->finishing)
                stopped = HR_E_CANCELLED;
        making->wait = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = put_wait_work,
                .cancel = hr_making_cancel,
                .done = put_wait_done,
        };
        hr_request_post(request, &making->wait);
        hr_making_tell(request, "place");
        if (stopped == HR_OK && !request->failure &&
            (filled != HR_OK || (making->upload && stream_begin(making, &diag) != HR_OK))) {
                hr_request_abort(request, &diag);
                return;
        }
        if (stopped != HR_OK || request->failure)
                hr_engine_cancel(request->server->engine, &making->wait,
                                 stopped != HR_OK ? stopped : HR_E_CANCELLED);
}

static hr_status put_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, put_work, put_done);
        return HR_OK;
}

static void put_release(struct hr_request *request) {
        struct making *making = request->context;

        if (making)
                making->upload = hr_upload_unref(making->upload);
        if (making)
                making->contents = hr_image_unref(making->contents);
        hr_making_release(request);
}

/* ---- QUERY ----------------------------------------------------------------------------------- */

struct query {
        const uint8_t *digests;
        uint32_t count;
        uint32_t *states;
        uint64_t *received;
};

static hr_status query_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        struct query *query = hr_arena_alloc(&request->arena, sizeof *query, 8);

        (void) header;
        if (!query)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = query;
        HR_TRY(hr_wire_weights_query_decode(message, &request->arena, diag, &query->digests,
                                            &query->count));
        query->states = hr_arena_alloc(&request->arena, query->count * sizeof *query->states, 8);
        query->received =
                hr_arena_alloc(&request->arena, query->count * sizeof *query->received, 8);
        return query->states && query->received
                       ? HR_OK
                       : hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
}

/* Thread: engine. */
static void query_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct query *query = request->context;

        for (uint32_t i = 0; i < query->count; i++)
                query->states[i] =
                        hr_weights_store_has(hr_engine_store(request->server->engine),
                                             hr_principal_owner(request->session->principal),
                                             query->digests + (size_t) i * HR_DIGEST_BYTES);
        hr_engine_job_end(job);
}

static hr_status query_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct query *query = request->context;
        const struct hr_wire_field fields[] = {
                {1, HR_WIRE_WORDS, query->states, query->count},
                {2, HR_WIRE_LONGS, query->received, query->count},
        };
        size_t bytes = 0;

        for (uint32_t i = 0; i < query->count; i++) {
                const struct hr_holding *holding =
                        query->states[i] == HR_CONTENTS_ABSENT
                                ? hr_holding_find(server, request->session->principal,
                                                  query->digests + (size_t) i * HR_DIGEST_BYTES)
                                : NULL;

                if (holding)
                        query->states[i] = 3;
                query->received[i] = holding ? hr_upload_received(holding->upload) : 0;
        }
        HR_TRY(hr_wire_fields_encode(fields, HR_ARRAY_LENGTH(fields), server->scratch,
                                     sizeof server->scratch, diag, &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

static void query_done(struct hr_job *job) {
        hr_request_finish(job, query_finish);
}

static hr_status query_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, query_work, query_done);
        return HR_OK;
}

/* ---- PURGE ----------------------------------------------------------------------------------- */

struct purge {
        uint64_t entries, bytes;
};

/* Thread: engine. */
static void purge_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct purge *purge = request->context;

        hr_weights_store_purge(hr_engine_store(request->server->engine), &purge->entries,
                               &purge->bytes);
        hr_engine_job_end(job);
}

static hr_status purge_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct purge *purge = request->context;
        const struct hr_wire_field fields[] = {
                {1, HR_WIRE_NUMBER, NULL, purge->entries},
                {2, HR_WIRE_NUMBER, NULL, purge->bytes},
        };
        uint8_t message[32];
        size_t bytes = 0;

        HR_TRY(hr_wire_fields_encode(fields, HR_ARRAY_LENGTH(fields), message, sizeof message, diag,
                                     &bytes));
        hr_request_reply(request, message, bytes, NULL, 0);
        return HR_OK;
}

static void purge_done(struct hr_job *job) {
        hr_request_finish(job, purge_finish);
}

static hr_status purge_start(struct hr_request *request, struct hr_diag *diag) {
        request->context = hr_arena_alloc(&request->arena, sizeof(struct purge), 8);
        if (!request->context)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        hr_request_post_work(request, purge_work, purge_done);
        return HR_OK;
}

const struct hr_method hr_upload_methods[] = {
        {.type = HR_FRAME_WEIGHTS_PURGE,
         .name = "WEIGHTS_PURGE",
         .needs_session = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = hr_method_begin_empty,
         .start = purge_start},
        {.type = HR_FRAME_WEIGHTS_QUERY,
         .name = "WEIGHTS_QUERY",
         .needs_session = true,
         .permissions = HR_PERMIT_LOAD,
         .begin = query_begin,
         .start = query_start},
        {.type = HR_FRAME_WEIGHTS_PUT,
         .name = "WEIGHTS_PUT",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_LOAD,
         .begin = put_begin,
         .start = put_start,
         .release = put_release,
         .place = put_place,
         .data = put_data,
         .stop = put_stop},
        {.type = HR_FRAME_WEIGHTS_PUT_FD,
         .name = "WEIGHTS_PUT_FD",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_LOAD,
         .fd_count = 1,
         .begin = put_fd_begin,
         .start = put_start,
         .release = put_release,
         .place = put_place,
         .data = put_data,
         .stop = put_stop},
        {0},
};
