/* Budgets: counters in a chain, each under its limit, without a lock. */
#include "scheduler/scheduler.h"

static hr_status budget_refuse(const struct hr_budget *budget, uint64_t held, uint64_t bytes,
                               struct hr_diag *diag) {
        bool first = diag && diag->status == HR_OK;

        (void) hr_fail_reason(diag, HR_E_EXHAUSTED, "LIMIT",
                              "%s: %llu held, %llu more, at most %llu", budget->field,
                              (unsigned long long) held, (unsigned long long) bytes,
                              (unsigned long long) budget->limit);
        if (first) {
                diag->field = budget->field;
                diag->limit = budget->limit;
                if (!hr_add_u64(held, bytes, &diag->actual))
                        diag->actual = UINT64_MAX;
        }
        return HR_E_EXHAUSTED;
}

static void give_up_to(struct hr_budget *budget, const struct hr_budget *end, uint64_t bytes) {
        for (; budget != end; budget = budget->above) {
                uint64_t held = atomic_fetch_sub(&budget->held, bytes);

                HR_ASSERT(held >= bytes);
        }
}

hr_status hr_budget_take(struct hr_budget *budget, uint64_t bytes, struct hr_diag *diag) {
        for (struct hr_budget *at = budget; at; at = at->above) {
                uint64_t held = atomic_load(&at->held), sum;

                do {
                        if (hr_add_u64(held, bytes, &sum) && sum <= at->limit)
                                continue;
                        give_up_to(budget, at, bytes);
                        return budget_refuse(at, held, bytes, diag);
                } while (!atomic_compare_exchange_weak(&at->held, &held, sum));
        }
        return HR_OK;
}

void hr_budget_give(struct hr_budget *budget, uint64_t bytes) {
        give_up_to(budget, NULL, bytes);
}
