/*
 * libheadrace-client: submits tensor graphs to headraced and runs them.
 *
 *         struct headrace_client *client;
 *         struct headrace_error error;
 *
 *         if (headrace_connect("unix:/run/headrace.sock", NULL, &error, &client))
 *                 fprintf(stderr, "%s: %s\n", error.reason, error.words);
 *
 * Errors. Every function that can fail returns an enum headrace_status, HEADRACE_OK being 0, and
 * fills *error (which may be NULL) when it fails; `ret_` arguments are written on success only. The
 * numbers are gRPC's, reasons are stable: proto/README.md of the daemon lists them.
 *
 * Deadlines. Every call takes timeout_ms: 0 for the client's default, HEADRACE_NO_TIMEOUT for none.
 * It reaches the daemon, which stops the work. A call whose time is over returns HEADRACE_DEADLINE;
 * the connection stays usable, and a late answer is thrown away.
 *
 * Daemons that end (restart, kill), connections that break. A request that was not answered is sent
 * once more, over a new connection and within the deadline of its call, if twice is the same as
 * once: questions, loads, submits of graphs without states, and their runs, which are planned again
 * first; weight sets are found again by path or name, and keep the numbers that the caller has. The
 * session is the same where the daemon waits for it, else a new one, without the states of the old
 * one. All else ends with HEADRACE_UNAVAILABLE (EOF; DRAINING while the daemon still answers). Not
 * with headrace_options.no_resend, and not over a stream of the caller's.
 *
 * Processes. A client belongs to the process that made it: in a child after fork() its calls end
 * with HEADRACE_UNAVAILABLE (FORKED), and headrace_close() leaves the parent's connection alone.
 *
 * Threads. Any number of threads may share one client and its handles; there is no thread inside.
 * Whoever waits reads for all. A graph under construction belongs to one thread. Nothing may be
 * used by another thread while it is closed or freed.
 *
 * Memory. Strings and arrays that are passed in are not kept after the call, except where a run is
 * started and waited for separately. What a function gives is freed by the function named with it.
 *
 * Tensors have four extents, ne[0] being the fastest; types and operators are those of GGUF and
 * ggml by name ("f32", "q4_K"; "MUL_MAT"). Sizes and offsets are in bytes.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HEADRACE_API __attribute__((visibility("default")))

enum headrace_status {
        HEADRACE_OK = 0,
        HEADRACE_CANCELLED = 1,
        HEADRACE_INVALID = 3,
        HEADRACE_DEADLINE = 4,
        HEADRACE_NOT_FOUND = 5,
        HEADRACE_EXISTS = 6,
        HEADRACE_PERMISSION = 7,
        HEADRACE_EXHAUSTED = 8,
        HEADRACE_PRECONDITION = 9,
        HEADRACE_RANGE = 11,
        HEADRACE_UNSUPPORTED = 12,
        HEADRACE_INTERNAL = 13,    /* also: the daemon's answer cannot be understood (PROTOCOL) */
        HEADRACE_UNAVAILABLE = 14, /* also: no connection (CONNECT, EOF) */
        HEADRACE_DATA_LOSS = 15,
        HEADRACE_UNAUTHENTICATED = 16,
};

#define HEADRACE_NO_TIMEOUT (-1)

#define HEADRACE_ERROR_WRITTEN_MAX 256

struct headrace_error {
        enum headrace_status status;
        char reason[48]; /* "LIMIT", "SHAPE", ... */
        char words[257]; /* for people */
        bool has_node, has_tensor;
        uint32_t node;   /* position among the nodes in the order in which they were made */
        uint32_t tensor; /* as numbered by headrace_graph_leaf() and headrace_graph_node(); of
                          * headrace_reserve(): leaves first, then nodes */
        char field[64];  /* of a message or of a configuration, may be empty */
        uint64_t limit, actual;
        uint32_t retry_after_ms; /* 0: nothing is known */
        bool has_step;
        uint32_t step; /* of a sequence, from 0 on: tensor, node and written are of its graph */
        /* Of a run or a step that failed, was cancelled or was stopped: the states that it has
         * written, or may have, all the same; those of earlier steps are written as well. As
         * numbered by headrace_graph_leaf(). None where the daemon knows that none was written -
         * and where it has not told how the run ended: UNAVAILABLE, and a DEADLINE that passed
         * while nothing was heard, leave open what the run's states hold. */
        uint32_t written_count;
        uint32_t written_left_out; /* further ones, for which there is no room here */
        uint32_t written[HEADRACE_ERROR_WRITTEN_MAX];
};

