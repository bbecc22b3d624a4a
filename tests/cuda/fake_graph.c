/* Launches of the fake driver, one by one and as graphs. A graph is a chain of kernels, products of
 * the library, and graphs of them, which become part of the chain; whatever else the driver could
 * do with one is refused. */
#include "tests/cuda/fake_priv.h"

#include <stdlib.h>
#include <string.h>

#include "tests/cuda/blocks.h"

#define GRID_MAX 0x7fffffffU
#define BLOCK_MAX 1024
#define SHARED_MAX (48U << 10) /* that a kernel has without being allowed more */
#define ARGUMENT_MAX 4096

struct CUgraphNode_st {
        struct CUgraphNode_st *next;
        struct operation operation;
};

struct chain {
        struct CUgraphNode_st *first, *last;
};

struct CUgraph_st {
        struct chain chain;
};

struct CUgraphExec_st {
        CUcontext context;
        struct chain chain;
};

/* ---- Kernels --------------------------------------------------------------------------------- */

/* The argument of a launch is copied before the call returns, as the driver does. */
static CUresult kernel_operation(const CUDA_KERNEL_NODE_PARAMS *params,
                                 struct operation *operation) {
        const struct cuda_host_kernel *kernel = (const void *) (uintptr_t) params->func;
        void **extra = params->extra;

        if (params->gridDimX == 0 || params->gridDimY != 1 || params->gridDimZ != 1 ||
            params->blockDimX == 0 || params->blockDimX > BLOCK_MAX || params->blockDimX % 32 ||
            params->blockDimY != 1 || params->blockDimZ != 1 || params->kernelParams || !extra ||
            params->gridDimX > GRID_MAX || params->sharedMemBytes > SHARED_MAX ||
            *(size_t *) extra[3] > ARGUMENT_MAX ||
            extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER ||
            extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE || extra[4] != CU_LAUNCH_PARAM_END ||
            *(size_t *) extra[3] != kernel->argument_bytes)
                return CUDA_ERROR_INVALID_VALUE;
        *operation = (struct operation) { .kind = OPERATION_KERNEL,
                                          .kernel = kernel,
                                          .blocks = params->gridDimX,
                                          .threads = params->blockDimX };
        operation->argument_bytes = kernel->argument_bytes;
        operation->argument = malloc(kernel->argument_bytes);
        if (!operation->argument)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(operation->argument, extra[1], kernel->argument_bytes);
        return CUDA_SUCCESS;
}

