/*
 * `debug`: what the scheduler decided, as lines of the log and, if the client asks, as the body of
 * SUBMIT's reply. Parts that the configuration names are logged as notices; those that only a
 * client names as information, so that no client fills the operator's log.
 */
#pragma once

#include "daemon/bind.h"

/* After a bind that went well. Lack of memory prints nothing. Thread: engine, without the turn. */
void hr_debug_submit(struct hr_request *request, const struct hr_plan *plan,
                     const struct hr_graph *graph);
