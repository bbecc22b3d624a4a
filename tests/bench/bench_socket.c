/*
 * The same runs through the daemon's socket and in this process.
 *
 *   bench_socket ADDRESS RUNS REPETITIONS LAYERS SLOTS IN_FLIGHT [BACKEND]
 *
 * The graph is a chain of LAYERS products of a 64 x 64 matrix with what came before, normed, on one
 * CPU device of one thread; or on one of BACKEND, beside a CPU device that takes no op: the daemon
 * has the same devices. Through the socket IN_FLIGHT requests are on their way at any time; in this
 * process as many runs as there are slots, started by a thread that sleeps until one is over. Both
 * take turns in every repetition. One JSON line for each: nanoseconds a run, from the end of the
 * last one that warmed up to the end of the last one.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/registry.h"
#include "core/clock.h"
#include "scheduler/scheduler.h"
#include "tests/bench/wire_client.h"

#define FLOATS (WIRE_CHAIN_SIDE * WIRE_CHAIN_SIDE)
#define SLOTS_MAX 16
#define FILL_RUNS 4U /* before the clock starts */

static float input[FLOATS];

/* ---- through the socket
 * ------------------------------------------------------------------------ */

static double measure_socket(int fd, uint64_t handle, uint64_t runs, uint64_t in_flight) {
        static struct wire_frame request, reply;
        static uint64_t next_id = 3;
        uint64_t total = FILL_RUNS + runs, start = 0, sent = 0;

        for (uint64_t got = 0; got < total; got++) {
                for (; sent < total && sent < got + in_flight; sent++) {
                        wire_run_make(handle, next_id++, input, sizeof input, &request);
                        wire_write(fd, request.bytes, request.size);
                }
                wire_frame_read(fd, &reply);
                wire_frame_check(&reply);
                if (reply.header.body_bytes != sizeof input)
                        wire_give_up("a reply of %u bytes", reply.header.body_bytes);
                if (got + 1 == FILL_RUNS)
                        start = hr_clock_now_ns();
        }
        return (double) (hr_clock_now_ns() - start) / (double) runs;
}

/* ---- in this process
 * --------------------------------------------------------------------------- */

struct inside {
        struct hr_device *devices[2];
        uint32_t device_count;
        struct hr_fleet *fleet;
        struct hr_pipeline *pipeline;
        uint32_t slots;
        struct {
                struct hr_run run;
                struct hr_run_input input;
                struct hr_run_output output;
                float result[FLOATS];
        } jobs[SLOTS_MAX];
        pthread_mutex_t lock;
        pthread_cond_t changed;
        uint64_t over;
};

static void inside_open(struct inside *inside, const char *backend) {
        bool is_cpu = strcmp(backend, "cpu") == 0;
        const struct hr_backend_config own = {
                .backend = backend, .name = "own", .threads = 1, .spin_us = 50};
        const struct hr_backend_config host = {
                .backend = "cpu", .name = "host", .threads = 1, .deny_ops = "*"};
        struct hr_diag diag = {0};

        wire_must(hr_backend_device_new(&own, &diag, &inside->devices[0]), &diag);
        inside->device_count = 1;
        if (is_cpu)
                return;
        wire_must(hr_backend_device_new(&host, &diag, &inside->devices[1]), &diag);
        inside->device_count = 2;
}

static void inside_init(struct inside *inside, const char *backend, struct hr_graph *graph,
                        uint32_t slots) {
        struct hr_plan_request request = {.graph = graph, .options = {.n_copies = slots}};
        struct hr_pipeline_request bind = {.graph = graph};
        struct hr_diag diag = {0};

        inside_open(inside, backend);
        wire_must(hr_fleet_new(inside->devices, inside->device_count, &diag, &inside->fleet),
                  &diag);
        request.fleet = bind.fleet = inside->fleet;
        wire_must(hr_plan_new(&request, &diag, &bind.plan), &diag);
        wire_must(hr_pipeline_new(&bind, &diag, &inside->pipeline), &diag);
        (void) hr_plan_unref(bind.plan);
        inside->slots = hr_pipeline_copies(inside->pipeline);
        if (inside->slots > SLOTS_MAX)
                wire_give_up("%u slots", inside->slots);
        (void) pthread_mutex_init(&inside->lock, NULL);
        (void) pthread_cond_init(&inside->changed, NULL);
}

