/*
 * Handle tables, counted objects, sessions and their charges.
 *
 * A handle is (generation << 32) | (slot + 1). Generations are random and never 0, so that neither
 * a handle of another session nor one of an earlier owner of the slot is likely to be taken for a
 * live one; a guess has one chance in 2^32.
 */
#include "daemon/session.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/holding.h"
#include "daemon/random.h"
#include "daemon/server.h"

/* ---- handles --------------------------------------------------------------------------------- */

#define HANDLES_FIRST 8U
#define NO_SLOT UINT32_MAX

static hr_status handles_grow(struct hr_handles *handles, struct hr_diag *diag) {
        uint64_t count = handles->slot_count ? (uint64_t) handles->slot_count * 2 : HANDLES_FIRST;
        struct hr_handle_slot *slots;

        if (count >= NO_SLOT)
                return hr_fail(diag, HR_E_EXHAUSTED, "too many handles");
        slots = realloc(handles->slots, count * sizeof *slots);
        if (!slots)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for handles");
        for (uint32_t i = handles->slot_count; i < count; i++)
                slots[i] = (struct hr_handle_slot){.next_free = i + 1 < count ? i + 1 : NO_SLOT};
        handles->first_free = handles->slot_count;
        handles->slots = slots;
        handles->slot_count = (uint32_t) count;
        return HR_OK;
}

hr_status hr_handles_add(struct hr_handles *handles, struct hr_object *object, struct hr_diag *diag,
                         uint64_t *ret_handle) {
        struct hr_handle_slot *slot;
        uint32_t generation = 0;
        uint32_t index;

        while (generation == 0)
                HR_TRY(hr_random(&generation, sizeof generation, diag));
        if (handles->used == handles->slot_count)
                HR_TRY(handles_grow(handles, diag));
        index = handles->first_free;
        HR_ASSERT(index < handles->slot_count);
        slot = &handles->slots[index];
        HR_ASSERT(slot->generation == 0);
        handles->first_free = slot->next_free;
        handles->used++;
        slot->generation = generation;
        slot->object = object;
        *ret_handle = ((uint64_t) generation << 32) | (index + 1);
        return HR_OK;
}

static struct hr_handle_slot *handles_slot(const struct hr_handles *handles, uint64_t handle) {
        uint32_t number = (uint32_t) handle;
        uint32_t generation = (uint32_t) (handle >> 32);

        if (number == 0 || number > handles->slot_count || generation == 0)
                return NULL;
        return handles->slots[number - 1].generation == generation ? &handles->slots[number - 1]
                                                                   : NULL;
}

struct hr_object *hr_handles_find(const struct hr_handles *handles, uint64_t handle) {
        struct hr_handle_slot *slot = handles_slot(handles, handle);

        return slot ? slot->object : NULL;
}

struct hr_object *hr_handles_remove(struct hr_handles *handles, uint64_t handle) {
        struct hr_handle_slot *slot = handles_slot(handles, handle);
        struct hr_object *object;

        if (!slot)
                return NULL;
        object = slot->object;
        *slot = (struct hr_handle_slot){.next_free = handles->first_free};
        handles->first_free = (uint32_t) (slot - handles->slots);
        handles->used--;
        return object;
}

void hr_handles_deinit(struct hr_handles *handles) {
        free(handles->slots);
        *handles = (struct hr_handles){0};
}

/* ---- charges --------------------------------------------------------------------------------- */

hr_status hr_session_charge(struct hr_session *session, hr_charge_kind kind, uint64_t amount,
                            uint64_t limit, struct hr_diag *diag) {
        return hr_account_charge(&session->account, &session->principal->account,
                                 &session->server->config->limits, kind, amount, limit, diag);
}

void hr_session_discharge(struct hr_session *session, hr_charge_kind kind, uint64_t amount) {
        hr_account_discharge(&session->account, &session->principal->account, kind, amount);
}

