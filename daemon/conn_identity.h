/* SPDX-License-Identifier: Apache-2.0 */
/* The identity of a client as the kernel reports it: user, group and process, and the account that is charged for
 * it. A reason not to serve the client is stored in conn->greeting.refusal, with which HELLO is answered.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_IDENTITY_H
#define DAEMON_CONN_IDENTITY_H

#include "daemon/conn.h"

#define CONN_FDS 2 /* its socket and pidfd, charged to its account */

/* Sets the client's ids, its account (a reference, which is charged), the pidfd and, if the client is not to be served, the
 * refusal. Returns false if there is no memory, or so many refused clients are connected that this one is not told the
 * reason; the caller then calls conn_turn_away. */
bool conn_identify(struct conn *conn);

/* Closes an accepted connection without an answer, on the threads of its owner, because descriptors may wait in it. Takes
 * the socket. */
void conn_turn_away(const struct conns *conns, int take_sock);

/* Answers the frame with err, logs the refusal, and reads no more from the connection, which ends when the client has read
 * the answer or after HELLO_TIMEOUT_NS. */
void conn_refuse(struct conn *conn, const struct frame *frame, const struct rdt_error *err);

#endif
