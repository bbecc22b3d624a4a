/*
 * What clients do, and when. A life is a connection: hello, requests in any order and number, and
 * an end, most of which are no good ones.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "tests/simulation/client.h"

#define TALKS_MAX 40U
#define OPEN_MAX 12U
#define DROP_BYTES 6000U
#define SILENCE_NS (30 * HR_NS_PER_S) /* longer than the daemon waits for a hello */
#define END_NS (300 * HR_NS_PER_S) /* nobody waits that long for the daemon */

static struct client *clients;
static pthread_t thread;
static uint64_t waits_since_ns, drain_ns;
static bool is_told;

static void again(struct client *client, uint64_t within_ns) {
        client->next_ns = sim.now_ns + sim_random(within_ns + 1);
}

/* ---- lives ----------------------------------------------------------------------------------- */

/* The daemon has been told to end: who comes now comes too late. */
static bool is_draining(void) {
        return sim.traits.drains && sim.now_ns >= drain_ns;
}

bool client_is_refusable(const struct client *client) {
        return client->phase == PHASE_GREETING && (sim.traits.tight || sim.traits.accept_errors);
}

void client_lost(struct client *client) {
        const bool ours = client->phase == PHASE_HALF || client->mute ||
                          client->ending == END_DEAF || client->stranger ||
                          client->torn || client->out_sent == client->drop_at ||
                          client->phase == PHASE_OVER;
        const bool whole = (client->phase == PHASE_HALF || client->mute) && !client->torn;

        if (!ours && !client_is_refusable(client) && !is_draining())
                sim_fail("client %u: the daemon hangs up", client->number);
        for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
                struct request *request = &client->requests[i];

                if (request->id == 0)
                        continue;
                if (whole && request->sent_end <= client->out_sent && !is_draining())
                        sim_fail("client %u: %s %llu never gets its reply", client->number,
                                 kind_name(request->kind), (unsigned long long) request->id);
                judge_lost(client, request);
                client_request_free(client, request);
        }
        if (client->mute && !client->torn && client->ending == END_GARBAGE &&
            !client->told_goaway && !is_draining())
                sim_fail("client %u: it is not told what was wrong", client->number);
        client->link = NULL;
        client->phase = client->lives > 0 ? PHASE_AWAY : PHASE_OVER;
        client->left_ns = sim.now_ns;
        if (!client->has_session || sim.traits.grace_ms == 0 || sim_chance(400))
                session_forget(client);
        again(client, (sim.traits.grace_ms + 5) * HR_NS_PER_MS);
}

/* Some join the session of another one, which may end meanwhile. */
static void session_borrow(struct client *client) {
        const struct client *other = &clients[sim_random(sim.traits.clients)];

        if (client->has_session || client->stranger || !other->has_session ||
            other->uid != client->uid || sim_chance(600))
                return;
        client->token_bytes = other->token_bytes;
        memcpy(client->token, other->token, other->token_bytes);
        client->has_session = true;
}

static void client_connect(struct client *client) {
        client->lives--;
        client->talks = 1 + (uint32_t) sim_random(TALKS_MAX);
        client->ending = (ending) sim_random(ENDINGS);
        client->out_bytes = client->in_bytes = 0;
        client->out_sent = client->out_made = 0;
        client->told_goaway = client->mute = false;
        client->drop_at = client->ending == END_DROP || client->ending == END_CUT
                                  ? 1 + sim_random(DROP_BYTES << sim_random(4))
                                  : SIM_NEVER;
        session_borrow(client);
        client->torn = false;
        client->secure = sim_secure_free(client->secure);
        if (sim.traits.secure && sim_chance(500))
                client->secure = sim_secure_new();
        client->link = sim_link_open(client->uid, client->secure != NULL);
        sim_tell("client %u: connects%s", client->number, client->has_session ? " again" : "");
        say_hello(client);
        client->read_ns = sim.now_ns;
}

