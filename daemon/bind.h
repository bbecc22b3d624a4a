/*
 * What SUBMIT makes: a graph bound to weights, states, a plan and a pipeline.
 *
 * Built on the engine's thread; once it is there everything in it but the run buffers is immutable,
 * and the loop reads sizes from it.
 */
#pragma once

#include "daemon/graphs.h"
#include "daemon/planned.h"
#include "daemon/request.h"

/* An observed run at a tap; tap.h. */
struct hr_tap_wait {
        struct hr_list link; /* in the server's list while an answer is awaited */
        struct hr_request *request;
        bool waits;      /* a push is on its way, sent, or answered, and the run has not gone on */
        bool is_sending; /* its bytes are still needed */
        bool is_answered, stop;
        uint64_t pushed_ns, waited_ns;
        uint32_t count;                 /* pushes so far */
        void (*end)(struct hr_job *job); /* has ended, and waits for the last push to be out */
};

/* One run's memory: inputs packed, outputs packed. Recycled within its graph. Thread: loop, except
 * `job` while it is posted. */
struct hr_graph_run {
        struct hr_run_job job;
        struct hr_list link; /* in the graph's idle list */
        uint8_t *inputs, *outputs;
        struct hr_run_input *input_list;
        struct hr_run_output *output_list;
        uint64_t *output_bytes; /* of those wanted, for the reply */
        uint64_t wanted_bytes;
        struct hr_trace_entry *trace; /* once a run of this memory has been traced */
        uint64_t trace_bytes;         /* charged for it */
        bool traced;                  /* this one is */
        bool observed;                /* likewise */
        bool ended_well;              /* likewise */
        uint8_t *tap_data;            /* once a run of this memory has been observed */
        uint64_t tap_bytes;           /* charged for it */
        struct hr_tap_wait tap;
        struct hr_object *regions[2]; /* inputs and outputs; referenced, NULL = own memory */
};

/* Of a device's memory; nothing of a graph whose pipeline a reservation holds. */
struct hr_graph_share {
        uint64_t bytes, own_bytes; /* own: not shared with other graphs of the session */
};

/* What a device lacks for a graph. */
struct hr_shortage {
        bool is_short;
        uint64_t missing_bytes; /* at least so many have to come from what graphs own */
};

/* A pipeline and what makes it this one. Handles of the graph, and reservations, share it. Thread:
 * engine; the loop reads `bound`, which does not change. */
struct hr_bound_graph {
        struct hr_bound bound;
        uint32_t refs;
        uint32_t reserved;   /* reservations among them: only such a one is looked for */
        struct hr_list link; /* in the session's list */
        struct hr_graph_entry *entry;
        struct hr_plan *plan;        /* that was asked for; memory may have forced another */
        struct hr_leaf_home *leaves; /* per leaf */
};

struct hr_graph_object {
        struct hr_object base;
        struct hr_graph_entry *entry;
        struct hr_plan *plan;
        struct hr_bound_graph *bound;
        hr_plan_origin origin; /* of the plan, and what differed */
        uint32_t first_different;
        struct hr_measure *measure; /* of traced runs. Thread: engine */
        struct hr_leaf_bytes *leaf_bytes; /* per device */
        /* Sizes, in the order of the graph's inputs and outputs. */
        uint32_t input_count, output_count;
        uint64_t *input_bytes, *output_bytes;
        uint64_t input_total, output_total;
        struct hr_graph_share *shares; /* per device: what the pipeline took when it was made */
        /* The loop's. */
        struct hr_list idle_runs;
        uint32_t idle_run_count;
        uint64_t measure_charge; /* of the session's buffer_bytes */
        uint64_t plan_charge;    /* of its plan_bytes */
};
struct hr_graph_object *hr_graph_object(struct hr_object *object);

/* Where leaves live, and what is pinned. */
struct hr_homes {
        struct hr_leaf_home *leaves; /* per leaf */
        struct hr_state **states;    /* distinct */
        struct hr_state_use **uses;  /* of them */
        uint32_t state_count;
        int32_t *pins; /* per tensor, NULL without pins */
        struct hr_planned planned;
};

