/*
 * Plans from made-up facts: each named rule against ggml's answer, what the verifier refuses,
 * sizes.
 */
#include <malloc.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "tests/unit/scheduler/graphs.h"
#include "tests/unit/scheduler/world.h"

static bool touched_only_by(const struct hr_plan *plan, hr_rule rule) {
        for (int r = 0; r < HR_RULE_COUNT; ++r) {
                if ((plan->rule_count[r] != 0) != (r == (int) rule))
                        return false;
        }
        return true;
}

/* w (weight), x (input), y = x + w, z = y * y. */
static struct hr_graph *small_graph(int64_t width) {
        struct sketch sketch;
        uint32_t w, x, y;
        struct hr_graph *graph;

        sketch_init(&sketch, width);
        w = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "w");
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, w, HR_NO_PIN);
        sketch_output(&sketch, sketch_node(&sketch, HR_OP_MUL, y, y, HR_NO_PIN));
        graph = sketch_finish(&sketch);
        sketch_deinit(&sketch);
        return graph;
}

/* ---- Rules -------------------------------------------------------------------------------------
 */

HR_TEST(rule_pins_are_not_overridden) {
        struct world world;

        world_init(&world, small_graph(8), 0, true);
        world.tensor_buffer[0] = world_buffer(&world, 0, HR_USAGE_WEIGHTS);
        world.pins[2] = 1;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->device[2], 0);
        HR_EXPECT_EQ(world.plan->cause[2], HR_CAUSE_UPGRADE);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 1);
        HR_EXPECT_EQ(world.plan->cause[2], HR_CAUSE_USER);
        HR_EXPECT(world.plan->rule_count[HR_RULE_PINS] == 1);
        world_deinit(&world);
}

HR_TEST(rule_pins_need_support) {
        struct world world;
        struct hr_plan *plan = NULL;

        world_init(&world, small_graph(8), 1, false);
        world.tensor_buffer[0] = world_buffer(&world, 1, HR_USAGE_WEIGHTS);
        world.pins[3] = 0;
        world_deny(&world, 3, 0);
        HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_UNSUPPORTED);
        HR_EXPECT_STREQ(world.diag.reason, "PIN");
        HR_EXPECT(world.diag.has_node && world.diag.node == 1);
        world.pins[3] = 7;
        hr_diag_clear(&world.diag);
        HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_INVALID);
        world_deinit(&world);
}

/* `count` inputs of one device's split come from another device. */
static struct hr_graph *wide_graph(uint32_t count, int32_t **ret_pins) {
        struct sketch sketch;
        uint32_t x, at, *values = calloc(count, sizeof *values);
        struct hr_graph *graph;

        HR_EXPECT(values);
        sketch_init(&sketch, 4);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < count; ++i)
                values[i] = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        at = values[0];
        for (uint32_t i = 1; i < count; ++i)
                at = sketch_node(&sketch, HR_OP_ADD, at, values[i], 1);
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        free(values);
        *ret_pins = sketch.pins;
        return graph;
}

HR_TEST(rule_no_cut_at_thirty) {
        struct world world;
        int32_t *pins;

        world_init(&world, wide_graph(100, &pins), 1, false);
        memcpy(world.pins, pins,
               (world.graph->leaf_count + world.graph->node_count) * sizeof *pins);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->split_count, 5);
        HR_EXPECT_EQ(world.plan->splits[2].reason, HR_SPLIT_INPUTS);
        HR_EXPECT_EQ(world.plan->splits[1].input_count, 30);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->split_count, 2);
        HR_EXPECT_EQ(world.plan->splits[1].input_count, 100);
        HR_EXPECT(touched_only_by(world.plan, HR_RULE_NO_CUT));
        free(pins);
        world_deinit(&world);
}

