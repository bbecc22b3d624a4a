/*
 * Small clients beside a hog, and beside idle connections.
 *
 *   bench_fairness ADDRESS SMALL THINK_US SECONDS HOGS LAYERS IDLE TOKENS
 *
 * SMALL clients, each a connection with a session, send a run of one node, wait for its result,
 * think for THINK_US and begin again. HOGS sessions of one more client always have HOG_DEPTH runs
 * on their way, of a graph of LAYERS products that is one split. IDLE connections have said hello
 * and do nothing. With TOKENS every client is a principal of its own: "token-0" the hog, "token-1"
 * and so on the others.
 *
 * One JSON line: percentiles of the small runs' round trips in nanoseconds, how many there were,
 * and the median of what a hog's run takes on the device.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/clock.h"
#include "tests/bench/wire_client.h"

#define FLOATS 16
#define HOG_DEPTH 16
#define CHAIN_FLOATS (WIRE_CHAIN_SIDE * WIRE_CHAIN_SIDE)
#define WARM_NS (300 * HR_NS_PER_MS)

struct client {
        int fd;
        struct wire_frame request; /* of a run */
        uint64_t due_ns;           /* when it asks next; 0 = it waits */
        uint64_t asked_ns;
        uint64_t sent, got;
};

struct samples {
        uint64_t *values;
        size_t count, capacity;
};

static float input[CHAIN_FLOATS];
static struct wire_frame reply;

static void sample(struct samples *samples, uint64_t value) {
        if (samples->count == samples->capacity) {
                samples->capacity = HR_MAX(samples->capacity * 2, (size_t) 1024);
                samples->values =
                        realloc(samples->values, samples->capacity * sizeof *samples->values);
                if (!samples->values)
                        wire_give_up("no memory");
        }
        samples->values[samples->count++] = value;
}

static int compare(const void *a, const void *b) {
        uint64_t left = *(const uint64_t *) a, right = *(const uint64_t *) b;

        return left < right ? -1 : left > right;
}

/* Sorts them; 0 without any. */
static uint64_t percentile(struct samples *samples, double part) {
        if (samples->count == 0)
                return 0;
        qsort(samples->values, samples->count, sizeof *samples->values, compare);
        return samples->values[HR_MIN((size_t) (part * (double) samples->count),
                                      samples->count - 1)];
}

static struct client *clients_new(size_t count) {
        struct client *clients = calloc(count + 1, sizeof *clients);

        if (!clients)
                wire_give_up("no memory for %zu clients", count);
        return clients;
}

static void join(struct client *client, const char *address, const char *token,
                 struct hr_graph *graph, size_t floats) {
        union wire_address where;
        socklen_t size = wire_address_parse(address, &where);

        client->fd = wire_connect(&where, size);
        wire_hello(client->fd, token);
        wire_run_make(wire_submit(client->fd, graph, 1), 3, input, floats * sizeof *input,
                      &client->request);
}

static void ask(struct client *client, uint64_t id) {
        struct hr_frame_header header = client->request.header;

        header.request_id = id;
        hr_frame_header_encode(&header, client->request.bytes);
        wire_write(client->fd, client->request.bytes, client->request.size);
        client->sent++;
}

static uint64_t run_ns(void) {
        struct hr_wire_run_reply run;
        struct hr_arena arena;
        struct hr_diag diag = {0};
        uint64_t ns;

        hr_arena_init(&arena, 1 << 20);
        wire_must(hr_wire_run_reply_decode(wire_frame_message(&reply), &arena, &diag, &run), &diag);
        ns = run.run_ns;
        hr_arena_deinit(&arena);
        return ns;
}

struct bench {
        struct client *small, *hogs;
        size_t small_count, hog_count;
        uint64_t think_ns, begin_ns, end_ns;
        struct pollfd *polls;
        struct samples trips, splits;
};

static void small_ready(struct bench *bench, struct client *client) {
        uint64_t now_ns;

        wire_frame_read(client->fd, &reply);
        wire_frame_check(&reply);
        now_ns = hr_clock_now_ns();
        client->got++;
        if (now_ns >= bench->begin_ns)
                sample(&bench->trips, now_ns - client->asked_ns);
        client->due_ns = now_ns + bench->think_ns;
}

static void hog_ready(struct bench *bench, struct client *hog) {
        wire_frame_read(hog->fd, &reply);
        wire_frame_check(&reply);
        hog->got++;
        sample(&bench->splits, run_ns());
        ask(hog, hog->sent + 3);
}

