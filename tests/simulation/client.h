/*
 * The clients of a history: each has a user, a connection at a time, maybe a session that outlives
 * it, and a model of what it owns. talk.c speaks frames, say.c makes requests, judge.c knows what
 * has to come back, clients.c leads their lives. Numbers in tensors lie on lines, first + step * i:
 * exact in floats, and wrong ones are not likely to.
 *
 * Thread: the clients'.
 */
#pragma once

#include "proto/codec.h"
#include "proto/frame.h"
#include "tests/simulation/secure.h"

#define REQUESTS_MAX 48U
#define STATES_MAX 3U
#define SETS_MAX 2U
#define EFFECTS_MAX 96U
#define CANDIDATES_MAX 12U
#define STEPS_MAX 4U
#define RANGES_MAX 16U

typedef enum request_kind {
        KIND_HELLO,
        KIND_PING,
        KIND_CANCEL,
        KIND_SYNC,
        KIND_STATS,
        KIND_SUBMIT,
        KIND_RELEASE,
        KIND_RUN,
        KIND_SEQUENCE,
        KIND_ALLOC,
        KIND_READ,
        KIND_SAVE,
        KIND_WRITE,
        KIND_FORK,
        KIND_RESTORE,
        KIND_FREE,
        KIND_PUT,
        KIND_DROP,
        KIND_RESERVE,
        KIND_UNRESERVE,
        KIND_REGION,
        KIND_UNREGION,
        KIND_TAP,
        KINDS
} request_kind;

/* What a graph computes of input x, weights w, state s. */
typedef enum graph_recipe {
        RECIPE_DOUBLE, /* x + x */
        RECIPE_CHAIN,  /* (x + x) + x, node by node */
        RECIPE_KEEP,   /* s += x */
        RECIPE_WEIGH,  /* x + w */
        RECIPE_BOTH,   /* s += x + w */
        RECIPES
} graph_recipe;

struct line {
        int64_t first, step;
};

typedef enum effect_outcome {
        OUTCOME_OPEN,
        OUTCOME_DONE,
        OUTCOME_MAYBE, /* failed, or nobody knows: it has happened or not */
        OUTCOME_SPOILT /* half of it may have happened */
} effect_outcome;

/* What a request does to a state, in the order of requests. */
struct effect {
        request_kind kind; /* WRITE, RUN (adds), READ, FORK */
        effect_outcome outcome;
        struct line line, seen;
        bool is_seen;
        uint32_t target; /* of FORK: the other state */
};

struct state {
        uint64_t handle; /* 0 = none */
        bool asked;      /* ALLOC or FORK under way */
        bool waits;      /* a fork whose source is not known yet */
        bool spoilt;
        struct line candidates[CANDIDATES_MAX];
        uint32_t candidate_count;
        struct effect effects[EFFECTS_MAX];
        uint32_t effect_count; /* not settled, the first first */
        uint64_t settled;      /* effects before them */
        uint32_t users;        /* graphs */
};

struct set {
        uint64_t handle;
        bool asked;
        struct line line;
        uint32_t users;
};

struct graph {
        uint64_t handle;
        bool asked;
        int state, set; /* -1 = none */
};

struct request {
        uint64_t id; /* 0 = free */
        request_kind kind;
        bool cancelled, timed, tries; /* tries: may well be refused */
        bool shared; /* a run with inputs and outputs in the region */
        int fd;      /* that goes with its frame; -1 = none */
        bool observed, stopped;       /* a run that waits at taps; at one it was told to stop */
        uint32_t object;              /* graph, state or set */
        struct effect effect; /* on the state, and its number once the request is whole: requests
                               * count in the order of their ends */
        uint64_t effect_number;
        bool is_placed;
        struct line line, want; /* of the input; of the output, where no state is in it */
        int state;              /* that it touches; -1 = none */
        uint32_t steps;
        uint64_t handle;   /* of the graph that runs */
        uint64_t other;    /* cookie; id to cancel; state to make */
        uint64_t sent_end; /* of the stream, when its first frame is whole */
        /* What follows as DATA. */
        uint8_t *data;
        uint64_t data_bytes, data_sent, credit;
        /* Of an upload that may be gone on with: what the daemon has asked for, by offset. */
        bool pulled;
        struct asked_range {
                uint64_t offset, bytes;
        } ranges[RANGES_MAX];
        uint32_t range_count;
        /* The reply so far. */
        bool begun;
        uint8_t *message, *body;
        size_t message_bytes, body_bytes;
        /* The tap that is being shown. */
        bool tap_follows;
        uint32_t tap;
        uint8_t *shown;
        size_t shown_bytes;
};

