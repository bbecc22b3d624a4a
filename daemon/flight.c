/*
 * From rings to text: the spans of all rings in one list, by request and time; then the events.
 *
 * Tracks. Slices of one track have to lie inside each other or apart. A queue executes one command
 * at a time, so each queue is a track. Requests overlap: each gets a lane, the first one that is
 * free when it arrives, and its stages lie in the lane, inside the request; steps of a sequence may
 * be under way at the same time, then the later one takes a lane of its own. Arrows go from slice
 * to slice, each from the beginning of one to that of the next.
 */
#include "daemon/flight.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/recorder.h"
#include "scheduler/scheduler.h"

#define REQUESTS_PID 1
#define DEVICES_PID 2
#define LANES 256U

struct line {
        struct hr_span span;
        uint32_t track; /* of a device's queue, or the lane */
        bool is_device;
};

/* The lines of one request, in order of time. */
struct group {
        struct line *lines;
        uint32_t count;
        const struct hr_span *request, *origin; /* NULL = not there */
        uint64_t end_ns;
};

struct writer {
        const struct hr_flight *flight;
        FILE *out;
        uint64_t zero_ns;
        uint64_t lane_end_ns[LANES];
        uint32_t lanes; /* used */
        bool begun;
};

/* ---- Collecting ------------------------------------------------------------------------------ */

struct collection {
        struct line *lines;
        uint32_t count, left_out;
};

static uint32_t queue_count(const struct hr_flight *flight) {
        return 2 * hr_fleet_device_count(flight->fleet);
}

/* The latest of a ring, as far as they may be asked for. `spans` has room for the ring. */
static void ring_collect(const struct hr_flight *flight, const struct hr_recorder *recorder,
                         struct line line, struct hr_span *spans,
                         struct collection *collection) {
        const uint32_t count = hr_recorder_read(recorder, spans);
        uint32_t first = count > flight->spans_max ? count - flight->spans_max : 0;

        collection->left_out += first;
        for (; first < count; first++) {
                const struct hr_span *span = &spans[first];
                const bool is_old = span->kind == HR_SPAN_ORIGIN
                                            ? span->begin_ns < flight->since_ns
                                            : span->end_ns < flight->since_ns;

                line.span = *span;
                if (!is_old && span->kind != HR_SPAN_NONE && span->kind < HR_SPAN_KINDS)
                        collection->lines[collection->count++] = line;
        }
}

static int number_compare(uint64_t a, uint64_t b) {
        return a < b ? -1 : a > b;
}

static int line_by_begin(const void *a, const void *b) {
        const struct line *first = a, *second = b;

        return number_compare(first->span.begin_ns, second->span.begin_ns);
}

static int line_by_request(const void *a, const void *b) {
        const struct hr_span *first = &((const struct line *) a)->span;
        const struct hr_span *second = &((const struct line *) b)->span;
        int order = number_compare(first->tag, second->tag);

        if (order == 0)
                order = number_compare(first->begin_ns, second->begin_ns);
        return order ? order : number_compare(first->kind, second->kind);
}

/* Sorted by request. Without those of other principals: whose a request is is told by its own
 * span. */
static void collection_filter(struct collection *collection, uint64_t principal) {
        uint32_t kept = 0;

        for (uint32_t first = 0, end; first < collection->count; first = end) {
                const uint64_t tag = collection->lines[first].span.tag;
                bool is_theirs = principal == HR_FLIGHT_EVERYBODY;

                for (end = first; end < collection->count && collection->lines[end].span.tag == tag;
                     end++) {
                        const struct hr_span *span = &collection->lines[end].span;

                        if (tag != 0 && span->kind == HR_SPAN_REQUEST && span->b == principal)
                                is_theirs = true;
                }
                for (uint32_t i = first; is_theirs && i < end; i++)
                        collection->lines[kept++] = collection->lines[i];
        }
        collection->count = kept;
}

/* The latest `most`, by their beginning. */
static void collection_cut(struct collection *collection, uint32_t most) {
        uint32_t surplus;

        if (collection->count <= most)
                return;
        surplus = collection->count - most;
        qsort(collection->lines, collection->count, sizeof *collection->lines, line_by_begin);
        memmove(collection->lines, collection->lines + surplus, most * sizeof *collection->lines);
        collection->count = most;
        collection->left_out += surplus;
}

