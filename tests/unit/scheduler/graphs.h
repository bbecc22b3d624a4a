/*
 * What the scheduler's tests share: a rig of CPU devices, graphs out of a few calls, and runs that
 * wait. Misuse and unexpected failures fail the test.
 */
#pragma once

#include <pthread.h>

#include "scheduler/scheduler.h"
#include "tests/build.h"
#include "tests/harness.h"

#define RIG_DEVICES 64

struct rig {
        struct hr_device *devices[RIG_DEVICES];
        struct hr_fleet *fleet;
        bool optimize; /* of the pipelines that it makes */
        struct hr_diag diag;
};

struct rig_device {
        bool isolated;
        uint32_t delay_us;
        uint64_t memory_cap;
        const char *deny_ops;
        bool opaque; /* the test's own device: staged copies, sleeps of up to delay_us */
};

/* The name is copied. */
struct hr_device *opaque_device_new(const char *name, uint32_t sleep_us, uint32_t seed);
void rig_init(struct rig *rig, const struct rig_device *devices, uint32_t count);
void rig_deinit(struct rig *rig);

/* A graph in the making, its pins beside it. All tensors are f32 rows of `width` unless said. */
struct sketch {
        struct hr_build *build;
        int64_t width;
        uint32_t tensor_count;
        int32_t *pins;
};

void sketch_init(struct sketch *sketch, int64_t width);
uint32_t sketch_leaf(struct sketch *sketch, hr_leaf_kind kind, const char *name);
uint32_t sketch_constant(struct sketch *sketch, float value);
/* A binary or unary node on the device `pin`, HR_NO_PIN for any. */
uint32_t sketch_node(struct sketch *sketch, uint32_t op, uint32_t a, uint32_t b, int32_t pin);
/* The same over its source a. */
uint32_t sketch_in_place(struct sketch *sketch, uint32_t op, uint32_t a, uint32_t base, uint32_t b,
                         int32_t pin);
void sketch_output(struct sketch *sketch, uint32_t tensor);
/* Validates; the pins stay with the sketch. */
struct hr_graph *sketch_finish(struct sketch *sketch);
void sketch_deinit(struct sketch *sketch);

/* A run with its own memory, and a way to wait for it. */
struct ride {
        struct hr_run run;
        struct hr_run_input inputs[8];
        struct hr_run_output outputs[8];
        pthread_mutex_t lock;
        pthread_cond_t over_cond;
        bool over;
        uint32_t done_count;
};

void ride_init(struct ride *ride);
void ride_deinit(struct ride *ride);
hr_status ride_start(struct ride *ride, struct hr_pipeline *pipeline, struct hr_diag *diag);
/* Waits for done, gives the slot back, and tells what became of the run. */
hr_status ride_wait(struct ride *ride);

/* A plan and a pipeline for the sketch's graph. n_copies 0 = decided. Every use of shared memory is
 * behind a gate. */
struct hr_pipeline *rig_pipeline(struct rig *rig, struct hr_graph *graph, const int32_t *pins,
                                 const struct hr_leaf_home *homes, uint32_t n_copies,
                                 struct hr_state_use **states, uint32_t state_count);
