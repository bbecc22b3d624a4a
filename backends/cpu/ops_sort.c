/*
 * ARGSORT and TOP_K over rows of floats.
 *
 * A value and its index become one 64-bit key: the value's bits, made to order like integers, above
 * the index. Sorting keys is then a total order without special cases: equal values keep the order
 * of their indices, -0 equals 0, NaN comes after every number.
 */
#include "backends/cpu/elements.h"
#include "backends/cpu/ops.h"

#include <string.h>

#define KEY_NAN UINT32_MAX

static uint32_t value_key(float value, bool is_descending) {
        uint32_t bits;

        if (value != value)
                return KEY_NAN;
        value += 0.0f; /* -0 becomes 0 */
        memcpy(&bits, &value, sizeof bits);
        bits = bits & 0x80000000U ? ~bits : bits | 0x80000000U;
        return is_descending ? ~bits : bits;
}

/* The key of element `i`, which keeps its index below the value. */
static uint64_t element_key(float value, int64_t i, bool is_descending) {
        return (uint64_t) value_key(value, is_descending) << 32 | (uint64_t) i;
}

static void keys_fill(const struct cpu_vec *vec, const struct hr_operand *source,
                      const uint8_t *row, bool is_descending, uint64_t *keys) {
        float buffer[CPU_CHUNK];

        for (int64_t at = 0; at < source->ne[0]; at += CPU_CHUNK) {
                int64_t n = HR_MIN(source->ne[0] - at, (int64_t) CPU_CHUNK);
                const float *values = cpu_load(vec, source, row, at, n, buffer);

                for (int64_t i = 0; i < n; i++)
                        keys[at + i] = element_key(values[i], at + i, is_descending);
        }
}

static void store_index(const struct hr_operand *result, uint8_t *row, int64_t i, uint64_t key) {
        int32_t index = (int32_t) (uint32_t) key;

        memcpy(row + (uint64_t) i * result->nb[0], &index, sizeof index);
}

static bool sort_shapes_match(const struct hr_step *step) {
        const struct hr_operand *source = &step->sources[0];

        if (step->source_count != 1 || !cpu_is_float(source->type) ||
            step->result.type != HR_TYPE_I32 || source->ne[0] > INT32_MAX)
                return false;
        for (int i = 1; i < HR_DIMS; i++)
                if (step->result.ne[i] != source->ne[i])
                        return false;
        return true;
}

static uint32_t sort_threads(const struct hr_step *step) {
        uint32_t threads = cpu_threads_for(cpu_elements(&step->sources[0]), 160);
        int64_t rows = cpu_rows(&step->result);

        return rows < (int64_t) threads ? (uint32_t) HR_MAX(rows, 1) : threads;
}

/* ---- ARGSORT --------------------------------------------------------------------------------- */

static bool argsort_supports(const struct hr_step *step) {
        return sort_shapes_match(step) && step->result.ne[0] == step->sources[0].ne[0] &&
               (step->params[0] == 0 || step->params[0] == 1);
}

/* Two arrays of keys per thread. */
static uint64_t argsort_scratch(const struct hr_step *step, uint32_t threads) {
        return ((uint64_t) step->sources[0].ne[0] * 2 + 7) / 8 * 8 * sizeof(uint64_t) * threads;
}

static void merge_runs(uint64_t *to, const uint64_t *a, const uint64_t *a_end, const uint64_t *b,
                       const uint64_t *b_end) {
        while (a < a_end && b < b_end)
                *to++ = *b < *a ? *b++ : *a++;
        memcpy(to, a, (size_t) (a_end - a) * sizeof *a);
        memcpy(to + (a_end - a), b, (size_t) (b_end - b) * sizeof *b);
}

/* Bottom-up merging; returns whichever array holds the result. */
static const uint64_t *keys_sort(uint64_t *keys, uint64_t *spare, int64_t n) {
        for (int64_t run = 1; run < n; run *= 2) {
                uint64_t *swap = keys;

                for (int64_t at = 0; at < n; at += 2 * run) {
                        int64_t middle = HR_MIN(at + run, n), end = HR_MIN(at + 2 * run, n);

                        merge_runs(spare + at, keys + at, keys + middle, keys + middle,
                                   keys + end);
                }
                keys = spare;
                spare = swap;
        }
        return keys;
}

