/* Fetches of objects that are on this node: objects of this node's clients, and replicas of other nodes'
 * snapshots.
 *
 * transfer_local.c waits until the object has been put or the name published, and then chooses how the reader
 * gets the tensors: by mapping the object's memory, by the bytes in the answer, or by a copy.
 * transfer_local_copy.c makes the copies. */
#ifndef DAEMON_TRANSFER_LOCAL_H
#define DAEMON_TRANSFER_LOCAL_H

#include "daemon/objects/client.h"
#include "daemon/objects/names.h"
#include "daemon/objects/object_table.h"

struct local_copy;
struct transfer;

/* The part of a transfer that only a fetch on this node uses. A pull that a replica here serves after all
 * begins to use it in transfer_become_local. */
struct local_fetch {
    struct object_waiter waiter; /* PARKED: called when the object is put */
    struct name_waiter named;    /* PARKED: called when a newer version of the name is published */
    struct client_wake wake;     /* the wait has ended: the fetch goes on in its client's slice of the loop */
    struct object *woken;        /* the object that ended the wait; held until `wake` has run */
    struct object *object;       /* held and pinned during a copy */
    struct local_copy *copy;     /* the copy under way, or NULL */
    bool from_replica;           /* the object is a replica of another node's snapshot */
};

/* The abort of local transfers: cancels the copy under way, and ends the transfer when nothing touches its
 * memory any more. */
void transfer_local_abort(struct transfer *transfer);

/* Serves the transfer from the object, which the caller holds. Answers its fetches and ends it, or starts a copy. */
void transfer_local_serve(struct transfer *transfer, struct object *object);

/* Holds and pins the object, allocates memory for the reader and copies the tensors there. Ends the transfer
 * when that is done or has failed. */
void transfer_local_copy(struct transfer *transfer, struct object *object);

#endif
