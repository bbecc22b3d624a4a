/*
 * One tick of a timer: what has come back is judged, the watchdog is fed, the next beat is sent to
 * the devices that have answered the one before: a job of the engine that queues, on each of them,
 * a write, a computation and a read of a few floats, and a notification behind them. So one that
 * does not answer keeps nobody from asking the others. Sums, or a product on a device that only
 * multiplies, of small whole numbers: they are exact whatever the order.
 */
#include "daemon/heartbeat.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "daemon/notify.h"
#include "daemon/pressure.h"
#include "daemon/server.h"

#define COLUMNS 256U /* of a product: as many as make it worth a library's while */
#define FLOATS (2U * COLUMNS)
#define OPERAND_BYTES (FLOATS * sizeof(float))
#define LATE_TICKS 2U
#define FIRST_LOOK_MS 10 /* for the first beat, until it has come back */

_Static_assert((LATE_TICKS + 1) * HR_DEFAULT_HEARTBEAT_MS < 5000,
               "a device that stands still just after a beat is late within five seconds");

struct pulse {
        struct hr_heartbeat *heartbeat;
        struct hr_device *device;
        struct hr_buffer *buffer; /* two sources and a result, each in OPERAND_BYTES */
        struct hr_program *program;
        struct hr_step step;
        struct hr_steps steps;
        struct hr_operand sources[2];
        int32_t params[HR_OP_PARAM_WORDS];
        struct hr_outcome outcome;
        float sent[2][FLOATS], received[FLOATS];
        atomic_bool back;   /* of its latest beat */
        uint64_t moves;     /* of the device, when looked at last */
        uint64_t moved_ns;  /* when it was seen to have come further */
        bool only_notifies; /* likewise a device that is slowed down for tests */
        bool submitted;     /* the engine's: the latest beat reached the queue */
        /* The loop's. */
        bool is_due;      /* it has part in the beat that is with the engine */
        bool asked;       /* its latest beat has not been judged */
        uint64_t sent_ns; /* ... was sent then */
        bool has_beaten, is_wrong;
        uint64_t right_ns, beats, failures;
};

struct hr_heartbeat {
        struct hr_server *server;
        struct hr_timer *timer;
        bool stopping;
        uint64_t period_ns, due_ns, lag_ns;
        bool feeds;     /* a watchdog waits to be fed */
        bool is_astray; /* nobody new can connect */
        bool is_first;  /* the first beat has not come back from all, nor has a period passed */
        uint64_t first_ns; /* when it was sent */
        struct hr_job job;
        bool job_is_out;
        uint64_t beat; /* number of the latest, from 1 on */
        struct pulse *pulses;
        uint32_t pulse_count;
};

/* ---- what a device computes ------------------------------------------------------------------ */

/* A vector, or a matrix of rows of two. */
static void pulse_operand(struct pulse *pulse, struct hr_operand *operand, unsigned place,
                          uint32_t rows) {
        struct hr_tensor tensor = {
                .type = HR_TYPE_F32,
                .view_base = HR_TENSOR_NONE,
                .ne = {rows ? 2 : FLOATS, rows ? rows : 1, 1, 1},
        };

        if (hr_tensor_set_contiguous(&tensor, NULL) != HR_OK)
                HR_ASSERT(false); /* some floats */
        *operand = hr_operand_of_tensor(&tensor, place);
        operand->data = (uint8_t *) pulse->buffer->base + (size_t) place * OPERAND_BYTES;
        operand->room = OPERAND_BYTES;
}

static hr_status pulse_make(struct pulse *pulse, struct hr_diag *diag) {
        bool matrix = pulse->device->props.type == HR_DEVICE_ACCEL;

        HR_TRY(hr_buffer_new(pulse->device, 3 * OPERAND_BYTES, HR_USAGE_COMPUTE, diag,
                             &pulse->buffer));
        pulse_operand(pulse, &pulse->sources[0], 0, matrix ? 2 : 0);
        pulse_operand(pulse, &pulse->sources[1], 1, matrix ? COLUMNS : 0);
        pulse_operand(pulse, &pulse->step.result, 2, matrix ? COLUMNS : 0);
        pulse->step.op = matrix ? HR_OP_MUL_MAT : HR_OP_ADD;
        pulse->step.params = pulse->params;
        pulse->step.sources = pulse->sources;
        pulse->step.source_count = 2;
        pulse->steps = (struct hr_steps){.count = 1, .steps = &pulse->step};
        return hr_program_new(pulse->device, &pulse->steps, diag, &pulse->program);
}

