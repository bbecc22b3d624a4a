/* Numbers that nobody can guess: handles, tokens, ids. */
#pragma once

#include "core/status.h"

/* HR_E_UNAVAILABLE without a source of them. Thread: any. */
HR_NODISCARD hr_status hr_random(void *bytes, size_t size, struct hr_diag *diag);
