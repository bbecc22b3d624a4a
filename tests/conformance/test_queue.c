/* What every queue and event promises: order, edges, failures, copies. */
#include <unistd.h>

#include "tests/conformance/fixture.h"

struct rig {
        struct hr_device *device;
        struct hr_queue *queue, *other;
        struct hr_diag diag;
};

static struct rig rig_new(void) {
        struct rig rig = { .device = fixture_device() };

        HR_EXPECT_OK(hr_queue_new(rig.device, &rig.diag, &rig.queue), &rig.diag);
        HR_EXPECT_OK(hr_queue_new(rig.device, &rig.diag, &rig.other), &rig.diag);
        return rig;
}

static void rig_free(struct rig *rig) {
        rig->queue = hr_queue_free(rig->queue);
        rig->other = hr_queue_free(rig->other);
        rig->device = hr_device_unref(rig->device);
}

static struct hr_buffer *rig_buffer(struct rig *rig, uint64_t bytes) {
        struct hr_buffer *buffer = NULL;

        HR_EXPECT_OK(hr_buffer_new(rig->device, bytes, HR_USAGE_COMPUTE, &rig->diag, &buffer),
                     &rig->diag);
        return buffer;
}

static struct hr_event *rig_event(struct rig *rig) {
        struct hr_event *event = NULL;

        HR_EXPECT_OK(hr_event_new(rig->device, &rig->diag, &event), &rig->diag);
        return event;
}

static void set_flag(void *arg) {
        atomic_store((atomic_bool *) arg, true);
}

static bool becomes_true(atomic_bool *flag) {
        for (int i = 0; i < 100000 && !atomic_load(flag); i++)
                (void) usleep(100);
        return atomic_load(flag);
}

/* ---- Data ------------------------------------------------------------------------------------ */

