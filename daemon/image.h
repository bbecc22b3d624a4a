/*
 * Images: ranges of mapped memory behind the contents of weight sets.
 *
 * Three kinds. A file is mapped privately and read-only. Memory of an upload is a memfd of the
 * daemon's, mapped writable until hr_image_seal(): then nobody can change or resize it any more,
 * and it is read-only here as well, at the same address. A client's memfd has come with its seals
 * and is mapped like a file.
 *
 * A mapped file may become shorter than its mapping; touching what is gone is a SIGBUS. The handler
 * that hr_image_guard() installs finds the image by the address, puts zeros in the place of the
 * rest of it, marks it lost, and lets the thread go on: whoever used the contents looks at
 * hr_image_check() before the result counts. A SIGBUS elsewhere ends the process as ever. Of the
 * page that the new end lies in nothing faults, it only reads as zeros behind it: so the check asks
 * for the file's size as well.
 *
 * Thread: any.
 */
#pragma once

#include <stdatomic.h>

#include "core/status.h"

struct hr_image {
        atomic_uint refs;
        uint8_t *base;
        uint64_t bytes; /* mapped */
        int fd;         /* of a memfd, or of a file that is watched; -1 = none */
        atomic_bool is_lost;
        bool is_writable; /* a shared mapping that is written here */
        bool is_file;     /* fd's size is looked at */
        uint32_t guard;   /* its entry in the handler's table, plus one */
};

/* Takes the mapping, also on failure; fd (-1 = none) only on success. */
HR_NODISCARD hr_status hr_image_new(void *base, uint64_t bytes, int fd, struct hr_diag *diag,
                                    struct hr_image **ret_image);
/* Zero-filled memory in a memfd. HR_E_EXHAUSTED without memory (reason HOST_MEMORY) or descriptors
 * (DESCRIPTORS). */
HR_NODISCARD hr_status hr_image_new_memory(uint64_t bytes, struct hr_diag *diag,
                                           struct hr_image **ret_image);
/* Writes through the descriptor of a memory image, from this address of it on: new pages are made
 * of what is written, neither cleared nor mapped before. HR_E_EXHAUSTED (reason HOST_MEMORY). */
HR_NODISCARD hr_status hr_image_write(struct hr_image *image, const uint8_t *to, const void *bytes,
                                      size_t size, struct hr_diag *diag);
/* Seals a memory image against writing, growing and shrinking. Nobody writes any more. */
HR_NODISCARD hr_status hr_image_seal(struct hr_image *image, struct hr_diag *diag);
struct hr_image *hr_image_ref(struct hr_image *image);
/* NULL is a no-op. Returns NULL. */
struct hr_image *hr_image_unref(struct hr_image *image);
HR_DEFINE_CLEANUP(struct hr_image *, hr_image_unrefp, hr_image_unref)

/* Some of its contents could not be read: what was computed from it since is worth nothing. */
bool hr_image_is_lost(const struct hr_image *image);
/* The same, after a look at the size of a file, as this system knows it without waiting for
 * another. Less than a microsecond. */
bool hr_image_check(struct hr_image *image);
/* A mapped file is watched through a descriptor of its own from now on. HR_E_EXHAUSTED (reason
 * DESCRIPTORS). */
HR_NODISCARD hr_status hr_image_watch(struct hr_image *image, int fd, struct hr_diag *diag);
void hr_image_mark_lost(struct hr_image *image);

/* Installs the handler, once per process. */
void hr_image_guard(void);
