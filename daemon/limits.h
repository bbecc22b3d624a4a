/*
 * Every default limit, each with its reason. All of them are configuration ([limits] of the INI
 * file); the ones a client can meet are told in the hello. Memory limits are ceilings against
 * accidents and abuse, not reservations.
 */
#pragma once

#include <stdint.h>

#define HR_KIB UINT64_C(1024)
#define HR_MIB (UINT64_C(1024) * HR_KIB)
#define HR_GIB (UINT64_C(1024) * HR_MIB)
#define HR_TIB (UINT64_C(1024) * HR_GIB)

/* ---- One frame
 * -------------------------------------------------------------------------------- */

/* One protobuf message: the wire's own ceiling; only contents, which travel as bodies, are
 * large. */
#define HR_DEFAULT_MESSAGE_BYTES (64 * HR_KIB)
/* One body: large enough that a frame's fixed cost vanishes, small enough that a reply waits at
 * most about a millisecond behind one on a fast link. 4 MiB is the wire's ceiling. */
#define HR_DEFAULT_BODY_BYTES (1 * HR_MIB)
/* Message before the hello: room for names and a token, nothing to gain by filling it. */
#define HR_DEFAULT_HELLO_BYTES (1 * HR_KIB)

/* ---- Graphs
 * ----------------------------------------------------------------------------------- */

/* Nodes of a graph: fifty times the largest language-model graphs (about 10 000 nodes); validation
 * and planning stay under a second. */
#define HR_DEFAULT_GRAPH_NODES UINT64_C(500000)
/* Encoded bytes of a graph, constants included: at about 120 bytes a node the nodes above take 60
 * MB; the same again for constants. */
#define HR_DEFAULT_GRAPH_BYTES (128 * HR_MIB)
/* One tensor: beyond any layer of today's models (an embedding of 256 K x 16 K in f32 has 16
 * GiB). */
#define HR_DEFAULT_TENSOR_BYTES (64 * HR_GIB)
/* Graphs a session keeps: one per shape it uses (prompt buckets, decode), times models, with
 * room. */
#define HR_DEFAULT_SESSION_GRAPHS UINT64_C(256)
/* Pins of one submit: one pattern per layer and kind of tensor is already unusual. */
#define HR_DEFAULT_PINS UINT64_C(4096)
/* Taps of one submit: all nodes of a model of some size. */
#define HR_DEFAULT_TAPS UINT64_C(16384)
/* Slots of a plan: throughput is flat beyond the number of devices plus one. */
#define HR_DEFAULT_COPIES UINT64_C(16)
/* Compute memory that the pipelines of one session may hold on one device: a long-context prompt of
 * a large model takes a few GiB. */
#define HR_DEFAULT_SESSION_DEVICE_BYTES (16 * HR_GIB)

/* ---- Health
 * ----------------------------------------------------------------------------------- */

/* Between two beats of the heart: a stuck device is seen within three, which is less than five
 * seconds, at a cost that no run notices. */
#define HR_DEFAULT_HEARTBEAT_MS 1500

/* ---- Runs
 * ------------------------------------------------------------------------------------- */

/* Runs of a session, queued and in flight: keeps any pipeline full (slots are at most 16) and
 * bounds what a vanished client leaves behind. */
#define HR_DEFAULT_SESSION_RUNS UINT64_C(64)
/* Runs handed to a device at once, of all sessions; the others wait, ordered by priority. Keeps a
 * device and a pipeline over as many devices busy, and leaves something to choose. */
#define HR_DEFAULT_DEVICE_RUNS UINT64_C(8)
/* ... and no more than one where they are expected to take longer than this: who comes next waits
 * for that much in front of it, and the next one is handed over when it is about to end. */
#define HR_DEFAULT_DEVICE_AHEAD_US UINT64_C(500)
/* Inputs of one run: token ids and masks are KiB, images and audio MiB. */
#define HR_DEFAULT_RUN_BYTES (256 * HR_MIB)
/* Bodies in flight and run buffers (inputs and outputs) of one session together: a few of the
 * largest runs at once. */
#define HR_DEFAULT_SESSION_BUFFER_BYTES (1 * HR_GIB)

/* ---- Weights and states
 * ----------------------------------------------------------------------- */

/* One upload: the daemon holds it in memory, so that is the size of a large machine. */
#define HR_DEFAULT_UPLOAD_BYTES (256 * HR_GIB)
/* All sets together, mapped files included: address space, bounded for the accounting to stay
 * exact. */
