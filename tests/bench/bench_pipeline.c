/*
 * Pipelining on two CPU devices of one thread each, with memory of their own.
 *
 *   bench_pipeline [repetitions=7] [rounds=4] [stage_ms=5.5] [fifo]
 *
 * The graph has two equal stages of small matrix products, whose weights and activations stay in
 * the caches. Every repetition measures every arrangement, a few runs each, so that what else the
 * machine does hits all of them alike; one line of JSON per repetition gives the milliseconds a run
 * takes:
 *
 *   one_1, one_2         one device computes both stages, with 1 and 2 slots
 *   two_1 .. two_4       a device for each stage, with 1 .. 4 slots, fed as fast as slots allow
 *   apart                two devices compute both stages each, of graphs that know nothing of each
 *                        other: what the machine can give, per run of either
 *   decode_1 .. decode_4 a device for each stage; the client waits for a run before the next
 *   state_1 .. state_4   a device for each stage, fed as fast as slots allow, but the first stage
 *                        reads a state that the second one of the run before has written
 *   decode_again, state_again
 *                        as decode_1 and state_1, bound once more: how far apart the same thing
 *                        measures
 *
 * The time of a run is the distance of ends, in rounds of four runs, in which every slot has as
 * many as the others: the median of the rounds that follow those runs that fill the pipeline. Each
 * repetition begins with another arrangement.
 *
 * With `fifo` the devices' threads have real-time priority and this one a higher one, so that the
 * figures hold on a machine that others use as well.
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/backend.h"
#include "core/clock.h"
#include "core/host.h"
#include "scheduler/scheduler.h"

#define K 192 /* of the weights: 144 KiB */
#define COLUMNS 24
#define SLOTS_MAX 4
#define FILL_RUNS 5U /* before the clock starts */
#define ROUND_RUNS 4U
#define ROUNDS_MAX 64U

struct bench {
        struct hr_device *devices[2];
        struct hr_fleet *fleet;
        struct hr_buffer *weights[2], *state; /* of each device; the state is the second one's */
        float *input;
};

struct job {
        struct hr_run run;
        struct hr_run_input input;
        struct hr_run_output output;
        float result[K * COLUMNS];
        bool over;
};

struct line {
        struct hr_pipeline *pipeline;
        struct hr_graph *graph;
        uint32_t slots, in_flight_most;
        struct hr_state_use state_use;
        struct job jobs[SLOTS_MAX];
        uint64_t started, finished;
        uint64_t end_ns[ROUNDS_MAX + 1]; /* of the last run that fills, and of each round */
};

static pthread_mutex_t over_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t over_cond = PTHREAD_COND_INITIALIZER;

static void must(hr_status status, const struct hr_diag *diag) {
        if (status == HR_OK)
                return;
        fprintf(stderr, "%s: %s\n", hr_status_name(status), diag->words);
        exit(1);
}

static void *must_have(void *memory) {
        if (!memory) {
                fprintf(stderr, "no memory\n");
                exit(1);
        }
        return memory;
}

/* ---- The graph --------------------------------------------------------------------------------
 */

enum { LEAF_X, LEAF_WEIGHT_0, LEAF_WEIGHT_1, LEAF_STATE, LEAF_COUNT };

static void tensor_set(struct hr_graph *graph, uint32_t id, uint32_t op, int64_t columns) {
        struct hr_tensor *tensor = &graph->tensors[id];
        struct hr_diag diag = {0};

        tensor->type = HR_TYPE_F32;
        tensor->op = op;
        tensor->view_base = HR_TENSOR_NONE;
        tensor->ne[0] = K;
        tensor->ne[1] = columns;
        tensor->ne[2] = tensor->ne[3] = 1;
        must(hr_tensor_set_contiguous(tensor, &diag), &diag);
}

static uint32_t node_add(struct hr_graph *graph, uint32_t *used, uint32_t node, uint32_t op,
                         uint32_t a, uint32_t b) {
        uint32_t id = LEAF_COUNT + node;

        tensor_set(graph, id, op, COLUMNS);
        graph->tensors[id].source_first = *used;
        graph->tensors[id].source_count = b == HR_TENSOR_NONE ? 1 : 2;
        graph->sources[(*used)++] = a;
        if (b != HR_TENSOR_NONE)
                graph->sources[(*used)++] = b;
        return id;
}

/* x + state, then `layers` products and norms, the second half on the second device, then the state
 * takes the result. Node pins by halves in `pins`. */
