#include "daemon/weights_priv.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/daemon/fleet.h"
#include "tests/unit/daemon/gguf_builder.h"

/* Two devices with memory of their own, one of them small, and two that use host memory. */
static const struct test_device four[] = {
        {"iso", true, 0}, {"small", true, 1 << 20}, {"host0", false, 0}, {"host1", false, 0}};

enum { ISO, SMALL, HOST0, HOST1 };

static atomic_uint wakes;

static void count_wake(void *arg) {
        atomic_fetch_add(&wakes, 1);
}

struct bench {
        struct hr_fleet *fleet;
        struct hr_weights_store *store;
        char directory[64];
        struct hr_weights_file_config files;
        const char *directories[2];
};

static void bench_init(struct bench *bench, uint64_t bytes_max) {
        struct hr_weights_store_config config = {.bytes_max = bytes_max, .wake = count_wake};
        struct hr_diag diag = {0};

        *bench = (struct bench){.fleet = test_fleet_new(four, 4)};
        config.fleet = bench->fleet;
        HR_EXPECT_OK(hr_weights_store_new(&config, &diag, &bench->store), &diag);
        snprintf(bench->directory, sizeof bench->directory, "/tmp/hr-weights-XXXXXX");
        HR_EXPECT(mkdtemp(bench->directory));
        bench->directories[0] = "/nonexistent";
        bench->directories[1] = bench->directory;
        bench->files =
                (struct hr_weights_file_config){.directories = bench->directories,
                                                .directory_count = 2,
                                                .limits = {1 << 20, 1000, 1000, UINT64_C(1) << 40}};
}

/* Everything must be back: no set, no byte of any device. */
static void bench_deinit(struct bench *bench) {
        char command[128];

        HR_EXPECT_EQ(hr_weights_store_stats(bench->store).sets, 0);
        HR_EXPECT_EQ(hr_weights_store_stats(bench->store).bytes, 0);
        hr_weights_store_free(bench->store);
        for (uint32_t i = 0; i < 4; i++)
                HR_EXPECT_EQ(test_fleet_used(bench->fleet, i), 0);
        hr_fleet_free(bench->fleet);
        snprintf(command, sizeof command, "rm -rf '%s'", bench->directory);
        HR_EXPECT(system(command) == 0);
}

/* What a job was told. */
struct told {
        struct hr_weights_job job;
        unsigned count;
        hr_status status;
        struct hr_diag diag;
        struct hr_weights *set;
        bool already;
        struct hr_upload_stream stream; /* of a PUT */
};

static void remember(struct hr_weights_job *job, hr_status status, const struct hr_diag *diag,
                     struct hr_weights *set, bool already) {
        struct told *told = job->arg;

        told->count++;
        told->status = status;
        told->diag = *diag;
        told->set = set;
        told->already = already;
}

static void told_init(struct told *told) {
        *told = (struct told){.job = {.done = remember, .arg = told}};
}

/* Works until there is nothing to do and nothing in flight. */
static void settle(struct bench *bench, struct told *told) {
        for (unsigned i = 0; i < 100000 && told->count == 0; i++)
                if (!hr_weights_store_step(bench->store))
                        usleep(50);
        HR_EXPECT_EQ(told->count, 1);
        hr_upload_leave(&told->stream);
}

/* Steps until something has been done. */
static void step_once(struct bench *bench) {
        unsigned tries = 0;

        while (!hr_weights_store_step(bench->store) && tries++ < 100000)
                usleep(50);
        HR_EXPECT(tries < 100000);
}

static void step_all(struct bench *bench) {
        while (hr_weights_store_step(bench->store))
                ;
}

/* ---- Files ----------------------------------------------------------------------------------- */

#define LAYER_FLOATS 700000 /* more than one chunk of 2 MiB */

static void write_file(struct bench *bench, const char *name, uint8_t seed) {
        struct gguf_builder builder = {0};
        char path[128];
        int fd;

        gguf_header(&builder, 3, 4, 2);
        gguf_key_string(&builder, "general.architecture", "test");
        gguf_key_u32(&builder, "test.seed", seed);
        gguf_tensor(&builder, "embd", 100, 1, HR_TYPE_F32, 0);
        gguf_tensor(&builder, "blk.0.w", LAYER_FLOATS, 1, HR_TYPE_F32, 416);
        gguf_tensor(&builder, "blk.1.w", 64, 3, HR_TYPE_Q8_0, 416 + 4 * LAYER_FLOATS);
        gguf_tensor(&builder, "none", 0, 1, HR_TYPE_F32, 416 + 4 * LAYER_FLOATS + 224);
        gguf_pad(&builder, 32);
        gguf_fill(&builder, 416 + 4 * LAYER_FLOATS + 224, seed);
        snprintf(path, sizeof path, "%s/%s", bench->directory, name);
        fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        HR_EXPECT(fd >= 0 && write(fd, builder.bytes, builder.size) == (ssize_t) builder.size);
        close(fd);
        gguf_builder_free(&builder);
}