/* A product with a host weight and a batch of `rows`; GPUs ask for it. */
static void offload_world(struct world *world, int64_t rows, uint32_t gpus) {
        struct hr_build *build = hr_build_new();
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 30};
        uint32_t w = hr_build_leaf(build, HR_LEAF_WEIGHT, HR_TYPE_F32, "w", 64, 64, 1, 1);
        uint32_t x = hr_build_leaf(build, HR_LEAF_STATE, HR_TYPE_F32, "x", 64, rows, 1, 1);
        uint32_t y = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 64, rows, 1, 1, 2,
                                   (uint32_t[]){w, x});
        struct hr_graph *graph;

        hr_build_tensor(build, y)->flags |= HR_TENSOR_OUTPUT;
        graph = hr_build_finish(build);
        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &world->diag), &world->diag);
        world_init(world, graph, gpus, false);
        world->tensor_buffer[w] = world_buffer(world, 0, HR_USAGE_WEIGHTS);
        world->tensor_buffer[x] = world_buffer(world, gpus, HR_USAGE_ANY);
        world->in.options.op_offload = true;
        for (uint32_t d = 0; d < gpus; ++d)
                world_ask(world, y, d);
}

HR_TEST(rule_offload_weighs_bytes) {
        struct world world;

        offload_world(&world, 4, 1); /* too little work for the weight's journey */
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->device[2], 0);
        HR_EXPECT_EQ(world.plan->cause[2], HR_CAUSE_OFFLOAD);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 1);
        HR_EXPECT(world.plan->rule_count[HR_RULE_OFFLOAD] == 1);
        world_deinit(&world);
        offload_world(&world, 512, 1);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 0);
        HR_EXPECT(world.plan->rule_count[HR_RULE_OFFLOAD] == 0);
        world_deinit(&world);
        offload_world(&world, 512, 3); /* to where the activations are */
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->device[2], 0);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 2);
        world_deinit(&world);
}

/* s (state) += x, then reads of s before and after. */
static struct hr_graph *writer_graph(void) {
        struct sketch sketch;
        uint32_t s, x, before, after;
        struct hr_graph *graph;

        sketch_init(&sketch, 8);
        s = sketch_leaf(&sketch, HR_LEAF_STATE, "s");
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        before = sketch_node(&sketch, HR_OP_MUL, s, x, HR_NO_PIN);
        (void) sketch_in_place(&sketch, HR_OP_ADD, s, s, x, HR_NO_PIN);
        after = sketch_node(&sketch, HR_OP_MUL, s, before, HR_NO_PIN);
        sketch_output(&sketch, after);
        graph = sketch_finish(&sketch);
        sketch_deinit(&sketch);
        return graph;
}

HR_TEST(rule_writer_runs_where_its_base_is) {
        struct sketch sketch;
        uint32_t x, y;
        struct world world;
        struct hr_graph *graph;

        /* y = x + x on the GPU; y *= x in place, which the GPU's neighbours would pull to the CPU.
         */
        sketch_init(&sketch, 8);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        (void) sketch_in_place(&sketch, HR_OP_MUL, y, y, x, HR_NO_PIN);
        sketch_output(&sketch, sketch_node(&sketch, HR_OP_ADD, y, x, 1));
        graph = sketch_finish(&sketch);
        world_init(&world, graph, 2, false);
        memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        world_deny(&world, 2, 0);
        world_deny(&world, 2, 1);
        /* Nobody else can: the CPU computes it and the result is carried back. */
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 2);
        HR_EXPECT(world.plan->rule_count[HR_RULE_WRITE_BACK] == 1);
        HR_EXPECT_EQ(world.plan->splits[1].write_back, world.plan->result_copy[1]);
        /* Denied on its own device's neighbours only, it goes to its base. */
        hr_bit_set(world.supports + 2, 0);
        world.pins[2] = HR_NO_PIN;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[2], 0);
        sketch_deinit(&sketch);
        world_deinit(&world);
}

/* y on the first GPU, y *= w in place, and w lives on the second one, which pulls the product. */
HR_TEST(rule_writer_follows_its_base_not_its_weight) {
        struct sketch sketch;
        uint32_t w, x, y, z;
        struct world world;

        sketch_init(&sketch, 8);
        w = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "w");
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        z = sketch_in_place(&sketch, HR_OP_MUL, y, y, w, HR_NO_PIN);
        sketch_output(&sketch, z);
        world_init(&world, sketch_finish(&sketch), 2, false);
        memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        world.tensor_buffer[w] = world_buffer(&world, 2, HR_USAGE_WEIGHTS);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->device[z], 1);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[z], 0);
        HR_EXPECT_EQ(world.plan->cause[z], HR_CAUSE_RULE_WRITER);
        HR_EXPECT_EQ(world.plan->rule_count[HR_RULE_WRITER], 1);
        sketch_deinit(&sketch);
        world_deinit(&world);
}

