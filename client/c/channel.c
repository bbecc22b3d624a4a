/*
 * Calls, waiting, and the reading role.
 *
 * There is no thread of its own: whoever waits for a reply reads, one thread at a time. It hands
 * what it gets to the calls that it belongs to, and passes the role on when its own call has
 * ended.
 */
#include "client/c/channel_priv.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* How long the daemon's own answer to a deadline is waited for. */
#define GRACE_NS INT64_C(2000000000)
/* A waiting thread looks around that often. */
#define SLICE_NS INT64_C(500000000)
#define BODY_BYTES_BEFORE_HELLO (1U << 20)

/* ---- time ------------------------------------------------------------------------------------ */

int64_t hr_client_now_ns(void) {
        struct timespec now;

        (void) clock_gettime(CLOCK_MONOTONIC, &now);
        return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

int64_t hr_client_deadline(int64_t timeout_ms, int64_t default_ms) {
        int64_t ms = timeout_ms ? timeout_ms : default_ms;

        if (ms < 0 || ms > INT64_MAX / 2000000)
                return HR_CLIENT_NEVER;
        return hr_client_now_ns() + ms * 1000000;
}

int hr_client_poll_ms(int64_t deadline_ns) {
        int64_t left = deadline_ns == HR_CLIENT_NEVER ? SLICE_NS
                                                      : deadline_ns - hr_client_now_ns();

        return (int) ((HR_MAX(HR_MIN(left, SLICE_NS), 0) + 999999) / 1000000);
}

bool hr_client_is_past(int64_t deadline_ns) {
        return deadline_ns != HR_CLIENT_NEVER && hr_client_now_ns() >= deadline_ns;
}

static struct timespec time_of(int64_t ns) {
        return (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
}

#if defined(__SANITIZE_THREAD__)
/* The thread sanitizer does not see pthread_mutex_clocklock(), and takes the mutex for unlocked. */
static int mutex_lock_until(pthread_mutex_t *mutex, int64_t deadline_ns) {
        int64_t left = deadline_ns - hr_client_now_ns();
        struct timespec at;

        (void) clock_gettime(CLOCK_REALTIME, &at);
        at = time_of(at.tv_sec * INT64_C(1000000000) + at.tv_nsec + HR_MAX(left, 0));
        return pthread_mutex_timedlock(mutex, &at);
}
#else
static int mutex_lock_until(pthread_mutex_t *mutex, int64_t deadline_ns) {
        const struct timespec at = time_of(deadline_ns);

        return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &at);
}
#endif

bool hr_client_lock(pthread_mutex_t *mutex, int64_t deadline_ns) {
        if (deadline_ns == HR_CLIENT_NEVER)
                return pthread_mutex_lock(mutex) == 0;
        return mutex_lock_until(mutex, deadline_ns) == 0;
}

/* ---- new and free ---------------------------------------------------------------------------- */

enum headrace_status hr_channel_new(const struct hr_transport *transport,
                                    struct headrace_error *error,
                                    struct hr_channel **ret_channel) {
        struct hr_channel *channel = calloc(1, sizeof *channel);

        if (channel)
                channel->scratch = malloc(HR_CHANNEL_SCRATCH_BYTES);
        if (!channel || !channel->scratch) {
                free(channel);
                transport->close(transport->data);
                return hr_client_fail_memory(error);
        }
        channel->transport = *transport;
        (void) pthread_mutex_init(&channel->sending, NULL);
        (void) pthread_mutex_init(&channel->state, NULL);
        channel->body_max = BODY_BYTES_BEFORE_HELLO;
        channel->next_id = 1;
        atomic_init(&channel->refs, 1);
        channel->process = getpid();
        *ret_channel = channel;
        return HEADRACE_OK;
}

struct hr_channel *hr_channel_ref(struct hr_channel *channel) {
        (void) atomic_fetch_add_explicit(&channel->refs, 1, memory_order_relaxed);
        return channel;
}

void hr_channel_unref(struct hr_channel *channel) {
        if (!channel || atomic_fetch_sub_explicit(&channel->refs, 1, memory_order_acq_rel) > 1)
                return;
        if (channel->process == getpid())
                channel->transport.close(channel->transport.data);
        else /* the parent's connection goes on, and hears nothing of this */
                (void) close(channel->transport.poll_fd);
        while (channel->calls) { /* only abandoned ones can be left */
                struct hr_call *call = channel->calls;

                channel->calls = call->next;
                hr_call_destroy(call);
        }
        (void) pthread_mutex_destroy(&channel->sending);
        (void) pthread_mutex_destroy(&channel->state);
        free(channel->scratch);
        free(channel);
}

void hr_channel_set_body_max(struct hr_channel *channel, uint32_t body_bytes_max) {
        channel->body_max = body_bytes_max;
}

uint32_t hr_channel_body_max(const struct hr_channel *channel) {
        return channel->body_max;
}

bool hr_channel_passes_fds(const struct hr_channel *channel) {
        return channel->transport.send_with != NULL;
}

void hr_channel_set_session(struct hr_channel *channel, uint64_t session) {
        channel->session = session;
}

uint64_t hr_channel_session(const struct hr_channel *channel) {
        return channel->session;
}

/* ---- calls ----------------------------------------------------------------------------------- */

struct hr_call *hr_channel_find(struct hr_channel *channel, uint64_t id) {
        struct hr_call *call = channel->calls;

        while (call && call->id != id)
                call = call->next;
        return call;
}

void hr_channel_forget(struct hr_channel *channel, struct hr_call *call) {
        struct hr_call **at = &channel->calls;

        while (*at && *at != call)
                at = &(*at)->next;
        if (*at)
                *at = call->next;
        if (channel->target == call)
                channel->target = NULL;
}

void hr_call_destroy(struct hr_call *call) {
        if (!call)
                return;
        (void) pthread_cond_destroy(&call->changed);
        free(call->message);
        free(call->body);
        free(call->into);
        free(call->ranges);
        free(call->shown.data);
        free(call);
}

void hr_channel_break(struct hr_channel *channel, const struct headrace_error *error) {
        if (!channel->failed) {
                channel->failed = true;
                channel->failure = *error;
        }
        for (struct hr_call *call = channel->calls; call; call = call->next)
                if (call->waiting)
                        (void) pthread_cond_signal(&call->changed);
}

void hr_channel_break_transport(struct hr_channel *channel, int number) {
        const struct hr_transport *transport = &channel->transport;
        const char *words = number && transport->words ? transport->words(transport->data) : NULL;
        struct headrace_error error;

        if (!words)
                words = strerror(number);
        (void) hr_client_fail(&error, HEADRACE_UNAVAILABLE, "EOF",
                              number ? "the connection has failed: %.100s"
                                     : "the daemon has closed the connection", words);
        hr_channel_break(channel, &error);
}

static struct hr_call *call_new(const struct hr_request *request, int64_t deadline_ns) {
        struct hr_call *call = calloc(1, sizeof *call);
        pthread_condattr_t monotonic;

        if (!call)
                return NULL;
        (void) pthread_condattr_init(&monotonic);
        (void) pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void) pthread_cond_init(&call->changed, &monotonic);
        (void) pthread_condattr_destroy(&monotonic);
        call->kind = request->kind;
        call->deadline_ns = deadline_ns;
        call->show = request->show;
        call->show_arg = request->show_arg;
        if (request->into) {
                call->into = calloc(request->into_count + 1, sizeof *call->into);
                if (!call->into) {
                        hr_call_destroy(call);
                        return NULL;
                }
                if (request->into_count)
                        memcpy(call->into, request->into,
                               request->into_count * sizeof *call->into);
                call->into_at = call->into;
                call->into_count = request->into_count;
                for (size_t i = 0; i < request->into_count; i++)
                        call->into_left += call->into[i].iov_len;
        }
        return call;
}

