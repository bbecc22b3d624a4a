/*
 * Which run starts next, where runs of several sessions want the same devices.
 *
 * A device's queue is first come, first served; so that there is something left to choose, only so
 * much is handed to a device at a time, enough to keep it and any pipeline busy. The others wait
 * here, until shortly before the end of the one that is on the device. First comes the principal
 * that has had least of its share of the devices (share.h); among its runs that of higher priority,
 * then that of the session that has had least, then the first to come. A run that has been
 * overtaken by HR_PASSES_MAX runs of its principal which came after it goes before all others of
 * the principal, so none waits for ever.
 *
 * One ticket per session waits at most, since the runs of a session keep their order. Under the
 * engine's turn.
 */
#pragma once

#include "core/list.h"
#include "daemon/share.h"
#include "scheduler/scheduler.h"

#define HR_PASSES_MAX 16U
/* So long before the expected end of a long run, and twice what it is as a rule away from the
 * expected, the next one goes to its device, which then does not stand still while the next is
 * being found and started: waking and starting take some tens of microseconds. Who comes after that
 * waits for so much more than the run in front of it; at most device_ahead. */
#define HR_LEAD_NS (UINT64_C(100) * 1000)

/* Zeroed is valid: priority 0, waiting nowhere. */
struct hr_ticket {
        /* Set by the caller. */
        int32_t priority;
        struct hr_share *share;  /* the session's; its `above` is the principal's, and that one's
                                  * the admission's */
        uint64_t cost_ns;        /* estimated time on each of its devices; 0 = not known */
        uint64_t spread_ns;      /* by how much that is wrong as a rule */
        bool waits_for_somebody; /* once admitted it takes up no room */
        /* Private. */
        struct hr_list link; /* among the waiting */
        const struct hr_pipeline *pipeline;
        uint64_t number; /* of arrival; 0 = has not arrived */
        uint32_t passed; /* runs that came later and started before it */
        bool admitted;
        uint64_t taken_ns;               /* that it counts for while it is admitted */
        uint64_t share_lag, session_lag; /* of the principal, of the session; when last looked at */
};

struct hr_admission {
        struct hr_list waiting;      /* in order of arrival */
        uint64_t arrivals, admitted; /* numbers given so far */
        uint32_t device_runs;        /* runs of a device at once */
        uint64_t device_ahead_ns;    /* ... as long as less than this is on it */
        uint64_t lead_ns;            /* before the end of a long one; 0 = at it */
        uint32_t device_count;
        struct hr_admission_device *devices;
        struct hr_share top;
};

struct hr_admission_device {
        uint32_t in_flight, guesses; /* those of which nothing is known */
        uint64_t ahead_ns;           /* estimated for those in flight */
        uint64_t spread_ns;          /* ... by how much that is wrong, at most */
        uint64_t since_ns;           /* when the first of them had the device for itself */
        uint64_t ended_ns;           /* when one has ended last */
        bool blocked;                /* while looking: somebody waits for it that comes first */
};

HR_NODISCARD hr_status hr_admission_init(struct hr_admission *admission, uint32_t device_count,
                                         uint32_t device_runs, uint64_t device_ahead_ns,
                                         struct hr_diag *diag);
void hr_admission_deinit(struct hr_admission *admission);
/* True: the run may start, and counts from now on. False: it waits. */
bool hr_admission_ask(struct hr_admission *admission, struct hr_ticket *ticket,
                      const struct hr_pipeline *pipeline, uint64_t now_ns);
/* The run has ended, or was not started after all: both times are 0. True when it was admitted.
 * Returns in ret_cost_ns, unless that is NULL, how long the devices were its own. */
bool hr_admission_leave(struct hr_admission *admission, struct hr_ticket *ticket,
                        uint64_t started_ns, uint64_t ended_ns, uint64_t *ret_cost_ns);
/* It waits for something else, or not any more. */
void hr_admission_forget(struct hr_ticket *ticket);
/* The waiting ticket that would be admitted now, or NULL. */
struct hr_ticket *hr_admission_next(struct hr_admission *admission, uint64_t now_ns);
/* When it is worth asking again though no run has ended, later than now; UINT64_MAX = never. */
uint64_t hr_admission_due_ns(const struct hr_admission *admission, uint64_t now_ns);