/* A leaf that has no memory until a later reader, or a view, gives it a device: only then it is
 * known that its writer cannot reach it. */
HR_TEST(rule_writer_is_asked_once_its_leaf_has_a_device) {
        for (int viewed = 0; viewed < 2; ++viewed) {
                struct sketch sketch;
                uint32_t leaf, y, z, writer;
                struct world world;

                sketch_init(&sketch, 8);
                leaf = sketch_leaf(&sketch, HR_LEAF_INPUT, "leaf");
                y = sketch_leaf(&sketch, HR_LEAF_INPUT, "y");
                if (viewed) {
                        z = sketch_node(&sketch, HR_OP_VIEW, leaf, HR_TENSOR_NONE, HR_NO_PIN);
                        hr_build_tensor(sketch.build, z)->view_base = leaf;
                }
                writer = sketch_node(&sketch, HR_OP_MUL, y, y, 1);
                z = sketch_node(&sketch, HR_OP_ADD, viewed ? z : leaf, y, 0);
                sketch_output(&sketch, z);
                world_init(&world, sketch_finish(&sketch), 1, false);
                memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
                /* Made up: no client's graph has such a leaf, or such a writer. */
                world.graph->tensors[leaf].leaf_kind = HR_LEAF_NOT;
                world.graph->tensors[leaf].flags = 0;
                world.graph->tensors[writer].view_base = leaf;
                HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[leaf], 0);
                HR_EXPECT_EQ(world.plan->rule_count[HR_RULE_WRITE_BACK], 1);
                HR_EXPECT_EQ(world.plan->rule_count[HR_RULE_VIEW_LEAF], viewed);
                sketch_deinit(&sketch);
                world_deinit(&world);
        }
}

/* Somebody writes into one of two weights that lie in one buffer: the other one's copy is ordered
 * after that, too. */
HR_TEST(weights_beside_a_written_one_are_not_constant) {
        for (int written = 0; written < 2; ++written) {
                struct sketch sketch;
                uint32_t a, b, x, writer;
                struct world world;

                sketch_init(&sketch, 8);
                a = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "a");
                b = sketch_leaf(&sketch, HR_LEAF_WEIGHT, "b");
                x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
                writer = sketch_node(&sketch, HR_OP_MUL, x, x, 1);
                sketch_output(&sketch, sketch_node(&sketch, HR_OP_ADD, b, x, 0));
                world_init(&world, sketch_finish(&sketch), 1, false);
                memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
                world.tensor_buffer[a] = world_buffer(&world, 0, HR_USAGE_WEIGHTS);
                world.tensor_buffer[b] = world.tensor_buffer[a];
                if (written)
                        world.graph->tensors[writer].view_base = a;
                (void) world_plan(&world, HR_RULES_HEADRACE);
                HR_EXPECT_EQ(world.plan->copies[0].tensor, b);
                HR_EXPECT_EQ(world.plan->copies[0].method == HR_COPY_HOST_WEIGHT, !written);
                sketch_deinit(&sketch);
                world_deinit(&world);
        }
}

/* A view of GPU memory with the CPU's label: memory decides that the CPU's reader needs a copy. */
HR_TEST(rule_reach_asks_memory_not_the_label) {
        struct sketch sketch;
        uint32_t s, x, view, y;
        struct world world;

        sketch_init(&sketch, 8);
        s = sketch_leaf(&sketch, HR_LEAF_STATE, "s");
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        view = sketch_node(&sketch, HR_OP_VIEW, s, HR_TENSOR_NONE, 1);
        hr_build_tensor(sketch.build, view)->view_base = s;
        y = sketch_node(&sketch, HR_OP_ADD, view, x, 1);
        sketch_output(&sketch, y);
        world_init(&world, sketch_finish(&sketch), 1, false);
        memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        world.tensor_buffer[s] = world_buffer(&world, 1, HR_USAGE_ANY);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->source_copy[0], HR_NO_COPY);
        HR_EXPECT(world.plan->fault.status != HR_OK);
        HR_EXPECT(world_plan(&world, HR_RULES_HEADRACE)->source_copy[0] != HR_NO_COPY);
        HR_EXPECT_EQ(world.plan->rule_count[HR_RULE_REACH], 1);
        HR_EXPECT_EQ(world.plan->device[y], 1);
        sketch_deinit(&sketch);
        world_deinit(&world);
}

