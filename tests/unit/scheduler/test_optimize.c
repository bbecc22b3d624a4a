/*
 * Nodes joined into one pass: the same bits as node by node, and no plan that joins what it must
 * not.
 *
 * Graphs run on a CPU device twice, with and without `optimize`, and every output must have the
 * same bits: all pairs of element-wise ops and norms in every form, and random graphs of typed
 * tensors with broadcasts, windows and writers in place. Then plans are broken by hand, and the
 * proof must find it. HR_SEED=N runs one random graph.
 */
#include <stdlib.h>
#include <string.h>

#include "backends/cpu/backend.h"
#include "scheduler/plan.h"
#include "tests/unit/scheduler/graphs.h"

enum { ROWS = 5, WIDTH = 1100, OUTPUTS = 64, THREADS = 3 };

/* ---- A graph, run both ways
 * -------------------------------------------------------------------- */

struct bench {
        struct hr_device *device;
        struct hr_fleet *fleet;
        struct hr_diag diag;
};

static void bench_init(struct bench *bench, const char *isa) {
        struct hr_cpu_config config = {
                .name = "cpu", .threads = THREADS, .wake_all = true, .isa = isa};

        *bench = (struct bench){0};
        HR_EXPECT_OK(hr_cpu_device_new(&config, &bench->diag, &bench->device), &bench->diag);
        HR_EXPECT_OK(hr_fleet_new(&bench->device, 1, &bench->diag, &bench->fleet), &bench->diag);
}

static void bench_deinit(struct bench *bench) {
        hr_fleet_free(bench->fleet);
        hr_device_unref(bench->device);
}

static struct hr_plan *plan_of(struct bench *bench, struct hr_graph *graph, bool optimize) {
        struct hr_plan_request request = {
                .graph = graph, .fleet = bench->fleet, .options = {.optimize = optimize}};
        struct hr_plan *plan = NULL;

        HR_EXPECT_OK(hr_plan_new(&request, &bench->diag, &plan), &bench->diag);
        return plan;
}

static uint32_t joined_count(const struct hr_plan *plan) {
        uint32_t count = 0;

        for (uint32_t k = 0; plan->joined && k < plan->step_count; ++k)
                count += plan->joined[k];
        return count;
}

/* Values that neither overflow f16 nor leave the domain of LOG and SQRT. */
static void fill(const struct hr_tensor *t, uint32_t seed, void *bytes) {
        uint64_t count = hr_tensor_bytes(t) / hr_type_info(t->type)->block_bytes;

        for (uint64_t i = 0; i < count; ++i) {
                float value = 0.25F + (float) ((i * 37 + seed * 101) % 199) / 160.0F;
                uint32_t bits;

                memcpy(&bits, &value, sizeof bits);
                if (t->type == HR_TYPE_F32)
                        ((float *) bytes)[i] = value;
                else if (t->type == HR_TYPE_BF16)
                        ((uint16_t *) bytes)[i] = (uint16_t) (bits >> 16);
                else /* f16, rounded down */
                        ((uint16_t *) bytes)[i] = (uint16_t) (((bits >> 13) & 0x3ff) |
                                                              (((bits >> 23) - 112) << 10));
        }
}