static struct hr_graph *graph_new(uint32_t layers, bool with_state, int32_t *pins,
                                  uint32_t *ret_output) {
        uint32_t nodes = 1 + 2 * layers + (with_state ? 1 : 0), used = 0, at, node = 0;
        const struct hr_graph_sizes sizes = {.leaf_count = LEAF_COUNT,
                                             .node_count = nodes,
                                             .source_count = 2 + 3 * layers + 2 * with_state,
                                             .name_bytes = LEAF_COUNT};
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 30};
        const float epsilon = 1e-6F;
        struct hr_diag diag = {0};
        struct hr_graph *graph;

        must(hr_graph_new(&sizes, &diag, &graph), &diag);
        memcpy(graph->names, "xabs", LEAF_COUNT);
        for (uint32_t i = 0; i <= hr_graph_tensor_count(graph); i++)
                graph->name_offsets[i] = HR_MIN(i, LEAF_COUNT);
        tensor_set(graph, LEAF_X, HR_OP_NONE, COLUMNS);
        tensor_set(graph, LEAF_WEIGHT_0, HR_OP_NONE, K);
        tensor_set(graph, LEAF_WEIGHT_1, HR_OP_NONE, K);
        tensor_set(graph, LEAF_STATE, HR_OP_NONE, COLUMNS);
        graph->tensors[LEAF_X].leaf_kind = HR_LEAF_INPUT;
        graph->tensors[LEAF_X].flags = HR_TENSOR_INPUT;
        graph->tensors[LEAF_WEIGHT_0].leaf_kind = HR_LEAF_WEIGHT;
        graph->tensors[LEAF_WEIGHT_1].leaf_kind = HR_LEAF_WEIGHT;
        graph->tensors[LEAF_STATE].leaf_kind = HR_LEAF_STATE;
        at = node_add(graph, &used, node++, HR_OP_ADD, LEAF_X, with_state ? LEAF_STATE : LEAF_X);
        for (uint32_t i = 0; i < layers; i++) {
                uint32_t weight = i < layers / 2 ? LEAF_WEIGHT_0 : LEAF_WEIGHT_1;

                at = node_add(graph, &used, node++, HR_OP_MUL_MAT, weight, at);
                at = node_add(graph, &used, node++, HR_OP_RMS_NORM, at, HR_TENSOR_NONE);
                memcpy(&graph->tensors[at].params[0], &epsilon, sizeof epsilon);
        }
        graph->tensors[at].flags |= HR_TENSOR_OUTPUT;
        *ret_output = at;
        if (with_state) {
                at = node_add(graph, &used, node++, HR_OP_CPY, at, LEAF_STATE);
                graph->tensors[at].view_base = LEAF_STATE;
        }
        for (uint32_t i = 0; i < LEAF_COUNT; i++)
                pins[i] = HR_NO_PIN;
        for (uint32_t i = 0; i < nodes; i++)
                pins[LEAF_COUNT + i] = i < 1 + 2 * (layers / 2) ? 0 : 1;
        must(hr_graph_validate(graph, &limits, &diag), &diag);
        return graph;
}

/* ---- Devices ----------------------------------------------------------------------------------
 */

static void bench_init(struct bench *bench) {
        static const char *const names[2] = {"first", "second"};
        struct hr_diag diag = {0};
        uint32_t seed = 1;

        for (uint32_t d = 0; d < 2; d++) {
                const struct hr_cpu_config config = {
                        .name = names[d], .threads = 1, .isolated = true, .spin_us = 50};
                float *values;

                must(hr_cpu_device_new(&config, &diag, &bench->devices[d]), &diag);
                must(hr_buffer_new(bench->devices[d], K * K * sizeof(float), HR_USAGE_WEIGHTS,
                                   &diag, &bench->weights[d]),
                     &diag);
                values = bench->weights[d]->host_base;
                for (uint32_t i = 0; i < K * K; i++) {
                        seed = seed * 1664525U + 1013904223U;
                        values[i] = (float) (int32_t) seed / 2147483648.0F;
                }
        }
        must(hr_buffer_new(bench->devices[1], K * COLUMNS * sizeof(float), HR_USAGE_ANY, &diag,
                           &bench->state),
             &diag);
        must(hr_fleet_new(bench->devices, 2, &diag, &bench->fleet), &diag);
        bench->input = must_have(calloc(K * COLUMNS, sizeof(float)));
        for (uint32_t i = 0; i < K * COLUMNS; i++)
                bench->input[i] = (float) (i % 17) - 8.0F;
}

static void bench_deinit(struct bench *bench) {
        bench->fleet = hr_fleet_free(bench->fleet);
        (void) hr_buffer_unref(bench->state);
        for (uint32_t d = 0; d < 2; d++) {
                (void) hr_buffer_unref(bench->weights[d]);
                (void) hr_device_unref(bench->devices[d]);
        }
        free(bench->input);
}