static void load(struct bench *bench, const char *path, const struct hr_placement_rule *rules,
                 uint32_t rule_count, struct told *told) {
        struct hr_weights_file *file = NULL;
        struct hr_diag diag = {0};

        told_init(told);
        HR_EXPECT_OK(hr_weights_file_open(&bench->files, path, &diag, &file), &diag);
        HR_EXPECT_OK(
                hr_weights_load(bench->store, file, NULL, rules, rule_count, &told->job, &diag),
                &diag);
        HR_EXPECT_EQ(told->count, 0);
}

/* Reads a tensor through its device's queue, and compares with what write_file wrote. */
static void expect_contents(struct bench *bench, const struct hr_weights *set, const char *name,
                            uint64_t start, uint8_t seed) {
        const int64_t tensor = hr_manifest_find(set->manifest, name, strlen(name));
        const struct hr_weights_home *home = &set->homes[tensor];
        const uint64_t bytes = set->manifest->tensors[tensor].bytes;
        uint8_t *copy = malloc(bytes + 1);
        struct hr_event *event = NULL;
        struct hr_diag diag = {0};
        struct hr_queue *queue = hr_fleet_queue(bench->fleet, home->device);

        HR_EXPECT_OK(hr_event_new(hr_fleet_device(bench->fleet, home->device), &diag, &event),
                     &diag);
        HR_EXPECT_OK(hr_queue_read(queue, (uint8_t *) home->buffer->base + home->offset, copy,
                                   bytes, NULL, &diag),
                     &diag);
        HR_EXPECT_OK(hr_queue_record(queue, event, &diag), &diag);
        HR_EXPECT_OK(hr_event_synchronize(event, UINT64_MAX, &diag), &diag);
        for (uint64_t i = 0; i < bytes; i++)
                HR_EXPECT_EQ(copy[i], (uint8_t) (seed + start + i));
        hr_event_free(event);
        free(copy);
}

HR_TEST(file_is_used_in_place_on_host_devices) {
        static const struct hr_placement_rule rules[] = {{"blk.0.*", "host0"}};
        struct bench bench;
        struct told told;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 5);
        load(&bench, "m.gguf", rules, 1, &told);
        settle(&bench, &told);
        HR_EXPECT_EQ(told.status, HR_OK);
        HR_EXPECT(!told.already && told.set->from_file && !told.set->has_digest);
        HR_EXPECT_STREQ(told.set->name, "m.gguf");
        HR_EXPECT_EQ(told.set->metadata_count, 2);
        HR_EXPECT(memmem(told.set->metadata, told.set->metadata_bytes, "general.architecture", 20));
        HR_EXPECT_EQ(told.set->homes[1].device, HOST0);
        HR_EXPECT_EQ(told.set->homes[2].device, HOST1);
        HR_EXPECT(told.set->homes[1].buffer->kind == &hr_host_kind);
        HR_EXPECT(told.set->homes[1].buffer->host_base == told.set->homes[2].buffer->host_base);
        HR_EXPECT(told.set->homes[1].buffer->device == hr_fleet_device(bench.fleet, HOST0));
        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).bytes_copied, 0);
        for (uint32_t i = 0; i < 4; i++)
                HR_EXPECT_EQ(test_fleet_used(bench.fleet, i), 0);
        expect_contents(&bench, told.set, "embd", 0, 5);
        expect_contents(&bench, told.set, "blk.0.w", 416, 5);
        expect_contents(&bench, told.set, "blk.1.w", 416 + 4 * LAYER_FLOATS, 5);
        HR_EXPECT(hr_weights_store_find(bench.store, 0, "m.gguf") == told.set);
        HR_EXPECT(hr_weights_store_next(bench.store, NULL) == told.set);
        HR_EXPECT(!hr_weights_store_next(bench.store, told.set));
        hr_weights_unref(told.set);
        HR_EXPECT(!hr_weights_store_find(bench.store, 0, "m.gguf"));
        bench_deinit(&bench);
}

