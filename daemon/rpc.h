/*
 * The methods: one entry per message type, one file per service. Thread: loop, except functions
 * named
 * *_work, which are the engine's.
 */
#pragma once

#include "daemon/request.h"

struct hr_method {
        uint8_t type;
        const char *name;
        bool needs_session;
        bool in_drain;        /* also while the daemon drains: begins nothing that lasts */
        bool takes_memory;    /* refused while memory is short (pressure.h) */
        uint32_t permissions; /* HR_PERMIT_..., asked before begin */
        bool or_admin;        /* instead of them the right "admin" suffices */
        uint32_t fd_count;    /* descriptors that come with it: 0 or 1 */
        /* Decodes the message, charges, says where the body goes (hr_request_expect_body, or body
         * and body_total). A failure is replied by the caller. */
        hr_status (*begin)(struct hr_request *request, struct hr_wire_span message,
                           const struct hr_frame_header *header, struct hr_diag *diag);
        /* The body is complete: replies, or posts a job. A failure is replied by the caller. */
        hr_status (*start)(struct hr_request *request, struct hr_diag *diag);
        /* Optional: gives back what the request holds, before it is recycled. */
        void (*release)(struct hr_request *request);
        /* Optional: where the body of a DATA frame of an upload goes. A failure ends the
         * request. */
        hr_status (*place)(struct hr_request *request, const struct hr_frame_header *header,
                           uint64_t offset, struct hr_diag *diag, uint8_t **ret_memory);
        /* Optional: `bytes` more of an upload have been received. */
        void (*data)(struct hr_request *request, uint64_t bytes);
        /* Optional: told to stop; the loop lets go of what it writes into. */
        void (*stop)(struct hr_request *request);
};

/* The method of a type, or NULL. */
const struct hr_method *hr_method_find(uint8_t type);
/* May the principal ask for it? HR_E_PERMISSION. */
HR_NODISCARD hr_status hr_method_check(const struct hr_method *method,
                                       const struct hr_principal *principal, struct hr_diag *diag);
/* "RUN"...; "?" for a type that is none. Never NULL. */
const char *hr_method_name(uint8_t type);

/* A header and message have come. Sets the connection's body_to/body_request for the body that
 * follows. False: the connection has ended or is about to. */
bool hr_rpc_message(struct hr_conn *conn, struct hr_wire_span message);
/* The body of the frame is complete. */
void hr_rpc_body(struct hr_conn *conn);

/* Services; tables end with type 0. */
extern const struct hr_method hr_session_methods[];
extern const struct hr_method hr_weights_methods[];
extern const struct hr_method hr_upload_methods[];
extern const struct hr_method hr_region_methods[];
extern const struct hr_method hr_state_methods[];
extern const struct hr_method hr_state_copy_methods[];
extern const struct hr_method hr_graph_methods[];
extern const struct hr_method hr_reserve_methods[];
extern const struct hr_method hr_run_methods[];
extern const struct hr_method hr_sequence_methods[];
extern const struct hr_method hr_admin_methods[];
extern const struct hr_method hr_explain_methods[];
extern const struct hr_method hr_trace_methods[];
extern const struct hr_method hr_operate_methods[];
extern const struct hr_method hr_list_methods[];

/* Methods without fields and body use these. */
hr_status hr_method_begin_empty(struct hr_request *request, struct hr_wire_span message,
                                const struct hr_frame_header *header, struct hr_diag *diag);
/* ... and those whose only field is the handle of a graph, which becomes the request's object. */
hr_status hr_method_begin_graph(struct hr_request *request, struct hr_wire_span message,
                                const struct hr_frame_header *header, struct hr_diag *diag);
/* done() of a work job whose reply has been put together by finish(): replies the failure, or calls
 * finish with HR_OK. */
typedef hr_status (*hr_finish_fn)(struct hr_request *request, struct hr_diag *diag);
void hr_request_finish(struct hr_job *job, hr_finish_fn finish);

/* Does it see what other principals hold? */
bool hr_request_is_whole(const struct hr_request *request);

/* What an object's handle stands for. The set and the state are ready, hence immutable for the
 * loop. */
struct hr_weights *hr_weights_of(struct hr_object *object);
struct hr_state *hr_state_of(struct hr_object *object);

/* What each device has of a set or a state, in the request's arena. */
HR_NODISCARD hr_status hr_rpc_placed(struct hr_request *request,
                                     const struct hr_placement *placement, struct hr_diag *diag,
                                     const struct hr_wire_placed **ret_placed, uint32_t *ret_count);

/* Fills the table of devices; `devices` has room for the fleet. */
void hr_rpc_devices(struct hr_server *server, struct hr_wire_device *devices);
/* A run of the plan has ended well. */
void hr_splits_count(struct hr_server *server, const struct hr_plan *plan);
/* Notes, for the error, the states that a run of the graph has written, or may have, which failed
 * or waits at a tap. The first call counts. */
void hr_written_note(struct hr_request *request, struct hr_object *object,
                     const struct hr_run *run);
