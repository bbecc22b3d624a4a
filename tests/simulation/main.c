/*
 * Histories, seed by seed. Some are played twice: the second time must be the first.
 *
 *     simulation [--seeds COUNT] [--first SEED]     so many histories; with HEADRACE_FULL set, 2000
 *     simulation --seed SEED [--verbose]            one, with all that happens
 *     simulation --plant FAULT [...]                with a fault in it, which has to be found
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "daemon/conn.h"
#include "daemon/digest.h"
#include "tests/simulation/secure.h"

#define SEEDS 48U
#define SEEDS_FULL 2000U
#define TWICE_EVERY 8U
#define START_NS (1000 * HR_NS_PER_S)

struct hr_step;
void __real_fake_compute(const struct hr_step *step, struct hr_outcome *outcome);
void __wrap_fake_compute(const struct hr_step *step, struct hr_outcome *outcome);
void __real_hr_account_discharge(struct hr_account *session, struct hr_account *principal,
                                 hr_charge_kind kind, uint64_t amount);
void __wrap_hr_account_discharge(struct hr_account *session, struct hr_account *principal,
                                 hr_charge_kind kind, uint64_t amount);
void __real_hr_conn_send(struct hr_conn *conn, const struct hr_send *send);
void __wrap_hr_conn_send(struct hr_conn *conn, const struct hr_send *send);

static const char *const plants[SIM_PLANTS] = {"none", "wake", "quota", "twice", "result"};

/* ---- planted faults -------------------------------------------------------------------------- */

void __wrap_fake_compute(const struct hr_step *step, struct hr_outcome *outcome) {
        __real_fake_compute(step, outcome);
        if (sim.plant == SIM_PLANT_RESULT && sim_chance(5))
                *(float *) step->result.data += 1;
}

void __wrap_hr_account_discharge(struct hr_account *session, struct hr_account *principal,
                                 hr_charge_kind kind, uint64_t amount) {
        if (sim.plant == SIM_PLANT_QUOTA && session && session->held[kind] > 1 && sim_chance(20))
                session = NULL;
        __real_hr_account_discharge(session, principal, kind, amount);
}

void __wrap_hr_conn_send(struct hr_conn *conn, const struct hr_send *send) {
        struct hr_send again = *send;

        if (sim.plant == SIM_PLANT_TWICE && (send->header.flags & HR_FRAME_ERROR) &&
            sim_chance(100)) {
                again.release = NULL;
                __real_hr_conn_send(conn, &again);
        }
        __real_hr_conn_send(conn, send);
}

/* ---- one history ----------------------------------------------------------------------------- */

static void traits_choose(struct sim_traits *traits) {
        static const uint32_t preempt[] = {0, 8, 40, 128};
        static const uint32_t latencies[] = {0, 20000, 500000, 5000000};
        static const uint32_t bodies[] = {4096, 4096, 65536};
        static const uint32_t graces[] = {0, 0, 20, 400};

        *traits = (struct sim_traits){
                .preempt = preempt[sim_random(HR_ARRAY_LENGTH(preempt))],
                .spurious = sim_chance(250),
                .device_errors = sim_chance(250),
                .device_losses = sim_chance(150),
                .accept_errors = sim_chance(200),
                .latency_ns = latencies[sim_random(HR_ARRAY_LENGTH(latencies))],
                .window_bytes = 1U << (9 + sim_random(6)),
                .body_bytes = bodies[sim_random(HR_ARRAY_LENGTH(bodies))],
                .grace_ms = graces[sim_random(HR_ARRAY_LENGTH(graces))],
                .tight = sim_chance(250),
                .secure = sim_chance(400),
                .drains = sim_chance(200),
                .clients = 1 + (uint32_t) sim_random(SIM_CLIENTS_MAX),
                .devices = (uint32_t) sim_random(4),
        };
}

HR_PRINTF(2, 3) static void set(struct hr_config *config, const char *format, ...) {
        char assignment[256];
        struct hr_diag diag = {0};
        va_list arguments;

        va_start(arguments, format);
        (void) vsnprintf(assignment, sizeof assignment, format, arguments);
        va_end(arguments);
        if (hr_config_set(config, assignment, &diag) != HR_OK)
                sim_fail("%s: %s", assignment, diag.words);
}

static void limits_tighten(struct hr_config *config) {
        set(config, "limits.session_graphs=2");
        set(config, "limits.session_runs=3");
        set(config, "limits.session_states=2");
        set(config, "limits.principal_sessions=2");
        set(config, "limits.principal_runs=4");
        set(config, "limits.principal_states=3");
        set(config, "limits.principal_uploads=1");
        set(config, "limits.connection_requests=6");
        set(config, "limits.connections=4");
        set(config, "limits.greetings=2");
        set(config, "limits.output_queue_bytes=64K");
        set(config, "limits.principal_output_bytes=64K");
}

/* What a client of that user shows where its socket does not say who it is. */
static void token_set(struct hr_config *config, uint32_t principal) {
        const uint32_t uid = SIM_FIRST_UID + principal;
        uint8_t digest[HR_DIGEST_BYTES];
        char hex[HR_DIGEST_HEX_BYTES];

        if (hr_sha256(&uid, sizeof uid, NULL, digest) != HR_OK)
                sim_fail("no digest");
        hr_digest_hex(digest, hex);
        set(config, "principal.p%u.token_sha256=%s", principal, hex);
}

