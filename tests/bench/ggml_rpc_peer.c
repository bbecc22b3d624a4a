/*
 * A run of one node through ggml's RPC: the peer of `./bench rpc`.
 *
 *   ggml_rpc_peer serve HOST:PORT                 a server with one CPU device of one thread
 *   ggml_rpc_peer run HOST:PORT RUNS              one line of JSON, times in nanoseconds
 *
 * A run is what bench_rpc measures: four floats go to the server, y = x + x is computed, four
 * floats come back and are checked. The graph has been sent before, as it has there: the server
 * computes again what it has kept. Compiled by ./bench against a ggml that it builds or that the
 * user names.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml-rpc.h>
#include <ggml.h>

enum { FLOATS = 4, WARM_UP = 200 };

static uint64_t now_ns(void) {
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t) now.tv_sec * 1000000000U + (uint64_t) now.tv_nsec;
}

static int by_value(const void *left, const void *right) {
        uint64_t a = *(const uint64_t *) left, b = *(const uint64_t *) right;

        return (a > b) - (a < b);
}

static int serve(const char *endpoint) {
        ggml_backend_dev_t device = ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);

        ggml_backend_rpc_start_server(endpoint, NULL, 1, 1, &device);
        return 1; /* it returns when it could not start */
}

struct peer {
        ggml_backend_t backend;
        struct ggml_tensor *x, *y;
        struct ggml_cgraph *graph;
};

static void run_once(const struct peer *peer) {
        const float input[FLOATS] = {1.0F, -2.0F, 0.5F, 1024.0F};
        float output[FLOATS] = {0};

        ggml_backend_tensor_set(peer->x, input, 0, sizeof input);
        if (ggml_backend_graph_compute(peer->backend, peer->graph) != GGML_STATUS_SUCCESS)
                exit(1);
        ggml_backend_tensor_get(peer->y, output, 0, sizeof output);
        for (int i = 0; i < FLOATS; i++) {
                if (output[i] != input[i] + input[i]) {
                        fprintf(stderr, "a wrong result: %g\n", (double) output[i]);
                        exit(1);
                }
        }
}

static int run(const char *endpoint, size_t count) {
        struct ggml_context *context = ggml_init((struct ggml_init_params){
                .mem_size = ggml_tensor_overhead() * 8 + ggml_graph_overhead(), .no_alloc = true});
        uint64_t *times = calloc(count, sizeof *times);
        struct peer peer = {.backend = ggml_backend_rpc_init(endpoint, 0)};

        if (!context || !times || !peer.backend || count < WARM_UP)
                return 1;
        peer.x = ggml_new_tensor_1d(context, GGML_TYPE_F32, FLOATS);
        peer.y = ggml_add(context, peer.x, peer.x);
        peer.graph = ggml_new_graph(context);
        ggml_build_forward_expand(peer.graph, peer.y);
        if (!ggml_backend_alloc_ctx_tensors(context, peer.backend))
                return 1;
        for (size_t i = 0; i < WARM_UP; i++)
                run_once(&peer);
        for (size_t i = 0; i < count; i++) {
                uint64_t start = now_ns();

                run_once(&peer);
                times[i] = now_ns() - start;
        }
        qsort(times, count, sizeof *times, by_value);
        printf("{\"run_p50\": %llu, \"run_p99\": %llu}\n",
               (unsigned long long) times[(count - 1) / 2],
               (unsigned long long) times[(count - 1) * 99 / 100]);
        free(times);
        return 0;
}

int main(int argc, char **argv) {
        if (argc == 3 && strcmp(argv[1], "serve") == 0)
                return serve(argv[2]);
        if (argc == 4 && strcmp(argv[1], "run") == 0)
                return run(argv[2], strtoul(argv[3], NULL, 10));
        fprintf(stderr, "usage: ggml_rpc_peer serve HOST:PORT | run HOST:PORT RUNS\n");
        return 2;
}
