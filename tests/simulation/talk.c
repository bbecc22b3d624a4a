/* Frames of a client: what it sends, piece by piece, and what it makes of the bytes that come. */
#include <stdlib.h>
#include <string.h>

#include "tests/simulation/client.h"

#define PIECE_BYTES 512U
#define READ_BYTES 4096U

const char *kind_name(request_kind kind) {
        static const char *const names[KINDS] = {
                "HELLO", "PING",  "CANCEL", "SYNC",    "STATS", "SUBMIT", "RELEASE",
                "RUN",   "SEQUENCE", "ALLOC", "READ",  "SAVE",  "WRITE",  "FORK",
                "RESTORE", "FREE", "PUT",   "DROP",    "RESERVE", "UNRESERVE", "REGION",
                "UNREGION", "TAP"};

        return names[kind];
}

/* ---- out ------------------------------------------------------------------------------------- */

void client_bytes(struct client *client, const void *bytes, size_t size) {
        while (client->out_bytes + size > client->out_room) {
                client->out_room = HR_MAX(client->out_room * 2, (size_t) 4096);
                client->out = realloc(client->out, client->out_room);
                HR_ASSERT(client->out);
        }
        if (size > 0)
                memcpy(client->out + client->out_bytes, bytes, size);
        client->out_bytes += size;
        client->out_made += size;
}

void client_frame(struct client *client, uint32_t type, uint32_t flags, uint64_t id,
                  uint32_t timeout_ms, struct hr_wire_span message, struct hr_wire_span body) {
        uint8_t head[HR_FRAME_HEADER_BYTES];

        hr_frame_header_encode(&(struct hr_frame_header){.type = (uint8_t) type,
                                                         .flags = (uint16_t) flags,
                                                         .n_fds = (flags & HR_FRAME_FDS) != 0,
                                                         .request_id = id,
                                                         .message_bytes = (uint32_t) message.size,
                                                         .body_bytes = (uint32_t) body.size,
                                                         .timeout_ms = timeout_ms},
                               head);
        client_bytes(client, head, sizeof head);
        client_bytes(client, message.data, message.size);
        client_bytes(client, body.data, body.size);
}

struct request *client_request_new(struct client *client, request_kind kind) {
        for (uint32_t i = 0; i < REQUESTS_MAX; i++) {
                struct request *request = &client->requests[i];

                if (request->id != 0)
                        continue;
                *request = (struct request){
                        .id = ++client->next_id, .kind = kind, .state = -1, .fd = -1};
                client->open++;
                return request;
        }
        return NULL;
}

void client_request_free(struct client *client, struct request *request) {
        free(request->data);
        free(request->message);
        free(request->body);
        free(request->shown);
        *request = (struct request){0};
        client->open--;
}

void client_request(struct client *client, struct request *request, uint32_t type,
                    struct hr_wire_span message, struct hr_wire_span body, uint8_t *data,
                    uint64_t data_bytes) {
        uint32_t timeout_ms = 0;

        if (type != HR_FRAME_HELLO && sim_chance(60)) {
                timeout_ms = 1 + (uint32_t) sim_random(20);
                request->timed = true;
        }
        if (body.size > sim.traits.body_bytes) {
                HR_ASSERT(!data);
                data = malloc(body.size);
                HR_ASSERT(data);
                memcpy(data, body.data, body.size);
                data_bytes = body.size;
                body.size = 0;
        }
        request->data = data;
        request->data_bytes = data_bytes;
        if (request->fd >= 0)
                sim_link_pass(client->link, client->out_made, request->fd);
        client_frame(client, type,
                     (data ? HR_FRAME_MORE : HR_FRAME_END) | (request->fd >= 0 ? HR_FRAME_FDS : 0),
                     request->id, timeout_ms, message, body);
        request->sent_end = client->out_made;
        if (!data)
                effect_place(client, request);
        sim_tell("client %u: %s %llu of %u%s, state %d, line %lld + %lld i, other %llu%s",
                 client->number, kind_name(request->kind), (unsigned long long) request->id,
                 request->object, data ? " ..." : "", request->state,
                 (long long) request->line.first, (long long) request->line.step,
                 (unsigned long long) request->other, request->timed ? ", timed" : "");
}

/* What the daemon has granted of what follows. */
static void data_send(struct client *client, struct request *request) {
        while (request->credit > 0 && request->data_sent < request->data_bytes) {
                uint64_t most = HR_MIN(request->credit, (uint64_t) sim.traits.body_bytes);
                uint64_t bytes = HR_MIN(most, request->data_bytes - request->data_sent);
                uint8_t message[16];
                size_t message_bytes = 0;
                bool last;

                if (sim_chance(300))
                        bytes = 1 + sim_random(bytes);
                last = request->data_sent + bytes == request->data_bytes;
                HR_ASSERT(hr_wire_varint_encode(request->data_sent, message, sizeof message, NULL,
                                                &message_bytes) == HR_OK);
                client_frame(client, HR_FRAME_DATA, last ? HR_FRAME_END : HR_FRAME_MORE,
                             request->id, 0, (struct hr_wire_span){message, message_bytes},
                             (struct hr_wire_span){request->data + request->data_sent, bytes});
                request->data_sent += bytes;
                if (last)
                        effect_place(client, request);
                request->credit -= bytes;
        }
}

