/*
 * Weight sets: LOAD, LIST, DROP, TENSORS, and what making a set has in common with PUT (in
 * rpc_upload.c).
 *
 * A set that a session uses is an object of it: the object's closing gives the reference back on
 * the engine's thread. LOAD is one job that the store ends.
 */
#include "daemon/rpc_weights.h"

#include <stdlib.h>
#include <string.h>

/* While a file is read: one to read it, one to watch its mapping, which stays. */
#define LOAD_DESCRIPTORS 2U

struct weights_object *hr_weights_object(struct hr_object *object) {
        HR_ASSERT(object->kind == HR_OBJECT_WEIGHTS);
        return HR_CONTAINER_OF(object, struct weights_object, base);
}

/* Thread: engine. */
static void weights_close_work(struct hr_job *job) {
        struct weights_object *object =
                hr_weights_object(HR_CONTAINER_OF(job, struct hr_object, closing));

        if (object->set) {
                object->set->users--;
                object->set = hr_weights_unref(object->set);
        }
        hr_engine_job_end(job);
}

static void weights_free(struct hr_object *base) {
        struct weights_object *object = hr_weights_object(base);

        hr_account_discharge(NULL, &base->session->principal->account, HR_CHARGE_DESCRIPTORS,
                             object->descriptors);
        free(object);
}

/* ---- making a set: what LOAD and PUT share ----------------------------------------------------
 */

hr_status hr_making_rules(struct hr_request *request, struct making *making,
                          const struct hr_wire_rule *rules, uint32_t count, struct hr_diag *diag) {
        uint64_t none = 0;

        HR_TRY(hr_charge(&none, count, request->server->config->limits.placement_rules,
                         "placement_rules", diag));
        making->rules = hr_arena_alloc(&request->arena, count * sizeof *making->rules, 8);
        if (!making->rules)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for placement rules");
        for (uint32_t i = 0; i < count; i++)
                making->rules[i] = (struct hr_placement_rule){rules[i].pattern, rules[i].device};
        making->rule_count = count;
        return HR_OK;
}

hr_status hr_making_begin(struct hr_request *request, struct hr_diag *diag,
                          struct making **ret_making) {
        const struct hr_limits *limits = &request->server->config->limits;
        struct making *making = hr_arena_alloc(&request->arena, sizeof *making, 8);

        if (!making)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        HR_TRY(hr_session_charge(request->session, HR_CHARGE_UPLOADS, 1, limits->session_uploads,
                                 diag));
        request->context = making;
        making->request = request;
        HR_TRY(hr_object_new(request->session, HR_OBJECT_WEIGHTS, sizeof(struct weights_object),
                             limits->session_weights, diag, &request->object));
        request->object->close = weights_close_work;
        request->object->free = weights_free;
        *ret_making = making;
        return HR_OK;
}

void hr_making_release(struct hr_request *request) {
        struct making *making = request->context;

        if (!making)
                return;
        hr_progress_end(&making->progress);
        making->holding = hr_holding_unref(making->holding);
        making->file = hr_weights_file_free(making->file);
        hr_account_discharge(NULL, &request->session->principal->account, HR_CHARGE_DESCRIPTORS,
                             making->descriptors);
        hr_session_discharge(request->session, HR_CHARGE_UPLOADS, 1);
}

/* Tells the peer how far it is, until its request is released. */
void hr_making_tell(struct hr_request *request, const char *phase) {
        struct making *making = request->context;

        hr_progress_begin(&making->progress, request, &making->store_job, phase);
}

/* Thread: engine. The store has ended the set's making. */
void hr_making_done(struct hr_weights_job *store_job, hr_status status, const struct hr_diag *diag,
                    struct hr_weights *set, bool already) {
        struct hr_request *request = store_job->arg;
        struct making *making = request->context;

        making->ended = true;
        making->status = status;
        making->already = already;
        if (status != HR_OK) {
                making->diag = *diag;
        } else {
                hr_weights_object(request->object)->set = set;
                set->users++;
        }
        if (making->kept) {
                struct hr_job *job = making->kept;

                making->kept = NULL;
                job->status = status;
                job->diag = making->diag;
                hr_engine_job_end(job);
        }
}