/* "INVALID"...; "?" for a number that is no status. Never NULL. */
HEADRACE_API const char *headrace_status_name(int status);
/* Of the library, as "0.1.0". */
HEADRACE_API const char *headrace_version(void);

/* ---- connection ------------------------------------------------------------------------------ */

struct headrace_client;

/* A connected stream of the caller's, for transports that this library does not speak. Both
 * functions behave like recv() and send() of a non-blocking socket: -1 with errno, EAGAIN where
 * they would block; poll_fd is then polled. They are called by one thread at a time each. `close`
 * is called once, also when connecting fails. */
struct headrace_stream {
        void *data;
        int poll_fd;
        int64_t (*receive)(void *data, void *buffer, size_t bytes);
        int64_t (*send)(void *data, const void *buffer, size_t bytes);
        void (*close)(void *data);
};

/* Zeroed is valid. */
struct headrace_options {
        int64_t timeout_ms;       /* of connecting, and the default of every call; 0: a minute */
        const char *client_name;  /* shown to the operator; NULL: "libheadrace-client" */
        const char *session_name; /* NULL or empty: a session of its own */
        const void *credentials;  /* the token of a principal, where the daemon asks for one */
        size_t credentials_bytes; /* at most 256 */
        const void *resume_token; /* of headrace_session_token(): joins or resumes that session */
        size_t resume_token_bytes;
        const struct headrace_stream *stream; /* used instead of the address */
        bool no_resend;                       /* see "Daemons that end" */
        /* For "tls:host:port": PEM files, read while connecting. */
        const char *tls_ca;          /* who may have signed the daemon's certificate; NULL: whom
                                      * the system trusts */
        const char *tls_certificate; /* by which the daemon may know this client, its chain behind
                                      * it; NULL: shows none */
        const char *tls_key;         /* of tls_certificate, without a pass phrase; NULL: in the same
                                      * file */
        const char *tls_name;        /* of whom the daemon's certificate must be; NULL: the
                                      * address's host */
};

/* Connects to "unix:/path", "tcp:host:port" or "tls:host:port" and says hello; options may be NULL.
 * Over TLS, which is 1.3 or nothing, the daemon has to show a certificate of that name. Besides
 * what the daemon says, such as UNAUTHENTICATED:
 *
 *   INVALID (ADDRESS, TLS)          no such address; a file that cannot be used, or none of TLS's
 *   UNAVAILABLE (CONNECT)           nobody listens there
 *   UNAVAILABLE (TLS)               no handshake: the words say whether the daemon's certificate is
 *                                   not trusted, or of another name, or no TLS is spoken there
 *   UNAVAILABLE (EOF)               a daemon that does not trust this client's certificate says so
 *                                   only afterwards; its alert is in the words
 *   DEADLINE                        timeout_ms of the options has passed; looking up the host's
 *                                   name alone may take longer */
HEADRACE_API enum headrace_status headrace_connect(const char *address,
                                                   const struct headrace_options *options,
                                                   struct headrace_error *error,
                                                   struct headrace_client **ret_client);
/* Ends the connection; calls of other threads must have returned. NULL is a no-op. */
HEADRACE_API void headrace_close(struct headrace_client *client);

/* As the hello gave them; valid until headrace_close(). */
struct headrace_limits {
        uint64_t message_bytes_max, body_bytes_max, graph_nodes_max, graph_bytes_max,
                tensor_bytes_max, session_graphs_max, session_runs_max, session_state_bytes_max,
                upload_bytes_max, output_queue_bytes_max, run_bytes_max, copies_max;
};
HEADRACE_API const struct headrace_limits *headrace_limits_of(const struct headrace_client *client);
HEADRACE_API const char *headrace_daemon_version(const struct headrace_client *client);
/* Secret: whoever has it is this session. Another one once a new session had to take its place. */
HEADRACE_API const void *headrace_session_token(const struct headrace_client *client,
                                                size_t *ret_bytes);
