/*
 * Digests of contents: SHA-256 of the SHA-256 of each leaf of 4 MiB, one leaf after the other.
 * Alone with OpenSSL's hashes.
 */
#include "client/c/client_priv.h"

#include <openssl/evp.h>
#include <stdlib.h>

#define LEAF_BYTES (UINT64_C(4) << 20)

_Static_assert(HR_WIRE_DIGEST_BYTES == 32, "SHA-256");

/* The next `bytes` bytes of the parts, from *at on in the first. */
static bool leaf_hash(EVP_MD_CTX *context, const struct iovec **parts, size_t *at, uint64_t bytes,
                      uint8_t *ret_digest) {
        bool ok = EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;

        while (ok && bytes > 0) {
                size_t left = (*parts)->iov_len - *at,
                       taken = (size_t) HR_MIN(bytes, (uint64_t) left);

                if (taken > 0)
                        ok = EVP_DigestUpdate(context, (const uint8_t *) (*parts)->iov_base + *at,
                                              taken) == 1;
                bytes -= taken;
                *at += taken;
                if (*at == (*parts)->iov_len) {
                        ++*parts;
                        *at = 0;
                }
        }
        return ok && EVP_DigestFinal_ex(context, ret_digest, NULL) == 1;
}

bool hr_client_digest(const struct iovec *parts, uint64_t total, uint8_t **ret_leaves,
                      size_t *ret_bytes, uint8_t ret_digest[HR_WIRE_DIGEST_BYTES]) {
        const size_t count = (size_t) ((total + LEAF_BYTES - 1) / LEAF_BYTES);
        uint8_t *leaves = calloc(count + 1, HR_WIRE_DIGEST_BYTES);
        EVP_MD_CTX *context = EVP_MD_CTX_new();
        struct iovec all = {leaves, count * HR_WIRE_DIGEST_BYTES};
        const struct iovec *whole = &all;
        bool ok = leaves && context;
        size_t at = 0;

        for (size_t i = 0; ok && i < count; i++)
                ok = leaf_hash(context, &parts, &at, HR_MIN(total - i * LEAF_BYTES, LEAF_BYTES),
                               leaves + i * HR_WIRE_DIGEST_BYTES);
        at = 0;
        ok = ok && leaf_hash(context, &whole, &at, all.iov_len, ret_digest);
        EVP_MD_CTX_free(context);
        if (!ok) {
                free(leaves);
                return false;
        }
        *ret_leaves = leaves;
        *ret_bytes = all.iov_len;
        return true;
}
