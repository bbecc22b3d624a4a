/*
 * The table of statuses and the recording of a first failure.
 *
 * gRPC's numbers are those of its status codes; several of ours share one. The reasons that a
 * failure can carry are listed in proto/README.md.
 */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
        const char *name;
        hr_scope scope;
        uint32_t grpc_code;
} statuses[HR_STATUS_COUNT] = {
        [HR_OK] = { "OK", HR_SCOPE_NONE, 0 },
        [HR_E_CANCELLED] = { "CANCELLED", HR_SCOPE_REQUEST, 1 },
        [HR_E_INVALID] = { "INVALID", HR_SCOPE_REQUEST, 3 },
        [HR_E_DEADLINE] = { "DEADLINE", HR_SCOPE_REQUEST, 4 },
        [HR_E_NOT_FOUND] = { "NOT_FOUND", HR_SCOPE_REQUEST, 5 },
        [HR_E_EXISTS] = { "EXISTS", HR_SCOPE_REQUEST, 6 },
        [HR_E_PERMISSION] = { "PERMISSION", HR_SCOPE_REQUEST, 7 },
        [HR_E_EXHAUSTED] = { "EXHAUSTED", HR_SCOPE_REQUEST, 8 },
        [HR_E_PRECONDITION] = { "PRECONDITION", HR_SCOPE_REQUEST, 9 },
        [HR_E_RANGE] = { "RANGE", HR_SCOPE_REQUEST, 11 },
        [HR_E_UNSUPPORTED] = { "UNSUPPORTED", HR_SCOPE_REQUEST, 12 },
        [HR_E_INTERNAL] = { "INTERNAL", HR_SCOPE_REQUEST, 13 },
        [HR_E_UNAVAILABLE] = { "UNAVAILABLE", HR_SCOPE_REQUEST, 14 },
        [HR_E_DATA_LOSS] = { "DATA_LOSS", HR_SCOPE_REQUEST, 15 },
        [HR_E_UNAUTHENTICATED] = { "UNAUTHENTICATED", HR_SCOPE_PEER, 16 },
        [HR_E_PROTOCOL] = { "PROTOCOL", HR_SCOPE_PEER, 3 },
        [HR_E_EOF] = { "EOF", HR_SCOPE_PEER, 14 },
        [HR_E_DEVICE_LOST] = { "DEVICE_LOST", HR_SCOPE_DEVICE, 14 },
        [HR_E_FATAL] = { "FATAL", HR_SCOPE_DAEMON, 13 },
};

const char *hr_status_name(hr_status status) {
        HR_ASSERT(status < HR_STATUS_COUNT);
        return statuses[status].name;
}

hr_scope hr_status_scope(hr_status status) {
        HR_ASSERT(status < HR_STATUS_COUNT);
        return statuses[status].scope;
}

uint32_t hr_status_grpc_code(hr_status status) {
        HR_ASSERT(status < HR_STATUS_COUNT);
        return statuses[status].grpc_code;
}

HR_PRINTF(4, 0)
static hr_status diag_record(struct hr_diag *diag, hr_status status, const char *reason,
                             const char *format, va_list args) {
        HR_ASSERT(status != HR_OK);
        if (!diag || diag->status != HR_OK)
                return status;
        diag->status = status;
        diag->reason = reason;
        (void) vsnprintf(diag->words, sizeof diag->words, format, args);
        return status;
}

hr_status hr_fail(struct hr_diag *diag, hr_status status, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void) diag_record(diag, status, NULL, format, args);
        va_end(args);
        return status;
}

hr_status hr_fail_reason(struct hr_diag *diag, hr_status status, const char *reason,
                         const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void) diag_record(diag, status, reason, format, args);
        va_end(args);
        return status;
}

const char *hr_diag_reason(const struct hr_diag *diag) {
        return diag->reason ? diag->reason : hr_status_name(diag->status);
}
