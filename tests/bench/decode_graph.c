/* A llama-shaped decoding step. See decode_graph.h. */
#include "tests/bench/decode_graph.h"

#include <stdlib.h>

#include "tests/bench/null_device.h"
#include "tests/build.h"

enum { HEAD = 128, HEADS = 32, WIDTH = HEAD * HEADS, HIDDEN = 11008, VOCABULARY = 32000 };
enum { CONTEXT = 4096, KEYS = 512 };

#define HOME_BYTES (UINT64_C(1) << 44) /* nobody touches them */

/* Weights and states of a layer, by position among its leaves. */
enum {
        ATTENTION_NORM,
        WEIGHT_Q,
        WEIGHT_K,
        WEIGHT_V,
        WEIGHT_O,
        HIDDEN_NORM,
        WEIGHT_GATE,
        WEIGHT_UP,
        WEIGHT_DOWN,
        CACHE_K,
        CACHE_V,
        LAYER_LEAVES
};

enum { TOKENS, POSITIONS, CELLS, MASK, EMBEDDINGS, OUTPUT_NORM, OUTPUT, MODEL_LEAVES };

struct drawing {
        struct hr_build *build;
        uint32_t layer; /* its first leaf */
};

static uint32_t node(struct drawing *drawing, uint32_t op, uint32_t type, const int64_t ne[4],
                     uint32_t a, uint32_t b) {
        uint32_t sources[2] = {a, b};

        return hr_build_node(drawing->build, op, type, ne[0], ne[1], ne[2], ne[3],
                             b == HR_TENSOR_NONE ? 1 : 2, sources);
}

static uint32_t matmul(struct drawing *drawing, uint32_t weight, uint32_t x, int64_t rows) {
        return node(drawing, HR_OP_MUL_MAT, HR_TYPE_F32, (int64_t[]){rows, 1, 1, 1}, weight, x);
}

static uint32_t norm(struct drawing *drawing, uint32_t x, uint32_t weight) {
        const int64_t ne[4] = {WIDTH, 1, 1, 1};
        uint32_t id = node(drawing, HR_OP_RMS_NORM, HR_TYPE_F32, ne, x, HR_TENSOR_NONE);

        hr_build_param_f32(drawing->build, id, 0, 1e-5F);
        return node(drawing, HR_OP_MUL, HR_TYPE_F32, ne, id, weight);
}

/* Makes `id` a window on the memory of `base` or of what that is a window on. */
static struct hr_tensor *window(struct drawing *drawing, uint32_t id, uint32_t base) {
        const struct hr_tensor *b = hr_build_tensor(drawing->build, base);
        struct hr_tensor *t = hr_build_tensor(drawing->build, id);

        t->view_base = b->view_base == HR_TENSOR_NONE ? base : b->view_base;
        t->view_offset = b->view_base == HR_TENSOR_NONE ? 0 : b->view_offset;
        return t;
}

static uint32_t reshape(struct drawing *drawing, uint32_t x, const int64_t ne[4]) {
        uint32_t id = node(drawing, HR_OP_RESHAPE, HR_TYPE_F32, ne, x, HR_TENSOR_NONE);

        (void) window(drawing, id, x);
        return id;
}

/* Swaps two dimensions. */
static uint32_t swap(struct drawing *drawing, uint32_t op, uint32_t x, int a, int b) {
        struct hr_tensor from = *hr_build_tensor(drawing->build, x), *t;
        uint32_t id = node(drawing, op, from.type, from.ne, x, HR_TENSOR_NONE);

        t = window(drawing, id, x);
        for (int d = 0; d < HR_DIMS; ++d) {
                int other = d == a ? b : d == b ? a : d;

                t->ne[d] = from.ne[other];
                t->nb[d] = from.nb[other];
                if (op == HR_OP_PERMUTE)
                        t->params[d] = other;
        }
        return id;
}

