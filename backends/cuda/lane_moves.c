/*
 * Bytes that a lane moves: from and to the host through its ring of pinned pieces, between devices
 * directly, and the experts of mixtures that a run uses.
 *
 * Small writes whose source an earlier command may still change are taken by a host function, so
 * that what follows is already in the stream when they are. Large ones wait here: then this thread
 * fills one piece while the GPU fetches another, which a host function in the stream would not
 * allow.
 */
#include "backends/cuda/lane_priv.h"
#include "backends/cuda/pins.h"

#include <stdlib.h>
#include <string.h>

#include "core/experts.h"

/* A free piece of pinned memory. The caller sets its staging_busy. */
static uint32_t staging_take(struct cuda_lane *lane) {
        uint32_t slot = lane->staging_next++ % CUDA_STAGING_SLOTS;

        cuda_lane_reach(lane, lane->staging_busy[slot]);
        return slot;
}

/* Everything that may still change host memory has happened. */
static void hazard_pass(struct cuda_lane *lane) {
        if (lane->hazard > lane->count)
                (void) cuda_lane_mark(lane);
        cuda_lane_reach(lane, lane->hazard);
        lane->hazard = 0;
}

static CUresult write_piece(struct cuda_lane *lane, CUdeviceptr to, const uint8_t *from,
                            size_t bytes, bool is_steady, struct hr_outcome *outcome) {
        uint32_t slot = staging_take(lane);
        uint8_t *pinned = lane->staging + (size_t) slot * CUDA_STAGING_BYTES;
        CUresult result;

        if (lane->hazard && cuda_lane_progress(lane) >= lane->hazard)
                lane->hazard = 0;
        if (lane->hazard && !is_steady)
                (void) cuda_lane_task(lane,
                                      &(struct cuda_task) { .kind = TASK_MOVE,
                                                            .move = { pinned, from, bytes } });
        else
                memcpy(pinned, from, bytes);
        cuda_lane_use(lane, outcome);
        result = lane->gpu->cu->cuMemcpyHtoDAsync(to, pinned, bytes, lane->stream);
        lane->staging_busy[slot] = cuda_lane_mark(lane);
        return result;
}

/* In locked memory, of one piece: the GPU fetches them itself, when the stream gets there. */
static CUresult write_locked(struct cuda_lane *lane, CUdeviceptr to, const uint8_t *from,
                             size_t bytes, struct hr_outcome *outcome) {
        cuda_lane_use(lane, outcome);
        return lane->gpu->cu->cuMemcpyHtoDAsync(to, from, bytes, lane->stream);
}

/* is_steady: no command changes the source. False: the run has failed. */
static bool write_all(struct cuda_lane *lane, void *destination, const void *host, uint64_t bytes,
                      bool is_steady, struct hr_outcome *outcome) {
        for (uint64_t at = 0; at < bytes;) {
                CUdeviceptr to = (CUdeviceptr) (uintptr_t) destination + at;
                const uint8_t *from = (const uint8_t *) host + at;
                uint64_t locked = cuda_pins_piece(from, bytes - at);
                uint64_t piece = locked ? locked : HR_MIN(bytes - at, CUDA_STAGING_BYTES);
                CUresult result =
                        locked ? write_locked(lane, to, from, (size_t) piece, outcome)
                               : write_piece(lane, to, from, (size_t) piece, is_steady, outcome);

                at += piece;
                if (result != CUDA_SUCCESS) {
                        cuda_lane_fail(lane, result, "copy to the GPU", HR_DIAG_NO_INDEX, outcome);
                        return false;
                }
        }
        return true;
}

void cuda_lane_write(struct cuda_lane *lane, void *destination, const void *host, uint64_t bytes,
                     struct hr_outcome *outcome) {
        if (!bytes || !cuda_lane_begins(lane, outcome))
                return;
        if (bytes > CUDA_STAGING_BYTES && lane->hazard && !cuda_pins_hold(host, bytes)) {
                hazard_pass(lane);
                if (!cuda_lane_begins(lane, outcome)) /* lost while it waited */
                        return;
        }
        (void) write_all(lane, destination, host, bytes, false, outcome);
}

static CUresult read_piece(struct cuda_lane *lane, CUdeviceptr from, uint8_t *to, size_t bytes,
                           struct hr_outcome *outcome) {
        uint32_t slot = staging_take(lane);
        uint8_t *pinned = lane->staging + (size_t) slot * CUDA_STAGING_BYTES;
        CUresult result;

        cuda_lane_use(lane, outcome);
        result = lane->gpu->cu->cuMemcpyDtoHAsync(pinned, from, bytes, lane->stream);
        if (result == CUDA_SUCCESS)
                lane->hazard = lane->staging_busy[slot] =
                        cuda_lane_task(lane, &(struct cuda_task) { .kind = TASK_MOVE,
                                                                   .outcome = outcome,
                                                                   .move = { to, pinned,
                                                                             bytes } });
        return result;
}

void cuda_lane_read(struct cuda_lane *lane, const void *source, void *host, uint64_t bytes,
                    struct hr_outcome *outcome) {
        if (!bytes || !cuda_lane_begins(lane, outcome))
                return;
        for (uint64_t at = 0; at < bytes; at += CUDA_STAGING_BYTES) {
                size_t piece = (size_t) HR_MIN(bytes - at, CUDA_STAGING_BYTES);
                CUresult result = read_piece(lane, (CUdeviceptr) (uintptr_t) source + at,
                                             (uint8_t *) host + at, piece, outcome);

                if (result != CUDA_SUCCESS) {
                        cuda_lane_fail(lane, result, "copy from the GPU", HR_DIAG_NO_INDEX,
                                       outcome);
                        return;
                }
        }
}

