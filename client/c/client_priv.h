/* What the library's files share. */
#pragma once

#include <pthread.h>
#include <sys/uio.h>

#include "client/c/headrace.h"
#include "proto/codec.h"
#include "proto/frame.h"

#define HR_CLIENT_TIMEOUT_MS 60000
#define HR_CLIENT_NEVER INT64_MAX

/* ---- errors (error.c) ------------------------------------------------------------------------ */

/* Each returns the status that it has recorded; error may be NULL. */
HR_PRINTF(4, 5)
enum headrace_status hr_client_fail(struct headrace_error *error, enum headrace_status status,
                                    const char *reason, const char *format, ...);
enum headrace_status hr_client_fail_diag(struct headrace_error *error, const struct hr_diag *diag);
enum headrace_status hr_client_fail_wire(struct headrace_error *error,
                                         const struct hr_wire_error *wire);
/* INVALID: there is room for `limit` of something that is `actual`. */
HR_PRINTF(5, 6)
enum headrace_status hr_client_fail_size(struct headrace_error *error, const char *reason,
                                         uint64_t limit, uint64_t actual, const char *format, ...);
enum headrace_status hr_client_fail_memory(struct headrace_error *error);
/* The daemon's answer is no such message. */
enum headrace_status hr_client_fail_answer(struct headrace_error *error,
                                           const struct hr_diag *diag);

/* ---- time (channel.c) ------------------------------------------------------------------------ */

int64_t hr_client_now_ns(void); /* monotonic */
/* The moment at which a call of that timeout_ms ends; HR_CLIENT_NEVER for none. */
int64_t hr_client_deadline(int64_t timeout_ms, int64_t default_ms);
/* Milliseconds for poll(), at least 0, rounded up, at most half a second. */
int hr_client_poll_ms(int64_t deadline_ns);
bool hr_client_is_past(int64_t deadline_ns);
/* Locks a mutex, if it can be had by then. */
bool hr_client_lock(pthread_mutex_t *mutex, int64_t deadline_ns);

/* ---- the channel (channel.c, reply.c) -------------------------------------------------------- */

struct hr_channel;
struct hr_call;
struct hr_transport;

/* Takes what an observed run shows at a tap; false ends the run there. */
typedef bool (*hr_show_fn)(void *arg, uint32_t tap, const void *data, uint64_t bytes);

/* A request. The memory stays the caller's and must live until hr_channel_start() returns, `into`
 * until the call has ended. */
struct hr_request {
        uint8_t kind; /* hr_frame_type */
        const uint8_t *message;
        size_t message_bytes;
        const struct iovec *parts; /* of the body */
        size_t part_count;
        size_t first_parts; /* those that are the body; the rest follows it under credit, with
                             * offsets of its own. 0: all are */
        bool is_pulled; /* that rest is asked for by offset, and only the reply tells that no more
                         * of it is wanted */
        uint64_t *ret_sent; /* bytes of what is pulled that have been sent; NULL: not wanted */
        const int *fds;     /* that come with the frame; the channel must pass them */
        size_t fd_count;
        hr_show_fn show; /* called in hr_call_wait(); NULL: what is shown is thrown away */
        void *show_arg;
        const struct iovec *into; /* where the reply's body goes; NULL: into memory of the call's */
        size_t into_count;
};

/* How a call has ended. message and body belong to the call. */
struct hr_answer {
        struct hr_wire_span message;
        struct hr_wire_span body; /* empty with `into` */
        uint64_t body_bytes;      /* received, also into `into`: may be more than fits there */
};

/* Takes the transport over, also on failure. A channel is its creator's and that of each call that
 * is waited for. */
enum headrace_status hr_channel_new(const struct hr_transport *transport,
                                    struct headrace_error *error, struct hr_channel **ret_channel);
struct hr_channel *hr_channel_ref(struct hr_channel *channel);
void hr_channel_unref(struct hr_channel *channel); /* NULL is a no-op */
void hr_channel_set_body_max(struct hr_channel *channel, uint32_t body_bytes_max);
uint32_t hr_channel_body_max(const struct hr_channel *channel);
bool hr_channel_draining(struct hr_channel *channel);
/* Whether descriptors can be sent. */
bool hr_channel_passes_fds(const struct hr_channel *channel);
/* Which of a client's sessions it is of, from 1 on; 0 until that is set. */
void hr_channel_set_session(struct hr_channel *channel, uint64_t session);
uint64_t hr_channel_session(const struct hr_channel *channel);

