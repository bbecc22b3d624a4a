/* What a runner says when a kernel touches memory that nobody may, or divides integers by zero: the
 * case, the tensor and where. */
#pragma once

#include "tests/golden/ops_machine.h"

/* From now on SIGSEGV, SIGBUS and SIGFPE end the process with status 3 and these words about `run`,
 * which lives until the next call; NULL: about none. Thread: one. */
void ops_fault_watch(const struct ops_run *run);
