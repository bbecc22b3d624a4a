/*
 * The C client library, as it is installed, against a running daemon: HEADRACE_TEST_ADDRESS names
 * it; without that every test is skipped. HEADRACE_TEST_CA, _CERTIFICATE and _KEY are files for an
 * address of TLS. tests/integration/test_client_c.py starts the daemon.
 */
#include "client/c/headrace.h"

#include <dirent.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "tests/harness.h"

#define NE(a, b, c, d) {a, b, c, d}
#define OK(expression)                                                                             \
        do {                                                                                       \
                if ((expression) != HEADRACE_OK)                                                   \
                        hr_test_fail(__FILE__, __LINE__, "%s: %s %s", #expression, error.reason,   \
                                     error.words);                                                 \
        } while (0)

static struct headrace_error error;

static struct headrace_client *connected(void) {
        const char *address = getenv("HEADRACE_TEST_ADDRESS");
        struct headrace_client *client = NULL;

        if (!address)
                hr_test_skip("HEADRACE_TEST_ADDRESS is not set");
        OK(headrace_connect(address,
                            &(struct headrace_options){
                                    .timeout_ms = getenv("HEADRACE_FULL") ? 600000 : 20000,
                                    .tls_ca = getenv("HEADRACE_TEST_CA"),
                                    .tls_certificate = getenv("HEADRACE_TEST_CERTIFICATE"),
                                    .tls_key = getenv("HEADRACE_TEST_KEY"),
                            },
                            &error, &client));
        return client;
}

static uint32_t leaf(struct headrace_graph *graph, enum headrace_leaf kind, const char *type,
                     int64_t ne0, int64_t ne1, const char *name) {
        uint32_t tensor = 0;

        OK(headrace_graph_leaf(graph, kind, type, (const int64_t[4]){ne0, ne1, 1, 1}, name, &error,
                               &tensor));
        return tensor;
}

static uint32_t binary(struct headrace_graph *graph, const char *op, uint32_t a, uint32_t b) {
        uint32_t tensor = 0;

        OK(headrace_graph_node(graph,
                               &(struct headrace_node){.op = op, .sources = (uint32_t[]){a, b},
                                                       .source_count = 2},
                               &error, &tensor));
        return tensor;
}

/* y = x + x, of so many floats. */
static struct headrace_handle *doubler(struct headrace_client *client, int64_t count) {
        struct headrace_graph *graph = headrace_graph_new();
        uint32_t x = leaf(graph, HEADRACE_INPUT, "f32", count, 1, "x");
        struct headrace_handle *handle = NULL;

        headrace_graph_output(graph, binary(graph, "ADD", x, x));
        OK(headrace_submit(client, graph, NULL, 0, &error, &handle));
        headrace_graph_free(graph);
        return handle;
}

HR_TEST(questions) {
        struct headrace_client *client = connected();
        struct headrace_device *devices;
        struct headrace_stat *stats;
        char *text;
        size_t count = 0, bytes;
        bool found = false;

        OK(headrace_ping(client, 0, &error));
        OK(headrace_devices(client, 0, &error, &devices, &count));
        HR_EXPECT(count >= 1 && devices[count - 1].name[0] && devices[count - 1].type[0]);
        headrace_free(devices);
        OK(headrace_stats(client, 0, &error, &stats, &count));
        for (size_t i = 0; i < count; i++)
                found |= strcmp(stats[i].name, "connections") == 0 && stats[i].value >= 1;
        HR_EXPECT(found);
        headrace_free(stats);
        OK(headrace_quota(client, 0, &error, &stats, &count));
        HR_EXPECT(count > 0);
        headrace_free(stats);
        OK(headrace_metrics(client, 0, &error, &text));
        HR_EXPECT(strstr(text, "\nheadrace_connections 1"));
        headrace_free(text);
        OK(headrace_trace(client, 0, false, 0, &error, &text, &bytes));
        HR_EXPECT(bytes == strlen(text) && strstr(text, "\"name\":\"METRICS\""));
        headrace_free(text);
        OK(headrace_trace(client, 60000, true, 0, &error, &text, &bytes));
        HR_EXPECT(strstr(text, "\"name\":\"TRACE\""));
        headrace_free(text);
        OK(headrace_sync(client, 0, &error));
        HR_EXPECT(headrace_limits_of(client)->body_bytes_max >= 65536);
        HR_EXPECT_STREQ(headrace_daemon_version(client), headrace_version());
        (void) headrace_session_token(client, &bytes);
        HR_EXPECT(!headrace_draining(client));
        headrace_close(client);
}

