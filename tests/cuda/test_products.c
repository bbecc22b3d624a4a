/* Large products by the library that the fake stands in for: right results, the kernels' where it
 * has no way, and no call whose failure leaks or goes unsaid. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backends/cuda/backend.h"
#include "backends/cuda/launch.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

/* Each program is computed TURNS times: launched, captured, replayed. */
enum { M = 64, N = 128, K = 256, WAIT_S = 20, TURNS = 3 };

static uint32_t batch_min; /* of devices made from now on; 0 = the default */
static int a_step = K, b_step = K; /* elements from row to row, and from column to column */

struct product {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_buffer *a, *b, *out;
        struct hr_program *program;
        struct hr_operand sources[2];
        struct hr_step step;
        struct hr_steps list;
        int32_t params[HR_OP_PARAM_WORDS];
        struct hr_outcome outcome;
        struct hr_diag diag;
        uint64_t calls_before; /* the product's first */
        float b_values[2 * K * N], result[4 * M * N]; /* more than one product has */
        uint8_t a_bytes[M * K * 4];
};

/* Small numbers that every type holds. */
static float value_of(int i) {
        return (float) (i * 37 % 17 - 8) / 8;
}

static uint16_t half_of(float value) {
        int exponent;
        float fraction = frexpf(fabsf(value), &exponent);

        if (value == 0)
                return 0;
        return (uint16_t) ((value < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                           ((int) (fraction * 2048) & 1023));
}

static void a_put(struct product *product, uint32_t type, int i) {
        float value = value_of(i);
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, &value, sizeof bits);
        half = type == HR_TYPE_F16 ? half_of(value) : (uint16_t) (bits >> 16);
        if (type == HR_TYPE_F32)
                memcpy(product->a_bytes + 4 * (size_t) i, &value, sizeof value);
        else
                memcpy(product->a_bytes + 2 * (size_t) i, &half, sizeof half);
}

/* A row of K weights in blocks of 32 bytes with a scale, whose values are those of value_of(). */
static void blocks_put(struct product *product) {
        for (int i = 0; i < M * K; i++) {
                uint8_t *block = product->a_bytes + 34 * (size_t) (i / 32);

                block[0] = 0x00; /* 1/8 */
                block[1] = 0x30;
                block[2 + i % 32] = (uint8_t) (int8_t) (8 * value_of(i));
        }
}

static uint64_t row_bytes(uint32_t type, int64_t n) {
        const struct hr_type_info *info = hr_type_info(type);

        return (uint64_t) n / info->block_elements * info->block_bytes;
}

static struct hr_operand operand(uint32_t type, int64_t n0, int64_t n1, struct hr_buffer *buffer) {
        uint64_t bytes = row_bytes(type, n0);

        return (struct hr_operand) { .type = type,
                                     .ne = { n0, n1, 1, 1 },
                                     .nb = { hr_type_info(type)->block_bytes, bytes,
                                             (uint64_t) n1 * bytes, (uint64_t) n1 * bytes },
                                     .data = buffer->base,
                                     .room = buffer->bytes };
}

