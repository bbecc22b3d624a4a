/* What the files of the state service share. Thread: loop, unless said. */
#pragma once

#include "daemon/request.h"

/* A state that is to be made: request->object, charged as one of them. */
HR_NODISCARD hr_status hr_state_object_new(struct hr_request *request, struct hr_diag *diag);
/* It has been made. Takes the reference. Thread: engine. */
void hr_state_object_give(struct hr_object *object, struct hr_state *state);
/* It gets its handle, and the request its reply. */
HR_NODISCARD hr_status hr_state_publish(struct hr_request *request, struct hr_diag *diag);
/* Rules of placement, in the request's arena. */
HR_NODISCARD hr_status hr_state_rules(struct hr_request *request, const struct hr_wire_rule *wire,
                                      uint32_t count, struct hr_diag *diag,
                                      struct hr_placement_rule **ret_rules);
/* Thread: engine. */
HR_NODISCARD hr_status hr_state_manifest(struct hr_request *request, struct hr_wire_span encoded,
                                         struct hr_diag *diag, struct hr_manifest **ret_manifest);