/* Equal contents of a set that is its principal's alone are not those that everybody finds. */
HR_TEST(a_set_is_everybodys_or_its_principals) {
        struct headrace_client *client = connected();
        float w[64];
        const struct headrace_tensor tensor = {"w", "f32", NE(64, 1, 1, 1), w};
        struct headrace_set all, own, again;

        for (int i = 0; i < 64; i++)
                w[i] = (float) (i * 3 + getpid() % 1000); /* no other test's contents */
        OK(headrace_put(client, "of-all", &tensor, 1, NULL, 0, 0, &error, &all));
        HR_EXPECT(!all.already);
        OK(headrace_put_shared(client, "own", &tensor, 1, NULL, 0, HEADRACE_SHARE_PRINCIPAL, 0,
                               &error, &own));
        HR_EXPECT(!own.already);
        OK(headrace_put_shared(client, "own", &tensor, 1, NULL, 0, HEADRACE_SHARE_PRINCIPAL, 0,
                               &error, &again));
        HR_EXPECT(again.already);
        HR_EXPECT_EQ(headrace_put_shared(client, "own", &tensor, 1, NULL, 0,
                                         (enum headrace_share) 7, 0, &error, &again),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "SHARE");
        HR_EXPECT_EQ(headrace_load_shared(client, "no.gguf", NULL, NULL, 0,
                                          (enum headrace_share) 2, 0, &error, &again),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "SHARE");
        HR_EXPECT_EQ(headrace_load_shared(client, "", "own", NULL, 0, HEADRACE_SHARE_PRINCIPAL, 0,
                                          &error, &again),
                     HEADRACE_OK);
        HR_EXPECT_EQ(again.bytes, own.bytes);
        headrace_close(client);
}

HR_TEST(weights_and_a_product) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        struct headrace_handle *handle = NULL;
        struct headrace_run_figures figures;
        struct headrace_plan plan;
        struct headrace_set set;
        float w[3 * 4], odd[5] = {0}, x[3 * 2], y[4 * 2];
        const struct headrace_tensor tensors[] = {
                {"odd", "f32", NE(5, 1, 1, 1), odd}, /* so that padding matters */
                {"w", "f32", NE(3, 4, 1, 1), w},
        };
        uint32_t product;

        for (int i = 0; i < 12; i++)
                w[i] = (float) i;
        for (int i = 0; i < 6; i++)
                x[i] = (float) (i + 1);
        OK(headrace_put(client, "c-client", tensors, 2, NULL, 0, 0, &error, &set));
        HR_EXPECT_EQ(set.tensors, 2);
        product = binary(graph, "MUL_MAT", leaf(graph, HEADRACE_WEIGHT, "f32", 3, 4, "w"),
                         leaf(graph, HEADRACE_INPUT, "f32", 3, 2, "x"));
        headrace_graph_output(graph, product);
        HR_EXPECT_EQ(headrace_graph_bytes(graph, product), sizeof y);
        OK(headrace_submit(client, graph,
                           &(struct headrace_submit){.weights = &set.handle, .weight_count = 1}, 0,
                           &error, &handle));
        headrace_plan_of(handle, &plan);
        HR_EXPECT_EQ(plan.inputs, 1);
        HR_EXPECT_EQ(plan.outputs, 1);
        figures.sequence = UINT64_MAX;
        OK(headrace_run(handle, &(struct headrace_buffer){x, sizeof x}, 1,
                        &(struct headrace_buffer){y, sizeof y}, 1, NULL, &error, &figures));
        HR_EXPECT(figures.run_ns > 0);
        HR_EXPECT_EQ(figures.sequence, 0);
        for (int column = 0; column < 2; column++)
                for (int row = 0; row < 4; row++) {
                        float want = 0;

                        for (int k = 0; k < 3; k++)
                                want += w[row * 3 + k] * x[column * 3 + k];
                        HR_EXPECT(y[column * 4 + row] == want);
                }
        OK(headrace_release(handle, 0, &error));
        OK(headrace_drop(client, set.handle, 0, &error));
        HR_EXPECT_EQ(headrace_drop(client, set.handle, 0, &error), HEADRACE_NOT_FOUND);
        HR_EXPECT_STREQ(error.reason, "WEIGHTS");
        headrace_graph_free(graph);
        headrace_close(client);
}

HR_TEST(a_state_of_more_than_one_frame) {
        struct headrace_client *client = connected();
        const int64_t count = 1 << 20; /* 4 MiB of floats */
        struct headrace_tensor tensor = {"s", "f32", NE(count, 1, 1, 1), NULL};
        float *there = malloc((size_t) count * 4), *back = malloc((size_t) count * 4);
        uint64_t state;

        OK(headrace_state_alloc(client, &tensor, 1, NULL, 0, 0, &error, &state));
        OK(headrace_state_read(client, state, 0, 0, back, (uint64_t) count * 4, 0, &error));
        for (int64_t i = 0; i < count; i++)
                HR_EXPECT(back[i] == 0);
        for (int64_t i = 0; i < count; i++)
                there[i] = (float) i;
        OK(headrace_state_write(client, state, 0, 0, there, (uint64_t) count * 4, 0, &error));
        OK(headrace_state_read(client, state, 0, 0, back, (uint64_t) count * 4, 0, &error));
        HR_EXPECT(memcmp(there, back, (size_t) count * 4) == 0);
        OK(headrace_state_read(client, state, 0, 40, back, 8, 0, &error));
        HR_EXPECT(back[0] == 10 && back[1] == 11);
        HR_EXPECT_EQ(headrace_state_read(client, state, 0, (uint64_t) count * 4, back, 8, 0,
                                         &error),
                     HEADRACE_RANGE);
        OK(headrace_state_free(client, state, 0, &error));
        HR_EXPECT_EQ(headrace_state_free(client, state, 0, &error), HEADRACE_NOT_FOUND);
        free(there);
        free(back);
        headrace_close(client);
}