/* Thread: engine. The job ends with the making, which may have ended already. */
void hr_making_wait(struct making *making, struct hr_job *job) {
        if (making->ended) {
                job->status = making->status;
                job->diag = making->diag;
                hr_engine_job_end(job);
                return;
        }
        making->kept = job;
        hr_engine_job_keep(job);
}

/* Thread: engine. */
void hr_making_cancel(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct making *making = request->context;

        making->kept = NULL;
        hr_weights_opening_cancel(HR_STEAL(making->opening));
        hr_weights_job_cancel(&making->store_job);
        hr_engine_job_end(job);
}

static void set_info_fill(const struct hr_weights *set, uint64_t handle,
                          struct hr_wire_set_info *ret_info) {
        *ret_info = (struct hr_wire_set_info){
                .handle = handle,
                .name = set->name,
                .tensors = set->manifest->tensor_count,
                .bytes = set->bytes,
                .digest_bytes = set->has_digest ? HR_DIGEST_BYTES : 0,
                .source = set->from_file ? "file" : "upload",
                .users = set->users,
        };
        if (set->has_digest)
                memcpy(ret_info->digest, set->digest, HR_DIGEST_BYTES);
}

/* The session's handle on an uploaded set is charged as the contents it keeps. */
static hr_status making_settle(struct hr_request *request, struct making *making,
                               struct hr_diag *diag) {
        struct weights_object *object = hr_weights_object(request->object);

        if (object->set->from_file)
                return HR_OK;
        if (making->holding) {
                object->base.holding = hr_holding_settle(HR_STEAL(making->holding), object->set);
                return HR_OK;
        }
        return hr_holding_of_set(request->server, request->session->principal, object->set, diag,
                                 &object->base.holding);
}

hr_status hr_making_publish(struct hr_request *request, struct hr_wire_set_info *ret_info,
                            struct hr_diag *diag) {
        struct weights_object *object = hr_weights_object(request->object);
        struct making *making = request->context;

        HR_TRY(making_settle(request, making, diag));
        HR_TRY(hr_session_publish(request->session, &object->base, diag));
        (void) hr_object_ref(&object->base); /* the handle's */
        set_info_fill(object->set, object->base.handle, ret_info);
        return HR_OK;
}

hr_status hr_rpc_placed(struct hr_request *request, const struct hr_placement *placement,
                        struct hr_diag *diag, const struct hr_wire_placed **ret_placed,
                        uint32_t *ret_count) {
        struct hr_wire_placed *placed = hr_arena_alloc(
                &request->arena, ((uint64_t) placement->device_count + 1) * sizeof *placed, 8);
        uint32_t count = 0;

        if (!placed)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a reply");
        for (uint32_t i = 0; i < placement->device_count; i++) {
                const struct hr_placement_share *share = &placement->shares[i];

                if (share->planned_bytes || share->requested_bytes || share->held_bytes)
                        placed[count++] = (struct hr_wire_placed){
                                hr_fleet_device(request->server->fleet, i)->props.name,
                                share->planned_bytes, share->requested_bytes, share->held_bytes};
        }
        *ret_placed = placed;
        *ret_count = count;
        return HR_OK;
}

/* ---- LOAD ------------------------------------------------------------------------------------ */

static hr_status load_begin(struct hr_request *request, struct hr_wire_span message,
                            const struct hr_frame_header *header, struct hr_diag *diag) {
        struct making *making = NULL;

        (void) header;
        HR_TRY(hr_making_begin(request, diag, &making));
        HR_TRY(hr_wire_weights_load_decode(message, &request->arena, diag, &making->load));
        if (making->load.path[0] != '\0') { /* else a set that is there */
                HR_TRY(hr_principal_check(request->session->principal, HR_PERMIT_LOAD, diag));
                HR_TRY(hr_account_charge(NULL, &request->session->principal->account,
                                         &request->server->config->limits, HR_CHARGE_DESCRIPTORS,
                                         LOAD_DESCRIPTORS, 0, diag));
                making->descriptors = LOAD_DESCRIPTORS;
        }
        return hr_making_rules(request, making, making->load.rules, making->load.rule_count, diag);
}

