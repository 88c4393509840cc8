/* SPDX-License-Identifier: Apache-2.0 */
/* The socket of a connection: leaving a lost one, and dialling the next daemon without blocking. Owns the moves between the
 * states that connection.h draws. Refuses to read and to write. Under the connection's lock. */
#ifndef CLIENT_SOCKET_H
#define CLIENT_SOCKET_H

#include "connection.h"

void socket_move(rdt *conn, enum connection_state to); /* a move that is not in the drawing is a bug */

/* There is a socket to read from. */
static inline bool socket_is_open(const rdt *conn)
{
    return conn->state != CONNECTION_AWAY && conn->state != CONNECTION_ENDED;
}

/* AWAY: leaves the socket, with what was read from it and what was to be sent. Dials at once, and then after longer and longer
 * pauses. */
void socket_leave(rdt *conn);

/* The leader has returned from its poll: closes the socket that was lost meanwhile. */
void socket_close_stale(rdt *conn);

/* When the connection needs a look for its own sake: to dial, or because the grace is over. CLOCK_NEVER: it does not. */
int64_t socket_due_ns(const rdt *conn);

/* Notes which file the path leads to, before it is dialled, or right after that. */
void socket_note_file(rdt *conn);

/* Whether another daemon has made a socket of its own at the path. Then the daemon of this one has ended, although the kernel
 * may keep its process, and with it the other end of this socket. */
bool socket_is_superseded(const rdt *conn);

/* AWAY, and it is time to: dials. True: GREETING, on a new socket. */
bool socket_dial(rdt *conn, int64_t now_ns);

#endif
