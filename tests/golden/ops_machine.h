/*
 * Runs one recorded case on a device, through the device interface alone: graph, validation,
 * buffers, program, queue.
 */
#pragma once

#include "core/device.h"
#include "tests/golden/ops_file.h"

/* Where a tensor lies beside memory that nobody may touch: a kernel that reads or writes there ends
 * the process with SIGSEGV. Only for devices that read host memory. */
typedef enum ops_guard { OPS_GUARD_NONE, OPS_GUARD_START, OPS_GUARD_END } ops_guard;

struct ops_machine {
        ops_guard guard;
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
};

struct ops_run {
        struct ops_machine *machine;
        const struct ops_family *family;
        const struct ops_case *item;
        const char *note; /* what else tells this run from others, for words about it */
        struct hr_graph *graph;
        struct hr_buffer **buffers; /* per tensor; NULL for views and empty ones */
        uint64_t *leads;            /* per tensor: bytes of its buffer before it */
        struct hr_operand *operands; /* OPS_SOURCES_MAX per step */
        struct hr_step *steps;
        uint32_t *step_tensors; /* tensor computed by each step */
        struct hr_steps list;
        struct hr_program *program;
        struct hr_outcome outcome;
};

HR_NODISCARD hr_status ops_machine_init(struct ops_machine *machine, struct hr_device *device,
                                        ops_guard guard, struct hr_diag *diag);
void ops_machine_deinit(struct ops_machine *machine);

/* Builds, validates and binds a case; leaves are uploaded. HR_E_UNSUPPORTED with words when an op
 * has no inference or the device does not take a node. On failure ops_run_deinit() still
 * applies. */
HR_NODISCARD hr_status ops_run_init(struct ops_run *run, struct ops_machine *machine,
                                    const struct ops_family *family, const struct ops_case *item,
                                    struct hr_diag *diag);
/* The case's graph as it is recorded, not yet validated. HR_E_UNSUPPORTED as above. */
HR_NODISCARD hr_status ops_graph_new(const struct ops_case *item, struct hr_diag *diag,
                                     struct hr_graph **ret_graph);
/* As ops_run_init() for a validated graph with the case's number of leaves and nodes, of which it
 * keeps a reference; leaves hold the pattern of the bands. */
HR_NODISCARD hr_status ops_run_init_graph(struct ops_run *run, struct ops_machine *machine,
                                          const struct ops_family *family,
                                          const struct ops_case *item, const char *note,
                                          struct hr_graph *graph, struct hr_diag *diag);
void ops_run_deinit(struct ops_run *run);
HR_NODISCARD hr_status ops_run_upload_leaves(struct ops_run *run, struct hr_diag *diag);
/* Computes and waits. */
HR_NODISCARD hr_status ops_run_compute(struct ops_run *run, uint32_t first, uint32_t count,
                                       struct hr_diag *diag);
/* HR_E_INTERNAL where anything was written next to a tensor's memory, which *ret_tensor then is. */
HR_NODISCARD hr_status ops_run_check_bands(struct ops_run *run, struct hr_diag *diag,
                                           uint32_t *ret_tensor);
/* For the test of the bands and guards: touches the byte after tensor k's memory (before it where
 * it is guarded there), as a faulty kernel would. */
void ops_run_stray(struct ops_run *run, uint32_t k, bool is_written);
/* Which tensor of a guarded case is nearest to an address, HR_TENSOR_NONE if none. May be called by
 * a signal's handler. */
uint32_t ops_run_nearest(const struct ops_run *run, const void *address);
/* Overwrites a tensor that owns its memory. */
HR_NODISCARD hr_status ops_run_upload(struct ops_run *run, uint32_t k, const uint8_t *content,
                                      struct hr_diag *diag);
/* The tensor's elements in logical order, as the files store them; caller frees. NULL: no memory or
 * a failure. An empty tensor gives a pointer to nothing. */
uint8_t *ops_run_download(struct ops_run *run, uint32_t k);
