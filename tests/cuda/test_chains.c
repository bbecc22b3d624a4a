/* Chains of element-wise nodes and norms: one launch gives the bits that the nodes give one by
 * one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backends/cuda/backend.h"
#include "core/clock.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

enum { WIDTH = 71, ROWS = 9, NODES = 5, TIMEOUT_S = 20 };
enum { ELEMENTS = WIDTH * ROWS, BYTES = ELEMENTS * 4, PLACES = 2 * NODES + 2 };

/* A node: what it does, the type of its result, and, of two sources, what the other one is. */
struct link {
        uint32_t op, type;
        int32_t function;
        float p[2];
        bool other_first;
        int64_t other_ne[2]; /* 0 = of one source */
        uint32_t other_type;
};

struct bench {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_buffer *memory; /* PLACES tensors of BYTES */
        struct hr_operand sources[NODES][2];
        int32_t params[NODES][HR_OP_PARAM_WORDS];
        struct hr_step steps[NODES];
        struct hr_diag diag;
};

static struct hr_operand operand(const struct bench *bench, uint32_t place, uint32_t type,
                                 int64_t n0, int64_t n1) {
        uint64_t bytes = type == HR_TYPE_F32 ? 4 : 2;

        return (struct hr_operand) { .type = type,
                                     .id = place,
                                     .ne = { n0, n1, 1, 1 },
                                     .nb = { bytes, (uint64_t) n0 * bytes,
                                             (uint64_t) (n0 * n1) * bytes,
                                             (uint64_t) (n0 * n1) * bytes },
                                     .data = (uint8_t *) bench->memory->base + place * BYTES,
                                     .room = BYTES };
}

static void bench_open(struct bench *bench) {
        struct hr_cuda_config config = { .name = "bench", .gpu = 0 };
        struct hr_diag *diag = &bench->diag;

        *bench = (struct bench) { 0 };
        fake_begin(1);
        HR_EXPECT_OK(hr_cuda_device_new(&config, diag, &bench->device), diag);
        HR_EXPECT_OK(hr_queue_new(bench->device, diag, &bench->queue), diag);
        HR_EXPECT_OK(hr_event_new(bench->device, diag, &bench->event), diag);
        HR_EXPECT_OK(hr_buffer_new(bench->device, PLACES * BYTES, HR_USAGE_COMPUTE, diag,
                                   &bench->memory),
                     diag);
}