static hr_status product_set_up(struct product *product, uint32_t type) {
        struct hr_cuda_config config = { .name = "gpu", .batch_min = batch_min };
        struct hr_diag *diag = &product->diag;
        uint64_t a_bytes = M * row_bytes(type, K);

        if (type == HR_TYPE_Q8_0)
                blocks_put(product);
        for (int i = 0; i < M * K && type != HR_TYPE_Q8_0; i++)
                a_put(product, type, i);
        for (int i = 0; i < 2 * K * N; i++)
                product->b_values[i] = value_of(3 * i + 1);
        HR_TRY(hr_cuda_device_new(&config, diag, &product->device));
        HR_TRY(hr_queue_new(product->device, diag, &product->queue));
        HR_TRY(hr_event_new(product->device, diag, &product->event));
        HR_TRY(hr_buffer_new(product->device, a_bytes, HR_USAGE_WEIGHTS, diag, &product->a));
        HR_TRY(hr_buffer_new(product->device, sizeof product->b_values, HR_USAGE_COMPUTE, diag,
                             &product->b));
        HR_TRY(hr_buffer_new(product->device, sizeof product->result, HR_USAGE_COMPUTE, diag,
                             &product->out));
        product->sources[0] = operand(type, K, M, product->a);
        product->sources[1] = operand(HR_TYPE_F32, K, N, product->b);
        if (a_step != K)
                product->sources[0].nb[1] = (uint64_t) a_step * product->sources[0].nb[0];
        if (b_step != K)
                product->sources[1].nb[1] = (uint64_t) b_step * product->sources[1].nb[0];
        product->step = (struct hr_step) { .op = HR_OP_MUL_MAT,
                                           .node = 3,
                                           .params = product->params,
                                           .result = operand(HR_TYPE_F32, M, N, product->out),
                                           .source_count = 2,
                                           .sources = product->sources };
        product->list = (struct hr_steps) { .count = 1, .steps = &product->step };
        product->calls_before = fake_calls();
        HR_TRY(hr_program_new(product->device, &product->list, diag, &product->program));
        HR_TRY(hr_queue_write(product->queue, product->a->base, product->a_bytes, a_bytes,
                              &product->outcome, diag));
        HR_TRY(hr_queue_write(product->queue, product->b->base, product->b_values,
                              sizeof product->b_values, &product->outcome, diag));
        for (int turn = 0; turn < TURNS; turn++)
                HR_TRY(hr_queue_compute(product->queue, product->program, 0, 1, &product->outcome,
                                        diag));
        HR_TRY(hr_queue_read(product->queue, product->out->base, product->result,
                             sizeof product->result, &product->outcome, diag));
        HR_TRY(hr_queue_record(product->queue, product->event, diag));
        return hr_event_synchronize(product->event, WAIT_S * UINT64_C(1000000000), diag);
}

static void product_tear_down(struct product *product) {
        product->queue = hr_queue_free(product->queue);
        product->program = hr_program_free(product->program);
        product->event = hr_event_free(product->event);
        product->a = hr_buffer_unref(product->a);
        product->b = hr_buffer_unref(product->b);
        product->out = hr_buffer_unref(product->out);
        product->device = hr_device_unref(product->device);
}

static bool product_is_right(const struct product *product) {
        bool good = true;

        for (int n = 0; n < N; n++)
                for (int m = 0; m < M; m++) {
                        double sum = 0;

                        for (int k = 0; k < K; k++)
                                sum += (double) value_of(m * a_step + k) *
                                       (double) product->b_values[n * b_step + k];
                        good &= fabs(sum - (double) product->result[n * M + m]) < 1e-3;
                }
        return good;
}

/* What became of it; `*ret_right` where nothing failed. */
static hr_status product_make(uint32_t type, bool *ret_right, uint64_t *ret_scratch,
                              uint64_t *ret_first) {
        struct product *product = calloc(1, sizeof *product);
        hr_status status;

        HR_EXPECT(product);
        status = product_set_up(product, type);
        if (status == HR_OK && hr_outcome_failed(&product->outcome))
                status = hr_outcome_diag(&product->outcome)->status;
        *ret_right = status == HR_OK && product_is_right(product);
        *ret_first = product->calls_before;
        *ret_scratch = product->program ? product->program->scratch_bytes : 0;
        product_tear_down(product);
        free(product);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
        return status;
}

HR_TEST(every_type_is_multiplied_by_the_library) {
        const uint32_t types[] = { HR_TYPE_F16, HR_TYPE_BF16, HR_TYPE_F32 };
        uint64_t scratch = 0, first;
        bool is_right = false;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(types); i++) {
                fake_begin(0);
                HR_EXPECT_EQ(product_make(types[i], &is_right, &scratch, &first), HR_OK);
                HR_EXPECT(is_right);
                HR_EXPECT(scratch >= UINT64_C(32) << 20);
                /* Of f32 it is one launch, which a graph would not make cheaper. Else the second
                 * turn's is caught, the third needs none. */
                HR_EXPECT_EQ(fake_products(), types[i] == HR_TYPE_F32 ? TURNS : 2);
        }
}

