/*
 * What has to come back.
 *
 * Requests of a session that touch a state do so in the order in which they were sent, while their
 * replies may come in another: so each leaves an effect in the state's list, and effects are
 * settled from the front as their outcome becomes known. What may or may not have happened leaves
 * several candidates for what the state holds; a later look at it picks among them, and must find
 * one.
 */
#include <stdlib.h>
#include <string.h>

#include "core/op.h"
#include "tests/build.h"
#include "tests/simulation/client.h"

/* gRPC's numbers, as they stand in errors. */
enum {
        CODE_CANCELLED = 1,
        CODE_DEADLINE = 4,
        CODE_NOT_FOUND = 5,
        CODE_EXHAUSTED = 8,
        CODE_PRECONDITION = 9,
        CODE_INTERNAL = 13,
        CODE_UNAVAILABLE = 14,
        CODE_DATA_LOSS = 15,
        CODE_UNAUTHENTICATED = 16
};

/* ---- graphs and numbers ---------------------------------------------------------------------- */

static uint32_t node(struct hr_build *build, uint32_t a, uint32_t b, uint32_t width) {
        return hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, width, 1, 1, 1, 2, (uint32_t[]){a, b});
}

struct hr_graph *recipe_graph(graph_recipe recipe, uint32_t width) {
        struct hr_build *build = hr_build_new();
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", width, 1, 1, 1),
                 last = x;
        uint32_t w = 0, s = 0;

        hr_build_tensor(build, x)->flags = HR_TENSOR_INPUT;
        if (recipe == RECIPE_WEIGH || recipe == RECIPE_BOTH)
                w = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "w", width, 1, 1, 1);
        if (recipe == RECIPE_KEEP || recipe == RECIPE_BOTH)
                s = hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "s", width, 1, 1, 1);
        if (recipe == RECIPE_DOUBLE || recipe == RECIPE_CHAIN)
                last = node(build, x, x, width);
        if (recipe == RECIPE_CHAIN)
                last = node(build, last, x, width);
        if (w)
                last = node(build, last, w, width);
        if (s) {
                last = node(build, s, last, width);
                hr_build_tensor(build, last)->view_base = s;
        }
        hr_build_tensor(build, last)->flags |= HR_TENSOR_OUTPUT;
        return hr_build_finish(build);
}

uint8_t *line_bytes(struct line line, uint32_t width) {
        float *floats = malloc(width * sizeof *floats);

        HR_ASSERT(floats);
        for (uint32_t i = 0; i < width; i++)
                floats[i] = (float) (line.first + line.step * (int64_t) i);
        return (uint8_t *) floats;
}

static float float_at(const void *bytes, size_t index) {
        float value;

        memcpy(&value, (const uint8_t *) bytes + index * sizeof value, sizeof value);
        return value;
}

struct line line_read(const struct client *client, const void *bytes, size_t size) {
        const size_t count = size / sizeof(float);
        struct line line;

        if (size != client->width * sizeof(float))
                sim_fail("client %u: %zu bytes, not %zu", client->number, size,
                         client->width * sizeof(float));
        line.first = (int64_t) float_at(bytes, 0);
        line.step = (int64_t) float_at(bytes, 1) - line.first;
        for (size_t i = 0; i < count; i++)
                if (float_at(bytes, i) != (float) (line.first + line.step * (int64_t) i))
                        sim_fail("client %u: number %zu is %g, not %g", client->number, i,
                                 (double) float_at(bytes, i),
                                 (double) (line.first + line.step * (int64_t) i));
        return line;
}

static struct line line_sum(struct line a, struct line b, int64_t times) {
        return (struct line){a.first + times * b.first, a.step + times * b.step};
}

static bool lines_equal(struct line a, struct line b) {
        return a.first == b.first && a.step == b.step;
}

