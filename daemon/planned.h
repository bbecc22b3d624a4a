/*
 * Leaves without memory, for plans that are only asked about.
 *
 * A dry run may name placement rules for weights and states that are in no set it names. Such
 * leaves are placed as a LOAD, a PUT or a STATE_ALLOC with these rules would place them, all
 * weights in one set and all states in one state, and planning is shown buffers that hold no bytes.
 * A plan looks at kinds and usages only, so it is the plan that the graph gets once all of it is
 * there.
 */
#pragma once

#include "daemon/placement.h"

/* Zeroed is valid and empty. */
struct hr_planned {
        struct hr_buffer *buffers; /* per device: for weights, then for states */
};

/* Gives a home to every weight and state leaf that has none in `homes` (one per leaf). HR_E_INVALID
 * (reason NAME) for such a leaf without a name, or two of one name; else the statuses of
 * hr_placement_init. The buffers must not be used, and go with hr_planned_deinit(). Thread: engine.
 */
HR_NODISCARD hr_status hr_planned_homes(struct hr_planned *planned, const struct hr_graph *graph,
                                        const struct hr_fleet *fleet,
                                        const struct hr_placement_rule *rules, uint32_t rule_count,
                                        struct hr_diag *diag, struct hr_leaf_home *homes);
void hr_planned_deinit(struct hr_planned *planned);

/* What a graph's leaves take on a device, each padded as in a set. */
struct hr_leaf_bytes {
        uint64_t weights, states;
};
/* Adds to `bytes` (one per device) the leaves that have a home. */
void hr_leaf_bytes_add(const struct hr_graph *graph, const struct hr_fleet *fleet,
                       const struct hr_leaf_home *homes, struct hr_leaf_bytes *bytes);
