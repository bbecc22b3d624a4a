/*
 * State space models: SSM_CONV, a short convolution along time, and SSM_SCAN, the recurrence
 *
 *   state = state * exp(dt A) + (x dt) B        y = C . state        dt := softplus(dt)
 *
 * A state has a row of N elements for each of a head's D values of x. A is one number per head,
 * or one per head and element. One head of one sequence is one thread's: it carries its rows
 * through all tokens in the place where the newest state belongs in the result, and leaves copies
 * in the places of the older snapshots. Places of snapshots that no token reaches are set to 0.
 *
 * The ids say which state a sequence starts from; they are data and checked.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/matrix/share.h"
#include "backends/cpu/ops.h"

#include <math.h>

/* ---- SSM_CONV -------------------------------------------------------------------------------- */

static bool ssm_conv_supports(const struct hr_step *step) {
        return step->source_count == 2 && step->sources[0].type == HR_TYPE_F32 &&
               step->sources[1].type == HR_TYPE_F32 && step->result.type == HR_TYPE_F32 &&
               cpu_has_dense_rows(&step->sources[0]) && cpu_has_dense_rows(&step->sources[1]);
}

static uint32_t ssm_conv_threads(const struct hr_step *step) {
        return cpu_threads_for(cpu_elements(&step->result), 40);
}

/* result[d, t, b] = sum over k of x[t + k, d, b] * weights[k, d] */
static void ssm_conv_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result;
        const struct hr_operand *x = &call->step->sources[0], *weights = &call->step->sources[1];
        int64_t channels = result->ne[0], taps = weights->ne[0], first, end;

        cpu_share(call, channels * result->ne[2], 16, &first, &end);
        for (int64_t item = first; item < end; item++) {
                int64_t channel = item % channels, sequence = item / channels;
                const float *in = (const float *) (const void *) cpu_row(x, channel, sequence, 0);
                const float *weight =
                        (const float *) (const void *) cpu_row(weights, channel, 0, 0);
                uint8_t *out = cpu_row(result, 0, sequence, 0) + (uint64_t) channel * sizeof(float);

                for (int64_t t = 0; t < result->ne[1]; t++, out += result->nb[1]) {
                        float sum = 0;

                        for (int64_t k = 0; k < taps; k++)
                                sum += in[t + k] * weight[k];
                        memcpy(out, &sum, sizeof sum);
                }
        }
}

const struct cpu_kernel cpu_kernel_ssm_conv = {
        .supports = ssm_conv_supports,
        .threads_max = ssm_conv_threads,
        .run = ssm_conv_run,
};

/* ---- SSM_SCAN -------------------------------------------------------------------------------- */

enum { STATE, X, DT, DECAY, B, C, IDS, SCAN_SOURCES };

static bool ssm_scan_supports(const struct hr_step *step) {
        if (step->source_count != SCAN_SOURCES || step->result.type != HR_TYPE_F32 ||
            step->sources[IDS].type != HR_TYPE_I32 || !cpu_is_contiguous(&step->sources[STATE]))
                return false;
        for (int i = 0; i < IDS; i++)
                if (step->sources[i].type != HR_TYPE_F32 || !cpu_has_dense_rows(&step->sources[i]))
                        return false;
        return step->sources[STATE].ne[1] <= UINT32_MAX;
}

struct scan {
        const struct hr_operand *sources;
        float *result;
        int64_t row, rows, heads, tokens, sequences, snapshots, heads_per_group;
};

static struct scan scan_of(const struct hr_step *step) {
        const struct hr_operand *sources = step->sources;

        return (struct scan) {
                .sources = sources,
                .result = step->result.data,
                .row = sources[STATE].ne[0],
                .rows = sources[X].ne[0],
                .heads = sources[X].ne[1],
                .tokens = sources[X].ne[2],
                .sequences = sources[X].ne[3],
                .snapshots = step->params[0],
                .heads_per_group = sources[X].ne[1] / HR_MAX(sources[B].ne[1], 1),
        };
}

static uint64_t ssm_scan_scratch(const struct hr_step *step, uint32_t threads) {
        struct scan scan = scan_of(step);

        return cpu_times(cpu_round_up(cpu_times((uint64_t) scan.row, sizeof(float))), threads);
}

static uint32_t ssm_scan_threads(const struct hr_step *step) {
        struct scan scan = scan_of(step);
        int64_t items = HR_MAX(scan.heads * scan.sequences, 1);
        uint32_t threads = cpu_threads_for(scan.row * scan.rows * items * scan.tokens, 8);

        return items < (int64_t) threads ? (uint32_t) items : threads;
}

