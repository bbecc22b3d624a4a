/*
 * Graphs and manifests whose columns come in pieces, which takes memory, with the n-th allocation
 * failing for every n until none does: HR_E_EXHAUSTED each time, nothing kept, and then all is
 * well.
 */
#include "proto/codec.h"

#include "core/op.h"
#include "tests/build.h"
#include "tests/fake/fail_alloc.h"
#include "tests/harness.h"

static uint8_t pieces[4096];
static size_t pieces_bytes;

/* Every packed column of a message, of which all tags and lengths are one byte, cut in two. */
static void cut_columns(const uint8_t *message, size_t bytes, const uint8_t *widths) {
        pieces_bytes = 0;
        for (size_t at = 0; at < bytes;) {
                const uint8_t tag = message[at], number = tag >> 3, size = message[at + 1];
                const uint8_t width = widths[number];
                const uint8_t first = width > 1 && size > width ? width : size;

                if ((tag & 7) == 0) { /* a varint */
                        pieces[pieces_bytes++] = tag;
                        pieces[pieces_bytes++] = size;
                        at += 2;
                        continue;
                }
                HR_EXPECT(size < 128 && (tag & 0x80) == 0);
                for (unsigned part = 0; part < 2; part++) {
                        const uint8_t part_bytes = part ? (uint8_t) (size - first) : first;

                        if (part && !part_bytes)
                                continue;
                        pieces[pieces_bytes++] = tag;
                        pieces[pieces_bytes++] = part_bytes;
                        memcpy(pieces + pieces_bytes, message + at + 2 + (part ? first : 0),
                               part_bytes);
                        pieces_bytes += part_bytes;
                }
                at += 2U + size;
        }
}

static hr_status read_graph(struct hr_diag *diag) {
        static const struct hr_wire_graph_limits limits = {100, 100, 4096};
        static const struct hr_graph_limits graph_limits = {.tensor_bytes_max = 1 << 20};
        struct hr_graph *graph = NULL;
        hr_status status = hr_wire_graph_decode((struct hr_wire_span){pieces, pieces_bytes},
                                                &limits, diag, &graph);

        if (status == HR_OK)
                status = hr_graph_validate(graph, &graph_limits, diag);
        (void) hr_graph_unref(graph);
        return status;
}

static hr_status read_manifest(struct hr_diag *diag) {
        static const struct hr_wire_manifest_limits limits = {10};
        struct hr_wire_manifest back;
        struct hr_arena arena;
        hr_status status;

        hr_arena_init(&arena, 0);
        status = hr_wire_manifest_decode((struct hr_wire_span){pieces, pieces_bytes}, &limits,
                                         &arena, diag, &back);
        hr_arena_deinit(&arena);
        return status;
}

static void every_allocation(hr_status (*read)(struct hr_diag *diag), uint64_t least) {
        const int64_t before = fail_alloc_live();
        struct hr_diag diag;
        uint64_t n = 0;

        do {
                hr_status status;

                diag = (struct hr_diag){0};
                fail_alloc_at(++n);
                status = read(&diag);
                if (fail_alloc_fired()) {
                        HR_EXPECT_EQ(status, HR_E_EXHAUSTED);
                        HR_EXPECT(diag.words[0]);
                } else {
                        HR_EXPECT_OK(status, &diag);
                }
                fail_alloc_at(0);
                HR_EXPECT_EQ(fail_alloc_live(), before);
        } while (diag.status != HR_OK && n < 1000);
        HR_EXPECT(n > least);
}

HR_TEST(graphs_in_pieces) {
        static const uint8_t widths[32] = {0, 0, 4, 4, 4, 8, 4, 4, 4, 4,
                                           4, 4, 4, 8, 4, 8, 1, 1, 1, 1};
        struct hr_build *build = hr_build_new();
        struct hr_graph *graph;
        struct hr_diag diag = {0};
        static uint8_t whole[4096];
        size_t bytes = 0;

        (void) hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "", 8, 1, 1, 1);
        (void) hr_build_node(build, HR_OP_ADD, HR_TYPE_F32, 8, 1, 1, 1, 2,
                             (const uint32_t[]){0, 0});
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, NULL, 0, &diag, &bytes), &diag);
        HR_EXPECT(bytes < sizeof whole);
        HR_EXPECT_OK(hr_wire_graph_encode(graph, whole, sizeof whole, &diag, &bytes), &diag);
        graph = hr_graph_unref(graph);
        /* Tags from 16 on have two bytes: names, which are empty here. */
        for (size_t at = 0; at < bytes; at += 2U + ((whole[at] & 7) == 0 ? 0 : whole[at + 1]))
                if (whole[at] & 0x80)
                        bytes = at;
        cut_columns(whole, bytes, widths);
        every_allocation(read_graph, 5);
}

HR_TEST(manifests_in_pieces) {
        static const uint8_t widths[32] = {0, 4, 1, 4, 8, 1};
        static const uint32_t lengths[] = {1, 2}, types[] = {HR_TYPE_F32, HR_TYPE_F16};
        static const int64_t ne[] = {1, 2, 3, 4, 5, 6, 7, 8};
        const struct hr_wire_manifest manifest = {
                .count = 2,
                .name_lengths = lengths,
                .names = "abc",
                .names_bytes = 3,
                .types = types,
                .ne = ne,
        };
        static uint8_t whole[4096];
        struct hr_diag diag = {0};
        size_t bytes = 0;

        HR_EXPECT_OK(hr_wire_manifest_encode(&manifest, whole, sizeof whole, &diag, &bytes), &diag);
        cut_columns(whole, bytes, widths);
        every_allocation(read_manifest, 3);
}
