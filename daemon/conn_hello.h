/* SPDX-License-Identifier: Apache-2.0 */
/* HELLO, the first request of a connection: it makes the connection a client that the daemon serves.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_HELLO_H
#define DAEMON_CONN_HELLO_H

#include "daemon/conn.h"

/* Answers the first frame of a connection. A client that is not to be served gets the reason as its answer, as after
 * conn_refuse. Closes the frame's descriptors.
 * For conns->on_hello. */
void conn_hello(struct conn *conn, struct frame *frame);

#endif
