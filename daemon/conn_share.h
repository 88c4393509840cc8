/* SPDX-License-Identifier: Apache-2.0 */
/* The persons' shares of the loop. A connection may use CONN_TURN_NS of a turn of the loop, but a user may have thousands of
 * them. So all connections of one person together get PERSON_TURN_NS, and then those that have more to do wait, in order, for
 * the next turns. Other persons and other nodes are served in between.
 *
 * There may be thousands of persons, such as the users in containers. So all together get ALL_TURN_NS at once and as much
 * when they have waited. Those who wait take turns, and the more of them wait, the less each of them gets, so that a round
 * takes about ALL_TURN_NS. */
#ifndef DAEMON_CONN_SHARE_H
#define DAEMON_CONN_SHARE_H

#include "daemon/conn.h"

#define PERSON_TURN_NS 500000u
#define ALL_TURN_NS (2u * PERSON_TURN_NS)
#define LEAST_TURN_NS 2000u /* time for one frame */
#define FEW_PERSONS 2u      /* wait for one turn: their sockets are polled meanwhile */

/* take_turn_of(conn, readable) does the work of a turn; afterwards the connection may have called uv_close, but exists. */
void shares_init(struct conns *conns, void (*take_turn_of)(struct conn *conn, bool readable));

/* From now on nobody waits: what waits has its turn soon. */
void shares_close(struct conns *conns);

/* What one connection gets of a turn now. */
uint64_t share_conn_ns(const struct conns *conns);

/* The connection takes its turn, or waits for it. readable: there may be bytes in its socket. */
void share_turn(struct conn *conn, bool readable);

#endif