static const float *vector_at(const struct hr_operand *operand, int64_t i1, int64_t i2,
                              int64_t i3) {
        return (const float *) (const void *) cpu_row(operand, i1, i2, i3);
}

static float softplus(float x) {
        return x > 20.0f ? x : logf(1.0f + expf(x));
}

/* The place in the result of a head's state, `slot` tokens before the newest. */
static float *state_at(const struct scan *scan, int64_t slot, int64_t sequence, int64_t head) {
        int64_t outputs = scan->rows * scan->heads * scan->tokens * scan->sequences;
        int64_t index = (slot * scan->sequences + sequence) * scan->heads + head;

        return scan->result + outputs + index * scan->rows * scan->row;
}

/* One token of one head. decay: room for a row. */
static void scan_token(const struct cpu_call *call, const struct scan *scan, int64_t sequence,
                       int64_t head, int64_t token, float *decay) {
        const struct hr_operand *sources = scan->sources;
        int64_t n = scan->row, group = head / scan->heads_per_group;
        const float *x = vector_at(&sources[X], head, token, sequence);
        const float *a = vector_at(&sources[DECAY], head, 0, 0);
        const float *b = vector_at(&sources[B], group, token, sequence);
        float dt = softplus(vector_at(&sources[DT], token, sequence, 0)[head]);
        float *state = state_at(scan, 0, sequence, head);
        int64_t place = (sequence * scan->tokens + token) * scan->heads + head;

        if (sources[DECAY].ne[0] == 1) {
                call->vec->scale(n * scan->rows, state, state, expf(dt * a[0]), 0.0f);
        } else {
                call->vec->scale(n, decay, a, dt, 0.0f);
                call->vec->unary[HR_UNARY_EXP](n, decay, decay);
                for (int64_t row = 0; row < scan->rows; row++)
                        call->vec->binary[CPU_VEC_MUL](n, state + row * n, state + row * n, decay);
        }
        for (int64_t row = 0; row < scan->rows; row++)
                call->vec->add_scaled(n, state + row * n, b, x[row] * dt);
        call->dot->float_dot(HR_TYPE_F32, (const uint8_t *) state, (uint64_t) n * sizeof *state,
                             (uint32_t) scan->rows,
                             (const uint8_t *) vector_at(&sources[C], group, token, sequence), 0, 1,
                             n, NULL, scan->result + place * scan->rows, 0);
}

static void scan_head(const struct cpu_call *call, const struct scan *scan, int64_t sequence,
                      int64_t head, float *decay) {
        const struct hr_operand *states = &scan->sources[STATE], *ids = &scan->sources[IDS];
        size_t bytes = (size_t) (scan->row * scan->rows) * sizeof(float);
        float *newest = state_at(scan, 0, sequence, head);
        int32_t id;

        memcpy(&id, (const uint8_t *) ids->data + (uint64_t) sequence * ids->nb[0], sizeof id);
        if (id < 0 || id >= states->ne[3]) {
                cpu_fail_index(call, "state id", id, states->ne[3]);
                return;
        }
        memcpy(newest,
               (const uint8_t *) states->data + (uint64_t) id * states->nb[3] +
                       (uint64_t) head * states->nb[2],
               bytes);
        /* There may be any number of snapshots of states without elements. */
        for (int64_t slot = HR_MAX(scan->tokens, 1); bytes > 0 && slot < scan->snapshots; slot++)
                memset(state_at(scan, slot, sequence, head), 0, bytes);
        for (int64_t token = 0; token < scan->tokens; token++) {
                int64_t slot = scan->tokens - 1 - token;

                scan_token(call, scan, sequence, head, token, decay);
                if (slot > 0 && slot < scan->snapshots)
                        memcpy(state_at(scan, slot, sequence, head), newest, bytes);
        }
}

static void ssm_scan_run(const struct cpu_call *call) {
        struct scan scan = scan_of(call->step);
        uint64_t bytes = cpu_round_up((uint64_t) scan.row * sizeof(float));
        float *decay = (float *) (void *) (call->scratch + call->thread * bytes);
        int64_t first, end;

        cpu_share(call, scan.heads * scan.sequences, 1, &first, &end);
        for (int64_t item = first; item < end; item++)
                scan_head(call, &scan, item / scan.heads, item % scan.heads, decay);
}

const struct cpu_kernel cpu_kernel_ssm_scan = {
        .supports = ssm_scan_supports,
        .scratch = ssm_scan_scratch,
        .threads_max = ssm_scan_threads,
        .run = ssm_scan_run,
};