void cuda_lane_copy(struct cuda_lane *lane, const void *source, void *destination,
                    struct cuda_gpu *to, uint64_t bytes, struct hr_outcome *outcome) {
        CUdeviceptr from = (CUdeviceptr) (uintptr_t) source;
        CUdeviceptr target = (CUdeviceptr) (uintptr_t) destination;
        CUresult result;

        if (!bytes || !cuda_lane_begins(lane, outcome))
                return;
        cuda_lane_use(lane, outcome);
        if (to == lane->gpu)
                result = lane->gpu->cu->cuMemcpyDtoDAsync(target, from, (size_t) bytes,
                                                          lane->stream);
        else
                result = lane->gpu->cu->cuMemcpyPeerAsync(target, to->context, from,
                                                          lane->gpu->context, (size_t) bytes,
                                                          lane->stream);
        if (result != CUDA_SUCCESS)
                cuda_lane_fail(lane, result, "copy between devices", HR_DIAG_NO_INDEX, outcome);
}

/* ---- Experts --------------------------------------------------------------------------------- */

/* Memory for the ids as they lie on the device, and behind them for what they are translated to. */
static bool ids_room(struct cuda_lane *lane, uint64_t bytes, struct hr_outcome *outcome) {
        void *larger;

        if (bytes <= lane->ids_room)
                return true;
        larger = realloc(lane->ids, (size_t) bytes);
        if (!larger) {
                (void) hr_outcome_fail(outcome, HR_E_EXHAUSTED, NULL, HR_DIAG_NO_INDEX,
                                       "no memory for the ids of experts");
                return false;
        }
        lane->ids = larger;
        lane->ids_room = bytes;
        return true;
}

/* This thread has the bytes when it returns. False: the run has failed. */
static bool fetch(struct cuda_lane *lane, uint8_t *to, CUdeviceptr from, uint64_t bytes,
                  struct hr_outcome *outcome) {
        for (uint64_t at = 0; at < bytes; at += CUDA_STAGING_BYTES) {
                size_t piece = (size_t) HR_MIN(bytes - at, CUDA_STAGING_BYTES);
                uint32_t slot = staging_take(lane);
                uint8_t *pinned = lane->staging + (size_t) slot * CUDA_STAGING_BYTES;
                CUresult result;

                cuda_lane_use(lane, outcome);
                result = lane->gpu->cu->cuMemcpyDtoHAsync(pinned, from + at, piece, lane->stream);
                lane->staging_busy[slot] = cuda_lane_mark(lane);
                if (result != CUDA_SUCCESS) {
                        cuda_lane_fail(lane, result, "ids of experts", HR_DIAG_NO_INDEX, outcome);
                        return false;
                }
                cuda_lane_reach(lane, lane->staging_busy[slot]);
                if (!cuda_lane_begins(lane, outcome)) /* failed or lost meanwhile */
                        return false;
                memcpy(to + at, pinned, piece);
        }
        return true;
}

static bool experts_scan(struct cuda_lane *lane, struct hr_expert_cache *cache, const void *ids,
                         struct hr_expert_tally *tally, struct hr_outcome *outcome) {
        uint64_t count = (uint64_t) (cache->ne[0] * cache->ne[1]), span, translated;

        if (!count)
                return hr_experts_scan(cache, ids, cache->translated, tally, outcome);
        span = (uint64_t) (cache->ne[0] - 1) * cache->nb[0] +
               (uint64_t) (cache->ne[1] - 1) * cache->nb[1] + sizeof(int32_t);
        translated = cache->translated ? count * sizeof(int32_t) : 0;
        /* Both are of int32, so is what lies before the second. */
        if (!ids_room(lane, span + translated, outcome) ||
            !fetch(lane, lane->ids, (CUdeviceptr) (uintptr_t) ids, span, outcome) ||
            !hr_experts_scan(cache, lane->ids,
                             translated ? (int32_t *) (void *) (lane->ids + span) : NULL, tally,
                             outcome))
                return false;
        return write_all(lane, cache->translated, lane->ids + span, translated, true, outcome);
}

static bool clear(struct cuda_lane *lane, const uint8_t *from, uint64_t bytes,
                  struct hr_outcome *outcome) {
        CUresult result;

        if (!bytes)
                return true;
        cuda_lane_use(lane, outcome);
        result = lane->gpu->cu->cuMemsetD8Async((CUdeviceptr) (uintptr_t) from, 0, (size_t) bytes,
                                                lane->stream);
        if (result == CUDA_SUCCESS)
                return true;
        cuda_lane_fail(lane, result, "bytes behind an expert", HR_DIAG_NO_INDEX, outcome);
        return false;
}

void cuda_lane_experts(struct cuda_lane *lane, struct hr_expert_cache *cache, uint32_t weight,
                       const void *ids, struct hr_expert_tally *tally, struct hr_outcome *outcome) {
        struct hr_expert_move move = { 0 };

        if (!cuda_lane_begins(lane, outcome) ||
            (weight == 0 && !experts_scan(lane, cache, ids, tally, outcome)))
                return;
        while (hr_experts_next(cache, weight, &move))
                if (!write_all(lane, move.to, move.from, move.bytes, true, outcome) ||
                    !clear(lane, move.to + move.bytes, move.zeros, outcome))
                        return;
        hr_experts_end(cache, weight, &move, tally);
}
