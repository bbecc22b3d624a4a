/*
 * Everything that is made of a client's bytes, with its n-th allocation failing, for every n until
 * none does: HR_E_EXHAUSTED and words each time, nothing kept, and the last time all is well.
 *
 * (Whole sessions under failing calls, with threads: tests/hostile/test_f_injected.py.)
 */
#include "core/op.h"
#include "core/topology.h"
#include "daemon/config.h"
#include "daemon/gguf.h"
#include "daemon/safetensors.h"
#include "daemon/session.h"
#include "proto/codec.h"
#include "tests/build.h"
#include "tests/fake/fail_alloc.h"
#include "tests/harness.h"
#include "tests/unit/daemon/gguf_builder.h"

typedef hr_status (*scenario_fn)(struct hr_diag *diag);

static void every_allocation(scenario_fn scenario) {
        struct hr_diag diag = {0};
        uint64_t n = 0;

        HR_EXPECT_OK(scenario(&diag), &diag); /* whatever is kept for ever is there now */
        do {
                const int64_t before = fail_alloc_live();
                hr_status status;

                diag = (struct hr_diag){0};
                fail_alloc_at(++n);
                status = scenario(&diag);
                if (fail_alloc_fired()) {
                        HR_EXPECT_EQ(status, HR_E_EXHAUSTED);
                        HR_EXPECT(diag.status == HR_E_EXHAUSTED && diag.words[0] != '\0');
                } else {
                        HR_EXPECT_OK(status, &diag);
                }
                fail_alloc_at(0);
                HR_EXPECT_EQ(fail_alloc_live(), before);
                HR_EXPECT(n < 10000);
        } while (diag.status != HR_OK);
        HR_EXPECT(n > 1);
}

/* ---- graphs ---------------------------------------------------------------------------------- */

static uint8_t *encoded;
static size_t encoded_bytes;

static void graph_encode(void) {
        static const uint32_t sum[] = {0, 1};
        struct hr_build *build = hr_build_new();
        struct hr_diag diag = {0};
        struct hr_graph *graph;

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 8, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "w", 8, 1, 1, 1);
        (void) hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "c", 1, 1, 1, 1);
        hr_build_constant(build, 2, "abcd", 4);
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 8, 1, 1, 1, 2, sum);
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, NULL, 0, &diag, &encoded_bytes), &diag);
        encoded = malloc(encoded_bytes);
        HR_EXPECT(encoded);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, encoded, encoded_bytes, &diag, &encoded_bytes),
                     &diag);
        graph = hr_graph_unref(graph);
}

static hr_status graph_scenario(struct hr_diag *diag) {
        static const struct hr_wire_graph_limits wire_limits = {
                .nodes_max = 100, .leaves_max = 100, .bytes_max = 1 << 20};
        static const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 20};
        HR_CLEANUP(hr_graph_unrefp) struct hr_graph *graph = NULL;
        struct hr_topology topology = {0};

        HR_TRY(hr_wire_graph_decode((struct hr_wire_span){encoded, encoded_bytes}, &wire_limits,
                                    diag, &graph));
        HR_TRY(hr_graph_validate(graph, &limits, diag));
        HR_TRY(hr_topology_init(&topology, graph, "suffix", 6, diag));
        HR_EXPECT(hr_topology_matches(&topology, graph, "suffix", 6));
        hr_topology_deinit(&topology);
        return HR_OK;
}

HR_TEST(graphs) {
        graph_encode();
        every_allocation(graph_scenario);
        free(encoded);
}

/* ---- messages -------------------------------------------------------------------------------- */

static uint8_t message[4096];
static size_t message_bytes;

static hr_status submit_scenario(struct hr_diag *diag) {
        struct hr_wire_submit submit;
        struct hr_arena arena;
        hr_status status;

        hr_arena_init(&arena, 1 << 20);
        status = hr_wire_submit_decode((struct hr_wire_span){message, message_bytes}, &arena, diag,
                                       &submit);
        if (status == HR_OK)
                HR_EXPECT(submit.weight_count == 3 && submit.pin_count == 2);
        hr_arena_deinit(&arena);
        return status;
}