#define HR_DEFAULT_WEIGHTS_BYTES (2 * HR_TIB)
/* Tensors of a set: the largest mixtures have about 100 000 when experts are not merged. */
#define HR_DEFAULT_WEIGHTS_TENSORS UINT64_C(262144)
/* Sets a session holds: models, adapters. */
#define HR_DEFAULT_SESSION_WEIGHTS UINT64_C(256)
/* Uploads and loads of a session at once: several connections may fill one disk or link each. */
#define HR_DEFAULT_SESSION_UPLOADS UINT64_C(8)
/* Credit of one stream of an upload: what may be under way unasked. Covers 10 Gbit/s at 12 ms, and
 * a daemon whose processors are busy with hashing for as long. */
#define HR_DEFAULT_UPLOAD_WINDOW_BYTES (16 * HR_MIB)
/* Of one file, read into memory before its load is answered: as much as free memory holds, whatever
 * this says. */
#define HR_DEFAULT_RESIDENT_BYTES (1024 * HR_TIB)
/* Key-values of a GGUF file: vocabularies of 256 K tokens with scores and merges take about 12
 * MB. */
#define HR_DEFAULT_METADATA_BYTES (64 * HR_MIB)
/* Keys of a GGUF file: files have 20 to 60. */
#define HR_DEFAULT_METADATA_KEYS UINT64_C(65536)
/* Encoded manifest: 262 144 tensors at 64 bytes of name and 40 of columns. */
#define HR_DEFAULT_MANIFEST_BYTES (32 * HR_MIB)
/* Placement rules of one request: one per tensor pattern and layer. */
#define HR_DEFAULT_PLACEMENT_RULES UINT64_C(4096)
/* Regions of a session: a few for each thread of a client. */
#define HR_DEFAULT_SESSION_REGIONS UINT64_C(64)
/* State memory of a session: KV caches of long contexts take tens of GiB. */
#define HR_DEFAULT_SESSION_STATE_BYTES (64 * HR_GIB)
/* States of a session: one per sequence. */
#define HR_DEFAULT_SESSION_STATES UINT64_C(1024)
/* Tensors of one state: two per layer, with room for recurrent models. */
#define HR_DEFAULT_STATE_TENSORS UINT64_C(16384)

/* ---- Principals
 * -------------------------------------------------------------------------------- */

/* What all sessions of one principal hold together: a service with many workers comes as one
 * principal, so most are sixteen times a session's; memory is four times. */
#define HR_DEFAULT_PRINCIPAL_SESSIONS UINT64_C(2048)
#define HR_DEFAULT_PRINCIPAL_CONNECTIONS UINT64_C(2048)
#define HR_DEFAULT_PRINCIPAL_WEIGHTS UINT64_C(4096)
#define HR_DEFAULT_PRINCIPAL_STATES UINT64_C(16384)
#define HR_DEFAULT_PRINCIPAL_GRAPHS UINT64_C(8192)
#define HR_DEFAULT_PRINCIPAL_RESERVATIONS UINT64_C(1024)
#define HR_DEFAULT_PRINCIPAL_REGIONS UINT64_C(1024)
#define HR_DEFAULT_PRINCIPAL_RUNS UINT64_C(1024)
#define HR_DEFAULT_PRINCIPAL_UPLOADS UINT64_C(128)
#define HR_DEFAULT_PRINCIPAL_STATE_BYTES (256 * HR_GIB)
#define HR_DEFAULT_PRINCIPAL_BUFFER_BYTES (4 * HR_GIB)
/* Contents of uploads, those under way included: what a large machine holds. */
#define HR_DEFAULT_PRINCIPAL_UPLOAD_BYTES (512 * HR_GIB)
/* Descriptors of memory that clients pass, and of uploads: half of the usual 1024. */
#define HR_DEFAULT_PRINCIPAL_DESCRIPTORS UINT64_C(512)
/* As much as there may be of all sets: sharing one costs no memory. */
#define HR_DEFAULT_PRINCIPAL_WEIGHT_BYTES (2 * HR_TIB)
/* Compute memory on all devices: a few GPUs full. */
#define HR_DEFAULT_PRINCIPAL_DEVICE_BYTES (256 * HR_GIB)
/* Unsent output of all its connections: sixteen of them as full as one may be. */
#define HR_DEFAULT_PRINCIPAL_OUTPUT_BYTES (256 * HR_MIB)

/* ---- Connections
 * ------------------------------------------------------------------------------ */

/* Host memory of graphs and plans, by each handle on them: a plan of a language model takes a
 * MiB. */
#define HR_DEFAULT_SESSION_PLAN_BYTES (4 * HR_GIB)
#define HR_DEFAULT_PRINCIPAL_PLAN_BYTES (32 * HR_GIB)
/* Requests of one principal, per second, for what is not there: a client of many sessions that
 * comes back to a daemon without its handles asks for some hundreds. Whoever guesses the 32 random
 * bits of a handle at this rate needs fifty days. */
