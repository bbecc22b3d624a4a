/*
 * What clients do, and when. A life is a connection: hello, requests in any order and number, and an
 * end, most of which are no good ones.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "tests/simulation/client.h"

#define TALKS_MAX 40U
#define OPEN_MAX 12U
#define DROP_BYTES 6000U
#define END_NS (60 * HR_NS_PER_S) /* nobody waits that long for the daemon */

static struct client *clients;
static pthread_t thread;
static uint64_t waits_since_ns;

static void again(struct client *client, uint64_t within_ns) {
        client->next_ns = sim.now_ns + sim_random(within_ns + 1);
}

/* ---- requests -------------------------------------------------------------------------------- */

static struct hr_wire_span span(const void *data, size_t size) {
        return (struct hr_wire_span){data, size};
}

static struct line some_line(void) {
        return (struct line){(int64_t) sim_random(20), (int64_t) sim_random(3)};
}

static void say_hello(struct client *client) {
        struct request *request = client_request_new(client, KIND_HELLO);
        struct hr_wire_hello hello = {.protocol_min = 1, .protocol_max = HR_WIRE_PROTOCOL};
        uint8_t message[512];
        size_t bytes = 0;

        if (client->has_session) {
                hello.resume_token_bytes = client->token_bytes;
                memcpy(hello.resume_token, client->token, client->token_bytes);
                request->tries = true;
        }
        HR_ASSERT(hr_wire_hello_encode(&hello, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_HELLO, span(message, bytes), span(NULL, 0), NULL, 0);
        client->phase = PHASE_GREETING;
}

static void say_number(struct client *client, struct request *request, uint32_t type,
                       uint64_t number) {
        uint8_t message[16];
        size_t bytes = 0;

        HR_ASSERT(hr_wire_fixed64_encode(number, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, type, span(message, bytes), span(NULL, 0), NULL, 0);
}

static void say_cancel(struct client *client, struct request *request) {
        struct request *other = &client->requests[sim_random(REQUESTS_MAX)];

        if (other->id != 0 && other != request)
                other->cancelled = true;
        request->other = other->id;
        say_number(client, request, HR_FRAME_CANCEL, other->id);
}

static void say_submit(struct client *client, struct request *request) {
        struct graph *graph = &client->graphs[request->object];
        struct hr_wire_submit submit = {.n_copies = (uint32_t) sim_random(4),
                                        .fresh = sim_chance(100)};
        struct hr_graph *made = recipe_graph((graph_recipe) request->object, client->width);
        uint8_t body[4096], message[256];
        size_t body_bytes = 0, bytes = 0;

        if (graph->set >= 0) {
                submit.weights = &client->sets[graph->set].handle;
                submit.weight_count = 1;
        }
        if (graph->state >= 0) {
                submit.states = &client->states[graph->state].handle;
                submit.state_count = 1;
        }
        HR_ASSERT(hr_wire_graph_encode(made, body, sizeof body, NULL, &body_bytes) == HR_OK);
        (void) hr_graph_unref(made);
        if (body_bytes > sim.traits.body_bytes)
                submit.graph_bytes = body_bytes;
        HR_ASSERT(hr_wire_submit_encode(&submit, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_SUBMIT, span(message, bytes),
                       span(body, body_bytes), NULL, 0);
}

static void say_run(struct client *client, struct request *request) {
        const size_t input_bytes = client->width * sizeof(float);
        const struct hr_wire_run run = {
                .handle = client->graphs[request->object].handle,
                .priority = (int32_t) sim_random(3) - 1,
                .input_bytes = input_bytes > sim.traits.body_bytes ? input_bytes : 0,
        };
        uint8_t message[64], *input = line_bytes(request->line, client->width);
        size_t bytes = 0;

        HR_ASSERT(hr_wire_run_encode(&run, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_RUN, span(message, bytes),
                       span(input, input_bytes), NULL, 0);
        free(input);
}

static void say_sequence(struct client *client, struct request *request) {
        const size_t input_bytes = client->width * sizeof(float);
        struct hr_wire_feed feeds[STEPS_MAX];
        struct hr_wire_step steps[STEPS_MAX];
        struct hr_wire_sequence sequence = {
                .steps = steps,
                .step_count = request->steps,
                .input_bytes = input_bytes > sim.traits.body_bytes ? input_bytes : 0,
        };
        uint8_t message[256], *input = line_bytes(request->line, client->width);
        size_t bytes = 0;

        for (uint32_t i = 0; i < request->steps; i++) {
                feeds[i] = (struct hr_wire_feed){0, i - 1, 0};
                steps[i] = (struct hr_wire_step){
                        .handle = client->graphs[request->object].handle,
                        .feeds = &feeds[i],
                        .feed_count = i > 0,
                };
        }
        HR_ASSERT(hr_wire_sequence_encode(&sequence, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_SEQUENCE, span(message, bytes),
                       span(input, input_bytes), NULL, 0);
        free(input);
}

static size_t manifest(const char *name, uint32_t width, uint8_t *buffer, size_t room) {
        const uint32_t length = 1, type = HR_TYPE_F32;
        const int64_t ne[4] = {width, 1, 1, 1};
        const struct hr_wire_manifest columns = {.count = 1,
                                                 .name_lengths = &length,
                                                 .names = name,
                                                 .names_bytes = 1,
                                                 .types = &type,
                                                 .ne = ne};
        size_t bytes = 0;

        HR_ASSERT(hr_wire_manifest_encode(&columns, buffer, room, NULL, &bytes) == HR_OK);
        return bytes;
}

/* On any of the devices: the first ones are called fake0, fake1, ... */
static struct hr_wire_rule some_place(char name[16]) {
        const uint64_t device = sim_random(sim.traits.devices + 1);

        if (device == sim.traits.devices)
                return (struct hr_wire_rule){"*", "host"};
        memcpy(name, "fake0", sizeof "fake0");
        name[4] = (char) ('0' + device);
        return (struct hr_wire_rule){"*", name};
}

static void say_alloc(struct client *client, struct request *request) {
        char name[16];
        const struct hr_wire_rule rule = some_place(name);
        const struct hr_wire_state_alloc alloc = {
                .rules = &rule, .rule_count = !sim.traits.device_losses};
        uint8_t message[256], body[256];
        size_t bytes = 0;

        HR_ASSERT(hr_wire_state_alloc_encode(&alloc, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_STATE_ALLOC, span(message, bytes),
                       span(body, manifest("s", client->width, body, sizeof body)), NULL, 0);
}

static void say_put(struct client *client, struct request *request) {
        char name[16];
        const struct hr_wire_rule rule = some_place(name);
        struct hr_wire_weights_put put = {.name = "set",
                                          .total_bytes = (client->width * sizeof(float) + 63) / 64 * 64,
                                          .rules = &rule,
                                          .rule_count = !sim.traits.device_losses};
        uint8_t message[512], body[256], *line = line_bytes(request->line, client->width), *data;
        size_t bytes = 0;

        data = calloc(1, put.total_bytes);
        HR_ASSERT(data);
        memcpy(data, line, client->width * sizeof(float));
        free(line);
        HR_ASSERT(hr_wire_weights_put_encode(&put, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_WEIGHTS_PUT, span(message, bytes),
                       span(body, manifest("w", client->width, body, sizeof body)), data,
                       put.total_bytes);
}

static void say_range(struct client *client, struct request *request, bool write) {
        const struct hr_wire_state_range range = {
                .handle = client->states[request->object].handle,
                .bytes = client->width * sizeof(float),
        };
        uint8_t message[64], *line = line_bytes(request->line, client->width);
        size_t bytes = 0;

        HR_ASSERT(hr_wire_state_range_encode(&range, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, write ? HR_FRAME_STATE_WRITE : HR_FRAME_STATE_READ,
                       span(message, bytes), span(line, write ? range.bytes : 0), NULL, 0);
        free(line);
}

/* ---- what to say ----------------------------------------------------------------------------- */

static bool graph_is_ready(const struct client *client, uint32_t graph) {
        return client->graphs[graph].handle != 0;
}

/* Finds a state or a set for a graph to be. */
static bool graph_bind(struct client *client, uint32_t index) {
        struct graph *graph = &client->graphs[index];
        const uint32_t state = (uint32_t) sim_random(STATES_MAX), set = (uint32_t) sim_random(SETS_MAX);

        graph->state = index == RECIPE_KEEP || index == RECIPE_BOTH ? (int) state : -1;
        graph->set = index == RECIPE_WEIGH || index == RECIPE_BOTH ? (int) set : -1;
        if ((graph->state >= 0 && client->states[state].handle == 0) ||
            (graph->set >= 0 && client->sets[set].handle == 0)) {
                graph->state = graph->set = -1;
                return false;
        }
        graph->asked = true;
        client->states[state].users += graph->state >= 0;
        client->sets[set].users += graph->set >= 0;
        return true;
}

/* An effect on a state, if the request has one. */
static bool effect_begin(struct client *client, struct request *request, uint32_t state,
                         struct line line, uint32_t target) {
        if (client->states[state].effect_count + client->open >= EFFECTS_MAX)
                return false;
        request->state = (int) state;
        request->effect = (struct effect){.kind = request->kind, .line = line, .target = target};
        return true;
}

static bool run_begin(struct client *client, struct request *request) {
        const struct graph *graph = &client->graphs[request->object];
        struct line *line = &request->line, *want = &request->want;
        const int64_t times = request->object == RECIPE_DOUBLE  ? 2
                              : request->object == RECIPE_CHAIN ? 3
                                                                : 1;

        *want = (struct line){times * line->first, times * line->step};
        if (graph->set >= 0) {
                want->first += client->sets[graph->set].line.first;
                want->step += client->sets[graph->set].line.step;
        }
        return graph->state < 0 ||
               effect_begin(client, request, (uint32_t) graph->state, *want, 0);
}

static void state_make(struct client *client, uint32_t index) {
        client->states[index] = (struct state){.asked = true};
}

/* False: it makes no sense now. */
static bool say_graph(struct client *client, struct request *request) {
        struct graph *graph = &client->graphs[request->object];

        switch (request->kind) {
        case KIND_SUBMIT:
                if (graph->asked || !graph_bind(client, request->object))
                        return false;
                say_submit(client, request);
                return true;
        case KIND_RELEASE: /* with nothing of it under way, so that its model may go */
                if (!graph_is_ready(client, request->object) || client->open > 1)
                        return false;
                say_number(client, request, HR_FRAME_RELEASE, graph->handle);
                graph_forget(client, request->object);
                return true;
        case KIND_SEQUENCE:
                request->object = RECIPE_DOUBLE;
                request->steps = 1 + (uint32_t) sim_random(STEPS_MAX);
                if (!graph_is_ready(client, RECIPE_DOUBLE))
                        return false;
                say_sequence(client, request);
                return true;
        default:
                if (!graph_is_ready(client, request->object) || !run_begin(client, request))
                        return false;
                say_run(client, request);
                return true;
        }
}

static bool say_state(struct client *client, struct request *request) {
        struct state *state = &client->states[request->object];
        const uint32_t other = (request->object + 1) % STATES_MAX;

        if (request->kind == KIND_ALLOC) {
                if (state->asked)
                        return false;
                state_make(client, request->object);
                say_alloc(client, request);
                return true;
        }
        if (state->handle == 0)
                return false;
        switch (request->kind) {
        case KIND_FORK:
                request->other = other;
                if (client->states[other].asked ||
                    !effect_begin(client, request, request->object, request->line, other))
                        return false;
                state_make(client, other);
                client->states[other].waits = true;
                say_number(client, request, HR_FRAME_STATE_FORK, state->handle);
                return true;
        case KIND_FREE:
                if (state->users > 0 || state->effect_count > 0 || client->open > 1)
                        return false;
                say_number(client, request, HR_FRAME_STATE_FREE, state->handle);
                *state = (struct state){0};
                return true;
        default:
                if (!effect_begin(client, request, request->object, request->line, 0))
                        return false;
                say_range(client, request, request->kind == KIND_WRITE);
                return true;
        }
}

static bool say_set(struct client *client, struct request *request) {
        struct set *set = &client->sets[request->object % SETS_MAX];

        request->object %= SETS_MAX;
        if (request->kind == KIND_PUT) {
                if (set->asked)
                        return false;
                /* Few different ones, so that some are there already. */
                request->line = (struct line){(int64_t) sim_random(3), 1};
                *set = (struct set){.asked = true, .line = request->line};
                say_put(client, request);
                return true;
        }
        if (set->handle == 0 || set->users > 0)
                return false;
        say_number(client, request, HR_FRAME_WEIGHTS_DROP, set->handle);
        *set = (struct set){0};
        return true;
}

static request_kind some_kind(void) {
        static const uint8_t weights[KINDS] = {
                [KIND_PING] = 4, [KIND_CANCEL] = 10, [KIND_SYNC] = 4, [KIND_STATS] = 2,
                [KIND_SUBMIT] = 25, [KIND_RELEASE] = 4, [KIND_RUN] = 80, [KIND_SEQUENCE] = 15,
                [KIND_ALLOC] = 12, [KIND_READ] = 20, [KIND_WRITE] = 15, [KIND_FORK] = 8,
                [KIND_FREE] = 4, [KIND_PUT] = 15, [KIND_DROP] = 4};
        uint32_t sum = 0;
        uint64_t at;

        for (int i = 0; i < KINDS; i++)
                sum += weights[i];
        at = sim_random(sum);
        for (int i = 0; i < KINDS; i++) {
                if (at < weights[i])
                        return (request_kind) i;
                at -= weights[i];
        }
        return KIND_PING;
}

/* One more request, of a kind that makes sense now. */
static void say_something(struct client *client) {
        struct request *request = client_request_new(client, some_kind());
        bool said = true;

        if (!request)
                return;
        request->line = some_line();
        switch (request->kind) {
        case KIND_PING:
                request->other = sim_random(UINT64_MAX);
                say_number(client, request, HR_FRAME_PING, request->other);
                break;
        case KIND_CANCEL:
                say_cancel(client, request);
                break;
        case KIND_SYNC:
        case KIND_STATS:
                client_request(client, request,
                               request->kind == KIND_SYNC ? HR_FRAME_SYNC : HR_FRAME_STATS,
                               span(NULL, 0), span(NULL, 0), NULL, 0);
                break;
        case KIND_SUBMIT:
        case KIND_RELEASE:
        case KIND_RUN:
        case KIND_SEQUENCE:
                request->object = (uint32_t) sim_random(RECIPES);
                said = say_graph(client, request);
                break;
        case KIND_PUT:
        case KIND_DROP:
                request->object = (uint32_t) sim_random(SETS_MAX);
                said = say_set(client, request);
                break;
        default:
                request->object = (uint32_t) sim_random(STATES_MAX);
                said = say_state(client, request);
                break;
        }
        if (said)
                client->talks--;
        else
                client_request_free(client, request);
}

/* ---- lives ----------------------------------------------------------------------------------- */

bool client_is_refusable(const struct client *client) {
        return client->phase == PHASE_GREETING && (sim.traits.tight || sim.traits.accept_errors);
}

void client_lost(struct client *client) {
        const bool ours = client->phase == PHASE_HALF || client->mute || client->ending == END_DEAF ||
                          client->stranger || client->out_sent == client->drop_at ||
                          client->phase == PHASE_OVER;
        const bool whole = client->phase == PHASE_HALF || client->mute;

        if (!ours && !client_is_refusable(client))
                sim_fail("client %u: the daemon hangs up", client->number);
        for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
                struct request *request = &client->requests[i];

                if (request->id == 0)
                        continue;
                if (whole && request->sent_end <= client->out_sent)
                        sim_fail("client %u: %s %llu never gets its reply", client->number,
                                 kind_name(request->kind), (unsigned long long) request->id);
                judge_lost(client, request);
                client_request_free(client, request);
        }
        if (client->mute && client->ending == END_GARBAGE && !client->told_goaway)
                sim_fail("client %u: it is not told what was wrong", client->number);
        client->link = NULL;
        client->phase = client->lives > 0 ? PHASE_AWAY : PHASE_OVER;
        client->left_ns = sim.now_ns;
        if (!client->has_session || sim.traits.grace_ms == 0 || sim_chance(400))
                session_forget(client);
        again(client, (sim.traits.grace_ms + 5) * HR_NS_PER_MS);
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
        client->link = sim_link_open(client->uid);
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
        if (client->ending == END_POLITE || client->ending == END_DROP || client->ending == END_CUT) {
                if (client->open > 0)
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
                client->phase = PHASE_HALF;
                if (client->ending == END_HALF)
                        sim_link_end(client->link);
        }
}

static void client_say(struct client *client) {
        switch (client->phase) {
        case PHASE_AWAY:
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

static void client_step(struct client *client) {
        if (client->next_ns <= sim.now_ns)
                client_say(client);
        if (client->link && client->out_bytes > 0)
                client_send(client);
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
        if (client->out_bytes > 0 && sim_link_has_room(client->link))
                return sim.now_ns;
        if (!is_deaf(client)) {
                uint64_t next_ns = sim_link_next_ns(client->link);

                if (sim_link_is_over(client->link))
                        next_ns = sim.now_ns;
                if (next_ns != SIM_NEVER)
                        due_ns = HR_MIN(due_ns, HR_MAX(next_ns, client->read_ns));
        }
        return due_ns;
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
                        sim_block(&clients, next_ns);
                }
                if (sim.now_ns - waits_since_ns > END_NS)
                        sim_fail("clients wait for the daemon");
        }
        sim_daemon_rest();
}

void sim_clients_nudge(void) {
        sim_wake(&clients);
}

void sim_clients_begin(void) {
        clients = calloc(sim.traits.clients, sizeof *clients);
        HR_ASSERT(clients);
        waits_since_ns = sim.now_ns;
        for (uint32_t i = 0; i < sim.traits.clients; i++) {
                struct client *client = &clients[i];

                client->number = i;
                client->stranger = sim_chance(50);
                client->uid = SIM_FIRST_UID + (client->stranger ? SIM_PRINCIPALS
                                                                : (uint32_t) sim_random(SIM_PRINCIPALS));
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
                free(clients[i].out);
                free(clients[i].in);
        }
        free(clients);
        clients = NULL;
        return done;
}
