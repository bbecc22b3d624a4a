/* See fixture.h. CONFORMANCE_BACKEND, _ISOLATED and _THREADS come from the build. */
#include "tests/conformance/fixture.h"

#include <unistd.h>

#ifdef CONFORMANCE_FAKE
#include "backends/fake/backend.h"
#endif
#include "backends/registry.h"
#include "tests/build.h"

struct hr_device *fixture_device_capped(uint64_t memory_cap) {
        struct hr_backend_config config = {
                .backend = CONFORMANCE_BACKEND,
                .name = "under-test",
                .threads = CONFORMANCE_THREADS,
                .isolated = CONFORMANCE_ISOLATED,
                .memory_cap = memory_cap,
                .spin_us = 10,
                .batch_min = 1,
        };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };
        hr_status status = hr_backend_device_new(&config, &diag, &device);

        if (status == HR_E_UNSUPPORTED || status == HR_E_UNAVAILABLE)
                hr_test_skip("%s", diag.words);
        HR_EXPECT_OK(status, &diag);
        return device;
}

struct hr_device *fixture_device(void) {
        return fixture_device_capped(0);
}

void fixture_finish(struct hr_queue *queue) {
        struct hr_event *event = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_event_new(queue->device, &diag, &event), &diag);
        HR_EXPECT_OK(hr_queue_record(queue, event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, FIXTURE_TIMEOUT_NS, &diag), &diag);
        event = hr_event_free(event);
}

#ifdef CONFORMANCE_FAKE
void gate_close(struct gate *gate, struct hr_queue *queue) {
        struct hr_diag diag = { 0 };

        gate->queue = queue;
        HR_EXPECT_OK(hr_fake_gate_close(queue, &diag), &diag);
}

void gate_open(struct gate *gate) {
        hr_fake_gate_open(gate->queue);
}
#else
static void gate_hold(void *arg) {
        struct gate *gate = arg;

        while (!atomic_load(&gate->is_open))
                (void) usleep(100);
}

void gate_close(struct gate *gate, struct hr_queue *queue) {
        struct hr_diag diag = { 0 };

        atomic_store(&gate->is_open, false);
        HR_EXPECT_OK(hr_queue_notify(queue, gate_hold, gate, &diag), &diag);
}

void gate_open(struct gate *gate) {
        atomic_store(&gate->is_open, true);
}
#endif

/* ---- Products -------------------------------------------------------------------------------- */

static float weight_value(int64_t i, uint32_t seed) {
        return (float) ((i * 7 + seed) % 3 - 1);
}

static float column_value(int64_t i, uint32_t seed) {
        return (float) ((i * 5 + seed * 3) % 7 - 3);
}

static struct hr_operand product_operand(const struct product *product, uint32_t id,
                                         struct hr_buffer *buffer) {
        const struct hr_tensor *tensor = &product->graph->tensors[id];
        struct hr_operand operand = { .type = tensor->type, .id = id, .data = buffer->base,
                                      .room = buffer->bytes };

        memcpy(operand.ne, tensor->ne, sizeof operand.ne);
        memcpy(operand.nb, tensor->nb, sizeof operand.nb);
        return operand;
}

static void product_graph(struct product *product) {
        int64_t k = product->k, n = product->n;
        struct hr_build *build = hr_build_new();
        uint32_t weight = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "a", k, k, 1, 1);
        uint32_t last = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "b", k, n, 1, 1);
        struct hr_graph_limits limits = { 0 };
        struct hr_diag diag = { 0 };

        for (uint32_t i = 0; i < product->count; i++) {
                uint32_t sources[2] = { weight, last };

                last = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, k, n, 1, 1, 2, sources);
        }
        product->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(product->graph, &limits, &diag), &diag);
}

