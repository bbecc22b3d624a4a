/*
 * What planning and dispatching cost, on devices that compute nothing.
 *
 *   bench_plan LAYERS GPUS COPIES          one line of JSON
 *   bench_plan LAYERS GPUS COPIES WHAT     WHAT alone, again and again for a few seconds: to
 * profile bench_plan --print LAYERS GPUS         the graph as text, for a peer
 *
 * All times are processor time of this thread, the median of many repetitions; ns a node, of a
 * handle and of a split as named.
 *
 *   miss      hr_plan_new: homes numbered, devices asked, splits, placement, tape, proof
 *   make      of that hr_plan_make
 *   hit_wire  bytes decoded, validated, hashed, found, compared
 *   handle    handle of a session to its object
 *   dispatch  hr_run_start to done, a split
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "daemon/session.h"
#include "proto/codec.h"
#include "scheduler/plan.h"
#include "tests/bench/decode_graph.h"

enum { REPETITIONS = 41, HANDLES = 64, BURST = 256 };
static const uint64_t BUDGET_NS = UINT64_C(400) * HR_NS_PER_MS;

struct bench {
        struct decode decode;
        struct hr_plan_request request;
        struct hr_plan_facts facts;
        struct hr_plan_cache *cache;
        uint8_t *wire;
        size_t wire_bytes;
        struct hr_pipeline *pipeline;
        struct hr_run run;
        struct hr_run_input inputs[8];
        struct hr_run_output output;
        struct hr_handles handles;
        uint64_t handle[HANDLES];
        struct hr_diag diag;
};

static uint64_t cpu_ns(void) {
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t) now.tv_sec * HR_NS_PER_S + (uint64_t) now.tv_nsec;
}

static void need(struct bench *bench, hr_status status) {
        if (status == HR_OK)
                return;
        fprintf(stderr, "%s: %s\n", hr_status_name(status), bench->diag.words);
        exit(1);
}

static int by_value(const void *a, const void *b) {
        uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

        return x < y ? -1 : x > y;
}

/* Median over repetitions, fewer where one takes long. */
static double median_ns(struct bench *bench, void (*once)(struct bench *bench)) {
        uint64_t times[REPETITIONS], start = cpu_ns();
        uint32_t count = 0;

        while (count < REPETITIONS && (count < 3 || cpu_ns() - start < BUDGET_NS)) {
                uint64_t before = cpu_ns();

                once(bench);
                times[count++] = cpu_ns() - before;
        }
        qsort(times, count, sizeof *times, by_value);
        return (double) times[count / 2];
}

static void once_miss(struct bench *bench) {
        struct hr_plan *plan = NULL;

        need(bench, hr_plan_new(&bench->request, &bench->diag, &plan));
        hr_plan_unref(plan);
}

static void once_make(struct bench *bench) {
        struct hr_plan *plan = NULL;

        need(bench, hr_plan_make(&bench->facts.input, &bench->diag, &plan));
        hr_plan_unref(plan);
}

static void once_hit(struct bench *bench) {
        struct hr_wire_graph_limits wire_limits = {
                .nodes_max = UINT32_MAX, .leaves_max = UINT32_MAX, .bytes_max = UINT64_C(1) << 40};
        struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 40};
        struct hr_wire_span span = {.data = bench->wire, .size = bench->wire_bytes};
        struct hr_plan_request request = bench->request;
        struct hr_graph *graph = NULL;
        struct hr_plan *plan = NULL;
        hr_plan_origin origin;

        need(bench, hr_wire_graph_decode(span, &wire_limits, &bench->diag, &graph));
        need(bench, hr_graph_validate(graph, &limits, &bench->diag));
        request.graph = graph;
        need(bench, hr_plan_cache_get(bench->cache, &request, &bench->diag, &plan, &origin, NULL));
        if (origin != HR_PLAN_HIT)
                abort();
        hr_plan_unref(plan);
        hr_graph_unref(graph);
}

static void burst_of_handles(struct bench *bench) {
        for (uint32_t i = 0; i < BURST; ++i) {
                if (!hr_handles_find(&bench->handles, bench->handle[i % HANDLES]))
                        abort();
        }
}

static void count_done(struct hr_run *run, void *arg) {
        ++*(uint32_t *) arg;
}

static void burst_of_runs(struct bench *bench) {
        uint32_t done = 0;

        bench->run.arg = &done;
        for (uint32_t i = 0; i < BURST; ++i) {
                need(bench, hr_run_start(bench->pipeline, &bench->run, &bench->diag));
                if (done != i + 1 || bench->run.outcome.diag.status != HR_OK)
                        abort();
                hr_run_finish(&bench->run);
        }
        bench->run.arg = NULL;
}