typedef enum phase {
        PHASE_AWAY,
        PHASE_GREETING,
        PHASE_TALKING,
        PHASE_ENDING, /* says nothing more */
        PHASE_HALF,   /* has ended its stream, or spoilt it: waits for the daemon's end */
        PHASE_OVER
} phase;

typedef enum ending {
        END_POLITE,
        END_DROP,
        END_CUT,
        END_HALF,
        END_GARBAGE,
        END_DEAF,
        ENDINGS
} ending;

struct client {
        uint32_t number, uid, width; /* floats */
        bool stranger;               /* the daemon does not know its user */
        phase phase;
        ending ending;
        uint32_t lives, talks;     /* left: connections, requests of this one */
        uint64_t next_ns, read_ns; /* when it says, and reads, something again */
        struct sim_link *link;
        struct sim_secure *secure; /* NULL = its bytes are plain */
        bool torn;                 /* it has broken off within a record */
        uint64_t next_id;
        uint8_t *out;
        size_t out_bytes, out_room;
        uint64_t out_sent, out_made; /* of the stream */
        uint64_t drop_at;            /* of the stream: it breaks there */
        uint8_t *in;
        size_t in_bytes, in_room;
        bool told_goaway;
        bool mute; /* what it said last was no whole frame, or none */
        struct request requests[REQUESTS_MAX];
        uint32_t open;
        /* Its session, while it thinks that it has one. */
        bool has_session, resumes;
        uint64_t left_ns;
        uint8_t token[HR_WIRE_TOKEN_BYTES_MAX];
        uint32_t token_bytes;
        struct graph graphs[RECIPES];
        struct state states[STATES_MAX];
        struct set sets[SETS_MAX];
        struct {
                uint64_t handle;
                bool asked;
        } reservation;
        /* Memory that the daemon has, too: inputs, then outputs. Used by one run at a time. */
        struct {
                uint64_t handle;
                bool asked, busy;
                bool spent; /* a run that was lost may still write there */
                uint8_t *memory;
        } region;
        /* The latest state that was saved, in whatever session. */
        struct {
                uint8_t *bytes;
                size_t size;
                uint64_t manifest_bytes;
                struct line line;
        } saved;
        uint64_t done[KINDS];
};

/* ---- talk.c ---------------------------------------------------------------------------------- */

/* Puts a frame behind what is to be sent. */
void client_frame(struct client *client, uint32_t type, uint32_t flags, uint64_t id,
                  uint32_t timeout_ms, struct hr_wire_span message, struct hr_wire_span body);
void client_bytes(struct client *client, const void *bytes, size_t size);
/* A request: the body inline, or as DATA where it is longer than one; then `data`, which it owns.
 */
void client_request(struct client *client, struct request *request, uint32_t type,
                    struct hr_wire_span message, struct hr_wire_span body, uint8_t *data,
                    uint64_t data_bytes);
/* A free place, with a new id; NULL: too many are open. */
struct request *client_request_new(struct client *client, request_kind kind);
void client_request_free(struct client *client, struct request *request);
/* Sends and reads what goes. */
void client_send(struct client *client);
void client_read(struct client *client);
const char *kind_name(request_kind kind);

/* ---- judge.c --------------------------------------------------------------------------------- */

struct hr_graph *recipe_graph(graph_recipe recipe, uint32_t width);
uint8_t *line_bytes(struct line line, uint32_t width);
/* The line of these floats; fails where there is none. */
struct line line_read(const struct client *client, const void *bytes, size_t size);
/* The request has its reply, or its error. */
void judge(struct client *client, struct request *request, const struct hr_wire_error *error);
/* The connection is gone: what is open may have happened. */
/* What a tap shows of the run. */
void judge_tap(const struct client *client, const struct request *run);
void judge_lost(struct client *client, struct request *request);
/* The request is whole: its effect has its place. */
void effect_place(struct client *client, struct request *request);
void session_forget(struct client *client);
void region_forget(struct client *client);
void graph_forget(struct client *client, uint32_t index);

/* ---- say.c ----------------------------------------------------------------------------------- */

void say_hello(struct client *client);
/* One more request, of a kind that makes sense now. */
void say_something(struct client *client);
/* Its answer at a tap. */
void say_tap(struct client *client, struct request *run, uint32_t tap);

/* ---- clients.c ------------------------------------------------------------------------------- */

/* The connection is over, from the daemon's side or ours. */
void client_lost(struct client *client);
/* It may be sent away before it has said anything. */
bool client_is_refusable(const struct client *client);
