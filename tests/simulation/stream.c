/*
 * The network: bytes that take time, arrive in other pieces than they were sent in, and stop where
 * a connection breaks. In front the daemon's face of it (daemon/stream.h), behind it the clients'.
 *
 * A direction is a ring with a window: what has been sent and not been read. Pieces of it arrive
 * one after the other; the end of it behind the last.
 */
#include "daemon/stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/clock.h"
#include "daemon/loop.h"
#include "tests/simulation/sim.h"

#define PIECES 32U
#define LINKS_MAX 256U
#define FDS_MAX 64U

struct flow {
        uint8_t *bytes;
        uint32_t window;
        uint64_t sent, arrived, read;
        struct {
                uint64_t end, at_ns;
        } pieces[PIECES];
        uint32_t first, count;
        uint64_t last_ns, end_ns; /* of the latest piece; when the end arrives: SIM_NEVER = none */
};

struct sim_link {
        uint32_t uid;
        bool is_secure;
        int fd;                            /* -1: not accepted yet, or closed by the daemon */
        bool accepted, closed_here;        /* by the client, both ways */
        bool closed_there;                 /* by the daemon */
        uint64_t open_ns, cut_ns, gone_ns; /* arrive at the daemon */
        struct flow up, down;
        /* Descriptors on their way; the first `fds_here` have arrived and were not claimed yet. */
        struct {
                uint64_t at;
                int fd;
        } fds[FDS_MAX];
        uint32_t fd_count, fds_here;
};

static struct sim_link *links[LINKS_MAX];
static uint32_t link_count;

/* ---- one direction --------------------------------------------------------------------------- */

static uint64_t latency(void) {
        return sim_random(sim.traits.latency_ns + 1);
}

static void flow_init(struct flow *flow) {
        flow->window = sim.traits.window_bytes << sim_random(5);
        flow->bytes = malloc(flow->window);
        HR_ASSERT(flow->bytes);
        flow->end_ns = SIM_NEVER;
}

static void flow_follow(struct flow *flow) {
        while (flow->count > 0 && flow->pieces[flow->first].at_ns <= sim.now_ns) {
                flow->arrived = flow->pieces[flow->first].end;
                flow->first = (flow->first + 1) % PIECES;
                flow->count--;
        }
}

static uint64_t flow_next_ns(struct flow *flow) {
        flow_follow(flow);
        if (flow->count > 0)
                return flow->pieces[flow->first].at_ns;
        return flow->end_ns > sim.now_ns ? flow->end_ns : SIM_NEVER;
}

static bool flow_is_over(struct flow *flow) {
        flow_follow(flow);
        return flow->end_ns <= sim.now_ns && flow->count == 0 && flow->read == flow->sent;
}

static size_t flow_room(const struct flow *flow) {
        return flow->end_ns == SIM_NEVER ? flow->window - (size_t) (flow->sent - flow->read) : 0;
}

static size_t flow_send(struct flow *flow, const uint8_t *bytes, size_t size) {
        size_t count = HR_MIN(size, flow_room(flow));

        for (size_t i = 0; i < count; i++)
                flow->bytes[flow->sent++ % flow->window] = bytes[i];
        if (count == 0)
                return 0;
        flow->last_ns = HR_MAX(flow->last_ns, sim.now_ns + latency());
        if (flow->count < PIECES)
                flow->count++;
        flow->pieces[(flow->first + flow->count - 1) % PIECES].end = flow->sent;
        flow->pieces[(flow->first + flow->count - 1) % PIECES].at_ns = flow->last_ns;
        return count;
}

/* What has arrived, or less. */
static size_t flow_read(struct flow *flow, uint8_t *bytes, size_t size) {
        size_t count;

        flow_follow(flow);
        count = HR_MIN(size, (size_t) (flow->arrived - flow->read));
        for (size_t i = 0; i < count; i++)
                bytes[i] = flow->bytes[flow->read++ % flow->window];
        return count;
}

static void flow_end(struct flow *flow) {
        if (flow->end_ns == SIM_NEVER)
                flow->end_ns = HR_MAX(flow->last_ns, sim.now_ns + latency());
}

static void fds_close(struct sim_link *link);

/* ---- the clients' side ----------------------------------------------------------------------- */

struct sim_link *sim_link_open(uint32_t uid, bool is_secure) {
        struct sim_link *link = calloc(1, sizeof *link);

        HR_ASSERT(link && link_count < LINKS_MAX);
        link->uid = uid;
        link->is_secure = is_secure;
        link->fd = -1;
        link->open_ns = sim.now_ns + latency();
        link->cut_ns = link->gone_ns = SIM_NEVER;
        flow_init(&link->up);
        flow_init(&link->down);
        links[link_count++] = link;
        sim_loop_nudge();
        return link;
}

