/* What a connection uses and no request is charged for: the heap of a large message that is still being received or
 * decoded, and of answers that the client has not read; descriptors that have come with frames that are not whole yet.
 * Above a small free amount the heap counts towards the client's limit.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_HEAP_H
#define DAEMON_CONN_HEAP_H

#include "daemon/conn.h"

/* Called before more is read. A large message for which the client has no heap left is answered with LIMIT and
 * skipped; the connection continues. */
void conn_admit_frame(struct conn *conn);

/* Ends the charge for the large message: conn_settle_frame only if it has been handled, conn_uncharge_frame in any case. */
void conn_settle_frame(struct conn *conn);
void conn_uncharge_frame(struct conn *conn);

/* From now on descriptors that nobody takes are closed by rpc->owner_work. The reader and the writer are initialised. */
void conn_start_sink(struct conn *conn);

/* Updates the charge after the reader has received or returned a frame. */
void conn_charge_fds(struct conn *conn);

/* May bytes be read now, which might bring descriptors? Not if the owner has too many that are still being closed. Nor if
 * the process could not take all that one message may carry while some are: the kernel would drop descriptors, which
 * means that it closes them inside recvmsg. */
bool conn_may_read(const struct conn *conn);

/* Updates the charge after the queue of answers has changed. */
void conn_charge_queue(struct conn *conn);

/* May an answer of this many bytes be queued? LIMIT. */
bool conn_has_room(const struct conn *conn, size_t bytes, struct rdt_error *err);

/* The client must read its answers before the daemon reads its next request: client_queue or its limit of heap is reached. */
bool conn_queue_is_full(const struct conn *conn);

/* At the end of a turn of a task that continues: may the answers wait for more, for a few turns? A task answers by
 * the hundred, and each write wakes the reader. */
bool conn_may_gather(struct conn *conn);

#endif