hr_status hr_session_charge_buffer(struct hr_session *session, uint64_t bytes,
                                   struct hr_diag *diag) {
        return hr_session_charge(session, HR_CHARGE_BUFFER_BYTES, bytes,
                                 session->server->config->limits.session_buffer_bytes, diag);
}

/* ---- objects --------------------------------------------------------------------------------- */

const char *hr_object_kind_name(hr_object_kind kind) {
        static const char *const names[HR_OBJECT_KINDS] = {"WEIGHTS", "STATE", "GRAPH",
                                                           "RESERVATION", "REGION"};

        HR_ASSERT(kind < HR_OBJECT_KINDS);
        return names[kind];
}

/* Objects are charged by their kind. */
static hr_charge_kind charge_of(hr_object_kind kind) {
        _Static_assert((int) HR_OBJECT_WEIGHTS == (int) HR_CHARGE_WEIGHTS &&
                               (int) HR_OBJECT_STATE == (int) HR_CHARGE_STATES &&
                               (int) HR_OBJECT_GRAPH == (int) HR_CHARGE_GRAPHS &&
                               (int) HR_OBJECT_RESERVATION == (int) HR_CHARGE_RESERVATIONS &&
                               (int) HR_OBJECT_REGION == (int) HR_CHARGE_REGIONS,
                       "kinds of objects and of charges go together");
        return (hr_charge_kind) kind;
}

/* The closing of an object that holds nothing of the engine's. */
static void object_close_nothing(struct hr_job *job) {
        hr_engine_job_end(job);
}

hr_status hr_object_new(struct hr_session *session, hr_object_kind kind, size_t size,
                        uint64_t limit, struct hr_diag *diag, struct hr_object **ret_object) {
        struct hr_object *object;

        HR_ASSERT(size >= sizeof *object);
        HR_TRY(hr_session_charge(session, charge_of(kind), 1, limit, diag));
        object = calloc(1, size);
        if (!object) {
                hr_session_discharge(session, charge_of(kind), 1);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a handle");
        }
        object->kind = kind;
        object->refs = 1;
        object->session = hr_session_ref(session);
        object->close = object_close_nothing;
        session->server->stats.objects++;
        *ret_object = object;
        return HR_OK;
}

hr_status hr_object_charge(struct hr_object *object, hr_charge_kind kind, uint64_t bytes,
                           uint64_t limit, struct hr_diag *diag) {
        HR_ASSERT(object->bytes == 0);
        HR_TRY(hr_session_charge(object->session, kind, bytes, limit, diag));
        object->bytes_kind = kind;
        object->bytes = bytes;
        return HR_OK;
}

hr_status hr_object_hold(struct hr_object *object, struct hr_object *const *others, uint32_t count,
                         struct hr_diag *diag) {
        struct hr_object **held;

        if (count == 0)
                return HR_OK;
        held = reallocarray(object->held, (size_t) object->held_count + count, sizeof *held);
        if (!held)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for what a graph is bound to");
        object->held = held;
        for (uint32_t i = 0; i < count; i++)
                held[object->held_count++] = hr_object_ref(others[i]);
        return HR_OK;
}

struct hr_object *hr_object_ref(struct hr_object *object) {
        HR_ASSERT(object->refs > 0);
        object->refs++;
        return object;
}

void hr_object_discharge(struct hr_object *object) {
        if (!object->is_discharged)
                hr_session_discharge(object->session, charge_of(object->kind), 1);
        object->is_discharged = true;
}

void hr_object_closed(struct hr_object *object) {
        struct hr_session *session = object->session;

        hr_object_discharge(object);
        hr_session_discharge(session, object->bytes_kind, object->bytes);
        object->holding = hr_holding_unref(object->holding);
        for (uint32_t i = 0; i < object->held_count; i++)
                (void) hr_object_unref(object->held[i]);
        free(object->held);
        hr_discharge(&session->server->stats.objects, 1);
        if (object->free)
                object->free(object);
        else
                free(object);
        (void) hr_session_unref(session);
}

