/*
 * What the files of a connection share: conn.c (life, requests, events), hr_conn_read.c,
 * conn_write.c, conn_end.c. Thread: loop.
 */
#pragma once

#include "daemon/conn.h"

/* Too much waits to be sent, to this peer or to all of its principal: nothing is read. */
static inline bool hr_conn_is_clogged(const struct hr_conn *conn) {
        const struct hr_limits *limits = &conn->server->config->limits;

        return conn->output_bytes > limits->output_queue_bytes ||
               (conn->session && conn->principal->account.held[HR_CHARGE_OUTPUT_BYTES] >
                                         limits->principal_output_bytes);
}
/* The principal's account follows what is queued. */
void hr_conn_output_account(struct hr_conn *conn);

/* Asks for the events that are wanted now. */
void hr_conn_poll_update(struct hr_conn *conn);
/* Reads what has come, within what is fair to others. */
void hr_conn_read(struct hr_conn *conn);
/* After the last frame of a TCP connection: whatever comes is dropped. */
void hr_conn_linger(struct hr_conn *conn);
/* Sends queued output, within what is fair to others. */
void hr_conn_flush(struct hr_conn *conn);
/* Releases what is queued. */
void hr_conn_outputs_drop(struct hr_conn *conn);
/* Takes the connection further towards its end once nothing is left to do on it. */
void hr_conn_close_if_done(struct hr_conn *conn);
/* The socket, or TLS on it, is of no use any more. */
void hr_conn_stream_failed(struct hr_conn *conn);
