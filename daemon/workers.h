/*
 * A few threads that do what may take long and needs no order: hashing, sealing, opening files.
 *
 * Tasks are begun in the order in which they were added. A task is the caller's storage; once its
 * run() has been called nobody here touches it, so run() may give it away.
 */
#pragma once

#include "core/list.h"
#include "core/status.h"

struct hr_workers;

struct hr_task {
        void (*run)(struct hr_task *task); /* thread: a worker's */
        struct hr_list link;               /* private */
};

/* `count` threads of that name (at most 12 characters). HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_workers_new(const char *name, uint32_t count, struct hr_diag *diag,
                                      struct hr_workers **ret_workers);
/* Does what has been added, then ends. NULL is a no-op. Returns NULL. */
struct hr_workers *hr_workers_free(struct hr_workers *workers);
/* Thread: any. */
void hr_workers_add(struct hr_workers *workers, struct hr_task *task);