/* All outputs, one behind the other; the caller frees them. Two runs, the second one's. */
static uint8_t *run_plan(struct bench *bench, struct hr_graph *graph, struct hr_plan *plan,
                         uint64_t *ret_bytes) {
        struct hr_pipeline_request bind = {.plan = plan, .graph = graph, .fleet = bench->fleet};
        struct hr_pipeline *pipeline = NULL;
        struct hr_run_output outputs[OUTPUTS];
        struct ride ride;
        uint8_t *bytes, *inputs[8];
        uint64_t total = 0;

        HR_EXPECT_OK(hr_pipeline_new(&bind, &bench->diag, &pipeline), &bench->diag);
        ride_init(&ride);
        for (uint32_t i = 0; i < graph->input_count; ++i) {
                const struct hr_tensor *t = &graph->tensors[graph->inputs[i]];

                inputs[i] = malloc(hr_tensor_bytes(t));
                fill(t, i, inputs[i]);
                ride.inputs[i] =
                        (struct hr_run_input){.data = inputs[i], .bytes = hr_tensor_bytes(t)};
        }
        HR_EXPECT(graph->output_count <= OUTPUTS);
        for (uint32_t o = 0; o < graph->output_count; ++o)
                total += hr_tensor_bytes(&graph->tensors[graph->outputs[o]]);
        bytes = calloc(1, total);
        total = 0;
        for (uint32_t o = 0; o < graph->output_count; ++o) {
                outputs[o] = (struct hr_run_output){
                        .tensor = graph->outputs[o],
                        .data = bytes + total,
                        .bytes = hr_tensor_bytes(&graph->tensors[graph->outputs[o]])};
                total += outputs[o].bytes;
        }
        ride.run.outputs = outputs;
        ride.run.output_count = graph->output_count;
        for (uint32_t n = 0; n < 2; ++n) {
                HR_EXPECT_OK(ride_start(&ride, pipeline, &bench->diag), &bench->diag);
                HR_EXPECT_EQ(ride_wait(&ride), HR_OK);
        }
        for (uint32_t i = 0; i < graph->input_count; ++i)
                free(inputs[i]);
        ride_deinit(&ride);
        hr_pipeline_free(pipeline);
        *ret_bytes = total;
        return bytes;
}

/* Returns how many nodes were joined with their reader. Frees the graph. */
static uint32_t compare(struct bench *bench, struct hr_graph *graph, const char *what) {
        struct hr_plan *plain = plan_of(bench, graph, false), *joined = plan_of(bench, graph, true);
        uint32_t count = joined_count(joined);
        uint64_t bytes = 0, more = 0;
        uint8_t *expected = run_plan(bench, graph, plain, &bytes);
        uint8_t *got = run_plan(bench, graph, joined, &more);

        HR_EXPECT_EQ(joined_count(plain), 0);
        HR_EXPECT_EQ(bytes, more);
        for (uint64_t i = 0; i < bytes; ++i) {
                if (expected[i] != got[i])
                        hr_test_fail(__FILE__, __LINE__, "%s: byte %llu of the outputs differs",
                                     what, (unsigned long long) i);
        }
        free(expected);
        free(got);
        hr_plan_unref(plain);
        hr_plan_unref(joined);
        hr_graph_unref(graph);
        return count;
}

static struct hr_graph *finish(struct hr_build *build) {
        struct hr_graph *graph = hr_build_finish(build);
        struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 26};
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_graph_validate(graph, &limits, &diag), &diag);
        return graph;
}

static void output(struct hr_build *build, uint32_t id) {
        hr_build_tensor(build, id)->flags |= HR_TENSOR_OUTPUT;
}

/* ---- Every pair
 * -------------------------------------------------------------------------------- */

/* One element-wise op, or a norm, with parameters that mean something. */
struct form {
        uint32_t op;
        int32_t word; /* of UNARY */
        bool binary, norm;
};

static uint32_t list_forms(struct form *forms) {
        static const uint32_t ops[] = {HR_OP_SCALE, HR_OP_CLAMP, HR_OP_SQR, HR_OP_SQRT,
                                       HR_OP_LOG,   HR_OP_SIN,   HR_OP_COS, HR_OP_LEAKY_RELU};
        static const uint32_t binaries[] = {HR_OP_ADD, HR_OP_SUB, HR_OP_MUL, HR_OP_DIV};
        static const uint32_t norms[] = {HR_OP_NORM, HR_OP_RMS_NORM, HR_OP_L2_NORM};
        uint32_t count = 0;

        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(ops); ++i)
                forms[count++] = (struct form){.op = ops[i]};
        for (int32_t i = 0; i < HR_UNARY_COUNT; ++i)
                forms[count++] = (struct form){.op = HR_OP_UNARY, .word = i};
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(binaries); ++i)
                forms[count++] = (struct form){.op = binaries[i], .binary = true};
        for (uint32_t i = 0; i < HR_ARRAY_LENGTH(norms); ++i)
                forms[count++] = (struct form){.op = norms[i], .norm = true};
        return count;
}

