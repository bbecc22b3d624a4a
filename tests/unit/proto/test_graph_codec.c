/* Graphs in columns: round trip, chunks, views of views, and columns that lie. */
#include "proto/codec.h"

#include "core/clock.h"
#include "tests/build.h"
#include "tests/harness.h"

static const struct hr_wire_graph_limits limits = {
        .nodes_max = 1000000,
        .leaves_max = 1000000,
        .bytes_max = UINT64_C(1) << 30,
};

/* ---- a writer that can lie ------------------------------------------------------------------- */

static uint8_t buffer[1 << 16];
static size_t used;

static void put_varint(uint64_t value) {
        do {
                buffer[used++] = (uint8_t) ((value & 0x7F) | (value > 0x7F ? 0x80 : 0));
                value >>= 7;
        } while (value > 0);
}

static void put_bytes(unsigned number, const void *bytes, size_t size) {
        put_varint(number << 3 | 2);
        put_varint(size);
        if (size > 0)
                memcpy(buffer + used, bytes, size);
        used += size;
}

#define PUT_WORDS(number, ...)                                                                     \
        do {                                                                                       \
                const uint32_t hr_words[] = {__VA_ARGS__};                                         \
                put_bytes(number, hr_words, sizeof hr_words);                                      \
        } while (0)
#define PUT_LONGS(number, ...)                                                                     \
        do {                                                                                       \
                const uint64_t hr_longs[] = {__VA_ARGS__};                                         \
                put_bytes(number, hr_longs, sizeof hr_longs);                                      \
        } while (0)

static void put_leaf_count(uint64_t count) {
        put_varint(1 << 3);
        put_varint(count);
}

static hr_status decode(struct hr_diag *diag, struct hr_graph **ret_graph) {
        return hr_wire_graph_decode((struct hr_wire_span){buffer, used}, &limits, diag, ret_graph);
}

static void expect_reason(hr_status status, const char *reason, const char *field) {
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_EQ(decode(&diag, &graph), status);
        HR_EXPECT_EQ(decode(NULL, &graph), status);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), reason);
        HR_EXPECT(!graph);
        if (field)
                HR_EXPECT_STREQ(diag.field ? diag.field : "", field);
}

/* Two leaves (input, constant of two floats) and one ADD, all in order; each test then adds lies.
 */
static void put_sample(void) {
        static const float constant[] = {1, 2};

        used = 0;
        put_leaf_count(2);
        PUT_WORDS(2, HR_OP_ADD);
        PUT_WORDS(3, 0, 0, 0);
        PUT_WORDS(4, 1, 0, 2);
        PUT_LONGS(5, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1);
        PUT_WORDS(6, HR_LEAF_INPUT, HR_LEAF_CONSTANT);
        PUT_WORDS(7, 2);
        PUT_WORDS(8, 0, 1);
        PUT_WORDS(16, 1, 0, 3);
        put_bytes(17, "xout", 4);
        PUT_LONGS(18, 8);
        put_bytes(19, constant, sizeof constant);
}

HR_TEST(sample_is_valid) {
        struct hr_graph *graph = NULL;
        struct hr_graph_limits graph_limits = {.tensor_bytes_max = 1 << 20};
        struct hr_diag diag = {0};
        size_t bytes = 0;

        put_sample();
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        HR_EXPECT_EQ(graph->leaf_count, 2);
        HR_EXPECT_EQ(graph->node_count, 1);
        HR_EXPECT_EQ(memcmp(hr_graph_name(graph, 2, &bytes), "out", 3), 0);
        HR_EXPECT_EQ(bytes, 3);
        HR_EXPECT_OK(hr_graph_validate(graph, &graph_limits, &diag), &diag);
        HR_EXPECT_EQ(graph->input_count, 1);
        HR_EXPECT_EQ(graph->outputs[0], 2);
        HR_EXPECT_EQ(graph->constant_offsets[2], 8);
        graph = hr_graph_unref(graph);
}

