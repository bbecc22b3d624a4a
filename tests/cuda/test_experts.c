/* Experts copied when they are used: ids that the GPU has, only what is missing, places instead of
 * experts; no call whose failure leaks, hangs or makes a later run trust what did not arrive. */
#include <stdlib.h>
#include <unistd.h>

#include "backends/cuda/backend.h"
#include "core/clock.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/harness.h"

enum { EXPERTS = 8, BYTES = 300 * 1024, WEIGHTS = 2, TOKENS = 3, USED = 2, TIMEOUT_S = 20 };

/* Ids lie as a window on rows of EXPERTS. */
enum { ROW = EXPERTS * 4, SPAN = TOKENS * ROW };

struct larder {
        struct hr_device *device;
        struct hr_queue *queue;
        struct hr_event *event;
        struct hr_buffer *ids, *places[WEIGHTS], *translated;
        uint8_t *home[WEIGHTS];
        struct hr_buffer homes[WEIGHTS]; /* only their changes are looked at */
        struct hr_expert_weight weights[WEIGHTS];
        struct hr_expert_cache cache;
        uint32_t place_of[EXPERTS], expert_at[EXPERTS], missing[EXPERTS];
        uint64_t used_at[EXPERTS];
        atomic_uint_fast64_t uses[EXPERTS];
        struct hr_expert_tally tally;
        struct hr_diag diag;
};

static uint8_t byte_of(uint32_t weight, uint32_t expert, uint32_t at) {
        return (uint8_t) (weight * 101 + expert * 17 + at * 7 + at / 251 + 1);
}

/* `gap` bytes follow each expert in its place. */
static hr_status larder_open(struct larder *larder, uint32_t places, uint64_t gap) {
        struct hr_cuda_config config = { .name = "larder", .gpu = 0 };
        struct hr_diag *diag = &larder->diag;

        *larder = (struct larder) { 0 };
        larder->cache = (struct hr_expert_cache) {
                .node = 4,
                .experts = EXPERTS,
                .places = places,
                .resident = true,
                .ne = { USED, TOKENS },
                .nb = { 4, ROW },
                .weights = larder->weights,
                .weight_count = WEIGHTS,
                .place_of = larder->place_of,
                .expert_at = larder->expert_at,
                .used_at = larder->used_at,
                .uses = larder->uses,
                .missing = larder->missing,
        };
        for (uint32_t w = 0; w < WEIGHTS; w++) {
                larder->home[w] = malloc((size_t) EXPERTS * BYTES);
                HR_EXPECT(larder->home[w]);
                for (uint32_t e = 0; e < EXPERTS; e++)
                        for (uint32_t i = 0; i < BYTES; i++)
                                larder->home[w][e * BYTES + i] = byte_of(w, e, i);
        }
        HR_TRY(hr_cuda_device_new(&config, diag, &larder->device));
        HR_EXPECT(larder->device->props.experts);
        HR_TRY(hr_queue_new_for_uploads(larder->device, diag, &larder->queue));
        HR_TRY(hr_event_new(larder->device, diag, &larder->event));
        HR_TRY(hr_buffer_new(larder->device, SPAN, HR_USAGE_COMPUTE, diag, &larder->ids));
        if (places < EXPERTS) {
                HR_TRY(hr_buffer_new(larder->device, TOKENS * USED * 4, HR_USAGE_COMPUTE, diag,
                                     &larder->translated));
                larder->cache.translated = larder->translated->base;
        }
        for (uint32_t w = 0; w < WEIGHTS; w++) {
                HR_TRY(hr_buffer_new(larder->device, places * (BYTES + gap), HR_USAGE_COMPUTE,
                                     diag, &larder->places[w]));
                larder->weights[w] = (struct hr_expert_weight) {
                        .home = &larder->homes[w],
                        .from = larder->home[w],
                        .to = larder->places[w]->base,
                        .from_stride = BYTES,
                        .to_stride = BYTES + gap,
                        .bytes = BYTES,
                };
        }
        return HR_OK;
}

static void larder_close(struct larder *larder) {
        larder->queue = hr_queue_free(larder->queue);
        larder->event = hr_event_free(larder->event);
        larder->ids = hr_buffer_unref(larder->ids);
        larder->translated = hr_buffer_unref(larder->translated);
        for (uint32_t w = 0; w < WEIGHTS; w++) {
                larder->places[w] = hr_buffer_unref(larder->places[w]);
                free(larder->home[w]);
        }
        larder->device = hr_device_unref(larder->device);
        HR_EXPECT_EQ(fake_leaks(), 0);
        HR_EXPECT_EQ(fake_violations(), 0);
}

