/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO, the first request of a connection: it makes the connection a client that the daemon serves.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_HELLO_H
#define DAEMON_CONN_HELLO_H

#include "daemon/conn.h"

#define HELLO_TIMEOUT_NS 10000000000ll

/* Answers the first frame of a connection. A client that is not to be served gets the reason as its answer, as after
 * conn_refuse. Closes the frame's descriptors. */
void conn_hello(struct conn *conn, struct frame *frame);

/* Answers the frame with err, logs the refusal, and reads no more from the connection, which ends when the client has read
 * the answer or after HELLO_TIMEOUT_NS. */
void conn_refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err);

#endif
