#include "daemon/tap.h"

#include <stdlib.h>

#include "core/clock.h"
#include "daemon/rpc.h"

/* How often runs that wait are looked at; their time is counted in seconds. */
#define PERIOD_MS 50U

static struct hr_graph_run *run_of(const struct hr_request *request) {
        return request->context;
}

hr_status hr_tap_expect(struct hr_graph_object *object, struct hr_graph_run *run,
                        struct hr_diag *diag) {
        struct hr_plan_summary summary = hr_plan_summary(object->plan);
        struct hr_session *session = object->base.session;

        if (summary.tap_count == 0)
                return hr_fail_reason(diag, HR_E_INVALID, "TAP",
                                      "the graph was submitted without taps");
        if (run->tap_data)
                return HR_OK;
        HR_TRY(hr_session_charge_buffer(session, summary.tap_bytes, diag));
        run->tap_data = malloc(summary.tap_bytes);
        if (!run->tap_data) {
                hr_session_discharge(session, HR_CHARGE_BUFFER_BYTES, summary.tap_bytes);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for taps");
        }
        run->tap_bytes = summary.tap_bytes;
        return HR_OK;
}

void hr_tap_begin(struct hr_request *request, struct hr_graph_run *run) {
        run->tap = (struct hr_tap_wait){.request = request};
        run->job.at_tap = hr_tap_push;
        run->job.run.tap_data = run->tap_data;
}

/* ---- going on -------------------------------------------------------------------------------- */

static void go_on(struct hr_request *request) {
        struct hr_graph_run *run = run_of(request);

        hr_list_remove(&run->tap.link);
        run->tap.waits = false;
        run->tap.waited_ns += hr_clock_now_ns() - run->tap.pushed_ns;
        hr_engine_resume(request->server->engine, &run->job.job);
}

static void stop(struct hr_request *request, hr_status status, const char *reason) {
        hr_written_note(request, request->object, &run_of(request)->job.run);
        request->server->stats.taps_stopped++;
        hr_run_cancel(&run_of(request)->job.run, status, reason);
        go_on(request);
}

static void go_on_if_told(struct hr_request *request) {
        struct hr_graph_run *run = run_of(request);

        if (!run->tap.waits || !run->tap.is_answered || run->tap.is_sending)
                return;
        if (run->tap.stop)
                stop(request, HR_E_CANCELLED, "TAP_STOP");
        else
                go_on(request);
}

bool hr_tap_answer(struct hr_request *request, uint32_t tap, bool stop_there) {
        struct hr_graph_run *run = run_of(request);

        if (!run || !run->observed || !run->tap.waits || run->tap.is_answered ||
            run->job.run.tap != tap)
                return false;
        run->tap.is_answered = true;
        run->tap.stop = stop_there;
        go_on_if_told(request);
        return true;
}

/* ---- time ------------------------------------------------------------------------------------ */

static void timer_cb(void *arg) {
        struct hr_server *server = arg;
        uint64_t now_ns = hr_clock_now_ns();

        HR_LIST_FOR_EACH(link, &server->tap_waits) {
                struct hr_tap_wait *wait = HR_CONTAINER_OF(link, struct hr_tap_wait, link);

                if (now_ns - wait->pushed_ns >= server->config->limits.tap_timeout_ns)
                        stop(wait->request, HR_E_DEADLINE, "TAP_TIMEOUT");
        }
        if (hr_list_is_empty(&server->tap_waits))
                hr_timer_stop(server->tap_timer);
}

static void watch(struct hr_server *server, struct hr_tap_wait *wait) {
        hr_list_append(&server->tap_waits, &wait->link);
        if (!hr_timer_is_running(server->tap_timer))
                hr_timer_start(server->tap_timer, timer_cb, PERIOD_MS, PERIOD_MS);
}

/* ---- the push -------------------------------------------------------------------------------- */

/* The socket has taken the push, or never will. */
static void push_sent(void *arg) {
        struct hr_request *request = arg;
        struct hr_graph_run *run = run_of(request);

        run->tap.is_sending = false;
        if (run->tap.end)
                run->tap.end(&run->job.job);
        else
                go_on_if_told(request);
}

void hr_tap_push(struct hr_job *job) {
        struct hr_request *request = job->arg;
        struct hr_graph_run *run = run_of(request);
        const struct hr_graph_object *object = hr_graph_object(request->object);
        uint32_t tensor = hr_plan_tap_tensor(object->plan, run->job.run.tap);
        const struct hr_graph *graph = hr_graph_entry_graph(object->entry);
        const struct hr_wire_tap_push push = {
                .tap = run->job.run.tap,
                .tensor = tensor,
                .bytes = hr_tensor_bytes(&graph->tensors[tensor]),
        };
        uint8_t message[HR_WIRE_TAP_PUSH_BYTES_MAX];
        size_t bytes = 0;

        if (hr_wire_tap_push_encode(&push, message, sizeof message, NULL, &bytes) != HR_OK)
                HR_ASSERT(false); /* three numbers always fit */
        run->tap.waits = run->tap.is_sending = true;
        run->tap.is_answered = false;
        run->tap.pushed_ns = hr_clock_now_ns();
        run->tap.count++;
        request->server->stats.taps++;
        watch(request->server, &run->tap);
        if (!request->conn) { /* has gone: it is being cancelled */
                push_sent(request);
                return;
        }
        hr_conn_send(request->conn, &(struct hr_send){
                                            .header = {.type = HR_FRAME_TAP,
                                                       .flags = HR_FRAME_END,
                                                       .request_id = request->id},
                                            .message = message,
                                            .message_bytes = bytes,
                                            .body = run->tap_data,
                                            .body_bytes = push.bytes,
                                            .release = push_sent,
                                            .arg = request,
                                    });
}

bool hr_tap_defer(struct hr_graph_run *run, void (*end)(struct hr_job *job)) {
        hr_list_remove(&run->tap.link);
        run->tap.waits = false;
        if (!run->tap.is_sending)
                return false;
        run->tap.end = end;
        return true;
}
