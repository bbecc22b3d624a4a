/*
 * States: ALLOC, READ, WRITE, FREE.
 *
 * ALLOC is two jobs, because a state is charged before it is made and only its manifest says how
 * large it is: the first reads the manifest, then the loop charges, then the second allocates. READ
 * and WRITE are transfers in the session's lane: a read sees every run posted before it, a run
 * every write.
 */
#include "daemon/rpc_state.h"

#include <stdlib.h>

#include "daemon/region.h"
#include "daemon/rpc.h"

struct state_object {
        struct hr_object base;
        struct hr_state *state; /* NULL until it is made */
};

struct allocation {
        struct hr_wire_state_alloc alloc;
        struct hr_placement_rule *rules;
        struct hr_manifest *manifest; /* between the two jobs */
        uint64_t bytes;
};

static struct state_object *state_object(struct hr_object *object) {
        HR_ASSERT(object->kind == HR_OBJECT_STATE);
        return HR_CONTAINER_OF(object, struct state_object, base);
}

struct hr_state *hr_state_of(struct hr_object *object) {
        return state_object(object)->state;
}

void hr_state_object_give(struct hr_object *object, struct hr_state *state) {
        state_object(object)->state = state;
}

/* Thread: engine. */
static void state_close_work(struct hr_job *job) {
        struct state_object *object = state_object(HR_CONTAINER_OF(job, struct hr_object, closing));

        object->state = hr_state_unref(object->state);
        hr_engine_job_end(job);
}

hr_status hr_state_object_new(struct hr_request *request, struct hr_diag *diag) {
        HR_TRY(hr_object_new(request->session, HR_OBJECT_STATE, sizeof(struct state_object),
                             request->server->config->limits.session_states, diag,
                             &request->object));
        request->object->close = state_close_work;
        return HR_OK;
}

hr_status hr_state_publish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const struct hr_state *state = hr_state_of(request->object);
        struct hr_wire_state_alloc_reply reply = {.bytes = hr_state_bytes(state->manifest)};
        size_t bytes = 0;

        HR_TRY(hr_rpc_placed(request, &state->placement, diag, &reply.placed,
                             &reply.placed_count));
        HR_TRY(hr_session_publish(request->session, request->object, diag));
        (void) hr_object_ref(request->object); /* the handle's */
        reply.handle = request->object->handle;
        HR_TRY(hr_wire_state_alloc_reply_encode(&reply, server->scratch, sizeof server->scratch,
                                                diag, &bytes));
        hr_request_reply(request, server->scratch, bytes, NULL, 0);
        return HR_OK;
}

hr_status hr_state_manifest(struct hr_request *request, struct hr_wire_span encoded,
                            struct hr_diag *diag, struct hr_manifest **ret_manifest) {
        const struct hr_limits *limits = &request->server->config->limits;
        const struct hr_wire_manifest_limits wire_limits = {limits->state_tensors};
        const struct hr_manifest_limits manifest_limits = {
                .tensors_max = limits->state_tensors,
                .tensor_bytes_max = limits->tensor_bytes,
                .total_bytes_max = limits->session_state_bytes,
        };
        struct hr_wire_manifest wire;

        HR_TRY(hr_wire_manifest_decode(encoded, &wire_limits, &request->arena, diag, &wire));
        return hr_manifest_new(&(struct hr_manifest_columns){wire.count, wire.name_lengths,
                                                             wire.names, wire.names_bytes,
                                                             wire.types, wire.ne},
                               &manifest_limits, diag, ret_manifest);
}

hr_status hr_state_rules(struct hr_request *request, const struct hr_wire_rule *wire,
                         uint32_t count, struct hr_diag *diag,
                         struct hr_placement_rule **ret_rules) {
        struct hr_placement_rule *rules;
        uint64_t none = 0;

        HR_TRY(hr_charge(&none, count, request->server->config->limits.placement_rules,
                         "placement_rules", diag));
        rules = hr_arena_alloc(&request->arena, count * sizeof *rules, 8);
        if (!rules)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for placement rules");
        for (uint32_t i = 0; i < count; i++)
                rules[i] = (struct hr_placement_rule){wire[i].pattern, wire[i].device};
        *ret_rules = rules;
        return HR_OK;
}

