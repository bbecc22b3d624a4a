/*
 * The plan cache: hits, the reason of every miss, its bound, and the text of a plan.
 */
#include "tests/unit/scheduler/graphs.h"

#include <stdlib.h>
#include <string.h>

#define WIDTH 8

struct cell {
        struct rig rig;
        struct hr_plan_cache *cache;
        struct hr_plan *plan;
        uint32_t first_different;
};

static void cell_init(struct cell *cell, uint64_t bytes_max) {
        memset(cell, 0, sizeof *cell);
        rig_init(&cell->rig, (struct rig_device[]){{.isolated = true}, {.isolated = true}}, 2);
        HR_EXPECT_OK(hr_plan_cache_new(bytes_max, &cell->rig.diag, &cell->cache), &cell->rig.diag);
}

static void cell_deinit(struct cell *cell) {
        hr_plan_unref(cell->plan);
        hr_plan_cache_free(cell->cache);
        rig_deinit(&cell->rig);
}

static hr_plan_origin ask(struct cell *cell, const struct hr_plan_request *request) {
        hr_plan_origin origin = HR_PLAN_ORIGIN_COUNT;

        cell->plan = hr_plan_unref(cell->plan);
        HR_EXPECT_OK(hr_plan_cache_get(cell->cache, request, &cell->rig.diag, &cell->plan, &origin,
                                       &cell->first_different),
                     &cell->rig.diag);
        HR_EXPECT(cell->plan);
        return origin;
}

/* s + x * c, with a name and a constant of choice. */
static struct hr_graph *graph_of(const char *name, float constant, int64_t width, uint32_t op) {
        struct sketch sketch;
        uint32_t s, x, c, y;
        struct hr_graph *graph;

        sketch_init(&sketch, width);
        s = sketch_leaf(&sketch, HR_LEAF_STATE, name);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        c = sketch_constant(&sketch, constant);
        y = sketch_node(&sketch, HR_OP_MUL, x, c, HR_NO_PIN);
        sketch_output(&sketch, sketch_node(&sketch, op, s, y, HR_NO_PIN));
        graph = sketch_finish(&sketch);
        sketch_deinit(&sketch);
        return graph;
}

HR_TEST(every_reason_of_a_miss) {
        struct cell cell;
        struct hr_graph *graph = graph_of("s", 1, WIDTH, HR_OP_ADD);
        struct hr_graph *renamed = graph_of("other", 5, WIDTH, HR_OP_ADD);
        struct hr_graph *wider = graph_of("s", 1, WIDTH * 2, HR_OP_ADD);
        struct hr_graph *different = graph_of("s", 1, WIDTH, HR_OP_SUB);
        struct hr_buffer *buffers[3] = {NULL};
        struct hr_leaf_home homes[3][3] = {{{0}}};
        int32_t pins[5] = {HR_NO_PIN, HR_NO_PIN, HR_NO_PIN, 1, HR_NO_PIN};
        struct hr_plan_request request;
        struct hr_plan_cache_stats stats;

        cell_init(&cell, 1 << 20);
        for (uint32_t i = 0; i < 3; ++i) {
                HR_EXPECT_OK(hr_buffer_new(cell.rig.devices[i / 2], WIDTH * 2 * sizeof(float),
                                           HR_USAGE_ANY, &cell.rig.diag, &buffers[i]),
                             &cell.rig.diag);
                homes[i][0].buffer = buffers[i];
        }
        request = (struct hr_plan_request){
                .graph = graph, .fleet = cell.rig.fleet, .homes = homes[0]};
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_NEW);
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_HIT);
        request.homes = homes[1]; /* another buffer, of the same kind and usage */
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_HIT);
        request.graph = renamed;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_HIT);
        request.homes = homes[2]; /* on the other device */
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_PLACEMENT);
        request.homes = homes[0];
        request.pins = pins;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_PLACEMENT);
        HR_EXPECT_EQ(hr_plan_tensor_device(cell.plan, 3), 1);
        request.pins = NULL;
        request.options.n_copies = 3;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_PLACEMENT);
        HR_EXPECT_EQ(hr_plan_summary(cell.plan).n_copies, 3);
        request.options.n_copies = 0;
        request.graph = wider;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_SHAPES);
        HR_EXPECT_EQ(cell.first_different, 0);
        request.graph = different;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_NEW);
        stats = hr_plan_cache_stats(cell.cache);
        HR_EXPECT_EQ(stats.entries, 6);
        HR_EXPECT_EQ(stats.count[HR_PLAN_HIT], 3);
        HR_EXPECT_EQ(stats.count[HR_PLAN_MISS_PLACEMENT], 3);
        HR_EXPECT(stats.bytes > 0 && stats.bytes <= stats.bytes_max);
        cell_deinit(&cell);
        for (int i = 0; i < 3; ++i)
                hr_buffer_unref(buffers[i]);
        hr_graph_unref(graph);
        hr_graph_unref(renamed);
        hr_graph_unref(wider);
        hr_graph_unref(different);
}