HR_TEST(file_is_copied_to_devices_with_their_own_memory) {
        static const struct hr_placement_rule rules[] = {{"blk.0.*", "iso"}, {"blk.1.*", "small"}};
        struct bench bench;
        struct told told;
        uint64_t done, total, previous = 0;
        unsigned steps = 0;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 9);
        load(&bench, "m.gguf", rules, 2, &told);
        while (told.count == 0) {
                hr_weights_job_progress(&told.job, &done, &total);
                HR_EXPECT(done >= previous && done <= total);
                previous = done;
                steps += hr_weights_store_step(bench.store);
        }
        HR_EXPECT_EQ(told.status, HR_OK);
        HR_EXPECT(steps >= 3);
        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).bytes_copied, 4 * LAYER_FLOATS + 204);
        HR_EXPECT(test_fleet_used(bench.fleet, ISO) >= 4 * LAYER_FLOATS);
        HR_EXPECT_EQ(told.set->placement.shares[SMALL].planned_bytes, 204);
        expect_contents(&bench, told.set, "embd", 0, 9);
        expect_contents(&bench, told.set, "blk.0.w", 416, 9);
        expect_contents(&bench, told.set, "blk.1.w", 416 + 4 * LAYER_FLOATS, 9);
        hr_weights_unref(told.set);
        bench_deinit(&bench);
}

/* The numbers that a job's progress takes, in their order; 0 where it was not told of any. */
static unsigned watch(struct bench *bench, struct told *told, uint64_t *ret_total) {
        uint64_t done = 0, previous = UINT64_MAX;
        unsigned values = 0;

        *ret_total = 0;
        for (unsigned i = 0; i < 100000 && told->count == 0; i++) {
                uint64_t total;

                hr_weights_job_progress(&told->job, &done, &total);
                HR_EXPECT(*ret_total == 0 || total == *ret_total);
                HR_EXPECT(previous == UINT64_MAX || done >= previous);
                HR_EXPECT(done <= total);
                values += total > 0 && done != previous;
                *ret_total = total;
                previous = done;
                if (!hr_weights_store_step(bench->store))
                        usleep(50);
        }
        HR_EXPECT_EQ(told->count, 1);
        HR_EXPECT_EQ(done, *ret_total);
        return values;
}

HR_TEST(progress_counts_what_is_read_and_copied) {
        static const struct {
                const char *device;
                uint64_t resident_bytes_max, total; /* 400 of embd; blk.1 is in place as well */
        } cases[] = {{"iso", UINT64_MAX, 400 + 4 * LAYER_FLOATS + 204},
                     {"iso", 0, 4 * LAYER_FLOATS},
                     {"iso", 400, 400 + 4 * LAYER_FLOATS},
                     {"host0", UINT64_MAX, 400 + 4 * LAYER_FLOATS + 204},
                     {"host0", 1000, 400 + 204},
                     {"host0", 0, 0}};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_placement_rule rule = {"blk.0.*", cases[i].device};
                struct bench bench;
                struct told told;
                uint64_t total;
                unsigned values;

                bench_init(&bench, UINT64_MAX);
                bench.store->config.resident_bytes_max = cases[i].resident_bytes_max;
                write_file(&bench, "m.gguf", 3);
                load(&bench, "m.gguf", &rule, 1, &told);
                values = watch(&bench, &told, &total);
                HR_EXPECT_OK(told.status, &told.diag);
                HR_EXPECT_EQ(total, cases[i].total);
                HR_EXPECT(total == 0 ? values == 0 : values >= 1U + (i < 3));
                hr_weights_unref(told.set);
                bench_deinit(&bench);
        }
}

/* One page of a file that has become shorter is not there any more: a failure, no signal. */
HR_TEST(file_that_shrinks_while_it_is_read) {
        static const char *const devices[] = {"iso", "host0"};

        for (size_t i = 0; i < HR_ARRAY_LENGTH(devices); i++) {
                const struct hr_placement_rule rule = {"*", devices[i]};
                struct hr_weights_file *file = NULL;
                struct hr_diag diag = {0};
                struct bench bench;
                struct told told;
                char path[128];

                bench_init(&bench, UINT64_MAX);
                bench.store->config.resident_bytes_max = UINT64_MAX;
                write_file(&bench, "m.gguf", 3);
                told_init(&told);
                HR_EXPECT_OK(hr_weights_file_open(&bench.files, "m.gguf", &diag, &file), &diag);
                snprintf(path, sizeof path, "%s/m.gguf", bench.directory);
                HR_EXPECT(truncate(path, 2 * LAYER_FLOATS) == 0);
                HR_EXPECT_OK(hr_weights_load(bench.store, file, NULL, &rule, 1, &told.job, &diag),
                             &diag);
                settle(&bench, &told);
                HR_EXPECT_EQ(told.status, HR_E_DATA_LOSS);
                HR_EXPECT_STREQ(hr_diag_reason(&told.diag), "FILE");
                HR_EXPECT_EQ(hr_weights_store_stats(bench.store).failures, 1);
                bench_deinit(&bench);
        }
}

