/* Streams that share an upload: who is given what, where bytes go, what is refused. */
#include "daemon/upload.h"

#include <string.h>
#include <unistd.h>

#include "tests/harness.h"

#define LEAF HR_DIGEST_LEAF_BYTES

struct bench {
        struct hr_image *image;
        struct hr_workers *workers;
        struct hr_upload *upload;
        bool is_in_place;
        atomic_uint wakes;
};

static void count_wake(void *arg) {
        atomic_fetch_add(&((struct bench *) arg)->wakes, 1);
}

static void bench_init(struct bench *bench, uint64_t total, const uint8_t *leaf_digests) {
        struct hr_diag diag = {0};
        struct hr_upload_config config = {.total_bytes = total,
                                          .leaf_digests = leaf_digests,
                                          .is_in_place = bench->is_in_place,
                                          .wake = count_wake,
                                          .arg = bench};

        *bench = (struct bench){.is_in_place = config.is_in_place};
        HR_EXPECT_OK(hr_image_new_memory(total, &diag, &bench->image), &diag);
        HR_EXPECT_OK(hr_workers_new("test", 2, &diag, &bench->workers), &diag);
        config.image = bench->image;
        config.workers = bench->workers;
        HR_EXPECT_OK(hr_upload_new(&config, &diag, &bench->upload), &diag);
}

static void bench_deinit(struct bench *bench) {
        hr_workers_free(bench->workers);
        hr_upload_unref(bench->upload);
        hr_image_unref(bench->image);
}

static void send(struct hr_upload_stream *stream, uint64_t offset, uint64_t bytes, uint8_t value) {
        struct hr_diag diag = {0};
        uint8_t *memory = NULL;

        HR_EXPECT_OK(hr_upload_place(stream, offset, bytes, &diag, &memory), &diag);
        memset(memory, value, bytes);
        hr_upload_commit(stream, bytes);
}

static void wait_hashed(const struct hr_upload *upload) {
        struct hr_diag diag = {0};
        bool hashed = false;

        for (unsigned i = 0; i < 100000 && !hashed; i++) {
                HR_EXPECT_OK(hr_upload_check(upload, &diag, &hashed), &diag);
                usleep(50);
        }
        HR_EXPECT(hashed);
}

HR_TEST(leaves_are_given_once_and_taken_back) {
        struct bench bench = {0};
        struct hr_upload_stream a = {0}, b = {0};
        struct hr_diag diag = {0};
        uint64_t offset = 0;
        uint8_t bits = 0, digest[HR_DIGEST_BYTES];

        bench_init(&bench, 3 * LEAF + 10, NULL);
        HR_EXPECT_OK(hr_upload_join(bench.upload, LEAF, &diag, &a), &diag);
        HR_EXPECT_OK(hr_upload_join(bench.upload, LEAF, &diag, &b), &diag);
        HR_EXPECT_EQ(hr_upload_grant(&a, 100, &offset), 100);
        HR_EXPECT_EQ(offset, 0);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF + 5, &offset), LEAF);
        HR_EXPECT_EQ(offset, LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&a, LEAF, &offset), LEAF - 100);
        HR_EXPECT_EQ(offset, 100);
        HR_EXPECT_EQ(hr_upload_grant(&a, 7, &offset), 7); /* leaf 1 is another's */
        HR_EXPECT_EQ(offset, 2 * LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF, &offset), 10);
        HR_EXPECT_EQ(offset, 3 * LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF, &offset), 0);
        send(&a, 0, LEAF - 1, 1);
        send(&b, LEAF, LEAF, 2);
        HR_EXPECT_EQ(hr_upload_received(bench.upload), 2 * LEAF - 1);
        hr_upload_map(bench.upload, &bits);
        HR_EXPECT_EQ(bits, 2);
        hr_upload_leave(&a);
        hr_upload_leave(&a);
        HR_EXPECT_EQ(hr_upload_received(bench.upload), LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF, &offset), LEAF); /* what the other gave back */
        HR_EXPECT_EQ(offset, 0);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF, &offset), LEAF);
        HR_EXPECT_EQ(offset, 2 * LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&b, LEAF, &offset), 0);
        send(&b, 3 * LEAF, 10, 4);
        send(&b, 0, LEAF, 1);
        HR_EXPECT(!hr_upload_is_received(bench.upload));
        send(&b, 2 * LEAF, LEAF, 3);
        HR_EXPECT(hr_upload_is_received(bench.upload));
        wait_hashed(bench.upload);
        HR_EXPECT_EQ(bench.image->base[3 * LEAF - 1], 3);
        HR_EXPECT_OK(hr_upload_digest(bench.upload, &diag, digest), &diag);
        hr_upload_leave(&b);
        bench_deinit(&bench);
}

