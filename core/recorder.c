/*
 * Reading a ring that is being written: the words of the latest spans are copied, then the count
 * tells which of their places have been taken again meanwhile.
 */
#include "core/recorder.h"

#include <stdlib.h>

const char *hr_span_kind_name(hr_span_kind kind) {
        static const char *const names[HR_SPAN_KINDS] = {
                [HR_SPAN_NONE] = "none",       [HR_SPAN_REQUEST] = "request",
                [HR_SPAN_UPLOAD] = "upload",   [HR_SPAN_PLAN] = "plan",
                [HR_SPAN_QUEUE] = "queue",     [HR_SPAN_RUN] = "run",
                [HR_SPAN_REPLY] = "reply",     [HR_SPAN_ORIGIN] = "origin",
                [HR_SPAN_COMPUTE] = "compute", [HR_SPAN_COPY] = "copy",
                [HR_SPAN_EXPERTS] = "experts", [HR_SPAN_WAIT] = "wait",
        };

        HR_ASSERT(kind < HR_SPAN_KINDS);
        return names[kind];
}

hr_status hr_recorder_new(uint32_t spans, struct hr_diag *diag,
                          struct hr_recorder **ret_recorder) {
        struct hr_recorder *recorder;
        uint64_t capacity = 1;

        while (capacity < spans)
                capacity *= 2;
        /* Zeroed by the system: pages that are never written are never there. */
        recorder = calloc(1, sizeof *recorder +
                                     (size_t) capacity * HR_SPAN_WORDS * sizeof *recorder->words);
        if (!recorder)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for %u spans", spans);
        recorder->mask = capacity - 1;
        *ret_recorder = recorder;
        return HR_OK;
}

struct hr_recorder *hr_recorder_free(struct hr_recorder *recorder) {
        free(recorder);
        return NULL;
}

uint32_t hr_recorder_capacity(const struct hr_recorder *recorder) {
        return recorder ? (uint32_t) recorder->mask + 1 : 0;
}

static struct hr_span span_read(const struct hr_recorder *recorder, uint64_t number) {
        const atomic_uint_fast64_t *words =
                &recorder->words[(number & recorder->mask) * HR_SPAN_WORDS];
        uint64_t word[HR_SPAN_WORDS];

        for (uint32_t i = 0; i < HR_SPAN_WORDS; i++)
                word[i] = atomic_load_explicit(&words[i], memory_order_acquire);
        return (struct hr_span){
                .begin_ns = word[0],
                .end_ns = word[1],
                .tag = word[2],
                .kind = (uint32_t) (word[3] >> 32),
                .detail = (uint32_t) word[3],
                .a = word[4],
                .b = word[5],
        };
}

uint32_t hr_recorder_read(const struct hr_recorder *recorder, struct hr_span *spans) {
        const uint64_t capacity = hr_recorder_capacity(recorder);
        uint64_t first, count, now, lost;
        uint32_t read = 0;

        if (!recorder)
                return 0;
        count = atomic_load_explicit(&recorder->count, memory_order_acquire);
        first = count > capacity ? count - capacity : 0;
        for (uint64_t n = first; n < count; n++)
                spans[read++] = span_read(recorder, n);
        /* Span `now` may be half written: its place is that of span now - capacity. */
        now = atomic_load_explicit(&recorder->count, memory_order_acquire);
        if (now + 1 <= first + capacity)
                return read;
        lost = HR_MIN(now + 1 - capacity - first, (uint64_t) read);
        for (uint64_t n = lost; n < read; n++)
                spans[n - lost] = spans[n];
        return read - (uint32_t) lost;
}
