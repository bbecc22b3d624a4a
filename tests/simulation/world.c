/* Time, chance, and what is remembered of a history. */
#include "tests/simulation/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/host.h"
#include "daemon/random.h"

#define LOOK_NS 200 /* that a look at the clock takes, at most */
#define PROCESSORS 3

struct sim sim;

/* ---- the daemon's folder --------------------------------------------------------------------- */

static char folder[] = "/tmp/headrace-simulation-XXXXXX";

void sim_folder_make(void) {
        HR_ASSERT(mkdtemp(folder));
}

const char *sim_folder(void) {
        return folder;
}

void sim_folder_remove(void) {
        static const char *const names[] = {"socket", "socket.lock", "certificate", "key"};
        char path[sizeof folder + 16];

        for (size_t i = 0; i < HR_ARRAY_LENGTH(names); i++) {
                (void) snprintf(path, sizeof path, "%s/%s", folder, names[i]);
                (void) unlink(path);
        }
        (void) rmdir(folder);
}

/* ---- chance ---------------------------------------------------------------------------------- */

static uint64_t number_next(void) {
        uint64_t z = sim.number += UINT64_C(0x9E3779B97F4A7C15);

        z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
        z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
        return z ^ z >> 31;
}

uint64_t sim_random(uint64_t below) {
        return below > 1 ? number_next() % below : 0;
}

bool sim_chance(uint32_t of_1000) {
        return sim_random(1000) < of_1000;
}

hr_status hr_random(void *bytes, size_t size, struct hr_diag *diag) {
        (void) diag;
        for (size_t i = 0; i < size; i++)
                ((uint8_t *) bytes)[i] = (uint8_t) number_next();
        return HR_OK;
}

/* ---- time ------------------------------------------------------------------------------------ */

uint64_t hr_clock_now_ns(void) {
        if (sim.running) {
                sim_yield();
                sim.now_ns += sim_random(LOOK_NS);
        }
        return sim.now_ns;
}

/* Histories are the same on any machine. */
uint32_t hr_host_processors(void) {
        return PROCESSORS;
}

/* ---- what happened --------------------------------------------------------------------------- */

void sim_note(const void *bytes, size_t size) {
        const uint8_t *at = bytes;

        for (size_t i = 0; i < size; i++)
                sim.hash = (sim.hash ^ at[i]) * UINT64_C(0x100000001B3);
        sim_note_number(size);
}

void sim_note_number(uint64_t number) {
        sim.hash = (sim.hash ^ number) * UINT64_C(0x9E3779B97F4A7C15);
        sim.hash ^= sim.hash >> 29;
}

void sim_tell(const char *format, ...) {
        va_list arguments;

        if (!sim.verbose)
                return;
        (void) fprintf(stderr, "%12.6f ms  ", (double) sim.now_ns / 1e6);
        va_start(arguments, format);
        (void) vfprintf(stderr, format, arguments);
        va_end(arguments);
        (void) fputc('\n', stderr);
}

void sim_log(hr_log_level level, const char *topic, const char *words,
             const struct hr_log_field *fields, size_t count) {
        char line[2048];
        size_t bytes;

        if (!sim.verbose)
                return;
        bytes = hr_log_line(level, topic, words, fields, count, line, sizeof line);

        sim_tell("%.*s", bytes > 0 ? (int) bytes - 1 : 0, line);
}

void sim_fail(const char *format, ...) {
        va_list arguments;

        (void) fprintf(stderr, "seed %llu, after %.3f ms: ", (unsigned long long) sim.seed,
                       (double) sim.now_ns / 1e6);
        va_start(arguments, format);
        (void) vfprintf(stderr, format, arguments);
        va_end(arguments);
        (void) fprintf(stderr, "\nagain, with all that happens: simulation --seed %llu --verbose\n",
                       (unsigned long long) sim.seed);
        sim_threads_print();
        (void) fflush(stderr);
        sim_folder_remove();
        _Exit(1);
}