HR_TEST(columns_in_pieces_and_elements) {
        struct hr_graph *whole = NULL, *pieces = NULL;
        struct hr_diag diag = {0};

        put_sample();
        HR_EXPECT_OK(decode(&diag, &whole), &diag);
        used = 0;
        put_leaf_count(99); /* of scalars the last wins */
        PUT_WORDS(3, 0);
        PUT_WORDS(2, HR_OP_ADD);
        put_varint(3 << 3 | 5); /* one element without packing */
        memset(buffer + used, 0, 4);
        used += 4;
        PUT_WORDS(4, 1, 0);
        put_bytes(17, "lost", 4); /* of blobs too */
        PUT_WORDS(3, 0);
        PUT_LONGS(5, 2, 1, 1, 1, 2, 1, 1);
        for (int i = 0; i < 5; i++) {
                put_varint(5 << 3 | 1);
                memcpy(buffer + used, &(uint64_t){i == 1 ? 2 : 1}, 8);
                used += 8;
        }
        PUT_WORDS(4, 2);
        PUT_WORDS(6, HR_LEAF_INPUT);
        PUT_WORDS(6, HR_LEAF_CONSTANT);
        PUT_WORDS(7, 2);
        PUT_WORDS(8, 0);
        PUT_WORDS(8, 1);
        PUT_WORDS(16, 1, 0, 3);
        put_bytes(17, "xout", 4);
        PUT_LONGS(18, 8);
        put_bytes(19, (const float[]){1, 2}, 8);
        put_leaf_count(2);
        put_varint(1000 << 3 | 2); /* an unknown field */
        put_varint(0);
        HR_EXPECT_OK(decode(&diag, &pieces), &diag);
        HR_EXPECT(hr_graph_hash(whole) == hr_graph_hash(pieces));
        whole = hr_graph_unref(whole);
        pieces = hr_graph_unref(pieces);
}

HR_TEST(absent_columns_are_zeros) {
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};
        size_t bytes = 9;

        used = 0;
        put_leaf_count(1);
        PUT_WORDS(3, 0);
        PUT_LONGS(5, 2, 1, 1, 1);
        PUT_WORDS(6, HR_LEAF_INPUT);
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        HR_EXPECT_EQ(graph->tensors[0].flags, 0);
        (void) hr_graph_name(graph, 0, &bytes);
        HR_EXPECT_EQ(bytes, 0);
        graph = hr_graph_unref(graph);
        used = 0; /* nothing at all is a graph without tensors, which validation judges */
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        graph = hr_graph_unref(graph);
}

HR_TEST(lengths_that_disagree) {
        static const struct {
                unsigned number;
                bool is_long;
                const char *field;
        } columns[] = {
                {2, false, "type"},       {3, false, "type"},       {4, false, "flags"},
                {5, true, "ne"},          {6, false, "leaf_kind"},  {7, false, "source_count"},
                {8, false, "source"},     {9, false, NULL},         {10, false, "param"},
                {11, false, "view_base"}, {12, false, "view_base"}, {13, true, "view_offset"},
                {14, false, "stride"},    {15, true, "stride"},     {16, false, "name_length"},
                {18, true, "constants"},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(columns); i++) {
                put_sample();
                if (columns[i].is_long)
                        PUT_LONGS(columns[i].number, 1);
                else
                        PUT_WORDS(columns[i].number, 1);
                if (columns[i].number == 9) /* one word announced, none there */
                        expect_reason(HR_E_INVALID, "COLUMN", "param");
                else
                        expect_reason(HR_E_INVALID, "COLUMN", columns[i].field);
        }
        put_sample();
        PUT_WORDS(9, 1, 1);
        expect_reason(HR_E_INVALID, "COLUMN", "param_count");
        put_sample();
        put_bytes(17, "xou", 3);
        expect_reason(HR_E_INVALID, "COLUMN", "names");
        put_sample();
        put_bytes(19, "1234567", 7);
        expect_reason(HR_E_INVALID, "COLUMN", "constants");
}

HR_TEST(leaf_counts_that_lie) {
        static const uint64_t counts[] = {0, 1, 3, 1000000, UINT32_MAX, UINT64_MAX};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(counts); i++) {
                struct hr_graph *graph = NULL;
                struct hr_diag diag = {0};
                hr_status status;

                put_sample();
                put_leaf_count(counts[i]);
                status = decode(&diag, &graph);
                HR_EXPECT_EQ(status, counts[i] > 1000000 ? HR_E_EXHAUSTED : HR_E_INVALID);
        }
}

