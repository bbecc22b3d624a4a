/* Failures in the words of the public header: from the wire, from the codec, from here. */
#include "client/c/client_priv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
        enum headrace_status status;
        const char *name;
} names[] = {
        {HEADRACE_OK, "OK"},
        {HEADRACE_CANCELLED, "CANCELLED"},
        {HEADRACE_INVALID, "INVALID"},
        {HEADRACE_DEADLINE, "DEADLINE"},
        {HEADRACE_NOT_FOUND, "NOT_FOUND"},
        {HEADRACE_EXISTS, "EXISTS"},
        {HEADRACE_PERMISSION, "PERMISSION"},
        {HEADRACE_EXHAUSTED, "EXHAUSTED"},
        {HEADRACE_PRECONDITION, "PRECONDITION"},
        {HEADRACE_RANGE, "RANGE"},
        {HEADRACE_UNSUPPORTED, "UNSUPPORTED"},
        {HEADRACE_INTERNAL, "INTERNAL"},
        {HEADRACE_UNAVAILABLE, "UNAVAILABLE"},
        {HEADRACE_DATA_LOSS, "DATA_LOSS"},
        {HEADRACE_UNAUTHENTICATED, "UNAUTHENTICATED"},
};

const char *headrace_status_name(int status) {
        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++)
                if ((int) names[i].status == status)
                        return names[i].name;
        return "?";
}

const char *headrace_version(void) {
        return HR_VERSION;
}

HR_PRINTF(4, 0)
static enum headrace_status fail_list(struct headrace_error *error, enum headrace_status status,
                                      const char *reason, const char *format, va_list args) {
        if (!error)
                return status;
        *error = (struct headrace_error){.status = status};
        (void) snprintf(error->reason, sizeof error->reason, "%s", reason);
        (void) vsnprintf(error->words, sizeof error->words, format, args);
        return status;
}

enum headrace_status hr_client_fail(struct headrace_error *error, enum headrace_status status,
                                    const char *reason, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void) fail_list(error, status, reason, format, args);
        va_end(args);
        return status;
}

enum headrace_status hr_client_fail_size(struct headrace_error *error, const char *reason,
                                         uint64_t limit, uint64_t actual, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void) fail_list(error, HEADRACE_INVALID, reason, format, args);
        va_end(args);
        if (!error)
                return HEADRACE_INVALID;
        error->limit = limit;
        error->actual = actual;
        return HEADRACE_INVALID;
}

enum headrace_status hr_client_fail_diag(struct headrace_error *error, const struct hr_diag *diag) {
        enum headrace_status status =
                (enum headrace_status) hr_status_grpc_code(diag->status);

        (void) hr_client_fail(error, status, hr_diag_reason(diag), "%s", diag->words);
        if (!error)
                return status;
        error->has_node = diag->has_node;
        error->node = diag->node;
        error->has_tensor = diag->has_tensor;
        error->tensor = diag->tensor;
        if (diag->field)
                (void) snprintf(error->field, sizeof error->field, "%s", diag->field);
        error->limit = diag->limit;
        error->actual = diag->actual;
        return status;
}

enum headrace_status hr_client_fail_wire(struct headrace_error *error,
                                         const struct hr_wire_error *wire) {
        enum headrace_status status = (enum headrace_status) wire->code;

        if (status == HEADRACE_OK || strcmp(headrace_status_name((int) status), "?") == 0)
                status = HEADRACE_INTERNAL;
        (void) hr_client_fail(error, status, wire->reason, "%s", wire->words);
        if (!error)
                return status;
        error->has_node = wire->has_node;
        error->node = wire->node;
        error->has_tensor = wire->has_tensor;
        error->tensor = wire->tensor;
        (void) snprintf(error->field, sizeof error->field, "%s", wire->field);
        error->limit = wire->limit;
        error->actual = wire->actual;
        error->retry_after_ms = wire->retry_after_ms;
        error->has_step = wire->has_step;
        error->step = wire->step;
        _Static_assert(sizeof error->written == sizeof wire->written, "one cap");
        error->written_count = wire->written_count;
        error->written_left_out = wire->written_left_out;
        memcpy(error->written, wire->written, sizeof error->written);
        return status;
}

enum headrace_status hr_client_fail_memory(struct headrace_error *error) {
        return hr_client_fail(error, HEADRACE_EXHAUSTED, "HOST_MEMORY", "the client has no memory");
}

enum headrace_status hr_client_fail_answer(struct headrace_error *error,
                                           const struct hr_diag *diag) {
        return hr_client_fail(error, HEADRACE_INTERNAL, "PROTOCOL",
                              "the daemon's answer cannot be read: %s", diag->words);
}
