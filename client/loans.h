/* Memory that librdt copies tensors into for their puts, the same again and again: it is lent to an object (Put.lent), and when that has ended and
 * nobody reads there any more the daemon says so, and the next put of about as many bytes fills it anew: no ALLOC, no new pages. The daemon
 * decides how much is laid by and for how long; what it parts with is unmapped here.
 *
 * A room's mapping is the room's and nobody else's; rdt_put does not find it by address, nor a fetch by its region. Under the connection's lock unless it says
 * otherwise.
 */
#ifndef CLIENT_COPIES_H
#define CLIENT_COPIES_H

#include "connection.h"

struct copy_room {
    struct mapping *mapping;
    uint64_t bytes;  /* that a put may name */
    bool again;      /* it was lent before: the daemon may have parted with it since, and then the PUT is the first to hear of it, NOT_FOUND */
    bool putting;    /* a put has it, and looks at what came meanwhile: */
    bool back, gone; /* it is not lent any more; the daemon has parted with it */
    struct chain link;
};

/* Room for so many bytes, the caller's until copies_end. fresh: not one that was lent before. Otherwise as alloc_region. Without the lock. */
enum rdt_status loans_take(rdt *conn, uint64_t bytes, bool fresh, int64_t room_ns, int64_t deadline_ns, struct copy_room **room_p,
                            struct rdt_error *err);

/* PUT was answered: it is lent. Or not, or was never sent: the daemon gets it back. */
void loans_end(rdt *conn, struct copy_room *take_room, bool lent);

void loans_on_back(rdt *conn, struct frame *frame); /* REGION_BACK */

void loans_fini(rdt *conn); /* without a word to anybody: the mappings are memory_fini's */

#endif
