/* Growing arrays that become a graph at the end. Leaves must all come before the first node. */
#include "tests/build.h"

#include <stdlib.h>
#include <string.h>

struct hr_build {
        uint32_t leaf_count, count, capacity, source_count, source_capacity;
        struct hr_tensor *tensors;
        char **names;
        void **constants;
        uint64_t *constant_sizes;
        uint32_t *sources;
};

static void *grown(void *array, size_t count, size_t element_bytes) {
        void *memory = realloc(array, count * element_bytes);

        HR_ASSERT(memory);
        return memory;
}

struct hr_build *hr_build_new(void) {
        struct hr_build *build = calloc(1, sizeof *build);

        HR_ASSERT(build);
        return build;
}

static uint32_t build_append(struct hr_build *build, uint32_t type, const char *name, int64_t ne0,
                             int64_t ne1, int64_t ne2, int64_t ne3) {
        uint32_t id = build->count++;
        struct hr_tensor *tensor;

        if (build->count > build->capacity) {
                build->capacity = build->capacity ? build->capacity * 2 : 64;
                build->tensors = grown(build->tensors, build->capacity, sizeof *build->tensors);
                build->names = grown(build->names, build->capacity, sizeof *build->names);
                build->constants = grown(build->constants, build->capacity,
                                         sizeof *build->constants);
                build->constant_sizes = grown(build->constant_sizes, build->capacity,
                                              sizeof *build->constant_sizes);
        }
        tensor = &build->tensors[id];
        *tensor = (struct hr_tensor) { .type = type,
                                       .view_base = HR_TENSOR_NONE,
                                       .source_first = build->source_count,
                                       .ne = { ne0, ne1, ne2, ne3 } };
        /* A hostile shape stays as it is; validation is what must refuse it. */
        if (hr_tensor_set_contiguous(tensor, NULL) != HR_OK)
                memset(tensor->nb, 0, sizeof tensor->nb);
        build->names[id] = strdup(name ? name : "");
        build->constants[id] = NULL;
        build->constant_sizes[id] = 0;
        return id;
}

uint32_t hr_build_leaf(struct hr_build *build, hr_leaf_kind kind, uint32_t type, const char *name,
                       int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
        uint32_t id = build_append(build, type, name, ne0, ne1, ne2, ne3);

        HR_ASSERT(build->leaf_count == id);
        build->leaf_count++;
        build->tensors[id].leaf_kind = kind;
        return id;
}

void hr_build_constant(struct hr_build *build, uint32_t leaf, const void *bytes, uint64_t size) {
        build->constants[leaf] = grown(NULL, size + 1, 1);
        memcpy(build->constants[leaf], bytes, size);
        build->constant_sizes[leaf] = size;
}

uint32_t hr_build_node(struct hr_build *build, uint32_t op, uint32_t type, int64_t ne0, int64_t ne1,
                       int64_t ne2, int64_t ne3, uint32_t source_count, const uint32_t *sources) {
        uint32_t id = build_append(build, type, NULL, ne0, ne1, ne2, ne3);

        build->tensors[id].op = op;
        build->tensors[id].source_count = source_count;
        while (build->source_count + source_count > build->source_capacity) {
                build->source_capacity = build->source_capacity ? build->source_capacity * 2 : 256;
                build->sources = grown(build->sources, build->source_capacity,
                                       sizeof *build->sources);
        }
        if (source_count)
                memcpy(&build->sources[build->source_count], sources,
                       source_count * sizeof *sources);
        build->source_count += source_count;
        return id;
}

struct hr_tensor *hr_build_tensor(struct hr_build *build, uint32_t id) {
        HR_ASSERT(id < build->count);
        return &build->tensors[id];
}

void hr_build_param_f32(struct hr_build *build, uint32_t id, uint32_t word, float value) {
        memcpy(&hr_build_tensor(build, id)->params[word], &value, sizeof value);
}

struct hr_graph *hr_build_finish(struct hr_build *build) {
        struct hr_graph_sizes sizes = { .leaf_count = build->leaf_count,
                                        .node_count = build->count - build->leaf_count,
                                        .source_count = build->source_count };
        struct hr_graph *graph = NULL;
        uint64_t name_at = 0, constant_at = 0;

        for (uint32_t id = 0; id < build->count; id++) {
                sizes.name_bytes += strlen(build->names[id]);
                sizes.constant_bytes += build->constant_sizes[id];
        }
        HR_ASSERT(hr_graph_new(&sizes, NULL, &graph) == HR_OK);
        for (uint32_t id = 0; id < build->count; id++) {
                size_t name_bytes = strlen(build->names[id]);

                graph->tensors[id] = build->tensors[id];
                graph->name_offsets[id] = name_at;
                memcpy(graph->names + name_at, build->names[id], name_bytes);
                name_at += name_bytes;
                graph->name_offsets[id + 1] = name_at;
                if (id < build->leaf_count) {
                        graph->constant_offsets[id] = constant_at;
                        if (build->constants[id])
                                memcpy(graph->constants + constant_at, build->constants[id],
                                       build->constant_sizes[id]);
                        constant_at += build->constant_sizes[id];
                        graph->constant_offsets[id + 1] = constant_at;
                }
                free(build->names[id]);
                free(build->constants[id]);
        }
        if (build->source_count)
                memcpy(graph->sources, build->sources,
                       build->source_count * sizeof *build->sources);
        free(build->tensors);
        free(build->names);
        free(build->constants);
        free(build->constant_sizes);
        free(build->sources);
        free(build);
        return graph;
}
