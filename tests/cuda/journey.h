/*
 * One journey through everything a CUDA device does: rows picked on one device and doubled
 * (launched, recorded, replayed), copied to another, read back there and notified. Used with calls
 * that fail and GPUs that are lost.
 */
#pragma once

#include "core/device.h"

struct journey {
        uint32_t gpus[2];      /* of the two devices; may be the same */
        int32_t bad_id;        /* an id to use instead of the last one; 0 = none */
        unsigned linger_us;    /* between the notification and the look at the events */
        struct hr_diag diag;   /* of the call that failed */
        hr_status run_status;  /* of the run; HR_OK if it ended well */
        struct hr_diag run_diag;
        bool was_notified, is_right, was_submitted;
        uint64_t begin_ns; /* set by journey_make */
        uint32_t computes, copies; /* commands that the flight recorders tell of, at the end */
        bool is_lost; /* a device says so, after the run */
};

/* Returns the status of the first call that failed. Fails the test when something accepted does not
 * end. */
hr_status journey_make(struct journey *journey);