static bool pulse_is_right(const struct pulse *pulse) {
        const float *a = pulse->sent[0], *b = pulse->sent[1];
        float want[FLOATS];

        if (pulse->only_notifies)
                return true;
        if (pulse->step.op == HR_OP_ADD) {
                for (unsigned i = 0; i < FLOATS; i++)
                        want[i] = a[i] + b[i];
        } else { /* each row of b times the two rows of a */
                for (unsigned i = 0; i < FLOATS; i++)
                        want[i] = a[i % 2 * 2] * b[i / 2 * 2] + a[i % 2 * 2 + 1] * b[i / 2 * 2 + 1];
        }
        return memcmp(want, pulse->received, sizeof want) == 0;
}

/* ---- on the engine's thread ------------------------------------------------------------------ */

/* Thread: any. */
static void pulse_back(void *arg) {
        struct pulse *pulse = arg;

        atomic_store(&pulse->back, true);
}

static hr_status pulse_submit(struct pulse *pulse, struct hr_queue *queue, struct hr_diag *diag) {
        if (pulse->only_notifies)
                return HR_OK;
        HR_TRY(hr_queue_write(queue, pulse->buffer->base, pulse->sent, sizeof pulse->sent,
                              &pulse->outcome, diag));
        HR_TRY(hr_queue_compute(queue, pulse->program, 0, 1, &pulse->outcome, diag));
        return hr_queue_read(queue, pulse->step.result.data, pulse->received,
                             sizeof pulse->received, &pulse->outcome, diag);
}

static void beat_work(struct hr_job *job) {
        struct hr_heartbeat *heartbeat = job->arg;
        struct hr_engine *engine = heartbeat->server->engine;
        struct hr_fleet *fleet = hr_engine_fleet(engine);

        hr_engine_turn_take(engine);
        for (uint32_t i = 0; i < heartbeat->pulse_count; i++) {
                struct pulse *pulse = &heartbeat->pulses[i];
                struct hr_queue *queue = hr_fleet_queue(fleet, i);
                struct hr_diag diag = {0};

                if (!pulse->is_due)
                        continue;
                pulse->submitted = pulse_submit(pulse, queue, &diag) == HR_OK;
                if (hr_queue_notify(queue, pulse_back, pulse, &diag) != HR_OK) {
                        pulse->submitted = false;
                        pulse_back(pulse);
                }
        }
        hr_engine_turn_give(engine);
        hr_engine_job_end(job);
}

static void beat_done(struct hr_job *job) {
        struct hr_heartbeat *heartbeat = job->arg;

        heartbeat->job_is_out = false;
}

/* ---- ticks ----------------------------------------------------------------------------------- */

/* Its latest beat has not come back. */
static bool pulse_is_out(const struct pulse *pulse) {
        return pulse->asked && !atomic_load(&pulse->back);
}

static void pulse_judge(struct pulse *pulse, uint64_t now_ns) {
        bool right = pulse->submitted && !hr_outcome_failed(&pulse->outcome) &&
                     pulse_is_right(pulse);

        if (right != !pulse->is_wrong || !pulse->has_beaten)
                hr_log(right ? HR_LOG_INFO : HR_LOG_ERROR, "health", "device %s %s",
                       pulse->device->props.name,
                       right ? "computes" : "does not compute what it should");
        pulse->has_beaten = true;
        pulse->is_wrong = !right;
        pulse->asked = false;
        if (right)
                pulse->right_ns = now_ns;
        pulse->beats += right;
        pulse->failures += !right;
}

/* True when all have answered. */
static bool beat_judge(struct hr_heartbeat *heartbeat, uint64_t now_ns) {
        bool all_back = true;

        for (uint32_t i = 0; i < heartbeat->pulse_count; i++) {
                if (pulse_is_out(&heartbeat->pulses[i]))
                        all_back = false;
                else if (heartbeat->pulses[i].asked)
                        pulse_judge(&heartbeat->pulses[i], now_ns);
        }
        return all_back;
}

static void beat_send(struct hr_heartbeat *heartbeat, uint64_t now_ns) {
        heartbeat->beat++;
        for (uint32_t i = 0; i < heartbeat->pulse_count; i++) {
                struct pulse *pulse = &heartbeat->pulses[i];

                pulse->is_due = !pulse->asked && !hr_device_is_lost(pulse->device) &&
                                (pulse->program || pulse->only_notifies);
                if (!pulse->is_due)
                        continue;
                for (unsigned f = 0; f < FLOATS; f++) {
                        pulse->sent[0][f] = (float) ((heartbeat->beat + f) % 1024);
                        pulse->sent[1][f] = (float) (f + i + 1);
                }
                memset(pulse->received, 0xFF, sizeof pulse->received);
                pulse->outcome = (struct hr_outcome){0};
                atomic_store(&pulse->back, false);
                pulse->asked = true;
                pulse->sent_ns = now_ns;
        }
        heartbeat->job = (struct hr_job){
                .kind = HR_JOB_WORK, .work = beat_work, .done = beat_done, .arg = heartbeat};
        heartbeat->job_is_out = true;
        hr_engine_post(heartbeat->server->engine, &heartbeat->job);
}

