/*
 * A blocking client for the measuring programs. Any failure, and any error that the daemon answers,
 * ends the program with words on standard error.
 */
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "core/graph.h"
#include "proto/codec.h"
#include "proto/frame.h"

#define WIRE_MESSAGE_BYTES 4096
#define WIRE_BODY_BYTES 65536

/* A frame as it goes over the socket. Large: keep it static. */
struct wire_frame {
        struct hr_frame_header header;
        uint8_t bytes[HR_FRAME_HEADER_BYTES + WIRE_MESSAGE_BYTES + WIRE_BODY_BYTES];
        size_t size;
};

union wire_address {
        struct sockaddr any;
        struct sockaddr_un local;
        struct sockaddr_in internet;
};

HR_NORETURN HR_PRINTF(1, 2) void wire_give_up(const char *format, ...);
void wire_must(hr_status status, const struct hr_diag *diag);

/* unix:PATH or tcp:127.0.0.1:PORT; returns the address's size. */
socklen_t wire_address_parse(const char *text, union wire_address *ret_address);
void wire_no_delay(int fd, int family);
int wire_connect(const union wire_address *address, socklen_t size);
void wire_write(int fd, const void *bytes, size_t size);
/* False at the end of the stream. */
bool wire_read(int fd, void *bytes, size_t size);

void wire_frame_make(struct wire_frame *frame, hr_frame_type type, uint64_t request_id,
                     const uint8_t *message, size_t message_bytes, const void *body,
                     size_t body_bytes);
struct hr_wire_span wire_frame_message(const struct wire_frame *frame);
const uint8_t *wire_frame_body(const struct wire_frame *frame);
void wire_frame_read(int fd, struct wire_frame *frame);
/* Ends the program if the frame carries an error. */
void wire_frame_check(const struct wire_frame *frame);
/* One request, one reply. */
void wire_exchange(int fd, const struct wire_frame *request, struct wire_frame *ret_reply);
/* token: NULL = none. */
void wire_hello(int fd, const char *token);
/* Returns the graph's handle; 0 slots leave their number to the daemon. */
uint64_t wire_submit(int fd, const struct hr_graph *graph, uint32_t slots);
/* Fills the request of a run with these inputs. */
void wire_run_make(uint64_t handle, uint64_t request_id, const void *input, size_t input_bytes,
                   struct wire_frame *ret_request);
/* y = x + x, of so many floats. The caller unrefs it. */
struct hr_graph *wire_graph_double(int64_t floats);
#define WIRE_CHAIN_SIDE 64
/* x; then h = norm(x h), `layers` times; all of them WIRE_CHAIN_SIDE squared. Likewise. */
struct hr_graph *wire_graph_chain(uint32_t layers);