/* A pipeline may hold a buffer longer than anybody holds the set. */
HR_TEST(buffers_outlive_the_set) {
        struct bench bench;
        struct told told;
        struct hr_buffer *buffer;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 1);
        load(&bench, "m.gguf", NULL, 0, &told);
        settle(&bench, &told);
        buffer = hr_buffer_ref(told.set->homes[0].buffer);
        const uint64_t offset = told.set->homes[0].offset;
        hr_weights_unref(told.set);
        HR_EXPECT_EQ(((uint8_t *) buffer->host_base)[offset + 7], 8);
        hr_buffer_unref(buffer);
        bench_deinit(&bench);
}

HR_TEST(the_same_file_is_the_same_set) {
        static const struct hr_placement_rule rules[] = {{"*", "iso"}};
        struct bench bench;
        struct told first, second, third, other, changed;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 1);
        load(&bench, "m.gguf", rules, 1, &first);
        load(&bench, "m.gguf", rules, 1, &second); /* while it is being made */
        settle(&bench, &first);
        settle(&bench, &second);
        HR_EXPECT(first.set == second.set && !first.already && second.already);
        load(&bench, "m.gguf", rules, 1, &third);
        settle(&bench, &third);
        HR_EXPECT(third.set == first.set && third.already);
        HR_EXPECT_EQ(first.set->refs, 3);
        load(&bench, "m.gguf", NULL, 0, &other); /* elsewhere */
        settle(&bench, &other);
        HR_EXPECT(other.set != first.set && !other.already);
        usleep(20000);
        unlink(strcat(strcpy((char[128]){0}, bench.directory), "/m.gguf"));
        write_file(&bench, "m.gguf", 2);
        load(&bench, "m.gguf", rules, 1, &changed);
        settle(&bench, &changed);
        HR_EXPECT(changed.set != first.set && !changed.already);
        expect_contents(&bench, changed.set, "embd", 0, 2);
        expect_contents(&bench, first.set, "embd", 0, 1);
        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).sets, 3);
        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).shared, 2);
        for (unsigned i = 0; i < 3; i++)
                hr_weights_unref(first.set);
        hr_weights_unref(other.set);
        hr_weights_unref(changed.set);
        bench_deinit(&bench);
}

HR_TEST(cancelled_loads) {
        static const struct hr_placement_rule rules[] = {{"*", "iso"}};
        struct bench bench;
        struct told first, second, alone;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 1);
        load(&bench, "m.gguf", rules, 1, &first);
        load(&bench, "m.gguf", rules, 1, &second);
        step_once(&bench);
        hr_weights_job_cancel(&first.job); /* the other one goes on */
        hr_weights_job_cancel(&first.job);
        settle(&bench, &second);
        HR_EXPECT_EQ(first.count, 0);
        HR_EXPECT_EQ(second.status, HR_OK);
        expect_contents(&bench, second.set, "blk.0.w", 416, 1);
        hr_weights_job_cancel(&second.job);       /* has ended */
        load(&bench, "m.gguf", rules, 1, &first); /* ready: cancelled before it is told */
        hr_weights_job_cancel(&first.job);
        step_all(&bench);
        HR_EXPECT_EQ(first.count, 0);
        hr_weights_unref(second.set);
        load(&bench, "m.gguf", rules, 1, &alone);
        step_once(&bench);
        hr_weights_job_cancel(&alone.job); /* with a chunk in flight */
        while (hr_weights_store_stats(bench.store).working > 0)
                hr_weights_store_step(bench.store);
        HR_EXPECT_EQ(alone.count, 0);
        bench_deinit(&bench);
}

