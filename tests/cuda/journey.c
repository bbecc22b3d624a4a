/* See journey.h. */
#include "tests/cuda/journey.h"

#include <unistd.h>

#include "backends/cuda/backend.h"
#include "core/clock.h"
#include "core/recorder.h"
#include "tests/harness.h"

/* The program gives the same each TURN: launched, recorded, replayed. */
enum { ROW = 33, ROWS = 5, PICKED = 3, TIMEOUT_S = 10, TURNS = 3, SPANS = 64, TAG = 77 };

struct luggage {
        struct hr_device *devices[2];
        struct hr_queue *queues[2];
        struct hr_event *events[2];
        struct hr_recorder *recorders[2];
        struct hr_buffer *table, *ids, *rows, *copy;
        struct hr_program *program;
        struct hr_operand sources[3];
        struct hr_step steps[2];
        struct hr_steps list;
        int32_t params[2][HR_OP_PARAM_WORDS];
        struct hr_outcome outcome;
        atomic_bool was_notified;
        float table_values[ROWS * ROW], result[PICKED * ROW];
        int32_t id_values[PICKED];
};

static void notified(void *arg) {
        atomic_store((atomic_bool *) arg, true);
}

static struct hr_operand operand(uint32_t type, int64_t n0, int64_t n1, struct hr_buffer *buffer) {
        return (struct hr_operand) { .type = type,
                                     .ne = { n0, n1, 1, 1 },
                                     .nb = { 4, (uint64_t) n0 * 4, (uint64_t) (n0 * n1) * 4,
                                             (uint64_t) (n0 * n1) * 4 },
                                     .data = buffer->base,
                                     .room = buffer->bytes };
}

static void steps_fill(struct luggage *luggage) {
        float two = 2.0f;

        memcpy(&luggage->params[1][0], &two, sizeof two);
        luggage->sources[0] = operand(HR_TYPE_F32, ROW, ROWS, luggage->table);
        luggage->sources[1] = operand(HR_TYPE_I32, PICKED, 1, luggage->ids);
        luggage->sources[2] = operand(HR_TYPE_F32, ROW, PICKED, luggage->rows);
        luggage->steps[0] = (struct hr_step) { .op = HR_OP_GET_ROWS,
                                               .node = 7,
                                               .params = luggage->params[0],
                                               .result = luggage->sources[2],
                                               .source_count = 2,
                                               .sources = luggage->sources };
        luggage->steps[1] = (struct hr_step) { .op = HR_OP_SCALE,
                                               .node = 8,
                                               .params = luggage->params[1],
                                               .result = luggage->sources[2],
                                               .source_count = 1,
                                               .sources = &luggage->sources[2] };
        luggage->list = (struct hr_steps) { .count = 2, .steps = luggage->steps };
}

static hr_status luggage_pack(struct luggage *luggage, struct journey *journey) {
        static const char *const names[] = { "first", "second" };
        struct hr_diag *diag = &journey->diag;

        for (int i = 0; i < 2; i++) {
                struct hr_cuda_config config = { .name = names[i], .gpu = journey->gpus[i] };

                HR_TRY(hr_cuda_device_new(&config, diag, &luggage->devices[i]));
        }
        for (int i = 0; i < 2; i++) {
                HR_TRY(hr_queue_new(luggage->devices[i], diag, &luggage->queues[i]));
                HR_TRY(hr_event_new(luggage->devices[i], diag, &luggage->events[i]));
                HR_TRY(hr_recorder_new(SPANS, diag, &luggage->recorders[i]));
                luggage->queues[i]->recorder = luggage->recorders[i];
        }
        HR_TRY(hr_buffer_new(luggage->devices[0], sizeof luggage->table_values, HR_USAGE_WEIGHTS,
                             diag, &luggage->table));
        HR_TRY(hr_buffer_new(luggage->devices[0], sizeof luggage->id_values, HR_USAGE_COMPUTE, diag,
                             &luggage->ids));
        HR_TRY(hr_buffer_new(luggage->devices[0], sizeof luggage->result, HR_USAGE_COMPUTE, diag,
                             &luggage->rows));
        HR_TRY(hr_buffer_new(luggage->devices[1], sizeof luggage->result, HR_USAGE_COMPUTE, diag,
                             &luggage->copy));
        steps_fill(luggage);
        return hr_program_new(luggage->devices[0], &luggage->list, diag, &luggage->program);
}

