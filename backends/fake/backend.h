/*
 * Simulated devices: a virtual clock, scripted speed, links, failures and capabilities. For tests
 * and planning studies; never installed.
 *
 * A world holds the clock and everything that happens on it. Nothing happens by itself: commands
 * wait in the queues of the world's devices until somebody lets time pass (hr_fake_step, _run,
 * _run_until, or a blocking call such as hr_event_synchronize, which lets pass what it needs). An
 * eager world lets everything pass at each submission, so that its devices can stand in a process
 * that knows nothing of virtual time.
 *
 * Thread: a world and all that belongs to it have one thread at a time. Events of an eager world
 * may be queried and waited for by any: other backends' devices stand beside those of an eager
 * world.
 */
#pragma once

#include "core/device.h"

struct hr_fake_world;

/* ---- World ----------------------------------------------------------------------------------- */

/* One reference for the caller; each device holds another. */
HR_NODISCARD hr_status hr_fake_world_new(bool eager, struct hr_diag *diag,
                                         struct hr_fake_world **ret_world);
struct hr_fake_world *hr_fake_world_unref(struct hr_fake_world *world);

uint64_t hr_fake_now_ns(const struct hr_fake_world *world);
/* The next command ends; time moves to its end. False when nothing can end: all queues are empty,
 * stand at a gate, or wait for what will not happen. Ends of equal time come in the order in which
 * they were begun. */
bool hr_fake_step(struct hr_fake_world *world);
void hr_fake_run(struct hr_fake_world *world);
/* All that ends up to that time; the clock then shows it. */
void hr_fake_run_until(struct hr_fake_world *world, uint64_t now_ns);
/* Commands submitted and not over. */
uint64_t hr_fake_pending(const struct hr_fake_world *world);

/* The n-th call from now on (1 = the next) of a member of the interface that can fail fails with
 * `status`, reason SCRIPTED, and does nothing else; 0 takes it back. With `all_later` each call
 * after it fails, too. */
void hr_fake_fail_call(struct hr_fake_world *world, uint64_t n, hr_status status, bool all_later);
/* Each such call lets that much time pass first: what submitting costs. */
void hr_fake_submit_ns(struct hr_fake_world *world, uint64_t ns);
/* Calls so far of members that can fail. */
uint64_t hr_fake_calls(const struct hr_fake_world *world);
/* How often its devices were asked whether they support something. */
uint64_t hr_fake_asked(const struct hr_fake_world *world);
/* The n-th command from now on that moves or computes something fails its outcome when it ends. */
void hr_fake_fail_command(struct hr_fake_world *world, uint64_t n, hr_status status);
/* Such commands that have ended, those of failed runs included. */
uint64_t hr_fake_commands(const struct hr_fake_world *world);

/* ---- Device ---------------------------------------------------------------------------------- */

struct hr_fake_config {
        const char *name; /* copied */
        hr_device_type type;
        bool host;             /* its memory is host memory; else of a kind of its own */
        bool sizes_only;       /* memory has a size and no bytes: nothing is moved or computed */
        bool peer;             /* its queue writes other devices' memory; else through the host */
        bool experts;          /* copies the used experts alone; not with sizes_only */
        bool uploads;          /* has a queue of its own for what comes from host memory */
        uint64_t memory_bytes; /* that it has; 0 = no end */
        uint64_t memory_cap;   /* configured; 0 = none */
        const char *deny_ops;  /* see core/deny.h; NULL = none */
        int64_t offload_batch; /* asks for ops of at least that many columns; 0 = never */
        /* Speed. A command that computes takes compute_ns(arg, ...) if that is set, else launch_ns
         * + step_ns a step + its multiply-adds / macs_per_s (0 = no time). Others that are no
         * transfer take command_ns. */
        uint64_t (*compute_ns)(void *arg, const struct hr_steps *steps, uint32_t first,
                               uint32_t count);
        void *arg;
        uint64_t launch_ns, step_ns, macs_per_s, command_ns;
        uint32_t threads;         /* that it says it has */
        uint64_t lose_at_command; /* lost when its n-th command that moves or computes something
                                   * would end; 0 = never */
        const char *lose_folder;  /* lost at such a command when a file of the device's name lies in
                                   * that folder; NULL = never. Copied */
};

/* A transfer takes latency_ns + bytes / bytes_per_s (0 = no time) of the queue that carries it. */
struct hr_fake_link {
        uint64_t latency_ns, bytes_per_s;
};

HR_NODISCARD hr_status hr_fake_device_new(struct hr_fake_world *world,
                                          const struct hr_fake_config *config, struct hr_diag *diag,
                                          struct hr_device **ret_device);
/* The link by which the queues of `from` carry to memory of kind `to`, and (kind host) exchange
 * with the host; NULL = to all without a link of their own. HR_E_EXHAUSTED. */
HR_NODISCARD hr_status hr_fake_link(struct hr_device *from, const struct hr_buffer_kind *to,
                                    struct hr_fake_link link, struct hr_diag *diag);
/* From now on calls answer DEVICE_LOST, and what its queues hold happens without taking time or
 * effect: computing and moving fail their outcomes, waits, records and notifications remain. */
void hr_fake_lose(struct hr_device *device);
/* Time its queues spent with commands. */
uint64_t hr_fake_busy_ns(const struct hr_device *device);

/* A gate behind the commands submitted so far: the queue stops there until it is opened. Gates are
 * opened in the order in which they were closed. */
HR_NODISCARD hr_status hr_fake_gate_close(struct hr_queue *queue, struct hr_diag *diag);
void hr_fake_gate_open(struct hr_queue *queue);
