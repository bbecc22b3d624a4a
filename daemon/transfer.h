/*
 * One copy between host memory and a device's memory, or inside the latter, with exactly one
 * notification behind it.
 */
#pragma once

#include "core/device.h"

/* Queues the copy, then the notification. After HR_OK fn(arg) is called exactly once, on any
 * thread, when both memories are free again; whether the copy was made stands in `outcome`. After a
 * failure nothing is queued and fn is not called. Thread: engine. */
HR_NODISCARD hr_status hr_transfer_write(struct hr_queue *queue, void *destination,
                                         const void *host, uint64_t bytes,
                                         struct hr_outcome *outcome, hr_notify_fn fn, void *arg,
                                         struct hr_diag *diag);
HR_NODISCARD hr_status hr_transfer_copy(struct hr_queue *queue, const void *source,
                                        void *destination, const struct hr_buffer_kind *to,
                                        uint64_t bytes, struct hr_outcome *outcome,
                                        hr_notify_fn fn, void *arg, struct hr_diag *diag);
HR_NODISCARD hr_status hr_transfer_read(struct hr_queue *queue, const void *source, void *host,
                                        uint64_t bytes, struct hr_outcome *outcome,
                                        hr_notify_fn fn, void *arg, struct hr_diag *diag);
