/*
 * A copy whose end is always told.
 *
 * Once the copy is queued, memory is in use until the device has passed it, so a notification that
 * cannot be queued (no memory for another command) is tried again while the queue empties. A queue
 * that refuses it for longer has stopped: it executes nothing any more, the outcome says so, and
 * the notification is given here.
 */
#include "daemon/transfer.h"

#include <unistd.h>

#define NOTIFY_TRIES 100
#define NOTIFY_PAUSE_US 500

static void notify_surely(struct hr_queue *queue, struct hr_outcome *outcome, hr_notify_fn fn,
                          void *arg) {
        for (unsigned i = 0; i < NOTIFY_TRIES; i++) {
                if (hr_queue_notify(queue, fn, arg, NULL) == HR_OK)
                        return;
                (void) usleep(NOTIFY_PAUSE_US);
        }
        hr_outcome_fail(outcome, HR_E_DEVICE_LOST, NULL, HR_DIAG_NO_INDEX,
                        "device %s takes no commands", queue->device->props.name);
        fn(arg);
}

hr_status hr_transfer_write(struct hr_queue *queue, void *destination, const void *host,
                            uint64_t bytes, struct hr_outcome *outcome, hr_notify_fn fn, void *arg,
                            struct hr_diag *diag) {
        HR_TRY(hr_queue_write(queue, destination, host, bytes, outcome, diag));
        notify_surely(queue, outcome, fn, arg);
        return HR_OK;
}

hr_status hr_transfer_read(struct hr_queue *queue, const void *source, void *host, uint64_t bytes,
                           struct hr_outcome *outcome, hr_notify_fn fn, void *arg,
                           struct hr_diag *diag) {
        HR_TRY(hr_queue_read(queue, source, host, bytes, outcome, diag));
        notify_surely(queue, outcome, fn, arg);
        return HR_OK;
}

hr_status hr_transfer_copy(struct hr_queue *queue, const void *source, void *destination,
                           const struct hr_buffer_kind *to, uint64_t bytes,
                           struct hr_outcome *outcome, hr_notify_fn fn, void *arg,
                           struct hr_diag *diag) {
        HR_TRY(hr_queue_copy(queue, source, destination, to, bytes, outcome, diag));
        notify_surely(queue, outcome, fn, arg);
        return HR_OK;
}
