/*
 * Failures in the log: one line each, with what it takes to find the request again, and of each
 * kind only so many. A kind is a status of requests, or one of what else happens to connections.
 * Each may have a burst of lines, then one a second; the next line that is written, or a line of
 * its own once it has been quiet, says how many were not.
 *
 * Thread: loop.
 */
#pragma once

#include "core/status.h"

struct hr_conn;
struct hr_request;
struct hr_server;

typedef enum hr_failure_kind {
        /* Requests: hr_status_grpc_code() of their status, 0..16. */
        HR_FAILURE_CUT = 17, /* a connection that broke a rule */
        HR_FAILURE_REFUSED,  /* a hello with the wrong credentials */
        HR_FAILURE_KINDS
} hr_failure_kind;

#define HR_FAILURE_BURST 16U

struct hr_failures {
        struct hr_failure_limit {
                uint64_t full_ns; /* when it may have its whole burst again */
                uint64_t suppressed;
        } kinds[HR_FAILURE_KINDS];
        uint64_t suppressed_total;
};

/* Whether a line of that kind may be written now; *ret_suppressed is then how many were not since
 * the last one. Pure but for the clock that it is given. */
bool hr_failure_allowed(struct hr_failures *failures, unsigned kind, uint64_t now_ns,
                        uint64_t *ret_suppressed);

/* A request ends with a failure. */
void hr_failure_log_request(const struct hr_request *request, const struct hr_diag *failure);
/* A message that did not become a request. */
void hr_failure_log_refused(const struct hr_conn *conn, const struct hr_diag *failure);
/* What happens to a connection; words: what, static. */
void hr_failure_log_conn(const struct hr_conn *conn, hr_failure_kind kind, const char *words,
                         const struct hr_diag *failure);
/* Tells what was suppressed of kinds that are quiet by now. True while something is left to
 * tell. */
bool hr_failures_flush(struct hr_server *server, uint64_t now_ns, bool all);
