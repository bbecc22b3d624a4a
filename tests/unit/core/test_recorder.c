/* The flight recorder: the latest spans, in order, whole also while another thread writes. */
#include "core/recorder.h"
#include "core/thread.h"
#include "tests/harness.h"

static struct hr_span numbered(uint64_t n) {
        return (struct hr_span){
                .begin_ns = n,
                .end_ns = n + 1,
                .tag = n + 2,
                .kind = HR_SPAN_COMPUTE,
                .detail = (uint32_t) n,
                .a = n + 3,
                .b = n + 4,
        };
}

static bool is_whole(const struct hr_span *span) {
        const uint64_t n = span->begin_ns;

        return span->end_ns == n + 1 && span->tag == n + 2 && span->kind == HR_SPAN_COMPUTE &&
               span->detail == (uint32_t) n && span->a == n + 3 && span->b == n + 4;
}

HR_TEST(recorder_keeps_the_latest) {
        struct hr_recorder *recorder = NULL;
        struct hr_diag diag = {0};
        struct hr_span spans[8];

        HR_EXPECT_OK(hr_recorder_new(5, &diag, &recorder), &diag);
        HR_EXPECT_EQ(hr_recorder_capacity(recorder), 8);
        HR_EXPECT_EQ(hr_recorder_read(recorder, spans), 0);
        for (uint64_t n = 0; n < 5; n++)
                hr_recorder_add(recorder, &(struct hr_span){.begin_ns = n});
        HR_EXPECT_EQ(hr_recorder_read(recorder, spans), 5);
        HR_EXPECT_EQ(spans[0].begin_ns, 0);
        HR_EXPECT_EQ(spans[4].begin_ns, 4);
        for (uint64_t n = 5; n < 21; n++) {
                const struct hr_span span = numbered(n);

                hr_recorder_add(recorder, &span);
        }
        /* The place of the oldest may be being written: it is not read. */
        HR_EXPECT_EQ(hr_recorder_read(recorder, spans), 7);
        for (uint64_t n = 0; n < 7; n++) {
                HR_EXPECT_EQ(spans[n].begin_ns, 14 + n);
                HR_EXPECT(is_whole(&spans[n]));
        }
        HR_EXPECT(!hr_recorder_free(recorder));
}

HR_TEST(recorder_of_nothing) {
        struct hr_span span = numbered(1);

        hr_recorder_add(NULL, &span);
        HR_EXPECT_EQ(hr_recorder_capacity(NULL), 0);
        HR_EXPECT_EQ(hr_recorder_read(NULL, &span), 0);
        HR_EXPECT(!hr_recorder_free(NULL));
}

struct writing {
        struct hr_recorder *recorder;
        atomic_bool enough;
};

static void write_spans(void *arg) {
        struct writing *writing = arg;

        for (uint64_t n = 1; !atomic_load(&writing->enough); n++) {
                const struct hr_span span = numbered(n);

                hr_recorder_add(writing->recorder, &span);
        }
}

HR_TEST(recorder_is_read_while_it_is_written) {
        struct writing writing = {0};
        struct hr_thread thread = {0};
        struct hr_diag diag = {0};
        struct hr_span spans[64];
        uint64_t latest = 0;

        HR_EXPECT_OK(hr_recorder_new(64, &diag, &writing.recorder), &diag);
        HR_EXPECT_OK(hr_thread_start(&thread, "spans", write_spans, &writing, &diag), &diag);
        for (int i = 0; i < 20000 || (latest < 1000 && i < 20000000); i++) {
                uint32_t count = hr_recorder_read(writing.recorder, spans);

                for (uint32_t k = 0; k < count; k++) {
                        HR_EXPECT(is_whole(&spans[k]));
                        HR_EXPECT(k == 0 || spans[k].begin_ns == spans[k - 1].begin_ns + 1);
                }
                if (count > 0) {
                        HR_EXPECT(spans[count - 1].begin_ns >= latest);
                        latest = spans[count - 1].begin_ns;
                }
        }
        atomic_store(&writing.enough, true);
        hr_thread_join(&thread);
        HR_EXPECT(latest >= 1000);
        HR_EXPECT(!hr_recorder_free(writing.recorder));
}