/* ---- ALLOC ----------------------------------------------------------------------------------- */

static hr_status alloc_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct allocation *allocation = hr_arena_alloc(&request->arena, sizeof *allocation, 8);
        struct hr_wire_state_alloc *alloc;

        if (!allocation)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = allocation;
        alloc = &allocation->alloc;
        HR_TRY(hr_wire_state_alloc_decode(message, &request->arena, diag, alloc));
        HR_TRY(hr_state_rules(request, alloc->rules, alloc->rule_count, diag, &allocation->rules));
        HR_TRY(hr_state_object_new(request, diag));
        return hr_request_expect_body(
                request, alloc->manifest_bytes ? alloc->manifest_bytes : header->body_bytes,
                limits->manifest_bytes, "manifest_bytes", diag);
}

/* Thread: engine. */
static hr_status manifest_try(struct hr_request *request, struct hr_diag *diag) {
        struct allocation *allocation = request->context;

        HR_TRY(hr_state_manifest(
                request, (struct hr_wire_span){request->body_memory, request->body_received}, diag,
                &allocation->manifest));
        allocation->bytes = hr_state_bytes(allocation->manifest);
        return HR_OK;
}

/* Thread: engine. */
static void manifest_work(struct hr_job *job) {
        job->status = manifest_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

/* Thread: engine. */
static void alloc_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct allocation *allocation = request->context;

        job->status = hr_state_new(hr_engine_fleet(request->server->engine),
                                   HR_STEAL(allocation->manifest), allocation->rules,
                                   allocation->alloc.rule_count, &job->diag,
                                   &state_object(request->object)->state);
        hr_engine_job_end(job);
}

static void alloc_done(struct hr_job *job) {
        hr_request_finish(job, hr_state_publish);
}

static hr_status alloc_charge(struct hr_request *request, struct hr_diag *diag) {
        struct allocation *allocation = request->context;

        if (request->stopped != HR_OK)
                return hr_fail(diag, request->stopped, "cancelled");
        HR_TRY(hr_object_charge(request->object, HR_CHARGE_STATE_BYTES, allocation->bytes,
                                request->server->config->limits.session_state_bytes, diag));
        hr_request_post_work(request, alloc_work, alloc_done);
        return HR_OK;
}

static void manifest_done(struct hr_job *job) {
        hr_request_finish(job, alloc_charge);
}

static hr_status alloc_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, manifest_work, manifest_done);
        return HR_OK;
}

static void alloc_release(struct hr_request *request) {
        struct allocation *allocation = request->context;

        if (allocation)
                allocation->manifest = hr_manifest_free(allocation->manifest);
}

/* ---- READ and WRITE -------------------------------------------------------------------------- */

/* The context of a READ or WRITE. */
struct range {
        struct hr_transfer_job transfer;
        struct hr_object *region; /* referenced; NULL = the bytes are in a body */
};

static hr_status range_begin(struct hr_request *request, struct hr_wire_span message, bool is_write,
                             struct hr_diag *diag) {
        struct range *range = hr_arena_alloc(&request->arena, sizeof *range, 8);
        struct hr_state_transfer *transfer;
        struct hr_wire_state_range wire;
        uint8_t *memory = NULL;

        if (!range)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        request->context = range;
        transfer = &range->transfer.transfer;
        HR_TRY(hr_wire_state_range_decode(message, diag, &wire));
        HR_TRY(hr_session_object(request->session, wire.handle, HR_OBJECT_STATE, diag,
                                 &request->object));
        transfer->state = hr_state_of(request->object);
        transfer->tensor = wire.tensor;
        transfer->offset = wire.offset;
        transfer->bytes = wire.bytes;
        HR_TRY(hr_state_check_range(transfer->state, wire.tensor, wire.offset, wire.bytes, diag));
        if (wire.region != 0)
                HR_TRY(hr_region_take(request->session, wire.region, wire.region_offset, wire.bytes,
                                      !is_write, diag, &range->region, &memory));
        transfer->host = memory;
        return HR_OK;
}

