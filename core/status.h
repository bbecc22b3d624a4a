/*
 * Statuses: a typed code as return value, words in a buffer that the caller owns.
 *
 * No allocation happens on an error path and the first failure wins: hr_fail() on a diag that
 * already holds one changes nothing but still returns its own code. The table of codes, gRPC
 * numbers and stable reasons is in proto/README.md.
 */
#pragma once

#include "core/base.h"

typedef enum hr_status {
        HR_OK = 0,
        /* Scope request: answered, the peer stays. */
        HR_E_CANCELLED,
        HR_E_INVALID,           /* an argument, graph or file is wrong in itself */
        HR_E_DEADLINE,
        HR_E_NOT_FOUND,         /* also: not yours */
        HR_E_EXISTS,
        HR_E_PERMISSION,
        HR_E_EXHAUSTED,         /* a limit or memory; diag.limit and diag.actual say which */
        HR_E_PRECONDITION,
        HR_E_RANGE,             /* an offset or an index in data is outside its tensor */
        HR_E_UNSUPPORTED,       /* a known op or message that nothing here can do */
        HR_E_INTERNAL,          /* a fault of ours */
        HR_E_UNAVAILABLE,       /* try again later */
        HR_E_DATA_LOSS,
        /* Scope peer: one error if the framing allows it, then close. */
        HR_E_UNAUTHENTICATED,
        HR_E_PROTOCOL,
        HR_E_EOF,
        /* Scope device: retire it, move the epoch, plan anew. */
        HR_E_DEVICE_LOST,
        /* Scope daemon: stop cleanly, exit non-zero. */
        HR_E_FATAL,
        HR_STATUS_COUNT
} hr_status;

typedef enum hr_scope {
        HR_SCOPE_NONE,
        HR_SCOPE_REQUEST,
        HR_SCOPE_PEER,
        HR_SCOPE_DEVICE,
        HR_SCOPE_DAEMON,
} hr_scope;

#define HR_DIAG_WORDS_BYTES 256
#define HR_DIAG_NO_INDEX UINT32_MAX

/* What went wrong. Zeroed is valid and means "nothing". */
struct hr_diag {
        hr_status status;
        const char *reason;     /* stable token in capitals, static storage; NULL = the status's
                                 * own */
        bool has_node;          /* node is an index into the graph's nodes (0 = first node) */
        uint32_t node;
        bool has_tensor;        /* tensor is an id: leaves first, then nodes */
        uint32_t tensor;
        bool has_step; /* step is a position in a sequence */
        uint32_t step;
        const char *field;      /* name of a column, key or parameter; static storage, may be
                                 * NULL */
        uint64_t limit, actual; /* both 0 when they have nothing to say */
        uint32_t retry_after_ms;
        char words[HR_DIAG_WORDS_BYTES];
};

/* "INVALID", "NOT_FOUND", ...; never NULL. */
const char *hr_status_name(hr_status status);
hr_scope hr_status_scope(hr_status status);
/* gRPC's code number (0..16). */
uint32_t hr_status_grpc_code(hr_status status);

/* Records status and words unless diag (may be NULL) already holds a failure. Returns status. */
HR_COLD HR_PRINTF(3, 4)
hr_status hr_fail(struct hr_diag *diag, hr_status status, const char *format, ...);
/* The same with a stable reason. */
HR_COLD HR_PRINTF(4, 5)
hr_status hr_fail_reason(struct hr_diag *diag, hr_status status, const char *reason,
                         const char *format, ...);

/* The reason in effect: diag->reason, or the status's name. */
const char *hr_diag_reason(const struct hr_diag *diag);
/* Empties diag, for another use or the first one: it leaves the words behind the first NUL alone,
 * which initialising with zeros does not. */
static inline void hr_diag_clear(struct hr_diag *diag) {
        diag->status = HR_OK;
        diag->reason = NULL;
        diag->has_node = diag->has_tensor = diag->has_step = false;
        diag->node = diag->tensor = diag->step = 0;
        diag->field = NULL;
        diag->limit = diag->actual = 0;
        diag->retry_after_ms = 0;
        diag->words[0] = '\0';
}

/* Passes a failure up unchanged. */
#define HR_TRY(expression)                                                                         \
        do {                                                                                       \
                hr_status hr_try_status = (expression);                                            \
                if (HR_UNLIKELY(hr_try_status != HR_OK))                                           \
                        return hr_try_status;                                                      \
        } while (0)
