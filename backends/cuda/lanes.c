/* See lanes.h. */
#include "backends/cuda/lanes.h"

#include "backends/cuda/lane_priv.h"

/* What the copying stream is given from now on comes after all that the computing one has been
 * given. The number before the event ends what the computing one knows of runs. */
static void lanes_join(struct cuda_lanes *lanes) {
        struct cuda_lane *compute = &lanes->compute;
        const struct cuda_syms *cu = compute->gpu->cu;
        CUresult result;

        (void) cuda_lane_mark(compute);
        if (cuda_gpu_is_lost(compute->gpu))
                return;
        result = cu->cuEventRecord(lanes->behind, compute->stream);
        if (result == CUDA_SUCCESS)
                result = cu->cuStreamWaitEvent(lanes->copies.stream, lanes->behind,
                                               CU_EVENT_WAIT_DEFAULT);
        if (cuda_gpu_check(compute->gpu, result, "order of two streams", NULL) != HR_OK)
                cuda_lane_settle(compute);
}

static bool copies_are_under_way(const struct cuda_lanes *lanes) {
        return lanes->has_copies && cuda_lane_progress(&lanes->copies) < lanes->copies.count;
}

/* ---- Commands -------------------------------------------------------------------------------- */

struct sending {
        CUdeviceptr from, to;
        struct cuda_gpu *gpu; /* of `to` */
        struct hr_outcome *outcome;
        const struct hr_span *span; /* NULL: it is not recorded */
};

/* One piece, by way of memory that stays as it is until it has arrived. False: the run has
 * failed. */
static bool piece_send(struct cuda_lanes *lanes, const struct sending *sending, uint64_t at,
                       uint64_t bytes) {
        struct cuda_lane *compute = &lanes->compute, *copies = &lanes->copies;
        uint32_t slot = lanes->aside_next++ % CUDA_ASIDE_SLOTS;
        CUdeviceptr aside = lanes->aside + (CUdeviceptr) slot * CUDA_ASIDE_BYTES;
        struct hr_span span = sending->span ? *sending->span : (struct hr_span) { 0 };
        CUresult result;

        cuda_lane_reach(copies, lanes->aside_busy[slot]);
        if (!cuda_lane_begins(compute, sending->outcome))
                return false;
        cuda_lane_use(compute, sending->outcome);
        result = compute->gpu->cu->cuMemcpyDtoDAsync(aside, sending->from + at, (size_t) bytes,
                                                     compute->stream);
        lanes_join(lanes);
        if (result != CUDA_SUCCESS) {
                cuda_lane_fail(compute, result, "copy between devices", HR_DIAG_NO_INDEX,
                               sending->outcome);
                return false;
        }
        span.a = bytes;
        if (sending->span)
                cuda_lane_span_begin(copies);
        cuda_lane_copy(copies, (const void *) (uintptr_t) aside,
                       (void *) (uintptr_t) (sending->to + at), sending->gpu, bytes,
                       sending->outcome);
        if (sending->span)
                cuda_lane_span_end(copies, &span);
        lanes->aside_busy[slot] = cuda_lane_mark(copies);
        return true;
}

static bool goes_beside(const struct cuda_lanes *lanes, const struct cuda_gpu *to,
                        uint64_t bytes) {
        return lanes->has_copies && to != lanes->compute.gpu &&
               (bytes >= CUDA_BESIDE_MIN || copies_are_under_way(lanes));
}

void cuda_lanes_copy(struct cuda_lanes *lanes, const void *source, void *destination,
                     struct cuda_gpu *to, uint64_t bytes, struct hr_outcome *outcome,
                     const struct hr_span *span) {
        const struct sending sending = { .from = (CUdeviceptr) (uintptr_t) source,
                                         .to = (CUdeviceptr) (uintptr_t) destination,
                                         .gpu = to,
                                         .outcome = outcome,
                                         .span = span };

        if (goes_beside(lanes, to, bytes)) {
                for (uint64_t at = 0; at < bytes; at += CUDA_ASIDE_BYTES)
                        if (!piece_send(lanes, &sending, at, HR_MIN(bytes - at, CUDA_ASIDE_BYTES)))
                                return;
                return;
        }
        if (span)
                cuda_lane_span_begin(&lanes->compute);
        cuda_lane_copy(&lanes->compute, source, destination, to, bytes, outcome);
        if (span)
                cuda_lane_span_end(&lanes->compute, span);
}