HR_TEST(counts_whose_sum_is_huge) {
        put_sample();
        PUT_WORDS(7, UINT32_MAX); /* a second node's sources, as many as there can be */
        PUT_WORDS(2, HR_OP_ADD);
        PUT_WORDS(3, 0);
        PUT_WORDS(4, 0);
        PUT_LONGS(5, 2, 1, 1, 1);
        PUT_WORDS(16, 0);
        expect_reason(HR_E_INVALID, "COLUMN", "source");
        put_sample();
        PUT_LONGS(18, UINT64_MAX - 7); /* with the first entry it wraps to zero */
        expect_reason(HR_E_INVALID, "COLUMN", "constants");
        put_sample();
        PUT_WORDS(9, 17); /* more words than an op has */
        for (int i = 0; i < 17; i++)
                PUT_WORDS(10, 0);
        expect_reason(HR_E_INVALID, "COLUMN", "param_count");
}

HR_TEST(constants_of_another_size) {
        used = 0;
        put_leaf_count(1);
        PUT_WORDS(3, 0);
        PUT_LONGS(5, 2, 1, 1, 1);
        PUT_WORDS(6, HR_LEAF_CONSTANT);
        PUT_LONGS(18, 7);
        put_bytes(19, "1234567", 7);
        expect_reason(HR_E_INVALID, "COLUMN", "constant_bytes");
        used = 0; /* bytes, but no constant */
        put_leaf_count(1);
        PUT_WORDS(3, 0);
        PUT_LONGS(5, 2, 1, 1, 1);
        PUT_WORDS(6, HR_LEAF_INPUT);
        PUT_LONGS(18, 8);
        put_bytes(19, "12345678", 8);
        expect_reason(HR_E_INVALID, "COLUMN", "constant_bytes");
}

HR_TEST(ids_out_of_range) {
        put_sample();
        used = 0;
        put_sample();
        PUT_WORDS(11, 3); /* a view that is no tensor */
        PUT_WORDS(12, 0);
        PUT_LONGS(13, 0);
        expect_reason(HR_E_INVALID, "COLUMN", "view_tensor");
        put_sample();
        PUT_WORDS(14, UINT32_MAX);
        PUT_LONGS(15, 4, 8, 8, 8);
        expect_reason(HR_E_INVALID, "COLUMN", "stride_tensor");
        put_sample();
        PUT_WORDS(14, 0, 0); /* named twice */
        PUT_LONGS(15, 4, 8, 8, 8, 4, 8, 8, 8);
        expect_reason(HR_E_INVALID, "COLUMN", "stride_tensor");
        put_sample();
        PUT_WORDS(11, 2, 2);
        PUT_WORDS(12, 0, 0);
        PUT_LONGS(13, 0, 0);
        expect_reason(HR_E_INVALID, "COLUMN", "view_tensor");
        put_sample();
        PUT_WORDS(7, 1); /* a second node with a source far outside */
        PUT_WORDS(8, 7);
        PUT_WORDS(2, HR_OP_CONT);
        PUT_WORDS(3, 0);
        PUT_WORDS(4, 0);
        PUT_LONGS(5, 2, 1, 1, 1);
        PUT_WORDS(16, 0);
        expect_reason(HR_E_INVALID, "COLUMN", NULL);
}

HR_TEST(views_of_views_become_views_of_the_root) {
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};
        const uint32_t depth = 1000;

        used = 0;
        put_leaf_count(1);
        put_varint(2 << 3 | 2);
        put_varint(depth * 4);
        for (uint32_t i = 0; i < depth; i++, used += 4)
                memcpy(buffer + used, &(uint32_t){HR_OP_VIEW}, 4);
        put_varint(3 << 3 | 2);
        put_varint((depth + 1) * 4);
        memset(buffer + used, 0, (depth + 1) * 4);
        used += (depth + 1) * 4;
        put_varint(5 << 3 | 2);
        put_varint((depth + 1) * 32);
        for (uint32_t i = 0; i < (depth + 1) * 4; i++, used += 8)
                memcpy(buffer + used, &(int64_t){1}, 8);
        PUT_WORDS(6, HR_LEAF_INPUT);
        /* In falling order: the list need not be sorted. */
        put_varint(11 << 3 | 2);
        put_varint(depth * 4);
        for (uint32_t i = depth; i > 0; i--, used += 4)
                memcpy(buffer + used, &i, 4);
        put_varint(12 << 3 | 2);
        put_varint(depth * 4);
        for (uint32_t i = depth; i > 0; i--, used += 4)
                memcpy(buffer + used, &(uint32_t){i - 1}, 4);
        put_varint(13 << 3 | 2);
        put_varint(depth * 8);
        for (uint32_t i = depth; i > 0; i--, used += 8)
                memcpy(buffer + used, &(uint64_t){3}, 8);
        HR_EXPECT(used < sizeof buffer);
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        for (uint32_t i = 1; i <= depth; i++) {
                HR_EXPECT_EQ(graph->tensors[i].view_base, 0);
                HR_EXPECT_EQ(graph->tensors[i].view_offset, 3 * i);
        }
        graph = hr_graph_unref(graph);
}

