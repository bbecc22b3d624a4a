/*
 * The verifier against the brute-force oracle.
 *
 * Every plan of a collection must be found sound by both. Then its tape is broken in every way that
 * a fault of ours could break it: each wait, record or gate dropped, memory that a lane touches
 * denied, each pair of neighbours on one queue swapped, what exists once per slot made to exist
 * once. What the oracle calls broken the verifier must refuse; the reverse is counted, since the
 * verifier may be strict where no harm is done: it thinks of any pipeline that may share the
 * states, the oracle of one more of the same plan.
 *
 * HEADRACE_FULL=1 takes all recorded graphs and every mutation; otherwise a part of both.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/golden/plans_file.h"
#include "tests/unit/scheduler/graphs.h"
#include "tests/unit/scheduler/happens_before.h"
#include "tests/unit/scheduler/tower.h"
#include "tests/unit/scheduler/world.h"

#define ORACLE_BYTES_MOST (UINT64_C(1) << 26)

enum mutation { DROP_WAIT, DROP_RECORD, DROP_GATE, DROP_TOUCH, SWAP, ALIAS, MUTATION_COUNT };

static const char *const mutation_names[MUTATION_COUNT] = {"wait dropped",       "record dropped",
                                                           "gate dropped",       "touch denied",
                                                           "neighbours swapped", "slots aliased"};

struct tally {
        uint32_t plans, unsound, tried[MUTATION_COUNT], broken[MUTATION_COUNT];
        uint32_t strict[MUTATION_COUNT]; /* refused although sound */
        uint32_t mutations_most;         /* per plan and kind of mutation */
};

struct trial {
        const char *name;
        const struct hr_plan_input *in;
        struct hr_plan *plan;
        struct tally *tally;
        struct hr_command *commands; /* as the plan has them */
        uint32_t count;
        uint32_t *order;
        struct oracle *oracle;
};

static bool is_full(void) {
        return getenv("HEADRACE_FULL") != NULL;
}

/* What the verifier says of the commands in trial->order. */
static hr_status verify(struct trial *trial, uint32_t count, struct hr_diag *diag) {
        struct hr_tape *tape = &trial->plan->tape, kept = *tape;
        struct hr_command *changed = calloc(count + 1, sizeof *changed);
        hr_status status;

        HR_EXPECT(changed);
        for (uint32_t i = 0; i < count; ++i)
                changed[i] = trial->commands[trial->order[i]];
        tape->commands = changed;
        tape->count = count;
        status = hr_plan_verify(trial->plan, trial->in, diag);
        *tape = kept;
        free(changed);
        return status;
}

/* HR_SHOW_TAPE=1 prints the tape that the verifier got wrong. */
static void show_tape(const struct trial *trial, uint32_t count) {
        static const char *const names[] = {"wait",    "record", "gate",      "input",
                                            "write",   "read",   "copy",      "experts",
                                            "compute", "tap",    "read-back", "notify"};

        for (uint32_t i = 0; i < count; ++i) {
                const struct hr_command *c = &trial->commands[trial->order[i]];

                printf("%3u: %u%s %-9s %u holds %u -> %u, place %d.%u+%" PRIu64 " -> %d.%u+%" PRIu64
                       ", %" PRIu64 " bytes\n",
                       trial->order[i], c->device, c->upload ? "u" : " ", names[c->code], c->index,
                       c->from_holds, c->to_holds, (int) c->from.where, c->from.index,
                       c->from.offset, (int) c->to.where, c->to.index, c->to.offset, c->bytes);
        }
}

static void judge(struct trial *trial, struct oracle *oracle, uint32_t count,
                  enum mutation mutation, uint32_t at) {
        struct tally *tally = trial->tally;
        const char *broken = oracle_judge(oracle, trial->order, count);
        struct hr_diag diag = {0};
        hr_status status = verify(trial, count, &diag);

        ++tally->tried[mutation];
        HR_EXPECT(status == HR_OK || status == HR_E_INTERNAL);
        if (broken && status == HR_OK && getenv("HR_SHOW_TAPE"))
                show_tape(trial, count);
        if (broken && status == HR_OK)
                hr_test_fail(__FILE__, __LINE__,
                             "%s: the verifier accepts a broken tape: %s at command %u: %s",
                             trial->name, mutation_names[mutation], at, broken);
        tally->broken[mutation] += broken != NULL;
        tally->strict[mutation] += !broken && status != HR_OK;
        if (!broken && status != HR_OK && getenv("HR_SHOW_STRICT"))
                printf("%s: strict: %s at command %u (code %d, device %u): %s\n", trial->name,
                       mutation_names[mutation], at, (int) trial->commands[at].code,
                       trial->commands[at].device, diag.words);
}