static void range_release(struct hr_request *request) {
        struct range *range = request->context;

        if (range)
                range->region = hr_object_unref(range->region);
}

static void transfer_post(struct hr_request *request, bool is_write, hr_job_fn done) {
        struct range *range = request->context;

        range->transfer.is_write = is_write;
        range->transfer.job.kind = HR_JOB_TRANSFER;
        range->transfer.job.lane = &request->session->lane;
        range->transfer.job.done = done;
        hr_request_post(request, &range->transfer.job);
}

static hr_status read_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        struct hr_state_transfer *transfer;
        const struct range *range;

        (void) header;
        HR_TRY(range_begin(request, message, false, diag));
        range = request->context;
        if (range->region)
                return HR_OK;
        transfer = &((struct range *) request->context)->transfer.transfer;
        HR_TRY(hr_session_charge_buffer(request->session, transfer->bytes, diag));
        request->buffer_charge = transfer->bytes;
        request->reply_memory = malloc(transfer->bytes ? transfer->bytes : 1);
        transfer->host = request->reply_memory;
        return request->reply_memory ? HR_OK
                                     : hr_fail(diag, HR_E_EXHAUSTED, "no memory for the bytes");
}

static hr_status read_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct range *range = request->context;
        const uint64_t transferred = range->transfer.transfer.bytes;
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_region_check(range->region, diag));
        HR_TRY(hr_wire_varint_encode(transferred, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory,
                         range->region ? 0 : transferred);
        return HR_OK;
}

static void read_done(struct hr_job *job) {
        hr_request_finish(job, read_finish);
}

static hr_status read_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        transfer_post(request, false, read_done);
        return HR_OK;
}

static hr_status write_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        struct range *range;

        (void) header;
        HR_TRY(range_begin(request, message, true, diag));
        range = request->context;
        if (range->region)
                return HR_OK;
        HR_TRY(hr_request_expect_body(request, range->transfer.transfer.bytes, UINT64_MAX, "bytes",
                                      diag));
        range->transfer.transfer.host = request->body_memory;
        return HR_OK;
}

static hr_status write_finish(struct hr_request *request, struct hr_diag *diag) {
        const struct range *range = request->context;

        HR_TRY(hr_region_check(range->region, diag));
        hr_request_reply(request, NULL, 0, NULL, 0);
        return HR_OK;
}

static void write_done(struct hr_job *job) {
        hr_request_finish(job, write_finish);
}

static hr_status write_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        transfer_post(request, true, write_done);
        return HR_OK;
}

/* ---- FREE ------------------------------------------------------------------------------------ */

static hr_status free_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t handle = 0;

        (void) header;
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        return hr_session_object(request->session, handle, HR_OBJECT_STATE, diag, &request->object);
}

static hr_status free_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_forget_object(request);
        return HR_OK;
}

const struct hr_method hr_state_methods[] = {
        {.type = HR_FRAME_STATE_ALLOC,
         .name = "STATE_ALLOC",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = alloc_begin,
         .start = alloc_start,
         .release = alloc_release},
        {.type = HR_FRAME_STATE_READ,
         .name = "STATE_READ",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = read_begin,
         .start = read_start,
         .release = range_release},
        {.type = HR_FRAME_STATE_WRITE,
         .name = "STATE_WRITE",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = write_begin,
         .start = write_start,
         .release = range_release},
        {.type = HR_FRAME_STATE_FREE,
         .name = "STATE_FREE",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = free_begin,
         .start = free_start},
        {0},
};
