#include "daemon/weights_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/harness.h"

#define FILE_BYTES (3 * HR_READER_CHUNK_BYTES + 5000)

struct mapped {
        int fd;
        uint8_t *base;
};

static struct mapped mapped_new(void) {
        char path[] = "/tmp/hr-reader-XXXXXX";
        struct mapped mapped = {.fd = mkstemp(path)};

        HR_EXPECT(mapped.fd >= 0 && unlink(path) == 0);
        HR_EXPECT(ftruncate(mapped.fd, FILE_BYTES) == 0);
        mapped.base = mmap(NULL, FILE_BYTES, PROT_READ, MAP_PRIVATE, mapped.fd, 0);
        HR_EXPECT(mapped.base != MAP_FAILED);
        return mapped;
}

static void mapped_free(struct mapped *mapped) {
        HR_EXPECT(munmap(mapped->base, FILE_BYTES) == 0);
        close(mapped->fd);
}

static atomic_uint wakes;

static void count_wake(void *arg) {
        (void) arg;
        atomic_fetch_add(&wakes, 1);
}

static struct hr_reader_task task_of(const struct mapped *mapped,
                                     const struct hr_reader_range *ranges, uint32_t count) {
        return (struct hr_reader_task){.base = mapped->base,
                                       .fd = mapped->fd,
                                       .ranges = ranges,
                                       .range_count = count,
                                       .wake = count_wake};
}

static void wait_over(const struct hr_reader_task *task) {
        for (unsigned i = 0; i < 200000 && !hr_reader_is_over(task); i++)
                usleep(50);
        HR_EXPECT(hr_reader_is_over(task));
}

/* Pages of the mapping that are in the system's cache. */
static size_t pages_there(const struct mapped *mapped, uint64_t bytes) {
        static unsigned char there[FILE_BYTES / 4096 + 2];
        const size_t page = (size_t) sysconf(_SC_PAGESIZE), count = (bytes + page - 1) / page;
        size_t sum = 0;

        HR_EXPECT(mincore(mapped->base, bytes, there) == 0);
        for (size_t i = 0; i < count; i++)
                sum += there[i] & 1;
        return sum;
}

HR_TEST(a_task_is_counted_to_its_end) {
        static const struct hr_reader_range ranges[] = {
                {0, 100, false},
                {4096, 0, false},
                {9000, HR_READER_CHUNK_BYTES * 2, false},
                {HR_READER_CHUNK_BYTES * 2 + 9000, 77, true},
                {FILE_BYTES - 10, 10, false}};
        struct mapped mapped = mapped_new();
        struct hr_reader_task task = task_of(&mapped, ranges, HR_ARRAY_LENGTH(ranges));
        struct hr_reader *reader = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_reader_new(&diag, &reader), &diag);
        hr_reader_add(reader, &task);
        wait_over(&task);
        HR_EXPECT_EQ(atomic_load(&task.counted), 100 + HR_READER_CHUNK_BYTES * 2 + 77 + 10);
        HR_EXPECT(!atomic_load(&task.failed));
        (void) hr_reader_free(reader);
        HR_EXPECT(atomic_load(&wakes) >= 4); /* two chunks of the long range, two short ones */
        HR_EXPECT(pages_there(&mapped, 9000 + HR_READER_CHUNK_BYTES * 2) >=
                  HR_READER_CHUNK_BYTES * 2 / (uint64_t) sysconf(_SC_PAGESIZE));
        mapped_free(&mapped);
}

HR_TEST(tasks_take_turns) {
        static const struct hr_reader_range large[] = {{0, FILE_BYTES, false}},
                                            small[] = {{100, 100, false}};
        struct mapped mapped = mapped_new();
        struct hr_reader_task first = task_of(&mapped, large, 1);
        struct hr_reader_task second = task_of(&mapped, small, 1);
        struct hr_reader *reader = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_reader_new(&diag, &reader), &diag);
        hr_reader_add(reader, &first);
        hr_reader_add(reader, &second);
        wait_over(&second);
        wait_over(&first);
        HR_EXPECT_EQ(atomic_load(&first.counted), FILE_BYTES);
        HR_EXPECT_EQ(atomic_load(&second.counted), 100);
        (void) hr_reader_free(reader);
        mapped_free(&mapped);
}

HR_TEST(a_stopped_task_ends_early) {
        static const struct hr_reader_range ranges[] = {{0, FILE_BYTES, false}};
        struct mapped mapped = mapped_new();
        struct hr_reader_task task = task_of(&mapped, ranges, 1);
        struct hr_reader *reader = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT(hr_reader_is_over(&(struct hr_reader_task){0})); /* never added */
        HR_EXPECT_OK(hr_reader_new(&diag, &reader), &diag);
        hr_reader_add(reader, &task);
        hr_reader_stop(&task);
        hr_reader_stop(&task);
        wait_over(&task);
        HR_EXPECT(!atomic_load(&task.failed));
        (void) hr_reader_free(reader);
        mapped_free(&mapped);
}

/* Both ways of bringing bytes in give the same answers. */
HR_TEST(what_is_not_there_is_told) {
        struct mapped mapped = mapped_new();
        struct hr_reader_task task = task_of(&mapped, NULL, 0);
        bool (*const ways[])(const struct hr_reader_task *, uint64_t,
                             uint64_t) = {hr_reader_populate, hr_reader_read_through};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(ways); i++) {
                HR_EXPECT(ways[i](&task, 0, FILE_BYTES));
                HR_EXPECT(ways[i](&task, 12345, 1));
        }
        HR_EXPECT(ftruncate(mapped.fd, 100000) == 0);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(ways); i++) {
                HR_EXPECT(ways[i](&task, 0, 100000));
                HR_EXPECT(!ways[i](&task, 100000, FILE_BYTES - 100000));
        }
        mapped_free(&mapped);
}

HR_TEST(a_task_that_fails_says_how_far_it_got) {
        static const struct hr_reader_range ranges[] = {{0, 5000, false},
                                                        {5000, FILE_BYTES - 5000, false}};
        struct mapped mapped = mapped_new();
        struct hr_reader_task task = task_of(&mapped, ranges, 2);
        struct hr_reader *reader = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT(ftruncate(mapped.fd, 100000) == 0);
        HR_EXPECT_OK(hr_reader_new(&diag, &reader), &diag);
        hr_reader_add(reader, &task);
        wait_over(&task);
        HR_EXPECT(atomic_load(&task.failed));
        HR_EXPECT_EQ(atomic_load(&task.counted), 5000);
        (void) hr_reader_free(reader);
        mapped_free(&mapped);
}
