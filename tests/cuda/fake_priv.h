/* Shared by fake_cuda.c and fake_stream.c. Everything is guarded by fake.lock but what is
 * executed. */
#pragma once

#include <pthread.h>

#include "tests/cuda/fake_cuda.h"

struct CUctx_st {
        uint32_t gpu;
        uint32_t refs;
        uint32_t peers; /* bit n: it may touch memory of GPU n */
        CUresult lost;
        uint64_t executed, lose_at; /* operations */
        CUresult lose_with;
};

typedef enum operation_kind {
        OPERATION_COPY,
        OPERATION_SET,
        OPERATION_KERNEL,
        OPERATION_PRODUCT,
        OPERATION_HOST,
        OPERATION_VALUE,
        OPERATION_RECORD,
        OPERATION_WAIT,
} operation_kind;

struct operation {
        struct operation *next;
        operation_kind kind;
        void *to;
        const void *from;
        uint64_t bytes; /* ticket of RECORD and WAIT, number of VALUE, form of PRODUCT */
        bool is_broken; /* a copy that changes what it copies */
        bool is_to_peer; /* a copy to another GPU */
        uint32_t blocks, threads;
        const void *kernel;
        uint64_t argument_bytes;
        CUhostFn fn;
        CUevent event;
        uint8_t *argument;
};

struct fake_state {
        pthread_mutex_t lock;
        pthread_cond_t changed;
        uint32_t random; /* 0 = no pauses */
        uint64_t calls, fail_at;
        CUresult fail_with;
        const char *fail_name;
        CUresult fail_name_with;
        uint32_t violations;
        uint64_t memory_bytes;
        int version;
        bool writes_late;
        bool no_read_only;
        uint64_t locked_copied;
        bool holds_peers; /* copies to other GPUs wait */
        uint64_t executed; /* operations, of all streams */
        bool has_no_way;   /* the library of products knows none */
        uint32_t objects;  /* of that library */
        uint64_t products; /* that it was given */
        bool broken[FAKE_GPUS][FAKE_GPUS];
        struct CUctx_st contexts[FAKE_GPUS];
        uint64_t used[FAKE_GPUS];
        uint32_t streams, events, modules, graphs, execs;
        uint32_t pieces; /* of virtual memory */
        uint32_t executing[FAKE_GPUS]; /* operations that are being executed */
};

extern struct fake_state fake;
/* The context of this thread, and whether it is in a host function. */
extern _Thread_local CUcontext fake_current;
extern _Thread_local bool fake_is_in_host_function;
/* The stream that this thread captures, or NULL. Meanwhile it may call nothing that waits, takes
 * memory, or asks; what does counts as a violation and spoils the capture. */
extern _Thread_local CUstream fake_capturing;
void fake_spoil_capture(void);

/* At the start of an entry point that can fail: counts the call and says how it fails, if it does.
 * Lock held. */
CUresult fake_enter(const char *name);
/* The same where a context is needed that lives. */
CUresult fake_enter_context(const char *name);
/* What belongs to a context is undone in it. Lock held. */
void fake_expect_current(CUcontext owner, const char *name);
/* An operation at the end of the stream. Lock held. */
CUresult fake_enqueue(CUstream stream, const struct operation *model);
bool fake_is_pinned(const void *address, uint64_t bytes);
bool fake_is_device(uint64_t address, uint64_t bytes, uint32_t gpu);
/* Is it virtual memory of that GPU that may be touched? */
bool fake_is_mapped(uint64_t address, uint64_t bytes, uint32_t gpu);
/* Writes what is mapped behind ret_ranges[count - 1]; returns how many there are then. */
unsigned fake_mapped(struct checks_range *ret_ranges, unsigned count, unsigned room);
/* Ranges of addresses that were reserved and not given back; words about each go to stderr. */
uint32_t fake_ranges_left(void);

/* Waits for operations of lost contexts that are in the middle of it: freeing memory waits for the
 * GPU. Lock held. */
void fake_wait_executing(void);

/* A graph that catches what is given to a stream; NULL without memory. Lock held, as below. */
CUgraph fake_graph_new(void);
void fake_graph_free(CUgraph graph);
/* Takes the operation over. Only kernels and products can be caught. */
CUresult fake_graph_catch(CUgraph graph, const struct operation *operation);
/* What OPERATION_PRODUCT does. */
bool fake_multiply(const void *argument);
/* fake_blas.c's table, which becomes the library's. */
void fake_fill_blas(void);
/* fake_stream.c's part of the table. */
void fake_fill_streams(struct cuda_syms *syms);
/* fake_memory.c's. */
void fake_fill_memory(struct cuda_syms *syms);
/* fake_graph.c's. */
void fake_fill_graphs(struct cuda_syms *syms);
