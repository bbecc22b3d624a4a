/* What clients say: requests of any kind that makes sense, over what they own. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/digest.h"
#include "tests/simulation/client.h"

/* ---- requests -------------------------------------------------------------------------------- */

static struct hr_wire_span span(const void *data, size_t size) {
        return (struct hr_wire_span){data, size};
}

static struct line some_line(void) {
        return (struct line){(int64_t) sim_random(20), (int64_t) sim_random(3)};
}

void say_hello(struct client *client) {
        struct request *request = client_request_new(client, KIND_HELLO);
        struct hr_wire_hello hello = {.protocol_min = 1, .protocol_max = HR_WIRE_PROTOCOL};
        uint8_t message[512];
        size_t bytes = 0;

        if (client->secure) { /* its token */
                hello.credentials_bytes = sizeof client->uid;
                memcpy(hello.credentials, &client->uid, sizeof client->uid);
        }
        if (client->has_session) {
                hello.resume_token_bytes = client->token_bytes;
                memcpy(hello.resume_token, client->token, client->token_bytes);
                request->tries = true;
        }
        HR_ASSERT(hr_wire_hello_encode(&hello, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_HELLO, span(message, bytes), span(NULL, 0), NULL,
                       0);
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
        static const uint32_t tap = 1; /* of the chain: x + x */
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
        if (request->object == RECIPE_CHAIN) {
                submit.taps = &tap;
                submit.tap_count = 1;
        }
        HR_ASSERT(hr_wire_graph_encode(made, body, sizeof body, NULL, &body_bytes) == HR_OK);
        (void) hr_graph_unref(made);
        if (body_bytes > sim.traits.body_bytes)
                submit.graph_bytes = body_bytes;
        HR_ASSERT(hr_wire_submit_encode(&submit, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_SUBMIT, span(message, bytes),
                       span(body, body_bytes), NULL, 0);
}

static size_t region_bytes(const struct client *client) {
        return (1 + STEPS_MAX) * client->width * sizeof(float);
}

/* Inputs and outputs in the region, if there is one that nobody uses. */
static bool region_take(struct client *client, struct request *request, const uint8_t *input,
                        size_t bytes) {
        if (request->observed || client->region.handle == 0 || client->region.busy ||
            client->region.spent || sim_chance(300))
                return false;
        request->shared = client->region.busy = true;
        memset(client->region.memory, 0, region_bytes(client));
        memcpy(client->region.memory, input, bytes);
        return true;
}

static void say_run(struct client *client, struct request *request) {
        size_t input_bytes = client->width * sizeof(float);
        struct hr_wire_run run = {
                .observe = request->observed,
                .handle = client->graphs[request->object].handle,
                .priority = (int32_t) sim_random(3) - 1,
                .input_bytes = input_bytes > sim.traits.body_bytes ? input_bytes : 0,
        };
        uint8_t message[128], *input = line_bytes(request->line, client->width);
        size_t bytes = 0;

        if (region_take(client, request, input, input_bytes)) {
                run.input_region = run.output_region = client->region.handle;
                run.output_offset = input_bytes;
                run.input_bytes = input_bytes = 0;
        }
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

        if (region_take(client, request, input, input_bytes)) {
                sequence.input_region = sequence.output_region = client->region.handle;
                sequence.output_offset = input_bytes;
                sequence.input_bytes = 0;
        }
        for (uint32_t i = 0; i < request->steps; i++) {
                feeds[i] = (struct hr_wire_feed){0, i - 1, 0};
                steps[i] = (struct hr_wire_step){
                        .handle = client->graphs[request->object].handle,
                        .feeds = &feeds[i],
                        .feed_count = i > 0,
                };
        }
        HR_ASSERT(hr_wire_sequence_encode(&sequence, message, sizeof message, NULL, &bytes) ==
                  HR_OK);
        client_request(client, request, HR_FRAME_SEQUENCE, span(message, bytes),
                       span(input, request->shared ? 0 : input_bytes), NULL, 0);
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
        const struct hr_wire_state_alloc alloc = {.rules = &rule,
                                                  .rule_count = !sim.traits.device_losses};
        uint8_t message[256], body[256];
        size_t bytes = 0;

        HR_ASSERT(hr_wire_state_alloc_encode(&alloc, message, sizeof message, NULL, &bytes) ==
                  HR_OK);
        client_request(client, request, HR_FRAME_STATE_ALLOC, span(message, bytes),
                       span(body, manifest("s", client->width, body, sizeof body)), NULL, 0);
}

/* Memory to be passed; is_final: nobody can write it any more. */
static int sealed(const void *bytes, size_t size, bool is_final) {
        int fd = memfd_create("simulation", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        HR_ASSERT(fd >= 0 && ftruncate(fd, (off_t) size) == 0);
        if (bytes)
                HR_ASSERT(write(fd, bytes, size) == (ssize_t) size);
        HR_ASSERT(fcntl(fd, F_ADD_SEALS,
                        F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW |
                                (is_final ? F_SEAL_WRITE : 0)) == 0);
        return fd;
}

void region_forget(struct client *client) {
        if (client->region.memory)
                (void) munmap(client->region.memory, region_bytes(client));
        memset(&client->region, 0, sizeof client->region);
}

static bool say_region(struct client *client, struct request *request) {
        const struct hr_wire_region_add add = {.bytes = region_bytes(client), .writable = true};
        uint8_t message[32];
        size_t bytes = 0;

        if (request->kind == KIND_UNREGION) {
                if (client->region.handle == 0 || client->region.busy)
                        return false;
                say_number(client, request, HR_FRAME_REGION_DROP, client->region.handle);
                region_forget(client);
                return true;
        }
        if (client->region.asked)
                return false;
        client->region.asked = true;
        request->fd = sealed(NULL, add.bytes, false);
        client->region.memory =
                mmap(NULL, add.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, request->fd, 0);
        HR_ASSERT(client->region.memory != MAP_FAILED);
        HR_ASSERT(hr_wire_region_add_encode(&add, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_REGION_ADD, span(message, bytes), span(NULL, 0),
                       NULL, 0);
        return true;
}

static void say_put(struct client *client, struct request *request) {
        char name[16];
        const struct hr_wire_rule rule = some_place(name);
        struct hr_wire_weights_put put = {.name = "set",
                                          .total_bytes =
                                                  (client->width * sizeof(float) + 63) / 64 * 64,
                                          .rules = &rule,
                                          .rule_count = !sim.traits.device_losses};
        uint8_t message[512], body[256], *line = line_bytes(request->line, client->width), *data;
        size_t bytes = 0;

        data = calloc(1, put.total_bytes);
        HR_ASSERT(data);
        memcpy(data, line, client->width * sizeof(float));
        free(line);
        if (sim_chance(500)) { /* of its one leaf */
                uint8_t leaf[HR_DIGEST_BYTES];

                HR_ASSERT(hr_sha256(data, put.total_bytes, NULL, leaf) == HR_OK);
                HR_ASSERT(hr_sha256(leaf, sizeof leaf, NULL, put.digest) == HR_OK);
                put.digest_bytes = HR_DIGEST_BYTES;
                put.resume = request->pulled = sim_chance(600);
                if (put.resume) /* streams of one upload, if others send these contents, too */
                        put.rule_count = 0;
        }
        if (!client->secure && !put.resume && sim_chance(300)) {
                request->fd = sealed(data, put.total_bytes, true);
                free(data);
                data = NULL;
        }
        HR_ASSERT(hr_wire_weights_put_encode(&put, message, sizeof message, NULL, &bytes) == HR_OK);
        if (request->fd >= 0) {
                client_request(client, request, HR_FRAME_WEIGHTS_PUT_FD, span(message, bytes),
                               span(body, manifest("w", client->width, body, sizeof body)), NULL,
                               0);
                return;
        }
        client_request(client, request, HR_FRAME_WEIGHTS_PUT, span(message, bytes),
                       span(body, manifest("w", client->width, body, sizeof body)), data,
                       put.total_bytes);
}

static void say_restore(struct client *client, struct request *request) {
        char name[16];
        const struct hr_wire_rule rule = some_place(name);
        const struct hr_wire_state_restore restore = {
                .manifest_bytes = client->saved.manifest_bytes,
                .body_bytes = client->saved.size > sim.traits.body_bytes ? client->saved.size : 0,
                .rules = &rule,
                .rule_count = !sim.traits.device_losses,
        };
        uint8_t message[256];
        size_t bytes = 0;

        HR_ASSERT(hr_wire_state_restore_encode(&restore, message, sizeof message, NULL, &bytes) ==
                  HR_OK);
        client_request(client, request, HR_FRAME_STATE_RESTORE, span(message, bytes),
                       span(client->saved.bytes, client->saved.size), NULL, 0);
}

/* Memory for graphs that need nothing else, whether or not they are submitted. */
static void say_reserve(struct client *client, struct request *request) {
        struct hr_wire_submit wanted[2] = {0};
        struct hr_wire_reserve reserve = {.graphs = wanted,
                                          .graph_count = 1 + (uint32_t) sim_random(2)};
        uint8_t body[8192], message[512];
        size_t body_bytes = 0, bytes = 0;

        for (uint32_t i = 0; i < reserve.graph_count; i++) {
                struct hr_graph *made = recipe_graph(i ? RECIPE_CHAIN : RECIPE_DOUBLE,
                                                     client->width);
                size_t size = 0;

                HR_ASSERT(hr_wire_graph_encode(made, body + body_bytes, sizeof body - body_bytes,
                                               NULL, &size) == HR_OK);
                (void) hr_graph_unref(made);
                wanted[i] = (struct hr_wire_submit){.graph_bytes = size,
                                                    .n_copies = (uint32_t) sim_random(4)};
                body_bytes += size;
        }
        if (body_bytes > sim.traits.body_bytes)
                reserve.body_bytes = body_bytes;
        HR_ASSERT(hr_wire_reserve_encode(&reserve, message, sizeof message, NULL, &bytes) ==
                  HR_OK);
        client_request(client, request, HR_FRAME_RESERVE, span(message, bytes),
                       span(body, body_bytes), NULL, 0);
}

void say_tap(struct client *client, struct request *run, uint32_t tap) {
        const struct hr_wire_tap answer = {run->id, tap, sim_chance(200)};
        struct request *request = client_request_new(client, KIND_TAP);
        uint8_t message[64];
        size_t bytes = 0;

        if (!request) /* it will not wait for ever */
                return;
        run->stopped = run->stopped || answer.stop;
        HR_ASSERT(hr_wire_tap_encode(&answer, message, sizeof message, NULL, &bytes) == HR_OK);
        client_request(client, request, HR_FRAME_TAP, span(message, bytes), span(NULL, 0), NULL, 0);
}

static void say_range(struct client *client, struct request *request, bool write) {
        const struct hr_wire_state_range range = {
                .handle = client->states[request->object].handle,
                .bytes = client->width * sizeof(float),
        };
        uint8_t message[64], *line = line_bytes(request->line, client->width);
        size_t bytes = 0;

        HR_ASSERT(hr_wire_state_range_encode(&range, message, sizeof message, NULL, &bytes) ==
                  HR_OK);
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
        const uint32_t state = (uint32_t) sim_random(STATES_MAX),
                       set = (uint32_t) sim_random(SETS_MAX);

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
        return graph->state < 0 || effect_begin(client, request, (uint32_t) graph->state, *want, 0);
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
                request->handle = client->graphs[RECIPE_DOUBLE].handle;
                say_sequence(client, request);
                return true;
        default:
                if (!graph_is_ready(client, request->object) || !run_begin(client, request))
                        return false;
                request->observed = request->object == RECIPE_CHAIN && sim_chance(600);
                request->handle = graph->handle;
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
        if (request->kind == KIND_RESTORE) {
                if (state->asked || client->saved.size == 0)
                        return false;
                state_make(client, request->object);
                request->line = client->saved.line;
                say_restore(client, request);
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
                if (request->kind == KIND_SAVE)
                        say_number(client, request, HR_FRAME_STATE_SAVE, state->handle);
                else
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

static bool say_reservation(struct client *client, struct request *request) {
        if (request->kind == KIND_RESERVE) {
                if (client->reservation.asked)
                        return false;
                client->reservation.asked = true;
                say_reserve(client, request);
                return true;
        }
        if (client->reservation.handle == 0)
                return false;
        say_number(client, request, HR_FRAME_RELEASE, client->reservation.handle);
        client->reservation.handle = 0;
        client->reservation.asked = false;
        return true;
}

static request_kind some_kind(void) {
        static const uint8_t weights[KINDS] = {
                [KIND_PING] = 4,    [KIND_CANCEL] = 10, [KIND_SYNC] = 4, [KIND_STATS] = 2,
                [KIND_SUBMIT] = 25, [KIND_RELEASE] = 4, [KIND_RUN] = 80, [KIND_SEQUENCE] = 15,
                [KIND_ALLOC] = 12,  [KIND_READ] = 20,   [KIND_SAVE] = 6, [KIND_WRITE] = 15,
                [KIND_FORK] = 8,    [KIND_FREE] = 4,    [KIND_PUT] = 15, [KIND_DROP] = 4,
                [KIND_RESTORE] = 8, [KIND_RESERVE] = 6, [KIND_UNRESERVE] = 4,
                [KIND_REGION] = 8, [KIND_UNREGION] = 3};
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

void say_something(struct client *client) {
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
        case KIND_REGION: /* memory goes through Unix sockets alone */
        case KIND_UNREGION:
                said = !client->secure && say_region(client, request);
                break;
        case KIND_RESERVE:
        case KIND_UNRESERVE:
                said = say_reservation(client, request);
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