HR_TEST(refused_loads_leave_nothing) {
        static const struct {
                struct hr_placement_rule rule;
                hr_status status;
                const char *reason;
        } cases[] = {{{"*", "small"}, HR_E_EXHAUSTED, NULL},
                     {{"*", "nosuch"}, HR_E_NOT_FOUND, "DEVICE"},
                     {{"*", "fit:iso=x"}, HR_E_INVALID, "PLACEMENT"}};
        struct bench bench;
        struct told told;

        bench_init(&bench, 8 << 20);
        write_file(&bench, "m.gguf", 1);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_weights_file *file = NULL;
                struct hr_diag diag = {0};

                told_init(&told);
                HR_EXPECT_OK(hr_weights_file_open(&bench.files, "m.gguf", &diag, &file), &diag);
                HR_EXPECT_EQ(hr_weights_load(bench.store, file, "x", &cases[i].rule, 1, &told.job,
                                             &diag),
                             cases[i].status);
                if (cases[i].reason)
                        HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
                step_all(&bench);
                HR_EXPECT_EQ(told.count, 0);
        }
        bench_deinit(&bench);
        bench_init(&bench, 1000); /* the store's own limit */
        write_file(&bench, "m.gguf", 1);
        {
                struct hr_weights_file *file = NULL;
                struct hr_diag diag = {0};

                told_init(&told);
                HR_EXPECT_OK(hr_weights_file_open(&bench.files, "m.gguf", &diag, &file), &diag);
                HR_EXPECT_EQ(hr_weights_load(bench.store, file, "x", NULL, 0, &told.job, &diag),
                             HR_E_EXHAUSTED);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), "WEIGHTS_BYTES");
                HR_EXPECT_EQ(diag.limit, 1000);
        }
        bench_deinit(&bench);
}

HR_TEST(files_that_cannot_be_opened) {
        struct bench bench;
        struct hr_weights_file *file = NULL;
        struct hr_diag diag = {0};
        char path[128];
        int fd;

        bench_init(&bench, UINT64_MAX);
        HR_EXPECT_EQ(hr_weights_file_open(&bench.files, "none", &diag, &file), HR_E_NOT_FOUND);
        HR_EXPECT(!strstr(diag.words, bench.directory));
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_weights_file_open(&bench.files, "../x", &diag, &file), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "PATH");
        snprintf(path, sizeof path, "%s/empty", bench.directory);
        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_weights_file_open(&bench.files, "empty", &diag, &file), HR_E_INVALID);
        HR_EXPECT_STREQ(hr_diag_reason(&diag), "GGUF");
        HR_EXPECT(write(fd, "not a model", 11) == 11);
        hr_diag_clear(&diag);
        HR_EXPECT_EQ(hr_weights_file_open(&bench.files, "empty", &diag, &file), HR_E_INVALID);
        HR_EXPECT(!strstr(diag.words, bench.directory));
        close(fd);
        bench.files.directory_count = 0;
        HR_EXPECT_EQ(hr_weights_file_open(&bench.files, "m", NULL, &file), HR_E_NOT_FOUND);
        bench_deinit(&bench);
}

/* ---- Uploads --------------------------------------------------------------------------------- */

#define BIG_BYTES 5000000

static struct hr_manifest *upload_manifest(void) {
        static const uint32_t lengths[] = {3, 3, 5},
                              types[] = {HR_TYPE_I8, HR_TYPE_F32, HR_TYPE_I8};
        static const int64_t ne[] = {BIG_BYTES, 1, 1, 1, 25, 2, 1, 1, 10, 1, 1, 1};
        struct hr_manifest *manifest = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_manifest_new(&(struct hr_manifest_columns){3, lengths, "bigmidsmall", 11,
                                                                   types, ne},
                                     &(struct hr_manifest_limits){8, UINT64_MAX, UINT64_MAX}, &diag,
                                     &manifest),
                     &diag);
        return manifest;
}

static uint8_t *upload_contents(uint64_t bytes) {
        uint8_t *contents = malloc(bytes);

        for (uint64_t i = 0; i < bytes; i++)
                contents[i] = (uint8_t) (3 + i);
        return contents;
}

static void digest_of(const uint8_t *bytes, uint64_t size, uint8_t ret_digest[HR_DIGEST_BYTES]) {
        struct hr_tree_digest tree;
        struct hr_diag diag = {0};

        HR_EXPECT_OK(hr_tree_digest_init(&tree, &diag), &diag);
        HR_EXPECT_OK(hr_tree_digest_update(&tree, bytes, size, &diag), &diag);
        HR_EXPECT_OK(hr_tree_digest_finish(&tree, &diag, ret_digest), &diag);
}

