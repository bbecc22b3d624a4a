#include "daemon/weights_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/large_pages.h"
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

#define LARGE_PAGE (UINT64_C(2) << 20)
#define LARGE_FILE_BYTES (4 * LARGE_PAGE + 5000)

static uint8_t byte_of(uint64_t at) {
        return (uint8_t) (at * 7 + at / 4096 * 13);
}

/* A file of known bytes, on disk and in the cache as it was written: in small pages. */
static int file_written(void) {
        char path[] = "/tmp/hr-reader-XXXXXX";
        const int fd = mkstemp(path);
        uint8_t page[4096];

        HR_EXPECT(fd >= 0 && unlink(path) == 0);
        for (uint64_t at = 0; at < LARGE_FILE_BYTES; at += sizeof page) {
                const uint64_t bytes = HR_MIN((uint64_t) sizeof page, LARGE_FILE_BYTES - at);

                for (uint64_t i = 0; i < bytes; i++)
                        page[i] = byte_of(at + i);
                HR_EXPECT_EQ(pwrite(fd, page, bytes, (off_t) at), bytes);
        }
        HR_EXPECT(fsync(fd) == 0);
        return fd;
}

static uint8_t *file_mapped(int fd) {
        uint8_t *base = mmap(NULL, LARGE_FILE_BYTES, PROT_READ, MAP_PRIVATE, fd, 0);

        HR_EXPECT(base != MAP_FAILED);
        hr_large_pages_want(base, LARGE_FILE_BYTES);
        return base;
}

static void file_free(int fd, uint8_t *base) {
        HR_EXPECT(munmap(base, LARGE_FILE_BYTES) == 0);
        close(fd);
}

/* Whether this kernel and file system have large pages of files at all. */
static bool large_pages_exist(int scanner) {
        const int fd = file_written();
        uint8_t *base = file_mapped(fd);
        struct hr_reader_task task = {.base = base, .fd = fd};
        bool used;

        hr_large_pages_drop(fd, base, 0, 4 * LARGE_PAGE);
        HR_EXPECT(hr_reader_populate(&task, 0, LARGE_FILE_BYTES));
        used = hr_large_pages_used(scanner, base, 0, 4 * LARGE_PAGE);
        file_free(fd, base);
        return used;
}

HR_TEST(a_cached_file_is_brought_into_large_pages) {
        static const struct hr_reader_range ranges[] = {{0, 3000, false},
                                                        {3000, LARGE_FILE_BYTES - 3000, false}};
        const int scanner = hr_large_pages_scanner(), fd = file_written();
        const bool exist = large_pages_exist(scanner);
        uint8_t *base = file_mapped(fd);

        for (int i = 0; i < 2; i++) { /* left alone, then as a load does it */
                struct hr_reader_task task = {.base = base,
                                              .fd = fd,
                                              .room = i ? LARGE_FILE_BYTES : 0,
                                              .ranges = ranges,
                                              .range_count = HR_ARRAY_LENGTH(ranges),
                                              .wake = count_wake};
                struct hr_reader *reader = NULL;
                struct hr_diag diag = {0};

                HR_EXPECT_OK(hr_reader_new(&diag, &reader), &diag);
                hr_reader_add(reader, &task);
                wait_over(&task);
                HR_EXPECT(!atomic_load(&task.failed));
                HR_EXPECT_EQ(atomic_load(&task.counted), LARGE_FILE_BYTES);
                HR_EXPECT_EQ(hr_large_pages_used(scanner, base, 0, 4 * LARGE_PAGE), i && exist);
                for (uint64_t at = 0; at < LARGE_FILE_BYTES; at += 61)
                        HR_EXPECT_EQ(base[at], byte_of(at));
                (void) hr_reader_free(reader);
        }
        if (scanner >= 0)
                close(scanner);
        file_free(fd, base);
}

HR_TEST(the_large_pages_of_a_range) {
        const uint8_t *base = (const uint8_t *) (uintptr_t) (16 * LARGE_PAGE);
        static const struct {
                uint64_t room, offset, bytes, first, end; /* in pages and 64ths of one */
        } cases[] = {
                {0, 0, 0, 0, 0},         {63, 0, 63, 0, 0},         {64, 0, 1, 0, 64},
                {200, 70, 1, 64, 128},   {200, 60, 70, 0, 192},     {200, 130, 70, 128, 192},
                {200, 192, 8, 0, 0},     {256, 64, 64, 64, 128},    {256, 255, 1, 192, 256},
        };
        const uint64_t part = LARGE_PAGE / 64;
        uint64_t first, end;

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                hr_large_pages_span(base, cases[i].room * part, cases[i].offset * part,
                                    cases[i].bytes * part, &first, &end);
                HR_EXPECT_EQ(first, cases[i].first * part);
                HR_EXPECT_EQ(end, cases[i].end * part);
        }
        hr_large_pages_span(base + 4096, 4 * LARGE_PAGE, 0, LARGE_PAGE, &first, &end);
        HR_EXPECT_EQ(first, end);
}