/* The daemon has said that it takes no new requests. */
HEADRACE_API bool headrace_draining(struct headrace_client *client);

HEADRACE_API enum headrace_status headrace_ping(struct headrace_client *client, int64_t timeout_ms,
                                                struct headrace_error *error);

struct headrace_device {
        char name[64], description[128], type[8], memory_kind[64];
        uint64_t memory_free, memory_total, memory_used;
        uint32_t threads;
};
/* In order of priority. Free with headrace_free(). */
HEADRACE_API enum headrace_status headrace_devices(struct headrace_client *client,
                                                   int64_t timeout_ms, struct headrace_error *error,
                                                   struct headrace_device **ret_devices,
                                                   size_t *ret_count);
struct headrace_stat {
        char name[64];
        char labels[128]; /* key="value",... */
        double value;
};
/* The daemon's counters. Free with headrace_free(). */
HEADRACE_API enum headrace_status headrace_stats(struct headrace_client *client, int64_t timeout_ms,
                                                 struct headrace_error *error,
                                                 struct headrace_stat **ret_stats,
                                                 size_t *ret_count);
/* The same as text in Prometheus' format, with a NUL behind it. Free with headrace_free(). */
HEADRACE_API enum headrace_status headrace_metrics(struct headrace_client *client,
                                                   int64_t timeout_ms,
                                                   struct headrace_error *error, char **ret_text);
/* What the daemon remembers of itself as Chrome/Perfetto JSON, with a NUL behind it: requests,
 * their stages and the commands of devices that have ended in the latest milliseconds (0: all of
 * it). own: only of this principal; otherwise PERMISSION without the right to administer. Free with
 * headrace_free(). */
HEADRACE_API enum headrace_status headrace_trace(struct headrace_client *client,
                                                 uint64_t latest_ms, bool own, int64_t timeout_ms,
                                                 struct headrace_error *error, char **ret_text,
                                                 size_t *ret_bytes);
/* What the session and its principal hold and may hold, as session_held, principal_held and
 * principal_limit. Free with headrace_free(). */
HEADRACE_API enum headrace_status headrace_quota(struct headrace_client *client, int64_t timeout_ms,
                                                 struct headrace_error *error,
                                                 struct headrace_stat **ret_stats,
                                                 size_t *ret_count);
/* Returns when all earlier runs of the session have ended. */
HEADRACE_API enum headrace_status headrace_sync(struct headrace_client *client, int64_t timeout_ms,
                                                struct headrace_error *error);
HEADRACE_API void headrace_free(void *memory);

/* ---- weights and states ---------------------------------------------------------------------- */

/* Where tensors live: the first rule whose glob matches the tensor's name counts; device "fit"
 * spreads them by free memory; no match: the last device. */
struct headrace_rule {
        const char *pattern;
        const char *device;
};

struct headrace_tensor {
        const char *name;
        const char *type;
        int64_t ne[4];
        const void *data; /* contiguous; NULL in a state, which begins with zeros */
};

struct headrace_set {
        uint64_t handle;
        uint64_t tensors, bytes;
        bool already; /* it was there before */
};

/* Who finds a set by name and shares in equal contents: everybody, or the principal whose it is. */
enum headrace_share { HEADRACE_SHARE_ALL = 0, HEADRACE_SHARE_PRINCIPAL = 1 };

/* A file below one of the daemon's model directories: GGUF, or safetensors by its extension. name:
 * NULL for the path. */
HEADRACE_API enum headrace_status
headrace_load(struct headrace_client *client, const char *path, const char *name,
              const struct headrace_rule *rules, size_t rule_count, int64_t timeout_ms,
              struct headrace_error *error, struct headrace_set *ret_set);
/* The same, for whom it says. Another value of share: HEADRACE_INVALID (SHARE). */
HEADRACE_API enum headrace_status
headrace_load_shared(struct headrace_client *client, const char *path, const char *name,
                     const struct headrace_rule *rules, size_t rule_count,
                     enum headrace_share share, int64_t timeout_ms, struct headrace_error *error,
                     struct headrace_set *ret_set);