HR_TEST(states_as_a_whole) {
        struct headrace_client *client = connected();
        const int64_t count = 3 << 18; /* more than a frame */
        const uint64_t bytes = (uint64_t) count * 4;
        struct headrace_tensor tensor = {"s", "f32", NE(count, 1, 1, 1), NULL};
        float *there = malloc(bytes), *back = malloc(bytes);
        uint64_t states[3], saved_bytes = 0;
        void *saved = NULL;

        for (int64_t i = 0; i < count; i++)
                there[i] = (float) i;
        OK(headrace_state_alloc(client, &tensor, 1, NULL, 0, 0, &error, &states[0]));
        OK(headrace_state_write(client, states[0], 0, 0, there, bytes, 0, &error));
        OK(headrace_state_save(client, states[0], 0, &error, &saved, &saved_bytes));
        HR_EXPECT(saved_bytes > bytes);
        OK(headrace_state_fork(client, states[0], 0, &error, &states[1]));
        OK(headrace_state_restore(client, saved, saved_bytes,
                                  &(struct headrace_rule){"*", "cpu0"}, 1, 0, &error, &states[2]));
        memset(back, 0, bytes);
        OK(headrace_state_write(client, states[0], 0, 0, back, bytes, 0, &error));
        for (int i = 1; i < 3; i++) {
                memset(back, 0, bytes);
                OK(headrace_state_read(client, states[i], 0, 0, back, bytes, 0, &error));
                HR_EXPECT(memcmp(there, back, bytes) == 0);
        }
        HR_EXPECT_EQ(headrace_state_restore(client, saved, 7, NULL, 0, 0, &error, &states[0]),
                     HEADRACE_INVALID);
        HR_EXPECT_EQ(headrace_state_restore(client, saved, saved_bytes - 4, NULL, 0, 0, &error,
                                            &states[0]), HEADRACE_INVALID);
        HR_EXPECT_EQ(headrace_state_fork(client, 12345, 0, &error, &states[0]),
                     HEADRACE_NOT_FOUND);
        HR_EXPECT_EQ(headrace_state_save(client, 12345, 0, &error, &saved, &saved_bytes),
                     HEADRACE_NOT_FOUND);
        headrace_free(saved);
        free(there);
        free(back);
        headrace_close(client);
}

HR_TEST(reserved_and_explained) {
        struct headrace_client *client = connected();
        struct headrace_graph *graphs[2];
        struct headrace_wanted wanted[2];
        struct headrace_handle *handle = NULL;
        uint64_t reservation = 0;
        float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {0};
        void *plan = NULL;
        size_t size = 0;

        for (int i = 0; i < 2; i++) {
                uint32_t tensor;

                graphs[i] = headrace_graph_new();
                tensor = leaf(graphs[i], HEADRACE_INPUT, "f32", 4 << i, 1, "x");
                headrace_graph_output(graphs[i], binary(graphs[i], "ADD", tensor, tensor));
                wanted[i] = (struct headrace_wanted){graphs[i], NULL};
        }
        OK(headrace_reserve(client, wanted, 2, 0, &error, &reservation));
        OK(headrace_submit(client, graphs[1], &(struct headrace_submit){.realloc_fail = true}, 0,
                           &error, &handle));
        OK(headrace_run(handle, &(struct headrace_buffer){x, sizeof x}, 1,
                        &(struct headrace_buffer){y, sizeof y}, 1, NULL, &error, NULL));
        HR_EXPECT(y[7] == 16);
        OK(headrace_explain(handle, 0, &error, &plan, &size));
        HR_EXPECT(size > 20 && memmem(plan, size, "headrace", 8)); /* its rules' name */
        headrace_free(plan);
        OK(headrace_unreserve(client, reservation, 0, &error));
        HR_EXPECT_EQ(headrace_unreserve(client, reservation, 0, &error), HEADRACE_NOT_FOUND);
        OK(headrace_release(handle, 0, &error));
        for (int i = 0; i < 2; i++)
                headrace_graph_free(graphs[i]);
        headrace_close(client);
}

/* x doubled three times, of which the last two come back; with more graphs than are kept. */
HR_TEST(steps_are_chained_in_the_daemon) {
        struct headrace_client *client = connected();
        struct headrace_handle *handles[6];
        const uint32_t first = 0;
        const struct headrace_feed second_feed = {0, 0, 0}, third_feed = {0, 1, 0};
        float x[4] = {1, 2, 3, 4}, y[2][4] = {{0}};

        for (int i = 0; i < 6; i++)
                handles[i] = doubler(client, i < 3 ? 4 : i);
        for (int round = 0; round < 3; round++) {
                const struct headrace_step steps[] = {
                        {.handle = handles[0], .no_outputs = true},
                        {.handle = handles[1], .feeds = &second_feed, .feed_count = 1,
                         .outputs = &first, .output_count = 1},
                        {.handle = handles[2], .feeds = &third_feed, .feed_count = 1},
                };
                const struct headrace_buffer outputs[] = {{y[0], sizeof y[0]}, {y[1], sizeof y[1]}};

                x[0] = (float) round;
                OK(headrace_sequence(client, steps, 3, &(struct headrace_buffer){x, sizeof x}, 1,
                                     outputs, 2, NULL, &error));
                HR_EXPECT(y[0][0] == 4 * x[0] && y[0][3] == 16 && y[1][3] == 32);
                for (int i = 3; i < 6; i++) { /* others push them out */
                        float in[8] = {0}, out[8];
                        uint64_t bytes = (uint64_t) i * 4;

                        OK(headrace_run(handles[i], &(struct headrace_buffer){in, bytes}, 1,
                                        &(struct headrace_buffer){out, bytes}, 1, NULL, &error,
                                        NULL));
                }
                HR_EXPECT_EQ(headrace_sequence(client, steps, 3,
                                               &(struct headrace_buffer){x, sizeof x}, 1,
                                               &(struct headrace_buffer){y, sizeof y}, 1, NULL,
                                               &error),
                             HEADRACE_INVALID); /* two outputs, one buffer */
        }
        for (int i = 0; i < 6; i++)
                OK(headrace_release(handles[i], 0, &error));
        headrace_close(client);
}

