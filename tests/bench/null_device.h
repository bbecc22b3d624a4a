/*
 * Devices that support everything and compute nothing, to measure what is around the computing.
 * Their memory has addresses that nobody may touch.
 */
#pragma once

#include "core/device.h"

/* Memory of its own kind, or host memory for a CPU. Aborts without memory. */
struct hr_device *null_device_new(const char *name, hr_device_type type);