/* Uploads tensors as a set. Contents that the daemon has are not sent; when the connection breaks
 * it is made anew, and what has arrived is not sent again (whole leaves of 4 MiB, unless the daemon
 * has ended). On a Unix socket large contents are passed as sealed memory. */
HEADRACE_API enum headrace_status
headrace_put(struct headrace_client *client, const char *name,
             const struct headrace_tensor *tensors, size_t tensor_count,
             const struct headrace_rule *rules, size_t rule_count, int64_t timeout_ms,
             struct headrace_error *error, struct headrace_set *ret_set);
/* The same, for whom it says. Another value of share: HEADRACE_INVALID (SHARE). */
HEADRACE_API enum headrace_status
headrace_put_shared(struct headrace_client *client, const char *name,
                    const struct headrace_tensor *tensors, size_t tensor_count,
                    const struct headrace_rule *rules, size_t rule_count,
                    enum headrace_share share, int64_t timeout_ms, struct headrace_error *error,
                    struct headrace_set *ret_set);
/* Gives a set back; it goes when nobody holds it any more. */
HEADRACE_API enum headrace_status headrace_drop(struct headrace_client *client, uint64_t set,
                                                int64_t timeout_ms, struct headrace_error *error);

/* Writable tensors, zero-filled, owned by the session. */
HEADRACE_API enum headrace_status
headrace_state_alloc(struct headrace_client *client, const struct headrace_tensor *tensors,
                     size_t tensor_count, const struct headrace_rule *rules, size_t rule_count,
                     int64_t timeout_ms, struct headrace_error *error, uint64_t *ret_state);
/* `bytes` bytes of tensor number `tensor` from `offset` on. */
HEADRACE_API enum headrace_status headrace_state_read(struct headrace_client *client,
                                                      uint64_t state, uint32_t tensor,
                                                      uint64_t offset, void *buffer, uint64_t bytes,
                                                      int64_t timeout_ms,
                                                      struct headrace_error *error);
HEADRACE_API enum headrace_status headrace_state_write(struct headrace_client *client,
                                                       uint64_t state, uint32_t tensor,
                                                       uint64_t offset, const void *data,
                                                       uint64_t bytes, int64_t timeout_ms,
                                                       struct headrace_error *error);
HEADRACE_API enum headrace_status headrace_state_free(struct headrace_client *client,
                                                      uint64_t state, int64_t timeout_ms,
                                                      struct headrace_error *error);

/* All of it, as it is between two runs, for headrace_state_restore() of any daemon. Free with
 * headrace_free(). */
HEADRACE_API enum headrace_status headrace_state_save(struct headrace_client *client,
                                                      uint64_t state, int64_t timeout_ms,
                                                      struct headrace_error *error,
                                                      void **ret_saved, uint64_t *ret_bytes);
/* A new state with tensors and contents of a saved one. */
HEADRACE_API enum headrace_status
headrace_state_restore(struct headrace_client *client, const void *saved, uint64_t bytes,
                       const struct headrace_rule *rules, size_t rule_count, int64_t timeout_ms,
                       struct headrace_error *error, uint64_t *ret_state);
/* A copy, made where it lies. */
HEADRACE_API enum headrace_status headrace_state_fork(struct headrace_client *client,
                                                      uint64_t state, int64_t timeout_ms,
                                                      struct headrace_error *error,
                                                      uint64_t *ret_state);

/* ---- shared memory --------------------------------------------------------------------------- */

/* Memory that the daemon has, too: runs and sequences whose inputs, or whose outputs, lie one
 * behind the other in a region, and reads and writes of states there, send none of it; inputs then
 * have the lengths that the graph gives them. They must stay as they are until the run has ended.
 * Where a run ends with HEADRACE_DEADLINE on this side, the daemon may still write its outputs for
 * a moment. Unix sockets only: HEADRACE_UNSUPPORTED (REGION) elsewhere. */
struct headrace_region;
HEADRACE_API enum headrace_status headrace_region_new(struct headrace_client *client,
                                                      uint64_t bytes, int64_t timeout_ms,
                                                      struct headrace_error *error,
                                                      struct headrace_region **ret_region);
