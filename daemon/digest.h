/*
 * SHA-256 and the content digest of a weight set.
 *
 * The content digest is a tree of two levels: the bytes are cut into leaves of HR_DIGEST_LEAF_BYTES
 * (the last one shorter), and the digest is the SHA-256 of the concatenated SHA-256 of the leaves.
 * It can be computed in any portions while bytes arrive, and a single bad leaf can be named.
 * No content has no leaves: its digest is the SHA-256 of nothing.
 */
#pragma once

#include "core/status.h"

#define HR_DIGEST_BYTES 32
#define HR_DIGEST_HEX_BYTES 65 /* 64 digits and the terminator */
#define HR_DIGEST_LEAF_BYTES (UINT64_C(4) << 20)

/* SHA-256 of one piece of memory. HR_E_EXHAUSTED without memory. Thread: any. */
HR_NODISCARD hr_status hr_sha256(const void *bytes, size_t size, struct hr_diag *diag,
                                 uint8_t ret_digest[HR_DIGEST_BYTES]);

/* A tree digest being computed. Zeroed is valid to deinit. One owner, one thread at a time. */
struct hr_tree_digest {
        void *leaf, *root;   /* EVP contexts */
        uint64_t leaf_bytes; /* taken into the open leaf */
        uint64_t bytes;      /* taken in all */
};

HR_NODISCARD hr_status hr_tree_digest_init(struct hr_tree_digest *tree, struct hr_diag *diag);
void hr_tree_digest_deinit(struct hr_tree_digest *tree);
/* Takes the next bytes, in any portions. HR_E_INTERNAL when the library fails. */
HR_NODISCARD hr_status hr_tree_digest_update(struct hr_tree_digest *tree, const void *bytes,
                                             size_t size, struct hr_diag *diag);
/* Closes the last leaf and gives the digest. The tree takes nothing more. */
HR_NODISCARD hr_status hr_tree_digest_finish(struct hr_tree_digest *tree, struct hr_diag *diag,
                                             uint8_t ret_digest[HR_DIGEST_BYTES]);

bool hr_digest_equal(const uint8_t a[HR_DIGEST_BYTES], const uint8_t b[HR_DIGEST_BYTES]);
/* Lower-case hexadecimal, NUL-terminated. */
void hr_digest_hex(const uint8_t digest[HR_DIGEST_BYTES], char ret_hex[HR_DIGEST_HEX_BYTES]);
/* The digest that hr_digest_hex() has written; false for any other text. ret_digest may be written
 * in part. */
bool hr_digest_read(const char *text, size_t length, uint8_t ret_digest[HR_DIGEST_BYTES]);