/* What the daemon has asked for; that it wants no more only its reply tells. */
static void ranges_send(struct client *client, struct request *request) {
        while (request->range_count > 0) {
                struct asked_range *range = &request->ranges[0];
                uint64_t bytes = HR_MIN(range->bytes, (uint64_t) sim.traits.body_bytes);
                uint8_t message[16];
                size_t message_bytes = 0;

                if (sim_chance(300))
                        bytes = 1 + sim_random(bytes);
                HR_ASSERT(hr_wire_varint_encode(range->offset, message, sizeof message, NULL,
                                                &message_bytes) == HR_OK);
                client_frame(client, HR_FRAME_DATA, HR_FRAME_MORE, request->id, 0,
                             (struct hr_wire_span){message, message_bytes},
                             (struct hr_wire_span){request->data + range->offset, bytes});
                range->offset += bytes;
                range->bytes -= bytes;
                if (range->bytes == 0)
                        memmove(range, range + 1, --request->range_count * sizeof *range);
        }
}

static void range_take(struct client *client, struct request *request, uint64_t offset,
                       uint64_t bytes) {
        if (offset > request->data_bytes || bytes > request->data_bytes - offset)
                sim_fail("client %u: bytes %llu to %llu of %llu are asked for", client->number,
                         (unsigned long long) offset, (unsigned long long) (offset + bytes),
                         (unsigned long long) request->data_bytes);
        HR_ASSERT(request->range_count < RANGES_MAX);
        request->ranges[request->range_count++] = (struct asked_range){offset, bytes};
        if (client->phase <= PHASE_ENDING && !client->mute)
                ranges_send(client, request);
}

void client_send(struct client *client) {
        while (client->out_bytes > 0) {
                size_t most = 1 + sim_random(PIECE_BYTES << sim_random(6)), sent;

                most = HR_MIN(most, client->out_bytes);
                most = HR_MIN(most, client->drop_at - client->out_sent);
                sent = client->secure ? sim_secure_write(client->secure, client->link, client->out,
                                                         most)
                                      : sim_link_write(client->link, client->out, most);
                memmove(client->out, client->out + sent, client->out_bytes - sent);
                client->out_bytes -= sent;
                client->out_sent += sent;
                if (client->out_sent == client->drop_at) {
                        sim_tell("client %u: gone at byte %llu", client->number,
                                 (unsigned long long) client->drop_at);
                        sim_link_close(client->link, client->ending == END_CUT);
                        client_lost(client);
                        return;
                }
                if (sent < most || sim_chance(300))
                        return;
        }
}

/* ---- in -------------------------------------------------------------------------------------- */

static struct request *request_find(struct client *client, uint64_t id) {
        for (uint32_t i = 0; id != 0 && i < REQUESTS_MAX; i++)
                if (client->requests[i].id == id)
                        return &client->requests[i];
        return NULL;
}

static void append(uint8_t **bytes, size_t *size, const uint8_t *more, size_t count) {
        if (count == 0)
                return;
        *bytes = realloc(*bytes, *size + count);
        HR_ASSERT(*bytes);
        memcpy(*bytes + *size, more, count);
        *size += count;
}

static void error_take(struct client *client, struct request *request,
                       const struct hr_frame_header *header, struct hr_wire_span message) {
        struct hr_wire_error error = {0};
        struct hr_diag diag = {0};

        if (hr_wire_error_decode(message, &diag, &error) != HR_OK || error.reason[0] == '\0' ||
            error.words[0] == '\0' || error.code != header->timeout_ms || error.code == 0)
                sim_fail("client %u: an error that is none, of %s", client->number,
                         kind_name(request->kind));
        sim_tell("client %u: %s %llu fails: %s (%s)", client->number, kind_name(request->kind),
                 (unsigned long long) request->id, error.reason, error.words);
        judge(client, request, &error);
}

/* A run waits at a tap: this is what it shows, or the next piece of it. */
static void tap_take(struct client *client, struct request *run, bool more,
                     struct hr_wire_span body) {
        append(&run->shown, &run->shown_bytes, body.data, body.size);
        run->tap_follows = more;
        if (more)
                return;
        judge_tap(client, run);
        free(run->shown);
        run->shown = NULL;
        run->shown_bytes = 0;
        if (client->phase <= PHASE_ENDING && !client->mute)
                say_tap(client, run, run->tap);
}

static void tap_begin(struct client *client, const struct hr_frame_header *header,
                      struct hr_wire_span message, struct hr_wire_span body) {
        struct request *run = request_find(client, header->request_id);
        struct hr_wire_tap_push push;

        if (!run || !run->observed || run->begun || run->tap_follows ||
            hr_wire_tap_push_decode(message, NULL, &push) != HR_OK)
                sim_fail("client %u: a tap of nothing", client->number);
        run->tap = push.tap;
        tap_take(client, run, header->flags & HR_FRAME_MORE, body);
}