void hr_object_closing_init(struct hr_object *object, hr_job_fn done) {
        HR_ASSERT(object->refs == 0 && object->handle == 0);
        object->closing = (struct hr_job){
                .kind = HR_JOB_WORK,
                .work = object->close,
                .cancel = object->close, /* it closes even if nobody waits for it any more */
                .done = done,
        };
}

static void closing_done(struct hr_job *job) {
        hr_object_closed(HR_CONTAINER_OF(job, struct hr_object, closing));
}

struct hr_object *hr_object_unref(struct hr_object *object) {
        if (!object)
                return NULL;
        HR_ASSERT(object->refs > 0);
        if (--object->refs > 0)
                return NULL;
        hr_object_closing_init(object, closing_done);
        hr_engine_post(object->session->server->engine, &object->closing);
        return NULL;
}

/* ---- sessions -------------------------------------------------------------------------------- */

/* The limit is one for each device. */
static uint64_t device_bytes_max(const struct hr_server *server) {
        uint64_t all;

        return hr_mul_u64(server->config->limits.session_device_bytes,
                          hr_fleet_device_count(server->fleet), &all)
                       ? all
                       : UINT64_MAX;
}

hr_status hr_session_new(struct hr_server *server, struct hr_principal *principal,
                         struct hr_diag *diag, struct hr_session **ret_session) {
        struct hr_session *session = calloc(1, sizeof *session);
        hr_status status;

        if (!session)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a session");
        status = hr_random(session->token, sizeof session->token, diag);
        if (status == HR_OK)
                status = hr_share_init(&session->share, &principal->share, HR_SHARE_WEIGHT,
                                       hr_fleet_device_count(server->fleet), diag);
        if (status == HR_OK)
                status = hr_account_charge(NULL, &principal->account, &server->config->limits,
                                           HR_CHARGE_SESSIONS, 1, 0, diag);
        if (status != HR_OK) {
                hr_share_deinit(&session->share);
                free(session);
                return status;
        }
        session->refs = 2; /* the caller's, and its own until it closes */
        session->server = server;
        session->principal = hr_principal_ref(principal);
        hr_account_init(&session->account, &principal->account, "session_device_bytes",
                        device_bytes_max(server));
        hr_lane_init(&session->lane);
        hr_list_init(&session->bounds);
        hr_list_init(&session->conns);
        hr_list_init(&session->graphs);
        hr_list_append(&server->sessions, &session->link);
        session->number = ++server->stats.sessions_total;
        server->stats.sessions++;
        *ret_session = session;
        return HR_OK;
}

hr_status hr_session_need_workspace(struct hr_session *session, struct hr_diag *diag) {
        if (session->workspace)
                return HR_OK;
        HR_TRY(hr_workspace_new(diag, &session->workspace));
        hr_workspace_set_budget(session->workspace, &session->account.device_bytes);
        return HR_OK;
}

struct hr_session *hr_session_ref(struct hr_session *session) {
        HR_ASSERT(session->refs > 0);
        session->refs++;
        return session;
}

struct hr_session *hr_session_unref(struct hr_session *session) {
        if (!session || --session->refs > 0)
                return NULL;
        HR_ASSERT(session->closed);
        HR_ASSERT(session->handles.used == 0);
        session->workspace = hr_workspace_unref(session->workspace);
        for (int kind = 0; kind < HR_CHARGE_KINDS; kind++)
                HR_ASSERT(hr_account_held(&session->account, (hr_charge_kind) kind) == 0);
        hr_list_remove(&session->link);
        session->server->stats.sessions--;
        hr_handles_deinit(&session->handles);
        free(session->evicted);
        free(session->name);
        free(session->client);
        hr_share_deinit(&session->share);
        explicit_bzero(session->token, sizeof session->token);
        hr_account_discharge(NULL, &session->principal->account, HR_CHARGE_SESSIONS, 1);
        session->principal = hr_principal_unref(session->principal);
        hr_server_session_gone(session->server);
        free(session);
        return NULL;
}

