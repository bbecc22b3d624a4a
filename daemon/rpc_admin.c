/* STATS and METRICS: the daemon's figures, as a list and as text. QUOTA: what the asking client
 * holds. */
#include <stdlib.h>

#include "daemon/metrics.h"
#include "daemon/rpc.h"

/* Replies the list; its storage is the request's. */
static hr_status list_reply(struct hr_request *request, const struct hr_metrics *list,
                            struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        if (list->full)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        HR_TRY(hr_wire_stats_encode(list->stats, list->count, NULL, 0, diag,
                                    &request->reply_bytes));
        request->reply_memory = malloc(request->reply_bytes + 1);
        if (!request->reply_memory)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        HR_TRY(hr_wire_stats_encode(list->stats, list->count, request->reply_memory,
                                    request->reply_bytes, diag, &request->reply_bytes));
        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

/* Thread: engine. */
static void stats_work(struct hr_job *job) {
        struct hr_request *request = job->arg;

        hr_metrics_gather(request->context, request->server);
        hr_engine_job_end(job);
}

static hr_status stats_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_metrics *metrics = request->context;

        hr_metrics_finish(metrics, request->server);
        return list_reply(request, metrics, diag);
}

static void stats_done(struct hr_job *job) {
        hr_request_finish(job, stats_finish);
}

static hr_status metrics_finish(struct hr_request *request, struct hr_diag *diag) {
        struct hr_metrics *metrics = request->context;
        uint8_t message[16];
        size_t bytes = 0;
        char *text = NULL;

        hr_metrics_finish(metrics, request->server);
        HR_TRY(hr_metrics_text(metrics, diag, &text, &request->reply_bytes));
        request->reply_memory = text;
        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, text, request->reply_bytes);
        return HR_OK;
}

static void metrics_done(struct hr_job *job) {
        hr_request_finish(job, metrics_finish);
}

static hr_status gather_start(struct hr_request *request, hr_job_fn done, struct hr_diag *diag) {
        struct hr_metrics *metrics = hr_arena_alloc(&request->arena, sizeof *metrics, 8);

        if (!metrics)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the counters");
        metrics->arena = &request->arena;
        request->context = metrics;
        hr_request_post_work(request, stats_work, done);
        return HR_OK;
}

static hr_status stats_start(struct hr_request *request, struct hr_diag *diag) {
        return gather_start(request, stats_done, diag);
}

static hr_status metrics_start(struct hr_request *request, struct hr_diag *diag) {
        return gather_start(request, metrics_done, diag);
}

static hr_status quota_start(struct hr_request *request, struct hr_diag *diag) {
        const struct hr_session *session = request->session;
        const struct hr_limits *limits = &request->server->config->limits;
        struct hr_metrics list = {.arena = &request->arena};

        for (int i = 0; i < HR_CHARGE_KINDS; i++) {
                hr_charge_kind kind = (hr_charge_kind) i;
                const char *name = hr_charge_name(kind);

                if (kind < HR_CHARGE_SESSIONS)
                        hr_metrics_put_with(&list, "session_held",
                                            hr_account_held(&session->account, kind),
                                            "what=\"%s\"", name);
                hr_metrics_put_with(&list, "principal_held",
                                    hr_account_held(&session->principal->account, kind),
                                    "what=\"%s\"", name);
                hr_metrics_put_with(&list, "principal_limit", hr_charge_limit(limits, kind),
                                    "what=\"%s\"", name);
        }
        return list_reply(request, &list, diag);
}

const struct hr_method hr_admin_methods[] = {
        {.type = HR_FRAME_QUOTA,
         .name = "QUOTA",
         .needs_session = true,
         .in_drain = true,
         .begin = hr_method_begin_empty,
         .start = quota_start},
        {.type = HR_FRAME_STATS,
         .name = "STATS",
         .needs_session = true,
         .in_drain = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = hr_method_begin_empty,
         .start = stats_start},
        {.type = HR_FRAME_METRICS,
         .name = "METRICS",
         .needs_session = true,
         .in_drain = true,
         .permissions = HR_PERMIT_ADMIN,
         .begin = hr_method_begin_empty,
         .start = metrics_start},
        {0},
};