/* One run: ids to the GPU, both weights' experts, and what then lies there back to the host. */
static hr_status larder_fetch(struct larder *larder, const int32_t *ids, uint8_t *back[WEIGHTS],
                              int32_t *translated, struct hr_outcome *outcome) {
        struct hr_diag *diag = &larder->diag;
        int32_t rows[TOKENS][EXPERTS];

        memset(rows, 0x7f, sizeof rows); /* what the window leaves out is no expert */
        for (int i = 0; i < TOKENS * USED; i++)
                rows[i / USED][i % USED] = ids[i];
        HR_TRY(hr_queue_write(larder->queue, larder->ids->base, rows, SPAN, outcome, diag));
        for (uint32_t w = 0; w < WEIGHTS; w++)
                HR_TRY(hr_queue_copy_experts(larder->queue, &larder->cache, w, larder->ids->base,
                                             &larder->tally, outcome, diag));
        for (uint32_t w = 0; w < WEIGHTS; w++)
                HR_TRY(hr_queue_read(larder->queue, larder->places[w]->base, back[w],
                                     larder->places[w]->bytes, outcome, diag));
        if (translated)
                HR_TRY(hr_queue_read(larder->queue, larder->translated->base, translated,
                                     larder->translated->bytes, outcome, diag));
        HR_TRY(hr_queue_record(larder->queue, larder->event, diag));
        HR_TRY(hr_event_synchronize(larder->event, TIMEOUT_S * HR_NS_PER_S, diag));
        return hr_outcome_failed(outcome) ? hr_outcome_diag(outcome)->status : HR_OK;
}

/* Is the expert whole where the id leads? */
static bool is_there(const struct larder *larder, uint8_t *back[WEIGHTS], uint32_t expert,
                     uint32_t place) {
        for (uint32_t w = 0; w < WEIGHTS; w++) {
                const uint8_t *at = back[w] + place * larder->weights[w].to_stride;

                for (uint32_t i = 0; i < BYTES; i++)
                        if (at[i] != byte_of(w, expert, i))
                                return false;
                for (uint64_t i = BYTES; i < larder->weights[w].to_stride; i++)
                        if (at[i] != 0)
                                return false;
        }
        return true;
}

static void backs_take(uint8_t *back[WEIGHTS], uint64_t gap) {
        for (uint32_t w = 0; w < WEIGHTS; w++) {
                back[w] = calloc(EXPERTS, BYTES + gap);
                HR_EXPECT(back[w]);
        }
}

static void backs_give(uint8_t *back[WEIGHTS]) {
        for (uint32_t w = 0; w < WEIGHTS; w++)
                free(back[w]);
}

HR_TEST(only_used_experts_are_copied_and_neighbours_together) {
        static const int32_t ids[] = { 2, 3, 4, 2, 7, 3 }, more[] = { 2, 5, 4, 6, 7, 3 };
        struct hr_outcome outcome = { 0 };
        uint8_t *back[WEIGHTS];
        struct larder larder;

        fake_begin(1);
        backs_take(back, 0);
        HR_EXPECT_OK(larder_open(&larder, EXPERTS, 0), &larder.diag);
        HR_EXPECT_OK(larder_fetch(&larder, ids, back, NULL, &outcome), &larder.diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(ids); i++)
                HR_EXPECT(is_there(&larder, back, (uint32_t) ids[i], (uint32_t) ids[i]));
        HR_EXPECT_EQ(back[0][0], 0); /* expert 0 was left at home */
        HR_EXPECT_EQ(atomic_load(&larder.tally.misses), 4);
        HR_EXPECT_EQ(atomic_load(&larder.tally.copies), 2 * WEIGHTS); /* 2-4 and 7 */
        HR_EXPECT_EQ(atomic_load(&larder.tally.bytes), 4 * WEIGHTS * BYTES);
        HR_EXPECT_OK(larder_fetch(&larder, more, back, NULL, &outcome), &larder.diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(more); i++)
                HR_EXPECT(is_there(&larder, back, (uint32_t) more[i], (uint32_t) more[i]));
        HR_EXPECT_EQ(atomic_load(&larder.tally.hits), 4);
        HR_EXPECT_EQ(atomic_load(&larder.tally.bytes), 6 * WEIGHTS * BYTES);
        backs_give(back);
        larder_close(&larder);
}

