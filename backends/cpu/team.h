/* The team as kernels know it. */
#pragma once

#include "core/host.h"

struct cpu_team {
        struct hr_host_team *host;
};