static hr_status travel(struct luggage *luggage, struct journey *journey) {
        struct hr_queue *from = luggage->queues[0], *to = luggage->queues[1];
        struct hr_outcome *outcome = &luggage->outcome;
        struct hr_diag *diag = &journey->diag;

        HR_TRY(hr_queue_write(from, luggage->table->base, luggage->table_values,
                              sizeof luggage->table_values, outcome, diag));
        HR_TRY(hr_queue_write(from, luggage->ids->base, luggage->id_values,
                              sizeof luggage->id_values, outcome, diag));
        for (int i = 0; i < TURNS; i++)
                HR_TRY(hr_queue_compute(from, luggage->program, 0, 2, outcome, diag));
        HR_TRY(hr_queue_copy(from, luggage->rows->base, luggage->copy->base, luggage->copy->kind,
                             sizeof luggage->result, outcome, diag));
        HR_TRY(hr_queue_record(from, luggage->events[0], diag));
        HR_TRY(hr_queue_wait(to, luggage->events[0], diag));
        HR_TRY(hr_queue_read(to, luggage->copy->base, luggage->result, sizeof luggage->result,
                             outcome, diag));
        HR_TRY(hr_queue_record(to, luggage->events[1], diag));
        HR_TRY(hr_queue_notify(to, notified, &luggage->was_notified, diag));
        journey->was_submitted = true;
        return HR_OK;
}

static void arrive(struct luggage *luggage, struct journey *journey) {
        const struct hr_diag *failed;

        for (int i = 0; i < TIMEOUT_S * 10000 && !atomic_load(&luggage->was_notified); i++)
                (void) usleep(100);
        journey->was_notified = atomic_load(&luggage->was_notified);
        HR_EXPECT(journey->was_notified);
        (void) usleep(journey->linger_us);
        failed = hr_outcome_diag(&luggage->outcome);
        for (int i = 0; i < 2; i++) {
                /* The events of a run that went well are reached when it is notified of. */
                for (int j = 0; failed && j < TIMEOUT_S * 10000; j++)
                        if (!hr_event_query(luggage->events[i]))
                                (void) usleep(100);
                HR_EXPECT(hr_event_query(luggage->events[i]));
        }
        journey->run_status = failed ? failed->status : HR_OK;
        journey->is_lost = hr_device_is_lost(luggage->devices[0]) ||
                           hr_device_is_lost(luggage->devices[1]);
        if (failed)
                journey->run_diag = *failed;
        journey->is_right = !journey->bad_id;
        for (int i = 0; i < PICKED && !journey->bad_id; i++)
                for (int j = 0; j < ROW; j++)
                        journey->is_right &=
                                luggage->result[i * ROW + j] ==
                                2 * luggage->table_values[luggage->id_values[i] * ROW + j];
}

/* What a queue that has ended has told: commands of its kinds, each from an earlier time to a later
 * one, none before the run or after now. */
static uint32_t spans_count(const struct luggage *luggage, int queue, uint32_t kind,
                            uint64_t begin_ns) {
        struct hr_span spans[SPANS];
        uint32_t count = hr_recorder_read(luggage->recorders[queue], spans), found = 0;

        for (uint32_t i = 0; i < count; i++) {
                HR_EXPECT(spans[i].begin_ns >= begin_ns && spans[i].begin_ns <= spans[i].end_ns &&
                          spans[i].end_ns <= hr_clock_now_ns() + HR_NS_PER_MS);
                HR_EXPECT(spans[i].tag == (spans[i].kind == HR_SPAN_WAIT ? 0 : TAG));
                found += spans[i].kind == kind;
        }
        return found;
}

static void luggage_unpack(struct luggage *luggage, struct journey *journey) {
        for (int i = 0; i < 2; i++)
                luggage->queues[i] = hr_queue_free(luggage->queues[i]);
        if (luggage->recorders[1]) {
                journey->computes = spans_count(luggage, 0, HR_SPAN_COMPUTE, journey->begin_ns);
                journey->copies = spans_count(luggage, 0, HR_SPAN_COPY, journey->begin_ns) +
                                  spans_count(luggage, 1, HR_SPAN_COPY, journey->begin_ns);
        }
        for (int i = 0; i < 2; i++)
                luggage->recorders[i] = hr_recorder_free(luggage->recorders[i]);
        luggage->program = hr_program_free(luggage->program);
        for (int i = 0; i < 2; i++)
                luggage->events[i] = hr_event_free(luggage->events[i]);
        luggage->table = hr_buffer_unref(luggage->table);
        luggage->ids = hr_buffer_unref(luggage->ids);
        luggage->rows = hr_buffer_unref(luggage->rows);
        luggage->copy = hr_buffer_unref(luggage->copy);
        for (int i = 0; i < 2; i++)
                luggage->devices[i] = hr_device_unref(luggage->devices[i]);
}

hr_status journey_make(struct journey *journey) {
        struct luggage *luggage = calloc(1, sizeof *luggage);
        hr_status status;

        HR_EXPECT(luggage);
        journey->begin_ns = hr_clock_now_ns();
        luggage->outcome.tag = TAG;
        for (int i = 0; i < ROWS * ROW; i++)
                luggage->table_values[i] = (float) (i * 7 % 1000 + 1);
        for (int i = 0; i < PICKED; i++)
                luggage->id_values[i] = (i * 3 + 1) % ROWS;
        if (journey->bad_id)
                luggage->id_values[PICKED - 1] = journey->bad_id;
        status = luggage_pack(luggage, journey);
        if (status == HR_OK)
                status = travel(luggage, journey);
        if (journey->was_submitted)
                arrive(luggage, journey);
        luggage_unpack(luggage, journey);
        free(luggage);
        return status;
}