static void garbage_say(struct client *client) {
        uint8_t bytes[HR_FRAME_HEADER_BYTES];

        for (size_t i = 0; i < sizeof bytes; i++)
                bytes[i] = (uint8_t) sim_random(256);
        bytes[0] = 'X';
        client_bytes(client, bytes, sizeof bytes);
        client->mute = true;
}

/* It has said what it had to say. */
static void client_end(struct client *client) {
        if (client->phase == PHASE_TALKING) {
                client->phase = PHASE_ENDING;
                if (client->ending == END_HALF && sim_chance(500) && client->out_bytes > 0) {
                        client->mute = true;
                        client->out_bytes -= sim_random(client->out_bytes);
                }
                if (client->ending == END_GARBAGE)
                        garbage_say(client);
        }
        if (client->ending == END_POLITE || client->ending == END_DROP ||
            client->ending == END_CUT) {
                if (client->open > 0)
                        return;
                if (client->secure && sim_chance(700) &&
                    !sim_secure_end_stream(client->secure, client->link))
                        return;
                client->phase = PHASE_OVER;
                sim_link_close(client->link, false);
                client_lost(client);
        } else if (client->ending == END_DEAF) {
                if (sim_chance(900)) {
                        again(client, 20 * HR_NS_PER_MS);
                        return;
                }
                sim_link_close(client->link, sim_chance(500));
                client_lost(client);
        } else if (client->out_bytes == 0 && client->phase != PHASE_HALF) {
                if (client->secure && client->ending == END_HALF &&
                    !sim_secure_end_stream(client->secure, client->link))
                        return;
                client->phase = PHASE_HALF;
                if (client->ending == END_HALF)
                        sim_link_end(client->link);
        }
}

static void client_say(struct client *client) {
        switch (client->phase) {
        case PHASE_AWAY:
                if (is_draining()) {
                        client->phase = PHASE_OVER;
                        break;
                }
                client_connect(client);
                again(client, 2 * HR_NS_PER_MS);
                break;
        case PHASE_GREETING:
                if (client->open == 0)
                        say_hello(client);
                again(client, HR_NS_PER_MS);
                break;
        case PHASE_TALKING:
                if (client->talks == 0) {
                        client_end(client);
                        again(client, HR_NS_PER_MS);
                        break;
                }
                if (client->open < OPEN_MAX)
                        say_something(client);
                again(client, sim_chance(600) ? 0 : sim_random(2 * HR_NS_PER_MS));
                break;
        case PHASE_ENDING:
                again(client, HR_NS_PER_MS);
                client_end(client);
                break;
        case PHASE_HALF:
                again(client, HR_NS_PER_S);
                break;
        case PHASE_OVER:
                client->next_ns = SIM_NEVER;
                break;
        }
}

static bool is_deaf(const struct client *client) {
        return client->ending == END_DEAF && client->phase == PHASE_ENDING;
}

static void client_give_up(struct client *client) {
        sim_link_close(client->link, sim_chance(500));
        client_lost(client);
}

/* Within a record, or within the handshake, it says nothing more, or is gone. */
static void client_tear(struct client *client) {
        bool cuts = false;

        if (!client->link || !client->secure || client->torn ||
            !sim_secure_is_stalled(client->secure, &cuts))
                return;
        sim_tell("client %u: %s within a record", client->number, cuts ? "gone" : "silent");
        client->torn = true;
        if (cuts)
                client_give_up(client);
        else
                again(client, SILENCE_NS);
}

static bool can_write(const struct client *client) {
        const bool has_bytes = client->out_bytes > 0;

        return (client->secure ? sim_secure_can_write(client->secure, has_bytes) : has_bytes) &&
               sim_link_has_room(client->link);
}