/* The stream that says when everything given so far is over. */
static struct cuda_lane *lanes_last(struct cuda_lanes *lanes) {
        if (!copies_are_under_way(lanes))
                return &lanes->compute;
        lanes_join(lanes);
        return &lanes->copies;
}

void cuda_lanes_record(struct cuda_lanes *lanes, struct cuda_mark *mark) {
        cuda_lane_record(lanes_last(lanes), mark);
}

void cuda_lanes_notify(struct cuda_lanes *lanes, hr_notify_fn fn, void *arg) {
        cuda_lane_notify(lanes_last(lanes), fn, arg);
}

/* ---- Both at once ---------------------------------------------------------------------------- */

bool cuda_lanes_are_busy(const struct cuda_lanes *lanes) {
        return cuda_lane_is_busy(&lanes->compute) ||
               (lanes->has_copies && cuda_lane_is_busy(&lanes->copies));
}

void cuda_lanes_watch(struct cuda_lanes *lanes) {
        cuda_lane_watch(&lanes->compute);
        if (lanes->has_copies)
                cuda_lane_watch(&lanes->copies);
}

void cuda_lanes_tell(struct cuda_lanes *lanes, struct hr_recorder *recorder) {
        cuda_lane_tell(&lanes->compute, recorder);
        if (lanes->has_copies)
                cuda_lane_tell(&lanes->copies, recorder);
}

void cuda_lanes_finish(struct cuda_lanes *lanes, struct hr_recorder *recorder) {
        cuda_lane_finish(&lanes->compute, recorder);
        if (lanes->has_copies)
                cuda_lane_finish(&lanes->copies, recorder);
}

/* ---- Life ------------------------------------------------------------------------------------ */

static hr_status copies_init(struct cuda_lanes *lanes, struct hr_device *device,
                             uint64_t spin_ns, struct hr_diag *diag) {
        struct cuda_gpu *gpu = lanes->compute.gpu;
        hr_status status = cuda_gpu_memory_take(gpu, device->props.name,
                                                (uint64_t) CUDA_ASIDE_SLOTS * CUDA_ASIDE_BYTES,
                                                NULL, &lanes->aside);

        if (status == HR_E_EXHAUSTED)
                return HR_OK;
        if (status != HR_OK)
                return hr_fail(diag, status, "%s: memory for copies", device->props.name);
        HR_TRY(cuda_gpu_check(gpu,
                              gpu->cu->cuEventCreate(&lanes->behind, CU_EVENT_DISABLE_TIMING),
                              "event", diag));
        HR_TRY(cuda_lane_init(&lanes->copies, device, gpu, spin_ns, false, diag));
        lanes->has_copies = true;
        lanes->copies.before = &lanes->compute;
        lanes->compute.own = lanes->copies.word;
        return HR_OK;
}

hr_status cuda_lanes_init(struct cuda_lanes *lanes, struct hr_device *device, struct cuda_gpu *gpu,
                          uint64_t spin_ns, bool with_copies, struct hr_diag *diag) {
        hr_status status;

        *lanes = (struct cuda_lanes) { 0 };
        HR_TRY(cuda_lane_init(&lanes->compute, device, gpu, spin_ns, true, diag));
        status = with_copies ? copies_init(lanes, device, spin_ns, diag) : HR_OK;
        if (status != HR_OK)
                cuda_lanes_deinit(lanes);
        return status;
}

void cuda_lanes_deinit(struct cuda_lanes *lanes) {
        struct cuda_gpu *gpu = lanes->compute.gpu;

        if (lanes->has_copies)
                cuda_lane_deinit(&lanes->copies);
        cuda_lane_deinit(&lanes->compute);
        if (lanes->behind)
                (void) gpu->cu->cuEventDestroy(lanes->behind);
        cuda_gpu_memory_give(gpu, lanes->aside);
        *lanes = (struct cuda_lanes) { 0 };
}
