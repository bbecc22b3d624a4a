/* What a kernel asks of its team, over the host team of core. */
#include "backends/cpu/team.h"

#include <inttypes.h>

#include "backends/cpu/kernel.h"

void cpu_barrier(const struct cpu_call *call) {
        if (call->threads > 1)
                hr_host_team_barrier(call->team->host, call->threads);
}

uint32_t cpu_next_item(const struct cpu_call *call, uint32_t count) {
        return hr_host_team_next(call->team->host, count);
}

uint32_t cpu_next_own(const struct cpu_call *call, uint32_t thread, uint32_t count) {
        return hr_host_team_next_own(call->team->host, thread, count);
}

void cpu_fail_index(const struct cpu_call *call, const char *what, int64_t value, int64_t limit) {
        (void) hr_outcome_fail(call->outcome, HR_E_RANGE, "INDEX_VALUE", call->step->node,
                               "%s: %s is %" PRId64 ", not in [0, %" PRId64 ")",
                               hr_op_name(call->step->op), what, value, limit);
}