static uint32_t rope(struct drawing *drawing, uint32_t x) {
        const int64_t ne[4] = {HEAD, HEADS, 1, 1};
        uint32_t id =
                node(drawing, HR_OP_ROPE, HR_TYPE_F32, ne, reshape(drawing, x, ne), POSITIONS);

        hr_build_tensor(drawing->build, id)->params[1] = HEAD;
        hr_build_param_f32(drawing->build, id, 5, 10000.0F);
        hr_build_param_f32(drawing->build, id, 6, 1.0F);
        hr_build_param_f32(drawing->build, id, 8, 1.0F);
        return id;
}

/* Writes a row into a cache and looks at its first rows as [head, keys, heads]. */
static uint32_t cached(struct drawing *drawing, uint32_t cache, uint32_t row) {
        uint32_t sources[3] = {row, CELLS, cache}, written, id;
        struct hr_tensor *t;

        written = hr_build_node(drawing->build, HR_OP_SET_ROWS, HR_TYPE_F16, WIDTH, CONTEXT, 1, 1,
                                3, sources);
        (void) window(drawing, written, cache);
        id = node(drawing, HR_OP_VIEW, HR_TYPE_F16, (int64_t[]){HEAD, KEYS, HEADS, 1}, written,
                  HR_TENSOR_NONE);
        t = window(drawing, id, written);
        t->nb[1] = WIDTH * 2;
        t->nb[2] = HEAD * 2;
        t->nb[3] = (uint64_t) WIDTH * KEYS * 2;
        return id;
}

static uint32_t attention(struct drawing *drawing, uint32_t x) {
        uint32_t leaf = drawing->layer, q, k, v, scores;
        const int64_t flat[4] = {WIDTH, 1, 1, 1};

        q = rope(drawing, matmul(drawing, leaf + WEIGHT_Q, x, WIDTH));
        k = rope(drawing, matmul(drawing, leaf + WEIGHT_K, x, WIDTH));
        v = matmul(drawing, leaf + WEIGHT_V, x, WIDTH);
        k = cached(drawing, leaf + CACHE_K, reshape(drawing, k, flat));
        v = cached(drawing, leaf + CACHE_V, v);
        q = swap(drawing, HR_OP_PERMUTE, q, 1, 2);
        scores = node(drawing, HR_OP_MUL_MAT, HR_TYPE_F32, (int64_t[]){KEYS, 1, HEADS, 1}, k, q);
        scores = node(drawing, HR_OP_SOFT_MAX, HR_TYPE_F32, (int64_t[]){KEYS, 1, HEADS, 1}, scores,
                      MASK);
        hr_build_param_f32(drawing->build, scores, 0, 0.088F);
        v = node(drawing, HR_OP_CONT, HR_TYPE_F16, (int64_t[]){KEYS, HEAD, HEADS, 1},
                 swap(drawing, HR_OP_TRANSPOSE, v, 0, 1), HR_TENSOR_NONE);
        x = node(drawing, HR_OP_MUL_MAT, HR_TYPE_F32, (int64_t[]){HEAD, 1, HEADS, 1}, v, scores);
        x = node(drawing, HR_OP_CONT, HR_TYPE_F32, flat, swap(drawing, HR_OP_PERMUTE, x, 1, 2),
                 HR_TENSOR_NONE);
        return matmul(drawing, leaf + WEIGHT_O, x, WIDTH);
}

static uint32_t layer(struct drawing *drawing, uint32_t x) {
        const int64_t flat[4] = {WIDTH, 1, 1, 1}, hidden[4] = {HIDDEN, 1, 1, 1};
        uint32_t leaf = drawing->layer, y, gate, up, id;

        y = attention(drawing, norm(drawing, x, leaf + ATTENTION_NORM));
        x = node(drawing, HR_OP_ADD, HR_TYPE_F32, flat, y, x);
        y = norm(drawing, x, leaf + HIDDEN_NORM);
        gate = matmul(drawing, leaf + WEIGHT_GATE, y, HIDDEN);
        up = matmul(drawing, leaf + WEIGHT_UP, y, HIDDEN);
        id = node(drawing, HR_OP_GLU, HR_TYPE_F32, hidden, gate, up);
        hr_build_tensor(drawing->build, id)->params[0] = HR_GLU_SWIGLU;
        y = matmul(drawing, leaf + WEIGHT_DOWN, id, WIDTH);
        return node(drawing, HR_OP_ADD, HR_TYPE_F32, flat, y, x);
}