/* What is written through the descriptor is what is hashed; what is sealed takes no more. */
HR_TEST(places_are_written_through_the_image) {
        struct hr_upload_stream stream;
        struct hr_diag diag = {0};
        struct bench bench = {0};
        uint8_t *place = NULL, bytes[1000], digest[HR_DIGEST_BYTES], all[HR_DIGEST_BYTES];
        uint64_t offset = 0;

        bench_init(&bench, sizeof bytes, NULL);
        memset(bytes, 7, sizeof bytes);
        HR_EXPECT_OK(hr_upload_join(bench.upload, LEAF, &diag, &stream), &diag);
        HR_EXPECT(hr_upload_written(&stream) == bench.image);
        HR_EXPECT_EQ(hr_upload_grant(&stream, LEAF, &offset), sizeof bytes);
        HR_EXPECT_OK(hr_upload_place(&stream, 0, sizeof bytes, &diag, &place), &diag);
        HR_EXPECT_OK(hr_image_write(bench.image, place, bytes, 999, &diag), &diag);
        HR_EXPECT_OK(hr_image_write(bench.image, place + 999, bytes, 1, &diag), &diag);
        hr_upload_commit(&stream, sizeof bytes);
        wait_hashed(bench.upload);
        HR_EXPECT_OK(hr_upload_digest(bench.upload, &diag, digest), &diag);
        HR_EXPECT_OK(hr_sha256(bytes, sizeof bytes, &diag, all), &diag);
        HR_EXPECT_OK(hr_sha256(all, sizeof all, &diag, all), &diag);
        HR_EXPECT(hr_digest_equal(digest, all));
        hr_upload_leave(&stream);

        HR_EXPECT_OK(hr_image_seal(bench.image, &diag), &diag);
        bytes[0] = 8;
        HR_EXPECT_EQ(hr_image_write(bench.image, place, bytes, 1, &diag), HR_E_EXHAUSTED);
        HR_EXPECT_STREQ(diag.reason, "HOST_MEMORY");
        HR_EXPECT_EQ(bench.image->base[0], 7);
        bench_deinit(&bench);
}

HR_TEST(places_are_filled_where_pages_are_large) {
        struct hr_upload_stream stream;
        struct hr_diag diag = {0};
        struct bench bench = {.is_in_place = true};
        uint64_t offset = 0;

        bench_init(&bench, LEAF + 5, NULL);
        HR_EXPECT_OK(hr_upload_join(bench.upload, 2 * LEAF, &diag, &stream), &diag);
        HR_EXPECT(!hr_upload_written(&stream));
        HR_EXPECT_EQ(hr_upload_grant(&stream, LEAF, &offset), LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&stream, LEAF, &offset), 5);
        send(&stream, 0, LEAF + 5, 1);
        wait_hashed(bench.upload);
        hr_upload_leave(&stream);
        bench_deinit(&bench);
}

HR_TEST(only_what_was_granted_has_a_place) {
        static const struct {
                uint64_t offset, bytes;
                const char *reason; /* NULL: allowed */
        } cases[] = {
                {0, 1, NULL},
                {0, 2 * LEAF + 50, NULL}, /* leaves that follow each other are one run */
                {0, 2 * LEAF + 51, "CREDIT"},
                {1, 1, "OFFSET"},
                {LEAF, 1, "OFFSET"},
                {UINT64_MAX, 1, "OFFSET"},
                {0, 3 * LEAF + 1, "SIZE"},
                {0, UINT64_MAX, "SIZE"},
        };
        struct bench bench = {0};
        struct hr_upload_stream stream = {0};
        struct hr_diag first = {0};
        uint64_t offset = 0;

        bench_init(&bench, 3 * LEAF, NULL);
        HR_EXPECT_OK(hr_upload_join(bench.upload, 3 * LEAF, &first, &stream), &first);
        HR_EXPECT_EQ(hr_upload_grant(&stream, LEAF, &offset), LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&stream, LEAF, &offset), LEAF);
        HR_EXPECT_EQ(hr_upload_grant(&stream, 50, &offset), 50);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_diag diag = {0};
                uint8_t *memory = NULL;
                const hr_status status =
                        hr_upload_place(&stream, cases[i].offset, cases[i].bytes, &diag, &memory);

                HR_EXPECT_EQ(status, cases[i].reason ? HR_E_RANGE : HR_OK);
                if (cases[i].reason)
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                else
                        HR_EXPECT(memory == bench.image->base);
        }
        send(&stream, 0, LEAF + LEAF / 2, 9); /* over the edge of a leaf */
        send(&stream, LEAF + LEAF / 2, LEAF / 2 + 50, 9);
        HR_EXPECT_EQ(hr_upload_received(bench.upload), 2 * LEAF + 50);
        hr_upload_leave(&stream);
        HR_EXPECT_EQ(hr_upload_received(bench.upload), 2 * LEAF);
        bench_deinit(&bench);
}

HR_TEST(a_wrong_leaf_is_named) {
        uint8_t *zeros = calloc(1, LEAF), digests[2 * HR_DIGEST_BYTES];
        struct bench bench = {0};
        struct hr_diag diag = {0};
        bool hashed = false;

        HR_EXPECT_EQ(hr_sha256(zeros, LEAF, NULL, digests), HR_OK);
        HR_EXPECT_EQ(hr_sha256(zeros, 5, NULL, digests + HR_DIGEST_BYTES), HR_OK);
        bench_init(&bench, LEAF + 5, digests);
        bench.image->base[LEAF + 4] = 1;
        hr_upload_fill(bench.upload);
        for (unsigned i = 0; i < 100000 && hr_upload_check(bench.upload, &diag, &hashed) == HR_OK;
             i++)
                usleep(50);
        HR_EXPECT_EQ(diag.status, HR_E_DATA_LOSS);
        HR_EXPECT_EQ(diag.actual, 1);
        HR_EXPECT_STREQ(diag.field, "leaf");
        bench_deinit(&bench);
        free(zeros);
}

HR_TEST(sealed_memory_is_there_and_cannot_change) {
        struct hr_image *image = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_image_new_memory(3 * LEAF, &diag, &image), &diag);
        memset(image->base, 7, 3 * LEAF);
        HR_EXPECT_OK(hr_image_seal(image, &diag), &diag);
        HR_EXPECT_EQ(image->base[3 * LEAF - 1], 7);
        HR_EXPECT(pwrite(image->fd, "x", 1, 0) < 0);
        HR_EXPECT(ftruncate(image->fd, 1) < 0 && ftruncate(image->fd, 4 * LEAF) < 0);
        hr_image_unref(image);
}