/* Every device has answered, or has come a step further since it was looked at last: busy, not
 * stuck. */
static bool devices_move(struct hr_heartbeat *heartbeat, uint64_t now_ns) {
        bool all_move = true;

        for (uint32_t i = 0; i < heartbeat->pulse_count; i++) {
                struct pulse *pulse = &heartbeat->pulses[i];
                uint64_t moves = atomic_load_explicit(&pulse->device->moves, memory_order_relaxed);

                if (pulse_is_out(pulse) && moves == pulse->moves &&
                    !hr_device_is_lost(pulse->device))
                        all_move = false;
                if (moves != pulse->moves)
                        pulse->moved_ns = now_ns;
                pulse->moves = moves;
        }
        return all_move;
}

static void tick_cb(void *arg) {
        struct hr_heartbeat *heartbeat = arg;
        uint64_t now_ns = hr_clock_now_ns();
        bool moves = devices_move(heartbeat, now_ns), all_back;

        if (heartbeat->due_ns && now_ns > heartbeat->due_ns)
                heartbeat->lag_ns = HR_MAX(heartbeat->lag_ns, now_ns - heartbeat->due_ns);
        heartbeat->due_ns = now_ns + heartbeat->period_ns;
        if (heartbeat->job_is_out) /* the engine does not come to it */
                return;
        all_back = beat_judge(heartbeat, now_ns);
        if (heartbeat->is_first && heartbeat->beat > 0 &&
            (all_back || now_ns - heartbeat->first_ns >= heartbeat->period_ns)) {
                heartbeat->is_first = false;
                hr_timer_start(heartbeat->timer, tick_cb, FIRST_LOOK_MS,
                               heartbeat->period_ns / HR_NS_PER_MS);
                heartbeat->due_ns = 0;
        }
        heartbeat->is_astray = hr_server_is_astray(heartbeat->server);
        if (moves && heartbeat->feeds && !heartbeat->is_astray)
                hr_notify_watchdog();
        if (heartbeat->beat == 0)
                heartbeat->first_ns = now_ns;
        if (!heartbeat->stopping && (heartbeat->beat == 0 || !heartbeat->is_first))
                beat_send(heartbeat, now_ns);
}

/* ---- life ------------------------------------------------------------------------------------ */

hr_status hr_heartbeat_new(struct hr_server *server, struct hr_diag *diag,
                           struct hr_heartbeat **ret_heartbeat) {
        struct hr_heartbeat *heartbeat = calloc(1, sizeof *heartbeat);
        uint64_t watchdog_ns = hr_notify_watchdog_ns();

        if (heartbeat) {
                heartbeat->pulses = calloc(server->device_count, sizeof *heartbeat->pulses);
                heartbeat->timer = hr_timer_new(server->loop, heartbeat);
        }
        if (!heartbeat || !heartbeat->pulses || !heartbeat->timer) {
                (void) hr_heartbeat_free(heartbeat);
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the heartbeat");
        }
        heartbeat->server = server;
        heartbeat->pulse_count = server->device_count;
        heartbeat->period_ns = server->config->heartbeat_ns;
        heartbeat->feeds = watchdog_ns > 0;
        heartbeat->is_first = true;
        if (heartbeat->feeds)
                heartbeat->period_ns =
                        HR_MAX(HR_MIN(heartbeat->period_ns, watchdog_ns / 3), HR_NS_PER_MS);
        for (uint32_t i = 0; i < server->device_count; i++) {
                struct pulse *pulse = &heartbeat->pulses[i];
                struct hr_diag why = {0};

                pulse->heartbeat = heartbeat;
                pulse->device = server->devices[i];
                pulse->only_notifies = server->device_configs[i]->delay_ns > 0;
                if (pulse->only_notifies || pulse_make(pulse, &why) == HR_OK)
                        continue;
                /* Configured to take larger work only: then its queue is all that is asked. */
                pulse->only_notifies = why.status == HR_E_UNSUPPORTED;
                pulse->has_beaten = pulse->is_wrong = !pulse->only_notifies;
                hr_log(pulse->only_notifies ? HR_LOG_INFO : HR_LOG_ERROR, "health",
                       "device %s cannot be asked to compute: %s", pulse->device->props.name,
                       why.words);
        }
        hr_timer_start(heartbeat->timer, tick_cb, 0, FIRST_LOOK_MS);
        *ret_heartbeat = heartbeat;
        return HR_OK;
}