HR_TEST(views_that_lead_nowhere) {
        put_sample();
        PUT_WORDS(11, 1); /* of itself */
        PUT_WORDS(12, 1);
        PUT_LONGS(13, 0);
        expect_reason(HR_E_INVALID, "VIEW", NULL);
        put_sample();
        PUT_WORDS(11, 1); /* of a later tensor: no cycle can be written down */
        PUT_WORDS(12, 2);
        PUT_LONGS(13, 0);
        expect_reason(HR_E_INVALID, "VIEW", NULL);
        put_sample();
        PUT_WORDS(11, 1, 2); /* offsets that wrap together */
        PUT_WORDS(12, 0, 1);
        PUT_LONGS(13, UINT64_MAX, 1);
        expect_reason(HR_E_INVALID, "VIEW", NULL);
}

HR_TEST(types_and_extents_that_lie) {
        static const struct {
                uint32_t type;
                int64_t ne0, ne1;
                const char *reason;
        } leaves[] = {
                {4, 1, 1, "DTYPE"}, /* a number that is no longer a type */
                {1000, 1, 1, "DTYPE"},
                {UINT32_MAX, 1, 1, "DTYPE"},
                {HR_TYPE_Q4_0, 31, 1, "BLOCK"},
                {0, -1, 1, "SIZE"},
                {0, INT64_MAX, 2, "SIZE"},
                {0, INT64_MIN, 1, "SIZE"},
                {0, INT64_C(1) << 40, INT64_C(1) << 40, "SIZE"},
        };

        for (size_t i = 0; i < HR_ARRAY_LENGTH(leaves); i++) {
                used = 0;
                put_leaf_count(1);
                PUT_WORDS(3, leaves[i].type);
                PUT_LONGS(5, (uint64_t) leaves[i].ne0, (uint64_t) leaves[i].ne1, 1, 1);
                PUT_WORDS(6, HR_LEAF_INPUT);
                expect_reason(HR_E_INVALID, leaves[i].reason, NULL);
        }
}

/* Constants that fit a strided tensor of their own, whose span does not fit 63 bits. */
HR_TEST(constants_with_strides) {
        put_sample();
        PUT_WORDS(14, 1);
        PUT_LONGS(15, UINT64_MAX, 8, 8, 8);
        expect_reason(HR_E_INVALID, "SIZE", NULL);
}

HR_TEST(names_of_no_length_and_absent_sources) {
        struct hr_graph *graph = NULL;
        struct hr_diag diag = {0};

        put_sample();
        PUT_WORDS(16, 0, 0, 0);
        put_bytes(17, "", 0);
        /* The last blob that is not empty counts. */
        HR_EXPECT_EQ(decode(&diag, &graph), HR_E_INVALID);
        hr_diag_clear(&diag);
        used = 0;
        put_leaf_count(1);
        PUT_WORDS(2, HR_OP_ADD);
        PUT_WORDS(3, 0, 0);
        PUT_LONGS(5, 2, 1, 1, 1, 2, 1, 1, 1);
        PUT_WORDS(6, HR_LEAF_INPUT);
        PUT_WORDS(7, 2);
        PUT_WORDS(8, 0, HR_TENSOR_NONE);
        PUT_WORDS(16, 0, 0);
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        HR_EXPECT_EQ(graph->sources[1], HR_TENSOR_NONE);
        HR_EXPECT_EQ(graph->name_offsets[2], 0);
        graph = hr_graph_unref(graph);
}

HR_TEST(names_that_are_no_text) {
        put_sample();
        put_bytes(17, "x\xff\xff\xff", 4);
        expect_reason(HR_E_INVALID, "UTF8", NULL);
        put_sample(); /* valid as a whole, but cut between two names */
        PUT_WORDS(16, 0);
        put_sample();
        put_bytes(17, "\xc3\xa9pq", 4);
        expect_reason(HR_E_INVALID, "UTF8", NULL);
}