static void add_leaf(struct drawing *drawing, hr_leaf_kind kind, uint32_t type, const char *part,
                     uint32_t number, const int64_t ne[2]) {
        char name[64];

        snprintf(name, sizeof name, "blk.%u.%s", number, part);
        (void) hr_build_leaf(drawing->build, kind, type, name, ne[0], ne[1], 1, 1);
}

static void add_layer_leaves(struct drawing *drawing, uint32_t number) {
        static const struct {
                const char *name;
                int64_t ne[2];
        } leaves[LAYER_LEAVES] = {
                [ATTENTION_NORM] = {"attn_norm.weight", {WIDTH, 1}},
                [WEIGHT_Q] = {"attn_q.weight", {WIDTH, WIDTH}},
                [WEIGHT_K] = {"attn_k.weight", {WIDTH, WIDTH}},
                [WEIGHT_V] = {"attn_v.weight", {WIDTH, WIDTH}},
                [WEIGHT_O] = {"attn_output.weight", {WIDTH, WIDTH}},
                [HIDDEN_NORM] = {"ffn_norm.weight", {WIDTH, 1}},
                [WEIGHT_GATE] = {"ffn_gate.weight", {WIDTH, HIDDEN}},
                [WEIGHT_UP] = {"ffn_up.weight", {WIDTH, HIDDEN}},
                [WEIGHT_DOWN] = {"ffn_down.weight", {HIDDEN, WIDTH}},
                [CACHE_K] = {"cache.k", {WIDTH, CONTEXT}},
                [CACHE_V] = {"cache.v", {WIDTH, CONTEXT}},
        };

        for (uint32_t i = 0; i < LAYER_LEAVES; ++i)
                add_leaf(drawing, i >= CACHE_K ? HR_LEAF_STATE : HR_LEAF_WEIGHT,
                         leaves[i].ne[1] == 1 ? HR_TYPE_F32 : HR_TYPE_F16, leaves[i].name, number,
                         leaves[i].ne);
}

static struct hr_graph *draw(uint32_t layers) {
        struct drawing drawing = {.build = hr_build_new()};
        struct hr_graph_limits limits = {.tensor_bytes_max = UINT64_C(1) << 40};
        struct hr_build *build = drawing.build;
        struct hr_diag diag = {0};
        struct hr_graph *graph;
        uint32_t x;

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "tokens", 1, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "positions", 1, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I64, "cells", 1, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F16, "mask", KEYS, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F16, "token_embd.weight", WIDTH,
                             VOCABULARY, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "output_norm.weight", WIDTH, 1, 1,
                             1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F16, "output.weight", WIDTH, VOCABULARY,
                             1, 1);
        for (uint32_t i = 0; i < layers; ++i)
                add_layer_leaves(&drawing, i);
        x = node(&drawing, HR_OP_GET_ROWS, HR_TYPE_F32, (int64_t[]){WIDTH, 1, 1, 1}, EMBEDDINGS,
                 TOKENS);
        for (uint32_t i = 0; i < layers; ++i) {
                drawing.layer = MODEL_LEAVES + i * LAYER_LEAVES;
                x = layer(&drawing, x);
        }
        x = matmul(&drawing, OUTPUT, norm(&drawing, x, OUTPUT_NORM), VOCABULARY);
        hr_build_tensor(build, x)->flags |= HR_TENSOR_OUTPUT;
        graph = hr_build_finish(build);
        if (hr_graph_validate(graph, &limits, &diag) != HR_OK) {
                fprintf(stderr, "node %u: %s\n", diag.node, diag.words);
                abort();
        }
        return graph;
}

