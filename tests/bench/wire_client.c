/*
 * A blocking client for the measuring programs: one socket, the few frames they need, and the end
 * of the program with words when anything goes wrong.
 */
#include "tests/bench/wire_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/codec.h"

void wire_give_up(const char *format, ...) {
        va_list arguments;

        va_start(arguments, format);
        (void) fprintf(stderr, "%s: ", program_invocation_short_name);
        (void) vfprintf(stderr, format, arguments);
        (void) fprintf(stderr, "\n");
        va_end(arguments);
        exit(1);
}

void wire_must(hr_status status, const struct hr_diag *diag) {
        if (status != HR_OK)
                wire_give_up("%s: %s", hr_status_name(status), diag->words);
}

/* ---- sockets
 * ---------------------------------------------------------------------------------- */

socklen_t wire_address_parse(const char *text, union wire_address *ret_address) {
        *ret_address = (union wire_address){0};
        if (strncmp(text, "unix:", 5) == 0) {
                ret_address->local.sun_family = AF_UNIX;
                if (strlen(text + 5) >= sizeof ret_address->local.sun_path)
                        wire_give_up("%s is too long", text);
                strcpy(ret_address->local.sun_path, text + 5);
                return sizeof ret_address->local;
        }
        if (strncmp(text, "tcp:127.0.0.1:", 14) == 0) {
                ret_address->internet.sin_family = AF_INET;
                ret_address->internet.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
                ret_address->internet.sin_port = htons((uint16_t) strtoul(text + 14, NULL, 10));
                return sizeof ret_address->internet;
        }
        wire_give_up("%s is neither unix:PATH nor tcp:127.0.0.1:PORT", text);
}

