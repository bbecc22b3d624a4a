/*
 * A CUDA driver without a GPU, and cuBLASLt: fills the symbol tables of backends/cuda. Memory of
 * the GPUs is ordinary memory, a stream is a thread that executes what was given to it, with random
 * pauses, and a kernel is its source compiled for the processor.
 *
 * It is stricter than the real one: copies between host and device take pinned memory only, device
 * addresses have to lie in one allocation, fresh memory holds rubbish, an executable graph takes
 * only updates of the same kernels, and a host function that calls the driver is counted as a
 * violation, as is every call but launches while the thread captures a stream, the use of the
 * legacy stream, and virtual memory that is not mapped, cut or given back piece by piece as it was
 * made.
 */
#pragma once

#include "backends/cuda/syms.h"
#include "tests/cuda/checks.h"

#define FAKE_GPUS 3

/* Begins anew: nothing failing, nothing lost, calls counted from 0. The backend uses it from then
 * on. `seed` chooses the pauses; 0 = none. */
void fake_begin(uint32_t seed);
/* Its entry points. */
const struct cuda_syms *fake_driver(void);
/* Everything that was made and not unmade: memory, streams, events, modules, contexts. Words about
 * each go to stderr. */
uint32_t fake_leaks(void);
/* Times that the rules of the driver were broken. */
uint32_t fake_violations(void);
/* All memory that kernels may access now, of GPUs and pinned; a checks_memory_fn. */
unsigned fake_memory(struct checks_range *ret_ranges, unsigned room);
/* Forgets them: the test broke them itself. */
void fake_forgive(void);
/* Calls that could fail, since the beginning. */
uint64_t fake_calls(void);
/* Call number `call` (the first one has 0) returns `result` and does nothing. A sticky result loses
 * its GPU. */
void fake_fail_call(uint64_t call, CUresult result);
/* Every call of that entry point (its name in syms.def) fails; NULL: none any more. */
void fake_fail_name(const char *name, CUresult result);
/* The GPU's context ends when its streams have executed `operations` more. */
void fake_lose(uint32_t gpu, uint64_t operations, CUresult result);
/* Streams of a context that has ended still write the numbers they were to write, long after. */
void fake_write_late(void);
/* Bytes copied from one GPU to the other arrive changed. */
void fake_break_copies(uint32_t from, uint32_t to);
/* GPUs do not lock memory that cannot be written. */
void fake_without_read_only(void);
/* Bytes that GPUs have been told to fetch from memory that was locked, since the beginning. */
uint64_t fake_locked_copied(void);
/* Copies to other GPUs do not begin while that is so. */
void fake_hold_peers(bool holds);
/* Operations that streams have executed, since the beginning. */
uint64_t fake_executed(void);
/* Products that the library was given, since the beginning. */
uint64_t fake_products(void);
/* The library has no way for any product. */
void fake_without_ways(void);
/* Bytes of memory that each GPU has. */
void fake_set_memory(uint64_t bytes);
/* Version that the driver says it has; 0 = a good one. */
void fake_set_version(int version);