/* A graph that is submitted, or reserved. `submit` and everything in it lie in the request's arena.
 */
struct hr_binding {
        struct hr_wire_submit submit;
        struct hr_object **weights, **states; /* referenced, until the request ends */
        struct hr_placement_rule *planned;    /* submit.planned_count of them */
        struct hr_wire_span encoded;          /* the graph; empty: its digest stands for it */
        hr_realloc_policy realloc;
        /* The work's. */
        struct hr_graph_entry *entry;
        struct hr_homes homes;
        struct hr_bound_graph *bound;
        /* Results of the work. */
        uint64_t session_reallocs; /* so far */
        uint64_t reallocs;         /* of them by this one */
        struct hr_workspace_stats realloc_latest;
        bool reserved;
        uint8_t digest[HR_DIGEST_BYTES];
        hr_plan_origin origin;
        uint32_t first_different;
        uint32_t n_copies;
        const char *uploads; /* of the pipeline; NULL without one */
        uint32_t input_count, output_count;
        struct hr_leaf_bytes *leaf_bytes; /* per device */
        struct hr_plan *plan;   /* of a dry run; freed with the request */
        const struct hr_shortage *shortages; /* after HR_E_EXHAUSTED: per device; NULL when device
                                              * memory is not why */
        bool digest_is_unknown; /* asked by digest only, and not there */
};

/* Takes the objects that the arguments name, and checks them against limits. Thread: loop. */
HR_NODISCARD hr_status hr_binding_begin(struct hr_request *request, struct hr_binding *binding,
                                        struct hr_diag *diag);
/* The object is bound to what the binding names. Thread: loop. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_binding_hold(const struct hr_binding *binding, struct hr_object *object,
                                       struct hr_diag *diag);
/* Host memory of what the work has made of it. */
uint64_t hr_binding_plan_bytes(const struct hr_graph *graph, const struct hr_plan *plan);
/* Gives back what the loop holds of it. Thread: loop. */
void hr_binding_release(struct hr_binding *binding);
/* Decodes, validates, finds homes, plans. Thread: engine, without the turn. */
HR_NODISCARD hr_status hr_bind_plan(struct hr_request *request, struct hr_binding *binding,
                                    struct hr_diag *diag);
/* The planning of a binding whose homes are known. */
struct hr_plan_request hr_binding_plan_request(const struct hr_request *request,
                                               const struct hr_binding *binding);
/* Then makes the pipeline, or takes the reserved one that equals it: binding->bound, referenced. */
HR_NODISCARD hr_status hr_bind_pipeline(struct hr_request *request, struct hr_binding *binding,
                                        struct hr_diag *diag);
/* Gives back what the work holds of it, be it done or not; results stay. Thread: engine, without
 * the turn. */
void hr_binding_deinit(struct hr_request *request, struct hr_binding *binding);
struct hr_bound_graph *hr_bound_graph_unref(struct hr_server *server, struct hr_bound_graph *bound);

/* Both, and sizes; results in the request's binding and object (whose fields it fills). May be
 * called again after a failure. Thread: engine, without the turn. */
HR_NODISCARD hr_status hr_bind(struct hr_request *request, struct hr_diag *diag);
/* Gives back what the engine owns of a graph object. Thread: engine, without the turn. */
void hr_graph_object_close_work(struct hr_job *job);
/* Frees the rest, run memory included; in rpc_run.c. Thread: loop. */
void hr_graph_object_free(struct hr_object *object);
/* Memory for the trace of a run, charged to its session: in rpc_explain.c, as is the next. Thread:
 * loop. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_run_trace_expect(struct hr_graph_object *object,
                                           struct hr_graph_run *run, struct hr_diag *diag);
/* After a traced run that has ended well: makes its outputs and behind them its trace the reply's
 * memory, on the engine's thread, then calls `done`. Thread: loop. */
void hr_run_trace_post(struct hr_request *request, hr_job_fn done);
/* Decodes and validates a graph. Thread: engine. */
HR_NODISCARD hr_status hr_bind_decode(const struct hr_server *server, struct hr_wire_span encoded,
                                      struct hr_diag *diag, struct hr_graph **ret_graph);
