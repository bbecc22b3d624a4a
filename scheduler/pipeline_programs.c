/*
 * A pipeline's programs, and its tape in pointers.
 */
#include "scheduler/pipeline_priv.h"

static struct hr_operand operand_of(const struct hr_pipeline *pipeline, uint32_t tensor,
                                    uint32_t copy, uint32_t slot) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_tensor *t = &pipeline->graph->tensors[tensor];
        struct hr_place place =
                copy == HR_NO_COPY ? hr_plan_tensor_place(plan, tensor) : plan->copies[copy].place;
        struct hr_operand operand = hr_operand_of_tensor(t, tensor);

        if (plan->span[tensor] == 0)
                return operand;
        operand.data = hr_pipeline_address(pipeline, &place, slot, false);
        operand.room = copy == HR_NO_COPY
                               ? plan->span[plan->root[tensor]] - plan->root_offset[tensor]
                               : plan->copies[copy].bytes;
        return operand;
}

static hr_status fill_step(struct hr_pipeline *pipeline, uint32_t node, uint32_t slot,
                           struct hr_step *step, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_graph *graph = pipeline->graph;
        uint32_t id = graph->leaf_count + node;
        const struct hr_tensor *t = &graph->tensors[id];
        struct hr_operand *sources =
                hr_pipeline_take_bound(pipeline, t->source_count, sizeof *sources);

        if (!sources)
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t i = 0; i < t->source_count; ++i) {
                uint32_t source = hr_graph_source(graph, t, i);

                if (source == HR_TENSOR_NONE)
                        sources[i] = (struct hr_operand){.type = HR_OPERAND_ABSENT};
                else
                        sources[i] =
                                operand_of(pipeline, source,
                                           plan->source_copy[plan->source_start[node] + i], slot);
        }
        if (t->source_count > 2) {
                uint32_t copy = plan->source_copy[plan->source_start[node]];

                if (copy != HR_NO_COPY && plan->copies[copy].group != HR_NO_INDEX)
                        hr_pipeline_use_places(pipeline, &plan->copies[copy], sources);
        }
        *step = (struct hr_step){
                .op = t->op,
                .node = node,
                .params = t->params,
                .result =
                        operand_of(pipeline, id,
                                   plan->result_copy ? plan->result_copy[node] : HR_NO_COPY, slot),
                .source_count = t->source_count,
                .sources = sources,
        };
        return HR_OK;
}

static hr_status make_program(struct hr_pipeline *pipeline, uint32_t s, uint32_t slot,
                              struct hr_diag *diag) {
        const struct hr_plan_split *split = &pipeline->plan->splits[s];
        struct hr_step *steps = hr_pipeline_take_bound(pipeline, split->step_count, sizeof *steps);
        struct hr_steps *list = hr_pipeline_take_bound(pipeline, 1, sizeof *list);
        struct hr_program **program = &pipeline->slots[slot].programs[s];

        if (!steps || !list)
                return hr_pipeline_out_of_memory(diag);
        for (uint32_t k = split->step_count; k-- > 0;) {
                uint32_t step = split->step_first + k;

                HR_TRY(fill_step(pipeline, pipeline->plan->steps[step], slot, &steps[k], diag));
                if (pipeline->plan->joined && pipeline->plan->joined[step])
                        steps[k].joined = steps[k + 1].joined + 1;
        }
        *list = (struct hr_steps){
                .count = split->step_count,
                .steps = steps,
                .before = split->step_first,
                .split = s,
        };
        HR_TRY(hr_program_new(pipeline->fleet->devices[split->device], list, diag, program));
        pipeline->device_bytes[split->device] += (*program)->scratch_bytes;
        return HR_OK;
}

hr_status hr_pipeline_make_programs(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_plan *plan = pipeline->plan;

        pipeline->computed_splits = pipeline->computed_nodes = 0;
        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                pipeline->slots[slot].programs =
                        hr_pipeline_take_bound(pipeline, plan->split_count, sizeof(void *));
                if (!pipeline->slots[slot].programs)
                        return hr_pipeline_out_of_memory(diag);
        }
        for (uint32_t s = 0; s < plan->split_count; ++s) {
                const struct hr_plan_split *split = &plan->splits[s];
                bool per_slot;

                if (split->step_count == 0)
                        continue;
                ++pipeline->computed_splits;
                pipeline->computed_nodes += split->step_count;
                per_slot = hr_plan_split_is_per_slot(plan, pipeline->graph, split);
                for (uint32_t slot = 0; slot < (per_slot ? pipeline->slot_count : 1); ++slot)
                        HR_TRY(make_program(pipeline, s, slot, diag));
        }
        return HR_OK;
}

void hr_pipeline_free_programs(struct hr_pipeline *pipeline, struct hr_slot *slots) {
        for (uint32_t s = 0; slots && s < pipeline->slot_count; ++s) {
                struct hr_program **programs = slots[s].programs;

                for (uint32_t i = 0; programs && i < pipeline->plan->split_count; ++i) {
                        if (!programs[i])
                                continue;
                        pipeline->device_bytes[pipeline->plan->splits[i].device] -=
                                programs[i]->scratch_bytes;
                        programs[i] = hr_program_free(programs[i]);
                }
        }
}

