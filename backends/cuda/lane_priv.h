/*
 * What the files of a lane share: its books, and tasks in its stream. Thread: the queue's.
 */
#pragma once

#include "backends/cuda/lane.h"

typedef enum task_kind {
        TASK_NOTIFY,
        TASK_MOVE,
        TASK_FAULT,
} task_kind;

/* Owned by the lane; from its launch until its number is reached it belongs to whoever claims
 * it. */
struct cuda_task {
        struct cuda_task *next_free;
        task_kind kind;
        atomic_bool is_claimed;
        struct cuda_word *word;
        uint64_t count;
        struct hr_outcome *outcome;
        union {
                struct {
                        hr_notify_fn fn;
                        void *arg;
                } notify;
                struct {
                        void *to;
                        const void *from;
                        size_t bytes;
                } move;
                struct cuda_program *program;
        };
};

/* How far the stream has come. */
uint64_t cuda_lane_progress(const struct cuda_lane *lane);
/* Waits until the stream has got that far, or is lost. */
void cuda_lane_reach(struct cuda_lane *lane, uint64_t count);
/* Waits for the stream by means of the driver: the way out when it does not take a command. */
void cuda_lane_settle(struct cuda_lane *lane);
/* A run has commands in the stream until the next number is reached. */
void cuda_lane_use(struct cuda_lane *lane, struct hr_outcome *outcome);
/* The next number, written by the stream when it gets there. */
uint64_t cuda_lane_mark(struct cuda_lane *lane);
/* Puts a task into the stream under the next number. Returns the number. */
uint64_t cuda_lane_task(struct cuda_lane *lane, const struct cuda_task *model);
/* False: the run has failed, or fails now because the GPU is lost. */
bool cuda_lane_begins(struct cuda_lane *lane, struct hr_outcome *outcome);
/* A call of the driver that did not go well fails the run. */
void cuda_lane_fail(struct cuda_lane *lane, CUresult result, const char *what, uint32_t node,
                    struct hr_outcome *outcome);
