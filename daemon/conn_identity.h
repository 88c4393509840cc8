/* The identity of a client as the kernel reports it: user, group and process, and the account that is charged for
 * it. A reason not to serve the client is kept until its HELLO, which it answers.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_IDENTITY_H
#define DAEMON_CONN_IDENTITY_H

#include "daemon/conn.h"

#define CONN_FDS 2 /* its socket and pidfd, charged to its account */

/* Fills the client's ids, its account (a reference, charged), the pidfd and, if it is not to be served, the
 * refusal. false: too many refused clients are connected to tell this one why; the caller closes the socket. */
bool conn_identify(struct conn *conn);

/* Closes a connection that was accepted and has no room, not even to be told so. Descriptors may wait in it. Takes the
 * socket. */
void conn_turn_away(const struct conns *conns, int take_sock);

#endif