static void argsort_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        uint64_t *keys = (uint64_t *) (void *) (call->scratch +
                                                argsort_scratch(call->step, 1) * call->thread);
        int64_t n = source->ne[0], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);
                uint8_t *out = cpu_row_at(result, index);
                const uint64_t *sorted;

                keys_fill(call->vec, source, cpu_row_at(source, index),
                          call->step->params[0] == 1, keys);
                sorted = keys_sort(keys, keys + n, n);
                for (int64_t i = 0; i < n; i++)
                        store_index(result, out, i, sorted[i]);
        }
}

const struct cpu_kernel cpu_kernel_argsort = {
        .supports = argsort_supports,
        .scratch = argsort_scratch,
        .threads_max = sort_threads,
        .run = argsort_run,
};

/* ---- TOP_K: the k largest, largest first ----------------------------------------------------- */

static bool top_k_supports(const struct hr_step *step) {
        return sort_shapes_match(step) && step->result.ne[0] <= step->sources[0].ne[0];
}

static uint64_t top_k_scratch(const struct hr_step *step, uint32_t threads) {
        return ((uint64_t) step->result.ne[0] + 7) / 8 * 8 * sizeof(uint64_t) * threads;
}

/* A heap whose root is the largest key, that is the smallest of the k values kept. */
static void heap_sink(uint64_t *heap, int64_t count, int64_t at) {
        uint64_t key = heap[at];

        for (;;) {
                int64_t child = 2 * at + 1;

                if (child >= count)
                        break;
                if (child + 1 < count && heap[child + 1] > heap[child])
                        child++;
                if (heap[child] <= key)
                        break;
                heap[at] = heap[child];
                at = child;
        }
        heap[at] = key;
}

/* Element `i` of a row, in their order: the first k make the heap. */
static void heap_offer(uint64_t *heap, int64_t k, int64_t i, uint64_t key) {
        if (i < k) {
                heap[i] = key;
                if (i == k - 1)
                        for (int64_t at = k / 2; at-- > 0;)
                                heap_sink(heap, k, at);
        } else if (key < heap[0]) {
                heap[0] = key;
                heap_sink(heap, k, 0);
        }
}

static void top_k_row(const struct cpu_vec *vec, const struct hr_operand *source,
                      const uint8_t *row, uint64_t *heap, int64_t k) {
        float buffer[CPU_CHUNK];

        for (int64_t at = 0; at < source->ne[0]; at += CPU_CHUNK) {
                int64_t n = HR_MIN(source->ne[0] - at, (int64_t) CPU_CHUNK);
                const float *values = cpu_load(vec, source, row, at, n, buffer);

                for (int64_t i = 0; i < n; i++)
                        heap_offer(heap, k, at + i, element_key(values[i], at + i, true));
        }
        for (int64_t count = k; count-- > 1;) {
                uint64_t largest = heap[0];

                heap[0] = heap[count];
                heap[count] = largest;
                heap_sink(heap, count, 0);
        }
}

static void top_k_run(const struct cpu_call *call) {
        const struct hr_operand *result = &call->step->result, *source = &call->step->sources[0];
        uint64_t *heap = (uint64_t *) (void *) (call->scratch +
                                                top_k_scratch(call->step, 1) * call->thread);
        int64_t k = result->ne[0], first, end;

        cpu_share(call, cpu_rows(result), 1, &first, &end);
        for (int64_t row = first; row < end; row++) {
                struct cpu_index index = cpu_index_of_row(result, row);

                top_k_row(call->vec, source, cpu_row_at(source, index), heap, k);
                for (int64_t i = 0; i < k; i++)
                        store_index(result, cpu_row_at(result, index), i, heap[i]);
        }
}

const struct cpu_kernel cpu_kernel_top_k = {
        .supports = top_k_supports,
        .scratch = top_k_scratch,
        .threads_max = sort_threads,
        .run = top_k_run,
};
