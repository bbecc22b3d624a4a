/*
 * What the files of a connection share: conn.c (life, requests, events), hr_conn_read.c,
 * conn_write.c, conn_end.c. Thread: loop.
 */
#pragma once

#include "daemon/conn.h"

/* While more than this waits to be sent, nothing is read. */
static inline uint64_t hr_conn_output_limit(const struct hr_conn *conn) {
        return conn->server->config->limits.output_queue_bytes;
}

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
