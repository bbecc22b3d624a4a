/* Graphs whose weights are copied when they are used. See tower.h. */
#include "tests/unit/scheduler/tower.h"

#include <string.h>

static uint32_t add(struct tower *tower, struct hr_build *build, uint32_t op, uint32_t type,
                    const int64_t ne[3], uint32_t count, const uint32_t *sources, int32_t pin) {
        uint32_t id = hr_build_node(build, op, type, ne[0], ne[1], ne[2], 1, count, sources);

        tower->pins[id] = pin;
        return id;
}

/* The expert of each token: where its row is largest. */
static uint32_t add_ids(struct tower *tower, struct hr_build *build, uint32_t x, int32_t pin) {
        const int64_t rows[3] = {TOWER_K, TOWER_TOKENS, 1}, best[3] = {1, TOWER_TOKENS, 1};
        uint32_t scores = add(tower, build, HR_OP_RESHAPE, HR_TYPE_F32, rows, 1, &x, HR_NO_PIN);
        uint32_t sorted, view;
        struct hr_tensor *t;

        hr_build_tensor(build, scores)->view_base = x;
        sorted = add(tower, build, HR_OP_ARGSORT, HR_TYPE_I32, rows, 1, &scores, pin);
        hr_build_tensor(build, sorted)->params[0] = 1;
        view = add(tower, build, HR_OP_VIEW, HR_TYPE_I32, best, 1, &sorted, HR_NO_PIN);
        t = hr_build_tensor(build, view);
        t->view_base = sorted;
        t->nb[1] = TOWER_K * sizeof(int32_t);
        t->nb[2] = t->nb[3] = t->nb[1] * TOWER_TOKENS;
        return view;
}

static void add_weights(struct tower *tower, struct hr_build *build, const char *kinds) {
        static const char *const names[TOWER_LAYERS_MOST] = {"w0", "w1", "w2", "w3", "w4",  "w5",
                                                             "w6", "w7", "w8", "w9", "w10", "w11"};

        for (uint32_t l = 0; l < tower->layers; ++l) {
                bool dense = kinds[l] == 'd';

                tower->weights[l] =
                        hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, names[l], TOWER_K,
                                      dense ? 1 : TOWER_K, dense ? 1 : TOWER_EXPERTS, 1);
        }
}

void tower_init(struct tower *tower, const char *kinds, uint32_t devices) {
        const int64_t shape[3] = {TOWER_K, 1, TOWER_TOKENS};
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 24};
        struct hr_build *build = hr_build_new();
        uint32_t x, first, ids[TOWER_LAYERS_MOST] = {0};
        struct hr_diag diag = {0};

        memset(tower, 0, sizeof *tower);
        tower->layers = (uint32_t) strlen(kinds);
        HR_EXPECT(tower->layers <= TOWER_LAYERS_MOST);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(tower->pins); ++i)
                tower->pins[i] = HR_NO_PIN;
        x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", TOWER_K, 1, TOWER_TOKENS, 1);
        add_weights(tower, build, kinds);
        x = first = add(tower, build, HR_OP_ADD, HR_TYPE_F32, shape, 2, (uint32_t[]){x, x}, 0);
        for (uint32_t l = 0; l < tower->layers; ++l) {
                if (kinds[l] == 'e')
                        ids[l] = add_ids(tower, build, first, (int32_t) (l % devices));
        }
        for (uint32_t l = 0; l < tower->layers; ++l) {
                int32_t pin = (int32_t) (l % devices);

                if (kinds[l] == 'm')
                        ids[l] = add_ids(tower, build, x, pin);
                if (kinds[l] == 'd')
                        x = add(tower, build, HR_OP_MUL, HR_TYPE_F32, shape, 2,
                                (uint32_t[]){x, tower->weights[l]}, pin);
                else
                        x = add(tower, build, HR_OP_MUL_MAT_ID, HR_TYPE_F32, shape, 3,
                                (uint32_t[]){tower->weights[l], x, ids[l]}, pin);
        }
        tower->out = x;
        tower->tensor_count = x + 1;
        HR_EXPECT(tower->tensor_count <= HR_ARRAY_LENGTH(tower->pins));
        hr_build_tensor(build, x)->flags |= HR_TENSOR_OUTPUT;
        tower->graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(tower->graph, &limits, &diag), &diag);
}

void tower_deinit(struct tower *tower) {
        hr_graph_unref(tower->graph);
}

uint64_t tower_weight_bytes(const struct tower *tower, uint32_t layer) {
        return hr_tensor_bytes(&tower->graph->tensors[tower->weights[layer]]);
}

void tower_home_init(struct tower_home *home, const struct tower *tower, struct hr_device *device) {
        struct hr_diag diag = {0};

        memset(home, 0, sizeof *home);
        for (uint32_t l = 0; l < tower->layers; ++l) {
                uint64_t bytes = tower_weight_bytes(tower, l);
                float *values;

                HR_EXPECT_OK(
                        hr_buffer_new(device, bytes, HR_USAGE_WEIGHTS, &diag, &home->buffers[l]),
                        &diag);
                values = home->buffers[l]->host_base;
                for (uint64_t i = 0; i < bytes / sizeof *values; ++i)
                        values[i] = (float) ((l * 31 + i * 7) % 61) / 64.0F - 0.4F;
                home->homes[tower->weights[l]].buffer = home->buffers[l];
        }
}

void tower_home_deinit(struct tower_home *home) {
        for (uint32_t l = 0; l < TOWER_LAYERS_MOST; ++l)
                home->buffers[l] = hr_buffer_unref(home->buffers[l]);
}
