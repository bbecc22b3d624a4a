/* See op_rig.h. Each tensor with memory of its own has a buffer of exactly its size. */
#include "tests/unit/cpu/op_rig.h"

#include "backends/cpu/vec.h"

#define SOURCES_MAX 10
#define TIMEOUT_NS (UINT64_C(20) * 1000000000)

const char *const *rig_sets(uint32_t *ret_count) {
        static const char *const all[] = { "portable", "avx2", "avx512", "avx512bf16" };
        static const char *present[HR_ARRAY_LENGTH(all)];
        uint32_t count = 0;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(all); i++) {
                struct hr_cpu_config config = { .name = "probe", .threads = 1, .isa = all[i] };
                struct hr_device *device = NULL;

                if (hr_cpu_device_new(&config, NULL, &device) != HR_OK)
                        continue;
                present[count++] = all[i];
                device = hr_device_unref(device);
        }
        *ret_count = count;
        return present;
}

struct hr_device *rig_device(const char *isa, uint32_t threads) {
        struct hr_cpu_config config = { .name = "rig", .threads = threads, .isa = isa,
                                        .spin_us = 20, .wake_all = true };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_cpu_device_new(&config, &diag, &device), &diag);
        return device;
}

static uint32_t next_random(uint32_t *state) {
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        return *state;
}

static uint8_t *leaf_content(const struct hr_graph *graph, uint32_t id, uint32_t *state,
                             int32_t index_limit) {
        const struct hr_tensor *tensor = &graph->tensors[id];
        uint64_t bytes = hr_tensor_bytes(tensor);
        uint8_t *content = calloc(1, (size_t) bytes + 1);

        HR_EXPECT(content);
        if (tensor->leaf_kind == HR_LEAF_CONSTANT) {
                memcpy(content, graph->constants + graph->constant_offsets[id], (size_t) bytes);
                return content;
        }
        for (int64_t i = 0; i < hr_tensor_elements(tensor); i++) {
                float value = (float) next_random(state) * 0x1p-30f - 2.0f;
                uint16_t half;

                switch (tensor->type) {
                case HR_TYPE_F32:
                        memcpy(content + 4 * i, &value, sizeof value);
                        break;
                case HR_TYPE_F16:
                        cpu_vec_portable.f32_to_f16(1, &half, &value);
                        memcpy(content + 2 * i, &half, sizeof half);
                        break;
                case HR_TYPE_BF16:
                        cpu_vec_portable.f32_to_bf16(1, &half, &value);
                        memcpy(content + 2 * i, &half, sizeof half);
                        break;
                case HR_TYPE_I32: {
                        int32_t index = (int32_t) (next_random(state) % (uint32_t) index_limit);

                        memcpy(content + 4 * i, &index, sizeof index);
                        break;
                }
                default:
                        hr_test_fail(__FILE__, __LINE__, "a leaf of %s",
                                     hr_type_name(tensor->type));
                }
        }
        return content;
}

struct rig {
        struct hr_device *device;
        struct hr_graph *graph;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_buffer **buffers;
        struct hr_operand *operands;
        struct hr_step *steps;
        struct hr_steps list;
        struct hr_program *program;
        struct hr_outcome outcome;
        struct hr_diag diag;
};

static uint32_t root_of(const struct hr_graph *graph, uint32_t id) {
        uint32_t base = graph->tensors[id].view_base;

        return base == HR_TENSOR_NONE ? id : base;
}

static struct hr_operand bind(const struct rig *rig, uint32_t id) {
        struct hr_operand operand = { .type = HR_OPERAND_ABSENT };
        const struct hr_tensor *tensor;

        if (id == HR_TENSOR_NONE)
                return operand;
        tensor = &rig->graph->tensors[id];
        operand = hr_operand_of_tensor(tensor, id);
        if (!hr_tensor_is_empty(tensor)) {
                struct hr_buffer *buffer = rig->buffers[root_of(rig->graph, id)];

                operand.data = (uint8_t *) buffer->base + tensor->view_offset;
                operand.room = buffer->bytes - tensor->view_offset;
        }
        return operand;
}

