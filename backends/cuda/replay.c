/* See replay.h. */
#include "backends/cuda/replay.h"

#include "backends/cuda/launch.h"

/* One launch gains nothing. */
#define LAUNCHES_MIN 2U
#define PAUSE_FIRST 4U
#define PAUSE_MOST 1024U

static uint32_t launch_count(const struct cuda_program *program) {
        return program->first[program->program.steps->count];
}

/* Names the kernels in their order. Two lists with one key are found out by the driver. */
static uint64_t replay_key(const struct cuda_program *program) {
        uint64_t key = launch_count(program);

        for (uint32_t i = 0; i < launch_count(program); i++) {
                key ^= (uint64_t) (uintptr_t) program->launches[i].function;
                key *= UINT64_C(0x9e3779b97f4a7c15);
                key ^= key >> 29;
        }
        return key;
}

static void replay_fail(struct cuda_program *program) {
        struct cuda_replay *replay = &program->replay;
        uint32_t doublings = HR_MIN(replay->failures, 8U);

        atomic_fetch_add(&program->program.device->graphs.failed, 1);
        replay->pause = HR_MIN(PAUSE_FIRST << doublings, PAUSE_MOST);
        replay->failures++;
}

/* ---- Making ---------------------------------------------------------------------------------- */

static CUresult graph_build(const struct cuda_program *program, CUgraph graph) {
        const struct cuda_syms *cu = program->gpu->cu;
        CUresult result = CUDA_SUCCESS;
        CUgraphNode last = NULL;

        for (uint32_t i = 0; i < launch_count(program) && result == CUDA_SUCCESS; i++) {
                const struct cuda_launch *item = &program->launches[i];
                size_t bytes = item->argument_bytes;
                void *extra[] = CUDA_LAUNCH_EXTRA(program, item, &bytes);
                CUDA_KERNEL_NODE_PARAMS params = {
                        .func = item->function,
                        .gridDimX = item->blocks,
                        .gridDimY = 1,
                        .gridDimZ = 1,
                        .blockDimX = item->threads,
                        .blockDimY = 1,
                        .blockDimZ = 1,
                        .sharedMemBytes = item->shared_bytes,
                        .extra = extra,
                };
                CUgraphNode node = NULL;

                result = cu->cuGraphAddKernelNode(&node, graph, last ? &last : NULL, last ? 1 : 0,
                                                  &params);
                last = node;
        }
        return result;
}

/* A graph from the shelf with these launches, or a new one. */
static CUresult exec_make(struct cuda_program *program, CUgraph graph, CUgraphExec *ret_exec) {
        struct hr_graph_counters *counters = &program->program.device->graphs;
        struct cuda_gpu *gpu = program->gpu;
        CUgraphExecUpdateResultInfo info = { 0 };
        CUgraphExec exec;
        CUresult result;

        (void) pthread_mutex_lock(&gpu->lock);
        exec = cuda_shelf_take(&gpu->shelf, replay_key(program));
        (void) pthread_mutex_unlock(&gpu->lock);
        if (exec) {
                result = gpu->cu->cuGraphExecUpdate(exec, graph, &info);
                if (result == CUDA_SUCCESS) {
                        atomic_fetch_add(&counters->updated, 1);
                        *ret_exec = exec;
                        return CUDA_SUCCESS;
                }
                (void) gpu->cu->cuGraphExecDestroy(exec);
                if (cuda_result_is_sticky(result))
                        return result;
        }
        result = gpu->cu->cuGraphInstantiate(ret_exec, graph, 0);
        if (result == CUDA_SUCCESS)
                atomic_fetch_add(&counters->captured, 1);
        return result;
}

static CUresult replay_make(struct cuda_program *program) {
        const struct cuda_syms *cu = program->gpu->cu;
        CUgraph graph = NULL;
        CUresult result = cu->cuGraphCreate(&graph, 0);

        if (result != CUDA_SUCCESS)
                return result;
        result = graph_build(program, graph);
        if (result == CUDA_SUCCESS)
                result = exec_make(program, graph, &program->replay.exec);
        (void) cu->cuGraphDestroy(graph);
        return result;
}

/* ---- Launching ------------------------------------------------------------------------------- */

/* Is this run one for the graph? */
static bool replay_is_due(struct cuda_program *program) {
        struct cuda_replay *replay = &program->replay;

        if (launch_count(program) < LAUNCHES_MIN || program->has_matmul)
                return false;
        if (!replay->has_run) {
                replay->has_run = true;
                return false;
        }
        if (replay->pause == 0)
                return true;
        replay->pause--;
        return false;
}

bool cuda_replay_launch(struct cuda_program *program, CUstream stream, CUresult *ret_result) {
        struct cuda_replay *replay = &program->replay;
        CUresult result = CUDA_SUCCESS;

        if (!replay_is_due(program))
                return false;
        if (!replay->exec)
                result = replay_make(program);
        if (result == CUDA_SUCCESS)
                result = program->gpu->cu->cuGraphLaunch(replay->exec, stream);
        if (result == CUDA_SUCCESS) {
                replay->failures = 0;
                atomic_fetch_add(&program->program.device->graphs.replayed, 1);
        } else {
                if (replay->exec)
                        (void) program->gpu->cu->cuGraphExecDestroy(replay->exec);
                replay->exec = NULL;
                replay_fail(program);
                if (!cuda_result_is_sticky(result))
                        return false;
        }
        *ret_result = result;
        return true;
}

void cuda_replay_deinit(struct cuda_program *program) {
        struct cuda_gpu *gpu = program->gpu;

        if (!program->replay.exec)
                return;
        (void) gpu->cu->cuCtxSetCurrent(gpu->context);
        (void) pthread_mutex_lock(&gpu->lock);
        if (cuda_gpu_is_lost(gpu))
                (void) gpu->cu->cuGraphExecDestroy(program->replay.exec);
        else
                cuda_shelf_put(&gpu->shelf, gpu->cu, program->replay.exec, replay_key(program));
        (void) pthread_mutex_unlock(&gpu->lock);
        program->replay.exec = NULL;
}