/* ---- Runs -------------------------------------------------------------------------------------
 */

/* `home`: the device of both stages, or -1 for one each. */
static struct line *line_new(struct bench *bench, uint32_t layers, int32_t home, bool with_state,
                             uint32_t slots) {
        struct line *line = must_have(calloc(1, sizeof *line));
        int32_t *pins = must_have(calloc(LEAF_COUNT + 2 + 2 * layers, sizeof *pins));
        struct hr_state_use *states[1] = {&line->state_use};
        struct hr_leaf_home homes[LEAF_COUNT] = {{0}};
        struct hr_plan_request request = {.fleet = bench->fleet,
                                          .homes = homes,
                                          .pins = pins,
                                          .options = {.n_copies = slots}};
        struct hr_pipeline_request bind = {
                .fleet = bench->fleet, .homes = homes, .states = states, .state_count = 1};
        struct hr_diag diag = {0};
        uint32_t output;

        line->graph = graph_new(layers, with_state, pins, &output);
        homes[LEAF_WEIGHT_0].buffer = bench->weights[home < 0 ? 0 : home];
        homes[LEAF_WEIGHT_1].buffer = bench->weights[home < 0 ? 1 : home];
        homes[LEAF_STATE].buffer = bench->state;
        for (uint32_t i = LEAF_COUNT; home >= 0 && i < hr_graph_tensor_count(line->graph); i++)
                pins[i] = home;
        request.graph = bind.graph = line->graph;
        must(hr_plan_new(&request, &diag, &bind.plan), &diag);
        must(hr_pipeline_new(&bind, &diag, &line->pipeline), &diag);
        (void) hr_plan_unref(bind.plan);
        line->slots = line->in_flight_most = hr_pipeline_copies(line->pipeline);
        if (line->slots != slots)
                must(hr_fail(&diag, HR_E_EXHAUSTED, "%u slots instead of %u", line->slots, slots),
                     &diag);
        for (uint32_t s = 0; s < slots; s++) {
                struct job *job = &line->jobs[s];

                job->input = (struct hr_run_input){.data = bench->input,
                                                   .bytes = K * COLUMNS * sizeof(float)};
                job->output = (struct hr_run_output){
                        .tensor = output, .data = job->result, .bytes = sizeof job->result};
        }
        free(pins);
        return line;
}

static void line_free(struct line *line) {
        (void) hr_pipeline_free(line->pipeline);
        (void) hr_graph_unref(line->graph);
        free(line);
}

static void job_done(struct hr_run *run, void *arg) {
        struct job *job = arg;

        pthread_mutex_lock(&over_lock);
        job->over = true;
        pthread_cond_signal(&over_cond);
        pthread_mutex_unlock(&over_lock);
}

static void line_start(struct line *line) {
        struct job *job = &line->jobs[line->started % line->slots];
        struct hr_diag diag = {0};

        job->over = false;
        job->run.inputs = &job->input;
        job->run.outputs = &job->output;
        job->run.output_count = 1;
        job->run.done = job_done;
        job->run.arg = job;
        must(hr_run_start(line->pipeline, &job->run, &diag), &diag);
        line->started++;
}

/* Takes back the oldest run of the lines that is over; waits for one. */
static void lines_finish(struct line **lines, uint32_t count) {
        struct line *found = NULL;
        struct job *job = NULL;

        pthread_mutex_lock(&over_lock);
        while (!found) {
                for (uint32_t i = 0; i < count && !found; i++) {
                        job = &lines[i]->jobs[lines[i]->finished % lines[i]->slots];
                        if (lines[i]->finished < lines[i]->started && job->over)
                                found = lines[i];
                }
                if (!found)
                        pthread_cond_wait(&over_cond, &over_lock);
        }
        pthread_mutex_unlock(&over_lock);
        must(job->run.outcome.diag.status, &job->run.outcome.diag);
        hr_run_finish(&job->run);
        if (++found->finished >= FILL_RUNS && (found->finished - FILL_RUNS) % ROUND_RUNS == 0)
                found->end_ns[(found->finished - FILL_RUNS) / ROUND_RUNS] = job->run.ended_ns;
}

static int compare_doubles(const void *left, const void *right) {
        double a = *(const double *) left, b = *(const double *) right;

        return (a > b) - (a < b);
}

/* Milliseconds from end to end of a run: the median of the rounds. */
static double line_time(const struct line *line, uint32_t rounds) {
        double times[ROUNDS_MAX];

        for (uint32_t i = 0; i < rounds; i++)
                times[i] = (double) (line->end_ns[i + 1] - line->end_ns[i]) / 1e6 / ROUND_RUNS;
        qsort(times, rounds, sizeof *times, compare_doubles);
        return (times[(rounds - 1) / 2] + times[rounds / 2]) / 2;
}