static void config_make(struct hr_config *config) {
        const struct sim_traits *traits = &sim.traits;
        struct hr_diag diag = {0};

        if (hr_config_init(config, &diag) != HR_OK)
                sim_fail("%s", diag.words);
        set(config, "listen.unix=%s/socket", sim_folder());
        if (traits->secure) {
                set(config, "listen.tls=127.0.0.1:0");
                set(config, "tls.certificate=%s/certificate", sim_folder());
                set(config, "tls.key=%s/key", sim_folder());
        }
        set(config, "daemon.memory_pressure=off");
        set(config, "daemon.spin=%s", sim_chance(500) ? "0us" : "5us");
        set(config, "daemon.session_grace=%ums", traits->grace_ms);
        set(config, "daemon.drain_timeout=%ums", 1 + (uint32_t) sim_random(500));
        set(config, "limits.tap_timeout=%ums", 20 + (uint32_t) sim_random(500));
        set(config, "daemon.heartbeat=%ums", 50 + (uint32_t) sim_random(5000));
        set(config, "limits.body_bytes=%u", traits->body_bytes);
        set(config, "limits.upload_window_bytes=%u",
            traits->body_bytes * (1 + (uint32_t) sim_random(3)));
        set(config, "limits.device_runs=%u", 1 + (uint32_t) sim_random(8));
        if (traits->tight)
                limits_tighten(config);
        for (uint32_t i = 0; i < traits->devices; i++)
                set(config, "device.fake%u.backend=fake", i);
        set(config, "device.host.backend=cpu");
        for (uint32_t i = 0; i < SIM_PRINCIPALS; i++) {
                set(config, "principal.p%u.uid=%u", i, SIM_FIRST_UID + i);
                token_set(config, i);
                set(config, "principal.p%u.permissions=run, load, admin", i);
                set(config, "principal.p%u.weight=%u", i, 1 + (uint32_t) sim_random(300));
        }
        if (hr_config_finish(config, &diag) != HR_OK)
                sim_fail("%s", diag.words);
}

/* The hash of the history of that seed; counts the requests that were answered. */
static uint64_t history(uint64_t seed, uint64_t *requests) {
        const sim_plant plant = sim.plant;
        const bool verbose = sim.verbose;
        struct hr_config config;
        struct hr_diag diag = {0};

        sim = (struct sim){.seed = seed,
                           .number = seed * UINT64_C(0xD1342543DE82EF95) + 1,
                           .now_ns = START_NS,
                           .hash = UINT64_C(0xCBF29CE484222325),
                           .plant = plant,
                           .verbose = verbose};
        traits_choose(&sim.traits);
        config_make(&config);
        sim_threads_begin();
        sim_devices_begin();
        sim.running = true;
        sim_clients_begin();
        if (hr_server_run(&config, NULL, NULL, &diag) != HR_OK)
                sim_fail("the daemon ends: %s", diag.words);
        sim.server = NULL;
        *requests += sim_clients_end();
        sim.running = false;
        sim_devices_end();
        sim_links_free();
        sim_threads_end();
        hr_config_deinit(&config);
        sim_note_number(sim.now_ns);
        return sim.hash;
}

/* ---- many ------------------------------------------------------------------------------------ */

static void on_abort(int number) {
        (void) number;
        sim_fail("the daemon aborts");
}

static uint64_t number_of(const char *text) {
        char *end = NULL;
        uint64_t number = text ? strtoull(text, &end, 10) : 0;

        if (!end || *end != '\0' || end == text) {
                (void) fprintf(stderr, "a number is missing\n");
                exit(2);
        }
        return number;
}

static sim_plant plant_of(const char *text) {
        for (int i = 0; text && i < SIM_PLANTS; i++)
                if (strcmp(text, plants[i]) == 0)
                        return (sim_plant) i;
        (void) fprintf(stderr, "faults: none wake quota twice result\n");
        exit(2);
}

int main(int argc, char **argv) {
        uint64_t first = 1, count = getenv("HEADRACE_FULL") ? SEEDS_FULL : SEEDS;
        uint64_t requests = 0, steps = 0, all = 0;

        for (int i = 1; i < argc; i++) {
                const char *next = i + 1 < argc ? argv[i + 1] : NULL;

                if (strcmp(argv[i], "--verbose") == 0) {
                        sim.verbose = true;
                        continue;
                }
                if (strcmp(argv[i], "--seeds") == 0)
                        count = number_of(next);
                else if (strcmp(argv[i], "--first") == 0)
                        first = number_of(next);
                else if (strcmp(argv[i], "--seed") == 0)
                        first = number_of(next), count = 1;
                else if (strcmp(argv[i], "--plant") == 0)
                        sim.plant = plant_of(next);
                else
                        return 2;
                i++;
        }
        sim_folder_make();
        sim_secure_begin();
        (void) signal(SIGABRT, on_abort);
        hr_log_set_sink(sim_log);
        hr_log_set_level(HR_LOG_DEBUG); /* always: what is logged takes time */
        for (uint64_t seed = first; seed < first + count; seed++) {
                const uint64_t hash = history(seed, &requests);

                steps += sim.steps;
                all = all * UINT64_C(0x9E3779B97F4A7C15) + hash;
                if ((seed - first) % TWICE_EVERY == 0 && history(seed, &requests) != hash)
                        sim_fail("the second time it is another history");
        }
        sim_secure_end();
        sim_folder_remove();
        (void) printf("%llu histories, %llu requests answered, the baton went on %llu times, in "
                      "all %016llx\n",
                      (unsigned long long) count, (unsigned long long) requests,
                      (unsigned long long) steps, (unsigned long long) all);
        return 0;
}
