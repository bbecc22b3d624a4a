/*
 * Any operator with any parameters over small tensors of any type, however they lie: validation
 * answers; what it accepts, a CPU device computes, reading and writing nothing outside of its
 * tensors' own memory.
 *
 * The first bytes choose op, number of sources, how they lie and their shapes, the rest are
 * parameters and contents.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/backend.h"
#include "core/graph.h"
#include "core/op.h"
#include "tests/fuzz/plant.h"

#define SOURCES_MAX 10U
#define ELEMENTS_MAX 65536
#define TIMEOUT_NS (UINT64_C(20) * 1000000000)

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

struct reader {
        const uint8_t *at;
        size_t left;
};

static uint32_t take(struct reader *reader, unsigned bytes) {
        uint32_t value = 0;

        for (unsigned i = 0; i < bytes && reader->left > 0; i++, reader->left--)
                value |= (uint32_t) *reader->at++ << (8 * i);
        return value;
}

static const uint32_t types[] = {HR_TYPE_F32,  HR_TYPE_F32,  HR_TYPE_F32,  HR_TYPE_F16,
                                 HR_TYPE_BF16, HR_TYPE_I32,  HR_TYPE_I64,  HR_TYPE_Q4_0,
                                 HR_TYPE_Q8_0, HR_TYPE_Q4_K, HR_TYPE_Q6_K, HR_TYPE_I8};

/* Extents of 0 to 8, sometimes a block's, seldom one that only an empty tensor can have. */
static int64_t extent(struct reader *reader) {
        const uint32_t byte = take(reader, 1);

        if (byte >= 253)
                return INT32_MAX;
        return byte < 200 ? byte % 9 : byte < 225 ? 32 : byte < 248 ? 64 : 256;
}

/* How a source lies; what graph_of() has from its first bytes. */
enum form { DENSE, PERMUTED, WINDOW, STRIDED };
#define FORM_BITS 2
#define IN_PLACE (1U << (FORM_BITS * SOURCES_MAX))

static enum form form_of(uint32_t forms, uint32_t source) {
        return (enum form)(forms >> (FORM_BITS * source) & ((1U << FORM_BITS) - 1));
}

static uint32_t view_count(uint32_t forms, uint32_t sources) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < sources; i++)
                count += form_of(forms, i) != DENSE;
        return count;
}

static bool leaf_fill(struct hr_tensor *leaf, struct reader *reader, bool is_state) {
        leaf->type = types[take(reader, 1) % HR_ARRAY_LENGTH(types)];
        leaf->leaf_kind = is_state ? HR_LEAF_STATE : HR_LEAF_INPUT;
        leaf->flags = is_state ? 0 : HR_TENSOR_INPUT;
        leaf->view_base = HR_TENSOR_NONE;
        for (unsigned d = 0; d < HR_DIMS; d++)
                leaf->ne[d] = extent(reader);
        return hr_tensor_set_contiguous(leaf, NULL) == HR_OK;
}

/* A node that shows the memory of leaf `leaf` in another way. */
static bool view_fill(struct hr_graph *graph, uint32_t id, uint32_t leaf, enum form form,
                      struct reader *reader) {
        const struct hr_tensor *base = &graph->tensors[leaf];
        struct hr_tensor *view = &graph->tensors[id];
        uint32_t unit = (uint32_t) base->nb[0], offset = 0;

        view->op = form == PERMUTED ? HR_OP_PERMUTE : HR_OP_VIEW;
        view->type = base->type;
        view->view_base = HR_TENSOR_NONE;
        memcpy(view->nb, base->nb, sizeof view->nb);
        for (unsigned d = 0; d < HR_DIMS; d++) {
                const uint32_t byte = take(reader, 1);

                view->ne[d] = base->ne[d];
                if (form == PERMUTED) {
                        view->params[d] = (int32_t) (byte % HR_DIMS);
                } else if (form == WINDOW) {
                        view->ne[d] -= HR_MIN((int64_t) (byte % 4), base->ne[d]);
                        if (byte % 4 > 0 && d > 0)
                                offset += (uint32_t) base->nb[d] * (byte >> 4 & 1);
                } else {
                        view->ne[d] = byte % 9;
                        view->nb[d] = d ? (uint64_t) unit * (take(reader, 1) % 16) : unit;
                }
        }
        if (form != PERMUTED) {
                view->params[0] = (int32_t) offset;
                view->view_offset = offset;
        }
        return hr_graph_infer(graph, id, NULL) == HR_OK;
}

