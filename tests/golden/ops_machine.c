/* See ops_machine.h. Every tensor that owns memory has a buffer of its own with a band before and
 * after it that must keep its pattern; where any access past an end is seen anyhow, under a
 * sanitizer or by who looks on (OPS_WITHOUT_BANDS), of exactly its size. Guarded, it lies at one
 * end of whole pages between two without access, and what is left of them is its band. */
#include "tests/golden/ops_machine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PATIENCE_NS (UINT64_C(60) * 1000000000)

#if defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif
#if defined(HAS_SANITIZER) || defined(OPS_WITHOUT_BANDS)
#define BAND 0U
#else
#define BAND 64U /* bytes; what tensors are aligned to */
#endif
#define PATTERN 0xb5
#define PAGE_BYTES UINT64_C(4096)
/* What kernels may rely on of an address: blocks begin at even ones, other elements at their size.
 * */
#define BLOCK_ALIGN 2U

/* Of a tensor that owns memory. */
static uint8_t *content_of(const struct ops_run *run, uint32_t k) {
        return (uint8_t *) run->buffers[k]->base + run->leads[k];
}

static uint64_t content_bytes(const struct ops_run *run, uint32_t k) {
        return hr_tensor_bytes(&run->graph->tensors[k]);
}

hr_status ops_machine_init(struct ops_machine *machine, struct hr_device *device, ops_guard guard,
                           struct hr_diag *diag) {
        *machine = (struct ops_machine) { .device = device, .guard = guard };
        HR_TRY(hr_queue_new(device, diag, &machine->queue));
        return hr_event_new(device, diag, &machine->event);
}

void ops_machine_deinit(struct ops_machine *machine) {
        machine->event = hr_event_free(machine->event);
        machine->queue = hr_queue_free(machine->queue);
        machine->device = hr_device_unref(machine->device);
}

static hr_status machine_finish(struct ops_machine *machine, struct hr_outcome *outcome,
                                struct hr_diag *diag) {
        HR_TRY(hr_queue_record(machine->queue, machine->event, diag));
        HR_TRY(hr_event_synchronize(machine->event, PATIENCE_NS, diag));
        if (hr_outcome_failed(outcome))
                return hr_fail(diag, outcome->diag.status, "%s", outcome->diag.words);
        return HR_OK;
}

/* ---- Graph ----------------------------------------------------------------------------------- */

/* The files let a cast name itself as its target; here it has no target. */
static uint32_t source_count(const struct ops_tensor *tensor, uint32_t k) {
        uint32_t count = tensor->source_count;

        while (count > 0 && (tensor->sources[count - 1] < 0 ||
                             tensor->sources[count - 1] == (int32_t) k))
                count--;
        return count;
}

static void graph_fill(struct hr_graph *graph, const struct ops_case *item) {
        uint32_t next = 0;

        for (uint32_t k = 0; k < item->tensor_count; k++) {
                const struct ops_tensor *from = &item->tensors[k];
                struct hr_tensor *to = &graph->tensors[k];

                to->op = (uint32_t) from->op;
                to->type = from->type;
                to->leaf_kind = k < item->leaf_count ? HR_LEAF_INPUT : HR_LEAF_NOT;
                to->source_first = next;
                to->source_count = source_count(from, k);
                for (uint32_t i = 0; i < to->source_count; i++)
                        graph->sources[next++] = from->sources[i] < 0
                                                         ? HR_TENSOR_NONE
                                                         : (uint32_t) from->sources[i];
                if (from->view_base >= 0) {
                        to->view_base = (uint32_t) from->view_base;
                        to->view_offset = from->view_offset;
                }
                memcpy(to->ne, from->ne, sizeof to->ne);
                memcpy(to->nb, from->nb, sizeof to->nb);
                memcpy(to->params, from->params, sizeof to->params);
        }
}

hr_status ops_graph_new(const struct ops_case *item, struct hr_diag *diag,
                        struct hr_graph **ret_graph) {
        struct hr_graph_sizes sizes = { .leaf_count = item->leaf_count,
                                        .node_count = item->tensor_count - item->leaf_count };

        for (uint32_t k = 0; k < item->tensor_count; k++) {
                sizes.source_count += source_count(&item->tensors[k], k);
                if (item->tensors[k].op < 0)
                        return hr_fail(diag, HR_E_UNSUPPORTED, "op %s is not known",
                                       item->tensors[k].op_name);
        }
        HR_TRY(hr_graph_new(&sizes, diag, ret_graph));
        graph_fill(*ret_graph, item);
        return HR_OK;
}

