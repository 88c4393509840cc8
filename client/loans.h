/* Regions that librdt copies tensors into and lends to objects (Put.loaned). When the object has ended and nobody reads
 * the region any more, the daemon sends REGION_BACK, and the next put of about as many bytes fills the region again:
 * without ALLOC, and without new pages. The daemon decides how much stays idle and for how long; a region that it drops is
 * unmapped here.
 *
 *     loans_take ──► putting ──PUT answered──► loans_lent ──REGION_BACK──► loans_idle ──► loans_take
 *                       └──── PUT failed: given back          └─ REGION_BACK, gone: unmapped
 *
 * The mapping of a room belongs to the room: rdt_put does not find it by address, nor a fetch by its region. Under the
 * connection's lock unless a comment says otherwise. */
#ifndef CLIENT_LOANS_H
#define CLIENT_LOANS_H

#include "connection.h"

struct copy_room {
    struct mapping *mapping;
    uint64_t bytes;  /* the size that a put may use */
    bool again;      /* it was loaned before: the daemon may have dropped it since, and then PUT is answered
                      * NOT_FOUND */
    bool putting;    /* a put uses it; back and gone are looked at when the put ends */
    bool back, gone; /* the object has ended; the daemon has dropped the region */
    struct chain link;
};

/* Finds an idle room of about `bytes`, or allocates one. The room is the caller's until loans_end. With `fresh`
 * no idle room is used. Takes the lock. Otherwise as alloc_region. */
enum rdt_status loans_take(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t deadline_ns,
                           struct copy_room **room_p, struct rdt_error *err);

/* Ends the put. With `lent` the room is on loan to the object; else the region is given back to the daemon. */
void loans_end(rdt *conn, struct copy_room *take_room, bool lent);

void loans_on_back(rdt *conn, struct frame *frame); /* REGION_BACK */

void loans_fini(rdt *conn); /* frees the rooms without a message; memory_fini unmaps the mappings */

#endif
