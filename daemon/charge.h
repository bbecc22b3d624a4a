/*
 * Charges: what somebody holds, under limits, counted before it is taken.
 *
 * Everything a client can make the daemon hold is charged to its session and to its principal:
 * first under the session's limit, then under the principal's, or not at all. The sum over the
 * sessions of a principal is what the principal holds; the sum over principals, what the daemon
 * does for anybody. Thread: loop, but for budgets.
 */
#pragma once

#include "daemon/config.h"
#include "scheduler/scheduler.h"

typedef enum hr_charge_kind {
        HR_CHARGE_WEIGHTS, /* handles of sets */
        HR_CHARGE_STATES,
        HR_CHARGE_GRAPHS,
        HR_CHARGE_RESERVATIONS,
        HR_CHARGE_REGIONS,
        HR_CHARGE_RUNS,         /* queued and in flight */
        HR_CHARGE_STATE_BYTES,
        HR_CHARGE_BUFFER_BYTES, /* bodies in flight and buffers of runs */
        HR_CHARGE_UPLOADS,      /* loads, too */
        HR_CHARGE_WEIGHT_BYTES, /* of the sets behind handles: by each who holds one */
        HR_CHARGE_PLAN_BYTES,   /* host memory of graphs and plans: by each handle on one */
        HR_CHARGE_DEVICE_BYTES, /* compute memory of graphs, on all devices. By a budget */
        HR_CHARGE_SESSIONS,     /* of a principal */
        HR_CHARGE_CONNECTIONS,  /* likewise, after the hello */
        HR_CHARGE_UPLOAD_BYTES, /* of a principal: contents of uploads, received and ready */
        HR_CHARGE_DESCRIPTORS,  /* of a principal: memory that was passed, or that uploads fill */
        HR_CHARGE_OUTPUT_BYTES, /* likewise: what its peers have not taken yet. Never refused: while
                                 * it is over the limit, nothing is read from them */
        HR_CHARGE_KINDS
} hr_charge_kind;

/* Zeroed, then hr_account_init(). */
struct hr_account {
        uint64_t held[HR_CHARGE_KINDS]; /* but for DEVICE_BYTES */
        struct hr_budget device_bytes;
        struct hr_account *above; /* of a principal: the daemon's; NULL for that one */
};
void hr_account_init(struct hr_account *account, struct hr_account *above, const char *field,
                     uint64_t device_bytes_max);
uint64_t hr_account_held(const struct hr_account *account, hr_charge_kind kind);
/* Counts what is never refused, up or down. */
void hr_account_change(struct hr_account *principal, hr_charge_kind kind, uint64_t from,
                       uint64_t to);

/* "graphs", "state_bytes"...: as in the names of the limits. */
const char *hr_charge_name(hr_charge_kind kind);
/* The limit of a principal. */
uint64_t hr_charge_limit(const struct hr_limits *limits, hr_charge_kind kind);
/* Charges both accounts, or none. session: NULL for what is a principal's alone. session_limit:
 * what the session may hold of it. HR_E_EXHAUSTED (reason LIMIT; field, limit, actual). */
HR_NODISCARD hr_status hr_account_charge(struct hr_account *session, struct hr_account *principal,
                                         const struct hr_limits *limits, hr_charge_kind kind,
                                         uint64_t amount, uint64_t session_limit,
                                         struct hr_diag *diag);
void hr_account_discharge(struct hr_account *session, struct hr_account *principal,
                          hr_charge_kind kind, uint64_t amount);

/* Adds to a counter under a limit. HR_E_EXHAUSTED (reason LIMIT; field, limit, actual). */
HR_NODISCARD hr_status hr_charge(uint64_t *counter, uint64_t amount, uint64_t limit,
                                 const char *field, struct hr_diag *diag);
void hr_discharge(uint64_t *counter, uint64_t amount);