void hr_heartbeat_stop(struct hr_heartbeat *heartbeat) {
        if (heartbeat)
                heartbeat->stopping = true;
}

bool hr_heartbeat_is_idle(const struct hr_heartbeat *heartbeat) {
        return !heartbeat || !heartbeat->job_is_out;
}

void hr_heartbeat_release(struct hr_heartbeat *heartbeat) {
        if (!heartbeat)
                return;
        for (uint32_t i = 0; i < heartbeat->pulse_count; i++) {
                struct pulse *pulse = &heartbeat->pulses[i];

                pulse->program = hr_program_free(pulse->program);
                pulse->buffer = hr_buffer_unref(pulse->buffer);
        }
}

struct hr_heartbeat *hr_heartbeat_free(struct hr_heartbeat *heartbeat) {
        if (!heartbeat)
                return NULL;
        heartbeat->timer = hr_timer_free(heartbeat->timer);
        free(heartbeat->pulses);
        free(heartbeat);
        return NULL;
}

/* ---- health ---------------------------------------------------------------------------------- */

const char *hr_health_name(hr_health health) {
        static const char *const names[] = {"starting", "ok", "late", "wrong", "lost"};

        return names[health];
}

static hr_health pulse_health(const struct pulse *pulse) {
        const struct hr_heartbeat *heartbeat = pulse->heartbeat;
        uint64_t late_ns = HR_MAX(pulse->sent_ns, pulse->moved_ns) +
                           LATE_TICKS * heartbeat->period_ns;

        if (hr_device_is_lost(pulse->device))
                return HR_HEALTH_LOST;
        if (pulse_is_out(pulse) && hr_clock_now_ns() > late_ns)
                return HR_HEALTH_LATE;
        if (!pulse->has_beaten)
                return HR_HEALTH_STARTING;
        return pulse->is_wrong ? HR_HEALTH_WRONG : HR_HEALTH_OK;
}

void hr_heartbeat_device(const struct hr_heartbeat *heartbeat, uint32_t device,
                         struct hr_device_health *ret_health) {
        const struct pulse *pulse = &heartbeat->pulses[device];

        *ret_health = (struct hr_device_health){
                .health = pulse_health(pulse),
                .age_ns = pulse->right_ns ? hr_clock_now_ns() - pulse->right_ns : 0,
                .beats = pulse->beats,
                .failures = pulse->failures,
        };
}

uint64_t hr_heartbeat_lag_ns(const struct hr_heartbeat *heartbeat) {
        return heartbeat->lag_ns;
}

bool hr_server_is_ready(const struct hr_server *server, const char **ret_words) {
        static const char *const words[] = {
                [HR_HEALTH_STARTING] = "a device has not computed anything yet",
                [HR_HEALTH_LATE] = "a device does not answer",
                [HR_HEALTH_WRONG] = "a device does not compute what it should",
                [HR_HEALTH_LOST] = "a device is lost",
        };

        *ret_words = "ready";
        if (!server->heartbeat) {
                *ret_words = server->waiting[0] ? server->waiting : "starting";
                return false;
        }
        if (server->draining) {
                *ret_words = "draining";
                return false;
        }
        if (server->heartbeat->is_astray) {
                *ret_words = "the socket's path does not lead here";
                return false;
        }
        for (uint32_t i = 0; i < server->device_count; i++) {
                struct hr_device_health health;

                hr_heartbeat_device(server->heartbeat, i, &health);
                if (health.health != HR_HEALTH_OK && server->device_configs[i]->required) {
                        *ret_words = words[health.health];
                        return false;
                }
        }
        if (hr_pressure_words(server->pressure))
                *ret_words = hr_pressure_words(server->pressure);
        return true;
}

bool hr_server_is_degraded(const struct hr_server *server) {
        if (!server->heartbeat || server->missing_count > 0 || hr_pressure_words(server->pressure))
                return true;
        for (uint32_t i = 0; i < server->device_count; i++) {
                struct hr_device_health health;

                hr_heartbeat_device(server->heartbeat, i, &health);
                if (health.health != HR_HEALTH_OK && health.health != HR_HEALTH_STARTING)
                        return true;
        }
        return false;
}
