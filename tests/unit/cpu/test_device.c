/* The CPU device's configuration. */
#include "tests/unit/cpu/op_rig.h"

static hr_status try_new(const struct hr_cpu_config *config, struct hr_diag *diag) {
        struct hr_device *device = NULL;
        hr_status status = hr_cpu_device_new(config, diag, &device);

        HR_EXPECT((status == HR_OK) == (device != NULL));
        device = hr_device_unref(device);
        return status;
}

HR_TEST(an_unknown_instruction_set_is_refused) {
        struct hr_diag diag = { 0 };

        HR_EXPECT_EQ(try_new(&(struct hr_cpu_config) { .name = "x", .isa = "sse9" }, &diag),
                     HR_E_UNSUPPORTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "ISA");
        hr_diag_clear(&diag);
        HR_EXPECT_OK(try_new(&(struct hr_cpu_config) { .name = "x", .isa = "auto" }, &diag), &diag);
        HR_EXPECT_OK(try_new(&(struct hr_cpu_config) { .name = "x", .isa = "portable" }, &diag),
                     &diag);
}

HR_TEST(no_thread_count_means_all_processors) {
        struct hr_cpu_config config = { .name = "x" };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_cpu_device_new(&config, &diag, &device), &diag);
        HR_EXPECT(device->props.threads >= 1);
        device = hr_device_unref(device);
}

static struct hr_graph *graph_of_three(void) {
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "a", 4, 2, 1, 1);
        uint32_t sum = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 2, 1, 1, 2,
                                     (uint32_t[2]) { a, a });
        uint32_t product = hr_build_node(build, HR_OP_MUL, HR_TYPE_F32, 4, 2, 1, 1, 2,
                                         (uint32_t[2]) { a, sum });
        uint32_t view;

        view = hr_build_node(build, HR_OP_RESHAPE, HR_TYPE_F32, 8, 1, 1, 1, 1, &product);
        hr_build_tensor(build, view)->view_base = product;
        return hr_build_finish(build);
}

HR_TEST(denied_ops_are_not_supported) {
        struct hr_cpu_config config = { .name = "x", .threads = 1,
                                        .deny_ops = "MUL, SOFT_MAX,RESHAPE" };
        struct hr_graph *graph = graph_of_three();
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_cpu_device_new(&config, &diag, &device), &diag);
        HR_EXPECT(hr_device_supports_op(device, graph, 0));
        HR_EXPECT(hr_device_supports_op(device, graph, 1));
        HR_EXPECT(!hr_device_supports_op(device, graph, 2));
        HR_EXPECT(!hr_device_supports_op(device, graph, 3));
        device = hr_device_unref(device);
        graph = hr_graph_unref(graph);
}

HR_TEST(a_denied_op_must_exist) {
        struct hr_diag diag = { 0 };

        HR_EXPECT_EQ(try_new(&(struct hr_cpu_config) { .name = "x", .deny_ops = "MUL,NO_SUCH" },
                             &diag), HR_E_INVALID);
        HR_EXPECT(strstr(diag.words, "NO_SUCH"));
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(try_new(
                             &(struct hr_cpu_config){
                                     .name = "x",
                                     .deny_ops = "A_NAME_THAT_IS_FAR_TOO_LONG_TO_BE_ANY_OP_AT_ALL"},
                             &diag),
                     HR_E_INVALID);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(try_new(&(struct hr_cpu_config){.name = "x", .deny_ops = ""}, &diag), &diag);
}

HR_TEST(threads_are_pinned_without_complaint) {
        /* A processor that does not exist is ignored. */
        static const uint32_t processors[2] = { 0, 100000 };
        struct hr_cpu_config config = { .name = "x", .threads = 2, .processors = processors,
                                        .wake_all = true };
        struct hr_graph *graph = graph_of_three();
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };
        uint64_t bytes;

        HR_EXPECT_OK(hr_cpu_device_new(&config, &diag, &device), &diag);
        free(rig_run(device, graph, 2, 1, 1, &bytes, NULL));
        device = hr_device_unref(device);
        graph = hr_graph_unref(graph);
}

HR_TEST(a_shape_no_kernel_takes_is_not_supported) {
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_I32, "a", 4, 2, 1, 1);
        uint32_t sum = hr_build_node(build, HR_OP_ADD, HR_TYPE_I32, 4, 2, 1, 1, 2,
                                     (uint32_t[2]) { a, a });
        uint32_t norm = hr_build_node(build, HR_OP_NORM, HR_TYPE_I32, 4, 2, 1, 1, 1, &a);
        struct hr_graph *graph = hr_build_finish(build);
        struct hr_device *device = rig_device("portable", 1);

        HR_EXPECT(!hr_device_supports_op(device, graph, sum));
        HR_EXPECT(!hr_device_supports_op(device, graph, norm));
        device = hr_device_unref(device);
        graph = hr_graph_unref(graph);
}