/* A stream that may send everything. */
static struct hr_upload_stream *join(struct told *told, struct hr_upload *upload) {
        struct hr_diag diag = {0};
        uint64_t offset;

        HR_EXPECT_OK(hr_upload_join(upload, UINT32_MAX, &diag, &told->stream), &diag);
        while (hr_upload_grant(&told->stream, UINT64_MAX, &offset) > 0)
                ;
        hr_upload_unref(upload);
        return &told->stream;
}

static struct hr_upload_stream *put(struct bench *bench, const char *name, const uint8_t *digest,
                                    const char *device, struct told *told) {
        const struct hr_placement_rule rules[] = {{"big", device}};
        struct hr_manifest *manifest = upload_manifest();
        const struct hr_upload_request request = {.manifest = manifest,
                                                  .name = name,
                                                  .total_bytes = manifest->total_bytes,
                                                  .digest = digest,
                                                  .rules = rules,
                                                  .rule_count = 1};
        struct hr_upload *upload = NULL;
        struct hr_diag diag = {0};

        told_init(told);
        HR_EXPECT_OK(hr_weights_put(bench->store, &request, &told->job, &diag, &upload), &diag);
        return join(told, upload);
}

/* Sends contents[from .. to) in pieces of an odd size; true when that completed the upload. */
static bool send_range(struct bench *bench, struct hr_upload_stream *stream,
                       const uint8_t *contents, uint64_t from, uint64_t to) {
        for (uint64_t at = from, part; at < to; at += part) {
                uint8_t *memory = NULL;
                struct hr_diag diag = {0};

                part = HR_MIN(to - at, UINT64_C(123457));
                HR_EXPECT(!hr_upload_is_received(stream->upload));
                HR_EXPECT_OK(hr_upload_place(stream, at, part, &diag, &memory), &diag);
                memcpy(memory, contents + at, part);
                hr_upload_commit(stream, part);
                if (at % 2)
                        hr_weights_store_step(bench->store);
        }
        return hr_upload_is_received(stream->upload);
}

HR_TEST(upload_in_place_and_copied) {
        static const char *const devices[] = {"host1", "host0", "iso"};
        struct bench bench;
        uint8_t digest[HR_DIGEST_BYTES];
        struct hr_manifest *manifest = upload_manifest();
        const uint64_t total = manifest->total_bytes;
        uint8_t *contents = upload_contents(total);

        digest_of(contents, total, digest);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(devices); i++)
                for (unsigned given = 0; given < 2; given++) {
                        struct told told;
                        struct hr_upload_stream *upload;

                        bench_init(&bench, UINT64_MAX);
                        upload = put(&bench, "up", given ? digest : NULL, devices[i], &told);
                        HR_EXPECT(!hr_weights_store_find(bench.store, 0, "up"));
                        HR_EXPECT(!send_range(&bench, upload, contents, 0, total - 1));
                        step_all(&bench);
                        HR_EXPECT_EQ(told.count, 0);
                        HR_EXPECT_EQ(hr_upload_received(upload->upload), total - 1);
                        HR_EXPECT(!hr_weights_store_find(bench.store, 0, "up"));
                        HR_EXPECT(send_range(&bench, upload, contents, total - 1, total));
                        settle(&bench, &told);
                        HR_EXPECT_OK(told.status, &told.diag);
                        HR_EXPECT(told.set->has_digest &&
                                  hr_digest_equal(told.set->digest, digest));
                        for (uint32_t k = 0; k < 3; k++)
                                expect_contents(&bench, told.set, manifest->tensors[k].name,
                                                manifest->tensors[k].offset, 3);
                        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).bytes_hashed, total);
                        hr_weights_unref(told.set);
                        bench_deinit(&bench);
                }
        hr_manifest_free(manifest);
        free(contents);
}

HR_TEST(wrong_digest_is_data_loss_and_stores_nothing) {
        struct hr_manifest *manifest = upload_manifest();
        const uint64_t total = manifest->total_bytes;
        const uint64_t flips[] = {0, HR_DIGEST_LEAF_BYTES, total - 1};
        uint8_t *contents = upload_contents(total), digest[HR_DIGEST_BYTES];

        digest_of(contents, total, digest);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(flips); i++) {
                struct bench bench;
                struct told told;
                struct hr_upload_stream *upload;

                bench_init(&bench, UINT64_MAX);
                contents[flips[i]] ^= 1;
                upload = put(&bench, "up", digest, "host1", &told);
                HR_EXPECT(send_range(&bench, upload, contents, 0, total));
                contents[flips[i]] ^= 1;
                settle(&bench, &told);
                HR_EXPECT_EQ(told.status, HR_E_DATA_LOSS);
                HR_EXPECT_STREQ(hr_diag_reason(&told.diag), "DIGEST");
                HR_EXPECT(!told.set && !hr_weights_store_next(bench.store, NULL));
                bench_deinit(&bench);
        }
        hr_manifest_free(manifest);
        free(contents);
}

