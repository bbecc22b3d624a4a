/*
 * ggml's scheduler on a graph of `bench_plan --print`, with backends that compute nothing.
 *
 *   bench_plan --print LAYERS GPUS | ggml_plan_peer COPIES      COPIES: 1, or else ggml's own
 * number
 *
 * Prints one line of JSON: ns a node for splits and allocation of a graph that has just been built
 * (the building is not counted), ns a split for the dispatch of an allocated graph. Medians of
 * processor time. It is compiled by ./bench against a ggml that the user names, and not otherwise.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ggml-alloc.h>
#include <ggml-backend-impl.h>
#include <ggml-backend.h>
#include <ggml.h>

enum { GPUS_MOST = 16, REPETITIONS = 41, BURST = 256, SOURCES = 10 };

struct device {
        struct ggml_backend_device device;
        struct ggml_backend_buffer_type kind;
        struct ggml_backend backend;
        ggml_backend_buffer_t weights, states;
        char name[16];
        int is_cpu;
};

/* A tensor as it is before anybody plans. */
struct fresh {
        struct ggml_tensor *source[SOURCES];
        int home, node, state;
};

static struct device devices[GPUS_MOST + 1];
static int gpu_count;

static const char *device_name(ggml_backend_dev_t device) {
        return ((struct device *) device->context)->name;
}

static void device_memory(ggml_backend_dev_t device, size_t *free_bytes, size_t *total) {
        *free_bytes = *total = (size_t) 1 << 46;
}

static enum ggml_backend_dev_type device_type(ggml_backend_dev_t device) {
        return ((struct device *) device->context)->is_cpu ? GGML_BACKEND_DEVICE_TYPE_CPU
                                                           : GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void device_props(ggml_backend_dev_t device, struct ggml_backend_dev_props *props) {
        memset(props, 0, sizeof *props);
        props->name = props->description = device_name(device);
        props->type = device_type(device);
        props->caps.async = props->caps.events = true;
}

static ggml_backend_buffer_type_t device_kind(ggml_backend_dev_t device) {
        return &((struct device *) device->context)->kind;
}

static bool supports_op(ggml_backend_dev_t device, const struct ggml_tensor *op) {
        return true;
}

static bool supports_kind(ggml_backend_dev_t device, ggml_backend_buffer_type_t kind) {
        return kind == device_kind(device);
}

static ggml_backend_event_t event_new(ggml_backend_dev_t device) {
        ggml_backend_event_t event = calloc(1, sizeof *event);

        event->device = device;
        return event;
}

static void event_free(ggml_backend_dev_t device, ggml_backend_event_t event) {
        free(event);
}

static void event_synchronize(ggml_backend_dev_t device, ggml_backend_event_t event) {
}

static const char *kind_name(ggml_backend_buffer_type_t kind) {
        return ((struct device *) kind->context)->name;
}

static size_t kind_alignment(ggml_backend_buffer_type_t kind) {
        return 128;
}

static bool kind_is_host(ggml_backend_buffer_type_t kind) {
        return ((struct device *) kind->context)->is_cpu;
}

static void *buffer_base(ggml_backend_buffer_t buffer) {
        return (void *) ((size_t) 1 << 40);
}

static void set_tensor(ggml_backend_buffer_t buffer, struct ggml_tensor *tensor, const void *data,
                       size_t offset, size_t size) {
}

static void get_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *tensor, void *data,
                       size_t offset, size_t size) {
}

static bool copy_tensor(ggml_backend_buffer_t buffer, const struct ggml_tensor *from,
                        struct ggml_tensor *to) {
        return true;
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
}

static ggml_backend_buffer_t buffer_new(ggml_backend_buffer_type_t kind, size_t size) {
        static const struct ggml_backend_buffer_i interface = {
                .get_base = buffer_base,
                .set_tensor = set_tensor,
                .get_tensor = get_tensor,
                .cpy_tensor = copy_tensor,
                .clear = clear,
        };

        return ggml_backend_buffer_init(kind, interface, NULL, size);
}

static const char *backend_name(ggml_backend_t backend) {
        return ((struct device *) backend->context)->name;
}

static void backend_free(ggml_backend_t backend) {
}

static void synchronize(ggml_backend_t backend) {
}

