/*
 * How long a lane's commands take on the GPU, for the flight recorder (core/recorder.h): the stream
 * records an event with a time before and after each, and once it is past both, the thread works
 * out the span. These are the only events with times. Between commands of a busy stream one event
 * serves both.
 *
 * Times of the GPU become the host's by an event recorded while the stream is idle: exact to the
 * few microseconds that it takes to get there, and renewed whenever the stream is idle later on.
 * The driver counts in milliseconds of 24 digits: on a stream that is never idle times are coarser,
 * the longer it lasts (60 us after a quarter of an hour).
 *
 * Nothing here fails a run: what cannot be measured is left out. Thread: the queue's.
 */
#pragma once

#include "backends/cuda/gpu.h"
#include "core/recorder.h"

#define CUDA_SPANS_MAX 64U
#define CUDA_SPAN_EVENTS (2 * CUDA_SPANS_MAX)

struct cuda_span {
        struct hr_span span;
        uint64_t count; /* the lane's number that comes after it */
        uint32_t begin, end; /* events, numbered as they are taken */
};

struct cuda_spans {
        CUevent base, events[CUDA_SPAN_EVENTS];
        uint64_t base_ns; /* when `base` happened, 0 = never */
        uint32_t taken; /* events so far */
        uint32_t begin; /* of the command that is being given to the stream */
        bool is_open, has_last; /* `begin` is set; the event before `taken` ends what came last */
        struct cuda_span pending[CUDA_SPANS_MAX];
        uint32_t first, count;
};

/* Before a command. Idle: nothing is under way in the stream. */
void cuda_spans_begin(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream,
                      bool is_idle);
/* After it: kind, detail, a, b and tag of `span`; `count` is the number that the lane gives
 * next. */
void cuda_spans_end(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream,
                    const struct hr_span *span, uint64_t count);
/* Adds to the recorder what the stream has passed. */
void cuda_spans_retire(struct cuda_spans *spans, struct cuda_gpu *gpu, uint64_t progress,
                       struct hr_recorder *recorder);
/* In the GPU's context. */
void cuda_spans_deinit(struct cuda_spans *spans, struct cuda_gpu *gpu);