/* Page-aligned; zeros at first. */
HEADRACE_API void *headrace_region_memory(const struct headrace_region *region);
/* After the runs that use it, before headrace_close(); freed on this side in any case. NULL is a
 * no-op. */
HEADRACE_API enum headrace_status headrace_region_free(struct headrace_region *region,
                                                       int64_t timeout_ms,
                                                       struct headrace_error *error);

/* ---- graphs ---------------------------------------------------------------------------------- */

struct headrace_graph;

enum headrace_leaf {
        HEADRACE_WEIGHT = 1, /* found in a weight set by its name */
        HEADRACE_STATE = 2,  /* found in a state by its name */
        HEADRACE_INPUT = 3,  /* carried by each run, in the order in which they were made */
};

#define HEADRACE_NONE UINT32_MAX /* an absent optional source */

/* An empty graph, or NULL without memory. */
HEADRACE_API struct headrace_graph *headrace_graph_new(void);
/* NULL is a no-op. Submitted handles do not need it any more. */
HEADRACE_API void headrace_graph_free(struct headrace_graph *graph);

/* A leaf; ne: four extents. name may be NULL for an input. */
HEADRACE_API enum headrace_status headrace_graph_leaf(struct headrace_graph *graph,
                                                      enum headrace_leaf kind, const char *type,
                                                      const int64_t ne[4], const char *name,
                                                      struct headrace_error *error,
                                                      uint32_t *ret_tensor);
/* A leaf whose bytes, copied from data, are part of the graph. */
HEADRACE_API enum headrace_status headrace_graph_constant(struct headrace_graph *graph,
                                                          const char *type, const int64_t ne[4],
                                                          const void *data,
                                                          struct headrace_error *error,
                                                          uint32_t *ret_tensor);

struct headrace_node {
        const char *op;
        const uint32_t *sources; /* tensors; HEADRACE_NONE for an absent one */
        size_t source_count;
        const int32_t *params; /* words as in core/README.md, floats by their bits */
        size_t param_count;    /* at most 16 */
        /* Where sources and parameters leave the result open (VIEW, RESHAPE, REPEAT, CONT, ...);
         * all 0: inferred. */
        int64_t ne[4];
        uint64_t nb[4];   /* VIEW only: strides; all 0: as if contiguous */
        const char *type; /* NULL: inferred */
        const char *name; /* may be NULL */
        bool in_place;    /* writes over source 0, of an operator that may */
};
/* A node; its type, extents and strides are inferred and checked. INVALID with a reason (ARITY,
 * DTYPE, SHAPE, ...) when the operator cannot take its sources. */
HEADRACE_API enum headrace_status headrace_graph_node(struct headrace_graph *graph,
                                                      const struct headrace_node *node,
                                                      struct headrace_error *error,
                                                      uint32_t *ret_tensor);
/* A tensor that runs give back; outputs are in the order of their numbers, leaves first. */
HEADRACE_API void headrace_graph_output(struct headrace_graph *graph, uint32_t tensor);
/* Bytes that a run carries of an input, or gives of an output: the strided span. */
HEADRACE_API uint64_t headrace_graph_bytes(const struct headrace_graph *graph, uint32_t tensor);
/* Extents of a tensor. */
HEADRACE_API void headrace_graph_extents(const struct headrace_graph *graph, uint32_t tensor,
                                         int64_t ret_ne[4]);

/* ---- submit and run -------------------------------------------------------------------------- */

struct headrace_handle;

/* Zeroed is valid. */
struct headrace_submit {
        const uint64_t *weights; /* sets, in which weight leaves are looked up, first set first */
        size_t weight_count;
        const uint64_t *states;
        size_t state_count;
        const struct headrace_rule *pins; /* globs over tensor names -> device */
        size_t pin_count;
        uint32_t n_copies; /* runs in flight at once; 0: decided by the plan */
        bool rules_ggml, op_offload, strict, fresh, realloc_fail;
        const uint32_t *taps; /* nodes that observed runs show */
        size_t tap_count;
        const char *traceparent; /* W3C trace context of the caller; NULL = none */
};

