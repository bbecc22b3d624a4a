/*
 * MUL_MAT_ID: each (slot, token) pair names an expert whose matrix its activation column goes
 * through.
 *
 * Pairs are sorted by expert, so that each expert's weights are unpacked once per tile however many
 * tokens use it. Their columns are quantised in that order, then the team takes row tiles of the
 * experts in use. An id outside the experts fails the run; its pair is left out.
 *
 * Scratch: starts[experts + 1], pairs[], used[experts], the columns (shared); then for each thread
 * a tile, an output block and rows.
 */
#include "backends/cpu/matrix/share.h"

struct routed {
        const struct hr_operand *a, *b, *ids, *out;
        const struct cpu_tile *tile;
        uint32_t lanes, width;
        int64_t k, m, experts, slots, tokens;
        uint64_t column_bytes;
        uint64_t starts_bytes, pairs_bytes, used_bytes, columns_bytes; /* in this order */
        uint64_t shared_bytes, tile_bytes, row_bytes, thread_bytes;
};

static bool mul_mat_id_supports(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];

        return cpu_is_matrix(a) && cpu_any_dot()->tile[a->type] &&
               cpu_has_float_rows(&step->sources[1]) && step->sources[2].type == HR_TYPE_I32 &&
               step->result.type == HR_TYPE_F32 && step->result.nb[0] == sizeof(float);
}

static struct routed routed_of(const struct hr_step *step, const struct cpu_dot *dot) {
        struct routed r = {.a = &step->sources[0],
                           .b = &step->sources[1],
                           .ids = &step->sources[2],
                           .out = &step->result};
        uint64_t pairs;

        r.tile = dot->tile[r.a->type];
        r.lanes = dot->lanes;
        r.width = dot->width;
        r.k = r.a->ne[0];
        r.m = r.a->ne[1];
        r.experts = r.a->ne[2];
        r.slots = r.ids->ne[0];
        r.tokens = r.ids->ne[1];
        r.column_bytes = cpu_column_bytes(r.tile, r.k);
        pairs = cpu_times((uint64_t) r.slots, (uint64_t) r.tokens);
        r.starts_bytes = cpu_round_up(cpu_times((uint64_t) r.experts + 1, sizeof(int64_t)));
        r.pairs_bytes = cpu_round_up(cpu_times(pairs, sizeof(int64_t)));
        r.used_bytes = cpu_round_up(cpu_times((uint64_t) r.experts + 1, sizeof(int64_t)));
        r.columns_bytes = cpu_round_up(cpu_times(pairs, r.column_bytes));
        r.shared_bytes = cpu_plus(cpu_plus(r.starts_bytes, r.pairs_bytes),
                                  cpu_plus(r.used_bytes, r.columns_bytes));
        r.tile_bytes = cpu_round_up(r.tile->is_float ? CPU_FLOAT_SPARE * sizeof(float)
                                                     : cpu_tile_bytes(r.tile, CPU_LANES_MAX, r.k));
        r.row_bytes = cpu_round_up(cpu_times((uint64_t) r.k, CPU_WIDTH_MAX * sizeof(float)));
        r.thread_bytes = cpu_plus(cpu_plus(r.tile_bytes, r.row_bytes),
                                  CPU_LANES_MAX * CPU_LANES_MAX * sizeof(float));
        return r;
}

static uint64_t mul_mat_id_scratch(const struct hr_step *step, uint32_t threads) {
        struct routed r = routed_of(step, cpu_any_dot());

        return cpu_plus(r.shared_bytes, cpu_times(r.thread_bytes, threads));
}

static uint32_t mul_mat_id_threads_max(const struct hr_step *step) {
        struct routed r = routed_of(step, cpu_any_dot());
        uint64_t work = cpu_times(cpu_times((uint64_t) r.k, (uint64_t) r.m),
                                  cpu_times((uint64_t) r.slots, (uint64_t) r.tokens));
        uint64_t threads = 1 + work / (UINT64_C(96) << 10);

        return threads > UINT32_MAX ? UINT32_MAX : (uint32_t) threads;
}

/* The arrays in scratch. */
struct routes {
        int64_t *starts; /* of each expert in pairs; [experts] = valid pairs */
        int64_t *pairs;  /* slot + slots * token, by expert, in order of the pair */
        int64_t *used;   /* [0]: how many; then the experts that have pairs */
        uint8_t *columns;
};

static struct routes routes_at(const struct routed *r, uint8_t *scratch) {
        uint8_t *pairs = scratch + r->starts_bytes, *used = pairs + r->pairs_bytes;

        return (struct routes){(int64_t *) (void *) scratch, (int64_t *) (void *) pairs,
                               (int64_t *) (void *) used, used + r->used_bytes};
}

static int64_t expert_of(const struct routed *r, int64_t pair) {
        int32_t id;

        memcpy(&id,
               cpu_at(r->ids, pair / r->slots, 0, 0) + (uint64_t) (pair % r->slots) * r->ids->nb[0],
               sizeof id);
        return id;
}