void hr_session_close(struct hr_session *session) {
        if (session->closed)
                return;
        session->closed = true;
        for (hr_object_kind kind = 0; kind < HR_OBJECT_KINDS; kind++)
                hr_session_forget_kind(session, kind);
        (void) hr_session_unref(session);
}

void hr_session_left(struct hr_session *session) {
        uint64_t grace_ns = session->server->config->session_grace_ns;

        HR_ASSERT(hr_list_is_empty(&session->conns));
        if (grace_ns == 0 || session->server->draining || session->principal->is_revoked)
                hr_session_close(session);
        else
                session->closing_ns = hr_clock_now_ns() + grace_ns;
}

bool hr_sessions_expire(struct hr_server *server, uint64_t now_ns, bool all) {
        bool waiting = false;

        HR_LIST_FOR_EACH(link, &server->sessions) {
                struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);

                if (session->closed || !hr_list_is_empty(&session->conns))
                        continue;
                if (all || session->principal->is_revoked || now_ns >= session->closing_ns)
                        hr_session_close(session);
                else
                        waiting = true;
        }
        return waiting;
}

static bool bytes_equal(const uint8_t *a, const uint8_t *b, size_t size) {
        volatile uint8_t difference = 0;

        for (size_t i = 0; i < size; i++)
                difference = (uint8_t) (difference | (a[i] ^ b[i]));
        return difference == 0;
}

struct hr_session *hr_session_find(struct hr_server *server, const struct hr_principal *principal,
                                   const uint8_t *token, size_t token_bytes) {
        struct hr_session *found = NULL;

        if (token_bytes != HR_SESSION_TOKEN_BYTES)
                return NULL;
        HR_LIST_FOR_EACH(link, &server->sessions) {
                struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);

                if (bytes_equal(session->token, token, HR_SESSION_TOKEN_BYTES) &&
                    session->principal == principal && !session->closed)
                        found = session;
        }
        return found;
}

hr_status hr_session_object(struct hr_session *session, uint64_t handle, hr_object_kind kind,
                            struct hr_diag *diag, struct hr_object **ret_object) {
        struct hr_object *object = hr_handles_find(&session->handles, handle);

        if (!object || object->kind != kind)
                return hr_fail_reason(diag, HR_E_NOT_FOUND, hr_object_kind_name(kind),
                                      "no such handle in this session");
        if (kind == HR_OBJECT_GRAPH) {
                hr_list_remove(&object->used_link);
                hr_list_append(&session->graphs, &object->used_link);
                object->used_ns = session->server->active_ns;
        }
        *ret_object = hr_object_ref(object);
        return HR_OK;
}

hr_status hr_session_publish(struct hr_session *session, struct hr_object *object,
                             struct hr_diag *diag) {
        HR_ASSERT(object->handle == 0);
        if (session->closed)
                return hr_fail(diag, HR_E_CANCELLED, "the session has closed");
        HR_TRY(hr_handles_add(&session->handles, object, diag, &object->handle));
        object->is_made = true;
        if (object->kind == HR_OBJECT_GRAPH) {
                hr_list_append(&session->graphs, &object->used_link);
                object->used_ns = hr_clock_now_ns();
                session->graph_handles++;
        }
        return HR_OK;
}

void hr_session_forget(struct hr_session *session, struct hr_object *object) {
        if (object->handle == 0)
                return;
        (void) hr_handles_remove(&session->handles, object->handle);
        object->handle = 0;
        if (object->kind == HR_OBJECT_GRAPH) {
                hr_list_remove(&object->used_link);
                session->graph_handles--;
        }
        (void) hr_object_unref(object);
}

void hr_session_forget_kind(struct hr_session *session, hr_object_kind kind) {
        for (uint32_t i = 0; i < session->handles.slot_count; i++) {
                struct hr_handle_slot *slot = &session->handles.slots[i];

                if (slot->generation != 0 && slot->object->kind == kind)
                        hr_session_forget(session, slot->object);
        }
}