/* ---- The tape in pointers --------------------------------------------------------------------
 */

static void bind_experts(struct hr_pipeline *pipeline, const struct hr_command *command,
                         uint32_t slot, struct hr_bound_command *bound) {
        const struct hr_plan *plan = pipeline->plan;
        const struct hr_plan_copy *copy = &plan->copies[command->index];
        const struct hr_expert_group *group = &plan->groups[copy->group];
        struct hr_place ids = group->ids_copy == HR_NO_COPY ? hr_plan_tensor_place(plan, group->ids)
                                                            : plan->copies[group->ids_copy].place;

        bound->index = copy->member;
        bound->experts = &pipeline->expert_caches[copy->group];
        bound->from = hr_pipeline_address(pipeline, &ids, slot, false);
}

static void bind_command(struct hr_pipeline *pipeline, const struct hr_command *command,
                         uint32_t slot, struct hr_bound_command *bound) {
        struct hr_program *program = NULL;
        bool host_source = command->code == HR_COMMAND_WRITE;

        if (command->code == HR_COMMAND_COMPUTE) {
                program = pipeline->slots[slot].programs[command->index];
                if (!program)
                        program = pipeline->slots[0].programs[command->index];
        }
        *bound = (struct hr_bound_command){
                .code = command->code,
                .index = command->code == HR_COMMAND_GATE ? command->kind : command->index,
                .queue = hr_fleet_queue_of(pipeline->fleet, command),
                .program = program,
                .first = command->first,
                .step_count = command->count,
                .whole_count = command->first == 0 && program ? program->steps->count : 0,
                .kind = pipeline->kinds[command->kind],
                .from = command->code == HR_COMMAND_INPUT
                                ? NULL
                                : hr_pipeline_address(pipeline, &command->from, slot, host_source),
                .to = hr_pipeline_address(pipeline, &command->to, slot, false),
                .from_offset = command->from.offset,
                .bytes = command->bytes,
        };
        if (command->code == HR_COMMAND_WAIT || command->code == HR_COMMAND_RECORD)
                bound->event = hr_pipeline_event(pipeline, command->index, slot);
        if (command->code == HR_COMMAND_NOTIFY)
                bound->event = hr_pipeline_event(
                        pipeline,
                        command->upload ? command->index
                                        : pipeline->plan->tape.slot_event_count + command->index,
                        slot);
        if (command->code == HR_COMMAND_COPY_EXPERTS)
                bind_experts(pipeline, command, slot, bound);
}

/* What a device brings from weights in memory of the host, it will bring with every run. */
static void pin_homes(struct hr_pipeline *pipeline) {
        const struct hr_plan *plan = pipeline->plan;

        for (uint32_t i = 0; i < plan->tape.count; ++i) {
                const struct hr_command *command = &plan->tape.commands[i];
                struct hr_buffer *home = NULL;

                if (command->code == HR_COMMAND_WRITE && command->from.where == HR_WHERE_HOME)
                        home = pipeline->homes[command->from.index].buffer;
                else if (command->code == HR_COMMAND_COPY_EXPERTS)
                        home = pipeline->homes[plan->root[plan->copies[command->index].tensor]]
                                       .buffer;
                if (home)
                        hr_device_pin(hr_fleet_device(pipeline->fleet, command->device), home);
        }
}

hr_status hr_pipeline_bind_tape(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;

        pin_homes(pipeline);
        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                struct hr_slot *s = &pipeline->slots[slot];

                s->commands = hr_pipeline_take_bound(pipeline, tape->count, sizeof *s->commands);
                if (!s->commands)
                        return hr_pipeline_out_of_memory(diag);
                for (uint32_t i = 0; i < tape->count; ++i)
                        bind_command(pipeline, &tape->commands[i], slot, &s->commands[i]);
        }
        return HR_OK;
}

hr_status hr_pipeline_count_tape(struct hr_pipeline *pipeline, struct hr_diag *diag) {
        const struct hr_tape *tape = &pipeline->plan->tape;

        for (uint32_t slot = 0; slot < pipeline->slot_count; ++slot) {
                struct hr_slot *s = &pipeline->slots[slot];

                s->wanted =
                        hr_pipeline_take(pipeline, pipeline->graph->output_count, sizeof(void *));
                if (!s->wanted)
                        return hr_pipeline_out_of_memory(diag);
        }
        for (uint32_t i = 0; i < tape->count; ++i)
                pipeline->notify_count += tape->commands[i].code == HR_COMMAND_NOTIFY;
        for (uint32_t l = 0; l < pipeline->plan->lane_count; ++l)
                pipeline->touches_states =
                        pipeline->touches_states || pipeline->plan->state_lane[l];
        pipeline->copied_bytes = pipeline->plan->copied_bytes - pipeline->plan->expert_bytes;
        return HR_OK;
}
