/*
 * Weights that arrive while their device computes, on a virtual clock.
 *
 * A tower: layer l computes c_l and needs a weight that takes u to arrive. In turn (serial_uploads)
 * a run takes u for its input and then u + c_l for every layer. With a queue for uploads the weight
 * of layer l >= 1 arrives behind that of layer l - 1, in the room that layer l - 2 has given back:
 *
 *     C_0 = u + u + c_0            U_l = max(U_(l-1), C_(l-2)) + u      (U_0 = C_(-1) = 0)
 *                                  C_l = max(C_(l-1), U_l) + c_l
 *
 * so that a run takes no longer than the slower of the two sides and what cannot be hidden at its
 * ends.
 */
#include "tests/fake/studio.h"

#define US UINT64_C(1000)

enum { LAYERS_MOST = 32, WIDTH = 1024 };

struct tower {
        struct studio studio;
        struct scene scene;
        struct hr_buffer *weights[LAYERS_MOST];
        struct hr_leaf_home homes[LAYERS_MOST + 1];
        uint32_t layers;
        uint64_t compute_ns[LAYERS_MOST], upload_ns;
};

static uint64_t cost(void *arg, const struct hr_steps *steps, uint32_t first, uint32_t count) {
        const uint64_t *node_ns = arg;
        uint64_t ns = 0;

        for (uint32_t i = first; i < first + count; ++i)
                ns += node_ns[steps->steps[i].node];
        return ns;
}

/* Costs have been set. Device 0 computes, device 1 has host memory with the weights. */
static void tower_open(struct tower *tower, bool uploads) {
        struct hr_fake_config config = {.sizes_only = true,
                                        .host = true,
                                        .uploads = uploads,
                                        .compute_ns = cost,
                                        .arg = tower->compute_ns};
        struct hr_fake_link link = {.latency_ns = tower->upload_ns};
        uint32_t leaves[LAYERS_MOST], at;

        studio_init(&tower->studio, 2, &config);
        HR_EXPECT_OK(hr_fake_link(tower->studio.devices[0], NULL, link, &tower->studio.diag),
                     &tower->studio.diag);
        scene_init(&tower->scene, WIDTH);
        at = scene_leaf(&tower->scene, HR_LEAF_INPUT, "x");
        for (uint32_t l = 0; l < tower->layers; ++l) {
                char name[16];

                snprintf(name, sizeof name, "w%u", l);
                leaves[l] = scene_leaf(&tower->scene, HR_LEAF_WEIGHT, name);
                HR_EXPECT_OK(hr_buffer_new(tower->studio.devices[1], WIDTH * sizeof(float),
                                           HR_USAGE_WEIGHTS, &tower->studio.diag,
                                           &tower->weights[l]),
                             &tower->studio.diag);
                tower->homes[leaves[l]].buffer = tower->weights[l];
        }
        for (uint32_t l = 0; l < tower->layers; ++l)
                at = scene_node(&tower->scene, HR_OP_ADD, at, leaves[l], 0);
        scene_output(&tower->scene, at);
        scene_finish(&tower->scene);
}

static void tower_close(struct tower *tower) {
        for (uint32_t l = 0; l < tower->layers; ++l)
                tower->weights[l] = hr_buffer_unref(tower->weights[l]);
        scene_deinit(&tower->scene);
        studio_deinit(&tower->studio);
}

static uint64_t tower_time(struct tower *tower, uint32_t runs) {
        struct hr_pipeline *pipeline =
                studio_pipeline(&tower->studio, &tower->scene, tower->homes, NULL, 0, 1);
        uint64_t ends[16];

        HR_EXPECT(runs <= HR_ARRAY_LENGTH(ends));
        studio_stream(&tower->studio, pipeline, &tower->scene, runs, 0, ends);
        hr_pipeline_free(pipeline);
        return ends[runs - 1];
}

static uint64_t serial_makespan(const struct tower *tower) {
        uint64_t ns = tower->upload_ns;

        for (uint32_t l = 0; l < tower->layers; ++l)
                ns += tower->upload_ns + tower->compute_ns[l];
        return ns;
}

static uint64_t early_makespan(const struct tower *tower) {
        uint64_t arrived = 0, before = 0, computed = 2 * tower->upload_ns + tower->compute_ns[0];

        for (uint32_t l = 1; l < tower->layers; ++l) {
                uint64_t end;

                arrived = HR_MAX(arrived, before) + tower->upload_ns;
                end = HR_MAX(computed, arrived) + tower->compute_ns[l];
                before = computed;
                computed = end;
        }
        return computed;
}

static void expect_times(struct tower *tower, uint64_t upload_ns, const uint64_t *compute_ns,
                         uint32_t layers, uint32_t runs) {
        uint64_t ns;

        *tower = (struct tower){.layers = layers, .upload_ns = upload_ns};
        for (uint32_t l = 0; l < layers; ++l)
                tower->compute_ns[l] = compute_ns[l % 4];
        tower_open(tower, true);
        HR_EXPECT_EQ(tower_time(tower, runs), runs * early_makespan(tower));
        tower->studio.serial_uploads = true;
        HR_EXPECT_EQ(tower_time(tower, runs), runs * serial_makespan(tower));
        tower_close(tower);
        tower_open(tower, false); /* a device with one queue */
        HR_EXPECT_EQ(tower_time(tower, runs), runs * serial_makespan(tower));
        ns = early_makespan(tower);
        HR_EXPECT(ns < serial_makespan(tower));
        tower_close(tower);
}

HR_TEST(makespans_show_the_overlap) {
        static const uint64_t equal[4] = {100 * US, 100 * US, 100 * US, 100 * US};
        static const uint64_t mixed[4] = {10 * US, 300 * US, 40 * US, 90 * US};
        static const uint64_t uploads[] = {1 * US, 50 * US, 100 * US, 150 * US, 900 * US};
        static struct tower tower;

        for (size_t u = 0; u < HR_ARRAY_LENGTH(uploads); ++u) {
                for (uint32_t layers = 2; layers <= LAYERS_MOST; layers *= 2) {
                        expect_times(&tower, uploads[u], equal, layers, 1);
                        expect_times(&tower, uploads[u], mixed, layers, 3);
                }
        }
        /* Where both sides are equal a long tower takes half the time. */
        expect_times(&tower, 100 * US, equal, LAYERS_MOST, 1);
        HR_EXPECT((double) early_makespan(&tower) < 0.55 * (double) serial_makespan(&tower));
}