/* Inputs that need credit, outputs in several frames. */
HR_TEST(long_inputs_and_outputs) {
        struct headrace_client *client = connected();
        const int64_t count = 3 << 18;
        struct headrace_handle *handle = doubler(client, count);
        float *x = malloc((size_t) count * 4), *y = malloc((size_t) count * 4);

        for (int round = 0; round < 3; round++) {
                for (int64_t i = 0; i < count; i++)
                        x[i] = (float) (i + round);
                OK(headrace_run(handle, &(struct headrace_buffer){x, (uint64_t) count * 4}, 1,
                                &(struct headrace_buffer){y, (uint64_t) count * 4}, 1, NULL, &error,
                                NULL));
                for (int64_t i = 0; i < count; i++)
                        HR_EXPECT(y[i] == 2 * x[i]);
        }
        OK(headrace_release(handle, 0, &error));
        free(x);
        free(y);
        headrace_close(client);
}

/* What does not fit fails its run alone, however many frames it has. */
HR_TEST(buffers_of_another_size) {
        struct headrace_client *client = connected();
        static const int64_t counts[] = {3, 3 << 18};
        static float x[3 << 18], y[(3 << 18) + 2];

        for (int i = 0; i < 2; i++) {
                struct headrace_handle *handle = doubler(client, counts[i]);
                const uint64_t exact = (uint64_t) counts[i] * 4;
                const uint64_t sizes[] = {exact - 4, 4, exact + 4};
                const struct headrace_buffer input = {x, exact};
                struct headrace_buffer outputs[2] = {{y, exact}, {y, 4}};

                for (int j = 0; j < 3; j++) {
                        y[sizes[j] / 4] = -1;
                        outputs[0].bytes = sizes[j];
                        HR_EXPECT_EQ(
                                headrace_run(handle, &input, 1, outputs, 1, NULL, &error, NULL),
                                HEADRACE_INVALID);
                        HR_EXPECT_STREQ(error.reason, "SIZE");
                        HR_EXPECT_EQ(error.limit, sizes[j]);
                        HR_EXPECT_EQ(error.actual, exact);
                        HR_EXPECT(y[sizes[j] / 4] == -1);
                }
                outputs[0].bytes = exact;
                HR_EXPECT_EQ(headrace_run(handle, &input, 1, outputs, 2, NULL, &error, NULL),
                             HEADRACE_INVALID);
                HR_EXPECT_STREQ(error.reason, "OUTPUT");
                HR_EXPECT_EQ(error.limit, 2);
                HR_EXPECT_EQ(error.actual, 1);
                x[1] = 21;
                OK(headrace_run(handle, &input, 1, outputs, 1, NULL, &error, NULL));
                HR_EXPECT(y[1] == 42);
                OK(headrace_release(handle, 0, &error));
        }
        headrace_close(client);
}

static double stat_of(struct headrace_client *client, const char *name) {
        struct headrace_stat *stats = NULL;
        size_t count = 0;
        double value = 0;

        OK(headrace_stats(client, 0, &error, &stats, &count));
        for (size_t i = 0; i < count; i++)
                if (strcmp(stats[i].name, name) == 0)
                        value += stats[i].value;
        headrace_free(stats);
        return value;
}

/* Contents of several leaves: sent as asked for or passed as memory, and not sent where they
 * are. */
HR_TEST_LIMIT(large_contents, 60) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        const int64_t count = 5 << 20; /* 20 MiB */
        const uint64_t bytes = (uint64_t) count * 4;
        float *w = malloc(bytes), *x = calloc((size_t) count, 4), *y = malloc(bytes);
        float odd[5] = {1, 2, 3, 4, 5};
        const struct headrace_tensor tensors[] = {
                {"odd", "f32", NE(5, 1, 1, 1), odd},
                {"w", "f32", NE(count, 1, 1, 1), w},
        };
        const bool is_local = strncmp(getenv("HEADRACE_TEST_ADDRESS"), "unix:", 5) == 0;
        struct headrace_handle *handle = NULL;
        struct headrace_set sets[2];
        double before, sent;

        for (int64_t i = 0; i < count; i++)
                w[i] = (float) (i * 7 + getpid() % 1000); /* no other test's contents */
        before = stat_of(client, "bytes_in_total");
        OK(headrace_put(client, "large", tensors, 2, NULL, 0, 60000, &error, &sets[0]));
        sent = stat_of(client, "bytes_in_total") - before;
        HR_EXPECT(!sets[0].already && (is_local ? sent < 20000 : sent > (double) bytes));
        OK(headrace_put(client, "large", tensors, 2, NULL, 0, 60000, &error, &sets[1]));
        HR_EXPECT(sets[1].already);
        HR_EXPECT(stat_of(client, "bytes_in_total") - before - sent < 20000);
        headrace_graph_output(graph, binary(graph, "ADD",
                                            leaf(graph, HEADRACE_WEIGHT, "f32", count, 1, "w"),
                                            leaf(graph, HEADRACE_INPUT, "f32", count, 1, "x")));
        OK(headrace_submit(client, graph,
                           &(struct headrace_submit){.weights = &sets[0].handle,
                                                     .weight_count = 1},
                           0, &error, &handle));
        OK(headrace_run(handle, &(struct headrace_buffer){x, bytes}, 1,
                        &(struct headrace_buffer){y, bytes}, 1, NULL, &error, NULL));
        HR_EXPECT(memcmp(w, y, bytes) == 0);
        OK(headrace_release(handle, 0, &error));
        for (int i = 0; i < 2; i++)
                OK(headrace_drop(client, sets[i].handle, 0, &error));
        headrace_graph_free(graph);
        free(w);
        free(x);
        free(y);
        headrace_close(client);
}