static CUresult launch_kernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y,
                              unsigned block_z, unsigned shared_bytes, CUstream stream,
                              void **params, void **extra) {
        const CUDA_KERNEL_NODE_PARAMS node = {
                .func = function,
                .gridDimX = grid_x,
                .gridDimY = grid_y,
                .gridDimZ = grid_z,
                .blockDimX = block_x,
                .blockDimY = block_y,
                .blockDimZ = block_z,
                .sharedMemBytes = shared_bytes,
                .kernelParams = params,
                .extra = extra,
        };
        struct operation operation = { 0 };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuLaunchKernel");
        if (result == CUDA_SUCCESS)
                result = kernel_operation(&node, &operation);
        if (result == CUDA_SUCCESS) {
                result = fake_enqueue(stream, &operation);
                if (result != CUDA_SUCCESS)
                        free(operation.argument);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- Chains ---------------------------------------------------------------------------------- */

/* Takes the operation over, if it goes well. */
static CUresult chain_add(struct chain *chain, const struct operation *operation) {
        struct CUgraphNode_st *node = calloc(1, sizeof *node);

        if (!node)
                return CUDA_ERROR_OUT_OF_MEMORY;
        node->operation = *operation;
        if (chain->last)
                chain->last->next = node;
        else
                chain->first = node;
        chain->last = node;
        return CUDA_SUCCESS;
}

static void chain_clear(struct chain *chain) {
        while (chain->first) {
                struct CUgraphNode_st *node = chain->first;

                chain->first = node->next;
                free(node->operation.argument);
                free(node);
        }
        chain->last = NULL;
}

static CUresult operation_copy(const struct operation *from, struct operation *to) {
        *to = *from;
        to->argument = malloc(from->argument_bytes);
        if (!to->argument)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(to->argument, from->argument, from->argument_bytes);
        return CUDA_SUCCESS;
}

static CUresult chain_copy(const struct chain *from, struct chain *to) {
        CUresult result = CUDA_SUCCESS;

        for (const struct CUgraphNode_st *node = from->first; node && result == CUDA_SUCCESS;
             node = node->next) {
                struct operation operation;

                result = operation_copy(&node->operation, &operation);
                if (result != CUDA_SUCCESS)
                        break;
                result = chain_add(to, &operation);
                if (result != CUDA_SUCCESS)
                        free(operation.argument);
        }
        if (result != CUDA_SUCCESS)
                chain_clear(to);
        return result;
}

static bool operations_agree(const struct operation *a, const struct operation *b) {
        return a->kind == b->kind && a->kernel == b->kernel &&
               (a->kind != OPERATION_PRODUCT || a->bytes == b->bytes);
}

/* The same kernels, and products of the same form, in the same order. */
static bool chains_agree(const struct chain *a, const struct chain *b) {
        const struct CUgraphNode_st *left = a->first, *right = b->first;

        while (left && right && operations_agree(&left->operation, &right->operation)) {
                left = left->next;
                right = right->next;
        }
        return !left && !right;
}

/* ---- Graphs ---------------------------------------------------------------------------------- */

CUgraph fake_graph_new(void) {
        CUgraph graph = calloc(1, sizeof *graph);

        fake.graphs += graph != NULL;
        return graph;
}

void fake_graph_free(CUgraph graph) {
        fake.graphs--;
        chain_clear(&graph->chain);
        free(graph);
}

CUresult fake_graph_catch(CUgraph graph, const struct operation *operation) {
        if (operation->kind != OPERATION_KERNEL && operation->kind != OPERATION_PRODUCT)
                return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        return chain_add(&graph->chain, operation);
}

static CUresult graph_create(CUgraph *ret_graph, unsigned flags) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuGraphCreate");
        if (result == CUDA_SUCCESS && flags != 0)
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                *ret_graph = fake_graph_new();
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult graph_destroy(CUgraph graph) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuGraphDestroy");
        fake_graph_free(graph);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* The end of the chain is all that a node may depend on. */
static bool is_next(const struct chain *chain, const CUgraphNode *dependencies, size_t count) {
        return chain->last ? count == 1 && dependencies[0] == chain->last : count == 0;
}

static CUresult graph_add_kernel(CUgraphNode *ret_node, CUgraph graph,
                                 const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *params) {
        struct operation operation = { 0 };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuGraphAddKernelNode");
        if (result == CUDA_SUCCESS && !is_next(&graph->chain, dependencies, count))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                result = kernel_operation(params, &operation);
        if (result == CUDA_SUCCESS) {
                result = chain_add(&graph->chain, &operation);
                if (result != CUDA_SUCCESS)
                        free(operation.argument);
        }
        if (result == CUDA_SUCCESS)
                *ret_node = graph->chain.last;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult graph_add_child(CUgraphNode *ret_node, CUgraph graph,
                                const CUgraphNode *dependencies, size_t count, CUgraph child) {
        struct chain chain = { 0 };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuGraphAddChildGraphNode");
        if (result == CUDA_SUCCESS &&
            (!is_next(&graph->chain, dependencies, count) || !child->chain.first))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                result = chain_copy(&child->chain, &chain);
        if (result == CUDA_SUCCESS) {
                if (graph->chain.last)
                        graph->chain.last->next = chain.first;
                else
                        graph->chain.first = chain.first;
                graph->chain.last = *ret_node = chain.last;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult graph_instantiate(CUgraphExec *ret_exec, CUgraph graph, unsigned long long flags) {
        CUgraphExec exec = calloc(1, sizeof *exec);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuGraphInstantiate");
        if (result == CUDA_SUCCESS && (!exec || flags != 0))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                result = chain_copy(&graph->chain, &exec->chain);
        if (result == CUDA_SUCCESS) {
                exec->context = fake_current;
                fake.execs++;
                *ret_exec = exec;
        } else {
                free(exec);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult exec_update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
        struct chain chain = { 0 };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuGraphExecUpdate");
        if (result == CUDA_SUCCESS && !chains_agree(&exec->chain, &graph->chain)) {
                info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
                result = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
        }
        if (result == CUDA_SUCCESS)
                result = chain_copy(&graph->chain, &chain);
        if (result == CUDA_SUCCESS) {
                chain_clear(&exec->chain);
                exec->chain = chain;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult exec_destroy(CUgraphExec exec) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuGraphExecDestroy");
        fake_expect_current(exec->context, "cuGraphExecDestroy");
        fake.execs--;
        chain_clear(&exec->chain);
        free(exec);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult graph_launch(CUgraphExec exec, CUstream stream) {
        struct chain chain = { 0 };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuGraphLaunch");
        if (result == CUDA_SUCCESS && exec->context != fake_current)
                result = CUDA_ERROR_INVALID_CONTEXT;
        if (result == CUDA_SUCCESS)
                result = chain_copy(&exec->chain, &chain);
        for (struct CUgraphNode_st *node = chain.first; node && result == CUDA_SUCCESS;
             node = node->next) {
                result = fake_enqueue(stream, &node->operation);
                if (result == CUDA_SUCCESS)
                        node->operation.argument = NULL; /* the stream's now */
        }
        chain_clear(&chain);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

void fake_fill_graphs(struct cuda_syms *syms) {
        syms->cuLaunchKernel = launch_kernel;
        syms->cuGraphCreate = graph_create;
        syms->cuGraphDestroy = graph_destroy;
        syms->cuGraphAddKernelNode = graph_add_kernel;
        syms->cuGraphAddChildGraphNode = graph_add_child;
        syms->cuGraphInstantiate = graph_instantiate;
        syms->cuGraphExecUpdate = exec_update;
        syms->cuGraphExecDestroy = exec_destroy;
        syms->cuGraphLaunch = graph_launch;
}
