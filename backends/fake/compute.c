/*
 * The ops that simulated devices compute when their memory has bytes: plain loops over f32 by
 * strides, in one order, so that results can be compared bit for bit.
 */
#include "backends/fake/fake.h"

#include <string.h>

/* ---- What it can ----------------------------------------------------------------------------- */

static bool is_type(const struct hr_tensor *tensor, uint32_t a, uint32_t b) {
        return tensor && (tensor->type == a || tensor->type == b);
}

bool fake_knows_op(uint32_t op) {
        static const uint32_t known[] = {HR_OP_ADD,      HR_OP_SUB,      HR_OP_MUL,
                                         HR_OP_DIV,      HR_OP_MUL_MAT,  HR_OP_MUL_MAT_ID,
                                         HR_OP_GET_ROWS, HR_OP_SET_ROWS, HR_OP_CPY,
                                         HR_OP_CONT,     HR_OP_DUP};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(known); ++i) {
                if (op == known[i])
                        return true;
        }
        return false;
}

bool fake_can_compute(const struct hr_graph *graph, uint32_t tensor) {
        const struct hr_tensor *t = &graph->tensors[tensor];
        const struct hr_tensor *b = hr_graph_source_tensor(graph, t, 1);

        if (t->op == HR_OP_NONE || hr_op_is_view(t->op))
                return true;
        if (!fake_knows_op(t->op) || t->type != HR_TYPE_F32 ||
            !is_type(hr_graph_source_tensor(graph, t, 0), HR_TYPE_F32, HR_TYPE_F32))
                return false;
        if (t->op == HR_OP_GET_ROWS)
                return is_type(b, HR_TYPE_I32, HR_TYPE_I32);
        if (t->op == HR_OP_SET_ROWS)
                return is_type(b, HR_TYPE_I32, HR_TYPE_I64);
        return !b || b->type == HR_TYPE_F32;
}

/* ---- Elements -------------------------------------------------------------------------------- */

typedef int64_t position[HR_DIMS];

static void *at(const struct hr_operand *operand, const position i) {
        uint64_t offset = 0;

        for (int d = 0; d < HR_DIMS; ++d)
                offset += (uint64_t) (operand->ne[d] == 1 ? 0 : i[d] % operand->ne[d]) *
                          operand->nb[d];
        HR_ASSERT(offset < operand->room);
        return (uint8_t *) operand->data + offset;
}

static float value_at(const struct hr_operand *operand, const position i) {
        return *(const float *) at(operand, i);
}

/* The next position of the shape; false after the last. */
static bool advance(position i, const int64_t ne[HR_DIMS]) {
        for (int d = 0; d < HR_DIMS; ++d) {
                if (++i[d] < ne[d])
                        return true;
                i[d] = 0;
        }
        return false;
}

static float binary(uint32_t op, float a, float b) {
        switch (op) {
        case HR_OP_ADD:
                return a + b;
        case HR_OP_SUB:
                return a - b;
        case HR_OP_MUL:
                return a * b;
        case HR_OP_DIV:
                return a / b;
        default:
                return a;
        }
}

static void each_element(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0];
        bool two = step->op == HR_OP_ADD || step->op == HR_OP_SUB || step->op == HR_OP_MUL ||
                   step->op == HR_OP_DIV;
        position i = {0};

        do {
                float right = two ? value_at(&step->sources[1], i) : 0;

                *(float *) at(&step->result, i) = binary(step->op, value_at(a, i), right);
        } while (advance(i, step->result.ne));
}

/* CPY and CONT between shapes of equal size, in the order of elements. */
static void copy_elements(const struct hr_step *step) {
        position from = {0}, to = {0};

        do {
                *(float *) at(&step->result, to) = value_at(&step->sources[0], from);
                (void) advance(from, step->sources[0].ne);
        } while (advance(to, step->result.ne));
}

/* ---- Products -------------------------------------------------------------------------------- */

static float dot(const struct hr_operand *a, position i, const struct hr_operand *b, position j) {
        float sum = 0;

        for (int64_t k = 0; k < a->ne[0]; ++k) {
                i[0] = j[0] = k;
                sum += value_at(a, i) * value_at(b, j);
        }
        return sum;
}

