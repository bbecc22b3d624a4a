/*
 * What goes out to one peer.
 *
 * While nothing is queued a frame goes straight out with its message and body in one call. What the
 * socket does not take becomes a struct output. Frames of a long reply take turns with the other
 * outputs: a finished frame puts its output at the end of the queue.
 */
#include "daemon/conn_priv.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

#define WRITE_BYTES_MAX (UINT64_C(4) << 20) /* written before others have their turn */
#define DATA_MESSAGE_BYTES 16U

struct output {
        struct hr_list link;
        uint64_t request_id;
        const uint8_t *body;
        uint64_t body_bytes;  /* of the whole reply */
        uint64_t frame_first; /* offset of this frame's part of the body */
        uint64_t frame_bytes, frame_sent;
        void (*release)(void *arg);
        void *arg;
        size_t head_bytes, head_sent;
        uint8_t head[]; /* header and message; room for a DATA frame's */
};

void hr_conn_output_account(struct hr_conn *conn) {
        const struct hr_limits *limits = &conn->server->config->limits;
        uint64_t bytes = conn->session ? conn->output_bytes : 0, before, after;

        if (bytes == conn->output_charged)
                return;
        before = conn->principal->account.held[HR_CHARGE_OUTPUT_BYTES];
        hr_account_change(&conn->principal->account, HR_CHARGE_OUTPUT_BYTES, conn->output_charged,
                          bytes);
        conn->output_charged = bytes;
        after = conn->principal->account.held[HR_CHARGE_OUTPUT_BYTES];
        if (before <= limits->principal_output_bytes || after > limits->principal_output_bytes)
                return;
        HR_LIST_FOR_EACH(link, &conn->server->conns) {
                struct hr_conn *other = HR_CONTAINER_OF(link, struct hr_conn, link);

                if (other != conn && other->principal == conn->principal)
                        hr_conn_poll_update(other);
        }
}

static void output_drop(struct hr_conn *conn, struct output *output) {
        hr_list_remove(&output->link);
        conn->output_bytes -= (output->head_bytes - output->head_sent) +
                              (output->body_bytes - output->frame_first - output->frame_sent);
        if (output->release)
                output->release(output->arg);
        free(output);
}

void hr_conn_outputs_drop(struct hr_conn *conn) {
        struct hr_list *link;

        while ((link = conn->outputs.next) != &conn->outputs)
                output_drop(conn, HR_CONTAINER_OF(link, struct output, link));
        HR_ASSERT(conn->output_bytes == 0);
        hr_conn_output_account(conn);
}

/* Bytes the socket took; 0 when it takes none now or the connection has ended. */
static size_t conn_write(struct hr_conn *conn, struct iovec *parts, size_t part_count) {
        size_t sent = 0;

        switch (hr_stream_send(&conn->stream, parts, part_count, &sent)) {
        case HR_STREAM_OK:
                conn->server->stats.bytes_out += sent;
                conn->write_ns = hr_clock_now_ns();
                break;
        case HR_STREAM_LATER:
                break;
        default:
                hr_conn_stream_failed(conn);
                return 0;
        }
        if (hr_stream_has_unsent(&conn->stream)) /* taken by TLS, not yet by the socket */
                hr_conn_poll_update(conn);
        return sent;
}

/* Writes the head of the next DATA frame of a long reply. */
static void output_next_frame(struct hr_conn *conn, struct output *output) {
        uint64_t left;
        size_t message_bytes = 0;

        output->frame_first += output->frame_bytes;
        left = output->body_bytes - output->frame_first;
        output->frame_bytes = HR_MIN(left, conn->server->config->limits.body_bytes);
        output->frame_sent = 0;
        if (hr_wire_varint_encode(output->frame_first, output->head + HR_FRAME_HEADER_BYTES,
                                  DATA_MESSAGE_BYTES, NULL, &message_bytes) != HR_OK)
                HR_ASSERT(false); /* eleven bytes always fit */
        hr_frame_header_encode(
                &(struct hr_frame_header){
                        .type = HR_FRAME_DATA | HR_FRAME_REPLY,
                        .flags = output->frame_bytes < left ? HR_FRAME_MORE : HR_FRAME_END,
                        .request_id = output->request_id,
                        .message_bytes = (uint32_t) message_bytes,
                        .body_bytes = (uint32_t) output->frame_bytes,
                },
                output->head);
        output->head_bytes = HR_FRAME_HEADER_BYTES + message_bytes;
        output->head_sent = 0;
        conn->output_bytes += output->head_bytes;
        conn->server->stats.frames_out++;
}