HR_TEST(bytes_come_back_as_written) {
        static const uint64_t sizes[] = { 0, 1, 5, 64, 1000, 70001 };
        struct rig rig = rig_new();

        for (size_t i = 0; i < HR_ARRAY_LENGTH(sizes); i++) {
                uint64_t bytes = sizes[i];
                struct hr_buffer *buffer = rig_buffer(&rig, bytes + 2);
                uint8_t *out = malloc((size_t) bytes + 1), *in = calloc(1, (size_t) bytes + 2);

                HR_EXPECT(out && in);
                for (uint64_t j = 0; j < bytes; j++)
                        out[j] = (uint8_t) (j * 31 + i + 1);
                HR_EXPECT_OK(hr_queue_write(rig.queue, (uint8_t *) buffer->base + 1, out, bytes,
                                            NULL, &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_read(rig.queue, buffer->base, in, bytes + 2, NULL,
                                           &rig.diag), &rig.diag);
                fixture_finish(rig.queue);
                HR_EXPECT(memcmp(in + 1, out, (size_t) bytes) == 0);
                HR_EXPECT(in[0] == 0 && in[bytes + 1] == 0);
                free(out);
                free(in);
                buffer = hr_buffer_unref(buffer);
        }
        rig_free(&rig);
}

HR_TEST(commands_of_a_queue_run_in_order) {
        enum { COUNT = 3000 };
        struct rig rig = rig_new();
        struct hr_buffer *buffer = rig_buffer(&rig, sizeof(uint32_t));
        uint32_t *out = malloc(COUNT * sizeof *out), *in = calloc(COUNT, sizeof *in);
        struct gate gate;

        HR_EXPECT(out && in);
        gate_close(&gate, rig.queue);
        for (uint32_t i = 0; i < COUNT; i++) {
                out[i] = i * 2654435761U;
                HR_EXPECT_OK(hr_queue_write(rig.queue, buffer->base, &out[i], sizeof out[i], NULL,
                                            &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_read(rig.queue, buffer->base, &in[i], sizeof in[i], NULL,
                                           &rig.diag), &rig.diag);
        }
        gate_open(&gate);
        fixture_finish(rig.queue);
        HR_EXPECT(memcmp(out, in, COUNT * sizeof *out) == 0);
        free(out);
        free(in);
        buffer = hr_buffer_unref(buffer);
        rig_free(&rig);
}

HR_TEST(copies_go_where_can_copy_says) {
        static const struct hr_buffer_kind foreign = { .name = "foreign", .alignment = 64 };
        struct rig rig = rig_new();
        struct hr_buffer *from = rig_buffer(&rig, 100), *to = rig_buffer(&rig, 100);
        uint8_t out[100], in[100] = { 0 };

        memset(out, 77, sizeof out);
        HR_EXPECT_OK(hr_queue_write(rig.queue, from->base, out, 100, NULL, &rig.diag), &rig.diag);
        HR_EXPECT(hr_queue_can_copy(rig.queue, to->kind));
        HR_EXPECT_OK(hr_queue_copy(rig.queue, from->base, to->base, to->kind, 100, NULL,
                                   &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_read(rig.queue, to->base, in, 100, NULL, &rig.diag), &rig.diag);
        fixture_finish(rig.queue);
        HR_EXPECT(memcmp(in, out, sizeof in) == 0);
        HR_EXPECT(!hr_queue_can_copy(rig.queue, &foreign));
        HR_EXPECT_EQ(hr_queue_copy(rig.queue, from->base, to->base, &foreign, 100, NULL, &rig.diag),
                     HR_E_UNSUPPORTED);
        from = hr_buffer_unref(from);
        to = hr_buffer_unref(to);
        rig_free(&rig);
}

HR_TEST(copies_reach_host_memory) {
        struct rig rig = rig_new();
        struct hr_buffer *from = rig_buffer(&rig, 64);
        uint8_t out[64], *host = calloc(1, 64);

        HR_EXPECT(host);
        memset(out, 5, sizeof out);
        HR_EXPECT(hr_queue_can_copy(rig.queue, &hr_host_kind));
        HR_EXPECT_OK(hr_queue_write(rig.queue, from->base, out, 64, NULL, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_copy(rig.queue, from->base, host, &hr_host_kind, 64, NULL,
                                   &rig.diag), &rig.diag);
        fixture_finish(rig.queue);
        HR_EXPECT(memcmp(host, out, 64) == 0);
        free(host);
        from = hr_buffer_unref(from);
        rig_free(&rig);
}

/* ---- Computing ------------------------------------------------------------------------------- */

HR_TEST(steps_are_computed) {
        static const int64_t shapes[][2] = { { 1, 1 }, { 3, 5 }, { 16, 33 }, { 40, 7 } };
        struct rig rig = rig_new();

        for (size_t i = 0; i < HR_ARRAY_LENGTH(shapes); i++) {
                struct product product;

                product_init(&product, rig.device, shapes[i][0], shapes[i][1], 3);
                product_upload(&product, rig.queue, (uint32_t) i);
                HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 3, NULL, &rig.diag),
                             &rig.diag);
                for (uint32_t step = 0; step < 3; step++)
                        product_expect(&product, rig.queue, step, (uint32_t) i);
                product_deinit(&product);
        }
        rig_free(&rig);
}

HR_TEST(a_range_computes_no_other_step) {
        struct rig rig = rig_new();
        struct product product;
        float *values = calloc(64, sizeof *values);

        HR_EXPECT(values);
        product_init(&product, rig.device, 8, 8, 3);
        product_upload(&product, rig.queue, 4);
        HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 0, NULL, &rig.diag),
                     &rig.diag);
        HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 2, NULL, &rig.diag),
                     &rig.diag);
        product_expect(&product, rig.queue, 1, 4);
        HR_EXPECT_OK(hr_queue_read(rig.queue, product.results[2]->base, values, 256, NULL,
                                   &rig.diag), &rig.diag);
        fixture_finish(rig.queue);
        for (int i = 0; i < 64; i++)
                HR_EXPECT(values[i] == 0.0f);
        HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 2, 1, NULL, &rig.diag),
                     &rig.diag);
        product_expect(&product, rig.queue, 2, 4);
        free(values);
        product_deinit(&product);
        rig_free(&rig);
}