static void expect_line(const struct client *client, const struct request *request,
                        const uint8_t *bytes, struct line want) {
        struct line line = line_read(client, bytes, client->width * sizeof(float));

        if (!lines_equal(line, want))
                sim_fail("client %u: %s %llu makes %lld + %lld i, not %lld + %lld i",
                         client->number, kind_name(request->kind), (unsigned long long) request->id,
                         (long long) line.first, (long long) line.step, (long long) want.first,
                         (long long) want.step);
}

/* ---- states ---------------------------------------------------------------------------------- */

static void candidate_add(struct state *state, struct line line) {
        for (uint32_t i = 0; i < state->candidate_count; i++)
                if (lines_equal(state->candidates[i], line))
                        return;
        if (state->candidate_count == CANDIDATES_MAX)
                state->spoilt = true;
        else
                state->candidates[state->candidate_count++] = line;
}

static void candidates_set(struct state *state, struct line line) {
        state->spoilt = false;
        state->candidate_count = 1;
        state->candidates[0] = line;
}

static void state_seen(struct client *client, struct state *state, struct line seen) {
        for (uint32_t i = 0; i < state->candidate_count && !state->spoilt; i++)
                if (lines_equal(state->candidates[i], seen)) {
                        candidates_set(state, seen);
                        return;
                }
        if (!state->spoilt)
                sim_fail("client %u: a state holds %lld + %lld i, not %lld + %lld i%s",
                         client->number, (long long) seen.first, (long long) seen.step,
                         (long long) state->candidates[0].first,
                         (long long) state->candidates[0].step,
                         state->candidate_count > 1 ? " or others" : "");
        candidates_set(state, seen);
}

static void states_settle(struct client *client, struct state *state);

static void effect_settle(struct client *client, struct state *state, const struct effect *effect) {
        const uint32_t count = state->candidate_count;

        if (effect->outcome == OUTCOME_SPOILT) {
                state->spoilt = true;
                return;
        }
        switch (effect->kind) {
        case KIND_WRITE:
                if (effect->outcome == OUTCOME_DONE)
                        candidates_set(state, effect->line);
                else
                        candidate_add(state, effect->line);
                break;
        case KIND_RUN:
                for (uint32_t i = 0; i < count; i++) {
                        struct line sum = line_sum(state->candidates[i], effect->line, 1);

                        if (effect->outcome == OUTCOME_DONE)
                                state->candidates[i] = sum;
                        else
                                candidate_add(state, sum);
                }
                break;
        case KIND_FORK:
                if (effect->outcome == OUTCOME_DONE) {
                        struct state *target = &client->states[effect->target];

                        memcpy(target->candidates, state->candidates, sizeof target->candidates);
                        target->candidate_count = count;
                        target->spoilt = state->spoilt;
                        target->waits = false;
                        states_settle(client, target);
                }
                break;
        default:
                break;
        }
        if (effect->is_seen)
                state_seen(client, state, effect->seen);
}

static void states_settle(struct client *client, struct state *state) {
        while (!state->waits && state->effect_count > 0 &&
               state->effects[0].outcome != OUTCOME_OPEN) {
                struct effect effect = state->effects[0];

                state->effect_count--;
                state->settled++;
                memmove(state->effects, state->effects + 1, state->effect_count * sizeof effect);
                effect_settle(client, state, &effect);
        }
}

void effect_place(struct client *client, struct request *request) {
        struct state *state;

        if (request->state < 0)
                return;
        state = &client->states[request->state];
        HR_ASSERT(state->effect_count < EFFECTS_MAX);
        request->effect_number = state->settled + state->effect_count;
        state->effects[state->effect_count++] = request->effect;
        request->is_placed = true;
}