/* ---- the reading role ------------------------------------------------------------------------ */

void hr_channel_hand_over(struct hr_channel *channel) {
        for (struct hr_call *call = channel->calls; call && !channel->reading; call = call->next)
                if (call->waiting) {
                        (void) pthread_cond_signal(&call->changed);
                        return;
                }
}

void hr_channel_wait_some(struct hr_channel *channel, struct hr_call *call, int64_t deadline_ns) {
        struct pollfd ready = {.fd = channel->transport.poll_fd, .events = POLLIN};

        if (channel->reading) {
                int64_t until =
                        hr_client_now_ns() + hr_client_poll_ms(deadline_ns) * INT64_C(1000000);
                const struct timespec at = {.tv_sec = until / 1000000000,
                                            .tv_nsec = until % 1000000000};

                call->waiting = true;
                (void) pthread_cond_timedwait(&call->changed, &channel->state, &at);
                call->waiting = false;
                return;
        }
        channel->reading = true;
        if (channel->transport.holds_received)
                hr_channel_receive(channel, call);
        if (!hr_call_has_news(call) && !channel->failed) {
                int count;

                (void) pthread_mutex_unlock(&channel->state);
                count = poll(&ready, 1, hr_client_poll_ms(deadline_ns));
                (void) pthread_mutex_lock(&channel->state);
                if (count > 0)
                        hr_channel_receive(channel, call);
        }
        channel->reading = false;
        hr_channel_hand_over(channel);
}

