/* The end of the process for a fault of our own. */
#include "core/base.h"

#include <stdio.h>
#include <stdlib.h>

void hr_assert_failed(const char *condition, const char *file, int line) {
        fprintf(stderr, "headrace: assertion failed: %s (%s:%d)\n", condition, file, line);
        abort();
}
