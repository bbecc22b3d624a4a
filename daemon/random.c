/* The one place that asks the system for random numbers. */
#include "daemon/random.h"

#include <errno.h>
#include <sys/random.h>

hr_status hr_random(void *bytes, size_t size, struct hr_diag *diag) {
        uint8_t *at = bytes;

        while (size > 0) {
                ssize_t got = getrandom(at, size, 0);

                if (got < 0 && errno == EINTR)
                        continue;
                if (got <= 0)
                        return hr_fail(diag, HR_E_UNAVAILABLE, "no random numbers");
                at += got;
                size -= (size_t) got;
        }
        return HR_OK;
}
