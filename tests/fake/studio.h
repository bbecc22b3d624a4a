/*
 * What the tests on simulated devices share: a fleet in a world of its own, graphs out of a few
 * calls, and runs on the virtual clock. Unexpected failures fail the test.
 */
#pragma once

#include "backends/fake/backend.h"
#include "scheduler/scheduler.h"
#include "tests/build.h"
#include "tests/harness.h"

struct studio {
        struct hr_fake_world *world;
        struct hr_device **devices;
        uint32_t device_count;
        struct hr_fleet *fleet;
        bool serial_uploads; /* of the plans that it makes */
        struct hr_diag diag;
};

/* `count` devices "d0", "d1", ... like `config`; all GPUs but the last, which is of type CPU. With
 * `host`, all but the first have host memory. */
void studio_init(struct studio *studio, uint32_t count, const struct hr_fake_config *config);
void studio_deinit(struct studio *studio);

/* Pseudo-random numbers of a seed. */
struct dice {
        uint64_t state;
};
void dice_init(struct dice *dice, uint64_t seed);
uint32_t dice_roll(struct dice *dice, uint32_t sides);
/* HR_SEED, or 1; printed. */
uint64_t studio_seed(void);

/* A graph in the making, its pins beside it; all tensors are rows of `width` f32. */
struct scene {
        struct hr_build *build;
        int64_t width;
        uint32_t tensor_count;
        int32_t *pins;
        struct hr_graph *graph;
};
void scene_init(struct scene *scene, int64_t width);
uint32_t scene_leaf(struct scene *scene, hr_leaf_kind kind, const char *name);
uint32_t scene_node(struct scene *scene, uint32_t op, uint32_t a, uint32_t b, int32_t pin);
uint32_t scene_in_place(struct scene *scene, uint32_t op, uint32_t a, uint32_t b, int32_t pin);
void scene_output(struct scene *scene, uint32_t tensor);
void scene_finish(struct scene *scene);
void scene_deinit(struct scene *scene);

struct hr_plan *studio_plan(struct studio *studio, const struct scene *scene,
                            const struct hr_leaf_home *homes, uint32_t n_copies);
struct hr_pipeline *studio_pipeline(struct studio *studio, const struct scene *scene,
                                    const struct hr_leaf_home *homes, struct hr_state_use **states,
                                    uint32_t state_count, uint32_t n_copies);

/* A run and what it reads and writes. */
struct take {
        struct hr_run run;
        struct hr_run_input inputs[4];
        struct hr_run_output outputs[4];
        uint32_t done_count;
        uint64_t done_ns; /* virtual */
        struct hr_fake_world *world;
};
void take_init(struct take *take, struct studio *studio);
/* Lets time pass until the run is over, and gives its slot back. */
hr_status take_wait(struct take *take);

/* Runs `count` times, never more than `in_flight` at once (0 = as many as there are slots), without
 * looking at values; each starts as soon as it can. The time from the first start to the end of run
 * i goes to ends_ns[i]. */
void studio_stream(struct studio *studio, struct hr_pipeline *pipeline, const struct scene *scene,
                   uint32_t count, uint32_t in_flight, uint64_t *ends_ns);