bool hr_channel_draining(struct hr_channel *channel) {
        bool draining;

        (void) pthread_mutex_lock(&channel->state);
        if (!channel->reading)
                hr_channel_receive(channel, NULL);
        draining = channel->draining || channel->failed;
        (void) pthread_mutex_unlock(&channel->state);
        return draining;
}

/* ---- calls from the outside ------------------------------------------------------------------ */

enum headrace_status hr_channel_start(struct hr_channel *channel, const struct hr_request *request,
                                      int64_t deadline_ns, struct headrace_error *error,
                                      struct hr_call **ret_call) {
        struct hr_call *call;
        enum headrace_status status;

        if (request->message_bytes > HR_WIRE_MESSAGE_BYTES_MAX)
                return hr_client_fail(error, HEADRACE_EXHAUSTED, "MESSAGE",
                                      "a message of %zu bytes", request->message_bytes);
        if (channel->process != getpid())
                return hr_client_fail(error, HEADRACE_UNAVAILABLE, "FORKED",
                                      "this connection is of another process");
        call = call_new(request, deadline_ns);
        if (!call)
                return hr_client_fail_memory(error);
        (void) pthread_mutex_lock(&channel->state);
        call->channel = hr_channel_ref(channel);
        call->id = channel->next_id++;
        call->next = channel->calls;
        channel->calls = call;
        (void) pthread_mutex_unlock(&channel->state);
        status = hr_channel_send(channel, call, request, error);
        if (status != HEADRACE_OK) {
                hr_call_free(call);
                return status;
        }
        *ret_call = call;
        return HEADRACE_OK;
}

/* A request whose answer nobody waits for. */
static void send_and_forget(struct hr_channel *channel, const struct hr_request *request) {
        struct hr_call *call;

        if (hr_channel_start(channel, request, hr_client_deadline(1000, 1000), NULL, &call) !=
            HEADRACE_OK)
                return;
        (void) pthread_mutex_lock(&channel->state);
        if (call->ended) {
                hr_channel_forget(channel, call);
                hr_call_destroy(call);
        } else {
                call->abandoned = true;
        }
        (void) pthread_mutex_unlock(&channel->state);
        hr_channel_unref(channel);
}

struct hr_channel *hr_call_channel(const struct hr_call *call) {
        return call->channel;
}

void hr_call_cancel(const struct hr_call *call) {
        uint8_t message[16];
        size_t bytes;

        if (hr_wire_fixed64_encode(call->id, message, sizeof message, NULL, &bytes) == HR_OK)
                send_and_forget(call->channel, &(struct hr_request){.kind = HR_FRAME_CANCEL,
                                                              .message = message,
                                                              .message_bytes = bytes});
}