static hr_status collect(const struct hr_flight *flight, struct hr_diag *diag,
                         struct collection *ret_collection) {
        uint64_t largest = hr_recorder_capacity(flight->recorder);
        uint64_t total = largest + flight->open_count;
        struct collection collection = {0};
        struct hr_span *spans;

        for (uint32_t q = 0; q < queue_count(flight); q++) {
                uint32_t capacity = hr_recorder_capacity(hr_fleet_recorder(flight->fleet, q));

                total += capacity;
                largest = HR_MAX(largest, (uint64_t) capacity);
        }
        spans = calloc(largest + 1, sizeof *spans);
        collection.lines = calloc(total + 1, sizeof *collection.lines);
        if (!spans || !collection.lines) {
                free(spans);
                free(collection.lines);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %llu spans",
                               (unsigned long long) total);
        }
        ring_collect(flight, flight->recorder, (struct line){0}, spans, &collection);
        for (uint32_t q = 0; q < queue_count(flight); q++)
                ring_collect(flight, hr_fleet_recorder(flight->fleet, q),
                             (struct line){.track = q, .is_device = true}, spans, &collection);
        free(spans);
        for (uint32_t i = 0; i < flight->open_count; i++)
                collection.lines[collection.count++] = (struct line){.span = flight->open[i]};
        qsort(collection.lines, collection.count, sizeof *collection.lines, line_by_request);
        collection_filter(&collection, flight->principal);
        collection_cut(&collection, flight->spans_max);
        qsort(collection.lines, collection.count, sizeof *collection.lines, line_by_request);
        *ret_collection = collection;
        return HR_OK;
}

/* ---- Text ------------------------------------------------------------------------------------ */

/* Names are configured, or a user's number; what JSON wants escaped is replaced. */
static void name_write(FILE *out, const char *name) {
        (void) putc('"', out);
        for (; *name; name++)
                (void) putc(*name == '"' || *name == '\\' || (unsigned char) *name < ' ' ? '_'
                                                                                         : *name,
                            out);
        (void) putc('"', out);
}

static void event_begin(struct writer *writer) {
        fputs(writer->begun ? ",\n{" : "\n{", writer->out);
        writer->begun = true;
}

static void time_write(struct writer *writer, const char *key, uint64_t ns) {
        fprintf(writer->out, ",\"%s\":%llu.%03u", key, (unsigned long long) (ns / 1000),
                (unsigned) (ns % 1000));
}

static void track_name(struct writer *writer, int pid, uint32_t tid, const char *what,
                       const char *name, const char *suffix) {
        event_begin(writer);
        fprintf(writer->out,
                "\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"%s\",\"args\":{\"name\":", pid, tid,
                what);
        name_write(writer->out, name);
        if (suffix)
                fprintf(writer->out, ",\"queue\":\"%s\"", suffix);
        fputs("}}", writer->out);
}

static void names_write(struct writer *writer) {
        const struct hr_fleet *fleet = writer->flight->fleet;
        const uint32_t devices = hr_fleet_device_count(fleet);

        track_name(writer, REQUESTS_PID, 0, "process_name", "requests", NULL);
        track_name(writer, DEVICES_PID, 0, "process_name", "devices", NULL);
        for (uint32_t i = 0; i < writer->lanes; i++) {
                char name[32];

                (void) snprintf(name, sizeof name, "requests %u", i);
                track_name(writer, REQUESTS_PID, i, "thread_name", name, NULL);
        }
        for (uint32_t q = 0; q < 2 * devices; q++) {
                char name[96];

                (void) snprintf(name, sizeof name, "%s%s",
                                hr_fleet_device(fleet, q % devices)->props.name,
                                q < devices ? "" : " uploads");
                track_name(writer, DEVICES_PID, q, "thread_name", name,
                           q < devices ? "compute" : "uploads");
        }
}

static const char *principal_name(const struct hr_flight *flight, uint64_t id) {
        for (uint32_t i = 0; i < flight->principal_count; i++)
                if (flight->principals[i].id == id)
                        return flight->principals[i].name;
        return "?";
}

/* Whose trace it is part of, and the span that the reply has named. */
static void origin_write(struct writer *writer, const struct hr_span *origin, uint64_t tag) {
        fprintf(writer->out,
                ",\"traceparent\":\"00-%016llx%016llx-%016llx-%02x\",\"span\":\"%016llx\"",
                (unsigned long long) origin->a, (unsigned long long) origin->b,
                (unsigned long long) origin->end_ns, origin->detail & 0xff,
                (unsigned long long) (writer->flight->span_seed + tag));
}

