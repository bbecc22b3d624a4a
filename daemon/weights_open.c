/*
 * Opening model files away from the engine's thread: a disk that does not answer delays those who
 * load from it, and no planning.
 *
 * An opening is a worker's until it is in the store's queue `opened`, then the engine's. Cancelling
 * leaves it to end by itself; what it has opened is closed then.
 */
#include "daemon/weights_priv.h"

#include <stdlib.h>
#include <string.h>

struct hr_weights_opening {
        struct hr_task task;
        struct hr_mpsc_link link;
        struct hr_weights_store *store;
        struct hr_weights_file_config config;
        char *path;
        struct hr_weights_file *file;
        hr_status status;
        struct hr_diag diag;
        hr_weights_opened_fn done; /* the engine's; NULL = cancelled */
        void *arg;
};

static void opening_free(struct hr_weights_opening *opening) {
        opening->file = hr_weights_file_free(opening->file);
        free(opening->path);
        free(opening);
}

/* Thread: a worker's. */
static void opening_run(struct hr_task *task) {
        struct hr_weights_opening *opening = HR_CONTAINER_OF(task, struct hr_weights_opening, task);
        struct hr_weights_store *store = opening->store;

        opening->status = hr_weights_file_open(&opening->config, opening->path, &opening->diag,
                                               &opening->file);
        hr_mpsc_push(&store->opened, &opening->link);
        store->config.wake(store->config.arg);
}

hr_status hr_weights_open(struct hr_weights_store *store,
                          const struct hr_weights_file_config *config, const char *path,
                          hr_weights_opened_fn done, void *arg, struct hr_diag *diag,
                          struct hr_weights_opening **ret_opening) {
        struct hr_weights_opening *opening = calloc(1, sizeof *opening);

        if (opening)
                opening->path = strdup(path);
        if (!opening || !opening->path) {
                free(opening);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory to open a file");
        }
        opening->task.run = opening_run;
        opening->store = store;
        opening->config = *config;
        opening->done = done;
        opening->arg = arg;
        *ret_opening = opening;
        hr_workers_add(store->openers, &opening->task);
        return HR_OK;
}

void hr_weights_opening_cancel(struct hr_weights_opening *opening) {
        if (opening)
                opening->done = NULL;
}

bool hr_weights_opened_portion(struct hr_weights_store *store) {
        struct hr_mpsc_link *link = hr_mpsc_pop(&store->opened);
        struct hr_weights_opening *opening;

        if (!link)
                return false;
        opening = HR_CONTAINER_OF(link, struct hr_weights_opening, link);
        if (opening->done)
                opening->done(opening->arg, opening->status, &opening->diag,
                              HR_STEAL(opening->file));
        opening_free(opening);
        return true;
}
