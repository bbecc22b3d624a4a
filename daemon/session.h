/*
 * Sessions and what they hold.
 *
 * A session is a client's identity and property: weight sets it uses, states, graphs. Connections
 * join it; when the last one has gone (and the grace time, 0 by default, has passed) it closes:
 * every handle is dropped, every job told to stop, and it is freed when nothing refers to it any
 * more.
 *
 * Objects. What a handle leads to is counted by the loop: the handle is one reference, each request
 * in flight that uses it another, and so has each object that is bound to it. With the last one a
 * job goes to the engine, which frees what is the engine's; when that job is back the charge is
 * returned. So nothing a device may still touch is freed early, and quotas are exact.
 *
 * Handles are slot + random generation, per session. A foreign, stale or guessed one is not found.
 *
 * Thread: loop.
 */
#pragma once

#include "daemon/engine.h"
#include "daemon/principal.h"

struct hr_holding;
struct hr_server;
struct hr_session;
struct hr_object;

#define HR_SESSION_TOKEN_BYTES 16

/* ---- Handles --------------------------------------------------------------------------------- */

struct hr_handle_slot {
        uint32_t generation; /* 0 = free */
        uint32_t next_free;
        struct hr_object *object;
};

/* Zeroed is valid and empty. */
struct hr_handles {
        struct hr_handle_slot *slots;
        uint32_t slot_count, used, first_free;
};

/* HR_E_EXHAUSTED without memory. The table does not touch the object. */
HR_NODISCARD hr_status hr_handles_add(struct hr_handles *handles, struct hr_object *object,
                                      struct hr_diag *diag, uint64_t *ret_handle);
/* NULL for anything that is no live handle of this table. */
struct hr_object *hr_handles_find(const struct hr_handles *handles, uint64_t handle);
/* Takes the handle out; returns its object or NULL. */
struct hr_object *hr_handles_remove(struct hr_handles *handles, uint64_t handle);
void hr_handles_deinit(struct hr_handles *handles);

/* ---- Objects --------------------------------------------------------------------------------- */

typedef enum hr_object_kind {
        HR_OBJECT_WEIGHTS,
        HR_OBJECT_STATE,
        HR_OBJECT_GRAPH,
        HR_OBJECT_RESERVATION,
        HR_OBJECT_REGION,
        HR_OBJECT_KINDS
} hr_object_kind;

/* "WEIGHTS", "STATE", "GRAPH", "RESERVATION", "REGION": the reason of NOT_FOUND. */
const char *hr_object_kind_name(hr_object_kind kind);

struct hr_object {
        hr_object_kind kind;
        uint32_t refs;
        uint64_t handle; /* 0 = none (any more) */
        bool is_made;    /* a handle stands for it, or has */
        struct hr_session *session;
        hr_charge_kind bytes_kind; /* charged for it beside its handle */
        uint64_t bytes;
        struct hr_holding *holding; /* referenced: what an uploaded set is charged as */
        bool is_discharged;       /* no longer counted under its kind */
        struct hr_list used_link; /* a graph with a handle: in session->graphs */
        uint64_t used_ns;         /* likewise: its latest use */
        struct hr_object **held;  /* referenced: what it needs as long as it is there */
        uint32_t held_count;
        /* Closing. `close` frees what is the engine's (thread: engine), `free` the rest (loop). */
        hr_job_fn close;
        void (*free)(struct hr_object *object); /* NULL: free() */
        struct hr_job closing;
};

/* Storage of `size` bytes that begins with a struct hr_object, zero-filled, with one reference; its
 * kind's count is charged to the session under `limit`. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_object_new(struct hr_session *session, hr_object_kind kind, size_t size,
                                     uint64_t limit, struct hr_diag *diag,
                                     struct hr_object **ret_object);
/* Charges what the object holds, until it has closed; once. limit: the session's.
 * HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_object_charge(struct hr_object *object, hr_charge_kind kind,
                                        uint64_t bytes, uint64_t limit, struct hr_diag *diag);
/* What it is bound to stays, and stays charged, until it has closed, whoever drops the handles.
 * HR_E_EXHAUSTED: it holds none of them. */
HR_NODISCARD hr_status hr_object_hold(struct hr_object *object, struct hr_object *const *others,
                                      uint32_t count, struct hr_diag *diag);
