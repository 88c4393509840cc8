/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions that survive their daemon (persist/recovery.h): their tokens, and those of an earlier daemon that wait for their
 * clients. A waiting session is a connection without a socket; when its client greets the daemon on a new connection with
 * the session's token, that connection's socket moves over.
 *
 *   greeted by an earlier daemon ──► waiting ── HELLO with its token ──► serving
 *                                      └── its process has ended, or cannot be watched and restart_grace passes ──► closing
 *
 * Loop thread only. */
#ifndef DAEMON_CONN_SESSION_H
#define DAEMON_CONN_SESSION_H

#include "daemon/conn.h"
#include "daemon/persist/recovery.h"

/* Records the session of a client that was greeted. On success token_p is its secret, which the daemon does not store. */
bool conn_session_begin(struct conn *conn, uint8_t token_p[SESSION_TOKEN_BYTES]);
void conn_session_end(struct conn *conn); /* does nothing if it was not recorded */

/* The session that the token names. NULL: there is none, or it is not one of this user and tenant. */
struct conn *conn_session_find(const struct conns *conns, const void *token, size_t bytes, const struct owner *owner);

/* Moves the socket of a connection that has sent nothing but HELLO to a waiting session. `from` closes. */
enum rdt_status conn_session_move(struct conn *waiting, struct conn *from, struct rdt_error *err);

/* For recovery->restore_session; arg is struct conns. */
struct client *conn_session_restore(void *arg, const struct session_image *image);

/* Everything has been restored: sessions whose process has ended end now, and the others begin to wait. */
void conn_sessions_wait(struct conns *conns);

#endif
