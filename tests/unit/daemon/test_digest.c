#include "daemon/digest.h"

#include "tests/harness.h"

static void expect_hex(const uint8_t digest[HR_DIGEST_BYTES], const char *expected) {
        char hex[HR_DIGEST_HEX_BYTES];

        hr_digest_hex(digest, hex);
        HR_EXPECT_STREQ(hex, expected);
}

/* Vectors of FIPS 180-4. */
HR_TEST(sha256_known_vectors) {
        static const struct {
                const char *text, *hex;
        } cases[] = {
                {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        };
        struct hr_diag diag = {0};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                uint8_t digest[HR_DIGEST_BYTES];

                HR_EXPECT_OK(hr_sha256(cases[i].text, strlen(cases[i].text), &diag, digest), &diag);
                expect_hex(digest, cases[i].hex);
        }
}

/* The definition, written down straight: SHA-256 over the leaves' SHA-256. */
static void tree_by_definition(const uint8_t *bytes, size_t size,
                               uint8_t ret_digest[HR_DIGEST_BYTES]) {
        uint8_t leaves[8 * HR_DIGEST_BYTES];
        struct hr_diag diag = {0};
        size_t count = 0;

        for (size_t at = 0; at < size; at += HR_DIGEST_LEAF_BYTES, count++)
                HR_EXPECT_OK(hr_sha256(bytes + at, HR_MIN(size - at, HR_DIGEST_LEAF_BYTES), &diag,
                                       leaves + count * HR_DIGEST_BYTES),
                             &diag);
        HR_EXPECT_OK(hr_sha256(leaves, count * HR_DIGEST_BYTES, &diag, ret_digest), &diag);
}

HR_TEST(tree_equals_definition_in_any_portions) {
        const size_t leaf = HR_DIGEST_LEAF_BYTES;
        const size_t sizes[] = {0, 1, 1000, leaf - 1, leaf, leaf + 1, 2 * leaf, 2 * leaf + 12345};
        const size_t portions[] = {leaf * 3, 1000003, 65536, leaf};
        uint8_t *bytes = malloc(3 * leaf);
        struct hr_diag diag = {0};

        for (size_t i = 0; i < 3 * leaf; i++)
                bytes[i] = (uint8_t) (i * 2654435761U >> 13);
        for (size_t s = 0; s < HR_ARRAY_LENGTH(sizes); s++) {
                uint8_t expected[HR_DIGEST_BYTES], digest[HR_DIGEST_BYTES];
                struct hr_tree_digest tree;

                tree_by_definition(bytes, sizes[s], expected);
                HR_EXPECT_OK(hr_tree_digest_init(&tree, &diag), &diag);
                for (size_t at = 0, part; at < sizes[s]; at += part) {
                        part = HR_MIN(sizes[s] - at, portions[s % HR_ARRAY_LENGTH(portions)]);
                        HR_EXPECT_OK(hr_tree_digest_update(&tree, bytes + at, part, &diag), &diag);
                }
                HR_EXPECT_EQ(tree.bytes, sizes[s]);
                HR_EXPECT_OK(hr_tree_digest_finish(&tree, &diag, digest), &diag);
                HR_EXPECT(hr_digest_equal(digest, expected));
        }
        free(bytes);
}

HR_TEST(tree_notices_one_bit_anywhere) {
        const size_t size = HR_DIGEST_LEAF_BYTES + 100;
        const size_t places[] = {0, 77, HR_DIGEST_LEAF_BYTES - 1, HR_DIGEST_LEAF_BYTES, size - 1};
        uint8_t *bytes = calloc(1, size);
        uint8_t clean[HR_DIGEST_BYTES], dirty[HR_DIGEST_BYTES];

        tree_by_definition(bytes, size, clean);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(places); i++) {
                bytes[places[i]] ^= 4;
                tree_by_definition(bytes, size, dirty);
                bytes[places[i]] ^= 4;
                HR_EXPECT(!hr_digest_equal(clean, dirty));
        }
        free(bytes);
}

HR_TEST(deinit_of_zeroed_and_unfinished) {
        struct hr_tree_digest zeroed = {0}, open = {0};
        struct hr_diag diag = {0};

        hr_tree_digest_deinit(&zeroed);
        HR_EXPECT_OK(hr_tree_digest_init(&open, &diag), &diag);
        HR_EXPECT_OK(hr_tree_digest_update(&open, "x", 1, &diag), &diag);
        hr_tree_digest_deinit(&open);
}