HR_TEST(a_program_can_be_replayed) {
        struct rig rig = rig_new();
        struct product product;

        product_init(&product, rig.device, 24, 12, 2);
        for (uint32_t seed = 0; seed < 30; seed++) {
                product_upload(&product, rig.queue, seed);
                HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 2, NULL, &rig.diag),
                             &rig.diag);
                product_expect(&product, rig.queue, 1, seed);
        }
        product_deinit(&product);
        rig_free(&rig);
}

/* ---- Failures -------------------------------------------------------------------------------- */

HR_TEST(a_failed_run_computes_and_copies_nothing_but_notifies) {
        struct rig rig = rig_new();
        struct hr_event *event = rig_event(&rig);
        struct hr_outcome failed = { 0 };
        atomic_bool notified = false;
        struct product product;
        uint8_t out[256], in[256];

        product_init(&product, rig.device, 8, 8, 1);
        product_upload(&product, rig.queue, 1);
        (void) hr_outcome_fail(&failed, HR_E_CANCELLED, NULL, HR_DIAG_NO_INDEX, "by the test");
        memset(out, 9, sizeof out);
        memset(in, 3, sizeof in);
        HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 1, &failed, &rig.diag),
                     &rig.diag);
        HR_EXPECT_OK(hr_queue_write(rig.queue, product.results[0]->base, out, 256, &failed,
                                    &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_read(rig.queue, product.columns->base, in, 256, &failed, &rig.diag),
                     &rig.diag);
        HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_notify(rig.queue, set_flag, &notified, &rig.diag), &rig.diag);
        HR_EXPECT(becomes_true(&notified));
        HR_EXPECT(hr_event_query(event));
        HR_EXPECT_EQ(in[0], 3);
        HR_EXPECT_OK(hr_queue_read(rig.queue, product.results[0]->base, in, 256, NULL, &rig.diag),
                     &rig.diag);
        fixture_finish(rig.queue);
        for (size_t i = 0; i < sizeof in; i++)
                HR_EXPECT_EQ(in[i], 0);
        /* Another run on the same queue is not concerned. */
        HR_EXPECT_OK(hr_queue_compute(rig.queue, product.program, 0, 1, NULL, &rig.diag),
                     &rig.diag);
        product_expect(&product, rig.queue, 0, 1);
        event = hr_event_free(event);
        product_deinit(&product);
        rig_free(&rig);
}

/* ---- Events ---------------------------------------------------------------------------------- */

