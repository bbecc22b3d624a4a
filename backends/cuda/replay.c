/* See replay.h. */
#include "backends/cuda/replay.h"

#include "backends/cuda/blas.h"
#include "backends/cuda/device.h"
#include "backends/cuda/launch.h"
#include "core/clock.h"

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
                const struct cuda_launch *item = &program->launches[i];

                key ^= item->matmul ? cuda_matmul_form(item->matmul)
                                    : (uint64_t) (uintptr_t) item->function;
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

static CUresult kernel_add(const struct cuda_program *program, const struct cuda_launch *item,
                           CUgraph graph, CUgraphNode *last) {
        const CUgraphNode before = *last;
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

        return program->gpu->cu->cuGraphAddKernelNode(last, graph, before ? &before : NULL,
                                                      before ? 1 : 0, &params);
}

/* What the library puts into a stream for a product, caught before it is executed. Only calls of
 * this thread could spoil it, and it makes none. Whatever goes wrong here is the capture's, not the
 * context's. */
static CUresult product_capture(const struct cuda_syms *cu, const struct cuda_launch *item,
                                CUstream stream, CUgraph *ret_part) {
        CUgraph part = NULL;
        CUresult result = cu->cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        CUresult end;

        if (result != CUDA_SUCCESS)
                return result;
        result = cuda_matmul_launch(item->matmul, stream);
        end = cu->cuStreamEndCapture(stream, &part);
        if (result == CUDA_SUCCESS && end == CUDA_SUCCESS && part) {
                *ret_part = part;
                return CUDA_SUCCESS;
        }
        if (part)
                (void) cu->cuGraphDestroy(part);
        return cuda_result_is_sticky(end) ? end : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static CUresult product_add(const struct cuda_program *program, const struct cuda_launch *item,
                            CUstream stream, CUgraph graph, CUgraphNode *last) {
        const struct cuda_syms *cu = program->gpu->cu;
        const CUgraphNode before = *last;
        CUgraph part = NULL;
        CUresult result = product_capture(cu, item, stream, &part);

        if (result != CUDA_SUCCESS)
                return result;
        result = cu->cuGraphAddChildGraphNode(last, graph, before ? &before : NULL, before ? 1 : 0,
                                              part);
        (void) cu->cuGraphDestroy(part); /* the node has a copy */
        return result;
}

/* `stream` is for captures, NULL where there is none to make. */
static CUresult graph_build(const struct cuda_program *program, CUstream stream, CUgraph graph) {
        CUresult result = CUDA_SUCCESS;
        CUgraphNode last = NULL;

        for (uint32_t i = 0; i < launch_count(program) && result == CUDA_SUCCESS; i++) {
                const struct cuda_launch *item = &program->launches[i];

                result = item->matmul ? product_add(program, item, stream, graph, &last)
                                      : kernel_add(program, item, graph, &last);
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
        CUstream stream = NULL;
        CUgraph graph = NULL;
        CUresult result = cu->cuGraphCreate(&graph, 0);

        if (result != CUDA_SUCCESS)
                return result;
        if (program->has_matmul)
                result = cu->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
        if (result == CUDA_SUCCESS)
                result = graph_build(program, stream, graph);
        if (stream)
                (void) cu->cuStreamDestroy(stream);
        if (result == CUDA_SUCCESS)
                result = exec_make(program, graph, &program->replay.exec);
        (void) cu->cuGraphDestroy(graph);
        return result;
}

/* ---- Launching ------------------------------------------------------------------------------- */

/* Is this run one for the graph? */
static bool replay_is_due(struct cuda_program *program) {
        const struct cuda_device *device = (const struct cuda_device *) program->program.device;
        struct cuda_replay *replay = &program->replay;

        if (device->single_launches || launch_count(program) < LAUNCHES_MIN)
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
        struct hr_graph_counters *counters = &program->program.device->graphs;
        struct cuda_replay *replay = &program->replay;
        CUresult result = CUDA_SUCCESS;
        uint64_t start_ns = 0;

        if (!replay_is_due(program))
                return false;
        if (!replay->exec)
                result = replay_make(program);
        if (result == CUDA_SUCCESS) {
                start_ns = hr_clock_now_ns();
                result = program->gpu->cu->cuGraphLaunch(replay->exec, stream);
        }
        if (result == CUDA_SUCCESS) {
                replay->failures = 0;
                atomic_fetch_add(&counters->replayed, 1);
                atomic_fetch_add(&counters->replay_ns, hr_clock_now_ns() - start_ns);
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
