/*
 * Opening a regular file below a directory by a path that a client chose.
 */
#pragma once

#include "core/status.h"

#define HR_PATH_BYTES_MAX 4095

/* Is the path one that may be tried at all? HR_E_INVALID (reason PATH) when it is empty, absolute
 * or longer than HR_PATH_BYTES_MAX, has an empty, "." or ".." component or one of more than 255
 * bytes, a control character, or names a URL. The words do not repeat it. Thread: any. */
HR_NODISCARD hr_status hr_path_check(const char *path, struct hr_diag *diag);

/* Opens `path` below `directory` for reading: no symbolic link, no way out, no other file system, a
 * regular file. Never waits for the other end of a FIFO. HR_E_NOT_FOUND (reason FILE) with the same
 * words whatever the cause; HR_E_EXHAUSTED without descriptors or memory. component_wise: walk by
 * openat() even where the kernel has openat2(). Thread: any; may wait for the disk. */
HR_NODISCARD hr_status hr_open_beneath(const char *directory, const char *path,
                                       bool component_wise, struct hr_diag *diag, int *ret_fd);