/* Without a path: the ready set of that name. Thread: engine. */
static hr_status load_by_name(struct hr_request *request, struct hr_diag *diag) {
        struct making *making = request->context;
        struct hr_weights *set =
                hr_weights_store_find(hr_engine_store(request->server->engine),
                                      hr_principal_owner(request->session->principal),
                                      making->load.name);

        if (!set)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, "WEIGHTS", "no set of that name");
        hr_weights_object(request->object)->set = hr_weights_ref(set);
        set->users++;
        making->already = true;
        making->ended = true;
        return HR_OK;
}

/* What the file holds is known: the loop charges it before any memory is taken. Thread: engine. */
static void load_opened(void *arg, hr_status status, const struct hr_diag *opened,
                        struct hr_weights_file *file) {
        struct hr_request *request = arg;
        struct making *making = request->context;
        struct hr_job *job = HR_STEAL(making->kept);

        making->opening = NULL;
        making->file = file;
        job->status = status;
        job->diag = *opened;
        hr_engine_job_end(job);
}

/* Thread: engine. */
static hr_status load_open(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_config *config = request->server->config;
        struct making *making = request->context;
        const struct hr_weights_file_config file_config = {
                .directories = (const char *const *) config->directories,
                .directory_count = config->directory_count,
                .limits =
                        {
                                .metadata_bytes_max = config->limits.metadata_bytes,
                                .metadata_count_max = config->limits.metadata_keys,
                                .tensors_max = config->limits.weights_tensors,
                                .tensor_bytes_max = config->limits.tensor_bytes,
                        },
        };

        return hr_weights_open(hr_engine_store(request->server->engine), &file_config,
                               making->load.path, load_opened, request, diag, &making->opening);
}

/* Thread: engine. */
static void load_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct making *making = request->context;
        const bool is_by_name = making->load.path[0] == '\0' && making->load.name[0] != '\0';

        job->status =
                is_by_name ? load_by_name(request, &job->diag) : load_open(request, &job->diag);
        if (job->status != HR_OK)
                hr_engine_job_end(job);
        else
                hr_making_wait(making, job);
}

/* Thread: engine. */
static void load_place_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct making *making = request->context;

        making->store_job.done = hr_making_done;
        making->store_job.arg = request;
        making->store_job.owner =
                making->load.is_own ? hr_principal_owner(request->session->principal) : 0;
        job->status = hr_weights_load(hr_engine_store(request->server->engine),
                                      HR_STEAL(making->file), making->load.name, making->rules,
                                      making->rule_count, &making->store_job, &job->diag);
        if (job->status != HR_OK)
                hr_engine_job_end(job);
        else
                hr_making_wait(making, job);
}

/* The handle on a mapped file is charged for its descriptor. */
static hr_status mapping_charge(struct hr_request *request, struct hr_diag *diag) {
        struct weights_object *object = hr_weights_object(request->object);
        struct making *making = request->context;

        if (!object->set->from_file)
                return HR_OK;
        if (making->descriptors > 0)
                making->descriptors--;
        else
                HR_TRY(hr_account_charge(NULL, &request->session->principal->account,
                                         &request->server->config->limits, HR_CHARGE_DESCRIPTORS, 1,
                                         0, diag));
        object->descriptors = 1;
        return HR_OK;
}

static hr_status load_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_server *server = request->server;
        struct making *making = request->context;
        const struct hr_weights *set = hr_weights_object(request->object)->set;
        struct hr_wire_load_reply reply = {
                .metadata_count = set->metadata_count,
                .metadata_bytes = set->metadata_bytes,
                .already = making->already,
        };
        size_t bytes = 0;

        hr_progress_complete(&making->progress);
        if (request->object->bytes == 0) /* a set that was there */
                HR_TRY(hr_object_charge(request->object, HR_CHARGE_WEIGHT_BYTES, set->bytes,
                                        UINT64_MAX, diag));
        HR_TRY(mapping_charge(request, diag));
        HR_TRY(hr_rpc_placed(request, &set->placement, diag, &reply.placed, &reply.placed_count));
        HR_TRY(hr_making_publish(request, &reply.set, diag));
        HR_TRY(hr_wire_load_reply_encode(&reply, server->scratch, sizeof server->scratch, diag,
                                         &bytes));
        hr_request_reply(request, server->scratch, bytes, set->metadata, set->metadata_bytes);
        return HR_OK;
}

