/* Streams and events of the fake driver. */
#include "tests/cuda/fake_priv.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/cuda/blocks.h"

#define LATE_US 15000

struct CUstream_st {
        CUcontext context;
        pthread_t thread;
        struct operation *first, *last;
        bool is_executing, is_ending;
        CUgraph capture; /* catches what it is given, NULL: it is executed */
        bool is_spoilt;  /* the capture */
};

struct CUevent_st {
        CUcontext context;
        uint64_t recorded, reached; /* tickets */
        uint64_t reached_ns;        /* when, if it keeps times */
        bool keeps_times;
        uint32_t users;             /* operations that name it */
        bool is_destroyed;
};

/* ---- Executing ------------------------------------------------------------------------------- */

static void copy_execute(const struct operation *operation) {
        memmove(operation->to, operation->from, operation->bytes);
        if (operation->is_broken && operation->bytes)
                *(uint8_t *) operation->to ^= 0x40;
}

/* Without the lock. */
static CUresult operation_execute(const struct operation *operation) {
        switch (operation->kind) {
        case OPERATION_COPY:
                copy_execute(operation);
                break;
        case OPERATION_SET:
                memset(operation->to, (int) (uintptr_t) operation->from, operation->bytes);
                break;
        case OPERATION_KERNEL:
                if (!blocks_run(operation->kernel, operation->blocks, operation->threads,
                                operation->argument))
                        return CUDA_ERROR_LAUNCH_FAILED;
                break;
        case OPERATION_PRODUCT:
                if (!fake_multiply(operation->argument))
                        return CUDA_ERROR_LAUNCH_FAILED;
                break;
        case OPERATION_HOST:
                fake_is_in_host_function = true;
                operation->fn(operation->to);
                fake_is_in_host_function = false;
                break;
        case OPERATION_VALUE:
                __atomic_store_n((uint64_t *) operation->to, operation->bytes, __ATOMIC_SEQ_CST);
                break;
        default:
                break;
        }
        return CUDA_SUCCESS;
}

/* Lock held. */
static void event_release(CUevent event) {
        if (--event->users == 0 && event->is_destroyed)
                free(event);
}

static void operation_free(struct operation *operation) {
        if (operation->event)
                event_release(operation->event);
        free(operation->argument);
        free(operation);
}

static uint32_t random_next(void) {
        fake.random = fake.random * 1664525 + 1013904223;
        return fake.random >> 16;
}

/* A pause now and then, with the lock given up. */
static void pause_a_little(void) {
        uint32_t pause = fake.random ? random_next() % 64 : 64;

        if (pause >= 8)
                return;
        (void) pthread_mutex_unlock(&fake.lock);
        (void) usleep(pause * 25);
        (void) pthread_mutex_lock(&fake.lock);
}

static bool is_ready(const struct CUstream_st *stream) {
        const struct operation *operation = stream->first;

        if (!operation || stream->context->lost != CUDA_SUCCESS)
                return operation != NULL;
        if (operation->kind == OPERATION_WAIT)
                return operation->event->reached >= operation->bytes ||
                       operation->event->context->lost != CUDA_SUCCESS;
        return !operation->is_to_peer || !fake.holds_peers;
}

static void context_count(CUcontext context) {
        if (context->lost == CUDA_SUCCESS && context->executed++ >= context->lose_at)
                context->lost = context->lose_with;
}

static void write_late(struct CUstream_st *stream, const struct operation *operation) {
        fake.executing[stream->context->gpu]++;
        (void) pthread_mutex_unlock(&fake.lock);
        (void) usleep(LATE_US);
        (void) operation_execute(operation);
        (void) pthread_mutex_lock(&fake.lock);
        fake.executing[stream->context->gpu]--;
}

/* One operation; of a lost context it is dropped, whatever it is. Lock held on entry and return. */
static void stream_step(struct CUstream_st *stream) {
        struct operation *operation = stream->first;
        CUresult result = CUDA_SUCCESS;

        stream->is_executing = true;
        pause_a_little();
        context_count(stream->context);
        if (stream->context->lost == CUDA_SUCCESS) {
                fake.executing[stream->context->gpu]++;
                (void) pthread_mutex_unlock(&fake.lock);
                result = operation_execute(operation);
                (void) pthread_mutex_lock(&fake.lock);
                fake.executing[stream->context->gpu]--;
                if (operation->kind == OPERATION_RECORD &&
                    operation->event->reached < operation->bytes) {
                        operation->event->reached = operation->bytes;
                        operation->event->reached_ns = hr_clock_now_ns();
                }
                if (result != CUDA_SUCCESS)
                        stream->context->lost = result;
        } else if (operation->kind == OPERATION_VALUE && fake.writes_late) {
                write_late(stream, operation);
        }
        fake.executed++;
        stream->first = operation->next;
        if (!stream->first)
                stream->last = NULL;
        operation_free(operation);
        stream->is_executing = false;
        (void) pthread_cond_broadcast(&fake.changed);
}