void wire_no_delay(int fd, int family) {
        int on = 1;

        if (family == AF_INET)
                (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

int wire_connect(const union wire_address *address, socklen_t size) {
        int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0 || connect(fd, &address->any, size) != 0)
                wire_give_up("connect: %s", strerror(errno));
        wire_no_delay(fd, address->any.sa_family);
        return fd;
}

void wire_write(int fd, const void *bytes, size_t size) {
        const uint8_t *next = bytes;

        while (size > 0) {
                ssize_t count = send(fd, next, size, MSG_NOSIGNAL);

                if (count <= 0)
                        wire_give_up("send: %s", strerror(errno));
                next += count;
                size -= (size_t) count;
        }
}

bool wire_read(int fd, void *bytes, size_t size) {
        uint8_t *next = bytes;

        while (size > 0) {
                ssize_t count = recv(fd, next, size, 0);

                if (count <= 0)
                        return false;
                next += count;
                size -= (size_t) count;
        }
        return true;
}

/* ---- the protocol, as far as this needs it
 * ---------------------------------------------------- */

void wire_frame_make(struct wire_frame *frame, hr_frame_type type, uint64_t request_id,
                       const uint8_t *message, size_t message_bytes, const void *body,
                       size_t body_bytes) {
        frame->header = (struct hr_frame_header){
                .type = (uint8_t) type,
                .flags = HR_FRAME_END,
                .request_id = request_id,
                .message_bytes = (uint32_t) message_bytes,
                .body_bytes = (uint32_t) body_bytes,
        };
        frame->size = HR_FRAME_HEADER_BYTES + message_bytes + body_bytes;
        if (frame->size > sizeof frame->bytes)
                wire_give_up("a frame of %zu bytes", frame->size);
        hr_frame_header_encode(&frame->header, frame->bytes);
        memcpy(frame->bytes + HR_FRAME_HEADER_BYTES, message, message_bytes);
        if (body_bytes > 0)
                memcpy(frame->bytes + HR_FRAME_HEADER_BYTES + message_bytes, body, body_bytes);
}

struct hr_wire_span wire_frame_message(const struct wire_frame *frame) {
        return (struct hr_wire_span){frame->bytes + HR_FRAME_HEADER_BYTES,
                                     frame->header.message_bytes};
}

const uint8_t *wire_frame_body(const struct wire_frame *frame) {
        return frame->bytes + HR_FRAME_HEADER_BYTES + frame->header.message_bytes;
}

void wire_frame_read(int fd, struct wire_frame *frame) {
        const struct hr_frame_limits limits = {WIRE_MESSAGE_BYTES, WIRE_BODY_BYTES, 0};
        struct hr_diag diag = {0};

        if (!wire_read(fd, frame->bytes, HR_FRAME_HEADER_BYTES))
                wire_give_up("the daemon closed the connection");
        wire_must(hr_frame_header_decode(frame->bytes, &limits, &diag, &frame->header), &diag);
        frame->size = HR_FRAME_HEADER_BYTES + frame->header.message_bytes +
                      frame->header.body_bytes;
        if (!wire_read(fd, frame->bytes + HR_FRAME_HEADER_BYTES,
                      frame->size - HR_FRAME_HEADER_BYTES))
                wire_give_up("the daemon closed the connection in a frame");
}

void wire_frame_check(const struct wire_frame *frame) {
        struct hr_wire_error error;
        struct hr_diag diag = {0};

        if (!(frame->header.flags & HR_FRAME_ERROR))
                return;
        wire_must(hr_wire_error_decode(wire_frame_message(frame), &diag, &error), &diag);
        wire_give_up("the daemon answers %s: %s", error.reason, error.words);
}

void wire_exchange(int fd, const struct wire_frame *request, struct wire_frame *ret_reply) {
        wire_write(fd, request->bytes, request->size);
        do
                wire_frame_read(fd, ret_reply);
        while (ret_reply->header.request_id != request->header.request_id);
        wire_frame_check(ret_reply);
}

/* ---- requests ---------------------------------------------------------------------------------
 */

void wire_hello(int fd, const char *token) {
        static struct hr_wire_hello hello;
        static struct wire_frame request, reply;
        uint8_t message[WIRE_MESSAGE_BYTES];
        struct hr_diag diag = {0};
        size_t bytes;

        hello.protocol_min = hello.protocol_max = HR_WIRE_PROTOCOL;
        strcpy(hello.client_name, "bench");
        if (token) {
                hello.credentials_bytes = (uint32_t) strnlen(token, sizeof hello.credentials);
                memcpy(hello.credentials, token, hello.credentials_bytes);
        }
        wire_must(hr_wire_hello_encode(&hello, message, sizeof message, &diag, &bytes), &diag);
        wire_frame_make(&request, HR_FRAME_HELLO, 1, message, bytes, NULL, 0);
        wire_exchange(fd, &request, &reply);
}

uint64_t wire_submit(int fd, const struct hr_graph *graph, uint32_t slots) {
        static struct hr_wire_submit_reply reply;
        static struct wire_frame request, answer;
        static uint8_t body[WIRE_BODY_BYTES];
        uint8_t message[WIRE_MESSAGE_BYTES];
        const struct hr_wire_submit submit = {.n_copies = slots};
        struct hr_diag diag = {0};
        size_t message_bytes, body_bytes;

        wire_must(hr_wire_graph_encode(graph, body, sizeof body, &diag, &body_bytes), &diag);
        wire_must(hr_wire_submit_encode(&submit, message, sizeof message, &diag, &message_bytes),
                  &diag);
        wire_frame_make(&request, HR_FRAME_SUBMIT, 2, message, message_bytes, body, body_bytes);
        wire_exchange(fd, &request, &answer);
        wire_must(hr_wire_submit_reply_decode(wire_frame_message(&answer), &diag, &reply), &diag);
        return reply.handle;
}

void wire_run_make(uint64_t handle, uint64_t request_id, const void *input, size_t input_bytes,
                   struct wire_frame *ret_request) {
        const struct hr_wire_run run = {.handle = handle};
        uint8_t message[WIRE_MESSAGE_BYTES];
        struct hr_diag diag = {0};
        size_t bytes;

        wire_must(hr_wire_run_encode(&run, message, sizeof message, &diag, &bytes), &diag);
        wire_frame_make(ret_request, HR_FRAME_RUN, request_id, message, bytes, input, input_bytes);
}

struct hr_graph *wire_graph_double(int64_t floats) {
        const struct hr_graph_sizes sizes = {.leaf_count = 1, .node_count = 1, .source_count = 2};
        struct hr_diag diag = {0};
        struct hr_graph *graph;

        wire_must(hr_graph_new(&sizes, &diag, &graph), &diag);
        for (uint32_t i = 0; i < 2; i++) {
                struct hr_tensor *tensor = &graph->tensors[i];

                tensor->type = HR_TYPE_F32;
                tensor->view_base = HR_TENSOR_NONE;
                tensor->ne[0] = floats;
                tensor->ne[1] = tensor->ne[2] = tensor->ne[3] = 1;
                wire_must(hr_tensor_set_contiguous(tensor, &diag), &diag);
        }
        graph->tensors[0].leaf_kind = HR_LEAF_INPUT;
        graph->tensors[0].flags = HR_TENSOR_INPUT;
        graph->tensors[1].op = HR_OP_ADD;
        graph->tensors[1].flags = HR_TENSOR_OUTPUT;
        graph->tensors[1].source_count = 2;
        graph->sources[0] = graph->sources[1] = 0;
        return graph;
}

static void chain_tensor_set(struct hr_graph *graph, uint32_t id, uint32_t op) {
        struct hr_tensor *tensor = &graph->tensors[id];
        struct hr_diag diag = {0};

        tensor->type = HR_TYPE_F32;
        tensor->op = op;
        tensor->view_base = HR_TENSOR_NONE;
        tensor->ne[0] = tensor->ne[1] = WIRE_CHAIN_SIDE;
        tensor->ne[2] = tensor->ne[3] = 1;
        wire_must(hr_tensor_set_contiguous(tensor, &diag), &diag);
}

struct hr_graph *wire_graph_chain(uint32_t layers) {
        const struct hr_graph_sizes sizes = {
                .leaf_count = 1, .node_count = 2 * layers, .source_count = 3 * layers};
        const struct hr_graph_limits limits = {.tensor_bytes_max = 1 << 30};
        const float epsilon = 1e-6F;
        struct hr_graph *graph;
        struct hr_diag diag = {0};
        uint32_t used = 0;

        wire_must(hr_graph_new(&sizes, &diag, &graph), &diag);
        chain_tensor_set(graph, 0, HR_OP_NONE);
        graph->tensors[0].leaf_kind = HR_LEAF_INPUT;
        graph->tensors[0].flags = HR_TENSOR_INPUT;
        for (uint32_t id = 1; id <= 2 * layers; id++) {
                bool product = id % 2;
                struct hr_tensor *tensor = &graph->tensors[id];

                chain_tensor_set(graph, id, product ? HR_OP_MUL_MAT : HR_OP_RMS_NORM);
                tensor->source_first = used;
                tensor->source_count = product ? 2 : 1;
                if (product)
                        graph->sources[used++] = 0;
                else
                        memcpy(&tensor->params[0], &epsilon, sizeof epsilon);
                graph->sources[used++] = id - 1;
        }
        graph->tensors[2 * layers].flags |= HR_TENSOR_OUTPUT;
        wire_must(hr_graph_validate(graph, &limits, &diag), &diag);
        return graph;
}