struct headrace_plan {
        uint32_t splits, n_copies, inputs, outputs, fallback_nodes;
        uint64_t copied_bytes;
};

/* Has a graph checked and planned. options may be NULL. */
HEADRACE_API enum headrace_status headrace_submit(struct headrace_client *client,
                                                  const struct headrace_graph *graph,
                                                  const struct headrace_submit *options,
                                                  int64_t timeout_ms, struct headrace_error *error,
                                                  struct headrace_handle **ret_handle);
/* The plan of the latest submit. */
HEADRACE_API void headrace_plan_of(struct headrace_handle *handle, struct headrace_plan *ret_plan);
/* Gives the graph back and frees the handle; before headrace_close(). NULL is a no-op. */
HEADRACE_API enum headrace_status headrace_release(struct headrace_handle *handle,
                                                   int64_t timeout_ms,
                                                   struct headrace_error *error);

/* The plan as data: message Explanation of the daemon's headrace.proto. Free with
 * headrace_free(). */
HEADRACE_API enum headrace_status headrace_explain(struct headrace_handle *handle,
                                                   int64_t timeout_ms,
                                                   struct headrace_error *error, void **ret_bytes,
                                                   size_t *ret_size);

struct headrace_wanted {
        const struct headrace_graph *graph;
        const struct headrace_submit *options; /* may be NULL */
};
/* Takes memory for a set of graphs at once: as long as the reservation is there, submitting and
 * running one of them takes no more. */
HEADRACE_API enum headrace_status headrace_reserve(struct headrace_client *client,
                                                   const struct headrace_wanted *graphs,
                                                   size_t count, int64_t timeout_ms,
                                                   struct headrace_error *error,
                                                   uint64_t *ret_reservation);
HEADRACE_API enum headrace_status headrace_unreserve(struct headrace_client *client,
                                                     uint64_t reservation, int64_t timeout_ms,
                                                     struct headrace_error *error);

struct headrace_buffer {
        void *data;
        uint64_t bytes;
};

/* Is shown the value of a tap, in the order of the nodes: `bytes` bytes of `tensor`, which are gone
 * when it returns. The run waits meanwhile, and so do the session's other runs. false: the run ends
 * here, with HEADRACE_CANCELLED (TAP_STOP). Called by the thread that is in headrace_run() or
 * headrace_run_wait(), without a lock. */
typedef bool (*headrace_observe_fn)(void *arg, uint32_t tensor, const void *data, uint64_t bytes);

/* Zeroed is valid. */
struct headrace_run_options {
        int64_t timeout_ms;
        int32_t priority; /* higher first, among runs of other sessions for the same devices */
        const char *traceparent; /* W3C trace context of the caller; NULL = none. Stays the run's
                                  * until headrace_run_wait() has returned */
        headrace_observe_fn observe; /* of a graph with taps; NULL: nothing is shown */
        void *observe_arg;
};

struct headrace_run_figures {
        uint64_t queue_ns, run_ns, copied_bytes;
        uint64_t sequence; /* number of the run on its pipeline, from 0 on; modulo copies: slot */
        uint32_t slot;
};

struct headrace_run;

/* Evaluates a graph: all inputs in order, all outputs in order into buffers of exactly their bytes.
 * INVALID (SIZE) for another buffer, INVALID (OUTPUT) for another number of them, with `limit` what
 * there is room for and `actual` what there is; the connection goes on, what is in the buffers then
 * is anything. A graph that the daemon has evicted is submitted again, once. options and
 * ret_figures may be NULL. */
HEADRACE_API enum headrace_status
headrace_run(struct headrace_handle *handle, const struct headrace_buffer *inputs,
             size_t input_count, const struct headrace_buffer *outputs, size_t output_count,
             const struct headrace_run_options *options, struct headrace_error *error,
             struct headrace_run_figures *ret_figures);
/* Starts a run and returns once its inputs are sent; many may be in flight. The arrays may go, the
 * memory that they name stays the run's until headrace_run_wait() has returned. */