HR_TEST(messages) {
        static const uint64_t weights[] = {1, 2, 3};
        static const struct hr_wire_rule pins[] = {{"blk.*", "cpu0"}, {"*", "cpu1"}};
        const struct hr_wire_submit submit = {.weights = weights, .weight_count = 3,
                                              .pins = pins, .pin_count = 2};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_wire_submit_encode(&submit, message, sizeof message, &diag, &message_bytes),
                     &diag);
        every_allocation(submit_scenario);
}

/* ---- files ----------------------------------------------------------------------------------- */

static struct gguf_builder file;

static hr_status gguf_scenario(struct hr_diag *diag) {
        static const struct hr_gguf_limits limits = {.metadata_bytes_max = 1 << 20,
                                                     .metadata_count_max = 100,
                                                     .tensors_max = 100,
                                                     .tensor_bytes_max = 1 << 20};
        struct hr_gguf gguf = {0};
        hr_status status = hr_gguf_parse(file.bytes, file.size, &limits, diag, &gguf);

        hr_gguf_deinit(&gguf);
        return status;
}

HR_TEST(gguf_files) {
        gguf_header(&file, 3, 1, 2);
        gguf_key_u32(&file, "number", 7);
        gguf_key_string(&file, "text", "words");
        gguf_string(&file, "w");
        gguf_u32(&file, 1);
        gguf_u64(&file, 8);
        gguf_u32(&file, HR_TYPE_F32);
        gguf_u64(&file, 0);
        while (file.size % 32 != 0)
                gguf_u8(&file, 0);
        for (int i = 0; i < 32; i++)
                gguf_u8(&file, (uint8_t) i);
        every_allocation(gguf_scenario);
        free(file.bytes);
}

static const char header[] = "{\"__metadata__\":{\"a\":\"b\"},"
                             "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";

static hr_status safetensors_scenario(struct hr_diag *diag) {
        static const struct hr_safetensors_limits limits = {.header_bytes_max = 1 << 20,
                                                            .metadata_count_max = 100,
                                                            .tensors_max = 100,
                                                            .tensor_bytes_max = 1 << 20};
        struct hr_safetensors parsed = {0};
        hr_status status = hr_safetensors_parse(message, message_bytes, &limits, diag, &parsed);

        hr_safetensors_deinit(&parsed);
        return status;
}

HR_TEST(safetensors_files) {
        const uint64_t bytes = sizeof header - 1;

        memcpy(message, &bytes, sizeof bytes);
        memcpy(message + 8, header, bytes);
        memset(message + 8 + bytes, 1, 8);
        message_bytes = 8 + bytes + 8;
        every_allocation(safetensors_scenario);
}

/* ---- configuration --------------------------------------------------------------------------- */

static hr_status config_scenario(struct hr_diag *diag) {
        static const char text[] = "[listen]\nunix = /run/x.sock\ntcp = 127.0.0.1:7070\n"
                                   "[models]\ndirectories = /a:/b\n"
                                   "[device cpu0]\nthreads = 2\ndeny_ops = ADD,MUL\n"
                                   "[principal p]\nuid = 1,2\npermissions = run\n";
        struct hr_config config;
        hr_status status = hr_config_init(&config, diag);

        if (status == HR_OK)
                status = hr_config_read_text(&config, "text", text, sizeof text - 1, diag);
        if (status == HR_OK)
                status = hr_config_finish(&config, diag);
        hr_config_deinit(&config);
        return status;
}

HR_TEST(configuration) {
        every_allocation(config_scenario);
}

/* ---- handles --------------------------------------------------------------------------------- */

static hr_status handles_scenario(struct hr_diag *diag) {
        static struct hr_object objects[40];
        struct hr_handles handles = {0};
        hr_status status = HR_OK;

        for (int i = 0; i < 40 && status == HR_OK; i++) {
                uint64_t handle = 0;

                status = hr_handles_add(&handles, &objects[i], diag, &handle);
                if (status == HR_OK)
                        HR_EXPECT(hr_handles_find(&handles, handle) == &objects[i]);
        }
        hr_handles_deinit(&handles);
        return status;
}

HR_TEST(handles) {
        every_allocation(handles_scenario);
}