/* Sends a request, all of its body included. Thread: any. */
enum headrace_status hr_channel_start(struct hr_channel *channel, const struct hr_request *request,
                                      int64_t deadline_ns, struct headrace_error *error,
                                      struct hr_call **ret_call);
/* Waits for the reply. The call stays until hr_call_free(). */
enum headrace_status hr_call_wait(struct hr_call *call, struct headrace_error *error,
                                  struct hr_answer *ret_answer);
/* Asks the daemon to stop that call. */
void hr_call_cancel(const struct hr_call *call);
/* Which it was sent over; as long as the call is there. */
struct hr_channel *hr_call_channel(const struct hr_call *call);
/* Frees a call; one that has not ended is cancelled, its reply thrown away. NULL is a no-op. */
void hr_call_free(struct hr_call *call);

/* start and wait. The caller frees the call, whose answer it has. */
enum headrace_status hr_channel_call(struct hr_channel *channel, const struct hr_request *request,
                                     int64_t deadline_ns, struct headrace_error *error,
                                     struct hr_call **ret_call, struct hr_answer *ret_answer);

/* ---- the client (client.c) ------------------------------------------------------------------- */

struct hr_known_set;

/* HEADRACE_INVALID (SHARE) when it is none. */
enum headrace_status hr_client_check_share(enum headrace_share share, struct headrace_error *error);

struct headrace_client {
        int64_t timeout_ms;
        struct headrace_limits limits;
        char daemon_version[32];
        /* For another connection; NULL: there is none. */
        char *address;
        struct headrace_options options; /* what it points to is the client's */
        bool session_waits;              /* the daemon keeps a session without a connection */
        bool passes_memory;              /* it maps memory that it is given */
        pthread_mutex_t renewal;         /* held while connecting anew; before `lock` */
        pthread_mutex_t lock; /* of what is below; never held while anything is waited for */
        struct hr_channel *channel;
        uint64_t session; /* counts those that this client has had */
        uint8_t token[HR_WIRE_TOKEN_BYTES_MAX]; /* changed with `renewal` held, too */
        size_t token_bytes;
        struct hr_known_set *sets;
        struct headrace_region *regions;
};

static inline int64_t hr_client_deadline_of(const struct headrace_client *client,
                                            int64_t timeout_ms) {
        return hr_client_deadline(timeout_ms, client->timeout_ms);
}

enum headrace_status hr_client_say_hello(struct hr_channel *channel,
                                         const struct headrace_options *options,
                                         int64_t deadline_ns, struct headrace_error *error,
                                         struct hr_wire_hello_reply *ret_reply);
/* A request whose message is one fixed64, and whose reply says nothing. */
enum headrace_status hr_client_simple(struct headrace_client *client, uint8_t kind, uint64_t value,
                                      int64_t timeout_ms, struct headrace_error *error);

/* ---- another connection (reconnect.c) -------------------------------------------------------- */

/* Copies what connecting anew needs, unless that is not wanted or not possible. */
enum headrace_status hr_client_keep_options(struct headrace_client *client, const char *address,
                                            const struct headrace_options *options,
                                            struct headrace_error *error);
void hr_client_forget_all(struct headrace_client *client);
/* The present connection, referenced. */
struct hr_channel *hr_client_channel(struct headrace_client *client);
/* Connects anew, unless another thread has done so since `ended` was found to have ended. False:
 * there is no other connection. */
bool hr_client_reconnect(struct headrace_client *client, const struct hr_channel *ended,
                         int64_t deadline_ns);
/* The daemon has gone, or is about to and refuses. */
bool hr_client_has_ended(enum headrace_status status, const struct headrace_error *error);
/* hr_channel_call() over the present connection; questions and loads are sent once more over
 * another one when it ends. */
enum headrace_status hr_client_call(struct headrace_client *client,
                                    const struct hr_request *request, int64_t deadline_ns,
                                    struct headrace_error *error, struct hr_call **ret_call,
                                    struct hr_answer *ret_answer);
uint32_t hr_client_body_max(struct headrace_client *client);
/* A set that WeightsLoad `load` finds again in another session. The number that the caller is given
 * for it. */
uint64_t hr_client_remember_set(struct headrace_client *client,
                                const struct hr_wire_set_info *info, const uint8_t *load,
                                size_t load_bytes);
/* The daemon's number of a set. */
uint64_t hr_client_set_number(struct headrace_client *client, uint64_t number);
void hr_client_forget_set(struct headrace_client *client, uint64_t number);

