/*
 * Compute memory that the pipelines of one session share.
 *
 * A pipeline's pool is [kept][passing][slots]; only what passes is shared. Per kind of memory a
 * workspace has one current block, as large as the largest of its pipelines needs. Where memory can
 * grow, the block does, and keeps its address. Elsewhere growing makes a new block; pipelines bound
 * to the old one move when they have no run in flight, and the block goes with its last reference.
 * So nothing that a device may still touch is freed, and a failure to allocate leaves everything as
 * it was, or a block larger than anybody needs.
 *
 * Order. A block remembers the pipeline whose run was submitted last. A run of another one passes
 * the gates of its tape: each lane that touches passing memory of a kind waits, before its first
 * such command, for the ends of all lanes of that pipeline that touch it. A lane's commands happen
 * in plan order, so the rest of the lane follows; a lane's end comes after all of its commands.
 * Hence every access to a block comes after every access by the runs submitted before, whatever
 * pipelines they belong to. Runs of one pipeline among themselves are ordered by its plan, which is
 * proven.
 *
 * Slots, staging and what is kept are never shared: copies may arrive there while an earlier run
 * still computes. Everything here is the engine's, under the turn.
 */
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "scheduler/exec.h"

/* ---- Life
 * -------------------------------------------------------------------------------------- */

hr_status hr_workspace_new(struct hr_diag *diag, struct hr_workspace **ret_workspace) {
        struct hr_workspace *workspace = calloc(1, sizeof *workspace);

        if (!workspace)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a workspace");
        workspace->refs = 1;
        hr_list_init(&workspace->pipelines);
        *ret_workspace = workspace;
        return HR_OK;
}

void hr_workspace_set_budget(struct hr_workspace *workspace, struct hr_budget *budget) {
        HR_ASSERT(hr_list_is_empty(&workspace->pipelines));
        workspace->budget = budget;
}

struct hr_workspace *hr_workspace_ref(struct hr_workspace *workspace) {
        ++workspace->refs;
        return workspace;
}

struct hr_workspace *hr_workspace_unref(struct hr_workspace *workspace) {
        if (!workspace || --workspace->refs > 0)
                return NULL;
        HR_ASSERT(hr_list_is_empty(&workspace->pipelines));
        free(workspace->parts);
        free(workspace->held_bytes);
        free(workspace);
        return NULL;
}

struct hr_workspace_stats hr_workspace_stats(const struct hr_workspace *workspace) {
        return workspace->stats;
}

uint64_t hr_workspace_bytes(const struct hr_workspace *workspace, uint32_t device) {
        return device < workspace->device_count ? workspace->held_bytes[device] : 0;
}

void hr_workspace_reserve(struct hr_workspace *workspace) {
        ++workspace->reserved;
}

void hr_workspace_release(struct hr_workspace *workspace) {
        HR_ASSERT(workspace->reserved > 0);
        --workspace->reserved;
}

bool hr_workspace_is_held(const struct hr_workspace *workspace) {
        return workspace->unordered && workspace->in_flight > 0;
}

void hr_workspace_reset(struct hr_workspace *workspace) {
        workspace->stats = (struct hr_workspace_stats){.moves = workspace->stats.moves};
}

/* ---- Parts and blocks
 * -------------------------------------------------------------------------- */

static hr_status part_of(struct hr_workspace *workspace, const struct hr_buffer_kind *kind,
                         struct hr_diag *diag, struct hr_workspace_part **ret_part) {
        struct hr_workspace_part *parts;
        uint32_t count = workspace->part_count;

        for (uint32_t i = 0; i < count; ++i) {
                if (workspace->parts[i].kind != kind)
                        continue;
                *ret_part = &workspace->parts[i];
                return HR_OK;
        }
        parts = realloc(workspace->parts, ((size_t) count + 1) * sizeof *parts);
        if (!parts)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a workspace");
        workspace->parts = parts;
        parts[count] = (struct hr_workspace_part){.kind = kind};
        workspace->part_count = count + 1;
        *ret_part = &parts[count];
        return HR_OK;
}

