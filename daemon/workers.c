/* One queue, one lock, and threads that sleep while the queue is empty. */
#include "daemon/workers.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/thread.h"

#define WORKERS_MAX 16U

struct hr_workers {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        struct hr_list tasks;
        bool stopping;
        uint32_t count;
        struct hr_thread threads[WORKERS_MAX];
};

static void worker_main(void *arg) {
        struct hr_workers *workers = arg;

        (void) pthread_mutex_lock(&workers->lock);
        for (;;) {
                struct hr_list *link = hr_list_pop(&workers->tasks);
                struct hr_task *task;

                if (!link && workers->stopping)
                        break;
                if (!link) {
                        (void) pthread_cond_wait(&workers->changed, &workers->lock);
                        continue;
                }
                (void) pthread_mutex_unlock(&workers->lock);
                task = HR_CONTAINER_OF(link, struct hr_task, link);
                task->run(task);
                (void) pthread_mutex_lock(&workers->lock);
        }
        (void) pthread_mutex_unlock(&workers->lock);
}

hr_status hr_workers_new(const char *name, uint32_t count, struct hr_diag *diag,
                         struct hr_workers **ret_workers) {
        struct hr_workers *workers = calloc(1, sizeof *workers);
        char full[16];

        if (!workers)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for threads");
        (void) pthread_mutex_init(&workers->lock, NULL);
        (void) pthread_cond_init(&workers->changed, NULL);
        hr_list_init(&workers->tasks);
        count = HR_MIN(HR_MAX(count, 1U), WORKERS_MAX);
        while (workers->count < count) {
                hr_status status;

                (void) snprintf(full, sizeof full, "%.12s-%u", name, workers->count % 100);
                status = hr_thread_start(&workers->threads[workers->count], full, worker_main,
                                         workers, diag);
                if (status != HR_OK) {
                        (void) hr_workers_free(workers);
                        return status;
                }
                workers->count++;
        }
        *ret_workers = workers;
        return HR_OK;
}

struct hr_workers *hr_workers_free(struct hr_workers *workers) {
        if (!workers)
                return NULL;
        (void) pthread_mutex_lock(&workers->lock);
        workers->stopping = true;
        (void) pthread_cond_broadcast(&workers->changed);
        (void) pthread_mutex_unlock(&workers->lock);
        for (uint32_t i = 0; i < workers->count; i++)
                hr_thread_join(&workers->threads[i]);
        HR_ASSERT(hr_list_is_empty(&workers->tasks));
        (void) pthread_cond_destroy(&workers->changed);
        (void) pthread_mutex_destroy(&workers->lock);
        free(workers);
        return NULL;
}

void hr_workers_add(struct hr_workers *workers, struct hr_task *task) {
        (void) pthread_mutex_lock(&workers->lock);
        hr_list_append(&workers->tasks, &task->link);
        (void) pthread_cond_signal(&workers->changed);
        (void) pthread_mutex_unlock(&workers->lock);
}