static void order_as_planned(struct trial *trial) {
        for (uint32_t i = 0; i < trial->count; ++i)
                trial->order[i] = i;
}

static void drop_command(struct trial *trial, uint32_t at) {
        order_as_planned(trial);
        memmove(trial->order + at, trial->order + at + 1,
                (trial->count - at - 1) * sizeof *trial->order);
        judge(trial, trial->oracle, trial->count - 1,
              trial->commands[at].code == HR_COMMAND_WAIT     ? DROP_WAIT
              : trial->commands[at].code == HR_COMMAND_RECORD ? DROP_RECORD
                                                              : DROP_GATE,
              at);
}

/* What a lane does not own up to, the next pipeline does not wait for. */
static void deny_touches(struct trial *trial) {
        const struct hr_plan *plan = trial->plan;
        uint32_t count = (plan->lane_count + plan->device_count) * plan->kind_count;

        for (uint32_t i = 0; i < count; ++i) {
                if (!plan->touches[i])
                        continue;
                order_as_planned(trial);
                plan->touches[i] = false;
                judge(trial, trial->oracle, trial->count, DROP_TOUCH, 0);
                plan->touches[i] = true;
        }
}

static void swap_neighbours(struct trial *trial, uint32_t at) {
        uint32_t next = at + 1;

        while (next < trial->count && (trial->commands[next].device != trial->commands[at].device ||
                                       trial->commands[next].upload != trial->commands[at].upload))
                ++next;
        if (next == trial->count)
                return;
        order_as_planned(trial);
        trial->order[at] = next;
        trial->order[next] = at;
        judge(trial, trial->oracle, trial->count, SWAP, at);
}

static bool same_place(const struct hr_place *a, const struct hr_place *b) {
        return a->where == b->where && a->index == b->index && a->offset == b->offset;
}

/* All that lies where the copy does. */
static void move_all(struct trial *trial, struct hr_place from, struct hr_place to) {
        struct hr_plan *plan = trial->plan;

        for (uint32_t i = 0; i < plan->tensor_count; ++i) {
                if (same_place(&plan->place[i], &from))
                        plan->place[i] = to;
        }
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                if (same_place(&plan->copies[c].place, &from))
                        plan->copies[c].place = to;
        }
        for (uint32_t i = 0; i < trial->count; ++i) {
                if (same_place(&trial->commands[i].from, &from))
                        trial->commands[i].from = to;
                if (same_place(&trial->commands[i].to, &from))
                        trial->commands[i].to = to;
        }
}

static void judge_aliased(struct trial *trial, uint32_t at) {
        struct oracle *oracle = oracle_new(trial->plan, trial->in);

        order_as_planned(trial);
        judge(trial, oracle, trial->count, ALIAS, at);
        oracle_free(oracle);
}

/* A copy that every slot has is held once, behind all that is shared. */
static void alias_copy(struct trial *trial, uint32_t copy) {
        struct hr_place from = trial->plan->copies[copy].place, to = from;
        struct hr_plan_pool *pool = &trial->plan->pools[from.index], kept = *pool;

        to.where = HR_WHERE_SHARED;
        to.offset += pool->shared_bytes;
        pool->shared_bytes += pool->slot_bytes;
        move_all(trial, from, to);
        judge_aliased(trial, 0);
        move_all(trial, to, from);
        *pool = kept;
}

static void alias_sections(struct trial *trial) {
        struct hr_plan *plan = trial->plan;
        uint64_t kept = plan->staging_bytes;

        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                uint64_t slot = plan->pools[k].slot_bytes, shared = plan->pools[k].shared_bytes;

                if (slot == 0)
                        continue;
                plan->pools[k].slot_bytes = 0;
                judge_aliased(trial, 0);
                plan->pools[k].slot_bytes = slot;
                plan->pools[k].shared_bytes = 0;
                judge_aliased(trial, 0);
                plan->pools[k].shared_bytes = shared;
        }
        if (kept) {
                plan->staging_bytes = 0;
                judge_aliased(trial, 0);
                plan->staging_bytes = kept;
        }
}

/* Of `count` things at most as many as the tally wants, spread evenly. */
static bool is_chosen(const struct trial *trial, uint32_t index, uint32_t count) {
        uint64_t most = trial->tally->mutations_most;

        return count <= most || index * most / count != (index + 1) * most / count;
}