HR_TEST(rule_fresh_copy) {
        struct world world;

        /* The state is on GPU 1; both readers are on GPU 0, around the write. */
        world_init(&world, writer_graph(), 2, false);
        world.tensor_buffer[0] = world_buffer(&world, 2, HR_USAGE_ANY);
        world.pins[2] = 0;
        world.pins[4] = 0;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[3], 1);
        HR_EXPECT(world.plan->rule_count[HR_RULE_FRESH_COPY] == 1);
        HR_EXPECT(world.plan->source_copy[world.plan->source_start[0]] !=
                  world.plan->source_copy[world.plan->source_start[2]]);
        /* ggml copies once, and the plan says that it cannot be run. */
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->fault.status, HR_E_INTERNAL);
        HR_EXPECT_STREQ(world.plan->fault.reason, "STALE");
        world_deinit(&world);
}

HR_TEST(rule_view_leaf_takes_the_views_device) {
        struct world world;

        world_init(&world, small_graph(8), 1, false);
        /* Made up: both nodes reshape, and nothing else touches the leaf. */
        world.graph->tensors[1].leaf_kind = HR_LEAF_NOT;
        world.graph->tensors[1].flags = 0;
        world.graph->tensors[2].op = world.graph->tensors[3].op = HR_OP_RESHAPE;
        world.graph->tensors[2].view_base = world.graph->tensors[3].view_base = 1;
        world.graph->tensors[2].source_count = 1;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_GGML)->device[1], -1);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[1], world.plan->device[2]);
        HR_EXPECT(world.plan->rule_count[HR_RULE_VIEW_LEAF] == 1);
        world_deinit(&world);
}

/* An accelerator that shares host memory and gets no node must not take the weights' label. */
HR_TEST(rule_idle_device_changes_nothing) {
        struct world with, without;

        world_init(&with, small_graph(8), 1, true);
        world_init(&without, small_graph(8), 1, false);
        with.tensor_buffer[0] = world_buffer(&with, 0, HR_USAGE_WEIGHTS);
        without.tensor_buffer[0] = world_buffer(&without, 0, HR_USAGE_WEIGHTS);
        for (uint32_t i = 2; i < 4; ++i)
                world_deny(&with, i, 1);
        HR_EXPECT_EQ(world_plan(&with, HR_RULES_GGML)->device[0], 1);
        (void) world_plan(&with, HR_RULES_HEADRACE);
        (void) world_plan(&without, HR_RULES_HEADRACE);
        HR_EXPECT(touched_only_by(with.plan, HR_RULE_IDLE_DEVICE));
        for (uint32_t i = 0; i < 4; ++i) {
                int32_t device = without.plan->device[i];

                HR_EXPECT_EQ(with.plan->device[i], device == 1 ? 2 : device);
                HR_EXPECT_EQ(with.plan->cause[i], without.plan->cause[i]);
        }
        HR_EXPECT_EQ(with.plan->compute_bytes[2], without.plan->compute_bytes[1]);
        HR_EXPECT_EQ(with.plan->compute_bytes[1], 0);
        world_deinit(&with);
        world_deinit(&without);
}

HR_TEST(rule_label_needs_a_reader_only) {
        struct world world;
        struct hr_plan *plan = NULL;

        world_init(&world, small_graph(8), 1, false);
        world.tensor_buffer[0] = world_buffer(&world, 1, HR_USAGE_WEIGHTS);
        world_deny(&world, 0, 0);
        world_deny(&world, 0, 1);
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->device[0], 0);
        HR_EXPECT(world.plan->rule_count[HR_RULE_LABEL] == 1);
        world.in.options.rules = HR_RULES_GGML;
        HR_EXPECT_EQ(hr_plan_make(&world.in, NULL, &plan), HR_E_UNSUPPORTED);
        world_deinit(&world);
}

/* What the client gives is taken before anything else is waited for, wherever it stands in the list
 * of inputs: the copies come direct, or in halves through the host. */
