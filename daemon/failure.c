/*
 * How loud a failure is: what is wrong with the daemon or its devices is an error; what an operator
 * can do something about (too little of something, too slow) a warning; who may not come in, or
 * breaks rules, is a notice; all else is between the client and its request, and information.
 */
#include "daemon/failure.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/conn.h"
#include "daemon/request.h"
#include "daemon/rpc.h"

#define INTERVAL_NS HR_NS_PER_S
#define BURST_NS (HR_FAILURE_BURST * INTERVAL_NS)
#define NUMBER_BYTES 24

bool hr_failure_allowed(struct hr_failures *failures, unsigned kind, uint64_t now_ns,
                        uint64_t *ret_suppressed) {
        struct hr_failure_limit *limit = &failures->kinds[kind];

        limit->full_ns = HR_MAX(limit->full_ns, now_ns);
        if (limit->full_ns + INTERVAL_NS > now_ns + BURST_NS) {
                limit->suppressed++;
                failures->suppressed_total++;
                return false;
        }
        limit->full_ns += INTERVAL_NS;
        *ret_suppressed = limit->suppressed;
        limit->suppressed = 0;
        return true;
}

static hr_log_level level_of(const struct hr_diag *failure) {
        switch (failure->status) {
        case HR_E_INTERNAL:
        case HR_E_DATA_LOSS:
        case HR_E_DEVICE_LOST:
        case HR_E_FATAL:
                return HR_LOG_ERROR;
        case HR_E_EXHAUSTED:
        case HR_E_DEADLINE:
                return HR_LOG_WARNING;
        case HR_E_PERMISSION:
        case HR_E_UNAUTHENTICATED:
        case HR_E_PROTOCOL:
                return HR_LOG_NOTICE;
        default:
                return HR_LOG_INFO;
        }
}

static const char *number(char text[NUMBER_BYTES], uint64_t value) {
        (void) snprintf(text, NUMBER_BYTES, "%" PRIu64, value);
        return text;
}

/* What all lines about a failure have. */
struct report {
        struct hr_log_field fields[HR_LOG_FIELDS_MAX];
        size_t count;
        char numbers[6][NUMBER_BYTES];
        size_t number_count;
};

static void report_text(struct report *report, const char *name, const char *value) {
        HR_ASSERT(report->count < HR_LOG_FIELDS_MAX);
        report->fields[report->count++] = (struct hr_log_field){name, value};
}

static void report_number(struct report *report, const char *name, uint64_t value) {
        HR_ASSERT(report->number_count < HR_ARRAY_LENGTH(report->numbers));
        report_text(report, name, number(report->numbers[report->number_count++], value));
}

static void report_conn(struct report *report, const struct hr_conn *conn) {
        report_number(report, "connection", conn->number);
        report_text(report, "transport", hr_stream_name(&conn->stream));
}

static void report_failure(struct report *report, const struct hr_diag *failure,
                           uint64_t suppressed) {
        report_number(report, "code", hr_status_grpc_code(failure->status));
        report_text(report, "reason", hr_diag_reason(failure));
        report_text(report, "field", failure->field);
        report_text(report, "words", failure->words);
        if (suppressed)
                report_number(report, "suppressed", suppressed);
}

void hr_failure_log_request(const struct hr_request *request, const struct hr_diag *failure) {
        const hr_log_level level = level_of(failure);
        struct hr_server *server = request->server;
        char trace_id[33];
        struct report report = {0};
        uint64_t suppressed;

        if (level > hr_log_get_level() ||
            !hr_failure_allowed(&server->failures, hr_status_grpc_code(failure->status),
                                hr_clock_now_ns(), &suppressed))
                return;
        report_number(&report, "request", request->id);
        report_number(&report, "span", request->tag);
        if (request->conn)
                report_conn(&report, request->conn);
        report_text(&report, "principal",
                    request->session ? request->session->principal->name : NULL);
        if (request->origin.known) {
                (void) snprintf(trace_id, sizeof trace_id, "%016" PRIx64 "%016" PRIx64,
                                request->origin.trace[0], request->origin.trace[1]);
                report_text(&report, "trace_id", trace_id);
        }
        report_failure(&report, failure, suppressed);
        hr_log_fields(level, "request", report.fields, report.count, "%s failed",
                      hr_method_name(request->type));
}

void hr_failure_log_refused(const struct hr_conn *conn, const struct hr_diag *failure) {
        const hr_log_level level = level_of(failure);
        struct report report = {0};
        uint64_t suppressed;

        if (level > hr_log_get_level() ||
            !hr_failure_allowed(&conn->server->failures, hr_status_grpc_code(failure->status),
                                hr_clock_now_ns(), &suppressed))
                return;
        report_number(&report, "request", conn->header.request_id);
        report_conn(&report, conn);
        report_text(&report, "principal", conn->principal ? conn->principal->name : NULL);
        report_failure(&report, failure, suppressed);
        hr_log_fields(level, "request", report.fields, report.count, "%s refused",
                      hr_method_name(conn->header.type));
}

void hr_failure_log_conn(const struct hr_conn *conn, hr_failure_kind kind, const char *words,
                         const struct hr_diag *failure) {
        struct report report = {0};
        uint64_t suppressed;

        if (HR_LOG_NOTICE > hr_log_get_level() ||
            !hr_failure_allowed(&conn->server->failures, kind, hr_clock_now_ns(), &suppressed))
                return;
        report_conn(&report, conn);
        report_text(&report, "principal", conn->principal ? conn->principal->name : "");
        report_failure(&report, failure, suppressed);
        hr_log_fields(HR_LOG_NOTICE, "conn", report.fields, report.count, "%s", words);
}

bool hr_failures_flush(struct hr_server *server, uint64_t now_ns, bool all) {
        struct hr_failures *failures = &server->failures;
        bool left = false;

        for (unsigned kind = 0; kind < HR_FAILURE_KINDS; kind++) {
                struct hr_failure_limit *limit = &failures->kinds[kind];
                struct report report = {0};

                if (limit->suppressed == 0)
                        continue;
                if (!all && limit->full_ns > now_ns) {
                        left = true;
                        continue;
                }
                if (kind < HR_FAILURE_CUT)
                        report_number(&report, "code", kind);
                report_number(&report, "suppressed", limit->suppressed);
                limit->suppressed = 0;
                hr_log_fields(HR_LOG_NOTICE, kind < HR_FAILURE_CUT ? "request" : "conn",
                              report.fields, report.count, "%s",
                              kind == HR_FAILURE_CUT       ? "more connections were cut"
                              : kind == HR_FAILURE_REFUSED ? "more hellos were refused"
                                                           : "more requests failed");
        }
        return left;
}
