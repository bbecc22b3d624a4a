/*
 * The graph of one decoding step of a llama-shaped model, and where its leaves live on a fleet of
 * devices that compute nothing: layers spread evenly over the GPUs, embeddings on the CPU.
 */
#pragma once

#include <stdio.h>

#include "scheduler/scheduler.h"

#define DECODE_GPUS_MOST 16

struct decode {
        struct hr_graph *graph;
        struct hr_fleet *fleet;
        struct hr_device *devices[DECODE_GPUS_MOST + 1];
        struct hr_buffer *weights[DECODE_GPUS_MOST + 1], *states[DECODE_GPUS_MOST + 1];
        struct hr_leaf_home *homes; /* per leaf */
        uint32_t gpus;
};

/* Aborts when something cannot be made. */
void decode_init(struct decode *decode, uint32_t layers, uint32_t gpus);
void decode_deinit(struct decode *decode);
/* The graph and its placement as text, for a peer that makes the same one:
 *   graph TENSORS GPUS
 *   t OP TYPE NE0..3 NB0..3 VIEW_BASE VIEW_OFFSET FLAGS KIND HOME SOURCES ID...
 * one t line per tensor in order of ids; -1 for none; KIND 0 node, 1 weight, 2 state, 3 input. */
void decode_print(const struct decode *decode, FILE *file);
