/* An accelerator that gets no node, as BLAS beside a graph without products: the plan is the one
 * without it, to the byte. */
#pragma once

#include "tests/golden/plans_file.h"

/* Plans `problem` once more with such a device before the last one: it shares that one's memory and
 * supports leaves and views alone. NULL if the plan differs from `without` in nothing but numbers
 * of devices behind it, else what differs. */
const char *plan_idle_difference(const struct plan_problem *problem, struct hr_plan *without);
