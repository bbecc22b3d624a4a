/* What every device promises: properties, memory, pure answers, programs. */
#include "backends/registry.h"
#include "tests/build.h"
#include "tests/conformance/fixture.h"

HR_TEST(device_describes_itself) {
        struct hr_device *device = fixture_device();
        const struct hr_device_props *props = &device->props;

        HR_EXPECT_STREQ(props->name, "under-test");
        HR_EXPECT(props->description && props->description[0]);
        HR_EXPECT(props->kind && props->kind->name);
        HR_EXPECT(props->kind->alignment &&
                  !(props->kind->alignment & (props->kind->alignment - 1)));
        HR_EXPECT(hr_device_reads_kind(device, props->kind));
        HR_EXPECT_EQ(props->threads, CONFORMANCE_THREADS);
        HR_EXPECT(!CONFORMANCE_ISOLATED || props->kind != &hr_host_kind);
        HR_EXPECT(!CONFORMANCE_ISOLATED || !hr_device_reads_kind(device, &hr_host_kind));
        device = hr_device_unref(device);
}

HR_TEST(two_devices_have_one_kind_only_if_they_share_memory) {
        struct hr_device *a = fixture_device(), *b = fixture_device();

        HR_EXPECT((a->props.kind == b->props.kind) == a->props.kind->host);
        HR_EXPECT(hr_device_reads_kind(a, b->props.kind) == (a->props.kind == b->props.kind));
        a = hr_device_unref(a);
        b = hr_device_unref(b);
}

HR_TEST(buffers_are_aligned_zeroed_and_counted) {
        static const uint64_t sizes[] = { 0, 1, 63, 64, 4097, 3 << 20 };
        struct hr_device *device = fixture_device();

        for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++) {
                struct hr_buffer *buffer = NULL;
                struct hr_diag diag = { 0 };

                HR_EXPECT_OK(hr_buffer_new(device, sizes[i], HR_USAGE_COMPUTE, &diag, &buffer),
                             &diag);
                HR_EXPECT_EQ(buffer->bytes, sizes[i]);
                HR_EXPECT(buffer->kind == device->props.kind);
                HR_EXPECT_EQ((uintptr_t) buffer->base % device->props.kind->alignment, 0);
                HR_EXPECT_EQ(atomic_load(&device->used_bytes), sizes[i]);
                for (uint64_t j = 0; buffer->host_base && j < sizes[i]; j += 61)
                        HR_EXPECT_EQ(((uint8_t *) buffer->host_base)[j], 0);
                buffer = hr_buffer_unref(buffer);
                HR_EXPECT_EQ(atomic_load(&device->used_bytes), 0);
        }
        device = hr_device_unref(device);
}

HR_TEST(a_buffer_over_the_cap_is_refused_with_numbers) {
        struct hr_device *device = fixture_device_capped(10000);
        struct hr_buffer *first = NULL, *second = NULL;
        uint64_t free_bytes, total_bytes;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_buffer_new(device, 6000, HR_USAGE_ANY, &diag, &first), &diag);
        hr_device_memory(device, &free_bytes, &total_bytes);
        HR_EXPECT_EQ(free_bytes, 4000);
        HR_EXPECT_EQ(total_bytes, 10000);
        HR_EXPECT_EQ(hr_buffer_new(device, 4001, HR_USAGE_ANY, &diag, &second), HR_E_EXHAUSTED);
        HR_EXPECT_EQ(diag.actual, 4001);
        HR_EXPECT(!second);
        first = hr_buffer_unref(first);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(hr_buffer_new(device, 10000, HR_USAGE_ANY, &diag, &second), &diag);
        second = hr_buffer_unref(second);
        device = hr_device_unref(device);
}

