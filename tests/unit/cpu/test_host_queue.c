/* What the host queue adds to the conformance suite: steady memory, failures outside runs,
 * delays. */
#include <unistd.h>

#include "core/clock.h"
#include "core/host.h"
#include "tests/unit/cpu/op_rig.h"

static struct hr_queue *queue_new(struct hr_device *device) {
        struct hr_queue *queue = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_queue_new(device, &diag, &queue), &diag);
        return queue;
}

static void finish(struct hr_queue *queue) {
        struct hr_event *event = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_event_new(queue->device, &diag, &event), &diag);
        HR_EXPECT_OK(hr_queue_record(queue, event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, UINT64_C(10000000000), &diag), &diag);
        event = hr_event_free(event);
}

static void count_up(void *arg) {
        atomic_fetch_add((atomic_uint *) arg, 1);
}

HR_TEST(a_steady_queue_takes_no_memory) {
        struct hr_device *device = rig_device("portable", 1);
        struct hr_queue *queue = queue_new(device);
        atomic_uint count = 0;
        struct hr_diag diag = { 0 };

        for (uint32_t round = 0; round < 500; round++) {
                for (uint32_t i = 0; i < 100; i++)
                        HR_EXPECT_OK(hr_queue_notify(queue, count_up, &count, &diag), &diag);
                finish(queue);
        }
        HR_EXPECT_EQ(atomic_load(&count), 50000);
        HR_EXPECT_EQ(hr_host_queue_growths(queue), 0);
        queue = hr_queue_free(queue);
        device = hr_device_unref(device);
}

static void hold(void *arg) {
        while (!atomic_load((atomic_bool *) arg))
                (void) usleep(100);
}

HR_TEST(a_queue_far_behind_grows_once_and_keeps_it) {
        struct hr_device *device = rig_device("portable", 1);
        struct hr_queue *queue = queue_new(device);
        atomic_uint count = 0;
        struct hr_diag diag = { 0 };
        uint64_t growths = 0;

        for (uint32_t round = 0; round < 5; round++) {
                atomic_bool is_open = false;

                HR_EXPECT_OK(hr_queue_notify(queue, hold, &is_open, &diag), &diag);
                for (uint32_t i = 0; i < 2000; i++)
                        HR_EXPECT_OK(hr_queue_notify(queue, count_up, &count, &diag), &diag);
                atomic_store(&is_open, true);
                finish(queue);
                if (round == 0)
                        growths = hr_host_queue_growths(queue);
        }
        HR_EXPECT_EQ(atomic_load(&count), 10000);
        HR_EXPECT(growths >= 6);
        /* Where rounds begin inside a segment may differ by one. */
        HR_EXPECT(hr_host_queue_growths(queue) <= growths + 1);
        queue = hr_queue_free(queue);
        device = hr_device_unref(device);
}

HR_TEST(an_idle_queue_sleeps_and_wakes) {
        struct hr_device *device = rig_device("portable", 3);
        struct hr_queue *queue = queue_new(device);
        atomic_uint count = 0;
        struct hr_diag diag = { 0 };

        for (uint32_t round = 1; round <= 200; round++) {
                (void) usleep(round % 7 * 50);
                HR_EXPECT_OK(hr_queue_notify(queue, count_up, &count, &diag), &diag);
                for (uint32_t i = 0; i < 100000 && atomic_load(&count) != round; i++)
                        (void) usleep(20);
                HR_EXPECT_EQ(atomic_load(&count), round);
        }
        queue = hr_queue_free(queue);
        device = hr_device_unref(device);
}

/* ADD_ID with an index past the end, and an ADD after it. */
static struct hr_graph *graph_with_bad_index(void) {
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "a", 8, 3, 2, 1);
        uint32_t b = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "b", 8, 4, 1, 1);
        uint32_t ids = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_I32, "ids", 3, 2, 1, 1);
        uint32_t sources[3] = { a, b, ids }, sum;
        const int32_t indices[6] = { 0, 3, 1, 2, 4, 0 };

        hr_build_constant(build, ids, indices, sizeof indices);
        sum = hr_build_node(build, HR_OP_ADD_ID, HR_TYPE_F32, 8, 3, 2, 1, 3, sources);
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 8, 3, 2, 1, 2,
                             (uint32_t[2]) { sum, sum });
        return hr_build_finish(build);
}

HR_TEST(an_index_out_of_range_ends_the_run_at_its_node) {
        struct hr_device *device = rig_device("portable", 2);
        struct hr_graph *graph = graph_with_bad_index();
        struct hr_diag outcome = { 0 };
        uint64_t bytes;
        float *values = (float *) (void *) rig_run(device, graph, 4, 1, 1, &bytes, &outcome);

        HR_EXPECT_EQ(outcome.status, HR_E_RANGE);
        HR_EXPECT_STREQ(outcome.reason, "INDEX_VALUE");
        HR_EXPECT(outcome.has_node);
        HR_EXPECT_EQ(outcome.node, 0);
        /* The step after it has not run. */
        for (uint64_t i = 0; i < bytes / sizeof *values; i++)
                HR_EXPECT(values[i] == 0.0f);
        free(values);
        graph = hr_graph_unref(graph);
        device = hr_device_unref(device);
}

HR_TEST(a_delay_is_added_before_each_compute_command) {
        struct hr_cpu_config config = { .name = "slow", .threads = 1, .delay_us = 20000 };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "a", 4, 1, 1, 1);
        uint32_t out = hr_build_node(build, HR_OP_SQR, HR_TYPE_F32, 4, 1, 1, 1, 1, &a);
        struct hr_graph *graph = hr_build_finish(build);
        uint64_t start_ns, bytes;

        HR_EXPECT_OK(hr_cpu_device_new(&config, &diag, &device), &diag);
        start_ns = hr_clock_now_ns();
        free(rig_run(device, graph, out, 1, 1, &bytes, NULL));
        HR_EXPECT(hr_clock_now_ns() - start_ns >= 20 * HR_NS_PER_MS);
        graph = hr_graph_unref(graph);
        device = hr_device_unref(device);
}
