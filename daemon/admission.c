/*
 * A run counts for every device of its plan from its start to its end. A plan over many devices
 * needs as many runs at once to keep all of them busy, and may have one more.
 */
#include "daemon/admission.h"

#include <stdlib.h>

hr_status hr_admission_init(struct hr_admission *admission, uint32_t device_count,
                            uint32_t device_runs, struct hr_diag *diag) {
        *admission =
                (struct hr_admission){.device_runs = device_runs, .device_count = device_count};
        hr_list_init(&admission->waiting);
        admission->in_flight = calloc(device_count, sizeof *admission->in_flight);
        if (!admission->in_flight)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a count of runs");
        return HR_OK;
}

void hr_admission_deinit(struct hr_admission *admission) {
        free(admission->in_flight);
        admission->in_flight = NULL;
}

static bool fits(const struct hr_admission *admission, const struct hr_pipeline *pipeline) {
        uint32_t used = 0, most = 0;

        for (uint32_t d = 0; d < admission->device_count; d++) {
                if (!hr_pipeline_uses(pipeline, d))
                        continue;
                used++;
                most = HR_MAX(most, admission->in_flight[d]);
        }
        return most < HR_MAX(admission->device_runs, used > 1 ? used + 1 : 1);
}

static bool share(const struct hr_admission *admission, const struct hr_ticket *a,
                  const struct hr_ticket *b) {
        for (uint32_t d = 0; d < admission->device_count; d++)
                if (hr_pipeline_uses(a->pipeline, d) && hr_pipeline_uses(b->pipeline, d))
                        return true;
        return false;
}

/* Does `a` go before `b`? */
static bool before(const struct hr_ticket *a, const struct hr_ticket *b) {
        bool a_starves = a->passed >= HR_PASSES_MAX, b_starves = b->passed >= HR_PASSES_MAX;

        if (a_starves != b_starves)
                return a_starves;
        if (!a_starves && a->priority != b->priority)
                return a->priority > b->priority;
        return a->number < b->number;
}

static bool may_start(const struct hr_admission *admission, const struct hr_ticket *ticket) {
        if (!fits(admission, ticket->pipeline))
                return false;
        HR_LIST_FOR_EACH(link, &admission->waiting) {
                const struct hr_ticket *other = HR_CONTAINER_OF(link, struct hr_ticket, link);

                if (other != ticket && before(other, ticket) && share(admission, other, ticket))
                        return false;
        }
        return true;
}

static void admit(struct hr_admission *admission, struct hr_ticket *ticket) {
        hr_list_remove(&ticket->link);
        HR_LIST_FOR_EACH(link, &admission->waiting) {
                struct hr_ticket *other = HR_CONTAINER_OF(link, struct hr_ticket, link);

                if (other->number < ticket->number && share(admission, other, ticket))
                        other->passed++;
        }
        for (uint32_t d = 0; d < admission->device_count; d++)
                if (hr_pipeline_uses(ticket->pipeline, d))
                        admission->in_flight[d]++;
        ticket->admitted = true;
}

bool hr_admission_ask(struct hr_admission *admission, struct hr_ticket *ticket,
                      const struct hr_pipeline *pipeline) {
        HR_ASSERT(!ticket->admitted);
        ticket->pipeline = pipeline;
        if (ticket->number == 0)
                ticket->number = ++admission->arrivals;
        if (may_start(admission, ticket)) {
                admit(admission, ticket);
                return true;
        }
        if (!hr_list_is_linked(&ticket->link))
                hr_list_append(&admission->waiting, &ticket->link);
        return false;
}

bool hr_admission_leave(struct hr_admission *admission, struct hr_ticket *ticket) {
        hr_list_remove(&ticket->link);
        if (!ticket->admitted)
                return false;
        for (uint32_t d = 0; d < admission->device_count; d++) {
                if (!hr_pipeline_uses(ticket->pipeline, d))
                        continue;
                HR_ASSERT(admission->in_flight[d] > 0);
                admission->in_flight[d]--;
        }
        ticket->admitted = false;
        return true;
}

void hr_admission_forget(struct hr_ticket *ticket) {
        hr_list_remove(&ticket->link);
}

struct hr_ticket *hr_admission_next(const struct hr_admission *admission) {
        struct hr_ticket *best = NULL;

        HR_LIST_FOR_EACH(link, &admission->waiting) {
                struct hr_ticket *ticket = HR_CONTAINER_OF(link, struct hr_ticket, link);

                if ((!best || before(ticket, best)) && may_start(admission, ticket))
                        best = ticket;
        }
        return best;
}