void hr_call_free(struct hr_call *call) {
        struct hr_channel *channel;
        bool open;

        if (!call)
                return;
        channel = call->channel;
        (void) pthread_mutex_lock(&channel->state);
        open = call->sent && !call->ended && !channel->failed;
        (void) pthread_mutex_unlock(&channel->state);
        if (open && call->kind != HR_FRAME_CANCEL)
                hr_call_cancel(call);
        (void) pthread_mutex_lock(&channel->state);
        if (call->ended || channel->failed || !call->sent) {
                hr_channel_forget(channel, call);
                hr_call_destroy(call);
        } else {
                /* Its memory may go: what still comes is thrown away. */
                call->abandoned = true;
                if (channel->target == call)
                        channel->target = NULL;
        }
        (void) pthread_mutex_unlock(&channel->state);
        hr_channel_unref(channel);
}

/* Shows what has come and answers, so that the run goes on. `state` is given up meanwhile. */
static void call_show(struct hr_call *call) {
        struct hr_channel *channel = call->channel;
        const struct hr_shown shown = call->shown;
        struct hr_wire_tap answer = {.run = call->id, .tap = shown.tap};
        uint8_t message[32];
        size_t bytes;

        call->shown = (struct hr_shown){0};
        (void) pthread_mutex_unlock(&channel->state);
        if (call->show)
                answer.stop = !call->show(call->show_arg, shown.tap, shown.data, shown.bytes);
        free(shown.data);
        if (hr_wire_tap_encode(&answer, message, sizeof message, NULL, &bytes) == HR_OK)
                send_and_forget(channel, &(struct hr_request){.kind = HR_FRAME_TAP,
                                                              .message = message,
                                                              .message_bytes = bytes});
        (void) pthread_mutex_lock(&channel->state);
}

enum headrace_status hr_call_wait(struct hr_call *call, struct headrace_error *error,
                                  struct hr_answer *ret_answer) {
        struct hr_channel *channel = call->channel;
        enum headrace_status status = HEADRACE_OK;
        int64_t until = call->deadline_ns == HR_CLIENT_NEVER ? HR_CLIENT_NEVER
                                                             : call->deadline_ns + GRACE_NS;

        (void) pthread_mutex_lock(&channel->state);
        while (!call->ended && !channel->failed && !hr_client_is_past(until)) {
                call->credit = 0; /* nothing more is to be sent */
                if (call->shown.ready)
                        call_show(call);
                else
                        hr_channel_wait_some(channel, call, until);
        }
        if (call->ended) {
                status = call->status;
                if (status != HEADRACE_OK && error)
                        *error = call->error;
        } else if (channel->failed) {
                status = channel->failure.status;
                if (error)
                        *error = channel->failure;
        } else {
                status = hr_client_fail(error, HEADRACE_DEADLINE, "DEADLINE",
                                        "the daemon has not answered in time");
        }
        if (status == HEADRACE_OK)
                *ret_answer = (struct hr_answer){
                        .message = {call->message, call->message_bytes},
                        .body = {call->body, call->into ? 0 : (size_t) call->body_bytes},
                        .body_bytes = call->body_bytes,
                };
        (void) pthread_mutex_unlock(&channel->state);
        return status;
}

enum headrace_status hr_channel_call(struct hr_channel *channel, const struct hr_request *request,
                                     int64_t deadline_ns, struct headrace_error *error,
                                     struct hr_call **ret_call, struct hr_answer *ret_answer) {
        struct hr_call *call;
        enum headrace_status status =
                hr_channel_start(channel, request, deadline_ns, error, &call);

        if (status != HEADRACE_OK)
                return status;
        status = hr_call_wait(call, error, ret_answer);
        if (status != HEADRACE_OK) {
                hr_call_free(call);
                return status;
        }
        *ret_call = call;
        return HEADRACE_OK;
}