static void mutate(struct trial *trial) {
        struct hr_plan *plan = trial->plan;

        for (uint32_t i = 0; i < trial->count; ++i) {
                hr_command_code code = trial->commands[i].code;

                if (code == HR_COMMAND_WAIT || code == HR_COMMAND_RECORD || code == HR_COMMAND_GATE)
                        drop_command(trial, i);
        }
        deny_touches(trial);
        for (uint32_t i = 0; i < trial->count; ++i) {
                if (is_chosen(trial, i, trial->count))
                        swap_neighbours(trial, i);
        }
        if (plan->n_copies == 1)
                return;
        alias_sections(trial);
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                if (plan->copies[c].place.where == HR_WHERE_SLOT &&
                    is_chosen(trial, c, plan->copy_count))
                        alias_copy(trial, c);
        }
}

/* Both must agree on the plan as it is; where it is sound its tape is broken in every way. */
static void try_plan(const char *name, const struct hr_plan_input *in, struct hr_plan *plan,
                     struct tally *tally) {
        struct trial trial = {.name = name,
                              .in = in,
                              .plan = plan,
                              .tally = tally,
                              .commands = plan->tape.commands,
                              .count = plan->tape.count};
        struct hr_diag diag = {0};
        const char *broken;
        hr_status status;

        if (oracle_bytes(plan) > ORACLE_BYTES_MOST)
                return;
        trial.order = calloc(trial.count + 1, sizeof *trial.order);
        HR_EXPECT(trial.order);
        trial.oracle = oracle_new(plan, in);
        order_as_planned(&trial);
        broken = oracle_judge(trial.oracle, trial.order, trial.count);
        status = verify(&trial, trial.count, &diag);
        if ((broken != NULL) != (status != HR_OK))
                hr_test_fail(__FILE__, __LINE__, "%s: oracle: %s; verifier: %s", name,
                             broken ? broken : "sound", status == HR_OK ? "sound" : diag.words);
        if (in->options.rules == HR_RULES_HEADRACE && broken)
                hr_test_fail(__FILE__, __LINE__, "%s: %s", name, broken);
        ++tally->plans;
        if (broken)
                ++tally->unsound;
        else
                mutate(&trial);
        oracle_free(trial.oracle);
        free(trial.order);
}

static void tally_print(const struct tally *tally) {
        printf("%u plans, %u of them not sound;", tally->plans, tally->unsound);
        for (int m = 0; m < MUTATION_COUNT; ++m)
                printf(" %s: %u tried, %u broken, %u refused though sound;", mutation_names[m],
                       tally->tried[m], tally->broken[m], tally->strict[m]);
        printf("\n");
}

/* Mutations break tapes, or the collection says little. Where lanes take turns anyway, slots that
 * share memory do no harm, nor do gates that order through states repeats. */
static void expect_harm(const struct tally *tally) {
        static const uint32_t one_in[MUTATION_COUNT] = {3, 3, 8, 16, 3, 8};

        for (int m = 0; m < MUTATION_COUNT; ++m)
                HR_EXPECT(tally->broken[m] > tally->tried[m] / one_in[m]);
}

/* ---- Made-up graphs ----------------------------------------------------------------------------
 */

struct dice {
        uint64_t state;
};

static uint32_t roll(struct dice *dice, uint32_t sides) {
        dice->state ^= dice->state << 13;
        dice->state ^= dice->state >> 7;
        dice->state ^= dice->state << 17;
        return (uint32_t) (dice->state >> 20) % sides;
}

enum { LEAF_COUNT = 6, NODE_COUNT = 24 };

/* Two states, a weight, a constant, two inputs; nodes that read anything so far, some of them into
 * a state or into an earlier result; pins all over. */
static struct hr_graph *random_graph(struct sketch *sketch, struct dice *dice, uint32_t devices) {
        static const hr_leaf_kind kinds[LEAF_COUNT] = {HR_LEAF_STATE,  HR_LEAF_STATE,
                                                       HR_LEAF_WEIGHT, HR_LEAF_CONSTANT,
                                                       HR_LEAF_INPUT,  HR_LEAF_INPUT};