void product_init(struct product *product, struct hr_device *device, int64_t k, int64_t n,
                  uint32_t count) {
        uint64_t bytes = (uint64_t) (k * n) * sizeof(float);
        struct hr_diag diag = { 0 };

        *product = (struct product) { .device = device, .k = k, .n = n, .count = count };
        product_graph(product);
        product->results = calloc(count, sizeof(struct hr_buffer *));
        product->operands = calloc(count, 2 * sizeof *product->operands);
        product->steps = calloc(count, sizeof *product->steps);
        HR_EXPECT(product->results && product->operands && product->steps);
        HR_EXPECT_OK(hr_buffer_new(device, (uint64_t) (k * k) * sizeof(float), HR_USAGE_WEIGHTS,
                                   &diag, &product->weight), &diag);
        HR_EXPECT_OK(hr_buffer_new(device, bytes, HR_USAGE_COMPUTE, &diag, &product->columns),
                     &diag);
        for (uint32_t i = 0; i < count; i++) {
                struct hr_operand *sources = &product->operands[2 * i];

                HR_EXPECT(hr_device_supports_op(device, product->graph, 2 + i));
                HR_EXPECT_OK(hr_buffer_new(device, bytes, HR_USAGE_COMPUTE, &diag,
                                           &product->results[i]), &diag);
                sources[0] = product_operand(product, 0, product->weight);
                sources[1] = product_operand(product, 1 + i, i ? product->results[i - 1]
                                                               : product->columns);
                product->steps[i] = (struct hr_step) {
                        .op = HR_OP_MUL_MAT,
                        .node = i,
                        .params = product->graph->tensors[2 + i].params,
                        .result = product_operand(product, 2 + i, product->results[i]),
                        .source_count = 2,
                        .sources = sources,
                };
        }
        product->list = (struct hr_steps) { .count = count, .steps = product->steps };
        HR_EXPECT_OK(hr_program_new(device, &product->list, &diag, &product->program), &diag);
}

void product_deinit(struct product *product) {
        product->program = hr_program_free(product->program);
        for (uint32_t i = 0; i < product->count; i++)
                product->results[i] = hr_buffer_unref(product->results[i]);
        product->weight = hr_buffer_unref(product->weight);
        product->columns = hr_buffer_unref(product->columns);
        free(product->results);
        free(product->operands);
        free(product->steps);
        product->graph = hr_graph_unref(product->graph);
}

static float *values_new(int64_t count, float (*value)(int64_t i, uint32_t seed), uint32_t seed) {
        float *values = malloc((size_t) count * sizeof *values);

        HR_EXPECT(values);
        for (int64_t i = 0; i < count; i++)
                values[i] = value(i, seed);
        return values;
}

void product_upload(struct product *product, struct hr_queue *queue, uint32_t seed) {
        float *weight = values_new(product->k * product->k, weight_value, seed);
        float *columns = values_new(product->k * product->n, column_value, seed);
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_queue_write(queue, product->weight->base, weight, product->weight->bytes,
                                    NULL, &diag), &diag);
        HR_EXPECT_OK(hr_queue_write(queue, product->columns->base, columns,
                                    product->columns->bytes, NULL, &diag), &diag);
        fixture_finish(queue);
        free(weight);
        free(columns);
}

void product_expect(struct product *product, struct hr_queue *queue, uint32_t step,
                    uint32_t seed) {
        int64_t k = product->k, n = product->n;
        float *weight = values_new(k * k, weight_value, seed);
        float *columns = values_new(k * n, column_value, seed);
        float *next = calloc((size_t) (k * n), sizeof *next);
        float *actual = malloc((size_t) (k * n) * sizeof *actual);
        struct hr_diag diag = { 0 };

        HR_EXPECT(next && actual);
        for (uint32_t i = 0; i <= step; i++) {
                for (int64_t column = 0; column < n; column++)
                        for (int64_t row = 0; row < k; row++) {
                                float sum = 0;

                                for (int64_t j = 0; j < k; j++)
                                        sum += weight[row * k + j] * columns[column * k + j];
                                next[column * k + row] = sum;
                        }
                memcpy(columns, next, (size_t) (k * n) * sizeof *next);
        }
        HR_EXPECT_OK(hr_queue_read(queue, product->results[step]->base, actual,
                                   product->results[step]->bytes, NULL, &diag), &diag);
        fixture_finish(queue);
        for (int64_t i = 0; i < k * n; i++)
                if (columns[i] != actual[i])
                        hr_test_fail(__FILE__, __LINE__, "step %u element %lld: %g, expected %g",
                                     step, (long long) i, (double) actual[i],
                                     (double) columns[i]);
        free(weight);
        free(columns);
        free(next);
        free(actual);
}