/* Counts `sent` bytes off the first output. True when its frame is complete. */
static bool output_advance(struct hr_conn *conn, struct output *output, size_t sent) {
        size_t head = HR_MIN(sent, output->head_bytes - output->head_sent);

        conn->output_bytes -= sent;
        output->head_sent += head;
        output->frame_sent += sent - head;
        HR_ASSERT(output->frame_sent <= output->frame_bytes);
        return output->head_sent == output->head_bytes && output->frame_sent == output->frame_bytes;
}

void hr_conn_flush(struct hr_conn *conn) {
        uint64_t written = 0;

        if (hr_stream_has_unsent(&conn->stream)) {
                if (hr_stream_flush(&conn->stream) == HR_STREAM_FAILED)
                        hr_conn_stream_failed(conn);
                conn->write_ns = hr_clock_now_ns();
        }
        while (!conn->over && !hr_list_is_empty(&conn->outputs) && written < WRITE_BYTES_MAX) {
                struct output *output = HR_CONTAINER_OF(conn->outputs.next, struct output, link);
                struct iovec parts[2] = {
                        {output->head + output->head_sent, output->head_bytes - output->head_sent},
                        {(uint8_t *) output->body + output->frame_first + output->frame_sent,
                         output->frame_bytes - output->frame_sent},
                };
                size_t sent = conn_write(conn, parts, 2);

                if (sent == 0)
                        break;
                written += sent;
                if (!output_advance(conn, output, sent))
                        continue;
                if (output->frame_first + output->frame_bytes == output->body_bytes) {
                        output_drop(conn, output);
                        continue;
                }
                output_next_frame(conn, output);
                hr_list_remove(&output->link);
                hr_list_append(&conn->outputs, &output->link);
        }
        hr_conn_output_account(conn);
        hr_conn_poll_update(conn);
        hr_conn_close_if_done(conn);
}

/* Queues what is left of a frame of which `sent` bytes are out. */
static void conn_queue(struct hr_conn *conn, const struct hr_send *send,
                       const struct hr_frame_header *header, size_t sent) {
        size_t head_bytes = HR_FRAME_HEADER_BYTES + send->message_bytes;
        size_t room = HR_MAX(head_bytes, (size_t) HR_FRAME_HEADER_BYTES + DATA_MESSAGE_BYTES);
        struct output *output = malloc(sizeof *output + room);

        if (!output) {
                hr_conn_close(conn);
                if (send->release)
                        send->release(send->arg);
                return;
        }
        *output = (struct output){
                .request_id = header->request_id,
                .body = send->body,
                .body_bytes = send->body_bytes,
                .frame_bytes = header->body_bytes,
                .release = send->release,
                .arg = send->arg,
                .head_bytes = head_bytes,
        };
        hr_frame_header_encode(header, output->head);
        if (send->message_bytes > 0)
                memcpy(output->head + HR_FRAME_HEADER_BYTES, send->message, send->message_bytes);
        hr_list_append(&conn->outputs, &output->link);
        conn->output_bytes += head_bytes + send->body_bytes;
        if (sent > 0 && output_advance(conn, output, sent))
                output_next_frame(conn, output);
        hr_conn_output_account(conn);
        hr_conn_poll_update(conn);
}

void hr_conn_send(struct hr_conn *conn, const struct hr_send *send) {
        struct hr_frame_header header = send->header;
        uint8_t head[HR_FRAME_HEADER_BYTES];
        size_t total, sent = 0;

        if (conn->over || conn->lingering) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        HR_ASSERT(send->message_bytes <= HR_WIRE_MESSAGE_BYTES_MAX);
        header.message_bytes = (uint32_t) send->message_bytes;
        header.body_bytes =
                (uint32_t) HR_MIN(send->body_bytes, conn->server->config->limits.body_bytes);
        if (header.body_bytes < send->body_bytes)
                header.flags = (uint16_t) ((header.flags | HR_FRAME_MORE) & ~HR_FRAME_END);
        conn->server->stats.frames_out++;
        total = HR_FRAME_HEADER_BYTES + send->message_bytes + header.body_bytes;
        if (hr_list_is_empty(&conn->outputs)) {
                struct iovec parts[3] = {
                        {head, sizeof head},
                        {(void *) send->message, send->message_bytes},
                        {(void *) send->body, header.body_bytes},
                };

                hr_frame_header_encode(&header, head);
                sent = conn_write(conn, parts, header.body_bytes ? 3 : 2);
                if (sent == 0) /* its time begins now */
                        conn->write_ns = hr_clock_now_ns();
        }
        if (sent == total && header.body_bytes == send->body_bytes) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        if (conn->over) {
                if (send->release)
                        send->release(send->arg);
                return;
        }
        conn_queue(conn, send, &header, sent);
}