HR_TEST(limits_come_before_memory) {
        struct hr_graph *graph = NULL;
        struct hr_wire_graph_limits few = limits;
        struct hr_diag diag = {0};

        put_sample();
        few.nodes_max = 0;
        HR_EXPECT_EQ(hr_wire_graph_decode((struct hr_wire_span){buffer, used}, &few, NULL, &graph),
                     HR_E_EXHAUSTED);
        HR_EXPECT_EQ(hr_wire_graph_decode((struct hr_wire_span){buffer, used}, &few, &diag, &graph),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "nodes");
        HR_EXPECT_EQ(diag.actual, 1);
        hr_diag_clear(&diag);
        few = limits;
        few.bytes_max = used - 1;
        HR_EXPECT_EQ(hr_wire_graph_decode((struct hr_wire_span){buffer, used}, &few, &diag, &graph),
                     HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.field, "graph_bytes");
}

HR_TEST(every_cut_and_every_flip_is_survived) {
        static uint8_t original[4096];
        size_t size;

        put_sample();
        size = used;
        memcpy(original, buffer, size);
        for (size_t cut = 0; cut < size; cut++) {
                struct hr_graph *graph = NULL;
                struct hr_diag diag = {0};
                /* Memory of exactly that size, so that a sanitizer sees a byte too far. */
                uint8_t *copy = malloc(cut + 1);

                memcpy(copy, original, cut);
                if (hr_wire_graph_decode((struct hr_wire_span){copy, cut}, &limits, &diag,
                                         &graph) == HR_OK)
                        graph = hr_graph_unref(graph);
                free(copy);
        }
        for (size_t bit = 0; bit < size * 8; bit++) {
                struct hr_graph_limits graph_limits = {.tensor_bytes_max = 1 << 20};
                struct hr_graph *graph = NULL;
                struct hr_diag diag = {0};

                memcpy(buffer, original, size);
                buffer[bit / 8] ^= (uint8_t) (1U << (bit % 8));
                if (decode(&diag, &graph) == HR_OK) {
                        (void) !hr_graph_validate(graph, &graph_limits, &diag);
                        graph = hr_graph_unref(graph);
                }
        }
}

/* ---- the encoder ----------------------------------------------------------------------------- */

static struct hr_graph *graph_with_everything(void) {
        struct hr_build *build = hr_build_new();
        const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8};
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 2, 1, 1);
        uint32_t c = hr_build_leaf(build, HR_LEAF_CONSTANT, HR_TYPE_F32, "c", 4, 2, 1, 1);
        uint32_t sum, turned, window, dense;

        hr_build_constant(build, c, numbers, sizeof numbers);
        sum = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 2, 1, 1, 2, (uint32_t[]){x, c});
        turned = hr_build_node(build, HR_OP_TRANSPOSE, HR_TYPE_F32, 2, 4, 1, 1, 1, &sum);
        hr_build_tensor(build, turned)->view_base = sum;
        hr_build_tensor(build, turned)->nb[0] = 16;
        hr_build_tensor(build, turned)->nb[1] = 4;
        hr_build_tensor(build, turned)->nb[2] = 32;
        hr_build_tensor(build, turned)->nb[3] = 32;
        dense = hr_build_node(build, HR_OP_CONT, HR_TYPE_F32, 2, 4, 1, 1, 1, &turned);
        window = hr_build_node(build, HR_OP_SCALE, HR_TYPE_F32, 2, 4, 1, 1, 1, &dense);
        hr_build_param_f32(build, window, 0, 0.5F);
        hr_build_tensor(build, window)->flags |= HR_TENSOR_OUTPUT;
        return hr_build_finish(build);
}