HR_TEST(an_event_never_recorded_holds_nothing_up) {
        struct rig rig = rig_new();
        struct hr_event *event = rig_event(&rig);

        HR_EXPECT(hr_event_query(event));
        HR_EXPECT_OK(hr_event_synchronize(event, 0, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_wait(rig.queue, event, &rig.diag), &rig.diag);
        fixture_finish(rig.queue);
        event = hr_event_free(event);
        rig_free(&rig);
}

HR_TEST(an_event_is_reached_when_earlier_work_has_ended) {
        struct rig rig = rig_new();
        struct hr_event *event = rig_event(&rig);
        struct gate gate;

        gate_close(&gate, rig.queue);
        HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
        HR_EXPECT(!hr_event_query(event));
        HR_EXPECT_EQ(hr_event_synchronize(event, 2000000, &rig.diag), HR_E_DEADLINE);
        hr_diag_clear(&rig.diag);
        gate_open(&gate);
        HR_EXPECT_OK(hr_event_synchronize(event, FIXTURE_TIMEOUT_NS, &rig.diag), &rig.diag);
        HR_EXPECT(hr_event_query(event));
        event = hr_event_free(event);
        rig_free(&rig);
}

HR_TEST(a_wait_holds_its_queue) {
        struct rig rig = rig_new();
        struct hr_event *event = rig_event(&rig);
        atomic_bool passed = false;
        struct gate gate;

        gate_close(&gate, rig.queue);
        HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_wait(rig.other, event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_notify(rig.other, set_flag, &passed, &rig.diag), &rig.diag);
        (void) usleep(5000);
        HR_EXPECT(!atomic_load(&passed));
        gate_open(&gate);
        HR_EXPECT(becomes_true(&passed));
        event = hr_event_free(event);
        rig_free(&rig);
}

HR_TEST(a_later_record_does_not_hold_an_earlier_wait) {
        struct rig rig = rig_new();
        struct hr_event *event = rig_event(&rig);
        atomic_bool passed = false;
        struct gate first, second;

        gate_close(&first, rig.queue);
        HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_wait(rig.other, event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_notify(rig.other, set_flag, &passed, &rig.diag), &rig.diag);
        gate_close(&second, rig.queue);
        HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
        gate_open(&first);
        HR_EXPECT(becomes_true(&passed));
        HR_EXPECT(!hr_event_query(event));
        gate_open(&second);
        HR_EXPECT_OK(hr_event_synchronize(event, FIXTURE_TIMEOUT_NS, &rig.diag), &rig.diag);
        event = hr_event_free(event);
        rig_free(&rig);
}

HR_TEST(an_event_may_be_freed_as_soon_as_it_is_reached) {
        struct rig rig = rig_new();

        for (int i = 0; i < 2000; i++) {
                struct hr_event *event = rig_event(&rig);

                HR_EXPECT_OK(hr_queue_record(rig.queue, event, &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_wait(rig.other, event, &rig.diag), &rig.diag);
                if (i % 3 == 0)
                        HR_EXPECT_OK(hr_event_synchronize(event, FIXTURE_TIMEOUT_NS, &rig.diag),
                                     &rig.diag);
                event = hr_event_free(event);
        }
        rig_free(&rig);
}

/* Two queues hand a value to and fro through two slots; every hazard has its edge. */
HR_TEST(edges_order_two_queues) {
        enum { ROUNDS = 500, SLOTS = 2 };
        struct rig rig = rig_new();
        struct hr_buffer *slots[SLOTS], *sink = rig_buffer(&rig, ROUNDS * sizeof(uint64_t));
        struct hr_event *full[SLOTS], *empty[SLOTS];
        uint64_t *out = calloc(ROUNDS, sizeof *out), *in = calloc(ROUNDS, sizeof *in);

        HR_EXPECT(out && in);
        for (int i = 0; i < SLOTS; i++) {
                slots[i] = rig_buffer(&rig, sizeof(uint64_t));
                full[i] = rig_event(&rig);
                empty[i] = rig_event(&rig);
        }
        for (uint64_t round = 0; round < ROUNDS; round++) {
                uint64_t slot = round % SLOTS;

                out[round] = round * UINT64_C(0x9e3779b97f4a7c15) + 1;
                HR_EXPECT_OK(hr_queue_wait(rig.queue, empty[slot], &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_write(rig.queue, slots[slot]->base, &out[round],
                                            sizeof out[round], NULL, &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_record(rig.queue, full[slot], &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_wait(rig.other, full[slot], &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_copy(rig.other, slots[slot]->base,
                                           (uint64_t *) sink->base + round, sink->kind,
                                           sizeof(uint64_t), NULL, &rig.diag), &rig.diag);
                HR_EXPECT_OK(hr_queue_record(rig.other, empty[slot], &rig.diag), &rig.diag);
        }
        HR_EXPECT_OK(hr_queue_read(rig.other, sink->base, in, ROUNDS * sizeof *in, NULL,
                                   &rig.diag), &rig.diag);
        fixture_finish(rig.other);
        HR_EXPECT(memcmp(in, out, ROUNDS * sizeof *in) == 0);
        for (int i = 0; i < SLOTS; i++) {
                slots[i] = hr_buffer_unref(slots[i]);
                full[i] = hr_event_free(full[i]);
                empty[i] = hr_event_free(empty[i]);
        }
        sink = hr_buffer_unref(sink);
        free(out);
        free(in);
        rig_free(&rig);
}

/* An event of another implementation: reached when the test says so. */
struct manual_event {
        struct hr_event event;
        atomic_bool is_reached;
        atomic_uint asked;
};

static void manual_destroy(struct hr_event *event) {
}

static bool manual_query(struct hr_event *event) {
        struct manual_event *manual = HR_CONTAINER_OF(event, struct manual_event, event);

        atomic_fetch_add(&manual->asked, 1);
        return atomic_load(&manual->is_reached);
}

static hr_status manual_synchronize(struct hr_event *event, uint64_t timeout_ns,
                                    struct hr_diag *diag) {
        struct manual_event *manual = HR_CONTAINER_OF(event, struct manual_event, event);

        (void) usleep(100);
        return atomic_load(&manual->is_reached) ? HR_OK : HR_E_DEADLINE;
}

HR_TEST(a_queue_waits_for_an_event_of_another_backend) {
        static const struct hr_event_ops ops = { .size = sizeof ops,
                                                 .destroy = manual_destroy,
                                                 .query = manual_query,
                                                 .synchronize = manual_synchronize };
        struct rig rig = rig_new();
        struct manual_event manual = { .event = { .ops = &ops, .device = rig.device } };
        atomic_bool passed = false;

#ifdef CONFORMANCE_FAKE
        rig_free(&rig);
        hr_test_skip("a simulated queue has no thread to ask on");
#endif
        HR_EXPECT_OK(hr_queue_wait(rig.queue, &manual.event, &rig.diag), &rig.diag);
        HR_EXPECT_OK(hr_queue_notify(rig.queue, set_flag, &passed, &rig.diag), &rig.diag);
        for (int i = 0; i < 100000 && atomic_load(&manual.asked) < 3; i++)
                (void) usleep(100);
        HR_EXPECT(atomic_load(&manual.asked) >= 3);
        HR_EXPECT(!atomic_load(&passed));
        atomic_store(&manual.is_reached, true);
        HR_EXPECT(becomes_true(&passed));
        rig_free(&rig);
}

/* ---- Notifications --------------------------------------------------------------------------- */

struct counter {
        atomic_uint next;
        atomic_bool is_wrong;
};

struct ticket {
        struct counter *counter;
        uint32_t number;
};

static void take_ticket(void *arg) {
        struct ticket *ticket = arg;

        if (atomic_fetch_add(&ticket->counter->next, 1) != ticket->number)
                atomic_store(&ticket->counter->is_wrong, true);
}

HR_TEST(notifications_come_once_and_in_order) {
        enum { COUNT = 2000 };
        static struct ticket tickets[COUNT];
        struct counter counter = { 0 };
        struct rig rig = rig_new();

        for (uint32_t i = 0; i < COUNT; i++) {
                tickets[i] = (struct ticket) { &counter, i };
                HR_EXPECT_OK(hr_queue_notify(rig.queue, take_ticket, &tickets[i], &rig.diag),
                             &rig.diag);
        }
        fixture_finish(rig.queue);
        HR_EXPECT_EQ(atomic_load(&counter.next), COUNT);
        HR_EXPECT(!atomic_load(&counter.is_wrong));
        rig_free(&rig);
}

HR_TEST(freeing_a_queue_waits_for_its_work) {
        struct counter counter = { 0 };
        static struct ticket tickets[100];
        struct rig rig = rig_new();

        for (uint32_t i = 0; i < 100; i++) {
                tickets[i] = (struct ticket) { &counter, i };
                HR_EXPECT_OK(hr_queue_notify(rig.queue, take_ticket, &tickets[i], &rig.diag),
                             &rig.diag);
        }
        rig.queue = hr_queue_free(rig.queue);
        HR_EXPECT_EQ(atomic_load(&counter.next), 100);
        rig_free(&rig);
}
