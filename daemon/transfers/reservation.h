/* Memory for the items of one fetch: for all that are to be received or copied from one node, or for none of them. A node that has
 * objects nobody has put yet, or that is silent, holds back only what waits for it: items are taken together by the node they come
 * from, an item that has to wait for its put is left out, and no memory is held while anything waits.
 *
 *   item begins -> join (its size is unknown) -> wait (now it is known)  -> all of the group are known: on_room for each, or all fail
 *                                             -> leave (it needs none, waits for a put, or has ended)
 *
 * Loop thread only.
 */
#ifndef DAEMON_RESERVATION_H
#define DAEMON_RESERVATION_H

#include "daemon/transfers/transfer_impl.h"

struct reservation;

/* Of one message, which has a reference; for what its transfers get. NULL: no memory, then each item takes what it finds. */
struct reservation *reservation_create(struct regions *regions);

/* All of its items have begun. Drops the reference. NULL is fine. */
void reservation_seal(struct reservation *reservation);

/* The transfer, if it was given a reservation, belongs to the group of this node (NULL: our own) until it waits or leaves. */
void reservation_join(struct transfer *transfer, struct peer_session *peer);

/* It needs stream_bytes, and nothing else is missing: true: on_room follows, perhaps at once, or its failure; false: it is in no group
 * and may go on. */
bool reservation_wait(struct transfer *transfer, void (*on_room)(struct transfer *));

/* Nothing if it is in no group. */
void reservation_leave(struct transfer *transfer);

#endif