static void bench_close(struct bench *bench) {
        bench->queue = hr_queue_free(bench->queue);
        bench->event = hr_event_free(bench->event);
        bench->memory = hr_buffer_unref(bench->memory);
        bench->device = hr_device_unref(bench->device);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

/* Place 0: the input. Node i's result is place 1 + i, its other source NODES + 1 + i. As one pass,
 * nothing between has memory, and `over` puts the result where the input is. */
static void steps_fill(struct bench *bench, const struct link *links, uint32_t count, bool joined,
                       bool over) {
        struct hr_operand value = operand(bench, 0, HR_TYPE_F32, WIDTH, ROWS);

        for (uint32_t i = 0; i < count; i++) {
                const struct link *link = &links[i];
                struct hr_operand *sources = bench->sources[i];
                bool is_last = i + 1 == count, has_other = link->other_ne[0] > 0;

                memset(bench->params[i], 0, sizeof bench->params[i]);
                if (link->op == HR_OP_UNARY)
                        bench->params[i][0] = link->function;
                else
                        memcpy(bench->params[i], link->p, sizeof link->p);
                sources[link->other_first] = value;
                if (has_other)
                        sources[!link->other_first] = operand(bench, NODES + 1 + i,
                                                              link->other_type, link->other_ne[0],
                                                              link->other_ne[1]);
                value = operand(bench, 1 + i, link->type, WIDTH, ROWS);
                if (joined && !is_last)
                        value.data = NULL;
                if (is_last && over)
                        value.data = bench->memory->base;
                bench->steps[i] = (struct hr_step) { .op = link->op,
                                                     .node = i,
                                                     .params = bench->params[i],
                                                     .result = value,
                                                     .source_count = has_other ? 2 : 1,
                                                     .sources = sources,
                                                     .joined = joined ? count - 1 - i : 0 };
        }
}

#define F32 HR_TYPE_F32
#define F16 HR_TYPE_F16
#define BF16 HR_TYPE_BF16

static void compute(struct bench *bench, uint32_t count, uint8_t *result) {
        struct hr_steps list = { .count = count, .steps = bench->steps };
        struct hr_program *program = NULL;
        struct hr_outcome outcome = { 0 };
        struct hr_diag *diag = &bench->diag;
        float *values = malloc(PLACES * BYTES);

        HR_EXPECT(values);
        for (int i = 0; i < PLACES * ELEMENTS; i++)
                values[i] = 0.25f + (float) (i * 37 % 101) / 64;
        for (uint32_t i = 0; i < count; i++) {
                uint16_t *halves = (uint16_t *) (void *) (values + (NODES + 1 + i) * ELEMENTS);
                const struct hr_step *step = &bench->steps[i];

                /* Numbers from 0.25 to 2. */
                for (int j = 0; j < ELEMENTS && step->source_count == 2 &&
                                step->sources[1].type == F16;
                     j++)
                        halves[j] = (uint16_t) (0x3400 + j * 11 % 0xc00);
        }
        HR_EXPECT_OK(hr_program_new(bench->device, &list, diag, &program), diag);
        HR_EXPECT_OK(hr_queue_write(bench->queue, bench->memory->base, values, PLACES * BYTES,
                                    &outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_compute(bench->queue, program, 0, count, &outcome, diag), diag);
        HR_EXPECT_OK(hr_queue_read(bench->queue, bench->steps[count - 1].result.data, result, BYTES,
                                   &outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_record(bench->queue, bench->event, diag), diag);
        HR_EXPECT_OK(hr_event_synchronize(bench->event, TIMEOUT_S * HR_NS_PER_S, diag), diag);
        HR_EXPECT(!hr_outcome_failed(&outcome));
        program = hr_program_free(program);
        free(values);
}

static const struct {
        uint32_t count;
        struct link links[NODES];
} chains[] = {
        {2, {{HR_OP_RMS_NORM, F32, .p = {1e-5f}}, {HR_OP_MUL, F32, .other_ne = {WIDTH, 1}}}},
        {3,
         {{HR_OP_NORM, F32, .p = {1e-5f}},
          {HR_OP_MUL, F32, .other_ne = {WIDTH, 1}},
          {HR_OP_ADD, F32, .other_ne = {WIDTH, 1}}}},
        {2, {{HR_OP_L2_NORM, F32, .p = {1e-6f}}, {HR_OP_SCALE, F32, .p = {3, 0.5f}}}},
        {2, {{HR_OP_UNARY, F32, HR_UNARY_SILU}, {HR_OP_MUL, F32, .other_ne = {WIDTH, ROWS}}}},
        {3,
         {{HR_OP_SUB, F32, .other_first = true, .other_ne = {WIDTH, ROWS}},
          {HR_OP_SQR, F32},
          {HR_OP_DIV, F16, .other_ne = {WIDTH, ROWS}, .other_type = F16}}},
        {4,
         {{HR_OP_ADD, F16, .other_ne = {WIDTH, ROWS}},
          {HR_OP_UNARY, BF16, HR_UNARY_GELU},
          {HR_OP_MUL, F16, .other_ne = {1, ROWS}},
          {HR_OP_CLAMP, F32, .p = {-1, 2}}}},
        {5,
         {{HR_OP_RMS_NORM, F32, .p = {1e-5f}},
          {HR_OP_MUL, F16, .other_ne = {WIDTH, 1}},
          {HR_OP_ADD, F32, .other_ne = {WIDTH, ROWS}},
          {HR_OP_UNARY, F32, HR_UNARY_TANH},
          {HR_OP_LEAKY_RELU, F32, .p = {0.1f}}}},
};

HR_TEST(a_pass_gives_the_bits_of_its_nodes) {
        static uint8_t apart[BYTES], together[BYTES];
        struct bench bench;

        bench_open(&bench);
        for (size_t c = 0; c < HR_ARRAY_LENGTH(chains); c++) {
                uint32_t count = chains[c].count, type = chains[c].links[count - 1].type;
                uint64_t bytes = ELEMENTS * (type == F32 ? 4 : 2);

                steps_fill(&bench, chains[c].links, count, false, false);
                compute(&bench, count, apart);
                for (int over = 0; over < (type == F32 ? 2 : 1); over++) {
                        memset(together, 0, sizeof together);
                        steps_fill(&bench, chains[c].links, count, true, over);
                        compute(&bench, count, together);
                        HR_EXPECT(memcmp(apart, together, bytes) == 0);
                }
        }
        bench_close(&bench);
}

/* One launch: a split of a chain alone is not worth a graph. */
HR_TEST(a_pass_is_one_launch) {
        static uint8_t result[BYTES];
        struct bench bench;

        bench_open(&bench);
        steps_fill(&bench, chains[1].links, 3, true, false);
        fake_fail_name("cuGraphCreate", CUDA_ERROR_INVALID_VALUE);
        for (int i = 0; i < 3; i++)
                compute(&bench, 3, result);
        HR_EXPECT_EQ(atomic_load(&bench.device->graphs.failed), 0);
        HR_EXPECT_EQ(atomic_load(&bench.device->graphs.launched), 3);
        bench_close(&bench);
}

/* What is no chain is refused, not computed wrongly. */
HR_TEST(other_nodes_do_not_join) {
        struct link links[] = { { HR_OP_UNARY, F32, HR_UNARY_SILU },
                                { HR_OP_RMS_NORM, F32, .p = { 1e-5f } } };
        struct hr_steps list = { .count = 2 };
        struct hr_program *program = NULL;
        struct bench bench;

        bench_open(&bench);
        steps_fill(&bench, links, 2, true, false);
        list.steps = bench.steps;
        HR_EXPECT_EQ(hr_program_new(bench.device, &list, &bench.diag, &program), HR_E_UNSUPPORTED);
        HR_EXPECT(!program);
        bench_close(&bench);
}

/* Threads write in no order: elements of a result that share a place would hold any of several
 * values. */
HR_TEST(results_that_share_places_are_refused) {
        static const struct {
                uint64_t row_bytes, plane_bytes;
                hr_status status;
        } forms[] = { { 32, 64, HR_OK },            { 48, 8, HR_E_UNSUPPORTED },
                      { 28, 128, HR_E_UNSUPPORTED }, { 32, 60, HR_E_UNSUPPORTED },
                      { 0, 128, HR_E_UNSUPPORTED },  { 96, 32, HR_OK } };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(forms); i++) {
                struct hr_program *program = NULL;
                struct bench bench;
                struct hr_operand *to;
                struct hr_steps list = { .count = 1 };

                bench_open(&bench);
                bench.sources[0][0] = operand(&bench, 0, HR_TYPE_F32, 8, 4);
                bench.sources[0][0].ne[1] = 2;
                bench.sources[0][0].ne[2] = 3;
                bench.sources[0][0].nb[2] = 64;
                bench.steps[0] = (struct hr_step) { .op = HR_OP_CPY,
                                                    .params = bench.params[0],
                                                    .result = bench.sources[0][0],
                                                    .source_count = 1,
                                                    .sources = bench.sources[0] };
                to = &bench.steps[0].result;
                to->data = (uint8_t *) bench.memory->base + BYTES;
                to->nb[1] = forms[i].row_bytes;
                to->nb[2] = forms[i].plane_bytes;
                list.steps = bench.steps;
                HR_EXPECT_EQ(hr_program_new(bench.device, &list, &bench.diag, &program),
                             forms[i].status);
                program = hr_program_free(program);
                bench_close(&bench);
        }
}

/* Of rows without elements the first is the largest, as for the processor. */
HR_TEST(the_largest_of_nothing_is_the_first) {
        int32_t places[ROWS] = { 0 };
        struct hr_outcome outcome = { 0 };
        struct hr_program *program = NULL;
        struct hr_steps list = { .count = 1 };
        struct bench bench;
        struct hr_diag *diag = &bench.diag;

        bench_open(&bench);
        memset(places, 0x55, sizeof places);
        bench.sources[0][0] = operand(&bench, 0, HR_TYPE_F32, 0, ROWS);
        bench.steps[0] = (struct hr_step) { .op = HR_OP_ARGMAX,
                                            .params = bench.params[0],
                                            .result = operand(&bench, 1, HR_TYPE_F32, ROWS, 1),
                                            .source_count = 1,
                                            .sources = bench.sources[0] };
        bench.steps[0].result.type = HR_TYPE_I32;
        list.steps = bench.steps;
        HR_EXPECT_OK(hr_program_new(bench.device, &list, diag, &program), diag);
        HR_EXPECT_OK(hr_queue_write(bench.queue, bench.steps[0].result.data, places, sizeof places,
                                    &outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_compute(bench.queue, program, 0, 1, &outcome, diag), diag);
        HR_EXPECT_OK(hr_queue_read(bench.queue, bench.steps[0].result.data, places, sizeof places,
                                   &outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_record(bench.queue, bench.event, diag), diag);
        HR_EXPECT_OK(hr_event_synchronize(bench.event, TIMEOUT_S * HR_NS_PER_S, diag), diag);
        for (int i = 0; i < ROWS; i++)
                HR_EXPECT_EQ(places[i], 0);
        program = hr_program_free(program);
        bench_close(&bench);
}
