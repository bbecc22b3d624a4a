/*
 * What the conformance tests share: the device under test (chosen when the program is built), a
 * gate that holds a queue, and products of small matrices, the one op that every backend has.
 */
#pragma once

#include "core/device.h"
#include "tests/harness.h"

#define FIXTURE_TIMEOUT_NS (UINT64_C(10) * 1000000000)

/* A new device; memory_cap 0 = none. Skips the test when the build lacks the backend. */
struct hr_device *fixture_device_capped(uint64_t memory_cap);
struct hr_device *fixture_device(void);

/* Waits for everything submitted to the queue. */
void fixture_finish(struct hr_queue *queue);

/* Holds a queue from gate_close until gate_open. Blocking inside a notification is against the
 * rules of notifications; here it stands for work that takes its time. A simulated queue has gates
 * of its own. */
struct gate {
        atomic_bool is_open;
        struct hr_queue *queue;
};
void gate_close(struct gate *gate, struct hr_queue *queue);
void gate_open(struct gate *gate);

/* c[m, n] = a[k, m] b[k, n], `count` steps one after the other: the b of step i + 1 is the c of
 * step i where shapes are square (k = m). Memory is the device's. */
struct product {
        struct hr_device *device;
        struct hr_graph *graph;
        uint32_t count;
        int64_t k, n;
        struct hr_buffer *weight, *columns, **results;
        struct hr_operand *operands;
        struct hr_step *steps;
        struct hr_steps list;
        struct hr_program *program;
};

void product_init(struct product *product, struct hr_device *device, int64_t k, int64_t n,
                  uint32_t count);
void product_deinit(struct product *product);
/* Uploads integers that depend on `seed`, so that every product is exact in f32. */
void product_upload(struct product *product, struct hr_queue *queue, uint32_t seed);
/* Expects result `step` to be what plain arithmetic gives for that seed. */
void product_expect(struct product *product, struct hr_queue *queue, uint32_t step, uint32_t seed);