static void effect_end(struct client *client, const struct request *request, effect_outcome outcome,
                       const struct line *seen) {
        struct state *state;
        struct effect *effect;

        if (!request->is_placed)
                return;
        state = &client->states[request->state];
        HR_ASSERT(request->effect_number >= state->settled);
        effect = &state->effects[request->effect_number - state->settled];
        effect->outcome = outcome;
        effect->is_seen = seen;
        if (seen)
                effect->seen = *seen;
        states_settle(client, state);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static bool touches_devices(request_kind kind) {
        return kind == KIND_SUBMIT || (kind >= KIND_RUN && kind != KIND_TAP);
}

static bool names_graph(request_kind kind) {
        return kind == KIND_RUN || kind == KIND_SEQUENCE || kind == KIND_RELEASE;
}

static bool error_is_due(const struct client *client, const struct request *request,
                         uint32_t code) {
        const struct sim_traits *traits = &sim.traits;

        switch (code) {
        case CODE_CANCELLED: /* also: what it was to send will not come */
                return request->cancelled || request->stopped || traits->drains ||
                       request->sent_end > client->out_sent + client->out_bytes ||
                       ((client->phase == PHASE_HALF || client->mute || client->torn) &&
                        request->data_bytes > 0);
        case CODE_DEADLINE:
                return request->timed || request->observed;
        case CODE_NOT_FOUND:
                return request->tries ||
                       (names_graph(request->kind) && (traits->tight || traits->device_losses));
        case CODE_EXHAUSTED:
                return traits->tight;
        case CODE_PRECONDITION:
                return traits->device_errors && touches_devices(request->kind);
        case CODE_INTERNAL:
                return traits->device_errors && touches_devices(request->kind);
        case CODE_UNAVAILABLE:
                return traits->drains || (traits->device_losses && touches_devices(request->kind));
        case CODE_DATA_LOSS:
                return traits->device_losses && touches_devices(request->kind);
        case CODE_UNAUTHENTICATED:
                return client->stranger && request->kind == KIND_HELLO;
        default:
                return false;
        }
}

/* ---- replies --------------------------------------------------------------------------------- */

void session_forget(struct client *client) {
        client->has_session = false;
        memset(client->graphs, 0, sizeof client->graphs);
        memset(client->states, 0, sizeof client->states);
        memset(client->sets, 0, sizeof client->sets);
        memset(&client->reservation, 0, sizeof client->reservation);
        region_forget(client);
        for (uint32_t i = 0; i < RECIPES; i++)
                client->graphs[i].state = client->graphs[i].set = -1;
}

static void hello_done(struct client *client, const struct request *request) {
        struct hr_wire_hello_reply *reply = calloc(1, sizeof *reply);

        HR_ASSERT(reply);
        if (client->stranger)
                sim_fail("client %u: a stranger is let in", client->number);
        if (hr_wire_hello_reply_decode(
                    (struct hr_wire_span){request->message, request->message_bytes}, NULL, reply) !=
                    HR_OK ||
            reply->session_token_bytes == 0)
                sim_fail("client %u: a reply to HELLO that is none", client->number);
        if (request->tries && (reply->session_token_bytes != client->token_bytes ||
                               memcmp(reply->session_token, client->token, client->token_bytes)))
                sim_fail("client %u: it gets another session than it asked for", client->number);
        client->token_bytes = reply->session_token_bytes;
        memcpy(client->token, reply->session_token, client->token_bytes);
        free(reply);
        client->has_session = true;
        client->phase = PHASE_TALKING;
}

static uint64_t handle_of(const struct client *client, const struct request *request) {
        const struct hr_wire_span message = {request->message, request->message_bytes};
        struct hr_wire_submit_reply submit;
        struct hr_wire_state_alloc_reply alloc;
        struct hr_wire_set_info set;
        uint64_t handle = 0;
        bool already;

        if (request->kind == KIND_SUBMIT &&
            hr_wire_submit_reply_decode(message, NULL, &submit) == HR_OK)
                handle = submit.handle;
        else if (request->kind == KIND_PUT &&
                 hr_wire_set_reply_decode(message, false, NULL, &set, &already) == HR_OK)
                handle = set.handle;
        else if (request->kind == KIND_REGION &&
                 hr_wire_fixed64_decode(message, NULL, &handle) != HR_OK)
                handle = 0;
        else if (request->kind == KIND_RESERVE &&
                 hr_wire_reserve_reply_decode(message, NULL, &handle) != HR_OK)
                handle = 0;
        else if ((request->kind == KIND_ALLOC || request->kind == KIND_FORK ||
                  request->kind == KIND_RESTORE) &&
                 hr_wire_state_alloc_reply_decode(message, NULL, &alloc) == HR_OK)
                handle = alloc.handle;
        if (handle == 0)
                sim_fail("client %u: no handle in the reply to %s", client->number,
                         kind_name(request->kind));
        return handle;
}

static void run_done(struct client *client, const struct request *request) {
        const size_t bytes = client->width * sizeof(float);
        const uint8_t *output = request->shared ? client->region.memory + bytes : request->body;
        struct line line;

        if (request->shared && request->body_bytes > 0)
                sim_fail("client %u: an output comes twice", client->number);
        line = line_read(client, output, request->shared ? bytes : request->body_bytes);
        if (request->state >= 0)
                effect_end(client, request, OUTCOME_DONE, &line);
        else
                expect_line(client, request, output, request->want);
}

static void sequence_done(const struct client *client, const struct request *request) {
        const size_t bytes = client->width * sizeof(float);
        const uint8_t *outputs = request->shared ? client->region.memory + bytes : request->body;
        struct line line = request->line;

        if (request->body_bytes != (request->shared ? 0 : request->steps * bytes))
                sim_fail("client %u: a sequence of %u steps replies %zu bytes", client->number,
                         request->steps, request->body_bytes);
        for (uint32_t i = 0; i < request->steps; i++) {
                line = line_sum(line, line, 1);
                expect_line(client, request, outputs + i * bytes, line);
        }
}

/* Behind the manifest, padded. */
static struct line saved_line(const struct client *client, const struct request *request) {
        const struct hr_wire_span message = {request->message, request->message_bytes};
        const size_t bytes = client->width * sizeof(float);
        uint64_t manifest_bytes = 0;

        if (hr_wire_varint_decode(message, NULL, &manifest_bytes) != HR_OK ||
            request->body_bytes < manifest_bytes + bytes)
                sim_fail("client %u: a state is saved in %zu bytes", client->number,
                         request->body_bytes);
        return line_read(client, request->body + manifest_bytes, bytes);
}

static void saved_keep(struct client *client, const struct request *request, struct line line) {
        const struct hr_wire_span message = {request->message, request->message_bytes};

        free(client->saved.bytes);
        client->saved.bytes = malloc(request->body_bytes);
        HR_ASSERT(client->saved.bytes);
        memcpy(client->saved.bytes, request->body, request->body_bytes);
        client->saved.size = request->body_bytes;
        client->saved.line = line;
        HR_ASSERT(hr_wire_varint_decode(message, NULL, &client->saved.manifest_bytes) == HR_OK);
}

void judge_tap(const struct client *client, const struct request *run) {
        if (run->shown_bytes != client->width * sizeof(float))
                sim_fail("client %u: a tap shows %zu bytes", client->number, run->shown_bytes);
        expect_line(client, run, run->shown, line_sum(run->line, run->line, 1));
}

static void judge_done(struct client *client, struct request *request) {
        struct line line;
        uint64_t number = 0;

        switch (request->kind) {
        case KIND_HELLO:
                hello_done(client, request);
                break;
        case KIND_PING:
                if (hr_wire_fixed64_decode(
                            (struct hr_wire_span){request->message, request->message_bytes}, NULL,
                            &number) != HR_OK ||
                    number != request->other)
                        sim_fail("client %u: another cookie comes back", client->number);
                break;
        case KIND_SUBMIT:
                client->graphs[request->object].handle = handle_of(client, request);
                break;
        case KIND_PUT:
                client->sets[request->object].handle = handle_of(client, request);
                break;
        case KIND_ALLOC:
                client->states[request->object].handle = handle_of(client, request);
                candidates_set(&client->states[request->object], (struct line){0, 0});
                break;
        case KIND_RESTORE:
                client->states[request->object].handle = handle_of(client, request);
                candidates_set(&client->states[request->object], request->line);
                break;
        case KIND_RESERVE:
                client->reservation.handle = handle_of(client, request);
                break;
        case KIND_REGION:
                client->region.handle = handle_of(client, request);
                break;
        case KIND_FORK:
                client->states[request->other].handle = handle_of(client, request);
                effect_end(client, request, OUTCOME_DONE, NULL);
                break;
        case KIND_READ:
                line = line_read(client, request->body, request->body_bytes);
                effect_end(client, request, OUTCOME_DONE, &line);
                break;
        case KIND_SAVE:
                line = saved_line(client, request);
                saved_keep(client, request, line);
                effect_end(client, request, OUTCOME_DONE, &line);
                break;
        case KIND_WRITE:
                effect_end(client, request, OUTCOME_DONE, NULL);
                break;
        case KIND_RUN:
                run_done(client, request);
                break;
        case KIND_SEQUENCE:
                sequence_done(client, request);
                break;
        default:
                break;
        }
}

void graph_forget(struct client *client, uint32_t index) {
        struct graph *graph = &client->graphs[index];

        if (graph->state >= 0)
                client->states[graph->state].users--;
        if (graph->set >= 0)
                client->sets[graph->set].users--;
        *graph = (struct graph){.state = -1, .set = -1};
}

/* Whatever it was to make is not there. */
static void request_forget(struct client *client, const struct request *request) {
        if (request->kind == KIND_SUBMIT) {
                graph_forget(client, request->object);
        } else if (request->kind == KIND_PUT) {
                client->sets[request->object] = (struct set){0};
        } else if (request->kind == KIND_REGION) {
                region_forget(client);
        } else if (request->kind == KIND_RESERVE) {
                client->reservation.asked = false;
        } else if (request->kind == KIND_ALLOC || request->kind == KIND_RESTORE) {
                client->states[request->object] = (struct state){0};
        } else if (request->kind == KIND_FORK) {
                client->states[request->other] = (struct state){0};
        }
}

void judge(struct client *client, struct request *request, const struct hr_wire_error *error) {
        bool lost;

        if (!error) {
                judge_done(client, request);
                if (request->shared)
                        client->region.busy = false;
                return;
        }
        if (request->shared)
                client->region.busy = false;
        if (!error_is_due(client, request, error->code))
                sim_fail("client %u: %s %llu fails: %u %s (%s)", client->number,
                         kind_name(request->kind), (unsigned long long) request->id, error->code,
                         error->reason, error->words);
        lost = sim.traits.device_losses || error->code == CODE_DATA_LOSS;
        effect_end(client, request, lost ? OUTCOME_SPOILT : OUTCOME_MAYBE, NULL);
        request_forget(client, request);
        /* Evicted, or of a device that is lost: it is made again. */
        if (error->code == CODE_NOT_FOUND && names_graph(request->kind) &&
            client->graphs[request->object].handle == request->handle && request->handle != 0)
                graph_forget(client, request->object);
        if (request->kind == KIND_HELLO && error->code == CODE_NOT_FOUND) {
                session_forget(client);
                client->phase = PHASE_GREETING;
        }
}

void judge_lost(struct client *client, struct request *request) {
        if (request->shared) {
                client->region.busy = false;
                client->region.spent = true;
        }
        effect_end(client, request, sim.traits.device_losses ? OUTCOME_SPOILT : OUTCOME_MAYBE,
                   NULL);
        request_forget(client, request);
}
