/* What must hold of the daemon at any time, and what must be left of everybody at the end: nothing.
 */
#include <signal.h>
#include <stdio.h>

#include "core/clock.h"
#include "daemon/conn.h"
#include "daemon/engine_priv.h"
#include "daemon/request.h"
#include "tests/simulation/sim.h"

static bool is_of_sessions(hr_charge_kind kind) {
        return kind <= HR_CHARGE_DEVICE_BYTES;
}

/* Compute memory is taken by the engine, at any time. */
static bool is_of_loop(hr_charge_kind kind) {
        return kind != HR_CHARGE_DEVICE_BYTES;
}

static uint64_t sessions_hold(const struct hr_principal *principal, hr_charge_kind kind,
                              uint64_t *ret_count) {
        uint64_t sum = 0;

        *ret_count = 0;
        HR_LIST_FOR_EACH(link, &sim.server->sessions) {
                const struct hr_session *session = HR_CONTAINER_OF(link, struct hr_session, link);

                if (session->principal != principal)
                        continue;
                sum += hr_account_held(&session->account, kind);
                (*ret_count)++;
        }
        return sum;
}

static void account_check(hr_charge_kind kind) {
        const struct hr_principal *principal = NULL;
        uint64_t total = 0;

        while ((principal = hr_principals_next(sim.server->principals, principal))) {
                uint64_t held = hr_account_held(&principal->account, kind), count;
                uint64_t sum = sessions_hold(principal, kind, &count);

                if (is_of_sessions(kind) && sum != held)
                        sim_fail("%s of %s: %llu, its sessions hold %llu", hr_charge_name(kind),
                                 principal->name, (unsigned long long) held,
                                 (unsigned long long) sum);
                if (kind == HR_CHARGE_SESSIONS && held != count)
                        sim_fail("%s has %llu sessions, and is charged for %llu", principal->name,
                                 (unsigned long long) count, (unsigned long long) held);
                total += held;
        }
        if (total != hr_account_held(hr_principals_account(sim.server->principals), kind))
                sim_fail("%s: the principals hold %llu, the whole is %llu", hr_charge_name(kind),
                         (unsigned long long) total,
                         (unsigned long long) hr_account_held(
                                 hr_principals_account(sim.server->principals), kind));
}

void sim_accounts_check(void) {
        if (!sim.server || !sim.server->principals)
                return;
        for (hr_charge_kind kind = 0; kind < HR_CHARGE_KINDS; kind++)
                if (is_of_loop(kind))
                        account_check(kind);
}

void sim_sleep_check(void) {
        struct hr_engine *engine = sim.server && sim.running ? sim.server->engine : NULL;
        bool has_news;

        if (!engine)
                return;
        sim.running = false; /* this look takes no time */
        has_news = hr_engine_has_news(engine);
        sim.running = true;
        if (has_news)
                sim_fail("the loop sleeps over news of the engine");
        if (!hr_list_is_empty(&engine->work) || !hr_list_is_empty(&engine->settling) ||
            !hr_list_is_empty(&engine->ending) || atomic_load(&engine->store_wanted))
                sim_fail("the engine sleeps over its work");
}

void sim_daemon_print(void) {
        HR_LIST_FOR_EACH(link, &sim.server->conns) {
                const struct hr_conn *conn = HR_CONTAINER_OF(link, struct hr_conn, link);

                (void) fprintf(stderr, "  a connection: stage %d%s%s, %llu bytes to send\n",
                               (int) conn->stage, conn->eof ? ", over" : "",
                               conn->finishing ? ", finishing" : "",
                               (unsigned long long) conn->output_bytes);
                HR_LIST_FOR_EACH(place, &conn->requests) {
                        const struct hr_request *request =
                                HR_CONTAINER_OF(place, struct hr_request, link);

                        (void) fprintf(stderr,
                                       "    request %llu of type %u: phase %d, stopped %d, job %d, "
                                       "%llu of %llu bytes\n",
                                       (unsigned long long) request->id, request->type,
                                       (int) request->phase, (int) request->stopped,
                                       request->active ? (int) request->active->phase : -1,
                                       (unsigned long long) request->body_received,
                                       (unsigned long long) request->body_total);
                }
        }
}

static void nothing(const char *what, uint64_t count) {
        if (count > 0)
                sim_fail("%llu %s are left of nobody", (unsigned long long) count, what);
}

void sim_daemon_rest(void) {
        const struct hr_server *server = sim.server;
        const uint64_t until_ns =
                sim.now_ns + sim.traits.grace_ms * HR_NS_PER_MS + 100 * HR_NS_PER_S;
        int waits;

        while (sim.now_ns < until_ns)
                sim_block(&waits, until_ns);
        for (hr_charge_kind kind = 0; kind < HR_CHARGE_KINDS; kind++) {
                account_check(kind);
                nothing(hr_charge_name(kind),
                        hr_account_held(hr_principals_account(server->principals), kind));
        }
        nothing("connections", server->stats.connections);
        nothing("sessions", server->stats.sessions);
        nothing("objects", server->stats.objects);
        nothing("requests", server->stats.requests_in_flight);
        nothing("runs", server->stats.runs_in_flight);
        nothing("deadlines", !hr_list_is_empty(&server->deadlines));
        nothing("connections without hello", server->greeting_count);
        sim_loop_signal(SIGTERM);
}
