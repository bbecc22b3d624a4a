/*
 * Lanes and the way of every copy.
 *
 * Two devices that touch the same writable memory in place belong to one lane. The tape keeps the
 * work of a lane in plan order, so inside a lane every hazard is ordered by construction, in one
 * run and from run to run; only copies cross from one lane to another. Read-only weights join
 * nobody.
 *
 * The sets are found by union over devices, pools (one per kind of compute memory) and writable
 * buffers. A device that no command of the run uses is in no lane.
 */
#include "scheduler/plan.h"

struct lanes {
        struct hr_planner *planner;
        struct hr_plan *plan;
        uint32_t *parent;  /* devices, then kinds, then buffers */
        bool *used;        /* per device */
        bool *in_buffer;   /* per buffer: writable and touched */
        bool *in_pool;     /* per device: joined to the pool of its own kind */
        uint32_t *toucher; /* per root: device that touched it last, and one; 0 = none */
};

static uint32_t find(const struct lanes *lanes, uint32_t item) {
        while (lanes->parent[item] != item) {
                lanes->parent[item] = lanes->parent[lanes->parent[item]];
                item = lanes->parent[item];
        }
        return item;
}

static void join(const struct lanes *lanes, uint32_t a, uint32_t b) {
        a = find(lanes, a);
        b = find(lanes, b);
        if (a < b)
                lanes->parent[b] = a;
        else
                lanes->parent[a] = b;
}

static void join_own_pool(struct lanes *lanes, uint32_t device) {
        const struct hr_plan_input *in = lanes->planner->in;

        if (lanes->in_pool[device])
                return;
        lanes->in_pool[device] = true;
        join(lanes, device, in->device_count + in->devices[device].kind);
}

static void touch_anew(struct lanes *lanes, uint32_t device, uint32_t root) {
        const struct hr_plan_input *in = lanes->planner->in;
        uint32_t buffer = in->tensor_buffer[root];

        lanes->toucher[root] = device + 1;
        lanes->used[device] = true;
        if (buffer == HR_NO_BUFFER) {
                uint32_t owner = planner_root_device(lanes->planner, root);

                lanes->planner->direct[root] = true;
                if (in->devices[owner].kind == in->devices[device].kind)
                        join_own_pool(lanes, device);
                else
                        join(lanes, device, in->device_count + in->devices[owner].kind);
                if (root < lanes->planner->graph->leaf_count) { /* its owner writes the leaf */
                        lanes->used[owner] = true;
                        join(lanes, owner, device);
                }
        } else if (in->buffers[buffer].usage != HR_USAGE_WEIGHTS || lanes->planner->written[root]) {
                lanes->in_buffer[buffer] = true;
                join(lanes, device, in->device_count + in->kind_count + buffer);
        }
}

/* The device touches the root's memory in place. */
static inline void touch(struct lanes *lanes, uint32_t device, uint32_t root) {
        const struct hr_planner *planner = lanes->planner;

        if (lanes->toucher[root] == device + 1)
                return;
        /* A result, in the memory that the device has joined before. */
        if (root >= lanes->plan->leaf_count && planner->in->tensor_buffer[root] == HR_NO_BUFFER &&
            planner->plan->device[root] == (int32_t) device && lanes->in_pool[device] &&
            lanes->used[device]) {
                lanes->toucher[root] = device + 1;
                lanes->planner->direct[root] = true;
                return;
        }
        touch_anew(lanes, device, root);
}

static hr_status out_of_reach(struct lanes *lanes, uint32_t tensor) {
        struct hr_diag *diag = lanes->planner->diag;

        hr_fail_reason(diag, HR_E_UNSUPPORTED, "REACH",
                       "tensor %u lies in memory that no device reaches", tensor);
        if (diag) {
                diag->has_tensor = true;
                diag->tensor = tensor;
        }
        return HR_E_UNSUPPORTED;
}

/* The device whose queue reads and copies the root's memory: of those to which it belongs the
 * lowest that the run uses anyway, else the last; so a device without work gets none by this. */
