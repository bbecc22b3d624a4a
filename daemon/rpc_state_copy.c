/*
 * States as a whole: SAVE, RESTORE, FORK.
 *
 * All of a state's tensors are moved by transfers that are posted at once: in the session's lane
 * nothing comes between them, so what is read is the state between two runs, and runs that follow
 * find all that is written. The request ends with the last of them; the first failure is its own.
 *
 * A FORK takes its place in the lane when it comes, though the engine has to make the new state
 * first: until then its transfers are held. Making it counts as one of what the request waits for.
 */
#include <stdlib.h>
#include <string.h>

#include "daemon/rpc.h"
#include "daemon/rpc_state.h"

struct moving {
        struct hr_wire_state_restore restore;
        struct hr_placement_rule *rules;
        struct hr_manifest *manifest; /* RESTORE: between two jobs */
        struct hr_object *source;     /* FORK: referenced */
        uint64_t manifest_bytes;      /* SAVE */
        /* The transfers. */
        struct hr_transfer_job *jobs;
        bool *done;
        uint32_t count, left;
        hr_status status; /* of the first that failed */
        struct hr_diag diag;
        hr_finish_fn finish;
};

static hr_status moving_begin(struct hr_request *request, struct hr_diag *diag,
                              struct moving **ret_moving) {
        struct moving *moving = hr_arena_alloc(&request->arena, sizeof *moving, 8);

        if (!moving)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = moving;
        *ret_moving = moving;
        return HR_OK;
}

static void moving_release(struct hr_request *request) {
        struct moving *moving = request->context;

        if (!moving)
                return;
        moving->manifest = hr_manifest_free(moving->manifest);
        moving->source = hr_object_unref(moving->source);
}

/* ---- all tensors at once --------------------------------------------------------------------- */

/* One of what the request waits for has ended like that. */
static void moving_part_done(struct hr_request *request, hr_status status,
                             const struct hr_diag *diag) {
        struct moving *moving = request->context;

        if (status != HR_OK && moving->status == HR_OK) {
                moving->status = status;
                moving->diag = *diag;
        }
        HR_ASSERT(moving->left > 0);
        if (--moving->left > 0)
                return;
        request->job.status = moving->status;
        request->job.diag = moving->diag;
        hr_request_finish(&request->job, moving->finish);
}

static void move_done(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct moving *moving = request->context;
        const struct hr_transfer_job *transfer = HR_CONTAINER_OF(job, struct hr_transfer_job, job);

        moving->done[transfer - moving->jobs] = true;
        moving_part_done(request, job->status, &job->diag);
}

static void moves_cancel(struct hr_request *request, hr_status status) {
        struct moving *moving = request->context;

        for (uint32_t i = 0; i < moving->count; i++)
                if (!moving->done[i])
                        hr_engine_cancel(request->server->engine, &moving->jobs[i].job, status);
}

static void moving_stop(struct hr_request *request) {
        struct moving *moving = request->context;

        if (moving && moving->left > 0)
                moves_cancel(request,
                             request->stopped != HR_OK ? request->stopped : HR_E_CANCELLED);
}

/* Every tensor of `state`: from or to its place in `host`, or, without one, held, to another
 * state. */
static hr_status moves_make(struct hr_request *request, struct hr_state *state, uint8_t *host,
                            bool is_write, struct hr_diag *diag) {
        const struct hr_manifest *manifest = state->manifest;
        struct moving *moving = request->context;
        uint64_t count = manifest->tensor_count;

        moving->jobs = hr_arena_alloc(&request->arena, count * sizeof *moving->jobs, 64);
        moving->done = hr_arena_alloc(&request->arena, count, 1);
        if (!moving->jobs || !moving->done)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %u transfers",
                               manifest->tensor_count);
        for (uint32_t i = 0; i < manifest->tensor_count; i++)
                moving->jobs[i] = (struct hr_transfer_job){
                        .job = {.kind = HR_JOB_TRANSFER,
                                .lane = &request->session->lane,
                                .done = move_done,
                                .arg = request,
                                .deadline_ns = request->deadline_ns},
                        .is_write = is_write,
                        .is_held = !host,
                        .transfer = {.state = state,
                                     .tensor = i,
                                     .bytes = manifest->tensors[i].bytes,
                                     .host = host ? host + manifest->tensors[i].offset : NULL},
                };
        moving->count = moving->left = manifest->tensor_count;
        return HR_OK;
}

static void moves_post(struct hr_request *request) {
        struct moving *moving = request->context;

        for (uint32_t i = 0; i < moving->count; i++)
                hr_engine_post(request->server->engine, &moving->jobs[i].job);
}

/* The request has no job but its transfers: this one stands for them, as far as stopping goes. */
static void moving_stand_in(struct hr_request *request) {
        request->phase = HR_REQUEST_WORKING;
        request->job.kind = HR_JOB_SYNC;
        request->job.status = HR_OK;
        request->job.arg = request;
        request->active = &request->job;
}