static uint32_t add_form(struct hr_build *build, const struct form *form, uint32_t a, uint32_t b) {
        const struct hr_tensor t = *hr_build_tensor(build, a);
        uint32_t sources[2] = {a, b};
        uint32_t id = hr_build_node(build, form->op, t.type, t.ne[0], t.ne[1], t.ne[2], t.ne[3],
                                    form->binary ? 2 : 1, sources);

        switch (form->op) {
        case HR_OP_SCALE:
                hr_build_param_f32(build, id, 0, 0.75F);
                hr_build_param_f32(build, id, 1, 0.0625F);
                break;
        case HR_OP_CLAMP:
                hr_build_param_f32(build, id, 0, 0.3F);
                hr_build_param_f32(build, id, 1, 1.1F);
                break;
        case HR_OP_LEAKY_RELU:
                hr_build_param_f32(build, id, 0, 0.1F);
                break;
        case HR_OP_UNARY:
                hr_build_tensor(build, id)->params[0] = form->word;
                for (uint32_t word = 1; form->word == HR_UNARY_XIELU && word <= 4; ++word)
                        hr_build_param_f32(build, id, word, 0.2F * (float) word);
                break;
        default:
                if (form->norm)
                        hr_build_param_f32(build, id, 0, 1e-5F);
                break;
        }
        return id;
}

/* How the second node takes the first, and what else it takes. */
enum { OTHER_SAME, OTHER_ROW, OTHER_ONE, OTHER_FIRST, OTHER_NARROW, FORM_COUNT };

static uint32_t pair(struct bench *bench, const struct form *first, const struct form *second,
                     uint32_t type, uint32_t how) {
        struct hr_build *build = hr_build_new();
        uint32_t a = hr_build_leaf(build, HR_LEAF_INPUT, type, "a", WIDTH, ROWS, 1, 1);
        uint32_t b = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "b", WIDTH, ROWS, 1, 1);
        uint32_t row = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "row", WIDTH, 1, 1, 1);
        uint32_t one = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "one", 1, 1, 1, 1);
        uint32_t half =
                hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "half", WIDTH / 4, ROWS, 1, 1);
        const uint32_t others[FORM_COUNT] = {b, row, one, b, half};
        uint32_t inner = add_form(build, first, a, others[how]);
        uint32_t outer;

        if (how == OTHER_FIRST && second->binary)
                outer = add_form(build, second, type == HR_TYPE_F32 ? b : a, inner);
        else
                outer = add_form(build, second, inner, others[how]);
        output(build, outer);
        return compare(bench, finish(build), hr_op_name(second->op));
}

HR_TEST_LIMIT(every_pair_has_the_same_bits, 240) {
        static const uint32_t types[] = {HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16};
        struct form forms[64];
        uint32_t count = list_forms(forms), joined = 0, possible = 0;
        struct bench bench;

        bench_init(&bench, "auto");
        for (uint32_t f = 0; f < count; ++f) {
                for (uint32_t s = 0; s < count; ++s) {
                        for (uint32_t how = 0; how < FORM_COUNT; ++how) {
                                /* A form that only binary ops know, or a type that norms lack. */
                                uint32_t type = types[(f + s + how) % HR_ARRAY_LENGTH(types)];

                                if (how && !forms[f].binary && !forms[s].binary)
                                        continue;
                                if (forms[f].norm || forms[s].norm)
                                        type = HR_TYPE_F32;
                                joined += pair(&bench, &forms[f], &forms[s], type, how);
                                possible += !forms[s].norm;
                        }
                }
        }
        /* NORM does not lead where something as large as the result is read with it. */
        HR_EXPECT(joined > possible * 9 / 10 && joined <= possible);
        bench_deinit(&bench);
}

/* ---- Models' own
 * ------------------------------------------------------------------------------- */

static uint32_t unary(struct hr_build *build, int32_t function, uint32_t a) {
        return add_form(build, &(struct form){.op = HR_OP_UNARY, .word = function}, a, 0);
}

static uint32_t binary(struct hr_build *build, uint32_t op, uint32_t a, uint32_t b) {
        return add_form(build, &(struct form){.op = op, .binary = true}, a, b);
}

static uint32_t norm(struct hr_build *build, uint32_t op, uint32_t a) {
        return add_form(build, &(struct form){.op = op, .norm = true}, a, 0);
}