        sketch_init(sketch, 16);
        for (uint32_t i = 0; i < LEAF_COUNT; ++i) {
                if (kinds[i] == HR_LEAF_CONSTANT)
                        (void) sketch_constant(sketch, 1.0F);
                else
                        (void) sketch_leaf(sketch, kinds[i],
                                           (const char *[]){"a", "b", "c", "d", "e", "f"}[i]);
        }
        for (uint32_t n = 0; n < NODE_COUNT; ++n) {
                uint32_t count = LEAF_COUNT + n, a = roll(dice, count), b = roll(dice, count);
                int32_t pin = roll(dice, 4) ? (int32_t) roll(dice, devices) : HR_NO_PIN;
                uint32_t id;

                if (roll(dice, 3) == 0) /* near ones make chains */
                        a = count - 1;
                if (roll(dice, 4) == 0 && (a < 2 || a >= LEAF_COUNT)) {
                        uint32_t base = hr_build_tensor(sketch->build, a)->view_base;

                        id = sketch_in_place(sketch, HR_OP_ADD, a,
                                             base == HR_TENSOR_NONE ? a : base, b, pin);
                } else {
                        id = sketch_node(sketch, HR_OP_ADD, a, b, pin);
                }
                if (roll(dice, 8) == 0 || n == NODE_COUNT - 1)
                        sketch_output(sketch, id);
        }
        return sketch_finish(sketch);
}

/* One graph, every other one with taps, on devices of which some share host memory, with copies
 * that some queues cannot make.
 */
static void try_random(uint32_t seed, uint32_t devices, uint32_t n_copies, struct tally *tally) {
        struct dice dice = {.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1};
        bool blas = devices > 2 && roll(&dice, 2);
        uint32_t gpus = devices - 1 - blas;
        struct sketch sketch;
        struct world world;
        uint64_t copies[WORLD_DEVICES] = {0};
        uint32_t taps[NODE_COUNT];
        char name[64];

        snprintf(name, sizeof name, "seed %u, %u devices, %u copies", seed, devices, n_copies);
        world_init(&world, random_graph(&sketch, &dice, devices), gpus, blas);
        memcpy(world.pins, sketch.pins, sketch.tensor_count * sizeof *sketch.pins);
        for (uint32_t i = 0; i < 3; ++i)
                world.tensor_buffer[i] = world_buffer(&world, roll(&dice, gpus + 1),
                                                      i < 2 ? HR_USAGE_ANY : HR_USAGE_WEIGHTS);
        for (uint32_t d = 0; d < devices; ++d) {
                world.devices[d].uploads = roll(&dice, 4) > 0;
                for (uint32_t k = 0; k <= gpus; ++k) {
                        if (roll(&dice, 4))
                                hr_bit_set(&copies[d], k);
                }
        }
        for (uint32_t n = 0; n < NODE_COUNT && seed % 2; ++n) {
                if (roll(&dice, 5) == 0)
                        taps[world.in.tap_count++] = LEAF_COUNT + n;
        }
        world.in.taps = taps;
        world.in.copies = copies;
        world.in.options.n_copies = n_copies;
        (void) world_plan(&world, HR_RULES_HEADRACE);
        try_plan(name, &world.in, world.plan, tally);
        world_deinit(&world);
        sketch_deinit(&sketch);
}

HR_TEST_LIMIT(random_plans, 600) {
        struct tally tally = {.mutations_most = UINT32_MAX};
        uint32_t seeds = is_full() ? 200 : 12;

        for (uint32_t devices = 1; devices <= 4; ++devices) {
                for (uint32_t n = 1; n <= 4; ++n) {
                        for (uint32_t seed = 1; seed <= seeds; ++seed)
                                try_random(seed, devices, n, &tally);
                }
        }
        tally_print(&tally);
        HR_EXPECT_EQ(tally.plans, 16 * seeds);
        expect_harm(&tally);
}

/* ---- Weights that arrive early -----------------------------------------------------------------
 */

/* All devices have upload queues and take experts; every weight lies in host memory. */
static void try_tower(const char *kinds, uint32_t gpus, uint32_t n_copies, uint64_t expert_bytes,
                      struct tally *tally) {
        struct tower tower;
        struct world world;
        char name[64];

        tower_init(&tower, kinds, gpus);
        world_init(&world, hr_graph_ref(tower.graph), gpus, false);
        memcpy(world.pins, tower.pins, tower.tensor_count * sizeof *tower.pins);
        for (uint32_t l = 0; l < tower.layers; ++l)
                world.tensor_buffer[tower.weights[l]] = world_buffer(&world, 0, HR_USAGE_WEIGHTS);
        for (uint32_t d = 0; d < gpus; ++d)
                world.devices[d].uploads = world.devices[d].experts = true;
        world.in.options.n_copies = n_copies;
        world.in.options.expert_bytes = expert_bytes;
        (void) world_plan(&world, HR_RULES_HEADRACE);
        HR_EXPECT(world.plan->uploads[0]);
        snprintf(name, sizeof name, "%s on %u, %u copies", kinds, gpus, n_copies);
        try_plan(name, &world.in, world.plan, tally);
        world_deinit(&world);
        tower_deinit(&tower);
}

