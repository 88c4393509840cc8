/* SPDX-License-Identifier: Apache-2.0 */
/* The request coalescer: the requests of this node to other nodes, so that fetches of one object by one user
 * become one transfer.
 *
 * A fetch must read bytes that are no older than its own start. So a fetch joins another transfer in two
 * cases only:
 *
 *   - PULL has not been sent, because the link is coming up or the transfer is queued here. No byte can have
 *     been read, so this holds for live objects too.
 *   - The answer says that the object is a snapshot. Its bytes never change, so fetches join at any moment
 *     (replica.h).
 *
 * Only the answer tells which it is. While a transfer of the object is ASKED, later fetches gather in one
 * other transfer, which is QUEUED. It asks when the answer is there, unless the object is a snapshot. So at
 * most one transfer of a live object is ASKED and one QUEUED, and a fetch waits for at most one answer more
 * than it would alone.
 *
 *   first fetch      ASKED ------- answer ------> goes on
 *   second, third            QUEUED ...... \---> asks (live), or takes what the first one receives (snapshot)
 *   fourth                                          QUEUED ...
 *
 * The same holds for published names: a fetch of the next version is queued while another transfer waits for
 * the same version. Only fetches that have read the same version gather.
 *
 * Fetches join only if they want the whole object, in memory that the daemon allocates, by any path, and name
 * it by generation or by name: a bare id may mean another object a moment later. All fetches
 * of one transfer have one owner as their requester, because the owner's node decides per requester who may
 * have the object. */
#ifndef DAEMON_COALESCER_H
#define DAEMON_COALESCER_H

#include "daemon/transfers/transfer_impl.h"

struct coalesced_key { /* without padding, since it is compared as bytes */
    uint8_t node[16];
    uint64_t generation, after; /* of a name: 0 and the version that was read last */
    uint32_t requester_uid, uid;
    char requester[33], tenant[33];
    uint8_t id_bytes; /* uid, tenant, any_owner and id are used for names only */
    uint8_t any_owner;
    char id[128];
    char address[65]; /* of a name on the node at this address; `node` is then 0 */
    uint8_t rest[3];  /* 0 */
};

struct coalesced {
    struct coalesced_key key;
    struct transfer *asked; /* PULL was sent and is not answered; NULL: none */
    struct transfer *open;  /* PULL was not sent: further fetches may join; NULL: none */
};

/* Whether a fetch item may take part at all. */
bool coalescer_fits(const Rdt__Pb__Fetch *message, const Rdt__Pb__FetchItem *item, const struct rdt_ref *ref);

/* The transfer that another fetch of the same object may join, or NULL. */
struct transfer *coalescer_open(const struct transfers *transfers, const struct rdt_ref *ref, const struct owner *requester);

/* Begins a transfer that fits. true: it may ask as soon as the link is up; false: it is queued behind another
 * transfer, whose coalescer_close returns its id. */
bool coalescer_begin(struct transfer *transfer);

/* Called when PULL is about to be sent. */
void coalescer_asked(struct transfer *transfer);

/* Called when it was answered, or ends without an answer. Returns the id of the transfer that was queued
 * behind it and must go on now; 0: none. */
uint64_t coalescer_close(struct transfer *transfer);

#endif