HR_TEST(places_must_follow_each_other) {
        struct bench bench;
        struct told told;
        struct hr_upload_stream *upload;
        uint8_t *memory = NULL;
        struct hr_manifest *manifest = upload_manifest();
        const uint64_t total = manifest->total_bytes;
        const struct {
                uint64_t offset, bytes;
                const char *reason;
        } cases[] = {{0, 100, "OFFSET"},         {999, 1, "OFFSET"},    {1001, 1, "OFFSET"},
                     {UINT64_MAX, 2, "OFFSET"},  {1000, total, "SIZE"}, {1000, UINT64_MAX, "SIZE"},
                     {1000, total - 999, "SIZE"}};

        bench_init(&bench, UINT64_MAX);
        upload = put(&bench, "up", NULL, "host1", &told);
        HR_EXPECT_EQ(hr_upload_place(upload, 0, 1000, NULL, &memory), HR_OK);
        memset(memory, 1, 1000);
        hr_upload_commit(upload, 600); /* in two portions */
        hr_upload_commit(upload, 400);
        HR_EXPECT(!hr_upload_is_received(upload->upload));
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                struct hr_diag diag = {0};

                HR_EXPECT_EQ(
                        hr_upload_place(upload, cases[i].offset, cases[i].bytes, &diag, &memory),
                        HR_E_RANGE);
                HR_EXPECT_STREQ(hr_diag_reason(&diag), cases[i].reason);
        }
        HR_EXPECT_EQ(hr_upload_place(upload, 1000, total - 1000, NULL, &memory), HR_OK);
        hr_weights_job_cancel(&told.job); /* aborted: everything goes, the stream's memory last */
        memset(memory, 1, total - 1000);
        hr_upload_leave(upload);
        HR_EXPECT_EQ(hr_weights_store_stats(bench.store).working, 0);
        HR_EXPECT_EQ(told.count, 0);
        hr_manifest_free(manifest);
        bench_deinit(&bench);
}

HR_TEST(equal_uploads_are_one_set) {
        struct bench bench;
        struct told first, second, third;
        struct hr_upload_stream *a, *b, *c;
        struct hr_manifest *manifest = upload_manifest();
        const uint64_t total = manifest->total_bytes;
        uint8_t *contents = upload_contents(total);
        uint64_t used;

        bench_init(&bench, UINT64_MAX);
        a = put(&bench, "up", NULL, "host1", &first);
        b = put(&bench, "up", NULL, "host1", &second);
        HR_EXPECT(send_range(&bench, a, contents, 0, total));
        settle(&bench, &first);
        used = test_fleet_used(bench.fleet, HOST1);
        HR_EXPECT(send_range(&bench, b, contents, 0, total));
        settle(&bench, &second);
        HR_EXPECT(second.set == first.set && second.already && !first.already);
        HR_EXPECT(test_fleet_used(bench.fleet, HOST1) < used);
        c = put(&bench, "other name", NULL, "host1", &third);
        HR_EXPECT(send_range(&bench, c, contents, 0, total));
        settle(&bench, &third);
        HR_EXPECT(third.set != first.set);
        hr_weights_unref(first.set);
        hr_weights_unref(second.set);
        hr_weights_unref(third.set);
        hr_manifest_free(manifest);
        free(contents);
        bench_deinit(&bench);
}