/* Of a kind that the pipeline has blocks of, or had when it was bound. */
static struct hr_workspace_part *known_part(const struct hr_workspace *workspace,
                                            const struct hr_buffer_kind *kind) {
        for (uint32_t i = 0; i < workspace->part_count; ++i) {
                if (workspace->parts[i].kind == kind)
                        return &workspace->parts[i];
        }
        return NULL;
}

static hr_status count_devices(struct hr_workspace *workspace, uint32_t device_count,
                               struct hr_diag *diag) {
        uint64_t *held;

        if (workspace->device_count >= device_count)
                return HR_OK;
        held = realloc(workspace->held_bytes, device_count * sizeof *held);
        if (!held)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a workspace");
        memset(held + workspace->device_count, 0,
               (device_count - workspace->device_count) * sizeof *held);
        workspace->held_bytes = held;
        workspace->device_count = device_count;
        return HR_OK;
}

static hr_status block_new(struct hr_workspace *workspace, struct hr_device *device, uint32_t owner,
                           uint64_t bytes, struct hr_diag *diag, struct hr_block **ret_block) {
        struct hr_block *block = calloc(1, sizeof *block);
        hr_status status;

        if (!block)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for a workspace");
        status = hr_budget_take(workspace->budget, bytes, diag);
        if (status != HR_OK) {
                free(block);
                return status;
        }
        status = hr_buffer_new(device, bytes, HR_USAGE_COMPUTE, diag, &block->buffer);
        if (status != HR_OK) {
                hr_budget_give(workspace->budget, bytes);
                free(block);
                return status;
        }
        block->owner = owner;
        workspace->held_bytes[owner] += bytes;
        *ret_block = block;
        return HR_OK;
}

/* The block itself, larger, where its memory can: nobody has to move, and what is in flight goes
 * on. */
static bool block_grow(struct hr_workspace *workspace, struct hr_block *block, uint64_t bytes) {
        uint64_t old_bytes = block->buffer->bytes;

        if (hr_budget_take(workspace->budget, bytes - old_bytes, NULL) != HR_OK)
                return false;
        if (hr_buffer_grow(block->buffer, bytes, NULL) != HR_OK) {
                hr_budget_give(workspace->budget, bytes - old_bytes);
                return false;
        }
        workspace->held_bytes[block->owner] += bytes - old_bytes;
        if (!block->grown_from)
                block->grown_from = old_bytes;
        return true;
}

/* The largest other block of that kind that a pipeline has: it is large enough for all of them.
 * NULL without one. */
static struct hr_block *largest_other(const struct hr_workspace *workspace,
                                      const struct hr_buffer_kind *kind,
                                      const struct hr_block *gone) {
        struct hr_block *found = NULL;

        HR_LIST_FOR_EACH(link, &workspace->pipelines) {
                const struct hr_pipeline *pipeline =
                        HR_CONTAINER_OF(link, struct hr_pipeline, workspace_link);

                for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                        struct hr_block *block = pipeline->blocks[k];

                        if (block && block != gone && pipeline->kinds[k] == kind &&
                            (!found || block->buffer->bytes > found->buffer->bytes))
                                found = block;
                }
        }
        return found;
}

/* The memory that all were to move to may go before those who had runs in flight have moved. */
static void block_unref(struct hr_workspace *workspace, struct hr_block *block) {
        if (!block || --block->refs > 0)
                return;
        for (uint32_t i = 0; i < workspace->part_count; ++i) {
                struct hr_workspace_part *part = &workspace->parts[i];

                if (part->current == block)
                        part->current = largest_other(workspace, part->kind, block);
        }
        workspace->held_bytes[block->owner] -= block->buffer->bytes;
        hr_budget_give(workspace->budget, block->buffer->bytes);
        hr_buffer_unref(block->buffer);
        free(block);
}

/* From now on pipelines move there. What they were to move to before, and nobody has, goes. */
static void current_set(struct hr_workspace *workspace, struct hr_workspace_part *part,
                        struct hr_block *block) {
        struct hr_block *old = part->current;

        part->current = block;
        if (old && old->refs == 0) {
                ++old->refs;
                block_unref(workspace, old);
        }
}

/* The pipeline has no run in flight: nothing has to wait for it. */
static void forget_user(struct hr_block *block, const struct hr_pipeline *pipeline) {
        if (block && block->user == pipeline)
                block->user = NULL;
}