/* What the request's own slice says about it. */
static void request_args(struct writer *writer, const struct group *group) {
        const struct hr_span *request = group->request;

        fprintf(writer->out, ",\"id\":%llu", (unsigned long long) request->a);
        if (request->detail >> 8 == HR_SPAN_OPEN)
                fputs(",\"open\":true", writer->out);
        else
                fprintf(writer->out, ",\"code\":%u", request->detail >> 8);
        fputs(",\"principal\":", writer->out);
        name_write(writer->out, principal_name(writer->flight, request->b));
        if (group->origin)
                origin_write(writer, group->origin, request->tag);
}

static void slice_name(struct writer *writer, const struct hr_span *span) {
        FILE *out = writer->out;

        switch ((hr_span_kind) span->kind) {
        case HR_SPAN_REQUEST:
                name_write(out, writer->flight->type_name((uint8_t) span->detail));
                return;
        case HR_SPAN_COMPUTE:
                fprintf(out, "\"split %u\"", span->detail);
                return;
        default:
                fprintf(out, "\"%s\"", hr_span_kind_name((hr_span_kind) span->kind));
        }
}

static void slice_write(struct writer *writer, const struct group *group, const struct line *line) {
        const struct hr_span *span = &line->span;
        uint64_t end_ns = span->kind == HR_SPAN_REQUEST ? group->end_ns : span->end_ns;

        event_begin(writer);
        fprintf(writer->out, "\"ph\":\"X\",\"pid\":%d,\"tid\":%u,\"cat\":\"%s\",\"name\":",
                line->is_device ? DEVICES_PID : REQUESTS_PID, line->track,
                hr_span_kind_name((hr_span_kind) span->kind));
        slice_name(writer, span);
        time_write(writer, "ts", span->begin_ns - writer->zero_ns);
        time_write(writer, "dur", end_ns > span->begin_ns ? end_ns - span->begin_ns : 0);
        fprintf(writer->out, ",\"args\":{\"request\":%llu", (unsigned long long) span->tag);
        if (span->kind == HR_SPAN_REQUEST)
                request_args(writer, group);
        else if (span->kind == HR_SPAN_COPY)
                fprintf(writer->out, ",\"bytes\":%llu", (unsigned long long) span->a);
        else if (span->kind == HR_SPAN_RUN)
                fprintf(writer->out, ",\"slot\":%u,\"sequence\":%llu", span->detail,
                        (unsigned long long) span->a);
        fputs("}}", writer->out);
}

static bool is_on_the_way(const struct line *line) {
        return line->span.kind != HR_SPAN_UPLOAD && line->span.kind != HR_SPAN_ORIGIN &&
               line->span.kind != HR_SPAN_WAIT;
}

static void arrow_write(struct writer *writer, const struct line *line, char phase) {
        event_begin(writer);
        fprintf(writer->out,
                "\"ph\":\"%c\",\"cat\":\"request\",\"name\":\"request\",\"id\":%llu,\"pid\":%d,"
                "\"tid\":%u%s",
                phase, (unsigned long long) line->span.tag,
                line->is_device ? DEVICES_PID : REQUESTS_PID, line->track,
                phase == 's' ? "" : ",\"bp\":\"e\"");
        time_write(writer, "ts", line->span.begin_ns - writer->zero_ns);
        fputs("}", writer->out);
}

static void arrows_write(struct writer *writer, const struct group *group) {
        uint32_t left = 0;
        char phase = 's';

        if (group->lines[0].span.tag == 0)
                return;
        for (uint32_t i = 0; i < group->count; i++)
                left += is_on_the_way(&group->lines[i]);
        if (left < 2)
                return;
        for (uint32_t i = 0; i < group->count; i++) {
                if (!is_on_the_way(&group->lines[i]))
                        continue;
                arrow_write(writer, &group->lines[i], --left == 0 ? 'f' : phase);
                phase = 't';
        }
}

/* ---- Groups ---------------------------------------------------------------------------------- */

