/* The guts of the simulated devices, shared by the files of this folder. */
#pragma once

#include "backends/fake/backend.h"
#include "core/deny.h"

struct fake_queue;

struct hr_fake_world {
        uint32_t refs;
        bool eager;
        bool is_running; /* inside hr_fake_step: notifications do not let time pass again */
        _Atomic uint64_t now_ns; /* any thread may ask what time it is */
        uint64_t submit_ns;
        uint64_t next_address; /* of memory without bytes */
        uint64_t begun;        /* commands so far: order among equal ends */
        uint64_t pending;
        /* The queues with a command under way, as a heap by its end. */
        struct fake_queue **heap;
        uint32_t heap_count;
        uint32_t queue_count, heap_room;
        struct fake_queue *queues; /* all */
        /* Script. */
        uint64_t asked, calls, fail_call;
        hr_status fail_call_status;
        bool fail_all_later;
        uint64_t commands, fail_command;
        hr_status fail_command_status;
};

struct fake_link {
        const struct hr_buffer_kind *to;
        struct hr_fake_link link;
};

struct fake_device {
        struct hr_device device;
        struct hr_fake_world *world;
        struct hr_fake_config config;
        struct hr_buffer_kind kind;
        char *name;
        struct hr_deny deny;
        char *lose_file; /* whose presence loses the device; NULL = none */
        struct fake_link *links;
        uint32_t link_count;
        struct hr_fake_link link; /* where no other is */
        uint64_t taken_bytes, busy_ns;
        uint64_t commands;
};

struct fake_event {
        struct hr_event event;
        struct hr_fake_world *world;
        atomic_uint_fast64_t submitted, reached; /* records */
        uint32_t held_by;                        /* commands that name it */
        struct fake_queue *waiters;              /* whose next command waits for it */
};

typedef enum fake_code {
        FAKE_COMPUTE,
        FAKE_MOVE,
        FAKE_EXPERTS,
        FAKE_WAIT,
        FAKE_WAIT_FOREIGN,
        FAKE_RECORD,
        FAKE_NOTIFY,
        FAKE_GATE,
} fake_code;

struct fake_command {
        fake_code code;
        struct hr_outcome *outcome;
        uint64_t ns; /* that it takes */
        union {
                struct {
                        struct hr_program *program;
                        uint32_t first, count;
                } compute;
                struct {
                        void *to;
                        const void *from;
                        uint64_t bytes;
                } move;
                struct {
                        struct hr_expert_cache *cache;
                        uint32_t weight;
                        const void *ids;
                        struct hr_expert_tally *tally;
                } experts;
                struct {
                        struct fake_event *event;
                        uint64_t ticket;
                } edge;
                struct hr_event *foreign;
                struct {
                        hr_notify_fn fn;
                        void *arg;
                } notify;
        };
};

struct fake_queue {
        struct hr_queue queue;
        struct fake_queue *next, *next_waiter;
        struct hr_outcome outcome; /* of commands without one */
        /* A ring. */
        struct fake_command *commands;
        uint32_t first, count, room;
        uint32_t open_gates; /* that it has not come to yet */
        bool is_under_way;   /* the first command is in the heap */
        bool has_effect;     /* ... and does something */
        struct fake_event *waits_for;
        uint64_t ends_ns, order;
};

struct fake_device *fake_device_cast(const struct hr_device *device);

/* script.c: to be called first by each member that can fail. */
HR_NODISCARD hr_status fake_call(struct fake_device *device, struct hr_diag *diag);
/* A command that moves or computes something ends: does the script let it? */
HR_NODISCARD bool fake_command_passes(struct fake_device *device, struct hr_outcome *outcome);
/* Begins the queue's next command if it can. */
void fake_queue_go_on(struct fake_queue *queue);
/* What became ready is begun; an eager world lets it pass. */
void fake_submitted(struct fake_queue *queue);
HR_NODISCARD hr_status fake_world_add_queue(struct hr_fake_world *world, struct fake_queue *queue,
                                            struct hr_diag *diag);
void fake_world_drop_queue(struct hr_fake_world *world, struct fake_queue *queue);
/* The command under way of each queue of the device ends now. */
void fake_device_hurry(struct fake_device *device);

/* queue.c */
HR_NODISCARD hr_status fake_queue_new(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue);
HR_NODISCARD hr_status fake_upload_queue_new(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_queue **ret_queue);
HR_NODISCARD hr_status fake_event_new(struct hr_device *device, struct hr_diag *diag,
                                      struct hr_event **ret_event);
/* Its effect; the command has left the queue. */
void fake_command_end(struct fake_queue *queue, const struct fake_command *command,
                      bool has_effect);
/* Lets time pass until a foreign event is reached. */
void fake_foreign_wait(struct hr_event *event);

/* compute.c: ops on f32, for memory with bytes. */
bool fake_knows_op(uint32_t op);
bool fake_can_compute(const struct hr_graph *graph, uint32_t tensor);
void fake_compute(const struct hr_step *step, struct hr_outcome *outcome);
/* Multiply-adds of a step, at least one per element. */
double fake_step_macs(const struct hr_step *step);
