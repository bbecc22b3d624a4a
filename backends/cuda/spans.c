/* See spans.h. */
#include "backends/cuda/spans.h"

#include "core/clock.h"

#define RENEW_NS HR_NS_PER_S

static bool went_well(struct cuda_gpu *gpu, CUresult result) {
        return cuda_gpu_check(gpu, result, "times", NULL) == HR_OK;
}

/* Events are made when they are first needed. */
static bool record(struct cuda_gpu *gpu, CUstream stream, CUevent *event) {
        if (!*event && !went_well(gpu, gpu->cu->cuEventCreate(event, CU_EVENT_DEFAULT)))
                return false;
        return went_well(gpu, gpu->cu->cuEventRecord(*event, stream));
}

void cuda_spans_deinit(struct cuda_spans *spans, struct cuda_gpu *gpu) {
        for (uint32_t i = 0; i < CUDA_SPAN_EVENTS; i++)
                if (spans->events[i])
                        (void) gpu->cu->cuEventDestroy(spans->events[i]);
        if (spans->base)
                (void) gpu->cu->cuEventDestroy(spans->base);
        *spans = (struct cuda_spans) { 0 };
}

/* The times of both clocks, side by side. The host's is taken first: no span then seems to end
 * later than it does, nor to begin before the queue was there. */
static void base_renew(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream) {
        uint64_t now_ns = hr_clock_now_ns();

        if (spans->base_ns && now_ns - spans->base_ns < RENEW_NS)
                return;
        spans->base_ns = record(gpu, stream, &spans->base) ? now_ns : 0;
}

/* The next event, recorded now. An event is taken anew when no span needs it any more. */
static bool event_take(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream) {
        uint32_t oldest = spans->count ? spans->pending[spans->first].begin : spans->taken;

        if (spans->taken - oldest >= CUDA_SPAN_EVENTS - 1 ||
            !record(gpu, stream, &spans->events[spans->taken % CUDA_SPAN_EVENTS]))
                return false;
        spans->taken++;
        return true;
}

void cuda_spans_begin(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream,
                      bool is_idle) {
        spans->is_open = false;
        if (spans->count == CUDA_SPANS_MAX)
                return;
        if (is_idle && !spans->count)
                base_renew(spans, gpu, stream);
        if (!spans->base_ns)
                return;
        if (is_idle || !spans->has_last) {
                spans->has_last = event_take(spans, gpu, stream);
                if (!spans->has_last)
                        return;
        }
        spans->begin = spans->taken - 1;
        spans->is_open = true;
}

void cuda_spans_end(struct cuda_spans *spans, struct cuda_gpu *gpu, CUstream stream,
                    const struct hr_span *span, uint64_t count) {
        if (!spans->is_open)
                return;
        spans->is_open = false;
        spans->has_last = event_take(spans, gpu, stream);
        if (!spans->has_last)
                return;
        spans->pending[(spans->first + spans->count) % CUDA_SPANS_MAX] = (struct cuda_span) {
                .span = *span,
                .count = count,
                .begin = spans->begin,
                .end = spans->taken - 1,
        };
        spans->count++;
}

static bool time_of(const struct cuda_spans *spans, struct cuda_gpu *gpu, uint32_t event,
                    uint64_t *ret_ns) {
        float ms = 0;

        if (!went_well(gpu, gpu->cu->cuEventElapsedTime(&ms, spans->base,
                                                        spans->events[event % CUDA_SPAN_EVENTS])))
                return false;
        *ret_ns = spans->base_ns + (uint64_t) (ms > 0 ? (double) ms * 1e6 : 0);
        return true;
}

void cuda_spans_retire(struct cuda_spans *spans, struct cuda_gpu *gpu, uint64_t progress,
                       struct hr_recorder *recorder) {
        while (spans->count && spans->pending[spans->first].count <= progress) {
                struct cuda_span *done = &spans->pending[spans->first];

                if (!cuda_gpu_is_lost(gpu) &&
                    time_of(spans, gpu, done->begin, &done->span.begin_ns) &&
                    time_of(spans, gpu, done->end, &done->span.end_ns))
                        hr_recorder_add(recorder, &done->span);
                spans->first = (spans->first + 1) % CUDA_SPANS_MAX;
                spans->count--;
        }
}