static void params_fill(struct hr_tensor *node, struct reader *reader) {
        for (unsigned i = 0; i < HR_OP_PARAM_WORDS && reader->left > 0; i++) {
                const uint32_t form = take(reader, 1);
                const uint32_t small = take(reader, 1);
                const float value = (float) small / 16.0f - 4.0f;

                if (form < 96)
                        node->params[i] = 0;
                else if (form < 160)
                        node->params[i] = (int32_t) small - 4;
                else if (form < 224)
                        memcpy(&node->params[i], &value, sizeof value);
                else
                        node->params[i] = (int32_t) (small | take(reader, 3) << 8);
        }
}

/* The node writes over its source 0, whatever validation thinks of that. */
static void lie_over(struct hr_graph *graph, struct hr_tensor *node) {
        const uint32_t id = hr_graph_source(graph, node, 0);
        const struct hr_tensor *source = &graph->tensors[id];

        if (id == HR_TENSOR_NONE || hr_op_info(node->op)->kind != HR_OP_KIND_INPLACE)
                return;
        node->view_base = source->view_base == HR_TENSOR_NONE ? id : source->view_base;
        node->view_offset = source->view_base == HR_TENSOR_NONE ? 0 : source->view_offset;
        memcpy(node->nb, source->nb, sizeof node->nb);
}

static struct hr_graph *graph_new(uint32_t count, uint32_t views) {
        const struct hr_graph_sizes sizes = {.leaf_count = count, .node_count = views + 1,
                                             .source_count = views + count, .name_bytes = count};
        struct hr_graph *graph = NULL;

        HR_ASSERT(hr_graph_new(&sizes, NULL, &graph) == HR_OK);
        for (uint32_t i = 0; i < count; i++)
                graph->names[i] = (char) ('a' + i);
        for (uint32_t i = 0; i <= count + views + 1; i++)
                graph->name_offsets[i] = HR_MIN(i, count);
        return graph;
}

/* Leaves, views of them, then one node that says of itself what inference finds. NULL: there is no
 * such node. */
static struct hr_graph *graph_of(struct reader *reader) {
        const uint32_t op = take(reader, 1), count = take(reader, 1) % (SOURCES_MAX + 1);
        const uint32_t forms = take(reader, 3), views = view_count(forms, count);
        struct hr_graph *graph = graph_new(count, views);
        struct hr_tensor *node = &graph->tensors[count + views];
        uint32_t next = 0;

        for (uint32_t i = 0; i < count; i++) {
                const bool is_state = op == HR_OP_SET_ROWS || op == HR_OP_CPY ||
                                      (i > 0 && take(reader, 1) & 1);

                if (!leaf_fill(&graph->tensors[i], reader, is_state))
                        return hr_graph_unref(graph);
                graph->sources[views + i] = i;
        }
        for (uint32_t i = 0; i < count; i++) {
                if (form_of(forms, i) == DENSE)
                        continue;
                graph->tensors[count + next].source_first = next;
                graph->tensors[count + next].source_count = 1;
                graph->sources[next] = i;
                graph->sources[views + i] = count + next;
                if (!view_fill(graph, count + next++, i, form_of(forms, i), reader))
                        return hr_graph_unref(graph);
        }
        node->op = op;
        node->type = types[take(reader, 1) % HR_ARRAY_LENGTH(types)];
        node->flags = HR_TENSOR_OUTPUT;
        node->view_base = HR_TENSOR_NONE;
        node->source_first = views;
        node->source_count = count;
        for (unsigned d = 0; d < HR_DIMS; d++)
                node->ne[d] = extent(reader);
        params_fill(node, reader);
        if (hr_graph_infer(graph, count + views, NULL) != HR_OK)
                return hr_graph_unref(graph);
        if (forms & IN_PLACE)
                lie_over(graph, node);
        return graph;
}

/* ---- computing it ---------------------------------------------------------------------------- */

static struct {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
} machine;

static void machine_start(void) {
        const struct hr_cpu_config config = {.name = "fuzz", .threads = 1, .isa = "portable"};

        HR_ASSERT(hr_cpu_device_new(&config, NULL, &machine.device) == HR_OK);
        HR_ASSERT(hr_queue_new(machine.device, NULL, &machine.queue) == HR_OK);
        HR_ASSERT(hr_event_new(machine.device, NULL, &machine.event) == HR_OK);
}

