/*
 * Which run starts next, where runs of several sessions want the same devices.
 *
 * A device's queue is first come, first served; so that there is something left to choose, only so
 * many runs are handed to a device at a time, enough to keep it and any pipeline busy. The others
 * wait here: higher priority first, then in order of arrival. A run that has been overtaken by
 * HR_PASSES_MAX runs which came after it goes before all others, so none waits for ever.
 *
 * One ticket per session waits at most, since the runs of a session keep their order. Under the
 * engine's turn.
 */
#pragma once

#include "core/list.h"
#include "scheduler/scheduler.h"

#define HR_PASSES_MAX 16U

/* Zeroed is valid: priority 0, waiting nowhere. */
struct hr_ticket {
        int32_t priority; /* set by the caller */
        /* Private. */
        struct hr_list link; /* among the waiting */
        const struct hr_pipeline *pipeline;
        uint64_t number; /* of arrival; 0 = has not arrived */
        uint32_t passed; /* runs that came later and started before it */
        bool admitted;
};

struct hr_admission {
        struct hr_list waiting; /* in order of arrival */
        uint64_t arrivals;
        uint32_t device_runs; /* runs of a device at once */
        uint32_t device_count;
        uint32_t *in_flight; /* per device */
};

HR_NODISCARD hr_status hr_admission_init(struct hr_admission *admission, uint32_t device_count,
                                         uint32_t device_runs, struct hr_diag *diag);
void hr_admission_deinit(struct hr_admission *admission);
/* True: the run may start, and counts from now on. False: it waits. */
bool hr_admission_ask(struct hr_admission *admission, struct hr_ticket *ticket,
                      const struct hr_pipeline *pipeline);
/* The run has ended, or was not started after all. True when it made room. */
bool hr_admission_leave(struct hr_admission *admission, struct hr_ticket *ticket);
/* It waits for something else, or not any more. */
void hr_admission_forget(struct hr_ticket *ticket);
/* The waiting ticket that would be admitted now, or NULL. */
struct hr_ticket *hr_admission_next(const struct hr_admission *admission);