size_t sim_link_write(struct sim_link *link, const uint8_t *bytes, size_t size) {
        size_t count = link->closed_there ? size : flow_send(&link->up, bytes, size);

        sim_loop_nudge();
        return count;
}

void sim_link_pass(struct sim_link *link, uint64_t at, int fd) {
        if (link->closed_there || link->fd_count == FDS_MAX) {
                (void) close(fd);
                return;
        }
        link->fds[link->fd_count].at = at;
        link->fds[link->fd_count++].fd = fd;
}

bool sim_link_has_room(const struct sim_link *link) {
        return link->closed_there || flow_room(&link->up) > 0;
}

size_t sim_link_read(struct sim_link *link, uint8_t *bytes, size_t size) {
        size_t count = flow_read(&link->down, bytes, size);

        if (count > 0)
                sim_loop_nudge();
        return count;
}

bool sim_link_is_over(const struct sim_link *link) {
        return flow_is_over((struct flow *) &link->down);
}

uint64_t sim_link_next_ns(struct sim_link *link) {
        flow_follow(&link->down);
        if (link->down.arrived > link->down.read)
                return sim.now_ns;
        return flow_next_ns(&link->down);
}

void sim_link_end(struct sim_link *link) {
        flow_end(&link->up);
        sim_loop_nudge();
}

void sim_link_close(struct sim_link *link, bool cut) {
        flow_end(&link->up);
        flow_end(&link->down);
        link->closed_here = true;
        if (cut)
                link->cut_ns = sim.now_ns + latency();
        else
                link->gone_ns = link->up.end_ns;
        sim_loop_nudge();
}

void sim_links_refuse(void) {
        for (uint32_t i = 0; i < link_count; i++)
                if (!links[i]->accepted) {
                        links[i]->accepted = links[i]->closed_there = true;
                        flow_end(&links[i]->down);
                }
        sim_clients_nudge();
}

void sim_links_free(void) {
        for (uint32_t i = 0; i < link_count; i++) {
                if (links[i]->fd >= 0)
                        sim_fail("descriptor %d has not been closed", links[i]->fd);
                fds_close(links[i]);
                free(links[i]->up.bytes);
                free(links[i]->down.bytes);
                free(links[i]);
        }
        link_count = 0;
}

/* ---- the daemon's side ----------------------------------------------------------------------- */

static struct sim_link *link_of(int fd) {
        for (uint32_t i = 0; i < link_count; i++)
                if (links[i]->fd == fd)
                        return links[i];
        return NULL;
}

static bool is_waiting(const struct sim_link *link, bool is_secure) {
        return !link->accepted && link->open_ns <= sim.now_ns && link->is_secure == is_secure;
}

/* The listeners are sockets of the system, where nobody ever comes. */
static bool listens_to_tcp(int fd) {
        int domain = 0;
        socklen_t bytes = sizeof domain;

        return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain != AF_UNIX;
}

static bool is_cut(const struct sim_link *link) {
        return link->cut_ns <= sim.now_ns;
}

int sim_stream_events(int fd) {
        struct sim_link *link = link_of(fd);
        int events = 0;

        if (!link) { /* a listener */
                for (uint32_t i = 0; i < link_count; i++)
                        if (is_waiting(links[i], listens_to_tcp(fd)))
                                return HR_LOOP_READABLE;
                return 0;
        }
        flow_follow(&link->up);
        if (link->up.arrived > link->up.read || flow_is_over(&link->up) || is_cut(link))
                events |= HR_LOOP_READABLE;
        if (flow_room(&link->down) > 0 || link->closed_here)
                events |= HR_LOOP_WRITABLE;
        return events;
}

static uint64_t later(uint64_t at_ns) {
        return at_ns > sim.now_ns ? at_ns : SIM_NEVER;
}

uint64_t sim_stream_next_ns(void) {
        uint64_t next_ns = SIM_NEVER;

        for (uint32_t i = 0; i < link_count; i++) {
                if (!links[i]->accepted)
                        next_ns = HR_MIN(next_ns, later(links[i]->open_ns));
                if (links[i]->fd < 0)
                        continue;
                next_ns = HR_MIN(next_ns, flow_next_ns(&links[i]->up));
                next_ns = HR_MIN(next_ns, later(links[i]->cut_ns));
        }
        return next_ns;
}