/* All of them, and then the moving's finish. */
static hr_status moves_start(struct hr_request *request, struct hr_state *state, uint8_t *host,
                             bool is_write, struct hr_diag *diag) {
        HR_TRY(moves_make(request, state, host, is_write, diag));
        moving_stand_in(request);
        moves_post(request);
        return HR_OK;
}

/* ---- SAVE ------------------------------------------------------------------------------------ */

/* The manifest as a message: into `buffer`, or only its length. */
static hr_status manifest_encode(struct hr_request *request, const struct hr_manifest *manifest,
                                 uint8_t *buffer, size_t capacity, struct hr_diag *diag,
                                 size_t *ret_bytes) {
        uint64_t count = manifest->tensor_count, at = 0;
        uint32_t *lengths = hr_arena_alloc(&request->arena, count * sizeof *lengths, 8);
        uint32_t *types = hr_arena_alloc(&request->arena, count * sizeof *types, 8);
        int64_t *ne = hr_arena_alloc(&request->arena, count * HR_DIMS * sizeof *ne, 8);
        char *names = hr_arena_alloc(&request->arena, manifest->name_bytes + 1, 1);

        if (!lengths || !types || !ne || !names)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a manifest");
        for (uint32_t i = 0; i < manifest->tensor_count; i++) {
                const struct hr_manifest_tensor *tensor = &manifest->tensors[i];

                lengths[i] = (uint32_t) tensor->name_bytes;
                types[i] = tensor->type;
                memcpy(ne + (size_t) i * HR_DIMS, tensor->ne, sizeof tensor->ne);
                memcpy(names + at, tensor->name, tensor->name_bytes);
                at += tensor->name_bytes;
        }
        return hr_wire_manifest_encode(&(struct hr_wire_manifest){.count = manifest->tensor_count,
                                                                  .name_lengths = lengths,
                                                                  .names = names,
                                                                  .names_bytes = at,
                                                                  .types = types,
                                                                  .ne = ne},
                                       buffer, capacity, diag, ret_bytes);
}

static hr_status save_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        struct moving *moving = NULL;
        const struct hr_manifest *manifest;
        size_t manifest_bytes = 0;
        uint64_t handle = 0, total;

        (void) header;
        HR_TRY(moving_begin(request, diag, &moving));
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        HR_TRY(hr_session_object(request->session, handle, HR_OBJECT_STATE, diag,
                                 &request->object));
        manifest = hr_state_of(request->object)->manifest;
        HR_TRY(manifest_encode(request, manifest, NULL, 0, diag, &manifest_bytes));
        if (!hr_add_u64(manifest_bytes, hr_state_bytes(manifest), &total))
                return hr_fail(diag, HR_E_EXHAUSTED, "a state beyond 64 bits");
        HR_TRY(hr_session_charge_buffer(request->session, total, diag));
        request->buffer_charge = total;
        request->reply_memory = calloc(1, total + 1); /* what pads tensors is zero */
        if (!request->reply_memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the bytes");
        request->reply_bytes = total;
        return manifest_encode(request, manifest, request->reply_memory, manifest_bytes, diag,
                               &moving->manifest_bytes);
}

