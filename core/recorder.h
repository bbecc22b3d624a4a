/*
 * A flight recorder: the latest spans of one thread, in a ring of fixed size that is always on.
 *
 * One thread adds and never waits; any thread reads, and gets whole spans only: what is overwritten
 * while it reads is left out. Adding costs a few stores; the times come from the caller, who mostly
 * has them anyway.
 */
#pragma once

#include <stdatomic.h>

#include "core/status.h"

typedef enum hr_span_kind {
        HR_SPAN_NONE,
        /* Of requests, by the loop. */
        HR_SPAN_REQUEST, /* detail: type, and code of its end << 8 (HR_SPAN_OPEN: it has not ended);
                          * a: the client's id; b: principal */
        HR_SPAN_UPLOAD,  /* its body arrived */
        HR_SPAN_PLAN,
        HR_SPAN_QUEUE,  /* waited to start */
        HR_SPAN_RUN,    /* from start to end; detail: slot, a: number of the run on its pipeline */
        HR_SPAN_REPLY,  /* the outputs' way out */
        HR_SPAN_ORIGIN, /* no span: where the request comes from (W3C trace context). a, b: trace
                         * id; end_ns: the caller's span; detail: flags */
        /* Of commands, by devices' queues. */
        HR_SPAN_COMPUTE, /* detail: the split */
        HR_SPAN_COPY,    /* a: bytes */
        HR_SPAN_EXPERTS, /* detail: the weight's place in its group */
        HR_SPAN_WAIT,    /* for an event that had not been reached */
        HR_SPAN_KINDS
} hr_span_kind;

/* "request", "upload"...; never NULL. */
const char *hr_span_kind_name(hr_span_kind kind);

struct hr_span {
        uint64_t begin_ns, end_ns; /* hr_clock_now_ns() */
        uint64_t tag;              /* of the request that it belongs to; 0 = of none */
        uint32_t kind, detail;
        uint64_t a, b;
};

#define HR_SPAN_WORDS 6U
#define HR_SPAN_OPEN 255U

struct hr_recorder {
        uint64_t mask; /* capacity - 1 */
        atomic_uint_fast64_t count; /* added so far */
        atomic_uint_fast64_t words[]; /* HR_SPAN_WORDS per span */
};

/* `spans` is rounded up to a power of two. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_recorder_new(uint32_t spans, struct hr_diag *diag,
                                       struct hr_recorder **ret_recorder);
/* NULL is a no-op. Returns NULL. */
struct hr_recorder *hr_recorder_free(struct hr_recorder *recorder);
/* Spans that it holds at most; 0 of NULL. */
uint32_t hr_recorder_capacity(const struct hr_recorder *recorder);
/* The latest spans, oldest first, into room for hr_recorder_capacity() of them; how many. Of NULL:
 * none. Thread: any. */
uint32_t hr_recorder_read(const struct hr_recorder *recorder, struct hr_span *spans);

/* Thread: always the same. NULL is a no-op.
 *
 * A reader that sees any word of span n sees that n spans are complete, hence that n's place is
 * being written: each word is released after the count. */
static inline void hr_recorder_add(struct hr_recorder *recorder, const struct hr_span *span) {
        uint64_t count;
        atomic_uint_fast64_t *words;

        if (!recorder)
                return;
        count = atomic_load_explicit(&recorder->count, memory_order_relaxed);
        words = &recorder->words[(count & recorder->mask) * HR_SPAN_WORDS];
        atomic_store_explicit(&words[0], span->begin_ns, memory_order_release);
        atomic_store_explicit(&words[1], span->end_ns, memory_order_release);
        atomic_store_explicit(&words[2], span->tag, memory_order_release);
        atomic_store_explicit(&words[3], (uint64_t) span->kind << 32 | span->detail,
                              memory_order_release);
        atomic_store_explicit(&words[4], span->a, memory_order_release);
        atomic_store_explicit(&words[5], span->b, memory_order_release);
        atomic_store_explicit(&recorder->count, count + 1, memory_order_release);
}
