/* What a connection takes of the daemon's heap before anybody knows what it wants, and after it was answered: a large message that is still
 * coming, or being read by the pool, and answers that its client does not read. It counts as the client's share of the heap, like what is
 * kept of its requests; a little of each does not.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_HEAP_H
#define DAEMON_CONN_HEAP_H

#include "daemon/conn.h"

/* Before more is read. A message whose client has no share left is answered with LIMIT, and passed over: the connection goes on. */
void conn_admit_frame(struct conn *conn);

/* Nobody reads the message any more, or the connection is at its end. */
void conn_settle_frame(struct conn *conn); /* if so */
void conn_uncharge_frame(struct conn *conn);

/* After the queue of answers has changed. */
void conn_charge_queue(struct conn *conn);

/* LIMIT: an answer of so many bytes finds no room, and cannot be queued. */
bool conn_has_room(const struct conn *conn, size_t bytes, struct rdt_error *err);

/* Who does not read is not read: too much is queued, or what is queued is more than its share. */
bool conn_queue_is_full(const struct conn *conn);

/* At the end of a turn: its task goes on in the next ones, and answers by hundreds. A write for every few of them would wake the reader as
 * often: they may wait for more, for a few turns. */
bool conn_may_gather(struct conn *conn);

#endif