HR_TEST(run_inputs_come_before_those_of_other_devices) {
        for (uint32_t form = 0; form < 6; ++form) {
                struct sketch sketch;
                struct world world;
                uint64_t copies[2] = {0};
                uint32_t x, y, a, b, first, taken = 0, waited = 0, second = 0;

                sketch_init(&sketch, 4);
                x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
                y = sketch_leaf(&sketch, HR_LEAF_INPUT, "y");
                a = sketch_node(&sketch, HR_OP_ADD, x, x, 1);
                b = sketch_node(&sketch, HR_OP_SUB, a, y, 0);
                sketch_output(&sketch, sketch_node(&sketch, HR_OP_MUL, b, x, 0));
                world_init(&world, sketch_finish(&sketch), 1, false);
                memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
                world.in.copies = form % 2 ? copies : NULL;
                world.in.options.n_copies = 1 + form / 2;
                (void) world_plan(&world, HR_RULES_HEADRACE);
                HR_EXPECT_EQ(world.plan->splits[1].device, 0);
                first = world.plan->inputs[world.plan->splits[1].input_first];
                HR_EXPECT_EQ(world.plan->copies[first].tensor, a);
                for (uint32_t c = 0; c < world.plan->tape.count; ++c) {
                        const struct hr_command *command = &world.plan->tape.commands[c];

                        if (command->device != 0)
                                continue;
                        taken += command->code == HR_COMMAND_INPUT;
                        if (command->code == HR_COMMAND_WAIT && waited++ == 0)
                                HR_EXPECT_EQ(taken, 2);
                        second += command->code == HR_COMMAND_WRITE;
                }
                HR_EXPECT_EQ(taken, 2);
                HR_EXPECT(waited > 0);
                HR_EXPECT_EQ(second, form % 2);
                world_deinit(&world);
                sketch_deinit(&sketch);
        }
}

HR_TEST(strict_refuses_a_fallback) {
        struct world world;
        struct hr_plan *plan = NULL;

        world_init(&world, small_graph(8), 1, false);
        world.tensor_buffer[0] = world_buffer(&world, 1, HR_USAGE_WEIGHTS);
        world.in.options.strict = true;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->fallback_nodes, 0);
        world_deny(&world, 3, 0);
        HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_PRECONDITION);
        HR_EXPECT_STREQ(world.diag.reason, "FALLBACK");
        HR_EXPECT_EQ(world.diag.node, 1);
        world.in.options.strict = false;
        HR_EXPECT_EQ(world_plan(&world, HR_RULES_HEADRACE)->fallback_nodes, 1);
        world_deinit(&world);
}

HR_TEST(an_op_nobody_supports_is_named) {
        struct world world;
        struct hr_plan *plan = NULL;

        world_init(&world, small_graph(8), 1, false);
        world.tensor_buffer[0] = world_buffer(&world, 1, HR_USAGE_WEIGHTS);
        world_deny(&world, 3, 0);
        world_deny(&world, 3, 1);
        for (int rules = 0; rules < 2; ++rules) {
                world.in.options.rules = (hr_rules) rules;
                hr_diag_clear(&world.diag);
                HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_UNSUPPORTED);
                HR_EXPECT_STREQ(world.diag.reason, "OP");
                HR_EXPECT(world.diag.has_node && world.diag.node == 1);
        }
        world_deinit(&world);
}

/* The operator that writes into a state is not carried to where the state is, unsupported. */
HR_TEST(a_writer_nobody_supports_is_named) {
        struct world world;
        struct hr_plan *plan = NULL;

        world_init(&world, writer_graph(), 1, true);
        world.tensor_buffer[0] = world_buffer(&world, 0, HR_USAGE_ANY);
        for (uint32_t d = 0; d < world.in.device_count; ++d)
                world_deny(&world, 3, d);
        world.in.options.rules = HR_RULES_HEADRACE;
        HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_UNSUPPORTED);
        HR_EXPECT_STREQ(world.diag.reason, "OP");
        world_deinit(&world);
}

/* The second GPU of a pool has an empty node and nothing else: what is copied for it lies in the
 * pool that the first one uses. */