static void rig_bind(struct rig *rig) {
        uint32_t count = hr_graph_tensor_count(rig->graph);

        rig->buffers = calloc(count, sizeof(struct hr_buffer *));
        rig->steps = calloc(count, sizeof *rig->steps);
        rig->operands = calloc(count, SOURCES_MAX * sizeof *rig->operands);
        HR_EXPECT(rig->buffers && rig->steps && rig->operands);
        for (uint32_t id = 0; id < count; id++)
                if (root_of(rig->graph, id) == id)
                        HR_EXPECT_OK(hr_buffer_new(rig->device,
                                                   hr_tensor_bytes(&rig->graph->tensors[id]),
                                                   HR_USAGE_COMPUTE, &rig->diag,
                                                   &rig->buffers[id]), &rig->diag);
        for (uint32_t id = rig->graph->leaf_count; id < count; id++) {
                const struct hr_tensor *tensor = &rig->graph->tensors[id];
                struct hr_operand *sources = &rig->operands[(size_t) id * SOURCES_MAX];

                HR_EXPECT(hr_device_supports_op(rig->device, rig->graph, id));
                if (hr_op_is_view(tensor->op))
                        continue;
                for (uint32_t i = 0; i < tensor->source_count; i++)
                        sources[i] = bind(rig, hr_graph_source(rig->graph, tensor, i));
                rig->steps[rig->list.count++] =
                        (struct hr_step) { .op = tensor->op,
                                           .node = id - rig->graph->leaf_count,
                                           .params = tensor->params,
                                           .result = bind(rig, id),
                                           .source_count = tensor->source_count,
                                           .sources = sources };
        }
        rig->list.steps = rig->steps;
        HR_EXPECT_OK(hr_program_new(rig->device, &rig->list, &rig->diag, &rig->program),
                     &rig->diag);
}

static void rig_finish(struct rig *rig) {
        HR_EXPECT_OK(hr_queue_record(rig->queue, rig->event, &rig->diag), &rig->diag);
        HR_EXPECT_OK(hr_event_synchronize(rig->event, TIMEOUT_NS, &rig->diag), &rig->diag);
}

static void rig_upload(struct rig *rig, uint32_t seed, int32_t index_limit) {
        uint32_t state = seed * 2654435761U + 12345;

        for (uint32_t id = 0; id < rig->graph->leaf_count; id++) {
                uint8_t *content = leaf_content(rig->graph, id, &state, index_limit);

                HR_EXPECT_OK(hr_queue_write(rig->queue, rig->buffers[id]->base, content,
                                            rig->buffers[id]->bytes, &rig->outcome, &rig->diag),
                             &rig->diag);
                rig_finish(rig);
                free(content);
        }
}

static void rig_free(struct rig *rig) {
        rig->program = hr_program_free(rig->program);
        rig->event = hr_event_free(rig->event);
        rig->queue = hr_queue_free(rig->queue);
        for (uint32_t id = 0; id < hr_graph_tensor_count(rig->graph); id++)
                (void) hr_buffer_unref(rig->buffers[id]);
        free(rig->buffers);
        free(rig->steps);
        free(rig->operands);
}

uint8_t *rig_run(struct hr_device *device, struct hr_graph *graph, uint32_t out, uint32_t seed,
                 int32_t index_limit, uint64_t *ret_bytes, struct hr_diag *ret_outcome) {
        struct rig rig = { .device = device, .graph = graph };
        struct hr_graph_limits limits = { 0 };
        struct hr_buffer *buffer;
        uint8_t *result;

        if (!graph->frozen)
                HR_EXPECT_OK(hr_graph_validate(graph, &limits, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_new(device, &rig.diag, &rig.queue), &rig.diag);
        HR_EXPECT_OK(hr_event_new(device, &rig.diag, &rig.event), &rig.diag);
        rig_bind(&rig);
        rig_upload(&rig, seed, index_limit);
        HR_EXPECT_OK(hr_queue_compute(rig.queue, rig.program, 0, rig.list.count, &rig.outcome,
                                      &rig.diag), &rig.diag);
        rig_finish(&rig);
        if (ret_outcome)
                *ret_outcome = rig.outcome.diag;
        else if (hr_outcome_failed(&rig.outcome))
                hr_test_fail(__FILE__, __LINE__, "%s", rig.outcome.diag.words);
        buffer = rig.buffers[root_of(graph, out)];
        result = calloc(1, (size_t) buffer->bytes + 1);
        HR_EXPECT(result);
        HR_EXPECT_OK(hr_queue_read(rig.queue, buffer->base, result, buffer->bytes, NULL,
                                   &rig.diag), &rig.diag);
        rig_finish(&rig);
        *ret_bytes = buffer->bytes;
        rig_free(&rig);
        return result;
}
