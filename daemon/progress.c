/*
 * The timer runs while there is a request to look at. Numbers that have not changed are not sent
 * again; the total is known when the job has one.
 */
#include "daemon/progress.h"

#define PERIOD_MS 50U

static void progress_send(struct hr_progress *progress, uint64_t done, uint64_t total) {
        const struct hr_wire_progress wire = {done, total, progress->phase};
        uint8_t message[HR_WIRE_PROGRESS_BYTES_MAX];
        size_t bytes = 0;

        if (hr_wire_progress_encode(&wire, message, sizeof message, NULL, &bytes) != HR_OK)
                HR_ASSERT(false); /* two numbers and a short word always fit */
        progress->told = true;
        progress->told_bytes = done;
        hr_conn_send(
                progress->request->conn,
                &(struct hr_send){
                        .header = {.type = HR_FRAME_PROGRESS, .request_id = progress->request->id},
                        .message = message,
                        .message_bytes = bytes,
                });
}

static void progress_look(struct hr_progress *progress) {
        const struct hr_conn *conn = progress->request->conn;
        uint64_t done, total;

        hr_weights_job_progress(progress->job, &done, &total);
        if (!conn || conn->over || conn->output_bytes > 0 || total == 0 ||
            progress->request->phase == HR_REQUEST_REPLYING ||
            (progress->told && done == progress->told_bytes))
                return;
        progress_send(progress, done, total);
}

static void timer_cb(void *arg) {
        struct hr_server *server = arg;

        HR_LIST_FOR_EACH(link, &server->progresses)
        progress_look(HR_CONTAINER_OF(link, struct hr_progress, link));
        if (hr_list_is_empty(&server->progresses))
                hr_timer_stop(server->progress_timer);
}

void hr_progress_begin(struct hr_progress *progress, struct hr_request *request,
                       const struct hr_weights_job *job, const char *phase) {
        struct hr_server *server = request->server;

        if (!request->conn || !request->conn->wants_progress)
                return;
        progress->request = request;
        progress->job = job;
        progress->phase = phase;
        hr_list_append(&server->progresses, &progress->link);
        if (!hr_timer_is_running(server->progress_timer))
                hr_timer_start(server->progress_timer, timer_cb, PERIOD_MS, PERIOD_MS);
}

void hr_progress_complete(struct hr_progress *progress) {
        uint64_t done, total;

        if (!hr_list_is_linked(&progress->link))
                return;
        hr_list_remove(&progress->link);
        hr_weights_job_progress(progress->job, &done, &total);
        if (progress->request->conn && !progress->request->conn->over && total > 0 &&
            !(progress->told && progress->told_bytes == total))
                progress_send(progress, total, total);
}

void hr_progress_end(struct hr_progress *progress) {
        hr_list_remove(&progress->link);
}
