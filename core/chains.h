/*
 * Chains: nodes of a split that are computed in one pass, element-wise ones that feed one another
 * and what may come before them. For hr_device_ops.optimize of devices that have such passes; which
 * nodes those are they say themselves.
 */
#pragma once

#include "core/device.h"

#define HR_CHAIN_MOST 16U

/* Pure functions. */
struct hr_chain_rules {
        uint32_t most; /* nodes of a chain; at most HR_CHAIN_MOST */
        /* Does it go on, element by element, with a source of its own shape? */
        bool (*links)(const struct hr_tensor *tensor);
        /* Has it a form that only the first of a chain can have? */
        bool (*leads)(const struct hr_tensor *tensor);
        /* May that one lead a chain that goes on to the reader? */
        bool (*may_lead)(const struct hr_graph *graph, const struct hr_tensor *first,
                         const struct hr_tensor *reader);
};

/* Fills order and joined as hr_device_ops.optimize does. */
void hr_chains_join(const struct hr_split_view *view, const struct hr_chain_rules *rules,
                    uint32_t *order, bool *joined);