static void load_done(struct hr_job *job) {
        hr_request_finish(job, load_finish);
}

/* The file is open: charges for what it holds, then has it placed and read. */
static hr_status load_charge(struct hr_request *request, struct hr_diag *diag) {
        struct making *making = request->context;

        if (!making->file)
                return load_finish(request, diag);
        HR_TRY(hr_object_charge(request->object, HR_CHARGE_WEIGHT_BYTES,
                                hr_weights_file_bytes(making->file), UINT64_MAX, diag));
        making->wait = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = load_place_work,
                .cancel = hr_making_cancel,
                .done = load_done,
        };
        hr_request_post(request, &making->wait);
        return HR_OK;
}

static void load_opened_done(struct hr_job *job) {
        hr_request_finish(job, load_charge);
}

static hr_status load_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_making_tell(request, "load");
        request->job.kind = HR_JOB_WORK;
        request->job.work = load_work;
        request->job.cancel = hr_making_cancel;
        request->job.done = load_opened_done;
        hr_request_post(request, &request->job);
        return HR_OK;
}

/* ---- LIST ------------------------------------------------------------------------------------ */

struct listing {
        struct hr_wire_set_info *infos;
        const struct hr_weights **sets; /* to compare with, not to look into */
        uint32_t count;
};

/* Copies what the loop needs: sets may go as soon as this is over. Thread: engine. */
static hr_status list_try(struct hr_request *request, struct hr_diag *diag) {
        struct hr_weights_store *store = hr_engine_store(request->server->engine);
        struct listing *listing = request->context;
        struct hr_weights *set = NULL;
        uint64_t count = hr_weights_store_stats(store).sets;

        listing->infos = hr_arena_alloc(&request->arena, count * sizeof *listing->infos, 8);
        listing->sets = hr_arena_alloc(&request->arena, count * sizeof *listing->sets, 8);
        while (listing->infos && listing->sets && (set = hr_weights_store_next(store, set))) {
                struct hr_wire_set_info *info = &listing->infos[listing->count];
                char *name;

                if (!hr_weights_is_seen_by(set, hr_principal_owner(request->session->principal)))
                        continue;
                name = hr_arena_alloc(&request->arena, strlen(set->name) + 1, 1);
                if (!name)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listing");
                HR_ASSERT(listing->count < count);
                set_info_fill(set, 0, info);
                memcpy(name, set->name, strlen(set->name) + 1);
                info->name = name;
                listing->sets[listing->count++] = set;
        }
        return listing->infos && listing->sets
                       ? HR_OK
                       : hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listing");
}

