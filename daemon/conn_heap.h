/* SPDX-License-Identifier: Apache-2.0 */
/* The accounts of what a connection uses and no request is charged for: the heap of a large message that is being received
 * or decoded, the heap of answers that the client has not read, and the descriptors of frames that are not complete, or not
 * sent yet.
 * Heap up to account_uncounted_bytes is not charged.
 *
 * The kernel also counts the descriptors that are on their way from this process, in answers that no client has read, and
 * accepts no more of them than RLIMIT_NOFILE (of a process without privileges). One user who reads nothing could stop the
 * answers to all others. So the daemon counts them too: the last eighth is for persons who have few on their way. It knows
 * that a client has received them when its socket has no unread bytes, and it looks only if there is no room. A connection
 * that ends keeps its socket open until then, because the kernel counts unread descriptors as long as the client has its end.
 *
 * Loop thread only.
 */
#ifndef DAEMON_CONN_HEAP_H
#define DAEMON_CONN_HEAP_H

#include "daemon/conn.h"

/* To be called before each read. A large message needs heap before its content is known, so it is charged when its header
 * has been received. If that exceeds the client's limit, the message is answered with LIMIT and skipped, and the connection
 * continues. */
void conn_admit_frame(struct conn *conn);

/* Both end the charge for a large message: conn_settle_frame if it has been handled, conn_uncharge_frame in any case. */
void conn_settle_frame(struct conn *conn);
void conn_uncharge_frame(struct conn *conn);

/* From now on rpc->owner_work closes the descriptors that nobody takes. The reader and the writer have been initialised. */
void conn_start_sink(struct conn *conn);

void conns_start_settling(struct conns *conns);

/* Whether the client has received all descriptors that were sent. Then they do not count any more. */
bool conn_settle_sent(struct conn *conn);

/* They do not count any more, although they may not have arrived. */
void conn_forget_sent(struct conn *conn);

/* Updates the charge for descriptors after the reader has received bytes or returned a frame, or the queue has changed. */
void conn_charge_fds(struct conn *conn);

/* Whether bytes may be read now. They may bring descriptors, so the answer is false while too many descriptors of the owner
 * are still being closed, and while descriptors are being closed and the process has no room for all that one message may
 * carry: the kernel would close those that do not fit inside recvmsg, on the loop thread. */
bool conn_may_read(const struct conn *conn);

/* Updates the charge after the queue of answers has changed. */
void conn_charge_queue(struct conn *conn);

/* Whether an answer of this many bytes may be queued. If not, err is LIMIT. */
bool conn_has_room(const struct conn *conn, size_t bytes, struct rdt_error *err);

/* Whether the client must read its answers before the daemon reads its next request, because they have reached the limit for
 * unread answers or the client's limit of heap or of descriptors. */
bool conn_queue_is_full(const struct conn *conn);

/* Whether, at the end of a turn, the queued answers should wait for those of the next turns. That is so for a few turns of a
 * task that continues: it gives hundreds of answers, and each write wakes the client. */
bool conn_may_gather(struct conn *conn);

#endif