/* Norm with weight and bias, a gate in two nodes, with products between that part them. */
HR_TEST(norms_and_gates_join_across_products) {
        static const uint32_t norms[] = {HR_OP_RMS_NORM, HR_OP_NORM, HR_OP_L2_NORM};

        for (uint32_t n = 0; n < HR_ARRAY_LENGTH(norms); ++n) {
                struct hr_build *build = hr_build_new();
                uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 96, 7, 1, 1);
                uint32_t w = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "w", 96, 1, 1, 1);
                uint32_t b = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "b", 96, 1, 1, 1);
                uint32_t m = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "m", 96, 64, 1, 1);
                uint32_t y, gate, up, sources[2] = {m};
                struct bench bench;

                y = norm(build, norms[n], x);
                y = binary(build, HR_OP_ADD, binary(build, HR_OP_MUL, y, w), b);
                sources[1] = y;
                gate = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 64, 7, 1, 1, 2, sources);
                gate = unary(build, HR_UNARY_SILU, gate);
                up = hr_build_node(build, HR_OP_MUL_MAT, HR_TYPE_F32, 64, 7, 1, 1, 2, sources);
                output(build, binary(build, HR_OP_MUL, gate, up));
                bench_init(&bench, "auto");
                HR_EXPECT_EQ(compare(&bench, finish(build), hr_op_name(norms[n])), 3);
                bench_deinit(&bench);
        }
}

/* What somebody else needs is computed by itself. */
HR_TEST(what_others_need_is_not_joined) {
        enum { OUTPUT, TWO_READERS, TWICE, WINDOW, BASE, CASE_COUNT };
        struct bench bench;

        bench_init(&bench, "auto");
        for (int which = 0; which < CASE_COUNT; ++which) {
                struct hr_build *build = hr_build_new();
                uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 64, 1, 1, 1);
                uint32_t t = unary(build, HR_UNARY_TANH, x), r, view;

                switch (which) {
                case OUTPUT:
                        output(build, t);
                        break;
                case TWO_READERS:
                        output(build, unary(build, HR_UNARY_NEG, t));
                        break;
                case WINDOW:
                        view = hr_build_node(build, HR_OP_RESHAPE, HR_TYPE_F32, 32, 2, 1, 1, 1, &t);
                        hr_build_tensor(build, view)->view_base = t;
                        output(build, unary(build, HR_UNARY_EXP, view));
                        break;
                default:
                        break;
                }
                if (which == TWICE)
                        r = binary(build, HR_OP_MUL, t, t);
                else if (which != WINDOW)
                        r = binary(build, HR_OP_ADD, t, x);
                else
                        r = t;
                if (which == BASE)
                        hr_build_tensor(build, r)->view_base = t;
                output(build, r);
                HR_EXPECT_EQ(compare(&bench, finish(build), "others"), 0);
        }
        bench_deinit(&bench);
}

/* A writer between a node and its reader changes what the node would read later. */
HR_TEST(nothing_moves_past_a_writer) {
        struct hr_build *build = hr_build_new();
        uint32_t x = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "x", 64, 1, 1, 1);
        uint32_t y = hr_build_leaf(build, HR_LEAF_INPUT, HR_TYPE_F32, "y", 64, 1, 1, 1);
        uint32_t before = unary(build, HR_UNARY_NEG, x), written, reader;
        struct bench bench;

        bench_init(&bench, "auto");
        written = binary(build, HR_OP_ADD, x, y);
        hr_build_tensor(build, written)->view_base = x;
        reader = binary(build, HR_OP_SUB, before, y);
        output(build, reader);
        output(build, written);
        HR_EXPECT_EQ(compare(&bench, finish(build), "writer"), 0);
        bench_deinit(&bench);
}

/* ---- At random
 * --------------------------------------------------------------------------------- */

struct dice {
        uint64_t state;
};

static uint32_t roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

enum { LEAVES = 7, NODES = 30 };