static hr_status run_graph(struct ops_run *run, struct hr_diag *diag) {
        const struct hr_graph_limits limits = { 0 };

        HR_TRY(ops_graph_new(run->item, diag, &run->graph));
        return hr_graph_validate(run->graph, &limits, diag);
}

static hr_status run_is_supported(const struct ops_run *run, struct hr_diag *diag) {
        for (uint32_t k = run->item->leaf_count; k < run->item->tensor_count; k++)
                if (!hr_device_supports_op(run->machine->device, run->graph, k))
                        return hr_fail(diag, HR_E_UNSUPPORTED, "%s does not take this %s",
                                       run->machine->device->props.name,
                                       run->item->tensors[k].op_name);
        return HR_OK;
}

/* ---- Memory and steps ------------------------------------------------------------------------ */

static uint32_t root_of(const struct hr_graph *graph, uint32_t k) {
        uint32_t base = graph->tensors[k].view_base;

        return base == HR_TENSOR_NONE ? k : base;
}

static void operand_bind(const struct ops_run *run, uint32_t k, struct hr_operand *operand) {
        const struct hr_tensor *tensor = &run->graph->tensors[k];
        uint32_t root = root_of(run->graph, k);

        *operand = hr_operand_of_tensor(tensor, k);
        if (run->buffers[root] && !hr_tensor_is_empty(tensor)) {
                operand->data = content_of(run, root) + tensor->view_offset;
                operand->room = content_bytes(run, root) - tensor->view_offset;
        }
}

static void step_bind(struct ops_run *run, uint32_t k) {
        const struct hr_tensor *tensor = &run->graph->tensors[k];
        struct hr_operand *sources = &run->operands[(size_t) run->list.count * OPS_SOURCES_MAX];
        struct hr_step *step = &run->steps[run->list.count];

        *step = (struct hr_step) { .op = tensor->op,
                                   .node = k - run->graph->leaf_count,
                                   .params = tensor->params,
                                   .source_count = tensor->source_count,
                                   .sources = sources };
        operand_bind(run, k, &step->result);
        for (uint32_t i = 0; i < tensor->source_count; i++) {
                uint32_t source = hr_graph_source(run->graph, tensor, i);

                if (source == HR_TENSOR_NONE)
                        sources[i] = (struct hr_operand) { .type = HR_OPERAND_ABSENT };
                else
                        operand_bind(run, source, &sources[i]);
        }
        run->step_tensors[run->list.count++] = k;
}

struct pages {
        void *base;
        size_t bytes;
};

static void pages_unmap(void *arg) {
        struct pages *pages = arg;

        (void) munmap(pages->base, pages->bytes);
        free(pages);
}

