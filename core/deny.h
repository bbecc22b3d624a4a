/*
 * Ops that a device is told to claim not to support, for tests of what happens then: a list of
 * names, "MUL_MAT,TOP_K>4096"; "*" is every op that is no view. With a number, only where the node
 * or a source of it is longer than that in dimension 0.
 */
#pragma once

#include "core/graph.h"
#include "core/op.h"

struct hr_deny {
        int64_t most[HR_OP_LIMIT]; /* 1 + the longest that is supported; 0 = no limit, -1 = none */
};

/* Reads a list; NULL is an empty one. HR_E_INVALID (reason OP) for what is none. */
HR_NODISCARD hr_status hr_deny_parse(const char *list, struct hr_diag *diag,
                                     struct hr_deny *ret_deny);
bool hr_deny_refuses(const struct hr_deny *deny, const struct hr_graph *graph, uint32_t tensor);