int hr_stream_accept(int listening, bool is_tcp) {
        static const int errors[] = {EINTR, ECONNABORTED, EAGAIN, EMFILE};

        (void) listening;
        if (sim.traits.accept_errors && sim_chance(300)) {
                errno = errors[sim_random(HR_ARRAY_LENGTH(errors))];
                return -1;
        }
        for (uint32_t i = 0; i < link_count; i++) {
                if (!is_waiting(links[i], is_tcp))
                        continue;
                links[i]->accepted = true;
                links[i]->fd = open("/dev/null", O_RDWR | O_CLOEXEC);
                HR_ASSERT(links[i]->fd >= 0);
                return links[i]->fd;
        }
        errno = EAGAIN;
        return -1;
}

static void fds_close(struct sim_link *link) {
        while (link->fd_count > 0)
                (void) close(link->fds[--link->fd_count].fd);
        link->fds_here = 0;
}

static void link_close(struct sim_link *link) {
        fds_close(link);
        (void) close(link->fd);
        link->fd = -1;
        link->closed_there = true;
        flow_end(&link->down);
        sim_clients_nudge();
}

void hr_stream_refuse(int fd, const void *bytes, size_t size) {
        struct sim_link *link = link_of(fd);

        HR_ASSERT(link);
        if (bytes)
                (void) flow_send(&link->down, bytes, size);
        link_close(link);
}

bool hr_stream_user(int fd, uid_t *ret_uid, gid_t *ret_gid) {
        *ret_uid = link_of(fd)->uid;
        *ret_gid = UINT32_MAX;
        return true;
}

size_t hr_stream_groups(int fd, gid_t *groups, size_t capacity) {
        (void) fd;
        (void) groups;
        (void) capacity;
        return 0;
}

hr_status hr_stream_init(struct hr_stream *stream, int fd, bool is_tcp,
                         struct hr_tls_context *context, struct hr_diag *diag) {
        HR_ASSERT(link_of(fd) && link_of(fd)->is_secure == is_tcp && is_tcp == (context != NULL));
        *stream = (struct hr_stream){.fd = fd, .is_tcp = is_tcp};
        if (context)
                stream->tls = hr_tls_new(context);
        return !context || stream->tls ? HR_OK : hr_fail(diag, HR_E_EXHAUSTED, "no memory for TLS");
}

void hr_stream_deinit(struct hr_stream *stream) {
        stream->tls = hr_tls_free(stream->tls);
        link_close(link_of(stream->fd));
        stream->fd = -1;
}

const char *hr_stream_name(const struct hr_stream *stream) {
        (void) stream;
        return "simulated";
}

uint32_t hr_stream_fd_count(const struct hr_stream *stream) {
        return link_of(stream->fd)->fds_here;
}

int hr_stream_fd_take(struct hr_stream *stream) {
        struct sim_link *link = link_of(stream->fd);
        int fd = link->fds[0].fd;

        if (link->fds_here == 0)
                return -1;
        link->fds_here--;
        memmove(link->fds, link->fds + 1, --link->fd_count * sizeof link->fds[0]);
        return fd;
}

/* Descriptors come with their byte. */
static void link_deliver(struct sim_link *link, const struct hr_stream *stream) {
        while (link->fds_here < link->fd_count && link->fds[link->fds_here].at < link->up.read) {
                if (!stream->takes_fds)
                        sim_fail("a descriptor is not taken");
                link->fds_here++;
        }
}

hr_stream_event hr_stream_receive(struct hr_stream *stream, const struct iovec *parts,
                                  size_t part_count, bool only_buffered, size_t *ret_bytes) {
        struct sim_link *link = link_of(stream->fd);
        size_t some = sim_chance(300) ? 1 + sim_random(40) : SIZE_MAX, got = 0;

        *ret_bytes = 0;
        if (stream->tls) {
                const hr_stream_event event = hr_tls_receive(stream->tls, stream->fd, parts,
                                                             part_count, only_buffered, ret_bytes);

                sim_clients_nudge();
                return event;
        }
        if (only_buffered)
                return HR_STREAM_LATER;
        if (is_cut(link))
                return HR_STREAM_FAILED;
        if (flow_is_over(&link->up))
                return HR_STREAM_END;
        for (size_t i = 0; i < part_count && got < some; i++) {
                size_t wanted = HR_MIN(parts[i].iov_len, some - got);
                size_t count = flow_read(&link->up, parts[i].iov_base, wanted);

                got += count;
                if (count < wanted)
                        break;
        }
        *ret_bytes = got;
        link_deliver(link, stream);
        sim_clients_nudge();
        return got > 0 ? HR_STREAM_OK : HR_STREAM_LATER;
}

