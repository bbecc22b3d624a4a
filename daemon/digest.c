/*
 * SHA-256 through OpenSSL's EVP, which picks the processor's instructions at run time.
 *
 * A tree digest holds two contexts: `leaf` runs over the bytes of the open leaf, `root` over the
 * digests of the closed ones. A leaf is closed when it is full, and the last one when the tree is
 * finished, if it holds any byte. Invariant: leaf_bytes < HR_DIGEST_LEAF_BYTES between calls.
 */
#include "daemon/digest.h"

#include <openssl/evp.h>
#include <string.h>

hr_status hr_sha256(const void *bytes, size_t size, struct hr_diag *diag,
                    uint8_t ret_digest[HR_DIGEST_BYTES]) {
        uint8_t digest[HR_DIGEST_BYTES];

        if (!EVP_Digest(bytes, size, digest, NULL, EVP_sha256(), NULL))
                return hr_fail(diag, HR_E_EXHAUSTED, "SHA-256 of %zu bytes", size);
        memcpy(ret_digest, digest, sizeof digest);
        return HR_OK;
}

hr_status hr_tree_digest_init(struct hr_tree_digest *tree, struct hr_diag *diag) {
        *tree = (struct hr_tree_digest){.leaf = EVP_MD_CTX_new(), .root = EVP_MD_CTX_new()};
        if (tree->leaf && tree->root && EVP_DigestInit_ex(tree->leaf, EVP_sha256(), NULL) &&
            EVP_DigestInit_ex(tree->root, EVP_sha256(), NULL))
                return HR_OK;
        hr_tree_digest_deinit(tree);
        return hr_fail(diag, HR_E_EXHAUSTED, "digest contexts");
}

void hr_tree_digest_deinit(struct hr_tree_digest *tree) {
        EVP_MD_CTX_free(tree->leaf);
        EVP_MD_CTX_free(tree->root);
        *tree = (struct hr_tree_digest){0};
}

static hr_status tree_close_leaf(struct hr_tree_digest *tree, struct hr_diag *diag) {
        uint8_t digest[HR_DIGEST_BYTES];

        if (!EVP_DigestFinal_ex(tree->leaf, digest, NULL) ||
            !EVP_DigestUpdate(tree->root, digest, sizeof digest) ||
            !EVP_DigestInit_ex(tree->leaf, EVP_sha256(), NULL))
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a digest");
        tree->leaf_bytes = 0;
        return HR_OK;
}

hr_status hr_tree_digest_update(struct hr_tree_digest *tree, const void *bytes, size_t size,
                                struct hr_diag *diag) {
        const uint8_t *next = bytes;

        HR_ASSERT(tree->leaf && tree->root);
        while (size > 0) {
                size_t part = (size_t) HR_MIN(size, HR_DIGEST_LEAF_BYTES - tree->leaf_bytes);

                if (!EVP_DigestUpdate(tree->leaf, next, part))
                        return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a digest");
                tree->leaf_bytes += part;
                tree->bytes += part;
                next += part;
                size -= part;
                if (tree->leaf_bytes == HR_DIGEST_LEAF_BYTES)
                        HR_TRY(tree_close_leaf(tree, diag));
        }
        return HR_OK;
}

hr_status hr_tree_digest_finish(struct hr_tree_digest *tree, struct hr_diag *diag,
                                uint8_t ret_digest[HR_DIGEST_BYTES]) {
        HR_ASSERT(tree->leaf && tree->root);
        if (tree->leaf_bytes > 0)
                HR_TRY(tree_close_leaf(tree, diag));
        if (!EVP_DigestFinal_ex(tree->root, ret_digest, NULL))
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for a digest");
        hr_tree_digest_deinit(tree);
        return HR_OK;
}

bool hr_digest_equal(const uint8_t a[HR_DIGEST_BYTES], const uint8_t b[HR_DIGEST_BYTES]) {
        return memcmp(a, b, HR_DIGEST_BYTES) == 0;
}

void hr_digest_hex(const uint8_t digest[HR_DIGEST_BYTES], char ret_hex[HR_DIGEST_HEX_BYTES]) {
        static const char digits[] = "0123456789abcdef";

        for (unsigned i = 0; i < HR_DIGEST_BYTES; i++) {
                ret_hex[2 * i] = digits[digest[i] >> 4];
                ret_hex[2 * i + 1] = digits[digest[i] & 15];
        }
        ret_hex[2 * HR_DIGEST_BYTES] = '\0';
}

static int hex_digit(char digit) {
        return digit >= '0' && digit <= '9'   ? digit - '0'
               : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10
                                              : -1;
}

bool hr_digest_read(const char *text, size_t length, uint8_t ret_digest[HR_DIGEST_BYTES]) {
        if (length != HR_DIGEST_HEX_BYTES - 1)
                return false;
        for (unsigned i = 0; i < HR_DIGEST_BYTES; i++) {
                const int high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);

                if (high < 0 || low < 0)
                        return false;
                ret_digest[i] = (uint8_t) (high << 4 | low);
        }
        return true;
}