HR_TEST(copies_for_an_empty_node_are_ordered) {
        struct sketch sketch;
        struct world world;
        uint32_t x, y, a, b;

        sketch_init(&sketch, 8);
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        y = sketch_leaf(&sketch, HR_LEAF_INPUT, "y");
        a = sketch_node(&sketch, HR_OP_ADD, x, x, 0);
        b = sketch_node(&sketch, HR_OP_ADD, y, y, 1);
        sketch_output(&sketch, a);
        world_init(&world, sketch_finish(&sketch), 2, false);
        memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        world.devices[1].kind = world.devices[0].kind;
        world.reads[0][1] = world.reads[0][0]; /* a word for each device */
        world.graph->tensors[b].ne[0] = 0;
        for (int rules = 0; rules < 2; ++rules) {
                const struct hr_plan *plan = world_plan(&world, (hr_rules) rules);

                HR_EXPECT_EQ(plan->fault.status, HR_OK);
                HR_EXPECT_EQ(plan->lane[1], plan->lane[0]);
        }
        sketch_deinit(&sketch);
        world_deinit(&world);
}

/* ---- Memory ------------------------------------------------------------------------------------
 */

/* Graphs that no client can make: what looks at memory that nobody gives is refused, whatever ggml
 * would have decided. */
HR_TEST(what_has_no_memory_is_refused) {
        static const struct {
                uint32_t looker, base;
                bool is_plain; /* the base is no input */
        } cases[] = {{0, 1, true}, {2, 3, false}, {2, 3, true}};

        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(cases); ++i) {
                struct world world;
                struct hr_plan *plan = NULL;

                world_init(&world, small_graph(8), 1, false);
                world.graph->tensors[cases[i].looker].view_base = cases[i].base;
                if (cases[i].is_plain) {
                        world.graph->tensors[1].leaf_kind = HR_LEAF_NOT;
                        world.graph->tensors[1].flags = 0;
                }
                (void) world_plan(&world, HR_RULES_GGML);
                world.in.options.rules = HR_RULES_HEADRACE;
                hr_diag_clear(&world.diag);
                HR_EXPECT_EQ(hr_plan_make(&world.in, &world.diag, &plan), HR_E_INVALID);
                world_deinit(&world);
        }
}

/* a (256 bytes), b (128) beside it, c (128) in the hole that a leaves, and no room for d (256) in
 * the rest of it: packed anew, d lies where a was and c behind b. */
HR_TEST(a_pool_is_packed_where_time_leaves_holes) {
        struct sketch sketch;
        uint32_t x, a, b, c, d;
        struct world world;

        sketch_init(&sketch, 32);
        x = sketch_leaf(&sketch, HR_LEAF_STATE, "x");
        a = sketch_node(&sketch, HR_OP_ADD, x, x, HR_NO_PIN);
        b = sketch_node(&sketch, HR_OP_ADD, a, a, HR_NO_PIN);
        c = sketch_node(&sketch, HR_OP_ADD, b, b, HR_NO_PIN);
        d = sketch_node(&sketch, HR_OP_ADD, b, c, HR_NO_PIN);
        sketch_output(&sketch, d);
        world_init(&world, sketch_finish(&sketch), 0, false);
        world.tensor_buffer[x] = world_buffer(&world, 0, HR_USAGE_ANY);
        world.kinds[0].alignment = 32;
        for (uint32_t i = a; i <= d; i += d - a) {
                world.graph->tensors[i].ne[0] = 64;
                for (int k = 1; k < HR_DIMS; ++k)
                        world.graph->tensors[i].nb[k] = 256;
        }
        for (int rules = 0; rules < 2; ++rules) {
                HR_EXPECT_EQ(world_plan(&world, (hr_rules) rules)->compute_bytes[0], 512);
                HR_EXPECT_EQ(world.plan->place[d].offset, world.plan->place[a].offset);
                HR_EXPECT(world.plan->place[c].offset != world.plan->place[b].offset);
        }
        sketch_deinit(&sketch);
        world_deinit(&world);
}

/* ---- The verifier ------------------------------------------------------------------------------
 */