/* Milliseconds from end to end of a run of any of the lines, when all of them are kept busy. */
static double lines_measure(struct line **lines, uint32_t count, uint32_t rounds) {
        uint64_t total = FILL_RUNS + (uint64_t) rounds * ROUND_RUNS, open = 1;
        double milliseconds = 0;

        for (uint32_t i = 0; i < count; i++)
                lines[i]->started = lines[i]->finished = 0;
        /* Sequences of a pipeline go on from measurement to measurement: slots turn with them. */
        while (open) {
                open = 0;
                for (uint32_t i = 0; i < count; i++) {
                        struct line *line = lines[i];

                        while (line->started < total &&
                               line->started - line->finished < line->in_flight_most)
                                line_start(line);
                        open += line->started - line->finished;
                }
                if (open)
                        lines_finish(lines, count);
        }
        for (uint32_t i = 0; i < count; i++)
                milliseconds += line_time(lines[i], rounds);
        return milliseconds / count / count;
}

/* Threads that are made from now on inherit it. */
static void set_fifo(int above_lowest) {
        const struct sched_param param = {.sched_priority = sched_get_priority_min(SCHED_FIFO) +
                                                            above_lowest};

        if (sched_setscheduler(0, SCHED_FIFO, &param) != 0) {
                fprintf(stderr, "no right to real-time priority\n");
                exit(1);
        }
}

/* So many layers that a stage takes that long. */
static uint32_t layers_for(struct bench *bench, double stage_ms) {
        enum { TRIAL = 40 };
        double best = 1e9;
        struct line *line = line_new(bench, TRIAL, 0, false, 1);

        for (int i = 0; i < 5; i++) {
                double took = lines_measure(&line, 1, 1);

                best = took < best ? took : best;
        }
        line_free(line);
        return 2 * (1 + (uint32_t) (stage_ms / (best / TRIAL)));
}

int main(int argc, char **argv) {
        static struct {
                const char *name;
                int32_t home;
                bool with_state, waits;
                uint32_t slots;
                struct line *line;
        } cases[] = {
                {"one_1", 0, false, false, 1},    {"one_2", 0, false, false, 2},
                {"two_1", -1, false, false, 1},   {"two_2", -1, false, false, 2},
                {"two_3", -1, false, false, 3},   {"two_4", -1, false, false, 4},
                {"decode_1", -1, false, true, 1}, {"decode_2", -1, false, true, 2},
                {"decode_4", -1, false, true, 4}, {"decode_again", -1, false, true, 1},
                {"state_1", -1, true, false, 1},  {"state_2", -1, true, false, 2},
                {"state_4", -1, true, false, 4},  {"state_again", -1, true, false, 1},
        };
        static struct bench bench;
        int repetitions = argc > 1 ? atoi(argv[1]) : 7;
        uint32_t rounds = argc > 2 ? (uint32_t) strtoul(argv[2], NULL, 10) : 4;
        double stage_ms = argc > 3 ? atof(argv[3]) : 5.5;
        bool fifo = argc > 4 && strcmp(argv[4], "fifo") == 0;
        struct line *apart[2];
        uint32_t layers;

        if (repetitions < 1 || rounds < 1 || rounds > ROUNDS_MAX || stage_ms <= 0)
                return 1;
        if (fifo)
                set_fifo(0);
        bench_init(&bench);
        if (fifo)
                set_fifo(1);
        layers = layers_for(&bench, stage_ms);
        for (size_t c = 0; c < HR_ARRAY_LENGTH(cases); c++) {
                cases[c].line = line_new(&bench, layers, cases[c].home, cases[c].with_state,
                                         cases[c].slots);
                if (cases[c].waits)
                        cases[c].line->in_flight_most = 1;
        }
        apart[0] = line_new(&bench, layers, 0, false, 2);
        apart[1] = line_new(&bench, layers, 1, false, 2);
        for (int r = 0; r < repetitions; r++) {
                printf("{\"layers\": %u", layers);
                for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                        size_t c = (i + (size_t) r) % HR_ARRAY_LENGTH(cases);

                        printf(", \"%s\": %.4f", cases[c].name,
                               lines_measure(&cases[c].line, 1, rounds));
                }
                printf(", \"apart\": %.4f}\n", lines_measure(apart, 2, rounds));
                fflush(stdout);
        }
        for (size_t c = 0; c < HR_ARRAY_LENGTH(cases); c++)
                line_free(cases[c].line);
        line_free(apart[0]);
        line_free(apart[1]);
        bench_deinit(&bench);
        return 0;
}