HR_TEST(memory_that_is_not_there_is_refused) {
        struct hr_device *device = fixture_device();
        uint64_t free_bytes, total_bytes;
        struct hr_buffer *buffer = NULL;
        struct hr_diag diag = { 0 };

        hr_device_memory(device, &free_bytes, &total_bytes);
        HR_EXPECT(free_bytes > 0 && free_bytes <= total_bytes);
        HR_EXPECT_EQ(hr_buffer_new(device, UINT64_C(1) << 60, HR_USAGE_ANY, &diag, &buffer),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DEVICE_MEMORY");
        HR_EXPECT_EQ(diag.actual, INT64_C(1) << 60);
        HR_EXPECT_EQ(atomic_load(&device->used_bytes), 0);
        device = hr_device_unref(device);
}

HR_TEST(a_buffer_keeps_its_device) {
        struct hr_device *device = fixture_device();
        struct hr_buffer *buffer = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_OK(hr_buffer_new(device, 100, HR_USAGE_ANY, &diag, &buffer), &diag);
        device = hr_device_unref(device);
        (void) hr_buffer_ref(buffer);
        (void) hr_buffer_unref(buffer);
        buffer = hr_buffer_unref(buffer);
}

HR_TEST(leaves_and_views_are_supported_and_unknown_ops_are_not) {
        struct hr_device *device = fixture_device();
        struct hr_build *build = hr_build_new();
        uint32_t leaf = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 4, 1, 1);
        uint32_t view = hr_build_node(build, HR_OP_RESHAPE, HR_TYPE_F32, 16, 1, 1, 1, 1, &leaf);
        uint32_t unknown = hr_build_node(build, 199, HR_TYPE_F32, 4, 4, 1, 1, 1, &leaf);
        struct hr_graph *graph = hr_build_finish(build);

        HR_EXPECT(hr_device_supports_op(device, graph, leaf));
        HR_EXPECT(hr_device_supports_op(device, graph, view));
        HR_EXPECT(!hr_device_supports_op(device, graph, unknown));
        graph = hr_graph_unref(graph);
        device = hr_device_unref(device);
}

HR_TEST(answers_do_not_change_the_graph) {
        struct hr_device *device = fixture_device();
        struct product product;
        uint64_t before;

        product_init(&product, device, 8, 4, 2);
        before = hr_graph_hash(product.graph);
        for (uint32_t i = 0; i < hr_graph_tensor_count(product.graph); i++) {
                bool first = hr_device_supports_op(device, product.graph, i);

                HR_EXPECT_EQ(hr_device_supports_op(device, product.graph, i), first);
                (void) hr_device_wants_offload(device, product.graph, i);
        }
        HR_EXPECT_EQ(hr_graph_hash(product.graph), before);
        product_deinit(&product);
        device = hr_device_unref(device);
}

HR_TEST(scratch_is_what_was_predicted) {
        struct hr_device *device = fixture_device();
        uint32_t nodes[] = { 0, 1, 2 };
        struct product product;

        product_init(&product, device, 40, 9, 3);
        HR_EXPECT_EQ(device->ops->program_bytes(device, product.graph, nodes, 3),
                     product.program->scratch_bytes);
        product_deinit(&product);
        device = hr_device_unref(device);
}

HR_TEST(a_program_of_an_unknown_op_is_refused) {
        struct hr_device *device = fixture_device();
        struct hr_program *program = NULL;
        struct hr_diag diag = { 0 };
        int32_t params[HR_OP_PARAM_WORDS] = { 0 };
        float value = 0;
        struct hr_operand operand = { .type = HR_TYPE_F32, .ne = { 1, 1, 1, 1 },
                                      .nb = { 4, 4, 4, 4 }, .data = &value, .room = 4 };
        struct hr_step step = { .op = 199, .params = params, .result = operand,
                                .source_count = 1, .sources = &operand };
        struct hr_steps steps = { .count = 1, .steps = &step };

        HR_EXPECT_EQ(hr_program_new(device, &steps, &diag, &program), HR_E_UNSUPPORTED);
        HR_EXPECT(!program);
        device = hr_device_unref(device);
}

HR_TEST(an_unknown_backend_is_refused) {
        struct hr_backend_config config = { .backend = "no-such", .name = "x" };
        struct hr_device *device = NULL;
        struct hr_diag diag = { 0 };

        HR_EXPECT_EQ(hr_backend_device_new(&config, &diag, &device), HR_E_UNSUPPORTED);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "BACKEND");
        HR_EXPECT(!device);
}
