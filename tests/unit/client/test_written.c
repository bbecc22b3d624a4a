/* What a run or step has written, as a played daemon tells it: as the graph numbers it. */
#include <stdio.h>

#include "tests/harness.h"
#include "tests/unit/client/peer.h"

static struct hr_wire_error_more told;
static struct hr_diag failure;

/* Takes every graph; no run or sequence comes to its end. */
static void play(struct peer *peer) {
        uint8_t message[4096];
        struct hr_diag diag = {0};
        size_t bytes = 0;

        for (uint64_t handle = 1; peer_receive(peer); handle++) {
                const struct hr_wire_submit_reply reply = {.handle = handle};
                struct hr_frame_header header = {.type = peer->header.type | HR_FRAME_REPLY,
                                                 .flags = HR_FRAME_END,
                                                 .request_id = peer->header.request_id};

                if (peer->header.type == HR_FRAME_SUBMIT) {
                        HR_EXPECT_OK(hr_wire_submit_reply_encode(&reply, message, sizeof message,
                                                                 &diag, &bytes),
                                     &diag);
                } else if (peer->header.type == HR_FRAME_SEQUENCE ||
                           peer->header.type == HR_FRAME_RUN) {
                        header.flags |= HR_FRAME_ERROR;
                        header.timeout_ms = hr_status_grpc_code(failure.status);
                        HR_EXPECT_EQ(hr_wire_error_encode(&failure, &told, message, sizeof message,
                                                          &bytes),
                                     HR_OK);
                } else {
                        bytes = 0;
                }
                header.message_bytes = (uint32_t) bytes;
                peer_send(peer, &header, message, NULL);
        }
}

/* So many pairs: states s0, s1... each behind a node that reads the one before. Number 2i on the
 * graph's side is leaf i on the wire's. */
static struct headrace_handle *submitted(struct headrace_client *client, uint32_t states) {
        struct headrace_graph *graph = headrace_graph_new();
        const int64_t ne[4] = {4, 1, 1, 1};
        struct headrace_handle *handle = NULL;
        struct headrace_error error = {0};
        uint32_t before = 0, tensor = 0;
        uint32_t sources[2];
        char name[16];

        for (uint32_t i = 0; i < states; i++) {
                (void) snprintf(name, sizeof name, "s%u", i);
                HR_EXPECT_EQ(headrace_graph_leaf(graph, HEADRACE_STATE, "f32", ne, name, &error,
                                                 &tensor),
                             HEADRACE_OK);
                HR_EXPECT_EQ(tensor, 2 * i);
                sources[0] = tensor;
                sources[1] = before;
                HR_EXPECT_EQ(headrace_graph_node(
                                     graph,
                                     &(struct headrace_node){.op = "ADD",
                                                             .sources = sources,
                                                             .source_count = 2},
                                     &error, &before),
                             HEADRACE_OK);
        }
        headrace_graph_output(graph, before);
        HR_EXPECT_EQ(headrace_submit(client, graph, NULL, 0, &error, &handle), HEADRACE_OK);
        headrace_graph_free(graph);
        return handle;
}

HR_TEST(as_the_graph_of_the_step_numbers_it) {
        static const uint32_t two[] = {1, 3};
        static const uint32_t strange[] = {1, 8, 2, UINT32_MAX}; /* of 8 tensors */
        struct peer *peer = peer_new(play);
        struct headrace_error error = {0};
        struct headrace_client *client = NULL;
        struct headrace_step steps[2];

        HR_EXPECT_EQ(peer_connect(peer, 5000, &error, &client), HEADRACE_OK);
        steps[0] = (struct headrace_step){.handle = submitted(client, 2)};
        steps[1] = (struct headrace_step){.handle = submitted(client, 4)};
        failure = (struct hr_diag){.status = HR_E_CANCELLED, .reason = "CANCELLED", .words = "so",
                                   .has_step = true, .step = 1, .has_tensor = true, .tensor = 2};
        told = (struct hr_wire_error_more){.written = two, .written_count = 2};
        HR_EXPECT_EQ(headrace_sequence(client, steps, 2, NULL, 0, NULL, 0, NULL, &error),
                     HEADRACE_CANCELLED);
        HR_EXPECT(error.has_step && error.step == 1);
        HR_EXPECT(error.has_tensor && error.tensor == 4);
        HR_EXPECT(error.written_count == 2 && error.written_left_out == 0);
        HR_EXPECT(error.written[0] == 2 && error.written[1] == 6);
        /* What is no tensor of that graph is not told as one. */
        told = (struct hr_wire_error_more){.written = strange, .written_count = 4};
        HR_EXPECT_EQ(headrace_sequence(client, steps, 2, NULL, 0, NULL, 0, NULL, &error),
                     HEADRACE_CANCELLED);
        HR_EXPECT(error.written_count == 2 && error.written_left_out == 2);
        HR_EXPECT(error.written[0] == 2 && error.written[1] == 4);
        /* Nor is anything of a step that there is not. */
        failure.step = 2;
        HR_EXPECT_EQ(headrace_sequence(client, steps, 2, NULL, 0, NULL, 0, NULL, &error),
                     HEADRACE_CANCELLED);
        HR_EXPECT(error.written_count == 0 && error.written_left_out == 4 && !error.has_tensor);
        told = (struct hr_wire_error_more){0};
        failure.step = 0;
        HR_EXPECT_EQ(headrace_sequence(client, steps, 2, NULL, 0, NULL, 0, NULL, &error),
                     HEADRACE_CANCELLED);
        HR_EXPECT(error.written_count == 0 && error.written_left_out == 0);
        HR_EXPECT(error.has_step && error.step == 0 && error.has_tensor && error.tensor == 1);
        for (int i = 0; i < 2; i++)
                HR_EXPECT_EQ(headrace_release(steps[i].handle, 0, &error), HEADRACE_OK);
        headrace_close(client);
        peer_free(peer);
}

/* More than there is room for are counted. */
HR_TEST(more_than_there_is_room_for) {
        static uint32_t all[300];
        struct peer *peer = peer_new(play);
        struct headrace_error error = {0};
        struct headrace_client *client = NULL;
        struct headrace_handle *handle;

        for (uint32_t i = 0; i < 300; i++)
                all[i] = i;
        HR_EXPECT_EQ(peer_connect(peer, 5000, &error, &client), HEADRACE_OK);
        handle = submitted(client, 300);
        failure = (struct hr_diag){.status = HR_E_DATA_LOSS, .reason = "DEVICE_LOST",
                                   .words = "so"};
        told = (struct hr_wire_error_more){.written = all, .written_count = 300};
        HR_EXPECT_EQ(headrace_run(handle, NULL, 0, NULL, 0, NULL, &error, NULL),
                     HEADRACE_DATA_LOSS);
        HR_EXPECT(!error.has_step);
        HR_EXPECT_EQ(error.written_count, HEADRACE_ERROR_WRITTEN_MAX);
        HR_EXPECT_EQ(error.written_left_out, 300 - HEADRACE_ERROR_WRITTEN_MAX);
        for (uint32_t i = 0; i < error.written_count; i++)
                HR_EXPECT_EQ(error.written[i], 2 * i);
        HR_EXPECT_EQ(headrace_release(handle, 0, &error), HEADRACE_OK);
        headrace_close(client);
        peer_free(peer);
}