HR_TEST(with_few_places_ids_become_places) {
        static const int32_t runs[][TOKENS * USED] = { { 6, 1, 1, 0, 6, 6 }, { 5, 1, 2, 2, 3, 5 } };
        struct hr_outcome outcome = { 0 };
        int32_t translated[TOKENS * USED];
        uint8_t *back[WEIGHTS];
        struct larder larder;

        fake_begin(2);
        backs_take(back, 64);
        HR_EXPECT_OK(larder_open(&larder, 6, 64), &larder.diag);
        for (size_t run = 0; run < HR_ARRAY_LENGTH(runs); run++) {
                HR_EXPECT_OK(larder_fetch(&larder, runs[run], back, translated, &outcome),
                             &larder.diag);
                for (int i = 0; i < TOKENS * USED; i++) {
                        HR_EXPECT(translated[i] >= 0 && translated[i] < 6);
                        HR_EXPECT(is_there(&larder, back, (uint32_t) runs[run][i],
                                           (uint32_t) translated[i]));
                }
        }
        HR_EXPECT_EQ(atomic_load(&larder.tally.misses), 6);
        backs_give(back);
        larder_close(&larder);
}

HR_TEST(an_id_that_is_no_expert_fails_its_run_alone) {
        static const int32_t bad[][TOKENS * USED] = { { 0, 1, 2, 3, 4, EXPERTS },
                                                      { -1, 1, 2, 3, 4, 5 },
                                                      { 0, 1, INT32_MIN, 3, 4, 5 } };
        static const int32_t good[] = { 0, 1, 2, 3, 4, 5 };
        uint8_t *back[WEIGHTS];
        struct larder larder;

        fake_begin(3);
        backs_take(back, 0);
        HR_EXPECT_OK(larder_open(&larder, EXPERTS, 0), &larder.diag);
        for (size_t i = 0; i < HR_ARRAY_LENGTH(bad); i++) {
                struct hr_outcome failed = { 0 }, outcome = { 0 };

                HR_EXPECT_EQ(larder_fetch(&larder, bad[i], back, NULL, &failed), HR_E_RANGE);
                HR_EXPECT_STREQ(hr_diag_reason(hr_outcome_diag(&failed)), "INDEX_VALUE");
                HR_EXPECT_EQ(hr_outcome_diag(&failed)->node, 4);
                HR_EXPECT_OK(larder_fetch(&larder, good, back, NULL, &outcome), &larder.diag);
                for (uint32_t e = 0; e < 6; e++)
                        HR_EXPECT(is_there(&larder, back, e, e));
        }
        backs_give(back);
        larder_close(&larder);
}

/* After a call that failed once, a second run of the same ids has every byte, or the GPU is
 * lost. */
static void fail_every_call(CUresult result, uint32_t stride) {
        static const int32_t ids[] = { 1, 2, 3, 5, 1, 7 };
        uint64_t call = 0;

        do {
                struct hr_outcome first = { 0 }, second = { 0 };
                int32_t translated[TOKENS * USED];
                uint8_t *back[WEIGHTS];
                struct larder larder;
                hr_status status;

                fake_begin((uint32_t) call + 1);
                fake_fail_call(call, result);
                backs_take(back, 64);
                status = larder_open(&larder, 6, 64);
                if (status == HR_OK)
                        status = larder_fetch(&larder, ids, back, translated, &first);
                if (status != HR_OK && larder.places[WEIGHTS - 1])
                        status = larder_fetch(&larder, ids, back, translated, &second);
                for (int i = 0; status == HR_OK && i < TOKENS * USED; i++)
                        HR_EXPECT(is_there(&larder, back, (uint32_t) ids[i],
                                           (uint32_t) translated[i]));
                /* What is not sticky fails one run at most. */
                if (status != HR_OK && larder.places[WEIGHTS - 1])
                        HR_EXPECT(cuda_result_is_sticky(result) && status == HR_E_DEVICE_LOST);
                backs_give(back);
                larder_close(&larder);
                call += stride;
        } while (fake_calls() > call - stride);
        HR_EXPECT(call > 60);
}

HR_TEST_LIMIT(every_call_fails_as_wrong, 120) {
        fail_every_call(CUDA_ERROR_INVALID_VALUE, getenv("HEADRACE_FULL") ? 1 : 3);
}

HR_TEST_LIMIT(every_call_ends_its_context, 120) {
        fail_every_call(CUDA_ERROR_ILLEGAL_ADDRESS, getenv("HEADRACE_FULL") ? 1 : 3);
}