/* Sends what is due; when the next is. */
static uint64_t small_ask(struct bench *bench) {
        uint64_t now_ns = hr_clock_now_ns(), next_ns = bench->end_ns;

        for (size_t i = 0; i < bench->small_count; i++) {
                struct client *client = &bench->small[i];

                if (client->due_ns == 0)
                        continue;
                if (client->due_ns > now_ns) {
                        next_ns = HR_MIN(next_ns, client->due_ns);
                        continue;
                }
                client->due_ns = 0;
                client->asked_ns = hr_clock_now_ns();
                ask(client, client->sent + 3);
        }
        return next_ns;
}

static void work(struct bench *bench) {
        size_t count = bench->small_count + bench->hog_count;

        while (hr_clock_now_ns() < bench->end_ns) {
                uint64_t next_ns = small_ask(bench), now_ns = hr_clock_now_ns();
                uint64_t wait_ns = next_ns > now_ns ? next_ns - now_ns : 0;
                struct timespec wait = {.tv_sec = (time_t) (wait_ns / HR_NS_PER_S),
                                        .tv_nsec = (long) (wait_ns % HR_NS_PER_S)};

                if (ppoll(bench->polls, count, &wait, NULL) <= 0)
                        continue;
                for (size_t i = 0; i < count; i++) {
                        if (!(bench->polls[i].revents & (POLLIN | POLLHUP | POLLERR)))
                                continue;
                        if (i < bench->small_count)
                                small_ready(bench, &bench->small[i]);
                        else
                                hog_ready(bench, &bench->hogs[i - bench->small_count]);
                }
        }
}

static void clients_open(struct bench *bench, const char *address, uint32_t layers, bool tokens) {
        struct hr_graph *chain = wire_graph_chain(layers), *small = wire_graph_double(FLOATS);

        for (size_t i = 0; i < bench->hog_count; i++) {
                join(&bench->hogs[i], address, tokens ? "token-0" : NULL, chain, CHAIN_FLOATS);
                bench->polls[bench->small_count + i] =
                        (struct pollfd){.fd = bench->hogs[i].fd, .events = POLLIN};
        }
        for (size_t i = 0; i < bench->small_count; i++) {
                char token[32];

                (void) snprintf(token, sizeof token, "token-%zu", i + 1);
                join(&bench->small[i], address, tokens ? token : NULL, small, FLOATS);
                bench->polls[i] = (struct pollfd){.fd = bench->small[i].fd, .events = POLLIN};
                /* Not all at once. */
                bench->small[i].due_ns =
                        hr_clock_now_ns() + bench->think_ns * i / bench->small_count;
        }
        hr_graph_unref(chain);
        hr_graph_unref(small);
}

static void idle_open(const char *address, size_t count) {
        union wire_address where;
        socklen_t size = wire_address_parse(address, &where);

        for (size_t i = 0; i < count; i++)
                wire_hello(wire_connect(&where, size), NULL);
}

int main(int argc, char **argv) {
        struct rlimit files = {0};
        struct bench bench = {0};
        double seconds;

        if (argc != 9)
                wire_give_up("ADDRESS SMALL THINK_US SECONDS HOGS LAYERS IDLE TOKENS");
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
                files.rlim_cur = files.rlim_max;
                (void) setrlimit(RLIMIT_NOFILE, &files);
        }
        bench.small_count = strtoul(argv[2], NULL, 10);
        bench.think_ns = strtoul(argv[3], NULL, 10) * 1000;
        seconds = strtod(argv[4], NULL);
        bench.hog_count = strtoul(argv[5], NULL, 10);
        bench.small = clients_new(bench.small_count);
        bench.hogs = clients_new(bench.hog_count);
        bench.polls = calloc(bench.small_count + bench.hog_count + 1, sizeof *bench.polls);
        if (!bench.polls)
                wire_give_up("no memory");
        for (size_t i = 0; i < CHAIN_FLOATS; i++)
                input[i] = 1.0F / (float) (i + 1);
        idle_open(argv[1], strtoul(argv[7], NULL, 10));
        clients_open(&bench, argv[1], (uint32_t) strtoul(argv[6], NULL, 10),
                     strtoul(argv[8], NULL, 10));
        for (size_t i = 0; i < bench.hog_count; i++)
                for (int depth = 0; depth < HOG_DEPTH; depth++)
                        ask(&bench.hogs[i], bench.hogs[i].sent + 3);
        bench.begin_ns = hr_clock_now_ns() + WARM_NS;
        bench.end_ns = bench.begin_ns + (uint64_t) (seconds * 1e9);
        work(&bench);
        printf("{\"p50\": %llu, \"p99\": %llu, \"runs\": %zu, \"split\": %llu, \"hog_runs\": "
               "%zu}\n",
               (unsigned long long) percentile(&bench.trips, 0.5),
               (unsigned long long) percentile(&bench.trips, 0.99), bench.trips.count,
               (unsigned long long) percentile(&bench.splits, 0.5), bench.splits.count);
        return 0;
}