/* ---- What a pipeline needs
 * --------------------------------------------------------------------- */

/* The root, or the copied tensor, that reaches furthest into what passes. */
static uint32_t furthest_tensor(const struct hr_plan *plan, uint32_t kind) {
        uint64_t furthest = plan->pools[kind].kept_bytes;
        uint32_t found = 0;

        for (uint32_t i = 0; i < plan->tensor_count + plan->copy_count; ++i) {
                bool copy = i >= plan->tensor_count;
                const struct hr_plan_copy *c = copy ? &plan->copies[i - plan->tensor_count] : NULL;
                const struct hr_place *place = copy ? &c->place : &plan->place[i];
                uint64_t end = place->offset + (copy ? c->bytes : plan->span[i]);

                if ((!copy && plan->root[i] != i) || place->where != HR_WHERE_SHARED ||
                    place->index != kind || end <= furthest)
                        continue;
                furthest = end;
                found = copy ? c->tensor : i;
        }
        return found;
}

static hr_status refuse(const struct hr_pipeline *pipeline, uint32_t kind, uint64_t old_bytes,
                        uint64_t new_bytes, struct hr_diag *diag) {
        uint32_t tensor = furthest_tensor(pipeline->plan, kind), owner;
        size_t name_bytes = 0;
        const char *name = hr_graph_name(pipeline->graph, tensor, &name_bytes);
        hr_status status;

        owner = pipeline->plan->pools[kind].owner;
        status =
                hr_fail_reason(diag, HR_E_PRECONDITION, "REALLOC",
                               "tensor %u \"%.*s\" needs compute memory of %s to grow from %llu to "
                               "%llu bytes",
                               tensor, (int) HR_MIN(name_bytes, (size_t) 64), name,
                               pipeline->fleet->devices[owner]->props.name,
                               (unsigned long long) old_bytes, (unsigned long long) new_bytes);
        if (diag && diag->status == status) {
                diag->has_tensor = true;
                diag->tensor = tensor;
                diag->limit = old_bytes;
                diag->actual = new_bytes;
        }
        return status;
}

static uint64_t plus(uint64_t a, uint64_t b) {
        return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

uint64_t hr_workspace_bytes_with(const struct hr_workspace *workspace,
                                 const struct hr_pipeline *pipeline, uint32_t device) {
        const struct hr_plan *plan = pipeline->plan;
        uint64_t total = hr_workspace_bytes(workspace, device);

        HR_LIST_FOR_EACH(link, &workspace->pipelines)
        total = plus(total,
                     hr_pipeline_own_bytes(
                             HR_CONTAINER_OF(link, struct hr_pipeline, workspace_link), device));
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                const struct hr_plan_pool *pool = &plan->pools[k];
                const struct hr_workspace_part *part = known_part(workspace, pipeline->kinds[k]);
                uint64_t has = part && part->current ? part->current->buffer->bytes : 0;
                uint64_t needs = hr_plan_passing_bytes(plan, k);

                if (pool->owner != device)
                        continue;
                total = plus(total, pool->kept_bytes + pool->slot_bytes * pipeline->slot_count);
                if (needs > has)
                        total = plus(total, HR_MAX(needs, part ? part->wanted_bytes : 0) - has);
        }
        return total;
}

/* Is it a reallocation to give the part a block where it has this one? */
static bool is_realloc(const struct hr_workspace *workspace, const struct hr_block *current) {
        return current || workspace->reserved;
}

static hr_status take_block(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                            uint32_t kind, hr_realloc_policy policy, struct hr_diag *diag) {
        const struct hr_plan_pool *pool = &pipeline->plan->pools[kind];
        uint64_t bytes = hr_plan_passing_bytes(pipeline->plan, kind), old_bytes;
        struct hr_workspace_part *part = NULL;
        struct hr_block *block;

        if (bytes == 0)
                return HR_OK;
        HR_TRY(part_of(workspace, pipeline->kinds[kind], diag, &part));
        block = part->current;
        old_bytes = block ? block->buffer->bytes : 0;
        if (old_bytes < bytes) {
                bytes = HR_MAX(bytes, part->wanted_bytes);
                if (policy == HR_REALLOC_FAIL && is_realloc(workspace, block))
                        return refuse(pipeline, kind, old_bytes, bytes, diag);
                if (!block || !block_grow(workspace, block, bytes))
                        HR_TRY(block_new(workspace, pipeline->fleet->devices[pool->owner],
                                         pool->owner, bytes, diag, &block));
        }
        ++block->refs;
        pipeline->blocks[kind] = block;
        return HR_OK;
}

