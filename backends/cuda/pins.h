/*
 * Weights that stay in memory of the host and that GPUs read again and again (offloaded products,
 * experts): locked there, so that the GPU fetches them itself, where the lane would otherwise copy
 * them into its ring of pinned pieces first.
 *
 * Locking takes long, so a thread of each buffer's own does it, piece by piece, one buffer after
 * the other; what is not locked yet, what a limit leaves out, and what the driver does not take (a
 * mapping that it cannot hold) goes through the ring as ever. Memory is locked once for all GPUs,
 * by the device that asked first, which stays until the buffer goes; before its memory goes it is
 * unlocked. What a GPU that is lost has locked is used no more.
 */
#pragma once

#include "backends/cuda/gpu.h"
#include "core/device.h"

/* Locks the buffer's memory, at most so much that `limit` bytes are locked for the device. A hint:
 * nothing fails. Thread: engine. */
void cuda_pins_add(struct hr_device *device, struct cuda_gpu *gpu, struct hr_buffer *buffer,
                   uint64_t limit);
/* How many of these bytes, from the first on, can be copied as they are in one piece. Thread:
 * any. */
uint64_t cuda_pins_piece(const void *address, uint64_t bytes);
/* Can all of them, in any number of pieces? Thread: any. */
bool cuda_pins_hold(const void *address, uint64_t bytes);