static hr_status save_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct moving *moving = request->context;
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_wire_varint_encode(moving->manifest_bytes, message, sizeof message, diag,
                                     &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static hr_status save_start(struct hr_request *request, struct hr_diag *diag) {
        struct moving *moving = request->context;

        moving->finish = save_finish;
        return moves_start(request, hr_state_of(request->object),
                           (uint8_t *) request->reply_memory + moving->manifest_bytes, false, diag);
}

/* ---- RESTORE --------------------------------------------------------------------------------- */

static hr_status restore_begin(struct hr_request *request, struct hr_wire_span message,
                               const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_wire_state_restore *wire;
        struct moving *moving = NULL;

        HR_TRY(moving_begin(request, diag, &moving));
        HR_TRY(hr_wire_state_restore_decode(message, &request->arena, diag, &moving->restore));
        wire = &moving->restore;
        HR_TRY(hr_state_rules(request, wire->rules, wire->rule_count, diag, &moving->rules));
        HR_TRY(hr_state_object_new(request, diag));
        return hr_request_expect_body(request,
                                      wire->body_bytes ? wire->body_bytes : header->body_bytes,
                                      UINT64_MAX, "body_bytes", diag);
}

/* Thread: engine. */
static hr_status restore_manifest_try(struct hr_request *request, struct hr_diag *diag) {
        struct moving *moving = request->context;
        uint64_t declared = moving->restore.manifest_bytes, total;
        hr_status status;

        if (declared > request->body_received)
                return hr_fail_reason(diag, HR_E_INVALID, "SIZE",
                                      "a manifest of %llu bytes in a body of %llu",
                                      (unsigned long long) declared,
                                      (unsigned long long) request->body_received);
        HR_TRY(hr_state_manifest(request, (struct hr_wire_span){request->body_memory, declared},
                                 diag, &moving->manifest));
        if (hr_add_u64(declared, hr_state_bytes(moving->manifest), &total) &&
            total == request->body_received)
                return HR_OK;
        status = hr_fail_reason(diag, HR_E_INVALID, "SIZE", "contents of %llu bytes, not %llu",
                                (unsigned long long) (request->body_received - declared),
                                (unsigned long long) hr_state_bytes(moving->manifest));
        diag->limit = hr_state_bytes(moving->manifest);
        diag->actual = request->body_received - declared;
        return status;
}

/* Thread: engine. */
static void restore_manifest_work(struct hr_job *job) {
        job->status = restore_manifest_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

/* Thread: engine. */
static void restore_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct moving *moving = request->context;
        struct hr_state *state = NULL;

        job->status = hr_state_new(hr_engine_fleet(request->server->engine),
                                   HR_STEAL(moving->manifest), moving->rules,
                                   moving->restore.rule_count, &job->diag, &state);
        hr_state_object_give(request->object, state);
        hr_engine_job_end(job);
}

static hr_status restore_fill(struct hr_request *request, struct hr_diag *diag) {
        struct moving *moving = request->context;

        if (request->stopped != HR_OK)
                return hr_fail(diag, request->stopped, "cancelled");
        moving->finish = hr_state_publish;
        return moves_start(request, hr_state_of(request->object),
                           (uint8_t *) request->body_memory + moving->restore.manifest_bytes, true,
                           diag);
}

static void restore_done(struct hr_job *job) {
        hr_request_finish(job, restore_fill);
}

static hr_status restore_charge(struct hr_request *request, struct hr_diag *diag) {
        const struct moving *moving = request->context;

        if (request->stopped != HR_OK)
                return hr_fail(diag, request->stopped, "cancelled");
        HR_TRY(hr_object_charge(request->object, HR_CHARGE_STATE_BYTES,
                                hr_state_bytes(moving->manifest),
                                request->server->config->limits.session_state_bytes, diag));
        hr_request_post_work(request, restore_work, restore_done);
        return HR_OK;
}

static void restore_manifest_done(struct hr_job *job) {
        hr_request_finish(job, restore_charge);
}

static hr_status restore_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, restore_manifest_work, restore_manifest_done);
        return HR_OK;
}

/* ---- FORK ------------------------------------------------------------------------------------ */

static hr_status fork_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        struct moving *moving = NULL;
        uint64_t handle = 0;

        (void) header;
        HR_TRY(moving_begin(request, diag, &moving));
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        HR_TRY(hr_session_object(request->session, handle, HR_OBJECT_STATE, diag,
                                 &moving->source));
        HR_TRY(hr_state_object_new(request, diag));
        return hr_object_charge(request->object, HR_CHARGE_STATE_BYTES,
                                hr_state_bytes(hr_state_of(moving->source)->manifest),
                                request->server->config->limits.session_state_bytes, diag);
}

/* Thread: engine. */
static void fork_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        const struct moving *moving = request->context;
        struct hr_state *state = NULL;

        job->status = hr_state_new_like(hr_state_of(moving->source), &job->diag, &state);
        hr_state_object_give(request->object, state);
        hr_engine_job_end(job);
}

/* The new state is there, or never will be. */
static void fork_done(struct hr_job *job) {
        struct hr_request *request = hr_request_of(job);
        struct moving *moving = request->context;
        const hr_status status = job->status;
        const struct hr_diag diag = job->diag;

        moving_stand_in(request);
        if (status == HR_OK) {
                for (uint32_t i = 0; i < moving->count; i++)
                        moving->jobs[i].transfer.into = hr_state_of(request->object);
                hr_engine_release(request->server->engine, moving->jobs, moving->count);
        } else {
                moves_cancel(request, HR_E_CANCELLED);
        }
        moving_part_done(request, status, &diag);
}

static hr_status fork_start(struct hr_request *request, struct hr_diag *diag) {
        struct moving *moving = request->context;

        HR_TRY(moves_make(request, hr_state_of(moving->source), NULL, false, diag));
        moving->finish = hr_state_publish;
        moving->left++;
        hr_request_post_work(request, fork_work, fork_done);
        moves_post(request);
        return HR_OK;
}

const struct hr_method hr_state_copy_methods[] = {
        {.type = HR_FRAME_STATE_SAVE,
         .name = "STATE_SAVE",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = save_begin,
         .start = save_start,
         .release = moving_release,
         .stop = moving_stop},
        {.type = HR_FRAME_STATE_RESTORE,
         .name = "STATE_RESTORE",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = restore_begin,
         .start = restore_start,
         .release = moving_release,
         .stop = moving_stop},
        {.type = HR_FRAME_STATE_FORK,
         .name = "STATE_FORK",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = fork_begin,
         .start = fork_start,
         .release = moving_release,
         .stop = moving_stop},
        {0},
};