static struct hr_graph *long_graph(uint32_t length) {
        struct sketch sketch;
        uint32_t x, at;
        struct hr_graph *graph;

        sketch_init(&sketch, WIDTH);
        x = at = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < length; ++i)
                at = sketch_node(&sketch, HR_OP_ADD, at, x, HR_NO_PIN);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        sketch_deinit(&sketch);
        return graph;
}

HR_TEST(bytes_are_bounded_and_eviction_is_a_reason) {
        struct cell cell;
        struct hr_graph *graphs[60];
        uint64_t evictions;

        cell_init(&cell, 256 << 10);
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(graphs); ++i) {
                struct hr_plan_request request = {.graph = graphs[i] = long_graph(i + 1),
                                                  .fleet = cell.rig.fleet};

                HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_NEW);
                HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_HIT);
                HR_EXPECT(hr_plan_cache_stats(cell.cache).bytes <= 256 << 10);
        }
        evictions = hr_plan_cache_stats(cell.cache).evictions;
        HR_EXPECT(evictions > 0);
        HR_EXPECT_EQ(hr_plan_cache_stats(cell.cache).entries + evictions, HR_ARRAY_LENGTH(graphs));
        HR_EXPECT_EQ(
                ask(&cell, &(struct hr_plan_request){.graph = graphs[0], .fleet = cell.rig.fleet}),
                HR_PLAN_MISS_EVICTED);
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(graphs); ++i)
                hr_graph_unref(graphs[i]);
        cell_deinit(&cell);
}

/* A plan larger than the whole cache is made and not kept. */
HR_TEST(a_plan_larger_than_the_cache) {
        struct cell cell;
        struct hr_graph *graph = long_graph(500);
        struct hr_plan_request request = {.graph = graph};

        cell_init(&cell, 1024);
        request.fleet = cell.rig.fleet;
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_NEW);
        HR_EXPECT_EQ(ask(&cell, &request), HR_PLAN_MISS_NEW);
        HR_EXPECT_EQ(hr_plan_cache_stats(cell.cache).entries, 0);
        hr_graph_unref(graph);
        cell_deinit(&cell);
}

HR_TEST(the_text_of_a_plan) {
        struct cell cell;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_plan_request request = {0};
        uint32_t x, y;
        char *text = NULL;
        size_t bytes = 0;

        cell_init(&cell, 1 << 20);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        sketch_output(&sketch, sketch_node(&sketch, HR_OP_MUL, y, x, 1));
        graph = sketch_finish(&sketch);
        request = (struct hr_plan_request){
                .graph = graph, .fleet = cell.rig.fleet, .pins = sketch.pins};
        (void) ask(&cell, &request);
        HR_EXPECT_OK(
                hr_plan_explain(cell.plan, graph, cell.rig.fleet, &cell.rig.diag, &text, &bytes),
                &cell.rig.diag);
        HR_EXPECT_EQ(strlen(text), bytes);
        HR_EXPECT_STREQ(
                text,
                "plan: 1 leaves, 2 nodes, 2 splits, 2 copies (so many runs can be under way at "
                "once), rules headrace\n"
                "copied between memories per run: 32 bytes; fallback nodes: 0\n"
                "device 0 d0: 1 splits, 64 bytes of compute memory, 0 of scratch\n"
                "device 1 d1: 1 splits, 192 bytes of compute memory, 0 of scratch\n"
                "rules:\n"
                "leaf 0 x: d1, 1.inp, 32 bytes, at 0\n"
                "split 0 on d0: nodes 0..1, first, 1 inputs\n"
                "  input 0 x: from the run, 32 bytes, at 0\n"
                "  node 0 1 ADD: d0, usr, at 0, 32 bytes\n"
                "split 1 on d1: nodes 1..2, backend, 1 inputs\n"
                "  input 1: copied by d0, 32 bytes, at 0 of each slot\n"
                "  node 1 2 MUL: d1, usr, at 0, 32 bytes\n");
        free(text);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        cell_deinit(&cell);
}