/* The first lane that is free by then, or the one that is free first. */
static uint32_t lane_take(struct writer *writer, uint64_t begin_ns, uint64_t end_ns) {
        uint32_t lane = 0;

        for (uint32_t i = 0; i < LANES; i++) {
                if (writer->lane_end_ns[i] <= begin_ns) {
                        lane = i;
                        break;
                }
                if (writer->lane_end_ns[i] < writer->lane_end_ns[lane])
                        lane = i;
        }
        writer->lane_end_ns[lane] = end_ns;
        writer->lanes = HR_MAX(writer->lanes, lane + 1);
        return lane;
}

/* What the group is about, and when the request and its stages were under way. */
static void group_look(struct group *group, uint64_t *ret_begin_ns) {
        uint64_t begin_ns = UINT64_MAX;

        for (uint32_t i = 0; i < group->count; i++) {
                const struct hr_span *span = &group->lines[i].span;

                if (span->kind == HR_SPAN_ORIGIN) {
                        group->origin = span;
                        continue;
                }
                if (group->lines[i].is_device)
                        continue;
                if (span->kind == HR_SPAN_REQUEST)
                        group->request = span;
                begin_ns = HR_MIN(begin_ns, span->begin_ns);
                group->end_ns = HR_MAX(group->end_ns, span->end_ns);
        }
        *ret_begin_ns = begin_ns;
}

static void lanes_give(struct writer *writer, struct group *group, uint64_t begin_ns) {
        const uint32_t lane = lane_take(writer, begin_ns, group->end_ns);
        uint64_t free_ns = 0;

        for (uint32_t i = 0; i < group->count; i++) {
                struct line *line = &group->lines[i];

                if (line->is_device || line->span.kind == HR_SPAN_ORIGIN)
                        continue;
                line->track = lane;
                if (line->span.kind == HR_SPAN_REQUEST)
                        continue;
                if (line->span.begin_ns < free_ns)
                        line->track = lane_take(writer, line->span.begin_ns, line->span.end_ns);
                else
                        free_ns = line->span.end_ns;
        }
}

/* Requests are numbered in the order in which they came, so lanes fill in order of time. */
static void group_write(struct writer *writer, struct group *group) {
        uint64_t begin_ns;

        group_look(group, &begin_ns);
        if (begin_ns != UINT64_MAX)
                lanes_give(writer, group, begin_ns);
        for (uint32_t i = 0; i < group->count; i++)
                if (group->lines[i].span.kind != HR_SPAN_ORIGIN)
                        slice_write(writer, group, &group->lines[i]);
        arrows_write(writer, group);
}

static void collection_write(struct writer *writer, const struct collection *collection) {
        uint64_t zero_ns = UINT64_MAX;

        for (uint32_t i = 0; i < collection->count; i++)
                zero_ns = HR_MIN(zero_ns, collection->lines[i].span.begin_ns);
        writer->zero_ns = zero_ns;
        fprintf(writer->out,
                "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"clock\":\"monotonic\",\"zero_ns\":%"
                "llu,"
                "\"spans\":%u,\"left_out\":%u},\"traceEvents\":[",
                collection->count ? (unsigned long long) zero_ns : 0, collection->count,
                collection->left_out);
        for (uint32_t first = 0, end; first < collection->count; first = end) {
                struct group group = {.lines = &collection->lines[first]};

                for (end = first; end < collection->count && collection->lines[end].span.tag ==
                                                                     group.lines[0].span.tag;
                     end++)
                        group.count++;
                group_write(writer, &group);
        }
        names_write(writer);
        fputs("\n]}\n", writer->out);
}

hr_status hr_flight_text(const struct hr_flight *flight, struct hr_diag *diag, char **ret_text,
                         size_t *ret_bytes) {
        struct writer *writer = calloc(1, sizeof *writer);
        struct collection collection = {0};
        size_t bytes = 0;
        char *text = NULL;
        bool failed = true;
        hr_status status = HR_E_EXHAUSTED;

        if (writer)
                status = collect(flight, diag, &collection);
        if (status == HR_OK)
                writer->out = open_memstream(&text, &bytes);
        if (writer && writer->out) {
                writer->flight = flight;
                collection_write(writer, &collection);
                failed = ferror(writer->out) != 0;
                failed |= fclose(writer->out) != 0;
        }
        free(collection.lines);
        free(writer);
        if (failed) {
                free(text);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a trace");
        }
        *ret_text = text;
        *ret_bytes = bytes;
        return HR_OK;
}