HR_TEST(encoder_round_trip) {
        struct hr_graph *graph = graph_with_everything(), *back = NULL;
        struct hr_graph_limits graph_limits = {.tensor_bytes_max = 1 << 20};
        struct hr_diag diag = {0};
        size_t measured = 0;

        HR_EXPECT_OK(hr_wire_graph_encode(graph, NULL, 0, &diag, &measured), &diag);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, measured, &diag, &used), &diag);
        HR_EXPECT_EQ(used, measured);
        for (size_t capacity = 0; capacity < measured; capacity++) {
                hr_diag_clear(&diag);
                HR_EXPECT_EQ(hr_wire_graph_encode(graph, buffer, capacity, &diag, &used),
                             HR_E_EXHAUSTED);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "MESSAGE");
                HR_EXPECT_EQ(hr_wire_graph_encode(graph, buffer, capacity, NULL, &used),
                             HR_E_EXHAUSTED);
        }
        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, sizeof buffer, &diag, &used), &diag);
        HR_EXPECT_OK(decode(&diag, &back), &diag);
        HR_EXPECT(hr_graph_hash(graph) == hr_graph_hash(back));
        HR_EXPECT_OK(hr_graph_validate(back, &graph_limits, &diag), &diag);
        graph = hr_graph_unref(graph);
        back = hr_graph_unref(back);
}

/* What the encoder is given need not be sensible: it is the decoder that judges. */
HR_TEST(encoder_of_nothing_and_of_nonsense) {
        struct hr_build *build = hr_build_new();
        struct hr_graph *graph = hr_build_finish(build), *back = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, sizeof buffer, &diag, &used), &diag);
        HR_EXPECT_EQ(used, 0);
        graph = hr_graph_unref(graph);
        HR_EXPECT_OK(decode(&diag, &graph), &diag);
        HR_EXPECT_EQ(graph->leaf_count + graph->node_count, 0);
        graph = hr_graph_unref(graph);
        build = hr_build_new();
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 1, 1, 1);
        graph = hr_build_finish(build);
        graph->tensors[0].type = UINT32_MAX; /* has no strides that go without saying */
        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, sizeof buffer, &diag, &used), &diag);
        graph = hr_graph_unref(graph);
        HR_EXPECT_EQ(decode(&diag, &back), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "DTYPE");
        build = hr_build_new();
        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 1, 1, 1);
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, sizeof buffer, NULL, &used), &diag);
        graph = hr_graph_unref(graph);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(decode(&diag, &back), &diag);
        back = hr_graph_unref(back);
        build = hr_build_new(); /* a node alone, without sources, parameters or names */
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 1, 1, 1, 0, NULL);
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, buffer, sizeof buffer, NULL, &used), &diag);
        graph = hr_graph_unref(graph);
        HR_EXPECT_OK(decode(&diag, &back), &diag);
        back = hr_graph_unref(back);
}

HR_TEST(counts_over_every_limit) {
        static const struct hr_wire_graph_limits none = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
        static const uint64_t leaves[] = {UINT64_MAX, UINT64_MAX - 1, UINT32_MAX, UINT32_MAX - 1};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(leaves); i++) {
                struct hr_graph *graph = NULL;
                struct hr_diag diag = {0};

                used = 0;
                put_leaf_count(leaves[i]);
                PUT_WORDS(2, HR_OP_ADD);
                HR_EXPECT_EQ(hr_wire_graph_decode((struct hr_wire_span){buffer, used}, &none, &diag,
                                                  &graph),
                             HR_E_EXHAUSTED);
                HR_EXPECT_STREQ(diag.field, "tensors");
        }
}

/* Not a benchmark: a decoder that is quadratic, or calls something slow per node, does not pass. */
HR_TEST(large_graph_decodes_in_linear_time) {
        const uint32_t nodes = 50000;
        struct hr_build *build = hr_build_new();
        uint32_t last = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 4, 1, 1, 1);
        struct hr_graph *graph, *back = NULL;
        struct hr_diag diag = {0};
        uint64_t best_ns = UINT64_MAX;
        size_t bytes = 0;
        uint8_t *memory;

        for (uint32_t i = 0; i < nodes; i++)
                last = hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 4, 1, 1, 1, 2,
                                     (uint32_t[]){last, last});
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, NULL, 0, &diag, &bytes), &diag);
        memory = malloc(bytes);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, memory, bytes, &diag, &bytes), &diag);
        for (int round = 0; round < 5; round++) {
                uint64_t start_ns = hr_clock_now_ns();

                HR_EXPECT_OK(hr_wire_graph_decode((struct hr_wire_span){memory, bytes}, &limits,
                                                  &diag, &back),
                             &diag);
                best_ns = HR_MIN(best_ns, hr_clock_now_ns() - start_ns);
                back = hr_graph_unref(back);
        }
        printf("    %.1f ns a node\n", (double) best_ns / nodes);
        HR_EXPECT(best_ns / nodes < 20000);
        graph = hr_graph_unref(graph);
        free(memory);
}