/* A chain that visits the devices in a scrambled order, with a state on the first one. */
static void busy_world(struct world *world, uint32_t gpus, uint32_t length, uint32_t n_copies) {
        struct sketch sketch;
        uint32_t s, x, at, side;
        struct hr_graph *graph;

        sketch_init(&sketch, 16);
        s = sketch_leaf(&sketch, HR_LEAF_STATE, "s");
        x = sketch_leaf(&sketch, HR_LEAF_INPUT, "x");
        side = at = sketch_in_place(&sketch, HR_OP_ADD, s, s, x, 0);
        for (uint32_t i = 0; i < length; ++i) {
                uint32_t next = sketch_node(&sketch, HR_OP_ADD, at, i % 3 ? side : x,
                                            (int32_t) ((i * 7 + i / 5) % gpus));

                side = i % 4 ? side : at;
                at = next;
        }
        sketch_output(&sketch, at);
        graph = sketch_finish(&sketch);
        world_init(world, graph, gpus, false);
        world->tensor_buffer[s] = world_buffer(world, 1, HR_USAGE_ANY);
        memcpy(world->pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        world->in.options.n_copies = n_copies;
        sketch_deinit(&sketch);
}

/* Every wait and record of a tape is there for a reason: without it the proof fails. With one slot
 * a copy may wait for a little more than it must, since united holes remember their latest use
 * only. */
static void drop_each(uint32_t gpus, uint32_t length, uint32_t n_copies, uint32_t *dropped,
                      uint32_t *missed) {
        struct world world;
        struct hr_command kept;

        busy_world(&world, gpus, length, n_copies);
        (void) world_plan(&world, HR_RULES_HEADRACE);
        for (uint32_t i = 0; i < world.plan->tape.count; ++i) {
                struct hr_command *command = &world.plan->tape.commands[i];
                bool end = command->index >= world.plan->tape.slot_event_count;

                if (command->code == HR_COMMAND_NOTIFY || command->code == HR_COMMAND_WAIT ||
                    (command->code == HR_COMMAND_RECORD && !end)) {
                        struct hr_diag diag = {0};

                        kept = *command;
                        *command = (struct hr_command){.code = HR_COMMAND_READ_BACK,
                                                       .device = kept.device};
                        if (hr_plan_verify(world.plan, &world.in, &diag) == HR_E_INTERNAL) {
                                HR_EXPECT(strlen(diag.words) > 10);
                                ++*missed;
                        } else if (n_copies > 1) {
                                hr_test_fail(__FILE__, __LINE__,
                                             "%u devices, %u copies: nobody misses command %u (%d)",
                                             gpus, n_copies, i, (int) kept.code);
                        }
                        *command = kept;
                        ++*dropped;
                }
        }
        HR_EXPECT_OK(hr_plan_verify(world.plan, &world.in, &world.diag), &world.diag);
        world_deinit(&world);
}

HR_TEST_LIMIT(verifier_misses_no_edge, 60) {
        uint32_t dropped = 0, missed = 0;

        for (uint32_t gpus = 2; gpus <= 5; ++gpus) {
                for (uint32_t n = 1; n <= 4; ++n)
                        drop_each(gpus, 40, n, &dropped, &missed);
        }
        HR_EXPECT(dropped > 500);
        HR_EXPECT((dropped - missed) * 100 < dropped);
}

/* Copies of different tensors, or of different slots, at one address. */
HR_TEST(verifier_sees_aliased_memory) {
        for (uint32_t n = 1; n <= 3; ++n) {
                struct world world;
                uint32_t seen = 0;

                busy_world(&world, 3, 30, n);
                (void) world_plan(&world, HR_RULES_HEADRACE);
                for (uint32_t k = 0; k < world.plan->kind_count; ++k) {
                        uint64_t bytes = world.plan->pools[k].slot_bytes;

                        seen += bytes != 0;
                        (void) bytes;
                }
                HR_EXPECT((seen != 0) == (n > 1));
                for (uint32_t i = 0; n > 1 && i < world.plan->tape.count; ++i) {
                        struct hr_command *command = &world.plan->tape.commands[i];

                        if (command->code != HR_COMMAND_COPY)
                                continue;
                        /* As if every slot had the same memory. */
                        command->to.where = HR_WHERE_SHARED;
                        HR_EXPECT_EQ(hr_plan_verify(world.plan, &world.in, NULL), HR_E_INTERNAL);
                        command->to.where = HR_WHERE_SLOT;
                        break;
                }
                world_deinit(&world);
        }
}

/* ---- Sizes -------------------------------------------------------------------------------------
 */

/* Of this thread: other work on the machine does not count. */
static uint64_t cpu_ns(void) {
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (uint64_t) now.tv_sec * HR_NS_PER_S + (uint64_t) now.tv_nsec;
}

static uint64_t world_plan_ns(struct world *world) {
        uint64_t best = UINT64_MAX;

        for (int i = 0; i < 3; ++i) {
                uint64_t start = cpu_ns();

                (void) world_plan(world, HR_RULES_HEADRACE);
                best = HR_MIN(best, cpu_ns() - start);
        }
        return best;
}

static uint64_t plan_ns(uint32_t gpus, uint32_t length, uint32_t n_copies) {
        struct world world;
        uint64_t best;

        busy_world(&world, gpus, length, n_copies);
        best = world_plan_ns(&world);
        printf("%u devices, %u nodes, %u copies: %.0f ns a node\n", gpus, length, n_copies,
               (double) best / length);
        world_deinit(&world);
        return best;
}

/* Results of many sizes that live for up to a third of the graph: time leaves holes everywhere, and
 * each meets a part of all others. */
static uint64_t long_lives_ns(uint32_t length) {
        struct sketch sketch;
        struct world world;
        uint32_t seed = 7, x, last, first;
        uint64_t best;

        sketch_init(&sketch, 32);
        x = sketch_leaf(&sketch, HR_LEAF_STATE, "x");
        first = last = sketch_node(&sketch, HR_OP_ADD, x, x, HR_NO_PIN);
        for (uint32_t i = 1; i < length; ++i) {
                uint32_t back;

                seed = seed * 1664525 + 1013904223;
                back = seed % HR_MIN(i, length / 3 + 1);
                last = sketch_node(&sketch, HR_OP_ADD, last, last - back, HR_NO_PIN);
        }
        sketch_output(&sketch, last);
        world_init(&world, sketch_finish(&sketch), 0, false);
        world.tensor_buffer[x] = world_buffer(&world, 0, HR_USAGE_ANY);
        for (uint32_t i = first; i <= last; ++i) {
                seed = seed * 1664525 + 1013904223;
                world.graph->tensors[i].ne[0] = 32 * (1 + (seed >> 16) % 100);
                for (int k = 1; k < HR_DIMS; ++k)
                        world.graph->tensors[i].nb[k] =
                                4 * (uint64_t) world.graph->tensors[i].ne[0];
        }
        best = world_plan_ns(&world);
        printf("%u long lives: %.0f ns a node\n", length, (double) best / length);
        sketch_deinit(&sketch);
        world_deinit(&world);
        return best;
}

HR_TEST_LIMIT(planning_grows_linearly, 120) {
        /* Memory stays with the process: what the kernel takes to clear pages is not planning. */
        (void) mallopt(M_MMAP_THRESHOLD, 1 << 30);
        (void) mallopt(M_TRIM_THRESHOLD, INT32_MAX);
        for (uint32_t n = 1; n <= 2; ++n) {
                uint64_t small = plan_ns(4, 10000, n), large = plan_ns(4, 160000, n);

                /* 16 times the nodes: 256 times the time if it were quadratic. What lies between is
                 * for caches that the larger graph does not fit. */
                HR_EXPECT(large < 80 * small);
        }
        (void) plan_ns(64, 20000, 16);
        /* Packing that met everything would take 35 times as long as a plan without long lives. */
        HR_EXPECT(long_lives_ns(64000) < 12 * plan_ns(4, 64000, 1));
}

/* Ten copies of one plan are equal in every byte that counts. */
HR_TEST(planning_is_pure) {
        struct world world;
        uint64_t before;
        struct hr_plan *first;

        busy_world(&world, 4, 200, 2);
        before = hr_graph_hash(world.graph);
        first = hr_plan_ref((struct hr_plan *) world_plan(&world, HR_RULES_HEADRACE));
        for (int i = 0; i < 10; ++i) {
                const struct hr_plan *again = world_plan(&world, HR_RULES_HEADRACE);

                HR_EXPECT_EQ(again->tape.count, first->tape.count);
                HR_EXPECT(memcmp(again->tape.commands, first->tape.commands,
                                 first->tape.count * sizeof *first->tape.commands) == 0);
                HR_EXPECT(memcmp(again->device, first->device,
                                 first->tensor_count * sizeof *first->device) == 0);
                HR_EXPECT(memcmp(again->place, first->place,
                                 first->tensor_count * sizeof *first->place) == 0);
        }
        HR_EXPECT(hr_graph_hash(world.graph) == before);
        hr_plan_unref(first);
        world_deinit(&world);
}