static void prepare_wire(struct bench *bench) {
        struct hr_plan *plan = NULL;

        need(bench,
             hr_wire_graph_encode(bench->decode.graph, NULL, 0, &bench->diag, &bench->wire_bytes));
        bench->wire = malloc(bench->wire_bytes);
        if (!bench->wire)
                abort();
        need(bench, hr_wire_graph_encode(bench->decode.graph, bench->wire, bench->wire_bytes,
                                         &bench->diag, &bench->wire_bytes));
        need(bench, hr_plan_cache_new(UINT64_C(1) << 40, &bench->diag, &bench->cache));
        need(bench,
             hr_plan_cache_get(bench->cache, &bench->request, &bench->diag, &plan, NULL, NULL));
        hr_plan_unref(plan);
}

static void prepare_run(struct bench *bench, struct hr_plan *plan) {
        static char zeros[1 << 20];
        const struct hr_graph *graph = bench->decode.graph;
        struct hr_pipeline_request request = {.plan = plan,
                                              .graph = bench->decode.graph,
                                              .fleet = bench->decode.fleet,
                                              .homes = bench->decode.homes};

        need(bench, hr_pipeline_new(&request, &bench->diag, &bench->pipeline));
        for (uint32_t i = 0; i < graph->input_count; ++i)
                bench->inputs[i] = (struct hr_run_input){
                        .data = zeros, .bytes = hr_tensor_bytes(&graph->tensors[graph->inputs[i]])};
        bench->output = (struct hr_run_output){
                .tensor = graph->outputs[0],
                .data = zeros,
                .bytes = hr_tensor_bytes(&graph->tensors[graph->outputs[0]])};
        bench->run = (struct hr_run){.inputs = bench->inputs,
                                     .outputs = &bench->output,
                                     .output_count = 1,
                                     .done = count_done};
        for (uint32_t i = 0; i < HANDLES; ++i)
                need(bench, hr_handles_add(&bench->handles, (struct hr_object *) &bench->handles,
                                           &bench->diag, &bench->handle[i]));
}

static const struct {
        const char *name;
        void (*once)(struct bench *bench);
} parts[] = {{"miss", once_miss},
             {"make", once_make},
             {"hit_wire", once_hit},
             {"handle", burst_of_handles},
             {"dispatch", burst_of_runs}};

static void repeat(struct bench *bench, const char *what) {
        uint64_t start = cpu_ns();

        for (size_t i = 0; i < HR_ARRAY_LENGTH(parts); ++i) {
                while (strcmp(parts[i].name, what) == 0 && cpu_ns() - start < 3 * HR_NS_PER_S)
                        parts[i].once(bench);
        }
}

static void report(struct bench *bench, uint32_t splits, uint32_t copies) {
        uint32_t nodes = bench->decode.graph->node_count;
        const double per[] = {nodes, nodes, nodes, BURST, (double) splits * BURST};

        printf("{\"gpus\": %u, \"copies\": %u, \"nodes\": %u, \"splits\": %u", bench->decode.gpus,
               copies, nodes, splits);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(parts); ++i)
                printf(", \"%s\": %.1f", parts[i].name, median_ns(bench, parts[i].once) / per[i]);
        printf("}\n");
}

static void measure(uint32_t layers, uint32_t gpus, uint32_t copies, const char *what) {
        struct bench bench = {0};
        struct hr_plan *plan = NULL;

        decode_init(&bench.decode, layers, gpus);
        bench.request = (struct hr_plan_request){.graph = bench.decode.graph,
                                                 .fleet = bench.decode.fleet,
                                                 .homes = bench.decode.homes,
                                                 .options = {.n_copies = copies}};
        need(&bench, hr_plan_facts_init(&bench.facts, &bench.request, &bench.diag));
        need(&bench, hr_plan_new(&bench.request, &bench.diag, &plan));
        prepare_wire(&bench);
        prepare_run(&bench, plan);
        if (what)
                repeat(&bench, what);
        else
                report(&bench, hr_plan_summary(plan).split_count, copies);
        hr_handles_deinit(&bench.handles);
        bench.pipeline = hr_pipeline_free(bench.pipeline);
        bench.cache = hr_plan_cache_free(bench.cache);
        hr_plan_facts_deinit(&bench.facts);
        hr_plan_unref(plan);
        free(bench.wire);
        decode_deinit(&bench.decode);
}

int main(int argc, char **argv) {
        /* As in the daemon. */
        (void) mallopt(M_MMAP_THRESHOLD, 32 << 20);
        (void) mallopt(M_TRIM_THRESHOLD, 64 << 20);
        if (argc == 4 && strcmp(argv[1], "--print") == 0) {
                struct decode decode;

                decode_init(&decode, (uint32_t) atoi(argv[2]), (uint32_t) atoi(argv[3]));
                decode_print(&decode, stdout);
                decode_deinit(&decode);
                return 0;
        }
        if (argc != 4 && argc != 5) {
                fprintf(stderr,
                        "usage: bench_plan LAYERS GPUS COPIES [WHAT] | --print LAYERS GPUS\n");
                return 2;
        }
        measure((uint32_t) atoi(argv[1]), (uint32_t) atoi(argv[2]), (uint32_t) atoi(argv[3]),
                argc == 5 ? argv[4] : NULL);
        return 0;
}
