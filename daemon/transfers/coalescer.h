/* What this node is asking other nodes for just now, so that fetches of one object by one user become one transfer.
 *
 * A fetch reads bytes no older than its own start. So it joins another transfer in these cases only:
 *
 *   - PULL is not sent yet (the link is coming up, or the transfer is queued here): nothing can have been read. Also for objects that
 *     their producer may write.
 *   - the answer says that the object is a snapshot: then its bytes have no age, and it joins at any moment (copies.h).
 *
 * Only the answer tells which it is. While a transfer of the object is asked, later fetches of it gather in one other transfer, the
 * queued one; it asks when the answer is there, unless that was of a snapshot. So of a live object that many want at the same time at
 * most one transfer is asked and one queued, and everybody waits for one answer more than alone, at the most.
 *
 *   first fetch      ASKED ------- answer ------> goes on
 *   second, third            QUEUED ...... \---> asks (live), or takes what the first receives (snapshot)
 *   fourth                                          QUEUED ...
 *
 * So it is with a published name too: who asks for its next version while another one's question waits for the same is queued, and asks
 * when that is answered; a snapshot's bytes come once all the same. Only fetches that have read the same version gather.
 *
 * Only fetches of a whole object into memory that the daemon finds, without a wish for a path, join; and only with a generation or by
 * a name: an id alone may mean another object from one moment to the next. Their requester is one owner: whether another one may have the
 * object the owner's node decides.
 */
#ifndef DAEMON_QUESTION_H
#define DAEMON_QUESTION_H

#include "daemon/transfers/transfer_impl.h"

struct coalesced_key { /* no padding: it is compared as bytes */
    uint8_t node[16];
    uint64_t generation, after; /* of a name: 0, and the version that was read last */
    uint32_t requester_uid, uid;
    char requester[33], tenant[33];
    uint8_t id_bytes; /* uid, tenant, any_owner and id: of a name only */
    uint8_t any_owner;
    char id[128];
    char address[65]; /* of a name on whichever node is there: node is 0 */
    uint8_t rest[3]; /* 0 */
};

struct coalesced {
    struct coalesced_key key;
    struct transfer *asked; /* PULL is sent and not answered; NULL: none */
    struct transfer *open;  /* PULL is not sent: takes further fetches; NULL: none */
};

/* May the item take part at all? */
bool coalescer_fits(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *item, const struct rdt_ref *ref);

/* The transfer that another fetch of the same may join, or NULL. */
struct transfer *coalescer_open(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester);

/* A transfer that fits begins. true: it is asked, or may be as soon as the link is up; false: it is queued behind another one and
 * will be told by transfer_in_ask. */
bool coalescer_begin(struct transfer *transfer);

/* PULL is about to be sent. */
void coalescer_asked(struct transfer *transfer);

/* It is answered, or ends without an answer. Returns the id of the transfer that was queued behind it and must go on now; 0: none. */
uint64_t coalescer_close(struct transfer *transfer);

#endif