HR_TEST(refused_uploads) {
        static char long_name[300];
        static const struct {
                const char *name;
                int64_t surplus;
                const char *device;
                hr_status status;
        } cases[] = {
                {"", 0, "host1", HR_E_INVALID},          {long_name, 0, "host1", HR_E_INVALID},
                {"x", 1, "host1", HR_E_INVALID},         {"x", -1, "host1", HR_E_INVALID},
                {"x", INT64_MAX, "host1", HR_E_INVALID}, {"x", 0, "nosuch", HR_E_NOT_FOUND},
                {"x", 0, "small", HR_E_EXHAUSTED},
        };
        struct bench bench;

        memset(long_name, 'n', sizeof long_name - 1);
        bench_init(&bench, UINT64_MAX);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(cases); i++) {
                const struct hr_placement_rule rule = {"*", cases[i].device};
                struct hr_manifest *manifest = upload_manifest();
                const struct hr_upload_request request = {
                        .manifest = manifest,
                        .name = cases[i].name,
                        .total_bytes = manifest->total_bytes + (uint64_t) cases[i].surplus,
                        .rules = &rule,
                        .rule_count = 1};
                struct hr_upload *upload = NULL;
                struct hr_diag diag = {0};
                struct told told;

                told_init(&told);
                HR_EXPECT_EQ(hr_weights_put(bench.store, &request, &told.job, &diag, &upload),
                             cases[i].status);
                HR_EXPECT(!upload && diag.words[0] != '\0');
        }
        bench_deinit(&bench);
}

/* The padding after the last tensor need not be sent. */
HR_TEST(upload_without_final_padding) {
        struct bench bench;
        struct told told;
        struct hr_manifest *manifest = upload_manifest();
        const uint64_t total = manifest->tensors[2].offset + manifest->tensors[2].bytes;
        uint8_t *contents = upload_contents(total), digest[HR_DIGEST_BYTES];
        const struct hr_upload_request request = {
                .manifest = manifest, .name = "up", .total_bytes = total, .digest = digest};
        struct hr_upload *upload = NULL;
        struct hr_diag diag = {0};

        HR_EXPECT(total < manifest->total_bytes);
        digest_of(contents, total, digest);
        bench_init(&bench, UINT64_MAX);
        told_init(&told);
        HR_EXPECT_OK(hr_weights_put(bench.store, &request, &told.job, &diag, &upload), &diag);
        HR_EXPECT(send_range(&bench, join(&told, upload), contents, 0, total));
        settle(&bench, &told);
        HR_EXPECT_OK(told.status, &told.diag);
        expect_contents(&bench, told.set, "small", told.set->manifest->tensors[2].offset, 3);
        hr_weights_unref(told.set);
        free(contents);
        bench_deinit(&bench);
}

HR_TEST(upload_of_nothing) {
        static const uint32_t lengths[] = {1}, types[] = {HR_TYPE_F32};
        static const int64_t ne[] = {0, 1, 1, 1};
        struct hr_manifest *manifest = NULL;
        struct hr_upload_request request = {.name = "nothing"};
        struct hr_upload *upload = NULL;
        struct hr_diag diag = {0};
        struct bench bench;
        struct told told;

        bench_init(&bench, UINT64_MAX);
        told_init(&told);
        HR_EXPECT_OK(hr_manifest_new(&(struct hr_manifest_columns){1, lengths, "n", 1, types, ne},
                                     &(struct hr_manifest_limits){1, 1, 1}, &diag, &manifest),
                     &diag);
        request.manifest = manifest;
        HR_EXPECT_OK(hr_weights_put(bench.store, &request, &told.job, &diag, &upload), &diag);
        HR_EXPECT(hr_upload_is_received(upload));
        hr_upload_unref(upload);
        settle(&bench, &told);
        HR_EXPECT_OK(told.status, &told.diag);
        HR_EXPECT(told.set->homes[0].buffer);
        hr_weights_unref(told.set);
        bench_deinit(&bench);
}

/* A callee that is told of a failure may cancel its neighbours. */
static struct told *neighbour;

static void cancel_neighbour(struct hr_weights_job *job, hr_status status,
                             const struct hr_diag *diag, struct hr_weights *set, bool already) {
        remember(job, status, diag, set, already);
        hr_weights_job_cancel(&neighbour->job);
}

HR_TEST(callee_cancels_another_job) {
        static const struct hr_placement_rule rules[] = {{"*", "iso"}};
        struct bench bench;
        struct told first, second;

        bench_init(&bench, UINT64_MAX);
        write_file(&bench, "m.gguf", 1);
        load(&bench, "m.gguf", rules, 1, &first);
        load(&bench, "m.gguf", rules, 1, &second);
        first.job.done = cancel_neighbour;
        neighbour = &second;
        settle(&bench, &first);
        step_all(&bench);
        HR_EXPECT_EQ(first.status, HR_OK);
        HR_EXPECT_EQ(second.count, 0);
        HR_EXPECT_EQ(first.set->refs, 1);
        hr_weights_unref(first.set);
        bench_deinit(&bench);
}