static bool copy_async(ggml_backend_t from_backend, ggml_backend_t to_backend,
                       const struct ggml_tensor *from, struct ggml_tensor *to) {
        return true;
}

static enum ggml_status compute(ggml_backend_t backend, struct ggml_cgraph *graph) {
        return GGML_STATUS_SUCCESS;
}

static void record_or_wait(ggml_backend_t backend, ggml_backend_event_t event) {
}

static void devices_init(void) {
        for (int d = 0; d <= gpu_count; ++d) {
                struct device *device = &devices[d];

                device->is_cpu = d == gpu_count;
                snprintf(device->name, sizeof device->name, "null%d", d);
                device->device.context = device->kind.context = device->backend.context = device;
                device->device.iface = (struct ggml_backend_device_i){
                        .get_name = device_name,
                        .get_description = device_name,
                        .get_memory = device_memory,
                        .get_type = device_type,
                        .get_props = device_props,
                        .get_buffer_type = device_kind,
                        .supports_op = supports_op,
                        .supports_buft = supports_kind,
                        .event_new = event_new,
                        .event_free = event_free,
                        .event_synchronize = event_synchronize,
                };
                device->kind.device = &device->device;
                device->kind.iface = (struct ggml_backend_buffer_type_i){
                        .get_name = kind_name,
                        .alloc_buffer = buffer_new,
                        .get_alignment = kind_alignment,
                        .is_host = kind_is_host,
                };
                device->backend.device = &device->device;
                device->backend.iface = (struct ggml_backend_i){
                        .get_name = backend_name,
                        .free = backend_free,
                        .cpy_tensor_async = copy_async,
                        .synchronize = synchronize,
                        .graph_compute = compute,
                        .event_record = record_or_wait,
                        .event_wait = record_or_wait,
                };
                device->weights = buffer_new(&device->kind, (size_t) 1 << 44);
                device->weights->usage = GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
                device->states = buffer_new(&device->kind, (size_t) 1 << 44);
        }
}

static int find_op(const char *name) {
        for (int op = 0; op < GGML_OP_COUNT; ++op) {
                if (strcmp(ggml_op_name((enum ggml_op) op), name) == 0)
                        return op;
        }
        fprintf(stderr, "no operator %s\n", name);
        exit(1);
}

static int find_type(const char *name) {
        for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
                const char *known = ggml_type_name((enum ggml_type) type);

                if (known && strcmp(known, name) == 0)
                        return type;
        }
        fprintf(stderr, "no type %s\n", name);
        exit(1);
}

static void read_tensor(struct ggml_context *context, struct ggml_tensor **tensors,
                        struct fresh *fresh, int id) {
        char op[64], type[64];
        long long ne[4];
        unsigned long long nb[4], view_offset;
        int view_base, flags, kind, home, sources, source;
        struct ggml_tensor *tensor;

        if (scanf(" t %63s %63s %lld %lld %lld %lld %llu %llu %llu %llu %d %llu %d %d %d %d", op,
                  type, &ne[0], &ne[1], &ne[2], &ne[3], &nb[0], &nb[1], &nb[2], &nb[3], &view_base,
                  &view_offset, &flags, &kind, &home, &sources) != 16 ||
            sources > SOURCES)
                exit(1);
        tensor = tensors[id] = ggml_new_tensor_4d(context, (enum ggml_type) find_type(type), ne[0],
                                                  ne[1], ne[2], ne[3]);
        tensor->op = (enum ggml_op) find_op(op);
        tensor->flags = flags | (kind == 3 ? GGML_TENSOR_FLAG_INPUT : 0);
        for (int d = 0; d < 4; ++d)
                tensor->nb[d] = nb[d];
        if (view_base >= 0) {
                tensor->view_src = tensors[view_base];
                tensor->view_offs = view_offset;
        }
        fresh[id].home = home;
        fresh[id].state = kind == 2;
        fresh[id].node = kind == 0;
        for (int s = 0; s < sources; ++s) {
                if (scanf("%d", &source) != 1)
                        exit(1);
                fresh[id].source[s] = source < 0 ? NULL : tensors[source];
        }
}