void fake_wait_executing(void) {
        for (uint32_t i = 0; i < FAKE_GPUS; i++)
                while (fake.contexts[i].lost != CUDA_SUCCESS && fake.executing[i])
                        (void) pthread_cond_wait(&fake.changed, &fake.lock);
}

static void *stream_main(void *arg) {
        struct CUstream_st *stream = arg;

        (void) pthread_mutex_lock(&fake.lock);
        while (stream->first || !stream->is_ending) {
                if (is_ready(stream))
                        stream_step(stream);
                else
                        (void) pthread_cond_wait(&fake.changed, &fake.lock);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return NULL;
}

CUresult fake_enqueue(CUstream stream, const struct operation *model) {
        struct operation *operation;

        if (!stream) /* the legacy stream, which waits for all others */
                fake.violations++;
        if (!stream || stream->context != fake_current)
                return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
                CUresult result = fake_capturing == stream
                                          ? fake_graph_catch(stream->capture, model)
                                          : CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;

                stream->is_spoilt |= result != CUDA_SUCCESS;
                return result;
        }
        operation = malloc(sizeof *operation);
        if (!operation)
                return CUDA_ERROR_OUT_OF_MEMORY;
        *operation = *model;
        operation->next = NULL;
        if (operation->event)
                operation->event->users++;
        if (stream->last)
                stream->last->next = operation;
        else
                stream->first = operation;
        stream->last = operation;
        (void) pthread_cond_broadcast(&fake.changed);
        return CUDA_SUCCESS;
}

/* ---- Streams --------------------------------------------------------------------------------- */

static CUresult stream_create(CUstream *ret_stream, unsigned flags) {
        struct CUstream_st *stream = calloc(1, sizeof *stream);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamCreate");
        if (result == CUDA_SUCCESS && (!stream || !(flags & CU_STREAM_NON_BLOCKING)))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) {
                stream->context = fake_current;
                if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0)
                        result = CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (result == CUDA_SUCCESS) {
                fake.streams++;
                *ret_stream = stream;
        } else {
                free(stream);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* Also of a lost context, and after an injected failure: handles always go. */
static CUresult stream_destroy(CUstream stream) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuStreamDestroy");
        fake_expect_current(stream->context, "cuStreamDestroy");
        stream->is_ending = true;
        (void) pthread_cond_broadcast(&fake.changed);
        (void) pthread_mutex_unlock(&fake.lock);
        (void) pthread_join(stream->thread, NULL);
        (void) pthread_mutex_lock(&fake.lock);
        fake.streams--;
        fake.violations += stream->capture != NULL;
        (void) pthread_mutex_unlock(&fake.lock);
        free(stream);
        return result;
}

static CUresult stream_synchronize(CUstream stream) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamSynchronize");
        while (result == CUDA_SUCCESS && (stream->first || stream->is_executing)) {
                (void) pthread_cond_wait(&fake.changed, &fake.lock);
                result = stream->context->lost;
        }
        if (result == CUDA_SUCCESS)
                result = stream->context->lost;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- Captures -------------------------------------------------------------------------------- */

void fake_spoil_capture(void) {
        fake_capturing->is_spoilt = true;
}

static CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamBeginCapture");
        if (result == CUDA_SUCCESS && (!stream || stream->capture || fake_capturing ||
                                       mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS) {
                stream->capture = fake_graph_new();
                result = stream->capture ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        }
        if (result == CUDA_SUCCESS) {
                stream->is_spoilt = false;
                fake_capturing = stream;
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* The capture ends whatever is injected; a spoilt one gives nothing. */
static CUresult end_capture(CUstream stream, CUgraph *ret_graph) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamEndCapture");
        *ret_graph = NULL;
        if (stream != fake_capturing || !stream) {
                fake.violations++;
                (void) pthread_mutex_unlock(&fake.lock);
                return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        }
        fake_capturing = NULL;
        if (result == CUDA_SUCCESS && stream->is_spoilt)
                result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (result == CUDA_SUCCESS)
                *ret_graph = stream->capture;
        else
                fake_graph_free(stream->capture);
        stream->capture = NULL;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult stream_query(CUstream stream) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamQuery");
        if (result == CUDA_SUCCESS && (stream->first || stream->is_executing))
                result = CUDA_ERROR_NOT_READY;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult stream_wait_event(CUstream stream, CUevent event, unsigned flags) {
        struct operation operation = { .kind = OPERATION_WAIT, .event = event };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamWaitEvent");
        operation.bytes = event->recorded;
        if (result == CUDA_SUCCESS)
                result = fake_enqueue(stream, &operation);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult stream_write_value(CUstream stream, CUdeviceptr address, cuuint64_t value,
                                   unsigned flags) {
        struct operation operation = { .kind = OPERATION_VALUE,
                                       .to = (void *) (uintptr_t) address,
                                       .bytes = value };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuStreamWriteValue64");
        if (result == CUDA_SUCCESS && !fake_is_pinned(operation.to, sizeof value))
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS)
                result = fake_enqueue(stream, &operation);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult launch_host_function(CUstream stream, CUhostFn fn, void *arg) {
        struct operation operation = { .kind = OPERATION_HOST, .fn = fn, .to = arg };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuLaunchHostFunc");
        if (result == CUDA_SUCCESS)
                result = fake_enqueue(stream, &operation);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

/* ---- Events ---------------------------------------------------------------------------------- */

static CUresult event_create(CUevent *ret_event, unsigned flags) {
        struct CUevent_st *event = calloc(1, sizeof *event);
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuEventCreate");
        if (result == CUDA_SUCCESS && flags != CU_EVENT_DISABLE_TIMING && flags != CU_EVENT_DEFAULT)
                result = CUDA_ERROR_INVALID_VALUE;
        if (result == CUDA_SUCCESS && event) {
                event->keeps_times = flags == CU_EVENT_DEFAULT;
                event->context = fake_current;
                fake.events++;
                *ret_event = event;
        } else {
                free(event);
        }
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult event_destroy(CUevent event) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter("cuEventDestroy");
        fake_expect_current(event->context, "cuEventDestroy");
        fake.events--;
        event->is_destroyed = true;
        if (event->users == 0)
                free(event);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult event_record(CUevent event, CUstream stream) {
        struct operation operation = { .kind = OPERATION_RECORD, .event = event };
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuEventRecord");
        if (result == CUDA_SUCCESS && event->context != fake_current)
                result = CUDA_ERROR_INVALID_HANDLE;
        operation.bytes = event->recorded + 1;
        if (result == CUDA_SUCCESS)
                result = fake_enqueue(stream, &operation);
        if (result == CUDA_SUCCESS)
                event->recorded++;
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

static CUresult event_elapsed_time(float *ret_ms, CUevent from, CUevent to) {
        CUresult result;

        (void) pthread_mutex_lock(&fake.lock);
        result = fake_enter_context("cuEventElapsedTime");
        if (result == CUDA_SUCCESS && (!from->keeps_times || !to->keeps_times || !from->recorded ||
                                       !to->recorded || from->context != to->context)) {
                fake.violations++;
                result = CUDA_ERROR_INVALID_HANDLE;
        }
        if (result == CUDA_SUCCESS &&
            (from->reached != from->recorded || to->reached != to->recorded))
                result = CUDA_ERROR_NOT_READY;
        if (result == CUDA_SUCCESS)
                *ret_ms = (float) ((double) (int64_t) (to->reached_ns - from->reached_ns) / 1e6);
        (void) pthread_mutex_unlock(&fake.lock);
        return result;
}

void fake_fill_streams(struct cuda_syms *syms) {
        syms->cuStreamCreate = stream_create;
        syms->cuStreamDestroy = stream_destroy;
        syms->cuStreamSynchronize = stream_synchronize;
        syms->cuStreamQuery = stream_query;
        syms->cuStreamWaitEvent = stream_wait_event;
        syms->cuStreamWriteValue64 = stream_write_value;
        syms->cuStreamBeginCapture = begin_capture;
        syms->cuStreamEndCapture = end_capture;
        syms->cuLaunchHostFunc = launch_host_function;
        syms->cuEventCreate = event_create;
        syms->cuEventDestroy = event_destroy;
        syms->cuEventRecord = event_record;
        syms->cuEventElapsedTime = event_elapsed_time;
}