static void client_step(struct client *client) {
        if (client->next_ns <= sim.now_ns && client->torn && client->link)
                client_give_up(client);
        else if (client->next_ns <= sim.now_ns)
                client_say(client);
        if (client->link && client->out_bytes > 0)
                client_send(client);
        if (client->link && client->secure)
                sim_secure_flush(client->secure, client->link);
        client_tear(client);
        if (client->link && client->read_ns <= sim.now_ns && !is_deaf(client)) {
                client_read(client);
                if (sim_chance(50)) /* slow for a while */
                        client->read_ns = sim.now_ns + sim_random(5 * HR_NS_PER_MS);
        }
        sim_note_number(client->out_sent);
}

/* When it can go on: a time, now, or SIM_NEVER. */
static uint64_t client_due_ns(struct client *client) {
        uint64_t due_ns = client->next_ns;

        if (!client->link)
                return due_ns;
        if (can_write(client))
                return sim.now_ns;
        if (!is_deaf(client)) {
                uint64_t next_ns = sim_link_next_ns(client->link);

                if (sim_link_is_over(client->link) ||
                    (client->secure && sim_secure_has_more(client->secure)))
                        next_ns = sim.now_ns;
                if (next_ns != SIM_NEVER)
                        due_ns = HR_MIN(due_ns, HR_MAX(next_ns, client->read_ns));
        }
        return due_ns;
}

static void drain_look(void) {
        if (!is_draining() || is_told)
                return;
        sim_tell("the daemon is told to end");
        is_told = true;
        sim_loop_signal(SIGTERM);
}

static void clients_main(void) {
        for (;;) {
                struct client *due[SIM_CLIENTS_MAX];
                uint64_t next_ns = SIM_NEVER;
                uint32_t count = 0, over = 0;

                for (uint32_t i = 0; i < sim.traits.clients; i++) {
                        const uint64_t due_ns = client_due_ns(&clients[i]);

                        over += clients[i].phase == PHASE_OVER;
                        next_ns = HR_MIN(next_ns, due_ns);
                        if (due_ns <= sim.now_ns)
                                due[count++] = &clients[i];
                }
                if (over == sim.traits.clients)
                        break;
                if (count > 0) {
                        client_step(due[sim_random(count)]);
                        sim_yield();
                } else {
                        sim_block(&clients, is_draining() ? next_ns : HR_MIN(next_ns, drain_ns));
                }
                if (sim.now_ns - waits_since_ns > END_NS) {
                        sim_daemon_print();
                        sim_fail("clients wait for the daemon");
                }
                drain_look();
        }
        if (!sim.traits.drains)
                sim_daemon_rest();
        else if (!is_told)
                sim_loop_signal(SIGTERM);
}

void sim_clients_nudge(void) {
        sim_wake(&clients);
}

void sim_clients_begin(void) {
        clients = calloc(sim.traits.clients, sizeof *clients);
        HR_ASSERT(clients);
        waits_since_ns = sim.now_ns;
        is_told = false;
        drain_ns = sim.traits.drains ? sim.now_ns + sim_random(400 * HR_NS_PER_MS) : SIM_NEVER;
        for (uint32_t i = 0; i < sim.traits.clients; i++) {
                struct client *client = &clients[i];

                client->number = i;
                client->stranger = sim_chance(50);
                client->uid =
                        SIM_FIRST_UID +
                        (client->stranger ? SIM_PRINCIPALS : (uint32_t) sim_random(SIM_PRINCIPALS));
                client->width = 2 + (uint32_t) sim_random(1U << (3 + sim_random(9)));
                client->lives = 1 + (uint32_t) sim_random(4);
                session_forget(client);
                again(client, 5 * HR_NS_PER_MS);
        }
        thread = sim_thread_start(clients_main);
}

uint64_t sim_clients_end(void) {
        uint64_t done = 0;

        (void) pthread_join(thread, NULL);
        for (uint32_t i = 0; i < sim.traits.clients; i++) {
                for (int k = 0; k < KINDS; k++)
                        done += clients[i].done[k];
                region_forget(&clients[i]);
                (void) sim_secure_free(clients[i].secure);
                free(clients[i].saved.bytes);
                free(clients[i].out);
                free(clients[i].in);
        }
        free(clients);
        clients = NULL;
        return done;
}
