/*
 * What a run costs the daemon's own threads from its bytes to the device's queue.
 *
 *   bench_control ADDRESS PID BURST BURSTS DELAY_MS SPACING_US
 *
 * The caller has started the daemon (process PID) with one device that delays every split by
 * DELAY_MS, and with nothing that spins. BURST requests, each a run of one node, are sent in one
 * write, or with SPACING_US between them; as many slots exist. While the device sleeps before the
 * first of them, the loop takes all of them from the socket, decodes, admits and submits them, and
 * goes to sleep, after each of them where they are spaced. The processor time that
 * the loop and the engine have had since before the burst, as /proc/PID/task/TID/schedstat gives
 * it, is what the burst has cost, waking the loop and the device included; ends and replies, which
 * come later, are not. One JSON line for each burst: nanoseconds a run.
 *
 * Beside it, in turn, stands what the system alone takes ("bare"): a process that waits for the
 * same bytes in the same way, reads them, and does nothing with them.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "tests/bench/wire_client.h"

#define FLOATS 4
#define BURST_MAX 16U
#define THREADS_MAX 2

struct threads {
        char schedstat[THREADS_MAX][400];
        int count;
};

static bool thread_is_engine(const char *pid, const char *thread) {
        char path[320], name[32] = "";
        FILE *file;

        (void) snprintf(path, sizeof path, "/proc/%s/task/%s/comm", pid, thread);
        file = fopen(path, "r");
        if (!file)
                return false;
        if (!fgets(name, sizeof name, file))
                name[0] = 0;
        (void) fclose(file);
        return strcmp(name, "hr-engine\n") == 0;
}

/* The loop is the first thread of the process, the engine has a name. */
static void threads_find(const char *pid, struct threads *ret_threads) {
        char path[64];
        struct dirent *entry;
        DIR *folder;

        (void) snprintf(path, sizeof path, "/proc/%.20s/task", pid);
        folder = opendir(path);
        while (folder && (entry = readdir(folder)) && ret_threads->count < THREADS_MAX) {
                if (strcmp(entry->d_name, pid) != 0 && !thread_is_engine(pid, entry->d_name))
                        continue;
                (void) snprintf(ret_threads->schedstat[ret_threads->count++],
                                sizeof ret_threads->schedstat[0], "%s/%s/schedstat", path,
                                entry->d_name);
        }
        if (folder)
                (void) closedir(folder);
        if (ret_threads->count != THREADS_MAX)
                wire_give_up("process %s has no loop and engine", pid);
}

/* Nanoseconds on a processor so far. */
static uint64_t threads_time(const struct threads *threads) {
        uint64_t total = 0;

        for (int i = 0; i < threads->count; i++) {
                unsigned long long on_processor;
                FILE *file = fopen(threads->schedstat[i], "r");

                if (!file || fscanf(file, "%llu", &on_processor) != 1)
                        wire_give_up("no %s", threads->schedstat[i]);
                (void) fclose(file);
                total += on_processor;
        }
        return total;
}

struct shape {
        uint32_t burst;
        unsigned delay_ms, spacing_us;
};

/* ---- A process that only reads
 * ----------------------------------------------------------------- */

static _Noreturn void bare_main(int fd) {
        struct epoll_event event = {.events = EPOLLIN};
        static uint8_t bytes[16384];
        int poll = epoll_create1(EPOLL_CLOEXEC);

        (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) != 0)
                _exit(1);
        while (epoll_wait(poll, &event, 1, -1) == 1)
                if (recv(fd, bytes, sizeof bytes, 0) <= 0)
                        break;
        _exit(0);
}

static int bare_start(struct threads *ret_threads, pid_t *ret_child) {
        int ends[2];

        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0 ||
            (*ret_child = fork()) < 0)
                wire_give_up("no process to compare with");
        if (*ret_child == 0) {
                (void) close(ends[0]);
                bare_main(ends[1]);
        }
        (void) close(ends[1]);
        (void) snprintf(ret_threads->schedstat[0], sizeof ret_threads->schedstat[0],
                        "/proc/%d/schedstat", *ret_child);
        ret_threads->count = 1;
        return ends[0];
}