/* Sorts the pairs by expert (counting sort). One thread. */
static void route_pairs(const struct cpu_call *call, const struct routed *r,
                        const struct routes *to) {
        int64_t pairs = r->slots * r->tokens, at = 0;

        memset(to->starts, 0, (size_t) (r->experts + 1) * sizeof to->starts[0]);
        for (int64_t i = 0; i < pairs; i++) {
                int64_t expert = expert_of(r, i);

                if (expert < 0 || expert >= r->experts)
                        cpu_fail_index(call, "expert id", expert, r->experts);
                else
                        to->starts[expert]++;
        }
        to->used[0] = 0;
        for (int64_t e = 0; e <= r->experts; e++) {
                int64_t count = e < r->experts ? to->starts[e] : 0;

                to->starts[e] = at;
                at += count;
                if (count > 0)
                        to->used[++to->used[0]] = e;
        }
        for (int64_t i = 0; i < pairs; i++) {
                int64_t expert = expert_of(r, i);

                if (expert >= 0 && expert < r->experts)
                        to->pairs[to->starts[expert]++] = i;
        }
        for (int64_t e = r->experts; e > 0; e--)
                to->starts[e] = to->starts[e - 1];
        to->starts[0] = 0;
}

/* Quantises the columns of this thread's groups. */
static void prepare_columns(const struct cpu_call *call, const struct routed *r,
                            const struct routes *at, float *rows) {
        uint64_t group = 0;

        for (int64_t u = 1; u <= at->used[0]; u++) {
                int64_t start = at->starts[at->used[u]],
                        count = at->starts[at->used[u] + 1] - start;
                uint32_t width;

                for (int64_t j = 0; j < count; j += width) {
                        const float *values[CPU_WIDTH_MAX];

                        width = r->tile->is_float ? 1 : cpu_group_width(r->width, j, count);
                        if (group++ % call->threads != call->thread)
                                continue;
                        for (uint32_t c = 0; c < width; c++) {
                                int64_t pair = at->pairs[start + j + c];
                                int64_t slot = pair % r->slots % r->b->ne[1];

                                values[c] = cpu_float_row(call->dot, r->b->type,
                                                          cpu_at(r->b, slot, pair / r->slots, 0),
                                                          r->b->nb[0], r->k, rows + r->k * c);
                        }
                        if (r->tile->is_float)
                                call->dot->float_column(
                                        r->a->type, values[0], r->k,
                                        at->columns + r->column_bytes * (uint64_t) (start + j));
                        else
                                r->tile->columns(
                                        values, width, r->k,
                                        at->columns + r->column_bytes * (uint64_t) (start + j));
                }
        }
}

static void write_block(const struct routed *r, const int64_t *pairs, uint32_t width, int64_t row,
                        uint32_t rows, const float *block, uint32_t block_stride) {
        for (uint32_t c = 0; c < width; c++)
                memcpy(cpu_at(r->out, pairs[c] % r->slots, pairs[c] / r->slots, 0) +
                               (uint64_t) row * sizeof(float),
                       block + block_stride * c, rows * sizeof(float));
}

/* One row tile of one expert, for all its columns. */
static void multiply_expert(const struct cpu_call *call, const struct routed *r,
                            const struct routes *at, int64_t expert, int64_t row, uint8_t *own) {
        float *block = (float *) (void *) (own + r->tile_bytes + r->row_bytes);
        int64_t start = at->starts[expert], count = at->starts[expert + 1] - start;
        uint32_t rows = (uint32_t) HR_MIN((int64_t) r->lanes, r->m - row), width;
        const uint8_t *base = cpu_at(r->a, row, expert, 0);

        if (!r->tile->is_float && count > 1)
                r->tile->pack(base, r->a->nb[1], rows, r->k, own);
        for (int64_t j = 0; j < count; j += width) {
                const uint8_t *columns = at->columns + r->column_bytes * (uint64_t) (start + j);

                if (r->tile->is_float) {
                        width = (uint32_t) HR_MIN(count - j, (int64_t) CPU_LANES_MAX);
                        call->dot->float_dot(r->a->type, base, r->a->nb[1], rows, columns,
                                             r->column_bytes, width, r->k, (float *) (void *) own,
                                             block, r->lanes);
                } else {
                        width = cpu_group_width(r->width, j, count);
                        if (count == 1)
                                r->tile->dot_rows(base, r->a->nb[1], rows, r->k, columns, block);
                        else
                                r->tile->dot(own, columns, width, r->k, block);
                }
                write_block(r, at->pairs + start + j, width, row, rows, block, r->lanes);
        }
}

static void mul_mat_id_run(const struct cpu_call *call) {
        const struct routed r = routed_of(call->step, call->dot);
        const struct routes at = routes_at(&r, call->scratch);
        uint8_t *own = call->scratch + r.shared_bytes + r.thread_bytes * call->thread;
        const int64_t tiles = (r.m + r.lanes - 1) / r.lanes;
        int64_t first, end;
        uint32_t taken = 0;

        if (call->thread == 0)
                route_pairs(call, &r, &at);
        cpu_barrier(call);
        prepare_columns(call, &r, &at, (float *) (void *) (own + r.tile_bytes));
        cpu_barrier(call);
        while (cpu_next_range(call, at.used[0] * tiles, &taken, &first, &end))
                for (; first < end; first++)
                        multiply_expert(call, &r, &at, at.used[1 + first / tiles],
                                        first % tiles * r.lanes, own);
}

const struct cpu_kernel cpu_kernel_mul_mat_id = {
        .supports = mul_mat_id_supports,
        .scratch = mul_mat_id_scratch,
        .threads_max = mul_mat_id_threads_max,
        .run = mul_mat_id_run,
};