/* Thread: engine. */
static void list_work(struct hr_job *job) {
        job->status = list_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

static void listing_fill_handles(struct listing *listing, const struct hr_handles *handles) {
        for (uint32_t i = 0; i < handles->slot_count; i++) {
                struct hr_object *object = handles->slots[i].object;

                if (handles->slots[i].generation == 0 || object->kind != HR_OBJECT_WEIGHTS)
                        continue;
                for (uint32_t k = 0; k < listing->count; k++)
                        if (listing->sets[k] == hr_weights_object(object)->set)
                                listing->infos[k].handle = object->handle;
        }
}

static hr_status list_finish(struct hr_request *request, struct hr_diag *diag) {
        struct listing *listing = request->context;
        size_t bytes = 0;

        listing_fill_handles(listing, &request->session->handles);
        HR_TRY(hr_wire_sets_encode(listing->infos, listing->count, NULL, 0, diag, &bytes));
        request->reply_memory = malloc(bytes ? bytes : 1);
        if (!request->reply_memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listing");
        HR_TRY(hr_wire_sets_encode(listing->infos, listing->count, request->reply_memory, bytes,
                                   diag, &bytes));
        hr_request_reply(request, NULL, 0, request->reply_memory, bytes);
        return HR_OK;
}

static void list_done(struct hr_job *job) {
        hr_request_finish(job, list_finish);
}

static hr_status list_start(struct hr_request *request, struct hr_diag *diag) {
        request->context = hr_arena_alloc(&request->arena, sizeof(struct listing), 8);
        if (!request->context)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a listing");
        hr_request_post_work(request, list_work, list_done);
        return HR_OK;
}

/* ---- DROP and TENSORS ------------------------------------------------------------------------ */

static hr_status handle_begin(struct hr_request *request, struct hr_wire_span message,
                              const struct hr_frame_header *header, struct hr_diag *diag) {
        uint64_t handle = 0;

        (void) header;
        HR_TRY(hr_wire_fixed64_decode(message, diag, &handle));
        return hr_session_object(request->session, handle, HR_OBJECT_WEIGHTS, diag,
                                 &request->object);
}

static hr_status drop_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_forget_object(request);
        return HR_OK;
}

/* Columns of the set's manifest, encoded. Thread: engine. */
static hr_status tensors_try(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_manifest *manifest = hr_weights_object(request->object)->set->manifest;
        uint32_t count = manifest->tensor_count;
        uint32_t *lengths = malloc((size_t) count * sizeof *lengths + 1);
        uint32_t *types = malloc((size_t) count * sizeof *types + 1);
        int64_t *ne = malloc((size_t) count * sizeof(int64_t[HR_DIMS]) + 1);
        char *names = malloc(manifest->name_bytes + 1);
        hr_status status = hr_fail(NULL, HR_E_EXHAUSTED, "no memory");
        uint64_t name_bytes = 0;
        size_t bytes = 0;

        if (!lengths || !types || !ne || !names)
                goto out;
        for (uint32_t i = 0; i < count; i++) {
                const struct hr_manifest_tensor *tensor = &manifest->tensors[i];

                lengths[i] = tensor->name_bytes;
                types[i] = tensor->type;
                memcpy(ne + (size_t) i * HR_DIMS, tensor->ne, sizeof tensor->ne);
                memcpy(names + name_bytes, tensor->name, tensor->name_bytes);
                name_bytes += tensor->name_bytes;
        }
        {
                const struct hr_wire_manifest wire = {count, lengths, names, name_bytes, types, ne};

                status = hr_wire_manifest_encode(&wire, NULL, 0, diag, &bytes);
                if (status == HR_OK)
                        request->reply_memory = malloc(bytes ? bytes : 1);
                if (status == HR_OK && request->reply_memory)
                        status = hr_wire_manifest_encode(&wire, request->reply_memory, bytes, diag,
                                                         &request->reply_bytes);
        }
out:
        free(lengths);
        free(types);
        free(ne);
        free(names);
        if (status == HR_OK && !request->reply_memory)
                status = HR_E_EXHAUSTED;
        return status == HR_OK ? HR_OK : hr_fail(diag, status, "no memory for a manifest");
}

/* Thread: engine. */
static void tensors_work(struct hr_job *job) {
        job->status = tensors_try(job->arg, &job->diag);
        hr_engine_job_end(job);
}

static hr_status tensors_finish(struct hr_request *request, struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static void tensors_done(struct hr_job *job) {
        hr_request_finish(job, tensors_finish);
}

static hr_status tensors_start(struct hr_request *request, struct hr_diag *diag) {
        (void) diag;
        hr_request_post_work(request, tensors_work, tensors_done);
        return HR_OK;
}

struct hr_weights *hr_weights_of(struct hr_object *object) {
        return hr_weights_object(object)->set;
}

const struct hr_method hr_weights_methods[] = {
        {.type = HR_FRAME_WEIGHTS_LOAD,
         .name = "WEIGHTS_LOAD",
         .needs_session = true,
         .takes_memory = true,
         .permissions = HR_PERMIT_RUN,
         .begin = load_begin,
         .start = load_start,
         .release = hr_making_release},
        {.type = HR_FRAME_WEIGHTS_LIST,
         .name = "WEIGHTS_LIST",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .or_admin = true,
         .begin = hr_method_begin_empty,
         .start = list_start},
        {.type = HR_FRAME_WEIGHTS_DROP,
         .name = "WEIGHTS_DROP",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = handle_begin,
         .start = drop_start},
        {.type = HR_FRAME_WEIGHTS_TENSORS,
         .name = "WEIGHTS_TENSORS",
         .needs_session = true,
         .permissions = HR_PERMIT_RUN,
         .begin = handle_begin,
         .start = tensors_start},
        {0},
};