/* HEADRACE_TEST_RELAY: the same daemon behind something that breaks its connections. */
HR_TEST_LIMIT(an_upload_over_connections_that_break, 60) {
        struct headrace_client *client = connected(), *broken = NULL;
        const char *relay = getenv("HEADRACE_TEST_RELAY");
        const int64_t count = 5 << 20; /* 20 MiB: five leaves */
        float *w = malloc((size_t) count * 4);
        const struct headrace_tensor tensor = {"w", "f32", NE(count, 1, 1, 1), w};
        struct headrace_set sets[2];

        if (relay) {
                for (int64_t i = 0; i < count; i++)
                        w[i] = (float) (i * 3 + getpid() % 1000);
                OK(headrace_connect(relay, NULL, &error, &broken));
                OK(headrace_put(broken, "goes-on", &tensor, 1, NULL, 0, 60000, &error, &sets[0]));
                HR_EXPECT(!sets[0].already);
                /* The daemon has verified what it got: the same digest is there. */
                OK(headrace_put(client, "goes-on", &tensor, 1, NULL, 0, 60000, &error, &sets[1]));
                HR_EXPECT(sets[1].already);
                headrace_close(broken);
        }
        free(w);
        headrace_close(client);
}

/* Inputs, outputs and states in memory that both sides have: right, and hardly a byte is sent. */
HR_TEST(shared_memory) {
        struct headrace_client *client = connected();
        const int64_t count = 1 << 20;
        const uint64_t bytes = (uint64_t) count * 4;
        struct headrace_handle *handle = doubler(client, count);
        const struct headrace_tensor tensor = {"s", "f32", NE(count, 1, 1, 1), NULL};
        const struct headrace_feed feed = {0, 0, 0};
        struct headrace_step steps[2];
        struct headrace_region *region = NULL;
        uint64_t state;
        double before;
        float *x, *y;

        if (strncmp(getenv("HEADRACE_TEST_ADDRESS"), "unix:", 5) != 0) {
                HR_EXPECT_EQ(headrace_region_new(client, bytes, 0, &error, &region),
                             HEADRACE_UNSUPPORTED);
                OK(headrace_region_free(NULL, 0, &error));
                OK(headrace_release(handle, 0, &error));
                headrace_close(client);
                return;
        }
        OK(headrace_region_new(client, 2 * bytes, 0, &error, &region));
        x = headrace_region_memory(region);
        y = x + count;
        OK(headrace_state_alloc(client, &tensor, 1, NULL, 0, 0, &error, &state));
        before = stat_of(client, "bytes_in_total") + stat_of(client, "bytes_out_total");
        for (int round = 0; round < 3; round++) {
                for (int64_t i = 0; i < count; i++)
                        x[i] = (float) (i + round);
                OK(headrace_run(handle, &(struct headrace_buffer){x, bytes}, 1,
                                &(struct headrace_buffer){y, bytes}, 1, NULL, &error, NULL));
                for (int64_t i = 0; i < count; i++)
                        HR_EXPECT(y[i] == 2 * x[i]);
                OK(headrace_state_write(client, state, 0, 0, y, bytes, 0, &error));
                memset(x, 0, bytes);
                OK(headrace_state_read(client, state, 0, 0, x, bytes, 0, &error));
                HR_EXPECT(memcmp(x, y, bytes) == 0);
        }
        steps[0] = (struct headrace_step){.handle = handle, .no_outputs = true};
        steps[1] = (struct headrace_step){.handle = handle, .feeds = &feed, .feed_count = 1};
        for (int64_t i = 0; i < count; i++)
                x[i] = (float) i;
        OK(headrace_sequence(client, steps, 2, &(struct headrace_buffer){x, bytes}, 1,
                             &(struct headrace_buffer){y, bytes}, 1, NULL, &error));
        for (int64_t i = 0; i < count; i++)
                HR_EXPECT(y[i] == 4 * (float) i);
        HR_EXPECT(stat_of(client, "bytes_in_total") + stat_of(client, "bytes_out_total") - before <
                  60000);
        OK(headrace_state_read(client, state, 0, 0, x, bytes, 0, &error));
        /* At any place of it; what ends behind it is sent as ever. */
        OK(headrace_run(handle, &(struct headrace_buffer){x + 1, bytes}, 1,
                        &(struct headrace_buffer){x, bytes}, 1, NULL, &error, NULL));
        HR_EXPECT(x[0] == 4 * (float) 3); /* twice what the state had at 1 */
        OK(headrace_region_free(region, 0, &error));
        OK(headrace_state_free(client, state, 0, &error));
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

struct watched {
        uint32_t tensors[8];
        double sums[8];
        int count, stop_at; /* 0: never */
};

static bool watch(void *arg, uint32_t tensor, const void *data, uint64_t bytes) {
        struct watched *watched = arg;
        const float *values = data;

        HR_EXPECT(watched->count < 8);
        watched->tensors[watched->count] = tensor;
        watched->sums[watched->count] = 0;
        for (uint64_t i = 0; i < bytes / 4; i++)
                watched->sums[watched->count] += (double) values[i];
        return ++watched->count != watched->stop_at;
}

/* Three nodes, of more than a frame each: two are shown, in the nodes' order. */
HR_TEST(taps_show_what_nodes_give) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        const int64_t count = 3 << 18;
        const uint64_t bytes = (uint64_t) count * 4;
        uint32_t x = leaf(graph, HEADRACE_INPUT, "f32", count, 1, "x");
        uint32_t twice = binary(graph, "ADD", x, x), four = binary(graph, "ADD", twice, twice);
        uint32_t late = leaf(graph, HEADRACE_INPUT, "f32", count, 1, "late"); /* ids move */
        uint32_t all = binary(graph, "ADD", four, late);
        const uint32_t taps[] = {all, twice};
        float *values = malloc(bytes), *out = malloc(bytes);
        const struct headrace_buffer inputs[] = {{values, bytes}, {values, bytes}};
        const struct headrace_buffer output = {out, bytes};
        struct headrace_handle *handle = NULL;
        struct watched watched = {0};
        struct headrace_run_options options = {.observe = watch, .observe_arg = &watched};

        for (int64_t i = 0; i < count; i++)
                values[i] = 1;
        headrace_graph_output(graph, all);
        HR_EXPECT_EQ(headrace_submit(client, graph,
                                     &(struct headrace_submit){.taps = &x, .tap_count = 1}, 0,
                                     &error, &handle),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "TAP");
        OK(headrace_submit(client, graph, &(struct headrace_submit){.taps = taps, .tap_count = 2},
                           0, &error, &handle));
        OK(headrace_run(handle, inputs, 2, &output, 1, &options, &error, NULL));
        HR_EXPECT_EQ(watched.count, 2);
        HR_EXPECT(watched.tensors[0] == twice && watched.sums[0] == 2.0 * (double) count);
        HR_EXPECT(watched.tensors[1] == all && watched.sums[1] == 5.0 * (double) count);
        HR_EXPECT(out[0] == 5 && out[count - 1] == 5);
        OK(headrace_run(handle, inputs, 2, &output, 1, NULL, &error, NULL)); /* nothing is shown */
        HR_EXPECT_EQ(watched.count, 2);
        watched = (struct watched){.stop_at = 1};
        HR_EXPECT_EQ(headrace_run(handle, inputs, 2, &output, 1, &options, &error, NULL),
                     HEADRACE_CANCELLED);
        HR_EXPECT_STREQ(error.reason, "TAP_STOP");
        HR_EXPECT(watched.count == 1 && watched.tensors[0] == twice);
        OK(headrace_ping(client, 0, &error));
        OK(headrace_release(handle, 0, &error));
        headrace_graph_free(graph);
        free(values);
        free(out);
        headrace_close(client);
}