#define HR_DEFAULT_PRINCIPAL_MISSES UINT64_C(1000)
/* Cancels of one principal, per second: each may make a device's work be for nothing. */
#define HR_DEFAULT_PRINCIPAL_CANCELS UINT64_C(4000)
/* Connections at once: each costs about a KiB when idle, and one descriptor. */
#define HR_DEFAULT_CONNECTIONS UINT64_C(4096)
/* Connections that have not said hello: a storm fills this, not the table above. */
#define HR_DEFAULT_GREETINGS UINT64_C(64)
/* Requests of one connection in flight: more than any pipeline can use. */
#define HR_DEFAULT_CONNECTION_REQUESTS UINT64_C(1024)
/* Unsent output of one connection; above it the socket is no longer read. Holds a few large
 * replies. */
#define HR_DEFAULT_OUTPUT_QUEUE_BYTES (16 * HR_MIB)
/* Connections waiting in the kernel's queue of a listener. */
#define HR_DEFAULT_BACKLOG UINT64_C(512)

/* ---- Times
 * ------------------------------------------------------------------------------------ */

/* Until the hello is complete: a healthy client needs milliseconds. */
#define HR_DEFAULT_HELLO_TIMEOUT_MS UINT64_C(5000)
/* Until a hello with wrong credentials is answered; doubled by each further one within ten seconds,
 * up to eight times as long: 64 greetings at once leave a guesser some 30 tries a second. */
#define HR_DEFAULT_REFUSAL_DELAY_MS UINT64_C(250)
/* Without a byte inside a frame or an announced upload: a stalled network recovers sooner. */
#define HR_DEFAULT_PROGRESS_TIMEOUT_MS UINT64_C(30000)
/* From a tap's push to its answer: meanwhile the session's other runs wait, and the memory of the
 * run is held. A client that computes on what it sees needs seconds at most. */
#define HR_DEFAULT_TAP_TIMEOUT_MS UINT64_C(30000)
/* Without a byte leaving a non-empty output queue. */
#define HR_DEFAULT_OUTPUT_TIMEOUT_MS UINT64_C(30000)
/* From SIGTERM until runs in flight are cancelled: below systemd's usual 90 s. */
#define HR_DEFAULT_DRAIN_TIMEOUT_MS UINT64_C(20000)
/* A session without connections: 0 ends it at once. */
#define HR_DEFAULT_SESSION_GRACE_MS UINT64_C(0)
/* An upload that nobody sends, or waits for: its connection may be back soon. */
#define HR_DEFAULT_UPLOAD_GRACE_MS UINT64_C(60000)
/* Threads spin this long after activity before they sleep: hides a wake-up (5 to 50 us) between the
 * requests of a busy client and costs an idle daemon nothing. */
/* Of the host's memory, locked for a GPU: weights that stay there are read at the speed of the bus;
 * whoever has more of them than memory to spare says so. */
#define HR_DEFAULT_PIN_BYTES (UINT64_C(8) << 30)
#define HR_DEFAULT_SPIN_US UINT64_C(50)

/* ---- Daemon
 * ----------------------------------------------------------------------------------- */

/* Spans that the loop and each queue of a device keep, of 48 bytes: some seconds of a busy
 * daemon. */
#define HR_DEFAULT_TRACE_SPANS UINT64_C(4096)
#define HR_TRACE_SPANS_MAX (UINT64_C(1) << 20)
/* Spans that one answer to TRACE tells at most, the latest: some MiB of text, and milliseconds of
 * the engine's thread. */
#define HR_TRACE_ANSWER_SPANS 16384U
/* Between two looks at whether memory is short: a look costs microseconds, and a second is
 * early. */
#define HR_DEFAULT_MEMORY_LOOK_MS UINT64_C(1000)
/* Of a second, threads waiting for memory: a tenth is felt by everybody; service managers take as
 * much. */
#define HR_DEFAULT_MEMORY_STALL_MS UINT64_C(100)
/* A graph that has not been used for so long is idle where memory is short: between two steps of a
 * client that reads along there are seconds. */
#define HR_DEFAULT_MEMORY_IDLE_MS UINT64_C(10000)
/* Between two looks for a required device that is not there: a driver takes seconds to load. */
#define HR_DEFAULT_DEVICE_RETRY_MS UINT64_C(2000)
/* Sets that were left with the service manager and that no client has asked for yet: clients come
 * back within seconds, but some compute for minutes between two calls. */
#define HR_DEFAULT_KEEP_GRACE_MS UINT64_C(600000)
/* Each is two descriptors there; the unit's FileDescriptorStoreMax= is twice this. */
#define HR_DEFAULT_KEPT_SETS UINT64_C(256)

/* Contents of uploads on disk, where there is a directory for them: a few large models. */
#define HR_DEFAULT_CACHE_BYTES (64 * HR_GIB)
/* Plans kept: a plan of a language model takes about 1 MiB. */
#define HR_DEFAULT_PLAN_CACHE_BYTES (256 * HR_MIB)