HEADRACE_API enum headrace_status
headrace_run_start(struct headrace_handle *handle, const struct headrace_buffer *inputs,
                   size_t input_count, const struct headrace_buffer *outputs, size_t output_count,
                   const struct headrace_run_options *options, struct headrace_error *error,
                   struct headrace_run **ret_run);
/* Waits for a run, frees it and tells how it has ended. */
HEADRACE_API enum headrace_status headrace_run_wait(struct headrace_run *run,
                                                    struct headrace_error *error,
                                                    struct headrace_run_figures *ret_figures);
/* Asks the daemon to stop a run, which must still be waited for; it then ends with CANCELLED unless
 * it was too late. Any thread. */
HEADRACE_API void headrace_run_cancel(struct headrace_run *run);

/* An input of this step is an output of an earlier one; all are positions. */
struct headrace_feed {
        uint32_t input, step, output;
};

struct headrace_step {
        struct headrace_handle *handle;
        const struct headrace_feed *feeds;
        size_t feed_count;
        const uint32_t *outputs; /* positions of those that come back; none: all */
        size_t output_count;
        bool no_outputs; /* none comes back */
};
/* Runs the steps one after the other in the daemon. inputs: those that no feed gives, step by step;
 * outputs: what the steps give back, likewise. When a step fails, those after it do not begin.
 * Buffers as in headrace_run(). options may be NULL. */
HEADRACE_API enum headrace_status
headrace_sequence(struct headrace_client *client, const struct headrace_step *steps,
                  size_t step_count, const struct headrace_buffer *inputs, size_t input_count,
                  const struct headrace_buffer *outputs, size_t output_count,
                  const struct headrace_run_options *options, struct headrace_error *error);

/* ---- for who runs the daemon
 * ------------------------------------------------------------------- */

/* A principal without the right "admin" is shown what its own sessions hold, and is refused
 * (HEADRACE_PERMISSION) a reload, a drain and an eviction. Lists are freed with headrace_free(). */

struct headrace_daemon_status {
        uint8_t boot_id[16];
        char version[32], state[16]; /* "serving", "draining" */
        char words[128];             /* why it is not ready */
        char principal[64];          /* who asks */
        bool ready, degraded;
        bool whole; /* the counts are of the whole daemon, else of that principal */
        uint64_t pid, uptime_ms, epoch;
        uint64_t connections, sessions, requests, runs, graphs, weights, states;
        uint64_t weight_bytes, state_bytes, device_bytes, buffer_bytes, upload_bytes;
        uint32_t devices, devices_lost;
};
HEADRACE_API enum headrace_status
headrace_daemon_status(struct headrace_client *client, int64_t timeout_ms,
                       struct headrace_error *error, struct headrace_daemon_status *ret_status);

struct headrace_device_health {
        char device[64], health[16]; /* "starting", "ok", "late", "wrong", "lost" */
        bool required;
        uint64_t age_ms; /* since it last computed what it should; 0: never */
        uint64_t beats, failures;
};
struct headrace_health {
        bool live, ready, degraded;
        char words[128]; /* why it is not ready */
};
HEADRACE_API enum headrace_status
headrace_health(struct headrace_client *client, int64_t timeout_ms, struct headrace_error *error,
                struct headrace_health *ret_health, struct headrace_device_health **ret_devices,
                size_t *ret_count);

struct headrace_session_info {
        uint64_t number;
        char principal[64], name[64], client[64];
        uint32_t connections;
        uint64_t closing_ms; /* without connections: it closes after so long */
        uint64_t runs, graphs, states, weights;
        uint64_t device_bytes, state_bytes, weight_bytes, buffer_bytes;
};
HEADRACE_API enum headrace_status headrace_sessions(struct headrace_client *client,
                                                    int64_t timeout_ms,
                                                    struct headrace_error *error,
                                                    struct headrace_session_info **ret_sessions,
                                                    size_t *ret_count);

/* A submitted graph with its plan. */
struct headrace_plan_info {
        uint64_t session;
        uint32_t graph; /* with the session: what headrace_explain_listed() takes */
        char principal[64], digest[24], origin[16];
        char devices[256]; /* that have splits of it, with commas */
        uint32_t nodes, splits, n_copies, fallback_nodes;
        uint64_t copied_bytes, own_bytes, expert_bytes;
        bool in_use;
};
HEADRACE_API enum headrace_status headrace_plans(struct headrace_client *client,
                                                 int64_t timeout_ms, struct headrace_error *error,
                                                 struct headrace_plan_info **ret_plans,
                                                 size_t *ret_count);