static int64_t reader_of(const struct lanes *lanes, uint32_t root) {
        const struct hr_plan_input *in = lanes->planner->in;
        uint32_t buffer = in->tensor_buffer[root];
        int64_t owner = -1, reader = -1, busy_reader = -1;

        if (buffer == HR_NO_BUFFER)
                return planner_root_device(lanes->planner, root);
        for (uint32_t d = 0; d < in->device_count; ++d) {
                if (in->devices[d].kind == in->buffers[buffer].kind) {
                        if (lanes->used[d])
                                return d;
                        owner = d;
                } else if (planner_reads(lanes->planner, d, in->buffers[buffer].kind)) {
                        reader = d;
                        if (busy_reader < 0 && lanes->used[d])
                                busy_reader = d;
                }
        }
        return owner >= 0 ? owner : busy_reader >= 0 ? busy_reader : reader;
}

static bool can_copy(const struct lanes *lanes, uint32_t device, uint32_t kind) {
        const struct hr_plan_input *in = lanes->planner->in;

        return !in->copies ||
               hr_bit_get(in->copies + (size_t) device * lanes->planner->kind_words, kind);
}

/* The way back of what a writer computed on a copy. */
static hr_status choose_way_back(struct lanes *lanes, struct hr_plan_copy *copy) {
        uint32_t root = lanes->plan->root[copy->tensor];
        int64_t home = reader_of(lanes, root), kind = planner_root_kind(lanes->planner, root);

        if (home < 0 || kind < 0)
                return out_of_reach(lanes, root);
        copy->home_device = (uint32_t) home;
        copy->back_staged = !can_copy(lanes, copy->device, (uint32_t) kind);
        touch(lanes, copy->home_device, root);
        touch(lanes, copy->device, root);
        return HR_OK;
}

/* How the copy's bytes travel. Inputs, constants and read-only host memory need no other queue. */
static hr_status choose_method(struct lanes *lanes, struct hr_plan_copy *copy) {
        struct hr_planner *planner = lanes->planner;
        const struct hr_plan_input *in = planner->in;
        uint32_t root = lanes->plan->root[copy->tensor], buffer = in->tensor_buffer[root];
        uint32_t to = in->devices[copy->device].kind;
        bool constant = planner_tensor(planner, root)->leaf_kind == HR_LEAF_CONSTANT;
        int64_t source;

        lanes->used[copy->device] = true;
        if (copy->group != HR_NO_INDEX) {
                copy->method = HR_COPY_EXPERTS;
                return HR_OK;
        }
        if (buffer == HR_NO_BUFFER && root < planner->graph->leaf_count && copy->version == 0 &&
            !(constant && planner->written[root])) {
                copy->method = constant ? HR_COPY_CONSTANT : HR_COPY_INPUT;
                return HR_OK;
        }
        if (buffer != HR_NO_BUFFER && in->buffers[buffer].usage == HR_USAGE_WEIGHTS &&
            !planner->written[root] && in->kinds[in->buffers[buffer].kind].host) {
                copy->method = HR_COPY_HOST_WEIGHT;
                return HR_OK;
        }
        source = reader_of(lanes, root);
        if (source < 0)
                return out_of_reach(lanes, root);
        copy->source_device = (uint32_t) source;
        copy->method = can_copy(lanes, copy->source_device, to) ? HR_COPY_DIRECT : HR_COPY_STAGED;
        touch(lanes, copy->source_device, root);
        return HR_OK;
}

/* All that the nodes touch in place; `next` is the first use that is not an earlier split's. */
static void touch_split(struct lanes *lanes, const struct hr_plan_split *split, uint32_t *next) {
        const struct hr_planner *planner = lanes->planner;
        uint32_t u = *next, tensors = lanes->plan->tensor_count;

        /* Where all nodes are empty, what is copied for them lies in the pool. */
        if (split->step_count || split->input_count)
                join_own_pool(lanes, split->device);
        for (; u < planner->use_count && planner->uses[u].node < split->end; ++u) {
                if (planner->uses[u].holder < tensors)
                        touch(lanes, split->device, planner->uses[u].holder);
        }
        *next = u;
}

static hr_status touch_outputs(struct lanes *lanes) {
        const struct hr_graph *graph = lanes->planner->graph;

        for (uint32_t i = 0; i < graph->output_count; ++i) {
                uint32_t root = lanes->plan->root[graph->outputs[i]];
                int64_t reader = reader_of(lanes, root);

                lanes->planner->output_reader[i] = HR_NO_INDEX;
                if (lanes->plan->span[graph->outputs[i]] == 0)
                        continue;
                if (reader < 0)
                        return out_of_reach(lanes, root);
                lanes->planner->output_reader[i] = (uint32_t) reader;
                touch(lanes, (uint32_t) reader, root);
        }
        return HR_OK;
}