static void mul_mat(const struct hr_step *step) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];
        position i = {0};

        do {
                position row = {0, i[0], i[2] / (b->ne[2] / a->ne[2]),
                                i[3] / (b->ne[3] / a->ne[3])};
                position column = {0, i[1], i[2], i[3]};

                *(float *) at(&step->result, i) = dot(a, row, b, column);
        } while (advance(i, step->result.ne));
}

static int64_t index_at(const struct hr_operand *ids, const position i) {
        const void *id = at(ids, i);

        if (ids->type == HR_TYPE_I64)
                return *(const int64_t *) id;
        return *(const int32_t *) id;
}

/* An index into `count`, or a failure of the run. */
static bool take_index(const struct hr_step *step, const struct hr_operand *ids, const position i,
                       int64_t count, struct hr_outcome *outcome, int64_t *ret_index) {
        *ret_index = index_at(ids, i);
        if (*ret_index >= 0 && *ret_index < count)
                return true;
        (void) hr_outcome_fail(outcome, HR_E_RANGE, "INDEX_VALUE", step->node, "index %lld of %lld",
                               (long long) *ret_index, (long long) count);
        return false;
}

static void mul_mat_id(const struct hr_step *step, struct hr_outcome *outcome) {
        const struct hr_operand *a = &step->sources[0], *b = &step->sources[1];
        position i = {0};

        do {
                position id = {i[1], i[2], 0, 0}, row = {0, i[0], 0, 0};
                position column = {0, i[1] % b->ne[1], i[2], 0};

                if (!take_index(step, &step->sources[2], id, a->ne[2], outcome, &row[2]))
                        return;
                *(float *) at(&step->result, i) = dot(a, row, b, column);
        } while (advance(i, step->result.ne));
}

/* ---- Rows ------------------------------------------------------------------------------------ */

static void get_rows(const struct hr_step *step, struct hr_outcome *outcome) {
        position i = {0};

        do {
                position id = {i[1], i[2], i[3], 0}, from = {i[0], 0, i[2], i[3]};

                if (!take_index(step, &step->sources[1], id, step->sources[0].ne[1], outcome,
                                &from[1]))
                        return;
                *(float *) at(&step->result, i) = value_at(&step->sources[0], from);
        } while (advance(i, step->result.ne));
}

static void set_rows(const struct hr_step *step, struct hr_outcome *outcome) {
        position i = {0};

        do {
                position id = {i[1], i[2], i[3], 0}, to = {i[0], 0, i[2], i[3]};

                if (!take_index(step, &step->sources[1], id, step->result.ne[1], outcome, &to[1]))
                        return;
                *(float *) at(&step->result, to) = value_at(&step->sources[0], i);
        } while (advance(i, step->sources[0].ne));
}

static bool is_empty(const struct hr_operand *operand) {
        for (int d = 0; d < HR_DIMS; ++d) {
                if (operand->ne[d] == 0)
                        return true;
        }
        return false;
}

void fake_compute(const struct hr_step *step, struct hr_outcome *outcome) {
        if (is_empty(&step->result) || is_empty(&step->sources[0]))
                return;
        switch (step->op) {
        case HR_OP_MUL_MAT:
                mul_mat(step);
                break;
        case HR_OP_MUL_MAT_ID:
                mul_mat_id(step, outcome);
                break;
        case HR_OP_GET_ROWS:
                get_rows(step, outcome);
                break;
        case HR_OP_SET_ROWS:
                set_rows(step, outcome);
                break;
        case HR_OP_CPY:
        case HR_OP_CONT:
        case HR_OP_DUP:
                copy_elements(step);
                break;
        default:
                each_element(step);
                break;
        }
}

double fake_step_macs(const struct hr_step *step) {
        double macs = 1;

        for (int d = 0; d < HR_DIMS; ++d)
                macs *= (double) step->result.ne[d];
        if (step->op == HR_OP_MUL_MAT || step->op == HR_OP_MUL_MAT_ID)
                macs *= (double) step->sources[0].ne[0];
        return macs;
}