HR_TEST_LIMIT(early_weights, 300) {
        static const char *const kinds[] = {"dddddd", "dmdmd", "deede", "ededdm"};
        struct tally tally = {.mutations_most = UINT32_MAX};

        for (size_t k = 0; k < HR_ARRAY_LENGTH(kinds); ++k) {
                for (uint32_t gpus = 1; gpus <= 2; ++gpus) {
                        for (uint32_t n = 1; n <= 3; ++n) {
                                try_tower(kinds[k], gpus, n, 0, &tally);
                                try_tower(kinds[k], gpus, n, 1, &tally);
                        }
                }
        }
        tally_print(&tally);
        HR_EXPECT_EQ(tally.unsound, 0);
        HR_EXPECT(tally.broken[DROP_WAIT] > tally.tried[DROP_WAIT] * 9 / 10);
        HR_EXPECT(tally.broken[DROP_RECORD] > tally.tried[DROP_RECORD] * 9 / 10);
        HR_EXPECT(tally.broken[DROP_GATE] > tally.tried[DROP_GATE] / 2);
}

/* ---- Recorded graphs ---------------------------------------------------------------------------
 */

struct gallery {
        struct tally tally;
        uint32_t seen, step;
};

static void try_rules(const struct plan_record *record, struct plan_problem *problem,
                      hr_rules rules, uint32_t n_copies, struct tally *tally) {
        struct hr_plan *plan = NULL;
        struct hr_diag diag = {0};
        char name[320];

        problem->in.options.rules = rules;
        problem->in.options.n_copies = n_copies;
        snprintf(name, sizeof name, "%s, rules = %s, %u copies", record->name,
                 rules == HR_RULES_GGML ? "ggml" : "headrace", n_copies);
        if (hr_plan_make(&problem->in, &diag, &plan) == HR_OK)
                try_plan(name, &problem->in, plan, tally);
        else if (diag.status == HR_E_INTERNAL)
                hr_test_fail(__FILE__, __LINE__, "%s: %s", name, diag.words);
        hr_plan_unref(plan);
}

/* Every seventh node that has something to show, where the plan is to run. */
static void try_taps(const struct plan_record *record, struct plan_problem *problem,
                     uint32_t n_copies, struct tally *tally) {
        const struct hr_graph *graph = problem->in.graph;
        uint32_t *taps = calloc((size_t) graph->node_count + 1, sizeof *taps);

        HR_EXPECT(taps);
        for (uint32_t n = 0; n < graph->node_count; n += 7) {
                if (!hr_tensor_is_empty(hr_graph_node(graph, n)) &&
                    hr_graph_node(graph, n)->op != HR_OP_NONE)
                        taps[problem->in.tap_count++] = graph->leaf_count + n;
        }
        problem->in.taps = taps;
        try_rules(record, problem, HR_RULES_HEADRACE, n_copies, tally);
        problem->in.tap_count = 0;
        problem->in.taps = NULL;
        free(taps);
}

static void try_record(const struct plan_record *record, void *arg) {
        struct gallery *gallery = arg;
        struct plan_problem problem;
        struct hr_diag diag = {0};
        uint32_t copies = HR_MAX(record->copies, 1U);

        if (gallery->seen++ % gallery->step != 0)
                return;
        HR_EXPECT_OK(plan_problem_read(&problem, record, &diag), &diag);
        try_rules(record, &problem, HR_RULES_GGML, copies, &gallery->tally);
        try_rules(record, &problem, HR_RULES_HEADRACE, copies, &gallery->tally);
        try_rules(record, &problem, HR_RULES_HEADRACE, copies == 1 ? 2 : 1, &gallery->tally);
        try_taps(record, &problem, copies == 1 ? 2 : 1, &gallery->tally);
        plan_problem_clear(&problem);
}

HR_TEST_LIMIT(recorded_plans, 900) {
        struct gallery gallery = {.tally = {.mutations_most = is_full() ? UINT32_MAX : 24},
                                  .step = is_full() ? 1 : 6};

        HR_EXPECT_EQ(plan_records_read(HR_GOLDEN_PLANS, try_record, &gallery), 0);
        tally_print(&gallery.tally);
        HR_EXPECT(gallery.seen > 300);
        HR_EXPECT(gallery.tally.plans > gallery.seen / gallery.step);
        expect_harm(&gallery.tally);
}