/* Takes it out of its kind's count, ahead of its closing. Idempotent. */
void hr_object_discharge(struct hr_object *object);
struct hr_object *hr_object_ref(struct hr_object *object);
/* With the last reference the object closes. Returns NULL. */
struct hr_object *hr_object_unref(struct hr_object *object);
/* Prepares object->closing, which frees what is the engine's however it ends, for an object whose
 * last reference has gone; the caller posts it, and calls hr_object_closed() when it is back. */
void hr_object_closing_init(struct hr_object *object, hr_job_fn done);
void hr_object_closed(struct hr_object *object);

/* ---- Sessions -------------------------------------------------------------------------------- */

struct hr_evicted;

struct hr_session {
        uint32_t refs; /* connections, requests, objects, and one until it closes */
        uint64_t number; /* unique while the daemon runs */
        struct hr_server *server;
        struct hr_list link; /* in the server's list */
        struct hr_list conns;
        struct hr_lane lane;
        struct hr_workspace *workspace; /* compute memory of its graphs, once it has any. The
                                         * engine's */
        struct hr_list bounds;          /* graphs that hold pipelines. The engine's */
        struct hr_handles handles;
        struct hr_list graphs; /* those with a handle, the latest use last */
        uint64_t graph_handles;
        struct hr_evicted *evicted; /* evict.h */
        uint32_t evicted_next;
        bool closed;
        uint64_t closing_ns; /* when it closes unless a connection joins; 0 = it has connections */
        struct hr_principal *principal; /* referenced */
        uint8_t token[HR_SESSION_TOKEN_BYTES];
        char *name; /* NULL = none */
        char *client; /* what its first connection called itself; NULL = nothing */
        struct hr_account account;
        struct hr_share share; /* of the principal's; the engine's */
};

HR_NODISCARD hr_status hr_session_new(struct hr_server *server, struct hr_principal *principal,
                                      struct hr_diag *diag, struct hr_session **ret_session);
struct hr_session *hr_session_ref(struct hr_session *session);
struct hr_session *hr_session_unref(struct hr_session *session);
/* From now on it has a workspace. Before work that makes graphs is posted. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_session_need_workspace(struct hr_session *session, struct hr_diag *diag);
/* Drops every handle; the session is freed with its last reference. Idempotent. */
void hr_session_close(struct hr_session *session);
/* The last connection has left: closes at once, or when the grace time has passed. */
void hr_session_left(struct hr_session *session);
/* Closes the sessions without connections whose grace time has passed or whose principal was
 * revoked, or all of them. False when there are none left that wait. */
bool hr_sessions_expire(struct hr_server *server, uint64_t now_ns, bool all);
/* The live session with that token and principal, or NULL. Compares in constant time. */
struct hr_session *hr_session_find(struct hr_server *server, const struct hr_principal *principal,
                                   const uint8_t *token, size_t token_bytes);

/* Finds an object and takes a reference; for a graph this is a use. HR_E_NOT_FOUND with the kind's
 * name as reason. */
HR_NODISCARD hr_status hr_session_object(struct hr_session *session, uint64_t handle,
                                         hr_object_kind kind, struct hr_diag *diag,
                                         struct hr_object **ret_object);
/* Gives the object a handle. */
HR_NODISCARD hr_status hr_session_publish(struct hr_session *session, struct hr_object *object,
                                          struct hr_diag *diag);

/* Takes the handles from all objects of a kind. */
void hr_session_forget_kind(struct hr_session *session, hr_object_kind kind);
/* Takes the handle from an object that is held by somebody else as well; a no-op for one
 * without. */
void hr_session_forget(struct hr_session *session, struct hr_object *object);

/* Charges the session and its principal, or neither; limit: the session's. HR_E_EXHAUSTED (reason
 * LIMIT). */
HR_NODISCARD hr_status hr_session_charge(struct hr_session *session, hr_charge_kind kind,
                                         uint64_t amount, uint64_t limit, struct hr_diag *diag);
void hr_session_discharge(struct hr_session *session, hr_charge_kind kind, uint64_t amount);
/* The same for HR_CHARGE_BUFFER_BYTES under its configured limit. */
HR_NODISCARD hr_status hr_session_charge_buffer(struct hr_session *session, uint64_t bytes,
                                                struct hr_diag *diag);
