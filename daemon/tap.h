/*
 * Observed runs: each tap is pushed to the client, and the run waits for the client's word.
 *
 *   engine: waits at a tap --> pushed --> sent and answered --> engine: goes on
 *                                 \--> no answer in time, cancelled, peer gone --> engine: to its
 * end
 *
 * The bytes lie in the run's memory until the socket has taken them, so a run goes on only when
 * both have happened, and its reply waits for the last byte. Thread: loop.
 */
#pragma once

#include "daemon/bind.h"

/* Memory for the taps of the graph, charged to the session; kept with the run's. HR_E_INVALID
 * (reason TAP) for a graph without taps, HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_tap_expect(struct hr_graph_object *object, struct hr_graph_run *run,
                                     struct hr_diag *diag);
/* Before the run is posted: it is observed. */
void hr_tap_begin(struct hr_request *request, struct hr_graph_run *run);
/* hr_run_job.at_tap: the run waits, push. */
void hr_tap_push(struct hr_job *job);
/* The run has ended. True when its end has to wait until the last push is out: `end` is called
 * then.
 */
bool hr_tap_defer(struct hr_graph_run *run, void (*end)(struct hr_job *job));
/* The client's answer to a push of that request. False: it does not wait there. */
bool hr_tap_answer(struct hr_request *request, uint32_t tap, bool stop);