/* Views may have rows that overlap, or one row for all, which the library takes no matrix for;
 * columns that are rounded into scratch come to lie apart. */
HR_TEST(rows_that_overlap_are_the_kernels) {
        static const struct {
                uint32_t type;
                int a_step, b_step;
                uint64_t products;
        } cases[] = {
                { HR_TYPE_F16, 8, K, 0 },   { HR_TYPE_BF16, 0, K, 0 }, { HR_TYPE_F32, 8, K, 0 },
                { HR_TYPE_F32, K, 16, 0 },  { HR_TYPE_F32, K, 0, 0 },  { HR_TYPE_F16, K, 8, 2 },
                { HR_TYPE_BF16, K, 0, 2 },
        };
        uint64_t scratch = 0, first;
        bool is_right = false;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                a_step = cases[i].a_step;
                b_step = cases[i].b_step;
                fake_begin(0);
                HR_EXPECT_EQ(product_make(cases[i].type, &is_right, &scratch, &first), HR_OK);
                HR_EXPECT(is_right);
                HR_EXPECT_EQ(fake_products(), cases[i].products);
        }
        a_step = b_step = K;
}

/* From batch_min columns on; fewer are multiplied as bytes by a kernel. */
HR_TEST(blocks_are_expanded_for_many_columns) {
        static const uint32_t columns[] = { 0, 1, N, N + 1 };
        uint64_t scratch = 0, first;
        bool is_right = false;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(columns); i++) {
                bool expands = columns[i] <= N;

                batch_min = columns[i];
                fake_begin(0);
                HR_EXPECT_EQ(product_make(HR_TYPE_Q8_0, &is_right, &scratch, &first), HR_OK);
                HR_EXPECT_EQ(fake_products(), expands ? 2 : 0);
                HR_EXPECT(expands ? is_right && scratch >= UINT64_C(32) << 20
                                  : scratch < UINT64_C(1) << 20);
        }
        batch_min = 1;
        fake_begin(0);
        fake_without_ways();
        HR_EXPECT_EQ(product_make(HR_TYPE_Q8_0, &is_right, &scratch, &first), HR_OK);
        HR_EXPECT_EQ(fake_products(), 0);
        batch_min = 0;
}

/* Four products of the weights of `product`, `columns` each: the third with other columns. */
static struct hr_program *four_products(struct product *product, int64_t columns,
                                        struct hr_operand (*sources)[2], struct hr_step *steps,
                                        struct hr_steps *list) {
        struct hr_program *program = NULL;

        for (int i = 0; i < 4; i++) {
                sources[i][0] = product->sources[0];
                sources[i][1] = operand(HR_TYPE_F32, K, columns, product->b);
                steps[i] = product->step;
                steps[i].sources = sources[i];
                steps[i].result = operand(HR_TYPE_F32, M, columns, product->out);
                steps[i].result.data = (float *) product->out->base + i * M * columns;
        }
        sources[2][1].data = (float *) product->b->base + K * columns;
        *list = (struct hr_steps) { .count = 4, .steps = steps };
        HR_EXPECT_OK(hr_program_new(product->device, list, &product->diag, &program),
                     &product->diag);
        return program;
}