/* ---- graphs (graph.c) ------------------------------------------------------------------------ */

/* The graph as it goes over the wire: leaves first. Free with free(). */
enum headrace_status hr_client_graph_encode(const struct headrace_graph *graph,
                                            struct headrace_error *error, uint8_t **ret_bytes,
                                            size_t *ret_size);
/* Which tensor each id on the wire is, as numbered in the graph. Free with free(). */
enum headrace_status hr_client_graph_numbers(const struct headrace_graph *graph,
                                             struct headrace_error *error,
                                             uint32_t **ret_numbers, uint32_t *ret_count);

/* Nodes to be observed: their ids on the wire, and their numbers in the same order. INVALID
 * (TAP). */
enum headrace_status hr_client_graph_taps(const struct headrace_graph *graph, const uint32_t *taps,
                                          size_t count, struct headrace_error *error,
                                          uint32_t *ret_ids, uint32_t *ret_numbers);

/* ---- manifests (manifest.c) ------------------------------------------------------------------ */

#define HR_MANIFEST_PADDING 64U /* of each tensor in an upload */

/* Names, types and shapes of tensors, as they are told to the daemon. */
struct hr_manifest {
        uint8_t *bytes; /* owned */
        size_t size;
        uint64_t *tensor_bytes; /* of each; owned */
        uint64_t total_bytes;   /* padded */
};
/* Fills a zeroed manifest; the caller deinits it in any case. */
enum headrace_status hr_manifest_init(struct hr_manifest *manifest,
                                      const struct headrace_tensor *tensors, size_t count,
                                      struct headrace_error *error);
enum headrace_status hr_manifest_add_digests(struct hr_manifest *manifest, const uint8_t *leaves,
                                             size_t bytes, struct headrace_error *error);
void hr_manifest_deinit(struct hr_manifest *manifest);
/* The rules as the wire's. */
const struct hr_wire_rule *hr_client_rules(const struct headrace_rule *rules);
/* INVALID (NAME): none, or more than fits. */
enum headrace_status hr_client_check_name(const char *name, size_t capacity,
                                          struct headrace_error *error);

/* ---- uploads and memory (digest.c, region.c) ------------------------------------------------- */

/* Of `total` bytes; ret_leaves are the leaves' digests, freed with free(). False: no memory. */
bool hr_client_digest(const struct iovec *parts, uint64_t total, uint8_t **ret_leaves,
                      size_t *ret_bytes, uint8_t ret_digest[HR_WIRE_DIGEST_BYTES]);
/* Memory that can be sealed; -1 where there is none. */
int hr_client_memfd(uint64_t bytes);
/* Its size stays; is_final: so does its content. */
bool hr_client_memfd_seal(int fd, bool is_final);
/* Where the parts lie one behind the other in a region of the client's: its handle in the channel's
 * session, which is told of it if need be, and their place. Else handle 0. */
enum headrace_status hr_client_region(struct headrace_client *client, struct hr_channel *channel,
                                      const struct iovec *parts, size_t count, int64_t deadline_ns,
                                      struct headrace_error *error, uint64_t *ret_handle,
                                      uint64_t *ret_offset);

/* ---- states (state.c) ------------------------------------------------------------------------ */

/* A request that is answered with a new state. */
enum headrace_status hr_client_ask_state(struct headrace_client *client,
                                         const struct hr_request *request, int64_t timeout_ms,
                                         struct headrace_error *error, uint64_t *ret_state);

/* ---- submitted graphs (run.c) ---------------------------------------------------------------- */

struct headrace_client *hr_client_of(const struct headrace_handle *handle);
/* Makes ids on the wire, in what the daemon says about the handle's graph, the caller's numbers of
 * these tensors; they are left out where the handle is not known (NULL). Once for each error. */
void hr_client_error_number(const struct headrace_handle *handle, struct headrace_error *error);
/* The options as they go over the wire; graph_bytes: 0 for a graph that is one frame's body. */
struct hr_wire_submit hr_client_submit(const struct headrace_submit *options, uint64_t graph_bytes);
/* The daemon's number for it, and which of them it is. */
uint64_t hr_client_number(struct headrace_handle *handle, uint64_t *ret_generation);
/* Submits again unless somebody has since generation `seen`. */
enum headrace_status hr_client_renew(struct headrace_handle *handle, uint64_t seen,
                                     int64_t deadline_ns, struct headrace_error *error);
/* The daemon does not have the graph any more. */
bool hr_client_is_evicted(enum headrace_status status, const struct headrace_error *error);