hr_status hr_workspace_take(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                            hr_realloc_policy policy, struct hr_diag *diag) {
        HR_TRY(count_devices(workspace, pipeline->plan->device_count, diag));
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k)
                HR_TRY(take_block(workspace, pipeline, k, policy, diag));
        hr_list_append(&workspace->pipelines, &pipeline->workspace_link);
        return HR_OK;
}

void hr_workspace_commit(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                         hr_realloc_policy policy) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                struct hr_block *block = pipeline->blocks[k];
                struct hr_workspace_part *part = known_part(workspace, pipeline->kinds[k]);

                if (!block || (part->current == block && !block->grown_from))
                        continue;
                if (policy != HR_REALLOC_EXPECTED && is_realloc(workspace, part->current)) {
                        struct hr_workspace_stats *stats = &workspace->stats;

                        ++stats->reallocs;
                        stats->device = block->owner;
                        stats->tensor = furthest_tensor(pipeline->plan, k);
                        stats->old_bytes = block->grown_from ? block->grown_from
                                           : part->current   ? part->current->buffer->bytes
                                                             : 0;
                        stats->new_bytes = block->buffer->bytes;
                }
                block->grown_from = 0;
                if (part->current == block)
                        continue;
                workspace->unsettled = workspace->unsettled || part->current;
                current_set(workspace, part, block);
        }
}

/* ---- Reservations
 * ------------------------------------------------------------------------------ */

hr_status hr_workspace_want(struct hr_workspace *workspace, const struct hr_plan_request *request,
                            const struct hr_plan *plan, struct hr_diag *diag) {
        struct hr_plan_facts facts;
        hr_status status = HR_OK;

        HR_TRY(hr_plan_facts_init(&facts, request, diag));
        for (uint32_t k = 0; status == HR_OK && k < plan->kind_count; ++k) {
                struct hr_workspace_part *part = NULL;

                if (k >= facts.input.kind_count || hr_plan_passing_bytes(plan, k) == 0)
                        continue;
                status = part_of(workspace, facts.kinds[k], diag, &part);
                if (status == HR_OK)
                        part->wanted_bytes =
                                HR_MAX(part->wanted_bytes, hr_plan_passing_bytes(plan, k));
        }
        hr_plan_facts_deinit(&facts);
        return status;
}

void hr_workspace_forget(struct hr_workspace *workspace) {
        for (uint32_t i = 0; i < workspace->part_count; ++i)
                workspace->parts[i].wanted_bytes = 0;
}

static uint64_t needed_bytes(const struct hr_workspace *workspace,
                             const struct hr_buffer_kind *kind) {
        uint64_t most = 0;

        HR_LIST_FOR_EACH(link, &workspace->pipelines) {
                const struct hr_pipeline *pipeline =
                        HR_CONTAINER_OF(link, struct hr_pipeline, workspace_link);

                for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                        if (pipeline->kinds[k] == kind)
                                most = HR_MAX(most, hr_plan_passing_bytes(pipeline->plan, k));
                }
        }
        return most;
}

void hr_workspace_give(struct hr_workspace *workspace, struct hr_pipeline *pipeline) {
        for (uint32_t k = 0; pipeline->blocks && k < pipeline->plan->kind_count; ++k) {
                forget_user(pipeline->blocks[k], pipeline);
                block_unref(workspace, pipeline->blocks[k]);
                pipeline->blocks[k] = NULL;
        }
        hr_list_remove(&pipeline->workspace_link);
        /* A block that everybody was about to move to, and nobody is left. */
        for (uint32_t i = 0; i < workspace->part_count; ++i) {
                struct hr_block *current = workspace->parts[i].current;

                if (current && current->refs == 0 &&
                    needed_bytes(workspace, workspace->parts[i].kind) == 0) {
                        ++current->refs;
                        block_unref(workspace, current);
                }
        }
}