/* Whole pages for tensor k between two that nobody may touch. */
static hr_status guarded_new(struct ops_run *run, uint32_t k, struct hr_diag *diag) {
        const struct hr_tensor *tensor = &run->graph->tensors[k];
        const struct hr_type_info *info = hr_type_info(tensor->type);
        uint64_t align = info->is_block ? BLOCK_ALIGN : info->block_bytes;
        uint64_t bytes = hr_tensor_bytes(tensor), inner;
        struct pages *pages = calloc(1, sizeof *pages);
        uint8_t *base;

        inner = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
        if (!pages)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
        pages->bytes = (size_t) (inner + 2 * PAGE_BYTES);
        pages->base = mmap(NULL, pages->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        base = (uint8_t *) pages->base + PAGE_BYTES;
        if (pages->base == MAP_FAILED || mprotect(base, (size_t) inner,
          PROT_READ | PROT_WRITE) != 0) {
                free(pages);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
        }
        if (run->machine->guard == OPS_GUARD_END)
                run->leads[k] = (inner - bytes) / align * align;
        return hr_buffer_wrap(run->machine->device, base, inner, HR_USAGE_COMPUTE, pages_unmap,
          pages,
                              diag, &run->buffers[k]);
}

static hr_status buffer_for(struct ops_run *run, uint32_t k, struct hr_diag *diag) {
        uint64_t bytes = hr_tensor_bytes(&run->graph->tensors[k]);

        if (run->machine->guard != OPS_GUARD_NONE)
                return guarded_new(run, k, diag);
        run->leads[k] = BAND;
        return hr_buffer_new(run->machine->device, bytes + (uint64_t) 2 * BAND, HR_USAGE_COMPUTE,
          diag,
                             &run->buffers[k]);
}

static hr_status run_bind(struct ops_run *run, struct hr_diag *diag) {
        uint32_t count = run->item->tensor_count;

        run->buffers = calloc(count + (size_t) 1, sizeof(struct hr_buffer *));
        run->leads = calloc(count + (size_t) 1, sizeof *run->leads);
        run->steps = calloc(count + (size_t) 1, sizeof *run->steps);
        run->operands = calloc((count + (size_t) 1) * OPS_SOURCES_MAX, sizeof *run->operands);
        run->step_tensors = calloc(count + (size_t) 1, sizeof *run->step_tensors);
        if (!run->buffers || !run->leads || !run->steps || !run->operands || !run->step_tensors)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
        for (uint32_t k = 0; k < count; k++)
                if (root_of(run->graph, k) == k && !hr_tensor_is_empty(&run->graph->tensors[k]))
                        HR_TRY(buffer_for(run, k, diag));
        for (uint32_t k = run->item->leaf_count; k < count; k++)
                if (!hr_op_is_view(run->graph->tensors[k].op) &&
                    !hr_tensor_is_empty(&run->graph->tensors[k]))
                        step_bind(run, k);
        run->list.steps = run->steps;
        return hr_program_new(run->machine->device, &run->list, diag, &run->program);
}

/* ---- Bands ----------------------------------------------------------------------------------- */

static hr_status buffer_read(struct ops_run *run, const struct hr_buffer *buffer, uint8_t *bytes,
                             struct hr_diag *diag) {
        HR_TRY(hr_queue_read(run->machine->queue, buffer->base, bytes, buffer->bytes, &run->outcome,
                             diag));
        return machine_finish(run->machine, &run->outcome, diag);
}

static hr_status bands_fill(struct ops_run *run, struct hr_diag *diag) {
        for (uint32_t k = 0; k < run->item->tensor_count; k++) {
                struct hr_buffer *buffer = run->buffers[k];
                uint8_t *bytes = buffer ? malloc((size_t) buffer->bytes) : NULL;
                hr_status status;

                if (!buffer)
                        continue;
                if (!bytes)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
                memset(bytes, PATTERN, (size_t) buffer->bytes);
                status = hr_queue_write(run->machine->queue, buffer->base, bytes, buffer->bytes,
                                        &run->outcome, diag);
                if (status == HR_OK)
                        status = machine_finish(run->machine, &run->outcome, diag);
                free(bytes);
                HR_TRY(status);
        }
        return HR_OK;
}

hr_status ops_run_check_bands(struct ops_run *run, struct hr_diag *diag, uint32_t *ret_tensor) {
        for (uint32_t k = 0; k < run->item->tensor_count; k++) {
                struct hr_buffer *buffer = run->buffers[k];
                uint8_t *bytes = buffer ? malloc((size_t) buffer->bytes) : NULL;
                bool is_kept = true;
                hr_status status;

                if (!buffer)
                        continue;
                if (!bytes)
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory");
                status = buffer_read(run, buffer, bytes, diag);
                for (uint64_t i = 0; i < run->leads[k] && status == HR_OK; i++)
                        is_kept &= bytes[i] == PATTERN;
                for (uint64_t i = run->leads[k] + content_bytes(run, k);
                     i < buffer->bytes && status == HR_OK; i++)
                        is_kept &= bytes[i] == PATTERN;
                free(bytes);
                *ret_tensor = k;
                HR_TRY(status);
                if (!is_kept)
                        return hr_fail(diag, HR_E_INTERNAL, "bytes next to it were written");
        }
        return HR_OK;
}

void ops_run_stray(struct ops_run *run, uint32_t k, bool is_written) {
        uint32_t root = root_of(run->graph, k);
        volatile uint8_t *at;

        if (!run->buffers[root])
                return;
        at = content_of(run, root) +
             (run->machine->guard == OPS_GUARD_START ? -1 : (int64_t) content_bytes(run, root));
        if (is_written)
                *at = 0;
        else
                (void) *at;
}

uint32_t ops_run_nearest(const struct ops_run *run, const void *address) {
        uint64_t wanted = (uintptr_t) address;

        for (uint32_t k = 0; run->buffers && k < run->item->tensor_count; k++) {
                uint64_t base = run->buffers[k] ? (uintptr_t) run->buffers[k]->base : 0;

                if (base && wanted >= base - PAGE_BYTES &&
                    wanted < base + run->buffers[k]->bytes + PAGE_BYTES)
                        return k;
        }
        return HR_TENSOR_NONE;
}

static hr_status run_start(struct ops_run *run, struct hr_diag *diag) {
        HR_TRY(run_is_supported(run, diag));
        HR_TRY(run_bind(run, diag));
        return bands_fill(run, diag);
}

hr_status ops_run_init(struct ops_run *run, struct ops_machine *machine,
                       const struct ops_family *family, const struct ops_case *item,
                       struct hr_diag *diag) {
        *run = (struct ops_run) { .machine = machine, .family = family, .item = item, .note = "" };
        HR_TRY(run_graph(run, diag));
        HR_TRY(run_start(run, diag));
        return ops_run_upload_leaves(run, diag);
}

hr_status ops_run_init_graph(struct ops_run *run, struct ops_machine *machine,
                             const struct ops_family *family, const struct ops_case *item,
                             const char *note, struct hr_graph *graph, struct hr_diag *diag) {
        *run = (struct ops_run) { .machine = machine, .family = family, .item = item,
                                  .note = note, .graph = hr_graph_ref(graph) };
        return run_start(run, diag);
}

void ops_run_deinit(struct ops_run *run) {
        run->program = hr_program_free(run->program);
        if (run->buffers)
                for (uint32_t k = 0; k < run->item->tensor_count; k++)
                        (void) hr_buffer_unref(run->buffers[k]);
        free(run->buffers);
        free(run->leads);
        free(run->steps);
        free(run->operands);
        free(run->step_tensors);
        run->graph = hr_graph_unref(run->graph);
}

/* ---- Data ------------------------------------------------------------------------------------ */

hr_status ops_run_upload(struct ops_run *run, uint32_t k, const uint8_t *content,
                         struct hr_diag *diag) {
        HR_TRY(hr_queue_write(run->machine->queue, content_of(run, k), content,
                              content_bytes(run, k), &run->outcome, diag));
        return machine_finish(run->machine, &run->outcome, diag);
}

hr_status ops_run_upload_leaves(struct ops_run *run, struct hr_diag *diag) {
        for (uint32_t k = 0; k < run->item->leaf_count; k++) {
                struct ops_bytes content = ops_family_tensor(run->family, run->item, k, "");

                if (!run->buffers[k])
                        continue;
                if (content.bytes != content_bytes(run, k))
                        return hr_fail(diag, HR_E_DATA_LOSS, "leaf %u: the file lacks its bytes",
                                       k);
                HR_TRY(ops_run_upload(run, k, content.data, diag));
        }
        return HR_OK;
}

hr_status ops_run_compute(struct ops_run *run, uint32_t first, uint32_t count,
                          struct hr_diag *diag) {
        HR_TRY(hr_queue_compute(run->machine->queue, run->program, first, count, &run->outcome,
                                diag));
        return machine_finish(run->machine, &run->outcome, diag);
}

/* Brings strided elements into logical order. */
static void pack(const struct hr_tensor *tensor, const uint8_t *from, uint8_t *to) {
        const struct hr_type_info *info = hr_type_info(tensor->type);
        int64_t units = tensor->ne[0] / info->block_elements;

        for (int64_t i3 = 0; i3 < tensor->ne[3]; i3++)
                for (int64_t i2 = 0; i2 < tensor->ne[2]; i2++)
                        for (int64_t i1 = 0; i1 < tensor->ne[1]; i1++)
                                for (int64_t i0 = 0; i0 < units; i0++) {
                                        memcpy(to,
                                               from + (uint64_t) i0 * tensor->nb[0] +
                                                       (uint64_t) i1 * tensor->nb[1] +
                                                       (uint64_t) i2 * tensor->nb[2] +
                                                       (uint64_t) i3 * tensor->nb[3],
                                               info->block_bytes);
                                        to += info->block_bytes;
                                }
}

uint8_t *ops_run_download(struct ops_run *run, uint32_t k) {
        const struct hr_tensor *tensor = &run->graph->tensors[k];
        uint32_t root = root_of(run->graph, k);
        struct hr_buffer *buffer = run->buffers[root];
        uint64_t row_bytes = 0;
        uint8_t *whole, *packed;

        if (!hr_type_row_bytes(tensor->type, tensor->ne[0], &row_bytes))
                return NULL;
        packed = calloc(1, (size_t) (row_bytes * (uint64_t) hr_tensor_rows(tensor)) + 1);
        if (!packed || !buffer || hr_tensor_is_empty(tensor))
                return packed;
        whole = malloc((size_t) buffer->bytes);
        if (whole && buffer_read(run, buffer, whole, NULL) == HR_OK) {
                pack(tensor, whole + run->leads[root] + tensor->view_offset, packed);
        } else {
                free(packed);
                packed = NULL;
        }
        free(whole);
        return packed;
}
