/*
 * TRACE: what the daemon remembers of itself. The text is put together on the engine's thread,
 * without its turn: runs go on starting and ending meanwhile.
 */
#include <string.h>

#include "core/clock.h"
#include "daemon/flight.h"
#include "daemon/principal.h"
#include "daemon/rpc.h"

static hr_status trace_begin(struct hr_request *request, struct hr_wire_span message,
                             const struct hr_frame_header *header, struct hr_diag *diag) {
        const uint64_t now_ns = hr_clock_now_ns();
        struct hr_flight *flight = hr_arena_alloc(&request->arena, sizeof *flight, 8);
        struct hr_wire_trace_ask ask;

        (void) header;
        if (!flight)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a request");
        HR_TRY(hr_wire_trace_ask_decode(message, diag, &ask));
        if (!ask.own)
                HR_TRY(hr_principal_check(request->session->principal, HR_PERMIT_ADMIN, diag));
        *flight = (struct hr_flight){
                .recorder = request->server->recorder,
                .fleet = request->server->fleet,
                .principal = ask.own ? request->session->principal->id : HR_FLIGHT_EVERYBODY,
                .spans_max = ask.spans_max && ask.spans_max < HR_TRACE_ANSWER_SPANS
                                     ? ask.spans_max
                                     : HR_TRACE_ANSWER_SPANS,
                .span_seed = request->server->span_seed,
                .type_name = hr_method_name,
        };
        if (ask.latest_ms && ask.latest_ms < now_ns / HR_NS_PER_MS)
                flight->since_ns = now_ns - ask.latest_ms * HR_NS_PER_MS;
        request->context = flight;
        return HR_OK;
}

/* The names, which may change while the engine works, in the request's arena. */
static hr_status names_take(struct hr_request *request, struct hr_flight *flight,
                            struct hr_diag *diag) {
        const struct hr_principals *all = request->server->principals;
        const struct hr_principal *principal = NULL;
        struct hr_flight_name *names;
        uint32_t count = 0;

        while ((principal = hr_principals_next(all, principal)))
                count++;
        names = hr_arena_alloc(&request->arena, (count + 1) * sizeof *names, 8);
        if (!names)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for names");
        count = 0;
        while ((principal = hr_principals_next(all, principal))) {
                size_t bytes = strlen(principal->name) + 1;
                char *name = hr_arena_alloc(&request->arena, bytes, 1);

                if (!name)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for names");
                memcpy(name, principal->name, bytes);
                names[count++] = (struct hr_flight_name){principal->id, name};
        }
        flight->principals = names;
        flight->principal_count = count;
        return HR_OK;
}

/* Requests in flight, this one aside, likewise. */
static hr_status open_take(struct hr_request *request, struct hr_flight *flight,
                           struct hr_diag *diag) {
        struct hr_server *server = request->server;
        const uint64_t now_ns = hr_clock_now_ns();
        uint64_t most = server->stats.requests_in_flight + 1;
        struct hr_span *open = hr_arena_alloc(&request->arena, most * sizeof *open, 8);

        if (!open)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %llu spans",
                               (unsigned long long) most);
        HR_LIST_FOR_EACH(link, &server->conns) {
                struct hr_conn *conn = HR_CONTAINER_OF(link, struct hr_conn, link);

                HR_LIST_FOR_EACH(inner, &conn->requests) {
                        const struct hr_request *one =
                                HR_CONTAINER_OF(inner, struct hr_request, link);

                        if (one == request || one->phase == HR_REQUEST_REPLYING ||
                            flight->open_count == most)
                                continue;
                        open[flight->open_count++] = hr_request_span(one, HR_SPAN_OPEN, now_ns);
                }
        }
        flight->open = open;
        return HR_OK;
}

/* Thread: engine. */
static void trace_work(struct hr_job *job) {
        struct hr_request *request = job->arg;
        char *text = NULL;

        job->status = hr_flight_text(request->context, &job->diag, &text, &request->reply_bytes);
        request->reply_memory = text;
        hr_engine_job_end(job);
}

static hr_status trace_finish(struct hr_request *request, struct hr_diag *diag) {
        uint8_t message[16];
        size_t bytes = 0;

        HR_TRY(hr_session_charge_buffer(request->session, request->reply_bytes, diag));
        request->buffer_charge += request->reply_bytes;
        HR_TRY(hr_wire_varint_encode(request->reply_bytes, message, sizeof message, diag, &bytes));
        hr_request_reply(request, message, bytes, request->reply_memory, request->reply_bytes);
        return HR_OK;
}

static void trace_done(struct hr_job *job) {
        hr_request_finish(job, trace_finish);
}

static hr_status trace_start(struct hr_request *request, struct hr_diag *diag) {
        HR_TRY(names_take(request, request->context, diag));
        HR_TRY(open_take(request, request->context, diag));
        hr_request_post_work(request, trace_work, trace_done);
        return HR_OK;
}

const struct hr_method hr_trace_methods[] = {
        {.type = HR_FRAME_TRACE,
         .name = "TRACE",
         .needs_session = true,
         .in_drain = true,
         .begin = trace_begin,
         .start = trace_start},
        {0},
};