void hr_workspace_trim(struct hr_workspace *workspace) {
        for (uint32_t i = 0; i < workspace->part_count; ++i) {
                struct hr_workspace_part *part = &workspace->parts[i];
                struct hr_block *old = part->current, *block = NULL;
                uint64_t bytes = needed_bytes(workspace, part->kind);

                if (!old || bytes == 0 || bytes >= old->buffer->bytes ||
                    block_new(workspace, old->buffer->device, old->owner, bytes, NULL, &block) !=
                            HR_OK)
                        continue;
                current_set(workspace, part, block);
                workspace->unsettled = true;
        }
        (void) hr_workspace_settle(workspace);
}

/* ---- Moving
 * ------------------------------------------------------------------------------------ */

bool hr_workspace_is_behind(const struct hr_workspace *workspace,
                            const struct hr_pipeline *pipeline) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                const struct hr_block *block = pipeline->blocks[k];

                if (block && known_part(workspace, pipeline->kinds[k])->current != block)
                        return true;
        }
        return false;
}

void hr_workspace_renew(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                        struct hr_block **ret_old) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                ret_old[k] = pipeline->blocks[k];
                if (!ret_old[k])
                        continue;
                pipeline->blocks[k] = known_part(workspace, pipeline->kinds[k])->current;
                ++pipeline->blocks[k]->refs;
        }
}

void hr_workspace_restore(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                          struct hr_block *const *old) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                struct hr_block *block = pipeline->blocks[k];

                pipeline->blocks[k] = old[k];
                block_unref(workspace, block);
        }
}

void hr_workspace_leave(struct hr_workspace *workspace, struct hr_pipeline *pipeline,
                        struct hr_block **old) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                forget_user(old[k], pipeline);
                block_unref(workspace, old[k]);
        }
        ++workspace->stats.moves;
}

bool hr_workspace_settle(struct hr_workspace *workspace) {
        bool settled = true;

        if (!workspace->unsettled)
                return true;
        HR_LIST_FOR_EACH(link, &workspace->pipelines) {
                struct hr_pipeline *pipeline =
                        HR_CONTAINER_OF(link, struct hr_pipeline, workspace_link);
                struct hr_diag diag = {0};

                if (!hr_workspace_is_behind(workspace, pipeline))
                        continue;
                settled = settled && pipeline->in_flight == 0;
                if (pipeline->in_flight == 0 && hr_pipeline_move(pipeline, &diag) != HR_OK)
                        hr_log(HR_LOG_DEBUG, "workspace", "a pipeline stays: %s", diag.words);
        }
        workspace->unsettled = !settled;
        return settled;
}

/* ---- Gates
 * ------------------------------------------------------------------------------------- */

hr_status hr_gate_pass(const struct hr_pipeline *pipeline, struct hr_queue *queue, uint32_t kind,
                       struct hr_diag *diag) {
        const struct hr_block *block = pipeline->blocks[kind];
        const struct hr_pipeline *other = block ? block->user : NULL;
        const struct hr_plan *plan;
        uint64_t ends;

        if (HR_LIKELY(!other || other == pipeline))
                return HR_OK;
        plan = other->plan;
        ends = other->event_count - plan->lane_count;
        for (uint32_t k = 0; k < plan->kind_count; ++k) {
                for (uint32_t l = 0; other->blocks[k] == block && l < plan->lane_count; ++l) {
                        uint32_t last = plan->tape.lane_last[l];

                        if (last == HR_NO_INDEX || other->fleet->queues[last] == queue ||
                            !hr_plan_lane_touches(plan, l, k))
                                continue;
                        HR_TRY(hr_queue_wait(queue, other->events[ends + l], diag));
                }
        }
        return HR_OK;
}

void hr_gates_passed(struct hr_pipeline *pipeline) {
        for (uint32_t k = 0; k < pipeline->plan->kind_count; ++k) {
                if (pipeline->blocks[k])
                        pipeline->blocks[k]->user = pipeline;
        }
}
