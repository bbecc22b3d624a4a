/*
 * What LOAD, PUT and PUT_FD share: the making of a set, from the request to the handle.
 *
 * Thread: loop, except where said.
 */
#pragma once

#include "daemon/holding.h"
#include "daemon/progress.h"
#include "daemon/rpc.h"

struct weights_object {
        struct hr_object base;
        struct hr_weights *set; /* NULL until it is ready */
        uint64_t descriptors;   /* charged to the principal: of a mapped file */
};

/* The context of a request that makes a set. */
struct making {
        struct hr_request *request;
        struct hr_wire_weights_load load;
        struct hr_wire_weights_put put;
        struct hr_placement_rule *rules;
        uint32_t rule_count;
        struct hr_weights_job store_job;
        struct hr_job wait;                 /* the second job */
        struct hr_job *kept;                /* engine: the job that the end of store_job ends */
        struct hr_weights_opening *opening; /* engine: LOAD, until the file is open */
        struct hr_weights_file *file;       /* LOAD: open, until it has been charged */
        uint64_t descriptors;               /* LOAD: charged, of what is open meanwhile */
        bool ended;                         /* engine: the end came before anybody waited */
        struct hr_holding *holding;         /* PUT: referenced */
        struct hr_upload *upload;       /* engine's result: referenced; NULL = nothing is to come */
        struct hr_upload_stream stream; /* of this request */
        struct hr_image *contents;      /* PUT_FD: the memfd, mapped */
        struct hr_progress progress;
        bool already;
        hr_status status;
        struct hr_diag diag;
};

struct weights_object *hr_weights_object(struct hr_object *object);
/* Charges the making and an object for the set; request->context is the making from then on. */
HR_NODISCARD hr_status hr_making_begin(struct hr_request *request, struct hr_diag *diag,
                                       struct making **ret_making);
HR_NODISCARD hr_status hr_making_rules(struct hr_request *request, struct making *making,
                                       const struct hr_wire_rule *rules, uint32_t count,
                                       struct hr_diag *diag);
/* hr_method.release */
void hr_making_release(struct hr_request *request);
/* Tells the peer how far it is, until its request is released. */
void hr_making_tell(struct hr_request *request, const char *phase);
/* hr_weights_job.done, with the request as arg. Thread: engine. */
void hr_making_done(struct hr_weights_job *store_job, hr_status status, const struct hr_diag *diag,
                    struct hr_weights *set, bool already);
/* The job ends with the making, which may have ended already. Thread: engine. */
void hr_making_wait(struct making *making, struct hr_job *job);
/* hr_job.cancel. Thread: engine. */
void hr_making_cancel(struct hr_job *job);
/* Gives the set a handle in the request's session, charged where it is an upload. */
HR_NODISCARD hr_status hr_making_publish(struct hr_request *request,
                                         struct hr_wire_set_info *ret_info, struct hr_diag *diag);