static void four_are_right(struct product *product, struct hr_program *program, size_t columns) {
        const float *r = product->result;
        struct hr_diag *diag = &product->diag;

        HR_EXPECT_OK(hr_queue_compute(product->queue, program, 0, 4, &product->outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_read(product->queue, product->out->base, product->result,
                                   sizeof product->result, &product->outcome, diag),
                     diag);
        HR_EXPECT_OK(hr_queue_record(product->queue, product->event, diag), diag);
        HR_EXPECT_OK(hr_event_synchronize(product->event, WAIT_S * UINT64_C(1000000000), diag),
                     diag);
        HR_EXPECT(!hr_outcome_failed(&product->outcome));
        HR_EXPECT(memcmp(r, r + M * columns, M * columns * sizeof *r) == 0);
        HR_EXPECT(memcmp(r, r + 2 * M * columns, M * columns * sizeof *r) != 0);
        HR_EXPECT(memcmp(r, r + 3 * M * columns, M * columns * sizeof *r) == 0);
}

/* What the second product would make of its columns is there; the third's are others, and the
 * fourth's have gone. */
HR_TEST(neighbours_share_what_is_made_of_their_columns) {
        static const struct {
                uint32_t type, batch_min;
                int64_t columns, launches;
        } forms[] = { { HR_TYPE_Q8_0, 0, 2, 3 + 4 },     /* rounded to bytes for few columns */
                      { HR_TYPE_Q8_0, 0, N / 4, 3 + 4 }, /* and for many */
                      { HR_TYPE_Q8_0, 1, N, 3 + 2 * 4 }, /* to bf16; weights are expanded, too */
                      { HR_TYPE_F16, 0, N, 3 + 4 } };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(forms); i++) {
                struct product *product = calloc(1, sizeof *product);
                struct hr_operand sources[4][2];
                struct hr_program *program;
                struct hr_step steps[4];
                struct hr_steps list;

                HR_EXPECT(product);
                batch_min = forms[i].batch_min;
                fake_begin(0);
                HR_EXPECT_OK(product_set_up(product, forms[i].type), &product->diag);
                program = four_products(product, forms[i].columns, sources, steps, &list);
                HR_EXPECT_EQ(cuda_program_cast(program)->launch_count, forms[i].launches);
                four_are_right(product, program, (size_t) forms[i].columns);
                program = hr_program_free(program);
                product_tear_down(product);
                free(product);
                HR_EXPECT_EQ(fake_leaks(), 0);
                HR_EXPECT_EQ(fake_violations(), 0);
        }
        batch_min = 0;
}

