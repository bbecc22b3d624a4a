/*
 * The proof of the order inside splits, against plans broken by hand and against every order there
 * is.
 *
 * Small graphs with writers are given each permutation of their steps. Evaluated over symbols, with
 * one value per root, a permutation is right when every node computes what it does in the graph's
 * own order. The proof must accept those and no others.
 */
#include <stdlib.h>
#include <string.h>

#include "scheduler/plan.h"
#include "tests/unit/scheduler/graphs.h"

struct desk {
        struct rig rig;
        struct sketch sketch;
        struct hr_graph *graph;
        struct hr_plan_facts facts;
        struct hr_plan *plan;
};

static void desk_init(struct desk *desk) {
        static const struct rig_device one[] = {{0}};

        memset(desk, 0, sizeof *desk);
        rig_init(&desk->rig, one, 1);
        sketch_init(&desk->sketch, 64);
}

static void desk_plan(struct desk *desk) {
        struct hr_plan_request request = {.fleet = desk->rig.fleet, .options = {.optimize = true}};
        struct hr_diag diag = {0};

        request.graph = desk->graph = sketch_finish(&desk->sketch);
        HR_EXPECT_OK(hr_plan_facts_init(&desk->facts, &request, &diag), &diag);
        HR_EXPECT_OK(hr_plan_make(&desk->facts.input, &diag, &desk->plan), &diag);
}

static void desk_deinit(struct desk *desk) {
        hr_plan_unref(desk->plan);
        hr_plan_facts_deinit(&desk->facts);
        hr_graph_unref(desk->graph);
        sketch_deinit(&desk->sketch);
        rig_deinit(&desk->rig);
}

static hr_status proof(const struct desk *desk) {
        struct hr_diag diag = {0};
        hr_status steps = hr_plan_verify_steps(desk->plan, &desk->facts.input, &diag);

        HR_EXPECT(steps == HR_OK || steps == HR_E_INTERNAL);
        if (steps != HR_OK)
                HR_EXPECT_EQ(hr_plan_verify(desk->plan, &desk->facts.input, NULL), HR_E_INTERNAL);
        return steps;
}

/* ---- Every order
 * ------------------------------------------------------------------------------- */

enum { STEPS_MOST = 7, TENSORS_MOST = 16 };

/* What each node computes, with the steps in that order. */
static void evaluate(const struct desk *desk, const uint32_t *order, uint64_t *values) {
        const struct hr_graph *graph = desk->graph;
        const struct hr_plan *plan = desk->plan;
        uint64_t memory[TENSORS_MOST];

        for (uint32_t i = 0; i < plan->tensor_count; ++i)
                memory[i] = i < plan->leaf_count ? i + 1 : 0; /* 0: nothing has been written
                                                               * there */
        for (uint32_t k = 0; k < plan->step_count; ++k) {
                uint32_t id = plan->leaf_count + order[k];
                const struct hr_tensor *t = &graph->tensors[id];
                uint64_t value = t->op * UINT64_C(0x9e3779b97f4a7c15);

                for (uint32_t i = 0; i < t->source_count; ++i)
                        value = (value ^ memory[plan->root[hr_graph_source(graph, t, i)]]) *
                                        UINT64_C(0xff51afd7ed558ccd) + i;
                values[order[k]] = value;
                memory[plan->root[id]] = value;
        }
}

static void try_order(struct desk *desk, const uint32_t *order, uint32_t *sound) {
        uint64_t expected[TENSORS_MOST] = {0}, got[TENSORS_MOST] = {0};
        uint32_t natural[STEPS_MOST];
        hr_status status;

        memcpy(natural, desk->plan->steps, desk->plan->step_count * sizeof *natural);
        evaluate(desk, natural, expected);
        evaluate(desk, order, got);
        memcpy(desk->plan->steps, order, desk->plan->step_count * sizeof *order);
        status = proof(desk);
        memcpy(desk->plan->steps, natural, desk->plan->step_count * sizeof *natural);
        HR_EXPECT_EQ(status == HR_OK, memcmp(expected, got, sizeof got) == 0);
        *sound += status == HR_OK;
}

static void permute(struct desk *desk, uint32_t *order, uint32_t fixed, uint32_t *sound) {
        uint32_t count = desk->plan->step_count;

        if (fixed == count) {
                try_order(desk, order, sound);
                return;
        }
        for (uint32_t i = fixed; i < count; ++i) {
                uint32_t kept = order[fixed];

                order[fixed] = order[i];
                order[i] = kept;
                permute(desk, order, fixed + 1, sound);
                order[i] = order[fixed];
                order[fixed] = kept;
        }
}