/* What is said is the history, not how it is hidden. */
static void note_front(const struct iovec *parts, size_t bytes) {
        for (; bytes > 0; parts++) {
                const size_t part = HR_MIN(bytes, parts->iov_len);

                sim_note(parts->iov_base, part);
                bytes -= part;
        }
}

static hr_stream_event secure_send(struct hr_stream *stream, const struct iovec *parts,
                                   size_t part_count, size_t *ret_bytes) {
        const hr_stream_event event =
                hr_tls_send(stream->tls, stream->fd, parts, part_count, ret_bytes);

        note_front(parts, *ret_bytes);
        sim_clients_nudge();
        return event;
}

hr_stream_event hr_stream_send(struct hr_stream *stream, struct iovec *parts, size_t part_count,
                               size_t *ret_bytes) {
        struct sim_link *link = link_of(stream->fd);
        size_t some = sim_chance(300) ? 1 + sim_random(60) : SIZE_MAX, sent = 0;

        *ret_bytes = 0;
        if (stream->tls)
                return secure_send(stream, parts, part_count, ret_bytes);
        if (is_cut(link) || link->gone_ns <= sim.now_ns)
                return HR_STREAM_FAILED;
        for (size_t i = 0; i < part_count && sent < some; i++) {
                size_t wanted = HR_MIN(parts[i].iov_len, some - sent);
                size_t count = link->closed_here
                                       ? wanted
                                       : flow_send(&link->down, parts[i].iov_base, wanted);

                sim_note(parts[i].iov_base, count);
                sent += count;
                if (count < wanted)
                        break;
        }
        *ret_bytes = sent;
        sim_clients_nudge();
        return sent > 0 ? HR_STREAM_OK : HR_STREAM_LATER;
}

bool hr_stream_is_within(const struct hr_stream *stream) {
        return stream->tls && hr_tls_is_within_record(stream->tls);
}

bool hr_stream_has_unsent(const struct hr_stream *stream) {
        return stream->tls && hr_tls_has_unsent(stream->tls);
}

hr_stream_event hr_stream_flush(struct hr_stream *stream) {
        return stream->tls ? hr_tls_flush(stream->tls, stream->fd) : HR_STREAM_OK;
}

void hr_stream_end(struct hr_stream *stream) {
        if (stream->tls)
                hr_tls_end(stream->tls, stream->fd);
        flow_end(&link_of(stream->fd)->down);
        sim_clients_nudge();
}

bool hr_stream_drop(struct hr_stream *stream, void *window, size_t window_bytes) {
        struct sim_link *link = link_of(stream->fd);

        (void) flow_read(&link->up, window, window_bytes);
        return !flow_is_over(&link->up) && !is_cut(link);
}

bool hr_stream_peer_vanished(const struct hr_stream *stream) {
        const struct sim_link *link = link_of(stream->fd);

        if (stream->tls)
                return hr_tls_is_cut_off(stream->tls);
        return is_cut(link) || link->gone_ns <= sim.now_ns;
}

/* ---- under TLS ------------------------------------------------------------------------------- */

/* What tls.c asks of the system. */
ssize_t __real_recv(int fd, void *bytes, size_t size, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags);
ssize_t __real_send(int fd, const void *bytes, size_t size, int flags);
ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags);

static ssize_t failed(int number) {
        errno = number;
        return -1;
}

ssize_t __wrap_recv(int fd, void *bytes, size_t size, int flags) {
        struct sim_link *link = link_of(fd);
        size_t got, some = sim_chance(300) ? 1 + sim_random(40) : SIZE_MAX;

        if (!link)
                return __real_recv(fd, bytes, size, flags);
        if (sim_chance(20))
                return failed(EINTR);
        if (is_cut(link))
                return failed(ECONNRESET);
        got = flow_read(&link->up, bytes, HR_MIN(size, some));
        return got > 0 || flow_is_over(&link->up) ? (ssize_t) got : failed(EAGAIN);
}

ssize_t __wrap_send(int fd, const void *bytes, size_t size, int flags) {
        struct sim_link *link = link_of(fd);
        size_t sent, some = sim_chance(300) ? 1 + sim_random(60) : SIZE_MAX;

        if (!link)
                return __real_send(fd, bytes, size, flags);
        if (sim_chance(20))
                return failed(EINTR);
        if (is_cut(link) || link->gone_ns <= sim.now_ns)
                return failed(EPIPE);
        size = HR_MIN(size, some);
        sent = link->closed_here ? size : flow_send(&link->down, bytes, size);
        return sent > 0 ? (ssize_t) sent : failed(EAGAIN);
}