/* x -> a = x + x -> b = a + kept -> w: b into s -> d = w + x. Leaves and nodes are made in turn, so
 * that what the wire numbers otherwise is told as the graph numbers it. */
HR_TEST(a_stopped_run_tells_which_states_it_has_written) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        const struct headrace_tensor tensors[] = {{"kept", "f32", NE(4, 1, 1, 1), NULL},
                                                  {"s", "f32", NE(4, 1, 1, 1), NULL}};
        const uint32_t x = leaf(graph, HEADRACE_INPUT, "f32", 4, 1, "x");
        const uint32_t a = binary(graph, "ADD", x, x);
        const uint32_t kept = leaf(graph, HEADRACE_STATE, "f32", 4, 1, "kept");
        const uint32_t b = binary(graph, "ADD", a, kept);
        const uint32_t s = leaf(graph, HEADRACE_STATE, "f32", 4, 1, "s");
        const uint32_t w = binary(graph, "CPY", b, s), d = binary(graph, "ADD", w, x);
        const uint32_t taps[] = {a, w, d};
        float in[4] = {1, 2, 3, 4}, out[4], held[4];
        const struct headrace_buffer input = {in, sizeof in}, output = {out, sizeof out};
        struct headrace_submit submit = {.state_count = 1, .taps = taps, .tap_count = 3};
        struct headrace_handle *handle = NULL;
        struct watched watched;
        struct headrace_run_options options = {.observe = watch, .observe_arg = &watched};
        uint64_t state = 0;

        OK(headrace_state_alloc(client, tensors, 2, NULL, 0, 0, &error, &state));
        submit.states = &state;
        headrace_graph_output(graph, d);
        OK(headrace_submit(client, graph, &submit, 0, &error, &handle));
        for (int stop = 1; stop <= 3; stop++) {
                const bool wrote = stop >= 2;

                watched = (struct watched){.stop_at = stop};
                memset(&error, 0xAA, sizeof error);
                HR_EXPECT_EQ(headrace_run(handle, &input, 1, &output, 1, &options, &error, NULL),
                             HEADRACE_CANCELLED);
                HR_EXPECT_STREQ(error.reason, "TAP_STOP");
                HR_EXPECT_EQ(error.written_count, wrote ? 1 : 0);
                HR_EXPECT(!wrote || error.written[0] == s);
                HR_EXPECT(error.written_left_out == 0 && !error.has_step);
                OK(headrace_state_read(client, state, 1, 0, held, sizeof held, 0, &error));
                HR_EXPECT(held[3] == (wrote ? 8 : 0));
        }
        OK(headrace_run(handle, &input, 1, &output, 1, NULL, &error, NULL));
        HR_EXPECT(out[3] == 12);
        /* A run that does not begin writes nothing. */
        HR_EXPECT_EQ(headrace_run(handle, NULL, 0, &output, 1, NULL, &error, NULL),
                     HEADRACE_INVALID);
        HR_EXPECT_EQ(error.written_count, 0);
        OK(headrace_release(handle, 0, &error));
        OK(headrace_state_free(client, state, 0, &error));
        headrace_graph_free(graph);
        headrace_close(client);
}