static struct hr_operand bind(const struct hr_graph *graph, uint32_t id,
                              uint8_t *const *memory) {
        const struct hr_tensor *tensor = &graph->tensors[id];
        const uint32_t root = tensor->view_base == HR_TENSOR_NONE ? id : tensor->view_base;
        struct hr_operand operand = hr_operand_of_tensor(tensor, id);

        if (!hr_tensor_is_empty(tensor)) {
                operand.data = memory[root] + tensor->view_offset;
                operand.room = hr_tensor_bytes(&graph->tensors[root]) - tensor->view_offset;
        }
        return operand;
}

static void compute(const struct hr_graph *graph, uint8_t *const *memory) {
        const uint32_t id = hr_graph_tensor_count(graph) - 1;
        const struct hr_tensor *node = &graph->tensors[id];
        struct hr_operand sources[SOURCES_MAX];
        struct hr_outcome outcome = {0};
        struct hr_step step = {.op = node->op, .node = 0, .params = node->params,
                               .result = bind(graph, id, memory),
                               .source_count = node->source_count, .sources = sources};
        const struct hr_steps steps = {.steps = &step, .count = 1};
        struct hr_program *program = NULL;
        struct hr_diag diag = {0};

        for (uint32_t i = 0; i < node->source_count; i++)
                sources[i] = bind(graph, hr_graph_source(graph, node, i), memory);
        if (hr_program_new(machine.device, &steps, &diag, &program) != HR_OK) {
                HR_ASSERT(diag.status == HR_E_EXHAUSTED); /* scratch for extents of empty tensors */
                return;
        }
        HR_ASSERT(hr_queue_compute(machine.queue, program, 0, 1, &outcome, &diag) == HR_OK);
        HR_ASSERT(hr_queue_record(machine.queue, machine.event, &diag) == HR_OK);
        HR_ASSERT(hr_event_synchronize(machine.event, TIMEOUT_NS, &diag) == HR_OK);
        HR_ASSERT(!hr_outcome_failed(&outcome) || outcome.diag.status == HR_E_RANGE);
        program = hr_program_free(program);
}

static void run(const struct hr_graph *graph, struct reader *reader) {
        const uint32_t count = hr_graph_tensor_count(graph);
        uint8_t *memory[2 * SOURCES_MAX + 1] = {0};

        for (uint32_t id = 0; id < count; id++)
                if (hr_tensor_elements(&graph->tensors[id]) > ELEMENTS_MAX)
                        return;
        for (uint32_t id = 0; id < count; id++) {
                const uint64_t bytes = hr_tensor_bytes(&graph->tensors[id]);

                if (graph->tensors[id].view_base != HR_TENSOR_NONE)
                        continue;
                /* Of exactly its size: a sanitizer sees every byte beside it. */
                HR_ASSERT(posix_memalign((void **) &memory[id], 64, bytes ? bytes : 1) == 0);
                for (uint64_t i = 0; i < bytes; i++)
                        memory[id][i] =
                                (uint8_t) (reader->left > 0 ? take(reader, 1) : i % 7 == 3);
        }
        compute(graph, memory);
        for (uint32_t id = 0; id < count; id++)
                free(memory[id]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
        static const struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 24};
        struct reader reader = {bytes, size};
        struct hr_diag diag = {0};
        struct hr_graph *graph;
        uint32_t last;

        if (!machine.device)
                machine_start();
        graph = graph_of(&reader);
        if (!graph)
                return 0;
        /* What inference fills in, validation accepts, but for limits and what it alone looks at.
         * */
        last = hr_graph_tensor_count(graph) - 1;
        if (hr_graph_validate(graph, &limits, &diag) == HR_OK) {
                HR_PLANT(graph->tensors[last].op == HR_OP_SCALE && graph->tensors[last].ne[0] == 5);
                if (!hr_op_is_view(graph->tensors[last].op) &&
                    hr_device_supports_op(machine.device, graph, last))
                        run(graph, &reader);
        } else {
                HR_ASSERT(diag.status != HR_OK && diag.reason && diag.words[0] != '\0');
        }
        graph = hr_graph_unref(graph);
        return 0;
}