/* Device of a weight or state. */
static uint32_t home_device(const struct decode *decode, uint32_t leaf) {
        uint32_t layers = (decode->graph->leaf_count - MODEL_LEAVES) / LAYER_LEAVES;

        if (leaf == EMBEDDINGS)
                return decode->gpus;
        if (leaf < MODEL_LEAVES)
                return decode->gpus - 1;
        return (uint32_t) ((uint64_t) (leaf - MODEL_LEAVES) / LAYER_LEAVES * decode->gpus / layers);
}

void decode_init(struct decode *decode, uint32_t layers, uint32_t gpus) {
        static const char *const names[] = {"gpu0",  "gpu1",  "gpu2",  "gpu3", "gpu4",  "gpu5",
                                            "gpu6",  "gpu7",  "gpu8",  "gpu9", "gpu10", "gpu11",
                                            "gpu12", "gpu13", "gpu14", "gpu15"};
        struct hr_diag diag = {0};
        bool made = gpus > 0 && gpus <= DECODE_GPUS_MOST;

        *decode = (struct decode){.graph = draw(layers), .gpus = gpus};
        decode->homes = calloc(decode->graph->leaf_count, sizeof *decode->homes);
        made = made && decode->homes;
        for (uint32_t d = 0; made && d <= gpus; ++d) {
                decode->devices[d] = null_device_new(d < gpus ? names[d] : "cpu",
                                                     d < gpus ? HR_DEVICE_GPU : HR_DEVICE_CPU);
                made = hr_buffer_new(decode->devices[d], HOME_BYTES, HR_USAGE_WEIGHTS, &diag,
                                     &decode->weights[d]) == HR_OK &&
                       hr_buffer_new(decode->devices[d], HOME_BYTES, HR_USAGE_ANY, &diag,
                                     &decode->states[d]) == HR_OK;
        }
        if (!made || hr_fleet_new(decode->devices, gpus + 1, &diag, &decode->fleet) != HR_OK) {
                fprintf(stderr, "no fleet of %u devices: %s\n", gpus, diag.words);
                abort();
        }
        for (uint32_t i = 0; i < decode->graph->leaf_count; ++i) {
                uint32_t kind = decode->graph->tensors[i].leaf_kind;

                if (kind == HR_LEAF_WEIGHT)
                        decode->homes[i].buffer = decode->weights[home_device(decode, i)];
                else if (kind == HR_LEAF_STATE)
                        decode->homes[i].buffer = decode->states[home_device(decode, i)];
        }
}

void decode_deinit(struct decode *decode) {
        for (uint32_t d = 0; d <= decode->gpus; ++d) {
                hr_buffer_unref(decode->weights[d]);
                hr_buffer_unref(decode->states[d]);
        }
        decode->fleet = hr_fleet_free(decode->fleet);
        for (uint32_t d = 0; d <= decode->gpus; ++d)
                hr_device_unref(decode->devices[d]);
        decode->graph = hr_graph_unref(decode->graph);
        free(decode->homes);
}

void decode_print(const struct decode *decode, FILE *file) {
        const struct hr_graph *graph = decode->graph;

        fprintf(file, "graph %u %u\n", hr_graph_tensor_count(graph), decode->gpus);
        for (uint32_t i = 0; i < hr_graph_tensor_count(graph); ++i) {
                const struct hr_tensor *t = &graph->tensors[i];
                bool home = t->leaf_kind == HR_LEAF_WEIGHT || t->leaf_kind == HR_LEAF_STATE;

                fprintf(file, "t %s %s", hr_op_name(t->op), hr_type_name(t->type));
                for (int d = 0; d < HR_DIMS; ++d)
                        fprintf(file, " %lld", (long long) t->ne[d]);
                for (int d = 0; d < HR_DIMS; ++d)
                        fprintf(file, " %llu", (unsigned long long) t->nb[d]);
                fprintf(file, " %d %llu %u %u %d %u", (int32_t) t->view_base,
                        (unsigned long long) t->view_offset, t->flags, t->leaf_kind,
                        home ? (int) home_device(decode, i) : -1, t->source_count);
                for (uint32_t s = 0; s < t->source_count; ++s)
                        fprintf(file, " %d", (int32_t) hr_graph_source(graph, t, s));
                fputc('\n', file);
        }
}
