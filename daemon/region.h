/*
 * Regions: memory that a client has passed as a sealed memfd, for inputs and outputs that cross no
 * socket.
 *
 * A region is mapped once, at ADD, after its seals and its size have been looked at; what they say
 * cannot change any more. The client goes on to write where it gives inputs and to read where it
 * takes outputs: nothing here trusts a byte of it. Devices copy inputs into memory of their own
 * before anything looks at them, so what is checked (ids, indices) is what is used.
 *
 * A region is an object of its session. Requests that use it hold references; it is unmapped on the
 * engine's thread when the last has gone. Thread: loop.
 */
#pragma once

#include "daemon/image.h"
#include "daemon/session.h"

typedef enum hr_memfd_use {
        HR_MEMFD_CONTENTS, /* mapped privately, read-only; nobody can write it any more */
        HR_MEMFD_INPUT,    /* shared, read-only */
        HR_MEMFD_OUTPUT,   /* shared, written here */
} hr_memfd_use;

/* Maps `bytes` of a memfd. Takes the descriptor, also on failure; it is closed, except that
 * contents keep theirs in the image. HR_E_INVALID: reason NOT_MEMFD (anything else than memory of
 * ordinary pages that can be sealed), SEALS (SEAL, SHRINK and GROW are needed; WRITE for contents,
 * and none that forbids writing for outputs), SIZE (none, more than it has, or contents that
 * leave a page of it out, which would be held with them). HR_E_EXHAUSTED
 * (reason HOST_MEMORY). */
HR_NODISCARD hr_status hr_memfd_map(int fd, uint64_t bytes, hr_memfd_use use, struct hr_diag *diag,
                                    struct hr_image **ret_image);

/* `bytes` bytes of a region at `offset`, for a request that reads (or writes) them, and a reference
 * to the region's object. HR_E_NOT_FOUND (reason REGION), HR_E_RANGE (OFFSET or SIZE), HR_E_INVALID
 * (REGION) to write into one that was added for reading. */
HR_NODISCARD hr_status hr_region_take(struct hr_session *session, uint64_t handle, uint64_t offset,
                                      uint64_t bytes, bool is_written, struct hr_diag *diag,
                                      struct hr_object **ret_object, uint8_t **ret_memory);
/* Some of it could not be read or written meanwhile: HR_E_DATA_LOSS (reason REGION). NULL is fine.
 */
HR_NODISCARD hr_status hr_region_check(const struct hr_object *object, struct hr_diag *diag);
