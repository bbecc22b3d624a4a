/*
 * One history of the daemon, from one seed.
 *
 * The daemon is the real one: server, listener, connections, frames, requests, sessions, accounts,
 * engine, scheduler, plan cache, uploads. What stands behind its faces to the world is the
 * simulation's:
 *
 *   core/clock.h      virtual time                      world.c
 *   daemon/random.h   numbers from the seed             world.c
 *   daemon/loop.h     watches, timers, signals          loop.c
 *   daemon/stream.h   sockets: bytes that take time     stream.c
 *   recv, send        of records, under the real TLS    stream.c, the clients' side in secure.c
 *   backends/registry.h  simulated devices              devices.c
 *   pthread           one thread at a time, which one   threads.c
 *
 * Threads are real ones, but a baton goes round: who has it runs until it waits, or until the
 * simulation takes the baton away at a lock, a signal or a look at the clock. Time passes when
 * nobody can go on. Everything that is chosen is chosen by numbers from the seed, so a seed has one
 * history; `sim.hash` is over all that peers and daemon said, and when.
 *
 * Thread: whoever has the baton.
 */
#pragma once

#include <pthread.h>

#include "core/graph.h"
#include "core/list.h"
#include "core/log.h"
#include "daemon/server.h"

#define SIM_NEVER UINT64_MAX
#define SIM_PRINCIPALS 3U
#define SIM_CLIENTS_MAX 8U
#define SIM_FIRST_UID 1000U

typedef enum sim_plant {
        SIM_PLANT_NONE,
        SIM_PLANT_WAKE,   /* now and then a wake of the sleeping loop is lost */
        SIM_PLANT_QUOTA,  /* now and then something is not given back to an account */
        SIM_PLANT_TWICE,  /* now and then a reply of an error is sent twice */
        SIM_PLANT_RESULT, /* now and then a device writes a wrong number */
        SIM_PLANTS
} sim_plant;

/* What differs from history to history, beside the numbers. */
struct sim_traits {
        uint32_t preempt;   /* of 256 places where the baton may go on */
        bool spurious;      /* waits may end without a reason */
        bool device_errors; /* commands and calls fail */
        bool device_losses;
        bool accept_errors;
        bool drains;           /* the daemon is told to end while clients are at work */
        uint32_t latency_ns;   /* of the network, at most */
        uint32_t window_bytes; /* that the network holds in each direction, at least */
        uint32_t body_bytes;   /* limits.body_bytes */
        uint32_t grace_ms;     /* sessions outlive their last connection by so much */
        bool tight;            /* limits that clients meet */
        bool secure;           /* some clients come through TLS */
        uint32_t clients, devices;
};

struct sim {
        uint64_t seed, number; /* the state of the random numbers */
        uint64_t now_ns, hash, steps;
        sim_plant plant;
        bool running; /* a history is under way */
        bool verbose;
        struct sim_traits traits;
        struct hr_server *server; /* between start and end */
};
extern struct sim sim;

/* ---- world.c --------------------------------------------------------------------------------- */

/* For its socket and its certificate. */
void sim_folder_make(void);
const char *sim_folder(void);
void sim_folder_remove(void);
/* Below `below`. */
uint64_t sim_random(uint64_t below);
bool sim_chance(uint32_t of_1000);
/* Into the hash of the history. */
void sim_note(const void *bytes, size_t size);
void sim_note_number(uint64_t number);
/* With --verbose: a line with the time; and what the daemon logs. */
HR_PRINTF(1, 2) void sim_tell(const char *format, ...);
void sim_log(hr_log_level level, const char *topic, const char *words,
             const struct hr_log_field *fields, size_t count);
/* The history is wrong: says why and how to see it again, and ends the program. */
HR_NORETURN HR_PRINTF(1, 2) void sim_fail(const char *format, ...);

/* ---- threads.c ------------------------------------------------------------------------------- */

/* The calling thread is the first; sim_threads_end() when all others have ended. */
void sim_threads_begin(void);
void sim_threads_end(void);
/* Another thread may go on here. */
void sim_yield(void);
/* Goes on when sim_wake(what) is called or that time has come. */
void sim_block(const void *what, uint64_t until_ns);
void sim_wake(const void *what);
/* Until sim_hold(false) the baton only goes on when the thread waits. */
void sim_hold(bool hold);
/* To be joined by pthread_join(). */
pthread_t sim_thread_start(void (*fn)(void));
/* Prints who waits for what. */
void sim_threads_print(void);

/* ---- loop.c ---------------------------------------------------------------------------------- */

/* Something has happened that its watches may want to know. */
void sim_loop_nudge(void);
/* As if that signal had come. */
void sim_loop_signal(int number);

/* ---- stream.c -------------------------------------------------------------------------------- */

struct sim_link;

/* A connection to the daemon's socket, by that user; or to the one for TLS. */
struct sim_link *sim_link_open(uint32_t uid, bool is_secure);
/* At the client's side: bytes that went, or came; 0 = none now. */
size_t sim_link_write(struct sim_link *link, const uint8_t *bytes, size_t size);
size_t sim_link_read(struct sim_link *link, uint8_t *bytes, size_t size);
/* A descriptor, which it takes, with the byte at that place of what is written. */
void sim_link_pass(struct sim_link *link, uint64_t at, int fd);
/* Nothing more comes from the daemon, and all has been read. */
bool sim_link_is_over(const struct sim_link *link);
/* Nothing more is sent; replies are still read. */
void sim_link_end(struct sim_link *link);
/* Closed, both ways; cut: what is under way is lost. */
void sim_link_close(struct sim_link *link, bool cut);
/* When there may next be something to read: now or later, or SIM_NEVER. */
uint64_t sim_link_next_ns(struct sim_link *link);
bool sim_link_has_room(const struct sim_link *link);
/* The daemon has gone: who waits to be let in, waits no more. */
void sim_links_refuse(void);
void sim_links_free(void);

/* What the loop asks of a descriptor. */
int sim_stream_events(int fd);
uint64_t sim_stream_next_ns(void);

/* ---- devices.c ------------------------------------------------------------------------------- */

void sim_devices_begin(void);
void sim_devices_end(void);
/* When a device has something to end next. */
uint64_t sim_devices_next_ns(void);
/* The clock of the devices follows. */
void sim_devices_follow(void);

/* ---- clients.c, say.c, talk.c, judge.c
 * ----------------------------------------------------------- */

void sim_clients_begin(void);
/* Something has happened that they may want to know. */
void sim_clients_nudge(void);
/* All have ended. Requests that were answered. */
uint64_t sim_clients_end(void);

/* ---- rest.c ---------------------------------------------------------------------------------- */

/* Looks at the accounts of everybody: sessions sum to their principal, principals to the whole. */
void sim_accounts_check(void);
/* Nobody can go on before time passes: nothing must be left to be done. */
void sim_sleep_check(void);
/* Prints who is connected, and what it waits for. */
void sim_daemon_print(void);
/* Waits until nothing of anybody may be left, looks whether that is so, and ends the daemon. */
void sim_daemon_rest(void);
