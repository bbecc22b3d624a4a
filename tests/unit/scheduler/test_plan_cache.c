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

static const char *named(const struct hr_explain_names *list, uint32_t position) {
        HR_EXPECT(position < list->count);
        return list->names[position];
}

HR_TEST(a_plan_explained) {
        struct cell cell;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_plan_request request = {0};
        uint32_t x, y;
        struct hr_explanation e;

        cell_init(&cell, 1 << 20);
        sketch_init(&sketch, WIDTH);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        sketch_output(&sketch, sketch_node(&sketch, HR_OP_MUL, y, x, 1));
        graph = sketch_finish(&sketch);
        request = (struct hr_plan_request){
                .graph = graph, .fleet = cell.rig.fleet, .pins = sketch.pins};
        (void) ask(&cell, &request);
        HR_EXPECT_OK(hr_plan_explain(cell.plan, &request, &cell.rig.diag, &e), &cell.rig.diag);
        HR_EXPECT_STREQ(e.rules, "headrace");
        HR_EXPECT_STREQ(e.copies_reason, "so many runs can be under way at once");
        HR_EXPECT(e.leaf_count == 1 && e.node_count == 2 && e.n_copies == 2);
        HR_EXPECT_EQ(e.copied_bytes, 32);
        HR_EXPECT_EQ(e.device_names.count, 2);
        HR_EXPECT_STREQ(e.device_names.names[1], "d1");
        HR_EXPECT_STREQ(e.device_types[0], "CPU");
        for (int d = 0; d < 2; ++d) {
                HR_EXPECT_EQ(e.device_splits[d], 1);
                HR_EXPECT_EQ(e.device_nodes[d], 1);
                HR_EXPECT_EQ(e.compute_bytes[d], d ? 192 : 64);
                HR_EXPECT_EQ(e.scratch_bytes[d] + e.device_staging[d], 0);
                HR_EXPECT_EQ(e.copies_bytes[d], d ? 64 : 32); /* the node's result per slot */
        }
        HR_EXPECT_STREQ(named(&e.cause_names, e.cause[0]), "1.inp");
        HR_EXPECT_STREQ(named(&e.cause_names, e.cause[1]), "usr");
        HR_EXPECT(e.op[0] == HR_OP_ADD && e.op[1] == HR_OP_MUL);
        HR_EXPECT(e.device[0] == 1 && e.device[1] == 0 && e.device[2] == 1);
        HR_EXPECT(e.root[2] == 2 && e.bytes[2] == 32);
        HR_EXPECT_STREQ(named(&e.where_names, e.place.where[2]), "shared");
        HR_EXPECT(e.split_count == 2 && e.copy_count == 2);
        HR_EXPECT(e.split_start[1] == 1 && e.split_end[1] == 2 && e.split_device[1] == 1);
        HR_EXPECT_STREQ(named(&e.reason_names, e.split_reason[0]), "first");
        HR_EXPECT_STREQ(named(&e.reason_names, e.split_reason[1]), "backend");
        HR_EXPECT(e.split_inputs[0] == 1 && e.split_inputs[1] == 1);
        HR_EXPECT(e.copy_tensor[0] == 0 && e.copy_source[0] == HR_EXPLAIN_NONE);
        HR_EXPECT_STREQ(named(&e.method_names, e.copy_method[0]), "input");
        HR_EXPECT(e.copy_tensor[1] == 1 && e.copy_source[1] == 0 && e.copy_bytes[1] == 32);
        HR_EXPECT_STREQ(named(&e.method_names, e.copy_method[1]), "direct");
        HR_EXPECT_STREQ(named(&e.where_names, e.copy_place.where[1]), "slot");
        hr_explanation_deinit(&e);
        hr_graph_unref(graph);
        sketch_deinit(&sketch);
        cell_deinit(&cell);
}