static void inside_deinit(struct inside *inside) {
        inside->pipeline = hr_pipeline_free(inside->pipeline);
        inside->fleet = hr_fleet_free(inside->fleet);
        for (uint32_t i = 0; i < inside->device_count; i++)
                inside->devices[i] = hr_device_unref(inside->devices[i]);
        (void) pthread_cond_destroy(&inside->changed);
        (void) pthread_mutex_destroy(&inside->lock);
}

/* Thread: the device's. */
static void run_over(struct hr_run *run, void *arg) {
        struct inside *inside = arg;

        (void) run;
        (void) pthread_mutex_lock(&inside->lock);
        inside->over++;
        (void) pthread_cond_signal(&inside->changed);
        (void) pthread_mutex_unlock(&inside->lock);
}

static void inside_start(struct inside *inside, uint64_t sequence, uint32_t output) {
        uint32_t slot = (uint32_t) (sequence % inside->slots);
        struct hr_diag diag = {0};

        inside->jobs[slot].input = (struct hr_run_input){.data = input, .bytes = sizeof input};
        inside->jobs[slot].output = (struct hr_run_output){.tensor = output,
                                                           .data = inside->jobs[slot].result,
                                                           .bytes = sizeof input};
        inside->jobs[slot].run = (struct hr_run){.inputs = &inside->jobs[slot].input,
                                                 .outputs = &inside->jobs[slot].output,
                                                 .output_count = 1,
                                                 .done = run_over,
                                                 .arg = inside};
        wire_must(hr_run_start(inside->pipeline, &inside->jobs[slot].run, &diag), &diag);
}

static double measure_inside(struct inside *inside, uint64_t runs, uint32_t output) {
        static uint64_t sequence;
        uint64_t first = sequence, total = FILL_RUNS + runs, start = 0, finished = 0;

        inside->over = 0;
        while (finished < total) {
                uint64_t over;

                for (; sequence - first < total && sequence - first < finished + inside->slots;
                     sequence++)
                        inside_start(inside, sequence, output);
                (void) pthread_mutex_lock(&inside->lock);
                while (inside->over == finished)
                        (void) pthread_cond_wait(&inside->changed, &inside->lock);
                over = inside->over;
                (void) pthread_mutex_unlock(&inside->lock);
                for (; finished < over; finished++) {
                        hr_run_finish(&inside->jobs[(first + finished) % inside->slots].run);
                        if (finished + 1 == FILL_RUNS)
                                start = hr_clock_now_ns();
                }
        }
        return (double) (hr_clock_now_ns() - start) / (double) runs;
}

int main(int argc, char **argv) {
        static struct inside inside;
        union wire_address address;
        struct hr_graph *graph;
        uint64_t runs, handle, in_flight;
        uint32_t layers, slots;
        int repetitions, fd;

        if (argc != 7 && argc != 8)
                wire_give_up("usage: ADDRESS RUNS REPETITIONS LAYERS SLOTS IN_FLIGHT [BACKEND]");
        runs = strtoull(argv[2], NULL, 10);
        repetitions = atoi(argv[3]);
        layers = (uint32_t) strtoul(argv[4], NULL, 10);
        slots = (uint32_t) strtoul(argv[5], NULL, 10);
        in_flight = strtoull(argv[6], NULL, 10);
        if (runs < 1 || layers < 1 || in_flight < 1 || slots > SLOTS_MAX)
                wire_give_up("nothing to measure");
        for (uint32_t i = 0; i < FLOATS; i++)
                input[i] = (float) (i % 17) - 8.0F;
        graph = wire_graph_chain(layers);
        fd = wire_connect(&address, wire_address_parse(argv[1], &address));
        wire_hello(fd, NULL);
        handle = wire_submit(fd, graph, slots);
        inside_init(&inside, argc == 8 ? argv[7] : "cpu", graph, slots);
        for (int i = 0; i < repetitions; i++) {
                double through = measure_socket(fd, handle, runs, in_flight);

                printf("{\"socket\": %.1f, \"inside\": %.1f}\n", through,
                       measure_inside(&inside, runs, 2 * layers));
                fflush(stdout);
        }
        inside_deinit(&inside);
        (void) hr_graph_unref(graph);
        (void) close(fd);
        return 0;
}