struct headrace_quota_item {
        char what[32]; /* "graphs", as in the names of the limits */
        uint64_t held, limit;
};
struct headrace_principal_quota {
        char principal[64], permissions[32];
        uint32_t weight, item_count;
        struct headrace_quota_item items[24];
};
HEADRACE_API enum headrace_status headrace_quotas(struct headrace_client *client,
                                                  int64_t timeout_ms,
                                                  struct headrace_error *error,
                                                  struct headrace_principal_quota **ret_quotas,
                                                  size_t *ret_count);

struct headrace_weight_set {
        char name[256], source[16]; /* "file", "upload" */
        uint64_t handle;            /* in this session, 0 = none */
        uint64_t tensors, bytes;
        uint32_t users; /* sessions that hold it */
        uint8_t digest[32];
        bool has_digest;
};
HEADRACE_API enum headrace_status headrace_weight_sets(struct headrace_client *client,
                                                       int64_t timeout_ms,
                                                       struct headrace_error *error,
                                                       struct headrace_weight_set **ret_sets,
                                                       size_t *ret_count);

/* Keys of the configuration, with commas. */
struct headrace_reloaded {
        char applied[1024];
        char kept[1024]; /* differ, but only a new start changes them */
};
/* Has the configuration read again. HEADRACE_INVALID (CONFIG): the file is wrong, nothing has
 * changed. */
HEADRACE_API enum headrace_status headrace_reload(struct headrace_client *client,
                                                  int64_t timeout_ms, struct headrace_error *error,
                                                  struct headrace_reloaded *ret_reloaded);

struct headrace_drain {
        uint64_t requests, connections; /* in flight, open */
        uint64_t limit_ms;
};
/* Begins the drain, which cannot be undone; limit_ms 0: as the configuration says. */
HEADRACE_API enum headrace_status headrace_drain(struct headrace_client *client, uint64_t limit_ms,
                                                 int64_t timeout_ms, struct headrace_error *error,
                                                 struct headrace_drain *ret_drain);

struct headrace_evicted {
        uint64_t entries, bytes;
        uint64_t kept_entries, kept_bytes; /* in use */
};
/* Frees what nobody uses: "plans", "graphs", "experts", "uploads", "sessions", "weights"
 * (proto/headrace.proto says what each is). name: of a weight set; NULL for all. */
HEADRACE_API enum headrace_status headrace_evict(struct headrace_client *client, const char *what,
                                                 const char *name, int64_t timeout_ms,
                                                 struct headrace_error *error,
                                                 struct headrace_evicted *ret_evicted);

struct headrace_explained_device {
        char name[64], type[16];
        uint32_t splits, nodes;
        uint64_t weights_bytes, state_bytes, compute_bytes, scratch_bytes;
};
struct headrace_explained_split {
        char device[64], reason[32];
        uint32_t first_node, nodes, inputs;
        uint64_t copied_bytes;
        uint64_t compute_ns, copy_ns, wait_ns; /* medians of traced runs; 0 without any */
};
struct headrace_explanation {
        char rules[16], origin[16], copies_reason[96];
        uint32_t leaf_count, node_count, n_copies, fallback_nodes;
        uint64_t copied_bytes, staging_bytes, measured_runs, measured_run_ns;
        struct headrace_explained_device *devices;
        struct headrace_explained_split *splits;
        size_t device_count, split_count;
};
/* The plan of a graph that headrace_plans() lists. Free with headrace_explanation_free(). */
HEADRACE_API enum headrace_status headrace_explain_listed(struct headrace_client *client,
                                                   uint64_t session, uint32_t graph,
                                                   int64_t timeout_ms, struct headrace_error *error,
                                                   struct headrace_explanation *ret_explanation);
HEADRACE_API void headrace_explanation_free(struct headrace_explanation *explanation);

#ifdef __cplusplus
}
#endif