/* ---- Measuring
 * --------------------------------------------------------------------------------- */

static void burst_send(int fd, uint64_t handle, const struct shape *shape) {
        static uint8_t bytes[BURST_MAX * 256];
        static struct wire_frame request;
        static uint64_t next_id = 3;
        const float input[FLOATS] = {1.0F, -2.0F, 0.5F, 1024.0F};
        size_t size = 0;

        for (uint32_t i = 0; i < shape->burst; i++) {
                wire_run_make(handle, next_id++, input, sizeof input, &request);
                if (size + request.size > sizeof bytes)
                        wire_give_up("a request of %zu bytes", request.size);
                memcpy(bytes + size, request.bytes, request.size);
                size += request.size;
                if (!shape->spacing_us)
                        continue;
                wire_write(fd, bytes, size);
                size = 0;
                (void) usleep(shape->spacing_us);
        }
        wire_write(fd, bytes, size);
}

/* 0 when it came too late: something may have ended by then. */
static double measure_burst(int fd, uint64_t handle, const struct threads *threads,
                            const struct shape *shape) {
        static struct wire_frame reply;
        uint64_t before = threads_time(threads), start = hr_clock_now_ns(), after;
        bool late;

        burst_send(fd, handle, shape);
        (void) usleep(shape->delay_ms * 300);
        after = threads_time(threads);
        late = hr_clock_now_ns() - start > shape->delay_ms * HR_NS_PER_MS;
        for (uint32_t i = 0; i < shape->burst; i++) {
                wire_frame_read(fd, &reply);
                wire_frame_check(&reply);
        }
        (void) usleep(1000); /* the loop goes to sleep again */
        return late ? 0 : (double) (after - before) / shape->burst;
}

static double measure_bare(int fd, uint64_t handle, const struct threads *threads,
                           const struct shape *shape) {
        uint64_t before = threads_time(threads);

        burst_send(fd, handle, shape);
        (void) usleep(shape->delay_ms * 300);
        return (double) (threads_time(threads) - before) / shape->burst;
}

int main(int argc, char **argv) {
        struct threads threads = {.count = 0}, bare = {.count = 0};
        union wire_address address;
        struct hr_graph *graph;
        struct shape shape;
        uint32_t bursts;
        uint64_t handle;
        int fd, bare_fd;
        pid_t child;

        if (argc != 7)
                wire_give_up("usage: bench_control ADDRESS PID BURST BURSTS DELAY_MS SPACING_US");
        shape = (struct shape){.burst = (uint32_t) strtoul(argv[3], NULL, 10),
                               .delay_ms = (unsigned) strtoul(argv[5], NULL, 10),
                               .spacing_us = (unsigned) strtoul(argv[6], NULL, 10)};
        bursts = (uint32_t) strtoul(argv[4], NULL, 10);
        if (shape.burst < 1 || shape.burst > BURST_MAX)
                wire_give_up("1 to %u in a burst", BURST_MAX);
        threads_find(argv[2], &threads);
        graph = wire_graph_double(FLOATS);
        fd = wire_connect(&address, wire_address_parse(argv[1], &address));
        wire_hello(fd, NULL);
        handle = wire_submit(fd, graph, shape.burst);
        bare_fd = bare_start(&bare, &child);
        for (uint32_t i = 0; i < bursts;) {
                double took = measure_burst(fd, handle, &threads, &shape);

                if (took == 0)
                        continue;
                printf("{\"control\": %.1f, \"bare\": %.1f}\n", took,
                       measure_bare(bare_fd, handle, &bare, &shape));
                i++;
        }
        (void) close(bare_fd);
        (void) waitpid(child, NULL, 0);
        (void) hr_graph_unref(graph);
        (void) close(fd);
        return 0;
}