/* A leaf behind a node: the daemon's id of it is another. */
HR_TEST(an_error_names_a_tensor_as_the_graph_numbers_it) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        struct headrace_handle *none = NULL;
        const uint32_t x = leaf(graph, HEADRACE_INPUT, "f32", 4, 1, "x");
        const uint32_t twice = binary(graph, "ADD", x, x);
        const uint32_t w = leaf(graph, HEADRACE_WEIGHT, "f32", 4, 1, "nobody.has.this");

        headrace_graph_output(graph, binary(graph, "ADD", twice, w));
        HR_EXPECT_EQ(headrace_submit(client, graph, NULL, 0, &error, &none), HEADRACE_PRECONDITION);
        HR_EXPECT_STREQ(error.reason, "UNBOUND");
        HR_EXPECT(error.has_tensor && error.tensor == w);
        headrace_graph_free(graph);
        headrace_close(client);
}

HR_TEST(many_runs_in_flight_end_in_any_order) {
        struct headrace_client *client = connected();
        struct headrace_handle *handle = doubler(client, 1);
        struct headrace_run *runs[32];
        float x[32], y[32];

        for (int round = 0; round < 20; round++) {
                for (int i = 0; i < 32; i++) {
                        x[i] = (float) (round * 100 + i);
                        OK(headrace_run_start(handle, &(struct headrace_buffer){&x[i], 4}, 1,
                                              &(struct headrace_buffer){&y[i], 4}, 1, NULL, &error,
                                              &runs[i]));
                }
                for (int i = 31; i >= 0; i--) {
                        OK(headrace_run_wait(runs[i], &error, NULL));
                        HR_EXPECT(y[i] == 2 * x[i]);
                }
        }
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

struct shared {
        struct headrace_client *client;
        struct headrace_handle *handle;
        _Atomic int failures;
};

static void *run_many(void *arg) {
        struct shared *shared = arg;

        for (int i = 0; i < 400; i++) {
                float x = (float) (i * 7 + (int) (pthread_self() % 1000)), y = 0;

                if (headrace_run(shared->handle, &(struct headrace_buffer){&x, 4}, 1,
                                 &(struct headrace_buffer){&y, 4}, 1, NULL, NULL, NULL) !=
                            HEADRACE_OK ||
                    y != 2 * x)
                        shared->failures++;
                if (i % 16 == 0 && headrace_ping(shared->client, 0, NULL) != HEADRACE_OK)
                        shared->failures++;
        }
        return NULL;
}

HR_TEST_LIMIT(threads_share_one_client, 60) {
        struct shared shared = {.client = connected()};
        pthread_t threads[8];

        shared.handle = doubler(shared.client, 1);
        for (int i = 0; i < 8; i++)
                HR_EXPECT(pthread_create(&threads[i], NULL, run_many, &shared) == 0);
        for (int i = 0; i < 8; i++)
                (void) pthread_join(threads[i], NULL);
        HR_EXPECT_EQ(shared.failures, 0);
        OK(headrace_release(shared.handle, 0, &error));
        headrace_close(shared.client);
}

/* The daemon keeps four graphs: each is submitted again when its turn comes. */
HR_TEST(an_evicted_graph_is_submitted_again) {
        struct headrace_client *client = connected();
        struct headrace_handle *handles[8];

        if ((int) headrace_limits_of(client)->session_graphs_max != 4)
                hr_test_skip("needs a daemon that keeps four graphs of a session");
        for (int i = 0; i < 8; i++)
                handles[i] = doubler(client, i + 1);
        for (int round = 0; round < 3; round++)
                for (int i = 0; i < 8; i++) {
                        float x[8] = {1, 2, 3, 4, 5, 6, 7, 8}, y[8] = {0};
                        uint64_t bytes = (uint64_t) (i + 1) * 4;

                        OK(headrace_run(handles[i], &(struct headrace_buffer){x, bytes}, 1,
                                        &(struct headrace_buffer){y, bytes}, 1, NULL, &error,
                                        NULL));
                        for (int j = 0; j <= i; j++)
                                HR_EXPECT(y[j] == 2 * x[j]);
                }
        for (int i = 0; i < 8; i++)
                OK(headrace_release(handles[i], 0, &error));
        headrace_close(client);
}

HR_TEST(errors_say_what_and_where) {
        struct headrace_client *client = connected();
        struct headrace_graph *graph = headrace_graph_new();
        struct headrace_handle *handle = doubler(client, 4), *none = NULL;
        struct headrace_set set;
        float x[4] = {1, 2, 3, 4}, y[4] = {0};
        uint32_t w = leaf(graph, HEADRACE_WEIGHT, "f32", 4, 1, "nobody.has.this");

        headrace_graph_output(graph, binary(graph, "ADD", w, w));
        HR_EXPECT_EQ(headrace_submit(client, graph, NULL, 0, &error, &none), HEADRACE_PRECONDITION);
        HR_EXPECT_STREQ(error.reason, "UNBOUND");
        HR_EXPECT(error.has_tensor && error.tensor == w);
        HR_EXPECT(none == NULL);
        HR_EXPECT_EQ(headrace_load(client, "../outside.gguf", NULL, NULL, 0, 0, &error, &set),
                     HEADRACE_INVALID);
        HR_EXPECT_STREQ(error.reason, "PATH");
        HR_EXPECT_EQ(headrace_load(client, "nothing.gguf", NULL, NULL, 0, 0, &error, &set),
                     HEADRACE_NOT_FOUND);
        /* Too few inputs, too small and too large a buffer: nothing is written past one. */
        HR_EXPECT_EQ(headrace_run(handle, NULL, 0, &(struct headrace_buffer){y, sizeof y}, 1, NULL,
                                  &error, NULL),
                     HEADRACE_INVALID);
        HR_EXPECT_EQ(headrace_run(handle, &(struct headrace_buffer){x, sizeof x}, 1,
                                  &(struct headrace_buffer){y, sizeof y}, 1, NULL, &error, NULL),
                     HEADRACE_OK);
        OK(headrace_release(handle, 0, &error));
        headrace_graph_free(graph);
        headrace_close(client);
}

HR_TEST(a_cancelled_run_ends_once) {
        struct headrace_client *client = connected();
        struct headrace_handle *handle = doubler(client, 1);
        int cancelled = 0;

        for (int i = 0; i < 50; i++) {
                float x = 1, y = 0;
                struct headrace_run *run;
                enum headrace_status status;

                OK(headrace_run_start(handle, &(struct headrace_buffer){&x, 4}, 1,
                                      &(struct headrace_buffer){&y, 4}, 1, NULL, &error, &run));
                headrace_run_cancel(run);
                status = headrace_run_wait(run, &error, NULL);
                HR_EXPECT(status == HEADRACE_CANCELLED || (status == HEADRACE_OK && y == 2));
                cancelled += status == HEADRACE_CANCELLED;
        }
        (void) cancelled; /* mostly too late, which is right as well */
        OK(headrace_release(handle, 0, &error));
        OK(headrace_ping(client, 0, &error));
        headrace_close(client);
}

/* What this process holds: descriptors, and bytes of the heap in use. */
static void held(size_t *ret_fds, size_t *ret_bytes) {
        DIR *folder = opendir("/proc/self/fd");

        *ret_fds = 0;
        while (folder && readdir(folder))
                ++*ret_fds;
        if (folder)
                (void) closedir(folder);
        *ret_bytes = mallinfo2().uordblks;
}

static void connect_and_run(int runs) {
        struct headrace_client *client = connected();
        struct headrace_handle *handle = doubler(client, 2);

        for (int i = 0; i < runs; i++) {
                float x[2] = {1, 2}, y[2] = {0};

                OK(headrace_run(handle, &(struct headrace_buffer){x, 8}, 1,
                                &(struct headrace_buffer){y, 8}, 1, NULL, &error, NULL));
                HR_EXPECT(y[1] == 4);
        }
        OK(headrace_release(handle, 0, &error));
        headrace_close(client);
}

/* In the long form 100 000 connections and 1 000 000 runs. */
HR_TEST_LIMIT(connections_and_runs_leave_nothing, 7200) {
        const int connections = getenv("HEADRACE_FULL") ? 100000 : 200;
        /* Without the heap's caches, which count as in use and take long to fill, not a byte
         * more. */
        const size_t allowed = getenv("GLIBC_TUNABLES") ? 1024 : 262144;
        size_t fds[2], bytes[2];

        for (int i = 0; i < 20; i++) /* until what the libraries keep for themselves is there */
                connect_and_run(10);
        held(&fds[0], &bytes[0]);
        for (int i = 0; i < connections; i++)
                connect_and_run(10);
        held(&fds[1], &bytes[1]);
        HR_EXPECT_EQ(fds[1], fds[0]);
        if (bytes[1] > bytes[0] + allowed)
                hr_test_fail(__FILE__, __LINE__, "%zu bytes of the heap in use, then %zu", bytes[0],
                             bytes[1]);
}
