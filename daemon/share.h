/*
 * Fair shares of devices, between principals and, inside one, between its sessions.
 *
 * Start-time fair queueing (P. Goyal, H. M. Vin, H. Cheng: "Start-time Fair Queuing: A Scheduling
 * Algorithm for Integrated Services Packet Switching Networks", SIGCOMM 1996, equations 4 and 5)
 * with several in service at once (W. Jin, J. S. Chase, J. Kaur: "Interposed Proportional Sharing
 * for a Storage Service Utility", SIGMETRICS 2004: SFQ(D)):
 *
 *   start  = max(now, finish of the one before)        the least start goes first
 *   finish = start + cost / weight
 *   now    = the start of what was handed out last
 *
 * Each device has a time of its own, and each share one for those below it. Cost is time on the
 * device: an estimate when a run starts, put right when it has ended. What somebody does not use is
 * not saved up: who has been idle begins at now. So a share that asks for less than it is due waits
 * for what is on the devices, and for nobody's queue.
 *
 * Times are nanoseconds of a share of weight HR_SHARE_WEIGHT; differences of them are compared, so
 * they may wrap. Under the engine's turn, but for init, deinit and the weight.
 */
#pragma once

#include <stdatomic.h>

#include "core/status.h"

/* The weight of who has no other. */
#define HR_SHARE_WEIGHT UINT64_C(100)
#define HR_SHARE_WEIGHT_MAX UINT64_C(10000)

struct hr_share_tag {
        uint64_t finish; /* where the next one starts, in the time of the share above */
        uint64_t now;    /* the time of those below */
};

/* Zeroed is valid: no device. Its place in memory stays. */
struct hr_share {
        struct hr_share *above; /* NULL = the top */
        _Atomic uint64_t weight;
        uint64_t used; /* number of the latest run handed out; 0 = none. The admission's */
        uint32_t device_count;
        struct hr_share_tag *tags; /* per device */
};

/* above must live as long. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_share_init(struct hr_share *share, struct hr_share *above,
                                     uint64_t weight, uint32_t device_count, struct hr_diag *diag);
void hr_share_deinit(struct hr_share *share);
/* From now on. Thread: any. */
void hr_share_set_weight(struct hr_share *share, uint64_t weight);

/* How far its next run would start behind the time of that device, 0 = at once. */
uint64_t hr_share_lag(const struct hr_share *share, uint32_t device);
/* It is handed `cost_ns` of the device, as are those above. */
void hr_share_use(struct hr_share *share, uint32_t device, uint64_t cost_ns);
/* What was handed out as `cost_ns` took `actual_ns`. */
void hr_share_correct(struct hr_share *share, uint32_t device, uint64_t cost_ns,
                      uint64_t actual_ns);
/* Nothing is on the device or waits for it: the next ones begin anew. `top`: without one above. */
void hr_share_idle(struct hr_share *top, uint32_t device);