static hr_status touch_taps(struct lanes *lanes) {
        const struct hr_plan *plan = lanes->plan;

        for (uint32_t i = 0; i < plan->tap_count; ++i) {
                uint32_t root = plan->root[plan->taps[i].tensor];
                int64_t reader = reader_of(lanes, root);

                if (reader < 0)
                        return out_of_reach(lanes, root);
                lanes->planner->tap_reader[i] = (uint32_t) reader;
                touch(lanes, (uint32_t) reader, root);
        }
        return HR_OK;
}

static hr_status number_lanes(struct lanes *lanes) {
        const struct hr_plan_input *in = lanes->planner->in;
        struct hr_plan *plan = lanes->plan;
        uint32_t items = in->device_count + in->kind_count + in->buffer_count;
        uint32_t *number = planner_scratch(lanes->planner, items, sizeof *number);

        plan->lane = planner_keep(lanes->planner, in->device_count, sizeof *plan->lane);
        plan->state_lane = planner_keep(lanes->planner, in->device_count, sizeof(bool));
        plan->pool_lane = planner_keep(lanes->planner, in->kind_count, sizeof *plan->pool_lane);
        if (!number || !plan->lane || !plan->state_lane || !plan->pool_lane)
                return planner_out_of_memory(lanes->planner);
        for (uint32_t d = 0; d < in->device_count; ++d) {
                uint32_t set = find(lanes, d);

                plan->lane[d] = HR_NO_INDEX;
                if (!lanes->used[d])
                        continue;
                if (!number[set])
                        number[set] = ++plan->lane_count;
                plan->lane[d] = number[set] - 1;
        }
        for (uint32_t k = 0; k < in->kind_count; ++k)
                plan->pool_lane[k] = number[find(lanes, in->device_count + k)] - 1;
        for (uint32_t b = 0; b < in->buffer_count; ++b) {
                if (lanes->in_buffer[b])
                        plan->state_lane
                                [number[find(lanes, in->device_count + in->kind_count + b)] - 1] =
                                true;
        }
        return HR_OK;
}

hr_status hr_plan_lanes(struct hr_planner *planner) {
        const struct hr_plan_input *in = planner->in;
        struct hr_plan *plan = planner->plan;
        uint64_t items = (uint64_t) in->device_count + in->kind_count + in->buffer_count;
        struct lanes lanes = {.planner = planner, .plan = plan};
        uint32_t next_use = 0;

        lanes.parent = planner_scratch(planner, items, sizeof *lanes.parent);
        lanes.used = planner_scratch(planner, in->device_count, sizeof *lanes.used);
        lanes.in_buffer = planner_scratch(planner, in->buffer_count, sizeof *lanes.in_buffer);
        lanes.in_pool = planner_scratch(planner, in->device_count, sizeof *lanes.in_pool);
        lanes.toucher = planner_scratch(planner, plan->tensor_count, sizeof *lanes.toucher);
        planner->direct = planner_scratch(planner, plan->tensor_count, sizeof *planner->direct);
        planner->output_reader = planner_scratch(planner, planner->graph->output_count,
                                                 sizeof *planner->output_reader);
        planner->tap_reader =
                planner_scratch(planner, plan->tap_count, sizeof *planner->tap_reader);
        if (!planner->output_reader || !planner->tap_reader)
                return planner_out_of_memory(planner);
        if (!lanes.parent || !lanes.used || !lanes.in_buffer || !lanes.in_pool || !lanes.toucher ||
            !planner->direct)
                return planner_out_of_memory(planner);
        for (uint32_t i = 0; i < items; ++i)
                lanes.parent[i] = i;
        for (uint32_t s = 0; s < plan->split_count; ++s)
                touch_split(&lanes, &plan->splits[s], &next_use);
        for (uint32_t c = 0; c < plan->copy_count; ++c) {
                HR_TRY(choose_method(&lanes, &plan->copies[c]));
                if (plan->copies[c].write_back)
                        HR_TRY(choose_way_back(&lanes, &plan->copies[c]));
        }
        HR_TRY(touch_outputs(&lanes));
        HR_TRY(touch_taps(&lanes));
        HR_TRY(number_lanes(&lanes));
        return hr_plan_slots(planner);
}