/* Outputs everywhere, so that nothing is joined. */
HR_TEST(right_orders_and_no_others) {
        struct desk desk;
        uint32_t order[STEPS_MOST], sound = 0, x, y, a, b, c, d, e;

        desk_init(&desk);
        x = sketch_leaf(&desk.sketch, HR_LEAF_INPUT, "x");
        y = sketch_leaf(&desk.sketch, HR_LEAF_INPUT, "y");
        a = sketch_node(&desk.sketch, HR_OP_ADD, x, y, HR_NO_PIN);
        b = sketch_node(&desk.sketch, HR_OP_SQR, y, HR_TENSOR_NONE, HR_NO_PIN);
        c = sketch_in_place(&desk.sketch, HR_OP_MUL, x, x, b, HR_NO_PIN);
        d = sketch_node(&desk.sketch, HR_OP_SUB, x, a, HR_NO_PIN);
        e = sketch_in_place(&desk.sketch, HR_OP_ADD, c, x, y, HR_NO_PIN);
        sketch_output(&desk.sketch, a);
        sketch_output(&desk.sketch, b);
        sketch_output(&desk.sketch, d);
        sketch_output(&desk.sketch, e);
        desk_plan(&desk);
        HR_EXPECT_EQ(desk.plan->step_count, 5);
        memcpy(order, desk.plan->steps, sizeof(uint32_t) * 5);
        permute(&desk, order, 0, &sound);
        HR_EXPECT_EQ(sound, 2); /* a and b may change places; all else reads or overwrites x */
        desk_deinit(&desk);
}

/* ---- By hand
 * ----------------------------------------------------------------------------------- */

/* x -> TANH -> (* y) -> out; x -> SQR -> out, and NEG of that. */
static void joined_desk(struct desk *desk) {
        uint32_t x, y, t, r, s, n;

        desk_init(desk);
        x = sketch_leaf(&desk->sketch, HR_LEAF_INPUT, "x");
        y = sketch_leaf(&desk->sketch, HR_LEAF_INPUT, "y");
        t = sketch_node(&desk->sketch, HR_OP_SIN, x, HR_TENSOR_NONE, HR_NO_PIN);
        s = sketch_node(&desk->sketch, HR_OP_SQR, x, HR_TENSOR_NONE, HR_NO_PIN);
        r = sketch_node(&desk->sketch, HR_OP_MUL, t, y, HR_NO_PIN);
        n = sketch_node(&desk->sketch, HR_OP_SUB, s, x, HR_NO_PIN);
        sketch_output(&desk->sketch, s);
        sketch_output(&desk->sketch, r);
        sketch_output(&desk->sketch, n);
        desk_plan(desk);
}

HR_TEST(a_pass_is_planned) {
        struct desk desk;

        joined_desk(&desk);
        HR_EXPECT_EQ(desk.plan->step_count, 4);
        HR_EXPECT(desk.plan->joined);
        /* SIN waits for MUL; SQR goes first. */
        HR_EXPECT_EQ(desk.plan->steps[0], 1);
        HR_EXPECT_EQ(desk.plan->steps[1], 0);
        HR_EXPECT_EQ(desk.plan->steps[2], 2);
        HR_EXPECT_EQ(desk.plan->steps[3], 3);
        HR_EXPECT(!desk.plan->joined[0] && desk.plan->joined[1] && !desk.plan->joined[2]);
        HR_EXPECT_EQ((int) desk.plan->place[desk.plan->leaf_count].where, (int) HR_WHERE_NONE);
        HR_EXPECT_EQ(proof(&desk), HR_OK);
        desk_deinit(&desk);
}

HR_TEST(broken_passes_are_found) {
        enum { TWICE, LEFT_OUT, NOT_JOINED, WRONG_JOIN, PAST_END, MEMORY, OVERLAP, CASES };

        for (int which = 0; which < CASES; ++which) {
                struct desk desk;
                struct hr_plan *plan;
                struct hr_place *place;

                joined_desk(&desk);
                plan = desk.plan;
                place = plan->place + plan->leaf_count;
                switch (which) {
                case TWICE:
                        plan->steps[3] = plan->steps[0];
                        break;
                case LEFT_OUT:
                        --plan->step_count;
                        --plan->splits[0].step_count;
                        break;
                case NOT_JOINED: /* a result without memory */
                        plan->joined[1] = false;
                        HR_EXPECT_EQ(hr_plan_verify(plan, &desk.facts.input, NULL), HR_E_INTERNAL);
                        desk_deinit(&desk);
                        continue;
                case WRONG_JOIN: /* SQR, which MUL does not read, with SIN's memory to hold it */
                        plan->joined[0] = true;
                        break;
                case PAST_END:
                        plan->joined[3] = true;
                        break;
                case MEMORY:
                        place[0] = place[2];
                        break;
                case OVERLAP: /* half over y, which MUL reads */
                        place[2] = plan->place[1];
                        place[2].offset += 128;
                        break;
                default:
                        break;
                }
                HR_EXPECT_EQ(proof(&desk), HR_E_INTERNAL);
                desk_deinit(&desk);
        }
}
