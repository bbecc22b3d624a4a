/*
 * A run counts for every device of its plan from its start to its end. A plan over many devices
 * needs as many runs at once to keep all of them busy, and may have one more. Further runs are
 * handed to a device only while what it has is short: they hide the way from one run to the next.
 * Behind a long one there is time for that until it is about to end. Then one more goes, if it
 * needs no other device, and no third before the first has ended, however wrong the estimate is;
 * of a run of which nothing is known the end is waited for.
 *
 * What a run costs. The time from its start, or from the end of the one before it on its devices if
 * that is later, to its end; the same for each of its devices. So a stage of a pipeline counts as
 * long as it holds up the others.
 */
#include "daemon/admission.h"

#include <stdlib.h>

#include "core/clock.h"

/* Taken for a run of which nothing is known. */
#define COST_UNKNOWN_NS (UINT64_C(1) * HR_NS_PER_MS)

hr_status hr_admission_init(struct hr_admission *admission, uint32_t device_count,
                            uint32_t device_runs, uint64_t device_ahead_ns, struct hr_diag *diag) {
        *admission = (struct hr_admission){
                .device_runs = device_runs,
                .device_ahead_ns = device_ahead_ns,
                .lead_ns = device_runs > 1 ? HR_MIN(HR_LEAD_NS, device_ahead_ns) : 0,
                .device_count = device_count};
        hr_list_init(&admission->waiting);
        HR_TRY(hr_share_init(&admission->top, NULL, HR_SHARE_WEIGHT, device_count, diag));
        admission->devices = calloc(device_count, sizeof *admission->devices);
        if (!admission->devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a count of runs");
        return HR_OK;
}

void hr_admission_deinit(struct hr_admission *admission) {
        free(admission->devices);
        admission->devices = NULL;
        hr_share_deinit(&admission->top);
}

/* When the one run that the device has is about to end; UINT64_MAX: it has another number of runs,
 * or that is not known. */
static uint64_t about_to_end_ns(const struct hr_admission *admission,
                                const struct hr_admission_device *device) {
        uint64_t end_ns, lead_ns;

        if (admission->lead_ns == 0 || device->in_flight != 1 || device->guesses > 0 ||
            !hr_add_u64(device->since_ns, device->ahead_ns, &end_ns))
                return UINT64_MAX;
        lead_ns = HR_MIN(admission->lead_ns + 2 * device->spread_ns, admission->device_ahead_ns);
        return end_ns - HR_MIN(end_ns, lead_ns);
}

static bool fits(const struct hr_admission *admission, const struct hr_pipeline *pipeline,
                 uint64_t now_ns) {
        uint32_t used = 0, most = 0, pipelined, allowed;
        uint64_t ahead_ns = 0;
        bool about_to_end = false;

        for (uint32_t d = 0; d < admission->device_count; d++) {
                const struct hr_admission_device *device = &admission->devices[d];

                if (!hr_pipeline_uses(pipeline, d))
                        continue;
                used++;
                most = HR_MAX(most, device->in_flight);
                ahead_ns = HR_MAX(ahead_ns, device->ahead_ns);
                about_to_end = now_ns >= about_to_end_ns(admission, device);
        }
        if (used == 1 && about_to_end)
                return true;
        pipelined = used > 1 ? used + 1 : 1;
        allowed = ahead_ns < admission->device_ahead_ns ? HR_MAX(admission->device_runs, pipelined)
                                                        : pipelined;
        return most < allowed;
}

static bool share_devices(const struct hr_admission *admission, const struct hr_ticket *a,
                          const struct hr_ticket *b) {
        for (uint32_t d = 0; d < admission->device_count; d++)
                if (hr_pipeline_uses(a->pipeline, d) && hr_pipeline_uses(b->pipeline, d))
                        return true;
        return false;
}

/* Where its principal and its session stand on the device that is furthest behind. */
static void lags_find(const struct hr_admission *admission, struct hr_ticket *ticket) {
        ticket->share_lag = ticket->session_lag = 0;
        if (!ticket->share)
                return;
        for (uint32_t d = 0; d < admission->device_count; d++) {
                if (!hr_pipeline_uses(ticket->pipeline, d))
                        continue;
                ticket->share_lag =
                        HR_MAX(ticket->share_lag, hr_share_lag(ticket->share->above, d));
                ticket->session_lag = HR_MAX(ticket->session_lag, hr_share_lag(ticket->share, d));
        }
}

static const struct hr_share *principal_of(const struct hr_ticket *ticket) {
        return ticket->share ? ticket->share->above : NULL;
}

/* Of two that stand equal, who has had nothing for longer. */
static bool principal_before(const struct hr_share *a, const struct hr_share *b) {
        if (!a || !b || a->used == b->used)
                return (uintptr_t) a < (uintptr_t) b;
        return a->used < b->used;
}

/* Does `a` go before `b`? A strict order: first by lags, which are numbers of each ticket alone;
 * principals with the same one stay together. */
static bool before(const struct hr_ticket *a, const struct hr_ticket *b) {
        bool a_starves = a->passed >= HR_PASSES_MAX, b_starves = b->passed >= HR_PASSES_MAX;

        if (a->share_lag != b->share_lag)
                return a->share_lag < b->share_lag;
        if (principal_of(a) != principal_of(b))
                return principal_before(principal_of(a), principal_of(b));
        if (a_starves != b_starves)
                return a_starves;
        if (!a_starves && a->priority != b->priority)
                return a->priority > b->priority;
        if (!a_starves && a->session_lag != b->session_lag)
                return a->session_lag < b->session_lag;
        return a->number < b->number;
}

static void admit(struct hr_admission *admission, struct hr_ticket *ticket, uint64_t now_ns) {
        hr_list_remove(&ticket->link);
        HR_LIST_FOR_EACH(link, &admission->waiting) {
                struct hr_ticket *other = HR_CONTAINER_OF(link, struct hr_ticket, link);

                if (other->number < ticket->number && principal_of(other) == principal_of(ticket) &&
                    share_devices(admission, other, ticket))
                        other->passed++;
        }
        if (ticket->share)
                ticket->share->above->used = ++admission->admitted;
        ticket->taken_ns = ticket->cost_ns ? ticket->cost_ns : COST_UNKNOWN_NS;
        for (uint32_t d = 0; d < admission->device_count; d++) {
                struct hr_admission_device *device = &admission->devices[d];

                if (!hr_pipeline_uses(ticket->pipeline, d))
                        continue;
                if (ticket->share)
                        hr_share_use(ticket->share, d, ticket->taken_ns);
                if (ticket->waits_for_somebody)
                        continue;
                if (device->in_flight++ == 0)
                        device->since_ns = now_ns;
                device->guesses += ticket->cost_ns == 0;
                device->ahead_ns += ticket->taken_ns;
                device->spread_ns += ticket->spread_ns;
        }
        ticket->admitted = true;
}

bool hr_admission_ask(struct hr_admission *admission, struct hr_ticket *ticket,
                      const struct hr_pipeline *pipeline, uint64_t now_ns) {
        HR_ASSERT(!ticket->admitted);
        ticket->pipeline = pipeline;
        if (ticket->number == 0)
                ticket->number = ++admission->arrivals;
        if (hr_list_is_empty(&admission->waiting) && fits(admission, pipeline, now_ns)) {
                admit(admission, ticket, now_ns); /* nobody to be compared with */
                return true;
        }
        if (!hr_list_is_linked(&ticket->link))
                hr_list_append(&admission->waiting, &ticket->link);
        if (hr_admission_next(admission, now_ns) != ticket)
                return false;
        admit(admission, ticket, now_ns);
        return true;
}

/* How long its devices were the run's alone. */
static uint64_t cost_of(const struct hr_admission *admission, const struct hr_ticket *ticket,
                        uint64_t started_ns, uint64_t ended_ns) {
        for (uint32_t d = 0; d < admission->device_count; d++)
                if (hr_pipeline_uses(ticket->pipeline, d))
                        started_ns = HR_MAX(started_ns, admission->devices[d].ended_ns);
        return ended_ns > started_ns ? ended_ns - started_ns : 0;
}

static bool somebody_waits_for(const struct hr_admission *admission, uint32_t device) {
        HR_LIST_FOR_EACH(link, &admission->waiting)
                if (hr_pipeline_uses(HR_CONTAINER_OF(link, struct hr_ticket, link)->pipeline,
                                     device))
                        return true;
        return false;
}

bool hr_admission_leave(struct hr_admission *admission, struct hr_ticket *ticket,
                        uint64_t started_ns, uint64_t ended_ns, uint64_t *ret_cost_ns) {
        uint64_t cost_ns;

        hr_list_remove(&ticket->link);
        if (!ticket->admitted)
                return false;
        cost_ns = cost_of(admission, ticket, started_ns, ended_ns);
        for (uint32_t d = 0; d < admission->device_count; d++) {
                struct hr_admission_device *device = &admission->devices[d];

                if (!hr_pipeline_uses(ticket->pipeline, d))
                        continue;
                if (ticket->share)
                        hr_share_correct(ticket->share, d, ticket->taken_ns, cost_ns);
                if (ticket->waits_for_somebody)
                        continue;
                HR_ASSERT(device->in_flight > 0 && device->ahead_ns >= ticket->taken_ns);
                device->in_flight--;
                device->guesses -= ticket->cost_ns == 0;
                device->ahead_ns -= ticket->taken_ns;
                device->spread_ns -= ticket->spread_ns;
                device->ended_ns = HR_MAX(device->ended_ns, ended_ns);
                device->since_ns = HR_MAX(device->since_ns, ended_ns);
                if (device->in_flight == 0 && !somebody_waits_for(admission, d))
                        hr_share_idle(&admission->top, d);
        }
        ticket->admitted = false;
        if (ret_cost_ns)
                *ret_cost_ns = cost_ns;
        return true;
}

void hr_admission_forget(struct hr_ticket *ticket) {
        hr_list_remove(&ticket->link);
}

static bool is_blocked(const struct hr_admission *admission, const struct hr_pipeline *pipeline) {
        for (uint32_t d = 0; d < admission->device_count; d++)
                if (admission->devices[d].blocked && hr_pipeline_uses(pipeline, d))
                        return true;
        return false;
}

/* The first of those that wait for none of the blocked devices. */
static struct hr_ticket *first_of(const struct hr_admission *admission) {
        struct hr_ticket *first = NULL;

        HR_LIST_FOR_EACH(link, &admission->waiting) {
                struct hr_ticket *ticket = HR_CONTAINER_OF(link, struct hr_ticket, link);

                if (!is_blocked(admission, ticket->pipeline) && (!first || before(ticket, first)))
                        first = ticket;
        }
        return first;
}

/* Who comes first and has no room keeps its devices from the others. At most one round per device,
 * and one more. */
struct hr_ticket *hr_admission_next(struct hr_admission *admission, uint64_t now_ns) {
        struct hr_ticket *first;

        if (hr_list_is_empty(&admission->waiting))
                return NULL;
        for (uint32_t d = 0; d < admission->device_count; d++)
                admission->devices[d].blocked = false;
        HR_LIST_FOR_EACH(link, &admission->waiting)
                lags_find(admission, HR_CONTAINER_OF(link, struct hr_ticket, link));
        while ((first = first_of(admission)) && !fits(admission, first->pipeline, now_ns))
                for (uint32_t d = 0; d < admission->device_count; d++)
                        admission->devices[d].blocked = admission->devices[d].blocked ||
                                                        hr_pipeline_uses(first->pipeline, d);
        return first;
}

uint64_t hr_admission_due_ns(const struct hr_admission *admission, uint64_t now_ns) {
        uint64_t due_ns = UINT64_MAX;

        HR_LIST_FOR_EACH(link, &admission->waiting) {
                const struct hr_ticket *ticket = HR_CONTAINER_OF(link, struct hr_ticket, link);

                for (uint32_t d = 0; d < admission->device_count; d++) {
                        uint64_t at_ns = about_to_end_ns(admission, &admission->devices[d]);

                        if (at_ns > now_ns && hr_pipeline_uses(ticket->pipeline, d))
                                due_ns = HR_MIN(due_ns, at_ns);
                }
        }
        return due_ns;
}