/* More rows than are expanded at a time: several products, side by side in one result. */
HR_TEST(blocks_are_expanded_part_by_part) {
        enum { LONG = 8192, TALL = 2300, WIDE = 32 }; /* 2048 rows of that length at a time */
        struct hr_cuda_config config = { .name = "gpu", .batch_min = 1 };
        static const uint32_t rows[] = { 0, 2047, 2048, TALL - 1 };
        struct hr_device *device = NULL;
        struct hr_buffer *buffers[3] = { NULL };
        struct hr_program *program = NULL;
        struct hr_queue *queue = NULL;
        struct hr_event *event = NULL;
        struct hr_outcome outcome = { 0 };
        struct hr_operand sources[2];
        struct hr_step step;
        struct hr_steps list = { .count = 1, .steps = &step };
        int32_t params[HR_OP_PARAM_WORDS] = { 0 };
        uint64_t sizes[3] = { TALL * row_bytes(HR_TYPE_Q8_0, LONG), LONG * WIDE * 4,
                              TALL * WIDE * 4 };
        uint8_t *a = calloc(1, sizes[0]);
        float *b = calloc(1, sizes[1]), *out = calloc(1, sizes[2]);
        struct hr_diag diag = { 0 };

        HR_EXPECT(a && b && out);
        for (int row = 0; row < TALL; row++) { /* one block that is not zero, elsewhere in each */
                uint8_t *block = a + (uint64_t) row * row_bytes(HR_TYPE_Q8_0, LONG) +
                                 34 * (size_t) (row % (LONG / 32));

                block[1] = 0x3c; /* 1 */
                block[2 + row % 32] = (uint8_t) (row % 100 + 1);
        }
        for (int i = 0; i < LONG * WIDE; i++)
                b[i] = (float) (i % LONG % 3 + i / LONG);
        fake_begin(0);
        HR_EXPECT_OK(hr_cuda_device_new(&config, &diag, &device), &diag);
        HR_EXPECT_OK(hr_queue_new(device, &diag, &queue), &diag);
        HR_EXPECT_OK(hr_event_new(device, &diag, &event), &diag);
        for (int i = 0; i < 3; i++)
                HR_EXPECT_OK(hr_buffer_new(device, sizes[i], HR_USAGE_ANY, &diag, &buffers[i]),
                             &diag);
        sources[0] = operand(HR_TYPE_Q8_0, LONG, TALL, buffers[0]);
        sources[1] = operand(HR_TYPE_F32, LONG, WIDE, buffers[1]);
        step = (struct hr_step) { .op = HR_OP_MUL_MAT,
                                  .params = params,
                                  .result = operand(HR_TYPE_F32, TALL, WIDE, buffers[2]),
                                  .source_count = 2,
                                  .sources = sources };
        HR_EXPECT_OK(hr_program_new(device, &list, &diag, &program), &diag);
        HR_EXPECT(program->scratch_bytes < (UINT64_C(32) + 32 + 2) << 20);
        HR_EXPECT_OK(hr_queue_write(queue, buffers[0]->base, a, sizes[0], &outcome, &diag), &diag);
        HR_EXPECT_OK(hr_queue_write(queue, buffers[1]->base, b, sizes[1], &outcome, &diag), &diag);
        HR_EXPECT_OK(hr_queue_compute(queue, program, 0, 1, &outcome, &diag), &diag);
        HR_EXPECT_OK(hr_queue_read(queue, buffers[2]->base, out, sizes[2], &outcome, &diag), &diag);
        HR_EXPECT_OK(hr_queue_record(queue, event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, WAIT_S * UINT64_C(1000000000), &diag), &diag);
        HR_EXPECT(!hr_outcome_failed(&outcome));
        HR_EXPECT_EQ(fake_products(), 2);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(rows); i++)
                for (int n = 0; n < WIDE; n++) {
                        uint32_t row = rows[i], k = row % (LONG / 32) * 32 + row % 32;

                        HR_EXPECT(out[(uint32_t) n * TALL + row] ==
                                  (float) (row % 100 + 1) * b[(uint32_t) n * LONG + k]);
                }
        program = hr_program_free(program);
        queue = hr_queue_free(queue);
        event = hr_event_free(event);
        for (int i = 0; i < 3; i++)
                buffers[i] = hr_buffer_unref(buffers[i]);
        device = hr_device_unref(device);
        free(a);
        free(b);
        free(out);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

HR_TEST(the_kernels_do_what_the_library_has_no_way_for) {
        uint64_t scratch = 0, first;
        bool is_right = false;

        fake_begin(0);
        fake_without_ways();
        HR_EXPECT_EQ(product_make(HR_TYPE_F16, &is_right, &scratch, &first), HR_OK);
        HR_EXPECT(is_right);
        HR_EXPECT_EQ(fake_products(), 0);
}

static void turn(struct product *product, float factor) {
        struct hr_outcome outcome = { 0 };

        for (int i = 0; i < K * N; i++)
                product->b_values[i] = factor * value_of(3 * i + 1);
        HR_EXPECT_OK(hr_queue_write(product->queue, product->b->base, product->b_values,
                                    sizeof product->b_values, &outcome, &product->diag),
                     &product->diag);
        HR_EXPECT_OK(hr_queue_compute(product->queue, product->program, 0, 1, &outcome,
                                      &product->diag),
                     &product->diag);
        HR_EXPECT_OK(hr_queue_read(product->queue, product->out->base, product->result,
                                   sizeof product->result, &outcome, &product->diag),
                     &product->diag);
        HR_EXPECT_OK(hr_queue_record(product->queue, product->event, &product->diag),
                     &product->diag);
        HR_EXPECT_OK(hr_event_synchronize(product->event, WAIT_S * UINT64_C(1000000000),
                                          &product->diag),
                     &product->diag);
        HR_EXPECT(!hr_outcome_failed(&outcome));
        HR_EXPECT(product_is_right(product));
}