static void reply_take(struct client *client, const struct hr_frame_header *header,
                       struct hr_wire_span message, struct hr_wire_span body) {
        struct request *request = request_find(client, header->request_id);

        if (!request)
                sim_fail("client %u: a reply (type %u, id %llu) to nothing, or a second one",
                         client->number, header->type, (unsigned long long) header->request_id);
        if (request->tap_follows && header->type == (HR_FRAME_DATA | HR_FRAME_REPLY)) {
                tap_take(client, request, header->flags & HR_FRAME_MORE, body);
                return;
        }
        if (header->flags & HR_FRAME_ERROR) {
                error_take(client, request, header, message);
                client_request_free(client, request);
                return;
        }
        if (!request->begun)
                append(&request->message, &request->message_bytes, message.data, message.size);
        else if (header->type != (HR_FRAME_DATA | HR_FRAME_REPLY))
                sim_fail("client %u: a second reply to %s", client->number,
                         kind_name(request->kind));
        request->begun = true;
        append(&request->body, &request->body_bytes, body.data, body.size);
        if (header->flags & HR_FRAME_MORE)
                return;
        sim_tell("client %u: %s %llu is done", client->number, kind_name(request->kind),
                 (unsigned long long) request->id);
        judge(client, request, NULL);
        client->done[request->kind]++;
        client_request_free(client, request);
}

static void frame_take(struct client *client, const struct hr_frame_header *header,
                       struct hr_wire_span message, struct hr_wire_span body) {
        struct request *request;
        uint64_t bytes = 0, offset = 0;

        if (header->type == HR_FRAME_CREDIT) {
                request = request_find(client, header->request_id);
                if (hr_wire_credit_decode(message, NULL, &bytes, &offset) != HR_OK || bytes == 0)
                        sim_fail("client %u: credit of nothing", client->number);
                if (!request) /* ended meanwhile */
                        return;
                if (request->pulled) {
                        range_take(client, request, offset, bytes);
                        return;
                }
                request->credit += bytes;
                sim_tell("client %u: %s %llu may send %llu", client->number,
                         kind_name(request->kind), (unsigned long long) request->id,
                         (unsigned long long) bytes);
                if (client->phase <= PHASE_ENDING && !client->mute)
                        data_send(client, request);
        } else if (header->type == (HR_FRAME_GOAWAY | HR_FRAME_REPLY)) {
                if (client->told_goaway || !(client_is_refusable(client) || client->torn ||
                                             (client->ending == END_GARBAGE && client->mute)))
                        sim_fail("client %u: it is not understood: %.*s", client->number,
                                 (int) message.size, (const char *) message.data);
                client->told_goaway = true;
        } else if (header->type == HR_FRAME_TAP) {
                tap_begin(client, header, message, body);
        } else if (header->type == HR_FRAME_GOAWAY && sim.traits.drains) {
                sim_tell("client %u: is told to go away", client->number);
        } else if (header->type & HR_FRAME_REPLY) {
                reply_take(client, header, message, body);
        } else {
                sim_fail("client %u: a frame of type %u", client->number, header->type);
        }
}

static void frames_take(struct client *client) {
        static const struct hr_frame_limits limits = {1U << 16, 1U << 22, 0};
        size_t at = 0;

        while (client->in_bytes - at >= HR_FRAME_HEADER_BYTES) {
                const uint8_t *head = client->in + at;
                struct hr_frame_header header;
                size_t whole;

                if (hr_frame_header_decode(head, &limits, NULL, &header) != HR_OK)
                        sim_fail("client %u: a header that is none", client->number);
                whole = HR_FRAME_HEADER_BYTES + (size_t) header.message_bytes + header.body_bytes;
                if (client->in_bytes - at < whole)
                        break;
                at += whole;
                frame_take(
                        client, &header,
                        (struct hr_wire_span){head + HR_FRAME_HEADER_BYTES, header.message_bytes},
                        (struct hr_wire_span){head + HR_FRAME_HEADER_BYTES + header.message_bytes,
                                              header.body_bytes});
        }
        memmove(client->in, client->in + at, client->in_bytes - at);
        client->in_bytes -= at;
}

void client_read(struct client *client) {
        for (int i = 0; i < 8 && client->link; i++) {
                size_t got;

                if (client->in_bytes + READ_BYTES > client->in_room) {
                        client->in_room = client->in_bytes + 2 * READ_BYTES;
                        client->in = realloc(client->in, client->in_room);
                        HR_ASSERT(client->in);
                }
                got = 1 + sim_random(READ_BYTES);
                got = client->secure ? sim_secure_read(client->secure, client->link,
                                                       client->in + client->in_bytes, got)
                                     : sim_link_read(client->link, client->in + client->in_bytes,
                                                     got);
                client->in_bytes += got;
                frames_take(client);
                if (got == 0)
                        break;
        }
        if (client->link && sim_link_is_over(client->link) &&
            !(client->secure && sim_secure_has_more(client->secure))) {
                if (client->in_bytes > 0 || (client->secure && sim_secure_has_part(client->secure)))
                        sim_fail("client %u: the stream ends within a frame", client->number);
                client_lost(client);
        }
}