/* As if the graph had just been built. */
static void renew(struct ggml_tensor **tensors, const struct fresh *fresh, int count,
                  const int32_t *flags) {
        for (int i = 0; i < count; ++i) {
                const struct device *home = fresh[i].home < 0 ? NULL : &devices[fresh[i].home];

                memcpy(tensors[i]->src, fresh[i].source, sizeof fresh[i].source);
                tensors[i]->flags = flags[i];
                tensors[i]->buffer = !home ? NULL : fresh[i].state ? home->states : home->weights;
                tensors[i]->data = home ? (void *) ((size_t) 1 << 40) : NULL;
                /* A window on memory that is there is there as well. */
                if (tensors[i]->view_src && tensors[i]->view_src->buffer) {
                        tensors[i]->buffer = tensors[i]->view_src->buffer;
                        tensors[i]->data = tensors[i]->view_src->data;
                }
        }
}

static double cpu_ns(void) {
        struct timespec now;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (double) now.tv_sec * 1e9 + (double) now.tv_nsec;
}

static int by_value(const void *a, const void *b) {
        double x = *(const double *) a, y = *(const double *) b;

        return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
        int count, node_count = 0;
        double plan[REPETITIONS], run[REPETITIONS];
        ggml_backend_t backends[GPUS_MOST + 1];
        ggml_backend_buffer_type_t kinds[GPUS_MOST + 1];
        ggml_backend_sched_t scheduler;
        struct ggml_context *context;
        struct ggml_tensor **tensors;
        struct ggml_cgraph *graph;
        struct fresh *fresh;
        int32_t *flags;

        if (argc != 2 || scanf("graph %d %d", &count, &gpu_count) != 2 || gpu_count > GPUS_MOST)
                return 2;
        devices_init();
        context = ggml_init((struct ggml_init_params){
                .mem_size = (size_t) count * (ggml_tensor_overhead() + 64) +
                            ggml_graph_overhead_custom((size_t) count, false) + 4096,
                .no_alloc = true});
        tensors = calloc((size_t) count, sizeof *tensors);
        fresh = calloc((size_t) count, sizeof *fresh);
        flags = calloc((size_t) count, sizeof *flags);
        if (!context || !tensors || !fresh || !flags)
                return 1;
        for (int i = 0; i < count; ++i) {
                read_tensor(context, tensors, fresh, i);
                flags[i] = tensors[i]->flags;
                node_count += fresh[i].node;
        }
        for (int d = 0; d <= gpu_count; ++d) {
                backends[d] = &devices[d].backend;
                kinds[d] = &devices[d].kind;
        }
        renew(tensors, fresh, count, flags);
        graph = ggml_new_graph_custom(context, (size_t) count, false);
        for (int i = 0; i < count; ++i) {
                if (fresh[i].node)
                        ggml_build_forward_expand(graph, tensors[i]);
        }
        for (int i = 0; i < count; ++i)
                flags[i] = tensors[i]->flags;
        scheduler = ggml_backend_sched_new(backends, kinds, gpu_count + 1, (size_t) count * 2,
                                           strcmp(argv[1], "1") != 0, false);
        for (int r = -2; r < REPETITIONS; ++r) { /* the first two reserve and warm up */
                double before;

                renew(tensors, fresh, count, flags);
                ggml_backend_sched_reset(scheduler);
                before = cpu_ns();
                if (!ggml_backend_sched_alloc_graph(scheduler, graph))
                        return 1;
                plan[r < 0 ? 0 : r] = cpu_ns() - before;
                before = cpu_ns();
                for (int i = 0; i < BURST; ++i) {
                        if (ggml_backend_sched_graph_compute_async(scheduler, graph) !=
                            GGML_STATUS_SUCCESS)
                                return 1;
                }
                run[r < 0 ? 0 : r] = (cpu_ns() - before) / BURST;
        }
        qsort(plan, REPETITIONS, sizeof *plan, by_value);
        qsort(run, REPETITIONS, sizeof *run, by_value);
        printf("{\"nodes\": %d, \"splits\": %d, \"miss\": %.1f, \"dispatch\": %.1f}\n", node_count,
               ggml_backend_sched_get_n_splits(scheduler), plan[REPETITIONS / 2] / node_count,
               run[REPETITIONS / 2] / ggml_backend_sched_get_n_splits(scheduler));
        return 0;
}