/* What is replayed reads what lies there now; a program of the same form takes the record over. */
HR_TEST(products_are_captured_once_and_replayed) {
        struct product *product = calloc(1, sizeof *product);

        HR_EXPECT(product);
        fake_begin(1);
        HR_EXPECT_OK(product_set_up(product, HR_TYPE_F16), &product->diag);
        for (int i = 1; i < 6; i++)
                turn(product, (float) i);
        HR_EXPECT_EQ(atomic_load(&product->device->graphs.captured), 1);
        HR_EXPECT_EQ(atomic_load(&product->device->graphs.replayed), TURNS - 1 + 5);
        HR_EXPECT_EQ(atomic_load(&product->device->graphs.launched), 1);
        HR_EXPECT(atomic_load(&product->device->graphs.launch_ns) > 0);
        HR_EXPECT(atomic_load(&product->device->graphs.replay_ns) > 0);
        HR_EXPECT_EQ(fake_products(), 2);
        product->program = hr_program_free(product->program);
        HR_EXPECT_OK(hr_program_new(product->device, &product->list, &product->diag,
                                    &product->program),
                     &product->diag);
        for (int i = 1; i < 4; i++)
                turn(product, (float) -i);
        HR_EXPECT_EQ(atomic_load(&product->device->graphs.captured), 1);
        HR_EXPECT_EQ(atomic_load(&product->device->graphs.updated), 1);
        HR_EXPECT_EQ(fake_products(), 4);
        product_tear_down(product);
        free(product);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

/* The driver does not capture: the split is launched step by step, as often as it takes. */
HR_TEST(what_cannot_be_captured_is_launched) {
        static const char *const names[] = { "cuStreamBeginCapture", "cuStreamEndCapture",
                                             "cuGraphAddChildGraphNode" };

        for (size_t n = 0; n < HR_ARRAY_LENGTH(names); n++) {
                struct product *product = calloc(1, sizeof *product);

                HR_EXPECT(product);
                fake_begin(1);
                fake_fail_name(names[n], CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
                HR_EXPECT_OK(product_set_up(product, HR_TYPE_BF16), &product->diag);
                for (int i = 1; i < 12; i++)
                        turn(product, (float) (1 << i % 4));
                HR_EXPECT_EQ(atomic_load(&product->device->graphs.replayed), 0);
                HR_EXPECT(atomic_load(&product->device->graphs.failed) >= 2);
                fake_fail_name(NULL, CUDA_SUCCESS);
                for (int i = 1; i < 40; i++)
                        turn(product, (float) (1 << i % 4));
                HR_EXPECT(atomic_load(&product->device->graphs.replayed) > 5);
                product_tear_down(product);
                free(product);
                HR_EXPECT_EQ(fake_leaks(), 0);
                HR_EXPECT_EQ(fake_violations(), 0);
        }
}

/* A call that fails is told, or made up for: all from the one that prepares the product on. (Those
 * before it are the other tests'.) */
static void fail_every_call(CUresult result) {
        uint64_t scratch = 0, first = 0, call, ignored;
        bool is_right = false;

        fake_begin(0);
        HR_EXPECT_EQ(product_make(HR_TYPE_BF16, &is_right, &scratch, &first), HR_OK);
        call = first;
        do {
                fake_begin(0);
                fake_fail_call(call, result);
                if (product_make(HR_TYPE_BF16, &is_right, &scratch, &ignored) == HR_OK)
                        HR_EXPECT(is_right);
        } while (fake_calls() > call++);
        HR_EXPECT(call > first + 30);
}

HR_TEST_LIMIT(every_call_of_a_product_fails_without_memory, 120) {
        fail_every_call(CUDA_ERROR_OUT_OF_MEMORY);
}

HR_TEST_LIMIT(every_call_of_a_product_fails_as_unsupported, 120) {
        fail_every_call(CUDA_ERROR_NOT_SUPPORTED);
}

HR_TEST_LIMIT(every_call_of_a_product_ends_its_context, 120) {
        fail_every_call(CUDA_ERROR_ILLEGAL_ADDRESS);
}
