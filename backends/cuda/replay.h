/*
 * A split as a graph of the driver's: one call launches all of its kernels.
 *
 * A program's launches never change, so neither does what its graph computes: the graph belongs to
 * the program, is launched for whole splits only, and leaves with it. Whatever makes another
 * program (other shapes, other memory) starts without one. It is made at the second run, so that
 * splits computed once cost nothing; a graph of a program that is gone is given the new launches if
 * it has the same kernels. What the driver refuses is launched kernel by kernel and tried again
 * later, ever more seldom, and never given up for good.
 *
 * The graph is a chain built from the list of launches. Products of the library are captured one by
 * one, in a stream of their own and for this thread alone, and become graphs within it: all memory
 * that they need was taken with the program.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "backends/cuda/syms.h"

struct cuda_program;

/* The queue's thread's, from the first command to the last. */
struct cuda_replay {
        CUgraphExec exec;  /* NULL: none yet */
        bool has_run;      /* whole, at least once */
        uint32_t failures; /* in a row */
        uint32_t pause;    /* runs until it is tried again */
};

/* Launches the whole program as one graph. False: nothing has been launched, the caller does it.
 * True: *ret_result is CUDA_SUCCESS or says that the context has ended. */
bool cuda_replay_launch(struct cuda_program *program, CUstream stream, CUresult *ret_result);
/* Nothing of the program is under way. Thread: engine. */
void cuda_replay_deinit(struct cuda_program *program);