/* Every second row of a node's or leaf's four. */
static uint32_t add_window(struct hr_build *build, uint32_t source) {
        const struct hr_tensor t = *hr_build_tensor(build, source);
        uint32_t id =
                hr_build_node(build, HR_OP_VIEW, t.type, t.ne[0], t.ne[1] / 2, 1, 1, 1, &source);
        struct hr_tensor *view = hr_build_tensor(build, id);

        view->view_base = t.view_base == HR_TENSOR_NONE ? source : t.view_base;
        view->view_offset = t.view_offset;
        memcpy(view->nb, t.nb, sizeof view->nb);
        view->nb[1] = 2 * t.nb[1];
        view->nb[2] = view->nb[3] = view->nb[1] * (uint64_t) view->ne[1];
        return id;
}

static bool broadcasts(const struct hr_tensor *part, const struct hr_tensor *whole) {
        for (int i = 0; i < HR_DIMS; ++i) {
                if (whole->ne[i] % part->ne[i] != 0)
                        return false;
        }
        return true;
}

static uint32_t root_of(struct hr_build *build, uint32_t id) {
        uint32_t base = hr_build_tensor(build, id)->view_base;

        return base == HR_TENSOR_NONE ? id : base;
}

/* Over a window of itself nobody can compute. */
static bool meet(struct hr_build *build, const struct form *form, uint32_t a, uint32_t b) {
        return form->binary && root_of(build, a) == root_of(build, b);
}

static struct hr_graph *random_graph(struct dice *dice) {
        static const uint32_t types[] = {HR_TYPE_F32, HR_TYPE_F32, HR_TYPE_F16, HR_TYPE_BF16};
        struct hr_build *build = hr_build_new();
        int64_t width = 1 + roll(dice, 6) * 7, rows = 2 + 2 * roll(dice, 3);
        struct form forms[64];
        uint32_t form_count = list_forms(forms), count;

        for (count = 0; count < LEAVES; ++count)
                (void) hr_build_leaf(build, HR_LEAF_INPUT, types[roll(dice, 4)], "",
                                     roll(dice, 4) ? width : 1, count < 4 ? rows : 1, 1, 1);
        while (count < LEAVES + NODES) {
                /* Near ones, so that chains arise. */
                uint32_t a = roll(dice, 3) ? count - 1 - roll(dice, HR_MIN(count, 4U))
                                           : roll(dice, count);
                uint32_t b = roll(dice, count), tries = 0, id;
                const struct form *form = &forms[roll(dice, form_count)];
                const struct hr_tensor *t = hr_build_tensor(build, a);

                if (roll(dice, 2))
                        form = &forms[form_count - 1 - roll(dice, 7)];
                if (t->ne[1] >= 2 && t->ne[1] % 2 == 0 && roll(dice, 12) == 0) {
                        (void) add_window(build, a);
                        ++count;
                        continue;
                }
                if (form->norm && t->type != HR_TYPE_F32)
                        continue;
                while (form->binary && !broadcasts(hr_build_tensor(build, b), t) && ++tries < count)
                        b = (b + 1) % count;
                if (form->binary && !broadcasts(hr_build_tensor(build, b), t))
                        continue;
                id = add_form(build, form, a, b);
                ++count;
                t = hr_build_tensor(build, a);
                if (!form->norm && roll(dice, 6) == 0 && !meet(build, form, a, b)) {
                        struct hr_tensor *r = hr_build_tensor(build, id);

                        r->view_base = root_of(build, a);
                        r->view_offset = t->view_offset;
                        memcpy(r->nb, t->nb, sizeof r->nb);
                }
                if (roll(dice, 8) == 0)
                        output(build, id);
        }
        output(build, count - 1);
        return finish(build);
}

HR_TEST_LIMIT(random_graphs_have_the_same_bits, 240) {
        const char *only = getenv("HR_SEED");
        uint32_t first = only ? (uint32_t) strtoul(only, NULL, 10) : 0;
        uint32_t end = only ? first + 1 : 400, joined = 0;
        struct bench bench;

        bench_init(&bench, "auto");
        for (uint32_t seed = first; seed < end; ++seed) {
                struct dice dice = {UINT64_C(0x9e3779b97f4a7c15) * (seed + 1)};
                char what[32];

                snprintf(what, sizeof what, "seed %u", seed);
                for (int i = 0; i < 4; ++i)
                        (void) roll(&dice, 2);
                joined += compare(&bench, random_graph(&dice), what);
        }
        HR_EXPECT(only || joined > 2 * end);
        bench_deinit(&bench);
}
